"""hetero quality: a candidate as good as the reference passes; a poisoned one fails although nothing
else about it changed (evidence.md 8, test 46); the files written are those a bundle keeps."""
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import SHARED, TALE, check, doc, end, err, run, skip, tmp

HOLD = tmp()
DIR = HOLD.name
PROMPTS = os.path.join(DIR, 'prompts.jsonl')
TEXT = os.path.join(DIR, 'text.txt')
SMALL = ['--items', 3, '--tasks', 6, '--chunks', 1, '-n', 24]


def corpus():
    words = ('fox', 'river', 'lantern', 'bear', 'garden', 'boat', 'moon', 'bridge')
    with open(PROMPTS, 'w') as f:
        for i, w in enumerate(words):
            json.dump({'prompt': 'Tell me a short story about a %s.' % w,
                       'response': 'Once there was a %s. The %s was %s and went to the %s.'
                       % (w, w, ('kind', 'brave')[i % 2], words[(i + 3) % 8])}, f)
            f.write('\n')
    with open(TEXT, 'w') as f:
        for i in range(300):
            f.write('The %s saw the %s near the %s. ' % (words[i % 8], words[i * 3 % 8], words[i * 5 % 8]))


def poisoned():
    """A copy of the model in which one F16 weight of the first layer's ffn_down is 60000."""
    data = bytearray(open(TALE, 'rb').read())
    at = [8]

    def num(fmt):
        v = struct.unpack_from('<' + fmt, data, at[0])[0]
        at[0] += struct.calcsize(fmt)
        return v

    def text():
        n = num('Q')
        at[0] += n
        return bytes(data[at[0] - n:at[0]]).decode()

    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, n = num('I'), num('Q')
            for _ in range(n):
                value(inner)
            return None
        at[0] += sizes[kind]
        return None

    n_tensors, n_kv = num('Q'), num('Q')
    for _ in range(n_kv):
        text()
        value(num('I'))
    found = None
    for _ in range(n_tensors):
        name, dims = text(), num('I')
        for _ in range(dims):
            num('Q')
        kind, offset = num('I'), num('Q')
        if found is None and kind == 1 and dims == 2 and 'blk.0.ffn_down' in name:
            found = offset
    start = (at[0] + 31) // 32 * 32 + found
    struct.pack_into('<e', data, start + 20, 60000.0)
    path = os.path.join(DIR, 'poisoned.gguf')
    with open(path, 'wb') as f:
        f.write(data)
    return path


def main():
    corpus()
    base = ['quality', TALE, '-f', PROMPTS, '--text', TEXT, '--json', *SMALL]
    d = doc(*base, '--candidate', 'threads=1', '-o', os.path.join(DIR, 'files'))
    if d:
        q = d['quality']
        check(q['gate'] == 'PASS', 'another thread count', q)
        check(q['promptsExact'] == q['prompts'] == 3, 'exact', q)
        check(q['kldMax'] == 0 and q['top1Agreement'] == 1, 'bit-equal', q)
        check(q['tasks'] == 6 and q['tasksLost'] == 0, 'tasks', q)
        lines = [open(os.path.join(DIR, 'files', n + '.jsonl')).read().splitlines()
                 for n in ('prompts', 'ref', 'cand')]
        check([len(x) for x in lines] == [10, 10, 10], 'three files, a line an item', [len(x) for x in lines])
        check(json.loads(lines[1][0])['out'] == json.loads(lines[2][0])['out'], 'the same tokens')
    r = run(*base, '--candidate', 'model=' + poisoned())
    check(r.returncode == 6, 'poisoned: exit status', '%d %s' % (r.returncode, err(r)[-200:]))
    q = json.loads(r.stdout)['quality'] if r.stdout else {}
    check(q.get('gate') == 'FAIL', 'poisoned: gate', q)
    check(q.get('kldMean', 0) > 0.001, 'poisoned: divergence', q)
    check('gate of policy' in err(r), 'poisoned: says so', err(r))
    # Its speed is what it was: the same plan, the same bytes and operations.
    good, bad = (doc('explain', m, '--json') for m in (TALE, os.path.join(DIR, 'poisoned.gguf')))
    if good and bad:
        good.pop('model', None), bad.pop('model', None)
        check(good == bad, 'poisoned: another plan')
    for args, why in ((['quality', TALE, '-f', PROMPTS], 'no candidate'),
                      (['quality', TALE, '--candidate', 'act=q8'], 'no corpus'),
                      (['quality', TALE, '-f', PROMPTS, '--candidate', 'colour=red'], '"colour" is no setting, or lacks its value: need KEY=VALUE'),
                      (['quality', TALE, '-f', PROMPTS, '--candidate', 'cuda=ranks=2'], 'no effect here'),
                      (['quality', TALE, '-f', PROMPTS, '--candidate', 'threads=x'], 'need a number')):
        r = run(*args)
        check(r.returncode == 2 and why in err(r), ' '.join(map(str, args))[-60:], err(r))
    if not os.path.exists(os.path.join(SHARED, 'data', 'models', 'tale-9m', 'quality-400.jsonl')):
        skip('quality-400.jsonl', 'not here')
    else:
        d = doc('quality', TALE, '--candidate', 'ubatch=16', '--json', '-f',
                os.path.join(SHARED, 'data', 'models', 'tale-9m', 'quality-400.jsonl'), '--items', 2,
                '--tasks', 12, '-n', 16)
        if d:
            q = d['quality']
            check(q['gate'] == 'PASS' and q['tasksReferenceRight'] >= 6, 'better than chance at the task', q)


main()
end()
