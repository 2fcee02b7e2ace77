/* q8.c - --act q8 on AVX2: a 32-bit lane per row, four columns in it, a token's four int8 broadcast
 * to all rows. vpmaddubsw multiplies unsigned by signed bytes and adds pairs in 16 bits:
 *   nibbles  0..15: eight products sum to at most 8*2*15*127 = 30480, so one vpmaddwd per 32
 *   columns;
 *   q6_k     |q-32| <= 32: four sum to at most 4*2*32*127 = 32512, one vpmaddwd per 16 columns;
 *   q8_0     |q| <= 128: two products are 32512, so each is widened at once.
 * For the last two the sign goes to the activation (vpsignb; int8 activations are never -128).
 * Integer dot products are exact, so this gives the bits of generic C. */
#include "backend/cpu/avx2/avx2.h"
#include <immintrin.h>
#include <string.h>

/* Straight code for each type and number of tokens; instrumented, it would compile for minutes. */
#ifdef CPU_INSTRUMENTED
#define CPU_UNROLLED 0
#else
#define CPU_UNROLLED 1
#endif

/* Tokens that share a pass over a tile. */
enum { MOST = 6 };

#define INL static inline __attribute__((always_inline))
#include "backend/cpu/body_q8.h"
/* The sum is in a register here: without it compilers make all products of a group first. */
#define PIN(sum) __asm__ volatile("" : "+x"(sum))
typedef struct {
    const uint8_t *q; /* levels                                                                  */
    __m256 d, m, sc0, sc1;
} group8; /* 32 columns of eight rows                                                            */

INL __m256i load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
INL __m256 half8(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INL __m256 bytes8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

KERN void group_q4_k(const uint8_t *w, uint32_t g, int half, group8 *o)
{
    const __m256i low = _mm256_set1_epi32(15), top = _mm256_set1_epi32(0x30);
    const int j = (int)(g % 8);
    w += (size_t)2304 * (g / 8);
    const uint8_t *s = w + 64 + 32 * half;
    __m256i s2 = load(s + 128);
    __m256i sc =
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(load(s), 4 * j), low),
                        _mm256_and_si256(_mm256_srli_epi32(_mm256_slli_epi32(s2, 4), 2 * j), top));
    __m256i mn =
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(load(s + 64), 4 * j), low),
                        _mm256_and_si256(_mm256_srli_epi32(_mm256_srli_epi32(s2, 12), 2 * j), top));
    o->d = _mm256_mul_ps(half8(w + 16 * half), _mm256_cvtepi32_ps(sc));
    o->m = _mm256_mul_ps(_mm256_sub_ps(_mm256_setzero_ps(), half8(w + 32 + 16 * half)),
                         _mm256_cvtepi32_ps(mn));
    o->q = w + 256 + 256 * j + 32 * half;
}

KERN void group_of(const int type, const uint8_t *w, uint32_t g, int half, group8 *o)
{
    if (type == HT_Q4_K) {
        group_q4_k(w, g, half, o);
    } else if (type == HT_Q6_K) {
        const uint32_t j = g % 8;
        w += (size_t)3360 * (g / 8);
        o->d = half8(w + 16 * half);
        o->sc0 = bytes8(w + 32 + CPU_LANES * (2 * j) + 8 * half);
        o->sc1 = bytes8(w + 32 + CPU_LANES * (2 * j + 1) + 8 * half);
        o->q = w + 288 + 384 * j + 32 * half;
    } else {
        w += (size_t)(type == HT_Q8_0 ? 544 : type == HT_Q4_0 ? 288 : 320) * g;
        o->d = half8(w + 16 * half);
        if (type == HT_Q4_1) o->m = half8(w + 32 + 16 * half);
        o->q = w + (type == HT_Q4_1 ? 64 : 32) + 32 * half;
    }
}

/* Bits of every byte of v, moved down by n. */
INL __m256i bits(__m256i v, const int n, int mask)
{
    return _mm256_and_si256(_mm256_srli_epi16(v, n), _mm256_set1_epi8((char)mask));
}

