#!/bin/sh
# symbols.sh BUILD - what the linker sees: names of globals, globals that should be static, what the
# library takes from libc, what the shared library exports. Needs the archives, test programs' objects
# and libhetero.so.0 in BUILD.
. tests/lint/lib.sh
B=${1:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if ! [ -f "$B/libhetero.so.0" ]; then
    skip "symbols: $B/libhetero.so.0 is not built (make lint builds it)"
    finish
    exit
fi

# Objects whose source is still there; then "dir symbol object" of globals, "symbol object" of wants.
find "$B/obj" -name '*.o' | while read -r o; do
    s=${o#"$B"/obj/}
    [ -f "${s%.o}.c" ] && echo "$o"
done | sort > "$tmp/objects"
grep "^$B/obj/src/" "$tmp/objects" | xargs nm -A -g --defined-only | awk -v b="$B/obj/src/" '{
    o = $1; sub(/:[0-9a-f]*$/, "", o); d = substr(o, length(b) + 1); sub(/\/[^\/]*$/, "", d)
    print d, $NF, o }' > "$tmp/globals"
xargs -a "$tmp/objects" nm -A -u | awk '{ o = $1; sub(/:$/, "", o); print $NF, o }' > "$tmp/wants"

check 'globals are ht_* or <dir>__*' "$(awk '{
    n = split($1, part, "/"); own = 0
    for (i = 1; i <= n; i++) if (index($2, part[i] "__") == 1) own = 1
    if (!own && $2 !~ /^ht_/ && !($1 == "cli" && $2 == "main")) print $2 " in " $3 }' "$tmp/globals")"

grep -oE '\bht_[a-z0-9_]+ ?\(' include/hetero.h | tr -d ' (' | sort -u > "$tmp/public"
check 'a global used in one object only is static (or gone)' "$(awk '
    FILENAME == ARGV[1] { public[$1]; next }
    FILENAME == ARGV[2] { used[$1]; next }
    !($2 in public) && !($2 in used) && $2 != "main" { print $2 " in " $3 }' \
    "$tmp/public" "$tmp/wants" "$tmp/globals")"
check 'every function of hetero.h is there' "$(awk '{ print $2 }' "$tmp/globals" | sort -u | comm -13 - "$tmp/public")"

lib_wants() { # $1: regexp of symbols; $2: objects allowed to want them
    grep "$B/obj/src/" "$tmp/wants" | grep -v "$B/obj/src/cli/" | grep -vE "obj/src/($2)\.o$" |
        awk -v r="^($1)(@.*)?$" '$1 ~ r { print $1 " in " $2 }'
}
check 'the library allocates in core/arena.c only' \
    "$(lib_wants 'malloc|calloc|realloc|reallocarray|free|strn?dup|v?asprintf|aligned_alloc|posix_memalign|getline' 'core/(arena|buf)')"
check 'the library never exits or prints' \
    "$(lib_wants 'exit|_exit|abort|puts|putchar|printf|vprintf|__printf_chk|__vprintf_chk|perror|stdout|stderr' '-')"
check 'the library reads the environment in core/opt.c only' "$(lib_wants '(secure_)?getenv|environ|__environ' 'core/opt')"

nm -D --defined-only "$B/libhetero.so.0" | awk '$2 ~ /[TBDRV]/ { sub(/@.*/, "", $3); print $3 }' |
    sort -u > "$tmp/exports"
check 'libhetero.so exports what hetero.h declares, nothing else' "$(diff "$tmp/public" "$tmp/exports")"
check 'no executable stack, no text relocations' "$(readelf -lW "$B/libhetero.so.0" | awk '/GNU_STACK/ && /E/ && $7 ~ /E/')$(readelf -dW "$B/libhetero.so.0" | grep TEXTREL)"
finish
