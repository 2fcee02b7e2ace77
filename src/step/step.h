/* step.h - one transformer step as a tape of coarse stages; the narrow waist.
 * Above: decode, sched, evid, route build batches and choose covers. Below: backends
 * run them. A stage reads and writes fixed registers, so a tape has no edges and no
 * tensors: X [rows,dim] residual | Q [rows,heads*hd] | A like Q | H [rows,ffn]
 * | R [rows,topk] expert id+weight | L [want,vocab] logits | T [want] token ids.
 * rows is a batch's token count. */
#ifndef HT_STEP_H
#define HT_STEP_H
#include "core/err.h"
typedef struct ht_model ht_model;        /* model/model.h spec + bound weights, immutable       */
typedef struct ht_dev ht_dev;            /* one opened device, or a group of equal ones         */
typedef struct ht_kv ht_kv;              /* step/kvpool.h planes and codecs; owned by kv/       */
typedef struct ht_plan ht_plan;          /* a cover encoded for one bucket; owns its scratch    */

enum ht_kind {
    HT_EMBED,     /* tokens -> X              scale?                                            */
    HT_QKV,       /* X -> Q, cache[K,V]       norm, proj, bias?, qk-norm?, rope                 */
    HT_ATTN,      /* Q, cache -> A            causal GQA, window?, score cap?, mass?            */
    HT_ATTN_OUT,  /* A -> X                   proj, post-norm?, residual                        */
    HT_FFN_UP,    /* X -> H                   norm, gate and up, silu or gelu, product          */
    HT_FFN_DOWN,  /* H -> X                   proj, post-norm?, residual                        */
    HT_ROUTE,     /* X -> R                   norm, router, top-k, softmax before or after      */
    HT_EXPERTS,   /* X, R -> X                norm, grouped gated FFN, shared expert?, residual */
    HT_PICK,      /* X, Q -> X, Q             keep only wanted rows; after the last layer's QKV */
    HT_HEAD,      /* X -> L                   norm, vocabulary proj, logit cap?                 */
    HT_SAMPLE,    /* L -> T                   optional; decode/sample.c on the host is its oracle */
    HT_KINDS
};
enum { HT_BIAS = 1, HT_QKNORM = 2, HT_WINDOW = 4, HT_CAP = 8, HT_POSTNORM = 16, HT_GELU = 32,
       HT_RENORM = 64, HT_SHARED = 128 };                    /* the optional parts named above */
typedef struct { uint16_t kind, flags; int16_t layer; } ht_stage;           /* layer -1: none   */
enum ht_reg { HT_REG_X, HT_REG_Q, HT_REG_A, HT_REG_H, HT_REG_R, HT_REG_L, HT_REG_T, HT_REGS };
typedef struct { uint32_t id; float w; } ht_choice;           /* an entry of R, best first       */

enum { HT_PAGE = 32 };                                        /* positions per KV page          */
#define HT_NOPAGE UINT32_MAX                                  /* an evicted hole in a page list */
enum { HT_WANT_MASS = 1,                                      /* ht_bucket.flags              */
       HT_ALT_REP = 2,               /* use the alternate representation of weights that have one */
       HT_KV_DONE = 4 };             /* runs may ask for kv_done, see ht_batch                    */
