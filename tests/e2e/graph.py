"""The compiled-graph engine from outside: a prompt on it and the answer on cpu, what it does not take, the
cold start, memory, and a machine without its library."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import ENV, TALE, check, doc, end, err, run, skip, tmp

GRAPH = ['--prefill-engine', 'graph']
if 'HETERO_OPENVINO' in os.environ:
    ENV['HETERO_OPENVINO'] = os.environ['HETERO_OPENVINO']


def refusal(*args):
    """What a call that must fail says; nothing else may come of it."""
    r = run(*args)
    check(r.returncode != 0 and r.stdout == b'', ' '.join(map(str, args))[:80], 'exit %d' % r.returncode)
    return err(r)


def ask(n, *more, graph='', ctx='512', new='8'):
    ids = ','.join(str(5 + i * 7 % 900) for i in range(n))
    args = ['run', TALE, '--ids', ids, '-n', new, '--temp', '0', '--ignore-eos', '-c', ctx, '--json']
    return doc(*args, *more, *(['--graph', graph] if graph else []))


def prefill(d):
    return d['receipt']['phases'][0]


def available():
    d = doc('doctor', '--json')
    eng = [e for e in d['engines'] if e['name'] == 'graph'] if d else []
    check(len(eng) == 1, 'doctor lists the engine')
    if eng and eng[0]['available']:
        check(eng[0]['describe']['buckets'] == [32, 128, 512, 2048], 'its buckets', eng[0])
        check(eng[0]['describe']['device'] == 'CPU', 'its device', eng[0])
        return True
    check('OpenVINO' in eng[0]['why'], 'the reason names what is missing', eng[0]['why'])
    return False


def edges():
    """Bucket edges, one token either way: who runs, with how many rows, and the tokens of cpu."""
    at = [(31, 32, '512'), (32, 32, '512'), (33, 128, '512'), (128, 128, '512'), (129, 512, '512'), (511, 512, '640'),
          (512, 512, '640'), (513, 2048, '2080'), (2047, 2048, '2080'), (2048, 2048, '2080')]
    for n, rows, ctx in at:
        g, c = ask(n, *GRAPH, ctx=ctx), ask(n, ctx=ctx)
        if g is None or c is None:
            continue
        p = prefill(g)
        check(p['decision'] == 'forced' and p['executed'] != 'cpu', '%d tokens on graph' % n, p['decision'])
        check(p['segments'][0]['rowsMax'] == rows, '%d tokens in %d rows' % (n, rows), p['segments'][0]['rowsMax'])
        check(p['tokens'] == n, '%d tokens counted' % n, p['tokens'])
        check(p['hostCopyBytes'] == 0 and p['deviceCopyBytes'] == 0, '%d tokens: nothing is copied' % n)
        check(g['receipt']['phases'][1]['engine'] == 'cpu', '%d tokens: cpu decodes' % n)
        check(g['ids'] == c['ids'], '%d tokens: the answer of cpu' % n, (g['ids'], c['ids']))


def other_work():
    """No bucket within the context: the reference, and the receipt says so; strict: an error."""
    d = ask(200, *GRAPH, ctx='256')
    if d:
        p = prefill(d)
        check((p['decision'], p['reason'], p['insteadOf']) == ('reference', 'BUCKET', 'graph'), 'no bucket', p)
        check(p['engine'] == 'cpu' and p['class'].startswith('cpu '), 'cpu runs it', p['class'])
    r = refusal('run', TALE, '--ids', ','.join(['5'] * 200), '-n', '2', '-c', '256', *GRAPH, '--graph', 'strict=1')
    check('no bucket for a prompt of 200 tokens' in r, 'strict says why', r)
    r = refusal('run', TALE, '-p', 'x', '-n', '1', '--engine', 'graph')
    check('does not decode' in r and '--prefill-engine graph' in r, 'it does not decode', r)


def bare_figures():
    """Logits and perplexities name no engine, so a graph that was asked for makes them or nobody does."""
    plain = run('logits', TALE, '--ids', '5,17,3')
    r = run('logits', TALE, '--ids', '5,17,3', *GRAPH)
    check(r.returncode == 0 and r.stdout and r.stdout != plain.stdout, 'logits of three tokens: the graph\'s', err(r))
    r = refusal('logits', TALE, '--ids', '5,17,3', '-c', '20', *GRAPH)
    check('no bucket for a prompt of 3 tokens at context 20' in r and 'strict=0' in r, 'logits: no bucket', r)
    r = run('logits', TALE, '--ids', '5,17,3', '-c', '20', *GRAPH, '--graph', 'strict=0')
    check(r.stdout == plain.stdout, 'strict=0 takes those of cpu', err(r))
    r = refusal('logits', TALE, '--ids', '5,17,3', *GRAPH, '--graph', 'cold=1')
    check('contradict' in r and 'add strict=0' in r, 'logits: a cold start', r)
    r = run('logits', TALE, '--ids', '5,17,3', *GRAPH, '--graph', 'cold=1,strict=0')
    check(r.stdout == plain.stdout, 'a cold start that was allowed', err(r))
    with tmp() as folder:
        for name in ('strict=0', 'cold=1'):  # names of folders, not settings
            r = refusal('logits', TALE, '--ids', '5,17,3', '-c', '20', *GRAPH, '--graph',
                        'cache=' + os.path.join(folder, name))
            check('no bucket for a prompt of 3 tokens' in r, 'logits: a folder named ' + name, r)
        path = os.path.join(folder, 'text')
        with open(path, 'w') as f:
            f.write('Once upon a time there was a little girl. ' * 40)
        r = refusal('ppl', TALE, '-f', path, '-c', '100', *GRAPH)
        check('no bucket for a prompt of 100 tokens' in r, 'ppl: no bucket', r)
        check(run('ppl', TALE, '-f', path, '-c', '128', *GRAPH).returncode == 0, 'ppl on the graph')
        probe = ['kv-probe', TALE, path, '--depths', '300', '-ctk', 'f32', '-ctv', 'f32', '--store', folder]
        plain, r = run(*probe, '--json'), run(*probe, '--json', *GRAPH)
        check(r.returncode == 0 and r.stdout != plain.stdout, 'kv-probe: a context in which a bucket fits', err(r))
        r = refusal(*probe, '-c', '300', *GRAPH)
        check('no bucket for a prompt of 300 tokens' in r, 'kv-probe: no bucket', r)


def settings():
    r = refusal('run', TALE, '-p', 'x', '-n', '1', *GRAPH, '--graph', 'speed=11')
    check('speed' in r and 'cache' in r, 'an unknown setting', r)
    r = refusal('run', TALE, '-p', 'x', '-n', '1', *GRAPH, '--graph', 'device=AUTO')
    check('approximate=1' in r, 'AUTO must be declared', r)
    r = refusal('run', TALE, '-p', 'x', '-n', '1', *GRAPH, '--graph', 'device=QPU,approximate=1')
    check('no device QPU' in r, 'an unknown device', r)
    r = refusal('run', TALE, '-p', 'x', '-n', '1', *GRAPH, '--graph', 'act=bf16')
    check('approximate=1' in r, 'bf16 must be declared', r)
    r = refusal('run', TALE, '-p', 'x', '-n', '1', *GRAPH, '--graph', 'act=q8')
    check('act q8' in r and 'weights of this type' in r, 'q8 without integer weights', r)
    for more, word in (('device=AUTO,approximate=1,device=CPU', 'device is given twice'),
                       ('approximate=1,device=AUTO,approximate=0', 'approximate is given twice'),
                       ('memory=abc', '1 to 16777216 MiB'), ('memory=-5', '1 to'), ('memory=1e3', '1 to'),
                       ('memory=99999999999999999999', '1 to'), ('cancel=50abc', '1 to 60000 milliseconds'),
                       ('act=foo', 'there are f32, q8, bf16, int8'), ('device=', 'device= is empty'),
                       ('cache=', 'cache= is empty'), ('strict=yes', 'need 0 or 1'), ('cold=2', 'need 0 or 1'), ('approximate=yes', 'need 0 or 1'),
                       ('cold=1,strict=1', 'contradict')):
        r = refusal('run', TALE, '-p', 'x', '-n', '1', *GRAPH, '--graph', more)
        check(word in r, more, r)
    r = refusal('run', TALE, '-p', 'x', '-n', '1', *GRAPH, '--graph', 'memory=1')
    check('smallest bucket' in r, 'a budget that nothing fits', r)


def int8():
    """Static int8: declared, with a text to measure ranges on, and under a class of its own."""
    with tmp() as top:
        text = os.path.join(top, 'text')
        open(text, 'w').write('A fox ran.')
        for more, word in (('act=int8,calibrate=' + text, 'approximate=1'), ('act=int8,approximate=1', 'calibrate=FILE'),
                           ('calibrate=' + text, 'act=int8'),
                           ('act=int8,approximate=1,calibrate=' + text, 'at least 128 tokens'),
                           ('act=int8,approximate=1,calibrate=%s.none' % text, 'No such file')):
            r = refusal('run', TALE, '-p', 'x', '-n', '1', *GRAPH, '--graph', more)
            check(word in r, 'int8: ' + word, r)
        with open(text, 'w') as f:
            for i in range(40):
                f.write('A small animal number %d lived in wood %d and ate %d nuts every day. ' % (i, i * 3, i + 2))
        p = prefill(ask(20, *GRAPH, graph='strict=1,act=int8,approximate=1,calibrate=' + text) or
                    {'receipt': {'phases': [{}]}})
        check(p.get('class') == 'graph@CPU approximate rep=f16 act=int8 kv=f16,f16', 'int8: its class', p.get('class'))
        facts = (p.get('segments') or [{}])[0].get('facts', {})
        check(facts.get('productsBelowF32') == 56, 'int8: all products of the layers', facts)
        # It could not be benched: the check against ref, which it must fail, was taken for an error.
        r = run('bench', TALE, '-p', '20', '-n', '0', '-r', '1', *GRAPH, '--graph',
                'strict=1,act=int8,approximate=1,calibrate=' + text, '--json')
        d = json.loads(r.stdout) if r.returncode == 0 else {'rows': [{}], 'reference': {}}
        check('not in the arithmetic of ref' in err(r), 'int8: bench warns', err(r))
        check(d['reference'].get('reduced') == 'graph@CPU approximate act=int8' and d['reference'].get('sound') is True
              and d['reference'].get('ok') is False, 'int8: bench shows the check', d['reference'])
        check(d['rows'][0].get('engine') == 'graph' and d['rows'][0].get('ts', 0) > 0 and
              d['rows'][0].get('fmaPercent', 0) is None, 'int8: timed, with no share of the f32 rate', d['rows'][0])


def unread():
    """Settings where no engine reads them: refused when typed, left to other commands in the environment."""
    for more in ('act=int8,approximate=1,calibrate=/dev/null', 'act=q8', 'device=AUTO,approximate=1', 'memory=4000'):
        r = refusal('run', TALE, '-p', 'x', '-n', '1', '--graph', more)
        check('--graph has no effect here' in r and '--prefill-engine graph' in r, 'unread: ' + more, r)
        d = doc('run', TALE, '-p', 'x', '-n', '1', '--json', env={'HETERO_GRAPH': more})
        check(d is not None, 'of the environment: ' + more)


def never():
    """Settings under which it could run no prompt at all are told at opening, with what to do."""
    ids = ['run', TALE, '--ids', '5,6,7', '-n', '2', '-c', '512', *GRAPH]
    for more, word in ((['-ctk', 'q8_0'], '-ctk q8_0 -ctv f16'), (['-ctv', 'f16,0-1=q4_0'], '-ctv f16,0-1=q4_0')):
        r = refusal(*ids, '--kv-force', *more)
        check(word in r and 'use -ctk f16' in r, 'a packed cache: %s' % word, r)
    r = refusal(*ids, '--evict', '256')
    check('--evict' in r and '--prefill-engine graph' in r, 'eviction', r)


def plans():
    """explain shows the graph's own plan and the decode plan; bench times prompts there and answers on cpu."""
    d = doc('explain', TALE, '-p', '100', *GRAPH, '--json') or {'phases': [{}, {}]}
    p, t = d['phases']
    check((p.get('engine'), p.get('decision'), p.get('rowsMax')) == ('graph', 'forced', 128), 'explain: bucket', p)
    facts = p.get('facts', {})
    check(facts.get('inferencePrecision') == 'f32' and facts.get('nodesRun', 0) > 100 and facts.get('cancelMs', 0) > 0,
          'explain: precision, nodes and the time of a cancel', facts)
    check([b['rows'] for b in p.get('wholePrompt', {}).get('buckets', [])] == [32, 128, 512, 2048], 'explain: buckets', p)
    check(p.get('cover', {}).get('dispatchesPerStep') == 1 and 'plainCover' not in p, 'explain: one dispatch', p)
    check(t.get('engine') == 'cpu' and t.get('plainCover', {}).get('n', 0) > 1, 'explain: decode', t)
    d = doc('explain', TALE, '-p', '100', *GRAPH, '-c', '100', '--json') or {'phases': [{}]}
    p = d['phases'][0]
    check((p.get('engine'), p.get('reason'), p.get('insteadOf')) == ('cpu', 'BUCKET', 'graph'), 'explain: no bucket', p)
    d = doc('bench', TALE, '-p', '20,40', '-n', '2', '-r', '1', *GRAPH, '--json') or {'rows': [], 'reference': {}}
    check([(r['test'], r['engine']) for r in d['rows']] == [('pp20', 'graph'), ('pp40', 'graph'), ('tg2', 'cpu')],
          'bench: prompts on graph, answers on cpu', d['rows'])
    names = [c['name'] for c in d['reference'].get('checks', [])]
    check(d['reference'].get('ok') and d['reference'].get('reduced', 0) is None and d['reference'].get('sound'),
          'bench: nothing is reduced', d['reference'])
    check(d['reference'].get('ok') and names == ['prefill: graph against ref', 'decode: cpu against ref',
                                                 'whole prompt once more'], 'bench: checked against ref first', names)


