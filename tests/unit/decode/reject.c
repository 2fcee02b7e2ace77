/* reject.c - rejection sampling on toy vocabularies: the identities of its chances, and what comes
 * out against the target's own distribution. Seeds are fixed, so the statistical checks either
 * always pass or always fail. */
#include "core/rng.h"
#include "decode/sample.h"
#include "test.h"

enum { V = 8, DRAWS = 1000000 };

static ht_sampling plain(void)
{
    ht_sampling s;
    ht_sampling_init(&s);
    s.temp = 1;
    s.top_k = 0;
    s.top_p = 1;
    s.min_p = 0;
    s.seed = 7;
    return s;
}

static ht_sampler *make(const ht_sampling *par)
{
    ht_sampler *s = NULL;
    ht_err e = {0};
    T_OK(ht_sampler_new(&s, par, V, NULL, NULL, 0, &e), e);
    return s;
}

static void logits_of(const double p[V], float out[V])
{
    for (int i = 0; i < V; i++) out[i] = p[i] > 0 ? (float)log(p[i]) : -INFINITY;
}

/* 99.9 % quantiles of chi-square, by degrees of freedom. */
static double chi_limit(int df)
{
    static const double q[] = {0,     10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32,
                               26.12, 27.88, 29.59, 31.26, 32.91, 34.53, 36.12, 37.70};
    return q[df];
}

static double chi_square(const long *count, const double *p, int n, long draws, int *df)
{
    double chi = 0;
    *df = -1;
    for (int i = 0; i < n; i++) {
        const double want = p[i] * (double)draws;
        if (p[i] <= 0) {
            T_CHECK(count[i] == 0, "%d has no chance and came %ld times", i, count[i]);
            continue;
        }
        chi += ((double)count[i] - want) * ((double)count[i] - want) / want;
        ++*df;
    }
    return chi;
}

/* One position: guess from ql, verify against pl. Returns whether the guess was kept. */
static bool one(ht_sampler *s, const float pl[V], const float ql[V], const int32_t *hist, size_t n,
                uint64_t pos, int32_t *id)
{
    double q[V];
    int32_t guess = -1;
    float lp = 0;
    ht_err e = {0};
    T_OK(ht_sampler_guess(s, ql, hist, n, pos, q, &guess, &lp, &e), e);
    T_OK(ht_sampler_verify(s, pl, hist, n, pos, guess, q, id, &lp, &e), e);
    return *id == guess;
}

static const double P[V] = {0.05, 0.30, 0.10, 0.02, 0.25, 0.18, 0.04, 0.06};
static const double Q[V] = {0.20, 0.10, 0.10, 0.12, 0.05, 0.28, 0.15, 0};

static double overlap(const double *p, const double *q)
{
    double sum = 0;
    for (int i = 0; i < V; i++) sum += p[i] < q[i] ? p[i] : q[i];
    return sum;
}

/* The chance to keep a guess is sum min(p, q) = 1 - TV(p, q); what comes is distributed as p. A
 * kept guess cannot be mistaken: behind a rejected one only tokens are drawn of which p has more,
 * and of those a guess is always kept. */
T_CASE_SECONDS(reject, chance_and_distribution, 120)
{
    float pl[V], ql[V];
    long count[V] = {0}, kept = 0;
    int df;
    const ht_sampling par = plain();
    ht_sampler *s = make(&par);
    logits_of(P, pl);
    logits_of(Q, ql);
    for (uint64_t pos = 0; pos < DRAWS; pos++) {
        int32_t id = -1;
        kept += one(s, pl, ql, NULL, 0, pos, &id);
        count[id]++;
    }
    const double a = overlap(P, Q), sd = sqrt(a * (1 - a) / DRAWS);
    double tv = 0;
    for (int i = 0; i < V; i++) tv += fabs(P[i] - Q[i]) / 2;
    T_CHECK(fabs(1 - tv - a) < 1e-12, "sum min %.6f, 1 - TV %.6f", a, 1 - tv);
    T_CHECK(fabs((double)kept / DRAWS - a) < 4 * sd, "kept %.5f, expected %.5f +- %.5f",
            (double)kept / DRAWS, a, sd);
    const double chi = chi_square(count, P, V, DRAWS, &df);
    T_CHECK(chi < chi_limit(df), "chi-square %.2f with %d degrees of freedom", chi, df);
    ht_sampler_free(s);
}

