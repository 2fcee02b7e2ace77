/* span.c - what the engine can run: one span a kind, each one kernel (QKV of mixed weight types:
 * one a type), and head with greedy sampling as one. What is not covered is refused: experts, draft
 * trees, attention mass, other arithmetic than f32, shapes no multiple of 8. */
#include "backend/cuda/cuda.h"

enum {
    KNOWN = HT_BIAS | HT_QKNORM | HT_WINDOW | HT_CAP | HT_POSTNORM | HT_GELU,
    RING = 96 << 10, /* bytes of a block's ring of weight tiles                */
    STAGE = 64 << 10
};

static const ht_weight *rep(const ht_weight *w, const ht_bucket *b)
{
    return (b->flags & HT_ALT_REP) && w->alt ? w->alt : w;
}

/* ---- the shape of a product ------------------------------------------------------------------ */

typedef struct {
    uint32_t per_block, blocks, tile;
} shape;

static uint32_t up(uint32_t n, uint32_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Rows of a matrix over blocks: about `want` of them, each a multiple of `unit` rows. pair: bytes
 * of a row (both, for gate and up). */
static shape shape_of(uint32_t rows, uint32_t unit, uint32_t want, uint32_t pair)
{
    shape s;
    s.per_block = up((rows + want - 1) / want, unit);
    if (s.per_block > rows) s.per_block = up(rows, unit);
    s.blocks = (rows + s.per_block - 1) / s.per_block;
    s.tile = unit < s.per_block ? unit : s.per_block;
    while (s.tile > 1 && (uint64_t)s.tile * pair > STAGE) s.tile = (s.tile + 1) / 2;
    return s;
}

static uint32_t xs_row(uint32_t cols, uint32_t type)
{
    return up(cols, 32 * (type <= CUDA_BF16 ? 8 : type == CUDA_Q8_0 ? 16 : 32));
}

/* Bytes of shared memory beside the ring. */
static uint64_t shared_for(uint32_t cols, uint32_t type, uint32_t rows)
{
    return CUDA_SHARED_HEAD + 4 * (uint64_t)rows * xs_row(cols, type);
}

/* ---- coverage -------------------------------------------------------------------------------- */

static bool fits(const ht_dev *d, const ht_weight *w0, const ht_bucket *b)
{
    const ht_weight *w = rep(w0, b);
    int type = w->data ? cuda__type_of(w) : -1;
    if (type < 0 || w->n_mats != 1 || w->cols % 8 || w->rows == 0) return false;
    return shared_for(w->cols, (uint32_t)type, 1) + 2 * (uint64_t)cuda__stride(type, w->cols) <=
           (uint64_t)(d ? d->shared_max : 99 << 10);
}

static bool plain(const ht_model *m, const ht_stage *at, size_t left, const ht_bucket *b, int kind)
{
    const ht_spec *s = &m->spec;
    return left > 0 && at->kind == kind && !(at->flags & ~(unsigned)KNOWN) &&
           b->act == HT_ACT_F32 && !(b->flags & HT_WANT_MASS) && s->dim % 8 == 0 &&
           s->head_dim % 8 == 0 && s->head_dim <= CUDA_HEAD_MAX && s->n_kv_heads &&
           s->n_heads % s->n_kv_heads == 0;
}
static bool cache_fits(const ht_bucket *b)
{
    return (b->kv_fmt & 0xff) == b->kv_fmt >> 8 && (b->kv_fmt & 0xff) <= HT_KV_F16;
}

/* Does the engine run this stage? */
static bool takes(const ht_dev *d, const ht_model *m, const ht_stage *at, const ht_bucket *b)
{
    const ht_layer *l = at->layer >= 0 ? &m->layer[at->layer] : NULL;
    switch (at->kind) {
    case HT_EMBED: return fits(d, &m->embed, b);
    case HT_QKV:
        return cache_fits(b) && fits(d, &l->q, b) && fits(d, &l->k, b) && fits(d, &l->v, b);
    case HT_ATTN: return cache_fits(b);
    case HT_ATTN_OUT: return fits(d, &l->o, b);
    case HT_FFN_UP:
        return fits(d, &l->gate, b) && fits(d, &l->up, b) && l->gate.rows % 8 == 0 &&
               cuda__type_of(rep(&l->gate, b)) == cuda__type_of(rep(&l->up, b));
    case HT_FFN_DOWN: return fits(d, &l->down, b);
    case HT_HEAD: return fits(d, &m->head, b);
    default: return at->kind == HT_PICK;
    }
}

/* ---- encoding: products ---------------------------------------------------------------------- */

static const cuda_weight *on_dev(const ht_plan *p, const ht_weight *w)
{
    return &p->dev->weight[rep(w, &p->b)->id];
}

static uint32_t rows_now(const ht_plan *p)
{
    return p->picked ? p->b.want : p->b.rows;
}

static void put_seg(cuda_mul *a, uint32_t i, const cuda_weight *w, shape s)
{
    a->seg[i] = (cuda_seg){w->p, w->rows, w->stride, w->type, s.blocks, s.per_block, s.tile};
    uint32_t bytes = s.tile * w->stride * (a->epi == CUDA_EPI_GATE ? 2 : 1);
    if (a->stage_bytes < bytes) a->stage_bytes = bytes;
}

/* Append the kernel for segments [first, end), which have one type. */
static int put_mul(ht_plan *p, const ht_stage *st, const cuda_mul *a0, uint32_t first, uint32_t end,
                   uint32_t rows, ht_err *e)
{
    uint32_t type = a0->seg[first].type, blocks = 0, most = 0;
    bool two = a0->epi != CUDA_EPI_RESIDUAL;
    for (uint32_t i = first; i < end; i++) {
        uint32_t tiles = (a0->seg[i].per_block + a0->seg[i].tile - 1) / a0->seg[i].tile;
        blocks = i == first || a0->epi != CUDA_EPI_GATE ? blocks + a0->seg[i].blocks : blocks;
        if (most < tiles) most = tiles;
    }
    bool many = rows > 1 && shared_for(a0->cols, type, CUDA_MAX_ROWS) + a0->stage_bytes <=
                                (uint64_t)p->dev->shared_max;
    uint32_t r = many ? CUDA_MAX_ROWS : 1;
    uint64_t fixed = shared_for(a0->cols, type, r), room = (uint64_t)p->dev->shared_max - fixed;
    uint64_t stages = (room < RING ? room : RING) / a0->stage_bytes;
    if (stages < 1) stages = 1;
    if (stages > CUDA_MAX_STAGES) stages = CUDA_MAX_STAGES;
    if (stages > most) stages = most;
    cuda_op *op = cuda__op(p, st, p->dev->mul[two][many][type], blocks, (rows + r - 1) / r, 1, e);
    if (!op) return e ? e->code : HT_EARG;
    op->args.mul = *a0;
    op->args.mul.first_seg = first;
    op->args.mul.n_seg = end;
    op->args.mul.stages = (uint32_t)stages;
    op->args.mul.xs_row = xs_row(a0->cols, type);
    uint64_t shared = fixed + stages * a0->stage_bytes;
    uint64_t least = CUDA_SHARED_HEAD + 4 * CUDA_WARPS * CUDA_HEAD_MAX; /* heads being finished */
    if (a0->epi == CUDA_EPI_QKV && shared < least) shared = least;
    op->shared = (uint32_t)shared;
    return 0;
}

static cuda_mul product(const ht_plan *p, const ht_weight *w, uint32_t epi, cuda_ptr x, cuda_ptr y,
                        uint32_t y_row)
{
    cuda_mul a = {.f = p->feed,
                  .epi = epi,
                  .cols = on_dev(p, w)->cols,
                  .x = x,
                  .y = y,
                  .y_row = y_row,
                  .eps = p->m->spec.rms_eps,
                  .arrived = p->arrived};
    if (p->picked) a.flags = CUDA_MUL_MAPPED | CUDA_MUL_WANT;
    return a;
}

static void rope_of(const ht_plan *p, cuda_rope *r)
{
    const ht_spec *s = &p->m->spec;
    *r = (cuda_rope){.table = p->rope_table};
    for (int i = 0; i < HT_ROPES; i++) {
        if (!s->rope[i].inv_freq) continue;
        r->freq[i] = cuda__vector(p->dev, s->rope[i].inv_freq);
        r->freq_long[i] = cuda__vector(p->dev, s->rope[i].inv_freq_long);
        r->half[i] = s->rope[i].dims / 2;
        r->mscale[i] = s->rope[i].mscale;
    }
    r->row = 2 * (r->half[0] + r->half[1]);
}

/* Blocks hold whole heads, or a part that divides a head, so that they can be finished together. */
static uint32_t head_unit(uint32_t head_dim, uint32_t rows, uint32_t want)
{
    uint32_t unit = head_dim;
    while (unit % 2 == 0 && unit / 2 >= 16 && rows / (unit / 2) <= want) unit /= 2;
    return unit;
}

static int encode_qkv(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    const ht_layer *l = &p->m->layer[at->layer];
    const ht_weight *w[3] = {&l->q, &l->k, &l->v};
    const uint32_t nq = s->n_heads * s->head_dim, all = nq + 2 * s->n_kv_heads * s->head_dim;
    const uint32_t unit = head_unit(s->head_dim, all, (uint32_t)p->dev->sms);
    (void)n;
    cuda_mul a = product(p, w[0], CUDA_EPI_QKV, p->x_now, p->q_now, nq);
    a.gain = cuda__vector(p->dev, l->attn_norm);
    a.kv = p->kv_raw;
    a.head_dim = s->head_dim, a.n_heads = s->n_heads, a.n_kv_heads = s->n_kv_heads;
    a.rope_i = s->layer[at->layer].rope;
    rope_of(p, &a.rope);
    if (at->flags & HT_BIAS) {
        const float *bias[3] = {l->q_bias, l->k_bias, l->v_bias};
        for (int i = 0; i < 3; i++) a.bias[i] = cuda__vector(p->dev, bias[i]);
    }
    if (at->flags & HT_QKNORM) {
        a.head_norm[0] = cuda__vector(p->dev, l->q_norm);
        a.head_norm[1] = cuda__vector(p->dev, l->k_norm);
    }
    a.kv_class = p->kv->layer_class[at->layer];
    for (int v = 0; v < 2; v++) {
        a.plane[v] = (uint64_t)(uintptr_t)p->kv->plane[at->layer][v];
        a.page_bytes[v] = p->kv->page_bytes[at->layer][v];
        a.kv_type[v] = p->kv->type[at->layer][v] == HT_KV_F16;
    }
    if (ht_kv_rotates(p->kv->type[at->layer][0], s->head_dim))
        ht_kv_rotation(s->head_dim, &a.spin[1], &a.spin[0]);
    for (uint32_t i = 0; i < 3; i++) {
        const cuda_weight *c = on_dev(p, w[i]);
        uint32_t want = (uint32_t)((uint64_t)p->dev->sms * c->rows / all);
        uint32_t per = up((c->rows + (want ? want : 1) - 1) / (want ? want : 1), unit);
        if (per > s->head_dim) per = up(per, s->head_dim);
        else
            while (s->head_dim % per) per += unit;
        shape sh = shape_of(c->rows, per, (c->rows + per - 1) / per, c->stride);
        sh.tile = per < 16 ? per : 16;
        while (sh.tile > 1 && (uint64_t)sh.tile * c->stride > STAGE) sh.tile /= 2;
        put_seg(&a, i, c, sh);
    }
    for (uint32_t first = 0, end; first < 3; first = end) {
        for (end = first + 1; end < 3 && a.seg[end].type == a.seg[first].type; end++) {}
        HT_TRY(put_mul(p, at, &a, first, end, rows_now(p), e));
    }
    return 0;
}

static int encode_residual(ht_plan *p, const ht_stage *at, const ht_weight *w, cuda_ptr x,
                           const float *post, ht_err *e)
{
    const cuda_weight *c = on_dev(p, w);
    cuda_mul a = product(p, w, CUDA_EPI_RESIDUAL, x, p->x_now, p->m->spec.dim);
    if (at->flags & HT_POSTNORM) a.post = cuda__vector(p->dev, post);
    a.raw = p->raw;
    put_seg(&a, 0, c, shape_of(c->rows, CUDA_WARPS, (uint32_t)p->dev->sms, c->stride));
    return put_mul(p, at, &a, 0, 1, rows_now(p), e);
}
static int encode_attn_out(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_layer *l = &p->m->layer[at->layer];
    (void)n;
    return encode_residual(p, at, &l->o, p->a, l->post_attn_norm, e);
}
static int encode_ffn_down(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_layer *l = &p->m->layer[at->layer];
    (void)n;
    return encode_residual(p, at, &l->down, p->h, l->post_ffn_norm, e);
}

static int encode_ffn_up(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_layer *l = &p->m->layer[at->layer];
    const cuda_weight *g = on_dev(p, &l->gate), *u = on_dev(p, &l->up);
    (void)n;
    cuda_mul a = product(p, &l->gate, CUDA_EPI_GATE, p->x_now, p->h, p->m->spec.ffn);
    a.gain = cuda__vector(p->dev, l->ffn_norm);
    if (at->flags & HT_GELU) a.flags |= CUDA_MUL_GELU;
    shape s = shape_of(g->rows, CUDA_WARPS, (uint32_t)p->dev->sms, 2 * g->stride);
    put_seg(&a, 0, g, s);
    put_seg(&a, 1, u, s);
    return put_mul(p, at, &a, 0, 2, rows_now(p), e);
}

/* Two blocks a multiprocessor: the head is one long stream. n 2: the best token is picked as well.
 */
static int encode_head(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    const cuda_weight *c = on_dev(p, &p->m->head);
    cuda_mul a = product(p, &p->m->head, CUDA_EPI_HEAD, p->x_now, p->l, s->vocab);
    a.gain = cuda__vector(p->dev, p->m->final_norm);
    a.flags |= CUDA_MUL_WANT | (p->picked ? 0U : (unsigned)CUDA_MUL_PICK);
    if (at->flags & HT_CAP) a.cap = s->logit_cap;
    if (n == 2) {
        a.flags |= CUDA_MUL_BEST;
        a.best_value = p->best_value, a.best_id = p->best_id;
        a.ids = p->ids_dev;
        a.rows_cap = p->b.want;
        p->sampled = true;
    }
    p->headed = true;
    put_seg(&a, 0, c, shape_of(c->rows, 2 * CUDA_WARPS, 2 * (uint32_t)p->dev->sms, c->stride));
    return put_mul(p, at, &a, 0, 1, p->b.want, e);
}

/* ---- encoding: the rest ---------------------------------------------------------------------- */

/* The first kernel of every step does it. */
static int encode_embed(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    cuda_start *a = &p->op[0].args.start;
    const cuda_weight *w = on_dev(p, &p->m->embed);
    (void)n;
    (void)e;
    p->op[0].stage = *at;
    p->embedded = true;
    a->embed = (cuda_seg){w->p, w->rows, w->stride, w->type, 0, 0, 0};
    a->x = p->x;
    return 0;
}

static int encode_attn(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    const uint32_t group = s->n_heads / s->n_kv_heads, rows = rows_now(p);
    const int g = group >= 3 ? 2 : (int)group - 1;
    (void)n;
    int l = 0;
    while ((2U << l) * 8 < s->head_dim) l++;
    cuda_attn a = {.f = p->feed,
                   .q = p->q_now,
                   .a = p->a,
                   .part = p->part,
                   .arrived = p->arrived,
                   .flags = p->picked ? CUDA_MUL_MAPPED | CUDA_MUL_WANT : 0,
                   .n_heads = s->n_heads,
                   .n_kv_heads = s->n_kv_heads,
                   .head_dim = s->head_dim,
                   .splits = p->splits,
                   .chunks = (group + (1U << g) - 1) >> g,
                   .kv_class = p->kv->layer_class[at->layer],
                   .window = (at->flags & HT_WINDOW) ? s->window : 0,
                   .scale = s->attn_scale,
                   .cap = (at->flags & HT_CAP) ? s->attn_cap : 0};
    for (int v = 0; v < 2; v++) {
        a.plane[v] = (uint64_t)(uintptr_t)p->kv->plane[at->layer][v];
        a.page_bytes[v] = p->kv->page_bytes[at->layer][v];
    }
    /* One block a multiprocessor: the next kernel's blocks find room beside them. */
    uint32_t deal = (uint32_t)p->dev->sms / (s->n_kv_heads * a.chunks * rows);
    deal = deal < 1 ? 1 : deal > p->splits ? p->splits : deal;
    cuda_op *op = cuda__op(p, at, p->dev->attn[l][g][p->kv->type[at->layer][0] == HT_KV_F16],
                           s->n_kv_heads * a.chunks, p->part ? deal : 1, rows, e);
    if (!op) return e ? e->code : HT_EARG;
    op->args.attn = a;
    return 0;
}

static int encode_pick(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    (void)n;
    cuda_op *op = cuda__op(p, at, p->dev->pick, p->b.want, 1, 1, e);
    if (!op) return e ? e->code : HT_EARG;
    op->args.pick = (cuda_pick){.f = p->feed,
                                .x = p->x_now,
                                .q = p->q_now,
                                .x_out = p->x2,
                                .q_out = p->q2,
                                .dim = s->dim,
                                .nq = s->n_heads * s->head_dim};
    p->x_now = p->x2, p->q_now = p->q2;
    p->picked = true;
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void bound(const ht_dev *dev, const ht_model *m, const ht_stage *at, size_t n,
                  const ht_bucket *b, uint64_t *bytes, uint64_t *flops)
{
    (void)dev;
    (void)n; /* sampling adds nothing to the head's floor */
    ht_stage_bound(m, at, b, bytes, flops);
}

#define SPAN(fn, kind)                                                                             \
    static size_t covers_##fn(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left, \
                              const ht_bucket *b)                                                  \
    {                                                                                              \
        return plain(m, at, left, b, kind) && takes(d, m, at, b);                                  \
    }                                                                                              \
    static const ht_span span_##fn = {#fn ".cuda", covers_##fn, bound, encode_##fn};
SPAN(embed, HT_EMBED)
SPAN(qkv, HT_QKV)
SPAN(attn, HT_ATTN)
SPAN(attn_out, HT_ATTN_OUT)
SPAN(ffn_up, HT_FFN_UP)
SPAN(ffn_down, HT_FFN_DOWN)
SPAN(pick, HT_PICK)
SPAN(head, HT_HEAD)

static size_t covers_head_sample(const ht_dev *d, const ht_model *m, const ht_stage *at,
                                 size_t left, const ht_bucket *b)
{
    bool both = left > 1 && at[1].kind == HT_SAMPLE && !at[1].flags && b->want > 0;
    return both && covers_head(d, m, at, left, b) ? 2 : 0;
}
static const ht_span span_head_sample = {"head+sample.cuda", covers_head_sample, bound,
                                         encode_head};

const ht_span *const cuda__spans[] = {
    &span_embed,    &span_qkv,  &span_attn, &span_attn_out,    &span_ffn_up,
    &span_ffn_down, &span_pick, &span_head, &span_head_sample, NULL,
};
