/* ref.h - the scalar oracle: what a plan of ref holds, and one function per stage kind. Single
 * thread, f32 registers, sums in f64 over f32 partial sums of 64: closer to exact than any engine
 * it judges. Not fast, not routed to; its code is the definition of every kind and flag in
 * step.h. */
#ifndef HT_BACKEND_REF_H
#define HT_BACKEND_REF_H
#include "core/arena.h"
#include "model/model.h"
#include "step/kvcodec.h"
#include "step/step.h"

#include <stdatomic.h>

/* Weight rows decoded at a time, so that a token's activations are read once for all of them. */
enum { REF__BLOCK_ROWS = 8 };

struct ht_dev {
    const ht_model *model;               /* NULL until load                                       */
};

typedef void (*ref__fn)(ht_plan *, const ht_stage *);
typedef struct { ref__fn fn; ht_stage stage; uint64_t exec; } ref__step;

struct ht_plan {
    const ht_model *m;
    ht_kv *kv;                           /* NULL: a part of the tape without cache                */
    ht_bucket b;
    ht_arena *arena;
    ref__step *step; size_t n_steps, cap_steps;

    float *x, *q, *a, *h, *l;            /* registers, [rows,...] row after row                   */
    ht_choice *r;
    uint32_t rows;                       /* rows in them now: the batch's, the wanted after PICK  */
    uint32_t *row;                       /* [rows] the batch row each came from                   */
    bool picked;

    float *t0, *t1, *t2, *t3;            /* [rows, widest] temporaries                            */
    float *w_rows;                       /* decoded weight rows                                   */
    int8_t *xq; float *xd; int32_t *xsum; /* --act q8: [rows,widest], a scale per 32 */
    float *keys, *vals;                  /* [ctx, head_dim] of one sequence and KV head           */
    double *score;                       /* [ctx]                                                 */
    uint32_t widest;
    ht_kv_todo *todo; uint32_t cap_todo; /* pages to pack in a run                                */

    const ht_batch *batch;               /* of the run in flight                                  */
    int rc;                              /* of the last run, handed out by wait()                 */
    bool ran;
    atomic_int cancel;
    ht_run_stats stats;
};

/* ---- math.c ---- */
/* out[t,r] = row r of matrix m of w times x[t], for all rows of w and n tokens; x has cols of w a
 * token, out_stride floats a token in out. Under HT_ACT_Q8 activations of quantised weights are
 * int8. */
void ref__project(ht_plan *, const ht_weight *, uint32_t m, const float *x, uint32_t n, float *out,
                  size_t out_stride);
double ref__dot(const float *, const float *, size_t n);
/* RMS norm (arXiv:1910.07467) of n elements: out = x / sqrt(mean(x^2) + eps) * w. In place
 * allowed. */
void ref__norm(const float *x, const float *w, uint32_t n, float eps, float *out);
/* Rotate one head at pos: RoPE (arXiv:2104.09864), pairs (i, i+dims/2), in place. */
void ref__rotate(float *head, const ht_rope *, int32_t pos, bool lengthy);
/* Gated activation: g[i] = act(g[i]) * u[i]; silu, or gelu in its tanh form (arXiv:1606.08415). */
void ref__gate(float *g, const float *u, size_t n, bool gelu);
bool ref__cancelled(ht_plan *);
/* The representation of a weight that the plan's bucket asks for. */
const ht_weight *ref__rep(const ht_plan *, const ht_weight *);

/* ---- attn.c ---- */
void ref__qkv(ht_plan *, const ht_stage *);
void ref__attn(ht_plan *, const ht_stage *);
/* ---- stages.c ---- */
void ref__embed(ht_plan *, const ht_stage *);
void ref__attn_out(ht_plan *, const ht_stage *);
void ref__ffn_up(ht_plan *, const ht_stage *);
void ref__ffn_down(ht_plan *, const ht_stage *);
void ref__route(ht_plan *, const ht_stage *);
void ref__experts(ht_plan *, const ht_stage *);
void ref__pick(ht_plan *, const ht_stage *);
void ref__head(ht_plan *, const ht_stage *);
/* ---- plan.c ---- */
int ref__plan(ht_plan **, ht_dev *, ht_kv *, const ht_stage *, const ht_cut *, size_t,
              const ht_bucket *, ht_err *);
int ref__footprint(const ht_dev *, const ht_model *, const ht_stage *, size_t, const ht_bucket *,
                   ht_footprint *, ht_err *);
int ref__reg(ht_plan *, int reg, void **ptr, size_t *bytes, ht_err *);
int ref__run(ht_plan *, const ht_batch *, ht_err *);
int ref__wait(ht_plan *, const float **logits, ht_err *);
int ref__tokens(ht_plan *, const int32_t **, size_t *, ht_err *);
int ref__stats(const ht_plan *, ht_run_stats *);
int ref__cancel(ht_plan *);
void ref__plan_free(ht_plan *);
/* Append the step of a span; called by its encode(). */
int ref__encode(ht_plan *, const ht_stage *, ref__fn, ht_err *);
extern const ht_backend ht_backend_ref;
#endif
