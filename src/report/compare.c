/* compare.c - the page of a comparison with a foreign server: verdict and limits first, then the
 * table of product.md R9 per context, the pairs, the null run, every failure. */
#include "evid/env.h"
#include "evid/manifest.h"
#include "report/priv.h"
#include <string.h>

enum { SAMPLES_MAX = 16 << 20, PAIRS_MAX = 64 };
enum { D_ANALYSIS, D_DESIGN, D_FOREIGN, D_MACHINE, D_PACK, DOCS };
static const report__doc docs[DOCS] = {{"analysis/compare.json", "hetero/comparison/1"},
                                       {"design.json", "hetero/comparedesign/1"},
                                       {"server/foreign.json", "hetero/foreignreceipt/1"},
                                       {"machine/before.json", "hetero/machine/1"},
                                       {"subject/modelpack.json", "hetero/modelpack/1"}};
static const struct {
    const char *metric, *name;
} shown[] = {{"ttftNs", "prefill"}, {"tpotNs", "decode per token"}, {"e2eNs", "complete"}};

typedef struct {
    ht_arena *a;
    ht_buf *b;
    const ht_json *doc[DOCS];
    const char *samples; /* samples.jsonl */
    uint64_t n_samples;
} page;

static int load(page *g, const char *dir, ht_err *e)
{
    HT_TRY(report__docs(g->a, dir, docs, DOCS, g->doc, e));
    return ht_read_under(g->a, dir, "samples.jsonl", SAMPLES_MAX, &g->samples, &g->n_samples, e);
}

static const char *name_of(const ht_json *metric)
{
    const char *m = report__str(metric, "metric", "?");
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        if (strcmp(m, shown[i].metric) == 0) return shown[i].name;
    return m;
}

/* Change of our time against the server's from a ratio in ppm: below 0 hetero is faster. */
static void change(page *g, const ht_json *m, const char *path)
{
    double ppm = report__num(m, path, 0);
    if (ppm <= 0) {
        ht_buf_str(g->b, "unknown");
        return;
    }
    double percent = 1e8 / ppm - 100;
    if (percent > 0) ht_buf_char(g->b, '+');
    report__fixed(g->b, percent, 1);
    ht_buf_str(g->b, " %");
}

/* ---- what decides ---- */

static void failed_gates(page *g)
{
    const ht_json *rows = report__list(g->doc[D_ANALYSIS], "rows");
    ht_buf_str(g->b, "<ul class=\"gates\">");
    ht_buf_str(g->b, "<li class=\"dim\">guards that were red: ");
    report__words(g->b, report__list(g->doc[D_ANALYSIS], "guardsRed"));
    ht_buf_str(g->b, "</li><li class=\"dim\">guards this machine does not show: ");
    report__words(g->b, report__list(g->doc[D_ANALYSIS], "guardsUnknown"));
    ht_buf_str(g->b, "</li>\n");
    bool any = false;
    for (size_t i = 0; rows && i < rows->n; i++) {
        const ht_json *metrics = report__list(&rows->at[i], "metrics");
        for (size_t k = 0; metrics && k < metrics->n; k++) {
            if (report__true(&metrics->at[k], "nullHolds")) continue;
            ht_buf_str(g->b, any ? ", "
                                 : "<li class=\"fail\">null run, this runtime against itself, too "
                                   "wide or without 1, so that differences of its size mean "
                                   "nothing: ");
            any = true;
            report__fmt(g->b, "C%.0f %s", report__num(&rows->at[i], "context", 0),
                        name_of(&metrics->at[k]));
        }
    }
    ht_buf_str(g->b, any ? "</li>\n</ul>\n" : "</ul>\n");
}

static void verdict(page *g)
{
    const char *cls = report__str(g->doc[D_ANALYSIS], "verdict", "?");
    ht_buf_fmt(g->b, "<div class=\"box %s\"><p>Verdict: <strong>",
               strcmp(cls, "COMPARED") == 0 ? "good" : "bad");
    report__text(g->b, cls);
    ht_buf_str(g->b, "</strong>. Hardware evidence: ");
    ht_buf_str(g->b, report__true(g->doc[D_DESIGN], "synthetic") ? "<strong>no</strong>" : "yes");
    ht_buf_str(g->b, ". A comparison admits no route.</p><p>What stands against it:</p>");
    failed_gates(g);
    ht_buf_str(g->b, "</div>\n");
    report__p(g->b, "dim",
              "This page shows what the bundle's documents say. It verified no signature and "
              "recomputed nothing: hetero verify does. The figures hold for this file, these "
              "settings and this machine in this hour, and for nothing else.");
}

/* ---- what was compared ---- */

static void fact(page *g, const char *name, const char *value)
{
    report__fact(g->b, name);
    report__text(g->b, value);
    report__fact_end(g->b);
}

