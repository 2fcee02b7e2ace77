/* small.c - see small.h. */
#include "small.h"
#include "kvraw.h"

const small_shape small_llama = {.layers = 3,
                                 .dim = 64,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 32,
                                 .ffn = 96,
                                 .vocab = 71,
                                 .type = HT_F16,
                                 .type2 = HT_F16};

static float *vec(small *s, uint32_t n, float mean, float spread, uint64_t *seed)
{
    float *v = ht_arena_array(s->arena, n, sizeof *v);
    T_TRUE(v != NULL);
    for (uint32_t i = 0; i < n; i++) v[i] = mean + spread * t_randf(seed);
    return v;
}

static void weight(small *s, ht_weight *w, int type, uint32_t rows, uint32_t cols, uint32_t n_mats,
                   uint64_t *seed)
{
    *w = (ht_weight){.rows = rows,
                     .cols = cols,
                     .n_mats = n_mats,
                     .type = (uint8_t)type,
                     .layout = HT_LAYOUT_ROWS,
                     .id = s->model.n_weights++};
    T_CHECK(ht_row_bytes(type, cols, &w->row_bytes), "%u columns of %s", cols, ht_types[type].name);
    w->mat_bytes = w->row_bytes * rows;
    w->bytes = w->mat_bytes * n_mats;
    uint8_t *data = ht_arena_alloc(s->arena, w->bytes);
    float *x = ht_arena_array(s->arena, cols, sizeof *x);
    T_TRUE(data && x);
    for (uint32_t r = 0; r < rows * n_mats; r++) {
        for (uint32_t k = 0; k < cols; k++) x[k] = 2.0f * t_randf(seed) / sqrtf((float)cols);
        ht_types[type].encode(x, data + r * w->row_bytes, cols);
    }
    w->data = data;
}

static void layer(small *s, const small_shape *h, uint32_t i, uint64_t *seed)
{
    ht_layer *l = &s->model.layer[i];
    uint32_t nq = h->heads * h->head_dim, nkv = h->kv_heads * h->head_dim;
    l->attn_norm = vec(s, h->dim, 1.0f, 0.3f, seed);
    l->ffn_norm = vec(s, h->dim, 1.0f, 0.3f, seed);
    if (h->post_norm) {
        l->post_attn_norm = vec(s, h->dim, 1.0f, 0.3f, seed);
        l->post_ffn_norm = vec(s, h->dim, 1.0f, 0.3f, seed);
    }
    if (h->qk_norm) l->q_norm = vec(s, h->head_dim, 1.0f, 0.3f, seed);
    if (h->qk_norm) l->k_norm = vec(s, h->head_dim, 1.0f, 0.3f, seed);
    if (h->bias) {
        l->q_bias = vec(s, nq, 0.0f, 0.5f, seed);
        l->k_bias = vec(s, nkv, 0.0f, 0.5f, seed);
        l->v_bias = vec(s, nkv, 0.0f, 0.5f, seed);
    }
    weight(s, &l->q, h->type, nq, h->dim, 1, seed);
    weight(s, &l->k, h->type2, nkv, h->dim, 1, seed);
    weight(s, &l->v, h->type2, nkv, h->dim, 1, seed);
    weight(s, &l->o, h->type, h->dim, nq, 1, seed);
    if (h->experts) {
        weight(s, &l->router, HT_F32, h->experts, h->dim, 1, seed);
        weight(s, &l->e_gate, h->type, h->expert_ffn, h->dim, h->experts, seed);
        weight(s, &l->e_up, h->type, h->expert_ffn, h->dim, h->experts, seed);
        weight(s, &l->e_down, h->type2, h->dim, h->expert_ffn, h->experts, seed);
        if (!h->shared_ffn) return;
        weight(s, &l->s_gate, h->type, h->shared_ffn, h->dim, 1, seed);
        weight(s, &l->s_up, h->type, h->shared_ffn, h->dim, 1, seed);
        weight(s, &l->s_down, h->type2, h->dim, h->shared_ffn, 1, seed);
        weight(s, &l->s_router, HT_F32, 1, h->dim, 1, seed);
        return;
    }
    weight(s, &l->gate, h->type, h->ffn, h->dim, 1, seed);
    weight(s, &l->up, h->type, h->ffn, h->dim, 1, seed);
    weight(s, &l->down, h->type2, h->dim, h->ffn, 1, seed);
}

