/* sample.c - the sampler chain, in llama.cpp's usual order:
 *
 *     logit bias -> penalties -> DRY -> top-k -> typical-p -> top-p -> min-p -> XTC -> temperature
 *     -> draw
 *
 * Truncation sees the distribution at temperature 1. Greedy (temp <= 0) takes the largest logit after
 * bias, penalties and DRY. A NaN or -inf logit excludes its token; +inf makes it certain. Each draw
 * depends on its arguments alone: scratch is left as it was found. */
#include "core/rng.h"
#include "decode/chain.h"
#include <math.h>
#include <string.h>

int32_t ht_argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    float top = -INFINITY;
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        if (!(x[i] > top) && !(!any && x[i] == -INFINITY)) continue;
        top = x[i];
        best = i;
        any = true;
    }
    return any ? (int32_t)best : -1;
}

/* Natural logarithm of the softmax of x at id. Terms below exp(-30) of the largest are left out: 10^6
 * of them would change the result by less than 1e-7. */
static float log_softmax(const float *x, uint32_t n, int32_t id)
{
    float top = -INFINITY;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (x[i] > top) top = x[i];
    }
    if (top == INFINITY || top == -INFINITY) return x[id] == top ? 0 : -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        float d = x[i] - top;
        if (d > -30) sum += (double)expf(d);
    }
    return (float)((double)(x[id] - top) - log(sum));
}

/* ---- bias and penalties ------------------------------------------------------------------------ */

static bool in_vocab(const ht_sampler *s, int32_t id)
{
    return id >= 0 && (uint32_t)id < s->n_vocab;
}

/* Repetition (Keskar et al., arXiv:1909.05858, on logits of either sign), presence and frequency. */
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

static void adjust(ht_sampler *s, const float *logits, const int32_t *history, size_t n)
{
    memcpy(s->work, logits, s->n_vocab * sizeof *logits);
    for (size_t i = 0; i < s->par.n_bias; i++) s->work[s->bias[i].id] += s->bias[i].bias;
    if (decode__uses_penalties(&s->par)) penalise(s, history, n);
    if (decode__uses_dry(&s->par)) decode__dry(s, history, n);
}

/* ---- candidates --------------------------------------------------------------------------------- */

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

/* Locally typical sampling (Meister et al., arXiv:2202.00666): nearest to the entropy first. */
static void typical(ht_sampler *s)
{
    double sum = softmax(s, 1), entropy = 0;
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
    decode__keep_mass(s, (double)s->par.top_p * softmax(s, 1));
}

/* min-p (Nguyen et al., arXiv:2407.01082): at least min_p of the largest probability. */
static void min_p(ht_sampler *s)
{
    double least = (double)s->par.min_p; /* the largest p is 1 before normalising          */
    size_t kept = 0;
    (void)softmax(s, 1);
    for (size_t i = 0; i < s->n; i++) {
        if (s->cand[i].p >= least) s->cand[kept++] = s->cand[i];
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
    double least = (double)s->par.xtc_threshold * softmax(s, 1);
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

/* Inversion over the candidates in order of id. That order does not depend on how they were selected,
 * so any other implementation of the chain can reproduce the draw. */
static int32_t draw(ht_sampler *s, uint64_t position)
{
    decode__order_by_id(s);
    double sum = softmax(s, s->par.temp), mass = 0;
    double target = ht_uniform(s->par.seed, position, DECODE_STREAM_DRAW) * sum;
    int32_t last = s->cand[0].id;
    for (size_t i = 0; i < s->n; i++) {
        if (!(s->cand[i].p > 0)) continue;
        mass += s->cand[i].p;
        last = s->cand[i].id;
        if (mass > target) return last;
    }
    return last; /* rounding left the target at the very end */
}

static int32_t choose(ht_sampler *s, int32_t best, uint64_t position)
{
    if (s->par.temp <= 0 || s->work[best] == INFINITY) return best;
    decode__top_k(s, s->par.top_k > 0 ? (size_t)s->par.top_k : s->n_vocab);
    if (s->par.typical_p < 1) typical(s);
    if (s->par.top_p < 1) top_p(s);
    if (s->par.min_p > 0) min_p(s);
    if (s->par.xtc_probability > 0) xtc(s, position);
    return draw(s, position);
}

int ht_sampler_draw(ht_sampler *s, const float *logits, const int32_t *history, size_t n_history,
                    uint64_t position, int32_t *id, float *logprob, ht_err *e)
{
    adjust(s, logits, history, n_history);
    int32_t best = ht_argmax(s->work, s->n_vocab);
    if (best < 0 || s->work[best] == -INFINITY)
        return HT_FAIL(e, HT_EFORMAT,
                       "sampling at position %llu: no logit of %u is a number above -inf; the "
                       "model's weights may be damaged, or the biases ban every token",
                       (unsigned long long)position, s->n_vocab);
    *id = choose(s, best, position);
    if (logprob) *logprob = log_softmax(logits, s->n_vocab, *id);
    return 0;
}

/* ---- making ---------------------------------------------------------------------------------------- */

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
    s->work = ht_mem_array(s->n_vocab, sizeof *s->work);
    s->count = ht_mem_array(s->n_vocab, sizeof *s->count);
    s->cand = ht_mem_array(s->n_vocab, sizeof *s->cand);
    bool dry = decode__uses_dry(&s->par);
    if (dry) s->match = ht_mem_array(s->window, sizeof *s->match);
    if (!s->work || !s->count || !s->cand || (dry && !s->match))
        return HT_FAIL(e, HT_ENOMEM, "sampling: no memory for %u candidates", s->n_vocab);
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
    s->n_vocab = n_vocab;
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
