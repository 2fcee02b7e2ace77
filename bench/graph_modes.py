#!/usr/bin/env python3
"""The modes of the compiled-graph engine against `cpu`: prompts whose continuation is exact, tokens in agreement,
and where the two differ, whether the reference was near a tie. The table of docs/graph.md.

usage: graph_modes.py --hetero B/hetero --model MODEL --records RECORDS.json --calibrate PROMPTS.jsonl -o OUT.json
                      [--text TEXT] [--items 60] [-n 32] [--chunks 2] [--modes exact,auto,...]
       graph_modes.py --table OUT.json ...

RECORDS.json holds {"records": [{"prompt", "response"}]}, which are judged; the last hundred lines of PROMPTS.jsonl
(the same members) are what static int8 is calibrated on. Each mode is one `hetero quality` with the prompt on
`graph` and everything else on `cpu` in both arms, and one `hetero run` whose receipt says what ran. A mode that the
processor lacks is written down with the engine's own words; so is what each approximate mode answers when it is not
declared with approximate=1. OUT.json is added to: one entry per model and mode. HETERO_OPENVINO names the library.

A difference is a tie where the reference gives the other token at most 0.01 nats less than its own, else it is real.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

MODES = {'exact': [], 'auto': ['device=AUTO', 'approximate=1'], 'hetero': ['device=HETERO:CPU', 'approximate=1'],
         'q8': ['act=q8'], 'bf16': ['act=bf16', 'approximate=1'],
         'int8': ['act=int8', 'approximate=1', 'calibrate={calibrate}']}
KEEP = ('prompts', 'promptsExact', 'tokens', 'tokensAgree', 'firstDifferencesWithin001', 'firstDifferencesReal',
        'firstDifferencesNearTie', 'positions', 'top1Agreement', 'flipsWithin001', 'flipsNearTie', 'flipsReal',
        'kldMean', 'kldMax', 'pplRatio')
TURN = '<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n%s<|im_end|>\n'


def call(args, *good):
    r = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said = r.stderr.decode(errors='replace').strip().splitlines()
    return (json.loads(r.stdout), '') if r.returncode in (0, *good) else (None, said[-1] if said else 'no word')


def measure(a, settings, corpus):
    """One mode: its entry."""
    graph = ['strict=1'] + settings
    run = [a.hetero, 'run', a.model, '-p', 'Once upon a time', '-n', '2', '--temp', '0', '--prefill-engine', 'graph']
    d, why = call(run + ['--graph', ','.join(graph), '--json'])
    if not d:
        return {'refused': why}
    phase = d['receipt']['phases'][0]
    out = {'class': phase['class'], 'contract': d['receipt']['contract'], 'facts': phase['segments'][0]['facts']}
    bare = [s for s in graph if s != 'approximate=1']
    if len(bare) < len(graph):
        out['undeclared'] = call(run + ['--graph', ','.join(bare), '--json'])[1]
    text = ['--text', a.text, '--chunks', str(a.chunks)] if a.text else []
    d, why = call([a.hetero, 'quality', a.model, '--candidate',
                   ','.join(['prefill-engine=graph'] + ['graph=' + s for s in graph]), '-f', corpus, '--items',
                   str(a.items), '-n', str(a.n), '--tasks', '0', '--json', *text], 6)
    if not d:
        raise RuntimeError(why)
    out['quality'] = {k: d['quality'][k] for k in KEEP if k in d['quality']}
    return out


def processor():
    with open('/proc/cpuinfo') as f:
        lines = [line.split(':', 1) for line in f if ':' in line]
    facts = {k.strip(): v.strip() for k, v in reversed(lines)}
    flags = facts.get('flags', '').split()
    return {'name': facts.get('model name', '?'),
            'isa': [f for f in ('avx2', 'avx512f', 'avx512_vnni', 'avx512_bf16', 'amx_int8', 'amx_bf16') if f in flags]}


def line(*cells):
    print('| %s |' % ' | '.join(str(c) for c in cells))


def table(doc):
    line('model', 'mode', 'products below f32', 'prompts exact', 'tokens agree', 'first differences tie / real',
         'arg-max over text', 'flips tie / real', 'KL mean')
    line('---', '---', '---:', '---:', '---:', '---:', '---:', '---:', '---:')
    for e in doc['entries']:
        q = e.get('quality')
        if not q:
            line(e['model'], e['mode'], 'refused: ' + e['refused'], *[''] * 6)
            continue
        ties, flips = q['firstDifferencesWithin001'], q.get('flipsWithin001', 0)
        all_flips = q.get('flipsNearTie', 0) + q.get('flipsReal', 0)
        line(e['model'], e['mode'], e['facts']['productsBelowF32'], '%(promptsExact)d of %(prompts)d' % q,
             '%.2f %%' % (100 * q['tokensAgree'] / q['tokens']),
             '%d / %d' % (ties, q['prompts'] - q['promptsExact'] - ties),
             '%.2f %%' % (100 * q['top1Agreement']) if 'positions' in q else '',
             '%d / %d' % (flips, all_flips - flips), '%.1e' % q['kldMean'] if 'kldMean' in q else '')


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    for word in ('hetero', 'model', 'records', 'calibrate', 'text'):
        p.add_argument('--' + word)
    p.add_argument('--table', nargs='+')
    p.add_argument('-o')
    p.add_argument('-n', type=int, default=32)
    p.add_argument('--items', type=int, default=60)
    p.add_argument('--chunks', type=int, default=2)
    p.add_argument('--modes', default=','.join(MODES))
    a = p.parse_args()
    if a.table:
        for name in a.table:
            with open(name) as f:
                table(json.load(f))
        return
    if not (a.hetero and a.model and a.records and a.calibrate and a.o):
        p.error('--hetero, --model, --records, --calibrate and -o are needed')
    doc = {'processor': processor(), 'entries': []}
    if os.path.exists(a.o):
        with open(a.o) as f:
            doc = json.load(f)
    with tempfile.TemporaryDirectory() as top:
        corpus, calibrate = os.path.join(top, 'corpus.jsonl'), os.path.join(top, 'calibrate.txt')
        with open(a.records) as f, open(corpus, 'w') as out:
            for r in json.load(f)['records']:
                out.write(json.dumps({'prompt': r['prompt'], 'response': r['response']}) + '\n')
        with open(a.calibrate) as f, open(calibrate, 'w') as out:
            for r in map(json.loads, f.readlines()[-100:]):
                out.write(TURN % (r['prompt'], r['response']))
        for mode in a.modes.split(','):
            entry = {'model': os.path.basename(a.model), 'mode': mode, 'items': a.items, 'newTokens': a.n}
            entry.update(measure(a, [s.format(calibrate=calibrate) for s in MODES[mode]], corpus))
            doc['entries'] = [e for e in doc['entries'] if (e['model'], e['mode']) != (entry['model'], mode)] + [entry]
            print(mode, entry.get('quality') or entry['refused'], file=sys.stderr, flush=True)
    with open(a.o, 'w') as f:
        f.write('{"processor": %s, "entries": [\n%s\n]}\n'
                % (json.dumps(doc['processor']), ',\n'.join(json.dumps(e) for e in doc['entries'])))


if __name__ == '__main__':
    main()
