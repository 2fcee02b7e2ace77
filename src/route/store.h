/* store.h - where a machine keeps what it admits: one folder with the trust root, the policy, the
 * signed index and, for every promoted bundle, its statement, cost map and promotion. Nothing in it
 * is believed but trust.json (and policy.json, which is named by digest in every promotion).
 *
 *   trust.json  policy.json (absent: the default)  index.dsse.json  highwater.json
 *   bundles/<bundleId>/{statement,promotion}.dsse.json  costmap.json  amendments/<digest>.dsse.json
 */
#ifndef HT_ROUTE_STORE_H
#define HT_ROUTE_STORE_H
#include "evid/sched.h"
#include "evid/verify.h"
#include "route/index.h"

enum { HT_STORE_FILE = 64 << 20, HT_STORE_DAYS = 30 };   /* largest file; life of an index        */
typedef struct {
    ht_arena *a;
    const char *dir;
    int64_t now_unix;
    ht_trust trust;
    ht_policy policy;
    bool has_index;
    ht_index index;                  /* verified: signature, expiry, high-water mark, tombstones  */
} ht_store;
/* A folder without trust.json is HT_EIO naming the next step; an index that does not verify is
 * HT_EGATE: nothing is routed by it. The high-water mark is raised. */
HT_MUST_USE int ht_store_open(ht_arena *, const char *dir, int64_t now_unix, ht_store *out,
                                ht_err *);
/* Writes trust.json (must not exist) and makes the folder. policy NULL: the default stays in
 * force. */
HT_MUST_USE int ht_store_init(const char *dir, const ht_trust *, const char *policy, ht_err *);

/* Verify the bundle here and now, sign a promotion of its qualified cells with every key that
 * has the role, add it to what was signed before, and when enough distinct keys have signed,
 * put the entries into a new index signed by those keys that hold the role index. HT_EGATE: not
 * qualified, other policy, tombstoned; PENDING_SIGNATURE when one key
 * has signed and another must follow (the signature is kept). Cells that failed a gate enter the
 * index as negatives, also when none qualified, by a key with the role index alone. Bundles that
 * are not production eligible are admitted only where the policy in force is a fixture. As of every
 * function here that writes an index: CHANGED_MEANWHILE when another process wrote one since the
 * store was opened; nothing is lost then. */
HT_MUST_USE int ht_store_promote(ht_store *, const char *bundle_dir, const ht_key *const *keys,
                                 size_t n_keys, char id[HT_SHA256_HEX], ht_err *);
/* Entries of a bundle leave the index and a tombstone comes in. */
HT_MUST_USE int ht_store_revoke(ht_store *, const char *bundle_id, const char *reason,
                                const ht_key *const *keys, size_t n_keys, ht_err *);
/* Every entry of a bundle goes to another state (quarantined, stale), if the state machine has that
 * edge; one key. */
HT_MUST_USE int ht_store_demote(ht_store *, const char *bundle_id, int state,
                                const ht_key *const *keys, size_t n_keys, ht_err *);
/* May this scope be measured and promoted? HT_EGATE NEGATIVE: it failed before with these very
 * hashes (evidence.md 7.5). */
HT_MUST_USE int ht_store_may_nominate(const ht_store *, const char *scope_sha, ht_err *);
/* Set a bundle's routes aside at once and without a key, in a file of the store: it can only take
 * away. The rows of ht_store_routes() are then quarantined; a signed demotion makes it last. why: a
 * word. */
HT_MUST_USE int ht_store_mark(const ht_store *, const char *bundle_id, const char *why,
                              int64_t now_unix, ht_err *);
/* An amendment (evid/amend.h) of a bundle that is promoted here, after a full verification of both:
 * passed, its digest goes into the entries and its paper into the store; failed, the bundle is
 * revoked (evidence.md 7.11). HT_EGATE: OTHER_POLICY, NOT_PROMOTED, NOT_ADMISSIBLE_ENV (nothing is
 * changed), CANARY_FAILED (it is revoked now), or as of ht_amendment_verify(). */
HT_MUST_USE int ht_store_amend(ht_store *, const char *bundle_dir, const char *text, size_t n,
                               const ht_key *const *keys, size_t n_keys, ht_err *);
/* A new version with the same entries: prolongs the life of the index. */
HT_MUST_USE int ht_store_renew(ht_store *, const ht_key *const *keys, size_t n_keys, ht_err *);

/* Rows for the planner: every index entry with its cost, each with the outcome of its checks
 * (signatures of promotion and statement, digests, policy). state_sha: the machine's state now, for
 * amendments. Edges of all sound cost maps. */
HT_MUST_USE int ht_store_routes(const ht_store *, const char *state_sha, ht_route_entry **entries,
                                size_t *n, ht_route_edge **edges, size_t *n_edges, ht_err *);

/* Schedulers of the index, each with the first reason that keeps it out (HT_R_OK: none). Their
 * scope is empty (model_sha NULL) where their papers could not be read. state_sha NULL: the
 * machine's state is not judged. */
typedef struct {
    ht_sched_scope scope;
    char scope_sha[HT_SHA256_HEX], bundle_id[HT_SHA256_HEX];
    uint8_t state, reason;           /* enum ht_route_state, enum ht_reason                       */
} ht_sched_entry;
HT_MUST_USE int ht_store_schedules(const ht_store *, const char *state_sha, ht_sched_entry **list,
                                   size_t *n, ht_err *);
#endif
