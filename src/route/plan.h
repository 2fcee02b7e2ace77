/* plan.h - the planner of evidence.md 7.10: which engine runs prefill and which decode, chosen from
 * promoted evidence by upper confidence bounds. Pure: the answer is a function of its arguments, in
 * any order of entries. Fail-closed: what is not known is refused, with a reason code; the
 * fall-back is the qualified reference or an error, as policy says. Signatures, digests and the
 * index were checked when the entries were loaded (index.h); the outcome of those checks is part of
 * an entry. */
#ifndef HT_ROUTE_PLAN_H
#define HT_ROUTE_PLAN_H
#include "evid/scope.h"

enum ht_reason {
    HT_R_OK, HT_R_NO_EVIDENCE, HT_R_OTHER_MODEL, HT_R_OTHER_TOKENIZER, HT_R_OTHER_TEMPLATE,
    HT_R_OTHER_PRECISION, HT_R_OTHER_SAMPLER, HT_R_OTHER_SPEC, HT_R_OTHER_BINARY, HT_R_OTHER_ASSETS,
    HT_R_OTHER_MACHINE, HT_R_OTHER_OS, HT_R_BUCKET, HT_R_BATCH, HT_R_CONTEXT, HT_R_NOT_PROMOTED,
    HT_R_BAD_SIGNATURE, HT_R_BAD_DIGEST, HT_R_OTHER_POLICY, HT_R_EXPIRED, HT_R_TOMBSTONED,
    HT_R_QUARANTINED, HT_R_STALE, HT_R_GUARD_RED, HT_R_MEMORY, HT_R_NO_EDGE, HT_R_MARGIN,
    HT_R_COSTLIER, HT_R_NEGATIVE, HT_R_NO_ENGINE, HT_R_NOT_QUALIFIED,
    HT_R_ROUTE_FAILED,               /* the route failed before the first token: the second try   */
    HT_REASONS
};
const char *ht_reason_name(int reason);                /* "NO_EVIDENCE"                           */

enum ht_route_state { HT_ST_NOMINATED, HT_ST_CANDIDATE, HT_ST_QUALIFIED, HT_ST_PROMOTED,
                      HT_ST_STALE, HT_ST_QUARANTINED, HT_ST_NEGATIVE, HT_ST_REVOKED, HT_STATES };
extern const char *const ht_state_names[HT_STATES + 1];          /* in this order, then NULL      */
const char *ht_state_name(int state);                  /* "promoted"                              */
int ht_state_by_name(const char *name);                /* -1: none                                */
/* The edges of evidence.md 7.11; anything else is refused. */
bool ht_state_may(int from, int to);

typedef struct {                     /* one row of the index with its cost-map entry              */
    ht_scope scope;
    char scope_sha[HT_SHA256_HEX], bundle_id[HT_SHA256_HEX], state_sha[HT_SHA256_HEX];
    uint8_t state;                   /* enum ht_route_state                                       */
    uint8_t checks;                  /* enum ht_reason of the first failed load check, or HT_R_OK */
    bool tombstoned, amended;        /* amended: a canary passed for the live state hash          */
    int64_t measured_unix;           /* when the bundle was closed                                */
    uint64_t p50_ucb_ns;             /* prefill: whole; decode: per token                         */
    uint64_t ref_lcb_ns;             /* reference, lower confidence bound, same unit              */
    uint64_t warmup_ns;              /* paid once; shared over expected_reuse requests            */
    uint64_t mem_peak;               /* bytes, upper bound                                        */
} ht_route_entry;
/* Upper bounds of handing a prompt's KV from one backend to another (docs/bundle.md, "Edges"). */
typedef struct {
    const char *from, *to;
    uint64_t ns_per_token, fixed_ns;
    const ht_scope *scope;           /* for whom: model, binary, machine; NULL: for any           */
} ht_route_edge;
typedef struct {
    ht_scope want[HT_PHASES];        /* identity of the request; backend and bucket are not read  */
    uint32_t n_prompt, n_new, batch, ctx;
    const char *reference;           /* its engine's name: "cpu"                                  */
    bool reference_qualified;
    const char *const *engines;      /* engines that exist here and now, NULL-terminated          */
    char state_sha[HT_SHA256_HEX];   /* live machine state                                        */
    bool guard_red;                  /* throttled, unplugged, foreign load: wait on the reference */
    bool mem_known; uint64_t mem_free, mem_reserve;
    int64_t now_unix, max_age_s;
    uint64_t min_gain_ppm;           /* over the reference: 10^6 + margin                         */
    uint32_t expected_reuse;         /* requests the warm-up is shared over, >= 1                 */
    bool error_on_unknown;           /* policy onUnknown                                          */
    /* Hysteresis: scope digests of the pair that ran last, "" for the reference; both "" or NULL:
     * none did. It stays unless another pair is better by the margin. */
    const char *current[HT_PHASES];
} ht_route_request;

typedef struct {
    char scope_sha[HT_SHA256_HEX], bundle_id[HT_SHA256_HEX];
    uint8_t phase;
    uint8_t reason;                  /* HT_R_OK: it was chosen                                    */
    const ht_route_entry *entry;
} ht_considered;
typedef struct {
    const char *engine[HT_PHASES];
    uint8_t reason[HT_PHASES];       /* HT_R_OK: promoted; else why the reference runs            */
    const ht_route_entry *entry[HT_PHASES];            /* NULL: reference                         */
    /* Of the phases that a route takes, hand-off included; 0 when none does. */
    uint64_t cost_ns, ref_cost_ns, edge_ns;
    ht_considered *considered; size_t n_considered;  /* every entry, sorted by scope, then bundle */
} ht_route_plan;
/* Entries and edges are borrowed by the result. HT_EGATE when policy forbids falling back. */
HT_MUST_USE int ht_route_choose(ht_arena *, const ht_route_request *, const ht_route_entry *entries,
                                size_t n, const ht_route_edge *, size_t n_edges, ht_route_plan *out,
                                ht_err *);
#endif
