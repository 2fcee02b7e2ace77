/* sample.c - the sampler chain against distributions worked out by hand or by a plain second
 * implementation. Seeds are fixed, so the statistical checks either always pass or always fail. */
#include "decode/sample.h"
#include "core/arena.h"
#include "test.h"

/* Everything off: the plain softmax. */
static ht_sampling plain(void)
{
    ht_sampling s;
    ht_sampling_init(&s);
    s.temp = 1;
    s.top_k = 0;
    s.top_p = 1;
    s.min_p = 0;
    s.seed = 42;
    return s;
}

static ht_sampler *make(const ht_sampling *par, uint32_t n_vocab)
{
    ht_sampler *s = NULL;
    ht_err e = {0};
    T_OK(ht_sampler_new(&s, par, n_vocab, NULL, NULL, 0, &e), e);
    return s;
}

static int32_t draw(ht_sampler *s, const float *logits, const int32_t *hist, size_t n, uint64_t pos)
{
    int32_t id = -1;
    ht_err e = {0};
    T_OK(ht_sampler_draw(s, logits, hist, n, pos, &id, NULL, &e), e);
    return id;
}

/* 99.9 % quantiles of chi-square, by degrees of freedom. */
static double chi_limit(int df)
{
    static const double q[] = {0,     10.83, 13.82, 16.27, 18.47, 20.52,
                               22.46, 24.32, 26.12, 27.88, 29.59};
    return q[df];
}

enum { DRAWS = 20000 };

/* Draws over positions 0.. must fit p (zeros must never come). */
static void fits(const ht_sampling *par, const float *logits, uint32_t n, const int32_t *hist,
                 size_t n_hist, const double *p)
{
    int count[16] = {0}, df = -1;
    double chi = 0;
    ht_sampler *s = make(par, n);
    for (uint64_t pos = 0; pos < DRAWS; pos++) count[draw(s, logits, hist, n_hist, pos)]++;
    for (uint32_t i = 0; i < n; i++) {
        if (p[i] <= 0) {
            T_CHECK(count[i] == 0, "token %u has probability 0 and came %d times", i, count[i]);
            continue;
        }
        double want = p[i] * DRAWS;
        chi += (count[i] - want) * (count[i] - want) / want;
        df++;
    }
    if (df == 0) {
        T_CHECK(chi < 1e-9, "the only token did not always come");
    } else {
        T_CHECK(chi < chi_limit(df), "chi-square %.2f with %d degrees of freedom", chi, df);
    }
    ht_sampler_free(s);
}

static void normalise(double *p, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += p[i];
    for (uint32_t i = 0; i < n; i++) p[i] /= sum;
}

static const double P6[6] = {0.05, 0.40, 0.10, 0.02, 0.25, 0.18};

static void logits6(float out[6])
{
    for (int i = 0; i < 6; i++) out[i] = (float)log(P6[i]) + 3;
}

T_CASE(sample, softmax_and_temperature)
{
    float l[6];
    double p[6];
    logits6(l);
    ht_sampling s = plain();
    fits(&s, l, 6, NULL, 0, P6);
    s.temp = 0.5F;
    for (int i = 0; i < 6; i++) p[i] = P6[i] * P6[i];
    normalise(p, 6);
    fits(&s, l, 6, NULL, 0, p);
    s.temp = 2;
    for (int i = 0; i < 6; i++) p[i] = sqrt(P6[i]);
    normalise(p, 6);
    fits(&s, l, 6, NULL, 0, p);
}

T_CASE(sample, truncation)
{
    float l[6];
    logits6(l);
    ht_sampling s = plain();
    s.top_k = 2;
    double k2[6] = {0, 0.40, 0, 0, 0.25, 0};
    normalise(k2, 6);
    fits(&s, l, 6, NULL, 0, k2);
    s = plain();
    s.top_p = 0.7F; /* .40 + .25 < .7 <= .40 + .25 + .18 */
    double np[6] = {0, 0.40, 0, 0, 0.25, 0.18};
    normalise(np, 6);
    fits(&s, l, 6, NULL, 0, np);
    s = plain();
    s.min_p = 0.24F; /* of .40: .096 */
    double mp[6] = {0, 0.40, 0.10, 0, 0.25, 0.18};
    normalise(mp, 6);
    fits(&s, l, 6, NULL, 0, mp);
    s.min_p = 0;
    s.top_p = 0; /* always keeps one */
    double one[6] = {0, 1, 0, 0, 0, 0};
    fits(&s, l, 6, NULL, 0, one);
    s = plain();
    s.typical_p = 0.3F;
    /* entropy 1.484 nats; nearest are the surprisals of .25 (1.386) and .18 (1.715) */
    double ty[6] = {0, 0, 0, 0, 0.25, 0.18};
    normalise(ty, 6);
    fits(&s, l, 6, NULL, 0, ty);
    s = plain();
    s.top_k = 3;
    s.temp = 2; /* truncation sees temperature 1 */
    double kt[6] = {0, sqrt(0.40), 0, 0, sqrt(0.25), sqrt(0.18)};
    normalise(kt, 6);
    fits(&s, l, 6, NULL, 0, kt);
}

