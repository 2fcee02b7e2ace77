/* kern.c - every kernel of the cpu engine alone: checked first, then timed; a kernel that was
 * not checked in this process is not timed. One thread; the best of many short windows, since
 * neighbours on the machine only ever add time. Beside each figure its part of what this machine
 * does in the same run: memory bandwidth for kernels that stream weights, multiply-adds for
 * those that compute.
 *
 *     build/bench/kern [MIB of weights, default 192] [generic|avx2|avx512] */
#include "backend/cpu/kern.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "core/measure.h"
#include "quant/r16.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { COLS = 1024, MANY = 48, WINDOWS = 300 };

typedef struct {
    const cpu_kern *k;
    int type;
    uint8_t *w;
    size_t tile_bytes, bytes; /* of a tile, of all tiles                                      */
    uint32_t tiles;
    float *x, *y, *panel;
    int8_t *q;
    float *d;
    int32_t *sum;
    double read, fma; /* bytes and operations a second of this machine, one thread     */
} bench;

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

static float chain(const float *w, const float *x)
{
    float total = 0;
    for (uint32_t k0 = 0; k0 < COLS; k0 += CPU_KC) {
        float a = 0;
        for (uint32_t k = k0; k < k0 + CPU_KC; k++) a = fmaf(w[k], x[k], a);
        total = k0 ? total + a : a;
    }
    return total;
}

static void prefill_tile(const bench *b, uint32_t tokens)
{
    uint32_t gc, gb;
    ht_r16_group(b->type, &gc, &gb);
    for (uint32_t k0 = 0; k0 < COLS; k0 += CPU_KC) {
        b->k->widen[b->type](b->w + (size_t)(k0 / gc) * gb, CPU_KC, b->panel);
        for (uint32_t t = 0, nt; t < tokens; t += nt) {
            nt = tokens - t < b->k->nt_panel ? tokens - t : b->k->nt_panel;
            b->k->panel(b->panel, CPU_KC, b->x + (size_t)t * (COLS + 16) + k0, COLS + 16, nt,
                        b->y + (size_t)t * CPU_LANES, CPU_LANES, k0 != 0);
        }
    }
}

/* All kernels of the type on the first tile: true when they give the bits they must (f32) or
 * agree with the real product (q8). */
