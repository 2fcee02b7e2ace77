/* compare_put.c - what a slot of a comparison leaves in the bundle, and the table a person
 * reads. */
#include "cli/compare.h"
#include "core/map.h"
#include "evid/bundle_read.h"
#include "evid/quality.h"
#include <stdio.h>
#include <string.h>

int cli__cmp_event(cli__cmp *w, ht_arena *a, const cli__cmp_slot *x, const char *event,
                   const char *sha256, ht_err *e)
{
    const char *arm = ht_cmp_arm_names[x->arm];
    ht_json *j = ht_json_new(a, HT_JOBJ);
    ht_json_add(a, j, "arm", ht_json_new_str(a, arm, strlen(arm)));
    ht_json_add(a, j, "pair", ht_json_new_int(a, x->pair));
    ht_json_add(a, j, "slot", ht_json_new_int(a, x->slot));
    if (sha256) ht_json_add(a, j, "sha256", ht_json_new_str(a, sha256, HT_SHA256_HEX - 1));
    return ht_journal_add(&w->journal, a, event, j, e);
}

static uint64_t since(const cli__cmp *w, uint64_t ns)
{
    return ns > w->origin_ns ? ns - w->origin_ns : 0;
}

static void known_or(ht_jw *j, const char *key, uint64_t v, const char *reason)
{
    if (v) ht_jw_kuint(j, key, v);
    else ht_jw_unknown(j, key, reason);
}

static void said_or(ht_jw *j, const char *key, int64_t v)
{
    if (v >= 0) ht_jw_kint(j, key, v);
    else ht_jw_unknown(j, key, "NOT_SAID");
}

static void put_chunk(const cli__cmp *w, const ht_bench_chunk *c, bool bears, size_t i,
                      uint64_t off, ht_buf *b)
{
    ht_jw j;
    ht_jw_init(&j, b, HT_JSON_CANON);
    ht_jw_obj(&j);
    ht_jw_kbool(&j, "bears", bears);
    ht_jw_kuint(&j, "i", i);
    ht_jw_kuint(&j, "len", c->len);
    ht_jw_kuint(&j, "off", off);
    ht_jw_kuint(&j, "tNs", since(w, c->t_ns));
    ht_jw_key(&j, "tok");
    ht_jw_arr(&j);
    for (uint32_t k = 0; k < c->n_tok; k++) ht_jw_int(&j, c->tok[k]);
    ht_jw_end(&j, ']');
    ht_jw_end(&j, '}');
    ht_buf_char(b, '\n');
}

/* Token-bearing chunks, then the bytes that follow the last of them. */
static void put_chunks(const cli__cmp *w, const cli__cmp_slot *x, ht_buf *b)
{
    const ht_bench_answer *a = &x->answer;
    uint64_t off = 0;
    ht_jw j;
    for (size_t i = 0; i < a->n_chunks; i++) {
        put_chunk(w, &a->chunk[i], x->foreign || a->chunk[i].n_tok, i, off, b);
        off += a->chunk[i].len;
    }
    if (x->tail) {
        const ht_bench_chunk rest = {x->last_ns, (uint32_t)x->tail, 0, NULL};
        put_chunk(w, &rest, false, a->n_chunks, off, b);
    }
    ht_jw_init(&j, b, HT_JSON_CANON);
    ht_jw_obj(&j);
    ht_jw_kstr(&j, "end", a->end);
    ht_jw_end(&j, '}');
    ht_buf_char(b, '\n');
}

static int put_raw(const cli__cmp *w, const cli__cmp_slot *x, const char *name, const void *data,
                   size_t n, char sha[HT_SHA256_HEX], ht_err *e)
{
    char path[80];
    snprintf(path, sizeof path, "raw/p%03u/s%u-%s/%s", x->pair, x->slot, ht_cmp_arm_names[x->arm],
             name);
    HT_TRY(evid__put_file(w->dir, path, data, n, e));
    return evid__sha256_of(data, n, sha, e);
}

/* Times by the formulas of evidence.md 3.5; "complete" ends with the last token. */
static void put_times(const cli__cmp_slot *x, ht_jw *j, const char *key, unsigned metric)
{
    const ht_bench_answer *a = &x->answer;
    uint64_t first = 0, last = 0, v = 0;
    for (size_t i = 0; i < a->n_chunks; i++) {
        if (!x->foreign && !a->chunk[i].n_tok) continue;
        if (!first) first = a->chunk[i].t_ns;
        last = a->chunk[i].t_ns;
    }
    if (a->status == HT_SM_OK)
        v = metric == HT_M_TTFT  ? first - a->intended_ns
            : metric == HT_M_E2E ? last - a->intended_ns
                                 : (last - first) / (x->n_out - 1);
    known_or(j, key, v, a->status == HT_SM_OK ? "ONE_EVENT" : "NOT_OK");
}

