/* mul_super.c - products of q4_k, q6_k on AVX2. */
#include "backend/cpu/avx2/avx2.h"
#include "backend/cpu/avx2/simd.h"

#define CPU_UNROLLED 1
#include "backend/cpu/body_mul.h"

MUL_TYPE(q4_k, HT_Q4_K)
MUL_TYPE(q6_k, HT_Q6_K)

void cpu__mul_super_avx2(cpu_kern *k)
{
    MUL_ENTRY(k, q4_k, HT_Q4_K);
    MUL_ENTRY(k, q6_k, HT_Q6_K);
}
