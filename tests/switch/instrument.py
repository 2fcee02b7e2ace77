"""Gives every check of the verifier an index, in a copy of its sources: the mutation test of the verifier
(tests/e2e/evid_switch.py) turns each off at run time. The sources themselves know nothing of it.

    instrument.py OUT_DIR SOURCE.c ...

A check is an `if` whose body refuses (HT_FAIL with a code of refusal, fail_at, bad, a false, a word of the
quality gate, a class, a gate or canary result that is not good), a refusal that ends a function, and the condition
of pass_or() and gate(). Written: OUT_DIR/<name>.c with the checks numbered, and OUT_DIR/checks.json, which says of each
index where it stands and what it reads.
"""
import json
import os
import re
import sys

# What writes or signs is no verifier; HT_EARG and HT_ENOMEM are no refusals of evidence.
SKIP = {'ht_manifest_write', 'ht_journal_new', 'ht_journal_add', 'ht_journal_close', 'put', 'ht_key_new',
        'ht_key_from_seed', 'ht_key_save', 'ht_key_load', 'new_key', 'sign_one', 'ht_dsse_sign', 'ht_scope_write',
        'ht_trust_write', 'fail_at', 'bad', 'fail_crypto', 'refuse', 'wrong_type', 'ht_json_u32', 'ht_json_i64',
        'ht_json_f64', 'ht_json_bool', 'ht_json_str', 'to_double', 'literal', 'next_is', 'is_allowed',
        'evid__next_line', 'evid__design_is', 'isqrt', 'ht_quality_greedy', 'ht_quality_text', 'ht_quality_task', 'wrap',
        'ht_sched_scope_write', 'gate'}
REFUSAL = re.compile(r'HT_FAIL\(\s*[\w>.-]+,\s*(?:HT_EFORMAT|HT_EIO|HT_EGATE)\b|'
                     r'HT_FAIL\(\s*[\w>.-]+,\s*\w+ == ENOENT \?|'
                     r'\bfail_at\(|\bbad\(|\breturn false\b|\breturn -1\b|'
                     r'\breturn HT_(?:INVALID_EVIDENCE|FAIL_\w+|NOT_ADMISSIBLE_ENV|INCONCLUSIVE_\w+|TAIL_(?:FAIL|TOO_FEW))\b|'
                     r'\breturn \(enum ht_class\)|'
                     r'^\*?(?:good|holds|[\w>-]*_known) = false;|'
                     r'\bset\(r, \w+, HT_(?:FAILED|NOT_RUN|ERROR)\b|\] = HT_(?:NOT_RUN|NOT_APPLICABLE);')
WORD = re.compile(r'^return "[A-Z0-9_]+";$')


def mask(text):
    """Comments, strings and characters as blanks of the same length."""
    def blank(m):
        return re.sub(r'[^\n]', ' ', m.group())
    return re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', blank, text, flags=re.S)


def match(text, at, pair):
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i
    raise SystemExit('instrument.py: no end of %s' % text[at:at + 40])


def functions(code):
    """(name, start, end) of every body."""
    for m in re.finditer(r'^[a-z][\w \*]*?\b(\w+)\([^;{}]*\)\n\{', code, flags=re.M):
        yield m.group(1), m.end() - 1, match(code, m.end() - 1, '{}')


class File:
    def __init__(self, path, first):
        self.path, self.next = path, first
        self.text = open(path).read()
        self.code = mask(self.text)
        self.edits, self.checks = [], []
        for name, start, end in functions(self.code):
            if name not in SKIP:
                self.function(name, start, end)

    def index(self, name, at, reads):
        self.checks.append({'check': self.next, 'file': os.path.basename(self.path), 'function': name,
                            'line': self.text.count('\n', 0, at) + 1, 'reads': re.sub(r'\s+', ' ', reads)[:160]})
        self.next += 1
        return self.next - 1

    def function(self, name, start, end):
        covered = []
        for m in re.finditer(r'\bif \(', self.code[start:end]):
            at = start + m.end() - 1
            close = match(self.code, at, '()')
            body = close + 1 + len(self.code[close + 1:]) - len(self.code[close + 1:].lstrip())
            last = match(self.code, body, '{}') if self.code[body] == '{' else self.statement(body)
            text = self.text[body:last + 1]
            if any(a <= at <= b for a, b in covered):
                continue
            if not REFUSAL.search(text) and not WORD.match(text):
                continue
            if re.search(r'\bif \(', self.code[body:last]) and self.code[body] == '{':
                continue # the inner ones are the checks
            if text.startswith(('if (', 'for (', 'while (')):
                continue
            i = self.index(name, at, self.text[at:close + 1] + ' ' + text)
            self.edits += [(at, '(ht_check(%d, !!' % i), (close + 1, '))')]
            covered.append((body, last))
        for m in re.finditer(r'\b(?:pass_or\(r|gate\(x), \w+,', self.code[start:end]):
            self.gate(name, start + m.end())
        for m in re.finditer(r'\breturn (?:HT_FAIL|bad|fail_at)\(', self.code[start:end]):
            at = start + m.start() + 7
            if any(a <= at <= b for a, b in covered):
                continue
            last = match(self.code, self.code.index('(', at), '()')
            if not REFUSAL.search(self.text[at:last + 1]):
                continue
            i = self.index(name, at, self.text[at:last + 1])
            self.edits += [(at, '!ht_check(%d, 1) ? 0 : ' % i)]

        for m in re.finditer(r'\? 0\s*: (?=(?:bad|HT_FAIL)\()', self.code[start:end]):
            at = start + m.end()
            last = match(self.code, self.code.index('(', at), '()')
            if REFUSAL.search(self.text[at:last + 1]):
                i = self.index(name, at, self.text[at:last + 1])
                self.edits += [(at, '!ht_check(%d, 1) ? 0 : ' % i)]

    def statement(self, at):
        depth = 0
        for i in range(at, len(self.code)):
            depth += (self.code[i] in '({') - (self.code[i] in ')}')
            if self.code[i] == ';' and depth == 0:
                return i
        raise SystemExit('instrument.py: %s: no end of a statement' % self.path)

    def gate(self, name, at):
        depth, end = 0, at
        while depth or self.code[end] != ',':
            depth += (self.code[end] == '(') - (self.code[end] == ')')
            end += 1
        i = self.index(name, at, 'gate ' + self.text[at:end].strip())
        self.edits += [(at, ' !ht_check(%d, !(' % i), (end, '))')]

    def write(self, out):
        text = self.text
        for at, more in sorted(self.edits, reverse=True):
            text = text[:at] + more + text[at:]
        with open(os.path.join(out, os.path.basename(self.path)), 'w') as f:
            f.write('int ht_check(int, int);\n#line 1 "%s"\n%s' % (self.path, text))


def main(argv):
    out, checks = argv[1], []
    os.makedirs(out, exist_ok=True)
    for path in argv[2:]:
        f = File(path, len(checks))
        f.write(out)
        checks += f.checks
    with open(os.path.join(out, 'checks.json'), 'w') as f:
        json.dump(checks, f, indent=1)


main(sys.argv)
