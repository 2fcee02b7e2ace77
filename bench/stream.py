#!/usr/bin/env python3
"""A stream far beyond the context that fits: does memory stay flat?

usage: stream.py --hetero BIN MODEL -o OUT.json [--tokens 1000000] [--keep 512] [--threads 1]

Runs `hetero run --evict KEEP --json` over so many generated tokens and reads the process's resident
memory every second: at a tenth, two tenths, ... of the time. The last tenth includes the result
itself, which holds every token and its text. OUT.json: those figures in KiB, the receipt's counters,
and the command. Standard library only.
"""
import argparse
import json
import subprocess
import threading
import time


def resident(pid):
    with open('/proc/%d/status' % pid, encoding='ascii') as f:
        return int(next(line for line in f if line.startswith('VmRSS')).split()[1])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('model')
    ap.add_argument('--hetero', default='./hetero')
    ap.add_argument('-o', '--out', required=True)
    ap.add_argument('--tokens', type=int, default=1000000)
    ap.add_argument('--keep', type=int, default=512)
    ap.add_argument('--threads', type=int, default=1)
    a = ap.parse_args()
    argv = [a.hetero, 'run', a.model, '-p', 'Once upon a time', '-n', str(a.tokens), '-c', str(a.tokens + 64),
            '--evict', str(a.keep), '-t', str(a.threads), '-s', '1', '--ignore-eos', '--json',
            '--log-level', 'error']
    begin = time.monotonic()
    p = subprocess.Popen(argv, stdout=subprocess.PIPE)
    got, samples = [], []
    reader = threading.Thread(target=lambda: got.append(p.stdout.read()))
    reader.start()
    while reader.is_alive():
        try:
            samples.append(resident(p.pid))
        except (OSError, StopIteration):
            pass
        reader.join(1)
    if p.wait():
        raise SystemExit('%s: exit %d' % (' '.join(argv), p.returncode))
    doc = json.loads(got[0])
    last = len(samples) - 1
    out = {'command': ['hetero'] + argv[1:], 'seconds': round(time.monotonic() - begin),
           'tokens': len(doc['ids']), 'finish': doc['finish'],
           'residentKiB': {'%d %%' % (10 * t): samples[last * t // 10] for t in range(1, 11)},
           'eviction': {k: v for k, v in doc['receipt']['eviction'].items() if k != 'held'},
           'heldRanges': len(doc['receipt']['eviction']['held'])}
    with open(a.out, 'w', encoding='utf-8') as f:
        json.dump(out, f, indent=1)
        f.write('\n')
    print(json.dumps(out, indent=1))


if __name__ == '__main__':
    main()
