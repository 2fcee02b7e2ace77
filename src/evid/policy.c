/* policy.c - reading a gate policy, and the default one; see policy.h. */
#include "evid/policy.h"
#include "evid/verdict.h"
#include <string.h>

const char *const ht_guard_names[HT_GUARDS + 1] = {
    "acOnline", "clocksSteady",     "eccDelta", "foreignCpuPpm", "gpuEvents",
    "gpuProcs", "nrThrottledDelta", "psiPpm",   "stealPpm",      "suspendNs",
    "swapIns",  "throttleDelta",    NULL};
const char *const ht_metric_names[HT_METRICS + 2] = {"ttftNs", "tpotNs", "e2eNs", "cell", NULL};

/* Guards that a machine without a GPU cannot know are not required. The tail limit is relative: a
 * request misses it when it takes 1.25 times the slowest of the reference. */
const char ht_policy_default[] =
    "{\"design\":{\"arms\":2,\"blocks\":\"ABBA_BAAB\",\"freshProcess\":true,\"minPairs\":12,"
    "\"nullRun\":{\"maxHalfWidthPpm\":15000,\"pairs\":12}},\"fixture\":false,"
    "\"guards\":{\"maxForeignCpuPpm\":20000,\"maxPsiPpm\":10000,\"maxStealPpm\":1000,"
    "\"psiMinCpus\":5,\"required\":[\"acOnline\",\"clocksSteady\",\"foreignCpuPpm\","
    "\"nrThrottledDelta\",\"stealPpm\",\"suspendNs\",\"swapIns\",\"throttleDelta\"]},"
    "\"id\":\"default-2026-1\",\"mayNotApply\":[],\"onUnknown\":\"REFERENCE\","
    "\"perf\":{\"alphaPpm\":50000,\"correction\":\"HOLM\",\"minLowerRatioPpm\":1030000,"
    "\"mode\":\"SUPERIOR\",\"signTest\":true},\"plan\":{\"minGainPpm\":1010000},"
    "\"prohibited\":[\"promptCacheUnlessDeclared\",\"benchmarkDetection\",\"outputTruncation\"],"
    "\"quality\":{\"corpusSha256\":{\"known\":false,\"reason\":\"ANY\"},"
    "\"lengthBandPpm\":[900000,1100000],\"maxKldMeanMicro\":1000,\"maxKldP999Micro\":50000,"
    "\"minExactTokenPpm\":990000,\"minTop1Ppm\":990000,\"taskNonInferiorityPpm\":10000},"
    "\"retries\":{\"maxVoidBlocksPpm\":200000,\"perBlock\":1},\"schema\":\"hetero/policy/1\","
    "\"tail\":{\"confPpm\":990000,\"metric\":\"cell\",\"quantilePpm\":950000,"
    "\"sloNs\":{\"known\":false,\"reason\":\"RELATIVE\"},\"sloRefPpm\":1250000},"
    "\"validity\":{\"canaryOnStale\":true,\"maxAgeDays\":90}}";

static const char *const block_names[] = {"ABBA_BAAB", NULL};
static const char *const correction_names[] = {"HOLM", NULL};
static const char *const mode_names[] = {"SUPERIOR", "NON_INFERIOR", NULL};
static const char *const unknown_names[] = {"REFERENCE", "ERROR", NULL};
static const char *const prohibited_names[] = {"promptCacheUnlessDeclared", "benchmarkDetection",
                                               "outputTruncation", NULL};

