"""JSON Schema grammars of libhetero against the jsonschema package.

Schemas are made at random from the keywords that docs/grammar.md lists. For each: instances that the oracle calls valid
and that are written as the grammar writes them (members in the schema's order, none that is not listed) must be
accepted, mutated ones that the oracle calls invalid must be refused, and whatever a random walk through the token masks
ends with must be JSON that the oracle accepts.
"""
import copy
import ctypes
import json
import os
import random
import string

import jsonschema

from lib import BIN, FULL, SMOL, TALE, check, end

V = ctypes.c_void_p
LIB = ctypes.CDLL(os.path.join(os.path.dirname(BIN), 'libhetero.so.0'))


class Err(ctypes.Structure):
    _fields_ = [('code', ctypes.c_int), ('where', ctypes.c_char_p), ('msg', ctypes.c_char * 240)]


def call(name, *args):
    e = Err()
    rc = getattr(LIB, name)(*args, ctypes.byref(e))
    return rc, e.msg.decode(errors='replace')


LIB.ht_vocab_size.restype = ctypes.c_uint32
for f in ('ht_vocab_size', 'ht_vocab_close', 'ht_lexicon_close', 'ht_grammar_close', 'ht_matcher_free',
          'ht_matcher_is_complete', 'ht_matcher_must_end'):
    getattr(LIB, f).argtypes = [V]


def dumps(v, **kw):
    return json.dumps(v, ensure_ascii=False, **kw)


class Vocab:
    def __init__(self, path):
        self.v, self.l = V(), V()
        assert call('ht_vocab_open', ctypes.byref(self.v), path.encode(), None)[0] == 0
        assert call('ht_lexicon_open', ctypes.byref(self.l), self.v, ctypes.c_uint32(0))[0] == 0
        self.n = LIB.ht_vocab_size(self.v)
        self.text, self.eog = [], set()
        for i in range(self.n):
            p, n, ids = ctypes.c_char_p(), ctypes.c_size_t(), (ctypes.c_int32 * 1)(i)
            assert call('ht_vocab_decode', self.v, ids, ctypes.c_size_t(1), 0, ctypes.byref(p), ctypes.byref(n))[0] == 0
            self.text.append(ctypes.string_at(p, n.value))
            if LIB.ht_vocab_is_eog(self.v, i):
                self.eog.add(i)


