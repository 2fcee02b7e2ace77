#!/bin/sh
# once.sh COMMAND... - one command as one test case: it passes when it exits with 0.
if "$@"; then
    echo '1 passed, 0 failed, 0 skipped'
else
    rc=$?
    echo "FAIL exit status $rc: $*"
    echo '0 passed, 1 failed, 0 skipped'
    exit 1
fi
