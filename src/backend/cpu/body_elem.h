/* body_elem.h - everything that is not a matrix product, on the operations of a simd.h; included
 * once by each instruction set. Loops run in 16 lanes at every level so that sums are the same. */
#include "backend/cpu/kern.h"

/* exp(x), about 1 ulp: x = n ln2 + r with |r| <= ln2/2 (n by adding 1.5*2^23, which rounds to
 * nearest and leaves n in the low bits), the Cephes polynomial for e^r, 2^n by the exponent field.
 * Clamped to normal results: never 0, never infinite. */
INL vf vf_exp(vf x)
{
    const vf magic = vf_set1(12582912.0f);
    x = vf_min(vf_max(x, vf_set1(-87.33f)), vf_set1(88.37f));
    vf t = vf_fma(x, vf_set1(1.44269504f), magic), n = vf_sub(t, magic);
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_fma(vf_set1(1.9875691500e-4f), r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
    return vf_mul(p, vf_bits(vi_sll(vi_add(vi_bits(t), vi_set1(127)), 23)));
}

/* tanh(y) = 1 - 2/(exp(2y) + 1): absolute error of an ulp of 1. */
INL vf vf_tanh(vf y)
{
    vf e = vf_exp(vf_add(y, y));
    return vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(e, vf_set1(1.0f))));
}

