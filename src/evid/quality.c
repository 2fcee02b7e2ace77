/* quality.c - see quality.h. */
#include "evid/quality.h"
#include "core/rng.h"
#include "evid/stat.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 u128;

/* Below this the reference's probability is too small to count (llama-perplexity's definition). */
#define LOG_P_FLOOR (-16.0)
#define NANO_MAX    ((int64_t)1 << 40)

/* ---- positions ---- */

/* log sum exp in double; NaN when a logit is no number or plus infinity. */
static double log_sum(const float *x, uint32_t n, uint32_t *top)
{
    float max = -INFINITY;
    double sum = 0;
    *top = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(x[i])) return NAN;
        if (x[i] > max) {
            max = x[i];
            *top = i;
        }
    }
    if (!isfinite(max)) return NAN;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)max);
    return (double)max + log(sum);
}

double ht_quality_logprob(const float *logits, uint32_t n_vocab, uint32_t id)
{
    uint32_t top;
    double z = log_sum(logits, n_vocab, &top);
    return isnan(z) || id >= n_vocab ? -INFINITY : (double)logits[id] - z;
}

void ht_quality_measure(const float *ref, const float *cand, uint32_t n_vocab, int32_t target,
                        ht_quality_position *out)
{
    double zr = log_sum(ref, n_vocab, &out->top_ref), zc = log_sum(cand, n_vocab, &out->top_cand);
    double sum = 0;
    if (isnan(zr) || isnan(zc)) {
        *out = (ht_quality_position){.kld = INFINITY,
                                     .gap = INFINITY,
                                     .nll_ref = INFINITY,
                                     .nll_cand = INFINITY,
                                     .top_cand = UINT32_MAX};
        return;
    }
    for (uint32_t i = 0; i < n_vocab; i++) {
        double lr = (double)ref[i] - zr;
        if (lr > LOG_P_FLOOR) sum += exp(lr) * (lr - ((double)cand[i] - zc));
    }
    out->kld = sum > 0 ? sum : 0; /* rounding may leave a hair below zero */
    out->gap = (double)ref[out->top_ref] - (double)ref[out->top_cand];
    bool has = target >= 0 && (uint32_t)target < n_vocab;
    out->nll_ref = has ? zr - (double)ref[target] : 0;
    out->nll_cand = has ? zc - (double)cand[target] : 0;
}

/* ---- items ---- */

void ht_quality_init(ht_quality *q)
{
    memset(q, 0, sizeof *q);
    for (int k = 0; k < 3; k++) ht_buf_init(&q->file[k], 0);
    ht_buf_init(&q->kld, 0);
}

void ht_quality_done(ht_quality *q)
{
    for (int k = 0; k < 3; k++) ht_buf_done(&q->file[k]);
    ht_buf_done(&q->kld);
}

int ht_ids_sha256(const int32_t *ids, size_t n, char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    ht_sha256 *h;
    HT_TRY(ht_sha256_new(&h, e));
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)ids[i];
        const uint8_t le[4] = {(uint8_t)id, (uint8_t)(id >> 8), (uint8_t)(id >> 16),
                               (uint8_t)(id >> 24)};
        int rc = ht_sha256_add(h, le, 4, e);
        if (rc) {
            ht_sha256_free(h);
            return rc;
        }
    }
    HT_TRY(ht_sha256_end(h, digest, e));
    ht_hex(digest, sizeof digest, hex);
    return 0;
}

typedef struct {
    const int32_t *ids;
    size_t n;                      /* of ids                                                      */
    const ht_quality_position *at; /* top-1 and divergence per position                           */
    size_t n_at;
    bool cand;
    int right; /* -1: not a task                                              */
} arm_line;