/* Arithmetic: product.md 4. INT8: activations rounded by scales that were fixed beforehand. */
enum ht_act { HT_ACT_F32, HT_ACT_Q8, HT_ACT_F16, HT_ACT_BF16, HT_ACT_INT8 };
typedef struct {                    /* what a plan is made for: maxima, and what it may assume  */
    uint16_t rows, seqs, want, steps;          /* steps > 1: tokens chained on the device       */
    uint32_t ctx, past;             /* past 0: every sequence starts at position 0              */
    uint16_t kv_fmt;                /* enum ht_kvtype of K, that of V << 8                       */
    uint8_t act, flags;             /* enum ht_act; HT_WANT_MASS: sequences evict, see ht_batch  */
    uint32_t held;                  /* with HT_WANT_MASS: pages a full table holds at most       */
    uint32_t gone;                  /* of a run: positions before past that full layers lack     */
} ht_bucket;
typedef struct {                    /* borrowed by run() until wait() returns                   */
    uint32_t rows, seqs, n_want;    /* <= the bucket's maxima; the rest is padding              */
    const int32_t *token, *pos;     /* [rows]                                                   */
    const int32_t *slot;            /* [rows] cache position if not pos (draft trees), or NULL  */
    const int32_t *parent;          /* [rows] draft tree, row index or -1; NULL means causal    */
    const uint16_t *seq;            /* [rows] owner sequence                                    */
    const uint32_t *page[2];        /* per KV class, full or windowed: [seqs, ceil(ctx/HT_PAGE)] */
    const uint32_t *want;           /* [n_want] rows that need logits                           */
    uint32_t n_ids;                 /* the rest of the vocabulary needs none; 0: all of it does */
    const struct ht_sampling *sampling;        /* [seqs] chain, seed; for HT_SAMPLE             */
    /* Of a plan of several steps: how many of them this run takes, 0: all. A run of one sequence
     * may end behind a step whose token is one of end_id. tokens() says how many there were. */
    uint32_t steps, n_end;
    const int32_t *end_id;          /* [n_end]                                                  */
    /* With HT_WANT_MASS, per sequence, NULL: not wanted. [HT_PAGE][n_kv_heads][held] out: what the
     * observing row (ht_kv_observes) of position % HT_PAGE gave to the n-th page that its full
     * table holds: soft-max weights, summed over the page, the query heads of the KV head and the
     * full layers but the last one, where rows that want no logits attend no more. */
    float *const *mass;             /* [seqs]                                                   */
    /* Of a plan with HT_KV_DONE, NULL: nobody asks. Called by a run, layer after layer from 0 on,
     * as soon as the engine knows that K and V of all its rows are in that layer's pages, while it
     * goes on. From whatever thread; returns soon. An engine may leave it out altogether. */
    void (*kv_done)(void *kv_user, uint32_t layer);
    void *kv_user;
    const uint32_t *adapter;        /* [seqs] reserved for LoRA, NULL today                     */
    const uint8_t *rope_long;       /* [seqs] longrope: 1 uses the long factors; NULL: none does */
} ht_batch;

/* A span is one way to run one or more consecutive stages: a plain kernel, a fused kernel,
 * a captured graph, a compiled graph or a whole-model megakernel. One name serves the symbol,
 * the source file, the test, the benchmark row and the receipt. */
typedef struct ht_span {
    const char *name;                                     /* "qkv.q4k.sm90.rows1"               */
    size_t (*covers)(const ht_dev *, const ht_model *, const ht_stage *at, size_t left,
                     const ht_bucket *);
                                       /* how many stages from `at` this span runs; 0 = does not */
    void (*bound)(const ht_dev *, const ht_model *, const ht_stage *at, size_t n,
                  const ht_bucket *, uint64_t *bytes, uint64_t *flops); /* least traffic and work */
    int (*encode)(ht_plan *, const ht_stage *at, size_t n, ht_err *);
} ht_span;
typedef struct { const ht_span *span; uint32_t at, n; } ht_cut;    /* a cover is a run of cuts   */

typedef struct {                       /* of a plan's last finished run; the source of receipts   */
    uint64_t ns, bytes, flops;         /* wall time; least traffic and work of what was run       */
    uint32_t dispatches, barriers;
    uint64_t host_copy_bytes, device_copy_bytes;
    uint64_t device_ns;                /* of ns, by the device's own events; 0: none              */
    uint64_t cancel_ns;                /* longest that a cancel of such a run waits; 0: not known */
    /* Proof of what ran, written where it runs: the engine's name in its own words, how many cuts
     * were launched, and ht_exec_add() folded over them in their order. NULL: it does not say. */
    const char *executed; uint32_t exec_cuts; uint64_t exec;
} ht_run_stats;

