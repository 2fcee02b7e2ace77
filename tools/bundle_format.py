"""What every paper of a bundle is made of, for verify_bundle.py beside it: canonical JSON, closed schemas, Ed25519,
signed envelopes and the trust root, files and manifests. Python's standard library only; written from docs/bundle.md.
"""
import base64
import calendar
import hashlib
import json
import os
import re
import stat
import time

MAX_INT = 2**53 - 1
INTOTO = 'https://in-toto.io/Statement/v1'


class Refused(Exception):
    pass


def need(good, why):
    if not good:
        raise Refused(why)


def sha(data):
    return hashlib.sha256(data).hexdigest()


# ---- canonical JSON -------------------------------------------------------------------------------

def _pairs(items):
    d = dict(items)
    need(len(d) == len(items), 'JSON: a key comes twice')
    return d


def _no(text):
    raise Refused('JSON: %s is not an integer' % text)


def _string(s):
    short = {'"': '\\"', '\\': '\\\\', '\b': '\\b', '\f': '\\f', '\n': '\\n', '\r': '\\r', '\t': '\\t'}
    return '"%s"' % ''.join(short.get(c) or ('\\u%04x' % ord(c) if c < ' ' else c) for c in s)


def dump(v):
    if v is None:
        return 'null'
    if isinstance(v, bool):
        return 'true' if v else 'false'
    if isinstance(v, int):
        need(abs(v) <= MAX_INT, 'JSON: an integer is past 2^53-1')
        return str(v)
    if isinstance(v, str):
        return _string(v)
    if isinstance(v, list):
        return '[%s]' % ','.join(map(dump, v))
    return '{%s}' % ','.join('%s:%s' % (_string(k), dump(v[k])) for k in sorted(v, key=str.encode))


def canon(v):
    return dump(v).encode('utf-8')


def load(data, what):
    try:
        v = json.loads(data.decode('utf-8'), object_pairs_hook=_pairs, parse_float=_no, parse_constant=_no)
        same = canon(v) == data
    except (ValueError, RecursionError) as e:
        raise Refused('JSON: %s: %s' % (what, e))
    need(same, 'JSON: %s is not in canonical form' % what)
    return v


def lines(data, what):
    need(not data or data.endswith(b'\n'), '%s is cut off' % what)
    return [load(x, what) for x in data.split(b'\n')[:-1]]


# ---- closed schemas: a table maps each key to a test; a key ending with ? may be missing ------------

def integer(lo=0, hi=MAX_INT):
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and lo <= v <= hi


def unknown(v):
    return (isinstance(v, dict) and set(v) == {'known', 'reason'} and v['known'] is False and
            isinstance(v['reason'], str) and re.fullmatch('[A-Z_]+', v['reason']) is not None)


def maybe(test):
    return lambda v: unknown(v) or test(v)


def text(v):
    return isinstance(v, str)


def digest(v):
    return isinstance(v, str) and re.fullmatch('[0-9a-f]{64}', v) is not None


def boolean(v):
    return isinstance(v, bool)


def obj(v):
    return isinstance(v, dict)


def utc(v):
    try:
        return isinstance(v, str) and time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(unix(v))) == v
    except ValueError:
        return False


def unix(v):
    return calendar.timegm(time.strptime(v, '%Y-%m-%dT%H:%M:%SZ'))


def word(*names):
    return lambda v: isinstance(v, str) and v in names


def array(test):
    return lambda v: isinstance(v, list) and all(map(test, v))


def closed(v, table, what, schema=None):
    need(isinstance(v, dict), '%s: not an object' % what)
    names = {k.rstrip('?') for k in table} | ({'schema'} if schema else set())
    need(set(v) <= names, '%s: unknown member' % what)
    need(not schema or v.get('schema') == schema, '%s: schema is not %s' % (what, schema))
    for k, test in table.items():
        if k.endswith('?') and k[:-1] not in v:
            continue
        k = k.rstrip('?')
        need(k in v, '%s: member %s is missing' % (what, k))
        need(test(v[k]), '%s: member %s is not what it must be' % (what, k))
    return v


def is_closed(table):
    def test(v):
        closed(v, table, 'item')
        return True
    return test


# ---- Ed25519 (RFC 8032 5.1.7), points in extended coordinates ----------------------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
SQRT_M1 = pow(2, (P - 1) // 4, P)


def _add(p, q):
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def _mul(k, p):
    q = (0, 1, 1, 0)
    while k:
        if k & 1:
            q = _add(q, p)
        p = _add(p, p)
        k >>= 1
    return q


def _same(p, q):
    return (p[0] * q[2] - q[0] * p[2]) % P == 0 and (p[1] * q[2] - q[1] * p[2]) % P == 0


def _point(data):
    y = int.from_bytes(data, 'little')
    sign, y = y >> 255, y & (2**255 - 1)
    if y >= P:
        return None
    x2 = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(x2, (P + 3) // 8, P)
    if (x * x - x2) % P:
        x = x * SQRT_M1 % P
    if (x * x - x2) % P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


BASE = _point((4 * pow(5, P - 2, P) % P).to_bytes(32, 'little'))


def ed25519_good(public, message, signature):
    a, r = _point(public), _point(signature[:32])
    s = int.from_bytes(signature[32:], 'little')
    if len(signature) != 64 or a is None or r is None or s >= L:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), 'little') % L
    return _same(_mul(s, BASE), _add(r, _mul(k, a)))


