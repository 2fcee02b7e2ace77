/* qualify_sched.c - hetero qualify scheduler: the evidence of evidence.md 6 from real arrivals on
 * the real server. One set of arrivals is sealed; each scenario is run against a fresh server that
 * serialises prompts (A) and one that computes them beside running answers (B); the bundle is
 * judged by the policy (docs/bundle.md, "Schedulers"). */
#include "cli/arrivals.h"
#include "cli/load.h"
#include "cli/sched.h"
#include "cli/seconds.h"
#include "cli/store.h"
#include "cli/suite.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "core/map.h"
#include "core/rng.h"
#include "evid/bundle_read.h"
#include "evid/journal.h"
#include "evid/verdict.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    PROMPT_MAX = 512,      /* longest prompt of the mix, as far as half of the context allows */
    NEW_MAX = 32,          /* longest answer */
    ALONE = 3,             /* requests one after the other, to see how long one takes */
    CALIBRATION = 1 << 20, /* random stream of the prompts of the calibration */
};
#define GAP_NS     300000000u
#define TIMEOUT_NS ((uint64_t)900 * 1000000000u)
#define STOP_NS    ((uint64_t)60 * 1000000000u)
static const uint32_t rates[HT_SCHED_RATES] = {300000, 700000, 1200000};
static const char *const arm_names[] = {"A", "B"};

typedef struct {
    cli__ctx *c;
    ht_arena *arena;
    ht_key *key;
    cli__subject subject;
    cli__machine machine;
    ht_gpus gpus;
    ht_policy policy;
    const char *policy_text;
    size_t n_policy;
    ht_sched_scope scope;
    uint32_t reps, requests, n_vocab;
    uint64_t seed, saturation_uhz, alone_ns, delta_ppm;
    ht_arrival *trace, *arrival; /* arrival: [reps][scenarios][requests] */
    char dir[CLI_PATH];
    ht_journal journal;
    uint64_t origin_ns;
    ht_buf samples, runs, telemetry;
    cli__seconds ticker;
    bool ticked;
} work;

/* ---- requests -------------------------------------------------------------------------------- */

static int32_t id_of(const work *w, uint64_t stream, uint32_t i, uint32_t k)
{
    return (
        int32_t)(ht_uniform(w->seed ^ UINT64_C(0x9e3779b97f4a7c15), (uint64_t)i << 24 | k, stream) *
                 w->n_vocab);
}

/* One request as the server takes it; its token ids follow from stream and number. */
static int make_item(const work *w, ht_arena *a, uint64_t stream, uint32_t i, const ht_arrival *x,
                     cli__load_item *out, ht_err *e)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_buf_str(&b, "{\"cache_prompt\":false,\"ignore_eos\":true,\"return_tokens\":true,\"seed\":1,"
                   "\"stream\":true,\"temperature\":0,");
    ht_buf_fmt(&b, "\"max_tokens\":%u,\"prompt\":[", x->max_new);
    for (uint32_t k = 0; k < x->n_prompt; k++)
        ht_buf_fmt(&b, "%s%d", k ? "," : "", (int)id_of(w, stream, i, k));
    ht_buf_str(&b, "]}");
    int rc = ht_buf_ok(&b, "request", e);
    *out = (cli__load_item){.at_ns = x->at_ns, .n_body = b.n, .max_new = x->max_new};
    if (!rc) {
        out->body = ht_arena_strndup(a, b.p, b.n);
        out->t_ns = ht_arena_array(a, x->max_new, sizeof *out->t_ns);
        out->tok = ht_arena_array(a, x->max_new, sizeof *out->tok);
        if (!out->body || !out->t_ns || !out->tok) rc = HT_FAIL(e, HT_ENOMEM, "request: no memory");
    }
    ht_buf_done(&b);
    return rc;
}

static bool is_ok(const cli__load_item *x)
{
    return x->end == HT_HTTP_COMPLETE && x->status == 200 && x->done && x->n == x->max_new;
}

/* ---- the server ------------------------------------------------------------------------------ */

