/* clock.h - monotonic time. */
#ifndef HT_CORE_CLOCK_H
#define HT_CORE_CLOCK_H
#include <stdint.h>
uint64_t ht_now_ns(void);                              /* CLOCK_MONOTONIC                         */
int64_t ht_now_unix(void);                             /* seconds since 1970                      */
#endif
