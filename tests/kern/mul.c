/* mul.c - matrix product kernels of every type at every level, against decoded rows and plain
 * loops: --act f32 must give the very bits of the definition, --act q8 those of the generic kernel
 * and, within a bound, the real product. */
#include "kern.h"

static const int sources[] = {HT_F32,  HT_F16,  HT_BF16, HT_Q8_0,   HT_Q4_0,
                              HT_Q4_1, HT_Q5_0, HT_Q5_1, HT_Q2_K,   HT_Q3_K,
                              HT_Q4_K, HT_Q5_K, HT_Q6_K, HT_IQ4_NL, HT_MXFP4};
enum { N_SOURCES = sizeof sources / sizeof *sources };
static const uint32_t row_counts[] = {1, 16, 17, 40, 128};
static const uint32_t plain_cols[] = {1, 7, 64, 255, 256, 257, 600};
static const uint32_t block_cols[] = {32, 64, 256, 288, 576};
static const uint32_t super_cols[] = {256, 512, 768};

static const uint32_t *cols_of(int src, size_t *n)
{
    uint32_t block = ht_types[src].block;
    *n = block == 1 ? 7 : block == 32 ? 5 : 3;
    return block == 1 ? plain_cols : block == 32 ? block_cols : super_cols;
}

/* x [n, ldx] that ends at a guard page; values of very different size. */
static guarded random_rows(uint32_t n, uint32_t k, size_t ldx, uint64_t *seed)
{
    guarded g = guard_new(((n - 1) * ldx + k) * sizeof(float));
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < k; i++)
            ((float *)(void *)g.p)[t * ldx + i] =
                ldexpf(t_randf(seed), (int)(t_rand(seed) % 12) - 6);
    return g;
}

static void same(const char *what, const matrix *m, uint32_t row, uint32_t tok, float got,
                 float want)
{
    T_CHECK(memcmp(&got, &want, sizeof got) == 0 || (got == 0 && want == 0),
            "%s %s %ux%u row %u token %u: %.9g for %.9g", what, ht_types[m->src].name, m->rows,
            m->cols, row, tok, (double)got, (double)want);
}

static void check_gemv(const cpu_kern *k, const matrix *m, uint64_t *seed)
{
    size_t ld;
    guarded x = random_rows(1, m->cols, m->cols, seed);
    guarded z = spread_rows(k, m->type, &x, 1, m->cols, m->cols, &ld);
    guarded y = guard_new((size_t)m->tiles * CPU_LANES * sizeof(float));
    const float *out = (const float *)(void *)y.p;
    k->gemv[m->type](m->r16.p, m->tile_bytes, m->tiles, m->cols, (const float *)(void *)z.p,
                     (float *)(void *)y.p);
    for (uint32_t r = 0; r < m->tiles * CPU_LANES; r++)
        same("gemv", m, r, 0, out[r], product_dot(m, r, (const float *)(void *)x.p));
    guard_free(&x), guard_free(&z), guard_free(&y);
}

static void check_rows(const cpu_kern *k, const matrix *m, uint64_t *seed)
{
    for (uint32_t nt = 1; nt <= CPU_NT_ROWS; nt++) {
        size_t ldx = m->cols + nt % 3, ldc = 16 + nt % 2 * 5, ld;
        guarded x = random_rows(nt, m->cols, ldx, seed);
        guarded z = spread_rows(k, m->type, &x, nt, m->cols, ldx, &ld);
        guarded c = guard_new(((nt - 1) * ldc + CPU_LANES) * sizeof(float));
        uint32_t tile = m->tiles - 1;
        k->rows[m->type](m->r16.p + tile * m->tile_bytes, m->cols, (const float *)(void *)z.p, ld,
                         nt, (float *)(void *)c.p, ldc);
        for (uint32_t t = 0; t < nt; t++)
            for (uint32_t r = 0; r < CPU_LANES; r++)
                same("rows", m, tile * CPU_LANES + r, t, ((float *)(void *)c.p)[t * ldc + r],
                     product_dot(m, tile * CPU_LANES + r, (const float *)(void *)x.p + t * ldx));
        guard_free(&x), guard_free(&z), guard_free(&c);
    }
}

/* What widen made of float weights; levels are checked through their products. */
static void check_widened(const matrix *m, uint32_t k0, uint32_t kn, const float *panel)
{
    for (uint32_t i = 0; i < kn && cpu__form(m->type) == CPU_FLOATS; i++)
        for (uint32_t r = 0; r < CPU_LANES; r++)
            same("widen", m, r, i, panel[i * CPU_LANES + r], m->w[(size_t)r * m->cols + k0 + i]);
}

