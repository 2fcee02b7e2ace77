/* stop.h - stop strings over a stream of text: bytes that may be the start of a stop string are
 * held back until it is known that they are not; a stop string is never shown, not even in part. */
#ifndef HT_DECODE_STOP_H
#define HT_DECODE_STOP_H
#include "core/buf.h"

typedef struct ht_stopper ht_stopper;
HT_MUST_USE int ht_stopper_new(ht_stopper **, const char *const *stop, size_t n, ht_err *);
void ht_stopper_free(ht_stopper *);
/* Feed bytes; what may be shown is appended to out. *hit: a stop string was completed, the rest is
 * dropped and further input ignored. */
HT_MUST_USE int ht_stopper_push(ht_stopper *, const char *p, size_t n, ht_buf *out, bool *hit,
                                ht_err *);
/* The index of the stop string that was completed; -1: none yet. */
int ht_stopper_which(const ht_stopper *);
HT_MUST_USE int ht_stopper_flush(ht_stopper *, ht_buf *out, ht_err *); /* the held tail */
#endif
