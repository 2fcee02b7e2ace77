/* kquant.c - the super-blocks of 256 elements: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
 *
 * Decoding: the group's scale d*sc has at most 11+7 significant bits and times a level of at most
 * six bits still fits float32, so the products are exact; formats with a minimum round once, at the
 * subtraction. Encoding: fit each group (kfit.c), quantise the groups' scales against the largest,
 * then choose the levels again for the scales as they will be read back. */
#include "quant/blocks.h"
#include "quant/kfit.h"

/* ---- decode ---------------------------------------------------------------------------------- */

void quant__dec_q2_k(const void *src, float *dst, size_t n)
{
    const ht_block_q2_k *b = src;
    for (size_t i = 0; i < n / HT_QK_K; i++, dst += HT_QK_K) {
        float d = ht_load_f16(b[i].d), dmin = ht_load_f16(b[i].dmin);
        for (int e = 0; e < HT_QK_K; e++) {
            int sc = b[i].sc[e / 16], q = b[i].q[e / 128 * 32 + e % 32] >> 2 * (e / 32 % 4) & 3;
            dst[e] = d * (float)(sc & 15) * (float)q - dmin * (float)(sc >> 4);
        }
    }
}

void quant__dec_q3_k(const void *src, float *dst, size_t n)
{
    const ht_block_q3_k *b = src;
    for (size_t i = 0; i < n / HT_QK_K; i++, dst += HT_QK_K) {
        float d = ht_load_f16(b[i].d);
        for (int e = 0; e < HT_QK_K; e++) {
            int q = b[i].q[e / 128 * 32 + e % 32] >> 2 * (e / 32 % 4) & 3;
            int high = b[i].h[e % 32] >> e / 32 & 1;
            dst[e] = d * (float)ht_q3k_scale(b[i].sc, e / 16) * (float)(q + 4 * high - 4);
        }
    }
}

void quant__dec_q4_k(const void *src, float *dst, size_t n)
{
    const ht_block_q4_k *b = src;
    for (size_t i = 0; i < n / HT_QK_K; i++) {
        float d = ht_load_f16(b[i].d), dmin = ht_load_f16(b[i].dmin);
        for (int j = 0; j < 8; j++, dst += 32) {
            int sc, m;
            ht_q4k_scale(b[i].sc, j, &sc, &m);
            float scale = d * (float)sc, min = dmin * (float)m;
            for (int l = 0; l < 32; l++)
                dst[l] = scale * (float)(b[i].q[j / 2 * 32 + l] >> 4 * (j % 2) & 15) - min;
        }
    }
}

void quant__dec_q5_k(const void *src, float *dst, size_t n)
{
    const ht_block_q5_k *b = src;
    for (size_t i = 0; i < n / HT_QK_K; i++) {
        float d = ht_load_f16(b[i].d), dmin = ht_load_f16(b[i].dmin);
        for (int j = 0; j < 8; j++, dst += 32) {
            int sc, m;
            ht_q4k_scale(b[i].sc, j, &sc, &m);
            float scale = d * (float)sc, min = dmin * (float)m;
            for (int l = 0; l < 32; l++) {
                int q = b[i].q[j / 2 * 32 + l] >> 4 * (j % 2) & 15;
                dst[l] = scale * (float)(q | (b[i].h[l] >> j & 1) << 4) - min;
            }
        }
    }
}

void quant__dec_q6_k(const void *src, float *dst, size_t n)
{
    const ht_block_q6_k *b = src;
    for (size_t i = 0; i < n / HT_QK_K; i++, dst += HT_QK_K) {
        float d = ht_load_f16(b[i].d);
        for (int e = 0; e < HT_QK_K; e++) {
            int half = e / 128, part = e / 32 % 4; /* part: which 32 of the half */
            int lo = b[i].lo[half * 64 + e % 64] >> 4 * (part / 2) & 15;
            int hi = b[i].hi[half * 32 + e % 32] >> 2 * part & 3;
            dst[e] = d * (float)b[i].sc[e / 16] * (float)((lo | hi << 4) - 32);
        }
    }
}

/* ---- encode ---------------------------------------------------------------------------------- */

/* The fit of a super-block before its scales are quantised. */
typedef struct {
    uint8_t level[HT_QK_K];
    float scale[16], min[16];
    float max_scale, max_min;
} fit;

/* How the elements of a group of Q4_K and Q5_K weigh: large ones more, none nothing. */
static void weights_rms(const float *x, int n, float *w)
{
    float sum = 0;
    for (int l = 0; l < n; l++) sum += x[l] * x[l];
    float rms = sqrtf(sum / (float)n);
    for (int l = 0; l < n; l++) w[l] = rms + fabsf(x[l]);
}

