"""Committed documents agree with the program: manual pages and completions are what it prints, the exit
statuses and errors of docs/ are real, and the examples of README.md and of the manual run."""
import os
import re
import shlex
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import BIN, ENV, ROOT, check, end, err, run, skip, tmp

COMMANDS = ('run', 'chat', 'serve', 'pack', 'inspect', 'tokenize', 'template', 'explain', 'bench', 'ppl', 'logits',
            'doctor', 'qualify', 'quality', 'compare', 'sim', 'report', 'bench-slot', 'keys', 'verify', 'promote',
            'revoke', 'routes', 'receipts', 'prefix', 'kv-probe', 'version', 'help')


def read(*path):
    return open(os.path.join(ROOT, *path), encoding='utf-8').read()


def made_from_the_table():
    pages = {'hetero.1': ['--man']}
    pages.update({'hetero-%s.1' % c: ['--man', c] for c in COMMANDS})
    for name, args in pages.items():
        check(run('help', *args).stdout.decode() == read('docs', 'man', name), 'docs/man/' + name,
              'differs: hetero help %s > docs/man/%s' % (' '.join(args), name))
    check(sorted(os.listdir(os.path.join(ROOT, 'docs', 'man'))) == sorted(pages), 'docs/man holds these pages only')
    for shell, name in (('bash', 'hetero.bash'), ('zsh', '_hetero'), ('fish', 'hetero.fish')):
        text = run('help', '--completion', shell).stdout.decode()
        check(text == read('docs', 'completions', name), 'docs/completions/' + name, 'differs')
        if shutil.which(shell):
            r = subprocess.run([shell, '-n', os.path.join(ROOT, 'docs', 'completions', name)], stderr=subprocess.PIPE)
            check(r.returncode == 0, shell + ' reads its completions', err(r))
        else:
            skip(shell + ' reads its completions', 'it is not installed')
    script = ('. docs/completions/hetero.bash; COMP_WORDS=(hetero run --top-); COMP_CWORD=2; _hetero; echo "${COMPREPLY[@]}"; '
              'COMP_WORDS=(hetero run --act ""); COMP_CWORD=3; _hetero; echo "${COMPREPLY[@]}"; '
              'COMP_WORDS=(hetero be); COMP_CWORD=1; _hetero; echo "${COMPREPLY[@]}"')
    got = subprocess.run(['bash', '-c', script], cwd=ROOT, stdout=subprocess.PIPE).stdout.decode().split('\n')
    check(got[:3] == ['--top-k --top-p', 'f32 q8 f16', 'bench bench-slot'], 'bash completes', got)


def statuses_agree():
    table = dict(re.findall(r'^\| (\d+) \| ([^|]+) \|', read('docs', 'cli.md'), re.M))
    page = read('docs', 'man', 'hetero.1')
    for status in table:
        check(re.search(r'^\.TP\n%s\n' % status, page, re.M), 'status %s is in the manual' % status)
    check(set(table) == {'0', '1', '2', '3', '4', '5', '6', '130'}, 'statuses of docs/cli.md', sorted(table))


def catalogue_is_real():
    """Rows of docs/errors.md that name a literal message: produce it."""
    text = read('docs', 'errors.md')
    cases = [(['run', '--tmep', '1'], 'unknown option --tmep; did you mean --temp?', 2),
             (['run', '--chunks', '3'], "option --chunks belongs to 'hetero ppl'", 2),
             (['run', '-ngl', '1'], "is not one of hetero's:", 2),
             (['rnu'], "unknown command 'rnu'; did you mean 'run'?", 2),
             (['logits', '--ids', '1'], 'no model: give a GGUF file', 2),
             (['run', '-p', 'x', '--engine', 'warp'], 'engine "warp" is unknown; this build has:', 2),
             (['run', '-p', ''], 'the prompt is empty', 2),
             (['doctor', '--require-device', 'warp'], 'this build has none of that name', 4)]
    for args, message, status in cases:
        check(message in text, 'docs/errors.md has: ' + message)
        r = run(*args)
        check(message in err(r) and r.returncode == status, 'is produced: ' + message, (r.returncode, err(r)))


