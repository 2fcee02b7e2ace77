/* body_kv.h - panels of attention from packed KV pages (step/kvcodec.h); included once by each
 * instruction set, behind its simd.h. Sixteen codes are one vector of bytes; 4- and 3-bit codes are
 * looked up, which costs the same for a codebook as for plain numbers. */
#include "backend/cpu/kern.h"
#include "backend/cpu/unroll.h"
#include "step/kvcodec.h"

enum { KV_PAGE = 32 };               /* positions of a page                                      */

#if defined(__AVX2__)
typedef __m128i vb;
INL vb vb_load(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
INL vb vb_line4(const uint8_t *line, uint32_t half)
{
    vb a = vb_load(line);
    return _mm_and_si128(half ? _mm_srli_epi16(a, 4) : a, _mm_set1_epi8(15));
}
INL vb vb_line3(const uint8_t *line, uint32_t half)
{
    const vb spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const vb bit = _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128);
    uint16_t top;
    memcpy(&top, line + 8 + 2 * half, sizeof top);
    vb two = _mm_loadl_epi64((const __m128i *)(const void *)line);
    if (half) two = _mm_srli_epi16(two, 4);
    two = _mm_and_si128(_mm_unpacklo_epi64(two, _mm_srli_epi16(two, 2)), _mm_set1_epi8(3));
    vb one = _mm_and_si128(_mm_shuffle_epi8(_mm_set1_epi16((short)top), spread), bit);
    one = _mm_and_si128(_mm_cmpeq_epi8(one, bit), _mm_set1_epi8(4));
    return _mm_or_si128(two, one);
}
INL vb vb_lookup(vb table, vb index) { return _mm_shuffle_epi8(table, index); }
#if defined(__AVX512F__)
INL vf vf_codes(vb a, int v)         /* lanes [v*VL, v*VL+VL) as numbers */
{
    (void)v;
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a));
}
#else
INL vf vf_codes(vb a, int v)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v ? _mm_srli_si128(a, 8) : a));
}
#endif
#else
typedef struct { int8_t b[16]; } vb;
INL vb vb_load(const void *p) { vb r; memcpy(&r, p, sizeof r); return r; }
INL vb vb_line4(const uint8_t *line, uint32_t half)
{
    vb r;
    for (int i = 0; i < 16; i++) r.b[i] = (int8_t)(line[i] >> (half ? 4 : 0) & 15);
    return r;
}
INL vb vb_line3(const uint8_t *line, uint32_t half)
{
    vb r;
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t at = 16 * half + i, two = line[at % 8] >> (2 * (at / 8)) & 3u;
        r.b[i] = (int8_t)(two | (line[8 + at / 8] >> (at % 8) & 1u) << 2);
    }
    return r;
}
INL vb vb_lookup(vb table, vb index)
{
    vb r;
    for (int i = 0; i < 16; i++) r.b[i] = table.b[index.b[i] & 15];
    return r;
}
INL vf vf_codes(vb a, int v) { return vf_i8(a.b + VL * v); }
#endif

/* Codes [16*half, 16*half+16) of a line; bits and the table's presence are constants where it is
 * inlined. */
INL vb kv_codes(const uint32_t bits, vb table, const uint8_t *line, uint32_t half)
{
    if (bits == 8) return vb_load(line + 16 * half);
    return vb_lookup(table, bits == 4 ? vb_line4(line, half) : vb_line3(line, half));
}

