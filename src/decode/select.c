/* select.c - the first candidates, by number or by mass, without sorting the rest: quickselect with
 * a bounded number of rounds, or for the common small top-k one pass over the logits with a heap.
 * The order is total (key, then id), so which candidates are kept does not depend on the route. */
#include "decode/chain.h"
#include <math.h>

enum {
    SMALL = 32,       /* ranges below are sorted outright                            */
    HEAP_TOP_K = 512, /* above, selecting among all is faster than a heap            */
    SORT_BY_ID = 1024 /* above, candidates are put in order by a pass over the ids   */
};

static bool before(const decode__cand *a, const decode__cand *b)
{
    return a->key > b->key || (a->key == b->key && a->id < b->id);
}

static bool id_before(const decode__cand *a, const decode__cand *b)
{
    return a->id < b->id;
}

typedef bool less_fn(const decode__cand *, const decode__cand *);

static void swap(decode__cand *a, decode__cand *b)
{
    decode__cand t = *a;
    *a = *b;
    *b = t;
}

/* Restore the heap whose root is last in order (so that it is the one to drop) from i down. */
static void sift(decode__cand *c, size_t n, size_t i, less_fn *less)
{
    for (;;) {
        size_t kid = 2 * i + 1;
        if (kid >= n) return;
        if (kid + 1 < n && less(&c[kid], &c[kid + 1])) kid++;
        if (!less(&c[i], &c[kid])) return;
        swap(&c[i], &c[kid]);
        i = kid;
    }
}

static void heap_sort(decode__cand *c, size_t n, less_fn *less)
{
    for (size_t i = n / 2; i-- > 0;) sift(c, n, i, less);
    for (size_t end = n; end > 1; end--) {
        swap(&c[0], &c[end - 1]);
        sift(c, end - 1, 0, less);
    }
}

/* Hoare partition of c[0..n) around a median of three; returns k, 0 < k < n, such that no element
 * of c[k..) comes before one of c[..k). n >= 3. */
static size_t partition(decode__cand *c, size_t n)
{
    size_t mid = n / 2;
    if (before(&c[mid], &c[0])) swap(&c[mid], &c[0]);
    if (before(&c[n - 1], &c[0])) swap(&c[n - 1], &c[0]);
    if (before(&c[n - 1], &c[mid])) swap(&c[n - 1], &c[mid]);
    const decode__cand pivot = c[mid];
    size_t i = 0, j = n - 1;
    for (;;) {
        do i++;
        while (before(&c[i], &pivot));
        do j--;
        while (before(&pivot, &c[j]));
        if (i >= j) return j + 1;
        swap(&c[i], &c[j]);
    }
}

/* Rounds after which bad pivots are given up on and the rest is sorted. */
static unsigned round_limit(size_t n)
{
    unsigned rounds = 0;
    for (; n; n >>= 1) rounds += 4;
    return rounds;
}

/* Put the k first of c[0..n) in front, in any order. */
static void select_first(decode__cand *c, size_t n, size_t k)
{
    for (unsigned rounds = round_limit(n); n > SMALL && k && k < n && rounds; rounds--) {
        size_t cut = partition(c, n);
        if (k < cut) {
            n = cut;
        } else {
            c += cut;
            n -= cut;
            k -= cut;
        }
    }
    if (k && k < n) heap_sort(c, n, before);
}

void decode__keep_mass(ht_sampler *s, double mass)
{
    decode__cand *c = s->cand;
    size_t n = s->n;
    s->by_id = false;
    for (unsigned rounds = round_limit(n); n > SMALL && rounds; rounds--) {
        size_t cut = partition(c, n);
        double left = 0;
        for (size_t i = 0; i < cut; i++) left += c[i].p;
        if (left >= mass) {
            n = cut;
        } else {
            c += cut;
            n -= cut;
            mass -= left;
        }
    }
    heap_sort(c, n, before);
    size_t i = 0;
    for (double sum = 0; i < n && sum < mass; i++) sum += c[i].p;
    if (!i && c == s->cand) i = 1; /* a mass of 0 still keeps the first              */
    s->n = (size_t)(c - s->cand) + i;
}

/* Every token whose logit is above -inf, in order of id. */
static void all(ht_sampler *s)
{
    s->n = 0;
    s->by_id = true;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        float x = s->work[i];
        if (x > -INFINITY) s->cand[s->n++] = (decode__cand){.key = x, .logit = x, .id = (int32_t)i};
    }
}

void decode__order_by_id(ht_sampler *s)
{
    if (!s->by_id && s->n <= SORT_BY_ID) {
        heap_sort(s->cand, s->n, id_before);
    } else if (!s->by_id) {
        for (uint32_t i = 0; i < s->n_vocab; i++) s->work[i] = -INFINITY;
        for (size_t i = 0; i < s->n; i++) s->work[s->cand[i].id] = s->cand[i].logit;
        all(s);
    }
    s->by_id = true;
}

static void heap_top_k(ht_sampler *s, size_t k)
{
    decode__cand *c = s->cand;
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        float x = s->work[i];
        /* a later id wins only with a greater logit; the comparisons are false for NaN */
        if (n == k && !(x > c[0].key)) continue;
        if (!(x > -INFINITY)) continue;
        const decode__cand one = {.key = x, .logit = x, .id = (int32_t)i};
        if (n < k) {
            c[n++] = one;
            if (n < k) continue;
            for (size_t j = n / 2; j-- > 0;) sift(c, n, j, before);
        } else {
            c[0] = one;
            sift(c, n, 0, before);
        }
    }
    s->n = n;
    s->by_id = false;
}

void decode__top_k(ht_sampler *s, size_t k)
{
    if (k <= HEAP_TOP_K) {
        heap_top_k(s, k);
        return;
    }
    all(s);
    if (k >= s->n) return;
    select_first(s->cand, s->n, k);
    s->n = k;
    s->by_id = false;
}
