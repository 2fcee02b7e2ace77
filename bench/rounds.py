"""What the records of this folder share: systems measured in rounds, peers and their options, the file that is
continued, bounds and tables. A system is (label, function, how); its function takes (options, model, cells,
how) and returns [(name, {cell: samples}, {cell: facts})]. Needs only the standard library."""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

SCHEMA = 'hetero/bench/2'
COMPLETE_TOKENS = 16
RATES = {'read': 'readBytesPerS', 'fma': 'fmaFlopsPerS', 'int8': 'int8OpsPerS', 'int8summed': 'int8SummedOpsPerS'}
BELOW_F32 = (' q8', ' bf16')    # how the names of systems end whose products are not in f32


def asked(parser, table, *needed):
    """The options of a bench that has --table FILE, which prints what the file holds and ends the program, and that
    otherwise needs these."""
    a = parser.parse_args()
    if a.table:
        with open(a.table, encoding='utf-8') as f:
            table(json.load(f))
        sys.exit(0)
    lacking = [n for n in needed if not getattr(a, n.replace('-', '_'))]
    if lacking:
        parser.error('needed: ' + ', '.join('--' + n for n in lacking))
    return a


def continued(path, doc):
    """What the file holds already, or a new document."""
    if not os.path.exists(path):
        return doc
    with open(path, encoding='utf-8') as f:
        return json.load(f)


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
    return [('llama.cpp', samples, facts)]


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
    return [('ik_llama.cpp', samples, facts)]


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
            tried.append((fn(once, model, cells[:1], way)[0][1][cells[0]][0], way))
        except (RuntimeError, ValueError, IndexError, KeyError) as e:
            failed[' '.join(way)] = str(e)[:300]
    return {'options': max(tried)[1] if tried else None, 'tried': tried, 'failed': failed}


def pace(sustained, n):
    """The fact of a run of n samples: what the machine kept up meanwhile, as `hetero bench` says it; {} if it does
    not."""
    rate = sustained.get('readBytesPerS') or sustained.get('fmaFlopsPerS')
    return {'sustained': [rate] * n} if rate else {}


def keep(doc, kind, name, samples, facts, options):
    for cell, got in samples.items():
        c = find_cell(doc, kind, cell)
        c['samples'].setdefault(name, []).extend(got)
        f = c['facts'].setdefault(name, {})
        best = {k: max(f.get(k) or 0, facts[cell][k]) for k in RATES if k in facts[cell]}
        paces = f.get('sustained', []) + facts[cell].get('sustained', [])
        f.update(facts[cell])
        f.update(best)
        if paces:
            f['sustained'] = paces  # one for each sample
        if options:
            f['options'] = options


def peers(a, model, cells, state):
    """The peers of a group that run at all, each as it was fastest when it was first tried."""
    systems = []
    for name, binary in (('llama.cpp', a.llama), ('ik_llama.cpp', a.ik)):
        if not binary:
            continue
        if name not in state['peers']:
            state['peers'][name] = try_ways(a, model, cells, name)
        if state['peers'][name]['options']:
            systems.append((name, PEERS[name][0], state['peers'][name]['options']))
    return systems


def measure(a, doc, save, own):
    """Rounds that are missing, as far as the time goes; true when nothing is left. own(kind): our systems."""
    longest, start = {}, time.monotonic()
    for kind in a.types.split(','):
        model = os.path.join(a.models, 'qwen3-%s.gguf' % kind)
        for group in a.groups.split(','):
            cells = group.split('+')
            state = doc['groups'].setdefault('%s %s' % (kind, group), {'rounds': 0, 'peers': {}})
            while state['rounds'] < a.rounds:
                begin = time.monotonic()
                guess = longest.get(group, max(longest.values(), default=0))
                if guess and begin - start + 1.2 * guess > a.budget:
                    return False
                systems = own(kind) + peers(a, model, cells, state)
                for i in range(len(systems)):
                    label, fn, how = systems[(i + state['rounds']) % len(systems)]
                    for name, samples, facts in fn(a, model, cells, how):
                        keep(doc, kind, name, samples, facts, how if label in PEERS else None)
                        print('%s round %d %s %s' % (kind, state['rounds'] + 1, name, ' '.join(
                            '%s %.2f' % (c, statistics.median(s)) for c, s in samples.items())),
                            file=sys.stderr, flush=True)
                state['rounds'] += 1
                longest[group] = max(longest.get(group, 0), time.monotonic() - begin)
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
    by_flops = own[0]['flopsPerToken'] / max(f['fma'] for f in own)
    if c['cell'].startswith('pp'):
        return 0, by_flops
    return own[0]['bytesPerToken'] / max(f['read'] for f in own), by_flops


def share_int8(c, name, ts, rate):
    """Percent of the bound of a prompt whose products are of bytes: those at the rate of that name, attention at the
    multiply-adds'. None: it has none, or the rate was not measured."""
    f = c['facts'].get(name) or {}
    stages = {s['stage']: s.get('flops', 0) for s in f.get('stages') or []}
    if not name.endswith(' q8') or not c['cell'].startswith('pp') or not f.get(rate) or not sum(stages.values()):
        return None
    attn = stages.get('attn', 0) / sum(stages.values())
    return 100 * ts * f['flopsPerToken'] * (attn / f['fma'] + (1 - attn) / f[rate])


