/* avx2.h - kernels written by hand for AVX2, for the table in kern.c. */
#ifndef HT_CPU_AVX2_H
#define HT_CPU_AVX2_H
#include "backend/cpu/kern.h"

/* Enter the products of a group of types. */
void cpu__mul_plain_avx2(cpu_kern *), cpu__mul_quant_avx2(cpu_kern *),
                         cpu__mul_super_avx2(cpu_kern *);

#define CPU_Q8_AVX2(name)                                                                          \
    void cpu__q8_##name##_avx2(const uint8_t *w, uint32_t k, const cpu_q8 *x, uint32_t t0,         \
                               uint32_t nt, float *c)
CPU_Q8_AVX2(q8_0);
CPU_Q8_AVX2(q4_0);
CPU_Q8_AVX2(q4_1);
CPU_Q8_AVX2(q4_k);
CPU_Q8_AVX2(q6_k);
void cpu__act_q8_avx2(const float *x, uint32_t k, uint32_t n, uint32_t t, int8_t *q, float *d,
                      int32_t *sum);
void cpu__k_panel_f16_avx2(const void *rows, uint32_t hd, uint32_t n, float *panel);
void cpu__k_panel_f32_avx2(const void *rows, uint32_t hd, uint32_t n, float *panel);
void cpu__few_scores_avx2(const uint16_t *rows, uint32_t hd, uint32_t n, const float *q, size_t ldq,
                          uint32_t nq, float *s, size_t lds, const void *next);
void cpu__few_values_avx2(const uint16_t *rows, uint32_t hd, uint32_t n, const float *p, size_t ldp,
                          uint32_t nq, float *o, size_t ldo, int add, const void *next);
#endif
