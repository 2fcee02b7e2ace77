"""The server under load: the same bits alone and in any company, clients that leave at any moment, clients that do
not read, thousands of idle connections, a server that is killed."""
import hashlib
import json
import os
import random
import resource
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import check, end, skip, tmp  # noqa: E402
from server import Server, chat  # noqa: E402

# LOAD_REQUESTS: another number of requests, and nothing but these: how `make test-tsan` calls this.
LOAD = int(os.environ.get('LOAD_REQUESTS', '2000'))
ONLY_LOAD = 'LOAD_REQUESTS' in os.environ


def mixed(k):
    """Request k: protocol, length, sampling, constraint and stop texts vary; its answer must not."""
    r = random.Random(k)
    words = ' '.join(r.choice(('fox', 'kite', 'sun', 'day', 'blue', 'she', 'ran', 'and')) for _ in range(r.randint(1, 50)))
    shared = 'A story of the sea and what it hides below the waves. ' * (k % 3)
    body = {'max_tokens': r.randint(1, 24), 'seed': k, 'hash_logits': True, 'temperature': r.choice((0, 0.7, 1.3))}
    if r.random() < 0.2:
        body['stop'] = ['the', 'and']
    if r.random() < 0.2:
        body['repeat_penalty'] = 1.2
    kind = k % 4
    if kind == 0:
        return '/v1/completions', {**body, 'prompt': shared + words}
    if kind == 1:
        return '/v1/completions', {**body, 'prompt': shared + words, 'grammar': 'root ::= ("a" | "b" | " ")+'}
    if kind == 2:
        return '/v1/messages', {**{x: y for x, y in body.items() if x not in ('stop', 'repeat_penalty')},
                                'messages': [{'role': 'user', 'content': shared + words}]}
    return '/v1/chat/completions', {**body, 'messages': [{'role': 'user', 'content': shared + words}]}


def digest(path, r):
    text = r['content'] if path == '/v1/messages' else r['choices']
    return hashlib.sha256(json.dumps([text, r['hetero']['logits_sha256']]).encode()).hexdigest()


