#!/usr/bin/env python3
"""bench/record.py and bench/graph_record.py on programs that only print figures: rounds are interleaved, kept
and continued, the budget stops between rounds, bounds and complete compute are what the figures say, and a figure
above the machine's is refused."""
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HETERO = '''#!/usr/bin/env python3
import json, sys
a = dict(zip(sys.argv[3::2], sys.argv[4::2]))
rows, ts = [], %s
for d in a['-d'].split(','):
    for kind, key in (('pp', '-p'), ('tg', '-n')):
        for n in a[key].split(','):
            if n == '0': continue
            name = kind + n + (' @ d' + d if d != '0' else '')
            rows.append({'test': name, 'samples': [ts[kind]] * int(a['-r']), 'bytesPerToken': 100.0,
                         'flopsPerToken': 50.0, 'barrierPercent': 5.0,
                         'sustained': {'fmaFlopsPerS': 4000.0} if kind == 'pp' else {'readBytesPerS': 1250.0},
                         'stages': [{'stage': 'head', 'ns': 10.0, 'flops': 30.0, 'boundPercent': 40.0},
                                    {'stage': 'attn', 'ns': 10.0, 'flops': 10.0, 'boundPercent': 40.0}]})
ints = {'int8OpsPerS': 7500.0, 'int8SummedOpsPerS': 15000.0, 'int8Isa': 'avx2'} if a['--act'] == 'q8' else {}
print(json.dumps({'rows': rows, 'machine': {'readBytesPerS': 2000.0, 'fmaFlopsPerS': 5000.0, **ints},
                  'engine': {'version': '1'}}))
'''
PEER = '''#!/usr/bin/env python3
import json, sys
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
fa = float(a['-fa'])
print(json.dumps([{'n_prompt': int(p), 'n_gen': int(g), 'n_depth': int(d), 'avg_ts': 4 + fa,
                   'samples_ts': [4 + fa] * int(a['-r'])}
                  for p in a['-p'].split(',') for g in a['-n'].split(',') for d in a.get('-d', '0').split(',')]))
'''
GRAPH = '''#!/usr/bin/env python3
import json, sys
model, rows, reps, arms, settings, tokens = sys.argv[1:]
assert settings == 'strict=1,memory=16000,cache=there' and tokens == '2', sys.argv
facts = {'inferencePrecision': 'f32', 'productsBelowF32': 0, 'dynamicQuantizationGroup': '0', 'compiledMs': 70,
         'fromCache': True, 'cancelMs': 5}
ts = {'cpu': 40.0, 'cpu-q8': 150.0, 'graph': 60.0, 'graph-q8': 170.0, 'graph-bf16': 180.0}
print(json.dumps({'version': '1', 'fmaFlopsPerS': 5000.0, 'rows': [{
    'rows': int(n), 'sustainedFmaFlopsPerS': 4000.0, 'arms': [
    {'arm': a, 'executed': %s, 'bytesPerToken': 100.0, 'flopsPerToken': 50.0, 'sameTokens': 2,
     'facts': facts if a.startswith('graph') else None, 'tokensPerS': [ts[a]] * int(reps)}
    for a in arms.split(',')]} for n in rows.split(',')]}))
'''
passed, failed = 0, 0


