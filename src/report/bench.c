/* bench.c - the pages of a benchmark of record (several systems, interleaved) and of one `hetero
 * bench`. Neither passes gates, and the pages say so. */
#include "report/priv.h"
#include <math.h>
#include <string.h>

enum { MAX_SYSTEMS = 16 };

static void no_gates(ht_buf *b)
{
    report__fact(b, "Quality class");
    ht_buf_str(b, "not judged by this record; hetero quality and hetero qualify judge it");
    report__fact_end(b);
    report__fact(b, "Failed gates");
    ht_buf_str(b, "no gate was applied: a record of speed admits no route");
    report__fact_end(b);
}

/* Numbers of an array into the arena; others are left out. */
static double *numbers(ht_arena *a, const ht_json *list, size_t *n)
{
    double *v = ht_arena_array(a, list && list->type == HT_JARR ? list->n + 1 : 1, sizeof *v);
    *n = 0;
    for (size_t i = 0; v && list && list->type == HT_JARR && i < list->n; i++)
        if (list->at[i].type == HT_JINT || list->at[i].type == HT_JREAL) v[(*n)++] = list->at[i].d;
    return v;
}

/* ---- hetero/bench/2 ------------------------------------------------------------------------- */

static bool is_ours(const char *system)
{
    return strncmp(system, "hetero", 6) == 0;
}

static void system_table(ht_buf *b, const report__row *row, size_t n)
{
    double best = 0;
    for (size_t i = 0; i < n; i++)
        if (!is_ours(row[i].label) && row[i].mid > best) best = row[i].mid;
    report__table(b, "system|median tok/s|least|greatest|n|against the best peer");
    for (size_t i = 0; i < n; i++) {
        const report__row *r = &row[i];
        double least = r->dot[0], greatest = r->dot[0];
        for (size_t k = 1; k < r->n; k++) {
            least = r->dot[k] < least ? r->dot[k] : least;
            greatest = r->dot[k] > greatest ? r->dot[k] : greatest;
        }
        const double value[3] = {r->mid, least, greatest};
        report__tr(b);
        report__td(b, "", r->label);
        for (int k = 0; k < 3; k++) {
            report__cell(b, "num");
            report__fixed(b, value[k], 2);
            report__cell_end(b);
        }
        report__cell(b, "num");
        report__fmt(b, "%zu", r->n);
        report__cell_end(b);
        report__cell(b, "num");
        if (is_ours(r->label) && best > 0) report__fixed(b, r->mid / best, 2);
        report__cell_end(b);
        report__tr_end(b);
    }
    report__table_end(b);
}

static void failures(ht_buf *b, const ht_json *failed)
{
    if (!failed || failed->type != HT_JOBJ || !failed->n) return;
    ht_buf_str(b, "<p>Tried and failed:</p><ul>");
    for (size_t i = 0; i < failed->n; i++) {
        ht_buf_str(b, "<li class=\"fail\">");
        report__fmt(b, "%s: %s", failed->at[i].key,
                    failed->at[i].type == HT_JSTR ? failed->at[i].s : "?");
        ht_buf_str(b, "</li>");
    }
    ht_buf_str(b, "</ul>\n");
}

static int bench_cell(ht_arena *a, const ht_json *cell, ht_buf *b, ht_err *e)
{
    const ht_json *samples = ht_json_get(cell, "samples");
    report__row row[MAX_SYSTEMS] = {{0}};
    size_t n = 0;
    const char *title = ht_arena_printf(a, "%s, %s", report__str(cell, "type", "?"),
                                        report__str(cell, "cell", "?"));
    if (!title) return HT_FAIL(e, HT_ENOMEM, "report: out of memory");
    for (size_t i = 0; samples && samples->type == HT_JOBJ && i < samples->n && n < MAX_SYSTEMS;
         i++) {
        report__row *r = &row[n];
        double *v = numbers(a, &samples->at[i], &r->n);
        if (!v) return HT_FAIL(e, HT_ENOMEM, "report: out of memory");
        if (!r->n) continue;
        *r = (report__row){.label = samples->at[i].key,
                           .cls = is_ours(samples->at[i].key) ? "b" : "a",
                           .dot = v,
                           .n = r->n,
                           .has_box = true,
                           .lo = report__quantile(v, r->n, 25),
                           .mid = report__quantile(v, r->n, 50),
                           .hi = report__quantile(v, r->n, 75)};
        n++;
    }
    report__h2(b, title);
    report__strips(b, title, "tokens per second; more is better", row, n, NULL, 0);
    if (n) system_table(b, row, n);
    failures(b, ht_json_get(cell, "failed"));
    return 0;
}

