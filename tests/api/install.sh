#!/bin/sh
# install.sh BUILD - `make install` into a folder of its own: what arrives, whether programs build
# against it (archive and shared library, through pkg-config), whether the program finds its model.
. tests/lint/lib.sh
B=${1:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
p=/opt/hetero
check 'a space in B is told' "$(make -n B="$tmp/a b" 2>&1 | grep -q 'name one folder without a space' || echo 'it is not')"
if ! make --no-print-directory B="$B" DESTDIR="$tmp" PREFIX=$p install > "$tmp/log" 2>&1; then
    fail "make install: $(tail -n 5 "$tmp/log")"
    finish
    exit
fi
for f in bin/hetero lib/libhetero.a lib/libhetero.so.0 lib/libhetero.so include/hetero.h \
    lib/pkgconfig/hetero.pc share/hetero/models/tale-9m-f16.gguf share/man/man1/hetero.1 \
    share/man/man1/hetero-run.1 share/bash-completion/completions/hetero \
    share/zsh/site-functions/_hetero share/fish/vendor_completions.d/hetero.fish; do
    check "$f is installed" "$([ -s "$tmp$p/$f" ] || echo 'not there, or empty')"
done
cat > "$tmp/use.c" << 'IN'
#include <hetero.h>
#include <stdio.h>
int main(void)
{
    return printf("%s\n", ht_version()) > 0 && ht_code_name(HT_EIO) ? 0 : 1;
}
IN
if command -v pkg-config > /dev/null; then
    PKG_CONFIG_PATH=$tmp$p/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$tmp
    export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
    check 'a program builds against the shared library' "$(${CC:-gcc} "$tmp/use.c" -o "$tmp/use" \
        $(pkg-config --cflags --libs hetero) 2>&1 || echo failed)"
    check 'and runs' "$(LD_LIBRARY_PATH=$tmp$p/lib "$tmp/use" 2>&1 > /dev/null || echo 'exit status not 0')"
    unset PKG_CONFIG_SYSROOT_DIR # the libraries it needs lie outside of it
    check 'a program builds against the archive' "$(${CC:-gcc} -I"$tmp$p/include" "$tmp/use.c" -o "$tmp/use" \
        "$tmp$p/lib/libhetero.a" $(pkg-config --static --libs-only-l hetero | sed 's/-lhetero//') -pthread 2>&1 || echo failed)"
    check 'and runs' "$("$tmp/use" 2>&1 > /dev/null || echo 'exit status not 0')"
else
    skip 'install: pkg-config is not installed'
fi
check 'the installed program finds its model from anywhere' "$(cd / && "$tmp$p/bin/hetero" run -p 'Once' -n 2 --temp 0 \
    > "$tmp/out" 2> "$tmp/err" && [ -s "$tmp/out" ] || tail -n 3 "$tmp/err" | grep . || echo 'no output')"
for goal in all run test test-full lint bench install uninstall; do
    check "make $goal can be read" "$(make -n B="$B" $goal 2>&1 > /dev/null)"
done
make --no-print-directory B="$B" DESTDIR="$tmp" PREFIX=$p uninstall > "$tmp/log" 2>&1
check 'uninstall leaves no file' "$(find "$tmp$p" -type f -o -type l)"
finish
