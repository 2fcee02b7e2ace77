"""Makes synthetic comparisons (docs/bundle.md, "Comparisons"), whole and wrong in one way each, by the independent
verifier's own idea of the format."""
import copy

from bundle import MACHINE, NONE, POLICY, V, envelope

HOLES = {'known': False, 'reason': 'FAILED'}


class Comparing:
    """Every input of a comparison. edit: as of bundle.Maker; 'sample' and 'chunks' get (pair, slot) too."""

    def __init__(self, contexts=(8,), reps=6, api='llama', fails=(), edit=None, policy=None):
        self.files, self.edit, self.api, self.fails = {}, edit or {}, api, fails
        self.contexts, self.reps, self.now = list(contexts), reps, 10**9
        self.put('policy.json', policy or POLICY)
        for name in ('before', 'after'):
            self.put('machine/%s.json' % name, MACHINE)
        self.put('subject/modelpack.json', {'files': [], 'schema': 'hetero/modelpack/1', 'sha256': '1' * 64})
        self.put('subject/tokenizer.json', {'schema': 'hetero/tokenizer/1', 'sha256': '2' * 64,
                                            'templateSha256': '3' * 64})
        self.put('subject/assets.json', {'files': [], 'schema': 'hetero/assets/1'})
        self.put('build/source.json', {'commit': '0', 'dirty': False, 'schema': 'hetero/source/1', 'tree': '0'})
        self.put('build/binary.json', {'bytes': 1, 'schema': 'hetero/binary/1', 'sha256': '4' * 64})
        self.put('build/toolchain.json', {'compiler': 'cc', 'flags': '', 'schema': 'hetero/toolchain/1'})
        self.put('server/foreign.json', {'schema': 'hetero/foreignreceipt/1'})
        self.places = [(run, i, r) for run in ('null', 'main') for i in range(len(self.contexts)) for r in range(reps)]
        self.seal_design()
        self.run()

    def change(self, what, doc, *more):
        return self.edit[what](doc, *more) if what in self.edit else doc

    def put(self, path, doc):
        doc = self.change(path, doc)
        self.files[path] = doc if isinstance(doc, bytes) else V.canon(doc)
        return V.sha(self.files[path])

    def seal_design(self):
        rows = self.change('prompts', [
            {'nPrompt': self.contexts[i], 'pair': p, 'promptTokSha256': V.sha(b'%d' % p), 'run': run}
            for p, (run, i, _) in enumerate(self.places)])
        prompts = self.put('prompts.jsonl', b''.join(V.canon(x) + b'\n' for x in rows))
        self.prompts = [V.sha(b'%d' % p) for p in range(len(self.places))]
        self.put('design.json', {
            'api': self.api, 'arm': '', 'assetsSha256': V.sha(self.files['subject/assets.json']),
            'binarySha256': '4' * 64, 'contexts': self.contexts, 'costMapSha256': NONE, 'cpus': 8,
            'foreignSha256': V.sha(self.files['server/foreign.json']),
            'machineClassSha256': V.sha(V.canon(MACHINE['reject'])), 'maxNew': 4, 'modelPackSha256': '1' * 64,
            'nullRepetitions': self.reps, 'order': 'ROTATED', 'policySha256': V.sha(self.files['policy.json']),
            'prompts': 'RANDOM', 'promptsSha256': prompts, 'repetitions': self.reps,
            'schema': 'hetero/comparedesign/1', 'spacingNs': 0, 'startedUtc': '2026-11-29T12:00:00Z',
            'synthetic': True, 'tokenizerSha256': '2' * 64})

    def event(self, name, **more):
        for name, more in self.change('event', [(name, more)]):
            self.journal.append(V.canon({'event': name, 'monoNs': self.now, 'prev': self.prev, 'seq': self.seq, **more}))
            self.prev, self.seq = V.sha(self.journal[-1]), self.seq + 1

    def run(self):
        self.journal, self.rows, self.prev, self.seq = [], [], '0' * 64, 0
        self.event('design', designSha256=V.sha(self.files['design.json']))
        for p, (run, i, r) in enumerate(self.places):
            for slot in (1, 2):
                self.slot(p, slot, ('MN' if run == 'null' else 'FH')[(i + r + slot) % 2], self.contexts[i])
        self.event('close', slots=2 * len(self.places))
        self.put('journal.jsonl', b''.join(x + b'\n' for x in self.journal))
        self.put('samples.jsonl', b''.join(x + b'\n' for x in self.rows))

    def slot(self, pair, slot, arm, n):
        where, at = {'arm': arm, 'pair': pair, 'slot': slot}, 'raw/p%03d/s%d-%s/' % (pair, slot, arm)
        self.event('start', **where)
        fails, first, gap = (pair, arm) in self.fails, 10**8 + pair * 10, 10**6 + pair
        stamps = [] if fails else [self.now + first + k * gap for k in range(4)]
        chunks = [{'bears': True, 'i': k, 'len': 2, 'off': 2 * k, 'tNs': t, 'tok': [7 + k]} for k, t in enumerate(stamps)]
        chunks.append({'end': 'EOF_EARLY' if fails else 'LENGTH_MET'})
        chunks = self.change('chunks', chunks, (pair, slot))
        guards = {g: NONE for g in V.GUARDS}
        guards.update(acOnline=True, stealPpm=0)
        row = self.change('sample', {
            'arm': arm, 'chunksSha256': self.put(at + 'chunks.jsonl', b''.join(V.canon(x) + b'\n' for x in chunks)),
            'e2eNs': HOLES if fails else first + 3 * gap, 'endState': chunks[-1].get('end', 'RESET'), 'guards': guards,
            'intendedNs': self.now, 'nOut': 0 if fails else 4, 'pair': pair, 'peakBytes': 1,
            'promptTokSha256': self.prompts[pair], 'receiptSha256': self.put(at + 'receipts.jsonl', b'{}'),
            'requestSha256': self.put(at + 'request.bin', b'ask %d' % pair),
            'responseSha256': self.put(at + 'response.bin', b'' if fails else b'abcdefgh'), 'saidOut': 0 if fails else 4,
            'saidPrompt': n, 'schema': 'hetero/comparesample/1', 'sendLagNs': 1200, 'slot': slot,
            'status': 'sutError' if fails else 'ok', 'tpotNs': HOLES if fails else gap,
            'ttftNs': HOLES if fails else first, 'why': 'reset' if fails else ''}, (pair, slot))
        self.rows.append(V.canon(row))
        self.event('sample', sha256=V.sha(self.rows[-1] + b'\n'), **where)
        self.now += 10**9

    def seal(self, key, twin=None):
        """Manifests, output and statement; twin: whose output is taken where the inputs are refused."""
        def manifest(paths, schema, role, **more):
            return self.change(schema, V.canon({'files': [
                {'bytes': len(self.files[p]), 'path': p, 'role': role, 'sha256': V.sha(self.files[p])}
                for p in sorted(paths) if p in self.files], 'schema': schema, **more}))
        self.files = self.change('files', self.files)
        inputs = manifest(self.files, 'hetero/inputs/1', 'input')
        tree = dict(self.files, **{'inputs.manifest.json': inputs})
        try:
            b = V.Comparison(tree, V.read_manifest(tree, 'inputs.manifest.json', 'hetero/inputs/1', {}))
            doc, body = b.outputs(), b.statement
        except (V.Refused, KeyError):
            if not twin:
                raise
            doc, body = twin.files['analysis/compare.json'], lambda outs: b'{}'
        self.put('analysis/compare.json', doc)
        outs = manifest(self.change('outputs', ['analysis/compare.json'], self.files), 'hetero/outputs/1', 'output', inputsManifestSha256=V.sha(inputs))
        self.files['inputs.manifest.json'], self.files['outputs.manifest.json'] = inputs, outs
        self.files['statement.dsse.json'] = self.change('envelope', envelope(
            self.change('statement', body(V.sha(outs))), [key]))
        return V.sha(inputs)


