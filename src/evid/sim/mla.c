/* mla.c - how well would a latent of rank r carry keys and values? Multi-head latent attention
 * (DeepSeek-V2, 2024) caches c = D x and reads K and V as U c. Here the stacked projection
 * W = [Wk; Wv] [2 kvDim, dim] is made from declared random numbers: a product of random factors of
 * rank trueRank, whose components shrink, and noise. U and D come from the r leading left singular
 * vectors, by block power iteration with Gram-Schmidt (Golub and Van Loan, 8.2.4): D = U' W. The
 * error is taken on activations with a few loud channels, which the fit has not seen. */
#include "evid/sim/priv.h"
#include <math.h>
#include <string.h>

enum { MAX_DIM = 1024 };

static const ht_sim_input inputs[] = {
    {"activations", 64, 1, 4096, "activation vectors the error is taken on"},
    {"decayPpm", 940000, 0, 1000000, "each component of W is this much of the one before"},
    {"dim", 128, 1, MAX_DIM, "width of the model"},
    {"draws", 24, 1, 10000, "draws"},
    {"iterations", 12, 1, 200, "power iterations of the fit"},
    {"kvDim", 64, 1, MAX_DIM / 2, "rows of K, and of V"},
    {"loudChannels", 4, 0, MAX_DIM, "activation channels that are louder"},
    {"loudGain", 8, 1, 1000, "by this factor"},
    {"noisePpm", 20000, 0, 10000000, "noise in W beside a first component of 1"},
    {"rank", 32, 1, MAX_DIM, "rank of the fit: what would be cached, per position"},
    {"trueRank", 96, 1, MAX_DIM, "rank of W without the noise"},
    {NULL, 0, 0, 0, NULL},
};

typedef struct {
    uint32_t rows, dim, rank, planted, n_x, iterations, loud;
    double gain, noise, decay;
    double *w;        /* [rows, dim]                                                     */
    double *u, *next; /* [rank, rows]: left singular vectors, a row each                 */
    double *down;     /* [rank, dim]                                                     */
    double *left, *right, *x, *c; /* [rows], [dim], [dim], [rank]                                 */
} fit;

