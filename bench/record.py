#!/usr/bin/env python3
"""The benchmark of record: Hetero beside llama.cpp and ik_llama.cpp on the same file, interleaved.

usage: record.py --hetero BIN [--llama LLAMA_BENCH] [--ik LLAMA_BENCH] --models DIR -o OUT.json
                 [--types f16,q8_0,q4_0,q4_k_m] [--cells pp512,tg32@32] [--reps 6] [--act f32,q8]
       record.py --table OUT.json [OUT.json ...]

DIR holds qwen3-TYPE.gguf as bench/make_qwen3.py writes them. One repetition runs every system once,
in an order that is turned by one place each time; every run is a fresh process with two threads.
Peers are first tried once with flash attention on and off (ik_llama.cpp also with -rtr); the faster
way counts and is what is repeated. Raw samples stay in OUT.json. Needs only the standard library.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time


def cell_args(cell):
    """'pp512' or 'tg32@2048' -> (prompt, generated, depth)."""
    kind, rest = cell[:2], cell[2:]
    n, _, depth = rest.partition('@')
    return (int(n), 0, 0) if kind == 'pp' else (0, int(n), int(depth or 0))


def run(argv, limit=1200):
    p = subprocess.run(argv, capture_output=True, text=True, timeout=limit)
    if p.returncode:
        raise RuntimeError('%s: exit %d: %s' % (argv[0], p.returncode, p.stderr.strip()[-300:]))
    return p.stdout


def hetero(binary, model, cell, act, threads):
    prompt, gen, depth = cell_args(cell)
    out = json.loads(run([binary, 'bench', model, '-p', str(prompt), '-n', str(gen), '-d', str(depth),
                          '-r', '1', '-t', str(threads), '-c', str(max(512, prompt, gen + depth) + 64),
                          '--act', act, '--json', '--log-level', 'error']))
    row = out['rows'][0]
    return row['ts'], {'bytesPerToken': row['bytesPerToken'], 'flopsPerToken': row['flopsPerToken'],
                       'machine': out['machine'], 'version': out['engine']['version']}


def llama(binary, model, cell, extra, threads):
    prompt, gen, depth = cell_args(cell)
    argv = [binary, '-m', model, '-p', str(prompt), '-n', str(gen), '-t', str(threads), '-r', '1',
            '-o', 'json', *extra]
    if depth:
        argv += ['-d', str(depth)]
    out = json.loads(run(argv))
    row = [r for r in out if r['n_gen'] == gen and r['n_prompt'] == prompt][-1]
    return row['avg_ts'], {'build': row.get('build_commit'), 'cpu': row.get('cpu_info')}


def ik(binary, model, cell, extra, threads):
    """ik_llama.cpp's llama-bench has -gp PROMPT,GEN for generation at a depth."""
    prompt, gen, depth = cell_args(cell)
    argv = [binary, '-m', model, '-t', str(threads), '-r', '1', '-o', 'json', *extra]
    argv += ['-p', str(prompt), '-n', '0'] if prompt else ['-p', '0', '-n', '0', '-gp', '%d,%d' % (depth, gen)]
    rows = json.loads(run(argv))
    return rows[-1]['avg_ts'], {'build': rows[-1].get('build_commit'), 'cpu': rows[-1].get('cpu_info')}


PEERS = {'llama.cpp': (llama, [['-fa', '1'], ['-fa', '0']]),
         'ik_llama.cpp': (ik, [['-fa', '1'], ['-fa', '1', '-rtr', '1'], ['-fa', '0', '-rtr', '1']])}


