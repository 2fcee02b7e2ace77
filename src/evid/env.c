/* env.c - the fingerprint as a document: fields, leaves, digests, comparison; see env.h. */
#include "evid/env.h"
#include "core/cpu.h"
#include "evid/schema.h"
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const ht_machine_part_names[HT_MP_PARTS + 1] = {"reject", "stale", "record", "live",
                                                            NULL};
const ht_machine_field ht_machine_fields[] = {
    {"arch", "processor architecture", HT_MP_REJECT},
    {"caches", "caches and how many CPUs share each", HT_MP_REJECT},
    {"clocksource", "clock the kernel reads", HT_MP_REJECT},
    {"container", "container runtime around this process", HT_MP_REJECT},
    {"cores", "cores by kind", HT_MP_REJECT},
    {"cpuFamily", "processor family", HT_MP_REJECT},
    {"cpuModel", "processor model", HT_MP_REJECT},
    {"cpuQuotaPpm", "control group's CPU time, millionths of a CPU", HT_MP_REJECT},
    {"cpuStepping", "processor stepping", HT_MP_REJECT},
    {"cpuVendor", "processor vendor", HT_MP_REJECT},
    {"cpusAllowed", "CPUs this process may run on", HT_MP_REJECT},
    {"gpuTopology", "how the GPUs are connected", HT_MP_REJECT},
    {"gpus", "GPUs", HT_MP_REJECT},
    {"hypervisor", "hypervisor", HT_MP_REJECT},
    {"isa", "instruction set the kernels use", HT_MP_REJECT},
    {"memoryControllers", "memory controllers", HT_MP_REJECT},
    {"memoryMaxBytes", "control group's memory limit", HT_MP_REJECT},
    {"numaNodes", "NUMA nodes", HT_MP_REJECT},
    {"osFamily", "operating system", HT_MP_REJECT},
    {"osMajor", "its major version", HT_MP_REJECT},
    {"ramClassGib", "size class of the memory", HT_MP_REJECT},
    {"smtActive", "hardware threads share cores", HT_MP_REJECT},
    {"bios", "firmware version", HT_MP_STALE},
    {"boost", "processor boost", HT_MP_STALE},
    {"energyPreference", "energy/performance preference", HT_MP_STALE},
    {"governor", "frequency governor", HT_MP_STALE},
    {"gpuDriver", "GPU driver", HT_MP_STALE},
    {"gpuPower", "GPU power limits and persistence", HT_MP_STALE},
    {"gpuRuntime", "GPU runtime the driver offers", HT_MP_STALE},
    {"gpuVbios", "GPU firmware", HT_MP_STALE},
    {"microcode", "processor microcode", HT_MP_STALE},
    {"mitigations", "mitigations of processor faults", HT_MP_STALE},
    {"numaBalancing", "automatic NUMA balancing", HT_MP_STALE},
    {"osMinor", "minor version of the system", HT_MP_STALE},
    {"platformProfile", "platform power profile", HT_MP_STALE},
    {"powerSource", "mains or battery", HT_MP_STALE},
    {"smtControl", "switch of hardware threads", HT_MP_STALE},
    {"thp", "transparent huge pages", HT_MP_STALE},
    {"compiler", "compiler of this program", HT_MP_RECORD},
    {"cpuName", "processor's own name", HT_MP_RECORD},
    {"distro", "distribution", HT_MP_RECORD},
    {"kernel", "kernel release", HT_MP_RECORD},
    {"libc", "C library", HT_MP_RECORD},
    {"gpuLive", "GPU: other processes, events, ECC errors", HT_MP_LIVE},
    {"loadAverage", "load average over a minute", HT_MP_LIVE},
    {"memoryAvailableBytes", "memory available", HT_MP_LIVE},
    {"pressure", "CPU pressure", HT_MP_LIVE},
    {"temperatureMilliC", "hottest thermal zone", HT_MP_LIVE},
    {NULL, NULL, 0},
};

/* ---- reading below a root ---- */

