/* env_cpu.c - the processor in the fingerprint: who made it, which instruction set the kernels will
 * use, kinds of cores, caches, and what this process may use of it. Formats: Linux documentation
 * ABI/testing/sysfs-devices-system-cpu and filesystems/proc.rst. */
#include "core/cpu.h"
#include "evid/env.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

enum { CPUS = 4096, TEXT = 16384, CACHE_KINDS = 32 };

int evid__cpu_list(const char *text, bool *set, size_t cap)
{
    int n = 0;
    memset(set, 0, cap * sizeof *set);
    for (const char *p = text; *p;) {
        char *end;
        unsigned long lo = strtoul(p, &end, 10), hi = lo;
        if (end == p) return -1;
        if (*end == '-') {
            p = end + 1;
            hi = strtoul(p, &end, 10);
            if (end == p) return -1;
        }
        if (hi < lo || hi >= cap) return -1;
        for (; lo <= hi; lo++) {
            n += !set[lo];
            set[lo] = true;
        }
        if (*end != ',' && *end != 0) return -1;
        p = end + (*end == ',');
    }
    return n;
}

/* First value of "name : value" in /proc/cpuinfo. */
static bool info_value(const char *info, const char *name, char *out, size_t cap)
{
    size_t n = strlen(name);
    for (const char *p = info; p && *p; p = strchr(p, '\n')) {
        while (*p == '\n') p++;
        const char *colon = p + n;
        if (strncmp(p, name, n) != 0) continue;
        while (*colon == ' ' || *colon == '\t') colon++;
        if (*colon != ':') continue;
        colon += 1 + (colon[1] == ' ');
        size_t len = strcspn(colon, "\n");
        while (len && colon[len - 1] == ' ') len--;
        if (len >= cap) len = cap - 1;
        memcpy(out, colon, len);
        out[len] = 0;
        return len > 0;
    }
    return false;
}

static bool has_flags(const char *flags, const char *const *want)
{
    for (; *want; want++) {
        size_t n = strlen(*want);
        const char *p = flags;
        while ((p = strstr(p, *want)) && !((p == flags || p[-1] == ' ') && (p[n] == ' ' || !p[n])))
            p += n;
        if (!p) return false;
    }
    return true;
}

/* The level the kernels of this program dispatch to on such a processor: what core/cpu.c asks
 * for. */
static const char *isa_level(const char *flags)
{
    static const char *const avx2[] = {"avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", NULL};
    static const char *const avx512[] = {"avx512f", "avx512bw", "avx512dq", "avx512vl", NULL};
    static const char *const vnni[] = {"avx512_vnni", NULL};
    if (!has_flags(flags, avx2)) return "generic";
    if (!has_flags(flags, avx512)) return "avx2";
    return has_flags(flags, vnni) ? "avx512+vnni" : "avx512";
}

#if defined(__x86_64__) || defined(__i386__)
/* Leaf 0x40000000 of the hypervisor: twelve letters ("KVMKVMKVM", "Microsoft Hv"). */
static void hypervisor_name(char out[16])
{
    unsigned a, r[3];
    __cpuid(0x40000000, a, r[0], r[1], r[2]);
    memcpy(out, r, 12);
    out[12] = 0;
    for (char *p = out; *p; p++)
        if (*p < ' ' || *p > '~') *p = '?';
}
#else
static void hypervisor_name(char out[16])
{
    memcpy(out, "unknown", 8);
}
#endif