static const ht_field null_fields[] = {
    {.key = "maxHalfWidthPpm", .type = HT_S_INT, .lo = 1, .hi = 1000000},
    {.key = "pairs", .type = HT_S_INT, .lo = 8, .hi = 40},
    {0},
};
static const ht_field design_fields[] = {
    {.key = "arms", .type = HT_S_INT, .lo = 2, .hi = 2},
    {.key = "blocks", .type = HT_S_ENUM, .names = block_names},
    {.key = "freshProcess", .type = HT_S_BOOL},
    {.key = "minPairs", .type = HT_S_INT, .lo = 8, .hi = 40},
    {.key = "nullRun", .type = HT_S_OBJ, .sub = null_fields},
    {0},
};
static const ht_field guard_fields[] = {
    {.key = "maxForeignCpuPpm", .type = HT_S_INT},
    {.key = "maxPsiPpm", .type = HT_S_INT},
    {.key = "maxStealPpm", .type = HT_S_INT},
    {.key = "psiMinCpus", .type = HT_S_INT, .lo = 1, .hi = 100000},
    {.key = "required", .type = HT_S_ARR, .item = HT_S_ENUM, .names = ht_guard_names},
    {0},
};
static const ht_field perf_fields[] = {
    {.key = "alphaPpm", .type = HT_S_INT, .lo = 1, .hi = 500000},
    {.key = "correction", .type = HT_S_ENUM, .names = correction_names},
    {.key = "minLowerRatioPpm", .type = HT_S_INT, .lo = 1, .hi = 1000000000},
    {.key = "mode", .type = HT_S_ENUM, .names = mode_names},
    {.key = "signTest", .type = HT_S_BOOL},
    {0},
};
static const ht_field plan_fields[] = {
    {.key = "minGainPpm", .type = HT_S_INT, .lo = 1, .hi = 10000000},
    {0},
};
static const ht_field quality_fields[] = {
    {.key = "corpusSha256", .type = HT_S_MAYBE_SHA256},
    {.key = "lengthBandPpm", .type = HT_S_ARR, .item = HT_S_INT, .lo = 1, .hi = 10000000},
    {.key = "maxKldMeanMicro", .type = HT_S_INT},
    {.key = "maxKldP999Micro", .type = HT_S_INT},
    {.key = "minExactTokenPpm", .type = HT_S_INT, .lo = 1, .hi = 1000000},
    {.key = "minTop1Ppm", .type = HT_S_INT, .lo = 1, .hi = 1000000},
    {.key = "taskNonInferiorityPpm", .type = HT_S_INT, .lo = 1, .hi = 1000000},
    {0},
};
static const ht_field retry_fields[] = {
    {.key = "maxVoidBlocksPpm", .type = HT_S_INT, .lo = 1, .hi = 1000000},
    {.key = "perBlock", .type = HT_S_INT, .lo = 1, .hi = 10},
    {0},
};
static const ht_field tail_fields[] = {
    {.key = "confPpm", .type = HT_S_INT, .lo = 950000, .hi = 990000},
    {.key = "metric", .type = HT_S_ENUM, .names = ht_metric_names},
    {.key = "quantilePpm", .type = HT_S_INT, .lo = 900000, .hi = 990000},
    {.key = "sloNs", .type = HT_S_MAYBE_INT},
    {.key = "sloRefPpm", .type = HT_S_INT, .lo = 1000000, .hi = 100000000},
    {0},
};
static const ht_field validity_fields[] = {
    {.key = "canaryOnStale", .type = HT_S_BOOL},
    {.key = "maxAgeDays", .type = HT_S_INT, .lo = 1, .hi = 3650},
    {0},
};
static const ht_field policy_fields[] = {
    {.key = "design", .type = HT_S_OBJ, .sub = design_fields},
    {.key = "fixture", .type = HT_S_BOOL},
    {.key = "guards", .type = HT_S_OBJ, .sub = guard_fields},
    {.key = "id", .type = HT_S_STR},
    {.key = "mayNotApply", .type = HT_S_ARR, .item = HT_S_ENUM, .names = ht_gate_names},
    {.key = "onUnknown", .type = HT_S_ENUM, .names = unknown_names},
    {.key = "perf", .type = HT_S_OBJ, .sub = perf_fields},
    {.key = "plan", .type = HT_S_OBJ, .sub = plan_fields},
    {.key = "prohibited", .type = HT_S_ARR, .item = HT_S_ENUM, .names = prohibited_names},
    {.key = "quality", .type = HT_S_OBJ, .sub = quality_fields},
    {.key = "retries", .type = HT_S_OBJ, .sub = retry_fields},
    {.key = "tail", .type = HT_S_OBJ, .sub = tail_fields},
    {.key = "validity", .type = HT_S_OBJ, .sub = validity_fields},
    {0},
};