T_CASE(sample, xtc)
{
    float l[6];
    logits6(l);
    ht_sampling s = plain();
    s.xtc_probability = 1;
    s.xtc_threshold = 0.17F; /* .40 .25 .18 reach it: .18 stays */
    double all[6] = {0.05, 0, 0.10, 0.02, 0, 0.18};
    normalise(all, 6);
    fits(&s, l, 6, NULL, 0, all);
    s.xtc_probability = 0.5F; /* half the draws each */
    for (int i = 0; i < 6; i++) all[i] = 0.5 * all[i] + 0.5 * P6[i];
    fits(&s, l, 6, NULL, 0, all);
    s.xtc_probability = 1;
    s.xtc_threshold = 0.3F; /* one alone is not dropped */
    fits(&s, l, 6, NULL, 0, P6);
}

T_CASE(sample, penalties_and_bias)
{
    static const int32_t hist[] = {5, 1, 1, 4, -7, 99};
    float l[6] = {0.5F, 1, -1, 0, 2, 1.5F};
    double p[6];
    ht_sampling s = plain();
    s.repeat_penalty = 2;
    s.presence_penalty = 0.25F;
    s.frequency_penalty = 0.5F;
    s.penalty_last_n = 5; /* 1 1 4 and two that are not tokens */
    const double adjusted[6] = {0.5, 0.5 - 0.25 - 1.0, -1, 0, 1 - 0.25 - 0.5, 1.5};
    for (int i = 0; i < 6; i++) p[i] = exp(adjusted[i]);
    normalise(p, 6);
    fits(&s, l, 6, hist, 6, p);
    s.penalty_last_n = -1; /* all: 5 counts too */
    p[5] = exp(0.75 - 0.25 - 0.5);
    for (int i = 0; i < 5; i++) p[i] = exp(adjusted[i]);
    normalise(p, 6);
    fits(&s, l, 6, hist, 6, p);
    s.penalty_last_n = 0;
    for (int i = 0; i < 6; i++) p[i] = exp((double)l[i]);
    normalise(p, 6);
    fits(&s, l, 6, hist, 6, p);
    const ht_logit_bias bias[] = {{4, -INFINITY}, {0, 1.5F}};
    s.bias = bias;
    s.n_bias = 2;
    p[4] = 0;
    p[0] *= exp(1.5);
    normalise(p, 6);
    fits(&s, l, 6, hist, 6, p);
}

/* The penalty of each token by trying every earlier place: the definition. */
static void dry_by_hand(const ht_sampling *s, const int32_t *h, size_t n, size_t limit, float *l)
{
    int best[16];
    for (int id = 0; id < 16; id++) best[id] = -1;
    for (size_t k = 1; k < n; k++) { /* text that ends k tokens earlier */
        size_t len = 0;
        while (k + len < n && h[n - 1 - len] == h[n - 1 - k - len]) len++;
        if (len > limit) len = limit;
        if ((int)len > best[h[n - k]]) best[h[n - k]] = (int)len;
    }
    for (int id = 0; id < 16; id++) {
        if (best[id] >= s->dry_allowed_length)
            l[id] -=
                (float)(s->dry_multiplier * pow(s->dry_base, best[id] - s->dry_allowed_length));
    }
}

