/* kern.c - every kernel of the cpu engine alone: checked first, then timed; a kernel that was
 * not checked in this process is not timed. All threads work at once, between two barriers; the
 * best of many short windows counts, since neighbours on the machine only ever add time. Beside
 * each figure its part of what this machine does in the same run: memory bandwidth for kernels
 * that stream weights, multiply-adds for those that compute.
 *
 *     build/bench/kern [MIB of weights, default 192] [generic|avx2|avx512|best] [threads, 1]
 *         [type, all] */
#include "backend/cpu/kern.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "core/measure.h"
#include "core/team.h"
#include "quant/r16.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLS = 1024, MANY = 48, WINDOWS = 300 };

typedef struct {
    const cpu_kern *k;
    int type;
    uint8_t *w;
    size_t tile_bytes, bytes; /* of a tile, of all tiles                                      */
    uint32_t tiles;
    float *x, *z, *y, *panel; /* z: rows of the type's form                                  */
    cpu_scale *scale;
    int8_t *q;
    float *d;
    int32_t *sum;
    double read, fma; /* bytes and operations a second of this machine                 */
    ht_team *team;
    int rank, size;
} bench; /* of one thread; what is written is its own                           */

static uint64_t noise = 88172645463325252ULL;
static float uniform(void)
{
    noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
    return (float)(noise >> 40) / 8388608.0f - 1.0f;
}

/* One row of 16 tiles is encoded, the rest repeats it: kernels do not look at values. */
static bool fill(bench *b, size_t want_bytes)
{
    uint64_t row_bytes;
    b->tile_bytes = (size_t)ht_r16_tile_bytes(b->type, COLS);
    b->tiles = (uint32_t)(want_bytes / b->tile_bytes / 64 * 64);
    b->bytes = b->tiles * b->tile_bytes;
    b->w = ht_page_alloc(b->bytes);
    if (!b->w || !ht_row_bytes(b->type, COLS, &row_bytes)) return false;
    uint8_t *rows = ht_mem_alloc((size_t)row_bytes * CPU_LANES);
    float *x = ht_mem_array(COLS, sizeof *x);
    if (!rows || !x) return false;
    for (uint32_t r = 0; r < CPU_LANES; r++) {
        for (uint32_t k = 0; k < COLS; k++) x[k] = uniform() / 32.0f;
        ht_types[b->type].encode(x, rows + r * row_bytes, COLS);
    }
    ht_r16_pack(b->type, rows, CPU_LANES, COLS, 0, 1, b->w);
    for (uint32_t t = 1; t < b->tiles; t++) memcpy(b->w + t * b->tile_bytes, b->w, b->tile_bytes);
    ht_mem_free(rows);
    ht_mem_free(x);
    return true;
}

/* Floats between the rows that kernels of the type read; a row may end with its sums. */
enum { LD = COLS + COLS / 16 + 16 };

static void prefill_tile(const bench *b, uint32_t tokens)
{
    const enum cpu_form form = cpu__form(b->type);
    uint32_t gc, gb;
    ht_r16_group(b->type, &gc, &gb);
    for (uint32_t k0 = 0; k0 < COLS; k0 += CPU_KC) {
        b->k->widen[b->type](b->w + (size_t)(k0 / gc) * gb, CPU_KC, b->panel, b->scale);
        for (uint32_t t = 0, nt; t < tokens; t += nt) {
            const float *x = b->z + (size_t)t * LD;
            float *y = b->y + (size_t)t * CPU_LANES;
            nt = tokens - t < b->k->nt_panel ? tokens - t : b->k->nt_panel;
            if (form == CPU_FLOATS)
                b->k->panel(b->panel, CPU_KC, x + k0, LD, nt, y, CPU_LANES, k0 != 0);
            else
                b->k->fold[form](b->panel, b->scale, CPU_KC, x + k0,
                                 x + COLS + k0 / CPU_GROUP(form), LD, nt, y, k0 != 0);
        }
    }
}

/* All kernels of the type on the first tile: true when those of --act f32 agree with the product of
 * the decoded weights and with each other to the bit, and those of q8 with the real product.
 * tests/kern holds them to their definitions. */
