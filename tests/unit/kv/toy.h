/* toy.h - parameters of the small pools of these tests: every layer one KV class, K in f32. */
#ifndef HT_TESTS_KV_TOY_H
#define HT_TESTS_KV_TOY_H
#include "kv/kv.h"

typedef struct {
    uint32_t n_layers, n_kv_heads, head_dim, window;
    const uint8_t *classes;          /* [n_layers]                                                */
    int type_v;
} toy;

/* A pool of so many pages of each class. */
static inline ht_pool_params toy_params(const toy *t, uint32_t full, uint32_t win)
{
    return (ht_pool_params){.n_layers = t->n_layers, .n_kv_heads = t->n_kv_heads,
                            .head_dim = t->head_dim, .window = t->window,
                            .layer_class = t->classes, .type_k = HT_KV_F32, .type_v = t->type_v,
                            .n_pages = {full, win}};
}
#endif