# ---- envelope and trust ------------------------------------------------------------------------------

ROLES = ['bench', 'promote', 'index', 'simulate', 'receipt']


def read_trust(data):
    t = closed(load(data, 'trust root'), {
        'expiresUtc': utc, 'keys': array(is_closed({'keyId': digest, 'publicKey': digest, 'roles': array(word(*ROLES))})),
        'thresholds': is_closed({r: integer(2 if r == 'promote' else 1, 256) for r in ROLES}),
        'version': integer(1, 2**32 - 1)}, 'trust root', 'hetero/trust/1')
    need(1 <= len(t['keys']) <= 256, 'trust root: number of keys')
    need(len({k['publicKey'] for k in t['keys']}) == len(t['keys']), 'trust root: a key is listed twice')
    for k in t['keys']:
        need(sha(bytes.fromhex(k['publicKey'])) == k['keyId'], 'trust root: keyId is not the digest of its key')
    return t


def unbase64(s):
    s = s.replace('-', '+').replace('_', '/')
    body = s.rstrip('=') if len(s) % 4 == 0 and not s.endswith('===') else s
    need(re.fullmatch('[A-Za-z0-9+/]*', body) and len(body) % 4 != 1, 'envelope: not base64')
    raw = base64.b64decode(body + '=' * (-len(body) % 4))
    need(base64.b64encode(raw).decode().rstrip('=') == body, 'envelope: spare bits are set')
    return raw


def open_statement(data, trust, role, predicate_type, now):
    env = closed(load(data, 'envelope'), {
        'payload': text, 'payloadType': text,
        'signatures': array(is_closed({'keyid': lambda v: text(v) and len(v) == 64, 'sig': text}))}, 'envelope')
    need(1 <= len(env['signatures']) <= 64, 'envelope: number of signatures')
    body = unbase64(env['payload'])
    sigs = [(s['keyid'], unbase64(s['sig'])) for s in env['signatures']]
    need(all(len(s) == 64 for _, s in sigs), 'envelope: a signature has 64 bytes')
    need(env['payloadType'] == 'application/vnd.in-toto+json', 'UNKNOWN_TYPE: payload type')
    need(now < unix(trust['expiresUtc']), 'TRUST_EXPIRED')
    kind = env['payloadType'].encode()
    pae = b'DSSEv1 %d %s %d ' % (len(kind), kind, len(body)) + body
    good = sum(1 for k in trust['keys'] if role in k['roles'] and any(
        i == k['keyId'] and ed25519_good(bytes.fromhex(k['publicKey']), pae, s) for i, s in sigs))
    need(good >= trust['thresholds'][role], 'BAD_SIGNATURE: %d keys with role %s signed this' % (good, role))
    st = closed(load(body, 'statement'), {'_type': text, 'predicate': obj, 'predicateType': text,
                                          'subject': array(obj)}, 'statement')
    need(st['_type'] == INTOTO and st['predicateType'] == predicate_type, 'UNKNOWN_TYPE: %s' % st['predicateType'])
    return body


# ---- files ---------------------------------------------------------------------------------------------

def path_ok(p):
    return (0 < len(p) <= 200 and all(' ' < c < '\x7f' and c != '\\' for c in p) and
            all(x not in ('', '.', '..') for x in p.split('/')))


def read_tree(top):
    """Every file below top by its relative path; anything but folders and plain files is refused."""
    out = {}
    need(os.path.isdir(top), 'MANIFEST: no folder %s' % top)
    for folder, dirs, names in os.walk(top):
        for n in dirs + names:
            full = os.path.join(folder, n)
            rel = os.path.relpath(full, top)
            need(len(os.fsencode(rel)) <= 200 and rel.count('/') < 15 + (n in names), 'MANIFEST: %s is too long or too deep' % rel)
            st = os.lstat(full)
            if stat.S_ISDIR(st.st_mode):
                continue
            need(stat.S_ISREG(st.st_mode) and st.st_nlink == 1, 'MANIFEST: %s is no plain file' % rel)
            with open(full, 'rb') as f:
                out[rel] = f.read()
    return out


def read_manifest(tree, name, schema, more):
    need(name in tree, 'MANIFEST: %s is missing' % name)
    entry = {'bytes': integer(), 'path': text, 'role': text, 'sha256': digest}
    m = closed(load(tree[name], name), {'files': array(is_closed(entry)), **more}, name, schema)
    need(1 <= len(m['files']) <= 100000, 'MANIFEST: number of files')
    paths = [f['path'] for f in m['files']]
    need(all(map(path_ok, paths)), 'MANIFEST: a path is not allowed')
    need(all(a < b for a, b in zip(paths, paths[1:])), 'MANIFEST: twice or out of order')
    for f in m['files']:
        data = tree.get(f['path'])
        need(data is not None, 'MANIFEST: %s is missing' % f['path'])
        need(len(data) == f['bytes'] and sha(data) == f['sha256'], 'MANIFEST: %s does not match' % f['path'])
    return m
