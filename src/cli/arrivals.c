/* arrivals.c - see arrivals.h. Gamma variates: Marsaglia and Tsang, "A simple method for generating
 * gamma variables", 2000; normal ones by Box and Muller, 1958. */
#include "cli/arrivals.h"
#include "cli/cli.h"
#include "core/arena.h"
#include "core/rng.h"
#include <math.h>
#include <string.h>

/* Coefficient of variation 3: what evidence.md 6 calls a burst. */
#define BURST_SHAPE (1.0 / 9)
enum { TRIES = 100000, TICK_NS = 100000 };

typedef struct {
    uint64_t seed, at, stream;
} draws;

static double next(draws *d)
{
    return ht_uniform(d->seed, d->at++, d->stream);
}

static double exponential(draws *d)
{
    return -log(1 - next(d));
}

static double normal(draws *d)
{
    const double r = sqrt(-2 * log(1 - next(d)));
    return r * cos(2 * 3.14159265358979323846 * next(d));
}

/* Gamma of shape k < 1, as that of k + 1 times U^(1/k). */
static double gamma_below_one(draws *d, double k)
{
    const double a = k + 1 - 1.0 / 3, c = 1 / sqrt(9 * a);
    for (;;) {
        const double x = normal(d), v = pow(1 + c * x, 3), u = 1 - next(d);
        if (v > 0 && log(u) < x * x / 2 + a - a * v + a * log(v))
            return a * v * pow(1 - next(d), 1 / k);
    }
}

/* Gaps of this kind add up to the rate exactly, and are what their kind says: a few draws of a
 * gamma variate may well look even, and would then be no burst. */
static bool fits(const ht_arrival *x, uint32_t n, uint32_t kind)
{
    uint64_t s1 = 0, s2 = 0;
    for (uint32_t i = 1; i < n; i++) {
        const uint64_t g = (x[i].at_ns - x[i - 1].at_ns) / TICK_NS;
        s1 += g;
        s2 += g * g;
    }
    if (kind == 2) return true;
    return kind == 0 ? (n - 1) * s2 >= 10 * s1 * s1 : (n - 1) * s2 <= 5 * s1 * s1;
}

static void place(draws *d, uint32_t kind, uint64_t mean_ns, const ht_arrival *trace, ht_arrival *x,
                  uint32_t n)
{
    const double span = (double)mean_ns * (n - 1);
    double at = 0, all = 0;
    const uint64_t from = d->at;
    /* Twice the same draws: the sum first, then the times. */
    for (int round = 0; round < 2; round++) {
        d->at = from;
        at = 0;
        x[0].at_ns = 0;
        for (uint32_t i = 1; i < n; i++) {
            at += kind == 0   ? gamma_below_one(d, BURST_SHAPE)
                  : kind == 1 ? exponential(d)
                              : (double)(trace[i].at_ns - trace[i - 1].at_ns);
            if (round) x[i].at_ns = (uint64_t)(at / all * span);
        }
        all = at;
    }
}

static void lengths(draws *d, uint32_t max_prompt, uint32_t max_new, ht_arrival *x, uint32_t n)
{
    const uint32_t quarter = max_prompt / 4;
    for (uint32_t i = 0; i < n; i++) {
        const bool is_long = next(d) < 1.0 / 3;
        const uint32_t lo = is_long ? quarter + 1 : quarter / 4 + 1;
        const uint32_t hi = is_long ? max_prompt : quarter;
        x[i].n_prompt = lo + (uint32_t)(next(d) * (hi - lo + 1));
        x[i].max_new = max_new;
        x[i].is_long = 4 * (uint64_t)x[i].n_prompt > max_prompt;
    }
}

int cli__arrivals_make(uint32_t scenario, uint64_t mean_ns, const ht_arrival *trace, uint64_t seed,
                       uint64_t stream, uint32_t max_prompt, uint32_t max_new, ht_arrival *x,
                       uint32_t n, ht_err *e)
{
    const uint32_t kind = scenario ? (scenario - 1) / HT_SCHED_RATES : 0;
    draws d = {seed, 0, stream};
    lengths(&d, max_prompt, max_new, x, n);
    if (scenario == 0) {
        for (uint32_t i = 0; i < n; i++) x[i].at_ns = mean_ns * i;
        return 0;
    }
    for (uint32_t i = 0; kind == 2 && i < n; i++) {
        x[i].n_prompt = trace[i].n_prompt;
        x[i].max_new = trace[i].max_new < max_new ? trace[i].max_new : max_new;
        x[i].is_long = 4 * (uint64_t)x[i].n_prompt > max_prompt;
    }
    for (int t = 0; t < TRIES; t++) {
        place(&d, kind, mean_ns, trace, x, n);
        if (fits(x, n, kind)) return 0;
    }
    return HT_FAIL(e, HT_EARG,
                   "arrivals: %u requests at %.3f a second give no %s; take more --requests, or a "
                   "slower model (gaps are judged in tenths of a millisecond)",
                   n, 1e9 / (double)mean_ns, ht_sched_kinds[kind]);
}

static int read_line(ht_arena *a, const char *path, const char *line, size_t n, ht_arrival *x,
                     ht_err *e)
{
    ht_json *j;
    int64_t at = -1;
    HT_TRY(ht_json_parse(a, line, n, 0, path, &j, e));
    HT_TRY(ht_json_i64(j, "atNs", -1, &at, e));
    HT_TRY(ht_json_u32(j, "maxNew", 0, &x->max_new, e));
    HT_TRY(ht_json_u32(j, "nPrompt", 0, &x->n_prompt, e));
    if (at < 0 || x->max_new < 2 || !x->n_prompt)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: a line of a trace is {\"atNs\":..,\"maxNew\":2..,\"nPrompt\":1..}",
                       path);
    x->at_ns = (uint64_t)at;
    return 0;
}

int cli__trace_read(ht_arena *a, const char *path, uint32_t n, ht_arrival **out, ht_err *e)
{
    char *text;
    size_t len;
    uint32_t k = 0;
    ht_arrival *x = ht_arena_array(a, n, sizeof *x);
    if (!x) return HT_FAIL(e, HT_ENOMEM, "trace: no memory for %u arrivals", n);
    HT_TRY(cli__read_file(path, CLI_TEXT_MAX, &text, &len, e));
    int rc = 0;
    for (const char *p = text, *end = text + len, *nl; !rc && k < n && p < end; p = nl + 1) {
        nl = memchr(p, '\n', (size_t)(end - p));
        if (!nl) nl = end;
        if (nl == p) continue;
        rc = read_line(a, path, p, (size_t)(nl - p), &x[k], e);
        if (!rc && k && x[k].at_ns < x[k - 1].at_ns)
            rc = HT_FAIL(e, HT_EFORMAT, "%s: line %u is earlier than the one before", path, k + 1);
        k++;
    }
    ht_mem_free(text);
    HT_TRY(rc);
    if (k < n || x[n - 1].at_ns == x[0].at_ns)
        return HT_FAIL(e, HT_EARG, "%s: %u arrivals at different times are needed, there are %u",
                       path, n, k);
    *out = x;
    return 0;
}
