/* canary.c - hetero qualify --canary: does a promoted bundle still hold on this machine, now in
 * another state? Four pairs of slots, each a fresh process, as in an experiment; what came is
 * written as an amendment (evid/amend.h) and signed by the bench key. */
#include "cli/canary.h"
#include "cli/seconds.h"
#include "cli/store.h"
#include "cli/subject.h"
#include "cli/worker.h"
#include "core/clock.h"
#include "evid/amend.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define SLOT_TIMEOUT_NS ((uint64_t)600 * 1000000000u)
enum { GAP_MS = 500, NEW_TOKENS = 16, CELLS_MAX = 256 };

typedef struct {
    cli__ctx *c;
    ht_arena *arena;
    ht_store store;
    ht_verified v;
    ht_gpus gpus;
    ht_json *machine, *guards;
    ht_key *key;
    const char *dir;    /* of -o */
    const char *arm[2]; /* reference, the bundle's                                   */
    const ht_cell *cell[CELLS_MAX];
    size_t n_cells;
    uint32_t n_vocab;
    ht_canary_cell *got; /* [n_cells]                                                 */
} work;

/* ---- the arm of the bundle ---------------------------------------------------------------- */

static const char *backend_of(const work *w, int phase)
{
    for (size_t i = 0; i < w->n_cells; i++)
        if (w->cell[i]->scope.phase == phase) return w->cell[i]->scope.backend;
    return NULL;
}

/* "model=M,prefill-engine=cpu,decode-engine=cpu,act=f32,ctk=f16,ctv=f16,threads=1": what the scopes
 * of the cells say. A phase without a cell runs on the reference's engine. */
static int make_arms(work *w, ht_err *e)
{
    const char *p = backend_of(w, HT_PREFILL), *d = backend_of(w, HT_DECODE);
    const char *any = p ? p : d, *set = strchr(any, ';');
    const ht_scope *s = &w->cell[0]->scope;
    const bool mixed = strcmp(s->kv, "f16,f32") == 0;
    ht_buf b;
    ht_buf_init(&b, 1 << 14);
    ht_buf_fmt(&b, "model=%s,prefill-engine=%.*s,decode-engine=%.*s,act=%s,ctk=%s,ctv=%s",
               w->c->model, (int)strcspn(p ? p : "cpu", ";"), p ? p : "cpu",
               (int)strcspn(d ? d : "cpu", ";"), d ? d : "cpu", s->act, mixed ? "f16" : s->kv,
               mixed ? "f32" : s->kv);
    if (set) ht_buf_str(&b, set);
    for (size_t i = 0; i < b.n; i++)
        if (b.p[i] == ';') b.p[i] = ',';
    const int rc = ht_buf_ok(&b, "arm", e);
    w->arm[0] = ht_arena_printf(w->arena, "model=%s", w->c->model);
    w->arm[1] = rc ? NULL : ht_arena_strndup(w->arena, b.p, b.n);
    ht_buf_done(&b);
    return rc || (w->arm[0] && w->arm[1]) ? rc : HT_FAIL(e, HT_ENOMEM, "canary: out of memory");
}

/* Model, tokenizer, program and machine must be the bundle's: an amendment never widens. */
static int same_subject(work *w, ht_err *e)
{
    ht_engine *engine;
    cli__subject x;
    char path[CLI_PATH], instance[HT_INSTANCE];
    uint8_t secret[HT_SECRET];
    const ht_scope *s = &w->cell[0]->scope;
    const ht_machine_source here = {.root = "", .gpus = &w->gpus};
    HT_TRY(cli__engine_open(w->c, 0, &engine, e));
    int rc = cli__subject_make(w->arena, engine, &x, e);
    w->n_vocab = ht_vocab_size(ht_engine_vocab(engine));
    ht_engine_close(engine);
    HT_TRY(rc);
    HT_TRY(cli__state_path("instance.secret", path, e));
    HT_TRY(ht_machine_secret(path, secret, e));
    HT_TRY(ht_machine_instance(&here, secret, instance, e));
    const char *other = strcmp(x.model_sha, s->model_sha)     ? "OTHER_MODEL"
                        : strcmp(x.tok_sha, s->tok_sha)       ? "OTHER_TOKENIZER"
                        : strcmp(x.tmpl_sha, s->tmpl_sha)     ? "OTHER_TEMPLATE"
                        : strcmp(x.binary_sha, s->binary_sha) ? "OTHER_BINARY"
                        : strcmp(instance, s->instance)       ? "OTHER_MACHINE"
                                                              : NULL;
    if (!other) return 0;
    return HT_FAIL(e, HT_EGATE,
                   "%s: the bundle was measured with another one; an amendment cannot bridge that: "
                   "hetero qualify",
                   other);
}

