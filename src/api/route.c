/* route.c - which engine runs a call: entries of the store's index whose exact scope is this model,
 * binary, machine and precision, chosen by route/plan.h; see route.h. */
#include "api/route.h"
#include "core/clock.h"
#include "core/map.h"
#include "core/opt.h"
#include "evid/env.h"
#include "evid/telemetry.h"
#include "route/store.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = API_UNITS - API_PHASES };
typedef struct {
    const char *backend; /* "cpu;isa=avx2;threads=2" */
    api__phase phase[API_PHASES];
} lane;
struct api__route {
    ht_arena *a;
    ht_store store;
    ht_route_entry *entry;
    ht_route_edge *edge;
    size_t n, n_edges;
    ht_scope want;
    char model_sha[HT_SHA256_HEX], tok_sha[HT_SHA256_HEX], tmpl_sha[HT_SHA256_HEX];
    char binary_sha[HT_SHA256_HEX], class_sha[HT_SHA256_HEX], state_sha[HT_SHA256_HEX];
    char instance[HT_INSTANCE], os[64];
    lane lane[LANES];
    size_t n_lanes;
    const char *engines[LANES + 2];
    api__phase base[API_PHASES];
    ht_arena *scratch; /* of the last choice: the receipt points into it */
};

static int hex_of(const void *p, size_t n, char hex[HT_SHA256_HEX], ht_err *err)
{
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(p, n, digest, err));
    ht_hex(digest, sizeof digest, hex);
    return 0;
}

static int hex_of_file(const char *path, uint64_t *bytes, char hex[HT_SHA256_HEX], ht_err *err)
{
    ht_map m;
    HT_TRY(ht_map_open(&m, path, err));
    int rc = hex_of(m.p, m.n, hex, err);
    *bytes = m.n;
    ht_map_close(&m);
    return rc;
}

/* modelPackSha256 (evidence.md 2.1): of the canonical list of the model's files. */
static int model_digest(const char *path, char hex[HT_SHA256_HEX], ht_err *err)
{
    char sha[HT_SHA256_HEX];
    uint64_t bytes;
    const char *slash = strrchr(path, '/');
    ht_buf b;
    ht_jw w;
    HT_TRY(hex_of_file(path, &bytes, sha, err));
    ht_buf_init(&b, 1 << 14);
    ht_jw_init(&w, &b, HT_JSON_CANON);
    ht_jw_arr(&w);
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "bytes", bytes);
    ht_jw_kstr(&w, "path", slash ? slash + 1 : path);
    ht_jw_kstr(&w, "sha256", sha);
    ht_jw_end(&w, '}');
    ht_jw_end(&w, ']');
    int rc = ht_buf_ok(&b, "model's name", err);
    if (!rc) rc = hex_of(b.p, b.n, hex, err);
    ht_buf_done(&b);
    return rc;
}

/* ---- who we are ------------------------------------------------------------------------------ */

static int read_machine(struct api__route *r, ht_err *err)
{
    char path[4096];
    uint8_t secret[HT_SECRET];
    const char *state = ht_env_get(HT_ENV_XDG_STATE_HOME), *home = ht_env_get(HT_ENV_HOME);
    ht_json *doc;
    ht_gpus *gpus = ht_arena_alloc(r->a, sizeof *gpus);
    if (!gpus) return HT_FAIL(err, HT_ENOMEM, "no memory for the machine's fingerprint");
    ht_gpus_read(gpus);
    const ht_machine_source here = {.root = "", .gpus = gpus};
    HT_TRY(ht_machine_read(r->a, &here, &doc, err));
    HT_TRY(ht_machine_sha256(doc, HT_MP_REJECT, r->class_sha, err));
    HT_TRY(ht_machine_sha256(doc, HT_MP_STALE, r->state_sha, err));
    (void)snprintf(r->os, sizeof r->os, "linux-%s",
                   ht_machine_leaf_text(r->a, ht_json_path(doc, "reject.osMajor")));
    int n = state  ? snprintf(path, sizeof path, "%s/hetero/instance.secret", state)
            : home ? snprintf(path, sizeof path, "%s/.local/state/hetero/instance.secret", home)
                   : -1;
    if (n < 0 || (size_t)n >= sizeof path)
        return HT_FAIL(err, HT_EARG, "no place for the installation's secret: HOME is not set");
    HT_TRY(ht_machine_secret(path, secret, err));
    return ht_machine_instance(&here, secret, r->instance, err);
}

static int read_identity(const ht_engine *e, struct api__route *r, ht_err *err)
{
    uint64_t bytes;
    const char *k = e->kv.name[0], *v = e->kv.name[1];
    HT_TRY(read_machine(r, err));
    HT_TRY(model_digest(e->path, r->model_sha, err));
    HT_TRY(hex_of(e->tmpl ? e->tmpl : "", e->tmpl ? strlen(e->tmpl) : 0, r->tmpl_sha, err));
    HT_TRY(hex_of_file("/proc/self/exe", &bytes, r->binary_sha, err));
    ht_hex(ht_tok_sha256(e->tok), HT_SHA256_BYTES, r->tok_sha);
    r->want = (ht_scope){.acc = "f32",
                         .act = api__act_name(e->act),
                         .kv = strcmp(k, v) ? "f16,f32" : k,
                         .weights = e->contract,
                         .model_sha = r->model_sha,
                         .tok_sha = r->tok_sha,
                         .tmpl_sha = r->tmpl_sha,
                         .binary_sha = r->binary_sha,
                         .class_sha = r->class_sha,
                         .instance = r->instance,
                         .os = r->os};
    return 0;
}

/* ---- lanes: a device for each admitted backend ----------------------------------------------- */

