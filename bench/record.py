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
read bandwidth and multiply-add rate that any run of the cell measured. Complete compute, Cn, is a
prompt of n tokens and 16 tokens after it, from the cells ppn and tg@n. Needs only the standard
library.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

COMPLETE_TOKENS = 16


def split(cell):
    """'pp512' or 'tg32@2048' -> (prompt, generated, depth)."""
    kind, rest = cell[:2], cell[2:]
    n, _, depth = rest.partition('@')
    return (int(n), 0, 0) if kind == 'pp' else (0, int(n), int(depth or 0))


def commas(numbers):
    return ','.join(str(n) for n in numbers)


def run(argv, limit=1200, may_fail=False):
    p = subprocess.run(argv, capture_output=True, text=True, timeout=limit)
    if p.returncode and not (may_fail and p.stdout.strip()):
        raise RuntimeError('%s: exit %d: %s' % (argv[0], p.returncode, p.stderr.strip()[-300:]))
    return p.stdout


def hetero(a, model, cells, act):
    """{cell: samples}, {cell: facts}. Its own verdict on impossible figures is left to the table,
    which knows the bandwidth of all runs."""
    parts = [split(c) for c in cells]
    prompts, gens = [p for p, _, _ in parts if p], sorted({g for _, g, _ in parts if g})
    most = max(p + g + d for p, g, d in parts)
    out = json.loads(run([a.hetero, 'bench', model, '-p', commas(prompts) or '0', '-n', commas(gens) or '0',
                          '-d', '0' if prompts else commas(d for _, _, d in parts), '-r', str(a.reps),
                          '-t', str(a.threads), '-c', str(max(512, most) + 64), '--act', act, '--json',
                          '--log-level', 'error'], may_fail=True))
    samples, facts = {}, {}
    for cell, (p, g, d) in zip(cells, parts):
        name = 'pp%d' % p if p else 'tg%d' % g + (' @ d%d' % d if d else '')
        row = next(r for r in out['rows'] if r['test'] == name)
        samples[cell] = row['samples']
        facts[cell] = {k: row.get(k) for k in ('bytesPerToken', 'flopsPerToken', 'stages', 'barrierPercent')}
        facts[cell].update(read=out['machine']['readBytesPerS'], fma=out['machine']['fmaFlopsPerS'],
                           version=out['engine']['version'], machine=out['machine'])
    return samples, facts


def llama(a, model, cells, extra):
    parts = [split(c) for c in cells]
    argv = [a.llama, '-m', model, '-p', commas(p for p, _, _ in parts if p) or '0',
            '-n', commas(sorted({g for _, g, _ in parts if g})) or '0', '-t', str(a.threads),
            '-r', str(a.reps), '-o', 'json', *extra]
    if any(d for _, _, d in parts):
        argv += ['-d', commas(d for _, _, d in parts)]
    out = json.loads(run(argv))
    samples, facts = {}, {}
    for cell, (p, g, d) in zip(cells, parts):
        row = [r for r in out if (r['n_prompt'], r['n_gen'], r.get('n_depth', 0)) == (p, g, d)][-1]
        samples[cell] = row.get('samples_ts') or [row['avg_ts']]
        facts[cell] = {'build': row.get('build_commit'), 'cpu': row.get('cpu_info')}
    return samples, facts


def ik(a, model, cells, extra):
    """One cell and one sample a process; -gp PROMPT,GEN is generation at a depth."""
    samples, facts = {}, {}
    for cell in cells:
        prompt, gen, depth = split(cell)
        argv = [a.ik, '-m', model, '-t', str(a.threads), '-r', '1', '-o', 'json', *extra]
        argv += ['-p', str(prompt), '-n', '0'] if prompt else ['-p', '0', '-n', '0', '-gp', '%d,%d' % (depth, gen)]
        for _ in range(a.reps):
            row = json.loads(run(argv))[-1]
            samples.setdefault(cell, []).append(row['avg_ts'])
        facts[cell] = {'build': row.get('build_commit'), 'cpu': row.get('cpu_info')}
    return samples, facts


PEERS = {'llama.cpp': (llama, [['-fa', '1'], ['-fa', '0']]),
         'ik_llama.cpp': (ik, [['-fa', '1'], ['-fa', '1', '-rtr', '1'], ['-fa', '0', '-rtr', '1']])}


def find_cell(doc, kind, cell):
    for c in doc['cells']:
        if (c['type'], c['cell']) == (kind, cell):
            return c
    doc['cells'].append({'type': kind, 'cell': cell, 'samples': {}, 'facts': {}, 'failed': {}})
    return doc['cells'][-1]


