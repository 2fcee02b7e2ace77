#!/usr/bin/env python3
"""Decode at depth with packed KV types against the F16 cache: the record of bench/kvdepth.c.

usage: kvdepth.py --bin B/bench/kvdepth --model qwen3-q4_0.gguf -o OUT.json [--depths 1024,4096,16384]
                  [--pairs q8_0:tq4,q8_0:q4_0] [--reps 6] [--rounds 2] [--budget 450]
       kvdepth.py --table OUT.json

A round is one process for each depth: F16 and the pairs in turns, `reps` times (after one that is not
counted). OUT.json is written after each and continued when it exists; nothing is begun that would end
after `budget` seconds. Exit: 0 all is there, 3 run the same command again. The bound is the ratio of
the least bytes of a step: weights and cache. Standard library only.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import rounds


def table(doc):
    print('| depth | K, V | ms a step, median (range) | n | times F16 | bound | share of the bound |')
    print('|---:|---|---|---:|---:|---:|---:|')
    for depth in sorted(doc['depths'], key=int):
        arms = doc['depths'][depth]['arms']
        base = arms['f16,f16']
        for name, a in arms.items():
            med = statistics.median(a['ms'])
            # Pairs of one repetition: what drifts, drifts for both.
            times = statistics.median(b / m for b, m in zip(base['ms'], a['ms']))
            bound = base['bytes'] / a['bytes']
            print('| %s | %s | %.2f (%.2f-%.2f) | %d | %s | %s | %s |' % (
                depth, name.replace(',', ', '), med, min(a['ms']), max(a['ms']), len(a['ms']),
                *(('', '', '') if a is base else ('%.2f' % times, '%.2f' % bound, '%.0f %%' % (100 * times / bound)))))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--bin')
    ap.add_argument('--model')
    ap.add_argument('-o', '--out')
    ap.add_argument('--depths', default='1024,4096,16384')
    ap.add_argument('--pairs', default='q8_0:tq4,q8_0:q4_0')
    ap.add_argument('--reps', type=int, default=6)
    ap.add_argument('--rounds', type=int, default=2)
    ap.add_argument('--budget', type=float, default=450)
    ap.add_argument('--table')
    a = rounds.asked(ap, table, 'bin', 'model', 'out')
    doc = {'schema': 'hetero/kvdepth/1', 'utc': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
           'model': os.path.basename(a.model), 'depths': {}}
    doc = rounds.continued(a.out, doc)
    start, longest, left = time.monotonic(), {}, False
    for n in range(1, a.rounds + 1):
        for depth in a.depths.split(','):
            d = doc['depths'].setdefault(depth, {'rounds': 0, 'arms': {}})
            if d['rounds'] >= n:
                continue
            begin = time.monotonic()
            if begin - start + 1.2 * longest.get(depth, max(longest.values(), default=0)) > a.budget:
                left = True
                continue
            out = json.loads(subprocess.run(
                [a.bin, a.model, depth, str(a.reps), *(p.replace(':', ',') for p in a.pairs.split(','))],
                stdout=subprocess.PIPE, check=True).stdout)
            for arm in out['arms']:
                to = d['arms'].setdefault(arm['k'] + ',' + arm['v'], {'bytes': arm['bytes'], 'ms': []})
                to['ms'] += arm['ms']
            d['rounds'], d['threads'], d['loadAfter'] = n, out['threads'], os.getloadavg()
            longest[depth] = time.monotonic() - begin
            with open(a.out + '.part', 'w', encoding='utf-8') as f:
                json.dump(doc, f, indent=1)
                f.write('\n')
            os.replace(a.out + '.part', a.out)
    if left:
        print('more rounds are left: run the same command again', file=sys.stderr)
        sys.exit(3)
    table(doc)


if __name__ == '__main__':
    main()
