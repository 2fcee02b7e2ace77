/* avx512.h - kernels for AVX-512, for the table in kern.c. */
#ifndef HT_CPU_AVX512_H
#define HT_CPU_AVX512_H
#include "backend/cpu/kern.h"

/* Enter the products of a group of types. */
void cpu__mul_plain_avx512(cpu_kern *), cpu__mul_quant_avx512(cpu_kern *),
                           cpu__mul_super_avx512(cpu_kern *);
void cpu__q8_vnni(cpu_kern *); /* int8 products of all quantised types; HT_CPU_VNNI */
#endif
