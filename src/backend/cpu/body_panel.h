/* body_panel.h - the outer product that prefill and attention spend their time in, on the
 * operations of a simd.h; included once by each instruction set, which defines CPU_PANEL_NT: the
 * tokens it takes. */
#include "backend/cpu/unroll.h"

/* 16 rows x nt tokens. */
KERN void panel_nt(const int nt, const float *panel, uint32_t kn, const float *x, size_t ldx,
                   float *c, size_t ldc, int add)
{
    vf acc[CPU_NT_PANEL * NV];
    const float *x0 = x, *x1 = x + 3 * ldx, *x2 = x + 6 * ldx, *x3 = x + 9 * ldx;
UNROLL(24)
    for (int i = 0; i < nt * NV; i++) acc[i] = vf_zero();
    for (uint32_t k = 0; k < kn; k++) {
        vf w[NV];
UNROLL(2)
        for (int v = 0; v < NV; v++) w[v] = vf_load(panel + VL * v);
UNROLL(12)
        for (int t = 0; t < nt; t++) {
            const float *xt = t < 3 ? x0 : t < 6 ? x1 : t < 9 ? x2 : x3;
            vf b = vf_set1(xt[(size_t)(t % 3) * ldx]);
UNROLL(2)
            for (int v = 0; v < NV; v++) acc[t * NV + v] = vf_fma(w[v], b, acc[t * NV + v]);
        }
        panel += CPU_LANES;
        x0++, x1++, x2++, x3++;
    }
UNROLL(12)
    for (int t = 0; t < nt; t++)
UNROLL(2)
        for (int v = 0; v < NV; v++) {
            float *p = c + (size_t)t * ldc + VL * v;
            vf_store(p, add ? vf_add(vf_load(p), acc[t * NV + v]) : acc[t * NV + v]);
        }
}

/* What the number of a group at the end of a token's row is for: nothing, c += m*sum behind the
 * chain, or the chain begins at it. */
enum { NO_SUM, SUM_AFTER, SUM_BEFORE };

/* The same over groups of gc columns of levels: c = d*chain is added group by group. */
KERN void fold_nt(const int nt, const int gc, const int use, const float *panel,
                  const cpu_scale *g, uint32_t kn, const float *x, const float *sum, size_t ldx,
                  float *c, int add)
{
    const float *x0 = x, *x1 = x + 3 * ldx, *x2 = x + 6 * ldx, *x3 = x + 9 * ldx;
    for (uint32_t n = 0; n < kn / (uint32_t)gc; n++, g++, sum++) {
        vf acc[CPU_NT_PANEL * NV];
UNROLL(12)
        for (int t = 0; t < nt; t++)
UNROLL(2)
            for (int v = 0; v < NV; v++)
                acc[t * NV + v] = use == SUM_BEFORE ? vf_set1(sum[(size_t)t * ldx]) : vf_zero();
UNROLL(4)
        for (int k = 0; k < gc; k++) {
            vf w[NV];
UNROLL(2)
            for (int v = 0; v < NV; v++) w[v] = vf_load(panel + VL * v);
UNROLL(12)
            for (int t = 0; t < nt; t++) {
                const float *xt = t < 3 ? x0 : t < 6 ? x1 : t < 9 ? x2 : x3;
                vf b = vf_set1(xt[(size_t)(t % 3) * ldx]);
UNROLL(2)
                for (int v = 0; v < NV; v++) acc[t * NV + v] = vf_fma(w[v], b, acc[t * NV + v]);
            }
            panel += CPU_LANES;
            x0++, x1++, x2++, x3++;
        }
UNROLL(12)
        for (int t = 0; t < nt; t++)
UNROLL(2)
            for (int v = 0; v < NV; v++) {
                float *p = c + CPU_LANES * t + VL * v;
                vf tot = add || n ? vf_load(p) : vf_zero();
                tot = vf_fma(vf_load(g->d + VL * v), acc[t * NV + v], tot);
                if (use == SUM_AFTER)
                    tot = vf_fma(vf_load(g->m + VL * v), vf_set1(sum[(size_t)t * ldx]), tot);
                vf_store(p, tot);
            }
    }
}

#define FOLD_CASE(n)                                                                               \
    case n: fold_nt(n, gc, use, panel, g, kn, x, sum, ldx, c, add); break
