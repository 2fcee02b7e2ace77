"""A pack is all a run needs: the same bits as from the GGUF, and in an empty folder it is the only model
file that is opened."""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import BIN, ENV, TALE, check, doc, end, err, run, skip, tmp

LOGITS = ['--ids', '5,17,3,900', '--at', '0,3', '--json']
# Files of a program's own start: libraries, locales, the kernel's views of the machine.
SYSTEM = ('/lib', '/usr/', '/etc/', '/proc/', '/sys/', '/dev/')


def same_bits(t):
    pack = os.path.join(t, 'tale.htpack')
    d = doc('pack', TALE, '-o', pack, '--json')
    if not check(d and os.path.getsize(pack) > 1 << 20, 'pack', d):
        return None
    again = os.path.join(t, 'again.htpack')
    doc('pack', TALE, '-o', again, '--json', '-t', 1)
    check(open(pack, 'rb').read() == open(again, 'rb').read(), 'packing twice gives the same bytes')
    a, b = doc('logits', TALE, *LOGITS), doc('logits', pack, *LOGITS)
    check(a and b and a['logits'] == b['logits'], 'the pack gives the bits of the GGUF')
    i = doc('inspect', pack, '--json')
    check(i['kind'] == 'pack' and i['model']['contract'] == 'f16' and i['template'], 'inspect', str(i)[:200])
    os.remove(again)
    return pack


def quantised(t):
    f16 = doc('inspect', TALE, '--json')['model']['tensorBytes']
    for kind, least in (('q8', 1.8), ('q4', 2.5)):
        path = os.path.join(t, kind + '.htpack')
        doc('pack', TALE, '-o', path, '--precision', kind, '--json')
        m = doc('inspect', path, '--json')['model']
        check(m['contract'] == kind and m['quantised'] == m['projections'] == 57, kind + ' quantises all projections', m)
        check(f16 / m['tensorBytes'] > least, kind + ' is smaller', f16 / m['tensorBytes'])
        d = doc('run', path, '-p', 'Once upon a time', '-n', 4, '--temp', 0, '--json')
        check(d and len(d['ids']) == 4 and d['receipt']['contract'] == kind, kind + ' runs')
    two = os.path.join(t, 'two.htpack')
    doc('pack', TALE, '-o', two, '--also', 'q8', '--json')
    main = doc('logits', two, *LOGITS)
    check(main['logits'] == doc('logits', TALE, *LOGITS)['logits'], 'the first representation is the exact one')
    alt = doc('run', two, '-p', 'Once', '-n', 4, '--temp', 0, '--prefill-rep', 'f16', '--decode-rep', 'q8', '--json')
    got = [p['representation'] for p in alt['receipt']['phases']]
    check(got == ['f16', 'q8'], 'a representation for each phase', got)
    r = run('run', two, '-p', 'Once', '--decode-rep', 'q2')
    check(r.returncode == 2 and 'q2' in err(r), 'a representation it does not have', err(r))


def damaged(pack, t):
    data = bytearray(open(pack, 'rb').read())
    data[len(data) // 2] ^= 1
    bad = os.path.join(t, 'bad.htpack')
    open(bad, 'wb').write(data)
    r = run('run', bad, '-p', 'x', '-n', 1, '--verify')
    check(r.returncode == 3 and r.stdout == b'', 'a flipped bit is noticed', (r.returncode, err(r)))
    os.remove(bad)


def alone(pack, t):
    if not shutil.which('strace'):
        skip('files opened by a run', 'strace is not installed')
        return
    empty, home, log = (os.path.join(t, n) for n in ('empty', 'home', 'trace'))
    os.mkdir(empty)
    os.mkdir(home)
    os.rename(pack, os.path.join(empty, 'm.htpack'))
    env = {**ENV, 'HOME': home, 'XDG_CACHE_HOME': home}
    r = subprocess.run(['strace', '-f', '-e', 'trace=open,openat', '-o', log, BIN, 'run', 'm.htpack', '-p', 'Once', '-n', '3',
                        '--temp', '0'], cwd=empty, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)
    if b'ptrace' in r.stderr and r.returncode:
        skip('files opened by a run', 'strace may not trace here')
        return
    check(r.returncode == 0 and r.stdout, 'a pack alone in an empty folder runs', err(r))
    opened = set()
    for line in open(log, errors='replace'):
        m = re.search(r'open(?:at)?\((?:AT_FDCWD, )?"([^"]*)".*= \d+', line)
        if m and not m.group(1).startswith(SYSTEM):
            opened.add(m.group(1))
    models = {os.path.basename(f) for f in opened if not os.path.abspath(os.path.join(empty, f)).startswith(home)}
    check(models == {'m.htpack'}, 'the pack is the only model file opened', opened)


with tmp() as t:
    pack = same_bits(t)
    quantised(t)
    if pack:
        damaged(pack, t)
        alone(pack, t)
end()
