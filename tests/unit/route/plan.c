/* plan.c - the planner (product.md R2, R3; evidence.md 8, groups 20-23, 39, 44, 45): bucket edges,
 * every reason code, winners that turn with the map, the same answer for any order of entries. */
#include "route/plan.h"
#include "../evid/fixture.h"
#include <locale.h>
#include <pthread.h>
#include <time.h>

enum { N_BUCKETS = 4 };
static const uint32_t edge[N_BUCKETS][2] = {{1, 32}, {33, 128}, {129, 512}, {513, 2048}};
static const char *const engines[] = {"cpu", "fast", "slow", NULL};

static ht_scope scope_of(int phase, const char *backend, uint32_t lo, uint32_t hi)
{
    return (ht_scope){.phase = (uint8_t)phase,
                      .min_tokens = lo,
                      .max_tokens = hi,
                      .max_new = phase == HT_DECODE ? 64 : 0,
                      .batch_min = 1,
                      .batch_max = 1,
                      .ctx_max = 4096,
                      .acc = "f32",
                      .act = "f32",
                      .kv = "f16",
                      .weights = "f16",
                      .sampler = "greedy",
                      .spec = "off",
                      .backend = backend,
                      .model_sha = FX_SHA("1"),
                      .tok_sha = FX_SHA("2"),
                      .tmpl_sha = FX_SHA("3"),
                      .binary_sha = FX_SHA("4"),
                      .assets_sha = FX_SHA("5"),
                      .class_sha = FX_SHA("6"),
                      .instance = "hmac:x",
                      .os = "linux-6"};
}

static ht_route_entry row(int phase, const char *backend, uint32_t lo, uint32_t hi, uint64_t cost,
                          uint64_t ref)
{
    ht_err e = {0};
    ht_route_entry t = {.scope = scope_of(phase, backend, lo, hi),
                        .state = HT_ST_PROMOTED,
                        .bundle_id = FX_SHA("b"),
                        .state_sha = FX_SHA("7"),
                        .measured_unix = 1000,
                        .p50_ucb_ns = cost,
                        .ref_lcb_ns = ref,
                        .mem_peak = 1000};
    T_OK(ht_scope_sha256(&t.scope, t.scope_sha, &e), e);
    return t;
}

static ht_route_request ask(uint32_t n_prompt, uint32_t n_new)
{
    ht_route_request q = {.n_prompt = n_prompt,
                          .n_new = n_new,
                          .batch = 1,
                          .ctx = 4096,
                          .reference = "cpu",
                          .reference_qualified = true,
                          .engines = engines,
                          .state_sha = FX_SHA("7"),
                          .mem_known = true,
                          .mem_free = 10000,
                          .mem_reserve = 100,
                          .now_unix = 2000,
                          .max_age_s = 5000,
                          .min_gain_ppm = 1010000,
                          .expected_reuse = 1};
    for (int p = 0; p < HT_PHASES; p++) q.want[p] = scope_of(p, "cpu", 1, 1);
    return q;
}

typedef struct {
    ht_arena *a;
    ht_route_plan p;
    int rc;
    ht_err e;
} answer;
static void choose(answer *r, const ht_route_request *q, const ht_route_entry *t, size_t n,
                   const ht_route_edge *edges, size_t n_edges)
{
    ht_err e = {0};
    *r = (answer){0};
    T_OK(ht_arena_new(&r->a, 0, &e), e);
    r->rc = ht_route_choose(r->a, q, t, n, edges, n_edges, &r->p, &r->e);
}

static const ht_route_edge both_ways[] = {
    {"cpu", "fast", 1, 10, NULL}, {"fast", "cpu", 1, 10, NULL},  {"cpu", "slow", 1, 10, NULL},
    {"slow", "cpu", 1, 10, NULL}, {"fast", "slow", 1, 10, NULL}, {"slow", "fast", 1, 10, NULL}};
enum { N_EDGES = 6 };

