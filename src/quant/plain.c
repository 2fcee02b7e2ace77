/* plain.c - the formats of 32 elements with one linear scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, and the
 * int8 activations of --act q8.
 *
 * Decoding: d (11 significant bits) times q (at most 8) is exact in float32, so d*q needs no
 * rounding and d*q + m exactly one, with or without a fused multiply-add. Encoding gives the bytes
 * of ggml's reference quantiser: the same operations in the same order. */
#include "quant/blocks.h"

/* v towards zero as int8, for the small v of the quantisers. Where 1/d overflowed (a block whose
 * scale is subnormal, and zero as a half) v is infinite or NaN: 0, which is also what the x86
 * conversion gives ggml there. */
static int truncate(float v)
{
    if (!(fabsf(v) < 128.0f)) return 0;
    return (int)v;
}
static int least(int a, int b)
{
    return a < b ? a : b;
}
static float reciprocal(float d)
{
    return d != 0.0f ? 1.0f / d : 0.0f;
}

/* The element of largest magnitude, its sign kept; the first of equals. */
static float signed_max(const float *x)
{
    float amax = 0, max = 0;
    for (int j = 0; j < HT_QK; j++)
        if (amax < fabsf(x[j])) {
            amax = fabsf(x[j]);
            max = x[j];
        }
    return max;
}
static void range(const float *x, float *min, float *max)
{
    *min = INFINITY;
    *max = -INFINITY;
    for (int j = 0; j < HT_QK; j++) {
        if (x[j] < *min) *min = x[j];
        if (x[j] > *max) *max = x[j];
    }
    if (*min > *max) *min = *max = 0; /* nothing but NaN */
}

void quant__dec_q8_0(const void *src, float *dst, size_t n)
{
    const ht_block_q8_0 *b = src;
    for (size_t i = 0; i < n / HT_QK; i++, dst += HT_QK) {
        float d = ht_load_f16(b[i].d);
        for (int j = 0; j < HT_QK; j++) dst[j] = (float)b[i].q[j] * d;
    }
}

void quant__enc_q8_0(const float *src, void *dst, size_t n)
{
    ht_block_q8_0 *b = dst;
    for (size_t i = 0; i < n / HT_QK; i++, src += HT_QK) {
        float d = fabsf(signed_max(src)) / 127.0f, id = reciprocal(d);
        (void)ht_store_f16(b[i].d, d);
        for (int j = 0; j < HT_QK; j++) b[i].q[j] = (int8_t)truncate(roundf(src[j] * id));
    }
}

void quant__dec_q4_0(const void *src, float *dst, size_t n)
{
    const ht_block_q4_0 *b = src;
    for (size_t i = 0; i < n / HT_QK; i++, dst += HT_QK) {
        float d = ht_load_f16(b[i].d);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)((b[i].q[j] & 15) - 8) * d;
            dst[j + 16] = (float)((b[i].q[j] >> 4) - 8) * d;
        }
    }
}

void quant__enc_q4_0(const float *src, void *dst, size_t n)
{
    ht_block_q4_0 *b = dst;
    for (size_t i = 0; i < n / HT_QK; i++, src += HT_QK) {
        float d = signed_max(src) / -8.0f, id = reciprocal(d);
        (void)ht_store_f16(b[i].d, d);
        for (int j = 0; j < 16; j++) {
            int lo = least(15, truncate(src[j] * id + 8.5f));
            int hi = least(15, truncate(src[j + 16] * id + 8.5f));
            b[i].q[j] = (uint8_t)(lo | hi << 4);
        }
    }
}

void quant__dec_q4_1(const void *src, float *dst, size_t n)
{
    const ht_block_q4_1 *b = src;
    for (size_t i = 0; i < n / HT_QK; i++, dst += HT_QK) {
        float d = ht_load_f16(b[i].d), m = ht_load_f16(b[i].m);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)(b[i].q[j] & 15) * d + m;
            dst[j + 16] = (float)(b[i].q[j] >> 4) * d + m;
        }
    }
}

