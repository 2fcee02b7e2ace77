"""A server of its own for a black-box script: starting, asking (also byte by byte), looking inside, stopping."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

from e2e import BIN, ENV, ROOT, TALE


def once(pairs):
    """An object of an answer; a name that stands twice would be lost by every reader."""
    names = [k for k, _ in pairs]
    assert len(set(names)) == len(names), 'a name twice: %r' % sorted(names)
    return dict(pairs)


class Server:
    """hetero serve on a free port of the loopback; args are more options. Use as a context."""

    def __init__(self, *args, model=TALE, ctx=512, wait=True, host='127.0.0.1', port=0, env=None, wrap=()):
        self.log = tempfile.NamedTemporaryFile(prefix='hetero-serve-', suffix='.log')
        self.host = host
        self.headers = {}  # of the questions about its state
        cmd = [*wrap, BIN, 'serve', model, '-c', str(ctx), '-t', '2', '--port', str(port), '--host', host,
               '--no-progress', *map(str, args)]
        self.p = subprocess.Popen(cmd, cwd=ROOT, env={**ENV, **(env or {})}, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=self.log)
        self.port = 0
        if wait:
            self.ready()

    def text(self):
        with open(self.log.name, 'rb') as f:
            return f.read().decode(errors='replace')

    def ready(self, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            m = re.search(r'ready on (?:http://\S*:(\d+)|unix:)', self.text())
            if m:
                self.port = int(m.group(1) or 0)
                return
            if self.p.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError('the server did not start: ' + self.text()[-500:])

    def __enter__(self):
        return self

    def __exit__(self, *a):
        self.stop()

    def stop(self, sig=signal.SIGTERM, seconds=60):
        """Its exit status."""
        if self.p.poll() is None:
            self.p.send_signal(sig)
            try:
                self.p.wait(seconds)
            except subprocess.TimeoutExpired:
                self.p.kill()
                self.p.wait()
        return self.p.returncode

    def conn(self, timeout=120):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=timeout)

    def ask(self, path, body=None, method=None, headers=None, timeout=120):
        """(status, headers, parsed JSON or bytes)."""
        c = self.conn(timeout)
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        h = {'Content-Type': 'application/json'} if data is not None else {}
        c.request(method or ('GET' if data is None else 'POST'), path, data, {**h, **(headers or {})})
        r = c.getresponse()
        raw = r.read()
        c.close()
        try:
            return r.status, dict((k.lower(), v) for k, v in r.getheaders()), json.loads(raw, object_pairs_hook=once)
        except ValueError:
            return r.status, dict((k.lower(), v) for k, v in r.getheaders()), raw

    def raw(self, data, timeout=30, shut=False):
        """Bytes in, all bytes that come back until the server closes (or the time is up)."""
        s = socket.create_connection(('127.0.0.1', self.port), timeout)
        got = b''
        try:
            s.sendall(data)
            if shut:
                s.shutdown(socket.SHUT_WR)
            while True:
                b = s.recv(65536)
                if not b:
                    break
                got += b
        except (socket.timeout, ConnectionError):
            pass
        s.close()
        return got

    def sse(self, path, body):
        """Parsed events of a stream, [DONE] as a string; (status, events, raw)."""
        c = self.conn()
        c.request('POST', path, json.dumps({**body, 'stream': True}).encode(), {'Content-Type': 'application/json'})
        r = c.getresponse()
        raw = r.read()
        c.close()
        return r.status, events(raw), raw

    def metrics(self):
        out = {}
        for line in self.ask('/metrics', headers=self.headers)[2].decode().splitlines():
            if line and line[0] != '#':
                k, v = line.rsplit(' ', 1)
                out[k.removeprefix('hetero_')] = float(v)
        return out

    def fds(self):
        return len(os.listdir('/proc/%d/fd' % self.p.pid))

    def rss(self):
        with open('/proc/%d/status' % self.p.pid) as f:
            kb = dict(re.findall(r'^(VmRSS|VmSwap):\s+(\d+)', f.read(), re.M))
        return (int(kb['VmRSS']) + int(kb.get('VmSwap', 0))) << 10

    def cpu(self):
        with open('/proc/%d/stat' % self.p.pid) as f:
            t = f.read().rsplit(')', 1)[1].split()
        return (int(t[11]) + int(t[12])) / os.sysconf('SC_CLK_TCK')

    def until(self, what, seconds=30):
        """Wait until the metrics satisfy `what`: a sleep is too long or too short on some machine."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if what(self.metrics()):
                return True
            time.sleep(0.01)
        return False

    def idle(self, seconds=30):
        """Wait until nothing runs or waits, and every request that was taken is counted under its end."""
        def settled(m):
            ended = m['requests_finished_total'] + m['requests_failed_total'] + m['requests_expired_total'] + sum(
                v for k, v in m.items() if k.startswith('requests_cancelled_total'))
            return not m['slots_busy'] and not m['queue_length'] and m['requests_accepted_total'] == ended
        return self.until(settled, seconds)

    def busy(self, slots=1):
        return self.until(lambda m: m['slots_busy'] >= slots)

    def waiting(self, n):
        return self.until(lambda m: m['queue_length'] == n)


def events(raw):
    out = []
    for block in raw.decode().split('\n\n'):
        for line in block.split('\n'):
            if line.startswith('data: '):
                out.append('[DONE]' if line[6:] == '[DONE]' else json.loads(line[6:]))
    return out


def chat(text='Tell me a story about a fox.', **kw):
    return {'messages': [{'role': 'user', 'content': text}], 'max_tokens': 16, 'temperature': 0, **kw}


def content(r):
    return r['choices'][0]['message']['content']
