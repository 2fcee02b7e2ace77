"""Amendments: the paper of a canary, whole and wrong in every way, before both verifiers and before a store. The
bundle is synthetic; a canary on the machine itself is a part of evid_route.py."""
import copy
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from bundle import Key, MACHINE, Maker, NONE, POLICY, V, envelope, trust_root
from e2e import check, end, err, run, tmp

HOLD = tmp()
TOP = HOLD.name
BENCH, P1, P2, INDEX, STRANGER = (Key(i) for i in range(1, 6))
NOW = int(time.time())
STATE = {'microcode': {'v': '0x2'}}
IDS = [5, 6, 7, 8]


def at(unix):
    return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(unix))


def guards(**red):
    return [{**dict.fromkeys(V.GUARDS, NONE), 'acOnline': True, 'stealPpm': 0, **red} for _ in range(8)]


def paper(bundle, stale=None, ratio=1.1, cand=IDS, pairs=4, key=BENCH, predicate=None, **more):
    """A signed amendment of a sealed Maker, as a holder of `key` writes it. predicate: an edit before signing."""
    cells = [{'pairs': [{'cand': cand, 'candNs': int(10**8 / ratio) if ratio else 0, 'ref': IDS, 'refNs': 10**8}
                        for _ in range(pairs)], 'scopeSha256': V.sha(V.canon(c['scope']))} for c in bundle.cells]
    stale = STATE if stale is None else stale
    started = V.unix('2026-11-29T12:00:00Z')
    measured = more.pop('measured', NOW)
    p = {'bundleId': V.sha(bundle.files['inputs.manifest.json']), 'cells': cells,
         'changed': sorted(k for k in {**stale, **MACHINE['stale']} if stale.get(k) != MACHINE['stale'].get(k)),
         'costmapSha256': V.sha(bundle.files['costmap.json']),
         'expiresUtc': at(min(measured + 30 * 86400, started + 90 * 86400)), 'guards': guards(),
         'machine': dict(MACHINE, stale=stale), 'measuredUtc': at(measured),
         'policySha256': V.sha(bundle.files['policy.json']), 'result': 'PASSED', 'schema': 'hetero/amendment/1',
         'stateSha256': V.sha(V.canon(stale)), **more}
    if predicate:
        p = copy.deepcopy(p)
        predicate(p)
    body = V.canon({'_type': V.INTOTO, 'predicate': p, 'predicateType': 'urn:hetero:amendment:1',
                    'subject': [{'digest': {'sha256': p['bundleId']}, 'name': 'bundle'}]})
    return envelope(body, [key])


class World:
    """A bundle on disk and a store in which it is promoted."""

    def __init__(self, name, policy=POLICY, **knobs):
        self.bundle = Maker(cells=('d512',), policy=policy, **knobs)
        self.top, self.store = os.path.join(TOP, name), os.path.join(TOP, name + '-store')
        self.bundle.write(self.top, BENCH)
        self.file, policy_file = self.top + '.dsse.json', self.top + '-policy.json'
        open(policy_file, 'wb').write(V.canon(policy))
        for key, role in ((BENCH, 'bench'), (P1, 'p1'), (P2, 'p2'), (INDEX, 'index'), (STRANGER, 'stranger')):
            key.save(os.path.join(TOP, role + '.pem'))
        grants = [x for role, k in (('bench', BENCH), ('promote', P1), ('promote', P2), ('index', INDEX))
                  for x in ('--grant', '%s=%s' % (role, k.public.hex()))]
        r = run('keys', 'init', '--store', self.store, '--policy', policy_file, *grants, env={'XDG_STATE_HOME': TOP})
        check(r.returncode == 0, name + ': store', err(r))
        r = run('promote', self.top, '--store', self.store, *self.keys('p1', 'p2', 'index'))
        check(r.returncode == 0, name + ': promoted', err(r))

    @staticmethod
    def keys(*names):
        return [x for n in names for x in ('--key', os.path.join(TOP, n + '.pem'))]

    def verdict(self, data):
        """What both verifiers say: (C's exit status, message or canary, Python's)."""
        open(self.file, 'wb').write(data)
        trust = os.path.join(self.store, 'trust.json')
        r = run('verify', self.top, '--trust', trust, '--amendment', self.file, '--json')
        try:
            mine = V.verify(self.top, V.read_trust(open(trust, 'rb').read()), NOW, data)['canary']
        except V.Refused as e:
            mine = str(e)
        return r.returncode, json.loads(r.stdout)['canary'] if r.returncode == 0 else err(r), mine

    def refused(self, what, says, data, mine=None):
        code, c, python = self.verdict(data)
        check(code != 0 and says in c, '%s: refused' % what, (code, c))
        check((mine or says) in python, '%s: refused by Python' % what, python)
        r = self.amend()
        check(r.returncode != 0 and says in err(r), '%s: no store takes it' % what, err(r))

    def amend(self, *keys):
        return run('promote', self.top, '--amendment', self.file, '--store', self.store, '--json',
                   *self.keys(*(keys or ('index',))))

    def routes(self):
        r = run('routes', '--store', self.store, '--json')
        return json.loads(r.stdout) if r.returncode == 0 else {}