/* R2: one token on either side of every bucket edge; each bucket has an engine of its own. */
T_CASE(plan, bucket_edges)
{
    static const char *const who[N_BUCKETS] = {"fast", "slow", "fast", "slow"};
    ht_route_entry t[N_BUCKETS];
    for (int i = 0; i < N_BUCKETS; i++)
        t[i] = row(HT_PREFILL, who[i], edge[i][0], edge[i][1], 1000000, 2000000);
    for (int i = 0; i < N_BUCKETS; i++)
        for (uint32_t n = edge[i][0]; n <= edge[i][1]; n += n == edge[i][0] ? edge[i][1] - n : 1) {
            ht_route_request q = ask(n, 0);
            answer r;
            choose(&r, &q, t, N_BUCKETS, both_ways, N_EDGES);
            T_OK(r.rc, r.e);
            T_EQ_STR(r.p.engine[HT_PREFILL], who[i]);
            T_CHECK(r.p.entry[HT_PREFILL] == &t[i], "%u tokens: another bucket's entry", n);
            ht_arena_free(r.a);
        }
    ht_route_request q = ask(2049, 0); /* beyond the largest: no extrapolation */
    answer r;
    choose(&r, &q, t, N_BUCKETS, both_ways, N_EDGES);
    T_EQ_STR(r.p.engine[HT_PREFILL], "cpu");
    T_EQ_STR(ht_reason_name(r.p.reason[HT_PREFILL]), "BUCKET");
    ht_arena_free(r.a);
}

/* A map that inverts the winner inverts the route; without the entry the reference runs, and
 * says why. */
T_CASE(plan, winner_turns_with_the_map)
{
    ht_route_request q = ask(300, 16);
    for (int flip = 0; flip < 2; flip++) {
        ht_route_entry t[2] = {row(HT_PREFILL, "fast", 129, 512, flip ? 900 : 500, 100000),
                               row(HT_PREFILL, "slow", 129, 512, flip ? 500 : 900, 100000)};
        answer r;
        choose(&r, &q, t, 2, both_ways, N_EDGES);
        T_OK(r.rc, r.e);
        T_EQ_STR(r.p.engine[HT_PREFILL], flip ? "slow" : "fast");
        T_EQ_STR(r.p.engine[HT_DECODE], "cpu");
        T_EQ_STR(ht_reason_name(r.p.reason[HT_DECODE]), "NO_EVIDENCE");
        T_EQ_INT(r.p.n_considered, 2);
        ht_arena_free(r.a);
        choose(&r, &q, t, 0, both_ways, N_EDGES);
        T_OK(r.rc, r.e);
        T_EQ_STR(r.p.engine[HT_PREFILL], "cpu");
        T_EQ_STR(ht_reason_name(r.p.reason[HT_PREFILL]), "NO_EVIDENCE");
        ht_arena_free(r.a);
    }
}

static void set_state(ht_route_entry *t, ht_route_request *q, int k)
{
    static char sha[HT_SHA256_HEX];
    memset(sha, 'f', 64);
    switch (k) {
    case HT_R_OTHER_MODEL: q->want[0].model_sha = sha; break;
    case HT_R_OTHER_TOKENIZER: q->want[0].tok_sha = sha; break;
    case HT_R_OTHER_TEMPLATE: q->want[0].tmpl_sha = sha; break;
    case HT_R_OTHER_PRECISION: q->want[0].kv = "f32"; break;
    case HT_R_OTHER_SAMPLER: q->want[0].sampler = "sampled"; break;
    case HT_R_OTHER_SPEC: q->want[0].spec = "lookup"; break;
    case HT_R_OTHER_BINARY: q->want[0].binary_sha = sha; break;
    case HT_R_OTHER_ASSETS: q->want[0].assets_sha = sha; break;
    case HT_R_OTHER_MACHINE: q->want[0].class_sha = sha; break;
    case HT_R_OTHER_OS: q->want[0].os = "linux-5"; break;
    case HT_R_BUCKET: q->n_prompt = 513; break;
    case HT_R_BATCH: q->batch = 2; break;
    case HT_R_CONTEXT: q->ctx = 8192; break;
    case HT_R_NOT_PROMOTED: t->state = HT_ST_QUALIFIED; break;
    case HT_R_BAD_SIGNATURE:
    case HT_R_BAD_DIGEST:
    case HT_R_OTHER_POLICY: t->checks = (uint8_t)k; break;
    case HT_R_EXPIRED: q->now_unix = 7000; break;
    case HT_R_TOMBSTONED: t->tombstoned = true; break;
    case HT_R_QUARANTINED: t->state = HT_ST_QUARANTINED; break;
    case HT_R_STALE: memset(q->state_sha, '9', 64); break;
    case HT_R_GUARD_RED: q->guard_red = true; break;
    case HT_R_MEMORY: q->mem_known = false; break;
    case HT_R_MARGIN: t->p50_ucb_ns = t->ref_lcb_ns; break;
    case HT_R_COSTLIER: break; /* needs a second entry: costlier() */
    case HT_R_NEGATIVE: t->state = HT_ST_NEGATIVE; break;
    case HT_R_NO_ENGINE: q->engines = engines + 3; break;
    default: break;
    }
}

