/* qualify.c - hetero qualify: a sealed paired experiment on this machine, written as a bundle
 * and judged by the policy (docs/harness.md); with --reference the check of the reference engine
 * instead. */
#include "cli/canary.h"
#include "cli/edge.h"
#include "cli/sched.h"
#include "cli/seconds.h"
#include "cli/store.h"
#include "cli/subject.h"
#include "cli/worker.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "core/map.h"
#include "core/rng.h"
#include "evid/verdict.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CELLS_MAX = 12 };
#define SLOT_TIMEOUT_NS ((uint64_t)600 * 1000000000u)
#define GAP_NS          ((uint64_t)500 * 1000000u)

typedef struct {
    cli__ctx *c;
    ht_arena *arena;
    ht_engine *ref, *cand;
    ht_quality quality;
    cli__subject subject;
    ht_policy policy;
    const char *policy_text, *spec, *arm[2]; /* arm: reference, candidate                 */
    size_t n_policy;
    ht_cell cell[CELLS_MAX];
    size_t n_cells;
    cli__machine machine;
    ht_gpus gpus;
    cli__seconds ticker;
    bool ticked;
    const char *selection, **used;
    size_t n_used;
    ht_key *key;
    cli__side side[HT_PHASES]; /* of the candidate */
    const char *both;          /* their backends: "graph>cpu", or the one that both run on */
    uint32_t ctx;
    const char *parent; /* folder of -o */
} work;

/* ---- what differs ---- */

/* "cpu;isa=generic;threads=1": the candidate's engine and whatever else of its settings is not a
 * member of the scope by itself. */
static int backend_name(work *w, const char *engine, const char **out, ht_err *e)
{
    static const char *const own[] = {
        "act=", "ctk=", "ctv=", "engine=", "prefill-engine=", "decode-engine=", "model="};
    const char *p = w->spec;
    ht_buf b;
    ht_buf_init(&b, 1 << 12);
    ht_buf_str(&b, engine);
    while (*p) {
        size_t n = strcspn(p, ",");
        bool skip = n == 0;
        for (size_t i = 0; i < sizeof own / sizeof *own; i++)
            skip = skip || strncmp(p, own[i], strlen(own[i])) == 0;
        if (!skip) {
            ht_buf_char(&b, ';');
            ht_buf_add(&b, p, n);
        }
        p += n + (p[n] == ',');
    }
    int rc = ht_buf_ok(&b, "backend name", e);
    *out = rc ? NULL : ht_arena_strndup(w->arena, b.p, b.n);
    ht_buf_done(&b);
    return rc || *out ? rc : HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
}

/* What the phases of the candidate run on, by its receipt. */
static int name_sides(work *w, const ht_json *receipt, ht_err *e)
{
    const ht_json *phases = ht_json_get(receipt, "phases");
    for (size_t i = 0; i < HT_PHASES; i++) {
        cli__side *x = &w->side[i];
        x->engine = phases && phases->n > i ? cli__str(&phases->at[i], "executed", "cpu") : "cpu";
        HT_TRY(backend_name(w, x->engine, &x->backend, e));
    }
    const char *first = w->side[HT_PREFILL].backend, *then = w->side[HT_DECODE].backend;
    w->both = strcmp(first, then) ? ht_arena_printf(w->arena, "%s>%s", first, then) : first;
    if (!w->both) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
    return 0;
}

/* Two tokens on a fresh session: the receipt says what this engine is. */
static int probe(work *w, ht_engine *engine, const ht_json **receipt, ht_err *e)
{
    const int32_t ids[2] = {1, 2};
    ht_session *s;
    ht_sampling greedy;
    ht_gen_result r = {0};
    ht_json *doc = NULL;
    char *json = NULL;
    ht_sampling_init(&greedy);
    greedy.temp = 0;
    const ht_gen_params p = {.max_new = 2, .sampling = &greedy, .ignore_eos = 1};
    HT_TRY(ht_session_new(&s, engine, e));
    int rc = ht_session_generate(s, ids, 2, &p, &r, e);
    ht_gen_result_done(&r);
    if (!rc) rc = ht_session_receipt(s, &json, e);
    if (!rc) rc = ht_json_parse(w->arena, json, strlen(json), 0, "receipt", &doc, e);
    ht_free(json);
    ht_session_free(s);
    *receipt = doc;
    return rc;
}