def budget():
    """Memory for the bucket 512 alone, the peak of compiling it included: a prompt that would be mostly padding in
    it is the reference's, one that is not runs there."""
    d = doc('inspect', TALE, '--json')
    is_512 = [b for b in d['memory']['wholePromptBuckets'] if b['rows'] == 512] if d else []
    if not check(len(is_512) == 1 and is_512[0]['compileBytes'] > 0, 'inspect prices bucket and compiling', is_512):
        return
    mib = (is_512[0]['planBytes'] + is_512[0]['compileBytes'] >> 20) + 1
    p = prefill(ask(20, *GRAPH, graph='memory=%d' % mib) or {'receipt': {'phases': [{}]}})
    check((p.get('decision'), p.get('reason'), p.get('engine')) == ('reference', 'MEMORY', 'cpu'), 'mostly padding', p)
    p = prefill(ask(130, *GRAPH, graph='memory=%d' % mib) or {'receipt': {'phases': [{}]}})
    check(p.get('executed') == 'graph' and p['segments'][0]['rowsMax'] == 512, 'a prompt that fills it', p)
    r = refusal('run', TALE, '--ids', '5,6,7', '-n', '2', '-c', '512', *GRAPH, '--graph', 'strict=1,memory=%d' % mib)
    check('mostly padding' in r and 'memory=' in r, 'strict says why', r)


