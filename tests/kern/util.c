/* util.c - see kern.h. */
#include "kern.h"
#include <sys/mman.h>
#include <unistd.h>

guarded guard_new(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (n + page - 1) / page * page;
    guarded g = {.n = n, .map_n = body + 2 * page};
    g.map = mmap(NULL, g.map_n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    T_CHECK(g.map != MAP_FAILED, "mmap of %zu bytes", g.map_n);
    T_EQ_INT(mprotect(g.map + page, body, PROT_READ | PROT_WRITE), 0);
    memset(g.map + page, 0xff, body);
    g.p = g.map + page + body - n;
    return g;
}

void guard_free(guarded *g)
{
    (void)munmap(g->map, g->map_n);
}

const level levels[LEVELS] = {
    {"generic", 0},
    {"avx2", HT_CPU_AVX2},
    {"avx512", HT_CPU_AVX2 | HT_CPU_AVX512},
    {"avx512+vnni", HT_CPU_AVX2 | HT_CPU_AVX512 | HT_CPU_VNNI},
};

bool level_kern(int i, cpu_kern *k)
{
    if ((ht_cpu_features() & levels[i].feat) != levels[i].feat) return false;
    cpu__kern_init(k, levels[i].feat);
    return true;
}

void matrix_new(matrix *m, int src, uint32_t rows, uint32_t cols, uint64_t *seed)
{
    uint64_t row_bytes, r16_bytes;
    *m = (matrix){.src = src, .type = ht_r16_type(src), .rows = rows, .cols = cols};
    m->tiles = (rows + CPU_LANES - 1) / CPU_LANES;
    m->tile_bytes = (size_t)ht_r16_tile_bytes(m->type, cols);
    T_CHECK(ht_row_bytes(src, cols, &row_bytes) && ht_r16_bytes(m->type, rows, cols, &r16_bytes),
            "%s %u x %u", ht_types[src].name, rows, cols);
    uint8_t *bytes = malloc((size_t)row_bytes * rows);
    float *x = malloc(cols * sizeof *x);
    m->w = calloc((size_t)m->tiles * CPU_LANES * cols, sizeof *m->w);
    m->r16 = guard_new((size_t)r16_bytes);
    T_TRUE(bytes && x && m->w);
    for (uint32_t r = 0; r < rows; r++) {
        /* Rows of very different size, some all zero: scales from subnormal halves upwards. */
        float size = r % 7 == 3 ? 0.0f : ldexpf(1.0f, -(int)(r % 23));
        for (uint32_t k = 0; k < cols; k++) x[k] = size * t_randf(seed);
        ht_types[src].encode(x, bytes + r * row_bytes, cols);
        ht_types[src].decode(bytes + r * row_bytes, m->w + (size_t)r * cols, cols);
    }
    ht_r16_pack(src, bytes, rows, cols, 0, m->tiles, m->r16.p);
    free(bytes);
    free(x);
}

void matrix_free(matrix *m)
{
    guard_free(&m->r16);
    free(m->w);
}

float chain_dot(const float *w, const float *x, uint32_t k)
{
    float total = 0;
    for (uint32_t k0 = 0; k0 < k; k0 += CPU_KC) {
        float a = 0;
        for (uint32_t i = k0; i < k && i < k0 + CPU_KC; i++) a = fmaf(w[i], x[i], a);
        total = k0 ? total + a : a;
    }
    return total;
}

static float half_at(const uint8_t *p, uint32_t r)
{
    uint16_t h;
    memcpy(&h, p + 2 * r, sizeof h);
    return ht_f16_to_f32(h);
}
static uint32_t lane32(const uint8_t *p, uint32_t r)
{
    uint32_t v;
    memcpy(&v, p + 4 * r, sizeof v);
    return v;
}
static uint32_t bits_at(const uint8_t *q, uint32_t r, uint32_t shift, uint32_t mask)
{
    return lane32(q, r) >> shift & mask;
}
static int nibble(const uint8_t *q, uint32_t r, uint32_t k)
{
    return (int)bits_at(q + 64 * (k / 8), r, 8 * (k % 4) + 4 * (k / 4 % 2), 15);
}

/* Scale, offset and level of column k of row r, read from a tile's bytes as quant/r16.c draws
 * them. */
static int level_of(int type, const uint8_t *w, uint32_t r, uint32_t k, float *d, float *m)
{
    uint32_t j = k % 256 / 32, i = k % 256 / 16;
    *m = 0;
    if (type == HT_Q4_K) {
        w += (size_t)2304 * (k / 256);
        uint32_t sc = bits_at(w + 64, r, 4 * j, 15) | bits_at(w + 192, r, 2 * j, 3) << 4;
        uint32_t mn = bits_at(w + 128, r, 4 * j, 15) | bits_at(w + 192, r, 16 + 2 * j, 3) << 4;
        *d = half_at(w, r) * (float)sc;
        *m = -(half_at(w + 32, r) * (float)mn);
        return nibble(w + 256, r, k % 256);
    }
    if (type == HT_Q6_K) {
        w += (size_t)3360 * (k / 256);
        *d = half_at(w, r) * (float)(int8_t)w[32 + CPU_LANES * i + r];
        w += 288 + 192 * i;
        if (k % 16 < 12) return (int)bits_at(w + 64 * (k % 16 / 4), r, 8 * (k % 4), 63) - 32;
        uint32_t q = 0;
        for (uint32_t c = 0; c < 3; c++) q |= bits_at(w + 64 * c, r, 8 * (k % 4) + 6, 3) << 2 * c;
        return (int)q - 32;
    }
    w += (size_t)(type == HT_Q8_0 ? 544 : type == HT_Q4_0 ? 288 : 320) * (k / 32);
    *d = half_at(w, r);
    if (type == HT_Q8_0) return (int)bits_at(w + 32 + 64 * (k % 32 / 4), r, 8 * (k % 4), 255) - 128;
    *m = type == HT_Q4_0 ? -8 * *d : half_at(w + 32, r);
    return nibble(w + (type == HT_Q4_0 ? 32 : 64), r, k % 32);
}

/* Of 4n columns. */
static float group_sum(const float *x, uint32_t n)
{
    float s[8];
    for (uint32_t j = 0; j < n; j++) s[j] = (x[j] + x[n + j]) + (x[2 * n + j] + x[3 * n + j]);
    if (n == 4) return (s[0] + s[2]) + (s[1] + s[3]);
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

float product_dot(const matrix *m, uint32_t row, const float *x)
{
    const uint8_t *tile = m->r16.p + row / CPU_LANES * m->tile_bytes;
    uint32_t gc = m->type == HT_Q6_K ? 16 : 32;
    float total = 0, d = 0, off = 0;
    if (cpu__form(m->type) == CPU_FLOATS)
        return chain_dot(m->w + (size_t)row * m->cols, x, m->cols);
    for (uint32_t k0 = 0; k0 < m->cols; k0 += gc) {
        const int zero = m->type == HT_Q6_K ? 32 : 0;
        float s = zero ? -32 * group_sum(x + k0, 4) : 0;
        for (uint32_t k = k0; k < k0 + gc; k++)
            s = fmaf((float)(level_of(m->type, tile, row % CPU_LANES, k, &d, &off) + zero), x[k],
                     s);
        total = fmaf(d, s, total);
        if (cpu__form(m->type) == CPU_NIBBLES) total = fmaf(off, group_sum(x + k0, 8), total);
    }
    return total;
}

guarded spread_rows(const cpu_kern *k, int type, const guarded *x, uint32_t n, uint32_t cols,
                    size_t ldx, size_t *ld)
{
    enum cpu_form form = cpu__form(type);
    guarded z;
    if (form == CPU_FLOATS) {
        *ld = ldx;
        z = guard_new(x->n);
        memcpy(z.p, x->p, x->n);
        return z;
    }
    size_t row = (size_t)cols + (form == CPU_BYTES ? 0 : cols / CPU_GROUP(form));
    *ld = ldx + row - cols;
    z = guard_new(((n - 1) * *ld + row) * sizeof(float));
    for (uint32_t t = 0; t < n; t++)
        k->spread[form]((const float *)(void *)x->p + t * ldx, cols,
                        (float *)(void *)z.p + t * *ld);
    return z;
}