/* Canonical order: i, kldNano, out, right, top1. */
static void put_arm(ht_quality *q, int k, const arm_line *l)
{
    ht_jw w;
    ht_jw_init(&w, &q->file[k], HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "i", q->items);
    if (l->cand) {
        ht_jw_key(&w, "kldNano");
        ht_jw_arr(&w);
        for (size_t i = 0; i < l->n_at; i++) {
            double v = l->at[i].kld * 1e9;
            ht_jw_int(&w, v < (double)NANO_MAX ? (int64_t)(v + 0.5) : NANO_MAX);
        }
        ht_jw_end(&w, ']');
    }
    ht_jw_key(&w, "out");
    ht_jw_arr(&w);
    for (size_t i = 0; i < l->n; i++) ht_jw_int(&w, l->ids[i]);
    ht_jw_end(&w, ']');
    ht_jw_key(&w, "right");
    if (l->right < 0) {
        ht_jw_obj(&w);
        ht_jw_kbool(&w, "known", false);
        ht_jw_kstr(&w, "reason", "NOT_A_TASK");
        ht_jw_end(&w, '}');
    } else {
        ht_jw_bool(&w, l->right != 0);
    }
    ht_jw_key(&w, "top1");
    ht_jw_arr(&w);
    for (size_t i = 0; i < l->n_at; i++)
        ht_jw_uint(&w, l->cand ? l->at[i].top_cand : l->at[i].top_ref);
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    ht_buf_char(&q->file[k], '\n');
}

/* The three lines of an item. */
static int put_item(ht_quality *q, const char *kind, const int32_t *prompt, size_t n_prompt,
                    const arm_line *ref, const arm_line *cand, ht_err *e)
{
    char sha[HT_SHA256_HEX];
    ht_jw w;
    HT_TRY(ht_ids_sha256(prompt, n_prompt, sha, e));
    ht_jw_init(&w, &q->file[0], HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "i", q->items);
    ht_jw_kstr(&w, "kind", kind);
    ht_jw_kstr(&w, "promptTokSha256", sha);
    ht_jw_end(&w, '}');
    ht_buf_char(&q->file[0], '\n');
    put_arm(q, 1, ref);
    put_arm(q, 2, cand);
    q->items++;
    for (int k = 0; k < 3; k++) HT_TRY(ht_buf_ok(&q->file[k], "quality file", e));
    return ht_buf_ok(&q->kld, "divergences", e);
}

int ht_quality_greedy(ht_quality *q, const int32_t *prompt, size_t n_prompt, const int32_t *ref,
                      size_t n_ref, const int32_t *cand, size_t n_cand, double gap, ht_err *e)
{
    size_t n = n_ref > n_cand ? n_ref : n_cand, first = 0, same = 0;
    if (n_ref == 0) return HT_FAIL(e, HT_EARG, "quality: the reference wrote nothing");
    while (first < n_ref && first < n_cand && ref[first] == cand[first]) first++;
    for (size_t i = 0; i < n_ref && i < n_cand; i++) same += ref[i] == cand[i];
    bool equal = first == n;
    q->n.prompts++;
    q->n.exact += equal;
    q->n.tokens += n;
    q->n.agree += same;
    q->n.len_ref += n_ref;
    q->n.len_cand += n_cand;
    if (!equal) {
        q->first_diff_sum += first;
        q->tie_greedy += gap <= HT_QUALITY_TIE;
        if (gap <= HT_QUALITY_NEAR_TIE) q->near_greedy++;
        else q->real_greedy++;
    }
    const arm_line r = {.ids = ref, .n = n_ref, .right = -1};
    const arm_line c = {.ids = cand, .n = n_cand, .right = -1, .cand = true};
    return put_item(q, "greedy", prompt, n_prompt, &r, &c, e);
}

int ht_quality_text(ht_quality *q, const int32_t *prompt, size_t n_prompt,
                    const ht_quality_position *at, size_t n, ht_err *e)
{
    for (size_t i = 0; i < n; i++) {
        const ht_quality_position *p = &at[i];
        double nano = p->kld * 1e9, diff = p->nll_cand - p->nll_ref;
        q->n.top1 += p->top_ref == p->top_cand;
        q->n.kld_sum_nano += nano < (double)NANO_MAX ? (uint64_t)(nano + 0.5) : (uint64_t)NANO_MAX;
        if (p->top_ref != p->top_cand) {
            q->tie_text += p->gap <= HT_QUALITY_TIE;
            if (p->gap <= HT_QUALITY_NEAR_TIE) q->near_text++;
            else q->real_text++;
        }
        q->nll_ref += p->nll_ref;
        q->nll_cand += p->nll_cand;
        q->nll_diff_sq += diff * diff;
        ht_buf_add(&q->kld, &p->kld, sizeof p->kld);
    }
    q->n.positions += n;
    const arm_line r = {.at = at, .n_at = n, .right = -1};
    const arm_line c = {.at = at, .n_at = n, .right = -1, .cand = true};
    return put_item(q, "text", prompt, n_prompt, &r, &c, e);
}

