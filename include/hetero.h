/* hetero.h - the public interface of libhetero: load a model, tokenise, render a chat template,
 * generate, and read the receipt of what ran.
 *
 * Rules for the whole file. Functions return 0 or a negative ht_code and fill *err (which may be
 * NULL). The library never prints, never exits, and keeps no global state. Strings handed out as
 * char ** are UTF-8, NUL-terminated, owned by the caller, freed with ht_free(). A handle may be
 * used by one thread at a time unless its comment says otherwise. Compiles as C11 and C++11. */
#ifndef HETERO_H
#define HETERO_H
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HT_MUST_USE __attribute__((warn_unused_result))
#else
#define HT_MUST_USE
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---------------------------------------------------------------------------------- */
enum ht_code {
    HT_OK = 0,
    HT_EARG = -1,         /* the caller asked for something that cannot be meant               */
    HT_ENOMEM = -2,       /* memory, or a stated budget, is exhausted                          */
    HT_EIO = -3,          /* the operating system refused a read, write, open or map           */
    HT_EFORMAT = -4,      /* a file or text breaks its format                                  */
    HT_EUNSUPPORTED = -5, /* well-formed, but this build or device cannot do it                */
    HT_EDEVICE = -6,      /* a device failed; the plan is dead, the session survives           */
    HT_EFULL = -7,        /* context, pages or queue are full                                  */
    HT_EBUSY = -8,        /* in use by another run or thread                                   */
    HT_ECANCELLED = -9,   /* ht_cancel() or a callback asked to stop                           */
    HT_EGATE = -10        /* evidence or policy does not admit it                              */
};
typedef struct ht_err {
    int code;             /* enum ht_code                                                      */
    const char *where;    /* "file.c:function", static                                         */
    char msg[240];        /* what, where, why, and the next step; no trailing newline          */
} ht_err;

const char *ht_version(void); /* "0.1.0 (commit abcdef0)", static                               */
const char *ht_code_name(int code);
void ht_free(void *p);        /* frees what this header says the caller owns; NULL is allowed   */

/* Progress of long work (loading, packing, hashing). done/total in the unit of `what`; total 0 when
 * unknown. Called from the calling thread. Return non-zero to cancel (HT_ECANCELLED). */
