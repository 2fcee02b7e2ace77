/* route.c - which engine runs a call: entries of the store's index whose exact scope is this model,
 * binary, machine and precision, chosen by route/plan.h; see route.h. */
#include "api/route.h"
#include "api/subject.h"
#include "api/whole.h"
#include "core/clock.h"
#include "route/guard.h"
#include "route/store.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = API_UNITS - API_PHASES };
typedef struct {
    const char *backend;        /* "cpu;isa=avx2;threads=2" */
    char assets[HT_SHA256_HEX]; /* of the libraries that were mapped when it had been opened */
    api__phase phase[API_PHASES];
} lane;
struct api__route {
    ht_arena *a;
    ht_store store;
    ht_route_entry *entry;
    ht_route_edge *edge;
    size_t n, n_edges;
    ht_scope want;
    const api__subject *who;
    api__machine machine;
    ht_live live;
    ht_gpus gpus;
    const char *guard; /* red at the last choice, or NULL */
    lane lane[LANES];
    size_t n_lanes;
    const char *engines[LANES + 1];
    api__phase base[API_PHASES];
    char current[API_PHASES][HT_SHA256_HEX]; /* scopes that ran last, "": the reference */
};

/* ---- who we are ------------------------------------------------------------------------------ */

static int read_identity(ht_engine *e, struct api__route *r, ht_err *err)
{
    const char *k = e->kv.name[0], *v = e->kv.name[1];
    HT_TRY(api__machine_read(&r->machine, err));
    HT_TRY(api__subject_get(e, false, &r->who, err));
    r->want = (ht_scope){.acc = "f32",
                         .act = api__act_name(e->act),
                         .kv = strcmp(k, v) ? "f16,f32" : k,
                         .weights = e->contract,
                         .model_sha = r->who->model,
                         .tok_sha = r->who->tok,
                         .tmpl_sha = r->who->tmpl,
                         .binary_sha = r->who->binary,
                         .class_sha = r->machine.class_sha,
                         .instance = r->machine.instance,
                         .os = r->machine.os};
    return 0;
}

/* ---- lanes: a device for each admitted backend ----------------------------------------------- */

/* What a backend's text sets beyond the device. rep: of each phase, "" for the engine's own. */
typedef struct {
    char rep[API_PHASES][32], cover[8], isa[16], graph[256], cuda[API_CUDA];
    long threads, ubatch;
} settings;

static bool set_phases(ht_engine *e, lane *l, const settings *x, api__unit *u)
{
    for (int p = 0; p < API_PHASES; p++) {
        l->phase[p] = e->phase[p];
        const char *rep = x->rep[p];
        l->phase[p].unit = u;
        l->phase[p].ubatch = (uint32_t)x->ubatch;
        if (*x->cover) l->phase[p].plain = strcmp(x->cover, "plain") == 0;
        if (!*rep || !strcmp(rep, l->phase[p].rep)) continue;
        if (!e->model->rep[1][0] || strcmp(rep, e->model->rep[1]) != 0) return false;
        l->phase[p].rep = e->model->rep[1];
        l->phase[p].flags = HT_ALT_REP;
    }
    return true;
}

/* What the process has mapped by now. */
static bool read_assets(struct api__route *r, lane *l)
{
    api__libs libs;
    ht_err ignored = {0}; /* a digest that is not known matches nothing */
    l->assets[0] = 0;
    return api__libs_read(r->a, &libs, &ignored) == 0 &&
           api__libs_sha256(&libs, NULL, l->assets, &ignored) == 0;
}

/* ";graph=KEY=VALUE" as one more of the settings behind --graph, and so for --cuda. */
static bool read_one(const char *p, const char *key, char *out, size_t cap)
{
    const size_t n = strlen(out);
    if (strncmp(p, key, strlen(key)) != 0) return false;
    p += strlen(key);
    const int k = snprintf(out + n, cap - n, "%s%.*s", n ? "," : "", (int)strcspn(p, ";"), p);
    return k > 0 && (size_t)k < cap - n;
}

