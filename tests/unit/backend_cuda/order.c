/* order.c - the order of sums, which is what makes equal bits: computed by the card of card.c,
 * which adds as the kernels are written to, independent of rows and grid; and recorded on an H200
 * (tests/data/cuda_h200.bin), which both it and any real card must reproduce to the bit. What is
 * recorded uses no approximate function of the hardware: products with each type of weights, and
 * sums of values under equal scores.
 *
 * With CUDA_RECORD=FILE, on a machine with a card: write what it computes there. */
#include "world.h"

enum { DIM = 96, HEADS = 4, KV = 2, HD = 128, NQ = HEADS * HD, FFN = 256, CTX = WORLD_CTX };
enum { ROWS = 3, PAGES = WORLD_PAGES, PRODUCT = ROWS * DIM, ATTENTION = 2 * NQ };
enum { RESULTS = CUDA_TYPES * PRODUCT + ATTENTION };

static const int type_of[CUDA_TYPES] = {HT_F32,  HT_F16,  HT_BF16, HT_Q8_0,
                                        HT_Q4_0, HT_Q4_1, HT_Q4_K, HT_Q6_K};

/* One layer whose output projection is of the type in question; the rest is only there to load. */
static world *make(ht_dev *dev, int type)
{
    return world_new(dev, &(world_shape){type, 1, DIM, HEADS, KV, HD, FFN, false, false});
}

/* One stage alone in a bucket of `most` rows: n rows of register `in` become register `out`. */
static void stage(world *w, ht_dev *dev, int kind, uint16_t most, uint32_t n, const int32_t *pos,
                  const float *a, float *result)
{
    static const uint16_t seq[16];
    static const int32_t zero[16];
    uint32_t page[PAGES];
    ht_stage st = {(uint16_t)kind, 0, 0};
    ht_bucket b = {.rows = most, .seqs = 1, .want = 1, .ctx = CTX};
    ht_cut cut;
    ht_plan *p;
    ht_err e = {0};
    void *ra, *rx = NULL;
    size_t bytes;
    const bool attn = kind == HT_ATTN;
    b.kv_fmt = HT_KV_F16 | HT_KV_F16 << 8;
    for (uint32_t i = 0; i < PAGES; i++) page[i] = PAGES - 1 - i;
    T_EQ_INT(ht_cover(&ht_backend_cuda, dev, &w->m, &st, 1, &b, NULL, NULL, &cut, &e), 1);
    T_OK(ht_backend_cuda.plan(&p, dev, &w->kv, &st, &cut, 1, &b, &e), e);
    T_OK(ht_backend_cuda.reg(p, attn ? HT_REG_Q : HT_REG_A, &ra, &bytes, &e), e);
    memset(ra, 0, bytes);
    if (a) memcpy(ra, a, n * NQ * sizeof *a);
    T_OK(ht_backend_cuda.reg(p, attn ? HT_REG_A : HT_REG_X, &rx, &bytes, &e), e);
    for (size_t i = 0; i < bytes / 4; i++) ((float *)rx)[i] = (float)(int)(i % DIM % 17) - 8;
    ht_batch x = {.rows = n,
                  .seqs = 1,
                  .token = zero,
                  .pos = pos ? pos : zero,
                  .seq = seq,
                  .page = {page, NULL}};
    T_OK(ht_backend_cuda.run(p, &x, &e), e);
    T_OK(ht_backend_cuda.wait(p, NULL, &e), e);
    memcpy(result, rx, n * (attn ? NQ : DIM) * sizeof *result);
    ht_backend_cuda.plan_free(p);
}

