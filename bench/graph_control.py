#!/usr/bin/env python3
"""The routed control: prompts of several lengths on `cpu` alone, with `graph` for every prompt, and where the routes
of a store send them, in turns.

usage: graph_control.py --hetero B/hetero --model MODEL (--store STORE | --fixture p32,p512) -o OUT.json
                        [--rows 20,32,33,128,512] [--slots 12] [-n 4] [--ctx 1024] [--cache FOLDER]
       graph_control.py --table OUT.json

A slot is a fresh process (`hetero bench-slot`) that opens its engine, warms up on all lengths and then answers one
request of each; the three arms of a slot get the same tokens, and the six orders of three arms follow each other, so
that each arm stands equally often in each place and behind each other one (a Williams design: evidence.md 3.2). For
each length: time to the first token and to the last, the engine that ran and why by the receipt, and the ratios of
both single engines to the routed arm with their Hodges-Lehmann estimate. Tokens, copies and engines are checked: a
single engine that ran elsewhere, or an answer of its own in any arm, ends the run.

--fixture makes a store whose policy admits any speed and promotes routes onto `graph` for these buckets: what is then
measured is what routing itself costs, and nothing is admissible. The bundle of an experiment holds two arms
(`design.arms` of a policy is 2), so the control is a document of its own. HETERO_OPENVINO names the library.
"""
import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

import rounds

ARMS = ('cpu', 'graph', 'routed')


def slot(a, arm, requests):
    """One fresh process: per request (engine, decision, reason, ttft ns, e2e ns, tokens)."""
    words = {'cpu': 'engine=cpu', 'graph': 'prefill-engine=graph,graph=strict=1' + (',graph=cache=' + a.cache if a.cache else ''),
             'routed': 'store=' + a.store}[arm]
    doc = {'arm': 'model=%s,%s' % (a.model, words), 'ctx': a.ctx, 'warmups': len(requests), 'requests': requests}
    r = subprocess.run([a.hetero, 'bench-slot', '--no-progress'], input=json.dumps(doc).encode(), capture_output=True)
    if r.returncode:
        raise RuntimeError('%s: %s' % (arm, r.stderr.decode(errors='replace').strip()[-300:]))
    lines = [json.loads(x) for x in r.stdout.splitlines()]
    out = []
    for i in range(len(requests)):
        end = next(x for x in lines if x.get('r') == i and 'status' in x)
        came = [x for x in lines if x.get('r') == i and x.get('tok')]
        if end['status'] != 'ok' or not came:
            raise RuntimeError('%s, request %d: %s %s' % (arm, i, end['status'], end['message']))
        p = json.loads(end['receipt'])['phases'][0]
        out.append({'engine': p['executed'], 'decision': p['decision'], 'reason': p.get('reason', ''),
                    'copies': p['hostCopyBytes'] + p['deviceCopyBytes'], 'ttftNs': came[0]['t'] - end['intended'],
                    'e2eNs': came[-1]['t'] - end['intended'], 'tokens': [t for x in came for t in x['tok']]})
    return out


def same_work(rows, got):
    for i, n in enumerate(rows):
        for arm in ARMS:
            x = got[arm][i]
            if arm != 'routed' and x['engine'] != arm:
                raise RuntimeError('%d tokens of %s ran on %s' % (n, arm, x['engine']))
            if x['copies'] or x['tokens'] != got['cpu'][i]['tokens']:
                raise RuntimeError('%d tokens of %s: %d bytes copied, answer %s for %s'
                                   % (n, arm, x['copies'], x['tokens'], got['cpu'][i]['tokens']))


def hodges_lehmann(ratios):
    return statistics.median((a + b) / 2 for i, a in enumerate(ratios) for b in ratios[i:])


