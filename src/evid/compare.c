/* compare.c - analysis, sealing and verification of a comparison; see compare.h. */
#include "evid/compare.h"
#include "evid/bundle_read.h"
#include "evid/verdict.h"
#include "evid/verify.h"
#include <stdlib.h>
#include <string.h>

#define ANALYSIS "analysis/compare.json"

static int by_value(const void *x, const void *y)
{
    uint64_t a, b;
    memcpy(&a, x, sizeof a);
    memcpy(&b, y, sizeof b);
    return (a > b) - (a < b);
}

/* The sample of one side of a pair. */
static const ht_cmp_sample *side(const ht_comparison *v, uint32_t pair, enum ht_cmp_arm arm)
{
    const ht_cmp_sample *x = &v->sample[(size_t)pair * 2];
    return x->arm == arm ? x : x + 1;
}

/* The first pair of a context's run. */
static uint32_t first_pair(const ht_cmp_design *d, uint32_t c, bool null_run)
{
    return null_run ? c * d->null_reps : d->n_contexts * d->null_reps + c * d->reps;
}

/* Lower median and greatest of one side's good times. */
static void write_times(const ht_comparison *v, uint32_t c, enum ht_cmp_arm arm, unsigned metric,
                        const char *key, ht_jw *w)
{
    const ht_cmp_design *d = &v->design;
    uint64_t t[HT_STAT_MAX_N];
    size_t n = 0;
    const uint32_t from = first_pair(d, c, false);
    for (uint32_t r = 0; r < d->reps; r++) {
        const ht_cmp_sample *x = side(v, from + r, arm);
        if (x->metric[metric]) t[n++] = x->metric[metric];
    }
    if (!n) {
        ht_jw_unknown(w, key, "ALL_FAILED");
        return;
    }
    qsort(t, n, sizeof *t, by_value);
    ht_jw_key(w, key);
    ht_jw_obj(w);
    ht_jw_kuint(w, "maxNs", t[n - 1]);
    ht_jw_kuint(w, "minNs", t[0]);
    ht_jw_kuint(w, "p50Ns", t[(n - 1) / 2]);
    ht_jw_end(w, '}');
}

/* Ratios reference / ours of a run: `ref` is the foreign server, or N in the null run. Ours failed
 * is ratio 0, the worst rank; the reference failed leaves the cell without a figure. */
static int ratios(const ht_comparison *v, uint32_t c, bool null_run, unsigned metric,
                  uint64_t ratio[HT_STAT_MAX_N], ht_stat *st, bool *known, ht_err *e)
{
    const ht_cmp_design *d = &v->design;
    const uint32_t from = first_pair(d, c, null_run), n = null_run ? d->null_reps : d->reps;
    *known = true;
    for (uint32_t r = 0; r < n; r++) {
        const uint64_t ref = side(v, from + r, null_run ? HT_CMP_N : HT_CMP_F)->metric[metric];
        const uint64_t ours = side(v, from + r, null_run ? HT_CMP_M : HT_CMP_H)->metric[metric];
        if (!ref || (null_run && !ours)) *known = false;
        else HT_TRY(ht_stat_ratio(ref, ours, &ratio[r], e));
    }
    return *known ? ht_stat_pairs(ratio, n, st, e) : 0;
}

/* The null run of a metric holds: it finds nothing, and could have found what matters. */
static bool null_holds(const ht_comparison *v, const ht_stat *s)
{
    return s->lo <= HT_PPM && s->hi >= HT_PPM &&
           (s->hi - s->lo + 1) / 2 <= v->policy.null_half_width_ppm;
}

static int write_metric(const ht_comparison *v, uint32_t c, unsigned metric, bool *holds, ht_jw *w,
                        ht_err *e)
{
    uint64_t ratio[HT_STAT_MAX_N];
    ht_stat st = {0}, null_st = {0};
    bool known, null_known;
    HT_TRY(ratios(v, c, true, metric, ratio, &null_st, &null_known, e));
    HT_TRY(ratios(v, c, false, metric, ratio, &st, &known, e));
    const bool good = null_known && null_holds(v, &null_st);
    *holds = *holds && good;
    ht_jw_obj(w);
    write_times(v, c, HT_CMP_F, metric, "foreign", w);
    write_times(v, c, HT_CMP_H, metric, "hetero", w);
    ht_jw_kstr(w, "metric", ht_metric_names[metric]);
    ht_jw_kbool(w, "nullHolds", good);
    evid__write_stat(w, "nullRun", &null_st, null_known, "FAILED");
    ht_jw_key(w, "ratiosPpm");
    ht_jw_arr(w);
    for (uint32_t r = 0; known && r < v->design.reps; r++) ht_jw_uint(w, ratio[r]);
    ht_jw_end(w, ']');
    evid__write_stat(w, "result", &st, known, "FOREIGN_FAILED");
    ht_jw_end(w, '}');
    return 0;
}

