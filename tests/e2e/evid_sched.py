"""Scheduler evidence from outside: synthetic bundles, sound and damaged, before both verifiers; then the
whole way on this machine with tale-9m and a fixture policy: a recorded trace, `hetero qualify scheduler`, promotion by
two keys, and a server that runs prompts beside answers with the scope and serialises them without it (R8)."""
import json
import os
import shutil
import sys
import threading
import time
import xml.dom.minidom

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from bundle import POLICY, V, Key, trust_root  # noqa: E402
from e2e import TALE, check, end, err, run, tmp  # noqa: E402
from schedule import Scheduling, on, only  # noqa: E402
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


def synthetic():
    """What hetero verify prints of such bundles; every verdict and refusal is judged in evid_switch.py."""
    for name, cls, failed, edit in (('sound', 'QUALIFIED', [], {}),
                                    ('idle', 'FAIL_PERF', ['conservation'], {'run': on(only(3), idleQueued=1)})):
        r, c, p = verdicts(sealed('v-' + name, edit))
        check(c.get('class') == p.get('class') == cls, name, '%s %s %s' % (c.get('class'), p, err(r)[-200:]))
        check([g['gate'] for g in c.get('gates', []) if g['result'] == 'FAIL'] == failed, name + ': gates', c.get('gates'))
        check(c.get('hardwareEvidence') is False and c.get('productionEligible') is False, name + ': synthetic', c)
        page(os.path.join(TOP, 'v-' + name), cls, failed)


def page(top, cls, failed):
    """hetero report of an experiment: one whole page, verdict and failed gates before everything else."""
    out = os.path.join(TOP, 'page.html')
    r = run('report', top, '-o', out)
    text = open(out, encoding='utf-8').read() if r.returncode == 0 else ''
    check(r.returncode == 0, 'report ' + cls, err(r)[-200:])
    box, rest = text.partition('</div>')[::2]
    check('<strong>%s</strong>' % cls in box and all('>%s: FAIL' % g in box for g in failed)
          and box.count(': FAIL') == len(failed), 'report: verdict and gates come first', box[-600:])
    check('This bundle is synthetic' in rest, 'report: a synthetic bundle is called so', rest[:300])
    scenarios = json.load(open(os.path.join(top, 'analysis', 'sched.json')))['scenarios']
    check(text.count('>serialised</td>') == text.count('>shared</td>') == len(scenarios), 'report: every scenario twice',
          text[-2000:])
    svg = text[text.find('<svg'):text.find('</svg>') + 6]
    check(bool(xml.dom.minidom.parseString(svg).getElementsByTagName('circle')), 'report: the drawing is well-formed', svg[:200])
    check(not any(x in text for x in ('<script', 'src=', 'href=', 'url(')), 'report: nothing is loaded', '')


def damaged():
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
        opts = OPTS[2:] if args[0] == '-np' else OPTS
        with Server('--store', STORE, *opts, *args, ctx=256, env=ENV) as s:
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
    damaged()
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
