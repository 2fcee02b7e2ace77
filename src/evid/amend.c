/* amend.c - writing, judging and checking amendments; see amend.h. */
#include "evid/amend.h"
#include "evid/bundle_read.h"
#include <string.h>

enum { DAY_S = 86400, TOKENS_MAX = 1 << 16 };
const char *const ht_canary_names[HT_CANARY_RESULTS + 1] = {"PASSED", "FAILED",
                                                            "NOT_ADMISSIBLE_ENV", NULL};

static const ht_field pair_fields[] = {
    {.key = "cand", .type = HT_S_ARR, .item = HT_S_INT, .lo = 0, .hi = INT32_MAX},
    {.key = "candNs", .type = HT_S_INT},
    {.key = "ref", .type = HT_S_ARR, .item = HT_S_INT, .lo = 0, .hi = INT32_MAX},
    {.key = "refNs", .type = HT_S_INT},
    {0},
};
static const ht_field cell_fields[] = {
    {.key = "pairs", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = pair_fields},
    {.key = "scopeSha256", .type = HT_S_SHA256},
    {0},
};
static const ht_field amendment_fields[] = {
    {.key = "bundleId", .type = HT_S_SHA256},
    {.key = "cells", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = cell_fields},
    {.key = "changed", .type = HT_S_ARR, .item = HT_S_STR},
    {.key = "costmapSha256", .type = HT_S_SHA256},
    {.key = "expiresUtc", .type = HT_S_UTC},
    {.key = "guards", .type = HT_S_ARR, .item = HT_S_OBJ},
    {.key = "machine", .type = HT_S_OBJ},
    {.key = "measuredUtc", .type = HT_S_UTC},
    {.key = "policySha256", .type = HT_S_SHA256},
    {.key = "result", .type = HT_S_ENUM, .names = ht_canary_names},
    {.key = "stateSha256", .type = HT_S_SHA256},
    {0},
};

/* ---- what changed ---- */

static bool same_bytes(const ht_json *x, const ht_json *y)
{
    ht_buf a, b;
    ht_buf_init(&a, 1 << 16);
    ht_buf_init(&b, 1 << 16);
    const bool same = x && y && ht_json_write(x, HT_JSON_CANON, &a, NULL) == 0 &&
                      ht_json_write(y, HT_JSON_CANON, &b, NULL) == 0 && a.n == b.n &&
                      memcmp(a.p, b.p, a.n) == 0;
    ht_buf_done(&a);
    ht_buf_done(&b);
    return same;
}

/* The names of the leaves of a part that are in x and not the same in y; those of y alone follow
 * from the exchanged call. */
static bool differs(const ht_json *x, const ht_json *y, size_t i)
{
    return !same_bytes(&x->at[i], ht_json_get(y, x->at[i].key));
}

/* A driver is part of what a device compiled: under such a route its change is no stale field. */
static bool under_device(const ht_verified *v, const char *field)
{
    if (strcmp(field, "gpuDriver") != 0 && strcmp(field, "gpuRuntime") != 0) return false;
    for (size_t i = 0; i < v->evidence.design.n_cells; i++) {
        const char *backend = v->evidence.design.cell[i].scope.backend;
        if (v->analysis.cell[i].route &&
            (strncmp(backend, "cpu", 3) != 0 || (backend[3] && backend[3] != ';')))
            return true;
    }
    return false;
}

static int old_machine(const ht_verified *v, ht_arena **a, const ht_json **stale, ht_err *e)
{
    const ht_mfile *f = ht_manifest_find(&v->in, "machine/before.json");
    ht_json *j;
    if (!f) return HT_FAIL(e, HT_EFORMAT, "MANIFEST: machine/before.json is missing");
    HT_TRY(ht_arena_new(a, 0, e));
    HT_TRY(ht_json_parse(*a, f->data, f->bytes, HT_JSON_CANON, f->path, &j, e));
    *stale = ht_json_get(j, "stale");
    return 0;
}

typedef struct {
    const ht_json *old, *now; /* the stale parts                                           */
    ht_arena *a;
    char state[HT_SHA256_HEX];
} change;

