"""Amendments: the paper of a canary, whole and wrong in every way, before both verifiers and before a store. The
bundle is synthetic; a canary on the machine itself is a part of evid_route.py."""
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
import amendment
from bundle import Key, Maker, POLICY, V
from e2e import check, end, err, run, tmp

HOLD = tmp()
TOP = HOLD.name
BENCH, P1, P2, INDEX, STRANGER = (Key(i) for i in range(1, 6))
NOW = int(time.time())


def paper(bundle, key=BENCH, **knobs):
    return amendment.paper(bundle, NOW, key, **knobs)


class World:
    """A bundle on disk and a store in which it is promoted."""

    def __init__(self, name, bundle=None, policy=POLICY):
        self.bundle = bundle or Maker(cells=('d512',), policy=policy)
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

    def refused(self, what, says, mine, data):
        code, c, python = self.verdict(data)
        check(code != 0 and says in c, '%s: refused' % what, (code, c))
        check(mine in python, '%s: refused by Python' % what, python)
        r = self.amend()
        check(r.returncode != 0 and says in err(r), '%s: no store takes it' % what, err(r))

    def amend(self, *keys):
        return run('promote', self.top, '--amendment', self.file, '--store', self.store, '--json',
                   *self.keys(*(keys or ('index',))))

    def routes(self):
        r = run('routes', '--store', self.store, '--json')
        return json.loads(r.stdout) if r.returncode == 0 else {}


def damaged(w):
    for case in amendment.refusals(w.bundle, NOW, BENCH, INDEX, STRANGER):
        w.refused(*case)
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


def fails(name, want, data):
    """Canaries that are not passed: what becomes of the route."""
    w = World(name)
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
    w = World('device', amendment.device())
    state = {'gpuDriver': {'v': '600'}, 'microcode': {'v': '0x1'}}
    w.refused('a driver under a device', 'NOT_AMENDABLE', 'NOT_AMENDABLE', paper(w.bundle, stale=state))
    check(w.verdict(paper(w.bundle))[1] == 'PASSED', 'microcode under a device', w.verdict(paper(w.bundle)))
    w = World('strict', policy=amendment.strict())
    w.refused('a policy without canaries', 'NOT_AMENDABLE', 'NOT_AMENDABLE', paper(w.bundle))


world = World('good')
damaged(world)
passes(world)
for case in amendment.outcomes(world.bundle, NOW, BENCH):
    if case[1] != 'PASSED':
        fails(*case)
not_promoted()
devices()
end()
