/* compare.c - hetero compare: this runtime against a foreign server on the same file, the same
 * prompts, in rotated order, as a signed bundle with every answer kept (product.md R9). What is
 * timed is what a client sees: from before the connection (the server) or the call (hetero) to the
 * first and the last token. */
#include "cli/compare.h"
#include "cli/store.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "core/map.h"
#include "core/rng.h"
#include "evid/bundle_read.h"
#include "evid/quality.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { NEW = 16, WARM = 32 };
#define TIMEOUT_NS ((uint64_t)600 * 1000000000u)

/* ---- prompts: windows of one text that do not overlap ---- */

static uint32_t length_of(const cli__cmp *w, uint32_t pair)
{
    return w->design.context[ht_cmp_place_of(&w->design, pair).context_i];
}

/* The text's tokens, or random ones where none is given; the last WARM are for warming up. */
static int read_text(cli__cmp *w, ht_err *e)
{
    const char *file = ht_opt_str(w->c->o, HT_OPT_TEXT);
    const ht_vocab *v = ht_engine_vocab(w->engine);
    const uint32_t pairs = ht_cmp_pairs(&w->design);
    size_t need = WARM, n;
    char *text;
    for (uint32_t p = 0; p < pairs; p++) need += length_of(w, p);
    if (file) {
        HT_TRY(cli__read_file(file, CLI_TEXT_MAX, &text, &n, e));
        int rc = ht_vocab_encode(v, text, n, 0, &w->ids, &w->n_ids, e);
        ht_mem_free(text);
        HT_TRY(rc);
        w->ids_of_text = true;
        if (w->n_ids < need)
            return HT_FAIL(e, HT_EARG, "%s has %zu tokens, %zu are needed", file, w->n_ids, need);
    } else {
        if (w->server.api == CLI_API_OLLAMA)
            return HT_FAIL(e, HT_EARG, "Ollama takes text only: give one with --text FILE");
        w->ids = ht_mem_array(need, sizeof *w->ids);
        if (!w->ids) return HT_FAIL(e, HT_ENOMEM, "compare: out of memory");
        for (size_t i = 0; i < need; i++)
            w->ids[i] = (int32_t)(ht_uniform(1, i, 0) * (double)ht_vocab_size(v));
    }
    w->from = ht_arena_array(w->arena, pairs + 1, sizeof *w->from);
    if (!w->from) return HT_FAIL(e, HT_ENOMEM, "compare: out of memory");
    for (uint32_t p = 0; p < pairs; p++) w->from[p + 1] = w->from[p] + length_of(w, p);
    return 0;
}

static int put_prompts(cli__cmp *w, char sha[HT_SHA256_HEX], ht_err *e)
{
    const uint32_t pairs = ht_cmp_pairs(&w->design);
    ht_buf b;
    int rc = 0;
    w->prompt_sha = ht_arena_array(w->arena, pairs, sizeof *w->prompt_sha);
    if (!w->prompt_sha) return HT_FAIL(e, HT_ENOMEM, "compare: out of memory");
    ht_buf_init(&b, 0);
    for (uint32_t p = 0; p < pairs && !rc; p++) {
        const uint32_t n = length_of(w, p);
        ht_jw j;
        rc = ht_ids_sha256(w->ids + w->from[p], n, w->prompt_sha[p], e);
        ht_jw_init(&j, &b, HT_JSON_CANON);
        ht_jw_obj(&j);
        ht_jw_kuint(&j, "nPrompt", n);
        ht_jw_kuint(&j, "pair", p);
        ht_jw_kstr(&j, "promptTokSha256", w->prompt_sha[p]);
        ht_jw_kstr(&j, "run", ht_cmp_place_of(&w->design, p).null_run ? "null" : "main");
        ht_jw_end(&j, '}');
        ht_buf_char(&b, '\n');
    }
    if (!rc) rc = ht_buf_ok(&b, "prompts", e);
    if (!rc) rc = evid__put_file(w->dir, "prompts.jsonl", b.p, b.n, e);
    if (!rc) rc = evid__sha256_of(b.p, b.n, sha, e);
    ht_buf_done(&b);
    return rc;
}

/* ---- the sealed design ---- */

