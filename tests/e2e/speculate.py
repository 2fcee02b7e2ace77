"""Guessing ahead from outside: hetero run and chat write the same with and without it, the receipt counts it,
and what cannot work is refused with a reason."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
from e2e import SHARED, TALE, check, doc, end, err, run, skip

SOURCES = {
    'lookup': ['--lookup'],
    'lookup always': ['--lookup', '--draft-always', '--draft-max', '7'],
    'draft': ['-md', TALE],
    'draft always': ['-md', TALE, '--draft-always', '--draft-max', '5'],
    'both': ['-md', TALE, '--lookup', '--draft-always'],
}
TEXT = 'Tom had a red ball. Tom had a red ball and a blue kite. Tom had a red'


def decode(d):
    return d['receipt']['phases'][1]


def same_text():
    for how in (['--temp', '0'], ['--temp', '0.9', '-s', '11'], ['-s', '5', '--repeat-penalty', '1.3'],
                ['-s', '6', '--dry-multiplier', '0.8', '--stop', ' the']):
        args = ['run', TALE, '-p', TEXT, '-n', '48', '--ignore-eos', '-c', '256', '--json'] + how
        plain = doc(*args)
        if plain is None:
            continue
        check('speculation' not in decode(plain) and decode(plain)['drafted'] == 0, 'a plain run guesses nothing')
        for name, more in SOURCES.items():
            d = doc(*args, *more)
            if d is None:
                continue
            what = '%s %s' % (name, ' '.join(how))
            check(d['ids'] == plain['ids'] and d['text'] == plain['text'], what + ': text')
            check(d['finish'] == plain['finish'], what + ': finish')
            ph = decode(d)
            s = ph['speculation']
            check(ph['tokens'] == decode(plain)['tokens'], what + ': tokens', ph['tokens'])
            check(0 <= ph['accepted'] <= ph['drafted'], what + ': counts', ph)
            check(sum(g['drafted'] for g in ph['segments']) == ph['drafted'], what + ': segments')
            check(s['lookupDrafted'] + s['modelDrafted'] == ph['drafted'], what + ': sources', s)
            check(isinstance(s['millisecondsSaved'], int), what + ': milliseconds')
            check(s['mode'] == ('always' if 'always' in name or name == 'both' else 'adaptive'), what + ': mode')
            # The same model with the same draws is always right, so always means something here.
            if name == 'draft always' and len(plain['ids']) > 8:
                check(ph['accepted'] == ph['drafted'] > 0, what + ': an equal model is right', ph['drafted'])


def lines_for_people():
    r = run('run', TALE, '-p', TEXT, '-n', '24', '--temp', '0', '--ignore-eos', '--lookup', '--draft-always', '-c', '256')
    check(r.returncode == 0 and 'drafts ' in err(r) and ' accepted of ' in err(r), 'run says what it guessed', err(r))
    r = run('run', TALE, '-p', TEXT, '-n', '8', '--temp', '0', '-c', '256')
    check('drafts ' not in err(r), 'and nothing where nothing was guessed')
    r = run('run', TALE, '-p', TEXT, '-n', '8', '--temp', '0', '-c', '256', '--no-lookup', env={'HETERO_LOOKUP': '1'})
    check(r.returncode == 0 and 'drafts ' not in err(r), '--no-lookup wins over the environment', err(r))


def chat():
    talk = b'Tell me about a fox.\nTell me about a fox.\n'
    args = ['chat', TALE, '-n', '32', '--temp', '0', '-c', '512']
    plain = run(*args, data=talk)
    check(plain.returncode == 0 and plain.stdout, 'chat answers')
    for name, more in SOURCES.items():
        r = run(*args, *more, '-v', data=talk)
        check(r.stdout == plain.stdout, 'chat, ' + name, err(r)[-200:])
        check(err(r).count('drafts ') == 2, 'chat -v counts, ' + name, err(r)[-300:])


def no_room():
    """A context of one token: there is nothing to guess."""
    args = ('run', TALE, '--ids', '5', '-c', '1', '-n', '1', '--temp', '0', '--ignore-eos', '--json')
    plain = doc(*args)
    for name, more in SOURCES.items():
        d = doc(*args, *more)
        check(d and plain and (d['ids'], d['finish']) == (plain['ids'], plain['finish']), 'no room, ' + name, d)
    r = run('run', TALE, '-p', 'x', '-ub', '1', '-n', '4', '--lookup')
    check(r.returncode == 2 and 'open with 2 or more' in err(r), 'rows of one token', err(r))


def refused():
    for args, status, text in ((['--draft-max', '16', '--lookup'], 2, '--draft-max'),
                               (['-md', 'no/such/file.gguf'], 3, 'no/such/file.gguf'),
                               (['--lookup', '--draft-max', '2', '--draft-min', '3'], 2, 'at least 3')):
        r = run('run', TALE, '-p', 'x', '-n', '4', *args)
        check(r.returncode == status and text in err(r), ' '.join(args), err(r))
    foreign = os.path.join(SHARED, 'data', 'models', 'smollm2-draft-15m-q8_0.gguf')
    if not os.path.exists(foreign):
        skip('a foreign draft model', 'no ' + foreign)
        return
    r = run('run', TALE, '-p', 'x', '-n', '4', '-md', foreign)
    check(r.returncode == 2 and 'vocabularies differ' in err(r) and 'tale-9m' in err(r) and 'draft-15m' in err(r),
          'a foreign draft model is refused, both named', err(r))


same_text()
lines_for_people()
chat()
no_room()
refused()
end()
