#!/usr/bin/env python3
"""The engine on machines that give less than they show, and when it has nothing to do: more threads
than cores, a CPU quota of a control group, idle in chat, and the memory of a loaded model. Results
and counts only: a slow machine is no failure."""
import os
import pty
import resource
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))
import e2e  # noqa: E402

ASK = ('-p', 'Once upon a time', '-n', 24, '--temp', 0, '--ignore-eos', '-c', 256)
V1, V2 = '/sys/fs/cgroup/cpu', '/sys/fs/cgroup'


def story(*more, program=None):
    args = ('run', e2e.TALE, *ASK, *more)
    r = e2e.run(*args, timeout=280) if not program else e2e.run(*program, e2e.BIN, *args, program='sh', timeout=280)
    e2e.check(r.returncode == 0, 'run ' + ' '.join(map(str, more)), e2e.err(r)[-200:])
    return r.stdout


def many_threads(want):
    for n in (3, 4 * (os.cpu_count() or 1)):
        e2e.check(story('-t', n) == want, 'the same text from %d threads' % n)


def put(path, text):
    with open(path, 'w', encoding='ascii') as f:
        f.write(text)


def quota(want):
    """Half a core for two threads: throttled in the middle of steps, many times."""
    v1 = os.path.exists(os.path.join(V1, 'cpu.cfs_quota_us'))
    group = os.path.join(V1 if v1 else V2, 'hetero-test-%d' % os.getpid())
    try:
        os.mkdir(group)
    except OSError as e:
        e2e.skip('quota', 'no control group can be made here: %s' % e.strerror)
        return
    try:
        if v1:
            put(os.path.join(group, 'cpu.cfs_period_us'), '20000')
            put(os.path.join(group, 'cpu.cfs_quota_us'), '10000')
        else:
            put(os.path.join(group, 'cpu.max'), '10000 20000')
        join = ('-c', 'echo $$ > %s/cgroup.procs && exec "$@"' % group, 'sh')
        e2e.check(story('-t', 2, program=join) == want, 'the same text under half a core')
        info = e2e.run(*join, e2e.BIN, 'doctor', '--json', program='sh')
        e2e.check(info.returncode == 0 and b'quota of 0.50 CPUs' in info.stdout, 'doctor names the quota', e2e.err(info)[-200:])
    except OSError as e:
        e2e.skip('quota', 'the controller is not ours: %s' % e.strerror)
    finally:
        os.rmdir(group)


def cpu_ns(pid):
    """CPU time of all threads; the first field of schedstat is nanoseconds."""
    total = 0
    for t in os.listdir('/proc/%d/task' % pid):
        with open('/proc/%d/task/%s/schedstat' % (pid, t), encoding='ascii') as f:
            total += int(f.read().split()[0])
    return total


def idle():
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(e2e.BIN, [e2e.BIN, 'chat', e2e.TALE, '-t', '2', '-c', '256', '--temp', '0', '-n', '8'], e2e.ENV)
    try:
        os.write(fd, b'hello\n')
        last, until = cpu_ns(pid), time.monotonic() + 120
        while time.monotonic() < until: # loaded, answered, and at its prompt: a second without work
            time.sleep(1)
            now = cpu_ns(pid)
            if now - last < 1000000 and now > 10000000:
                break
            last = now
        used = cpu_ns(pid)
        time.sleep(10)
        used = cpu_ns(pid) - used
        e2e.check(used < 10000000, '10 s idle in chat', '%.2f ms of CPU' % (used / 1e6))
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(fd)


def memory():
    """Peak of all children so far; the file in place, the cache of 256 positions and 150 MB."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    most = os.path.getsize(e2e.TALE) + (150 << 20)
    e2e.check(peak <= most, 'memory of a loaded model', '%d MB for %d' % (peak >> 20, most >> 20))


def main():
    want = story('-t', 1)
    e2e.check(len(want) > 40, 'a text to compare with')
    many_threads(want)
    quota(want)
    memory()
    if os.path.exists('/proc/self/schedstat'):
        idle()
    else:
        e2e.skip('idle', 'this kernel has no schedstat')
    e2e.end()


main()
