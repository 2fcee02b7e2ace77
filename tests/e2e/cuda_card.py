"""The engine cuda from outside, on a card that the host computes (tests/unit/backend_cuda/card.c stands in for
libcuda.so.1): the same text as cpu, receipts that name device time and the class of bits, and hetero bench with the
device's own figures. Without a card: an error that says what to do."""
import json
import os
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import BIN, CARD as ENV, ENV as BASE, SHARED, TALE, check, doc, end, err, has_cuda, run, skip
from server import Server, chat, content

TEXT = ['run', TALE, '-p', 'Once upon a time', '-n', '12', '--temp', '0', '-c', '128', '--json']
DIGITS = {'bits': 'cuda-f32/128x512',
          'under': ['rows', 'batch', 'promptSplit', 'bucket', 'grid', 'level', 'ranks']}


def absence():
    r = run('run', TALE, '-p', 'x', '-n', '1', '--act', 'f16', '--engine', 'cpu')
    check(r.returncode == 4 and 'act f16' in err(r) and 'act f32' in err(r), 'act f16 on cpu: what to do', err(r))
    r = run('run', TALE, '-p', 'x', '-n', '1', '--cuda', 'ranks=2')
    check(r.returncode == 2 and 'no effect here' in err(r) and '--engine cuda' in err(r), 'settings unread', err(r))
    r = run('bench', TALE, '--engine', 'cuda', '-p', '4', '-n', '2', '-r', '1', env={'LD_LIBRARY_PATH': '/'})
    if r.returncode == 0:
        return  # this machine has a card
    check('CUDA' in err(r) and ('install' in err(r) or 'driver' in err(r)), 'no card: what to do', err(r))


def receipts():
    want = doc(*TEXT)
    r = run(*TEXT, '--engine', 'cuda', env=ENV)
    check(r.returncode == 0, 'run on the card', err(r))
    got = json.loads(r.stdout)
    check(got['ids'] == want['ids'], 'the tokens of cpu', got['ids'])
    for phase in got['receipt']['phases']:
        facts = phase['segments'][0]['facts']
        check(phase['executed'] == 'cuda' and phase['deviceNs'] > 0, 'what ran', phase['executed'])
        check(phase['hostCopyBytes'] == 0 and phase['deviceCopyBytes'] == 0, 'no byte of the cache is copied')
        check(facts['bitClass'] == DIGITS['bits'] and facts['bitsEqualUnder'] == DIGITS['under'], 'class of bits', facts)
    # The order of sums is the same however the prompt is cut.
    for rows in ('1', '3'):
        r = run(*TEXT, '--engine', 'cuda', '--ubatch', rows, env=ENV)
        check(r.returncode == 0 and json.loads(r.stdout)['ids'] == got['ids'], 'ubatch ' + rows, err(r))


