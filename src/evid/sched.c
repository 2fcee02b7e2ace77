/* sched.c - analysis, sealing and verification of scheduler evidence; see sched.h. Everything here
 * is integers, so that any reader of docs/bundle.md computes the same bytes. */
#include "evid/sched.h"
#include "evid/bundle_read.h"
#include "evid/verdict.h"
#include "evid/verify.h"
#include <stdlib.h>
#include <string.h>

static const char *const gate_names[HT_SG_GATES] = {
    "environment", "complete",   "quality", "calibration",  "starvation", "recovery", "attainment",
    "deadlines",   "singleFlow", "classes", "conservation", "monotone",   "gain"};
enum { A, B, ARMS };

/* One scenario of one arm over all repetitions. */
typedef struct {
    uint64_t offered, ok, rejected, good, fluid_sum;
    uint64_t class_offered[2], class_good[2]; /* [is_long] */
    uint64_t recovery_ns, wait_ns, lag_ns;    /* greatest */
    uint64_t bounds, misses, worst, idle, overlapped, serialised;
    uint64_t *e2e, *ttft; /* of the good and the late, sorted */
    size_t n;
} side;

typedef struct {
    const ht_schedule *v;
    side of[HT_SCHED_SCENARIOS][ARMS];
    ht_stat gain, flow_ttft, flow_tpot;
    bool gain_known, flow_known, different, none_equal, unclean, stuck;
    uint64_t equal, compared;
    uint32_t red, missing;
    const char *why[HT_SG_GATES];
    ht_sched_verdict out;
    uint64_t ratio[HT_STAT_MAX_N];
    uint32_t n_ratio;
} analysis;

static int by_value(const void *x, const void *y)
{
    uint64_t a, b;
    memcpy(&a, x, sizeof a);
    memcpy(&b, y, sizeof b);
    return (a > b) - (a < b);
}

static uint64_t ppm_of(uint64_t part, uint64_t all)
{
    return all ? part * HT_PPM / all : HT_PPM;
}

static uint64_t ttft_of(const ht_sched_sample *s)
{
    return s->t_ns[0] - s->intended_ns;
}

static uint64_t tpot_of(const ht_sched_sample *s)
{
    return (s->t_ns[s->n - 1] - s->t_ns[0]) / (s->n - 1);
}

/* Share of a request's tokens that came by their deadlines: the first one TTFT objective after the
 * arrival, each other one TPOT objective after the deadline before, so that what is early is slack
 * and holding tokens back gains nothing; after a late token the deadlines follow it. */
static uint64_t fluidity(const ht_sched_scope *o, const ht_sched_sample *s)
{
    const uint64_t step = (uint64_t)o->tpot_ms * 1000000;
    uint64_t due = s->intended_ns + (uint64_t)o->ttft_ms * 1000000, met = 0;
    for (uint32_t k = 0; k < s->n; k++) {
        const bool in_time = s->t_ns[k] <= due;
        met += in_time;
        due = (in_time ? due : s->t_ns[k]) + step;
    }
    return met * HT_PPM / s->n;
}

static void add_sample(const ht_schedule *v, const ht_arrival *x, const ht_sched_sample *s, side *t)
{
    const ht_sched_scope *o = &v->scope;
    const uint64_t lag = s->send_lag_ns;
    t->offered++;
    t->class_offered[x->is_long]++;
    t->lag_ns = lag > t->lag_ns ? lag : t->lag_ns;
    t->rejected += s->status == HT_SS_REJECTED;
    if (s->status != HT_SS_OK) return;
    const uint64_t ttft = ttft_of(s);
    const bool good =
        ttft <= (uint64_t)o->ttft_ms * 1000000 && tpot_of(s) <= (uint64_t)o->tpot_ms * 1000000;
    t->ok++;
    t->good += good;
    t->class_good[x->is_long] += good;
    t->fluid_sum += fluidity(o, s);
    t->wait_ns = ttft > t->wait_ns ? ttft : t->wait_ns;
    t->ttft[t->n] = ttft;
    t->e2e[t->n++] = s->t_ns[s->n - 1] - s->intended_ns;
}