static bool read_settings(const char *p, settings *x)
{
    for (; *p == ';'; p += 1 + strcspn(p + 1, ";")) {
        if (sscanf(p, ";threads=%ld", &x->threads) == 1 ||
            sscanf(p, ";ubatch=%ld", &x->ubatch) == 1 ||
            sscanf(p, ";isa=%15[a-z0-9]", x->isa) == 1 ||
            sscanf(p, ";prefill-rep=%31[^;]", x->rep[API_PREFILL]) == 1 ||
            sscanf(p, ";decode-rep=%31[^;]", x->rep[API_DECODE]) == 1 ||
            sscanf(p, ";cover=%7[a-z]", x->cover) == 1 ||
            read_one(p, ";graph=", x->graph, sizeof x->graph) ||
            read_one(p, ";cuda=", x->cuda, sizeof x->cuda))
            continue;
        return false; /* a setting that this build does not know */
    }
    return !*x->cover || !strcmp(x->cover, "plain") || !strcmp(x->cover, "fused");
}

/* Open "engine;key=value;..." as one more unit; false when this build or machine cannot, and
 * then the planner answers NO_ENGINE. */
static bool open_lane(ht_engine *e, struct api__route *r, const char *backend, ht_err *err)
{
    char name[32] = "", opts[1400];
    settings x = {.threads = e->threads, .ubatch = e->ubatch};
    const size_t n = strcspn(backend, ";");
    if (n >= sizeof name) return false;
    memcpy(name, backend, n);
    (void)snprintf(x.isa, sizeof x.isa, "%s", e->isa);
    const ht_backend *be = ht_backend_find(name);
    /* The session's arrays are as long as the engine's own chunk. */
    if (!be || !read_settings(backend + n, &x) || x.threads < 1 || x.threads > 4096 ||
        x.ubatch < 1 || x.ubatch > (long)e->ubatch)
        return false;
    if (be->buckets ? api__whole_set(e, x.graph, err) != 0 : x.graph[0] != 0) return false;
    if (x.cuda[0] && strcmp(name, "cuda") != 0) return false;
    (void)snprintf(opts, sizeof opts, "threads=%ld%s%s%s%s%s", x.threads, x.isa[0] ? ",isa=" : "",
                   x.isa, be->buckets ? api__whole_opts(e) : "", x.cuda[0] ? "," : "", x.cuda);
    api__unit *u = &e->unit[e->n_units];
    ht_dev *dev = NULL;
    if (be->open(&dev, opts, err)) return false;
    *u = (api__unit){.be = be, .dev = dev};
    e->n_units++; /* from here on the engine closes it */
    lane *l = &r->lane[r->n_lanes];
    if (be->load(dev, e->model, err) || !set_phases(e, l, &x, u)) return false;
    if (be->buckets && api__whole_lane(e, &l->phase[API_PREFILL], err)) return false;
    l->backend = backend;
    r->engines[r->n_lanes++] = backend;
    return read_assets(r, l);
}

/* Lanes for the entries that are about this model, binary, machine and precision. One whose
 * libraries are not those it was measured with is not admitted. */
static void open_lanes(ht_engine *e, struct api__route *r)
{
    for (size_t i = 0; i < r->n; i++) {
        ht_route_entry *t = &r->entry[i];
        size_t k = 0;
        ht_err ignored = {0}; /* the planner reports NO_ENGINE */
        if (t->checks != HT_R_OK || t->state != HT_ST_PROMOTED) continue;
        ht_scope same = r->want;
        same.backend = t->scope.backend;
        same.assets_sha = t->scope.assets_sha;
        same.sampler = t->scope.sampler;
        same.spec = t->scope.spec;
        if (ht_scope_differs(&t->scope, &same)) continue;
        while (k < r->n_lanes && strcmp(r->lane[k].backend, t->scope.backend) != 0) k++;
        if (k == r->n_lanes && r->n_lanes < LANES && e->n_units < API_UNITS)
            (void)open_lane(e, r, t->scope.backend, &ignored);
        if (k < r->n_lanes && strcmp(r->lane[k].assets, t->scope.assets_sha) != 0)
            t->checks = HT_R_OTHER_ASSETS;
    }
}