static bool check(bench *b)
{
    float row[COLS], got[5 * CPU_LANES];
    bool ok = true;
    const bool q8 = b->k->q8[b->type] != NULL;
    for (uint32_t t = 0; q8 && t < MANY; t++)
        b->k->act_q8(b->x + (size_t)t * COLS, COLS, MANY, t, b->q, b->d, b->sum);
    b->k->rows[b->type](b->w, COLS, b->z, LD, 5, got, CPU_LANES);
    prefill_tile(b, MANY);
    for (uint32_t r = 0; r < CPU_LANES; r++) {
        ht_r16_row(b->type, b->w, CPU_LANES, COLS, r, row);
        for (uint32_t t = 0; t < MANY; t++) {
            double sum = 0, size = 0;
            float y = b->y[t * CPU_LANES + r];
            for (uint32_t k = 0; k < COLS; k++) {
                double v = (double)row[k] * (double)b->x[(size_t)t * COLS + k];
                sum += v, size += fabs(v);
            }
            ok = ok && fabs((double)y - sum) <= size * 1e-4 &&
                 (t >= 5 || got[t * CPU_LANES + r] == y);
        }
        got[r] = b->y[r];
    }
    b->k->gemv[b->type](b->w, b->tile_bytes, 2, COLS, b->z, b->y);
    for (uint32_t r = 0; r < 2 * CPU_LANES; r++) ok = ok && b->y[r] == got[r % CPU_LANES];
    if (!q8) return ok;
    cpu_q8 in = {b->q, b->d, b->sum, MANY};
    b->k->q8[b->type](b->w, COLS, &in, 0, MANY, b->y);
    for (uint32_t r = 0; r < CPU_LANES; r++) {
        ht_r16_row(b->type, b->w, CPU_LANES, COLS, r, row);
        for (uint32_t t = 0; t < MANY; t++) {
            double sum = 0, size = 0;
            for (uint32_t k = 0; k < COLS; k++) {
                size_t at = (size_t)(k / 32) * MANY + t;
                double v = (double)row[k] * b->q[at * 32 + k % 32] * (double)b->d[at];
                sum += v, size += fabs(v);
            }
            ok = ok && fabs((double)b->y[t * CPU_LANES + r] - sum) <= size * 1e-5;
        }
    }
    return ok;
}

/* Least nanoseconds in which every thread of the gang called fn once. */
typedef void (*work_fn)(bench *, uint32_t i);
typedef struct {
    bench *b; /* [threads] */
    work_fn fn;
    uint32_t windows;
    double best;
} gang;
static void gang_rank(void *arg, int rank, int size)
{
    gang *g = arg;
    (void)size;
    for (uint32_t i = 0; i < g->windows; i++) {
        ht_team_barrier(g->b->team);
        uint64_t t0 = ht_now_ns();
        g->fn(&g->b[rank], i);
        ht_team_barrier(g->b->team);
        double ns = (double)(ht_now_ns() - t0);
        if (rank == 0 && ns < g->best) g->best = ns;
    }
}
static double least(bench *b, work_fn fn, uint32_t windows)
{
    gang g = {b, fn, windows, INFINITY};
    ht_team_run(b->team, gang_rank, &g);
    return g.best / b->size; /* of one thread's share, as if the shares had followed each other */
}

/* Tiles of a window: about a megabyte, another place each time, so that weights come from
 * memory. */