static void write_design(const cli__cmp *w, const char *prompts, const char *foreign, ht_jw *j)
{
    char utc[21];
    ht_utc_format(ht_now_unix(), utc);
    ht_jw_obj(j);
    ht_jw_kstr(j, "api", w->design.api);
    ht_jw_kstr(j, "arm", w->label);
    ht_jw_kstr(j, "assetsSha256", w->subject.assets_sha);
    ht_jw_kstr(j, "binarySha256", w->subject.binary_sha);
    ht_jw_key(j, "contexts");
    ht_jw_arr(j);
    for (uint32_t i = 0; i < w->design.n_contexts; i++) ht_jw_uint(j, w->design.context[i]);
    ht_jw_end(j, ']');
    if (*w->index_sha) ht_jw_kstr(j, "costMapSha256", w->index_sha);
    else ht_jw_unknown(j, "costMapSha256", "NO_EVIDENCE");
    ht_jw_kuint(j, "cpus", w->design.cpus);
    ht_jw_kstr(j, "foreignSha256", foreign);
    ht_jw_kstr(j, "machineClassSha256", w->class_sha);
    ht_jw_kuint(j, "maxNew", NEW);
    ht_jw_kstr(j, "modelPackSha256", w->subject.model_sha);
    ht_jw_kuint(j, "nullRepetitions", w->design.null_reps);
    ht_jw_kstr(j, "order", "ROTATED");
    ht_jw_kstr(j, "policySha256", w->policy.sha256);
    ht_jw_kstr(j, "prompts", w->ids_of_text ? "WINDOWS" : "RANDOM");
    ht_jw_kstr(j, "promptsSha256", prompts);
    ht_jw_kuint(j, "repetitions", w->design.reps);
    ht_jw_kstr(j, "schema", HT_COMPARE_DESIGN);
    ht_jw_kuint(j, "spacingNs", w->spacing_ns);
    ht_jw_kstr(j, "startedUtc", utc);
    ht_jw_kbool(j, "synthetic", false);
    ht_jw_kstr(j, "tokenizerSha256", w->subject.tok_sha);
    ht_jw_end(j, '}');
}

static int put_machine(cli__cmp *w, const char *path, ht_err *e)
{
    const ht_machine_source here = {.root = "", .gpus = &w->gpus};
    ht_json *doc;
    ht_buf b;
    ht_err none = {0};
    HT_TRY(ht_machine_read(w->arena, &here, &doc, e));
    int rc = ht_machine_sha256(doc, HT_MP_REJECT, w->class_sha, &none);
    if (rc && rc != HT_EGATE) return HT_FAIL(e, rc, "%s", none.msg);
    ht_buf_init(&b, 0);
    rc = ht_json_write(doc, HT_JSON_CANON, &b, e);
    if (!rc) rc = evid__put_file(w->dir, path, b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}

static int put_server(cli__cmp *w, char sha[HT_SHA256_HEX], ht_err *e)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = cli__server_receipt(w->arena, &w->server, w->pid,
                                 ht_opt_str(w->c->o, HT_OPT_SERVER_BINARY), w->props, &b, e);
    if (!rc) rc = evid__sha256_of(b.p, b.n, sha, e);
    if (!rc) rc = evid__put_file(w->dir, "server/foreign.json", b.p, b.n, e);
    ht_buf_done(&b);
    if (!rc && w->props)
        rc = evid__put_file(w->dir, "server/props.json", w->props, strlen(w->props), e);
    return rc;
}

static int seal_design(cli__cmp *w, ht_err *e)
{
    char prompts[HT_SHA256_HEX], foreign[HT_SHA256_HEX], design[HT_SHA256_HEX], path[CLI_PATH + 20];
    ht_buf b;
    ht_jw j;
    HT_TRY(evid__put_file(w->dir, "policy.json", w->policy_text, w->n_policy, e));
    HT_TRY(put_machine(w, "machine/before.json", e));
    HT_TRY(put_prompts(w, prompts, e));
    HT_TRY(put_server(w, foreign, e));
    for (size_t i = 0; i < w->subject.n_files; i++)
        HT_TRY(evid__put_file(w->dir, w->subject.file[i].path, w->subject.file[i].data,
                              w->subject.file[i].n, e));
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, HT_JSON_CANON);
    write_design(w, prompts, foreign, &j);
    int rc = ht_buf_ok(&b, "design", e);
    if (!rc) rc = evid__sha256_of(b.p, b.n, design, e);
    if (!rc) rc = evid__put_file(w->dir, "design.json", b.p, b.n, e);
    ht_buf_done(&b);
    HT_TRY(rc);
    snprintf(path, sizeof path, "%s/journal.jsonl", w->dir);
    HT_TRY(ht_journal_new(&w->journal, path, e));
    ht_json *seal = ht_json_new(w->arena, HT_JOBJ);
    ht_json_add(w->arena, seal, "designSha256",
                ht_json_new_str(w->arena, design, HT_SHA256_HEX - 1));
    return ht_journal_add(&w->journal, w->arena, "design", seal, e);
}

