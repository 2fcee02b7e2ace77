/* vnni.c - --act q8 on AVX-512 VNNI: vpdpbusd multiplies four unsigned bytes of a lane by four
 * signed ones and adds them to 32 bits exactly, so levels stay unsigned and their offset (128,
 * 8, 32) is taken off with the sum of the activations. The same bits as generic C. */
#include "backend/cpu/avx512/avx512.h"
#include <immintrin.h>
#include <string.h>

/* The directory is compiled without VNNI: not every AVX-512 processor has it. */
#define VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define INL  static inline __attribute__((always_inline)) VNNI
typedef struct {
    __m512i w[8];
    __m512 d, m, sc0, sc1;
} group16;

INL __m512i load(const uint8_t *p)
{
    return _mm512_loadu_si512((const void *)p);
}
INL __m512 half16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INL __m512 bytes16(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
INL __m512i low_nibbles(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

INL void nibble_lanes(const uint8_t *q, group16 *o)
{
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512i l = load(q + 64 * c);
        o->w[2 * c] = low_nibbles(l);
        o->w[2 * c + 1] = low_nibbles(_mm512_srli_epi16(l, 4));
    }
}

/* Bits n.. of v, masked. */
INL __m512i field(__m512i v, uint32_t n, int mask)
{
    return _mm512_and_si512(_mm512_srl_epi32(v, _mm_cvtsi32_si128((int)n)),
                            _mm512_set1_epi32(mask));
}

INL void group_q4_k(const uint8_t *w, uint32_t g, group16 *o)
{
    const uint32_t j = g % 8;
    w += (size_t)2304 * (g / 8);
    __m512i s2 = load(w + 192);
    __m512i sc =
        _mm512_or_si512(field(load(w + 64), 4 * j, 15), _mm512_slli_epi32(field(s2, 2 * j, 3), 4));
    __m512i mn = _mm512_or_si512(field(load(w + 128), 4 * j, 15),
                                 _mm512_slli_epi32(field(s2, 16 + 2 * j, 3), 4));
    o->d = _mm512_mul_ps(half16(w), _mm512_cvtepi32_ps(sc));
    o->m =
        _mm512_mul_ps(_mm512_sub_ps(_mm512_setzero_ps(), half16(w + 32)), _mm512_cvtepi32_ps(mn));
    nibble_lanes(w + 256 + 256 * j, o);
}

INL void group_q6_k(const uint8_t *w, uint32_t g, group16 *o)
{
    const __m512i top = _mm512_set1_epi8(0x30);
    const uint32_t j = g % 8;
    w += (size_t)3360 * (g / 8);
    o->d = half16(w);
    o->sc0 = bytes16(w + 32 + CPU_LANES * (2 * j));
    o->sc1 = bytes16(w + 32 + CPU_LANES * (2 * j + 1));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const uint8_t *q = w + 288 + 256 * j + 128 * i;
        __m512i a = load(q), b = load(q + 64), h = load(w + 288 + 2048 + 128 * j + 64 * i);
        o->w[4 * i] =
            _mm512_or_si512(low_nibbles(a), _mm512_and_si512(_mm512_slli_epi16(h, 4), top));
        o->w[4 * i + 1] = _mm512_or_si512(low_nibbles(_mm512_srli_epi16(a, 4)),
                                          _mm512_and_si512(_mm512_slli_epi16(h, 2), top));
        o->w[4 * i + 2] = _mm512_or_si512(low_nibbles(b), _mm512_and_si512(h, top));
        o->w[4 * i + 3] = _mm512_or_si512(low_nibbles(_mm512_srli_epi16(b, 4)),
                                          _mm512_and_si512(_mm512_srli_epi16(h, 2), top));
    }
}

INL void group_of(const int type, const uint8_t *w, uint32_t g, group16 *o)
{
    if (type == HT_Q4_K) {
        group_q4_k(w, g, o);
    } else if (type == HT_Q6_K) {
        group_q6_k(w, g, o);
    } else if (type == HT_Q8_0) {
        w += (size_t)544 * g;
        o->d = half16(w);
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++) o->w[c] = load(w + 32 + 64 * c);
    } else {
        w += (size_t)(type == HT_Q4_0 ? 288 : 320) * g;
        o->d = half16(w);
        if (type == HT_Q4_1) o->m = half16(w + 32);
        nibble_lanes(w + (type == HT_Q4_0 ? 32 : 64), o);
    }
}