int ht_quality_task(ht_quality *q, const int32_t *prompt, size_t n_prompt, bool ref_right,
                    bool cand_right, ht_err *e)
{
    q->n.tasks++;
    q->n.lost += ref_right && !cand_right;
    q->n.won += cand_right && !ref_right;
    q->ref_right += ref_right;
    q->cand_right += cand_right;
    const arm_line r = {.right = ref_right}, c = {.right = cand_right, .cand = true};
    return put_item(q, "task", prompt, n_prompt, &r, &c, e);
}

void ht_quality_choices(uint64_t seed, uint32_t i, uint32_t n, uint32_t choice[4], uint32_t *at)
{
    uint64_t draw = 0;
    choice[0] = i;
    for (uint32_t k = 1; k < 4; draw++) {
        uint32_t c = (uint32_t)(ht_uniform(seed, draw, i) * (double)n);
        bool fresh = true;
        for (uint32_t j = 0; j < k; j++) fresh = fresh && choice[j] != c;
        if (fresh) choice[k++] = c;
    }
    *at = (uint32_t)(ht_uniform(seed, draw, i) * 4.0);
}

double ht_quality_sign_p(uint64_t lost, uint64_t won)
{
    double n = (double)(lost + won), p = 0;
    for (double k = (double)lost; k <= n; k++)
        p += exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) - n * log(2.0));
    return p > 1 ? 1 : p;
}

/* ---- the gate ---- */

static uint64_t ppm_of(uint64_t part, uint64_t whole)
{
    return whole ? (uint64_t)((u128)part * HT_PPM / whole) : 0;
}

/* Losses minus gains among N paired items, upper 95 % bound by the normal limit of McNemar's test:
 * (b - c) + 1.645 sqrt(b + c) <= margin * N, squared and in integers. */
static bool task_holds(const ht_quality_counts *q, uint64_t margin_ppm)
{
    int64_t room =
        (int64_t)(margin_ppm * q->tasks) - ((int64_t)q->lost - (int64_t)q->won) * (int64_t)HT_PPM;
    if (room < 0) return false;
    return (u128)room * (u128)room * 1000000 >= (u128)2706025 * (q->lost + q->won) * 1000000000000u;
}

const char *ht_quality_gate(const ht_policy *p, const ht_quality_counts *q)
{
    uint64_t length = ppm_of(q->len_cand, q->len_ref);
    if (q->prompts == 0) return "NO_SUITE";
    if (p->corpus_sha && strcmp(p->corpus_sha, q->prompts_sha) != 0) return "OTHER_CORPUS";
    if (length < p->length_ppm[0] || length > p->length_ppm[1]) return "LENGTH_BAND";
    if (q->exact == q->prompts) return NULL;
    if (ppm_of(q->agree, q->tokens) < p->exact_ppm) return "EXACT_TOKENS";
    if (q->positions == 0 || q->tasks == 0) return "NOT_MEASURED";
    if (ppm_of(q->top1, q->positions) < p->top1_ppm) return "TOP1";
    if (q->kld_sum_nano / q->positions > p->kld_mean_micro * 1000) return "KLD_MEAN";
    if (q->kld_p999_nano > p->kld_p999_micro * 1000) return "KLD_P999";
    return task_holds(q, p->task_ppm) ? NULL : "TASK";
}

/* ---- the report ---- */

static int by_value(const void *x, const void *y)
{
    double a, b;
    memcpy(&a, x, sizeof a);
    memcpy(&b, y, sizeof b);
    return (a > b) - (a < b);
}

/* The least value that at most the given share of positions exceeds; sorted. */
static double point(const ht_quality *q, uint64_t above_ppm)
{
    double v;
    uint64_t n = q->n.positions;
    memcpy(&v, q->kld.p + (n - 1 - n * above_ppm / HT_PPM) * sizeof v, sizeof v);
    return v;
}