/* ---- cells ---- */

/* "p512", "d512" or "c512": phase and the upper edge of a bucket of product.md R2. */
static int parse_bucket(const char *word, size_t n, ht_scope *s, ht_err *e)
{
    static const uint32_t edge[] = {0, 32, 128, 512, 2048};
    for (size_t i = 1; i < sizeof edge / sizeof *edge; i++) {
        for (int k = HT_PREFILL; k <= HT_COMPLETE; k++) {
            char name[16];
            snprintf(name, sizeof name, "%c%u", "pdc"[k], edge[i]);
            if (strlen(name) != n || strncmp(word, name, n) != 0) continue;
            s->phase = (uint8_t)k;
            s->min_tokens = edge[i - 1] + 1;
            s->max_tokens = edge[i];
            return 0;
        }
    }
    return HT_FAIL(
        e, HT_EARG,
        "bucket \"%.*s\": need p32, p128, p512, p2048 (prefill), d32, d128, d512, d2048 "
        "(decode), c32, c128, c512, c2048 (complete compute: prompt and 16 tokens), separated by "
        "commas",
        (int)(n < 40 ? n : 40), word);
}

static void fill_scope(work *w, const ht_json *receipt, ht_scope *s)
{
    s->max_new = s->phase == HT_PREFILL ? 0 : 16;
    s->batch_min = s->batch_max = 1;
    s->ctx_max = w->ctx;
    s->acc = "f32";
    s->act = cli__str(receipt, "act", "f32");
    s->kv = cli__str(receipt, "kv.k", "f16");
    if (strcmp(s->kv, cli__str(receipt, "kv.v", s->kv)) != 0) s->kv = "f16,f32";
    s->weights = cli__str(receipt, "contract", "f16");
    s->sampler = "greedy";
    s->spec = "off";
    s->model_sha = w->subject.model_sha;
    s->tok_sha = w->subject.tok_sha;
    s->tmpl_sha = w->subject.tmpl_sha;
    s->binary_sha = w->subject.binary_sha;
    s->assets_sha = w->subject.assets_sha;
    s->class_sha = w->machine.class_sha;
    s->instance = w->machine.instance;
    s->os = w->machine.os;
}

static int by_id(const ht_cell *x, const ht_cell *y)
{
    return strcmp(x->id, y->id);
}

/* A cell of a phase: where it runs, and lengths at which its hand-offs are measured. */
static void take_side(cli__side *x, ht_scope *s)
{
    s->backend = x->backend;
    if (!x->max_tokens || s->min_tokens < x->min_tokens) x->min_tokens = s->min_tokens;
    if (s->max_tokens > x->max_tokens) x->max_tokens = s->max_tokens;
}

/* The buckets of the command line, in order of their names. */
static int read_buckets(work *w, ht_err *e)
{
    HT_TRY(ht_items_check(ht_opts_arg(w->c->o, 0), "BUCKET,...", e));
    for (const char *p = ht_opts_arg(w->c->o, 0); *p;) {
        size_t n = strcspn(p, ","), at = w->n_cells;
        ht_cell x = {0};
        if (w->n_cells == CELLS_MAX)
            return HT_FAIL(e, HT_EARG, "more than %d buckets at once", (int)CELLS_MAX);
        HT_TRY(parse_bucket(p, n, &x.scope, e));
        for (size_t i = 0; i < at; i++)
            if (strlen(w->cell[i].id) == n && !strncmp(w->cell[i].id, p, n))
                return HT_FAIL(e, HT_EARG, "bucket %.*s is given twice; give it once", (int)n, p);
        x.id = ht_arena_strndup(w->arena, p, n);
        if (!x.id) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
        x.metric = ht_phase_metric[x.scope.phase];
        while (at > 0 && by_id(&x, &w->cell[at - 1]) < 0) {
            w->cell[at] = w->cell[at - 1];
            at--;
        }
        w->cell[at] = x;
        w->n_cells++;
        p += n + (p[n] == ',');
    }
    return 0;
}

