/* hash.h - SHA-256 (FIPS 180-4) through libcrypto. */
#ifndef HT_CORE_HASH_H
#define HT_CORE_HASH_H
#include "core/err.h"

enum { HT_SHA256_BYTES = 32, HT_SHA256_HEX = 65 };
typedef struct ht_sha256 ht_sha256;
HT_MUST_USE int ht_sha256_new(ht_sha256 **, ht_err *);
HT_MUST_USE int ht_sha256_add(ht_sha256 *, const void *p, size_t n, ht_err *);
HT_MUST_USE int ht_sha256_end(ht_sha256 *, uint8_t out[HT_SHA256_BYTES], ht_err *);  /* frees too */
void ht_sha256_free(ht_sha256 *);
HT_MUST_USE int ht_sha256_of(const void *p, size_t n, uint8_t out[HT_SHA256_BYTES], ht_err *);
void ht_hex(const uint8_t *p, size_t n, char *out /* 2n+1 */);
/* 64-bit mixing hash (SplitMix64 finaliser over FNV-1a) for tables, not for identity. */
uint64_t ht_hash64(const void *p, size_t n);
#endif
