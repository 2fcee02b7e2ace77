/* stat.c - integer statistics of a verdict; see stat.h for the definitions and their sources. */
#include "evid/stat.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 u128;

enum { MAX_WALSH = HT_STAT_MAX_N * (HT_STAT_MAX_N + 1) / 2 };
static const uint64_t max_exact = ((uint64_t)1 << 53) - 1;

int ht_stat_ratio(uint64_t ref_ns, uint64_t cand_ns, uint64_t *ppm, ht_err *e)
{
    if (ref_ns == 0)
        return HT_FAIL(e, HT_EARG, "a reference request has no time: the pair is invalid evidence");
    if (cand_ns == 0) {
        *ppm = 0;
        return 0;
    }
    u128 r = (u128)ref_ns * HT_PPM / cand_ns;
    if (r > max_exact)
        return HT_FAIL(e, HT_EARG, "ratio of %llu ns to %llu ns does not fit in 53 bits",
                       (unsigned long long)ref_ns, (unsigned long long)cand_ns);
    *ppm = (uint64_t)r;
    return 0;
}

bool ht_prob_le(ht_prob p, uint64_t times, uint64_t alpha_ppm)
{
    /* num * times / 2^n <= alpha / 10^6; num <= 2^40, times <= 4096, so 128 bits are ample. */
    return (u128)p.num * times * HT_PPM <= ((u128)alpha_ppm << p.n);
}

/* floor(sqrt(x)), digit by digit: at most 64 rounds. */
static uint64_t isqrt(u128 x)
{
    u128 root = 0, bit = (u128)1 << 126;
    while (bit > x) bit >>= 2;
    for (; bit; bit >>= 2) {
        if (x >= root + bit) {
            x -= root + bit;
            root = (root >> 1) + bit;
        } else {
            root >>= 1;
        }
    }
    return (uint64_t)root;
}

static int by_value(const void *a, const void *b)
{
    u128 x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* counts[t] = number of sign patterns with signed-rank statistic t: subsets of 1..n with sum t. */
static void rank_counts(uint32_t n, uint64_t counts[MAX_WALSH + 1])
{
    memset(counts, 0, (MAX_WALSH + 1) * sizeof counts[0]);
    counts[0] = 1;
    uint32_t top = 0;
    for (uint32_t k = 1; k <= n; k++) {
        top += k;
        for (uint32_t t = top; t >= k; t--) counts[t] += counts[t - k];
    }
}

static ht_prob rank_tail(uint32_t n, uint32_t t_max)
{
    uint64_t counts[MAX_WALSH + 1], sum = 0;
    rank_counts(n, counts);
    for (uint32_t t = 0; t <= t_max && t <= MAX_WALSH; t++) sum += counts[t];
    return (ht_prob){sum, n};
}

/* P(Binomial(n, 1/2) <= k). */
static ht_prob sign_tail(uint32_t n, uint32_t k)
{
    uint64_t choose = 1, sum = 0;
    for (uint32_t i = 0; i <= k && i <= n; i++) {
        sum += choose;
        choose = (uint64_t)((u128)choose * (n - i) / (i + 1));
    }
    return (ht_prob){sum, n};
}

int ht_stat_sign_losses(uint32_t n, uint64_t alpha_ppm)
{
    int best = -1;
    if (n < 1 || n > HT_STAT_MAX_N) return best;
    for (uint32_t k = 0; k <= n && ht_prob_le(sign_tail(n, k), 1, alpha_ppm); k++) best = (int)k;
    return best;
}

int ht_stat_wilcoxon_w(uint32_t n, uint64_t alpha_ppm)
{
    int best = -1;
    if (n < 1 || n > HT_STAT_MAX_N) return best;
    uint32_t m = n * (n + 1) / 2;
    for (uint32_t w = 0; w <= m && ht_prob_le(rank_tail(n, w), 2, alpha_ppm); w++) best = (int)w;
    return best;
}

/* Walsh products of n ratios, sorted; their number. */
static uint32_t walsh_products(const uint64_t *ratios, uint32_t n, u128 walsh[MAX_WALSH])
{
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j <= i; j++) walsh[m++] = (u128)ratios[i] * ratios[j];
    qsort(walsh, m, sizeof walsh[0], by_value);
    return m;
}

static uint64_t middle(const u128 *walsh, uint32_t m)
{
    return m % 2 ? isqrt(walsh[m / 2]) : isqrt((u128)isqrt(walsh[m / 2 - 1]) * isqrt(walsh[m / 2]));
}