/* widen and panel or fold together, as prefill uses them. */
static void check_panel(const cpu_kern *k, const matrix *m, uint64_t *seed)
{
    uint32_t gc, gb, nt = 1 + (uint32_t)(t_rand(seed) % k->nt_panel);
    size_t ldx = m->cols + 3, ld;
    enum cpu_form form = cpu__form(m->type);
    ht_r16_group(m->type, &gc, &gb);
    guarded x = random_rows(nt, m->cols, ldx, seed), c = guard_new(nt * CPU_LANES * sizeof(float));
    guarded z = spread_rows(k, m->type, &x, nt, m->cols, ldx, &ld);
    const float *row = (const float *)(void *)z.p;
    for (uint32_t k0 = 0; k0 < m->cols; k0 += CPU_KC) {
        uint32_t kn = m->cols - k0 < CPU_KC ? m->cols - k0 : CPU_KC;
        cpu_scale scale[CPU_GROUPS];
        guarded p = guard_new((size_t)kn * CPU_LANES * sizeof(float));
        const float *panel = (const float *)(void *)p.p;
        k->widen[m->type](m->r16.p + (size_t)(k0 / gc) * gb, kn, (float *)(void *)p.p, scale);
        check_widened(m, k0, kn, panel);
        if (form == CPU_FLOATS)
            k->panel(panel, kn, row + k0, ld, nt, (float *)(void *)c.p, CPU_LANES, k0 != 0);
        else
            k->fold[form](panel, scale, kn, row + k0, row + m->cols + k0 / CPU_GROUP(form), ld, nt,
                          (float *)(void *)c.p, k0 != 0);
        guard_free(&p);
    }
    for (uint32_t t = 0; t < nt; t++)
        for (uint32_t r = 0; r < CPU_LANES; r++)
            same("panel", m, r, t, ((float *)(void *)c.p)[t * CPU_LANES + r],
                 product_dot(m, r, (const float *)(void *)x.p + t * ldx));
    guard_free(&x), guard_free(&z), guard_free(&c);
}

/* The definition is the product: against the decoded weights in f64. A group rounds 32 sums of
 * levels up to 16 times a centred one's size, and twice more. */
static void check_definition(const matrix *m, uint64_t *seed)
{
    guarded x = random_rows(1, m->cols, m->cols, seed);
    const float *v = (const float *)(void *)x.p;
    for (uint32_t r = 0; r < m->tiles * CPU_LANES; r++) {
        double sum = 0, size = 0;
        for (uint32_t i = 0; i < m->cols; i++)
            sum += (double)m->w[(size_t)r * m->cols + i] * (double)v[i];
        float top = 0;
        for (uint32_t i = 0; i < m->cols; i++) {
            top = fmaxf(top, fabsf(m->w[(size_t)r * m->cols + i]));
            size += fabs((double)v[i]);
        }
        T_NEAR(product_dot(m, r, v), sum, size * (double)top * 16 * 40 * 0x1p-24 + 1e-30);
    }
    guard_free(&x);
}

/* Against the real product of the decoded weights and the int8 activations: integers are exact and
 * a group adds two roundings, so the error is below (groups + 2) * 2^-23 of the sum of
 * magnitudes. */
