/* sample.c - the sampler chain, in llama.cpp's usual order:
 *
 *     logit bias -> penalties -> DRY -> constraint -> top-k -> typical-p -> top-p -> min-p -> XTC
 *     -> temperature -> draw
 *
 * Truncation sees the distribution at temperature 1. Greedy (temp <= 0) takes the largest logit
 * after bias, penalties and DRY. A NaN or -inf logit excludes its token; +inf makes it certain.
 * Each draw depends on its arguments alone: scratch is left as it was found. */
#include "core/rng.h"
#include "decode/chain.h"
#include <math.h>
#include <string.h>

/* Four at a time through the compilers' vector types: under strict floating point neither gcc nor
 * clang vectorises the plain loop, and this one runs over the whole vocabulary for every token. */
typedef float v4f __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
enum { LANES = 4, BLOCK = 64 };

/* Whether one of BLOCK values is above top; NaN is not. */
static bool any_above(const float *x, float top)
{
    v4i above = {0};
    for (int i = 0; i < BLOCK; i += LANES) {
        v4f v;
        memcpy(&v, x + i, sizeof v);
        above |= v > top;
    }
    return (above[0] | above[1] | above[2] | above[3]) != 0;
}

int32_t ht_argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    while (best < n && isnan(x[best])) best++;
    if (best == n) return -1;
    for (uint32_t i = best + 1, end; i < n; i = end) {
        end = n - i < BLOCK ? n : i + BLOCK;
        if (end - i == BLOCK && !any_above(x + i, x[best])) continue;
        for (; i < end; i++)
            if (x[i] > x[best]) best = i;
    }
    return (int32_t)best;
}

/* exp(d) for d <= 0, relative error below 3e-7: reduction by ln 2 in two parts (Cody and Waite),
 * then the Taylor polynomial of degree 6 on |r| <= 0.347. Below -80, and for NaN, about 1e-35. */
static inline v4f exp_neg(v4f d)
{
    const v4i keep = d > -80;
    d = (v4f)(((v4i)d & keep) | ((v4i)(v4f){-80, -80, -80, -80} & ~keep));
    const v4i k = __builtin_convertvector(d * 1.44269504F - 0.5F, v4i);
    const v4f n = __builtin_convertvector(k, v4f);
    const v4f r = (d - n * 0.693359375F) + n * 2.12194440e-4F;
    v4f p = r * (1.0F / 720) + 1.0F / 120;
    p = p * r + 1.0F / 24;
    p = p * r + 1.0F / 6;
    p = p * r + 0.5F;
    p = p * r + 1;
    p = p * r + 1;
    return p * (v4f)((k + 127) << 23);
}

/* Sum of exp(x - top): float lanes for 64 terms at a time, then double, so that the rounding of a
 * block does not grow with n. */
static double sum_exp(const float *x, uint32_t n, float top)
{
    double sum = 0;
    for (uint32_t i = 0; i < n;) {
        v4f acc = {0};
        uint32_t end = n - i < BLOCK ? n : i + BLOCK;
        for (; i < end; i += LANES) { /* the last step may pass n: i < n ends the loop */
            v4f d = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
            if (n - i >= LANES) {
                memcpy(&d, x + i, sizeof d);
            } else {
                memcpy(&d, x + i, (n - i) * sizeof *x);
            }
            acc += exp_neg(d - top);
        }
        for (int l = 0; l < LANES; l++) sum += (double)acc[l];
    }
    return sum;
}

void ht_top_of(const float *x, uint32_t n_vocab, ht_top *top, uint32_t n, uint32_t *got)
{
    uint32_t have = 0;
    *got = 0;
    for (uint32_t i = 0; i < n_vocab && n; i++) {
        if (isnan(x[i]) || (have == n && x[i] <= top[have - 1].logprob)) continue;
        uint32_t at = have < n ? have++ : have - 1;
        for (; at && top[at - 1].logprob < x[i]; at--) top[at] = top[at - 1];
        top[at] = (ht_top){(int32_t)i, x[i]};
    }
    if (!have) return;
    const float most = top[0].logprob;
    const bool finite = most != INFINITY && most != -INFINITY;
    const double log_sum = finite ? log(sum_exp(x, n_vocab, most)) : 0;
    for (uint32_t i = 0; i < have; i++) {
        const float v = top[i].logprob;
        top[i].logprob = finite ? (float)((double)(v - most) - log_sum) : v == most ? 0 : -INFINITY;
    }
    *got = have;
}

