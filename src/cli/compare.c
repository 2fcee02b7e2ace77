/* compare.c - hetero compare: this runtime against a foreign server on the same file, the same
 * prompts, in rotated order, with every answer kept (product.md R9). What is timed is what a
 * client sees: from before the connection (the server) or the call (hetero) to the first and the
 * last token. */
#include "cli/foreign.h"
#include "cli/subject.h"
#include "cli/worker.h"
#include "core/clock.h"
#include "core/map.h"
#include "core/rng.h"
#include "evid/stat.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
    CONTEXTS_MAX = 8,
    REPS_MAX = HT_STAT_MAX_N,
    REPS_MIN = 6,
    NEW = 16,
    SYSTEMS = 2,
    METRICS = 3
};
enum { PREFILL, DECODE, COMPLETE };
#define TIMEOUT_NS ((uint64_t)600 * 1000000000u)
static const char *const metric_name[METRICS] = {"prefill", "decodePerToken", "complete"};
static const char *const system_name[SYSTEMS] = {"hetero", "foreign"};
static const char *const status_name[HT_SM_STATES] = {
    "ok", "sutError", "timeout", "oom", "badOutput", "routeMismatch", "voidGuard", "harnessError"};

typedef struct {
    uint8_t status;
    uint64_t ns[METRICS]; /* 0: unknown                                                  */
    uint32_t n_out;
    int32_t out[NEW];
    uint32_t n_ids; /* of out: 0 when the server gives no ids                       */
    int64_t said_prompt;
} sample;

typedef struct {
    cli__ctx *c;
    ht_arena *arena;
    cli__server server;
    const char *dir, *arm, *props;
    const char *label; /* the arm without the model's folder: paths are never stored */
    ht_engine *engine;
    cli__subject subject;
    char server_sha[HT_SHA256_HEX], props_sha[HT_SHA256_HEX], design_sha[HT_SHA256_HEX];
    int64_t *context;
    size_t n_contexts;
    uint32_t reps, ctx;
    uint64_t spacing_ns, origin_ns;
    int32_t *ids;
    size_t n_ids; /* the text                                                    */
    sample *s;    /* [context][rep][system]                                      */
    ht_buf lines; /* samples.jsonl                                               */
    bool token_identical;
} work;

static sample *at(const work *w, size_t c, uint32_t rep, int system)
{
    return &w->s[(c * w->reps + rep) * SYSTEMS + (size_t)system];
}

/* ---- prompts: windows of one text that do not overlap ---- */

static const int32_t *window(const work *w, size_t c, uint32_t rep)
{
    size_t from = 0;
    for (size_t i = 0; i < c; i++) from += (size_t)w->context[i] * w->reps;
    return w->ids + from + (size_t)w->context[c] * rep;
}

/* The text's tokens, or random ones where none is given. */
static int read_text(work *w, ht_err *e)
{
    const char *file = ht_opt_str(w->c->o, HT_OPT_TEXT);
    const ht_vocab *v = ht_engine_vocab(w->engine);
    size_t need = 0, n;
    char *text;
    for (size_t i = 0; i < w->n_contexts; i++) need += (size_t)w->context[i] * w->reps;
    if (file) {
        HT_TRY(ht_file_read(file, CLI_TEXT_MAX, &text, &n, e));
        int rc = ht_vocab_encode(v, text, n, 0, &w->ids, &w->n_ids, e);
        ht_mem_free(text);
        HT_TRY(rc);
        return w->n_ids >= need
                   ? 0
                   : HT_FAIL(e, HT_EARG, "%s has %zu tokens, %zu are needed", file, w->n_ids, need);
    }
    if (w->server.api == CLI_API_OLLAMA)
        return HT_FAIL(e, HT_EARG, "Ollama takes text only: give one with --text FILE");
    w->n_ids = need;
    w->ids = ht_mem_array(need, sizeof *w->ids);
    if (!w->ids) return HT_FAIL(e, HT_ENOMEM, "compare: out of memory");
    for (size_t i = 0; i < need; i++)
        w->ids[i] = (int32_t)(ht_uniform(1, i, 0) * (double)ht_vocab_size(v));
    return 0;
}

