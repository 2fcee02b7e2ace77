/* cost.c - see cost.h. */
#include "serve/cost.h"
#include <math.h>
#include <string.h>

/* Scales that bring rows and keys to about 1, so that one start value of P suits all three. */
static const double scale[3] = {1, 1.0 / 64, 1.0 / 16384};
enum { TRUSTED = 8 }; /* passes before predictions are used */
/* The bound follows the quantile by steps (Robbins and Monro 1951): a miss raises it by
 * OVER_STEP * (1 - MISSES), any other pass lowers it by OVER_STEP * MISSES, which balance where a
 * share MISSES of the passes is above. */
#define OVER_STEP  0.25
#define OVER_FIRST 0.5
#define MISSES     0.02

void serve__cost_init(serve__cost *c)
{
    memset(c, 0, sizeof *c);
    for (int i = 0; i < 3; i++) c->p[i][i] = 1e6;
    c->over = OVER_FIRST;
}

static void features(double rows, double keys, double x[3])
{
    x[0] = scale[0];
    x[1] = rows * scale[1];
    x[2] = keys * scale[2];
}

double serve__cost_predict(const serve__cost *c, double rows, double keys)
{
    double x[3];
    features(rows, keys, x);
    const double t = c->w[0] * x[0] + c->w[1] * x[1] + c->w[2] * x[2];
    return t > 0 ? t : 0;
}

double serve__cost_bound(const serve__cost *c, double rows, double keys)
{
    return c->n < TRUSTED ? 0 : serve__cost_predict(c, rows, keys) * (1 + c->over);
}

/* Haykin, Adaptive Filter Theory, RLS: gain k = P x / (l + x' P x), w += k e, P = (P - k x' P) / l.
 * l = 0.98 forgets with a window of 50 passes. */
void serve__cost_add(serve__cost *c, double rows, double keys, double ns)
{
    const double forget = 0.98;
    double x[3], px[3] = {0, 0, 0}, xpx = 0;
    features(rows, keys, x);
    const double before = serve__cost_predict(c, rows, keys), e = ns - before;
    if (c->n >= TRUSTED && ns > 0) {
        c->abs_err += 0.05 * (fabs(e) - c->abs_err);
        c->rel_err += 0.05 * (fabs(e) / ns - c->rel_err);
        c->over += OVER_STEP * (ns > before * (1 + c->over) ? 1 - MISSES : -MISSES);
        if (c->over < 0) c->over = 0;
    }
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) px[i] += c->p[i][j] * x[j];
    for (int i = 0; i < 3; i++) xpx += x[i] * px[i];
    const double err = ns - (c->w[0] * x[0] + c->w[1] * x[1] + c->w[2] * x[2]);
    for (int i = 0; i < 3; i++) c->w[i] += px[i] / (forget + xpx) * err;
    double trace = 0;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            c->p[i][j] = (c->p[i][j] - px[i] * px[j] / (forget + xpx)) / forget;
            if (i == j) trace += c->p[i][j];
        }
    /* Directions that are never excited (one depth, one size) would grow without end. */
    if (!(trace < 1e9) || !isfinite(trace))
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++) c->p[i][j] = i == j ? 1e3 : 0;
    c->n++;
}

uint32_t serve__cost_chunk(const serve__cost *c, double slo_ns, uint32_t n_dec, double keys_dec,
                           uint32_t pos, uint32_t tile, uint32_t min, uint32_t max)
{
    if (c->n < TRUSTED) return min < max ? min : max;
    const double base = serve__cost_predict(c, n_dec, keys_dec);
    const double row = c->w[1] * scale[1], key = c->w[2] * scale[2];
    const double each = (row > 0 ? row : 0) + (key > 0 ? key : 0) * pos;
    if (each <= 0) return max;
    const double fit = (slo_ns / (1 + c->over) - base) / each;
    uint32_t rows = fit <= 0 ? 0 : fit >= max ? max : (uint32_t)fit / tile * tile;
    if (rows < min) rows = min;
    return rows < max ? rows : max;
}
