"""hetero chat: as a script (lines in, answers out) and at a terminal (prompt, Ctrl-C, history, idle)."""
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import BIN, ENV, ROOT, check, end, err, run, tmp


def script():
    r = run('chat', '-n', 8, '--temp', 0, data=b'Tell me about a cat.\nAnd a dog?\n')
    answers = r.stdout.decode().rstrip('\n')
    check(r.returncode == 0 and answers and '>' not in answers, 'answers and nothing else', (err(r), answers))
    r = run('chat', '-n', 4, '--temp', 0, '--json', data=b'Tell me about a cat.\n/regen\nAnd a dog?\n')
    docs = [json.loads(x) for x in r.stdout.decode().splitlines()]
    check(len(docs) == 3 and all(d['finish'] and d['receipt'] for d in docs), 'a document for each answer', err(r))
    check(docs[0]['text'] == docs[1]['text'], 'greedy regen says the same')
    kept = docs[2]['receipt']['phases'][0]['cacheHitTokens']
    check(kept > 10, 'the second turn keeps the first in the cache', kept)
    r = run('chat', '-n', 4, data=b'/sytem x\n')
    check(r.returncode == 2 and 'did you mean /system?' in err(r), 'a wrong command', err(r))
    r = run('chat', '-n', 4, '-c', 16, data=b'word ' * 40 + b'\n')
    check(r.returncode == 5 and '/clear' in err(r), 'a conversation too long for the context', err(r))


def files():
    with tmp() as t:
        path = os.path.join(t, 'talk.json')
        lines = 'Hi.\n/fork\nMore?\n/back\n/system Be kind.\n/save %s\n' % path
        r = run('chat', '-n', 4, '--temp', 0, data=lines.encode())
        talk = json.load(open(path))
        check([m['role'] for m in talk] == ['system', 'user', 'assistant'], 'save after back', (talk, err(r)))
        check(talk[0]['content'] == 'Be kind.', 'system message')
        r = run('chat', '-n', 4, '--temp', 0, data=('/load %s\n/regen\n' % path).encode())
        check(r.returncode == 0 and r.stdout, 'load and regen', err(r))
        r = run('run', '--messages', path, '-n', 2)
        check(r.returncode == 0, 'run reads a saved conversation', err(r))
        plain = os.path.join(t, 'plain.json')
        open(plain, 'w').write('[{"role":"user","content":"Hi."},{"role":"assistant","content":"Yes."}]')
        run('chat', data=('/system Be kind.\n/load %s\n/save %s\n' % (plain, path)).encode())
        check(json.load(open(path)) == json.load(open(plain)), 'a file without a system message leaves none', open(path).read())
        r = run('chat', data=b'/save /dev/full\n')
        check(r.returncode == 2 and 'no regular file' in err(r), 'save replaces files only', err(r))
        r = run('chat', data=b'/load /nonexistent\n')
        check(r.returncode == 3, 'load of a missing file', r.returncode)
        quoted = '"""one\ntwo"""\nthree\\\nfour\n/save %s\n' % path
        run('chat', '-n', 2, '--temp', 0, data=quoted.encode())
        users = [m['content'] for m in json.load(open(path)) if m['role'] == 'user']
        check(users == ['one\ntwo', 'three\nfour'], 'messages of several lines', users)


class Terminal:
    """hetero chat on a pseudo-terminal."""

    def __init__(self, home, *args):
        self.master, slave = pty.openpty()
        env = {**ENV, 'HOME': home, 'XDG_STATE_HOME': home, 'TERM': 'dumb'}
        self.p = subprocess.Popen([BIN, 'chat', *args], stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=env,
                                  start_new_session=True, preexec_fn=lambda: __import__('fcntl').ioctl(0, 0x540E, 0))
        os.close(slave)
        self.text = ''

    def until(self, what, seconds=60):
        """Read until the text seen since the last call holds `what`."""
        end_at = time.monotonic() + seconds
        while what not in self.text and time.monotonic() < end_at:
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode(errors='replace')
                except OSError:
                    break
        found = what in self.text
        seen, self.text = self.text, ''
        return found, seen

    def type(self, text):
        os.write(self.master, text.encode())

    def cpu_ticks(self):
        f = open('/proc/%d/stat' % self.p.pid).read().rsplit(')', 1)[1].split()
        return int(f[11]) + int(f[12])

    def close(self):
        self.p.kill()
        self.p.wait()
        os.close(self.master)


def terminal():
    with tmp() as home:
        t = Terminal(home, '-s', '1')
        try:
            check(t.until('> ')[0], 'a prompt')
            before = t.cpu_ticks()
            time.sleep(2)
            check(t.cpu_ticks() - before <= 1, 'waiting for a line uses no processor time', t.cpu_ticks() - before)
            t.type('half a line\x03')
            check(t.until('> ')[0] and t.p.poll() is None, 'Ctrl-C at the prompt drops the line, not the program')
            t.type('Tell me a very long story about a fox.\n')
            time.sleep(0.3)
            t.type('\x03')
            found, seen = t.until('> ', 30)
            check(t.p.poll() is None and found, 'Ctrl-C while answering returns to the prompt', seen[-200:])
            t.type('/receipt\n')
            check(t.until('phases')[0], 'the receipt of the stopped answer')
            t.type('/bogus\n')
            check(t.until('unknown command')[0], 'an error does not end the conversation')
            with tmp() as d:
                bad, plain, path = (os.path.join(d, n) for n in ('bad.json', 'plain.json', 'path.json'))
                open(plain, 'w').write('[{"role":"user","content":"Hi."},{"role":"assistant","content":"Yes."}]')
                open(bad, 'w').write('[{"role":"user","content":"New."},{"role":"judge","content":"x"}]')
                t.type('/load %s\n' % plain)
                t.until('[2 messages]')
                t.type('/load %s\n' % bad)
                check(t.until('has role "judge"')[0], 'a wrong role is told')
                t.type('/save %s\n/help\n' % path)
                t.until('leave (also')
                check(json.load(open(path)) == json.load(open(plain)), 'a malformed file changes nothing')
                long = [{'role': 'user', 'content': 'word ' * 3000}]
                open(plain, 'w').write(json.dumps(long))
                t.type('/load %s\n/regen\n' % plain)
                check(t.until('the conversation has')[0], 'too long to be answered')
                t.type('/save %s\n/help\n' % path)
                t.until('leave (also')
                check(json.load(open(path)) == long, 'a failed /regen keeps the message')
            t.type('/quit\n')
            check(t.p.wait(30) == 0, '/quit')
        finally:
            t.close()
        path = os.path.join(home, 'hetero', 'history')
        check(os.path.exists(path) and 'fox' in open(path).read().replace('\\040', ' '), 'the history is kept')
        check(os.path.exists(path) and os.stat(path).st_mode & 0o077 == 0, 'and private')


def interrupt():
    p = subprocess.Popen([BIN, 'run', '-p', 'Once', '-n', '100000', '--ignore-eos', '-c', '100000'], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env=ENV, cwd=ROOT)
    first = b''
    while len(first) < 200:
        first += os.read(p.stdout.fileno(), 64)
    p.send_signal(signal.SIGINT)
    out, e = p.communicate(timeout=60)
    check(p.returncode == 130, 'a cancelled run exits with 130', (p.returncode, e))
    check(len(first) >= 200 and b'cancelled' in e and b'decode' in e, 'it keeps what was written and still gives a receipt', e)


for part in (script, files, terminal, interrupt):
    part()
end()