/* Every reason that one entry can meet, each with its twin that is taken. */
T_CASE(plan, reasons)
{
    unsigned seen = 0;
    for (int k = HT_R_OTHER_MODEL; k < HT_R_NOT_QUALIFIED; k++) {
        ht_route_entry t = row(HT_PREFILL, "fast", 129, 512, 500, 100000);
        ht_route_request q = ask(512, 0);
        answer r;
        choose(&r, &q, &t, 1, both_ways, N_EDGES);
        T_EQ_STR(r.p.engine[HT_PREFILL], "fast");
        T_EQ_INT(r.p.considered[0].reason, HT_R_OK);
        ht_arena_free(r.a);
        seen++;
        if (k == HT_R_COSTLIER) continue;
        set_state(&t, &q, k);
        choose(&r, &q, &t, 1, both_ways, k == HT_R_NO_EDGE ? 0 : N_EDGES);
        T_OK(r.rc, r.e);
        T_EQ_STR(r.p.engine[HT_PREFILL], "cpu");
        T_EQ_STR(ht_reason_name(r.p.reason[HT_PREFILL]), ht_reason_name(k));
        T_EQ_STR(ht_reason_name(r.p.considered[0].reason), ht_reason_name(k));
        ht_arena_free(r.a);
    }
    T_EQ_INT(seen,
             HT_REASONS - 4); /* all but OK, NO_EVIDENCE and NOT_QUALIFIED, tested elsewhere */
}

T_CASE(plan, memory)
{
    static const struct {
        uint64_t peak, free, reserve;
        bool known, taken;
    } all[] = {{1000, 1100, 100, true, true}, {1000, 1099, 100, true, false},
               {1000, 50, 100, true, false},  {1000, 0, 0, true, false},
               {0, 10000, 0, true, false},    {1000, 10000, 0, false, false}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ht_route_entry t = row(HT_PREFILL, "fast", 129, 512, 500, 100000);
        ht_route_request q = ask(512, 0);
        answer r;
        t.mem_peak = all[i].peak;
        q.mem_free = all[i].free;
        q.mem_reserve = all[i].reserve;
        q.mem_known = all[i].known;
        choose(&r, &q, &t, 1, both_ways, N_EDGES);
        T_EQ_STR(r.p.engine[HT_PREFILL], all[i].taken ? "fast" : "cpu");
        ht_arena_free(r.a);
    }
}

/* Hand-offs are priced and a warm-up is shared; a missing edge is no free one. */
T_CASE(plan, prices)
{
    ht_route_entry t[2] = {row(HT_PREFILL, "fast", 129, 512, 1000, 3000),
                           row(HT_DECODE, "slow", 129, 512, 100, 300)};
    ht_route_request q = ask(200, 10);
    const ht_route_edge costly[] = {{"fast", "slow", 0, 1500, NULL},
                                    {"fast", "cpu", 100, 0, NULL},
                                    {"cpu", "slow", 100, 0, NULL}};
    answer r;
    choose(&r, &q, t, 2, costly, 3);
    T_EQ_STR(r.p.engine[HT_PREFILL], "fast");
    T_EQ_STR(r.p.engine[HT_DECODE], "slow");
    T_EQ_INT(r.p.cost_ns, 1000 + 10 * 100 + 1500);
    T_EQ_INT(r.p.ref_cost_ns, 3000 + 10 * 300);
    ht_arena_free(r.a);
    choose(&r, &q, t, 2, costly + 1,
           2); /* no edge between them, and the others cost more than they gain */
    T_EQ_STR(r.p.engine[HT_PREFILL], "cpu");
    T_EQ_STR(r.p.engine[HT_DECODE], "cpu");
    ht_arena_free(r.a);
    t[0].warmup_ns = 1000000;
    choose(&r, &q, t, 1, both_ways, N_EDGES);
    T_EQ_STR(ht_reason_name(r.p.reason[HT_PREFILL]), "MARGIN");
    ht_arena_free(r.a);
    q.expected_reuse = 1000;
    choose(&r, &q, t, 1, both_ways, N_EDGES);
    T_EQ_STR(r.p.engine[HT_PREFILL], "fast");
    ht_arena_free(r.a);
}