T_CASE(sample, dry_agrees_with_the_definition)
{
    static const int32_t nl[] = {3}, pair[] = {1, 2};
    static const int32_t *const seqs[] = {nl, pair};
    static const size_t lens[] = {1, 2};
    uint64_t seed = 3;
    int changed = 0;
    for (int round = 0; round < 400; round++) {
        ht_sampling s = plain();
        ht_sampler *sm;
        ht_err e = {0};
        bool breakers = round % 2;
        s.temp = 0;
        s.dry_multiplier = 0.8F;
        s.dry_allowed_length = 1 + (int32_t)(t_rand(&seed) % 3);
        T_OK(ht_sampler_new(&sm, &s, 16, seqs, lens, breakers ? 2 : 0, &e), e);
        int32_t h[60];
        size_t n = 2 + (size_t)(t_rand(&seed) % 58), limit = n;
        for (size_t i = 0; i < n; i++) h[i] = (int32_t)(t_rand(&seed) % 4);
        for (size_t i = 0; breakers && i < n; i++) { /* i-th from the end */
            size_t at = n - 1 - i;
            if (i >= 1 && h[at] == 1 && h[at + 1] == 2) limit = i - 1;
            else if (h[at] == 3) limit = i;
            else continue;
            break;
        }
        float l[16], want[16];
        for (int i = 0; i < 16; i++) l[i] = want[i] = t_randf(&seed);
        if (limit >= (size_t)s.dry_allowed_length) dry_by_hand(&s, h, n, limit, want);
        int32_t id = draw(sm, l, h, n, 0);
        T_EQ_INT(id, ht_argmax(want, 16));
        changed += id != ht_argmax(l, 16);
        ht_sampler_free(sm);
    }
    T_CHECK(changed > 20, "only %d draws were changed by DRY", changed);
}

/* Selection by heap, by quickselect and by mass, against sorting everything. */
static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

T_CASE(sample, selection_on_a_large_vocabulary)
{
    enum { N = 20000 };
    float *l = malloc(N * sizeof *l), *sorted = malloc(N * sizeof *l);
    T_TRUE(l && sorted);
    uint64_t seed = 11;
    static const int32_t ks[] = {1, 2, 40, 512, 513, 5000, N};
    for (int shape = 0; shape < 3; shape++) {
        for (int i = 0; i < N; i++) /* spread, few values, all equal */
            l[i] = shape == 0 ? 4 * t_randf(&seed) : shape == 1 ? (float)(t_rand(&seed) % 5) : 1;
        memcpy(sorted, l, N * sizeof *l);
        qsort(sorted, N, sizeof *l, by_value);
        for (size_t j = 0; j < sizeof ks / sizeof *ks; j++) {
            ht_sampling s = plain();
            s.top_k = ks[j];
            ht_sampler *sm = make(&s, N);
            float least = sorted[ks[j] - 1];
            size_t above = 0;
            while (above < N && sorted[above] > least) above++;
            for (uint64_t pos = 0; pos < 200; pos++) {
                int32_t id = draw(sm, l, NULL, 0, pos);
                T_CHECK(l[id] >= least, "top_k %d gave a smaller logit", ks[j]);
                if (l[id] > least) continue;
                size_t rank = above; /* ties: the lowest ids stay */
                for (int32_t i = 0; i < id; i++) rank += l[i] == least;
                T_CHECK(rank < (size_t)ks[j], "top_k %d kept rank %zu", ks[j], rank);
            }
            ht_sampler_free(sm);
        }
        ht_sampling s = plain();
        s.top_p = 0.6F;
        ht_sampler *sm = make(&s, N);
        double sum = 0, mass = 0;
        size_t need = 0;
        for (int i = 0; i < N; i++) sum += exp((double)sorted[i]);
        while (mass < 0.6 * sum) mass += exp((double)sorted[need++]);
        for (uint64_t pos = 0; pos < 300; pos++) {
            float x = l[draw(sm, l, NULL, 0, pos)];
            T_CHECK(x >= sorted[need - 1], "top_p kept %g, the last should be %g", (double)x,
                    (double)sorted[need - 1]);
        }
        ht_sampler_free(sm);
    }
    free(l);
    free(sorted);
}