def damaged(w):
    def set_(key, value):
        return lambda p: p.update({key: value})
    w.refused('a key without the role', 'BAD_SIGNATURE', paper(w.bundle, key=INDEX))
    w.refused('a key of nobody', 'BAD_SIGNATURE', paper(w.bundle, key=STRANGER))
    w.refused('expired', 'AMENDMENT_EXPIRED', paper(w.bundle, measured=NOW - 31 * 86400))
    w.refused('a longer life', 'RECOMPUTED', paper(w.bundle, expiresUtc='2089-01-01T00:00:00Z'))
    w.refused('of another bundle', 'it is for bundle', paper(w.bundle, bundleId='a' * 64), 'for another bundle')
    w.refused('another cost map', 'RECOMPUTED', paper(w.bundle, costmapSha256='a' * 64))
    w.refused('another policy', 'RECOMPUTED', paper(w.bundle, policySha256='a' * 64))
    w.refused('another state than measured', 'RECOMPUTED', paper(w.bundle, stateSha256='a' * 64))
    w.refused('a change that is not told', 'RECOMPUTED', paper(w.bundle, changed=['bios']))
    w.refused('passed, it says', 'RECOMPUTED', paper(w.bundle, ratio=0.9))
    w.refused('three pairs', 'need 4', paper(w.bundle, pairs=3), 'AMENDMENT')
    w.refused('seven slots', 'need 1 and 8', paper(w.bundle, guards=guards()[1:]), 'AMENDMENT')
    w.refused('no cells', 'need 1 and 8', paper(w.bundle, predicate=lambda p: p['cells'].clear()), 'RECOMPUTED')
    w.refused('of another scope', 'RECOMPUTED',
              paper(w.bundle, predicate=lambda p: p['cells'][0].update(scopeSha256='a' * 64)))
    w.refused('nothing changed', 'NOTHING_CHANGED', paper(w.bundle, stale=MACHINE['stale']))
    w.refused('another machine', 'OTHER_MACHINE', paper(
        w.bundle, machine={**MACHINE, 'reject': {'arch': {'v': 'other'}}, 'stale': STATE}))
    w.refused('an unreadable field', 'UNREADABLE_FIELD', paper(w.bundle, stale={'microcode': {'unreadable': 'EACCES'}}))
    w.refused('a member too many', 'amendment', paper(w.bundle, predicate=set_('more', 1)))
    w.refused('a guard too few', 'guard', paper(w.bundle, predicate=lambda p: p['guards'][0].pop('swapIns')))
    whole = paper(w.bundle)
    w.refused('one bit', '', whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    w.refused('cut off', '', whole[:-9])
    check([t['amendments'] for t in w.routes()['routes']] == [0], 'nothing came in', w.routes())


def passes(w):
    code, c, mine = w.verdict(paper(w.bundle))
    check((code, c, mine) == (0, 'PASSED', 'PASSED'), 'a canary that passed', (code, c, mine))
    r = w.amend('p1')
    check(r.returncode == 6 and 'role index' in err(r), 'a promoter alone cannot amend', err(r))
    r = w.amend()
    check(r.returncode == 0, 'in force', err(r))
    check([(t['state'], t['amendments'], t['check']) for t in w.routes()['routes']] == [('promoted', 1, 'OK')],
          'listed', w.routes())
    folder = os.path.join(w.store, 'bundles', V.sha(w.bundle.files['inputs.manifest.json']), 'amendments')
    check(len(os.listdir(folder)) == 1, 'its paper is kept')
    # The same state again: a newer paper beside the older one.
    w.verdict(paper(w.bundle, measured=NOW - 60))
    check(w.amend().returncode == 0 and w.routes()['routes'][0]['amendments'] == 2, 'a second one', w.routes())


def fails(name, want, **knobs):
    """Canaries that are not passed: what becomes of the route."""
    w = World(name)
    data = paper(w.bundle, result=want, **knobs)
    check(w.verdict(data) == (0, want, want), name + ': ' + want, w.verdict(data))
    r = w.amend()
    d = w.routes()
    if want == 'FAILED':
        check(r.returncode == 6 and 'CANARY_FAILED' in err(r), name + ': told', err(r))
        check(d['routes'] == [] and d['tombstones'][0]['reason'] == 'CANARY_FAILED', name + ': revoked', d)
    else:
        check(r.returncode == 6 and want in err(r), name + ': told', err(r))
        check([(t['state'], t['amendments']) for t in d['routes']] == [('promoted', 0)], name + ': untouched', d)


def not_promoted():
    w = World('aside')
    r = run('revoke', V.sha(w.bundle.files['inputs.manifest.json']), '--quarantine', '--store', w.store, *w.keys('index'))
    check(r.returncode == 0, 'quarantined', err(r))
    w.verdict(paper(w.bundle))
    r = w.amend()
    check(r.returncode == 6 and 'NOT_PROMOTED' in err(r), 'an amendment does not bring it back', err(r))


def devices():
    """A driver is part of what a device's kernels were compiled by."""
    def gpu(design):
        d = copy.deepcopy(design)
        for c in d['cells']:
            c['scope']['backend'] = 'cuda'
        return d
    w = World('device', edit={'design.json': gpu})
    w.bundle.cells[0]['scope']['backend'] = 'cuda'
    state = {'gpuDriver': {'v': '600'}, 'microcode': {'v': '0x1'}}
    w.refused('a driver under a device', 'NOT_AMENDABLE', paper(w.bundle, stale=state))
    check(w.verdict(paper(w.bundle))[1] == 'PASSED', 'microcode under a device', w.verdict(paper(w.bundle)))
    w = World('strict', policy=dict(POLICY, validity={'canaryOnStale': False, 'maxAgeDays': 90}))
    w.refused('a policy without canaries', 'NOT_AMENDABLE', paper(w.bundle))


world = World('good')
damaged(world)
passes(world)
fails('slower', 'FAILED', ratio=0.95)
fails('faster than its bundle', 'FAILED', ratio=1.5)
fails('failed', 'FAILED', ratio=0)
fails('other tokens', 'FAILED', cand=[5, 6, 7, 9], ratio=1.1)
fails('on battery', 'NOT_ADMISSIBLE_ENV', guards=guards(acOnline=False))
fails('guard unknown', 'NOT_ADMISSIBLE_ENV', guards=guards(acOnline=NONE))
fails('no reference', 'NOT_ADMISSIBLE_ENV', predicate=lambda p: p['cells'][0]['pairs'][2].update(refNs=0))
not_promoted()
devices()
end()