/* In the order of the canonical form, in which the parts of two machines are compared. */
static int read_machine(work *w, const ht_machine_source *here, ht_err *e)
{
    ht_json *doc;
    ht_buf b;
    HT_TRY(ht_machine_read(w->arena, here, &doc, e));
    ht_buf_init(&b, 0);
    int rc = ht_json_write(doc, HT_JSON_CANON, &b, e);
    if (rc == 0) rc = ht_json_parse(w->arena, b.p, b.n, HT_JSON_CANON, "machine", &w->machine, e);
    ht_buf_done(&b);
    return rc;
}

/* ---- measuring ---------------------------------------------------------------------------- */

static void rest(void)
{
    struct timespec t = {0, GAP_MS * 1000000L};
    nanosleep(&t, NULL);
}

static void counters(work *w, ht_telemetry *t)
{
    if (w->gpus.n) ht_gpus_read(&w->gpus);
    ht_telemetry_take("", &w->gpus, t);
}

/* The cell's metric and the tokens of an answer; a failed one has neither. */
static int take(work *w, const ht_cell *cell, const ht_bench_answer *x, uint64_t *ns,
                const int32_t **ids, size_t *n, ht_err *e)
{
    uint64_t first = 0, last = 0;
    size_t all = 0;
    for (size_t i = 0; i < x->n_chunks; i++) all += x->chunk[i].n_tok;
    int32_t *list = ht_arena_array(w->arena, all + 1, sizeof *list);
    if (!list) return HT_FAIL(e, HT_ENOMEM, "canary: out of memory");
    *ids = list;
    *n = 0;
    *ns = 0;
    if (x->status != HT_SM_OK) return 0;
    for (size_t i = 0; i < x->n_chunks; i++) {
        if (x->chunk[i].n_tok && !*n) first = x->chunk[i].t_ns;
        if (x->chunk[i].n_tok) last = x->chunk[i].t_ns;
        for (uint32_t k = 0; k < x->chunk[i].n_tok; k++) list[(*n)++] = x->chunk[i].tok[k];
    }
    if (cell->metric == HT_M_TTFT && first > x->intended_ns) *ns = first - x->intended_ns;
    if (cell->metric == HT_M_TPOT && *n > 1) *ns = (last - first) / (*n - 1);
    return 0;
}

static int run_slot(work *w, uint32_t pair, bool cand, const ht_bench_request *q, ht_err *e)
{
    ht_telemetry gap[2], at[2];
    ht_bench_slot x;
    cli__seconds ticker;
    const ht_telemetry *second;
    counters(w, &gap[0]);
    rest();
    counters(w, &gap[1]);
    at[0] = gap[1];
    cli__seconds_start(&ticker, w->gpus.n > 0);
    int rc = cli__worker_run(w->arena, w->arm[cand], w->cell[0]->scope.ctx_max, 1, q, w->n_cells,
                             SLOT_TIMEOUT_NS, &x, e);
    counters(w, &at[1]);
    const size_t n = cli__seconds_stop(&ticker, &second);
    ht_telemetry_fold(second, n, &at[1]);
    cli__seconds_done(&ticker);
    HT_TRY(rc);
    ht_json_push(w->arena, w->guards, ht_telemetry_guards(w->arena, gap, at));
    for (size_t i = 0; i < w->n_cells; i++) {
        ht_canary_pair *p = &w->got[i].pair[pair];
        if (cand) rc = take(w, w->cell[i], &x.answer[i], &p->cand_ns, &p->cand, &p->n_cand, e);
        else rc = take(w, w->cell[i], &x.answer[i], &p->ref_ns, &p->ref, &p->n_ref, e);
        HT_TRY(rc);
    }
    return 0;
}

/* ABBA, then BAAB; both arms of a pair get the same requests, one for each cell. */
static int measure(work *w, ht_err *e)
{
    static const char order[] = "ABBABAAB";
    ht_bench_request *q = ht_arena_array(w->arena, w->n_cells, sizeof *q);
    w->got = ht_arena_array(w->arena, w->n_cells, sizeof *w->got);
    w->guards = ht_json_new(w->arena, HT_JARR);
    if (!q || !w->got || !w->guards) return HT_FAIL(e, HT_ENOMEM, "canary: out of memory");
    const uint64_t seed = (uint64_t)ht_now_unix();
    for (uint32_t slot = 0; slot < HT_CANARY_SLOTS; slot++) {
        const uint32_t pair = slot / 2;
        for (uint32_t i = 0; slot % 2 == 0 && i < w->n_cells; i++)
            HT_TRY(ht_bench_prompt(w->arena, seed, w->n_vocab, pair * (uint32_t)w->n_cells + i,
                                   ht_bench_length(&w->cell[i]->scope, pair, 0), NEW_TOKENS, &q[i],
                                   e));
        HT_TRY(run_slot(w, pair, order[slot] == 'B', q, e));
        cli__progress(w->c, "slots", slot + 1, HT_CANARY_SLOTS);
    }
    cli__progress_end(w->c);
    return 0;
}

