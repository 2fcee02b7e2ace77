/* mul_quant.c - products of q8_0, q4_0, q4_1 on AVX-512. */
#include "backend/cpu/avx512/avx512.h"
#include "backend/cpu/avx512/simd.h"

#define CPU_UNROLLED 1
#include "backend/cpu/body_mul.h"

MUL_TYPE(q8_0, HT_Q8_0)
MUL_TYPE(q4_0, HT_Q4_0)
MUL_TYPE(q4_1, HT_Q4_1)

void cpu__mul_quant_avx512(cpu_kern *k)
{
    MUL_ENTRY(k, q8_0, HT_Q8_0);
    MUL_ENTRY(k, q4_0, HT_Q4_0);
    MUL_ENTRY(k, q4_1, HT_Q4_1);
}
