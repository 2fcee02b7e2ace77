/* bundle.c - the page of a bundle. What decides comes first: verdict, failed gates, limits; then
 * what was compared; then the drawings. */
#include "evid/env.h"
#include "evid/manifest.h"
#include "report/samples.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SAMPLES_MAX = 256 << 20 };
enum {
    D_VERDICT,
    D_COSTMAP,
    D_PAIRS,
    D_STATS,
    D_TAILS,
    D_QUALITY,
    D_DESIGN,
    D_MACHINE,
    D_PACK,
    D_SOURCE,
    DOCS
};
static const report__doc docs[DOCS] = {{"verdict.json", "hetero/verdict/1"},
                                       {"costmap.json", "hetero/costmap/1"},
                                       {"analysis/pairs.json", "hetero/pairs/1"},
                                       {"analysis/stats.json", "hetero/stats/1"},
                                       {"analysis/tails.json", "hetero/tails/1"},
                                       {"analysis/quality.json", "hetero/quality/1"},
                                       {"design.json", "hetero/design/1"},
                                       {"machine/before.json", "hetero/machine/1"},
                                       {"subject/modelpack.json", "hetero/modelpack/1"},
                                       {"build/source.json", "hetero/source/1"}};

typedef struct {
    ht_arena *a;
    ht_buf *b;
    const ht_json *doc[DOCS];
    report__sample *sample;
    size_t n_samples;
    double *scratch[2]; /* [n_samples] each */
} page;

static int load(page *g, const char *dir, ht_err *e)
{
    const char *text;
    uint64_t n;
    HT_TRY(report__docs(g->a, dir, docs, DOCS, g->doc, e));
    HT_TRY(ht_read_under(g->a, dir, "samples.jsonl", SAMPLES_MAX, &text, &n, e));
    HT_TRY(report__samples(g->a, text, n, &g->sample, &g->n_samples, e));
    for (int k = 0; k < 2; k++) {
        g->scratch[k] = ht_arena_array(g->a, g->n_samples + 1, sizeof **g->scratch);
        if (!g->scratch[k]) return HT_FAIL(e, HT_ENOMEM, "report: out of memory");
    }
    return 0;
}

/* The cell of a document with this id, or NULL. */
static const ht_json *cell_of(const ht_json *doc, const char *id)
{
    const ht_json *cells = report__list(doc, "cells");
    for (size_t i = 0; cells && i < cells->n; i++)
        if (strcmp(report__str(&cells->at[i], "id", ""), id) == 0) return &cells->at[i];
    return NULL;
}

/* ---- verdict and limits --------------------------------------------------------------------- */

static const char *result_class(const char *result)
{
    if (strcmp(result, "PASS") == 0) return "pass";
    return strcmp(result, "NOT_APPLICABLE") == 0 ? "dim" : "fail";
}

static void failed_gates(page *g)
{
    const ht_json *cells = report__list(g->doc[D_VERDICT], "cells");
    bool any = false;
    ht_buf_str(g->b, "<ul class=\"gates\">");
    for (size_t i = 0; cells && i < cells->n; i++) {
        const ht_json *gates = report__list(&cells->at[i], "gates");
        for (size_t k = 0; gates && k < gates->n; k++) {
            const char *result = report__str(&gates->at[k], "result", "?");
            if (strcmp(result, "PASS") == 0) continue;
            any = true;
            ht_buf_fmt(g->b, "<li class=\"%s\">", result_class(result));
            report__fmt(g->b, "%s: gate %s: %s (%s)", report__str(&cells->at[i], "id", "?"),
                        report__str(&gates->at[k], "gate", "?"), result,
                        report__str(&gates->at[k], "reason", "?"));
            ht_buf_str(g->b, "</li>\n");
        }
    }
    if (!any) ht_buf_str(g->b, "<li class=\"pass\">none</li>");
    ht_buf_str(g->b, "</ul>\n");
}