/* B shares passes, A is told not to, whatever a store has promoted. */
static int start_server(work *w, int arm, cli__server_child *child, ht_err *e)
{
    const ht_sched_scope *s = &w->scope;
    const char *kv = strchr(s->kv, ',');
    const char *args[] = {
        w->c->model,
        "-c",
        ht_arena_printf(w->arena, "%u", s->ctx_max),
        "-t",
        ht_arena_printf(w->arena, "%u", s->threads),
        "-ub",
        ht_arena_printf(w->arena, "%u", s->ubatch),
        "-np",
        ht_arena_printf(w->arena, "%u", s->slots),
        "--kv-positions",
        ht_arena_printf(w->arena, "%llu", (unsigned long long)s->kv_positions),
        "-ctk",
        ht_arena_strndup(w->arena, s->kv, kv ? (size_t)(kv - s->kv) : strlen(s->kv)),
        "-ctv",
        kv ? kv + 1 : s->kv,
        "--act",
        s->act,
        "--tpot-ms",
        ht_arena_printf(w->arena, "%u", s->tpot_ms),
        "--port",
        "0",
        "--host",
        "127.0.0.1",
        "--cache-ram",
        "0",
        "--no-progress",
        "--queue",
        "100000",
        "--queue-timeout",
        "86400",
        arm ? "--overlap" : "--no-overlap",
        NULL};
    for (size_t i = 0; i < sizeof args / sizeof *args - 1; i++)
        if (!args[i]) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
    return cli__child_start(args, TIMEOUT_NS, child, e);
}

/* A number of /metrics; 0 when it is not there. */
static uint64_t metric(const char *text, const char *name)
{
    char line[96];
    (void)snprintf(line, sizeof line, "\nhetero_%s ", name);
    const char *at = strstr(text, line);
    const double v = at ? strtod(at + strlen(line), NULL) : 0;
    return v > 0 ? (uint64_t)v : 0;
}

static int read_metrics(const cli__server_child *child, char **text, ht_err *e)
{
    ht_http_result r;
    size_t n;
    HT_TRY(ht_http_run(&child->url, "GET", "/metrics", NULL, 0, HT_BODY_WHOLE, NULL, NULL, STOP_NS,
                       &r, e));
    const bool good = r.end == HT_HTTP_COMPLETE && r.status == 200;
    ht_buf_char(&r.body, 0);
    *text = good ? ht_buf_take(&r.body, &n) : NULL;
    int rc = good ? 0 : HT_FAIL(e, HT_EIO, "the server's /metrics: %s", r.message);
    ht_http_result_done(&r);
    return rc;
}

/* ---- calibration: where is the reference full? ----------------------------------------------- */

/* Requests one after the other: how long one takes that is alone. */
static int measure_alone(work *w, ht_arena *a, const cli__server_child *child, ht_err *e)
{
    const ht_arrival longest = {.n_prompt = w->scope.max_prompt, .max_new = w->scope.max_new};
    for (uint32_t i = 0; i < ALONE; i++) {
        cli__load_item x;
        uint64_t origin;
        HT_TRY(make_item(w, a, CALIBRATION, w->requests + i, &longest, &x, e));
        int rc = cli__load_run(&child->url, &x, 1, TIMEOUT_NS, &origin, e);
        const bool ok = !rc && is_ok(&x);
        cli__load_done(&x, 1);
        HT_TRY(rc);
        if (!ok)
            return HT_FAIL(e, HT_EIO,
                           "the server gives %u of %u tokens to a first request (status %d)", x.n,
                           x.max_new, x.status);
        if (x.end_ns > w->alone_ns) w->alone_ns = x.end_ns;
    }
    return 0;
}

