/* world.h - a small random model and its cache on a device of the engine, for the tests that
 * compute: order.c and tensor.c. */
#ifndef HT_TEST_CUDA_WORLD_H
#define HT_TEST_CUDA_WORLD_H
#include "card.h"
#include "test.h"

enum { WORLD_LAYERS = 3, WORLD_VOCAB = 64, WORLD_CTX = 1024, WORLD_PAGES = WORLD_CTX / HT_PAGE };
typedef struct {
    int type;                              /* enum ht_type of the first layer's output matrix   */
    uint32_t layers, dim, heads, kv, hd, ffn;
    bool even;                             /* products keep the length of vectors, scores small */
    bool rich;                             /* biases, norms of heads, V of a type of its own, the
                                              layout r16/1 where a type has it                  */
} world_shape;
typedef struct {
    world_shape s;
    ht_model m;
    ht_layer layer[WORLD_LAYERS];
    ht_layer_spec ls[WORLD_LAYERS];
    float *one;                            /* [the widest vector] ones                          */
    ht_kv kv;
    uint8_t cls[WORLD_LAYERS], type[WORLD_LAYERS][2], *plane[WORLD_LAYERS][2];
    uint64_t page_bytes[WORLD_LAYERS][2];
    size_t cache_bytes;
    void *block, *mem[64];
    int n_mem;
    uint64_t seed;
} world;
/* Loaded onto the device. Matrices are F16 but the one of type `type`. */
world *world_new(ht_dev *, const world_shape *);
/* The same model on another device, with an empty cache there. */
void world_load(world *, ht_dev *);
/* Free the cache, before the device is closed. */
void world_leave(world *, ht_dev *);
void world_free(world *);
#endif
