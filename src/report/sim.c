/* sim.c - the page of a simulation: a banner, a frame of dashes, its own words. Only the command
 * line may link this; the library has no reader of simulations. */
#include "report/priv.h"
#include <string.h>

enum { MAX_SERIES = 64 };

/* A box without dots: the distribution is all there is. */
static int series(ht_arena *a, const ht_json *results, ht_buf *b, ht_err *e)
{
    double *ends = ht_arena_array(a, 2 * results->n + 1, sizeof *ends);
    if (!ends) return HT_FAIL(e, HT_ENOMEM, "report: out of memory");
    for (size_t i = 0; i < results->n; i++) {
        const ht_json *s = &results->at[i];
        ends[2 * i] = report__num(s, "min", 0);
        ends[2 * i + 1] = report__num(s, "max", 0);
        const report__row row = {.label = "least and greatest as dots, quartiles as box, median",
                                 .cls = "n",
                                 .dot = ends + 2 * i,
                                 .n = 2,
                                 .has_box = true,
                                 .lo = report__num(s, "p25", 0),
                                 .mid = report__num(s, "median", 0),
                                 .hi = report__num(s, "p75", 0)};
        const char *title = ht_arena_printf(a, "Simulated: %s", s->key);
        if (!title) return HT_FAIL(e, HT_ENOMEM, "report: out of memory");
        report__strips(b, title, s->key, &row, 1, NULL, 0);
    }
    return 0;
}

static void table(const ht_json *results, ht_buf *b)
{
    static const char *const col[] = {"n", "min", "p25", "median", "p75", "p95", "max", "mean"};
    report__table(b, "result|n|min|p25|median|p75|p95|max|mean");
    for (size_t i = 0; i < results->n; i++) {
        report__tr(b);
        report__td(b, "", results->at[i].key);
        for (size_t k = 0; k < sizeof col / sizeof col[0]; k++) {
            report__cell(b, "num");
            report__fixed(b, report__num(&results->at[i], col[k], 0), 0);
            report__cell_end(b);
        }
        report__tr_end(b);
    }
    report__table_end(b);
}

static void members(const ht_json *obj, ht_buf *b)
{
    report__facts(b);
    for (size_t i = 0; obj && i < obj->n; i++) {
        report__fact(b, obj->at[i].key);
        report__fixed(b, obj->at[i].d, 0);
        report__fact_end(b);
    }
    report__facts_end(b);
}

static bool says_no(const ht_json *j, const char *key)
{
    const ht_json *v = ht_json_get(j, key);
    return v && v->type == HT_JBOOL && !v->b;
}

int report__sim(ht_arena *a, const ht_json *j, const char *name, ht_buf *b, ht_err *e)
{
    const ht_json *results = ht_json_get(j, "results"), *inputs = ht_json_get(j, "inputs");
    if (!says_no(j, "hardwareEvidence") || !says_no(j, "productionEligible") ||
        strncmp(report__str(j, "id", ""), "sim-", 4) != 0)
        return HT_FAIL(e, HT_EFORMAT,
                       "UNKNOWN_TYPE: %.80s is a simulation that claims to be evidence; make it "
                       "anew with hetero sim",
                       name);
    if (!results || results->type != HT_JOBJ || !results->n || results->n > MAX_SERIES || !inputs ||
        inputs->type != HT_JOBJ)
        return HT_FAIL(e, HT_EFORMAT, "%.80s: a simulation without inputs or results", name);
    report__open(b, "Hetero: a simulation, not a measurement", "simulated");
    report__p(b, "banner",
              "SIMULATION. Nothing on this page was measured. It is no hardware evidence and not "
              "eligible for production, and no route may rest on it.");
    report__facts(b);
    report__fact(b, "Caveat");
    report__text(b, report__str(j, "caveat", "none given"));
    report__fact_end(b);
    report__fact(b, "Kind and seed");
    report__text(b, report__str(j, "kind", "?"));
    ht_buf_str(b, ", seed ");
    report__fixed(b, report__num(j, "seed", 0), 0);
    report__fact_end(b);
    report__fact(b, "Record");
    report__text(b, report__str(j, "id", "?"));
    report__fact_end(b);
    report__facts_end(b);
    report__h2(b, "Results, simulated");
    HT_TRY(series(a, results, b, e));
    table(results, b);
    report__h2(b, "Declared inputs");
    members(inputs, b);
    const ht_json *derived = ht_json_get(j, "derived");
    if (derived && derived->type == HT_JOBJ && derived->n) {
        report__h2(b, "Derived from the inputs alone");
        members(derived, b);
    }
    report__close(b);
    return 0;
}
