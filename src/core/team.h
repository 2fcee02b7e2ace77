/* team.h - the CPU engine's threads. One fork per step, barriers between stages: rank 0 is the
 * caller. Workers spin a few microseconds, then sleep on a futex, so idle costs nothing and a
 * machine with more threads than cores does not collapse. */
#ifndef HT_CORE_TEAM_H
#define HT_CORE_TEAM_H
#include "core/err.h"

typedef struct ht_team ht_team;
typedef void (*ht_team_fn)(void *arg, int rank, int size);

enum { HT_TEAM_MAX = 256 };                           /* threads of a team, and so of an engine   */
HT_MUST_USE int ht_team_new(ht_team **, int threads, ht_err *); /* 1 to HT_TEAM_MAX               */
void ht_team_free(ht_team *);
int ht_team_size(const ht_team *);
void ht_team_run(ht_team *, ht_team_fn, void *arg);   /* fn on every rank; returns when all ended */
void ht_team_barrier(ht_team *);                      /* from inside fn, by every rank            */
/* Dynamic work sharing between two barriers: next chunk index in [0, n), or n when none is left.
 * ht_team_reset() by one rank before a barrier. */
uint32_t ht_team_next(ht_team *, uint32_t n);
void ht_team_reset(ht_team *);
uint64_t ht_team_barriers(const ht_team *);           /* barriers passed so far (a counter)       */
/* [begin, end) of rank's share of n items in multiples of `unit`: static, a function of its
 * arguments alone. */
void ht_team_share(uint32_t n, uint32_t unit, int rank, int size, uint32_t *begin, uint32_t *end);
#endif
