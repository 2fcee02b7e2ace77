/* sched.c - the page of a scheduler experiment (hetero qualify scheduler): verdict and gates first,
 * then what ran, then each scenario with prompts serialised (A) and in shared passes (B). */
#include "report/priv.h"
#include <string.h>

enum { RATIOS_MAX = 256 };
enum { D_ANALYSIS, D_DESIGN, DOCS };
static const report__doc docs[DOCS] = {{"analysis/sched.json", "hetero/sched/1"},
                                       {"design.json", "hetero/scheddesign/1"}};

typedef struct {
    ht_arena *a;
    ht_buf *b;
    const ht_json *doc[DOCS];
} page;

static void verdict(page *g)
{
    const ht_json *v = g->doc[D_ANALYSIS], *gates = report__list(v, "gates");
    const char *cls = report__str(v, "class", "?");
    bool any = false;
    ht_buf_fmt(g->b, "<div class=\"box %s\"><p>Verdict: <strong>",
               strcmp(cls, "QUALIFIED") == 0 ? "good" : "bad");
    report__text(g->b, cls);
    ht_buf_str(g->b, "</strong>.</p><p>Gates not passed:</p><ul class=\"gates\">");
    for (size_t i = 0; gates && i < gates->n; i++) {
        const char *result = report__str(&gates->at[i], "result", "?");
        if (strcmp(result, "PASS") == 0) continue;
        any = true;
        ht_buf_str(g->b, "<li class=\"fail\">");
        report__fmt(g->b, "%s: %s (%s)", report__str(&gates->at[i], "gate", "?"), result,
                    report__str(&gates->at[i], "why", "?"));
        ht_buf_str(g->b, "</li>\n");
    }
    if (!any) ht_buf_str(g->b, "<li class=\"pass\">none</li>");
    ht_buf_str(g->b, "<li class=\"dim\">guards that were red: ");
    report__words(g->b, report__list(v, "guardsRed"));
    ht_buf_str(g->b, "</li><li class=\"dim\">guards this machine does not show: ");
    report__words(g->b, report__list(v, "guardsUnknown"));
    ht_buf_str(g->b, "</li></ul></div>\n");
    if (report__true(g->doc[D_DESIGN], "synthetic"))
        report__p(g->b, "banner", "This bundle is synthetic: its times come from no hardware.");
    report__p(g->b, "dim",
              "This page shows what the bundle's documents say. It verified no signature and "
              "recomputed nothing: hetero verify does. The result holds for this model, binary, "
              "machine, context, slots, threads and objective, and for nothing else.");
}

static void interval(page *g, const char *name, const char *path)
{
    const ht_json *s = ht_json_path(g->doc[D_ANALYSIS], path);
    report__fact(g->b, name);
    if (report__num(s, "n", 0) > 0) {
        report__ratio(g->b, report__num(s, "hlPpm", 0));
        ht_buf_str(g->b, ", 95 % interval ");
        report__ratio(g->b, report__num(s, "loPpm", 0));
        ht_buf_str(g->b, " to ");
        report__ratio(g->b, report__num(s, "hiPpm", 0));
        report__fmt(g->b, ", %.0f pairs", report__num(s, "n", 0));
    } else {
        ht_buf_str(g->b, "not known");
    }
    report__fact_end(g->b);
}

static void experiment(page *g)
{
    const ht_json *d = g->doc[D_DESIGN], *v = g->doc[D_ANALYSIS];
    report__h2(g->b, "What was run");
    report__facts(g->b);
    report__fact(g->b, "Server");
    report__fmt(g->b, "%s, context %.0f, %.0f slots, %.0f threads, model %.16s...",
                report__str(d, "scope.backend", "?"), report__num(d, "scope.ctxMax", 0),
                report__num(d, "scope.slots", 0), report__num(d, "scope.threads", 0),
                report__str(d, "scope.modelPackSha256", "?"));
    report__fact_end(g->b);
    report__fact(g->b, "Objective");
    report__fmt(g->b, "first token within %.0f ms, then %.0f ms a token",
                report__num(d, "scope.sloMs.ttft", 0), report__num(d, "scope.sloMs.tpot", 0));
    report__fact_end(g->b);
    report__fact(g->b, "Load");
    report__fmt(g->b, "%.0f requests a run, order %s, saturation at %.3f requests a second",
                report__num(d, "requests", 0), report__str(d, "order", "?"),
                report__num(v, "saturationMicroHz", 0) / 1e6);
    report__fact_end(g->b);
    report__fact(g->b, "Outputs");
    report__fmt(g->b, "%.0f of %.0f answers have the same tokens in both arms",
                report__num(v, "outputsEqual", 0), report__num(v, "outputsCompared", 0));
    report__fact_end(g->b);
    interval(g, "Gain: time serialised over shared", "gain");
    interval(g, "Alone: time to the first token, serialised over shared", "singleFlowTtft");
    interval(g, "Alone: time a token, serialised over shared", "singleFlowTpot");
    report__fact(g->b, "Started");
    report__text(g->b, report__str(d, "startedUtc", "?"));
    report__fact_end(g->b);
    report__fact(g->b, "Bundle");
    report__text(g->b, report__str(v, "bundleId", "?"));
    report__fact_end(g->b);
    report__facts_end(g->b);
}