static void verdict(page *g)
{
    const ht_json *v = g->doc[D_VERDICT];
    const char *cls = report__str(v, "class", "?");
    bool good = strcmp(cls, "QUALIFIED") == 0, hardware = report__true(v, "hardwareEvidence");
    ht_buf_fmt(g->b, "<div class=\"box %s\"><p>Verdict: <strong>", good ? "good" : "bad");
    report__text(g->b, cls);
    ht_buf_str(g->b, "</strong>. Hardware evidence: ");
    ht_buf_str(g->b, hardware ? "yes" : "<strong>no</strong>");
    ht_buf_str(g->b, ". Eligible for production: ");
    ht_buf_str(g->b, report__true(v, "productionEligible") ? "yes" : "<strong>no</strong>");
    ht_buf_str(g->b, ".</p><p>Gates not passed:</p>");
    failed_gates(g);
    ht_buf_str(g->b, "</div>\n");
    if (!hardware)
        report__p(g->b, "banner", "This bundle is synthetic: its times come from no hardware.");
    if (report__true(g->doc[D_SOURCE], "dirty"))
        report__p(g->b, "fail", "Built from a source tree with uncommitted changes.");
    report__p(
        g->b, "dim",
        "This page shows what the bundle's documents say. It verified no signature and "
        "recomputed nothing: hetero verify does. The result holds for the scope below, on the "
        "machine below, and for nothing else.");
}

/* ---- what was compared ---------------------------------------------------------------------- */

static void machine(page *g)
{
    static const char *const first[] = {"cpuName",    "cpuVendor",   "arch",        "isa",
                                        "cores",      "cpuQuotaPpm", "ramClassGib", "gpus",
                                        "hypervisor", "distro",      "kernel"};
    const ht_json *m = g->doc[D_MACHINE];
    size_t shown = 0;
    report__fact(g->b, "Machine");
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++)
        for (int p = 0; p < HT_MP_PARTS; p++) {
            const ht_json *leaf = ht_json_get(ht_json_get(m, ht_machine_part_names[p]), first[i]);
            if (!leaf) continue;
            const char *text = ht_machine_leaf_text(g->a, leaf);
            report__fmt(g->b, "%s%s %s", shown++ ? "; " : "", first[i], text ? text : "?");
        }
    const ht_json *cells = report__list(g->doc[D_DESIGN], "cells");
    report__fmt(g->b, "%sclass %.16s..., system %s", shown ? "; " : "",
                report__str(&cells->at[0], "scope.machineClassSha256", "?"),
                report__str(&cells->at[0], "scope.os", "?"));
    report__fact_end(g->b);
}

static void model(page *g)
{
    const ht_json *files = report__list(g->doc[D_PACK], "files");
    report__fact(g->b, "Model");
    for (size_t i = 0; files && i < files->n; i++) {
        report__fmt(g->b, "%s (", report__str(&files->at[i], "path", "?"));
        report__bytes(g->b, report__num(&files->at[i], "bytes", 0));
        ht_buf_str(g->b, "), ");
    }
    report__fmt(g->b, "sha256 %s", report__str(g->doc[D_PACK], "sha256", "?"));
    report__fact_end(g->b);
}

static void precision_of(ht_buf *b, const ht_json *scope)
{
    report__fmt(b, "weights %s, activations %s, accumulation %s, KV %s",
                report__str(scope, "precision.weights", "?"),
                report__str(scope, "precision.act", "?"), report__str(scope, "precision.acc", "?"),
                report__str(scope, "precision.kv", "?"));
}

static void quality_class(page *g)
{
    const ht_json *q = g->doc[D_QUALITY];
    double prompts = report__num(q, "counts.prompts", 0),
           exact = report__num(q, "counts.exactPrompts", 0);
    double positions = report__num(q, "counts.positions", 0),
           tasks = report__num(q, "counts.tasks", 0);
    report__fact(g->b, "Quality class");
    if (!(prompts > 0)) {
        ht_buf_str(g->b, "not measured");
        report__fact_end(g->b);
        return;
    }
    ht_buf_str(g->b, exact == prompts ? "exact on the corpus: " : "approximate: ");
    report__fmt(g->b, "%.0f of %.0f prompts continue token for token as the reference does", exact,
                prompts);
    report__fmt(g->b, "; %.0f of %.0f tokens agree", report__num(q, "counts.tokensAgree", 0),
                report__num(q, "counts.tokens", 0));
    if (positions > 0) {
        report__fmt(g->b, "; top-1 agreement %.0f of %.0f positions, mean divergence ",
                    report__num(q, "counts.top1", 0), positions);
        report__fixed(g->b, report__num(q, "counts.kldSumNano", 0) / positions / 1e9, 6);
        ht_buf_str(g->b, " nat");
    }
    if (tasks > 0)
        report__fmt(g->b,
                    "; task: %.0f items, %.0f right by the reference only, %.0f by the candidate "
                    "only",
                    tasks, report__num(q, "counts.tasksLost", 0),
                    report__num(q, "counts.tasksWon", 0));
    report__fact_end(g->b);
}