def examples():
    """Every `hetero ...` line of README.md's blocks and of the manual's short examples runs."""
    readme = read('README.md')
    lines = [l.strip() for b in re.findall(r'```\n(.*?)```', readme, re.S) for l in b.split('\n')]
    lines = [l.split('  #')[0].strip() for l in lines if l.startswith('hetero ')]
    check(len(lines) >= 10, 'examples found in README.md', len(lines))
    manual = ['hetero run -p \'Once upon a time\' -n 40 --temp 0', 'hetero help run', 'hetero version --json',
              'hetero logits models/tale-9m-f16.gguf --ids 5,17,3 --at 0,2 --json', 'hetero doctor --require-device cpu --json',
              'hetero explain models/tale-9m-f16.gguf -p 128 -d 1024 --json']
    pages = ''.join(read('docs', 'man', 'hetero-%s.1' % c) for c in COMMANDS).replace('\\-', '-').replace('\\(dq', '"')
    with tmp() as t:
        for line in lines + manual:
            check(line in lines or line in pages, 'is an example of the manual: ' + line)
            words = [w.replace('/tmp/', t + '/') for w in shlex.split(line)]
            r = run(*words[1:])
            check(r.returncode == 0 and r.stdout, 'example: ' + line, err(r))


def shown():
    """What README.md's blocks show behind `$ ./hetero ...` is what comes out, but for numbers in the lines on standard
    error, which are times and counts of one run. Each runs twice, since one shows its second time."""
    def words(line):
        return re.sub(r'[0-9.]+( [KMG]iB)?', '#', line).rstrip()
    found = re.findall(r'```\n\$ \./(hetero [^\n]*)\n(.*?)```', read('README.md'), re.S)
    check(len(found) >= 5, 'runs that README.md shows', len(found))
    with tmp() as t:
        for line, text in found:
            args = shlex.split(line.split('  #')[0].replace('~', t))[1:]
            check(run(*args).returncode == 0, 'README.md: ' + line)
            r = run(*args)
            out, log = r.stdout.decode().split('\n'), [words(x) for x in err(r).split('\n')]
            for want in text.rstrip('\n').split('\n'):
                check(want in out or words(want) in log, 'README.md shows: ' + want, (line, r.stdout[:200], log))


def servers_options():
    """docs/serve.md, "From llama-server and Ollama": what is on the left is taken or refused with a reason, and what is
    on the right is there."""
    rows = re.findall(r'^\| (.*) \| (.*) \|$', read('docs', 'serve.md').split('## From llama-server')[1].split('\n## ')[0], re.M)
    has = run('serve', '--help').stdout.decode()
    had = 0
    for there, here in rows:
        for o in re.findall(r'(?<![\w-])--?[a-z][a-z-]*', ' '.join(re.findall(r'`([^`]*)`', there))):
            said, had = err(run('serve', '/none.gguf', o, '1')), had + 1
            check('unknown option' not in said, 'docs/serve.md, there: ' + o, said)
            check('is not one of' in said or 'belongs to' in said or re.search(r'(^|[ ,])%s[ ,]' % o, has, re.M),
                  'taken or refused with a reason: ' + o, said)
        for o in re.findall(r'(?<![\w-])--?[a-z][a-z-]*', ' '.join(re.findall(r'`([^`]*)`', here))):
            check(re.search(r'(^|[ ,])%s[ ,]' % o, has, re.M), 'docs/serve.md, here: ' + o)
    check(had > 25, 'options of the table', had)


def links():
    for name in re.findall(r'`((?:docs|src|include|bench|examples|evidence|tools)/[A-Za-z0-9_./-]+|[A-Z]+\.md)`', read('README.md')):
        check(os.path.exists(os.path.join(ROOT, name)), 'README.md names %s' % name)


for part in (made_from_the_table, statuses_agree, catalogue_is_real, examples, shown, servers_options, links):
    part()
end()