static void identity(ht_arena *a, const ht_machine_source *src, ht_json *const part[HT_MP_PARTS],
                     const char *info, int rc)
{
    static const struct {
        const char *field, *x86, *arm;
        uint8_t part;
    } id[] = {
        {"cpuVendor", "vendor_id", "CPU implementer", HT_MP_REJECT},
        {"cpuFamily", "cpu family", "CPU architecture", HT_MP_REJECT},
        {"cpuModel", "model", "CPU part", HT_MP_REJECT},
        {"cpuStepping", "stepping", "CPU revision", HT_MP_REJECT},
        {"microcode", "microcode", "CPU variant", HT_MP_STALE},
        {"cpuName", "model name", "Processor", HT_MP_RECORD},
    };
    char text[TEXT], hyper[16] = "";
    for (size_t i = 0; i < sizeof id / sizeof *id; i++) {
        bool found =
            info_value(info, id[i].x86, text, 256) || info_value(info, id[i].arm, text, 256);
        ht_json_add(a, part[id[i].part], id[i].field,
                    found ? evid__leaf_str(a, text) : evid__leaf_none(a, rc < 0 ? rc : 0));
    }
    bool flags = info_value(info, "flags", text, sizeof text);
    ht_json_add(a, part[HT_MP_REJECT], "isa",
                rc > 0 ? evid__leaf_str(a, flags ? isa_level(text) : "generic")
                       : evid__leaf_none(a, rc));
    static const char *const virtual[] = {"hypervisor", NULL};
    const char *name = "none";
    if (flags && has_flags(text, virtual)) {
        if (!*src->root) hypervisor_name(hyper);
        name = src->hypervisor ? src->hypervisor : *hyper ? hyper : "unknown";
    }
    ht_json_add(a, part[HT_MP_REJECT], "hypervisor",
                rc > 0 ? evid__leaf_str(a, name) : evid__leaf_none(a, rc));
}

static bool cpu_text(const char *root, size_t cpu, const char *file, char *out, size_t cap)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%zu/%s", cpu, file);
    return evid__text(root, path, out, cap) > 0;
}

/* Package and core number of a CPU as one key; a CPU of unknown topology is a core of its own. */
static long core_key(const char *root, size_t cpu)
{
    char package[32], core[32];
    if (!cpu_text(root, cpu, "topology/physical_package_id", package, sizeof package) ||
        !cpu_text(root, cpu, "topology/core_id", core, sizeof core))
        return -1 - (long)cpu;
    return strtol(package, NULL, 10) << 20 | strtol(core, NULL, 10);
}

/* Appends "NAME 6 cores 12 threads" for the CPUs of set. */
static void add_kind(ht_buf *b, const char *root, const char *name, const bool *set)
{
    long seen[CPUS];
    size_t cores = 0, threads = 0;
    for (size_t i = 0; i < CPUS; i++) {
        if (!set[i]) continue;
        long key = core_key(root, i);
        size_t k = 0;
        while (k < cores && seen[k] != key) k++;
        if (k == cores) seen[cores++] = key;
        threads++;
    }
    if (threads)
        ht_buf_fmt(b, "%s%s %zu cores %zu threads", b->n ? "; " : "", name, cores, threads);
}

/* Kinds: Intel's hybrid parts name them, ARM tells capacities; elsewhere all are equal. */
static void add_kinds(ht_buf *b, const char *root, const bool *online)
{
    static const char *const hybrid[2][2] = {{"/sys/devices/cpu_core/cpus", "P"},
                                             {"/sys/devices/cpu_atom/cpus", "E"}};
    bool set[CPUS], done[CPUS] = {false};
    char text[1024];
    for (int k = 0; k < 2; k++) {
        if (evid__text(root, hybrid[k][0], text, sizeof text) <= 0 ||
            evid__cpu_list(text, set, CPUS) < 0)
            continue;
        for (size_t i = 0; i < CPUS; i++) {
            set[i] = set[i] && online[i];
            done[i] = done[i] || set[i];
        }
        add_kind(b, root, hybrid[k][1], set);
    }
    for (size_t i = 0; i < CPUS; i++) {
        char mine[32] = "", other[32], name[48];
        if (!online[i] || done[i]) continue;
        cpu_text(root, i, "cpu_capacity", mine, sizeof mine);
        for (size_t k = i; k < CPUS; k++) {
            *other = 0;
            set[k] = online[k] && !done[k];
            if (set[k]) cpu_text(root, k, "cpu_capacity", other, sizeof other);
            set[k] = set[k] && strcmp(mine, other) == 0;
            done[k] = done[k] || set[k];
        }
        memset(set, 0, i * sizeof *set);
        snprintf(name, sizeof name, "%s%s", *mine ? "capacity " : "all", mine);
        add_kind(b, root, name, set);
    }
}

typedef struct {
    char text[64];
    unsigned count;
} cache_kind;