static void spec(small *s, const small_shape *h)
{
    ht_spec *p = &s->model.spec;
    *p = (ht_spec){.arch = "small",
                   .n_layers = h->layers,
                   .dim = h->dim,
                   .n_heads = h->heads,
                   .n_kv_heads = h->kv_heads,
                   .head_dim = h->head_dim,
                   .ffn = h->ffn,
                   .vocab = h->vocab,
                   .ctx_train = 4096,
                   .n_experts = h->experts,
                   .n_experts_used = h->topk,
                   .expert_ffn = h->expert_ffn,
                   .shared_ffn = h->shared_ffn,
                   .expert_renorm = h->renorm,
                   .qkv_bias = h->bias,
                   .qk_norm = h->qk_norm,
                   .post_norm = h->post_norm,
                   .gelu = h->gelu,
                   .rms_eps = 1e-5f,
                   .embed_scale = 1.5f,
                   .attn_scale = 1.0f / sqrtf((float)h->head_dim),
                   .attn_cap = h->caps ? 20.0f : 0.0f,
                   .logit_cap = h->caps ? 10.0f : 0.0f,
                   .window = h->window};
    uint32_t dims = h->partial_rope ? h->head_dim / 2 : h->head_dim;
    float *f = ht_arena_array(s->arena, dims / 2, sizeof *f);
    float *g = ht_arena_array(s->arena, dims / 2, sizeof *g);
    p->layer = ht_arena_array(s->arena, h->layers, sizeof *p->layer);
    T_TRUE(f && g && p->layer);
    for (uint32_t i = 0; i < dims / 2; i++) f[i] = powf(10000.0f, -2.0f * (float)i / (float)dims);
    for (uint32_t i = 0; i < dims / 2; i++) g[i] = f[i] / 4.0f;
    p->rope[0] = (ht_rope){dims, 1.0f, f, g};
    for (uint32_t i = 0; i < h->layers; i++) {
        p->layer[i].window = h->window && i % 2;
        p->layer[i].rope = h->nope && i == 1 ? HT_ROPES : 0;
        p->layer[i].moe = h->experts != 0;
    }
}

/* Pages of a sequence lie scattered: page k of sequence q is k*seqs + (q + 3k) mod seqs. */
static void pool(small *s, const small_shape *h, int type)
{
    ht_kv *kv = &s->kv;
    s->n_table = (s->ctx + HT_PAGE - 1) / HT_PAGE;
    *kv = (ht_kv){.n_layers = h->layers,
                  .n_kv_heads = h->kv_heads,
                  .head_dim = h->head_dim,
                  .window = h->window};
    kv->layer_class = ht_arena_alloc(s->arena, h->layers);
    kv->type = ht_arena_array(s->arena, h->layers, sizeof *kv->type);
    kv->page_bytes = ht_arena_array(s->arena, h->layers, sizeof *kv->page_bytes);
    kv->plane = ht_arena_array(s->arena, h->layers, sizeof *kv->plane);
    T_TRUE(kv->layer_class && kv->type && kv->page_bytes && kv->plane);
    uint64_t bytes = ht_kv_page_bytes(type, h->kv_heads, h->head_dim);
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        kv->n_pages[c] = s->n_table * s->seqs;
        s->table[c] = ht_arena_array(s->arena, (size_t)s->seqs * s->n_table, sizeof **s->table);
        T_TRUE(s->table[c] != NULL);
        for (uint32_t q = 0; q < s->seqs; q++)
            for (uint32_t k = 0; k < s->n_table; k++)
                s->table[c][q * s->n_table + k] = k * s->seqs + (q + 3 * k) % s->seqs;
    }
    for (uint32_t i = 0; i < h->layers; i++)
        for (int v = 0; v < 2; v++) {
            kv->layer_class[i] = s->model.spec.layer[i].window;
            kv->type[i][v] = (uint8_t)type;
            kv->page_bytes[i][v] = bytes;
            kv->plane[i][v] = ht_arena_alloc(s->arena, bytes * kv->n_pages[0]);
            T_TRUE(kv->plane[i][v] != NULL);
        }
    if (ht_kv_packs(type)) kvraw_fill(kv, s->arena);
}

