/* arena.h - memory that is freed whole. Five arenas: model, plan, session, request, scratch.
 * malloc appears only in arena.c and buf.c, so that tests can fail the n-th allocation and count
 * the ones a decode step makes (there must be none). An arena is used by one thread at a time. */
#ifndef HT_CORE_ARENA_H
#define HT_CORE_ARENA_H
#include "core/err.h"
#include <stdbool.h>

typedef struct ht_arena ht_arena;

/* max_bytes 0: no cap. */
HT_MUST_USE int ht_arena_new(ht_arena **out, size_t max_bytes, ht_err *);
void ht_arena_free(ht_arena *);                     /* NULL allowed                              */
/* n bytes, zeroed, aligned to 16 (or `align`, a power of two up to 4096); NULL when memory or the
 * cap is exhausted: report with HT_FAIL(e, HT_ENOMEM, ...). n == 0 gives a valid unique pointer. */
void *ht_arena_alloc(ht_arena *, size_t n);
void *ht_arena_alloc_aligned(ht_arena *, size_t n, size_t align);
void *ht_arena_array(ht_arena *, size_t count, size_t size);        /* checked multiply           */
char *ht_arena_strndup(ht_arena *, const char *s, size_t n);        /* NUL-terminated copy        */
char *ht_arena_printf(ht_arena *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
size_t ht_arena_bytes(const ht_arena *);            /* taken from the system                      */

/* Plain heap for objects with their own lifetime: zeroed; pairs with ht_mem_free. */
void *ht_mem_alloc(size_t n);
void *ht_mem_array(size_t count, size_t size);
void *ht_mem_resize(void *p, size_t n);             /* old content kept, new bytes not zeroed     */
void ht_mem_free(void *);
/* Page-aligned zeroed memory straight from the kernel, huge pages advised; for planes and packs. */
void *ht_page_alloc(size_t n);
void ht_page_free(void *, size_t n);

bool ht_mul_ok(size_t a, size_t b, size_t *out);    /* false on overflow                          */
bool ht_add_ok(size_t a, size_t b, size_t *out);

/* Test hooks. fail_at(n): the n-th allocation from now fails (1 = next; 0 = off). */
void ht_alloc_fail_at(uint64_t n);
uint64_t ht_alloc_count(void);                      /* allocations so far, all threads            */
uint64_t ht_alloc_live(void);                       /* of those that succeeded, not yet freed     */
#endif
