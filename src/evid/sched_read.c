/* sched_read.c - the inputs of scheduler evidence against each other: scope, design, calibration,
 * arrivals, journal, runs, samples, raw streams; see sched.h. */
#include "evid/bundle_read.h"
#include "evid/journal.h"
#include "evid/sched.h"
#include <stdio.h>
#include <string.h>

const char *const ht_sched_kinds[HT_SCHED_KINDS + 1] = {"burst", "poisson", "trace", NULL};
static const char *const arm_names[] = {"A", "B", NULL};
static const char *const class_names[] = {"long", "short", NULL};
static const char *const order_names[] = {"ABBA", NULL};
static const char *const status_names[] = {"ok", "rejected", "failed", NULL};
static const char *const policy_names[] = {"overlap", NULL};
enum { LENGTH_MAX = 1 << 20, MS_MAX = 10000000 };
#define U32_MAX   4294967295
#define UHZ_LEAST 1000           /* one request in a thousand seconds */
#define TICK_NS   100000u        /* gaps are judged in tenths of a millisecond */
#define SPAN_MAX  3600000000000u /* ns: what the squares below have room for */

/* ---- the scope ---- */

static const ht_field mix_fields[] = {
    {.key = "maxNew", .type = HT_S_INT, .lo = 2, .hi = LENGTH_MAX},
    {.key = "maxPrompt", .type = HT_S_INT, .lo = 4, .hi = LENGTH_MAX},
    {0},
};
static const ht_field precision_fields[] = {
    {.key = "act", .type = HT_S_STR},
    {.key = "kv", .type = HT_S_STR},
    {.key = "weights", .type = HT_S_STR},
    {0},
};
static const ht_field slo_fields[] = {
    {.key = "tpot", .type = HT_S_INT, .lo = 1, .hi = MS_MAX},
    {.key = "ttft", .type = HT_S_INT, .lo = 1, .hi = MS_MAX},
    {0},
};
static const ht_field scope_fields[] = {
    {.key = "arrivals", .type = HT_S_ARR, .item = HT_S_ENUM, .names = ht_sched_kinds},
    {.key = "assetsSha256", .type = HT_S_SHA256},
    {.key = "backend", .type = HT_S_STR},
    {.key = "binarySha256", .type = HT_S_SHA256},
    {.key = "ctxMax", .type = HT_S_INT, .lo = 1, .hi = U32_MAX},
    {.key = "instance", .type = HT_S_STR},
    {.key = "kvPositions", .type = HT_S_INT},
    {.key = "lengthMix", .type = HT_S_OBJ, .sub = mix_fields},
    {.key = "machineClassSha256", .type = HT_S_SHA256},
    {.key = "modelPackSha256", .type = HT_S_SHA256},
    {.key = "os", .type = HT_S_STR},
    {.key = "policy", .type = HT_S_ENUM, .names = policy_names},
    {.key = "precision", .type = HT_S_OBJ, .sub = precision_fields},
    {.key = "sloMs", .type = HT_S_OBJ, .sub = slo_fields},
    {.key = "slots", .type = HT_S_INT, .lo = 1, .hi = 256},
    {.key = "threads", .type = HT_S_INT, .lo = 1, .hi = 1000000},
    {.key = "tokenizerSha256", .type = HT_S_SHA256},
    {.key = "ubatch", .type = HT_S_INT, .lo = 0, .hi = U32_MAX},
    {0},
};

int ht_sched_scope_write(const ht_sched_scope *s, ht_buf *out, ht_err *e)
{
    const char *const text[] = {s->act,       s->kv,       s->weights,    s->backend,
                                s->model_sha, s->tok_sha,  s->binary_sha, s->assets_sha,
                                s->class_sha, s->instance, s->os};
    ht_jw w;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (!text[i]) return HT_FAIL(e, HT_EARG, "scheduler scope: a member is missing");
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_key(&w, "arrivals");
    ht_jw_arr(&w);
    for (int k = 0; k < HT_SCHED_KINDS; k++) ht_jw_str(&w, ht_sched_kinds[k]);
    ht_jw_end(&w, ']');
    ht_jw_kstr(&w, "assetsSha256", s->assets_sha);
    ht_jw_kstr(&w, "backend", s->backend);
    ht_jw_kstr(&w, "binarySha256", s->binary_sha);
    ht_jw_kuint(&w, "ctxMax", s->ctx_max);
    ht_jw_kstr(&w, "instance", s->instance);
    ht_jw_kuint(&w, "kvPositions", s->kv_positions);
    ht_jw_key(&w, "lengthMix");
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "maxNew", s->max_new);
    ht_jw_kuint(&w, "maxPrompt", s->max_prompt);
    ht_jw_end(&w, '}');
    ht_jw_kstr(&w, "machineClassSha256", s->class_sha);
    ht_jw_kstr(&w, "modelPackSha256", s->model_sha);
    ht_jw_kstr(&w, "os", s->os);
    ht_jw_kstr(&w, "policy", policy_names[0]);
    ht_jw_key(&w, "precision");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "act", s->act);
    ht_jw_kstr(&w, "kv", s->kv);
    ht_jw_kstr(&w, "weights", s->weights);
    ht_jw_end(&w, '}');
    ht_jw_kstr(&w, "schema", "hetero/schedscope/1");
    ht_jw_key(&w, "sloMs");
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "tpot", s->tpot_ms);
    ht_jw_kuint(&w, "ttft", s->ttft_ms);
    ht_jw_end(&w, '}');
    ht_jw_kuint(&w, "slots", s->slots);
    ht_jw_kuint(&w, "threads", s->threads);
    ht_jw_kstr(&w, "tokenizerSha256", s->tok_sha);
    ht_jw_kuint(&w, "ubatch", s->ubatch);
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "scheduler scope", e);
}

