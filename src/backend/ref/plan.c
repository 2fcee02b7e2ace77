/* plan.c - a part of the tape made ready: registers and temporaries for the bucket's maxima, taken
 * once; running it allocates nothing. run() does all the work and wait() hands it out. */
#include "backend/ref/ref.h"
#include "core/clock.h"

#include <stdint.h>
#include <string.h>

static uint32_t max2(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Widest vector of a row: temporaries hold any of them. */
static uint32_t widest_of(const ht_spec *s)
{
    uint32_t w = max2(s->dim, s->n_heads * s->head_dim);
    w = max2(w, max2(s->ffn, s->expert_ffn));
    return max2(w, max2(s->shared_ffn, s->n_experts));
}

/* Hands out a plan's memory, or only adds it up when there is no arena. */
typedef struct {
    ht_arena *arena;
    uint64_t bytes;
    bool failed;
} taker;

static void *take(taker *t, size_t count, size_t size)
{
    if (count == 0) count = 1;
    t->bytes += (uint64_t)count * size;
    void *p = t->arena ? ht_arena_array(t->arena, count, size) : NULL;
    t->failed = t->failed || !p;
    return p;
}

/* Rows, widths and context are bounded by 16-bit rows and by the reader of specs: products fit 64
 * bits. */
static void take_all(ht_plan *p, taker *t)
{
    const ht_spec *s = &p->m->spec;
    size_t rows = p->b.rows, wide = p->widest, nq = (size_t)s->n_heads * s->head_dim;
    size_t ffn = max2(s->ffn, max2(s->expert_ffn, s->shared_ffn)), f = sizeof(float);
    p->x = take(t, rows * s->dim, f);
    p->q = take(t, rows * nq, f);
    p->a = take(t, rows * nq, f);
    p->h = take(t, rows * ffn, f);
    p->l = take(t, (size_t)p->b.want * s->vocab, f);
    p->r = take(t, rows * s->n_experts_used, sizeof *p->r);
    p->row = take(t, rows, sizeof *p->row);
    p->t0 = take(t, rows * wide, f);
    p->t1 = take(t, rows * wide, f);
    p->t2 = take(t, rows * wide, f);
    p->t3 = take(t, rows * wide, f);
    p->w_rows = take(t, REF__BLOCK_ROWS * wide, f);
    p->keys = take(t, (size_t)p->b.ctx * s->head_dim, f);
    p->vals = take(t, (size_t)p->b.ctx * s->head_dim, f);
    p->score = take(t, p->b.ctx, sizeof *p->score);
    p->cap_todo = p->kv ? p->kv->n_raw[HT_KV_FULL] + p->kv->n_raw[HT_KV_WINDOW] : 0;
    p->todo = take(t, p->cap_todo, sizeof *p->todo);
    if (p->b.act != HT_ACT_Q8) return;
    p->xq = take(t, rows * wide, 1);
    p->xd = take(t, rows * (wide / 32 + 1), f);
    p->xsum = take(t, wide / 32 + 1, sizeof *p->xsum);
}

static int take_memory(ht_plan *p, ht_err *e)
{
    taker t = {p->arena, 0, false};
    take_all(p, &t);
    if (t.failed)
        return HT_FAIL(e, HT_ENOMEM, "ref: plan of %u rows, context %u: out of memory",
                       (unsigned)p->b.rows, p->b.ctx);
    return 0;
}

/* ref copies no weight: it reads all of them where the model has them. */
int ref__footprint(const ht_dev *dev, const ht_model *m, const ht_stage *tape, size_t n_tape,
                   const ht_bucket *b, ht_footprint *out, ht_err *e)
{
    (void)dev;
    (void)tape;
    (void)n_tape;
    ht_plan p = {.m = m, .b = *b, .widest = widest_of(&m->spec)};
    taker t = {NULL, 0, false};
    take_all(&p, &t);
    size_t n = ht_model_names(m, NULL, 0);
    ht_named *list = ht_mem_array(n, sizeof *list);
    if (!list) return HT_FAIL(e, HT_ENOMEM, "ref: list of %zu tensors: out of memory", n);
    (void)ht_model_names(m, list, n);
    *out = (ht_footprint){.scratch = t.bytes};
    for (size_t i = 0; i < n; i++) {
        out->in_place += 4 * (uint64_t)list[i].n;
        for (const ht_weight *w = list[i].w; w; w = w->alt) out->in_place += w->bytes;
    }
    ht_mem_free(list);
    return 0;
}

int ref__encode(ht_plan *p, const ht_stage *st, ref__fn fn, ht_err *e)
{
    if (p->n_steps == p->cap_steps)
        return HT_FAIL(e, HT_EARG, "ref: more spans than the plan was made for");
    p->step[p->n_steps++] = (ref__step){fn, *st, 0};
    return 0;
}

static int check_request(const ht_dev *dev, const ht_kv *kv, const ht_bucket *b, ht_err *e)
{
    if (!dev->model) return HT_FAIL(e, HT_EARG, "ref: plan before load");
    const ht_spec *s = &dev->model->spec;
    if (b->rows == 0 || b->seqs == 0 || b->ctx == 0)
        return HT_FAIL(e, HT_EARG, "ref: bucket of %u rows, %u sequences, context %u",
                       (unsigned)b->rows, (unsigned)b->seqs, b->ctx);
    if (kv && (kv->n_layers != s->n_layers || kv->n_kv_heads != s->n_kv_heads ||
               kv->head_dim != s->head_dim))
        return HT_FAIL(e, HT_EARG,
                       "ref: KV pool of %u layers, %u heads of %u does not fit the model",
                       kv->n_layers, kv->n_kv_heads, kv->head_dim);
    return 0;
}

static int encode_cuts(ht_plan *p, const ht_stage *tape, const ht_cut *cut, size_t n_cuts,
                       ht_err *e)
{
    p->step = ht_arena_array(p->arena, n_cuts, sizeof *p->step);
    p->cap_steps = n_cuts;
    if (!p->step) return HT_FAIL(e, HT_ENOMEM, "ref: plan of %zu cuts: out of memory", n_cuts);
    for (size_t i = 0; i < n_cuts; i++) {
        const ht_stage *at = &tape[cut[i].at];
        if ((at->kind == HT_QKV || at->kind == HT_ATTN) && !p->kv)
            return HT_FAIL(e, HT_EARG, "ref: stage %s needs a KV pool", ht_kind_name(at->kind));
        /* Nobody wants a row: the step ends when all keys and values are cached. */
        if (at->kind == HT_PICK && p->b.want == 0) break;
        HT_TRY(cut[i].span->encode(p, at, cut[i].n, e));
        p->step[p->n_steps - 1].exec = ht_exec_id(&cut[i]);
    }
    return 0;
}

/* tape is the array that the cuts' `at` index. Borrows dev, model and kv until plan_free. */
int ref__plan(ht_plan **out, ht_dev *dev, ht_kv *kv, const ht_stage *tape, const ht_cut *cut,
              size_t n_cuts, const ht_bucket *b, ht_err *e)
{
    *out = NULL;
    HT_TRY(check_request(dev, kv, b, e));
    ht_plan *p = ht_mem_alloc(sizeof *p);
    if (!p) return HT_FAIL(e, HT_ENOMEM, "ref: plan: out of memory");
    p->m = dev->model;
    p->kv = kv;
    p->b = *b;
    p->widest = widest_of(&dev->model->spec);
    int rc = ht_arena_new(&p->arena, 0, e);
    if (!rc) rc = take_memory(p, e);
    if (!rc) rc = encode_cuts(p, tape, cut, n_cuts, e);
    if (rc) {
        ref__plan_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void ref__plan_free(ht_plan *p)
{
    if (!p) return;
    ht_arena_free(p->arena);
    ht_mem_free(p);
}

/* X, Q, A, H, R, L of the plan, for the bucket's maxima. A caller may write the inputs before
 * run(). */
int ref__reg(ht_plan *p, int reg, void **ptr, size_t *bytes, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    size_t rows = p->b.rows, nq = (size_t)s->n_heads * s->head_dim;
    switch (reg) {
    case HT_REG_X: *ptr = p->x, *bytes = rows * s->dim * sizeof(float); return 0;
    case HT_REG_Q: *ptr = p->q, *bytes = rows * nq * sizeof(float); return 0;
    case HT_REG_A: *ptr = p->a, *bytes = rows * nq * sizeof(float); return 0;
    case HT_REG_H: *ptr = p->h, *bytes = rows * s->ffn * sizeof(float); return 0;
    case HT_REG_R: *ptr = p->r, *bytes = rows * s->n_experts_used * sizeof *p->r; return 0;
    case HT_REG_L: *ptr = p->l, *bytes = (size_t)p->b.want * s->vocab * sizeof(float); return 0;
    default: return HT_FAIL(e, HT_EUNSUPPORTED, "ref has no register %d", reg);
    }
}

/* ---- running --------------------------------------------------------------------------------- */

int ref__run(ht_plan *p, const ht_batch *b, ht_err *e)
{
    HT_TRY(ht_batch_check(p->m, p->kv, &p->b, p->n_steps ? &p->step[0].stage : NULL, b, 1, e));
    uint64_t t0 = ht_now_ns();
    ht_bucket k = ht_batch_bucket(&p->b, b);
    memset(&p->stats, 0, sizeof p->stats);
    p->stats.executed = "ref";
    p->batch = b;
    p->rows = b->rows;
    p->picked = false;
    for (uint32_t i = 0; i < b->rows; i++) p->row[i] = i;
    ht_batch_mass_clear(&p->b, b, p->m->spec.n_kv_heads);
    for (size_t i = 0; i < p->n_steps && p->rows && !ref__cancelled(p); i++) {
        uint64_t bytes, flops;
        /* Nobody wants a row: the step ends when all keys and values are cached. */
        if (p->step[i].stage.kind == HT_PICK && b->n_want == 0) break;
        p->step[i].fn(p, &p->step[i].stage);
        ht_stage_bound(p->m, &p->step[i].stage, &k, &bytes, &flops);
        p->stats.bytes += bytes;
        p->stats.flops += flops;
        p->stats.dispatches++;
        p->stats.exec_cuts++;
        p->stats.exec = ht_exec_add(p->stats.exec, p->step[i].exec);
    }
    /* The cancel is used up here and not cleared at the start: one that came just before run()
     * counts. */
    p->rc = atomic_exchange_explicit(&p->cancel, 0, memory_order_relaxed) ? HT_ECANCELLED : 0;
    p->ran = true;
    p->batch = NULL;
    p->stats.ns = ht_now_ns() - t0;
    return 0;
}

/* Logits [n_want,vocab] of the last run, valid until the next one. A cancelled run has none. */
int ref__wait(ht_plan *p, const float **logits, ht_err *e)
{
    if (logits) *logits = NULL;
    if (!p->ran) return HT_FAIL(e, HT_EARG, "ref: wait without run");
    p->ran = false;
    if (p->rc) return HT_FAIL(e, p->rc, "the step was cancelled");
    if (logits) *logits = p->l;
    return 0;
}

int ref__tokens(ht_plan *p, const int32_t **ids, size_t *n, ht_err *e)
{
    (void)p;
    *ids = NULL;
    *n = 0;
    return HT_FAIL(e, HT_EUNSUPPORTED, "ref does not sample; use the host's sampler on its logits");
}

int ref__stats(const ht_plan *p, ht_run_stats *out)
{
    *out = p->stats;
    return 0;
}

/* A run in flight ends at its next block of weight rows. One run uses a cancel up: the one in
 * flight, or, when there is none, the next, so that a cancel just before run() counts. */
int ref__cancel(ht_plan *p)
{
    atomic_store_explicit(&p->cancel, 1, memory_order_relaxed);
    return 0;
}
