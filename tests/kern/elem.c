/* elem.c - the elementwise kernels: against their formula in double within a derived bound, and bit
 * for bit against generic C at every level, for lengths with and without tails, up to guard
 * pages. */
#include "kern.h"
#include "step/step.h"

static const uint32_t lengths[] = {1, 5, 8, 15, 16, 17, 31, 64, 100, 256, 576, 1021};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static guarded random_floats(uint32_t n, float size, uint64_t *seed)
{
    guarded g = guard_new(n * sizeof(float));
    for (uint32_t i = 0; i < n; i++) ((float *)(void *)g.p)[i] = size * t_randf(seed);
    return g;
}
static float *f(guarded *g)
{
    return (float *)(void *)g->p;
}

static void check_norm(const cpu_kern *k, const cpu_kern *g, uint32_t n, uint64_t *seed)
{
    guarded x = random_floats(n, 3.0f, seed), w = random_floats(n, 2.0f, seed);
    guarded y = guard_new(n * sizeof(float)), z = guard_new(n * sizeof(float));
    double sum = 0;
    k->rmsnorm(f(&x), f(&w), n, 1e-5f, f(&y));
    g->rmsnorm(f(&x), f(&w), n, 1e-5f, f(&z));
    for (uint32_t i = 0; i < n; i++) sum += (double)f(&x)[i] * (double)f(&x)[i];
    for (uint32_t i = 0; i < n; i++) {
        double want = (double)f(&x)[i] / sqrt(sum / n + 1e-5) * (double)f(&w)[i];
        T_NEAR(f(&y)[i], want, fabs(want) * (n / 16.0 + 8) * 0x1p-24 + 1e-30);
    }
    T_EQ_MEM(y.p, z.p, n * sizeof(float));
    guard_free(&x), guard_free(&w), guard_free(&y), guard_free(&z);
}

static void check_acts(const cpu_kern *k, const cpu_kern *g, uint32_t n, uint64_t *seed)
{
    guarded x = random_floats(n, 20.0f, seed), u = random_floats(n, 4.0f, seed);
    guarded y = guard_new(n * sizeof(float)), z = guard_new(n * sizeof(float));
    if (n > 4) f(&x)[0] = 200.0f, f(&x)[1] = -200.0f, f(&x)[2] = 0.0f, f(&x)[3] = -1e-30f;
    k->silu_mul(f(&x), f(&u), n, f(&y));
    g->silu_mul(f(&x), f(&u), n, f(&z));
    T_EQ_MEM(y.p, z.p, n * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        double a = f(&x)[i], want = a / (1 + exp(-a)) * (double)f(&u)[i];
        T_NEAR(f(&y)[i], want, fabs(want) * 8 * 0x1p-24 + 1e-30);
    }
    k->gelu_mul(f(&x), f(&u), n, f(&y));
    g->gelu_mul(f(&x), f(&u), n, f(&z));
    T_EQ_MEM(y.p, z.p, n * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        double a = f(&x)[i], b = f(&u)[i];
        double want = 0.5 * a * (1 + tanh(0.7978845608028654 * (a + 0.044715 * a * a * a))) * b;
        T_NEAR(f(&y)[i], want, fabs(a * b) * 8 * 0x1p-24 + 1e-30);
    }
    guard_free(&x), guard_free(&u), guard_free(&y), guard_free(&z);
}

