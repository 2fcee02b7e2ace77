/* reject.c - rejection sampling for speculation (Leviathan et al., arXiv:2211.17192; Chen et al.,
 * arXiv:2302.01318): a guess x drawn from q is kept with chance min(1, p(x)/q(x)), else the token
 * comes from what p has more than q. Either way it is distributed as p, and the chance of keeping
 * is sum min(p, q), the most that any rule can reach.
 *
 * Both p and q are what is left behind the whole chain. Three independent random numbers belong to
 * a position: for the guess, for keeping it, for what replaces it. */
#include "core/rng.h"
#include "decode/chain.h"
#include <string.h>

int ht_sampler_guess(ht_sampler *s, const float *logits, const int32_t *history, size_t n_history,
                     uint64_t position, double *q, int32_t *id, float *logprob, ht_err *e)
{
    double sum = 0;
    HT_TRY(decode__shape(s, logits, history, n_history, position, &sum, e));
    memset(q, 0, s->n_all * sizeof *q);
    for (size_t i = 0; i < s->n; i++) q[s->cand[i].id] = s->cand[i].p / sum;
    *id = decode__pick(s, sum, ht_uniform(s->par.seed, position, DECODE_STREAM_GUESS));
    if (logprob) *logprob = decode__log_softmax(logits, s->n_vocab, *id);
    return 0;
}

/* Leave of the candidates what p has more than q. Returns its sum; 0, and nothing changed, when
 * that is nothing: p equals q up to rounding. */
static double subtract(ht_sampler *s, const double *q, double sum)
{
    double rest = 0;
    for (size_t i = 0; i < s->n; i++) {
        const double more = s->cand[i].p / sum - q[s->cand[i].id];
        if (more > 0) rest += more;
    }
    if (!(rest > 0)) return 0;
    for (size_t i = 0; i < s->n; i++) {
        const double more = s->cand[i].p / sum - q[s->cand[i].id];
        s->cand[i].p = more > 0 ? more : 0;
    }
    return rest;
}

int ht_sampler_verify(ht_sampler *s, const float *logits, const int32_t *history, size_t n_history,
                      uint64_t position, int32_t guess, const double *q, int32_t *id,
                      float *logprob, ht_err *e)
{
    double sum = 0, p = 0;
    HT_TRY(decode__shape(s, logits, history, n_history, position, &sum, e));
    for (size_t i = 0; i < s->n; i++)
        if (s->cand[i].id == guess) p = s->cand[i].p / sum;
    *id = guess;
    if (!(ht_uniform(s->par.seed, position, DECODE_STREAM_ACCEPT) * q[guess] < p)) {
        const double rest = subtract(s, q, sum);
        *id = decode__pick(s, rest > 0 ? rest : sum,
                           ht_uniform(s->par.seed, position, DECODE_STREAM_REST));
    }
    if (logprob) *logprob = decode__log_softmax(logits, s->n_vocab, *id);
    return 0;
}