typedef struct {
    char request[HT_SHA256_HEX], response[HT_SHA256_HEX], chunks[HT_SHA256_HEX];
    char receipt[HT_SHA256_HEX];
} digests;

static void write_line(const cli__cmp *w, const cli__cmp_slot *x, const digests *d,
                       const ht_json *guards, ht_jw *j)
{
    const ht_bench_answer *a = &x->answer;
    ht_jw_obj(j);
    ht_jw_kstr(j, "arm", ht_cmp_arm_names[x->arm]);
    ht_jw_kstr(j, "chunksSha256", d->chunks);
    put_times(x, j, "e2eNs", HT_M_E2E);
    ht_jw_kstr(j, "endState", a->end);
    ht_jw_key(j, "guards");
    ht_jw_json(j, guards);
    ht_jw_kuint(j, "intendedNs", since(w, a->intended_ns));
    ht_jw_kuint(j, "nOut", x->n_out);
    ht_jw_kuint(j, "pair", x->pair);
    known_or(j, "peakBytes", x->peak_bytes, "NOT_READABLE");
    ht_jw_kstr(j, "promptTokSha256", w->prompt_sha[x->pair]);
    if (*d->receipt) ht_jw_kstr(j, "receiptSha256", d->receipt);
    else ht_jw_unknown(j, "receiptSha256", "FOREIGN");
    ht_jw_kstr(j, "requestSha256", d->request);
    ht_jw_kstr(j, "responseSha256", d->response);
    said_or(j, "saidOut", x->said_out);
    said_or(j, "saidPrompt", x->said_prompt);
    ht_jw_kstr(j, "schema", "hetero/comparesample/1");
    ht_jw_kuint(j, "sendLagNs", a->sent_ns > a->intended_ns ? a->sent_ns - a->intended_ns : 0);
    ht_jw_kuint(j, "slot", x->slot);
    ht_jw_kstr(j, "status", evid__status_names[a->status]);
    put_times(x, j, "tpotNs", HT_M_TPOT);
    put_times(x, j, "ttftNs", HT_M_TTFT);
    ht_jw_kstr(j, "why", x->why);
    ht_jw_end(j, '}');
}

static void note(cli__cmp *w, ht_arena *a, const ht_telemetry *t, ht_err *e)
{
    const ht_json *line = ht_telemetry_line(a, t, w->origin_ns);
    if (!line || ht_json_write(line, HT_JSON_CANON, &w->telemetry, e)) w->telemetry.bad = true;
    ht_buf_char(&w->telemetry, '\n');
}

int cli__cmp_put(cli__cmp *w, ht_arena *a, cli__cmp_slot *x, const ht_telemetry *seconds,
                 size_t n_seconds, ht_err *e)
{
    digests d = {0};
    ht_jw j;
    ht_buf b;
    char sha[HT_SHA256_HEX];
    const size_t from = w->lines.n;
    note(w, a, &x->at[0], e);
    for (size_t i = 0; i < n_seconds; i++) note(w, a, &seconds[i], e);
    note(w, a, &x->at[1], e);
    ht_telemetry_fold(seconds, n_seconds, &x->at[1]);
    const ht_json *guards = ht_telemetry_guards(a, x->gap, x->at);
    if (!guards) return HT_FAIL(e, HT_ENOMEM, "compare: out of memory for guards");
    /* What follows from the count of tokens the server reports is the reader's rule too. */
    if (!x->n_ids)
        x->n_out = x->said_out > 0 && x->said_out <= w->design.max_new ? (uint32_t)x->said_out : 0;
    HT_TRY(put_raw(w, x, "request.bin", x->request, x->n_request, d.request, e));
    HT_TRY(put_raw(w, x, "response.bin", x->answer.response, x->answer.n_response, d.response, e));
    if (x->answer.receipt)
        HT_TRY(put_raw(w, x, "receipts.jsonl", x->answer.receipt, strlen(x->answer.receipt),
                       d.receipt, e));
    ht_buf_init(&b, 0);
    put_chunks(w, x, &b);
    int rc = ht_buf_ok(&b, "chunks", e);
    if (!rc) rc = put_raw(w, x, "chunks.jsonl", b.p, b.n, d.chunks, e);
    ht_buf_done(&b);
    HT_TRY(rc);
    ht_jw_init(&j, &w->lines, HT_JSON_CANON);
    write_line(w, x, &d, guards, &j);
    ht_buf_char(&w->lines, '\n');
    HT_TRY(ht_buf_ok(&w->lines, "samples", e));
    HT_TRY(evid__sha256_of(w->lines.p + from, w->lines.n - from, sha, e));
    return cli__cmp_event(w, a, x, "sample", sha, e);
}