def try_ways(a, model, cells, name):
    """The options with which a peer is fastest in the group's first cell, and all that were tried."""
    fn, ways = PEERS[name]
    tried, failed, once = [], {}, argparse.Namespace(**dict(vars(a), reps=1))
    for way in ways:
        try:
            tried.append((fn(once, model, cells[:1], way)[0][cells[0]][0], way))
        except (RuntimeError, ValueError, IndexError, KeyError) as e:
            failed[' '.join(way)] = str(e)[:300]
    return {'options': max(tried)[1] if tried else None, 'tried': tried, 'failed': failed}


def keep(doc, kind, name, samples, facts, options):
    for cell, got in samples.items():
        c = find_cell(doc, kind, cell)
        c['samples'].setdefault(name, []).extend(got)
        f = c['facts'].setdefault(name, {})
        best = {k: max(f.get(k) or 0, facts[cell][k]) for k in ('read', 'fma') if k in facts[cell]}
        f.update(facts[cell])
        f.update(best)
        if options:
            f['options'] = options


def measure(a, doc, save, start):
    """Rounds that are missing, as far as the time goes; true when nothing is left."""
    longest = 0
    for kind in a.types.split(','):
        model = os.path.join(a.models, 'qwen3-%s.gguf' % kind)
        for group in a.groups.split(','):
            cells = group.split('+')
            state = doc['groups'].setdefault('%s %s' % (kind, group), {'rounds': 0, 'peers': {}})
            while state['rounds'] < a.rounds:
                begin = time.monotonic()
                if longest and begin - start + 1.2 * longest > a.budget:
                    return False
                systems = [('hetero ' + act, hetero, act) for act in a.act.split(',')
                           if act != 'q8' or kind != 'f16']
                for name, binary in (('llama.cpp', a.llama), ('ik_llama.cpp', a.ik)):
                    if not binary:
                        continue
                    if name not in state['peers']:
                        state['peers'][name] = try_ways(a, model, cells, name)
                    if state['peers'][name]['options']:
                        systems.append((name, PEERS[name][0], state['peers'][name]['options']))
                for i in range(len(systems)):
                    name, fn, how = systems[(i + state['rounds']) % len(systems)]
                    samples, facts = fn(a, model, cells, how)
                    keep(doc, kind, name, samples, facts, how if name in PEERS else None)
                    print('%s round %d %s %s' % (kind, state['rounds'] + 1, name, ' '.join(
                        '%s %.2f' % (c, statistics.median(s)) for c, s in samples.items())),
                        file=sys.stderr, flush=True)
                state['rounds'] += 1
                longest = max(longest, time.monotonic() - begin)
                doc['loadAfter'] = os.getloadavg()
                save()
    return True


def cpu_name():
    with open('/proc/cpuinfo', encoding='ascii', errors='replace') as f:
        lines = f.read().splitlines()
    pick = {k.strip(): v.strip() for k, _, v in (line.partition(':') for line in lines)}
    flags = pick.get('flags', '').split()
    return {'model': pick.get('model name'), 'family': pick.get('cpu family'), 'number': pick.get('model'),
            'isa': [f for f in ('avx2', 'fma', 'avx512f', 'avx512_vnni', 'avx512_bf16') if f in flags],
            'cpus': os.cpu_count(), 'kernel': platform.release()}


def bounds(c):
    """(seconds a token by bytes, by operations) of a cell's floor; None where Hetero did not run."""
    own = [f for n, f in c['facts'].items() if n.startswith('hetero')]
    if not own:
        return None
    read, fma = max(f['read'] for f in own), max(f['fma'] for f in own)
    by_bytes, by_flops = own[0]['bytesPerToken'] / read, own[0]['flopsPerToken'] / fma
    return (0 if c['cell'].startswith('pp') else by_bytes), by_flops


def line(*fields):
    print('| ' + ' | '.join(str(f) for f in fields) + ' |')


def table_cells(doc, wrong):
    line('type', 'work', 'bound t/s', 'system', 'median t/s', 'range', 'n', 'share of bound', 'of the best peer')
    line('---', '---', '---:', '---', '---:', '---', '---:', '---:', '---:')
    for c in doc['cells']:
        med = {k: statistics.median(v) for k, v in c['samples'].items()}
        peers = [v for k, v in med.items() if not k.startswith('hetero')]
        least = bounds(c)
        top = 1 / max(least) if least else None
        for name, ts in med.items():
            s, own = c['samples'][name], name.startswith('hetero')
            share = 100 * ts / top if top and own else None
            # --act q8 multiplies integers: the multiply-add rate bounds only its attention.
            if share and (name != 'hetero q8' or least[0] > least[1]) and share > 100:
                wrong.append('%s %s %s: %.0f %% of the bound' % (c['type'], c['cell'], name, share))
            line(c['type'], c['cell'], '%.1f' % top if top else '', name, '%.2f' % ts,
                 '%.2f-%.2f' % (min(s), max(s)), len(s),
                 '%.0f %% %s' % (share, 'read' if least[0] > least[1] else 'FMA') if share else '',
                 '%.2f' % (ts / max(peers)) if own and peers else '')