static void list_text(ht_buf *b, const ht_json *list)
{
    for (size_t i = 0; list && i < list->n; i++) {
        if (i) ht_buf_str(b, ", ");
        if (list->at[i].type == HT_JSTR) report__text(b, list->at[i].s);
        else report__fixed(b, list->at[i].d, 2);
    }
}

static void bench_facts(const ht_json *j, const char *name, ht_buf *b)
{
    const ht_json *cells = report__list(j, "cells"), *first = NULL;
    report__facts(b);
    report__fact(b, "Machine");
    report__fmt(b, "%s, family %s model %s, %.0f CPUs, kernel %s, ",
                report__str(j, "machine.model", "?"), report__str(j, "machine.family", "?"),
                report__str(j, "machine.number", "?"), report__num(j, "machine.cpus", 0),
                report__str(j, "machine.kernel", "?"));
    list_text(b, report__list(j, "machine.isa"));
    ht_buf_str(b, "; load before ");
    list_text(b, report__list(j, "loadBefore"));
    ht_buf_str(b, "; after ");
    list_text(b, report__list(j, "loadAfter"));
    report__fact_end(b);
    report__fact(b, "Model and precision");
    ht_buf_str(b,
               "Qwen3-0.6B-shaped files of bench/make_qwen3.py; the stored type heads each cell, a "
               "system's name carries Hetero's arithmetic");
    report__fact_end(b);
    report__fact(b, "Comparison boundary");
    report__fmt(b,
                "every system reads the same file, a fresh process for each run, %.0f threads, "
                "order turned by one place each time; prefill (pp) or decode (tg) rate as each "
                "system's own benchmark reports it; peers in the fastest of the ways tried",
                report__num(j, "threads", 0));
    report__fact_end(b);
    report__fact(b, "Repetitions");
    if (cells && cells->n) first = ht_json_get(&cells->at[0], "samples");
    report__fmt(b, "%zu a system and cell, all of them shown",
                first && first->type == HT_JOBJ && first->n ? first->at[0].n : (size_t)0);
    report__fact_end(b);
    no_gates(b);
    report__fact(b, "Record");
    report__fmt(b, "%s, made %s", name, report__str(j, "utc", "?"));
    report__fact_end(b);
    report__facts_end(b);
}

int report__bench(ht_arena *a, const ht_json *j, const char *name, ht_buf *b, ht_err *e)
{
    const ht_json *cells = report__list(j, "cells");
    if (!cells || !cells->n) return HT_FAIL(e, HT_EFORMAT, "%.80s: a record without cells", name);
    report__open(b, "Hetero: benchmark of record", "measured");
    bench_facts(j, name, b);
    for (size_t i = 0; i < cells->n; i++) HT_TRY(bench_cell(a, &cells->at[i], b, e));
    report__close(b);
    return 0;
}

/* ---- hetero bench --json -------------------------------------------------------------------- */

