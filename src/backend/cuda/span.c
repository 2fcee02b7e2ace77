/* span.c - what the engine can run: one span a kind (QKV two kernels and more: a product for each
 * weight type, and what becomes of heads), QKV with attention for a lone row, and head with greedy
 * sampling. What is not covered is refused: experts, draft
 * trees, attention mass, other arithmetic than f32, shapes no multiple of 8. */
#include "backend/cuda/cuda.h"

enum {
    KNOWN = HT_BIAS | HT_QKNORM | HT_WINDOW | HT_CAP | HT_POSTNORM | HT_GELU,
    RING = 96 << 10, /* bytes of a block's rings: two kernels fit a multiprocessor at a time   */
    LONE_ROWS = 32   /* rows of a batch for which a block brings its share once                */
};

const ht_weight *cuda__rep(const ht_weight *w, const ht_bucket *b)
{
    return (b->flags & HT_ALT_REP) && w->alt ? w->alt : w;
}

/* ---- the shape of a product ------------------------------------------------------------------ */

uint32_t cuda__upp(const cuda_mat *m)
{
    return m->unit_bytes >= CUDA_PIECE ? 1 : CUDA_PIECE / m->unit_bytes;
}

/* Bytes of shared memory in front of the ring. */
static uint64_t shared_for(uint32_t groups, uint32_t rows)
{
    return CUDA_MUL_FIXED(rows) + 4 * (uint64_t)rows * groups * CUDA_GROUP;
}

/* ---- coverage -------------------------------------------------------------------------------- */

static bool fits(const ht_dev *d, const ht_weight *w0, const ht_bucket *b)
{
    const ht_weight *w = cuda__rep(w0, b);
    int type = w->data ? cuda__type_of(w) : -1;
    if (type < 0 || w->n_mats != 1 || w->cols % 8 || w->rows == 0) return false;
    cuda_mat m = cuda__mat(type, w->rows, w->cols, 1);
    m.unit_bytes = m.unit_bytes / m.unit_rows * 16;
    return shared_for(m.groups, 1) + (uint64_t)CUDA_WARPS * cuda__upp(&m) * m.unit_bytes <=
           (uint64_t)(d ? d->shared_max : 99 << 10);
}

/* Weights of one product have an alternate all or none. */
static bool alike(const ht_bucket *b, const ht_weight *x, const ht_weight *y)
{
    return !(b->flags & HT_ALT_REP) || !x->alt == !y->alt;
}

static bool act_fits(const ht_dev *d, const ht_model *m, const ht_bucket *b)
{
    return b->act == HT_ACT_F32 || (b->act == HT_ACT_F16 && cuda__tc_model(d, m, b));
}
static bool plain(const ht_model *m, const ht_stage *at, size_t left, const ht_bucket *b, int kind)
{
    const ht_spec *s = &m->spec;
    return left > 0 && at->kind == kind && !(at->flags & ~(unsigned)KNOWN) &&
           !(b->flags & HT_WANT_MASS) && s->dim % 8 == 0 && s->head_dim % 8 == 0 &&
           s->head_dim <= CUDA_HEAD_MAX && s->n_kv_heads && s->n_heads % s->n_kv_heads == 0 &&
           s->rope[0].dims % 8 == 0 && s->rope[1].dims % 8 == 0;
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
        return cache_fits(b) && fits(d, &l->q, b) && fits(d, &l->k, b) && fits(d, &l->v, b) &&
               alike(b, &l->q, &l->k) && alike(b, &l->q, &l->v);
    case HT_ATTN: return cache_fits(b);
    case HT_ATTN_OUT: return fits(d, &l->o, b);
    case HT_FFN_UP:
        return fits(d, &l->gate, b) && fits(d, &l->up, b) && alike(b, &l->gate, &l->up) &&
               cuda__type_of(cuda__rep(&l->gate, b)) == cuda__type_of(cuda__rep(&l->up, b));
    case HT_FFN_DOWN: return fits(d, &l->down, b);
    case HT_HEAD: return fits(d, &m->head, b);
    default: return at->kind == HT_PICK;
    }
}