def measure(a, model, kind, cell):
    systems = [('hetero ' + act, lambda act=act: hetero(a.hetero, model, cell, act, a.threads))
               for act in a.act.split(',') if act != 'q8' or kind != 'f16']
    facts, samples, failed = {}, {}, {}
    for name, binary in (('llama.cpp', a.llama), ('ik_llama.cpp', a.ik)):
        if not binary:
            continue
        fn, ways = PEERS[name]
        tried = []
        for way in ways:
            try:
                tried.append((fn(binary, model, cell, way, a.threads)[0], way))
            except (RuntimeError, ValueError, IndexError, KeyError) as e:
                failed[name + ' ' + ' '.join(way)] = str(e)[:300]
        if tried:
            way = max(tried)[1]
            facts[name] = {'options': way, 'tried': [[t, w] for t, w in tried]}
            systems.append((name, lambda fn=fn, b=binary, w=way: fn(b, model, cell, w, a.threads)))
    for rep in range(a.reps):
        for i in range(len(systems)):
            name, fn = systems[(i + rep) % len(systems)]
            ts, fact = fn()
            samples.setdefault(name, []).append(ts)
            facts.setdefault(name, {}).update(fact)
            print('%s %s %d/%d %s %.2f' % (kind, cell, rep + 1, a.reps, name, ts), file=sys.stderr, flush=True)
    return {'type': kind, 'cell': cell, 'samples': samples, 'facts': facts, 'failed': failed}


def cpu_name():
    with open('/proc/cpuinfo', encoding='ascii', errors='replace') as f:
        lines = f.read().splitlines()
    pick = {k.strip(): v.strip() for k, _, v in (line.partition(':') for line in lines)}
    flags = pick.get('flags', '').split()
    return {'model': pick.get('model name'), 'family': pick.get('cpu family'), 'number': pick.get('model'),
            'isa': [f for f in ('avx2', 'fma', 'avx512f', 'avx512_vnni', 'avx512_bf16') if f in flags],
            'cpus': os.cpu_count(), 'kernel': platform.release()}


def table(paths):
    print('| type | work | system | median tok/s | range | n | share of limit | ratio to best peer |')
    print('|---|---|---|---|---|---|---|---|')
    for path in paths:
        doc = json.load(open(path, encoding='utf-8'))
        for c in doc['cells']:
            med = {k: statistics.median(v) for k, v in c['samples'].items()}
            peers = [v for k, v in med.items() if not k.startswith('hetero')]
            for name, ts in med.items():
                s, f = c['samples'][name], c['facts'][name]
                share = ratio = ''
                if name.startswith('hetero'):
                    m = f['machine']
                    by_bytes = ts * f['bytesPerToken'] / m['readBytesPerS']
                    by_flops = ts * f['flopsPerToken'] / m['fmaFlopsPerS']
                    share = '%.0f %% %s' % (100 * max(by_bytes, by_flops),
                                            'read' if by_bytes > by_flops else 'FMA')
                    ratio = '%.2f' % (ts / max(peers)) if peers else ''
                print('| %s | %s | %s | %.2f | %.2f–%.2f | %d | %s | %s |' %
                      (c['type'], c['cell'], name, ts, min(s), max(s), len(s), share, ratio))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--hetero', default='./hetero')
    ap.add_argument('--llama')
    ap.add_argument('--ik')
    ap.add_argument('--models')
    ap.add_argument('-o', '--out')
    ap.add_argument('--types', default='f16,q8_0,q4_0,q4_k_m')
    ap.add_argument('--cells', default='pp512,tg32@32')
    ap.add_argument('--act', default='f32,q8')
    ap.add_argument('--reps', type=int, default=6)
    ap.add_argument('--threads', type=int, default=2)
    ap.add_argument('--table', nargs='+')
    a = ap.parse_args()
    if a.table:
        table(a.table)
        return
    if not a.models or not a.out:
        ap.error('--models and -o are needed')
    doc = {'schema': 'hetero/bench/1', 'utc': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
           'machine': cpu_name(), 'threads': a.threads, 'loadBefore': os.getloadavg(), 'cells': []}
    for kind in a.types.split(','):
        for cell in a.cells.split(','):
            doc['cells'].append(measure(a, os.path.join(a.models, 'qwen3-%s.gguf' % kind), kind, cell))
            doc['loadAfter'] = os.getloadavg()
            with open(a.out, 'w', encoding='utf-8') as f:
                json.dump(doc, f, indent=1)
                f.write('\n')
    table([a.out])


if __name__ == '__main__':
    main()