static void fill_cells(work *w, const ht_json *ref, const ht_json *cand)
{
    for (ht_cell *x = w->cell; x < w->cell + w->n_cells; x++) {
        x->ref = x->scope;
        fill_scope(w, cand, &x->scope);
        fill_scope(w, ref, &x->ref);
        x->ref.backend = "cpu";
        if (x->scope.phase == HT_COMPLETE) x->scope.backend = w->both;
        else take_side(&w->side[x->scope.phase], &x->scope);
    }
}

/* The bundle of --selection: its id, which is the digest of its inputs, and its prompts. */
static int open_selection(work *w, ht_err *e)
{
    const char *dir = ht_opt_str(w->c->o, HT_OPT_SELECTION), *text;
    uint8_t digest[HT_SHA256_BYTES];
    char hex[HT_SHA256_HEX];
    uint64_t n, lines = 0;
    ht_manifest m;
    if (!dir) return 0;
    HT_TRY(ht_read_under(w->arena, dir, "inputs.manifest.json", CLI_JSON_MAX, &text, &n, e));
    HT_TRY(ht_manifest_read(w->arena, dir, text, n, "hetero/inputs/1", NULL, HT_BUNDLE_MAX, &m, e));
    HT_TRY(ht_sha256_of(text, n, digest, e));
    ht_hex(digest, sizeof digest, hex);
    const ht_mfile *f = ht_manifest_find(&m, "prompts.jsonl");
    if (!f) return HT_FAIL(e, HT_EFORMAT, "%s: no prompts.jsonl: not a bundle", dir);
    for (uint64_t i = 0; i < f->bytes; i++) lines += f->data[i] == '\n';
    w->used = ht_arena_array(w->arena, lines, sizeof *w->used);
    w->selection = ht_arena_strndup(w->arena, hex, HT_SHA256_HEX - 1);
    if (!w->used || !w->selection) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
    for (const char *p = f->data, *end = p + f->bytes, *nl; p < end; p = nl + 1) {
        ht_json *j;
        if (!(nl = memchr(p, '\n', (size_t)(end - p)))) break;
        HT_TRY(ht_json_parse(w->arena, p, (size_t)(nl - p), 0, "prompts.jsonl", &j, e));
        const char *sha = cli__str(j, "promptTokSha256", NULL);
        if (!sha) return HT_FAIL(e, HT_EFORMAT, "%s/prompts.jsonl: a line without its digest", dir);
        w->used[w->n_used++] = sha;
    }
    return 0;
}

/* ---- the harness's functions ---- */

static uint64_t op_now(void *user)
{
    (void)user;
    return ht_now_ns();
}

static void op_rest(void *user, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    (void)user;
    nanosleep(&t, NULL);
}

static void op_counters(void *user, ht_telemetry *t)
{
    work *w = user;
    if (w->gpus.n) ht_gpus_read(&w->gpus);
    ht_telemetry_take("", &w->gpus, t);
}

static int op_machine(void *user, ht_arena *a, ht_json **doc, ht_err *e)
{
    work *w = user;
    const ht_machine_source here = {.root = "", .gpus = &w->gpus};
    return ht_machine_read(a, &here, doc, e);
}

static int op_slot(void *user, char arm, const ht_bench_request *q, size_t n, ht_arena *a,
                   ht_bench_slot *out, ht_err *e)
{
    work *w = user;
    if (w->ticked) cli__seconds_done(&w->ticker);
    cli__seconds_start(&w->ticker, w->gpus.n > 0);
    w->ticked = true;
    return cli__worker_run(a, w->arm[arm == 'B'], w->ctx, 1, q, n, SLOT_TIMEOUT_NS, out, e);
}