static void fit_affine(const ht_kfit *how, const float *x, fit *f)
{
    float w[HT_KFIT_MAX];
    f->max_scale = f->max_min = 0;
    for (int j = 0; j < HT_QK_K / how->n; j++) {
        const float *g = x + j * how->n;
        if (how->absolute)
            for (int l = 0; l < how->n; l++) w[l] = fabsf(g[l]);
        else weights_rms(g, how->n, w);
        f->scale[j] = quant__fit_affine(how, g, w, f->level + j * how->n, &f->min[j]);
        if (f->scale[j] > f->max_scale) f->max_scale = f->scale[j];
        if (f->min[j] > f->max_min) f->max_min = f->min[j];
    }
}

/* Levels 0..nmax of group j again, for x = d*level - m. */
static void relevel(fit *f, const float *x, int n, int j, int nmax, float d, float m)
{
    if (d == 0) return;
    for (int l = 0; l < n; l++)
        f->level[j * n + l] = (uint8_t)ht_clamp(ht_round_even((x[j * n + l] + m) / d), 0, nmax);
}

/* The scale of largest magnitude, its sign kept; the first of equals. */
static float largest(const float scale[16])
{
    float max = 0;
    for (int j = 0; j < 16; j++)
        if (fabsf(scale[j]) > fabsf(max)) max = scale[j];
    return max;
}

/* Two bits of each element, in q2_k's and q3_k's order. */
static void put_two_bits(uint8_t q[64], const uint8_t level[HT_QK_K])
{
    memset(q, 0, 64);
    for (int e = 0; e < HT_QK_K; e++) {
        uint8_t *at = q + e / 128 * 32 + e % 32;
        *at = (uint8_t)(*at | (level[e] & 3) << 2 * (e / 32 % 4));
    }
}

void quant__enc_q2_k(const float *src, void *dst, size_t n)
{
    static const ht_kfit how = {16, 3, -0.5f, 0.1f, 15, true};
    ht_block_q2_k *b = dst;
    for (size_t i = 0; i < n / HT_QK_K; i++, src += HT_QK_K) {
        fit f;
        fit_affine(&how, src, &f);
        float inv_scale = f.max_scale > 0 ? 15.0f / f.max_scale : 0;
        float inv_min = f.max_min > 0 ? 15.0f / f.max_min : 0;
        float d = ht_store_f16(b[i].d, f.max_scale > 0 ? f.max_scale / 15.0f : 0);
        float dmin = ht_store_f16(b[i].dmin, f.max_min > 0 ? f.max_min / 15.0f : 0);
        for (int j = 0; j < 16; j++) {
            int sc = ht_clamp(ht_round_even(inv_scale * f.scale[j]), 0, 15);
            int m = ht_clamp(ht_round_even(inv_min * f.min[j]), 0, 15);
            b[i].sc[j] = (uint8_t)(sc | m << 4);
            relevel(&f, src, 16, j, 3, d * (float)sc, dmin * (float)m);
        }
        put_two_bits(b[i].q, f.level);
    }
}

void quant__enc_q3_k(const float *src, void *dst, size_t n)
{
    ht_block_q3_k *b = dst;
    for (size_t i = 0; i < n / HT_QK_K; i++, src += HT_QK_K) {
        fit f;
        for (int j = 0; j < 16; j++)
            f.scale[j] = quant__fit_descent(16, 4, src + 16 * j, f.level + 16 * j);
        float max = largest(f.scale);
        float iscale = max != 0 ? -32.0f / max : 0;
        float d = ht_store_f16(b[i].d, max != 0 ? 1 / iscale : 0);
        memset(b[i].sc, 0, sizeof b[i].sc);
        for (int j = 0; max != 0 && j < 16; j++) {
            int sc = ht_clamp(ht_round_even(iscale * f.scale[j]), -32, 31) + 32;
            b[i].sc[j % 8] = (uint8_t)(b[i].sc[j % 8] | (sc & 15) << 4 * (j / 8));
            b[i].sc[8 + j % 4] = (uint8_t)(b[i].sc[8 + j % 4] | (sc >> 4) << 2 * (j / 4));
        }
        memset(b[i].h, 0, sizeof b[i].h);
        for (int j = 0; j < 16; j++) {
            float scale = d * (float)ht_q3k_scale(b[i].sc, j);
            for (int e = 16 * j; e < 16 * j + 16; e++) {
                if (scale != 0)
                    f.level[e] = (uint8_t)(ht_clamp(ht_round_even(src[e] / scale), -4, 3) + 4);
                if (f.level[e] > 3) b[i].h[e % 32] = (uint8_t)(b[i].h[e % 32] | 1 << e / 32);
            }
        }
        put_two_bits(b[i].q, f.level);
    }
}

