#!/usr/bin/env python3
"""What the server adds to a token, against the same generation in process, without a clock on the wall.

    serve_overhead.py MODEL [--tokens 4,12] [--rounds 0] [--no-valgrind] [--hetero PATH] [--json FILE]

Two measures, each the difference between a long and a short answer to one prompt, so that loading and the prompt cancel:
  instructions   callgrind's count of the whole process, one thread of the engine, once: it does not depend on load.
                 Four processes, two at a time; SmolLM2 takes 4 minutes of an idle machine with two cores, most of them
                 for loading. Work of the kernel is not in it
  CPU time       user + system of the whole process: of `hetero run` by wait4(2), of the server by the counters of its
                 threads (/proc/PID/task/*/schedstat), rounds interleaved, medians; use --tokens 8,56 or more
The server streams to one client of /v1/completions, as an application would ask. Aim: at most 2 %.
"""
import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

PROMPT = [7 * i % 3000 + 300 for i in range(16)]


def collected(text):
    m = re.search(r'Collected : (\d+)', text)
    if not m:
        sys.exit('callgrind counted nothing: ' + text[-300:])
    return int(m.group(1))


def wrap(valgrind):
    return ['valgrind', '--tool=callgrind', '--fair-sched=yes', '--callgrind-out-file=/dev/null'] if valgrind else []


def in_process(a, n, valgrind):
    """Instructions, or CPU seconds, of one run."""
    cmd = wrap(valgrind) + [a.hetero, 'run', a.model, '--ids', ','.join(map(str, PROMPT)), '-n', str(n), '--temp', '0',
                            '--ignore-eos', '-t', '1', '-c', '512', '--no-progress', '--log-level', 'error']
    with tempfile.TemporaryFile() as log:
        p = subprocess.Popen(cmd, stdout=subprocess.DEVNULL, stderr=log)
        _, status, use = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        text = log.read().decode(errors='replace')
    if p.returncode:
        sys.exit('hetero run: ' + text[-300:])
    return collected(text) if valgrind else use.ru_utime + use.ru_stime


class Serving:
    def __init__(self, a, valgrind):
        self.log = tempfile.NamedTemporaryFile()
        cmd = wrap(valgrind) + [a.hetero, 'serve', a.model, '-t', '1', '-c', '512', '-np', '1', '--port', '0', '--cache-ram', '0',
                                '--no-progress']
        self.p = subprocess.Popen(cmd, stdout=subprocess.DEVNULL, stderr=self.log)
        while True:
            m = re.search(r'ready on http://\S*:(\d+)', self.text())
            if m:
                break
            if self.p.poll() is not None:
                sys.exit('hetero serve: ' + self.text()[-300:])
            time.sleep(0.05)
        self.port = int(m.group(1))

    def text(self):
        with open(self.log.name, 'rb') as f:
            return f.read().decode(errors='replace')

    def ask(self, n):
        c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=3600)
        c.request('POST', '/v1/completions', json.dumps({
            'prompt': PROMPT, 'max_tokens': n, 'temperature': 0, 'ignore_eos': True, 'stream': True,
            'cache_prompt': False}), {'Content-Type': 'application/json'})
        body = c.getresponse().read()
        c.close()
        if b'[DONE]' not in body:
            sys.exit('the server: %r' % body[-300:])

    def cpu(self):
        total = 0
        for task in os.listdir('/proc/%d/task' % self.p.pid):
            with open('/proc/%d/task/%s/schedstat' % (self.p.pid, task)) as f:
                total += int(f.read().split()[0])
        return total * 1e-9

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait()


def served(a, n, valgrind):
    s = Serving(a, valgrind)
    s.ask(n)
    s.stop()
    return collected(s.text())


def cpu_time(a, short, long):
    rounds = []
    s = Serving(a, False)
    s.ask(short)
    for _ in range(a.rounds):
        run = in_process(a, long, False) - in_process(a, short, False)
        t0 = s.cpu()
        s.ask(short)
        t1 = s.cpu()
        s.ask(long)
        rounds.append((run / (long - short) * 1e3, (s.cpu() - t1 - (t1 - t0)) / (long - short) * 1e3))
    s.stop()
    ours, theirs = (statistics.median(x[k] for x in rounds) for k in (0, 1))
    return {'inProcess': round(ours, 4), 'server': round(theirs, 4), 'rounds': a.rounds,
            'overheadPercent': round(100 * (theirs / ours - 1), 2), 'all': [[round(v, 4) for v in x] for x in rounds]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument('model')
    p.add_argument('--hetero', default='./hetero')
    p.add_argument('--tokens', default='4,12')
    p.add_argument('--rounds', type=int, default=0, help='of CPU time; 0: only instructions')
    p.add_argument('--no-valgrind', action='store_true')
    p.add_argument('--json')
    a = p.parse_args()
    short, long = map(int, a.tokens.split(','))
    out = {'model': os.path.basename(a.model), 'tokens': [short, long], 'threads': 1}
    if not a.no_valgrind:
        with ThreadPoolExecutor(2) as pool:
            work = [pool.submit(f, a, n, True) for n in (short, long) for f in (in_process, served)]
            got = [w.result() for w in work]
        per = [(got[k + 2] - got[k]) / (long - short) for k in (0, 1)]
        out['instructionsPerToken'] = {'inProcess': round(per[0]), 'server': round(per[1]),
                                       'overheadPercent': round(100 * (per[1] / per[0] - 1), 3),
                                       'all': {'inProcess': got[0::2], 'server': got[1::2]}}
    if a.rounds:
        out['cpuMsPerToken'] = cpu_time(a, short, long)
    text = json.dumps(out, indent=1)
    print(text)
    if a.json:
        with open(a.json, 'w') as f:
            f.write(text + '\n')


main()
