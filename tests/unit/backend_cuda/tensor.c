/* tensor.c - the order of sums of act f16 on the emulated card (card_tensor.c): a row's bits depend
 * neither on how a prompt is cut, nor on the rows and sequences beside it, nor on the bucket or the
 * number of multiprocessors, which choose between kernels that take a sum's quarters in one block
 * or in four, and one query head or two a block. And they are those of act f32, but for the
 * rounding of inputs to f16. */
#include "world.h"

#include <math.h>

enum { N = 136, SEQS = 2, EACH = 16, WANTED = N / EACH, MOST = SEQS * N };

/* Logits of every 16th row, and the whole cache. */
typedef struct {
    float logits[SEQS][WANTED][WORLD_VOCAB];
    uint8_t *cache;
} results;

/* A step of the whole model: rows of sequence s are tokens from[s] .. to[s]-1. */
typedef struct {
    uint16_t rows; /* of the bucket */
    uint8_t act;
    uint32_t from[SEQS], to[SEQS];
} step;

typedef struct {
    int32_t token[MOST], pos[MOST];
    uint16_t seq[MOST];
    uint32_t want[MOST], page[SEQS * WORLD_PAGES];
    ht_batch b;
} batch;

static void fill(batch *x, const step *p)
{
    x->b =
        (ht_batch){.seqs = SEQS, .token = x->token, .pos = x->pos, .seq = x->seq, .want = x->want};
    for (uint32_t s = 0; s < SEQS; s++) {
        /* Half of the pool a sequence, in descending order. */
        for (uint32_t i = 0; i < WORLD_PAGES; i++)
            x->page[s * WORLD_PAGES + i] =
                i < WORLD_PAGES / SEQS ? (s + 1) * (WORLD_PAGES / SEQS) - 1 - i : HT_NOPAGE;
        for (uint32_t i = p->from[s]; i < p->to[s]; i++) {
            const uint32_t r = x->b.rows++;
            x->token[r] = (int32_t)((i * 37 + i / 7 * 11 + 5 * s + 3) % WORLD_VOCAB);
            x->pos[r] = (int32_t)i;
            x->seq[r] = (uint16_t)s;
            if (i % EACH == EACH - 1) x->want[x->b.n_want++] = r;
        }
    }
    x->b.page[0] = x->page;
}

static void run_step(world *w, ht_dev *dev, const step *p, results *out)
{
    static batch x;
    ht_stage tape[5 * WORLD_LAYERS + 3];
    ht_cut cut[5 * WORLD_LAYERS + 3];
    ht_bucket b = {.rows = p->rows, .seqs = SEQS, .want = MOST / EACH, .ctx = WORLD_CTX};
    const float *logits;
    ht_plan *plan;
    ht_err e = {0};
    fill(&x, p);
    b.past = WORLD_CTX, b.kv_fmt = HT_KV_F16 | HT_KV_F16 << 8, b.act = p->act;
    if (b.want > b.rows) b.want = b.rows;
    const size_t n = ht_tape(&w->m, tape, sizeof tape / sizeof *tape);
    const size_t k = ht_cover(&ht_backend_cuda, dev, &w->m, tape, n, &b, NULL, NULL, cut, &e);
    T_CHECK(k > 0, "%s", e.msg);
    T_EQ_INT(!strcmp(cut[1].span->name, "layer.tensor.cuda"), p->act == HT_ACT_F16);
    T_OK(ht_backend_cuda.plan(&plan, dev, &w->kv, tape, cut, k, &b, &e), e);
    T_OK(ht_backend_cuda.run(plan, &x.b, &e), e);
    T_OK(ht_backend_cuda.wait(plan, &logits, &e), e);
    for (uint32_t i = 0; i < x.b.n_want; i++) {
        const uint32_t r = x.want[i];
        memcpy(out->logits[x.seq[r]][x.pos[r] / EACH], logits + (size_t)i * WORLD_VOCAB,
               sizeof out->logits[0][0]);
    }
    ht_backend_cuda.plan_free(plan);
}

/* The cache of every page to p, or from it. */
static void move_cache(world *w, ht_dev *dev, uint8_t *p, int write)
{
    ht_err e = {0};
    for (uint32_t i = 0; i < WORLD_PAGES; i++, p += w->cache_bytes / WORLD_PAGES)
        T_OK(ht_backend_cuda.page_io(dev, &w->kv, 0, i, p, write, &e), e);
}