bool cuda__takes(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,
                 const ht_bucket *b)
{
    return plain(m, at, left, b, at->kind) && act_fits(d, m, b) && takes(d, m, at, b);
}

/* ---- encoding: products ---------------------------------------------------------------------- */

/* The number of the rank whose kernels are encoded. */
static uint32_t rank_of(const ht_plan *p)
{
    return (uint32_t)(p->r - p->rank);
}

const cuda_weight *cuda__on_dev(const ht_plan *p, const ht_weight *w)
{
    return &p->dev->weight[rank_of(p) * p->dev->n_weights + cuda__rep(w, &p->b)->id];
}

uint32_t cuda__rows_now(const ht_plan *p)
{
    return p->picked ? p->b.want : p->b.rows;
}

/* y moved to the first of the rank's columns of a vector of n. */
static cuda_ptr own_columns(const ht_plan *p, cuda_ptr y, uint32_t n, enum cuda_deal deal)
{
    return y + 4 * (uint64_t)cuda__share(p->dev->size, rank_of(p), n, deal).first;
}

const uint8_t cuda__row_shape[CUDA_ROW_SHAPES][2] = {{1, 4}, {1, 8}, {1, 12}, {2, 2},
                                                     {2, 4}, {3, 2}, {3, 4}};

/* The shape of row.cu that takes a matrix; -1: its share of a block does not fit the registers. */
static int row_shape(const cuda_mat *m)
{
    const uint32_t ng = (m->groups + CUDA_WARPS - 1) / CUDA_WARPS, q = m->per_block / 4;
    for (int i = 0; i < CUDA_ROW_SHAPES && m->type != CUDA_F32; i++)
        if (cuda__row_shape[i][0] == ng && q <= cuda__row_shape[i][1]) return i;
    return -1;
}

/* The kernel of row.cu that takes this product, and its shared memory; NULL: none. */
static cuda_fn row_kernel(const ht_plan *p, const cuda_mul *a, uint32_t *shared)
{
    const int i = row_shape(&a->m);
    if (i < 0 || a->epi == CUDA_EPI_HEAD || a->post) return NULL;
    const uint32_t n = (uint32_t)cuda__row_shape[i][0] * cuda__row_shape[i][1];
    const bool spill = a->m.type <= CUDA_BF16 && n > CUDA_ROW_HOLD;
    *shared = spill ? (n - CUDA_ROW_HOLD) * CUDA_WIDE * 16 : 0;
    return p->dev->row[a->m.type][i];
}

bool cuda__level1_first(const ht_dev *d, const ht_model *m, const ht_bucket *b)
{
    enum { WEIGHTS = 8 << 20 };
    const ht_layer *l = &m->layer[0];
    const ht_weight *const w[] = {&l->q, &l->o, &l->gate, &l->down};
    uint64_t n = 0;
    for (size_t i = 0; i < sizeof w / sizeof *w; i++) {
        const cuda_mat *x = &d->weight[cuda__rep(w[i], b)->id].m;
        if (row_shape(x) < 0 || x->type == CUDA_Q4_K) return false;
        n += (uint64_t)x->rows * x->groups * CUDA_GROUP;
    }
    return n >= WEIGHTS;
}