static int scope_of(const ht_json *j, ht_sched_scope *s, ht_err *e)
{
    HT_TRY(ht_schema_check(j, scope_fields, "hetero/schedscope/1", "scope", e));
    const ht_json *kinds = ht_json_get(j, "arrivals"), *mix = ht_json_get(j, "lengthMix");
    const ht_json *precision = ht_json_get(j, "precision"), *slo = ht_json_get(j, "sloMs");
    bool all = kinds->n == HT_SCHED_KINDS;
    for (size_t k = 0; all && k < kinds->n; k++)
        all = strcmp(kinds->at[k].s, ht_sched_kinds[k]) == 0;
    if (!all) return HT_FAIL(e, HT_EFORMAT, "DESIGN: need arrivals of all kinds, in order");
    *s = (ht_sched_scope){.ctx_max = evid__u32(j, "ctxMax"),
                          .slots = evid__u32(j, "slots"),
                          .threads = evid__u32(j, "threads"),
                          .ubatch = evid__u32(j, "ubatch"),
                          .max_prompt = evid__u32(mix, "maxPrompt"),
                          .max_new = evid__u32(mix, "maxNew"),
                          .tpot_ms = evid__u32(slo, "tpot"),
                          .ttft_ms = evid__u32(slo, "ttft"),
                          .kv_positions = (uint64_t)ht_json_get(j, "kvPositions")->i,
                          .act = evid__str(precision, "act"),
                          .kv = evid__str(precision, "kv"),
                          .weights = evid__str(precision, "weights"),
                          .backend = evid__str(j, "backend"),
                          .model_sha = evid__str(j, "modelPackSha256"),
                          .tok_sha = evid__str(j, "tokenizerSha256"),
                          .binary_sha = evid__str(j, "binarySha256"),
                          .assets_sha = evid__str(j, "assetsSha256"),
                          .class_sha = evid__str(j, "machineClassSha256"),
                          .instance = evid__str(j, "instance"),
                          .os = evid__str(j, "os")};
    return 0;
}

int ht_sched_scope_parse(ht_arena *a, const char *text, size_t n, ht_sched_scope *out, ht_err *e)
{
    ht_json *j;
    HT_TRY(ht_json_parse(a, text, n, HT_JSON_CANON, "scheduler scope", &j, e));
    return scope_of(j, out, e);
}

const char *ht_sched_scope_differs(const ht_sched_scope *x, const ht_sched_scope *y)
{
    const struct {
        const char *what, *x, *y;
    } text[] = {{"model", x->model_sha, y->model_sha},
                {"tokenizer", x->tok_sha, y->tok_sha},
                {"precision", x->act, y->act},
                {"precision", x->kv, y->kv},
                {"precision", x->weights, y->weights},
                {"backend", x->backend, y->backend},
                {"binary", x->binary_sha, y->binary_sha},
                {"assets", x->assets_sha, y->assets_sha},
                {"machine", x->class_sha, y->class_sha},
                {"instance", x->instance, y->instance},
                {"os", x->os, y->os}};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (strcmp(text[i].x, text[i].y) != 0) return text[i].what;
    if (x->ctx_max != y->ctx_max) return "context";
    if (x->slots != y->slots) return "slots";
    if (x->kv_positions != y->kv_positions) return "kv-positions";
    if (x->threads != y->threads) return "threads";
    if (x->ubatch != y->ubatch) return "ubatch";
    if (x->tpot_ms != y->tpot_ms) return "tpot-ms";
    return NULL;
}

