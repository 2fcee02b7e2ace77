/* harness.c - see harness.h. */
#include "evid/harness.h"
#include "core/rng.h"
#include "evid/bundle_read.h"
#include "evid/journal.h"
#include "evid/quality.h"
#include "evid/verdict.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
    const ht_bench_plan *p;
    const ht_bench_ops *o;
    const char *dir;
    ht_arena *a; /* lives as long as the run                                    */
    ht_policy policy;
    ht_journal journal;
    ht_bench_request *request; /* [(pair * n_cells + cell) * requests + request]              */
    char (*prompt_sha)[HT_SHA256_HEX];
    uint64_t origin_ns;
    ht_buf samples, telemetry;
    uint32_t n_blocks, attempts, voids, slots_done;
} run;
typedef struct {
    uint32_t block, slot, attempt;
    char arm;
} place;
enum { V_NONE, V_GUARD, V_HARNESS };
static const char *const void_names[] = {"NONE", "GUARD", "HARNESS"};

static uint64_t now(const run *r)
{
    return r->o->now_ns(r->o->user);
}

/* Offset from the start of the run. */
static uint64_t since(const run *r, uint64_t ns)
{
    return ns > r->origin_ns ? ns - r->origin_ns : 0;
}

static int put(const run *r, const char *path, const ht_buf *b, ht_err *e)
{
    HT_TRY(ht_buf_ok(b, path, e));
    return evid__put_file(r->dir, path, b->p, b->n, e);
}

static int put_json(const run *r, const char *path, const ht_json *j, ht_err *e)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = j ? ht_json_write(j, HT_JSON_CANON, &b, e)
               : HT_FAIL(e, HT_ENOMEM, "harness: out of memory for %s", path);
    if (!rc) rc = put(r, path, &b, e);
    ht_buf_done(&b);
    return rc;
}

static void set_str(ht_arena *a, ht_json *o, const char *key, const char *v)
{
    ht_json_add(a, o, key, ht_json_new_str(a, v, strlen(v)));
}

static void set_int(ht_arena *a, ht_json *o, const char *key, uint64_t v)
{
    ht_json_add(a, o, key, ht_json_new_int(a, (int64_t)v));
}

static ht_json *unknown(ht_arena *a, const char *reason)
{
    ht_json *o = ht_json_new(a, HT_JOBJ);
    ht_json_add(a, o, "known", ht_json_new_bool(a, false));
    set_str(a, o, "reason", reason);
    return o;
}

/* ---- prompts ---- */

uint32_t ht_bench_length(const ht_scope *s, uint32_t pair, uint32_t request)
{
    const uint32_t of[3] = {s->min_tokens, s->min_tokens + (s->max_tokens - s->min_tokens) / 2,
                            s->max_tokens};
    return of[(pair + request) % 3];
}

int ht_bench_prompt(ht_arena *a, uint64_t seed, uint32_t vocab, uint32_t k, uint32_t n,
                    uint32_t max_new, ht_bench_request *out, ht_err *e)
{
    int32_t *ids = ht_arena_array(a, n, sizeof *ids);
    ht_buf b;
    ht_jw w;
    if (!ids) return HT_FAIL(e, HT_ENOMEM, "harness: out of memory for a prompt");
    uint32_t base = (uint32_t)(ht_uniform(seed, 0, 0) * vocab);
    ids[0] = (int32_t)((base + k) % vocab);
    for (uint32_t i = 1; i < n; i++) ids[i] = (int32_t)(ht_uniform(seed, i, k + 1) * (double)vocab);
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "maxNew", max_new);
    ht_jw_key(&w, "prompt");
    ht_jw_arr(&w);
    for (uint32_t i = 0; i < n; i++) ht_jw_int(&w, ids[i]);
    ht_jw_end(&w, ']');
    ht_jw_kstr(&w, "sampler", "greedy");
    ht_jw_kstr(&w, "schema", "hetero/request/1");
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&b, "request", e);
    const char *bytes = rc ? NULL : ht_arena_strndup(a, b.p, b.n);
    if (!rc && !bytes) rc = HT_FAIL(e, HT_ENOMEM, "harness: out of memory for a request");
    *out = (ht_bench_request){bytes, b.n, ids, n, max_new};
    ht_buf_done(&b);
    return rc;
}

