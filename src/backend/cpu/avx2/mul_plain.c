/* mul_plain.c - products of f32, f16, bf16 on AVX2. */
#include "backend/cpu/avx2/avx2.h"
#include "backend/cpu/avx2/simd.h"

#define CPU_UNROLLED 1
#include "backend/cpu/body_mul.h"

MUL_TYPE(f32, HT_F32)
MUL_TYPE(f16, HT_F16)
MUL_TYPE(bf16, HT_BF16)

void cpu__mul_plain_avx2(cpu_kern *k)
{
    MUL_ENTRY(k, f32, HT_F32);
    MUL_ENTRY(k, f16, HT_F16);
    MUL_ENTRY(k, bf16, HT_BF16);
}
