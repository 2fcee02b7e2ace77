/* telemetry.c - see telemetry.h. Formats: filesystems/proc.rst (stat, vmstat), accounting/psi.rst,
 * admin-guide/cgroup-v2.rst (cpu.stat), ABI/testing/sysfs-devices-system-cpu. */
#include "evid/telemetry.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "evid/policy.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { TEXT = 16384 };

/* The number after "key" in a file of "key value" lines; -1 when there is none. */
static int64_t counter(const char *text, const char *key)
{
    size_t n = strlen(key);
    for (const char *p = text; p && *p; p = strchr(p, '\n')) {
        while (*p == '\n') p++;
        if (strncmp(p, key, n) == 0 && (p[n] == ' ' || p[n] == '\t' || p[n] == '='))
            return strtoll(p + n + 1, NULL, 10);
    }
    return HT_TELEMETRY_UNKNOWN;
}

/* "cpu user nice system idle iowait irq softirq steal guest guest_nice"; guest time is within
 * user. */
static void read_stat(const char *root, ht_telemetry *t)
{
    char text[TEXT];
    int64_t v[8] = {0};
    t->cpu_total = t->cpu_busy = t->cpu_steal = HT_TELEMETRY_UNKNOWN;
    if (evid__text(root, "/proc/stat", text, sizeof text) <= 0 || strncmp(text, "cpu ", 4) != 0)
        return;
    char *p = text + 4, *end;
    int n = 0;
    for (; n < 8; n++, p = end) {
        v[n] = strtoll(p, &end, 10);
        if (end == p) break;
    }
    if (n < 8) return;
    t->cpu_total = 0;
    for (int i = 0; i < 8; i++) t->cpu_total += v[i];
    t->cpu_busy = t->cpu_total - v[3] - v[4] - v[7];
    t->cpu_steal = v[7];
}

static uint64_t ns_of(struct timeval v)
{
    return (uint64_t)v.tv_sec * 1000000000u + (uint64_t)v.tv_usec * 1000u;
}

static uint64_t own_time(void)
{
    struct rusage self, children;
    if (getrusage(RUSAGE_SELF, &self) != 0 || getrusage(RUSAGE_CHILDREN, &children) != 0) return 0;
    return ns_of(self.ru_utime) + ns_of(self.ru_stime) + ns_of(children.ru_utime) +
           ns_of(children.ru_stime);
}

/* Throttled periods of our control group; none is known to be zero where no quota is in force. */
static int64_t throttled(const char *root)
{
    static const char *const path[] = {"/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"};
    char text[TEXT];
    if (ht_cgroup_cpus(root) <= 0) return 0;
    for (size_t i = 0; i < sizeof path / sizeof *path; i++)
        if (evid__text(root, path[i], text, sizeof text) > 0) {
            int64_t n = counter(text, "nr_throttled");
            if (n >= 0) return n;
        }
    return HT_TELEMETRY_UNKNOWN;
}

/* Counts of thermal throttling over all CPUs that have such a counter. */
static int64_t thermal_events(const char *root)
{
    char path[128], text[32];
    int64_t sum = HT_TELEMETRY_UNKNOWN;
    for (int i = 0; i < 4096; i++) {
        snprintf(path, sizeof path,
                 "/sys/devices/system/cpu/cpu%d/thermal_throttle/"
                 "core_throttle_count",
                 i);
        if (evid__text(root, path, text, sizeof text) <= 0) break;
        sum = (sum < 0 ? 0 : sum) + strtoll(text, NULL, 10);
    }
    return sum;
}

/* Mains by its type, whatever its name is; a machine without any supply hangs on the wall. */
static int ac_online(const char *root)
{
    char path[4096 + 64], text[64];
    int on = 1;
    snprintf(path, sizeof path, "%s/sys/class/power_supply", root);
    DIR *d = opendir(path);
    if (!d) return 1;
    for (struct dirent *it; (it = readdir(d));) {
        if (it->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/sys/class/power_supply/%.200s/type", it->d_name);
        if (evid__text(root, path, text, sizeof text) <= 0 || strcmp(text, "Mains") != 0) continue;
        snprintf(path, sizeof path, "/sys/class/power_supply/%.200s/online", it->d_name);
        int rc = evid__text(root, path, text, sizeof text);
        on = rc <= 0 ? HT_TELEMETRY_UNKNOWN : *text == '1';
        if (on == 1) break;
    }
    closedir(d);
    return on;
}

static void clocks(const char *root, ht_telemetry *t)
{
    static const char *const path[] = {
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq",
        "/sys/devices/system/cpu/cpufreq/boost", "/sys/devices/system/cpu/intel_pstate/no_turbo"};
    char all[1024] = "", text[128];
    size_t n = 0;
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        int rc = evid__text(root, path[i], text, sizeof text);
        if (i == 0) t->has_clocks = rc > 0;
        n += (size_t)snprintf(all + n, sizeof all - n, "%s\n", text);
    }
    t->clocks = ht_hash64(all, n);
}

