/* kvraw.h - raw slots for KV pools made by hand: slot i belongs to page i. Include after
 * step/kvpool.h. */
#ifndef HT_TEST_KVRAW_H
#define HT_TEST_KVRAW_H
#include "core/arena.h"
#include "step/kvpool.h"
#include "test.h"

static inline void kvraw_fill(ht_kv *kv, ht_arena *a)
{
    kv->raw_bytes = ht_kv_page_bytes(HT_KV_F16, kv->n_kv_heads, kv->head_dim);
    kv->raw = ht_arena_array(a, kv->n_layers, sizeof *kv->raw);
    T_TRUE(kv->raw != NULL);
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        kv->n_raw[c] = kv->n_pages[c];
        kv->raw_of[c] = ht_arena_array(a, kv->n_pages[c], sizeof **kv->raw_of);
        kv->packed[c] = ht_arena_array(a, kv->n_pages[c], 1);
        T_TRUE(kv->raw_of[c] && kv->packed[c]);
        for (uint32_t i = 0; i < kv->n_pages[c]; i++) kv->raw_of[c][i] = i;
    }
    for (uint32_t l = 0; l < kv->n_layers; l++)
        for (int v = 0; v < 2; v++) {
            if (!ht_kv_packs(kv->type[l][v])) continue;
            kv->raw[l][v] = ht_arena_alloc(a, kv->raw_bytes * kv->n_pages[kv->layer_class[l]]);
            T_TRUE(kv->raw[l][v] != NULL);
        }
}
#endif
