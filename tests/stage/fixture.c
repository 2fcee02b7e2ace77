/* fixture.c - see fixture.h. */
#include "fixture.h"
#include "quant/r16.h"

static void *take(fixture *f, size_t n)
{
    T_CHECK(f->n_mem < (int)(sizeof f->mem / sizeof *f->mem), "the fixture holds no more");
    return f->mem[f->n_mem++] = aligned_alloc(64, (n + 63) / 64 * 64);
}

/* Weights of n_mats matrices around 0 with a deviation that keeps activations near 1. */
static ht_weight matrix(fixture *f, int type, int layout, uint32_t n_mats, uint32_t rows,
                        uint32_t cols)
{
    ht_weight w = {.rows = rows, .cols = cols, .n_mats = n_mats, .type = (uint8_t)type};
    float *x = malloc(cols * sizeof *x), scale = 1.7F / sqrtf((float)cols);
    T_CHECK(ht_row_bytes(type, cols, &w.row_bytes), "%u columns", cols);
    w.mat_bytes = w.row_bytes * rows;
    w.bytes = w.mat_bytes * n_mats;
    uint8_t *p = take(f, (size_t)w.bytes);
    for (uint64_t r = 0; r < (uint64_t)n_mats * rows; r++) {
        for (uint32_t i = 0; i < cols; i++) x[i] = t_randf(&f->rng) * scale;
        ht_types[type].encode(x, p + r * w.row_bytes, cols);
    }
    free(x);
    w.data = p;
    w.id = f->m.n_weights++;
    if (layout == HT_LAYOUT_ROWS) return w;

    ht_weight t = w;
    t.layout = HT_LAYOUT_R16;
    t.type = (uint8_t)ht_r16_type(type);
    t.row_bytes = 0;
    T_CHECK(ht_r16_bytes(t.type, rows, cols, &t.mat_bytes), "r16 of %s", ht_types[type].name);
    t.bytes = t.mat_bytes * n_mats;
    uint8_t *q = take(f, (size_t)t.bytes);
    for (uint32_t m = 0; m < n_mats; m++)
        ht_r16_pack(type, p + m * w.mat_bytes, rows, cols, 0, (rows + 15) / 16,
                    q + m * t.mat_bytes);
    t.data = q;
    return t;
}

typedef struct {
    int type, layout, alt;
} kind;

static ht_weight weight(fixture *f, const kind *k, uint32_t n_mats, uint32_t rows, uint32_t cols)
{
    ht_weight w = matrix(f, k->type, k->layout, n_mats, rows, cols);
    if (k->alt >= 0) {
        ht_weight *alt = take(f, sizeof *alt);
        *alt = matrix(f, k->alt, HT_LAYOUT_ROWS, n_mats, rows, cols);
        w.alt = alt;
    }
    return w;
}

static const float *vector(fixture *f, uint32_t n, float mean)
{
    float *v = take(f, n * sizeof *v);
    for (uint32_t i = 0; i < n; i++) v[i] = mean + 0.5F * t_randf(&f->rng);
    return v;
}

static void fill_layer(fixture *f, const kind *k, ht_layer *l)
{
    const kind plain = {HT_F32, HT_LAYOUT_ROWS, -1};
    uint32_t q = FX_HEADS * FX_HEAD_DIM, kv = FX_KV_HEADS * FX_HEAD_DIM;
    l->attn_norm = vector(f, FX_DIM, 1);
    l->ffn_norm = vector(f, FX_DIM, 1);
    l->post_attn_norm = vector(f, FX_DIM, 1);
    l->post_ffn_norm = vector(f, FX_DIM, 1);
    l->q_norm = vector(f, FX_HEAD_DIM, 1);
    l->k_norm = vector(f, FX_HEAD_DIM, 1);
    l->q_bias = vector(f, q, 0);
    l->k_bias = vector(f, kv, 0);
    l->v_bias = vector(f, kv, 0);
    l->q = weight(f, k, 1, q, FX_DIM);
    l->k = weight(f, k, 1, kv, FX_DIM);
    l->v = weight(f, k, 1, kv, FX_DIM);
    l->o = weight(f, k, 1, FX_DIM, q);
    l->gate = weight(f, k, 1, FX_FFN, FX_DIM);
    l->up = weight(f, k, 1, FX_FFN, FX_DIM);
    l->down = weight(f, k, 1, FX_DIM, FX_FFN);
    l->router = weight(f, &plain, 1, FX_EXPERTS, FX_DIM);
    l->e_gate = weight(f, k, FX_EXPERTS, FX_EXPERT_FFN, FX_DIM);
    l->e_up = weight(f, k, FX_EXPERTS, FX_EXPERT_FFN, FX_DIM);
    l->e_down = weight(f, k, FX_EXPERTS, FX_DIM, FX_EXPERT_FFN);
    l->s_gate = weight(f, k, 1, FX_SHARED, FX_DIM);
    l->s_up = weight(f, k, 1, FX_SHARED, FX_DIM);
    l->s_down = weight(f, k, 1, FX_DIM, FX_SHARED);
    l->s_router = weight(f, &plain, 1, 1, FX_DIM);
}

