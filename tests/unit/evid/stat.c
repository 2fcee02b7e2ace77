/* stat.c - the verdict's statistics against scipy (tests/data/evid/stat.txt), against the published
 * tables of evidence.md 3.3 and 3.4, and against first principles. */
#include "evid/stat.h"
#include "core/rng.h"
#include "test.h"

static const struct {
    uint32_t n, w, sign05, sign01;
} published[] = {
    {6, 0, 0, UINT32_MAX}, {8, 3, 1, 0},   {10, 8, 1, 0},
    {12, 13, 2, 1},        {16, 29, 4, 2}, {20, 52, 5, 4},
};

T_CASE(stat, published_tables)
{
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        uint32_t n = published[i].n;
        T_EQ_INT(ht_stat_wilcoxon_w(n, 50000), (int)published[i].w);
        T_EQ_INT(ht_stat_sign_losses(n, 50000), (int)published[i].sign05);
        T_EQ_INT(ht_stat_sign_losses(n, 10000), (int)published[i].sign01);
    }
    T_EQ_INT(ht_stat_wilcoxon_w(5, 50000), -1);
}

T_CASE(stat, scipy_tables)
{
    FILE *f = fopen("tests/data/evid/stat.txt", "r");
    T_CHECK(f, "tests/data/evid/stat.txt is missing");
    unsigned n = 0, tables = 0;
    while (fscanf(f, "%u", &n) == 1) {
        uint64_t r[HT_STAT_MAX_N];
        unsigned long long v = 0, wins, sign, wil, hl, lo, hi;
        T_CHECK(n <= HT_STAT_MAX_N, "n %u", n);
        for (unsigned i = 0; i < n; i++) {
            T_EQ_INT(fscanf(f, "%llu", &v), 1);
            r[i] = v;
        }
        T_EQ_INT(fscanf(f, " | %llu %llu %llu %llu %llu %llu", &wins, &sign, &wil, &hl, &lo, &hi),
                 6);
        ht_stat s;
        ht_err e = {0};
        T_OK(ht_stat_pairs(r, n, &s, &e), e);
        T_EQ_INT(s.wins, wins);
        T_EQ_INT(s.sign.num, sign);
        T_EQ_INT(s.wilcoxon.num, wil);
        T_NEAR(s.hl, hl, 2.0);
        T_NEAR(s.lo, lo, 1.0);
        T_NEAR(s.hi, hi, 1.0);
        T_CHECK(s.lo <= s.hl && s.hl <= s.hi, "interval [%llu, %llu] without its estimate %llu",
                (unsigned long long)s.lo, (unsigned long long)s.hi, (unsigned long long)s.hl);
        tables++;
    }
    fclose(f);
    T_CHECK(tables >= 200, "only %u tables", tables);
}

T_CASE(stat, ratios)
{
    uint64_t r = 7;
    ht_err e = {0};
    T_OK(ht_stat_ratio(1000, 999, &r, &e), e);
    T_EQ_INT(r, 1001001);
    T_OK(ht_stat_ratio(5, 0, &r, &e), e); /* a failed candidate is the worst rank, not a gap */
    T_EQ_INT(r, 0);
    T_EQ_INT(ht_stat_ratio(0, 5, &r, &e), HT_EARG);
    T_EQ_INT(ht_stat_ratio(UINT64_MAX, 1, &r, &e), HT_EARG);
    T_OK(ht_stat_ratio(UINT64_MAX / 2, UINT64_MAX, &r, &e), e); /* 128-bit intermediate */
    T_EQ_INT(r, 499999);
}

T_CASE(stat, failures_stay_as_worst_ranks)
{
    uint64_t r[12];
    ht_err e = {0};
    ht_stat s;
    for (int i = 0; i < 12; i++) r[i] = 1100000;
    r[3] = r[7] = r[9] = 0;
    T_OK(ht_stat_pairs(r, 12, &s, &e), e);
    T_EQ_INT(s.losses, 3);
    T_EQ_INT(s.min, 0);
    T_CHECK(!ht_prob_le(s.sign, 1, 50000), "3 losses of 12 must not pass the sign test at 5 %%");
}

T_CASE(stat, pair_count_is_bounded)
{
    uint64_t r[HT_STAT_MAX_N + 1] = {0};
    ht_stat s;
    ht_err e = {0};
    T_EQ_INT(ht_stat_pairs(r, 4, &s, &e), HT_EARG);
    T_EQ_INT(ht_stat_pairs(r, HT_STAT_MAX_N + 1, &s, &e), HT_EARG);
    for (int i = 0; i < HT_STAT_MAX_N; i++) r[i] = ((uint64_t)1 << 53) - 1;
    T_OK(ht_stat_pairs(r, HT_STAT_MAX_N, &s, &e), e);
    T_CHECK(s.hl == ((uint64_t)1 << 53) - 1, "the largest ratio must survive its own product");
}

