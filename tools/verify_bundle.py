#!/usr/bin/env python3
"""Verify an evidence bundle without Hetero: the standard library only, Ed25519 included.

    verify_bundle.py BUNDLE --trust TRUST.json [--now UNIX] [--amendment FILE]

Written from docs/bundle.md. Prints one JSON line; exit status 0 when the bundle is what it says (its
verdict may still be bad), 1 when it is refused. It recomputes analysis, verdict and cost map from the
inputs and compares bytes. With --amendment also the paper of a canary of that bundle.
"""
import argparse
import json
import math
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python3 -I leaves it out
sys.dont_write_bytecode = True
try:
    from bundle_format import (
        array, boolean, canon, closed, digest, integer, INTOTO, is_closed, lines, load, MAX_INT, maybe, need,
        obj, open_statement, read_manifest, read_tree, read_trust, Refused, sha, text, unix, unknown, utc,
        word)
except ImportError:
    sys.exit('verify_bundle.py needs bundle_format.py, which lies beside it in tools/')

OUTPUTS = ['analysis/pairs.json', 'analysis/quality.json', 'analysis/stats.json', 'analysis/tails.json',
           'costmap.json', 'verdict.json']
SEAL = ['inputs.manifest.json', 'outputs.manifest.json', 'statement.dsse.json']
GUARDS = ['acOnline', 'clocksSteady', 'eccDelta', 'foreignCpuPpm', 'gpuEvents', 'gpuProcs', 'nrThrottledDelta',
          'psiPpm', 'stealPpm', 'suspendNs', 'swapIns', 'throttleDelta']
GATES = ['environment', 'voids', 'nullRun', 'complete', 'coverage', 'quality', 'perf', 'sign', 'tail']
GRAVE = ['QUALIFIED', 'INCONCLUSIVE_STATS', 'FAIL_TAIL', 'FAIL_PERF', 'INCONCLUSIVE_ENV', 'NOT_ADMISSIBLE_ENV',
         'FAIL_QUALITY', 'INVALID_EVIDENCE']
STATUS = ['ok', 'sutError', 'timeout', 'oom', 'badOutput', 'routeMismatch', 'voidGuard', 'harnessError']
TAIL_N = {(900000, 990000): (44, 64, 81, 97), (900000, 950000): (29, 46, 61, 76),
          (950000, 990000): (90, 130, 165, 198), (950000, 950000): (59, 93, 124, 153),
          (990000, 990000): (459, 662, 838, 1001), (990000, 950000): (299, 473, 628, 773)}


# ---- inputs ---------------------------------------------------------------------------------------------

SCOPE = {'assetsSha256': digest, 'backend': text, 'binarySha256': digest, 'ctxMax': integer(1, 2**32 - 1),
         'batch': is_closed({'max': integer(1, 2**32 - 1), 'min': integer(1, 2**32 - 1)}),
         'bucket': is_closed({'maxNew': integer(0, 2**32 - 1), 'maxTokens': integer(1, 2**32 - 1),
                              'minTokens': integer(1, 2**32 - 1)}),
         'instance': text, 'machineClassSha256': digest, 'modelPackSha256': digest, 'os': text,
         'phase': word('prefill', 'decode', 'complete'), 'sampler': word('greedy', 'sampled'), 'spec': text,
         'precision': is_closed({'acc': text, 'act': text, 'kv': text, 'weights': text}),
         'templateSha256': digest, 'tokenizerSha256': digest}


def read_scope(v):
    closed(v, SCOPE, 'scope', 'hetero/scope/1')
    need(v['bucket']['minTokens'] <= v['bucket']['maxTokens'] and v['batch']['min'] <= v['batch']['max'],
         'scope: not an interval')
    return v


def read_policy(data):
    def sub(**kw):
        return is_closed(kw)
    p = closed(load(data, 'policy'), {
        'design': sub(arms=integer(2, 2), blocks=word('ABBA_BAAB'), freshProcess=boolean, minPairs=integer(8, 40),
                      nullRun=sub(maxHalfWidthPpm=integer(1, 10**6), pairs=integer(8, 40))),
        'fixture': boolean,
        'guards': sub(maxForeignCpuPpm=integer(), maxPsiPpm=integer(), maxStealPpm=integer(),
                      psiMinCpus=integer(1, 10**5), required=array(word(*GUARDS))),
        'id': text, 'mayNotApply': array(word(*GATES)), 'onUnknown': word('REFERENCE', 'ERROR'),
        'perf': sub(alphaPpm=integer(1, 500000), correction=word('HOLM'), minLowerRatioPpm=integer(1, 10**9),
                    mode=word('SUPERIOR', 'NON_INFERIOR'), signTest=boolean),
        'plan': sub(minGainPpm=integer(1, 10**7)),
        'prohibited': array(word('promptCacheUnlessDeclared', 'benchmarkDetection', 'outputTruncation')),
        'quality': sub(corpusSha256=maybe(digest), lengthBandPpm=array(integer(1, 10**7)), maxKldMeanMicro=integer(),
                       maxKldP999Micro=integer(), minExactTokenPpm=integer(1, 10**6), minTop1Ppm=integer(1, 10**6),
                       taskNonInferiorityPpm=integer(1, 10**6)),
        'retries': sub(maxVoidBlocksPpm=integer(1, 10**6), perBlock=integer(1, 10)),
        'tail': sub(confPpm=integer(950000, 990000), metric=word('ttftNs', 'tpotNs', 'e2eNs', 'cell'),
                    quantilePpm=integer(900000, 990000), sloNs=maybe(integer()), sloRefPpm=integer(10**6, 10**8)),
        'validity': sub(canaryOnStale=boolean, maxAgeDays=integer(1, 3650))}, 'policy', 'hetero/policy/1')
    band = p['quality']['lengthBandPpm']
    need(len(band) == 2 and band[0] <= band[1], 'policy: lengthBandPpm')
    need(p['design']['minPairs'] % 4 == 0 and p['design']['nullRun']['pairs'] % 4 == 0, 'policy: pairs')
    need(p['design']['freshProcess'], 'policy: freshProcess')
    need(p['fixture'] or p['plan']['minGainPpm'] >= 10**6, 'policy: a loss outside a fixture')
    need((p['perf']['mode'] == 'SUPERIOR') == (p['perf']['minLowerRatioPpm'] >= 10**6), 'policy: mode')
    need((p['tail']['quantilePpm'], p['tail']['confPpm']) in TAIL_N, 'policy: no table')
    return p


def read_guards(g, policy, cpus):
    """(red, unknown) names of one slot's telemetry."""
    ints, bools = maybe(integer()), maybe(boolean)
    closed(g, {k: bools if k in ('acOnline', 'clocksSteady') else ints for k in GUARDS}, 'SAMPLE guards')
    p = policy['guards']
    most = {'foreignCpuPpm': p['maxForeignCpuPpm'], 'psiPpm': p['maxPsiPpm'], 'stealPpm': p['maxStealPpm']}
    red, missing = set(), set()
    for name, v in g.items():
        if isinstance(v, dict):
            missing.add(name)
        elif (not v) if isinstance(v, bool) else v > most.get(name, 0):
            if name != 'psiPpm' or cpus >= p['psiMinCpus']:
                red.add(name)
    return red, missing


def block_arms(seed, b, null_run):
    return (('NMMN', 'MNNM') if null_run else ('ABBA', 'BAAB'))[(seed + b) & 1]


class Documents:
    """What every kind of bundle holds: policy, machine, subject, journal."""

    def __init__(self, tree, inputs):
        self.tree = {f['path']: tree[f['path']] for f in inputs['files']}
        self.id = sha(tree['inputs.manifest.json'])
        need('policy.json' in self.tree, 'MANIFEST: policy.json is missing')
        self.policy = read_policy(self.tree['policy.json'])
        self.policy_sha = sha(self.tree['policy.json'])

    def doc(self, path, table, schema):
        need(path in self.tree, 'MANIFEST: %s is missing' % path)
        return closed(load(self.tree[path], path), table, path, schema)

    def read_states(self):
        """Digest of the machine's class, which must not have changed, and is a leaf unreadable?"""
        table = {'live': obj, 'record': obj, 'reject': obj, 'stale': obj}
        before, after = (self.doc('machine/%s.json' % x, table, 'hetero/machine/1') for x in ('before', 'after'))
        need(before['reject'] == after['reject'] and before['stale'] == after['stale'],
             'MACHINE: the machine changed during the run')
        return sha(canon(before['reject'])), any(isinstance(v, dict) and 'unreadable' in v for m in (before, after)
                                                 for part in ('reject', 'stale') for v in m[part].values())

    def read_subjects(self):
        """The digests of what was measured, and is the build dirty?"""
        files = array(is_closed({'bytes': integer(), 'path': text, 'sha256': digest}))
        pack = self.doc('subject/modelpack.json', {'files': files, 'sha256': digest}, 'hetero/modelpack/1')
        tok = self.doc('subject/tokenizer.json', {'sha256': digest, 'templateSha256': digest}, 'hetero/tokenizer/1')
        self.doc('subject/assets.json', {'files': files}, 'hetero/assets/1')
        src = self.doc('build/source.json', {'commit': text, 'dirty': boolean, 'tree': text}, 'hetero/source/1')
        binary = self.doc('build/binary.json', {'bytes': integer(), 'sha256': digest}, 'hetero/binary/1')
        self.doc('build/toolchain.json', {'compiler': text, 'flags': text}, 'hetero/toolchain/1')
        return {'modelPackSha256': pack['sha256'], 'tokenizerSha256': tok['sha256'],
                'templateSha256': tok['templateSha256'], 'binarySha256': binary['sha256'],
                'assetsSha256': sha(self.tree['subject/assets.json'])}, src['dirty']

    def read_journal(self):
        need('journal.jsonl' in self.tree and 'samples.jsonl' in self.tree, 'MANIFEST: journal or samples are missing')
        data = self.tree['journal.jsonl']
        need(data, 'JOURNAL: empty')
        events, prev, last = lines(data, 'journal'), '0' * 64, 0
        for i, (raw, ev) in enumerate(zip(data.split(b'\n'), events)):
            need(isinstance(ev, dict) and integer()(ev.get('seq')) and ev['seq'] == i and ev.get('prev') == prev,
                 'JOURNAL: the chain breaks')
            need(integer()(ev.get('monoNs')) and ev['monoNs'] >= last, 'JOURNAL: time runs backwards')
            need((i == 0) == (ev.get('event') == 'design') and (i + 1 == len(events)) == (ev.get('event') == 'close'),
                 'JOURNAL: design must be first, close last')
            last, prev = ev['monoNs'], sha(raw)
        common = {'event': text, 'monoNs': integer(), 'prev': digest, 'seq': integer()}
        closed(events[0], {**common, 'designSha256': digest}, 'JOURNAL')
        need(events[0]['designSha256'] == sha(self.tree['design.json']), 'DESIGN: not what the journal sealed')
        return events, common