static int read_change(const ht_verified *v, const ht_json *machine, change *x, ht_err *e)
{
    char cls[HT_SHA256_HEX];
    bool unreadable = false;
    HT_TRY(ht_schema_check(machine, evid__machine_fields, "hetero/machine/1", "MACHINE", e));
    *x = (change){.now = ht_json_get(machine, "stale")};
    HT_TRY(evid__machine_part(machine, "reject", cls, &unreadable, e));
    HT_TRY(evid__machine_part(machine, "stale", x->state, &unreadable, e));
    if (strcmp(cls, v->evidence.design.cell[0].scope.class_sha) != 0)
        return HT_FAIL(e, HT_EGATE,
                       "OTHER_MACHINE: a field that makes another machine differs; a new bundle is "
                       "needed: hetero qualify");
    if (unreadable)
        return HT_FAIL(e, HT_EGATE, "UNREADABLE_FIELD: the machine's state cannot be read whole");
    if (strcmp(x->state, v->evidence.state_sha) == 0)
        return HT_FAIL(e, HT_EGATE, "NOTHING_CHANGED: the machine is in the state of the bundle");
    return old_machine(v, &x->a, &x->old, e);
}

static int check_fields(const ht_verified *v, const change *x, ht_err *e)
{
    for (size_t i = 0; i < x->now->n; i++)
        if (differs(x->now, x->old, i) && under_device(v, x->now->at[i].key))
            return HT_FAIL(e, HT_EGATE,
                           "NOT_AMENDABLE: %s changed under kernels compiled by it; a new bundle "
                           "is needed: hetero qualify",
                           x->now->at[i].key);
    return 0;
}

static int open_change(const ht_verified *v, const ht_json *machine, change *x, ht_err *e)
{
    *x = (change){.a = NULL};
    if (v->analysis.n_routes == 0)
        return HT_FAIL(e, HT_EGATE, "NOT_QUALIFIED: the bundle admits nothing");
    if (!v->evidence.policy.canary_on_stale)
        return HT_FAIL(e, HT_EGATE, "NOT_AMENDABLE: policy %s has no canary (canaryOnStale)",
                       v->evidence.policy.id);
    int rc = read_change(v, machine, x, e);
    if (rc == 0) rc = check_fields(v, x, e);
    if (rc) ht_arena_free(x->a);
    if (rc) x->a = NULL;
    return rc;
}

int ht_amendable(const ht_verified *v, const ht_json *machine, ht_err *e)
{
    change x;
    HT_TRY(open_change(v, machine, &x, e));
    ht_arena_free(x.a);
    return 0;
}

/* ---- the judgement ---- */

/* As many tokens as the policy asks for agree; all of them where the bundle's continuations did. */
static bool tokens_agree(const ht_verified *v, const ht_canary *c)
{
    const ht_quality_counts *q = &v->evidence.quality;
    const bool exact = q->present && q->prompts > 0 && q->exact == q->prompts;
    uint64_t all = 0, same = 0;
    for (size_t i = 0; i < c->n_cells; i++)
        for (int k = 0; k < HT_CANARY_PAIRS; k++) {
            const ht_canary_pair *p = &c->cell[i].pair[k];
            const size_t less = p->n_ref < p->n_cand ? p->n_ref : p->n_cand;
            all += p->n_ref > p->n_cand ? p->n_ref : p->n_cand;
            for (size_t t = 0; t < less; t++) same += p->ref[t] == p->cand[t];
        }
    const uint64_t need = exact ? HT_PPM : v->evidence.policy.exact_ppm;
    return all > 0 && same * HT_PPM >= need * all;
}

