/* codebook.c - 32 elements with a scale and a table of 16 values: IQ4_NL (half-precision scale, a
 * table fitted to normally distributed weights) and MXFP4 (power-of-two scale, E2M1 values). */
#include "quant/blocks.h"
#include <float.h>

const int8_t ht_iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
/* Twice the E2M1 values, so that they are integers. */
static const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void decode(const uint8_t q[16], const int8_t *values, float d, float *dst)
{
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)values[q[j] & 15];
        dst[j + 16] = d * (float)values[q[j] >> 4];
    }
}

/* Index of the nearest value of an ascending table; the upper one of a tie. */
static int nearest(const int8_t *values, float x)
{
    int lo = 0;
    while (lo < 15 && x >= (float)values[lo + 1]) lo++;
    if (lo == 15 || x < (float)values[0]) return lo;
    return x - (float)values[lo] < (float)values[lo + 1] - x ? lo : lo + 1;
}

void quant__dec_iq4_nl(const void *src, float *dst, size_t n)
{
    const ht_block_iq4_nl *b = src;
    for (size_t i = 0; i < n / HT_QK; i++, dst += HT_QK)
        decode(b[i].q, ht_iq4_nl_values, ht_load_f16(b[i].d), dst);
}

/* Scale that minimises the x^2-weighted squared error, by trying the table's end at 15 positions
 * around the element of largest magnitude and solving for the best scale of each assignment. */
static float fit_iq4_nl(const float *x)
{
    float amax = 0, max = 0;
    for (int j = 0; j < HT_QK; j++)
        if (fabsf(x[j]) > amax) {
            amax = fabsf(x[j]);
            max = x[j];
        }
    if (amax < 1e-15f || amax > FLT_MAX) return 0;
    float best = 0, scale = 0;
    for (int step = -8; step <= 7; step++) {
        /* -8 stands for the start: the largest magnitude on the table's positive side */
        float id = step == -8 ? -(float)ht_iq4_nl_values[0] / max
                              : ((float)step + (float)ht_iq4_nl_values[0]) / max;
        float sumqx = 0, sumq2 = 0;
        for (int j = 0; j < HT_QK; j++) {
            float v = (float)ht_iq4_nl_values[nearest(ht_iq4_nl_values, id * x[j])];
            float w = x[j] * x[j];
            sumqx += w * v * x[j];
            sumq2 += w * v * v;
        }
        if (sumq2 > 0 && (step == -8 || sumqx * sumqx > best * sumq2)) {
            scale = sumqx / sumq2;
            best = scale * sumqx;
        }
    }
    return scale;
}

void quant__enc_iq4_nl(const float *src, void *dst, size_t n)
{
    ht_block_iq4_nl *b = dst;
    for (size_t i = 0; i < n / HT_QK; i++, src += HT_QK) {
        float d = fit_iq4_nl(src), id = d != 0 ? 1 / d : 0;
        (void)ht_store_f16(b[i].d, d);
        for (int j = 0; j < 16; j++) {
            int lo = nearest(ht_iq4_nl_values, id * src[j]);
            int hi = nearest(ht_iq4_nl_values, id * src[j + 16]);
            b[i].q[j] = (uint8_t)(lo | hi << 4);
        }
    }
}

void quant__dec_mxfp4(const void *src, float *dst, size_t n)
{
    const ht_block_mxfp4 *b = src;
    for (size_t i = 0; i < n / HT_QK; i++, dst += HT_QK)
        decode(b[i].q, mxfp4_values, ht_e8m0_half(b[i].e), dst);
}

/* Code of the nearest E2M1 value at scale d (halved); the first code of a tie. */
static int nearest_mxfp4(float x, float d)
{
    int at = 0;
    float best = fabsf((float)mxfp4_values[0] * d - x);
    for (int c = 1; c < 16; c++) {
        float err = fabsf((float)mxfp4_values[c] * d - x);
        if (err < best) {
            best = err;
            at = c;
        }
    }
    return at;
}

/* The scale of the OCP MX specification: the exponent of the largest magnitude less that of the
 * largest E2M1 value (6 = 1.5 * 2^2). */
void quant__enc_mxfp4(const float *src, void *dst, size_t n)
{
    ht_block_mxfp4 *b = dst;
    for (size_t i = 0; i < n / HT_QK; i++, src += HT_QK) {
        float amax = 0;
        for (int j = 0; j < HT_QK; j++)
            if (fabsf(src[j]) > amax) amax = fabsf(src[j]);
        int e = amax > 0 && amax <= FLT_MAX ? ht_clamp(ilogbf(amax) - 2 + 127, 0, 254) : 0;
        b[i].e = (uint8_t)e;
        float d = ht_e8m0_half((uint8_t)e);
        for (int j = 0; j < 16; j++)
            b[i].q[j] = (uint8_t)(nearest_mxfp4(src[j], d) | nearest_mxfp4(src[j + 16], d) << 4);
    }
}
