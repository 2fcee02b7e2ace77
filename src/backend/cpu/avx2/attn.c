/* attn.c - key panels on AVX2: 16 keys x 8 columns are transposed in registers. */
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
