"""The server as clients see it: protocols, streams, errors, keys, life cycle. One test for each of the complaints
of users of other servers that concern a server (the number is its row in that list), named after it."""
import json
import os
import re
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import ROOT, TALE, check, end, run, tmp  # noqa: E402
from server import Server, chat, content, events  # noqa: E402

LONG = 'fox and kite ' * 120


# ---- the table of complaints ----

def c01_client_gone_server_goes_on():
    """In the queue, in the prompt, in the answer: nothing is computed for a client that left."""
    with Server('--parallel', 1, ctx=8192) as s:
        c01_in_the_answer(s)
        c01_in_the_queue(s)
        c01_in_the_prompt(s)


def c01_in_the_answer(s):
    for stream in (True, False):
        m0 = s.metrics()
        c = s.conn()
        body = chat(max_tokens=7000, ignore_eos=True, stream=stream)
        c.request('POST', '/v1/chat/completions', json.dumps(body).encode())
        s.until(lambda m: m['decode_rows_total'] > m0['decode_rows_total'])
        c.sock.shutdown(socket.SHUT_RDWR)
        c.close()
        t0 = time.monotonic()
        check(s.idle(10), 'c01 answer', 'still busy %.1f s after the client left' % (time.monotonic() - t0))
        m1 = s.metrics()
        key = 'requests_cancelled_total{phase="decode"}'
        check(m1[key] == m0[key] + 1, 'c01 counted', (m0[key], m1[key], stream))
        check(m1['output_tokens_total'] - m0['output_tokens_total'] < 7000, 'c01 stopped early')


def c01_in_the_queue(s):
    busy = s.conn()
    busy.request('POST', '/v1/chat/completions',
                 json.dumps(chat(max_tokens=7000, ignore_eos=True, stream=True)).encode())
    s.busy()
    q = s.conn()
    q.request('POST', '/v1/chat/completions', json.dumps(chat()).encode())
    check(s.waiting(1), 'c01 one waits')
    q.sock.close()
    check(s.waiting(0), 'c01 left the queue')
    m = s.metrics()
    check(m['slots_busy'] == 1 and m['requests_cancelled_total{phase="queue"}'] == 1, 'c01 before its turn', m)
    busy.sock.close()
    check(s.idle(10), 'c01 the long answer ended')


def c01_in_the_prompt(s):
    m0 = s.metrics()
    p = s.conn()
    ids = [300 + i % 3000 for i in range(8000)]
    p.request('POST', '/v1/completions', json.dumps({'prompt': ids, 'max_tokens': 4, 'cache_prompt': False}).encode())
    check(s.busy(), 'c01 a prompt runs')
    p.sock.close()
    check(s.idle(10), 'c01 the prompt ended')
    m1 = s.metrics()
    key = 'requests_cancelled_total{phase="prefill"}'
    check(m1[key] == m0[key] + 1, 'c01 counted as prefill', (m0[key], m1[key]))
    rows = m1['prompt_rows_total'] - m0['prompt_rows_total']
    check(rows < 8000, 'c01 the rest was not computed', rows)


def c02_hidden_context_silent_truncation(s):
    st, _, r = s.ask('/v1/chat/completions', chat(LONG * 4))
    e = r['error']
    check(st == 400 and e['code'] == 'context_length_exceeded' and e['n_ctx'] == 512 and e['n_prompt_tokens'] > 512,
          'c02 too long is an error with both numbers', r)
    check(str(e['n_prompt_tokens']) in e['message'] and '512' in e['message'], 'c02 and says so', e)
    st, h, r = s.ask('/v1/chat/completions', chat(max_tokens=5000))
    check(st == 200 and '5000' in h.get('x-hetero-warning', ''), 'c02 more than fits is announced', h)
    check(s.ask('/props')[2]['n_ctx'] == 512, 'c02 the context is told')


