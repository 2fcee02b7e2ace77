#!/bin/sh
# attacks.sh - docs/attacks.md names a test for each of the 47 groups of evidence.md 8, and each test
# that it names exists.
. tests/lint/lib.sh

T=docs/attacks.md
rows() { sed -n 's/^| *\([0-9][0-9]*\) *|.*| *\(.*\) *|$/\1 \2/p' "$T"; }
have() {
    case $1 in
    fuzz_*) [ -f "tests/fuzz/$1.c" ] ;;
    *.py:*) grep -qE "^def ${1#*:}\(" "tests/e2e/${1%%:*}" 2>/dev/null ;;
    *.*) grep -rqE "T_CASE[A-Z_]*\(${1%%.*}, *${1#*.}[,)]" tests --include=*.c ||
        [ -f "tests/unit/${1%%.*}/${1#*.}.c" ] ;;
    *) false ;;
    esac
}
missing=
for n in $(seq 1 47); do
    [ "$(rows | grep -c "^$n ")" = 1 ] || missing="$missing$n "
done
check 'every group of evidence.md 8 stands in the table once' "$missing"
missing=$(rows | while read -r n tests; do
    [ -n "$tests" ] || echo "$n: no test"
    for t in $tests; do have "$t" || echo "$n: $t"; done
done)
check 'every test that the table names exists' "$missing"
have plan.no_such_case && fail 'self-test: a case that is not there is seen' || pass
have evid.py:no_such_function && fail 'self-test: a function that is not there is seen' || pass
finish