static const int8_t kv_plain4[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
INL vb kv_table(int type)
{
    int8_t t[16] = {0};
    const ht_kvcodec *c = &ht_kvcodecs[type];
    if (c->levels) memcpy(t, c->levels, (size_t)1 << c->bits);
    else memcpy(t, kv_plain4, sizeof t);
    return vb_load(t);
}

INL void k_page_any(const int type, const uint32_t bits, const bool one, const uint8_t *head,
                    uint32_t hd, uint32_t first, float *panel)
{
    const uint16_t *scales = ht_kv_scales(type, hd, head) + first;
    const vb table = kv_table(type);
    for (uint32_t d0 = 0; d0 < hd; d0 += 32) {
        uint32_t end = hd - d0 < 32 ? hd : d0 + 32;
        vf s[NV];
        for (int v = 0; v < NV; v++) s[v] = vf_f16(scales + (one ? 0 : d0) + VL * v);
        for (uint32_t d = d0; d < end; d++) {
            vb c = kv_codes(bits, table, head + (size_t)d * 4 * bits, first / 16);
            for (int v = 0; v < NV; v++)
                vf_store(panel + (size_t)d * CPU_LANES + VL * v, vf_mul(s[v], vf_codes(c, v)));
        }
    }
}

INL void v_page_any(const int type, const uint32_t bits, const bool one, const uint8_t *head,
                    uint32_t hd, uint32_t d0, uint32_t first, uint32_t n, float *panel)
{
    const uint32_t nl = ht_kv_lines(hd);
    const uint16_t *scales = ht_kv_scales(type, hd, head) + (one ? 0 : d0 / 32 * 32);
    const vb table = kv_table(type);
    float s[32];
    for (int i = 0; i < 32; i += VL) vf_store(s + i, vf_f16(scales + i));
    for (uint32_t j = first; j < first + n; j++, panel += CPU_LANES) {
        const uint8_t *line = head + ((size_t)j * nl + d0 / 32) * 4 * bits;
        vb c = kv_codes(bits, table, line, d0 / 16 % 2);
        for (int v = 0; v < NV; v++)
            vf_store(panel + VL * v, vf_mul(vf_set1(s[j]), vf_codes(c, v)));
        if (hd - d0 < CPU_LANES) memset(panel + (hd - d0), 0, (CPU_LANES - (hd - d0)) * sizeof *s);
    }
}

/* What the caller reads afterwards, and how many bytes of it are asked for with every line that is
 * read here, so that the requests come evenly. */
typedef struct {
    const uint8_t *at;
    size_t step;
} kv_next;
INL kv_next kv_after(const void *next, const uint8_t *here, uint32_t bits)
{
    return next ? (kv_next){next, 4 * bits} : (kv_next){here, 0};
}
INL void kv_ahead(kv_next next, uint32_t line)
{
    __builtin_prefetch(next.at + line * next.step, 0, 2);
}

/* Scores of halves [first, first+n) of 16 keys for nq pairs: 8 chains or 6 on 8 lanes, which is
 * what the registers hold and the adders need. An element is made once for all pairs. */
KERN void few_k(const int nq, const int n, const int type, const uint32_t bits, const bool one,
                const uint8_t *head, uint32_t hd, uint32_t first, const float *q, size_t ldq,
                float *s, size_t lds, kv_next next)
{
    const uint16_t *scales = ht_kv_scales(type, hd, head) + 16 * first;
    const vb table = kv_table(type);
    vf acc[CPU_FEW * 2 * NV], sc[2 * NV];
UNROLL(16)
    for (int i = 0; i < nq * n * NV; i++) acc[i] = vf_zero();
    for (uint32_t d0 = 0; d0 < hd; d0 += 32) {
UNROLL(4)
        for (int v = 0; v < n * NV; v++) sc[v] = vf_f16(scales + (one ? 0 : d0) + VL * v);
        for (uint32_t d = d0; d < d0 + 32; d++) {
            kv_ahead(next, d);
UNROLL(2)
            for (int h = 0; h < n; h++) {
                const uint8_t *line = head + (size_t)d * 4 * bits;
                const vb c = kv_codes(bits, table, line, first + (uint32_t)h);
UNROLL(2)
                for (int v = 0; v < NV; v++) {
                    const vf w = vf_mul(sc[h * NV + v], vf_codes(c, v));
UNROLL(4)
                    for (int t = 0; t < nq; t++)
                        acc[(t * n + h) * NV + v] =
                            vf_fma(w, vf_set1(q[(size_t)t * ldq + d]), acc[(t * n + h) * NV + v]);
                }
            }
        }
    }
UNROLL(4)
    for (int t = 0; t < nq; t++)
UNROLL(4)
        for (int i = 0; i < n * NV; i++)
            vf_store(s + (size_t)t * lds + 16 * first + VL * (uint32_t)i, acc[t * n * NV + i]);
}

KERN void few_k_any(const int type, const uint32_t bits, const bool one, const uint8_t *head,
                    uint32_t hd, const float *q, size_t ldq, uint32_t nq, float *s, size_t lds,
                    const void *next)
{
    const kv_next ahead = kv_after(next, head, bits), none = kv_after(NULL, head, bits);
    switch (nq) {
    case 1: few_k(1, 2, type, bits, one, head, hd, 0, q, ldq, s, lds, ahead); break;
    case 2: few_k(2, 2, type, bits, one, head, hd, 0, q, ldq, s, lds, ahead); break;
    case 3:
        few_k(3, 1, type, bits, one, head, hd, 0, q, ldq, s, lds, ahead);
        few_k(3, 1, type, bits, one, head, hd, 1, q, ldq, s, lds, none);
        break;
    default:
        few_k(4, 1, type, bits, one, head, hd, 0, q, ldq, s, lds, ahead);
        few_k(4, 1, type, bits, one, head, hd, 1, q, ldq, s, lds, none);
        break;
    }
}

/* 32 columns from d0 on of the page's values, weighed, for one or two pairs. */
KERN void few_v(const int nq, const int type, const uint32_t bits, const bool one,
                const uint8_t *head, uint32_t hd, uint32_t d0, const float *p, size_t ldp, float *o,
                size_t ldo, int add, kv_next next)
{
    const uint16_t *scales = ht_kv_scales(type, hd, head) + (one ? 0 : d0);
    const vb table = kv_table(type);
    const size_t row = (size_t)hd / 32 * 4 * bits;
    const uint8_t *line = head + (size_t)d0 / 32 * 4 * bits;
    float s[KV_PAGE];
    vf acc[2 * 2 * NV];
    for (uint32_t i = 0; i < KV_PAGE; i += VL) vf_store(s + i, vf_f16(scales + i));
UNROLL(8)
    for (int i = 0; i < nq * 2 * NV; i++)
        acc[i] = add ? vf_load(o + (size_t)(i / (2 * NV)) * ldo + VL * (i % (2 * NV))) : vf_zero();
    for (uint32_t j = 0; j < KV_PAGE; j++, line += row) {
        const vf sv = vf_set1(s[j]);
        kv_ahead(next, d0 + j);
UNROLL(2)
        for (uint32_t h = 0; h < 2; h++) {
            const vb c = kv_codes(bits, table, line, h);
UNROLL(2)
            for (int v = 0; v < NV; v++) {
                const vf w = vf_mul(sv, vf_codes(c, v));
UNROLL(2)
                for (int t = 0; t < nq; t++) {
                    const int at = (t * 2 + (int)h) * NV + v;
                    acc[at] = vf_fma(w, vf_set1(p[(size_t)t * ldp + j]), acc[at]);
                }
            }
        }
    }
UNROLL(8)
    for (int i = 0; i < nq * 2 * NV; i++)
        vf_store(o + (size_t)(i / (2 * NV)) * ldo + VL * (i % (2 * NV)), acc[i]);
}

KERN void few_v_any(const int type, const uint32_t bits, const bool one, const uint8_t *head,
                    uint32_t hd, const float *p, size_t ldp, uint32_t nq, float *o, size_t ldo,
                    int add, const void *next)
{
    for (uint32_t t = 0; t < nq; t += 2, p += 2 * ldp, o += 2 * ldo) {
        const kv_next ahead = kv_after(t ? NULL : next, head, bits);
        for (uint32_t d = 0; d < hd; d += 32) {
            if (nq - t > 1) few_v(2, type, bits, one, head, hd, d, p, ldp, o + d, ldo, add, ahead);
            else few_v(1, type, bits, one, head, hd, d, p, ldp, o + d, ldo, add, ahead);
        }
    }
}

#define KV_TYPE(name, type, bits, one)                                                             \
    static void k_page_##name(const uint8_t *head, uint32_t hd, uint32_t first, float *panel)      \
    {                                                                                              \
        k_page_any(type, bits, one, head, hd, first, panel);                                       \
    }                                                                                              \
    static void v_page_##name(const uint8_t *head, uint32_t hd, uint32_t d0, uint32_t first,       \
                              uint32_t n, float *panel)                                            \
    {                                                                                              \
        v_page_any(type, bits, one, head, hd, d0, first, n, panel);                                \
    }                                                                                              \
    static void few_k_##name(const uint8_t *head, uint32_t hd, const float *q, size_t ldq,         \
                             uint32_t nq, float *s, size_t lds, const void *next)                  \
    {                                                                                              \
        few_k_any(type, bits, one, head, hd, q, ldq, nq, s, lds, next);                            \
    }                                                                                              \
    static void few_v_##name(const uint8_t *head, uint32_t hd, const float *p, size_t ldp,         \
                             uint32_t nq, float *o, size_t ldo, int add, const void *next)         \
    {                                                                                              \
        few_v_any(type, bits, one, head, hd, p, ldp, nq, o, ldo, add, next);                       \
    }