def cold_start():
    d = ask(20, *GRAPH, graph='cold=1')
    if d:
        p = prefill(d)
        check((p['decision'], p['reason']) == ('coldStart', 'COMPILING'), 'the first request', p['decision'])
        check(p['engine'] == 'cpu' and p['insteadOf'] == 'graph', 'cpu serves it', p['engine'])


def cache():
    with tmp() as folder:
        a = ask(20, *GRAPH, graph='cache=' + folder)
        b = ask(20, *GRAPH, graph='cache=' + folder)
        if a and b:
            fa, fb = (prefill(d)['segments'][0]['facts'] for d in (a, b))
            check(not fa['fromCache'] and fb['fromCache'], 'compiled once', (fa, fb))
            check(a['ids'] == b['ids'], 'equal answers')
            check(fa['profileSha256'] == fb['profileSha256'], 'equal nodes')
        plain = os.path.join(folder, 'plain')
        open(plain, 'w').close()
        made, deep = os.path.join(folder, 'made'), os.path.join(folder, 'a', 'b')
        for path, word in ((plain, 'is no folder'), (os.path.join(plain, 'x'), 'Not a directory'),
                           (deep, 'No such file')):
            r = refusal('run', TALE, '-p', 'x', '-n', '1', *GRAPH, '--graph', 'cache=' + path)
            check('cache=%s: %s' % (path, word) in r, 'cache: ' + word, r)
        check(ask(20, *GRAPH, graph='cache=' + made) is not None and len(os.listdir(made)) == 2, 'a folder is made')


