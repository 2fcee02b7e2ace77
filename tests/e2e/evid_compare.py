"""hetero compare against a server that is good, and then wrong in every way servers are: each answer is
scored for what it is, none is left out, and a failed server never counts as our win. Every bundle is verified by
hetero verify and by tools/verify_bundle.py, whole and damaged."""
import http.server
import json
import os
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from bundle import Key, V, trust_root
from e2e import TALE, check, end, err, run, tmp

HOLD = tmp()
BENCH = Key(1)
KEY = os.path.join(HOLD.name, 'bench.pem')
TRUST = os.path.join(HOLD.name, 'trust.json')
TEXT = os.path.join(HOLD.name, 'text.txt')
mode = 'good'
seen = []


class Fake(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args):
        pass

    def do_GET(self):
        body = b'{"model_path":"fake"}'
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.send_header('Connection', 'close')
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def event(self, data):
        text = b'data: ' + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b'\n\n'
        self.wfile.write(b'%x\r\n%s\r\n' % (len(text), text))
        self.wfile.flush()

    def line(self, data):
        text = json.dumps(data).encode() + b'\n'
        self.wfile.write(b'%x\r\n%s\r\n' % (len(text), text))

    def stream(self, ask):
        n = len(ask['prompt'])
        count = ask.get('n_predict') or ask.get('max_tokens') or ask['options']['num_predict']
        if mode == 'few':
            count -= 3
        for i in range(count):
            if mode == 'eof' and i == 5:
                return
            if mode == 'reset' and i == 5:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
                self.connection.close()
                return
            if mode == 'error' and i == 5:
                self.event({'error': {'message': 'out of slots'}})
                break
            if mode == 'stall' and i == 5:
                time.sleep(0.4)
            if self.path == '/completion':
                self.event({'content': 'x', 'tokens': [7 + i], 'stop': False})
            elif self.path == '/v1/completions':
                self.event({'choices': [{'text': 'x'}]})
            else:
                self.line({'model': 'tale', 'created_at': '2026-11-29T12:00:00Z', 'response': 'x', 'done': False})
        said = n + (mode == 'prompt')
        out = count + (mode == 'lies')
        if mode == 'nodone':
            pass
        elif self.path == '/completion':
            self.event({'content': '', 'tokens': [], 'stop': True,
                        'timings': {'prompt_n': said, 'predicted_n': out}})
        elif self.path == '/v1/completions':
            self.event({'choices': [], 'usage': {'prompt_tokens': said, 'completion_tokens': out}})
            self.event(b'[DONE]')
        else:
            # As in the API's documentation; the text was 8 tokens, and the model has a BOS.
            self.line({'model': 'tale', 'created_at': '2026-11-29T12:00:00Z', 'response': '', 'done': True,
                       'done_reason': 'length', 'context': [1, 2], 'total_duration': 5, 'load_duration': 1,
                       'prompt_eval_count': 5 if mode == 'truncates' else 9, 'prompt_eval_duration': 2,
                       'eval_count': out, 'eval_duration': 2})
        if mode == 'more':
            self.event({'content': 'y', 'tokens': [1], 'stop': False})
        self.wfile.write(b'0\r\n\r\n')
        if mode == 'extra':
            self.wfile.write(b'what else?')

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        seen.append(ask)
        self.close_connection = True
        if mode == 'status':
            body = b'{"error":"busy"}'
            self.send_response(503)
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header('Content-Type', 'text/event-stream')
        self.send_header('Transfer-Encoding', 'chunked')
        self.send_header('Connection', 'close')
        self.end_headers()
        try:
            self.stream(ask)
        except OSError:
            pass


def serve():
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Fake)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return 'http://127.0.0.1:%d' % server.server_address[1]


