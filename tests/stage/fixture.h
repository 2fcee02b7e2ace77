/* fixture.h - a random one-layer model in memory with every weight that any stage can read, in one
 * weight type and layout; its spec is set per case, as a family's reader would set it for the
 * flags. */
#ifndef HT_TEST_STAGE_FIXTURE_H
#define HT_TEST_STAGE_FIXTURE_H
#include "backend/list.h"
#include "kv/kv.h"
#include "model/model.h"
#include "test.h"

enum {                               /* columns fit blocks of 256; rows and vocabulary have tails */
    FX_LAYERS = 1, FX_DIM = 256, FX_HEADS = 8, FX_KV_HEADS = 2, FX_HEAD_DIM = 32, FX_FFN = 256,
    FX_EXPERTS = 4, FX_USED = 2, FX_EXPERT_FFN = 256, FX_SHARED = 256, FX_VOCAB = 300,
    FX_WINDOW = 40, FX_CTX = 256
};
typedef struct {
    ht_model m;
    ht_layer layer[FX_LAYERS];
    ht_layer_spec layer_spec[FX_LAYERS];
    float freq[2][FX_HEAD_DIM / 2];
    uint64_t rng;
    void *mem[128];
    int n_mem;
} fixture;

/* alt: a second representation of this type for every matrix, or -1. */
fixture *fixture_new(int type, int layout, int alt);
void fixture_free(fixture *);
/* Set the spec so that ht_tape would emit this stage. */
void fixture_flags(fixture *, const ht_stage *);
#endif