static bool check(bench *b)
{
    float row[COLS], got[5 * CPU_LANES];
    bool ok = true;
    const bool q8 = b->k->q8[b->type] != NULL;
    for (uint32_t t = 0; q8 && t < MANY; t++)
        b->k->act_q8(b->x + (size_t)t * (COLS + 16), COLS, MANY, t, b->q, b->d, b->sum);
    b->k->gemv[b->type](b->w, b->tile_bytes, 2, COLS, b->x, b->y);
    for (uint32_t r = 0; r < CPU_LANES; r++) {
        ht_r16_row(b->type, b->w, CPU_LANES, COLS, r, row);
        float want = chain(row, b->x);
        ok = ok && b->y[r] == want && b->y[CPU_LANES + r] == want;
    }
    b->k->rows[b->type](b->w, COLS, b->x, COLS + 16, 5, got, CPU_LANES);
    prefill_tile(b, MANY);
    for (uint32_t r = 0; r < CPU_LANES; r++) {
        ht_r16_row(b->type, b->w, CPU_LANES, COLS, r, row);
        for (uint32_t t = 0; t < MANY; t++) {
            float want = chain(row, b->x + (size_t)t * (COLS + 16));
            ok =
                ok && b->y[t * CPU_LANES + r] == want && (t >= 5 || got[t * CPU_LANES + r] == want);
        }
    }
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

/* Least nanoseconds of one call of fn over windows. */
typedef void (*work_fn)(bench *, uint32_t i);
static double least(bench *b, work_fn fn, uint32_t windows)
{
    double best = INFINITY;
    for (uint32_t i = 0; i < windows; i++) {
        uint64_t t0 = ht_now_ns();
        fn(b, i);
        double ns = (double)(ht_now_ns() - t0);
        if (ns < best) best = ns;
    }
    return best;
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
    return b->w + (size_t)(i * 7 % places) * n * b->tile_bytes;
}
static void do_gemv(bench *b, uint32_t i)
{
    b->k->gemv[b->type](window(b, i), b->tile_bytes, window_tiles(b), COLS, b->x, b->y);
}
static void do_gemv_hot(bench *b, uint32_t i)
{
    (void)i;
    b->k->gemv[b->type](b->w, b->tile_bytes, 8, COLS, b->x, b->y);
}
static void do_rows5(bench *b, uint32_t i)
{
    const uint8_t *w = window(b, i);
    for (uint32_t t = 0; t < window_tiles(b); t++, w += b->tile_bytes)
        b->k->rows[b->type](w, COLS, b->x, COLS + 16, 5, b->y, CPU_LANES);
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

#if defined(__x86_64__)
/* Ceilings of int8 products on AVX2, operations (two a product) a second: vpmaddubsw + vpmaddwd
 * + vpaddd, and four vpmaddubsw summed in 16 bits before one vpmaddwd. */
__attribute__((target("avx2"))) static double maddubs_rate(int summed)
{
    double best = 0;
    __m256i acc[8], w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(5), one = _mm256_set1_epi16(1);
    volatile int sink;
    for (int r = 0; r < 200; r++) {
        enum { LOOPS = 2000 };
        for (int i = 0; i < 8; i++) acc[i] = _mm256_setzero_si256();
        uint64_t t0 = ht_now_ns();
        for (int n = 0; n < LOOPS; n++) {
            for (int i = 0; i < 8; i++) {
                __m256i p = _mm256_maddubs_epi16(w, x);
                __asm__ volatile("" : "+x"(w), "+x"(x));
                for (int j = 1; j < (summed ? 4 : 1); j++) {
                    p = _mm256_add_epi16(p, _mm256_maddubs_epi16(w, x));
                    __asm__ volatile("" : "+x"(w), "+x"(x));
                }
                acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(p, one));
            }
        }
        double ops = 2.0 * 32 * 8 * LOOPS * (summed ? 4 : 1), s = (double)(ht_now_ns() - t0) * 1e-9;
        for (int i = 1; i < 8; i++) acc[0] = _mm256_add_epi32(acc[0], acc[i]);
        sink = _mm256_extract_epi32(acc[0], 0);
        (void)sink;
        if (ops / s > best) best = ops / s;
    }
    return best;
}
#endif

static void report_type(bench *b, size_t bytes)
{
    const char *name = ht_types[b->type].name;
    if (!fill(b, bytes)) {
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
        if (b->k->q8[b->type])
            printf(" | q8: %5.1f GB/s, %5.1f GOP/s", wb / least(b, do_q8_1, WINDOWS),
                   flops / least(b, do_q8_many, WINDOWS * 4));
        printf("\n");
    }
    ht_page_free(b->w, b->bytes);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int types[] = {HT_F32,  HT_F16,  HT_BF16, HT_Q8_0,
                                HT_Q4_0, HT_Q4_1, HT_Q4_K, HT_Q6_K};
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 192;
    unsigned feat = ht_cpu_features();
    ht_read_rate read;
    ht_fma_rate fma;
    ht_err e = {0};
    cpu_kern k;
    if (argc > 2 && !strcmp(argv[2], "generic")) feat = 0;
    if (argc > 2 && !strcmp(argv[2], "avx2")) feat &= HT_CPU_AVX2;
    cpu__kern_init(&k, feat);
    if (mib < 32 || ht_measure_read(1, (uint64_t)1 << 30, NULL, &read, &e) ||
        ht_measure_fma(1, NULL, &fma, &e)) {
        fprintf(stderr, "bench/kern: %s\n", mib < 32 ? "at least 32 MiB of weights" : e.msg);
        return 1;
    }
    bench b = {.k = &k, .read = read.bytes_per_s, .fma = fma.flops_per_s};
    b.x = ht_page_alloc(MANY * (COLS + 16) * sizeof *b.x);
    b.y = ht_page_alloc((size_t)1 << 20);
    b.panel = ht_page_alloc(CPU_KC * CPU_LANES * sizeof *b.panel);
    b.q = ht_page_alloc(MANY * COLS);
    b.d = ht_page_alloc(MANY * COLS / 32 * sizeof *b.d);
    b.sum = ht_page_alloc(MANY * COLS / 32 * sizeof *b.sum);
    if (!b.x || !b.y || !b.panel || !b.q || !b.d || !b.sum) return 1;
    for (size_t i = 0; i < MANY * (COLS + 16); i++) b.x[i] = uniform();
    printf("%s, level %s, one thread: read %.1f GB/s (%s), fma %.1f GFLOP/s", ht_cpu_name(),
           k.level, read.bytes_per_s * 1e-9, read.kernel, fma.flops_per_s * 1e-9);
#if defined(__x86_64__)
    if (ht_cpu_features() & HT_CPU_AVX2)
        printf(", maddubs+madd %.0f GOP/s, summed %.0f", maddubs_rate(0) * 1e-9,
               maddubs_rate(1) * 1e-9);
#endif
    printf("\n");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        b.type = types[i];
        report_type(&b, mib << 20);
    }
    return 0;
}
