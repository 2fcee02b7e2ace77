/* tensor.c - the order of sums of act f16 on the emulated card (card_tensor.c): a row's bits depend
 * neither on how a prompt is cut, nor on the rows and sequences beside it, nor on the bucket or the
 * number of multiprocessors, which choose between kernels that take a sum's quarters in one block
 * or in four, and one query head or two a block. And they are those of act f32, but for the
 * rounding of inputs to f16. */
#include "passes.h"

#include <math.h>

static void same(world *w, ht_dev *dev, const passes *want, uint32_t n, uint16_t rows, bool beside)
{
    passes *got = passes_new(w, dev, HT_ACT_F16, n, rows, beside);
    T_SOFT(!memcmp(got->logits, want->logits, sizeof got->logits), "%u at a time of %u%s: logits",
           n, (unsigned)rows, beside ? ", beside others" : "");
    T_SOFT(!memcmp(got->cache, want->cache, w->cache_bytes), "%u at a time of %u%s: cache", n,
           (unsigned)rows, beside ? ", beside others" : "");
    passes_free(got);
}

/* The greatest distance of a row's logits, relative to their length. */
static double distance(const passes *a, const passes *b)
{
    double far = 0;
    for (int i = 0; i < PASSES_SEQS * PASSES_WANTED; i++) {
        double d = 0, all = 0;
        for (int k = 0; k < WORLD_VOCAB; k++) {
            const double y = (double)b->logits[i / PASSES_WANTED][i % PASSES_WANTED][k];
            const double x = (double)a->logits[i / PASSES_WANTED][i % PASSES_WANTED][k] - y;
            d += x * x, all += y * y;
        }
        far = fmax(far, sqrt(d / all));
    }
    return far;
}

/* All ways on one device. Pieces end in the middle of a block of keys, so that rows meet blocks
 * without a key of theirs, as they do beside other sequences: once such a block multiplied a row by
 * a number next to 1. */
static void all_same(world *w, ht_dev *dev, const passes *want)
{
    T_CHECK(want->logits[PASSES_SEQS - 1][PASSES_WANTED - 1][0] != 0, "a logit is there");
    same(w, dev, want, PASSES_N, 160, false);
    same(w, dev, want, 20, 128, false);
    same(w, dev, want, 100, 104, false);
    same(w, dev, want, 17, 64, true);
    same(w, dev, want, PASSES_N, 1024, true);
    /* Each of at most 7 roundings a layer (normed X twice, Q, K and V, scores' weights, attention,
     * hidden) moves its vector by half a unit of f16 at most, and nothing stretches it. */
    passes *exact = passes_new(w, dev, HT_ACT_F32, PASSES_N, 160, false);
    const double tol = 7 * w->s.layers * ldexp(1, -11), far = distance(want, exact);
    T_CHECK(far > 0 && far < tol, "act f16 is %.2e from act f32, %.2e at most", far, tol);
    passes_free(exact);
}

static void check_shape(const world_shape *shape)
{
    ht_err e = {0};
    ht_dev *dev;
    T_OK(card_open(&dev, "", &e), e);
    world *w = world_new(dev, shape);
    passes *want = passes_new(w, dev, HT_ACT_F16, PASSES_N, 160, false);
    same(w, dev, want, 17, 64, true);
    world_leave(w, dev);
    ht_backend_cuda.close(dev);
    card.sms = 7; /* few: a sum's quarters in one block, two query heads a block */
    T_OK(card_open(&dev, "", &e), e);
    world_load(w, dev);
    all_same(w, dev, want);
    passes_free(want);
    world_leave(w, dev);
    ht_backend_cuda.close(dev);
    card.sms = 132;
    if (ht_backend_cuda.open(&dev, "", &e)) dev = NULL;
    if (dev && dev->tensor) { /* a card is here: the same on it */
        world_load(w, dev);
        want = passes_new(w, dev, HT_ACT_F16, PASSES_N, 160, false);
        all_same(w, dev, want);
        passes_free(want);
        world_leave(w, dev);
    }
    if (dev) ht_backend_cuda.close(dev);
    world_free(w);
}

T_CASE_SECONDS(cuda, tensor_cores_bits_do_not_depend_on_the_batch, 120)
{
    check_shape(&(world_shape){HT_F16, 3, 96, 4, 2, 64, 192, true, false});
    check_shape(&(world_shape){HT_Q4_0, 2, 160, 2, 1, 128, 128, true, false});
}

/* Weights of every type as tiles: their values rounded to f16. */
T_CASE(cuda, weights_become_tiles_of_f16)
{
    static const int types[] = {HT_F32,  HT_F16,  HT_BF16, HT_Q8_0,
                                HT_Q4_0, HT_Q4_1, HT_Q4_K, HT_Q6_K};
    ht_err e = {0};
    ht_dev *dev;
    float row[512];
    T_OK(card_open(&dev, "", &e), e);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        world *w = world_new(dev, &(world_shape){types[i], 1, 96, 4, 2, 128, 64, true, false});
        const ht_weight *o = &w->layer[0].o;
        const ht_bucket b = {.rows = 64, .act = HT_ACT_F16};
        T_OK(cuda__tc_weights(dev, &b, &e), e);
        const uint8_t *tiles = (uint8_t *)(uintptr_t)dev->weight[o->id].tiles;
        for (uint32_t r = 0; r < o->rows; r++) {
            ht_types[types[i]].decode((const uint8_t *)o->data + r * o->row_bytes, row, o->cols);
            for (uint32_t c = 0; c < o->cols; c++) {
                uint16_t h; /* groups of 64 columns, rows of 128 bytes, chunk j at j ^ r%8 */
                memcpy(&h,
                       tiles + (c / 64 * o->rows + r) * 128 + (c % 64 / 8 ^ r % 8) * 16 + c % 8 * 2,
                       2);
                T_SOFT(h == ht_f32_to_f16(row[c]), "%s row %u column %u: %g for %g",
                       ht_types[types[i]].name, r, c, (double)ht_f16_to_f32(h), (double)row[c]);
            }
        }
        world_leave(w, dev);
        world_free(w);
    }
    ht_backend_cuda.close(dev);
}