/* A draw is a function of its arguments: not of what was drawn before, nor of the instance. */
T_CASE(sample, draws_do_not_depend_on_order)
{
    enum { N = 500, STEPS = 300 };
    float *l = malloc(STEPS * N * sizeof *l);
    int32_t hist[STEPS], first[STEPS];
    uint64_t seed = 5;
    T_TRUE(l != NULL);
    for (int i = 0; i < STEPS * N; i++) l[i] = 5 * t_randf(&seed);
    for (int i = 0; i < STEPS; i++) hist[i] = (int32_t)(t_rand(&seed) % N);
    ht_sampling s = plain();
    s.top_k = 100;
    s.top_p = 0.9F;
    s.min_p = 0.02F;
    s.typical_p = 0.95F;
    s.repeat_penalty = 1.1F;
    s.dry_multiplier = 0.5F;
    s.xtc_probability = 0.3F;
    ht_sampler *a = make(&s, N), *b = make(&s, N);
    uint64_t allocations = ht_alloc_count();
    for (int i = 0; i < STEPS; i++) first[i] = draw(a, l + i * N, hist, (size_t)i, (uint64_t)i);
    for (int i = STEPS - 1; i >= 0; i--)
        T_EQ_INT(draw(a, l + i * N, hist, (size_t)i, (uint64_t)i), first[i]);
    for (int i = 0; i < STEPS; i += 7)
        T_EQ_INT(draw(b, l + i * N, hist, (size_t)i, (uint64_t)i), first[i]);
    T_EQ_INT(ht_alloc_count(), allocations);
    s.seed++;
    ht_sampler *c = make(&s, N);
    int differ = 0;
    for (int i = 0; i < STEPS; i++)
        differ += draw(c, l + i * N, hist, (size_t)i, (uint64_t)i) != first[i];
    T_CHECK(differ > STEPS / 4, "another seed changed only %d draws", differ);
    ht_sampler_free(a);
    ht_sampler_free(b);
    ht_sampler_free(c);
    free(l);
}

T_CASE(sample, greedy_and_argmax)
{
    const float tie[] = {1, 3, 3, 2}, nan_first[] = {NAN, -5, NAN, -6}, none[] = {NAN, NAN};
    const float low[] = {-INFINITY, -INFINITY};
    T_EQ_INT(ht_argmax(tie, 4), 1);
    T_EQ_INT(ht_argmax(nan_first, 4), 1);
    T_EQ_INT(ht_argmax(none, 2), -1);
    T_EQ_INT(ht_argmax(low, 2), 0);
    ht_sampling s = plain();
    s.temp = 0;
    s.typical_p = 0.1F; /* truncation has no say */
    s.xtc_probability = 1;
    ht_sampler *sm = make(&s, 4);
    T_EQ_INT(draw(sm, tie, NULL, 0, 0), 1);
    T_EQ_INT(draw(sm, nan_first, NULL, 0, 9), 1);
    ht_sampler_free(sm);
}

/* The blocks that are looked at together: every length around them, NaN and infinities between. */
T_CASE(sample, argmax_of_many)
{
    enum { MOST = 300 };
    float x[MOST];
    uint64_t seed = 11;
    for (uint32_t round = 0; round < 2000; round++) {
        const uint32_t n = 1 + (uint32_t)(t_rand(&seed) % MOST);
        int32_t want = -1;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t r = (uint32_t)(t_rand(&seed) >> 40) % 50;
            x[i] = r < 5 ? NAN : r < 8 ? -INFINITY : (float)r; /* ties abound */
            if (!isnan(x[i]) && (want < 0 || x[i] > x[want])) want = (int32_t)i;
        }
        T_EQ_INT(ht_argmax(x, n), want);
    }
}

/* Only the first ids: the draw of logits that exclude the others, whatever the chain. */
T_CASE(sample, the_first_ids)
{
    enum { N = 200, FEW = 70 };
    float l[N], few[N];
    double q[N];
    uint64_t seed = 3;
    const int32_t hist[] = {3, 150, 3, 69, 70, 199};
    const ht_logit_bias bias[] = {{5, 2}, {180, 90}};
    for (int i = 0; i < N; i++) l[i] = few[i] = (float)(t_rand(&seed) >> 40) * 0x1p-20F;
    for (int i = FEW; i < N; i++) few[i] = -INFINITY;
    for (int k = 0; k < 4; k++) {
        ht_sampling p = plain();
        ht_err e = {0};
        p.temp = k ? 0.8F : 0;
        p.top_k = k == 2 ? 20 : 0;
        p.top_p = k == 3 ? 0.9F : 1;
        p.repeat_penalty = 1.3F;
        p.penalty_last_n = -1;
        p.bias = bias;
        p.n_bias = 2;
        ht_sampler *s = make(&p, N);
        for (uint64_t pos = 0; pos < 50; pos++) {
            int32_t id = -1, first = -1, guess = -1;
            float lp = 0, first_lp = 1;
            T_OK(ht_sampler_draw(s, few, hist, 6, pos, &id, &lp, &e), e);
            ht_sampler_first(s, FEW);
            T_OK(ht_sampler_draw(s, l, hist, 6, pos, &first, &first_lp, &e), e);
            T_OK(ht_sampler_guess(s, l, hist, 6, pos, q, &guess, NULL, &e), e);
            ht_sampler_first(s, 0);
            T_EQ_INT(first, id);
            T_NEAR(first_lp, lp, 1e-6);
            T_TRUE(guess >= 0 && guess < FEW && q[guess] > 0);
            for (int i = FEW; i < N; i++) T_TRUE(q[i] == 0);
        }
        T_EQ_INT(draw(s, l, hist, 6, 1) >= FEW, 1); /* id 180 is wanted again */
        ht_sampler_free(s);
    }
}