static void check_softmax(const cpu_kern *k, const cpu_kern *g, uint32_t n16, float cap,
                          uint64_t *seed)
{
    uint32_t n = (n16 + 15) / 16 * 16;
    if (n > 256) n = 256;
    guarded x = random_floats(n, 30.0f, seed), y = guard_new(n * sizeof(float)), z = guard_new(y.n);
    uint32_t lo = (uint32_t)(t_rand(seed) % n), hi = lo + (uint32_t)(t_rand(seed) % (n - lo + 1));
    float sum, sum2;
    double top = -INFINITY, all = 0;
    memcpy(y.p, x.p, y.n);
    memcpy(z.p, x.p, y.n);
    float m = k->softmax(f(&y), n, lo, hi, 0.3f, cap, &sum);
    float m2 = g->softmax(f(&z), n, lo, hi, 0.3f, cap, &sum2);
    T_TRUE(m == m2 && sum == sum2);
    T_EQ_MEM(y.p, z.p, y.n);
    double *v = malloc(n * sizeof *v);
    for (uint32_t i = lo; i < hi; i++) {
        v[i] = (double)f(&x)[i] * (double)0.3f;
        if (cap != 0.0f) v[i] = (double)cap * tanh(v[i] / (double)cap);
        top = fmax(top, v[i]);
    }
    T_TRUE(lo == hi ? m == -INFINITY && sum == 0 : fabs((double)m - top) <= 16 * 0x1p-20);
    for (uint32_t i = 0; i < n; i++) {
        double want = i >= lo && i < hi ? exp(v[i] - (double)m) : 0;
        T_NEAR(f(&y)[i], want, want * 64 * 0x1p-24 + (cap != 0.0f ? 2e-5 : 0));
        all += (double)f(&y)[i];
    }
    T_NEAR(sum, all, all * 32 * 0x1p-24);
    free(v);
    guard_free(&x), guard_free(&y), guard_free(&z);
}

static void check_small(const cpu_kern *k, const cpu_kern *g, uint32_t n, uint64_t *seed)
{
    guarded a = random_floats(2 * n, 1.0f, seed), b = guard_new(a.n),
            c = random_floats(n, 1.0f, seed);
    guarded s = random_floats(n, 1.0f, seed), o = random_floats(n, 1.0f, seed), p = guard_new(o.n);
    memcpy(b.p, a.p, a.n);
    memcpy(p.p, o.p, o.n);
    k->rope(f(&a), f(&c), f(&s), n);
    for (uint32_t i = 0; i < n; i++) {
        double x = f(&b)[i], y = f(&b)[n + i], co = f(&c)[i], si = f(&s)[i];
        T_NEAR(f(&a)[i], x * co - y * si, 0x1p-22);
        T_NEAR(f(&a)[n + i], y * co + x * si, 0x1p-22);
    }
    g->rope(f(&b), f(&c), f(&s), n);
    T_EQ_MEM(a.p, b.p, a.n);
    k->add(f(&c), n, f(&o)), g->add(f(&c), n, f(&p));
    T_EQ_MEM(o.p, p.p, o.n);
    k->scale_add(f(&c), 0.7f, n, f(&o)), g->scale_add(f(&c), 0.7f, n, f(&p));
    T_EQ_MEM(o.p, p.p, o.n);
    k->merge(f(&o), 0.3f, f(&c), 0.9f, n), g->merge(f(&p), 0.3f, f(&c), 0.9f, n);
    T_EQ_MEM(o.p, p.p, o.n);
    guard_free(&a), guard_free(&b), guard_free(&c), guard_free(&s), guard_free(&o), guard_free(&p);
}

/* Against the matrix itself (entry +1 or -1 by the parity of the common bits), and the generic
 * bits. */
static void check_hadamard(const cpu_kern *k, const cpu_kern *g, uint32_t n, uint64_t *seed)
{
    guarded x = random_floats(n, 3.0f, seed), y = guard_new(x.n), z = guard_new(x.n);
    memcpy(y.p, x.p, x.n);
    memcpy(z.p, x.p, x.n);
    k->hadamard(f(&y), n, 0.125f);
    g->hadamard(f(&z), n, 0.125f);
    T_EQ_MEM(y.p, z.p, y.n);
    for (uint32_t i = 0; i < n; i++) {
        double want = 0;
        for (uint32_t j = 0; j < n; j++)
            want += (__builtin_popcount(i & j) & 1 ? -0.125 : 0.125) * (double)f(&x)[j];
        T_NEAR(f(&y)[i], want, n * 3 * 0x1p-25);
    }
    guard_free(&x), guard_free(&y), guard_free(&z);
}

