#!/usr/bin/env python3
"""external.py LLAMA_SERVER OUT MODEL=CONTEXTS... [--text FILE] [-r 6] [--threads 2] [--port 18081]

The record of evidence/external: for each model llama-server is started on it (-t THREADS -np 1, a context that holds the
longest prompt), `hetero compare` asks both for 16 tokens behind every prompt, the bundle is verified by both verifiers,
and its report is written. Into OUT, which must not exist: a bundle and NAME.html of each model, trust.json with the public
key that signed them. The private key lives in a temporary folder and dies with it. HETERO names the program.

  bench/external.py llama-server record SmolLM2.gguf=32,512,2048 models/tale-9m-f16.gguf=32,512 --text wiki.test.raw
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HETERO = os.environ.get('HETERO', os.path.join(ROOT, 'hetero'))


def hetero(*args, state):
    return subprocess.run([HETERO, *map(str, args)], env=dict(os.environ, XDG_STATE_HOME=state), stdout=subprocess.PIPE,
                          check=True, text=True).stdout


def wait_for(child, url):
    while child.poll() is None:
        try:
            return urllib.request.urlopen(url + '/health', timeout=5).close()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise SystemExit('external.py: the server ended with status %d' % child.returncode)


def trust_root(out, state):
    """Bench, promoters and index: a trust root is whole or none, though nothing is promoted here."""
    keys = {}
    for name in ('bench', 'p1', 'p2', 'index'):
        keys[name] = os.path.join(state, name + '.pem')
        hetero('keys', 'new', keys[name], state=state)
    store = os.path.join(state, 'store')
    hetero('keys', 'init', '--store', store, '--grant', 'bench=' + keys['bench'], '--grant', 'promote=' + keys['p1'],
           '--grant', 'promote=' + keys['p2'], '--grant', 'index=' + keys['index'], state=state)
    shutil.copy(os.path.join(store, 'trust.json'), out)
    return keys['bench']


def compare(o, model, contexts, key, state):
    url, n = 'http://127.0.0.1:%d' % o.port, max(int(x) for x in contexts.split(','))
    name = os.path.splitext(os.path.basename(model))[0]
    server = subprocess.Popen([o.server, '-m', model, '-c', str(n + 256), '-t', str(o.threads), '-np', '1', '--port',
                               str(o.port), '--no-webui'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(server, url)
        t = time.monotonic()
        d = json.loads(hetero('compare', model, '--server', url, '--server-binary', shutil.which(o.server), '--contexts',
                              contexts, '-r', o.repetitions, '--candidate', 'threads=%d' % o.threads, '--spacing-ms', 200,
                              *(('--text', o.text) if o.text else ()), '--key', key, '-o', o.out, '--json', state=state))
        took = time.monotonic() - t
    finally:
        server.terminate()
        server.wait()
    trust = os.path.join(o.out, 'trust.json')
    hetero('verify', d['bundle'], '--trust', trust, state=state)
    subprocess.run([sys.executable, os.path.join(ROOT, 'tools', 'verify_bundle.py'), d['bundle'], '--trust', trust],
                   stdout=subprocess.DEVNULL, check=True)
    hetero('report', d['bundle'], '-o', os.path.join(o.out, name + '.html'), state=state)
    print('\n%s: %s, %s, %.0f s, %s' % (name, d['verdict'], d['class'], took, os.path.basename(d['bundle'])))
    for r in d['rows']:
        change = ('%+.1f %%, %+.1f to %+.1f' % (r['changePercent'], r['changeLow'], r['changeHigh'])
                  if r['changePercent'] != 'unknown' else 'none')
        print('| %s | %s | %.1f ms (%.1f) | %.1f ms (%.1f) | %s | %s of %s | null run %s | failed %d, %d |' % (
            r['context'], r['metric'], r['heteroMs'], r['heteroMaxMs'], r['foreignMs'], r['foreignMaxMs'], change, r['wins'],
            r['pairs'], r['nullRun'], r['failedHetero'], r['failedForeign']))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('server')
    p.add_argument('out')
    p.add_argument('models', nargs='+', metavar='MODEL=CONTEXTS')
    p.add_argument('--text')
    p.add_argument('-r', '--repetitions', type=int, default=6)
    p.add_argument('--threads', type=int, default=2)
    p.add_argument('--port', type=int, default=18081)
    o = p.parse_args()
    os.mkdir(o.out)
    with tempfile.TemporaryDirectory() as state:
        key = trust_root(os.path.join(o.out, 'trust.json'), state)
        for m in o.models:
            compare(o, *m.rsplit('=', 1), key, state)


main()
