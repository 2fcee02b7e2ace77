#!/usr/bin/env python3
"""Prompts of fixed lengths on `cpu`, on `graph`, in llama.cpp and in ik_llama.cpp, interleaved: the table of
docs/graph.md.

usage: graph_record.py --graph B/bench/graph [--llama LLAMA_BENCH] [--ik IK_BENCH] --models DIR -o OUT.json
                       [--types f16,q8_0,q4_0] [--groups pp32,pp128,pp512] [--rounds 3] [--reps 2]
                       [--acts q8,bf16] [--cache FOLDER] [--memory MIB] [--budget 450]
       graph_record.py --table OUT.json

As bench/record.py, which says what a round, a group and OUT.json are; ours are one process a group, in which
`cpu`, `cpu` with 8-bit activations (quantised models) and `graph` take turns sample by sample, and two tokens
are decoded behind each prompt. --acts adds graphs that compute in less than f32 beside the exact one: q8 (dynamic
quantisation; quantised models, a processor with VNNI) and bf16 (declared; a processor that has it). --cache keeps
compiled graphs between rounds (as large as the weights in f32 for each type and length), so that only the first one
compiles. HETERO_OPENVINO names the library.
`cpu q8` and the --acts compute with other numbers than the exact contract; docs/graph.md says how far from it.
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
            facts[cell].update(rounds.pace({'fmaFlopsPerS': row['sustainedFmaFlopsPerS']}, a.reps))
        got.append(('hetero ' + arm.replace('-', ' '), samples, facts))
    return got


def own(a):
    def systems(kind):
        whole = kind == 'f16'
        arms = ['cpu'] if whole else ['cpu', 'cpu-q8']
        arms += ['graph'] + ['graph-' + act for act in a.acts.split(',') if act and not (whole and act == 'q8')]
        return [('hetero', graph, ','.join(arms))]
    return systems


def table_graph(doc):
    """What the compiled models said of themselves."""
    print()
    rounds.line('type', 'work', 'system', 'precision', 'products below f32', 'quantised in groups of', 'compiled ms',
                'cancel ms', 'tokens as cpu')
    rounds.line('---', '---', '---', '---', '---:', '---:', '---:', '---:', '---:')
    for c in doc['cells']:
        for name, f in c['facts'].items():
            g = f.get('facts')
            if not name.startswith('hetero graph') or not g:
                continue
            rounds.line(c['type'], c['cell'], name, g['inferencePrecision'], g['productsBelowF32'],
                        g.get('dynamicQuantizationGroup', ''),
                        '%d%s' % (g['compiledMs'], ' (from the folder)' if g['fromCache'] else ''), g['cancelMs'],
                        '%d of 2' % f['sameTokens'])


if __name__ == '__main__':
    parser = rounds.options(__doc__, types='f16,q8_0,q4_0', groups='pp32,pp128,pp512')
    parser.add_argument('--graph')
    parser.add_argument('--acts', default='')
    parser.add_argument('--cache', default='')
    parser.add_argument('--memory', type=int, default=16000)
    rounds.main(parser, own, table_graph)