def measure(a):
    rows = [int(x) for x in a.rows.split(',')]
    cells = [{'rows': n, 'arms': {arm: {'ttftNs': [], 'e2eNs': [], 'ran': []} for arm in ARMS}} for n in rows]
    orders = list(itertools.permutations(ARMS))
    for k in range(a.slots):
        draw = random.Random(k)
        requests = [{'prompt': [5 + k * len(rows) + i] + [draw.randrange(5, a.vocab) for _ in range(n - 1)],
                     'maxNew': a.n} for i, n in enumerate(rows)]
        got = {arm: slot(a, arm, requests) for arm in orders[k % len(orders)]}
        same_work(rows, got)
        for cell, i in zip(cells, range(len(rows))):
            for arm in ARMS:
                x, to = got[arm][i], cell['arms'][arm]
                to['ttftNs'].append(x['ttftNs'])
                to['e2eNs'].append(x['e2eNs'])
                ran = '%s (%s %s)' % (x['engine'], x['decision'], x['reason'])
                to['ran'] += [] if ran in to['ran'] else [ran]
        print('slot %d of %d' % (k + 1, a.slots), file=sys.stderr, flush=True)
    for cell in cells:
        routed = cell['arms']['routed']['ttftNs']
        cell['ratio'] = {}
        for arm in ARMS[:2]:
            r = [x / y for x, y in zip(cell['arms'][arm]['ttftNs'], routed)]
            cell['ratio'][arm] = {'hl': round(hodges_lehmann(r), 4), 'least': round(min(r), 4),
                                  'most': round(max(r), 4), 'routedFaster': sum(x > 1 for x in r)}
    return {'model': os.path.basename(a.model), 'slots': a.slots, 'newTokens': a.n, 'fixture': bool(a.fixture),
            'cells': cells}


def fixture(a):
    """A store that routes these buckets onto graph; what lasts as long as the program."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'tests', 'e2e', 'lib'))
    os.environ['HETERO'] = a.hetero
    import e2e
    import store
    e2e.ENV['HETERO_OPENVINO'] = os.environ['HETERO_OPENVINO']
    os.environ.update(store.ENV)
    policy = store.make_store()
    candidate = 'prefill-engine=graph,graph=strict=1,graph=cancel=20000' + (',graph=cache=' + a.cache if a.cache else '')
    r, d = store.measured('qualify', a.fixture, a.model, '-c', a.ctx, '--candidate', candidate, '--policy', policy, '-f',
                          store.corpus(), '--json', '-o', os.path.join(store.TOP, 'evidence'))
    if r.returncode:
        raise RuntimeError('the fixture: ' + e2e.err(r)[-300:])
    store.promote(d['bundle'])
    return store.STORE


def table(doc):
    print('| tokens | cpu ms | graph ms | routed ms | routed ran on | cpu / routed | graph / routed |')
    print('|---:|---:|---:|---:|---|---:|---:|')
    for c in doc['cells']:
        ms = ['%.2f' % (statistics.median(c['arms'][arm]['ttftNs']) / 1e6) for arm in ARMS]
        ratio = ['%(hl).2f (%(least).2f-%(most).2f)' % c['ratio'][arm] for arm in ARMS[:2]]
        print('| %d | %s | %s | %s |' % (c['rows'], ' | '.join(ms), ', '.join(c['arms']['routed']['ran']), ' | '.join(ratio)))


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    for word in ('hetero', 'model', 'store', 'fixture', 'table'):
        p.add_argument('--' + word)
    p.add_argument('-o')
    p.add_argument('--rows', default='20,32,33,128,512')
    p.add_argument('--slots', type=int, default=12)
    p.add_argument('-n', type=int, default=4)
    p.add_argument('--ctx', type=int, default=1024)
    p.add_argument('--vocab', type=int, default=4096)
    p.add_argument('--cache', default='')
    a = rounds.asked(p, table)
    if not (a.hetero and a.model and a.o and (a.store or a.fixture)):
        p.error('--hetero, --model, --store or --fixture, and -o are needed')
    if a.slots < 1:
        p.error('--slots %d: need at least 1; a multiple of 6 has every order of the arms equally often' % a.slots)
    if not all(r.isdigit() and int(r) for r in a.rows.split(',')):
        p.error('--rows %s: need numbers of tokens with commas between' % a.rows)
    with tempfile.TemporaryDirectory() as top:
        a.hetero, a.model = os.path.abspath(a.hetero), os.path.abspath(a.model)
        a.cache = os.path.abspath(a.cache or os.path.join(top, 'graphs'))
        if a.fixture:
            a.store = fixture(a)
        doc = measure(a)
    with open(a.o, 'w') as f:
        f.write('{%s, "cells": [\n%s\n]}\n' % (', '.join('%s: %s' % (json.dumps(k), json.dumps(v))
                                                         for k, v in doc.items() if k != 'cells'),
                                               ',\n'.join(json.dumps(c) for c in doc['cells'])))


if __name__ == '__main__':
    main()
