/* index.c - reading, writing and judging a routes.index; see index.h. */
#include "route/index.h"
#include "evid/schema.h"
#include <stdlib.h>
#include <string.h>

enum { SKEW_S = 300 }; /* clocks of two honest machines */

static const ht_field entry_fields[] = {
    {.key = "amendments", .type = HT_S_ARR, .item = HT_S_SHA256},
    {.key = "bundleId", .type = HT_S_SHA256},
    {.key = "costmapSha256", .type = HT_S_SHA256},
    {.key = "prevSha256", .type = HT_S_SHA256},
    {.key = "promotionSha256", .type = HT_S_SHA256},
    {.key = "scopeSha256", .type = HT_S_SHA256},
    {.key = "state", .type = HT_S_ENUM, .names = ht_state_names},
    {0},
};
static const ht_field tomb_fields[] = {
    {.key = "bundleId", .type = HT_S_SHA256},
    {.key = "reason", .type = HT_S_STR},
    {.key = "sinceVersion", .type = HT_S_INT},
    {0},
};
static const ht_field index_fields[] = {
    {.key = "entries", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = entry_fields},
    {.key = "expiresUtc", .type = HT_S_UTC},
    {.key = "issuedUtc", .type = HT_S_UTC},
    {.key = "prevSha256", .type = HT_S_SHA256},
    {.key = "tombstones", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = tomb_fields},
    {.key = "version", .type = HT_S_INT, .lo = 1, .hi = ((int64_t)1 << 53) - 1},
    {0},
};
static const ht_field highwater_fields[] = {
    {.key = "sha256", .type = HT_S_SHA256},
    {.key = "tombstones", .type = HT_S_ARR, .item = HT_S_SHA256},
    {.key = "version", .type = HT_S_INT, .lo = 1, .hi = ((int64_t)1 << 53) - 1},
    {0},
};

static void copy_sha(char out[HT_SHA256_HEX], const ht_json *obj, const char *key)
{
    memcpy(out, ht_json_get(obj, key)->s, HT_SHA256_HEX);
}

static int by_scope(const void *x, const void *y)
{
    const ht_index_entry *a = x, *b = y;
    int c = strcmp(a->scope_sha, b->scope_sha);
    return c ? c : strcmp(a->bundle_id, b->bundle_id);
}

static int by_bundle(const void *x, const void *y)
{
    return strcmp(((const ht_tombstone *)x)->bundle_id, ((const ht_tombstone *)y)->bundle_id);
}

void ht_index_sort(ht_index *x)
{
    if (x->n_entries) qsort(x->entry, x->n_entries, sizeof *x->entry, by_scope);
    if (x->n_tombs) qsort(x->tomb, x->n_tombs, sizeof *x->tomb, by_bundle);
}

static int read_entry(ht_arena *a, const ht_json *j, ht_index_entry *t, ht_err *e)
{
    const ht_json *am = ht_json_get(j, "amendments");
    copy_sha(t->scope_sha, j, "scopeSha256");
    copy_sha(t->bundle_id, j, "bundleId");
    copy_sha(t->costmap_sha, j, "costmapSha256");
    copy_sha(t->promotion_sha, j, "promotionSha256");
    copy_sha(t->prev, j, "prevSha256");
    t->state = (uint8_t)ht_state_by_name(ht_json_get(j, "state")->s);
    char(*list)[HT_SHA256_HEX] = ht_arena_array(a, am->n, sizeof *list);
    if (!list) return HT_FAIL(e, HT_ENOMEM, "index: no memory");
    for (size_t i = 0; i < am->n; i++) memcpy(list[i], am->at[i].s, HT_SHA256_HEX);
    t->amendment = (const char(*)[HT_SHA256_HEX])list;
    t->n_amendments = am->n;
    return 0;
}

