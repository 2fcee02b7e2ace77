/* cost.h - what a pass takes, learnt while it runs: T = a + b rows + c keys, fitted by recursive
 * least squares with forgetting, an upper bound that few passes exceed, and the longest piece of a
 * prompt whose bound stays within an objective (techniques.md 6, evidence.md 6). */
#ifndef HT_SERVE_COST_H
#define HT_SERVE_COST_H
#include <stdint.h>

typedef struct {
    double w[3], p[3][3];   /* ns per pass, row, key, scaled; inverse covariance */
    double over;            /* the bound is the prediction times 1 + over */
    double abs_err, rel_err; /* moving averages of |predicted - measured| and of its share */
    uint64_t n;
} serve__cost;
void serve__cost_init(serve__cost *);
void serve__cost_add(serve__cost *, double rows, double keys, double ns);
double serve__cost_predict(const serve__cost *, double rows, double keys);
/* What the pass takes at most, in 98 of 100; 0: nothing is known yet. */
double serve__cost_bound(const serve__cost *, double rows, double keys);
/* Rows of a prompt at position pos that fit beside n_dec decode rows with keys_dec keys so that
 * the pass's bound stays within slo_ns: a multiple of tile, at least min, at most max. min when
 * nothing is known yet. */
uint32_t serve__cost_chunk(const serve__cost *, double slo_ns, uint32_t n_dec, double keys_dec,
                           uint32_t pos, uint32_t tile, uint32_t min, uint32_t max);
#endif
