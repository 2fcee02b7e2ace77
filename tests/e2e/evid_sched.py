"""Scheduler evidence from outside: synthetic bundles, sound and wrong in one way each, before both verifiers; then the
whole way on this machine with tale-9m and a fixture policy: a recorded trace, `hetero qualify scheduler`, promotion by
two keys, and a server that runs prompts beside answers with the scope and serialises them without it (R8)."""
import json
import os
import shutil
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from bundle import POLICY, V, Key, trust_root  # noqa: E402
from e2e import TALE, check, end, err, run, tmp  # noqa: E402
from schedule import MS, N, STRICT, TPOT, TTFT, Scheduling  # noqa: E402
from server import Server  # noqa: E402

HOLD = tmp()
TOP = HOLD.name
BENCH = Key(1)
TRUST = os.path.join(TOP, 'trust.json')
STORE = os.path.join(TOP, 'store')
ENV = {'XDG_STATE_HOME': os.path.join(TOP, 'state'), 'XDG_DATA_HOME': os.path.join(TOP, 'data')}
OPTS = ('-np', 4, '--kv-positions', 0)


def verdicts(top):
    """(exit status, document) of hetero verify, document of the Python verifier."""
    r = run('verify', top, '--trust', TRUST, '--json')
    try:
        with open(TRUST, 'rb') as f:
            mine = V.verify(top, V.read_trust(f.read()), int(time.time()))
    except V.Refused as e:
        mine = {'ok': False, 'why': str(e)}
    return r, json.loads(r.stdout) if r.returncode == 0 else {}, mine


def sealed(name, edit=None, policy=None):
    return Scheduling(edit, policy).seal(BENCH).write(os.path.join(TOP, name))


# ---- verdicts: each gate fails by itself ----

def on(where, **more):
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