static void boundary(page *g)
{
    const ht_json *d = g->doc[D_DESIGN];
    report__fact(g->b, "Comparison boundary");
    ht_buf_str(g->b,
               "one machine, one binary, a fresh process for each slot, prompts as token ids and "
               "disjoint between pairs, times from the intended start of a request on the "
               "monotonic clock; ");
    report__fmt(g->b, "%.0f warm-up requests not counted; spacing ",
                report__num(d, "warmupRequests", 0));
    report__ns(g->b, report__num(d, "spacingNs", 0));
    report__fact_end(g->b);
    report__fact(g->b, "Repetitions");
    report__fmt(g->b,
                "%.0f pairs in blocks of %s, %.0f pairs of the null run (reference against "
                "itself), %.0f requests a slot and cell",
                report__num(d, "pairs", 0), report__str(d, "blocks", "?"),
                report__num(d, "nullPairs", 0), report__num(d, "requestsPerSlot", 0));
    report__fact_end(g->b);
}

static void compared(page *g)
{
    report__h2(g->b, "What was compared");
    report__facts(g->b);
    machine(g);
    model(g);
    boundary(g);
    quality_class(g);
    report__fact(g->b, "Policy");
    report__fmt(g->b, "sha256 %s", report__str(g->doc[D_VERDICT], "policySha256", "?"));
    report__fact_end(g->b);
    report__fact(g->b, "Bundle");
    report__text(g->b, report__str(g->doc[D_VERDICT], "bundleId", "?"));
    report__fact_end(g->b);
    report__fact(g->b, "Source");
    report__fmt(g->b, "commit %s, started %s", report__str(g->doc[D_SOURCE], "commit", "?"),
                report__str(g->doc[D_DESIGN], "startedUtc", "?"));
    report__fact_end(g->b);
    report__facts_end(g->b);
}

/* ---- a cell --------------------------------------------------------------------------------- */

static void arm_fact(ht_buf *b, const char *name, const ht_json *scope)
{
    report__fact(b, name);
    report__fmt(b, "%s; ", report__str(scope, "backend", "?"));
    precision_of(b, scope);
    report__fact_end(b);
}

static void scope_facts(page *g, const ht_json *cell)
{
    const ht_json *s = ht_json_get(cell, "scope");
    report__facts(g->b);
    arm_fact(g->b, "Reference (A)", ht_json_get(cell, "refScope"));
    arm_fact(g->b, "Candidate (B)", s);
    report__fact(g->b, "Phase");
    report__fmt(g->b, "%s, %.0f to %.0f tokens, judged by %s", report__str(s, "phase", "?"),
                report__num(s, "bucket.minTokens", 0), report__num(s, "bucket.maxTokens", 0),
                report__str(cell, "metric", "?"));
    report__fact_end(g->b);
    report__fact(g->b, "Sampler");
    report__fmt(g->b, "%s, speculation %s, batch %.0f to %.0f, context at most %.0f",
                report__str(s, "sampler", "?"), report__str(s, "spec", "?"),
                report__num(s, "batch.min", 0), report__num(s, "batch.max", 0),
                report__num(s, "ctxMax", 0));
    report__fact_end(g->b);
    report__facts_end(g->b);
}

static void gate_table(page *g, const char *id)
{
    const ht_json *gates = report__list(cell_of(g->doc[D_VERDICT], id), "gates");
    report__table(g->b, "gate|result|reason");
    for (size_t i = 0; gates && i < gates->n; i++) {
        const char *result = report__str(&gates->at[i], "result", "?");
        report__tr(g->b);
        report__td(g->b, "", report__str(&gates->at[i], "gate", "?"));
        report__td(g->b, result_class(result), result);
        report__td(g->b, "dim", report__str(&gates->at[i], "reason", "?"));
        report__tr_end(g->b);
    }
    report__table_end(g->b);
}

/* Ratios of a list of pairs, 1 = no difference; a failed candidate has 0. */
static double *ratios(page *g, const ht_json *list, size_t *n)
{
    double *v = ht_arena_array(g->a, list ? list->n + 1 : 1, sizeof *v);
    *n = 0;
    for (size_t i = 0; v && list && i < list->n; i++)
        v[(*n)++] = report__num(&list->at[i], "ratioPpm", 0) / 1e6;
    return v;
}