def processes():
    """The same bits in another process and with another number of threads; the model's own weights and integers."""
    with tmp() as folder:
        models = [TALE]
        for precision in ('q8', 'q4'):
            models.append(os.path.join(folder, precision + '.htpack'))
            check(run('pack', TALE, '-o', models[-1], '--precision', precision).returncode == 0, 'pack ' + precision)
        for model in models:
            def logits(*more):
                ids = ','.join(str(5 + i * 7 % 900) for i in range(40))
                return run('logits', model, '--ids', ids, '--at', '39', '-c', '512', '--json', *more)
            a, b, c = (logits(*GRAPH, '--graph', 'strict=1', '-t', t) for t in '221')
            name = os.path.basename(model)
            check(a.returncode == 0 and len(a.stdout) > 1000, 'logits of a graph: ' + name, err(a))
            check(a.stdout == b.stdout, 'another process, the same bits: ' + name)
            check(a.stdout == c.stdout, 'another number of threads, the same bits: ' + name)
            check(a.stdout != logits().stdout, 'and it is not cpu that ran: ' + name)


def beside_a_prefix_cache():
    """The class rule: a graph goes on behind no cached position, and what it wrote is taken by no other engine."""
    with tmp() as folder:
        more = ['--prefix-cache', folder]
        d = [ask(100, *GRAPH, *more), ask(100, *GRAPH, *more), ask(100, *more), ask(100, *more), ask(100, *GRAPH, *more)]
        if None in d:
            return
        check(len({tuple(x['ids']) for x in d}) == 1, 'the same tokens', [x['ids'] for x in d])
        check([prefill(x)['executed'] for x in d] == ['graph', 'graph', 'cpu', 'cpu', 'graph'], 'who ran')
        kept = [(prefill(x).get('prefixCache') or {}).get('tokens', 0) for x in d]
        check(kept == [0, 0, 0, 96, 0], 'only cpu takes over what cpu wrote', kept)


def absent():
    env = {'HETERO_OPENVINO': 'none'}
    r = run('run', TALE, '-p', 'x', '-n', '1', *GRAPH, env=env)
    check(r.returncode != 0 and 'no OpenVINO' in err(r), 'absent: an error, never another engine', err(r))
    check(r.stdout == b'', 'absent: no text')
    eng = [e for e in json.loads(run('doctor', '--json', env=env).stdout)['engines'] if e['name'] == 'graph'][0]
    check(not eng['available'] and 'make graph-runtime' in eng['why'], 'absent: doctor says what to do', eng)


absent()
if available():
    edges()
    other_work()
    bare_figures()
    settings()
    int8()
    unread()
    never()
    plans()
    budget()
    cold_start()
    cache()
    processes()
    beside_a_prefix_cache()
else:
    skip('graph', 'OpenVINO is not on this machine: make graph-runtime')
end()