def c03_context_divided_by_slots(s):
    """Every slot has the whole context, all at once."""
    out = []
    ids = [300 + i for i in range(450)]

    def one(k):
        out.append(s.ask('/v1/completions', {'prompt': [k + 1] + ids, 'max_tokens': 40, 'ignore_eos': True}))
    ts = [threading.Thread(target=one, args=(k,)) for k in range(4)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    check(all(st == 200 and r['usage']['completion_tokens'] == 40 for st, _, r in out), 'c03', out[0])


def c04_context_shift(s):
    ids = [300 + i for i in range(500)]
    _, _, r = s.ask('/v1/completions', {'prompt': ids, 'ignore_eos': True})
    check(r['choices'][0]['finish_reason'] == 'length' and r['usage']['completion_tokens'] == 13,
          'c04 ends where the context ends', r['usage'])


def c05_wrong_tokenisation(s):
    """A pre-tokenizer that is not known ends the start and is not guessed; what the server cuts is what the program
    cuts."""
    text = "Hello wörld, it's 2026!  日本\n\n"
    r = run('tokenize', TALE, '--json', '-p', text)
    check(s.ask('/tokenize', {'content': text})[2]['tokens'] == json.loads(r.stdout)['ids'], 'c05 the same tokens')
    with open(TALE, 'rb') as f:
        data = f.read()
    at = data.index(b'tokenizer.ggml.pre') + 18 + 4 + 8  # key, type, length of the value
    with tmp() as d:
        bad = os.path.join(d, 'm.gguf')
        with open(bad, 'wb') as f:
            f.write(data[:at] + b'qwen9' + data[at + 5:])
        r = run('serve', bad, '--port', '0', timeout=60)
        check(r.returncode == 4 and b'qwen9' in r.stderr and b'--pre' in r.stderr, 'c05 it is refused by name',
              r.stderr[-300:])
        with Server('--pre', 'qwen2', model=bad) as t:
            check(t.ask('/tokenize', {'content': text})[2] == s.ask('/tokenize', {'content': text})[2], 'c05 or named')


def c06_double_bos(s):
    _, _, r = s.ask('/apply-template', {'messages': [{'role': 'user', 'content': 'hi'}]})
    _, _, t = s.ask('/tokenize', {'content': r['prompt']})
    _, _, u = s.ask('/v1/chat/completions', chat('hi'))
    check(u['usage']['prompt_tokens'] == len(t['tokens']), 'c06 the template alone decides', (u['usage'], t))


def c07_template_fallback(s):
    st, _, r = s.ask('/v1/chat/completions', {'messages': [{'role': 'wizard', 'content': 'x'}]})
    check(st == 400 and 'role' in r['error']['message'], 'c07 a role is not guessed', r)
    with tmp() as d:
        bad = os.path.join(d, 't.jinja')
        with open(bad, 'w') as f:
            f.write('{{ messages[0].content }}\n{{ raise_exception("no good") }}')
        with Server('--template', bad) as t:
            st, _, r = t.ask('/v1/chat/completions', chat())
            check(st == 400 and r['error']['code'] == 'template_error' and 'no good' in r['error']['message'],
                  'c07 a template that fails is an error', r)


def c08_tool_call_parse_failure_500(s):
    """This model cannot call tools: whatever it says is text, never an error."""
    tools = [{'type': 'function', 'function': {'name': 'f', 'parameters': {'type': 'object'}}}]
    for stream in (False, True):
        body = chat(tools=tools, max_tokens=24)
        st, _, r = s.ask('/v1/chat/completions', body) if not stream else (*s.sse('/v1/chat/completions', body)[:1], None, None)
        check(st == 200, 'c08 stream=%s' % stream, (st, r))
    hist = [{'role': 'user', 'content': 'x'},
            {'role': 'assistant', 'content': None, 'tool_calls': [
                {'id': 'a', 'type': 'function', 'function': {'name': 'f', 'arguments': '{broken'}}]},
            {'role': 'tool', 'tool_call_id': 'a', 'content': 'y'}]
    st, _, r = s.ask('/v1/chat/completions', {'messages': hist, 'max_tokens': 2})
    check(st in (200, 400), 'c08 malformed history', (st, r))


def c09_structured_output_fails_open(s):
    schema = {'type': 'object', 'properties': {'a': {'type': 'integer', 'minimum': 0, 'maximum': 9}},
              'required': ['a'], 'additionalProperties': False}
    st, _, r = s.ask('/v1/chat/completions', chat(max_tokens=60, response_format={
        'type': 'json_schema', 'json_schema': {'name': 'x', 'schema': schema, 'strict': True}}))
    ok = st == 200
    if ok and r['choices'][0]['finish_reason'] == 'stop':
        v = json.loads(content(r))
        ok = list(v) == ['a'] and 0 <= v['a'] <= 9
    check(ok, 'c09 the answer follows its schema', r)
    st, _, r = s.ask('/v1/chat/completions', chat(response_format={
        'type': 'json_schema', 'json_schema': {'name': 'x', 'schema': {'type': 'object', 'properties': {
            'a': {'$dynamicRef': '#x'}}}}}))
    check(st == 400 and 'a' in r['error']['message'], 'c09 what is not understood is refused by its place', r)
    st, _, r = s.ask('/v1/chat/completions', chat(grammar='root ::= [a-'))
    check(st == 400, 'c09 a broken grammar is refused', r)
    st, _, r = s.ask('/v1/completions', {'prompt': 'x', 'grammar': 'root ::= "yes" | "no"', 'max_tokens': 8})
    check(st == 200 and r['choices'][0]['text'] in ('yes', 'no'), 'c09 GBNF', r)


def c10_utf8_split(s):
    """Byte tokens of a code point: no piece of a stream ends inside of one, malformed ones come as U+FFFD."""
    for text in ('日本語', '😀😀', 'é'):
        ids = s.ask('/tokenize', {'content': text})[2]['tokens']
        bias = {str(i): 90 for i in set(ids)}
        st, ev, raw = s.sse('/v1/completions', {'prompt': 'x', 'max_tokens': 40, 'logit_bias': bias, 'seed': 5,
                                                'ignore_eos': True})
        try:
            raw.decode()
            good = st == 200
        except UnicodeDecodeError:
            good = False
        check(good, 'c10 %r' % text, raw[:200])


def c11_stop_strings(s):
    """A stop text never shows, whole answer and stream agree, whatever the split."""
    _, _, full = s.ask('/v1/chat/completions', chat(max_tokens=48))
    text = content(full)
    for k in range(3, min(len(text) - 6, 40), 5):
        stop = text[k:k + 4]
        body = chat(max_tokens=48, stop=[stop, 'never said'])
        _, _, a = s.ask('/v1/chat/completions', body)
        _, ev, _ = s.sse('/v1/chat/completions', body)
        streamed = ''.join(e['choices'][0]['delta'].get('content', '') for e in ev if e != '[DONE]' and e['choices'])
        check(content(a) == streamed == text[:text.index(stop)], 'c11 %r' % stop, (content(a), streamed))
        check(stop not in streamed, 'c11 leaked %r' % stop)


def c12_never_stops(s):
    _, _, r = s.ask('/v1/chat/completions', chat('Tell me a story.', max_tokens=490))
    check(r['choices'][0]['finish_reason'] in ('stop', 'length') and '<|' not in content(r),
          'c12 the end is no text', content(r)[-60:])
    check(s.ask('/props')[2]['engine']['tokenizer']['eog'], 'c12 the set of ends is told')


def c13_same_seed_other_text(s):
    """Alone, after a cache hit, without cache, in a batch: equal to the hash of the logits."""
    body = chat(max_tokens=24, hash_logits=True, seed=3, temperature=0.9)
    want = s.ask('/v1/chat/completions', body)[2]
    got = [s.ask('/v1/chat/completions', body)[2], s.ask('/v1/chat/completions', {**body, 'cache_prompt': False})[2]]
    out = []

    def one(k):
        b = body if k % 2 else chat('Other text %d' % k, max_tokens=30)
        r = s.ask('/v1/chat/completions', b)[2]
        if k % 2:
            out.append(r)
    ts = [threading.Thread(target=one, args=(k,)) for k in range(6)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    for r in got + out:
        check(content(r) == content(want) and r['hetero']['logits_sha256'] == want['hetero']['logits_sha256'],
              'c13 the same bits', r['hetero'])
    name = want['system_fingerprint']
    digest = s.ask('/api/tags')[2]['models'][0]['digest']
    check(re.fullmatch(r'hetero-.*-%s-f16-f32-f16\.f16-[0-9a-f]{8}\.[0-9a-f]{8}' % digest[:8], name), 'c13 fingerprint', name)


def c14_cache_misses_in_agent_loops(s):
    """A conversation that grows is computed once; several of them beside each other too."""
    system = {'role': 'system', 'content': 'You are a helpful teller of stories. ' * 8}
    talks = [[system, {'role': 'user', 'content': 'Number %d. Begin.' % k}] for k in range(2)]
    for turn in range(3):
        for k, m in enumerate(talks):
            _, _, r = s.ask('/v1/chat/completions', {'messages': m, 'max_tokens': 8, 'temperature': 0})
            u = r['usage']
            if turn:
                check(u['prompt_tokens'] - u['prompt_tokens_details']['cached_tokens'] < 64, 'c14 turn %d' % turn, u)
            m += [{'role': 'assistant', 'content': content(r)}, {'role': 'user', 'content': 'Go on.'}]


def c15_cache_looks_like_a_leak(s):
    m = s.metrics()
    check(m['kv_pages'] > 0 and 0 <= m['kv_pages_free'] <= m['kv_pages'] and m['resident_bytes'] > 0,
          'c15 the budget is told', m)


def c16_cross_session_contamination(s):
    """The same question gets the same answer among strangers' conversations."""
    want = content(s.ask('/v1/chat/completions', chat('What is red?', cache_prompt=False))[2])
    for k in range(6):
        s.ask('/v1/chat/completions', chat('What is red? And number %d?' % k))
        check(content(s.ask('/v1/chat/completions', chat('What is red?'))[2]) == want, 'c16 %d' % k)


def c17_estimates():
    r = run('serve', TALE, '-c', '100000000', '--port', '0')
    check(r.returncode != 0 and b'MiB' in r.stderr, 'c17 what does not fit is refused before it is taken',
          r.stderr[-200:])


def c18_device_silently_unused():
    """A device that is asked for and is not there ends the start; so does the check before it."""
    have = {e['name']: e for e in json.loads(run('doctor', '--json').stdout)['engines']}
    for name in ('cuda', 'vulkan'):
        if have.get(name, {}).get('available'):
            continue
        r = run('serve', TALE, '--engine', name, '--port', '0', timeout=60)
        check(r.returncode in (2, 3, 4) and b'error' in r.stderr and name.encode() in r.stderr.lower(),
              'c18 %s is not replaced' % name, (r.returncode, r.stderr[-300:]))
        check(run('doctor', '--require-device', name).returncode == 4, 'c18 doctor --require-device %s' % name)


def c19_silent_fallback_of_an_operation(s):
    """Both phases say which engine was planned and which one ran, why, and by how many launches of its plan."""
    plan = s.ask('/props')[2]['plan']
    check([p['phase'] for p in plan['phases']] == ['prefill', 'decode'] and
          all(p['cover']['sha256'] for p in plan['phases']), 'c19 the plan is told', str(plan)[:300])
    n = s.ask('/v1/chat/completions', chat())[2]['hetero']['receipts'][0]
    for p in s.ask('/receipts/%d' % n)[2]['phases']:
        check(p['planned'] == p['executed'] == 'cpu' and p['dispatches'] > 0 and p['reason'], 'c19 as planned', p)
    r = run('serve', TALE, '-ctk', 'q9_9', '--port', '0')
    check(r.returncode == 2 and b'q9_9' in r.stderr, 'c19 a type no kernel reads is refused', r.stderr[-200:])


def c20_wrong_device(s):
    """Nothing is chosen by its kind: without a measurement the reference runs, and the receipt says so."""
    n = s.ask('/v1/chat/completions', chat())[2]['hetero']['receipts'][0]
    rec = s.ask('/receipts/%d' % n)[2]
    check([(p['decision'], p['reason']) for p in rec['phases']] == [('reference', 'NO_EVIDENCE')] * 2, 'c20', rec['phases'])
    with Server('--engine', 'cpu') as t:
        n = t.ask('/v1/chat/completions', chat())[2]['hetero']['receipts'][0]
        check([p['decision'] for p in t.ask('/receipts/%d' % n)[2]['phases']] == ['forced'] * 2, 'c20 or it was forced')


def c21_threads(s):
    info = s.ask('/props')[2]['engine']
    check(info['threads'] == 2 and info['threadsWhy'], 'c21 threads and why', info)


def c22_idle_cpu(s):
    s.idle()
    time.sleep(0.5)
    c0 = s.cpu()
    time.sleep(5)
    check(s.cpu() - c0 <= 0.05, 'c22 idle costs nothing', '%.2f s of CPU in 5 s' % (s.cpu() - c0))


def c23_numa(s):
    """Nodes are no device of their own here: what the machine has is in every bundle's class, so that a figure of
    one node is not used on two; threads stay within the mask they were given."""
    d = json.loads(run('doctor', '--json').stdout)
    check('numaNodes' in json.dumps(d), 'c23 the nodes are told', str(d)[:200])
    one = sorted(os.sched_getaffinity(0))[0]
    with Server(wrap=('taskset', '-c', str(one))) as t:
        t.ask('/v1/chat/completions', chat())
        at = set()
        for task in os.listdir('/proc/%d/task' % t.p.pid):
            at |= os.sched_getaffinity(int(task))
        check(at == {one}, 'c23 no thread leaves the node it was given', at)


def c24_slow_load():
    """While it loads /health is a 503 that says how far it is."""
    seen = []
    for _ in range(10):
        k = socket.create_server(('127.0.0.1', 0))
        port = k.getsockname()[1]
        k.close()
        with Server(port=port, wait=False) as s:
            s.port = port
            while s.p.poll() is None:
                try:
                    st, h, r = s.ask('/health')
                except OSError:
                    continue
                seen.append((st, r.get('status'), r.get('progress'), h.get('retry-after')))
                if st == 200:
                    break
                st, _, r = s.ask('/v1/chat/completions', chat())
                check(st == 200 or r['error']['code'] == 'loading', 'c24 a request meanwhile', (st, r))
        if any(x[0] == 503 for x in seen):
            break
    busy = [x for x in seen if x[0] == 503]
    check(busy and all(x[1] == 'loading' and 0 <= x[2] <= 1 and x[3] == '1' for x in busy), 'c24 how far it is', seen[:5])
    check(seen[-1][0] == 200, 'c24 and then it is there', seen[-1])
    ended = []
    for _ in range(20):
        with Server(wait=False) as s:
            while s.p.poll() is None and len(os.listdir('/proc/%d/task' % s.p.pid)) < 4:
                pass
            s.p.send_signal(signal.SIGTERM)  # HTTP is up, the model is not
            ended.append((s.p.wait(60), 'ready on' in s.text(), 'stopping' in s.text()))
        if ended[-1] == (0, False, True):
            break
    check(ended[-1] == (0, False, True), 'c24 a signal while it loads ends it at once', ended)
    with tmp() as d:
        # A model that is there but empty: the error is told, the status is not 0.
        bad = os.path.join(d, 'x.gguf')
        open(bad, 'wb').close()
        r = run('serve', bad, '--port', '0')
        check(r.returncode == 3 and b'error' in r.stderr, 'c24 a load that fails ends the server', r.stderr[-200:])


def c25_which_build(s):
    """Every answer names its build, model, arithmetic and cover: two speeds can be told apart, and `hetero compare`
    and `qualify` refuse to mix them."""
    _, _, r = s.ask('/v1/chat/completions', chat())
    p = s.ask('/props')[2]
    version = run('--version').stdout.decode().split()
    check(r['system_fingerprint'] == p['system_fingerprint'] and version[1] in r['system_fingerprint'],
          'c25 the answer names its build', (r['system_fingerprint'], version))
    check(all(k in r['timings'] for k in ('prompt_per_second', 'predicted_per_second')), 'c25 and its speed', r['timings'])


def c26_speculation(s):
    with Server('--lookup') as t:
        body = chat('one two three one two three one two', max_tokens=32, hash_logits=True)
        a, b = s.ask('/v1/chat/completions', body)[2], t.ask('/v1/chat/completions', body)[2]
        check(content(a) == content(b), 'c26 guessing changes no token', (content(a), content(b)))
        check('draft_n' in b['timings'] and 'draft_n_accepted' in b['timings'], 'c26 and is told', b['timings'])


def c27_malformed_model():
    """A file that is wrong ends the start with a message, never with a signal."""
    d = os.path.join(ROOT, 'tests', 'data', 'malformed', 'gguf')
    for name in sorted(os.listdir(d))[::4]:
        r = run('serve', os.path.join(d, name), '--port', '0', timeout=60)
        check(r.returncode in (2, 3, 4, 5) and b'error' in r.stderr, 'c27 %s' % name, (r.returncode, r.stderr[-200:]))


def c28_remote_crash(s):
    """Nested, huge, odd: always a 4xx and the server goes on."""
    deep = '[' * 100000 + ']' * 100000
    cases = [b'{}', b'', b'[]', b'null', b'"x"', b'{', deep.encode(), b'{"messages":' + deep.encode() + b'}',
             b'{"messages":[]}', b'{"messages":[1]}', b'{"messages":{}}', b'{"messages":[{}]}',
             b'{"messages":[{"role":"user"}]}', b'{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}',
             b'{"a":1,"a":2}', b'{"messages":"\xff\xfe"}', b'{"messages":"\\ud800"}']
    for c in cases:
        st, _, r = s.ask('/v1/chat/completions', c)
        check(400 <= st < 500 and isinstance(r, dict) and r['error']['message'], 'c28 %r' % c[:40], (st, r))
    for key, bad in (('temperature', -1), ('temperature', 1e999), ('temperature', 'x'), ('top_p', 2), ('top_k', 1.5),
                     ('n', 0), ('n', 10**9), ('max_tokens', 0), ('max_tokens', -5), ('seed', 'x'), ('stop', 5),
                     ('stop', ['']), ('stop', ['x'] * 100), ('logit_bias', {'999999999': 1}), ('logit_bias', {'1': 'x'}),
                     ('logit_bias', []), ('top_logprobs', 99), ('stream', 'yes'), ('stream_options', {}),
                     ('tools', 'x'), ('tools', [{}]), ('tool_choice', 'x'), ('response_format', 'x'),
                     ('response_format', {'type': 'x'}), ('reasoning_effort', 'x'), ('repeat_penalty', 0)):
        st, _, r = s.ask('/v1/chat/completions', json.dumps(chat(**{key: bad})).encode())
        check(st == 400 and isinstance(r, dict), 'c28 %s=%r' % (key, bad), (st, r))
    g = 'root ::= ' + '(' * 20000 + '"a"' + ')' * 20000
    check(s.ask('/v1/chat/completions', chat(grammar=g))[0] == 400, 'c28 nested grammar')
    many = {'type': 'json_schema', 'json_schema': {'name': 'x', 'schema': {'enum': ['%05d' % i for i in range(20000)]}}}
    st, _, r = s.ask('/v1/chat/completions', chat(response_format=many))
    check(st == 400 and r['error']['code'] == 'unsupported_value' and 'ways' in r['error']['message'], 'c28 ambiguous', (st, r))
    big = json.dumps(chat('x' * (40 << 20))).encode()
    try:
        st = s.ask('/v1/chat/completions', big)[0]
    except (ConnectionError, socket.timeout):
        st = 413  # closed while it was still being sent
    check(st == 413, 'c28 too large', st)
    check(s.ask('/health')[0] == 200, 'c28 the server is there')


def c29_exposure():
    r = run('serve', TALE, '--host', '0.0.0.0', '--port', '0', timeout=60)
    check(r.returncode == 2 and b'--api-key' in r.stderr, 'c29 open to others without a key is refused', r.stderr[-200:])
    with tmp() as d:
        f = os.path.join(d, 'keys')
        with open(f, 'w') as h:
            h.write('# keys\nsecret-one priority=1 name=anna\nsecret-two\n')
        with Server('--api-key-file', f) as s:
            for h, want in (({}, 401), ({'Authorization': 'Bearer nope'}, 401), ({'Authorization': 'Bearer secret-one'}, 200),
                            ({'x-api-key': 'secret-two'}, 200), ({'Authorization': 'Bearer secret-one2'}, 401),
                            ({'Authorization': 'Bearer secret-on'}, 401), ({'x-api-key': 'x' * 3000}, 401)):
                st, _, r = s.ask('/v1/models', headers=h)
                check(st == want, 'c29 %s' % list(h.values()), st)
                if st == 401:
                    check(r['error']['type'] == 'authentication_error', 'c29 error', r)
            check(s.ask('/health')[0] == 200, 'c29 health without a key')
            check('secret' not in s.text(), 'c29 no key in the log')
            st, h, _ = s.ask('/v1/models', method='OPTIONS', headers={'Origin': 'http://evil.example'})
            check('access-control-allow-origin' not in h, 'c29 no origin is allowed unless named', h)


def c30_model_names(s):
    """The file where it lies, under its own name; other names are refused or given."""
    r = s.ask('/v1/models')[2]['data']
    check([m['id'] for m in r] == ['tale-9m-f16'], 'c30 its name', r)
    check(s.ask('/v1/models/tale-9m-f16')[0] == 200 and s.ask('/v1/models/x')[0] == 404, 'c30 by id')
    st, _, r = s.ask('/v1/chat/completions', chat(model='gpt-4'))
    check(st == 404 and r['error']['code'] == 'model_not_found', 'c30 another name', r)
    with Server('--alias', 'mine', '--alias', '*') as t:
        check(t.ask('/v1/chat/completions', chat(model='whatever'))[0] == 200, 'c30 any name')
        check([m['id'] for m in t.ask('/v1/models')[2]['data']] == ['tale-9m-f16', 'mine'], 'c30 aliases')


# ---- protocols ----

def openai_streams(s):
    for body in (chat(max_tokens=12), chat(max_tokens=12, n=2, seed=1, temperature=1),
                 chat(max_tokens=6, logprobs=True, top_logprobs=3)):
        _, _, a = s.ask('/v1/chat/completions', body)
        st, ev, raw = s.sse('/v1/chat/completions', {**body, 'stream_options': {'include_usage': True}})
        check(st == 200 and ev[-1] == '[DONE]', 'stream ends with [DONE]')
        ev = ev[:-1]
        check(len({e['id'] for e in ev}) == 1, 'one id')
        check(ev[0]['choices'][0]['delta']['role'] == 'assistant', 'role comes first')
        check(ev[-1]['choices'] == [] and ev[-1]['usage'] == a['usage'] or
              ev[-1]['usage']['completion_tokens'] == a['usage']['completion_tokens'], 'usage is equal',
              (ev[-1].get('usage'), a['usage']))
        for i in range(body.get('n', 1)):
            parts = [c for e in ev for c in e['choices'] if c['index'] == i]
            text = ''.join(c['delta'].get('content') or '' for c in parts)
            want = a['choices'][i]
            check(text == want['message']['content'], 'stream equals whole', (text, want))
            check([c['finish_reason'] for c in parts if c['finish_reason']] == [want['finish_reason']], 'one finish')
            if body.get('logprobs'):
                lp = [x for c in parts for x in (c['logprobs'] or {}).get('content', [])]
                check(lp == want['logprobs']['content'] and len(lp) == 6, 'logprobs equal')
    check(raw.count(b'\n\n') == len(events(raw)), 'only data lines')
    st, ev, _ = s.sse('/v1/chat/completions', chat(return_progress=True, cache_prompt=False))
    check(any('prompt_progress' in e for e in ev if e != '[DONE]'), 'progress on request')


def openai_completions(s):
    _, _, r = s.ask('/v1/completions', {'prompt': 'Once upon', 'max_tokens': 5, 'temperature': 0, 'echo': True})
    check(r['choices'][0]['text'].startswith('Once upon') and r['object'] == 'text_completion', 'echo', r)
    _, _, r = s.ask('/v1/completions', {'prompt': ['a', 'b'], 'max_tokens': 2, 'n': 2, 'temperature': 1})
    check([c['index'] for c in r['choices']] == [0, 1, 2, 3], 'prompts times n', r)
    _, _, r = s.ask('/v1/completions', {'prompt': 'x', 'max_tokens': 4, 'logprobs': 2, 'return_tokens': True})
    lp = r['choices'][0]['logprobs']
    check(all(len(lp[k]) == 4 for k in ('tokens', 'token_logprobs', 'top_logprobs', 'text_offset')) and
          len(r['choices'][0]['tokens']) == 4, 'logprobs of completions', r)
    for seed in range(4):
        _, _, r = s.ask('/v1/completions', {'prompt': '\u65e5\u672c \U0001f389 \u00f1 emoji: ', 'max_tokens': 12, 'temperature': 1.5,
                                            'seed': seed, 'logprobs': 20})
        check(all(1 <= len(o) <= 20 for o in r['choices'][0]['logprobs']['top_logprobs']), 'names of broken characters', r)
    _, h, r = s.ask('/v1/completions', {'prompt': 'x', 'max_tokens': 2, 'frobnicate': 1})
    check(h.get('x-ignored-fields') == 'frobnicate', 'unknown fields are listed', h)
    st, _, r = s.ask('/v1/completions', {'prompt': 'x', 'suffix': 'y'})
    check(st == 400 and r['error']['param'] == 'suffix', 'known but unsupported', r)
    st, _, r = s.ask('/v1/embeddings', {'input': 'x'})
    check(st == 400 and 'pooling' in r['error']['message'], 'embeddings', r)
    _, _, r = s.ask('/v1/chat/completions', {'messages': [
        {'role': 'user', 'content': [{'type': 'text', 'text': 'Say'}, {'type': 'text', 'text': ' hi'}]},
        {'role': 'assistant', 'content': 'Once upon a'}], 'max_tokens': 4, 'temperature': 0})
    check(r['usage']['completion_tokens'] == 4, 'an answer that was begun is continued', r)


def openai_responses(s):
    body = {'input': 'Tell me of a fox.', 'max_output_tokens': 10, 'temperature': 0, 'instructions': 'Be brief.'}
    _, _, a = s.ask('/v1/responses', body)
    check(a['object'] == 'response' and a['status'] == 'incomplete' and a['output'][0]['type'] == 'message', 'response', a)
    st, ev, _ = s.sse('/v1/responses', body)
    kinds = [e['type'] for e in ev]
    check(kinds[0] == 'response.created' and kinds[-1] == 'response.incomplete', 'events', kinds)
    check([e['sequence_number'] for e in ev] == list(range(len(ev))), 'numbered')
    text = ''.join(e['delta'] for e in ev if e['type'] == 'response.output_text.delta')
    check(text == a['output'][0]['content'][0]['text'], 'the same text', (text, a['output']))
    check(ev[-1]['response']['usage'] == a['usage'] or
          ev[-1]['response']['usage']['output_tokens'] == a['usage']['output_tokens'], 'the same usage')
    st, _, r = s.ask('/v1/responses', {**body, 'previous_response_id': 'x'})
    check(st == 400 and r['error']['param'] == 'previous_response_id', 'nothing is stored', r)


def anthropic_messages(s):
    body = {'model': 'tale-9m-f16', 'max_tokens': 10, 'temperature': 0, 'system': 'Be brief.',
            'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'Tell me of a fox.'}]}]}
    _, _, a = s.ask('/v1/messages', body)
    check(a['type'] == 'message' and a['stop_reason'] == 'max_tokens' and a['content'][0]['type'] == 'text', 'message', a)
    st, ev, raw = s.sse('/v1/messages', body)
    kinds = [e['type'] for e in ev]
    check(kinds[0] == 'message_start' and kinds[-1] == 'message_stop' and 'message_delta' in kinds and b'[DONE]' not in raw,
          'events', kinds)
    text = ''.join(e['delta']['text'] for e in ev if e['type'] == 'content_block_delta')
    check(text == a['content'][0]['text'], 'the same text', text)
    d = [e for e in ev if e['type'] == 'message_delta'][0]
    check(d['usage']['output_tokens'] == a['usage']['output_tokens'] == 10, 'usage', d)
    _, _, n = s.ask('/v1/messages/count_tokens', {k: body[k] for k in ('model', 'messages', 'system')})
    u = a['usage']
    check(n['input_tokens'] == u['input_tokens'] + u['cache_read_input_tokens'], 'count_tokens', (n, u))
    stop = text.split()[2]
    for order in (['xyzzy', stop, '###'], [stop], ['###', 'xyzzy', 'x y', stop]):
        _, _, r = s.ask('/v1/messages', {**body, 'stop_sequences': order})
        _, ev, _ = s.sse('/v1/messages', {**body, 'stop_sequences': order})
        d = [e for e in ev if e['type'] == 'message_delta'][0]['delta']
        check((r['stop_reason'], r['stop_sequence']) == (d['stop_reason'], d['stop_sequence']) == ('stop_sequence', stop),
              'which text ended it', (r, d))
    st, _, r = s.ask('/v1/messages', {k: v for k, v in body.items() if k != 'max_tokens'})
    check(st == 400 and r['type'] == 'error' and r['error']['type'] == 'invalid_request_error', 'error form', r)


def ollama_routes(s):
    body = {'model': 'tale-9m-f16:latest', 'messages': [{'role': 'user', 'content': 'Tell me of a fox.'}],
            'options': {'temperature': 0, 'num_predict': 10}}
    _, h, raw = s.ask('/api/chat', body)
    lines = [json.loads(x) for x in raw.decode().splitlines()]
    check('ndjson' in h['content-type'] and [x['done'] for x in lines] == [False] * (len(lines) - 1) + [True], 'lines', lines[-1])
    _, _, a = s.ask('/api/chat', {**body, 'stream': False})
    check(''.join(x['message']['content'] for x in lines) == a['message']['content'], 'the same text', a)
    check(a['eval_count'] == 10 and a['done_reason'] == 'length', 'counts', a)
    _, _, g = s.ask('/api/generate', {'model': 'tale-9m-f16', 'prompt': 'A fox', 'stream': False, 'raw': True,
                                      'options': {'num_predict': 3}})
    check(g['done'] and g['eval_count'] == 3 and isinstance(g['response'], str), 'generate', g)
    check(s.ask('/api/tags')[2]['models'][0]['name'] == 'tale-9m-f16', 'tags')
    check(s.ask('/api/ps')[2]['models'][0]['context_length'] == 512, 'ps')
    check('version' in s.ask('/api/version')[2], 'version')
    check('model_info' in s.ask('/api/show', {'model': 'tale-9m-f16'})[2], 'show')
    st, _, r = s.ask('/api/chat', {**body, 'options': {'num_ctx': 10**6}})
    check(st == 400 and 'num_ctx' in r['error'], 'num_ctx is not cut in silence', r)


def tools_around(s):
    _, _, t = s.ask('/tokenize', {'content': 'Hello wörld', 'with_pieces': True})
    check(all('piece' in x for x in t['tokens']), 'pieces', t)
    ids = s.ask('/tokenize', {'content': 'Hello wörld'})[2]['tokens']
    check(s.ask('/detokenize', {'tokens': ids})[2]['content'] == 'Hello wörld', 'there and back')
    check(s.ask('/detokenize', {'tokens': [-1]})[0] == 400, 'no such token')
    _, _, r = s.ask('/v1/chat/completions', chat())
    seq = r['hetero']['receipts'][0]
    _, _, rec = s.ask('/receipts/%d' % seq)
    check(rec['schema'] == 'hetero/receipt/1' and rec['nOut'] == r['usage']['completion_tokens'], 'receipt', rec)
    check(s.ask('/receipts/999999')[0] == 404 and s.ask('/receipts/x')[0] == 404, 'no such receipt')
    check(len(s.ask('/slots')[2]) == 4, 'slots')
    with tmp() as d, Server('--receipts', os.path.join(d, 'log')) as t:
        n = t.ask('/v1/chat/completions', chat())[2]['hetero']['receipts'][0]
        st, _, line = t.ask('/receipts/%d' % n)
        check(st == 200 and line, 'a log of receipts', (n, line))


# ---- HTTP ----

def http_rules(s):
    for method, path, want in (('GET', '/nothing', 404), ('GET', '/v1/chat/completions', 405), ('PUT', '/v1/models', 405),
                               ('POST', '/health', 405), ('HEAD', '/health', 200), ('OPTIONS', '/v1/models', 204),
                               ('DELETE', '/v1/models/x', 405)):
        st, h, r = s.ask(path, method=method)
        check(st == want, '%s %s' % (method, path), st)
        if want == 405:
            check('allow' in h and r['error']['code'] == 'method_not_allowed', 'allow', h)
    st, _, r = s.ask('/v1/chat/completions', b'x', headers={'Content-Type': 'image/png'})
    check(st == 415, 'wrong type', st)
    for origin, want in (('http://evil.example', 403), ('null', 403), ('http://127.0.0.1:1', 403),
                         ('http://%s:%d' % (s.host, s.port), 200), ('app://desk', 200)):
        st, _, r = s.ask('/v1/chat/completions', chat(max_tokens=1), headers={'Origin': origin})
        check(st == want and (st == 200 or r['error']['code'] == 'origin_refused'), 'a page of ' + origin, r)
    for name, want in (('evil.example', 403), ('127.evil.example:80', 403), ('localhost:1', 200), ('127.0.0.2', 200), ('[::1]:8', 200),
                       ('a.localhost', 200), ('x', 200)):
        got = s.raw(b'GET /props HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' % name.encode())
        check(got.startswith(b'HTTP/1.1 %d' % want) and (want == 200 or b'host_refused' in got), 'asked for as ' + name, got[:60])
    for field, want in (({'grammar': 'root ::= "a"\0 garbage(('}, 400), ({'modalities': ['audio']}, 400),
                        ({'modalities': ['text']}, 200), ({'max_tokens': 0}, 400), ({'max_tokens': -1, 'stop': ['a', 'e', ' ']}, 200),
                        ({'unknown_%d_%s' % (i, 'x' * 200): i for i in range(100)}, 200)):
        st, h, r = s.ask('/v1/chat/completions', dict(chat(max_tokens=2), **field))
        check(st == want, 'field %.60s' % (field,), r)
    check(h['x-ignored-fields'].endswith(' and 91 more'), 'fields beyond the header are counted', h)
    for seed in (-5, 9007199254740993, -2 ** 63, 2 ** 63 - 1):
        _, _, a = s.ask('/v1/chat/completions', chat(max_tokens=4, temperature=1, seed=seed))
        check(a['hetero']['seeds'] == [seed], 'seed as it was given', a)
    _, _, r = s.ask('/props')
    check('POST /v1/messages' in r['routes'] and 'GET /receipts/*' in r['routes'], 'routes are listed', r['routes'])
    body = json.dumps(chat(max_tokens=2)).encode()
    head = b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n'
    got = s.raw(head + b'Transfer-Encoding: chunked\r\n\r\n' + b'%x\r\n%s\r\n0\r\n\r\n' % (len(body), body))
    check(got.startswith(b'HTTP/1.1 200'), 'chunked body', got[:60])
    got = s.raw(head + b'Expect: 100-continue\r\nContent-Length: %d\r\n\r\n' % len(body) + body)
    check(got.startswith(b'HTTP/1.1 100') and b'HTTP/1.1 200' in got, 'Expect', got[:60])
    got = s.raw(head + b'Content-Length: %d\r\nContent-Length: 3\r\n\r\n' % len(body) + body, timeout=5)
    check(got.startswith(b'HTTP/1.1 400'), 'two lengths', got[:60])
    for odd in (b'Content-Length: 2\r\nTransfer-Encoding: chunked', b'Transfer-Encoding: chunked\r\nTransfer-Encoding: identity',
                b'Transfer-Encoding: xchunked', b'Transfer-Encoding: identity, chunked', b'Transfer-Encoding : chunked\r\nContent-Length: 5'):
        got = s.raw(head + odd + b'\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n', timeout=10)
        check(got.startswith(b'HTTP/1.1 400') and b'invalid_header' in got and got.count(b'HTTP/1.1') == 1,
              'where a body ends: %r' % odd, got)
    for x in (b'ffffffffffffffffff\r\n', b'-5\r\nabcde\r\n0\r\n\r\n', b'0x5\r\nabcde\r\n0\r\n\r\n', b'2\r\n{}xx0\r\n\r\n'):
        got = s.raw(head + b'Transfer-Encoding: chunked\r\n\r\n' + x, timeout=10)
        check(got.startswith(b'HTTP/1.1 4'), 'chunk %r' % x, got[:60])
    got = s.raw(b'GET /receipts/1%00x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n', timeout=5)
    check(got.startswith(b'HTTP/1.1 404'), 'a NUL in a path hides nothing', got[:60])
    got = s.raw(b'GET /health HTTP/1.1\r\nHost: x\r\n\r\n' * 50 + b'GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
    check(got.count(b'HTTP/1.1 200') == 51, '51 requests at once', got.count(b'HTTP/1.1 200'))
    got = s.raw(head + b'Content-Length: 99999999999\r\n\r\n', timeout=5)
    check(got.startswith(b'HTTP/1.1 413'), 'announced too large', got[:60])
    got = s.raw(b'GET /health HTTP/1.1\r\nhOsT: x\r\nconnection: close\r\n\r\n')
    check(got.startswith(b'HTTP/1.1 200'), 'any case', got[:60])
    for n in (40000, 120000, 200000):
        got = s.raw(b'GET /health HTTP/1.1\r\nHost: x\r\nX: ' + b'y' * n + b'\r\n\r\n', timeout=5)
        check(got.startswith(b'HTTP/1.1 431') or (n > 130000 and got == b''), 'head of %d' % n, got[:60])
        if n < 130000:
            check(json.loads(got.split(b'\r\n\r\n', 1)[1])['error']['code'] == 'head_too_large', 'in JSON', got[-200:])
    got = s.raw(b'\x00\x01\x02garbage\r\n\r\n', timeout=2)
    check(got == b'' or got.startswith(b'HTTP/1.1 4'), 'no HTTP at all', got[:60])
    got = s.raw(b'GET ' + b'/' * 5000 + b' HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n', timeout=5)
    check(got.startswith(b'HTTP/1.1 404') and b'not_found' in got, 'a long path', got[:60])
    c = s.conn()
    for _ in range(3):
        c.request('GET', '/health')
        r = c.getresponse()
        r.read()
        check(r.status == 200, 'keep-alive')
    c.close()


def error_forms(s):
    """What HTTP, lengths and the table of routes refuse has the form of the protocol whose path was asked for."""
    forms = {
        '/v1/messages': lambda r: (r['type'], r['error']['code'], r['error']['type'] != 'not_found_error' or r['error']['code'] == 'not_found'),
        '/api/chat': lambda r: ('error', r['code'], isinstance(r['error'], str)),
        '/v1/completions': lambda r: ('error', r['error']['code'], 'param' in r['error'] and 'type' not in r),
    }
    for path, read in forms.items():
        for raw, status, code in (
                ('GET %s HTTP/1.1', 405, 'method_not_allowed'), ('POST %s/nothing HTTP/1.1', 404, 'not_found'),
                ('POST %s HTTP/1.1\r\nContent-Type: image/png', 415, 'unsupported_media_type'),
                ('POST %s HTTP/1.1\r\nX: ' + 'y' * 40000, 431, 'head_too_large'),
                ('POST %s HTTP/1.1\r\nContent-Length: 99999999999', 413, 'body_too_large'),
                ('POST %s HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4', 400, 'invalid_header'),
                ('POST %s HTTP/1.1\r\nOrigin: http://evil.example', 403, 'origin_refused')):
            head = '%s\r\nHost: x\r\nConnection: close\r\n%s\r\n' % (raw % path, '' if 'Length' in raw else 'Content-Length: 0\r\n')
            got = s.raw(head.encode(), timeout=10).split(b'\r\n\r\n', 1)
            check(got[0].startswith(b'HTTP/1.1 %d' % status) and len(got) == 2 and read(json.loads(got[1])) == ('error', code, True),
                  'form of %d on %s' % (status, path), got)
    with Server('--api-key', 'k') as k:
        for path, read in forms.items():
            st, _, r = k.ask(path, {})
            check(st == 401 and read(r) == ('error', 'invalid_api_key', True), 'form of 401 on ' + path, (st, r))
    check(s.metrics()['errors_total{class="4xx"}'] > 20, 'they are counted')


def pool_below_slots():
    """--kv-positions bounds what answers hold together, whatever memory the kept prompts have beside it."""
    r = run('serve', TALE, '-c', '512', '--kv-positions', '64', '--port', '0')
    check(r.returncode == 2 and b'holds no answer of 512' in r.stderr, 'a pool below one context', r.stderr)
    with Server('--kv-positions', '2048', ctx=2048) as s:
        c = s.conn()
        c.request('POST', '/v1/chat/completions', json.dumps(chat(max_tokens=1900, ignore_eos=True, stream=True)).encode(),
                  {'Content-Type': 'application/json'})
        first = c.getresponse()
        first.read(1)
        out = []
        t = threading.Thread(target=lambda: out.append(s.ask('/v1/chat/completions', chat(max_tokens=200))[0]))
        t.start()
        seen = 0
        while not out:
            r = s.ask('/health')[2]
            check(r['running'] < 2, 'one at a time', r)
            seen = max(seen, r['waiting'])
            time.sleep(0.02)
        first.read()
        t.join()
        check(seen == 1 and out == [200], 'the second waits, then runs', (seen, out))


def unix_socket():
    with tmp() as d:
        path = os.path.join(d, 's')
        with Server(host=path) as s:
            check(os.stat(path).st_mode & 0o077 == 0, 'only for its owner')
            k = socket.socket(socket.AF_UNIX)
            k.connect(path)
            k.sendall(b'GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
            check(b'200 OK' in k.recv(4096), 'unix socket')
            k.close()
        check(not os.path.exists(path), 'the socket is gone afterwards')


def queue_is_bounded():
    with Server('--parallel', 1, '--queue', 1, '--queue-timeout', 2, ctx=8192) as s:
        busy = s.conn()
        busy.request('POST', '/v1/chat/completions', json.dumps(chat(max_tokens=8000, ignore_eos=True, stream=True)).encode())
        s.busy()
        out = []
        t = threading.Thread(target=lambda: out.append(s.ask('/v1/chat/completions', chat())))
        t.start()
        s.waiting(1)
        st, h, r = s.ask('/v1/chat/completions', chat())
        check(st == 429 and int(h['retry-after']) >= 1 and r['error']['code'] == 'queue_full', 'full', (st, h, r))
        t.join()
        st, h, r = out[0]
        check(st == 503 and r['error']['code'] == 'queue_timeout' and 'retry-after' in h, 'waited too long', (st, r))
        busy.sock.close()
    with Server('--deadline', 1, ctx=8192) as s:
        st, _, r = s.ask('/v1/chat/completions', chat(max_tokens=8000, ignore_eos=True))
        check(st == 200 and r['choices'][0]['finish_reason'] == 'length' and r['hetero']['stopped_by'] == 'deadline' and
              r['usage']['completion_tokens'] < 8000, 'deadline', (st, r.get('usage')))


def occupied(s):
    """A connection whose answers take the only slot for minutes."""
    c = s.conn()
    c.request('POST', '/v1/completions', json.dumps({'prompt': [300], 'max_tokens': 4000, 'n': 128, 'ignore_eos': True}).encode())
    s.busy()
    return c


def keep_alive():
    """A stream that waits speaks before a proxy gives it up; what fails after that is an event, before it a status."""
    with Server('--parallel', 1, ctx=4096) as s, Server('--parallel', 1, '--queue-timeout', 18, ctx=4096) as short:
        busy, shut = occupied(s), occupied(short)
        out, ts = {}, []
        for path, body in (('/v1/chat/completions', chat(stream=True)), ('/v1/messages', chat(stream=True)), ('/v1/completions', {
                'prompt': [301], 'max_tokens': 2}), ('/api/generate', {'prompt': 'a', 'stream': True})):
            ts.append(threading.Thread(target=lambda p=path, b=body: out.update({p: short.ask(p, b)})))
            ts[-1].start()
        waits = s.conn()
        waits.request('POST', '/v1/chat/completions', json.dumps(chat(stream=True, max_tokens=3)).encode())
        r = waits.getresponse()
        check(r.status == 200 and r.readline() == b': keep-alive\n', 'a word before the first token', r.status)
        busy.sock.close()
        raw = r.read()
        check(raw.count(b'"usage"') == 0 and raw.endswith(b'data: [DONE]\n\n') and b'"role"' in raw, 'then the answer', raw)
        [t.join() for t in ts]
        for path, mark in (('/v1/chat/completions', b': keep-alive\n\n'), ('/v1/messages', b'event: ping\n')):
            st, _, raw = out[path]
            check(st == 200 and raw.startswith(mark) and b'queue_timeout' in raw, 'a failure after it is an event', (st, raw))
        for path in ('/v1/completions', '/api/generate'):
            check(out[path][0] == 503 and 'queue_timeout' in str(out[path][2]), 'no ping, no stream: a status', out[path])
        shut.sock.close()
        check(s.idle(20) and short.idle(20), 'all are counted')


def priorities():
    with tmp() as d:
        f = os.path.join(d, 'keys')
        with open(f, 'w') as h:
            h.write('low\nhigh priority=5\n')
        with Server('--parallel', 1, '--api-key-file', f, ctx=8192) as s:
            order = []
            s.headers = {'x-api-key': 'low'}

            def one(key, name):
                s.ask('/v1/chat/completions', chat(max_tokens=4), headers={'x-api-key': key})
                order.append(name)
            first = s.conn()
            body = chat(max_tokens=7000, ignore_eos=True, stream=True)
            first.request('POST', '/v1/chat/completions', json.dumps(body).encode(), s.headers)
            first.getresponse().read(1)
            ts = []
            for key, name in (('low', 'a'), ('low', 'b'), ('high', 'c')):
                ts.append(threading.Thread(target=one, args=(key, name)))
                ts[-1].start()
                check(s.waiting(len(ts)), 'it waits', name)
            first.sock.shutdown(socket.SHUT_RDWR)  # its response keeps it open; the one slot is free from here on
            [t.join() for t in ts]
            check(order[0] == 'c', 'the higher key goes first', order)


def life_cycle():
    s = Server(ctx=8192)
    out = []
    t = threading.Thread(target=lambda: out.append(s.sse('/v1/chat/completions', chat(max_tokens=4500, ignore_eos=True))))
    t.start()
    s.busy()
    s.p.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    st, h, r = s.ask('/health')
    check(st == 503 and r['status'] == 'draining', 'health says so', r)
    st, _, r = s.ask('/v1/chat/completions', chat())
    check(st == 503 and r['error']['code'] == 'draining', 'no new ones', r)
    t.join()
    check(out[0][1][-1] == '[DONE]', 'what runs is finished')
    check(s.p.wait(20) == 0, 'exit status 0')
    s = Server(ctx=8192)
    c = s.conn()
    c.request('POST', '/v1/chat/completions', json.dumps(chat(max_tokens=8000, ignore_eos=True, stream=True)).encode())
    s.busy()
    s.p.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    check(s.p.poll() is None, 'it drains')
    t0 = time.monotonic()
    s.p.send_signal(signal.SIGTERM)
    check(s.p.wait(20) == 0 and time.monotonic() - t0 < 10, 'a second signal ends it')
    last = c.getresponse().read().decode()
    check('"finish_reason":"length"' in last and '"finish_reason":"stop"' not in last and '[DONE]' in last,
          'the answer says that it was cut', last[-600:])
    with tmp() as d:
        path = os.path.join(d, 'n')
        k = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        k.bind(path)
        k.settimeout(30)
        with Server(env={'NOTIFY_SOCKET': path, 'WATCHDOG_USEC': '400000'}) as s:
            seen = set()
            while len(seen) < 2:
                got = k.recv(4096)
                seen |= {x for x in (b'READY=1', b'WATCHDOG=1') if x in got}
            check(True, 'READY and WATCHDOG')
        seen = b''
        while b'STOPPING=1' not in seen:
            seen = k.recv(4096)
        check(True, 'STOPPING')


def main():
    with Server() as s:
        for test in (c02_hidden_context_silent_truncation, c03_context_divided_by_slots,
                     c04_context_shift, c05_wrong_tokenisation, c06_double_bos, c07_template_fallback, c08_tool_call_parse_failure_500,
                     c09_structured_output_fails_open, c10_utf8_split, c11_stop_strings, c12_never_stops,
                     c13_same_seed_other_text, c14_cache_misses_in_agent_loops, c15_cache_looks_like_a_leak,
                     c16_cross_session_contamination, c19_silent_fallback_of_an_operation, c20_wrong_device, c21_threads,
                     c22_idle_cpu, c23_numa, c25_which_build, c26_speculation, c28_remote_crash,
                     c30_model_names, openai_streams, openai_completions, openai_responses, anthropic_messages,
                     ollama_routes, tools_around, http_rules, error_forms):
            try:
                test(s)
            except Exception as e:  # noqa: BLE001 - one test that breaks must not hide the others
                check(False, test.__name__, repr(e))
        check(s.stop() == 0, 'clean end', s.text()[-300:])
    for test in (c01_client_gone_server_goes_on, c17_estimates, c18_device_silently_unused, c24_slow_load,
                 c27_malformed_model, c29_exposure, pool_below_slots, unix_socket,
                 queue_is_bounded, keep_alive, priorities, life_cycle):
        try:
            test()
        except Exception as e:  # noqa: BLE001
            check(False, test.__name__, repr(e))


main()
end()
