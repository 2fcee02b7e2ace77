"""A store on this machine for experiments whose speed proves nothing: keys, trust root, a fixture policy that
admits any speed and any load, a corpus, and measuring until the null run finds no difference."""
import json
import os

from bundle import POLICY, V
from e2e import check, err, run, tmp

HOLD = tmp()
TOP = HOLD.name
ENV = {'XDG_STATE_HOME': os.path.join(TOP, 'state'), 'XDG_DATA_HOME': os.path.join(TOP, 'data'),
       'XDG_CACHE_HOME': os.path.join(TOP, 'cache')}
STORE = os.path.join(TOP, 'store')


def key(name):
    return os.path.join(TOP, name + '.pem')


def loose():
    """Any speed, any load, any tail: what is left are the formats, the digests and the chain."""
    return dict(POLICY, id='fixture-route',
                design=dict(POLICY['design'], nullRun={'maxHalfWidthPpm': 1000000, 'pairs': 8}),
                guards=dict(POLICY['guards'], maxForeignCpuPpm=1000000, maxPsiPpm=1000000, maxStealPpm=1000000,
                            required=['acOnline']),
                mayNotApply=['tail', 'coverage', 'quality', 'nullRun', 'sign'],
                perf=dict(POLICY['perf'], minLowerRatioPpm=1, mode='NON_INFERIOR', signTest=False),
                plan={'minGainPpm': 1},
                tail=dict(POLICY['tail'], sloRefPpm=100000000))


def corpus():
    path = os.path.join(TOP, 'corpus.jsonl')
    with open(path, 'w') as f:
        for i in range(8):
            f.write(json.dumps({'prompt': 'Tell me about animal number %d.' % i,
                                'response': 'It was a small animal that lived in wood %d and ate %d nuts.' % (i, i + 2)})
                    + '\n')
    return path


def make_store():
    for name in ('p1', 'p2', 'index'):
        check(run('keys', 'new', key(name), env=ENV).returncode == 0, 'key ' + name)
    bench = os.path.join(TOP, 'state', 'hetero', 'bench.pem')
    os.makedirs(os.path.dirname(bench))
    check(run('keys', 'new', bench, env=ENV).returncode == 0, 'bench key')
    policy = os.path.join(TOP, 'policy.json')
    open(policy, 'wb').write(V.canon(loose()))
    r = run('keys', 'init', '--store', STORE, '--policy', policy, '--grant', 'bench=' + bench, '--grant',
            'promote=' + key('p1'), '--grant', 'promote=' + key('p2'), '--grant', 'index=' + key('index'), env=ENV)
    check(r.returncode == 0, 'store', err(r))
    check(os.path.exists(os.path.join(TOP, 'state', 'hetero', 'receipt.pem')), 'a receipt key is made')
    return policy


def measured(*words):
    """(exit status, document). A null run finds a difference where there is none in one of twenty honest cells:
    such a run is kept and made again, as evidence.md 3.2 says."""
    for _ in range(5):
        r = run(*words, env=ENV, timeout=1200)
        d = json.loads(r.stdout) if r.stdout else {}
        if d.get('verdict', {}).get('class') != 'INCONCLUSIVE_ENV':
            break
    return r, d


def promote(bundle):
    r = run('promote', bundle, '--store', STORE, '--key', key('p1'), '--key', key('index'), env=ENV)
    check(r.returncode == 6 and 'PENDING_SIGNATURE' in err(r), 'one promoter is not enough', err(r))
    r = run('promote', bundle, '--store', STORE, '--key', key('p2'), '--key', key('index'), '--json', env=ENV)
    check(r.returncode == 0, 'promoted', err(r))