void ht_sampler_first(ht_sampler *s, uint32_t n)
{
    s->n_vocab = n && n < s->n_all ? n : s->n_all;
}

void ht_sampler_allow(ht_sampler *s, const uint32_t *bits)
{
    s->allow = bits;
}

/* Natural logarithm of the softmax of x at id. */
float decode__log_softmax(const float *x, uint32_t n, int32_t id)
{
    float top = x[ht_argmax(x, n)];
    if (top == INFINITY || top == -INFINITY) return x[id] == top ? 0 : -INFINITY;
    return (float)((double)(x[id] - top) - log(sum_exp(x, n, top)));
}

/* ---- bias and penalties ---------------------------------------------------------------------- */

static bool in_vocab(const ht_sampler *s, int32_t id)
{
    return id >= 0 && (uint32_t)id < s->n_vocab;
}

/* Repetition (Keskar et al., arXiv:1909.05858, on logits of either sign), presence and
 * frequency. */
static void penalise(ht_sampler *s, const int32_t *history, size_t n)
{
    const ht_sampling *p = &s->par;
    size_t from =
        p->penalty_last_n >= 0 && (size_t)p->penalty_last_n < n ? n - (size_t)p->penalty_last_n : 0;
    for (size_t i = from; i < n; i++) {
        if (in_vocab(s, history[i])) s->count[history[i]]++;
    }
    for (size_t i = from; i < n; i++) {
        if (!in_vocab(s, history[i]) || !s->count[history[i]]) continue;
        float *x = &s->work[history[i]], times = (float)s->count[history[i]];
        *x = *x <= 0 ? *x * p->repeat_penalty : *x / p->repeat_penalty;
        *x -= times * p->frequency_penalty + p->presence_penalty;
        s->count[history[i]] = 0;
    }
}

/* The logits after bias, penalties and constraint: in work, or where they came from when nothing
 * changes them and greedy reads them once: copying a large vocabulary takes longer than that. */
static const float *adjust(ht_sampler *s, const float *logits, const int32_t *history, size_t n)
{
    const bool changed =
        s->par.n_bias || decode__uses_penalties(&s->par) || decode__uses_dry(&s->par) || s->allow;
    if (!changed && s->par.temp <= 0) return logits;
    memcpy(s->work, logits, s->n_vocab * sizeof *logits);
    for (size_t i = 0; i < s->par.n_bias; i++)
        if (in_vocab(s, s->bias[i].id)) s->work[s->bias[i].id] += s->bias[i].bias;
    if (decode__uses_penalties(&s->par)) penalise(s, history, n);
    if (decode__uses_dry(&s->par)) decode__dry(s, history, n);
    /* Last, so that no bias brings back what may not come. */
    for (uint32_t i = 0; s->allow && i < s->n_vocab; i++)
        if (!(s->allow[i / 32] >> (i % 32) & 1)) s->work[i] = -INFINITY;
    return s->work;
}

/* ---- candidates ------------------------------------------------------------------------------ */

/* p of every candidate, unnormalised, at this temperature; returns their sum. */
static double softmax(ht_sampler *s, float temp)
{
    float top = -INFINITY;
    double sum = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->cand[i].logit > top) top = s->cand[i].logit;
    }
    for (size_t i = 0; i < s->n; i++) {
        s->cand[i].p = exp(((double)s->cand[i].logit - (double)top) / (double)temp);
        sum += s->cand[i].p;
    }
    return sum;
}

/* The same at temperature 1 for the truncating stages: computed once, then summed over who is
 * left. */
static double mass_left(ht_sampler *s)
{
    double sum = 0;
    if (!s->has_p) {
        s->has_p = true;
        return softmax(s, 1);
    }
    for (size_t i = 0; i < s->n; i++) sum += s->cand[i].p;
    return sum;
}

/* Locally typical sampling (Meister et al., arXiv:2202.00666): nearest to the entropy first. */
static void typical(ht_sampler *s)
{
    double sum = mass_left(s), entropy = 0;
    for (size_t i = 0; i < s->n; i++) {
        double p = s->cand[i].p / sum;
        if (p > 0) entropy -= p * log(p);
    }
    for (size_t i = 0; i < s->n; i++) {
        double p = s->cand[i].p / sum;
        s->cand[i].key = p > 0 ? (float)-fabs(-log(p) - entropy) : -INFINITY;
    }
    decode__keep_mass(s, (double)s->par.typical_p * sum);
    for (size_t i = 0; i < s->n; i++) s->cand[i].key = s->cand[i].logit;
}

