"""Bundles, both verifiers, keys, promotion and revocation from outside. The bundles are made by Python
and judged by hetero verify and by tools/verify_bundle.py, which share no line: they must agree on each
one, whole or damaged."""
import json
import os
import random
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from bundle import Key, Maker, POLICY, V, trust_root
from e2e import ROOT, check, doc, end, err, run, tmp

TOOL = os.path.join(ROOT, 'tools', 'verify_bundle.py')
BENCH, P1, P2, INDEX = Key(1), Key(2), Key(3), Key(4)
TRUST = {'bench': [BENCH], 'promote': [P1, P2], 'index': [INDEX], 'simulate': [Key(5)], 'receipt': [Key(6)]}


def both(top, trust):
    """(exit, document) of the C verifier and of the Python one, whose functions are called here."""
    r = run('verify', top, '--trust', trust, '--json')
    mine = json.loads(r.stdout)
    with open(trust, 'rb') as f:
        root = V.read_trust(f.read())
    try:
        other = V.verify(top, root, 1795900000)
    except V.Refused as e:
        other = {'ok': False, 'refused': str(e)}
    except OSError as e:
        other = {'ok': False, 'refused': str(e)}
    return r.returncode, mine, other


def agree(top, trust, want, what):
    code, mine, other = both(top, trust)
    good = (code == 0) == other['ok'] == want
    check(good, what, 'C: %d %s; Python: %s' % (code, mine.get('error', mine), other))
    if good and want:
        for k in ('bundleId', 'class', 'hardwareEvidence', 'productionEligible'):
            check(mine[k] == other[k], '%s: %s' % (what, k), '%s, %s' % (mine[k], other[k]))
    return mine


def verdicts(t, trust):
    poor = dict(POLICY, guards=dict(POLICY['guards'], required=['gpuProcs']))
    strict = dict(POLICY, mayNotApply=[])
    kinds = [('QUALIFIED', {}), ('QUALIFIED', {'void': 5}), ('FAIL_PERF', {'gain': 0.9}),
             ('FAIL_QUALITY', {'quality': 'other'}), ('INCONCLUSIVE_STATS', {'quality': None}),
             ('INVALID_EVIDENCE', {'fail': (4, 2)}), ('INCONCLUSIVE_STATS', {'fail': (4, 1)}),
             ('NOT_ADMISSIBLE_ENV', {'policy': poor}), ('INCONCLUSIVE_STATS', {'policy': strict}),
             ('QUALIFIED', {'policy': strict, 'requests': 12}), ('INCONCLUSIVE_ENV', {'jitter': 0.1})]
    for i, (cls, knobs) in enumerate(kinds):
        top = os.path.join(t, 'v%d' % i)
        m = Maker(**knobs)
        m.write(top, BENCH)
        d = agree(top, trust, True, 'verdict %s of %s' % (cls, sorted(knobs)))
        check(d.get('class') == cls, 'class of %s' % sorted(knobs), d.get('class'))


def damage(t, trust):
    """Every file: a bit, cut, grown, gone; both verifiers refuse each, and accept the whole again."""
    top = os.path.join(t, 'd')
    Maker().write(top, BENCH)
    agree(top, trust, True, 'whole')
    rng = random.Random(3)
    names = sorted(V.read_tree(top))
    special = [n for n in names if not n.startswith('raw/')]
    picked = special + rng.sample([n for n in names if n.startswith('raw/')], 12)
    for name in picked:
        full = os.path.join(top, name)
        data = open(full, 'rb').read()
        bad = []
        if data:
            at = rng.randrange(len(data))
            bad.append(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:])
            bad.append(data[:-1])
        bad.append(data + b'\n')
        for k, x in enumerate(bad):
            open(full, 'wb').write(x)
            agree(top, trust, False, '%s damaged (%d)' % (name, k))
        os.remove(full)
        agree(top, trust, False, '%s missing' % name)
        open(full, 'wb').write(data)
    extra = os.path.join(top, 'raw', 'more')
    open(extra, 'w').close()
    agree(top, trust, False, 'a file more')
    os.remove(extra)
    os.symlink('design.json', extra)
    agree(top, trust, False, 'a link more')
    os.remove(extra)
    agree(top, trust, True, 'whole again')
    for k in (P1, INDEX, Key(5), Key(9)):
        other = os.path.join(t, 'k' + k.id[:8])
        Maker().write(other, k)
        agree(other, trust, False, 'signed by a key without the role')


