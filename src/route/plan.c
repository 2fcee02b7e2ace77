/* plan.c - choosing a pair of engines; see plan.h. */
#include "route/plan.h"
#include <stdlib.h>
#include <string.h>

static const char *const reason_names[HT_REASONS] = {"OK",
                                                     "NO_EVIDENCE",
                                                     "OTHER_MODEL",
                                                     "OTHER_TOKENIZER",
                                                     "OTHER_TEMPLATE",
                                                     "OTHER_PRECISION",
                                                     "OTHER_SAMPLER",
                                                     "OTHER_SPEC",
                                                     "OTHER_BINARY",
                                                     "OTHER_ASSETS",
                                                     "OTHER_MACHINE",
                                                     "OTHER_OS",
                                                     "BUCKET",
                                                     "BATCH",
                                                     "CONTEXT",
                                                     "NOT_PROMOTED",
                                                     "BAD_SIGNATURE",
                                                     "BAD_DIGEST",
                                                     "OTHER_POLICY",
                                                     "EXPIRED",
                                                     "TOMBSTONED",
                                                     "QUARANTINED",
                                                     "STALE",
                                                     "GUARD_RED",
                                                     "MEMORY",
                                                     "NO_EDGE",
                                                     "MARGIN",
                                                     "NEGATIVE",
                                                     "NO_ENGINE",
                                                     "NOT_QUALIFIED"};
const char *const ht_state_names[HT_STATES + 1] = {"nominated", "candidate", "qualified",
                                                   "promoted",  "stale",     "quarantined",
                                                   "negative",  "revoked",   NULL};

const char *ht_reason_name(int reason)
{
    return reason >= 0 && reason < HT_REASONS ? reason_names[reason] : "?";
}

const char *ht_state_name(int state)
{
    return state >= 0 && state < HT_STATES ? ht_state_names[state] : "?";
}

int ht_state_by_name(const char *name)
{
    for (int i = 0; i < HT_STATES; i++)
        if (strcmp(ht_state_names[i], name) == 0) return i;
    return -1;
}

bool ht_state_may(int from, int to)
{
    static const uint8_t next[HT_STATES] = {
        [HT_ST_NOMINATED] = 1 << HT_ST_CANDIDATE,
        [HT_ST_CANDIDATE] = 1 << HT_ST_QUALIFIED | 1 << HT_ST_NEGATIVE,
        [HT_ST_QUALIFIED] = 1 << HT_ST_PROMOTED | 1 << HT_ST_REVOKED,
        [HT_ST_PROMOTED] = 1 << HT_ST_STALE | 1 << HT_ST_QUARANTINED | 1 << HT_ST_REVOKED,
        [HT_ST_STALE] = 1 << HT_ST_PROMOTED | 1 << HT_ST_REVOKED,
        [HT_ST_QUARANTINED] = 1 << HT_ST_CANDIDATE | 1 << HT_ST_REVOKED,
    };
    return from >= 0 && from < HT_STATES && to >= 0 && to < HT_STATES && (next[from] >> to & 1);
}

static int identity_reason(const ht_scope *have, const ht_scope *want)
{
    static const struct {
        const char *member;
        uint8_t reason;
    } map[] = {
        {"model", HT_R_OTHER_MODEL},
        {"tokenizer", HT_R_OTHER_TOKENIZER},
        {"template", HT_R_OTHER_TEMPLATE},
        {"precision", HT_R_OTHER_PRECISION},
        {"sampler", HT_R_OTHER_SAMPLER},
        {"spec", HT_R_OTHER_SPEC},
        {"binary", HT_R_OTHER_BINARY},
        {"assets", HT_R_OTHER_ASSETS},
        {"machine", HT_R_OTHER_MACHINE},
        {"instance", HT_R_OTHER_MACHINE},
        {"os", HT_R_OTHER_OS},
    };
    ht_scope same = *want;
    same.backend = have->backend; /* what is being chosen */
    same.assets_sha = want->assets_sha ? want->assets_sha : have->assets_sha;
    const char *differs = ht_scope_differs(have, &same);
    for (size_t i = 0; differs && i < sizeof map / sizeof map[0]; i++)
        if (strcmp(map[i].member, differs) == 0) return map[i].reason;
    return HT_R_OK;
}

static int bucket_reason(const ht_scope *s, const ht_route_request *q)
{
    if (q->n_prompt < s->min_tokens || q->n_prompt > s->max_tokens) return HT_R_BUCKET;
    if (s->phase == HT_DECODE && q->n_new > s->max_new) return HT_R_BUCKET;
    if (q->batch < s->batch_min || q->batch > s->batch_max) return HT_R_BATCH;
    return q->ctx > s->ctx_max ? HT_R_CONTEXT : HT_R_OK;
}

static bool engine_exists(const ht_route_request *q, const char *name)
{
    for (size_t i = 0; q->engines && q->engines[i]; i++)
        if (strcmp(q->engines[i], name) == 0) return true;
    return false;
}