static void machine(page *g)
{
    static const char *const field[] = {"reject.cpuName", "reject.isa", "reject.cores",
                                        "reject.hypervisor"};
    bool any = false;
    report__fact(g->b, "Machine");
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        const ht_json *leaf = ht_json_path(g->doc[D_MACHINE], field[i]);
        const char *text = leaf ? ht_machine_leaf_text(g->a, leaf) : NULL;
        if (!text || strcmp(text, "absent") == 0) continue;
        ht_buf_str(g->b, any ? ", " : "");
        report__fmt(g->b, "%s %s", strchr(field[i], '.') + 1, text);
        any = true;
    }
    report__fact_end(g->b);
}

static void compared(page *g)
{
    const ht_json *d = g->doc[D_DESIGN], *f = g->doc[D_FOREIGN];
    const ht_json *argv = report__list(f, "argv"), *files = report__list(g->doc[D_PACK], "files");
    report__h2(g->b, "What was compared");
    report__facts(g->b);
    machine(g);
    fact(g, "Model", files && files->n ? report__str(&files->at[0], "path", "?") : "?");
    fact(g, "Hetero", report__str(d, "arm", "?"));
    report__fact(g->b, "Foreign server");
    for (size_t i = 0; argv && i < argv->n; i++) {
        ht_buf_str(g->b, i ? " " : "");
        if (argv->at[i].type == HT_JSTR) report__text(g->b, argv->at[i].s);
    }
    if (!argv || !argv->n) report__text(g->b, report__str(d, "api", "?"));
    report__fmt(g->b, " (%s)", report__str(f, "build", "build not shown"));
    report__fact_end(g->b);
    report__fact(g->b, "Server's model");
    report__fmt(g->b, "%s, executed: %s", report__str(f, "model", "?"),
                report__str(f, "executed", "unproven"));
    report__fact_end(g->b);
    fact(g, "Prompt identity", report__str(g->doc[D_ANALYSIS], "class", "?"));
    report__fact(g->b, "Comparison boundary");
    ht_buf_str(g->b, "a client of this machine: from before the call or connection to the first "
                     "and the last token; greedy, one request at a time");
    report__fact_end(g->b);
    report__fact(g->b, "Repetitions");
    report__fmt(g->b,
                "%.0f pairs a context in rotated order, %.0f pairs of the null run before "
                "them, %.0f tokens each, spacing %.1f s",
                report__num(d, "repetitions", 0), report__num(d, "nullRepetitions", 0),
                report__num(d, "maxNew", 0), report__num(d, "spacingNs", 0) / 1e9);
    report__fact_end(g->b);
    report__fact(g->b, "Quality class");
    ht_buf_str(g->b, "not judged here: see outputs equal, token for token, in each table");
    report__fact_end(g->b);
    fact(g, "Started", report__str(d, "startedUtc", "?"));
    fact(g, "Bundle", report__str(g->doc[D_ANALYSIS], "bundleId", "?"));
    report__facts_end(g->b);
}

/* ---- one context ---- */

static void table_row(page *g, const ht_json *row, const ht_json *m)
{
    static const char *const side[] = {"hetero", "foreign"};
    report__tr(g->b);
    report__td(g->b, "", name_of(m));
    for (int k = 0; k < 2; k++) {
        const ht_json *t = ht_json_get(m, side[k]);
        report__cell(g->b, "num");
        if (report__num(t, "p50Ns", 0) > 0) {
            report__ns(g->b, report__num(t, "p50Ns", 0));
            ht_buf_str(g->b, " (");
            report__ns(g->b, report__num(t, "maxNs", 0));
            ht_buf_char(g->b, ')');
        } else {
            ht_buf_str(g->b, "all failed");
        }
        report__cell_end(g->b);
    }
    report__cell(g->b, "num");
    change(g, m, "result.hlPpm");
    report__cell_end(g->b);
    report__cell(g->b, "num");
    change(g, m, "result.hiPpm");
    ht_buf_str(g->b, " to ");
    change(g, m, "result.loPpm");
    report__cell_end(g->b);
    report__cell(g->b, "num");
    if (report__num(m, "result.n", 0) > 0)
        report__fmt(g->b, "%.0f of %.0f", report__num(m, "result.wins", 0),
                    report__num(row, "pairs", 0));
    else report__text(g->b, report__str(m, "result.reason", "?"));
    report__cell_end(g->b);
    report__cell(g->b, "num");
    if (report__num(m, "nullRun.n", 0) > 0) {
        report__ratio(g->b, report__num(m, "nullRun.loPpm", 0));
        ht_buf_str(g->b, " to ");
        report__ratio(g->b, report__num(m, "nullRun.hiPpm", 0));
    } else {
        ht_buf_str(g->b, "failed");
    }
    report__cell_end(g->b);
    report__tr_end(g->b);
}

