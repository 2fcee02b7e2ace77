"""Makes synthetic scheduler evidence (docs/bundle.md, "Schedulers"), whole and wrong in one way each, by the independent
verifier's own idea of the format."""
import os

from bundle import MACHINE, NONE, POLICY, V, envelope

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

    def seal(self, key, analysis=None):
        """Outputs and statement, by the independent verifier where it takes the inputs, else `analysis` from another."""
        def manifest(paths, schema, role, **more):
            return V.canon({'files': [{'bytes': len(self.files[p]), 'path': p, 'role': role, 'sha256': V.sha(self.files[p])}
                                      for p in sorted(paths)], 'schema': schema, **more})
        inputs = manifest(list(self.files), 'hetero/inputs/1', 'input')
        tree = dict(self.files, **{'inputs.manifest.json': inputs})
        try:
            b = V.Schedule(tree, V.read_manifest(tree, 'inputs.manifest.json', 'hetero/inputs/1', {}))
            self.files['analysis/sched.json'] = b.outputs()
        except V.Refused:
            b = None
            self.files['analysis/sched.json'] = analysis or b'{}'
        outs = manifest(['analysis/sched.json'], 'hetero/outputs/1', 'output', inputsManifestSha256=V.sha(inputs))
        self.files['inputs.manifest.json'], self.files['outputs.manifest.json'] = inputs, outs
        self.files['statement.dsse.json'] = envelope(b.statement(V.sha(outs)) if b else b'{}', [key])
        return self

    def write(self, top):
        for path, data in self.files.items():
            full = os.path.join(top, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, 'wb') as f:
                f.write(data)
        return top
