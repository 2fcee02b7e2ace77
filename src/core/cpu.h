/* cpu.h - what this processor can do and how many threads this process should use. */
#ifndef HT_CORE_CPU_H
#define HT_CORE_CPU_H
#include "core/err.h"

enum { HT_CPU_AVX2 = 1,       /* AVX2 + FMA + F16C + BMI2                                         */
       HT_CPU_AVX512 = 2,     /* F, BW, DQ, VL                                                    */
       HT_CPU_VNNI = 4,       /* AVX-512 VNNI                                                     */
       HT_CPU_BF16 = 8 };     /* AVX-512 BF16                                                     */
unsigned ht_cpu_features(void);                        /* cpuid and xgetbv; constant              */
const char *ht_cpu_name(void);                         /* brand string                            */
typedef struct {
    int threads;              /* min of the three below, at least 1                               */
    int affinity;             /* CPUs this process may run on                                     */
    int physical;             /* distinct cores among them                                        */
    int quota;                /* ceil(cgroup v1/v2 cpu quota), 0: none                            */
    char why[96];             /* "2: 2 physical cores of 4 CPUs; no quota"                        */
} ht_cpu_threads;
void ht_cpu_threads_get(ht_cpu_threads *);
/* Limits of this process's control groups, v1 and v2, up to the root of what is mounted; root as in
 * /proc and /sys below it, "" outside tests. CPUs' worth of time, 0: none; bytes, UINT64_MAX:
 * none. */
double ht_cgroup_cpus(const char *root);
uint64_t ht_cgroup_memory(const char *root);
uint64_t ht_mem_available(void);              /* bytes: min(MemAvailable, cgroup room); 0 unknown */
#endif
