/* arrivals.h - when requests come and how long they are: Poisson, bursts, a recorded trace, at the
 * rates of a scheduler's experiment (evidence.md 6). */
#ifndef HT_CLI_ARRIVALS_H
#define HT_CLI_ARRIVALS_H
#include "evid/sched.h"

/* A trace as `hetero serve --record-trace` writes it: lines {"atNs","maxNew","nPrompt"} in order of
 * time; n of them into the arena. HT_EARG: fewer lines, or all at one time. */
HT_MUST_USE int cli__trace_read(ht_arena *, const char *path, uint32_t n, ht_arrival **, ht_err *);
/* Times and lengths of one scenario (of one repetition) into x [n]. mean_ns: between arrivals;
 * scenario 0: fixed. Lengths: two of three short (at most a quarter of max_prompt), one long; a
 * trace has its own, cut at max_new. stream: which random numbers. */
HT_MUST_USE int cli__arrivals_make(uint32_t scenario, uint64_t mean_ns, const ht_arrival *trace,
                                   uint64_t seed, uint64_t stream, uint32_t max_prompt,
                                   uint32_t max_new, ht_arrival *x, uint32_t n, ht_err *);
#endif