int evid__text(const char *root, const char *path, char *out, size_t cap)
{
    char full[4096];
    size_t n = 0;
    *out = 0;
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full) return -ENAMETOOLONG;
    int fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    for (;;) {
        ssize_t k = read(fd, out + n, cap - 1 - n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) { /* files of devices that are switched off answer so: nothing is there */
            int why = errno == ENODEV || errno == ENXIO || errno == EOPNOTSUPP ? 0 : -errno;
            close(fd);
            *out = 0;
            return why;
        }
        if (k == 0) break;
        n += (size_t)k;
        if (n == cap - 1) break;
    }
    close(fd);
    while (n && (out[n - 1] == '\n' || out[n - 1] == ' ' || out[n - 1] == '\t')) n--;
    out[n] = 0;
    for (size_t i = 0; i < n; i++)
        if ((out[i] < ' ' || out[i] > '~') && out[i] != '\n' && out[i] != '\t') out[i] = '?';
    return (int)n;
}

static ht_json *leaf(ht_arena *a, const char *key, ht_json *v)
{
    ht_json *o = ht_json_new(a, HT_JOBJ);
    ht_json_add(a, o, key, v);
    return o;
}

ht_json *evid__leaf_str(ht_arena *a, const char *s)
{
    return leaf(a, "v", ht_json_new_str(a, s, strlen(s)));
}

ht_json *evid__leaf_int(ht_arena *a, int64_t v)
{
    return leaf(a, "v", ht_json_new_int(a, v));
}

ht_json *evid__leaf_none(ht_arena *a, int rc)
{
    if (rc >= 0) return leaf(a, "absent", ht_json_new_bool(a, true));
    const char *name = strerrorname_np(-rc);
    if (!name) name = "UNKNOWN";
    return leaf(a, "unreadable", ht_json_new_str(a, name, strlen(name)));
}

static ht_json *leaf_file(ht_arena *a, const char *root, const char *path)
{
    char text[4096];
    int rc = evid__text(root, path, text, sizeof text);
    return rc > 0 ? evid__leaf_str(a, text) : evid__leaf_none(a, rc);
}

/* "always [madvise] never" -> "madvise". */
static ht_json *leaf_choice(ht_arena *a, const char *root, const char *path)
{
    char text[256];
    int rc = evid__text(root, path, text, sizeof text);
    char *open = strchr(text, '['), *shut = open ? strchr(open, ']') : NULL;
    if (rc <= 0) return evid__leaf_none(a, rc);
    if (shut) *shut = 0;
    return evid__leaf_str(a, shut ? open + 1 : text);
}

/* ---- the parts ---- */

static const struct {
    const char *field, *path;
    uint8_t part;
} simple[] = {
    {"clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource",
     HT_MP_REJECT},
    {"numaNodes", "/sys/devices/system/node/online", HT_MP_REJECT},
    {"osFamily", "/proc/sys/kernel/ostype", HT_MP_REJECT},
    {"smtActive", "/sys/devices/system/cpu/smt/active", HT_MP_REJECT},
    {"energyPreference", "/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference",
     HT_MP_STALE},
    {"governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", HT_MP_STALE},
    {"numaBalancing", "/proc/sys/kernel/numa_balancing", HT_MP_STALE},
    {"platformProfile", "/sys/firmware/acpi/platform_profile", HT_MP_STALE},
    {"smtControl", "/sys/devices/system/cpu/smt/control", HT_MP_STALE},
    {"kernel", "/proc/sys/kernel/osrelease", HT_MP_RECORD},
};

/* Smallest of 1, 2, 3, 4, 6, 8, 12, 16, ... GiB that holds what the kernel found: it keeps some
 * percent for itself, which differ between kernels. */
static ht_json *ram_class(ht_arena *a, const char *root)
{
    static const char key[] = "MemTotal:";
    char text[4096];
    int rc = evid__text(root, "/proc/meminfo", text, sizeof text);
    const char *p = rc > 0 ? strstr(text, key) : NULL;
    if (!p) return evid__leaf_none(a, rc < 0 ? rc : 0);
    uint64_t kib = strtoull(p + sizeof key - 1, NULL, 10), gib = 1;
    for (uint64_t step = 1; gib < 1 << 20 && gib << 20 < kib; step *= 2) {
        gib = 2 * step;
        if (gib << 20 < kib && step >= 1) gib = 3 * step;
    }
    return evid__leaf_int(a, (int64_t)gib);
}

