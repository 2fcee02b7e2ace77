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
                                                     "COSTLIER",
                                                     "NEGATIVE",
                                                     "NO_ENGINE",
                                                     "NOT_QUALIFIED",
                                                     "ROUTE_FAILED"};
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

/* An edge counts for the model, binary and machine it was measured with. */
static bool edge_fits(const ht_route_edge *x, const ht_route_request *q)
{
    const ht_scope *want = &q->want[HT_DECODE];
    if (!x->scope) return true;
    return x->scope->model_sha && want->model_sha && want->binary_sha && want->class_sha &&
           strcmp(x->scope->model_sha, want->model_sha) == 0 &&
           strcmp(x->scope->binary_sha, want->binary_sha) == 0 &&
           strcmp(x->scope->class_sha, want->class_sha) == 0;
}

/* Price of handing n_prompt positions from one backend to another, the dearest that was measured;
 * UINT64_MAX: no edge, infeasible. */
static uint64_t handoff(const context *c, const char *from, const char *to)
{
    uint64_t dearest = 0;
    bool known = false;
    if (strcmp(from, to) == 0) return 0;
    for (size_t i = 0; i < c->n_edges; i++) {
        const ht_route_edge *x = &c->edge[i];
        if (strcmp(x->from, from) != 0 || strcmp(x->to, to) != 0 || !edge_fits(x, c->q)) continue;
        const uint64_t ns = add_sat(mul_sat(x->ns_per_token, c->q->n_prompt), x->fixed_ns);
        if (!known || ns > dearest) dearest = ns;
        known = true;
    }
    return known ? dearest : UINT64_MAX;
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
    uint64_t cost, ref, edge;
} pair_cost;
static pair_cost price(const context *c, const ht_route_entry *p, const ht_route_entry *d)
{
    pair_cost r = {0};
    const ht_route_entry *both[HT_PHASES] = {p, d};
    for (int i = 0; i < HT_PHASES; i++) {
        if (!both[i]) continue;
        r.cost = add_sat(r.cost, entry_cost(c, both[i]));
        r.ref = add_sat(r.ref, mul_sat(both[i]->ref_lcb_ns, times(c, i)));
    }
    const char *from = p ? p->scope.backend : c->q->reference;
    const char *to = d ? d->scope.backend : c->q->reference;
    r.edge = handoff(c, from, to);
    r.cost = add_sat(r.cost, r.edge);
    return r;
}

__extension__ typedef __int128 wide;

/* cost * min_gain <= ref * 10^6 without overflow: the gain reaches the margin. */
static bool gains(pair_cost r, uint64_t min_gain_ppm)
{
    return r.cost != UINT64_MAX && (wide)r.cost * (wide)min_gain_ppm <= (wide)r.ref * 1000000;
}

/* What a pair saves against the reference on the phases it replaces; below zero only under
 * a fixture policy that admits a loss. */
static wide saving(pair_cost r)
{
    return (wide)r.ref - (wide)r.cost;
}

static int by_scope(const void *x, const void *y)
{
    const ht_considered *a = x, *b = y;
    int c = strcmp(a->scope_sha, b->scope_sha);
    if (!c) c = strcmp(a->bundle_id, b->bundle_id);
    return c ? c : (a->reason > b->reason) - (a->reason < b->reason);
}

static int entry_order(const ht_route_entry *x, const ht_route_entry *y)
{
    int c = strcmp(x ? x->scope_sha : "", y ? y->scope_sha : "");
    return c ? c : strcmp(x ? x->bundle_id : "", y ? y->bundle_id : "");
}

/* Of two admissible pairs with equal saving the one with the smaller digests wins, so that the
 * order of the entries cannot matter. */
static int pair_order(const ht_route_entry *p1, const ht_route_entry *d1, const ht_route_entry *p2,
                      const ht_route_entry *d2)
{
    int c = entry_order(p1, p2);
    return c ? c : entry_order(d1, d2);
}

typedef struct {
    const ht_route_entry *p, *d;
    pair_cost cost;
    bool found;
} pair;
typedef struct {
    pair best, current; /* current: of q->current, when it is still admissible */
} search;

static bool is_current(const ht_route_request *q, int phase, const ht_route_entry *t)
{
    const char *now = q->current[phase] ? q->current[phase] : "";
    return strcmp(t ? t->scope_sha : "", now) == 0;
}

/* Keep the better one in *best. */
static void keep_better(pair *best, const pair *x)
{
    const wide save = saving(x->cost), held = saving(best->cost);
    if (best->found &&
        (save < held || (save == held && pair_order(x->p, x->d, best->p, best->d) >= 0)))
        return;
    *best = *x;
}

/* why[]: what is left to say of each entry of the pair when it is not chosen, the best of all its
 * pairs: that a cheaper one won, that it gains too little, that nobody knows the hand-off. */
