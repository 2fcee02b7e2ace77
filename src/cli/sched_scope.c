/* sched_scope.c - see sched.h. */
#include "cli/sched.h"
#include "cli/store.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *keep(ht_arena *a, const char *s)
{
    return ht_arena_strndup(a, s, strlen(s));
}

int cli__sched_scope(cli__ctx *c, ht_arena *a, ht_engine *engine, const cli__subject *subject,
                     const cli__machine *m, ht_sched_scope *out, ht_err *e)
{
    char *json = NULL;
    ht_json *info;
    HT_TRY(ht_engine_info(engine, &json, e));
    int rc = ht_json_parse(a, json, strlen(json), 0, "engine info", &info, e);
    ht_free(json);
    HT_TRY(rc);
    const char *k = cli__str(info, "kv.k", "f16"), *v = cli__str(info, "kv.v", k);
    *out = (ht_sched_scope){
        .ctx_max = ht_engine_ctx(engine),
        .slots = (uint32_t)ht_opt_int(c->o, HT_OPT_PARALLEL),
        .threads = (uint32_t)cli__num(info, "threads", 1),
        .ubatch = (uint32_t)cli__num(info, "ubatch", 0),
        .kv_positions = (uint64_t)ht_opt_int(c->o, HT_OPT_KV_POSITIONS),
        .act = cli__str(info, "act", "f32"),
        .kv = strcmp(k, v) == 0 ? k : ht_arena_printf(a, "%s,%s", k, v),
        .weights = cli__str(info, "model.contract", "f16"),
        .backend = ht_arena_printf(a, "%s,%s", cli__str(info, "engines.prefill.engine", "?"),
                                   cli__str(info, "engines.decode.engine", "?")),
        .model_sha = keep(a, subject->model_sha),
        .tok_sha = keep(a, subject->tok_sha),
        .binary_sha = keep(a, subject->binary_sha),
        .assets_sha = keep(a, subject->assets_sha),
        .class_sha = keep(a, m->class_sha),
        .instance = keep(a, m->instance),
        .os = keep(a, m->os)};
    /* What gives up pages is measured by nothing here. */
    if (ht_opt_given(c->o, HT_OPT_EVICT)) out->kv = ht_arena_printf(a, "%s;evict", out->kv);
    return out->kv && out->backend && out->os ? 0
                                              : HT_FAIL(e, HT_ENOMEM, "scheduler scope: no memory");
}

/* "OTHER_TPOT_MS" for "tpot-ms". */
static void other(const char *what, char *out, size_t cap)
{
    (void)snprintf(out, cap, "OTHER_%s", what);
    for (char *p = out; *p; p++) {
        if (*p >= 'a' && *p <= 'z') *p = (char)(*p - 'a' + 'A');
        if (*p == '-') *p = '_';
    }
}

static void judge(cli__ctx *c, const ht_sched_entry *x, const ht_sched_scope *here,
                  ht_serve_schedule *out)
{
    ht_sched_scope same = *here;
    if (x->reason != HT_R_OK) {
        (void)snprintf(out->reason, sizeof out->reason, "%s", ht_reason_name(x->reason));
        return;
    }
    /* Who names no objective gets the one that was measured. */
    const int64_t tpot = ht_opt_int(c->o, HT_OPT_TPOT);
    same.tpot_ms = tpot ? (uint32_t)tpot : x->scope.tpot_ms;
    const char *differs = ht_sched_scope_differs(&x->scope, &same);
    if (differs) {
        other(differs, out->reason, sizeof out->reason);
        return;
    }
    out->promoted = true;
    out->max_prompt = x->scope.max_prompt;
    out->tpot_ms = x->scope.tpot_ms;
    memcpy(out->bundle_id, x->bundle_id, sizeof out->bundle_id);
}

static int ask(cli__ctx *c, ht_arena *a, ht_engine *engine, ht_serve_schedule *out, ht_err *e)
{
    ht_store store;
    ht_sched_entry *list;
    ht_sched_scope here;
    cli__subject subject;
    cli__machine machine;
    ht_gpus *gpus = ht_arena_alloc(a, sizeof *gpus);
    size_t n;
    if (!gpus) return HT_FAIL(e, HT_ENOMEM, "scheduler: no memory");
    HT_TRY(cli__store_open(c, a, &store, e));
    HT_TRY(ht_store_schedules(&store, NULL, &list, &n, e));
    if (!n) return 0;
    ht_gpus_read(gpus);
    HT_TRY(cli__machine_read(c, a, gpus, &machine, e));
    HT_TRY(ht_store_schedules(&store, machine.state_sha, &list, &n, e));
    HT_TRY(cli__subject_make(a, engine, &subject, e));
    HT_TRY(cli__sched_scope(c, a, engine, &subject, &machine, &here, e));
    for (size_t i = 0; i < n && !out->promoted; i++) judge(c, &list[i], &here, out);
    return 0;
}

void cli__schedule(void *user, ht_engine *engine, ht_serve_schedule *out)
{
    cli__ctx *c = user;
    char dir[CLI_PATH], path[CLI_PATH + 16];
    ht_arena *a = NULL;
    ht_err err = {0};
    if (ht_opt_on(c->o, HT_OPT_NO_OVERLAP) || cli__store_dir(c, dir, &err)) return;
    (void)snprintf(path, sizeof path, "%s/trust.json", dir);
    if (access(path, F_OK) != 0) return;
    int rc = ht_arena_new(&a, 0, &err);
    if (!rc) rc = ask(c, a, engine, out, &err);
    ht_arena_free(a);
    if (!rc) return;
    /* A store that cannot be read admits nothing. */
    (void)snprintf(out->reason, sizeof out->reason, "STORE");
    cli__say(c, CLI_WARN, "warning: scheduler: %s", err.msg);
}