/* The 16 chains of a sum as a tree. */
INL float tree16(const float s[CPU_LANES])
{
    float a[8], b[4];
    for (int i = 0; i < 8; i++) a[i] = s[i] + s[i + 8];
    for (int i = 0; i < 4; i++) b[i] = a[i] + a[i + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

static float one_exp(float x)
{
    float t[VL];
    vf_store(t, vf_exp(vf_set1(x)));
    return t[0];
}

static void rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    float s[CPU_LANES];
    vf acc[NV];
    uint32_t k = 0;
    for (int v = 0; v < NV; v++) acc[v] = vf_zero();
    for (; k + CPU_LANES <= n; k += CPU_LANES)
        for (int v = 0; v < NV; v++) {
            vf a = vf_load(x + k + VL * v);
            acc[v] = vf_fma(a, a, acc[v]);
        }
    for (int v = 0; v < NV; v++) vf_store(s + VL * v, acc[v]);
    for (uint32_t i = k; i < n; i++) s[i % CPU_LANES] = fmaf(x[i], x[i], s[i % CPU_LANES]);
    float r = 1.0f / sqrtf(tree16(s) / (float)n + eps);
    vf rv = vf_set1(r);
    for (k = 0; k + VL <= n; k += VL) {
        vf a = vf_mul(vf_load(x + k), rv);
        vf_store(y + k, w ? vf_mul(a, vf_load(w + k)) : a);
    }
    for (; k < n; k++) y[k] = w ? (x[k] * r) * w[k] : x[k] * r;
}

INL vf silu_mul_v(vf g, vf u)
{
    vf e = vf_exp(vf_sub(vf_zero(), g));
    return vf_mul(vf_div(g, vf_add(vf_set1(1.0f), e)), u);
}

/* gelu(g) = g/2 (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))), arXiv:1606.08415. */
INL vf gelu_mul_v(vf g, vf u)
{
    vf in = vf_mul(vf_mul(vf_set1(0.79788456f), g),
                   vf_fma(vf_mul(g, g), vf_set1(0.044715f), vf_set1(1.0f)));
    vf h = vf_mul(vf_mul(g, vf_set1(0.5f)), vf_add(vf_set1(1.0f), vf_tanh(in)));
    return vf_mul(h, u);
}

/* Elementwise: a tail is computed in a full vector on a copy. */
#define ACT_FN(name)                                                                               \
    static void name(const float *g, const float *u, uint32_t n, float *y)                        \
    {                                                                                              \
        uint32_t k = 0;                                                                            \
        for (; k + VL <= n; k += VL) vf_store(y + k, name##_v(vf_load(g + k), vf_load(u + k)));    \
        if (k < n) {                                                                               \
            float a[VL] = {0}, b[VL] = {0}, o[VL];                                                 \
            memcpy(a, g + k, (n - k) * sizeof *a);                                                 \
            memcpy(b, u + k, (n - k) * sizeof *b);                                                 \
            vf_store(o, name##_v(vf_load(a), vf_load(b)));                                         \
            memcpy(y + k, o, (n - k) * sizeof *o);                                                 \
        }                                                                                          \
    }
ACT_FN(silu_mul)
ACT_FN(gelu_mul)

/* Strides below VL inside a register, the others between registers: the same sums and
 * differences. */
static void hadamard(float *x, uint32_t n, float scale)
{
    const vf s = vf_set1(scale);
    for (uint32_t i = 0; i < n; i += VL) vf_store(x + i, vf_hadamard(vf_mul(vf_load(x + i), s)));
    for (uint32_t h = VL; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j += VL) {
                vf a = vf_load(x + j), b = vf_load(x + j + h);
                vf_store(x + j, vf_add(a, b));
                vf_store(x + j + h, vf_sub(a, b));
            }
}

/* Products are rounded before the sum: x0 cos - x1 sin as fma(x0, cos, -(x1 sin)). */
static void rope(float *x, const float *cos, const float *sin, uint32_t half)
{
    uint32_t i = 0;
    for (; i + VL <= half; i += VL) {
        vf a = vf_load(x + i), b = vf_load(x + half + i), c = vf_load(cos + i),
                       s = vf_load(sin + i);
        vf_store(x + i, vf_fma(a, c, vf_sub(vf_zero(), vf_mul(b, s))));
        vf_store(x + half + i, vf_fma(b, c, vf_mul(a, s)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = fmaf(a, cos[i], 0.0f - b * sin[i]);
        x[half + i] = fmaf(b, cos[i], a * sin[i]);
    }
}

static void add(const float *a, uint32_t n, float *y)
{
    uint32_t k = 0;
    for (; k + VL <= n; k += VL) vf_store(y + k, vf_add(vf_load(y + k), vf_load(a + k)));
    for (; k < n; k++) y[k] += a[k];
}

static void scale_add(const float *a, float s, uint32_t n, float *y)
{
    uint32_t k = 0;
    vf sv = vf_set1(s);
    for (; k + VL <= n; k += VL) vf_store(y + k, vf_fma(vf_load(a + k), sv, vf_load(y + k)));
    for (; k < n; k++) y[k] = fmaf(a[k], s, y[k]);
}

static float softmax(float *s, uint32_t n, uint32_t lo, uint32_t hi, float factor, float cap,
                     float *sum)
{
    float lane[CPU_LANES];
    vf top = vf_set1(-INFINITY), sv = vf_set1(factor), acc[NV];
    *sum = 0;
    if (lo >= hi) {
        memset(s, 0, n * sizeof *s);
        return -INFINITY;
    }
    for (uint32_t k = lo / CPU_LANES * CPU_LANES; k < hi; k += VL) {
        vf v = vf_mul(vf_load(s + k), sv);
        if (cap != 0.0f) v = vf_mul(vf_set1(cap), vf_tanh(vf_div(v, vf_set1(cap))));
        vf_store(s + k, v);
    }
    for (uint32_t k = 0; k < lo; k++) s[k] = -INFINITY;
    for (uint32_t k = hi; k < n; k++) s[k] = -INFINITY;
    for (uint32_t k = 0; k < n; k += VL) top = vf_max(vf_load(s + k), top);
    vf_store(lane, top);
    float m = lane[0];
    for (int i = 1; i < VL; i++) m = lane[i] > m ? lane[i] : m;
    vf mv = vf_set1(m);
    for (uint32_t k = 0; k < n; k += VL) vf_store(s + k, vf_exp(vf_sub(vf_load(s + k), mv)));
    memset(s, 0, lo * sizeof *s);
    memset(s + hi, 0, (n - hi) * sizeof *s);
    for (int v = 0; v < NV; v++) acc[v] = vf_zero();
    for (uint32_t k = 0; k < n; k += CPU_LANES)
        for (int v = 0; v < NV; v++) acc[v] = vf_add(acc[v], vf_load(s + k + VL * v));
    for (int v = 0; v < NV; v++) vf_store(lane + VL * v, acc[v]);
    *sum = tree16(lane);
    return m;
}

static void merge(float *o, float a, const float *p, float b, uint32_t n)
{
    uint32_t k = 0;
    vf av = vf_set1(a), bv = vf_set1(b);
    for (; k + VL <= n; k += VL)
        vf_store(o + k, vf_fma(vf_load(o + k), av, vf_mul(vf_load(p + k), bv)));
    for (; k < n; k++) o[k] = fmaf(o[k], a, p[k] * b);
}

/* ---- attention panels and KV codecs ---------------------------------------------------------- */

INL void half_row(const uint16_t *p, uint32_t n, float *out)
{
    uint32_t k = 0;
    for (; k + VL <= n; k += VL) vf_store(out + k, vf_f16(p + k));
    if (k < n) {
        uint16_t h[VL] = {0};
        float o[VL];
        memcpy(h, p + k, (n - k) * sizeof *h);
        vf_store(o, vf_f16(h));
        memcpy(out + k, o, (n - k) * sizeof *o);
    }
}

enum { HD_STEP = 64 }; /* columns of a key widened at a time */
static void k_panel_f16(const void *rows, uint32_t hd, uint32_t n, float *panel)
{
    const uint16_t *p = rows;
    float t[HD_STEP];
    for (uint32_t r = 0; r < CPU_LANES; r++)
        for (uint32_t d = 0; d < hd; d += HD_STEP) {
            uint32_t m = hd - d < HD_STEP ? hd - d : HD_STEP;
            if (r < n)
                half_row(p + (size_t)r * hd + d, m, t);
            else
                memset(t, 0, sizeof t);
            for (uint32_t i = 0; i < m; i++) panel[(size_t)(d + i) * CPU_LANES + r] = t[i];
        }
}
static void k_panel_f32(const void *rows, uint32_t hd, uint32_t n, float *panel)
{
    const float *p = rows;
    for (uint32_t r = 0; r < CPU_LANES; r++)
        for (uint32_t d = 0; d < hd; d++)
            panel[(size_t)d * CPU_LANES + r] = r < n ? p[(size_t)r * hd + d] : 0.0f;
}
static void v_panel_f16(const void *rows, uint32_t hd, uint32_t n, uint32_t w, float *panel)
{
    const uint16_t *p = rows;
    for (uint32_t j = 0; j < n; j++, panel += CPU_LANES, p += hd) {
        if (w == CPU_LANES) {
            for (int v = 0; v < NV; v++) vf_store(panel + VL * v, vf_f16(p + VL * v));
        } else {
            memset(panel, 0, CPU_LANES * sizeof *panel);
            half_row(p, w, panel);
        }
    }
}
static void v_panel_f32(const void *rows, uint32_t hd, uint32_t n, uint32_t w, float *panel)
{
    const float *p = rows;
    for (uint32_t j = 0; j < n; j++, panel += CPU_LANES, p += hd) {
        memset(panel, 0, CPU_LANES * sizeof *panel);
        memcpy(panel, p, w * sizeof *panel);
    }
}
static void kv_put_f16(const float *x, uint32_t n, void *out)
{
    uint16_t *o = out;
    uint32_t k = 0;
    for (; k + VL <= n; k += VL) vf_put_f16(o + k, vf_load(x + k));
    if (k < n) {
        float t[VL] = {0};
        uint16_t h[VL];
        memcpy(t, x + k, (n - k) * sizeof *t);
        vf_put_f16(h, vf_load(t));
        memcpy(o + k, h, (n - k) * sizeof *h);
    }
}
static void kv_put_f32(const float *x, uint32_t n, void *out)
{
    memcpy(out, x, n * sizeof *x);
}

/* ht_act_q8 in vectors: the same scale and, since v + 1.5*2^23 rounds to nearest even, the same
 * integers as lrintf. */
static void act_q8(const float *x, uint32_t k, uint32_t n, uint32_t t, int8_t *q, float *d,
                   int32_t *sum)
{
    for (uint32_t g = 0; g < k / 32; g++, x += 32)
        ht_act_q8(x, 32, q + ((size_t)g * n + t) * 32, d + (size_t)g * n + t,
                  sum + (size_t)g * n + t);
}

static void elem_entries(cpu_kern *k)
{
    k->rmsnorm = rmsnorm;
    k->silu_mul = silu_mul;
    k->gelu_mul = gelu_mul;
    k->rope = rope;
    k->hadamard = hadamard;
    k->add = add;
    k->scale_add = scale_add;
    k->softmax = softmax;
    k->merge = merge;
    k->k_panel[0] = k_panel_f32;
    k->k_panel[1] = k_panel_f16;
    k->v_panel[0] = v_panel_f32;
    k->v_panel[1] = v_panel_f16;
    k->kv_put[0] = kv_put_f32;
    k->kv_put[1] = kv_put_f16;
    k->act_q8 = act_q8;
    k->exp = one_exp;
}