/* delta is twice what the null run may be wide: the gain that a bundle could tell from none. */
static int cell_holds(const ht_verified *v, size_t i, const ht_canary_cell *c, bool *holds,
                      ht_err *e)
{
    const ht_policy *y = &v->evidence.policy;
    const ht_stat *s = &v->analysis.cell[i].main.stat;
    const uint64_t delta = 2 * y->null_half_width_ppm;
    uint64_t ratio[HT_CANARY_PAIRS];
    *holds = true;
    for (int k = 0; k < HT_CANARY_PAIRS; k++) {
        HT_TRY(ht_stat_ratio(c->pair[k].ref_ns, c->pair[k].cand_ns, &ratio[k], e));
        if (y->sign_test ? ratio[k] <= HT_PPM : ratio[k] < y->min_lower_ppm) *holds = false;
    }
    const uint64_t hl = ht_stat_hl(ratio, HT_CANARY_PAIRS);
    if (hl + delta < s->lo || hl > s->hi + delta) *holds = false;
    return 0;
}

/* May the canary be judged at all: no guard red, none missing that the policy requires, and every
 * reference answered, for a failed one proves nothing. */
static int environment_holds(const ht_verified *v, const ht_canary *c, bool *holds, ht_err *e)
{
    const ht_policy *y = &v->evidence.policy;
    ht_guard_state state;
    *holds = true;
    for (size_t i = 0; i < c->guards->n; i++) {
        HT_TRY(ht_guards_read(&c->guards->at[i], y, v->evidence.design.cpus, &state, e));
        if (state.red || (state.unknown & y->required)) *holds = false;
    }
    for (size_t i = 0; i < c->n_cells; i++)
        for (int k = 0; k < HT_CANARY_PAIRS; k++)
            if (c->cell[i].pair[k].ref_ns == 0) *holds = false;
    return 0;
}

static int judge(const ht_verified *v, const ht_canary *c, uint8_t *result, ht_err *e)
{
    bool good = true, holds;
    size_t k = 0;
    HT_TRY(environment_holds(v, c, &holds, e));
    *result = HT_CANARY_NOT_ADMISSIBLE;
    if (!holds) return 0;
    if (!tokens_agree(v, c)) good = false;
    for (size_t i = 0; i < v->evidence.design.n_cells; i++) {
        if (!v->analysis.cell[i].route) continue;
        HT_TRY(cell_holds(v, i, &c->cell[k++], &holds, e));
        good = good && holds;
    }
    *result = good ? HT_CANARY_PASSED : HT_CANARY_FAILED;
    return 0;
}

/* ---- the paper ---- */

static void write_ids(ht_jw *w, const char *key, const int32_t *id, size_t n)
{
    ht_jw_key(w, key);
    ht_jw_arr(w);
    for (size_t i = 0; i < n; i++) ht_jw_int(w, id[i]);
    ht_jw_end(w, ']');
}

