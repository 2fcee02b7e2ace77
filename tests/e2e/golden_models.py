"""tests/oracle/own_model.py, which make runs before the goldens: it wrote once behind a single stamp, so that a model
deleted or cut short afterwards stayed so, and its case was skipped for a reason that was none."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import ROOT, check, end, err, run

SCRIPT = os.path.join(ROOT, 'tests', 'oracle', 'own_model.py')
sys.path.insert(0, os.path.dirname(SCRIPT))
from own_model import CASES, digests

with tempfile.TemporaryDirectory() as out:
    def made():
        """Names of the models that a run writes, and whether every file is then what its golden says."""
        r = run(SCRIPT, out, program=sys.executable)
        check(r.returncode == 0, 'own_model.py', err(r))
        for name in CASES:
            folder = os.path.join(out, name)
            with open(os.path.join(folder, 'golden.json')) as f:
                want = json.load(f)['sha256']
            files = {}
            for k in want:
                with open(os.path.join(folder, k), 'rb') as f:
                    files[k] = f.read()
            check(digests(files) == want, name + ' has the bytes of its golden')
        return [line.rsplit('/', 1)[1] for line in r.stdout.decode().splitlines()]

    def path(name, file):
        return os.path.join(out, name, file)

    check(made() == list(CASES), 'an empty folder: all are written')
    check(made() == [], 'all intact: none is written')
    os.remove(path('gemma2', 'model.gguf'))
    check(made() == ['gemma2'], 'a file deleted')
    os.truncate(path('smollm3', 'model.safetensors'), 1000)
    with open(path('qwen2_moe', 'model.gguf'), 'r+b') as f:
        f.seek(300000)
        byte = f.read(1)
        f.seek(300000)
        f.write(bytes([byte[0] ^ 1]))
    check(made() == ['smollm3', 'qwen2_moe'], 'a file cut short, a bit turned')
    with open(path('gemma2', 'golden.json'), 'a') as f:
        f.write(' ')
    check(made() == ['gemma2'], 'another golden than the tree has')
    os.utime(path('gemma2', 'config.json'), (0, 0))
    check(made() == ['gemma2'], 'older than the script')

for args, status in (([], 2), (['--helo'], 2), (['a', 'b'], 2), (['--help'], 0)):
    r = run(SCRIPT, *args, program=sys.executable)
    check(r.returncode == status and 'usage: own_model.py OUTDIR' in (err(r) if status else r.stdout.decode()),
          'own_model.py %s: how it is used' % args, err(r))
end()
