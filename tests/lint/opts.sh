#!/bin/sh
# opts.sh BUILD - the option table is the only source of switches: help, man pages, completions and
# HETERO_* names agree with it, and no file spells an environment name of its own.
. tests/lint/lib.sh
B=${1:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

check 'HETERO_* names are spelled in src/core/opt*.c only' "$(files src | grep '\.[ch]$' |
    grep -v '^src/core/opt' | xargs grep -nHE '"HETERO_[A-Z]' | head)"
if ! [ -x "$B/hetero" ]; then
    skip "options: $B/hetero is not built"
    finish
    exit
fi
"$B/hetero" help > "$tmp/help" 2> "$tmp/err" || fail "hetero help: $(cat "$tmp/err")"
commands=$(sed -nE 's/^ *\[HT_CMD_[A-Z]+\] = \{"([a-z-]+)".*/\1/p' src/core/opt_table.c)
[ -n "$commands" ] && pass || fail 'no commands found in src/core/opt_table.c'
for c in $commands; do
    check "hetero help names $c" "$(grep -qwF "$c" "$tmp/help" || echo "$c is not in the list")"
    if "$B/hetero" "$c" --help > "$tmp/$c" 2> "$tmp/err" && [ -s "$tmp/$c" ]; then pass; else
        fail "hetero $c --help: $(head -n 1 "$tmp/err")"
        continue
    fi
    # Every long option of the help is in the man page, and none is listed twice.
    grep -oE '(^|[ ,])--[a-z0-9-]+' "$tmp/$c" | tr -d ' ,' | sort -u > "$tmp/long"
    "$B/hetero" help "$c" --man > "$tmp/man" 2> "$tmp/err" || fail "hetero help $c --man: $(head -n 1 "$tmp/err")"
    sed 's/\\-/-/g' "$tmp/man" > "$tmp/man.plain"
    check "hetero-$c(1) documents what --help lists" "$(while read -r o; do
        grep -qF -- "$o" "$tmp/man.plain" || echo "$o is missing"; done < "$tmp/long")"
done
# Committed copies, for readers of the repository and packagers: `make docs` renews them.
if [ -d docs/man ]; then
    check 'docs/man/hetero.1 is current (make docs)' "$("$B/hetero" help --man 2>&1 | diff -q - docs/man/hetero.1)"
    for c in $commands; do
        check "docs/man/hetero-$c.1 is current (make docs)" \
            "$("$B/hetero" help "$c" --man 2>&1 | diff -q - "docs/man/hetero-$c.1" 2>&1)"
    done
fi
"$B/hetero" run --no-such-option > /dev/null 2> "$tmp/err"
rc=$?
check 'an unknown option is refused by name' "$([ $rc -ne 0 ] && grep -q 'no-such-option' "$tmp/err" || cat "$tmp/err" - < /dev/null; [ $rc -ne 0 ] || echo 'exit status 0')"
for shell in bash zsh fish; do
    "$B/hetero" help --completion $shell > "$tmp/completion" 2> "$tmp/err" ||
        fail "completion for $shell: $(head -n 1 "$tmp/err")"
    check "completion for $shell names every command" "$(for c in $commands; do
        grep -qw -- "$c" "$tmp/completion" || echo "$c"; done)"
    case $shell in zsh) kept=docs/completions/_hetero ;; *) kept=docs/completions/hetero.$shell ;; esac
    [ -d docs/completions ] && check "$kept is current (make docs)" "$(diff -q "$tmp/completion" $kept 2>&1)"
done
finish
