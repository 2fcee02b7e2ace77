"""From a measurement to a route and back, from outside: two covers of tale-9m qualified under a fixture
policy on this very machine, promoted by two keys, taken by hetero run, receipts chained and signed,
verified by both verifiers, damaged and refused. The policy admits any speed and any load: it is marked
as a fixture and unusable where the store's policy is another one."""
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from bundle import Key, V, reseal
from e2e import ROOT, TALE, check, doc, end, err, run
from store import ENV, STORE, TOP, corpus, key, loose, make_store, measured, promote

TOOL = os.path.join(ROOT, 'tools', 'verify_bundle.py')
BUCKETS = 'p32,d32,c32' # complete compute is judged beside the phases, and no route
TEXT = 'Once upon a time there was a small fox.'


def qualify(policy, candidate, buckets=BUCKETS, *more):
    r, d = measured('qualify', buckets, TALE, '--candidate', candidate, '--policy', policy, '-f', corpus(), '--json', '-o',
                    os.path.join(TOP, 'evidence'), *more)
    check(r.returncode == 0, 'qualify ' + candidate, '%d: %s %s' % (r.returncode, err(r)[-300:], str(d)[-400:]))
    check(d.get('verdict', {}).get('class') == 'QUALIFIED', 'verdict of ' + candidate, d.get('verdict'))
    check(d.get('verdict', {}).get('productionEligible') is False, candidate + ': a fixture is no production')
    return d.get('bundle', '')


def both_verifiers(bundle, want, what):
    trust = os.path.join(STORE, 'trust.json')
    r = run('verify', bundle, '--trust', trust, '--json', env=ENV)
    p = subprocess.run([sys.executable, TOOL, bundle, '--trust', trust], stdout=subprocess.PIPE)
    check((r.returncode == 0) == want and (p.returncode == 0) == want, what,
          'C: %d %s; Python: %d %s' % (r.returncode, r.stdout[-200:], p.returncode, p.stdout[-200:]))


def generate(*more, new=8):
    d = doc('run', TALE, '-p', TEXT, '-n', new, '--temp', '0', '--ignore-eos', '--json', '--store', STORE, *more, env=ENV)
    return d or {'receipt': {'phases': [{}, {}]}, 'ids': None}


def decisions(d):
    return [(p.get('decision'), p.get('reason')) for p in d['receipt']['phases']]


def receipts():
    r = run('receipts', '--store', STORE, '--json', env=ENV)
    return r.returncode, json.loads(r.stdout) if r.stdout else {}


def routes(policy):
    plain = generate()
    check(decisions(plain) == [('reference', 'NO_EVIDENCE')] * 2, 'nothing is admitted yet', decisions(plain))
    bundles = [qualify(policy, 'cover=plain'), qualify(policy, 'cover=plain,ubatch=16')]
    for b in bundles:
        both_verifiers(b, True, 'both verifiers accept ' + os.path.basename(b)[:12])
        promote(b)
    rows = (doc('routes', '--store', STORE, '--json', env=ENV) or {}).get('routes', [])
    check(len(rows) == 4 and all(x['check'] == 'OK' for x in rows), 'four routes', rows)
    plan = doc('explain', TALE, '--route', '-p', '12', '-n', '8', '--store', STORE, '--json', env=ENV) or {}
    check([p['decision'] for p in plan.get('phases', [])] == ['promoted'] * 2, 'explain --route: taken', plan)
    why = sorted(c.get('rejected', c.get('taken')) for c in plan.get('considered', []))
    check(why == ['COSTLIER', 'COSTLIER', 'OK', 'OK'], 'explain --route: the others', why)
    routed = generate()
    check(decisions(routed) == [('promoted', 'OK')] * 2, 'the route is taken', decisions(routed))
    check(routed['ids'] == plain['ids'], 'another cover, the same tokens', (routed['ids'], plain['ids']))
    ids = {os.path.basename(b) for b in bundles}
    for p in routed['receipt']['phases']:
        check(p.get('bundleId') in ids and p['planned'] == p['executed'] == 'cpu', 'bundle and engine', p)
        check(len(p['execProofSha256']) == 64 and p['hostCopyBytes'] == 0, 'proof, no copies', p)
    long = generate(new=40)
    check(decisions(long)[1] == ('reference', 'BUCKET'), 'more new tokens than measured', decisions(long))
    return bundles


