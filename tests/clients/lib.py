"""What the client scripts share: a server of their own on a free port, checks, and what the e2e scripts have.

The scripts are run by tests/clients/run.sh in a virtual environment with the official client libraries.
HETERO names the program, SMOLLM2_GGUF a real model; without it the model of the tree is used.
"""
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'e2e', 'lib'))
from e2e import BIN, ENV, ROOT, TALE, check, end, skip  # noqa: E402,F401

SMOL = os.environ.get('SMOLLM2_GGUF', '')
MODEL = SMOL if os.path.exists(SMOL) else TALE
FULL = os.environ.get('HETERO_TEST_FULL') == '1'

WEATHER = {'type': 'function', 'function': {
    'name': 'get_weather', 'description': 'The weather of a city',
    'parameters': {'type': 'object', 'properties': {
        'city': {'type': 'string', 'maxLength': 20}, 'unit': {'enum': ['celsius', 'fahrenheit']}},
        'required': ['city', 'unit'], 'additionalProperties': False}}}
PERSON = {'type': 'object', 'properties': {
    'name': {'type': 'string', 'maxLength': 16}, 'age': {'type': 'integer', 'minimum': 0, 'maximum': 120},
    'tags': {'type': 'array', 'items': {'enum': ['red', 'green', 'blue']}, 'maxItems': 3}},
    'required': ['name', 'age', 'tags'], 'additionalProperties': False}


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class Server:
    """A running `hetero serve`; .url without a slash at the end."""

    def __init__(self, model=MODEL, *args):
        self.port = free_port()
        self.url = 'http://127.0.0.1:%d' % self.port
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [BIN, 'serve', model, '--port', str(self.port), *map(str, args)], cwd=ROOT, env=ENV,
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def wait(self, seconds=120):
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + '/health', timeout=5) as r:
                    if r.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.05)
        raise RuntimeError('the server did not start: %s' % self.said()[-800:])

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors='replace')

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as r:
            return r.read().decode()

    def post(self, path, body, headers=None):
        """(status, headers, parsed or raw body); never raises for a status."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        req = urllib.request.Request(self.url + path, data, {'Content-Type': 'application/json', **(headers or {})})
        try:
            with urllib.request.urlopen(req, timeout=120) as r:
                status, head, raw = r.status, r.headers, r.read()
        except urllib.error.HTTPError as e:
            status, head, raw = e.code, e.headers, e.read()
        try:
            return status, head, json.loads(raw)
        except ValueError:
            return status, head, raw

    def metric(self, name):
        for line in self.get('/metrics').splitlines():
            if line.startswith('hetero_' + name) and line[len('hetero_' + name)] in ' ':
                return float(line.split()[1])
        return None

    def cancelled(self):
        return sum(float(x.split()[1]) for x in self.get('/metrics').splitlines()
                   if x.startswith('hetero_requests_cancelled_total'))

    def idle(self, seconds=20):
        """Wait until nothing runs; false when that takes too long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            h = json.loads(self.get('/health'))
            if not h['running'] and not h['waiting']:
                return True
            time.sleep(0.05)
        return False

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


@contextlib.contextmanager
def server(model=MODEL, *args):
    s = Server(model, *args)
    try:
        yield s.wait()
    finally:
        rc = s.stop()
        check(rc == 0, 'the server ends with 0 after SIGTERM', 'got %s: %s' % (rc, s.said()[-300:]))


def raises(kind, what, call, text=''):
    """The call raises exactly this kind (or one below it), with the text in its message; returns it."""
    try:
        got = call()
    except kind as e:
        check(text.lower() in str(e).lower(), what, 'no "%s" in: %s' % (text, str(e)[:300]))
        return e
    except Exception as e:  # noqa: BLE001
        check(False, what, 'raised %s: %s' % (type(e).__name__, str(e)[:300]))
        return None
    check(False, what, 'raised nothing: %s' % str(got)[:200])
    return None
