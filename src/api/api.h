/* api.h - what the files of this directory share: the engine (a loaded model on its devices), its
 * cached plans, a session and the record a receipt is written from. The only directory where
 * format, tokenizer, model, backends and cache meet; everything above it sees hetero.h alone. */
#ifndef HT_API_API_H
#define HT_API_API_H
#include "api/hand.h"
#include "backend/list.h"
#include "core/arena.h"
#include "core/buf.h"
#include "core/cpu.h"
#include "core/hash.h"
#include "core/json.h"
#include "decode/adapt.h"
#include "decode/ahead.h"
#include "format/file.h"
#include "kv/kv.h"
#include "kv/prefix.h"
#include "model/model.h"
#include "route/plan.h"
#include "step/step.h"
#include "tok/tok.h"
#include <stdatomic.h>

enum { API_PREFILL, API_DECODE, API_PHASES };
enum {
    API_UBATCH = 512,           /* default prefill chunk in rows */
    API_EVAL_LOGITS = 64 << 20, /* bytes of logits one evaluation chunk may hold */
    API_EVAL_FEW = 4,           /* wanted rows up to which chunks are cut at each one */
    API_UNITS = 6,              /* devices of one engine: its phases' and those of routes */
    API_CLASS = 160,            /* bytes of a class's text */
    API_WHY = 160,              /* bytes of a reason in words */
    API_CUDA = 128,             /* bytes of the settings of engine cuda */
    API_CLASSES = 16,           /* classes whose pages an engine tells apart */
    API_SEGMENTS = 8,           /* distinct (phase, plan) pairs in one call */
    API_BATCH_SEQS = 64,        /* sessions that may share a pass */
    API_BATCH_ROWS = 16,        /* decode rows of a shared pass come in multiples of this */
    API_TOP = 64,               /* likeliest tokens a caller may ask for */
    API_CHAIN = 32,             /* tokens that a device may pick by itself in one run */
    API_CHAIN_MS = 50,          /* that such a run should not take longer than */
};

/* Reference qualification (product.md 1) of this model, binary, machine and settings. */
enum api__ref { API_REF_NOT_CHECKED, API_REF_PASSED, API_REF_FAILED };

/* An opened backend with the model loaded and the pool attached. */
typedef struct {
    const ht_backend *be;
    ht_dev *dev;
    bool no_chain; /* it does not pick tokens by itself */
    uint8_t place; /* of the pool's planes that its plans read and write */
} api__unit;

/* Where a phase runs and why. */
typedef struct {
    api__unit *unit;
    bool forced;     /* named by the user: decision "forced" */
    bool plain;      /* cover: one span a stage */
    uint8_t flags;   /* HT_ALT_REP when the alternate representation is read */
    const char *rep; /* its name, "f16"; borrowed from the model */
    uint32_t ubatch; /* rows of a chunk; 0: the engine's */
    uint8_t reason;  /* enum ht_reason; HT_R_OK with an entry: promoted */
    const ht_route_entry *entry; /* what admits it; NULL: reference or forced */
    /* whole.h: why this stands for an engine of whole prompts, "BUCKET"; NULL: it does not */
    const char *whole, *whole_engine;
    char whole_why[API_WHY];
    bool cold;       /* until that engine is ready */
} api__phase;

/* A cover encoded for one bucket. Stays in the engine until close, so that receipts may point to
 * it; after a device error `plan` is NULL and the next use makes a new one. */
typedef struct api__plan {
    struct api__plan *next;
    const ht_backend *be;
    const api__unit *unit;
    ht_plan *plan;
    ht_bucket bucket;
    int phase;
    const ht_cut *cuts;
    size_t n_cuts;
    char cover[HT_SHA256_HEX]; /* ht_cover_hash */
    char *cls;                 /* numeric class of what it writes: "cpu act=f32 kv=f16,f16" */
} api__plan;