/* Scales of q4_k and q5_k: quantise, pack, and choose the levels for what a decoder will see. */
static void put_scales(fit *f, const float *x, int nmax, uint8_t d16[2], uint8_t dmin16[2],
                       uint8_t sc[12])
{
    float inv_scale = f->max_scale > 0 ? 63.0f / f->max_scale : 0;
    float inv_min = f->max_min > 0 ? 63.0f / f->max_min : 0;
    float d = ht_store_f16(d16, f->max_scale / 63.0f);
    float dmin = ht_store_f16(dmin16, f->max_min / 63.0f);
    for (int j = 0; j < 8; j++) {
        int s = ht_clamp(ht_round_even(inv_scale * f->scale[j]), 0, 63);
        int m = ht_clamp(ht_round_even(inv_min * f->min[j]), 0, 63);
        if (j < 4) {
            sc[j] = (uint8_t)s;
            sc[j + 4] = (uint8_t)m;
        } else {
            sc[j + 4] = (uint8_t)((s & 15) | (m & 15) << 4);
            sc[j - 4] = (uint8_t)(sc[j - 4] | s >> 4 << 6);
            sc[j] = (uint8_t)(sc[j] | m >> 4 << 6);
        }
        relevel(f, x, 32, j, nmax, d * (float)s, dmin * (float)m);
    }
}
static void put_nibbles(uint8_t q[128], const uint8_t level[HT_QK_K])
{
    for (int a = 0; a < 4; a++)
        for (int l = 0; l < 32; l++)
            q[32 * a + l] =
                (uint8_t)((level[64 * a + l] & 15) | (level[64 * a + 32 + l] & 15) << 4);
}

void quant__enc_q4_k(const float *src, void *dst, size_t n)
{
    static const ht_kfit how = {32, 15, -1.0f, 0.1f, 20, false};
    ht_block_q4_k *b = dst;
    for (size_t i = 0; i < n / HT_QK_K; i++, src += HT_QK_K) {
        fit f;
        fit_affine(&how, src, &f);
        put_scales(&f, src, 15, b[i].d, b[i].dmin, b[i].sc);
        put_nibbles(b[i].q, f.level);
    }
}

void quant__enc_q5_k(const float *src, void *dst, size_t n)
{
    static const ht_kfit how = {32, 31, -0.5f, 0.1f, 15, false};
    ht_block_q5_k *b = dst;
    for (size_t i = 0; i < n / HT_QK_K; i++, src += HT_QK_K) {
        fit f;
        fit_affine(&how, src, &f);
        put_scales(&f, src, 31, b[i].d, b[i].dmin, b[i].sc);
        put_nibbles(b[i].q, f.level);
        memset(b[i].h, 0, sizeof b[i].h);
        for (int e = 0; e < HT_QK_K; e++)
            b[i].h[e % 32] = (uint8_t)(b[i].h[e % 32] | f.level[e] >> 4 << e / 32);
    }
}

void quant__enc_q6_k(const float *src, void *dst, size_t n)
{
    ht_block_q6_k *b = dst;
    for (size_t i = 0; i < n / HT_QK_K; i++, src += HT_QK_K) {
        fit f;
        for (int j = 0; j < 16; j++)
            f.scale[j] = quant__fit_signed(16, 32, src + 16 * j, f.level + 16 * j);
        float max = largest(f.scale);
        memset(&b[i], 0, sizeof b[i]);
        if (fabsf(max) < 1e-15f) continue; /* d = 0: the block is zero */
        float iscale = -128.0f / max, d = ht_store_f16(b[i].d, 1 / iscale);
        for (int j = 0; j < 16; j++) {
            b[i].sc[j] = (int8_t)ht_clamp(ht_round_even(iscale * f.scale[j]), -128, 127);
            float scale = d * (float)b[i].sc[j];
            for (int e = 16 * j; e < 16 * j + 16; e++) {
                if (scale != 0)
                    f.level[e] = (uint8_t)(ht_clamp(ht_round_even(src[e] / scale), -32, 31) + 32);
                uint8_t *lo = &b[i].lo[e / 128 * 64 + e % 64],
                        *hi = &b[i].hi[e / 128 * 32 + e % 32];
                *lo = (uint8_t)(*lo | (f.level[e] & 15) << 4 * (e / 64 % 2));
                *hi = (uint8_t)(*hi | f.level[e] >> 4 << 2 * (e / 32 % 4));
            }
        }
    }
}
