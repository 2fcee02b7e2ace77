"""The bundles that the repository itself shows: both verifiers still accept each, and say the same. A change of
policy, gates or wording that a committed bundle does not survive is found here, not by a reader of its README."""
import glob
import json
import os
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import ROOT, check, end, err, run

TOOL = os.path.join(ROOT, 'tools', 'verify_bundle.py')



def both(path, trust, readme):
    """Both verifiers accept a bundle and say one class, which the README beside it names."""
    name = os.path.basename(path)
    r = run('verify', path, '--trust', trust, '--json')
    mine = json.loads(r.stdout)
    check(mine.get('ok') is True and mine['bundleId'] == name, 'hetero verify ' + name, err(r))
    other = json.loads(run(TOOL, path, '--trust', trust, program=sys.executable).stdout)
    check(other['ok'] is True and other['class'] == mine['class'], 'verify_bundle.py ' + name, other)
    with open(readme) as f:
        check(mine['class'] in f.read(), 'its README says what it is: ' + mine['class'])


def of(folder):
    return [os.path.join(folder, d) for d in sorted(os.listdir(folder)) if len(d) == 64]


trusted = sorted(glob.glob(os.path.join(ROOT, 'evidence', '*', 'trust.json')))
check(len(trusted) >= 3, 'external, graph and scheduler', trusted)
for trust in trusted:
    folder = os.path.dirname(trust)
    check(of(folder), 'a bundle beside %s' % os.path.relpath(trust, ROOT))
    for path in of(folder):
        both(path, trust, os.path.join(folder, 'README.md'))

# Bundles that are packed: hundreds of small files that say nearly the same.
packed = sorted(glob.glob(os.path.join(ROOT, 'evidence', '*', '*.tar.xz')))
check(packed, 'bundles of the graph')
for archive in packed:
    with tempfile.TemporaryDirectory() as tmp, tarfile.open(archive) as tar:
        tar.extractall(tmp)  # our own archives, and Debian 12's Python has no filters yet
        folder = os.path.join(tmp, os.path.basename(archive)[:-len('.tar.xz')])
        check(len(of(folder)) == 1, 'a bundle in ' + archive, os.listdir(tmp))
        for path in of(folder):
            both(path, os.path.join(folder, 'trust.json'), os.path.join(os.path.dirname(archive), 'README.md'))

# A bundle whose public key nobody kept: both recompute all of it, refuse it for its signature alone, and its README
# says so. Which trust root is named does not matter, for none can have that key.
alone = [d for d in glob.glob(os.path.join(ROOT, 'evidence', '**', '*'), recursive=True)
         if len(os.path.basename(d)) == 64 and not os.path.exists(os.path.join(os.path.dirname(d), 'trust.json'))]
for path in sorted(alone):
    name = os.path.relpath(path, ROOT)
    r = run('verify', path, '--trust', trusted[0])
    check(r.returncode == 6 and 'BAD_SIGNATURE: 0 of ' in err(r), 'hetero verify, but for the signature: ' + name, err(r))
    other = json.loads(run(TOOL, path, '--trust', trusted[0], program=sys.executable).stdout)
    check(other.get('refused', '').startswith('BAD_SIGNATURE: 0 keys'), 'verify_bundle.py, the same: ' + name, other)
    readme = open(os.path.join(os.path.dirname(path), 'README.md')).read()
    with open(os.path.join(path, 'verdict.json')) as f:
        check(json.load(f)['class'] in readme and 'BAD_SIGNATURE' in readme, 'its README says both: ' + name)
check(len(alone) <= 1, 'no further bundle without its trust root', alone)
end()
