"""A mixture of experts with one tensor an expert (blk.N.ffn_gate.E.weight, as GGUF files had it before the
experts of a layer were merged) is the same model: the merged file is taken apart here, and both give
the same logits, bit for bit, on ref and on cpu."""
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import SHARED, check, end, err, run, skip, tmp

SCALAR = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
SIZE = {0: 4, 1: 2}  # F32, F16: bytes an element


class Reader:
    def __init__(self, b):
        self.b, self.at = b, 0

    def num(self, fmt):
        v = struct.unpack_from('<' + fmt, self.b, self.at)[0]
        self.at += struct.calcsize(fmt)
        return v

    def text(self):
        n = self.num('Q')
        self.at += n
        return self.b[self.at - n:self.at]

    def value(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, n = self.num('I'), self.num('Q')
            for _ in range(n):
                self.value(inner)
        else:
            self.at += SCALAR[kind]


def read(path):
    """-> (number of keys, their bytes, [(name, dims, type, data)])"""
    r = Reader(open(path, 'rb').read())
    assert r.b[:4] == b'GGUF'
    r.at = 8
    n_tensors, n_keys = r.num('Q'), r.num('Q')
    start = r.at
    for _ in range(n_keys):
        assert r.text() != b'general.alignment'
        r.value(r.num('I'))
    keys, infos = r.b[start:r.at], []
    for _ in range(n_tensors):
        name = r.text().decode()
        dims = [r.num('Q') for _ in range(r.num('I'))]
        infos.append((name, dims, r.num('I'), r.num('Q')))
    base = (r.at + 31) // 32 * 32
    out = []
    for name, dims, kind, at in infos:
        n = SIZE[kind]
        for d in dims:
            n *= d
        out.append((name, dims, kind, r.b[base + at:base + at + n]))
    return n_keys, keys, out


def take_apart(tensors):
    for name, dims, kind, data in tensors:
        if '_exps.' not in name:
            yield name, dims, kind, data
            continue
        one = len(data) // dims[2]
        for e in range(dims[2]):
            yield name.replace('_exps.', '.%d.' % e), dims[:2], kind, data[e * one:(e + 1) * one]


def write(path, n_keys, keys, tensors):
    head, data = b'', b''
    for name, dims, kind, d in tensors:
        head += struct.pack('<Q', len(name)) + name.encode() + struct.pack('<I', len(dims))
        head += b''.join(struct.pack('<Q', x) for x in dims) + struct.pack('<IQ', kind, len(data))
        data += d + bytes(-len(d) % 32)
    b = b'GGUF' + struct.pack('<IQQ', 3, len(tensors), n_keys) + keys + head
    with open(path, 'wb') as f:
        f.write(b + bytes(-len(b) % 32) + data)


def compare(merged):
    work = tmp()
    n_keys, keys, tensors = read(merged)
    apart = list(take_apart(tensors))
    check(len(apart) > len(tensors), 'taken apart', '%d tensors' % len(apart))
    path = os.path.join(work.name, 'apart.gguf')
    write(path, n_keys, keys, apart)
    for engine in ('ref', 'cpu'):
        got = []
        for f in (merged, path):
            r = run('logits', f, '--ids', '5,17,3,9,40', '--at', '0,2,4', '--engine', engine, '--json')
            check(r.returncode == 0, '%s %s' % (engine, f[-30:]), err(r))
            got.append(json.loads(r.stdout)['logits'] if r.returncode == 0 else None)
        check(got[0] == got[1], 'the same logits on ' + engine)
    # One expert less is an error that names it.
    write(path, n_keys, keys, [t for t in apart if not t[0].endswith('ffn_up.2.weight')])
    r = run('logits', path, '--ids', '5', '--json')
    check(r.returncode != 0 and 'ffn_up.2.weight' in r.stdout.decode(), 'a missing expert', r.stdout.decode()[:200])


for family in ('mixtral', 'qwen3_moe'):
    merged = os.path.join(SHARED, 'data', 'golden', 'arch', family, 'model.gguf')
    if os.path.exists(merged):
        compare(merged)
    else:
        skip(family, 'no ' + merged)
end()
