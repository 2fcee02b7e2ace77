/* math.c - the arithmetic that stages share. */
#include "backend/ref/ref.h"
#include "quant/r16.h"

#include <math.h>

/* Elements summed in f32 before the sum goes on in f64: the partial sum's error stays below
 * 64 * 2^-24 of its magnitude, and the inner loop is one that compilers make vectors of. */
enum { PARTIAL = 64, LANES = 8 };
enum { GROUP = 32 }; /* of ht_act_q8 */

double ref__dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    size_t i = 0;
    for (; i + PARTIAL <= n; i += PARTIAL) {
        float s[LANES] = {0};
        for (size_t k = 0; k < PARTIAL; k += LANES)
            for (size_t j = 0; j < LANES; j++) s[j] += a[i + k + j] * b[i + k + j];
        sum += (double)((s[0] + s[4]) + (s[1] + s[5]) + (s[2] + s[6]) + (s[3] + s[7]));
    }
    for (; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Weight row times int8 activations: an integer-valued sum per group, scaled by the group. In f64,
 * in which decoded weights times small integers add up as exactly as the integer kernels' own
 * form. */
static double dot_q8(const float *w, const int8_t *q, const float *d, size_t n)
{
    double sum = 0;
    for (size_t g = 0; g < n / GROUP; g++) {
        double s = 0;
        for (size_t i = g * GROUP; i < (g + 1) * GROUP; i++) s += (double)w[i] * q[i];
        sum += s * (double)d[g];
    }
    return sum;
}

bool ref__cancelled(ht_plan *p)
{
    return atomic_load_explicit(&p->cancel, memory_order_relaxed) != 0;
}

const ht_weight *ref__rep(const ht_plan *p, const ht_weight *w)
{
    return (p->b.flags & HT_ALT_REP) && w->alt ? w->alt : w;
}

void ref__project(ht_plan *p, const ht_weight *w0, uint32_t m, const float *x, uint32_t n,
                  float *out, size_t out_stride)
{
    const ht_weight *w = ref__rep(p, w0);
    uint32_t cols = w->cols;
    /* A type whose r16 form is a float one has no integer product on any engine: what --act q8
     * means must not depend on the layout a weight is stored in. */
    bool q8 = p->b.act == HT_ACT_Q8 && ht_types[ht_r16_type(w->type)].block > 1 && !w->act_f32;
    for (uint32_t t = 0; q8 && t < n; t++)
        ht_act_q8(x + (size_t)t * cols, cols, p->xq + (size_t)t * cols,
                  p->xd + (size_t)t * (cols / GROUP), p->xsum);

    for (uint32_t r = 0; r < w->rows && n > 0; r += REF__BLOCK_ROWS) {
        uint32_t k_end = w->rows - r < REF__BLOCK_ROWS ? w->rows - r : REF__BLOCK_ROWS;
        if (ref__cancelled(p)) return;
        for (uint32_t k = 0; k < k_end; k++)
            ht_weight_row(w, m, r + k, p->w_rows + (size_t)k * cols);
        for (uint32_t t = 0; t < n; t++) {
            for (uint32_t k = 0; k < k_end; k++) {
                const float *row = p->w_rows + (size_t)k * cols;
                double y = q8 ? dot_q8(row, p->xq + (size_t)t * cols,
                                       p->xd + (size_t)t * (cols / GROUP), cols)
                              : ref__dot(row, x + (size_t)t * cols, cols);
                out[t * out_stride + r + k] = (float)y;
            }
        }
    }
}

void ref__norm(const float *x, const float *w, uint32_t n, float eps, float *out)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    double scale = 1 / sqrt(sum / n + (double)eps);
    for (uint32_t i = 0; i < n; i++) out[i] = (float)((double)x[i] * scale * (double)w[i]);
}

void ref__rotate(float *head, const ht_rope *r, int32_t pos, bool lengthy)
{
    const float *freq = lengthy && r->inv_freq_long ? r->inv_freq_long : r->inv_freq;
    uint32_t half = r->dims / 2;
    for (uint32_t i = 0; i < half; i++) {
        double angle = (double)pos * (double)freq[i];
        double c = cos(angle) * (double)r->mscale, s = sin(angle) * (double)r->mscale;
        double a = (double)head[i], b = (double)head[i + half];
        head[i] = (float)(a * c - b * s);
        head[i + half] = (float)(b * c + a * s);
    }
}

void ref__gate(float *g, const float *u, size_t n, bool gelu)
{
    const double k = 0.7978845608028654; /* sqrt(2/pi) */
    for (size_t i = 0; i < n; i++) {
        double v = (double)g[i];
        double y = gelu ? 0.5 * v * (1 + tanh(k * (v + 0.044715 * v * v * v))) : v / (1 + exp(-v));
        g[i] = (float)(y * (double)u[i]);
    }
}