def log():
    code, d = receipts()
    check(code == 0 and d['faults'] == 0 and d['lines'] == d['lastSeq'] == d['signedSeq'] and d['lines'] >= 3, 'log', d)
    check(d['signaturesJudged'] is True, 'judged by the store', d)
    one = doc('receipts', str(d['lastSeq']), '--store', STORE, '--json', env=ENV) or {}
    check(one.get('seq') == d['lastSeq'] and len(one.get('requestSha256', '')) == 64, 'one receipt', one.get('seq'))
    check(TEXT not in json.dumps(one), 'a receipt holds no text')
    path = os.path.join(STORE, 'receipts', 'log.jsonl')
    whole = open(path, 'rb').read()
    lines = whole.splitlines(True)
    bad = {'CHAIN': whole.replace(b'"nOut":8', b'"nOut":9', 1), 'GAP': b''.join(lines[:1] + lines[2:]),
           'REPLAY': b''.join(lines[:2] + lines[1:]), 'TRUNCATED': b''.join(lines[:-1]), 'TORN': whole[:-1],
           'BAD_LINE': whole.replace(b'{', b'[', 1)}
    for fault, text in sorted(bad.items()):
        open(path, 'wb').write(text)
        code, d = receipts()
        check(code == 6 and fault in [f['fault'] for f in d['found']], 'receipts: ' + fault, d.get('found'))
    open(path, 'wb').write(b''.join(lines[:-1]))
    r = run('run', TALE, '-p', TEXT, '-n', '2', '--store', STORE, env=ENV)
    check(r.returncode == 6 and 'TRUNCATED' in err(r), 'nothing is added to a log that was cut', err(r))
    open(path, 'wb').write(whole)
    check(receipts()[0] == 0, 'whole again')


def damage(bundles):
    """Every kind of file of a real bundle, then the store's papers."""
    for name in ('samples.jsonl', 'journal.jsonl', 'verdict.json', 'costmap.json', 'design.json', 'statement.dsse.json',
                 'machine/before.json', 'subject/modelpack.json', 'analysis/stats.json', 'policy.json'):
        full = os.path.join(bundles[0], name)
        data = open(full, 'rb').read()
        open(full, 'wb').write(data[:len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1:])
        both_verifiers(bundles[0], False, 'both refuse an edited ' + name)
        open(full, 'wb').write(data)
    both_verifiers(bundles[0], True, 'whole again')
    for b in bundles:
        full = os.path.join(STORE, 'bundles', os.path.basename(b), 'costmap.json')
        data = open(full, 'rb').read()
        open(full, 'wb').write(data.replace(b'"p50Ucb":', b'"p50Ucb":1', 1))
    d = generate()
    check(decisions(d) == [('reference', 'BAD_DIGEST')] * 2, 'an edited cost map routes nothing', decisions(d))
    check({c['rejected'] for c in d['receipt']['considered']} == {'BAD_DIGEST'}, 'considered', d['receipt']['considered'])
    check([p['referenceQualified'] for p in d['receipt']['phases']] == ['PASSED'] * 2, 'a reference that was checked')


def other_policy(bundle):
    """The same bundle where the default policy is in force."""
    other = os.path.join(TOP, 'strict')
    shutil.copytree(STORE, other)
    os.remove(os.path.join(other, 'policy.json'))
    r = run('promote', bundle, '--store', other, '--key', key('p1'), '--key', key('p2'), '--key', key('index'), env=ENV)
    check(r.returncode == 6 and 'OTHER_POLICY' in err(r), 'a fixture is unusable in production', err(r))