static void stat_line(page *g, const char *name, const ht_json *s)
{
    ht_buf_str(g->b, "<p>");
    report__fmt(g->b, "%s: ", name);
    if (report__num(s, "n", 0) > 0) {
        ht_buf_str(g->b, "ratio ");
        report__ratio(g->b, report__num(s, "hlPpm", 0));
        ht_buf_str(g->b, ", 95 % interval ");
        report__ratio(g->b, report__num(s, "loPpm", 0));
        ht_buf_str(g->b, " to ");
        report__ratio(g->b, report__num(s, "hiPpm", 0));
        report__fmt(g->b, "; of %.0f pairs %.0f won, %.0f tied, %.0f lost", report__num(s, "n", 0),
                    report__num(s, "wins", 0), report__num(s, "ties", 0),
                    report__num(s, "losses", 0));
    } else {
        report__fmt(g->b, "no statistics (%s)", report__str(s, "reason", "?"));
    }
    ht_buf_str(g->b, "</p>\n");
}

static void set_box(report__row *r, const ht_json *s)
{
    r->has_box = report__num(s, "n", 0) > 0;
    r->lo = report__num(s, "loPpm", 0) / 1e6;
    r->mid = report__num(s, "hlPpm", 0) / 1e6;
    r->hi = report__num(s, "hiPpm", 0) / 1e6;
}

static int pair_plot(page *g, const char *id, ht_err *e)
{
    const ht_json *p = cell_of(g->doc[D_PAIRS], id), *s = cell_of(g->doc[D_STATS], id);
    report__row row[2] = {{.label = "candidate against reference, a dot a pair", .cls = "b"},
                          {.label = "null run: reference against itself", .cls = "n"}};
    row[0].dot = ratios(g, report__list(p, "pairs"), &row[0].n);
    row[1].dot = ratios(g, report__list(p, "nullPairs"), &row[1].n);
    if (!row[0].dot || !row[1].dot) return HT_FAIL(e, HT_ENOMEM, "report: out of memory");
    set_box(&row[0], ht_json_get(s, "main"));
    set_box(&row[1], ht_json_get(s, "nullRun"));
    stat_line(g, "Candidate", ht_json_get(s, "main"));
    stat_line(g, "Null run", ht_json_get(s, "nullRun"));
    report__strips(g->b, "Pair ratios with 95 % interval", "reference time / candidate time", row,
                   2, "no difference; right of it the candidate is faster", 1);
    return 0;
}

static int metric_of(const ht_json *cell)
{
    const char *name = report__str(cell, "metric", "");
    int m = 0;
    while (report__metric_names[m] && strcmp(report__metric_names[m], name) != 0) m++;
    return m < REPORT_METRICS ? m : REPORT_TTFT;
}

/* Both arms' times in ms with the box of their quartiles. */
static void latency_plot(page *g, const char *id, int metric)
{
    static const char arm[2] = {'A', 'B'};
    report__row row[2] = {{.label = "reference (A): dots, quartiles, median", .cls = "a"},
                          {.label = "candidate (B): dots, quartiles, median", .cls = "b"}};
    char title[80];
    for (int k = 0; k < 2; k++) {
        double *v = g->scratch[k];
        size_t n = report__pick(g->sample, g->n_samples, id, arm[k], metric, v);
        for (size_t i = 0; i < n; i++) v[i] /= 1e6;
        row[k].dot = v;
        row[k].n = n;
        row[k].has_box = n > 0;
        if (!n) continue;
        row[k].lo = report__quantile(v, n, 25);
        row[k].mid = report__quantile(v, n, 50);
        row[k].hi = report__quantile(v, n, 75);
    }
    snprintf(title, sizeof title, "Latency distribution: %s", report__metric_names[metric]);
    report__strips(g->b, title, "ms", row, 2, NULL, 0);
}

static void tail_line(page *g, const char *id)
{
    const ht_json *t = cell_of(g->doc[D_TAILS], id);
    ht_buf_str(g->b, "<p>");
    report__fmt(g->b, "Tail: %s; %.0f of %.0f requests above the limit of ",
                report__str(t, "result", "?"), report__num(t, "misses", 0),
                report__num(t, "requests", 0));
    report__ns(g->b, report__num(t, "sloNs", 0));
    report__fmt(g->b, ", at most %.0f in one pair; upper bound of the 95th percentile ",
                report__num(t, "worstPair", 0));
    if (report__num(t, "p95UcbNs", 0) > 0) report__ns(g->b, report__num(t, "p95UcbNs", 0));
    else report__fmt(g->b, "unknown (%s)", report__str(t, "p95UcbNs.reason", "?"));
    ht_buf_str(g->b, "</p>\n");
}

