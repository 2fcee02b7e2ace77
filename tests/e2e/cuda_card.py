"""The engine cuda from outside, on a card that the host computes (tests/unit/backend_cuda/card.c stands in for
libcuda.so.1): the same text as cpu, receipts that name device time and the class of bits, and hetero bench with the
device's own figures. Without a card: an error that says what to do."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import TALE, check, doc, end, err, run, skip

CARD = os.path.join(os.path.dirname(os.path.abspath(os.environ['HETERO'])), 'test', 'card')
ENV = {'LD_LIBRARY_PATH': CARD}
TEXT = ['run', TALE, '-p', 'Once upon a time', '-n', '12', '--temp', '0', '-c', '128', '--json']
DIGITS = {'bits': 'cuda-f32/128x512',
          'under': ['rows', 'batch', 'promptSplit', 'bucket', 'grid', 'level']}


def absence():
    r = run('run', TALE, '-p', 'x', '-n', '1', '--act', 'f16', '--engine', 'cpu')
    check(r.returncode == 4 and 'act f16' in err(r) and 'act f32' in err(r), 'act f16 on cpu: what to do', err(r))
    r = run('bench', TALE, '--engine', 'cuda', '-p', '4', '-n', '2', '-r', '1', env={'LD_LIBRARY_PATH': '/'})
    if r.returncode == 0:
        return  # this machine has a card
    check('CUDA' in err(r) and ('install' in err(r) or 'driver' in err(r)), 'no card: what to do', err(r))


def receipts():
    want = doc(*TEXT)
    r = run(*TEXT, '--engine', 'cuda', env=ENV)
    check(r.returncode == 0, 'run on the card', err(r))
    got = json.loads(r.stdout)
    check(got['ids'] == want['ids'], 'the tokens of cpu', got['ids'])
    for phase in got['receipt']['phases']:
        facts = phase['segments'][0]['facts']
        check(phase['executed'] == 'cuda' and phase['deviceNs'] > 0, 'what ran', phase['executed'])
        check(phase['hostCopyBytes'] == 0 and phase['deviceCopyBytes'] == 0, 'no byte of the cache is copied')
        check(facts['bitClass'] == DIGITS['bits'] and facts['bitsEqualUnder'] == DIGITS['under'], 'class of bits', facts)
        check(facts['level'] == 1 and facts['captured'], 'a captured graph', facts)
    # The order of sums is the same however the prompt is cut.
    for rows in ('1', '3'):
        r = run(*TEXT, '--engine', 'cuda', '--ubatch', rows, env=ENV)
        check(r.returncode == 0 and json.loads(r.stdout)['ids'] == got['ids'], 'ubatch ' + rows, err(r))


def bench():
    args = ['bench', TALE, '--engine', 'cuda', '-p', '5', '-n', '3', '-r', '2']
    r = run(*args, '--json', env=ENV)
    check(r.returncode == 0, 'bench', err(r))
    d = json.loads(r.stdout)
    check([x['test'] for x in d['rows']] == ['pp5', 'tg3'], 'rows', d['rows'])
    for x in d['rows']:
        dev = x['device']
        check(x['fmaPercent'] is None and not x['impossible'], 'the host is no bound of a device', x['fmaPercent'])
        # The emulated card's events say half a millisecond a run: 5 rows are one run, a token is one.
        per = 5e5 / 5 if x['test'] == 'pp5' else 5e5
        layers = d['engine']['model']['layers']
        check(abs(dev['nsPerToken'] - per) < 1, 'device time', dev)
        check(abs(dev['usPerLayer'] - per / layers / 1e3) < 1e-3, 'microseconds a layer', dev)
        share = 100e9 * x['bytesPerToken'] / d['engine']['engines']['decode']['device']['readBytesPerS'] / per
        check(abs(dev['readPercent'] - share) < 1e-6 * share, 'share of the read rate', dev)
    check(d['rows'][1]['device']['dispatchesPerToken'] == 5 * layers + 2, 'kernels a token', d['rows'][1]['device'])
    r = run(*args, env=ENV)
    check(r.returncode == 0 and 'device us/token' in r.stdout.decode(), 'the table', err(r))


absence()
probe = run('bench', TALE, '--engine', 'cuda', '-p', '1', '-n', '0', '-r', '1', env=ENV)
if 'no CUDA kernels' in err(probe):
    skip('cuda on the emulated card', 'this build has no kernels: make found no nvcc')
else:
    receipts()
    bench()
end()
