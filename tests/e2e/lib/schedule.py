"""Makes synthetic scheduler evidence (docs/bundle.md, "Schedulers"), whole and wrong in one way each, by the independent
verifier's own idea of the format."""
from bundle import MACHINE, NONE, POLICY, V, envelope, write_tree

N, MS, TTFT, TPOT = 24, 10**6, 500, 20
STRICT = dict(POLICY, id='strict-sched', fixture=False, mayNotApply=[])


class Scheduling:
    """Every input. edit: {path or 'arrivals', 'calibration', 'run', 'sample', 'event': function}; it gets the document
    (run and sample: also where = (pair, arm) or (pair, arm, i); event: [(name, members)]) before it is digested."""

    def __init__(self, edit=None, policy=None):
        self.files, self.edit, self.now = {}, edit or {}, 10**9
        self.put('policy.json', policy or STRICT)
        for name in ('before', 'after'):
            self.put('machine/%s.json' % name, MACHINE)
        self.put('subject/modelpack.json', {'files': [], 'schema': 'hetero/modelpack/1', 'sha256': '1' * 64})
        self.put('subject/tokenizer.json', {'schema': 'hetero/tokenizer/1', 'sha256': '2' * 64,
                                            'templateSha256': '3' * 64})
        self.put('subject/assets.json', {'files': [], 'schema': 'hetero/assets/1'})
        self.put('build/source.json', {'commit': '0', 'dirty': False, 'schema': 'hetero/source/1', 'tree': '0'})
        self.put('build/binary.json', {'bytes': 1, 'schema': 'hetero/binary/1', 'sha256': '4' * 64})
        self.put('build/toolchain.json', {'compiler': 'cc', 'flags': '', 'schema': 'hetero/toolchain/1'})
        self.seal_design()
        self.run()

    def change(self, what, doc, *more):
        return self.edit[what](doc, *more) if what in self.edit else doc

    def put(self, path, doc):
        doc = self.change(path, doc)
        self.files[path] = doc if isinstance(doc, bytes) else V.canon(doc)
        return V.sha(self.files[path])

    def lines(self, path, what, rows):
        return self.put(path, b''.join(V.canon(x) + b'\n' for x in self.change(what, rows)))

    def seal_design(self):
        # All at once, done after 2.4 s: ten a second.
        rows = [{'endNs': 2400 * MS - i, 'i': i, 'nOut': 4, 'nPrompt': 8, 'startNs': 0} for i in range(N)]
        calibration = self.lines('calibration.jsonl', 'calibration', rows)
        saturation = N * 10**15 // (2400 * MS)
        rates = [300000, 700000, 1200000]
        rows = []
        for s in range(V.SCENARIOS):
            gap = 10**15 // saturation * 10**6 // rates[(s - 1) % 3] if s else 1000 * MS
            burst = s and V.KINDS[(s - 1) // 3] == 'burst'
            for i in range(N):
                n = 40 if i % 3 == 0 else 8
                # Bursts: all but the last come at once.
                at = (0 if i < N - 1 else gap * (N - 1)) if burst else gap * i
                rows.append({'atNs': at, 'class': 'long' if n == 40 else 'short', 'i': i, 'maxNew': 4, 'nPrompt': n,
                             'promptTokSha256': V.sha(b'%d %d' % (s, i)), 'rep': 0, 'scenario': s})
        self.arrivals = self.change('arrivals', rows)
        arrivals = self.put('arrivals.jsonl', b''.join(V.canon(x) + b'\n' for x in self.arrivals))
        scope = {'arrivals': V.KINDS, 'assetsSha256': V.sha(self.files['subject/assets.json']), 'backend': 'cpu,cpu',
                 'binarySha256': '4' * 64, 'ctxMax': 128, 'instance': 'hmac:' + '5' * 64, 'kvPositions': 0,
                 'lengthMix': {'maxNew': 4, 'maxPrompt': 40},
                 'machineClassSha256': V.sha(V.canon(MACHINE['reject'])), 'modelPackSha256': '1' * 64, 'os': 'linux-6',
                 'policy': 'overlap', 'precision': {'act': 'f32', 'kv': 'f16', 'weights': 'f16'},
                 'schema': 'hetero/schedscope/1', 'sloMs': {'tpot': TPOT, 'ttft': TTFT}, 'slots': 4, 'threads': 2,
                 'tokenizerSha256': '2' * 64, 'ubatch': 512}
        self.put('design.json', {
            'arrivalsSha256': arrivals, 'calibrationSha256': calibration, 'cpus': 8, 'deltaPpm': 30000,
            'maxWaitNs': 10 * TTFT * MS, 'order': 'ABBA', 'policySha256': V.sha(self.files['policy.json']),
            'ratesPpm': rates, 'repetitions': 1, 'requests': N, 'saturationMicroHz': saturation,
            'schema': 'hetero/scheddesign/1', 'scope': scope, 'seed': 1, 'startedUtc': '2026-11-29T12:00:00Z',
            'synthetic': True})

    def event(self, name, **more):
        for name, more in self.change('event', [(name, more)]):
            self.journal.append(V.canon({'event': name, 'monoNs': self.now, 'prev': self.prev, 'seq': self.seq, **more}))
            self.prev, self.seq, self.now = V.sha(self.journal[-1]), self.seq + 1, self.now + 1

    def run(self):
        self.journal, self.samples, self.runs, self.prev, self.seq = [], [], [], '0' * 64, 0
        self.event('design', designSha256=V.sha(self.files['design.json']))
        for p in range(V.SCENARIOS):
            for arm in ('AB', 'BA')[p & 1]:
                self.one(p, arm)
        self.event('close', runs=2 * V.SCENARIOS)
        self.put('journal.jsonl', b''.join(x + b'\n' for x in self.journal))
        self.put('samples.jsonl', b''.join(self.samples))
        self.put('runs.jsonl', b''.join(self.runs))

    def one(self, p, arm):
        self.event('start', arm=arm, pair=p)
        guards = {g: NONE for g in V.GUARDS}
        guards.update(acOnline=True, stealPpm=0)
        run = self.change('run', {
            'arm': arm, 'boundMisses': 0, 'bounds': 20 if arm == 'B' else 0, 'exitStatus': 0, 'guards': guards,
            'idleQueued': 0, 'overlapped': 20 if arm == 'B' else 0, 'pair': p, 'schema': 'hetero/schedrun/1',
            'serialised': 0 if arm == 'B' else 20}, (p, arm))
        raw, rows = b'', []
        for i in range(N):
            at, body = self.arrivals[p * N + i]['atNs'], b'%d %s %d' % (p, arm.encode(), i)
            # The first token after 100 ms, then one each 10 ms; B takes four fifths of it, alone as long as A.
            f = 8 if arm == 'B' and p else 10
            t = [at + (100 + 10 * k) * MS * f // 10 + i for k in range(4)]
            row = self.change('sample', {
                'arm': arm, 'endNs': t[-1] + MS, 'i': i, 'intendedNs': at, 'pair': p, 'rawLen': len(body),
                'responseSha256': V.sha(body), 'schema': 'hetero/schedsample/1', 'sendLagNs': 1000, 'status': 'ok',
                'tNs': t, 'tok': [7 + k + i for k in range(4)]}, (p, arm, i))
            rows.append(V.canon(row) + b'\n')
            raw += body
        self.put('raw/p%03d-%s.bin' % (p, arm), raw)
        self.samples += rows
        self.runs.append(V.canon(run) + b'\n')
        self.event('run', arm=arm, pair=p, runSha256=V.sha(self.runs[-1]), samplesSha256=V.sha(b''.join(rows)))

    def seal(self, key, twin=None):
        """Outputs and statement, by the independent verifier where it takes the inputs, else the twin's output."""
        def manifest(paths, schema, role, **more):
            return self.change(schema, V.canon({'files': [
                {'bytes': len(self.files[p]), 'path': p, 'role': role, 'sha256': V.sha(self.files[p])}
                for p in sorted(paths) if p in self.files], 'schema': schema, **more}))
        self.files = self.change('files', self.files)
        inputs = manifest(self.files, 'hetero/inputs/1', 'input')
        tree = dict(self.files, **{'inputs.manifest.json': inputs})
        try:
            b = V.Schedule(tree, V.read_manifest(tree, 'inputs.manifest.json', 'hetero/inputs/1', {}))
            doc, body = b.outputs(), b.statement
        except V.Refused:
            if not twin:
                raise
            doc, body = twin.files['analysis/sched.json'], lambda outs: b'{}'
        self.put('analysis/sched.json', doc)
        paths = self.change('outputs', ['analysis/sched.json'], self.files)
        outs = manifest(paths, 'hetero/outputs/1', 'output', inputsManifestSha256=V.sha(inputs))
        self.files['inputs.manifest.json'], self.files['outputs.manifest.json'] = inputs, outs
        self.files['statement.dsse.json'] = envelope(self.change('statement', body(V.sha(outs))), [key])
        return self

    def write(self, top):
        write_tree(top, self.files)
        return top


# ---- verdicts: each gate fails by itself ----

def on(where, /, **more):
    """An edit of samples or runs: where(pair, arm[, i]) says of which; values may be functions of the document."""
    def edit(doc, at):
        if where(*at):
            doc = {**doc, **{k: v(doc) if callable(v) else v for k, v in more.items()}}
        return doc
    return edit


def later(ms, first=False):
    """All tokens, or all but the first, later by so much."""
    def t(doc):
        return [x + (0 if first and k == 0 else ms * MS) for k, x in enumerate(doc['tNs'])]
    return {'tNs': t, 'endNs': lambda doc: doc['endNs'] + ms * MS}


def held(doc):
    """The first token when it is due, the others together at the end: the mean is in time, the tokens are not."""
    at = doc['intendedNs'] + TTFT * MS
    return [at, at + 58 * MS, at + 59 * MS, at + 60 * MS]


def only(pair):
    return lambda p, arm, *_: p == pair and arm == 'B'


def each(p, arm, *_):
    return arm == 'B'


def verdict_cases():
    """(name, what the verifier says, edit[, policy])"""
    def one(p, arm, i=None):
        return lambda *where: where == (p, arm) + (() if i is None else (i,))
    yield 'sound', ('QUALIFIED', 'gain=PASS', 'calibration=PASS'), {}
    yield 'other tokens', ('FAIL_QUALITY', 'quality=FAIL:OTHER_TOKENS'), {'sample': on(only(4), tok=[1, 2, 3, 4])}
    yield 'nothing to compare', ('FAIL_QUALITY', 'quality=FAIL:NOTHING_TO_COMPARE'), {
        'sample': on(each, status='rejected', tNs=[], tok=[])}
    yield 'swapped', ('NOT_ADMISSIBLE_ENV', 'environment=FAIL:RED'), {
        'run': on(only(2), guards=lambda d: {**d['guards'], 'swapIns': 3})}
    yield 'guard unknown', ('NOT_ADMISSIBLE_ENV', 'environment=FAIL:UNKNOWN'), {
        'run': on(only(2), guards=lambda d: {**d['guards'], 'stealPpm': NONE})}
    yield 'server crashed', ('INCONCLUSIVE_ENV', 'complete=FAIL:SERVER_ENDED_BADLY'), {'run': on(only(9), exitStatus=134)}
    yield 'sent late', ('INCONCLUSIVE_ENV', 'complete=FAIL:SENT_TOO_LATE'), {
        'sample': on(only(5), sendLagNs=TTFT * MS // 4 + 1, **later(200))}
    yield 'not answered', ('FAIL_TAIL', 'starvation=FAIL:NOT_ANSWERED'), {'sample': on(one(6, 'B', 3), status='failed')}
    yield 'starved', ('FAIL_TAIL', 'starvation=FAIL:WAITED'), {'sample': on(one(3, 'B', 3), **later(10 * TTFT + 1))}
    yield 'slow to recover', ('FAIL_TAIL', 'recovery=FAIL'), {
        'sample': on(one(3, 'B', 3), endNs=lambda d: d['endNs'] + 99000 * MS)}
    yield 'bounds missed', ('FAIL_TAIL', 'calibration=FAIL:BOUNDS_MISSED'), {
        'run': on(each, boundMisses=lambda d: d['bounds'] // 4)}
    yield 'bounds missed in one run', ('FAIL_TAIL', 'calibration=FAIL'), {'run': on(only(7), boundMisses=2)}
    yield 'few bounds', ('INCONCLUSIVE_STATS', 'calibration=NOT_RUN:TOO_FEW', 'gain=PASS'), {'run': on(each, bounds=8)}
    yield 'few bounds, allowed', ('QUALIFIED', 'calibration=NOT_APPLICABLE:TOO_FEW'), {'run': on(each, bounds=8)}, dict(
        STRICT, mayNotApply=['tail'])
    yield 'rejected', ('FAIL_PERF', 'attainment=FAIL'), {
        'sample': on(lambda p, a, i: p == 8 and a == 'B' and i > 20, status='rejected', tNs=[], tok=[])}
    yield 'tokens held back', ('FAIL_PERF', 'deadlines=FAIL'), {
        'sample': on(only(8), tNs=held, endNs=lambda d: d['intendedNs'] + (TTFT + 61) * MS)}
    yield 'slower alone', ('FAIL_PERF', 'singleFlow=FAIL:SLOWER_ALONE'), {'sample': on(only(0), **later(30))}
    yield 'slower tokens alone', ('FAIL_PERF', 'singleFlow=FAIL'), {'sample': on(only(0), **later(3, True))}
    yield 'the reference rejected one alone', ('FAIL_PERF', 'singleFlow=FAIL:REFERENCE_FAILED'), {
        'sample': on(one(0, 'A', 3), status='rejected', tNs=[], tok=[])}
    yield 'long ones pay', ('FAIL_PERF', 'classes=FAIL'), {
        'sample': on(lambda p, a, i: p == 4 and a == 'B' and i % 3 == 0, **later(TTFT))}
    yield 'idle', ('FAIL_PERF', 'conservation=FAIL'), {'run': on(only(3), idleQueued=1)}
    yield 'less is worse', ('FAIL_PERF', 'monotone=FAIL'), {'sample': on(only(4), **later(TTFT))}
    yield 'no gain', ('FAIL_PERF', 'gain=FAIL:LOWER_BOUND'), {'sample': on(lambda p, a, _: a == 'B' and p > 0, **later(24))}
    yield 'the reference rejected all of a run', ('FAIL_PERF', 'gain=FAIL:REFERENCE_FAILED'), {
        'sample': on(lambda p, a, _: (p, a) == (5, 'A'), status='rejected', tNs=[], tok=[])}


# ---- refusals: what the rules of reading forbid ----

def row(k, **more):
    return lambda rows: rows[:k] + [{**rows[k], **more}] + rows[k + 1:]


def design(**more):
    return {'design.json': lambda d: {**d, **more}}


def scope(**more):
    return {'design.json': lambda d: {**d, 'scope': {**d['scope'], **more}}}


def at(p, arm, k, /, **more):
    return {'sample': on(lambda *where: where == (p, arm, k), **more)}


def without(path):
    return {'files': lambda files: {p: d for p, d in files.items() if p != path}}


def event(name, pair, change):
    """change: (name, members) of that event to a list of such."""
    return {'event': lambda ev: change(*ev[0]) if ev[0][0] == name and ev[0][1].get('pair') in (pair, None) else ev}


def more(**kw):
    return lambda n, m: [(n, {**m, **kw})]


def design_cases():
    rates = 'three rising rates'
    yield 'rates below saturation', rates, design(ratesPpm=[300000, 700000, 1000000])
    yield 'rates that fall', rates, design(ratesPpm=[700000, 300000, 1200000])
    yield 'two rates', rates, design(ratesPpm=[300000, 1200000])
    yield 'a wide margin', 'deltaPpm must be', design(deltaPpm=40000)
    yield 'a long wait', 'maxWaitNs must be', design(maxWaitNs=1)
    yield 'another saturation', 'is not what calibration.jsonl gives', design(saturationMicroHz=10**7 + 1)
    yield 'few requests', 'design', design(requests=23)
    yield 'another policy', 'policy.json is not what was sealed', design(policySha256='9' * 64)
    yield 'one kind missing', 'arrivals of all kinds', scope(arrivals=['burst', 'poisson'])
    yield 'kinds in another order', 'arrivals of all kinds', scope(arrivals=['poisson', 'burst', 'trace'])
    yield 'an open scope', 'scope', scope(more=1)
    for key, name in (('modelPack', 'model'), ('machineClass', 'machine'), ('tokenizer',) * 2, ('binary',) * 2, ('assets',) * 2):
        yield 'another ' + name, 'the scope names another ' + name, scope(**{key + 'Sha256': '9' * 64})
    for path in ('policy.json', 'calibration.jsonl', 'arrivals.jsonl', 'samples.jsonl', 'runs.jsonl', 'journal.jsonl',
                 'raw/p004-B.bin'):
        yield path + ' left out', 'is missing', without(path)


def arrival_cases():
    yield 'a prompt twice', 'is used twice', {'arrivals': row(5, promptTokSha256=V.sha(b'0 4'))}
    yield 'a prompt too long', 'outside of the scope', {'arrivals': row(5, nPrompt=41, **{'class': 'long'})}
    yield 'an answer too long', 'outside of the scope', {'arrivals': row(5, maxNew=5)}
    yield 'a class that is not', 'outside of the scope', {'arrivals': row(5, **{'class': 'long'})}
    yield 'not of the rate', 'not of their rate', {'arrivals': row(5 * N - 1, atNs=10**11)}
    yield 'no bursts', 'are not burst', {'arrivals': lambda rows: [
        {**x, 'atNs': rows[N * 2 - 1]['atNs'] * x['i'] // (N - 1)} if x['scenario'] == 1 else x for x in rows]}
    yield 'bursts called Poisson', 'are not poisson', {'arrivals': lambda rows: [
        {**x, 'atNs': rows[N * 5 - 1]['atNs'] * (x['i'] == N - 1)} if x['scenario'] == 4 else x for x in rows]}
    yield 'arrivals backwards', 'time runs backwards', {'arrivals': row(5, atNs=10**12)}
    for key in ('i', 'scenario', 'rep'):
        yield 'an arrival of another ' + key, 'is not the one expected', {'arrivals': row(5, **{key: 7})}
    yield 'an arrival too many', 'too many lines', {'arrivals': lambda rows: rows + rows[-1:]}
    yield 'an arrival too few', 'lines, need', {'arrivals.jsonl': lambda b: b[:b[:-1].rindex(b'\n') + 1]}
    yield 'calibration cut', 'lines, need', {'calibration': lambda rows: rows[:-1]}
    yield 'calibration out of order', 'is not the one expected', {'calibration': row(5, i=4)}
    yield 'calibration backwards', 'is not the one expected', {'calibration': row(5, startNs=2400 * MS)}


def sample_cases():
    def run(where, **kw):
        return {'run': on(lambda *w: w == where, **kw)}
    times, other = 'at a time that cannot be', 'is not the one expected'
    yield 'the reference overlaps', 'shared passes', run((3, 'A'), overlapped=1)
    yield 'more misses than bounds', other, run((3, 'B'), boundMisses=21)
    yield 'a run of another pair', other, run((3, 'B'), pair=4)
    yield 'a run of the other arm', other, run((3, 'B'), arm='A')
    yield 'more bounds than can be counted', other, run((3, 'B'), bounds=2**32)
    yield 'a token before its request', times, at(4, 'B', 5, tNs=lambda d: [d['intendedNs']] + d['tNs'][1:])
    yield 'a token after the end', times, at(4, 'B', 5, endNs=lambda d: d['tNs'][-1] - 1)
    yield 'tokens backwards', times, at(4, 'B', 5, tNs=lambda d: [d['tNs'][1], d['tNs'][0]] + d['tNs'][2:])
    yield 'short and ok', 'called ok', at(4, 'B', 5, tNs=lambda d: d['tNs'][:3], tok=[1, 2, 3])
    yield 'fewer times than tokens', 'as many times as tokens', at(4, 'B', 5, tNs=lambda d: d['tNs'][:3])
    yield 'rejected with tokens', 'was rejected and has tokens', at(4, 'B', 5, status='rejected')
    yield 'sent at another time', other, at(4, 'B', 5, intendedNs=1)
    yield 'a sample of another request', other, at(4, 'B', 5, i=6)
    yield 'a sample of another pair', other, at(4, 'B', 5, pair=5)
    yield 'a sample of the other arm', other, at(4, 'B', 5, arm='A')
    yield 'ended before it began', other, at(4, 'B', 5, status='failed', tNs=[], tok=[], endNs=0)
    yield 'raw of another', 'has another digest', at(4, 'B', 5, responseSha256='8' * 64)
    yield 'raw too short', 'has bytes of nobody', at(4, 'B', N - 1, rawLen=5, responseSha256=V.sha(b'4 B 2'))
    yield 'raw too long', 'ends inside of request', at(4, 'B', N - 1, rawLen=10**6)
    yield 'raw with a tail', 'has bytes of nobody', {'raw/p004-B.bin': lambda b: b + b'x'}
    for path in ('samples.jsonl', 'runs.jsonl'):
        yield 'a line too many in ' + path, 'lines that the design does not have', {
            path: lambda b: b + b.split(b'\n')[0] + b'\n'}
        yield 'a line too few in ' + path, 'ends before', {path: lambda b: b[:b[:-1].rindex(b'\n') + 1]}


def journal_cases():
    yield 'an event left out', 'events for', event('start', 3, lambda n, m: [])
    yield 'an event too many', 'events for', event('start', 3, lambda n, m: [(n, m)] * 2)
    yield 'another event', 'need event start', event('start', 3, lambda n, m: [('begin', m)])
    yield 'arms swapped', 'out of place', {'event': lambda ev: [
        (n, {**m, 'arm': 'A' if m['arm'] == 'B' else 'B'}) if m.get('pair') == 3 else (n, m) for n, m in ev]}
    yield 'an event of another pair', 'out of place', event('start', 3, more(pair=4))
    yield 'a start that closes', 'the wrong members', event('start', 3, more(runSha256='8' * 64))
    yield 'a run that closes nothing', 'the wrong members', event(
        'run', 3, lambda n, m: [(n, {k: v for k, v in m.items() if k != 'samplesSha256'})])
    yield 'a run of other lines', 'is not of the lines', event('run', 3, more(runSha256='8' * 64))
    yield 'samples of other lines', 'is not of the lines', event('run', 3, more(samplesSha256='8' * 64))
    yield 'another design sealed', 'another design was sealed', event('design', None, more(designSha256='8' * 64))
    yield 'runs miscounted', 'events for', event('close', None, more(runs=19))


def output_cases():
    def added(paths, files):
        files['z'] = b'{}'
        return paths + ['z']
    yield 'edited', 'is not what the inputs and the policy give', {
        'analysis/sched.json': lambda data: data.replace(b'"QUALIFIED"', b'"FAIL_PERF"')}
    yield 'more than one', 'the output is analysis/sched.json', {'outputs': added}
    yield 'of another type', 'UNKNOWN_TYPE', {'statement': lambda b: b.replace(b'scheduler:1', b'evidence:1')}
    for claim in (b'hardwareEvidence', b'productionEligible'):
        yield 'claims ' + claim.decode(), 'RECOMPUTED', {
            'statement': lambda b, c=claim: b.replace(b'"%s":false' % c, b'"%s":true' % c)}


def cases(key, case):
    """case(name, want, says, files): as of mutations.Case."""
    twin = Scheduling().seal(key)
    for name, says, edit, *policy in verdict_cases():
        yield case('scheduler: ' + name, 'ok', says, Scheduling(edit, *policy).seal(key).files)
    for group in (design_cases, arrival_cases, sample_cases, journal_cases, output_cases):
        for name, says, edit in group():
            yield case('scheduler: ' + name, 'refused', says, Scheduling(edit).seal(key, twin).files)
