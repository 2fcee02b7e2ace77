/* samples.h - what a page needs of samples.jsonl. */
#ifndef HT_REPORT_SAMPLES_H
#define HT_REPORT_SAMPLES_H
#include "report/priv.h"

enum { REPORT_TTFT, REPORT_TPOT, REPORT_E2E, REPORT_METRICS };
extern const char *const report__metric_names[REPORT_METRICS + 1];     /* "ttftNs", ...           */
typedef struct {
    uint32_t block, slot, attempt, pair, n_prompt, n_out;
    char arm;                        /* N, M, A, B                                                */
    bool counted;                    /* of its block's last attempt                               */
    const char *bucket, *status, *void_reason;
    double ns[REPORT_METRICS];       /* NAN: unknown                                              */
    char unknown[160];               /* names of guards that are unknown, separated by spaces     */
} report__sample;
/* One line a sample; at most 200,000. Borrows from the arena. */
HT_MUST_USE int report__samples(ht_arena *, const char *text, uint64_t n, report__sample **,
                                size_t *n_samples, ht_err *);
/* Values of one cell, arm and metric among the counted samples that succeeded; room for all. */
size_t report__pick(const report__sample *, size_t n, const char *bucket, char arm, int metric,
                    double *out);
#endif
