#!/bin/sh
# graph_evidence.sh - prompts of tale-9m on `graph` against `cpu` under the default policy, as the
# bundle, trust root and report of evidence/graph/: B OUT [QUALIFY OPTIONS]. B is a build folder with
# hetero and graph-runtime; OUT is replaced. Eight minutes on an idle machine with two cores, most of
# it 48 slots of two buckets. HETERO_SHARED: the folder of shared data (../shared).
# PRECISION: f16 (the model itself), q8 or q4 (packed here). BUCKETS: p32,p512; p2048 is one too.
# GRAPH_CANCEL: milliseconds that a cancel may take (50), more on a busy machine.
set -eu
[ $# -ge 2 ] || { echo "usage: bench/graph_evidence.sh B OUT [QUALIFY OPTIONS]" >&2; exit 2; }
top=$(cd "$(dirname "$0")/.." && pwd)
b=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shared=$(cd "${HETERO_SHARED:-$top/../shared}" && pwd)
shift 2
export HETERO_OPENVINO="$b/graph-runtime"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# Keys of their own, and no path of this machine in what is signed.
export XDG_STATE_HOME="$work/state" XDG_DATA_HOME="$work/data" XDG_CACHE_HOME="$work/cache"
mkdir -p state/hetero
model=tale-9m-f16.gguf ctx=2048
cp "$top/models/$model" .
precision=${PRECISION:-f16} buckets=${BUCKETS:-p32,p512}
if [ "$precision" != f16 ]; then
    "$b/hetero" pack "$model" -o "tale-9m-$precision.htpack" --precision "$precision" >/dev/null
    model=tale-9m-$precision.htpack
fi
case $buckets in *2048*) ctx=2080 ;; esac # a prompt of 2048 and the tokens behind it
"$b/hetero" keys new state/hetero/bench.pem >/dev/null
for k in p1 p2 index; do "$b/hetero" keys new $k.pem >/dev/null; done
"$b/hetero" keys init --store store --grant bench=state/hetero/bench.pem --grant promote=p1.pem \
    --grant promote=p2.pem --grant index=index.pem >/dev/null
rc=0
"$b/hetero" qualify "$buckets" "$model" -c "$ctx" -o bundles \
    --candidate "prefill-engine=graph,graph=cancel=${GRAPH_CANCEL:-50},graph=cache=graph-cache" \
    -f "$shared/data/models/tale-9m/quality-400.jsonl" \
    --text "$shared/data/wikitext-2/wiki.test.raw" --items 24 --tasks 100 --chunks 2 "$@" || rc=$?
[ $rc -eq 0 ] || [ $rc -eq 6 ] || exit $rc # 6: measured and not qualified, which is a result
id=$(ls bundles)
rm -rf "$out"/????????????????????????????????????????????????????????????????
mv "bundles/$id" "$out/"
cp store/trust.json "$out/trust.json"
"$b/hetero" report "$out/$id" -o "$out/report.html"
"$b/hetero" verify "$out/$id" --trust "$out/trust.json" || [ $? -eq 6 ]
du -sb "$out/$id"
