"""litellm against `hetero serve`, as an OpenAI-compatible and as an Anthropic endpoint."""
import json
import os

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP='True', LITELLM_TELEMETRY='False')
import jsonschema  # noqa: E402
import litellm  # noqa: E402

from lib import MODEL, PERSON, WEATHER, check, end, raises, server  # noqa: E402

USER = [{'role': 'user', 'content': 'Say hello to Tom and tell him about a small fox.'}]
litellm.suppress_debug_info = True


def chat(s):
    kw = dict(model='openai/' + s.model, api_base=s.url + '/v1', api_key='none', messages=USER, max_tokens=16,
              temperature=0, num_retries=0)
    r = litellm.completion(**kw)
    check(r.choices[0].message.content and r.usage.completion_tokens <= 16, 'chat', str(r)[:300])
    text = ''.join(c.choices[0].delta.content or '' for c in litellm.completion(stream=True, **kw))
    check(text == r.choices[0].message.content, 'stream', repr((text, r.choices[0].message.content)))
    j = litellm.completion(**{**kw, 'max_tokens': 200}, response_format={
        'type': 'json_schema', 'json_schema': {'name': 'p', 'schema': PERSON, 'strict': True}})
    jsonschema.validate(json.loads(j.choices[0].message.content), PERSON)
    check(j.choices[0].finish_reason == 'stop', 'schema')
    t = litellm.completion(**{**kw, 'max_tokens': 120}, tools=[WEATHER], tool_choice='required')
    calls = t.choices[0].message.tool_calls
    check(calls and calls[0].function.name == 'get_weather', 'tools', str(t)[:300])
    jsonschema.validate(json.loads(calls[0].function.arguments), WEATHER['function']['parameters'])
    raises(litellm.BadRequestError, 'errors: temperature', lambda: litellm.completion(**{**kw, 'temperature': -1}),
           'temperature')
    raises(litellm.NotFoundError, 'errors: a model', lambda: litellm.completion(**{**kw, 'model': 'openai/nobody'}))
    raises(litellm.exceptions.ContextWindowExceededError, 'errors: too long', lambda: litellm.completion(
        **{**kw, 'messages': [{'role': 'user', 'content': 'one two three ' * 9000}]}))


def anthropic(s):
    r = litellm.completion(model='anthropic/' + s.model, api_base=s.url, api_key='none', messages=USER, max_tokens=8,
                           temperature=0, num_retries=0)
    check(r.choices[0].message.content, 'anthropic', str(r)[:300])


def main():
    with server(MODEL, '-c', 1024) as s:
        s.model = json.loads(s.get('/v1/models'))['data'][0]['id']
        for part in (chat, anthropic):
            try:
                part(s)
            except Exception as e:  # noqa: BLE001: one part must not hide the others
                check(False, part.__name__, '%s: %s' % (type(e).__name__, str(e)[:400]))
    with server(MODEL, '-c', 512, '--api-key', 'right') as s:
        raises(litellm.AuthenticationError, 'keys: a wrong one', lambda: litellm.completion(
            model='openai/x', api_base=s.url + '/v1', api_key='wrong', messages=USER, max_tokens=1, num_retries=0))
    end()


if __name__ == '__main__':
    main()