fixture *fixture_new(int type, int layout, int alt)
{
    fixture *f = calloc(1, sizeof *f);
    const kind k = {type, layout, alt};
    f->rng = 77;
    f->m.layer = f->layer;
    f->m.spec = (ht_spec){.arch = "fixture",
                          .n_layers = FX_LAYERS,
                          .dim = FX_DIM,
                          .n_heads = FX_HEADS,
                          .n_kv_heads = FX_KV_HEADS,
                          .head_dim = FX_HEAD_DIM,
                          .ffn = FX_FFN,
                          .vocab = FX_VOCAB,
                          .ctx_train = FX_CTX,
                          .n_experts = FX_EXPERTS,
                          .n_experts_used = FX_USED,
                          .expert_ffn = FX_EXPERT_FFN,
                          .shared_ffn = FX_SHARED,
                          .rms_eps = 1e-5F,
                          .embed_scale = 1.5F,
                          .attn_scale = 0.2F,
                          .layer = f->layer_spec};
    for (int r = 0; r < HT_ROPES; r++) {
        ht_rope *rope = &f->m.spec.rope[r];
        rope->dims = r ? FX_HEAD_DIM : FX_HEAD_DIM / 2; /* one rotates a part of the head */
        rope->mscale = r ? 1.0F : 1.25F;
        for (uint32_t i = 0; i < rope->dims / 2; i++)
            f->freq[r][i] = (float)pow(100.0, -(double)i / (rope->dims / 2));
        rope->inv_freq = f->freq[r];
    }
    f->m.embed = weight(f, &k, 1, FX_VOCAB, FX_DIM);
    f->m.head = weight(f, &k, 1, FX_VOCAB, FX_DIM);
    f->m.final_norm = vector(f, FX_DIM, 1);
    for (int i = 0; i < FX_LAYERS; i++) fill_layer(f, &k, &f->layer[i]);
    return f;
}

void fixture_free(fixture *f)
{
    for (int i = 0; i < f->n_mem; i++) free(f->mem[i]);
    free(f);
}

void fixture_flags(fixture *f, const ht_stage *st)
{
    ht_spec *s = &f->m.spec;
    bool moe = st->kind == HT_ROUTE || st->kind == HT_EXPERTS, cap = (st->flags & HT_CAP) != 0;
    s->qkv_bias = (st->flags & HT_BIAS) != 0;
    s->qk_norm = (st->flags & HT_QKNORM) != 0;
    s->post_norm = (st->flags & HT_POSTNORM) != 0;
    s->gelu = (st->flags & HT_GELU) != 0;
    s->expert_renorm = (st->flags & HT_RENORM) != 0;
    s->shared_ffn = (st->flags & HT_SHARED) ? FX_SHARED : 0;
    s->window = (st->flags & HT_WINDOW) ? FX_WINDOW : 0;
    s->attn_cap = st->kind == HT_ATTN && cap ? 2.0F : 0;
    s->logit_cap = st->kind == HT_HEAD && cap ? 3.0F : 0;
    for (int i = 0; i < FX_LAYERS; i++)
        f->layer_spec[i] = (ht_layer_spec){.window = s->window != 0,
                                           .rope = (uint8_t)(s->qk_norm    ? 1
                                                             : s->qkv_bias ? HT_ROPES
                                                                           : 0),
                                           .moe = moe};
}
