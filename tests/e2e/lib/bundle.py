"""Makes synthetic evidence bundles, by the independent verifier's own idea of the formats."""
import base64
import hashlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', '..', 'tools'))
sys.dont_write_bytecode = True
import bundle_format as F  # noqa: E402
import verify_bundle as V  # noqa: E402

NONE = {'known': False, 'reason': 'NONE'}
POLICY = {
    'design': {'arms': 2, 'blocks': 'ABBA_BAAB', 'freshProcess': True, 'minPairs': 8,
               'nullRun': {'maxHalfWidthPpm': 15000, 'pairs': 8}},
    'fixture': True,
    'guards': {'maxForeignCpuPpm': 20000, 'maxPsiPpm': 10000, 'maxStealPpm': 1000, 'psiMinCpus': 5,
               'required': ['acOnline', 'stealPpm']},
    'id': 'fixture-e2e', 'mayNotApply': ['tail'], 'onUnknown': 'REFERENCE',
    'perf': {'alphaPpm': 50000, 'correction': 'HOLM', 'minLowerRatioPpm': 1030000, 'mode': 'SUPERIOR',
             'signTest': True},
    'plan': {'minGainPpm': 1010000}, 'prohibited': [],
    'quality': {'corpusSha256': NONE, 'lengthBandPpm': [900000, 1100000], 'maxKldMeanMicro': 1000,
                'maxKldP999Micro': 50000, 'minExactTokenPpm': 990000, 'minTop1Ppm': 990000,
                'taskNonInferiorityPpm': 10000},
    'retries': {'maxVoidBlocksPpm': 200000, 'perBlock': 1}, 'schema': 'hetero/policy/1',
    'tail': {'confPpm': 990000, 'metric': 'cell', 'quantilePpm': 950000, 'sloNs': NONE, 'sloRefPpm': 1250000},
    'validity': {'canaryOnStale': True, 'maxAgeDays': 90}}
MACHINE = {'live': {}, 'record': {}, 'reject': {'arch': {'v': 'synthetic-test-host'}}, 'schema': 'hetero/machine/1',
           'stale': {'microcode': {'v': '0x1'}}}


class Key:
    """An Ed25519 key made from one byte, or from a private key file (RFC 8032 5.1.5, 5.1.6)."""

    def __init__(self, n):
        self.seed = self._load(n) if isinstance(n, str) else bytes([n]) + bytes(31)
        h = hashlib.sha512(self.seed).digest()
        self.a = int.from_bytes(h[:32], 'little') & ((1 << 254) - 8) | (1 << 254)
        self.prefix = h[32:]
        self.public = self._pack(F._mul(self.a, F.BASE))
        self.id = V.sha(self.public)

    @staticmethod
    def _load(path):
        """PKCS#8 ends with the seed."""
        with open(path) as f:
            return base64.b64decode(''.join(x for x in f.read().splitlines() if '-' not in x))[-32:]

    @staticmethod
    def _pack(p):
        z = pow(p[2], F.P - 2, F.P)
        x, y = p[0] * z % F.P, p[1] * z % F.P
        return (y | (x & 1) << 255).to_bytes(32, 'little')

    def sign(self, msg):
        r = int.from_bytes(hashlib.sha512(self.prefix + msg).digest(), 'little') % F.L
        big = self._pack(F._mul(r, F.BASE))
        k = int.from_bytes(hashlib.sha512(big + self.public + msg).digest(), 'little') % F.L
        return big + ((r + k * self.a) % F.L).to_bytes(32, 'little')

    def save(self, path):
        """PKCS#8 (RFC 8410) as PEM."""
        der = bytes.fromhex('302e020100300506032b657004220420') + self.seed
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 'w') as f:
            f.write('-----BEGIN PRIVATE KEY-----\n%s\n-----END PRIVATE KEY-----\n' % base64.b64encode(der).decode())


def envelope(body, keys, kind='application/vnd.in-toto+json'):
    pae = b'DSSEv1 %d %s %d ' % (len(kind), kind.encode(), len(body)) + body
    return V.canon({'payload': base64.b64encode(body).decode(), 'payloadType': kind,
                    'signatures': [{'keyid': k.id, 'sig': base64.b64encode(k.sign(pae)).decode()} for k in keys]})


def trust_root(keys):
    """keys: {role: [Key]}."""
    every = sorted({k.id: k for ks in keys.values() for k in ks}.values(), key=lambda k: k.id)
    return V.canon({'expiresUtc': '2090-01-01T00:00:00Z', 'schema': 'hetero/trust/1', 'version': 1,
                    'keys': [{'keyId': k.id, 'publicKey': k.public.hex(),
                              'roles': [r for r in F.ROLES if k in keys.get(r, [])]} for k in every],
                    'thresholds': {r: 2 if r == 'promote' else 1 for r in F.ROLES}})


