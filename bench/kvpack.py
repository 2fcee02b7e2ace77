#!/usr/bin/env python3
"""What packing pages of the KV cache costs an answer: time per token where each step packs what it reads first, and
where a thread of the pool packs ahead of it, in turns.

usage: kvpack.py --hetero BIN --model FILE -o OUT.json [-n 256] [--threads 1] [--rounds 8] [--budget 50]
       kvpack.py --table OUT.json

One round is a run of each arm, the second one first in every other round: greedy, K q8_0r, V tq4, the same tokens (that
is checked), one engine thread by default, so that a core is left for the packing thread. A round's ratio is thread /
step; the figure is the median of the rounds. OUT.json is written after every round and continued when it exists; no
round is begun that would end behind the budget. Exit: 0 all is there, 3 run the same command again, 1 tokens differ.
Standard library only.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import rounds

ARMS = ('step', 'thread')


def run(a, arm):
    argv = [a.hetero, 'run', a.model, '-p', 'Once upon a time', '-n', str(a.n), '--temp', '0', '--ignore-eos', '-t',
            str(a.threads), '-ctk', 'q8_0r', '-ctv', 'tq4', '--kv-force', '--kv-pack', arm, '--json']
    p = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    if p.returncode:
        raise RuntimeError('%s: exit %d: %s' % (' '.join(argv[:2]), p.returncode, p.stderr.strip()[-300:]))
    d = json.loads(p.stdout)
    kv, decode = d['receipt']['kv'], d['receipt']['phases'][1]
    return d['ids'], {'nsPerToken': decode['ns'] // decode['tokens'], 'tokens': decode['tokens'], 'waitNs': kv['waitNs'],
                      'packedByThread': kv['packedByThread'], 'packedBySteps': kv['packedBySteps'], 'waits': kv['waits']}


def table(doc):
    ratios = [r['thread']['nsPerToken'] / r['step']['nsPerToken'] for r in doc['rounds']]
    print('| who packs | ms a token, median (range) | n | pages by steps, by the thread | waited ms |\n|---|---|---|---|---|')
    for arm in ARMS:
        x = [r[arm] for r in doc['rounds']]
        ms = [y['nsPerToken'] / 1e6 for y in x]
        print('| %s | %.2f (%.2f-%.2f) | %d | %d, %d | %.2f |' % (
            arm, statistics.median(ms), min(ms), max(ms), len(x), statistics.median(y['packedBySteps'] for y in x),
            statistics.median(y['packedByThread'] for y in x), statistics.median(y['waitNs'] for y in x) / 1e6))
    print('\nthread / step, median of %d rounds: %.3f (%.3f-%.3f)' % (
        len(ratios), statistics.median(ratios), min(ratios), max(ratios)))


def main():
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    for name in ('--hetero', '--model', '--table'):
        p.add_argument(name)
    p.add_argument('-o', '--out')
    for name, value in (('-n', 256), ('--threads', 1), ('--rounds', 8), ('--budget', 50)):
        p.add_argument(name, type=int, default=value)
    a = rounds.asked(p, table, 'hetero', 'model', 'out')
    doc = {'schema': 'hetero/kvpack-bench/1', 'model': os.path.basename(a.model), 'k': 'q8_0r', 'v': 'tq4', 'n': a.n,
           'threads': a.threads, 'rounds': []}
    doc = rounds.continued(a.out, doc)
    t0, longest = time.monotonic(), 0.0
    while len(doc['rounds']) < a.rounds:
        begun = time.monotonic()
        if begun - t0 + longest > a.budget:
            return 3
        turn = len(doc['rounds']) % 2
        got = {arm: run(a, arm) for arm in (ARMS[turn], ARMS[1 - turn])}
        if got['step'][0] != got['thread'][0]:
            print('kvpack: other tokens', file=sys.stderr)
            return 1
        doc['rounds'].append({arm: got[arm][1] for arm in ARMS})
        longest = max(longest, time.monotonic() - begun)
        with open(a.out + '.tmp', 'w', encoding='utf-8') as f:
            json.dump(doc, f, indent=1)
        os.replace(a.out + '.tmp', a.out)
    table(doc)
    return 0


if __name__ == '__main__':
    sys.exit(main())
