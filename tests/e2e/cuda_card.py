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
    # Guesses, grammars and sampling need logits: level 1, a row at a time.
    for more in (['--lookup'], ['--temp', '0.5', '--seed', '1'], ['--repeat-penalty', '1.1']):
        got = doc(*TEXT, '--engine', 'cuda', *more, env=ENV)
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
    served()
    cancelled()
    bench()
end()