/* ---- the design ---- */

static const ht_field design_fields[] = {
    {.key = "arrivalsSha256", .type = HT_S_SHA256},
    {.key = "calibrationSha256", .type = HT_S_SHA256},
    {.key = "cpus", .type = HT_S_INT, .lo = 1, .hi = 1000000},
    {.key = "deltaPpm", .type = HT_S_INT, .lo = 0, .hi = HT_PPM},
    {.key = "maxWaitNs", .type = HT_S_INT},
    {.key = "order", .type = HT_S_ENUM, .names = order_names},
    {.key = "policySha256", .type = HT_S_SHA256},
    {.key = "ratesPpm", .type = HT_S_ARR, .item = HT_S_INT, .lo = 10000, .hi = 100 * HT_PPM},
    {.key = "repetitions", .type = HT_S_INT, .lo = 1, .hi = HT_SCHED_REPS},
    {.key = "requests", .type = HT_S_INT, .lo = HT_SCHED_MIN_REQUESTS, .hi = HT_SCHED_REQUESTS},
    {.key = "saturationMicroHz", .type = HT_S_INT, .lo = UHZ_LEAST, .hi = 1000000000000},
    {.key = "scope", .type = HT_S_OBJ},
    {.key = "seed", .type = HT_S_INT},
    {.key = "startedUtc", .type = HT_S_UTC},
    {.key = "synthetic", .type = HT_S_BOOL},
    {0},
};
static const ht_field calibration_fields[] = {
    {.key = "endNs", .type = HT_S_INT},
    {.key = "i", .type = HT_S_INT},
    {.key = "nOut", .type = HT_S_INT, .lo = 1, .hi = LENGTH_MAX},
    {.key = "nPrompt", .type = HT_S_INT, .lo = 1, .hi = LENGTH_MAX},
    {.key = "startNs", .type = HT_S_INT},
    {0},
};
static const ht_field arrival_fields[] = {
    {.key = "atNs", .type = HT_S_INT},
    {.key = "class", .type = HT_S_ENUM, .names = class_names},
    {.key = "i", .type = HT_S_INT},
    {.key = "maxNew", .type = HT_S_INT, .lo = 2, .hi = LENGTH_MAX},
    {.key = "nPrompt", .type = HT_S_INT, .lo = 1, .hi = LENGTH_MAX},
    {.key = "promptTokSha256", .type = HT_S_SHA256},
    {.key = "rep", .type = HT_S_INT},
    {.key = "scenario", .type = HT_S_INT},
    {0},
};

int ht_sched_first(uint32_t pair)
{
    return (int)(pair & 1);
}

uint64_t ht_sched_gap(uint64_t saturation_uhz, uint32_t rate_ppm)
{
    return UINT64_C(1000000000000000) / saturation_uhz * HT_PPM / rate_ppm;
}

typedef struct {
    ht_arena *a;
    ht_schedule *v;
    const char **prompt; /* digests of all prompts */
    size_t n_prompts;
    ht_json **event;
    size_t n_events, at;
} reader;

static int sealed(const ht_manifest *m, const ht_json *design, const char *key, const char *path,
                  const ht_mfile **out, ht_err *e)
{
    *out = ht_manifest_find(m, path);
    if (!*out) return HT_FAIL(e, HT_EFORMAT, "MANIFEST: %s is missing", path);
    if (strcmp((*out)->sha256, evid__str(design, key)) != 0)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: %s is not what was sealed as %s", path, key);
    return 0;
}

/* The rate at which the reference was full: what came at once over the time it took. */
static int read_calibration(reader *r, const ht_mfile *f, ht_err *e)
{
    evid__lines l = {f->data, f->data + f->bytes, false};
    const char *line;
    uint64_t first = UINT64_MAX, last = 0;
    size_t len, n = 0;
    for (; evid__next_line(&l, &line, &len); n++) {
        ht_json *j;
        HT_TRY(ht_json_parse(r->a, line, len, HT_JSON_CANON, f->path, &j, e));
        HT_TRY(ht_schema_check(j, calibration_fields, NULL, f->path, e));
        const uint64_t from = (uint64_t)ht_json_get(j, "startNs")->i;
        const uint64_t to = (uint64_t)ht_json_get(j, "endNs")->i;
        if ((uint64_t)ht_json_get(j, "i")->i != n || to <= from)
            return HT_FAIL(e, HT_EFORMAT, "DESIGN: %s line %zu is not the one expected", f->path,
                           n + 1);
        first = from < first ? from : first;
        last = to > last ? to : last;
    }
    if (l.bad || n != r->v->requests)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: %s has %zu lines, need %u", f->path, n,
                       r->v->requests);
    if (n * UINT64_C(1000000000000000) / (last - first) != r->v->saturation_uhz)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: saturationMicroHz is not what %s gives", f->path);
    return 0;
}