/* Stored keys and values, and the panels made of them. */
static void check_panels(const cpu_kern *k, int type, uint32_t hd, uint32_t n, uint64_t *seed)
{
    size_t elem = type ? 2 : 4;
    guarded x = random_floats(n * hd, 4.0f, seed), kv = guard_new((size_t)n * hd * elem);
    guarded panel = guard_new((size_t)(hd > n ? hd : n) * CPU_LANES * sizeof(float));
    float *want = malloc((size_t)n * hd * sizeof *want);
    for (uint32_t j = 0; j < n; j++)
        k->kv_put[type](f(&x) + j * hd, hd, kv.p + (size_t)j * hd * elem);
    for (uint32_t i = 0; i < n * hd; i++)
        want[i] = type ? ht_f16_to_f32(ht_f32_to_f16(f(&x)[i])) : f(&x)[i];
    uint32_t keys = n < CPU_LANES ? n : CPU_LANES;
    float *p = f(&panel);
    k->k_panel[type](kv.p + (size_t)(n - keys) * hd * elem, hd, keys, p);
    for (uint32_t d = 0; d < hd; d++)
        for (uint32_t j = 0; j < CPU_LANES; j++)
            T_TRUE(p[d * CPU_LANES + j] == (j < keys ? want[(n - keys + j) * hd + d] : 0.0f));
    for (uint32_t d = 0; d < hd; d += CPU_LANES) {
        uint32_t w = hd - d < CPU_LANES ? hd - d : CPU_LANES;
        k->v_panel[type](kv.p + d * elem, hd, n, w, p);
        for (uint32_t j = 0; j < n; j++)
            for (uint32_t i = 0; i < CPU_LANES; i++)
                T_TRUE(p[j * CPU_LANES + i] == (i < w ? want[j * hd + d + i] : 0.0f));
    }
    free(want);
    guard_free(&x), guard_free(&kv), guard_free(&panel);
}

/* Attention of a few pairs over n keys: chains of fused multiply-adds, over columns for a score and
 * over keys for a value, to the bit; missing keys of the last 16 score 0. */
static void check_few(const cpu_kern *k, uint32_t hd, uint32_t n, uint64_t *seed)
{
    const size_t ldq = hd + 3, ldp = HT_PAGE + 5;
    if (!k->few_scores) return;
    guarded x = random_floats(n * hd, 2.0f, seed), kv = guard_new((size_t)n * hd * 2);
    guarded q = random_floats((uint32_t)ldq * CPU_FEW, 1.0f, seed);
    guarded p = random_floats((uint32_t)ldp * CPU_FEW, 1.0f, seed);
    guarded o = guard_new(ldq * CPU_FEW * sizeof(float)), s = guard_new(ldp * CPU_FEW * 4);
    const uint16_t *rows = (const uint16_t *)(const void *)kv.p;
    for (uint32_t j = 0; j < n; j++) k->kv_put[1](f(&x) + j * hd, hd, kv.p + (size_t)j * hd * 2);
    for (uint32_t nq = 1; nq <= CPU_FEW; nq++) {
        k->few_scores(rows, hd, n, f(&q), ldq, nq, f(&s), ldp, nq % 2 ? rows : NULL);
        k->few_values(rows, hd, n / 2, f(&p), ldp, nq, f(&o), ldq, 0, nq % 2 ? rows : NULL);
        k->few_values(rows + n / 2 * hd, hd, n - n / 2, f(&p) + n / 2, ldp, nq, f(&o), ldq, 1,
                      NULL);
        for (uint32_t t = 0; t < nq; t++) {
            for (uint32_t j = 0; j < (n + 15) / 16 * 16; j++) {
                float want = 0;
                for (uint32_t d = 0; d < hd && j < n; d++)
                    want = fmaf(ht_f16_to_f32(rows[j * hd + d]), f(&q)[t * ldq + d], want);
                T_TRUE(f(&s)[t * ldp + j] == want);
            }
            for (uint32_t d = 0; d < hd; d++) {
                float want = 0;
                for (uint32_t j = 0; j < n; j++)
                    want = fmaf(ht_f16_to_f32(rows[j * hd + d]), f(&p)[t * ldp + j], want);
                T_TRUE(f(&o)[t * ldq + d] == want);
            }
        }
    }
    guard_free(&x), guard_free(&kv), guard_free(&q), guard_free(&p), guard_free(&o), guard_free(&s);
}

