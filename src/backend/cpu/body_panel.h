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