/* g guesses and one more: (1 - a^(g+1)) / (1 - a) tokens a round. */
T_CASE_SECONDS(reject, tokens_of_a_round, 120)
{
    enum { ROUNDS = 100000 };
    float pl[V], ql[V];
    const ht_sampling par = plain();
    ht_sampler *s = make(&par);
    const double a = overlap(P, Q);
    logits_of(P, pl);
    logits_of(Q, ql);
    for (int g = 1; g <= 5; g += 2) {
        uint64_t pos = 0;
        double tokens = 0, squares = 0;
        for (int r = 0; r < ROUNDS; r++) {
            int n = 0;
            int32_t id;
            while (n < g && one(s, pl, ql, NULL, 0, pos + (uint64_t)n, &id)) n++;
            n++; /* the rejected one's replacement, or the one behind g right ones */
            pos += (uint64_t)g + 1;
            tokens += n;
            squares += (double)n * n;
        }
        const double mean = tokens / ROUNDS, want = (1 - pow(a, g + 1)) / (1 - a);
        const double sd = sqrt((squares / ROUNDS - mean * mean) / ROUNDS);
        T_CHECK(fabs(mean - want) < 4 * sd, "g %d: %.4f tokens a round, expected %.4f +- %.4f", g,
                mean, want, sd);
    }
    ht_sampler_free(s);
}

T_CASE(reject, equal_distributions_keep_all)
{
    float l[V];
    ht_sampling par = plain();
    logits_of(P, l);
    for (int k = 0; k < 4; k++) {
        par.temp = k == 0 ? 1 : k == 1 ? 0.3F : 2;
        par.top_k = k == 3 ? 3 : 0;
        par.min_p = k == 2 ? 0.2F : 0;
        ht_sampler *s = make(&par);
        for (uint64_t pos = 0; pos < 20000; pos++) {
            int32_t id = -1;
            T_TRUE(one(s, l, l, NULL, 0, pos, &id));
        }
        ht_sampler_free(s);
    }
}

/* Nothing in common: the first guess is always rejected, and p comes out. */
T_CASE(reject, disjoint_supports)
{
    const double p[V] = {0.5, 0, 0.2, 0, 0.3, 0, 0, 0}, q[V] = {0, 0.25, 0, 0.25, 0, 0.2, 0.2, 0.1};
    float pl[V], ql[V];
    long count[V] = {0};
    int df;
    const ht_sampling par = plain();
    ht_sampler *s = make(&par);
    logits_of(p, pl);
    logits_of(q, ql);
    for (uint64_t pos = 0; pos < 100000; pos++) {
        int32_t id = -1;
        T_TRUE(!one(s, pl, ql, NULL, 0, pos, &id));
        count[id]++;
    }
    const double chi = chi_square(count, p, V, 100000, &df);
    T_CHECK(chi < chi_limit(df), "chi-square %.2f with %d degrees of freedom", chi, df);
    ht_sampler_free(s);
}

