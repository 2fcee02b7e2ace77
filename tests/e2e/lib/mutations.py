"""Bundles that are wrong in one way each (evidence.md 8), with the reason for which they must be refused.

A case is a bundle on disk, a trust root and a time. Inputs are changed before they are digested and signed, so that
nothing but the check in question can find the change; what lies outside the signature is changed afterwards.
"""
import base64
import copy
import os
import shutil

import amendment
import comparison
import schedule
from bundle import Key, Maker, MACHINE, NONE, POLICY, V, envelope, trust_root, write_tree

NOW = 1795900000
BENCH, P1, P2, INDEX, SIM, RECEIPT, STRANGER = (Key(i) for i in range(1, 8))
TRUST = {'bench': [BENCH], 'promote': [P1, P2], 'index': [INDEX], 'simulate': [SIM], 'receipt': [RECEIPT]}
ONE = {'cells': ('d512',)}
UNKNOWN = {'known': False, 'reason': 'WORD'}


class Case:
    """says: a part of the verifier's message, or several; paper: the bytes of an amendment of the bundle."""
    def __init__(self, name, want, says, files, disk=None, trust=None, now=NOW, paper=None):
        self.name, self.want, self.says, self.files, self.disk, self.now = name, want, says, files, disk, now
        self.paper_bytes = paper
        self.trust_bytes = trust or trust_root(TRUST)

    def write(self, t, lies):
        """lies: {path: bytes} of what is in the folder already; only what differs is written. A case that
        damages the folder gets one of its own."""
        self.top, self.trust = os.path.join(t, 'bundle'), os.path.join(t, 'trust.json')
        if self.disk:
            self.top, lies = os.path.join(t, 'own'), {}
        for path in [p for p in lies if p not in self.files]:
            os.remove(os.path.join(self.top, path))
            del lies[path]
        write_tree(self.top, {p: d for p, d in self.files.items() if lies.get(p) != d})
        lies.update(self.files)
        with open(self.trust, 'wb') as f:
            f.write(self.trust_bytes)
        self.paper = os.path.join(t, 'amendment.json') if self.paper_bytes else None
        if self.paper:
            with open(self.paper, 'wb') as f:
                f.write(self.paper_bytes)
        if self.disk:
            self.disk(self.top)

    def clean(self):
        if self.disk:
            for name in (self.top, self.top + '.x'):
                shutil.rmtree(name, ignore_errors=True)


def at(path, value):
    """An edit: the member at a dotted path (numbers are places in lists) becomes value; Ellipsis: it goes."""
    def change(doc, *_):
        doc = copy.deepcopy(doc)
        *way, last = [int(x) if x.isdigit() else x for x in path.split('.')]
        o = doc
        for k in way:
            o = o[k]
        if value is ...:
            del o[last]
        else:
            o[last] = value(o[last]) if callable(value) else value
        return doc
    return change


def raw(old, new):
    """An edit of a document's bytes."""
    def change(doc, *_):
        data = doc if isinstance(doc, bytes) else V.canon(doc)
        assert old in data, old
        return data.replace(old, new, 1)
    return change


def when(place, edit):
    """An edit of the sample or chunks of one block and slot only."""
    return lambda x, where: edit(x) if where == place else x


# ---- 1-8: bytes --------------------------------------------------------------------------------------

def swap(a, b):
    def change(files):
        files[a], files[b] = files[b], files[a]
    return change


def disk_cases():
    def path(top, name='design.json'):
        return os.path.join(top, name)

    def link(make):
        def go(top):
            os.mkdir(top + '.x')
            os.rename(path(top), os.path.join(top + '.x', 'design.json'))
            make(os.path.join(top + '.x', 'design.json'), path(top))
        return go

    def deep(top):
        os.makedirs(os.path.join(top, *'abcdefghijklmnopqrs'))

    def long_name(top):
        folder = os.path.join(top, 'x' * 120)
        os.makedirs(folder)
        open(os.path.join(folder, 'y' * 100), 'w').close()

    yield 'a symbolic link', 'symbolic link', link(os.symlink)
    yield 'a hard link', 'single link', link(os.link)
    yield 'a FIFO', 'single link', lambda top: (os.remove(path(top)), os.mkfifo(path(top)))
    yield 'a folder in its place', 'single link', lambda top: (os.remove(path(top)), os.mkdir(path(top)))
    yield 'a file gone', 'No such file', lambda top: os.remove(path(top))
    yield 'a file renamed', 'No such file', lambda top: os.rename(path(top), path(top, 'Design.json'))
    yield 'a file more', 'is in no manifest', lambda top: open(path(top, 'raw/more'), 'w').close()
    yield 'a link more', 'regular file', lambda top: os.symlink('design.json', path(top, 'raw/more'))
    yield 'a FIFO more', 'regular file', lambda top: os.mkfifo(path(top, 'raw/more'))
    yield 'folders without end', 'too deep', deep
    yield 'a path too long', 'too long', long_name
    yield 'no bundle', 'No such file', lambda top: os.rename(top, top + '.x')


def manifest_cases():
    """Edits of inputs.manifest.json; the digests above it follow."""
    def entries(change):
        def go(data, *_):
            m = V.load(data, 'm')
            change(m['files'])
            return V.canon(m)
        return go

    def entry(i, key, value):
        return entries(lambda files: files[i].update({key: value}))
    yield 'parent path', 'not allowed', entry(0, 'path', '../build.json')
    yield 'absolute path', 'not allowed', entry(0, 'path', '/build/binary.json')
    yield 'backslash', 'not allowed', entry(0, 'path', 'build\\binary.json')
    yield 'NUL in a path', 'not allowed', entry(0, 'path', 'build/binary.json\0')
    yield 'space in a path', 'not allowed', entry(0, 'path', 'build/binary json')
    yield 'a path not ASCII', 'not allowed', entry(0, 'path', 'build/bin\u00e4ry.json')
    yield 'an empty path', 'not allowed', entry(0, 'path', '')
    yield 'a path too long in the manifest', 'not allowed', entry(0, 'path', 'b' * 201)
    yield 'twice', 'twice or out of order', entries(lambda f: f.insert(0, dict(f[0])))
    yield 'out of order', 'twice or out of order', entries(lambda f: f.insert(0, f.pop(1)))
    yield 'empty manifest', 'files, need', entries(lambda f: f.clear())
    yield 'length', 'the manifest says', entry(0, 'bytes', 9)
    yield 'digest', 'does not match', entry(0, 'sha256', '0' * 64)
    yield 'upper case', 'lower-case hex', entry(0, 'sha256', 'A' * 64)
    yield '63 digits', 'lower-case hex', entry(0, 'sha256', 'a' * 63)
    yield 'SHA-1', 'lower-case hex', entry(0, 'sha256', 'a' * 40)
    yield 'negative length', 'integer in range', entry(0, 'bytes', -1)


