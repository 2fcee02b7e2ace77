/* measure.h - what this machine can do right now: read bandwidth of memory and multiply-add rate,
 * with the threads an engine would use. Measured in the run that needs them, since a virtual
 * machine's neighbours change them by the minute. Figures are the best of several passes: a bound,
 * not a mean. */
#ifndef HT_CORE_MEASURE_H
#define HT_CORE_MEASURE_H
#include "core/err.h"

typedef struct {
    uint64_t bytes;                  /* size of the buffer that was read                          */
    double bytes_per_s;
    const char *kernel;              /* "wide", "streams", "prefetch": the one that was fastest   */
} ht_read_rate;
typedef struct {
    double flops_per_s;              /* f32, two operations per multiply-add                      */
    const char *isa;                 /* "generic", "avx2", "avx512"                               */
} ht_fma_rate;

/* Read a buffer of `bytes` again and again with all threads: memory bandwidth when it is far larger
 * than the caches, the caches' own when it fits them. Rounded up to 64 KiB a thread; lowered to a
 * quarter of the available memory. isa_max: highest instruction set to use, NULL: the best. */
HT_MUST_USE int ht_measure_read(int threads, uint64_t bytes, const char *isa_max, ht_read_rate *,
                                ht_err *);
HT_MUST_USE int ht_measure_fma(int threads, const char *isa_max, ht_fma_rate *, ht_err *);
#endif