/* At temperature 0 it is the greedy rule: kept when it is the largest logit's, else that. */
T_CASE(reject, greedy_limit)
{
    ht_sampling par = plain();
    par.temp = 0;
    ht_sampler *s = make(&par);
    uint64_t seed = 3;
    int kept = 0;
    for (uint64_t pos = 0; pos < 5000; pos++) {
        float pl[V], ql[V];
        int32_t id = -1;
        for (int i = 0; i < V; i++) {
            pl[i] = (float)(t_rand(&seed) % 64);
            ql[i] = (float)(t_rand(&seed) % 64);
        }
        const bool same = one(s, pl, ql, NULL, 0, pos, &id);
        T_EQ_INT(id, ht_argmax(pl, V));
        T_EQ_INT(same, ht_argmax(pl, V) == ht_argmax(ql, V));
        kept += same;
    }
    T_CHECK(kept > 300 && kept < 4000, "%d of 5000 kept: both branches are taken", kept);
    ht_sampler_free(s);
}

/* p is what the whole chain leaves: temperature, truncation, penalties with the true history. */
T_CASE_SECONDS(reject, behind_the_whole_chain, 120)
{
    enum { N = 200000 };
    const int32_t hist[] = {1, 4, 1};
    float pl[V], ql[V];
    logits_of(P, pl);
    logits_of(Q, ql);
    for (int k = 0; k < 3; k++) {
        ht_sampling par = plain();
        double want[V];
        long plain_count[V] = {0}, count[V] = {0};
        int32_t id = -1;
        ht_err e = {0};
        int df = -1;
        par.temp = 0.7F;
        if (k == 0) par.top_k = 5;
        if (k == 1) par.top_p = 0.8F;
        if (k == 2) {
            par.repeat_penalty = 1.3F;
            par.presence_penalty = 0.5F;
            par.min_p = 0.1F;
        }
        ht_sampler *s = make(&par);
        /* Against as many plain draws: two samples of one distribution. */
        for (uint64_t pos = 0; pos < N; pos++) {
            T_OK(ht_sampler_draw(s, pl, hist, 3, pos, &id, NULL, &e), e);
            plain_count[id]++;
            (void)one(s, pl, ql, hist, 3, N + pos, &id);
            count[id]++;
        }
        double chi = 0;
        for (int i = 0; i < V; i++) {
            want[i] = (double)(plain_count[i] + count[i]);
            if (want[i] < 1) continue;
            const double d = (double)(plain_count[i] - count[i]);
            chi += d * d / want[i];
            df++;
        }
        T_CHECK(df >= 2 && df < V, "%d degrees of freedom", df);
        T_CHECK(chi < chi_limit(df), "case %d: chi-square %.2f with %d degrees of freedom", k, chi,
                df);
        ht_sampler_free(s);
    }
}

/* ---- chains: what may decide how long a draft is -------------------------------------------- */

/* Target and draft with a memory of one token, over three ids. */
static void chain_logits(int last, bool draft, float out[V])
{
    static const double p[3][3] = {{0.6, 0.3, 0.1}, {0.2, 0.5, 0.3}, {0.3, 0.3, 0.4}};
    static const double q[3][3] = {{0.2, 0.2, 0.6}, {0.7, 0.2, 0.1}, {0.1, 0.8, 0.1}};
    double x[V] = {0};
    for (int i = 0; i < 3; i++) x[i] = draft ? q[last][i] : p[last][i];
    logits_of(x, out);
}

enum length { BY_EARLIER, BY_ITSELF };

/* A round of up to two guesses behind token 0, then plain draws: the first two tokens. */
static int two_tokens(ht_sampler *s, enum length rule, uint64_t pos)
{
    int32_t guess[2], out[2], n = 0, k = 0;
    double q[2][V];
    float l[V];
    ht_err e = {0};
    for (int last = 0; k < 2; last = guess[k++]) {
        /* The second guess is made when the first was 1 or 2: a decision by what stands before. */
        if (rule == BY_EARLIER && k == 1 && guess[0] == 0) break;
        chain_logits(last, true, l);
        T_OK(ht_sampler_guess(s, l, NULL, 0, pos + (uint64_t)k, q[k], &guess[k], NULL, &e), e);
        /* Wrong: a guess thrown away for being the one it is. */
        if (rule == BY_ITSELF && guess[k] == 2) break;
    }
    for (int last = 0; n < 2; last = out[n++]) {
        chain_logits(last, false, l);
        const bool guessed = n < k && (n == 0 || out[0] == guess[0]);
        if (guessed)
            T_OK(ht_sampler_verify(s, l, NULL, 0, pos + (uint64_t)n, guess[n], q[n], &out[n], NULL,
                                   &e),
                 e);
        else T_OK(ht_sampler_draw(s, l, NULL, 0, pos + (uint64_t)n, &out[n], NULL, &e), e);
        if (guessed && out[n] != guess[n]) k = 0;
    }
    return out[0] * 3 + out[1];
}