/* Nucleus sampling (Holtzman et al., arXiv:1904.09751). */
static void top_p(ht_sampler *s)
{
    decode__keep_mass(s, (double)s->par.top_p * mass_left(s));
}

/* min-p (Nguyen et al., arXiv:2407.01082): at least min_p of the largest probability. */
static void min_p(ht_sampler *s)
{
    float top = -INFINITY;
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->cand[i].logit > top) top = s->cand[i].logit;
    }
    double least = (double)top + log((double)s->par.min_p);
    for (size_t i = 0; i < s->n; i++) {
        if ((double)s->cand[i].logit >= least) s->cand[kept++] = s->cand[i];
    }
    s->n = kept;
}

/* XTC ("exclude top choices"): with the given chance drop all candidates that reach the threshold
 * except the least likely of them. */
static void xtc(ht_sampler *s, uint64_t position)
{
    if (s->n < 2 || s->par.xtc_threshold > 0.5F) return;
    double u = ht_uniform(s->par.seed, position, DECODE_STREAM_XTC);
    if (u >= (double)s->par.xtc_probability) return;
    double least = (double)s->par.xtc_threshold * mass_left(s);
    const decode__cand *stay = NULL;
    for (size_t i = 0; i < s->n; i++) {
        const decode__cand *c = &s->cand[i];
        if (c->p < least) continue;
        if (!stay || c->logit < stay->logit || (c->logit == stay->logit && c->id > stay->id))
            stay = c;
    }
    if (!stay) return;
    int32_t stay_id = stay->id;
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->cand[i].p < least || s->cand[i].id == stay_id) s->cand[kept++] = s->cand[i];
    }
    s->n = kept;
}

/* Inversion over the candidates in order of id. That order does not depend on how they were
 * selected, so any other implementation of the chain can reproduce the draw. */
int32_t decode__pick(const ht_sampler *s, double sum, double u)
{
    const double target = u * sum;
    double mass = 0;
    int32_t last = s->cand[0].id;
    for (size_t i = 0; i < s->n; i++) {
        if (!(s->cand[i].p > 0)) continue;
        mass += s->cand[i].p;
        last = s->cand[i].id;
        if (mass > target) return last;
    }
    return last; /* rounding left the target at the very end */
}

static void truncate(ht_sampler *s, uint64_t position)
{
    s->has_p = false;
    decode__top_k(s, s->par.top_k > 0 ? (size_t)s->par.top_k : s->n_vocab);
    if (s->par.typical_p < 1) typical(s);
    if (s->par.top_p < 1) top_p(s);
    if (s->par.min_p > 0) min_p(s);
    if (s->par.xtc_probability > 0) xtc(s, position);
}

int decode__shape(ht_sampler *s, const float *logits, const int32_t *history, size_t n_history,
                  uint64_t position, double *sum, ht_err *e)
{
    const float *x = adjust(s, logits, history, n_history);
    const int32_t best = ht_argmax(x, s->n_vocab);
    if (best < 0 || x[best] == -INFINITY)
        return HT_FAIL(e, HT_EFORMAT,
                       "sampling at position %llu: no logit of %u is a number above -inf; the "
                       "model's weights may be damaged, or the biases ban every token",
                       (unsigned long long)position, s->n_vocab);
    if (s->par.temp <= 0 || x[best] == INFINITY) {
        s->cand[0] = (decode__cand){.id = best, .logit = x[best], .p = 1};
        s->n = 1;
        *sum = 1;
        return 0;
    }
    truncate(s, position);
    decode__order_by_id(s);
    *sum = softmax(s, s->par.temp);
    return 0;
}

int ht_sampler_draw(ht_sampler *s, const float *logits, const int32_t *history, size_t n_history,
                    uint64_t position, int32_t *id, float *logprob, ht_err *e)
{
    double sum = 0;
    HT_TRY(decode__shape(s, logits, history, n_history, position, &sum, e));
    *id = decode__pick(s, sum, ht_uniform(s->par.seed, position, DECODE_STREAM_DRAW));
    if (logprob) *logprob = decode__log_softmax(logits, s->n_vocab, *id);
    return 0;
}

/* ---- making ---------------------------------------------------------------------------------- */