/* Ratios of the pairs with their interval, and the interval of the null run. */
static int drawing(page *g, const ht_json *row, ht_err *e)
{
    const ht_json *metrics = report__list(row, "metrics");
    report__row strip[2 * sizeof shown / sizeof *shown] = {{0}};
    size_t n = 0;
    for (size_t k = 0; metrics && k < metrics->n && n + 2 <= sizeof strip / sizeof *strip; k++) {
        const ht_json *m = &metrics->at[k], *list = report__list(m, "ratiosPpm");
        double *v = ht_arena_array(g->a, PAIRS_MAX, sizeof *v);
        char *label = ht_arena_printf(g->a, "%s, null run", name_of(m));
        if (!v || !label) return HT_FAIL(e, HT_ENOMEM, "report: out of memory");
        size_t count = 0;
        for (size_t i = 0; list && i < list->n && count < PAIRS_MAX; i++)
            if (list->at[i].type == HT_JINT) v[count++] = (double)list->at[i].i / 1e6;
        strip[n++] = (report__row){.label = name_of(m),
                                   .cls = "b",
                                   .dot = v,
                                   .n = count,
                                   .has_box = report__num(m, "result.n", 0) > 0,
                                   .lo = report__num(m, "result.loPpm", 0) / 1e6,
                                   .mid = report__num(m, "result.hlPpm", 0) / 1e6,
                                   .hi = report__num(m, "result.hiPpm", 0) / 1e6};
        strip[n++] = (report__row){.label = label,
                                   .cls = "n",
                                   .dot = v,
                                   .has_box = report__num(m, "nullRun.n", 0) > 0,
                                   .lo = report__num(m, "nullRun.loPpm", 0) / 1e6,
                                   .mid = report__num(m, "nullRun.hlPpm", 0) / 1e6,
                                   .hi = report__num(m, "nullRun.hiPpm", 0) / 1e6};
    }
    report__strips(g->b, "Every pair: the server's time over hetero's", "above 1 hetero is faster",
                   strip, n, "equal", 1);
    return 0;
}

static int context(page *g, const ht_json *row, ht_err *e)
{
    const ht_json *metrics = report__list(row, "metrics");
    char *title = ht_arena_printf(g->a, "C%.0f", report__num(row, "context", 0));
    if (!title) return HT_FAIL(e, HT_ENOMEM, "report: out of memory");
    report__h2(g->b, title);
    HT_TRY(drawing(g, row, e));
    report__table(g->b,
                  "|hetero median (max)|server median (max)|change|95 % interval|wins|null run");
    for (size_t k = 0; metrics && k < metrics->n; k++) table_row(g, row, &metrics->at[k]);
    report__table_end(g->b);
    ht_buf_str(g->b, "<p>");
    report__fmt(g->b,
                "Failed: hetero %.0f, server %.0f, null run %.0f. Outputs equal, token for "
                "token: %.0f of the %.0f pairs in which both gave ids.",
                report__num(row, "failedHetero", 0), report__num(row, "failedForeign", 0),
                report__num(row, "failedNull", 0), report__num(row, "outputsEqual", 0),
                report__num(row, "outputsWithIds", 0));
    ht_buf_str(g->b, "</p>\n");
    return 0;
}

/* Every answer that was not good, with what it was. */
static int failures(page *g, ht_err *e)
{
    size_t n = 0;
    report__h2(g->b, "Failures");
    ht_buf_str(g->b, "<ul>");
    for (const char *p = g->samples, *end = p + g->n_samples, *nl; p < end; p = nl + 1) {
        ht_json *j;
        if (!(nl = memchr(p, '\n', (size_t)(end - p)))) break;
        HT_TRY(ht_json_parse(g->a, p, (size_t)(nl - p), HT_JSON_CANON, "samples.jsonl", &j, e));
        if (strcmp(report__str(j, "status", "?"), "ok") == 0) continue;
        n++;
        ht_buf_str(g->b, "<li class=\"fail\">");
        report__fmt(g->b, "pair %.0f slot %.0f, %s: %s: %s", report__num(j, "pair", 0),
                    report__num(j, "slot", 0), report__str(j, "arm", "?"),
                    report__str(j, "status", "?"), report__str(j, "why", ""));
        ht_buf_str(g->b, "</li>\n");
    }
    if (!n)
        ht_buf_str(g->b,
                   "<li>none: every answer was whole, as long as asked and counted as sent</li>");
    ht_buf_str(g->b, "</ul>\n");
    return 0;
}

static int write_page(page *g, ht_err *e)
{
    const ht_json *rows = report__list(g->doc[D_ANALYSIS], "rows");
    if (!rows || !rows->n) return HT_FAIL(e, HT_EFORMAT, "analysis/compare.json has no rows");
    report__open(g->b, "Hetero: comparison with a foreign server", "measured");
    verdict(g);
    compared(g);
    for (size_t i = 0; i < rows->n; i++) HT_TRY(context(g, &rows->at[i], e));
    HT_TRY(failures(g, e));
    report__close(g->b);
    return ht_buf_ok(g->b, "report", e);
}

int ht_report_comparison(const char *dir, ht_buf *html, ht_err *e)
{
    page g = {.b = html};
    HT_TRY(ht_arena_new(&g.a, (size_t)1 << 30, e));
    int rc = load(&g, dir, e);
    if (!rc) rc = write_page(&g, e);
    ht_arena_free(g.a);
    return rc;
}