void ht_telemetry_take(const char *root, const ht_gpus *gpus, ht_telemetry *t)
{
    char text[TEXT];
    struct timespec boot;
    memset(t, 0, sizeof *t);
    t->mono_ns = ht_now_ns();
    if (clock_gettime(CLOCK_BOOTTIME, &boot) == 0)
        t->boot_ns = (uint64_t)boot.tv_sec * 1000000000u + (uint64_t)boot.tv_nsec;
    t->ticks_per_s = sysconf(_SC_CLK_TCK);
    read_stat(root, t);
    t->own_ns = own_time();
    t->psi_us = HT_TELEMETRY_UNKNOWN;
    if (evid__text(root, "/proc/pressure/cpu", text, sizeof text) > 0) {
        const char *p = strstr(text, "total=");
        if (strncmp(text, "some", 4) == 0 && p) t->psi_us = strtoll(p + 6, NULL, 10);
    }
    t->swap_ins = evid__text(root, "/proc/vmstat", text, sizeof text) > 0 ? counter(text, "pswpin")
                                                                          : HT_TELEMETRY_UNKNOWN;
    t->throttled = throttled(root);
    t->thermal_events = thermal_events(root);
    t->ac_online = ac_online(root);
    clocks(root, t);
    t->has_gpu = gpus && gpus->n > 0;
    t->gpu_known = t->has_gpu;
    for (uint32_t i = 0; gpus && i < gpus->n; i++) {
        t->gpu_known = t->gpu_known && gpus->gpu[i].live_known;
        t->gpu_events |= gpus->gpu[i].events;
        t->gpu_ecc += gpus->gpu[i].ecc_errors;
        t->gpu_procs += gpus->gpu[i].processes;
    }
}

void ht_telemetry_fold(const ht_telemetry *second, size_t n, ht_telemetry *after)
{
    for (size_t i = 0; i < n; i++) {
        const ht_telemetry *t = &second[i];
        if (t->ac_online < after->ac_online) after->ac_online = t->ac_online;
        if (t->clocks != after->clocks || t->has_clocks != after->has_clocks) after->moved = true;
        if (!t->has_gpu) continue;
        after->gpu_known = after->gpu_known && t->gpu_known;
        after->gpu_events |= t->gpu_events;
        if (t->gpu_procs > after->gpu_procs) after->gpu_procs = t->gpu_procs;
    }
}

/* ---- guards ---- */

static ht_json *unknown(ht_arena *a, const char *reason)
{
    ht_json *o = ht_json_new(a, HT_JOBJ);
    ht_json_add(a, o, "known", ht_json_new_bool(a, false));
    ht_json_add(a, o, "reason", ht_json_new_str(a, reason, strlen(reason)));
    return o;
}

/* now - before of a counter; one that is unknown or runs backwards is unknown. */
static ht_json *delta(ht_arena *a, int64_t before, int64_t now, const char *reason)
{
    return before < 0 || now < before ? unknown(a, reason) : ht_json_new_int(a, now - before);
}

/* part / whole in ppm, never above a million. */
static ht_json *share(ht_arena *a, int64_t part, int64_t whole, const char *reason)
{
    if (part < 0 || whole <= 0) return unknown(a, reason);
    if (part > whole) part = whole;
    return ht_json_new_int(a, (int64_t)((double)part * 1e6 / (double)whole));
}

/* Busy time of the machine that was not ours. The two clocks differ in grain (a tick against a
 * nanosecond), so a little less than nothing is nothing. */
static ht_json *foreign(ht_arena *a, const ht_telemetry s[2])
{
    if (s[0].cpu_busy < 0 || s[1].cpu_busy < s[0].cpu_busy || s[0].ticks_per_s <= 0)
        return unknown(a, "NO_PROC_STAT");
    double tick = 1e9 / (double)s[0].ticks_per_s;
    double busy = (double)(s[1].cpu_busy - s[0].cpu_busy) * tick;
    double others = busy - (double)(s[1].own_ns - s[0].own_ns);
    double all = (double)(s[1].cpu_total - s[0].cpu_total) * tick;
    return share(a, others > 0 ? (int64_t)others : 0, (int64_t)all, "NO_TIME_PASSED");
}

