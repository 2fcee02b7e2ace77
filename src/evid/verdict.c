/* verdict.c - statistics, gates and classes of each cell; see verdict.h. Writing the documents is
 * verdict_write.c. */
#include "evid/verdict.h"
#include "evid/quality.h"
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 u128;

const char *const ht_gate_names[HT_GATES + 1] = {"environment", "voids",   "nullRun", "complete",
                                                 "coverage",    "quality", "perf",    "sign",
                                                 "tail",        NULL};
const char *const ht_gate_result_names[HT_GATE_RESULTS + 1] = {"PASS",    "FAIL",           "ERROR",
                                                               "NOT_RUN", "NOT_APPLICABLE", NULL};
const char *const ht_class_names[HT_CLASSES + 1] = {
    "QUALIFIED",          "FAIL_PERF",        "FAIL_QUALITY",       "FAIL_TAIL", "INCONCLUSIVE_ENV",
    "INCONCLUSIVE_STATS", "INVALID_EVIDENCE", "NOT_ADMISSIBLE_ENV", NULL};

static int by_value(const void *x, const void *y)
{
    uint64_t a, b;
    memcpy(&a, x, sizeof a);
    memcpy(&b, y, sizeof b);
    return (a > b) - (a < b);
}

/* The value of a slot: the lower median of its requests; 0 when any of them failed, UINT64_MAX when
 * the slot is not there. */
static uint64_t slot_value(const ht_evidence *v, size_t cell, uint32_t pair, char arm,
                           uint64_t *room)
{
    size_t n = 0;
    bool failed = false;
    const ht_cell *c = &v->design.cell[cell];
    for (size_t i = 0; i < v->n_samples; i++) {
        const ht_sample *s = &v->sample[i];
        if (!s->last || s->cell != cell || s->pair != pair || s->arm != arm) continue;
        failed |= s->status != HT_SM_OK;
        room[n++] = s->metric[c->metric];
    }
    if (n == 0) return UINT64_MAX;
    if (failed) return 0;
    qsort(room, n, sizeof *room, by_value);
    return room[(n - 1) / 2];
}

static int make_pairs(ht_arena *a, const ht_evidence *v, size_t cell, bool null_run, ht_pairs *out,
                      ht_err *e)
{
    const ht_design *d = &v->design;
    uint32_t first = null_run ? 0 : d->null_pairs, count = null_run ? d->null_pairs : d->pairs;
    ht_pair *pair = ht_arena_array(a, count, sizeof *pair);
    uint64_t *room = ht_arena_array(a, d->requests, sizeof *room), ratio[HT_STAT_MAX_N];
    if (!pair || !room) return HT_FAIL(e, HT_ENOMEM, "verdict: no memory for %u pairs", count);
    out->pair = pair;
    for (uint32_t p = first; p < first + count; p++) {
        uint64_t ref = slot_value(v, cell, p, null_run ? 'N' : 'A', room);
        uint64_t cand = slot_value(v, cell, p, null_run ? 'M' : 'B', room);
        if (ref == UINT64_MAX || cand == UINT64_MAX) {
            out->missing = true;
            continue;
        }
        ht_pair *x = &pair[out->n];
        *x = (ht_pair){p, ref, cand, 0};
        /* In the null run both sides are the reference. */
        if (ref == 0 || (null_run && cand == 0)) out->ref_failed = true;
        else HT_TRY(ht_stat_ratio(ref, cand, &x->ratio_ppm, e));
        ratio[out->n++] = x->ratio_ppm;
    }
    if (out->ref_failed || out->n < HT_STAT_MIN_N) return 0;
    out->has_stat = true;
    return ht_stat_pairs(ratio, out->n, &out->stat, e);
}

/* ---- costs and tails ------------------------------------------------------------------------- */

static uint64_t mul_ppm(uint64_t x, uint64_t ppm)
{
    u128 y = (u128)x * ppm / 1000000;
    return y > UINT64_MAX ? UINT64_MAX : (uint64_t)y;
}

