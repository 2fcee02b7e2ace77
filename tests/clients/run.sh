#!/bin/sh
# run.sh BUILD SCRIPT - run a script of this folder with the official client libraries, which are installed once
# into BUILD/clients from requirements.txt. Says SKIP with the reason when they cannot be had (no network, and not
# there yet). HETERO_CLIENTS names a virtual environment to use instead.
set -u
build=$1 script=$2
here=tests/clients
env=${HETERO_CLIENTS:-$build/clients}
want=$(sha256sum < $here/requirements.txt | cut -c1-16)
skip() {
    echo "SKIP $script: $1"
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
}
if [ -z "${HETERO_CLIENTS:-}" ] && [ "$(cat "$env/made" 2> /dev/null)" != "$want" ]; then
    rm -rf "$env"
    mkdir -p "$build"
    python3 -m venv "$env" > "$build/clients.log" 2>&1 || skip "python3 -m venv failed: $(tail -n 1 "$build/clients.log")"
    "$env/bin/pip" install -q --disable-pip-version-check -r $here/requirements.txt > "$build/clients.log" 2>&1 ||
        skip "pip could not install the clients: $(tail -n 1 "$build/clients.log")"
    echo "$want" > "$env/made"
fi
exec "$env/bin/python" "$here/$script"