/* The kernel of a product. */
static int put_mul(ht_plan *p, const ht_stage *st, const cuda_mul *a0, uint32_t rows, ht_err *e)
{
    const cuda_mat *m = &a0->m;
    cuda_mul a = *a0;
    a.upp = cuda__upp(m);
    a.slot_bytes = a.upp * m->unit_bytes;
    const uint64_t slot = (uint64_t)CUDA_WARPS * a.slot_bytes, max = (uint64_t)p->dev->shared_max;
    bool four = rows > 1 && shared_for(m->groups, CUDA_MAX_ROWS) + slot <= max;
    uint64_t fixed = shared_for(m->groups, four ? CUDA_MAX_ROWS : 1);
    /* A lone row leaves room for the next kernel; a batch wants its share to stay. */
    uint64_t ring = rows == 1 && RING < max - fixed ? RING : max - fixed;
    uint32_t units = m->layers * ((m->groups + CUDA_WARPS - 1) / CUDA_WARPS);
    uint32_t pieces = (units + a.upp - 1) / a.upp;
    a.slots = ring / slot < CUDA_MAX_SLOTS ? (uint32_t)(ring / slot) : CUDA_MAX_SLOTS;
    if (a.slots > pieces) a.slots = pieces;
    if (a.slots == 0) a.slots = 1;
    a.rows_y = !four ? 1 : a.epi == CUDA_EPI_HEAD || a.post ? CUDA_MAX_ROWS : LONE_ROWS;
    a.ring_at = (uint32_t)fixed;
    uint32_t shared = (uint32_t)(fixed + a.slots * slot),
             blocks = (m->rows + m->per_block - 1) / m->per_block;
    cuda_fn lone = rows == 1 ? row_kernel(p, a0, &shared) : NULL;
    /* Blocks without rows hold a place on every multiprocessor: else those that are left get two
     * blocks of the next kernel. */
    if (lone && blocks < (uint32_t)p->dev->sms) blocks = (uint32_t)p->dev->sms;
    cuda_op *op = cuda__op(p, st, lone ? lone : p->dev->mul[four][m->type], CUDA_WIDE, blocks,
                           (rows + a.rows_y - 1) / a.rows_y, 1, e);
    if (!op) return e ? e->code : HT_EARG;
    op->args.mul = a;
    op->shared = shared;
    return 0;
}

static cuda_mul product(const ht_plan *p, const ht_weight *w, uint32_t epi, cuda_ptr x, cuda_ptr y,
                        uint32_t y_row)
{
    cuda_mul a = {.f = p->r->feed,
                  .m = cuda__on_dev(p, w)->m,
                  .epi = epi,
                  .cols = cuda__on_dev(p, w)->cols,
                  .x = x,
                  .y = y,
                  .y_row = y_row,
                  .eps = p->m->spec.rms_eps,
                  .arrived = p->r->arrived};
    if (p->picked) a.flags = CUDA_MUL_MAPPED | CUDA_MUL_WANT;
    return a;
}

void cuda__rope(const ht_plan *p, cuda_rope *r)
{
    const ht_spec *s = &p->m->spec;
    *r = (cuda_rope){.table = p->r->rope_table};
    for (int i = 0; i < HT_ROPES; i++) {
        if (!s->rope[i].inv_freq) continue;
        r->freq[i] = cuda__vector(p->dev, s->rope[i].inv_freq);
        r->freq_long[i] = cuda__vector(p->dev, s->rope[i].inv_freq_long);
        r->half[i] = s->rope[i].dims / 2;
        r->mscale[i] = s->rope[i].mscale;
    }
    r->row = 2 * (r->half[0] + r->half[1]);
}

