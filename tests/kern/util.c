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
