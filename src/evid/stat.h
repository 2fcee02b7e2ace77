/* stat.h - the statistics of a verdict, in integers only, so that any implementation recomputes the
 * same bytes: ratios in ppm, Hodges-Lehmann estimate and its exact confidence interval over Walsh
 * products, sign test, Wilcoxon signed-rank, Holm's correction, tail gates by counts.
 * Definitions: product.md 5.6 and evidence.md 3.3, 3.4. Pure functions, any thread. */
#ifndef HT_EVID_STAT_H
#define HT_EVID_STAT_H
#include "core/err.h"
#include <stdbool.h>

enum { HT_STAT_MIN_N = 5, HT_STAT_MAX_N = 40, HT_PPM = 1000000 };

/* floor(ref_ns * 10^6 / cand_ns): above 10^6 the candidate is faster. cand_ns 0 stands for a failed
 * candidate and gives 0, the worst rank; ref_ns 0 (a failed reference) is HT_EARG: the evidence is
 * invalid, never a win. A ratio above 2^53-1 is HT_EARG. */
HT_MUST_USE int ht_stat_ratio(uint64_t ref_ns, uint64_t cand_ns, uint64_t *ppm, ht_err *);

/* A tail probability of a discrete test on n pairs: num / 2^n. */
typedef struct { uint64_t num; uint32_t n; } ht_prob;
bool ht_prob_le(ht_prob p, uint64_t times, uint64_t alpha_ppm);  /* p * times <= alpha ?          */

typedef struct {
    uint32_t n, n_walsh;             /* pairs; n(n+1)/2                                           */
    uint64_t hl, lo, hi;             /* ppm: estimate; 95 % interval, lower floored, upper ceiled */
    uint64_t min, max;               /* ppm, over the pairs                                       */
    uint32_t wins, ties, losses;     /* ratio above, at, below 10^6                               */
    ht_prob sign;                    /* one-sided, ties counted as losses                         */
    ht_prob wilcoxon;                /* one-sided; a Walsh product at 10^12 counts as a loss      */
} ht_stat;
/* ratios [n] in ppm, HT_STAT_MIN_N <= n <= HT_STAT_MAX_N; not changed. */
HT_MUST_USE int ht_stat_pairs(const uint64_t *ratios, uint32_t n, ht_stat *out, ht_err *);

/* The estimate alone, of 1 <= n <= HT_STAT_MAX_N ratios of at most 2^53-1. */
uint64_t ht_stat_hl(const uint64_t *ratios, uint32_t n);
/* Largest number of losses among n pairs with P(Binomial(n, 1/2) <= losses) <= alpha; -1: none. */
int ht_stat_sign_losses(uint32_t n, uint64_t alpha_ppm);
/* Largest W with P(T <= W) + P(T >= M-W) <= alpha for the signed-rank statistic T; -1: none. */
int ht_stat_wilcoxon_w(uint32_t n, uint64_t alpha_ppm);
/* Holm 1979: pass[i] = hypothesis i is rejected (the candidate's gain is established) at
 * family-wise alpha. m <= 4096. Order of equal p-values: by index. */
HT_MUST_USE int ht_stat_holm(const ht_prob *p, size_t m, uint64_t alpha_ppm, bool *pass, ht_err *);

/* Requests needed to claim "quantile <= SLO" at a confidence with `misses` (0..3) requests above
 * the SLO: least N with P(Binomial(N, 1-quantile) <= misses) <= 1-confidence. Quantiles 900000,
 * 950000, 990000 ppm; confidences 950000, 990000 ppm. 0: outside the table. */
uint32_t ht_stat_tail_needed(uint64_t quantile_ppm, uint64_t conf_ppm, uint32_t misses);
enum ht_tail { HT_TAIL_PASS, HT_TAIL_FAIL, HT_TAIL_TOO_FEW };
/* n requests of which `misses` were above the SLO (or failed), at most `worst_pair` of them in one
 * pair: requests of one process are correlated, so more than half in one pair fails. */
enum ht_tail ht_stat_tail(uint64_t quantile_ppm, uint64_t conf_ppm, uint32_t n, uint32_t misses,
                          uint32_t worst_pair);
#endif
