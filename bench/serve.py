#!/usr/bin/env python3
"""serve.py MODEL [--peer LLAMA_SERVER] [--threads 2] [--json] - the server beside llama-server, on the same file.

Both run on the loopback with the same threads, context and slots; rounds alternate, medians are printed.
  one      1 client, streaming: time to first token, tokens per second after it
  four     4 clients at once: tokens per second of all, slowest first token
  turns    a conversation behind a long system prompt: first token of the first turn and of the later ones
  cancel   from the client's close to the slot's end, in the answer and in the prompt, or to the queue's
Wall time of a busy machine says nothing: run it alone.
"""
import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Peer:
    def __init__(self, name, cmd):
        self.name, self.log = name, tempfile.NamedTemporaryFile()
        self.p = subprocess.Popen(cmd, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        self.port = int(cmd[cmd.index('--port') + 1])
        for _ in range(600):
            try:
                if self.get('/health')[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        sys.exit('%s did not start: %s' % (name, open(self.log.name).read()[-500:]))

    def get(self, path):
        c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=120)
        c.request('GET', path)
        r = c.getresponse()
        return r.status, r.read()

    def stream(self, body, leave_after=None):
        """(seconds to the first text, seconds in all, pieces of text)."""
        c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=300)
        t0 = time.perf_counter()
        c.request('POST', '/v1/chat/completions', json.dumps({**body, 'stream': True}).encode(),
                  {'Content-Type': 'application/json'})
        r = c.getresponse()
        first, n, last = None, 0, t0
        for line in r:
            if not line.startswith(b'data: ') or line.startswith(b'data: [DONE]'):
                continue
            d = json.loads(line[6:])
            for ch in d.get('choices', []):
                if ch['delta'].get('content'):
                    last = time.perf_counter()
                    first = first or last - t0
                    n += 1
        c.close()
        return first, last - t0, n

    def stop(self):
        self.p.terminate()
        self.p.wait(20)


def prompt(words, salt):
    text = ('The sea was calm and the ship went on through the night while the men slept below deck. ' * 200).split()
    return 'Note %s. ' % salt + ' '.join(text[:words])


def body(text, n, **kw):
    return {'messages': [{'role': 'user', 'content': text}], 'max_tokens': n, 'temperature': 0, 'ignore_eos': True, **kw}


def one(p, salt):
    first, total, n = p.stream(body(prompt(300, salt), 64))
    return {'ttft_ms': first * 1e3, 'tokens_per_s': (n - 1) / (total - first)}


def four(p, salt):
    out = []
    ts = [threading.Thread(target=lambda k=k: out.append(p.stream(body(prompt(150, '%s-%d' % (salt, k)), 48))))
          for k in range(4)]
    t0 = time.perf_counter()
    [t.start() for t in ts]
    [t.join() for t in ts]
    return {'tokens_per_s': sum(o[2] for o in out) / (time.perf_counter() - t0), 'slowest_ttft_ms': max(o[0] for o in out) * 1e3}


def turns(p, salt, n=20):
    m = [{'role': 'system', 'content': prompt(1500, salt)}]
    firsts = []
    for k in range(n):
        m.append({'role': 'user', 'content': 'Turn %d?' % k})
        first, _, _ = p.stream({'messages': m, 'max_tokens': 4, 'temperature': 0, 'ignore_eos': True})
        firsts.append(first * 1e3)
        m.append({'role': 'assistant', 'content': 'Yes, it is so.'})
    return {'cold_ms': firsts[0], 'later_ms': statistics.median(firsts[1:]), 'slowest_later_ms': max(firsts[1:])}


def cancel(p, salt):
    """Hetero only: how long a slot stays busy, or a place in the queue taken, after the client left."""
    def count(what):
        return json.loads(p.get('/health')[1])[what]

    def ask(b):
        c = http.client.HTTPConnection('127.0.0.1', p.port)
        c.request('POST', '/v1/chat/completions', json.dumps(b).encode())
        return c

    def leave(b, after, what='running'):
        c = ask(b)
        while not count(what):
            pass
        time.sleep(after)
        if not count(what):
            sys.exit('the answer was over before its client left')
        t0 = time.perf_counter()
        c.sock.close()
        while count(what):
            pass
        return (time.perf_counter() - t0) * 1e3
    out = {'decode_ms': leave(body(prompt(20, salt), 900), 0.6), 'prefill_ms': leave(body(prompt(1500, salt), 4), 0.3)}
    others = [ask(body(prompt(20, '%s-%d' % (salt, k)), 900)) for k in range(4)]
    while count('running') < 4:
        pass
    out['queue_ms'] = leave(body(prompt(20, salt), 4), 0.1, 'waiting')
    [c.sock.close() for c in others]
    while count('running'):
        pass
    return out


def main():
    a = argparse.ArgumentParser()
    a.add_argument('model')
    a.add_argument('--hetero', default=os.path.join(HERE, '..', 'hetero'))
    a.add_argument('--peer')
    a.add_argument('--threads', default='2')
    a.add_argument('--rounds', type=int, default=3)
    a.add_argument('--only', default='one,four,turns,cancel')
    a.add_argument('--json', action='store_true')
    a = a.parse_args()
    peers = [Peer('hetero', [a.hetero, 'serve', a.model, '-c', '2560', '-np', '4', '-t', a.threads, '--port', '18431'])]
    if a.peer:
        peers.append(Peer('llama-server', [a.peer, '-m', a.model, '-c', '10240', '-np', '4', '-t', a.threads, '--port', '18432',
                                           '--no-webui']))
    work = {'one': one, 'four': four, 'turns': turns, 'cancel': cancel}
    rows = {}
    for name in a.only.split(','):
        for k in range(a.rounds):
            for p in peers if k % 2 == 0 else peers[::-1]:
                if name == 'cancel' and p.name != 'hetero':
                    continue
                for key, v in work[name](p, '%s%d' % (name, k)).items():
                    rows.setdefault((name, key), {}).setdefault(p.name, []).append(v)
    [p.stop() for p in peers]
    out = [{'test': t, 'figure': k, **{n: {'median': statistics.median(v), 'min': min(v), 'max': max(v), 'n': len(v)}
                                        for n, v in d.items()}} for (t, k), d in rows.items()]
    if a.json:
        print(json.dumps({'schema': 'hetero/serve-bench/1', 'model': os.path.basename(a.model), 'threads': int(a.threads),
                          'rows': out}, indent=1))
        return
    print('| test | figure | hetero | llama-server | ratio |\n|---|---|---:|---:|---:|')
    for r in out:
        h, x = r['hetero']['median'], r.get('llama-server', {}).get('median')
        print('| %s | %s | %.1f | %s | %s |' % (r['test'], r['figure'], h, '%.1f' % x if x else '', '%.2f' % (h / x) if x else ''))


main()
