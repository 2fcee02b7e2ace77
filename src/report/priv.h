/* priv.h - writing HTML and SVG: what the pages share. */
#ifndef HT_REPORT_PRIV_H
#define HT_REPORT_PRIV_H
#include "core/arena.h"
#include "core/json.h"
#include "report/report.h"

/* ---- html.c ---- */
/* Escaped for element content and quoted attributes. Control characters, malformed UTF-8 and
 * characters that turn the direction of writing become U+FFFD. */
void report__text(ht_buf *, const char *s);
/* Formatted, then escaped; cut at 1,000 bytes. */
void report__fmt(ht_buf *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* v with so many decimals, rounded half away from zero; no locale. */
void report__fixed(ht_buf *, double v, int decimals);
void report__ns(ht_buf *, double ns);                  /* "12.35 ms"                              */
void report__bytes(ht_buf *, double bytes);            /* "16.0 MiB"                              */
void report__ratio(ht_buf *, double ppm);              /* "1.1008"                                */

/* kind: class of the body; "measured" or "simulated". */
void report__open(ht_buf *, const char *title, const char *kind);
void report__close(ht_buf *);
void report__h2(ht_buf *, const char *text);
void report__p(ht_buf *, const char *cls, const char *text);
/* A table: heads and cells separated by '|' in heads; then rows of report__td between _tr. */
void report__table(ht_buf *, const char *heads);
void report__table_end(ht_buf *);
void report__tr(ht_buf *), report__tr_end(ht_buf *);
void report__td(ht_buf *, const char *cls, const char *text);
/* <td>, free content, </td>. */
void report__cell(ht_buf *, const char *cls), report__cell_end(ht_buf *);
/* A name and a value in two columns, value left open until report__fact_end. */
void report__facts(ht_buf *), report__facts_end(ht_buf *);
void report__fact(ht_buf *, const char *name), report__fact_end(ht_buf *);

/* ---- json ---- */
/* Text or number at a dotted path, or the default; any other type counts as absent. */
const char *report__str(const ht_json *, const char *path, const char *def);
double report__num(const ht_json *, const char *path, double def);
bool report__true(const ht_json *, const char *path);
const ht_json *report__list(const ht_json *, const char *path);        /* an array, or NULL       */
/* The texts of a list, or "none". */
void report__words(ht_buf *, const ht_json *list);
/* Documents of a bundle, read without following links; each must be of its schema. doc [n]. */
typedef struct { const char *path, *schema; } report__doc;
HT_MUST_USE int report__docs(ht_arena *, const char *dir, const report__doc *, size_t n,
                             const ht_json **doc, ht_err *);

/* ---- svg.c ---- */
typedef struct {
    const char *label, *cls;         /* cls: "a", "b" or "n", the colour                          */
    const double *dot; size_t n;
    bool has_box;                    /* lo, mid, hi: an interval with its estimate or quartiles   */
    double lo, mid, hi;
} report__row;
/* Rows of dots over one axis. line: a vertical mark with its name, when line_name is not NULL.
 * Values that are not finite, or beyond 10^12, are left out. */
void report__strips(ht_buf *, const char *title, const char *unit, const report__row *, size_t n,
                    const char *line_name, double line);
/* Bars of parts: value [n][parts] in ns. */
void report__bars(ht_buf *, const char *title, const char *const *label, const double *value,
                  size_t n, const char *const *part, size_t parts);
/* A grid of small squares, one for each step, 24 a line. cls: "ok", "void", "fail", "unknown". */
typedef struct { const char *cls; char title[120]; } report__mark;
void report__grid(ht_buf *, const char *title, const report__mark *, size_t n);

/* Sorted copy's nearest-rank quantile; v [n] is sorted in place. n > 0. */
double report__quantile(double *v, size_t n, unsigned percent);

/* ---- the pages of one document ---- */
int report__bench(ht_arena *, const ht_json *, const char *name, ht_buf *, ht_err *);
int report__bench_rows(ht_arena *, const ht_json *, const char *name, ht_buf *, ht_err *);
int report__sim(ht_arena *, const ht_json *, const char *name, ht_buf *, ht_err *);
#endif
