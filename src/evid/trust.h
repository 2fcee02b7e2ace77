/* trust.h - who may say what: the trust root (trust.json) names public keys, the roles of each, and
 * how many distinct keys a role needs. It is the one file that is trusted because the user put it
 * there; everything else is believed through it. */
#ifndef HT_EVID_TRUST_H
#define HT_EVID_TRUST_H
#include "evid/dsse.h"

enum ht_role {
    HT_ROLE_BENCH, HT_ROLE_PROMOTE, HT_ROLE_INDEX, HT_ROLE_SIMULATE, HT_ROLE_RECEIPT, HT_ROLES
};
typedef struct {
    uint8_t pub[HT_ED25519_PUB];
    char id[HT_SHA256_HEX];
    unsigned roles;                  /* bit r: has enum ht_role r                                 */
} ht_trust_key;
typedef struct {
    uint32_t version;
    int64_t expires_unix;
    const ht_trust_key *key; size_t n_keys;
    uint32_t threshold[HT_ROLES];    /* distinct keys needed, >= 1                                */
} ht_trust;
const char *ht_role_name(int role);                    /* "bench"                                 */
int ht_role_by_name(const char *name, size_t n);       /* -1: none                                */
/* Canonical JSON, closed schema hetero/trust/1, key ids recomputed from the keys. */
HT_MUST_USE int ht_trust_parse(ht_arena *, const char *text, size_t n, ht_trust *out, ht_err *);
/* The document for a set of keys, appended to out. promote always needs two. */
HT_MUST_USE int ht_trust_write(const ht_trust *, ht_buf *out, ht_err *);
/* The envelope carries payload_type and good signatures of at least threshold[role] distinct keys
 * that hold the role, and the root has not expired at now_unix. HT_EGATE says what is missing. A
 * signature whose keyid names another key than the one that made it does not count. */
HT_MUST_USE int ht_trust_check(const ht_trust *, const ht_dsse *, enum ht_role,
                               const char *payload_type, int64_t now_unix, ht_err *);
#endif
