#!/bin/sh
# headers.sh BUILD - every header compiles alone as C11; the public one and the waist as C++11, with
# both compilers where both are there, without a warning.
. tests/lint/lib.sh
B=${1:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
inc="-Iinclude -Isrc -Itests -I$B/gen -D_GNU_SOURCE"
warn='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror'
try() { # COMPILER STANDARD HEADER
    printf '#include "%s"\n#include "%s"\n' "$3" "$3" > "$tmp/one.$4"
    check "$1 $2 $3" "$("$1" -std="$2" $warn $inc -fsyntax-only "$tmp/one.$4" 2>&1)"
}
for cc in gcc clang; do
    if ! command -v $cc > /dev/null; then
        skip "headers: $cc is not installed"
        continue
    fi
    for h in $(files src include tests/test.h | grep '\.h$'); do
        head -n 8 "$h" | tr -d '\n*' | grep -qE 'included *(once *)?by' && continue
        # Headers of an instruction set need its flags.
        isa=$(echo "$h" | sed -n 's,^src/backend/cpu/\([a-z0-9]*\)/.*,\1,p')
        [ -n "$isa" ] && isa=$(make -s --no-print-directory B="$B" print-isa-"$isa")
        inc_keep=$inc
        inc="$inc $isa"
        try $cc c11 "$(echo "$h" | sed 's,^src/,,; s,^include/,,; s,^tests/,,')" c
        inc=$inc_keep
    done
done
for cxx in g++ clang++; do
    if ! command -v $cxx > /dev/null; then
        skip "headers: $cxx is not installed"
        continue
    fi
    try $cxx c++11 hetero.h cc
    try $cxx c++11 step/step.h cc
done
# A C++ program against the archive: linkage of the names, not only their syntax.
cxx=$(command -v g++ || command -v clang++)
if [ -n "$cxx" ] && [ -f "$B/libhetero.a" ]; then
    cat > "$tmp/use.cc" << 'IN'
#include "hetero.h"
#include <cstdio>
int main()
{
    ht_err e;
    ht_vocab *v = nullptr;
    int rc = ht_vocab_open(&v, "/nonexistent", nullptr, &e);
    std::printf("%s %d\n", ht_version(), rc);
    return rc == HT_EIO && e.msg[0] && v == nullptr ? 0 : 1;
}
IN
    check 'a C++ program links and runs' "$({ "$cxx" -std=c++11 -Iinclude "$tmp/use.cc" "$B/libhetero.a" \
        ${LIBS:--lcrypto -lutf8proc -lpcre2-8 -lm} -pthread -o "$tmp/use" && "$tmp/use" > /dev/null; } 2>&1 || echo 'exit status not 0')"
else
    skip 'headers: no C++ compiler, or no libhetero.a'
fi
finish