/* What runs of several sessions are put together in; taken at open. */
typedef struct {
    uint32_t seqs, rows;     /* sessions, and decode rows, of a pass; seqs 1: no such passes */
    int32_t *token, *pos;    /* [cap] */
    uint16_t *owner;         /* [cap] */
    uint32_t *want;          /* [cap] */
    uint32_t *table[HT_KV_CLASSES]; /* [seqs, pages of a context] */
    float **mass;            /* [seqs] of sessions that evict */
    uint8_t *rope_long;      /* [seqs] */
    uint32_t cap;            /* the longer of rows and the prefill chunk */
} api__batch;

typedef struct {                 /* bytes, in the order of inspect's and info's "memory" */
    uint64_t mapped;             /* tensors of the file, as mapped */
    uint64_t weights;            /* resident: mapped ones read in place, and copies */
    uint64_t owned;              /* the part that is the model's: reordered rows, vectors */
    uint64_t copied;             /* the part of weights that is a backend's own copy */
    uint64_t kv, scratch, total; /* total = weights + kv + scratch */
} api__memory;

/* Types of the KV cache; kvtype.c. */
enum { API_KV_NAME = 48 };           /* bytes of a gate's file name */
typedef struct {
    int base[2];                     /* K, V where no layer says otherwise */
    uint8_t (*layer)[2];             /* [n_layers][K,V] enum ht_kvtype */
    char *name[2];                   /* as given: "q8_0,0-1=f16" */
    bool packs;                      /* some layer has a packed type */
    bool mean;                       /* "TYPE,mean": keys are stored without their mean */
    const float *k_mean;             /* it; in the engine's arena */
    const char *gate;                /* "exact", "measured" or "forced" */
    ht_kv_gate measured;             /* positions 0: not measured */
} api__kv;

/* Memory of the pool that a device's driver has locked for hand-offs. */
typedef struct {
    api__unit *by; /* NULL: nothing is locked */
    void *mem;
    ht_err why; /* why not; code 0: it was not tried */
} api__pinned;

struct ht_engine {
    ht_arena *arena;
    ht_file *file;
    ht_model *model;
    ht_tok *tok;
    char *path, *tmpl; /* tmpl NULL: none */
    size_t tmpl_n;
    char tmpl_sha[HT_SHA256_HEX], pack_sha[HT_SHA256_HEX]; /* "" when there is none */
    const char *contract; /* of the stored weights: "f16", "q8", "q4" */
    uint32_t n_proj, n_quantised;
    bool verified; /* every byte of the pack hashed at this open */
    api__unit unit[API_UNITS];
    size_t n_units;
    api__phase phase[API_PHASES];
    ht_stage *tape; /* [n_tape], and behind it the sample stage of chained plans */
    size_t n_tape;
    ht_pool *pool;
    api__hand *hand;   /* NULL: the pool has one place */
    api__pinned pinned;
    ht_prefix *prefix; /* NULL: no prefix cache */
    uint32_t prefix_pages; /* of the pool, for it */
    char class_text[API_CLASSES][API_CLASS];
    uint8_t n_classes;
    api__kv kv;
    uint32_t ctx, ubatch, max_sessions, n_sessions;
    uint64_t kv_positions; /* of all sessions together; 0: max_sessions times ctx */
    uint32_t keep_pages;   /* of a session in full layers, after eviction; 0: nothing is evicted */
    int prefix_why;        /* enum ht_prefix_why of a cache that was asked for and cannot be */
    uint8_t act; /* enum ht_act */
    int threads;
    ht_cpu_threads cpu;
    char isa[16];
    char cuda[API_CUDA]; /* settings of engine cuda; "": none */
    char ctx_why[96];
    api__memory mem;
    api__plan *plans;
    api__batch batch;
    struct api__whole *whole; /* whole.c */
    const struct api__subject *subject; /* subject.c; NULL: nobody has asked yet */
    struct api__route *route; /* route.c; NULL: no admitted routes here */
    uint8_t ref_state; /* enum api__ref: may the reference be called qualified? */
    uint64_t receipts; /* sequence number of the last receipt */
    atomic_flag busy;  /* held while a session of this engine runs */
};

