/* plan.c - a part of the tape made ready: operations in order, registers and each thread's scratch
 * for the bucket's maxima. All memory of a run is taken here. */
#include "backend/cpu/cpu.h"
#include <string.h>

static uint32_t max2(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Hands out a plan's memory, or only adds it up when there is no arena. */
typedef struct {
    ht_arena *arena;
    uint64_t bytes;
    bool failed;
} taker;
static void *take(taker *t, size_t count, size_t size)
{
    size_t n;
    if (count == 0) count = 1;
    if (!ht_mul_ok(count, size, &n)) {
        t->failed = true;
        return NULL;
    }
    t->bytes += n;
    void *p = t->arena ? ht_arena_alloc_aligned(t->arena, n, 64) : NULL;
    t->failed = t->failed || !p;
    return p;
}

/* Results of splits of attention (attn.c): for steps of few rows, and not for contexts where they
 * would be large; there a thread takes a whole KV head. */
enum { PART_ROWS = 16, PART_MAX = 1 << 20 };
static size_t part_floats(const ht_plan *p)
{
    const ht_spec *s = &p->m->spec;
    size_t splits = p->b.ctx / CPU_SPLIT + 1, n;
    bool ok = p->b.rows <= PART_ROWS &&
              ht_mul_ok(p->b.rows * splits, (size_t)s->n_heads * (s->head_dim + 2), &n);
    return ok && n <= PART_MAX ? n : 0;
}

static void take_registers(ht_plan *p, taker *t)
{
    const ht_spec *s = &p->m->spec;
    size_t rows = p->b.rows, nq = (size_t)s->n_heads * s->head_dim, f = sizeof(float);
    size_t nkv = (size_t)s->n_kv_heads * s->head_dim;
    size_t moe = (size_t)s->n_experts_used * s->expert_ffn + s->shared_ffn;
    p->x = take(t, rows * s->dim, f);
    p->q = take(t, rows * nq, f);
    p->a = take(t, rows * nq, f);
    p->h = take(t, rows * (s->ffn > moe ? s->ffn : moe), f);
    p->l = take(t, (size_t)p->b.want * s->vocab, f);
    p->r = take(t, rows * s->n_experts_used, sizeof *p->r);
    p->n = take(t, rows * s->dim, f);
    p->k_raw = take(t, rows * nkv, f);
    p->v_raw = take(t, rows * nkv, f);
    p->u = take(t, rows * s->ffn, f);
    p->y = take(t, rows * s->dim, f);
    p->route = take(t, rows * cpu__tiles(s->n_experts) * CPU_LANES, f);
    p->sgate = take(t, s->shared_ffn ? rows : 1, f);
    p->kv_sign = take(t, s->head_dim, f);
    p->cap_todo = p->kv ? p->kv->n_raw[HT_KV_FULL] + p->kv->n_raw[HT_KV_WINDOW] : 0;
    p->todo = take(t, p->cap_todo, sizeof *p->todo);
    p->part_cap = part_floats(p);
    p->part = take(t, p->part_cap, f);
    p->split_done = take(t, rows * s->n_kv_heads, sizeof *p->split_done);
    for (int i = 0; i < HT_ROPES; i++) {
        if (!s->rope[i].dims || !s->rope[i].inv_freq) continue;
        p->cos[i] = take(t, rows * (s->rope[i].dims / 2), f);
        p->sin[i] = take(t, rows * (s->rope[i].dims / 2), f);
    }
}

/* One thread's scratch. */
static void take_scratch(const ht_plan *p, cpu_scratch *c, taker *t)
{
    const ht_spec *s = &p->m->spec;
    size_t block = p->b.rows < CPU_BLOCK ? p->b.rows : CPU_BLOCK, f = sizeof(float);
    size_t group = s->n_heads / s->n_kv_heads, hd = s->head_dim;
    size_t pairs = group > CPU_ATTN_ROWS ? group : CPU_ATTN_ROWS;
    if (pairs > p->b.rows * group) pairs = p->b.rows * group;
    size_t few = pairs < CPU_FEW ? pairs : CPU_FEW;
    few *= s->n_kv_heads < CPU_ATTN_HEADS ? s->n_kv_heads : CPU_ATTN_HEADS;
    const size_t all = pairs > few ? pairs : few;
    c->in = take(t, block * ((size_t)p->widest + CPU_PAD), f);
    /* A row may end with its sums, at most one for 16 columns. */
    for (int i = CPU_BYTES; i < CPU_FORMS; i++)
        c->z[i] = take(t, block * ((size_t)p->widest + p->widest / 16 + CPU_PAD), f);
    c->scale = take(t, CPU_GROUPS, sizeof *c->scale);
    c->panel = take(t, (size_t)max2(CPU_KC, s->head_dim) * CPU_LANES, f);
    c->c0 = take(t, block * p->slab_cols, f);
    c->c1 = take(t, block * p->slab_cols, f);
    c->tile = take(t, block * CPU_LANES, f);
    c->aq = take(t, all * (hd + CPU_PAD), f);
    c->as = take(t, all * (CPU_SPLIT + CPU_PAD), f);
    c->ap = take(t, all * (hd + CPU_PAD), f);
    c->ao = take(t, pairs * (hd + CPU_PAD), f);
    c->al = take(t, 2 * (pairs + all), f);
    if (p->b.flags & HT_WANT_MASS) {
        c->am = take(t, pairs * p->b.held, f);
        c->at = take(t, pairs * p->b.held, f);
    }
    c->list = take(t, (size_t)p->b.rows * max2(1, s->n_experts_used), sizeof *c->list);
    if (p->b.act != HT_ACT_Q8) return;
    c->q = take(t, block * p->widest, 1);
    c->d = take(t, block * (p->widest / 32 + 1), f);
    c->sum = take(t, block * (p->widest / 32 + 1), sizeof *c->sum);
}

/* Widths that scratch must hold: the inputs of any product, and a slab or a head. */
static void widths(ht_plan *p)
{
    const ht_spec *s = &p->m->spec;
    uint32_t w = max2(s->dim, s->n_heads * s->head_dim);
    w = max2(w, max2(s->ffn, max2(s->expert_ffn, s->shared_ffn)));
    p->widest = w;
    p->slab_cols =
        max2(CPU_SLAB * CPU_LANES, (s->head_dim + CPU_LANES - 1) / CPU_LANES * CPU_LANES);
}

static int take_memory(ht_plan *p, ht_err *e)
{
    taker t = {p->arena, 0, false};
    int size = ht_team_size(p->dev->team);
    take_registers(p, &t);
    p->left = take(&t, (size_t)size, sizeof *p->left);
    for (int i = 0; i < size && p->left; i++) atomic_init(&p->left[i].word, 0);
    p->scratch = take(&t, (size_t)size, sizeof *p->scratch);
    for (int i = 0; i < size && p->scratch; i++) take_scratch(p, &p->scratch[i], &t);
    for (size_t i = 0; !t.failed && i < (size_t)p->b.rows * p->m->spec.n_kv_heads; i++)
        atomic_init(&p->split_done[i], 0);
    if (!t.failed) return 0;
    return HT_FAIL(e, HT_ENOMEM,
                   "cpu: plan of %u rows, context %u: out of memory; lower the rows per step",
                   (unsigned)p->b.rows, p->b.ctx);
}

uint64_t cpu__scratch_bytes(const ht_dev *dev, const ht_model *m, const ht_bucket *b)
{
    ht_plan p = {.m = m, .b = *b};
    cpu_scratch c;
    taker t = {0};
    widths(&p);
    take_registers(&p, &t);
    uint64_t shared = t.bytes;
    take_scratch(&p, &c, &t);
    return shared + (t.bytes - shared) * (uint64_t)ht_team_size(dev->team);
}

int cpu__op(ht_plan *p, cpu_fn fn, const ht_stage *st, ht_err *e)
{
    if (p->n_ops == p->cap_ops)
        return HT_FAIL(e, HT_EARG, "cpu: more spans than the plan was made for");
    p->op[p->n_ops++] = (cpu_op){fn, *st, p->after_pick, 0};
    return 0;
}

static int check_request(const ht_dev *dev, const ht_kv *kv, const ht_bucket *b, ht_err *e)
{
    if (!dev->model) return HT_FAIL(e, HT_EARG, "cpu: plan before load");
    const ht_spec *s = &dev->model->spec;
    if (b->rows == 0 || b->seqs == 0 || b->ctx == 0)
        return HT_FAIL(e, HT_EARG, "cpu: bucket of %u rows, %u sequences, context %u",
                       (unsigned)b->rows, (unsigned)b->seqs, b->ctx);
    if (s->n_kv_heads == 0 || s->n_heads % s->n_kv_heads)
        return HT_FAIL(e, HT_EUNSUPPORTED, "cpu: %u query heads over %u KV heads", s->n_heads,
                       s->n_kv_heads);
    if (kv && (kv->n_layers != s->n_layers || kv->n_kv_heads != s->n_kv_heads ||
               kv->head_dim != s->head_dim))
        return HT_FAIL(e, HT_EARG,
                       "cpu: KV pool of %u layers, %u heads of %u does not fit the model",
                       kv->n_layers, kv->n_kv_heads, kv->head_dim);
    return 0;
}

static int encode_cuts(ht_plan *p, const ht_stage *tape, const ht_cut *cut, size_t n_cuts,
                       ht_err *e)
{
    enum { OPS_PER_STAGE = 4 };
    size_t stages = 0;
    for (size_t i = 0; i < n_cuts; i++) stages += cut[i].n;
    p->cap_ops = stages * OPS_PER_STAGE + 1;
    p->op = ht_arena_array(p->arena, p->cap_ops, sizeof *p->op);
    if (!p->op) return HT_FAIL(e, HT_ENOMEM, "cpu: plan of %zu cuts: out of memory", n_cuts);
    for (size_t i = 0; i < n_cuts; i++) {
        const ht_stage *at = &tape[cut[i].at];
        bool last = false;
        for (uint32_t j = 0; j < cut[i].n; j++) {
            if ((at[j].kind == HT_QKV || at[j].kind == HT_ATTN) && !p->kv)
                return HT_FAIL(e, HT_EARG, "cpu: stage %s needs a KV pool",
                               ht_kind_name(at[j].kind));
            last = last || (at[j].kind == HT_PICK && p->b.want == 0);
        }
        /* Nobody wants a row: the step ends when all keys and values are cached. */
        if (last && at->kind == HT_PICK) break;
        const size_t first = p->n_ops;
        HT_TRY(cut[i].span->encode(p, at, cut[i].n, e));
        if (p->n_ops > first) p->op[first].exec = ht_exec_id(&cut[i]);
        if (last) break;
    }
    return 0;
}

/* tape is the array that the cuts' `at` index. Borrows dev, model and kv until plan_free. */
int cpu__plan(ht_plan **out, ht_dev *dev, ht_kv *kv, const ht_stage *tape, const ht_cut *cut,
              size_t n_cuts, const ht_bucket *b, ht_err *e)
{
    *out = NULL;
    HT_TRY(check_request(dev, kv, b, e));
    ht_plan *p = ht_mem_alloc(sizeof *p);
    if (!p) return HT_FAIL(e, HT_ENOMEM, "cpu: plan: out of memory");
    p->dev = dev;
    p->m = dev->model;
    p->kv = kv;
    p->b = *b;
    p->loops = cpu__loops(b->rows);
    widths(p);
    int rc = ht_arena_new(&p->arena, 0, e);
    if (!rc) rc = take_memory(p, e);
    for (uint32_t i = 0; !rc && i < p->m->spec.head_dim; i++) p->kv_sign[i] = ht_kv_sign(i);
    if (!rc) rc = encode_cuts(p, tape, cut, n_cuts, e);
    if (rc) {
        cpu__plan_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void cpu__plan_free(ht_plan *p)
{
    if (!p) return;
    ht_arena_free(p->arena);
    ht_mem_free(p);
}

/* X, Q, A, H, R, L of the plan, for the bucket's maxima. A caller may write the inputs before
 * run(). */
int cpu__reg(ht_plan *p, int reg, void **ptr, size_t *bytes, ht_err *e)
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
    default: return HT_FAIL(e, HT_EUNSUPPORTED, "cpu has no register %d", reg);
    }
}