static size_t op_seconds(void *user, const ht_telemetry **list)
{
    work *w = user;
    return cli__seconds_stop(&w->ticker, list);
}

static void op_progress(void *user, uint32_t done, uint32_t all)
{
    work *w = user;
    cli__progress(w->c, "slots", done, all);
}

static bool op_cancelled(void *user)
{
    (void)user;
    return cli__interrupted();
}

/* ---- the experiment ---- */

static int run_quality(work *w, ht_bundle_file *file, size_t *n, ht_err *e)
{
    static const char *const name[3] = {"quality/prompts.jsonl", "quality/ref.jsonl",
                                        "quality/cand.jsonl"};
    cli__suite suite;
    if (!ht_opt_given(w->c->o, HT_OPT_FILE)) {
        cli__say(w->c, CLI_WARN,
                 "warning: no corpus (-f): the quality gate is NOT_RUN, so nothing can qualify");
        return 0;
    }
    HT_TRY(cli__suite_options(w->c, &suite, e));
    if (suite.ctx > w->ctx) suite.ctx = w->ctx;
    HT_TRY(cli__suite_run(w->c, &suite, w->ref, w->cand, &w->quality, e));
    for (int k = 0; k < 3; k++)
        file[(*n)++] = (ht_bundle_file){name[k], w->quality.file[k].p, w->quality.file[k].n};
    return 0;
}

/* Where a prompt changes engines before it is decoded, the hand-off is part of a route's price. */
static int run_edges(work *w, ht_bundle_file *file, size_t *n, ht_err *e)
{
    const cli__edges x = {.ref = w->ref,
                          .cand = w->cand,
                          .spec = w->spec,
                          .ctx = w->ctx,
                          .prefill = w->side[HT_PREFILL],
                          .decode = w->side[HT_DECODE]};
    char *text;
    HT_TRY(cli__edges_measure(w->c, &x, &text, &file[*n].n, e));
    if (!text) return 0;
    file[*n].path = "edges.json";
    file[*n].data = ht_arena_strndup(w->arena, text, file[*n].n);
    ht_mem_free(text);
    return file[(*n)++].data ? 0 : HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
}

/* What an engine says of itself, parsed. */
static int info_of(work *w, const ht_engine *engine, ht_json **info, ht_err *e)
{
    char *json = NULL;
    HT_TRY(ht_engine_info(engine, &json, e));
    int rc = ht_json_parse(w->arena, json, strlen(json), 0, "engine description", info, e);
    ht_free(json);
    return rc;
}

/* A cell of which both sides are the same would be sealed for nothing. */
static int check_differs(work *w, ht_err *e)
{
    char cand[HT_SHA256_HEX], ref[HT_SHA256_HEX];
    for (const ht_cell *x = w->cell; x < w->cell + w->n_cells; x++) {
        HT_TRY(ht_scope_sha256(&x->scope, cand, e));
        HT_TRY(ht_scope_sha256(&x->ref, ref, e));
        if (strcmp(cand, ref) == 0)
            return HT_FAIL(e, HT_EARG,
                           "bucket %s: --candidate %.200s changes nothing in its phase (%s), which "
                           "runs as the reference does; leave the bucket out",
                           x->id, w->spec, ht_phase_name(x->scope.phase));
    }
    return 0;
}

