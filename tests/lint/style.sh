#!/bin/sh
# style.sh - the rules of HACKING.md that a text search can check.
. tests/lint/lib.sh
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
files src include tests bench | grep -E '\.(c|h|cc|cu|cuh)$' > "$tmp/code"
grep -E '^(src|include)/' "$tmp/code" > "$tmp/lib"
# Generated files and tables say so in their first lines and are exempt from the length rules.
generated() { while read -r f; do head -n 5 "$f" | grep -qi 'generated' || echo "$f"; done; }
generated < "$tmp/code" > "$tmp/written"

check 'files under 1,500 lines' "$(xargs -a "$tmp/written" awk 'FNR == 1500 { print FILENAME }')"

long_functions() { # a body stands between a "{" and a "}" that are alone in column one
    awk 'FNR == 1 { at = 0 } /^{$/ { at = FNR } /^}$/ && at {
        if (FNR - at + 1 >= 80) print FILENAME ":" at ": " FNR - at + 1 " lines"; at = 0 }' "$@"
}
{ echo '{'; yes '    x;' | head -n 78; echo '}'; } > "$tmp/long.c"
{ echo '{'; yes '    x;' | head -n 77; echo '}'; } > "$tmp/short.c"
[ -n "$(long_functions "$tmp/long.c")" ] && [ -z "$(long_functions "$tmp/short.c")" ] && pass ||
    fail 'self-test: the length of a function is not measured'
check 'functions under 80 lines' "$(long_functions $(cat "$tmp/written"))"
check 'lines of 100 columns at most' "$(xargs -a "$tmp/written" env LC_ALL=C.UTF-8 grep -nHE '^.{101}' | cut -c1-120)"
check 'no tabs, no white space at the end of a line' "$(xargs -a "$tmp/code" grep -nHE '	|[ ]+$' | head -n 20)"

# $1: what; $2: extended regexp; $3: files allowed to (regexp). Comments and strings are blanked.
banned() {
    check "$1" "$(grep -vE "$3" "$tmp/lib" | xargs awk -v pat="(^|[^A-Za-z0-9_>.])($2)[ ]*\\\\(" '
        FNR == 1 { inside = 0 }
        { s = $0; gsub(/\\./, "", s); gsub(/"[^"]*"/, "\"\"", s)
          if (inside) { if (!sub(/^.*\*\//, "", s)) next; inside = 0 }
          gsub(/\/\*[^*]*\*+([^\/*][^*]*\*+)*\//, "", s); sub(/\/\/.*/, "", s)
          if (sub(/\/\*.*/, "", s)) inside = 1
          if (s ~ pat) print FILENAME ":" FNR ": " $0 }')"
}
banned 'getenv only in src/core/opt.c' 'getenv|secure_getenv|setenv|putenv' '^src/core/opt\.c$'
banned 'malloc only in src/core/arena.c and buf.c' \
    'malloc|calloc|realloc|reallocarray|free|strdup|strndup|asprintf|vasprintf|getline|aligned_alloc|posix_memalign' \
    '^src/core/(arena|buf)\.c$'
banned 'banned functions (unbounded, locale- or state-bound)' \
    'strcpy|strcat|strncpy|strncat|stpcpy|sprintf|vsprintf|gets|strtok|atoi|atol|atof|rand|srand|random|alloca|localtime|gmtime|asctime|ctime|system|popen|tmpnam|mktemp|setjmp|longjmp' '^$'
banned 'the locale belongs to the program' 'setlocale' '^src/cli/'
banned 'no exit, abort or print below cli/' \
    'exit|_exit|quick_exit|abort|printf|puts|putchar|perror|vprintf' '^src/cli/'
check 'no stdout or stderr below cli/' "$(grep -v '^src/cli/' "$tmp/lib" | xargs grep -nHwE 'stdout|stderr' |
    grep -vE '\*|"[^"]*(stdout|stderr)' | head)"

files src include tests bench tools mk Makefile .ci > "$tmp/all"
check 'nothing unfinished' "$(grep -vE '^tests/lint/style.sh$|^tests/data/|/corpus/' "$tmp/all" |
    xargs grep -nHIwE 'TODO|FIXME|XXX' | head)"
check 'no compiler flag that changes values or ties to one machine' "$(cat Makefile mk/*.mk | grep -v '^ *#' |
    grep -nE 'ffast-math|march=native|mtune=native|Ofast|funsafe')"
check 'every file says what it is: first line "/* name - role"' "$(while read -r f; do
    b=$(basename "$f")
    head -n 1 "$f" | grep -qF "/* $b - " || echo "$f"; done < "$tmp/code")"
# A header that is a body for several compilations has none and says "included by" at its top.
check 'headers have include guards' "$(grep '\.h$' "$tmp/code" | while read -r f; do
    head -n 8 "$f" | tr -d '\n*' | grep -qE 'included *(once *)?by' && continue
    grep -qE '^#ifndef (HT|HETERO)_[A-Z0-9_]+_?H$|^#ifndef HETERO_H$' "$f" || echo "$f"; done)"
check 'no path of one machine' "$(grep -vE '^tests/data/|/corpus/' "$tmp/all" | xargs grep -nHIE '(^|[^A-Za-z0-9_.])/(work|root|home/[a-z]+)/' |
    grep -v '^tests/lint/style.sh' | head)"
finish
