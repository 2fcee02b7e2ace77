/* tensor.c - host side of prefill on tensor cores (tensor.cu), class `act f16`: which models it
 * takes, its memory and its kernels. A layer is one span; the last layer, whose output is wanted
 * for few rows only, computes its keys, values and queries here and goes on with the kernels of act
 * f32, as do batches of up to 8 rows. */
#include "backend/cuda/cuda.h"

enum {
    WIDTH = 128,           /* rows of a matrix of a block                                      */
    FEW = 8,               /* rows that the kernels of act f32 take                            */
    STAGE_ROW = 128,       /* bytes of a row of a stage                                        */
    SHARED_TWO = 104 << 10 /* bytes of shared memory with which two blocks fit                 */
};

/* ---- coverage -------------------------------------------------------------------------------- */

/* A rotation turns a whole head or nothing. */
static bool turns_all(const ht_rope *r, uint32_t head_dim)
{
    return !r->inv_freq || r->dims == head_dim;
}

bool cuda__tc_model(const ht_dev *d, const ht_model *m, const ht_bucket *b)
{
    const ht_spec *s = &m->spec;
    if (!d || !d->tensor || (s->head_dim != 64 && s->head_dim != 128) || s->attn_cap > 0 ||
        s->dim > CUDA_TC_DIM_MAX || s->ffn % 8 || b->kv_fmt != (HT_KV_F16 | HT_KV_F16 << 8) ||
        !turns_all(&s->rope[0], s->head_dim) || !turns_all(&s->rope[1], s->head_dim))
        return false;
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (s->layer[i].window || s->layer[i].moe) return false;
    return true;
}

bool cuda__tc_batch(const ht_bucket *b)
{
    return b->act == HT_ACT_F16 && b->rows > FEW;
}

static size_t covers_layer(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,
                           const ht_bucket *b)
{
    static const int kind[] = {HT_QKV, HT_ATTN, HT_ATTN_OUT, HT_FFN_UP, HT_FFN_DOWN};
    enum { N = sizeof kind / sizeof *kind };
    if (left < N || !cuda__tc_batch(b)) return 0;
    for (size_t i = 0; i < N; i++)
        if (at[i].kind != kind[i] || at[i].layer != at[0].layer ||
            !cuda__takes(d, m, at + i, left - i, b))
            return 0;
    return N;
}