/* ---- one slot ---- */

static int ask_hetero(cli__cmp *w, ht_arena *a, cli__cmp_slot *x, ht_err *e)
{
    const uint32_t n[2] = {WARM, length_of(w, x->pair)};
    const int32_t *ids[2] = {w->ids + w->from[ht_cmp_pairs(&w->design)], w->ids + w->from[x->pair]};
    ht_bench_request q[2];
    ht_bench_slot slot;
    for (int i = 0; i < 2; i++) {
        ht_buf b;
        ht_jw j;
        ht_buf_init(&b, 0);
        ht_jw_init(&j, &b, HT_JSON_CANON);
        ht_jw_obj(&j);
        ht_jw_kuint(&j, "maxNew", NEW);
        ht_jw_key(&j, "prompt");
        ht_jw_arr(&j);
        for (uint32_t k = 0; k < n[i]; k++) ht_jw_int(&j, ids[i][k]);
        ht_jw_end(&j, ']');
        ht_jw_end(&j, '}');
        int rc = ht_buf_ok(&b, "request", e);
        const char *copy = rc ? NULL : ht_arena_strndup(a, b.p, b.n);
        q[i] = (ht_bench_request){copy, b.n, ids[i], n[i], NEW};
        ht_buf_done(&b);
        if (rc || !copy) return HT_FAIL(e, HT_ENOMEM, "compare: out of memory for a request");
    }
    /* The first request warms up; what it gives is not looked at. */
    HT_TRY(cli__worker_run(a, w->arm, w->ctx, 0, q, 2, TIMEOUT_NS, &slot, e));
    x->answer = slot.answer[1];
    x->request = q[1].bytes;
    x->n_request = q[1].n;
    x->said_prompt = x->said_out = -1;
    x->peak_bytes = slot.peak_bytes;
    x->last_ns = x->answer.n_chunks ? x->answer.chunk[x->answer.n_chunks - 1].t_ns : 0;
    for (size_t i = 0; i < x->answer.n_chunks; i++) x->n_ids += x->answer.chunk[i].n_tok;
    x->n_out = x->n_ids;
    x->why = slot.diagnostics && x->answer.status ? slot.diagnostics : "";
    if (x->answer.status == HT_SM_OK && x->n_out != NEW) {
        x->answer.status = HT_SM_BAD_OUTPUT;
        x->why = "not as many tokens as asked";
    }
    return 0;
}

static int ask_foreign(cli__cmp *w, ht_arena *a, const int32_t *ids, uint32_t n, cli__cmp_slot *x,
                       ht_err *e)
{
    cli__foreign *f = ht_arena_alloc(a, sizeof *f);
    char *text = NULL;
    size_t n_text = 0;
    uint64_t cpu;
    if (!f) return HT_FAIL(e, HT_ENOMEM, "compare: out of memory");
    if (w->server.api == CLI_API_OLLAMA)
        HT_TRY(ht_vocab_decode(ht_engine_vocab(w->engine), ids, n, 0, &text, &n_text, e));
    int rc = cli__foreign_ask(a, &w->server, ids, n, text, n_text, NEW, f, e);
    ht_free(text);
    HT_TRY(rc);
    x->answer = f->a;
    x->request = f->request;
    x->n_request = f->n_request;
    x->said_prompt = f->said_prompt;
    x->said_out = f->said_out;
    x->tail = f->tail;
    x->last_ns = f->last_ns;
    x->n_out = f->n_out;
    x->foreign = true;
    for (size_t i = 0; i < f->a.n_chunks; i++) x->n_ids += f->a.chunk[i].n_tok;
    x->why = f->why;
    if (!cli__server_usage(w->pid, &cpu, &x->peak_bytes)) x->peak_bytes = 0;
    return 0;
}

/* ---- what one slot leaves behind: cli/compare_put.c ---- */

static void rest(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    if (ns) nanosleep(&t, NULL);
}

/* The machine's counters; the server's own CPU time is not foreign load. */
static void counters(cli__cmp *w, ht_telemetry *t)
{
    uint64_t cpu = 0, peak;
    if (w->gpus.n) ht_gpus_read(&w->gpus);
    ht_telemetry_take("", &w->gpus, t);
    if (cli__server_usage(w->pid, &cpu, &peak)) t->own_ns += cpu;
}