def levels():
    """Greedy tokens that nobody asks logits of are picked on the card, several a run: at level 2, and with a cache
    that the persistent kernel does not read at level 1. What ends a text ends it as on cpu."""
    args = TEXT[:5] + ['40'] + TEXT[6:]
    for level, more in ((1, ['-ctk', 'f32', '-ctv', 'f32']), (2, [])):
        want = doc(*args, *more)
        got = doc(*args, '--engine', 'cuda', *more, env=ENV)
        prefill, decode = got['receipt']['phases']
        check(got['ids'] == want['ids'], 'level %d: the tokens of cpu' % level, got['ids'])
        check(len(decode['segments']) == 1, 'one plan for all tokens', decode['segments'])
        s = decode['segments'][0]
        check(s['facts']['level'] == level and s['facts']['tokensPerLaunch'] == 32, 'level %d' % level, s['facts'])
        check((s['runs'], s['tokens']) == (2, 39), 'runs of 32 and 7', (s['runs'], s['tokens']))
        check(prefill['segments'][0]['facts']['level'] == 1, 'a prompt is a graph')
        kernels = 2 if level == 2 else 39 * s['facts']['kernels']
        check(decode['dispatches'] == kernels, 'kernels of level %d' % level, decode['dispatches'])
    # A stop string in the middle of a run: the text before it, the tokens up to it, no position behind it.
    word = ' smile'
    text = want['text']
    cut = text.find(word)
    check(cut > 0, 'the story has the word', text)
    got, ref = (doc(*args, '--stop', word, '--engine', e, env=ENV) for e in ('cuda', 'cpu'))
    check(got['text'] == ref['text'] == text[:cut], 'text before a stop string', got['text'])
    check(got['ids'] == ref['ids'] and got['finish'] == ref['finish'] == 'stop', 'tokens up to it', got['finish'])
    s = got['receipt']['phases'][1]['segments'][0]
    check(s['tokens'] == len(got['ids']) - 1 and s['tokens'] % 32, 'in the middle of a run', s['tokens'])
    # Between guesses too: the three runs that measure what a token takes without them make four each.
    for more in (['--lookup'], ['-md', TALE, '--draft-engine', 'cpu'],
                 ['-md', TALE, '--draft-engine', 'cpu', '--draft-parallel']):
        got = doc(*args, '--engine', 'cuda', *more, env=ENV)
        segments = got['receipt']['phases'][1]['segments']
        check(got['ids'] == want['ids'], 'guesses: ' + ' '.join(more), got['ids'])
        check(segments[0]['facts']['tokensPerLaunch'] == 32 and segments[0]['tokens'] >= 12, 'without a guess', segments)
        check(sum(s['runs'] for s in segments) <= 39 - 9, 'several tokens a run', segments)
    # Sampling and penalties need logits: level 1, a row at a time.
    for more in (['--temp', '0.5', '--seed', '1'], ['--repeat-penalty', '1.1']):
        rest = [x for i, x in enumerate(TEXT) if more[0] != '--temp' or '--temp' not in (x, TEXT[i - 1])]
        got = doc(*rest, '--engine', 'cuda', *more, env=ENV)
        facts = [s['facts'] for s in got['receipt']['phases'][1]['segments']]
        check(facts and all(f['level'] == 1 and f['tokensPerLaunch'] == 1 for f in facts), 'logits: ' + more[0], facts)


def tensor():
    """act f16: prompts of more than 8 rows on tensor cores, the same however they are cut; perplexity within 0.1 % of
    ref; hetero bench."""
    text = 'Once upon a time there was a little girl named Lily. She loved to play outside in the sunshine.'
    args = ['run', TALE, '-p', text, '-n', '3', '--temp', '0', '-c', '128', '--json']
    want = doc(*args)
    for rows in ('512', '12'):
        got = doc(*args, '--engine', 'cuda', '--act', 'f16', '--ubatch', rows, env=ENV)
        prefill, decode = (p['segments'][0]['facts'] for p in got['receipt']['phases'])
        check(got['ids'] == want['ids'], 'act f16: the tokens of cpu', got['ids'])
        check(prefill['bitClass'] == 'cuda-f16/4x64.2' and 'rows' not in prefill['bitsEqualUnder'], 'class', prefill)
        check(decode['bitClass'] == DIGITS['bits'], 'decode is act f32', decode)
    with tempfile.NamedTemporaryFile('w', suffix='.txt') as f:
        f.write(text)
        f.flush()
        ref, got = (doc('ppl', TALE, f.name, '--ctx', '20', '--json', *more, env=ENV) for more in
                    (['--engine', 'ref'], ['--engine', 'cuda', '--act', 'f16']))
    check(got['tokens'] == ref['tokens'] > 8, 'scored tokens', got)
    check(0 < abs(got['ppl'] / ref['ppl'] - 1) < 1e-3, 'perplexity of ref within 0.1 %', (got['ppl'], ref['ppl']))
    d = doc('bench', TALE, '--engine', 'cuda', '--act', 'f16', '-p', '20', '-n', '0', '-r', '1', '--json', env=ENV)
    check([x['test'] for x in d['rows']] == ['pp20'] and d['rows'][0]['device']['nsPerToken'] > 0, 'bench', d['rows'])


def experts():
    """A model of experts alone has no gate to deal out for level 2; its layers are refused by name."""
    model = os.path.join(SHARED, 'data', 'golden', 'arch', 'qwen3_moe')
    if not os.path.isdir(model):
        skip('experts on the card', 'no %s: set HETERO_SHARED' % model)
        return
    r = run('run', model, '--ids', '1,2,3', '-n', '2', '-c', '64', '--engine', 'cuda', env=ENV)
    check(r.returncode > 0 and 'expert' in err(r).lower(), 'experts are refused', (r.returncode, err(r)))