static int add_run(const ht_schedule *v, uint32_t pair, int arm, side *t)
{
    const ht_sched_run *x = &v->run[2 * (size_t)pair + (size_t)arm];
    uint64_t end = 0;
    for (uint32_t i = 0; i < v->requests; i++) {
        add_sample(v, &v->arrival[(size_t)pair * v->requests + i], &x->sample[i], t);
        end = x->sample[i].end_ns > end ? x->sample[i].end_ns : end;
    }
    const uint64_t after = end - x->sample[v->requests - 1].intended_ns;
    t->recovery_ns = after > t->recovery_ns ? after : t->recovery_ns;
    t->bounds += x->bounds;
    t->misses += x->misses;
    t->worst = x->misses > t->worst ? x->misses : t->worst;
    t->idle += x->idle_queued;
    t->overlapped += x->overlapped;
    t->serialised += x->serialised;
    return 0;
}

static int collect(ht_arena *a, analysis *x, ht_err *e)
{
    const ht_schedule *v = x->v;
    for (uint32_t s = 0; s < HT_SCHED_SCENARIOS; s++)
        for (int arm = A; arm < ARMS; arm++) {
            side *t = &x->of[s][arm];
            const size_t n = (size_t)v->reps * v->requests;
            t->e2e = ht_arena_array(a, n, sizeof *t->e2e);
            t->ttft = ht_arena_array(a, n, sizeof *t->ttft);
            if (!t->e2e || !t->ttft) return HT_FAIL(e, HT_ENOMEM, "analysis: no memory");
            for (uint32_t r = 0; r < v->reps; r++)
                HT_TRY(add_run(v, r * HT_SCHED_SCENARIOS + s, arm, t));
            qsort(t->e2e, t->n, sizeof *t->e2e, by_value);
            qsort(t->ttft, t->n, sizeof *t->ttft, by_value);
        }
    for (uint32_t k = 0; k < 2 * v->reps * HT_SCHED_SCENARIOS; k++) {
        x->red |= v->run[k].guards.red;
        x->missing |= v->run[k].guards.unknown & v->policy.required;
        x->unclean = x->unclean || v->run[k].exit_status != 0;
        for (uint32_t i = 0; i < v->requests; i++)
            x->stuck = x->stuck || v->run[k].sample[i].status == HT_SS_FAILED;
    }
    return 0;
}

/* Both arms of a request answered: the same tokens, whatever ran beside it. */
static void compare_outputs(analysis *x)
{
    const ht_schedule *v = x->v;
    for (uint32_t p = 0; p < v->reps * HT_SCHED_SCENARIOS; p++)
        for (uint32_t i = 0; i < v->requests; i++) {
            const ht_sched_sample *a = &v->run[2 * (size_t)p].sample[i];
            const ht_sched_sample *b = &v->run[2 * (size_t)p + 1].sample[i];
            if (a->status != HT_SS_OK || b->status != HT_SS_OK) continue;
            x->compared++;
            x->equal += memcmp(a->tok, b->tok, a->n * sizeof *a->tok) == 0;
        }
}

/* Lower median of a run's times to the last token; a request without an answer is the longest
 * there is. 0: that is the median. */
static uint64_t median_e2e(const ht_schedule *v, uint32_t pair, int arm, uint64_t *room)
{
    const ht_sched_run *x = &v->run[2 * (size_t)pair + (size_t)arm];
    size_t n = 0;
    for (uint32_t i = 0; i < v->requests; i++) {
        const ht_sched_sample *s = &x->sample[i];
        if (s->status == HT_SS_OK) room[n++] = s->t_ns[s->n - 1] - s->intended_ns;
    }
    qsort(room, n, sizeof *room, by_value);
    const size_t at = (v->requests - 1) / 2;
    return at < n ? room[at] : 0;
}