/* "L2 u 512K of 2" counted once for each instance: at the first CPU that shares it. */
static void add_caches(ht_buf *b, const char *root, const bool *online)
{
    cache_kind kind[CACHE_KINDS];
    bool set[CPUS];
    size_t n = 0;
    for (size_t i = 0; i < CPUS; i++) {
        for (unsigned index = 0; online[i] && index < 10; index++) {
            char file[64], level[8], type[24], size[24], shared[512], text[64];
            static const char *const part[3] = {"level", "type", "size"};
            char *const out[3] = {level, type, size};
            bool all = true;
            for (int k = 0; k < 3 && all; k++) {
                snprintf(file, sizeof file, "cache/index%u/%s", index, part[k]);
                all = cpu_text(root, i, file, out[k], k == 0 ? sizeof level : sizeof size);
            }
            snprintf(file, sizeof file, "cache/index%u/shared_cpu_list", index);
            if (!all || !cpu_text(root, i, file, shared, sizeof shared)) break;
            int sharers = evid__cpu_list(shared, set, CPUS);
            size_t first = 0, k = 0;
            while (first < CPUS && !set[first]) first++;
            if (sharers < 1 || first != i) continue;
            snprintf(text, sizeof text, "L%s%s %s of %d", level,
                     *type == 'D'   ? "d"
                     : *type == 'I' ? "i"
                                    : "",
                     size, sharers);
            while (k < n && strcmp(kind[k].text, text) != 0) k++;
            if (k == CACHE_KINDS) return;
            if (k == n) {
                memcpy(kind[n].text, text, sizeof text);
                kind[n++].count = 0;
            }
            kind[k].count++;
        }
    }
    for (size_t k = 0; k < n; k++)
        ht_buf_fmt(b, "%s%ux %s", k ? "; " : "", kind[k].count, kind[k].text);
}

static ht_json *leaf_buf(ht_arena *a, ht_buf *b)
{
    ht_json *leaf = b->bad ? NULL : b->n > 0 ? evid__leaf_str(a, b->p) : evid__leaf_none(a, 0);
    ht_buf_done(b);
    return leaf;
}

/* What the process may use: its affinity mask, and the control group's set of CPUs. */
static void limits(ht_arena *a, const char *root, ht_json *reject)
{
    static const char key[] = "Cpus_allowed_list:";
    char text[TEXT];
    bool set[CPUS];
    int rc = evid__text(root, "/proc/self/status", text, sizeof text), n = -1;
    const char *p = rc > 0 ? strstr(text, key) : NULL;
    if (p) {
        p += sizeof key - 1;
        p += strspn(p, "\t ");
        text[(size_t)(p - text) + strcspn(p, "\n")] = 0;
        n = evid__cpu_list(p, set, CPUS);
    }
    ht_json_add(a, reject, "cpusAllowed",
                n > 0 ? evid__leaf_int(a, n) : evid__leaf_none(a, rc < 0 ? rc : 0));
    double cpus = ht_cgroup_cpus(root);
    ht_json_add(a, reject, "cpuQuotaPpm",
                cpus > 0 && cpus < 1e6 ? evid__leaf_int(a, (int64_t)(cpus * 1e6 + 0.5))
                                       : evid__leaf_none(a, 0));
    uint64_t most = ht_cgroup_memory(root);
    ht_json_add(a, reject, "memoryMaxBytes",
                most < (uint64_t)1 << 53 ? evid__leaf_int(a, (int64_t)most)
                                         : evid__leaf_none(a, 0));
}

void evid__machine_cpu(ht_arena *a, const ht_machine_source *src, ht_json *const part[HT_MP_PARTS])
{
    ht_json *reject = part[HT_MP_REJECT];
    char *info = ht_arena_alloc(a, 1 << 20), text[1024];
    bool online[CPUS];
    ht_buf kinds, caches;
    if (!info) return; /* missing members make the whole document fail its check */
    int rc = evid__text(src->root, "/proc/cpuinfo", info, 1 << 20);
    identity(a, src, part, rc > 0 ? info : "", rc);
    limits(a, src->root, reject);
    ht_buf_init(&kinds, TEXT);
    ht_buf_init(&caches, TEXT);
    rc = evid__text(src->root, "/sys/devices/system/cpu/online", text, sizeof text);
    if (rc > 0 && evid__cpu_list(text, online, CPUS) > 0) {
        add_kinds(&kinds, src->root, online);
        add_caches(&caches, src->root, online);
        rc = 0;
    }
    ht_json *cores = leaf_buf(a, &kinds), *cache = leaf_buf(a, &caches);
    ht_json_add(a, reject, "cores", rc < 0 ? evid__leaf_none(a, rc) : cores);
    ht_json_add(a, reject, "caches", rc < 0 ? evid__leaf_none(a, rc) : cache);
}