def exchanged(dim, heads, ffn, layers):
    """Bytes that a lone row's vectors bring from one of two ranks to the other: X to rank 0's peer, then halves."""
    return 4 * (dim + layers * (heads + dim + ffn + dim))


def groups():
    """--cuda ranks=2: the same tokens, caches and logits as one rank, from a file and from a pack whose rows lie in
    tiles, handed over in both directions; what is exchanged is in receipt and explain; refusals by name."""
    two = ['--engine', 'cuda', '--cuda', 'ranks=2']
    want = doc(*TEXT)
    pack = os.path.join(tempfile.mkdtemp(), 'q8.htpack')
    r = run('pack', TALE, '-o', pack, '--precision', 'q8')
    check(r.returncode == 0, 'a pack', err(r))
    for args, ref in ((TEXT, want), (['run', pack] + TEXT[2:], None)):
        ref = ref or doc(*args, '--engine', 'cuda', '--cuda', 'level=1', env=ENV)
        got = doc(*args, *two, env=ENV)
        check(got['ids'] == ref['ids'], 'two ranks: the tokens of one', got['ids'])
    shape = doc('inspect', TALE, '--json')['model']['spec']
    dim, heads, ffn, layers = shape['dim'], shape['n_heads'] * shape['head_dim'], shape['ffn'], shape['n_layers']
    got = doc(*TEXT, *two, env=ENV)
    decode = got['receipt']['phases'][1]
    facts = decode['segments'][0]['facts']
    check(facts['ranks'] == 2 and facts['level'] == 1 and facts['captured'], 'a captured group', facts)
    check(facts['kernels'] == 2 * (5 * layers + 2) and facts['copies'] == 8 * layers + 1, 'kernels, copies', facts)
    check(facts['exchangedBytesPerRow'] == exchanged(dim, heads, ffn, layers), 'bytes a token', facts)
    check(decode['dispatches'] == 11 * (facts['kernels'] + facts['copies']), 'all of them', decode['dispatches'])
    check(decode['hostCopyBytes'] == 0 and decode['deviceCopyBytes'] == 0, 'no byte of the cache is copied')
    d = doc('explain', TALE, '-p', '20', '-d', '20', '--json', *two, env=ENV)
    facts = d['phases'][1]['cover']['facts']
    check(facts['ranks'] == 2 and facts['exchangedBytesPerRow'] > 0, 'explain', facts)
    d = doc('doctor', '--json', env=ENV)
    cuda = [e['describe'] for e in d['engines'] if e['name'] == 'cuda'][0]
    check(cuda['ranks'] == 1 and cuda['ranksMax'] == 8, 'doctor', cuda)
    for prefill, decode in (('cuda', 'cpu'), ('cpu', 'cuda')):
        got = doc(*TEXT, '--prefill-engine', prefill, '--decode-engine', decode, '--cuda', 'ranks=2', env=ENV)
        hand = got['receipt']['phases'][1]['handOff']
        check(got['ids'] == want['ids'] and hand['pages'] == 1, 'a part of the cache each, handed over', hand)
    for more, status, text in ((['--cuda', 'ranks=4'], 4, 'does not divide'), (['--cuda', 'ranks=9'], 2, 'from 1 to 8'),
                               (['--cuda', 'rank=2'], 2, 'is unknown'), (['--cuda', 'ranks=2,level=2'], 4, 'one rank'),
                               (['--cuda', 'gpu=0+1'], 4, 'not built yet'),
                               (['--cuda', 'ranks=2', '--act', 'f16'], 4, 'act f32')):
        r = run('run', TALE, '-p', 'x', '-n', '1', '--engine', 'cuda', *more, env=ENV)
        check(r.returncode == status and text in err(r), ' '.join(more), (r.returncode, err(r)))


