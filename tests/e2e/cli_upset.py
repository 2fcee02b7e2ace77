"""What happens around a run: the model is cut short under it, Ctrl-C comes while standard input is read,
standard descriptors are closed, both outputs are one file."""
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import BIN, ENV, ROOT, TALE, check, end, err, run, tmp


def start(*args, **kw):
    return subprocess.Popen([BIN, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, cwd=ROOT, **kw)


def cut_short():
    """No result of zeros is a good result: exit status 3 and a reason, and no document."""
    with tmp() as t:
        model = os.path.join(t, 'm.gguf')
        for keep in (4096, os.path.getsize(TALE) - 4096):
            shutil.copy(TALE, model)
            p = start('run', model, '-p', 'Once', '-n', 100000, '--ignore-eos', '-c', 100000)
            first = os.read(p.stdout.fileno(), 64)
            os.truncate(model, keep)
            time.sleep(0.2)
            p.send_signal(signal.SIGINT)  # the answer would go on for long: even a stopped one must not be good
            e = p.communicate(timeout=120)[1]
            check(first and p.returncode == 3 and b'm.gguf' in e and b'bytes when it was opened' in e,
                  'a model cut to %d bytes' % keep, (p.returncode, e))


def begun(p):
    """Wait until the program sleeps in a read of standard input."""
    for _ in range(600):
        at = open('/proc/%d/wchan' % p.pid).read() if os.path.exists('/proc/%d/wchan' % p.pid) else ''
        text = open('/proc/%d/syscall' % p.pid).read() if os.path.exists('/proc/%d/syscall' % p.pid) else ''
        if 'pipe' in at or text.startswith('0 0x0 '):
            return True
        time.sleep(0.1)
    return False


def interrupted_reading():
    for args in (('run', '-f', '-'), ('run', '--messages', '-')):
        for sig in (signal.SIGINT, signal.SIGTERM):
            p = start(*args, stdin=subprocess.PIPE)
            p.stdin.write(b'half a ')
            p.stdin.flush()
            waiting = begun(p)
            p.send_signal(sig)
            try:
                p.wait(timeout=30)
            except subprocess.TimeoutExpired:
                p.kill()
            check(waiting and p.wait() == 130, 'signal %d while %s is read' % (sig, ' '.join(args)), (waiting, p.returncode))
            for f in (p.stdin, p.stdout, p.stderr):
                f.close()


def closed_descriptors():
    for closed, args, status, text in ((0, ('chat', '-n', 2), 0, None), (1, ('run', '-p', 'Once', '-n', 2), 3, 'standard output'),
                                       (2, ('run', '-p', 'Once', '-n', 2), 0, None)):
        p = subprocess.run(['sh', '-c', 'exec "$@" %d%s&-' % (closed, '<' if closed == 0 else '>'), 'sh', BIN, *map(str, args)],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, cwd=ROOT,
                           timeout=120)
        check(p.returncode == status and (not text or text in err(p)), 'descriptor %d closed' % closed, (p.returncode, err(p)))
        if closed == 2:
            check(p.stdout and b'decode' not in p.stdout, 'no message reaches standard output', p.stdout)


def the_last_token_needs_no_position():
    r = run('run', '--ids', '5,17,3', '-n', 6, '-c', 8, '--temp', 0, '--ignore-eos')
    check(r.returncode == 0 and 'warning' not in err(r), 'six tokens fit after three in eight', err(r))
    r = run('run', '--ids', '5,17,3', '-n', 7, '-c', 8, '--temp', 0, '--ignore-eos')
    check(r.returncode == 0 and 'warning: -n 7 is more than the 6 tokens' in err(r), 'seven do not', err(r))


def one_file_for_both_outputs():
    args = ('run', '-p', 'Once', '-n', 3, '--temp', 0)
    text = run(*args).stdout
    both = subprocess.run([BIN, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENV, cwd=ROOT).stdout
    check(text and not text.endswith(b'\n') and text + b'\nprefill' in both, 'the receipt starts on a new line', both)


def default_model_by_its_short_name():
    r = run('run', '-n', 1, program=BIN)
    line = [x for x in err(r).splitlines() if x.startswith('model: ')]
    if BIN.startswith(ROOT + os.sep) or not os.path.exists(os.path.join(os.path.dirname(BIN), os.path.basename(TALE))):
        check(line == ['model: models/tale-9m-f16.gguf (the default)'], 'the path as README shows it', line)


for part in (cut_short, interrupted_reading, closed_descriptors, the_last_token_needs_no_position,
             one_file_for_both_outputs,
             default_model_by_its_short_name):
    part()
end()