static int copy_breakers(ht_sampler *s, const int32_t *const *breakers, const size_t *breaker_n,
                         size_t n, ht_err *e)
{
    size_t total = 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        if (!ht_add_ok(total, breaker_n[i], &total))
            return HT_FAIL(e, HT_EARG, "sampling: the DRY breakers are too long");
    }
    s->breaker_ids = ht_mem_array(total ? total : 1, sizeof *s->breaker_ids);
    s->breaker_n = ht_mem_array(n ? n : 1, sizeof *s->breaker_n);
    if (!s->breaker_ids || !s->breaker_n) return HT_FAIL(e, HT_ENOMEM, "sampling: no memory");
    for (size_t i = 0; i < n; i++) {
        if (breaker_n[i])
            memcpy(s->breaker_ids + at, breakers[i], breaker_n[i] * sizeof *s->breaker_ids);
        s->breaker_n[i] = breaker_n[i];
        at += breaker_n[i];
    }
    s->n_breakers = n;
    return 0;
}

static int copy_bias(ht_sampler *s, const ht_sampling *par, ht_err *e)
{
    s->par.bias = NULL;
    if (!par->n_bias) return 0;
    s->bias = ht_mem_array(par->n_bias, sizeof *s->bias);
    if (!s->bias) return HT_FAIL(e, HT_ENOMEM, "sampling: no memory for %zu biases", par->n_bias);
    for (size_t i = 0; i < par->n_bias; i++) {
        if (!in_vocab(s, par->bias[i].id))
            return HT_FAIL(e, HT_EARG, "sampling: bias for token %d, must be from 0 to %u",
                           par->bias[i].id, s->n_vocab - 1);
        s->bias[i] = par->bias[i];
    }
    s->par.bias = s->bias;
    return 0;
}

static int allocate(ht_sampler *s, ht_err *e)
{
    int32_t last = s->par.dry_last_n;
    s->window = last >= 0 && last < DECODE_DRY_WINDOW ? (size_t)last : DECODE_DRY_WINDOW;
    s->work = ht_mem_array(s->n_all, sizeof *s->work);
    s->count = ht_mem_array(s->n_all, sizeof *s->count);
    s->cand = ht_mem_array(s->n_all, sizeof *s->cand);
    bool dry = decode__uses_dry(&s->par);
    if (dry) s->match = ht_mem_array(s->window, sizeof *s->match);
    if (!s->work || !s->count || !s->cand || (dry && !s->match))
        return HT_FAIL(e, HT_ENOMEM, "sampling: no memory for %u candidates", s->n_all);
    return 0;
}

int ht_sampler_new(ht_sampler **out, const ht_sampling *par, uint32_t n_vocab,
                   const int32_t *const *breakers, const size_t *breaker_n, size_t n_breakers,
                   ht_err *e)
{
    HT_TRY(decode__check(par, e));
    if (!n_vocab || n_vocab > INT32_MAX)
        return HT_FAIL(e, HT_EARG, "sampling: a vocabulary of %u tokens", n_vocab);
    ht_sampler *s = ht_mem_alloc(sizeof *s);
    if (!s) return HT_FAIL(e, HT_ENOMEM, "sampling: no memory");
    s->par = *par;
    s->par.dry_breakers = NULL; /* the caller's; the tokenised ones are copied below */
    s->n_all = s->n_vocab = n_vocab;
    int rc = allocate(s, e);
    if (!rc) rc = copy_bias(s, par, e);
    if (!rc) rc = copy_breakers(s, breakers, breaker_n, breakers ? n_breakers : 0, e);
    if (rc) {
        ht_sampler_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

int ht_sampler_clone(ht_sampler **out, const ht_sampler *from, ht_err *e)
{
    const size_t n = from->n_breakers;
    const int32_t **breaker = ht_mem_array(n ? n : 1, sizeof *breaker);
    *out = NULL;
    if (!breaker) return HT_FAIL(e, HT_ENOMEM, "sampling: no memory");
    const int32_t *at = from->breaker_ids;
    for (size_t i = 0; i < n; at += from->breaker_n[i++]) breaker[i] = at;
    const int rc = ht_sampler_new(out, &from->par, from->n_all, breaker, from->breaker_n, n, e);
    ht_mem_free(breaker);
    return rc;
}

void ht_sampler_free(ht_sampler *s)
{
    if (!s) return;
    ht_mem_free(s->work);
    ht_mem_free(s->count);
    ht_mem_free(s->cand);
    ht_mem_free(s->match);
    ht_mem_free(s->bias);
    ht_mem_free(s->breaker_ids);
    ht_mem_free(s->breaker_n);
    ht_mem_free(s);
}
