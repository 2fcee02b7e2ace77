/* attn.c - attention on AVX2: key panels, 16 keys x 8 columns transposed in registers, and the
 * products of a few (row, query head) pairs straight from the halves of a page. */
#include "backend/cpu/avx2/avx2.h"
#include <immintrin.h>
#include <string.h>

/* Rows 0-7 of eight columns to columns of eight rows. */
static inline __attribute__((always_inline)) void transpose8(__m256 r[8])
{
    __m256 a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
        b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
        b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
        b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

static inline __attribute__((always_inline)) __m256 eight(const void *rows, size_t at, int half)
{
    if (half)
        return _mm256_cvtph_ps(
            _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)rows + at)));
    return _mm256_loadu_ps((const float *)rows + at);
}

/* Columns past the last eight: one value at a time. */
static void panel_slow(const void *rows, int half, uint32_t hd, uint32_t d0, uint32_t n,
                       float *panel)
{
    for (uint32_t d = d0; d < hd; d++)
        for (uint32_t r = 0; r < CPU_LANES; r++) {
            size_t at = (size_t)r * hd + d;
            panel[(size_t)d * CPU_LANES + r] =
                r >= n ? 0.0f
                       : (half ? ht_f16_to_f32(((const uint16_t *)rows)[at])
                               : ((const float *)rows)[at]);
        }
}

static inline __attribute__((always_inline)) void k_panel(const void *rows, const int half,
                                                          uint32_t hd, uint32_t n, float *panel)
{
    uint32_t d = 0;
    for (; d + 8 <= hd; d += 8)
        for (uint32_t h = 0; h < 2; h++) {
            __m256 r[8];
            for (uint32_t i = 0; i < 8; i++)
                r[i] = 8 * h + i < n ? eight(rows, (size_t)(8 * h + i) * hd + d, half)
                                     : _mm256_setzero_ps();
            transpose8(r);
            for (uint32_t i = 0; i < 8; i++)
                _mm256_storeu_ps(panel + (size_t)(d + i) * CPU_LANES + 8 * h, r[i]);
        }
    if (d < hd) panel_slow(rows, half, hd, d, n, panel);
}

void cpu__k_panel_f16_avx2(const void *rows, uint32_t hd, uint32_t n, float *panel)
{
    k_panel(rows, 1, hd, n, panel);
}
void cpu__k_panel_f32_avx2(const void *rows, uint32_t hd, uint32_t n, float *panel)
{
    k_panel(rows, 0, hd, n, panel);
}

/* Columns [0, 16) of 8 rows of halves, transposed within each 128-bit lane: out[i] holds column i
 * of the 8 rows and, above it, column 8 + i. */
static inline __attribute__((always_inline)) void halves16(const uint16_t *rows, size_t ld,
                                                           uint32_t n, __m256i out[8])
{
    __m256i r[8], a[8], c[8];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; i++)
        r[i] = i < n ? _mm256_loadu_si256((const __m256i *)(const void *)(rows + i * ld))
                     : _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        a[4 + i] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        c[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        c[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        out[4 * i] = _mm256_unpacklo_epi64(c[4 * i], c[4 * i + 2]);
        out[4 * i + 1] = _mm256_unpackhi_epi64(c[4 * i], c[4 * i + 2]);
        out[4 * i + 2] = _mm256_unpacklo_epi64(c[4 * i + 1], c[4 * i + 3]);
        out[4 * i + 3] = _mm256_unpackhi_epi64(c[4 * i + 1], c[4 * i + 3]);
    }
}

/* Two octets of keys against nq queries: four chains and more. As many bytes as the keys have are
 * asked for from `ahead` on, a little with every step. */
