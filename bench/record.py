#!/usr/bin/env python3
"""The benchmark of record: Hetero beside llama.cpp and ik_llama.cpp on the same file, interleaved.

usage: record.py --hetero BIN [--llama LLAMA_BENCH] [--ik IK_BENCH] --models DIR -o OUT.json
                 [--types f16,q8_0,q4_0,q4_k_m] [--groups pp32+pp512,tg32@32+tg32@512]
                 [--act f32,q8] [--rounds 3] [--reps 2] [--threads 2] [--budget 450]
       record.py --table OUT.json [OUT.json ...]

DIR holds qwen3-TYPE.gguf as bench/make_qwen3.py writes them. A group is what one process measures:
prompts (pp512) or decodes at a depth (tg32@2048), not both. A round runs every system once over the
group, `reps` samples of each cell, in an order that is turned by one place each round. Peers are
first tried once with flash attention on and off (ik_llama.cpp also with -rtr); the faster way
counts and is what is repeated.

OUT.json is written after every round and is continued when it exists: rounds that are there are not
repeated, and no round is begun that would end after `budget` seconds. Exit: 0 all is there, 3 run
the same command again, 2 a figure is above what the machine was measured to do.

The bound of a cell is the least time of its bytes and operations (performance.md 7) at the best
read bandwidth and multiply-add rate that any run of the cell measured. A prompt of --act q8 has one of
its own: products at the rate of 8-bit ones (on AVX2 widened at once, and "summed": four added in 16
bits before), attention at that of multiply-adds. The share of what was sustained is that of the mean
rate in windows between our own samples. Complete compute, Cn, is a prompt of n tokens and 16 tokens
after it, from the cells ppn and tg@n. Needs only the standard library.
"""
import json

import rounds


def hetero(a, model, cells, act):
    """`hetero bench`. Its own verdict on impossible figures is left to the table, which knows the bandwidth of all
    runs."""
    parts = [rounds.split(c) for c in cells]
    prompts, gens = [p for p, _, _ in parts if p], sorted({g for _, g, _ in parts if g})
    most = max(p + g + d for p, g, d in parts)
    out = json.loads(rounds.run(
        [a.hetero, 'bench', model, '-p', rounds.commas(prompts) or '0', '-n', rounds.commas(gens) or '0',
         '-d', '0' if prompts else rounds.commas(d for _, _, d in parts), '-r', str(a.reps), '-t', str(a.threads),
         '-c', str(max(512, most) + 64), '--act', act, '--json', '--log-level', 'error'], may_fail=True))
    samples, facts = {}, {}
    for cell, (p, g, d) in zip(cells, parts):
        name = 'pp%d' % p if p else 'tg%d' % g + (' @ d%d' % d if d else '')
        row = next(r for r in out['rows'] if r['test'] == name)
        samples[cell] = row['samples']
        facts[cell] = {k: row.get(k) for k in ('bytesPerToken', 'flopsPerToken', 'stages', 'barrierPercent')}
        facts[cell].update({k: out['machine'][v] for k, v in rounds.RATES.items() if v in out['machine']})
        facts[cell].update(version=out['engine']['version'], machine=out['machine'])
        facts[cell].update(rounds.pace(row.get('sustained') or {}, a.reps))
    return [('hetero ' + act, samples, facts)]


def own(a):
    return lambda kind: [('hetero ' + act, hetero, act) for act in a.act.split(',') if act != 'q8' or kind != 'f16']


if __name__ == '__main__':
    parser = rounds.options(__doc__, types='f16,q8_0,q4_0,q4_k_m', groups='pp32+pp512,tg32@32+tg32@512')
    parser.add_argument('--hetero', default='./hetero')
    parser.add_argument('--act', default='f32,q8')
    rounds.main(parser, own)