static int cells(page *g, ht_err *e)
{
    const ht_json *list = report__list(g->doc[D_DESIGN], "cells");
    for (size_t i = 0; i < list->n; i++) {
        const ht_json *cell = &list->at[i];
        const char *id = report__str(cell, "id", "");
        ht_buf_str(g->b, "<h2>Cell ");
        report__fmt(g->b, "%s: %s", id, report__str(cell_of(g->doc[D_VERDICT], id), "class", "?"));
        ht_buf_str(g->b, "</h2>\n");
        scope_facts(g, cell);
        HT_TRY(pair_plot(g, id, e));
        latency_plot(g, id, metric_of(cell));
        tail_line(g, id);
        gate_table(g, id);
    }
    return 0;
}

/* ---- phases, guards, costs ------------------------------------------------------------------ */

enum { MAX_BARS = 64 };

/* Medians of time to first token and of what follows, a bar for each cell and arm. */
static int phases(page *g, ht_err *e)
{
    static const char *const part[2] = {"to the first token (prefill)", "after it (decode)"};
    const ht_json *list = report__list(g->doc[D_DESIGN], "cells");
    const char *label[MAX_BARS];
    double value[MAX_BARS * 2];
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++)
        for (int k = 0; k < 2 && n < MAX_BARS; k++) {
            const char *id = report__str(&list->at[i], "id", ""), arm = "AB"[k];
            double *v = g->scratch[0];
            size_t m = report__pick(g->sample, g->n_samples, id, arm, REPORT_TTFT, v);
            if (!m) continue;
            value[2 * n] = report__quantile(v, m, 50);
            m = report__pick(g->sample, g->n_samples, id, arm, REPORT_E2E, v);
            double all = m ? report__quantile(v, m, 50) : value[2 * n];
            value[2 * n + 1] = all > value[2 * n] ? all - value[2 * n] : 0;
            label[n] = ht_arena_printf(g->a, "%s, %s", id, k ? "candidate" : "reference");
            if (!label[n++]) return HT_FAIL(e, HT_ENOMEM, "report: out of memory");
        }
    report__h2(g->b, "Phases");
    report__bars(g->b, "Medians of a request by phase", label, value, n, part, 2);
    report__table(g->b, "cell and arm|to the first token|after it");
    for (size_t i = 0; i < n; i++) {
        report__tr(g->b);
        report__td(g->b, "", label[i]);
        for (size_t k = 0; k < 2; k++) {
            report__cell(g->b, "num");
            report__ns(g->b, value[2 * i + k]);
            report__cell_end(g->b);
        }
        report__tr_end(g->b);
    }
    report__table_end(g->b);
    return 0;
}

static int guards(page *g, ht_err *e)
{
    report__mark *mark = ht_arena_array(g->a, g->n_samples + 1, sizeof *mark);
    size_t n = 0, voids = 0, fails = 0, unknown = 0;
    if (!mark) return HT_FAIL(e, HT_ENOMEM, "report: out of memory");
    for (size_t i = 0; i < g->n_samples; i++) {
        const report__sample *s = &g->sample[i];
        bool is_void =
            strcmp(s->status, "voidGuard") == 0 || strcmp(s->status, "harnessError") == 0;
        bool bad = !is_void && strcmp(s->status, "ok") != 0;
        voids += is_void || !s->counted;
        fails += bad;
        unknown += s->unknown[0] != 0;
        mark[n].cls = bad                      ? "fail"
                      : is_void || !s->counted ? "void"
                      : s->unknown[0]          ? "unknown"
                                               : "ok";
        snprintf(mark[n++].title, sizeof mark->title,
                 "%.20s block %u slot %u arm %c attempt %u: %.20s%s%.30s", s->bucket, s->block,
                 s->slot, s->arm, s->attempt, s->status, s->void_reason ? ", " : "",
                 s->void_reason ? s->void_reason : "");
    }
    report__h2(g->b, "Guards, in order of time");
    ht_buf_str(g->b, "<p>");
    report__fmt(g->b,
                "%zu samples, every attempt kept: %zu void or run again, %zu failed, %zu with a "
                "guard that the machine does not show%s%s",
                n, voids, fails, unknown, unknown ? ": " : "", unknown ? g->sample[0].unknown : "");
    ht_buf_str(g->b, "</p>\n");
    report__grid(g->b, "A square a sample", mark, n);
    return 0;
}

