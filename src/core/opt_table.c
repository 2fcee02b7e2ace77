/* opt_table.c - the rows of opt.h: commands and options, nothing else. */
#include "core/opt.h"
#include "core/team.h"

#define C(x) (1u << HT_CMD_##x)
enum {
    C_GEN = C(RUN) | C(CHAT),
    C_SAMPLE = C_GEN | C(SERVE),
    C_ENGINE = C_SAMPLE | C(EXPLAIN) | C(BENCH) | C(PPL) | C(LOGITS) | C(QUALIFY) | C(QUALITY) |
               C(COMPARE) | C(KV_PROBE),
    C_MODEL = C_ENGINE | C(INSPECT) | C(TOKENIZE) | C(TEMPLATE),
    C_PRE = C_ENGINE | C(TOKENIZE) | C(PACK),
    C_STORE = C(KEYS) | C(VERIFY) | C(PROMOTE) | C(REVOKE) | C(ROUTES) | C(RECEIPTS) | C(EXPLAIN) |
              C(KV_PROBE) | C_SAMPLE,
    C_SIGN = C(PROMOTE) | C(REVOKE) | C(ROUTES),
    C_ALL = (1u << HT_CMDS) - 1
};

/* clang-format off */
#define FLAG(g, e, c, n, h) {n, NULL, NULL, NULL, h, 0, 0, (c), HT_OPT_FLAG, HT_GROUP_##g, e}
#define STR(g, e, c, n, a, d, h) {n, a, d, NULL, h, 0, 0, (c), HT_OPT_STR, HT_GROUP_##g, e}
#define COMMAS(g, e, c, n, a, d, h) {n, a, d, NULL, h, 0, 0, (c), HT_OPT_COMMAS, HT_GROUP_##g, e}
#define LIST(g, c, n, a, h) {n, a, NULL, NULL, h, 0, 0, (c), HT_OPT_LIST, HT_GROUP_##g, 0}
#define ENUM(g, e, c, n, a, d, ch, h) {n, a, d, ch, h, 0, 0, (c), HT_OPT_ENUM, HT_GROUP_##g, e}
#define INT(g, e, c, n, d, lo, hi, h) {n, "N", d, NULL, h, lo, hi, (c), HT_OPT_INT, HT_GROUP_##g, e}
#define REAL(g, c, n, d, lo, hi, h) {n, "X", d, NULL, h, lo, hi, (c), HT_OPT_REAL, HT_GROUP_##g, 1}

/* 2^53-1: the largest integer that a JSON reader keeps exact, so a seed survives its receipt. */
#define SEED_MAX 9007199254740991.0