static int make_prompts(run *r, char sha[HT_SHA256_HEX], ht_err *e)
{
    const ht_bench_plan *p = r->p;
    const size_t n = (size_t)2 * r->n_blocks * p->n_cells * p->requests;
    ht_buf b;
    if (n > p->n_vocab)
        return HT_FAIL(e, HT_EARG,
                       "harness: %zu prompts need different first tokens, the vocabulary has %u", n,
                       p->n_vocab);
    r->request = ht_arena_array(r->a, n, sizeof *r->request);
    r->prompt_sha = ht_arena_array(r->a, n, sizeof *r->prompt_sha);
    if (!r->request || !r->prompt_sha)
        return HT_FAIL(e, HT_ENOMEM, "harness: out of memory for %zu prompts", n);
    ht_buf_init(&b, 0);
    int rc = 0;
    for (size_t k = 0; k < n && !rc; k++) {
        const uint32_t request = (uint32_t)(k % p->requests);
        const ht_cell *c = &p->cell[k / p->requests % p->n_cells];
        const uint32_t pair = (uint32_t)(k / p->requests / p->n_cells);
        const uint32_t max_new = c->scope.phase == HT_PREFILL ? 1 : c->scope.max_new;
        ht_bench_request *q = &r->request[k];
        ht_jw w;
        rc = ht_bench_prompt(r->a, p->seed, p->n_vocab, (uint32_t)k,
                             ht_bench_length(&c->scope, pair, request), max_new, q, e);
        if (!rc) rc = ht_ids_sha256(q->prompt, q->n_prompt, r->prompt_sha[k], e);
        for (size_t i = 0; !rc && i < p->n_used; i++)
            if (strcmp(p->used[i], r->prompt_sha[k]) == 0)
                rc = HT_FAIL(e, HT_EARG,
                             "harness: prompt %zu was used for selection already: take another "
                             "--seed than that bundle",
                             k);
        ht_jw_init(&w, &b, HT_JSON_CANON);
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "bucket", c->id);
        ht_jw_kuint(&w, "nPrompt", q->n_prompt);
        ht_jw_kuint(&w, "pairId", pair);
        ht_jw_kstr(&w, "promptTokSha256", r->prompt_sha[k]);
        ht_jw_kuint(&w, "request", request);
        ht_jw_end(&w, '}');
        ht_buf_char(&b, '\n');
    }
    if (!rc) rc = put(r, "prompts.jsonl", &b, e);
    if (!rc) rc = evid__sha256_of(b.p, b.n, sha, e);
    ht_buf_done(&b);
    return rc;
}

/* ---- design ---- */

static int scope_json(run *r, const ht_scope *s, ht_json **out, ht_err *e)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = ht_scope_write(s, &b, e);
    if (!rc) rc = ht_json_parse(r->a, b.p, b.n, HT_JSON_CANON, "scope", out, e);
    ht_buf_done(&b);
    return rc;
}

