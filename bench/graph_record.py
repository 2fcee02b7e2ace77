#!/usr/bin/env python3
"""Prompts of fixed lengths on `cpu`, on `graph`, in llama.cpp and in ik_llama.cpp, interleaved: the table of
docs/graph.md.

usage: graph_record.py --graph B/bench/graph [--llama LLAMA_BENCH] [--ik IK_BENCH] --models DIR -o OUT.json
                       [--types f16,q8_0,q4_0] [--groups pp32,pp128,pp512] [--rounds 3] [--reps 2]
                       [--cache FOLDER] [--memory MIB] [--budget 450]
       graph_record.py --table OUT.json

As bench/record.py, which says what a round, a group and OUT.json are; ours are one process a group, in which
`cpu`, `cpu` with 8-bit activations (quantised models) and `graph` take turns sample by sample, and two tokens
are decoded behind each prompt. --cache keeps compiled graphs between rounds (as large as the weights in f32 for
each type and length), so that only the first one compiles. HETERO_OPENVINO names the library.
`cpu q8` computes with other numbers than the exact contract; its row is there because it is what users run.
"""
import json

import rounds


def graph(a, model, cells, arms):
    rows = [rounds.split(c)[0] for c in cells]
    settings = 'strict=1,memory=%d' % a.memory + (',cache=' + a.cache if a.cache else '')
    out = json.loads(rounds.run([a.graph, model, rounds.commas(rows), str(a.reps), arms, settings, '2']))
    got = []
    for i, arm in enumerate(arms.split(',')):
        samples, facts = {}, {}
        for cell, row in zip(cells, out['rows']):
            x = row['arms'][i]
            if x['arm'] != arm or x['executed'] != arm.split('-')[0]:
                raise RuntimeError('%s: %s ran on %s' % (cell, arm, x['executed']))
            samples[cell] = x['tokensPerS']
            facts[cell] = {k: x[k] for k in ('bytesPerToken', 'flopsPerToken', 'sameTokens', 'facts')}
            facts[cell].update(fma=out['fmaFlopsPerS'], version=out['version'])
        got.append(('hetero ' + arm.replace('-', ' '), samples, facts))
    return got


def own(a):
    return lambda kind: [('hetero', graph, 'cpu,graph' if kind == 'f16' else 'cpu,cpu-q8,graph')]


def table_graph(doc):
    """What the compiled models said of themselves."""
    print()
    rounds.line('type', 'work', 'precision', 'products below f32', 'compiled ms', 'cancel ms', 'tokens as cpu')
    rounds.line('---', '---', '---', '---:', '---:', '---:', '---:')
    for c in doc['cells']:
        f = c['facts'].get('hetero graph')
        if f:
            g = f['facts']
            rounds.line(c['type'], c['cell'], g['inferencePrecision'], g['productsBelowF32'],
                        '%d%s' % (g['compiledMs'], ' (from the folder)' if g['fromCache'] else ''), g['cancelMs'],
                        '%d of 2' % f['sameTokens'])


if __name__ == '__main__':
    parser = rounds.options(__doc__, types='f16,q8_0,q4_0', groups='pp32,pp128,pp512')
    parser.add_argument('--graph')
    parser.add_argument('--cache', default='')
    parser.add_argument('--memory', type=int, default=16000)
    rounds.main(parser, own, table_graph)