/* Fail closed: without a qualified reference, or where policy wants an error, there is no route. */
T_CASE(plan, fall_back)
{
    ht_route_request q = ask(100, 4);
    answer r;
    q.reference_qualified = false;
    choose(&r, &q, NULL, 0, NULL, 0);
    T_ERR(r.rc, HT_EGATE, r.e, "NOT_QUALIFIED");
    ht_arena_free(r.a);
    q.reference_qualified = true;
    q.error_on_unknown = true;
    choose(&r, &q, NULL, 0, NULL, 0);
    T_ERR(r.rc, HT_EGATE, r.e, "onUnknown");
    ht_arena_free(r.a);
}

T_CASE(plan, states)
{
    static const int good[][2] = {
        {HT_ST_NOMINATED, HT_ST_CANDIDATE},   {HT_ST_CANDIDATE, HT_ST_QUALIFIED},
        {HT_ST_CANDIDATE, HT_ST_NEGATIVE},    {HT_ST_QUALIFIED, HT_ST_PROMOTED},
        {HT_ST_QUALIFIED, HT_ST_REVOKED},     {HT_ST_PROMOTED, HT_ST_STALE},
        {HT_ST_PROMOTED, HT_ST_QUARANTINED},  {HT_ST_PROMOTED, HT_ST_REVOKED},
        {HT_ST_STALE, HT_ST_PROMOTED},        {HT_ST_STALE, HT_ST_REVOKED},
        {HT_ST_QUARANTINED, HT_ST_CANDIDATE}, {HT_ST_QUARANTINED, HT_ST_REVOKED}};
    unsigned edges = 0;
    for (int a = -1; a <= HT_STATES; a++)
        for (int b = -1; b <= HT_STATES; b++) {
            bool want = false;
            for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
                want |= good[i][0] == a && good[i][1] == b;
            T_CHECK(ht_state_may(a, b) == want, "%d to %d", a, b);
            edges += want;
        }
    T_EQ_INT(edges, 12);
}

/* A route that is good and not the best one says so; the dearest of two measured edges counts, and
 * none that was measured for another model. */
T_CASE(plan, costlier_and_edges)
{
    ht_route_entry t[2] = {row(HT_PREFILL, "fast", 129, 512, 500, 100000),
                           row(HT_PREFILL, "slow", 129, 512, 900, 100000)};
    ht_route_request q = ask(300, 0);
    ht_route_edge more[N_EDGES + 1];
    ht_scope mine = scope_of(HT_PREFILL, "fast", 1, 1), other = mine;
    answer r;
    choose(&r, &q, t, 2, both_ways, N_EDGES);
    for (size_t i = 0; i < 2; i++) {
        const bool taken = strcmp(r.p.considered[i].scope_sha, t[0].scope_sha) == 0;
        T_EQ_STR(ht_reason_name(r.p.considered[i].reason), taken ? "OK" : "COSTLIER");
        T_CHECK(r.p.considered[i].entry == &t[taken ? 0 : 1], "another entry");
    }
    T_EQ_INT(r.p.edge_ns, 300 + 10);
    ht_arena_free(r.a);
    memcpy(more, both_ways, sizeof both_ways);
    more[N_EDGES] = (ht_route_edge){"fast", "cpu", 200, 0, &mine};
    other.model_sha = FX_SHA("9");
    for (int k = 0; k < 2; k++) {
        if (k) more[N_EDGES].scope = &other;
        choose(&r, &q, t, 2, more, N_EDGES + 1);
        T_EQ_STR(r.p.engine[HT_PREFILL], k ? "fast" : "slow"); /* 60,000 ns make fast the dearer */
        ht_arena_free(r.a);
    }
    choose(&r, &q, t, 1, more + N_EDGES, 1); /* the only edge is of another model */
    T_EQ_STR(ht_reason_name(r.p.reason[HT_PREFILL]), "NO_EDGE");
    ht_arena_free(r.a);
}