/* One (phase, plan) run of a call: sums over its runs. */
typedef struct {
    int phase;
    const api__plan *plan;
    uint32_t pos0; /* first position written */
    uint64_t tokens, runs;
    uint64_t foreign;           /* rows of other sessions in these runs; costs are shared by rows */
    uint64_t drafted, accepted; /* rows that were guesses, and of those the right ones */
    const char *executed;       /* the engine by its own words; NULL: it does not say */
    uint64_t exec, exec_cuts;   /* folds of the runs, and cuts launched, as the engine counted */
    ht_run_stats sum;
} api__segment;

/* One try of a call's prompt (evidence.md 7.9). */
typedef struct {
    const char *outcome; /* "ok", or the name of the error's code */
    uint64_t t0_ns, t1_ns; /* from the call's beginning */
} api__attempt;

/* What guessing did in one call. */
typedef struct {
    bool on, lookup, always, reject, parallel;
    ht_ahead_stats ahead; /* of guesses in parallel, by the end */
    const uint8_t *draft; /* SHA-256 of the draft model; NULL: none */
    uint32_t draft_max, draft_min;
    uint64_t rounds, drafted[HT_ADAPT_SOURCES], accepted[HT_ADAPT_SOURCES];
    uint64_t draft_ns;
    int64_t saved_ns; /* against the measured plain steps; negative: lost */
    ht_err failed;    /* why the draft model was given up; code 0: it was not */
} api__spec_record;

/* What the prefix cache did for one call. */
typedef struct {
    bool on;
    int why; /* enum ht_prefix_why */
    uint32_t tokens, disk_tokens;
    ht_err damaged; /* code 0: no file was refused */
} api__prefix_record;

/* Pages that came to a phase from the other phase's place. */
typedef struct {
    uint64_t bytes, pages, ns; /* ns: of moving them */
    uint64_t exposed_ns;       /* of it, while nothing was computed */
    uint64_t late;             /* of the pages, moved in front of a run and not layer by layer */
} api__hand_record;

/* What eviction did in one call. */
typedef struct {
    uint64_t rounds, pages; /* decisions that gave something up, and how much */
} api__evict_record;

/* What a receipt says of one call; filled by session.c, written by receipt.c. */
typedef struct {
    uint64_t seq;       /* 0: nothing ran yet */
    const char *call;   /* "generate" or "eval" */
    const char *status; /* "ok", "cancelled", "error" */
    const char *finish; /* ht_finish_name; "none" for eval */
    const char *note;   /* one more fact about the finish, or NULL */
    uint32_t n_prompt, n_kept, n_out;
    uint64_t wall_ns[API_PHASES]; /* with sampling and detokenisation */
    uint64_t cow_bytes;           /* copied by copy-on-write during the call */
    uint8_t prompt_sha[HT_SHA256_BYTES], out_sha[HT_SHA256_BYTES];
    bool sampled;         /* sampling and chain are valid */
    ht_sampling sampling; /* its pointers are NULL */
    char chain[400];
    api__spec_record spec;
    api__prefix_record prefix;
    api__evict_record evict;
    api__phase phase[API_PHASES]; /* where the phases run, as decided for this call */
    api__hand_record hand[API_PHASES];
    bool mismatch;                /* a run was not what was planned */
    uint64_t begin_ns;            /* clock */
    api__attempt attempt[2];
    uint32_t n_attempts;
    size_t n_segments;
    api__segment segment[API_SEGMENTS];
} api__record;

/* A session's grounds for eviction; evict.c. */
typedef struct {
    float *mass;     /* [HT_PAGE][n_kv_heads][held], see ht_batch; NULL: it does not evict */
    float *score;    /* [pages of ctx] */
    uint32_t *entry; /* [held] scratch of a decision: the pages that are there */
    uint32_t done;   /* length at the last decision */
} api__evict;