def replay(s, n, threads, cache, seed):
    """Digests of requests 0..n-1, asked in a random order by so many clients."""
    order = list(range(n))
    random.Random(seed).shuffle(order)
    out, lock = {}, threading.Lock()

    def work():
        while True:
            with lock:
                if not order:
                    return
                k = order.pop()
            path, body = mixed(k)
            if not cache and path != '/v1/messages':
                body['cache_prompt'] = False
            st, _, r = s.ask(path, body)
            out[k] = digest(path, r) if st == 200 else (st, r)
    ts = [threading.Thread(target=work) for _ in range(threads)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    return out


def bits_are_equal():
    n = 200
    with Server('--parallel', 8) as s:
        want = replay(s, n, 1, False, 1)
        check(all(isinstance(v, str) for v in want.values()), 'all answered', [v for v in want.values() if not isinstance(v, str)][:1])
        for threads, cache, seed in ((8, False, 2), (8, True, 3), (3, True, 4)):
            got = replay(s, n, threads, cache, seed)
            bad = [k for k in range(n) if got[k] != want[k]]
            check(not bad, '%d clients, cache %s' % (threads, cache), 'requests %s' % bad[:8])
        m = s.metrics()
        check(m['requests_finished_total'] == 4 * n, 'no request lost', m['requests_finished_total'])
    with Server('--parallel', 2, '--lookup', '--tpot-ms', 20, '--overlap', '-ub', 48, '--cache-ram', 0) as s:
        got = replay(s, n, 5, True, 5)
        bad = [k for k in range(n) if got[k] != want[k]]
        check(not bad, 'guessing, overlapped prompts, other chunks', 'requests %s' % bad[:8])
        check(s.metrics()['overlapped_passes_total'] > 0, 'prompts and answers shared passes')


def clients_that_leave():
    """Memory, descriptors and pages are flat over 2,000 requests of which a third is abandoned; counts add up."""
    total, clients = LOAD, 12
    with Server('--parallel', 6, '--queue', 1000, '--cache-ram', 0) as s:
        counts = {'sent': 0, 'done': 0, 'left': 0}
        lock = threading.Lock()

        def work(seed, n):
            r = random.Random(seed)
            for _ in range(n):
                path, body = mixed(r.randint(0, 10**6))
                body['max_tokens'] = r.randint(1, 10)
                if r.random() < 0.4:
                    body['stream'] = True
                c = s.conn()
                c.request('POST', path, json.dumps(body).encode(), {'Content-Type': 'application/json'})
                leave = r.random() < 0.33
                if leave:
                    time.sleep(r.random() * 0.05)
                    c.sock.close()
                else:
                    x = c.getresponse()
                    x.read()
                    check(x.status == 200, 'an answer', x.status) if x.status != 200 else None
                c.close()
                with lock:
                    counts['left' if leave else 'done'] += 1

        def batch(n, seed):
            ts = [threading.Thread(target=work, args=(seed + i, n // clients + 1)) for i in range(clients)]
            [t.start() for t in ts]
            [t.join() for t in ts]
            s.idle()
        def held():
            """Pages in use once every slot holds a short answer and nothing else."""
            ts = [threading.Thread(target=s.ask, args=('/v1/completions', {
                'prompt': [k + 1] * 5, 'max_tokens': 40, 'ignore_eos': True, 'cache_prompt': False})) for k in range(6)]
            [t.start() for t in ts]
            [t.join() for t in ts]
            s.idle()
            m = s.metrics()
            return m['kv_pages'] - m['kv_pages_free']

        batch(total // 4, 100)
        pages0, rss0, fds0 = held(), s.rss(), s.fds()
        batch(total * 3 // 4, 200)
        time.sleep(0.3)
        pages1, rss1, fds1, m1 = held(), s.rss(), s.fds(), s.metrics()
        check(counts['done'] + counts['left'] >= total, 'requests', counts)
        check(rss1 - rss0 < 24 << 20, 'memory is flat', '%d to %d MiB' % (rss0 >> 20, rss1 >> 20))
        check(abs(pages1 - pages0) <= 12, 'pages are flat', '%d to %d' % (pages0, pages1))
        check(abs(fds1 - fds0) <= 4, 'descriptors are flat', '%d to %d' % (fds0, fds1))
        gone = sum(v for k, v in m1.items() if k.startswith('requests_cancelled_total'))
        ended = m1['requests_finished_total'] + m1['requests_failed_total'] + m1['requests_expired_total'] + gone
        check(m1['requests_accepted_total'] == ended, 'counts add up', (m1['requests_accepted_total'], ended))
        check(m1['requests_failed_total'] == 0 and m1['errors_total{class="5xx"}'] == 0, 'no failure', m1)
        check(m1['slots_busy'] == 0 and m1['queue_length'] == 0, 'nothing is left over')
        check(gone > total // 40, 'clients that left were noticed', gone)
        check(s.stop() == 0, 'clean end', s.text()[-300:])


def slow_and_half_open():
    with Server('--parallel', 2, '--timeout', 2, ctx=4096) as s:
        # A client that does not read: its answer ends, others go on, the connection is closed.
        slow = socket.create_connection(('127.0.0.1', s.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        body = json.dumps(chat(max_tokens=3000, ignore_eos=True, stream=True)).encode()
        slow.sendall(b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n' % len(body) + body)
        check(s.ask('/v1/chat/completions', chat())[0] == 200, 'others are served beside a slow client')
        check(s.idle(60), 'the slow answer ended')
        slow.close()
        # Half a request, then silence; and one byte now and then.
        half = socket.create_connection(('127.0.0.1', s.port))
        half.sendall(b'POST /v1/chat/completions HTTP/1.1\r\nHost')
        drip = socket.create_connection(('127.0.0.1', s.port))
        drip.settimeout(1)
        closed = False
        for _ in range(40):
            try:
                drip.sendall(b'X')
                if drip.recv(1) == b'':
                    closed = True
                    break
            except socket.timeout:
                pass
            except ConnectionError:
                closed = True
                break
        check(closed, 'a request that never comes is cut, however it drips')
        half.settimeout(20)
        try:
            got = half.recv(100)
        except ConnectionError:
            got = b''
        check(got == b'' or got.startswith(b'HTTP/1.1 408'), 'half a request is cut', got)
        # The sending side closed: the client is taken to have left.
        s.raw(b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n' % len(body) + body,
              shut=True, timeout=10)
        check(s.idle(20), 'a half-closed connection counts as left')
        check(s.ask('/health')[0] == 200, 'the server is there')


def idle_connections():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = 10000
    if hard < want + 500:
        want = hard - 500
    if want < 1000:
        skip('idle connections', 'only %d descriptors may be open' % hard)
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, want + 400), hard))
    with Server('--max-connections', want + 50) as s:
        socks = []
        try:
            for _ in range(want):
                socks.append(socket.create_connection(('127.0.0.1', s.port), 30))
        except OSError as e:
            check(False, '%d connections' % want, repr(e))
        check(s.ask('/v1/chat/completions', chat())[0] == 200, 'served beside %d idle connections' % len(socks))
        m = s.metrics()
        check(m['connections'] >= want, 'they are counted', m['connections'])
        check(s.rss() < 2 << 30, 'they cost little', s.rss() >> 20)
        [x.close() for x in socks]
        for _ in range(100):
            if s.metrics()['connections'] < 50:
                break
            time.sleep(0.1)
        check(s.metrics()['connections'] < 50, 'and are gone', s.metrics()['connections'])
        check(s.stop() == 0, 'clean end')
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def killed_while_writing():
    """kill -9 while pages go to disk: the next server uses what is whole, or computes again, and answers the same."""
    body = {'prompt': [300 + i % 3000 for i in range(700)], 'max_tokens': 6, 'temperature': 0, 'hash_logits': True}
    with tmp() as d:
        cache = os.path.join(d, 'cache')
        want = None
        for delay in (0.0, 0.02, 0.2, None):
            with Server('--prefix-cache', cache, ctx=2048) as s:
                st, _, r = s.ask('/v1/completions', body)
                key = (r['choices'][0]['text'], r['hetero']['logits_sha256']) if st == 200 else (st, r)
                want = want or key
                check(key == want, 'the same answer after a kill', key)
                if delay is None:
                    time.sleep(1)
                    check(s.stop() == 0, 'clean end')
                else:
                    time.sleep(delay)
                    s.stop(signal.SIGKILL)
        with Server('--prefix-cache', cache, ctx=2048) as s:
            _, _, r = s.ask('/v1/completions', body)
            check(r['usage']['prompt_tokens_details']['cached_tokens'] > 500, 'found in the files', r['usage'])
        # A folder that cannot be written: the server says so and goes on.
        bad = os.path.join(d, 'full')
        os.mkdir(bad)
        with Server('--prefix-cache', bad, ctx=2048, wrap=('sh', '-c', 'ulimit -f 8; exec "$@"', 'sh')) as s:
            st, _, r = s.ask('/v1/completions', body)
            check(st == 200 and (r['choices'][0]['text'], r['hetero']['logits_sha256']) == want, 'a disk that refuses', r)
            check(s.ask('/health')[0] == 200, 'and the server is there')


for test in (clients_that_leave,) if ONLY_LOAD else (bits_are_equal, clients_that_leave, slow_and_half_open,
                                                      idle_connections, killed_while_writing):
    t0 = time.monotonic()
    try:
        test()
    except Exception as e:  # noqa: BLE001 - one test that breaks must not hide the others
        check(False, test.__name__, repr(e))
    print('%s: %.0f s' % (test.__name__, time.monotonic() - t0), flush=True)
end()