/* Why an entry may not be used for this request, or HT_R_OK. */
static int reject(const ht_route_entry *t, const ht_route_request *q)
{
    if (!t->scope.model_sha)
        return t->checks; /* its papers were so bad that not even this is known */
    int r = identity_reason(&t->scope, &q->want[t->scope.phase]);
    if (r == HT_R_OK) r = bucket_reason(&t->scope, q);
    if (r != HT_R_OK) return r;
    if (t->checks != HT_R_OK) return t->checks;
    if (t->tombstoned || t->state == HT_ST_REVOKED) return HT_R_TOMBSTONED;
    if (t->state == HT_ST_QUARANTINED) return HT_R_QUARANTINED;
    if (t->state == HT_ST_NEGATIVE) return HT_R_NEGATIVE;
    if (t->state == HT_ST_STALE) return HT_R_STALE;
    if (t->state != HT_ST_PROMOTED) return HT_R_NOT_PROMOTED;
    if (t->measured_unix > q->now_unix || q->now_unix - t->measured_unix > q->max_age_s)
        return HT_R_EXPIRED;
    if (strcmp(t->state_sha, q->state_sha) != 0 && !t->amended) return HT_R_STALE;
    if (q->guard_red) return HT_R_GUARD_RED;
    if (!engine_exists(q, t->scope.backend)) return HT_R_NO_ENGINE;
    /* Unknown free memory, and 0 of 0, are not "enough". */
    if (!q->mem_known || t->mem_peak == 0 || q->mem_free < q->mem_reserve ||
        t->mem_peak > q->mem_free - q->mem_reserve)
        return HT_R_MEMORY;
    return t->p50_ucb_ns == 0 || t->ref_lcb_ns == 0 ? HT_R_BAD_DIGEST : HT_R_OK;
}

