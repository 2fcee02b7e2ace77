#!/usr/bin/env python3
"""Render small templates with Python jinja2 and write tests/data/templates/cases.json.

usage: gen_tmpl_cases.py [--add N --seed S] [--bin ./hetero]    (needs: pip install jinja2)

The templates already in the file are rendered again; --add appends N random expressions and N random
templates. With --bin every case is also given to `hetero template`, and what differs is printed: what
Hetero refuses as unsupported is left out of the file, any other difference is a bug to be fixed.
"""
import argparse, copy, datetime, json, os, random, re, subprocess, tempfile, warnings
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../tests/data/templates/cases.json')
LITERALS = ["1", "0", "-2", "3", "2.5", "0.5", "''", "'a'", "'Ab c'", "' x\\n'", "\"it's\"", "true", "false", "none",
            "[1,2,3]", "[]", "['b','A']", "(1,'x')", "{'a':1}", "{}", "'é日'", "10", "'12'"]
FILTERS = ["upper", "lower", "trim", "length", "string", "list", "first", "last", "join(',')", "join", "int", "float",
           "abs", "round", "round(1)", "sort", "unique|list", "reverse|list", "tojson", "tojson(indent=2)",
           "default('D')", "default('D',true)", "replace('a','b')", "title", "capitalize", "map('string')|list",
           "map('length')|list", "select|list", "reject|list", "sum", "min", "max", "items|list", "dictsort", "indent(2)",
           "map(attribute='role')|list", "selectattr('role')|list", "selectattr('n','gt',1)|list", "center(9)", "count",
           "safe", "map('upper')|join('-')", "sort(reverse=true)", "e"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float",
         "boolean", "true", "false", "odd", "even", "lower", "upper", "divisibleby(2)", "eq(1)", "in([1,'a'])", "gt(1)"]
POSTFIX = [".upper()", ".split()", ".strip()", ".get('a')", ".items()|list", ".startswith('a')", ".replace('a','z')", ".k",
           ".role", ".a", "[0]", "[-1]", "['a']", "[1:]", "[::-1]", "[:2]", ".keys()|list", ".lower()", ".split(',')",
           ".count('a')", ".find('b')", ".b", "[5]", ".items()", ".index(1)", ".lstrip('H')", ".endswith('c')"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or", "**"]

def environment(now):
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    def raise_exception(text): raise ValueError(text)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters['tojson'] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=now.strftime)
    return env

def reference(env, source, variables):
    try:
        return {'t': source, 'text': env.from_string(source).render(messages=[], add_generation_prompt=False,
                                                                    bos_token='', eos_token='', **copy.deepcopy(variables))}
    except Exception as e:
        return {'t': source, 'error': type(e).__name__}

class Writer:
    """Random sources. d bounds the depth."""
    def __init__(self, seed, names): self.r, self.names = random.Random(seed), names + ['undef']
    def atom(self, d):
        e = self.expr(d)
        return e if re.fullmatch(r"\w+|'[^']*'|\[[^\]]*\]", e) else '(%s)' % e
    def expr(self, d):
        r, x = self.r, self.r.random()
        if d <= 0 or x < .15: return r.choice(self.names) if r.random() < .6 else r.choice(LITERALS)
        if x < .35: return '%s|%s' % (self.atom(d - 1), r.choice(FILTERS))
        if x < .45: return '%s is %s%s' % (self.atom(d - 1), r.choice(['', 'not ']), r.choice(TESTS))
        if x < .60: return self.atom(d - 1) + r.choice(POSTFIX)
        if x < .85: return '%s %s %s' % (self.atom(d - 1), r.choice(OPERATORS), self.atom(d - 1))
        if x < .90: return '%s if %s else %s' % (self.atom(d - 1), self.atom(d - 1), self.atom(d - 1))
        if x < .93: return '[%s, %s]' % (self.expr(d - 1), self.expr(d - 1))
        return ('not ' if x < .95 else '-') + self.atom(d - 1) if x < .97 else "{'q': %s}" % self.expr(d - 1)
    def body(self, d):
        r, x = self.r, self.r.random()
        ws, nl = (lambda: r.choice(['', '', '-'])), (lambda: r.choice(['', '\n', ' ', '  \n  ', 'x\n']))
        tag = lambda text: '{%%%s %s %s%%}%s' % (ws(), text, ws(), nl())
        if d <= 0 or x < .35: return '{{%s %s %s}}%s' % (ws(), self.expr(2), ws(), nl())
        if x < .50: return tag('if ' + self.expr(2)) + self.body(d - 1) + tag('else') + self.body(d - 1) + tag('endif')
        if x < .70: return tag('for v in ' + self.expr(1)) + '{{ v }}' + self.body(d - 1) + tag('endfor')
        if x < .85: return tag('set %s = %s' % (r.choice(['s', 'w', 'l']), self.expr(2))) + self.body(d - 1)
        if x < .90: return '{#%s c %s#}%s' % (ws(), ws(), nl()) + self.body(d - 1)
        return self.body(d - 1) + nl() + self.body(d - 1)

def agrees(binary, case, doc, tmp):
    """None when Hetero refuses the template as unsupported, else whether it gives the same."""
    for name, text in (('t', case['t']), ('m', '[]')):
        with open(os.path.join(tmp, name), 'w', newline='') as f: f.write(text)
    r = subprocess.run([binary, 'template', '--template', tmp + '/t', '--messages', tmp + '/m', '--no-generation-prompt', '--bos', '',
                        '--eos', '', '--now', doc['now'], '--kwargs', json.dumps(doc['vars'])], capture_output=True)
    if b'not supported' in r.stderr: return None
    return r.returncode == 0 and r.stdout.decode() == case['text'] if 'text' in case else r.returncode != 0

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--add', type=int, default=0); ap.add_argument('--seed', type=int, default=1); ap.add_argument('--bin')
    a = ap.parse_args()
    warnings.simplefilter('ignore')
    doc = json.load(open(FILE))
    env, w = environment(datetime.datetime.fromisoformat(doc['now'])), Writer(a.seed, list(doc['vars']))
    sources = [c['t'] for c in doc['cases']] + ['{{ %s }}' % w.expr(3) for _ in range(a.add)] + [w.body(3) for _ in range(a.add)]
    cases = [c for c in (reference(env, t, doc['vars']) for t in dict.fromkeys(sources)) if 'object at 0x' not in c.get('text', '')]
    if a.bin:
        with tempfile.TemporaryDirectory() as tmp: same = [agrees(a.bin, c, doc, tmp) for c in cases]
        for c, s in zip(cases, same):
            if s is False: print('differs:', json.dumps(c, ensure_ascii=False))
        cases = [c for c, s in zip(cases, same) if s]
    with open(FILE, 'w') as f:
        f.write('{\n' + ''.join('%s: %s,\n' % (json.dumps(k), json.dumps(doc[k], ensure_ascii=False)) for k in ('how', 'now', 'vars')))
        f.write('"cases": [\n' + ',\n'.join(json.dumps(c, ensure_ascii=False) for c in cases) + '\n]}\n')
    print('%d cases' % len(cases))

main()
