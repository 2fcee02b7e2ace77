"""The official ollama client against `hetero serve`: lists, chat, generate, stream, abort, format, tools, errors."""
import json
import time

import jsonschema
import ollama

from lib import MODEL, PERSON, WEATHER, check, end, raises, server

USER = [{'role': 'user', 'content': 'Say hello to Tom and tell him about a small fox.'}]
SHORT = {'temperature': 0, 'num_predict': 24}


def lists(client, s):
    models = client.list().models
    check(models and models[0].model == s.model and models[0].size > 0, 'list', str(models))
    show = client.show(s.model)
    check(show.details and show.modelinfo, 'show', str(show)[:300])
    ps = client.ps().models
    check(ps and ps[0].model == s.model, 'ps', str(ps))
    check(json.loads(s.get('/api/version'))['version'], 'version')
    raises(ollama.ResponseError, 'show: an unknown model', lambda: client.show('nobody'), 'nobody')


def chat(client, s):
    r = client.chat(s.model, USER, options=SHORT)
    check(r.message.role == 'assistant' and r.message.content and r.done, 'chat', str(r)[:300])
    check(r.eval_count <= 24 and r.prompt_eval_count > 0 and r.total_duration > 0 and r.eval_duration > 0, 'chat: figures',
          str(r)[:400])
    check(r.done_reason in ('stop', 'length'), 'chat: done_reason', str(r.done_reason))
    parts = list(client.chat(s.model, USER, options=SHORT, stream=True))
    check(''.join(p.message.content or '' for p in parts) == r.message.content, 'chat: stream',
          repr(''.join(p.message.content or '' for p in parts)))
    check([p.done for p in parts].count(True) == 1 and parts[-1].done and parts[-1].eval_count == r.eval_count,
          'chat: done last')
    g = client.generate(s.model, 'Once upon a time', options={**SHORT, 'num_predict': 8})
    check(g.response and g.done, 'generate', str(g)[:300])
    raw = client.generate(s.model, 'Once upon a time', raw=True, options={**SHORT, 'num_predict': 8})
    st = ''.join(p.response for p in client.generate(s.model, 'Once upon a time', raw=True, stream=True,
                                                     options={**SHORT, 'num_predict': 8}))
    check(st == raw.response, 'generate: raw, stream', repr((st, raw.response)))
    load = client.generate(s.model, '')
    check(load.done and not load.response, 'generate: an empty prompt only loads', str(load)[:200])


def abort(client, s):
    before = s.cancelled()
    st = client.chat(s.model, USER, stream=True, options={'num_predict': 400, 'repeat_penalty': 1.1})
    for i, _ in enumerate(st):
        if i == 3:
            break
    st.close()
    t0 = time.monotonic()
    while s.cancelled() == before and time.monotonic() - t0 < 10 and not s.idle(0.1):
        time.sleep(0.02)
    check(s.idle(), 'abort: nothing runs on')


def forms(client, s):
    r = client.chat(s.model, USER, format=PERSON, options={'temperature': 0, 'num_predict': 200})
    check(r.done_reason == 'stop', 'format: ends by itself', str(r)[:300])
    jsonschema.validate(json.loads(r.message.content), PERSON)
    j = client.generate(s.model, 'Describe a fox as JSON.', format='json', options={'temperature': 0, 'num_predict': 40})
    check(j.response.startswith('{'), 'format: json', j.response)
    t = client.chat(s.model, [{'role': 'user', 'content': 'Weather in Paris?'}], tools=[WEATHER],
                    options={'temperature': 0, 'num_predict': 40})
    check(t.message.content is not None or t.message.tool_calls, 'tools: an answer or a call', str(t)[:300])
    history = [{'role': 'user', 'content': 'Weather in Paris?'},
               {'role': 'assistant', 'content': '', 'tool_calls': [
                   {'function': {'name': 'get_weather', 'arguments': {'city': 'Paris', 'unit': 'celsius'}}}]},
               {'role': 'tool', 'tool_name': 'get_weather', 'content': '21 degrees'}]
    after = client.chat(s.model, history, tools=[WEATHER], options={'temperature': 0, 'num_predict': 12})
    check(after.done, 'tools: history of a call', str(after)[:300])


def errors(client, s):
    raises(ollama.ResponseError, 'errors: a model', lambda: client.chat('nobody', USER), 'nobody')
    raises(ollama.ResponseError, 'errors: an option', lambda: client.chat(s.model, USER, options={'temperature': -3}),
           'temperature')
    e = raises(ollama.ResponseError, 'errors: a schema', lambda: client.chat(
        s.model, USER, format={'type': 'object', 'patternProperties': {}}), 'patternProperties')
    check(e is None or e.status_code == 400, 'errors: status', str(e and e.status_code))
    e = raises(ollama.ResponseError, 'errors: embeddings', lambda: client.embed(s.model, 'x'))
    check(e is None or e.status_code == 400, 'errors: status of embeddings', str(e and e.status_code))


def main():
    with server(MODEL, '-c', 1024) as s:
        client = ollama.Client(host=s.url)
        s.model = client.list().models[0].model
        for part in (lists, chat, abort, forms, errors):
            try:
                part(client, s)
            except Exception as e:  # noqa: BLE001: one part must not hide the others
                check(False, part.__name__, '%s: %s' % (type(e).__name__, str(e)[:400]))
        check(s.process.poll() is None, 'the server lives')
    end()


if __name__ == '__main__':
    main()