KERN void fold(const int gc, const int use, const float *panel, const cpu_scale *g, uint32_t kn,
               const float *x, const float *sum, size_t ldx, uint32_t nt, float *c, int add)
{
#if !CPU_UNROLLED
    fold_nt((int)nt, gc, use, panel, g, kn, x, sum, ldx, c, add);
#else
    switch (nt) {
        FOLD_CASE(1);
        FOLD_CASE(2);
        FOLD_CASE(3);
        FOLD_CASE(4);
        FOLD_CASE(5);
        FOLD_CASE(6);
#if CPU_PANEL_NT > 6
        FOLD_CASE(7);
        FOLD_CASE(8);
        FOLD_CASE(9);
        FOLD_CASE(10);
        FOLD_CASE(11);
        FOLD_CASE(12);
#endif
    default: break;
    }
#endif
}
#define FOLD(name, gc, use)                                                                        \
    static void name(const float *panel, const cpu_scale *g, uint32_t kn, const float *x,          \
                     const float *sum, size_t ldx, uint32_t nt, float *c, int add)                 \
    {                                                                                              \
        fold(gc, use, panel, g, kn, x, sum, ldx, nt, c, add);                                   \
    }
FOLD(fold_q8, 32, NO_SUM)
FOLD(fold_q4, 32, SUM_AFTER)
FOLD(fold_q6, 16, SUM_BEFORE)

/* Sum of x [4][n], n a power of two: lane j adds (j + j+n) + (j+2n + j+3n), then a tree. */
static float sum_of(const float *x, uint32_t n)
{
    float s[8];
    for (uint32_t j = 0; j < n; j++) s[j] = (x[j] + x[n + j]) + (x[2 * n + j] + x[3 * n + j]);
    for (uint32_t h = n / 2; h; h /= 2)
        for (uint32_t j = 0; j < h; j++) s[j] += s[j + h];
    return s[0];
}
/* Powers of two that undo the places of a lane's columns. */
static void spread_bytes(const float *x, uint32_t k, float *z)
{
    static const float place[8] = {1, 0x1p-8f, 0x1p-16f, 0x1p-24f, 1, 0x1p-8f, 0x1p-16f, 0x1p-24f};
    for (uint32_t i = 0; i < k; i += 8)
        for (uint32_t j = 0; j < 8; j++) z[i + j] = x[i + j] * place[j];
}
static void spread_sixes(const float *x, uint32_t k, float *z)
{
    spread_bytes(x, k, z);
    for (uint32_t i = 0; i < k; i += 16) z[k + i / 16] = -32.0f * sum_of(x + i, 4);
}
static void spread_nibbles(const float *x, uint32_t k, float *z)
{
    static const float place[8] = {1,       0x1p-8f,  0x1p-16f, 0x1p-24f,
                                   0x1p-4f, 0x1p-12f, 0x1p-20f, 1};
    for (uint32_t i = 0; i < k; i += 8)
        for (uint32_t j = 0; j < 8; j++) z[i + j] = x[i + j] * place[j];
    for (uint32_t i = 0; i < k; i += 32) z[k + i / 32] = sum_of(x + i, 8);
}

#define PANEL_CASE(n)                                                                              \
    case n: panel_nt(n, panel, kn, x, ldx, c, ldc, add); break
static void panel_mul(const float *panel, uint32_t kn, const float *x, size_t ldx, uint32_t nt,
                      float *c, size_t ldc, int add)
{
#if !CPU_UNROLLED
    panel_nt((int)nt, panel, kn, x, ldx, c, ldc, add);
#else
    switch (nt) {
        PANEL_CASE(1);
        PANEL_CASE(2);
        PANEL_CASE(3);
        PANEL_CASE(4);
        PANEL_CASE(5);
        PANEL_CASE(6);
#if CPU_PANEL_NT > 6
        PANEL_CASE(7);
        PANEL_CASE(8);
        PANEL_CASE(9);
        PANEL_CASE(10);
        PANEL_CASE(11);
        PANEL_CASE(12);
#endif
    default: break;
    }
#endif
}

static void panel_entries(cpu_kern *k)
{
    k->panel = panel_mul;
    k->nt_panel = CPU_PANEL_NT;
    k->fold[CPU_BYTES] = fold_q8;
    k->fold[CPU_NIBBLES] = fold_q4;
    k->fold[CPU_SIXES] = fold_q6;
    k->spread[CPU_BYTES] = spread_bytes;
    k->spread[CPU_NIBBLES] = spread_nibbles;
    k->spread[CPU_SIXES] = spread_sixes;
}