/* Reference / candidate: of the median of each loaded run, and request by request where one runs
 * alone. */
static int ratios(ht_arena *a, analysis *x, ht_err *e)
{
    const ht_schedule *v = x->v;
    uint64_t *room = ht_arena_array(a, v->requests, sizeof *room), ttft[HT_STAT_MAX_N];
    uint64_t tpot[HT_STAT_MAX_N];
    uint32_t n = 0;
    if (!room) return HT_FAIL(e, HT_ENOMEM, "analysis: no memory");
    x->gain_known = x->flow_known = true;
    for (uint32_t p = 0; p < v->reps * HT_SCHED_SCENARIOS; p++) {
        if (p % HT_SCHED_SCENARIOS == 0) continue;
        const uint64_t ref = median_e2e(v, p, A, room), ours = median_e2e(v, p, B, room);
        if (!ref) x->gain_known = false;
        else HT_TRY(ht_stat_ratio(ref, ours, &x->ratio[x->n_ratio++], e));
    }
    if (x->gain_known) HT_TRY(ht_stat_pairs(x->ratio, x->n_ratio, &x->gain, e));
    for (uint32_t r = 0; r < v->reps; r++)
        for (uint32_t i = 0; i < v->requests && n < HT_STAT_MAX_N; i++, n++) {
            const ht_sched_run *run = &v->run[2 * (size_t)r * HT_SCHED_SCENARIOS];
            const ht_sched_sample *ref = &run[A].sample[i], *ours = &run[B].sample[i];
            if (ref->status != HT_SS_OK) {
                x->flow_known = false;
                return 0;
            }
            const bool ok = ours->status == HT_SS_OK;
            HT_TRY(ht_stat_ratio(ttft_of(ref), ok ? ttft_of(ours) : 0, &ttft[n], e));
            /* A stream that ends within one tick of the clock is not faster than another. */
            HT_TRY(ht_stat_ratio(tpot_of(ref) + 1, ok ? tpot_of(ours) + 1 : 0, &tpot[n], e));
        }
    HT_TRY(ht_stat_pairs(ttft, n, &x->flow_ttft, e));
    return ht_stat_pairs(tpot, n, &x->flow_tpot, e);
}

/* ---- gates ---- */

static void gate(analysis *x, enum ht_sched_gate g, bool pass, const char *why)
{
    x->out.gate[g] = pass ? HT_PASS : HT_FAILED;
    x->why[g] = pass ? "OK" : why;
}

static uint64_t attained(const side *t)
{
    return ppm_of(t->good, t->offered);
}

/* Predicted upper bounds of shared passes against what the passes took. */
static void gate_calibration(analysis *x)
{
    const ht_policy *p = &x->v->policy;
    uint64_t n = 0, misses = 0, worst = 0;
    for (uint32_t s = 0; s < HT_SCHED_SCENARIOS; s++) {
        const side *t = &x->of[s][B];
        n += t->bounds;
        misses += t->misses;
        worst = t->worst > worst ? t->worst : worst;
    }
    const uint32_t cap = 1u << 30; /* more than the tables will ever ask for */
    const enum ht_tail r = ht_stat_tail(
        p->tail_quantile_ppm, p->tail_conf_ppm, (uint32_t)(n < cap ? n : cap),
        (uint32_t)(misses < cap ? misses : cap), (uint32_t)(worst < cap ? worst : cap));
    gate(x, HT_SG_CALIBRATION, r == HT_TAIL_PASS, r == HT_TAIL_FAIL ? "BOUNDS_MISSED" : "TOO_FEW");
    if (r == HT_TAIL_TOO_FEW) x->out.gate[HT_SG_CALIBRATION] = HT_NOT_RUN;
    if (r != HT_TAIL_PASS && p->may_skip >> HT_GATE_TAIL & 1)
        x->out.gate[HT_SG_CALIBRATION] = HT_NOT_APPLICABLE;
}