struct ht_session {
    ht_engine *e;
    ht_arena *arena;
    ht_seq *seq;
    int32_t *hist;   /* [ctx+1] tokens of the held positions, then the sampled one */
    bool rope_long;  /* how the held positions were rotated (longrope) */
    uint32_t n_ids;  /* of a draft: the ids that it may guess, ht_batch.n_ids */
    uint8_t *page_class; /* [pages of ctx] class that wrote a held page; 0: none alone */
    int32_t *pos;    /* [ubatch] batch arrays */
    uint16_t *owner; /* [ubatch] all 0 */
    uint32_t *want;  /* [ubatch] */
    atomic_int cancel;
    ht_gen *gen;                        /* the generation under way, or NULL */
    _Atomic(const api__plan *) running; /* what ht_cancel() must stop */
    _Atomic(ht_session *) helper;       /* the draft session of the running call: it too */
    char *considered; /* JSON of the routes that were not taken in the last call, or NULL */
    api__evict evict;
    uint64_t step_ns; /* of a token in the last chained run; 0: none yet */
    ht_adapt adapt;                     /* what guessing is known to cost and bring here */
    api__record rec;
};

/* ---- engine.c ---- */
/* Enter/leave the engine from one thread; HT_EBUSY when another is inside. */
HT_MUST_USE int api__enter(ht_engine *, ht_err *);
void api__leave(ht_engine *);

/* ---- place.c ---- */
/* The pool, with a second place where a device cannot address the first one, and every unit
 * attached to the place that it addresses. */
HT_MUST_USE int api__pool_make(ht_engine *, ht_pool_params *, ht_err *);
void api__pool_free(ht_engine *);
/* How many places the pool of these units will have. */
int api__places(const ht_engine *);
/* The planes that a unit's plans are made for. */
ht_kv *api__kv_of(const ht_engine *, const api__unit *);
/* What the phases' hand-off is: a member "handOff", or nothing where they share a place. n_prompt
 * 0: of no prompt in particular. */
void api__write_hand(ht_jw *, const ht_engine *, uint32_t n_prompt);
/* What a phase's hand-off took in a call: the same. */
void api__write_handed(ht_jw *, const ht_engine *, const api__record *, int phase);

/* ---- memory.c ---- */
/* [n_layers] KV classes of the layers, in the arena; NULL: memory. */
uint8_t *api__layer_class(const ht_spec *, ht_arena *);
/* Pool parameters for n_sessions of ctx positions. */
void api__pool_params(const ht_spec *, const uint8_t *layer_class, const api__kv *, uint32_t ctx,
                      uint32_t n_sessions, uint32_t ubatch, ht_pool_params *out);
/* The bucket member: base types of K and V. */
uint16_t api__kv_fmt(const api__kv *);

/* ---- kvtype.c ---- */
/* {"k","v"}, and for packed types gate, measured loss and counters. */
void api__write_kv(ht_jw *, const ht_engine *);
/* What the model takes on the phases' devices (opened, not yet loaded) with one plan per phase and
 * a pool of these parameters (NULL: none). */
HT_MUST_USE int api__memory_of(const api__phase phase[API_PHASES], const ht_file *,
                               const ht_model *, const ht_stage *tape, size_t n_tape,
                               const ht_bucket bucket[API_PHASES], const ht_pool_params *pool,
                               api__memory *out, ht_err *);
void api__write_memory(ht_jw *, const api__memory *);

/* ---- plan.c ---- */
/* Bucket of a phase: rows and wanted rows of one session, at the engine's ctx. */
void api__bucket(const ht_engine *, int phase, uint32_t rows, uint32_t want, ht_bucket *out);
/* The cached plan for it, made on first use. */
HT_MUST_USE int api__plan_get(ht_engine *, int phase, uint32_t rows, uint32_t want,
                              const api__plan **out, ht_err *);
