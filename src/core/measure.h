/* measure.h - what this machine can do right now: read bandwidth of memory, multiply-add rate and
 * rate of 8-bit products, with the threads an engine would use. Measured in the run that needs
 * them, since a virtual machine's neighbours change them by the minute. Figures of ht_measure_*
 * are the best of several passes: a bound, not a mean. What the machine keeps up over the time of a
 * measurement is another figure, ht_pace: a virtual processor shares its core with neighbours, and
 * work of seconds cannot be faster than such a core is on average. */
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
typedef struct {
    double ops_per_s;                /* products of bytes added in 32 bits, two operations each   */
    double summed_ops_per_s;         /* avx2: four products of a lane added in 16 bits before they
                                        are widened; 0: the instruction widens by itself          */
    const char *isa;                 /* "generic", "avx2" (vpmaddubsw, vpmaddwd, vpaddd),
                                        "avx512+vnni" (vpdpbusd)                                  */
} ht_int8_rate;

/* Read a buffer of `bytes` again and again with all threads: memory bandwidth when it is far larger
 * than the caches, the caches' own when it fits them. Rounded up to 64 KiB a thread; lowered to a
 * quarter of the available memory. isa_max: highest instruction set to use, NULL: the best. */
HT_MUST_USE int ht_measure_read(int threads, uint64_t bytes, const char *isa_max, ht_read_rate *,
                                ht_err *);
HT_MUST_USE int ht_measure_fma(int threads, const char *isa_max, ht_fma_rate *, ht_err *);
/* Of the instructions that --act q8 of the cpu engine is made of at this level. */
HT_MUST_USE int ht_measure_int8(int threads, const char *isa_max, ht_int8_rate *, ht_err *);

/* Rates over all of the time in the windows taken, of the same kernels: to be taken in turn with
 * what is measured. One caller at a time. */
typedef struct ht_pace ht_pace;
typedef struct {
    double bytes_per_s, flops_per_s; /* 0: not asked for, or no window taken                      */
    uint32_t windows;
} ht_pace_rates;
/* read_bytes: size of the buffer to read as of ht_measure_read; 0: multiply-adds instead.
 * Release with ht_pace_free. */
HT_MUST_USE int ht_pace_new(ht_pace **, int threads, uint64_t read_bytes, const char *isa_max,
                            ht_err *);
void ht_pace_take(ht_pace *);        /* a window of about a tenth of a second                     */
ht_pace_rates ht_pace_get(const ht_pace *);
void ht_pace_free(ht_pace *);        /* NULL is allowed                                           */
#endif