typedef struct {                       /* bytes of memory                                       */
    uint64_t copied;                   /* a device's own copies of weights                        */
    uint64_t in_place;                 /* weights read where the model has them                   */
    uint64_t scratch;                  /* of one plan                                             */
    uint64_t making;                   /* beyond that while the plan is made and first run        */
} ht_footprint;

typedef struct ht_backend {            /* "ref", "cpu", "graph", "cuda", ...; const, no state    */
    const char *name;
    /* Not NULL: the engine runs whole prompts only, from position 0, one sequence, at one of these
     * numbers of rows, ascending, 0 behind the last. It writes K and V of all of them, so a batch
     * brings consecutive pages for its bucket's rows, padding included. */
    const uint16_t *buckets;
    const ht_span *const *spans;       /* NULL-terminated; ref has exactly one span per kind     */
    int (*open)(ht_dev **, const char *opts, ht_err *);      /* "threads=2,isa=avx2", "gpu=0+1"   */
    int (*load)(ht_dev *, const ht_model *, ht_err *);
    /* Behind load, before plans of HT_ACT_INT8: measure the ranges of activations on these tokens.
     * NULL: the engine has no such arithmetic. */
    int (*calibrate)(ht_dev *, const int32_t *ids, size_t n, ht_err *);
    int (*kv_alloc)(ht_dev *, size_t bytes, void **mem, ht_err *);  /* a plane for a pool of kv/ */
    void (*kv_free)(ht_dev *, void *mem, size_t bytes); /* NULL: memory is ht_page_alloc's */
    int (*kv_attach)(ht_dev *, ht_kv *, ht_err *);  /* EUNSUPPORTED: this device can't address it */
    int (*plan)(ht_plan **, ht_dev *, ht_kv *, const ht_stage *, const ht_cut *, size_t n_cuts,
                const ht_bucket *, ht_err *);             /* any contiguous part of the tape;
                                                             allocates; nothing after it does    */
    /* enum ht_reg: a sub-tape's input and output, f32 (R: ht_choice); host-readable after wait */
    int (*reg)(ht_plan *, int reg, void **ptr, size_t *bytes, ht_err *);
    int (*run)(ht_plan *, const ht_batch *, ht_err *);    /* enqueue; one run in flight per plan */
    int (*wait)(ht_plan *, const float **logits, ht_err *);     /* [n_want,vocab], until next run */
    int (*tokens)(ht_plan *, const int32_t **ids, size_t *n, ht_err *);     /* with HT_SAMPLE    */
    int (*stats)(const ht_plan *, ht_run_stats *);
    int (*describe)(const ht_dev *, char *json, size_t cap); /* kernels, threads: an object */
    /* What a plan turned out to be, as far as the engine itself learns it (a compiler's choices,
     * the device and precision that ran): an object for the receipt. NULL: nothing beyond its
     * cover. */
    int (*plan_describe)(const ht_plan *, char *json, size_t cap);
    /* Any thread, signal handlers too: wait() of the run in flight, or else of the next one,
     * returns ECANCELLED within 50 ms. run() must not clear it, or a cancel just before is lost. */
    int (*cancel)(ht_plan *);
    /* The copy of copy-on-write. */
    int (*page_copy)(ht_dev *, ht_kv *, int kv_class, uint32_t dst, uint32_t src, ht_err *);
    int (*page_io)(ht_dev *, ht_kv *, int kv_class, uint32_t page, void *host, int write, ht_err *);
    int (*kv_move)(ht_dev *, ht_kv *dst, ht_kv *src, int layer0, int n_layers,
                   const uint32_t *pages, size_t n, ht_err *); /* queued behind their writes */
    /* Lock a pool's host memory, whole pages, so that kv_move reaches it without copies in between;
     * before the device is closed and the memory given back, unlock it. A refusal (HT_EUNSUPPORTED)
     * changes nothing. NULL: nothing to gain. */
    int (*kv_pin)(ht_dev *, void *mem, size_t bytes, ht_err *);
    void (*kv_unpin)(ht_dev *, void *mem);
    /* What load() and a plan of this tape and bucket will take, from shapes alone, before either is
     * done (memory check, inspect). NULL: api/ estimates it. */
    int (*footprint)(const ht_dev *, const ht_model *, const ht_stage *, size_t n,
                     const ht_bucket *, ht_footprint *, ht_err *);
    void (*plan_free)(ht_plan *);
    void (*close)(ht_dev *);
} ht_backend;

