/* priv.h - what the simulators share: inputs in force, draws, distributions. */
#ifndef HT_EVID_SIM_PRIV_H
#define HT_EVID_SIM_PRIV_H
#include "core/arena.h"
#include "core/json.h"
#include "evid/sim/sim.h"

/* Elementary steps (about a nanosecond each) that one run may take: a minute, not a day. */
#define SIM_MAX_WORK 60000000000.0
enum { SIM_SERIES = 6 };             /* results of one kind at most                               */

typedef struct { const char *key; int64_t *v; uint32_t n; } sim__series;
typedef struct {
    ht_arena *a;
    const ht_sim_input *input;
    const int64_t *value;            /* in the order of input                                     */
    uint64_t seed;
    sim__series series[SIM_SERIES]; uint32_t n_series;
    struct { const char *key; int64_t v; } fact[4]; uint32_t n_facts;  /* no draw in them; by key */
} sim__run;

int64_t sim__in(const sim__run *, const char *key);
/* A result of one value a draw, to be filled; NULL: out of memory. Keys in byte order. */
int64_t *sim__series_new(sim__run *, const char *key, uint32_t n);
void sim__fact(sim__run *, const char *key, int64_t v);
/* HT_EARG when the inputs ask for more steps than SIM_MAX_WORK. */
HT_MUST_USE int sim__bound(double work, ht_err *);

/* Numbers of one draw, in order. */
typedef struct { uint64_t seed, stream, at; } sim__rng;
sim__rng sim__draw(const sim__run *, uint32_t draw);
double sim__uniform(sim__rng *);                       /* [0,1)                                   */
uint32_t sim__below(sim__rng *, uint32_t n);           /* 0 .. n-1                                */
/* Mean 0, variance 1: the sum of four uniforms, scaled; close to normal, needs no logarithm. */
double sim__noise(sim__rng *);
/* v times a uniform factor in [1 - ppm, 1 + ppm]. */
double sim__jitter(sim__rng *, double v, int64_t ppm);

typedef int sim__fn(sim__run *, ht_err *);
typedef struct { const char *name, *caveat; const ht_sim_input *input; sim__fn *run; } sim__kind;
extern const sim__kind sim__drafter, sim__residency, sim__mla, sim__dag;
#endif
