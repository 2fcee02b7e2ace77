/* verdict.h - from evidence to a verdict: pairs, statistics, tails, quality, gates, cost map,
 * each a canonical document that is a pure function of the inputs (the policy is one of them). */
#ifndef HT_EVID_VERDICT_H
#define HT_EVID_VERDICT_H
#include "evid/bundle.h"
#include "evid/stat.h"

/* The gates of a cell, all always present, in this order. */
enum ht_gate { HT_GATE_ENVIRONMENT, HT_GATE_VOIDS, HT_GATE_NULL_RUN, HT_GATE_COMPLETE,
               HT_GATE_COVERAGE, HT_GATE_QUALITY, HT_GATE_PERF, HT_GATE_SIGN, HT_GATE_TAIL,
               HT_GATES };
extern const char *const ht_gate_names[HT_GATES + 1];           /* "environment", ...             */
enum ht_gate_result { HT_PASS, HT_FAILED, HT_ERROR, HT_NOT_RUN, HT_NOT_APPLICABLE,
                      HT_GATE_RESULTS };
extern const char *const ht_gate_result_names[HT_GATE_RESULTS + 1];
enum ht_class { HT_QUALIFIED, HT_FAIL_PERF, HT_FAIL_QUALITY, HT_FAIL_TAIL, HT_INCONCLUSIVE_ENV,
                HT_INCONCLUSIVE_STATS, HT_INVALID_EVIDENCE, HT_NOT_ADMISSIBLE_ENV, HT_CLASSES };
extern const char *const ht_class_names[HT_CLASSES + 1];        /* "QUALIFIED", ...               */

typedef struct { uint32_t pair; uint64_t ref_ns, cand_ns /* 0: failed */, ratio_ppm; } ht_pair;
typedef struct {
    const ht_pair *pair; uint32_t n;
    bool ref_failed, missing;       /* a reference request failed; a pair is missing (void block) */
    bool has_stat;
    ht_stat stat;
} ht_pairs;
typedef struct {
    ht_pairs main, null_run;
    bool holm;
    uint32_t requests, misses, worst_pair;
    uint64_t slo_ns;
    uint8_t tail;                    /* enum ht_tail                                              */
    uint64_t p50, p50_ucb, p95_ucb /* 0: unknown */, ref_p50_lcb;
    uint8_t gate[HT_GATES];          /* enum ht_gate_result                                       */
    const char *why[HT_GATES];       /* a word; "OK" when passed                                  */
    uint8_t cls;                     /* enum ht_class                                             */
    bool route;                      /* qualified, and a phase of a plan: can be promoted         */
} ht_cell_result;
typedef struct ht_analysis {
    ht_cell_result *cell;            /* [design.n_cells]                                          */
    uint8_t cls;                     /* QUALIFIED when every cell is; else the gravest            */
    uint32_t n_routes;
    bool hardware_evidence, production_eligible;
} ht_analysis;
/* Pure. HT_EARG only for what the statistics cannot hold. */
HT_MUST_USE int ht_analyze(ht_arena *, const ht_evidence *, ht_analysis *out, ht_err *);
/* PASS for a list of gates: all present and passed, or not applicable where policy allows; a list
 * without gates is not a pass. */
bool ht_gates_pass(const uint8_t *gate, size_t n, uint32_t may_skip);

/* The i-th document of ht_bundle_outputs, canonical, appended. */
HT_MUST_USE int ht_analysis_write(const ht_evidence *, const ht_analysis *, size_t i, ht_buf *out,
                                  ht_err *);
#endif
