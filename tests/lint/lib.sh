# lib.sh - shared by the lint scripts: each check is one case, the last line is the count.
n_pass=0 n_fail=0 n_skip=0
pass() { n_pass=$((n_pass + 1)); }
fail() { n_fail=$((n_fail + 1)); printf 'FAIL %s\n' "$*"; }
skip() { n_skip=$((n_skip + 1)); printf 'SKIP %s\n' "$*"; }
# check NAME TEXT: passes when TEXT is empty; else TEXT is what is wrong, a line each.
check() {
    if [ -z "$2" ]; then pass; else
        fail "$1:"
        printf '%s\n' "$2" | head -n 40 | sed 's/^/    /'
    fi
}
finish() {
    printf '%d passed, %d failed, %d skipped\n' "$n_pass" "$n_fail" "$n_skip"
    [ "$n_fail" -eq 0 ]
}
# Files git would take from here (committed or new), or, without git, all that is no build output.
files() {
    if [ -e .git ] && git ls-files > /dev/null 2>&1; then
        git ls-files -co --exclude-standard -- "$@" | while read -r f; do [ -f "$f" ] && echo "$f"; done
    else
        for d in "$@"; do [ -e "$d" ] && find "$d" -type f ! -path '*/build/*' ! -path '*/__pycache__/*'; done
    fi
}
