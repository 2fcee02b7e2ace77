/* lone.c - a row that is alone in its plan has kernels of its own: the bits of the same row in
 * prompts of many, in logits and in the whole cache, over several pages, for one to four query
 * heads a KV head. On the emulated card, which has the order of sums, and on a real one where there
 * is one, which also has each kernel's own writes: once the second block of three query heads wrote
 * over the first block of the next KV head, from the second page of keys on. */
#include "passes.h"

static void both_ways(world *w, ht_dev *dev, const char *where)
{
    passes *want = passes_new(w, dev, HT_ACT_F32, PASSES_N, 160, false);
    passes *got = passes_new(w, dev, HT_ACT_F32, 0, 0, false);
    T_CHECK(want->logits[PASSES_SEQS - 1][PASSES_WANTED - 1][0] != 0, "a logit is there");
    T_SOFT(!memcmp(got->logits, want->logits, sizeof got->logits), "%s, %u heads of %u: logits",
           where, w->s.heads, w->s.kv);
    T_SOFT(!memcmp(got->cache, want->cache, w->cache_bytes), "%s, %u heads of %u: cache", where,
           w->s.heads, w->s.kv);
    passes_free(got);
    passes_free(want);
}

static void check_shape(const world_shape *shape)
{
    ht_err e = {0};
    ht_dev *dev;
    T_OK(card_open(&dev, "", &e), e);
    world *w = world_new(dev, shape);
    both_ways(w, dev, "emulation");
    world_leave(w, dev);
    ht_backend_cuda.close(dev);
    if (ht_backend_cuda.open(&dev, "", &e) == 0) {
        world_load(w, dev);
        both_ways(w, dev, "this machine's card");
        world_leave(w, dev);
        ht_backend_cuda.close(dev);
    }
    world_free(w);
}

T_CASE_SECONDS(cuda, a_lone_row_has_the_bits_of_many, 240)
{
    check_shape(&(world_shape){HT_F16, 2, 96, 3, 3, 64, 200, true, false});
    check_shape(&(world_shape){HT_F16, 2, 96, 4, 2, 128, 200, true, true});
    check_shape(&(world_shape){HT_Q4_0, 2, 160, 6, 2, 64, 224, true, true});
    check_shape(&(world_shape){HT_Q8_0, 2, 160, 8, 2, 32, 224, true, false});
}
