/* telemetry.c - guards follow from counters as evidence.md 3.7 says; what a host does not show is
 * unknown, and with the default policy such a host is not admissible for performance evidence. */
#include "evid/telemetry.h"
#include "evid/policy.h"
#include "test.h"

/* A quiet second of a machine with everything there: 4 CPUs, 100 ticks, one CPU busy with our
 * work. */
static void quiet(ht_telemetry s[2])
{
    memset(s, 0, 2 * sizeof *s);
    for (int i = 0; i < 2; i++) {
        s[i] = (ht_telemetry){.mono_ns = 1000000000u * (unsigned)(i + 1),
                              .boot_ns = 5000000000u + 1000000000u * (unsigned)(i + 1),
                              .cpu_total = 1000 + 400 * i,
                              .cpu_busy = 100 + 100 * i,
                              .ticks_per_s = 100,
                              .own_ns = 1000000000u * (unsigned)i,
                              .ac_online = 1,
                              .has_clocks = true,
                              .clocks = 7};
    }
}

static ht_guard_state judge(const ht_telemetry gap[2], const ht_telemetry slot[2], uint32_t cpus,
                            ht_json **guards)
{
    static ht_arena *a;
    ht_err e = {0};
    ht_policy p;
    ht_guard_state st;
    if (!a) T_OK(ht_arena_new(&a, 0, &e), e);
    T_OK(ht_policy_parse(a, ht_policy_default, strlen(ht_policy_default), &p, &e), e);
    ht_json *g = ht_telemetry_guards(a, gap, slot);
    T_OK(ht_guards_read(g, &p, cpus, &st, &e), e);
    if (guards) *guards = g;
    return st;
}

T_CASE(telemetry, quiet_machine_is_clear)
{
    ht_telemetry s[2];
    ht_json *g = NULL;
    quiet(s);
    ht_guard_state st = judge(s, s, 16, &g);
    T_EQ_INT(st.red, 0);
    T_EQ_INT(st.unknown, 1u << HT_G_ECC | 1u << HT_G_GPU_EVENTS | 1u << HT_G_GPU_PROCS);
    T_EQ_INT(ht_json_get(g, "foreignCpuPpm")->i, 0);
}

T_CASE(telemetry, each_guard)
{
    ht_telemetry s[2];
    ht_json *g = NULL;
#define RED(guard, change)                                                                         \
    do {                                                                                           \
        quiet(s);                                                                                  \
        change;                                                                                    \
        T_EQ_INT(judge(s, s, 16, &g).red, 1u << (guard));                                          \
    } while (0)
    RED(HT_G_AC, s[1].ac_online = 0);
    RED(HT_G_CLOCKS, s[1].clocks = 8);
    RED(HT_G_FOREIGN, s[1].cpu_busy += 40);
    T_EQ_INT(ht_json_get(g, "foreignCpuPpm")->i, 100000); /* 40 of 400 ticks */
    RED(HT_G_CGROUP, s[1].throttled = 1);
    RED(HT_G_PSI, s[1].psi_us = 50000);
    T_EQ_INT(ht_json_get(g, "psiPpm")->i, 50000);
    RED(HT_G_STEAL, s[1].cpu_steal = 2);
    T_EQ_INT(ht_json_get(g, "stealPpm")->i, 5000);
    RED(HT_G_SUSPEND, s[1].boot_ns += 2000000000u);
    T_EQ_INT(ht_json_get(g, "suspendNs")->i, 2000000000);
    RED(HT_G_SWAP, s[1].swap_ins = 1);
    RED(HT_G_THROTTLE, s[1].thermal_events = 3);
#define GPU s[0].has_gpu = s[1].has_gpu = s[0].gpu_known = s[1].gpu_known = true
    RED(HT_G_ECC, GPU; s[1].gpu_ecc = 1);
    RED(HT_G_GPU_EVENTS, GPU; s[0].gpu_events = 8);
    RED(HT_G_GPU_PROCS, GPU; s[1].gpu_procs = 1);
    quiet(s);
    GPU;
    T_EQ_INT(judge(s, s, 16, NULL).unknown, 0);
}

/* Product.md 5.6: pressure is recorded on hosts with 4 cores or fewer and does not void. */
T_CASE(telemetry, pressure_on_small_hosts)
{
    ht_telemetry s[2];
    quiet(s);
    s[1].psi_us = 900000;
    T_EQ_INT(judge(s, s, 4, NULL).red, 0);
    T_EQ_INT(judge(s, s, 5, NULL).red, 1u << HT_G_PSI);
}

/* Product.md 5.7: a host without cpufreq and thermal counters cannot yield admissible performance
 * evidence: guards that the default policy requires are unknown there. */
T_CASE(telemetry, host_without_clocks_is_not_admissible)
{
    ht_telemetry s[2];
    ht_err e = {0};
    ht_policy p;
    ht_arena *a;
    T_OK(ht_arena_new(&a, 0, &e), e);
    T_OK(ht_policy_parse(a, ht_policy_default, strlen(ht_policy_default), &p, &e), e);
    quiet(s);
    for (int i = 0; i < 2; i++) {
        s[i].has_clocks = false;
        s[i].thermal_events = HT_TELEMETRY_UNKNOWN;
        s[i].swap_ins = HT_TELEMETRY_UNKNOWN;
        s[i].cpu_total = s[i].cpu_busy = s[i].cpu_steal = HT_TELEMETRY_UNKNOWN;
    }
    uint32_t missing = judge(s, s, 2, NULL).unknown & p.required;
    T_EQ_INT(missing, 1u << HT_G_CLOCKS | 1u << HT_G_FOREIGN | 1u << HT_G_STEAL | 1u << HT_G_SWAP |
                          1u << HT_G_THROTTLE);
    ht_arena_free(a);
}

/* A counter that runs backwards (a container moved, a driver reloaded) is unknown, not zero. */
T_CASE(telemetry, backwards_is_unknown)
{
    ht_telemetry s[2];
    quiet(s);
    s[0].swap_ins = 5;
    s[0].psi_us = 9;
    s[0].thermal_events = 2;
    ht_guard_state st = judge(s, s, 16, NULL);
    T_EQ_INT(st.red, 0);
    T_CHECK(st.unknown & 1u << HT_G_SWAP && st.unknown & 1u << HT_G_PSI &&
                st.unknown & 1u << HT_G_THROTTLE,
            "unknown %x", st.unknown);
}

T_CASE(telemetry, live)
{
    ht_telemetry s[2];
    ht_arena *a;
    ht_err e = {0};
    volatile uint64_t sink = 1;
    T_OK(ht_arena_new(&a, 0, &e), e);
    ht_telemetry_take("", NULL, &s[0]);
    for (uint64_t i = 0; i < 50000000; i++) sink = sink * 3 + i;
    ht_telemetry_take("", NULL, &s[1]);
    T_CHECK(s[1].mono_ns > s[0].mono_ns && s[1].own_ns >= s[0].own_ns, "time stands still");
    T_CHECK(s[0].cpu_total > 0 && s[1].cpu_total >= s[0].cpu_total, "/proc/stat");
    ht_json *line = ht_telemetry_line(a, &s[1], s[0].mono_ns);
    T_CHECK(ht_json_get(line, "tNs")->i > 0, "no time in the line");
    ht_arena_free(a);
}
