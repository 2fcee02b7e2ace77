"""hetero sim: records are canonical, seeded, recomputable and marked; only a simulate key signs them."""
import base64
import hashlib
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import check, doc, end, err, run, tmp

KINDS = {'drafter': ('speedupPpm', {'acceptPpm': 100000}), 'residency': ('crossPpm', {'joins': 6}),
         'mla': ('activationRmseMicro', {'rank': 16}), 'dag': ('makespanNs', {'transferNs': 5000000})}
SHORT = {'drafter': {'draws': 50}, 'residency': {'draws': 10}, 'mla': {'draws': 3}, 'dag': {'draws': 20}}
# RFC 8032, 7.1, test 1.
SEED = bytes.fromhex('9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60')
PUB = bytes.fromhex('d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a')


def canonical(x):
    return json.dumps(x, sort_keys=True, separators=(',', ':'), ensure_ascii=False).encode()


def write(path, data):
    with open(path, 'wb') as f:
        f.write(data)
    return path


def records(t):
    for kind, (result, change) in KINDS.items():
        one, two = os.path.join(t, kind + '.json'), os.path.join(t, kind + '2.json')
        inputs = write(os.path.join(t, 'in'), canonical(SHORT[kind]))
        d = doc('sim', kind, '--in', inputs, '-o', one, '--json')
        raw = open(one, 'rb').read()
        check(d and canonical(json.loads(raw)) == raw and json.loads(raw) == d, kind + ': canonical, as printed')
        check(d['schema'] == 'hetero/sim/1' and d['kind'] == kind and d['seed'] == 1, kind + ': says what it is')
        check(d['hardwareEvidence'] is False and d['productionEligible'] is False, kind + ': marked')
        check(len(d['caveat']) > 60 and '\n' not in d['caveat'], kind + ': a caveat of one line')
        bare = {k: v for k, v in d.items() if k != 'id'}
        check(d['id'] == 'sim-' + hashlib.sha256(canonical(bare)).hexdigest(), kind + ': the id can be recomputed')
        s = d['results'][result]
        check(set(s) == {'min', 'p25', 'median', 'p75', 'p95', 'max', 'mean', 'n'} and s['n'] == SHORT[kind]['draws'],
              kind + ': distribution', s)
        check(s['min'] <= s['p25'] <= s['median'] <= s['p75'] <= s['p95'] <= s['max'] and s['min'] < s['max'],
              kind + ': in order', s)
        run('sim', kind, '--in', inputs, '-o', two)
        check(open(two, 'rb').read() == raw, kind + ': the same bytes again')
        other = doc('sim', kind, '--in', '-', '--json', data=json.dumps({**SHORT[kind], **change}).encode())
        check(other['results'][result]['median'] != s['median'], kind + ': an input changes the result')
        seeded = doc('sim', kind, '--in', inputs, '--seed', 9, '--json')
        check(seeded['seed'] == 9 and seeded['results'] != d['results'], kind + ': the seed counts')
        text = run('sim', kind, '--in', inputs).stdout.decode()
        check(d['caveat'] in text and result in text, kind + ': a person reads the caveat too')


def refusals(t):
    for args, data, status, text in (
            (['nothing'], b'', 2, 'drafter, residency, mla, dag'),
            ([], b'', 2, 'sim'),
            (['dag', '--in', '-'], b'{"layer":3}', 3, 'layer'),
            (['dag', '--in', '-'], b'{"layers":0}', 3, 'layers'),
            (['dag', '--in', '-'], b'{', 3, 'line 1'),
            (['dag', '--in', os.path.join(t, 'none')], b'', 3, 'none'),
            (['mla', '--in', '-'], b'{"rank":200}', 2, 'rank'),
            (['dag', '-o', os.path.join(t, 'no', 'where')], b'', 3, 'folder'),
            (['dag', '--sign', 'key'], b'', 2, '-o FILE'),
            (['dag', '--sign', 'key', '-o', os.path.join(t, 'x')], b'', 2, '--trust')):
        r = run('sim', *args, data=data)
        check(r.returncode == status and text in err(r), 'refused: %s %s' % (args, data), (r.returncode, err(r)))


def trust(roles):
    key = {'keyId': hashlib.sha256(PUB).hexdigest(), 'publicKey': PUB.hex(), 'roles': roles}
    return canonical({'expiresUtc': '2099-01-01T00:00:00Z', 'keys': [key], 'schema': 'hetero/trust/1',
                      'thresholds': {'bench': 1, 'index': 1, 'promote': 2, 'receipt': 1, 'simulate': 1},
                      'version': 1})


def signing(t):
    pem = base64.b64encode(bytes.fromhex('302e020100300506032b657004220420') + SEED).decode()
    key = write(os.path.join(t, 'key.pem'), ('-----BEGIN PRIVATE KEY-----\n%s\n-----END PRIVATE KEY-----\n' % pem).encode())
    os.chmod(key, 0o600)
    root, out = os.path.join(t, 'trust.json'), os.path.join(t, 'sim.dsse.json')
    sign = ['sim', 'dag', '--sign', key, '--trust', root, '-o', out]
    for roles in (['bench'], ['bench', 'simulate'], ['promote']):
        write(root, trust(roles))
        r = run(*sign)
        check(r.returncode == 6 and 'simulate and no other' in err(r), 'roles %s may not sign' % roles, err(r))
        check(not os.path.exists(out), 'nothing is written')
    write(root, trust(['simulate']))
    d = doc(*sign, '--json')
    env = json.load(open(out))
    s = json.loads(base64.b64decode(env['payload']))
    check(s['predicateType'] == 'urn:hetero:simulation:1' and s['predicate'] == d, 'the record is the predicate')
    check(env['signatures'][0]['keyid'] == hashlib.sha256(PUB).hexdigest(), 'the key that signed')
    check(s['subject'] == [{'digest': {'sha256': hashlib.sha256(canonical(d)).hexdigest()}, 'name': d['id']}],
          'the subject is the record')


with tmp() as folder:
    records(folder)
    refusals(folder)
    signing(folder)
end()