static int open_arms(work *w, ht_err *e)
{
    ht_engine_params p;
    ht_json *info[2];
    const ht_json *ref, *cand;
    HT_TRY(cli__engine_open(w->c, 0, &w->ref, e));
    w->ctx = ht_engine_ctx(w->ref);
    cli__engine_params(w->c, w->ctx, &p);
    HT_TRY(cli__arm(w->arena, w->spec, &p, e));
    HT_TRY(ht_engine_open(&w->cand, &p, e));
    w->arm[0] = ht_arena_printf(w->arena, "model=%s", w->c->model);
    w->arm[1] = ht_arena_printf(w->arena, "model=%s,%s", w->c->model, w->spec);
    if (!w->arm[0] || !w->arm[1]) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
    for (size_t i = 0; i < w->n_cells; i++)
        if (w->cell[i].scope.max_tokens + 16 > w->ctx)
            return HT_FAIL(e, HT_EARG, "bucket %s needs a context of %u, there is %u; give -c %u",
                           w->cell[i].id, w->cell[i].scope.max_tokens + 16, w->ctx,
                           w->cell[i].scope.max_tokens + 16);
    HT_TRY(info_of(w, w->ref, &info[0], e));
    HT_TRY(info_of(w, w->cand, &info[1], e));
    HT_TRY(cli__arm_differs(w->spec, w->c->model, info[0], info[1], e));
    HT_TRY(probe(w, w->ref, &ref, e));
    HT_TRY(probe(w, w->cand, &cand, e));
    HT_TRY(cli__subject_make(w->arena, w->ref, &w->subject, e));
    ht_gpus_read(&w->gpus);
    HT_TRY(cli__machine_read(w->c, w->arena, &w->gpus, &w->machine, e));
    HT_TRY(name_sides(w, cand, e));
    fill_cells(w, ref, cand);
    return check_differs(w, e);
}

/* A route that lets a user wait longer for a cancel than it says is not nominated: the hand-off has
 * run the candidate's prompts, and its engine knows now how long one takes. */
static int check_cancel(work *w, ht_err *e)
{
    ht_json *info = NULL;
    HT_TRY(info_of(w, w->cand, &info, e));
    const ht_json *list = ht_json_path(info, "wholePrompt.buckets");
    const double most = cli__num(info, "wholePrompt.cancelMaxMs", 0);
    for (size_t i = 0; list && i < list->n; i++) {
        const double ms = cli__num(&list->at[i], "cancelMs", 0);
        if (ms > most)
            return HT_FAIL(e, HT_EGATE,
                           "a cancel of a prompt in %.0f rows takes up to %.0f ms there, and the "
                           "candidate says %.0f; declare it with graph=cancel=MS in --candidate, "
                           "so that the route says so",
                           cli__num(&list->at[i], "rows", 0), ms, most);
    }
    return 0;
}

/* Pairs of a cell: what was asked for, or what the policy does. */
static uint32_t pairs_of(const work *w)
{
    const uint32_t pairs = (uint32_t)ht_opt_int(w->c->o, HT_OPT_PAIRS);
    return pairs ? pairs : w->policy.min_pairs;
}

static int experiment(work *w, int *status, ht_err *e)
{
    const ht_opts *o = w->c->o;
    char dir[CLI_PATH], final[CLI_PATH + HT_SHA256_HEX], id[HT_SHA256_HEX];
    ht_bundle_file file[CLI_SUBJECT_FILES + 4];
    int64_t seed = ht_opt_int(o, HT_OPT_SEED);
    ht_cpu_threads threads;
    size_t n = 0;
    for (; n < w->subject.n_files; n++) file[n] = w->subject.file[n];
    HT_TRY(run_quality(w, file, &n, e));
    HT_TRY(run_edges(w, file, &n, e));
    HT_TRY(check_cancel(w, e));
    HT_TRY(cli__run_dir(w->parent, dir, e));
    ht_cpu_threads_get(&threads);
    const ht_bench_plan plan = {.cell = w->cell,
                                .n_cells = w->n_cells,
                                .pairs = pairs_of(w),
                                .null_pairs = w->policy.null_pairs,
                                .requests = (uint32_t)ht_opt_int(o, HT_OPT_REQUESTS),
                                .warmups = 1,
                                .cpus = (uint32_t)threads.affinity,
                                .n_vocab = ht_vocab_size(ht_engine_vocab(w->ref)),
                                .seed = seed >= 0 ? (uint64_t)seed : 1,
                                .gap_ns = GAP_NS,
                                .started_unix = ht_now_unix(),
                                .policy = w->policy_text,
                                .n_policy = w->n_policy,
                                .selection = w->selection,
                                .used = w->used,
                                .n_used = w->n_used,
                                .extra = file,
                                .n_extra = n};
    const ht_bench_ops ops = {.user = w,
                              .now_ns = op_now,
                              .rest = op_rest,
                              .counters = op_counters,
                              .machine = op_machine,
                              .slot = op_slot,
                              .seconds = op_seconds,
                              .progress = op_progress,
                              .cancelled = op_cancelled};
    /* The workers open the model themselves: our copies must not sit in memory beside them. */
    ht_engine_close(w->cand);
    ht_engine_close(w->ref);
    w->cand = w->ref = NULL;
    HT_TRY(ht_bench_run(&plan, &ops, dir, e));
    cli__progress_end(w->c);
    HT_TRY(ht_bundle_seal(dir, w->key, id, e));
    snprintf(final, sizeof final, "%s/%s", w->parent, id);
    if (rename(dir, final) != 0) return HT_FAIL(e, HT_EIO, "%s: %s", final, strerror(errno));
    return cli__out_verdict(w->c, w->arena, final, "verdict.json", status, e);
}