static uint64_t num(const ht_json *doc, const char *path)
{
    const ht_json *v = ht_json_path(doc, path);
    return v && v->type == HT_JINT ? (uint64_t)v->i : 0;
}

static bool on(const ht_json *doc, const char *path)
{
    const ht_json *v = ht_json_path(doc, path);
    return v && v->b;
}

static uint8_t index_of(const char *const *names, const char *word)
{
    uint8_t i = 0;
    while (names[i] && strcmp(names[i], word) != 0) i++;
    return i;
}

static uint32_t bits(const ht_json *list, const char *const *names)
{
    uint32_t set = 0;
    for (size_t i = 0; i < list->n; i++) set |= 1u << index_of(names, list->at[i].s);
    return set;
}

static void read_rest(const ht_json *doc, ht_policy *p)
{
    const ht_json *band = ht_json_path(doc, "quality.lengthBandPpm");
    const ht_json *corpus = ht_json_path(doc, "quality.corpusSha256");
    p->corpus_sha = corpus->type == HT_JSTR ? corpus->s : NULL;
    p->length_ppm[0] = (uint64_t)band->at[0].i;
    p->length_ppm[1] = (uint64_t)band->at[1].i;
    p->kld_mean_micro = num(doc, "quality.maxKldMeanMicro");
    p->kld_p999_micro = num(doc, "quality.maxKldP999Micro");
    p->exact_ppm = num(doc, "quality.minExactTokenPpm");
    p->top1_ppm = num(doc, "quality.minTop1Ppm");
    p->task_ppm = num(doc, "quality.taskNonInferiorityPpm");
    p->max_foreign_ppm = num(doc, "guards.maxForeignCpuPpm");
    p->max_psi_ppm = num(doc, "guards.maxPsiPpm");
    p->max_steal_ppm = num(doc, "guards.maxStealPpm");
    p->psi_min_cpus = (uint32_t)num(doc, "guards.psiMinCpus");
    p->required = bits(ht_json_path(doc, "guards.required"), ht_guard_names);
    p->max_void_ppm = num(doc, "retries.maxVoidBlocksPpm");
    p->retries = (uint32_t)num(doc, "retries.perBlock");
    p->may_skip = bits(ht_json_get(doc, "mayNotApply"), ht_gate_names);
    p->max_age_days = (uint32_t)num(doc, "validity.maxAgeDays");
    p->canary_on_stale = on(doc, "validity.canaryOnStale");
    p->error_on_unknown = strcmp(ht_json_get(doc, "onUnknown")->s, "ERROR") == 0;
    p->plan_margin_ppm = num(doc, "plan.minGainPpm");
}

