/* cost.c - the fitted cost of passes and the pieces of prompts cut by it; histograms. */
#include "serve/cost.h"
#include "serve/metrics.h"
#include "test.h"

/* ns of a pass on a made-up machine. */
static double truth(double rows, double keys)
{
    return 5e6 + 2e5 * rows + 30 * keys;
}

static void teach(serve__cost *c, uint64_t seed, int passes)
{
    for (int i = 0; i < passes; i++) {
        const double rows = 1 + (double)(t_rand(&seed) % 300);
        const double keys = rows * (double)(t_rand(&seed) % 4000);
        serve__cost_add(c, rows, keys, truth(rows, keys));
    }
}

T_CASE(cost, learns_a_linear_machine)
{
    serve__cost c;
    serve__cost_init(&c);
    teach(&c, 1, 200);
    for (int rows = 1; rows < 300; rows += 37)
        for (int depth = 0; depth < 4000; depth += 777) {
            const double want = truth(rows, rows * (double)depth);
            T_NEAR(serve__cost_predict(&c, rows, rows * (double)depth) / want, 1, 0.02);
        }
    T_CHECK(c.rel_err < 0.05, "reports an error of %g", c.rel_err);
}

T_CASE(cost, pieces_keep_the_objective)
{
    serve__cost c;
    serve__cost_init(&c);
    T_EQ_INT(serve__cost_chunk(&c, 50e6, 4, 4000, 0, 16, 16, 512), 16); /* nothing is known yet */
    teach(&c, 2, 200);
    for (uint32_t pos = 0; pos < 8000; pos += 1000) {
        const uint32_t rows = serve__cost_chunk(&c, 50e6, 4, 4000, pos, 16, 16, 512);
        T_EQ_INT(rows % 16, 0);
        T_CHECK(rows >= 16 && rows <= 512, "%u rows", rows);
        /* At least one tile always goes on, so that prompts never starve. */
        if (rows > 16)
            T_CHECK(truth(rows + 4, 4000 + (double)rows * pos) <= 50e6 * 1.05,
                    "%u rows at %u: %g ns", rows, pos, truth(rows + 4, 4000 + (double)rows * pos));
    }
    T_EQ_INT(serve__cost_chunk(&c, 1e12, 4, 4000, 0, 16, 16, 512), 512);
    T_EQ_INT(serve__cost_chunk(&c, 1, 4, 4000, 0, 16, 16, 512), 16);
}

T_CASE(cost, survives_sameness_and_nonsense)
{
    serve__cost c;
    serve__cost_init(&c);
    for (int i = 0; i < 100000; i++) serve__cost_add(&c, 4, 400, 1e7);
    T_NEAR(serve__cost_predict(&c, 4, 400) / 1e7, 1, 0.01);
    teach(&c, 3, 400);
    T_NEAR(serve__cost_predict(&c, 100, 10000) / truth(100, 10000), 1, 0.05);
}

T_CASE(metrics, histogram_text)
{
    serve__histogram h = {0};
    ht_buf b;
    ht_buf_init(&b, 0);
    serve__observe(&h, 0.0005);
    serve__observe(&h, 0.02);
    serve__observe(&h, 1e6);
    serve__write_histogram(&b, "x_seconds", "a test", &h);
    T_TRUE(strstr(b.p, "hetero_x_seconds_bucket{le=\"0.001\"} 1\n"));
    T_TRUE(strstr(b.p, "hetero_x_seconds_bucket{le=\"0.03\"} 2\n"));
    T_TRUE(strstr(b.p, "hetero_x_seconds_bucket{le=\"300\"} 2\n"));
    T_TRUE(strstr(b.p, "hetero_x_seconds_bucket{le=\"+Inf\"} 3\n"));
    T_TRUE(strstr(b.p, "hetero_x_seconds_count 3\n"));
    ht_buf_done(&b);
}

/* A noisy machine: the bound is exceeded about as often as it says, also after it has become
 * noisier, and pieces are cut by the bound. */
T_CASE(cost, bound_is_exceeded_seldom)
{
    serve__cost c;
    uint64_t seed = 7;
    serve__cost_init(&c);
    T_CHECK(serve__cost_bound(&c, 10, 100) == 0, "nothing is known yet");
    for (int noise = 10; noise <= 80; noise += 70) {
        int misses = 0;
        for (int i = 0; i < 4000; i++) {
            const double rows = 1 + (double)(t_rand(&seed) % 300);
            const double keys = rows * (double)(t_rand(&seed) % 4000);
            const double f = 1 + noise / 100.0 * (double)(t_rand(&seed) % 1000) / 1000;
            const double bound = serve__cost_bound(&c, rows, keys);
            if (i >= 1000) misses += truth(rows, keys) * f > bound;
            serve__cost_add(&c, rows, keys, truth(rows, keys) * f);
        }
        T_CHECK(misses > 3 && misses < 120, "noise %d: %d of 3000 above", noise, misses);
    }
    const uint32_t rows = serve__cost_chunk(&c, 50e6, 4, 4000, 1000, 16, 16, 4096);
    const double at = serve__cost_bound(&c, 4 + rows, 4000 + rows * 1000.0);
    T_CHECK(rows > 16 && at <= 50e6, "%u rows: bound %g ms", rows, at * 1e-6);
}