def journal(change):
    def go(data, *_):
        rows = data.split(b'\n')[:-1]
        return change(rows)
    return go


def joined(rows):
    return b''.join(x + b'\n' for x in rows)


def journal_cases():
    """Chain broken after the fact; what mends the chain is in event_cases()."""
    def move(rows):
        rows[3], rows[4] = rows[4], rows[3]
        return joined(rows)
    yield 'last line dropped', 'journal: line', journal(lambda r: joined(r[:-1]))
    yield 'middle line dropped', 'chain breaks', journal(lambda r: joined(r[:5] + r[6:]))
    yield 'lines exchanged', 'chain breaks', journal(move)
    yield 'cut in a line', 'cut off', journal(lambda r: joined(r)[:-9])
    yield 'empty journal', 'cut off', journal(lambda r: b'')
    yield 'another first prev', 'chain breaks', journal(lambda r: joined([r[0].replace(b'0' * 64, b'1' * 64)] + r[1:]))


def event_cases():
    """The journal written wrongly, its chain whole."""
    def on(name, nth, change):
        seen = []

        def go(events):
            if events[0][0] == name:
                seen.append(1)
                if len(seen) == nth:
                    return change(*events[0])
            return events
        return go

    def more(**kw):
        return lambda n, m: [(n, {**m, **kw})]

    def less(key):
        return lambda n, m: [(n, {k: v for k, v in m.items() if k != key})]
    yield 'an event left out', 'need event guards', on('guards', 3, lambda n, m: [])
    yield 'guards after samples', 'need event guards', on('guards', 3, lambda n, m: [('note', {}), ('samples', m)])
    yield 'an attempt more', 'the design does not have', on('close', 1, lambda n, m: [
        ('start', {'arm': 'A', 'attempt': 1, 'block': 8, 'slot': 1}), (n, m)])
    yield 'another arm', 'has block', on('start', 5, more(arm='M'))
    yield 'another block', 'has block', on('start', 5, more(block=7))
    yield 'another attempt', 'has block', on('start', 5, more(attempt=2))
    yield 'another slot', 'has block', on('start', 6, more(slot=4))
    yield 'void is missing', 'is missing', on('guards', 2, less('void'))
    yield 'lines are missing', 'is missing', on('samples', 2, less('lines'))
    yield 'digest of the lines', 'not those the journal closed', on('samples', 2, more(sha256='0' * 64))
    yield 'fewer lines', 'the design needs', on('samples', 2, more(lines=0))
    yield 'attempts counted wrong', 'close counts', on('close', 1, more(attempts=9))
    yield 'voids counted wrong', 'close counts', on('close', 1, more(voids=1))
    yield 'blocks counted wrong', 'close counts', on('close', 1, more(blocks=7))
    yield 'another design sealed', 'not what the journal sealed', on('design', 1, more(designSha256='0' * 64))
    yield 'an unknown member', 'unknown member', on('start', 2, more(extra=1))
    yield 'no end', 'must be first', on('close', 1, lambda n, m: [('note', {})])
    yield 'two beginnings', 'must be first', on('start', 1, lambda n, m: [('design', {}), (n, m)])
    yield 'a block called void that was not', 'does not follow', on('guards', 2, more(void='GUARD'))
    yield 'time runs backwards', 'time runs backwards', on('guards', 5, more(monoNs=1))
    yield 'notes are allowed', None, on('start', 2, lambda n, m: [('note', {'text': 'x'}), (n, m), ('note', {})])


# ---- 9-13: JSON --------------------------------------------------------------------------------------

