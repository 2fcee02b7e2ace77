/* svg.c - the drawings. The view box is 420 wide, so that its 12-unit text stays readable on a
 * phone that is 360 pixels wide. Labels stand above what they name. */
#include "report/priv.h"
#include <math.h>
#include <string.h>

enum { WIDTH = 420, LEFT = 8, PLOT = 404, ROW = 44, PER_LINE = 24, CELL = 17 };

typedef struct {
    double lo, hi, step;
    int decimals;
} axis;

/* Ticks at 1, 2 or 5 times a power of ten, at most six of them. */
static axis make_axis(double lo, double hi)
{
    axis x = {lo, hi, 1, 0};
    if (!(hi > lo)) {
        double by = lo != 0 ? fabs(lo) * 0.01 : 1;
        x.lo = lo - by;
        x.hi = lo + by;
    }
    double room = (x.hi - x.lo) * 0.05;
    x.lo -= room;
    x.hi += room;
    static const double mul[] = {1, 2, 5};
    double power = 1e-6;
    x.step = power;
    for (int k = 0; (x.hi - x.lo) / x.step > 5 && k < 60; k++) {
        if (k % 3 == 2) power *= 10;
        x.step = power * mul[(k + 1) % 3];
    }
    for (double s = x.step; s < 0.999999 && x.decimals < 6; s *= 10) x.decimals++;
    return x;
}

static double at(const axis *x, double v)
{
    double t = (v - x->lo) / (x->hi - x->lo);
    return LEFT + PLOT * (t < 0 ? 0 : t > 1 ? 1 : t);
}

static void attr(ht_buf *b, const char *name, double v)
{
    ht_buf_fmt(b, " %s=\"", name);
    report__fixed(b, v, 1);
    ht_buf_char(b, '"');
}

static void line(ht_buf *b, const char *cls, double x1, double y1, double x2, double y2)
{
    ht_buf_fmt(b, "<line class=\"%s\"", cls);
    attr(b, "x1", x1);
    attr(b, "y1", y1);
    attr(b, "x2", x2);
    attr(b, "y2", y2);
    ht_buf_str(b, "/>");
}

static void rect(ht_buf *b, const char *cls, double x, double y, double w, double h)
{
    ht_buf_fmt(b, "<rect class=\"%s\"", cls);
    attr(b, "x", x);
    attr(b, "y", y);
    attr(b, "width", w > 0 ? w : 0);
    attr(b, "height", h);
    ht_buf_char(b, '>');
}

static void text_open(ht_buf *b, const char *cls, const char *anchor, double x, double y)
{
    ht_buf_fmt(b, "<text class=\"%s\" text-anchor=\"%s\"", cls, anchor);
    attr(b, "x", x);
    attr(b, "y", y);
    ht_buf_char(b, '>');
}

static void open_svg(ht_buf *b, const char *title, int height)
{
    ht_buf_fmt(b, "<svg viewBox=\"0 0 %d %d\" role=\"img\"><title>", WIDTH, height);
    report__text(b, title);
    ht_buf_str(b, "</title>");
    text_open(b, "", "start", LEFT, 14);
    report__text(b, title);
    ht_buf_str(b, "</text>");
}

static void draw_axis(ht_buf *b, const axis *x, const char *unit, double top, double y)
{
    for (double k = ceil(x->lo / x->step); k * x->step <= x->hi; k++) {
        double v = k * x->step, px = at(x, v);
        line(b, "axis", px, top, px, y);
        text_open(b, "dim", px < 24 ? "start" : px > WIDTH - 24 ? "end" : "middle", px, y + 14);
        report__fixed(b, v, x->decimals);
        ht_buf_str(b, "</text>");
    }
    text_open(b, "dim", "end", WIDTH - LEFT, y + 30);
    report__text(b, unit);
    ht_buf_str(b, "</text>");
}

static bool drawable(double v)
{
    return isfinite(v) && fabs(v) <= 1e12; /* an axis has ticks up to there */
}

static void widen(double v, double *lo, double *hi)
{
    if (!drawable(v)) return;
    if (v < *lo) *lo = v;
    if (v > *hi) *hi = v;
}