/* What failed before with these very hashes is not nominated again (evidence.md 7.5): where there
 * is a store, its negatives are asked before anything is measured. */
static int may_measure(work *w, ht_err *e)
{
    char dir[CLI_PATH], path[CLI_PATH + 16], sha[HT_SHA256_HEX];
    ht_store store;
    ht_err none;
    if (cli__store_dir(w->c, dir, &none)) return 0;
    (void)snprintf(path, sizeof path, "%s/trust.json", dir);
    if (access(path, F_OK) != 0) return 0;
    HT_TRY(cli__store_open(w->c, w->arena, &store, e));
    for (size_t i = 0; i < w->n_cells; i++) {
        HT_TRY(ht_scope_sha256(&w->cell[i].scope, sha, e));
        HT_TRY(ht_store_may_nominate(&store, sha, e));
    }
    return 0;
}

static int run(work *w, int *status, ht_err *e)
{
    static const enum ht_opt fixed[] = {HT_OPT_ENGINE,        HT_OPT_PREFILL_ENGINE,
                                        HT_OPT_DECODE_ENGINE, HT_OPT_ACT,
                                        HT_OPT_CTK,           HT_OPT_CTV,
                                        HT_OPT_ISA,           HT_OPT_THREADS,
                                        HT_OPT_UBATCH};
    cli__ctx *c = w->c;
    const char *corpus = ht_opt_str(c->o, HT_OPT_FILE);
    ht_engine_params unused = {0}; /* what the candidate changes is checked before a model loads */
    w->spec = ht_opt_str(c->o, HT_OPT_CANDIDATE);
    if (!ht_opts_arg(c->o, 0) || !w->spec)
        return HT_FAIL(e, HT_EARG,
                       "usage: hetero qualify BUCKET,... MODEL --candidate KEY=VALUE,... (or "
                       "--reference, --canary BUNDLE)");
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        char name[64];
        ht_opt_name(fixed[i], name, sizeof name);
        if (ht_opt_given(c->o, fixed[i]))
            return HT_FAIL(e, HT_EARG,
                           "%s: the other arm is always the reference; say what differs with "
                           "--candidate",
                           name);
    }
    if (strncmp(w->spec, "model=", 6) == 0 || strstr(w->spec, ",model="))
        return HT_FAIL(e, HT_EARG, "a route does not change the model: see 'hetero quality'");
    if (strncmp(w->spec, "store=", 6) == 0 || strstr(w->spec, ",store="))
        return HT_FAIL(e, HT_EARG,
                       "--candidate store=: routes are what this makes, none are taken while it "
                       "measures; leave it out ('hetero compare' takes a store's)");
    HT_TRY(read_buckets(w, e));
    HT_TRY(cli__arm(w->arena, w->spec, &unused, e));
    if (corpus && strcmp(corpus, "-") != 0 && access(corpus, R_OK) != 0)
        return HT_FAIL(e, HT_EIO, "-f %s: %s", corpus, strerror(errno));
    HT_TRY(cli__model(c, true, e));
    if (strchr(c->model, ','))
        return HT_FAIL(e, HT_EARG, "%.80s: a path without a comma is needed here", c->model);
    HT_TRY(cli__policy(c, w->arena, &w->policy, &w->policy_text, &w->n_policy, e));
    HT_TRY(cli__out_dir(c, "evidence", &w->parent, e));
    HT_TRY(ht_bench_pairs_check(&w->policy, pairs_of(w), w->policy.null_pairs, e));
    cli__watch(NULL);
    HT_TRY(open_selection(w, e));
    HT_TRY(open_arms(w, e));
    HT_TRY(may_measure(w, e));
    /* Not before all that was asked for is known to be possible: it may make a new one. */
    HT_TRY(cli__bench_key(c, &w->key, e));
    return experiment(w, status, e);
}