class Bundle(Documents):
    def __init__(self, tree, inputs):
        super().__init__(tree, inputs)
        self.raw = {}
        for f in inputs['files']: # raw/b03/s2-B/a1/...: sorted already
            self.raw.setdefault('/'.join(f['path'].split('/')[:4]) + '/', []).append((f['path'], f['sha256']))
        self.read_design()
        self.read_machine()
        self.read_subject()
        self.samples, self.peak, self.warm, self.voids = [], 0, 0, 0
        self.read_samples()
        self.read_quality()

    def read_design(self):
        cell = {'id': text, 'metric': word('ttftNs', 'tpotNs', 'e2eNs', 'cell'), 'refScope': obj, 'scope': obj}
        d = self.design = self.doc('design.json', {
            'blocks': word('ABBA_BAAB'), 'cells': array(is_closed(cell)), 'cpus': integer(1, 10**6),
            'nullPairs': integer(8, 40), 'order': array(word('ABBA', 'BAAB', 'NMMN', 'MNNM')), 'pairs': integer(8, 40),
            'policySha256': digest, 'predecessor': maybe(digest), 'promptsSha256': digest,
            'requestsPerSlot': integer(1, 1000), 'seed': integer(), 'selectionBundle': maybe(digest),
            'spacingNs': integer(), 'startedUtc': utc, 'synthetic': boolean, 'warmupRequests': integer(0, 1000)},
            'hetero/design/1')
        need(d['policySha256'] == self.policy_sha, 'DESIGN: sealed for another policy')
        need(d['pairs'] % 4 == 0 and d['nullPairs'] % 4 == 0, 'DESIGN: pairs must be a multiple of 4')
        n_null = d['nullPairs'] // 2
        want = [block_arms(d['seed'], b, b < n_null) for b in range(n_null + d['pairs'] // 2)]
        need(d['order'] == want, 'DESIGN: order is not what the seed gives')
        need(1 <= len(d['cells']) <= 256, 'DESIGN: number of cells')
        ids = [c['id'].encode() for c in d['cells']]
        need(all(a < b for a, b in zip(ids, ids[1:])), 'DESIGN: cells twice or out of order')
        for c in d['cells']:
            s, r = read_scope(c['scope']), read_scope(c['refScope'])
            metrics = {'prefill': 'ttftNs', 'decode': 'tpotNs', 'complete': 'e2eNs'}
            need(c['metric'] == metrics[s['phase']], 'DESIGN: metric of the phase')
            same = dict(r, backend=s['backend'], assetsSha256=s['assetsSha256'], precision=s['precision'],
                        batch=s['batch'], ctxMax=s['ctxMax'])
            need(same == s, 'DESIGN: the reference has another scope')
            need(r != s, 'DESIGN: candidate and reference are one scope')
            c['sha'], c['refSha'] = sha(canon(s)), sha(canon(r))
        need(len({c['sha'] for c in d['cells']}) == len(d['cells']), 'DESIGN: one scope twice')

    def read_machine(self):
        cls, self.unreadable = self.read_states()
        first = self.design['cells'][0]['scope']
        for c in self.design['cells']:
            s = c['scope']
            need(s['machineClassSha256'] == cls and s['instance'] == first['instance'] and s['os'] == first['os'],
                 'MACHINE: a cell is for another machine')

    def read_subject(self):
        self.ids, self.dirty = self.read_subjects()
        for c in self.design['cells']:
            for k, v in self.ids.items():
                need(c['scope'][k] == v, 'SUBJECT: a cell has another %s' % k)
        self.edges = []
        if 'edges.json' in self.tree:
            edge = {'fixedNs': integer(), 'from': text, 'kind': text, 'nsPerToken': integer(), 'to': text}
            self.edges = self.doc('edges.json', {'edges': array(is_closed(edge))}, 'hetero/edges/1')['edges']

    # ---- journal and samples ----

    def read_prompts(self):
        need('prompts.jsonl' in self.tree, 'MANIFEST: prompts.jsonl is missing')
        need(sha(self.tree['prompts.jsonl']) == self.design['promptsSha256'], 'DESIGN: prompts are not what was sealed')
        table = {'bucket': text, 'nPrompt': integer(1, 2**32 - 1), 'pairId': integer(0, 1000),
                 'promptTokSha256': digest, 'request': integer(0, 1000)}
        self.prompts = {}
        got = [closed(p, table, 'prompts.jsonl') for p in lines(self.tree['prompts.jsonl'], 'prompts.jsonl')]
        want = [(p, c['id'], r) for p in range(2 * len(self.design['order'])) for c in self.design['cells']
                for r in range(self.design['requestsPerSlot'])]
        need([(p['pairId'], p['bucket'], p['request']) for p in got] == want, 'DESIGN: prompts do not fit the design')
        need(len({p['promptTokSha256'] for p in got}) == len(got), 'DESIGN: a prompt is used twice')
        self.prompts = dict(zip(want, got))

    def read_samples(self):
        d = self.design
        events, common = self.read_journal()
        close = closed(events[-1], {**common, 'attempts': integer(), 'blocks': integer(), 'voids': integer()}, 'JOURNAL')
        events = [e for e in events[1:-1] if e['event'] != 'note']
        self.read_prompts()
        table = {**common, 'arm': word('A', 'B', 'M', 'N'), 'attempt': integer(), 'block': integer(), 'slot': integer(),
                 'lines?': integer(), 'sha256?': digest, 'void?': word('NONE', 'GUARD', 'HARNESS')}
        data = self.tree['samples.jsonl']
        need(not data or data.endswith(b'\n'), 'SAMPLE: cut off')
        rows, at, attempts = data.split(b'\n')[:-1], 0, 0
        self.requests, self.streams = {}, []
        want = len(d['cells']) * d['requestsPerSlot']
        it = iter(events)

        def expect(name, place):
            ev = next(it, None)
            need(ev is not None and ev['event'] == name, 'JOURNAL: need event %s' % name)
            closed(ev, table, 'JOURNAL')
            need((ev['block'], ev['slot'], ev['attempt'], ev['arm']) == place, 'JOURNAL: an event out of place')
            return ev

        for b, arms in enumerate(d['order']):
            for attempt in range(1, 2 + self.policy['retries']['perBlock']):
                attempts += 1
                first, why = len(self.samples), 'NONE'
                for slot in range(1, 5):
                    place = (b, slot, attempt, arms[slot - 1])
                    expect('start', place)
                    g, s = expect('guards', place), expect('samples', place)
                    need('void' in g and 'lines' in s and 'sha256' in s, 'JOURNAL: a member is missing')
                    why, n = g['void'], s['lines']
                    need(n == want if why == 'NONE' else 1 <= n <= want, 'SAMPLE: number of lines')
                    need(at + n <= len(rows), 'SAMPLE: lines are missing')
                    for k in range(n):
                        self.samples.append(self.read_line(rows[at + k], place, k, why))
                    need(sha(b''.join(r + b'\n' for r in rows[at:at + n])) == s['sha256'], 'SAMPLE: not those closed')
                    at += n
                    if why != 'NONE':
                        break
                    self.read_proc(place)
                if why == 'NONE':
                    for s in self.samples[first:]:
                        s['last'] = True
                    break
                self.voids += 1
        need(next(it, None) is None, 'JOURNAL: an attempt that the design does not have')
        need(at == len(rows), 'SAMPLE: lines after the last block')
        need((close['attempts'], close['blocks'], close['voids']) == (attempts, len(d['order']), self.voids),
             'JOURNAL: close counts wrong')
        need(len(set(self.streams)) == len(self.streams), 'SAMPLE: a stream is used twice')

    def read_proc(self, place):
        path = 'raw/b%02d/s%d-%s/a%d/proc.json' % (place[0], place[1], place[3], place[2])
        p = self.doc(path, {'exit': integer(-255, 255), 'peakBytes': integer(1), 'warmupNs': integer()}, 'hetero/proc/1')
        if place[3] == 'B':
            self.peak, self.warm = max(self.peak, p['peakBytes']), max(self.warm, p['warmupNs'])

    def read_line(self, raw, place, k, why):
        d, u32 = self.design, integer(0, 2**32 - 1)
        s = closed(load(raw, 'sample'), {
            'arm': word('A', 'B', 'M', 'N'), 'attempt': integer(1, 100), 'block': integer(0, 1000), 'bucket': text,
            'chunksSha256': digest, 'e2eNs': maybe(integer()), 'endState': word('DONE', 'LENGTH_MET', 'EOF_EARLY', 'RESET'),
            'guards': obj, 'intendedNs': integer(), 'nOut': u32, 'nPrompt': integer(1, 2**32 - 1), 'outTokSha256': digest,
            'pairId': integer(0, 1000), 'promptTokSha256': digest, 'receiptSha256': maybe(digest),
            'requestSha256': digest, 'responseSha256': digest, 'sendLagNs': integer(), 'slot': integer(1, 4),
            'status': word(*STATUS), 'tpotNs': maybe(integer()), 'ttftNs': maybe(integer()),
            'voidReason': lambda v: True}, 'SAMPLE', 'hetero/sample/1')
        block, slot, attempt, arm = place
        cell = d['cells'][k // d['requestsPerSlot']]
        request, pair = k % d['requestsPerSlot'], 2 * block + (slot - 1) // 2
        need((s['block'], s['slot'], s['attempt'], s['arm'], s['pairId'], s['bucket']) ==
             (block, slot, attempt, arm, pair, cell['id']), 'SAMPLE: not the line that the design has there')
        red, missing = read_guards(s['guards'], self.policy, d['cpus'])
        named = isinstance(s['voidReason'], str)
        need(named or s['voidReason'] is None, 'SAMPLE: voidReason')
        good = {'NONE': not red and not named and s['status'] not in STATUS[6:],
                'GUARD': red and named and s['status'] == 'voidGuard',
                'HARNESS': named and s['status'] == 'harnessError'}
        need(good[why], 'SAMPLE: status does not follow from the guards')
        times = self.read_raw(s, 'raw/b%02d/s%d-%s/a%d/' % (block, slot, arm, attempt))
        for name, v in times.items():
            need(s[name] == v if v else unknown(s[name]), 'SAMPLE: %s is not what the chunks give' % name)
        need(s['status'] != 'ok' or times[cell['metric']], 'SAMPLE: the metric of the cell is unknown')
        p = self.prompts[(pair, cell['id'], request)]
        need((s['promptTokSha256'], s['nPrompt']) == (p['promptTokSha256'], p['nPrompt']), 'SAMPLE: not the sealed prompt')
        bucket = cell['scope']['bucket']
        need(cell['metric'] != 'e2eNs' or s['status'] != 'ok' or s['nOut'] == bucket['maxNew'], 'SAMPLE: another whole')
        need(bucket['minTokens'] <= s['nPrompt'] <= bucket['maxTokens'], 'SAMPLE: outside the bucket')
        same = self.requests.setdefault((pair, cell['id'], request), s['requestSha256'])
        need(same == s['requestSha256'], 'SAMPLE: the arms sent different requests')
        if s['status'] == 'ok':
            self.streams.append(s['chunksSha256'])
        return {'arm': arm, 'pair': pair, 'cell': cell['id'], 'ok': s['status'] == 'ok', 'times': times, 'last': False,
                'nPrompt': s['nPrompt'], 'missing': missing,
                'voided': red if why == 'GUARD' else {'HARNESS'} if why == 'HARNESS' else set()}

    def find_raw(self, prefix, digest_, name):
        for path, digest_of in self.raw.get(prefix, []):
            if path.endswith(name) and len(path) >= len(prefix) + len(name) and digest_of == digest_:
                return self.tree[path]
        raise Refused('RAW: no %s below %s with this digest' % (name, prefix))

    def read_raw(self, s, prefix):
        self.find_raw(prefix, s['requestSha256'], '/request.bin')
        chunks = self.find_raw(prefix, s['chunksSha256'], '/chunks.jsonl')
        response = self.find_raw(prefix, s['responseSha256'], '/response.bin')
        if text(s['receiptSha256']):
            self.find_raw(prefix, s['receiptSha256'], '/receipts.jsonl')
        rows = lines(chunks, 'RAW: chunks')
        need(rows and isinstance(rows[-1], dict) and 'end' in rows[-1], 'RAW: chunks are cut off')
        end = closed(rows[-1], {'end': word('DONE', 'LENGTH_MET', 'EOF_EARLY', 'RESET')}, 'RAW')['end']
        table = {'i': integer(), 'len': integer(), 'off': integer(), 'tNs': integer(), 'tok': array(integer(0, 2**32 - 1))}
        off, last, stamps, ids = 0, 0, [], []
        for i, c in enumerate(rows[:-1]):
            closed(c, table, 'RAW')
            need((c['i'], c['off']) == (i, off), 'RAW: a chunk is not where it should be')
            need(c['tNs'] >= last, 'RAW: time runs backwards')
            last, off = c['tNs'], off + c['len']
            ids += c['tok']
            if c['tok']:
                stamps.append(c['tNs'])
        need(off == len(response), 'RAW: lengths do not sum to the response')
        need(end == s['endState'], 'SAMPLE: endState')
        need(s['status'] != 'ok' or end in ('DONE', 'LENGTH_MET'), 'SAMPLE: ended early and is called ok')
        need(len(ids) == s['nOut'] and sha(b''.join(x.to_bytes(4, 'little') for x in ids)) == s['outTokSha256'],
             'SAMPLE: other tokens')
        if s['status'] != 'ok':
            return {'ttftNs': 0, 'tpotNs': 0, 'e2eNs': 0}
        need(ids and stamps[0] > s['intendedNs'] + s['sendLagNs'], 'SAMPLE: no token, or one before the request')
        return {'ttftNs': stamps[0] - s['intendedNs'], 'e2eNs': last - s['intendedNs'],
                'tpotNs': (stamps[-1] - stamps[0]) // (len(ids) - 1) if len(ids) > 1 else 0}

    def read_quality(self):
        names = ['quality/%s.jsonl' % x for x in ('prompts', 'ref', 'cand')]
        have = [n in self.tree for n in names]
        self.quality, self.quality_sha, self.corpus = None, '', None
        if not any(have):
            return
        need(all(have), 'QUALITY: a file is missing')
        u32 = array(integer(0, 2**32 - 1))
        item = {'i': integer(), 'kind': word('greedy', 'text', 'task'), 'promptTokSha256': digest}
        ref = {'i': integer(), 'out': u32, 'right': maybe(boolean), 'top1': u32}
        cand = {**ref, 'kldNano': array(integer(0, 2**40))}
        need(all(self.tree[n].count(b'\n') <= 100000 for n in names), 'QUALITY: more than 100000 items')
        docs = [[closed(x, t, n) for x in lines(self.tree[n], n)] for n, t in zip(names, (item, ref, cand))]
        need(len(docs[0]) == len(docs[1]) == len(docs[2]), 'QUALITY: the files differ in length')
        q = dict.fromkeys(['exactPrompts', 'kldP999Nano', 'kldSumNano', 'lenCand', 'lenRef', 'positions', 'prompts',
                           'tasks', 'tasksLost', 'tasksWon', 'tokens', 'tokensAgree', 'top1'], 0)
        kld = []
        for i, (p, r, c) in enumerate(zip(*docs)):
            need(p['i'] == r['i'] == c['i'] == i, 'QUALITY: out of order')
            if p['kind'] == 'greedy':
                need(r['out'], 'QUALITY: the reference wrote nothing')
                same, n = sum(a == b for a, b in zip(r['out'], c['out'])), max(len(r['out']), len(c['out']))
                for k, v in (('prompts', 1), ('exactPrompts', same == n), ('tokens', n), ('tokensAgree', same),
                             ('lenRef', len(r['out'])), ('lenCand', len(c['out']))):
                    q[k] += int(v)
            elif p['kind'] == 'text':
                need(r['top1'] and len(r['top1']) == len(c['top1']) == len(c['kldNano']), 'QUALITY: lengths')
                q['positions'] += len(r['top1'])
                q['top1'] += sum(a == b for a, b in zip(r['top1'], c['top1']))
                kld += c['kldNano']
            else:
                need(boolean(r['right']) and boolean(c['right']), 'QUALITY: a task without an answer')
                q['tasks'] += 1
                q['tasksLost'] += r['right'] and not c['right']
                q['tasksWon'] += c['right'] and not r['right']
        q['kldSumNano'] = sum(kld)
        if kld:
            q['kldP999Nano'] = sorted(kld)[len(kld) - 1 - len(kld) // 1000]
        self.quality, self.corpus = q, sha(self.tree[names[0]])
        self.quality_sha = sha(''.join(sha(self.tree[n]) for n in names).encode())


# ---- statistics --------------------------------------------------------------------------------------

def binom_tail(n, k):
    return sum(math.comb(n, i) for i in range(0, min(k, n) + 1))


def sign_losses(n, alpha):
    best = -1
    for k in range(n + 1):
        if binom_tail(n, k) * 10**6 > alpha << n:
            break
        best = k
    return best


def rank_counts(n):
    counts = [1] + [0] * (n * (n + 1) // 2)
    for k in range(1, n + 1):
        for t in range(len(counts) - 1, k - 1, -1):
            counts[t] += counts[t - k]
    return counts


def wilcoxon_w(n, alpha):
    counts, total, best = rank_counts(n), 0, -1
    for w, c in enumerate(counts):
        total += c
        if 2 * total * 10**6 > alpha << n:
            break
        best = w
    return best


def statistics(ratios):
    n = len(ratios)
    walsh = sorted(ratios[i] * ratios[j] for i in range(n) for j in range(i + 1))
    m, low = len(walsh), sum(x <= 10**12 for x in walsh)
    if m % 2:
        hl = math.isqrt(walsh[m // 2])
    else:
        hl = math.isqrt(math.isqrt(walsh[m // 2 - 1]) * math.isqrt(walsh[m // 2]))
    w = wilcoxon_w(n, 50000)
    lo, hi = 0, MAX_INT
    if w >= 0:
        lo, hi = math.isqrt(walsh[w]), math.isqrt(walsh[m - 1 - w])
        hi += hi * hi < walsh[m - 1 - w]
    wins = sum(r > 10**6 for r in ratios)
    return {'hiPpm': hi, 'hlPpm': hl, 'loPpm': lo, 'losses': sum(r < 10**6 for r in ratios), 'maxPpm': max(ratios),
            'minPpm': min(ratios), 'n': n, 'signNum': binom_tail(n, n - wins), 'ties': sum(r == 10**6 for r in ratios),
            'wilcoxonNum': sum(rank_counts(n)[:low + 1]), 'wins': wins}


def tail(quantile, conf, n, misses, worst):
    row = TAIL_N[(quantile, conf)]
    if n < row[0]:
        return 'TOO_FEW'
    if misses > 3 or n < row[misses]:
        return 'FAIL'
    return 'FAIL' if misses > 1 and worst * 2 > misses else 'PASS'


# ---- verdict -------------------------------------------------------------------------------------------

def not_known(reason):
    return {'known': False, 'reason': reason}


class Cell:
    def __init__(self, b, cell):
        self.b, self.c = b, cell
        d = b.design
        self.null, self.null_state = self.pairs(range(d['nullPairs']), 'N', 'M')
        self.main, self.state = self.pairs(range(d['nullPairs'], d['nullPairs'] + d['pairs']), 'A', 'B')
        self.null_stat, self.stat = self.statistics(self.null, self.null_state), self.statistics(self.main, self.state)
        self.mine = [s for s in b.samples if s['last'] and s['cell'] == cell['id']]
        self.tails()
        if self.stat:
            self.costs()

    def slot(self, pair, arm):
        mine = [s for s in self.b.samples
                if s['last'] and s['cell'] == self.c['id'] and s['pair'] == pair and s['arm'] == arm]
        if not mine:
            return None
        if not all(s['ok'] for s in mine):
            return 0
        return sorted(s['times'][self.c['metric']] for s in mine)[(len(mine) - 1) // 2]

    def pairs(self, ids, ref_arm, cand_arm):
        out, state = [], set()
        for p in ids:
            ref, cand = self.slot(p, ref_arm), self.slot(p, cand_arm)
            if ref is None or cand is None:
                state.add('missing')
                continue
            ratio = 0
            if ref == 0 or (ref_arm == 'N' and cand == 0):
                state.add('refFailed')
            elif cand:
                ratio = ref * 10**6 // cand
                need(ratio <= MAX_INT, 'a ratio does not fit in 53 bits')
            out.append((p, ref, cand, ratio))
        return out, state

    @staticmethod
    def statistics(pairs, state):
        return statistics([x[3] for x in pairs]) if 'refFailed' not in state and len(pairs) >= 5 else None

    def tails(self):
        y, m = self.b.policy['tail'], self.b.policy['tail']['metric']
        m = self.c['metric'] if m == 'cell' else m
        ref = max([s['times'][m] for s in self.mine if s['arm'] == 'A'] + [0])
        self.slo = y['sloNs'] if isinstance(y['sloNs'], int) and y['sloNs'] else ref * y['sloRefPpm'] // 10**6
        cand = [s for s in self.mine if s['arm'] == 'B']
        missed = [s['pair'] for s in cand if not (s['ok'] and s['times'][m] and s['times'][m] <= self.slo)]
        self.requests, self.misses = len(cand), len(missed)
        self.worst = max([missed.count(p) for p in set(missed)] + [0])
        self.tail = tail(y['quantilePpm'], y['confPpm'], self.requests, self.misses, self.worst)
        row, self.p95 = TAIL_N[(950000, 990000)], 0
        if len(cand) >= row[0]:
            k = max(i for i in range(4) if len(cand) >= row[i])
            times = sorted(s['times'][self.c['metric']] if s['ok'] else math.inf for s in cand)
            self.p95 = times[len(times) - 1 - k] if times[len(times) - 1 - k] != math.inf else 0

    def costs(self):
        n, ref = len(self.main), sorted(x[1] for x in self.main)
        cand = sorted(x[2] or math.inf for x in self.main)
        k = sign_losses(n, 50000)
        self.p50, self.p50_ucb = (0 if t == math.inf else t for t in (cand[(n - 1) // 2], cand[n - 1 - k]))
        self.ref_lcb = ref[k]

    def gates(self, holm):
        b, p = self.b, self.b.policy
        g = {}

        def put(name, good, why):
            g[name] = ('PASS', 'OK') if good else ('FAIL', why)

        missing = set().union(*[s['missing'] for s in b.samples if s['last']]) & set(p['guards']['required'])
        first = next((x for x in GUARDS if x in missing), None)
        put('environment', not missing and not b.unreadable, 'UNKNOWN_' + first if first else 'UNREADABLE_FIELD')
        voided = set().union(*[s['voided'] for s in b.samples])
        put('voids', b.voids * 10**6 <= p['retries']['maxVoidBlocksPpm'] * len(b.design['order']),
            'VOID_' + '+'.join(x for x in GUARDS + ['HARNESS'] if x in voided))
        s = self.null_stat
        if not s or 'missing' in self.null_state or len(self.null) < p['design']['nullRun']['pairs']:
            g['nullRun'] = ('FAIL', 'REFERENCE_FAILED' if 'refFailed' in self.null_state else 'TOO_FEW')
        else:
            one = s['loPpm'] <= 10**6 <= s['hiPpm']
            half = (s['hiPpm'] - s['loPpm'] + 1) // 2
            put('nullRun', one and half <= p['design']['nullRun']['maxHalfWidthPpm'], 'TOO_WIDE' if one else 'NOT_ONE')
        g['quality'] = self.quality()
        if 'refFailed' in self.state:
            g['complete'] = ('ERROR', 'REFERENCE_FAILED')
        else:
            put('complete', 'missing' not in self.state and len(self.main) >= p['design']['minPairs'], 'PAIRS_MISSING')
        lo, hi = (self.c['scope']['bucket'][k] for k in ('minTokens', 'maxTokens'))
        seen = {x['nPrompt'] for x in self.mine if x['arm'] == 'B'}
        put('coverage', {lo, hi, lo + (hi - lo) // 2} <= seen, 'BUCKET_EDGES')
        if not self.stat:
            g.update({k: ('NOT_RUN', 'NO_STATISTICS') for k in ('perf', 'sign', 'tail')})
            return g
        least = p['perf']['minLowerRatioPpm']
        put('perf', self.stat['loPpm'] >= least, 'TOO_SLOW' if self.stat['hiPpm'] < least else 'UNDECIDED')
        if p['perf']['signTest']:
            put('sign', holm, 'HOLM')
        else:
            g['sign'] = ('NOT_APPLICABLE', 'POLICY')
        if self.tail == 'TOO_FEW':
            g['tail'] = ('NOT_APPLICABLE' if 'tail' in p['mayNotApply'] else 'NOT_RUN', 'TOO_FEW')
        else:
            put('tail', self.tail == 'PASS', 'MISSES')
        return g

    def quality(self):
        q, p = self.b.quality, self.b.policy['quality']
        if not q or not q['prompts']:
            return 'NOT_RUN', 'NO_SUITE'

        def ppm(part, whole):
            return part * 10**6 // whole if whole else 0

        room = p['taskNonInferiorityPpm'] * q['tasks'] - (q['tasksLost'] - q['tasksWon']) * 10**6
        task = q['tasks'] and room >= 0 and room * room * 10**6 >= 2706025 * (q['tasksLost'] + q['tasksWon']) * 10**12
        why, band = None, p['lengthBandPpm']
        if text(p['corpusSha256']) and p['corpusSha256'] != self.b.corpus:
            why = 'OTHER_CORPUS'
        elif not band[0] <= ppm(q['lenCand'], q['lenRef']) <= band[1]:
            why = 'LENGTH_BAND'
        elif q['exactPrompts'] != q['prompts']:
            if ppm(q['tokensAgree'], q['tokens']) < p['minExactTokenPpm']:
                why = 'EXACT_TOKENS'
            elif not q['positions'] or not q['tasks']:
                why = 'NOT_MEASURED'
            elif ppm(q['top1'], q['positions']) < p['minTop1Ppm']:
                why = 'TOP1'
            elif q['kldSumNano'] // q['positions'] > p['maxKldMeanMicro'] * 1000:
                why = 'KLD_MEAN'
            elif q['kldP999Nano'] > p['maxKldP999Micro'] * 1000:
                why = 'KLD_P999'
            elif not task:
                why = 'TASK'
        return ('FAIL', why) if why else ('PASS', 'OK')

    def classify(self):
        g = {k: v[0] for k, v in self.g.items()}
        if g['complete'] == 'ERROR':
            return 'INVALID_EVIDENCE'
        if g['quality'] == 'FAIL':
            return 'FAIL_QUALITY'
        if g['environment'] != 'PASS' or g['voids'] != 'PASS':
            return 'NOT_ADMISSIBLE_ENV'
        if g['nullRun'] != 'PASS':
            return 'INCONCLUSIVE_ENV'
        if g['complete'] != 'PASS' or g['coverage'] != 'PASS':
            return 'INCONCLUSIVE_STATS'
        if g['tail'] == 'FAIL':
            return 'FAIL_TAIL'
        if self.g['perf'] == ('FAIL', 'TOO_SLOW'):
            return 'FAIL_PERF'
        may = self.b.policy['mayNotApply']
        fine = all(v == 'PASS' or (v == 'NOT_APPLICABLE' and k in may) for k, v in g.items())
        return 'QUALIFIED' if fine and set(g) == set(GATES) else 'INCONCLUSIVE_STATS'


def holm(cells, alpha):
    """p-values as (numerator, n) of num / 2^n; which hypotheses are rejected."""
    p = [(c.stat['signNum'], c.stat['n']) if c.stat else (1, 0) for c in cells]
    order = sorted(range(len(p)), key=lambda i: (p[i][0] << (64 - p[i][1]), i))
    out = [False] * len(p)
    for k, i in enumerate(order):
        if p[i][0] * (len(p) - k) * 10**6 > alpha << p[i][1]:
            break
        out[i] = True
    return out


def known(v, reason):
    return v if v else not_known(reason)


def analyse(b):
    cells = [Cell(b, c) for c in b.design['cells']]
    passed = holm(cells, b.policy['perf']['alphaPpm'])
    for c, h in zip(cells, passed):
        c.g = c.gates(h)
        c.cls = c.classify()
        c.route = c.cls == 'QUALIFIED' and c.c['metric'] != 'e2eNs' # complete compute is judged, and no route
    hardware = not b.design['synthetic']
    eligible = hardware and not b.policy['fixture'] and not b.dirty and any(c.route for c in cells)
    return cells, passed, max((c.cls for c in cells), key=GRAVE.index), hardware, eligible


def outputs(b):
    cells, passed, worst, hardware, eligible = analyse(b)
    head = {'bundleId': b.id, 'policySha256': b.policy_sha}

    def pair_list(pairs):
        return [{'candNs': known(c, 'FAILED'), 'pairId': p, 'ratioPpm': r, 'refNs': known(f, 'FAILED')}
                for p, f, c, r in pairs]

    def stat_or(s, state):
        return s or not_known('REFERENCE_FAILED' if 'refFailed' in state else 'TOO_FEW')

    def ratio(c):
        return ({'hi': c.stat['hiPpm'], 'hl': c.stat['hlPpm'], 'lo': c.stat['loPpm']} if c.stat
                else not_known('NO_STATISTICS'))

    docs = [
        {**head, 'schema': 'hetero/pairs/1',
         'cells': [{'id': c.c['id'], 'metric': c.c['metric'], 'nullPairs': pair_list(c.null), 'pairs': pair_list(c.main)}
                   for c in cells]},
        {**head, 'schema': 'hetero/quality/1', 'counts': b.quality or not_known('NOT_RUN')},
        {**head, 'schema': 'hetero/stats/1',
         'cells': [{'holm': h, 'id': c.c['id'], 'main': stat_or(c.stat, c.state),
                    'nullRun': stat_or(c.null_stat, c.null_state)} for c, h in zip(cells, passed)]},
        {**head, 'schema': 'hetero/tails/1',
         'cells': [{'id': c.c['id'], 'misses': c.misses, 'p95UcbNs': known(c.p95, 'TOO_FEW'), 'requests': c.requests,
                    'result': c.tail, 'sloNs': c.slo, 'worstPair': c.worst} for c in cells]},
        {**head, 'schema': 'hetero/costmap/1',
         'edges': [{k: e[k] for k in ('fixedNs', 'from', 'kind', 'nsPerToken', 'to')} for e in b.edges],
         'entries': [{'costNs': {'p50': known(c.p50, 'FAILED'), 'p50Ucb': known(c.p50_ucb, 'FAILED'),
                                 'p95Ucb': known(c.p95, 'TOO_FEW'), 'refP50Lcb': known(c.ref_lcb, 'FAILED')},
                      'memPeakBytes': b.peak, 'n': c.stat['n'], 'negative': False,
                      'quality': {'gate': c.g['quality'][0], 'sha256': b.quality_sha}, 'ratioPpm': ratio(c),
                      'refScopeSha256': c.c['refSha'], 'scopeSha256': c.c['sha'], 'warmupNs': b.warm}
                     for c in cells if c.cls == 'QUALIFIED'],
         'negatives': [{'ratioPpm': ratio(c), 'scopeSha256': c.c['sha'], 'verdict': c.cls}
                       for c in cells if c.cls != 'QUALIFIED']},
        {**head, 'schema': 'hetero/verdict/1', 'class': worst, 'hardwareEvidence': hardware,
         'productionEligible': eligible,
         'cells': [{'class': c.cls, 'gates': [{'gate': g, 'reason': c.g[g][1], 'result': c.g[g][0]} for g in GATES],
                    'id': c.c['id'], 'scopeSha256': c.c['sha']} for c in cells]}]
    return [canon(d) for d in docs], worst, hardware, eligible


def statement(b, outputs_sha, hardware, eligible):
    subject = [('modelPack', b.ids['modelPackSha256']), ('tokenizer', b.ids['tokenizerSha256']),
               ('template', b.ids['templateSha256']), ('binary', b.ids['binarySha256']),
               ('assets', b.ids['assetsSha256']), ('referenceScope', b.design['cells'][0]['refSha']),
               ('policy', b.policy_sha), ('bundle', b.id)]
    return canon({'_type': INTOTO, 'predicateType': 'urn:hetero:evidence:1',
                  'predicate': {'bundleId': b.id, 'hardwareEvidence': hardware, 'inputsManifestSha256': b.id,
                                'outputsManifestSha256': outputs_sha, 'productionEligible': eligible,
                                'schema': 'hetero/evidence/1'},
                  'subject': [{'digest': {'sha256': d}, 'name': n} for n, d in subject]})


# ---- comparisons with a foreign server ------------------------------------------------------------------

CMP_METRICS = ['ttftNs', 'tpotNs', 'e2eNs']
CMP_STATUS = STATUS[:6]


class Comparison(Documents):
    def __init__(self, tree, inputs):
        super().__init__(tree, inputs)
        self.read_design()
        need(self.read_states()[0] == self.design['machineClassSha256'], 'MACHINE: sealed for another machine')
        ids, _ = self.read_subjects()
        for k in ('modelPackSha256', 'tokenizerSha256', 'binarySha256', 'assetsSha256'):
            need(ids[k] == self.design[k], 'SUBJECT: another %s than the design' % k)
        self.ids = ids
        self.read_prompts()
        self.read_run()

    def read_design(self):
        d = self.design = self.doc('design.json', {
            'api': word('llama', 'openai', 'ollama'), 'arm': text, 'assetsSha256': digest, 'binarySha256': digest,
            'contexts': array(integer(1, 2**20)), 'costMapSha256': maybe(digest), 'cpus': integer(1, 10**6),
            'foreignSha256': digest, 'machineClassSha256': digest, 'maxNew': integer(2, 4096),
            'modelPackSha256': digest, 'nullRepetitions': integer(6, 40), 'order': word('ROTATED'),
            'policySha256': digest, 'prompts': word('RANDOM', 'WINDOWS'), 'promptsSha256': digest,
            'repetitions': integer(6, 40), 'spacingNs': integer(), 'startedUtc': utc, 'synthetic': boolean,
            'tokenizerSha256': digest}, 'hetero/comparedesign/1')
        c = d['contexts']
        need(1 <= len(c) <= 8 and all(a < b for a, b in zip(c, c[1:])), 'DESIGN: contexts')
        for key, path in (('policySha256', 'policy.json'), ('promptsSha256', 'prompts.jsonl'),
                          ('assetsSha256', 'subject/assets.json'), ('foreignSha256', 'server/foreign.json')):
            need(path in self.tree, 'MANIFEST: %s is missing' % path)
            need(sha(self.tree[path]) == d[key], 'DESIGN: %s is not what was sealed' % path)
        # The null run of every context, then the comparison of every context; who is first rotates.
        self.places = [(run, i, r) for run, n in (('null', d['nullRepetitions']), ('main', d['repetitions']))
                       for i in range(len(c)) for r in range(n)]
        self.slots = [(p, slot, arms[(i + r + slot) % 2]) for p, (run, i, r) in enumerate(self.places)
                      for arms in (('MN' if run == 'null' else 'FH'),) for slot in (1, 2)]

    def read_prompts(self):
        rows = [closed(p, {'nPrompt': integer(1, 2**20), 'pair': integer(0, 10000), 'promptTokSha256': digest,
                           'run': word('main', 'null')}, 'prompts.jsonl')
                for p in lines(self.tree['prompts.jsonl'], 'prompts.jsonl')]
        want = [(p, self.design['contexts'][i], run) for p, (run, i, _) in enumerate(self.places)]
        need([(x['pair'], x['nPrompt'], x['run']) for x in rows] == want, 'DESIGN: prompts do not fit the design')
        self.prompts = [x['promptTokSha256'] for x in rows]
        need(len(set(self.prompts)) == len(rows), 'DESIGN: a prompt is used by two pairs')

    def read_run(self):
        events, common = self.read_journal()
        need(len(events) >= 2, 'JOURNAL: too short')
        closed(events[-1], {**common, 'slots': integer()}, 'JOURNAL')
        need(events[-1]['slots'] == len(self.slots), 'JOURNAL: close counts wrong')
        data = self.tree['samples.jsonl']
        need(not data or data.endswith(b'\n'), 'SAMPLE: cut off')
        rows = data.split(b'\n')[:-1]
        need(len(rows) == len(self.slots), 'SAMPLE: number of lines')
        need(len(events) == 2 + 2 * len(self.slots), 'JOURNAL: events that the design does not have')
        self.samples = []
        for k, ((pair, slot, arm), row) in enumerate(zip(self.slots, rows)):
            for ev, name in ((events[1 + 2 * k], 'start'), (events[2 + 2 * k], 'sample')):
                need(ev['event'] == name, 'JOURNAL: need event %s' % name)
                closed(ev, {**common, 'arm': word('H', 'F', 'M', 'N'), 'pair': integer(), 'slot': integer(),
                            'sha256?': digest}, 'JOURNAL')
                need((ev['pair'], ev['slot'], ev['arm']) == (pair, slot, arm), 'JOURNAL: an event out of place')
            need(events[2 + 2 * k].get('sha256') == sha(row + b'\n'), 'SAMPLE: not the line that was closed')
            self.samples.append(self.read_line(row, pair, slot, arm))

    def read_line(self, raw, pair, slot, arm):
        d, u32 = self.design, integer(0, 2**32 - 1)
        s = closed(load(raw, 'sample'), {
            'arm': word('H', 'F', 'M', 'N'), 'chunksSha256': digest, 'e2eNs': maybe(integer()),
            'endState': word('DONE', 'LENGTH_MET', 'EOF_EARLY', 'RESET'), 'guards': obj, 'intendedNs': integer(),
            'nOut': u32, 'pair': integer(0, 10000), 'peakBytes': maybe(integer()), 'promptTokSha256': digest,
            'receiptSha256': maybe(digest), 'requestSha256': digest, 'responseSha256': digest,
            'saidOut': maybe(integer()), 'saidPrompt': maybe(integer()), 'sendLagNs': integer(),
            'slot': integer(1, 2), 'status': word(*CMP_STATUS), 'tpotNs': maybe(integer()),
            'ttftNs': maybe(integer()), 'why': text}, 'SAMPLE', 'hetero/comparesample/1')
        need((s['pair'], s['slot'], s['arm']) == (pair, slot, arm), 'SAMPLE: not the line that the design has there')
        need(s['promptTokSha256'] == self.prompts[pair], 'SAMPLE: not the sealed prompt')
        red, missing = read_guards(s['guards'], self.policy, d['cpus'])
        at = 'raw/p%03d/s%d-%s/' % (pair, slot, arm)
        names = [('request.bin', 'requestSha256'), ('response.bin', 'responseSha256'), ('chunks.jsonl', 'chunksSha256')]
        for name, key in names + ([('receipts.jsonl', 'receiptSha256')] if text(s['receiptSha256']) else []):
            need(at + name in self.tree and sha(self.tree[at + name]) == s[key], 'RAW: %s' % (at + name))
        ids, bearing, end = self.read_chunks(at)
        said = s['saidOut'] if isinstance(s['saidOut'], int) else -1
        n_out = len(ids) or (said if 0 < said <= d['maxNew'] else 0)
        need(end == s['endState'], 'SAMPLE: endState')
        need(n_out == s['nOut'], 'SAMPLE: nOut is not what came')
        n = d['contexts'][self.places[pair][1]]
        prompt = s['saidPrompt'] if isinstance(s['saidPrompt'], int) else -1
        times = dict.fromkeys(CMP_METRICS, 0)
        if s['status'] == 'ok':
            counted = arm == 'F' and d['api'] == 'ollama'
            need(end in ('DONE', 'LENGTH_MET') and bearing and bearing[0] > s['intendedNs'] + s['sendLagNs'] and
                 n_out == d['maxNew'] and said in (-1, n_out) and (prompt in (-1, n) or counted),
                 'SAMPLE: no good answer and called ok')
            times = {'ttftNs': bearing[0] - s['intendedNs'], 'e2eNs': bearing[-1] - s['intendedNs'],
                     'tpotNs': (bearing[-1] - bearing[0]) // (n_out - 1)}
        for k, v in times.items():
            need((s[k] if isinstance(s[k], int) else 0) == v, 'SAMPLE: %s is not what the chunks give' % k)
        return {'arm': arm, 'ok': s['status'] == 'ok', 'times': times, 'ids': ids, 'red': red, 'missing': missing,
                'counted': prompt == n}

    def read_chunks(self, at):
        rows = lines(self.tree[at + 'chunks.jsonl'], 'RAW: chunks')
        need(rows and isinstance(rows[-1], dict) and 'end' in rows[-1], 'RAW: chunks are cut off')
        end = closed(rows[-1], {'end': word('DONE', 'LENGTH_MET', 'EOF_EARLY', 'RESET')}, 'RAW')['end']
        table = {'bears': boolean, 'i': integer(), 'len': integer(), 'off': integer(), 'tNs': integer(),
                 'tok': array(integer(0, 2**31 - 1))}
        off, last, bearing, ids = 0, 0, [], []
        for i, c in enumerate(rows[:-1]):
            closed(c, table, 'RAW')
            need((c['i'], c['off']) == (i, off) and c['tNs'] >= last, 'RAW: a chunk is not where it should be')
            need(c['bears'] or not c['tok'], 'RAW: tokens in a chunk that bears none')
            last, off = c['tNs'], off + c['len']
            ids += c['tok']
            bearing += [c['tNs']] if c['bears'] else []
        need(off == len(self.tree[at + 'response.bin']), 'RAW: lengths do not sum to the response')
        return ids, bearing, end

    # ---- analysis ----

    def side(self, run, context, arm):
        """Samples of one side, in the order of repetitions."""
        return [x for (p, _, a), x in zip(self.slots, self.samples)
                if a == arm and self.places[p][:2] == (run, context)]

    def metric(self, i, m):
        def times(arm):
            t = sorted(x['times'][m] for x in self.side('main', i, arm) if x['times'][m])
            return ({'maxNs': t[-1], 'minNs': t[0], 'p50Ns': t[(len(t) - 1) // 2]} if t else not_known('ALL_FAILED'))

        def result(run, ref, ours, reason):
            pairs = [(a['times'][m], b['times'][m])
                     for a, b in zip(self.side(run, i, ref), self.side(run, i, ours))]
            if any(not a or (run == 'null' and not b) for a, b in pairs):
                return [], not_known(reason)
            ratios = [a * 10**6 // b if b else 0 for a, b in pairs]
            need(all(r <= MAX_INT for r in ratios), 'a ratio does not fit in 53 bits')
            return ratios, {k: v for k, v in statistics(ratios).items() if k not in ('signNum', 'wilcoxonNum')}
        _, null = result('null', 'N', 'M', 'FAILED')
        ratios, main = result('main', 'F', 'H', 'FOREIGN_FAILED')
        holds = ('hlPpm' in null and null['loPpm'] <= 10**6 <= null['hiPpm'] and
                 (null['hiPpm'] - null['loPpm'] + 1) // 2 <= self.policy['design']['nullRun']['maxHalfWidthPpm'])
        return {'foreign': times('F'), 'hetero': times('H'), 'metric': m, 'nullHolds': holds, 'nullRun': null,
                'ratiosPpm': ratios, 'result': main}

    def outputs(self):
        rows, required = [], set(self.policy['guards']['required'])
        for i, n in enumerate(self.design['contexts']):
            ours, theirs = self.side('main', i, 'H'), self.side('main', i, 'F')
            null = self.side('null', i, 'N') + self.side('null', i, 'M')
            both = [(a['ids'], b['ids']) for a, b in zip(ours, theirs) if a['ids'] and b['ids']]
            rows.append({'context': n, 'failedForeign': sum(not x['ok'] for x in theirs),
                         'failedHetero': sum(not x['ok'] for x in ours), 'failedNull': sum(not x['ok'] for x in null),
                         'metrics': [self.metric(i, m) for m in CMP_METRICS],
                         'outputsEqual': sum(a == b for a, b in both), 'outputsWithIds': len(both),
                         'pairs': len(ours)})
        red = set().union(*[x['red'] for x in self.samples])
        missing = set().union(*[x['missing'] for x in self.samples]) & required
        identical = self.design['api'] != 'ollama' and all(x['counted'] for x in self.samples if x['arm'] == 'F')
        holds = all(m['nullHolds'] for r in rows for m in r['metrics'])
        self.verdict = 'NOT_ADMISSIBLE_ENV' if red or missing else 'COMPARED' if holds else 'INCONCLUSIVE_ENV'
        return canon({'bundleId': self.id, 'class': 'TOKEN_IDENTICAL' if identical else 'TEXT_IDENTICAL',
                      'guardsRed': [g for g in GUARDS if g in red], 'guardsUnknown': [g for g in GUARDS if g in missing],
                      'policySha256': self.policy_sha, 'rows': rows, 'schema': 'hetero/comparison/1',
                      'verdict': self.verdict})

    def statement(self, outputs_sha):
        subject = [('modelPack', self.ids['modelPackSha256']), ('tokenizer', self.ids['tokenizerSha256']),
                   ('binary', self.ids['binarySha256']), ('assets', self.ids['assetsSha256']),
                   ('policy', self.policy_sha), ('bundle', self.id)]
        return canon({'_type': INTOTO, 'predicateType': 'urn:hetero:comparison:1',
                      'predicate': {'bundleId': self.id, 'hardwareEvidence': not self.design['synthetic'],
                                    'inputsManifestSha256': self.id, 'outputsManifestSha256': outputs_sha,
                                    'productionEligible': False, 'schema': 'hetero/comparedesign/1'},
                      'subject': [{'digest': {'sha256': d}, 'name': n} for n, d in subject]})


def design_schema(tree):
    try:
        return json.loads(tree.get('design.json', b'')).get('schema')
    except (ValueError, AttributeError):
        return None


def verify_comparison(tree, inputs, outs, trust, now):
    b = Comparison(tree, inputs)
    need([(f['path'], f['role']) for f in outs['files']] == [('analysis/compare.json', 'output')],
         'MANIFEST: not the known output')
    need(tree['analysis/compare.json'] == b.outputs(), 'RECOMPUTED: analysis/compare.json')
    need('statement.dsse.json' in tree, 'MANIFEST: statement.dsse.json is missing')
    body = open_statement(tree['statement.dsse.json'], trust, 'bench', 'urn:hetero:comparison:1', now)
    need(body == b.statement(sha(tree['outputs.manifest.json'])), 'RECOMPUTED: the statement is about another bundle')
    return {'bundleId': b.id, 'class': b.verdict, 'ok': True, 'productionEligible': False}


# ---- schedulers --------------------------------------------------------------------------------------------

KINDS = ['burst', 'poisson', 'trace']
SCENARIOS = 10
SCHED_GATES = ['environment', 'complete', 'quality', 'calibration', 'starvation', 'recovery', 'attainment', 'deadlines',
               'singleFlow', 'classes', 'conservation', 'monotone', 'gain']
SCHED_CLASS = [('quality', 'FAIL_QUALITY'), ('environment', 'NOT_ADMISSIBLE_ENV'), ('complete', 'INCONCLUSIVE_ENV'),
               ('starvation', 'FAIL_TAIL'), ('recovery', 'FAIL_TAIL'), ('calibration', 'FAIL_TAIL'),
               ('attainment', 'FAIL_PERF'), ('deadlines', 'FAIL_PERF'), ('singleFlow', 'FAIL_PERF'),
               ('classes', 'FAIL_PERF'), ('conservation', 'FAIL_PERF'), ('monotone', 'FAIL_PERF'), ('gain', 'FAIL_PERF')]
U32 = 2**32 - 1
SCHED_SCOPE = {
    'arrivals': array(word(*KINDS)), 'assetsSha256': digest, 'backend': text, 'binarySha256': digest,
    'ctxMax': integer(1, U32), 'instance': text, 'kvPositions': integer(),
    'lengthMix': is_closed({'maxNew': integer(2, 2**20), 'maxPrompt': integer(4, 2**20)}),
    'machineClassSha256': digest, 'modelPackSha256': digest, 'os': text, 'policy': word('overlap'),
    'precision': is_closed({'act': text, 'kv': text, 'weights': text}),
    'sloMs': is_closed({'tpot': integer(1, 10**7), 'ttft': integer(1, 10**7)}), 'slots': integer(1, 256),
    'threads': integer(1, 10**6), 'tokenizerSha256': digest, 'ubatch': integer(0, U32)}


def share(part, whole):
    return part * 10**6 // whole if whole else 10**6


class Schedule(Documents):
    def __init__(self, tree, inputs):
        super().__init__(tree, inputs)
        self.read_design()
        cls, self.unreadable = self.read_states()
        ids, self.dirty = self.read_subjects()
        need(cls == self.scope['machineClassSha256'], 'SUBJECT: the scope names another machine')
        for k in ('modelPackSha256', 'tokenizerSha256', 'binarySha256', 'assetsSha256'):
            need(ids[k] == self.scope[k], 'SUBJECT: the scope names another %s' % k)
        self.read_run()

    def read_design(self):
        d = self.design = self.doc('design.json', {
            'arrivalsSha256': digest, 'calibrationSha256': digest, 'cpus': integer(1, 10**6),
            'deltaPpm': integer(0, 10**6), 'maxWaitNs': integer(), 'order': word('ABBA'), 'policySha256': digest,
            'ratesPpm': array(integer(10000, 10**8)), 'repetitions': integer(1, 4), 'requests': integer(24, 1000),
            'saturationMicroHz': integer(1000, 10**12), 'scope': obj, 'seed': integer(), 'startedUtc': utc,
            'synthetic': boolean}, 'hetero/scheddesign/1')
        s = self.scope = closed(d['scope'], SCHED_SCOPE, 'scope', 'hetero/schedscope/1')
        need(s['arrivals'] == KINDS, 'DESIGN: need arrivals of all kinds')
        self.ttft, self.tpot = s['sloMs']['ttft'] * 10**6, s['sloMs']['tpot'] * 10**6
        r = d['ratesPpm']
        need(len(r) == 3 and r[0] < r[1] < r[2] and r[2] >= 1100000, 'DESIGN: need three rising rates')
        need(d['deltaPpm'] == 30000 or self.policy['fixture'], 'DESIGN: deltaPpm')
        need(d['maxWaitNs'] == 10 * self.ttft, 'DESIGN: maxWaitNs')
        for key, path in (('policySha256', 'policy.json'), ('calibrationSha256', 'calibration.jsonl'),
                          ('arrivalsSha256', 'arrivals.jsonl')):
            need(path in self.tree, 'MANIFEST: %s is missing' % path)
            need(sha(self.tree[path]) == d[key], 'DESIGN: %s is not what was sealed' % path)
        rows = [closed(x, {'endNs': integer(), 'i': integer(), 'nOut': integer(1, 2**20), 'nPrompt': integer(1, 2**20),
                           'startNs': integer()}, 'calibration')
                for x in lines(self.tree['calibration.jsonl'], 'calibration')]
        need([x['i'] for x in rows] == list(range(d['requests'])) and all(x['endNs'] > x['startNs'] for x in rows),
             'DESIGN: calibration.jsonl')
        took = max(x['endNs'] for x in rows) - min(x['startNs'] for x in rows)
        need(len(rows) * 10**15 // took == d['saturationMicroHz'], 'DESIGN: saturationMicroHz')
        self.read_arrivals()

    def read_arrivals(self):
        d, mix = self.design, self.scope['lengthMix']
        n = d['requests']
        rows = [closed(x, {'atNs': integer(), 'class': word('long', 'short'), 'i': integer(), 'maxNew': integer(2, 2**20),
                           'nPrompt': integer(1, 2**20), 'promptTokSha256': digest, 'rep': integer(),
                           'scenario': integer()}, 'arrivals')
                for x in lines(self.tree['arrivals.jsonl'], 'arrivals')]
        want = [(r, s, i) for r in range(d['repetitions']) for s in range(SCENARIOS) for i in range(n)]
        need([(x['rep'], x['scenario'], x['i']) for x in rows] == want, 'DESIGN: arrivals do not fit the design')
        need(all(x['nPrompt'] <= mix['maxPrompt'] and x['maxNew'] <= mix['maxNew'] and
                 (x['class'] == 'long') == (4 * x['nPrompt'] > mix['maxPrompt']) for x in rows),
             'DESIGN: an arrival is outside of the scope')
        need(len({x['promptTokSha256'] for x in rows}) == len(rows), 'DESIGN: a prompt is used twice')
        self.arrivals = [rows[k:k + n] for k in range(0, len(rows), n)]
        for p, x in enumerate(self.arrivals):
            at = [a['atNs'] for a in x]
            need(at[0] == 0 and all(a <= b for a, b in zip(at, at[1:])), 'DESIGN: arrivals run backwards')
            s = p % SCENARIOS
            if not s:
                continue
            gap = 10**15 // d['saturationMicroHz'] * 10**6 // d['ratesPpm'][(s - 1) % 3] * (n - 1)
            need(at[-1] <= 3600 * 10**9 and gap - gap // 100 <= at[-1] <= gap + gap // 100, 'DESIGN: not of their rate')
            g = [(b - a) // 100000 for a, b in zip(at, at[1:])]
            s1, s2, kind = sum(g), sum(v * v for v in g), KINDS[(s - 1) // 3]
            need(kind != 'burst' or (n - 1) * s2 >= 10 * s1 * s1, 'DESIGN: no bursts')
            need(kind != 'poisson' or (n - 1) * s2 <= 5 * s1 * s1, 'DESIGN: not Poisson')

    def read_run(self):
        events, common = self.read_journal()
        pairs, n = len(self.arrivals), self.design['requests']
        closed(events[-1], {**common, 'runs': integer()}, 'JOURNAL')
        need(events[-1]['runs'] == 2 * pairs and len(events) == 2 + 4 * pairs, 'JOURNAL: number of events')
        need('runs.jsonl' in self.tree, 'MANIFEST: runs.jsonl is missing')
        split = {}
        for name in ('samples.jsonl', 'runs.jsonl'):
            data = self.tree[name]
            need(not data or data.endswith(b'\n'), 'SAMPLE: cut off')
            split[name] = [x + b'\n' for x in data.split(b'\n')[:-1]]
        need(len(split['runs.jsonl']) == 2 * pairs and len(split['samples.jsonl']) == 2 * pairs * n,
             'SAMPLE: number of lines')
        self.runs = {}
        for k in range(2 * pairs):
            p, arm = k // 2, 'AB'[k & 1 ^ k // 2 & 1]
            start, ev = events[1 + 2 * k], events[2 + 2 * k]
            table = {**common, 'arm': word(arm), 'pair': integer(p, p)}
            need(start['event'] == 'start' and ev['event'] == 'run', 'JOURNAL: an event out of place')
            closed(start, table, 'JOURNAL')
            closed(ev, {**table, 'runSha256': digest, 'samplesSha256': digest}, 'JOURNAL')
            mine = split['samples.jsonl'][k * n:(k + 1) * n]
            need(sha(split['runs.jsonl'][k]) == ev['runSha256'], 'JOURNAL: runSha256')
            need(sha(b''.join(mine)) == ev['samplesSha256'], 'JOURNAL: samplesSha256')
            self.runs[p, arm] = self.read_one(p, arm, split['runs.jsonl'][k], mine)

    def read_one(self, p, arm, line, rows):
        place = {'arm': word(arm), 'pair': integer(p, p)}
        r = closed(load(line[:-1], 'run'), {
            **place, 'boundMisses': integer(), 'bounds': integer(0, U32), 'exitStatus': integer(-1000, 1000),
            'guards': obj, 'idleQueued': integer(), 'overlapped': integer(), 'serialised': integer()},
            'SAMPLE', 'hetero/schedrun/1')
        need(r['boundMisses'] <= r['bounds'] and (arm == 'B' or not r['overlapped']), 'SAMPLE: a run that cannot be')
        r['red'], r['missing'] = read_guards(r['guards'], self.policy, self.design['cpus'])
        name, at, out = 'raw/p%03d-%s.bin' % (p, arm), 0, []
        need(name in self.tree, 'RAW: %s is missing' % name)
        for i, row in enumerate(rows):
            s = closed(load(row[:-1], 'sample'), {
                **place, 'endNs': integer(), 'i': integer(i, i), 'intendedNs': integer(), 'rawLen': integer(),
                'responseSha256': digest, 'sendLagNs': integer(), 'status': word('ok', 'rejected', 'failed'),
                'tNs': array(integer()), 'tok': array(integer(0, 2**31 - 1))}, 'SAMPLE', 'hetero/schedsample/1')
            x = self.arrivals[p][i]
            need(s['intendedNs'] == x['atNs'] <= s['endNs'], 'SAMPLE: not sent when it was to be')
            t = s['tNs']
            need(len(t) == len(s['tok']) and all(a <= b for a, b in zip(t, t[1:])) and
                 all(s['intendedNs'] + s['sendLagNs'] < v <= s['endNs'] for v in t), 'SAMPLE: times that cannot be')
            need(s['status'] != 'ok' or len(t) == x['maxNew'], 'SAMPLE: short and called ok')
            need(s['status'] != 'rejected' or not t, 'SAMPLE: rejected and has tokens')
            piece = self.tree[name][at:at + s['rawLen']]
            need(len(piece) == s['rawLen'] and sha(piece) == s['responseSha256'], 'RAW: %s' % name)
            at += s['rawLen']
            out.append(s)
        need(at == len(self.tree[name]), 'RAW: bytes of nobody')
        r['samples'] = out
        return r

    # ---- analysis ----

    def is_good(self, s):
        t = s['tNs']
        return t[0] - s['intendedNs'] <= self.ttft and (t[-1] - t[0]) // (len(t) - 1) <= self.tpot

    def fluidity(self, s):
        due, met = s['intendedNs'] + self.ttft, 0
        for t in s['tNs']:
            met += t <= due
            due = (due if t <= due else t) + self.tpot
        return met * 10**6 // len(s['tNs'])

    def side(self, scenario, arm):
        runs = [(p, self.runs[p, arm]) for p in range(scenario, len(self.arrivals), SCENARIOS)]
        every = [(x, s) for p, r in runs for x, s in zip(self.arrivals[p], r['samples'])]
        ok = [(x, s) for x, s in every if s['status'] == 'ok']
        good = [x for x, s in ok if self.is_good(s)]

        def times(t):
            return {'maxNs': max(t), 'p50Ns': sorted(t)[(len(t) - 1) // 2]} if t else not_known('ALL_FAILED')
        ttft = [s['tNs'][0] - s['intendedNs'] for _, s in ok]
        out = {'attainedPpm': share(len(good), len(every)), 'boundMisses': sum(r['boundMisses'] for _, r in runs),
               'bounds': sum(r['bounds'] for _, r in runs), 'e2e': times([s['tNs'][-1] - s['intendedNs'] for _, s in ok]),
               'fluidityPpm': sum(self.fluidity(s) for _, s in ok) // len(every), 'good': len(good),
               'goodLong': sum(x['class'] == 'long' for x in good), 'goodShort': sum(x['class'] == 'short' for x in good),
               'idleQueued': sum(r['idleQueued'] for _, r in runs), 'offered': len(every),
               'offeredLong': sum(x['class'] == 'long' for x, _ in every), 'ok': len(ok),
               'overlapped': sum(r['overlapped'] for _, r in runs),
               'recoveryNs': max(max(s['endNs'] for s in r['samples']) - r['samples'][-1]['intendedNs'] for _, r in runs),
               'rejected': sum(s['status'] == 'rejected' for _, s in every),
               'sendLagNs': max(s['sendLagNs'] for _, s in every), 'serialised': sum(r['serialised'] for _, r in runs),
               'ttft': times(ttft)}
        more = {'wait': max(ttft, default=0), 'worst': max(r['boundMisses'] for _, r in runs)}
        return out, more

    def ratios(self):
        """Reference / candidate: of medians of loaded runs; of single requests alone: (ttft, tpot)."""
        def median(p, arm):
            r = self.runs[p, arm]['samples']
            t = sorted(s['tNs'][-1] - s['intendedNs'] for s in r if s['status'] == 'ok')
            return t[(len(r) - 1) // 2] if (len(r) - 1) // 2 < len(t) else 0
        loads = [(median(p, 'A'), median(p, 'B')) for p in range(len(self.arrivals)) if p % SCENARIOS]
        gain = [a * 10**6 // b if b else 0 for a, b in loads] if all(a for a, _ in loads) else None
        alone = [ab for p in range(0, len(self.arrivals), SCENARIOS)
                 for ab in zip(self.runs[p, 'A']['samples'], self.runs[p, 'B']['samples'])][:40]
        if any(a['status'] != 'ok' for a, _ in alone):
            return gain, None, None

        def ratio(f):
            return [f(a) * 10**6 // f(b) if b['status'] == 'ok' else 0 for a, b in alone]
        return (gain, ratio(lambda s: s['tNs'][0] - s['intendedNs']),
                ratio(lambda s: (s['tNs'][-1] - s['tNs'][0]) // (len(s['tNs']) - 1) + 1))

    def outputs(self):
        d, delta = self.design, self.design['deltaPpm']
        sides = [{arm: self.side(s, arm) for arm in 'AB'} for s in range(SCENARIOS)]
        A, B = ([x[arm][0] for x in sides] for arm in 'AB')
        more = [x['B'][1] for x in sides]
        both = [(a['tok'], b['tok']) for p in range(len(self.arrivals))
                for a, b in zip(self.runs[p, 'A']['samples'], self.runs[p, 'B']['samples'])
                if a['status'] == b['status'] == 'ok']
        red = set().union(*[r['red'] for r in self.runs.values()])
        missing = set().union(*[r['missing'] for r in self.runs.values()]) & set(self.policy['guards']['required'])
        unclean = any(r['exitStatus'] for r in self.runs.values())
        stuck = any(s['status'] == 'failed' for r in self.runs.values() for s in r['samples'])
        lag = max(x['sendLagNs'] for x in A + B)
        gain, ttft, tpot = self.ratios()
        st = {k: statistics(v) if v is not None else None for k, v in (('gain', gain), ('ttft', ttft), ('tpot', tpot))}
        pol, tl = self.policy['perf'], self.policy['tail']
        gates = {}

        def gate(name, good, why):
            gates[name] = ('PASS', 'OK') if good else ('FAIL', why)
        gate('environment', not red and not missing, 'RED' if red else 'UNKNOWN')
        gate('complete', not unclean and lag <= self.ttft // 4, 'SERVER_ENDED_BADLY' if unclean else 'SENT_TOO_LATE')
        equal = sum(a == b for a, b in both)
        gate('quality', both and equal == len(both), 'OTHER_TOKENS' if both else 'NOTHING_TO_COMPARE')
        gate('starvation', not stuck and max(m['wait'] for m in more) <= d['maxWaitNs'],
             'NOT_ANSWERED' if stuck else 'WAITED_TOO_LONG')
        gate('conservation', not any(x['idleQueued'] for x in B), 'IDLE_WITH_A_QUEUE')
        r = tail(tl['quantilePpm'], tl['confPpm'], sum(x['bounds'] for x in B), sum(x['boundMisses'] for x in B),
                 max(m['worst'] for m in more))
        gate('calibration', r == 'PASS', 'BOUNDS_MISSED' if r == 'FAIL' else 'TOO_FEW')
        if r == 'TOO_FEW':
            gates['calibration'] = ('NOT_RUN', 'TOO_FEW')
        if r != 'PASS' and 'tail' in self.policy['mayNotApply']:
            gates['calibration'] = ('NOT_APPLICABLE', gates['calibration'][1])
        load = range(1, SCENARIOS)
        gate('attainment', all(B[s]['attainedPpm'] + delta >= A[s]['attainedPpm'] for s in load), 'WORSE_THAN_FIFO')
        gate('deadlines', all(B[s]['fluidityPpm'] + delta >= A[s]['fluidityPpm'] for s in load), 'WORSE_THAN_FIFO')
        gate('recovery', all(B[s]['recoveryNs'] <= A[s]['recoveryNs'] + self.ttft + A[s]['recoveryNs'] // 10**6 * delta
                             for s in load), 'SLOWER_THAN_FIFO')

        def classes(x):
            return (share(x['goodShort'], x['offered'] - x['offeredLong']), share(x['goodLong'], x['offeredLong']))
        gate('classes', all(b + delta >= a for s in (1, 4, 7) for a, b in zip(classes(A[0]), classes(B[s]))),
             'WORSE_THAN_ALONE')
        gate('monotone', all(B[s - 1]['attainedPpm'] + delta >= B[s]['attainedPpm'] for s in load if (s - 1) % 3),
             'LESS_LOAD_IS_WORSE')
        flow = st['ttft'] and all(st[k]['loPpm'] >= 10**6 - delta for k in ('ttft', 'tpot'))
        gate('singleFlow', flow, 'SLOWER_ALONE' if st['ttft'] else 'REFERENCE_FAILED')
        g = st['gain']
        lower = g and g['loPpm'] >= pol['minLowerRatioPpm']
        sign = not pol['signTest'] or (g and g['signNum'] * 10**6 <= pol['alphaPpm'] << g['n'])
        gate('gain', lower and sign, 'REFERENCE_FAILED' if not g else 'SIGN' if lower else 'LOWER_BOUND')
        self.verdict = next((c for n, c in SCHED_CLASS if gates[n][0] == 'FAIL'),
                            'INCONCLUSIVE_STATS' if gates['calibration'][0] == 'NOT_RUN' else 'QUALIFIED')
        self.hardware = not d['synthetic']
        self.eligible = (self.verdict == 'QUALIFIED' and self.hardware and not self.policy['fixture'] and
                         not self.dirty and not self.unreadable)

        def shown(x):
            return {k: v for k, v in x.items() if k not in ('signNum', 'wilcoxonNum')} if x else not_known('REFERENCE_FAILED')
        return canon({
            'bundleId': self.id, 'class': self.verdict, 'gain': shown(g),
            'gates': [{'gate': n, 'result': gates[n][0], 'why': gates[n][1]} for n in SCHED_GATES],
            'guardsRed': [x for x in GUARDS if x in red], 'guardsUnknown': [x for x in GUARDS if x in missing],
            'outputsCompared': len(both), 'outputsEqual': equal, 'policySha256': self.policy_sha,
            'ratiosPpm': gain or [], 'saturationMicroHz': d['saturationMicroHz'],
            'scenarios': [{'A': A[s], 'B': B[s], 'kind': KINDS[(s - 1) // 3] if s else 'alone',
                           'ratePpm': d['ratesPpm'][(s - 1) % 3] if s else 0} for s in range(SCENARIOS)],
            'schema': 'hetero/sched/1', 'scopeSha256': sha(canon(self.scope)), 'singleFlowTpot': shown(st['tpot']),
            'singleFlowTtft': shown(st['ttft'])})

    def statement(self, outputs_sha):
        s = self.scope
        subject = [('modelPack', s['modelPackSha256']), ('tokenizer', s['tokenizerSha256']), ('binary', s['binarySha256']),
                   ('assets', s['assetsSha256']), ('scope', sha(canon(s))), ('policy', self.policy_sha), ('bundle', self.id)]
        return canon({'_type': INTOTO, 'predicateType': 'urn:hetero:scheduler:1',
                      'predicate': {'bundleId': self.id, 'hardwareEvidence': self.hardware,
                                    'inputsManifestSha256': self.id, 'outputsManifestSha256': outputs_sha,
                                    'productionEligible': self.eligible, 'schema': 'hetero/scheddesign/1'},
                      'subject': [{'digest': {'sha256': d}, 'name': n} for n, d in subject]})


def verify_schedule(tree, inputs, outs, trust, now):
    b = Schedule(tree, inputs)
    need([(f['path'], f['role']) for f in outs['files']] == [('analysis/sched.json', 'output')],
         'MANIFEST: not the known output')
    need(tree['analysis/sched.json'] == b.outputs(), 'RECOMPUTED: analysis/sched.json')
    need('statement.dsse.json' in tree, 'MANIFEST: statement.dsse.json is missing')
    body = open_statement(tree['statement.dsse.json'], trust, 'bench', 'urn:hetero:scheduler:1', now)
    need(body == b.statement(sha(tree['outputs.manifest.json'])), 'RECOMPUTED: the statement is about another bundle')
    return {'bundleId': b.id, 'class': b.verdict, 'hardwareEvidence': b.hardware, 'ok': True,
            'productionEligible': b.eligible}


class Amendment:
    """A canary that was run in another state of the machine (docs/bundle.md, "Amendments")."""

    def __init__(self, data, trust, now, b, costmap):
        body = open_statement(data, trust, 'bench', 'urn:hetero:amendment:1', now)
        st = load(body, 'amendment')
        ids, ns = array(integer(0, 2**31 - 1)), integer()
        pair = is_closed({'cand': ids, 'candNs': ns, 'ref': ids, 'refNs': ns})
        p = self.p = closed(st['predicate'], {
            'bundleId': digest, 'cells': array(is_closed({'pairs': array(pair), 'scopeSha256': digest})),
            'changed': array(text), 'costmapSha256': digest, 'expiresUtc': utc, 'guards': array(obj), 'machine': obj,
            'measuredUtc': utc, 'policySha256': digest, 'result': word('PASSED', 'FAILED', 'NOT_ADMISSIBLE_ENV'),
            'stateSha256': digest}, 'amendment', 'hetero/amendment/1')
        need(unix(p['measuredUtc']) <= now, 'AMENDMENT_NOT_YET_VALID')
        need(now < unix(p['expiresUtc']), 'AMENDMENT_EXPIRED')
        need(p['bundleId'] == b.id, 'AMENDMENT: for another bundle')
        self.b, self.policy = b, b.policy
        self.cells = [c for c in analyse(b)[0] if c.route]
        need(self.cells, 'NOT_QUALIFIED')
        need(self.policy['validity']['canaryOnStale'], 'NOT_AMENDABLE: the policy has no canary')
        need([c['scopeSha256'] for c in p['cells']] == [c.c['sha'] for c in self.cells], 'RECOMPUTED: cells')
        need(len(p['guards']) == 8 and all(len(c['pairs']) == 4 for c in p['cells']), 'AMENDMENT: pairs')
        need(all(len(x[k]) <= 65536 for c in p['cells'] for x in c['pairs'] for k in ('cand', 'ref')),
             'AMENDMENT: too many tokens for one prompt')
        changed = self.changed()
        life = min(unix(p['measuredUtc']) + 30 * 86400,
                   unix(b.design['startedUtc']) + self.policy['validity']['maxAgeDays'] * 86400)
        want = dict(p, changed=changed, expiresUtc=time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(life)),
                    costmapSha256=sha(costmap), policySha256=b.policy_sha, result=self.judge())
        need(st == {'_type': INTOTO, 'predicate': want, 'predicateType': 'urn:hetero:amendment:1',
                    'subject': [{'digest': {'sha256': b.id}, 'name': 'bundle'}]},
             'RECOMPUTED: the amendment is not what its canary and the bundle give')

    def changed(self):
        now = closed(self.p['machine'], {k: obj for k in ('live', 'record', 'reject', 'stale')}, 'MACHINE',
                     'hetero/machine/1')
        old = load(self.b.tree['machine/before.json'], 'machine')
        need(sha(canon(now['reject'])) == sha(canon(old['reject'])), 'OTHER_MACHINE')
        leaves = [x for part in ('reject', 'stale') for x in now[part].values()]
        need(not any(isinstance(x, dict) and 'unreadable' in x for x in leaves), 'UNREADABLE_FIELD')
        need(self.p['stateSha256'] == sha(canon(now['stale'])), 'RECOMPUTED: stateSha256')
        names = sorted(k for k in {**now['stale'], **old['stale']} if now['stale'].get(k) != old['stale'].get(k))
        need(names, 'NOTHING_CHANGED')
        device = any(c.c['scope']['backend'].split(';')[0] != 'cpu' for c in self.cells)
        need(not device or not {'gpuDriver', 'gpuRuntime'} & set(names), 'NOT_AMENDABLE: a driver under its kernels')
        return names

    def judge(self):
        """Guards first; then wins, the estimate, and the tokens."""
        y, pairs = self.policy, [x for c in self.p['cells'] for x in c['pairs']]
        states = [read_guards(g, y, self.b.design['cpus']) for g in self.p['guards']]
        if any(red or missing & set(y['guards']['required']) for red, missing in states) or \
                any(x['refNs'] == 0 for x in pairs):
            return 'NOT_ADMISSIBLE_ENV'
        count = sum(max(len(x['ref']), len(x['cand'])) for x in pairs)
        same = sum(a == c for x in pairs for a, c in zip(x['ref'], x['cand']))
        q = self.b.quality
        asked = 10**6 if q and q['prompts'] and q['exactPrompts'] == q['prompts'] else y['quality']['minExactTokenPpm']
        good, delta = count > 0 and same * 10**6 >= asked * count, 2 * y['design']['nullRun']['maxHalfWidthPpm']
        for cell, c in zip(self.cells, self.p['cells']):
            r = [x['refNs'] * 10**6 // x['candNs'] if x['candNs'] else 0 for x in c['pairs']]
            least = 10**6 + 1 if y['perf']['signTest'] else y['perf']['minLowerRatioPpm']
            walsh = sorted(r[i] * r[j] for i in range(4) for j in range(i + 1))
            hl = math.isqrt(math.isqrt(walsh[4]) * math.isqrt(walsh[5]))
            good &= all(x >= least for x in r) and cell.stat['loPpm'] - delta <= hl <= cell.stat['hiPpm'] + delta
        return 'PASSED' if good else 'FAILED'


def verify(top, trust, now, amendment=None):
    tree = read_tree(top)
    inputs = read_manifest(tree, 'inputs.manifest.json', 'hetero/inputs/1', {})
    outs = read_manifest(tree, 'outputs.manifest.json', 'hetero/outputs/1', {'inputsManifestSha256': digest})
    listed = {f['path'] for m in (inputs, outs) for f in m['files']}
    need(set(tree) <= listed | set(SEAL), 'MANIFEST: a file is in no manifest')
    need(outs['inputsManifestSha256'] == sha(tree['inputs.manifest.json']), 'MANIFEST: outputs are for other inputs')
    kind = {'hetero/comparedesign/1': verify_comparison, 'hetero/scheddesign/1': verify_schedule}.get(design_schema(tree))
    if kind:
        return kind(tree, inputs, outs, trust, now)
    b = Bundle(tree, inputs)
    docs, worst, hardware, eligible = outputs(b)
    need([f['path'] for f in outs['files']] == OUTPUTS, 'MANIFEST: not the known outputs')
    need(all(f['role'] == 'output' for f in outs['files']), 'MANIFEST: role')
    for name, data in zip(OUTPUTS, docs):
        need(tree[name] == data, 'RECOMPUTED: %s is not what the inputs and the policy give' % name)
    need('statement.dsse.json' in tree, 'MANIFEST: statement.dsse.json is missing')
    body = open_statement(tree['statement.dsse.json'], trust, 'bench', 'urn:hetero:evidence:1', now)
    need(body == statement(b, sha(tree['outputs.manifest.json']), hardware, eligible),
         'RECOMPUTED: the signed statement is not about this bundle')
    result = {'bundleId': b.id, 'class': worst, 'hardwareEvidence': hardware, 'ok': True,
              'productionEligible': eligible}
    if amendment is not None:
        result['canary'] = Amendment(amendment, trust, now, b, tree['costmap.json']).p['result']
    return result


def main(argv):
    parser = argparse.ArgumentParser(prog='verify_bundle.py', usage=__doc__.strip(), allow_abbrev=False)
    parser.add_argument('bundle')
    parser.add_argument('--trust', required=True)
    parser.add_argument('--now', type=int, default=int(time.time()), help='seconds since 1970')
    parser.add_argument('--amendment')
    o = parser.parse_args(argv[1:])
    try:
        with open(o.trust, 'rb') as f:
            trust = read_trust(f.read())
        paper = None
        if o.amendment is not None:
            with open(o.amendment, 'rb') as f:
                paper = f.read()
        result = verify(o.bundle, trust, o.now, paper)
    except (Refused, OSError) as e:
        result = {'ok': False, 'refused': str(e)}
    print(json.dumps(result, sort_keys=True))
    return 0 if result['ok'] else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv))