static int write_design(run *r, const char *prompts_sha, char sha[HT_SHA256_HEX], ht_err *e)
{
    const ht_bench_plan *p = r->p;
    ht_arena *a = r->a;
    ht_json *d = ht_json_new(a, HT_JOBJ), *cells = ht_json_new(a, HT_JARR);
    ht_json *order = ht_json_new(a, HT_JARR);
    char utc[21];
    for (size_t i = 0; i < p->n_cells; i++) {
        const ht_cell *c = &p->cell[i];
        ht_json *o = ht_json_new(a, HT_JOBJ), *scope, *ref;
        HT_TRY(scope_json(r, &c->scope, &scope, e));
        HT_TRY(scope_json(r, &c->ref, &ref, e));
        set_str(a, o, "id", c->id);
        set_str(a, o, "metric", ht_metric_names[c->metric]);
        ht_json_add(a, o, "scope", scope);
        ht_json_add(a, o, "refScope", ref);
        ht_json_push(a, cells, o);
    }
    for (uint32_t b = 0; b < r->n_blocks; b++) {
        const char *word = ht_design_block(p->seed, b, b < p->null_pairs / 2);
        ht_json_push(a, order, ht_json_new_str(a, word, 4));
    }
    ht_utc_format(p->started_unix, utc);
    set_str(a, d, "schema", "hetero/design/1");
    set_str(a, d, "blocks", "ABBA_BAAB");
    ht_json_add(a, d, "cells", cells);
    ht_json_add(a, d, "order", order);
    set_int(a, d, "cpus", p->cpus);
    set_int(a, d, "nullPairs", p->null_pairs);
    set_int(a, d, "pairs", p->pairs);
    set_int(a, d, "requestsPerSlot", p->requests);
    set_int(a, d, "seed", p->seed);
    set_int(a, d, "spacingNs", p->spacing_ns);
    set_int(a, d, "warmupRequests", p->warmups);
    set_str(a, d, "policySha256", r->policy.sha256);
    set_str(a, d, "promptsSha256", prompts_sha);
    set_str(a, d, "startedUtc", utc);
    ht_json_add(a, d, "predecessor", unknown(a, "NONE"));
    if (p->selection) set_str(a, d, "selectionBundle", p->selection);
    else ht_json_add(a, d, "selectionBundle", unknown(a, "NONE"));
    ht_json_add(a, d, "synthetic", ht_json_new_bool(a, p->synthetic));
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = ht_json_write(d, HT_JSON_CANON, &b, e);
    if (!rc) rc = put(r, "design.json", &b, e);
    if (!rc) rc = evid__sha256_of(b.p, b.n, sha, e);
    ht_buf_done(&b);
    return rc;
}

/* ---- raw streams ---- */

static int raw_path(const place *p, const char *cell, uint32_t request, const char *file,
                    char out[160], ht_err *e)
{
    int n = cell ? snprintf(out, 160, "raw/b%02u/s%u-%c/a%u/%.60s-%u/%s", p->block, p->slot, p->arm,
                            p->attempt, cell, request, file)
                 : snprintf(out, 160, "raw/b%02u/s%u-%c/a%u/%s", p->block, p->slot, p->arm,
                            p->attempt, file);
    return n < 160 ? 0 : HT_FAIL(e, HT_EARG, "harness: path of cell %s is too long", cell);
}

static void put_chunks(const run *r, const ht_bench_answer *x, ht_buf *b)
{
    ht_jw w;
    uint64_t off = 0;
    for (size_t i = 0; i < x->n_chunks; i++) {
        const ht_bench_chunk *c = &x->chunk[i];
        ht_jw_init(&w, b, HT_JSON_CANON);
        ht_jw_obj(&w);
        ht_jw_kuint(&w, "i", i);
        ht_jw_kuint(&w, "len", c->len);
        ht_jw_kuint(&w, "off", off);
        ht_jw_kuint(&w, "tNs", since(r, c->t_ns));
        ht_jw_key(&w, "tok");
        ht_jw_arr(&w);
        for (uint32_t k = 0; k < c->n_tok; k++) ht_jw_int(&w, c->tok[k]);
        ht_jw_end(&w, ']');
        ht_jw_end(&w, '}');
        ht_buf_char(b, '\n');
        off += c->len;
    }
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "end", x->end);
    ht_jw_end(&w, '}');
    ht_buf_char(b, '\n');
}

/* One file of an attempt; its digest into the sample line under key. */
static int put_raw(const run *r, ht_arena *a, const place *p, const ht_cell *c, uint32_t request,
                   const char *file, const void *data, size_t n, ht_json *line, const char *key,
                   ht_err *e)
{
    char path[160], sha[HT_SHA256_HEX];
    HT_TRY(raw_path(p, c->id, request, file, path, e));
    HT_TRY(evid__put_file(r->dir, path, data, n, e));
    HT_TRY(evid__sha256_of(data, n, sha, e));
    set_str(a, line, key, sha);
    return 0;
}