static int measure_saturation(work *w, ht_arena *a, const cli__server_child *child, ht_buf *out,
                              ht_err *e)
{
    cli__load_item *x = ht_arena_array(a, w->requests, sizeof *x);
    ht_arrival *at = ht_arena_array(a, w->requests, sizeof *at);
    uint64_t origin, first = UINT64_MAX, last = 0;
    if (!x || !at) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
    HT_TRY(cli__arrivals_make(0, 0, NULL, w->seed, CALIBRATION, w->scope.max_prompt,
                              w->scope.max_new, at, w->requests, e));
    for (uint32_t i = 0; i < w->requests; i++)
        HT_TRY(make_item(w, a, CALIBRATION, i, &at[i], &x[i], e));
    int rc = cli__load_run(&child->url, x, w->requests, TIMEOUT_NS, &origin, e);
    for (uint32_t i = 0; i < w->requests && !rc; i++) {
        ht_jw j;
        if (!is_ok(&x[i])) rc = HT_FAIL(e, HT_EIO, "calibration: request %u failed", i);
        ht_jw_init(&j, out, HT_JSON_CANON);
        ht_jw_obj(&j);
        ht_jw_kuint(&j, "endNs", x[i].end_ns);
        ht_jw_kuint(&j, "i", i);
        ht_jw_kuint(&j, "nOut", x[i].n);
        ht_jw_kuint(&j, "nPrompt", at[i].n_prompt);
        ht_jw_kuint(&j, "startNs", x[i].sent_ns);
        ht_jw_end(&j, '}');
        ht_buf_char(out, '\n');
        first = x[i].sent_ns < first ? x[i].sent_ns : first;
        last = x[i].end_ns > last ? x[i].end_ns : last;
    }
    cli__load_done(x, w->requests);
    if (!rc && last > first)
        w->saturation_uhz = w->requests * UINT64_C(1000000000000000) / (last - first);
    return rc ? rc : ht_buf_ok(out, "calibration", e);
}

static int calibrate(work *w, ht_buf *out, ht_err *e)
{
    cli__server_child child;
    ht_arena *a;
    HT_TRY(ht_arena_new(&a, 0, e));
    int rc = start_server(w, 0, &child, e);
    if (!rc) {
        rc = measure_alone(w, a, &child, e);
        if (!rc) rc = measure_saturation(w, a, &child, out, e);
        (void)cli__child_stop(&child, STOP_NS);
    }
    ht_arena_free(a);
    return rc;
}

/* ---- the sealed design ----------------------------------------------------------------------- */

static uint64_t stream_of(uint32_t rep, uint32_t scenario)
{
    return (uint64_t)rep * HT_SCHED_SCENARIOS + scenario + 1;
}

static int put_arrival(const work *w, uint32_t rep, uint32_t scenario, uint32_t i,
                       const ht_arrival *x, ht_buf *out, ht_err *e)
{
    char sha[HT_SHA256_HEX];
    int32_t *ids = ht_mem_array(x->n_prompt, sizeof *ids);
    ht_jw j;
    if (!ids) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
    for (uint32_t k = 0; k < x->n_prompt; k++) ids[k] = id_of(w, stream_of(rep, scenario), i, k);
    const int rc = ht_ids_sha256(ids, x->n_prompt, sha, e);
    ht_mem_free(ids);
    HT_TRY(rc);
    ht_jw_init(&j, out, HT_JSON_CANON);
    ht_jw_obj(&j);
    ht_jw_kuint(&j, "atNs", x->at_ns);
    ht_jw_kstr(&j, "class", x->is_long ? "long" : "short");
    ht_jw_kuint(&j, "i", i);
    ht_jw_kuint(&j, "maxNew", x->max_new);
    ht_jw_kuint(&j, "nPrompt", x->n_prompt);
    ht_jw_kstr(&j, "promptTokSha256", sha);
    ht_jw_kuint(&j, "rep", rep);
    ht_jw_kuint(&j, "scenario", scenario);
    ht_jw_end(&j, '}');
    ht_buf_char(out, '\n');
    return 0;
}

static int make_arrivals(work *w, ht_buf *out, ht_err *e)
{
    const size_t all = (size_t)w->reps * HT_SCHED_SCENARIOS * w->requests;
    ht_arrival *x = w->arrival = ht_arena_array(w->arena, all, sizeof *x);
    if (!x) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
    for (uint32_t rep = 0; rep < w->reps; rep++)
        for (uint32_t s = 0; s < HT_SCHED_SCENARIOS; s++, x += w->requests) {
            const uint64_t mean =
                s ? ht_sched_gap(w->saturation_uhz, rates[(s - 1) % HT_SCHED_RATES])
                  : 2 * w->alone_ns;
            HT_TRY(cli__arrivals_make(s, mean, w->trace, w->seed, stream_of(rep, s),
                                      w->scope.max_prompt, w->scope.max_new, x, w->requests, e));
            for (uint32_t i = 0; i < w->requests; i++)
                HT_TRY(put_arrival(w, rep, s, i, &x[i], out, e));
        }
    return ht_buf_ok(out, "arrivals", e);
}