uint64_t ht_stat_hl(const uint64_t *ratios, uint32_t n)
{
    u128 walsh[MAX_WALSH];
    assert(n >= 1 && n <= HT_STAT_MAX_N);
    const uint32_t m = walsh_products(ratios, n, walsh);
    return middle(walsh, m);
}

int ht_stat_pairs(const uint64_t *ratios, uint32_t n, ht_stat *out, ht_err *e)
{
    if (n < HT_STAT_MIN_N || n > HT_STAT_MAX_N)
        return HT_FAIL(e, HT_EARG, "%u pairs: the tables hold %d to %d", n, HT_STAT_MIN_N,
                       HT_STAT_MAX_N);
    u128 walsh[MAX_WALSH];
    uint32_t low = 0;
    const u128 one = (u128)HT_PPM * HT_PPM;
    *out = (ht_stat){.n = n, .n_walsh = n * (n + 1) / 2, .min = UINT64_MAX};
    for (uint32_t i = 0; i < n; i++) {
        uint64_t r = ratios[i];
        if (r > max_exact) return HT_FAIL(e, HT_EARG, "ratio %u does not fit in 53 bits", i);
        if (r < out->min) out->min = r;
        if (r > out->max) out->max = r;
        out->wins += r > HT_PPM;
        out->ties += r == HT_PPM;
        out->losses += r < HT_PPM;
    }
    const uint32_t m = walsh_products(ratios, n, walsh);
    while (low < m && walsh[low] <= one) low++;
    out->hl = middle(walsh, m);
    int w = ht_stat_wilcoxon_w(n, 50000);
    if (w < 0) { /* n = 5: no order statistic reaches 95 % */
        out->lo = 0;
        out->hi = max_exact;
    } else {
        out->lo = isqrt(walsh[w]);
        u128 top = walsh[m - 1 - (uint32_t)w];
        out->hi = isqrt(top);
        if ((u128)out->hi * out->hi < top) out->hi++;
    }
    out->sign = sign_tail(n, n - out->wins);
    out->wilcoxon = rank_tail(n, low);
    return 0;
}

typedef struct {
    ht_prob p;
    size_t index;
} ranked;

static int by_prob(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    u128 l = (u128)x->p.num << y->p.n, r = (u128)y->p.num << x->p.n;
    if (l != r) return l < r ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

int ht_stat_holm(const ht_prob *p, size_t m, uint64_t alpha_ppm, bool *pass, ht_err *e)
{
    enum { MAX_CELLS = 4096 };
    if (m == 0 || m > MAX_CELLS)
        return HT_FAIL(e, HT_EARG, "%zu cells in one promotion: 1 to %d are allowed", m, MAX_CELLS);
    ranked order[MAX_CELLS];
    for (size_t i = 0; i < m; i++) {
        order[i] = (ranked){p[i], i};
        pass[i] = false;
    }
    qsort(order, m, sizeof order[0], by_prob);
    for (size_t k = 0; k < m && ht_prob_le(order[k].p, m - k, alpha_ppm); k++)
        pass[order[k].index] = true;
    return 0;
}

uint32_t ht_stat_tail_needed(uint64_t quantile_ppm, uint64_t conf_ppm, uint32_t misses)
{
    /* Exact binomial counts; the unit test recomputes them. */
    static const struct {
        uint32_t quantile, conf, n[4];
    } rows[] = {
        {900000, 990000, {44, 64, 81, 97}},      {900000, 950000, {29, 46, 61, 76}},
        {950000, 990000, {90, 130, 165, 198}},   {950000, 950000, {59, 93, 124, 153}},
        {990000, 990000, {459, 662, 838, 1001}}, {990000, 950000, {299, 473, 628, 773}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].quantile == quantile_ppm && rows[i].conf == conf_ppm && misses < 4)
            return rows[i].n[misses];
    return 0;
}

enum ht_tail ht_stat_tail(uint64_t quantile_ppm, uint64_t conf_ppm, uint32_t n, uint32_t misses,
                          uint32_t worst_pair)
{
    uint32_t least = ht_stat_tail_needed(quantile_ppm, conf_ppm, 0);
    if (least == 0 || n < least) return HT_TAIL_TOO_FEW;
    uint32_t need = ht_stat_tail_needed(quantile_ppm, conf_ppm, misses);
    if (need == 0 || n < need) return HT_TAIL_FAIL;
    return misses > 1 && worst_pair * 2 > misses ? HT_TAIL_FAIL : HT_TAIL_PASS;
}
