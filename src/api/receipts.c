/* receipts.c - keeping receipts: hetero.h's handle over the log of route/rlog.h. */
#include "api/subject.h"
#include "evid/schema.h"
#include "route/rlog.h"
#include <string.h>

struct ht_receipts {
    ht_rlog *log;
};

int ht_receipts_open(ht_receipts **out, const ht_receipts_params *p, ht_err *err)
{
    if (!out || !p || !p->dir)
        return HT_FAIL(err, HT_EARG, "ht_receipts_open: out and a folder must be given");
    *out = NULL;
    ht_receipts *r = ht_mem_alloc(sizeof *r);
    if (!r) return HT_FAIL(err, HT_ENOMEM, "no memory for a receipt log");
    int rc = ht_rlog_open(&r->log, p->dir, p->key, p->batch, p->seconds, err);
    if (rc) ht_mem_free(r);
    else *out = r;
    return rc;
}

/* Put a digest that only the caller knows in place of the unknown that the receipt has. */
static int set_digest(ht_arena *a, ht_json *doc, const char *key, const char *hex, ht_err *err)
{
    if (!hex) return 0;
    if (!ht_is_sha256(hex, strlen(hex)))
        return HT_FAIL(err, HT_EARG, "%s: \"%.70s\" is no digest of 64 lower-case hex digits", key,
                       hex);
    ht_json *value = ht_json_new_str(a, hex, HT_SHA256_HEX - 1);
    if (!value) return HT_FAIL(err, HT_ENOMEM, "no memory for a receipt");
    for (size_t i = 0; i < doc->n; i++) {
        if (strcmp(doc->at[i].key, key) != 0) continue;
        value->key = doc->at[i].key;
        value->key_n = doc->at[i].key_n;
        doc->at[i] = *value;
        return 0;
    }
    ht_json_add(a, doc, key, value);
    return 0;
}

int ht_receipts_add(ht_receipts *r, const ht_session *s, const char *request_sha256,
                    const char *stream_sha256, uint64_t *seq, char **json, ht_err *err)
{
    char *text = NULL;
    ht_arena *a = NULL;
    ht_json *doc = NULL;
    if (json) *json = NULL;
    if (!r) return HT_FAIL(err, HT_EARG, "ht_receipts_add: no log");
    if (s) { /* a receipt that is kept names program and model; worked out once per engine */
        const api__subject *who;
        HT_TRY(api__subject_get(s->e, false, &who, err));
    }
    HT_TRY(ht_session_receipt(s, &text, err));
    int rc = ht_arena_new(&a, 0, err);
    if (!rc) rc = ht_json_parse(a, text, strlen(text), 0, "receipt", &doc, err);
    if (!rc) rc = set_digest(a, doc, "requestSha256", request_sha256, err);
    if (!rc) rc = set_digest(a, doc, "streamSha256", stream_sha256, err);
    if (!rc) rc = ht_rlog_add(r->log, doc, seq, json, err);
    ht_arena_free(a);
    ht_free(text);
    return rc;
}

int ht_receipts_get(ht_receipts *r, uint64_t seq, char **json, ht_err *err)
{
    if (!r || !json) return HT_FAIL(err, HT_EARG, "ht_receipts_get: log and json must be given");
    return ht_rlog_get(r->log, seq, json, err);
}

int ht_receipts_sign(ht_receipts *r, ht_err *err)
{
    return r ? ht_rlog_sign(r->log, err) : HT_FAIL(err, HT_EARG, "ht_receipts_sign: no log");
}

void ht_receipts_close(ht_receipts *r)
{
    if (!r) return;
    ht_rlog_close(r->log);
    ht_mem_free(r);
}
