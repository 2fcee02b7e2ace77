# bash completion for hetero; made by 'hetero help --completion bash'.
_hetero()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} cmd=${COMP_WORDS[1]}
    local opts='' files=1
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W 'run chat serve pack inspect tokenize template explain bench ppl logits doctor qualify quality compare sim report bench-slot keys verify promote revoke routes receipts prefix kv-probe version help' -- "$cur"))
        return
    fi
    case "$cmd $prev" in
    'run --draft-accept') COMPREPLY=($(compgen -W 'match reject' -- "$cur")); return ;;
    'run --act') COMPREPLY=($(compgen -W 'f32 q8 f16' -- "$cur")); return ;;
    'run --kv-pack') COMPREPLY=($(compgen -W 'auto step thread' -- "$cur")); return ;;
    'run --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'run --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'run --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'chat --draft-accept') COMPREPLY=($(compgen -W 'match reject' -- "$cur")); return ;;
    'chat --act') COMPREPLY=($(compgen -W 'f32 q8 f16' -- "$cur")); return ;;
    'chat --kv-pack') COMPREPLY=($(compgen -W 'auto step thread' -- "$cur")); return ;;
    'chat --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'chat --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'chat --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'serve --act') COMPREPLY=($(compgen -W 'f32 q8 f16' -- "$cur")); return ;;
    'serve --kv-pack') COMPREPLY=($(compgen -W 'auto step thread' -- "$cur")); return ;;
    'serve --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'serve --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'serve --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'pack --precision') COMPREPLY=($(compgen -W 'f16 q8 q4' -- "$cur")); return ;;
    'pack --also') COMPREPLY=($(compgen -W 'q8 q4' -- "$cur")); return ;;
    'pack --q4-type') COMPREPLY=($(compgen -W 'q4_0 q4_k' -- "$cur")); return ;;
    'pack --head-type') COMPREPLY=($(compgen -W 'f16 q8_0 q6_k q4_k q4_0' -- "$cur")); return ;;
    'pack --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'inspect --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'tokenize --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'template --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'explain --act') COMPREPLY=($(compgen -W 'f32 q8 f16' -- "$cur")); return ;;
    'explain --kv-pack') COMPREPLY=($(compgen -W 'auto step thread' -- "$cur")); return ;;
    'explain --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'explain --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'explain --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'bench --act') COMPREPLY=($(compgen -W 'f32 q8 f16' -- "$cur")); return ;;
    'bench --kv-pack') COMPREPLY=($(compgen -W 'auto step thread' -- "$cur")); return ;;
    'bench --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'bench --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'bench --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'ppl --act') COMPREPLY=($(compgen -W 'f32 q8 f16' -- "$cur")); return ;;
    'ppl --kv-pack') COMPREPLY=($(compgen -W 'auto step thread' -- "$cur")); return ;;
    'ppl --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'ppl --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'ppl --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'logits --act') COMPREPLY=($(compgen -W 'f32 q8 f16' -- "$cur")); return ;;
    'logits --kv-pack') COMPREPLY=($(compgen -W 'auto step thread' -- "$cur")); return ;;
    'logits --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'logits --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'logits --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'doctor --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'qualify --act') COMPREPLY=($(compgen -W 'f32 q8 f16' -- "$cur")); return ;;
    'qualify --kv-pack') COMPREPLY=($(compgen -W 'auto step thread' -- "$cur")); return ;;
    'qualify --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'qualify --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'qualify --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'quality --act') COMPREPLY=($(compgen -W 'f32 q8 f16' -- "$cur")); return ;;
    'quality --kv-pack') COMPREPLY=($(compgen -W 'auto step thread' -- "$cur")); return ;;
    'quality --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'quality --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'quality --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'compare --api') COMPREPLY=($(compgen -W 'llama openai ollama' -- "$cur")); return ;;
    'compare --act') COMPREPLY=($(compgen -W 'f32 q8 f16' -- "$cur")); return ;;
    'compare --kv-pack') COMPREPLY=($(compgen -W 'auto step thread' -- "$cur")); return ;;
    'compare --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'compare --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'compare --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'sim --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'report --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'bench-slot --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'keys --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'verify --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'promote --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'revoke --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'routes --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'receipts --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'prefix --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'kv-probe --act') COMPREPLY=($(compgen -W 'f32 q8 f16' -- "$cur")); return ;;
    'kv-probe --kv-pack') COMPREPLY=($(compgen -W 'auto step thread' -- "$cur")); return ;;
    'kv-probe --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'kv-probe --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'kv-probe --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'version --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'help --completion') COMPREPLY=($(compgen -W 'bash zsh fish' -- "$cur")); return ;;
    'help --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    esac
    case "$cmd" in
    run) opts='-m --model -md --model-draft --pre --override-pre -p --prompt -f --file --ids -e --escape -cnv --chat --conversation -sys --system --system-prompt --messages --template --chat-template-file --tools --kwargs --chat-template-kwargs --now --store -n --predict --n-predict -ns --n-samples --stop -r --reverse-prompt --ignore-eos --special -sp --grammar --grammar-file -j --json-schema -jf --json-schema-file --json-mode --lookup --no-lookup --draft-max --draft --draft-n --draft-min --draft-n-min --draft-always --draft-accept --draft-parallel --draft-threads -td --threads-draft --draft-engine -s --seed --temp --temperature --top-k --top-p --min-p --typical --typical-p --repeat-penalty --repeat-last-n --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-last-n --dry-sequence-breaker --xtc-probability --xtc-threshold -l --logit-bias --engine --prefill-engine --graph --cuda --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --kv-force --evict --kv-pack --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --prefix-cache --prefix-cache-size --receipts --receipts-key --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    chat) opts='-m --model -md --model-draft --pre --override-pre -sys --system --system-prompt --template --chat-template-file --kwargs --chat-template-kwargs --now --store -n --predict --n-predict --stop -r --reverse-prompt --ignore-eos --special -sp --lookup --no-lookup --draft-max --draft --draft-n --draft-min --draft-n-min --draft-always --draft-accept --draft-parallel --draft-threads -td --threads-draft --draft-engine -s --seed --temp --temperature --top-k --top-p --min-p --typical --typical-p --repeat-penalty --repeat-last-n --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-last-n --dry-sequence-breaker --xtc-probability --xtc-threshold -l --logit-bias --engine --prefill-engine --graph --cuda --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --kv-force --evict --kv-pack --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --prefix-cache --prefix-cache-size --receipts --receipts-key --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    serve) opts='-m --model -md --model-draft --pre --override-pre --template --chat-template-file --kwargs --chat-template-kwargs --store -n --predict --n-predict --lookup --no-lookup -s --seed --temp --temperature --top-k --top-p --min-p --typical --typical-p --repeat-penalty --repeat-last-n --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-last-n --dry-sequence-breaker --xtc-probability --xtc-threshold -l --logit-bias --engine --prefill-engine --graph --cuda --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --kv-force --evict --kv-pack --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --prefix-cache --prefix-cache-size --host --port --api-key --api-key-file --allow-open --cors -a --alias -np --parallel --kv-positions --cache-ram --queue --queue-timeout --deadline --drain-timeout --tpot-ms --overlap --no-overlap --record-trace --max-body --max-connections --timeout --receipts --receipts-key --no-slots --no-metrics --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    pack) opts='--pre --override-pre -o --out --output --precision --also --q4-type --calibrate --requantise --requantize --head-type -t --threads --json -v --verbose --log-level --no-progress -h --help' ;;
    inspect) opts='-m --model --tensors -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv -c --ctx --ctx-size --verify --json -v --verbose --log-level --no-progress -h --help' ;;
    tokenize) opts='-m --model --pre --override-pre -p --prompt -f --file --ids -e --escape --detokenize --add-bos --special -sp --json -v --verbose --log-level --no-progress -h --help' ;;
    template) opts='-m --model --messages --template --chat-template-file --tools --kwargs --chat-template-kwargs --no-generation-prompt --bos --eos --now --json -v --verbose --log-level --no-progress -h --help' ;;
    explain) opts='-m --model --pre --override-pre -p --n-prompt -d --n-depth --store --route -n --n-new --engine --prefill-engine --graph --cuda --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --kv-pack --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    bench) opts='-m --model --pre --override-pre -p --n-prompt -n --n-gen -d --n-depth -r --repetitions --inject --engine --prefill-engine --graph --cuda --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --kv-pack --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    ppl) opts='-m --model --pre --override-pre -f --file --chunks --engine --prefill-engine --graph --cuda --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --evict --kv-pack --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    logits) opts='-m --model --pre --override-pre --ids --at --engine --prefill-engine --graph --cuda --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --kv-pack --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    doctor) opts='--require-device --json -v --verbose --log-level --no-progress -h --help' ;;
    qualify) opts='-m --model --pre --override-pre -f --file --template --chat-template-file --chunks -o --out --output --reference --candidate --policy --text --items --tasks --pairs --requests --key --selection --canary --store -n --predict --n-predict -s --seed --engine --prefill-engine --graph --cuda --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --kv-pack --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify -np --parallel --kv-positions --tpot-ms --ttft-ms --trace --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    quality) opts='-m --model --pre --override-pre -f --file --template --chat-template-file --chunks -o --out --output --candidate --policy --text --items --tasks -n --predict --n-predict -s --seed --engine --prefill-engine --graph --cuda --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --kv-pack --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    compare) opts='-m --model --pre --override-pre -o --out --output -r --repetitions --candidate --policy --text --key --server --api --server-model --server-binary --contexts --spacing-ms --store --engine --prefill-engine --graph --cuda --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --kv-pack --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    sim) opts='-o --out --output --in --sign --trust -s --seed --json -v --verbose --log-level --no-progress -h --help' ;;
    report) opts='-o --out --output --json -v --verbose --log-level --no-progress -h --help' ;;
    bench-slot) opts='--json -v --verbose --log-level --no-progress -h --help' ;;
    keys) opts='--policy --store --grant --json -v --verbose --log-level --no-progress -h --help' ;;
    verify) opts='--trust --amendment --store --json -v --verbose --log-level --no-progress -h --help' ;;
    promote) opts='--key --amendment --store --json -v --verbose --log-level --no-progress -h --help' ;;
    revoke) opts='--key --store --reason --quarantine --json -v --verbose --log-level --no-progress -h --help' ;;
    routes) opts='--key --store --renew --json -v --verbose --log-level --no-progress -h --help' ;;
    receipts) opts='--trust --store --last --receipts --json -v --verbose --log-level --no-progress -h --help' ;;
    prefix) opts='--prefix-cache --prefix-cache-size --unused --json -v --verbose --log-level --no-progress -h --help' ;;
    kv-probe) opts='-m --model --pre --override-pre -f --file --store --engine --prefill-engine --graph --cuda --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --evict --kv-pack --depths --save --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    version) opts='--json -v --verbose --log-level --no-progress -h --help' ;;
    help) opts='--man --completion --json -v --verbose --log-level --no-progress -h --help' ;;
    *) files=0 ;;
    esac
    if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$opts" -- "$cur"))
    elif [ "$files" -eq 1 ]; then
        COMPREPLY=($(compgen -f -- "$cur"))
    fi
}
complete -o filenames -F _hetero hetero
