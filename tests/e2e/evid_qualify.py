"""hetero qualify from outside: a bundle that verifies, whose verdict on a host without stable clocks or
with foreign load is NOT_ADMISSIBLE_ENV, whatever was measured (product.md 5.7)."""
import hashlib
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import TALE, check, doc, end, err, run, skip, tmp

HOLD = tmp()
ENV = {'XDG_STATE_HOME': os.path.join(HOLD.name, 'state')}


def main():
    findings = (doc('doctor', '--json') or {}).get('findings', [])
    blind = [f for f in findings if 'is not known here' in f['what']]
    if not blind:
        skip('qualify', 'this host shows every guard: its verdict is about speed')
        return
    out = os.path.join(HOLD.name, 'ev')
    r = run('qualify', 'd32', TALE, '--candidate', 'cover=plain', '--json', '-o', out, env=ENV, timeout=1200)
    check(r.returncode == 6, 'exit status', '%d: %s' % (r.returncode, err(r)[-300:]))
    d = json.loads(r.stdout) if r.stdout else {}
    check(d.get('verdict', {}).get('class') == 'NOT_ADMISSIBLE_ENV', 'class', d)
    check(d.get('verdict', {}).get('productionEligible') is False, 'not eligible', d)
    check('not qualified: NOT_ADMISSIBLE_ENV' in err(r) and ('UNKNOWN_' in err(r) or 'VOID_' in err(r)), 'told why', err(r))
    # The guard by its name: one that the policy asks for and this host does not show, or one that was red.
    folder = d.get('bundle', '')
    policy = json.load(open(os.path.join(folder, 'policy.json')))['guards']
    samples = [json.loads(x) for x in open(os.path.join(folder, 'samples.jsonl'))]
    limit = {'foreignCpuPpm': policy['maxForeignCpuPpm'], 'stealPpm': policy['maxStealPpm'], 'psiPpm': policy['maxPsiPpm']}
    if json.load(open(os.path.join(folder, 'design.json')))['cpus'] < policy['psiMinCpus']:
        limit['psiPpm'] = 10**6
    red = {g for s in samples for g, v in s['guards'].items()
           if v is False or (isinstance(v, int) and v is not True and v > limit.get(g, 0))}
    gates = {g['gate']: g for g in d['verdict']['cells'][0]['gates']}
    why = gates['environment']['reason']
    if why == 'OK': # every attempt was void
        why = 'VOID_' + '+'.join(sorted(red))
        check(gates['voids'] == {'gate': 'voids', 'reason': why, 'result': 'FAIL'}, 'which guards were red: ' + why, gates)
    else:
        check(why[8:] in policy['required'] and any(why[8:] in f['what'] for f in blind), 'which guard: ' + why, blind)
    check(all(f.get('next') for f in findings), 'a next step for every finding', findings)
    folder = d.get('bundle', '')
    if not check(os.path.isdir(folder), 'bundle', folder):
        return
    inputs = open(os.path.join(folder, 'inputs.manifest.json'), 'rb').read()
    check(hashlib.sha256(inputs).hexdigest() == os.path.basename(folder), 'the name is the digest')
    names = {f['path'] for f in json.loads(inputs)['files']}
    for need in ('design.json', 'journal.jsonl', 'machine/before.json', 'machine/telemetry.jsonl', 'policy.json',
                 'prompts.jsonl', 'samples.jsonl', 'subject/modelpack.json', 'build/toolchain.json'):
        check(need in names, need + ' is an input')
    machine = json.load(open(os.path.join(folder, 'machine', 'before.json')))
    text = json.dumps(machine)
    check(os.uname().nodename not in text or len(os.uname().nodename) < 4, 'no host name')
    for line in open(os.path.join(folder, 'samples.jsonl')):
        s = json.loads(line)
        check(set(s['guards']) >= {'stealPpm', 'clocksSteady', 'psiPpm'}, 'guards in the sample')
        break
    check(os.stat(os.path.join(HOLD.name, 'state', 'hetero', 'bench.pem')).st_mode & 0o777 == 0o600, 'key mode')
    for args, status, why in ((('qualify', 'p33', TALE, '--candidate', 'threads=1'), 2, 'bucket "p33"'),
                              (('qualify', 'c32,p32,c32', TALE, '--candidate', 'threads=1'), 2, 'bucket c32 is given twice'),
                              (('qualify', 'd32', TALE), 2, 'usage: hetero qualify'),
                              (('qualify', 'd32', TALE, '--candidate', 'model=x'), 2, 'does not change the model'),
                              (('qualify', 'd32', TALE, '--candidate', 'threads=1', '-t', '1'), 2, '--threads')):
        r = run(*args, env=ENV)
        check(r.returncode == status and why in err(r), ' '.join(args)[-40:], err(r))


main()
end()