def table_complete(doc):
    """Prompt and COMPLETE_TOKENS tokens after it, from medians."""
    by = {(c['type'], c['cell']): c for c in doc['cells']}
    head = False
    for kind, cell in list(by):
        n = split(cell)[0]
        tg = next((by[k] for k in by if k[0] == kind and n and split(k[1])[2] == n), None)
        pp = by[(kind, cell)]
        if not n or not tg:
            continue
        if not head:
            print()
            line('type', 'complete compute', 'bound ms', 'system', 'ms', 'of the best peer')
            line('---', '---', '---:', '---', '---:', '---:')
            head = True
        ms = {k: 1e3 * (n / statistics.median(pp['samples'][k]) +
                        COMPLETE_TOKENS / statistics.median(tg['samples'][k]))
              for k in pp['samples'] if k in tg['samples']}
        peers = [v for k, v in ms.items() if not k.startswith('hetero')]
        least = bounds(pp) and bounds(tg) and 1e3 * (n * max(bounds(pp)) + COMPLETE_TOKENS * max(bounds(tg)))
        for name, t in ms.items():
            line(kind, 'C%d' % n, '%.0f' % least if least else '', name, '%.0f' % t,
                 '%+.0f %%' % (100 * (t / min(peers) - 1)) if peers and name.startswith('hetero') else '')


def table_stages(doc):
    print()
    line('type', 'work', 'system', 'where the time goes: stage share of time (share of its bound)')
    line('---', '---', '---', '---')
    for c in doc['cells']:
        for name, f in c['facts'].items():
            stages = f.get('stages') or []
            total = sum(s['ns'] for s in stages)
            if not total:
                continue
            text = ', '.join('%s %.0f %% (%.0f)' % (s['stage'], 100 * s['ns'] / total, s['boundPercent'])
                             for s in stages if s['ns'] > total / 200)
            line(c['type'], c['cell'], name, '%s; at barriers %.0f %%' % (text, f.get('barrierPercent') or 0))


def table(paths):
    wrong = []
    for path in paths:
        with open(path, encoding='utf-8') as f:
            doc = json.load(f)
        table_cells(doc, wrong)
        table_complete(doc)
        table_stages(doc)
    for text in wrong:
        print('impossible: %s; one of the two figures is wrong, measure again' % text, file=sys.stderr)
    return 2 if wrong else 0


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--hetero', default='./hetero')
    ap.add_argument('--llama')
    ap.add_argument('--ik')
    ap.add_argument('--models')
    ap.add_argument('-o', '--out')
    ap.add_argument('--types', default='f16,q8_0,q4_0,q4_k_m')
    ap.add_argument('--groups', default='pp32+pp512,tg32@32+tg32@512')
    ap.add_argument('--act', default='f32,q8')
    ap.add_argument('--rounds', type=int, default=3)
    ap.add_argument('--reps', type=int, default=2)
    ap.add_argument('--threads', type=int, default=2)
    ap.add_argument('--budget', type=float, default=450)
    ap.add_argument('--table', nargs='+')
    a = ap.parse_args()
    if a.table:
        sys.exit(table(a.table))
    if not a.models or not a.out:
        ap.error('--models and -o are needed')
    doc = {'schema': 'hetero/bench/2', 'utc': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
           'machine': cpu_name(), 'threads': a.threads, 'loadBefore': os.getloadavg(), 'groups': {}, 'cells': []}
    if os.path.exists(a.out):
        with open(a.out, encoding='utf-8') as f:
            doc = json.load(f)
        if doc.get('schema') != 'hetero/bench/2' or doc['threads'] != a.threads:
            sys.exit('%s: another kind of record; give another -o' % a.out)

    def save():
        with open(a.out + '.part', 'w', encoding='utf-8') as f:
            json.dump(doc, f, indent=1)
            f.write('\n')
        os.replace(a.out + '.part', a.out)

    done = measure(a, doc, save, time.monotonic())
    if not done:
        print('more rounds are left: run the same command again', file=sys.stderr)
        sys.exit(3)
    sys.exit(table([a.out]))


if __name__ == '__main__':
    main()