static void try_pair(const context *c, search *s, const ht_route_entry *p, const ht_route_entry *d,
                     uint8_t *why_p, uint8_t *why_d)
{
    const pair x = {p, d, price(c, p, d), true};
    const bool good = gains(x.cost, c->q->min_gain_ppm);
    const uint8_t why = good                        ? HT_R_COSTLIER
                        : x.cost.cost == UINT64_MAX ? HT_R_NO_EDGE
                                                    : HT_R_MARGIN;
    if (p && why > *why_p) *why_p = why;
    if (d && why > *why_d) *why_d = why;
    if (!good) return;
    keep_better(&s->best, &x);
    if (is_current(c->q, HT_PREFILL, p) && is_current(c->q, HT_DECODE, d))
        keep_better(&s->current, &x);
}

/* The pair that ran last stays unless the best one saves the margin of its cost more. */
static const pair *settle(const search *s, const ht_route_request *q)
{
    const wide margin = q->min_gain_ppm > 1000000 ? (wide)q->min_gain_ppm - 1000000 : 0;
    if (!s->current.found) return &s->best;
    const wide more = saving(s->best.cost) - saving(s->current.cost);
    const bool better = more > 0 && more * 1000000 >= margin * (wide)s->current.cost.cost;
    return better ? &s->best : &s->current;
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

/* Sort out what may be used at all: every entry into out->considered with its first refusal, the
 * others into ok[phase] behind the reference (NULL), their places in considered into at[phase]. */
typedef struct {
    const ht_route_entry **ok[HT_PHASES];
    size_t *at[HT_PHASES];
    uint8_t *why[HT_PHASES];
    size_t n[HT_PHASES];
} admitted;
static int admit(ht_arena *a, const ht_route_request *q, const ht_route_entry *entries, size_t n,
                 admitted *m, ht_route_plan *out, ht_err *e)
{
    *m = (admitted){.n = {1, 1}};
    out->considered = ht_arena_array(a, n, sizeof *out->considered);
    for (int i = 0; i < HT_PHASES; i++) {
        m->ok[i] = ht_arena_array(a, n + 1, sizeof *m->ok[i]);
        m->at[i] = ht_arena_array(a, n + 1, sizeof *m->at[i]);
        m->why[i] = ht_arena_array(a, n + 1, sizeof *m->why[i]);
        if (!m->ok[i] || !m->at[i] || !m->why[i] || !out->considered)
            return HT_FAIL(e, HT_ENOMEM, "planner: no memory for %zu routes", n);
    }
    for (size_t i = 0; i < n; i++) {
        const ht_route_entry *t = &entries[i];
        const int phase = t->scope.phase, why = reject(t, q);
        ht_considered *k = &out->considered[i];
        *k = (ht_considered){.phase = t->scope.phase, .reason = (uint8_t)why, .entry = t};
        memcpy(k->scope_sha, t->scope_sha, sizeof k->scope_sha);
        memcpy(k->bundle_id, t->bundle_id, sizeof k->bundle_id);
        if (why == HT_R_OK) {
            m->at[phase][m->n[phase]] = i;
            m->ok[phase][m->n[phase]++] = t;
        } else if (out->reason[phase] == HT_R_NO_EVIDENCE || why > out->reason[phase]) {
            out->reason[phase] = (uint8_t)why; /* the check that came furthest */
        }
    }
    out->n_considered = n;
    return 0;
}

int ht_route_choose(ht_arena *a, const ht_route_request *q, const ht_route_entry *entries, size_t n,
                    const ht_route_edge *edges, size_t n_edges, ht_route_plan *out, ht_err *e)
{
    const context c = {q, edges, n_edges};
    search s = {0};
    admitted m;
    *out = (ht_route_plan){.engine = {q->reference, q->reference},
                           .reason = {HT_R_NO_EVIDENCE, HT_R_NO_EVIDENCE}};
    HT_TRY(admit(a, q, entries, n, &m, out, e));
    for (size_t i = 0; i < m.n[HT_PREFILL]; i++)
        for (size_t j = 0; j < m.n[HT_DECODE]; j++)
            if (i || j)
                try_pair(&c, &s, m.ok[HT_PREFILL][i], m.ok[HT_DECODE][j], &m.why[HT_PREFILL][i],
                         &m.why[HT_DECODE][j]);
    const pair *won = settle(&s, q);
    const ht_route_entry *chosen[HT_PHASES] = {won->p, won->d};
    for (int i = 0; i < HT_PHASES; i++) {
        out->entry[i] = chosen[i];
        uint8_t furthest = HT_R_OK;
        for (size_t k = 1; k < m.n[i]; k++) {
            const bool taken = m.ok[i][k] == chosen[i];
            out->considered[m.at[i][k]].reason = taken ? (uint8_t)HT_R_OK : m.why[i][k];
            if (m.why[i][k] > furthest) furthest = m.why[i][k];
        }
        if (chosen[i]) {
            out->engine[i] = chosen[i]->scope.backend;
            out->reason[i] = HT_R_OK;
        } else if (m.n[i] > 1) {
            out->reason[i] = furthest;
        }
    }
    out->cost_ns = won->cost.cost;
    out->ref_cost_ns = won->cost.ref;
    out->edge_ns = won->cost.edge;
    if (n) qsort(out->considered, n, sizeof *out->considered, by_scope);
    return fall_back(q, out, e);
}
