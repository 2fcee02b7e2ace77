/* ahead.h - a draft model that guesses in a thread of its own while the target computes (PEARL,
 * arXiv:2408.11850, and AMUSD, arXiv:2410.17375, have the idea). Host logic alone: what guesses is
 * a function, so it is the same for a second core set and for another device.
 *
 * The worker extends a chain of tokens, what the target has made followed by guesses of its own.
 * The target says what is true. While that is what was guessed, the worker is not disturbed; at the
 * first difference the chain is cut there and the epoch counted up, and a guess that was begun in
 * an older epoch is thrown away when it comes. The target never waits: it takes what is there, and
 * nothing when nothing is. */
#ifndef HT_DECODE_AHEAD_H
#define HT_DECODE_AHEAD_H
#include "core/err.h"
#include <stdbool.h>

/* Guess the token behind tokens[0..len), of which the first `known` are true and the rest guesses.
 * *logprob: how sure, natural log. Called in the worker's thread only. */
typedef int (*ht_ahead_fn)(void *user, const int32_t *tokens, uint32_t known, uint32_t len,
                           int32_t *id, float *logprob, ht_err *);
typedef struct ht_ahead ht_ahead;
typedef struct {
    uint64_t epochs;                 /* times that what came was not what was guessed             */
    uint64_t guessed, discarded;     /* guesses made; of those too late or behind a cut           */
    uint64_t busy_ns;                /* time inside the function                                  */
} ht_ahead_stats;
/* A worker, paused, for up to cap tokens; it runs at most `most` guesses ahead of the truth. */
HT_MUST_USE int ht_ahead_new(ht_ahead **, ht_ahead_fn, void *user, uint32_t cap, uint32_t most,
                             ht_err *);
/* Waits for the guess that is being made, and ends the thread. NULL allowed. */
void ht_ahead_free(ht_ahead *);
/* tokens[0..len) are true; those of the call before are among them. */
void ht_ahead_truth(ht_ahead *, const int32_t *tokens, uint32_t len);
/* Paused, the worker makes no further guess and keeps those it has. */
void ht_ahead_pause(ht_ahead *, bool paused);
/* Copy up to most guesses behind the truth: returns how many. */
uint32_t ht_ahead_take(ht_ahead *, uint32_t most, int32_t *id, float *logprob);
/* The function's error, which ended the work: its code, or 0. */
int ht_ahead_failed(ht_ahead *, ht_err *);
void ht_ahead_stats_of(ht_ahead *, ht_ahead_stats *);
#endif