def tool(t, trust):
    top = os.path.join(t, 'd')
    r = subprocess.run([sys.executable, TOOL, top, '--trust', trust, '--now', '1795900000'], stdout=subprocess.PIPE)
    check(r.returncode == 0 and json.loads(r.stdout)['class'] == 'QUALIFIED', 'the tool as a program', r.stdout)
    r = subprocess.run([sys.executable, TOOL, t, '--trust', trust], stdout=subprocess.PIPE)
    check(r.returncode == 1 and not json.loads(r.stdout)['ok'], 'an empty place is refused', r.stdout)
    r = subprocess.run([sys.executable, TOOL], stderr=subprocess.PIPE)
    check(r.returncode == 2 and b'BUNDLE --trust TRUST.json' in r.stderr, 'usage', r.stderr)
    for more in (['--now', 'abc'], ['--now'], ['--later', '1'], [top], ['--trus', trust]):
        r = subprocess.run([sys.executable, TOOL, top, '--trust', trust, *more], stderr=subprocess.PIPE)
        check(r.returncode == 2 and b'Traceback' not in r.stderr and more[0].encode() in r.stderr, 'usage: %s' % more, r.stderr)
    r = subprocess.run([sys.executable, TOOL, '--now=1795900000', '--trust=' + trust, top], stdout=subprocess.PIPE)
    check(r.returncode == 0, 'options in another order, with =', r.stdout)
    r = run('verify', trust, '--trust', trust)
    check(r.returncode == 2 and 'trust.json is no folder, and a bundle is one' in err(r), 'a file is no bundle', err(r))
    r = subprocess.run([sys.executable, '-I', '-S', TOOL, top, '--trust', trust, '--now', '1795900000'], cwd='/', stdout=subprocess.PIPE)
    check(r.returncode == 0, 'the tool from anywhere, with nothing installed', r.stdout)
    alone = os.path.join(t, 'verify_bundle.py')
    shutil.copy(TOOL, alone)
    r = subprocess.run([sys.executable, alone, top, '--trust', trust], cwd=t, stderr=subprocess.PIPE)
    check(r.returncode == 1 and b'bundle_format.py' in r.stderr, 'half of the tool says what it lacks', r.stderr)
    os.remove(alone)


def store(t):
    keys = {}
    for name, k in (('bench', BENCH), ('p1', P1), ('p2', P2), ('index', INDEX)):
        keys[name] = os.path.join(t, name + '.pem')
        k.save(keys[name])
    new = os.path.join(t, 'new.pem')
    made = doc('keys', 'new', new, '--json')
    check(made and len(made['publicKey']) == 64 and os.stat(new).st_mode & 0o777 == 0o600, 'a new key', made)
    check(run('keys', 'new', new).returncode == 3, 'a key is never overwritten')
    shown = doc('keys', 'show', keys['bench'], '--json')
    check(shown and shown['keyId'] == BENCH.id and shown['publicKey'] == BENCH.public.hex(), 'both know the key', shown)
    at, policy = os.path.join(t, 'store'), os.path.join(t, 'policy.json')
    open(policy, 'wb').write(V.canon(POLICY))
    grants = ['--grant', 'bench=' + keys['bench'], '--grant', 'promote=' + keys['p1'],
              '--grant', 'index=' + keys['index']]
    r = run('keys', 'init', '--store', at, '--policy', policy, *grants)
    check(r.returncode == 2 and 'promote' in err(r), 'one promoter is too few', err(r))
    r = run('keys', 'init', '--store', at, '--policy', policy, *grants, '--grant', 'promote=' + P2.public.hex())
    check(r.returncode == 0, 'init', err(r))
    top = os.path.join(t, 's')
    bundle_id = Maker().write(top, BENCH)
    routes = ['routes', '--store', at, '--json']
    check(doc(*routes)['routes'] == [], 'nothing is admitted at first')
    os.chmod(keys['p1'], 0o640)
    r = run('promote', top, '--store', at, '--key', keys['p1'], '--key', keys['index'])
    check(r.returncode == 6 and 'chmod 600 ' + keys['p1'] in err(r), 'a key that others can read is not used', err(r))
    os.chmod(keys['p1'], 0o600)
    r = run('promote', top, '--store', at, '--key', keys['p1'], '--key', keys['index'])
    check(r.returncode == 6 and 'PENDING_SIGNATURE' in err(r), 'one signature is not enough', err(r))
    check(doc(*routes)['routes'] == [], 'nothing is admitted by one')
    r = run('promote', top, '--store', at, '--key', keys['p2'], '--key', keys['index'], '--json')
    check(r.returncode == 0, 'the second key promotes', err(r))
    rows = doc(*routes)['routes']
    check(len(rows) == 2 and all(x['state'] == 'promoted' and x['check'] == 'OK' for x in rows), 'two routes', rows)
    check({x['bundleId'] for x in rows} == {bundle_id}, 'of this bundle')
    index = os.path.join(at, 'index.dsse.json')
    old = open(index, 'rb').read()
    r = run('revoke', bundle_id, '--store', at, '--key', keys['index'])
    check(r.returncode == 2 and '--reason' in err(r), 'why?', err(r))
    r = run('revoke', bundle_id, '--store', at, '--key', keys['index'], '--reason', 'a test')
    check(r.returncode == 0, 'revoked', err(r))
    d = doc(*routes)
    check(d['routes'] == [] and d['tombstones'][0]['reason'] == 'a test', 'a tombstone stands there', d)
    new_index = open(index, 'rb').read()
    open(index, 'wb').write(old)
    r = run(*routes)
    check(r.returncode == 6 and 'INDEX_REPLAYED' in err(r), 'the old index is refused', err(r))
    open(index, 'wb').write(new_index)
    r = run('promote', top, '--store', at, '--key', keys['p1'], '--key', keys['p2'], '--key', keys['index'])
    check(r.returncode == 6 and 'TOMBSTONED' in err(r), 'the dead stay dead', err(r))
    r = run('verify', top, '--store', at, '--json')
    check(r.returncode == 0, 'verify with the trust root of the store', err(r))


with tmp() as t:
    trust = os.path.join(t, 'trust.json')
    open(trust, 'wb').write(trust_root(TRUST))
    verdicts(t, trust)
    damage(t, trust)
    tool(t, trust)
    store(t)
end()
