/* dsse.c - envelopes and keys; see dsse.h. */
#include "evid/dsse.h"
#include "core/json.h"
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_ENVELOPE = 16 << 20, MAX_SIGS = 64 };
struct ht_key {
    EVP_PKEY *pkey;
    uint8_t pub[HT_ED25519_PUB];
};

static int fail_crypto(const char *what, ht_err *e)
{
    char text[120];
    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    ERR_clear_error();
    return HT_FAIL(e, HT_EIO, "%s: libcrypto says %s", what, text);
}

/* Takes pkey over in every case. */
static int wrap(ht_key **out, EVP_PKEY *pkey, const char *what, ht_err *e)
{
    if (!pkey) return fail_crypto(what, e);
    if (EVP_PKEY_get_id(pkey) != EVP_PKEY_ED25519) {
        EVP_PKEY_free(pkey);
        return HT_FAIL(e, HT_EFORMAT, "%s: not an Ed25519 key", what);
    }
    ht_key *k = ht_mem_alloc(sizeof *k);
    size_t n = sizeof k->pub;
    if (!k || EVP_PKEY_get_raw_public_key(pkey, k->pub, &n) != 1 || n != sizeof k->pub) {
        ht_mem_free(k);
        EVP_PKEY_free(pkey);
        return HT_FAIL(e, HT_ENOMEM, "%s: no memory for the key", what);
    }
    k->pkey = pkey;
    *out = k;
    return 0;
}

int ht_key_new(ht_key **out, ht_err *e)
{
    return wrap(out, EVP_PKEY_Q_keygen(NULL, NULL, "ED25519"), "new key", e);
}

int ht_key_from_seed(ht_key **out, const uint8_t seed[32], ht_err *e)
{
    return wrap(out, EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, seed, 32), "seed", e);
}

int ht_key_save(const ht_key *k, const char *path, ht_err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return HT_FAIL(e, HT_EIO, "key file %s: %s%s", path, strerror(errno),
                       errno == EEXIST ? "; a key is never overwritten, choose another name" : "");
    FILE *f = fdopen(fd, "w");
    if (!f) {
        close(fd);
        unlink(path);
        return HT_FAIL(e, HT_EIO, "key file %s: %s", path, strerror(errno));
    }
    int good = PEM_write_PrivateKey(f, k->pkey, NULL, NULL, 0, NULL, NULL) == 1;
    good = fflush(f) == 0 && fsync(fd) == 0 && good;
    good = fclose(f) == 0 && good;
    if (good) return 0;
    unlink(path);
    return HT_FAIL(e, HT_EIO, "key file %s could not be written", path);
}

/* Nobody is asked for a passphrase: a key that needs one is none to sign with unattended. */
static int no_passphrase(char *out, int size, int writing, void *user)
{
    (void)out;
    (void)size;
    (void)writing;
    (void)user;
    return -1;
}

int ht_key_load(ht_key **out, const char *path, ht_err *e)
{
    struct stat st;
    FILE *f = fopen(path, "re");
    if (!f) return HT_FAIL(e, HT_EIO, "key file %s: %s", path, strerror(errno));
    if (fstat(fileno(f), &st) != 0 || (S_ISREG(st.st_mode) && st.st_mode & 077)) {
        fclose(f);
        return HT_FAIL(e, HT_EGATE,
                       "key file %s: mode %03o lets others read or change it, and whoever has it "
                       "signs in its name; close it with: chmod 600 %s (if somebody may have "
                       "copied it, make another with: hetero keys new FILE)",
                       path, (unsigned)st.st_mode & 0777, path);
    }
    EVP_PKEY *pkey = PEM_read_PrivateKey(f, NULL, no_passphrase, NULL);
    fclose(f);
    if (!pkey) {
        ERR_clear_error();
        return HT_FAIL(e, HT_EFORMAT,
                       "key file %s: no private key in PEM form, or one that needs a passphrase; "
                       "hetero keys new FILE makes one",
                       path);
    }
    return wrap(out, pkey, path, e);
}

