/* kfit.h - searches for the scale (and minimum) of one group of a K-quant. */
#ifndef HT_QUANT_KFIT_H
#define HT_QUANT_KFIT_H
#include <stdbool.h>
#include <stdint.h>

enum { HT_KFIT_MAX = 32 }; /* elements of the largest group */
typedef struct {
    int n, nmax;       /* elements of a group; levels are 0..nmax                              */
    float first, step; /* tried ranges: (nmax + first + step*i) / (max - min), i = 0..n_steps  */
    int n_steps;
    bool absolute; /* weigh |error|, not error^2                                           */
} ht_kfit;
/* x ~ scale*level - *min with scale, *min >= 0: the least weighted error over the tried ranges,
 * each with the least-squares scale and minimum of its levels. x, weight, level [n]. Returns
 * scale. */
float quant__fit_affine(const ht_kfit *, const float *x, const float *weight, uint8_t *level,
                        float *min);
/* x ~ scale*(level - nmax), level 0..2*nmax-1: the least x^2-weighted squared error over 19 ranges.
 * Returns scale, its sign free. */
float quant__fit_signed(int n, int nmax, const float *x, uint8_t *level);
/* The same measure, by moving one level at a time to its best value, at most five rounds. */
float quant__fit_descent(int n, int nmax, const float *x, uint8_t *level);
#endif