int ht_index_parse(ht_arena *a, const char *text, size_t n, ht_index *x, ht_err *e)
{
    ht_json *j;
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_json_parse(a, text, n, HT_JSON_CANON, "index", &j, e));
    HT_TRY(ht_schema_check(j, index_fields, "hetero/index/1", "index", e));
    const ht_json *entries = ht_json_get(j, "entries"), *tombs = ht_json_get(j, "tombstones");
    if (entries->n > HT_INDEX_MAX || tombs->n > HT_INDEX_MAX)
        return HT_FAIL(e, HT_EFORMAT, "index: more than %d entries", (int)HT_INDEX_MAX);
    *x = (ht_index){.version = (uint64_t)ht_json_get(j, "version")->i,
                    .entry = ht_arena_array(a, entries->n, sizeof *x->entry),
                    .n_entries = entries->n,
                    .tomb = ht_arena_array(a, tombs->n, sizeof *x->tomb),
                    .n_tombs = tombs->n};
    if (!x->entry || !x->tomb) return HT_FAIL(e, HT_ENOMEM, "index: no memory");
    copy_sha(x->prev, j, "prevSha256");
    if (!ht_utc_parse(ht_json_get(j, "issuedUtc")->s, &x->issued_unix) ||
        !ht_utc_parse(ht_json_get(j, "expiresUtc")->s, &x->expires_unix))
        return HT_FAIL(e, HT_EFORMAT, "index: a time is none");
    for (size_t i = 0; i < entries->n; i++) {
        HT_TRY(read_entry(a, &entries->at[i], &x->entry[i], e));
        if (i && by_scope(&x->entry[i - 1], &x->entry[i]) >= 0)
            return HT_FAIL(e, HT_EFORMAT, "index: entry %zu is twice or out of order", i);
    }
    for (size_t i = 0; i < tombs->n; i++) {
        copy_sha(x->tomb[i].bundle_id, &tombs->at[i], "bundleId");
        x->tomb[i].reason = ht_json_get(&tombs->at[i], "reason")->s;
        x->tomb[i].since = (uint64_t)ht_json_get(&tombs->at[i], "sinceVersion")->i;
        if (i && by_bundle(&x->tomb[i - 1], &x->tomb[i]) >= 0)
            return HT_FAIL(e, HT_EFORMAT, "index: tombstone %zu is twice or out of order", i);
    }
    HT_TRY(ht_sha256_of(text, n, digest, e));
    ht_hex(digest, sizeof digest, x->sha256);
    return 0;
}

static void write_entry(ht_jw *w, const ht_index_entry *t)
{
    ht_jw_obj(w);
    ht_jw_key(w, "amendments");
    ht_jw_arr(w);
    for (size_t i = 0; i < t->n_amendments; i++) ht_jw_str(w, t->amendment[i]);
    ht_jw_end(w, ']');
    ht_jw_kstr(w, "bundleId", t->bundle_id);
    ht_jw_kstr(w, "costmapSha256", t->costmap_sha);
    ht_jw_kstr(w, "prevSha256", t->prev);
    ht_jw_kstr(w, "promotionSha256", t->promotion_sha);
    ht_jw_kstr(w, "scopeSha256", t->scope_sha);
    ht_jw_kstr(w, "state", ht_state_name(t->state));
    ht_jw_end(w, '}');
}

int ht_index_entry_sha256(const ht_index_entry *t, char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 1 << 20);
    ht_jw_init(&w, &b, HT_JSON_CANON);
    write_entry(&w, t);
    int rc = ht_buf_ok(&b, "index entry", e);
    if (rc == 0) rc = ht_sha256_of(b.p, b.n, digest, e);
    if (rc == 0) ht_hex(digest, sizeof digest, hex);
    ht_buf_done(&b);
    return rc;
}

int ht_index_write(const ht_index *x, ht_buf *out, ht_err *e)
{
    char issued[21], expires[21];
    ht_jw w;
    ht_utc_format(x->issued_unix, issued);
    ht_utc_format(x->expires_unix, expires);
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_key(&w, "entries");
    ht_jw_arr(&w);
    for (size_t i = 0; i < x->n_entries; i++) write_entry(&w, &x->entry[i]);
    ht_jw_end(&w, ']');
    ht_jw_kstr(&w, "expiresUtc", expires);
    ht_jw_kstr(&w, "issuedUtc", issued);
    ht_jw_kstr(&w, "prevSha256", x->prev);
    ht_jw_kstr(&w, "schema", "hetero/index/1");
    ht_jw_key(&w, "tombstones");
    ht_jw_arr(&w);
    for (size_t i = 0; i < x->n_tombs; i++) {
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "bundleId", x->tomb[i].bundle_id);
        ht_jw_kstr(&w, "reason", x->tomb[i].reason);
        ht_jw_kuint(&w, "sinceVersion", x->tomb[i].since);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    ht_jw_kuint(&w, "version", x->version);
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "index", e);
}