def of_sustained(c, name):
    """Percent of what the machine kept up around the samples: their median over the median rate. None: unknown."""
    f = c['facts'].get(name) or {}
    paces = f.get('sustained')
    if not paces or len(paces) != len(c['samples'][name]):
        return None
    work = f['flopsPerToken'] if c['cell'].startswith('pp') else f['bytesPerToken']
    return 100 * statistics.median(c['samples'][name]) * work / statistics.median(paces)


def line(*fields):
    print('| ' + ' | '.join(str(f) for f in fields) + ' |')


def table_cells(doc, wrong):
    line('type', 'work', 'bound t/s', 'system', 'median t/s', 'range', 'n', 'share of bound',
         'of what was sustained', 'of the best peer')
    line('---', '---', '---:', '---', '---:', '---', '---:', '---:', '---:', '---:')
    for c in doc['cells']:
        med = {k: statistics.median(v) for k, v in c['samples'].items()}
        peers = [v for k, v in med.items() if not k.startswith('hetero')]
        least = bounds(c)
        top = 1 / max(least) if least else None
        for name, ts in med.items():
            s, own = c['samples'][name], name.startswith('hetero')
            # Products below f32 have rates of their own: the multiply-add rate is no bound of theirs.
            ours = own and not (name.endswith(BELOW_F32) and least and least[1] >= least[0])
            shares = [(100 * ts / top, 'read' if least[0] > least[1] else 'FMA')] if top and ours else []
            shares += [(share, label) for rate, label in (('int8', 'int8'), ('int8summed', 'summed'))
                       for share in [share_int8(c, name, ts, rate)] if share]
            kept = of_sustained(c, name) if ours else None
            if shares and min(shares)[0] > 100:
                wrong.append('%s %s %s: %.0f %% of the bound' % (c['type'], c['cell'], name, min(shares)[0]))
            line(c['type'], c['cell'], '%.1f' % top if top else '', name, '%.2f' % ts,
                 '%.2f-%.2f' % (min(s), max(s)), len(s), ' / '.join('%.0f %% %s' % x for x in shares),
                 '%.0f %%' % kept if kept else '',
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
    head = False
    for c in doc['cells']:
        for name, f in c['facts'].items():
            stages = f.get('stages') or []
            total = sum(s['ns'] for s in stages)
            if not total:
                continue
            if not head:
                print()
                line('type', 'work', 'system', 'where the time goes: stage share of time (share of its bound)')
                line('---', '---', '---', '---')
                head = True
            whole = name.endswith(BELOW_F32) and c['cell'].startswith('pp') and not f.get('int8')
            text = ', '.join('%s %.0f %%' % (s['stage'], 100 * s['ns'] / total) +
                             ('' if whole or s['boundPercent'] is None else ' (%.0f)' % s['boundPercent'])
                             for s in stages if s['ns'] > total / 200)
            line(c['type'], c['cell'], name, '%s; at barriers %.0f %%' % (text, f.get('barrierPercent') or 0))


def load(path):
    """A record with at least one cell; ends the program where the file is none."""
    try:
        with open(path, encoding='utf-8') as f:
            doc = json.load(f)
    except (OSError, ValueError, RecursionError) as e:
        sys.exit('%s: no record: %s' % (path, e))
    if not isinstance(doc, dict) or doc.get('schema') != SCHEMA:
        sys.exit('%s: no record of schema %s; make one with -o' % (path, SCHEMA))
    cells = doc.get('cells')
    if not isinstance(cells, list) or not all(isinstance(c, dict) and {'type', 'cell', 'samples', 'facts'} <= set(c)
                                              for c in cells):
        sys.exit('%s: damaged: its cells lack members' % path)
    return doc


def table(paths, *more):
    """Tables of records, those of the functions `more` behind them; 2 if a figure cannot be true."""
    wrong = []
    for path in paths:
        doc = load(path)
        table_cells(doc, wrong)
        for fn in (*more, table_complete, table_stages):
            fn(doc)
    for text in wrong:
        print('impossible: %s; one of the two figures is wrong, measure again' % text, file=sys.stderr)
    return 2 if wrong else 0


def options(doc, **default):
    """The options that all records have, for a parser that adds its own."""
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--llama')
    ap.add_argument('--ik')
    ap.add_argument('--models')
    ap.add_argument('-o', '--out')
    ap.add_argument('--types')
    ap.add_argument('--groups')
    ap.add_argument('--rounds', type=int, default=3)
    ap.add_argument('--reps', type=int, default=2)
    ap.add_argument('--threads', type=int, default=2)
    ap.add_argument('--budget', type=float, default=450)
    ap.add_argument('--table', nargs='+')
    ap.set_defaults(**default)
    return ap


def main(ap, own, *more):
    """A record's whole run; own(options) gives the function that lists our systems for a type of model."""
    a = ap.parse_args()
    if a.table:
        sys.exit(table(a.table, *more))
    if not a.models or not a.out:
        ap.error('--models and -o are needed')
    doc = {'schema': SCHEMA, 'utc': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
           'machine': cpu_name(), 'threads': a.threads, 'loadBefore': os.getloadavg(), 'groups': {}, 'cells': []}
    if os.path.exists(a.out):
        doc = load(a.out)
        if doc.get('schema') != SCHEMA or doc['threads'] != a.threads:
            sys.exit('%s: another kind of record; give another -o' % a.out)

    def save():
        with open(a.out + '.part', 'w', encoding='utf-8') as f:
            json.dump(doc, f, indent=1)
            f.write('\n')
        os.replace(a.out + '.part', a.out)

    if not measure(a, doc, save, own(a)):
        print('more rounds are left: run the same command again', file=sys.stderr)
        sys.exit(3)
    sys.exit(table([a.out], *more))