def verified(top, want, what):
    """Both verifiers on one folder."""
    r = run('verify', top, '--trust', TRUST, '--json')
    try:
        with open(TRUST, 'rb') as f:
            mine = V.verify(top, V.read_trust(f.read()), int(time.time()))
    except (V.Refused, OSError) as e:
        mine = {'ok': False, 'why': str(e)}
    check((r.returncode == 0) == mine['ok'] == want, what, '%s, Python %s' % (r.stdout[-300:], mine))
    if want and mine['ok']:
        d = json.loads(r.stdout)
        check((d['bundleId'], d['class']) == (mine['bundleId'], mine['class']), what + ': same', '%s %s' % (d, mine))


def compare(url, name, api='llama', *more):
    """(table, samples by arm, folder)."""
    out = os.path.join(HOLD.name, name)
    r = run('compare', TALE, '--server', url, '--api', api, '--contexts', '8', '-r', '6', '--json', '-t', '1',
            '--text', TEXT, '-o', out, '--key', KEY, *more)
    if not check(r.returncode == 0, name, 'exit %d: %s' % (r.returncode, err(r)[-300:])):
        return None, {}, out
    d = json.loads(r.stdout)
    samples = [json.loads(x) for x in open(os.path.join(d['bundle'], 'samples.jsonl'))]
    return d, {arm: [s for s in samples if s['arm'] == arm] for arm in 'HFMN'}, d['bundle']


def damage(top):
    """One bit, or one byte more, in every kind of file: both verifiers refuse."""
    for name in ('design.json', 'samples.jsonl', 'journal.jsonl', 'prompts.jsonl', 'server/foreign.json',
                 'analysis/compare.json', 'policy.json', 'statement.dsse.json', 'raw/p006/s1-H/response.bin',
                 'raw/p006/s2-F/chunks.jsonl', 'raw/p000/s1-N/request.bin', 'machine/after.json'):
        full = os.path.join(top, name)
        data = open(full, 'rb').read()
        for bad in (data[:len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1:], data + b' '):
            open(full, 'wb').write(bad)
            verified(top, False, '%s damaged' % name)
        open(full, 'wb').write(data)
    verified(top, True, 'whole again')


def good(url):
    d, arms, top = compare(url, 'good')
    if not d:
        return
    rows = {r['metric']: r for r in d['rows']}
    check(d['class'] == 'TOKEN_IDENTICAL', 'class', d)
    check(set(rows) == {'prefill', 'decode per token', 'complete'}, 'rows', rows)
    row = rows['complete']
    check(row['context'] == 'C8' and row['pairs'] == 6, 'row', row)
    check(row['failedHetero'] == row['failedForeign'] == 0, 'nothing failed', row)
    check(isinstance(row['changePercent'], float) and 0 <= row['wins'] <= 6, 'figures', row)
    check(all(len(arms[a]) == 6 for a in 'HFMN'), 'every answer is kept, the null run too', {a: len(arms[a]) for a in arms})
    journal = [json.loads(x) for x in open(os.path.join(top, 'journal.jsonl'))]
    order = [e['arm'] for e in journal if e['event'] == 'start']
    check(order[:4] == ['N', 'M', 'M', 'N'] and order[12:16] == ['H', 'F', 'F', 'H'], 'null run first, rotated order', order)
    asked = [a for a in seen if len(a['prompt']) == 8]
    check(len(asked) == 6 and all(a['cache_prompt'] is False for a in asked), 'requests', seen[:1])
    check(len({tuple(a['prompt']) for a in asked}) == 6, 'prompts differ')
    design = json.load(open(os.path.join(top, 'design.json')))
    check(design['spacingNs'] == 0 and design['costMapSha256'] == {'known': False, 'reason': 'NO_EVIDENCE'}, 'design', design)
    foreign = json.load(open(os.path.join(top, 'server', 'foreign.json')))
    check(len(foreign['binarySha256']) == 64 and any('evid_compare' in x for x in foreign['argv']), 'the server is named',
          foreign)
    check(not any(x.startswith('/') for x in foreign['argv']), 'no folder of this machine', foreign['argv'])
    check(all(isinstance(s['peakBytes'], int) for a in 'HF' for s in arms[a]), 'peak memory', arms['H'][:1])
    verified(top, True, 'the bundle')
    damage(top)
    r = run('promote', top, '--store', os.path.join(HOLD.name, 'nostore'), '--key', KEY)
    check(r.returncode != 0, 'a comparison cannot be promoted', err(r))


