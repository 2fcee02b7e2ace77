"""Amendments (docs/bundle.md, "Amendments"), whole and wrong in one way each, as a holder of the bench key writes them."""
import copy
import time

from bundle import MACHINE, Maker, NONE, POLICY, V, envelope

STATE = {'microcode': {'v': '0x2'}}
IDS = [5, 6, 7, 8]
DAY = 86400


def at(unix):
    return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(unix))


def guards(**red):
    return [{**dict.fromkeys(V.GUARDS, NONE), 'acOnline': True, 'stealPpm': 0, **red} for _ in range(8)]


def paper(bundle, now, key, stale=None, ratio=1.1, cand=IDS, pairs=4, predicate=None, statement=None, **more):
    """A signed amendment of a sealed Maker. predicate, statement: edits before signing."""
    cells = [{'pairs': [{'cand': cand, 'candNs': int(10**8 / ratio) if ratio else 0, 'ref': IDS, 'refNs': 10**8}
                        for _ in range(pairs)], 'scopeSha256': V.sha(V.canon(c['scope']))} for c in bundle.cells]
    stale = STATE if stale is None else stale
    measured = more.pop('measured', now)
    started = V.unix('2026-11-29T12:00:00Z')
    p = {'bundleId': V.sha(bundle.files['inputs.manifest.json']), 'cells': cells,
         'changed': sorted(k for k in {**stale, **MACHINE['stale']} if stale.get(k) != MACHINE['stale'].get(k)),
         'costmapSha256': V.sha(bundle.files['costmap.json']),
         'expiresUtc': at(min(measured + 30 * DAY, started + 90 * DAY)), 'guards': guards(),
         'machine': dict(MACHINE, stale=stale), 'measuredUtc': at(measured),
         'policySha256': V.sha(bundle.files['policy.json']), 'result': 'PASSED', 'schema': 'hetero/amendment/1',
         'stateSha256': V.sha(V.canon(stale)), **more}
    if predicate:
        p = copy.deepcopy(p)
        predicate(p)
    st = {'_type': V.INTOTO, 'predicate': p, 'predicateType': 'urn:hetero:amendment:1',
          'subject': [{'digest': {'sha256': p['bundleId']}, 'name': 'bundle'}]}
    if statement:
        statement(st)
    return envelope(V.canon(st), [key])


def on_device():
    """An edit of a bundle's design: its cells run on a device."""
    def gpu(design):
        d = copy.deepcopy(design)
        for c in d['cells']:
            c['scope']['backend'] = 'cuda'
        return d
    return {'design.json': gpu}


def device(**knobs):
    """A Maker whose route runs on a device."""
    m = Maker(cells=('d512',), edit=on_device(), **knobs)
    m.cells[0]['scope']['backend'] = 'cuda'
    return m


def strict():
    """A policy that knows no canaries."""
    return dict(POLICY, validity={'canaryOnStale': False, 'maxAgeDays': 90})


def one_pair(**more):
    return lambda p: p['cells'][0]['pairs'][2].update(more)


