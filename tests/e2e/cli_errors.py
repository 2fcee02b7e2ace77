"""Wrong input: the message says what, where and what next; the exit status is the documented one; and
standard output stays empty (with --json: holds the error as a document)."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import TALE, check, doc, end, err, run, tmp

COMMANDS = ('run', 'chat', 'pack', 'inspect', 'tokenize', 'template', 'explain', 'bench', 'ppl', 'logits', 'doctor',
            'qualify', 'quality', 'compare', 'bench-slot', 'version', 'help')


def fails(status, text, *args, **kw):
    """hetero ARGS ends with status, says text on standard error and nothing on standard output."""
    r = run(*args, **kw)
    name = ' '.join(map(str, args))[-70:]
    check(r.returncode == status, name, 'status %d, want %d: %s' % (r.returncode, status, err(r)))
    check(text in err(r), name, 'lacks %r: %s' % (text, err(r)))
    check(r.stdout == b'', name, 'standard output: %r' % r.stdout[:80])
    check('error: ' in err(r), name, 'no line says error: ' + err(r))


def usage():
    fails(2, "did you mean --temp?", 'run', '--tmep', '1')
    fails(2, "did you mean 'run'?", 'rnu')
    fails(2, "belongs to 'hetero ppl'", 'run', '--chunks', '3')
    fails(2, 'engines are chosen by evidence', 'run', '-ngl', '99')
    fails(2, 'need one of f32|q8', 'run', '--act', 'q9')
    fails(2, 'out of range', 'run', '--top-p', '2')
    fails(2, 'needs a value', 'run', '-n')
    fails(2, 'nothing to generate', 'run', '-p', 'x', '-n', '0')
    fails(2, 'usage: hetero pack', 'pack')
    fails(2, 'usage: hetero pack', 'pack', TALE)
    fails(2, 'no model', 'logits', '--ids', '1')
    fails(2, 'no model', 'tokenize', '-p', 'x')
    fails(2, 'two models', 'run', TALE, '-m', TALE)
    fails(2, 'exclude each other', 'run', '-p', 'x', '--ids', '1')
    fails(2, 'both -p and -f', 'run', '-p', 'x', '-f', TALE)
    fails(2, 'the prompt is empty', 'run', '-p', '')
    fails(2, 'go together', 'tokenize', TALE, '--ids', '1')
    fails(2, '--ids: item 2', 'logits', TALE, '--ids', '1,x')
    fails(2, 'from 0 to 4095', 'logits', TALE, '--ids', '5000')
    fails(2, '--at: item 1', 'logits', TALE, '--ids', '1', '--at', '1')
    fails(2, 'need ID+X', 'run', '-p', 'x', '-l', '5')
    fails(2, '--now', 'template', TALE, '--messages', '-', '--now', 'tomorrow', data=b'[]')
    fails(2, 'this build has: ', 'run', '-p', 'x', '--engine', 'warp')
    fails(2, 'HETERO_THREADS many', 'run', '-p', 'x', env={'HETERO_THREADS': 'many'})
    fails(2, 'usage: hetero qualify', 'qualify')


def settings():
    """What was said twice, or came from the environment, or has no effect: each is told."""
    fails(2, '--cuda level=1: was given before, with gpu=0; give it once, with commas', 'run', TALE,
          '--cuda', 'gpu=0', '--cuda', 'level=1')
    # A typing error is told where no card, and no kernels, are.
    fails(2, '(--cuda is set by HETERO_CUDA in the environment)', 'run', TALE, '-p', 'x', '--engine', 'cuda',
          env={'HETERO_CUDA': 'colour=1'})
    fails(2, '(--graph is set by HETERO_GRAPH in the environment)', 'run', TALE, '-p', 'x', '--prefill-engine', 'graph',
          env={'HETERO_GRAPH': 'colour=1'})
    e = json.loads(run('run', TALE, '-p', 'x', '--engine', 'cuda', '--json', env={'HETERO_CUDA': 'level=9'}).stdout)['error']
    check('HETERO_CUDA' in e['message'], 'the source of a setting in the document', e)
    # What the environment says of an engine that does not run is for other commands; what was typed is not.
    for args in (('run', TALE, '-p', 'x', '-n', '1'), ('bench', TALE, '-p', '4', '-n', '0', '-r', '1'),
                 ('serve', TALE, '--print-config', 'json')):
        r = run(*args, env={'HETERO_CUDA': 'level=1', 'HETERO_GRAPH': 'memory=1000'})
        check(r.returncode == 0, args[0] + ' with settings of other engines in the environment', err(r))
        fails(2, '--cuda level=1 has no effect here', *args, '--cuda', 'level=1')
        fails(2, '--graph has no effect here', *args, '--graph', 'memory=1000')
    for key in ('threads=3', 'isa=avx2'):
        fails(2, 'cuda setting %s: it is of the processor' % key, 'run', TALE, '-p', 'x', '--engine', 'cuda', '--cuda',
              'gpu=0,' + key)
    r = run('run', TALE, '-p', 'x', '--graph', 'colour=1', env={'HETERO_CUDA': 'level=1'})
    check('colour' in err(r) and 'HETERO_' not in err(r), 'what was typed has no other source', err(r))
    fails(2, 'device=cpu: OpenVINO\'s names are in capitals', 'run', TALE, '-p', 'x', '--graph', 'device=cpu')
    r = run('run', TALE, '-p', 'x', '-n', '1', '--act', 'q8')
    check(r.returncode == 0 and 'act q8 changes nothing here' in err(r) and '--precision q8' in err(r),
          'act q8 without quantised weights', err(r))
    r = run('bench', TALE, '--act', 'q8', '-p', '4', '-n', '0', '-r', '1')
    check(r.returncode == 0 and 'act q8 changes nothing here' in err(r), 'the same of bench', err(r))


def from_the_environment():
    """An error about a setting that nobody typed says where it came from, whatever words the message has."""
    with tmp() as t:
        file, none = os.path.join(t, 'file'), os.path.join(t, 'none', 'x')
        open(file, 'w').close()
        text, spec = ('run', TALE, '-p', 'x', '-n', '1'), ('--lookup',)
        for name, value, args in (
                ('ENGINE', 'warp', text), ('PREFILL_ENGINE', 'warp', text), ('DECODE_ENGINE', 'graph', text),
                ('CACHE_TYPE_K', 'zz', text), ('CACHE_TYPE_V', 'f16,9-11=q8_0', text), ('CACHE_TYPE_K', 'q8_0', text),
                ('MODEL', none, ('run', '-p', 'x')), ('MODEL', t, ('run', '-p', 'x')), ('MODEL_DRAFT', none, text),
                ('MODEL', '/' + 90 * 'long', ('inspect',)), ('DRAFT_ENGINE', 'warp', text + ('-md', TALE)),
                ('PREFIX_CACHE', '/proc/x', text), ('PREFIX_CACHE', file, text), ('RECEIPTS', '/proc/x', text),
                ('RECEIPTS', file, text), ('RECEIPTS_KEY', none, text + ('--receipts', os.path.join(t, 'log'))),
                ('UBATCH', '1', text + spec), ('DRAFT_MIN', '9', text + spec + ('--draft-max', '3')),
                ('CTX', '4294967295', text), ('CTX', '3', ('run', TALE, '--ids', '5,5,5,5')), ('PREDICT', '0', text[:-2]),
                ('ISA', 'sse', text), ('STORE', none, ('routes',)), ('HOST', none, ('serve', TALE)),
                ('API_KEY_FILE', none, ('serve', TALE)), ('RECORD_TRACE', none, ('serve', TALE, '--port', '0'))):
            var = 'HETERO_' + name
            r = run(*args, env={var: value}, timeout=60)
            check(r.returncode != 0 and ('is set by %s in the environment' % var in err(r) or 'error: ' + var in err(r)),
                  var + '=' + value[:20], err(r))
        # What is not spoken of is not named.
        for env in ({'HETERO_CACHE_TYPE_V': 'f16'}, {'HETERO_MODEL': os.path.basename(none)}, {'HETERO_THREADS': '1'}):
            r = run('run', none, '-p', 'x', '-ctk', 'zz', env=env)
            check(r.returncode != 0 and 'HETERO_' not in err(r), 'not from the environment: %s' % env, err(r))


def unread():
    """Options that nothing reads: each is refused, or said to have no effect."""
    for o in (('--draft-max', '3'), ('--draft-min', '1'), ('--draft-always',), ('--draft-accept', 'reject'),
              ('--draft-parallel',), ('--draft-threads', '1'), ('--draft-engine', 'cpu')):
        for c in ('run', 'chat'):
            fails(2, o[0] + ' has no effect', c, TALE, *o)
        both = ('--lookup', '--no-lookup') + o
        fails(2, o[0] + ' has no effect', 'run', TALE, '-p', 'x', *both)
    fails(2, '--draft-threads has no effect: nothing guesses ahead with a draft model', 'run', TALE, '--lookup',
          '--draft-threads', '1')
    fails(2, '--draft-min has no effect with --draft-accept reject', 'run', TALE, '-p', 'x', '-md', TALE, '--draft-accept',
          'reject', '--draft-min', '2')
    r = run('run', TALE, '-p', 'x', '-n', '2', '--lookup', '--draft-max', '3', '--draft-min', '1', '--draft-always')
    check(r.returncode == 0, 'options of guessing with --lookup', err(r))
    r = run('run', TALE, '-p', 'x', '-n', '2', env={'HETERO_DRAFT_MAX': '3', 'HETERO_DRAFT_ENGINE': 'cpu'})
    check(r.returncode == 0, 'options of guessing in the environment', err(r))
    fails(2, '--now abc: need a UTC time', 'run', TALE, '-p', 'x', '--now', 'abc')
    fails(2, '--now abc: need a UTC time', 'chat', TALE, '--now', 'abc')
    r = run('run', TALE, '-p', 'x', '-n', '1', '--now', '2026-01-01', '--kwargs', '{}')
    for o in ('--now', '--kwargs'):
        check(r.returncode == 0 and 'warning: %s is used only with -cnv' % o in err(r), o + ' without a template', err(r))
    q = ('qualify', 'p32', TALE, '--candidate', 'isa=generic')
    for o in (('--text', TALE), ('--items', '3'), ('--tasks', '3'), ('--chunks', '1'), ('-n', '3')):
        fails(2, 'runs with a corpus; add -f FILE', *q, *o)
        fails(2, 'runs with a corpus; leave it out', 'qualify', '--reference', TALE, *o)
    with tmp() as t:
        fails(2, 'no phase runs on engine cuda', *q[:-1], 'cuda=level=1', env={'XDG_STATE_HOME': t})
        fails(2, '--graph has no effect here', *q[:-1], 'graph=cold=1', env={'XDG_STATE_HOME': t})


def words():
    """Which word is the model depends on the command: of qualify it is the second one, and after it ppl and kv-probe
    have a text. A model from -m, HETERO_MODEL or the default leaves the other words what they are."""
    with tmp() as t:
        none, text, trace = (os.path.join(t, n) for n in ('none.gguf', 'text', 'trace'))
        open(text, 'w').write('Once upon a time')
        open(trace, 'w').write(''.join('{"atNs":%d,"maxNew":4,"nPrompt":8}\n' % (i * 10**9) for i in range(24)))
        q, sched = ('qualify', 'p32'), ('qualify', 'scheduler', '--tpot-ms', '50', '--trace', trace)
        act, env = ('--candidate', 'isa=generic'), {'HETERO_MODEL': none, 'XDG_STATE_HOME': t}
        for args in (q + act, sched, ('ppl', none, text), ('ppl', '-f', text), ('kv-probe', none), ('kv-probe', none, text),
                     ('bench', '--inject', '16')):
            fails(3, 'none.gguf', *args, env=env)
        for args in (q + act, sched, ('ppl', text), ('ppl', '-f', text), ('kv-probe', text), ('kv-probe',),
                     ('bench', '--inject', '16')):
            fails(3, 'none.gguf', *args, '-m', none, env={'XDG_STATE_HOME': t})
        for args in (q + (TALE,) + act, ('qualify', 'scheduler', TALE), ('qualify', '--reference', TALE), ('run', TALE),
                     ('qualify', '--canary', t, TALE), ('ppl', TALE, text), ('kv-probe', TALE, text)):
            fails(2, 'two models', *args, '-m', TALE, *(sched[2:] if 'scheduler' in args else ()))
        fails(2, 'give -c 2064', 'qualify', 'c2048', *act, '-c', '100', env={'XDG_STATE_HOME': t})
        fails(2, 'one word too many', 'qualify', '--reference', 'p32', TALE)
        for c in ('ppl', 'kv-probe'):
            fails(2, 'two texts', c, TALE, text, '-f', text)
            fails(2, 'fewer than one chunk' if c == 'ppl' else 'tokens', c, TALE, text)
        fails(2, 'no model', 'kv-probe')


def nothing_is_made_before_a_check():
    """hetero qualify checks what it was asked before it makes a key or looks for the model."""
    with tmp() as t:
        env = {'XDG_STATE_HOME': t}
        q = ('qualify', 'p32', TALE)
        for text, args in (('BUCKET,...: item 2 is empty', ('qualify', 'p32,,p128', TALE, '--candidate', 'act=q8')),
                           ('BUCKET,...: item 2 is empty', ('qualify', 'p32,', TALE, '--candidate', 'act=q8')),
                           ('bucket "p33"', ('qualify', 'p33', TALE, '--candidate', 'act=q8')),
                           ('item 2 is empty', q + ('--candidate', 'act=q8,')),
                           ('act is given twice', q + ('--candidate', 'act=q8,act=f32')),
                           ('no setting', q + ('--candidate', 'colour=1')),
                           ('10 pairs and 12 null pairs', q + ('--candidate', 'act=q8', '--pairs', '10')),
                           ('4 pairs and 12 null pairs', q + ('--candidate', 'act=q8', '--pairs', '4')),
                           ('give -c 2064', ('qualify', 'c2048', TALE, '--candidate', 'act=q8', '-c', '100'))):
            fails(2, text, *args, env=env)
        fails(3, 'none.jsonl: No such file', *q, '--candidate', 'act=q8', '-f', os.path.join(t, 'none.jsonl'), env=env)
        fails(3, 'none.gguf', 'qualify', 'p32', os.path.join(t, 'none.gguf'), '--candidate', 'act=q8', env=env)
        fails(2, 'act is given twice', 'compare', TALE, '--server', 'http://127.0.0.1:1',
              '--candidate', 'act=q8,act=f32', env=env)
        file, free = os.path.join(t, 'file'), os.path.join(t, 'none', 'ev')
        open(file, 'w').close()
        corpus = ('-f', file)
        for out, text in ((file, 'file is no folder; name one'), (free, 'the folder above it: No such file')):
            fails(2, text, *q, '--candidate', 'isa=generic', '-o', out, env=env)
            fails(2, text, 'quality', TALE, '--candidate', 'isa=generic', *corpus, '-o', out, env=env)
            fails(2, text, 'compare', TALE, '--server', 'http://127.0.0.1:1', '-o', out, env=env)
            fails(2, text, 'qualify', '--canary', t, TALE, '-o', out, env=env)
        # What is measured must differ from the reference.
        has = doc('run', TALE, '-p', 'x', '--print-config', 'json')['engine']
        isa, threads = has['engines']['decode']['device']['isa'], has['threads']
        for spec in ('act=f32', 'engine=cpu', 'ctk=f16,ctv=f16', 'isa=' + isa, 'threads=%d' % threads, 'cover=fused',
                     'ubatch=%d' % has['ubatch'], 'decode-rep=f16,prefill-rep=f16', 'isa=%s,threads=%d' % (isa, threads)):
            fails(2, '--candidate %s: the reference is the same here' % spec, *q, '--candidate', spec, env=env)
        for spec, text in (('act=q8', 'act q8 changes nothing here'), ('act=q8,isa=generic', 'act q8 changes nothing here'),
                           ('store=' + t, 'routes are what this makes'), ('cuda=level=1', 'no phase runs on engine cuda'),
                           ('decode-engine=ref', 'bucket p32: --candidate decode-engine=ref changes nothing')):
            fails(2, text, *q, '--candidate', spec, env=env)
        check(sorted(os.listdir(t)) in (['file'], ['file', 'hetero']) and
              not os.path.exists(os.path.join(t, 'hetero', 'bench.pem')), 'nothing was made', os.listdir(t))


def files():
    with tmp() as t:
        missing, broken, text = (os.path.join(t, n) for n in ('missing.gguf', 'broken.gguf', 'notes.txt'))
        open(broken, 'wb').write(open(TALE, 'rb').read(5000))
        open(text, 'w').write('hello')
        for command in ('run', 'inspect', 'tokenize', 'explain', 'bench', 'logits', 'qualify', 'ppl', 'template', 'chat'):
            extra = {'run': ['-p', 'x'], 'tokenize': ['-p', 'x'], 'logits': ['--ids', '1'], 'qualify': ['--reference'],
                     'ppl': [text], 'template': ['--messages', text]}.get(command, [])
            fails(3, 'missing.gguf', command, missing, *extra)
            fails(3, 'broken.gguf', command, broken, *extra)
        fails(3, 'notes.txt', 'inspect', text)
        fails(3, 'holds no config.json', 'run', '-m', t)
        fails(3, 'No such file', 'run', '-f', os.path.join(t, 'none'))
        fails(3, 'notes.txt', 'template', TALE, '--messages', text)
        nul = os.path.join(t, 'nul.json')
        open(nul, 'wb').write(b'[{"role":"user","content":"Hi"}]\n\0[1')
        fails(3, 'nul.json', 'run', '--messages', nul, '-n', '1')
        fails(3, 'nul.json', 'template', TALE, '--messages', nul)
        fails(2, 'fewer than one chunk', 'ppl', TALE, text)
        fails(3, 'missing', 'pack', missing, '-o', os.path.join(t, 'out.htpack'))
        check(os.listdir(t) == sorted(os.listdir(t)) and not [f for f in os.listdir(t) if 'out' in f],
              'a failed pack leaves nothing behind', os.listdir(t))
        fails(2, 'messages', 'template', TALE, '--messages', '-', data=b'{"role":"user"}')
        bad = os.path.join(t, 'bad.jinja')
        open(bad, 'w').write('line one\n{% frobnicate x %}')
        r = run('template', '--template', bad, '--messages', '-', data=b'[]')
        check(r.returncode in (3, 4) and '2' in err(r) and r.stdout == b'', 'template errors name the line', err(r))
    fails(5, 'the context 4', 'run', '-p', 'one two three four five six seven', '-c', '4')


def as_json():
    for args, status in ((['run', '--tmep', '1'], 2), (['inspect', '/nonexistent.gguf'], 3), (['rnu'], 2)):
        r = run(*args, '--json')
        check(r.returncode == status, str(args), r.returncode)
        e = json.loads(r.stdout)['error']
        check(e['status'] == status and e['message'] in err(r) and e['code'], 'the error as a document', e)


def purity():
    for c in COMMANDS:
        r = run(c, '--help')
        check(r.returncode == 0 and r.stderr == b'' and b'usage: hetero ' + c.encode() in r.stdout, c + ' --help', err(r))
        check(run('help', c).stdout == r.stdout, 'help ' + c)
    r = run('run', '-p', 'Once', '-n', 3, '--temp', 0, '--log-level', 'error')
    check(r.stderr == b'' and r.stdout, '--log-level error is silent', err(r))
    r = run('run', '-p', 'Once', '-n', 3, '--temp', 0, '-v')
    check('sampler: ' in err(r) and 'threads' in err(r), '-v says more', err(r))
    check(b'\r' not in r.stderr and b'\x1b' not in r.stderr, 'no progress bar off a terminal')
    r = run('run', '-p', 'Once', '-n', 3, env={'HETERO_TMEP': '1'})
    check('HETERO_TMEP' in err(r) and r.returncode == 0, 'an unread variable is mentioned', err(r))


def nothing_is_clamped_silently():
    r = run('run', '-p', 'Once', '-n', 5000, '--stop', ' ', '--top-k', 100000, '-c', 3000)
    for text in ('--top-k 100000', '-n 5000', '-c 3000'):
        check('warning: ' + text in err(r), 'said: ' + text, err(r))
    # 41 of the prompt, and 9 for an answer whose last token needs no position
    ids = ','.join(['5'] * 41)
    fails(5, 'the context 32: shorten it or set -c 50, which has room for an answer of 10', 'run', TALE, '-c', '32', '-n',
          '10', '--ids', ids)
    fails(5, 'set -c 296, which has room for an answer of 256', 'run', TALE, '-c', '32', '--ids', ids)


def plans():
    """What a plan takes, and a context that nobody named."""
    fails(2, '-p 100000: a plan has at most 65535 rows, and a longer prompt runs in pieces', 'explain', TALE, '-p', '100000')
    r = run('explain', TALE, '-p', '2049')
    check(r.returncode == 0 and 'warning: a context of 2049 is more than the 2048' in err(r), 'no -c was given', err(r))


def output():
    if os.path.exists('/dev/full'):
        import subprocess
        from e2e import BIN, ENV, ROOT
        with open('/dev/full', 'w') as full:
            r = subprocess.run([BIN, 'inspect', TALE], stdout=full, stderr=subprocess.PIPE, env=ENV, cwd=ROOT)
        check(r.returncode != 0 and 'standard output' in err(r), 'a full disk is noticed', err(r))


for part in (usage, settings, from_the_environment, unread, words, nothing_is_made_before_a_check, files, as_json, purity, nothing_is_clamped_silently, plans, output):
    part()
end()
