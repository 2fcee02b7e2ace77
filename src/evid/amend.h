/* amend.h - amendments (evidence.md 5): a field of the machine's state changed, a canary was run
 * in the new state, and the bundle's routes may be taken there too, until the amendment expires. A
 * canary is four pairs of the reference and the route on the same prompts: the route must win (by
 * the policy's own measure) each of them, its estimate must lie in the bundle's interval or within
 * delta of it, and its tokens must be the reference's. It restores, it never widens: the bundle's
 * model, binary, machine, cells and policy are what they were.
 *
 * The paper is an in-toto statement signed by role bench; everything in it but times and tokens is
 * recomputed from the bundle (docs/bundle.md, "Amendments"). */
#ifndef HT_EVID_AMEND_H
#define HT_EVID_AMEND_H
#include "evid/verify.h"

#define HT_PRED_AMENDMENT "urn:hetero:amendment:1"
enum { HT_CANARY_PAIRS = 4, HT_CANARY_SLOTS = 2 * HT_CANARY_PAIRS, HT_AMEND_DAYS = 30 };
enum ht_canary_result { HT_CANARY_PASSED, HT_CANARY_FAILED, HT_CANARY_NOT_ADMISSIBLE,
                        HT_CANARY_RESULTS };
extern const char *const ht_canary_names[HT_CANARY_RESULTS + 1];     /* "PASSED", ...             */

typedef struct {
    uint64_t ref_ns, cand_ns;        /* of the cell's metric; 0: the request failed               */
    const int32_t *ref, *cand; size_t n_ref, n_cand;     /* tokens written                        */
} ht_canary_pair;
typedef struct { ht_canary_pair pair[HT_CANARY_PAIRS]; } ht_canary_cell;
typedef struct {
    const ht_json *machine;          /* hetero/machine/1, now                                     */
    const ht_json *guards;           /* array [HT_CANARY_SLOTS], as of sample lines               */
    const ht_canary_cell *cell; size_t n_cells;          /* of the qualified cells, in order      */
    int64_t measured_unix;
} ht_canary;
/* May the machine's state of now be amended for this bundle? HT_EGATE: NOT_AMENDABLE (the
 * policy has no canary, or the driver under compiled kernels changed: a new bundle is needed),
 * OTHER_MACHINE, NOTHING_CHANGED, UNREADABLE_FIELD, NOT_QUALIFIED. */
HT_MUST_USE int ht_amendable(const ht_verified *, const ht_json *machine, ht_err *);
/* The payload of the statement, appended; *result (NULL allowed): enum ht_canary_result. */
HT_MUST_USE int ht_amendment_write(const ht_verified *, const ht_canary *, ht_buf *out,
                                   uint8_t *result, ht_err *);

typedef struct {
    char sha256[HT_SHA256_HEX];      /* of the statement's payload                                */
    const char *bundle_id, *costmap_sha, *policy_sha, *state_sha;    /* borrowed from the arena   */
    uint8_t result;
    int64_t measured_unix, expires_unix;
    const ht_json *predicate;
} ht_amendment;
/* Envelope, signature by role bench, form and expiry. HT_EGATE: BAD_SIGNATURE, UNKNOWN_TYPE,
 * AMENDMENT_EXPIRED, AMENDMENT_NOT_YET_VALID (measured in the future). */
HT_MUST_USE int ht_amendment_open(ht_arena *, const char *text, size_t n, const ht_trust *,
                                  int64_t now_unix, ht_amendment *out, ht_err *);
/* The same, and every figure against the bundle that it amends. HT_EFORMAT RECOMPUTED, or as of
 * ht_amendable(). An amendment whose canary failed verifies: read out->result. */
HT_MUST_USE int ht_amendment_verify(ht_arena *, const char *text, size_t n, const ht_trust *,
                                    int64_t now_unix, const ht_verified *, ht_amendment *out,
                                    ht_err *);
#endif
