/* arena.c - arenas, the heap front and their failure hooks. */
#include "core/arena.h"
#include "test.h"

T_CASE(arena, zeroed_aligned_disjoint)
{
    ht_arena *a;
    ht_err e;
    uint64_t rnd = 1;
    T_OK(ht_arena_new(&a, 0, &e), e);
    enum { N = 2000 };
    static unsigned char *p[N];
    static size_t len[N];
    for (int i = 0; i < N; i++) {
        len[i] = t_rand(&rnd) % (i % 50 ? 200 : 9000);
        size_t align = (size_t)16 << t_rand(&rnd) % 9; /* 16 .. 4096 */
        p[i] = ht_arena_alloc_aligned(a, len[i], align);
        T_CHECK(p[i] && (uintptr_t)p[i] % align == 0, "item %d, align %zu", i, align);
        for (size_t k = 0; k < len[i]; k++) T_CHECK(!p[i][k], "item %d byte %zu not zero", i, k);
        memset(p[i], i & 0xff, len[i]);
    }
    for (int i = 0; i < N; i++)
        for (size_t k = 0; k < len[i]; k++)
            if (p[i][k] != (i & 0xff)) T_CHECK(false, "item %d overwritten at %zu", i, k);
    ht_arena_free(a);
}

T_CASE(arena, empty_allocations_differ)
{
    ht_arena *a;
    ht_err e;
    T_OK(ht_arena_new(&a, 0, &e), e);
    void *p = ht_arena_alloc(a, 0), *q = ht_arena_alloc(a, 0);
    T_CHECK(p && q && p != q, "%p and %p", p, q);
    ht_arena_free(a);
    ht_arena_free(NULL);
}

T_CASE(arena, cap_holds)
{
    ht_arena *a;
    ht_err e;
    T_OK(ht_arena_new(&a, 100000, &e), e);
    size_t got = 0;
    while (ht_arena_alloc(a, 1000)) got += 1000;
    T_CHECK(got >= 90000 && got <= 100000, "%zu bytes from a cap of 100000", got);
    T_CHECK(ht_arena_bytes(a) <= 100000, "%zu taken", ht_arena_bytes(a));
    T_TRUE(!ht_arena_alloc(a, SIZE_MAX));
    T_TRUE(!ht_arena_alloc(a, SIZE_MAX - 8));
    ht_arena_free(a);
}

T_CASE(arena, sizes_are_checked)
{
    ht_arena *a;
    ht_err e;
    size_t n;
    T_OK(ht_arena_new(&a, 0, &e), e);
    T_TRUE(!ht_arena_array(a, SIZE_MAX / 2, 3));
    T_TRUE(!ht_mem_array(SIZE_MAX / 4, 8));
    T_TRUE(!ht_arena_alloc(a, SIZE_MAX - 20));
    T_TRUE(!ht_arena_strndup(a, "x", SIZE_MAX));
    T_TRUE(ht_mul_ok(3, 4, &n) && n == 12);
    T_TRUE(!ht_mul_ok(SIZE_MAX, 2, &n));
    T_TRUE(ht_add_ok(3, 4, &n) && n == 7);
    T_TRUE(!ht_add_ok(SIZE_MAX, 1, &n));
    ht_arena_free(a);
}

T_CASE(arena, strings)
{
    ht_arena *a;
    ht_err e;
    T_OK(ht_arena_new(&a, 0, &e), e);
    T_EQ_STR(ht_arena_strndup(a, "hello", 3), "hel");
    T_EQ_STR(ht_arena_strndup(a, NULL, 0), "");
    T_EQ_STR(ht_arena_printf(a, "%d-%s", 7, "x"), "7-x");
    char *big = ht_arena_printf(a, "%5000d", 1);
    T_TRUE(big && strlen(big) == 5000);
    ht_arena_free(a);
}

T_CASE(arena, nth_allocation_fails)
{
    ht_err e;
    uint64_t before = ht_alloc_count();
    void *p = ht_mem_alloc(8);
    T_TRUE(p);
    T_EQ_INT(ht_alloc_count() - before, 1);
    ht_alloc_fail_at(1);
    T_TRUE(!ht_mem_alloc(8));
    p = ht_mem_resize(p, 100);
    T_TRUE(p); /* only the one */
    ht_alloc_fail_at(2);
    void *page = ht_page_alloc(100);
    T_TRUE(page);
    T_TRUE(!ht_page_alloc(100));
    ht_page_free(page, 100);
    ht_alloc_fail_at(1);
    ht_alloc_fail_at(0);
    p = ht_mem_resize(p, 200);
    T_TRUE(p);
    ht_mem_free(p);
    ht_arena *a;
    ht_alloc_fail_at(1);
    T_ERR(ht_arena_new(&a, 0, &e), HT_ENOMEM, e, "arena");
    T_OK(ht_arena_new(&a, 0, &e), e);
    ht_alloc_fail_at(1);
    T_TRUE(!ht_arena_alloc(a, 10));
    T_TRUE(ht_arena_alloc(a, 10)); /* usable afterwards */
    ht_arena_free(a);
}

T_CASE(arena, pages_are_zero_and_aligned)
{
    size_t n = (3u << 20) + 17;
    unsigned char *p = ht_page_alloc(n);
    T_TRUE(p && (uintptr_t)p % 4096 == 0);
    for (size_t i = 0; i < n; i += 997) T_CHECK(!p[i], "byte %zu", i);
    p[n - 1] = 1;
    ht_page_free(p, n);
    ht_page_free(NULL, 5);
}