def wrong(url):
    global mode
    for mode, status, why in (('eof', 'sutError', 'closed before'), ('reset', 'sutError', ''),
                              ('status', 'sutError', '503'), ('error', 'sutError', 'out of slots'),
                              ('nodone', 'sutError', 'end mark'), ('few', 'badOutput', '13 tokens'),
                              ('lies', 'badOutput', 'says 17'), ('prompt', 'badOutput', 'counts 9'),
                              ('more', 'badOutput', 'after the end'), ('extra', 'sutError', 'bytes after')):
        d, arms, top = compare(url, mode)
        if not d:
            continue
        row = d['rows'][0]
        check(row['failedForeign'] == 6 and row['failedHetero'] == 0, mode, row)
        check(all(r['changePercent'] == 'unknown' for r in d['rows']), mode + ': no figure', d['rows'])
        check(len(arms['F']) == 6 and all(s['status'] == status for s in arms['F']), mode, arms['F'][0]['status'])
        check(all(why in s['why'] for s in arms['F']), mode, arms['F'][0]['why'])
        verified(top, True, mode + ' verifies')
    mode = 'stall'
    d, arms, top = compare(url, mode)
    if d:
        check(all(s['status'] == 'ok' and s['tpotNs'] >= 20e6 for s in arms['F']), 'a stall is counted, not cut',
              [s['tpotNs'] for s in arms['F']])
        rows = {r['metric']: r for r in d['rows']}
        check(rows['decode per token']['foreignMs'] >= 20, 'a stall stands in the table', rows)
    mode = 'good'


def main():
    global mode
    url = serve()
    with open(TEXT, 'w') as f:
        f.write('Once upon a time there was a little fox who lived in a big forest. ' * 60)
    BENCH.save(KEY)
    with open(TRUST, 'wb') as f:
        f.write(trust_root({'bench': [BENCH], 'promote': [Key(2), Key(3)], 'index': [Key(4)]}))
    good(url)
    wrong(url)
    d, _, top = compare(url, 'openai', 'openai')
    check(d and d['class'] == 'TOKEN_IDENTICAL' and d['rows'][0]['failedForeign'] == 0, 'openai', d)
    verified(top, True, 'openai verifies')
    d, _, top = compare(url, 'ollama', 'ollama', '--server-model', 'tale')
    check(d and d['class'] == 'TEXT_IDENTICAL' and d['rows'][0]['failedForeign'] == 0, 'ollama', d)
    check(seen[-1]['raw'] is True and seen[-1]['options']['num_ctx'] == 48, 'ollama: raw and num_ctx', seen[-1])
    verified(top, True, 'ollama verifies')
    for mode, status, why in (('truncates', 'badOutput', 'counts 5'), ('few', 'badOutput', '13 tokens'),
                              ('eof', 'sutError', 'closed before'), ('lies', 'badOutput', 'says 17')):
        d, arms, top = compare(url, 'ollama-' + mode, 'ollama', '--server-model', 'tale')
        check(d and d['rows'][0]['failedForeign'] == 6, 'ollama: ' + mode, d)
        check(all(s['status'] == status and why in s['why'] for s in arms.get('F', [])), 'ollama: ' + mode, arms.get('F', [])[:1])
        verified(top, True, 'ollama: %s verifies' % mode)
    mode = 'good'
    r = run('compare', TALE, '--server', 'http://127.0.0.1:1', '-o', os.path.join(HOLD.name, 'none'))
    check(r.returncode == 3 and 'start it first' in err(r), 'no server', err(r))
    r = run('compare', TALE, '--server', url, '-r', '5', '-o', os.path.join(HOLD.name, 'five'))
    check(r.returncode == 2 and 'need 6 to 40' in err(r), 'five pairs', err(r))


main()
end()
