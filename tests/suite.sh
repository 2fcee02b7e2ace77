#!/bin/sh
# suite.sh - run test programs one after the other and add up their closing lines.
# usage: suite.sh LOGDIR NAME COMMAND [NAME COMMAND]...
# A program ends with "N passed, N failed[, N skipped]"; one that does not, or that exits non-zero
# without a failed case, or that runs over TEST_TIMEOUT seconds, counts as one failure. Ends with one
# such line of its own; exit status 1 when anything failed.
log=$1
shift
mkdir -p "$log"
pass=0 fail=0 skip=0
while [ $# -ge 2 ]; do
    name=$1 command=$2
    shift 2
    start=$(date +%s)
    # `timeout` gets its own process group and ends all of it.
    timeout -k 10 "${TEST_TIMEOUT:-1500}" sh -c "$command" > "$log/$name.log" 2>&1
    rc=$?
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$log/$name.log" | tail -1)
    p=$(echo "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
    f=$(echo "$line" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')
    s=$(echo "$line" | sed -n 's/.* \([0-9]*\) skipped.*/\1/p')
    p=${p:-0} f=${f:-0} s=${s:-0}
    note=
    if [ -z "$line" ]; then
        f=1 note=" (exit status $rc, no closing line)"
    elif [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1 note=" (exit status $rc)"
    fi
    if [ "$f" -gt 0 ]; then
        printf 'FAIL %s%s, end of %s:\n' "$name" "$note" "$log/$name.log"
        tail -n 60 "$log/$name.log" | sed 's/^/    /'
    else
        grep -aE '^SKIP ' "$log/$name.log" | sed "s/^/$name: /"
    fi
    printf '%-5s%-22s %5d ok %4d bad %4d skipped %5d s\n' "$([ "$f" -eq 0 ] && echo ok || echo FAIL)" \
        "$name" "$p" "$f" "$s" $(($(date +%s) - start))
    pass=$((pass + p)) fail=$((fail + f)) skip=$((skip + s))
done
echo "$pass passed, $fail failed, $skip skipped"
[ "$fail" -eq 0 ] && [ $((pass + skip)) -gt 0 ]
