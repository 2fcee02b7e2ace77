/* sim.h - the four simulations of `hetero sim`, behind a quarantine. A simulation is arithmetic on
 * declared inputs: it measures nothing. Its record (schema hetero/sim/1, id "sim-...", predicate
 * urn:hetero:simulation:1, key role simulate) is a type of its own that neither the evidence layer
 * nor the planner has a parser for; only the program's command line may include this directory, and
 * it is not part of libhetero (tests/lint/quarantine.sh).
 *
 * Numbers: Philox draws, IEEE double sums in a written order, square root as the only library
 * function; results are rounded down to integers. So equal inputs and seed give equal bytes on any
 * machine. */
#ifndef HT_EVID_SIM_SIM_H
#define HT_EVID_SIM_SIM_H
#include "core/buf.h"
#include "evid/dsse.h"
#include "evid/trust.h"

#define HT_SIM_SCHEMA "hetero/sim/1"
#define HT_SIM_PREDICATE "urn:hetero:simulation:1"

enum ht_sim { HT_SIM_DRAFTER, HT_SIM_RESIDENCY, HT_SIM_MLA, HT_SIM_DAG, HT_SIMS };
const char *ht_sim_name(int kind);                     /* "drafter"                               */
int ht_sim_by_name(const char *name);                  /* -1: none                                */

/* An input: an integer within [lo, hi], unit in the key's name. */
typedef struct { const char *key; int64_t def, lo, hi; const char *what; } ht_sim_input;
/* The inputs of a kind in byte order of their keys; ends with a NULL key. */
const ht_sim_input *ht_sim_inputs(int kind);

/* Run it and append the record, canonical JSON. inputs (may be NULL): a JSON object that sets some
 * inputs; the others have their defaults. HT_EFORMAT names an unknown key or a value out of range;
 * HT_EARG: inputs that contradict each other, or more work than SIM_MAX_WORK. */
HT_MUST_USE int ht_sim_run(enum ht_sim, const char *inputs, size_t n, uint64_t seed, ht_buf *out,
                           ht_err *);

/* The record inside an in-toto statement (subject: the record's digest), signed; appended as a DSSE
 * envelope. HT_EGATE unless the trust root gives the key the role `simulate` and no other: a key
 * that may also sign evidence must never have signed a simulation. */
HT_MUST_USE int ht_sim_sign(const char *record, size_t n, const ht_key *, const ht_trust *,
                            ht_buf *out, ht_err *);
#endif