/* The same in two parts: described, with or without a backend's plan; and encoded, which no other
 * thread may do meanwhile. */
HT_MUST_USE int api__plan_describe(ht_engine *, int phase, uint32_t rows, uint32_t want,
                                   api__plan **out, ht_err *);
HT_MUST_USE int api__plan_encode(ht_engine *, api__plan *, ht_err *);
/* That of a pass of several sessions: prompts and decode rows (API_PREFILL), or these alone. */
HT_MUST_USE int api__plan_shared(ht_engine *, int phase, const api__plan **out, ht_err *);
void api__bucket_shared(const ht_engine *, int phase, ht_bucket *out);
/* That of the decode phase for API_CHAIN tokens of one session, picked on the device; *out NULL:
 * its engine has none. */
HT_MUST_USE int api__plan_chain(ht_engine *, const api__plan **out, ht_err *);
/* After HT_EDEVICE: frees the backend's plan, keeps the description. */
void api__plan_drop(ht_engine *, const api__plan *);
void api__plans_free(ht_engine *);
/* A tape's cover on a backend: cuts [*n], in the arena. single: only spans of one stage each. */
HT_MUST_USE int api__cover(ht_arena *, const ht_backend *, const ht_dev *, const ht_model *,
                           const ht_stage *, size_t n_tape, const ht_bucket *, bool single,
                           const ht_cut **cuts, size_t *n, ht_err *);

/* ---- run.c ---- */
/* What one session brings to a run: n tokens at its end, and which of their rows' logits it wants,
 * ascending. */
typedef struct {
    ht_session *s;
    int phase;
    const int32_t *ids;
    uint32_t n, n_want;
    const uint32_t *want; /* [n_want] */
} api__part;
/* Run parts of different sessions of the engine as one batch and advance them all; *logits
 * [wanted rows of all parts, vocab] in their order, valid until the plan's next run. When it fails
 * or a session is cancelled, every session is where it was; *culprit (may be NULL): the part
 * without room when it is HT_EFULL, else n_parts. */
HT_MUST_USE int api__run_parts(ht_engine *, const api__plan *, const api__part *, uint32_t n_parts,
                               const float **logits, uint32_t *culprit, ht_err *);
/* Evaluate n tokens (n <= the plan's rows) at the session's end and advance. want [n_want] rows
 * whose logits are wanted; *logits valid until the next run. A cancelled or failed run leaves the
 * session where it was. */
HT_MUST_USE int api__run(ht_session *, int phase, const api__plan *, const int32_t *ids, uint32_t n,
                         const uint32_t *want, uint32_t n_want, const float **logits, ht_err *);
/* Make up to `steps` greedy tokens behind the session's pending one and advance by as many; the run
 * may end early behind one of end_id [n_end]. *ids [*n], *n >= 1, valid until the plan's next run.
 * When it fails or is cancelled, the session is where it was; HT_EFULL: not so many positions. */
HT_MUST_USE int api__run_chain(ht_session *, const api__plan *, uint32_t steps,
                               const int32_t *end_id, size_t n_end, const int32_t **ids,
                               uint32_t *n, ht_err *);
/* Stop the session's run under way, and the next one; from any thread. */
void api__stop(ht_session *);
/* longrope: may positions of a sequence of `total` be short; see session.c. */
bool api__is_long(const ht_spec *, uint64_t total);
/* Cut the session to len after a run of this plan with `drafted` guesses, `accepted` of them right,
 * and say so in the record. */
HT_MUST_USE int api__roll_back(ht_session *, const api__plan *, uint32_t len, uint32_t drafted,
                               uint32_t accepted, ht_err *);

