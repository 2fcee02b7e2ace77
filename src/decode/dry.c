/* dry.c - the DRY penalty ("don't repeat yourself", as in text-generation-webui and llama.cpp): a
 * token that would extend a repeat of the text's end by one more is made less likely, exponentially
 * in the length of the repeat.
 *
 * With r[i] the i-th token from the end, z[k] is the length of the common prefix of r and r+k (the
 * Z function, O(window)): the last z[k] tokens also end k tokens earlier, and r[k-1] followed them
 * there. A breaker sequence in the text stops repeats from reaching over it. */
#include "decode/chain.h"
#include <math.h>

/* How far back a repeat may reach: tokens behind the last breaker. r(i) is the i-th from the
 * end. */
static size_t reach(const ht_sampler *s, const int32_t *end, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int32_t *seq = s->breaker_ids;
        size_t longest = 0;
        for (size_t b = 0; b < s->n_breakers; seq += s->breaker_n[b], b++) {
            size_t len = s->breaker_n[b], k = 0;
            if (!len || len - 1 > i) continue;
            while (k < len && seq[k] == end[-1 - (ptrdiff_t)(i - k)]) k++;
            if (k == len && len > longest) longest = len;
        }
        if (longest) return i - (longest - 1);
    }
    return n;
}

/* match[k], 0 < k < n: the Z function over the tokens from the end. */
static void z_function(const ht_sampler *s, const int32_t *end, size_t n)
{
    uint32_t *z = s->match;
    size_t left = 0, right = 0; /* the box [left,right) that reaches furthest */
    for (size_t k = 1; k < n; k++) {
        size_t len = 0;
        if (k < right) {
            len = z[k - left];
            if (len > right - k) len = right - k;
        }
        while (k + len < n && end[-1 - (ptrdiff_t)len] == end[-1 - (ptrdiff_t)(k + len)]) len++;
        z[k] = (uint32_t)len;
        if (k + len > right) {
            left = k;
            right = k + len;
        }
    }
}

static float penalty(const ht_sampling *par, uint32_t len)
{
    double over = (double)len - par->dry_allowed_length;
    double p = par->dry_multiplier * pow(par->dry_base, over);
    return p < 3e38 ? (float)p : 3e38F; /* finite, so that it cannot make a NaN of an inf */
}

void decode__dry(ht_sampler *s, const int32_t *history, size_t n_history)
{
    size_t n = n_history < s->window ? n_history : s->window;
    uint32_t allowed = (uint32_t)s->par.dry_allowed_length;
    if (n < 2) return;
    const int32_t *end = history + n_history;
    size_t limit = reach(s, end, n);
    if (limit < allowed) return;
    z_function(s, end, n);
    /* count holds the longest repeat per following token, plus one so that 0 means none */
    for (size_t k = 1; k < n; k++) {
        int32_t id = end[-(ptrdiff_t)k]; /* r[k-1] */
        uint32_t len = s->match[k] < limit ? s->match[k] : (uint32_t)limit;
        if (len < allowed || id < 0 || (uint32_t)id >= s->n_vocab) continue;
        if (len + 1 > s->count[id]) s->count[id] = len + 1;
    }
    for (size_t k = 1; k < n; k++) {
        int32_t id = end[-(ptrdiff_t)k];
        if (id < 0 || (uint32_t)id >= s->n_vocab || !s->count[id]) continue;
        s->work[id] -= penalty(&s->par, s->count[id] - 1);
        s->count[id] = 0;
    }
}