const ht_tombstone *ht_index_tomb(const ht_index *x, const char *bundle_id)
{
    for (size_t i = 0; i < x->n_tombs; i++)
        if (strcmp(x->tomb[i].bundle_id, bundle_id) == 0) return &x->tomb[i];
    return NULL;
}

int ht_highwater_parse(ht_arena *a, const char *text, size_t n, ht_highwater *h, ht_err *e)
{
    ht_json *j;
    HT_TRY(ht_json_parse(a, text, n, HT_JSON_CANON, "high-water mark", &j, e));
    HT_TRY(ht_schema_check(j, highwater_fields, "hetero/highwater/1", "high-water mark", e));
    const ht_json *tombs = ht_json_get(j, "tombstones");
    const char **list = ht_arena_array(a, tombs->n, sizeof *list);
    if (!list) return HT_FAIL(e, HT_ENOMEM, "high-water mark: no memory");
    for (size_t i = 0; i < tombs->n; i++) list[i] = tombs->at[i].s;
    *h = (ht_highwater){
        .version = (uint64_t)ht_json_get(j, "version")->i, .tomb = list, .n_tombs = tombs->n};
    copy_sha(h->sha256, j, "sha256");
    return 0;
}

int ht_highwater_write(const ht_index *x, ht_buf *out, ht_err *e)
{
    ht_jw w;
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "schema", "hetero/highwater/1");
    ht_jw_kstr(&w, "sha256", x->sha256);
    ht_jw_key(&w, "tombstones");
    ht_jw_arr(&w);
    for (size_t i = 0; i < x->n_tombs; i++) ht_jw_str(&w, x->tomb[i].bundle_id);
    ht_jw_end(&w, ']');
    ht_jw_kuint(&w, "version", x->version);
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "high-water mark", e);
}

int ht_index_check(const ht_index *x, const ht_highwater *h, int64_t now, ht_err *e)
{
    if (x->issued_unix > now + SKEW_S)
        return HT_FAIL(e, HT_EGATE,
                       "INDEX_NOT_YET_VALID: the index was issued in the future; check "
                       "the clock");
    if (now >= x->expires_unix)
        return HT_FAIL(e, HT_EGATE, "INDEX_EXPIRED: sign a new one: hetero routes --renew");
    if (x->version < h->version || (x->version == h->version && strcmp(x->sha256, h->sha256) != 0))
        return HT_FAIL(e, HT_EGATE,
                       "INDEX_REPLAYED: version %llu is not newer than version %llu seen before",
                       (unsigned long long)x->version, (unsigned long long)h->version);
    if (x->version - h->version > HT_INDEX_JUMP)
        return HT_FAIL(e, HT_EGATE, "INDEX_JUMP: from version %llu to %llu",
                       (unsigned long long)h->version, (unsigned long long)x->version);
    if (x->version == h->version + 1 && h->version && strcmp(x->prev, h->sha256) != 0)
        return HT_FAIL(e, HT_EGATE,
                       "INDEX_REPLAYED: version %llu does not follow the one seen before",
                       (unsigned long long)x->version);
    for (size_t i = 0; i < h->n_tombs; i++)
        if (!ht_index_tomb(x, h->tomb[i]))
            return HT_FAIL(e, HT_EGATE, "TOMBSTONE_REMOVED: bundle %.16s... was revoked",
                           h->tomb[i]);
    for (size_t i = 0; i < x->n_entries; i++)
        if (ht_index_tomb(x, x->entry[i].bundle_id))
            return HT_FAIL(e, HT_EGATE, "TOMBSTONE_REMOVED: bundle %.16s... is revoked and listed",
                           x->entry[i].bundle_id);
    return 0;
}
