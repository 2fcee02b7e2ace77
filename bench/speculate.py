#!/usr/bin/env python3
"""Guessing ahead beside plain decoding, interleaved: what each way gains, and what it keeps.

usage: speculate.py --hetero BIN --model FILE --draft FILE --stories quality-400.jsonl -o OUT.json
                    [--sets lookup,draft,parallel] [--ways greedy,T,reject] [--prompts 20]
                    [--stories-n 100] [--reps 6] [-n 64] [--act q8] [--threads 2] [--budget 450]
                    [--engine NAME] [--draft-engine NAME]
       speculate.py --table OUT.json

Sets: lookup (rewrite, extract and code-edit prompts and free prose, --prompts of each), draft (the
first --stories-n story prompts; greedy, T = 0.7, and T = 0.7 by rejection: --ways) and parallel (a tenth of
them: one thread for each model, against both threads for the model alone; with --draft-engine each
model on its own device with all it has). One cell is a prompt under a way of sampling. A pair is a plain run and one with guesses, in turns which comes first; a
repetition is a pair of every cell; a cell's ratio is the median over its pairs of decode time plain
/ with. A set's figure is the median
of its cells, with the quartiles. Every pair must have written the same tokens, except under
rejection, where only the number is the same.

OUT.json is written after every pair and continued when it exists; no pair is begun that would end
behind the budget; --table shows what there is so far. Exit: 0 all is there, 3 run the same command again,
1 tokens differ. Standard library only.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import rounds

WORDS = ('river stone window garden lantern market winter copper basket signal letter harbour '
         'engine blanket mirror ladder orchard compass feather thunder velvet pencil marble').split()


def text(i, n):
    """n words that follow no pattern a lookup could know."""
    x, out = i * 7919 + 17, []
    for k in range(n):
        x = (x * 1103515245 + 12345) % 2**31
        out.append(WORDS[(x >> 8) % len(WORDS)] + ('.' if k % 9 == 8 else ''))
    return ' '.join(out)


def rewrite(i):
    return ('Copy the following text exactly, word for word.\n\nText: ' + text(i, 45) +
            '\n\nCopy: ' + ' '.join(text(i, 45).split()[:4]))


def extract(i):
    rows = ['%s %s: %d' % (WORDS[(i + 3 * k) % len(WORDS)], WORDS[(2 * i + k) % len(WORDS)],
                           (i + 1) * 13 + 7 * k) for k in range(12)]
    return ('A list of entries:\n' + '\n'.join(rows) + '\n\nThe same list, all entries in order:\n' +
            rows[0] + '\n')


def code(i):
    name, arg = WORDS[i % len(WORDS)], WORDS[(i + 5) % len(WORDS)]
    body = ('def %s_total(%s, limit):\n    total = 0\n    for item in %s:\n        if item.size > limit:\n'
            '            continue\n        total += item.size * item.count\n    return total\n'
            % (name, arg, arg))
    return ('The function:\n' + body + '\nThe same function with the last line changed to return '
            'total + %d:\n' % i + body.split('\n')[0] + '\n')


def prose(i):
    begins = ('It was late in the year when', 'My grandmother used to say that', 'The trouble with maps is',
              'Nobody in the village remembered', 'On the train north she')
    return begins[i % 5] + ' ' + WORDS[i % len(WORDS)] + 's'


def cells(a):
    """[(set, kind, prompt, extra options, plain options)] in the order they are run: turn by turn."""
    out = []
    sets = a.sets.split(',')
    greedy, warm = ['--temp', '0'], ['--temp', '0.7', '-s', '7']
    if 'lookup' in sets:
        for i in range(a.prompts):
            for kind in (rewrite, extract, code, prose):
                out.append(('lookup', kind.__name__, kind(i), greedy, ['--lookup'], []))
    stories = []
    with open(a.stories, encoding='utf-8') as f:
        for line in f:
            stories.append(json.loads(line)['prompt'])
    md = ['-md', a.draft] + (['--draft-engine', a.draft_engine] if a.draft_engine else [])
    share = [] if a.draft_engine else ['-t', '1']
    for i, p in enumerate(stories[:a.stories_n]):
        ways = {'greedy': (greedy, md), 'T': (warm, md), 'reject': (warm, md + ['--draft-accept', 'reject'])}
        for way in a.ways.split(',') if 'draft' in sets else ():
            out.append(('draft', {'greedy': way, 'T': 'T 0.7', 'reject': 'T 0.7 reject'}[way], p, *ways[way], []))
        if 'parallel' in sets and i % 10 == 0:
            for name, how in (('greedy', greedy), ('T 0.7', warm)):
                out.append(('parallel', name, p, how, md + ['--draft-parallel'] + share, []))
    return out


def run(a, prompt, how, more):
    argv = [a.hetero, 'run', a.model, '-p', prompt, '-n', str(a.n), '--act', a.act, '--ignore-eos',
            '--json'] + how + more + (['--engine', a.engine] if a.engine else [])
    if '-t' not in more:
        argv += ['-t', str(a.threads)]
    p = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    if p.returncode:
        raise RuntimeError('%s: exit %d: %s' % (' '.join(argv[:2]), p.returncode, p.stderr.strip()[-300:]))
    d = json.loads(p.stdout)
    ph = [x for x in d['receipt']['phases'] if x['phase'] == 'decode'][0]
    s = ph.get('speculation', {})
    return {'ids': d['ids'], 'ns': ph['ns'], 'drafted': ph['drafted'], 'accepted': ph['accepted'],
            'rounds': s.get('rounds', 0), 'draftNs': s.get('draftNs', 0), 'runNs': ph['runNs']}


def pair(a, c, turn):
    """One plain run and one with guesses, in turns which comes first."""
    _, kind, prompt, how, more, plain_more = c
    two = {}
    for which in ('plain', 'with') if turn % 2 == 0 else ('with', 'plain'):
        two[which] = run(a, prompt, how, more if which == 'with' else plain_more)
    two['same'] = two['plain'].pop('ids') == two['with'].pop('ids') or 'reject' in kind
    return two


def ratio(pairs):
    return statistics.median(p['plain']['ns'] / p['with']['ns'] for p in pairs)


def table(doc):
    rows = {}
    for key, c in doc['cells'].items():
        rows.setdefault(tuple(key.split('|')[:2]), []).append(c)
    print('| set | work | prompts | median | quartiles | accepted / drafted | draft ms, run ms, host ms '
          '| same tokens |')
    print('|---|---|---|---|---|---|---|---|')
    for (s, kind), cs in sorted(rows.items()):
        r = sorted(ratio(pairs) for pairs in cs)
        w = [p['with'] for pairs in cs for p in pairs]
        n = len(w)
        q = (r[len(r) // 4], r[(3 * len(r)) // 4])
        draft, runs, host = (sum(x['draftNs'] for x in w) / n / 1e6, sum(x['runNs'] for x in w) / n / 1e6,
                             sum(x['ns'] - x['runNs'] - x['draftNs'] for x in w) / n / 1e6)
        print('| %s | %s | %d | %.2f | %.2f to %.2f | %d / %d | %.0f, %.0f, %.0f | %s |' % (
            s, kind, len(r), statistics.median(r), q[0], q[1], sum(x['accepted'] for x in w),
            sum(x['drafted'] for x in w), draft, runs, host, 'yes' if all(p['same'] for pairs in cs for p in pairs) else 'NO'))
    copy = [c for (s, k), cs in rows.items() if s == 'lookup' and k != 'prose' for c in cs]
    if copy:  # the half of which most was copied: by what the guesses got right, not by what they gained
        copy.sort(key=lambda pairs: pairs[0]['with']['accepted'])
        print('\ncopy-heavy half of the lookup prompts: median %.2f' %
              statistics.median(ratio(c) for c in copy[len(copy) // 2:]))


def main():
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    for name in ('--hetero', '--model', '--draft', '--stories', '--table'):
        p.add_argument(name)
    p.add_argument('-o', '--out')
    p.add_argument('--sets', default='lookup,draft,parallel')
    p.add_argument('--ways', default='greedy,T,reject')
    p.add_argument('--act', default='q8')
    p.add_argument('--engine')
    p.add_argument('--draft-engine')
    for name, value in (('--prompts', 20), ('--stories-n', 100), ('--reps', 6), ('-n', 64), ('--threads', 2),
                        ('--budget', 450)):
        p.add_argument(name, type=int, default=value)
    a = rounds.asked(p, table, 'hetero', 'model', 'draft', 'stories', 'out')
    doc = {'schema': 'hetero/speculate-bench/1', 'model': os.path.basename(a.model),
           'draft': os.path.basename(a.draft), 'act': a.act, 'n': a.n, 'threads': a.threads,
           'reps': a.reps, 'cells': {}}
    if a.engine or a.draft_engine:
        doc['engines'] = {'model': a.engine or 'cpu', 'draft': a.draft_engine or a.engine or 'cpu'}
    doc = rounds.continued(a.out, doc)
    todo = cells(a)
    t0, longest, same = time.monotonic(), 0.0, True
    for turn in range(a.reps):
        for c in todo:
            pairs = doc['cells'].setdefault('%s|%s|%s' % (c[0], c[1], c[2][:400]), [])
            if len(pairs) > turn:
                continue
            begun = time.monotonic()
            if begun - t0 + longest > a.budget:
                return 3
            pairs.append(pair(a, c, turn))
            longest = max(longest, time.monotonic() - begun)
            if not pairs[-1]['same']:
                print('speculate: other tokens: %s %s: %s' % c[:3], file=sys.stderr)
            with open(a.out + '.tmp', 'w', encoding='utf-8') as f:
                json.dump(doc, f, indent=1)
            os.replace(a.out + '.tmp', a.out)
        print('repetition %d of %d' % (turn + 1, a.reps), file=sys.stderr)
    status = 0 if all(p['same'] for pairs in doc['cells'].values() for p in pairs) else 1
    table(doc)
    return status


if __name__ == '__main__':
    sys.exit(main())
