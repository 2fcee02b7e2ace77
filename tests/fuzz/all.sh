#!/bin/sh
# all.sh BUILD SECONDS TARGET... - fuzz each target for SECONDS, two at a time; one case per target.
B=$1
seconds=$2
shift 2
mkdir -p "$B/fuzz/crash"
run_one() {
    mkdir -p "$B/fuzz/new/$1" "$B/fuzz/log"
    dict=
    [ -f "tests/fuzz/$1.dict" ] && dict="-dict=tests/fuzz/$1.dict"
    "$B/test/fuzz_$1" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=3000 -print_final_stats=1 \
        -artifact_prefix="$B/fuzz/crash/$1-" $dict "$B/fuzz/new/$1" "tests/fuzz/corpus/$1" \
        > "$B/fuzz/log/$1" 2>&1
    echo $? > "$B/fuzz/log/$1.rc"
}
pass=0 fail=0
while [ $# -gt 0 ]; do
    a=$1 b=${2:-}
    shift
    run_one "$a" &
    if [ -n "$b" ]; then
        shift
        run_one "$b" &
    fi
    wait
    for t in $a $b; do
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$B/fuzz/log/$t")
        cov=$(grep -oE 'cov: [0-9]+' "$B/fuzz/log/$t" | tail -1)
        if [ "$(cat "$B/fuzz/log/$t.rc")" -eq 0 ]; then
            pass=$((pass + 1))
            printf 'ok   fuzz_%-14s %10s runs, %s, %s s\n' "$t" "$runs" "$cov" "$seconds"
        else
            fail=$((fail + 1))
            printf 'FAIL fuzz_%s (input in %s):\n' "$t" "$B/fuzz/crash"
            tail -n 40 "$B/fuzz/log/$t" | sed 's/^/    /'
        fi
    done
done
echo "$pass passed, $fail failed, 0 skipped"
[ "$fail" -eq 0 ]
