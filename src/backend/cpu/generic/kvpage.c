/* kvpage.c - packed KV pages in plain C, and the sketch of QJL3, an experiment that no other level
 * has a kernel for. */
#include "backend/cpu/generic/simd.h"

#define CPU_UNROLLED 0
#include "backend/cpu/body_kv.h"

enum { SKETCH_MAX = 1024 }; /* ht_kvtype_fits lets no larger head in */

static void k_page_qjl3(const uint8_t *head, uint32_t hd, uint32_t first, float *panel)
{
    float row[SKETCH_MAX];
    for (uint32_t i = 0; i < CPU_LANES; i++) {
        ht_kv_unpack(HT_KV_QJL3, 0, hd, head, first + i, row);
        for (uint32_t d = 0; d < hd; d++) panel[(size_t)d * CPU_LANES + i] = row[d];
    }
}

static void v_page_qjl3(const uint8_t *head, uint32_t hd, uint32_t d0, uint32_t first, uint32_t n,
                        float *panel)
{
    float row[SKETCH_MAX];
    for (uint32_t j = first; j < first + n; j++, panel += CPU_LANES) {
        ht_kv_unpack(HT_KV_QJL3, 1, hd, head, j, row);
        memcpy(panel, row + d0, CPU_LANES * sizeof *row);
    }
}

void cpu__kv_generic(cpu_kern *k)
{
    kv_entries(k);
    k->k_page[HT_KV_QJL3] = k_page_qjl3;
    k->v_page[HT_KV_QJL3] = v_page_qjl3;
}
