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

/* Bytes that weights are asked for before their use: decoding fills the core's window. */
enum { AHEAD = 8192 };

#define INL static inline __attribute__((always_inline))
typedef struct {
    __m256i w[8];   /* four columns a lane, 32 columns                             */
    __m256i mag[8]; /* magnitudes of signed levels                                 */
    __m256 d, m, sc0, sc1;
} group8;

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

INL void nibble_lanes(const uint8_t *q, group8 *o)
{
    const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m256i l = load(q + 64 * c);
        o->w[2 * c] = _mm256_and_si256(l, low);
        o->w[2 * c + 1] = _mm256_and_si256(_mm256_srli_epi16(l, 4), low);
    }
}

INL void group_q4_k(const uint8_t *w, uint32_t g, int half, group8 *o)
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
    nibble_lanes(w + 256 + 256 * j + 32 * half, o);
}

INL void group_q6_k(const uint8_t *w, uint32_t g, int half, group8 *o)
{
    const __m256i lo = _mm256_set1_epi8(15), hi = _mm256_set1_epi8(0x30),
                  zero = _mm256_set1_epi8(32);
    const uint32_t j = g % 8;
    w += (size_t)3360 * (g / 8);
    o->d = half8(w + 16 * half);
    o->sc0 = bytes8(w + 32 + CPU_LANES * (2 * j) + 8 * half);
    o->sc1 = bytes8(w + 32 + CPU_LANES * (2 * j + 1) + 8 * half);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const uint8_t *q = w + 288 + 256 * j + 128 * i + 32 * half;
        __m256i a = load(q), b = load(q + 64),
                h = load(w + 288 + 2048 + 128 * j + 64 * i + 32 * half);
        __m256i v[4] = {
            _mm256_or_si256(_mm256_and_si256(a, lo), _mm256_and_si256(_mm256_slli_epi16(h, 4), hi)),
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), lo),
                            _mm256_and_si256(_mm256_slli_epi16(h, 2), hi)),
            _mm256_or_si256(_mm256_and_si256(b, lo), _mm256_and_si256(h, hi)),
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), lo),
                            _mm256_and_si256(_mm256_srli_epi16(h, 2), hi))};
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            o->w[4 * i + c] = _mm256_sub_epi8(v[c], zero);
            o->mag[4 * i + c] = _mm256_abs_epi8(o->w[4 * i + c]);
        }
    }
}

INL void group_of(const int type, const uint8_t *w, uint32_t g, int half, group8 *o)
{
    if (type == HT_Q4_K) {
        group_q4_k(w, g, half, o);
    } else if (type == HT_Q6_K) {
        group_q6_k(w, g, half, o);
    } else if (type == HT_Q8_0) {
        w += (size_t)544 * g;
        o->d = half8(w + 16 * half);
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++) {
            o->w[c] = _mm256_xor_si256(load(w + 32 + 64 * c + 32 * half), _mm256_set1_epi8(-128));
            o->mag[c] = _mm256_abs_epi8(o->w[c]);
        }
    } else {
        w += (size_t)(type == HT_Q4_0 ? 288 : 320) * g;
        o->d = half8(w + 16 * half);
        if (type == HT_Q4_1) o->m = half8(w + 32 + 16 * half);
        nibble_lanes(w + (type == HT_Q4_0 ? 32 : 64) + 32 * half, o);
    }
}

INL __m256i four(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm256_set1_epi32(v);
}

/* The group's integer dot products with one token, as floats (q6_k: scales applied, still
 * exact). */