/* Random keys and values, in halves between 0.25 and 0.5 with either sign. */
static void fill_cache(world *w, ht_dev *dev)
{
    const size_t n = (size_t)(w->page_bytes[0][0] + w->page_bytes[0][1]);
    uint16_t *host = malloc(n);
    ht_err e = {0};
    uint64_t s = 5;
    for (uint32_t p = 0; p < PAGES; p++) {
        for (size_t i = 0; i < n / 2; i++) {
            s = s * 6364136223846793005ULL + 1442695040888963407ULL;
            host[i] = (uint16_t)(0x3400 | (s >> 40 & 0x83ff));
        }
        T_OK(ht_backend_cuda.page_io(dev, &w->kv, 0, p, host, 1, &e), e);
    }
    free(host);
}

/* All that is recorded, and that other rows of the batch change nothing in it. */
static void compute(ht_dev *dev, float *out)
{
    static const int32_t pos[2] = {700, 31};
    float a[ROWS * NQ], again[2 * NQ];
    for (int t = 0; t < CUDA_TYPES; t++) {
        world *w = make(dev, type_of[t]);
        for (int i = 0; i < ROWS * NQ; i++) a[i] = t_randf(&w->seed);
        float *y = out + t * PRODUCT;
        stage(w, dev, HT_ATTN_OUT, ROWS, ROWS, NULL, a, y);
        for (int r = 0; r < ROWS; r++) {
            stage(w, dev, HT_ATTN_OUT, 1, 1, NULL, a + r * NQ, again);
            for (int i = 0; i < DIM; i++)
                T_SOFT(again[i] == y[r * DIM + i], "%s row %d, %d: %a and %a",
                       ht_types[type_of[t]].name, r, i, (double)again[i], (double)y[r * DIM + i]);
        }
        if (t == 0) {
            float *z = out + CUDA_TYPES * PRODUCT;
            fill_cache(w, dev);
            stage(w, dev, HT_ATTN, 2, 2, pos, NULL, z);      /* classes over blocks */
            stage(w, dev, HT_ATTN, 16, 2, pos, NULL, again); /* all classes in one block */
            for (int i = 0; i < 2 * NQ; i++)
                T_SOFT(again[i] == z[i], "attention %d: %a and %a", i, (double)again[i],
                       (double)z[i]);
        }
        world_leave(w, dev);
        world_free(w);
    }
}

static void same(const float *x, const float *y, const char *of)
{
    for (int i = 0; i < RESULTS; i++)
        T_SOFT(x[i] == y[i], "%s: result %d is %a, not %a", of, i, (double)x[i], (double)y[i]);
}

T_CASE(cuda, sums_do_not_depend_on_the_grid)
{
    static float x[RESULTS], y[RESULTS];
    static const int sms[] = {132, 108, 20, 7};
    ht_err e = {0};
    ht_dev *dev;
    for (int i = 0; i < 4; i++) {
        card.sms = sms[i];
        T_OK(card_open(&dev, "", &e), e);
        compute(dev, i ? y : x);
        if (i) same(y, x, "another number of multiprocessors");
        ht_backend_cuda.close(dev);
    }
    card.sms = 132;
}

/* The recording, in order. */
static bool recorded(float *want)
{
    FILE *f = fopen("tests/data/cuda_h200.bin", "rb");
    const bool ok = f && fread(want, sizeof *want, RESULTS, f) == RESULTS && fgetc(f) == EOF;
    if (f) fclose(f);
    return ok;
}

T_CASE(cuda, a_card_gives_the_recorded_bits)
{
    static float got[RESULTS], want[RESULTS];
    const char *record = getenv("CUDA_RECORD");
    ht_err e = {0};
    ht_dev *dev;
    if (record) {
        T_OK(ht_backend_cuda.open(&dev, "", &e), e);
        compute(dev, got);
        FILE *f = fopen(record, "wb");
        T_CHECK(f && fwrite(got, sizeof *got, RESULTS, f) == RESULTS && !fclose(f), "%s", record);
        ht_backend_cuda.close(dev);
    }
    T_CHECK(recorded(want) || record, "tests/data/cuda_h200.bin does not hold %d numbers", RESULTS);
    if (record) memcpy(want, got, sizeof want);
    T_OK(card_open(&dev, "", &e), e);
    compute(dev, got);
    same(got, want, "emulation");
    ht_backend_cuda.close(dev);
    if (ht_backend_cuda.open(&dev, "", &e)) return; /* no card here: the recording stands for it */
    compute(dev, got);
    same(got, want, "this machine's card");
    ht_backend_cuda.close(dev);
}

