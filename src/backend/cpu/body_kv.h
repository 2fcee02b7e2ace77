/* body_kv.h - panels of attention from packed KV pages (step/kvcodec.h); included once by each
 * instruction set, behind its simd.h. Sixteen codes are one vector of bytes; 4- and 3-bit codes are
 * looked up, which costs the same for a codebook as for plain numbers. */
#include "backend/cpu/kern.h"
#include "step/kvcodec.h"

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
INL vf vf_codes(vb a, int v)         /* lanes [v*VL, v*VL+VL) as numbers */
{
    int8_t b[16];
    _mm_storeu_si128((__m128i *)(void *)b, a);
    return vf_i8(b + VL * v);
}
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

#define KV_TYPE(name, type, bits, one)                                                             \
    static void k_page_##name(const uint8_t *head, uint32_t hd, uint32_t first, float *panel)      \
    {                                                                                              \
        k_page_any(type, bits, one, head, hd, first, panel);                                       \
    }                                                                                              \
    static void v_page_##name(const uint8_t *head, uint32_t hd, uint32_t d0, uint32_t first,       \
                              uint32_t n, float *panel)                                            \
    {                                                                                              \
        v_page_any(type, bits, one, head, hd, d0, first, n, panel);                                \
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
}