T_CASE(stat, even_median_is_the_stated_combination)
{
    /* n = 8: M = 36, so the estimate is isqrt(isqrt(P18) * isqrt(P19)), every isqrt floored. */
    const uint64_t r[8] = {1000003, 1020007, 1040011, 1060013, 1080017, 1100019, 1120023, 1140029};
    uint64_t root[36];
    int m = 0;
    for (int i = 0; i < 8; i++)
        for (int j = 0; j <= i; j++) {
            uint64_t p = r[i] * r[j], q = (uint64_t)sqrt((double)p);
            while (q * q > p) q--;
            while ((q + 1) * (q + 1) <= p) q++;
            root[m++] = q;
        }
    for (int i = 1; i < m; i++)
        for (int j = i; j > 0 && root[j - 1] > root[j]; j--) {
            uint64_t t = root[j];
            root[j] = root[j - 1];
            root[j - 1] = t;
        }
    uint64_t want = (uint64_t)sqrt((double)root[17] * (double)root[18]);
    ht_stat s;
    ht_err e = {0};
    T_OK(ht_stat_pairs(r, 8, &s, &e), e);
    T_CHECK(s.hl == want, "%llu for %llu", (unsigned long long)s.hl, (unsigned long long)want);
    T_EQ_INT(s.lo, root[3]);
    T_CHECK(s.hi == root[32] || s.hi == root[32] + 1, "upper bound %llu", (unsigned long long)s.hi);
}

T_CASE(stat, holm)
{
    const ht_prob p[4] = {{3, 8}, {1, 8}, {9, 8}, {2, 8}}; /* .0117 .0039 .0352 .0078 */
    bool pass[4];
    ht_err e = {0};
    T_OK(ht_stat_holm(p, 4, 50000, pass, &e), e);
    T_CHECK(pass[0] && pass[1] && pass[2] && pass[3], "p 1,2,3,9 of 256 pass at 4,3,2,1 times");
    T_OK(ht_stat_holm(p, 4, 15000, pass, &e), e); /* .0039*4 > .015: nothing passes */
    T_CHECK(!pass[0] && !pass[1] && !pass[2] && !pass[3],
            "step-down must stop at the first failure");
    T_EQ_INT(ht_stat_holm(p, 0, 50000, pass, &e), HT_EARG);
}

/* P(Binomial(n, q) <= k) in long double by the recurrence of its terms. */
static long double binomial_tail(uint32_t n, long double q, uint32_t k)
{
    long double term = powl(1 - q, n), sum = term;
    for (uint32_t i = 0; i < k; i++) {
        term *= (long double)(n - i) / (i + 1) * q / (1 - q);
        sum += term;
    }
    return sum;
}

T_CASE(stat, tail_counts)
{
    const uint64_t quantiles[3] = {900000, 950000, 990000}, confs[2] = {950000, 990000};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            for (uint32_t k = 0; k < 4; k++) {
                uint32_t n = ht_stat_tail_needed(quantiles[i], confs[j], k);
                long double q = 1 - (long double)quantiles[i] / 1e6L;
                long double beta = 1 - (long double)confs[j] / 1e6L;
                T_CHECK(binomial_tail(n, q, k) <= beta, "n %u is too small", n);
                T_CHECK(binomial_tail(n - 1, q, k) > beta, "n %u is not the least", n);
            }
    T_EQ_INT(ht_stat_tail_needed(950000, 990000, 4), 0);
    T_EQ_INT(ht_stat_tail_needed(970000, 990000, 0), 0);
    T_EQ_INT(ht_stat_tail(950000, 990000, 89, 0, 0), HT_TAIL_TOO_FEW);
    T_EQ_INT(ht_stat_tail(950000, 990000, 90, 0, 0), HT_TAIL_PASS);
    T_EQ_INT(ht_stat_tail(950000, 990000, 129, 1, 1), HT_TAIL_FAIL);
    T_EQ_INT(ht_stat_tail(950000, 990000, 130, 1, 1), HT_TAIL_PASS);
    T_EQ_INT(ht_stat_tail(950000, 990000, 165, 2, 2), HT_TAIL_FAIL); /* both in one pair */
    T_EQ_INT(ht_stat_tail(950000, 990000, 165, 2, 1), HT_TAIL_PASS);
    T_EQ_INT(ht_stat_tail(950000, 990000, 5000, 4, 1), HT_TAIL_FAIL);
}

/* Standard normal from counter-based uniforms (Box-Muller 1958). */
static double normal(uint64_t seed, uint64_t i)
{
    double u = ht_uniform(seed, i, 0), v = ht_uniform(seed, i, 1);
    return sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v);
}

T_CASE(stat, identical_arms_are_not_promoted)
{
    /* Attack test 31: 1000 seeded A/A tables at n = 12; the gate is lower bound >= 1.03 and sign
     * test. Type-I error must stay under alpha + 3 standard errors; a planted 10 % gain must be
     * found. */
    int false_pass = 0, found = 0;
    for (uint64_t t = 0; t < 1000; t++) {
        uint64_t aa[12], ab[12];
        for (uint64_t i = 0; i < 12; i++) {
            double noise = exp(0.03 * normal(t + 1, i));
            aa[i] = (uint64_t)(1e6 * noise);
            ab[i] = (uint64_t)(1.1e6 * noise);
        }
        ht_stat s;
        ht_err e = {0};
        T_OK(ht_stat_pairs(aa, 12, &s, &e), e);
        false_pass += s.lo > HT_PPM && ht_prob_le(s.sign, 1, 50000);
        T_OK(ht_stat_pairs(ab, 12, &s, &e), e);
        found += s.lo >= 1030000 && ht_prob_le(s.sign, 1, 50000);
    }
    T_CHECK(false_pass <= 50 + 21, "%d of 1000 identical arms look faster", false_pass);
    T_CHECK(found >= 990, "a planted 10 %% gain was found %d times of 1000", found);
}