/* Order statistics of the pairs' times: median, and its one-sided 95 % bounds by the sign test. */
static int make_costs(ht_arena *a, const ht_pairs *p, ht_cell_result *r, ht_err *e)
{
    uint64_t *ref = ht_arena_array(a, p->n, sizeof *ref), *cand = ht_arena_array(a, p->n, 8);
    if (!ref || !cand) return HT_FAIL(e, HT_ENOMEM, "verdict: no memory for costs");
    for (uint32_t i = 0; i < p->n; i++) {
        ref[i] = p->pair[i].ref_ns;
        cand[i] = p->pair[i].cand_ns ? p->pair[i].cand_ns : UINT64_MAX; /* failed: the worst */
    }
    qsort(ref, p->n, sizeof *ref, by_value);
    qsort(cand, p->n, sizeof *cand, by_value);
    int k = ht_stat_sign_losses(p->n, 50000);
    r->p50 = cand[(p->n - 1) / 2];
    r->p50_ucb = cand[p->n - 1 - (uint32_t)k];
    r->ref_p50_lcb = ref[(uint32_t)k];
    if (r->p50 == UINT64_MAX) r->p50 = 0;
    if (r->p50_ucb == UINT64_MAX) r->p50_ucb = 0;
    return 0;
}

/* The 95 % point of the candidate's requests at 99 % confidence: the order statistic that as many
 * requests may lie above as the table allows misses. */
static int tail_bound(ht_arena *a, const ht_evidence *v, size_t cell, uint64_t *out, ht_err *e)
{
    uint64_t *t = ht_arena_array(a, v->n_samples + 1, sizeof *t);
    uint32_t n = 0, miss = 0;
    if (!t) return HT_FAIL(e, HT_ENOMEM, "verdict: no memory for %zu times", v->n_samples);
    for (size_t i = 0; i < v->n_samples; i++) {
        const ht_sample *s = &v->sample[i];
        if (!s->last || s->cell != cell || s->arm != 'B') continue;
        t[n++] = s->status == HT_SM_OK ? s->metric[v->design.cell[cell].metric] : UINT64_MAX;
    }
    *out = 0;
    if (n < ht_stat_tail_needed(950000, 990000, 0)) return 0;
    while (miss < 3 && n >= ht_stat_tail_needed(950000, 990000, miss + 1)) miss++;
    qsort(t, n, sizeof *t, by_value);
    if (t[n - 1 - miss] != UINT64_MAX) *out = t[n - 1 - miss];
    return 0;
}

static unsigned tail_metric(const ht_evidence *v, size_t cell)
{
    return v->policy.tail_metric == HT_METRICS ? v->design.cell[cell].metric
                                               : v->policy.tail_metric;
}

/* Requests of the candidate above the limit; a failed one always is. */
static void make_tail(const ht_evidence *v, size_t cell, ht_cell_result *r)
{
    const unsigned m = tail_metric(v, cell);
    uint64_t worst_ref = 0;
    uint32_t last_pair = UINT32_MAX, in_pair = 0;
    for (size_t i = 0; i < v->n_samples; i++) {
        const ht_sample *s = &v->sample[i];
        if (s->last && s->cell == cell && s->arm == 'A' && s->metric[m] > worst_ref)
            worst_ref = s->metric[m];
    }
    r->slo_ns = v->policy.tail_slo_ns ? v->policy.tail_slo_ns
                                      : mul_ppm(worst_ref, v->policy.tail_slo_ref_ppm);
    for (size_t i = 0; i < v->n_samples; i++) { /* samples lie in the order of pairs */
        const ht_sample *s = &v->sample[i];
        if (!s->last || s->cell != cell || s->arm != 'B') continue;
        if (s->pair != last_pair) in_pair = 0;
        last_pair = s->pair;
        r->requests++;
        if (s->status == HT_SM_OK && s->metric[m] && s->metric[m] <= r->slo_ns) continue;
        r->misses++;
        if (++in_pair > r->worst_pair) r->worst_pair = in_pair;
    }
    r->tail = (uint8_t)ht_stat_tail(v->policy.tail_quantile_ppm, v->policy.tail_conf_ppm,
                                    r->requests, r->misses, r->worst_pair);
}

/* ---- gates ----------------------------------------------------------------------------------- */

