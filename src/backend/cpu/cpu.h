/* cpu.h - the CPU engine: what a device, a plan and a thread of a running step hold.
 *
 * A plan is a list of operations. run() starts the team once; every thread goes through the list,
 * does its fixed share of each operation and meets the others at a barrier after it. Which thread
 * computes a value never changes the value (kern.h), so shares are free to follow the number of
 * threads. */
#ifndef HT_BACKEND_CPU_H
#define HT_BACKEND_CPU_H
#include "backend/cpu/kern.h"
#include "core/arena.h"
#include "core/cpu.h"
#include "core/team.h"
#include "model/model.h"
#include "step/kvcodec.h"
#include "step/step.h"
#include <stdatomic.h>

enum { CPU_BLOCK = 96,        /* tokens whose inputs a thread prepares at a time: 1024 columns of
                                 them stay in a 512 KiB L2 while all weights pass by              */
       CPU_SLAB = 8,          /* tiles of a slab: outputs finished together while they are in L1  */
       CPU_SPLIT = 256,       /* keys of an attention split, at absolute positions k*256          */
       CPU_ATTN_ROWS = 96,    /* (row, query head) pairs that share a key panel                   */
       CPU_ATTN_HEADS = 8,    /* KV heads of a page that are read one after the other             */
       CPU_PAD = 16 };    /* floats between rows of scratch, so that rows do not share cache sets */

/* A weight as the kernels read it: r16/1, in place or repacked by load(). */
typedef struct {
    const uint8_t *p;
    uint64_t tile_bytes, mat_bytes;
    uint32_t rows, cols;
    uint8_t type, act_f32; /* as of ht_weight */
} cpu_mat;

/* What a kind of stage has cost since load, of all plans: rank 0's wall time up to the barrier's
 * end, and the floor of what was run. */
typedef struct { _Atomic uint64_t ns, bytes, flops; } cpu_cost;

struct ht_dev {
    ht_team *team;
    cpu_kern k;
    unsigned feat;
    char why[96];                    /* where the number of threads came from                     */
    const ht_model *model;
    cpu_mat *mat;                    /* [n_weights] by ht_weight.id; p NULL: not loaded           */
    uint8_t *copy; size_t copy_bytes;/* memory of repacked weights                                */
    uint32_t n_copied, n_in_place, n_widened;
    cpu_cost cost[HT_KINDS];
    _Atomic uint64_t wait_ns;        /* of that time, rank 0 waiting for the others               */
};

typedef struct cpu_run cpu_run;      /* a thread's view of a run                                  */
typedef void (*cpu_fn)(cpu_run *, const ht_stage *);
typedef struct {
    cpu_fn fn; ht_stage stage; bool picked;
    uint64_t exec;                   /* of the cut that this is the first operation of, else 0    */
} cpu_op;
typedef struct {                     /* scratch of one thread                                     */
    float *in, *z[CPU_FORMS]; int8_t *q; float *d; int32_t *sum;  /* prepared inputs of CPU_BLOCK
                                        tokens; z: of forms BYTES and NIBBLES                     */
    float *panel;                    /* [CPU_KC][16]                                              */
    cpu_scale *scale;                /* [CPU_GROUPS]                                              */
    float *c0, *c1;                  /* [CPU_BLOCK][slab_cols]                                    */
    float *tile;                     /* [CPU_BLOCK][16]                                           */
    float *aq, *as, *ap, *ao, *al;   /* attention: queries, scores, panel, output, max and sum    */
    float *am, *at;                  /* [pairs][held] HT_WANT_MASS: sums of pages, maxima of their
                                        runs of keys                                              */
    uint32_t *list;                  /* [rows] rows of an expert                                  */
} cpu_scratch;

/* What a rank has not begun of its share of a loop: units [begin, end), 16 bits each, below the
 * number of the loop (cpu_run.turn), 32 bits. Whoever sees an older number there, owner or not,
 * starts with the whole share; a newer one says that somebody found nothing left of this loop and
 * went on to the operation's next. In a cache line of its own. */