static size_t covers_heads(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,
                           const ht_bucket *b)
{
    return left > 0 && at->kind == HT_QKV && cuda__tc_batch(b) && cuda__takes(d, m, at, left, b);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint32_t tile_rows(const ht_bucket *b)
{
    return (b->rows + CUDA_TC_ROWS - 1U) / CUDA_TC_ROWS * CUDA_TC_ROWS;
}
static bool all_at_once(const ht_dev *dev, const ht_bucket *b, uint32_t dim)
{
    uint32_t tiles = tile_rows(b) / CUDA_TC_ROWS * ((dim + 127) / 128);
    return 4 * tiles >= 3 * (uint32_t)dev->sms;
}

cuda_tc_needs cuda__tc_needs(const ht_dev *dev, const ht_bucket *b)
{
    const ht_spec *s = &dev->model->spec;
    const uint64_t rows = tile_rows(b), group = rows * STAGE_ROW;
    const uint64_t nq = (uint64_t)s->n_heads * s->head_dim;
    cuda_tc_needs n = {.x = (s->dim + 63U) / 64U * group,
                       .a = (nq + 63) / 64 * group,
                       .h = (s->ffn + 63U) / 64U * group};
    n.part = (all_at_once(dev, b, s->dim) ? 1U : (unsigned)CUDA_TC_PARTS) * rows * s->dim * 4;
    return n;
}

static uint32_t weight_rows(const cuda_mat *m)
{
    return (m->rows + 7) / 8 * 8;
}
/* One matrix as tiles of f16. */
static int widen(ht_dev *dev, cuda_weight *w, ht_err *e)
{
    cuda_tc_widen a = {.m = w->m, .tile_rows = weight_rows(&w->m)};
    const uint64_t bytes = (uint64_t)a.m.groups * a.tile_rows * STAGE_ROW;
    if (dev->api.alloc(&w->tiles, bytes) != CUDA_OK) {
        w->tiles = 0;
        return HT_FAIL(
            e, HT_ENOMEM,
            "cuda: act f16 keeps a second copy of the layers' weights, 2 bytes each, and "
            "%llu MiB of it were refused; use act f32",
            (unsigned long long)(bytes >> 20));
    }
    a.dst = w->tiles;
    dev->copied += bytes;
    void *params[] = {&a};
    cuda_launch l = {.grid = {(a.tile_rows + 31) / 32, a.m.groups, 1},
                     .block = {CUDA_THREADS, 1, 1},
                     .stream = dev->stream};
    return cuda__check(dev, dev->api.launch(&l, dev->tc_widen, params, NULL), "widening weights",
                       NULL, e);
}

/* The layers' matrices as the tensor cores read them: made for the first plan that needs them, kept
 * until the model is unloaded. */
int cuda__tc_weights(ht_dev *dev, const ht_bucket *b, ht_err *e)
{
    for (uint32_t i = 0; i < dev->model->spec.n_layers; i++) {
        const ht_layer *l = &dev->model->layer[i];
        const ht_weight *w[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->down};
        for (size_t k = 0; k < sizeof w / sizeof *w; k++) {
            cuda_weight *on = &dev->weight[cuda__rep(w[k], b)->id];
            if (on->m.w && on->members && !on->tiles) HT_TRY(widen(dev, on, e));
        }
    }
    return 0;
}

/* ---- encoding -------------------------------------------------------------------------------- */

/* One product with what follows it; parts: of its sum, in blocks of their own. */
static int put_product(ht_plan *p, const ht_stage *st, const ht_weight *w, cuda_fn fn,
                       uint32_t parts, const cuda_tc *a0, ht_err *e)
{
    const cuda_weight *on = cuda__on_dev(p, w);
    cuda_tc a = *a0;
    a.f = p->r->feed;
    a.w = on->tiles;
    a.rows = on->m.rows, a.w_rows = weight_rows(&on->m);
    a.groups = on->m.groups, a.row0 = on->m.row0;
    a.tile_rows = a.part_rows = tile_rows(&p->b);
    const uint32_t gx = (a.rows + WIDTH - 1) / WIDTH, gy = a.tile_rows / CUDA_TC_ROWS;
    const uint32_t stage = (CUDA_TC_ROWS + WIDTH) * STAGE_ROW;
    const bool two = fn != p->dev->tc_all && gx * gy * parts > (uint32_t)p->dev->sms;
    const uint32_t room = two ? (uint32_t)SHARED_TWO : (uint32_t)p->dev->shared_max - 2048;
    a.stages = room / stage < 8 ? room / stage : 8;
    cuda_op *op = cuda__op(p, st, fn, CUDA_TC_THREADS, gx, gy, parts, e);
    if (!op) return e ? e->code : HT_EARG;
    op->args.tc = a;
    op->shared = a.stages * stage;
    return 0;
}

/* X += the product in tc_part (parts 0: nothing), and its norm for the next product. */
static int put_join(ht_plan *p, const ht_stage *st, uint32_t parts, const float *post,
                    const float *gain, ht_err *e)
{
    cuda_op *op = cuda__op(p, st, p->dev->tc_join, CUDA_THREADS, p->b.rows, 1, 1, e);
    if (!op) return e ? e->code : HT_EARG;
    op->args.tc_join = (cuda_tc_join){.f = p->r->feed,
                                      .x = p->r->x_now,
                                      .part = p->tc_part,
                                      .post = cuda__vector(p->dev, post),
                                      .gain = cuda__vector(p->dev, gain),
                                      .xh = p->tc_x,
                                      .parts = parts,
                                      .part_rows = tile_rows(&p->b),
                                      .tile_rows = tile_rows(&p->b),
                                      .dim = p->m->spec.dim,
                                      .eps = p->m->spec.rms_eps};
    return 0;
}

/* The layer's input, unless the layer before has left it. */
static int put_norm(ht_plan *p, const ht_stage *at, ht_err *e)
{
    if (p->tc_normed == at->layer + 1) return 0;
    return put_join(p, at, 0, NULL, p->m->layer[at->layer].attn_norm, e);
}

/* Keys and values into the cache, queries as tiles, or as floats where `floats` is set. */
static int put_heads(ht_plan *p, const ht_stage *at, bool floats, ht_err *e)
{
    const ht_layer *l = &p->m->layer[at->layer];
    const ht_weight *w[3] = {&l->q, &l->k, &l->v};
    HT_TRY(put_norm(p, at, e));
    cuda_tc a = {
        .h = cuda__heads(p, at), .x = p->tc_x, .h_out = p->tc_q, .q32 = floats ? p->r->q_now : 0};
    cuda__rope(p, &a.rope);
    for (int i = 0; i < 3; i++)
        if (cuda__on_dev(p, w[i])->members)
            HT_TRY(put_product(p, at, w[i], p->dev->tc_heads[a.h.head_dim == 128], 1, &a, e));
    return 0;
}

static int put_attention(ht_plan *p, const ht_stage *at, const ht_stage *qkv, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    const uint32_t rows = tile_rows(&p->b), tiles = rows / 64, hd = s->head_dim;
    const uint32_t group = s->n_heads / s->n_kv_heads;
    /* Two heads share their keys where that leaves blocks enough. */
    const uint32_t wg = group > 1 && tiles * s->n_heads > 2 * (uint32_t)p->dev->sms ? 2 : 1;
    cuda_op *op = cuda__op(p, at, p->dev->tc_attn[hd == 128], 128 * wg, tiles,
                           s->n_kv_heads * ((group + wg - 1) / wg), 1, e);
    if (!op) return e ? e->code : HT_EARG;
    op->args.tc_attn = (cuda_tc_attn){.f = p->r->feed,
                                      .h = cuda__heads(p, qkv),
                                      .q = p->tc_q,
                                      .out = p->tc_a,
                                      .tile_rows = rows,
                                      .scale = s->attn_scale * 1.4426950408889634F};
    op->shared = (wg * 64 + 4 * 64) * hd * 2;
    return 0;
}

/* X += w * x, and the norm of what comes next. */
static int put_residual(ht_plan *p, const ht_stage *at, const ht_weight *w, cuda_ptr x,
                        const float *post, const float *next, ht_err *e)
{
    const bool all = all_at_once(p->dev, &p->b, p->m->spec.dim);
    const cuda_tc a = {.x = x, .y = p->tc_part};
    HT_TRY(put_product(p, at, w, all ? p->dev->tc_all : p->dev->tc_one, all ? 1 : CUDA_TC_PARTS, &a,
                       e));
    return put_join(p, at, all ? 1 : CUDA_TC_PARTS, (at->flags & HT_POSTNORM) ? post : NULL, next,
                    e);
}

static int encode_layer(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const uint32_t y = (uint32_t)at->layer;
    const ht_layer *l = &p->m->layer[y];
    const bool more = y + 1 < p->m->spec.n_layers;
    (void)n;
    HT_TRY(put_heads(p, at, false, e));
    HT_TRY(put_attention(p, at + 1, at, e));
    HT_TRY(put_residual(p, at + 2, &l->o, p->tc_a, l->post_attn_norm, l->ffn_norm, e));
    const cuda_tc a = {
        .x = p->tc_x, .h_out = p->tc_h, .flags = (at[3].flags & HT_GELU) ? CUDA_MUL_GELU : 0};
    HT_TRY(put_product(p, at + 3, &l->gate, p->dev->tc_gate, 1, &a, e));
    HT_TRY(put_residual(p, at + 4, &l->down, p->tc_h, l->post_ffn_norm,
                        more ? l[1].attn_norm : NULL, e));
    p->tc_normed = more ? (int)y + 2 : 0;
    return 0;
}

static int encode_heads(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    (void)n;
    return put_heads(p, at, true, e);
}

const ht_span cuda__span_tc_layer = {"layer.tensor.cuda", covers_layer, cuda__bound, encode_layer};
const ht_span cuda__span_tc_heads = {"qkv.tensor.cuda", covers_heads, cuda__bound, encode_heads};
