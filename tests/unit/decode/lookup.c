/* lookup.c - drafts from the sequence's own past, against the definition: of the longest indexed
 * run that stood there before, the latest place. */
#include "decode/lookup.h"
#include "core/arena.h"
#include "test.h"

static ht_lookup *make(uint32_t cap)
{
    ht_lookup *x = NULL;
    ht_err e = {0};
    T_OK(ht_lookup_new(&x, cap, &e), e);
    return x;
}

/* Position behind the latest earlier occurrence of the longest of the last 4..2 tokens; 0: none. */
static uint32_t by_definition(const int32_t *t, uint32_t n)
{
    for (uint32_t len = HT_LOOKUP_MAX; len >= HT_LOOKUP_MIN; len--)
        for (uint32_t at = n - 1; len < n && at >= len; at--)
            if (!memcmp(t + at - len, t + n - len, len * sizeof *t)) return at;
    return 0;
}

T_CASE(lookup, agrees_with_the_definition)
{
    enum { N = 300, K = 6 };
    uint64_t seed = 11;
    int found = 0, none = 0;
    for (int round = 0; round < 40; round++) {
        int32_t t[N + K];
        const uint32_t letters = 2 + (uint32_t)(t_rand(&seed) % 30);
        ht_lookup *x = make(N);
        for (uint32_t n = 0; n <= N; n++) {
            uint32_t match = 99;
            if (n) t[n - 1] = (int32_t)(t_rand(&seed) % letters);
            const uint32_t k = ht_lookup_draft(x, t, n, K, t + n, &match);
            const uint32_t at = n ? by_definition(t, n) : 0;
            T_CHECK(k == (at ? K : 0), "n %u: %u drafted, place %u", n, k, at);
            if (!at) {
                T_EQ_INT(match, 0);
                none++;
                continue;
            }
            found++;
            /* t goes on with the draft itself, so this covers drafts that reach the end. */
            T_EQ_MEM(t + n, t + at, K * sizeof *t);
            uint32_t agree = 0;
            while (agree < HT_LOOKUP_LONGEST && agree < at && t[at - 1 - agree] == t[n - 1 - agree])
                agree++;
            T_EQ_INT(match, agree);
        }
        ht_lookup_free(x);
    }
    T_CHECK(found > 1000 && none > 100, "%d found, %d not", found, none);
}

T_CASE(lookup, nothing_to_find)
{
    int32_t t[8] = {5, 5, 6, 7, 8, 9, 10, 11};
    uint32_t match = 1;
    ht_lookup *x = make(8);
    T_EQ_INT(ht_lookup_draft(x, t, 0, 4, t, &match), 0);
    T_EQ_INT(match, 0);
    T_EQ_INT(ht_lookup_draft(x, t, 1, 0, t + 1, &match), 0);
    T_EQ_INT(ht_lookup_draft(x, t, 2, 4, t + 2, &match), 0); /* one token is too short a run */
    ht_lookup_free(x);
    x = make(4);
    T_EQ_INT(ht_lookup_draft(x, t, 5, 4, t, &match), 0); /* beyond what it was made for */
    ht_lookup_free(x);
    ht_lookup_free(NULL);
    ht_err e = {0};
    T_ERR(ht_lookup_new(&x, UINT32_MAX, &e), HT_EARG, e, "too long");
    T_TRUE(!x);
}

T_CASE(lookup, repeats_itself_and_prefers_the_latest)
{
    /* 1 2 1 2: the run "1 2" was followed by "1 2", and the draft goes on with itself. */
    int32_t t[16] = {1, 2, 1, 2};
    const int32_t again[6] = {1, 2, 1, 2, 1, 2};
    uint32_t match = 0;
    ht_lookup *x = make(16);
    T_EQ_INT(ht_lookup_draft(x, t, 4, 6, t + 4, &match), 6);
    T_EQ_MEM(t + 4, again, sizeof again);
    T_EQ_INT(match, 2);
    ht_lookup_free(x);
    /* "7 8" stood twice; the later one was followed by 4. */
    int32_t u[12] = {7, 8, 3, 7, 8, 4, 7, 8};
    x = make(12);
    T_EQ_INT(ht_lookup_draft(x, u, 8, 1, u + 8, &match), 1);
    T_EQ_INT(u[8], 4);
    ht_lookup_free(x);
    /* A longer run that stood earlier wins over a shorter, later one. */
    int32_t v[16] = {9, 7, 8, 3, 0, 7, 8, 4, 9, 7, 8};
    x = make(16);
    T_EQ_INT(ht_lookup_draft(x, v, 11, 1, v + 11, &match), 1);
    T_EQ_INT(v[11], 3);
    T_EQ_INT(match, 3);
    ht_lookup_free(x);
}

T_CASE(lookup, memory_that_fails)
{
    const uint64_t live = ht_alloc_live();
    for (uint64_t n = 1; n <= 2; n++) {
        ht_lookup *x = NULL;
        ht_err e = {0};
        ht_alloc_fail_at(n);
        const int rc = ht_lookup_new(&x, 100, &e);
        ht_alloc_fail_at(0);
        T_EQ_INT(rc, HT_ENOMEM);
        T_TRUE(!x && e.msg[0]);
        T_EQ_INT(ht_alloc_live(), live);
    }
}