/* Counters from now on; GPUs only where a route uses one. */
static void begin_guards(struct api__route *r)
{
    bool gpu = false;
    ht_cpu_threads cpus;
    for (size_t k = 0; k < r->n_lanes; k++)
        gpu = gpu || strncmp(r->lane[k].backend, "cuda", 4) == 0;
    ht_cpu_threads_get(&cpus);
    ht_live_begin(&r->live, "", &r->store.policy, (uint32_t)cpus.affinity, gpu ? &r->gpus : NULL);
}

int api__route_open(ht_engine *e, const char *dir, ht_err *err)
{
    ht_arena *a = NULL;
    ht_err why = {0};
    if (!dir) return 0;
    HT_TRY(ht_arena_new(&a, 0, err));
    struct api__route *r = ht_arena_alloc(a, sizeof *r);
    char *keep = ht_arena_strndup(a, dir, strlen(dir));
    if (!r || !keep) {
        ht_arena_free(a);
        return HT_FAIL(err, HT_ENOMEM, "no memory for the routes");
    }
    r->a = a;
    memcpy(r->base, e->phase, sizeof r->base);
    int rc = ht_store_open(a, keep, ht_now_unix(), &r->store, &why);
    uint8_t reason = rc == HT_EGATE ? HT_R_BAD_SIGNATURE : HT_R_OTHER_MACHINE;
    if (!rc && r->store.index.n_entries == 0 && !r->store.policy.error_on_unknown) rc = HT_EIO;
    if (!rc) rc = read_identity(e, r, &why);
    if (!rc)
        rc = ht_store_routes(&r->store, r->machine.state_sha, &r->entry, &r->n, &r->edge,
                             &r->n_edges, &why);
    if (rc) {
        /* No store or an empty one is the usual case; one that does not verify admits nothing. */
        for (int p = 0; rc == HT_EGATE && p < API_PHASES; p++) e->phase[p].reason = reason;
        ht_arena_free(a);
        return rc == HT_ENOMEM ? HT_FAIL(err, rc, "%s", why.msg) : 0;
    }
    open_lanes(e, r);
    begin_guards(r);
    e->route = r;
    return 0;
}

void api__route_close(ht_engine *e)
{
    if (!e->route) return;
    ht_arena_free(e->route->a);
    e->route = NULL;
}

void api__route_reference(ht_engine *e)
{
    if (e->route) memcpy(e->phase, e->route->base, sizeof e->phase);
}

/* ---- before each call ------------------------------------------------------------------------ */

/* Everything but the request's size, the live guard and the memory. */
static void fill(const ht_engine *e, const struct api__route *r, bool greedy, bool spec,
                 ht_route_request *q)
{
    for (int p = 0; p < HT_PHASES; p++) {
        q->want[p] = r->want;
        q->want[p].sampler = greedy ? "greedy" : "sampled";
        q->want[p].spec = spec ? "lookup" : "off";
        q->current[p] = r->current[p];
    }
    const uint64_t avail = ht_mem_available();
    q->batch = 1;
    q->ctx = e->ctx;
    q->reference = "cpu";
    q->reference_qualified = e->ref_state == API_REF_PASSED;
    q->engines = r->engines;
    memcpy(q->state_sha, r->machine.state_sha, sizeof q->state_sha);
    q->guard_red = r->guard != NULL;
    q->mem_known = avail != 0;
    /* What the engine holds already is part of a route's peak and not free any more. */
    q->mem_free = avail + e->mem.total;
    q->mem_reserve = avail / 20;
    q->now_unix = ht_now_unix();
    q->max_age_s = (int64_t)r->store.policy.max_age_days * 86400;
    q->min_gain_ppm = r->store.policy.plan_margin_ppm;
    q->expected_reuse = 100;
    q->error_on_unknown = r->store.policy.error_on_unknown;
}