/* Gaps of one scenario: the mean is the rate's; bursts are bursts (cv >= 3), Poisson's are none
 * (cv <= 2). cv^2 = n S2 / S1^2 - 1. */
static int check_gaps(const ht_schedule *v, const ht_arrival *x, uint32_t scenario, ht_err *e)
{
    const uint32_t n = v->requests - 1, kind = (scenario - 1) / HT_SCHED_RATES;
    const uint32_t rate = v->rate_ppm[(scenario - 1) % HT_SCHED_RATES];
    const uint64_t want = ht_sched_gap(v->saturation_uhz, rate) * n, span = x[n].at_ns;
    uint64_t s1 = 0, s2 = 0;
    if (span > SPAN_MAX || span < want - want / 100 || span > want + want / 100)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: arrivals of scenario %u are not of their rate",
                       scenario);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t g = (x[i + 1].at_ns - x[i].at_ns) / TICK_NS;
        s1 += g;
        s2 += g * g;
    }
    if ((kind == 0 && n * s2 < 10 * s1 * s1) || (kind == 1 && n * s2 > 5 * s1 * s1))
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: arrivals of scenario %u are not %s", scenario,
                       ht_sched_kinds[kind]);
    return 0;
}

static int read_arrival(reader *r, const ht_json *j, size_t k, ht_arrival *x, ht_err *e)
{
    const ht_schedule *v = r->v;
    const size_t i = k % v->requests, scenario = k / v->requests % HT_SCHED_SCENARIOS;
    *x = (ht_arrival){.at_ns = (uint64_t)ht_json_get(j, "atNs")->i,
                      .n_prompt = evid__u32(j, "nPrompt"),
                      .max_new = evid__u32(j, "maxNew"),
                      .is_long = strcmp(evid__str(j, "class"), "long") == 0};
    if ((size_t)ht_json_get(j, "i")->i != i || (size_t)ht_json_get(j, "scenario")->i != scenario ||
        (size_t)ht_json_get(j, "rep")->i != k / v->requests / HT_SCHED_SCENARIOS)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: arrivals.jsonl line %zu is not the one expected",
                       k + 1);
    if (x->n_prompt > v->scope.max_prompt || x->max_new > v->scope.max_new ||
        x->is_long != (4 * (uint64_t)x->n_prompt > v->scope.max_prompt))
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: arrivals.jsonl line %zu is outside of the scope",
                       k + 1);
    if (i ? x->at_ns < x[-1].at_ns : x->at_ns != 0)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: arrivals.jsonl line %zu: time runs backwards",
                       k + 1);
    r->prompt[r->n_prompts++] = evid__str(j, "promptTokSha256");
    return 0;
}

static int read_arrivals(reader *r, const ht_mfile *f, ht_err *e)
{
    ht_schedule *v = r->v;
    const size_t all = (size_t)v->reps * HT_SCHED_SCENARIOS * v->requests;
    ht_arrival *list = ht_arena_array(r->a, all, sizeof *list);
    evid__lines l = {f->data, f->data + f->bytes, false};
    const char *line;
    size_t len, k = 0;
    r->prompt = ht_arena_array(r->a, all, sizeof *r->prompt);
    if (!list || !r->prompt) return HT_FAIL(e, HT_ENOMEM, "arrivals: no memory for %zu", all);
    for (; evid__next_line(&l, &line, &len); k++) {
        ht_json *j;
        HT_TRY(ht_json_parse(r->a, line, len, HT_JSON_CANON, f->path, &j, e));
        HT_TRY(ht_schema_check(j, arrival_fields, NULL, f->path, e));
        if (k == all) return HT_FAIL(e, HT_EFORMAT, "DESIGN: %s has too many lines", f->path);
        HT_TRY(read_arrival(r, j, k, &list[k], e));
    }
    if (l.bad || k != all)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: %s has %zu lines, need %zu", f->path, k, all);
    v->arrival = list;
    for (uint32_t p = 0; p < v->reps * HT_SCHED_SCENARIOS; p++)
        if (p % HT_SCHED_SCENARIOS)
            HT_TRY(check_gaps(v, &list[(size_t)p * v->requests], p % HT_SCHED_SCENARIOS, e));
    const char *twice = evid__first_twice(r->prompt, all);
    if (twice) return HT_FAIL(e, HT_EFORMAT, "DESIGN: prompt %.16s... is used twice", twice);
    return 0;
}