static inline __attribute__((always_inline)) void scores16(const int nq, const uint16_t *rows,
                                                           uint32_t hd, uint32_t n, const float *q,
                                                           size_t ldq, float *s, size_t lds,
                                                           const uint8_t *ahead)
{
    __m256 acc[8];
    const uint32_t n0 = n < 8 ? n : 8, n1 = n - n0;
#pragma GCC unroll 8
    for (int i = 0; i < 2 * nq; i++) acc[i] = _mm256_setzero_ps();
    for (uint32_t d = 0; d < hd; d += 16) {
        __m256i k0[8], k1[8];
#pragma GCC unroll 8
        for (uint32_t j = 0; j < 512; j += 64) __builtin_prefetch(ahead + 32 * (size_t)d + j, 0, 2);
        halves16(rows + d, hd, n0, k0);
        halves16(rows + 8 * (size_t)hd + d, hd, n1, k1);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                __m256 a = _mm256_cvtph_ps(h ? _mm256_extracti128_si256(k0[i], 1)
                                             : _mm256_castsi256_si128(k0[i]));
                __m256 b = _mm256_cvtph_ps(h ? _mm256_extracti128_si256(k1[i], 1)
                                             : _mm256_castsi256_si128(k1[i]));
#pragma GCC unroll 4
                for (int t = 0; t < nq; t++) {
                    __m256 x = _mm256_broadcast_ss(q + (size_t)t * ldq + d + 8 * (uint32_t)h +
                                                   (uint32_t)i);
                    acc[2 * t] = _mm256_fmadd_ps(a, x, acc[2 * t]);
                    acc[2 * t + 1] = _mm256_fmadd_ps(b, x, acc[2 * t + 1]);
                }
            }
    }
#pragma GCC unroll 4
    for (int t = 0; t < nq; t++) {
        _mm256_storeu_ps(s + (size_t)t * lds, acc[2 * t]);
        _mm256_storeu_ps(s + (size_t)t * lds + 8, acc[2 * t + 1]);
    }
}

void cpu__few_scores_avx2(const uint16_t *rows, uint32_t hd, uint32_t n, const float *q, size_t ldq,
                          uint32_t nq, float *s, size_t lds, const void *next)
{
    for (uint32_t j = 0; j < n; j += CPU_LANES) {
        const uint16_t *k = rows + (size_t)j * hd;
        const uint8_t *ahead = next ? (const uint8_t *)next + 2 * (size_t)j * hd : (const void *)k;
        uint32_t m = n - j < CPU_LANES ? n - j : CPU_LANES;
        switch (nq) {
        case 1: scores16(1, k, hd, m, q, ldq, s + j, lds, ahead); break;
        case 2: scores16(2, k, hd, m, q, ldq, s + j, lds, ahead); break;
        case 3: scores16(3, k, hd, m, q, ldq, s + j, lds, ahead); break;
        default: scores16(4, k, hd, m, q, ldq, s + j, lds, ahead); break;
        }
    }
}

/* 32 columns, a cache line of every key, for one or two pairs; with every key the line `step` bytes
 * further is asked for. */
static inline __attribute__((always_inline)) void values32(const int nq, const uint16_t *rows,
                                                           uint32_t hd, uint32_t n, const float *p,
                                                           size_t ldp, float *o, size_t ldo,
                                                           int add, const uint8_t *ahead,
                                                           size_t step)
{
    __m256 acc[8];
#pragma GCC unroll 8
    for (int i = 0; i < 4 * nq; i++)
        acc[i] =
            add ? _mm256_loadu_ps(o + (size_t)(i / 4) * ldo + 8 * (i % 4)) : _mm256_setzero_ps();
    for (uint32_t j = 0; j < n; j++, rows += hd) {
        __builtin_prefetch(ahead + j * step, 0, 2);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            __m256 v =
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(rows + 8 * c)));
#pragma GCC unroll 2
            for (int t = 0; t < nq; t++)
                acc[4 * t + c] = _mm256_fmadd_ps(v, _mm256_broadcast_ss(p + (size_t)t * ldp + j),
                                                 acc[4 * t + c]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 4 * nq; i++)
        _mm256_storeu_ps(o + (size_t)(i / 4) * ldo + 8 * (i % 4), acc[i]);
}

void cpu__few_values_avx2(const uint16_t *rows, uint32_t hd, uint32_t n, const float *p, size_t ldp,
                          uint32_t nq, float *o, size_t ldo, int add, const void *next)
{
    for (uint32_t t = 0; t < nq; t += 2, p += 2 * ldp, o += 2 * ldo)
        for (uint32_t d = 0; d < hd; d += 32) {
            const bool ask = next && t == 0;
            const uint8_t *ahead =
                ask ? (const uint8_t *)next + 2 * (size_t)n * d : (const void *)(rows + d);
            const size_t step = ask ? 64 : 0;
            if (nq - t > 1) values32(2, rows + d, hd, n, p, ldp, o + d, ldo, add, ahead, step);
            else values32(1, rows + d, hd, n, p, ldp, o + d, ldo, add, ahead, step);
        }
}
