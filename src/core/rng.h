/* rng.h - counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011). The value is a
 * function of (seed, counter): no state, so a token's draw depends on its position alone. */
#ifndef HT_CORE_RNG_H
#define HT_CORE_RNG_H
#include <stdint.h>
void ht_philox(uint64_t seed, uint64_t counter, uint64_t stream, uint32_t out[4]);
double ht_uniform(uint64_t seed, uint64_t counter, uint64_t stream);   /* [0,1), 53 bits          */
#endif