static uint64_t add_sat(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t mul_sat(uint64_t a, uint64_t b)
{
    return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

typedef struct {
    const ht_route_request *q;
    const ht_route_edge *edge;
    size_t n_edges;
} context;

/* Price of handing n_prompt positions from one engine to another; UINT64_MAX: no edge,
 * infeasible. */
static uint64_t handoff(const context *c, const char *from, const char *to)
{
    if (strcmp(from, to) == 0) return 0;
    for (size_t i = 0; i < c->n_edges; i++)
        if (strcmp(c->edge[i].from, from) == 0 && strcmp(c->edge[i].to, to) == 0)
            return add_sat(mul_sat(c->edge[i].ns_per_token, c->q->n_prompt), c->edge[i].fixed_ns);
    return UINT64_MAX;
}

static uint64_t times(const context *c, int phase)
{
    return phase == HT_DECODE ? c->q->n_new : 1;
}

static uint64_t entry_cost(const context *c, const ht_route_entry *t)
{
    uint64_t reuse = c->q->expected_reuse ? c->q->expected_reuse : 1;
    uint64_t run = mul_sat(t->p50_ucb_ns, times(c, t->scope.phase));
    return add_sat(run, t->warmup_ns / reuse + (t->warmup_ns % reuse != 0));
}

/* The reference against the same pair: a phase without evidence costs both sides the same, so it is
 * left out of the comparison. */
typedef struct {
    uint64_t cost, ref;
} pair_cost;
static pair_cost price(const context *c, const ht_route_entry *p, const ht_route_entry *d)
{
    pair_cost r = {0, 0};
    const ht_route_entry *both[HT_PHASES] = {p, d};
    for (int i = 0; i < HT_PHASES; i++) {
        if (!both[i]) continue;
        r.cost = add_sat(r.cost, entry_cost(c, both[i]));
        r.ref = add_sat(r.ref, mul_sat(both[i]->ref_lcb_ns, times(c, i)));
    }
    const char *from = p ? p->scope.backend : c->q->reference;
    const char *to = d ? d->scope.backend : c->q->reference;
    r.cost = add_sat(r.cost, handoff(c, from, to));
    return r;
}

/* cost * min_gain <= ref * 10^6 without overflow: the gain reaches the margin. */
static bool gains(pair_cost r, uint64_t min_gain_ppm)
{
    __extension__ typedef unsigned __int128 wide;
    return r.cost != UINT64_MAX && (wide)r.cost * min_gain_ppm <= (wide)r.ref * 1000000;
}

static int by_scope(const void *x, const void *y)
{
    const ht_considered *a = x, *b = y;
    int c = strcmp(a->scope_sha, b->scope_sha);
    return c ? c : (a->reason > b->reason) - (a->reason < b->reason);
}

/* Of two admissible pairs with equal saving the one with the smaller digests wins, so that the
 * order of the entries cannot matter. */
static int pair_order(const ht_route_entry *p1, const ht_route_entry *d1, const ht_route_entry *p2,
                      const ht_route_entry *d2)
{
    int c = strcmp(p1 ? p1->scope_sha : "", p2 ? p2->scope_sha : "");
    return c ? c : strcmp(d1 ? d1->scope_sha : "", d2 ? d2->scope_sha : "");
}

typedef struct {
    const ht_route_entry *p, *d;
    pair_cost cost;
    bool found, no_edge[HT_PHASES], short_gain[HT_PHASES];
} search;

static void try_pair(const context *c, search *s, const ht_route_entry *p, const ht_route_entry *d)
{
    pair_cost r = price(c, p, d);
    const ht_route_entry *both[HT_PHASES] = {p, d};
    bool good = gains(r, c->q->min_gain_ppm);
    for (int i = 0; i < HT_PHASES && !good; i++) {
        if (both[i] && r.cost == UINT64_MAX) s->no_edge[i] = true;
        if (both[i] && r.cost != UINT64_MAX) s->short_gain[i] = true;
    }
    if (!good) return;
    /* The saving orders pairs: each is compared with the reference on the phases it replaces. */
    uint64_t save = r.ref - r.cost, best = s->found ? s->cost.ref - s->cost.cost : 0;
    if (s->found && (save < best || (save == best && pair_order(p, d, s->p, s->d) >= 0))) return;
    s->p = p;
    s->d = d;
    s->cost = r;
    s->found = true;
}

static int fall_back(const ht_route_request *q, ht_route_plan *out, ht_err *e)
{
    bool reference = !out->entry[HT_PREFILL] || !out->entry[HT_DECODE];
    if (!reference) return 0;
    int phase = out->entry[HT_PREFILL] ? HT_DECODE : HT_PREFILL;
    if (q->error_on_unknown)
        return HT_FAIL(e, HT_EGATE, "no admitted route for %s (%s) and policy onUnknown is ERROR",
                       ht_phase_name(phase), ht_reason_name(out->reason[phase]));
    if (!q->reference_qualified)
        return HT_FAIL(e, HT_EGATE,
                       "NOT_QUALIFIED: engine %s has no reference qualification for this model, "
                       "tokenizer, binary and OS; run: hetero qualify --reference",
                       q->reference);
    return 0;
}

int ht_route_choose(ht_arena *a, const ht_route_request *q, const ht_route_entry *entries, size_t n,
                    const ht_route_edge *edges, size_t n_edges, ht_route_plan *out, ht_err *e)
{
    context c = {q, edges, n_edges};
    search s = {0};
    const ht_route_entry **ok[HT_PHASES];
    size_t n_ok[HT_PHASES] = {0};
    *out = (ht_route_plan){.engine = {q->reference, q->reference},
                           .reason = {HT_R_NO_EVIDENCE, HT_R_NO_EVIDENCE}};
    out->considered = ht_arena_array(a, n, sizeof *out->considered);
    for (int i = 0; i < HT_PHASES; i++) {
        ok[i] = ht_arena_array(a, n + 1, sizeof *ok[i]);
        if (!ok[i] || !out->considered) return HT_FAIL(e, HT_ENOMEM, "planner: no memory");
        ok[i][n_ok[i]++] = NULL; /* the reference */
    }
    for (size_t i = 0; i < n; i++) {
        const ht_route_entry *t = &entries[i];
        int why = reject(t, q);
        ht_considered *k = &out->considered[out->n_considered++];
        memcpy(k->scope_sha, t->scope_sha, sizeof k->scope_sha);
        k->phase = t->scope.phase;
        k->reason = (uint8_t)why;
        if (why == HT_R_OK) {
            ok[t->scope.phase][n_ok[t->scope.phase]++] = t;
        } else if (out->reason[t->scope.phase] == HT_R_NO_EVIDENCE ||
                   why > out->reason[t->scope.phase]) {
            out->reason[t->scope.phase] = (uint8_t)why; /* the check that came furthest */
        }
    }
    for (size_t i = 0; i < n_ok[HT_PREFILL]; i++)
        for (size_t j = 0; j < n_ok[HT_DECODE]; j++)
            if (i || j) try_pair(&c, &s, ok[HT_PREFILL][i], ok[HT_DECODE][j]);
    const ht_route_entry *won[HT_PHASES] = {s.p, s.d};
    for (int i = 0; i < HT_PHASES; i++) {
        out->entry[i] = won[i];
        if (won[i]) {
            out->engine[i] = won[i]->scope.backend;
            out->reason[i] = HT_R_OK;
        } else if (n_ok[i] > 1) {
            out->reason[i] = s.short_gain[i] ? HT_R_MARGIN
                             : s.no_edge[i]  ? HT_R_NO_EDGE
                                             : HT_R_MARGIN;
        }
    }
    out->cost_ns = s.cost.cost;
    out->ref_cost_ns = s.cost.ref;
    if (out->n_considered)
        qsort(out->considered, out->n_considered, sizeof *out->considered, by_scope);
    return fall_back(q, out, e);
}
