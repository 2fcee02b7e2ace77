/* lookup.c - one open-addressed table for each indexed length: run of tokens -> latest position
 * just behind it. Entries hold positions only; a hit is compared with the tokens themselves, so a
 * clash of hashes costs a step and never a wrong draft. */
#include "decode/lookup.h"
#include "core/arena.h"

enum { TABLES = HT_LOOKUP_MAX - HT_LOOKUP_MIN + 1 };

struct ht_lookup {
    uint32_t *table[TABLES]; /* [mask+1] position behind the run; 0: free */
    uint32_t mask, cap;
    uint32_t done; /* runs that end before this position are in the tables */
};

int ht_lookup_new(ht_lookup **out, uint32_t cap, ht_err *e)
{
    *out = NULL;
    uint64_t size = 64;
    while (size < (uint64_t)cap * 2) size *= 2; /* at most half full: probes stay short */
    if (cap > INT32_MAX)
        return HT_FAIL(e, HT_EARG, "lookup: a sequence of %u tokens is too long", cap);
    ht_lookup *x = ht_mem_alloc(sizeof *x);
    uint32_t *all = x ? ht_mem_array((size_t)size, TABLES * sizeof *all) : NULL;
    if (!all) {
        ht_mem_free(x);
        return HT_FAIL(e, HT_ENOMEM, "lookup: no memory to index %u tokens", cap);
    }
    for (int i = 0; i < TABLES; i++) x->table[i] = all + (size_t)i * size;
    x->mask = (uint32_t)(size - 1);
    x->cap = cap;
    *out = x;
    return 0;
}

void ht_lookup_free(ht_lookup *x)
{
    if (!x) return;
    ht_mem_free(x->table[0]);
    ht_mem_free(x);
}

/* Multiply and fold over the run's tokens; the multiplier is 2^64 divided by the golden ratio. */
static uint32_t hash(const int32_t *run, uint32_t len)
{
    uint64_t h = len;
    for (uint32_t i = 0; i < len; i++) {
        h = (h ^ (uint32_t)run[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

static bool same(const int32_t *a, const int32_t *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (a[i] != b[i]) return false;
    return true;
}

/* The entry of the run of len tokens that ends at `end`: its own, or the free one for it. */
static uint32_t *entry(const ht_lookup *x, const int32_t *tokens, uint32_t end, uint32_t len)
{
    const int32_t *run = tokens + end - len;
    uint32_t *t = x->table[len - HT_LOOKUP_MIN];
    for (uint32_t i = hash(run, len) & x->mask;; i = (i + 1) & x->mask)
        if (!t[i] || same(tokens + t[i] - len, run, len)) return &t[i];
}

/* Index all runs that end before n. The last one is left out: it is what will be looked for. */
static void learn(ht_lookup *x, const int32_t *tokens, uint32_t n)
{
    for (; x->done < n; x->done++)
        for (uint32_t len = HT_LOOKUP_MIN; len <= HT_LOOKUP_MAX && len <= x->done; len++)
            *entry(x, tokens, x->done, len) = x->done;
}

/* How many tokens before position `at` equal those before n; at least `len` do. */
static uint32_t agree(const int32_t *tokens, uint32_t at, uint32_t n, uint32_t len)
{
    while (len < HT_LOOKUP_LONGEST && len < at && tokens[at - len - 1] == tokens[n - len - 1])
        len++;
    return len;
}

uint32_t ht_lookup_draft(ht_lookup *x, const int32_t *tokens, uint32_t n, uint32_t k, int32_t *out,
                         uint32_t *match)
{
    *match = 0;
    if (n > x->cap) return 0;
    learn(x, tokens, n);
    for (uint32_t len = HT_LOOKUP_MAX; len >= HT_LOOKUP_MIN && k; len--) {
        const uint32_t at = len < n ? *entry(x, tokens, n, len) : 0;
        if (!at) continue;
        *match = agree(tokens, at, n, len);
        for (uint32_t i = 0; i < k; i++) out[i] = at + i < n ? tokens[at + i] : out[at + i - n];
        return k;
    }
    return 0;
}