cuda_heads cuda__heads(const ht_plan *p, const ht_stage *at)
{
    const ht_spec *s = &p->m->spec;
    const ht_layer *l = &p->m->layer[at->layer];
    const uint32_t size = p->dev->size, rank = rank_of(p);
    cuda_heads h = {.head_dim = s->head_dim,
                    .n_heads = s->n_heads / size,
                    .n_kv_heads = s->n_kv_heads / size,
                    .rope_i = s->layer[at->layer].rope,
                    .eps = s->rms_eps};
    if (at->flags & HT_BIAS) {
        const float *bias[3] = {l->q_bias, l->k_bias, l->v_bias};
        for (int i = 0; i < 3; i++) {
            const uint32_t first = rank * (i ? h.n_kv_heads : h.n_heads) * h.head_dim;
            h.bias[i] = cuda__vector(p->dev, bias[i]);
            if (h.bias[i]) h.bias[i] += 4 * (uint64_t)first;
        }
    }
    if (at->flags & HT_QKNORM) {
        h.norm[0] = cuda__vector(p->dev, l->q_norm);
        h.norm[1] = cuda__vector(p->dev, l->k_norm);
    }
    h.kv_class = p->kv->layer_class[at->layer];
    h.kv_half = p->kv->type[at->layer][0] == HT_KV_F16;
    for (int v = 0; v < 2; v++) {
        h.plane[v] = cuda__kv_at(p->dev, rank, p->kv->plane[at->layer][v]);
        h.page_bytes[v] = p->kv->page_bytes[at->layer][v] / size;
    }
    if (ht_kv_rotates(p->kv->type[at->layer][0], s->head_dim))
        ht_kv_rotation(s->head_dim, &h.spin[1], &h.spin[0]);
    return h;
}

/* The products of QKV: one, or one a matrix where their types differ. */
static int put_qkv(ht_plan *p, const ht_stage *at, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    const ht_layer *l = &p->m->layer[at->layer];
    const ht_weight *w[3] = {&l->q, &l->k, &l->v};
    for (int i = 0; i < 3; i++) {
        if (!cuda__on_dev(p, w[i])->members) continue;
        cuda_mul a = product(p, w[i], CUDA_EPI_STORE, p->r->x_now, p->r->qkv,
                             (s->n_heads + 2 * s->n_kv_heads) / p->dev->size * s->head_dim);
        a.gain = cuda__vector(p->dev, l->attn_norm);
        HT_TRY(put_mul(p, at, &a, cuda__rows_now(p), e));
    }
    return 0;
}

static int encode_qkv(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    (void)n;
    HT_TRY(put_qkv(p, at, e));
    cuda_op *op =
        cuda__op(p, at, p->dev->finish[s->head_dim > 128], CUDA_WIDE, cuda__rows_now(p), 1, 1, e);
    if (!op) return e ? e->code : HT_EARG;
    op->args.finish = (cuda_finish){.f = p->r->feed,
                                    .h = cuda__heads(p, at),
                                    .raw = p->r->qkv,
                                    .q = p->r->q_now,
                                    .flags = p->picked ? CUDA_MUL_MAPPED | CUDA_MUL_WANT : 0};
    cuda__rope(p, &op->args.finish.rope);
    return 0;
}

static int encode_residual(ht_plan *p, const ht_stage *at, const ht_weight *w, cuda_ptr x,
                           const float *post, ht_err *e)
{
    const uint32_t dim = p->m->spec.dim;
    const cuda_ptr own = own_columns(p, p->r->x_now, dim, CUDA_TILES);
    cuda_mul a = product(p, w, CUDA_EPI_RESIDUAL, x, own, dim);
    if (at->flags & HT_POSTNORM) a.post = cuda__vector(p->dev, post);
    a.raw = p->r->raw;
    return put_mul(p, at, &a, cuda__rows_now(p), e);
}
static int encode_attn_out(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_layer *l = &p->m->layer[at->layer];
    (void)n;
    return encode_residual(p, at, &l->o, p->r->a, l->post_attn_norm, e);
}
static int encode_ffn_down(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_layer *l = &p->m->layer[at->layer];
    (void)n;
    return encode_residual(p, at, &l->down, p->r->h, l->post_ffn_norm, e);
}

static int encode_ffn_up(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_layer *l = &p->m->layer[at->layer];
    (void)n;
    const uint32_t ffn = p->m->spec.ffn;
    const cuda_ptr own = own_columns(p, p->r->h, ffn, CUDA_TILES);
    cuda_mul a = product(p, &l->gate, CUDA_EPI_GATE, p->r->x_now, own, ffn);
    a.gain = cuda__vector(p->dev, l->ffn_norm);
    if (at->flags & HT_GELU) a.flags |= CUDA_MUL_GELU;
    return put_mul(p, at, &a, cuda__rows_now(p), e);
}

