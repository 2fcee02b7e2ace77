/* buf.h - a growable byte buffer with a maximum, so that no input can make it unbounded.
 * After the first failed append the buffer is marked bad and further appends do nothing: check once
 * at the end with ht_buf_ok(). Always NUL-terminated past n. */
#ifndef HT_CORE_BUF_H
#define HT_CORE_BUF_H
#include "core/err.h"
#include <stdbool.h>

typedef struct { char *p; size_t n, cap, max; bool bad; } ht_buf;

void ht_buf_init(ht_buf *, size_t max);             /* max 0: 1 GiB                               */
void ht_buf_done(ht_buf *);
void ht_buf_add(ht_buf *, const void *p, size_t n);
void ht_buf_str(ht_buf *, const char *s);
void ht_buf_char(ht_buf *, char c);
void ht_buf_fmt(ht_buf *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ht_buf_clear(ht_buf *);                        /* n = 0, memory kept, bad cleared            */
/* 0, or HT_ENOMEM naming `what` when an append failed. */
HT_MUST_USE int ht_buf_ok(const ht_buf *, const char *what, ht_err *);
char *ht_buf_take(ht_buf *, size_t *n);            /* hand over p (ht_free / ht_mem_free); resets */
#endif