static uint32_t window_tiles(const bench *b)
{
    uint32_t n = (uint32_t)((1 << 20) / b->tile_bytes / 8 * 8);
    return n < 8 ? 8 : n;
}
static const uint8_t *window(const bench *b, uint32_t i)
{
    uint32_t n = window_tiles(b), places = b->tiles / n;
    uint32_t first = (uint32_t)b->rank * (places / (uint32_t)b->size);
    return b->w + (size_t)((first + i * 7) % places) * n * b->tile_bytes;
}
static void do_gemv(bench *b, uint32_t i)
{
    b->k->gemv[b->type](window(b, i), b->tile_bytes, window_tiles(b), COLS, b->z, b->y);
}
static void do_gemv_hot(bench *b, uint32_t i)
{
    (void)i;
    b->k->gemv[b->type](b->w, b->tile_bytes, 8, COLS, b->z, b->y);
}
static void do_rows5(bench *b, uint32_t i)
{
    const uint8_t *w = window(b, i);
    for (uint32_t t = 0; t < window_tiles(b); t++, w += b->tile_bytes)
        b->k->rows[b->type](w, COLS, b->z, LD, 5, b->y, CPU_LANES);
}
static void do_panel5(bench *b, uint32_t i)
{
    const uint8_t *w = b->w;
    b->w = (uint8_t *)(uintptr_t)window(b, i);
    for (uint32_t t = 0; t < window_tiles(b); t++, b->w += b->tile_bytes) prefill_tile(b, 5);
    b->w = (uint8_t *)(uintptr_t)w;
}
static void do_q8_1(bench *b, uint32_t i)
{
    const uint8_t *w = window(b, i);
    cpu_q8 in = {b->q, b->d, b->sum, MANY};
    for (uint32_t t = 0; t < window_tiles(b); t++, w += b->tile_bytes)
        b->k->q8[b->type](w, COLS, &in, 3, 1, b->y);
}
static void do_q8_5(bench *b, uint32_t i)
{
    const uint8_t *w = window(b, i);
    cpu_q8 in = {b->q, b->d, b->sum, MANY};
    for (uint32_t t = 0; t < window_tiles(b); t++, w += b->tile_bytes)
        b->k->q8[b->type](w, COLS, &in, 0, 5, b->y);
}
static void do_prefill(bench *b, uint32_t i)
{
    (void)i;
    prefill_tile(b, MANY);
}
static void do_q8_many(bench *b, uint32_t i)
{
    cpu_q8 in = {b->q, b->d, b->sum, MANY};
    (void)i;
    b->k->q8[b->type](b->w, COLS, &in, 0, MANY, b->y);
}

/* The type's weights for every thread; the threads' copies of the first one's bench. */
static bool begin_type(bench *b, int type, size_t bytes)
{
    b->type = type;
    if (!fill(b, bytes)) return false;
    const enum cpu_form form = cpu__form(type);
    for (uint32_t t = 0; t < MANY; t++) {
        const float *x = b->x + (size_t)t * COLS;
        if (form == CPU_FLOATS) memcpy(b->z + (size_t)t * LD, x, COLS * sizeof *x);
        else b->k->spread[form](x, COLS, b->z + (size_t)t * LD);
    }
    for (int i = 1; i < b->size; i++) {
        bench *o = &b[i];
        o->type = type, o->w = b->w, o->tile_bytes = b->tile_bytes, o->bytes = b->bytes;
        o->tiles = b->tiles;
    }
    return true;
}

static void report_type(bench *b, int type, size_t bytes)
{
    const char *name = ht_types[type].name;
    if (!begin_type(b, type, bytes)) {
        printf("%-6s out of memory\n", name);
        return;
    }
    if (!check(b)) {
        printf("%-6s WRONG: not timed\n", name);
    } else {
        double wb = (double)window_tiles(b) * (double)b->tile_bytes;
        double flops = 2.0 * COLS * CPU_LANES * MANY;
        double gemv = wb / least(b, do_gemv, WINDOWS), rows5 = wb / least(b, do_rows5, WINDOWS);
        double panel5 = wb / least(b, do_panel5, WINDOWS);
        double hot = 8.0 * (double)b->tile_bytes / least(b, do_gemv_hot, WINDOWS * 10);
        double fill_f = flops / least(b, do_prefill, WINDOWS * 4);
        printf("%-6s gemv %5.1f GB/s (%3.0f%%) in cache %5.1f | 5 tokens: rows %5.1f GB/s, panel "
               "%5.1f (%.2fx of one) | prefill "
               "%5.1f GFLOP/s (%3.0f%%)",
               name, gemv, 1e11 * gemv / b->read, hot, rows5, panel5,
               gemv / (rows5 > panel5 ? rows5 : panel5), fill_f, 1e11 * fill_f / b->fma);
        if (b->k->q8[type])
            printf(" | q8: %5.1f GB/s, 5 tokens %5.1f, %5.1f GOP/s",
                   wb / least(b, do_q8_1, WINDOWS), wb / least(b, do_q8_5, WINDOWS),
                   flops / least(b, do_q8_many, WINDOWS * 4));
        printf("\n");
    }
    ht_page_free(b->w, b->bytes);
    fflush(stdout);
}