static int put_streams(const run *r, ht_arena *a, const place *p, const ht_cell *c,
                       uint32_t request, const ht_bench_request *q, const ht_bench_answer *x,
                       ht_json *line, ht_err *e)
{
    ht_buf b;
    HT_TRY(put_raw(r, a, p, c, request, "request.bin", q->bytes, q->n, line, "requestSha256", e));
    HT_TRY(put_raw(r, a, p, c, request, "response.bin", x->response, x->n_response, line,
                   "responseSha256", e));
    if (x->receipt)
        HT_TRY(put_raw(r, a, p, c, request, "receipts.jsonl", x->receipt, strlen(x->receipt), line,
                       "receiptSha256", e));
    else ht_json_add(a, line, "receiptSha256", unknown(a, "NO_RECEIPT"));
    ht_buf_init(&b, 0);
    put_chunks(r, x, &b);
    int rc = ht_buf_ok(&b, "chunks", e);
    if (!rc) rc = put_raw(r, a, p, c, request, "chunks.jsonl", b.p, b.n, line, "chunksSha256", e);
    ht_buf_done(&b);
    return rc;
}

/* ---- sample lines ---- */

typedef struct {
    uint64_t first, last, end;
    uint32_t tokens;
} stream;

static int read_stream(const ht_bench_answer *x, ht_arena *a, stream *s, char sha[HT_SHA256_HEX],
                       ht_err *e)
{
    size_t n = 0;
    *s = (stream){0};
    for (size_t i = 0; i < x->n_chunks; i++) {
        const ht_bench_chunk *c = &x->chunk[i];
        if (c->n_tok && !s->tokens) s->first = c->t_ns;
        if (c->n_tok) s->last = c->t_ns;
        s->tokens += c->n_tok;
        s->end = c->t_ns;
    }
    int32_t *ids = ht_arena_array(a, s->tokens, sizeof *ids);
    if (!ids) return HT_FAIL(e, HT_ENOMEM, "harness: out of memory for tokens");
    for (size_t i = 0; i < x->n_chunks; i++)
        for (uint32_t k = 0; k < x->chunk[i].n_tok; k++) ids[n++] = x->chunk[i].tok[k];
    return ht_ids_sha256(ids, n, sha, e);
}

/* Formulas of evidence.md 3.5, from the intended start; unknown for whatever did not end well. */
static void set_times(const run *r, ht_arena *a, ht_json *line, const ht_bench_answer *x,
                      const stream *s, bool ok)
{
    const uint64_t start = x->intended_ns;
    ok = ok && s->tokens > 0;
    const uint64_t v[HT_METRICS] = {
        [HT_M_TTFT] = ok ? s->first - start : 0,
        [HT_M_E2E] = ok ? s->end - start : 0,
        [HT_M_TPOT] = ok && s->tokens >= 2 ? (s->last - s->first) / (s->tokens - 1) : 0};
    for (int m = 0; m < HT_METRICS; m++)
        ht_json_add(a, line, ht_metric_names[m],
                    v[m] ? ht_json_new_int(a, (int64_t)v[m])
                    : ok ? unknown(a, "ONE_TOKEN")
                         : unknown(a, "NOT_OK"));
    set_int(a, line, "intendedNs", since(r, start));
    set_int(a, line, "sendLagNs", x->sent_ns > start ? x->sent_ns - start : 0);
}

/* A stream that claims success must have one: whole, with tokens, in order, as many as asked. */
static uint8_t judged(const ht_bench_request *q, const ht_bench_answer *x, const stream *s)
{
    uint64_t last = x->sent_ns, bytes = 0;
    bool whole = strcmp(x->end, "DONE") == 0 || strcmp(x->end, "LENGTH_MET") == 0;
    for (size_t i = 0; i < x->n_chunks; i++) {
        if (x->chunk[i].t_ns < last) return HT_SM_BAD_OUTPUT;
        last = x->chunk[i].t_ns;
        bytes += x->chunk[i].len;
    }
    if (x->status != HT_SM_OK) return x->status;
    if (!whole) return HT_SM_SUT_ERROR;
    return s->tokens == 0 || s->tokens > q->max_new || bytes != x->n_response ||
                   s->first <= x->sent_ns
               ? HT_SM_BAD_OUTPUT
               : HT_SM_OK;
}