static void write_cells(ht_jw *w, const ht_verified *v, const ht_canary *c)
{
    size_t n = 0;
    ht_jw_key(w, "cells");
    ht_jw_arr(w);
    for (size_t i = 0; i < v->evidence.design.n_cells; i++) {
        if (!v->analysis.cell[i].route) continue;
        const ht_canary_cell *x = &c->cell[n++];
        ht_jw_obj(w);
        ht_jw_key(w, "pairs");
        ht_jw_arr(w);
        for (int k = 0; k < HT_CANARY_PAIRS; k++) {
            ht_jw_obj(w);
            write_ids(w, "cand", x->pair[k].cand, x->pair[k].n_cand);
            ht_jw_kuint(w, "candNs", x->pair[k].cand_ns);
            write_ids(w, "ref", x->pair[k].ref, x->pair[k].n_ref);
            ht_jw_kuint(w, "refNs", x->pair[k].ref_ns);
            ht_jw_end(w, '}');
        }
        ht_jw_end(w, ']');
        ht_jw_kstr(w, "scopeSha256", v->evidence.design.cell[i].scope_sha);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

/* Leaves that differ, by name; both parts are sorted, and so is this. */
static void write_changed(ht_jw *w, const change *x)
{
    size_t i = 0, k = 0;
    ht_jw_key(w, "changed");
    ht_jw_arr(w);
    while (i < x->now->n || k < x->old->n) {
        const char *a = i < x->now->n ? x->now->at[i].key : NULL;
        const char *b = k < x->old->n ? x->old->at[k].key : NULL;
        const int order = !a ? 1 : !b ? -1 : strcmp(a, b);
        if (order != 0 || differs(x->now, x->old, i)) ht_jw_str(w, order > 0 ? b : a);
        i += order <= 0;
        k += order >= 0;
    }
    ht_jw_end(w, ']');
}

static void write_predicate(ht_jw *w, const ht_verified *v, const ht_canary *c, const change *x,
                            uint8_t result)
{
    char measured[21], expires[21];
    const int64_t life = c->measured_unix + (int64_t)HT_AMEND_DAYS * DAY_S;
    const int64_t old =
        v->evidence.design.started_unix + (int64_t)v->evidence.policy.max_age_days * DAY_S;
    ht_utc_format(c->measured_unix, measured);
    ht_utc_format(life < old ? life : old, expires); /* never longer than the bundle itself */
    ht_jw_obj(w);
    ht_jw_kstr(w, "bundleId", v->id);
    write_cells(w, v, c);
    write_changed(w, x);
    ht_jw_kstr(w, "costmapSha256", ht_manifest_find(&v->out, "costmap.json")->sha256);
    ht_jw_kstr(w, "expiresUtc", expires);
    ht_jw_key(w, "guards");
    ht_jw_json(w, c->guards);
    ht_jw_key(w, "machine");
    ht_jw_json(w, c->machine);
    ht_jw_kstr(w, "measuredUtc", measured);
    ht_jw_kstr(w, "policySha256", v->evidence.policy.sha256);
    ht_jw_kstr(w, "result", ht_canary_names[result]);
    ht_jw_kstr(w, "schema", "hetero/amendment/1");
    ht_jw_kstr(w, "stateSha256", x->state);
    ht_jw_end(w, '}');
}

int ht_amendment_write(const ht_verified *v, const ht_canary *c, ht_buf *out, uint8_t *result,
                       ht_err *e)
{
    change x;
    ht_jw w;
    uint8_t r;
    if (c->n_cells != v->analysis.n_routes || c->guards->n != HT_CANARY_SLOTS)
        return HT_FAIL(e, HT_EFORMAT, "AMENDMENT: %zu cells and %zu slots, need %u and %d",
                       c->n_cells, c->guards->n, v->analysis.n_routes, (int)HT_CANARY_SLOTS);
    HT_TRY(open_change(v, c->machine, &x, e));
    int rc = judge(v, c, &r, e);
    ht_jw_init(&w, out, HT_JSON_CANON);
    if (rc == 0) {
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "_type", HT_INTOTO_TYPE);
        ht_jw_key(&w, "predicate");
        write_predicate(&w, v, c, &x, r);
        ht_jw_kstr(&w, "predicateType", HT_PRED_AMENDMENT);
        ht_jw_key(&w, "subject");
        ht_jw_arr(&w);
        evid__write_subject(&w, "bundle", v->id);
        ht_jw_end(&w, ']');
        ht_jw_end(&w, '}');
        rc = ht_buf_ok(out, "amendment", e);
    }
    if (rc == 0 && result) *result = r;
    ht_arena_free(x.a);
    return rc;
}

int ht_amendment_open(ht_arena *a, const char *text, size_t n, const ht_trust *t, int64_t now,
                      ht_amendment *out, ht_err *e)
{
    ht_dsse env;
    const ht_json *st, *p;
    HT_TRY(ht_statement_open(a, text, n, t, HT_ROLE_BENCH, HT_PRED_AMENDMENT, now, &env, &st, e));
    p = ht_json_get(st, "predicate");
    HT_TRY(ht_schema_check(p, amendment_fields, "hetero/amendment/1", "amendment", e));
    *out = (ht_amendment){.bundle_id = evid__str(p, "bundleId"),
                          .costmap_sha = evid__str(p, "costmapSha256"),
                          .policy_sha = evid__str(p, "policySha256"),
                          .state_sha = evid__str(p, "stateSha256"),
                          .predicate = p};
    while (strcmp(ht_canary_names[out->result], evid__str(p, "result")) != 0) out->result++;
    if (!ht_utc_parse(evid__str(p, "measuredUtc"), &out->measured_unix) ||
        !ht_utc_parse(evid__str(p, "expiresUtc"), &out->expires_unix))
        return HT_FAIL(e, HT_EFORMAT, "AMENDMENT: a time is none");
    if (out->measured_unix > now)
        return HT_FAIL(e, HT_EGATE,
                       "AMENDMENT_NOT_YET_VALID: it was measured at %s, in the future; check the "
                       "clock of this machine",
                       evid__str(p, "measuredUtc"));
    if (now >= out->expires_unix)
        return HT_FAIL(e, HT_EGATE,
                       "AMENDMENT_EXPIRED: it was good until %s; run the canary again: hetero "
                       "qualify --canary",
                       evid__str(p, "expiresUtc"));
    return evid__sha256_of(env.payload, env.n, out->sha256, e);
}

static int read_ids(ht_arena *a, const ht_json *list, const int32_t **id, size_t *n, ht_err *e)
{
    if (list->n > TOKENS_MAX)
        return HT_FAIL(e, HT_EFORMAT, "AMENDMENT: %zu tokens for one prompt", list->n);
    int32_t *v = ht_arena_array(a, list->n + 1, sizeof *v);
    if (!v) return HT_FAIL(e, HT_ENOMEM, "amendment: no memory");
    for (size_t i = 0; i < list->n; i++) v[i] = (int32_t)list->at[i].i;
    *id = v;
    *n = list->n;
    return 0;
}

static int read_cells(ht_arena *a, const ht_json *list, ht_canary_cell *cell, ht_err *e)
{
    for (size_t i = 0; i < list->n; i++) {
        const ht_json *pairs = ht_json_get(&list->at[i], "pairs");
        if (pairs->n != HT_CANARY_PAIRS)
            return HT_FAIL(e, HT_EFORMAT, "AMENDMENT: %zu pairs, need %d", pairs->n,
                           (int)HT_CANARY_PAIRS);
        for (size_t k = 0; k < pairs->n; k++) {
            ht_canary_pair *p = &cell[i].pair[k];
            p->ref_ns = (uint64_t)ht_json_get(&pairs->at[k], "refNs")->i;
            p->cand_ns = (uint64_t)ht_json_get(&pairs->at[k], "candNs")->i;
            HT_TRY(read_ids(a, ht_json_get(&pairs->at[k], "ref"), &p->ref, &p->n_ref, e));
            HT_TRY(read_ids(a, ht_json_get(&pairs->at[k], "cand"), &p->cand, &p->n_cand, e));
        }
    }
    return 0;
}

int ht_amendment_verify(ht_arena *a, const char *text, size_t n, const ht_trust *t, int64_t now,
                        const ht_verified *v, ht_amendment *out, ht_err *e)
{
    char sha[HT_SHA256_HEX];
    ht_buf b;
    HT_TRY(ht_amendment_open(a, text, n, t, now, out, e));
    const ht_json *cells = ht_json_get(out->predicate, "cells");
    ht_canary_cell *cell = ht_arena_array(a, cells->n, sizeof *cell);
    if (!cell) return HT_FAIL(e, HT_ENOMEM, "amendment: no memory");
    if (strcmp(out->bundle_id, v->id) != 0)
        return HT_FAIL(e, HT_EFORMAT, "AMENDMENT: it is for bundle %.16s...", out->bundle_id);
    HT_TRY(read_cells(a, cells, cell, e));
    const ht_canary c = {.machine = ht_json_get(out->predicate, "machine"),
                         .guards = ht_json_get(out->predicate, "guards"),
                         .cell = cell,
                         .n_cells = cells->n,
                         .measured_unix = out->measured_unix};
    ht_buf_init(&b, 0);
    int rc = ht_amendment_write(v, &c, &b, NULL, e);
    if (rc == 0) rc = evid__sha256_of(b.p, b.n, sha, e);
    ht_buf_done(&b);
    if (rc == 0 && strcmp(sha, out->sha256) != 0)
        rc = HT_FAIL(e, HT_EFORMAT,
                     "RECOMPUTED: the amendment is not what its canary and the bundle give");
    return rc;
}
