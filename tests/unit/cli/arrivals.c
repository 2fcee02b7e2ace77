/* arrivals.c - arrivals of a scheduler's experiment: rates, kinds, lengths, traces. */
#include "cli/arrivals.h"
#include "test.h"
#include <stdio.h>

enum { N = 32 };
#define MEAN_NS UINT64_C(40000000)

/* n S2 against S1^2 of the gaps in tenths of a millisecond. */
static double spread(const ht_arrival *x)
{
    double s1 = 0, s2 = 0;
    for (int i = 1; i < N; i++) {
        const double g = (double)((x[i].at_ns - x[i - 1].at_ns) / 100000);
        s1 += g;
        s2 += g * g;
    }
    return (N - 1) * s2 / (s1 * s1);
}

T_CASE(arrivals, are_what_their_kind_says)
{
    ht_arrival trace[N], x[N], y[N];
    for (uint32_t i = 0; i < N; i++)
        trace[i] = (ht_arrival){.at_ns = i * i, .n_prompt = 1 + i, .max_new = 2 + i};
    for (uint32_t scenario = 1; scenario < HT_SCHED_SCENARIOS; scenario++)
        for (uint64_t seed = 1; seed < 20; seed++) {
            ht_err e = {0};
            const int rc =
                cli__arrivals_make(scenario, MEAN_NS, trace, seed, scenario, 64, 16, x, N, &e);
            T_CHECK(rc == 0, "scenario %u seed %d: %s", scenario, (int)seed, e.msg);
            T_CHECK(x[0].at_ns == 0, "begins at %llu", (unsigned long long)x[0].at_ns);
            const double span = (double)x[N - 1].at_ns / ((double)MEAN_NS * (N - 1));
            T_CHECK(span > 0.99 && span < 1.01, "scenario %u: %g of its rate", scenario, span);
            for (int i = 0; i < N; i++) {
                T_CHECK(!i || x[i].at_ns >= x[i - 1].at_ns, "time runs backwards at %d", i);
                T_CHECK(x[i].n_prompt >= 1 && x[i].n_prompt <= 64, "%u rows", x[i].n_prompt);
                T_CHECK(x[i].is_long == (x[i].n_prompt > 16), "class of %u", x[i].n_prompt);
                T_CHECK(x[i].max_new >= 2 && x[i].max_new <= 16, "%u tokens", x[i].max_new);
            }
            const uint32_t kind = (scenario - 1) / HT_SCHED_RATES;
            if (kind == 0) T_CHECK(spread(x) >= 10, "bursts: %g", spread(x));
            if (kind == 1) T_CHECK(spread(x) <= 5, "Poisson: %g", spread(x));
            if (kind == 2) T_CHECK(x[5].n_prompt == 6, "a trace has its own lengths");
            T_EQ_INT(cli__arrivals_make(scenario, MEAN_NS, trace, seed, scenario, 64, 16, y, N, &e),
                     0);
            for (int i = 0; i < N; i++)
                T_CHECK(x[i].at_ns == y[i].at_ns && x[i].n_prompt == y[i].n_prompt,
                        "the same seed gives the same arrivals");
        }
}

/* Means over many: exponential gaps have cv 1, both classes come. */
T_CASE(arrivals, poisson_is_exponential)
{
    double sum = 0;
    int n_long = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        ht_arrival x[N];
        T_EQ_INT(cli__arrivals_make(4, MEAN_NS, NULL, seed, 1, 64, 16, x, N, NULL), 0);
        sum += spread(x) - 1;
        for (int i = 0; i < N; i++) n_long += x[i].is_long;
    }
    T_NEAR(sum / 200, 0.94, 0.15); /* (n - 1) / (n + 1) of n gaps */
    T_NEAR(n_long / (200.0 * N), 1 / 3.0, 0.03);
}

static const char *written(const char *text)
{
    static char path[300];
    (void)snprintf(path, sizeof path, "%s/trace", t_tmp());
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) T_CHECK(false, "%s", path);
    return path;
}

T_CASE(arrivals, a_trace_is_read)
{
    static const struct {
        const char *text;
        int rc;
    } bad[] = {
        {"", HT_EARG},
        {"{\"atNs\":0,\"maxNew\":2,\"nPrompt\":1}\n", HT_EARG},
        {"{\"atNs\":0,\"maxNew\":2,\"nPrompt\":1}\n{\"atNs\":0,\"maxNew\":2,\"nPrompt\":1}\n",
         HT_EARG},
        {"{\"atNs\":5,\"maxNew\":2,\"nPrompt\":1}\n{\"atNs\":4,\"maxNew\":2,\"nPrompt\":1}\n",
         HT_EFORMAT},
        {"{\"atNs\":0,\"maxNew\":1,\"nPrompt\":1}\n", HT_EFORMAT},
        {"{\"maxNew\":2,\"nPrompt\":1}\n", HT_EFORMAT},
        {"{\"atNs\":0,\"maxNew\":2,\"nPrompt\":-1}\n", HT_EFORMAT},
        {"nothing\n", HT_EFORMAT}};
    ht_arena *a;
    ht_arrival *x;
    T_EQ_INT(ht_arena_new(&a, 0, NULL), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int rc = cli__trace_read(a, written(bad[i].text), 2, &x, NULL);
        T_CHECK(rc == bad[i].rc, "%zu: %d", i, rc);
    }
    T_EQ_INT(cli__trace_read(a,
                             written("{\"atNs\":0,\"maxNew\":2,\"nPrompt\":1}\n\n"
                                     "{\"atNs\":7,\"maxNew\":3,\"nPrompt\":9}"),
                             2, &x, NULL),
             0);
    T_CHECK(x[1].at_ns == 7 && x[1].max_new == 3 && x[1].n_prompt == 9, "the last line");
    ht_arena_free(a);
}