static int write_row(const ht_comparison *v, uint32_t c, bool *holds, ht_jw *w, ht_err *e)
{
    const ht_cmp_design *d = &v->design;
    uint32_t failed[HT_CMP_ARMS] = {0}, equal = 0, ids = 0;
    for (int run = 0; run < 2; run++)
        for (uint32_t r = 0; r < (run ? d->null_reps : d->reps); r++) {
            const ht_cmp_sample *x = &v->sample[(size_t)(first_pair(d, c, run) + r) * 2];
            for (int k = 0; k < 2; k++) failed[x[k].arm] += x[k].status != HT_SM_OK;
            if (run || !x[0].n_ids || !x[1].n_ids) continue;
            ids++;
            equal += x[0].n_ids == x[1].n_ids &&
                     memcmp(x[0].ids, x[1].ids, x[0].n_ids * sizeof *x[0].ids) == 0;
        }
    ht_jw_obj(w);
    ht_jw_kuint(w, "context", d->context[c]);
    ht_jw_kuint(w, "failedForeign", failed[HT_CMP_F]);
    ht_jw_kuint(w, "failedHetero", failed[HT_CMP_H]);
    ht_jw_kuint(w, "failedNull", failed[HT_CMP_M] + failed[HT_CMP_N]);
    ht_jw_key(w, "metrics");
    ht_jw_arr(w);
    static const uint8_t shown[] = {HT_M_TTFT, HT_M_TPOT, HT_M_E2E};
    for (size_t m = 0; m < sizeof shown; m++) HT_TRY(write_metric(v, c, shown[m], holds, w, e));
    ht_jw_end(w, ']');
    ht_jw_kuint(w, "outputsEqual", equal);
    ht_jw_kuint(w, "outputsWithIds", ids);
    ht_jw_kuint(w, "pairs", d->reps);
    ht_jw_end(w, '}');
    return 0;
}

static void write_guards(ht_jw *w, const char *key, uint32_t set)
{
    ht_jw_key(w, key);
    ht_jw_arr(w);
    for (unsigned g = 0; g < HT_GUARDS; g++)
        if (set >> g & 1) ht_jw_str(w, ht_guard_names[g]);
    ht_jw_end(w, ']');
}

/* "class": TOKEN_IDENTICAL only where every answer's own count says that it took the ids as they
 * were sent; "verdict": may the figures stand for more than this run? */
static int write_comparison(const ht_comparison *v, ht_buf *out, ht_err *e)
{
    uint32_t red = 0, missing = 0;
    bool identical = strcmp(v->design.api, "ollama") != 0, holds = true;
    ht_jw w;
    for (size_t i = 0; i < v->n_samples; i++) {
        const ht_cmp_sample *x = &v->sample[i];
        red |= x->guards.red;
        missing |= x->guards.unknown & v->policy.required;
        if (x->arm == HT_CMP_F && !x->said_prompt) identical = false;
    }
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "bundleId", v->in->sha256);
    ht_jw_kstr(&w, "class", identical ? "TOKEN_IDENTICAL" : "TEXT_IDENTICAL");
    write_guards(&w, "guardsRed", red);
    write_guards(&w, "guardsUnknown", missing);
    ht_jw_kstr(&w, "policySha256", v->policy.sha256);
    ht_jw_key(&w, "rows");
    ht_jw_arr(&w);
    for (uint32_t c = 0; c < v->design.n_contexts; c++) HT_TRY(write_row(v, c, &holds, &w, e));
    ht_jw_end(&w, ']');
    ht_jw_kstr(&w, "schema", "hetero/comparison/1");
    ht_jw_kstr(&w, "verdict",
               red || missing ? ht_class_names[HT_NOT_ADMISSIBLE_ENV]
               : !holds       ? ht_class_names[HT_INCONCLUSIVE_ENV]
                              : "COMPARED");
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "comparison", e);
}