class Maker:
    """Every input of a bundle. edit: what a test wants to be wrong, {path or 'sample', 'event', 'chunks',
    'prompts', 'quality': function}; it gets the document, row or rows before they are digested (a path: also the
    bytes of a file that is none) and gives back what is written instead. 'event' gets and gives [(name, members)]."""

    def __init__(self, pairs=8, requests=1, gain=1.1, seed=7, fail=None, void=None, quality='same', policy=None,
                 jitter=0.001, cells=('d512', 'p512'), null_gain=1.0, slow=None, edit=None):
        self.files, self.now, self.noise = {}, 10**9, 12345
        self.names, self.null_gain, self.slow, self.edit = cells, null_gain, slow, edit or {}
        self.pairs, self.requests, self.gain, self.seed = pairs, requests, gain, seed
        self.fail, self.void, self.quality, self.jitter = fail, void, quality, jitter
        self.policy = policy or POLICY
        self.build()

    def change(self, what, doc, *more):
        return self.edit[what](doc, *more) if what in self.edit else doc

    def put(self, path, doc):
        doc = self.change(path, doc)
        data = doc if isinstance(doc, bytes) else V.canon(doc)
        self.files[path] = data
        return V.sha(data)

    def rand(self):
        self.noise = (self.noise * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.noise >> 33) / 2**31

    def scope(self, phase, backend):
        return {'acc': 0, 'assetsSha256': V.sha(self.files['subject/assets.json']), 'backend': backend,
                'batch': {'max': 1, 'min': 1}, 'binarySha256': '4' * 64,
                'bucket': {'maxNew': {'prefill': 0, 'decode': 64, 'complete': 4}[phase], 'maxTokens': 512, 'minTokens': 129},
                'ctxMax': 8192, 'instance': 'hmac:synthetic', 'machineClassSha256': V.sha(V.canon(MACHINE['reject'])),
                'modelPackSha256': '1' * 64, 'os': 'linux-6', 'phase': phase, 'schema': 'hetero/scope/1',
                'precision': {'acc': 'f32', 'act': 'f32', 'kv': 'f16', 'weights': 'f16'}, 'sampler': 'greedy',
                'spec': 'off', 'templateSha256': '3' * 64, 'tokenizerSha256': '2' * 64}

    def build(self):
        policy = self.put('policy.json', self.policy)
        self.put('machine/before.json', MACHINE)
        self.put('machine/after.json', MACHINE)
        self.put('subject/modelpack.json', {'files': [], 'schema': 'hetero/modelpack/1', 'sha256': '1' * 64})
        self.put('subject/tokenizer.json', {'schema': 'hetero/tokenizer/1', 'sha256': '2' * 64,
                                            'templateSha256': '3' * 64})
        self.put('subject/assets.json', {'files': [], 'schema': 'hetero/assets/1'})
        self.put('build/source.json', {'commit': '0', 'dirty': False, 'schema': 'hetero/source/1', 'tree': '0'})
        self.put('build/binary.json', {'bytes': 1, 'schema': 'hetero/binary/1', 'sha256': '4' * 64})
        self.put('build/toolchain.json', {'compiler': 'cc', 'flags': '', 'schema': 'hetero/toolchain/1'})
        self.put('edges.json', {'edges': [{'fixedNs': 5, 'from': 'cpu', 'kind': 'kvHandoff', 'nsPerToken': 1,
                                           'to': 'cpu;threads=2'}], 'schema': 'hetero/edges/1'})
        cells = []
        for cid in self.names:
            phase, metric = {'p': ('prefill', 'ttftNs'), 'd': ('decode', 'tpotNs'), 'c': ('complete', 'e2eNs')}[cid[0]]
            pair = [self.scope(phase, b) for b in ('cpu', 'cpu;threads=2')]
            for s in pair:
                del s['acc']
            cells.append({'id': cid, 'metric': metric, 'refScope': pair[0],
                          'scope': pair[1]})
        self.cells = cells
        n_null = 4
        order = [V.block_arms(self.seed, b, b < n_null) for b in range(n_null + self.pairs // 2)]
        rows = [{'bucket': c['id'], 'nPrompt': (129, 320, 512)[p % 3], 'pairId': p, 'request': r,
                 'promptTokSha256': V.sha(b'%d %s %d' % (p, c['id'].encode(), r))}
                for p in range(2 * len(order)) for c in cells for r in range(self.requests)]
        self.prompts = {(x['pairId'], x['bucket'], x['request']): x for x in rows}
        rows = self.change('prompts', rows)
        prompts = self.put('prompts.jsonl', b''.join(V.canon(x) + b'\n' for x in rows))
        self.put('design.json', {
            'blocks': 'ABBA_BAAB', 'cells': cells, 'cpus': 8, 'nullPairs': 8, 'order': order, 'pairs': self.pairs,
            'policySha256': policy, 'predecessor': NONE, 'promptsSha256': prompts, 'requestsPerSlot': self.requests,
            'schema': 'hetero/design/1', 'seed': self.seed, 'selectionBundle': NONE, 'spacingNs': 0,
            'startedUtc': '2026-11-29T12:00:00Z', 'synthetic': True, 'warmupRequests': 1})
        self.run(order)
        self.make_quality()

    def make_quality(self):
        if not self.quality:
            return
        none = {'known': False, 'reason': 'NONE'}
        last = 4 if self.quality == 'same' else 9
        rows = [[], [], []]
        for i, kind in enumerate(('greedy', 'text', 'task')):
            right = True if kind == 'task' else none
            rows[0].append({'i': i, 'kind': kind, 'promptTokSha256': 'a' * 64})
            rows[1].append({'i': i, 'out': [1, 2, 3, 4], 'right': right, 'top1': [5, 6]})
            rows[2].append({'i': i, 'kldNano': [1, 2], 'out': [1, 2, 3, last], 'right': right, 'top1': [5, 6]})
        for name, part in zip(('prompts', 'ref', 'cand'), self.change('quality', rows)):
            self.put('quality/%s.jsonl' % name, b''.join(V.canon(x) + b'\n' for x in part))

    def event(self, name, **more):
        for name, more in self.change('event', [(name, more)]):
            self.journal.append(V.canon({'event': name, 'monoNs': self.now, 'prev': self.prev, 'seq': self.seq, **more}))
            self.prev, self.seq = V.sha(self.journal[-1]), self.seq + 1

    def run(self, order):
        self.journal, self.rows, self.prev, self.seq = [], [], '0' * 64, 0
        attempts = voids = 0
        self.event('design', designSha256=V.sha(self.files['design.json']))
        for b, arms in enumerate(order):
            for attempt in (1, 2):
                attempts += 1
                bad = self.void == b and attempt == 1
                for slot in range(1, 5):
                    self.slot(b, slot, attempt, arms[slot - 1], bad and slot == 2)
                    if bad and slot == 2:
                        voids += 1
                        break
                else:
                    break
        self.event('close', attempts=attempts, blocks=len(order), voids=voids)
        self.put('journal.jsonl', b''.join(x + b'\n' for x in self.journal))
        self.put('samples.jsonl', b''.join(x + b'\n' for x in self.rows))

    def slot(self, block, slot, attempt, arm, is_void):
        place = {'arm': arm, 'attempt': attempt, 'block': block, 'slot': slot}
        self.event('start', **place)
        first = len(self.rows)
        for c in self.cells:
            for r in range(self.requests):
                self.request(block, slot, attempt, arm, c['id'], r, is_void)
        self.event('guards', void='GUARD' if is_void else 'NONE', **place)
        mine = self.rows[first:]
        self.event('samples', lines=len(mine), sha256=V.sha(b''.join(x + b'\n' for x in mine)), **place)
        if not is_void:
            self.put('raw/b%02d/s%d-%s/a%d/proc.json' % (block, slot, arm, attempt),
                     {'exit': 0, 'peakBytes': 1 << 20, 'schema': 'hetero/proc/1', 'warmupNs': 5000000})

    def request(self, block, slot, attempt, arm, cell, r, is_void):
        pair = 2 * block + (slot - 1) // 2
        fails = self.fail == (block, slot) and not is_void
        speed = {'B': self.gain, 'M': self.null_gain}.get(arm, 1) * (1 + self.jitter * (2 * self.rand() - 1))
        if arm == 'B' and pair == self.slow:
            speed /= 3
        ttft, gap, toks = int(10**8 / speed), int(10**7 / speed), [] if fails else [1, 2, 3, 4]
        at = 'raw/b%02d/s%d-%s/a%d/%s-%d/' % (block, slot, arm, attempt, cell, r)
        p = self.prompts[(pair, cell, r)]
        rows = [{'i': i, 'len': 2, 'off': 2 * i, 'tNs': self.now + ttft + i * gap, 'tok': [t]}
                for i, t in enumerate(toks)]
        end = 'EOF_EARLY' if fails else 'DONE'
        rows = self.change('chunks', rows + [{'end': end}], (block, slot))
        toks = [t for c in rows for t in c.get('tok', [])]
        body = b''.join(V.canon(x) + b'\n' for x in rows)
        failed = {'known': False, 'reason': 'FAILED'}
        timed = not fails and not is_void
        guards = {g: 0 for g in V.GUARDS}
        guards.update(acOnline=not is_void, clocksSteady=True, gpuProcs=NONE)
        row = {
            'arm': arm, 'attempt': attempt, 'block': block, 'bucket': cell,
            'chunksSha256': self.put(at + 'chunks.jsonl', body), 'e2eNs': ttft + 3 * gap if timed else failed,
            'endState': end, 'guards': guards, 'intendedNs': self.now, 'nOut': len(toks), 'nPrompt': p['nPrompt'],
            'outTokSha256': V.sha(b''.join(t.to_bytes(4, 'little') for t in toks)), 'pairId': pair,
            'promptTokSha256': p['promptTokSha256'], 'receiptSha256': NONE,
            'requestSha256': self.put(at + 'request.bin', p['promptTokSha256'].encode()),
            'responseSha256': self.put(at + 'response.bin', b'' if fails else b'abcdefgh'), 'schema': 'hetero/sample/1',
            'sendLagNs': 1200, 'slot': slot, 'status': 'voidGuard' if is_void else 'sutError' if fails else 'ok',
            'tpotNs': gap if timed else failed, 'ttftNs': ttft if timed else failed,
            'voidReason': 'AC_LOST' if is_void else None}
        self.rows.append(V.canon(self.change('sample', row, (block, slot))))
        self.now += 10**9

    def seal(self, key, twin=None):
        """Manifests, outputs and statement; the bundle's id. twin: whose outputs are taken where the inputs are
        refused, by a Maker that was sealed."""
        def manifest(paths, schema, role, **more):
            return self.change(schema, V.canon({'files': [
                {'bytes': len(self.files[p]), 'path': p, 'role': role, 'sha256': V.sha(self.files[p])}
                for p in sorted(paths) if p in self.files], 'schema': schema, **more}))
        self.files = self.change('files', self.files)
        inputs = manifest(self.files, 'hetero/inputs/1', 'input')
        tree = dict(self.files, **{'inputs.manifest.json': inputs})
        try:
            b = V.Bundle(tree, V.read_manifest(tree, 'inputs.manifest.json', 'hetero/inputs/1', {}))
            docs, self.cls, hardware, eligible = V.outputs(b)
            body = lambda outs: V.statement(b, V.sha(outs), hardware, eligible)  # noqa: E731
        except V.Refused:
            if not twin:
                raise
            docs, self.cls = [twin.files[x] for x in V.OUTPUTS], None
            body = lambda outs: b'{}'  # noqa: E731
        for path, data in zip(V.OUTPUTS, docs):
            self.put(path, data)
        self.files = self.change('outputs', self.files)
        outs = manifest(V.OUTPUTS, 'hetero/outputs/1', 'output', inputsManifestSha256=V.sha(inputs))
        self.files['inputs.manifest.json'], self.files['outputs.manifest.json'] = inputs, outs
        self.files['statement.dsse.json'] = self.change('envelope', envelope(
            self.change('statement', body(outs)), self.edit.get('keys', [key])))
        return V.sha(inputs)

    def write(self, top, key):
        """Seal into the folder top; the bundle's id."""
        bundle_id = self.seal(key)
        write_tree(top, self.files)
        return bundle_id


def write_tree(top, files):
    for path, data in files.items():
        full = os.path.join(top, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, 'wb') as f:
            f.write(data)


def reseal(top, out, key, edit):
    """A bundle again with its inputs edited ({path: function of the document}), sealed by key; its id."""
    tree = V.read_tree(top)
    roles = {f['path']: f['role'] for f in V.load(tree['inputs.manifest.json'], 'm')['files']}
    files = {p: V.canon(edit[p](V.load(tree[p], p))) if p in edit else tree[p] for p in roles}

    def manifest(paths, schema, role, **more):
        return V.canon({'files': [{'bytes': len(files[p]), 'path': p, 'role': role(p), 'sha256': V.sha(files[p])}
                                  for p in sorted(paths)], 'schema': schema, **more})
    inputs = manifest(roles, 'hetero/inputs/1', roles.get)
    whole = dict(files, **{'inputs.manifest.json': inputs})
    b = V.Bundle(whole, V.read_manifest(whole, 'inputs.manifest.json', 'hetero/inputs/1', {}))
    docs, _, hardware, eligible = V.outputs(b)
    files.update(zip(V.OUTPUTS, docs))
    outs = manifest(V.OUTPUTS, 'hetero/outputs/1', lambda _: 'output', inputsManifestSha256=V.sha(inputs))
    files.update({'inputs.manifest.json': inputs, 'outputs.manifest.json': outs,
                  'statement.dsse.json': envelope(V.statement(b, V.sha(outs), hardware, eligible), [key])})
    write_tree(out, files)
    return V.sha(inputs)
