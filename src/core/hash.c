/* hash.c - see hash.h. SHA-256 comes from libcrypto, which uses the processor's own
 * instructions. */
#include "core/hash.h"
#include "core/arena.h"
#include <openssl/evp.h>

struct ht_sha256 {
    EVP_MD_CTX *ctx;
};

int ht_sha256_new(ht_sha256 **out, ht_err *e)
{
    *out = NULL;
    ht_sha256 *h = ht_mem_alloc(sizeof *h);
    if (!h) return HT_FAIL(e, HT_ENOMEM, "no memory for a SHA-256 state");
    h->ctx = EVP_MD_CTX_new();
    if (!h->ctx || EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) != 1) {
        ht_sha256_free(h);
        return HT_FAIL(e, HT_ENOMEM, "libcrypto gave no SHA-256 state");
    }
    *out = h;
    return 0;
}

int ht_sha256_add(ht_sha256 *h, const void *p, size_t n, ht_err *e)
{
    if (n && EVP_DigestUpdate(h->ctx, p, n) != 1)
        return HT_FAIL(e, HT_EIO, "libcrypto failed to hash %zu bytes", n);
    return 0;
}

int ht_sha256_end(ht_sha256 *h, uint8_t out[HT_SHA256_BYTES], ht_err *e)
{
    int ok = EVP_DigestFinal_ex(h->ctx, out, NULL);
    ht_sha256_free(h);
    return ok == 1 ? 0 : HT_FAIL(e, HT_EIO, "libcrypto failed to finish a SHA-256");
}

void ht_sha256_free(ht_sha256 *h)
{
    if (!h) return;
    EVP_MD_CTX_free(h->ctx);
    ht_mem_free(h);
}

int ht_sha256_of(const void *p, size_t n, uint8_t out[HT_SHA256_BYTES], ht_err *e)
{
    ht_sha256 *h;
    HT_TRY(ht_sha256_new(&h, e));
    int rc = ht_sha256_add(h, p, n, e);
    if (rc) {
        ht_sha256_free(h);
        return rc;
    }
    return ht_sha256_end(h, out, e);
}

void ht_hex(const uint8_t *p, size_t n, char *out)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[p[i] >> 4];
        out[2 * i + 1] = digit[p[i] & 15];
    }
    out[2 * n] = 0;
}

uint64_t ht_hash64(const void *p, size_t n)
{
    const unsigned char *b = p;
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a offset basis and prime, 64 bits */
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3u;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u; /* SplitMix64 finaliser: FNV's low bits are weak */
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return h ^ h >> 31;
}
