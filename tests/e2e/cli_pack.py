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


def targets(t):
    """What a pack may not be written over is as it was afterwards, and the error comes first."""
    own = os.path.join(t, 'own.gguf')
    shutil.copy(TALE, own)
    os.link(own, os.path.join(t, 'hard'))
    os.symlink('own.gguf', os.path.join(t, 'soft'))
    os.mkfifo(os.path.join(t, 'pipe'))
    before = open(own, 'rb').read()
    for name in ('own.gguf', 'hard', 'soft'):
        r = run('pack', own, '-o', os.path.join(t, name))
        check(r.returncode == 2 and 'of the source itself' in err(r), 'not onto its own source: ' + name, err(r))
    check(open(own, 'rb').read() == before, 'the source is whole')
    for path, what in (('/dev/full', 'no regular file'), (os.path.join(t, 'pipe'), 'a pipe'), (t, 'a folder')):
        mode = os.stat(path).st_mode
        r = run('pack', TALE, '-o', path)
        check(r.returncode == 2 and what in err(r), 'not over %s: %s' % (what, path), err(r))
        check(os.stat(path).st_mode == mode, 'it is what it was: ' + path)
    end, link = os.path.join(t, 'end.htpack'), os.path.join(t, 'link.htpack')
    open(end, 'w').close()
    os.symlink('end.htpack', link)
    check(run('pack', TALE, '-o', link).returncode == 0 and os.path.islink(link) and os.path.getsize(end) > 1 << 20,
          'a link is followed')
    for name in ('own.gguf', 'hard', 'soft', 'pipe', 'end.htpack', 'link.htpack'):
        os.remove(os.path.join(t, name))


def trusted(pack, t):
    """The list of trusted packs is written in a home without any folder."""
    home = os.path.join(t, 'bare')
    os.mkdir(home)
    r = run('run', pack, '-p', 'Once', '-n', 1, env={'HOME': home, 'XDG_CACHE_HOME': ''})
    check(r.returncode == 0 and os.path.getsize(os.path.join(home, '.cache', 'hetero', 'packs')) > 64,
          'the trust list', err(r))
    shutil.rmtree(home)


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
        targets(t)
        trusted(pack, t)
        alone(pack, t)
end()