static void gate_loads(analysis *x)
{
    const ht_schedule *v = x->v;
    const uint64_t delta = v->delta_ppm, slack = (uint64_t)v->scope.ttft_ms * 1000000;
    bool attain = true, fluid = true, recover = true, classes = true, monotone = true;
    for (uint32_t s = 1; s < HT_SCHED_SCENARIOS; s++) {
        const side *a = &x->of[s][A], *b = &x->of[s][B], *alone = &x->of[0][A];
        const uint32_t rate = (s - 1) % HT_SCHED_RATES;
        attain = attain && attained(b) + delta >= attained(a);
        fluid = fluid && b->fluid_sum / b->offered + delta >= a->fluid_sum / a->offered;
        recover =
            recover && b->recovery_ns <= a->recovery_ns + slack + a->recovery_ns / HT_PPM * delta;
        if (rate) monotone = monotone && attained(&x->of[s - 1][B]) + delta >= attained(b);
        for (int k = 0; k < 2 && rate == 0; k++)
            classes = classes && ppm_of(b->class_good[k], b->class_offered[k]) + delta >=
                                     ppm_of(alone->class_good[k], alone->class_offered[k]);
    }
    gate(x, HT_SG_ATTAINMENT, attain, "WORSE_THAN_FIFO");
    gate(x, HT_SG_DEADLINES, fluid, "WORSE_THAN_FIFO");
    gate(x, HT_SG_RECOVERY, recover, "SLOWER_THAN_FIFO");
    gate(x, HT_SG_CLASSES, classes, "WORSE_THAN_ALONE");
    gate(x, HT_SG_MONOTONE, monotone, "LESS_LOAD_IS_WORSE");
}

static void gate_order(analysis *x)
{
    const ht_schedule *v = x->v;
    uint64_t wait = 0, lag = 0, idle = 0;
    for (uint32_t s = 0; s < HT_SCHED_SCENARIOS; s++) {
        wait = x->of[s][B].wait_ns > wait ? x->of[s][B].wait_ns : wait;
        idle += x->of[s][B].idle;
        for (int arm = A; arm < ARMS; arm++)
            lag = x->of[s][arm].lag_ns > lag ? x->of[s][arm].lag_ns : lag;
    }
    gate(x, HT_SG_ENVIRONMENT, !x->red && !x->missing, x->red ? "RED" : "UNKNOWN");
    gate(x, HT_SG_COMPLETE, !x->unclean && lag <= (uint64_t)v->scope.ttft_ms * 250000,
         x->unclean ? "SERVER_ENDED_BADLY" : "SENT_TOO_LATE");
    gate(x, HT_SG_QUALITY, x->compared && x->equal == x->compared,
         x->compared ? "OTHER_TOKENS" : "NOTHING_TO_COMPARE");
    gate(x, HT_SG_STARVATION, !x->stuck && wait <= v->max_wait_ns,
         x->stuck ? "NOT_ANSWERED" : "WAITED_TOO_LONG");
    gate(x, HT_SG_CONSERVATION, !idle, "IDLE_WITH_A_QUEUE");
}

static void gate_gain(analysis *x)
{
    const ht_policy *p = &x->v->policy;
    const uint64_t least = HT_PPM - x->v->delta_ppm;
    const bool flow = x->flow_known && x->flow_ttft.lo >= least && x->flow_tpot.lo >= least;
    gate(x, HT_SG_SINGLE_FLOW, flow, x->flow_known ? "SLOWER_ALONE" : "REFERENCE_FAILED");
    const bool gain = x->gain_known && x->gain.lo >= p->min_lower_ppm;
    const bool sign = !p->sign_test || (x->gain_known && ht_prob_le(x->gain.sign, 1, p->alpha_ppm));
    gate(x, HT_SG_GAIN, gain && sign,
         !x->gain_known ? "REFERENCE_FAILED"
         : gain         ? "SIGN"
                        : "LOWER_BOUND");
}

