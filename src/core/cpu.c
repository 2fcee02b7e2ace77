/* cpu.c - see cpu.h. Feature bits: Intel SDM vol. 2A CPUID, vol. 1 ch. 13.3 for what the operating
 * system saves (XCR0). */
#include "core/cpu.h"
#include "core/host.h"
#include "core/team.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static unsigned features;
static char brand[64] = "unknown processor";

#if defined(__x86_64__) || defined(__i386__)
enum { XCR0_YMM = 0x6, XCR0_ZMM = 0xe6 };

/* Registers whose state the operating system saves; a feature it does not save must not be used. */
static unsigned xcr0(void)
{
    unsigned lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return lo;
}

static bool all(unsigned word, unsigned bits)
{
    return (word & bits) == bits;
}

static unsigned detect(void)
{
    unsigned a, b, c, d, b7, c7, a71 = 0, ext = 0, f = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const unsigned leaf1 = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    if (!all(c, leaf1) || !all(xcr0(), XCR0_YMM)) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d)) return 0;
    unsigned sub = a;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d)) ext = c;
    if (sub >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    /* mk/isa.mk compiles avx2/ with BMI and LZCNT too. */
    if (!all(b7, bit_AVX2 | bit_BMI | bit_BMI2) || !all(ext, bit_LZCNT)) return 0;
    f = HT_CPU_AVX2;
    if (!all(xcr0(), XCR0_ZMM)) return f;
    if (!all(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL)) return f;
    f |= HT_CPU_AVX512;
    if (all(c7, 1u << 11)) f |= HT_CPU_VNNI;
    if (all(a71, 1u << 5)) f |= HT_CPU_BF16;
    return f;
}

static void read_brand(void)
{
    unsigned word[12];
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002 + i, &word[4 * i], &word[4 * i + 1], &word[4 * i + 2],
                         &word[4 * i + 3]))
            return;
    memset(brand, 0, sizeof brand);
    memcpy(brand, word, sizeof word); /* 48 bytes, padded with blanks on either side */
}
#else
static unsigned detect(void)
{
    return 0;
}
static void read_brand(void)
{
}
#endif

static void init(void)
{
    features = detect();
    read_brand();
    size_t skip = strspn(brand, " "), n = strlen(brand + skip);
    memmove(brand, brand + skip, n + 1);
    while (n && brand[n - 1] == ' ') brand[--n] = 0;
}

unsigned ht_cpu_features(void)
{
    pthread_once(&once, init);
    return features;
}

const char *ht_cpu_name(void)
{
    pthread_once(&once, init);
    return brand;
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Key of the core that CPU i belongs to; -1 when sysfs does not tell. */
static long core_key(const char *root, size_t i)
{
    char path[128], text[32];
    long id[2];
    static const char *const file[2] = {"physical_package_id", "core_id"};
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%zu/topology/%s", i, file[k]);
        if (!core__host_text(root, path, text, sizeof text)) return -1;
        id[k] = strtol(text, NULL, 10);
        if (id[k] < 0 || id[k] >= 1 << 20) return -1;
    }
    return id[0] << 20 | id[1];
}

int core__physical_cores(const char *root, const unsigned char *mask, size_t bytes)
{
    enum { MOST = 4096 };
    long seen[MOST];
    int n = 0, unknown = 0;
    for (size_t i = 0; i < 8 * bytes; i++) {
        if (!(mask[i / 8] >> i % 8 & 1)) continue;
        long key = core_key(root, i);
        int k = 0;
        while (k < n && seen[k] != key) k++;
        if (key < 0) unknown++;
        else if (k == n && n < MOST) seen[n++] = key;
    }
    return n + unknown;
}

void ht_cpu_threads_get(ht_cpu_threads *t)
{
    cpu_set_t set[8]; /* 8192 CPUs: more than any kernel is built for */
    memset(t, 0, sizeof *t);
    memset(set, 0, sizeof set);
    if (!sched_getaffinity(0, sizeof set, set)) {
        t->affinity = CPU_COUNT_S(sizeof set, set);
        /* cpu_set_t is an array of words of bits, lowest first: bytes in order on little-endian. */
        t->physical = core__physical_cores("", (const unsigned char *)set, sizeof set);
    }
    if (t->affinity < 1) t->affinity = 1;
    if (t->physical < 1) t->physical = 1;
    double cpus = core__cgroup_cpus("");
    if (cpus > 0) {
        t->quota = cpus >= 8192 ? 8192 : (int)cpus;
        if (t->quota < cpus && t->quota < 8192) t->quota++;
    }
    t->threads = t->physical < t->affinity ? t->physical : t->affinity;
    if (t->quota > 0 && t->quota < t->threads) t->threads = t->quota;
    if (t->threads > HT_TEAM_MAX) t->threads = HT_TEAM_MAX;
    int n = snprintf(t->why, sizeof t->why, "%d: %d physical core%s of %d CPU%s; ", t->threads,
                     t->physical, t->physical == 1 ? "" : "s", t->affinity,
                     t->affinity == 1 ? "" : "s");
    if (n < 0 || n >= (int)sizeof t->why) return;
    size_t left = sizeof t->why - (size_t)n;
    if (t->quota) snprintf(t->why + n, left, "quota of %.2f CPUs", cpus);
    else snprintf(t->why + n, left, "no quota");
}

/* ---- memory ---------------------------------------------------------------------------------- */

uint64_t core__mem_available(const char *root)
{
    char text[8192];
    if (!core__host_text(root, "/proc/meminfo", text, sizeof text)) return 0;
    const char *p = strstr(text, "MemAvailable:");
    return p ? strtoull(p + strlen("MemAvailable:"), NULL, 10) * 1024 : 0;
}

uint64_t ht_mem_available(void)
{
    uint64_t host = core__mem_available(""), room = core__cgroup_mem_room("");
    return host && host < room ? host : room == UINT64_MAX ? host : room;
}
