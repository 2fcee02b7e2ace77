/* measure.h - what this machine can do right now: read bandwidth of memory and multiply-add rate, with
 * the threads an engine would use. Measured in the run that needs them, since a virtual machine's
 * neighbours change them by the minute. Figures are the best of several passes: a bound, not a mean. */
#ifndef HT_CORE_MEASURE_H
#define HT_CORE_MEASURE_H
#include "core/err.h"

typedef struct {
    int threads;                     /* used for both figures                                      */
    uint64_t bytes;                  /* size of the read buffer                                    */
    double read_bytes_per_s;
    const char *read_kernel;         /* "wide", "streams", "prefetch": the one that was fastest    */
    double fma_flops_per_s;          /* f32, two operations per multiply-add                       */
    const char *fma_isa;             /* "generic", "avx2", "avx512"                                */
} ht_machine_rates;

/* max_bytes: buffer size asked for, lowered to a quarter of the available memory; at least 64 MiB
 * (HT_ENOMEM when not even that can be had). isa_max: highest instruction set to use, NULL: the best.
 * Takes a second or two. */
HT_MUST_USE int ht_measure_machine(int threads, uint64_t max_bytes, const char *isa_max,
                                   ht_machine_rates *, ht_err *);
#endif