static void set(ht_cell_result *r, enum ht_gate g, enum ht_gate_result res, const char *why)
{
    r->gate[g] = (uint8_t)res;
    r->why[g] = why;
}

static void pass_or(ht_cell_result *r, enum ht_gate g, bool good, const char *why)
{
    set(r, g, good ? HT_PASS : HT_FAILED, good ? "OK" : why);
}

/* An unknown guard that the policy asks for makes a host inadmissible: which one is the reason. */
static const char *const unknown_guard[HT_GUARDS] = {[HT_G_AC] = "UNKNOWN_acOnline",
                                                     [HT_G_CLOCKS] = "UNKNOWN_clocksSteady",
                                                     [HT_G_ECC] = "UNKNOWN_eccDelta",
                                                     [HT_G_FOREIGN] = "UNKNOWN_foreignCpuPpm",
                                                     [HT_G_GPU_EVENTS] = "UNKNOWN_gpuEvents",
                                                     [HT_G_GPU_PROCS] = "UNKNOWN_gpuProcs",
                                                     [HT_G_CGROUP] = "UNKNOWN_nrThrottledDelta",
                                                     [HT_G_PSI] = "UNKNOWN_psiPpm",
                                                     [HT_G_STEAL] = "UNKNOWN_stealPpm",
                                                     [HT_G_SUSPEND] = "UNKNOWN_suspendNs",
                                                     [HT_G_SWAP] = "UNKNOWN_swapIns",
                                                     [HT_G_THROTTLE] = "UNKNOWN_throttleDelta"};

/* What made slots void, every guard by its name: "VOID_clocksSteady+stealPpm"; the reason of the
 * gate when there were too many. In the arena. */
static int void_reason(ht_arena *a, const ht_evidence *v, const char **out, ht_err *e)
{
    uint32_t red = 0;
    bool harness = false;
    ht_buf b;
    for (size_t i = 0; i < v->n_samples; i++) {
        if (v->sample[i].status == HT_SM_VOID) red |= v->sample[i].guards.red;
        if (v->sample[i].status == HT_SM_HARNESS) harness = true;
    }
    ht_buf_init(&b, 1 << 12);
    ht_buf_str(&b, "VOID");
    for (unsigned g = 0, n = 0; g < HT_GUARDS; g++)
        if (red >> g & 1) ht_buf_fmt(&b, "%c%s", n++ ? '+' : '_', ht_guard_names[g]);
    if (harness) ht_buf_fmt(&b, "%cHARNESS", red ? '+' : '_');
    int rc = ht_buf_ok(&b, "verdict", e);
    *out = rc ? NULL : ht_arena_strndup(a, b.p, b.n);
    ht_buf_done(&b);
    return rc || *out ? rc : HT_FAIL(e, HT_ENOMEM, "verdict: no memory");
}

static void gate_environment(const ht_evidence *v, const char *voided, ht_cell_result *r)
{
    uint32_t unknown = 0;
    for (size_t i = 0; i < v->n_samples; i++)
        if (v->sample[i].last) unknown |= v->sample[i].guards.unknown & v->policy.required;
    const char *why = v->unreadable ? "UNREADABLE_FIELD" : "OK";
    for (unsigned g = HT_GUARDS; g-- > 0;)
        if (unknown >> g & 1) why = unknown_guard[g];
    pass_or(r, HT_GATE_ENVIRONMENT, strcmp(why, "OK") == 0, why);
    pass_or(r, HT_GATE_VOIDS,
            (uint64_t)v->n_void_attempts * 1000000 <=
                v->policy.max_void_ppm * (uint64_t)v->design.n_blocks,
            voided);
}

/* The harness against itself must find nothing, and be able to find what is looked for. */
static void gate_null(const ht_evidence *v, ht_cell_result *r)
{
    const ht_pairs *p = &r->null_run;
    if (!p->has_stat || p->missing || p->n < v->policy.null_pairs) {
        set(r, HT_GATE_NULL_RUN, HT_FAILED, p->ref_failed ? "REFERENCE_FAILED" : "TOO_FEW");
        return;
    }
    bool holds_one = p->stat.lo <= HT_PPM && p->stat.hi >= HT_PPM;
    uint64_t half = (p->stat.hi - p->stat.lo + 1) / 2;
    pass_or(r, HT_GATE_NULL_RUN, holds_one && half <= v->policy.null_half_width_ppm,
            holds_one ? "TOO_WIDE" : "NOT_ONE");
}

