/* codec.c - encode and decode of every block format against ggml's own bytes and floats
 * (tests/data/make_quant.py made them). Equality is of bits: the codecs are the definition. */
#include "quant/blocks.h"
#include "test.h"

enum { COLS = 256 };

static void *load(const char *type, const char *ext, size_t *n)
{
    char path[128];
    snprintf(path, sizeof path, "tests/data/quant/%s.%s", type, ext);
    return t_slurp(path, n);
}

/* Rows of input.f32 whose K-quant bytes are no part of the definition: weights so small that their
 * squares or reciprocals leave float32's range, where ggml's fit divides by zero. */
static bool outside_fit(int row)
{
    return row >= 14 && row <= 16;
}

static void check_encode(int type)
{
    const ht_type_info *t = ht_type_of(type);
    size_t xn, wn;
    float *x = load("input", "f32", &xn);
    uint8_t *want = load(t->name, "enc", &wn);
    size_t rows = xn / (COLS * sizeof *x), row_bytes = (size_t)COLS / t->block * t->bytes;
    T_EQ_INT(wn, rows * row_bytes);
    T_CHECK(rows >= 30, "%zu rows", rows);
    uint8_t got[COLS * 4];
    for (size_t r = 0; r < rows; r++) {
        if (t->block == 256 && outside_fit((int)r)) continue;
        t->encode(x + r * COLS, got, COLS);
        for (size_t i = 0; i < row_bytes; i++)
            T_SOFT(got[i] == want[r * row_bytes + i], "%s row %zu block %zu byte %zu: %d, ggml %d",
                   t->name, r, i / t->bytes, i % t->bytes, got[i], want[r * row_bytes + i]);
    }
    free(x);
    free(want);
}

static void check_decode(int type)
{
    const ht_type_info *t = ht_type_of(type);
    size_t bn, fn;
    uint8_t *blk = load(t->name, "blk", &bn);
    uint32_t *want = load(t->name, "dec", &fn);
    size_t n = bn / t->bytes * t->block;
    T_EQ_INT(fn, n * sizeof(float));
    float *got = malloc(fn);
    t->decode(blk, got, n);
    for (size_t i = 0; i < n; i++)
        T_CHECK(ht_f32_bits(got[i]) == want[i], "%s element %zu: %a, ggml %a", t->name, i,
                (double)got[i], (double)ht_bits_f32(want[i]));
    free(got);
    free(blk);
    free(want);
}

/* A round trip of numbers that look like weights must not lose more than the format's own steps:
 * the relative RMS error stays under a bound a little above what ggml's fit reaches. */
static void check_loss(int type, double bound)
{
    const ht_type_info *t = ht_type_of(type);
    float x[COLS * 8], y[COLS * 8];
    uint8_t bytes[COLS * 8 * 4];
    uint64_t seed = 5;
    double err = 0, ref = 0;
    for (int i = 0; i < COLS * 8; i++) /* sum of four uniforms: near enough to normal */
        x[i] = 0.02f * (t_randf(&seed) + t_randf(&seed) + t_randf(&seed) + t_randf(&seed));
    t->encode(x, bytes, COLS * 8);
    t->decode(bytes, y, COLS * 8);
    for (int i = 0; i < COLS * 8; i++) {
        err += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        ref += (double)x[i] * (double)x[i];
    }
    T_CHECK(sqrt(err / ref) < bound, "%s: relative error %g", t->name, sqrt(err / ref));
    T_CHECK(sqrt(err / ref) > bound / 2, "%s: relative error %g, the bound is slack", t->name,
            sqrt(err / ref));
}

#define TYPE(t, T, bound)                                                                          \
    T_CASE(t, encode)                                                                              \
    {                                                                                              \
        check_encode(T);                                                                           \
    }                                                                                              \
    T_CASE(t, decode)                                                                              \
    {                                                                                              \
        check_decode(T);                                                                           \
    }                                                                                              \
    T_CASE(t, loss)                                                                                \
    {                                                                                              \
        check_loss(T, bound);                                                                      \
    }
TYPE(q8_0, HT_Q8_0, 0.008)
TYPE(q4_0, HT_Q4_0, 0.12)
TYPE(q4_1, HT_Q4_1, 0.11)
TYPE(q5_0, HT_Q5_0, 0.06)
TYPE(q5_1, HT_Q5_1, 0.06)
TYPE(q2_k, HT_Q2_K, 0.4)
TYPE(q3_k, HT_Q3_K, 0.2)
TYPE(q4_k, HT_Q4_K, 0.1)
TYPE(q5_k, HT_Q5_K, 0.05)
TYPE(q6_k, HT_Q6_K, 0.025)
T_CASE(iq4_nl, decode)
{
    check_decode(HT_IQ4_NL);
}
T_CASE(iq4_nl, loss)
{
    check_loss(HT_IQ4_NL, 0.1);
}
/* ggml's reference fit leaves levels of zero blocks unset and tries one range, ours several: the
 * measure of both, sum of x^2 * error^2 over a row, must not be worse than ggml's. */
T_CASE(iq4_nl, encode)
{
    size_t xn, wn;
    float *x = load("input", "f32", &xn), y[COLS];
    uint8_t *theirs = load("iq4_nl", "enc", &wn), ours[COLS];
    size_t rows = xn / (COLS * sizeof *x), row_bytes = COLS / 32 * sizeof(ht_block_iq4_nl);
    T_EQ_INT(wn, rows * row_bytes);
    for (size_t r = 0; r < rows; r++) {
        double err[2] = {0, 0}, fourth = 0;
        const float *row = x + r * COLS;
        if (outside_fit((int)r)) continue;
        ht_types[HT_IQ4_NL].encode(row, ours, COLS);
        for (int who = 0; who < 2; who++) {
            ht_types[HT_IQ4_NL].decode(who ? theirs + r * row_bytes : ours, y, COLS);
            for (int i = 0; i < COLS; i++)
                err[who] += pow((double)row[i] * ((double)row[i] - (double)y[i]), 2);
        }
        /* the half-precision rounding of a scale, up to 2^-11 of it, falls as it falls */
        for (int i = 0; i < COLS; i++) fourth += pow((double)row[i], 4);
        T_CHECK(err[0] <= err[1] + 0x1p-22 * fourth, "row %zu: %g, ggml %g", r, err[0], err[1]);
    }
    free(x);
    free(theirs);
}
T_CASE(mxfp4, encode)
{
    check_encode(HT_MXFP4);
}
T_CASE(mxfp4, decode)
{
    check_decode(HT_MXFP4);
}
T_CASE(mxfp4, loss)
{
    check_loss(HT_MXFP4, 0.15);
}

/* Numbers no quantiser was made for must give defined bytes and no trap (the sanitizer build
 * looks). */
T_CASE(codec, not_finite)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 3.4e38f, -3.4e38f, 1e-45f, 0};
    for (int type = 0; type < HT_TYPES; type++) {
        const ht_type_info *t = ht_type_of(type);
        if (!t->encode) continue;
        for (size_t k = 0; k < sizeof odd / sizeof *odd; k++) {
            float x[COLS], y[COLS];
            uint8_t a[COLS * 4], b[COLS * 4];
            for (int i = 0; i < COLS; i++) x[i] = i % 7 == 3 ? odd[k] : (float)i / 64;
            t->encode(x, a, COLS);
            t->encode(x, b, COLS);
            T_EQ_MEM(a, b, (size_t)COLS / t->block * t->bytes);
            t->decode(a, y, COLS);
        }
    }
}
