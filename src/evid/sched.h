/* sched.h - bundles of scheduler evidence (evidence.md 6): answers to one set of arrivals from a
 * server that serialises prompts (arm A, the reference) and from one that computes them beside
 * running answers (arm B). Reading, analysis, verification; what the files mean is docs/bundle.md,
 * "Schedulers". */
#ifndef HT_EVID_SCHED_H
#define HT_EVID_SCHED_H
#include "evid/bundle.h"
#include "evid/stat.h"
#include "evid/trust.h"

#define HT_PRED_SCHEDULER "urn:hetero:scheduler:1"
#define HT_SCHED_DESIGN   "hetero/scheddesign/1"
#define HT_SCHED_ANALYSIS "analysis/sched.json"
enum {
    HT_SCHED_RATES = 3, HT_SCHED_KINDS = 3,
    HT_SCHED_SCENARIOS = 1 + HT_SCHED_KINDS * HT_SCHED_RATES, /* 0: one request at a time         */
    HT_SCHED_REPS = 4, HT_SCHED_MIN_REQUESTS = 24, HT_SCHED_REQUESTS = 1000,
    HT_SCHED_DELTA = 30000,            /* ppm: what "not worse" leaves; a fixture may leave more  */
    HT_SCHED_WAITS = 10,               /* starvation: a first token after so many TTFT objectives */
};
extern const char *const ht_sched_kinds[HT_SCHED_KINDS + 1];    /* "burst", "poisson", "trace"    */

/* What is admitted: prompts of at most max_prompt tokens beside answers, within an objective for
 * the time per token, on this server and no other. */
typedef struct {
    uint32_t ctx_max, slots, threads, ubatch, max_prompt, max_new, tpot_ms, ttft_ms;
    uint64_t kv_positions;           /* of the pool; 0: slots times context                       */
    const char *act, *kv, *weights, *backend;
    const char *model_sha, *tok_sha, *binary_sha, *assets_sha, *class_sha, *instance, *os;
} ht_sched_scope;
/* Canonical bytes, appended; HT_EARG when a member is missing. */
HT_MUST_USE int ht_sched_scope_write(const ht_sched_scope *, ht_buf *out, ht_err *);
/* From canonical bytes; borrows from the arena. */
HT_MUST_USE int ht_sched_scope_parse(ht_arena *, const char *text, size_t n, ht_sched_scope *out,
                                     ht_err *);
/* The member in which a promoted scope and the server at hand differ first, in words; NULL: none.
 * The lengths are no part of it: a longer prompt is not overlapped. */
const char *ht_sched_scope_differs(const ht_sched_scope *promoted, const ht_sched_scope *here);

typedef struct {
    uint64_t at_ns;
    uint32_t n_prompt, max_new;
    bool is_long;                    /* its class: more than a quarter of the longest prompt      */
} ht_arrival;
enum ht_sched_status { HT_SS_OK, HT_SS_REJECTED, HT_SS_FAILED, HT_SS_STATES };
typedef struct {
    uint8_t status;                  /* enum ht_sched_status                                      */
    uint64_t intended_ns, send_lag_ns, end_ns;
    const uint64_t *t_ns;            /* of each token                                             */
    const int32_t *tok; uint32_t n;
} ht_sched_sample;
typedef struct {                     /* one server: arm of a pair                                 */
    ht_sched_sample *sample;         /* [requests]                                                */
    uint64_t bounds, misses, idle_queued, overlapped, serialised;
    int64_t exit_status;
    ht_guard_state guards;
} ht_sched_run;
typedef struct {
    const ht_manifest *in;
    ht_policy policy;
    ht_sched_scope scope;
    char scope_sha[HT_SHA256_HEX];
    const char *scope_text;          /* canonical                                                 */
    uint32_t reps, requests, cpus, rate_ppm[HT_SCHED_RATES];
    uint64_t saturation_uhz, delta_ppm, max_wait_ns;
    int64_t started_unix;
    bool synthetic, dirty, unreadable;
    const ht_arrival *arrival;       /* [reps][scenarios][requests]                               */
    ht_sched_run *run;               /* [reps * scenarios pairs][arm A, arm B]                    */
    char state_sha[HT_SHA256_HEX];
} ht_schedule;
/* Which arm is first in a pair: A, B, B, A and so on. */
int ht_sched_first(uint32_t pair);
/* Mean time between arrivals at a rate, ns. */
uint64_t ht_sched_gap(uint64_t saturation_uhz, uint32_t rate_ppm);
/* Everything is borrowed from the manifest and the arena. HT_EFORMAT: the message starts with the
 * rule's group, as of ht_evidence_read(). */
HT_MUST_USE int ht_schedule_read(ht_arena *, const ht_manifest *in, ht_schedule *out, ht_err *);

/* The gates, all always present, in this order. */
enum ht_sched_gate { HT_SG_ENVIRONMENT, HT_SG_COMPLETE, HT_SG_QUALITY, HT_SG_CALIBRATION,
                     HT_SG_STARVATION, HT_SG_RECOVERY, HT_SG_ATTAINMENT, HT_SG_DEADLINES,
                     HT_SG_SINGLE_FLOW, HT_SG_CLASSES, HT_SG_CONSERVATION, HT_SG_MONOTONE,
                     HT_SG_GAIN, HT_SG_GATES };
typedef struct {
    uint8_t gate[HT_SG_GATES];       /* enum ht_gate_result                                       */
    uint8_t cls;                     /* enum ht_class                                             */
    bool hardware_evidence, production_eligible;
} ht_sched_verdict;
/* dir holds all inputs and nothing else; writes manifests, analysis and the signed statement. */
HT_MUST_USE int ht_schedule_seal(const char *dir, const ht_key *bench, char id[HT_SHA256_HEX],
                                 ht_err *);
typedef struct {
    char id[HT_SHA256_HEX], bench_key[HT_SHA256_HEX], statement_sha[HT_SHA256_HEX];
    char analysis_sha[HT_SHA256_HEX];
    ht_schedule evidence;
    ht_sched_verdict verdict;
    const ht_json *analysis;
} ht_scheduled;
HT_MUST_USE int ht_schedule_verify(ht_arena *, const char *dir, const ht_trust *, int64_t now_unix,
                                   ht_scheduled *out, ht_err *);
/* Is the bundle in dir one of these? By the schema of its design.json; false on any doubt. */
bool ht_is_schedule(const char *dir);
#endif
