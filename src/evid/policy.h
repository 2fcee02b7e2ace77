/* policy.h - the gate policy (evidence.md 7.6): how many pairs, which gain, which tail, which
 * quality, which machine state. Data, named by its digest; closed schema hetero/policy/1. */
#ifndef HT_EVID_POLICY_H
#define HT_EVID_POLICY_H
#include "evid/schema.h"
#include "core/hash.h"

/* Telemetry of a slot, decided before timings are read (evidence.md 3.7). Names in this order. */
enum ht_guard { HT_G_AC, HT_G_CLOCKS, HT_G_ECC, HT_G_FOREIGN, HT_G_GPU_EVENTS, HT_G_GPU_PROCS,
                HT_G_CGROUP, HT_G_PSI, HT_G_STEAL, HT_G_SUSPEND, HT_G_SWAP, HT_G_THROTTLE,
                HT_GUARDS };
extern const char *const ht_guard_names[HT_GUARDS + 1];         /* "acOnline", ...                */

enum ht_metric { HT_M_TTFT, HT_M_TPOT, HT_M_E2E, HT_METRICS };
extern const char *const ht_metric_names[HT_METRICS + 2];     /* "ttftNs","tpotNs","e2eNs","cell" */

typedef struct {
    const char *id;
    bool fixture;                    /* for tests: never eligible for production                  */
    uint32_t min_pairs, null_pairs;
    uint64_t null_half_width_ppm;
    uint64_t alpha_ppm, min_lower_ppm;
    bool sign_test;
    uint64_t tail_conf_ppm, tail_quantile_ppm, tail_slo_ns /* 0: relative */, tail_slo_ref_ppm;
    uint8_t tail_metric;             /* enum ht_metric; HT_METRICS: the cell's own                */
    const char *corpus_sha;          /* NULL: not fixed                                           */
    uint64_t kld_mean_micro, kld_p999_micro, exact_ppm, top1_ppm, length_ppm[2], task_ppm;
    uint64_t max_foreign_ppm, max_psi_ppm, max_steal_ppm;
    uint32_t psi_min_cpus;           /* fewer CPUs: pressure is recorded and does not void        */
    uint32_t required;               /* bit per ht_guard that must be known                       */
    uint64_t max_void_ppm;
    uint32_t retries;                /* of one block                                              */
    uint32_t may_skip;               /* bit per ht_gate (verdict.h) that may be NOT_APPLICABLE    */
    uint32_t max_age_days;
    bool canary_on_stale, error_on_unknown;
    uint64_t plan_margin_ppm;        /* least gain of a route over the reference, 10^6 + margin   */
    char sha256[HT_SHA256_HEX];      /* of the document                                           */
} ht_policy;
HT_MUST_USE int ht_policy_parse(ht_arena *, const char *text, size_t n, ht_policy *out, ht_err *);
/* The policy in force where the user has put none: its canonical bytes, NUL-terminated. */
extern const char ht_policy_default[];

/* What a slot's telemetry says: bits of ht_guard. */
typedef struct { uint32_t unknown, red; } ht_guard_state;
/* guards: {"acOnline":true,"stealPpm":0,...}, every guard named, each a value or the unknown form
 * (evidence.md 7.1). cpus: of the machine. HT_EFORMAT. */
HT_MUST_USE int ht_guards_read(const ht_json *guards, const ht_policy *, uint32_t cpus,
                               ht_guard_state *out, ht_err *);
#endif