int ht_policy_parse(ht_arena *a, const char *text, size_t n, ht_policy *p, ht_err *e)
{
    ht_json *doc;
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_json_parse(a, text, n, HT_JSON_CANON, "policy", &doc, e));
    HT_TRY(ht_schema_check(doc, policy_fields, "hetero/policy/1", "policy", e));
    const ht_json *band = ht_json_path(doc, "quality.lengthBandPpm");
    if (band->n != 2 || band->at[0].i > band->at[1].i)
        return HT_FAIL(e, HT_EFORMAT, "policy: quality.lengthBandPpm must be [low,high]");
    *p = (ht_policy){.id = ht_json_get(doc, "id")->s,
                     .fixture = on(doc, "fixture"),
                     .min_pairs = (uint32_t)num(doc, "design.minPairs"),
                     .null_pairs = (uint32_t)num(doc, "design.nullRun.pairs"),
                     .null_half_width_ppm = num(doc, "design.nullRun.maxHalfWidthPpm"),
                     .alpha_ppm = num(doc, "perf.alphaPpm"),
                     .min_lower_ppm = num(doc, "perf.minLowerRatioPpm"),
                     .sign_test = on(doc, "perf.signTest"),
                     .tail_conf_ppm = num(doc, "tail.confPpm"),
                     .tail_quantile_ppm = num(doc, "tail.quantilePpm"),
                     .tail_slo_ns = num(doc, "tail.sloNs"),
                     .tail_slo_ref_ppm = num(doc, "tail.sloRefPpm"),
                     .tail_metric = index_of(ht_metric_names, ht_json_path(doc, "tail.metric")->s)};
    read_rest(doc, p);
    if (!p->fixture && p->plan_margin_ppm < 1000000)
        return HT_FAIL(e, HT_EFORMAT,
                       "policy: plan.minGainPpm below 1000000 admits a loss: fixtures only");
    if (p->min_pairs % 4 || p->null_pairs % 4)
        return HT_FAIL(e, HT_EFORMAT, "policy: pairs must be a multiple of 4 (blocks of two)");
    if (!on(doc, "design.freshProcess"))
        return HT_FAIL(e, HT_EFORMAT, "policy: design.freshProcess must be true");
    bool superior = strcmp(ht_json_path(doc, "perf.mode")->s, "SUPERIOR") == 0;
    if (superior != (p->min_lower_ppm >= 1000000))
        return HT_FAIL(e, HT_EFORMAT, "policy: perf.mode and perf.minLowerRatioPpm disagree");
    if (!ht_stat_tail_needed(p->tail_quantile_ppm, p->tail_conf_ppm, 0))
        return HT_FAIL(e, HT_EFORMAT, "policy: no table for this tail quantile and confidence");
    HT_TRY(ht_sha256_of(text, n, digest, e));
    ht_hex(digest, sizeof digest, p->sha256);
    return 0;
}

static const ht_field telemetry_fields[] = {
    {.key = "acOnline", .type = HT_S_MAYBE_BOOL},
    {.key = "clocksSteady", .type = HT_S_MAYBE_BOOL},
    {.key = "eccDelta", .type = HT_S_MAYBE_INT},
    {.key = "foreignCpuPpm", .type = HT_S_MAYBE_INT},
    {.key = "gpuEvents", .type = HT_S_MAYBE_INT},
    {.key = "gpuProcs", .type = HT_S_MAYBE_INT},
    {.key = "nrThrottledDelta", .type = HT_S_MAYBE_INT},
    {.key = "psiPpm", .type = HT_S_MAYBE_INT},
    {.key = "stealPpm", .type = HT_S_MAYBE_INT},
    {.key = "suspendNs", .type = HT_S_MAYBE_INT},
    {.key = "swapIns", .type = HT_S_MAYBE_INT},
    {.key = "throttleDelta", .type = HT_S_MAYBE_INT},
    {0},
};

int ht_guards_read(const ht_json *guards, const ht_policy *p, uint32_t cpus, ht_guard_state *out,
                   ht_err *e)
{
    HT_TRY(ht_schema_check(guards, telemetry_fields, NULL, "SAMPLE guards", e));
    *out = (ht_guard_state){0, 0};
    for (unsigned g = 0; g < HT_GUARDS; g++) {
        const ht_json *v = ht_json_get(guards, ht_guard_names[g]);
        uint64_t most = g == HT_G_FOREIGN ? p->max_foreign_ppm
                        : g == HT_G_PSI   ? p->max_psi_ppm
                        : g == HT_G_STEAL ? p->max_steal_ppm
                                          : 0;
        if (v->type == HT_JOBJ) out->unknown |= 1u << g;
        else if (v->type == HT_JBOOL ? !v->b : (uint64_t)v->i > most) out->red |= 1u << g;
    }
    /* Pressure counts the waits of the measured program itself where cores are few. */
    if (cpus < p->psi_min_cpus) out->red &= ~(1u << HT_G_PSI);
    return 0;
}