/* The first that applies. */
static enum ht_class class_of(const analysis *x)
{
    static const struct {
        uint8_t gate, cls;
    } order[] = {{HT_SG_QUALITY, HT_FAIL_QUALITY},
                 {HT_SG_ENVIRONMENT, HT_NOT_ADMISSIBLE_ENV},
                 {HT_SG_COMPLETE, HT_INCONCLUSIVE_ENV},
                 {HT_SG_STARVATION, HT_FAIL_TAIL},
                 {HT_SG_RECOVERY, HT_FAIL_TAIL},
                 {HT_SG_CALIBRATION, HT_FAIL_TAIL},
                 {HT_SG_ATTAINMENT, HT_FAIL_PERF},
                 {HT_SG_DEADLINES, HT_FAIL_PERF},
                 {HT_SG_SINGLE_FLOW, HT_FAIL_PERF},
                 {HT_SG_CLASSES, HT_FAIL_PERF},
                 {HT_SG_CONSERVATION, HT_FAIL_PERF},
                 {HT_SG_MONOTONE, HT_FAIL_PERF},
                 {HT_SG_GAIN, HT_FAIL_PERF}};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (x->out.gate[order[i].gate] == HT_FAILED) return (enum ht_class)order[i].cls;
    return x->out.gate[HT_SG_CALIBRATION] == HT_NOT_RUN ? HT_INCONCLUSIVE_STATS : HT_QUALIFIED;
}

static int analyze(ht_arena *a, const ht_schedule *v, analysis *x, ht_err *e)
{
    *x = (analysis){.v = v};
    HT_TRY(collect(a, x, e));
    compare_outputs(x);
    HT_TRY(ratios(a, x, e));
    gate_order(x);
    gate_calibration(x);
    gate_loads(x);
    gate_gain(x);
    x->out.cls = (uint8_t)class_of(x);
    x->out.hardware_evidence = !v->synthetic;
    x->out.production_eligible = x->out.cls == HT_QUALIFIED && !v->synthetic &&
                                 !v->policy.fixture && !v->dirty && !v->unreadable;
    return 0;
}

/* ---- the document ---- */

static void write_times(ht_jw *w, const char *key, const uint64_t *t, size_t n)
{
    if (!n) {
        ht_jw_unknown(w, key, "ALL_FAILED");
        return;
    }
    ht_jw_key(w, key);
    ht_jw_obj(w);
    ht_jw_kuint(w, "maxNs", t[n - 1]);
    ht_jw_kuint(w, "p50Ns", t[(n - 1) / 2]);
    ht_jw_end(w, '}');
}

static void write_side(ht_jw *w, const char *key, const side *t)
{
    ht_jw_key(w, key);
    ht_jw_obj(w);
    ht_jw_kuint(w, "attainedPpm", attained(t));
    ht_jw_kuint(w, "boundMisses", t->misses);
    ht_jw_kuint(w, "bounds", t->bounds);
    write_times(w, "e2e", t->e2e, t->n);
    ht_jw_kuint(w, "fluidityPpm", t->fluid_sum / t->offered);
    ht_jw_kuint(w, "good", t->good);
    ht_jw_kuint(w, "goodLong", t->class_good[1]);
    ht_jw_kuint(w, "goodShort", t->class_good[0]);
    ht_jw_kuint(w, "idleQueued", t->idle);
    ht_jw_kuint(w, "offered", t->offered);
    ht_jw_kuint(w, "offeredLong", t->class_offered[1]);
    ht_jw_kuint(w, "ok", t->ok);
    ht_jw_kuint(w, "overlapped", t->overlapped);
    ht_jw_kuint(w, "recoveryNs", t->recovery_ns);
    ht_jw_kuint(w, "rejected", t->rejected);
    ht_jw_kuint(w, "sendLagNs", t->lag_ns);
    ht_jw_kuint(w, "serialised", t->serialised);
    write_times(w, "ttft", t->ttft, t->n);
    ht_jw_end(w, '}');
}