static int read_scope(reader *r, const ht_json *design, ht_err *e)
{
    ht_buf b;
    ht_buf_init(&b, 1 << 16);
    int rc = ht_json_write(ht_json_get(design, "scope"), HT_JSON_CANON, &b, e);
    if (!rc) rc = scope_of(ht_json_get(design, "scope"), &r->v->scope, e);
    if (!rc) rc = evid__sha256_of(b.p, b.n, r->v->scope_sha, e);
    r->v->scope_text = rc ? NULL : ht_arena_strndup(r->a, b.p, b.n);
    ht_buf_done(&b);
    return rc || r->v->scope_text ? rc : HT_FAIL(e, HT_ENOMEM, "scope: no memory");
}

static int read_design(reader *r, ht_err *e)
{
    ht_schedule *v = r->v;
    const ht_json *j;
    const ht_mfile *policy, *calibration, *arrivals;
    HT_TRY(evid__doc(r->a, v->in, "design.json", design_fields, HT_SCHED_DESIGN, &j, e));
    HT_TRY(read_scope(r, j, e));
    const ht_json *rates = ht_json_get(j, "ratesPpm");
    v->reps = evid__u32(j, "repetitions");
    v->requests = evid__u32(j, "requests");
    v->cpus = evid__u32(j, "cpus");
    v->saturation_uhz = (uint64_t)ht_json_get(j, "saturationMicroHz")->i;
    v->delta_ppm = (uint64_t)ht_json_get(j, "deltaPpm")->i;
    v->max_wait_ns = (uint64_t)ht_json_get(j, "maxWaitNs")->i;
    v->synthetic = ht_json_get(j, "synthetic")->b;
    (void)ht_utc_parse(evid__str(j, "startedUtc"), &v->started_unix);
    for (size_t i = 0; i < rates->n && i < HT_SCHED_RATES; i++)
        v->rate_ppm[i] = (uint32_t)rates->at[i].i;
    if (rates->n != HT_SCHED_RATES || v->rate_ppm[0] >= v->rate_ppm[1] ||
        v->rate_ppm[1] >= v->rate_ppm[2] || v->rate_ppm[2] < 1100000)
        return HT_FAIL(e, HT_EFORMAT,
                       "DESIGN: need three rising rates, the last above saturation (1100000)");
    if (v->delta_ppm != HT_SCHED_DELTA && !v->policy.fixture)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: deltaPpm must be %d outside a fixture",
                       (int)HT_SCHED_DELTA);
    if (v->max_wait_ns != (uint64_t)v->scope.ttft_ms * 1000000 * HT_SCHED_WAITS)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: maxWaitNs must be %d times the TTFT objective",
                       (int)HT_SCHED_WAITS);
    HT_TRY(sealed(v->in, j, "policySha256", "policy.json", &policy, e));
    HT_TRY(sealed(v->in, j, "calibrationSha256", "calibration.jsonl", &calibration, e));
    HT_TRY(sealed(v->in, j, "arrivalsSha256", "arrivals.jsonl", &arrivals, e));
    HT_TRY(read_calibration(r, calibration, e));
    return read_arrivals(r, arrivals, e);
}

/* ---- runs and samples ---- */

static const ht_field sample_fields[] = {
    {.key = "arm", .type = HT_S_ENUM, .names = arm_names},
    {.key = "endNs", .type = HT_S_INT},
    {.key = "i", .type = HT_S_INT},
    {.key = "intendedNs", .type = HT_S_INT},
    {.key = "pair", .type = HT_S_INT},
    {.key = "rawLen", .type = HT_S_INT},
    {.key = "responseSha256", .type = HT_S_SHA256},
    {.key = "sendLagNs", .type = HT_S_INT},
    {.key = "status", .type = HT_S_ENUM, .names = status_names},
    {.key = "tNs", .type = HT_S_ARR, .item = HT_S_INT},
    {.key = "tok", .type = HT_S_ARR, .item = HT_S_INT, .lo = 0, .hi = INT32_MAX},
    {0},
};
static const ht_field run_fields[] = {
    {.key = "arm", .type = HT_S_ENUM, .names = arm_names},
    {.key = "boundMisses", .type = HT_S_INT},
    {.key = "bounds", .type = HT_S_INT},
    {.key = "exitStatus", .type = HT_S_INT, .lo = -1000, .hi = 1000},
    {.key = "guards", .type = HT_S_OBJ},
    {.key = "idleQueued", .type = HT_S_INT},
    {.key = "overlapped", .type = HT_S_INT},
    {.key = "pair", .type = HT_S_INT},
    {.key = "serialised", .type = HT_S_INT},
    {0},
};