static int write_design(const work *w, const char *arrivals, const char *calibration, ht_buf *b,
                        ht_err *e)
{
    ht_cpu_threads threads;
    char utc[21];
    ht_buf scope;
    ht_jw j;
    ht_cpu_threads_get(&threads);
    ht_utc_format(ht_now_unix(), utc);
    ht_buf_init(&scope, 1 << 16);
    int rc = ht_sched_scope_write(&w->scope, &scope, e);
    ht_jw_init(&j, b, HT_JSON_CANON);
    ht_jw_obj(&j);
    ht_jw_kstr(&j, "arrivalsSha256", arrivals);
    ht_jw_kstr(&j, "calibrationSha256", calibration);
    ht_jw_kuint(&j, "cpus", (uint64_t)threads.affinity);
    ht_jw_kuint(&j, "deltaPpm", w->delta_ppm);
    ht_jw_kuint(&j, "maxWaitNs", (uint64_t)w->scope.ttft_ms * 1000000 * HT_SCHED_WAITS);
    ht_jw_kstr(&j, "order", "ABBA");
    ht_jw_kstr(&j, "policySha256", w->policy.sha256);
    ht_jw_key(&j, "ratesPpm");
    ht_jw_arr(&j);
    for (int i = 0; i < HT_SCHED_RATES; i++) ht_jw_uint(&j, rates[i]);
    ht_jw_end(&j, ']');
    ht_jw_kuint(&j, "repetitions", w->reps);
    ht_jw_kuint(&j, "requests", w->requests);
    ht_jw_kuint(&j, "saturationMicroHz", w->saturation_uhz);
    ht_jw_kstr(&j, "schema", HT_SCHED_DESIGN);
    ht_jw_key(&j, "scope");
    if (!rc) ht_jw_raw(&j, scope.p, scope.n);
    ht_jw_kuint(&j, "seed", w->seed);
    ht_jw_kstr(&j, "startedUtc", utc);
    ht_jw_kbool(&j, "synthetic", false);
    ht_jw_end(&j, '}');
    ht_buf_done(&scope);
    return rc ? rc : ht_buf_ok(b, "design", e);
}

/* A file with what the buffer holds, and its digest; the buffer is empty afterwards. */
static int put(const work *w, const char *path, ht_buf *b, char sha[HT_SHA256_HEX], ht_err *e)
{
    HT_TRY(ht_buf_ok(b, path, e));
    HT_TRY(evid__sha256_of(b->p ? b->p : "", b->n, sha, e));
    HT_TRY(evid__put_file(w->dir, path, b->p ? b->p : "", b->n, e));
    ht_buf_clear(b);
    return 0;
}

static int put_machine(work *w, const char *path, ht_buf *b, ht_err *e)
{
    const ht_machine_source here = {.root = "", .gpus = &w->gpus};
    char sha[HT_SHA256_HEX];
    ht_json *doc;
    HT_TRY(ht_machine_read(w->arena, &here, &doc, e));
    HT_TRY(ht_json_write(doc, HT_JSON_CANON, b, e));
    return put(w, path, b, sha, e);
}

static int seal_design(work *w, ht_buf *b, ht_err *e)
{
    char arrivals[HT_SHA256_HEX], calibration[HT_SHA256_HEX], design[HT_SHA256_HEX];
    char path[CLI_PATH + 20];
    HT_TRY(evid__put_file(w->dir, "policy.json", w->policy_text, w->n_policy, e));
    for (size_t i = 0; i < w->subject.n_files; i++)
        HT_TRY(evid__put_file(w->dir, w->subject.file[i].path, w->subject.file[i].data,
                              w->subject.file[i].n, e));
    HT_TRY(put_machine(w, "machine/before.json", b, e));
    HT_TRY(calibrate(w, b, e));
    HT_TRY(put(w, "calibration.jsonl", b, calibration, e));
    HT_TRY(make_arrivals(w, b, e));
    HT_TRY(put(w, "arrivals.jsonl", b, arrivals, e));
    HT_TRY(write_design(w, arrivals, calibration, b, e));
    HT_TRY(put(w, "design.json", b, design, e));
    (void)snprintf(path, sizeof path, "%s/journal.jsonl", w->dir);
    HT_TRY(ht_journal_new(&w->journal, path, e));
    ht_json *more = ht_json_new(w->arena, HT_JOBJ);
    ht_json_add(w->arena, more, "designSha256",
                ht_json_new_str(w->arena, design, HT_SHA256_HEX - 1));
    return ht_journal_add(&w->journal, w->arena, "design", more, e);
}

