/* harness.h - runs a sealed paired experiment and writes everything a bundle takes in: design,
 * prompts, journal, raw streams, samples, machine, telemetry (docs/harness.md, docs/bundle.md). It
 * knows no model and no clock: the caller's functions run a slot in a fresh process, tell the time
 * and read the counters, so that tests drive it with made-up ones.
 *
 * Order of one slot: idle gap (pressure is read there), counters, slot, counters, guards. The
 * guards are decided and written to the journal before any time of the slot is looked at. A red
 * guard voids the whole block, which is run again as often as the policy allows; nothing is
 * thrown away. */
#ifndef HT_EVID_HARNESS_H
#define HT_EVID_HARNESS_H
#include "evid/bundle.h"
#include "evid/telemetry.h"

typedef struct {                     /* one request of a slot, the same bytes in both arms */
    const char *bytes; size_t n;     /* request.bin: canonical JSON hetero/request/1 */
    const int32_t *prompt; uint32_t n_prompt, max_new;
} ht_bench_request;
typedef struct { uint64_t t_ns; uint32_t len, n_tok; const int32_t *tok; } ht_bench_chunk;
typedef struct {
    const char *response; size_t n_response;           /* raw bytes as they came */
    const ht_bench_chunk *chunk; size_t n_chunks;      /* their lengths sum to n_response */
    const char *end;                 /* "DONE", "LENGTH_MET", "EOF_EARLY", "RESET" */
    const char *receipt;             /* JSON, or NULL */
    uint8_t status;                  /* enum ht_status; not VOID, not HARNESS */
    uint64_t intended_ns, sent_ns;   /* on the clock of now_ns */
} ht_bench_answer;
typedef struct {
    ht_bench_answer *answer;         /* [n] as many as requests, from the arena */
    int exit;                        /* of the process */
    uint64_t peak_bytes, warmup_ns;
    const char *diagnostics;         /* its standard error, or NULL */
} ht_bench_slot;

typedef struct {
    void *user;
    uint64_t (*now_ns)(void *user);
    void (*rest)(void *user, uint64_t ns);             /* let that much time pass */
    void (*counters)(void *user, ht_telemetry *out);
    /* Counters taken once a second inside the slot that was run last; NULL allowed: none are. */
    size_t (*seconds)(void *user, const ht_telemetry **list);
    HT_MUST_USE int (*machine)(void *user, ht_arena *, ht_json **doc, ht_err *);
    /* Run the requests of one arm ('A', 'N', 'M' are the reference, 'B' the candidate) in a fresh
     * process. An error here is the harness's own (a process that could not be started) and
     * voids the block; what goes wrong inside is an answer with its status. */
    HT_MUST_USE int (*slot)(void *user, char arm, const ht_bench_request *, size_t n, ht_arena *,
                            ht_bench_slot *out, ht_err *);
    void (*progress)(void *user, uint32_t slots_done, uint32_t slots_all);   /* may be NULL */
    bool (*cancelled)(void *user);   /* may be NULL */
} ht_bench_ops;

typedef struct {
    const ht_cell *cell; size_t n_cells;               /* id, metric, scope, ref; sorted by id */
    uint32_t pairs, null_pairs, requests, warmups, cpus, n_vocab;
    uint64_t seed, spacing_ns, gap_ns;
    bool synthetic;
    int64_t started_unix;
    const char *policy; size_t n_policy;               /* its bytes */
    /* The bundle that the candidate was selected by (64 hex digits; NULL: none) and the digests of
     * its prompts: a prompt of them is refused, so that selection and confirmation share no sample.
     * */
    const char *selection; const char *const *used; size_t n_used;
    const ht_bundle_file *extra; size_t n_extra;       /* subject/, build/, quality/ */
} ht_bench_plan;
/* May an experiment under the policy have so many pairs? Multiples of 4, at least what the policy
 * asks for; HT_EARG says both. */
HT_MUST_USE int ht_bench_pairs_check(const ht_policy *, uint32_t pairs, uint32_t null_pairs,
                                     ht_err *);
/* Runs the whole experiment into dir, which is made and must not exist. What is left to do is
 * ht_bundle_seal. HT_ECANCELLED leaves the folder with its journal unclosed: not a bundle. */
HT_MUST_USE int ht_bench_run(const ht_bench_plan *, const ht_bench_ops *, const char *dir,
                             ht_err *);
/* Prompt k of an experiment: n random ids; the first one is different in every prompt, so that no
 * prefix is shared and no cache of one request serves another. Everything from the arena. */
HT_MUST_USE int ht_bench_prompt(ht_arena *, uint64_t seed, uint32_t n_vocab, uint32_t k, uint32_t n,
                                uint32_t max_new, ht_bench_request *out, ht_err *);
/* Number of tokens of the prompt of a request: bucket's least, middle, greatest, in turn. */
uint32_t ht_bench_length(const ht_scope *, uint32_t pair, uint32_t request);
#endif