/* n 2: the best token is picked as well. */
static int encode_head(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    const uint32_t own = cuda__share(p->dev->size, rank_of(p), s->vocab, CUDA_TILES).rows;
    cuda_mul a = product(p, &p->m->head, CUDA_EPI_HEAD, p->r->x_now, p->r->l, own);
    a.gain = cuda__vector(p->dev, p->m->final_norm);
    a.flags |= CUDA_MUL_WANT | (p->picked ? 0U : (unsigned)CUDA_MUL_PICK);
    if (at->flags & HT_CAP) a.cap = s->logit_cap;
    if (n == 2) {
        a.flags |= CUDA_MUL_BEST;
        a.best_value = p->r->best_value, a.best_id = p->r->best_id;
        a.ids = p->ids_dev;
        a.rows_cap = p->b.want;
        p->sampled = true;
    }
    p->headed = true;
    return put_mul(p, at, &a, p->b.want, e);
}

/* ---- encoding: the rest ---------------------------------------------------------------------- */

/* The first kernel of every step does it; in a group that of the first rank. */
static int encode_embed(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    cuda_start *a = &p->op[0].args.start;
    const ht_weight *rep = cuda__rep(&p->m->embed, &p->b);
    const cuda_weight *w =
        p->dev->size > 1 ? &p->dev->embed[rep != &p->m->embed] : cuda__on_dev(p, &p->m->embed);
    (void)n;
    (void)e;
    if (rank_of(p)) return 0;
    p->op[0].stage = *at;
    p->embedded = true;
    a->embed = w->m;
    a->x = p->r->x;
    return 0;
}

/* raw: heads come from the product as they are, and the only row's key is cached here. */
static int put_attn(ht_plan *p, const ht_stage *at, const ht_stage *qkv, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    const uint32_t group = s->n_heads / s->n_kv_heads, rows = cuda__rows_now(p);
    const uint32_t nq = s->n_heads * s->head_dim;
    const bool wide = s->head_dim > 128, half = p->kv->type[at->layer][0] == HT_KV_F16;
    const bool lone = qkv && !wide && half;
    const int g = group == 1 ? 0 : group == 2 || lone ? 1 : 2;
    cuda_attn a = {.f = p->r->feed,
                   .h = cuda__heads(p, qkv ? qkv : at),
                   .q = qkv ? p->r->qkv : p->r->q_now,
                   .a = cuda__heads_apart(p) ? p->r->own_a : own_columns(p, p->r->a, nq, CUDA_EVEN),
                   .part = rows <= p->part_rows ? p->r->part : 0,
                   .arrived = p->r->arrived,
                   .flags = p->picked ? CUDA_MUL_MAPPED | CUDA_MUL_WANT : 0,
                   .raw = qkv != NULL,
                   .chunks = (group + (1U << g) - 1) >> g,
                   .window = (at->flags & HT_WINDOW) ? s->window : 0,
                   .scale = s->attn_scale,
                   .cap = (at->flags & HT_CAP) ? s->attn_cap : 0};
    cuda__rope(p, &a.rope);
    cuda_op *op = cuda__op(p, at, lone ? p->dev->lone[g] : p->dev->attn[wide][g][half], CUDA_WIDE,
                           a.h.n_kv_heads * a.chunks, a.part ? CUDA_CLASSES : 1, rows, e);
    if (!op) return e ? e->code : HT_EARG;
    op->args.attn = a;
    uint32_t heads = 1U << g, hd = s->head_dim, sums = CUDA_WARPS * heads * (hd + 2);
    if (lone) op->shared = CUDA_LONE_SHARED(heads);
    else
        op->shared = 4 * (a.part ? sums + 2 * CUDA_WARPS * 16 * (wide ? 16U : 8U)
                                 : sums + heads * CUDA_CLASSES * (hd + 2));
    return 0;
}
static int encode_attn(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    (void)n;
    return put_attn(p, at, NULL, e);
}
/* One row: its heads are finished where they are used, and a choice of rows has nothing to do. */
static int encode_qkv_attn(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    HT_TRY(put_qkv(p, at, e));
    return put_attn(p, at + n - 1, at, e);
}

