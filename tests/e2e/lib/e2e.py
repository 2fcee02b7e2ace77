"""What the black-box scripts of this folder share: running the program, counting checks, finding data.

HETERO names the program (default
./hetero), HETERO_SHARED the folder with data that is not in the tree (default ../shared).
"""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..', '..'))
BIN = os.path.abspath(os.environ.get('HETERO', os.path.join(ROOT, 'hetero')))
SHARED = os.environ.get('HETERO_SHARED', os.path.join(ROOT, '..', 'shared'))
TALE = os.path.join(ROOT, 'models', 'tale-9m-f16.gguf')
# What the tests set must not come from who runs them.
ENV = {k: v for k, v in os.environ.items() if not k.startswith('HETERO')}
ENV['LC_ALL'] = 'C.UTF-8'

_passed = _failed = _skipped = 0


def check(good, what, detail=''):
    """One check; a failure is printed at once and the script goes on."""
    global _passed, _failed
    if good:
        _passed += 1
    else:
        _failed += 1
        print('FAIL %s %s' % (what, detail), flush=True)
    return good


def skip(what, why):
    global _skipped
    _skipped += 1
    print('SKIP %s: %s' % (what, why), flush=True)


def run(*args, data=b'', cwd=ROOT, env=None, timeout=300, program=None):
    """Run hetero with args; bytes in, a CompletedProcess with bytes out."""
    return subprocess.run([program or BIN, *map(str, args)], input=data, cwd=cwd, env={**ENV, **(env or {})},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout)


def doc(*args, **kw):
    """The JSON document a successful call prints; None (and a failed check) otherwise."""
    r = run(*args, **kw)
    name = ' '.join(map(str, args))[:80]
    if not check(r.returncode == 0, name, 'exit %d: %s' % (r.returncode, err(r)[-200:])):
        return None
    try:
        return json.loads(r.stdout)
    except ValueError as e:
        check(False, name, 'no JSON: %s' % e)
        return None


# libcuda.so.1 of the tests: the host computes what the card would (tests/unit/backend_cuda/card.c).
CARD = {'LD_LIBRARY_PATH': os.path.join(os.path.dirname(BIN), 'test', 'card')}


def has_cuda(what):
    """Whether this build has CUDA kernels for CARD to run; else the script is skipped, as `what`."""
    r = run('bench', TALE, '--engine', 'cuda', '-p', '1', '-n', '0', '-r', '1', env=CARD)
    if 'no CUDA kernels' not in err(r):
        return True
    skip(what, 'this build has no kernels: make found no nvcc')
    return False


def err(r):
    return r.stderr.decode(errors='replace')


def tmp():
    return tempfile.TemporaryDirectory(prefix='hetero-e2e-')


def end():
    print('%d passed, %d failed, %d skipped' % (_passed, _failed, _skipped))
    sys.exit(_failed > 0)
