/* stop.c - stop strings: one result however the text is cut, and no byte of a stop string in it. */
#include "decode/stop.h"
#include "core/arena.h"
#include "test.h"

/* Feed text in pieces of random length 1..most; returns what was shown. */
static bool feed(const char *const *stop, size_t n, const char *text, size_t len, size_t most,
                 uint64_t *seed, ht_buf *out, int *which)
{
    ht_stopper *s;
    ht_err e = {0};
    bool hit = false;
    T_OK(ht_stopper_new(&s, stop, n, &e), e);
    for (size_t i = 0; i < len;) {
        size_t k = 1 + (size_t)(t_rand(seed) % most);
        if (k > len - i) k = len - i;
        T_OK(ht_stopper_push(s, text + i, k, out, &hit, &e), e);
        i += k;
        if (hit) break;
    }
    T_OK(ht_stopper_flush(s, out, &e), e);
    *which = ht_stopper_which(s);
    ht_stopper_free(s);
    return hit;
}

/* By definition: the first position where a stop string ends; the longest of those counts. */
static bool expected(const char *const *stop, size_t n, const char *text, size_t len, size_t *shown,
                     int *which)
{
    *which = -1;
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n; i++) {
            size_t k = strlen(stop[i]);
            if (k > end || k <= longest || memcmp(text + end - k, stop[i], k) != 0) continue;
            longest = k;
            *which = (int)i;
        }
        if (!longest) continue;
        *shown = end - longest;
        return true;
    }
    *shown = len;
    return false;
}

T_CASE(stop, agrees_with_the_definition)
{
    uint64_t seed = 7;
    int hits = 0;
    for (int round = 0; round < 3000; round++) {
        char text[64], pool[5][8];
        const char *stop[5];
        size_t n = 1 + (size_t)(t_rand(&seed) % 5), len = (size_t)(t_rand(&seed) % 64), shown;
        for (size_t i = 0; i < n; i++) {
            size_t k = 1 + (size_t)(t_rand(&seed) % 6);
            for (size_t j = 0; j < k; j++) pool[i][j] = (char)('a' + t_rand(&seed) % 3);
            pool[i][k] = 0;
            stop[i] = pool[i];
        }
        for (size_t j = 0; j < len; j++) text[j] = (char)('a' + t_rand(&seed) % 4);
        ht_buf out;
        ht_buf_init(&out, 0);
        int wanted, which;
        bool want = expected(stop, n, text, len, &shown, &wanted);
        bool hit = feed(stop, n, text, len, 1 + (size_t)(t_rand(&seed) % 7), &seed, &out, &which);
        T_EQ_INT(hit, want);
        T_EQ_INT(which, wanted);
        T_EQ_INT(out.n, shown);
        T_CHECK(!shown || !memcmp(out.p, text, shown), "round %d: other text", round);
        ht_buf_done(&out);
        hits += hit;
    }
    T_CHECK(hits > 500 && hits < 2900, "%d hits: the inputs no longer exercise both ways", hits);
}

T_CASE(stop, holds_back_only_what_may_stop)
{
    const char *const stop[] = {"</s>", "\n\nUser:"};
    ht_stopper *s;
    ht_err e = {0};
    ht_buf out;
    bool hit;
    ht_buf_init(&out, 0);
    T_OK(ht_stopper_new(&s, stop, 2, &e), e);
    T_OK(ht_stopper_push(s, "a<", 2, &out, &hit, &e), e);
    T_EQ_INT(out.n, 1);
    T_OK(ht_stopper_push(s, "/p>b\n", 5, &out, &hit, &e), e);
    T_EQ_INT(out.n, 6);
    T_CHECK(!memcmp(out.p, "a</p>b", 6), "the held part is released in order");
    T_OK(ht_stopper_push(s, "\nUser", 5, &out, &hit, &e), e);
    T_EQ_INT(out.n, 6);
    T_OK(ht_stopper_push(s, ": x", 3, &out, &hit, &e), e);
    T_TRUE(hit);
    T_EQ_INT(out.n, 6);
    T_OK(ht_stopper_push(s, "more", 4, &out, &hit, &e), e);
    T_TRUE(hit);
    T_OK(ht_stopper_flush(s, &out, &e), e);
    T_EQ_INT(out.n, 6);
    ht_stopper_free(s);
    ht_buf_done(&out);
}

T_CASE(stop, flush_gives_the_held_tail)
{
    const char *const stop[] = {"abcabd"};
    uint64_t seed = 1;
    ht_buf out;
    int which = 0;
    ht_buf_init(&out, 0);
    T_TRUE(!feed(stop, 1, "xabcab", 6, 1, &seed, &out, &which));
    T_EQ_INT(out.n, 6);
    T_EQ_STR(out.p, "xabcab");
    ht_buf_done(&out);
    ht_buf_init(&out, 0);
    T_TRUE(!feed(NULL, 0, "plain", 5, 2, &seed, &out, &which));
    T_EQ_STR(out.p, "plain");
    T_EQ_INT(which, -1);
    ht_buf_done(&out);
}

T_CASE(stop, bad_stop_strings)
{
    const char *const empty[] = {"a", ""}, *const null[] = {NULL};
    ht_stopper *s = NULL;
    ht_err e = {0};
    T_ERR(ht_stopper_new(&s, empty, 2, &e), HT_EARG, e, "stop string 2 is empty");
    T_ERR(ht_stopper_new(&s, null, 1, &e), HT_EARG, e, "stop string 1 is empty");
    char *big = malloc(70000);
    T_TRUE(big != NULL);
    memset(big, 'x', 69999);
    big[69999] = 0;
    const char *const large[] = {big};
    T_ERR(ht_stopper_new(&s, large, 1, &e), HT_EARG, e, "exceed");
    free(big);
}
