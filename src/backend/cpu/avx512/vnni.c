/* vnni.c - --act q8 on AVX-512 VNNI: vpdpbusd multiplies four unsigned bytes of a lane by four
 * signed ones and adds them to 32 bits exactly, so levels stay unsigned and their offset (128,
 * 8, 32) is taken off with the sum of the activations: the integer sums begin at minus the offset
 * times that sum. The same bits as generic C.
 *
 * A group of 16 rows is unpacked once for up to MOST tokens, whose sums stay in registers. The
 * four bytes of a token come as the memory operand of each vpdpbusd (an embedded broadcast), so
 * that a product is one operation of the two vector ports: 8 of the 12 that a token's group of
 * q8_0 or q4_0 takes. */
#include "backend/cpu/avx512/avx512.h"
#include <immintrin.h>
#include <string.h>

/* Straight code for each type and number of tokens; instrumented, it would compile for minutes. */
#ifdef CPU_INSTRUMENTED
#define CPU_UNROLLED 0
#else
#define CPU_UNROLLED 1
#endif

/* Tokens that share a pass over a tile: their sums and the 8 vectors of a group leave 12 of 32
 * registers for the rest. */
enum { MOST = 12 };

/* The directory is compiled without VNNI: not every AVX-512 processor has it. */
#define VNNI       __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define CPU_TARGET VNNI
#define INL        static inline __attribute__((always_inline)) VNNI
#include "backend/cpu/body_q8.h"
/* In a register from here on: compilers would load or unpack it anew for every token. */
#define PIN(v) __asm__("" : "+v"(v))
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

/* Bits of every byte of v, moved down by n. */
INL __m512i bits(__m512i v, const int n, int mask)
{
    return _mm512_and_si512(_mm512_srli_epi16(v, n), _mm512_set1_epi8((char)mask));
}

INL void group_q6_k(const uint8_t *w, uint32_t g, group16 *o)
{
    const uint32_t j = g % 8;
    w += (size_t)3360 * (g / 8);
    o->d = half16(w);
    o->sc0 = bytes16(w + 32 + CPU_LANES * (2 * j));
    o->sc1 = bytes16(w + 32 + CPU_LANES * (2 * j + 1));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const uint8_t *q = w + 288 + 384 * j + 192 * i;
        const __m512i low = _mm512_set1_epi8(63), l[3] = {load(q), load(q + 64), load(q + 128)};
        __m512i last = bits(l[0], 6, 3);
        last = _mm512_or_si512(last, bits(l[1], 4, 0x0c));
        o->w[4 * i + 3] = _mm512_or_si512(last, bits(l[2], 2, 0x30));
#pragma GCC unroll 3
        for (int c = 0; c < 3; c++) o->w[4 * i + c] = _mm512_and_si512(l[c], low);
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

/* a += levels times the four bytes at q, the same for every row. */
INL __m512i times4(__m512i a, __m512i levels, const int8_t *q)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(a)
            : "v"(levels), "m"(*(const int32_t *)(const void *)q));
    return a;
}
INL __m512i all(const int32_t *v)
{
    return _mm512_set1_epi32(*v);
}

/* What is the same for all rows of a group, by token: minus the offset of a level times the sum of
 * the activations (token t at t; q6_k: of half h at 8t + 4h), and that sum times their scale. */
typedef struct {
    int32_t from[8 * MOST];
    float ds[16];
} per_token;

/* Two tokens at once: four lanes of 128 bits are the halves of both. */
KERN void halves_q6_k(const int8_t *q, const int nt, int32_t *from)
{
    UNROLL(6)
    for (int t = 0; t < nt; t += 2, q += 64) {
        __m512i v = _mm512_maskz_loadu_epi32(nt - t > 1 ? 0xffff : 0x00ff, q);
        v = _mm512_maddubs_epi16(_mm512_set1_epi8(1), v);
        v = _mm512_madd_epi16(v, _mm512_set1_epi16(-32));
        v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, 0x4e));
        v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, 0xb1));
        _mm512_storeu_si512(from + 8 * t, v);
    }
}

