"""A route onto the compiled-graph engine, from outside: prefill on graph measured against cpu under a fixture
policy, promoted, and taken by hetero run without any engine being named: the plan with its prices, what
executed, no copies, tokens of the all-cpu run. The graph's settings are part of the route. Then the routed control
against both single engines."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import BIN, ROOT, TALE, check, doc, end, err, run, skip
from e2e import ENV as BASE
from store import ENV, STORE, TOP, corpus, make_store, measured, promote

TEXT = 'Once upon a time there was a small fox.'
if 'HETERO_OPENVINO' in os.environ:
    BASE['HETERO_OPENVINO'] = os.environ['HETERO_OPENVINO']


def generate(*more):
    d = doc('run', TALE, '-p', TEXT, '-n', '8', '--temp', '0', '--ignore-eos', '--json', *more, env=ENV)
    return d or {'receipt': {'phases': [{}, {}]}, 'ids': None}


def routed():
    plain = generate()
    # A loaded machine stretches the longest node: what is declared here is not what is tested.
    candidate = 'prefill-engine=graph,graph=strict=1,graph=cancel=20000,graph=cache=' + os.path.join(TOP, 'compiled')
    policy = make_store()
    r = run('qualify', 'p32', TALE, '--candidate', candidate.replace('20000', '1'), '--policy', policy, '-f', corpus(), '-o',
            os.path.join(TOP, 'refused'), env=ENV)
    check(r.returncode == 6 and 'in 32 rows takes up to' in err(r) and 'graph=cancel=MS' in err(r),
          'a cancel that takes longer than declared', '%d: %s' % (r.returncode, err(r)[-300:]))
    r, d = measured('qualify', 'p32', TALE, '--candidate', candidate, '--policy', policy, '-f', corpus(), '--json',
                    '-o', os.path.join(TOP, 'evidence'))
    if not check(r.returncode == 0, 'qualify', '%d: %s %s' % (r.returncode, err(r)[-300:], str(d)[-400:])):
        return
    promote(d['bundle'])
    rows = (doc('routes', '--store', STORE, '--json', env=ENV) or {}).get('routes', [])
    check(len(rows) == 1 and rows[0]['check'] == 'OK', 'one route', rows)
    plan = doc('explain', TALE, '--route', '-p', '12', '-n', '8', '--store', STORE, '--json', env=ENV) or {}
    phase = plan.get('phases', [{}])[0]
    check(phase.get('decision') == 'promoted' and phase.get('backend', '').startswith('graph;graph=strict=1;graph=cancel=20000;graph=cache='),
          'explain --route names engine and settings', plan)
    check(phase.get('cancelMaxMs') == 20000, 'and how long a cancel may take', phase)
    check(phase.get('p50UcbNs', 0) > 0 and plan.get('costNs', 0) > 0, 'and prices', phase)
    taken = generate('--store', STORE)
    first, second = taken['receipt']['phases']
    check((first.get('decision'), first.get('executed')) == ('promoted', 'graph'), 'the graph runs the prompt', first)
    check(first.get('cancelMaxMs') == 20000, 'the receipt says how long a cancel may take', first)
    check(second.get('executed') == 'cpu', 'cpu decodes', second)
    check(first.get('bundleId') == os.path.basename(d['bundle']), 'the bundle it was admitted by', first.get('bundleId'))
    check(first.get('hostCopyBytes') == 0 and first.get('deviceCopyBytes') == 0, 'no copies', first)
    facts = (first.get('segments') or [{}])[0].get('facts', {})
    check(facts.get('inferencePrecision') == 'f32' and facts.get('productsBelowF32') == 0, 'precision read back', facts)
    check(taken['ids'] == plain['ids'], 'the tokens of cpu', (taken['ids'], plain['ids']))
    long = doc('run', TALE, '--ids', ','.join(['7'] * 40), '-n', '4', '--temp', '0', '--json', '--store', STORE, env=ENV)
    if long:
        p = long['receipt']['phases'][0]
        check((p['decision'], p['reason'], p['engine']) == ('reference', 'BUCKET', 'cpu'), 'beyond what was measured', p)
    gone = generate('--store', STORE, '-c', '16')
    p = gone['receipt']['phases'][0]
    check(p.get('decision') == 'reference', 'a context that the measured bucket exceeds', p)


def control():
    """Three arms in turns (bench/graph_control.py): the routed one runs a prompt of the measured bucket on graph and a
    longer one on cpu, with the tokens that both single engines give."""
    out = os.path.join(TOP, 'control.json')
    r = subprocess.run([sys.executable, os.path.join(ROOT, 'bench', 'graph_control.py'), '--hetero', BIN, '--model', TALE,
                        '--store', STORE, '--rows', '12,32,33', '--slots', '2', '-o', out, '--ctx', '2048',
                        '--cache', os.path.join(TOP, 'compiled')],
                       env={**os.environ, **BASE, **ENV}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)
    if not check(r.returncode == 0, 'routed control', err(r)[-300:]):
        return
    cells = json.load(open(out))['cells']
    check([c['rows'] for c in cells] == [12, 32, 33], 'its lengths', cells)
    for c in cells:
        ran = {arm: x['ran'] for arm, x in c['arms'].items()}
        want = ['graph (promoted OK)'] if c['rows'] <= 32 else ['cpu (reference BUCKET)']
        check(ran['routed'] == want, '%d tokens: where the route sends them' % c['rows'], ran)
        check(ran['cpu'] == ['cpu (forced USER)'] and ran['graph'] == ['graph (forced USER)'], 'the single engines', ran)
        check(all(len(x['ttftNs']) == len(x['e2eNs']) == 2 for x in c['arms'].values()), 'all slots', c)
        check(all(0 < c['ratio'][a]['least'] <= c['ratio'][a]['hl'] <= c['ratio'][a]['most'] for a in ('cpu', 'graph')),
              'the ratios of both', c['ratio'])


def absent():
    """The same store where the library is not: the reference, and the receipt says why."""
    d = doc('run', TALE, '-p', TEXT, '-n', '4', '--temp', '0', '--json', '--store', STORE,
            env=dict(ENV, HETERO_OPENVINO='none'))
    p = d['receipt']['phases'][0] if d else {}
    check((p.get('decision'), p.get('engine')) == ('reference', 'cpu'), 'without the library', p)
    check(p.get('reason') in ('NO_ENGINE', 'OTHER_ASSETS'), 'its reason', p.get('reason'))


engine = [e for e in (doc('doctor', '--json') or {'engines': []})['engines'] if e['name'] == 'graph']
if engine and engine[0]['available']:
    routed()
    control()
    absent()
else:
    skip('graph_route', 'OpenVINO is not on this machine: make graph-runtime')
end()