def json_cases():
    """Bytes in the place of build/toolchain.json."""
    good = b'{"compiler":"cc","flags":"","schema":"hetero/toolchain/1"}'

    def value(text):
        return good.replace(b'"cc"', text)
    many = b','.join(b'"k%02d":1' % i for i in range(20))
    yield 'a key twice', 'same key twice', good.replace(b'{', b'{"flags":"",', 1)
    yield 'a key twice, escaped', 'same key twice', good.replace(b'{', b'{"fl\\u0061gs":"",', 1)
    yield 'a key twice inside', 'same key twice', value(b'{"a":1,"a":2}')
    yield 'a key twice of many', 'same key twice', value(b'{%s,"k03":2}' % many)
    for text in (b'NaN', b'Infinity', b'nul', b'TRUE', b"'x'", b'/**/1'):
        yield 'value ' + text.decode(), 'expected a value', value(text)
    yield '-Infinity', 'needs a digit', value(b'-Infinity')
    yield '01', 'leading zero', value(b'01')
    yield '1.', 'after its point', value(b'1.')
    yield '1e', 'in its exponent', value(b'1e')
    yield '1e400', 'out of the range', value(b'1e400')
    yield 'a number of 500 digits', 'more than 400', value(b'1' * 500)
    for text in (b'1.0', b'1e3', b'-0', b'9007199254740992', b'9e15', b'99999999999999999999'):
        yield 'number ' + text.decode(), '', value(text)
    yield 'BOM', 'expected a value', b'\xef\xbb\xbf' + good
    yield 'trailing bytes', 'follows the value', good + b'{}'
    yield 'a line end', 'canonical', good + b'\n'
    yield 'white space', 'canonical', good.replace(b':', b': ', 1)
    yield 'another order', 'canonical', b'{"flags":"","compiler":"cc","schema":"hetero/toolchain/1"}'
    yield 'an escape that is none', 'unknown escape', value(b'"\\q"')
    yield 'an escape too many', 'canonical', value(b'"\\u0063c"')
    yield 'three hex digits', 'four hex digits', value(b'"\\u12x4"')
    yield 'hex digits at the end', 'four hex digits', good[:-1] + b',"x":"\\u1"'
    yield 'half a pair', 'surrogate', value(b'"\\ud800"')
    yield 'the second half', 'surrogate', value(b'"\\udc00"')
    yield 'a pair of two first halves', 'surrogate', value(b'"\\ud800\\ud800"')
    yield 'overlong UTF-8', 'malformed UTF-8', value(b'"\xc0\xaf"')
    yield 'a surrogate in UTF-8', 'malformed UTF-8', value(b'"\xed\xa0\x80"')
    yield 'a control character', 'control character', value(b'"\x01"')
    yield 'no end of a string', 'without an end', good[:-3]
    yield 'no end', "expected ','", good[:-1]
    yield 'a trailing comma', 'expected a key', good[:-1] + b',}'
    yield 'a comma in an array', 'expected a value', value(b'[1,]')
    yield 'no colon', "expected ':'", good.replace(b':', b';', 1)
    yield 'a key without quotes', 'expected a key', good.replace(b'"flags"', b'flags', 1)
    yield 'nothing', 'ends where a value', b''
    yield 'a bomb of depth', 'nested deeper', value(b'[' * 5000 + b']' * 5000)
    yield 'no object', 'not an object', b'[]'
    yield 'an unknown member', 'unknown member', b'{"a":1,' + good[1:]
    yield 'a member missing', 'is missing', b'{"flags":"","schema":"hetero/toolchain/1"}'
    yield 'null for a string', 'must be a string', value(b'null')
    yield 'schema version 2', 'schema is', good.replace(b'/1"', b'/2"')
    yield 'schema in capitals', 'schema is', good.replace(b'toolchain', b'Toolchain')


def schema_cases():
    """Documents changed and digested again: types, ranges and words of the closed tables."""
    yield 'policy.json', 'a digest that is none', 'lower-case hex', at('quality.corpusSha256', 'x' * 64)
    yield 'policy.json', 'an unknown that is none', 'lower-case hex', at('quality.corpusSha256.reason', 'lower')
    yield 'policy.json', 'an unknown that is known', 'lower-case hex', at('quality.corpusSha256.known', True)
    yield 'policy.json', 'an unknown with more', 'lower-case hex', at('quality.corpusSha256.more', 1)
    yield 'policy.json', 'a boolean that is none', 'true or false', at('fixture', 0)
    yield 'policy.json', 'an object that is none', 'an object', at('design', [])
    yield 'policy.json', 'an array that is none', 'an array', at('mayNotApply', {})
    yield 'policy.json', 'an integer out of range', 'integer in range', at('perf.alphaPpm', 0)
    yield 'policy.json', 'another enum word', 'listed words', at('perf.correction', 'holm')
    yield 'policy.json', 'the band turned round', 'lengthBandPpm', at('quality.lengthBandPpm', [2, 1])
    yield 'policy.json', 'odd pairs', 'multiple of 4', at('design.minPairs', 10)
    yield 'policy.json', 'no fresh process', 'freshProcess', at('design.freshProcess', False)
    yield 'policy.json', 'mode against margin', 'disagree', at('perf.mode', 'NON_INFERIOR')
    yield 'policy.json', 'a loss allowed in production', 'minGainPpm', lambda doc, *_: at('fixture', False)(
        at('plan.minGainPpm', 999999)(doc))
    yield 'policy.json', 'a tail without a table', 'no table', at('tail.quantilePpm', 960000)
    for text in ('2026-11-29T12:00:00', '2026-11-29T12:00:00Zx', '2026-11-29 12:00:00Z', '2026-1x-29T12:00:00Z', '2026-11-29T24:00:00Z',
                 '2026-02-31T12:00:00Z', '2026-13-01T12:00:00Z', '2026-11-29T12:59:60Z'):
        yield 'design.json', 'time ' + text, 'a time like', at('startedUtc', text)


# ---- 14-23: identity ----------------------------------------------------------------------------------

def identity_cases():
    for key in ('modelPackSha256', 'tokenizerSha256', 'templateSha256', 'binarySha256', 'assetsSha256'):
        def both(doc, key=key):
            doc = copy.deepcopy(doc)
            for c in doc['cells']:
                c['scope'][key] = c['refScope'][key] = 'f' * 64
            return doc
        yield 'design.json', 'another ' + key, 'SUBJECT: cell d512 has another ' + key, both
    yield 'subject/modelpack.json', 'another pack', 'another modelPackSha256', at('sha256', 'e' * 64)
    yield 'build/binary.json', 'another build', 'another binarySha256', at('sha256', 'e' * 64)
    yield 'machine/before.json', 'another class', 'MACHINE: the machine changed', at('reject.arch.v', 'other')
    yield 'machine/after.json', 'another state', 'MACHINE: the machine changed', at('stale.microcode.v', '0x2')
    for key, value in (('machineClassSha256', 'f' * 64), ('instance', 'hmac:other'), ('os', 'linux-5')):
        def one(doc, key=key, value=value):
            doc = copy.deepcopy(doc)
            doc['cells'][1]['scope'][key] = doc['cells'][1]['refScope'][key] = value
            return doc
        yield 'design.json', 'one cell of another ' + key, 'is for another machine', one


# ---- 24-31: design --------------------------------------------------------------------------------------

