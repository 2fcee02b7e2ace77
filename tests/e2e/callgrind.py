"""Instructions per token of tale-9m, counted by callgrind: a slow-down shows without a clock.

One thread, AVX2 level (valgrind has no AVX-512), greedy. A run of n tokens minus a run of fewer gives
the cost of a token without start-up. The record (tests/data/callgrind.json) holds the counts and the
compiler they belong to; another compiler makes other code, so there the counts are only bounded by a
factor of two. After a wanted change: python3 tests/e2e/callgrind.py --record
"""
import json
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))
import e2e  # noqa: E402

RECORD = os.path.join(e2e.ROOT, 'tests', 'data', 'callgrind.json')
TOLERANCE = 0.03
PROMPT = [730, 665, 256, 560, 11, 523, 285, 256, 380, 946]


def count(n_prompt, n_new, act):
    """Instructions of one whole run, or None with the reason printed."""
    ids = ','.join(str(PROMPT[i % len(PROMPT)]) for i in range(n_prompt))
    with e2e.tmp() as d:
        r = e2e.run('--tool=callgrind', '--callgrind-out-file=' + os.path.join(d, 'out'), e2e.BIN, 'run', e2e.TALE,
                    '--ids', ids, '-n', n_new, '--temp', 0, '--ignore-eos', '-t', 1, '--isa', 'avx2', '-c', 256,
                    '--act', act, '--json', program=shutil.which('valgrind'), timeout=900,
                    env={'XDG_STATE_HOME': d, 'XDG_DATA_HOME': d})  # a store of this user's would be read and hashed for
    total = re.search(r'Collected : (\d+)', e2e.err(r))
    if not e2e.check(r.returncode == 0 and total, 'callgrind %d+%d %s' % (n_prompt, n_new, act), e2e.err(r)[-300:]):
        return None
    return int(total.group(1))


def measure():
    """Instructions per token of prefill and decode, as differences of two runs."""
    out = {}
    a, b = count(8, 4, 'f32'), count(8, 12, 'f32')
    c = count(72, 4, 'f32')
    if a and b and c:
        out = {'decodePerToken': (b - a) // 8, 'prefillPerToken': (c - a) // 64}
    return out


def compiler():
    """The compiler's own mark in the program."""
    with open(e2e.BIN, 'rb') as f:
        mark = re.search(rb'GCC: \([^)]*\) [0-9.]+|clang version [0-9.]+', f.read())
    return mark.group(0).decode() if mark else 'unknown'


def main():
    if not shutil.which('valgrind'):
        e2e.skip('callgrind', 'valgrind is not installed')
        e2e.end()
    with open('/proc/cpuinfo', encoding='ascii', errors='replace') as f:
        if ' avx2 ' not in f.read():
            e2e.skip('callgrind', 'this machine has no AVX2')
            e2e.end()
    got = measure()
    if '--record' in sys.argv and got:
        with open(RECORD, 'w', encoding='utf-8') as f:
            json.dump({'compiler': compiler(), **got}, f, indent=1)
            f.write('\n')
    with open(RECORD, encoding='utf-8') as f:
        want = json.load(f)
    same = want['compiler'] == compiler()
    for key, n in got.items():
        tol = TOLERANCE if same else 1.0
        e2e.check(abs(n - want[key]) <= tol * want[key], key,
                  '%d instructions for %d recorded (%s; recorded with %s)' % (n, want[key], compiler(), want['compiler']))
    e2e.end()


main()
