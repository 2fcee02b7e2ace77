/* verify.h - is this bundle what it says? Everything that can be recomputed is recomputed, byte for
 * byte; nothing is believed but the trust root. Offline, and on any machine. */
#ifndef HT_EVID_VERIFY_H
#define HT_EVID_VERIFY_H
#include "evid/trust.h"
#include "evid/verdict.h"

typedef struct {
    char id[HT_SHA256_HEX];
    ht_evidence evidence;            /* borrowed from the arena                                   */
    ht_analysis analysis;
    ht_manifest in, out;
    char statement_sha[HT_SHA256_HEX];                 /* of the statement's payload              */
    char bench_key[HT_SHA256_HEX];   /* one key that signed it                                    */
} ht_verified;
/* HT_EFORMAT, HT_EIO: the bytes are wrong; HT_EGATE: a signature or a type is. The message starts
 * with what refused: UNKNOWN_TYPE, BAD_SIGNATURE, MANIFEST, DESIGN, RECOMPUTED, ... A good bundle
 * with a bad verdict verifies: read analysis.cls. */
HT_MUST_USE int ht_bundle_verify(ht_arena *, const char *dir, const ht_trust *, int64_t now_unix,
                                 ht_verified *out, ht_err *);
/* The one door for statements: parse an envelope, check it against the trust root for this
 * role, and give back its predicate. Any other predicate type is HT_EGATE UNKNOWN_TYPE. */
HT_MUST_USE int ht_statement_open(ht_arena *, const char *text, size_t n, const ht_trust *,
                                  enum ht_role, const char *predicate_type, int64_t now_unix,
                                  ht_dsse *env, const ht_json **statement, ht_err *);
#endif
