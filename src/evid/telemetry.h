/* telemetry.h - what else happened on the machine while something was measured: counters taken
 * before and after, and the guards that follow from their differences (evidence.md 3.7). Guards
 * are decided from these alone, before any timing is looked at. */
#ifndef HT_EVID_TELEMETRY_H
#define HT_EVID_TELEMETRY_H
#include "evid/env.h"

enum { HT_TELEMETRY_UNKNOWN = -1 };
typedef struct {
    uint64_t mono_ns, boot_ns;       /* CLOCK_MONOTONIC, CLOCK_BOOTTIME */
    /* Ticks of all CPUs since boot (/proc/stat); own_ns: CPU time of this process and of those
     * of its children that have ended. Counters of -1 are not known here. */
    int64_t cpu_total, cpu_busy, cpu_steal, ticks_per_s;
    uint64_t own_ns;
    int64_t psi_us;                  /* time in which some task waited for a CPU */
    int64_t swap_ins, throttled /* by the control group */, thermal_events;
    int ac_online;                   /* 1, 0, -1 */
    bool has_clocks;                 /* clocks below are of a machine that shows them */
    uint64_t clocks;                 /* hash of governor, preference and boost */
    /* the clocks were others inside the slot (ht_telemetry_fold) */
    bool moved;
    bool has_gpu, gpu_known;
    uint64_t gpu_events, gpu_ecc; uint32_t gpu_procs;
} ht_telemetry;
/* root as in env.h; gpus NULL: none. Whatever cannot be read is unknown: there is no error. */
void ht_telemetry_take(const char *root, const ht_gpus *gpus, ht_telemetry *out);
/* What was true at any of the seconds inside a slot is true of the slot: a supply that was off,
 * clocks that moved, events and processes of a GPU. after: the counters taken at its end. */
void ht_telemetry_fold(const ht_telemetry *second, size_t n, ht_telemetry *after);
/* gap[2]: around the idle time before the slot (pressure is read there: during the slot it would
 * count the measured program itself); slot[2]: around the slot. Every guard of policy.h by name:
 * a value, or {"known":false,"reason":WORD}. */
ht_json *ht_telemetry_guards(ht_arena *, const ht_telemetry gap[2], const ht_telemetry slot[2]);
/* One line for machine/telemetry.jsonl: the counters, times as offsets from origin_ns. */
ht_json *ht_telemetry_line(ht_arena *, const ht_telemetry *, uint64_t origin_ns);
#endif
