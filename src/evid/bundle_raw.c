/* bundle_raw.c - raw streams: chunks.jsonl against the response it describes, and the times that
 * follow from it. What a sample line says about its own timing is never believed, only compared. */
#include "evid/bundle_read.h"
#include "evid/verdict.h"
#include <string.h>

static const ht_field chunk_fields[] = {
    {.key = "i", .type = HT_S_INT},
    {.key = "len", .type = HT_S_INT},
    {.key = "off", .type = HT_S_INT},
    {.key = "tNs", .type = HT_S_INT},
    {.key = "tok", .type = HT_S_ARR, .item = HT_S_INT, .lo = 0, .hi = UINT32_MAX},
    {0},
};
static const ht_field end_fields[] = {
    {.key = "end", .type = HT_S_ENUM, .names = evid__end_names},
    {0},
};

bool evid__next_line(evid__lines *l, const char **line, size_t *n)
{
    if (l->p == l->end) return false;
    const char *nl = memchr(l->p, '\n', (size_t)(l->end - l->p));
    if (!nl) {
        l->bad = true;
        return false;
    }
    *line = l->p;
    *n = (size_t)(nl - l->p);
    l->p = nl + 1;
    return true;
}

/* The file with this digest below the attempt's folder. */
static int find_raw(const ht_manifest *m, const char *prefix, const char *sha, const char *name,
                    const ht_mfile **out, ht_err *e)
{
    size_t k = strlen(prefix), n = strlen(name);
    for (size_t i = 0; i < m->n; i++) {
        const ht_mfile *f = &m->file[i];
        size_t len = strlen(f->path);
        if (strncmp(f->path, prefix, k) != 0 || len < k + n ||
            strcmp(f->path + len - n, name) != 0 || strcmp(f->sha256, sha) != 0)
            continue;
        *out = f;
        return 0;
    }
    return HT_FAIL(e, HT_EFORMAT, "RAW: no %s below %s has the digest %.16s...", name, prefix, sha);
}

typedef struct {
    uint64_t first, last, end; /* ns: first and last token-bearing chunk, last chunk of any kind */
    uint64_t bytes;
    uint32_t tokens, chunks;
    ht_sha256 *hash; /* of the token ids, little-endian 32 bits */
} stream;

static int add_chunk(const ht_json *c, const char *path, stream *s, ht_err *e)
{
    uint64_t t = (uint64_t)ht_json_get(c, "tNs")->i, len = (uint64_t)ht_json_get(c, "len")->i;
    const ht_json *tok = ht_json_get(c, "tok");
    if (ht_json_get(c, "i")->i != s->chunks || (uint64_t)ht_json_get(c, "off")->i != s->bytes)
        return HT_FAIL(e, HT_EFORMAT, "RAW: %s: chunk %u is not where it should be", path,
                       s->chunks);
    if (s->chunks && t < s->end)
        return HT_FAIL(e, HT_EFORMAT, "RAW: %s: time runs backwards at chunk %u", path, s->chunks);
    s->end = t;
    s->bytes += len;
    s->chunks++;
    for (size_t i = 0; i < tok->n; i++) {
        uint32_t id = (uint32_t)tok->at[i].i;
        const uint8_t le[4] = {(uint8_t)id, (uint8_t)(id >> 8), (uint8_t)(id >> 16),
                               (uint8_t)(id >> 24)};
        HT_TRY(ht_sha256_add(s->hash, le, 4, e));
    }
    if (tok->n && !s->tokens) s->first = t;
    if (tok->n) s->last = t;
    s->tokens += (uint32_t)tok->n;
    return 0;
}

static int read_chunks(ht_arena *a, const ht_mfile *f, stream *s, const char **end, ht_err *e)
{
    evid__lines l = {f->data, f->data + f->bytes, false};
    const char *line;
    size_t n;
    *end = NULL;
    while (evid__next_line(&l, &line, &n)) {
        ht_json *c;
        if (*end) return HT_FAIL(e, HT_EFORMAT, "RAW: %s: a line after the end", f->path);
        HT_TRY(ht_json_parse(a, line, n, HT_JSON_CANON, f->path, &c, e));
        if (ht_json_get(c, "end")) {
            HT_TRY(ht_schema_check(c, end_fields, NULL, f->path, e));
            *end = ht_json_get(c, "end")->s;
        } else {
            HT_TRY(ht_schema_check(c, chunk_fields, NULL, f->path, e));
            HT_TRY(add_chunk(c, f->path, s, e));
        }
    }
    if (l.bad || !*end) return HT_FAIL(e, HT_EFORMAT, "RAW: %s is cut off", f->path);
    return 0;
}

/* The derived times of a request that ended well. */
static int derive(const evid__raw *r, const stream *s, const char *path, ht_sample *out, ht_err *e)
{
    uint64_t sent = r->intended_ns + r->send_lag_ns;
    if (s->tokens == 0)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: %s is ok without a single token", path);
    if (s->first <= sent)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: %s: a token came before the request was sent", path);
    out->metric[HT_M_TTFT] = s->first - r->intended_ns;
    out->metric[HT_M_E2E] = s->end - r->intended_ns;
    /* One token has no distance to another; several in one event have none either. */
    out->metric[HT_M_TPOT] = s->tokens >= 2 ? (s->last - s->first) / (s->tokens - 1) : 0;
    return 0;
}

static int check_stream(ht_arena *a, const evid__raw *r, const ht_mfile *chunks,
                        const ht_mfile *response, ht_sample *out, ht_err *e)
{
    stream s = {0};
    const char *end;
    uint8_t digest[HT_SHA256_BYTES];
    char hex[HT_SHA256_HEX];
    HT_TRY(ht_sha256_new(&s.hash, e));
    int rc = read_chunks(a, chunks, &s, &end, e);
    if (rc) {
        ht_sha256_free(s.hash);
        return rc;
    }
    HT_TRY(ht_sha256_end(s.hash, digest, e));
    ht_hex(digest, sizeof digest, hex);
    if (s.bytes != response->bytes)
        return HT_FAIL(e, HT_EFORMAT, "RAW: %s describes %llu bytes, the response has %llu",
                       chunks->path, (unsigned long long)s.bytes,
                       (unsigned long long)response->bytes);
    if (strcmp(end, r->end_state) != 0)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: %s ends %s, the sample says %s", chunks->path, end,
                       r->end_state);
    bool whole = strcmp(end, "DONE") == 0 || strcmp(end, "LENGTH_MET") == 0;
    if (out->status == HT_SM_OK && !whole)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: %s ended early and is called ok", chunks->path);
    if (s.tokens != out->n_out || strcmp(hex, r->out_sha) != 0)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: %s holds other tokens than the sample says",
                       chunks->path);
    return out->status == HT_SM_OK ? derive(r, &s, chunks->path, out, e) : 0;
}

int evid__read_raw(ht_arena *a, const ht_manifest *m, const evid__raw *r, ht_sample *s, ht_err *e)
{
    const ht_mfile *request, *response, *chunks, *receipts;
    HT_TRY(find_raw(m, r->prefix, r->request_sha, "/request.bin", &request, e));
    HT_TRY(find_raw(m, r->prefix, r->chunks_sha, "/chunks.jsonl", &chunks, e));
    HT_TRY(find_raw(m, r->prefix, r->response_sha, "/response.bin", &response, e));
    if (r->receipt_sha)
        HT_TRY(find_raw(m, r->prefix, r->receipt_sha, "/receipts.jsonl", &receipts, e));
    return check_stream(a, r, chunks, response, s, e);
}
