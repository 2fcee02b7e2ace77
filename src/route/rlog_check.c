/* rlog_check.c - is a receipt log what was written and signed? See rlog.h. Every fault is looked
 * for; none ends the walk, so that one edited line does not hide a truncated end. */
#include "core/map.h"
#include "evid/schema.h"
#include "route/rlog.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const ht_rlog_fault_names[HT_RLOG_FAULTS] = {"BAD_LINE", "CHAIN",        "GAP",
                                                         "REPLAY",   "TORN",         "TRUNCATED",
                                                         "BAD_HEAD", "HEAD_DIFFERS", "HEAD_CHAIN"};

/* In the order of the keys; utc is for people. */
static const ht_field head_fields[] = {
    {.key = "headSha256", .type = HT_S_SHA256},
    {.key = "lines", .type = HT_S_INT, .lo = 1, .hi = ((int64_t)1 << 53) - 1},
    {.key = "prevHeadSha256", .type = HT_S_SHA256},
    {.key = "utc", .type = HT_S_UTC},
    {0},
};

typedef struct {
    const ht_trust *trust;
    int64_t now;
    ht_rlog_fn fn;
    void *user;
    ht_rlog_report *r;
    char prev[HT_SHA256_HEX];
    /* The heads, in memory: number and digest that each signs. */
    struct head {
        uint64_t seq;
        char sha[HT_SHA256_HEX];
    } * head;
    size_t n_heads, next; /* next: the first head not yet met by a line */
} walk;

static void fault(ht_rlog_report *r, enum ht_rlog_fault f, uint64_t line)
{
    if (r->n_faults < HT_RLOG_REPORTED) {
        r->fault[r->n_faults].fault = (uint8_t)f;
        r->fault[r->n_faults].line = line;
    }
    r->n_faults++;
}

static int sha_of(const void *p, size_t n, char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(p, n, digest, e));
    ht_hex(digest, sizeof digest, hex);
    return 0;
}

static size_t count_lines(const char *text, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) k += text[i] == '\n';
    return k;
}

/* ---- heads ----------------------------------------------------------------------------------- */

/* One envelope: form, signature, chain. Its digest becomes *prev; false: it counts for nothing. */
static int read_head(walk *w, ht_arena *a, const char *p, size_t n, char prev[HT_SHA256_HEX],
                     struct head *out, bool *good, ht_err *e)
{
    ht_dsse d;
    ht_json *doc;
    *good = false;
    const uint64_t line = w->r->heads;
    int rc = ht_dsse_parse(a, p, n, &d, NULL);
    if (!rc) rc = ht_json_parse(a, (const char *)d.payload, d.n, HT_JSON_CANON, "head", &doc, NULL);
    if (!rc) rc = ht_schema_check(doc, head_fields, "hetero/receipthead/1", "head", NULL);
    if (!rc && w->trust)
        rc = ht_trust_check(w->trust, &d, HT_ROLE_RECEIPT, HT_RLOG_HEAD_TYPE, w->now, NULL);
    if (!rc && !w->trust) rc = strcmp(d.type, HT_RLOG_HEAD_TYPE) ? HT_EFORMAT : 0;
    if (rc == HT_ENOMEM) return HT_FAIL(e, rc, "receipt heads: no memory");
    if (rc) {
        fault(w->r, HT_RLOG_BAD_HEAD, line);
        return 0;
    }
    out->seq = (uint64_t)ht_json_get(doc, "lines")->i;
    memcpy(out->sha, ht_json_get(doc, "headSha256")->s, HT_SHA256_HEX);
    const bool later = w->n_heads == 0 || out->seq > w->head[w->n_heads - 1].seq;
    if (strcmp(ht_json_get(doc, "prevHeadSha256")->s, prev) != 0 || !later)
        fault(w->r, HT_RLOG_HEAD_CHAIN, line);
    HT_TRY(sha_of(d.payload, d.n, prev, e));
    *good = later;
    return 0;
}

static int read_heads(walk *w, const char *text, size_t n, ht_err *e)
{
    char prev[HT_SHA256_HEX];
    memset(prev, '0', sizeof prev - 1);
    prev[sizeof prev - 1] = 0;
    w->head = ht_mem_array(count_lines(text, n) + 1, sizeof *w->head);
    if (!w->head) return HT_FAIL(e, HT_ENOMEM, "receipt heads: no memory");
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t len = end ? (size_t)(end - text) - at : n - at;
        ht_arena *a = NULL;
        bool good = false;
        w->r->heads++;
        HT_TRY(ht_arena_new(&a, 0, e));
        int rc = 0;
        if (end) rc = read_head(w, a, text + at, len, prev, &w->head[w->n_heads], &good, e);
        else fault(w->r, HT_RLOG_BAD_HEAD, w->r->heads);
        ht_arena_free(a);
        if (rc) return rc;
        w->n_heads += good;
        at += len + 1;
    }
    return 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Heads that sign this line, or a number below it that no line had. */
