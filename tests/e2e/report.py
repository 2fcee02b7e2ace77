"""hetero report: pages are well-formed, whole, self-contained, the same each time, and escape everything."""
import html.parser
import json
import os
import re
import sys
import xml.dom.minidom

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import TALE, check, doc, end, err, run, tmp

EVIL = '"><script>alert(1)</script>&\u202e\'<b>'
SHA = '5' * 64


def canonical(x):
    return json.dumps(x, sort_keys=True, separators=(',', ':'), ensure_ascii=False).encode()


class Page(html.parser.HTMLParser):
    """Balanced tags as a browser counts them, text, and what a page may not have."""
    VOID = {'meta', 'br', 'img', 'link', 'input', 'hr'}

    def __init__(self, text):
        super().__init__()
        self.open, self.bad, self.words, self.tags = [], [], [], []
        self.feed(text)
        self.bad += ['<%s> is not closed' % t for t in self.open]
        self.text = ' '.join(' '.join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.bad += ['%s %s' % (tag, k) for k, _ in attrs if k.startswith('on') or k in ('src', 'href')]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.bad.append('</%s> closes nothing' % tag)

    def handle_data(self, data):
        if not self.open or self.open[-1] != 'style':
            self.words.append(data)


def scope(backend, phase):
    return {'backend': backend, 'batch': {'max': 1, 'min': 1}, 'bucket': {'maxNew': 16, 'maxTokens': 512, 'minTokens': 129},
            'ctxMax': 2048, 'machineClassSha256': SHA, 'os': 'linux-6', 'phase': phase, 'sampler': 'greedy', 'spec': 'off',
            'precision': {'acc': 'f32', 'act': 'q8', 'kv': 'f16', 'weights': 'q4_k'}, 'schema': 'hetero/scope/1'}


def stat(hl):
    return {'hiPpm': hl + 9000, 'hlPpm': hl, 'loPpm': hl - 9000, 'losses': 1, 'n': 8, 'ties': 0, 'wins': 7}


def sample(block, slot, arm, attempt=1, status='ok', **more):
    t = 100000000 + 1000000 * ((7 * block + 3 * slot) % 5) - (9000000 if arm == 'B' else 0)
    ok = status == 'ok'
    return {'arm': arm, 'attempt': attempt, 'block': block, 'slot': slot, 'bucket': 'p512', 'status': status,
            'guards': {'psiPpm': {'known': False, 'reason': 'NO_PSI'}, 'acOnline': True}, 'nOut': 16, 'nPrompt': 300,
            'pairId': 2 * block + (slot - 1) // 2, 'schema': 'hetero/sample/1', 'voidReason': None if ok else EVIL,
            'ttftNs': t if ok else {'known': False, 'reason': 'FAILED'}, 'tpotNs': 5000000, 'e2eNs': t + 80000000, **more}


def bundle(t):
    cell = {'id': 'p512', 'metric': 'ttftNs', 'refScope': scope('cpu', 'prefill'), 'scope': scope('cpu;isa=' + EVIL, 'prefill')}
    gates = [{'gate': 'perf', 'reason': 'OK', 'result': 'PASS'}, {'gate': 'tail', 'reason': 'WORSE', 'result': 'FAIL'}]
    lines = [sample(b, s + 1, a) for b in range(4) for s, a in enumerate('ABBA' if b % 2 else 'BAAB')]
    lines[4:4] = [sample(1, 1, 'A', status='voidGuard')]
    for x in lines[5:9]:
        x['attempt'] = 2
    lines[-1].update(sample(3, 4, 'A', status='sutError'))
    docs = {
        'verdict.json': {'bundleId': SHA, 'cells': [{'class': 'FAIL_TAIL', 'gates': gates, 'id': 'p512', 'scopeSha256': SHA}],
                         'class': 'FAIL_TAIL', 'hardwareEvidence': True, 'policySha256': SHA, 'productionEligible': False,
                         'schema': 'hetero/verdict/1'},
        'costmap.json': {'edges': [{'fixedNs': 1000, 'from': 'cpu', 'kind': 'kvHandoff', 'nsPerToken': 25, 'to': EVIL}],
                         'entries': [], 'negatives': [{'ratioPpm': {'hi': 1, 'hl': 1095000, 'lo': 1}, 'scopeSha256': SHA,
                                                       'verdict': 'FAIL_TAIL'}], 'schema': 'hetero/costmap/1'},
        'analysis/pairs.json': {'cells': [{'id': 'p512', 'metric': 'ttftNs',
                                           'nullPairs': [{'ratioPpm': 1000000 + 900 * (i % 3 - 1)} for i in range(8)],
                                           'pairs': [{'ratioPpm': 1090000 + 2000 * i} for i in range(8)]}],
                                'schema': 'hetero/pairs/1'},
        'analysis/stats.json': {'cells': [{'id': 'p512', 'main': stat(1095000), 'nullRun': stat(1000000)}],
                                'schema': 'hetero/stats/1'},
        'analysis/tails.json': {'cells': [{'id': 'p512', 'misses': 4, 'p95UcbNs': {'known': False, 'reason': 'TOO_FEW'},
                                           'requests': 16, 'result': 'FAIL', 'sloNs': 125000000, 'worstPair': 2}],
                                'schema': 'hetero/tails/1'},
        'analysis/quality.json': {'counts': {'exactPrompts': 47, 'kldP999Nano': 9, 'kldSumNano': 4000000000, 'lenCand': 1,
                                             'lenRef': 1, 'positions': 2000, 'prompts': 50, 'tasks': 400, 'tasksLost': 7,
                                             'tasksWon': 5, 'tokens': 800, 'tokensAgree': 790, 'top1': 1990},
                                  'schema': 'hetero/quality/1'},
        'design.json': {'blocks': 'ABBA_BAAB', 'cells': [cell], 'nullPairs': 8, 'pairs': 8, 'requestsPerSlot': 1,
                        'schema': 'hetero/design/1', 'spacingNs': 250000000, 'startedUtc': '2026-11-29T12:00:00Z',
                        'warmupRequests': 1},
        'machine/before.json': {'live': {}, 'record': {'cpuName': {'v': 'CPU ' + EVIL}, 'kernel': {'v': '6.1.0'}},
                                'reject': {'isa': {'v': 'avx2'}, 'gpus': {'absent': True}}, 'schema': 'hetero/machine/1',
                                'stale': {'microcode': {'unreadable': 'EACCES'}}},
        'subject/modelpack.json': {'files': [{'bytes': 17825792, 'path': 'tale-9m.htpack', 'sha256': SHA}],
                                   'schema': 'hetero/modelpack/1', 'sha256': SHA},
        'build/source.json': {'commit': 'abc', 'dirty': True, 'schema': 'hetero/source/1', 'tree': 'def'}}
    d = os.path.join(t, 'bundle')
    for path, x in docs.items():
        os.makedirs(os.path.dirname(os.path.join(d, path)), exist_ok=True)
        open(os.path.join(d, path), 'wb').write(canonical(x))
    open(os.path.join(d, 'samples.jsonl'), 'wb').write(b''.join(canonical(x) + b'\n' for x in lines))
    return d


def report(source, t):
    out = os.path.join(t, 'page.html')
    r = run('report', source, '-o', out)
    if not check(r.returncode == 0, 'report %s' % source, err(r)):
        return None
    raw = open(out, 'rb').read()
    check(run('report', source, '-o', out).returncode == 0 and open(out, 'rb').read() == raw, 'the same bytes again')
    text = raw.decode()
    p = Page(text)
    check(not p.bad, 'tags, handlers, links of %s' % source, p.bad[:5])
    check('script' not in p.tags and 'link' not in p.tags and 'img' not in p.tags, 'nothing is run or loaded')
    try:
        svg = xml.dom.minidom.parseString(raw).getElementsByTagName('svg')
        check(svg, 'there are drawings')
        check(all(s.getElementsByTagName('title') for s in svg), 'each drawing has a title')
    except Exception as e:
        check(False, 'well-formed XML', e)
    check(re.findall(r'(?:[a-z]+:)?//[^"\']+', text) == ['http://www.w3.org/1999/xhtml'], 'no address but the name space')
    check('default-src \'none\'' in text and 'prefers-color-scheme:dark' in text and 'width=device-width' in text,
          'policy, dark, phone')
    check('nan' not in text.lower().replace('finance', '') and 'inf"' not in text, 'no number that is none')
    check('\u202e' not in text, 'no character that turns the text around')
    return p


def of_bundle(t):
    d = bundle(t)
    p = report(d, t)
    for fact in ('FAIL_TAIL', 'p512: gate tail: FAIL (WORSE)', 'Hardware evidence: yes', 'Eligible for production: no',
                 'cpuName CPU "><script>alert(1)</script>&\ufffd\'<b>', 'microcode', 'unreadable (EACCES)',
                 'tale-9m.htpack (17.0 MiB)', 'weights q4_k, activations q8, accumulation f32, KV f16',
                 'a fresh process for each slot', 'spacing 250.00 ms', '8 pairs in blocks of ABBA_BAAB',
                 'approximate: 47 of 50 prompts', '790 of 800 tokens agree', 'mean divergence 0.002000 nat',
                 '7 right by the reference only', 'ratio 1.0950, 95 % interval 1.0860 to 1.1040', '7 won, 0 tied, 1 lost',
                 '4 of 16 requests above the limit of 125.00 ms', 'uncommitted changes', 'kvHandoff', '1.00 \u00b5s',
                 '17 samples, every attempt kept: 1 void or run again, 1 failed', 'to the first token (prefill)',
                 'hetero verify does'):
        check(fact in p.text, 'the page says "%s"' % fact)
    check(p.text.index('gate tail: FAIL') < p.text.index('Comparison boundary'), 'failed gates come first')
    text = open(os.path.join(t, 'page.html'), encoding='utf-8').read()
    check(text.count('<circle') == 8 + 8 + 15, 'a dot for each pair and counted sample', text.count('<circle'))
    for path in ('verdict.json', 'samples.jsonl', 'machine/before.json'):
        full = os.path.join(d, path)
        kept = open(full, 'rb').read()
        os.remove(full)
        r = run('report', d, '-o', os.path.join(t, 'no.html'))
        check(r.returncode == 3 and os.path.basename(path) in err(r), 'without %s' % path, err(r))
        os.symlink('/etc/hostname', full)
        check(run('report', d, '-o', os.path.join(t, 'no.html')).returncode == 3, '%s is a link' % path)
        os.remove(full)
        open(full, 'wb').write(kept)
    check(not os.path.exists(os.path.join(t, 'no.html')), 'nothing is written')


def of_files(t):
    made = os.path.join(t, 'sim.json')
    run('sim', 'drafter', '-o', made)
    p = report(made, t)
    check(p and 'SIMULATION. Nothing on this page was measured.' in p.text and 'assumed' in p.text, 'a banner and the caveat')
    forged = os.path.join(t, 'forged.json')
    open(forged, 'wb').write(open(made, 'rb').read().replace(b'"hardwareEvidence":false', b'"hardwareEvidence":true'))
    r = run('report', forged, '-o', os.path.join(t, 'no.html'))
    check(r.returncode == 3 and 'UNKNOWN_TYPE' in err(r), 'a simulation that claims to be evidence', err(r))
    record = os.path.join(t, 'record.json')
    cell = {'type': 'q8_0', 'cell': 'pp512', 'samples': {'hetero q8': [310.5, 300.25, 304], 'llama.cpp': [200, 201.5, 199]},
            'facts': {}, 'failed': {'ik_llama.cpp -rtr 1': EVIL}}
    open(record, 'w').write(json.dumps({'schema': 'hetero/bench/2', 'utc': '2026-11-29T12:00:00Z', 'threads': 2,
                                        'machine': {'model': 'CPU ' + EVIL, 'cpus': 2, 'kernel': '6.1', 'isa': ['avx2']},
                                        'loadBefore': [0.5, 1, 2], 'cells': [cell]}))
    p = report(record, t)
    for fact in ('q8_0, pp512', '304.00', '1.52', '3 a system and cell', 'no gate was applied', 'CPU "><script>'):
        check(p and fact in p.text, 'the record says "%s"' % fact)
    bench = os.path.join(t, 'bench.json')
    d = doc('bench', TALE, '-p', 8, '-n', 4, '-r', 2, '--json')
    json.dump(d, open(bench, 'w'))
    p = report(bench, t)
    for fact in ('pp8', 'tg4', os.path.basename(TALE), d['engine']['model']['shapeSha256'], 'arithmetic f32'):
        check(p and fact in p.text, 'the benchmark says "%s"' % fact)
    for source, data, text in (('x.json', b'{"schema":"hetero/verdict/1"}', 'UNKNOWN_TYPE'), ('y.json', b'{', 'line 1')):
        path = os.path.join(t, source)
        open(path, 'wb').write(data)
        r = run('report', path, '-o', os.path.join(t, 'no.html'))
        check(r.returncode == 3 and text in err(r), 'refused: %s' % data, err(r))
    check(run('report', made).returncode == 2, 'without -o')


with tmp() as folder:
    of_bundle(folder)
    of_files(folder)
end()