static void write_names(ht_jw *w, const char *key, uint32_t set)
{
    ht_jw_key(w, key);
    ht_jw_arr(w);
    for (unsigned g = 0; g < HT_GUARDS; g++)
        if (set >> g & 1) ht_jw_str(w, ht_guard_names[g]);
    ht_jw_end(w, ']');
}

static void write_scenarios(ht_jw *w, const analysis *x)
{
    ht_jw_key(w, "scenarios");
    ht_jw_arr(w);
    for (uint32_t s = 0; s < HT_SCHED_SCENARIOS; s++) {
        ht_jw_obj(w);
        write_side(w, "A", &x->of[s][A]);
        write_side(w, "B", &x->of[s][B]);
        ht_jw_kstr(w, "kind", s ? ht_sched_kinds[(s - 1) / HT_SCHED_RATES] : "alone");
        ht_jw_kuint(w, "ratePpm", s ? x->v->rate_ppm[(s - 1) % HT_SCHED_RATES] : 0);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

static int write_analysis(const analysis *x, ht_buf *out, ht_err *e)
{
    ht_jw w;
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "bundleId", x->v->in->sha256);
    ht_jw_kstr(&w, "class", ht_class_names[x->out.cls]);
    evid__write_stat(&w, "gain", &x->gain, x->gain_known, "REFERENCE_FAILED");
    ht_jw_key(&w, "gates");
    ht_jw_arr(&w);
    for (int g = 0; g < HT_SG_GATES; g++) {
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "gate", gate_names[g]);
        ht_jw_kstr(&w, "result", ht_gate_result_names[x->out.gate[g]]);
        ht_jw_kstr(&w, "why", x->why[g]);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    write_names(&w, "guardsRed", x->red);
    write_names(&w, "guardsUnknown", x->missing);
    ht_jw_kuint(&w, "outputsCompared", x->compared);
    ht_jw_kuint(&w, "outputsEqual", x->equal);
    ht_jw_kstr(&w, "policySha256", x->v->policy.sha256);
    ht_jw_key(&w, "ratiosPpm");
    ht_jw_arr(&w);
    for (uint32_t i = 0; x->gain_known && i < x->n_ratio; i++) ht_jw_uint(&w, x->ratio[i]);
    ht_jw_end(&w, ']');
    ht_jw_kuint(&w, "saturationMicroHz", x->v->saturation_uhz);
    write_scenarios(&w, x);
    ht_jw_kstr(&w, "schema", "hetero/sched/1");
    ht_jw_kstr(&w, "scopeSha256", x->v->scope_sha);
    evid__write_stat(&w, "singleFlowTpot", &x->flow_tpot, x->flow_known, "REFERENCE_FAILED");
    evid__write_stat(&w, "singleFlowTtft", &x->flow_ttft, x->flow_known, "REFERENCE_FAILED");
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "scheduler analysis", e);
}

/* ---- statement, sealing, verification ---- */

static int write_statement(const ht_schedule *v, const ht_sched_verdict *verdict,
                           const char *outputs_sha, ht_buf *out, ht_err *e)
{
    const evid__named subjects[] = {{"modelPack", v->scope.model_sha},
                                    {"tokenizer", v->scope.tok_sha},
                                    {"binary", v->scope.binary_sha},
                                    {"assets", v->scope.assets_sha},
                                    {"scope", v->scope_sha}};
    const evid__claim claim = {.predicate_type = HT_PRED_SCHEDULER,
                               .schema = HT_SCHED_DESIGN,
                               .bundle_id = v->in->sha256,
                               .outputs_sha = outputs_sha,
                               .policy_sha = v->policy.sha256,
                               .subject = subjects,
                               .n_subjects = sizeof subjects / sizeof *subjects,
                               .hardware_evidence = verdict->hardware_evidence,
                               .production_eligible = verdict->production_eligible};
    return evid__write_statement(&claim, out, e);
}

