/* kern.c - the AVX-512 level: matrix products only; the rest stays with avx2/. */
#include "backend/cpu/avx512/avx512.h"
#include "backend/cpu/avx512/simd.h"
#include "core/cpu.h"

/* 12 accumulators cover a latency of 4 at two a cycle; tokens are memory operands. */
#define CPU_PANEL_NT 12
#define CPU_UNROLLED 1
#include "backend/cpu/body_panel.h"

void cpu__kern_avx512(cpu_kern *k, unsigned feat)
{
    cpu__mul_plain_avx512(k);
    cpu__mul_quant_avx512(k);
    cpu__mul_super_avx512(k);
    panel_entries(k);
    cpu__kv_avx512(k);
    k->level = "avx512";
    if (!(feat & HT_CPU_VNNI)) return;
    cpu__q8_vnni(k);
    k->level = "avx512+vnni";
}