/* A lone row's tokens from `token` on, `steps` to a launch. */
static void generate(world *w, ht_dev *dev, int32_t token, int32_t *out, int n, int steps)
{
    static const uint16_t seq[1];
    static const uint32_t want[1];
    uint32_t page[PAGES];
    ht_stage tape[16];
    ht_cut cut[16];
    ht_plan *p;
    ht_err e = {0};
    ht_bucket b = {.rows = 1, .seqs = 1, .want = 1, .steps = (uint16_t)steps, .ctx = CTX};
    b.past = CTX;
    b.kv_fmt = HT_KV_F16 | HT_KV_F16 << 8;
    for (uint32_t i = 0; i < PAGES; i++) page[i] = PAGES - 1 - i;
    size_t k = ht_tape(&w->m, tape, 15);
    tape[k++] = (ht_stage){HT_SAMPLE, 0, -1};
    k = ht_cover(&ht_backend_cuda, dev, &w->m, tape, k, &b, NULL, NULL, cut, &e);
    T_CHECK(k > 0, "%s", e.msg);
    T_OK(ht_backend_cuda.plan(&p, dev, &w->kv, tape, cut, k, &b, &e), e);
    for (int32_t at = 0; at < n; at += steps) {
        const int32_t *ids;
        size_t got;
        ht_batch x = {.rows = 1,
                      .seqs = 1,
                      .n_want = 1,
                      .token = &token,
                      .pos = &at,
                      .seq = seq,
                      .page = {page, NULL},
                      .want = want};
        T_OK(ht_backend_cuda.run(p, &x, &e), e);
        T_OK(ht_backend_cuda.wait(p, NULL, &e), e);
        T_OK(ht_backend_cuda.tokens(p, &ids, &got, &e), e);
        T_EQ_INT(got, steps);
        memcpy(out + at, ids, got * sizeof *out);
        token = out[at + steps - 1];
    }
    ht_backend_cuda.plan_free(p);
}

/* Both levels over more than a class of pages, in launches of any length; the persistent kernel's
 * clock then names its stages. */
T_CASE(cuda, levels_give_the_same_tokens)
{
    enum { N = 48 };
    int32_t one[N], two[N], three[N];
    char text[2048];
    ht_err e = {0};
    ht_dev *dev;
    card.sms = 32; /* as many as this little model keeps busy */
    T_OK(card_open(&dev, "level=1", &e), e);
    world *w = make(dev, HT_F16);
    generate(w, dev, 5, one, N, 1);
    T_EQ_INT(ht_backend_cuda.describe(dev, text, sizeof text), 0);
    T_CHECK(strstr(text, "\"stages\":{}"), "%s", text);
    dev->level1 = false;
    generate(w, dev, 5, two, N, 16);
    generate(w, dev, 5, three, N, 4);
    for (int i = 0; i < N; i++)
        T_SOFT(one[i] == two[i] && two[i] == three[i], "token %d: %d, %d, %d", i, (int)one[i],
               (int)two[i], (int)three[i]);
    T_EQ_INT(ht_backend_cuda.describe(dev, text, sizeof text), 0);
    T_CHECK(strstr(text, "\"qkv\":[") && strstr(text, "\"attn\":["), "%s", text);
    T_EQ_INT(dev->ticks[1], 2 * N * CARD_CLOCK);
    world_leave(w, dev);
    world_free(w);
    ht_backend_cuda.close(dev);
    card.sms = 132;
}