/* ---- one run --------------------------------------------------------------------------------- */

typedef struct {
    uint32_t pair;
    int arm, exit_status;
    ht_telemetry gap[2], at[2];
    cli__load_item *item;
    uint64_t bounds, misses, idle, overlapped, serialised;
} run;

static int event(work *w, ht_arena *a, const run *r, const char *name, const char *run_sha,
                 const char *samples_sha, ht_err *e)
{
    ht_json *more = ht_json_new(a, HT_JOBJ);
    ht_json_add(a, more, "arm", ht_json_new_str(a, arm_names[r->arm], 1));
    ht_json_add(a, more, "pair", ht_json_new_int(a, r->pair));
    if (run_sha) ht_json_add(a, more, "runSha256", ht_json_new_str(a, run_sha, HT_SHA256_HEX - 1));
    if (samples_sha)
        ht_json_add(a, more, "samplesSha256", ht_json_new_str(a, samples_sha, HT_SHA256_HEX - 1));
    return ht_journal_add(&w->journal, a, name, more, e);
}

static void rest(uint64_t ns)
{
    const struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

static void counters(work *w, ht_telemetry *t)
{
    if (w->gpus.n) ht_gpus_read(&w->gpus);
    ht_telemetry_take("", &w->gpus, t);
}

static void write_sample(const work *w, const run *r, uint32_t i, const char *sha, ht_buf *b)
{
    const cli__load_item *x = &r->item[i];
    const char *status = is_ok(x)                               ? "ok"
                         : x->status == 429 || x->status == 503 ? "rejected"
                                                                : "failed";
    const uint32_t n = strcmp(status, "rejected") == 0 ? 0 : x->n;
    ht_jw j;
    (void)w;
    ht_jw_init(&j, b, HT_JSON_CANON);
    ht_jw_obj(&j);
    ht_jw_kstr(&j, "arm", arm_names[r->arm]);
    ht_jw_kuint(&j, "endNs", x->end_ns);
    ht_jw_kuint(&j, "i", i);
    ht_jw_kuint(&j, "intendedNs", x->at_ns);
    ht_jw_kuint(&j, "pair", r->pair);
    ht_jw_kuint(&j, "rawLen", x->raw.n);
    ht_jw_kstr(&j, "responseSha256", sha);
    ht_jw_kstr(&j, "schema", "hetero/schedsample/1");
    ht_jw_kuint(&j, "sendLagNs", x->sent_ns - x->at_ns);
    ht_jw_kstr(&j, "status", status);
    ht_jw_key(&j, "tNs");
    ht_jw_arr(&j);
    for (uint32_t k = 0; k < n; k++) ht_jw_uint(&j, x->t_ns[k]);
    ht_jw_end(&j, ']');
    ht_jw_key(&j, "tok");
    ht_jw_arr(&j);
    for (uint32_t k = 0; k < n; k++) ht_jw_int(&j, x->tok[k]);
    ht_jw_end(&j, ']');
    ht_jw_end(&j, '}');
    ht_buf_char(b, '\n');
}

static int write_run(work *w, ht_arena *a, const run *r, ht_err *e)
{
    ht_json *guards = ht_telemetry_guards(a, r->gap, r->at);
    ht_jw j;
    if (!guards) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
    ht_jw_init(&j, &w->runs, HT_JSON_CANON);
    ht_jw_obj(&j);
    ht_jw_kstr(&j, "arm", arm_names[r->arm]);
    ht_jw_kuint(&j, "boundMisses", r->misses);
    ht_jw_kuint(&j, "bounds", r->bounds);
    ht_jw_kint(&j, "exitStatus", r->exit_status);
    ht_jw_key(&j, "guards");
    ht_jw_json(&j, guards);
    ht_jw_kuint(&j, "idleQueued", r->idle);
    ht_jw_kuint(&j, "overlapped", r->overlapped);
    ht_jw_kuint(&j, "pair", r->pair);
    ht_jw_kstr(&j, "schema", "hetero/schedrun/1");
    ht_jw_kuint(&j, "serialised", r->serialised);
    ht_jw_end(&j, '}');
    ht_buf_char(&w->runs, '\n');
    return ht_buf_ok(&w->runs, "runs", e);
}

/* Raw bytes of all answers in one file, the lines of the samples and of the run, the journal. */
static int keep(work *w, ht_arena *a, run *r, ht_err *e)
{
    const size_t from = w->samples.n, run_from = w->runs.n;
    char sha[HT_SHA256_HEX], run_sha[HT_SHA256_HEX], path[32];
    ht_buf raw;
    int rc = 0;
    ht_buf_init(&raw, 0);
    for (uint32_t i = 0; i < w->requests && !rc; i++) {
        const ht_buf *b = &r->item[i].raw;
        rc = evid__sha256_of(b->p ? b->p : "", b->n, sha, e);
        if (b->n) ht_buf_add(&raw, b->p, b->n);
        write_sample(w, r, i, sha, &w->samples);
    }
    (void)snprintf(path, sizeof path, "raw/p%03u-%s.bin", r->pair, arm_names[r->arm]);
    if (!rc) rc = put(w, path, &raw, sha, e);
    ht_buf_done(&raw);
    if (!rc) rc = ht_buf_ok(&w->samples, "samples", e);
    if (!rc) rc = write_run(w, a, r, e);
    if (!rc) rc = evid__sha256_of(w->samples.p + from, w->samples.n - from, sha, e);
    if (!rc) rc = evid__sha256_of(w->runs.p + run_from, w->runs.n - run_from, run_sha, e);
    return rc ? rc : event(w, a, r, "run", run_sha, sha, e);
}

/* The load on a fresh server, after one request that is not counted. */
static int drive(work *w, ht_arena *a, run *r, ht_err *e)
{
    const uint32_t scenario = r->pair % HT_SCHED_SCENARIOS;
    const uint64_t stream = stream_of(r->pair / HT_SCHED_SCENARIOS, scenario);
    const ht_arrival *x = &w->arrival[(size_t)r->pair * w->requests];
    const ht_arrival first = {.n_prompt = 4, .max_new = 2};
    cli__server_child child;
    cli__load_item warm;
    uint64_t origin;
    char *text = NULL;
    HT_TRY(make_item(w, a, CALIBRATION, w->requests + ALONE, &first, &warm, e));
    for (uint32_t i = 0; i < w->requests; i++)
        HT_TRY(make_item(w, a, stream, i, &x[i], &r->item[i], e));
    HT_TRY(start_server(w, r->arm, &child, e));
    int rc = cli__load_run(&child.url, &warm, 1, TIMEOUT_NS, &origin, e);
    cli__load_done(&warm, 1);
    if (!rc) rc = cli__load_run(&child.url, r->item, w->requests, TIMEOUT_NS, &origin, e);
    if (!rc) rc = read_metrics(&child, &text, e);
    r->exit_status = cli__child_stop(&child, STOP_NS);
    if (!rc) {
        r->bounds = metric(text, "pass_bounds_total");
        r->misses = metric(text, "pass_bound_misses_total");
        r->idle = metric(text, "idle_queued_total");
        r->overlapped = metric(text, "overlapped_passes_total");
        r->serialised = metric(text, "serialised_passes_total");
    }
    ht_free(text);
    return rc;
}

static void note(work *w, ht_arena *a, const ht_telemetry *t)
{
    const ht_json *line = ht_telemetry_line(a, t, w->origin_ns);
    if (!line || ht_json_write(line, HT_JSON_CANON, &w->telemetry, NULL)) w->telemetry.bad = true;
    ht_buf_char(&w->telemetry, '\n');
}

static int one_run(work *w, ht_arena *a, run *r, ht_err *e)
{
    const ht_telemetry *seconds;
    r->item = ht_arena_array(a, w->requests, sizeof *r->item);
    if (!r->item) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
    HT_TRY(event(w, a, r, "start", NULL, NULL, e));
    counters(w, &r->gap[0]);
    rest(GAP_NS);
    counters(w, &r->gap[1]);
    r->at[0] = r->gap[1];
    if (w->ticked) cli__seconds_done(&w->ticker);
    w->ticked = true;
    cli__seconds_start(&w->ticker, w->gpus.n > 0);
    int rc = drive(w, a, r, e);
    const size_t n = cli__seconds_stop(&w->ticker, &seconds);
    counters(w, &r->at[1]);
    note(w, a, &r->at[0]);
    for (size_t i = 0; i < n; i++) note(w, a, &seconds[i]);
    note(w, a, &r->at[1]);
    ht_telemetry_fold(seconds, n, &r->at[1]);
    if (!rc) rc = keep(w, a, r, e);
    cli__load_done(r->item, w->requests);
    return rc;
}

static int run_all(work *w, ht_err *e)
{
    const uint32_t pairs = w->reps * HT_SCHED_SCENARIOS;
    w->origin_ns = ht_now_ns();
    for (uint32_t k = 0; k < 2 * pairs; k++) {
        run r = {.pair = k / 2, .arm = (int)(k & 1) ^ ht_sched_first(k / 2)};
        ht_arena *a;
        HT_TRY(ht_arena_new(&a, 0, e));
        int rc = one_run(w, a, &r, e);
        ht_arena_free(a);
        if (!rc && cli__interrupted()) rc = HT_FAIL(e, HT_ECANCELLED, "cancelled");
        HT_TRY(rc);
        cli__progress(w->c, "runs", k + 1, 2 * (uint64_t)pairs);
    }
    cli__progress_end(w->c);
    return 0;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int read_options(work *w, ht_err *e)
{
    const ht_opts *o = w->c->o;
    const char *trace = ht_opt_str(o, HT_OPT_TRACE);
    const int64_t tpot = ht_opt_int(o, HT_OPT_TPOT), seed = ht_opt_int(o, HT_OPT_SEED);
    const int64_t pairs = ht_opt_int(o, HT_OPT_PAIRS);
    w->requests = ht_opt_given(o, HT_OPT_REQUESTS) ? (uint32_t)ht_opt_int(o, HT_OPT_REQUESTS)
                                                   : HT_SCHED_MIN_REQUESTS;
    w->reps = pairs ? (uint32_t)pairs : 1;
    w->seed = seed >= 0 ? (uint64_t)seed : 1;
    if (!tpot || !trace)
        return HT_FAIL(e, HT_EARG,
                       "usage: hetero qualify scheduler [MODEL] --tpot-ms N --trace FILE (recorded "
                       "by hetero serve --record-trace FILE)");
    if (w->requests < HT_SCHED_MIN_REQUESTS || w->reps > HT_SCHED_REPS)
        return HT_FAIL(e, HT_EARG, "need --requests of at least %d and --pairs of at most %d",
                       (int)HT_SCHED_MIN_REQUESTS, (int)HT_SCHED_REPS);
    HT_TRY(cli__model(w->c, true, e));
    HT_TRY(cli__policy(w->c, w->arena, &w->policy, &w->policy_text, &w->n_policy, e));
    /* A fixture may call anything "not worse": it promotes nothing outside of tests. */
    w->delta_ppm = w->policy.fixture ? HT_PPM : HT_SCHED_DELTA;
    return cli__trace_read(w->arena, trace, w->requests, &w->trace, e);
}

/* What is asked for must fit, and a scope that failed is not measured again (evidence.md 7.5). */
static int check_scope(work *w, ht_err *e)
{
    ht_sched_scope *s = &w->scope;
    char dir[CLI_PATH], path[CLI_PATH + 16], sha[HT_SHA256_HEX];
    ht_store store;
    ht_buf b;
    ht_err none;
    s->max_new = s->ctx_max / 8 < NEW_MAX ? s->ctx_max / 8 : NEW_MAX;
    s->max_prompt = s->ctx_max / 2 < PROMPT_MAX ? s->ctx_max / 2 : PROMPT_MAX;
    for (uint32_t i = 0; i < w->requests; i++)
        if (w->trace[i].n_prompt > s->max_prompt) s->max_prompt = w->trace[i].n_prompt;
    if (s->max_new < 2 || (uint64_t)s->max_prompt + s->max_new > s->ctx_max)
        return HT_FAIL(e, HT_EARG,
                       "prompts of %u and answers of %u tokens need more context (-c) than %u",
                       s->max_prompt, s->max_new, s->ctx_max);
    if (cli__store_dir(w->c, dir, &none)) return 0;
    (void)snprintf(path, sizeof path, "%s/trust.json", dir);
    if (access(path, F_OK) != 0) return 0;
    HT_TRY(cli__store_open(w->c, w->arena, &store, e));
    ht_buf_init(&b, 1 << 16);
    int rc = ht_sched_scope_write(s, &b, e);
    if (!rc) rc = evid__sha256_of(b.p, b.n, sha, e);
    ht_buf_done(&b);
    return rc ? rc : ht_store_may_nominate(&store, sha, e);
}

static int open_subject(work *w, ht_err *e)
{
    ht_engine *engine;
    HT_TRY(cli__engine_open(w->c, 0, &engine, e));
    w->n_vocab = ht_vocab_size(ht_engine_vocab(engine));
    ht_gpus_read(&w->gpus);
    int rc = cli__subject_make(w->arena, engine, &w->subject, e);
    if (!rc) rc = cli__machine_read(w->c, w->arena, &w->gpus, &w->machine, e);
    if (!rc) rc = cli__sched_scope(w->c, w->arena, engine, &w->subject, &w->machine, &w->scope, e);
    w->scope.tpot_ms = (uint32_t)ht_opt_int(w->c->o, HT_OPT_TPOT);
    w->scope.ttft_ms = (uint32_t)ht_opt_int(w->c->o, HT_OPT_TTFT);
    ht_engine_close(engine); /* the servers open the model themselves */
    return rc ? rc : check_scope(w, e);
}

static int experiment(work *w, int *status, ht_err *e)
{
    const char *parent;
    char final[CLI_PATH + HT_SHA256_HEX], id[HT_SHA256_HEX], sha[HT_SHA256_HEX];
    ht_buf b;
    HT_TRY(read_options(w, e));
    HT_TRY(cli__out_dir(w->c, "evidence", &parent, e));
    cli__watch(NULL);
    HT_TRY(open_subject(w, e));
    HT_TRY(cli__bench_key(w->c, &w->key, e));
    HT_TRY(cli__run_dir(parent, w->dir, e));
    if (mkdir(w->dir, 0777) != 0) return HT_FAIL(e, HT_EIO, "%s: %s", w->dir, strerror(errno));
    ht_buf_init(&b, 0);
    int rc = seal_design(w, &b, e);
    if (!rc) rc = run_all(w, e);
    if (!rc) rc = put_machine(w, "machine/after.json", &b, e);
    ht_buf_done(&b);
    HT_TRY(rc);
    HT_TRY(put(w, "samples.jsonl", &w->samples, sha, e));
    HT_TRY(put(w, "runs.jsonl", &w->runs, sha, e));
    HT_TRY(put(w, "machine/telemetry.jsonl", &w->telemetry, sha, e));
    ht_json *more = ht_json_new(w->arena, HT_JOBJ);
    ht_json_add(w->arena, more, "runs",
                ht_json_new_int(w->arena, 2 * (int64_t)w->reps * HT_SCHED_SCENARIOS));
    HT_TRY(ht_journal_close(&w->journal, w->arena, more, e));
    HT_TRY(ht_schedule_seal(w->dir, w->key, id, e));
    (void)snprintf(final, sizeof final, "%s/%s", parent, id);
    if (rename(w->dir, final) != 0) return HT_FAIL(e, HT_EIO, "%s: %s", final, strerror(errno));
    return cli__out_verdict(w->c, w->arena, final, HT_SCHED_ANALYSIS, status, e);
}

int cli__qualify_scheduler(cli__ctx *c, ht_err *e)
{
    work *w = ht_mem_alloc(sizeof *w);
    int status = 0;
    if (!w) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
    w->c = c;
    w->journal.fd = -1;
    ht_buf_init(&w->samples, 0);
    ht_buf_init(&w->runs, 0);
    ht_buf_init(&w->telemetry, 0);
    int rc = ht_arena_new(&w->arena, 0, e);
    if (!rc) rc = experiment(w, &status, e);
    ht_journal_abort(&w->journal);
    if (w->ticked) cli__seconds_done(&w->ticker);
    ht_buf_done(&w->samples);
    ht_buf_done(&w->runs);
    ht_buf_done(&w->telemetry);
    ht_key_free(w->key);
    ht_arena_free(w->arena);
    ht_mem_free(w);
    return rc ? rc : status;
}