T_CASE(sample, logits_that_are_not_numbers)
{
    const float x[6] = {NAN, 1, -INFINITY, 1, NAN, -INFINITY};
    const double p[6] = {0, 0.5, 0, 0.5, 0, 0};
    const float certain[3] = {2, INFINITY, INFINITY}, broken[3] = {NAN, -INFINITY, NAN};
    ht_sampling s = plain();
    fits(&s, x, 6, NULL, 0, p);
    s.top_k = 3;
    fits(&s, x, 6, NULL, 0, p);
    s.top_k = 0;
    s.top_p = 0.99F;
    s.min_p = 0.1F;
    s.typical_p = 0.99F;
    s.xtc_probability = 1;
    s.xtc_threshold = 0.5F; /* of two equals the later id stays */
    const double last[6] = {0, 0, 0, 1, 0, 0};
    fits(&s, x, 6, NULL, 0, last);
    ht_sampler *sm = make(&s, 3);
    int32_t id = 7;
    float lp = 7;
    ht_err e = {0};
    T_OK(ht_sampler_draw(sm, certain, NULL, 0, 1, &id, &lp, &e), e);
    T_EQ_INT(id, 1);
    T_NEAR(lp, 0, 0);
    T_ERR(ht_sampler_draw(sm, broken, NULL, 0, 12, &id, &lp, &e), HT_EFORMAT, e, "position 12");
    T_EQ_INT(id, 1);
    ht_sampler_free(sm);
}

T_CASE(sample, logprob_is_of_the_unmodified_logits)
{
    float l[6], lp;
    int32_t id;
    ht_err e = {0};
    logits6(l);
    ht_sampling s = plain();
    const ht_logit_bias bias = {3, 50};
    s.bias = &bias;
    s.n_bias = 1;
    ht_sampler *sm = make(&s, 6);
    T_OK(ht_sampler_draw(sm, l, NULL, 0, 0, &id, &lp, &e), e);
    T_EQ_INT(id, 3);
    T_NEAR(lp, log(P6[3]), 1e-6);
    ht_sampler_free(sm);
}

T_CASE(sample, logprob_on_a_large_vocabulary)
{
    enum { N = 50001 };
    float *l = malloc(N * sizeof *l), lp;
    int32_t id;
    ht_err e = {0};
    uint64_t seed = 21;
    T_TRUE(l != NULL);
    ht_sampling s = plain();
    s.temp = 0;
    ht_sampler *sm = make(&s, N);
    for (int spread = 1; spread <= 64; spread *= 4) {
        double top = -1e9, sum = 0;
        for (int i = 0; i < N; i++) {
            l[i] = (float)spread * t_randf(&seed);
            if ((double)l[i] > top) top = (double)l[i];
        }
        for (int i = 0; i < N; i++) sum += exp((double)l[i] - top);
        T_OK(ht_sampler_draw(sm, l, NULL, 0, 0, &id, &lp, &e), e);
        /* relative error of the sum 3e-7, of the float result 6e-8 times its size */
        T_NEAR(lp, -log(sum), 4e-7 + 6e-8 * log(sum));
    }
    ht_sampler_free(sm);
    free(l);
}

static void refused(ht_sampling s, const char *name)
{
    ht_sampler *sm = NULL;
    char *text = NULL;
    ht_err e = {0};
    T_ERR(ht_sampler_new(&sm, &s, 10, NULL, NULL, 0, &e), HT_EARG, e, name);
    T_ERR(ht_sampling_describe(&s, &text, &e), HT_EARG, e, name);
    T_TRUE(!sm && !text);
}