class Grammar:
    def __init__(self, schema, vocab=None):
        self.g, text = V(), json.dumps(schema).encode()
        self.rc, self.msg = call('ht_grammar_open', ctypes.byref(self.g), vocab.l if vocab else None, 2, text,
                                 ctypes.c_size_t(len(text)))

    def accepts(self, text):
        b = text.encode()
        return call('ht_grammar_check', self.g, b, ctypes.c_size_t(len(b)))[0] == 0

    def close(self):
        LIB.ht_grammar_close(self.g)

    def walk(self, vocab, rng, limit=400):
        """Random tokens under the mask; the text when it ended, else None."""
        m, out, bits = V(), b'', ctypes.POINTER(ctypes.c_uint32)()
        assert call('ht_matcher_new', ctypes.byref(m), self.g)[0] == 0
        done = None
        for step in range(limit):
            rc, msg = call('ht_matcher_mask', m, ctypes.byref(bits))
            if not check(rc == 0, 'walk: a mask', '%s after %r' % (msg, out[-80:])):
                break
            may = [e for e in vocab.eog if bits[e // 32] >> (e % 32) & 1]
            if not check(bool(may) == bool(LIB.ht_matcher_is_complete(m)), 'walk: the end is allowed where complete'):
                break
            if may and (step > 60 or rng.random() < 0.4):
                done = out
                break
            for t in (rng.randrange(vocab.n) for _ in range(4 if step < 20 else 0)):
                if not bits[t // 32] >> (t % 32) & 1:  # refused, and the walk stays where it is
                    check(call('ht_matcher_accept', m, ctypes.c_int32(t))[0] != 0, 'walk: a token that is not allowed',
                          '%r after %r' % (vocab.text[t], out[-80:]))
            for _ in range(400):
                t = rng.randrange(vocab.n)
                # Late in a walk the short ways lead out sooner.
                if bits[t // 32] >> (t % 32) & 1 and (step < 60 or len(vocab.text[t]) < 3):
                    break
            else:
                some = [i for i in range(vocab.n) if bits[i // 32] >> (i % 32) & 1]
                short = [i for i in some if vocab.text[i][:1] in (b'"', b'}', b']')] if step > 60 else []
                t = rng.choice(short or some)
            if t in vocab.eog:
                done = out
                break
            out += vocab.text[t]
            rc, msg = call('ht_matcher_accept', m, ctypes.c_int32(t))
            if not check(rc == 0, 'walk: an allowed token is taken', '%s after %r' % (msg, out[-80:])):
                break
        LIB.ht_matcher_free(m)
        return done


# ---- schemas and instances of them, both at random ------------------------------------------------------------------
PATTERNS = [(r'^[a-c]{2,5}$', 'abcab'), (r'^\d{3}-[x-z]+$', '123-xyz'), (r'^(on|off)$', 'off'), (r'q"\\', 'a q"\\ b'),
            (r'^[^a-z]*$', 'AB 12'), (r'^é+|ß$', 'éé')]
WORDS = ['alpha', 'b', 'name', 'x y', 'é', 'k"q', 'path/to', 'long_property_name']


def schema(rng, depth=0, refs=()):
    kinds = ['string', 'integer', 'number', 'boolean', 'null', 'enum', 'const', 'pattern', 'length', 'range', 'real']
    if depth < 3:
        kinds += ['object', 'object', 'array', 'array', 'any', 'oneOf', 'prefix', 'map', 'allOf', 'types']
    if refs and depth:
        kinds += ['ref', 'ref']
    k = rng.choice(kinds)
    sub = lambda: schema(rng, depth + 1, refs)  # noqa: E731
    if k in ('string', 'integer', 'number', 'boolean', 'null'):
        return {'type': k, 'description': 'plain'}
    if k == 'enum':
        return {'enum': rng.sample([1, 'one', None, 2.5, True, 'two "q"', [1, 'x'], {'k': 'é'}], rng.randint(1, 4))}
    if k == 'const':
        return {'const': rng.choice([7, 'v\n', [], {'a': [None]}])}
    if k == 'pattern':
        return {'type': 'string', 'pattern': rng.choice(PATTERNS)[0]}
    if k == 'length':
        a = rng.randint(0, 4)
        return {'type': 'string', 'minLength': a, 'maxLength': a + rng.randint(0, 5)}
    if k == 'range':
        a = rng.randint(-300, 300)
        s = {'type': 'integer', rng.choice(['minimum', 'exclusiveMinimum']): a}
        if rng.random() < .7:
            s[rng.choice(['maximum', 'exclusiveMaximum'])] = a + rng.randint(3, 2000)
        return s
    if k == 'real':
        a = round(rng.uniform(-3, 3), rng.randint(0, 3))
        return {'type': 'number', rng.choice(['minimum', 'exclusiveMinimum']): a,
                rng.choice(['maximum', 'exclusiveMaximum']): round(a + rng.uniform(.5, 5), 2)}
    if k == 'any':
        return {'anyOf': [sub() for _ in range(rng.randint(1, 3))]}
    if k == 'oneOf':
        return {'oneOf': [{'type': 'object', 'properties': {'kind': {'const': w}, w: sub()}, 'required': ['kind', w],
                           'additionalProperties': False} for w in rng.sample(WORDS, 2)]}
    if k == 'ref':
        return {'$ref': rng.choice(refs)}
    if k == 'array':
        a = rng.randint(0, 2)
        return {'type': 'array', 'items': sub(), 'minItems': a, 'maxItems': a + rng.randint(0, 3)}
    if k == 'prefix':
        n = rng.randint(1, 3)
        return {'type': 'array', 'prefixItems': [sub() for _ in range(n)], 'items': rng.choice([False, {'type': 'null'}]),
                'minItems': rng.randint(0, n), 'maxItems': n + 1}
    if k == 'map':
        return {'type': 'object', 'additionalProperties': sub(), 'maxProperties': rng.randint(1, 3)}
    if k == 'types':
        return {'type': rng.sample(['string', 'null', 'boolean', 'integer'], 2)}
    names = rng.sample(WORDS, rng.randint(1, 4))
    s = {'type': 'object', 'properties': {n: sub() for n in names},
         'required': [n for n in names if rng.random() < .6], 'additionalProperties': False}
    if k == 'allOf':
        return {'allOf': [{k2: v for k2, v in s.items() if k2 != 'additionalProperties'}, {'required': names[:1]}]}
    if rng.random() < .2:
        s['additionalProperties'] = {'type': 'integer'}
    return s


def document(rng):
    defs = {}
    refs = ['#/$defs/leaf', '#/$defs/tree']
    s = schema(rng, 0, refs)
    if '$ref' not in s:
        s = dict(s)
    defs['leaf'] = schema(rng, 3)
    defs['tree'] = {'type': 'object', 'properties': {'v': schema(rng, 3), 'kids': {
        'type': 'array', 'items': {'$ref': '#/$defs/tree'}, 'maxItems': 2}}, 'required': ['v'],
        'additionalProperties': False}
    s['$defs'] = defs
    return s


def text(rng, n):
    return ''.join(rng.choice(string.ascii_letters + ' "\\\n/é€😀') for _ in range(n))


def instance(rng, s, root, depth=0):
    """A value that should be valid, in the order the grammar writes."""
    sub = lambda x: instance(rng, x, root, depth + 1)  # noqa: E731
    if s is True:
        return rng.choice([1, 'x', None])
    if '$ref' in s:
        return sub(root['$defs'][s['$ref'].split('/')[-1]])
    if 'enum' in s:
        return rng.choice(s['enum'])
    if 'const' in s:
        return s['const']
    if 'allOf' in s:
        return sub({**s['allOf'][0], 'required': sorted(
            set(s['allOf'][0]['required'] + s['allOf'][1]['required']), key=list(s['allOf'][0]['properties']).index)})
    for k in ('anyOf', 'oneOf'):
        if k in s:
            return sub(rng.choice(s[k]))
    t = s['type']
    if isinstance(t, list):
        t = rng.choice(t)
    if t == 'string':
        if 'pattern' in s:
            return dict(PATTERNS)[s['pattern']]
        a = s.get('minLength', 0)
        return text(rng, rng.randint(a, s.get('maxLength', a + 6)))
    if t == 'integer':
        lo = s.get('minimum', s.get('exclusiveMinimum', -50) + 1)
        hi = s.get('maximum', s.get('exclusiveMaximum', lo + 1001) - 1)
        return rng.randint(lo, hi)
    if t == 'number':
        lo, hi = s.get('minimum', s.get('exclusiveMinimum', -9)), s.get('maximum', s.get('exclusiveMaximum', 9))
        return round(lo + (hi - lo) * rng.uniform(.01, .99), 4) + 0.0  # no -0.0
    if t == 'boolean':
        return rng.random() < .5
    if t == 'null':
        return None
    if t == 'array':
        pre = s.get('prefixItems', [])
        n = rng.randint(s.get('minItems', 0), max(s.get('minItems', 0), min(s.get('maxItems', 4), 4)))
        if s.get('items') is False:
            n = min(n, len(pre))
        if depth > 5:
            n = s.get('minItems', 0)
        return [sub(pre[i] if i < len(pre) else s['items']) for i in range(n)]
    out = {}
    for k, v in s.get('properties', {}).items():
        if k in s.get('required', []) or (rng.random() < .5 and depth < 5):
            out[k] = sub(v)
    if isinstance(s.get('additionalProperties'), dict) and rng.random() < .6:
        for i in range(rng.randint(0, min(2, s.get('maxProperties', 2)))):
            out['extra%d' % i] = sub(s['additionalProperties'])
    return out


def mutations(rng, v):
    """Values near v; most of them are invalid."""
    for _ in range(6):
        w = copy.deepcopy(v)
        at, key = None, None
        node = w
        while isinstance(node, (dict, list)) and node and (at is None or rng.random() < .7):
            at, key = node, rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            node = node[key]
        new = rng.choice([None, True, -1, 10 ** 9, 2.125, 'zz', '', [], {}, [1, 2, 3, 4, 5, 6, 7], {'nope': 1}, 'x' * 30])
        if at is None:
            w = new
        elif rng.random() < .3:
            del at[key]
        elif isinstance(at, dict) and rng.random() < .3:
            at['nope'] = new
        else:
            at[key] = new
        yield w


def one(seed, vocab):
    rng = random.Random(seed)
    s = document(rng)
    name = 'schema %d' % seed
    oracle = jsonschema.Draft202012Validator(s)
    g = Grammar(s, vocab)
    if not check(g.rc == 0, name + ' compiles', '%s: %s' % (g.msg, json.dumps(s)[:400])):
        return
    for _ in range(6):
        v = instance(rng, s, s)
        if not oracle.is_valid(v):
            continue
        for t in (dumps(v), dumps(v, separators=(',', ':')), dumps(v, indent=2)):
            check(g.accepts(t), name + ' accepts', '%s of %s' % (t[:300], json.dumps(s)[:500]))
        for w in mutations(rng, v):
            if not oracle.is_valid(w):
                check(not g.accepts(dumps(w)), name + ' refuses', '%s of %s' % (dumps(w)[:300], dumps(s)[:500]))
    ended = 0
    for _ in range(3):
        out = g.walk(vocab, rng)
        if out is None:
            continue
        ended += 1
        try:
            v = json.loads(out.decode())
            bad = next(iter(oracle.iter_errors(v)), None)
        except ValueError as e:
            bad = e
        check(bad is None, name + ': a walk is valid', '%r: %s, of %s' % (out[:300], str(bad)[:200], json.dumps(s)[:400]))
    g.close()
    return ended


def main():
    vocab = Vocab(TALE)
    n = 1500 if FULL else 150
    ended = sum(one(i, vocab) or 0 for i in range(n))
    check(ended > n, 'walks come to an end', '%d of %d' % (ended, 3 * n))
    if os.path.exists(SMOL):
        vocab = Vocab(SMOL)
        for i in range(10000, 10000 + n // 10):
            one(i, vocab)
    end()


if __name__ == '__main__':
    main()