void small_new(small *s, const small_shape *h, int kv_type, uint32_t ctx, uint32_t seqs)
{
    uint64_t seed = 77;
    ht_err e = {0};
    memset(s, 0, sizeof *s);
    s->ctx = ctx;
    s->seqs = seqs;
    T_OK(ht_arena_new(&s->arena, 0, &e), e);
    spec(s, h);
    s->model.layer = ht_arena_array(s->arena, h->layers, sizeof *s->model.layer);
    T_TRUE(s->model.layer != NULL);
    weight(s, &s->model.embed, HT_F32, h->vocab, h->dim, 1, &seed);
    weight(s, &s->model.head, h->type2, h->vocab, h->dim, 1, &seed);
    s->model.final_norm = vec(s, h->dim, 1.0f, 0.3f, &seed);
    for (uint32_t i = 0; i < h->layers; i++) layer(s, h, i, &seed);
    pool(s, h, kv_type);
}

void small_free(small *s)
{
    ht_arena_free(s->arena);
}

static double prefer_plain(void *user, const ht_cut *c)
{
    (void)user;
    return c->n == 1 ? 1.0 : 1e9;
}

void engine_open(engine *g, small *s, const char *opts, int act, uint32_t rows, uint32_t want,
                 bool plain)
{
    engine_open_cost(g, s, opts, act, rows, want, plain ? prefer_plain : NULL, NULL);
}

void engine_open_cost(engine *g, small *s, const char *opts, int act, uint32_t rows, uint32_t want,
                      double (*cost)(void *, const ht_cut *), void *user)
{
    ht_err e = {0};
    const ht_backend *be = &ht_backend_cpu;
    ht_bucket b = {.rows = (uint16_t)rows,
                   .seqs = (uint16_t)s->seqs,
                   .want = (uint16_t)want,
                   .steps = 1,
                   .ctx = s->ctx,
                   .act = (uint8_t)act};
    memset(g, 0, sizeof *g);
    T_OK(be->open(&g->dev, opts, &e), e);
    T_OK(be->load(g->dev, &s->model, &e), e);
    T_OK(be->kv_attach(g->dev, &s->kv, &e), e);
    g->n_tape = ht_tape(&s->model, NULL, 0);
    g->tape = ht_arena_array(s->arena, g->n_tape, sizeof *g->tape);
    g->cut = ht_arena_array(s->arena, g->n_tape, sizeof *g->cut);
    T_TRUE(g->tape && g->cut);
    (void)ht_tape(&s->model, g->tape, g->n_tape);
    g->n_cuts = ht_cover(be, g->dev, &s->model, g->tape, g->n_tape, &b, cost, user, g->cut, &e);
    T_CHECK(g->n_cuts > 0, "%s", e.msg);
    T_OK(be->plan(&g->plan, g->dev, &s->kv, g->tape, g->cut, g->n_cuts, &b, &e), e);
}

void engine_close(engine *g)
{
    ht_backend_cpu.plan_free(g->plan);
    ht_backend_cpu.close(g->dev);
}

void engine_step(engine *g, small *s, const ht_batch *b, float *out)
{
    ht_err e = {0};
    const float *logits;
    uint64_t before = ht_alloc_count();
    T_OK(ht_backend_cpu.run(g->plan, b, &e), e);
    T_OK(ht_backend_cpu.wait(g->plan, &logits, &e), e);
    T_EQ_INT(ht_alloc_count(), before);
    if (out) memcpy(out, logits, (size_t)b->n_want * s->model.spec.vocab * sizeof *out);
}

void engine_eval(engine *g, small *s, uint32_t seq, const int32_t *tok, uint32_t n, uint32_t chunk,
                 float *out)
{
    enum { MOST = 1024 };
    int32_t pos[MOST];
    uint32_t want[MOST];
    uint16_t owner[MOST];
    T_TRUE(chunk <= MOST);
    for (uint32_t i = 0; i < n; i += chunk) {
        uint32_t m = n - i < chunk ? n - i : chunk;
        for (uint32_t j = 0; j < m; j++) {
            pos[j] = (int32_t)(i + j);
            want[j] = j;
            owner[j] = (uint16_t)seq;
        }
        ht_batch b = {.rows = m,
                      .seqs = s->seqs,
                      .n_want = m,
                      .token = tok + i,
                      .pos = pos,
                      .seq = owner,
                      .page = {s->table[0], s->table[1]},
                      .want = want};
        engine_step(g, s, &b, out + (size_t)i * s->model.spec.vocab);
    }
}