/* ---- evict.c ---- */
/* Read the parameter; and say why the engine cannot evict, if it cannot. */
HT_MUST_USE int api__evict_read(ht_engine *, const ht_engine_params *, ht_err *);
/* Pages of full layers that a session holds at most. */
uint32_t api__evict_held(const ht_engine *);
HT_MUST_USE int api__evict_make(ht_session *, ht_err *);
void api__evict_fork(ht_session *, const ht_session *from);
/* Rows that may be run before the next decision; UINT32_MAX without eviction. */
uint32_t api__evict_room(const ht_session *);
/* Before rows are run at the session's end: decide, where it is due. */
HT_MUST_USE int api__evict_due(ht_session *, ht_err *);
void api__write_evict(ht_jw *, const ht_session *);

/* ---- prefix.c ---- */
/* "cpu rep=f16 act=f32 kv=f16,f16": the numeric class of what a phase writes. */
void api__class_text(const ht_engine *, int phase, char out[API_CLASS]);
/* Positions [pos, pos+n) of the session were written by this class. */
void api__class_mark(ht_session *, uint32_t pos, uint32_t n, const char *cls);
/* Of the first `keep` positions those before the first page that prefill's class did not write. */
uint32_t api__class_keep(ht_session *, uint32_t keep);
/* Pages that memory for the prefix cache adds to the pool. */
uint32_t api__prefix_pages(const ht_engine *, const ht_engine_params *);
HT_MUST_USE int api__prefix_open(ht_engine *, const ht_engine_params *, ht_err *);
/* Let the session share the pages of ids[0,n-1) that are known, when these are more than it holds;
 * sets the record's n_kept. */
HT_MUST_USE int api__prefix_use(ht_session *, const int32_t *ids, uint32_t n, const char *salt,
                                ht_err *);
/* Enter the session's whole pages. */
HT_MUST_USE int api__prefix_enter(ht_session *, const char *salt, ht_err *);
void api__write_prefix(ht_jw *, const api__prefix_record *);

/* ---- receipt.c ---- */
/* A try of the call's prompt ends: rc 0, or the error that ended it. */
void api__attempt_end(api__record *, int rc);
/* A new record; the phases are the engine's of now. */
void api__record_begin(ht_session *, const char *call);
HT_MUST_USE int api__ids_sha256(const int32_t *, size_t n, uint8_t out[HT_SHA256_BYTES], ht_err *);
/* Spans of a cover with their number of cuts, in order of first use: [{"span":..,"cuts":..}]. */
void api__write_spans(ht_jw *, const ht_cut *, size_t n);
/* A member "facts": what the plan turned out to be, in the engine's own words; or nothing. */
void api__write_facts(ht_jw *, const ht_backend *, const ht_plan *);
const char *api__act_name(int act);

/* ---- qualify_ref.c ---- */
const char *api__ref_name(int state); /* "NOT_CHECKED", "PASSED", "FAILED" */
/* Look up whether the reference passed before, and otherwise check it now where that is short work:
 * for an engine that routes. Sets ref_state. HT_ENOMEM, HT_ECANCELLED; a failed check is none. */
HT_MUST_USE int api__ref_ensure(ht_engine *, ht_progress_fn, void *user, ht_err *);

/* ---- info.c ---- */
/* Facts of a tokenizer as an object: pre, size, bos, eos, eog list, digest. */
void api__write_tokenizer(ht_jw *, const ht_tok *);

/* ---- inspect.c ---- */
/* Bytes of the main representation, of the same with every matrix in F16, and of the alternate. */
typedef struct {
    uint64_t parameters, bytes, f16_bytes, alt_bytes;
} api__sizes;
void api__sizes_of(const ht_named *, size_t n, api__sizes *out);

/* ---- trust.c ---- */
/* Make sure a pack's bytes are what its header says: hashed now, or known from an earlier time.
 * *hex: its digest; *hashed: every byte was hashed now. */
HT_MUST_USE int api__trust(const ht_file *, int verify, ht_progress_fn, void *user,
                           char hex[HT_SHA256_HEX], bool *hashed, ht_err *);

/* Take a finished writer's buffer as the caller's string. */
HT_MUST_USE int api__take_json(ht_buf *, char **json, ht_err *);
#endif