VERDICTS = [
    ('sound', 'QUALIFIED', None, {}),
    ('other tokens', 'FAIL_QUALITY', 'quality', {'sample': on(only(4), tok=[1, 2, 3, 4])}),
    ('swapped', 'NOT_ADMISSIBLE_ENV', 'environment',
     {'run': on(only(2), guards=lambda d: {**d['guards'], 'swapIns': 3})}),
    ('guard unknown', 'NOT_ADMISSIBLE_ENV', 'environment',
     {'run': on(only(2), guards=lambda d: {**d['guards'], 'stealPpm': {'known': False, 'reason': 'NONE'}})}),
    ('server crashed', 'INCONCLUSIVE_ENV', 'complete', {'run': on(only(9), exitStatus=134)}),
    ('sent late', 'INCONCLUSIVE_ENV', 'complete',
     {'sample': on(only(5), sendLagNs=TTFT * MS // 4 + 1, **later(200))}),
    ('not answered', 'FAIL_TAIL', 'starvation', {'sample': on(lambda p, a, i: (p, a, i) == (6, 'B', 3), status='failed')}),
    ('starved', 'FAIL_TAIL', 'starvation',
     {'sample': on(lambda p, a, i: (p, a, i) == (3, 'B', 3), **later(10 * TTFT + 1))}),
    ('slow to recover', 'FAIL_TAIL', 'recovery',
     {'sample': on(lambda p, a, i: (p, a, i) == (3, 'B', 3), endNs=lambda d: d['endNs'] + 99000 * MS)}),
    ('bounds missed', 'FAIL_TAIL', 'calibration', {'run': on(each, boundMisses=lambda d: d['bounds'] // 4)}),
    ('bounds missed in one run', 'FAIL_TAIL', 'calibration', {'run': on(only(7), boundMisses=2)}),
    ('few bounds', 'INCONCLUSIVE_STATS', None, {'run': on(each, bounds=8)}),
    ('rejected', 'FAIL_PERF', 'attainment', {'sample': on(lambda p, a, i: p == 8 and a == 'B' and i > 20, status='rejected',
                                                          tNs=[], tok=[])}),
    ('tokens held back', 'FAIL_PERF', 'deadlines',
     {'sample': on(only(8), tNs=held, endNs=lambda d: d['intendedNs'] + (TTFT + 61) * MS)}),
    ('slower alone', 'FAIL_PERF', 'singleFlow', {'sample': on(only(0), **later(30))}),
    ('slower tokens alone', 'FAIL_PERF', 'singleFlow', {'sample': on(only(0), **later(3, True))}),
    ('long ones pay', 'FAIL_PERF', 'classes',
     {'sample': on(lambda p, a, i: p == 4 and a == 'B' and i % 3 == 0, **later(TTFT))}),
    ('idle', 'FAIL_PERF', 'conservation', {'run': on(only(3), idleQueued=1)}),
    ('less is worse', 'FAIL_PERF', 'monotone', {'sample': on(only(4), **later(TTFT))}),
    ('no gain', 'FAIL_PERF', 'gain', {'sample': on(lambda p, a, _: a == 'B' and p > 0, **later(24))}),
]


def synthetic():
    for name, cls, gate, edit in VERDICTS:
        r, c, p = verdicts(sealed('v-' + name, edit))
        check(c.get('class') == p.get('class') == cls, name, '%s %s %s' % (c.get('class'), p, err(r)[-200:]))
        failed = [g['gate'] for g in c.get('gates', []) if g['result'] == 'FAIL']
        check((gate in failed) if gate else not failed, name + ': gate', failed)
        check(c.get('hardwareEvidence') is False and c.get('productionEligible') is False, name + ': synthetic', c)
    r, c, p = verdicts(sealed('v-skip', {'run': on(each, bounds=8)}, dict(STRICT, mayNotApply=['tail'])))
    check(c.get('class') == p.get('class') == 'QUALIFIED', 'calibration may be left out where the policy says so', c)


# ---- refusals: what the rules of reading forbid ----

def row(k, **more):
    return lambda rows: rows[:k] + [{**rows[k], **more}] + rows[k + 1:]


def design(**more):
    return lambda d: {**d, **more}


def scope(**more):
    return lambda d: {**d, 'scope': {**d['scope'], **more}}


def at(p, arm, k, **more):
    return {'sample': on(lambda *where: where == (p, arm, k), **more)}


REFUSED = [
    ('rates below saturation', 'DESIGN', {'design.json': design(ratesPpm=[300000, 700000, 1000000])}),
    ('rates that fall', 'DESIGN', {'design.json': design(ratesPpm=[700000, 300000, 1200000])}),
    ('a wide margin', 'DESIGN', {'design.json': design(deltaPpm=40000)}),
    ('a long wait', 'DESIGN', {'design.json': design(maxWaitNs=1)}),
    ('another saturation', 'DESIGN', {'design.json': design(saturationMicroHz=10**7 + 1)}),
    ('few requests', 'design', {'design.json': design(requests=23)}),
    ('one kind missing', 'DESIGN', {'design.json': scope(arrivals=['burst', 'poisson'])}),
    ('another model', 'SUBJECT', {'design.json': scope(modelPackSha256='9' * 64)}),
    ('another machine', 'SUBJECT', {'design.json': scope(machineClassSha256='9' * 64)}),
    ('an open scope', 'scope', {'design.json': scope(more=1)}),
    ('a prompt twice', 'DESIGN', {'arrivals': row(5, promptTokSha256=V.sha(b'0 4'))}),
    ('a prompt too long', 'DESIGN', {'arrivals': row(5, nPrompt=41, **{'class': 'long'})}),
    ('a class that is not', 'DESIGN', {'arrivals': row(5, **{'class': 'long'})}),
    ('not of the rate', 'DESIGN', {'arrivals': row(5 * N - 1, atNs=10**11)}),
    ('no bursts', 'DESIGN', {'arrivals': lambda rows: [
        {**x, 'atNs': rows[N * 2 - 1]['atNs'] * x['i'] // (N - 1)} if x['scenario'] == 1 else x for x in rows]}),
    ('bursts called Poisson', 'DESIGN', {'arrivals': lambda rows: [
        {**x, 'atNs': rows[N * 5 - 1]['atNs'] * (x['i'] == N - 1)} if x['scenario'] == 4 else x for x in rows]}),
    ('time runs backwards', 'DESIGN', {'arrivals': row(5, atNs=10**12)}),
    ('calibration cut', 'DESIGN', {'calibration': lambda rows: rows[:-1]}),
    ('the reference overlaps', 'SAMPLE', {'run': on(lambda p, a: (p, a) == (3, 'A'), overlapped=1)}),
    ('more misses than bounds', 'SAMPLE', {'run': on(only(3), boundMisses=21)}),
    ('a token before its request', 'SAMPLE', at(4, 'B', 5, tNs=lambda d: [d['intendedNs']] + d['tNs'][1:])),
    ('a token after the end', 'SAMPLE', at(4, 'B', 5, endNs=lambda d: d['tNs'][-1] - 1)),
    ('tokens backwards', 'SAMPLE', at(4, 'B', 5, tNs=lambda d: [d['tNs'][1], d['tNs'][0]] + d['tNs'][2:])),
    ('short and ok', 'SAMPLE', at(4, 'B', 5, tNs=lambda d: d['tNs'][:3], tok=[1, 2, 3])),
    ('fewer times than tokens', 'SAMPLE', at(4, 'B', 5, tNs=lambda d: d['tNs'][:3])),
    ('rejected with tokens', 'SAMPLE', at(4, 'B', 5, status='rejected')),
    ('sent at another time', 'SAMPLE', at(4, 'B', 5, intendedNs=1)),
    ('another request', 'SAMPLE', at(4, 'B', 5, i=6)),
    ('raw of another', 'RAW', at(4, 'B', 5, responseSha256='8' * 64)),
    ('raw too short', 'RAW', at(4, 'B', N - 1, rawLen=5)),
    ('raw too long', 'RAW', {'raw/p004-B.bin': lambda b: b + b'x'}),
    ('an event left out', 'JOURNAL', {'event': lambda ev: [] if ev[0][0] == 'start' and ev[0][1]['pair'] == 3 else ev}),
    ('an event too many', 'JOURNAL', {'event': lambda ev: ev * 2 if ev[0][0] == 'start' and ev[0][1]['pair'] == 3 else ev}),
    ('arms swapped', 'JOURNAL', {'event': lambda ev: [(n, {**m, 'arm': 'A' if m['arm'] == 'B' else 'B'})
                                                      if m.get('pair') == 3 else (n, m) for n, m in ev]}),
    ('a run of other lines', 'JOURNAL', {'event': lambda ev: [(n, {**m, 'runSha256': '8' * 64}) if 'runSha256' in m
                                                              else (n, m) for n, m in ev]}),
    ('a line too many', 'SAMPLE', {'samples.jsonl': lambda b: b + b.split(b'\n')[0] + b'\n'}),
    ('a run too many', 'SAMPLE', {'runs.jsonl': lambda b: b + b.split(b'\n')[0] + b'\n'}),
]


def refused():
    analysis = Scheduling().seal(BENCH).files['analysis/sched.json']
    for name, group, edit in REFUSED:
        top = Scheduling(edit).seal(BENCH, analysis).write(os.path.join(TOP, 'r-' + name))
        r, _, p = verdicts(top)
        check(r.returncode != 0 and p['ok'] is False and 'RECOMPUTED' not in err(r), name, '%s / %s' % (err(r)[-200:], p))
        check(group in err(r), name + ': group', err(r)[-200:])
    top = sealed('damage')
    for path in ('design.json', 'arrivals.jsonl', 'calibration.jsonl', 'samples.jsonl', 'runs.jsonl', 'journal.jsonl',
                 'analysis/sched.json', 'statement.dsse.json', 'outputs.manifest.json', 'raw/p003-A.bin'):
        full = os.path.join(top, path)
        data = open(full, 'rb').read()
        for bad in (data[:len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1:], data[:-1]):
            open(full, 'wb').write(bad)
            r, _, p = verdicts(top)
            check(r.returncode != 0 and p['ok'] is False, 'damaged ' + path, '%d %s' % (r.returncode, p))
        open(full, 'wb').write(data)
    check(verdicts(top)[0].returncode == 0, 'whole again')


# ---- the whole way ----

def key(name):
    return os.path.join(TOP, name + '.pem')


def fixture():
    return dict(POLICY, id='fixture-sched', mayNotApply=['tail'],
                guards=dict(POLICY['guards'], maxForeignCpuPpm=1000000, maxPsiPpm=1000000, maxStealPpm=1000000,
                            required=['acOnline']),
                perf=dict(POLICY['perf'], minLowerRatioPpm=1, mode='NON_INFERIOR', signTest=False),
                plan={'minGainPpm': 1})


def make_store():
    for name in ('p1', 'p2', 'index'):
        check(run('keys', 'new', key(name), env=ENV).returncode == 0, 'key ' + name)
    BENCH.save(key('bench'))
    policy = os.path.join(TOP, 'policy.json')
    open(policy, 'wb').write(V.canon(fixture()))
    r = run('keys', 'init', '--store', STORE, '--policy', policy, '--grant', 'bench=' + key('bench'), '--grant',
            'promote=' + key('p1'), '--grant', 'promote=' + key('p2'), '--grant', 'index=' + key('index'), env=ENV)
    check(r.returncode == 0, 'store', err(r))
    return policy


def ids(k, n):
    return [300 + (k * 131 + i * 7) % 3000 for i in range(n)]


def mixed(s, n_prompt):
    """Prompts that come while two answers run; (shared, serialised) passes that this made."""
    out = []

    def one(k, n, new):
        out.append(s.ask('/v1/completions', {'prompt': ids(k, n), 'max_tokens': new, 'ignore_eos': True,
                                             'temperature': 0, 'cache_prompt': False})[0])
    ts = [threading.Thread(target=one, args=(k, 8, 240)) for k in range(2)]
    [t.start() for t in ts]
    for _ in range(500):
        before = s.metrics()
        if before['slots_busy'] == 2:
            break
    time.sleep(0.02)
    before = s.metrics()
    for k in range(6):
        time.sleep(0.03)
        ts.append(threading.Thread(target=one, args=(10 + k, n_prompt, 2)))
        ts[-1].start()
    [t.join() for t in ts]
    m = s.metrics()
    check(all(x == 200 for x in out), 'answers', out)
    return tuple(int(m[k] - before[k]) for k in ('overlapped_passes_total', 'serialised_passes_total'))


def scheduler(s):
    return s.ask('/props')[2]['scheduler']


def unmanaged(trace):
    """Without a promoted scope: serialised, with the reason; and a trace is recorded."""
    with Server('--store', STORE, '--record-trace', trace, *OPTS, ctx=256, env=ENV) as s:
        p = scheduler(s)
        check((p['prompts'], p['decision'], p['reason']) == ('serialised', 'reference', 'OVERLAP_UNMANAGED'), 'R8', p)
        seen = [mixed(s, 100) for _ in range(4)]
        check(all(x[0] == 0 for x in seen) and sum(x[1] for x in seen) > 0, 'no pass is shared', seen)
    rows = [json.loads(x) for x in open(trace)]
    check(len(rows) >= 32 and all(set(x) == {'atNs', 'maxNew', 'nPrompt'} for x in rows), 'a trace without text', rows[:1])


def qualify(policy, trace):
    """A fixture calls any speed good; a machine that stops for seconds in the middle of a run is noticed, and the run is
    made again."""
    for _ in range(3):
        r = run('qualify', 'scheduler', TALE, '-c', '256', '-t', '2', *OPTS, '--tpot-ms', '500', '--ttft-ms', '60000', '--trace',
                trace, '--policy', policy, '--key', key('bench'), '--store', STORE, '-o', os.path.join(TOP, 'evidence'),
                '--json', env=ENV, timeout=1200)
        d = json.loads(r.stdout) if r.stdout else {'verdict': {}}
        if d['verdict'].get('class') != 'INCONCLUSIVE_ENV':
            break
    v = d['verdict']
    check(r.returncode == 0 and v.get('class') == 'QUALIFIED', 'qualified', '%s %s' % (err(r)[-300:], v.get('gates')))
    check(v.get('outputsCompared', 0) > 0 and v['outputsEqual'] == v['outputsCompared'], 'the same tokens in both arms', v)
    check(sum(x['B']['overlapped'] for x in v.get('scenarios', [])) > 0, 'the candidate shared passes')
    check(all(x['A']['overlapped'] == 0 for x in v.get('scenarios', [])), 'the reference did not')
    check([x['kind'] for x in v.get('scenarios', [])] == ['alone'] + [k for k in V.KINDS for _ in range(3)], 'scenarios')
    return d.get('bundle', '')


def promote(bundle):
    r = run('promote', bundle, '--store', STORE, '--key', key('p1'), '--key', key('index'), env=ENV)
    check(r.returncode == 6 and 'PENDING_SIGNATURE' in err(r), 'one promoter is not enough', err(r))
    r = run('promote', bundle, '--store', STORE, '--key', key('p2'), '--key', key('index'), '--json', env=ENV)
    d = json.loads(r.stdout) if r.stdout else {}
    check(r.returncode == 0 and [(x['state'], x['check']) for x in d['schedulers']] == [('promoted', 'OK')] and
          d['routes'] == [], 'promoted', '%s %s' % (err(r), d))


def managed():
    """With the scope: shared, within its objective; not for longer prompts, other settings, or a user who says no."""
    with Server('--store', STORE, *OPTS, ctx=256, env=ENV) as s:
        p = scheduler(s)
        check((p['prompts'], p['decision'], p['reason'], p['tpot_ms']) == ('overlapped', 'promoted', 'OK', 500), 'promoted', p)
        check(p['max_prompt'] == 128 and len(p['bundleId']) == 64, 'the scope is told', p)
        seen = [mixed(s, 100) for _ in range(4)]
        check(sum(x[0] for x in seen) > 0 and all(x[1] == 0 for x in seen), 'passes are shared', seen)
        seen = [mixed(s, 140) for _ in range(4)]
        check(all(x[0] == 0 for x in seen) and sum(x[1] for x in seen) > 0, 'longer prompts than were measured are not', seen)
        check(s.metrics()['idle_queued_total'] == 0, 'never idle with a queue')
    for args, reason in ((('-np', 3), 'OTHER_SLOTS'), (('--tpot-ms', 400), 'OTHER_TPOT_MS'), (('-ub', 64), 'OTHER_UBATCH'),
                         (('-ctk', 'f32', '-ctv', 'f32'), 'OTHER_PRECISION'), (('--no-overlap',), 'OVERLAP_UNMANAGED')):
        with Server('--store', STORE, *OPTS, *args, ctx=256, env=ENV) as s:
            p = scheduler(s)
            check((p['prompts'], p['decision'], p['reason']) == ('serialised', 'reference', reason), str(args), p)
    with Server('--store', STORE, *OPTS, '--overlap', '--tpot-ms', 400, ctx=256, env=ENV) as s:
        check(scheduler(s)['decision'] == 'forced', 'a user may force it', scheduler(s))


def taken_back(bundle):
    """Damage to any paper, then a revocation: serialised again."""
    ident = os.path.basename(bundle)
    for name, reason in (('promotion.dsse.json', 'BAD_SIGNATURE'), ('statement.dsse.json', 'BAD_SIGNATURE')):
        full = os.path.join(STORE, 'bundles', ident, name)
        data = open(full, 'rb').read()
        cut = data.index(b'"sig":"') + 9
        open(full, 'wb').write(data[:cut] + (b'A' if data[cut:cut + 1] != b'A' else b'B') + data[cut + 1:])
        with Server('--store', STORE, *OPTS, ctx=256, env=ENV) as s:
            p = scheduler(s)
            check((p['prompts'], p['reason']) == ('serialised', reason), name, p)
        open(full, 'wb').write(data)
    r = run('revoke', ident, '--store', STORE, '--quarantine', '--key', key('index'), env=ENV)
    check(r.returncode == 0, 'quarantine', err(r))
    with Server('--store', STORE, *OPTS, ctx=256, env=ENV) as s:
        check(scheduler(s)['reason'] == 'QUARANTINED', 'quarantined', scheduler(s))
    r = run('revoke', ident, '--store', STORE, '--reason', 'test', '--key', key('index'), env=ENV)
    check(r.returncode == 0, 'revoke', err(r))
    with Server('--store', STORE, *OPTS, ctx=256, env=ENV) as s:
        p = scheduler(s)
        check((p['prompts'], p['reason']) == ('serialised', 'OVERLAP_UNMANAGED'), 'revocation is absence', p)


def negative():
    """What failed enters the index and is not promoted: a synthetic loser under the store's policy."""
    top = sealed('loser', {'sample': on(only(4), tok=[1, 2, 3, 4])}, fixture())
    r = run('promote', top, '--store', STORE, '--key', key('p1'), '--key', key('index'), env=ENV)
    check(r.returncode == 6 and 'FAIL_QUALITY' in err(r), 'not qualified', err(r))
    d = json.loads(run('routes', '--store', STORE, '--json', env=ENV).stdout)
    check([(x['state'], x['check']) for x in d['schedulers']] == [('negative', 'NEGATIVE')], 'a negative', d['schedulers'])
    top = sealed('retry', None, fixture())
    for name in ('p1', 'p2'):
        r = run('promote', top, '--store', STORE, '--key', key(name), '--key', key('index'), env=ENV)
    check(r.returncode == 6 and 'NEGATIVE' in err(r), 'its scope is closed', err(r))


def main():
    with open(TRUST, 'wb') as f:
        f.write(trust_root({'bench': [BENCH], 'promote': [Key(2), Key(3)], 'index': [Key(4)]}))
    synthetic()
    refused()
    policy, trace = make_store(), os.path.join(TOP, 'trace.jsonl')
    unmanaged(trace)
    bundle = qualify(policy, trace)
    if not bundle:
        return
    shutil.copy(os.path.join(STORE, 'trust.json'), TRUST)
    r, c, p = verdicts(bundle)
    check(r.returncode == 0 and c.get('class') == p.get('class') == 'QUALIFIED', 'both verifiers accept it', (err(r), p))
    promote(bundle)
    managed()
    taken_back(bundle)
    negative()
    r = run('qualify', 'scheduler', TALE, '--tpot-ms', '50')
    check(r.returncode == 2 and '--trace' in err(r), 'a trace is needed', err(r))
    r = run('qualify', 'scheduler', TALE, '--tpot-ms', '50', '--trace', os.devnull)
    check(r.returncode == 2 and '24 arrivals' in err(r), 'a trace with arrivals', err(r))


main()
end()