static void report_text(const ht_quality *q, ht_jw *w)
{
    double n = (double)q->n.positions, mean = (q->nll_cand - q->nll_ref) / n;
    double var = n > 1 ? (q->nll_diff_sq / n - mean * mean) / (n - 1) : 0;
    ht_jw_kuint(w, "positions", q->n.positions);
    ht_jw_kreal(w, "top1Agreement", (double)q->n.top1 / n);
    ht_jw_kuint(w, "flipsNearTie", q->near_text);
    ht_jw_kuint(w, "flipsReal", q->real_text);
    ht_jw_kuint(w, "flipsWithin001", q->tie_text);
    ht_jw_kreal(w, "kldMean", (double)q->n.kld_sum_nano / n * 1e-9);
    ht_jw_kreal(w, "kldMedian", point(q, 500000));
    ht_jw_kreal(w, "kldP99", point(q, 10000));
    ht_jw_kreal(w, "kldP999", point(q, 1000));
    ht_jw_kreal(w, "kldMax", point(q, 0));
    ht_jw_kreal(w, "pplReference", exp(q->nll_ref / n));
    ht_jw_kreal(w, "pplCandidate", exp(q->nll_cand / n));
    ht_jw_kreal(w, "pplRatio", exp(mean));
    /* From the paired differences: far tighter than from two separate errors. */
    ht_jw_kreal(w, "pplRatioStdError", exp(mean) * sqrt(var > 0 ? var : 0));
}

int ht_quality_report(ht_quality *q, const ht_policy *policy, ht_jw *w, ht_err *e)
{
    ht_quality_counts *n = &q->n;
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(q->file[0].p, q->file[0].n, digest, e));
    ht_hex(digest, sizeof digest, n->prompts_sha);
    n->present = true;
    if (n->positions) {
        qsort(q->kld.p, n->positions, sizeof(double), by_value);
        double nano = point(q, 1000) * 1e9;
        n->kld_p999_nano = nano < (double)NANO_MAX ? (uint64_t)(nano + 0.5) : (uint64_t)NANO_MAX;
    }
    const char *why = ht_quality_gate(policy, n);
    ht_jw_obj(w);
    ht_jw_kstr(w, "gate", why ? "FAIL" : "PASS");
    ht_jw_kstr(w, "reason", why ? why : "OK");
    ht_jw_kstr(w, "policy", policy->id);
    ht_jw_kstr(w, "corpusSha256", n->prompts_sha);
    ht_jw_kuint(w, "prompts", n->prompts);
    ht_jw_kuint(w, "promptsExact", n->exact);
    ht_jw_kuint(w, "tokens", n->tokens);
    ht_jw_kuint(w, "tokensAgree", n->agree);
    ht_jw_kreal(w, "tokenAgreement", n->tokens ? (double)n->agree / (double)n->tokens : 0);
    ht_jw_kuint(w, "firstDifferencesNearTie", q->near_greedy);
    ht_jw_kuint(w, "firstDifferencesReal", q->real_greedy);
    ht_jw_kuint(w, "firstDifferencesWithin001", q->tie_greedy);
    uint64_t differ = n->prompts - n->exact;
    if (differ)
        ht_jw_kreal(w, "tokensBeforeDifference", (double)q->first_diff_sum / (double)differ);
    ht_jw_kreal(w, "lengthRatio", n->len_ref ? (double)n->len_cand / (double)n->len_ref : 0);
    if (n->positions) report_text(q, w);
    ht_jw_kuint(w, "tasks", n->tasks);
    ht_jw_kuint(w, "tasksReferenceRight", q->ref_right);
    ht_jw_kuint(w, "tasksCandidateRight", q->cand_right);
    ht_jw_kuint(w, "tasksLost", n->lost);
    ht_jw_kuint(w, "tasksWon", n->won);
    ht_jw_kreal(w, "taskWorseP", ht_quality_sign_p(n->lost, n->won));
    ht_jw_end(w, '}');
    return ht_buf_ok(w->b, "quality report", e);
}