int cli__cmp_close(cli__cmp *w, ht_err *e)
{
    ht_json *close = ht_json_new(w->arena, HT_JOBJ);
    HT_TRY(ht_buf_ok(&w->telemetry, "telemetry", e));
    HT_TRY(evid__put_file(w->dir, "samples.jsonl", w->lines.p, w->lines.n, e));
    HT_TRY(evid__put_file(w->dir, "machine/telemetry.jsonl", w->telemetry.p, w->telemetry.n, e));
    ht_json_add(w->arena, close, "slots",
                ht_json_new_int(w->arena, (int64_t)2 * ht_cmp_pairs(&w->design)));
    return ht_journal_close(&w->journal, w->arena, close, e);
}

/* ---- the table ---- */

static double ms(const ht_json *m, const char *path)
{
    const ht_json *v = ht_json_path(m, path);
    return v && v->type == HT_JINT ? (double)v->i / 1e6 : 0;
}

/* Change of our time against the server's, in percent, from a ratio in ppm: negative is faster. */
static void put_change(const ht_json *m, const char *path, const char *key, ht_jw *j)
{
    const ht_json *v = ht_json_path(m, path);
    if (v && v->type == HT_JINT && v->i > 0) ht_jw_kreal(j, key, 1e8 / (double)v->i - 100);
    else ht_jw_kstr(j, key, "unknown");
}

static void put_row(const ht_json *row, const ht_json *m, ht_jw *j)
{
    static const char *const shown[][2] = {
        {"ttftNs", "prefill"}, {"tpotNs", "decode per token"}, {"e2eNs", "complete"}};
    char name[24];
    const char *metric = cli__str(m, "metric", "?");
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        if (strcmp(metric, shown[i][0]) == 0) metric = shown[i][1];
    snprintf(name, sizeof name, "C%.0f", cli__num(row, "context", 0));
    ht_jw_obj(j);
    ht_jw_kstr(j, "context", name);
    ht_jw_kstr(j, "metric", metric);
    ht_jw_kreal(j, "heteroMs", ms(m, "hetero.p50Ns"));
    ht_jw_kreal(j, "heteroMaxMs", ms(m, "hetero.maxNs"));
    ht_jw_kreal(j, "foreignMs", ms(m, "foreign.p50Ns"));
    ht_jw_kreal(j, "foreignMaxMs", ms(m, "foreign.maxNs"));
    put_change(m, "result.hlPpm", "changePercent", j);
    put_change(m, "result.hiPpm", "changeLow", j);
    put_change(m, "result.loPpm", "changeHigh", j);
    const ht_json *wins = ht_json_path(m, "result.wins"), *n = ht_json_get(row, "pairs");
    if (wins) ht_jw_kint(j, "wins", wins->i);
    else ht_jw_kstr(j, "wins", "unknown");
    if (n) ht_jw_kint(j, "pairs", n->i);
    const ht_json *holds = ht_json_get(m, "nullHolds");
    ht_jw_kstr(j, "nullRun", holds && holds->b ? "holds" : "fails");
    ht_jw_kreal(j, "failedHetero", cli__num(row, "failedHetero", 0));
    ht_jw_kreal(j, "failedForeign", cli__num(row, "failedForeign", 0));
    ht_jw_kreal(j, "outputsEqual", cli__num(row, "outputsEqual", 0));
    ht_jw_end(j, '}');
}

int cli__cmp_table(cli__cmp *w, const char *dir, ht_err *e)
{
    ht_json *doc;
    ht_buf b;
    ht_jw j;
    HT_TRY(cli__bundle_doc(w->arena, dir, "analysis/compare.json", &doc, e));
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    ht_jw_obj(&j);
    ht_jw_kstr(&j, "bundle", dir);
    ht_jw_kstr(&j, "route", w->label);
    ht_jw_kstr(&j, "api", w->design.api);
    ht_jw_kstr(&j, "class", cli__str(doc, "class", "?"));
    ht_jw_kstr(&j, "verdict", cli__str(doc, "verdict", "?"));
    ht_jw_kstr(&j, "reading", "change in percent of the server's time; negative: hetero is faster");
    ht_jw_key(&j, "rows");
    ht_jw_arr(&j);
    const ht_json *rows = ht_json_get(doc, "rows");
    for (size_t i = 0; rows && i < rows->n; i++) {
        const ht_json *metrics = ht_json_get(&rows->at[i], "metrics");
        for (size_t k = 0; metrics && k < metrics->n; k++)
            put_row(&rows->at[i], &metrics->at[k], &j);
    }
    ht_jw_end(&j, ']');
    ht_jw_end(&j, '}');
    int rc = ht_buf_ok(&b, "comparison", e);
    if (!rc) rc = cli__out_doc(w->c, b.p, e);
    ht_buf_done(&b);
    return rc;
}
