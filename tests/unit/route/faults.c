/* faults.c - every allocation of the store, the planner and the receipt log fails once: an error
 * with a text, nothing leaked, and the files are as sound as before. */
#include "../evid/fixture.h"
#include "route/rlog.h"
#include "route/store.h"

typedef struct {
    fx f;
    ht_trust t;
    const char *store, *log, *key;
    ht_json *doc;
} world;

static void begin(world *w)
{
    ht_err e = {0};
    ht_store s;
    char id[HT_SHA256_HEX];
    ht_key *k[3] = {fx_key(2), fx_key(3), fx_key(4)};
    const ht_key *keys[3] = {k[0], k[1], k[2]};
    fx_init(&w->f);
    fx_build(&w->f);
    fx_trust(&w->f, &w->t);
    w->store = fx_fmt(&w->f, "%s/store", t_tmp());
    w->log = fx_fmt(&w->f, "%s/log", t_tmp());
    w->key = fx_fmt(&w->f, "%s/receipt.pem", t_tmp());
    const char *bundle = fx_fmt(&w->f, "%s/bundle", t_tmp());
    fx_seal(&w->f, bundle, id);
    T_OK(ht_store_init(w->store, &w->t, fx_policy(&w->f), &e), e);
    T_OK(ht_store_open(w->f.a, w->store, FX_NOW, &s, &e), e);
    T_OK(ht_store_promote(&s, bundle, keys, 3, id, &e), e);
    for (int i = 0; i < 3; i++) ht_key_free(k[i]);
    ht_key *r = fx_key(6);
    T_OK(ht_key_save(r, w->key, &e), e);
    ht_key_free(r);
    static const char text[] = "{\"nOut\":1,\"schema\":\"hetero/receipt/1\"}";
    T_OK(ht_json_parse(w->f.a, text, sizeof text - 1, 0, "receipt", &w->doc, &e), e);
}

/* Open the store, load its rows, plan a request, renew the index. */
static int route_once(world *w, ht_err *e)
{
    static const char *const engines[] = {"cpu;threads=2", NULL};
    ht_arena *a = NULL;
    ht_store s;
    ht_route_entry *t;
    ht_route_edge *edge;
    ht_route_plan p;
    size_t n, n_edges;
    ht_key *k = NULL;
    HT_TRY(ht_arena_new(&a, 0, e));
    int rc = ht_store_open(a, w->store, FX_NOW, &s, e);
    if (!rc) rc = ht_store_routes(&s, FX_SHA("0"), &t, &n, &edge, &n_edges, e);
    if (!rc) {
        ht_route_request q = {.want = {w->f.scope[1], w->f.scope[0]},
                              .n_prompt = 300,
                              .n_new = 4,
                              .batch = 1,
                              .ctx = 512,
                              .reference = "cpu",
                              .reference_qualified = true,
                              .engines = engines,
                              .mem_known = true,
                              .mem_free = 1 << 30,
                              .now_unix = FX_NOW,
                              .max_age_s = 1 << 30,
                              .min_gain_ppm = 1000000};
        rc = ht_route_choose(a, &q, t, n, edge, n_edges, &p, e);
    }
    static const uint8_t seed[32] = {4};
    if (!rc) rc = ht_key_from_seed(&k, seed, e);
    const ht_key *key = k;
    if (!rc) rc = ht_store_renew(&s, &key, 1, e);
    ht_key_free(k);
    ht_arena_free(a);
    return rc;
}

/* Open the log, add, read, sign, close, check. */
static int keep_once(world *w, ht_err *e)
{
    static ht_rlog_report rep;
    ht_rlog *r = NULL;
    char *line = NULL, *again = NULL;
    uint64_t seq = 0;
    HT_TRY(ht_rlog_open(&r, w->log, w->key, 2, 3600, e));
    int rc = ht_rlog_add(r, w->doc, &seq, &line, e);
    if (!rc) rc = ht_rlog_get(r, seq, &again, e);
    if (!rc && strcmp(line, again) != 0) rc = HT_EFORMAT;
    if (!rc) rc = ht_rlog_sign(r, e);
    ht_mem_free(line);
    ht_mem_free(again);
    ht_rlog_close(r);
    if (!rc) rc = ht_rlog_check(w->log, &w->t, FX_NOW, NULL, NULL, &rep, e);
    /* A signature that could not be checked for want of memory counts as bad: it fails closed. */
    if (!rc && rep.n_faults)
        return HT_FAIL(e, HT_EGATE, "%llu faults", (unsigned long long)rep.n_faults);
    return rc;
}

static void walk(world *w, int (*once)(world *, ht_err *))
{
    ht_rlog_report rep;
    uint64_t n = 0;
    for (int rc = HT_ENOMEM; rc != 0;) {
        ht_err e = {0};
        /* A log of its own for each try: one that grows would need ever more. */
        w->log = fx_fmt(&w->f, "%s/log%llu", t_tmp(), (unsigned long long)n);
        const uint64_t live = ht_alloc_live();
        ht_alloc_fail_at(++n);
        rc = once(w, &e);
        ht_alloc_fail_at(0);
        T_CHECK(rc == 0 || e.msg[0], "allocation %llu: no text", (unsigned long long)n);
        T_CHECK(rc == 0 || rc == HT_ENOMEM || rc == HT_EGATE || rc == HT_EIO,
                "allocation %llu: %d %s", (unsigned long long)n, rc, e.msg);
        T_EQ_INT(ht_alloc_live(), live);
        T_CHECK(n < 20000, "no end of allocations");
    }
    T_CHECK(n > 20, "only %llu allocations", (unsigned long long)n);
    ht_err e = {0};
    T_OK(once(w, &e), e); /* and what lies on the disk is whole */
    if (once == keep_once) {
        T_OK(ht_rlog_check(w->log, &w->t, FX_NOW, NULL, NULL, &rep, &e), e);
        T_EQ_INT(rep.n_faults, 0);
    }
}

T_CASE_SECONDS(faults, routes, 300)
{
    world w;
    begin(&w);
    walk(&w, route_once);
    fx_done(&w.f);
}

T_CASE_SECONDS(faults, receipts, 300)
{
    world w;
    begin(&w);
    walk(&w, keep_once);
    fx_done(&w.f);
}