static void draw_row(ht_buf *b, const axis *x, const report__row *r, double y)
{
    text_open(b, "", "start", LEFT, y + 12);
    report__text(b, r->label);
    ht_buf_str(b, "</text>");
    if (r->has_box) {
        ht_buf_fmt(b, "<g class=\"%s\">", r->cls);
        rect(b, "iv", at(x, r->lo), y + 17, at(x, r->hi) - at(x, r->lo), 22);
        ht_buf_str(b, "</rect>");
        line(b, "iv", at(x, r->mid), y + 15, at(x, r->mid), y + 41);
        ht_buf_str(b, "</g>");
    }
    for (size_t i = 0; i < r->n; i++) {
        if (!drawable(r->dot[i])) continue;
        ht_buf_fmt(b, "<circle class=\"%s\" r=\"3\"", r->cls);
        attr(b, "cx", at(x, r->dot[i]));
        attr(b, "cy", y + 20 + (double)(i % 5) * 4); /* spread, so that equal values show */
        ht_buf_str(b, "/>");
    }
}

void report__strips(ht_buf *b, const char *title, const char *unit, const report__row *row,
                    size_t n, const char *line_name, double mark)
{
    double lo = INFINITY, hi = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < row[i].n; k++) widen(row[i].dot[k], &lo, &hi);
        if (!row[i].has_box) continue;
        widen(row[i].lo, &lo, &hi);
        widen(row[i].hi, &lo, &hi);
    }
    if (!(lo <= hi)) return; /* nothing to draw */
    if (line_name) widen(mark, &lo, &hi);
    axis x = make_axis(lo, hi);
    double top = 22, bottom = top + (double)n * ROW + 6;
    open_svg(b, title, (int)bottom + (line_name ? 50 : 34));
    draw_axis(b, &x, unit, top, bottom);
    if (line_name) {
        line(b, "mark", at(&x, mark), top, at(&x, mark), bottom);
        text_open(b, "dim", "start", LEFT, bottom + 46);
        report__text(b, "dashed: ");
        report__text(b, line_name);
        ht_buf_str(b, "</text>");
    }
    for (size_t i = 0; i < n; i++) draw_row(b, &x, &row[i], top + (double)i * ROW);
    ht_buf_str(b, "</svg>\n");
}

void report__bars(ht_buf *b, const char *title, const char *const *label, const double *value,
                  size_t n, const char *const *part, size_t parts)
{
    static const char *const cls[] = {"a", "b", "n"};
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t k = 0; k < parts; k++) sum += value[i * parts + k];
        if (sum > most) most = sum;
    }
    if (!(most > 0)) return;
    open_svg(b, title, 22 + (int)n * 34 + 24);
    for (size_t i = 0; i < n; i++) {
        double px = LEFT, y = 22 + (double)i * 34;
        text_open(b, "", "start", LEFT, y + 12);
        report__text(b, label[i]);
        ht_buf_str(b, "</text>");
        for (size_t k = 0; k < parts; k++) {
            double w = PLOT * value[i * parts + k] / most;
            rect(b, cls[k % 3], px, y + 16, w, 12);
            ht_buf_str(b, "<title>");
            report__text(b, part[k]);
            ht_buf_char(b, ' ');
            report__ns(b, value[i * parts + k]);
            ht_buf_str(b, "</title></rect>");
            px += w;
        }
    }
    double y = 22 + (double)n * 34 + 14, px = LEFT;
    for (size_t k = 0; k < parts; k++) {
        rect(b, cls[k % 3], px, y - 9, 10, 10);
        ht_buf_str(b, "</rect>");
        text_open(b, "dim", "start", px + 14, y);
        report__text(b, part[k]);
        ht_buf_str(b, "</text>");
        px += WIDTH / (double)parts;
    }
    ht_buf_str(b, "</svg>\n");
}

void report__grid(ht_buf *b, const char *title, const report__mark *mark, size_t n)
{
    static const char *const name[] = {"ok", "void", "fail", "unknown"};
    static const char *const what[] = {"counted", "void", "failed", "guard unknown"};
    if (!n) return;
    int lines = (int)((n + PER_LINE - 1) / PER_LINE);
    open_svg(b, title, 24 + lines * CELL + 24);
    for (size_t i = 0; i < n; i++) {
        rect(b, mark[i].cls, LEFT + (double)(i % PER_LINE) * CELL,
             24 + (double)(i / PER_LINE) * CELL, CELL - 3, CELL - 3);
        ht_buf_str(b, "<title>");
        report__text(b, mark[i].title);
        ht_buf_str(b, "</title></rect>");
    }
    double y = 24 + lines * CELL + 14;
    for (int k = 0; k < 4; k++) {
        rect(b, name[k], LEFT + k * 98, y - 9, 10, 10);
        ht_buf_str(b, "</rect>");
        text_open(b, "dim", "start", LEFT + k * 98 + 14, y);
        report__text(b, what[k]);
        ht_buf_str(b, "</text>");
    }
    ht_buf_str(b, "</svg>\n");
}
