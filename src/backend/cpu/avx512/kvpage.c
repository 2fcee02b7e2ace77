/* kvpage.c - packed KV pages on AVX-512. */
#include "backend/cpu/avx512/avx512.h"
#include "backend/cpu/avx512/simd.h"

#define CPU_UNROLLED 1
#include "backend/cpu/body_kv.h"

void cpu__kv_avx512(cpu_kern *k)
{
    kv_entries(k);
}
