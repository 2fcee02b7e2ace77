/* world.c - see world.h. */
#include "world.h"
#include "quant/r16.h"

#include <math.h>

int card_open(ht_dev **dev, const char *opts, ht_err *e)
{
    static const char image[1];
    const void *images[CUDA_IMAGES] = {image, image, image, image, image, image};
    cuda_api api;
    card_api(&api);
    return cuda__open_api(dev, &api, images, opts, e);
}

static ht_weight matrix(world *w, int type, uint32_t rows, uint32_t cols)
{
    ht_weight x = {.rows = rows, .cols = cols, .n_mats = 1, .type = (uint8_t)type};
    float *row = malloc(cols * sizeof *row);
    const float by = w->s.even ? sqrtf(3.0F / (float)cols) : 1;
    T_TRUE(ht_row_bytes(type, cols, &x.row_bytes));
    x.mat_bytes = x.bytes = x.row_bytes * rows;
    uint8_t *p = w->mem[w->n_mem++] = malloc(x.bytes);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < cols; i++) row[i] = t_randf(&w->seed) * by;
        ht_types[type].encode(row, p + r * x.row_bytes, cols);
    }
    free(row);
    x.data = p;
    if (w->s.rich && ht_r16_type(type) == type) {
        const uint32_t tiles = (rows + HT_R16_ROWS - 1) / HT_R16_ROWS;
        x.bytes = tiles * ht_r16_tile_bytes(type, cols);
        x.data = w->mem[w->n_mem++] = calloc(1, x.bytes);
        ht_r16_pack(type, p, rows, cols, 0, tiles, (void *)(uintptr_t)x.data);
        x.layout = HT_LAYOUT_R16;
    }
    x.id = w->m.n_weights++;
    return x;
}

static const float *vector(world *w, uint32_t n)
{
    float *p = w->mem[w->n_mem++] = malloc(n * sizeof *p);
    for (uint32_t i = 0; i < n; i++) p[i] = 1 + t_randf(&w->seed) / 2;
    return p;
}

static void make_layer(world *w, uint32_t i)
{
    const world_shape *s = &w->s;
    ht_layer *l = &w->layer[i];
    if (i) l->o = matrix(w, HT_F16, s->dim, s->heads * s->hd);
    l->q = matrix(w, HT_F16, s->heads * s->hd, s->dim);
    l->k = l->v = matrix(w, HT_F16, s->kv * s->hd, s->dim);
    l->v.id = w->m.n_weights++;
    l->gate = l->up = matrix(w, HT_F16, s->ffn, s->dim);
    l->up.id = w->m.n_weights++;
    l->down = matrix(w, HT_F16, s->dim, s->ffn);
    l->attn_norm = l->ffn_norm = w->one;
    if (!s->rich) return;
    l->v = matrix(w, HT_Q8_0, s->kv * s->hd, s->dim);
    l->q_bias = vector(w, s->heads * s->hd);
    l->k_bias = vector(w, s->kv * s->hd), l->v_bias = vector(w, s->kv * s->hd);
    l->q_norm = vector(w, s->hd), l->k_norm = vector(w, s->hd);
}

world *world_new(ht_dev *dev, const world_shape *s)
{
    world *w = calloc(1, sizeof *w);
    const uint32_t nq = s->heads * s->hd, widest = nq > s->ffn ? nq : s->ffn;
    w->s = *s;
    w->seed = 77;
    w->one = w->mem[w->n_mem++] = malloc((widest + s->dim) * sizeof *w->one);
    for (uint32_t i = 0; i < widest + s->dim; i++) w->one[i] = 1;
    w->m.layer = w->layer;
    w->m.spec = (ht_spec){.n_layers = s->layers,
                          .dim = s->dim,
                          .n_heads = s->heads,
                          .n_kv_heads = s->kv,
                          .head_dim = s->hd,
                          .ffn = s->ffn,
                          .vocab = WORLD_VOCAB,
                          .ctx_train = WORLD_CTX,
                          .rms_eps = 1e-5F,
                          .embed_scale = 1,
                          .attn_scale = s->even ? 1 / sqrtf((float)s->hd) : 0.25F,
                          .qkv_bias = s->rich,
                          .qk_norm = s->rich,
                          .layer = w->ls};
    w->m.spec.rope[0] = (ht_rope){s->hd, 1, w->one, NULL};
    w->layer[0].o = matrix(w, s->type, s->dim, nq);
    w->m.embed = matrix(w, HT_F16, WORLD_VOCAB, s->dim);
    w->m.head = w->m.embed;
    w->m.head.id = w->m.n_weights++;
    w->m.final_norm = w->one;
    for (uint32_t i = 0; i < s->layers; i++) make_layer(w, i);
    world_load(w, dev);
    return w;
}

void world_load(world *w, ht_dev *dev)
{
    const world_shape *s = &w->s;
    const uint64_t page = ht_kv_page_bytes(HT_KV_F16, s->kv, s->hd);
    const size_t plane = WORLD_PAGES * page;
    ht_err e = {0};
    w->cache_bytes = 2 * s->layers * plane;
    T_OK(ht_backend_cuda.kv_alloc(dev, w->cache_bytes, &w->block, &e), e);
    for (uint32_t i = 0; i < s->layers; i++)
        for (size_t v = 0; v < 2; v++) {
            w->type[i][v] = HT_KV_F16;
            w->page_bytes[i][v] = page;
            w->plane[i][v] = (uint8_t *)w->block + (2 * i + v) * plane;
        }
    w->kv = (ht_kv){.n_layers = s->layers,
                    .n_kv_heads = s->kv,
                    .head_dim = s->hd,
                    .n_pages = {WORLD_PAGES, 0},
                    .layer_class = w->cls,
                    .type = w->type,
                    .page_bytes = w->page_bytes,
                    .plane = w->plane};
    T_OK(ht_backend_cuda.load(dev, &w->m, &e), e);
}

void world_leave(world *w, ht_dev *dev)
{
    ht_backend_cuda.kv_free(dev, w->block, w->cache_bytes);
}

void world_free(world *w)
{
    for (int i = 0; i < w->n_mem; i++) free(w->mem[i]);
    free(w);
}