ht_json *ht_telemetry_guards(ht_arena *a, const ht_telemetry gap[2], const ht_telemetry s[2])
{
    ht_json *o = ht_json_new(a, HT_JOBJ), *g[HT_GUARDS];
    int64_t gap_us = (int64_t)((gap[1].mono_ns - gap[0].mono_ns) / 1000);
    int64_t asleep =
        (int64_t)(s[1].boot_ns - s[1].mono_ns) - (int64_t)(s[0].boot_ns - s[0].mono_ns);
    bool gpu = s[0].has_gpu && s[0].gpu_known && s[1].gpu_known;
    const char *no_gpu = s[0].has_gpu ? "NVML" : "NO_GPU";
    g[HT_G_AC] = s[0].ac_online < 0 || s[1].ac_online < 0
                     ? unknown(a, "UNREADABLE")
                     : ht_json_new_bool(a, s[0].ac_online && s[1].ac_online);
    g[HT_G_CLOCKS] = !s[0].has_clocks ? unknown(a, "NO_CPUFREQ")
                                      : ht_json_new_bool(a, s[0].clocks == s[1].clocks &&
                                                                s[1].has_clocks && !s[1].moved);
    g[HT_G_ECC] =
        gpu ? delta(a, (int64_t)s[0].gpu_ecc, (int64_t)s[1].gpu_ecc, "NVML") : unknown(a, no_gpu);
    g[HT_G_FOREIGN] = foreign(a, s);
    g[HT_G_GPU_EVENTS] =
        gpu ? ht_json_new_int(a, (int64_t)(s[0].gpu_events | s[1].gpu_events)) : unknown(a, no_gpu);
    g[HT_G_GPU_PROCS] =
        gpu ? ht_json_new_int(a, s[0].gpu_procs > s[1].gpu_procs ? s[0].gpu_procs : s[1].gpu_procs)
            : unknown(a, no_gpu);
    g[HT_G_CGROUP] = delta(a, s[0].throttled, s[1].throttled, "NO_CPU_STAT");
    g[HT_G_PSI] = gap[0].psi_us < 0 || gap[1].psi_us < gap[0].psi_us
                      ? unknown(a, "NO_PSI")
                      : share(a, gap[1].psi_us - gap[0].psi_us, gap_us, "NO_TIME_PASSED");
    /* Reading two clocks one after the other moves their difference by less than this. */
    g[HT_G_SUSPEND] = ht_json_new_int(a, asleep > 1000000 ? asleep : 0);
    g[HT_G_STEAL] = s[0].cpu_steal < 0 || s[1].cpu_steal < s[0].cpu_steal
                        ? unknown(a, "NO_PROC_STAT")
                        : share(a, s[1].cpu_steal - s[0].cpu_steal, s[1].cpu_total - s[0].cpu_total,
                                "NO_TIME_PASSED");
    g[HT_G_SWAP] = delta(a, s[0].swap_ins, s[1].swap_ins, "NO_VMSTAT");
    g[HT_G_THROTTLE] = delta(a, s[0].thermal_events, s[1].thermal_events, "NO_COUNTER");
    for (int i = 0; i < HT_GUARDS; i++) ht_json_add(a, o, ht_guard_names[i], g[i]);
    return o;
}

ht_json *ht_telemetry_line(ht_arena *a, const ht_telemetry *t, uint64_t origin_ns)
{
    const struct {
        const char *key;
        int64_t v;
    } item[] = {{"cpuBusyTicks", t->cpu_busy},
                {"cpuStealTicks", t->cpu_steal},
                {"cpuTotalTicks", t->cpu_total},
                {"gpuEvents", t->has_gpu && t->gpu_known ? (int64_t)t->gpu_events : -1},
                {"nrThrottled", t->throttled},
                {"psiUs", t->psi_us},
                {"swapIns", t->swap_ins},
                {"thermalEvents", t->thermal_events}};
    ht_json *o = ht_json_new(a, HT_JOBJ);
    for (size_t i = 0; i < sizeof item / sizeof *item; i++)
        ht_json_add(a, o, item[i].key,
                    item[i].v < 0 ? unknown(a, "NOT_HERE") : ht_json_new_int(a, item[i].v));
    ht_json_add(a, o, "ownNs", ht_json_new_int(a, (int64_t)t->own_ns));
    ht_json_add(a, o, "tNs", ht_json_new_int(a, (int64_t)(t->mono_ns - origin_ns)));
    return o;
}