/* ---- the sealed design ---- */

static void write_design(const work *w, ht_jw *j)
{
    ht_jw_obj(j);
    ht_jw_kstr(j, "api", ht_opt_str(w->c->o, HT_OPT_API));
    ht_jw_kstr(j, "arm", w->label);
    ht_jw_kstr(j, "binarySha256", w->subject.binary_sha);
    ht_jw_key(j, "contexts");
    ht_jw_arr(j);
    for (size_t i = 0; i < w->n_contexts; i++) ht_jw_int(j, w->context[i]);
    ht_jw_end(j, ']');
    ht_jw_kuint(j, "maxNew", NEW);
    ht_jw_kstr(j, "modelPackSha256", w->subject.model_sha);
    ht_jw_kstr(j, "order", "rotated: hetero first where context index + repetition is even");
    ht_jw_kuint(j, "repetitions", w->reps);
    ht_jw_kstr(j, "schema", "hetero/comparedesign/1");
    ht_jw_kstr(j, "serverBinarySha256", w->server_sha);
    ht_jw_kstr(j, "serverPropsSha256", w->props_sha);
    ht_jw_kuint(j, "spacingNs", w->spacing_ns);
    ht_jw_kstr(j, "tokenizerSha256", w->subject.tok_sha);
    ht_jw_end(j, '}');
}

static int sha_of(const void *p, size_t n, char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t d[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(p, n, d, e));
    ht_hex(d, sizeof d, hex);
    return 0;
}

static int seal_design(work *w, ht_err *e)
{
    ht_buf b;
    ht_jw j;
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, HT_JSON_CANON);
    write_design(w, &j);
    int rc = ht_buf_ok(&b, "design", e);
    if (!rc) rc = sha_of(b.p, b.n, w->design_sha, e);
    if (!rc) rc = cli__put_file(w->dir, "design.json", b.p, b.n, e);
    ht_buf_done(&b);
    if (!rc && w->props)
        rc = cli__put_file(w->dir, "server/props.json", w->props, strlen(w->props), e);
    for (size_t i = 0; i < w->subject.n_files && !rc; i++)
        rc = cli__put_file(w->dir, w->subject.file[i].path, w->subject.file[i].data,
                           w->subject.file[i].n, e);
    return rc;
}

/* ---- one answer ---- */

static void measure(const ht_bench_answer *a, uint32_t n_out, sample *s)
{
    uint64_t first = 0, last = 0;
    s->status = a->status;
    s->n_out = n_out;
    for (size_t i = 0; i < a->n_chunks; i++) {
        const ht_bench_chunk *c = &a->chunk[i];
        if (!first) first = c->t_ns;
        last = c->t_ns;
        for (uint32_t k = 0; k < c->n_tok && s->n_ids < NEW; k++) s->out[s->n_ids++] = c->tok[k];
    }
    if (s->status != HT_SM_OK) return;
    s->ns[PREFILL] = first - a->intended_ns;
    s->ns[COMPLETE] = last - a->intended_ns;
    if (n_out >= 2) s->ns[DECODE] = (last - first) / (n_out - 1);
}