/* Bucket edges and the middle were measured, in both arms. */
static bool covered(const ht_evidence *v, size_t cell)
{
    const ht_scope *s = &v->design.cell[cell].scope;
    const uint32_t mid = s->min_tokens + (s->max_tokens - s->min_tokens) / 2;
    unsigned seen = 0;
    for (size_t i = 0; i < v->n_samples; i++) {
        const ht_sample *x = &v->sample[i];
        if (!x->last || x->cell != cell || x->arm != 'B') continue;
        if (x->n_prompt == s->min_tokens) seen |= 1;
        if (x->n_prompt == mid) seen |= 2;
        if (x->n_prompt == s->max_tokens) seen |= 4;
    }
    return seen == 7;
}

static void gate_quality(const ht_evidence *v, ht_cell_result *r)
{
    if (!v->quality.present || v->quality.prompts == 0) {
        set(r, HT_GATE_QUALITY, HT_NOT_RUN, "NO_SUITE");
        return;
    }
    const char *why = ht_quality_gate(&v->policy, &v->quality);
    set(r, HT_GATE_QUALITY, why ? HT_FAILED : HT_PASS, why ? why : "OK");
}

static void gate_stats(const ht_evidence *v, size_t cell, ht_cell_result *r)
{
    const ht_pairs *p = &r->main;
    const ht_policy *y = &v->policy;
    if (p->ref_failed) {
        set(r, HT_GATE_COMPLETE, HT_ERROR, "REFERENCE_FAILED");
    } else {
        pass_or(r, HT_GATE_COMPLETE, !p->missing && p->n >= y->min_pairs, "PAIRS_MISSING");
    }
    pass_or(r, HT_GATE_COVERAGE, covered(v, cell), "BUCKET_EDGES");
    if (!p->has_stat) {
        set(r, HT_GATE_PERF, HT_NOT_RUN, "NO_STATISTICS");
        set(r, HT_GATE_SIGN, HT_NOT_RUN, "NO_STATISTICS");
        set(r, HT_GATE_TAIL, HT_NOT_RUN, "NO_STATISTICS");
        return;
    }
    pass_or(r, HT_GATE_PERF, p->stat.lo >= y->min_lower_ppm,
            p->stat.hi < y->min_lower_ppm ? "TOO_SLOW" : "UNDECIDED");
    if (y->sign_test) pass_or(r, HT_GATE_SIGN, r->holm, "HOLM");
    else set(r, HT_GATE_SIGN, HT_NOT_APPLICABLE, "POLICY");
    if (r->tail == HT_TAIL_TOO_FEW) {
        bool may = y->may_skip >> HT_GATE_TAIL & 1;
        set(r, HT_GATE_TAIL, may ? HT_NOT_APPLICABLE : HT_NOT_RUN, "TOO_FEW");
    } else {
        pass_or(r, HT_GATE_TAIL, r->tail == HT_TAIL_PASS, "MISSES");
    }
}

bool ht_gates_pass(const uint8_t *gate, size_t n, uint32_t may_skip)
{
    if (n != HT_GATES) return false;
    for (size_t g = 0; g < n; g++)
        if (gate[g] != HT_PASS && !(gate[g] == HT_NOT_APPLICABLE && (may_skip >> g & 1)))
            return false;
    return true;
}