def canary(policy, bundle):
    """A bundle measured under another microcode: its route waits for a canary, which is run here and passes."""
    old, store = os.path.join(TOP, 'old'), os.path.join(TOP, 'canary-store')
    bench = os.path.join(TOP, 'state', 'hetero', 'bench.pem')

    def microcode(doc):
        return dict(doc, stale=dict(doc['stale'], microcode={'v': '0xfixture'}))
    bundle_id = reseal(bundle, old, Key(bench), dict.fromkeys(['machine/before.json', 'machine/after.json'], microcode))
    both_verifiers(old, True, 'sealed again')
    r = run('keys', 'init', '--store', store, '--policy', policy, '--grant', 'bench=' + bench, '--grant',
            'promote=' + key('p1'), '--grant', 'promote=' + key('p2'), '--grant', 'index=' + key('index'), env=ENV)
    check(r.returncode == 0, 'a store for the canary', err(r))
    r = run('promote', old, '--store', store, '--key', key('p1'), '--key', key('p2'), '--key', key('index'), env=ENV)
    check(r.returncode == 0, 'promoted', err(r))
    words = ('run', TALE, '-p', TEXT, '-n', '8', '--temp', '0', '--ignore-eos', '--json', '--store', store)
    d = doc(*words, env=ENV)
    check(d and decisions(d) == [('reference', 'STALE')] * 2, 'stale', d and decisions(d))
    r = run('qualify', '--canary', old, TALE, '--store', store, '-o', os.path.join(TOP, 'canary'), '--json', env=ENV,
            timeout=600)
    got = json.loads(r.stdout) if r.stdout else {}
    check(r.returncode == 0 and got.get('result') == 'PASSED', 'the canary', '%s %s' % (err(r)[-300:], got))
    check(got.get('changed') == ['microcode'] and got.get('bundleId') == bundle_id, 'what changed', got)
    paper = got.get('amendment', '')
    trust = os.path.join(store, 'trust.json')
    r = run('verify', old, '--trust', trust, '--amendment', paper, '--json', env=ENV)
    p = subprocess.run([sys.executable, TOOL, old, '--trust', trust, '--amendment', paper], stdout=subprocess.PIPE)
    check(r.returncode == p.returncode == 0 and b'PASSED' in p.stdout, 'both verify the canary', (err(r), p.stdout))
    r = run('promote', old, '--amendment', paper, '--store', store, '--key', key('index'), env=ENV)
    check(r.returncode == 0, 'amended', err(r))
    d = doc(*words, env=ENV)
    check(d and decisions(d) == [('promoted', 'OK')] * 2, 'taken again', d and decisions(d))
    r = run('qualify', '--canary', bundle, TALE, '--store', store, '-o', os.path.join(TOP, 'canary'), env=ENV)
    check(r.returncode == 6 and 'NOTHING_CHANGED' in err(r), 'no canary without a change', err(r))


def edges():
    """One engine's prompt, another's decode: qualify measures the hand-over, whichever phase the candidate replaces,
    and the planner prices it or, where the bundle does not know it, leaves the route alone."""
    soft = loose() # other additions in the oracle's prompt: its tokens are judged by nobody here
    soft.update(id='fixture-edges', quality=dict(soft['quality'], minExactTokenPpm=1, minTop1Ppm=1, lengthBandPpm=[1, 10**7],
                                                 maxKldMeanMicro=10**9, maxKldP999Micro=10**9,
                                                 taskNonInferiorityPpm=10**6))
    text = os.path.join(TOP, 'text.txt')
    open(text, 'w').write(TEXT * 100)
    policy = os.path.join(TOP, 'edges.json')
    open(policy, 'wb').write(V.canon(soft))
    for phase, (candidate, bucket, pair) in enumerate((('prefill-engine=ref', 'p32', ('ref', 'cpu')),
                                                       ('decode-engine=ref', 'd32', ('cpu', 'ref')))):
        bundle = qualify(policy, candidate, bucket, '--text', text, '--chunks', '1', '-c', '128')
        path = os.path.join(bundle, 'edges.json')
        known = json.load(open(path))['edges'] if os.path.exists(path) else []
        if check([(x['from'], x['to'], x['kind']) for x in known] == [(*pair, 'kvHandoff')], 'one edge', known):
            edge(policy, bundle, known[0], phase)


def edge(policy, bundle, known, phase):
    """A bundle with its edge and the same one without."""
    cut, bench = bundle + '-cut', os.path.join(TOP, 'state', 'hetero', 'bench.pem')
    both_verifiers(bundle, True, 'a bundle with a measured edge')
    reseal(bundle, cut, Key(bench), {'edges.json': lambda d: dict(d, edges=[])})
    price = known['fixedNs'] + 12 * known['nsPerToken']
    for top, decision, reason in ((bundle, 'promoted', 'OK'), (cut, 'reference', 'NO_EDGE')):
        store = top + '-store'
        r = run('keys', 'init', '--store', store, '--policy', policy, '--grant', 'bench=' + bench, '--grant',
                'promote=' + key('p1'), '--grant', 'promote=' + key('p2'), '--grant', 'index=' + key('index'), env=ENV)
        r = run('promote', top, '--store', store, '--key', key('p1'), '--key', key('p2'), '--key', key('index'), env=ENV)
        check(r.returncode == 0, 'promoted with its edge', err(r))
        plan = doc('explain', TALE, '--route', '-p', '12', '-n', '8', '--store', store, '-c', '128', '--json', env=ENV) or {}
        p = (plan.get('phases') or [{}, {}])[phase]
        check((p.get('decision'), p.get('reason')) == (decision, reason), 'planned: ' + reason, plan)
        check(plan.get('handoffNs') == (price if decision == 'promoted' else 0), 'priced: ' + reason, plan)


