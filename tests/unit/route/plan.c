/* plan.c - the planner (product.md R2, R3; evidence.md 8, groups 20-23, 39, 44, 45): bucket edges,
 * every reason code, winners that turn with the map, the same answer for any order of entries. */
#include "route/plan.h"
#include "../evid/fixture.h"

enum { N_BUCKETS = 4, N_MAX = 300 };
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

static const ht_route_edge both_ways[] = {{"cpu", "fast", 1, 10},  {"fast", "cpu", 1, 10},
                                          {"cpu", "slow", 1, 10},  {"slow", "cpu", 1, 10},
                                          {"fast", "slow", 1, 10}, {"slow", "fast", 1, 10}};
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
        ht_arena_free(r.a);
        set_state(&t, &q, k);
        choose(&r, &q, &t, 1, both_ways, k == HT_R_NO_EDGE ? 0 : N_EDGES);
        T_OK(r.rc, r.e);
        T_EQ_STR(r.p.engine[HT_PREFILL], "cpu");
        T_EQ_STR(ht_reason_name(r.p.reason[HT_PREFILL]), ht_reason_name(k));
        seen++;
        ht_arena_free(r.a);
    }
    T_EQ_INT(seen,
             HT_REASONS - 3); /* all but OK, NO_EVIDENCE and NOT_QUALIFIED, tested elsewhere */
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
    const ht_route_edge costly[] = {
        {"fast", "slow", 0, 1500}, {"fast", "cpu", 100, 0}, {"cpu", "slow", 100, 0}};
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

/* The answer as bytes. */
static void digest(const ht_route_plan *p, ht_buf *b)
{
    for (int i = 0; i < HT_PHASES; i++)
        ht_buf_fmt(b, "%s %s %s;", p->engine[i], ht_reason_name(p->reason[i]),
                   p->entry[i] ? p->entry[i]->scope_sha : "-");
    ht_buf_fmt(b, "%llu %llu", (unsigned long long)p->cost_ns, (unsigned long long)p->ref_cost_ns);
    for (size_t i = 0; i < p->n_considered; i++)
        ht_buf_fmt(b, ";%s %u %u", p->considered[i].scope_sha, p->considered[i].phase,
                   p->considered[i].reason);
}

/* Group 45: 200 entries that meet every check, shuffled: the same bytes each time. */
T_CASE_SECONDS(plan, any_order, 300)
{
    static ht_route_entry t[N_MAX], shuffled[N_MAX];
    char name[N_MAX][16];
    uint64_t rng = 5;
    size_t n = 200;
    const unsigned rounds = t_full() ? 100000 : 2000;
    for (size_t i = 0; i < n; i++) {
        snprintf(name[i], sizeof name[i], "e%zu", i);
        t[i] = row((int)(i % 2),
                   i % 5   ? name[i]
                   : i % 2 ? "fast"
                           : "slow",
                   129, (uint32_t)(512 + i), 500 + i % 7, 100000);
        ht_route_request unused = ask(512, 0);
        set_state(&t[i], &unused, HT_R_OTHER_MODEL + (int)(i % 27));
    }
    ht_route_request q = ask(300, 16);
    ht_buf first, b;
    ht_buf_init(&first, 0);
    ht_buf_init(&b, 0);
    for (unsigned k = 0; k < rounds; k++) {
        answer r;
        memcpy(shuffled, t, sizeof t);
        for (size_t i = n - 1; i; i--) {
            size_t j = t_rand(&rng) % (i + 1);
            ht_route_entry x = shuffled[i];
            shuffled[i] = shuffled[j];
            shuffled[j] = x;
        }
        choose(&r, &q, shuffled, n, both_ways, N_EDGES);
        T_OK(r.rc, r.e);
        ht_buf_clear(&b);
        digest(&r.p, k ? &b : &first);
        ht_arena_free(r.a);
        T_CHECK(k == 0 || (b.n == first.n && memcmp(b.p, first.p, b.n) == 0), "round %u differs",
                k);
    }
    T_CHECK(strstr(first.p, "OK"), "no route was taken: %.100s", first.p);
    ht_buf_done(&first);
    ht_buf_done(&b);
}