static int qualify_route(cli__ctx *c, ht_err *e)
{
    work *w = ht_mem_alloc(sizeof *w);
    int status = 0;
    if (!w) return HT_FAIL(e, HT_ENOMEM, "qualify: out of memory");
    w->c = c;
    ht_quality_init(&w->quality);
    int rc = ht_arena_new(&w->arena, 0, e);
    if (!rc) rc = run(w, &status, e);
    ht_quality_done(&w->quality);
    if (w->ticked) cli__seconds_done(&w->ticker);
    if (w->cand) ht_engine_close(w->cand);
    if (w->ref) ht_engine_close(w->ref);
    ht_key_free(w->key);
    ht_arena_free(w->arena);
    ht_mem_free(w);
    return rc ? rc : status;
}

/* What was typed for the quality suite and is read by none. */
static int check_suite(const cli__ctx *c, bool route, ht_err *e)
{
    static const enum ht_opt of[] = {HT_OPT_TEXT, HT_OPT_ITEMS, HT_OPT_TASKS, HT_OPT_CHUNKS,
                                     HT_OPT_PREDICT};
    char name[64];
    if (route && ht_opt_given(c->o, HT_OPT_FILE)) return 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        if (ht_opt_source(c->o, of[i]) != HT_FROM_CLI) continue;
        ht_opt_name(of[i], name, sizeof name);
        return HT_FAIL(e, HT_EARG,
                       "%s has no effect: it is of the quality suite, which 'hetero qualify "
                       "BUCKET,...' runs with a corpus; %s",
                       name, route ? "add -f FILE, or leave it out" : "leave it out");
    }
    return 0;
}

int cli__qualify(cli__ctx *c, ht_err *e)
{
    ht_engine *engine;
    char *json = NULL;
    ht_err none;
    const char *what = ht_opts_arg(c->o, 0);
    const bool canary = ht_opt_given(c->o, HT_OPT_CANARY);
    const bool scheduler = !canary && what && strcmp(what, "scheduler") == 0;
    const bool route = !canary && !scheduler && !ht_opt_on(c->o, HT_OPT_REFERENCE);
    HT_TRY(check_suite(c, route, e));
    if (canary) return cli__canary(c, e);
    if (scheduler) return cli__qualify_scheduler(c, e);
    if (route) return qualify_route(c, e);
    HT_TRY(cli__model(c, true, e));
    HT_TRY(cli__engine_open(c, 0, &engine, e));
    cli__watch(NULL); /* Ctrl-C reaches the work through its progress */
    int rc = ht_engine_qualify_reference(engine, cli__progress, c, &json, e);
    cli__progress_end(c);
    /* A failed check is an error with its evidence: show both. */
    if (json && (rc == 0 || (rc == HT_EGATE && !c->json))) {
        int shown = cli__out_doc(c, json, rc ? &none : e);
        if (!rc) rc = shown;
    }
    ht_free(json);
    ht_engine_close(engine);
    return rc;
}
