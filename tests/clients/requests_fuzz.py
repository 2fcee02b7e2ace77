"""Requests made at random from the request types of the installed clients: never a 5xx, never a crash.

The types of the openai and anthropic packages are generated from the published API descriptions; walking them gives
bodies with every field and every form, most of them right, some with a value of another kind in one place. Every answer
must have a status below 500 and a body of its protocol. 5,000 requests in the full tier, FUZZ_REQUESTS names a number.
"""
import collections.abc
import http.client
import json
import os
import random
import sys
import threading
import types
import typing

import anthropic.types.message_count_tokens_params as count_params
import anthropic.types.message_create_params as message_params
import openai.types.chat.completion_create_params as chat_params
import openai.types.completion_create_params as text_params
import openai.types.embedding_create_params as embedding_params
import openai.types.responses.response_create_params as response_params
from typing_extensions import NotRequired, Required, is_typeddict

from lib import FULL, TALE, check, end, server

N = int(os.environ.get('FUZZ_REQUESTS', '5000' if FULL else '400'))
ODD = [None, True, False, 0, -1, 1, 2 ** 31, 2 ** 63, -2 ** 63, 10 ** 30, 1e308, -0.0, 0.5, '', 'x', 'é😀\u0000', '\ud800',
       'a' * 3000, [], {}, [[]], {'': {}}, [None], {'type': 'text'}, {'type': 'object'}, {'$ref': '#'}, [1, 2], ['x', None]]
SCHEMAS = [{'type': 'object', 'properties': {'a': {'type': 'integer'}}, 'required': ['a']}, {'type': 'string', 'enum': ['a', 'b']},
           {'type': 'object', 'additionalProperties': {'$ref': '#'}}, {'$ref': '#'}, {'not': {}}, {}, {'type': 'array', 'items': {}}]
WORDS = ['a', 'fox', 'user', 'auto', 'none', 'x' * 40, 'get_weather', 'hello there', '{"a": 1}', 'é', '<|im_end|>', '\n']
ROUTES = [('/v1/chat/completions', chat_params.CompletionCreateParamsNonStreaming, 6),
          ('/v1/completions', text_params.CompletionCreateParamsNonStreaming, 2),
          ('/v1/responses', response_params.ResponseCreateParamsNonStreaming, 3),
          ('/v1/messages', message_params.MessageCreateParamsNonStreaming, 3),
          ('/v1/messages/count_tokens', count_params.MessageCountTokensParams, 1),
          ('/v1/embeddings', embedding_params.EmbeddingCreateParams, 1)]
hints = {}


def fields(t):
    if t not in hints:
        hints[t] = typing.get_type_hints(t, include_extras=True)
    return hints[t]


def strip(t):
    """(type, required or None) without Required, NotRequired and Annotated."""
    need = None
    while True:
        o = typing.get_origin(t)
        if o in (Required, typing.Required):
            need, t = True, typing.get_args(t)[0]
        elif o in (NotRequired, typing.NotRequired):
            need, t = False, typing.get_args(t)[0]
        elif o is typing.Annotated:
            t = typing.get_args(t)[0]
        else:
            return t, need


def value(rng, t, depth, odd):
    """A value of the type; odd: the chance that it is of another one."""
    if rng.random() < odd:
        return rng.choice(ODD)
    t, _ = strip(t)
    o, args = typing.get_origin(t), typing.get_args(t)
    if o is typing.Literal:
        return rng.choice(args)
    if o in (typing.Union, types.UnionType):
        return value(rng, rng.choice(args), depth, odd)
    if is_typeddict(t):
        out = {}
        for k, h in fields(t).items():
            if strip(h)[1] or (k in t.__required_keys__) or rng.random() < (0.3 if depth < 3 else 0.05):
                out[k] = value(rng, h, depth + 1, odd)
        return out
    if o in (list, collections.abc.Iterable, collections.abc.Sequence, tuple):
        n = rng.choice([0, 1, 1, 2, 3]) if depth < 6 else rng.choice([0, 1])
        return [value(rng, args[0] if args else str, depth + 1, odd) for _ in range(n)]
    if o in (dict, collections.abc.Mapping):
        if args and args[1] is object:
            return rng.choice(SCHEMAS)
        return {rng.choice(WORDS): value(rng, args[1] if len(args) > 1 else str, depth + 1, odd) for _ in range(rng.randint(0, 2))}
    if t is bool:
        return rng.random() < .5
    if t is int:
        return rng.choice([0, 1, 2, 5, 20, -1, 100])
    if t is float:
        return rng.choice([0, 0.0, 0.7, 1, 1.5, 2, -0.5])
    if t is type(None):
        return None
    return rng.choice(WORDS)


def messages(rng):
    """Conversations that are mostly right, so that what stands beside them is reached."""
    out = []
    for i in range(rng.randint(1, 4)):
        role = rng.choice(['user', 'user', 'assistant', 'system', 'developer', 'tool'])
        m = {'role': role, 'content': rng.choice([rng.choice(WORDS), [{'type': 'text', 'text': rng.choice(WORDS)}]])}
        if role == 'assistant' and rng.random() < .4:
            m['tool_calls'] = [{'id': 'c%d' % i, 'type': 'function', 'function': {
                'name': 'f', 'arguments': rng.choice(['{}', '{"a":', '', 'null', '[1]', '{"a": {"b": [1]}}'])}}]
            m['content'] = rng.choice([None, '', 'x'])
        if role == 'tool':
            m['tool_call_id'] = 'c%d' % rng.randint(0, i)
        out.append(m)
    return out