def design_cases():
    def scope(key, value):
        return at('cells.0.refScope.' + key, value)
    yield 'reference of another model', 'the reference has another model', scope('modelPackSha256', 'f' * 64)
    yield 'reference of another bucket', 'the reference has another bucket', scope('bucket.minTokens', 1)
    yield 'reference of other new tokens', 'the reference has another bucket', scope('bucket.maxNew', 1)
    yield 'reference of another sampler', 'the reference has another sampler', scope('sampler', 'sampled')
    yield 'an interval turned round', 'not an interval', scope('bucket.minTokens', 600)
    yield 'one scope twice', 'are one scope', scope('backend', 'cpu;threads=2')
    yield 'another metric', 'is measured by', at('cells.0.metric', 'e2eNs')
    yield 'no cells', 'cells, need', at('cells', [])
    yield 'cells out of order', 'out of order', at('cells', lambda c: c[::-1])
    yield 'two cells of one scope', 'have one scope', at('cells', lambda c: [c[0], dict(c[0], id='d513')])
    yield 'odd pairs', 'multiple of 4', at('pairs', 10)
    yield 'a block missing', 'order has', at('order', lambda o: o[:-1])
    yield 'a block more', 'order has', at('order', lambda o: o + [o[-1]])
    yield 'another order', 'the seed gives', at('order', lambda o: o[:4] + ['ABBA'] * 4)
    yield 'another seed', 'the seed gives', at('seed', 8)
    yield 'AAAABBBB', 'listed words', at('order.4', 'AAAABBBB')
    yield 'sealed for another policy', 'sealed for policy', at('policySha256', '0' * 64)
    yield 'other prompts sealed', 'not what was sealed', at('promptsSha256', '0' * 64)


def prompt_cases():
    yield 'one prompt twice', 'used by two requests', at('1.promptTokSha256', V.sha(b'0 d512 0'))
    yield 'a prompt missing', 'lines, need', lambda rows: rows[:-1]
    yield 'prompts out of order', 'not the one expected', lambda rows: rows[1:2] + rows[:1] + rows[2:]
    yield 'a prompt of another cell', 'not the one expected', at('0.bucket', 'p512')
    yield 'a prompt of another length', 'not the sealed prompt', at('3.nPrompt', 500)
    yield 'another prompt', 'not the sealed prompt', at('3.promptTokSha256', '5' * 64)


def quality_cases():
    yield 'a continuation of nothing', 'wrote nothing', at('1.0.out', [])
    yield 'items out of order', 'out of order', at('1.1.i', 0)
    yield 'lengths differ', 'differ in length', at('2.1.kldNano', [1])
    yield 'a task without an answer', 'without an answer', at('2.2.right', NONE)
    yield 'an item missing', 'differ in length', at('2', lambda rows: rows[:-1])


def missing_cases():
    """A document of the inputs is not there, with every manifest and digest in order."""
    for name, says in (('policy.json', 'policy.json is missing'), ('design.json', 'design.json is missing'),
                       ('machine/after.json', 'after.json is missing'), ('build/source.json', 'source.json is missing'),
                       ('prompts.jsonl', 'prompts.jsonl is missing'), ('samples.jsonl', 'samples.jsonl is missing'),
                       ('journal.jsonl', 'journal.jsonl or'), ('quality/ref.jsonl', 'a file of quality/ is missing'),
                       ('raw/b05/s1-A/a1/proc.json', 'proc.json is missing'),
                       ('raw/b05/s1-A/a1/d512-0/chunks.jsonl', 'no /chunks.jsonl')):
        yield name, says, {'files': lambda files, n=name: {k: v for k, v in files.items() if k != n}}


def endless_quality():
    """One item more than may be."""
    n = 100001
    item = b'{"i":%%d,"kind":"task","promptTokSha256":"%s"}\n' % (b'a' * 64)
    ref = b'{"i":%d,"out":[],"right":true,"top1":[]}\n'
    cand = b'{"i":%d,"kldNano":[],"out":[],"right":true,"top1":[]}\n'
    return {'quality/%s.jsonl' % name: lambda _, row=row: b''.join(row % i for i in range(n))
            for name, row in (('prompts', item), ('ref', ref), ('cand', cand))}


# ---- complete compute ------------------------------------------------------------------------------------

def complete_cases():
    """Of a bundle whose one cell is a prompt and its four tokens."""
    yield 'measured by its first token', 'is measured by e2eNs', {'design.json': at('cells.0.metric', 'ttftNs')}
    yield 'called a prefill', 'is measured by ttftNs', {'design.json': lambda d: at('cells.0.refScope.phase', 'prefill')(
        at('cells.0.scope.phase', 'prefill')(d))}
    yield 'of a phase that is none', 'phase', {'design.json': at('cells.0.scope.phase', 'whole')}
    yield 'a whole of fewer tokens', 'is 4 tokens, this is 3', {'chunks': when((5, 1), at('3.tok', []))}
    yield 'a whole sealed for more tokens', 'is 5 tokens, this is 4', {'design.json': lambda d: at(
        'cells.0.refScope.bucket.maxNew', 5)(at('cells.0.scope.bucket.maxNew', 5)(d))}


# ---- 28-33: samples and times ------------------------------------------------------------------------------

