/* kfit.c - scale searches of the K-quant encoders. The measure and the order of the sums are those
 * of ggml's reference quantiser without an importance matrix (make_qkx2, make_qx, make_q3), so that
 * packs made here have the bytes other programs would write. */
#include "quant/kfit.h"
#include "quant/blocks.h"

/* Below this a group counts as zero: its scale would vanish in half precision anyway. */
#define TINY 1e-15f

/* Levels of x for a range, and the weighted error of (scale, min). */
static void set_levels(const ht_kfit *f, const float *x, float iscale, float min, uint8_t *level)
{
    for (int i = 0; i < f->n; i++)
        level[i] = (uint8_t)ht_clamp(ht_round_even(iscale * (x[i] - min)), 0, f->nmax);
}
static float error_of(const ht_kfit *f, const float *x, const float *w, const uint8_t *level,
                      float scale, float min)
{
    float sum = 0;
    for (int i = 0; i < f->n; i++) {
        float diff = scale * (float)level[i] + min - x[i];
        diff = f->absolute ? fabsf(diff) : diff * diff;
        sum += w[i] * diff;
    }
    return sum;
}

/* Weighted least squares of x against the levels; false where they are all the same. */
static bool solve(const ht_kfit *f, const float *x, const float *w, const uint8_t *level,
                  float sum_w, float sum_x, float *scale, float *min)
{
    float sum_l = 0, sum_l2 = 0, sum_xl = 0;
    for (int i = 0; i < f->n; i++) {
        float l = (float)level[i];
        sum_l += w[i] * l;
        sum_l2 += w[i] * l * l;
        sum_xl += w[i] * l * x[i];
    }
    float det = sum_w * sum_l2 - sum_l * sum_l;
    if (!(det > 0)) return false;
    *scale = (sum_w * sum_xl - sum_x * sum_l) / det;
    *min = (sum_l2 * sum_x - sum_l * sum_xl) / det;
    if (*min > 0) { /* the stored minimum cannot be positive */
        *min = 0;
        *scale = sum_xl / sum_l2;
    }
    return true;
}

float quant__fit_affine(const ht_kfit *f, const float *x, const float *w, uint8_t *level,
                        float *min_out)
{
    float min = x[0], max = x[0], sum_w = w[0], sum_x = w[0] * x[0];
    for (int i = 1; i < f->n; i++) {
        if (x[i] < min) min = x[i];
        if (x[i] > max) max = x[i];
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    if (min > 0) min = 0;
    if (!(max > min)) {
        memset(level, 0, (size_t)f->n);
        *min_out = -min;
        return 0;
    }
    float iscale = (float)f->nmax / (max - min), scale = 1 / iscale;
    set_levels(f, x, iscale, min, level);
    float best = error_of(f, x, w, level, scale, min);
    uint8_t tried[HT_KFIT_MAX];
    /* A better minimum, once found, is what the later ranges start from. */
    for (int step = 0; step <= f->n_steps; step++) {
        float s, m;
        iscale = (f->first + f->step * (float)step + (float)f->nmax) / (max - min);
        set_levels(f, x, iscale, min, tried);
        if (!solve(f, x, w, tried, sum_w, sum_x, &s, &m)) continue;
        float err = error_of(f, x, w, tried, s, m);
        if (err < best) {
            memcpy(level, tried, (size_t)f->n);
            best = err;
            scale = s;
            min = m;
        }
    }
    *min_out = -min;
    return scale;
}

static float signed_max(int n, const float *x)
{
    float amax = 0, max = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > amax) {
            amax = fabsf(x[i]);
            max = x[i];
        }
    return max;
}

float quant__fit_signed(int n, int nmax, const float *x, uint8_t *level)
{
    float max = signed_max(n, x), scale = 0, best = 0;
    if (fabsf(max) < TINY) {
        memset(level, 0, (size_t)n);
        return 0;
    }
    /* The plain range first (i = 0), then -9..9: a later equal never replaces an earlier one. */
    static const int8_t order[19] = {0, -9, -8, -7, -6, -5, -4, -3, -2, -1,
                                     1, 2,  3,  4,  5,  6,  7,  8,  9};
    for (int k = 0; k < 19; k++) {
        float iscale = -((float)nmax + 0.1f * (float)order[k]) / max, sum_lx = 0, sum_l2 = 0;
        for (int i = 0; i < n; i++) {
            float l = (float)ht_clamp(ht_round_even(iscale * x[i]), -nmax, nmax - 1);
            float w = x[i] * x[i];
            sum_lx += w * x[i] * l;
            sum_l2 += w * l * l;
        }
        if (k > 0 && !(sum_l2 > 0 && sum_lx * sum_lx > best * sum_l2)) continue;
        for (int i = 0; i < n; i++)
            level[i] = (uint8_t)(nmax + ht_clamp(ht_round_even(iscale * x[i]), -nmax, nmax - 1));
        scale = sum_l2 > 0 ? sum_lx / sum_l2 : 0;
        best = scale * sum_lx;
    }
    return scale;
}

float quant__fit_descent(int n, int nmax, const float *x, uint8_t *level)
{
    float max = signed_max(n, x), iscale = -(float)nmax / max, sum_lx = 0, sum_l2 = 0;
    int l[HT_KFIT_MAX];
    if (fabsf(max) < TINY) {
        memset(level, 0, (size_t)n);
        return 0;
    }
    for (int i = 0; i < n; i++) {
        float w = x[i] * x[i];
        l[i] = ht_clamp(ht_round_even(iscale * x[i]), -nmax, nmax - 1);
        sum_lx += w * x[i] * (float)l[i];
        sum_l2 += w * (float)l[i] * (float)l[i];
    }
    for (int round = 0, moved = 1; round < 5 && moved; round++) {
        moved = 0;
        for (int i = 0; i < n; i++) {
            float w = x[i] * x[i], rest_lx = sum_lx - w * x[i] * (float)l[i];
            if (!(rest_lx > 0)) continue;
            float rest_l2 = sum_l2 - w * (float)l[i] * (float)l[i];
            int to = ht_clamp(ht_round_even(x[i] * rest_l2 / rest_lx), -nmax, nmax - 1);
            if (to == l[i]) continue;
            rest_lx += w * x[i] * (float)to;
            rest_l2 += w * (float)to * (float)to;
            if (!(rest_l2 > 0 && rest_lx * rest_lx * sum_l2 > sum_lx * sum_lx * rest_l2)) continue;
            l[i] = to;
            sum_lx = rest_lx;
            sum_l2 = rest_l2;
            moved = 1;
        }
    }
    for (int i = 0; i < n; i++) level[i] = (uint8_t)(l[i] + nmax);
    return sum_l2 > 0 ? sum_lx / sum_l2 : 0;
}