static void check_q8(const cpu_kern *k, const cpu_kern *generic, const matrix *m, uint64_t *seed)
{
    /* More tokens than a kernel keeps in registers. */
    uint32_t n = 1 + (uint32_t)(t_rand(seed) % 24), groups = m->cols / 32;
    guarded x = random_rows(n, m->cols, m->cols, seed);
    guarded q = guard_new((size_t)n * m->cols), d = guard_new((size_t)n * groups * sizeof(float));
    guarded s = guard_new((size_t)n * groups * sizeof(int32_t));
    guarded c = guard_new(n * CPU_LANES * sizeof(float)), want = guard_new(c.n);
    float *dx = (float *)(void *)d.p, *got = (float *)(void *)c.p, *ref = (float *)(void *)want.p;
    for (uint32_t t = 0; t < n; t++)
        k->act_q8((const float *)(void *)x.p + t * m->cols, m->cols, n, t, (int8_t *)q.p, dx,
                  (int32_t *)(void *)s.p);
    cpu_q8 in = {(const int8_t *)q.p, dx, (const int32_t *)(const void *)s.p, n};
    for (uint32_t tile = 0; tile < m->tiles; tile++) {
        uint32_t t0 = n / 3, nt = n - t0;
        k->q8[m->type](m->r16.p + tile * m->tile_bytes, m->cols, &in, t0, nt, got);
        generic->q8[m->type](m->r16.p + tile * m->tile_bytes, m->cols, &in, t0, nt, ref);
        for (uint32_t t = 0; t < nt; t++)
            for (uint32_t r = 0; r < CPU_LANES; r++) {
                double sum = 0, size = 0;
                for (uint32_t i = 0; i < m->cols; i++) {
                    size_t at = (size_t)(i / 32) * n + t0 + t;
                    double v = (double)m->w[(size_t)(tile * CPU_LANES + r) * m->cols + i] *
                               (double)dx[at] * ((int8_t *)q.p)[at * 32 + i % 32];
                    sum += v;
                    size += fabs(v);
                }
                same("q8", m, tile * CPU_LANES + r, t, got[t * CPU_LANES + r],
                     ref[t * CPU_LANES + r]);
                T_NEAR(got[t * CPU_LANES + r], sum, size * (groups + 4) * 0x1p-22 + 1e-30);
            }
    }
    guard_free(&x), guard_free(&q), guard_free(&d), guard_free(&s), guard_free(&c),
        guard_free(&want);
}

static void check_level(int lv)
{
    cpu_kern k, generic;
    uint64_t seed = 11;
    if (!level_kern(lv, &k)) T_SKIP("this machine has no %s", levels[lv].name);
    cpu__kern_init(&generic, 0);
    for (int s = 0; s < N_SOURCES; s++) {
        size_t n_cols;
        const uint32_t *cols = cols_of(sources[s], &n_cols);
        for (size_t c = 0; c < n_cols; c++)
            for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts; r++) {
                matrix m;
                if (lv == 0 && row_counts[r] > 40) continue; /* plain C is slow */
                matrix_new(&m, sources[s], row_counts[r], cols[c], &seed);
                if (lv == 0) check_definition(&m, &seed);
                check_gemv(&k, &m, &seed);
                check_rows(&k, &m, &seed);
                check_panel(&k, &m, &seed);
                if (k.q8[m.type]) check_q8(&k, &generic, &m, &seed);
                matrix_free(&m);
            }
    }
}

T_CASE(kern_mul, generic)
{
    check_level(0);
}
T_CASE(kern_mul, avx2)
{
    check_level(1);
}
T_CASE(kern_mul, avx512)
{
    check_level(2);
}
T_CASE(kern_mul, avx512_vnni)
{
    check_level(3);
}

/* Every form has all its kernels at every level: no NULL waits to be called. */
T_CASE(kern_mul, table_is_full)
{
    for (int lv = 0; lv < LEVELS; lv++) {
        cpu_kern k;
        if (!level_kern(lv, &k)) continue;
        for (int t = 0; t < HT_TYPES; t++) {
            bool form = ht_r16_type(t) == t, quantised = form && ht_types[t].block > 1;
            T_CHECK(!form == !k.gemv[t] && !form == !k.rows[t] && !form == !k.widen[t], "%s %s",
                    levels[lv].name, ht_types[t].name);
            T_CHECK(!quantised == !k.q8[t], "%s q8 %s", levels[lv].name, ht_types[t].name);
            if (!form || cpu__form(t) == CPU_FLOATS) continue;
            T_CHECK(k.fold[cpu__form(t)] && k.spread[cpu__form(t)], "%s fold %s", levels[lv].name,
                    ht_types[t].name);
        }
        T_TRUE(k.panel && k.nt_panel >= 1 && k.nt_panel <= CPU_NT_PANEL);
    }
}

/* An r16 row decodes to what the source type's decoder gives, for every type. */
T_CASE(kern_mul, r16_rows_decode_alike)
{
    uint64_t seed = 5;
    for (int s = 0; s < N_SOURCES; s++) {
        matrix m;
        uint32_t cols = ht_types[sources[s]].block == 1 ? 37 : 512;
        float *row = malloc(cols * sizeof *row);
        matrix_new(&m, sources[s], 21, cols, &seed);
        for (uint32_t r = 0; r < 21; r++) {
            ht_r16_row(m.type, m.r16.p, 21, cols, r, row);
            for (uint32_t k = 0; k < cols; k++)
                T_CHECK(row[k] == m.w[r * cols + k], "%s row %u col %u: %g for %g",
                        ht_types[sources[s]].name, r, k, (double)row[k], (double)m.w[r * cols + k]);
        }
        matrix_free(&m);
        free(row);
    }
}