static int sample_line(run *r, ht_arena *a, const place *p, size_t k, int why,
                       const ht_json *guards, const ht_bench_answer *x, ht_buf *out, ht_err *e)
{
    const ht_bench_plan *plan = r->p;
    const ht_cell *c = &plan->cell[k / plan->requests];
    const uint32_t pair = 2 * p->block + (p->slot - 1) / 2;
    const size_t at = (size_t)pair * plan->n_cells * plan->requests + k;
    const ht_bench_request *q = &r->request[at];
    const char arm[2] = {p->arm, 0};
    char out_sha[HT_SHA256_HEX];
    stream s;
    ht_json *line = ht_json_new(a, HT_JOBJ), *copy = ht_json_new(a, HT_JNULL);
    HT_TRY(put_streams(r, a, p, c, (uint32_t)(k % plan->requests), q, x, line, e));
    HT_TRY(read_stream(x, a, &s, out_sha, e));
    uint8_t status = why == V_GUARD     ? HT_SM_VOID
                     : why == V_HARNESS ? HT_SM_HARNESS
                                        : judged(q, x, &s);
    if (!copy) return HT_FAIL(e, HT_ENOMEM, "harness: out of memory for a sample");
    *copy = *guards;
    set_str(a, line, "schema", "hetero/sample/1");
    set_str(a, line, "arm", arm);
    set_int(a, line, "attempt", p->attempt);
    set_int(a, line, "block", p->block);
    set_str(a, line, "bucket", c->id);
    set_str(a, line, "endState", x->end);
    ht_json_add(a, line, "guards", copy);
    set_int(a, line, "nOut", s.tokens);
    set_int(a, line, "nPrompt", q->n_prompt);
    set_str(a, line, "outTokSha256", out_sha);
    set_int(a, line, "pairId", pair);
    set_str(a, line, "promptTokSha256", r->prompt_sha[at]);
    set_int(a, line, "slot", p->slot);
    set_str(a, line, "status", evid__status_names[status]);
    set_times(r, a, line, x, &s, status == HT_SM_OK);
    if (why == V_NONE) ht_json_add(a, line, "voidReason", ht_json_new(a, HT_JNULL));
    else set_str(a, line, "voidReason", void_names[why]);
    HT_TRY(ht_json_write(line, HT_JSON_CANON, out, e));
    ht_buf_char(out, '\n');
    return ht_buf_ok(out, "samples", e);
}

/* ---- slots ---- */

static ht_json *place_json(ht_arena *a, const place *p)
{
    const char arm[2] = {p->arm, 0};
    ht_json *o = ht_json_new(a, HT_JOBJ);
    set_str(a, o, "arm", arm);
    set_int(a, o, "attempt", p->attempt);
    set_int(a, o, "block", p->block);
    set_int(a, o, "slot", p->slot);
    return o;
}

static void note_counters(run *r, ht_arena *a, const ht_telemetry *t, ht_err *e)
{
    const ht_json *line = ht_telemetry_line(a, t, r->origin_ns);
    /* A line that cannot be written marks the buffer bad, which is asked about at the end. */
    if (!line || ht_json_write(line, HT_JSON_CANON, &r->telemetry, e)) r->telemetry.bad = true;
    ht_buf_char(&r->telemetry, '\n');
}

/* Answers for requests that were never sent, or whose process died before it answered. */
static ht_bench_answer *no_answers(ht_arena *a, size_t n, uint64_t t, uint8_t status)
{
    ht_bench_answer *x = ht_arena_array(a, n, sizeof *x);
    for (size_t i = 0; x && i < n; i++)
        x[i] = (ht_bench_answer){
            .response = "", .end = "EOF_EARLY", .status = status, .intended_ns = t, .sent_ns = t};
    return x;
}

static int close_slot(run *r, ht_arena *a, const place *p, int why, const ht_json *guards,
                      const ht_bench_slot *x, ht_err *e)
{
    const size_t n = r->p->n_cells * r->p->requests, from = r->samples.n;
    char path[160], sha[HT_SHA256_HEX];
    ht_json *j = place_json(a, p), *proc = ht_json_new(a, HT_JOBJ);
    set_str(a, j, "void", void_names[why]);
    HT_TRY(ht_journal_add(&r->journal, a, "guards", j, e));
    for (size_t k = 0; k < n; k++)
        HT_TRY(sample_line(r, a, p, k, why, guards, &x->answer[k], &r->samples, e));
    set_str(a, proc, "schema", "hetero/proc/1");
    ht_json_add(a, proc, "exit", ht_json_new_int(a, x->exit));
    set_int(a, proc, "peakBytes", x->peak_bytes ? x->peak_bytes : 1);
    set_int(a, proc, "warmupNs", x->warmup_ns);
    HT_TRY(raw_path(p, NULL, 0, "proc.json", path, e));
    HT_TRY(put_json(r, path, proc, e));
    if (x->diagnostics && *x->diagnostics) {
        HT_TRY(raw_path(p, NULL, 0, "stderr.txt", path, e));
        HT_TRY(evid__put_file(r->dir, path, x->diagnostics, strlen(x->diagnostics), e));
    }
    HT_TRY(evid__sha256_of(r->samples.p + from, r->samples.n - from, sha, e));
    ht_json *done = place_json(a, p);
    set_int(a, done, "lines", n);
    set_str(a, done, "sha256", sha);
    return ht_journal_add(&r->journal, a, "samples", done, e);
}

