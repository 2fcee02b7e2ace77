/* arena.c - see arena.h. The only malloc of the library, with one counter in front of it: a test
 * can fail the n-th allocation of any kind (heap, arena block, pages) and count what a step
 * takes. */
#include "core/arena.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint64_t n_allocs, n_live, fail_at; /* atomics: every thread allocates */

void ht_alloc_fail_at(uint64_t n)
{
    uint64_t at = n ? __atomic_load_n(&n_allocs, __ATOMIC_RELAXED) + n : 0;
    __atomic_store_n(&fail_at, at, __ATOMIC_RELAXED);
}

uint64_t ht_alloc_count(void)
{
    return __atomic_load_n(&n_allocs, __ATOMIC_RELAXED);
}

uint64_t ht_alloc_live(void)
{
    return __atomic_load_n(&n_live, __ATOMIC_RELAXED);
}

/* Note what an allocation gave, or that it went back. */
static void *born(void *p)
{
    if (p) (void)__atomic_add_fetch(&n_live, 1, __ATOMIC_RELAXED);
    return p;
}

static void dies(const void *p)
{
    if (p) (void)__atomic_sub_fetch(&n_live, 1, __ATOMIC_RELAXED);
}

/* Count one allocation; false when a test wants this one to fail. */
static bool admit(void)
{
    uint64_t k = __atomic_add_fetch(&n_allocs, 1, __ATOMIC_RELAXED);
    return k != __atomic_load_n(&fail_at, __ATOMIC_RELAXED);
}

bool ht_mul_ok(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool ht_add_ok(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* ---- heap ------------------------------------------------------------------------------------ */

void *ht_mem_alloc(size_t n)
{
    return admit() ? born(calloc(1, n ? n : 1)) : NULL;
}

void *ht_mem_array(size_t count, size_t size)
{
    size_t n;
    return ht_mul_ok(count, size, &n) ? ht_mem_alloc(n) : NULL;
}

void *ht_mem_resize(void *p, size_t n)
{
    if (!admit()) return NULL;
    void *q = realloc(p, n ? n : 1);
    return p ? q : born(q);
}

void ht_mem_free(void *p)
{
    dies(p);
    free(p);
}

void *ht_page_alloc(size_t n)
{
    if (!admit()) return NULL;
    if (!n) n = 1;
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    /* Only advice: without huge pages a decode step spends its time in TLB misses. */
    if (n >= (size_t)2 << 20) (void)madvise(p, n, MADV_HUGEPAGE);
    return born(p);
}

void ht_page_free(void *p, size_t n)
{
    dies(p);
    if (p) munmap(p, n ? n : 1);
}

/* ---- arena: a list of blocks, the newest first; memory is cut from the newest only ----------- */

typedef struct block block;
struct block {
    block *next;
    size_t size, used; /* of data, in bytes */
    char data[];
};
struct ht_arena {
    block *top;
    size_t taken, max; /* bytes of data from the system; its cap, 0: none */
};

/* First block, and the least a further one has: doubling up to 1 MiB keeps small arenas small and
 * the number of system calls of large ones low. What is larger than a quarter of that has a block
 * of its own size behind the top one, which stays in use: else two arrays of 600 KiB would take 2
 * MiB. */
enum { BLOCK_MIN = 1 << 12, BLOCK_MAX = 1 << 20, BLOCK_OWN = BLOCK_MAX / 4 };

int ht_arena_new(ht_arena **out, size_t max_bytes, ht_err *e)
{
    *out = ht_mem_alloc(sizeof **out);
    if (!*out) return HT_FAIL(e, HT_ENOMEM, "no memory for an arena");
    (*out)->max = max_bytes;
    return 0;
}

void ht_arena_free(ht_arena *a)
{
    if (!a) return;
    for (block *b = a->top, *next; b; b = next) {
        next = b->next;
        ht_mem_free(b);
    }
    ht_mem_free(a);
}

size_t ht_arena_bytes(const ht_arena *a)
{
    return a->taken;
}

/* Offset in b at which n bytes aligned to align start; SIZE_MAX when they do not fit. */
static size_t place(const block *b, size_t n, size_t align)
{
    uintptr_t at = ((uintptr_t)b->data + b->used + align - 1) & ~(uintptr_t)(align - 1);
    size_t off = (size_t)(at - (uintptr_t)b->data);
    return off <= b->size && n <= b->size - off ? off : SIZE_MAX;
}

static block *grow(ht_arena *a, size_t n, size_t align)
{
    size_t need, total;
    if (!ht_add_ok(n, align, &need)) return NULL;
    const bool own = a->top && need > BLOCK_OWN;
    size_t size = a->top ? a->top->size * 2 : BLOCK_MIN;
    if (size > BLOCK_MAX) size = BLOCK_MAX;
    if (size < need || own) size = need;
    if (a->max) {
        size_t left = a->max - a->taken; /* taken never passes max */
        if (need > left) return NULL;
        if (size > left) size = left;
    }
    if (!ht_add_ok(size, sizeof(block), &total)) return NULL;
    block *b = ht_mem_alloc(total); /* zeroed, and a block is never used twice */
    if (!b) return NULL;
    b->size = size;
    block **at = own ? &a->top->next : &a->top;
    b->next = *at;
    *at = b;
    a->taken += size;
    return b;
}

void *ht_arena_alloc_aligned(ht_arena *a, size_t n, size_t align)
{
    if (!n) n = 1;
    if (align < 16) align = 16;
    block *b = a->top;
    size_t off = b ? place(b, n, align) : SIZE_MAX;
    if (off == SIZE_MAX) {
        b = grow(a, n, align);
        if (!b) return NULL;
        off = place(b, n, align);
    }
    b->used = off + n;
    return b->data + off;
}

void *ht_arena_alloc(ht_arena *a, size_t n)
{
    return ht_arena_alloc_aligned(a, n, 16);
}

void *ht_arena_array(ht_arena *a, size_t count, size_t size)
{
    size_t n;
    return ht_mul_ok(count, size, &n) ? ht_arena_alloc(a, n) : NULL;
}

char *ht_arena_strndup(ht_arena *a, const char *s, size_t n)
{
    size_t with_nul;
    if (!ht_add_ok(n, 1, &with_nul)) return NULL;
    char *p = ht_arena_alloc(a, with_nul);
    if (p && n) memcpy(p, s, n);
    return p;
}

char *ht_arena_printf(ht_arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : ht_arena_alloc(a, (size_t)n + 1);
    if (p) vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return p;
}
