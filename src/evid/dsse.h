/* dsse.h - signed envelopes: DSSE v1 (secure-systems-lab/dsse, protocol.md) with Ed25519 (RFC 8032)
 * through libcrypto, and the keys they use. A key id is the SHA-256 of the 32 raw public bytes,
 * hex; it is a hint for finding the key, never a proof: the signature is checked against the key
 * itself. */
#ifndef HT_EVID_DSSE_H
#define HT_EVID_DSSE_H
#include "core/arena.h"
#include "core/buf.h"
#include "core/hash.h"

enum { HT_ED25519_PUB = 32, HT_ED25519_SIG = 64 };
typedef struct ht_key ht_key;        /* a private key with its public half                        */
HT_MUST_USE int ht_key_new(ht_key **, ht_err *);              /* random                           */
HT_MUST_USE int ht_key_from_seed(ht_key **, const uint8_t seed[32], ht_err *);  /* tests          */
/* PEM (PKCS#8), mode 0600, refuses to overwrite. */
HT_MUST_USE int ht_key_save(const ht_key *, const char *path, ht_err *);
/* From PEM without a passphrase. HT_EGATE: a file that its mode opens to group or others; HT_EIO,
 * HT_EFORMAT. A pipe is taken as it is. */
HT_MUST_USE int ht_key_load(ht_key **, const char *path, ht_err *);
void ht_key_free(ht_key *);
void ht_key_public(const ht_key *, uint8_t pub[HT_ED25519_PUB]);
HT_MUST_USE int ht_key_id(const uint8_t pub[HT_ED25519_PUB], char hex[HT_SHA256_HEX], ht_err *);

/* Envelope of payload, signed by every key in order; appended to out as canonical JSON. */
HT_MUST_USE int ht_dsse_sign(const void *payload, size_t n, const char *payload_type,
                             const ht_key *const *keys, size_t n_keys, ht_buf *out, ht_err *);

typedef struct { char keyid[HT_SHA256_HEX]; uint8_t sig[HT_ED25519_SIG]; } ht_dsse_sig;
typedef struct {
    const char *type;                /* payloadType                                               */
    const uint8_t *payload; size_t n;
    const ht_dsse_sig *sig; size_t n_sigs;
} ht_dsse;
/* Parse an envelope (at most 16 MiB); nothing is verified yet. base64 and base64url are accepted,
 * as the specification says. An empty list of signatures is HT_EFORMAT. */
HT_MUST_USE int ht_dsse_parse(ht_arena *, const char *text, size_t n, ht_dsse *out, ht_err *);
/* Is sig a signature of this envelope by pub? *good is false on any doubt; HT_ENOMEM. */
HT_MUST_USE int ht_dsse_good(const ht_dsse *, const ht_dsse_sig *sig,
                             const uint8_t pub[HT_ED25519_PUB], bool *good, ht_err *);
#endif