/* Inputs, shared, and what each thread writes. */
static bool take_memory(bench *b)
{
    b->x = ht_page_alloc((size_t)MANY * COLS * sizeof *b->x);
    b->z = ht_page_alloc((size_t)MANY * LD * sizeof *b->z);
    b->q = ht_page_alloc(MANY * COLS);
    b->d = ht_page_alloc(MANY * COLS / 32 * sizeof *b->d);
    b->sum = ht_page_alloc(MANY * COLS / 32 * sizeof *b->sum);
    if (!b->x || !b->z || !b->q || !b->d || !b->sum) return false;
    for (size_t i = 0; i < (size_t)MANY * COLS; i++) b->x[i] = uniform();
    for (int i = b->size - 1; i >= 0; i--) {
        int size = b->size;
        b[i] = b[0];
        b[i].rank = i;
        b[i].size = size;
        b[i].y = ht_page_alloc((size_t)1 << 20);
        b[i].panel = ht_page_alloc(CPU_KC * CPU_LANES * sizeof *b->panel);
        b[i].scale = ht_page_alloc(CPU_GROUPS * sizeof *b->scale);
        if (!b[i].y || !b[i].panel || !b[i].scale) return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static const int types[] = {HT_F32,  HT_F16,  HT_BF16, HT_Q8_0,
                                HT_Q4_0, HT_Q4_1, HT_Q4_K, HT_Q6_K};
    enum { THREADS_MAX = 16 };
    static bench b[THREADS_MAX];
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 192;
    int threads = argc > 3 ? atoi(argv[3]) : 1;
    unsigned feat = ht_cpu_features();
    ht_read_rate read;
    ht_fma_rate fma;
    ht_int8_rate int8;
    ht_err e = {0};
    cpu_kern k;
    if (argc > 2 && !strcmp(argv[2], "generic")) feat = 0;
    if (argc > 2 && !strcmp(argv[2], "avx2")) feat &= HT_CPU_AVX2;
    cpu__kern_init(&k, feat);
    if (mib < 32 || threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "bench/kern: at least 32 MiB of weights, 1 to %d threads\n", THREADS_MAX);
        return 1;
    }
    if (ht_measure_read(threads, (uint64_t)1 << 30, NULL, &read, &e) ||
        ht_measure_fma(threads, NULL, &fma, &e) ||
        ht_measure_int8(threads, argc > 2 ? argv[2] : NULL, &int8, &e) ||
        ht_team_new(&b->team, threads, &e)) {
        fprintf(stderr, "bench/kern: %s\n", e.msg);
        return 1;
    }
    b->k = &k, b->read = read.bytes_per_s, b->fma = fma.flops_per_s, b->size = threads;
    if (!take_memory(b)) return 1;
    printf("%s, level %s, %d thread%s: read %.1f GB/s (%s), fma %.1f GFLOP/s", ht_cpu_name(),
           k.level, threads, threads > 1 ? "s" : "", read.bytes_per_s * 1e-9, read.kernel,
           fma.flops_per_s * 1e-9);
    printf(", 8-bit products %.0f GOP/s (%s)", int8.ops_per_s * 1e-9, int8.isa);
    if (int8.summed_ops_per_s > 0) printf(", %.0f summed in 16 bits", int8.summed_ops_per_s * 1e-9);
    printf("\n");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (argc <= 4 || !strcmp(argv[4], ht_types[types[i]].name))
            report_type(b, types[i], mib << 20);
    ht_team_free(b->team);
    return 0;
}
