/* kern.c - the shared bodies on AVX2, FMA and F16C; q8.c and attn.c hold what is written by hand. */
#include "backend/cpu/avx2/simd.h"

#define CPU_PANEL_NT 6
#define CPU_UNROLLED 1
#include "backend/cpu/body_mul.h"

#include "backend/cpu/body_elem.h"

void cpu__kern_avx2(cpu_kern *k)
{
    mul_entries(k);
    elem_entries(k);
    k->level = "avx2";
}
