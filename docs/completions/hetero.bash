# bash completion for hetero; made by 'hetero help --completion bash'.
_hetero()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} cmd=${COMP_WORDS[1]}
    local opts='' files=1
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W 'run chat pack inspect tokenize template explain bench ppl logits doctor qualify quality compare sim report bench-slot keys verify promote revoke routes version help' -- "$cur"))
        return
    fi
    case "$cmd $prev" in
    'run --act') COMPREPLY=($(compgen -W 'f32 q8' -- "$cur")); return ;;
    'run -ctk'|'run --cache-type-k'|'run --ctk') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'run -ctv'|'run --cache-type-v'|'run --ctv') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'run --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'run --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'run --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'chat --act') COMPREPLY=($(compgen -W 'f32 q8' -- "$cur")); return ;;
    'chat -ctk'|'chat --cache-type-k'|'chat --ctk') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'chat -ctv'|'chat --cache-type-v'|'chat --ctv') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'chat --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'chat --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'chat --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'pack --precision') COMPREPLY=($(compgen -W 'f16 q8 q4' -- "$cur")); return ;;
    'pack --also') COMPREPLY=($(compgen -W 'q8 q4' -- "$cur")); return ;;
    'pack --q4-type') COMPREPLY=($(compgen -W 'q4_0 q4_k' -- "$cur")); return ;;
    'pack --head-type') COMPREPLY=($(compgen -W 'f16 q8_0 q6_k q4_k q4_0' -- "$cur")); return ;;
    'pack --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'inspect -ctk'|'inspect --cache-type-k'|'inspect --ctk') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'inspect -ctv'|'inspect --cache-type-v'|'inspect --ctv') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'inspect --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'tokenize --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'template --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'explain --act') COMPREPLY=($(compgen -W 'f32 q8' -- "$cur")); return ;;
    'explain -ctk'|'explain --cache-type-k'|'explain --ctk') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'explain -ctv'|'explain --cache-type-v'|'explain --ctv') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'explain --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'explain --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'explain --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'bench --act') COMPREPLY=($(compgen -W 'f32 q8' -- "$cur")); return ;;
    'bench -ctk'|'bench --cache-type-k'|'bench --ctk') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'bench -ctv'|'bench --cache-type-v'|'bench --ctv') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'bench --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'bench --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'bench --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'ppl --act') COMPREPLY=($(compgen -W 'f32 q8' -- "$cur")); return ;;
    'ppl -ctk'|'ppl --cache-type-k'|'ppl --ctk') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'ppl -ctv'|'ppl --cache-type-v'|'ppl --ctv') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'ppl --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'ppl --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'ppl --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'logits --act') COMPREPLY=($(compgen -W 'f32 q8' -- "$cur")); return ;;
    'logits -ctk'|'logits --cache-type-k'|'logits --ctk') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'logits -ctv'|'logits --cache-type-v'|'logits --ctv') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'logits --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'logits --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'logits --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'doctor --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'qualify --act') COMPREPLY=($(compgen -W 'f32 q8' -- "$cur")); return ;;
    'qualify -ctk'|'qualify --cache-type-k'|'qualify --ctk') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'qualify -ctv'|'qualify --cache-type-v'|'qualify --ctv') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'qualify --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'qualify --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'qualify --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'quality --act') COMPREPLY=($(compgen -W 'f32 q8' -- "$cur")); return ;;
    'quality -ctk'|'quality --cache-type-k'|'quality --ctk') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'quality -ctv'|'quality --cache-type-v'|'quality --ctv') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'quality --isa') COMPREPLY=($(compgen -W 'generic avx2 avx512' -- "$cur")); return ;;
    'quality --print-config') COMPREPLY=($(compgen -W 'json text' -- "$cur")); return ;;
    'quality --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'compare --api') COMPREPLY=($(compgen -W 'llama openai ollama' -- "$cur")); return ;;
    'compare --act') COMPREPLY=($(compgen -W 'f32 q8' -- "$cur")); return ;;
    'compare -ctk'|'compare --cache-type-k'|'compare --ctk') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
    'compare -ctv'|'compare --cache-type-v'|'compare --ctv') COMPREPLY=($(compgen -W 'f16 f32' -- "$cur")); return ;;
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
    'version --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    'help --completion') COMPREPLY=($(compgen -W 'bash zsh fish' -- "$cur")); return ;;
    'help --log-level') COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    esac
    case "$cmd" in
    run) opts='-m --model -md --model-draft --pre --override-pre -p --prompt -f --file --ids -e --escape -cnv --chat --conversation -sys --system --system-prompt --messages --template --chat-template-file --tools --kwargs --chat-template-kwargs --now --store -n --predict --n-predict --stop -r --reverse-prompt --ignore-eos --special -sp --lookup --no-lookup --draft-max --draft --draft-n --draft-min --draft-n-min --draft-always -s --seed --temp --temperature --top-k --top-p --min-p --typical --typical-p --repeat-penalty --repeat-last-n --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-last-n --dry-sequence-breaker --xtc-probability --xtc-threshold -l --logit-bias --engine --prefill-engine --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    chat) opts='-m --model -md --model-draft --pre --override-pre -sys --system --system-prompt --template --chat-template-file --kwargs --chat-template-kwargs --now --store -n --predict --n-predict --stop -r --reverse-prompt --ignore-eos --special -sp --lookup --no-lookup --draft-max --draft --draft-n --draft-min --draft-n-min --draft-always -s --seed --temp --temperature --top-k --top-p --min-p --typical --typical-p --repeat-penalty --repeat-last-n --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-last-n --dry-sequence-breaker --xtc-probability --xtc-threshold -l --logit-bias --engine --prefill-engine --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    pack) opts='--pre --override-pre -o --out --output --precision --also --q4-type --head-type -t --threads --json -v --verbose --log-level --no-progress -h --help' ;;
    inspect) opts='-m --model --tensors -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv -c --ctx --ctx-size --verify --json -v --verbose --log-level --no-progress -h --help' ;;
    tokenize) opts='-m --model --pre --override-pre -p --prompt -f --file --ids -e --escape --detokenize --add-bos --special -sp --json -v --verbose --log-level --no-progress -h --help' ;;
    template) opts='-m --model --messages --template --chat-template-file --tools --kwargs --chat-template-kwargs --no-generation-prompt --bos --eos --now --json -v --verbose --log-level --no-progress -h --help' ;;
    explain) opts='-m --model --pre --override-pre -p --n-prompt -d --n-depth --engine --prefill-engine --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    bench) opts='-m --model --pre --override-pre -p --n-prompt -n --n-gen -d --n-depth -r --repetitions --engine --prefill-engine --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    ppl) opts='-m --model --pre --override-pre -f --file --chunks --engine --prefill-engine --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    logits) opts='-m --model --pre --override-pre --ids --at --engine --prefill-engine --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    doctor) opts='--require-device --json -v --verbose --log-level --no-progress -h --help' ;;
    qualify) opts='-m --model --pre --override-pre -f --file --template --chat-template-file --chunks -o --out --output --reference --candidate --policy --text --items --tasks --pairs --requests --key -n --predict --n-predict -s --seed --engine --prefill-engine --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    quality) opts='-m --model --pre --override-pre -f --file --template --chat-template-file --chunks -o --out --output --candidate --policy --text --items --tasks -n --predict --n-predict -s --seed --engine --prefill-engine --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    compare) opts='-m --model --pre --override-pre -o --out --output -r --repetitions --candidate --text --server --api --server-model --server-binary --contexts --spacing-ms --engine --prefill-engine --decode-engine --act -ctk --cache-type-k --ctk -ctv --cache-type-v --ctv --prefill-rep --decode-rep --isa -c --ctx --ctx-size -t --threads -ub --ubatch --ubatch-size --verify --json --print-config -v --verbose --log-level --no-progress -h --help' ;;
    sim) opts='-o --out --output --in --sign --trust -s --seed --json -v --verbose --log-level --no-progress -h --help' ;;
    report) opts='-o --out --output --json -v --verbose --log-level --no-progress -h --help' ;;
    bench-slot) opts='--json -v --verbose --log-level --no-progress -h --help' ;;
    keys) opts='--policy --store --grant --json -v --verbose --log-level --no-progress -h --help' ;;
    verify) opts='--trust --store --json -v --verbose --log-level --no-progress -h --help' ;;
    promote) opts='--key --store --json -v --verbose --log-level --no-progress -h --help' ;;
    revoke) opts='--key --store --reason --quarantine --json -v --verbose --log-level --no-progress -h --help' ;;
    routes) opts='--key --store --renew --json -v --verbose --log-level --no-progress -h --help' ;;
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