def families():
    """Logits of two ranks to the digit, for each family that can be dealt out; the others are refused."""
    top = os.path.join(SHARED, 'data', 'golden', 'arch')
    if not os.path.isdir(top):
        skip('families in a group', 'no %s: set HETERO_SHARED' % top)
        return
    for name, why in (('llama', None), ('llama3_rope', None), ('mistral_swa', None), ('qwen2', None), ('qwen3', None),
                      ('phi3', '3 heads and 1 KV heads'), ('gemma3', 'norms outputs'), ('mixtral', 'has experts')):
        args = ['logits', os.path.join(top, name), '--ids', '1,2,3,4,5,6,7,8,9,10', '--at', '3,9', '-c', '64',
                '--engine', 'cuda', '--cuda']
        two = run(*args, 'ranks=2', env=ENV)
        if why:
            check(two.returncode == 4 and why in err(two), name + ' is refused', err(two))
            continue
        one = run(*args, 'level=1', env=ENV)
        check(two.returncode == 0 and one.stdout and two.stdout == one.stdout, name + ': the same logits', err(two))


def served():
    """A stream of the server: the same text with log-probabilities (level 1) and without (level 2)."""
    with Server('--engine', 'cuda', '--parallel', 1, ctx=128, env=ENV) as s:
        text, level = [], []
        for logprobs in (True, False):
            status, body = s.ask('/v1/chat/completions', chat(max_tokens=20, temperature=0, logprobs=logprobs))[::2]
            check(status == 200, 'served', body)
            text.append(content(body))
            rows = s.metrics()
        check(text[0] == text[1] and text[0], 'the same answer', text)
        check(rows['decode_rows_total'] == rows['passes_total'] - 2, 'a token is a pass over the weights', rows)


def cancelled():
    """SIGINT ends the text where it is, in the middle of a run too: behind what the card has picked by then."""
    whole = doc(*TEXT[:5], '200', '--temp', '0', '-c', '4096', '--json')['text']
    p = subprocess.Popen([BIN, *TEXT[:5], '3000', '--temp', '0', '-c', '4096', '--engine', 'cuda'], env={**BASE, **ENV},
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = p.stdout.read(1)
    p.send_signal(signal.SIGINT)
    out, log = p.communicate(timeout=120)
    check(p.returncode == 130 and first + out, 'SIGINT', (p.returncode, log[-200:]))
    check(whole.startswith((first + out).decode().rstrip('\n')), 'the beginning of the text', first + out)


def bench():
    args = ['bench', TALE, '--engine', 'cuda', '-p', '5', '-n', '3', '-r', '2']
    r = run(*args, '--json', env=ENV)
    check(r.returncode == 0, 'bench', err(r))
    d = json.loads(r.stdout)
    check([x['test'] for x in d['rows']] == ['pp5', 'tg3'], 'rows', d['rows'])
    for x in d['rows']:
        dev = x['device']
        check(x['fmaPercent'] is None and not x['impossible'], 'the host is no bound of a device', x['fmaPercent'])
        # The emulated card's events say half a millisecond a run: 5 rows are one run, three tokens too.
        per = 5e5 / (5 if x['test'] == 'pp5' else 3)
        layers = d['engine']['model']['layers']
        check(abs(dev['nsPerToken'] - per) < 1, 'device time', dev)
        check(abs(dev['usPerLayer'] - per / layers / 1e3) < 1e-3, 'microseconds a layer', dev)
        share = 100e9 * x['bytesPerToken'] / d['engine']['engines']['decode']['device']['readBytesPerS'] / per
        check(abs(dev['readPercent'] - share) < 1e-6 * share, 'share of the read rate', dev)
    check(abs(d['rows'][1]['device']['dispatchesPerToken'] - 1 / 3) < 1e-9, 'one kernel', d['rows'][1]['device'])
    check({'qkv', 'attn', 'head'} <= {x['stage'] for x in d['rows'][1]['stages']}, 'its stages', d['rows'][1])
    r = run(*args, env=ENV)
    check(r.returncode == 0 and 'device us/token' in r.stdout.decode(), 'the table', err(r))


absence()
if has_cuda('cuda on the emulated card'):
    receipts()
    levels()
    tensor()
    experts()
    groups()
    families()
    served()
    cancelled()
    bench()
end()