static void duration(page *g, const ht_json *arm, const char *median, const char *most)
{
    report__cell(g->b, "num");
    report__ns(g->b, report__num(arm, median, 0));
    ht_buf_str(g->b, " (");
    report__ns(g->b, report__num(arm, most, 0));
    ht_buf_char(g->b, ')');
    report__cell_end(g->b);
}

static void scenario(page *g, const ht_json *s)
{
    static const char *const arm[] = {"A", "B"}, *const name[] = {"serialised", "shared"};
    for (int k = 0; k < 2; k++) {
        const ht_json *x = ht_json_get(s, arm[k]);
        report__tr(g->b);
        report__cell(g->b, "");
        if (report__num(s, "ratePpm", 0) > 0)
            report__fmt(g->b, "%s at %.0f %%", report__str(s, "kind", "?"),
                        report__num(s, "ratePpm", 0) / 1e4);
        else report__text(g->b, report__str(s, "kind", "?"));
        report__cell_end(g->b);
        report__td(g->b, "", name[k]);
        duration(g, x, "ttft.p50Ns", "ttft.maxNs");
        duration(g, x, "e2e.p50Ns", "e2e.maxNs");
        report__cell(g->b, "num");
        report__fmt(g->b, "%.0f of %.0f", report__num(x, "good", 0), report__num(x, "offered", 0));
        report__cell_end(g->b);
        report__cell(g->b, "num");
        report__fmt(g->b, "%.0f of %.0f", report__num(x, "boundMisses", 0),
                    report__num(x, "bounds", 0));
        report__cell_end(g->b);
        report__tr_end(g->b);
    }
}

static void gain(page *g)
{
    const ht_json *v = g->doc[D_ANALYSIS], *ratios = report__list(v, "ratiosPpm");
    double dot[RATIOS_MAX];
    report__row row = {.label = "scenarios",
                       .cls = "b",
                       .dot = dot,
                       .has_box = report__num(v, "gain.n", 0) > 0,
                       .lo = report__num(v, "gain.loPpm", 0) / 1e6,
                       .mid = report__num(v, "gain.hlPpm", 0) / 1e6,
                       .hi = report__num(v, "gain.hiPpm", 0) / 1e6};
    for (size_t i = 0; ratios && i < ratios->n && row.n < RATIOS_MAX; i++)
        if (ratios->at[i].type == HT_JINT) dot[row.n++] = (double)ratios->at[i].i / 1e6;
    report__strips(g->b, "Every scenario: time serialised over time in shared passes",
                   "above 1 shared passes are faster", &row, 1, "equal", 1);
}

static int write_page(page *g, ht_err *e)
{
    const ht_json *s = report__list(g->doc[D_ANALYSIS], "scenarios");
    if (!s || !s->n) return HT_FAIL(e, HT_EFORMAT, "analysis/sched.json has no scenarios");
    report__open(g->b, "Hetero: prompts beside answers in a server", "measured");
    verdict(g);
    experiment(g);
    report__h2(g->b, "Scenarios");
    gain(g);
    report__table(g->b, "arrivals|passes|first token, median (max)|whole answer, median (max)|"
                        "within the objective|passes above their bound");
    for (size_t i = 0; i < s->n; i++) scenario(g, &s->at[i]);
    report__table_end(g->b);
    report__close(g->b);
    return ht_buf_ok(g->b, "report", e);
}

int ht_report_schedule(const char *dir, ht_buf *html, ht_err *e)
{
    page g = {.b = html};
    HT_TRY(ht_arena_new(&g.a, (size_t)1 << 28, e));
    int rc = report__docs(g.a, dir, docs, DOCS, g.doc, e);
    if (!rc) rc = write_page(&g, e);
    ht_arena_free(g.a);
    return rc;
}