static ht_json *memory_controllers(ht_arena *a, const char *root)
{
    char path[96], text[64];
    int n = 0, rc = 0;
    for (; n < 64; n++) {
        snprintf(path, sizeof path, "/sys/devices/system/edac/mc/mc%d/mc_name", n);
        rc = evid__text(root, path, text, sizeof text);
        if (rc <= 0) break;
    }
    return n ? evid__leaf_int(a, n) : evid__leaf_none(a, rc);
}

static bool exists(const char *root, const char *path)
{
    char full[4096];
    struct stat st;
    return snprintf(full, sizeof full, "%s%s", root, path) < (int)sizeof full &&
           stat(full, &st) == 0;
}

static const char *container(const char *root)
{
    char text[256];
    if (exists(root, "/.dockerenv")) return "docker";
    if (exists(root, "/run/.containerenv")) return "podman";
    if (evid__text(root, "/run/systemd/container", text, sizeof text) > 0) return "systemd";
    if (evid__text(root, "/proc/1/cgroup", text, sizeof text) > 0 && strstr(text, "kubepods"))
        return "kubernetes";
    return "none";
}

static ht_json *bios(ht_arena *a, const char *root)
{
    char version[160], date[64], all[240];
    int rc = evid__text(root, "/sys/class/dmi/id/bios_version", version, sizeof version);
    if (rc <= 0) return evid__leaf_none(a, rc);
    rc = evid__text(root, "/sys/class/dmi/id/bios_date", date, sizeof date);
    if (rc < 0) return evid__leaf_none(a, rc);
    snprintf(all, sizeof all, "%s%s%s", version, rc ? " " : "", date);
    return evid__leaf_str(a, all);
}

static ht_json *boost(ht_arena *a, const char *root)
{
    char text[32];
    int rc = evid__text(root, "/sys/devices/system/cpu/cpufreq/boost", text, sizeof text);
    if (rc > 0) return evid__leaf_str(a, *text == '1' ? "on" : "off");
    int turbo =
        evid__text(root, "/sys/devices/system/cpu/intel_pstate/no_turbo", text, sizeof text);
    if (turbo > 0) return evid__leaf_str(a, *text == '0' ? "on" : "off");
    return evid__leaf_none(a, rc < 0 ? rc : turbo);
}

/* The kernel's list is fixed per version; names in its order, each with the word that decides. */
static ht_json *mitigations(ht_arena *a, const char *root)
{
    static const char *const name[] = {"gather_data_sampling",
                                       "indirect_target_selection",
                                       "itlb_multihit",
                                       "l1tf",
                                       "mds",
                                       "meltdown",
                                       "mmio_stale_data",
                                       "reg_file_data_sampling",
                                       "retbleed",
                                       "spec_rstack_overflow",
                                       "spec_store_bypass",
                                       "spectre_v1",
                                       "spectre_v2",
                                       "srbds",
                                       "tsa",
                                       "tsx_async_abort",
                                       "vmscape"};
    char path[128], text[512];
    ht_buf b;
    ht_json *out = NULL;
    ht_buf_init(&b, 1 << 14);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/vulnerabilities/%s", name[i]);
        int rc = evid__text(root, path, text, sizeof text);
        if (rc < 0) {
            ht_buf_done(&b);
            return evid__leaf_none(a, rc);
        }
        if (rc > 0 && strcmp(text, "Not affected") != 0)
            ht_buf_fmt(&b, "%s%s: %s", b.n ? "; " : "", name[i], text);
    }
    if (!b.bad) out = b.n ? evid__leaf_str(a, b.p) : evid__leaf_none(a, 0);
    ht_buf_done(&b);
    return out;
}

