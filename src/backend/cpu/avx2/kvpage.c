/* kvpage.c - packed KV pages on AVX2. */
#include "backend/cpu/avx2/avx2.h"
#include "backend/cpu/avx2/simd.h"

#define CPU_UNROLLED 1
#include "backend/cpu/body_kv.h"

void cpu__kv_avx2(cpu_kern *k)
{
    kv_entries(k);
}
