/* route.h - the door from admitted routes to engines: opened with the engine, asked before each
 * call. */
#ifndef HT_API_ROUTE_H
#define HT_API_ROUTE_H
#include "api/api.h"

/* Read the store in dir (NULL: none) and open a device for every admitted backend that fits
 * this model, binary and machine; without any, e->route stays NULL. Nothing here makes the
 * reference worse: a store that does not verify admits nothing, and receipts say BAD_SIGNATURE. */
HT_MUST_USE int api__route_open(ht_engine *e, const char *dir, ht_err *);
void api__route_close(ht_engine *);
/* Both phases on the reference: what is no generation has no scope. */
void api__route_reference(ht_engine *);
/* Set e->phase for a call of this size. greedy: the sampler's class. spec: speculation is on.
 * HT_EGATE when policy forbids the reference. */
HT_MUST_USE int api__route_choose(ht_engine *, uint32_t n_prompt, uint32_t n_new, bool greedy,
                                  bool spec, ht_err *);
#endif