static int seal(ht_arena *a, const char *dir, const ht_key *bench, ht_buf *b,
                char id[HT_SHA256_HEX], ht_err *e)
{
    static const char *const path[] = {HT_SCHED_ANALYSIS}, *const role[] = {"output"};
    ht_manifest in;
    ht_schedule v;
    analysis *x = ht_arena_alloc(a, sizeof *x);
    char sha[HT_SHA256_HEX];
    if (!x) return HT_FAIL(e, HT_ENOMEM, "analysis: no memory");
    HT_TRY(evid__list_inputs(a, dir, b, e));
    HT_TRY(ht_manifest_read(a, dir, b->p, b->n, "hetero/inputs/1", NULL, HT_BUNDLE_MAX, &in, e));
    HT_TRY(ht_schedule_read(a, &in, &v, e));
    HT_TRY(analyze(a, &v, x, e));
    HT_TRY(evid__put_file(dir, "inputs.manifest.json", b->p, b->n, e));
    ht_buf_clear(b);
    HT_TRY(write_analysis(x, b, e));
    HT_TRY(evid__put_file(dir, HT_SCHED_ANALYSIS, b->p, b->n, e));
    ht_buf_clear(b);
    HT_TRY(ht_manifest_write(a, dir, "hetero/outputs/1", path, role, 1, in.sha256, b, e));
    HT_TRY(evid__sha256_of(b->p, b->n, sha, e));
    HT_TRY(evid__put_file(dir, "outputs.manifest.json", b->p, b->n, e));
    ht_buf_clear(b);
    HT_TRY(write_statement(&v, &x->out, sha, b, e));
    HT_TRY(evid__put_statement(dir, bench, b, e));
    memcpy(id, in.sha256, HT_SHA256_HEX);
    return 0;
}

int ht_schedule_seal(const char *dir, const ht_key *bench, char id[HT_SHA256_HEX], ht_err *e)
{
    return evid__seal(seal, dir, bench, id, e);
}

static int recompute(ht_arena *a, const char *dir, const ht_trust *t, int64_t now,
                     const ht_manifest *outs, const analysis *x, ht_scheduled *v, ht_buf *b,
                     ht_err *e)
{
    const ht_mfile *f = &outs->file[0];
    ht_json *doc;
    if (outs->n != 1 || strcmp(f->path, HT_SCHED_ANALYSIS) != 0)
        return HT_FAIL(e, HT_EFORMAT, "MANIFEST: the output is " HT_SCHED_ANALYSIS);
    HT_TRY(write_analysis(x, b, e));
    HT_TRY(evid__same_output(f, b, e));
    HT_TRY(ht_json_parse(a, f->data, f->bytes, HT_JSON_CANON, f->path, &doc, e));
    v->analysis = doc;
    memcpy(v->analysis_sha, f->sha256, sizeof v->analysis_sha);
    ht_buf_clear(b);
    HT_TRY(write_statement(&v->evidence, &v->verdict, outs->sha256, b, e));
    return evid__check_statement(a, dir, t, HT_PRED_SCHEDULER, now, b, v->statement_sha,
                                 v->bench_key, e);
}

int ht_schedule_verify(ht_arena *a, const char *dir, const ht_trust *t, int64_t now_unix,
                       ht_scheduled *v, ht_err *e)
{
    ht_manifest *in = ht_arena_alloc(a, sizeof *in), outs;
    analysis *x = ht_arena_alloc(a, sizeof *x);
    ht_buf b;
    *v = (ht_scheduled){0};
    if (!in || !x) return HT_FAIL(e, HT_ENOMEM, "verify: no memory");
    HT_TRY(evid__read_manifests(a, dir, in, &outs, e));
    HT_TRY(ht_schedule_read(a, in, &v->evidence, e));
    HT_TRY(analyze(a, &v->evidence, x, e));
    v->verdict = x->out;
    memcpy(v->id, in->sha256, sizeof v->id);
    ht_buf_init(&b, 0);
    int rc = recompute(a, dir, t, now_unix, &outs, x, v, &b, e);
    ht_buf_done(&b);
    return rc;
}

bool ht_is_schedule(const char *dir)
{
    return evid__design_is(dir, HT_SCHED_DESIGN);
}