def sample_cases():
    """One slot's line or stream is wrong: block 5 slot 1, a pair of the main run."""
    here = (5, 1)
    for name, says, edit in (
            ('a status that is void', 'does not follow', at('status', 'voidGuard')),
            ('voided after the timing', 'does not follow', at('voidReason', 'AC_LOST')),
            ('a failure called a void', 'does not follow', lambda r: dict(r, status='voidGuard', voidReason='X')),
            ('a red guard overlooked', 'does not follow', at('guards.acOnline', False)),
            ('steal overlooked', 'does not follow', at('guards.stealPpm', 1001)),
            ('a suspend overlooked', 'does not follow', at('guards.suspendNs', 5 * 10**9)),
            ('a guard left out', 'is missing', at('guards.swapIns', ...)),
            ('voidReason of another type', 'does not follow', at('voidReason', 7)),
            ('ttftNs', 'not what the chunks give', at('ttftNs', 1)),
            ('tpotNs', 'not what the chunks give', at('tpotNs', lambda v: v - 1)),
            ('e2eNs', 'not what the chunks give', at('e2eNs', lambda v: v + 1)),
            ('a time unknown', 'not what the chunks give', at('e2eNs', UNKNOWN)),
            ('negative time', 'integer in range', at('e2eNs', -1)),
            ('other tokens', 'other tokens', at('outTokSha256', '0' * 64)),
            ('token count', 'other tokens', at('nOut', 5)),
            ('another end', 'the sample says', at('endState', 'LENGTH_MET')),
            ('another prompt', 'not the sealed prompt', at('promptTokSha256', '6' * 64)),
            ('another pair', 'not the one the design has', at('pairId', 0)),
            ('another bucket', 'not the one the design has', at('bucket', 'p512')),
            ('another request', 'no /request.bin', at('requestSha256', '7' * 64)),
            ('another response', 'no /response.bin', at('responseSha256', '7' * 64)),
            ('another stream', 'no /chunks.jsonl', at('chunksSha256', '7' * 64)),
            ('another receipt', 'no /receipts.jsonl', at('receiptSha256', '7' * 64)),
            ('a token before its request', 'before the request was sent', at('sendLagNs', 10**12)),
            ('a failure left out', 'ends', lambda r: dict(r, endState='RESET'))):
        yield 'sample: ' + name, says, {'sample': when(here, edit)}

    yield 'sample: a line missing at the end', 'ends before', {'samples.jsonl': journal(lambda r: joined(r[:-1]))}
    yield 'sample: a line cut off', 'ends before', {'samples.jsonl': journal(lambda r: joined(r)[:-1])}
    yield 'sample: a line more', 'lines after the last block', {'samples.jsonl': journal(lambda r: joined(r + r[-1:]))}
    yield 'sample: the arms asked differently', 'different requests', {
        'raw/b05/s1-A/a1/d512-0/request.bin': lambda doc: doc + b' '}
    yield 'sample: beyond the bucket', 'tokens are outside', {
        'prompts': at('10.nPrompt', 513), 'sample': lambda r, w: dict(r, nPrompt=513) if r['pairId'] == 10 else r}
    yield 'sample: below the bucket', 'tokens are outside', {
        'prompts': at('10.nPrompt', 128), 'sample': lambda r, w: dict(r, nPrompt=128) if r['pairId'] == 10 else r}

    def rows(change):
        return {'chunks': when(here, change)}
    yield 'stream without DONE', 'cut off', rows(lambda c: c[:-1])
    yield 'bytes after DONE', 'a line after the end', rows(lambda c: c + [c[-1]])
    yield 'a chunk left out', 'not where it should be', rows(lambda c: c[:1] + c[2:])
    yield 'a chunk cut', 'describes', rows(lambda c: at('3.len', 1)(c))
    yield 'time runs backwards', 'time runs backwards', rows(lambda c: at('2.tNs', 5)(c))
    yield 'early EOF called ok', 'ended early', {
        'chunks': when(here, lambda c: c[:-1] + [{'end': 'EOF_EARLY'}]),
        'sample': when(here, at('endState', 'EOF_EARLY'))}
    yield 'RESET called ok', 'ended early', {
        'chunks': when(here, lambda c: c[:-1] + [{'end': 'RESET'}]), 'sample': when(here, at('endState', 'RESET'))}
    yield 'no token and ok', 'without a single token', {
        'chunks': when(here, lambda c: [dict(x, tok=[]) if 'tok' in x else x for x in c])}
    yield 'one token: no time per token', 'it is unknown', {
        'chunks': when(here, lambda c: [dict(x, tok=[]) if x.get('i') else x for x in c]),
        'sample': when(here, lambda r: dict(r, tpotNs=UNKNOWN, ttftNs=r['ttftNs']))}
    yield 'equal stamps', 'it is unknown', {
        'chunks': when(here, lambda c: [dict(x, tNs=c[0]['tNs']) if 'tNs' in x else x for x in c]),
        'sample': when(here, lambda r: dict(r, tpotNs=UNKNOWN, e2eNs=r['ttftNs']))}


def copied():
    """Pair 11's streams are those of pair 10, byte for byte."""
    kept = {}

    def chunks(c, where):
        kept.setdefault(where, c)
        return kept[(5, 1)] if where == (5, 3) else c

    def sample(r, where):
        kept[('r', where)] = r
        if where != (5, 3):
            return r
        a = kept[('r', (5, 1))]
        return dict(r, ttftNs=a['ttftNs'], tpotNs=a['tpotNs'], e2eNs=a['e2eNs'], intendedNs=a['intendedNs'])
    return {'chunks': chunks, 'sample': sample}


# ---- 35-40: trust -------------------------------------------------------------------------------------------

def trust(change):
    t = V.load(trust_root(TRUST), 'trust')
    change(t)
    return V.canon(t)


def trust_cases():
    yield 'trust: keyId', 'not the digest of its key', trust(lambda t: t['keys'][0].update(keyId='0' * 64))
    yield 'trust: no keys', 'keys, need', trust(lambda t: t['keys'].clear())
    yield 'trust: a key twice', 'listed twice', trust(lambda t: t['keys'].append(dict(t['keys'][0])))
    yield 'trust: expired', 'TRUST_EXPIRED', trust(lambda t: t.update(expiresUtc='2026-11-28T00:00:00Z'))
    yield 'trust: promote by one', 'integer in range', trust(lambda t: t['thresholds'].update(promote=1))
    yield 'trust: an unknown role', 'listed words', trust(lambda t: t['keys'][0].update(roles=['root']))
    yield 'trust: two bench keys needed', 'BAD_SIGNATURE', trust(lambda t: t['thresholds'].update(bench=2))


def envelope_edit(change):
    def go(data, *_):
        env = V.load(data, 'env')
        change(env)
        return V.canon(env)
    return go


