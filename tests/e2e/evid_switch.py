"""The verifier against every damage of evidence.md 8 that a bundle can take, and against itself: each mutation
is refused for its stated reason by hetero's verifier and by tools/verify_bundle.py, its unmutated twin is
accepted by both, and each check of the C verifier is switched off in turn (tests/switch): the mutation it stands
for must then end otherwise, so that no check can be lost without a failing test."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
import mutations as M
from bundle import V
from e2e import ROOT, check, end, tmp

SWITCH = os.environ.get('CHECK_SWITCH', os.path.join(ROOT, 'build', 'test', 'check_switch'))


class Verifier:
    """The numbered verifier, fed line by line."""

    def __init__(self):
        with open(os.path.join(os.path.dirname(SWITCH), '..', 'switch', 'checks.json')) as f:
            self.checks = json.load(f)
        self.child = subprocess.Popen([SWITCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, text=True)

    def ask(self, off, case):
        line = [str(off), str(case.now), case.trust, case.top] + ([case.paper] if case.paper else [])
        self.child.stdin.write('\t'.join(line) + '\n')
        self.child.stdin.flush()
        end_, fired, says = self.child.stdout.readline().rstrip('\n').split('\t', 2)
        return end_, [int(x) for x in fired.split(',') if x], says

    def name(self, i):
        c = self.checks[i]
        return '%s:%d %s' % (c['file'], c['line'], c['reads'][:70])


def python(case):
    try:
        with open(case.trust, 'rb') as f:
            trust = V.read_trust(f.read())
        d = V.verify(case.top, trust, case.now, case.paper_bytes)
        return 'ok', d.get('canary', d['class'])
    except (V.Refused, OSError) as e:
        return 'refused', str(e)


def main():
    v = Verifier()
    seen, lies = {}, {}
    with tmp() as t:
        for case in M.cases():
            case.write(t, lies)
            got, fired, says = v.ask(-1, case)
            mine, why = python(case)
            parts = (case.says,) if isinstance(case.says, str) else case.says
            check(got == case.want and all(x in says for x in parts), case.name, '%s: %s' % (got, says))
            check(mine == got, '%s: the two verifiers agree' % case.name, 'Python: %s %s' % (mine, why))
            if got == mine == 'ok':
                check(says.split()[0] == why, '%s: same class' % case.name, '%s, %s' % (says.split()[0], why))
            for i in fired:
                if i not in seen:
                    again = v.ask(i, case)
                    if (again[0], again[2]) != (got, says):
                        seen[i] = case.name
            case.clean()
    for i, c in enumerate(v.checks):
        where = '%s:%s' % (c['file'], c['function'])
        why = M.UNREACHED.get((c['file'], c['function'], c['reads'].split(' return')[0].split(' {')[0]))
        check(i in seen or why, 'switched off, check %s is missed' % v.name(i), 'no mutation ends otherwise')
        if why:
            check(i not in seen, '%s is reached after all: take it off the list' % where)
    v.child.stdin.close()
    check(v.child.wait() == 0, 'the numbered verifier ends well')


main()
end()