typedef int (*ht_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

/* ---- vocabulary: tokenise and detokenise ----------------------------------------------------- */
typedef struct ht_vocab ht_vocab; /* immutable once open; any number of threads may use it        */
enum {
    HT_TOK_SPECIAL = 1,   /* recognise special-token text ("<|im_start|>") as tokens             */
    HT_TOK_BOS = 2        /* add BOS/EOS where the model says so                                 */
};
/* path: a GGUF (vocabulary-only too), a pack, a tokenizer.json, or a Hugging Face folder.
 * pre_override: NULL, or a tokenizer.ggml.pre name to use instead of the file's. */
HT_MUST_USE int ht_vocab_open(ht_vocab **out, const char *path, const char *pre_override, ht_err *);
void ht_vocab_close(ht_vocab *);
uint32_t ht_vocab_size(const ht_vocab *);
int32_t ht_vocab_bos(const ht_vocab *);  /* -1 when the model has none */
int32_t ht_vocab_eos(const ht_vocab *);
int ht_vocab_is_eog(const ht_vocab *, int32_t id);
/* *ids: array of *n ids, owned by the caller. */
HT_MUST_USE int ht_vocab_encode(const ht_vocab *, const char *text, size_t len, unsigned flags,
                                int32_t **ids, size_t *n, ht_err *);
/* Bytes of the ids (special tokens as their text when `special`); NUL-terminated, may hold NULs. */
HT_MUST_USE int ht_vocab_decode(const ht_vocab *, const int32_t *ids, size_t n, int special,
                                char **text, size_t *len, ht_err *);

/* ---- chat templates -------------------------------------------------------------------------- */
typedef struct ht_chat_params {
    const char *messages_json; /* array of message objects                                       */
    const char *tools_json;    /* array, or NULL                                                 */
    const char *kwargs_json;   /* object of extra variables, or NULL                             */
    const char *bos, *eos;     /* token texts; NULL: the vocabulary's, or ""                     */
    int64_t now_unix;          /* what strftime_now sees, in seconds since 1970; 0: the clock     */
    int no_generation_prompt;
} ht_chat_params;
/* Render a template source by itself. */
HT_MUST_USE int ht_chat_render(const char *source, size_t source_len, const ht_chat_params *,
                               char **text, size_t *len, ht_err *);
/* The template text carried by a model file; HT_EUNSUPPORTED when it has none. */
HT_MUST_USE int ht_chat_source(const char *model_path, char **text, ht_err *);
/* Render and tokenise in one go: special tokens are recognised in the template's own text and never
 * in what came from messages, tools or kwargs. No BOS is added: the template owns it. bos/eos NULL:
 * the vocabulary's. *ids: array of *n ids, owned by the caller. */
HT_MUST_USE int ht_chat_encode(const ht_vocab *, const char *source, size_t source_len,
                               const ht_chat_params *, int32_t **ids, size_t *n, ht_err *);

/* ---- files: inspect, pack -------------------------------------------------------------------- */
typedef struct ht_inspect_params {
    uint32_t ctx;         /* estimate memory for this context; 0: the model's own                */
    const char *ctk, *ctv;/* KV types of the estimate; NULL: f16                                  */
    int tensors;          /* list every tensor                                                   */
    int verify;           /* hash everything                                                     */
} ht_inspect_params;
HT_MUST_USE int ht_inspect(const char *path, const ht_inspect_params *, char **json, ht_err *);

typedef struct ht_pack_params {
    const char *precision;   /* "f16" (float types kept), "q8", "q4"                              */
    const char *also;        /* second representation of the projections: NULL, "q8" or "q4"     */
    const char *q4_type;     /* body of q4: "q4_0" (default) or "q4_k"                            */
    const char *head_type;   /* q4 only: type of the head; NULL: the better default (q6_k/q8_0)   */
    const char *pre_override;
    const char *calibrate;   /* a text: store the keys' means over it, which types of the KV cache
                                given as "TYPE,mean" subtract (docs/pack.md); NULL: none          */
    int requantise;          /* let q8 be made of a q4 source: larger and no better, but quicker to
                                compute with where 8-bit kernels are                             */
    int threads;             /* 0: default                                                       */
    ht_progress_fn progress; void *user;
} ht_pack_params;
/* Writes to a temporary file beside out, fsyncs, renames. *json (NULL allowed): a summary. */
HT_MUST_USE int ht_pack_make(const char *src, const char *out, const ht_pack_params *, char **json,
                             ht_err *);

/* ---- engine: a loaded model on its devices --------------------------------------------------- */
typedef struct ht_engine ht_engine;
typedef struct ht_session ht_session;
/* Steps pack pages when they need them, or a thread of the engine does ahead of them. AUTO: a
 * thread where the machine has more CPUs than the engine has threads. */
enum ht_kv_pack { HT_KV_PACK_AUTO, HT_KV_PACK_STEP, HT_KV_PACK_THREAD };
typedef struct ht_engine_params {
    const char *model;              /* path                                                     */
    const char *pre_override;
    const char *prefill_engine;     /* NULL: by route (reference when there is no evidence)      */
    const char *decode_engine;
    const char *store;              /* folder of admitted routes (hetero keys init); NULL: none   */
    const char *act;                /* "f32" (default), "q8", or "f16" (engine cuda)              */
    const char *ctk, *ctv;          /* cached keys and values: "f16" (default), "f32"; smaller, with
                                       a loss: "q8_0", "q4_0", rotated "q8_0r", "q4_0r", "tq4",
                                       "tq3"; layers apart: "q8_0,0-1=f16,27=f16"; keys without
                                       their mean, where the pack has it: "tq4,mean"            */
    const char *kv_gates;           /* folder of measured losses (ht_engine_kv_gate); NULL: none  */
    int kv_force;                   /* take types that lose something without one               */
    int kv_pack;                    /* who packs their pages: enum ht_kv_pack; bits are the same  */
    const char *graph;              /* settings of engine "graph", KEY=VALUE,...: cache=FOLDER of
                                       compiled graphs, memory=MiB they may take, cold=1: serve from
                                       the reference until one is compiled, strict=1: fail where the
                                       reference would stand in, device=, act=, approximate=1:
                                       declared other arithmetic; NULL: none                      */
    int graph_strict;               /* strict where those settings do not say: for callers that show
                                       figures without the receipt that names their engine        */
    const char *cuda;               /* settings of engine "cuda", KEY=VALUE,...: gpu=N, the card;
                                       ranks=N, a group on it over which heads and rows are dealt
                                       out; level=1, no persistent kernel; an error where no phase
                                       is on that engine; NULL: none                              */
    const char *prefill_rep, *decode_rep; /* representation of a two-representation pack          */
    const char *cover;              /* NULL: cheapest; "plain": every stage by a span of its own  */
    const char *isa;                /* NULL: best; else cap: "generic", "avx2", "avx512"          */
    uint32_t ctx;                   /* positions per session; 0: min(model, what fits)            */
    uint32_t max_sessions;          /* 0: 1                                                       */
    uint64_t kv_positions;          /* all sessions together; 0: max_sessions times ctx           */
    uint32_t evict;                 /* positions that a session keeps in full layers, at least 256:
                                       the first page, the newest half, and what attention uses
                                       most of the rest; 0: all. It loses something. The context
                                       may then be as long as the stream, in the memory of this  */
    uint32_t ubatch;                /* prefill chunk in rows; 0: default                          */
    int threads;                    /* 0: affinity, quota and physical cores decide               */
    int verify;                     /* hash the pack even if it is trusted already                */
    /* The prefix cache: pages of prompts computed once are used again, bit for bit the same. */
    uint64_t prefix_bytes;          /* memory for them beside what sessions use; 0 without a
                                       folder: no cache */
    const char *prefix_dir;         /* folder of files, made when absent; NULL: none              */
    uint64_t prefix_dir_bytes;      /* its budget; 0: no limit                                    */
    ht_progress_fn progress; void *user;
} ht_engine_params;
HT_MUST_USE int ht_engine_open(ht_engine **, const ht_engine_params *, ht_err *);
void ht_engine_close(ht_engine *);          /* after its sessions                               */
const ht_vocab *ht_engine_vocab(const ht_engine *);    /* borrowed                              */
const char *ht_engine_template(const ht_engine *);     /* borrowed; NULL when the model has none */
uint32_t ht_engine_ctx(const ht_engine *);
uint32_t ht_engine_n_logits(const ht_engine *); /* a model's vocabulary may be padded beyond text */
/* Pages of the KV pool, HT_PAGE_POSITIONS positions each, and how many are free. A session holds a
 * page for every HT_PAGE_POSITIONS of its positions, shared with the session it was forked from. */
enum { HT_PAGE_POSITIONS = 32 };
void ht_engine_pages(const ht_engine *, uint32_t *total, uint32_t *free_pages);
/* Write pages of the prefix cache that have no file yet, at most max_pages (0: all); *left (NULL
 * allowed): those still without. Nothing without a folder. HT_EIO: the disk; the cache is as good
 * as before. */
HT_MUST_USE int ht_engine_prefix_save(ht_engine *, uint32_t max_pages, uint32_t *left, ht_err *);
typedef struct ht_prefix_counts {
    uint64_t lookups, hits;          /* generations that asked; that took pages over              */
    uint64_t tokens, disk_tokens;    /* taken over; of these read from files                      */
    uint64_t dropped, saved, refused;/* pages given back; written; files that were damaged        */
    uint32_t pages;                  /* held now                                                  */
} ht_prefix_counts;
void ht_engine_prefix_count(const ht_engine *, ht_prefix_counts *);
/* The folder by itself, without a model. JSON: {"folder","pages","bytes","models":[{"what","pages",
 * "prefixes","tokens","bytes","lastUsed","identity"}...],"damaged","unfinished"}. check: verify
 * every digest, else heads only. */
HT_MUST_USE int ht_prefix_folder_list(const char *dir, int check, char **json, ht_err *);
/* Remove the longest unused pages until max_bytes are left (UINT64_MAX: no limit), those not used
 * for unused_s seconds (negative: none), and what unfinished writes left an hour ago. */
HT_MUST_USE int ht_prefix_folder_prune(const char *dir, uint64_t max_bytes, int64_t unused_s,
                                       uint64_t *files, uint64_t *bytes, ht_err *);
/* What is loaded and where: model, contract, threads and why, memory, kernels chosen. JSON. */
HT_MUST_USE int ht_engine_info(const ht_engine *, char **json, ht_err *);
/* Tape, cover, bytes, dispatches and barriers per phase (prefill of n_prompt, decode at depth). */
HT_MUST_USE int ht_engine_explain(const ht_engine *, uint32_t n_prompt, uint32_t depth, char **json,
                                  ht_err *);
/* Check this engine against the oracle in this process, on its own model: the phases' engines
 * against `ref` over a short prompt and a few decoded tokens, and against themselves under other
 * chunkings. Correctness only, no times. progress (NULL: none) is called after every chunk, on ref
 * after every row, and may cancel. *json (may be NULL):
 * {"ok":bool,"checks":[{"name","ok","detail"}...],"reduced":null or how prompts run where that is
 * other arithmetic than ref's ("graph@CPU approximate act=int8"),"sound":bool (all numbers finite,
 * and the same bits in every run)}. A check that fails is HT_EGATE, with the JSON still filled
 * in. */
HT_MUST_USE int ht_engine_qualify_reference(ht_engine *, ht_progress_fn progress, void *user,
                                            char **json, ht_err *);
/* Who this engine is, for bundles and scopes; every byte of the model is read again: {"assets":
 * {"files":[{"bytes","path","sha256"}],"schema"} (mapped libraries),"assetsSha256","binarySha256",
 * "files":[...] (the model's),"modelPackSha256","templateSha256","tokenizerSha256"}. */
HT_MUST_USE int ht_engine_subject(ht_engine *, char **json, ht_err *);
/* The digest of the model's bytes becomes known: from an earlier time, or by reading each of them.
 * From then on ht_engine_info's model.sha256 and every receipt carry it. */
HT_MUST_USE int ht_engine_identify(ht_engine *, ht_err *);
/* What the planner would decide for a request of n_prompt tokens and at most n_new new ones:
 * {"store","policy","referenceQualified","guard","phases":[{"phase","decision","reason","backend",
 * "costNs","refCostNs",...}],"considered":[{"scopeSha256","rejected",...}],"edges":[...]}. Nothing
 * is run or remembered. greedy: the sampler's class. */
HT_MUST_USE int ht_engine_explain_route(ht_engine *, uint32_t n_prompt, uint32_t n_new, int greedy,
                                        char **json, ht_err *);
/* What a packed KV type was measured to lose on an engine's model, at the worst depth: mean
 * Kullback-Leibler divergence in nats from F16, and perplexity over that of F16. */
typedef struct ht_kv_gate {
    double mean_kl, ppl_ratio; uint32_t depth; uint64_t positions;
} ht_kv_gate;
#define HT_KV_GATE_KL 0.01
#define HT_KV_GATE_PPL 0.005
/* A measurement of this engine's KV types as a document: *json, to be stored as kv_gates/(*name).
 */
HT_MUST_USE int ht_engine_kv_gate(ht_engine *, const ht_kv_gate *, char **name, char **json,
                                  ht_err *);
/* The engines of this build and what each can do on this machine, without a model. JSON:
 * {"engines":[{"name","available":bool,"why","describe":{...}}...]}. */
HT_MUST_USE int ht_engines_describe(char **json, ht_err *);

/* ---- sampling -------------------------------------------------------------------------------- */
typedef struct ht_logit_bias { int32_t id; float bias; } ht_logit_bias;
typedef struct ht_sampling {         /* ht_sampling_init() gives the defaults named here */
    float temp;                      /* 0.8; <= 0: greedy, ties to the lowest id */
    int32_t top_k;                   /* 40; 0: off */
    float top_p, min_p, typical_p;   /* 0.95, 0.05, 1 (off) */
    float repeat_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0 */
    int32_t penalty_last_n;          /* 64; 0: off; -1: the context */
    float dry_multiplier, dry_base;  /* 0 (off), 1.75 */
    int32_t dry_allowed_length, dry_last_n; /* 2, -1 */
    const char *const *dry_breakers; size_t n_dry_breakers;  /* NULL: "\n" ":" "\"" "*" */
    float xtc_probability, xtc_threshold;   /* 0 (off), 0.1 */
    const ht_logit_bias *bias; size_t n_bias;
    uint64_t seed;                   /* counter-based: token t uses (seed, position t) */
} ht_sampling;
void ht_sampling_init(ht_sampling *);
/* The chain that takes effect, in order, as text ("penalties(64) -> top_k(40) -> ..."). */
HT_MUST_USE int ht_sampling_describe(const ht_sampling *, char **text, ht_err *);

/* ---- constrained output: JSON, JSON Schema and GBNF ------------------------------------------ */
/* A grammar is a pushdown automaton over bytes. Walked along the bytes of every token it says which
 * tokens may come next. What it does not understand it refuses: HT_EUNSUPPORTED names the JSON
 * pointer (schema) or the line and column (GBNF). docs/grammar.md lists what is understood. */
typedef struct ht_lexicon ht_lexicon; /* a vocabulary by its bytes; immutable, any thread         */
/* n_logits: width of the model's logits, 0: the vocabulary's size. The vocabulary must outlive the
 * lexicon. */
HT_MUST_USE int ht_lexicon_open(ht_lexicon **, const ht_vocab *, uint32_t n_logits, ht_err *);
void ht_lexicon_close(ht_lexicon *);
enum ht_grammar_kind {
    HT_GRAMMAR_JSON = 1,  /* any JSON object (JSON mode); text is not read                        */
    HT_GRAMMAR_SCHEMA,    /* text is a JSON Schema                                                */
    HT_GRAMMAR_GBNF       /* text is a grammar whose start is `root`                              */
};
/* A grammar and its matchers share what they have worked out: one thread at a time for all of
 * them. lexicon NULL: for texts only, no tokens; else it must outlive the grammar. */
typedef struct ht_grammar ht_grammar;
HT_MUST_USE int ht_grammar_open(ht_grammar **, const ht_lexicon *, int kind, const char *text,
                                size_t len, ht_err *);
void ht_grammar_close(ht_grammar *); /* after its matchers */
/* 0 when the whole text belongs to the language; HT_EFORMAT tells where it leaves it. */
HT_MUST_USE int ht_grammar_check(ht_grammar *, const char *text, size_t len, ht_err *);
typedef struct ht_matcher ht_matcher; /* one walk through a grammar                               */
HT_MUST_USE int ht_matcher_new(ht_matcher **, ht_grammar *, ht_err *);
void ht_matcher_free(ht_matcher *);
void ht_matcher_reset(ht_matcher *);
/* Walk on; HT_EFORMAT when the grammar forbids it, and the walk stays where it was. An
 * end-of-generation token is taken where the text may end. */
HT_MUST_USE int ht_matcher_accept(ht_matcher *, int32_t id, ht_err *);
HT_MUST_USE int ht_matcher_accept_text(ht_matcher *, const char *text, size_t len, ht_err *);
/* Which tokens may come next: bit id%32 of word id/32, (n_logits+31)/32 words, borrowed until the
 * next call on the grammar or a matcher of it. Never all zero: end-of-generation tokens are allowed
 * where the text may end, and HT_EFORMAT says when no token fits. */
HT_MUST_USE int ht_matcher_mask(ht_matcher *, const uint32_t **bits, ht_err *);
int ht_matcher_is_complete(const ht_matcher *); /* the text so far is one of the language         */
int ht_matcher_must_end(ht_matcher *);          /* complete, and no byte may follow               */

/* ---- sessions -------------------------------------------------------------------------------- */
enum ht_finish { HT_FINISH_NONE, HT_FINISH_STOP, HT_FINISH_EOG, HT_FINISH_LENGTH,
                 HT_FINISH_CANCEL };
typedef struct ht_top { int32_t id; float logprob; } ht_top;
typedef struct ht_token_event {
    int32_t id; uint32_t pos;        /* id -1: no token, the tail of the text that was held back */
    const char *text; size_t len;    /* bytes now safe to show: whole code points, no stop prefix */
    float logprob;                   /* natural log, of the distribution before sampling; NaN with
                                        ht_gen_params.tokens_only */
    const ht_top *top; size_t n_top; /* the likeliest tokens of that distribution, best first */
} ht_token_event;
/* What the next token may be: a grammar, seen from the sampler. Called for the token that is about
 * to be drawn and after each one that was kept, in order; a guess is never shown to it. */
typedef struct ht_constraint {
    /* *bits: bit id%32 of word id/32 for every id that may come next, those that end a generation
     * where it may end; borrowed until the next call. Left NULL: anything may come. Negative code:
     * the generation fails with *err. */
    int (*allowed)(void *user, const uint32_t **bits, ht_err *err);
    int (*accept)(void *user, int32_t id, ht_err *err); /* non-zero: fails likewise */
    void *user;
} ht_constraint;
/* A matcher as the constraint of one generation: it must stand at its start, and outlive it. */
void ht_matcher_constraint(ht_matcher *, ht_constraint *out);
/* Guessing ahead, without loss: the tokens, log-probabilities and the end are those of a plain
 * generation, whatever is guessed. Guesses are verified several rows a run; how many, and whether
 * at all, follows from the measured gain. With `reject` tokens come from the same distribution, but
 * are others than a plain generation with that seed draws. */
typedef struct ht_speculation {
    int lookup;                      /* guess from what the session itself has said               */
    ht_session *draft;               /* a session of a draft model's engine, used for nothing else
                                        meanwhile; NULL: none. Free it after the session it drafts
                                        for. HT_EARG when the vocabularies differ */
    uint32_t draft_max;              /* guesses of a round; 0: the most there can be, 15 */
    uint32_t draft_min;              /* shorter drafts are not used */
    int always;                      /* never switched off, always draft_max: tests, measurements */
    int reject;                      /* keep a draft model's guess by rejection sampling: more of
                                        them, at temperatures above 0 */
    int parallel;                    /* the draft model guesses in a thread of its own meanwhile;
                                        its engine is in use until the generation ends */
} ht_speculation;
typedef struct ht_gen_params {
    uint32_t max_new;                /* 0: until the context ends */
    const ht_sampling *sampling;     /* NULL: defaults */
    const char *const *stop; size_t n_stop;
    int ignore_eos;
    int special;                     /* show special tokens in the text                           */
    int (*on_token)(void *user, const ht_token_event *); /* non-zero: cancel; NULL allowed */
    ht_progress_fn on_prefill;       /* tokens of the prompt done */
    void *user;
    const ht_speculation *speculation; /* NULL: none */
    const ht_constraint *constraint; /* NULL: none; called from where on_token is */
    uint32_t n_top;                  /* entries of ht_token_event.top; at most 64 */
    int hash_logits;                 /* fill logits_sha256 of the result */
    const char *prefix_salt;         /* prompts share pages with those of the same salt; NULL: "" */
    int no_prefix;                   /* neither use nor feed the prefix cache                     */
    int tokens_only;                 /* nobody reads log-probabilities: an engine that picks greedy
                                        tokens by itself may make several of them a run */
} ht_gen_params;
typedef struct ht_gen_result {       /* zero it before; ht_gen_result_done() frees */
    char *text; size_t len;
    int32_t *ids; size_t n_ids;
    int finish;                      /* enum ht_finish */
    int stop_i;                      /* HT_FINISH_STOP: which of ht_gen_params.stop; else -1 */
    uint32_t n_prompt, n_kept;       /* tokens of the prompt; of those, held before the call */
    uint64_t prompt_ns, decode_ns;   /* wall time of the steps that ran either */
    uint64_t drafted, accepted;      /* guesses, and of those the right ones */
    char logits_sha256[65];          /* of the f32 rows the tokens were drawn from, in order; "" */
} ht_gen_result;
/* new, fork, truncate: HT_EBUSY while a session of the engine runs (in another thread, or in a
 * callback of this one). free: the same is a mistake of the caller. */
HT_MUST_USE int ht_session_new(ht_session **, ht_engine *, ht_err *);
void ht_session_free(ht_session *);
uint32_t ht_session_len(const ht_session *);           /* positions held                          */
HT_MUST_USE int ht_session_truncate(ht_session *, uint32_t len, ht_err *);
HT_MUST_USE int ht_session_fork(ht_session **, const ht_session *, ht_err *);
/* Append ids to the session and generate after them. ids may extend what the session holds: the
 * common prefix is kept, the rest truncated and recomputed. */
HT_MUST_USE int ht_session_generate(ht_session *, const int32_t *ids, size_t n,
                                    const ht_gen_params *, ht_gen_result *, ht_err *);
/* Generations that share passes over the weights. Each has a session of its own and is what
 * ht_session_generate makes of the same arguments, to the last bit, whatever else is in the batch
 * and in whatever pieces its prompt is run. One thread drives an engine's generations. */
typedef struct ht_gen ht_gen;
enum ht_gen_state { HT_GEN_PROMPT, HT_GEN_DECODE, HT_GEN_DONE };
/* params: read now, except for callbacks, their user, the constraint and the draft session, which
 * must last until ht_gen_free. HT_EBUSY when the session is in a generation already. */
HT_MUST_USE int ht_gen_new(ht_gen **, ht_session *, const int32_t *ids, size_t n,
                           const ht_gen_params *, ht_err *);
void ht_gen_free(ht_gen *);          /* NULL allowed; the session keeps what was run             */
int ht_gen_state(const ht_gen *);
uint32_t ht_gen_prompt_left(const ht_gen *); /* tokens of the prompt still to be run              */
typedef struct ht_step_info {        /* what a step did                                           */
    uint32_t passes;                 /* over the weights                                          */
    uint32_t prompt_rows, decode_rows, tokens; /* rows of prompts; rows of others; tokens kept    */
    uint64_t keys;                   /* sum over the rows of the positions each one attended to   */
    uint64_t ns;
} ht_step_info;
/* Advance every generation of the list: one step for those that decode, and for the prompts, in the
 * order of the list, prompt_rows rows together at most (0: the engine's chunk). All of it is one
 * pass where the engine can. A generation that ends, is cancelled or fails is HT_GEN_DONE
 * afterwards, the others are not touched by it. info may be NULL. */
HT_MUST_USE int ht_engine_step(ht_engine *, ht_gen *const *gens, size_t n, uint32_t prompt_rows,
                               ht_step_info *info, ht_err *);
/* Of a generation that is done: its result, once, or the error that ended it. */
HT_MUST_USE int ht_gen_take(ht_gen *, ht_gen_result *, ht_err *);
/* Evaluate ids from the session's current end. Logits are asked for by an ascending list of indices
 * into ids (want NULL: none when n_want is 0, else all) and delivered in that order; non-zero from
 * the function stops the call with HT_ECANCELLED. After an error the session holds the chunks that
 * were run before it: ht_session_len() says how far, ht_session_truncate() goes back. */
typedef int (*ht_logits_fn)(void *user, uint32_t index, const float *logits, uint32_t n_vocab);
HT_MUST_USE int ht_session_eval(ht_session *, const int32_t *ids, size_t n, const uint32_t *want,
                                size_t n_want, ht_logits_fn, void *user, ht_err *);
/* Whether draft's model may guess for target's: HT_EARG names both when the vocabularies differ. */
HT_MUST_USE int ht_draft_check(const ht_engine *target, const ht_engine *draft, ht_err *);
/* Any thread, and a signal handler: the running call returns within 50 ms, generate with 0,
 * HT_FINISH_CANCEL and what there is of the text, eval with HT_ECANCELLED. */
void ht_cancel(ht_session *);
/* Receipt of the last generate/eval: product.md 3.1 and evidence.md 7.9. {"phases":[{"phase":
 * "prefill"|"decode","decision","reason","segments":[{"engine","cover","planned","executed",
 * "tokens","ns","bytes","flops","dispatches","hostCopyBytes",...}]}],...} */
HT_MUST_USE int ht_session_receipt(const ht_session *, char **json, ht_err *);
/* A log that keeps receipts: each names the digest of the one before, and the end is signed from
 * time to time (docs/evidence.md, "Receipts"). Hashes only, no text. Any number of processes may
 * write to one folder; a handle is used by one thread at a time. */
typedef struct ht_receipts ht_receipts;
typedef struct ht_receipts_params {
    const char *dir;      /* the log's folder, made when missing                                 */
    const char *key;      /* private key file with the role receipt; NULL: chained, not signed   */
    uint32_t batch;       /* receipts to a signature; 0: 64                                      */
    uint32_t seconds;     /* and while receipts come at least so often; 0: 60                    */
} ht_receipts_params;
/* HT_EGATE: the log ends before what was signed of it; nothing is added to such a one. */
HT_MUST_USE int ht_receipts_open(ht_receipts **, const ht_receipts_params *, ht_err *);
/* Append the receipt of the session's last call, also of one that failed. request_sha256 and
 * stream_sha256: 64 hex digits of what came in and went out, as the caller saw the bytes; NULL: not
 * known. *seq (NULL allowed): its number; *json (NULL allowed): the line as it stands there. */
HT_MUST_USE int ht_receipts_add(ht_receipts *, const ht_session *, const char *request_sha256,
                                const char *stream_sha256, uint64_t *seq, char **json, ht_err *);
/* The line with this number, whichever process wrote it; HT_EARG when there is none. */
HT_MUST_USE int ht_receipts_get(ht_receipts *, uint64_t seq, char **json, ht_err *);
HT_MUST_USE int ht_receipts_sign(ht_receipts *, ht_err *);    /* now; nothing new: nothing done  */
void ht_receipts_close(ht_receipts *);   /* signs what is not signed yet; NULL is allowed        */
void ht_gen_result_done(ht_gen_result *);
const char *ht_finish_name(int finish);  /* "stop", "eos", "length", "cancelled", "none"; static */

#ifdef __cplusplus
}
#endif
#endif