/* Levels of columns 4c to 4c+3: unsigned nibbles, or signed. */
KERN __m256i levels(const int type, const group8 *o, const int c)
{
    const __m256i low = _mm256_set1_epi8(15);
    if (type == HT_Q8_0) return _mm256_xor_si256(load(o->q + 64 * c), _mm256_set1_epi8(-128));
    if (type == HT_Q6_K) {
        const uint8_t *q = o->q + 192 * (c / 4);
        __m256i l;
        if (c % 4 < 3) {
            l = _mm256_and_si256(load(q + 64 * (c % 4)), _mm256_set1_epi8(63));
        } else {
            l = bits(load(q), 6, 3);
            l = _mm256_or_si256(l, bits(load(q + 64), 4, 0x0c));
            l = _mm256_or_si256(l, bits(load(q + 128), 2, 0x30));
        }
        return _mm256_sub_epi8(l, _mm256_set1_epi8(32));
    }
    __m256i l = load(o->q + 64 * (c / 2));
    return _mm256_and_si256(c % 2 ? _mm256_srli_epi16(l, 4) : l, low);
}

/* Columns 4c to 4c+3 of a token, for every row. Written out, because compilers would load those of
 * both halves and of all tokens first and keep them on the stack. */
INL __m256i four(const void *q)
{
    __m256i v;
    __asm__ volatile("vpbroadcastd %1, %0" : "=x"(v) : "m"(*(const int32_t *)q));
    return v;
}

/* A group of 16 rows times nt tokens into the sums acc [2][MOST], eight rows each. Tokens are the
 * inner loop, so that a column's levels are made once, its broadcast serves both halves and the
 * integer sums of all tokens stay in registers. */
KERN void group_times(const int type, const group8 *o, const cpu_q8 *x, size_t at, const int nt,
                      __m256 (*acc)[MOST])
{
    const __m256i one = _mm256_set1_epi16(1);
    const bool nibbles = type != HT_Q8_0 && type != HT_Q6_K;
    const int8_t *q = x->q + at * 32;
    const int32_t *sum = x->sum + at;
    __m256i s[2][MOST];
    __m256 f[2][MOST];
    __asm__("" : "+r"(q)); /* one base for all loads */
    UNROLL(8)
    for (int c = 0; c < 8; c++) {
        const bool first = c == 0 || (type == HT_Q6_K && c == 4);
        const __m256i w[2] = {levels(type, o, c), levels(type, o + 1, c)};
        const __m256i mag[2] = {nibbles ? w[0] : _mm256_abs_epi8(w[0]),
                                nibbles ? w[1] : _mm256_abs_epi8(w[1])};
        UNROLL(8)
        for (int t = 0; t < nt; t++) {
            const __m256i x4 = four(q + 32 * t + 4 * c);
            UNROLL(2)
            for (int h = 0; h < 2; h++) {
                __m256i y = nibbles ? x4 : _mm256_sign_epi8(x4, w[h]);
                y = _mm256_maddubs_epi16(mag[h], y);
                if (type == HT_Q8_0) {
                    y = _mm256_madd_epi16(y, one);
                    s[h][t] = first ? y : _mm256_add_epi32(s[h][t], y);
                } else {
                    s[h][t] = first ? y : _mm256_add_epi16(s[h][t], y);
                }
                PIN(s[h][t]);
                if (type != HT_Q6_K || c % 4 != 3) continue;
                const __m256 v = _mm256_cvtepi32_ps(_mm256_madd_epi16(s[h][t], one));
                f[h][t] =
                    c == 3 ? _mm256_mul_ps(v, o[h].sc0) : _mm256_fmadd_ps(v, o[h].sc1, f[h][t]);
            }
        }
    }
    UNROLL(8)
    for (int t = 0; t < nt; t++) {
        const __m256 d = _mm256_set1_ps(x->d[at + (size_t)t]);
        const __m256i s8 = type == HT_Q4_0 ? _mm256_slli_epi32(four(sum + t), 3) : s[0][t];
        const __m256 ds = _mm256_mul_ps(d, _mm256_cvtepi32_ps(four(sum + t)));
        UNROLL(2)
        for (int h = 0; h < 2; h++) {
            if (nibbles) s[h][t] = _mm256_madd_epi16(s[h][t], one);
            if (type == HT_Q4_0) s[h][t] = _mm256_sub_epi32(s[h][t], s8);
            if (type != HT_Q6_K) f[h][t] = _mm256_cvtepi32_ps(s[h][t]);
            acc[h][t] = _mm256_fmadd_ps(_mm256_mul_ps(o[h].d, d), f[h][t], acc[h][t]);
            if (type == HT_Q4_1 || type == HT_Q4_K)
                acc[h][t] = _mm256_fmadd_ps(o[h].m, ds, acc[h][t]);
        }
    }
}