INL __m256 dot(const int type, const group8 *o, const int8_t *q, int32_t sum)
{
    const __m256i one = _mm256_set1_epi16(1);
    if (type == HT_Q8_0) {
        __m256i a = _mm256_setzero_si256(), b = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2) {
            __m256i p = _mm256_maddubs_epi16(o->mag[i], _mm256_sign_epi8(four(q + 4 * i), o->w[i]));
            __m256i r = _mm256_maddubs_epi16(o->mag[i + 1],
                                             _mm256_sign_epi8(four(q + 4 * i + 4), o->w[i + 1]));
            a = _mm256_add_epi32(a, _mm256_madd_epi16(p, one));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(r, one));
        }
        return _mm256_cvtepi32_ps(_mm256_add_epi32(a, b));
    }
    if (type == HT_Q6_K) {
        __m256i s[2];
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m256i p[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                p[i] = _mm256_maddubs_epi16(
                    o->mag[4 * h + i], _mm256_sign_epi8(four(q + 16 * h + 4 * i), o->w[4 * h + i]));
            s[h] = _mm256_madd_epi16(
                _mm256_add_epi16(_mm256_add_epi16(p[0], p[1]), _mm256_add_epi16(p[2], p[3])), one);
        }
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[1]), o->sc1,
                               _mm256_mul_ps(_mm256_cvtepi32_ps(s[0]), o->sc0));
    }
    __m256i a = _mm256_maddubs_epi16(o->w[0], four(q)),
            b = _mm256_maddubs_epi16(o->w[1], four(q + 4));
#pragma GCC unroll 3
    for (int i = 2; i < 8; i += 2) {
        a = _mm256_add_epi16(a, _mm256_maddubs_epi16(o->w[i], four(q + 4 * i)));
        b = _mm256_add_epi16(b, _mm256_maddubs_epi16(o->w[i + 1], four(q + 4 * i + 4)));
    }
    __m256i s = _mm256_madd_epi16(_mm256_add_epi16(a, b), one);
    if (type == HT_Q4_0) s = _mm256_sub_epi32(s, _mm256_set1_epi32(8 * sum));
    return _mm256_cvtepi32_ps(s);
}

INL __m256 accumulate(const int type, const group8 *o, const cpu_q8 *x, size_t at, __m256 acc)
{
    __m256 dx = _mm256_set1_ps(x->d[at]), s = dot(type, o, x->q + at * 32, x->sum[at]);
    acc = _mm256_fmadd_ps(_mm256_mul_ps(o->d, dx), s, acc);
    if (type == HT_Q4_1 || type == HT_Q4_K)
        acc = _mm256_fmadd_ps(o->m, _mm256_set1_ps(x->d[at] * (float)x->sum[at]), acc);
    return acc;
}

/* Ask for the bytes of a group of 32 columns that come AHEAD of group g. */
INL void fetch(const int type, const uint8_t *w, uint32_t g)
{
    const uint32_t bytes = type == HT_Q8_0   ? 544
                           : type == HT_Q4_1 ? 320
                           : type == HT_Q6_K ? 420
                                             : 288;
    const uint8_t *p = w + (size_t)g * bytes + AHEAD;
#pragma GCC unroll 9
    for (uint32_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

/* One token keeps its sums in registers; more go through c, which stays in L1, so that a group is
 * decoded once for all of them. */
INL void tile(const int type, const uint8_t *w, uint32_t k, const cpu_q8 *x, uint32_t t0,
              uint32_t nt, float *c)
{
    const uint32_t groups = k / 32;
    group8 o;
    if (nt == 1) {
        __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (uint32_t g = 0; g < groups; g++) {
            fetch(type, w, g);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                group_of(type, w, g, h, &o);
                acc[h] = accumulate(type, &o, x, (size_t)g * x->n + t0, acc[h]);
            }
        }
        _mm256_storeu_ps(c, acc[0]);
        _mm256_storeu_ps(c + 8, acc[1]);
        return;
    }
    memset(c, 0, (size_t)nt * CPU_LANES * sizeof *c);
    for (uint32_t g = 0; g < groups; g++) {
        fetch(type, w, g);
        for (int h = 0; h < 2; h++) {
            size_t at = (size_t)g * x->n + t0;
            float *p = c + 8 * h;
            group_of(type, w, g, h, &o);
            for (uint32_t t = 0; t < nt; t++, at++, p += CPU_LANES)
                _mm256_storeu_ps(p, accumulate(type, &o, x, at, _mm256_loadu_ps(p)));
        }
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