/* The joint distribution of two tokens is the target's when the length of a draft follows from
 * earlier guesses, and visibly not when a guess is dropped for what it is: the reason for the rule
 * in api/speculate.c, and proof that the test can see it. */
T_CASE_SECONDS(reject, draft_lengths, 120)
{
    enum { N = 300000 };
    double joint[9];
    const ht_sampling par = plain();
    ht_sampler *s = make(&par);
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++) {
            float first[V], second[V];
            chain_logits(0, false, first);
            chain_logits(a, false, second);
            joint[a * 3 + b] = exp((double)first[a]) * exp((double)second[b]);
        }
    for (int rule = BY_EARLIER; rule <= BY_ITSELF; rule++) {
        long count[9] = {0};
        int df;
        for (uint64_t i = 0; i < N; i++) count[two_tokens(s, (enum length)rule, 2 * i)]++;
        const double chi = chi_square(count, joint, 9, N, &df);
        if (rule == BY_EARLIER)
            T_CHECK(chi < chi_limit(df), "chi-square %.2f with %d degrees of freedom", chi, df);
        else T_CHECK(chi > 1000, "a biased rule is seen: chi-square %.2f", chi);
    }
    ht_sampler_free(s);
}

/* A guess of the largest logit with the whole distribution as its q is the classic mistake. */
T_CASE(reject, largest_guess_is_not_a_draw)
{
    enum { N = 100000 };
    float pl[V], ql[V];
    long count[V] = {0};
    int df;
    const ht_sampling par = plain();
    ht_sampler *s = make(&par);
    logits_of(P, pl);
    logits_of(Q, ql);
    for (uint64_t pos = 0; pos < N; pos++) {
        int32_t id = -1;
        ht_err e = {0};
        T_OK(ht_sampler_verify(s, pl, NULL, 0, pos, ht_argmax(ql, V), Q, &id, NULL, &e), e);
        count[id]++;
    }
    const double chi = chi_square(count, P, V, N, &df);
    T_CHECK(chi > 1000, "seen: chi-square %.2f", chi);
    ht_sampler_free(s);
}

/* The random numbers of a position: the same again, and independent of those of a plain draw. */
T_CASE(reject, depends_on_the_position_alone)
{
    float pl[V], ql[V];
    const ht_sampling par = plain();
    ht_sampler *s = make(&par), *t = NULL;
    ht_err e = {0};
    int as_plain = 0;
    logits_of(P, pl);
    logits_of(Q, ql);
    T_OK(ht_sampler_clone(&t, s, &e), e);
    for (uint64_t pos = 0; pos < 2000; pos++) {
        int32_t a = -1, b = -1, c = -1;
        (void)one(s, pl, ql, NULL, 0, pos, &a);
        (void)one(t, pl, ql, NULL, 0, 1999 - pos, &c);
        (void)one(t, pl, ql, NULL, 0, pos, &b);
        T_EQ_INT(a, b);
        T_OK(ht_sampler_draw(s, pl, NULL, 0, pos, &b, NULL, &e), e);
        as_plain += a == b;
    }
    T_CHECK(as_plain > 200 && as_plain < 1000, "%d of 2000 as drawn without guesses", as_plain);
    ht_sampler_free(s);
    ht_sampler_free(t);
}
