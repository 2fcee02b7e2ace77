/* trust.c - the trust root; see trust.h. */
#include "evid/trust.h"
#include "evid/schema.h"
#include <string.h>

enum { MAX_KEYS = 256 };
static const char *const role_names[HT_ROLES + 1] = {"bench",    "promote", "index",
                                                     "simulate", "receipt", NULL};
static const ht_field key_fields[] = {
    {.key = "keyId", .type = HT_S_SHA256},
    {.key = "publicKey", .type = HT_S_SHA256}, /* 32 raw bytes take the same 64 hex digits */
    {.key = "roles", .type = HT_S_ARR, .item = HT_S_ENUM, .names = role_names},
    {0},
};
static const ht_field threshold_fields[] = {
    {.key = "bench", .type = HT_S_INT, .lo = 1, .hi = MAX_KEYS},
    {.key = "promote", .type = HT_S_INT, .lo = 2, .hi = MAX_KEYS},
    {.key = "index", .type = HT_S_INT, .lo = 1, .hi = MAX_KEYS},
    {.key = "simulate", .type = HT_S_INT, .lo = 1, .hi = MAX_KEYS},
    {.key = "receipt", .type = HT_S_INT, .lo = 1, .hi = MAX_KEYS},
    {0},
};
static const ht_field trust_fields[] = {
    {.key = "expiresUtc", .type = HT_S_UTC},
    {.key = "keys", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = key_fields},
    {.key = "thresholds", .type = HT_S_OBJ, .sub = threshold_fields},
    {.key = "version", .type = HT_S_INT, .lo = 1, .hi = UINT32_MAX},
    {0},
};

const char *ht_role_name(int role)
{
    return role >= 0 && role < HT_ROLES ? role_names[role] : "?";
}

int ht_role_by_name(const char *name, size_t n)
{
    for (int r = 0; r < HT_ROLES; r++)
        if (strlen(role_names[r]) == n && memcmp(role_names[r], name, n) == 0) return r;
    return -1;
}

static uint8_t hex_digit(char c)
{
    return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static int read_key(const ht_json *j, ht_trust_key *k, ht_err *e)
{
    const char *pub = ht_json_get(j, "publicKey")->s;
    const ht_json *roles = ht_json_get(j, "roles");
    for (size_t i = 0; i < HT_ED25519_PUB; i++)
        k->pub[i] = (uint8_t)(hex_digit(pub[2 * i]) << 4 | hex_digit(pub[2 * i + 1]));
    HT_TRY(ht_key_id(k->pub, k->id, e));
    if (strcmp(k->id, ht_json_get(j, "keyId")->s) != 0)
        return HT_FAIL(e, HT_EFORMAT, "trust root: keyId %.16s... is not the digest of its key",
                       ht_json_get(j, "keyId")->s);
    for (size_t i = 0; i < roles->n; i++)
        k->roles |= 1u << ht_role_by_name(roles->at[i].s, roles->at[i].n);
    return 0;
}

int ht_trust_parse(ht_arena *a, const char *text, size_t n, ht_trust *out, ht_err *e)
{
    ht_json *doc;
    HT_TRY(ht_json_parse(a, text, n, HT_JSON_CANON, "trust root", &doc, e));
    HT_TRY(ht_schema_check(doc, trust_fields, "hetero/trust/1", "trust root", e));
    const ht_json *keys = ht_json_get(doc, "keys"), *need = ht_json_get(doc, "thresholds");
    if (keys->n == 0 || keys->n > MAX_KEYS)
        return HT_FAIL(e, HT_EFORMAT, "trust root: %zu keys, need 1 to %d", keys->n, MAX_KEYS);
    ht_trust_key *key = ht_arena_array(a, keys->n, sizeof *key);
    if (!key) return HT_FAIL(e, HT_ENOMEM, "trust root: no memory for %zu keys", keys->n);
    for (size_t i = 0; i < keys->n; i++) {
        HT_TRY(read_key(&keys->at[i], &key[i], e));
        for (size_t j = 0; j < i; j++)
            if (memcmp(key[j].pub, key[i].pub, HT_ED25519_PUB) == 0)
                return HT_FAIL(e, HT_EFORMAT, "trust root: key %.16s... is listed twice",
                               key[i].id);
    }
    *out = (ht_trust){
        .version = (uint32_t)ht_json_get(doc, "version")->i, .key = key, .n_keys = keys->n};
    if (!ht_utc_parse(ht_json_get(doc, "expiresUtc")->s, &out->expires_unix))
        return HT_FAIL(e, HT_EFORMAT, "trust root: expiresUtc is not a time");
    for (int r = 0; r < HT_ROLES; r++)
        out->threshold[r] = (uint32_t)ht_json_get(need, role_names[r])->i;
    return 0;
}

int ht_trust_write(const ht_trust *t, ht_buf *out, ht_err *e)
{
    char utc[21], hex[HT_SHA256_HEX];
    ht_utc_format(t->expires_unix, utc);
    ht_buf_fmt(out, "{\"expiresUtc\":\"%s\",\"keys\":[", utc);
    for (size_t i = 0; i < t->n_keys; i++) {
        const ht_trust_key *k = &t->key[i];
        ht_hex(k->pub, HT_ED25519_PUB, hex);
        ht_buf_fmt(out, "%s{\"keyId\":\"%s\",\"publicKey\":\"%s\",\"roles\":[", i ? "," : "", k->id,
                   hex);
        const char *comma = "";
        for (int r = 0; r < HT_ROLES; r++)
            if (k->roles >> r & 1) {
                ht_buf_fmt(out, "%s\"%s\"", comma, role_names[r]);
                comma = ",";
            }
        ht_buf_str(out, "]}");
    }
    ht_buf_fmt(out,
               "],\"schema\":\"hetero/trust/1\",\"thresholds\":{\"bench\":%u,\"index\":%u,"
               "\"promote\":%u,\"receipt\":%u,\"simulate\":%u},\"version\":%u}",
               t->threshold[HT_ROLE_BENCH], t->threshold[HT_ROLE_INDEX],
               t->threshold[HT_ROLE_PROMOTE], t->threshold[HT_ROLE_RECEIPT],
               t->threshold[HT_ROLE_SIMULATE], t->version);
    return ht_buf_ok(out, "trust root", e);
}

int ht_trust_check(const ht_trust *t, const ht_dsse *d, enum ht_role role, const char *payload_type,
                   int64_t now_unix, ht_err *e)
{
    if (strcmp(d->type, payload_type) != 0)
        return HT_FAIL(e, HT_EGATE, "UNKNOWN_TYPE: envelope holds %.60s, need %s", d->type,
                       payload_type);
    if (now_unix >= t->expires_unix)
        return HT_FAIL(e, HT_EGATE,
                       "TRUST_EXPIRED: the trust root has expired; install a newer one");
    uint32_t good = 0;
    for (size_t k = 0; k < t->n_keys; k++) {
        if (!(t->key[k].roles >> role & 1)) continue;
        bool signed_it = false;
        for (size_t i = 0; i < d->n_sigs && !signed_it; i++)
            if (strcmp(d->sig[i].keyid, t->key[k].id) == 0)
                HT_TRY(ht_dsse_good(d, &d->sig[i], t->key[k].pub, &signed_it, e));
        good += signed_it; /* a key counts once, however often it signed */
    }
    if (good >= t->threshold[role]) return 0;
    return HT_FAIL(e, HT_EGATE, "BAD_SIGNATURE: %u of %u keys with role %s signed this", good,
                   t->threshold[role], role_names[role]);
}