/* ---- the paper ---------------------------------------------------------------------------- */

static int report(work *w, const char *path, uint8_t result, const ht_buf *payload, ht_err *e)
{
    ht_json *doc;
    ht_buf b;
    ht_jw j;
    HT_TRY(ht_json_parse(w->arena, payload->p, payload->n, HT_JSON_CANON, "amendment", &doc, e));
    const ht_json *p = ht_json_get(doc, "predicate");
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    ht_jw_obj(&j);
    ht_jw_kstr(&j, "amendment", path);
    ht_jw_kstr(&j, "result", ht_canary_names[result]);
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->at[i].key, "changed") == 0 || strcmp(p->at[i].key, "expiresUtc") == 0 ||
            strcmp(p->at[i].key, "stateSha256") == 0 || strcmp(p->at[i].key, "bundleId") == 0) {
            ht_jw_key(&j, p->at[i].key);
            ht_jw_json(&j, &p->at[i]);
        }
    ht_jw_end(&j, '}');
    int rc = ht_buf_ok(&b, "canary", e);
    if (rc == 0) rc = cli__out_doc(w->c, b.p, e);
    ht_buf_done(&b);
    return rc;
}

static int put_paper(work *w, int *status, ht_err *e)
{
    const char *dir = w->dir;
    const ht_canary canary = {.machine = w->machine,
                              .guards = w->guards,
                              .cell = w->got,
                              .n_cells = w->n_cells,
                              .measured_unix = ht_now_unix()};
    const ht_key *const keys[] = {w->key};
    const char *path = ht_arena_printf(w->arena, "%s/amendment-%.16s-%lld.dsse.json", dir, w->v.id,
                                       (long long)canary.measured_unix);
    uint8_t result = HT_CANARY_FAILED;
    ht_buf body, env;
    if (!path) return HT_FAIL(e, HT_ENOMEM, "canary: out of memory");
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return HT_FAIL(e, HT_EIO, "%s: %s", dir, strerror(errno));
    ht_buf_init(&body, 0);
    ht_buf_init(&env, 0);
    int rc = ht_amendment_write(&w->v, &canary, &body, &result, e);
    if (rc == 0) rc = ht_dsse_sign(body.p, body.n, HT_PAYLOAD_TYPE, keys, 1, &env, e);
    if (rc == 0) rc = cli__write_file(path, env.p, env.n, e);
    if (rc == 0) rc = report(w, path, result, &body, e);
    ht_buf_done(&body);
    ht_buf_done(&env);
    if (rc == 0 && result != HT_CANARY_PASSED) {
        cli__say(w->c, CLI_ERROR, "hetero qualify: the canary did not pass: %s",
                 ht_canary_names[result]);
        *status = CLI_GATE;
    }
    return rc;
}

static int run(work *w, int *status, ht_err *e)
{
    HT_TRY(cli__model(w->c, true, e));
    HT_TRY(cli__out_dir(w->c, "evidence", &w->dir, e));
    HT_TRY(cli__store_open(w->c, w->arena, &w->store, e));
    HT_TRY(ht_bundle_verify(w->arena, ht_opt_str(w->c->o, HT_OPT_CANARY), &w->store.trust,
                            w->store.now_unix, &w->v, e));
    ht_gpus_read(&w->gpus);
    const ht_machine_source here = {.root = "", .gpus = &w->gpus};
    HT_TRY(read_machine(w, &here, e));
    HT_TRY(ht_amendable(&w->v, w->machine, e));
    for (size_t i = 0; i < w->v.evidence.design.n_cells; i++) {
        if (!w->v.analysis.cell[i].route) continue;
        if (w->n_cells == sizeof w->cell / sizeof *w->cell)
            return HT_FAIL(e, HT_EARG, "canary: more than %zu cells", w->n_cells);
        w->cell[w->n_cells++] = &w->v.evidence.design.cell[i];
    }
    HT_TRY(same_subject(w, e));
    HT_TRY(make_arms(w, e));
    HT_TRY(cli__bench_key(w->c, &w->key, e));
    cli__watch(NULL);
    HT_TRY(measure(w, e));
    return put_paper(w, status, e);
}

int cli__canary(cli__ctx *c, ht_err *e)
{
    work *w = ht_mem_alloc(sizeof *w);
    int status = 0;
    if (!w) return HT_FAIL(e, HT_ENOMEM, "canary: out of memory");
    w->c = c;
    int rc = ht_arena_new(&w->arena, 0, e);
    if (!rc) rc = run(w, &status, e);
    ht_key_free(w->key);
    ht_arena_free(w->arena);
    ht_mem_free(w);
    return rc ? rc : status;
}