def negative():
    """A gain that is not there: the cell fails, enters the index, and is not measured again."""
    strict = loose()
    strict.update(id='fixture-strict', perf=dict(strict['perf'], minLowerRatioPpm=50000000, mode='SUPERIOR'))
    policy, store = os.path.join(TOP, 'fifty.json'), os.path.join(TOP, 'fifty')
    open(policy, 'wb').write(V.canon(strict))
    bench = os.path.join(TOP, 'state', 'hetero', 'bench.pem')
    r = run('keys', 'init', '--store', store, '--policy', policy, '--grant', 'bench=' + bench, '--grant',
            'promote=' + key('p1'), '--grant', 'promote=' + key('p2'), '--grant', 'index=' + key('index'), env=ENV)
    check(r.returncode == 0, 'a second store', err(r))
    words = ('qualify', 'd32', TALE, '--candidate', 'cover=plain', '--policy', policy, '-f', corpus(), '--json',
             '--store', store, '-o', os.path.join(TOP, 'slow'))
    r, d = measured(*words)
    check(r.returncode == 6 and d.get('verdict', {}).get('class') == 'FAIL_PERF', 'FAIL_PERF', (err(r)[-200:], d))
    both_verifiers(d.get('bundle', ''), True, 'a negative bundle verifies')
    r = run('promote', d.get('bundle', ''), '--store', store, '--key', key('index'), env=ENV)
    check(r.returncode == 6 and 'NOT_QUALIFIED' in err(r), 'nothing to promote', err(r))
    rows = (doc('routes', '--store', store, '--json', env=ENV) or {}).get('routes', [])
    check([x['state'] for x in rows] == ['negative'], 'the negative stands in the index', rows)
    r = run(*words, env=ENV, timeout=1200)
    check(r.returncode == 6 and 'NEGATIVE' in err(r), 'the same scope is not nominated again', err(r)[-200:])
    d = doc('run', TALE, '-p', TEXT, '-n', '4', '--temp', '0', '--ignore-eos', '--json', '--store', store, env=ENV)
    check(d and d['receipt']['phases'][1]['reason'] == 'NEGATIVE', 'the planner sees it', d and decisions(d))


def no_admission():
    """The default policy on this host: refused whenever a required guard is not known or red, by its name."""
    findings = (doc('doctor', '--json', env=ENV) or {}).get('findings', [])
    blind = any('is not known here' in f['what'] for f in findings)
    out = os.path.join(TOP, 'default')
    r = run('qualify', 'd32', TALE, '--candidate', 'threads=1', '--json', '-o', out, env=ENV, timeout=1200)
    d = json.loads(r.stdout) if r.stdout else {}
    folder = d.get('bundle', '')
    if not check(os.path.isdir(folder), 'bundle under the default policy', err(r)[-300:]):
        return
    required = set(json.load(open(os.path.join(folder, 'policy.json')))['guards']['required'])
    unknown = set()
    for line in open(os.path.join(folder, 'samples.jsonl')):
        guards = json.loads(line)['guards']
        unknown |= {k for k in required if isinstance(guards[k], dict)}
    if blind:
        check(r.returncode == 6 and d['verdict']['class'] == 'NOT_ADMISSIBLE_ENV', 'NOT_ADMISSIBLE_ENV', d.get('verdict'))
        check(unknown, 'the guards that are missing: %s' % sorted(unknown))
        if not os.path.exists('/sys/devices/system/cpu/cpu0/cpufreq'):
            check('clocksSteady' in unknown, 'clocksSteady is one of them', sorted(unknown))
    else:
        check(d['verdict']['class'] != 'NOT_ADMISSIBLE_ENV' or unknown, 'class without blind guards', d.get('verdict'))


POLICY_PATH = make_store()
made = routes(POLICY_PATH)
log()
damage(made)
other_policy(made[0])
canary(POLICY_PATH, made[0])
edges()
negative()
no_admission()
end()