const ht_opt_def ht_opt_table[HT_OPTS] = {
    [HT_OPT_MODEL] = STR(MODEL, 1, C_MODEL, "-m --model", "FILE", NULL,
        "model: a GGUF file (the first of its shards), a Hugging Face folder or a pack; may "
        "also be "
        "given as the first word"),
    [HT_OPT_MODEL_DRAFT] = STR(MODEL, 1, C_SAMPLE, "-md --model-draft", "FILE", NULL,
        "small model with the same vocabulary that guesses ahead (lossless)"),
    [HT_OPT_PRE] = STR(MODEL, 0, C_PRE, "--pre --override-pre", "NAME", NULL,
        "use this pre-tokenizer (a tokenizer.ggml.pre name) instead of the file's"),

    [HT_OPT_PROMPT] = STR(INPUT, 0, C(RUN) | C(TOKENIZE), "-p --prompt", "TEXT", NULL,
        "the text"),
    [HT_OPT_FILE] = STR(INPUT, 0, C(RUN) | C(TOKENIZE) | C(PPL) |
        C(QUALITY) | C(QUALIFY) | C(KV_PROBE),
        "-f --file", "FILE", NULL,
        "read the text from FILE; - is standard input (quality, qualify: JSON lines of prompts and "
        "responses)"),
    [HT_OPT_IDS] = COMMAS(INPUT, 0, C(RUN) | C(TOKENIZE) | C(LOGITS), "--ids", "LIST", NULL,
        "token ids separated by commas, instead of text"),
    [HT_OPT_ESCAPE] = FLAG(INPUT, 0, C(RUN) | C(TOKENIZE), "-e --escape",
        "understand \\n \\t \\r \\\\ \\' \\\" and \\xHH in the text of -p"),
    [HT_OPT_CHAT] = FLAG(INPUT, 0, C(RUN), "-cnv --chat --conversation",
        "take the text as one user message and render the model's chat template around it"),
    [HT_OPT_SYSTEM] = STR(INPUT, 1, C_GEN, "-sys --system --system-prompt", "TEXT", NULL,
        "system message put before the conversation"),
    [HT_OPT_MESSAGES] = STR(INPUT, 0, C(TEMPLATE) | C(RUN), "--messages", "FILE", NULL,
        "JSON array of messages, each with role and content; - is standard input"),
    [HT_OPT_TEMPLATE] = STR(INPUT, 0, C(TEMPLATE) | C_SAMPLE | C(QUALITY) | C(QUALIFY),
        "--template "
        "--chat-template-file",
        "FILE",
        NULL, "use this chat template instead of the model's"),
    [HT_OPT_TOOLS] = STR(INPUT, 0, C(TEMPLATE) | C(RUN), "--tools", "FILE", NULL,
        "JSON array of tool definitions handed to the template"),
    [HT_OPT_KWARGS] = STR(INPUT, 0, C(TEMPLATE) | C_SAMPLE, "--kwargs --chat-template-kwargs",
        "JSON",
        NULL, "object of extra template variables, e.g. {\"enable_thinking\":false}"),
    [HT_OPT_NO_GEN_PROMPT] = FLAG(INPUT, 0, C(TEMPLATE), "--no-generation-prompt",
        "do not open the assistant's turn at the end"),
    [HT_OPT_BOS] = STR(INPUT, 0, C(TEMPLATE), "--bos", "TEXT", NULL,
        "what the template sees as bos_token (default: the model's, or nothing)"),
    [HT_OPT_EOS] = STR(INPUT, 0, C(TEMPLATE), "--eos", "TEXT", NULL,
        "what the template sees as eos_token (default: the model's, or nothing)"),
    [HT_OPT_NOW] = STR(INPUT, 0, C(TEMPLATE) | C_GEN, "--now", "ISO-TIME", NULL,
        "the time a template sees, as YYYY-MM-DDTHH:MM:SS in UTC (default: the clock)"),
    [HT_OPT_DETOKENIZE] = FLAG(INPUT, 0, C(TOKENIZE), "--detokenize",
        "write the bytes of --ids to standard output"),
    [HT_OPT_ADD_BOS] = FLAG(INPUT, 0, C(TOKENIZE), "--add-bos",
        "add the tokens that this model wants around a text (BOS, EOS)"),
    [HT_OPT_AT] = COMMAS(INPUT, 0, C(LOGITS), "--at", "LIST", NULL,
        "positions of --ids whose logits to print (default: the last)"),
    [HT_OPT_CHUNKS] = INT(INPUT, 0, C(PPL) | C(QUALITY) | C(QUALIFY), "--chunks", NULL, 1, 1e9,
        "score only the first N chunks (default: all; quality: 8)"),
    [HT_OPT_OUT] = STR(INPUT, 0, C(PACK) | C(QUALITY) | C(QUALIFY) | C(SIM) | C(REPORT) |
                              C(COMPARE),
        "-o --out --output", "FILE", NULL, "file to write (quality, qualify: a folder)"),
    [HT_OPT_PRECISION] = ENUM(INPUT, 0, C(PACK), "--precision", "KIND", "f16", "f16|q8|q4",
        "contract of the pack: f16 keeps the weights as they are, q8 and q4 quantise the "
        "projections"),
    [HT_OPT_ALSO] = ENUM(INPUT, 0, C(PACK), "--also", "KIND", NULL, "q8|q4",
        "store a second representation of the projections"),
    [HT_OPT_Q4_TYPE] = ENUM(INPUT, 0, C(PACK), "--q4-type", "TYPE", NULL, "q4_0|q4_k",
        "tensor type of the q4 contract's body (default: q4_0)"),
    [HT_OPT_CALIBRATE] = STR(INPUT, 0, C(PACK), "--calibrate", "FILE", NULL,
        "run this text and store the means of the keys, for cache types given as TYPE,mean"),
    [HT_OPT_REQUANTISE] = FLAG(INPUT, 0, C(PACK), "--requantise --requantize",
        "allow a q8 pack of a q4 source: larger and no better, but quicker with 8-bit kernels"),
    [HT_OPT_HEAD_TYPE] = ENUM(INPUT, 0, C(PACK), "--head-type", "TYPE", NULL,
        "f16|q8_0|q6_k|q4_k|q4_0",
        "tensor type of the vocabulary projection under q4 (default: the better of q6_k and q8_0 "
        "that fits)"),
    [HT_OPT_TENSORS] = FLAG(INPUT, 0, C(INSPECT), "--tensors", "list every tensor"),
    [HT_OPT_BENCH_P] = COMMAS(INPUT, 0, C(BENCH), "-p --n-prompt", "LIST", "512",
        "prompt lengths to time (pp rows); 0 for none"),
    [HT_OPT_BENCH_N] = COMMAS(INPUT, 0, C(BENCH), "-n --n-gen", "LIST", "128",
        "numbers of generated tokens to time (tg rows); 0 for none"),
    [HT_OPT_BENCH_D] = COMMAS(INPUT, 0, C(BENCH), "-d --n-depth", "LIST", "0",
        "positions already in the context before the timed part"),
    [HT_OPT_REPS] = INT(INPUT, 0, C(BENCH) | C(COMPARE), "-r --repetitions", "5", 1, 1000,
        "timed repetitions of each row, after a warm-up that is not counted (compare: 6 pairs)"),
    [HT_OPT_INJECT] = INT(INPUT, 0, C(BENCH), "--inject", "0", 0, 1000000,
        "instead of the rows: time per token of an answer while a prompt of so many tokens "
        "arrives: alone, serialised, and together in one pass (0: no)"),
    [HT_OPT_EXPLAIN_P] = INT(INPUT, 0, C(EXPLAIN), "-p --n-prompt", "512", 1, 1e9,
        "prompt length of the explained prefill"),
    [HT_OPT_EXPLAIN_D] = INT(INPUT, 0, C(EXPLAIN), "-d --n-depth", "512", 0, 1e9,
        "context depth of the explained decode step"),
    [HT_OPT_REFERENCE] = FLAG(INPUT, 0, C(QUALIFY), "--reference",
        "check the reference engine of routing for correctness, on the spot"),
    [HT_OPT_CANDIDATE] = COMMAS(INPUT, 0, C(QUALITY) | C(QUALIFY) | C(COMPARE), "--candidate",
        "KEY=VALUE,...", NULL,
        "in what the candidate differs from the reference: act, cover, ctk, ctv, cuda, engine, "
        "prefill-engine, decode-engine, prefill-rep, decode-rep, graph, isa, model, store, "
        "threads, ubatch"),
    [HT_OPT_POLICY] = STR(INPUT, 0, C(KEYS) | C(QUALITY) |
        C(QUALIFY) | C(COMPARE), "--policy", "FILE",
        NULL,
        "gate policy (default: the built-in one)"),
    [HT_OPT_TEXT] = STR(INPUT, 0, C(QUALITY) | C(QUALIFY) | C(COMPARE), "--text", "FILE", NULL,
        "text for divergence, top-1 agreement and perplexity"),
    [HT_OPT_ITEMS] = INT(INPUT, 0, C(QUALITY) | C(QUALIFY), "--items", "50", 0, 100000,
        "prompts continued greedily by both arms"),
    [HT_OPT_TASKS] = INT(INPUT, 0, C(QUALITY) | C(QUALIFY), "--tasks", "400", 0, 100000,
        "items of the four-choice task"),
    [HT_OPT_IN] = STR(INPUT, 0, C(SIM), "--in", "FILE", NULL,
        "JSON object of inputs; those it leaves out have their defaults; - is standard input"),
    [HT_OPT_SIGN] = STR(INPUT, 0, C(SIM), "--sign", "KEY", NULL,
        "write -o as an envelope signed with this private key, which must have the role simulate "
        "and no other"),
    [HT_OPT_TRUST] = STR(INPUT, 0, C(VERIFY) | C(SIM) | C(RECEIPTS), "--trust", "FILE", NULL,
        "trust root: which key has which roles"),
    [HT_OPT_SERVER] = STR(INPUT, 0, C(COMPARE), "--server", "URL", NULL,
        "the foreign server, http://HOST:PORT"),
    [HT_OPT_API] = ENUM(INPUT, 0, C(COMPARE), "--api", "KIND", "llama", "llama|openai|ollama",
        "how to ask it: llama-server's /completion, /v1/completions, or Ollama's /api/generate"),
    [HT_OPT_SERVER_MODEL] = STR(INPUT, 0, C(COMPARE), "--server-model", "NAME", NULL,
        "the server's name for the model"),
    [HT_OPT_SERVER_BINARY] = STR(INPUT, 0, C(COMPARE), "--server-binary", "FILE", NULL,
        "the server's program, for its digest"),
    [HT_OPT_CONTEXTS] = COMMAS(INPUT, 0, C(COMPARE), "--contexts", "LIST", "32,512,2048",
        "prompt lengths in tokens"),
    [HT_OPT_SPACING] = INT(INPUT, 0, C(COMPARE), "--spacing-ms", "0", 0, 600000,
        "idle time before every request, sealed in the design"),
    [HT_OPT_SELECTION] = STR(INPUT, 0, C(QUALIFY), "--selection", "BUNDLE", NULL,
        "folder of the bundle that the candidate was chosen by: named in the design, and none of "
        "its "
        "prompts may come again"),
    [HT_OPT_CANARY] = STR(INPUT, 0, C(QUALIFY), "--canary", "BUNDLE", NULL,
        "folder of a promoted bundle whose machine is in another state now: four pairs per cell, "
        "written as a signed amendment into -o DIR; the other arm is the bundle's"),
    [HT_OPT_AMENDMENT] = STR(INPUT, 0, C(PROMOTE) | C(VERIFY), "--amendment", "FILE", NULL,
        "an amendment of this bundle (qualify --canary): to verify, or to put in force"),
    [HT_OPT_PAIRS] = INT(INPUT, 0, C(QUALIFY), "--pairs", "0", 0, 40,
        "pairs of slots, a multiple of 4 (default: what the policy asks for); scheduler: how often "
        "each scenario is run, 1 to 4"),
    [HT_OPT_REQUESTS] = INT(INPUT, 0, C(QUALIFY), "--requests", "1", 1, 1000,
        "requests of each bucket in a slot; tails need about a hundred over all pairs (scheduler: "
        "of each run, 24 when none are named)"),
    [HT_OPT_KEY] = LIST(INPUT, C(QUALIFY) | C(COMPARE) | C_SIGN, "--key", "FILE",
        "private key to sign with; may be given several times (qualify: the bench key that signs "
        "the "
        "bundle; default: one of this installation)"),
    [HT_OPT_REQUIRE_DEVICE] = LIST(INPUT, C(DOCTOR), "--require-device", "ENGINE",
        "fail (exit status 4) unless this engine can work here; may be given several times"),
    [HT_OPT_STORE] = STR(INPUT, 1, C_STORE | C(COMPARE) | C(QUALIFY), "--store", "DIR", NULL,
        "folder with the trust root, the policy and the admitted routes (default: hetero/store in "
        "the user's data directory)"),
    [HT_OPT_GRANT] = LIST(INPUT, C(KEYS), "--grant", "ROLE=KEY",
        "give a key a role (bench, promote, index, receipt, simulate); KEY is a private key file "
        "or "
        "the 64 hex digits of a public key; may be given several times"),
    [HT_OPT_REASON] = STR(INPUT, 0, C(REVOKE), "--reason", "TEXT", NULL,
        "why; kept in the index for ever"),
    [HT_OPT_QUARANTINE] = FLAG(INPUT, 0, C(REVOKE), "--quarantine",
        "set the routes aside instead: a new bundle can bring them back"),
    [HT_OPT_RENEW] = FLAG(INPUT, 0, C(ROUTES), "--renew",
        "sign the same index again with a new date of expiry"),
    [HT_OPT_LAST] = INT(INPUT, 0, C(RECEIPTS), "--last", "20", 0, 100000,
        "how many of the last receipts to list"),
    [HT_OPT_ROUTE] = FLAG(INPUT, 0, C(EXPLAIN), "--route",
        "show what the planner would choose for a greedy request of -p tokens, and why not the "
        "rest"),
    [HT_OPT_ROUTE_N] = INT(INPUT, 0, C(EXPLAIN), "-n --n-new", "16", 1, 1e9,
        "new tokens of the request, with --route"),
    [HT_OPT_MAN] = FLAG(INPUT, 0, C(HELP), "--man",
        "print the manual page, of hetero or of COMMAND, as roff"),
    [HT_OPT_COMPLETION] = ENUM(INPUT, 0, C(HELP), "--completion", "SHELL", NULL, "bash|zsh|fish",
        "print the shell's completion script"),

    [HT_OPT_PREDICT] = INT(GENERATE, 1, C_SAMPLE | C(QUALITY) | C(QUALIFY), "-n --predict "
        "--n-predict", "-1", -1, 1e9,
        "tokens to generate at most; -1: until the model ends or the context is full (quality: "
        "256)"),
    [HT_OPT_N_SAMPLES] = INT(GENERATE, 0, C(RUN), "-ns --n-samples", "1", 1, 64,
        "completions of the same prompt, computed once for all of them; sample i draws with seed "
        "+ i"),
    [HT_OPT_STOP] = LIST(GENERATE, C_GEN, "--stop -r --reverse-prompt", "TEXT",
        "stop before this text would appear; may be given several times"),
    [HT_OPT_IGNORE_EOS] = FLAG(GENERATE, 0, C_GEN, "--ignore-eos",
        "go on after an end-of-generation token"),
    [HT_OPT_SPECIAL] = FLAG(GENERATE, 0, C_GEN | C(TOKENIZE), "--special -sp",
        "show special tokens in generated text; recognise them in text to be tokenised"),
    [HT_OPT_GRAMMAR] = STR(GENERATE, 0, C(RUN), "--grammar --grammar-file", "FILE", NULL,
        "hold the text to this GBNF grammar; a value with ::= in it is the grammar itself"),
    [HT_OPT_JSON_SCHEMA] = STR(GENERATE, 0, C(RUN), "-j --json-schema -jf --json-schema-file",
        "FILE", NULL,
        "hold the text to JSON that follows this schema; a value that begins with { is the schema "
        "itself"),
    [HT_OPT_JSON_MODE] = FLAG(GENERATE, 0, C(RUN), "--json-mode",
        "hold the text to a JSON object"),
    [HT_OPT_LOOKUP] = FLAG(GENERATE, 1, C_SAMPLE, "--lookup",
        "guess ahead from what prompt and answer have said already (lossless); pays when text is "
        "repeated, and switches itself off where it does not"),
    [HT_OPT_NO_LOOKUP] = FLAG(GENERATE, 0, C_SAMPLE, "--no-lookup",
        "no --lookup, whatever the environment says"),
    [HT_OPT_DRAFT_MAX] = INT(GENERATE, 1, C_GEN, "--draft-max --draft --draft-n", "15", 1, 15,
        "guesses of one round at most; how many are made follows from the measured gain"),
    [HT_OPT_DRAFT_MIN] = INT(GENERATE, 1, C_GEN, "--draft-min --draft-n-min", "0", 0, 15,
        "do not use drafts with fewer guesses"),
    [HT_OPT_DRAFT_ALWAYS] = FLAG(GENERATE, 0, C_GEN, "--draft-always",
        "guess --draft-max tokens in every round, even where it costs time (for tests)"),
    [HT_OPT_DRAFT_ACCEPT] = ENUM(GENERATE, 1, C_GEN, "--draft-accept", "RULE", "match",
        "match|reject",
        "which guesses of -md are kept. match: those the model itself draws, the text is the one "
        "without guesses. reject: rejection sampling, another text of the same distribution"),
    [HT_OPT_DRAFT_PARALLEL] = FLAG(GENERATE, 1, C_GEN, "--draft-parallel",
        "let -md guess in a thread of its own while the model computes; pays with cores to spare"),
    [HT_OPT_DRAFT_THREADS] = INT(GENERATE, 1, C_GEN, "--draft-threads -td --threads-draft", NULL, 1,
        HT_TEAM_MAX,
        "threads of -md (default: those of the model; in parallel one)"),
    [HT_OPT_DRAFT_ENGINE] = STR(GENERATE, 1, C_GEN, "--draft-engine", "NAME", NULL,
        "engine that runs -md (default: that of the model)"),

    [HT_OPT_SEED] = INT(SAMPLE, 1, C_SAMPLE | C(QUALITY) | C(QUALIFY) | C(SIM),
        "-s --seed", "-1", -1, SEED_MAX,
        "seed of the random numbers; -1: a new one, reported at the end (quality, qualify, sim: "
        "1)"),
    [HT_OPT_TEMP] = REAL(SAMPLE, C_SAMPLE, "--temp --temperature", "0.8", 0, 100,
        "temperature; 0: always the most likely token"),
    [HT_OPT_TOP_K] = INT(SAMPLE, 1, C_SAMPLE, "--top-k", "40", 0, 2147483647,
        "keep the N most likely tokens; 0: off"),
    [HT_OPT_TOP_P] = REAL(SAMPLE, C_SAMPLE, "--top-p", "0.95", 0, 1,
        "keep the fewest tokens whose probability sums to X; 1: off"),
    [HT_OPT_MIN_P] = REAL(SAMPLE, C_SAMPLE, "--min-p", "0.05", 0, 1,
        "drop tokens below X times the best probability; 0: off"),
    [HT_OPT_TYPICAL] = REAL(SAMPLE, C_SAMPLE, "--typical --typical-p", "1", 0, 1,
        "locally typical sampling with mass X; 1: off"),
    [HT_OPT_REPEAT_PENALTY] = REAL(SAMPLE, C_SAMPLE, "--repeat-penalty", "1", 0.001, 100,
        "divide the logits of recent tokens by X; 1: off"),
    [HT_OPT_REPEAT_LAST_N] = INT(SAMPLE, 1, C_SAMPLE, "--repeat-last-n", "64", -1, 2147483647,
        "how many tokens back the penalties look; 0: off, -1: the whole context"),
    [HT_OPT_PRESENCE_PENALTY] = REAL(SAMPLE, C_SAMPLE, "--presence-penalty", "0", -100, 100,
        "subtract X from the logits of recent tokens; 0: off"),
    [HT_OPT_FREQUENCY_PENALTY] = REAL(SAMPLE, C_SAMPLE, "--frequency-penalty", "0", -100, 100,
        "subtract X for each recent occurrence; 0: off"),
    [HT_OPT_DRY_MULTIPLIER] = REAL(SAMPLE, C_SAMPLE, "--dry-multiplier", "0", 0, 100,
        "DRY: strength of the penalty on repeating a sequence; 0: off"),
    [HT_OPT_DRY_BASE] = REAL(SAMPLE, C_SAMPLE, "--dry-base", "1.75", 1, 100,
        "DRY: growth of the penalty per further token"),
    [HT_OPT_DRY_ALLOWED_LENGTH] = INT(SAMPLE, 1, C_SAMPLE, "--dry-allowed-length", "2", 1,
        2147483647,
        "DRY: length of a repetition that costs nothing"),
    [HT_OPT_DRY_LAST_N] = INT(SAMPLE, 1, C_SAMPLE, "--dry-penalty-last-n --dry-last-n", "-1", -1,
        2147483647, "DRY: how many tokens back it looks; 0: off, -1: the whole context"),
    [HT_OPT_DRY_BREAKER] = LIST(SAMPLE, C_SAMPLE, "--dry-sequence-breaker", "TEXT",
        "DRY: text that ends a sequence; may be given several times and then replaces the built-in "
        "newline, colon, double quote and asterisk; none: no breakers"),
    [HT_OPT_XTC_PROBABILITY] = REAL(SAMPLE, C_SAMPLE, "--xtc-probability", "0", 0, 1,
        "XTC: chance of leaving out the top choices; 0: off"),
    [HT_OPT_XTC_THRESHOLD] = REAL(SAMPLE, C_SAMPLE, "--xtc-threshold", "0.1", 0, 1,
        "XTC: a top choice has at least this probability"),
    [HT_OPT_LOGIT_BIAS] = LIST(SAMPLE, C_SAMPLE, "-l --logit-bias", "ID(+|-)X",
        "add X to (subtract X from) the logit of token ID, e.g. 15043+1 or 29871-inf; may be given "
        "several times"),

    [HT_OPT_ENGINE] = STR(ENGINE, 1, C_ENGINE, "--engine", "NAME", NULL,
        "force both phases onto this engine (see hetero doctor)"),
    [HT_OPT_PREFILL_ENGINE] = STR(ENGINE, 1, C_ENGINE, "--prefill-engine", "NAME", NULL,
        "force the prefill onto this engine"),
    [HT_OPT_GRAPH] = COMMAS(ENGINE, 1, C_ENGINE, "--graph", "KEY=VALUE,...", NULL,
        "settings of the graph engine: cache=FOLDER of compiled graphs, memory=MiB for them, "
        "cancel=MS that a cancel may take on a route (50), cold=1 "
        "(serve from the reference until compiled), strict=1 (no stand-in), device=NAME, act=KIND, "
        "approximate=1, calibrate=FILE for act=int8"),
    [HT_OPT_CUDA] = COMMAS(ENGINE, 1, C_ENGINE, "--cuda", "KEY=VALUE,...", NULL,
        "settings of the cuda engine: gpu=N (which card), ranks=N (a group of N ranks on it, over "
        "which heads and rows are dealt out; equal bits), level=1 or 2 (captured graphs, or "
        "the persistent kernel where there is one; else the faster), "
        "sync=1 (no graph: wait after each kernel), overlap=0"),
    [HT_OPT_DECODE_ENGINE] = STR(ENGINE, 1, C_ENGINE, "--decode-engine", "NAME", NULL,
        "force the decode onto this engine"),
    [HT_OPT_ACT] = ENUM(ENGINE, 1, C_ENGINE, "--act", "KIND", "f32", "f32|q8|f16",
        "arithmetic: f32 is exact for the stored weights, q8 quantises activations, f16 has "
        "prompts on tensor cores (both approximate)"),
    [HT_OPT_CTK] = COMMAS(ENGINE, 1, C_ENGINE | C(INSPECT), "-ctk --cache-type-k --ctk",
        "TYPE", "f16",
        "type of the cached keys: f16, f32, or smaller with a loss q8_0, q4_0, rotated q8_0r, "
        "q4_0r, "
        "tq4, tq3; other layers after it, e.g. q8_0,0-1=f16 (see hetero kv-probe)"),
    [HT_OPT_CTV] = COMMAS(ENGINE, 1, C_ENGINE | C(INSPECT), "-ctv --cache-type-v --ctv",
        "TYPE", "f16", "type of the cached values, as for -ctk"),
    [HT_OPT_KV_FORCE] = FLAG(ENGINE, 1, C_SAMPLE, "--kv-force",
        "take cache types that lose something although no measurement on this model admits them"),
    [HT_OPT_EVICT] = INT(ENGINE, 1, C_SAMPLE | C(PPL) | C(KV_PROBE), "--evict", NULL, 256,
        2147483647,
        "keep this many positions of a sequence and give up, a page at a time, what attention uses "
        "least; the answer is no longer that of the whole context (-c may then exceed what memory "
        "holds)"),
    [HT_OPT_KV_DEPTHS] = COMMAS(ENGINE, 0, C(KV_PROBE), "--depths", "LIST", "512,4096,16384",
        "depths at which logits are compared, as far as context and text go"),
    [HT_OPT_SAVE] = FLAG(ENGINE, 0, C(KV_PROBE), "--save",
        "keep the result in the store: types inside the gate may then be used by run, chat and "
        "serve"),
    [HT_OPT_KV_PACK] = ENUM(ENGINE, 1, C_ENGINE, "--kv-pack", "WHO", "auto", "auto|step|thread",
        "who packs full pages of such types: the step that reads them first, or a thread ahead "
        "of it "
        "(auto: where CPUs are left); the result is the same"),
    [HT_OPT_PREFILL_REP] = STR(ENGINE, 0, C_ENGINE, "--prefill-rep", "NAME", NULL,
        "representation of a two-representation pack that the prefill uses"),
    [HT_OPT_DECODE_REP] = STR(ENGINE, 0, C_ENGINE, "--decode-rep", "NAME", NULL,
        "representation of a two-representation pack that the decode uses"),
    [HT_OPT_ISA] = ENUM(ENGINE, 1, C_ENGINE, "--isa", "LEVEL", NULL, "generic|avx2|avx512",
        "use no instruction set above this one (default: the best there is)"),
    [HT_OPT_CTX] = INT(ENGINE, 1, C_ENGINE | C(INSPECT), "-c --ctx --ctx-size", NULL, 1,
        4294967295.0,
        "positions of context (default: what the model was trained for or what fits, the smaller; "
        "ppl: 512)"),
    [HT_OPT_THREADS] = INT(ENGINE, 1, C_ENGINE | C(PACK), "-t --threads", NULL, 1,
        HT_TEAM_MAX,
        "threads (default: by affinity, cgroup quota and physical cores; see hetero doctor)"),
    [HT_OPT_UBATCH] = INT(ENGINE, 1, C_ENGINE, "-ub --ubatch --ubatch-size", NULL, 1, 65535,
        "rows of one prefill step (default: the engine's)"),
    [HT_OPT_VERIFY] = FLAG(ENGINE, 0, C_ENGINE | C(INSPECT), "--verify",
        "hash the whole model, even when a pack is trusted already"),
    [HT_OPT_PREFIX_CACHE] = STR(ENGINE, 1, C_SAMPLE | C(PREFIX), "--prefix-cache", "DIR", NULL,
        "folder where computed beginnings of prompts are kept from one run to the next (lossless)"),
    [HT_OPT_PREFIX_CACHE_SIZE] = INT(ENGINE, 1, C_SAMPLE | C(PREFIX), "--prefix-cache-size", "8192",
        0,
        1e9, "MiB that the folder may hold, the longest unused go first; 0: no limit"),
    [HT_OPT_UNUSED] = INT(ENGINE, 0, C(PREFIX), "--unused", NULL, 0, 36500,
        "prune: remove what was not used for N days"),

    [HT_OPT_HOST] = STR(SERVE, 1, C(SERVE), "--host", "ADDRESS", "127.0.0.1",
        "address to listen on, or the path of a Unix socket; one that others can reach needs a key "
        "or --allow-open"),
    [HT_OPT_PORT] = INT(SERVE, 1, C(SERVE), "--port", "8080", 0, 65535,
        "port to listen on; 0: any free one, said when ready"),
    [HT_OPT_API_KEY] = LIST(SERVE, C(SERVE), "--api-key", "KEY",
        "key that clients must send; may be given several times (others can read a command line: "
        "prefer --api-key-file)"),
    [HT_OPT_API_KEY_FILE] = STR(SERVE, 1, C(SERVE), "--api-key-file", "FILE", NULL,
        "file of keys, one a line: KEY [priority=N] [name=TEXT]; higher priorities are served "
        "first"),
    [HT_OPT_ALLOW_OPEN] = FLAG(SERVE, 0, C(SERVE), "--allow-open",
        "listen on an address that others can reach without any key"),
    [HT_OPT_CORS] = LIST(SERVE, C(SERVE), "--cors", "ORIGIN",
        "web origin whose pages may read answers; * for all; may be given several times"),
    [HT_OPT_ALIAS] = LIST(SERVE, C(SERVE), "-a --alias", "NAME",
        "further name of the model; * accepts any name; may be given several times"),
    [HT_OPT_PARALLEL] = INT(SERVE, 1, C(SERVE) | C(QUALIFY), "-np --parallel", "4", 1, 64,
        "answers at once, each with the whole of --ctx"),
    [HT_OPT_KV_POSITIONS] = INT(SERVE, 1, C(SERVE) | C(QUALIFY), "--kv-positions", "0", 0,
        4294967295.0,
        "positions that all answers hold together; an answer starts when its upper bound fits (0: "
        "--parallel times --ctx)"),
    [HT_OPT_CACHE_RAM] = INT(SERVE, 1, C(SERVE), "--cache-ram", "256", 0, 1e6,
        "MiB for computed beginnings of prompts beside what the slots hold; 0: only those"),
    [HT_OPT_QUEUE] = INT(SERVE, 1, C(SERVE), "--queue", "512", 0, 1000000,
        "requests that may wait; more are refused with 429"),
    [HT_OPT_QUEUE_TIMEOUT] = INT(SERVE, 1, C(SERVE), "--queue-timeout", "600", 1, 86400,
        "seconds that a request may wait; then it is refused with 503"),
    [HT_OPT_DEADLINE] = INT(SERVE, 1, C(SERVE), "--deadline", "0", 0, 86400,
        "seconds that a request may take in all; its answer ends there (0: no limit)"),
    [HT_OPT_DRAIN] = INT(SERVE, 1, C(SERVE), "--drain-timeout", "30", 0, 86400,
        "seconds that running answers have after the first SIGTERM"),
    [HT_OPT_TPOT] = INT(SERVE, 1, C(SERVE) | C(QUALIFY), "--tpot-ms", "0", 0, 100000,
        "objective for the time per token of running answers: pieces of prompts are cut to it"),
    [HT_OPT_OVERLAP] = FLAG(SERVE, 1, C(SERVE), "--overlap",
        "run pieces of prompts in the passes of running answers, within --tpot-ms, without "
        "evidence that it pays here"),
    [HT_OPT_NO_OVERLAP] = FLAG(SERVE, 1, C(SERVE), "--no-overlap",
        "never run prompts in the passes of running answers, whatever evidence admits"),
    [HT_OPT_RECORD_TRACE] = STR(SERVE, 1, C(SERVE), "--record-trace", "FILE", NULL,
        "append when each request came and how long it is, without its text: a trace for hetero "
        "qualify scheduler"),
    [HT_OPT_TRACE] = STR(SERVE, 0, C(QUALIFY), "--trace", "FILE", NULL,
        "scheduler: the recorded trace; its times are stretched to each rate"),
    [HT_OPT_TTFT] = INT(SERVE, 0, C(QUALIFY), "--ttft-ms", "10000", 1, 10000000,
        "scheduler: objective for the time to the first token"),
    [HT_OPT_MAX_BODY] = INT(SERVE, 1, C(SERVE), "--max-body", "32", 1, 2047,
        "MiB of a request's body"),
    [HT_OPT_MAX_CONNECTIONS] = INT(SERVE, 1, C(SERVE), "--max-connections", "10240", 1, 1000000,
        "open connections"),
    [HT_OPT_IDLE_TIMEOUT] = INT(SERVE, 1, C(SERVE), "--timeout", "75", 1, 86400,
        "seconds after which a connection without a request, or whose client does not read, is "
        "closed"),
    [HT_OPT_RECEIPTS] = STR(SERVE, 1, C(SERVE) | C_GEN | C(RECEIPTS), "--receipts", "DIR", NULL,
        "keep every answer's receipt in this log (default: in the store where there is one; serve: "
        "the last 256, in memory)"),
    [HT_OPT_RECEIPTS_KEY] = STR(SERVE, 1, C(SERVE) | C_GEN, "--receipts-key", "FILE", NULL,
        "private key with the role receipt that signs the log"),
    [HT_OPT_NO_SLOTS] = FLAG(SERVE, 1, C(SERVE), "--no-slots", "do not answer /slots"),
    [HT_OPT_NO_METRICS] = FLAG(SERVE, 1, C(SERVE), "--no-metrics", "do not answer /metrics"),

    [HT_OPT_JSON] = FLAG(OUTPUT, 0, C_ALL, "--json",
        "print one JSON document on standard output, an error included"),
    [HT_OPT_PRINT_CONFIG] = ENUM(OUTPUT, 0, C_ENGINE, "--print-config", "FORMAT", NULL, "json|text",
        "load, print the configuration in force (model, engine, memory, threads and why, sampler, "
        "options and where each came from), and end"),
    [HT_OPT_VERBOSE] = FLAG(OUTPUT, 1, C_ALL, "-v --verbose",
        "say more on standard error: sampler chain, engine, where an error arose"),
    [HT_OPT_LOG_LEVEL] = ENUM(OUTPUT, 1, C_ALL, "--log-level", "LEVEL", "info",
        "error|warn|info|debug", "how much to say on standard error"),
    [HT_OPT_NO_PROGRESS] = FLAG(OUTPUT, 1, C_ALL, "--no-progress",
        "no progress bars; there are none either when standard error is no terminal"),
    [HT_OPT_HELP] = FLAG(OUTPUT, 0, C_ALL, "-h --help", "print this command's options and end"),
};