/* The gravest reason wins; a fault of the evidence comes before any result that it would give. */
static enum ht_class classify(const ht_cell_result *r, uint32_t may_skip)
{
    if (r->gate[HT_GATE_COMPLETE] == HT_ERROR) return HT_INVALID_EVIDENCE;
    if (r->gate[HT_GATE_QUALITY] == HT_FAILED) return HT_FAIL_QUALITY;
    if (r->gate[HT_GATE_ENVIRONMENT] != HT_PASS || r->gate[HT_GATE_VOIDS] != HT_PASS)
        return HT_NOT_ADMISSIBLE_ENV;
    if (r->gate[HT_GATE_NULL_RUN] != HT_PASS) return HT_INCONCLUSIVE_ENV;
    if (r->gate[HT_GATE_COMPLETE] != HT_PASS || r->gate[HT_GATE_COVERAGE] != HT_PASS)
        return HT_INCONCLUSIVE_STATS;
    if (r->gate[HT_GATE_TAIL] == HT_FAILED) return HT_FAIL_TAIL;
    if (r->gate[HT_GATE_PERF] == HT_FAILED && strcmp(r->why[HT_GATE_PERF], "TOO_SLOW") == 0)
        return HT_FAIL_PERF;
    return ht_gates_pass(r->gate, HT_GATES, may_skip) ? HT_QUALIFIED : HT_INCONCLUSIVE_STATS;
}

static int analyze_cell(ht_arena *a, const ht_evidence *v, size_t i, ht_cell_result *r, ht_err *e)
{
    HT_TRY(make_pairs(a, v, i, true, &r->null_run, e));
    HT_TRY(make_pairs(a, v, i, false, &r->main, e));
    make_tail(v, i, r);
    HT_TRY(tail_bound(a, v, i, &r->p95_ucb, e));
    return r->main.has_stat ? make_costs(a, &r->main, r, e) : 0;
}

/* Holm over every cell of the bundle; one without statistics counts as a lost hypothesis. */
static int correct(ht_arena *a, const ht_evidence *v, ht_analysis *out, ht_err *e)
{
    size_t n = v->design.n_cells;
    ht_prob *p = ht_arena_array(a, n, sizeof *p);
    bool *pass = ht_arena_array(a, n, sizeof *pass);
    if (!p || !pass) return HT_FAIL(e, HT_ENOMEM, "verdict: no memory for %zu cells", n);
    for (size_t i = 0; i < n; i++)
        p[i] = out->cell[i].main.has_stat ? out->cell[i].main.stat.sign : (ht_prob){1, 0};
    HT_TRY(ht_stat_holm(p, n, v->policy.alpha_ppm, pass, e));
    for (size_t i = 0; i < n; i++) out->cell[i].holm = pass[i];
    return 0;
}

int ht_analyze(ht_arena *a, const ht_evidence *v, ht_analysis *out, ht_err *e)
{
    static const uint8_t grave[HT_CLASSES] = {
        HT_QUALIFIED,        HT_INCONCLUSIVE_STATS, HT_FAIL_TAIL,    HT_FAIL_PERF,
        HT_INCONCLUSIVE_ENV, HT_NOT_ADMISSIBLE_ENV, HT_FAIL_QUALITY, HT_INVALID_EVIDENCE};
    size_t n = v->design.n_cells;
    unsigned worst = 0;
    const char *voided;
    *out = (ht_analysis){.cell = ht_arena_array(a, n, sizeof *out->cell)};
    if (!out->cell) return HT_FAIL(e, HT_ENOMEM, "verdict: no memory for %zu cells", n);
    for (size_t i = 0; i < n; i++) HT_TRY(analyze_cell(a, v, i, &out->cell[i], e));
    HT_TRY(correct(a, v, out, e));
    HT_TRY(void_reason(a, v, &voided, e));
    for (size_t i = 0; i < n; i++) {
        ht_cell_result *r = &out->cell[i];
        gate_environment(v, voided, r);
        gate_null(v, r);
        gate_quality(v, r);
        gate_stats(v, i, r);
        r->cls = (uint8_t)classify(r, v->policy.may_skip);
        r->route = r->cls == HT_QUALIFIED && v->design.cell[i].scope.phase < HT_PHASES;
        out->n_routes += r->route;
        for (unsigned g = worst; g < HT_CLASSES; g++)
            if (grave[g] == r->cls) worst = g;
    }
    out->cls = grave[worst];
    out->hardware_evidence = !v->design.synthetic;
    out->production_eligible =
        out->hardware_evidence && !v->policy.fixture && !v->dirty_build && out->n_routes > 0;
    return 0;
}
