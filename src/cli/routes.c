/* routes.c - hetero promote, revoke and routes: what this machine admits. */
#include "cli/store.h"
#include "core/map.h"
#include <string.h>

static int list_schedules(const ht_store *s, ht_jw *w, ht_err *e)
{
    ht_sched_entry *x;
    size_t n;
    HT_TRY(ht_store_schedules(s, NULL, &x, &n, e));
    ht_jw_key(w, "schedulers");
    ht_jw_arr(w);
    for (size_t i = 0; i < n; i++) {
        ht_jw_obj(w);
        ht_jw_kstr(w, "state", ht_state_name(x[i].state));
        ht_jw_kstr(w, "check", ht_reason_name(x[i].reason));
        ht_jw_kuint(w, "slots", x[i].scope.slots);
        ht_jw_kuint(w, "maxPrompt", x[i].scope.max_prompt);
        ht_jw_kuint(w, "tpotMs", x[i].scope.tpot_ms);
        ht_jw_kstr(w, "scopeSha256", x[i].scope_sha);
        ht_jw_kstr(w, "bundleId", x[i].bundle_id);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
    return 0;
}

/* The index in force and what the planner would see of it. */
static int list_routes(cli__ctx *c, const ht_store *s, ht_err *e)
{
    ht_route_entry *t;
    ht_route_edge *edge;
    size_t n, n_edges;
    ht_buf b;
    ht_jw w;
    HT_TRY(ht_store_routes(s, "", &t, &n, &edge, &n_edges, e));
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "version", s->index.version);
    ht_jw_kstr(&w, "policy", s->policy.id);
    ht_jw_kbool(&w, "fixture", s->policy.fixture);
    ht_jw_key(&w, "routes");
    ht_jw_arr(&w);
    for (size_t i = 0; i < n; i++) {
        const ht_scope *x = &t[i].scope;
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "state", ht_state_name(t[i].state));
        ht_jw_kstr(&w, "check", ht_reason_name(t[i].checks));
        ht_jw_kstr(&w, "phase", x->model_sha ? ht_phase_name(x->phase) : "?");
        ht_jw_kstr(&w, "backend", x->model_sha ? x->backend : "?");
        ht_jw_kuint(&w, "minTokens", x->min_tokens);
        ht_jw_kuint(&w, "maxTokens", x->max_tokens);
        ht_jw_kuint(&w, "p50UcbNs", t[i].p50_ucb_ns);
        ht_jw_kuint(&w, "refP50LcbNs", t[i].ref_lcb_ns);
        ht_jw_kuint(&w, "amendments", s->index.entry[i].n_amendments);
        ht_jw_kstr(&w, "scopeSha256", t[i].scope_sha);
        ht_jw_kstr(&w, "bundleId", t[i].bundle_id);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    int rc = list_schedules(s, &w, e);
    ht_jw_key(&w, "tombstones");
    ht_jw_arr(&w);
    for (size_t i = 0; i < s->index.n_tombs; i++) {
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "bundleId", s->index.tomb[i].bundle_id);
        ht_jw_kstr(&w, "reason", s->index.tomb[i].reason);
        ht_jw_kuint(&w, "sinceVersion", s->index.tomb[i].since);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    if (rc == 0) rc = ht_buf_ok(&b, "routes", e);
    if (rc == 0) rc = cli__out_doc(c, b.p, e);
    ht_buf_done(&b);
    return rc;
}

enum what { PROMOTE, REVOKE, ROUTES };

static int revoke(cli__ctx *c, ht_store *s, const cli__keyring *k, ht_err *e)
{
    const char *id = ht_opts_arg(c->o, 0), *why = ht_opt_str(c->o, HT_OPT_REASON);
    const ht_key *const *keys = (const ht_key *const *)k->key;
    if (!ht_is_sha256(id, strlen(id)))
        return HT_FAIL(e, HT_EARG, "'%.70s' is no bundle id (64 hex digits)", id);
    if (ht_opt_on(c->o, HT_OPT_QUARANTINE))
        return ht_store_demote(s, id, HT_ST_QUARANTINED, keys, k->n, e);
    if (!why || !*why)
        return HT_FAIL(e, HT_EARG, "a revocation is for ever: say why with --reason");
    return ht_store_revoke(s, id, why, keys, k->n, e);
}

/* A bundle's promotion, or with --amendment the outcome of its canary. */
static int promote(cli__ctx *c, ht_store *s, const cli__keyring *k, ht_err *e)
{
    const ht_key *const *keys = (const ht_key *const *)k->key;
    const char *path = ht_opt_str(c->o, HT_OPT_AMENDMENT), *bundle = ht_opts_arg(c->o, 0);
    char id[HT_SHA256_HEX], *text = NULL;
    size_t n;
    if (!path) return ht_store_promote(s, bundle, keys, k->n, id, e);
    HT_TRY(ht_file_read(path, HT_STORE_FILE, &text, &n, e));
    const int rc = ht_store_amend(s, bundle, text, n, keys, k->n, e);
    ht_mem_free(text);
    return rc;
}

static int change(cli__ctx *c, ht_store *s, enum what what, ht_err *e)
{
    cli__keyring k;
    HT_TRY(cli__keys_open(c, &k, e));
    int rc = what == PROMOTE  ? promote(c, s, &k, e)
             : what == REVOKE ? revoke(c, s, &k, e)
                              : ht_store_renew(s, (const ht_key *const *)k.key, k.n, e);
    cli__keys_free(&k);
    return rc;
}

static int with_store(cli__ctx *c, enum what what, ht_err *e)
{
    ht_arena *a;
    ht_store s;
    HT_TRY(ht_arena_new(&a, 0, e));
    int rc = cli__store_open(c, a, &s, e);
    if (rc == 0 && (what != ROUTES || ht_opt_on(c->o, HT_OPT_RENEW))) rc = change(c, &s, what, e);
    if (rc == 0) rc = list_routes(c, &s, e);
    ht_arena_free(a);
    return rc;
}

int cli__promote(cli__ctx *c, ht_err *e)
{
    return with_store(c, PROMOTE, e);
}

int cli__revoke(cli__ctx *c, ht_err *e)
{
    return with_store(c, REVOKE, e);
}

int cli__routes(cli__ctx *c, ht_err *e)
{
    return with_store(c, ROUTES, e);
}