/* Pieces of n rows: of each sequence after another, or of all of them side by side. */
static results *compute(world *w, ht_dev *dev, uint8_t act, uint32_t n, uint16_t rows, bool beside)
{
    results *out = calloc(1, sizeof *out);
    out->cache = calloc(1, w->cache_bytes);
    move_cache(w, dev, out->cache, 1);
    for (uint32_t turn = 0; turn < (beside ? 1 : SEQS); turn++)
        for (uint32_t at = 0; at < N; at += n) {
            step p = {.rows = rows, .act = act};
            for (uint32_t s = 0; s < SEQS; s++) {
                if (!beside && s != turn) continue;
                p.from[s] = at;
                p.to[s] = at + n < N ? at + n : N;
            }
            run_step(w, dev, &p, out);
        }
    move_cache(w, dev, out->cache, 0);
    return out;
}
static void drop(results *r)
{
    free(r->cache);
    free(r);
}

static void same(world *w, ht_dev *dev, const results *want, uint32_t n, uint16_t rows, bool beside)
{
    results *got = compute(w, dev, HT_ACT_F16, n, rows, beside);
    T_SOFT(!memcmp(got->logits, want->logits, sizeof got->logits), "%u at a time of %u%s: logits",
           n, (unsigned)rows, beside ? ", beside others" : "");
    T_SOFT(!memcmp(got->cache, want->cache, w->cache_bytes), "%u at a time of %u%s: cache", n,
           (unsigned)rows, beside ? ", beside others" : "");
    drop(got);
}

/* The greatest distance of a row's logits, relative to their length. */
static double distance(const results *a, const results *b)
{
    double far = 0;
    for (int i = 0; i < SEQS * WANTED; i++) {
        double d = 0, all = 0;
        for (int k = 0; k < WORLD_VOCAB; k++) {
            const double y = (double)b->logits[i / WANTED][i % WANTED][k];
            const double x = (double)a->logits[i / WANTED][i % WANTED][k] - y;
            d += x * x, all += y * y;
        }
        far = fmax(far, sqrt(d / all));
    }
    return far;
}

/* All ways on one device. Pieces end in the middle of a block of keys, so that rows meet blocks
 * without a key of theirs, as they do beside other sequences: once such a block multiplied a row by
 * a number next to 1. */
static void all_same(world *w, ht_dev *dev, const results *want)
{
    T_CHECK(want->logits[SEQS - 1][WANTED - 1][0] != 0, "a logit is there");
    same(w, dev, want, N, 160, false);
    same(w, dev, want, 20, 128, false);
    same(w, dev, want, 100, 104, false);
    same(w, dev, want, 17, 64, true);
    same(w, dev, want, N, 1024, true);
    /* Each of at most 7 roundings a layer (normed X twice, Q, K and V, scores' weights, attention,
     * hidden) moves its vector by half a unit of f16 at most, and nothing stretches it. */
    results *exact = compute(w, dev, HT_ACT_F32, N, 160, false);
    const double tol = 7 * w->s.layers * ldexp(1, -11), far = distance(want, exact);
    T_CHECK(far > 0 && far < tol, "act f16 is %.2e from act f32, %.2e at most", far, tol);
    drop(exact);
}

static void check_shape(const world_shape *shape)
{
    ht_err e = {0};
    ht_dev *dev;
    T_OK(card_open(&dev, "", &e), e);
    world *w = world_new(dev, shape);
    results *want = compute(w, dev, HT_ACT_F16, N, 160, false);
    same(w, dev, want, 17, 64, true);
    world_leave(w, dev);
    ht_backend_cuda.close(dev);
    card.sms = 7; /* few: a sum's quarters in one block, two query heads a block */
    T_OK(card_open(&dev, "", &e), e);
    world_load(w, dev);
    all_same(w, dev, want);
    drop(want);
    world_leave(w, dev);
    ht_backend_cuda.close(dev);
    card.sms = 132;
    if (ht_backend_cuda.open(&dev, "", &e)) dev = NULL;
    if (dev && dev->tensor) { /* a card is here: the same on it */
        world_load(w, dev);
        want = compute(w, dev, HT_ACT_F16, N, 160, false);
        all_same(w, dev, want);
        drop(want);
        world_leave(w, dev);
    }
    if (dev) ht_backend_cuda.close(dev);
    world_free(w);
}

T_CASE_SECONDS(cuda, tensor_cores_bits_do_not_depend_on_the_batch, 120)
{
    check_shape(&(world_shape){HT_F16, 3, 96, 4, 2, 64, 192, true});
    check_shape(&(world_shape){HT_Q4_0, 2, 160, 2, 1, 128, 128, true});
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
        world *w = world_new(dev, &(world_shape){types[i], 1, 96, 4, 2, 128, 64, true});
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