static void meet_heads(walk *w, uint64_t seq, const char *sha)
{
    for (; w->next < w->n_heads && w->head[w->next].seq <= seq; w->next++) {
        const struct head *h = &w->head[w->next];
        if (h->seq == seq && strcmp(h->sha, sha) == 0) w->r->signed_seq = seq;
        else fault(w->r, HT_RLOG_HEAD_DIFFERS, w->r->lines);
    }
}

static int read_line(walk *w, ht_arena *a, const char *p, size_t n, ht_err *e)
{
    ht_json *doc = NULL;
    char sha[HT_SHA256_HEX];
    HT_TRY(sha_of(p, n, sha, e));
    int rc = n > HT_RLOG_LINE ? HT_EFORMAT
                              : ht_json_parse(a, p, n, HT_JSON_CANON, "receipt", &doc, NULL);
    if (rc == HT_ENOMEM) return HT_FAIL(e, rc, "receipt log: no memory for a line");
    const ht_json *seq = rc ? NULL : ht_json_get(doc, "seq");
    const ht_json *prev = rc ? NULL : ht_json_get(doc, "prevSha256");
    const ht_json *proc = rc ? NULL : ht_json_get(doc, "proc");
    if (!seq || seq->type != HT_JINT || seq->i < 1 || !prev || prev->type != HT_JSTR || !proc ||
        proc->type != HT_JSTR) {
        fault(w->r, HT_RLOG_BAD_LINE, w->r->lines);
        memcpy(w->prev, sha, sizeof sha);
        return 0;
    }
    const uint64_t k = (uint64_t)seq->i;
    if (strcmp(prev->s, w->prev) != 0) fault(w->r, HT_RLOG_CHAIN, w->r->lines);
    if (k <= w->r->last_seq) fault(w->r, HT_RLOG_REPLAY, w->r->lines);
    else if (k > w->r->last_seq + 1) fault(w->r, HT_RLOG_GAP, w->r->lines);
    if (k > w->r->last_seq) w->r->last_seq = k;
    memcpy(w->prev, sha, sizeof sha);
    memcpy(w->r->head_sha, sha, sizeof sha);
    meet_heads(w, k, sha);
    return w->fn ? w->fn(w->user, doc, p, n, e) : 0;
}

static int read_lines(walk *w, const char *text, size_t n, ht_err *e)
{
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        w->r->lines++;
        if (!end) {
            fault(w->r, HT_RLOG_TORN, w->r->lines);
            break;
        }
        const size_t len = (size_t)(end - text) - at;
        ht_arena *a = NULL;
        HT_TRY(ht_arena_new(&a, 0, e));
        const int rc = read_line(w, a, text + at, len, e);
        ht_arena_free(a);
        if (rc) return rc;
        at += len + 1;
    }
    /* Heads for numbers that the log does not reach. */
    for (; w->next < w->n_heads; w->next++) fault(w->r, HT_RLOG_TRUNCATED, w->r->lines);
    return 0;
}

int ht_rlog_check_text(const char *log, size_t n_log, const char *heads, size_t n_heads,
                       const ht_trust *trust, int64_t now, ht_rlog_fn fn, void *user,
                       ht_rlog_report *r, ht_err *e)
{
    walk w = {.trust = trust, .now = now, .fn = fn, .user = user, .r = r};
    *r = (ht_rlog_report){0};
    memset(w.prev, '0', HT_SHA256_HEX - 1);
    int rc = heads ? read_heads(&w, heads, n_heads, e) : 0;
    if (!rc) rc = read_lines(&w, log, n_log, e);
    ht_mem_free(w.head);
    return rc;
}

int ht_rlog_check(const char *dir, const ht_trust *trust, int64_t now, ht_rlog_fn fn, void *user,
                  ht_rlog_report *r, ht_err *e)
{
    char path[4096];
    ht_map log = {0}, heads = {0};
    if (snprintf(path, sizeof path, "%s/log.jsonl", dir) >= (int)sizeof path)
        return HT_FAIL(e, HT_EARG, "receipt log: the folder's path is too long");
    if (access(path, F_OK) != 0)
        return HT_FAIL(e, HT_EIO,
                       "%.180s: no receipt log; hetero run keeps one where there is a store", path);
    HT_TRY(ht_map_open(&log, path, e));
    (void)snprintf(path, sizeof path, "%s/heads.jsonl", dir);
    int rc = access(path, F_OK) == 0 ? ht_map_open(&heads, path, e) : 0;
    if (!rc)
        rc = ht_rlog_check_text((const char *)log.p, log.n, (const char *)heads.p, heads.n, trust,
                                now, fn, user, r, e);
    if (!rc && (ht_map_broken(&log) || ht_map_broken(&heads)))
        rc = HT_FAIL(e, HT_EIO, "%.180s: cut short while it was read", dir);
    ht_map_close(&log);
    ht_map_close(&heads);
    return rc;
}