def body(rng, path, t, model):
    odd = rng.choice([0, 0, 0.02, 0.1])
    b = value(rng, t, 0, 0) if odd == 0 else value(rng, t, 0, odd)
    if not isinstance(b, dict):
        return b
    b['model'] = model if rng.random() < .95 else b.get('model')
    if path == '/v1/chat/completions' and rng.random() < .8:
        b['messages'] = messages(rng)
        if rng.random() < .5:
            b['tools'] = [{'type': 'function', 'function': {'name': 'f', 'parameters': rng.choice(SCHEMAS)}}]
            b['tool_choice'] = rng.choice(['auto', 'none', 'required', {'type': 'function', 'function': {'name': 'f'}}])
        if rng.random() < .3:
            b['response_format'] = {'type': 'json_schema', 'json_schema': {'name': 'x', 'schema': rng.choice(SCHEMAS)}}
    if path == '/v1/messages' and rng.random() < .7:
        b['messages'] = [{'role': 'user', 'content': rng.choice(WORDS)}]
    # Unsupported fields are refused at once; fewer of them let more requests through to the engine.
    if rng.random() < .7:
        keep = {'model', 'messages', 'input', 'prompt', 'tools', 'tool_choice', 'response_format', 'temperature', 'top_p', 'n', 'stop',
                'seed', 'logprobs', 'top_logprobs', 'stream_options', 'logit_bias', 'system', 'stop_sequences', 'instructions', 'user'}
        b = {k: v for k, v in b.items() if k in keep}
    limit = {'/v1/messages': 'max_tokens', '/v1/responses': 'max_output_tokens'}.get(path, rng.choice(['max_tokens', 'max_completion_tokens']))
    for k in ('max_tokens', 'max_completion_tokens', 'max_output_tokens'):
        b.pop(k, None)
    b[limit] = rng.choice([1, 2, 4, 8])
    if isinstance(b.get('n'), int) and b['n'] > 8:
        b['n'] = 3
    if rng.random() < .4:
        b['stream'] = True
    if rng.random() < .1:
        b[rng.choice(['grammar', 'json_schema', 'top_k', 'min_p', 'repeat_penalty', 'return_progress', 'n_probs', 'ignore_eos',
                      'chat_template_kwargs', 'cache_prompt', 'nonsense'])] = rng.choice(ODD + ['root ::= "a"', 'root ::= root'])
    return b


def broken(rng, raw):
    """Bytes that are no longer JSON, or hardly."""
    b = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(b)) if b else 0
        kind = rng.randrange(4)
        if kind == 0:
            del b[at:]
        elif kind == 1 and b:
            b[at] = rng.randrange(256)
        elif kind == 2:
            b[at:at] = rng.choice([b'{', b'[' * 200, b'"', b'\\u', b'\xff', b'1e999'])
        else:
            b[at:at] = b[at:at + 50]
    return bytes(b)


def fits(path, status, kind, raw):
    """The body is one of its protocol."""
    if kind.startswith('text/event-stream'):
        return status == 200 and (b'data: ' in raw)
    try:
        j = json.loads(raw)
    except ValueError:
        return False
    return isinstance(j, dict) and (status == 200 or 'error' in j)


def worker(s, model, seeds, seen, bad):
    c = http.client.HTTPConnection('127.0.0.1', s.port, timeout=120)
    for seed in seeds:
        rng = random.Random(seed)
        path, t, _ = rng.choices(ROUTES, [r[2] for r in ROUTES])[0]
        raw = json.dumps(body(rng, path, t, model)).encode('utf-8', 'surrogatepass')
        if rng.random() < .08:
            raw = broken(rng, raw)
        try:
            c.request('POST', path, raw, {'Content-Type': 'application/json'})
            r = c.getresponse()
            out = r.read()
            status, kind = r.status, r.headers.get('Content-Type', '')
        except (OSError, http.client.HTTPException) as e:
            bad.append('%d %s: %s: %s' % (seed, path, repr(e), raw[:500]))
            c.close()
            if s.process.poll() is not None:
                return
            continue
        seen[(path, status)] = seen.get((path, status), 0) + 1
        if status >= 500 or not fits(path, status, kind, out):
            bad.append('%d %s: %d %s for %s' % (seed, path, status, out[:300], raw[:500]))


def main():
    seen, bad = {}, []
    first = int(os.environ.get('FUZZ_FIRST', '0'))
    with server(TALE, '-c', 1024) as s:
        model = json.loads(s.get('/v1/models'))['data'][0]['id']
        threads = [threading.Thread(target=worker, args=(s, model, range(first + i, first + N, 3), seen, bad)) for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check(s.process.poll() is None, 'the server lives after %d requests' % N)
        check(s.idle(), 'nothing hangs')
        check(s.metric('kv_pages') is not None, 'metrics answer')
    for line in bad[:20]:
        print(line, file=sys.stderr)
    check(not bad, 'no status of 500 and above, every body of its protocol', '%d of %d, first: %s' % (len(bad), N, bad[:1]))
    good = sum(n for (p, st), n in seen.items() if st == 200)
    check(good > N // 10, 'enough requests were right', '%d of %d' % (good, N))
    check(sum(seen.values()) + len(bad) >= N, 'all were answered', str(seen))
    print('answers:', ', '.join('%s %d: %d' % (p, st, n) for (p, st), n in sorted(seen.items())))
    end()


if __name__ == '__main__':
    main()
