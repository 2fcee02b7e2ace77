"""Prefill on one engine and decode on another that cannot address its memory: cuda and cpu, on a card that the host
computes (tests/unit/backend_cuda/card.c). The tokens are those of the engines alone; the pages that crossed, and
nothing else, are in the receipt's handOff. hetero qualify prices both directions."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import CARD as ENV, ROOT, TALE, check, doc, end, err, has_cuda, run
from server import Server, chat, content
from store import ENV as STATE, STORE, TOP, make_store

PROMPT = 'Once upon a time there was a girl who had a big red ball. ' * 3
TEXT = ['run', TALE, '-p', PROMPT, '-n', '12', '--temp', '0', '-c', '256', '--json']
PAIRS = (('cuda', 'cpu'), ('cpu', 'cuda'))
PAGE = 262144  # bytes of a page of tale-9m: 8 layers, K and V, 4 heads of 64, 32 positions, f16


def pair(prefill, decode):
    return ['--prefill-engine', prefill, '--decode-engine', decode]


def handed(receipt):
    return [p.get('handOff') for p in receipt['phases']]


def moved(hand, pages):
    return (hand['pages'] == pages and hand['bytes'] == pages * PAGE and (hand['ns'] > 0) == (pages > 0) and
            hand['layerByLayer'] == (pages > 0) and hand['exposedNs'] <= hand['ns'] and hand['pinned'] is True and
            'notPinned' not in hand)


def touched(n, ubatch):
    """Pages that the chunks of a prompt write; each chunk hands over its own, whole."""
    return sum((min(at + ubatch, n) + 31) // 32 - at // 32 for at in range(0, n, ubatch))


def one_prompt():
    want = doc(*TEXT)
    check(all(h is None for h in handed(want['receipt'])), 'one engine hands nothing over')
    n = want['receipt']['nPrompt']
    check(n > 32 and n % 32, 'a prompt of more than a page, the last one half full', n)
    for prefill, decode in PAIRS:
        name = '%s to %s' % (prefill, decode)
        for ubatch in ('512', '20')[prefill == 'cuda':]:
            got = doc(*TEXT, *pair(prefill, decode), '--ubatch', ubatch, env=ENV)
            first, second = got['receipt']['phases']
            check(got['ids'] == want['ids'], name + ': the tokens of one engine', got['ids'])
            check((first['executed'], second['executed']) == (prefill, decode), name + ': what ran')
            check(moved(first['handOff'], 0), name + ': nothing goes to the prompt', first['handOff'])
            pages = touched(n, int(ubatch))
            check(moved(second['handOff'], pages), name + ': the pages of each chunk, layer by layer', second['handOff'])
            check((second['handOff']['from'], second['handOff']['to']) == (prefill, decode), name + ': from where')
            for p in (first, second):
                check(p['hostCopyBytes'] == 0 and p['deviceCopyBytes'] == 0, name + ': the path itself copies nothing')


def unlocked():
    """A system that locks no memory: the same pages and tokens, and the reason wherever the hand-off is told of."""
    want = doc(*TEXT)
    for prefill, decode in PAIRS:
        r = run(*TEXT, *pair(prefill, decode), env={**ENV, 'CARD_NO_PIN': '1'})
        check(r.returncode == 0 and b'not locked' in r.stderr and b'error 801' in r.stderr, 'a warning', err(r))
        got = json.loads(r.stdout)
        hand = got['receipt']['phases'][1]['handOff']
        check(got['ids'] == want['ids'] and hand['layerByLayer'], 'tokens, pages', hand)
        check(hand['pinned'] is False and 'ulimit -l' in hand['notPinned'], 'why not', hand)
    r = run(*TEXT, *pair('cuda', 'cpu'), env=ENV)
    check(r.returncode == 0 and b'not locked' not in r.stderr, 'no warning', err(r))


def rounded():
    """act f16 is about prompts: cpu decodes behind one of the card's tensor cores, as act f32, and each class is in the
    receipt. Prompts that cpu computes are not act f16: refused."""
    want = doc(*TEXT, '--engine', 'cuda', '--act', 'f16', env=ENV)
    got = doc(*TEXT, *pair('cuda', 'cpu'), '--act', 'f16', env=ENV)
    first, second = got['receipt']['phases']
    check(got['ids'] == want['ids'], 'act f16: the tokens of cuda', got['ids'])
    check((first['executed'], second['executed']) == ('cuda', 'cpu'), 'act f16: what ran')
    check(first['segments'][0]['facts']['bitClass'] == 'cuda-f16/4x64.2', 'act f16: prompts on tensor cores', first)
    check('act=f16' in first['class'] and 'act=f32' in second['class'], 'a class each', (first['class'], second['class']))
    check(moved(second['handOff'], touched(got['receipt']['nPrompt'], 512)), 'pages layer by layer', second['handOff'])
    d = doc('explain', TALE, *pair('cuda', 'cpu'), '--act', 'f16', '-p', '40', '--json', env=ENV)
    check([p['act'] for p in d['phases']] == ['f16', 'f32'], 'explain names both', d)
    for name, args in (('cpu to cuda', pair('cpu', 'cuda')), ('cpu', ['--engine', 'cpu'])):
        r = run(*TEXT, *args, '--act', 'f16', env=ENV)
        check(r.returncode == 4 and 'act f16' in err(r) and 'engine cpu' in err(r), 'refused: ' + name, err(r))
    for more in (['--lookup'], ['--ubatch', '20']):
        got = doc(*TEXT, *pair('cuda', 'cpu'), '--act', 'f16', *more, env=ENV)
        check(got['ids'] == want['ids'], 'act f16 ' + more[0], got['ids'])


def guesses():
    """Rows that are taken back, and logits of every step."""
    want = doc(*TEXT, '--lookup')
    got = doc(*TEXT, *pair('cuda', 'cpu'), '--lookup', env=ENV)
    check(got['ids'] == want['ids'], 'guesses', got['ids'])


def said():
    """What explain and the configuration say beforehand, and what is refused."""
    for prefill, decode in PAIRS:
        d = doc('explain', TALE, *pair(prefill, decode), '-p', '40', '--json', env=ENV)
        check(d['handOff'] == {'from': prefill, 'to': decode, 'pageBytes': PAGE, 'bytes': 2 * PAGE, 'pinned': True},
              'explain', d['handOff'])
        r = run('run', TALE, '-p', 'x', '-c', '64', *pair(prefill, decode), '--print-config=json', env=ENV)
        d = json.loads(r.stdout)['engine']
        check(d['handOff'] == {'from': prefill, 'to': decode, 'pageBytes': PAGE, 'pinned': True}, 'configuration', d['handOff'])
        check(d['poolBytes'] == d['memory']['kvBytes'] == 2 * 2 * PAGE, 'two pages in two places', d['poolBytes'])
        for more, what in ((['-ctk', 'q8_0', '-ctv', 'q8_0', '--kv-force'], 'packed KV types'),
                           (['--evict', '256'], 'eviction')):
            r = run('run', TALE, '-p', 'x', '-n', '2', *pair(prefill, decode), *more, env=ENV)
            check(r.returncode == 4 and what in err(r) and 'one engine for both' in err(r), 'refused: ' + what, err(r))


def turns(*args):
    """Answers of a server to two chats of two turns each, in turns, and to the first prompt again."""
    talks = [[{'role': 'user', 'content': 'Tell me of a girl and her ball. ' * n}] for n in (1, 2)]
    text = []
    with Server(*args, '--parallel', 2, ctx=512, env=ENV) as s:
        for _ in range(2):
            for talk in talks:
                status, _, body = s.ask('/v1/chat/completions', {**chat(max_tokens=5, temperature=0), 'messages': talk})
                check(status == 200, 'served', body)
                talk += [{'role': 'assistant', 'content': content(body)}, {'role': 'user', 'content': 'And then?'}]
                text.append(content(body))
        again = {**chat(max_tokens=5, temperature=0), 'messages': talks[0][:1], 'logprobs': True}
        status, _, body = s.ask('/v1/chat/completions', again)
        check(status == 200 and content(body) == text[0], 'the first prompt again', body)
    return text


def served():
    want = turns('--engine', 'cpu')
    for prefill, decode in PAIRS:
        got = turns(*pair(prefill, decode))
        check(got == want, 'chats, decode on ' + decode, (got, want))


def qualified(buckets, candidate, policy):
    """Warnings and bundle of a short experiment; there is no corpus, so it qualifies nothing."""
    r = run('qualify', buckets, TALE, '--candidate', candidate, '--policy', policy, '-c', '128', '--requests', '1',
            '--pairs', '8', '--json', '-o', os.path.join(TOP, 'evidence'), env={**STATE, **ENV}, timeout=600)
    d = json.loads(r.stdout) if r.stdout else {}
    check(r.returncode == 6 and os.path.isdir(d.get('bundle', '')), 'qualify ' + candidate, (r.returncode, err(r)[-400:]))
    return err(r), d.get('bundle', '')


def priced():
    """Either phase of a candidate may run beside the reference's other one: hetero qualify prices both hand-offs, each
    for the phases that have cells. What cannot be paired has no price, and is said."""
    policy = make_store()
    log, bundle = qualified('p32,d32', 'engine=cuda', policy)
    path = os.path.join(bundle, 'edges.json')
    edges = json.load(open(path))['edges'] if os.path.exists(path) else []
    check([(x['from'], x['to'], x['kind']) for x in edges] == [('cpu', 'cuda', 'kvHandoff'), ('cuda', 'cpu', 'kvHandoff')],
          'both directions', edges)
    check(all(x['fixedNs'] + x['nsPerToken'] > 0 for x in edges), 'pages that are copied are not free', edges)
    trust = os.path.join(STORE, 'trust.json')
    r = run('verify', bundle, '--trust', trust, env=STATE)
    p = subprocess.run([sys.executable, os.path.join(ROOT, 'tools', 'verify_bundle.py'), bundle, '--trust', trust],
                       stdout=subprocess.PIPE)
    check((r.returncode, p.returncode) == (0, 0), 'both verifiers', (err(r)[-300:], p.stdout[-300:]))
    cost = json.load(open(os.path.join(bundle, 'costmap.json')))['edges']
    check(cost == edges, 'the cost map has them', cost)
    log, bundle = qualified('p32,d32', 'engine=cuda,act=f16', policy)
    check('no hand-off from cpu to cuda' in log and 'act f16' in log, 'no pair, no price', log[-400:])
    edges = json.load(open(os.path.join(bundle, 'edges.json')))['edges']
    check([(x['from'], x['to']) for x in edges] == [('cuda', 'cpu')], 'the other direction', edges)


if has_cuda('hand-off between cuda and cpu'):
    one_prompt()
    unlocked()
    rounded()
    guesses()
    said()
    served()
    priced()
end()