void ht_key_free(ht_key *k)
{
    if (!k) return;
    EVP_PKEY_free(k->pkey);
    ht_mem_free(k);
}

void ht_key_public(const ht_key *k, uint8_t pub[HT_ED25519_PUB])
{
    memcpy(pub, k->pub, HT_ED25519_PUB);
}

int ht_key_id(const uint8_t pub[HT_ED25519_PUB], char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(pub, HT_ED25519_PUB, digest, e));
    ht_hex(digest, sizeof digest, hex);
    return 0;
}

/* Pre-authentication encoding: "DSSEv1" SP len(type) SP type SP len(body) SP body. */
static void pae(ht_buf *b, const char *type, const void *payload, size_t n)
{
    ht_buf_fmt(b, "DSSEv1 %zu %s %zu ", strlen(type), type, n);
    ht_buf_add(b, payload, n);
}

static void add_base64(ht_buf *b, const uint8_t *p, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        uint32_t v = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) |
                     (left > 2 ? p[i + 2] : 0);
        ht_buf_char(b, digit[v >> 18]);
        ht_buf_char(b, digit[v >> 12 & 63]);
        ht_buf_char(b, left > 1 ? digit[v >> 6 & 63] : '=');
        ht_buf_char(b, left > 2 ? digit[v & 63] : '=');
    }
}

/* Value of a digit of either alphabet (RFC 4648 4 and 5), -1 for anything else. */
static int digit_value(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+' || c == '-') return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

/* Strict: full quads (padding may be left off in base64url), zero spare bits. out [n*3/4+3]. */
static bool from_base64(const char *s, size_t n, uint8_t *out, size_t *len)
{
    if (n && n % 4 == 0 && s[n - 1] == '=') n -= s[n - 2] == '=' ? 2 : 1;
    uint32_t acc = 0;
    unsigned bits = 0;
    size_t k = 0;
    if (n % 4 == 1) return false;
    for (size_t i = 0; i < n; i++) {
        int v = digit_value(s[i]);
        if (v < 0) return false;
        acc = (acc << 6 | (uint32_t)v) & 0xffffff;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[k++] = (uint8_t)(acc >> bits);
        }
    }
    *len = k;
    return (acc & ((1u << bits) - 1)) == 0;
}

static int sign_one(const ht_key *k, const ht_buf *message, ht_buf *out, ht_err *e)
{
    uint8_t sig[HT_ED25519_SIG];
    size_t n = sizeof sig;
    char id[HT_SHA256_HEX];
    HT_TRY(ht_key_id(k->pub, id, e));
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    int good = c && EVP_DigestSignInit(c, NULL, NULL, NULL, k->pkey) == 1 &&
               EVP_DigestSign(c, sig, &n, (const uint8_t *)message->p, message->n) == 1;
    EVP_MD_CTX_free(c);
    if (!good || n != sizeof sig) return fail_crypto("signing", e);
    ht_buf_fmt(out, "{\"keyid\":\"%s\",\"sig\":\"", id);
    add_base64(out, sig, n);
    ht_buf_str(out, "\"}");
    return 0;
}

int ht_dsse_sign(const void *payload, size_t n, const char *payload_type, const ht_key *const *keys,
                 size_t n_keys, ht_buf *out, ht_err *e)
{
    if (n_keys == 0 || n_keys > MAX_SIGS)
        return HT_FAIL(e, HT_EARG, "an envelope takes 1 to %d signatures", MAX_SIGS);
    ht_buf message;
    ht_buf_init(&message, MAX_ENVELOPE);
    pae(&message, payload_type, payload, n);
    int rc = ht_buf_ok(&message, "signed message", e);
    ht_buf_str(out, "{\"payload\":\"");
    add_base64(out, payload, n);
    ht_buf_fmt(out, "\",\"payloadType\":\"%s\",\"signatures\":[", payload_type);
    for (size_t i = 0; rc == 0 && i < n_keys; i++) {
        if (i) ht_buf_char(out, ',');
        rc = sign_one(keys[i], &message, out, e);
    }
    ht_buf_str(out, "]}");
    ht_buf_done(&message);
    return rc ? rc : ht_buf_ok(out, "envelope", e);
}

