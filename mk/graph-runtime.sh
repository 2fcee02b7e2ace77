#!/bin/sh
# graph-runtime.sh DIR - put OpenVINO's C library with its CPU, AUTO and HETERO plugins into DIR/libs. The
# Python package is downloaded once into a cache outside the repository; its SHA-256 is checked. Says why
# on standard error when it cannot be had: the graph engine is then reported as absent and its tests are
# skipped.
set -u
dir=$1
version=2026.4.1
want=2d22b1da03f7caf74df30e9f6417d0ab2f637e4a38e08e1dcd294d2c37407aaf
wheel=openvino-$version-22982-cp311-cp311-manylinux_2_28_x86_64.whl
[ -f "$dir/libs/$version" ] && exit 0
if [ "$(uname -m)" != x86_64 ]; then
    echo "graph-runtime.sh: made for x86_64 only, this is $(uname -m); name an OpenVINO in HETERO_OPENVINO" >&2
    exit 0
fi
cache=${HETERO_TEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/hetero-test}
good() {
    [ -f "$cache/$wheel" ] && [ "$(sha256sum < "$cache/$wheel" | cut -d' ' -f1)" = "$want" ]
}
if ! good; then
    mkdir -p "$cache" && tmp=$(mktemp -d "$cache/get.XXXXXX") || exit 0
    if python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
        --abi cp311 --platform manylinux_2_28_x86_64 -d "$tmp" "openvino==$version" > "$tmp/log" 2>&1; then
        mv "$tmp"/openvino-*.whl "$cache/$wheel"
    else
        echo "graph-runtime.sh: pip could not download openvino==$version: $(tail -n 1 "$tmp/log")" >&2
    fi
    rm -rf "$tmp"
fi
if ! good; then
    echo 'graph-runtime.sh: no package with the expected SHA-256; the graph engine stays absent' >&2
    exit 0
fi
# Unpacked beside and moved, so that an interrupted call leaves nothing half done.
rm -rf "$dir.part" && mkdir -p "$dir.part/libs" || exit 1
python3 - "$cache/$wheel" "$dir.part/libs" << 'END' || exit 1
import os, sys, zipfile
keep = ("libopenvino.so", "libopenvino_c.so", "libopenvino_ir_frontend.so", "libopenvino_intel_cpu_plugin",
        "libopenvino_auto_plugin", "libopenvino_hetero_plugin", "libtbb", "libhwloc")
with zipfile.ZipFile(sys.argv[1]) as z:
    for n in z.namelist():
        base = os.path.basename(n)
        if n.startswith("openvino/libs/") and base.startswith(keep) or "licenses/" in n and base:
            with open(os.path.join(sys.argv[2], base), "wb") as f:
                f.write(z.read(n))
END
: > "$dir.part/libs/$version"
rm -rf "$dir" && mv "$dir.part" "$dir"