static void bucket_text(const ht_route_entry *t, char out[32])
{
    (void)snprintf(out, 32, "%c%u-%u", t->scope.phase == HT_DECODE ? 'd' : 'p', t->scope.min_tokens,
                   t->scope.max_tokens);
}

/* [{"bundleId","rejected","scopeSha256"}] of the entries that were not taken. */
static void write_rejected(ht_jw *w, const ht_route_plan *plan)
{
    ht_jw_arr(w);
    for (size_t i = 0; i < plan->n_considered; i++) {
        const ht_considered *k = &plan->considered[i];
        if (k->reason == HT_R_OK) continue;
        ht_jw_obj(w);
        ht_jw_kstr(w, "bundleId", k->bundle_id);
        ht_jw_kstr(w, "rejected", ht_reason_name(k->reason));
        ht_jw_kstr(w, "scopeSha256", k->scope_sha);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

/* What was considered, for the session's receipt. */
static int keep_considered(ht_session *s, const ht_route_plan *plan, ht_err *err)
{
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    write_rejected(&w, plan);
    int rc = ht_buf_ok(&b, "considered routes", err);
    ht_mem_free(s->considered);
    s->considered = rc ? NULL : ht_buf_take(&b, NULL);
    ht_buf_done(&b);
    return rc;
}

/* The phases of the engine as the plan says. */
static void take(ht_engine *e, struct api__route *r, const ht_route_plan *plan)
{
    for (int p = 0; p < API_PHASES; p++) {
        e->phase[p] = r->base[p];
        e->phase[p].reason = plan->reason[p];
        r->current[p][0] = 0;
        if (!plan->entry[p]) continue;
        for (size_t k = 0; k < r->n_lanes; k++)
            if (strcmp(r->lane[k].backend, plan->engine[p]) == 0) e->phase[p] = r->lane[k].phase[p];
        e->phase[p].reason = HT_R_OK;
        e->phase[p].entry = plan->entry[p];
        memcpy(r->current[p], plan->entry[p]->scope_sha, HT_SHA256_HEX);
    }
}

int api__route_choose(ht_session *s, uint32_t n_prompt, uint32_t n_new, bool greedy, bool spec,
                      ht_err *err)
{
    ht_engine *e = s->e;
    struct api__route *r = e->route;
    ht_arena *a = NULL;
    if (!r) return 0;
    ht_route_plan plan;
    ht_route_request q = {.n_prompt = n_prompt, .n_new = n_new};
    r->guard = ht_live_look(&r->live);
    fill(e, r, greedy, spec, &q);
    HT_TRY(ht_arena_new(&a, 0, err));
    int rc = ht_route_choose(a, &q, r->entry, r->n, r->edge, r->n_edges, &plan, err);
    if (!rc) rc = keep_considered(s, &plan, err);
    if (!rc) take(e, r, &plan);
    ht_arena_free(a);
    return rc;
}

bool api__route_retry(ht_session *s)
{
    ht_engine *e = s->e;
    bool routed = false;
    for (int p = 0; p < API_PHASES; p++) routed = routed || s->rec.phase[p].entry;
    if (!routed || !e->route || e->ref_state != API_REF_PASSED) return false;
    api__route_reference(e);
    for (int p = 0; p < API_PHASES; p++) {
        e->phase[p].reason = HT_R_ROUTE_FAILED;
        e->route->current[p][0] = 0;
    }
    return true;
}

void api__route_mismatch(ht_session *s)
{
    struct api__route *r = s->e->route;
    ht_err ignored = {0}; /* this process does not take it again in any case */
    for (int p = 0; r && p < API_PHASES; p++) {
        const ht_route_entry *t = s->rec.phase[p].entry;
        if (!t) continue;
        for (size_t i = 0; i < r->n; i++)
            if (strcmp(r->entry[i].bundle_id, t->bundle_id) == 0)
                r->entry[i].state = HT_ST_QUARANTINED;
        r->current[p][0] = 0;
        (void)(ht_store_mark(&r->store, t->bundle_id, "routeMismatch", ht_now_unix(), &ignored) ==
               0);
    }
}

/* ---- what receipts and explain say ----------------------------------------------------------- */

void api__route_write(ht_jw *w, const ht_session *s)
{
    static const char *const digest[] = {"indexSha256", "policySha256", "machineClassSha256",
                                         "machineStateSha256"};
    const struct api__route *r = s->e->route;
    if (!r) {
        ht_jw_unknown(w, "indexVersion", "NO_STORE");
        for (size_t i = 0; i < sizeof digest / sizeof *digest; i++)
            ht_jw_unknown(w, digest[i], "NO_STORE");
        ht_jw_key(w, "considered");
        ht_jw_arr(w);
        ht_jw_end(w, ']');
        return;
    }
    const char *const value[] = {r->store.index.sha256, r->store.policy.sha256,
                                 r->machine.class_sha, r->machine.state_sha};
    ht_jw_kuint(w, "indexVersion", r->store.index.version);
    for (size_t i = 0; i < sizeof digest / sizeof *digest; i++)
        if (value[i][0]) ht_jw_kstr(w, digest[i], value[i]);
        else ht_jw_unknown(w, digest[i], "NO_INDEX");
    if (r->guard) ht_jw_kstr(w, "guard", r->guard);
    ht_jw_key(w, "considered");
    if (s->considered) {
        ht_jw_raw(w, s->considered, strlen(s->considered));
    } else {
        ht_jw_arr(w);
        ht_jw_end(w, ']');
    }
}

static void explain_phase(ht_jw *w, const ht_engine *e, const ht_route_plan *plan, int p)
{
    const ht_route_entry *t = plan->entry[p];
    const char *backend = t ? t->scope.backend : e->route->base[p].unit->be->name;
    char bucket[32];
    ht_jw_obj(w);
    ht_jw_kstr(w, "phase", ht_phase_name(p));
    ht_jw_kstr(w, "decision", t ? "promoted" : "reference");
    ht_jw_kstr(w, "reason", ht_reason_name(plan->reason[p]));
    ht_jw_kstr(w, "backend", backend);
    if (api__whole_cancel(e, backend)) ht_jw_kuint(w, "cancelMaxMs", api__whole_cancel(e, backend));
    if (t) {
        bucket_text(t, bucket);
        ht_jw_kstr(w, "bucket", bucket);
        ht_jw_kuint(w, "p50UcbNs", t->p50_ucb_ns);
        ht_jw_kuint(w, "refP50LcbNs", t->ref_lcb_ns);
        ht_jw_kuint(w, "warmupNs", t->warmup_ns);
        ht_jw_kstr(w, "scopeSha256", t->scope_sha);
        ht_jw_kstr(w, "bundleId", t->bundle_id);
    }
    ht_jw_end(w, '}');
}

static void explain_entry(ht_jw *w, const ht_considered *k)
{
    const ht_route_entry *t = k->entry;
    char bucket[32];
    ht_jw_obj(w);
    ht_jw_kstr(w, k->reason == HT_R_OK ? "taken" : "rejected", ht_reason_name(k->reason));
    if (t->scope.model_sha) {
        bucket_text(t, bucket);
        ht_jw_kstr(w, "bucket", bucket);
        ht_jw_kstr(w, "backend", t->scope.backend);
        ht_jw_kuint(w, "p50UcbNs", t->p50_ucb_ns);
        ht_jw_kuint(w, "refP50LcbNs", t->ref_lcb_ns);
        ht_jw_kuint(w, "memPeakBytes", t->mem_peak);
    }
    ht_jw_kstr(w, "state", ht_state_name(t->state));
    ht_jw_kstr(w, "scopeSha256", k->scope_sha);
    ht_jw_kstr(w, "bundleId", k->bundle_id);
    ht_jw_end(w, '}');
}

static void explain_plan(ht_jw *w, const ht_engine *e, const ht_route_plan *plan)
{
    const struct api__route *r = e->route;
    ht_jw_kuint(w, "indexVersion", r->store.index.version);
    ht_jw_kstr(w, "policy", r->store.policy.id);
    ht_jw_kstr(w, "guard", r->guard ? r->guard : "clear");
    ht_jw_kuint(w, "minGainPpm", r->store.policy.plan_margin_ppm);
    ht_jw_kuint(w, "costNs", plan->cost_ns);
    ht_jw_kuint(w, "refCostNs", plan->ref_cost_ns);
    ht_jw_kuint(w, "handoffNs", plan->edge_ns);
    ht_jw_key(w, "phases");
    ht_jw_arr(w);
    for (int p = 0; p < HT_PHASES; p++) explain_phase(w, e, plan, p);
    ht_jw_end(w, ']');
    ht_jw_key(w, "considered");
    ht_jw_arr(w);
    for (size_t i = 0; i < plan->n_considered; i++) explain_entry(w, &plan->considered[i]);
    ht_jw_end(w, ']');
    ht_jw_key(w, "edges");
    ht_jw_arr(w);
    for (size_t i = 0; i < r->n_edges; i++) {
        ht_jw_obj(w);
        ht_jw_kstr(w, "from", r->edge[i].from);
        ht_jw_kstr(w, "to", r->edge[i].to);
        ht_jw_kuint(w, "fixedNs", r->edge[i].fixed_ns);
        ht_jw_kuint(w, "nsPerToken", r->edge[i].ns_per_token);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

/* Without a store: every phase as it will run, and why nothing is routed. */
static void explain_none(ht_jw *w, const ht_engine *e)
{
    ht_jw_key(w, "phases");
    ht_jw_arr(w);
    for (int p = 0; p < API_PHASES; p++) {
        const api__phase *x = &e->phase[p];
        ht_jw_obj(w);
        ht_jw_kstr(w, "phase", ht_phase_name(p));
        ht_jw_kstr(w, "decision", x->forced ? "forced" : "reference");
        ht_jw_kstr(w, "reason", x->forced ? "USER" : ht_reason_name(x->reason));
        ht_jw_kstr(w, "backend", x->unit->be->name);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
    ht_jw_key(w, "considered");
    ht_jw_arr(w);
    ht_jw_end(w, ']');
}

static int explain(ht_engine *e, ht_arena *a, uint32_t n_prompt, uint32_t n_new, bool greedy,
                   ht_jw *w, ht_err *err)
{
    struct api__route *r = e->route;
    ht_route_plan plan;
    ht_route_request q = {.n_prompt = n_prompt, .n_new = n_new};
    ht_jw_obj(w);
    ht_jw_kuint(w, "promptTokens", n_prompt);
    ht_jw_kuint(w, "newTokens", n_new);
    ht_jw_kbool(w, "store", r != NULL);
    ht_jw_kstr(w, "referenceQualified", api__ref_name(e->ref_state));
    if (r) {
        r->guard = ht_live_look(&r->live);
        fill(e, r, greedy, false, &q);
        HT_TRY(ht_route_choose(a, &q, r->entry, r->n, r->edge, r->n_edges, &plan, err));
        explain_plan(w, e, &plan);
    } else {
        explain_none(w, e);
    }
    ht_jw_end(w, '}');
    return 0;
}

int ht_engine_explain_route(ht_engine *e, uint32_t n_prompt, uint32_t n_new, int greedy,
                            char **json, ht_err *err)
{
    ht_arena *a = NULL;
    ht_buf b;
    ht_jw w;
    if (!e || !json)
        return HT_FAIL(err, HT_EARG, "ht_engine_explain_route: engine and json must be given");
    *json = NULL;
    if (n_prompt == 0) return HT_FAIL(err, HT_EARG, "a request of no tokens has no route");
    HT_TRY(api__enter(e, err));
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    int rc = ht_arena_new(&a, 0, err);
    if (!rc) rc = explain(e, a, n_prompt, n_new, greedy != 0, &w, err);
    if (!rc) rc = api__take_json(&b, json, err);
    ht_buf_done(&b);
    ht_arena_free(a);
    api__leave(e);
    return rc;
}