static int keep(work *w, size_t c, uint32_t rep, int system, const ht_bench_answer *a,
                const char *why, ht_err *e)
{
    char path[96], sha[HT_SHA256_HEX];
    const sample *s = at(w, c, rep, system);
    ht_jw j;
    snprintf(path, sizeof path, "raw/c%lld/r%02u-%s/response.bin", (long long)w->context[c], rep,
             system_name[system]);
    HT_TRY(cli__put_file(w->dir, path, a->response, a->n_response, e));
    HT_TRY(sha_of(a->response, a->n_response, sha, e));
    ht_jw_init(&j, &w->lines, HT_JSON_CANON);
    ht_jw_obj(&j);
    ht_jw_key(&j, "chunkNs");
    ht_jw_arr(&j);
    for (size_t i = 0; i < a->n_chunks; i++) ht_jw_uint(&j, a->chunk[i].t_ns - w->origin_ns);
    ht_jw_end(&j, ']');
    ht_jw_kint(&j, "context", w->context[c]);
    ht_jw_kstr(&j, "end", a->end);
    ht_jw_kuint(&j, "intendedNs", a->intended_ns - w->origin_ns);
    ht_jw_key(&j, "out");
    ht_jw_arr(&j);
    for (uint32_t i = 0; i < s->n_ids; i++) ht_jw_int(&j, s->out[i]);
    ht_jw_end(&j, ']');
    ht_jw_kuint(&j, "repetition", rep);
    ht_jw_kstr(&j, "responseSha256", sha);
    ht_jw_kstr(&j, "schema", "hetero/comparesample/1");
    ht_jw_kuint(&j, "sendLagNs", a->sent_ns - a->intended_ns);
    ht_jw_kstr(&j, "status", status_name[s->status]);
    ht_jw_kstr(&j, "system", system_name[system]);
    ht_jw_kstr(&j, "why", why);
    ht_jw_end(&j, '}');
    ht_buf_char(&w->lines, '\n');
    return ht_buf_ok(&w->lines, "samples", e);
}

static int ask_hetero(work *w, ht_arena *a, size_t c, uint32_t rep, ht_err *e)
{
    const uint32_t n = (uint32_t)w->context[c];
    const int32_t *ids = window(w, c, rep);
    ht_bench_slot slot;
    ht_buf b;
    ht_jw j;
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, HT_JSON_CANON);
    ht_jw_obj(&j);
    ht_jw_kuint(&j, "maxNew", NEW);
    ht_jw_key(&j, "prompt");
    ht_jw_arr(&j);
    for (uint32_t i = 0; i < n; i++) ht_jw_int(&j, ids[i]);
    ht_jw_end(&j, ']');
    ht_jw_end(&j, '}');
    int rc = ht_buf_ok(&b, "request", e);
    const ht_bench_request q = {b.p, b.n, ids, n, NEW};
    if (!rc) rc = cli__worker_run(a, w->arm, w->ctx, 1, &q, 1, TIMEOUT_NS, &slot, e);
    ht_buf_done(&b);
    HT_TRY(rc);
    sample *s = at(w, c, rep, 0);
    measure(&slot.answer[0], 0, s);
    s->n_out = s->n_ids;
    s->said_prompt = n;
    if (s->status == HT_SM_OK && s->n_ids != NEW) s->status = HT_SM_BAD_OUTPUT;
    if (s->status == HT_SM_OK) s->ns[DECODE] = (s->ns[COMPLETE] - s->ns[PREFILL]) / (NEW - 1);
    return keep(w, c, rep, 0, &slot.answer[0],
                slot.diagnostics && s->status ? slot.diagnostics : "", e);
}

static int ask_foreign(work *w, ht_arena *a, size_t c, uint32_t rep, ht_err *e)
{
    const uint32_t n = (uint32_t)w->context[c];
    const int32_t *ids = window(w, c, rep);
    cli__foreign f;
    char *text = NULL;
    size_t n_text = 0;
    if (w->server.api == CLI_API_OLLAMA)
        HT_TRY(ht_vocab_decode(ht_engine_vocab(w->engine), ids, n, 0, &text, &n_text, e));
    int rc = cli__foreign_ask(a, &w->server, ids, n, text, n_text, NEW, &f, e);
    ht_free(text);
    HT_TRY(rc);
    sample *s = at(w, c, rep, 1);
    measure(&f.a, f.n_out, s);
    s->said_prompt = f.said_prompt;
    if (w->server.api == CLI_API_OLLAMA || f.said_prompt < 0) w->token_identical = false;
    return keep(w, c, rep, 1, &f.a, f.why, e);
}

static void rest(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    if (ns) nanosleep(&t, NULL);
}

