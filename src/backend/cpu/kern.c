/* kern.c - which kernels a processor gets: generic first, then what each instruction set
 * overrides. */
#include "backend/cpu/kern.h"
#include "core/cpu.h"
#include <string.h>

void cpu__kern_init(cpu_kern *k, unsigned feat)
{
    memset(k, 0, sizeof *k);
    cpu__kern_generic(k);
#if defined(__x86_64__)
    if (feat & HT_CPU_AVX2) cpu__kern_avx2(k);
    if (feat & HT_CPU_AVX512) cpu__kern_avx512(k, feat);
#else
    (void)feat;
#endif
}

enum cpu_form cpu__form(int type)
{
    switch (type) {
    case HT_Q8_0: return CPU_BYTES;
    case HT_Q6_K: return CPU_SIXES;
    case HT_Q4_0:
    case HT_Q4_1:
    case HT_Q4_K: return CPU_NIBBLES;
    default: return CPU_FLOATS;
    }
}