# ---- what is wrong ---------------------------------------------------------------------------------------------

def lines(change):
    """An edit of a .jsonl file's lines."""
    def go(data, *_):
        rows = data.split(b'\n')[:-1]
        change(rows)
        return b''.join(r + b'\n' for r in rows)
    return go


def member(key, value, place=None):
    """One member of a document or sample (of that pair and slot only); Ellipsis: it goes."""
    def go(doc, *where):
        if place and where[0] != place:
            return doc
        doc = copy.deepcopy(doc)
        if value is ...:
            del doc[key]
        else:
            doc[key] = value(doc[key]) if callable(value) else value
        return doc
    return go


def cut(name, change):
    """Events of that name, from the first on: change gets the list and its number."""
    seen = []

    def go(events):
        if events[0][0] != name:
            return events
        seen.append(1)
        return change(events, len(seen))
    return go


def design_cases():
    yield 'contexts out of order', 'out of order', {'design.json': member('contexts', [8, 4])}
    yield 'no contexts', '0 contexts', {'design.json': member('contexts', [])}
    yield 'nine contexts', '9 contexts', {'design.json': member('contexts', list(range(1, 10)))}
    yield 'five repetitions', 'repetitions', {'design.json': member('repetitions', 5)}
    yield 'another policy', 'policy.json is not what was sealed', {'design.json': member('policySha256', 'a' * 64)}
    yield 'other prompts', 'prompts.jsonl is not what was sealed', {'design.json': member('promptsSha256', 'a' * 64)}
    yield 'other assets', 'assets.json is not what was sealed', {'design.json': member('assetsSha256', 'a' * 64)}
    yield 'another server', 'foreign.json is not what was sealed', {'design.json': member('foreignSha256', 'a' * 64)}
    yield 'another machine', 'sealed for another machine', {'design.json': member('machineClassSha256', 'a' * 64)}
    for key in ('modelPackSha256', 'tokenizerSha256', 'binarySha256'):
        yield 'another ' + key, 'another model, tokenizer or program', {'design.json': member(key, 'a' * 64)}
    yield 'edited after the seal', 'not what the journal sealed', {
        'event': lambda ev: [(n, dict(m, designSha256='a' * 64) if n == 'design' else m) for n, m in ev]}