/* A machine without a supply of type Mains or Battery hangs on the wall. */
static ht_json *power_source(ht_arena *a, const char *root)
{
    static const char *const name[] = {"AC", "AC0", "ACAD", "ADP0", "ADP1"};
    char path[96], text[16];
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        snprintf(path, sizeof path, "/sys/class/power_supply/%s/online", name[i]);
        int rc = evid__text(root, path, text, sizeof text);
        if (rc < 0) return evid__leaf_none(a, rc);
        if (rc > 0) return evid__leaf_str(a, *text == '1' ? "mains" : "battery");
    }
    return evid__leaf_none(a, 0);
}

static void system_part(ht_arena *a, const char *root, ht_json *const part[HT_MP_PARTS])
{
    char text[256], *end = text;
    int rc = evid__text(root, "/proc/sys/kernel/osrelease", text, sizeof text);
    long major = rc > 0 ? strtol(text, &end, 10) : 0;
    bool ok = end != text && *end == '.';
    ht_json_add(a, part[HT_MP_REJECT], "osMajor",
                ok ? evid__leaf_int(a, major) : evid__leaf_none(a, rc < 0 ? rc : 0));
    ht_json_add(a, part[HT_MP_STALE], "osMinor",
                ok ? evid__leaf_int(a, strtol(end + 1, NULL, 10))
                   : evid__leaf_none(a, rc < 0 ? rc : 0));
    rc = evid__text(root, "/proc/sys/kernel/arch", text, sizeof text);
#if defined(__x86_64__)
    if (rc == 0 && !*root) rc = snprintf(text, sizeof text, "x86_64"); /* kernels before 6.1 */
#endif
    ht_json_add(a, part[HT_MP_REJECT], "arch",
                rc > 0 ? evid__leaf_str(a, text) : evid__leaf_none(a, rc));
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        ht_json_add(a, part[simple[i].part], simple[i].field, leaf_file(a, root, simple[i].path));
    ht_json_add(a, part[HT_MP_REJECT], "ramClassGib", ram_class(a, root));
    ht_json_add(a, part[HT_MP_REJECT], "memoryControllers", memory_controllers(a, root));
    ht_json_add(a, part[HT_MP_REJECT], "container", evid__leaf_str(a, container(root)));
    ht_json_add(a, part[HT_MP_STALE], "bios", bios(a, root));
    ht_json_add(a, part[HT_MP_STALE], "boost", boost(a, root));
    ht_json_add(a, part[HT_MP_STALE], "mitigations", mitigations(a, root));
    ht_json_add(a, part[HT_MP_STALE], "powerSource", power_source(a, root));
    ht_json_add(a, part[HT_MP_STALE], "thp",
                leaf_choice(a, root, "/sys/kernel/mm/transparent_hugepage/enabled"));
}

static void record_part(ht_arena *a, const char *root, ht_json *record)
{
    char text[4096];
    int rc = evid__text(root, "/etc/os-release", text, sizeof text);
    char *p = rc > 0 ? strstr(text, "PRETTY_NAME=") : NULL;
    if (p) {
        p += strlen("PRETTY_NAME=");
        p += *p == '"';
        p[strcspn(p, "\"\n")] = 0;
    }
    ht_json_add(a, record, "distro",
                p ? evid__leaf_str(a, p) : evid__leaf_none(a, rc < 0 ? rc : 0));
    /* Facts of this process, not of a recorded tree. */
    ht_json_add(a, record, "libc",
                *root ? evid__leaf_none(a, 0) : evid__leaf_str(a, gnu_get_libc_version()));
    ht_json_add(a, record, "compiler",
                *root ? evid__leaf_none(a, 0) : evid__leaf_str(a, __VERSION__));
}

