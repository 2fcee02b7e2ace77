/* kern.c - the shared bodies on AVX2, FMA and F16C; q8.c and attn.c hold what is written by
 * hand. */
#include "backend/cpu/avx2/avx2.h"
#include "backend/cpu/avx2/simd.h"

/* 12 accumulators, 2 weights, 1 token: 15 of 16 registers. */
#define CPU_PANEL_NT 6
#define CPU_UNROLLED 1
#include "backend/cpu/body_panel.h"

#include "backend/cpu/body_elem.h"

void cpu__kern_avx2(cpu_kern *k)
{
    cpu__mul_plain_avx2(k);
    cpu__mul_quant_avx2(k);
    cpu__mul_super_avx2(k);
    panel_entries(k);
    elem_entries(k);
    cpu__kv_avx2(k);
    k->q8[HT_Q8_0] = cpu__q8_q8_0_avx2;
    k->q8[HT_Q4_0] = cpu__q8_q4_0_avx2;
    k->q8[HT_Q4_1] = cpu__q8_q4_1_avx2;
    k->q8[HT_Q4_K] = cpu__q8_q4_k_avx2;
    k->q8[HT_Q6_K] = cpu__q8_q6_k_avx2;
    k->act_q8 = cpu__act_q8_avx2;
    k->k_panel[0] = cpu__k_panel_f32_avx2;
    k->k_panel[1] = cpu__k_panel_f16_avx2;
    k->few_scores = cpu__few_scores_avx2;
    k->few_values = cpu__few_values_avx2;
    k->level = "avx2";
}
