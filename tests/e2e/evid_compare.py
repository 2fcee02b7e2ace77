"""hetero compare against a server that is good, and then wrong in every way servers are: each answer is
scored for what it is, none is left out, and a failed server never counts as our win."""
import http.server
import json
import os
import socket
import struct
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import TALE, check, end, err, run, tmp

HOLD = tmp()
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
            if self.path == '/completion':
                self.event({'content': 'x', 'tokens': [7 + i], 'stop': False})
            elif self.path == '/v1/completions':
                self.event({'choices': [{'text': 'x'}]})
            else:
                self.line({'response': 'x', 'done': False})
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
            # Ollama counts tokens of the text; a window of n ids is n of them here.
            self.line({'response': '', 'done': True, 'eval_count': out})
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


def compare(url, name, api='llama', *more):
    out = os.path.join(HOLD.name, name)
    r = run('compare', TALE, '--server', url, '--api', api, '--contexts', '8', '-r', '6', '--json', '-t', '1',
            '--text', TEXT, '-o', out, *more)
    if not check(r.returncode == 0, name, 'exit %d: %s' % (r.returncode, err(r)[-300:])):
        return None, []
    samples = [json.loads(x) for x in open(os.path.join(out, 'samples.jsonl'))]
    return json.loads(r.stdout), samples


def main():
    global mode
    url = serve()
    with open(TEXT, 'w') as f:
        f.write('Once upon a time there was a little fox who lived in a big forest. ' * 40)
    d, samples = compare(url, 'good')
    if d:
        row = d['rows'][0]
        check(d['class'] == 'TOKEN_IDENTICAL', 'class', d)
        check(row['context'] == 'C8' and row['pairs'] == 6, 'row', row)
        check(row['failedHetero'] == row['failedForeign'] == 0, 'nothing failed', row)
        check('changePercent' in row['complete'] and 'wins' in row['prefill'], 'figures', row)
        check(len(samples) == 12, 'every answer is kept', len(samples))
        order = [s['system'] for s in samples]
        check(order[:4] == ['hetero', 'foreign', 'foreign', 'hetero'], 'rotated order', order)
        check(all(len(a['prompt']) == 8 and a['cache_prompt'] is False for a in seen), 'requests', seen[0])
        check(len({tuple(a['prompt']) for a in seen}) == 6, 'prompts differ')
        out = os.path.join(HOLD.name, 'good')
        check(os.path.exists(os.path.join(out, 'raw', 'c8', 'r00-foreign', 'response.bin')), 'raw stream')
        design = json.load(open(os.path.join(out, 'design.json')))
        check(design['spacingNs'] == 0 and len(design['modelPackSha256']) == 64, 'design', design)
    for mode, status, why in (('eof', 'sutError', 'closed before'), ('reset', 'sutError', ''),
                              ('status', 'sutError', '503'), ('error', 'sutError', 'out of slots'),
                              ('nodone', 'sutError', 'end mark'), ('few', 'badOutput', '13 tokens'),
                              ('lies', 'badOutput', 'says 17'), ('prompt', 'badOutput', 'counts 9'),
                              ('more', 'badOutput', 'after the end'), ('extra', 'sutError', 'bytes after')):
        d, samples = compare(url, mode)
        if not d:
            continue
        row = d['rows'][0]
        foreign = [s for s in samples if s['system'] == 'foreign']
        check(row['failedForeign'] == 6, mode, row)
        check(str(row['complete']['changePercent']).startswith('unknown'), mode + ': no figure', row)
        check(len(foreign) == 6 and all(s['status'] == status for s in foreign), mode, foreign[0]['status'])
        check(all(why in s['why'] for s in foreign), mode, foreign[0]['why'])
    mode = 'good'
    d, _ = compare(url, 'openai', 'openai')
    check(d and d['class'] == 'TOKEN_IDENTICAL' and d['rows'][0]['failedForeign'] == 0, 'openai', d)
    d, _ = compare(url, 'ollama', 'ollama', '--server-model', 'tale')
    check(d and d['class'] == 'TEXT_IDENTICAL' and d['rows'][0]['failedForeign'] == 0, 'ollama', d)
    check(seen[-1]['raw'] is True and seen[-1]['options']['num_ctx'] == 24, 'ollama: raw and num_ctx', seen[-1])
    r = run('compare', TALE, '--server', 'http://127.0.0.1:1', '-o', os.path.join(HOLD.name, 'none'))
    check(r.returncode == 3 and 'start it first' in err(r), 'no server', err(r))
    r = run('compare', TALE, '--server', url, '-r', '5', '-o', os.path.join(HOLD.name, 'five'))
    check(r.returncode == 2 and 'need 6 to 40' in err(r), 'five pairs', err(r))


main()
end()