/* The pair that ran last stays until another is better by the margin, and goes when it no longer
 * gains. */
T_CASE(plan, hysteresis)
{
    static const struct {
        uint64_t other;
        const char *want;
    } all[] = {{1000, "slow"}, {995, "slow"}, {991, "slow"}, {990, "fast"}, {500, "fast"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ht_route_entry t[2] = {row(HT_PREFILL, "fast", 129, 512, all[i].other, 100000),
                               row(HT_PREFILL, "slow", 129, 512, 1000, 100000)};
        static const ht_route_edge free_edges[] = {{"fast", "cpu", 0, 0, NULL},
                                                   {"slow", "cpu", 0, 0, NULL}};
        ht_route_request q = ask(300, 0);
        answer r;
        q.current[HT_PREFILL] = t[1].scope_sha;
        q.current[HT_DECODE] = "";
        choose(&r, &q, t, 2, free_edges, 2);
        T_EQ_STR(r.p.engine[HT_PREFILL], all[i].want);
        ht_arena_free(r.a);
        q.current[HT_PREFILL] = ""; /* the reference ran last: the cheaper one is taken */
        choose(&r, &q, t, 2, free_edges, 2);
        if (all[i].other < 1000) T_EQ_STR(r.p.engine[HT_PREFILL], "fast");
        ht_arena_free(r.a);
        t[1].ref_lcb_ns = 1000; /* what ran last gains nothing any more */
        q.current[HT_PREFILL] = t[1].scope_sha;
        choose(&r, &q, t, 2, free_edges, 2);
        T_EQ_STR(r.p.engine[HT_PREFILL], "fast");
        ht_arena_free(r.a);
    }
}

/* A fixture policy may admit a loss; the smallest one is taken. */
T_CASE(plan, loss_under_a_fixture)
{
    ht_route_entry t[2] = {row(HT_PREFILL, "fast", 129, 512, 3000, 1000),
                           row(HT_PREFILL, "slow", 129, 512, 2000, 1000)};
    ht_route_request q = ask(300, 0);
    answer r;
    q.min_gain_ppm = 1;
    choose(&r, &q, t, 2, both_ways, N_EDGES);
    T_EQ_STR(r.p.engine[HT_PREFILL], "slow");
    ht_arena_free(r.a);
    q.min_gain_ppm = 1000000;
    choose(&r, &q, t, 2, both_ways, N_EDGES);
    T_EQ_STR(ht_reason_name(r.p.reason[HT_PREFILL]), "MARGIN");
    ht_arena_free(r.a);
}

/* ---- group 45: the same bytes whatever the order, the locale, the time zone, the thread ------ */

/* Make entry t one that reason k refuses in the request of any_order. */
static void spoil(ht_route_entry *t, int k)
{
    ht_scope *s = &t->scope;
    ht_err e = {0};
    switch (k) {
    case HT_R_OTHER_MODEL: s->model_sha = FX_SHA("f"); break;
    case HT_R_OTHER_TOKENIZER: s->tok_sha = FX_SHA("f"); break;
    case HT_R_OTHER_TEMPLATE: s->tmpl_sha = FX_SHA("f"); break;
    case HT_R_OTHER_PRECISION: s->act = "q8"; break;
    case HT_R_OTHER_SAMPLER: s->sampler = "sampled"; break;
    case HT_R_OTHER_SPEC: s->spec = "lookup"; break;
    case HT_R_OTHER_BINARY: s->binary_sha = FX_SHA("f"); break;
    case HT_R_OTHER_ASSETS: s->assets_sha = FX_SHA("f"); break;
    case HT_R_OTHER_MACHINE: s->instance = "hmac:y"; break;
    case HT_R_OTHER_OS: s->os = "linux-5"; break;
    case HT_R_BUCKET: s->max_tokens = 299; break;
    case HT_R_BATCH: s->batch_min = s->batch_max = 2; break;
    case HT_R_CONTEXT: s->ctx_max = 4095; break;
    case HT_R_NOT_PROMOTED: t->state = HT_ST_QUALIFIED; break;
    case HT_R_BAD_SIGNATURE:
    case HT_R_BAD_DIGEST:
    case HT_R_OTHER_POLICY: t->checks = (uint8_t)k; break;
    case HT_R_EXPIRED: t->measured_unix = 3000; break; /* of the future */
    case HT_R_TOMBSTONED: t->tombstoned = true; break;
    case HT_R_QUARANTINED: t->state = HT_ST_QUARANTINED; break;
    case HT_R_STALE: memset(t->state_sha, '9', 64); break;
    case HT_R_MEMORY: t->mem_peak = 1 << 20; break;
    case HT_R_NO_EDGE: s->backend = s->phase ? "atoll" : "island"; break;
    case HT_R_MARGIN: t->p50_ucb_ns = 100 * t->ref_lcb_ns; break;
    case HT_R_COSTLIER: t->p50_ucb_ns += 1000; break;
    case HT_R_NEGATIVE: t->state = HT_ST_NEGATIVE; break;
    case HT_R_NO_ENGINE: s->backend = "nowhere"; break;
    default: break;
    }
    T_OK(ht_scope_sha256(s, t->scope_sha, &e), e);
}

enum { O_ENTRIES = 240, O_VARIANTS = 4, O_THREADS = 4 };
typedef struct {
    ht_route_entry entry[O_ENTRIES];
    ht_route_request q[O_VARIANTS]; /* plain, guard red, reference not qualified, empty index */
    size_t n[O_VARIANTS];
    ht_buf want[O_VARIANTS]; /* the answer's bytes */
} order_test;

/* The answer as bytes. */
static void digest(int rc, const ht_err *e, const ht_route_plan *p, ht_buf *b)
{
    ht_buf_fmt(b, "%d %s;", rc, rc ? e->msg : "");
    for (int i = 0; i < HT_PHASES; i++)
        ht_buf_fmt(b, "%s %s %s;", p->engine[i], ht_reason_name(p->reason[i]),
                   p->entry[i] ? p->entry[i]->scope_sha : "-");
    ht_buf_fmt(b, "%llu %llu %llu", (unsigned long long)p->cost_ns,
               (unsigned long long)p->ref_cost_ns, (unsigned long long)p->edge_ns);
    for (size_t i = 0; i < p->n_considered; i++) {
        const ht_considered *k = &p->considered[i];
        const char end[4] = {';', (char)('a' + k->phase), (char)('A' + k->reason), 0};
        ht_buf_add(b, k->scope_sha, HT_SHA256_HEX - 1); /* fmt would take most of the time */
        ht_buf_add(b, k->bundle_id, HT_SHA256_HEX - 1);
        ht_buf_str(b, end);
    }
}

/* One run over a shuffled copy; false when the bytes differ. */
static bool same_answer(order_test *o, ht_route_entry *copy, unsigned variant, uint64_t *rng)
{
    const size_t n = o->n[variant];
    ht_route_plan p;
    ht_arena *a = NULL;
    ht_err e = {0};
    ht_buf b;
    if (ht_arena_new(&a, 0, &e)) return false;
    for (size_t i = n; i > 1; i--) { /* one swap each: the copy stays shuffled from run to run */
        const size_t j = t_rand(rng) % i;
        const ht_route_entry x = copy[i - 1];
        copy[i - 1] = copy[j];
        copy[j] = x;
    }
    const int rc = ht_route_choose(a, &o->q[variant], copy, n, both_ways, N_EDGES, &p, &e);
    ht_buf_init(&b, 0);
    digest(rc, &e, &p, &b);
    const bool same = b.n == o->want[variant].n && memcmp(b.p, o->want[variant].p, b.n) == 0;
    ht_buf_done(&b);
    ht_arena_free(a);
    return same;
}

static void make_order_test(order_test *o)
{
    static const char *const known[] = {"cpu", "fast", "slow", "island", "atoll", NULL};
    const int kinds = HT_R_NOT_QUALIFIED + 1;
    for (int i = 0; i < O_ENTRIES; i++) {
        const int phase = i / kinds % 2;
        o->entry[i] = row(phase, i % 2 ? "fast" : "slow", 129, (uint32_t)(512 + i),
                          500 + (uint64_t)i % 7, 1000000);
        spoil(&o->entry[i], i % kinds);
    }
    for (int v = 0; v < O_VARIANTS; v++) {
        o->q[v] = ask(300, 16);
        o->q[v].engines = known;
        o->n[v] = v == 3 ? 0 : O_ENTRIES;
    }
    o->q[1].guard_red = true;
    o->q[2].guard_red = true;
    o->q[2].reference_qualified = false;
}

typedef struct {
    order_test *o;
    uint64_t seed;
    unsigned rounds, wrong;
} order_job;
static void *order_thread(void *arg)
{
    order_job *job = arg;
    ht_route_entry *copy = malloc(sizeof job->o->entry);
    uint64_t rng = job->seed;
    if (!copy) return NULL;
    memcpy(copy, job->o->entry, sizeof job->o->entry);
    for (unsigned k = 0; k < job->rounds; k++)
        job->wrong += !same_answer(job->o, copy, k % O_VARIANTS, &rng);
    free(copy);
    return NULL;
}

/* Which reasons the answers name, by code. */
static void collect(const order_test *o, bool seen[HT_REASONS])
{
    for (int v = 0; v < O_VARIANTS; v++) {
        answer r;
        choose(&r, &o->q[v], o->entry, o->n[v], both_ways, N_EDGES);
        for (size_t i = 0; i < r.p.n_considered; i++) seen[r.p.considered[i].reason] = true;
        for (int i = 0; i < HT_PHASES; i++) seen[r.p.reason[i]] = true;
        if (r.rc && strstr(r.e.msg, "NOT_QUALIFIED")) seen[HT_R_NOT_QUALIFIED] = true;
        ht_arena_free(r.a);
    }
}

T_CASE_SECONDS(plan, same_bytes_everywhere, 600)
{
    static const char *const locale[] = {"C", "C.UTF-8", "POSIX", "de_DE.UTF-8", "tr_TR.UTF-8"};
    static const char *const zone[] = {"UTC", "Asia/Kolkata", "America/St_Johns", "NZ", "X-25:59"};
    static order_test o;
    bool seen[HT_REASONS] = {false};
    unsigned runs = 0;
    uint64_t rng = 5;
    make_order_test(&o);
    collect(&o, seen);
    for (int k = 0; k < HT_R_ROUTE_FAILED; k++)
        T_CHECK(seen[k], "no answer names %s", ht_reason_name(k));
    for (int v = 0; v < O_VARIANTS; v++) {
        answer r;
        choose(&r, &o.q[v], o.entry, o.n[v], both_ways, N_EDGES);
        ht_buf_init(&o.want[v], 0);
        digest(r.rc, &r.e, &r.p, &o.want[v]);
        ht_arena_free(r.a);
    }
    ht_route_entry *copy = malloc(sizeof o.entry);
    memcpy(copy, o.entry, sizeof o.entry);
    for (unsigned k = 0; k < 20000; k++, runs++) {
        if (k % 100 == 0) { /* names that are not installed leave the locale as it was */
            (void)setlocale(LC_ALL, locale[k / 100 % 5]);
            T_EQ_INT(setenv("TZ", zone[k / 500 % 5], 1), 0);
            tzset();
        }
        T_CHECK(same_answer(&o, copy, k % O_VARIANTS, &rng), "run %u differs", k);
    }
    free(copy);
    order_job job[O_THREADS];
    pthread_t thread[O_THREADS];
    for (unsigned i = 0; i < O_THREADS; i++) {
        job[i] = (order_job){&o, 100 + i, 20000, 0};
        T_EQ_INT(pthread_create(&thread[i], NULL, order_thread, &job[i]), 0);
    }
    for (unsigned i = 0; i < O_THREADS; i++) {
        T_EQ_INT(pthread_join(thread[i], NULL), 0);
        T_EQ_INT(job[i].wrong, 0);
        runs += job[i].rounds;
    }
    T_EQ_INT(runs, 100000);
    for (int v = 0; v < O_VARIANTS; v++) ht_buf_done(&o.want[v]);
}