def check(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print('FAIL ' + what)


def check_tables():
    """Rows of a record that README.md and the pages show are rows that their record prints."""
    printed = set()
    for name in ('cpu-zen3', 'cpu-xeon-lanes', 'graph-zen3', 'graph-xeon-h200'):
        path = os.path.join(ROOT, 'bench', 'results', name + '.json')
        p = subprocess.run([sys.executable, os.path.join(ROOT, 'bench', 'graph_record.py' if 'graph' in name
                                                         else 'record.py'), '--table', path],
                           capture_output=True, text=True, timeout=60)
        check(p.returncode == 0 and p.stdout, '%s prints: %d %s' % (name, p.returncode, p.stderr))
        printed.update(p.stdout.splitlines())
    shown = 0
    for page in ('README.md', 'docs/cpu.md', 'docs/graph.md'):
        with open(os.path.join(ROOT, page), encoding='utf-8') as f:
            for row in f:
                if re.match(r'\| \S+ \| (pp|tg|C)\d+\S* \|', row):
                    shown += 1
                    check(row.strip() in printed, '%s: no record prints %s' % (page, row.strip()))
    check(shown >= 80, 'records are shown: %d' % shown)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        def program(name, text):
            path = os.path.join(tmp, name)
            with open(path, 'w', encoding='utf-8') as f:
                f.write(text)
            os.chmod(path, 0o755)
            return path

        def start(script, *more):
            p = subprocess.run([sys.executable, os.path.join(ROOT, 'bench', script), '--llama', program('peer', PEER),
                                '--models', tmp, '-o', out, *more], capture_output=True, text=True, timeout=120)
            return p.returncode, p.stdout, p.stderr

        def record(hetero, *more):
            return start('record.py', '--hetero', hetero, '--types', 'f16', '--groups', 'pp64,tg8@64', '--reps', '2', *more)

        good = program('good', HETERO % "{'pp': 40.0, 'tg': 10.0}")
        out = os.path.join(tmp, 'out.json')
        code, text, err = record(good, '--rounds', '1')
        check(code == 0, 'one round ends well: %d %s' % (code, err))
        code, text, err = record(good, '--rounds', '3', '--budget', '0')
        with open(out, encoding='utf-8') as f:
            doc = json.load(f)
        check(code == 3, 'a budget that is spent leaves work for the next call: %d' % code)
        check(doc['groups']['f16 pp64']['rounds'] == 2, 'one round at least is done: %s' % doc['groups'])
        code, text, err = record(good, '--rounds', '3')
        with open(out, encoding='utf-8') as f:
            doc = json.load(f)
        check(code == 0 and all(len(s) == 6 for c in doc['cells'] for s in c['samples'].values()),
              'three rounds of two samples of every system: %d %s' % (code, doc['cells']))
        check(doc['cells'][0]['facts']['llama.cpp']['options'] == ['-fa', '1'], 'the faster way of a peer is kept')
        check('| f16 | tg8@64 | 20.0 | hetero f32 | 10.00 | 10.00-10.00 | 6 | 50 % read | 80 % | 2.00 |' in text,
              'decode against its bound and the peer: ' + text)
        check('| f16 | pp64 | 100.0 | hetero f32 | 40.00 |' in text, 'a prompt is bound by operations')
        # 64/40 + 16/10 = 3.2 s; the peer 80/5 = 16 s; the bound 64/100 + 16/20 = 1.44 s.
        check('| f16 | C64 | 1440 | hetero f32 | 3200 | -80 % |' in text, 'complete compute: ' + text)
        check('head 50 % (40), attn 50 % (40); at barriers 5 %' in text, 'the stages are listed')
        # A token: 12.5 operations of attention at 5000 a second and 37.5 of bytes at 7500 or 15000: 7.5 and 5 ms.
        out = os.path.join(tmp, 'ints.json')
        ints = ('--types', 'q8_0', '--act', 'q8', '--rounds', '1')
        code, text, err = record(good, *ints)
        check(code == 0 and '| q8_0 | pp64 | 100.0 | hetero q8 | 40.00 | 40.00-40.00 | 2 | 30 % int8 / 20 % summed |  | 8.00 |'
              in text, 'a prompt of integers against the rates of theirs: %d %s %s' % (code, text, err))
        out = os.path.join(tmp, 'ints-bad.json')
        code, text, err = record(program('over', HETERO % "{'pp': 205.0, 'tg': 10.0}"), *ints)
        check(code == 2 and 'impossible: q8_0 pp64 hetero q8: 102 % of the bound' in err,
              'above the greater of them is refused: %d %s' % (code, err))
        out = os.path.join(tmp, 'bad.json')
        code, text, err = record(program('bad', HETERO % "{'pp': 40.0, 'tg': 21.0}"), '--rounds', '1')
        check(code == 2 and 'impossible: f16 tg8@64 hetero f32: 105 % of the bound' in err,
              'more than the machine can do is refused: %d %s' % (code, err))
        out = os.path.join(tmp, 'graph.json')
        more = ['--types', 'f16,q8_0', '--groups', 'pp32,pp128', '--cache', 'there', '--rounds']
        code, text, err = start('graph_record.py', '--graph', program('graph', GRAPH % "a.split('-')[0]"), *more, '2')
        check(code == 0, 'prompts on cpu and graph: %d %s' % (code, err))
        check('| f16 | pp128 | 100.0 | hetero graph | 60.00 | 60.00-60.00 | 4 | 60 % FMA | 75 % | 12.00 |' in text,
              'graph against its bound and the peer: ' + text)
        check(text.count('| hetero cpu q8 | 150.00 |') == 2, '8-bit activations for the quantised model only: ' + text)
        check('| q8_0 | pp32 | hetero graph | f32 | 0 | 0 | 70 (from the folder) | 5 | 2 of 2 |' in text,
              'what the graph said: ' + text)
        check('graph q8' not in text and 'graph bf16' not in text, 'less than f32 only where asked for: ' + text)
        out = os.path.join(tmp, 'acts.json')
        code, text, err = start('graph_record.py', '--graph', program('graph', GRAPH % "a.split('-')[0]"), *more, '1',
                                '--acts', 'q8,bf16')
        check(code == 0 and text.count('| hetero graph bf16 | 180.00 |') == 4,
              'bf16 beside the exact graph, and above the rate of f32: %d %s %s' % (code, err, text))
        check(text.count('| hetero graph q8 | 170.00 |') == 2, 'q8 for the quantised model only: ' + text)
        out = os.path.join(tmp, 'graph.json')
        code, text, err = start('graph_record.py', '--graph', program('lies', GRAPH % "'cpu'"), *more, '3')
        check(code == 1 and 'graph ran on cpu' in err, 'another engine in its place is refused: %d %s' % (code, err))
        for text, word in (('', 'no record'), ('[]', 'no record'), ('{"schema": 3}', 'no record'),
                           ('{"schema": "hetero/bench/2", "cells": [{"type": "f16"}]}', 'lack members')):
            out = program('harmed.json', text)
            p = subprocess.run([sys.executable, os.path.join(ROOT, 'bench', 'record.py'), '--table', out],
                               capture_output=True, text=True, timeout=60)
            check(p.returncode == 1 and word in p.stderr and 'harmed.json' in p.stderr and 'Traceback' not in p.stderr,
                  'a file that is no record: %r %s' % (text, p.stderr))
    check_tables()
    print('%d passed, %d failed, 0 skipped' % (passed, failed))
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