static const ht_json *text_member(const ht_json *obj, const char *key)
{
    const ht_json *v = ht_json_get(obj, key);
    return v && v->type == HT_JSTR ? v : NULL;
}

static int parse_sig(const ht_json *s, ht_dsse_sig *out, ht_err *e)
{
    const ht_json *id = text_member(s, "keyid"), *sig = text_member(s, "sig");
    uint8_t raw[HT_ED25519_SIG + 3];
    size_t n = 0;
    if (!id || !sig || s->n != 2 || id->n != HT_SHA256_HEX - 1 || sig->n > 88 ||
        !from_base64(sig->s, sig->n, raw, &n) || n != HT_ED25519_SIG)
        return HT_FAIL(e, HT_EFORMAT,
                       "envelope: a signature needs keyid (64 hex digits) and sig (64 bytes)");
    memcpy(out->keyid, id->s, HT_SHA256_HEX);
    memcpy(out->sig, raw, HT_ED25519_SIG);
    return 0;
}

int ht_dsse_parse(ht_arena *a, const char *text, size_t n, ht_dsse *out, ht_err *e)
{
    ht_json *doc;
    if (n > MAX_ENVELOPE) return HT_FAIL(e, HT_EFORMAT, "envelope: %zu bytes are too many", n);
    HT_TRY(ht_json_parse(a, text, n, HT_JSON_CANON, "envelope", &doc, e));
    const ht_json *type = text_member(doc, "payloadType"), *body = text_member(doc, "payload");
    const ht_json *sigs = ht_json_get(doc, "signatures");
    if (!type || !body || !sigs || sigs->type != HT_JARR || doc->n != 3)
        return HT_FAIL(e, HT_EFORMAT, "envelope: need exactly payload, payloadType and signatures");
    if (sigs->n == 0 || sigs->n > MAX_SIGS)
        return HT_FAIL(e, HT_EFORMAT, "envelope: %zu signatures, need 1 to %d", sigs->n, MAX_SIGS);
    uint8_t *payload = ht_arena_alloc(a, body->n / 4 * 3 + 4);
    ht_dsse_sig *sig = ht_arena_array(a, sigs->n, sizeof *sig);
    if (!payload || !sig) return HT_FAIL(e, HT_ENOMEM, "envelope: no memory");
    if (strlen(type->s) != type->n || !from_base64(body->s, body->n, payload, &out->n))
        return HT_FAIL(e, HT_EFORMAT, "envelope: payload is not base64");
    for (size_t i = 0; i < sigs->n; i++) HT_TRY(parse_sig(&sigs->at[i], &sig[i], e));
    out->type = type->s;
    out->payload = payload;
    out->sig = sig;
    out->n_sigs = sigs->n;
    return 0;
}

int ht_dsse_good(const ht_dsse *d, const ht_dsse_sig *sig, const uint8_t pub[HT_ED25519_PUB],
                 bool *good, ht_err *e)
{
    ht_buf message;
    ht_buf_init(&message, MAX_ENVELOPE);
    pae(&message, d->type, d->payload, d->n);
    EVP_PKEY *key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, pub, HT_ED25519_PUB);
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    const bool room = !message.bad && key && c;
    *good =
        room && EVP_DigestVerifyInit(c, NULL, NULL, NULL, key) == 1 &&
        EVP_DigestVerify(c, sig->sig, HT_ED25519_SIG, (const uint8_t *)message.p, message.n) == 1;
    ERR_clear_error();
    EVP_MD_CTX_free(c);
    EVP_PKEY_free(key);
    ht_buf_done(&message);
    return room ? 0 : HT_FAIL(e, HT_ENOMEM, "no memory to check a signature");
}
