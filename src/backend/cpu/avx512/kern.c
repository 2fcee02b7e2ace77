/* kern.c - the shared bodies on AVX-512: matrix products only; the rest stays with avx2/. */
#include "backend/cpu/avx512/simd.h"

#define CPU_PANEL_NT 12
#define CPU_UNROLLED 1
#include "backend/cpu/body_mul.h"

#include "core/cpu.h"

void cpu__kern_avx512(cpu_kern *k, unsigned feat)
{
    (void)feat;
    mul_entries(k);
    k->level = "avx512";
}
