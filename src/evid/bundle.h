/* bundle.h - the evidence of one sealed experiment: reading the inputs of a bundle into memory with
 * every rule of docs/bundle.md checked, and sealing a folder of inputs into a signed bundle. */
#ifndef HT_EVID_BUNDLE_H
#define HT_EVID_BUNDLE_H
#include "evid/dsse.h"
#include "evid/manifest.h"
#include "evid/policy.h"
#include "evid/scope.h"

enum { HT_BUNDLE_MAX = 1 << 30 };    /* bytes of all files of one bundle                          */

extern const uint8_t ht_phase_metric[HT_COMPLETE + 1]; /* enum ht_metric by enum ht_phase         */
typedef struct {                     /* one thing to be admitted, or refused                      */
    const char *id;                  /* "p512"; the samples' "bucket"                             */
    uint8_t metric;                  /* enum ht_metric                                            */
    ht_scope scope, ref;
    char scope_sha[HT_SHA256_HEX], ref_sha[HT_SHA256_HEX];
} ht_cell;
typedef struct {
    const ht_cell *cell; size_t n_cells;
    uint32_t pairs, null_pairs, requests;              /* requests: scored ones per slot and cell */
    uint32_t cpus;                   /* of the machine, as far as the process may use them        */
    uint64_t seed;
    const char *const *order; uint32_t n_blocks;       /* "NMMN" null blocks first, then "ABBA"   */
    bool synthetic;                  /* made up for tests: no hardware evidence                   */
    const char *policy_sha, *prompts_sha, *selection;  /* selection NULL: none                    */
    int64_t started_unix;
    char sha256[HT_SHA256_HEX];
} ht_design;
/* What block b of a design must be: ABBA and BAAB in turn, the seed's parity says which is first;
 * letters N and M in null blocks. Static storage. */
const char *ht_design_block(uint64_t seed, uint32_t b, bool null_run);

enum ht_status { HT_SM_OK, HT_SM_SUT_ERROR, HT_SM_TIMEOUT, HT_SM_OOM, HT_SM_BAD_OUTPUT,
                 HT_SM_ROUTE_MISMATCH, HT_SM_VOID, HT_SM_HARNESS, HT_SM_STATES };
typedef struct {
    uint32_t block, slot, attempt, pair, cell, request; /* cell: index; request: in its slot */
    char arm;                        /* N, M (null run), A (reference), B (candidate)             */
    uint8_t status;                  /* enum ht_status                                            */
    bool last;                       /* of the block's last attempt: the one that counts          */
    uint32_t n_prompt, n_out;
    uint64_t metric[HT_METRICS];     /* ns; 0: unknown or failed                                  */
    ht_guard_state guards;
} ht_sample;

typedef struct {                     /* quality/{ref,cand}.jsonl, counted                         */
    bool present;
    uint64_t prompts, exact, tokens, agree;            /* greedy continuations                    */
    uint64_t positions, top1, kld_sum_nano, kld_p999_nano;
    uint64_t len_ref, len_cand;
    uint64_t tasks, lost, won;       /* right by the reference only, by the candidate only        */
    char sha256[HT_SHA256_HEX];      /* of prompts.jsonl's digest, ref's and cand's, concatenated */
    char prompts_sha[HT_SHA256_HEX];
} ht_quality_counts;
typedef struct { const char *from, *to, *kind; uint64_t ns_per_token, fixed_ns; } ht_edge;

typedef struct {
    const ht_manifest *in;
    ht_policy policy;
    ht_design design;
    ht_sample *sample; size_t n_samples;
    uint32_t n_void_attempts;          /* of blocks                                               */
    ht_quality_counts quality;
    const ht_edge *edge; size_t n_edges;
    uint64_t mem_peak, warmup_ns;    /* over the candidate's counted attempts                     */
    bool dirty_build;
    bool unreadable;                 /* a reject or stale leaf of the machine could not be read   */
    char state_sha[HT_SHA256_HEX];
    const char *model_sha, *tok_sha, *tmpl_sha, *binary_sha, *assets_sha;
} ht_evidence;
/* Everything is borrowed from the manifest and the arena. HT_EFORMAT: the inputs contradict
 * themselves or the rules; the message starts with the rule's group (DESIGN, JOURNAL, SAMPLE, RAW,
 * MACHINE, SUBJECT, QUALITY). */
HT_MUST_USE int ht_evidence_read(ht_arena *, const ht_manifest *in, ht_evidence *out, ht_err *);

/* dir holds all inputs of a bundle and nothing else. Writes inputs.manifest.json, analysis/,
 * verdict, cost map, outputs.manifest.json and statement.dsse.json into it, signed by the bench
 * key. The folder is not renamed; its name should become id. A verdict that is not QUALIFIED is
 * no error: it is the result. */
HT_MUST_USE int ht_bundle_seal(const char *dir, const ht_key *bench, char id[HT_SHA256_HEX],
                                ht_err *);
/* The same from memory: makes dir (must not exist) and writes the inputs first. */
typedef struct { const char *path; const void *data; size_t n; } ht_bundle_file;
HT_MUST_USE int ht_bundle_write(const char *dir, const ht_bundle_file *, size_t n,
                                const ht_key *bench,
                                char id[HT_SHA256_HEX], ht_err *);
/* Names of the outputs, NULL-terminated. */
extern const char *const ht_bundle_outputs[];
#define HT_INTOTO_TYPE "https://in-toto.io/Statement/v1"
#define HT_PAYLOAD_TYPE "application/vnd.in-toto+json"
#define HT_PRED_EVIDENCE "urn:hetero:evidence:1"
#define HT_PRED_PROMOTION "urn:hetero:promotion:1"
/* The statement's payload for a sealed bundle, appended. */
struct ht_analysis;
HT_MUST_USE int ht_bundle_statement(const ht_evidence *, const struct ht_analysis *,
                                    const char *outputs_sha256, ht_buf *out, ht_err *);
#endif