def statement_cases():
    for k, name in ((P1, 'promote'), (INDEX, 'index'), (SIM, 'simulate'), (RECEIPT, 'receipt'), (STRANGER, 'nobody')):
        yield 'signed as ' + name, 'BAD_SIGNATURE', {'keys': [k]}
    yield 'one key twice', None, {'keys': [BENCH, BENCH]}
    yield 'a simulation', 'UNKNOWN_TYPE', {'statement': raw(b'urn:hetero:evidence:1', b'urn:hetero:simulation:1')}
    yield 'a simulation by its key', 'BAD_SIGNATURE', {
        'statement': raw(b'urn:hetero:evidence:1', b'urn:hetero:simulation:1'), 'keys': [SIM]}
    yield 'another statement type', 'UNKNOWN_TYPE', {'statement': raw(b'in-toto.io/Statement/v1', b'in-toto.io/Statement/v2')}
    for member in (b'hardwareEvidence', b'productionEligible'):
        yield 'claims ' + member.decode(), 'RECOMPUTED', {
            'statement': raw(b'"%s":false' % member, b'"%s":true' % member)}
    yield 'about another bundle', 'RECOMPUTED', {'statement': raw(b'"bundleId":"', b'"bundleId":"f')}
    yield 'payload not canonical', 'canonical', {'statement': raw(b'{"_type"', b'{ "_type"')}

    def env(change):
        return {'envelope': envelope_edit(change)}
    yield 'no signatures', 'signatures, need', env(lambda e: e['signatures'].clear())
    yield 'too many signatures', 'signatures, need', env(lambda e: e.update(signatures=e['signatures'] * 65))
    yield 'a signature cut', 'signature', env(lambda e: e['signatures'][0].update(sig='AAAA'))
    yield 'a signature changed', 'BAD_SIGNATURE', env(lambda e: e['signatures'][0].update(
        sig='B' + e['signatures'][0]['sig'][1:] if e['signatures'][0]['sig'][0] != 'B' else 'C' + e['signatures'][0]['sig'][1:]))
    yield 'a keyid that lies', 'BAD_SIGNATURE', env(lambda e: e['signatures'][0].update(keyid=P1.id))
    yield 'payload type', 'UNKNOWN_TYPE', env(lambda e: e.update(payloadType='application/json'))
    yield 'payload type with NUL', 'not base64', env(lambda e: e.update(payloadType=e['payloadType'] + '\0'))
    yield 'no payload', 'need exactly', env(lambda e: e.pop('payload'))
    yield 'a member more', 'need exactly', env(lambda e: e.update(more=1))
    yield 'not base64', 'not base64', env(lambda e: e.update(payload='*' + e['payload'][1:]))
    yield 'base64 cut', 'not base64', env(lambda e: e.update(payload='AAAAA'))
    yield 'base64url is base64', None, env(lambda e: e.update(
        payload=e['payload'].replace('+', '-').replace('/', '_').rstrip('=')))
    yield 'payload re-encoded and altered', 'BAD_SIGNATURE', env(lambda e: e.update(payload=base64.b64encode(
        base64.b64decode(e['payload']).replace(b'false', b'true', 1)).decode()))
    yield 'a huge envelope', 'do not fit the limit', {'envelope': lambda data: data + b' ' * (17 << 20)}


def output_cases():
    for path, old, new in (('verdict.json', b'"NOT_APPLICABLE"', b'"PASS"'), ('analysis/stats.json', b'"wins":8', b'"wins":7'),
                           ('analysis/pairs.json', b'"ratioPpm":1', b'"ratioPpm":2'),
                           ('analysis/tails.json', b'"misses":0', b'"misses":1'),
                           ('analysis/quality.json', b'"exactPrompts":1', b'"exactPrompts":2'),
                           ('costmap.json', b'"negative":false', b'"negative":true'),
                           ('verdict.json', b'"QUALIFIED"', b'"FAIL_PERF"'),
                           ('costmap.json', b'"negatives":[]', b'"negatives":[{}]')):
        yield '%s: %s' % (path, new.decode()), 'RECOMPUTED', {path: raw(old, new)}
    yield 'role of an output', 'has role', {'hetero/outputs/1': raw(b'"role":"output"', b'"role":"input"')}
    yield 'outputs of other inputs', 'for other inputs', {
        'hetero/outputs/1': lambda data: V.canon(dict(V.load(data, 'm'), inputsManifestSha256='0' * 64))}

    def dropped(data):
        m = V.load(data, 'm')
        m['files'] = [f for f in m['files'] if f['path'] != 'verdict.json']
        return V.canon(m)
    yield 'an output missing', 'verdict.json is missing', {'outputs': lambda files: {
        k: v for k, v in files.items() if k != 'verdict.json'}}
    yield 'an output not listed', 'is in no manifest', {'hetero/outputs/1': dropped}

    def added(data):
        m = V.load(data, 'm')
        m['files'].insert(0, {'bytes': 58, 'path': 'aaa.json', 'role': 'output', 'sha256': V.sha(b'x' * 58)})
        return V.canon(m)
    yield 'an output more', 'a file that is none', {
        'hetero/outputs/1': added, 'outputs': lambda files: dict(files, **{'aaa.json': b'x' * 58})}


# ---- verdicts: not refused, but not admitted either ---------------------------------------------------------------

def policy(**kw):
    p = copy.deepcopy(POLICY)
    for path, v in kw.items():
        o = p
        *way, last = path.split('__')
        for k in way:
            o = o[k]
        o[last] = v
    return p