static int run_slot(run *r, ht_arena *a, const place *p, int *why, ht_err *e)
{
    const size_t n = r->p->n_cells * r->p->requests;
    const uint32_t pair = 2 * p->block + (p->slot - 1) / 2;
    ht_telemetry gap[2], at[2];
    ht_bench_slot x = {0};
    ht_guard_state state;
    ht_err slot_error = {0};
    if (r->o->cancelled && r->o->cancelled(r->o->user))
        return HT_FAIL(e, HT_ECANCELLED, "cancelled in block %u slot %u", p->block, p->slot);
    HT_TRY(ht_journal_add(&r->journal, a, "start", place_json(a, p), e));
    if (r->p->spacing_ns) r->o->rest(r->o->user, r->p->spacing_ns);
    r->o->counters(r->o->user, &gap[0]);
    r->o->rest(r->o->user, r->p->gap_ns);
    r->o->counters(r->o->user, &gap[1]);
    at[0] = gap[1];
    uint64_t t = now(r);
    int rc = r->o->slot(r->o->user, p->arm, &r->request[pair * n], n, a, &x, &slot_error);
    r->o->counters(r->o->user, &at[1]);
    const ht_telemetry *second = NULL;
    const size_t n_seconds = r->o->seconds ? r->o->seconds(r->o->user, &second) : 0;
    note_counters(r, a, &at[0], e);
    for (size_t i = 0; i < n_seconds; i++) note_counters(r, a, &second[i], e);
    note_counters(r, a, &at[1], e);
    ht_telemetry_fold(second, n_seconds, &at[1]);
    const ht_json *guards = ht_telemetry_guards(a, gap, at);
    if (!guards) return HT_FAIL(e, HT_ENOMEM, "harness: out of memory for guards");
    HT_TRY(ht_guards_read(guards, &r->policy, r->p->cpus, &state, e));
    *why = rc ? V_HARNESS : state.red ? V_GUARD : V_NONE;
    if (rc == HT_ECANCELLED || rc == HT_ENOMEM)
        return HT_FAIL(e, rc, "block %u slot %u: %s", p->block, p->slot, slot_error.msg);
    if (rc) {
        x = (ht_bench_slot){
            .exit = -1, .diagnostics = ht_arena_strndup(a, slot_error.msg, strlen(slot_error.msg))};
        x.answer = no_answers(a, n, t, HT_SM_HARNESS);
    }
    if (!x.answer) return HT_FAIL(e, HT_ENOMEM, "harness: out of memory for answers");
    return close_slot(r, a, p, *why, guards, &x, e);
}

static int run_block(run *r, uint32_t b, ht_err *e)
{
    const char *word = ht_design_block(r->p->seed, b, b < r->p->null_pairs / 2);
    for (uint32_t attempt = 1; attempt <= 1 + r->policy.retries; attempt++) {
        int why = V_NONE;
        r->attempts++;
        for (uint32_t s = 1; s <= 4 && why == V_NONE; s++) {
            const place p = {b, s, attempt, word[s - 1]};
            ht_arena *a;
            HT_TRY(ht_arena_new(&a, 0, e));
            int rc = run_slot(r, a, &p, &why, e);
            ht_arena_free(a);
            HT_TRY(rc);
            if (r->o->progress) r->o->progress(r->o->user, ++r->slots_done, 4 * r->n_blocks);
        }
        if (why == V_NONE) return 0;
        r->voids++;
    }
    return 0;
}

