/* simd.h - 16 lanes in plain C: the meaning of every vector operation that kern_body.h uses. The
 * directories avx2 and avx512 hold the same names on registers. fmaf is one rounding everywhere. */
#ifndef HT_CPU_GENERIC_SIMD_H
#define HT_CPU_GENERIC_SIMD_H
#include "quant/quant.h"
#include <math.h>
#include <string.h>

enum { VL = 16, NV = 1 };
#define INL static inline __attribute__((always_inline))
typedef struct { float f[VL]; } vf;
typedef struct { uint32_t u[VL]; } vi;

#define LANES_(T, expr)                                                                            \
    T r_;                                                                                          \
    for (int i = 0; i < VL; i++) expr;                                                             \
    return r_
INL vf vf_set1(float a) { LANES_(vf, r_.f[i] = a); }
INL vf vf_zero(void) { return vf_set1(0.0f); }
INL vf vf_load(const float *p) { vf r; memcpy(&r, p, sizeof r); return r; }
INL void vf_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
INL vf vf_add(vf a, vf b) { LANES_(vf, r_.f[i] = a.f[i] + b.f[i]); }
INL vf vf_sub(vf a, vf b) { LANES_(vf, r_.f[i] = a.f[i] - b.f[i]); }
INL vf vf_mul(vf a, vf b) { LANES_(vf, r_.f[i] = a.f[i] * b.f[i]); }
INL vf vf_div(vf a, vf b) { LANES_(vf, r_.f[i] = a.f[i] / b.f[i]); }
INL vf vf_max(vf a, vf b) { LANES_(vf, r_.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }
INL vf vf_min(vf a, vf b) { LANES_(vf, r_.f[i] = a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
INL vf vf_fma(vf a, vf b, vf c) { LANES_(vf, r_.f[i] = fmaf(a.f[i], b.f[i], c.f[i])); }
INL vf vf_f16(const void *p)
{
    uint16_t h[VL];
    memcpy(h, p, sizeof h);
    LANES_(vf, r_.f[i] = ht_f16_to_f32(h[i]));
}
INL void vf_put_f16(void *p, vf a)
{
    uint16_t h[VL];
    for (int i = 0; i < VL; i++) h[i] = ht_f32_to_f16(a.f[i]);
    memcpy(p, h, sizeof h);
}
INL vf vf_i8(const void *p)
{
    int8_t b[VL];
    memcpy(b, p, sizeof b);
    LANES_(vf, r_.f[i] = (float)b[i]);
}
/* Walsh-Hadamard transform of the lanes, strides 1, 2, 4, 8. */
INL vf vf_hadamard(vf a)
{
    for (int h = 1; h < VL; h *= 2) {
        vf r;
        for (int i = 0; i < VL; i++) r.f[i] = i & h ? a.f[i - h] - a.f[i] : a.f[i] + a.f[i + h];
        a = r;
    }
    return a;
}
INL vi vi_load(const void *p) { vi r; memcpy(&r, p, sizeof r); return r; }
INL vi vi_set1(uint32_t a) { LANES_(vi, r_.u[i] = a); }
INL vi vi_add(vi a, vi b) { LANES_(vi, r_.u[i] = a.u[i] + b.u[i]); }
INL vi vi_and(vi a, vi b) { LANES_(vi, r_.u[i] = a.u[i] & b.u[i]); }
INL vi vi_or(vi a, vi b) { LANES_(vi, r_.u[i] = a.u[i] | b.u[i]); }
INL vi vi_srl(vi a, int n) { LANES_(vi, r_.u[i] = a.u[i] >> n); }
INL vi vi_sll(vi a, int n) { LANES_(vi, r_.u[i] = a.u[i] << n); }
INL vf vf_of_vi(vi a) { LANES_(vf, r_.f[i] = (float)(int32_t)a.u[i]); }
INL vf vf_bits(vi a) { vf r; memcpy(&r, &a, sizeof r); return r; }
INL vi vi_bits(vf a) { vi r; memcpy(&r, &a, sizeof r); return r; }
#endif