static void check_act_q8(const cpu_kern *k, uint32_t n, uint64_t *seed)
{
    uint32_t groups = n / 32;
    if (!groups) return;
    guarded x = random_floats(groups * 32, 5.0f, seed), q = guard_new((size_t)groups * 3 * 32);
    guarded d = guard_new(groups * 3 * sizeof(float)), s = guard_new(groups * 3 * sizeof(int32_t));
    int8_t wq[32];
    float wd;
    int32_t ws;
    for (uint32_t i = 0; i < 32; i++) f(&x)[i] = i % 2 ? 0.5f * (float)i : -127.0f; /* ties */
    if (groups > 1) memset(f(&x) + 32, 0, 32 * sizeof(float));
    if (groups > 2) f(&x)[64] = 1e-41f;
    k->act_q8(f(&x), groups * 32, 3, 1, (int8_t *)q.p, f(&d), (int32_t *)(void *)s.p);
    for (uint32_t g = 0; g < groups; g++) {
        ht_act_q8(f(&x) + g * 32, 32, wq, &wd, &ws);
        T_EQ_MEM(q.p + (size_t)(g * 3 + 1) * 32, wq, sizeof wq);
        T_TRUE(f(&d)[g * 3 + 1] == wd && ((int32_t *)(void *)s.p)[g * 3 + 1] == ws);
    }
    guard_free(&x), guard_free(&q), guard_free(&d), guard_free(&s);
}

static void check_exp(const cpu_kern *k, const cpu_kern *g)
{
    for (float x = -87.0f; x < 88.0f; x += 0.0137f) {
        float y = k->exp(x);
        T_TRUE(y == g->exp(x));
        T_NEAR(y, exp((double)x), exp((double)x) * 4 * 0x1p-24);
    }
    T_TRUE(k->exp(0.0f) == 1.0f);
    T_TRUE(k->exp(-INFINITY) < 1e-37f && isfinite(k->exp(1000.0f)));
}

static void check_level(int lv)
{
    cpu_kern k, g;
    uint64_t seed = 3;
    if (!level_kern(lv, &k)) T_SKIP("this machine has no %s", levels[lv].name);
    cpu__kern_init(&g, 0);
    check_exp(&k, &g);
    for (int i = 0; i < N_LENGTHS; i++) {
        check_norm(&k, &g, lengths[i], &seed);
        check_acts(&k, &g, lengths[i], &seed);
        check_small(&k, &g, lengths[i], &seed);
        if (lengths[i] >= 16 && (lengths[i] & (lengths[i] - 1)) == 0)
            check_hadamard(&k, &g, lengths[i], &seed);
        check_act_q8(&k, lengths[i], &seed);
        for (int j = 0; j < 8; j++) check_softmax(&k, &g, lengths[i], j % 2 ? 5.0f : 0.0f, &seed);
        for (int type = 0; type < 2; type++)
            check_panels(&k, type, lengths[i] < 300 ? lengths[i] : 128, 1 + lengths[i] % 32, &seed);
        check_few(&k, 32 * (1 + lengths[i] % 8), 1 + lengths[i] * 7 % HT_PAGE, &seed);
    }
}
T_CASE(kern_elem, generic)
{
    check_level(0);
}
T_CASE(kern_elem, avx2)
{
    check_level(1);
}
T_CASE(kern_elem, avx512)
{
    check_level(2);
}
T_CASE(kern_elem, avx512_vnni)
{
    check_level(3);
}