def flips(n_greedy, n_text, kld=(1, 2), lost=0, length=4, text=True):
    """quality/ with so many items, some of them different."""
    none = {'known': False, 'reason': 'NONE'}

    def change(_):
        rows = [[], [], []]

        def add(kind, ref, cand):
            i = len(rows[0])
            rows[0].append({'i': i, 'kind': kind, 'promptTokSha256': V.sha(b'%d' % i)})
            rows[1].append({'i': i, 'out': [], 'right': none, 'top1': [], **ref})
            rows[2].append({'i': i, 'kldNano': [], 'out': [], 'right': none, 'top1': [], **cand})
        for i in range(200):
            add('greedy', {'out': [1, 2, 3, 4]}, {'out': [1, 2, 3, 9 if i < n_greedy else 4][:length]})
        if text:
            add('text', {'top1': [5] * 100}, {'top1': [6] * n_text + [5] * (100 - n_text), 'kldNano': list(kld) * (100 // len(kld))})
        for i in range(200 if text else 0):
            add('task', {'right': True}, {'right': i >= lost})
        return rows
    return {'quality': change}


def verdict_cases():
    q = 'quality=FAIL:'
    yield 'QUALIFIED', 'QUALIFIED environment=PASS', {}
    yield 'two cells', 'QUALIFIED', {'cells': ('d512', 'p512')}
    yield 'complete compute', 'QUALIFIED', {'cells': ('c512',)}
    yield 'complete compute beside its phases', 'QUALIFIED', {'cells': ('c512', 'd512', 'p512')}
    yield 'complete compute without a gain', 'FAIL_PERF', {'cells': ('c512',), 'gain': 1.0}
    yield 'complete compute, one failed', 'INCONCLUSIVE_STATS', {'cells': ('c512',), 'fail': (4, 1)}
    yield 'a void block', 'QUALIFIED', {'void': 5}
    yield 'no gain', 'FAIL_PERF', {'gain': 1.0}
    yield 'slower', 'perf=FAIL:TOO_SLOW', {'gain': 0.9}
    yield 'a gain too uncertain', 'perf=FAIL:UNDECIDED', {'gain': 1.03, 'jitter': 0.003}
    yield 'a guard is unknown', 'environment=FAIL:UNKNOWN_gpuProcs', {'policy': policy(guards__required=['gpuProcs'])}
    yield 'a leaf is unreadable', 'environment=FAIL:UNREADABLE_FIELD', {'edit': {
        p: at('stale.bios', {'unreadable': 'EACCES'}) for p in ('machine/before.json', 'machine/after.json')}}
    yield 'too many voids', 'voids=FAIL:VOID_acOnline', {'void': 5, 'policy': policy(retries__maxVoidBlocksPpm=1)}
    yield 'null run too wide', 'nullRun=FAIL:TOO_WIDE', {'jitter': 0.05, 'gain': 1.5}
    yield 'null run not one', 'nullRun=FAIL:NOT_ONE', {'null_gain': 1.02}
    yield 'null run failed', 'nullRun=FAIL:REFERENCE_FAILED', {'fail': (0, 1)}
    yield 'too few null pairs', 'nullRun=FAIL:TOO_FEW', {'policy': policy(design__nullRun__pairs=12)}
    yield 'too few pairs', 'complete=FAIL:PAIRS_MISSING', {'policy': policy(design__minPairs=12)}
    yield 'too few pairs and slow', 'INCONCLUSIVE_STATS', {'gain': 0.9, 'policy': policy(design__minPairs=12)}
    yield 'the reference failed', 'INVALID_EVIDENCE', {'fail': (4, 2)}
    yield 'the candidate failed', 'INCONCLUSIVE_STATS', {'fail': (4, 1)}
    yield 'no quality suite', 'quality=NOT_RUN:NO_SUITE', {'quality': None}
    yield 'no greedy prompts', 'quality=NOT_RUN:NO_SUITE', {'edit': {'quality': lambda rows: [[], [], []]}}
    yield 'the sign test is asked for', 'sign=FAIL:HOLM', {'slow': 9, 'policy': policy(perf__alphaPpm=10000)}
    yield 'no sign test', 'sign=NOT_APPLICABLE:POLICY', {'policy': policy(perf__signTest=False)}
    yield 'no sign test, allowed', 'QUALIFIED', {'policy': policy(perf__signTest=False, mayNotApply=['sign', 'tail'])}
    yield 'too few for the tail', 'tail=NOT_RUN:TOO_FEW', {'policy': policy(mayNotApply=[])}
    yield 'a tail', 'tail=PASS', {'requests': 12}
    yield 'a worse tail, a better median', 'FAIL_TAIL', {'requests': 12, 'slow': 9}
    yield 'a worse tail, absolute', 'tail=FAIL:MISSES', {'requests': 12, 'policy': policy(tail__sloNs=5)}

    def middle(rows):
        return [dict(r, nPrompt=320) for r in rows]
    yield 'edges of the bucket left out', 'coverage=FAIL', {'edit': {
        'prompts': middle, 'sample': lambda r, w: dict(r, nPrompt=320)}}
    good = {'edit': flips(1, 1)}
    yield 'near, not exact', 'quality=PASS', good
    yield 'too many flips', q + 'EXACT_TOKENS', {'edit': flips(100, 1)}
    yield 'nothing but continuations', q + 'NOT_MEASURED', {'edit': flips(1, 0, text=False)}
    yield 'top-1', q + 'TOP1', {'edit': flips(1, 5)}
    yield 'divergence', q + 'KLD_MEAN', {'edit': flips(1, 1, (2 * 10**6,))}
    yield 'divergence of the worst', q + 'KLD_P999', {'edit': flips(1, 1, (0,) * 99 + (60 * 10**6,))}
    yield 'the task lost', q + 'TASK', {'edit': flips(1, 1, lost=20)}
    yield 'the task lost by little, too uncertain', q + 'TASK', {'edit': flips(1, 1, lost=1)}
    yield 'truncated outputs', q + 'LENGTH_BAND', {'edit': flips(0, 0, length=2)}
    yield 'another corpus', q + 'OTHER_CORPUS', {'policy': policy(quality__corpusSha256='a' * 64)}


# ---- all of them -----------------------------------------------------------------------------------------------

# Checks that nothing written in a bundle can reach, each with the reason; (file, function, the condition).
UNREACHED = {
    ('bundle_read.c', 'read_design', '(!ht_utc_parse(ht_json_get(j, "startedUtc")->s, &d->started_unix))'):
        'the schema has read this time already',
    ('amend.c', 'ht_amendment_open', '(!ht_utc_parse(evid__str(p, "measuredUtc"), &out->measured_unix) || '
     '!ht_utc_parse(evid__str(p, "expiresUtc"), &out->expires_unix))'): 'the schema has read these times already',
    ('amend.c', 'old_machine', '(!f)'): 'the bundle has been read, and with it this file',
    ('trust.c', 'ht_trust_parse', '(!ht_utc_parse(ht_json_get(doc, "expiresUtc")->s, &out->expires_unix))'):
        'the schema has read this time already',
    ('bundle_samples.c', 'read_slot', '(r->v->n_samples == r->cap)'):
        'a slot has at most as many lines as there is room for',
    ('dsse.c', 'ht_dsse_parse', '(n > MAX_ENVELOPE)'): 'the file is not read beyond that size',
    ('manifest.c', 'ht_read_under', '(!ht_manifest_path_ok(path))'): 'read_entry() has looked',
    ('manifest.c', 'ht_read_under', '(got != size)'): 'a race: tests/unit/evid/faults.c',
    ('manifest.c', 'visit', '(fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)'): 'a race: tests/unit/evid/faults.c',
    ('manifest.c', 'visit', '(fd < 0)'): 'a race: tests/unit/evid/faults.c',
    ('manifest.c', 'ht_manifest_closed', '(fd < 0)'): 'a race: tests/unit/evid/faults.c',
    ('quality.c', 'ht_quality_gate', '(q->prompts == 0)'): 'gate_quality() says NOT_RUN before; tests/unit/evid/quality.c',
    ('verdict.c', 'ht_gates_pass', '(n != HT_GATES)'): 'the list has a fixed length here; tests/unit/evid/evidence.c',
    ('json.c', 'hex4', '(p->n - p->i < 4)'): 'the closing quote is no hex digit',
    ('json.c', 'hex4', '(d < 0)'): 'makes the value negative, which is looked at again',
    ('json.c', 'seal_object', '(v->n > UINT32_MAX)'): 'a text of 8 GiB',
}


def cases():
    twin = Maker(**ONE)
    twin.seal(BENCH)
    both = Maker()
    both.seal(BENCH)

    def sealed(edit, base=twin, **knobs):
        m = Maker(**{**({} if base is both else ONE), **knobs, 'edit': edit})
        m.seal(BENCH, base)
        return m.files

    def after(change, base=twin):
        files = dict(base.files)
        change(files)
        return files
    yield Case('unmutated, one cell', 'ok', 'QUALIFIED', twin.files)
    yield Case('unmutated, two cells', 'ok', 'QUALIFIED', both.files)
    for name, says, go in disk_cases():
        yield Case('bytes: ' + name, 'refused', says, twin.files, disk=go)
    yield Case('bytes: two files exchanged', 'refused', 'does not match', after(swap(
        'raw/b00/s1-M/a1/d512-0/request.bin', 'raw/b00/s3-N/a1/d512-0/request.bin')))
    for name, says, edit in manifest_cases():
        yield Case('manifest: ' + name, 'refused', says, sealed({'hetero/inputs/1': edit}))
    for name, says, edit in journal_cases():
        yield Case('journal: ' + name, 'refused', says, sealed({'journal.jsonl': edit}))
    for name, says, edit in event_cases():
        yield Case('journal: ' + name, 'refused' if says else 'ok', says or 'QUALIFIED', sealed({'event': edit}))
    for name, says, data in json_cases():
        yield Case('JSON: ' + name, 'refused', says, sealed({'build/toolchain.json': lambda _, d=data: d}))
    for path, name, says, edit in schema_cases():
        yield Case('%s: %s' % (path, name), 'refused', says, sealed({path: edit}))
    for path, name, says, edit in identity_cases():
        yield Case('identity: ' + name, 'refused', says, sealed({path: edit}, both))
    for name, says, edit in design_cases():
        yield Case('design: ' + name, 'refused', says, sealed({'design.json': edit}, both))
    for name, says, edit in prompt_cases():
        yield Case('prompts: ' + name, 'refused', says, sealed({'prompts': edit}))
    for name, says, edit in quality_cases():
        yield Case('quality: ' + name, 'refused', says, sealed({'quality': edit}))
    for name, says, edit in sample_cases():
        yield Case(name, 'refused', says, sealed(edit))
    whole = Maker(cells=('c512',))
    whole.seal(BENCH)
    for name, says, edit in complete_cases():
        yield Case('complete: ' + name, 'refused', says, sealed(edit, whole, cells=('c512',)))
    for name, says, edit in missing_cases():
        yield Case('missing: ' + name, 'refused', says, sealed(edit))
    yield Case('quality: too many items', 'refused', 'more than 100000', sealed(endless_quality()))
    yield Case('a pair copied', 'refused', 'used by two samples', sealed(copied()))
    for name, says, data in trust_cases():
        yield Case(name, 'refused', says, twin.files, trust=data)
    yield Case('trust: expired at this very second', 'refused', 'TRUST_EXPIRED', twin.files,
               now=V.unix('2090-01-01T00:00:00Z'))
    for name, says, edit in statement_cases():
        yield Case('statement: ' + name, 'refused' if says else 'ok', says or 'QUALIFIED', sealed(edit))
    for name, says, edit in output_cases():
        yield Case('outputs: ' + name, 'refused', says, sealed(edit))
    for name, says, knobs in verdict_cases():
        m = Maker(**{**ONE, **knobs})
        m.seal(BENCH)
        yield Case('verdict: ' + name, 'ok', says, m.files)
    yield from comparison.cases(BENCH, Case)
    yield from schedule.cases(BENCH, Case)
    yield from amendment.cases(NOW, BENCH, INDEX, STRANGER, Case)