KERN void tile_times(const int type, const uint8_t *w, uint32_t k, const cpu_q8 *x, uint32_t t0,
                     const int nt, float *c)
{
    __m256 acc[2][MOST];
    group8 o[2];
    for (int h = 0; h < 2; h++)
        for (int t = 0; t < nt; t++) acc[h][t] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < k / 32; g++) {
        fetch(type, w, g);
        group_of(type, w, g, 0, &o[0]);
        group_of(type, w, g, 1, &o[1]);
        group_times(type, o, x, (size_t)g * x->n + t0, nt, acc);
    }
    for (int t = 0; t < nt; t++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(c + t * CPU_LANES + 8 * h, acc[h][t]);
}

/* At most MOST tokens at once, in groups as equal as can be. */
KERN void tile(const int type, const uint8_t *w, uint32_t k, const cpu_q8 *x, uint32_t t0,
               uint32_t nt, float *c)
{
    for (uint32_t n; nt; nt -= n, t0 += n, c += n * CPU_LANES) {
        const uint32_t parts = (nt + MOST - 1) / MOST;
        n = (nt + parts - 1) / parts;
#if !CPU_UNROLLED
        tile_times(type, w, k, x, t0, (int)n, c);
#else
        switch (n) {
        case 1: tile_times(type, w, k, x, t0, 1, c); break;
        case 2: tile_times(type, w, k, x, t0, 2, c); break;
        case 3: tile_times(type, w, k, x, t0, 3, c); break;
        case 4: tile_times(type, w, k, x, t0, 4, c); break;
        case 5: tile_times(type, w, k, x, t0, 5, c); break;
        default: tile_times(type, w, k, x, t0, 6, c); break;
        }
#endif
    }
}

#define Q8_TYPE(name, type)                                                                        \
    void cpu__q8_##name##_avx2(const uint8_t *w, uint32_t k, const cpu_q8 *x, uint32_t t0,         \
                               uint32_t nt, float *c)                                              \
    {                                                                                              \
        tile(type, w, k, x, t0, nt, c);                                                            \
    }
Q8_TYPE(q8_0, HT_Q8_0)
Q8_TYPE(q4_0, HT_Q4_0)
Q8_TYPE(q4_1, HT_Q4_1)
Q8_TYPE(q4_k, HT_Q4_K)
Q8_TYPE(q6_k, HT_Q6_K)

/* ht_act_q8 in vectors: the same scale, and the same integers because vcvtps2dq rounds to nearest
 * even as lrintf does. */
void cpu__act_q8_avx2(const float *x, uint32_t k, uint32_t n, uint32_t t, int8_t *q, float *d,
                      int32_t *sum)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), most = _mm256_set1_ps(127.0f);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (uint32_t g = 0; g < k / 32; g++, x += 32) {
        size_t at = (size_t)g * n + t;
        __m256 v[4], top = _mm256_setzero_ps();
        __m256i r[4];
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            /* NaN in v[i] leaves top as it is: vmaxps returns its second operand. */
            top = _mm256_max_ps(_mm256_andnot_ps(sign, v[i]), top);
        }
        __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
        m4 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
        m4 = _mm_max_ss(m4, _mm_movehdup_ps(m4));
        float scale = _mm_cvtss_f32(m4) / 127.0f, id = scale != 0.0f ? 1.0f / scale : 0.0f;
        if (id > 0x1p126f) scale = id = 0;
        __m256i total = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            __m256 y = _mm256_mul_ps(v[i], _mm256_set1_ps(id));
            y = _mm256_max_ps(y, _mm256_sub_ps(_mm256_setzero_ps(), most));
            y = _mm256_min_ps(y, most);
            r[i] = _mm256_cvtps_epi32(y);
            total = _mm256_add_epi32(total, r[i]);
        }
        __m256i b =
            _mm256_packs_epi16(_mm256_packs_epi32(r[0], r[1]), _mm256_packs_epi32(r[2], r[3]));
        _mm256_storeu_si256((__m256i *)(void *)(q + at * 32),
                            _mm256_permutevar8x32_epi32(b, order));
        __m128i s =
            _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
        d[at] = scale;
        sum[at] = _mm_cvtsi128_si32(s);
    }
}