static void cost_row(page *g, const ht_json *x, bool negative)
{
    static const char *const cost[] = {"costNs.p50", "costNs.p50Ucb", "costNs.refP50Lcb"};
    report__tr(g->b);
    report__cell(g->b, "");
    report__fmt(g->b, "%.16s...", report__str(x, "scopeSha256", "?"));
    report__cell_end(g->b);
    report__td(g->b, negative ? "fail" : "pass",
               negative ? report__str(x, "verdict", "?") : "entry");
    report__cell(g->b, "num");
    if (report__num(x, "ratioPpm.hl", 0) > 0) report__ratio(g->b, report__num(x, "ratioPpm.hl", 0));
    else report__text(g->b, report__str(x, "ratioPpm.reason", "?"));
    report__cell_end(g->b);
    for (int k = 0; k < 3; k++) {
        report__cell(g->b, "num");
        if (report__num(x, cost[k], 0) > 0) report__ns(g->b, report__num(x, cost[k], 0));
        report__cell_end(g->b);
    }
    report__cell(g->b, "num");
    if (!negative) report__bytes(g->b, report__num(x, "memPeakBytes", 0));
    report__cell_end(g->b);
    report__tr_end(g->b);
}

static void costs(page *g)
{
    const ht_json *c = g->doc[D_COSTMAP], *entries = report__list(c, "entries");
    const ht_json *negatives = report__list(c, "negatives"), *edges = report__list(c, "edges");
    report__h2(g->b, "Cost map");
    report__table(g->b,
                  "scope|result|ratio|p50|p50 upper bound|reference p50 lower bound|peak memory");
    for (size_t i = 0; entries && i < entries->n; i++) cost_row(g, &entries->at[i], false);
    for (size_t i = 0; negatives && i < negatives->n; i++) cost_row(g, &negatives->at[i], true);
    report__table_end(g->b);
    if (!edges || !edges->n) {
        report__p(g->b, "dim",
                  "No hand-off was measured: prefill and decode on different engines "
                  "cannot be planned from this bundle.");
        return;
    }
    report__table(g->b, "hand-off|from|to|fixed|per token");
    for (size_t i = 0; i < edges->n; i++) {
        const ht_json *x = &edges->at[i];
        report__tr(g->b);
        report__td(g->b, "", report__str(x, "kind", "?"));
        report__td(g->b, "", report__str(x, "from", "?"));
        report__td(g->b, "", report__str(x, "to", "?"));
        report__cell(g->b, "num");
        report__ns(g->b, report__num(x, "fixedNs", 0));
        report__cell_end(g->b);
        report__cell(g->b, "num");
        report__ns(g->b, report__num(x, "nsPerToken", 0));
        report__cell_end(g->b);
        report__tr_end(g->b);
    }
    report__table_end(g->b);
}

static void machine_details(page *g)
{
    report__h2(g->b, "The machine in full");
    report__table(g->b, "part|field|value");
    for (int p = 0; p < HT_MP_PARTS; p++) {
        const ht_json *part = ht_json_get(g->doc[D_MACHINE], ht_machine_part_names[p]);
        for (size_t i = 0; part && part->type == HT_JOBJ && i < part->n; i++) {
            const char *text = ht_machine_leaf_text(g->a, &part->at[i]);
            report__tr(g->b);
            report__td(g->b, "dim", ht_machine_part_names[p]);
            report__td(g->b, "", part->at[i].key);
            report__td(g->b, "", text ? text : "?");
            report__tr_end(g->b);
        }
    }
    report__table_end(g->b);
}

static int write_page(page *g, ht_err *e)
{
    const ht_json *list = report__list(g->doc[D_DESIGN], "cells");
    if (!list || !list->n) return HT_FAIL(e, HT_EFORMAT, "design.json has no cells");
    report__open(g->b, "Hetero: report of a bundle", "measured");
    verdict(g);
    compared(g);
    HT_TRY(cells(g, e));
    HT_TRY(phases(g, e));
    HT_TRY(guards(g, e));
    costs(g);
    machine_details(g);
    report__close(g->b);
    return ht_buf_ok(g->b, "report", e);
}

int ht_report_bundle(const char *dir, ht_buf *html, ht_err *e)
{
    page g = {.b = html};
    HT_TRY(ht_arena_new(&g.a, (size_t)2 << 30, e));
    int rc = load(&g, dir, e);
    if (!rc) rc = write_page(&g, e);
    ht_arena_free(g.a);
    return rc;
}
