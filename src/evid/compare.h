/* compare.h - bundles of external control (product.md R9): this runtime against a foreign server on
 * the same prompts. Reading, analysis and verification; what the files mean is docs/bundle.md,
 * "Comparisons". A comparison has a statement type of its own: nothing can be promoted from it. */
#ifndef HT_EVID_COMPARE_H
#define HT_EVID_COMPARE_H
#include "evid/bundle.h"
#include "evid/stat.h"
#include "evid/trust.h"

#define HT_PRED_COMPARISON "urn:hetero:comparison:1"
#define HT_COMPARE_DESIGN  "hetero/comparedesign/1"
enum { HT_CMP_CONTEXTS = 8, HT_CMP_MIN_REPS = 6 };
/* Who answers: N and M are this runtime in the null run, H is this runtime, F the foreign one. */
enum ht_cmp_arm { HT_CMP_H, HT_CMP_F, HT_CMP_M, HT_CMP_N, HT_CMP_ARMS };
extern const char *const ht_cmp_arm_names[HT_CMP_ARMS + 1];      /* "H", "F", "M", "N"          */
extern const char *const ht_cmp_apis[];                          /* "llama", "openai", "ollama" */

typedef struct {
    uint32_t context[HT_CMP_CONTEXTS], n_contexts, reps, null_reps, max_new;
    uint32_t cpus;
    const char *api;
    bool synthetic;
    const char *policy_sha, *prompts_sha, *class_sha;
    char sha256[HT_SHA256_HEX];
} ht_cmp_design;
/* Pairs are counted through: the null run of every context first, then the comparison of every
 * context. */
typedef struct { bool null_run; uint32_t context_i, rep; } ht_cmp_place;
uint32_t ht_cmp_pairs(const ht_cmp_design *);
ht_cmp_place ht_cmp_place_of(const ht_cmp_design *, uint32_t pair);
/* Who runs in slot 1 or 2 of a pair: rotated, so that neither is always first. */
enum ht_cmp_arm ht_cmp_arm_of(const ht_cmp_design *, uint32_t pair, uint32_t slot);

typedef struct {
    uint32_t pair;
    uint8_t arm, status;             /* enum ht_cmp_arm, enum ht_status                           */
    uint32_t n_out;
    uint64_t metric[HT_METRICS];     /* ns; 0: unknown or failed. e2e: to the last token          */
    const int32_t *ids; uint32_t n_ids;               /* none: the server gives none              */
    bool said_prompt;                /* the server counted the prompt, and as it was sent         */
    ht_guard_state guards;
} ht_cmp_sample;
typedef struct {
    const ht_manifest *in;
    ht_policy policy;
    ht_cmp_design design;
    ht_cmp_sample *sample; size_t n_samples;          /* two a pair, in the order they were run   */
    const char *model_sha, *tok_sha, *binary_sha, *assets_sha;
} ht_comparison;
/* Everything is borrowed from the manifest and the arena. HT_EFORMAT: the message starts with the
 * rule's group, as of ht_evidence_read(). */
HT_MUST_USE int ht_comparison_read(ht_arena *, const ht_manifest *in, ht_comparison *out, ht_err *);

/* dir holds all inputs and nothing else; writes manifests, analysis and the signed statement. */
HT_MUST_USE int ht_comparison_seal(const char *dir, const ht_key *bench, char id[HT_SHA256_HEX],
                                   ht_err *);
typedef struct {
    char id[HT_SHA256_HEX], bench_key[HT_SHA256_HEX];
    const ht_json *analysis;
} ht_compared;
HT_MUST_USE int ht_comparison_verify(ht_arena *, const char *dir, const ht_trust *,
                                     int64_t now_unix, ht_compared *out, ht_err *);
/* Is the bundle in dir a comparison? By the schema of its design.json; false on any doubt. */
bool ht_is_comparison(const char *dir);
#endif