static double dot(const double *a, const double *b, uint32_t n)
{
    double s = 0;
    for (uint32_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

static void axpy(double *y, double a, const double *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) y[i] += a * x[i];
}

static void make_weights(sim__rng *g, fit *f)
{
    double scale = 1;
    memset(f->w, 0, sizeof *f->w * f->rows * f->dim);
    for (uint32_t k = 0; k < f->planted; k++, scale *= f->decay) {
        for (uint32_t i = 0; i < f->rows; i++) f->left[i] = sim__noise(g);
        for (uint32_t i = 0; i < f->dim; i++) f->right[i] = sim__noise(g);
        for (uint32_t i = 0; i < f->rows; i++)
            axpy(f->w + (size_t)i * f->dim, scale * f->left[i], f->right, f->dim);
    }
    for (size_t i = 0; i < (size_t)f->rows * f->dim; i++) f->w[i] += f->noise * sim__noise(g);
}

/* Rows of u made orthonormal, each twice against those before it (once loses digits when W has a
 * lower rank than the fit); a row that is nothing but rounding becomes zero. */
static void orthonormal(fit *f)
{
    for (uint32_t k = 0; k < f->rank; k++) {
        double *row = f->u + (size_t)k * f->rows, before = sqrt(dot(row, row, f->rows));
        for (int twice = 0; twice < 2; twice++)
            for (uint32_t j = 0; j < k; j++) {
                const double *other = f->u + (size_t)j * f->rows;
                axpy(row, -dot(row, other, f->rows), other, f->rows);
            }
        double norm = sqrt(dot(row, row, f->rows));
        double by = norm > 1e-10 * before && norm > 0 ? 1 / norm : 0;
        for (uint32_t i = 0; i < f->rows; i++) row[i] *= by;
    }
}

/* down = U' W. */
static void project(fit *f)
{
    memset(f->down, 0, sizeof *f->down * f->rank * f->dim);
    for (uint32_t k = 0; k < f->rank; k++)
        for (uint32_t i = 0; i < f->rows; i++)
            axpy(f->down + (size_t)k * f->dim, f->u[(size_t)k * f->rows + i],
                 f->w + (size_t)i * f->dim, f->dim);
}

static void fit_weights(sim__rng *g, fit *f)
{
    for (size_t i = 0; i < (size_t)f->rank * f->rows; i++) f->u[i] = sim__noise(g);
    orthonormal(f);
    for (uint32_t it = 0; it < f->iterations; it++) {
        project(f);
        for (uint32_t k = 0; k < f->rank; k++)
            for (uint32_t i = 0; i < f->rows; i++)
                f->next[(size_t)k * f->rows + i] =
                    dot(f->w + (size_t)i * f->dim, f->down + (size_t)k * f->dim, f->dim);
        memcpy(f->u, f->next, sizeof *f->u * f->rank * f->rows);
        orthonormal(f);
    }
    project(f);
}

/* RMS of y = W x and of y - U D x over the activations. */
static void errors(sim__rng *g, fit *f, double *rms, double *rmse)
{
    double sum = 0, off = 0;
    for (uint32_t n = 0; n < f->n_x; n++) {
        for (uint32_t i = 0; i < f->dim; i++) f->x[i] = sim__noise(g) * (i < f->loud ? f->gain : 1);
        for (uint32_t k = 0; k < f->rank; k++)
            f->c[k] = dot(f->down + (size_t)k * f->dim, f->x, f->dim);
        for (uint32_t i = 0; i < f->rows; i++) {
            double y = dot(f->w + (size_t)i * f->dim, f->x, f->dim), fitted = 0;
            for (uint32_t k = 0; k < f->rank; k++)
                fitted += f->u[(size_t)k * f->rows + i] * f->c[k];
            sum += y * y;
            off += (y - fitted) * (y - fitted);
        }
    }
    double count = (double)f->n_x * f->rows;
    *rms = sqrt(sum / count);
    *rmse = sqrt(off / count);
}

static int open_fit(sim__run *r, fit *f, ht_err *e)
{
    *f = (fit){.rows = 2 * (uint32_t)sim__in(r, "kvDim"),
               .dim = (uint32_t)sim__in(r, "dim"),
               .rank = (uint32_t)sim__in(r, "rank"),
               .planted = (uint32_t)sim__in(r, "trueRank"),
               .n_x = (uint32_t)sim__in(r, "activations"),
               .iterations = (uint32_t)sim__in(r, "iterations"),
               .loud = (uint32_t)sim__in(r, "loudChannels"),
               .gain = (double)sim__in(r, "loudGain"),
               .noise = (double)sim__in(r, "noisePpm") / 1e6,
               .decay = (double)sim__in(r, "decayPpm") / 1e6};
    if (f->rank > f->rows || f->rank > f->dim || f->loud > f->dim)
        return HT_FAIL(
            e, HT_EARG,
            "sim: rank %u must not exceed dim %u nor 2 kvDim %u, nor loudChannels %u dim", f->rank,
            f->dim, f->rows, f->loud);
    f->w = ht_arena_array(r->a, (size_t)f->rows * f->dim, sizeof *f->w);
    f->u = ht_arena_array(r->a, (size_t)f->rank * f->rows, sizeof *f->u);
    f->next = ht_arena_array(r->a, (size_t)f->rank * f->rows, sizeof *f->next);
    f->down = ht_arena_array(r->a, (size_t)f->rank * f->dim, sizeof *f->down);
    f->left = ht_arena_array(r->a, f->rows, sizeof *f->left);
    f->right = ht_arena_array(r->a, f->dim, sizeof *f->right);
    f->x = ht_arena_array(r->a, f->dim, sizeof *f->x);
    f->c = ht_arena_array(r->a, f->rank, sizeof *f->c);
    if (!f->w || !f->u || !f->next || !f->down || !f->left || !f->right || !f->x || !f->c)
        return HT_FAIL(e, HT_ENOMEM, "sim: no memory for the fit");
    return 0;
}

static int run(sim__run *r, ht_err *e)
{
    fit f;
    uint32_t draws = (uint32_t)sim__in(r, "draws");
    HT_TRY(open_fit(r, &f, e));
    double area = (double)f.rows * f.dim;
    HT_TRY(sim__bound(draws * (area * (f.planted + 20.0) +
                               2.0 * f.iterations * f.rank * (area + (double)f.rank * f.rows) +
                               2.0 * f.n_x * (area + (double)f.rank * f.rows)),
                      e));
    int64_t *absolute = sim__series_new(r, "activationRmseMicro", draws);
    int64_t *relative = sim__series_new(r, "activationRmsePpmOfRms", draws);
    if (!relative || !absolute) return HT_FAIL(e, HT_ENOMEM, "sim: no memory for %u draws", draws);
    for (uint32_t i = 0; i < draws; i++) {
        sim__rng g = sim__draw(r, i);
        double rms, rmse;
        make_weights(&g, &f);
        fit_weights(&g, &f);
        errors(&g, &f, &rms, &rmse);
        relative[i] = rms > 0 ? (int64_t)(1e6 * rmse / rms) : 0;
        absolute[i] = (int64_t)(1e6 * rmse);
    }
    sim__fact(r, "cachePpmOfKv", (int64_t)(1e6 * f.rank / f.rows));
    return 0;
}

const sim__kind sim__mla = {"mla",
                            "The fit's RMSE is that of declared random weights and activations; no "
                            "trained model was fitted, "
                            "and an error of activations is not an error of answers.",
                            inputs, run};
