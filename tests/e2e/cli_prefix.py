"""The prefix cache and --n-samples from outside: the second run takes over what the first has computed
and says the same; a folder can be listed, checked and pruned; samples are what single runs are."""
import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import BIN, ENV, ROOT, TALE, check, end, err, run, tmp

WORK = tmp()
TEXT = ' '.join('Tim saw %d birds and a red dog in the park.' % i for i in range(20))


def doc(*args):
    r = run(*args, '--json')
    check(r.returncode == 0, ' '.join(args)[-60:], err(r))
    return json.loads(r.stdout)


def generate(folder, *more):
    d = doc('run', TALE, '-p', TEXT, '-n', '6', '--temp', '0', '--ignore-eos', '--prefix-cache', folder, *more)
    return d['ids'], d['receipt']['phases'][0]['prefixCache']


def warm_equals_cold():
    folder = os.path.join(WORK.name, 'prefix')
    cold, first = generate(folder)
    warm, second = generate(folder)
    plain = doc('run', TALE, '-p', TEXT, '-n', '6', '--temp', '0', '--ignore-eos')
    check(first['reason'] == 'COLD' and first['tokens'] == 0, 'cold', str(first))
    check(second['reason'] == 'WHOLE' and second['diskTokens'] == second['tokens'] >= 128, 'warm', str(second))
    check(cold == warm == plain['ids'], 'the same tokens')
    q8, third = generate(folder, '-ctk', 'f32', '-ctv', 'f32')
    check(third['tokens'] == 0, 'another KV type is another cache', str(third))
    listed = doc('prefix', 'list', folder)
    check(len(listed['models']) == 2 and listed['damaged'] == 0, 'list', str(listed))
    check(sum(m['tokens'] for m in listed['models']) >= 2 * second['tokens'], 'tokens', str(listed))
    return folder, listed['pages']


def harmed(folder, pages):
    names = sorted(n for n in os.listdir(folder) if n.endswith('.kvpage'))
    check(len(names) == pages, 'a file a page')
    with open(os.path.join(folder, names[0]), 'r+b') as f:
        f.seek(2000)
        b = f.read(1)
        f.seek(2000)
        f.write(bytes([b[0] ^ 1]))
    r = run('prefix', 'check', folder, '--json')
    check(r.returncode == 6 and 'damaged pages' in err(r), 'check ends with 6', err(r))
    found = json.loads(r.stdout)
    check(found['damaged'] == 1 and names[0] in found['firstDamaged'], 'check finds it', str(found))
    check(doc('prefix', 'list', folder)['damaged'] == 0, 'list reads heads only')
    r = run('prefix', 'prune', folder, '--unused', '0', '--prefix-cache-size', '1')
    check(r.returncode == 0, 'prune', err(r))
    check(not os.listdir(folder), 'all gone')


def killed():
    """kill -9 among the writes of a folder, at its first, second or third page: what stands there is whole, what was
    begun is counted apart, and a run over it says what a run without it says."""
    args = [TALE, '-p', TEXT, '-n', '6', '--temp', '0', '--ignore-eos']
    kills = 0
    for after in range(6):
        folder = os.path.join(WORK.name, 'killed%d' % after)
        os.mkdir(folder, 0o700)
        p = subprocess.Popen([BIN, 'run', *args, '--prefix-cache', folder], cwd=ROOT, env=ENV,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        begin = time.monotonic()
        while p.poll() is None and time.monotonic() - begin < 120:
            if len(os.listdir(folder)) > after % 3:
                p.send_signal(signal.SIGKILL)
                break
        kills += p.wait() == -signal.SIGKILL
        found = doc('prefix', 'check', folder)
        check(found['damaged'] == 0, 'a kill harms no page', str(found))
        check(found['unfinished'] <= 1, 'at most one page is lost', str(found))
    check(kills >= 2, 'writers were killed', kills)
    plain = doc('run', *args)
    ids, how = generate(folder)
    check(ids == plain['ids'], 'what was left changes nothing', str(how))
    ids, how = generate(folder)
    check(ids == plain['ids'] and how['reason'] == 'WHOLE', 'and completed', str(how))


def wrong():
    for status, text, args in ((2, 'which folder', ('prefix', 'list')),
                               (2, 'list, check or prune', ('prefix', 'burn', WORK.name)),
                               (3, 'cannot be read', ('prefix', 'list', os.path.join(WORK.name, 'nowhere'))),
                               (3, 'prefix folder', ('run', TALE, '-p', 'x', '-n', '1', '--prefix-cache', TALE)),
                               (2, 'grammar nor a draft', ('run', TALE, '-p', 'x', '-n', '2', '--n-samples', '2',
                                                           '-md', TALE)),
                               (2, 'out of range', ('run', TALE, '-p', 'x', '--n-samples', '65'))):
        r = run(*args)
        check(r.returncode == status and text in err(r), ' '.join(args)[-60:], '%d %s' % (r.returncode, err(r)))


def samples():
    args = ('run', TALE, '-p', 'Once upon a time', '-n', '12')
    log = os.path.join(WORK.name, 'log')
    r = run(*args, '--n-samples', '3', '-s', '7', '--receipts', log)
    check(r.returncode == 0 and err(r).count('NO_EVIDENCE') == 6, 'every sample says what ran', err(r))
    check(doc('receipts', '--receipts', log)['lines'] == 3, 'and its receipt is kept')
    d = doc(*args, '--n-samples', '3', '-s', '7')
    check([s['seed'] for s in d['samples']] == [7, 8, 9], 'seeds')
    for s in d['samples']:
        alone = doc(*args, '-s', str(s['seed']))
        check((s['ids'], s['text'], s['finish']) == (alone['ids'], alone['text'], alone['finish']),
              'sample of seed %d' % s['seed'], str(s['ids']))
    kept = [s['receipt']['phases'][0]['cacheHitTokens'] for s in d['samples']]
    check(kept == [0] + 2 * [d['promptTokens'] - 1], 'the prompt was run once', str(kept))
    r = run(*args, '--n-samples', '2', '-s', '7')
    check(r.stdout.decode() == ''.join(s['text'] + '\n' for s in d['samples'][:2]), 'plain text', repr(r.stdout))


folder, pages = warm_equals_cold()
harmed(folder, pages)
killed()
wrong()
samples()
end()