static int run_slot(cli__cmp *w, ht_arena *a, cli__cmp_slot *x, ht_err *e)
{
    const ht_telemetry *seconds;
    HT_TRY(cli__cmp_event(w, a, x, "start", NULL, e));
    counters(w, &x->gap[0]);
    rest(w->spacing_ns);
    counters(w, &x->gap[1]);
    x->at[0] = x->gap[1];
    cli__seconds_start(&w->ticker, w->gpus.n > 0);
    int rc = x->arm == HT_CMP_F
                 ? ask_foreign(w, a, w->ids + w->from[x->pair], length_of(w, x->pair), x, e)
                 : ask_hetero(w, a, x, e);
    const size_t n = cli__seconds_stop(&w->ticker, &seconds);
    counters(w, &x->at[1]);
    if (!rc) rc = cli__cmp_put(w, a, x, seconds, n, e);
    cli__seconds_done(&w->ticker);
    return rc;
}

static int run_pairs(cli__cmp *w, ht_err *e)
{
    const uint32_t pairs = ht_cmp_pairs(&w->design);
    w->origin_ns = ht_now_ns();
    for (uint32_t k = 0; k < 2 * pairs; k++) {
        cli__cmp_slot x = {.pair = k / 2, .slot = k % 2 + 1};
        ht_arena *a;
        x.arm = ht_cmp_arm_of(&w->design, x.pair, x.slot);
        HT_TRY(ht_arena_new(&a, 0, e));
        int rc = run_slot(w, a, &x, e);
        ht_arena_free(a);
        if (!rc && cli__interrupted()) rc = HT_FAIL(e, HT_ECANCELLED, "cancelled");
        HT_TRY(rc);
        cli__progress(w->c, "slots", k + 1, 2 * (uint64_t)pairs);
    }
    cli__progress_end(w->c);
    return 0;
}

/* Once, unscored: a server loads and warms as it likes before its first answer counts. */
static int warm_server(cli__cmp *w, ht_err *e)
{
    ht_arena *a;
    cli__cmp_slot x = {0};
    HT_TRY(ht_arena_new(&a, 0, e));
    int rc = ask_foreign(w, a, w->ids + w->from[ht_cmp_pairs(&w->design)], WARM, &x, e);
    ht_arena_free(a);
    return rc;
}

/* ---- the command ---- */

static int open_server(cli__cmp *w, ht_err *e)
{
    const ht_opts *o = w->c->o;
    const char *url = ht_opt_str(o, HT_OPT_SERVER);
    if (!url) return HT_FAIL(e, HT_EARG, "no server: give one with --server http://127.0.0.1:PORT");
    HT_TRY(ht_url_parse(url, &w->server.url, e));
    w->design.api = ht_opt_str(o, HT_OPT_API);
    while (strcmp(ht_cmp_apis[w->server.api], w->design.api) != 0) w->server.api++;
    w->server.model = ht_opt_str(o, HT_OPT_SERVER_MODEL);
    w->server.timeout_ns = TIMEOUT_NS;
    HT_TRY(cli__foreign_props(w->arena, &w->server, &w->props, e));
    const bool here = strcmp(w->server.url.host, "127.0.0.1") == 0 ||
                      strcmp(w->server.url.host, "localhost") == 0;
    w->pid = here ? cli__server_pid(w->server.url.port) : 0;
    return 0;
}

static int open_hetero(cli__cmp *w, ht_err *e)
{
    const char *spec = ht_opt_str(w->c->o, HT_OPT_CANDIDATE);
    if (strchr(w->c->model, ',')) return HT_FAIL(e, HT_EARG, "a path without a comma is needed");
    const char *slash = strrchr(w->c->model, '/'), *name = slash ? slash + 1 : w->c->model;
    const char *comma = spec ? "," : "";
    if (!spec) spec = "";
    HT_TRY(cli__engine_open(w->c, w->ctx, &w->engine, e));
    char store[CLI_PATH] = "";
    if (ht_opt_given(w->c->o, HT_OPT_STORE)) HT_TRY(cli__store_dir(w->c, store, e));
    w->arm = ht_arena_printf(w->arena, "model=%s%s%s%s%s", w->c->model, *store ? ",store=" : "",
                             store, comma, spec);
    w->label =
        ht_arena_printf(w->arena, "model=%s%s%s%s", name, *store ? ",routed" : "", comma, spec);
    if (!w->arm || !w->label) return HT_FAIL(e, HT_ENOMEM, "compare: out of memory");
    if (*store) {
        char path[CLI_PATH + 32], *text;
        size_t n;
        snprintf(path, sizeof path, "%s/index.dsse.json", store);
        if (!ht_file_read(path, CLI_JSON_MAX, &text, &n, NULL)) {
            int rc = evid__sha256_of(text, n, w->index_sha, e);
            ht_mem_free(text);
            HT_TRY(rc);
        }
    }
    return cli__subject_make(w->arena, w->engine, &w->subject, e);
}