static void live_part(ht_arena *a, const char *root, ht_json *live)
{
    char path[96], text[4096];
    int64_t hottest = -1;
    int rc = evid__text(root, "/proc/loadavg", text, sizeof text);
    text[strcspn(text, " ")] = 0;
    ht_json_add(a, live, "loadAverage", rc > 0 ? evid__leaf_str(a, text) : evid__leaf_none(a, rc));
    rc = evid__text(root, "/proc/meminfo", text, sizeof text);
    char *p = rc > 0 ? strstr(text, "MemAvailable:") : NULL;
    ht_json_add(a, live, "memoryAvailableBytes",
                p ? evid__leaf_int(a, (int64_t)strtoull(p + 13, NULL, 10) * 1024)
                  : evid__leaf_none(a, rc < 0 ? rc : 0));
    rc = evid__text(root, "/proc/pressure/cpu", text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    ht_json_add(a, live, "pressure", rc > 0 ? evid__leaf_str(a, text) : evid__leaf_none(a, rc));
    for (int i = 0; i < 64; i++) {
        snprintf(path, sizeof path, "/sys/class/thermal/thermal_zone%d/temp", i);
        rc = evid__text(root, path, text, sizeof text);
        if (rc <= 0) break;
        int64_t t = strtoll(text, NULL, 10);
        if (t > hottest) hottest = t;
    }
    ht_json_add(a, live, "temperatureMilliC",
                hottest >= 0 ? evid__leaf_int(a, hottest) : evid__leaf_none(a, rc));
}

/* ---- GPUs ---- */

typedef struct {
    ht_buf hw, vbios, power, live;
} gpu_texts;

static const char *tri(int v)
{
    return v > 0 ? "on" : v == 0 ? "off" : "?";
}

static void gpu_text(const ht_gpu *g, gpu_texts *t)
{
    const char *sep = t->hw.n ? "; " : "";
    ht_buf_fmt(&t->hw,
               "%s%s pci %08x subsystem %08x compute %u.%u cores %u memory %llu mig %s ecc %s link "
               "gen %u x%u",
               sep, g->name, g->pci_device, g->pci_subsystem, g->cc_major, g->cc_minor, g->cores,
               (unsigned long long)g->memory_bytes, tri(g->mig), tri(g->ecc), g->link_gen,
               g->link_width);
    ht_buf_fmt(&t->vbios, "%s%s", sep, g->vbios);
    ht_buf_fmt(&t->power, "%s%llu mW persistence %s", sep, (unsigned long long)g->power_limit_mw,
               tri(g->persistence));
    if (g->live_known)
        ht_buf_fmt(&t->live, "%sprocesses %u events %llu ecc errors %llu", sep, g->processes,
                   (unsigned long long)g->events, (unsigned long long)g->ecc_errors);
}

static ht_json *gpu_leaf(ht_arena *a, const ht_gpus *g, const char *text)
{
    if (g && g->unreadable)
        return leaf(a, "unreadable", ht_json_new_str(a, g->unreadable, strlen(g->unreadable)));
    return text && *text ? evid__leaf_str(a, text) : evid__leaf_none(a, 0);
}

static void gpu_part(ht_arena *a, const ht_gpus *g, ht_json *const part[HT_MP_PARTS])
{
    gpu_texts t;
    ht_buf *const all[] = {&t.hw, &t.vbios, &t.power, &t.live};
    for (int i = 0; i < 4; i++) ht_buf_init(all[i], 1 << 16);
    for (uint32_t i = 0; g && i < g->n; i++) gpu_text(&g->gpu[i], &t);
    ht_json_add(a, part[HT_MP_REJECT], "gpus", gpu_leaf(a, g, t.hw.p));
    ht_json_add(a, part[HT_MP_REJECT], "gpuTopology", gpu_leaf(a, g, g ? g->topology : NULL));
    ht_json_add(a, part[HT_MP_STALE], "gpuVbios", gpu_leaf(a, g, t.vbios.p));
    ht_json_add(a, part[HT_MP_STALE], "gpuPower", gpu_leaf(a, g, t.power.p));
    ht_json_add(a, part[HT_MP_STALE], "gpuDriver", gpu_leaf(a, g, g ? g->driver : NULL));
    ht_json_add(a, part[HT_MP_STALE], "gpuRuntime", gpu_leaf(a, g, g ? g->runtime : NULL));
    ht_json_add(a, part[HT_MP_LIVE], "gpuLive", gpu_leaf(a, g, t.live.p));
    for (int i = 0; i < 4; i++) ht_buf_done(all[i]);
}

/* ---- the document ---- */

int ht_machine_read(ht_arena *a, const ht_machine_source *src, ht_json **doc, ht_err *e)
{
    static const char schema[] = "hetero/machine/1";
    ht_json *part[HT_MP_PARTS], *d = ht_json_new(a, HT_JOBJ);
    for (int i = 0; i < HT_MP_PARTS; i++) part[i] = ht_json_new(a, HT_JOBJ);
    evid__machine_cpu(a, src, part);
    system_part(a, src->root, part);
    record_part(a, src->root, part[HT_MP_RECORD]);
    live_part(a, src->root, part[HT_MP_LIVE]);
    gpu_part(a, src->gpus, part);
    for (int i = 0; i < HT_MP_PARTS; i++) ht_json_add(a, d, ht_machine_part_names[i], part[i]);
    ht_json_add(a, d, "schema", ht_json_new_str(a, schema, sizeof schema - 1));
    *doc = d;
    if (!d || ht_machine_check(d, NULL))
        return HT_FAIL(e, HT_ENOMEM, "machine fingerprint: out of memory");
    return 0;
}

static bool is_leaf(const ht_json *v)
{
    if (!v || v->type != HT_JOBJ || v->n != 1) return false;
    const ht_json *x = &v->at[0];
    if (strcmp(x->key, "v") == 0) return x->type == HT_JINT || (x->type == HT_JSTR && x->n > 0);
    if (strcmp(x->key, "absent") == 0) return x->type == HT_JBOOL && x->b;
    return strcmp(x->key, "unreadable") == 0 && x->type == HT_JSTR && x->n > 0;
}

int ht_machine_check(const ht_json *doc, ht_err *e)
{
    static const ht_field parts[] = {{.key = "live", .type = HT_S_OBJ},
                                     {.key = "record", .type = HT_S_OBJ},
                                     {.key = "reject", .type = HT_S_OBJ},
                                     {.key = "stale", .type = HT_S_OBJ},
                                     {0}};
    size_t count[HT_MP_PARTS] = {0};
    HT_TRY(ht_schema_check(doc, parts, "hetero/machine/1", "MACHINE", e));
    for (const ht_machine_field *f = ht_machine_fields; f->name; f++) {
        const ht_json *p = ht_json_get(doc, ht_machine_part_names[f->part]);
        if (!is_leaf(ht_json_get(p, f->name)))
            return HT_FAIL(e, HT_EFORMAT, "MACHINE: %s.%s is missing or no leaf",
                           ht_machine_part_names[f->part], f->name);
        count[f->part]++;
    }
    for (int i = 0; i < HT_MP_PARTS; i++)
        if (ht_json_get(doc, ht_machine_part_names[i])->n != count[i])
            return HT_FAIL(e, HT_EFORMAT, "MACHINE: %s has a field that no machine has",
                           ht_machine_part_names[i]);
    return 0;
}

int ht_machine_sha256(const ht_json *doc, enum ht_machine_part part, char hex[HT_SHA256_HEX],
                      ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    ht_buf b;
    HT_TRY(ht_machine_check(doc, e));
    const ht_json *p = ht_json_get(doc, ht_machine_part_names[part]);
    ht_buf_init(&b, 0);
    int rc = ht_json_write(p, HT_JSON_CANON, &b, e);
    if (!rc) rc = ht_sha256_of(b.p, b.n, digest, e);
    if (!rc) ht_hex(digest, sizeof digest, hex);
    ht_buf_done(&b);
    for (size_t i = 0; !rc && i < p->n; i++) {
        const ht_json *why = ht_json_get(&p->at[i], "unreadable");
        if (why)
            rc = HT_FAIL(e, HT_EGATE,
                         "machine field %s is unreadable (%s): nothing can be matched with it; let "
                         "this process read it",
                         p->at[i].key, why->s);
    }
    return rc;
}

static bool same_leaf(const ht_json *x, const ht_json *y)
{
    if (!is_leaf(x) || !is_leaf(y) || strcmp(x->at[0].key, y->at[0].key) != 0) return false;
    if (strcmp(x->at[0].key, "unreadable") == 0) return false;
    x = &x->at[0];
    y = &y->at[0];
    if (x->type != y->type) return false;
    if (x->type == HT_JSTR) return x->n == y->n && memcmp(x->s, y->s, x->n) == 0;
    return x->type == HT_JINT ? x->i == y->i : x->b == y->b;
}

const char *ht_machine_differs(const ht_json *x, const ht_json *y, enum ht_machine_part part)
{
    const ht_json *px = ht_json_get(x, ht_machine_part_names[part]);
    const ht_json *py = ht_json_get(y, ht_machine_part_names[part]);
    for (const ht_machine_field *f = ht_machine_fields; f->name; f++)
        if (f->part == part && !same_leaf(ht_json_get(px, f->name), ht_json_get(py, f->name)))
            return f->name;
    return NULL;
}

const char *ht_machine_leaf_text(ht_arena *a, const ht_json *l)
{
    if (!is_leaf(l)) return "?";
    const ht_json *x = &l->at[0];
    const char *text = "absent";
    if (strcmp(x->key, "unreadable") == 0) text = ht_arena_printf(a, "unreadable (%s)", x->s);
    else if (x->type == HT_JSTR) text = x->s;
    else if (x->type == HT_JINT) text = ht_arena_printf(a, "%lld", (long long)x->i);
    return text ? text : "?";
}

/* ---- one machine among its like ---- */

int ht_hmac_sha256(const void *key, size_t n_key, const void *msg, size_t n,
                   uint8_t out[HT_SHA256_BYTES], ht_err *e)
{
    unsigned got = 0;
    if (n_key > INT32_MAX || !HMAC(EVP_sha256(), key, (int)n_key, msg, n, out, &got) ||
        got != HT_SHA256_BYTES)
        return HT_FAIL(e, HT_EIO, "libcrypto failed to make an HMAC");
    return 0;
}

int ht_machine_instance(const ht_machine_source *src, const uint8_t secret[HT_SECRET],
                        char out[HT_INSTANCE], ht_err *e)
{
    uint8_t mac[HT_SHA256_BYTES];
    char id[128];
    ht_buf b;
    ht_buf_init(&b, 1 << 16);
    for (uint32_t i = 0; src->gpus && i < src->gpus->n; i++)
        ht_buf_fmt(&b, "%s\n", src->gpus->gpu[i].uuid);
    if (evid__text(src->root, "/etc/machine-id", id, sizeof id) > 0) ht_buf_fmt(&b, "%s\n", id);
    int rc = ht_buf_ok(&b, "instance", e);
    if (!rc && !b.n)
        rc = HT_FAIL(e, HT_EGATE,
                     "this machine has neither /etc/machine-id nor a GPU with a UUID: it cannot be "
                     "told from its like; run systemd-machine-id-setup");
    if (!rc) rc = ht_hmac_sha256(secret, HT_SECRET, b.p, b.n, mac, e);
    if (!rc) {
        memcpy(out, "hmac:", 5);
        ht_hex(mac, sizeof mac, out + 5);
    }
    ht_buf_done(&b);
    return rc;
}

int ht_machine_secret(const char *path, uint8_t secret[HT_SECRET], ht_err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t more;
    if (fd < 0 && errno == ENOENT) {
        if (getrandom(secret, HT_SECRET, 0) != HT_SECRET)
            return HT_FAIL(e, HT_EIO, "the kernel gave no random bytes for %s", path);
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0) return HT_FAIL(e, HT_EIO, "%s: %s", path, strerror(errno));
        ssize_t put = write(fd, secret, HT_SECRET);
        int bad = put != HT_SECRET || fsync(fd) != 0;
        close(fd);
        return bad ? HT_FAIL(e, HT_EIO, "%s: could not be written", path) : 0;
    }
    if (fd < 0) return HT_FAIL(e, HT_EIO, "%s: %s", path, strerror(errno));
    ssize_t got = read(fd, secret, HT_SECRET), rest = read(fd, &more, 1);
    close(fd);
    if (got != HT_SECRET || rest != 0)
        return HT_FAIL(e, HT_EFORMAT, "%s is not %d bytes: remove it to get a new identity", path,
                       (int)HT_SECRET);
    return 0;
}