static int encode_pick(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    (void)n;
    cuda_op *op = cuda__op(p, at, p->dev->pick, CUDA_THREADS, p->b.want, 1, 1, e);
    if (!op) return e ? e->code : HT_EARG;
    op->args.pick = (cuda_pick){.f = p->r->feed,
                                .x = p->r->x_now,
                                .q = p->r->q_now,
                                .x_out = p->r->x2,
                                .q_out = p->r->q2,
                                .dim = s->dim,
                                .nq = s->n_heads / p->dev->size * s->head_dim};
    p->r->x_now = p->r->x2, p->r->q_now = p->r->q2;
    p->picked = true;
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

void cuda__bound(const ht_dev *dev, const ht_model *m, const ht_stage *at, size_t n,
                 const ht_bucket *b, uint64_t *bytes, uint64_t *flops)
{
    (void)dev;
    *bytes = *flops = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t more = 0, work = 0;
        ht_stage_bound(m, at + i, b, &more, &work);
        *bytes += more, *flops += work;
    }
}

#define SPAN(fn, wanted)                                                                           \
    static size_t covers_##fn(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left, \
                              const ht_bucket *b)                                                  \
    {                                                                                              \
        return left > 0 && at->kind == wanted && cuda__takes(d, m, at, left, b);                   \
    }                                                                                              \
    static const ht_span span_##fn = {#fn ".cuda", covers_##fn, cuda__bound, encode_##fn};
SPAN(embed, HT_EMBED)
SPAN(qkv, HT_QKV)
SPAN(attn, HT_ATTN)
SPAN(attn_out, HT_ATTN_OUT)
SPAN(ffn_up, HT_FFN_UP)
SPAN(ffn_down, HT_FFN_DOWN)
SPAN(pick, HT_PICK)
SPAN(head, HT_HEAD)

/* QKV and attention of a lone row, with the choice of rows between them where there is one. */
static size_t covers_qkv_attn(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,
                              const ht_bucket *b)
{
    size_t n = left > 2 && at[1].kind == HT_PICK && b->want == 1 ? 3 : 2;
    if (b->rows != 1 || left < n || !covers_qkv(d, m, at, left, b)) return 0;
    return covers_attn(d, m, at + n - 1, left - n + 1, b) && at->layer == at[n - 1].layer ? n : 0;
}
static const ht_span span_qkv_attn = {"qkv+attn.cuda", covers_qkv_attn, cuda__bound,
                                      encode_qkv_attn};

static size_t covers_head_sample(const ht_dev *d, const ht_model *m, const ht_stage *at,
                                 size_t left, const ht_bucket *b)
{
    bool both = left > 1 && at[1].kind == HT_SAMPLE && !at[1].flags && b->want > 0;
    return both && covers_head(d, m, at, left, b) ? 2 : 0;
}
static const ht_span span_head_sample = {"head+sample.cuda", covers_head_sample, cuda__bound,
                                         encode_head};

const ht_span *const cuda__spans[] = {
    &cuda__span_tc_heads, &span_embed,    &span_qkv,         &span_attn,
    &span_attn_out,       &span_ffn_up,   &span_ffn_down,    &span_pick,
    &span_head,           &span_qkv_attn, &span_head_sample, &cuda__span_mega,
    &cuda__span_tc_layer, NULL,
};
