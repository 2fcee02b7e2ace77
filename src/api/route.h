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
/* Set the engine's phases for a call of this size, and what was considered for the session's
 * receipt. greedy: the sampler's class. spec: speculation is on. HT_EGATE when policy forbids the
 * reference, or it is not qualified. */
HT_MUST_USE int api__route_choose(ht_session *, uint32_t n_prompt, uint32_t n_new, bool greedy,
                                  bool spec, ht_err *);
/* A call of the session failed before its first token. True: it was routed, the engine's phases are
 * now the qualified reference with reason ROUTE_FAILED, and the call may be tried once more. */
bool api__route_retry(ht_session *);
/* A run of the session's call was not what its route promised: the bundles of its routes are set
 * aside, here and in the store. */
void api__route_mismatch(ht_session *);
/* Members of a receipt: index, policy, machine, guard, considered. */
void api__route_write(ht_jw *, const ht_session *);
#endif