KV_TYPE(q8_0, HT_KV_Q8_0, 8, false)
KV_TYPE(q4_0, HT_KV_Q4_0, 4, false)
KV_TYPE(tq4, HT_KV_TQ4, 4, true)
KV_TYPE(tq3, HT_KV_TQ3, 3, true)

static void kv_entries(cpu_kern *k)
{
    k->k_page[HT_KV_Q8_0] = k->k_page[HT_KV_Q8_0R] = k_page_q8_0;
    k->k_page[HT_KV_Q4_0] = k->k_page[HT_KV_Q4_0R] = k_page_q4_0;
    k->k_page[HT_KV_TQ4] = k_page_tq4;
    k->k_page[HT_KV_TQ3] = k_page_tq3;
    k->v_page[HT_KV_Q8_0] = k->v_page[HT_KV_Q8_0R] = v_page_q8_0;
    k->v_page[HT_KV_Q4_0] = k->v_page[HT_KV_Q4_0R] = v_page_q4_0;
    k->v_page[HT_KV_TQ4] = v_page_tq4;
    k->v_page[HT_KV_TQ3] = v_page_tq3;
    k->few_k_page[HT_KV_Q8_0] = k->few_k_page[HT_KV_Q8_0R] = few_k_q8_0;
    k->few_k_page[HT_KV_Q4_0] = k->few_k_page[HT_KV_Q4_0R] = few_k_q4_0;
    k->few_k_page[HT_KV_TQ4] = few_k_tq4;
    k->few_k_page[HT_KV_TQ3] = few_k_tq3;
    k->few_v_page[HT_KV_Q8_0] = k->few_v_page[HT_KV_Q8_0R] = few_v_q8_0;
    k->few_v_page[HT_KV_Q4_0] = k->few_v_page[HT_KV_Q4_0R] = few_v_q4_0;
    k->few_v_page[HT_KV_TQ4] = few_v_tq4;
    k->few_v_page[HT_KV_TQ3] = few_v_tq3;
}