static void rows_facts(const ht_json *j, const char *name, ht_buf *b)
{
    const ht_json *checks = report__list(j, "reference.checks"), *rows = report__list(j, "rows");
    report__facts(b);
    report__fact(b, "Machine");
    report__fmt(b, "%s, %.0f threads, ", report__str(j, "engine.cpu", "?"),
                report__num(j, "machine.threads", 0));
    report__fmt(b, "%s; read bandwidth ", report__str(j, "machine.fmaIsa", "?"));
    report__fixed(b, report__num(j, "machine.readBytesPerS", 0) / 1e9, 1);
    ht_buf_str(b, " GB/s, multiply-add ");
    report__fixed(b, report__num(j, "machine.fmaFlopsPerS", 0) / 1e9, 1);
    ht_buf_str(b, " GFLOP/s, measured in the same run");
    report__fact_end(b);
    report__fact(b, "Model");
    report__fmt(b, "%s, %s, shape sha256 %s", report__str(j, "engine.model.path", "?"),
                report__str(j, "engine.model.arch", "?"),
                report__str(j, "engine.model.shapeSha256", "?"));
    report__fact_end(b);
    report__fact(b, "Precision");
    report__fmt(b, "contract %s, arithmetic %s, KV %s and %s",
                report__str(j, "engine.model.contract", "?"), report__str(j, "engine.act", "?"),
                report__str(j, "engine.kv.k", "?"), report__str(j, "engine.kv.v", "?"));
    report__fact_end(b);
    report__fact(b, "Comparison boundary");
    ht_buf_str(
        b, "one system, beside what this machine can do at most; the library's own wall time of "
           "a phase, tokenising and a warm-up left out");
    report__fact_end(b);
    report__fact(b, "Repetitions");
    report__fmt(b, "%.0f", rows->n ? report__num(&rows->at[0], "n", 0) : 0);
    report__fact_end(b);
    no_gates(b);
    report__fact(b, "Checked before it was timed");
    for (size_t i = 0; checks && i < checks->n; i++)
        report__fmt(b, "%s%s: %s", i ? "; " : "", report__str(&checks->at[i], "name", "?"),
                    report__true(&checks->at[i], "ok") ? "ok" : "FAILED");
    report__fact_end(b);
    report__fact(b, "Record");
    report__fmt(b, "%s, Hetero %s", name, report__str(j, "engine.version", "?"));
    report__fact_end(b);
    report__facts_end(b);
}

static void rows_table(const ht_json *rows, ht_buf *b)
{
    report__table(b, "test|engine|tok/s|sd|n|% of read bound|% of multiply-add|"
                     "% of 8-bit products|% of what was sustained|note");
    for (size_t i = 0; i < rows->n; i++) {
        const ht_json *r = &rows->at[i];
        static const char *const key[] = {
            "ts", "sd", "n", "readPercent", "fmaPercent", "int8Percent", "sustained.percent"};
        static const int decimals[] = {2, 2, 0, 1, 1, 1, 1};
        report__tr(b);
        report__td(b, "", report__str(r, "test", "?"));
        report__td(b, "", report__str(r, "engine", "?"));
        for (size_t k = 0; k < sizeof key / sizeof *key; k++) {
            double v = report__num(r, key[k], NAN);
            report__cell(b, "num");
            if (v >= 0) report__fixed(b, v, decimals[k]);
            report__cell_end(b);
        }
        report__td(b, "fail",
                   report__true(r, "impossible") ? "more than the machine can do: a "
                                                   "measurement is wrong"
                                                 : "");
        report__tr_end(b);
    }
    report__table_end(b);
}

int report__bench_rows(ht_arena *a, const ht_json *j, const char *name, ht_buf *b, ht_err *e)
{
    const ht_json *rows = report__list(j, "rows");
    report__open(b, "Hetero: benchmark", "measured");
    rows_facts(j, name, b);
    report__h2(b, "Rates");
    for (size_t i = 0; i < rows->n; i++) {
        const ht_json *r = &rows->at[i];
        report__row row = {.label = report__str(r, "engine", "?"), .cls = "b", .has_box = true};
        double *v = numbers(a, ht_json_get(r, "samples"), &row.n);
        if (!v) return HT_FAIL(e, HT_ENOMEM, "report: out of memory");
        if (!row.n) continue;
        row.dot = v;
        row.lo = report__quantile(v, row.n, 25);
        row.mid = report__quantile(v, row.n, 50);
        row.hi = report__quantile(v, row.n, 75);
        report__strips(b, report__str(r, "test", "?"), "tokens per second", &row, 1, NULL, 0);
    }
    rows_table(rows, b);
    report__close(b);
    return 0;
}