typedef struct { _Atomic uint64_t word; char pad[56]; } cpu_left;

struct ht_plan {
    ht_dev *dev;
    const ht_model *m;
    ht_kv *kv;
    ht_bucket b;
    ht_arena *arena;
    cpu_op *op; size_t n_ops, cap_ops;
    bool after_pick;                 /* while encoding: ops behind PICK work on wanted rows       */
    float *x, *q, *a, *h, *l; ht_choice *r;              /* registers                             */
    float *n, *k_raw, *v_raw, *u, *y; /* between spans: normed X; K, V; up; residual */
    float *route;                    /* [rows, topk] position-less: see moe.c                     */
    float *sgate;                    /* [rows] gate of the shared expert                          */
    float *cos[HT_ROPES], *sin[HT_ROPES];                /* [rows, dims/2]                        */
    float *kv_sign;                  /* [head_dim] of rotated packed KV types                     */
    ht_kv_todo *todo; uint32_t n_todo, cap_todo;         /* pages to pack in this run             */
    uint32_t widest, slab_cols;
    cpu_scratch *scratch;            /* [team]                                                    */
    cpu_left *left; uint32_t turn;   /* [team]; loops numbered so far                             */
    uint32_t loops;                  /* most loops of cpu__take in an operation                   */
    float *part; size_t part_cap;    /* floats: results of splits, attn.c                         */
    _Atomic uint32_t *split_done;    /* [rows, KV head] splits of it that are in part             */
    const ht_batch *batch;
    int rc; bool ran;
    atomic_int cancel;
    ht_run_stats stats;
};

struct cpu_run {
    ht_plan *p;
    const cpu_kern *k;
    cpu_scratch *s;
    int rank, size;
    uint32_t rows, turn;             /* of the current operation; number of its current loop      */
    bool picked;
};

/* Inputs of a product: n tokens as rows of every form, and as int8, that some consumer takes. */
typedef struct { const float *x[CPU_FORMS]; size_t ldx[CPU_FORMS]; cpu_q8 q8; uint32_t n; } cpu_in;

/* ---- mul.c ---- */
const cpu_mat *cpu__mat(const cpu_run *, const ht_weight *);
/* Ready tokens: row i is src + at(i)*lds, normalised by norm unless NULL, at(i) = list ? list[i] :
 * i. Result in the thread's scratch, or in place where nothing is to be done. want: what the
 * weights of the products to come take, cpu__want of each or-ed. */
void cpu__prepare(cpu_run *, const float *src, size_t lds, const uint32_t *list, uint32_t n,
                  uint32_t k, const float *norm, unsigned want, cpu_in *out);
unsigned cpu__want(const cpu_run *, const cpu_mat *);
/* c[t*ldc + 16*(tile - t0) + lane] for tiles [t0, t1) of matrix m and all tokens of in. */
void cpu__product(cpu_run *, const cpu_mat *, uint32_t m, uint32_t t0, uint32_t t1,
                  const cpu_in *in, float *c, size_t ldc);
/* This rank's share of n units. */
void cpu__share(const cpu_run *, uint32_t n, uint32_t *begin, uint32_t *end);
/* Begin a loop of cpu__take: every thread begins the same ones in the same order, at most
 * cpu__loops of them in an operation. */
void cpu__loop(cpu_run *);
/* The next of n units for this thread, in multiples of `least`: half of what is left of its share,
 * then half of what is left of another's, from the end; so nobody is waited for longer than the
 * last few units take. False: all are begun. n and least are equal on every thread. */
bool cpu__take(const cpu_run *, uint32_t n, uint32_t least, uint32_t *begin, uint32_t *end);
uint32_t cpu__loops(uint32_t rows); /* of an operation on so many rows, at most                   */
/* Tokens of the block that starts at t of n: blocks of equal size, at most CPU_BLOCK. */
uint32_t cpu__block(const cpu_run *, uint32_t t, uint32_t n);
bool cpu__cancelled(const cpu_run *);
uint32_t cpu__row(const cpu_run *, uint32_t t);    /* batch row of row t of the current operation */
uint32_t cpu__tiles(uint32_t rows);

