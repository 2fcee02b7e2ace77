/* kern.c - every kernel in plain C: correct anywhere, the floor that other levels stand on. */
#include "backend/cpu/generic/simd.h"
#include "quant/r16.h"

#define CPU_PANEL_NT 6
#define CPU_UNROLLED 0
#include "backend/cpu/body_mul.h"
#include "backend/cpu/body_panel.h"

MUL_TYPE(f32, HT_F32)
MUL_TYPE(f16, HT_F16)
MUL_TYPE(bf16, HT_BF16)
MUL_TYPE(q8_0, HT_Q8_0)
MUL_TYPE(q4_0, HT_Q4_0)
MUL_TYPE(q4_1, HT_Q4_1)
MUL_TYPE(q4_k, HT_Q4_K)
MUL_TYPE(q6_k, HT_Q6_K)

#include "backend/cpu/body_elem.h"

/* Signed levels of row r of a group of 32 columns, its scale and offset (see kern.h). q6_k has two
 * groups of 16 in it: their int8 scales go into the levels, exactly, as the integer dot product. */
typedef struct {
    int32_t level[32];
    float d, m;
} q8_row;

static float half_lane(const uint8_t *p, int r)
{
    uint16_t h;
    memcpy(&h, p + 2 * r, sizeof h);
    return ht_f16_to_f32(h);
}
static uint32_t lane32(const uint8_t *p, int r)
{
    uint32_t v;
    memcpy(&v, p + 4 * r, sizeof v);
    return v;
}
static int nibble_at(const uint8_t *q, int r, int k)
{
    return (int)(lane32(q + 64 * (k / 8), r) >> (8 * (k % 4) + 4 * (k / 4 % 2)) & 15);
}

static void q8_row_q4_k(const uint8_t *w, uint32_t g, int r, q8_row *o)
{
    const int j = (int)(g % 8);
    w += (size_t)2304 * (g / 8);
    uint32_t s2 = lane32(w + 192, r);
    uint32_t sc = (lane32(w + 64, r) >> 4 * j & 15) | (s2 >> 2 * j & 3) << 4;
    uint32_t mn = (lane32(w + 128, r) >> 4 * j & 15) | (s2 >> (16 + 2 * j) & 3) << 4;
    o->d = half_lane(w, r) * (float)sc;
    o->m = (0.0f - half_lane(w + 32, r)) * (float)mn;
    for (int k = 0; k < 32; k++) o->level[k] = nibble_at(w + 256 + 256 * j, r, k);
}

static void q8_row_q6_k(const uint8_t *w, uint32_t g, int r, q8_row *o)
{
    w += (size_t)3360 * (g / 8);
    o->d = half_lane(w, r);
    for (int i = 0; i < 32; i++) {
        int k = (int)(g % 8) * 32 + i;
        int sc = (int8_t)w[32 + CPU_LANES * (k / 16) + r];
        o->level[i] = (ht_r16_q6_level(w, r, k) - 32) * sc;
    }
}

INL void q8_row_of(const int type, const uint8_t *w, uint32_t g, int r, q8_row *o)
{
    o->m = 0;
    if (type == HT_Q4_K) {
        q8_row_q4_k(w, g, r, o);
    } else if (type == HT_Q6_K) {
        q8_row_q6_k(w, g, r, o);
    } else if (type == HT_Q8_0) {
        w += (size_t)544 * g;
        o->d = half_lane(w, r);
        for (int k = 0; k < 32; k++) o->level[k] = (int)w[32 + 64 * (k / 4) + 4 * r + k % 4] - 128;
    } else if (type == HT_Q4_0) {
        w += (size_t)288 * g;
        o->d = half_lane(w, r);
        for (int k = 0; k < 32; k++) o->level[k] = nibble_at(w + 32, r, k) - 8;
    } else {
        w += (size_t)320 * g;
        o->d = half_lane(w, r);
        o->m = half_lane(w + 32, r);
        for (int k = 0; k < 32; k++) o->level[k] = nibble_at(w + 64, r, k);
    }
}

INL void q8_mul(const int type, const uint8_t *w, uint32_t k, const cpu_q8 *x, uint32_t t0,
                uint32_t nt, float *c)
{
    memset(c, 0, (size_t)nt * CPU_LANES * sizeof *c);
    for (uint32_t g = 0; g < k / 32; g++)
        for (int r = 0; r < CPU_LANES; r++) {
            q8_row o;
            q8_row_of(type, w, g, r, &o);
            for (uint32_t t = 0; t < nt; t++) {
                size_t at = (size_t)g * x->n + t0 + t;
                const int8_t *q = x->q + at * 32;
                int32_t s = 0;
                for (int i = 0; i < 32; i++) s += o.level[i] * q[i];
                float *out = c + (size_t)t * CPU_LANES + r;
                *out = fmaf(o.d * x->d[at], (float)s, *out);
                if (type == HT_Q4_1 || type == HT_Q4_K)
                    *out = fmaf(o.m, x->d[at] * (float)x->sum[at], *out);
            }
        }
}

#define Q8_TYPE(name, type)                                                                        \
    static void q8_##name(const uint8_t *w, uint32_t k, const cpu_q8 *x, uint32_t t0, uint32_t nt, \
                          float *c)                                                                \
    {                                                                                              \
        q8_mul(type, w, k, x, t0, nt, c);                                                          \
    }
Q8_TYPE(q8_0, HT_Q8_0)
Q8_TYPE(q4_0, HT_Q4_0)
Q8_TYPE(q4_1, HT_Q4_1)
Q8_TYPE(q4_k, HT_Q4_K)
Q8_TYPE(q6_k, HT_Q6_K)

void cpu__kern_generic(cpu_kern *k)
{
    MUL_ENTRY(k, f32, HT_F32);
    MUL_ENTRY(k, f16, HT_F16);
    MUL_ENTRY(k, bf16, HT_BF16);
    MUL_ENTRY(k, q8_0, HT_Q8_0);
    MUL_ENTRY(k, q4_0, HT_Q4_0);
    MUL_ENTRY(k, q4_1, HT_Q4_1);
    MUL_ENTRY(k, q4_k, HT_Q4_K);
    MUL_ENTRY(k, q6_k, HT_Q6_K);
    panel_entries(k);
    elem_entries(k);
    cpu__kv_generic(k);
    k->q8[HT_Q8_0] = q8_q8_0;
    k->q8[HT_Q4_0] = q8_q4_0;
    k->q8[HT_Q4_1] = q8_q4_1;
    k->q8[HT_Q4_K] = q8_q4_k;
    k->q8[HT_Q6_K] = q8_q6_k;
    k->level = "generic";
}