void quant__enc_q4_1(const float *src, void *dst, size_t n)
{
    ht_block_q4_1 *b = dst;
    for (size_t i = 0; i < n / HT_QK; i++, src += HT_QK) {
        float min, max;
        range(src, &min, &max);
        float d = (max - min) / 15.0f, id = reciprocal(d);
        (void)ht_store_f16(b[i].d, d);
        (void)ht_store_f16(b[i].m, min);
        for (int j = 0; j < 16; j++) {
            int lo = least(15, truncate((src[j] - min) * id + 0.5f));
            int hi = least(15, truncate((src[j + 16] - min) * id + 0.5f));
            b[i].q[j] = (uint8_t)(lo | hi << 4);
        }
    }
}

/* The fifth bits of a block: bit j of the little-endian word belongs to element j. */
static int fifth(const uint8_t h[4], int j)
{
    return (h[j / 8] >> j % 8 & 1) << 4;
}
static void put_five(uint8_t q[16], uint8_t h[4], int j, int lo, int hi)
{
    q[j] = (uint8_t)((lo & 15) | (hi & 15) << 4);
    h[j / 8] = (uint8_t)(h[j / 8] | (lo >> 4 & 1) << j % 8);
    h[j / 8 + 2] = (uint8_t)(h[j / 8 + 2] | (hi >> 4 & 1) << j % 8);
}

void quant__dec_q5_0(const void *src, float *dst, size_t n)
{
    const ht_block_q5_0 *b = src;
    for (size_t i = 0; i < n / HT_QK; i++, dst += HT_QK) {
        float d = ht_load_f16(b[i].d);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)(((b[i].q[j] & 15) | fifth(b[i].h, j)) - 16) * d;
            dst[j + 16] = (float)((b[i].q[j] >> 4 | fifth(b[i].h, j + 16)) - 16) * d;
        }
    }
}

void quant__enc_q5_0(const float *src, void *dst, size_t n)
{
    ht_block_q5_0 *b = dst;
    for (size_t i = 0; i < n / HT_QK; i++, src += HT_QK) {
        float d = signed_max(src) / -16.0f, id = reciprocal(d);
        (void)ht_store_f16(b[i].d, d);
        memset(b[i].h, 0, sizeof b[i].h);
        for (int j = 0; j < 16; j++) {
            int lo = least(31, truncate(src[j] * id + 16.5f));
            int hi = least(31, truncate(src[j + 16] * id + 16.5f));
            put_five(b[i].q, b[i].h, j, lo, hi);
        }
    }
}

void quant__dec_q5_1(const void *src, float *dst, size_t n)
{
    const ht_block_q5_1 *b = src;
    for (size_t i = 0; i < n / HT_QK; i++, dst += HT_QK) {
        float d = ht_load_f16(b[i].d), m = ht_load_f16(b[i].m);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)((b[i].q[j] & 15) | fifth(b[i].h, j)) * d + m;
            dst[j + 16] = (float)(b[i].q[j] >> 4 | fifth(b[i].h, j + 16)) * d + m;
        }
    }
}

void quant__enc_q5_1(const float *src, void *dst, size_t n)
{
    ht_block_q5_1 *b = dst;
    for (size_t i = 0; i < n / HT_QK; i++, src += HT_QK) {
        float min, max;
        range(src, &min, &max);
        float d = (max - min) / 31.0f, id = reciprocal(d);
        (void)ht_store_f16(b[i].d, d);
        (void)ht_store_f16(b[i].m, min);
        memset(b[i].h, 0, sizeof b[i].h);
        for (int j = 0; j < 16; j++)
            put_five(b[i].q, b[i].h, j, truncate((src[j] - min) * id + 0.5f),
                     truncate((src[j + 16] - min) * id + 0.5f));
    }
}

/* Ties to even, as the vector conversion instructions round. NaN counts as -127. A group whose
 * scale is too small to have a reciprocal is zero. */
void ht_act_q8(const float *x, size_t n, int8_t *q, float *d, int32_t *sum)
{
    for (size_t g = 0; g < n / HT_QK; g++, x += HT_QK, q += HT_QK) {
        float scale = fabsf(signed_max(x)) / 127.0f, id = reciprocal(scale);
        if (id > 0x1p126f) scale = id = 0;
        int32_t total = 0;
        for (int j = 0; j < HT_QK; j++) {
            float v = x[j] * id;
            v = v > -127.0f ? v : -127.0f;
            v = v < 127.0f ? v : 127.0f;
            q[j] = (int8_t)lrintf(v);
            total += q[j];
        }
        d[g] = scale;
        sum[g] = total;
    }
}