/* ---- stage.c, attn.c, moe.c: operations; a name with _n, _p, _f is a part of a plain span ---- */
void cpu__begin(cpu_run *, const ht_stage *);        /* rotation tables of the batch              */
void cpu__embed(cpu_run *, const ht_stage *);
void cpu__norm_attn(cpu_run *, const ht_stage *);
void cpu__norm_ffn(cpu_run *, const ht_stage *);
void cpu__norm_head(cpu_run *, const ht_stage *);
void cpu__qkv_p(cpu_run *, const ht_stage *);        /* products only                             */
void cpu__qkv_f(cpu_run *, const ht_stage *);        /* bias, norms, rotation, cache              */
void cpu__qkv(cpu_run *, const ht_stage *);          /* all of it, head by head                   */
void cpu__attn(cpu_run *, const ht_stage *);
void cpu__attn_out(cpu_run *, const ht_stage *);
void cpu__ffn_up_p(cpu_run *, const ht_stage *);
void cpu__ffn_up_f(cpu_run *, const ht_stage *);
void cpu__ffn_up(cpu_run *, const ht_stage *);
void cpu__ffn_down(cpu_run *, const ht_stage *);
void cpu__post_norm(cpu_run *, const ht_stage *);    /* X += norm(Y), after products of POSTNORM  */
void cpu__pick(cpu_run *, const ht_stage *);
void cpu__head_p(cpu_run *, const ht_stage *);
void cpu__head(cpu_run *, const ht_stage *);
void cpu__route(cpu_run *, const ht_stage *);
void cpu__experts_up(cpu_run *, const ht_stage *);
void cpu__experts_down(cpu_run *, const ht_stage *);

/* ---- kvio.c ---- */
/* Take the mean away from a head of K, where the cache wants that. */
void cpu__kv_centre(cpu_run *, int layer, uint32_t head, float *k);
/* Rotate a head as its layer's KV types want it; which: 0 Q, 1 K, 2 V. */
void cpu__kv_turn(cpu_run *, int layer, int which, float *v);
/* Attention's output of one head, where V is rotated: back. */
void cpu__kv_turn_back(cpu_run *, int layer, float *a);
/* A head of a batch row into the cache. */
void cpu__kv_put(cpu_run *, int layer, int is_v, uint32_t row, uint32_t head, const float *v);
/* Find the pages that this batch reads packed and nobody has packed; before the team starts. */
void cpu__kv_todo(ht_plan *);
void cpu__kv_pack(cpu_run *, const ht_stage *);      /* pack them, after QKV of the layer         */
bool cpu__kv_layer_packs(const ht_kv *, int layer);
/* ---- span.c ---- */
extern const ht_span *const cpu__spans[]; /* NULL-terminated */
/* ---- load.c ---- */
int cpu__load(ht_dev *, const ht_model *, ht_err *);
void cpu__unload(ht_dev *);
int cpu__footprint(const ht_dev *, const ht_model *, const ht_stage *, size_t, const ht_bucket *,
                   ht_footprint *, ht_err *);
/* ---- plan.c ---- */
int cpu__op(ht_plan *, cpu_fn, const ht_stage *, ht_err *);
int cpu__plan(ht_plan **, ht_dev *, ht_kv *, const ht_stage *, const ht_cut *, size_t,
              const ht_bucket *, ht_err *);
/* Bytes of a plan's memory for this bucket. */
uint64_t cpu__scratch_bytes(const ht_dev *, const ht_model *, const ht_bucket *);
int cpu__reg(ht_plan *, int reg, void **, size_t *, ht_err *);
void cpu__plan_free(ht_plan *);
/* ---- run.c ---- */
int cpu__run(ht_plan *, const ht_batch *, ht_err *);
int cpu__wait(ht_plan *, const float **, ht_err *);
int cpu__tokens(ht_plan *, const int32_t **, size_t *, ht_err *);
int cpu__stats(const ht_plan *, ht_run_stats *);
int cpu__cancel(ht_plan *);
extern const ht_backend ht_backend_cpu;
#endif