static int read_options(cli__cmp *w, ht_err *e)
{
    const ht_opts *o = w->c->o;
    const char *spec = ht_opt_str(o, HT_OPT_CANDIDATE);
    ht_engine_params unused = {0};
    ht_cpu_threads threads;
    int64_t *list = NULL;
    size_t n = 0;
    int64_t reps = ht_opt_given(o, HT_OPT_REPS) ? ht_opt_int(o, HT_OPT_REPS) : HT_CMP_MIN_REPS;
    if (spec) HT_TRY(cli__arm(w->arena, spec, &unused, e));
    HT_TRY(ht_parse_ints(ht_opt_str(o, HT_OPT_CONTEXTS), "--contexts", 1, 1 << 20, &list, &n, e));
    bool sorted = n >= 1 && n <= HT_CMP_CONTEXTS;
    for (size_t i = 0; sorted && i < n; i++) {
        w->design.context[i] = (uint32_t)list[i];
        sorted = i == 0 || list[i] > list[i - 1];
    }
    ht_mem_free(list);
    if (!sorted || reps < HT_CMP_MIN_REPS || reps > HT_STAT_MAX_N)
        return HT_FAIL(e, HT_EARG,
                       "need %d to %d repetitions (-r) and at most %d contexts, each longer than "
                       "the one before",
                       (int)HT_CMP_MIN_REPS, (int)HT_STAT_MAX_N, (int)HT_CMP_CONTEXTS);
    w->design.n_contexts = (uint32_t)n;
    w->design.reps = (uint32_t)reps;
    w->design.null_reps = HT_CMP_MIN_REPS;
    w->design.max_new = NEW;
    w->ctx = w->design.context[n - 1] + NEW;
    if (w->ctx < WARM + NEW) w->ctx = WARM + NEW;
    w->server.ctx = w->ctx;
    ht_cpu_threads_get(&threads);
    w->design.cpus = (uint32_t)threads.affinity;
    w->spacing_ns = (uint64_t)ht_opt_int(o, HT_OPT_SPACING) * 1000000u;
    return cli__policy(w->c, w->arena, &w->policy, &w->policy_text, &w->n_policy, e);
}

static int run(cli__cmp *w, ht_err *e)
{
    const char *parent;
    char final[CLI_PATH + HT_SHA256_HEX], id[HT_SHA256_HEX];
    HT_TRY(read_options(w, e));
    HT_TRY(cli__out_dir(w->c, "evidence", &parent, e));
    HT_TRY(cli__model(w->c, true, e));
    HT_TRY(open_server(w, e));
    cli__watch(NULL);
    ht_gpus_read(&w->gpus);
    HT_TRY(open_hetero(w, e));
    HT_TRY(read_text(w, e));
    HT_TRY(cli__bench_key(w->c, &w->key, e));
    HT_TRY(cli__run_dir(parent, w->dir, e));
    if (mkdir(w->dir, 0777) != 0) return HT_FAIL(e, HT_EIO, "%s: %s", w->dir, strerror(errno));
    HT_TRY(seal_design(w, e));
    HT_TRY(warm_server(w, e));
    HT_TRY(run_pairs(w, e));
    HT_TRY(put_machine(w, "machine/after.json", e));
    HT_TRY(cli__cmp_close(w, e));
    HT_TRY(ht_comparison_seal(w->dir, w->key, id, e));
    snprintf(final, sizeof final, "%s/%s", parent, id);
    if (rename(w->dir, final) != 0) return HT_FAIL(e, HT_EIO, "%s: %s", final, strerror(errno));
    return cli__cmp_table(w, final, e);
}

int cli__compare(cli__ctx *c, ht_err *e)
{
    cli__cmp *w = ht_mem_alloc(sizeof *w);
    if (!w) return HT_FAIL(e, HT_ENOMEM, "compare: out of memory");
    *w = (cli__cmp){.c = c, .journal.fd = -1};
    ht_buf_init(&w->lines, 0);
    ht_buf_init(&w->telemetry, 0);
    int rc = ht_arena_new(&w->arena, 0, e);
    if (!rc) rc = run(w, e);
    ht_journal_abort(&w->journal);
    if (w->engine) ht_engine_close(w->engine);
    if (w->ids_of_text) ht_free(w->ids);
    else ht_mem_free(w->ids);
    ht_buf_done(&w->lines);
    ht_buf_done(&w->telemetry);
    ht_key_free(w->key);
    ht_arena_free(w->arena);
    ht_mem_free(w);
    return rc;
}