/* ---- the run ---- */

static int put_machine(run *r, const char *path, ht_err *e)
{
    ht_json *doc;
    HT_TRY(r->o->machine(r->o->user, r->a, &doc, e));
    HT_TRY(ht_machine_check(doc, e));
    return put_json(r, path, doc, e);
}

int ht_bench_pairs_check(const ht_policy *policy, uint32_t pairs, uint32_t null_pairs, ht_err *e)
{
    if (pairs % 4 == 0 && null_pairs % 4 == 0 && pairs <= HT_STAT_MAX_N &&
        null_pairs <= HT_STAT_MAX_N && pairs >= policy->min_pairs &&
        null_pairs >= policy->null_pairs)
        return 0;
    return HT_FAIL(e, HT_EARG,
                   "harness: %u pairs and %u null pairs: need multiples of 4 up to %d, and policy "
                   "%s asks for %u and %u",
                   pairs, null_pairs, (int)HT_STAT_MAX_N, policy->id, policy->min_pairs,
                   policy->null_pairs);
}

static int open_run(run *r, ht_err *e)
{
    const ht_bench_plan *p = r->p;
    char prompts[HT_SHA256_HEX], design[HT_SHA256_HEX], path[4096];
    HT_TRY(ht_policy_parse(r->a, p->policy, p->n_policy, &r->policy, e));
    HT_TRY(ht_bench_pairs_check(&r->policy, p->pairs, p->null_pairs, e));
    if (!p->requests || !p->n_cells)
        return HT_FAIL(e, HT_EARG, "harness: %u requests a slot and %zu cells: need one of each",
                       p->requests, p->n_cells);
    r->n_blocks = (p->pairs + p->null_pairs) / 2;
    if (mkdir(r->dir, 0777) != 0) return HT_FAIL(e, HT_EIO, "%s: %s", r->dir, strerror(errno));
    HT_TRY(evid__put_file(r->dir, "policy.json", p->policy, p->n_policy, e));
    for (size_t i = 0; i < p->n_extra; i++)
        HT_TRY(evid__put_file(r->dir, p->extra[i].path, p->extra[i].data, p->extra[i].n, e));
    HT_TRY(put_machine(r, "machine/before.json", e));
    HT_TRY(make_prompts(r, prompts, e));
    HT_TRY(write_design(r, prompts, design, e));
    if (snprintf(path, sizeof path, "%s/journal.jsonl", r->dir) >= (int)sizeof path)
        return HT_FAIL(e, HT_EARG, "%s: the path is too long", r->dir);
    HT_TRY(ht_journal_new(&r->journal, path, e));
    ht_json *seal = ht_json_new(r->a, HT_JOBJ);
    set_str(r->a, seal, "designSha256", design);
    return ht_journal_add(&r->journal, r->a, "design", seal, e);
}

static int close_run(run *r, ht_err *e)
{
    ht_json *close = ht_json_new(r->a, HT_JOBJ);
    HT_TRY(put_machine(r, "machine/after.json", e));
    HT_TRY(put(r, "samples.jsonl", &r->samples, e));
    HT_TRY(put(r, "machine/telemetry.jsonl", &r->telemetry, e));
    set_int(r->a, close, "attempts", r->attempts);
    set_int(r->a, close, "blocks", r->n_blocks);
    set_int(r->a, close, "voids", r->voids);
    return ht_journal_close(&r->journal, r->a, close, e);
}

int ht_bench_run(const ht_bench_plan *p, const ht_bench_ops *o, const char *dir, ht_err *e)
{
    run r = {.p = p, .o = o, .dir = dir, .journal.fd = -1};
    HT_TRY(ht_arena_new(&r.a, 0, e));
    ht_buf_init(&r.samples, 0);
    ht_buf_init(&r.telemetry, 0);
    int rc = open_run(&r, e);
    r.origin_ns = now(&r);
    for (uint32_t b = 0; !rc && b < r.n_blocks; b++) rc = run_block(&r, b, e);
    if (!rc) rc = close_run(&r, e);
    ht_journal_abort(&r.journal);
    ht_buf_done(&r.samples);
    ht_buf_done(&r.telemetry);
    ht_arena_free(r.a);
    return rc;
}