static int read_times(const reader *r, const ht_json *j, ht_sched_sample *s, ht_err *e)
{
    const ht_json *t = ht_json_get(j, "tNs"), *tok = ht_json_get(j, "tok");
    uint64_t *at = ht_arena_array(r->a, t->n + 1, sizeof *at);
    int32_t *id = ht_arena_array(r->a, tok->n + 1, sizeof *id);
    if (!at || !id) return HT_FAIL(e, HT_ENOMEM, "samples: no memory");
    if (t->n != tok->n || t->n > LENGTH_MAX)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: as many times as tokens are needed");
    for (size_t i = 0; i < t->n; i++) {
        at[i] = (uint64_t)t->at[i].i;
        id[i] = (int32_t)tok->at[i].i;
        if (at[i] > s->end_ns || (i && at[i] < at[i - 1]) ||
            at[i] <= s->intended_ns + s->send_lag_ns)
            return HT_FAIL(e, HT_EFORMAT, "SAMPLE: token %zu came at a time that cannot be", i);
    }
    s->t_ns = at;
    s->tok = id;
    s->n = (uint32_t)t->n;
    return 0;
}

/* One line against its arrival and its bytes; *off: where they begin in the run's raw file. */
static int read_sample(const reader *r, const ht_json *j, uint32_t pair, int arm, uint32_t i,
                       const ht_mfile *raw, uint64_t *off, ht_sched_sample *s, ht_err *e)
{
    const ht_schedule *v = r->v;
    const ht_arrival *x = &v->arrival[(size_t)pair * v->requests + i];
    const uint64_t len = (uint64_t)ht_json_get(j, "rawLen")->i;
    char sha[HT_SHA256_HEX];
    *s = (ht_sched_sample){.intended_ns = (uint64_t)ht_json_get(j, "intendedNs")->i,
                           .send_lag_ns = (uint64_t)ht_json_get(j, "sendLagNs")->i,
                           .end_ns = (uint64_t)ht_json_get(j, "endNs")->i};
    while (strcmp(status_names[s->status], evid__str(j, "status")) != 0) s->status++;
    if ((uint64_t)ht_json_get(j, "pair")->i != pair || (uint64_t)ht_json_get(j, "i")->i != i ||
        strcmp(evid__str(j, "arm"), arm_names[arm]) != 0 || s->intended_ns != x->at_ns ||
        s->end_ns < s->intended_ns)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u arm %s request %u is not the one expected",
                       pair, arm_names[arm], i);
    HT_TRY(read_times(r, j, s, e));
    if (s->status == HT_SS_OK && s->n != x->max_new)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u request %u: %u tokens of %u, called ok",
                       pair, i, s->n, x->max_new);
    if (s->status == HT_SS_REJECTED && s->n)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u request %u was rejected and has tokens",
                       pair, i);
    if (len > raw->bytes - *off)
        return HT_FAIL(e, HT_EFORMAT, "RAW: %s ends inside of request %u", raw->path, i);
    HT_TRY(evid__sha256_of(raw->data + *off, len, sha, e));
    if (strcmp(sha, evid__str(j, "responseSha256")) != 0)
        return HT_FAIL(e, HT_EFORMAT, "RAW: %s: request %u has another digest", raw->path, i);
    *off += len;
    return 0;
}

static int next_event(reader *r, const char *name, uint32_t pair, int arm, const ht_json **out,
                      ht_err *e)
{
    static const ht_field start[] = {
        {.key = "arm", .type = HT_S_ENUM, .names = arm_names},
        {.key = "event", .type = HT_S_STR},
        {.key = "monoNs", .type = HT_S_INT},
        {.key = "pair", .type = HT_S_INT},
        {.key = "prev", .type = HT_S_SHA256},
        {.key = "runSha256", .type = HT_S_SHA256, .optional = true},
        {.key = "samplesSha256", .type = HT_S_SHA256, .optional = true},
        {.key = "seq", .type = HT_S_INT},
        {0}};
    const ht_json *j = r->at < r->n_events ? r->event[r->at++] : NULL;
    if (!j || strcmp(evid__str(j, "event"), name) != 0)
        return HT_FAIL(e, HT_EFORMAT, "JOURNAL: need event %s of pair %u", name, pair);
    HT_TRY(ht_schema_check(j, start, NULL, "JOURNAL", e));
    if ((uint64_t)ht_json_get(j, "pair")->i != pair ||
        strcmp(evid__str(j, "arm"), arm_names[arm]) != 0)
        return HT_FAIL(e, HT_EFORMAT, "JOURNAL: event %zu is out of place", r->at);
    const bool run = strcmp(name, "run") == 0;
    if (run != (ht_json_get(j, "runSha256") != NULL) ||
        run != (ht_json_get(j, "samplesSha256") != NULL))
        return HT_FAIL(e, HT_EFORMAT, "JOURNAL: event %zu has the wrong members", r->at);
    *out = j;
    return 0;
}