def file_cases():
    def without(path):
        return {'files': lambda files: {p: d for p, d in files.items() if p != path}}
    for path in ('policy.json', 'server/foreign.json', 'samples.jsonl', 'journal.jsonl', 'prompts.jsonl'):
        yield path + ' is missing', 'missing', without(path)
    for name in ('request.bin', 'response.bin', 'chunks.jsonl', 'receipts.jsonl'):
        yield name + ' is missing', 'is missing or has another digest', without('raw/p006/s1-H/' + name)


def prompt_cases():
    def row(key, value):
        def go(rows):
            rows = copy.deepcopy(rows)
            rows[3][key] = value
            return rows
        return {'prompts': go}
    yield 'of another length', 'line 4 is not the one', row('nPrompt', 9)
    yield 'of another pair', 'line 4 is not the one', row('pair', 4)
    yield 'of another run', 'line 4 is not the one', row('run', 'main')
    yield 'used twice', 'used by two pairs', row('promptTokSha256', V.sha(b'2'))
    yield 'one too few', 'lines, need', {'prompts': lambda rows: rows[:-1]}
    yield 'cut off', 'lines, need', {'prompts.jsonl': lambda data: data[:-1]}


def sample_cases():
    at = (6, 1)  # H, the first of the comparison

    def one(key, value):
        return {'sample': member(key, value, at)}
    yield 'of another pair', 'is not that of pair 6', one('pair', 7)
    yield 'of another slot', 'is not that of pair 6', one('slot', 2)
    yield 'of the other arm', 'is not that of pair 6', one('arm', 'F')
    yield 'of another prompt', 'not the sealed prompt', one('promptTokSha256', 'a' * 64)
    yield 'a status that is none of a comparison', 'none of a comparison', one('status', 'voidGuard')
    yield 'a status that is none', 'status', one('status', 'fine')
    yield 'another end', 'the sample says', one('endState', 'DONE')
    yield 'other tokens than came', 'not what came', one('nOut', 5)
    yield 'failed and with times', 'is not what the chunks give', one('status', 'badOutput')
    for key in ('ttftNs', 'tpotNs', 'e2eNs'):
        yield 'another ' + key, 'is not what the chunks give', one(key, lambda v: v + 1)
    good = 'is no good answer and is called ok'
    yield 'other tokens said than came', good, one('saidOut', 5)
    yield 'another prompt counted', good, one('saidPrompt', 7)
    yield 'the first token before the request', good, one('sendLagNs', 10**9)
    yield 'a line edited after it was closed', 'is not the one closed', {
        'samples.jsonl': lambda data: data.replace(b'"why":""', b'"why":"x"', 1)}
    yield 'lines after the last', 'after the last pair', {'samples.jsonl': lambda data: data + b'{}\n'}
    yield 'a line short', 'ends before', {'samples.jsonl': lines(lambda rows: rows.pop())}


