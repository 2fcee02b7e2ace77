"""The official anthropic client against `hetero serve`: create, stream, abort, tools loop, counting, errors."""
import json
import time

import anthropic
import jsonschema

from lib import MODEL, WEATHER, check, end, raises, server

COLD = {'temperature': 0}  # the newest client has no argument for it
USER = [{'role': 'user', 'content': 'Say hello to Tom and tell him about a small fox.'}]
TOOL = {'name': 'get_weather', 'description': 'The weather of a city',
        'input_schema': WEATHER['function']['parameters']}


def create(client, s):
    r = client.messages.create(model=s.model, messages=USER, max_tokens=24, extra_body=COLD)
    check(r.type == 'message' and r.role == 'assistant' and r.id, 'create: envelope', str(r)[:200])
    text = ''.join(b.text for b in r.content if b.type == 'text')
    check(text and r.usage.output_tokens <= 24 and r.usage.input_tokens > 0, 'create: text, usage', str(r))
    check(r.stop_reason in ('end_turn', 'max_tokens'), 'create: stop_reason', str(r.stop_reason))
    short = client.messages.create(model=s.model, messages=USER, max_tokens=2, extra_body=COLD)
    check(short.stop_reason == 'max_tokens' and short.usage.output_tokens == 2, 'create: max_tokens', str(short))
    stop = text[len(text) // 2:len(text) // 2 + 3]
    cut = client.messages.create(model=s.model, messages=USER, max_tokens=24, stop_sequences=[stop], extra_body=COLD)
    check(cut.stop_reason == 'stop_sequence' and cut.stop_sequence == stop, 'create: stop_sequence', str(cut))
    sys_ = client.messages.create(model=s.model, messages=USER, max_tokens=4, system=[{'type': 'text', 'text': 'Be kind. ' * 30}])
    check(sys_.usage.input_tokens > r.usage.input_tokens, 'create: system counts', str(sys_.usage))
    n = client.messages.count_tokens(model=s.model, messages=USER)
    check(n.input_tokens == r.usage.input_tokens + (r.usage.cache_read_input_tokens or 0), 'count_tokens: as in usage',
          '%s %s' % (n, r.usage))
    return text


def stream(client, s, text):
    with client.messages.stream(model=s.model, messages=USER, max_tokens=24, extra_body=COLD) as st:
        got = ''.join(st.text_stream)
        final = st.get_final_message()
    check(got == text, 'stream: equal to the whole answer', repr((got, text)))
    check(final.stop_reason in ('end_turn', 'max_tokens') and final.usage.output_tokens > 0, 'stream: final', str(final))
    kinds = [e.type for e in client.messages.create(model=s.model, messages=USER, max_tokens=3, stream=True)]
    want = [k for k in kinds if k not in ('ping', 'content_block_delta')]
    check(want == ['message_start', 'content_block_start', 'content_block_stop', 'message_delta', 'message_stop'],
          'stream: order of events', str(kinds))


def abort(client, s):
    before = s.cancelled()
    with client.messages.stream(model=s.model, messages=USER, max_tokens=400,
                                extra_body={'ignore_eos': True}) as st:
        for i, _ in enumerate(st.text_stream):
            if i == 3:
                break
    t0 = time.monotonic()
    while s.cancelled() == before and time.monotonic() - t0 < 10:
        time.sleep(0.02)
    check(s.cancelled() == before + 1 and s.idle(), 'abort: cancelled, nothing runs on')


def tools(client, s):
    kw = dict(model=s.model, max_tokens=120, tools=[TOOL], extra_body=COLD)
    ask = [{'role': 'user', 'content': 'What is the weather in Paris?'}]
    r = client.messages.create(messages=ask, tool_choice={'type': 'any'}, **kw)
    use = [b for b in r.content if b.type == 'tool_use']
    if not check(len(use) == 1 and use[0].name == 'get_weather', 'tools: any', str(r)):
        return
    jsonschema.validate(use[0].input, TOOL['input_schema'])
    check(r.stop_reason == 'tool_use', 'tools: stop_reason', str(r.stop_reason))
    ask += [{'role': 'assistant', 'content': [b.model_dump() for b in r.content]},
            {'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': use[0].id, 'content': '21 degrees'}]}]
    after = client.messages.create(messages=ask, **{**kw, 'max_tokens': 12})
    check(after.content is not None, 'tools: after the result', str(after))
    with client.messages.stream(messages=ask[:1], tool_choice={'type': 'tool', 'name': 'get_weather'}, **kw) as st:
        parts = [e.delta.partial_json for e in st
                 if e.type == 'content_block_delta' and e.delta.type == 'input_json_delta']
        final = st.get_final_message()
    whole = client.messages.create(messages=ask[:1], tool_choice={'type': 'tool', 'name': 'get_weather'}, **kw)
    use = [b for b in whole.content if b.type == 'tool_use']
    check(len(use) == 1 and json.loads(''.join(parts)) == use[0].input, 'tools: streamed input', repr((parts, use)))
    check(final.content[-1].type == 'tool_use' and final.content[-1].input == use[0].input, 'tools: assembled')


def errors(client, s):
    ask = client.messages.create
    raises(anthropic.BadRequestError, 'errors: temperature', lambda: ask(
        model=s.model, messages=USER, max_tokens=4, extra_body={'temperature': -1}), 'temperature')
    raises(anthropic.BadRequestError, 'errors: no messages', lambda: ask(model=s.model, messages=[], max_tokens=4))
    raises(anthropic.NotFoundError, 'errors: a model', lambda: ask(model='claude-nothing', messages=USER, max_tokens=4))
    e = raises(anthropic.BadRequestError, 'errors: too long', lambda: ask(
        model=s.model, messages=[{'role': 'user', 'content': 'one two three ' * 9000}], max_tokens=4))
    check(e is None or e.body['error']['type'] == 'invalid_request_error', 'errors: type', str(e and e.body)[:300])
    st, _, body = s.post('/v1/messages', {'model': s.model, 'messages': USER})
    check(st == 400 and body['type'] == 'error' and 'max_tokens' in json.dumps(body), 'errors: max_tokens is needed',
          str(body))


def main():
    with server(MODEL, '-c', 1024) as s:
        client = anthropic.Anthropic(base_url=s.url, api_key='none', max_retries=0)
        s.model = json.loads(s.get('/v1/models'))['data'][0]['id']
        stream(client, s, create(client, s))
        for part in (abort, tools, errors):
            try:
                part(client, s)
            except Exception as e:  # noqa: BLE001: one part must not hide the others
                check(False, part.__name__, '%s: %s' % (type(e).__name__, str(e)[:400]))
        check(s.process.poll() is None, 'the server lives')
    with server(MODEL, '-c', 512, '--api-key', 'right') as s:
        good = anthropic.Anthropic(base_url=s.url, api_key='right', max_retries=0)
        bad = anthropic.Anthropic(base_url=s.url, api_key='wrong', max_retries=0)
        check(good.models.list().data[0].id, 'keys: x-api-key')
        raises(anthropic.AuthenticationError, 'keys: a wrong one', lambda: bad.messages.create(
            model='x', messages=USER, max_tokens=1))
    end()


if __name__ == '__main__':
    main()