/* ---- statement, sealing, verification ---- */

static int write_statement(const ht_comparison *v, const char *outputs_sha, ht_buf *out, ht_err *e)
{
    const evid__named subjects[] = {{"modelPack", v->model_sha},
                                    {"tokenizer", v->tok_sha},
                                    {"binary", v->binary_sha},
                                    {"assets", v->assets_sha}};
    const evid__claim claim = {.predicate_type = HT_PRED_COMPARISON,
                               .schema = HT_COMPARE_DESIGN,
                               .bundle_id = v->in->sha256,
                               .outputs_sha = outputs_sha,
                               .policy_sha = v->policy.sha256,
                               .subject = subjects,
                               .n_subjects = sizeof subjects / sizeof *subjects,
                               .hardware_evidence = !v->design.synthetic};
    return evid__write_statement(&claim, out, e);
}

static int seal(ht_arena *a, const char *dir, const ht_key *bench, ht_buf *b,
                char id[HT_SHA256_HEX], ht_err *e)
{
    static const char *const path[] = {ANALYSIS}, *const role[] = {"output"};
    ht_manifest in;
    ht_comparison v;
    char sha[HT_SHA256_HEX];
    HT_TRY(evid__list_inputs(a, dir, b, e));
    HT_TRY(ht_manifest_read(a, dir, b->p, b->n, "hetero/inputs/1", NULL, HT_BUNDLE_MAX, &in, e));
    HT_TRY(ht_comparison_read(a, &in, &v, e));
    HT_TRY(evid__put_file(dir, "inputs.manifest.json", b->p, b->n, e));
    ht_buf_clear(b);
    HT_TRY(write_comparison(&v, b, e));
    HT_TRY(evid__put_file(dir, ANALYSIS, b->p, b->n, e));
    ht_buf_clear(b);
    HT_TRY(ht_manifest_write(a, dir, "hetero/outputs/1", path, role, 1, in.sha256, b, e));
    HT_TRY(evid__sha256_of(b->p, b->n, sha, e));
    HT_TRY(evid__put_file(dir, "outputs.manifest.json", b->p, b->n, e));
    ht_buf_clear(b);
    HT_TRY(write_statement(&v, sha, b, e));
    HT_TRY(evid__put_statement(dir, bench, b, e));
    memcpy(id, in.sha256, HT_SHA256_HEX);
    return 0;
}

int ht_comparison_seal(const char *dir, const ht_key *bench, char id[HT_SHA256_HEX], ht_err *e)
{
    return evid__seal(seal, dir, bench, id, e);
}

static int recompute(ht_arena *a, const char *dir, const ht_trust *t, int64_t now,
                     const ht_comparison *v, const ht_manifest *outs, ht_compared *x, ht_buf *b,
                     ht_err *e)
{
    char sha[HT_SHA256_HEX];
    ht_json *doc;
    const ht_mfile *f = &outs->file[0];
    if (outs->n != 1 || strcmp(f->path, ANALYSIS) != 0)
        return HT_FAIL(e, HT_EFORMAT, "MANIFEST: the output of a comparison is " ANALYSIS);
    HT_TRY(write_comparison(v, b, e));
    HT_TRY(evid__same_output(f, b, e));
    HT_TRY(ht_json_parse(a, f->data, f->bytes, HT_JSON_CANON, f->path, &doc, e));
    x->analysis = doc;
    ht_buf_clear(b);
    HT_TRY(write_statement(v, outs->sha256, b, e));
    return evid__check_statement(a, dir, t, HT_PRED_COMPARISON, now, b, sha, x->bench_key, e);
}

int ht_comparison_verify(ht_arena *a, const char *dir, const ht_trust *t, int64_t now_unix,
                         ht_compared *x, ht_err *e)
{
    ht_manifest in, outs;
    ht_comparison v;
    ht_buf b;
    *x = (ht_compared){0};
    HT_TRY(evid__read_manifests(a, dir, &in, &outs, e));
    HT_TRY(ht_comparison_read(a, &in, &v, e));
    memcpy(x->id, in.sha256, sizeof x->id);
    ht_buf_init(&b, 0);
    int rc = recompute(a, dir, t, now_unix, &v, &outs, x, &b, e);
    ht_buf_done(&b);
    return rc;
}

bool ht_is_comparison(const char *dir)
{
    return evid__design_is(dir, HT_COMPARE_DESIGN);
}
