#!/bin/sh
# format.sh - .c files as .clang-format lays them out. Headers are laid by hand: their columns of
# comments are tables. Skipped without clang-format; other major versions than 14 may differ.
. tests/lint/lib.sh
if ! command -v clang-format > /dev/null; then
    skip 'format: clang-format is not installed'
    finish
    exit
fi
for f in $(files src tests bench | grep '\.c$'); do
    head -n 5 "$f" | grep -qi 'generated' && continue
    check "clang-format -i $f" "$(clang-format --dry-run -Werror "$f" 2>&1 | grep -c 'error:' | sed 's/$/ places/; /^0 /d')"
done
finish
