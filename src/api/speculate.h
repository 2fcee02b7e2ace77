/* speculate.h - drafting for generate.c: what to guess before a step and what to learn after it.
 * The generation itself stays as it is: it samples every token from the model's own logits, and a
 * guess only decides how many rows one run evaluates (sample and match). With rejection sampling it
 * also decides what is drawn, not how likely that is. */
#ifndef HT_API_SPECULATE_H
#define HT_API_SPECULATE_H
#include "api/session.h"
#include "decode/sample.h"

typedef struct api__spec api__spec;
/* Get ready to draft in a generation of at most n_max positions: index, verification plan, draft
 * session entered. sampler is borrowed. *out NULL when want is NULL or asks for nothing. */
HT_MUST_USE int api__spec_begin(api__spec **out, ht_session *, const ht_speculation *want,
                                ht_sampler *, uint32_t n_max, ht_err *);
void api__spec_end(api__spec *); /* NULL allowed */
/* Before a step: write up to `most` guesses behind the session's pending token, hist[len+1...].
 * *k: how many; 0: a plain step. HT_ECANCELLED only. */
HT_MUST_USE int api__spec_draft(api__spec *, uint32_t most, uint32_t *k, ht_err *);
/* The plan that verifies. */
const api__plan *api__spec_plan(const api__spec *);
/* Tokens without a guess that an engine which makes several a run may make in the next one. */
uint32_t api__spec_plain(const api__spec *);
/* What guess i of this round was drawn from, [vocab]: it is to be verified by rejection sampling.
 * NULL: by sample and match. */
const double *api__spec_q(const api__spec *, uint32_t i);
/* After a step with k guesses that made `tokens` tokens, of which `right` were guessed. other_ns:
 * time of the step that was not the library's. */
void api__spec_done(api__spec *, uint32_t k, uint32_t tokens, uint32_t right, uint64_t other_ns);
#endif