static bool set_phases(ht_engine *e, lane *l, const char *rep, api__unit *u, uint32_t ubatch)
{
    for (int p = 0; p < API_PHASES; p++) {
        l->phase[p] = e->phase[p];
        l->phase[p].unit = u;
        l->phase[p].ubatch = ubatch;
        if (!*rep || !strcmp(rep, l->phase[p].rep)) continue;
        if (!e->model->rep[1][0] || strcmp(rep, e->model->rep[1]) != 0) return false;
        l->phase[p].rep = e->model->rep[1];
        l->phase[p].flags = HT_ALT_REP;
    }
    return true;
}

/* Open "engine;key=value;..." as one more unit; false when this build or machine cannot, and
 * then the planner answers NO_ENGINE. */
static bool open_lane(ht_engine *e, struct api__route *r, const char *backend, ht_err *err)
{
    char name[32] = "", isa[16] = "", rep[32] = "", opts[64];
    long threads = e->threads, ubatch = e->ubatch;
    size_t n = strcspn(backend, ";");
    if (n >= sizeof name) return false;
    memcpy(name, backend, n);
    (void)snprintf(isa, sizeof isa, "%s", e->isa);
    for (const char *p = backend + n; *p == ';'; p += 1 + strcspn(p + 1, ";")) {
        if (sscanf(p, ";threads=%ld", &threads) == 1 || sscanf(p, ";ubatch=%ld", &ubatch) == 1 ||
            sscanf(p, ";isa=%15[a-z0-9]", isa) == 1 ||
            sscanf(p, ";prefill-rep=%31[^;]", rep) == 1 ||
            sscanf(p, ";decode-rep=%31[^;]", rep) == 1)
            continue;
        return false; /* a setting that this build does not know */
    }
    const ht_backend *be = ht_backend_find(name);
    /* The session's arrays are as long as the engine's own chunk. */
    if (!be || threads < 1 || threads > 4096 || ubatch < 1 || ubatch > (long)e->ubatch)
        return false;
    (void)snprintf(opts, sizeof opts, "threads=%ld%s%s", threads, isa[0] ? ",isa=" : "", isa);
    api__unit *u = &e->unit[e->n_units];
    ht_dev *dev = NULL;
    if (be->open(&dev, opts, err)) return false;
    *u = (api__unit){.be = be, .dev = dev};
    e->n_units++; /* from here on the engine closes it */
    lane *l = &r->lane[r->n_lanes];
    if (be->load(dev, e->model, err) || !set_phases(e, l, rep, u, (uint32_t)ubatch)) return false;
    l->backend = backend;
    r->engines[r->n_lanes++] = backend;
    return true;
}

static void open_lanes(ht_engine *e, struct api__route *r)
{
    for (size_t i = 0; i < r->n && r->n_lanes < LANES && e->n_units < API_UNITS; i++) {
        const ht_route_entry *t = &r->entry[i];
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
        if (k == r->n_lanes) (void)open_lane(e, r, t->scope.backend, &ignored);
    }
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
        rc =
            ht_store_routes(&r->store, r->state_sha, &r->entry, &r->n, &r->edge, &r->n_edges, &why);
    if (rc) {
        /* No store or an empty one is the usual case; one that does not verify admits nothing. */
        for (int p = 0; rc == HT_EGATE && p < API_PHASES; p++) e->phase[p].reason = reason;
        ht_arena_free(a);
        return rc == HT_ENOMEM ? HT_FAIL(err, rc, "%s", why.msg) : 0;
    }
    open_lanes(e, r);
    e->route = r;
    return 0;
}

void api__route_close(ht_engine *e)
{
    if (!e->route) return;
    ht_arena_free(e->route->scratch);
    ht_arena_free(e->route->a);
    e->route = NULL;
}

void api__route_reference(ht_engine *e)
{
    if (e->route) memcpy(e->phase, e->route->base, sizeof e->phase);
}

/* ---- before each call ------------------------------------------------------------------------ */

static void fill(const ht_engine *e, const struct api__route *r, ht_route_request *q)
{
    ht_telemetry now;
    ht_telemetry_take("", NULL, &now);
    const uint64_t avail = ht_mem_available();
    q->batch = 1;
    q->ctx = e->ctx;
    q->reference = "cpu";
    q->reference_qualified = true; /* its qualification is made on the spot: product.md 1 */
    q->engines = r->engines;
    memcpy(q->state_sha, r->state_sha, sizeof q->state_sha);
    q->guard_red = now.ac_online == 0;
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

int api__route_choose(ht_engine *e, uint32_t n_prompt, uint32_t n_new, bool greedy, bool spec,
                      ht_err *err)
{
    struct api__route *r = e->route;
    if (!r) return 0;
    ht_route_plan plan;
    ht_route_request q = {.n_prompt = n_prompt, .n_new = n_new};
    for (int p = 0; p < HT_PHASES; p++) {
        q.want[p] = r->want;
        q.want[p].sampler = greedy ? "greedy" : "sampled";
        q.want[p].spec = spec ? "lookup" : "off";
    }
    fill(e, r, &q);
    ht_arena_free(r->scratch);
    r->scratch = NULL;
    HT_TRY(ht_arena_new(&r->scratch, 0, err));
    HT_TRY(ht_route_choose(r->scratch, &q, r->entry, r->n, r->edge, r->n_edges, &plan, err));
    for (int p = 0; p < API_PHASES; p++) {
        e->phase[p] = r->base[p];
        e->phase[p].reason = plan.reason[p];
        if (!plan.entry[p]) continue;
        for (size_t k = 0; k < r->n_lanes; k++)
            if (strcmp(r->lane[k].backend, plan.engine[p]) == 0) e->phase[p] = r->lane[k].phase[p];
        e->phase[p].reason = HT_R_OK;
        e->phase[p].entry = plan.entry[p];
    }
    return 0;
}