def stream_cases():
    def stream(change):
        def go(chunks, where):
            if where != (6, 1):
                return chunks
            chunks = copy.deepcopy(chunks)
            change(chunks)
            return chunks
        return {'chunks': go}
    good = 'is no good answer and is called ok'
    yield 'closed early and called ok', good, stream(lambda c: c[-1].update(end='EOF_EARLY'))
    yield 'a token short and called ok', 'not what came', stream(lambda c: c[2].update(tok=[]))
    yield 'a chunk out of place', 'not where it should be', stream(lambda c: c[2].update(i=7))
    yield 'a hole', 'not where it should be', stream(lambda c: c[2].update(off=7))
    yield 'time backwards', 'time runs backwards', stream(lambda c: c[2].update(tNs=1))
    yield 'tokens where none are borne', 'bears none', stream(lambda c: c[2].update(bears=False))
    yield 'longer than the response', 'the response has', stream(lambda c: c[3].update(len=3))
    yield 'a line after the end', 'after the end', stream(lambda c: c.insert(0, {'end': 'DONE'}))
    yield 'no end', 'cut off', stream(lambda c: c.pop())
    yield 'an unknown end', 'end', stream(lambda c: c[-1].update(end='OVER'))
    yield 'another member', 'tokens', stream(lambda c: c[2].update(tokens=1))


def event_cases():
    yield 'a start missing', 'need event start', {'event': cut('start', lambda ev, k: [] if k == 3 else ev)}
    yield 'a sample missing', 'need event sample', {'event': cut('sample', lambda ev, k: [] if k == 3 else ev)}
    yield 'an event of no kind', 'need event start', {
        'event': cut('start', lambda ev, k: [('begin', ev[0][1])] if k == 3 else ev)}
    for key, value in (('pair', 9), ('slot', 2), ('arm', 'H')):
        yield 'a start of another ' + key, 'the design has', {'event': cut(
            'start', lambda ev, k, x={key: value}: [('start', dict(ev[0][1], **x))] if k == 3 else ev)}
    yield 'no digest of the sample', 'is not the one closed', {'event': cut('sample', lambda ev, k: [
        ('sample', {n: v for n, v in ev[0][1].items() if n != 'sha256'})] if k == 3 else ev)}
    yield 'one more event', 'events that the design does not have', {
        'event': cut('close', lambda ev, k: [('start', {'arm': 'H', 'pair': 9, 'slot': 1})] + ev)}
    yield 'slots miscounted', 'close counts', {'event': cut('close', lambda ev, k: [('close', {'slots': 1})])}
    yield 'a member too many in close', 'close', {
        'event': cut('close', lambda ev, k: [('close', dict(ev[0][1], more=1))])}
    yield 'a member too many in design', 'design', {
        'event': cut('design', lambda ev, k: [('design', dict(ev[0][1], more=1))])}


def output_cases():
    def outs(change):
        def go(data):
            m = V.load(data, 'm')
            change(m['files'])
            return V.canon(m)
        return {'hetero/outputs/1': go}
    yield 'edited', 'is not what the inputs and the policy give', {
        'analysis/compare.json': lambda data: data.replace(b'"failedHetero":0', b'"failedHetero":1')}
    yield 'of another role', 'has role', outs(lambda f: f[0].update(role='other'))
    def another(paths, files):
        files['z'] = b'{}'
        return paths + ['z']
    yield 'more than one', 'the output of a comparison', {'outputs': another}
    yield 'a statement of another type', 'UNKNOWN_TYPE', {
        'statement': lambda body: body.replace(b'comparison:1', b'evidence:1')}
    yield 'a statement that claims more', 'not about this bundle', {
        'statement': lambda body: body.replace(b'"productionEligible":false', b'"productionEligible":true')}


def cases(key, case):
    """case(name, want, says, files): as of mutations.Case."""
    twin = Comparing()
    twin.seal(key)
    yield case('comparison', 'ok', 'COMPARED', twin.files)
    for knobs, says in (({'contexts': (4, 8)}, 'COMPARED'), ({'api': 'ollama'}, 'COMPARED'),
                        ({'fails': [(6, 'F')]}, 'COMPARED'), ({'fails': [(7, 'H')]}, 'COMPARED'),
                        ({'fails': [(0, 'N')]}, 'INCONCLUSIVE_ENV')):
        m = Comparing(**knobs)
        m.seal(key)
        yield case('comparison %s' % knobs, 'ok', says, m.files)
    for what, group in (('design', design_cases), ('file', file_cases), ('prompts', prompt_cases),
                        ('sample', sample_cases), ('stream', stream_cases), ('journal', event_cases),
                        ('output', output_cases)):
        for name, says, edit in group():
            m = Comparing(edit=edit)
            m.seal(key, twin)
            yield case('comparison: %s: %s' % (what, name), 'refused', says, m.files)