size_t ht_tape(const ht_model *, ht_stage *out, size_t cap);     /* the step, written once       */
/* Cheapest cover by shortest path over the tape; cost_ns < 0 means unmeasured: use bound(). */
size_t ht_cover(const ht_backend *, const ht_dev *, const ht_model *, const ht_stage *, size_t n,
                const ht_bucket *, double (*cost_ns)(void *, const ht_cut *), void *, ht_cut *out,
                ht_err *);
/* The floor every bound() may use: least bytes and arithmetic of one stage of the model at this
 * bucket (weights once, registers in and out once, the KV that causal attention must read). */
void ht_stage_bound(const ht_model *, const ht_stage *, const ht_bucket *, uint64_t *bytes,
                    uint64_t *flops);
const char *ht_kind_name(int kind);                              /* "qkv"; "?" when out of range */
/* "qkv+bias+qknorm.3": kind, flags and layer; cut to the size of out. */
void ht_stage_text(const ht_stage *, char out[80]);
/* Identity of a cover (part of every claim of equality): SHA-256, hex, over its stages and
 * spans. */
int ht_cover_hash(const ht_stage *, const ht_cut *, size_t n_cuts, char hex[65], ht_err *);
/* Which span of which stages: what an engine folds when it launches a cut, never 0; and the fold,
 * from 0. Equal folds mean equal cuts in an equal order, as far as 64 bits go. */
uint64_t ht_exec_id(const ht_cut *);
uint64_t ht_exec_add(uint64_t fold, uint64_t id);
/* ---- what engines on host memory share (host.c) ---- */
/* Members of ht_backend for pools in memory that the host addresses; the device is not looked
 * at. */
int ht_host_kv_alloc(ht_dev *, size_t bytes, void **mem, ht_err *);
int ht_host_kv_attach(ht_dev *, ht_kv *, ht_err *);
int ht_host_page_copy(ht_dev *, ht_kv *, int kv_class, uint32_t dst, uint32_t src, ht_err *);
int ht_host_page_io(ht_dev *, ht_kv *, int kv_class, uint32_t page, void *host, int write,
                    ht_err *);
int ht_host_kv_move(ht_dev *, ht_kv *dst, ht_kv *src, int layer0, int n_layers,
                    const uint32_t *pages, size_t n, ht_err *);
/* Check a causal batch against what the plan was made for: counts, tokens, sequences, positions,
 * wanted rows, and that every page a row reads or writes exists (evicted ones may be missing with
 * holes). kv NULL: a part of the tape without cache. Errors: HT_EARG names the row,
 * HT_EUNSUPPORTED. */
int ht_batch_check(const ht_model *, const ht_kv *, const ht_bucket *, const ht_stage *first,
                   const ht_batch *, int holes, ht_err *);
/* [held] where a position's attention of one KV head belongs (ht_batch.mass); NULL: nobody asks. */
float *ht_batch_mass(const ht_bucket *, const ht_batch *, uint32_t seq, uint32_t pos,
                     uint32_t n_kv_heads, uint32_t head);
/* Zero those of the batch's rows, before a run. */
void ht_batch_mass_clear(const ht_bucket *, const ht_batch *, uint32_t n_kv_heads);
/* The plan's bucket cut down to this batch: the floor of a run is that of its real rows. */
ht_bucket ht_batch_bucket(const ht_bucket *, const ht_batch *);
#endif