KERN void tokens_of(const int type, const cpu_q8 *x, size_t at, const int nt, per_token *o)
{
    const __mmask16 some = (__mmask16)((1U << nt) - 1);
    if (type == HT_Q6_K) {
        halves_q6_k(x->q + at * 32, nt, o->from);
        return;
    }
    const __m512i sum = _mm512_maskz_loadu_epi32(some, x->sum + at);
    if (type == HT_Q8_0 || type == HT_Q4_0)
        _mm512_storeu_si512(o->from,
                            _mm512_sub_epi32(_mm512_setzero_si512(),
                                             _mm512_slli_epi32(sum, type == HT_Q8_0 ? 7 : 3)));
    else
        _mm512_storeu_ps(
            o->ds, _mm512_mul_ps(_mm512_maskz_loadu_ps(some, x->d + at), _mm512_cvtepi32_ps(sum)));
}

/* The integer sum of a group and a token, as numbers; q6_k: each half times its scale. */
INL __m512 dot(const int type, const group16 *o, const int8_t *q, const int32_t *from)
{
    const bool offset = type == HT_Q8_0 || type == HT_Q4_0 || type == HT_Q6_K;
    __m512i a = offset ? all(from) : _mm512_setzero_si512();
    if (type == HT_Q6_K) {
        __m512i b = all(from + 4);
        UNROLL(4)
        for (int i = 0; i < 4; i++) {
            a = times4(a, o->w[i], q + 4 * i);
            b = times4(b, o->w[i + 4], q + 16 + 4 * i);
        }
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(b), o->sc1,
                               _mm512_mul_ps(_mm512_cvtepi32_ps(a), o->sc0));
    }
    __m512i b = _mm512_setzero_si512(); /* two short chains instead of a long one */
    UNROLL(4)
    for (int i = 0; i < 8; i += 2) {
        a = times4(a, o->w[i], q + 4 * i);
        b = times4(b, o->w[i + 1], q + 4 * i + 4);
    }
    a = _mm512_add_epi32(a, b);
    return _mm512_cvtepi32_ps(a);
}

KERN void tile_times(const int type, const uint8_t *w, uint32_t k, const cpu_q8 *x, uint32_t t0,
                     const int nt, float *c)
{
    __m512 acc[MOST];
    group16 o;
    per_token of;
    UNROLL(12)
    for (int t = 0; t < nt; t++) acc[t] = _mm512_setzero_ps();
    for (uint32_t g = 0; g < k / 32; g++) {
        const size_t at = (size_t)g * x->n + t0;
        const int8_t *q = x->q + at * 32;
        const float *d = x->d + at;
        __asm__("" : "+r"(q)); /* one base for all loads */
        fetch(type, w, g);
        group_of(type, w, g, &o);
        UNROLL(8)
        for (int i = 0; i < 8; i++) PIN(o.w[i]);
        tokens_of(type, x, at, nt, &of);
        __asm__("" : "+m"(of)); /* kept in memory: lanes taken out of a vector cost its port */
        UNROLL(12)
        for (int t = 0; t < nt; t++) {
            __m512 s = dot(type, &o, q + 32 * t, of.from + (type == HT_Q6_K ? 8 * t : t));
            acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(o.d, _mm512_set1_ps(d[t])), s, acc[t]);
            if (type == HT_Q4_1 || type == HT_Q4_K)
                acc[t] = _mm512_fmadd_ps(o.m, _mm512_set1_ps(of.ds[t]), acc[t]);
        }
    }
    UNROLL(12)
    for (int t = 0; t < nt; t++) _mm512_storeu_ps(c + t * CPU_LANES, acc[t]);
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
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        tile_times(type, w, k, x, t0, n, c);                                                       \
        break;
        switch (n) {
            CASE(1)
            CASE(2)
            CASE(3)
            CASE(4)
            CASE(5)
            CASE(6)
            CASE(7)
            CASE(8)
            CASE(9)
            CASE(10)
            CASE(11)
        default: tile_times(type, w, k, x, t0, 12, c); break;
        }
#undef CASE
#endif
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
