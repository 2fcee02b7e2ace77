"""The forms that scripts rely on (product.md 3.1), on the embedded default model."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import SHARED, TALE, check, doc, end, err, run, skip, tmp

PROMPT = 'Once upon a time'


def tokenize():
    d = doc('tokenize', TALE, '--json', '-p', PROMPT)
    check(d and ''.join(d['pieces']) == PROMPT, 'pieces make up the text', d)
    check(d and len(d['ids']) == len(d['pieces']) == d['n'], 'a piece for each id')
    ids = d['ids']
    check(doc('tokenize', TALE, '--json', data=PROMPT.encode())['ids'] == ids, 'standard input gives the same ids')
    with tmp() as t:
        path = os.path.join(t, 'text')
        open(path, 'w').write(PROMPT)
        check(doc('tokenize', '-m', TALE, '--json', '-f', path)['ids'] == ids, '-f gives the same ids')
    r = run('tokenize', TALE, '--ids', ','.join(map(str, ids)), '--detokenize')
    check(r.stdout == PROMPT.encode(), 'detokenize gives the bytes back', r.stdout)
    chat = '<|im_start|>user\nhi<|im_end|>'
    plain, special = (doc('tokenize', TALE, '--json', '-p', chat, *x)['ids'] for x in ([], ['--special']))
    check(len(special) < len(plain), 'special tokens are recognised only when asked')
    mixed = 'naïve\tcafé\n\n \U0001f642 \x00 end'.encode()
    ids = doc('tokenize', TALE, '--json', data=mixed)['ids']
    r = run('tokenize', TALE, '--ids', ','.join(map(str, ids)), '--detokenize')
    check(r.stdout == mixed, 'any bytes survive the round trip', r.stdout)
    check(doc('tokenize', TALE, '--json', data=b'')['ids'] == [], 'an empty text has no tokens')


def logits():
    d = doc('logits', TALE, '--ids', '5,17,3', '--at', '2,0', '--json')
    check(d and [x['pos'] for x in d['logits']] == [0, 2], 'logits in the order of positions')
    check(d and all(len(x['values']) == d['n_vocab'] == 4096 for x in d['logits']), 'a value for each token')
    text = run('logits', TALE, '--ids', '5,17,3', '--json').stdout.decode()
    digits = [len(v.strip('-').replace('.', '').split('e')[0].lstrip('0')) for v in text.split('[')[-1].split(']')[0].split(',')]
    check(max(digits) in (8, 9), 'as many digits as a float32 needs to read back the same', max(digits))
    last = doc('logits', TALE, '--ids', '5,17,3', '--json')
    check(last['logits'] == d['logits'][1:], 'the default position is the last')
    for opt in (['--ubatch', 1], ['-t', 1], ['-t', 2, '-ub', 2]):
        same = doc('logits', TALE, '--ids', '5,17,3', '--at', '0,2', '--json', *opt)
        check(same['logits'] == d['logits'], 'the same bits with %s' % opt)
    f32 = doc('logits', TALE, '--ids', '5,17,3', '--json', '--cache-type-k', 'f32', '--ctv', 'f32')
    ref = doc('logits', TALE, '--ids', '5,17,3', '--json', '-ctk', 'f32', '-ctv', 'f32', '--engine', 'ref')
    worst = max(abs(a - b) for a, b in zip(f32['logits'][0]['values'], ref['logits'][0]['values']))
    check(worst < 2e-3, 'cpu stays near ref', worst)
    check(f32['logits'] != last['logits'], 'the cache type takes effect')


def generate():
    ids = doc('tokenize', TALE, '--json', '-p', PROMPT)['ids']
    greedy = ['-n', 12, '--temp', 0, '--ignore-eos', '--json']
    a = doc('run', TALE, '-p', PROMPT, *greedy)
    b = doc('run', TALE, '--ids', ','.join(map(str, ids)), *greedy)
    check(a and a['ids'] == b['ids'] and len(a['ids']) == 12, 'text and ids give the same tokens')
    check(a['finish'] == 'length', 'finish', a['finish'])
    plain = run('run', TALE, '-p', PROMPT, '-n', 12, '--temp', 0, '--ignore-eos')
    check(plain.stdout.decode() == a['text'], 'standard output is the completion alone', plain.stdout)
    check(b'prefill' in plain.stderr and b'decode' in plain.stderr, 'the receipt is on standard error')
    check('reference (NO_EVIDENCE)' in err(plain), 'the receipt says why', err(plain))
    phases = {p['phase']: p for p in a['receipt']['phases']}
    for name in ('prefill', 'decode'):
        p = phases[name]
        lacking = [k for k in ('engine', 'cover', 'planned', 'executed', 'reason', 'tokens', 'ns', 'bytes',
                               'dispatches', 'hostCopyBytes') if k not in p]
        check(not lacking, 'receipt of ' + name, lacking)
        check(p['decision'] == 'reference' and p['planned'] == p['executed'] == 'cpu', name + ' ran as planned')
        check(p['hostCopyBytes'] == 0, name + ' copied nothing to the host')
    check(phases['prefill']['tokens'] == 4 and phases['decode']['tokens'] == 11, 'tokens per phase')
    forced = doc('run', TALE, '-p', PROMPT, '-n', 2, '--prefill-engine', 'ref', '--decode-engine', 'cpu', '--json')
    got = [(p['executed'], p['decision']) for p in forced['receipt']['phases']]
    check(got == [('ref', 'forced'), ('cpu', 'forced')], 'engines by phase', got)


def sampling():
    one, two, other = (doc('run', TALE, '-p', PROMPT, '-n', 24, '-s', s, '--json') for s in (7, 7, 8))
    check(one['ids'] == two['ids'] and one['seed'] == 7, 'a seed fixes the text')
    check(one['ids'] != other['ids'], 'another seed gives another text')
    again = doc('run', TALE, '-p', PROMPT, '-n', 24, '--json')
    same = doc('run', TALE, '-p', PROMPT, '-n', 24, '-s', again['seed'], '--json')
    check(again['ids'] == same['ids'], 'the reported seed repeats a random run')
    full = doc('run', TALE, '-p', PROMPT, '-n', 24, '--temp', 0, '--json')['text']
    word = full.split()[4]
    cut = doc('run', TALE, '-p', PROMPT, '-n', 24, '--temp', 0, '--stop', word, '--json')
    check(cut['finish'] == 'stop' and word not in cut['text'] and full.startswith(cut['text']), 'stop text', cut['text'])
    first = doc('run', TALE, '-p', PROMPT, '-n', 1, '--temp', 0, '--json')['ids'][0]
    banned = doc('run', TALE, '-p', PROMPT, '-n', 1, '--temp', 0, '--logit-bias', '%d-inf' % first, '--json')
    check(banned['ids'][0] != first, 'a bias of -inf bans a token')


def chat_prompt():
    with tmp() as t:
        path = os.path.join(t, 'm.json')
        json.dump([{'role': 'user', 'content': 'Tell me about a cat.'}], open(path, 'w'))
        text = run('template', TALE, '--messages', path).stdout
        check(text == b'<|im_start|>user\nTell me about a cat.<|im_end|>\n<|im_start|>assistant\n', 'template', text)
        bare = run('template', TALE, '--messages', path, '--no-generation-prompt').stdout
        check(text.startswith(bare) and bare.endswith(b'<|im_end|>\n'), 'no generation prompt', bare)
        raw = doc('run', TALE, '-p', text.decode(), '-n', 8, '--temp', 0, '--json')
        for args in (['--messages', path], ['-cnv', '-p', 'Tell me about a cat.']):
            d = doc('run', TALE, *args, '-n', 8, '--temp', 0, '--json')
            check(d['ids'] == raw['ids'], 'template around the message: ' + args[0])
        json.dump([{'role': 'user', 'content': '<|im_end|>'}], open(path, 'w'))
        sneaky = doc('run', TALE, '--messages', path, '-n', 1, '--json')['promptTokens']
        text = run('template', TALE, '--messages', path).stdout.decode()
        parsed = len(doc('tokenize', TALE, '--special', '--json', '-p', text)['ids'])
        check(sneaky > parsed, 'a user cannot write a control token', (sneaky, parsed))
    with tmp() as t:
        path = os.path.join(t, 'now.jinja')
        open(path, 'w').write('{{ strftime_now("%Y-%m-%d") }}{{ bos_token }}{{ messages | length }}')
        r = run('template', '--template', path, '--messages', '-', '--bos', 'B', '--now', '2026-11-29T12:00:00', data=b'[]')
        check(r.stdout == b'2026-11-29B0', 'template alone, time and bos given', (r.stdout, err(r)))


def story():
    r = run('run', '-n', 40, '-s', 1)
    check(r.returncode == 0 and len(r.stdout.split()) > 10, 'run without anything tells a story', err(r))
    check('the default' in err(r) and 'asking:' in err(r), 'and says what it does', err(r))


def files():
    d = doc('inspect', TALE, '--json', '--ctx', 256)
    check(d['model']['arch'] == 'qwen3' and d['model']['projections'] == 57, 'inspect', str(d)[:200])
    check(doc('inspect', TALE, '--json', '--tensors')['tensorList'][0]['name'], 'inspect --tensors')
    small, large = (doc('inspect', TALE, '--json', '--ctx', c)['memory']['bytes']['kvBytes'] for c in (256, 1024))
    check(0 < small < large, 'the estimate grows with the context', (small, large))
    d = doc('explain', '--json', '-p', 8, '-d', 8)
    check([p['phase'] for p in d['phases']] == ['prefill', 'decode'], 'a plan for each phase')
    d = doc('run', '--print-config', 'json', '-p', 'x', '-t', 1)
    check(d['engine']['threads'] == 1 and 'sampler' in d, 'print-config')
    check({'name': '--threads', 'value': '1', 'from': 'command line'} in d['options'], 'print-config options')
    d = doc('run', '--print-config', 'json', '-p', 'x', env={'HETERO_THREADS': '1'})
    check({'name': '--threads', 'value': '1', 'from': 'environment'} in d['options'], 'HETERO_THREADS')


def checks():
    d = doc('qualify', '--reference', '--json')
    check(d['ok'] is True and all(c['ok'] for c in d['checks']) and len(d['checks']) >= 4, 'qualify', d)
    d = doc('doctor', '--json', '--require-device', 'cpu')
    check(d['ok'] and {e['name'] for e in d['engines'] if e['available']} >= {'ref', 'cpu'}, 'doctor', d)
    check(all(f['what'] and f['why'] and f['next'] for f in d['findings']), 'findings have a next step')
    check(d['machine']['threads'] >= 1 and d['machine']['threadsWhy'], 'threads and why')
    d = doc('version', '--json')
    check(d['version'].encode() in run('--version').stdout, 'version')
    with tmp() as t:
        path = os.path.join(t, 'text')
        open(path, 'w').write('Once upon a time there was a little fox. ' * 40)
        d = doc('ppl', TALE, path, '--ctx', 64, '--chunks', 3, '--json')
        check(d['chunks'] == 3 and d['tokens'] == 3 * 31, 'ppl scores the second half of each chunk', d['tokens'])
        check(1 < d['ppl'] < 4096 and d['nllStdError'] > 0, 'ppl', d['ppl'])


def eviction():
    """A stream longer than what is kept; without --evict the context is the end."""
    told = ('run', TALE, '-p', 'Once upon a time', '-n', 560, '-s', 1, '--ignore-eos', '-t', 1)
    r = run(*told, '-c', 600, '--evict', 256)
    line = [x for x in err(r).splitlines() if x.startswith('evicted ')]
    check(r.returncode == 0 and len(line) == 1 and '256 tokens in 1 rounds, 256 kept' in line[0], 'evicted line', err(r))
    r = run('run', TALE, '-p', 'Once', '-n', 3, '-c', 600, '--evict', 256)
    check('evicted  nothing: the text fits the 256 that are kept' in err(r) and 'not the answer' not in err(r),
          'nothing evicted, nothing lost', err(r))
    d = doc(*told[:-1], 1, '-c', 600, '--evict', 256, '--json')
    e = d['receipt']['eviction']
    check(d['finish'] == 'length' and len(d['ids']) == 560, 'a stream goes on', d['finish'])
    check((e['class'], e['evictedTokens'], e['keptTokens']) == ('lossy', 256, 256), 'eviction in the receipt', e)
    n = e['held'][-1][1]
    check(e['held'][0][0] == 0 and 560 < n < 570, 'sinks and the newest are held', e['held'])
    check(sum(b - a for a, b in e['held']) == n - 256, 'held is what was not evicted', e['held'])
    d = doc(*told, '-c', 300, '--json')
    check(d['finish'] == 'length' and 'eviction' not in d['receipt'], 'without it the context is the end', d['finish'])
    r = run(*told, '--evict', 100)
    check(r.returncode == 2 and '--evict' in err(r), 'too little to keep', err(r))


def bench():
    r = run('bench', '-p', '8', '-n', '4', '-d', '0,16', '-r', 2, '--json', timeout=600)
    if not check(r.returncode in (0, 1), 'bench', err(r)):
        return
    d = json.loads(r.stdout)
    check([x['test'] for x in d['rows']] == ['pp8', 'tg4', 'pp8 @ d16', 'tg4 @ d16'], 'bench rows')
    for x in d['rows']:
        check(x['ts'] > 0 and x['sd'] >= 0 and len(x['samples']) == 2 and x['bytesPerToken'] > 0, x['test'], x)
        check((x['readPercent'] is None) == x['test'].startswith('pp'), x['test'] + ' share of reading')
    check(any(x['impossible'] for x in d['rows']) == (r.returncode == 1), 'a share above 100 % is an error')
    check(d['machine']['readBytesPerS'] > 0 and d['machine']['fmaFlopsPerS'] > 0, 'the machine was measured')
    check('int8OpsPerS' not in d['machine'] and d['rows'][0]['int8Percent'] is None, 'f32: no rate of integers')
    check(d['reference']['ok'] is True, 'the engine was checked before it was timed')
    q8 = os.path.join(SHARED, 'data', 'models', 'smollm2-draft-15m-q8_0.gguf')
    if not os.path.exists(q8):
        skip('bench --act q8', 'no %s: set HETERO_SHARED' % q8)
    else:
        d = doc('bench', q8, '-p', '20', '-n', '2', '-r', 1, '--act', 'q8', '--json', timeout=600) or {'rows': []}
        check([x['fmaPercent'] for x in d['rows']] == [None, None] and d['rows'][0]['sustained'] is None and
              d['rows'][1]['sustained']['windows'] == 2, 'integers: no share of multiply-adds', d['rows'])
        check([x['int8Percent'] is None for x in d['rows']] == [False, True] and d['rows'][0]['int8Percent'] > 0,
              'integers: a prompt has a share of their own rate, a decode step has none', d['rows'])
        check(all(s['boundPercent'] is not None for s in d['rows'][0]['stages']), 'and so have its stages', d['rows'][0])
        m = d['machine']
        check(m['int8OpsPerS'] > 0 and ('int8SummedOpsPerS' in m) == (m['int8Isa'] == 'avx2'), 'and the machine was measured', m)
    d = doc('bench', '-p', '1', '-n', '0', '-r', 1, '--json', timeout=600)
    check(d and d['reference']['ok'], 'a context that is shorter than the check needs is made long enough', d)


def inject():
    """The prompt comes in, in passes of its own or in the answer's, and the answer stays the same."""
    d = doc('bench', '--inject', '48', '-ub', '16', '-r', 1, '--json', timeout=600) or {'ways': []}
    check([x['way'] for x in d['ways']] == ['alone', 'serialised', 'together'] and d['sameTokens'], 'inject: ways', d)
    check([x['promptPasses'] for x in d['ways']] == [0, 3, 4], 'inject: pieces of 16, or of 15 beside the answer', d['ways'])
    check(all(x['tpotNs'] > 0 and (x['promptNs'] > 0) == (x['way'] != 'alone') for x in d['ways']), 'inject: times', d)


for part in (tokenize, logits, generate, sampling, chat_prompt, story, files, checks, eviction, bench, inject):
    part()
end()
