"""The official openai client against `hetero serve`: create, stream, abort, tools, schemas, errors, retries."""
import asyncio
import json
import threading
import time

import jsonschema
import openai
import pydantic

from lib import MODEL, PERSON, WEATHER, check, end, raises, server

USER = [{'role': 'user', 'content': 'Say hello to Tom and tell him about a small fox.'}]


def chat(client, s):
    r = client.chat.completions.create(model=s.model, messages=USER, max_tokens=24, temperature=0)
    c = r.choices[0]
    check(r.id and r.object == 'chat.completion' and r.created > 0, 'chat: envelope', str(r)[:200])
    check(c.message.role == 'assistant' and c.message.content, 'chat: content', str(c))
    check(r.usage.completion_tokens <= 24 and r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens,
          'chat: usage adds up', str(r.usage))
    check(r.system_fingerprint, 'chat: fingerprint')
    check(c.finish_reason in ('stop', 'length'), 'chat: finish', c.finish_reason)
    again = client.chat.completions.create(model=s.model, messages=USER, max_completion_tokens=24, temperature=0)
    check(again.choices[0].message.content == c.message.content, 'chat: max_completion_tokens, same answer again')
    check(again.usage.prompt_tokens_details.cached_tokens <= again.usage.prompt_tokens, 'chat: cached_tokens')
    short = client.chat.completions.create(model=s.model, messages=USER, max_tokens=3, temperature=0)
    check(short.choices[0].finish_reason == 'length' and short.usage.completion_tokens == 3, 'chat: length',
          str(short.usage))
    two = client.chat.completions.create(model=s.model, messages=USER, max_tokens=8, n=2, seed=7, temperature=1)
    check([c.index for c in two.choices] == [0, 1], 'chat: n')
    same = client.chat.completions.create(model=s.model, messages=USER, max_tokens=8, n=2, seed=7, temperature=1)
    check([c.message.content for c in two.choices] == [c.message.content for c in same.choices], 'chat: seed')
    lp = client.chat.completions.create(model=s.model, messages=USER, max_tokens=4, temperature=0, logprobs=True,
                                        top_logprobs=3)
    items = lp.choices[0].logprobs.content
    check(len(items) == lp.usage.completion_tokens and all(len(i.top_logprobs) == 3 for i in items), 'chat: logprobs')
    check(all(i.logprob <= 0 and i.top_logprobs[0].logprob >= i.top_logprobs[2].logprob for i in items),
          'chat: logprobs in order')
    text = c.message.content
    stop = text[len(text) // 2:len(text) // 2 + 3]
    cut = client.chat.completions.create(model=s.model, messages=USER, max_tokens=24, temperature=0, stop=[stop])
    check(cut.choices[0].message.content == text[:text.index(stop)], 'chat: stop string',
          repr((text, stop, cut.choices[0].message.content)))
    parts = client.chat.completions.create(model=s.model, max_tokens=4, temperature=0, messages=[
        {'role': 'developer', 'content': 'Be kind.'},
        {'role': 'user', 'content': [{'type': 'text', 'text': 'Hel'}, {'type': 'text', 'text': 'lo'}]}])
    check(parts.choices[0].message.content is not None, 'chat: content parts, developer role')
    return text


def stream(client, s, text):
    chunks = list(client.chat.completions.create(model=s.model, messages=USER, max_tokens=24, temperature=0,
                                                 stream=True, stream_options={'include_usage': True}))
    got = ''.join(c.choices[0].delta.content or '' for c in chunks if c.choices)
    check(got == text, 'stream: equal to the whole answer', repr((got, text)))
    check(chunks[0].choices[0].delta.role == 'assistant', 'stream: role first')
    check(sum(1 for c in chunks if c.choices and c.choices[0].delta.role) == 1, 'stream: role once')
    check(len({c.id for c in chunks}) == 1, 'stream: one id')
    check([c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] in
          (['stop'], ['length']), 'stream: one finish')
    check(chunks[-1].usage and not chunks[-1].choices, 'stream: usage last')
    plain = list(client.chat.completions.create(model=s.model, messages=USER, max_tokens=4, stream=True))
    check(all(c.usage is None and c.choices for c in plain), 'stream: no usage unless asked for')


def abort(client, s):
    before = s.cancelled()
    st = client.chat.completions.create(model=s.model, messages=USER, max_tokens=400, stream=True,
                                        extra_body={'ignore_eos': True})
    for i, _ in enumerate(st):
        if i == 3:
            break
    st.close()
    t0 = time.monotonic()
    while s.cancelled() == before and time.monotonic() - t0 < 10:
        time.sleep(0.02)
    check(s.cancelled() == before + 1, 'abort: counted as cancelled')
    check(s.idle(), 'abort: nothing runs on')


def tools(client, s):
    kw = dict(model=s.model, tools=[WEATHER], max_tokens=120, temperature=0)
    ask = [{'role': 'user', 'content': 'What is the weather in Paris?'}]
    r = client.chat.completions.create(messages=ask, tool_choice='required', **kw)
    m = r.choices[0].message
    if not check(m.tool_calls, 'tools: required gives a call', str(m)):
        return
    call = m.tool_calls[0]
    args = json.loads(call.function.arguments)
    check(call.function.name == 'get_weather' and call.id and call.type == 'function', 'tools: name and id', str(call))
    jsonschema.validate(args, WEATHER['function']['parameters'])
    check(r.choices[0].finish_reason == 'tool_calls', 'tools: finish', r.choices[0].finish_reason)
    ask += [m.model_dump(exclude_none=True),
            {'role': 'tool', 'tool_call_id': call.id, 'content': '{"temperature": 21, "sky": "clear"}'}]
    after = client.chat.completions.create(messages=ask, **{**kw, 'max_tokens': 16}, tool_choice='none')
    check(not after.choices[0].message.tool_calls, 'tools: none gives text', str(after.choices[0]))
    auto = client.chat.completions.create(messages=ask[:1], tool_choice='auto', **{**kw, 'max_tokens': 32})
    check(auto.choices[0].message.content is not None or auto.choices[0].message.tool_calls, 'tools: auto',
          str(auto.choices[0]))
    name, text, ended, index = '', '', '', set()
    named = {'type': 'function', 'function': {'name': 'get_weather'}}
    for c in client.chat.completions.create(messages=ask[:1], tool_choice=named, stream=True, **kw):
        for t in c.choices[0].delta.tool_calls or [] if c.choices else []:
            name += t.function.name or ''
            text += t.function.arguments or ''
            index.add(t.index)
        if c.choices and c.choices[0].finish_reason:
            ended = c.choices[0].finish_reason
    check(name == 'get_weather' and index == {0}, 'tools: streamed name', repr((name, index)))
    jsonschema.validate(json.loads(text), WEATHER['function']['parameters'])
    whole = client.chat.completions.create(messages=ask[:1], tool_choice=named, **kw).choices[0].message.tool_calls
    check(text == whole[0].function.arguments, 'tools: streamed arguments are those of the whole answer', repr((text, whole)))
    # The named choice ends with "stop" at OpenAI, "tool_calls" at others; both are read by clients.
    check(ended in ('tool_calls', 'stop'), 'tools: streamed finish', ended)
    strict = json.loads(json.dumps(WEATHER))
    strict['function']['strict'] = True
    strict['function']['parameters']['properties']['city'] = {'type': 'string', 'not': {}}
    raises(openai.BadRequestError, 'tools: strict with an unknown keyword', lambda: client.chat.completions.create(
        model=s.model, messages=ask[:1], tools=[strict], tool_choice='required', max_tokens=8), 'not')
    raises(openai.BadRequestError, 'tools: a choice that is not there', lambda: client.chat.completions.create(
        model=s.model, messages=ask[:1], tools=[WEATHER], max_tokens=8,
        tool_choice={'type': 'function', 'function': {'name': 'nobody'}}), 'nobody')


class Person(pydantic.BaseModel):
    """What pydantic makes of a class: $defs, titles, anyOf with null."""
    model_config = pydantic.ConfigDict(extra='forbid')
    name: str
    age: int
    nick: str | None


def schemas(client, s):
    form = {'type': 'json_schema', 'json_schema': {'name': 'person', 'strict': True, 'schema': PERSON}}
    for temp in (0, 1.5):
        r = client.chat.completions.create(model=s.model, messages=USER, response_format=form, temperature=temp,
                                           max_tokens=200, seed=3)
        if r.choices[0].finish_reason == 'stop':
            jsonschema.validate(json.loads(r.choices[0].message.content), PERSON)
        check(r.choices[0].finish_reason == 'stop', 'schema: ends by itself at %s' % temp, str(r.choices[0]))
    st = client.chat.completions.create(model=s.model, messages=USER, response_format=form, temperature=0,
                                        max_tokens=200, stream=True)
    text = ''.join(c.choices[0].delta.content or '' for c in st if c.choices)
    jsonschema.validate(json.loads(text), PERSON)
    r = client.chat.completions.create(model=s.model, messages=USER, response_format={'type': 'json_object'},
                                       temperature=0, max_tokens=60)
    if r.choices[0].finish_reason == 'stop':
        check(isinstance(json.loads(r.choices[0].message.content), dict), 'schema: json_object')
    else:
        check(r.choices[0].message.content.startswith('{'), 'schema: json_object begins', r.choices[0].message.content)
    try:
        p = client.chat.completions.parse(model=s.model, messages=USER, response_format=Person, temperature=0,
                                          max_tokens=200, extra_body={'repeat_penalty': 1.3})
        check(isinstance(p.choices[0].message.parsed, Person), 'schema: parse()')
    except openai.LengthFinishReasonError as e:  # a name has no end: the small model may never close it
        check(e.completion.usage.completion_tokens == 200, 'schema: parse() of a cut answer', str(e))
    bad = {'type': 'json_schema', 'json_schema': {'name': 'x', 'schema': {'type': 'object', 'patternProperties': {}}}}
    e = raises(openai.BadRequestError, 'schema: an unknown keyword is refused', lambda: client.chat.completions.create(
        model=s.model, messages=USER, response_format=bad), 'patternProperties')
    check(e is None or '#/patternProperties' in str(e), 'schema: with its pointer', str(e))


def others(client, s):
    ids = [m.id for m in client.models.list()]
    check(s.model in ids, 'models: list', str(ids))
    check(client.models.retrieve(s.model).id == s.model, 'models: retrieve')
    raises(openai.NotFoundError, 'models: an unknown one', lambda: client.models.retrieve('nobody/nothing'))
    r = client.completions.create(model=s.model, prompt='Once upon a time', max_tokens=8, temperature=0)
    check(r.object == 'text_completion' and r.choices[0].text, 'completions: text')
    st = list(client.completions.create(model=s.model, prompt='Once upon a time', max_tokens=8, temperature=0,
                                        stream=True))
    check(''.join(c.choices[0].text for c in st if c.choices) == r.choices[0].text, 'completions: stream')
    e = client.completions.create(model=s.model, prompt=['a', 'bc'], max_tokens=2, echo=True, temperature=0)
    lp = client.completions.create(model=s.model, prompt='a', max_tokens=3, logprobs=2, temperature=0).choices[0].logprobs
    check(len(lp.tokens) == len(lp.token_logprobs) == len(lp.text_offset) == 3, 'completions: logprobs', str(lp))
    check(len(e.choices) == 2 and e.choices[1].text.startswith('bc'), 'completions: prompts, echo', str(e)[:300])
    raises(openai.BadRequestError, 'embeddings: refused with a reason',
           lambda: client.embeddings.create(model=s.model, input='x'), 'pool')
    r = client.responses.create(model=s.model, input='Say hello.', max_output_tokens=16, temperature=0)
    check(r.output_text and r.status in ('completed', 'incomplete'), 'responses: text', str(r)[:300])
    kinds, text = [], ''
    for ev in client.responses.create(model=s.model, input='Say hello.', max_output_tokens=16, temperature=0, stream=True):
        kinds.append(ev.type)
        if ev.type == 'response.output_text.delta':
            text += ev.delta
    check(kinds[0] == 'response.created' and kinds[-1] in ('response.completed', 'response.incomplete'),
          'responses: events', str(kinds))
    check(text == r.output_text, 'responses: streamed text', repr((text, r.output_text)))


def errors(client, s):
    ask = client.chat.completions.create
    raises(openai.BadRequestError, 'errors: temperature', lambda: ask(model=s.model, messages=USER, temperature=-1),
           'temperature')
    e = raises(openai.BadRequestError, 'errors: max_tokens', lambda: ask(model=s.model, messages=USER, max_tokens=-3))
    check(e is None or e.body.get('param') == 'max_tokens', 'errors: param', str(e and e.body))
    raises(openai.BadRequestError, 'errors: no messages', lambda: ask(model=s.model, messages=[]), 'messages')
    raises(openai.BadRequestError, 'errors: a role', lambda: ask(
        model=s.model, messages=[{'role': 'narrator', 'content': 'x'}]))
    raises(openai.BadRequestError, 'errors: an image', lambda: ask(model=s.model, messages=[
        {'role': 'user', 'content': [{'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,AA'}}]}]))
    e = raises(openai.BadRequestError, 'errors: a prompt that is too long', lambda: ask(
        model=s.model, messages=[{'role': 'user', 'content': 'one two three ' * 9000}]))
    check(e is None or e.body.get('code') == 'context_length_exceeded', 'errors: its code', str(e and e.body)[:300])
    raises(openai.NotFoundError, 'errors: a model that is not here', lambda: ask(model='gpt-nothing', messages=USER))


