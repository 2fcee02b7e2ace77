/* passes.h - two sequences through a whole model (world.h) in pieces of any size: for tests of what
 * must not change their bits. */
#ifndef HT_TEST_CUDA_PASSES_H
#define HT_TEST_CUDA_PASSES_H
#include "world.h"

enum { PASSES_N = 136, PASSES_SEQS = 2, PASSES_EACH = 16, PASSES_WANTED = PASSES_N / PASSES_EACH };
typedef struct {
    float logits[PASSES_SEQS][PASSES_WANTED][WORLD_VOCAB]; /* of every 16th row                 */
    uint8_t *cache;                                        /* [cache_bytes] of the world        */
} passes;
/* Pieces of n rows in a bucket of `rows`: of each sequence after another, or of all of them side by
 * side; n 0: of 1, 2 .. 8 rows in turn, each in a bucket of its own. act: enum ht_act. The cache
 * starts empty. */
passes *passes_new(world *, ht_dev *, uint8_t act, uint32_t n, uint16_t rows, bool beside);
void passes_free(passes *);
#endif