static int same_bytes(const ht_json *event, const char *key, const char *from, const char *to,
                      ht_err *e)
{
    char sha[HT_SHA256_HEX];
    HT_TRY(evid__sha256_of(from, (size_t)(to - from), sha, e));
    if (strcmp(sha, evid__str(event, key)) == 0) return 0;
    return HT_FAIL(e, HT_EFORMAT, "JOURNAL: %s is not of the lines that are there", key);
}

static int read_run_line(const reader *r, const char *line, size_t n, uint32_t pair, int arm,
                         ht_sched_run *x, ht_err *e)
{
    ht_json *j;
    HT_TRY(ht_json_parse(r->a, line, n, HT_JSON_CANON, "runs.jsonl", &j, e));
    HT_TRY(ht_schema_check(j, run_fields, "hetero/schedrun/1", "runs.jsonl", e));
    x->bounds = (uint64_t)ht_json_get(j, "bounds")->i;
    x->misses = (uint64_t)ht_json_get(j, "boundMisses")->i;
    x->idle_queued = (uint64_t)ht_json_get(j, "idleQueued")->i;
    x->overlapped = (uint64_t)ht_json_get(j, "overlapped")->i;
    x->serialised = (uint64_t)ht_json_get(j, "serialised")->i;
    x->exit_status = ht_json_get(j, "exitStatus")->i;
    if ((uint64_t)ht_json_get(j, "pair")->i != pair ||
        strcmp(evid__str(j, "arm"), arm_names[arm]) != 0 || x->misses > x->bounds ||
        x->bounds > UINT32_MAX)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: the run of pair %u arm %s is not the one expected",
                       pair, arm_names[arm]);
    if (arm == 0 && x->overlapped)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u: the reference shared passes", pair);
    return ht_guards_read(ht_json_get(j, "guards"), &r->v->policy, r->v->cpus, &x->guards, e);
}

static int read_run(reader *r, uint32_t pair, int arm, evid__lines *runs, evid__lines *samples,
                    ht_err *e)
{
    ht_schedule *v = r->v;
    ht_sched_run *x = &v->run[2 * (size_t)pair + (size_t)arm];
    const ht_json *start, *event;
    const char *line, *from = samples->p;
    char path[32];
    uint64_t off = 0;
    size_t n;
    HT_TRY(next_event(r, "start", pair, arm, &start, e));
    HT_TRY(next_event(r, "run", pair, arm, &event, e));
    if (!evid__next_line(runs, &line, &n))
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: runs.jsonl ends before pair %u", pair);
    HT_TRY(same_bytes(event, "runSha256", line, line + n + 1, e));
    HT_TRY(read_run_line(r, line, n, pair, arm, x, e));
    (void)snprintf(path, sizeof path, "raw/p%03u-%s.bin", pair, arm_names[arm]);
    const ht_mfile *raw = ht_manifest_find(v->in, path);
    if (!raw) return HT_FAIL(e, HT_EFORMAT, "RAW: %s is missing", path);
    x->sample = ht_arena_array(r->a, v->requests, sizeof *x->sample);
    if (!x->sample) return HT_FAIL(e, HT_ENOMEM, "samples: no memory for %u", v->requests);
    for (uint32_t i = 0; i < v->requests; i++) {
        ht_json *j;
        if (!evid__next_line(samples, &line, &n))
            return HT_FAIL(e, HT_EFORMAT, "SAMPLE: samples.jsonl ends before pair %u", pair);
        HT_TRY(ht_json_parse(r->a, line, n, HT_JSON_CANON, "samples.jsonl", &j, e));
        HT_TRY(ht_schema_check(j, sample_fields, "hetero/schedsample/1", "samples.jsonl", e));
        HT_TRY(read_sample(r, j, pair, arm, i, raw, &off, &x->sample[i], e));
    }
    if (off != raw->bytes) return HT_FAIL(e, HT_EFORMAT, "RAW: %s has bytes of nobody", path);
    return same_bytes(event, "samplesSha256", from, samples->p, e);
}