def keys(model):
    with server(model, '-c', 512, '--api-key', 'right') as s:
        good = openai.OpenAI(base_url=s.url + '/v1', api_key='right', max_retries=0)
        bad = openai.OpenAI(base_url=s.url + '/v1', api_key='wrong', max_retries=0)
        name = good.models.list().data[0].id
        raises(openai.AuthenticationError, 'keys: a wrong one', lambda: bad.models.list())
        raises(openai.AuthenticationError, 'keys: a wrong one asks', lambda: bad.chat.completions.create(
            model=name, messages=USER))


def retries(model):
    with server(model, '-c', 512, '-np', 1, '--queue', 0) as s:
        once = openai.OpenAI(base_url=s.url + '/v1', api_key='x', max_retries=0)
        name = once.models.list().data[0].id
        busy = threading.Event()

        def hold():
            with once.chat.completions.create(model=name, messages=USER, max_tokens=450, stream=True,
                                              extra_body={'ignore_eos': True}) as st:
                for _ in st:
                    busy.set()
                    if ended.is_set():
                        break
        ended = threading.Event()
        t = threading.Thread(target=hold)
        t.start()
        busy.wait(30)
        e = raises((openai.RateLimitError, openai.InternalServerError), 'retries: a full queue', lambda: once.chat.completions.create(
            model=name, messages=USER, max_tokens=2))
        check(e is None or e.status_code in (429, 503), 'retries: status', str(e))
        check(e is None or int(e.response.headers.get('retry-after', 0)) >= 1, 'retries: Retry-After')
        patient = openai.OpenAI(base_url=s.url + '/v1', api_key='x', max_retries=8)
        threading.Timer(0.3, ended.set).start()
        r = patient.chat.completions.create(model=name, messages=USER, max_tokens=2)
        check(r.usage.completion_tokens == 2, 'retries: the client gets through by itself')
        t.join()


async def together(s):
    client = openai.AsyncOpenAI(base_url=s.url + '/v1', api_key='x')

    async def one(i):
        r = await client.chat.completions.create(model=s.model, max_tokens=12, temperature=0, messages=[
            {'role': 'user', 'content': 'Number %d is' % (i % 3)}])
        return r.choices[0].message.content
    got = await asyncio.gather(*[one(i) for i in range(9)])
    check(all(got[i] == got[i % 3] for i in range(9)), 'together: the same question, the same answer', repr(got))
    await client.close()


def main():
    with server(MODEL, '-c', 1024) as s:
        client = openai.OpenAI(base_url=s.url + '/v1', api_key='none', max_retries=0)
        s.model = client.models.list().data[0].id
        stream(client, s, chat(client, s))
        for part in (abort, tools, schemas, others, errors):
            try:
                part(client, s)
            except Exception as e:  # noqa: BLE001: one part must not hide the others
                check(False, part.__name__, '%s: %s' % (type(e).__name__, str(e)[:400]))
        asyncio.run(together(s))
        check(s.process.poll() is None, 'the server lives')
    keys(MODEL)
    retries(MODEL)
    end()


if __name__ == '__main__':
    main()