#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        ht_sampling bad = plain();                                                                 \
        bad.field = value;                                                                         \
        refused(bad, "sampling: " #field " is");                                                   \
    } while (0)

T_CASE(sample, ranges)
{
    REFUSED(temp, NAN);
    REFUSED(temp, INFINITY);
    REFUSED(top_k, -2);
    REFUSED(top_p, 1.5F);
    REFUSED(top_p, NAN);
    REFUSED(min_p, -0.1F);
    REFUSED(typical_p, 2);
    REFUSED(repeat_penalty, 0);
    REFUSED(presence_penalty, INFINITY);
    REFUSED(frequency_penalty, NAN);
    REFUSED(penalty_last_n, -2);
    REFUSED(dry_multiplier, -1);
    REFUSED(dry_allowed_length, -1);
    REFUSED(dry_last_n, -5);
    REFUSED(xtc_probability, 1.1F);
    REFUSED(xtc_threshold, -1);
    ht_sampling s = plain();
    s.dry_multiplier = 1;
    s.dry_base = 0.5F;
    refused(s, "sampling: dry_base is 0.5, must be from 1");
    s = plain();
    const ht_logit_bias nan_bias = {1, NAN}, outside = {10, 1}, negative = {-1, 1};
    s.n_bias = 1;
    refused(s, "bias is NULL");
    s.bias = &nan_bias;
    refused(s, "bias of token 1");
    ht_sampler *sm = NULL;
    ht_err e = {0};
    s.bias = &outside;
    T_ERR(ht_sampler_new(&sm, &s, 10, NULL, NULL, 0, &e), HT_EARG, e,
          "token 10, must be from 0 to 9");
    s.bias = &negative;
    T_ERR(ht_sampler_new(&sm, &s, 10, NULL, NULL, 0, &e), HT_EARG, e, "token -1");
    s = plain();
    T_ERR(ht_sampler_new(&sm, &s, 0, NULL, NULL, 0, &e), HT_EARG, e, "vocabulary of 0");
}

static void described(const ht_sampling *s, const char *want)
{
    char *text = NULL;
    ht_err e = {0};
    T_OK(ht_sampling_describe(s, &text, &e), e);
    T_EQ_STR(text, want);
    ht_mem_free(text);
}

T_CASE(sample, description)
{
    ht_sampling s;
    ht_sampling_init(&s);
    described(&s, "top_k(40) -> top_p(0.95) -> min_p(0.05) -> temp(0.8) -> draw");
    s.repeat_penalty = 1.1F;
    s.penalty_last_n = -1;
    s.presence_penalty = -0.5F;
    s.dry_multiplier = 0.8F;
    s.typical_p = 0.9F;
    s.xtc_probability = 0.25F;
    const ht_logit_bias bias = {1, 2};
    s.bias = &bias;
    s.n_bias = 1;
    described(&s,
              "logit_bias(1) -> penalties(all, repeat 1.1, presence -0.5) -> dry(0.8, base 1.75, "
              "allowed 2, last all) -> top_k(40) -> typical_p(0.9) -> top_p(0.95) -> min_p(0.05) "
              "-> xtc(0.25, threshold 0.1) -> temp(0.8) -> draw");
    s = plain();
    s.temp = 0;
    described(&s, "greedy");
}

T_CASE(sample, every_failed_allocation_is_an_error)
{
    static const int32_t seq[] = {1, 2};
    static const int32_t *const seqs[] = {seq};
    static const size_t lens[] = {2};
    const ht_logit_bias bias = {1, 2};
    ht_sampling s = plain();
    s.dry_multiplier = 1;
    s.bias = &bias;
    s.n_bias = 1;
    uint64_t n = 1;
    for (int rc = HT_ENOMEM; rc; n++) {
        ht_sampler *sm = NULL;
        ht_err e = {0};
        T_CHECK(n < 100, "never succeeds");
        ht_alloc_fail_at(n);
        rc = ht_sampler_new(&sm, &s, 100, seqs, lens, 1, &e);
        ht_alloc_fail_at(0);
        T_CHECK(rc == 0 || (rc == HT_ENOMEM && !sm), "allocation %d: rc %d", (int)n, rc);
        ht_sampler_free(sm);
    }
    T_CHECK(n > 7, "only %d allocations", (int)n);
}
