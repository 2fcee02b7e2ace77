/* sample.h - from logits to a token: penalties, DRY, bias, truncation, temperature, draw. A pure
 * function of (logits, history, ht_sampling, position): counter-based random numbers make the draw
 * depend on the seed and the position alone. Works in caller memory; no allocation per token. */
#ifndef HT_DECODE_SAMPLE_H
#define HT_DECODE_SAMPLE_H
#include "core/arena.h"

typedef struct ht_sampler ht_sampler;
/* Validates the parameters (HT_EARG names the one that is off) and sizes its scratch for n_vocab.
 * breakers: token sequences of params->dry_breakers, tokenised by the caller; may be NULL. */
HT_MUST_USE int ht_sampler_new(ht_sampler **, const ht_sampling *, uint32_t n_vocab,
                               const int32_t *const *breakers, const size_t *breaker_n,
                               size_t n_breakers, ht_err *);
/* A sampler of the same parameters with scratch of its own, for another thread. */
HT_MUST_USE int ht_sampler_clone(ht_sampler **, const ht_sampler *, ht_err *);
void ht_sampler_free(ht_sampler *);
/* history: all tokens so far (prompt included), oldest first. logits [n_vocab] are not changed.
 * *logprob: log-softmax of the unmodified logits at the chosen id. */
HT_MUST_USE int ht_sampler_draw(ht_sampler *, const float *logits, const int32_t *history,
                                size_t n_history,
                                uint64_t position, int32_t *id, float *logprob, ht_err *);
/* Rejection sampling. A guess: drawn like the above, but with a random number of its own, and
 * q [n_vocab] is what it was drawn from. */
HT_MUST_USE int ht_sampler_guess(ht_sampler *, const float *logits, const int32_t *history,
                                 size_t n_history, uint64_t position, double *q, int32_t *id,
                                 float *logprob, ht_err *);
/* The token of a position for which there is a guess that was drawn from q: distributed as a draw
 * from these logits is, and as often as possible the guess. Exact only if whether it is asked does
 * not depend on which token the guess is. */
HT_MUST_USE int ht_sampler_verify(ht_sampler *, const float *logits, const int32_t *history,
                                  size_t n_history, uint64_t position, int32_t guess,
                                  const double *q, int32_t *id, float *logprob, ht_err *);
/* Of the next draws only ids whose bit is set (id i: bit i%32 of word i/32) can come; borrowed.
 * NULL: all of them. */
void ht_sampler_allow(ht_sampler *, const uint32_t *bits);
/* Of the next draws only ids below n can come, and only so many logits are read: those of a draft
 * that did not look at all ids. 0, or more than there are: all of them. */
void ht_sampler_first(ht_sampler *, uint32_t n);
/* The n likeliest ids of the unmodified logits with the natural log of their soft-max, best first,
 * ties to the lowest id. NaN is left out: *got may be less than n. */
void ht_top_of(const float *logits, uint32_t n_vocab, ht_top *top, uint32_t n, uint32_t *got);
int32_t ht_argmax(const float *, uint32_t n);          /* ties to the lowest id; NaN never wins   */
#endif