static int run_pairs(work *w, ht_err *e)
{
    w->origin_ns = ht_now_ns();
    for (size_t c = 0; c < w->n_contexts; c++)
        for (uint32_t rep = 0; rep < w->reps; rep++) {
            ht_arena *a;
            HT_TRY(ht_arena_new(&a, 0, e));
            int rc = 0;
            for (int k = 0; k < SYSTEMS && !rc; k++) {
                int system = ((c + rep) % 2 == 0) == (k == 0) ? 0 : 1;
                rest(w->spacing_ns);
                rc = system ? ask_foreign(w, a, c, rep, e) : ask_hetero(w, a, c, rep, e);
                if (!rc && cli__interrupted()) rc = HT_FAIL(e, HT_ECANCELLED, "cancelled");
            }
            ht_arena_free(a);
            HT_TRY(rc);
            cli__progress(w->c, "pairs", c * w->reps + rep + 1, w->n_contexts * w->reps);
        }
    cli__progress_end(w->c);
    return cli__put_file(w->dir, "samples.jsonl", w->lines.p, w->lines.n, e);
}

/* ---- the table ---- */

static int by_value(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

/* Median and greatest of one system's times; failures are left out here and counted beside it. */
static void put_times(const work *w, size_t c, int system, int metric, ht_jw *j)
{
    uint64_t v[REPS_MAX];
    size_t n = 0;
    for (uint32_t r = 0; r < w->reps; r++) {
        const sample *s = at(w, c, r, system);
        if (s->ns[metric]) v[n++] = s->ns[metric];
    }
    qsort(v, n, sizeof *v, by_value);
    ht_jw_key(j, system_name[system]);
    if (!n) {
        ht_jw_null(j);
        return;
    }
    ht_jw_obj(j);
    ht_jw_kreal(j, "medianMs", (double)(v[(n - 1) / 2] + v[n / 2]) / 2e6);
    ht_jw_kreal(j, "maxMs", (double)v[n - 1] / 1e6);
    ht_jw_end(j, '}');
}

/* Ratio server / hetero per pair; a failed pair of ours is the worst rank, a failed one of the
 * server leaves the cell without a verdict. */
static int put_cell(const work *w, size_t c, int metric, ht_jw *j, ht_err *e)
{
    uint64_t ratio[REPS_MAX];
    bool known = true;
    uint32_t wins = 0;
    ht_stat st;
    ht_jw_key(j, metric_name[metric]);
    ht_jw_obj(j);
    for (int k = 0; k < SYSTEMS; k++) put_times(w, c, k, metric, j);
    for (uint32_t r = 0; r < w->reps && known; r++) {
        const sample *h = at(w, c, r, 0), *f = at(w, c, r, 1);
        known = f->ns[metric] != 0;
        if (known) HT_TRY(ht_stat_ratio(f->ns[metric], h->ns[metric], &ratio[r], e));
        wins += known && ratio[r] > HT_PPM;
    }
    if (known) {
        HT_TRY(ht_stat_pairs(ratio, w->reps, &st, e));
        ht_jw_kuint(j, "wins", wins);
        if (st.hl) ht_jw_kreal(j, "changePercent", 1e8 / (double)st.hl - 100);
        if (st.hi) ht_jw_kreal(j, "changeLow", 1e8 / (double)st.hi - 100);
        if (st.lo) ht_jw_kreal(j, "changeHigh", 1e8 / (double)st.lo - 100);
    } else {
        ht_jw_kstr(j, "changePercent", "unknown: the server failed");
    }
    ht_jw_end(j, '}');
    return 0;
}

static int put_row(const work *w, size_t c, ht_jw *j, ht_err *e)
{
    uint32_t failed[SYSTEMS] = {0, 0}, equal = 0, ids = 0;
    char name[24];
    for (uint32_t r = 0; r < w->reps; r++) {
        const sample *h = at(w, c, r, 0), *f = at(w, c, r, 1);
        failed[0] += h->status != HT_SM_OK;
        failed[1] += f->status != HT_SM_OK;
        ids += f->n_ids > 0;
        equal += f->n_ids == h->n_ids && f->n_ids &&
                 memcmp(f->out, h->out, f->n_ids * sizeof *f->out) == 0;
    }
    snprintf(name, sizeof name, "C%lld", (long long)w->context[c]);
    ht_jw_obj(j);
    ht_jw_kstr(j, "context", name);
    ht_jw_kuint(j, "pairs", w->reps);
    ht_jw_kuint(j, "failedHetero", failed[0]);
    ht_jw_kuint(j, "failedForeign", failed[1]);
    for (int m = 0; m < METRICS; m++) HT_TRY(put_cell(w, c, m, j, e));
    ht_jw_kuint(j, "outputsWithIds", ids);
    ht_jw_kuint(j, "outputsEqual", equal);
    ht_jw_end(j, '}');
    return 0;
}

static int out_table(work *w, ht_err *e)
{
    ht_buf b;
    ht_jw j;
    int rc = 0;
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    ht_jw_obj(&j);
    ht_jw_kstr(&j, "schema", "hetero/compare/1");
    ht_jw_kstr(&j, "route", w->label);
    ht_jw_kstr(&j, "api", ht_opt_str(w->c->o, HT_OPT_API));
    ht_jw_kstr(&j, "class", w->token_identical ? "TOKEN_IDENTICAL" : "TEXT_IDENTICAL");
    ht_jw_kstr(&j, "designSha256", w->design_sha);
    ht_jw_kstr(&j, "executed",
               *w->server_sha && *w->props_sha ? "binary and properties named" : "unproven");
    ht_jw_kuint(&j, "spacingNs", w->spacing_ns);
    ht_jw_kstr(&j, "prompts",
               ht_opt_str(w->c->o, HT_OPT_TEXT) ? "windows of a text" : "random tokens");
    ht_jw_kstr(&j, "reading", "change in percent of the server's time; negative: hetero is faster");
    ht_jw_key(&j, "rows");
    ht_jw_arr(&j);
    for (size_t c = 0; c < w->n_contexts && !rc; c++) rc = put_row(w, c, &j, e);
    ht_jw_end(&j, ']');
    ht_jw_end(&j, '}');
    if (!rc) rc = ht_buf_ok(&b, "comparison", e);
    if (!rc) rc = cli__put_file(w->dir, "compare.json", b.p, b.n, e);
    if (!rc) rc = cli__out_doc(w->c, b.p, e);
    ht_buf_done(&b);
    return rc;
}

/* ---- the command ---- */

static int open_server(work *w, ht_err *e)
{
    static const char *const name[CLI_APIS] = {"llama", "openai", "ollama"};
    const ht_opts *o = w->c->o;
    const char *url = ht_opt_str(o, HT_OPT_SERVER), *binary = ht_opt_str(o, HT_OPT_SERVER_BINARY);
    if (!url) return HT_FAIL(e, HT_EARG, "no server: give one with --server http://127.0.0.1:PORT");
    HT_TRY(ht_url_parse(url, &w->server.url, e));
    while (strcmp(name[w->server.api], ht_opt_str(o, HT_OPT_API)) != 0) w->server.api++;
    w->server.model = ht_opt_str(o, HT_OPT_SERVER_MODEL);
    w->server.timeout_ns = TIMEOUT_NS;
    HT_TRY(cli__foreign_props(w->arena, &w->server, &w->props, e));
    if (w->props) HT_TRY(sha_of(w->props, strlen(w->props), w->props_sha, e));
    if (binary) {
        ht_map m;
        HT_TRY(ht_map_open(&m, binary, e));
        int rc = sha_of(m.p, m.n, w->server_sha, e);
        ht_map_close(&m);
        return rc;
    }
    return 0;
}

static int open_hetero(work *w, ht_err *e)
{
    const char *spec = ht_opt_str(w->c->o, HT_OPT_CANDIDATE);
    const int32_t two[2] = {1, 2};
    ht_session *s;
    char *json = NULL;
    ht_json *receipt = NULL;
    if (strchr(w->c->model, ',')) return HT_FAIL(e, HT_EARG, "a path without a comma is needed");
    const char *slash = strrchr(w->c->model, '/'), *name = slash ? slash + 1 : w->c->model;
    const char *comma = spec ? "," : "";
    if (!spec) spec = "";
    w->arm = ht_arena_printf(w->arena, "model=%s%s%s", w->c->model, comma, spec);
    w->label = ht_arena_printf(w->arena, "model=%s%s%s", name, comma, spec);
    if (!w->arm || !w->label) return HT_FAIL(e, HT_ENOMEM, "compare: out of memory");
    HT_TRY(cli__engine_open(w->c, w->ctx, &w->engine, e));
    HT_TRY(ht_session_new(&s, w->engine, e));
    int rc = ht_session_eval(s, two, 2, NULL, 0, NULL, NULL, e);
    if (!rc) rc = ht_session_receipt(s, &json, e);
    if (!rc) rc = ht_json_parse(w->arena, json, strlen(json), 0, "receipt", &receipt, e);
    ht_session_free(s);
    ht_free(json);
    HT_TRY(rc);
    return cli__subject_make(w->arena, w->c->model, receipt, ht_engine_template(w->engine),
                             &w->subject, e);
}

static int run(work *w, ht_err *e)
{
    const ht_opts *o = w->c->o;
    int64_t most = 0, reps = ht_opt_given(o, HT_OPT_REPS) ? ht_opt_int(o, HT_OPT_REPS) : REPS_MIN;
    HT_TRY(ht_parse_ints(ht_opt_str(o, HT_OPT_CONTEXTS), "--contexts", 1, 1 << 20, &w->context,
                         &w->n_contexts, e));
    if (w->n_contexts > CONTEXTS_MAX || reps < REPS_MIN || reps > REPS_MAX)
        return HT_FAIL(e, HT_EARG, "need %d to %d repetitions (-r) and at most %d contexts",
                       (int)REPS_MIN, (int)REPS_MAX, (int)CONTEXTS_MAX);
    for (size_t i = 0; i < w->n_contexts; i++)
        if (w->context[i] > most) most = w->context[i];
    w->reps = (uint32_t)reps;
    w->ctx = w->server.ctx = (uint32_t)most + NEW;
    w->spacing_ns = (uint64_t)ht_opt_int(o, HT_OPT_SPACING) * 1000000u;
    w->dir = ht_opt_str(o, HT_OPT_OUT) ? ht_opt_str(o, HT_OPT_OUT) : "comparison";
    HT_TRY(cli__model(w->c, true, e));
    HT_TRY(open_server(w, e));
    cli__watch(NULL);
    HT_TRY(open_hetero(w, e));
    HT_TRY(read_text(w, e));
    w->s = ht_arena_array(w->arena, w->n_contexts * w->reps * SYSTEMS, sizeof *w->s);
    if (!w->s) return HT_FAIL(e, HT_ENOMEM, "compare: out of memory");
    if (mkdir(w->dir, 0777) != 0) return HT_FAIL(e, HT_EIO, "%s: %s", w->dir, strerror(errno));
    HT_TRY(seal_design(w, e));
    HT_TRY(run_pairs(w, e));
    return out_table(w, e);
}

int cli__compare(cli__ctx *c, ht_err *e)
{
    work w = {.c = c, .token_identical = true};
    ht_buf_init(&w.lines, 0);
    HT_TRY(ht_arena_new(&w.arena, 0, e));
    int rc = run(&w, e);
    if (w.engine) ht_engine_close(w.engine);
    if (ht_opt_str(c->o, HT_OPT_TEXT)) ht_free(w.ids);
    else ht_mem_free(w.ids);
    ht_mem_free(w.context);
    ht_buf_done(&w.lines);
    ht_arena_free(w.arena);
    return rc;
}
