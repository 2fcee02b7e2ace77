#!/bin/sh
# deps.sh - who may include whom: every #include "dir/file.h" in src/ against src/DEPS, which must be
# acyclic. Tests itself first on a tree with a planted forbidden include, unknown directory, bare
# include and cycle. Directories below a listed one (backend/cpu/avx2) count as that one.
. tests/lint/lib.sh

# Includes under $1/src that DEPS does not grant, a line each.
bad_includes() {
    ( cd "$1" && find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort | xargs -r grep -nHE \
        '^[ 	]*#[ 	]*include[ 	]+"' | awk -F: '
        function known_dir(d) { while (!(d in known) && sub(/\/[^\/]*$/, "", d)); return d in known ? d : "" }
        FILENAME == "src/DEPS" {
            if ($1 !~ /^#/ && NF > 1) { n = split($2, a, " "); known[$1]; for (i = 1; i <= n; i++) ok[$1, a[i]] }
            next }
        { f = $1; line = $2; sub(/^src\//, "", f); d = f; sub(/\/[^\/]*$/, "", d); from = known_dir(d)
          t = $0; sub(/^[^"]*"/, "", t); sub(/".*$/, "", t)
          if (from == "") { print f ": directory " d " is not in src/DEPS"; next }
          if (t == "hetero.h" || t == "version.h") next
          if (t !~ /\// || t ~ /\.\./) { print f ":" line ": write \"" t "\" as \"dir/file.h\""; next }
          sub(/\/[^\/]*$/, "", t); to = known_dir(t)
          if (to == "") print f ":" line ": " t " is not in src/DEPS"
          else if (from != to && !((from, to) in ok)) print f ":" line ": " from " may not include " to "/" }
        ' src/DEPS - )
}
# Names on a cycle of $1/src/DEPS; every name of a right-hand side must have a line of its own.
cycles() {
    awk -F: '$1 !~ /^#/ && NF > 1 { print $1, $1; n = split($2, a, " "); for (i = 1; i <= n; i++) print a[i], $1 }' \
        "$1/src/DEPS" | tsort 2>&1 > /dev/null | grep -v 'input contains a loop'
    awk -F: '$1 !~ /^#/ && NF > 1 { has[$1]; n = split($2, a, " "); for (i = 1; i <= n; i++) want[a[i]] = $1 }
        END { for (w in want) if (!(w in has)) print w " (named by " want[w] ") has no line" }' "$1/src/DEPS"
}

# ---- self-test
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/src/core" "$tmp/src/low/deep" "$tmp/src/high"
printf '# comment: x\ncore:\nlow: core\nhigh: core low\n' > "$tmp/src/DEPS"
printf '#include "core/a.h"\n#include "low/b.h"\n#include "hetero.h"\n#include <stdio.h>\n' > "$tmp/src/high/h.c"
printf '  #  include "core/a.h"\n#include "low/deep/x.h"\n' > "$tmp/src/low/deep/l.c"
check 'self-test: a clean tree is clean' "$(bad_includes "$tmp")$(cycles "$tmp")"
plant() { # NAME FILE TEXT: planting TEXT must be noticed
    printf '%s\n' "$3" > "$tmp/src/$2"
    got=$(bad_includes "$tmp")
    rm "$tmp/src/$2"
    if [ -n "$got" ]; then pass; else fail "self-test: $1 went unnoticed"; fi
}
plant 'an include upwards' low/u.c '#include "high/h.h"'
plant 'an include upwards from a subdirectory' low/deep/u.h '	# include "high/h.h"'
plant 'an include from core' core/c.c '#include "low/b.h"'
plant 'an include of an unknown directory' low/u.c '#include "other/o.h"'
plant 'an include without a directory' low/u.c '#include "b.h"'
plant 'an include through ..' low/u.c '#include "../high/h.h"'
mkdir "$tmp/src/new" && plant 'a directory without a line' new/n.c '#include "core/a.h"'
printf 'core: high\nlow: core\nhigh: core low\n' > "$tmp/src/DEPS"
[ -n "$(cycles "$tmp")" ] && pass || fail 'self-test: a cycle went unnoticed'
printf 'core:\nlow: core nowhere\n' > "$tmp/src/DEPS"
[ -n "$(cycles "$tmp")" ] && pass || fail 'self-test: a name without a line went unnoticed'

# ---- this tree
check 'includes that src/DEPS does not grant' "$(bad_includes .)"
check 'src/DEPS must be acyclic and complete' "$(cycles .)"
check 'src/DEPS names a directory before those that include it' "$(awk -F: '$1 !~ /^#/ && NF > 1 {
    n = split($2, a, " "); for (i = 1; i <= n; i++) if (!(a[i] in seen)) print $1 " before " a[i]; seen[$1] }' src/DEPS)"
finish