static int read_runs(reader *r, ht_err *e)
{
    ht_schedule *v = r->v;
    const uint32_t pairs = v->reps * HT_SCHED_SCENARIOS;
    const ht_mfile *f = ht_manifest_find(v->in, "samples.jsonl");
    const ht_mfile *g = ht_manifest_find(v->in, "runs.jsonl");
    if (!f || !g) return HT_FAIL(e, HT_EFORMAT, "MANIFEST: samples.jsonl or runs.jsonl is missing");
    evid__lines samples = {f->data, f->data + f->bytes, false};
    evid__lines runs = {g->data, g->data + g->bytes, false};
    v->run = ht_arena_array(r->a, 2 * (size_t)pairs, sizeof *v->run);
    if (!v->run) return HT_FAIL(e, HT_ENOMEM, "runs: no memory for %u", pairs);
    for (uint32_t p = 0; p < pairs; p++)
        for (int k = 0; k < 2; k++)
            HT_TRY(read_run(r, p, k ^ ht_sched_first(p), &runs, &samples, e));
    if (samples.p != samples.end || runs.p != runs.end)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: lines that the design does not have");
    return 0;
}

static int read_journal(reader *r, ht_err *e)
{
    static const ht_field first[] = {{.key = "designSha256", .type = HT_S_SHA256},
                                     {.key = "event", .type = HT_S_STR},
                                     {.key = "monoNs", .type = HT_S_INT},
                                     {.key = "prev", .type = HT_S_SHA256},
                                     {.key = "seq", .type = HT_S_INT},
                                     {0}};
    static const ht_field last[] = {
        {.key = "event", .type = HT_S_STR},   {.key = "monoNs", .type = HT_S_INT},
        {.key = "prev", .type = HT_S_SHA256}, {.key = "runs", .type = HT_S_INT},
        {.key = "seq", .type = HT_S_INT},     {0}};
    const ht_schedule *v = r->v;
    const ht_mfile *f = ht_manifest_find(v->in, "journal.jsonl");
    if (!f) return HT_FAIL(e, HT_EFORMAT, "MANIFEST: journal.jsonl is missing");
    HT_TRY(ht_journal_check(r->a, f->data, f->bytes, true, &r->event, &r->n_events, e));
    const ht_json *close = r->event[r->n_events - 1];
    const uint32_t runs = 2 * v->reps * HT_SCHED_SCENARIOS;
    HT_TRY(ht_schema_check(r->event[0], first, NULL, "JOURNAL", e));
    HT_TRY(ht_schema_check(close, last, NULL, "JOURNAL", e));
    if (strcmp(evid__str(r->event[0], "designSha256"),
               ht_manifest_find(v->in, "design.json")->sha256) != 0)
        return HT_FAIL(e, HT_EFORMAT, "JOURNAL: another design was sealed");
    if (evid__u32(close, "runs") != runs || r->n_events != 2 + 2 * (size_t)runs)
        return HT_FAIL(e, HT_EFORMAT, "JOURNAL: %zu events for %u runs", r->n_events, runs);
    r->at = 1;
    return 0;
}

/* What the scope names must be what was there. */
static int check_subject(reader *r, ht_err *e)
{
    ht_schedule *v = r->v;
    const ht_sched_scope *s = &v->scope;
    evid__subject x;
    char cls[HT_SHA256_HEX];
    HT_TRY(evid__read_machine(r->a, v->in, cls, v->state_sha, &v->unreadable, e));
    HT_TRY(evid__read_subject(r->a, v->in, &x, e));
    v->dirty = x.dirty;
    const struct {
        const char *what, *is, *should;
    } same[] = {{"machine", cls, s->class_sha},
                {"model", x.model_sha, s->model_sha},
                {"tokenizer", x.tok_sha, s->tok_sha},
                {"binary", x.binary_sha, s->binary_sha},
                {"assets", x.assets_sha, s->assets_sha}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (strcmp(same[i].is, same[i].should) != 0)
            return HT_FAIL(e, HT_EFORMAT, "SUBJECT: the scope names another %s", same[i].what);
    return 0;
}

int ht_schedule_read(ht_arena *a, const ht_manifest *in, ht_schedule *v, ht_err *e)
{
    reader r = {.a = a, .v = v};
    const ht_mfile *policy = ht_manifest_find(in, "policy.json");
    *v = (ht_schedule){.in = in};
    if (!policy) return HT_FAIL(e, HT_EFORMAT, "MANIFEST: policy.json is missing");
    HT_TRY(ht_policy_parse(a, policy->data, policy->bytes, &v->policy, e));
    HT_TRY(read_design(&r, e));
    HT_TRY(check_subject(&r, e));
    HT_TRY(read_journal(&r, e));
    return read_runs(&r, e);
}