def refusals(bundle, now, bench, index, stranger):
    """(name, what hetero's verifier says, what Python's says, paper)"""
    def make(key=bench, **knobs):
        return paper(bundle, now, key, **knobs)

    def set_(key, value):
        return lambda p: p.update({key: value})

    def same(name, says, data):
        return name, says, says, data
    yield same('a key without the role', 'BAD_SIGNATURE', make(index))
    yield same('a key of nobody', 'BAD_SIGNATURE', make(stranger))
    yield same('expired', 'AMENDMENT_EXPIRED', make(measured=now - 31 * DAY))
    yield same('of the future', 'AMENDMENT_NOT_YET_VALID', make(measured=now + DAY))
    yield same('a longer life', 'RECOMPUTED', make(expiresUtc='2089-01-01T00:00:00Z'))
    yield 'of another bundle', 'it is for bundle', 'for another bundle', make(bundleId='a' * 64)
    yield same('another subject', 'RECOMPUTED', make(
        statement=lambda st: st['subject'][0]['digest'].update(sha256='a' * 64)))
    yield same('another cost map', 'RECOMPUTED', make(costmapSha256='a' * 64))
    yield same('another policy', 'RECOMPUTED', make(policySha256='a' * 64))
    yield same('another state than measured', 'RECOMPUTED', make(stateSha256='a' * 64))
    yield same('a change that is not told', 'RECOMPUTED', make(changed=['bios']))
    yield same('passed, it says', 'RECOMPUTED', make(ratio=0.9))
    yield 'three pairs', 'need 4', 'AMENDMENT', make(pairs=3)
    yield 'seven slots', 'need 1 and 8', 'AMENDMENT', make(guards=guards()[1:])
    yield 'no cells', 'need 1 and 8', 'RECOMPUTED', make(predicate=lambda p: p['cells'].clear())
    yield same('of another scope', 'RECOMPUTED', make(predicate=lambda p: p['cells'][0].update(scopeSha256='a' * 64)))
    yield same('nothing changed', 'NOTHING_CHANGED', make(stale=MACHINE['stale']))
    yield same('another machine', 'OTHER_MACHINE', make(
        machine={**MACHINE, 'reject': {'arch': {'v': 'other'}}, 'stale': STATE}))
    yield same('an unreadable field', 'UNREADABLE_FIELD', make(stale={'microcode': {'unreadable': 'EACCES'}}))
    yield same('a member too many', 'amendment', make(predicate=set_('more', 1)))
    yield 'a guard too few', 'guard', 'guard', make(predicate=lambda p: p['guards'][0].pop('swapIns'))
    yield 'a book of tokens', 'tokens for one prompt', 'AMENDMENT', make(predicate=one_pair(cand=[1] * 65537))
    whole = make()
    yield 'one bit', '', '', whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]
    yield 'cut off', '', '', whole[:-9]


def outcomes(bundle, now, bench):
    """(name, what a canary comes to, paper): sound papers."""
    for name, want, knobs in (
            ('passed', 'PASSED', {}), ('slower', 'FAILED', {'ratio': 0.95}),
            ('faster than its bundle', 'FAILED', {'ratio': 1.5}), ('all failed', 'FAILED', {'ratio': 0}),
            ('one pair lost', 'FAILED', {'predicate': one_pair(candNs=10**8 + 1)}),
            ('other tokens', 'FAILED', {'cand': [5, 6, 7, 9]}), ('fewer tokens', 'FAILED', {'cand': [5, 6, 7]}),
            ('on battery', 'NOT_ADMISSIBLE_ENV', {'guards': guards(acOnline=False)}),
            ('guard unknown', 'NOT_ADMISSIBLE_ENV', {'guards': guards(acOnline=NONE)}),
            ('no reference', 'NOT_ADMISSIBLE_ENV', {'predicate': one_pair(refNs=0)})):
        yield name, want, paper(bundle, now, bench, result=want, **knobs)


def cases(now, bench, index, stranger, case):
    """case(name, want, says, files, paper=): as of mutations.Case."""
    def sealed(m):
        m.seal(bench)
        return m
    good = sealed(Maker(cells=('d512',)))
    for name, says, _, data in refusals(good, now, bench, index, stranger):
        yield case('amendment: ' + name, 'refused', says, good.files, paper=data)
    for name, want, data in outcomes(good, now, bench):
        yield case('amendment: ' + name, 'ok', want, good.files, paper=data)
    gpu = sealed(device())
    yield case('amendment: a driver under a device', 'refused', 'NOT_AMENDABLE', gpu.files, paper=paper(
        gpu, now, bench, stale={'gpuDriver': {'v': '600'}, 'microcode': {'v': '0x1'}}))
    yield case('amendment: microcode under a device', 'ok', 'PASSED', gpu.files, paper=paper(gpu, now, bench))
    yield case('amendment: a driver without a device', 'ok', 'PASSED', good.files, paper=paper(
        good, now, bench, stale={'gpuDriver': {'v': '600'}, 'microcode': {'v': '0x1'}}))
    no = sealed(Maker(cells=('d512',), policy=strict()))
    yield case('amendment: a policy without canaries', 'refused', 'NOT_AMENDABLE', no.files, paper=paper(no, now, bench))
    bad = sealed(Maker(cells=('d512',), gain=1.0))
    yield case('amendment: of a bundle that admits nothing', 'refused', 'NOT_QUALIFIED', bad.files,
               paper=paper(bad, now, bench, predicate=lambda p: p['cells'].clear()))