const char *const ht_opt_group_names[HT_GROUPS] = {
    [HT_GROUP_MODEL] = "Model", [HT_GROUP_INPUT] = "Input", [HT_GROUP_GENERATE] = "Generation",
    [HT_GROUP_SAMPLE] = "Sampling", [HT_GROUP_ENGINE] = "Engine and memory",
    [HT_GROUP_SERVE] = "Server",
    [HT_GROUP_OUTPUT] = "Output",
};

#define EXAMPLES(...) (const char *const[]){__VA_ARGS__, NULL}

const ht_cmd_def ht_cmd_table[HT_CMDS] = {
    [HT_CMD_RUN] = {"run", "[MODEL] [-p TEXT | -f FILE | --ids LIST | --messages FILE]",
        "continue a text, or answer one message",
        "Standard output carries the completion and nothing else; a short receipt (which engine "
        "ran "
        "which phase and why, tokens per second, bytes per token, the seed) goes to standard "
        "error.\n\n"
        "A text given with -p or -f is continued as it stands. With -cnv it is one user message "
        "and "
        "the model's chat template is rendered around it; --messages renders a whole conversation. "
        "Without any text the model is asked, through its template, for a short story. Without a "
        "model the embedded default model is used.\n\n"
        "Ctrl-C ends the generation, keeps what was written and exits with status 130; a second "
        "one ends the program at once.",
        EXAMPLES("hetero run", "hetero run -p 'Once upon a time' -n 40 --temp 0",
                 "hetero run -cnv -p 'Write a story about a brave fox.' -s 7",
                 "hetero run --ids 1,2,3 -n 8 --temp 0 --ignore-eos --json"),
        0, 1},
    [HT_CMD_CHAT] = {"chat", "[MODEL]", "talk with a model in the terminal",
        "Lines are edited with libedit where the build has it; the history is kept in "
        "$XDG_STATE_HOME/hetero/history (or ~/.local/state). A message that starts with \"\"\" "
        "goes "
        "on until a line ends with \"\"\"; a line that ends with a backslash goes on too. Ctrl-C "
        "stops the answer, Ctrl-D leaves. /help lists the commands: /clear /system /save /load "
        "/regen /fork /back /receipt /quit. /load replaces the conversation and the system message "
        "by those of a file; a file without a system message leaves none.\n\n"
        "When standard input is no terminal each line is a message, nothing is prompted, and the "
        "answers are all that standard output carries.",
        EXAMPLES("hetero chat", "hetero chat model.gguf -sys 'Answer briefly.' -c 4096"), 0, 1},
    [HT_CMD_SERVE] = {"serve", "[MODEL]", "answer over HTTP: OpenAI, Anthropic and Ollama clients",
        "Listens on --host and --port: /v1/chat/completions, /v1/completions, /v1/responses, "
        "/v1/messages, /api/chat, /api/generate, /health, /metrics and others (docs/serve.md). A "
        "request gets the same answer to the last bit whatever else runs.\n\n"
        "/health answers 503 with the progress while the model loads. SIGTERM or Ctrl-C lets "
        "running answers end (--drain-timeout); a second signal ends them. The exit status is 0 "
        "then.",
        EXAMPLES("hetero serve model.gguf", "hetero serve model.gguf -c 8192 -np 8 --port 8080",
                 "hetero serve model.gguf --host 0.0.0.0 --api-key-file keys"), 0, 1},
    [HT_CMD_PACK] = {"pack", "SRC -o OUT", "make a HeteroPack from a GGUF or a Hugging Face folder",
        "A pack is one file with the weights in the layout that kernels read, the tokenizer and "
        "the "
        "chat template. It is written beside OUT and renamed when complete. From the same F16 or "
        "F32 weights a GGUF and a Hugging Face folder give the same bytes.",
        EXAMPLES("hetero pack models/tale-9m-f16.gguf -o tale-q8.htpack --precision q8",
                 "hetero pack models/tale-9m-f16.gguf -o tale-2.htpack --also q8"), 1, 1},
    [HT_CMD_INSPECT] = {"inspect", "MODEL", "say what a model file holds and what memory it needs",
        "Reads headers only, unless --verify asks for hashes. The memory estimate is for --ctx "
        "positions and the given cache types.",
        EXAMPLES("hetero inspect models/tale-9m-f16.gguf --ctx 2048",
                 "hetero inspect models/tale-9m-f16.gguf --json"), 0, 1},
    [HT_CMD_TOKENIZE] = {"tokenize", "MODEL [-p TEXT | -f FILE | --ids LIST --detokenize]",
        "turn text into token ids and back",
        "MODEL may be a vocabulary-only GGUF, a tokenizer.json, a Hugging Face folder or a pack. "
        "Without -p, -f or --ids the text is read from standard input, every byte of it. Special "
        "tokens in the text are recognised only with --special, and BOS is added only with "
        "--add-bos.",
        EXAMPLES("hetero tokenize models/tale-9m-f16.gguf -p 'Once upon a time' --json",
                 "hetero tokenize models/tale-9m-f16.gguf --ids 73,101 --detokenize"), 0, 1},
    [HT_CMD_TEMPLATE] = {"template", "[MODEL | --template FILE] --messages FILE",
        "render a chat template",
        "Writes the rendered text to standard output and adds nothing, no newline either. A "
        "construct outside the supported part of Jinja is an error with line and column.",
        EXAMPLES("hetero template models/tale-9m-f16.gguf --messages messages.json"), 0, 1},
    [HT_CMD_EXPLAIN] = {"explain", "[MODEL]", "show the plan of each phase: stages, kernels, bytes",
        "Prints the tape of stages, the spans (kernels) that cover it on the engine in force, and "
        "for each span the bytes and operations it cannot do without. With --route: the routes of "
        "the store for a request of -p and -n tokens, taken and rejected with their reasons, costs "
        "as upper bounds against the reference's lower ones, hand-offs.",
        EXAMPLES("hetero explain", "hetero explain models/tale-9m-f16.gguf -p 128 -d 1024 --json"),
        0, 1},
    [HT_CMD_BENCH] = {"bench", "[MODEL]", "time prefill and decode",
        "Rows are named as other tools name them: pp512 is a prompt of 512 tokens, tg128 is 128 "
        "generated tokens, '@ d2048' says how much context was there before. Tokenising "
        "and a warm-up are not timed; a generated token includes its greedy choice. In the same "
        "run the machine's read bandwidth and rates of products are measured, with as many "
        "threads, "
        "and each row is given as a share of "
        "them; a share above 100 % is reported as an error of the measurement. '% sustained' is "
        "the share of what the machine kept up on average in windows between the repetitions, "
        "which neighbours of a virtual machine lower. '% int8' is a prompt under --act q8 on "
        "quantised weights against the rate of 8-bit products (on AVX2 two: widened at once, and "
        "four added in 16 bits). An engine is timed only after it was "
        "checked against the oracle in this process.",
        EXAMPLES("hetero bench --inject 256 -r 3", "hetero bench -p 128 -n 32 -r 3",
        "hetero bench model.gguf -p 512 -n 128 -d 0,2048"),
        0, 1},
    [HT_CMD_PPL] = {"ppl", "MODEL FILE", "perplexity of a text",
        "The text is tokenised once and cut into chunks of --ctx tokens; only the second half of "
        "each chunk is scored; BOS replaces a chunk's first token where the model adds one; the "
        "cache is cleared for every chunk. The perplexity is exp of the mean negative "
        "log-likelihood, with its standard error.",
        EXAMPLES("hetero ppl models/tale-9m-f16.gguf text.txt --ctx 512 --chunks 20 --json"), 0, 2},
    [HT_CMD_LOGITS] = {"logits", "MODEL --ids LIST [--at LIST]", "print raw logits",
        "Evaluates the ids as one sequence from position 0 and prints the logits after the chosen "
        "positions. Values are printed so that they read back as the same float32.",
        EXAMPLES("hetero logits models/tale-9m-f16.gguf --ids 5,17,3 --at 0,2 --json"), 0, 1},
    [HT_CMD_DOCTOR] = {"doctor", "",
        "what this machine is, what each engine can do here, what to fix",
        "Lists processor, instruction sets, threads and the reason for their number, control-group "
        "limits, memory, and the engines of this build. Every finding names a next step.",
        EXAMPLES("hetero doctor", "hetero doctor --require-device cpu --json"), 0, 0},
    [HT_CMD_QUALIFY] = {"qualify", "(BUCKET,... | scheduler | --canary BUNDLE | --reference) "
        "[MODEL]",
        "measure a candidate against the reference and write a bundle",
        "A sealed paired experiment: after a null run of the reference against itself, blocks ABBA "
        "and "
        "BAAB of slots, each slot a fresh process, prompts as token ids that share no prefix. A "
        "bucket "
        "is p32, p128, p512, p2048 (time to the first token), d32 ... d2048 (time per token) or "
        "c32 ... c2048 (complete compute: to the last of 16 tokens; judged, and no route). Guards "
        "are decided from the machine's counters before any timing is read; a red guard voids the "
        "block, which is run again. With -f the quality suite is part of it (see quality). The "
        "folder "
        "-o DIR/<bundle id> holds every input, the analysis, the verdict and the signature; exit "
        "status "
        "6 unless the verdict is QUALIFIED.\n\n"
        "--reference compares the engine in force with the scalar oracle on the given model, and "
        "with itself under other chunkings. It is about correctness only and times nothing.\n\n"
        "--canary asks whether a promoted bundle still holds after microcode, governor, firmware "
        "or another stale field of the machine changed: four pairs of its route and the reference, "
        "which 'hetero promote BUNDLE --amendment FILE' judges.\n\n"
        "scheduler measures prompts beside running answers against prompts that wait: Poisson "
        "arrivals, bursts and a recorded trace, each at three rates, one above saturation, the "
        "same arrivals for both; every run is a fresh hetero serve.",
        EXAMPLES("hetero qualify --reference",
        "hetero qualify scheduler model.gguf -c 4096 --tpot-ms 80 --trace monday.jsonl -o evidence",
        "hetero qualify d512,p512 model.gguf --candidate act=q8 -f quality-400.jsonl -o evidence"),
        0, 2},
    [HT_CMD_QUALITY] = {"quality", "[MODEL] --candidate KEY=VALUE,... -f FILE [--text FILE]",
        "is a candidate as good as the reference on this model?",
        "Runs both arms over the same corpus: greedy continuations of --items prompts compared "
        "token "
        "by token; over --text the Kullback-Leibler divergence, top-1 agreement and perplexity; "
        "and a "
        "task of --tasks items, in each of which a prompt's own response stands among three "
        "foreign "
        "ones and the one with the highest mean log-probability is chosen. Flips are split into "
        "near-ties and real ones. The policy's quality gate decides; exit status 6 when it fails. "
        "Speed is not looked at.\n\n"
        "-f is a file of lines {\"prompt\":text,\"response\":text}. -o writes the files a bundle "
        "keeps, for whoever wants to recount.",
        EXAMPLES("hetero quality model.gguf --candidate act=q8 -f quality-400.jsonl "
                 "--text wiki.test.raw",
                 "hetero quality model.gguf --candidate model=model-q4.gguf -f quality-400.jsonl"),
        0, 1},
    [HT_CMD_SIM] = {"sim", "drafter|residency|mla|dag",
        "simulate with declared inputs: never evidence, never a route",
        "drafter: speculative decoding with an assumed acceptance and latency. residency: the "
        "share of "
        "requests that crosses two devices. mla: a low-rank fit of K and V projections made from "
        "declared random weights, with its error on activations. dag: 144 tasks scheduled on two "
        "devices beside a bound.\n\n"
        "Prints the distribution of each result over the draws and the caveat; -o writes the "
        "record "
        "(canonical JSON). Equal inputs and seed give equal bytes. Neither the library nor the "
        "planner "
        "can read a record, and a key that signs one may sign nothing else. docs/sim.md lists the "
        "inputs.",
        EXAMPLES("hetero sim drafter --json", "hetero sim dag --in inputs.json --seed 7 -o "
        "dag.json"),
        1, 1},
    [HT_CMD_REPORT] = {"report", "BUNDLE|FILE.json -o FILE.html",
        "one HTML file from a bundle, a benchmark record or a simulation",
        "A static page with drawings, without scripts: what was compared on which machine, how "
        "often, "
        "which gates failed, pairs with their intervals, tails, guards. It shows what the "
        "documents "
        "say; hetero verify says whether they are true. FILE.json is a record of bench/record.py, "
        "the "
        "output of hetero bench --json, or a simulation, which gets a banner.",
        EXAMPLES("hetero report evidence/0f3a... -o report.html",
                 "hetero report bench/results/cpu.json -o cpu.html"), 1, 1},
    [HT_CMD_COMPARE] = {"compare", "[MODEL] --server URL -o DIR",
        "this runtime against a foreign server, same file, same prompts",
        "First the null run, this runtime against itself, then for every context --contexts -r "
        "pairs "
        "of requests (6 at least) of 16 greedy tokens, the order rotated, prompts that share no "
        "prefix, sent as token ids where the server takes them. The clock is the client's: "
        "prefill is "
        "the time to the first token, decode the time per further one, complete the time to the "
        "last. "
        "Every answer is kept with what went wrong; a failed one of ours is the worst rank, a "
        "failed "
        "one of the server leaves the cell without a figure. The result is a signed bundle below "
        "DIR "
        "for hetero verify and hetero report; nothing can be promoted from it.\n\n"
        "Start the server first, with the same file and as many threads.",
        EXAMPLES("hetero compare model.gguf --server http://127.0.0.1:8080 --text wiki.txt -o cmp",
                 "hetero compare --server http://127.0.0.1:11434 --api ollama --server-model m "
                 "-o cmp"),
        0, 1},
    [HT_CMD_SLOT] = {"bench-slot", "", "answer the requests of one slot of an experiment",
        "The fresh process of one slot, started by qualify: reads a request document on standard "
        "input, "
        "writes chunks with their times and receipts on standard output.",
        EXAMPLES("hetero bench-slot < request.json"), 0, 0},
    [HT_CMD_KEYS] = {"keys", "new FILE | show FILE | init --grant ROLE=KEY...",
        "make signing keys and a trust root",
        "new writes a private Ed25519 key (mode 0600, never over an old one) and prints its public "
        "half; show prints it again. init makes a store: a folder with trust.json, the one file "
        "that "
        "is believed because you put it there. A promotion needs two keys; keep the second one on "
        "another machine and grant it by its public half.",
        EXAMPLES("hetero keys new p1",
                 "hetero keys init --grant bench=bench --grant index=index "
                 "--grant promote=p1 --grant promote=p2"), 1, 2},
    [HT_CMD_VERIFY] = {"verify", "BUNDLE", "recompute a bundle from its raw samples, offline",
        "Checks every digest, the journal's chain, the sealed design, the raw streams, recomputes "
        "analysis, verdict and cost map byte for byte, and checks the signature against the trust "
        "root. Status 0 means that the bundle is what it says, not that its verdict is good.",
        EXAMPLES("hetero verify evidence/BUNDLE --trust trust.json --json"), 1, 1},
    [HT_CMD_PROMOTE] = {"promote", "BUNDLE --key FILE...", "admit a qualified bundle's routes here",
        "Verifies the bundle on this machine and signs a promotion with every key that has the "
        "role. "
        "Two different keys are needed; the first signature is kept until the second holder runs "
        "the "
        "same command. The new index is signed by a key with the role index.\n\n"
        "--amendment puts the outcome of a canary (qualify --canary) in force: passed, the "
        "bundle's routes are taken in the machine's new state too, for 30 days at most; failed, "
        "they are revoked. A key with the role index is enough.",
        EXAMPLES("hetero promote evidence/BUNDLE --key p1.pem --key p2.pem --key index.pem"), 1, 1},
    [HT_CMD_REVOKE] = {"revoke", "BUNDLE-ID --reason TEXT --key FILE",
        "take a bundle's routes back, for ever",
        "The routes leave the index and a tombstone comes in, which no later index may leave out. "
        "One "
        "key is enough. --quarantine sets them aside without a tombstone.",
        EXAMPLES("hetero revoke BUNDLE-ID --reason 'wrong text seen' --key index.pem"), 1, 1},
    [HT_CMD_ROUTES] = {"routes", "", "list the admitted routes and what each check says", NULL,
        EXAMPLES("hetero routes --json", "hetero routes --renew --key index.pem"), 0, 0},
    [HT_CMD_RECEIPTS] = {"receipts", "[NUMBER]", "check and list the receipts kept here",
        "Every receipt of the log names the digest of the one before, and its end is signed in "
        "batches: an edited, dropped, moved, repeated or cut off receipt is named, and the status "
        "is 6. NUMBER shows one of them. A tail that is not signed yet is no fault and is said.",
        EXAMPLES("hetero receipts", "hetero receipts 42 --json",
                 "hetero receipts --receipts logs --trust trust.json"), 0, 1},
    [HT_CMD_PREFIX] = {"prefix", "ACTION [DIR]",
        "look after a folder of the prefix cache: list, check, prune",
        "list says what lies there, by model. check reads every page and verifies its digests. "
        "prune "
        "removes the longest unused pages until --prefix-cache-size is kept, those older than "
        "--unused days, and what killed programs left behind. DIR may also be given by "
        "--prefix-cache. A page that is damaged is never used: the prompt is computed instead.",
        EXAMPLES("hetero prefix list ~/.cache/hetero/prefix",
                 "hetero prefix prune --prefix-cache ~/.cache/hetero/prefix --prefix-cache-size "
                 "1024"),
        1, 2},
    [HT_CMD_KV_PROBE] = {"kv-probe", "MODEL [FILE]",
        "what smaller types of the KV cache lose on a model",
        "Evaluates a text with the F16 cache and with pairs of types for keys and values, and "
        "compares "
        "the logits at several depths: mean divergence, perplexity, agreement of the likeliest "
        "token. "
        "Without FILE the model writes the text itself. Without -ctk or -ctv a table of types is "
        "tried. "
        "A star marks what passes the gate; --save keeps the figures, without which run, chat "
        "and serve "
        "refuse such types unless --kv-force is given.",
        EXAMPLES("hetero kv-probe model.gguf text.txt",
                 "hetero kv-probe model.gguf text.txt -ctk q8_0r -ctv q8_0r --save"),
        0, 2},
    [HT_CMD_VERSION] = {"version", "", "version and commit; with --json also "
        "the engines of this build", NULL,
        EXAMPLES("hetero version --json"), 0, 0},
    [HT_CMD_HELP] = {"help", "[COMMAND]", "this list, or the options of one command", NULL,
        EXAMPLES("hetero help run", "hetero help --man run", "hetero help --completion bash"), 0,
        1},
};