INL __m512i four(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm512_set1_epi32(v);
}

INL __m512 dot(const int type, const group16 *o, const int8_t *q, int32_t sum)
{
    __m512i a = _mm512_setzero_si512(), b = _mm512_setzero_si512();
    if (type == HT_Q6_K) {
        const __m512i one = _mm512_set1_epi8(1);
        __m512i sa = a, sb = b; /* sums of the activations of either group of 16 */
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            a = _mm512_dpbusd_epi32(a, o->w[i], four(q + 4 * i));
            b = _mm512_dpbusd_epi32(b, o->w[i + 4], four(q + 16 + 4 * i));
            sa = _mm512_dpbusd_epi32(sa, one, four(q + 4 * i));
            sb = _mm512_dpbusd_epi32(sb, one, four(q + 16 + 4 * i));
        }
        a = _mm512_sub_epi32(a, _mm512_slli_epi32(sa, 5));
        b = _mm512_sub_epi32(b, _mm512_slli_epi32(sb, 5));
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(b), o->sc1,
                               _mm512_mul_ps(_mm512_cvtepi32_ps(a), o->sc0));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        a = _mm512_dpbusd_epi32(a, o->w[i], four(q + 4 * i));
        b = _mm512_dpbusd_epi32(b, o->w[i + 1], four(q + 4 * i + 4));
    }
    a = _mm512_add_epi32(a, b);
    if (type == HT_Q4_0) a = _mm512_sub_epi32(a, _mm512_set1_epi32(8 * sum));
    if (type == HT_Q8_0) a = _mm512_sub_epi32(a, _mm512_set1_epi32(128 * sum));
    return _mm512_cvtepi32_ps(a);
}

INL __m512 accumulate(const int type, const group16 *o, const cpu_q8 *x, size_t at, __m512 acc)
{
    __m512 s = dot(type, o, x->q + at * 32, x->sum[at]);
    acc = _mm512_fmadd_ps(_mm512_mul_ps(o->d, _mm512_set1_ps(x->d[at])), s, acc);
    if (type == HT_Q4_1 || type == HT_Q4_K)
        acc = _mm512_fmadd_ps(o->m, _mm512_set1_ps(x->d[at] * (float)x->sum[at]), acc);
    return acc;
}

INL void tile(const int type, const uint8_t *w, uint32_t k, const cpu_q8 *x, uint32_t t0,
              uint32_t nt, float *c)
{
    group16 o;
    memset(c, 0, (size_t)nt * CPU_LANES * sizeof *c);
    for (uint32_t g = 0; g < k / 32; g++) {
        size_t at = (size_t)g * x->n + t0;
        float *p = c;
        group_of(type, w, g, &o);
        for (uint32_t t = 0; t < nt; t++, at++, p += CPU_LANES)
            _mm512_storeu_ps(p, accumulate(type, &o, x, at, _mm512_loadu_ps(p)));
    }
}

#define Q8_TYPE(name, type)                                                                        \
    VNNI static void q8_##name(const uint8_t *w, uint32_t k, const cpu_q8 *x, uint32_t t0,         \
                               uint32_t nt, float *c)                                              \
    {                                                                                              \
        tile(type, w, k, x, t0, nt, c);                                                            \
    }
Q8_TYPE(q8_0, HT_Q8_0)
Q8_TYPE(q4_0, HT_Q4_0)
Q8_TYPE(q4_1, HT_Q4_1)
Q8_TYPE(q4_k, HT_Q4_K)
Q8_TYPE(q6_k, HT_Q6_K)

void cpu__q8_vnni(cpu_kern *k)
{
    k->q8[HT_Q8_0] = q8_q8_0;
    k->q8[HT_Q4_0] = q8_q4_0;
    k->q8[HT_Q4_1] = q8_q4_1;
    k->q8[HT_Q4_K] = q8_q4_k;
    k->q8[HT_Q6_K] = q8_q6_k;
}
