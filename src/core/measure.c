/* measure.c - read bandwidth, multiply-add rate and rate of 8-bit products.
 *
 * Reading: every thread sums its own part of a buffer far larger than the caches, in three access
 * patterns, because which one fills the memory queues best depends on the processor's prefetchers:
 *   wide      one stream, eight independent accumulators
 *   streams   four streams a quarter of the part apart, two accumulators each
 *   prefetch  one stream with software prefetch 1 KiB ahead
 * Multiply-adds: independent chains of vector multiply-adds in registers, enough of them to cover
 * the latency of the units (latency 4 x 2 per cycle = 8 chains at least; 12 are used).
 * Products of bytes: the same with the instructions that --act q8 uses.
 * The results are consumed, so that no compiler can drop the work.
 *
 * A pass lasts a millisecond (multiply-adds) or some ten (reading): the best of a few finds a
 * moment without neighbours. ht_pace instead adds up passes over a tenth of a second at a time. */
#include "core/measure.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "core/team.h"
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define TARGET(x) __attribute__((target(x)))
#endif

enum { PASSES = 4, FMA_PASSES = 6, CHAINS = 12, CHAINS_AVX2 = 8, SUMMED = 4, FMA_ROUNDS = 400000 };
enum {
    PART_UNIT = 64 << 10,         /* a thread's part: whole pages in each of four streams        */
    PASS_BYTES = 256 << 20,       /* a pass reads at least this much, over and over if need be   */
    WINDOW_NS = 100 * 1000 * 1000 /* of ht_pace_take, at least                             */
};

typedef struct {
    uint64_t sum; /* one cache line per rank, so that ranks do not share lines   */
    uint64_t pad[7];
} line;
typedef uint64_t (*read_fn)(const uint8_t *p, size_t n); /* n a multiple of 4 KiB               */
typedef double (*fma_fn)(uint32_t rounds, float seed);   /* runs rounds * CHAINS vector FMAs, or
                                                            products of bytes                   */
typedef struct {
    read_fn read;
    fma_fn fma;
    const uint8_t *p;
    size_t part;      /* bytes of each thread                                       */
    unsigned repeats; /* of the part in one pass                                    */
    line *out;        /* [threads]                                                  */
} job;

/* ---- generic C ---- */

static uint64_t sum_words(const uint8_t *p, size_t n, size_t stride, unsigned streams)
{
    uint64_t acc[8] = {0};
    for (size_t i = 0; i < n; i += 64)
        for (unsigned s = 0; s < streams; s++) {
            uint64_t w[8];
            memcpy(w, p + s * stride + i, sizeof w);
            for (unsigned k = 0; k < 8; k++) acc[k] += w[k];
        }
    uint64_t sum = 0;
    for (unsigned k = 0; k < 8; k++) sum += acc[k];
    return sum;
}

static uint64_t read_wide_c(const uint8_t *p, size_t n)
{
    return sum_words(p, n, 0, 1);
}

static uint64_t read_streams_c(const uint8_t *p, size_t n)
{
    return sum_words(p, n / 4, n / 4, 4);
}

static uint64_t read_prefetch_c(const uint8_t *p, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += 1024) {
        for (size_t k = 0; k < 1024; k += 64) __builtin_prefetch(p + i + 1024 + k);
        sum += sum_words(p + i, 1024, 0, 1);
    }
    return sum;
}

/* Accumulators are named one by one: an array of them is kept in memory by a compiler that does not
 * unroll, and then stores are measured instead of the units. */
#define EACH4(M)  M(0) M(1) M(2) M(3)
#define EACH8(M)  EACH4(M) M(4) M(5) M(6) M(7)
#define EACH12(M) EACH8(M) M(8) M(9) M(10) M(11)

#define CHAINS_C(name, type, factor, addend)                                                       \
    static double name(uint32_t rounds, float seed)                                                \
    {                                                                                              \
        type x = factor, y = addend, sum = 0;                                                      \
        EACH12(INIT)                                                                               \
        for (uint32_t r = 0; r < rounds; r++) {                                                    \
            EACH12(STEP)                                                                           \
        }                                                                                          \
        EACH12(SUM)                                                                                \
        return (double)sum;                                                                        \
    }
#define STEP(i)                                                                                    \
    a##i[0] = a##i[0] * x + y, a##i[1] = a##i[1] * x + y, a##i[2] = a##i[2] * x + y,               \
    a##i[3] = a##i[3] * x + y;
#define SUM(i)  sum += a##i[0] + a##i[1] + a##i[2] + a##i[3];
#define INIT(i) float a##i[4] = {(float)i, (float)i, (float)i, (float)i};
CHAINS_C(fma_c, float, 1.0f - seed * 1e-7f, seed)
#undef INIT
#define INIT(i) uint32_t a##i[4] = {i, i + 1, i + 2, i + 3};
CHAINS_C(int8_c, uint32_t, (uint32_t)seed | 1, x + 2)
#undef INIT
#undef STEP
#undef SUM

#if defined(__x86_64__)
/* ---- AVX2 and AVX-512 ---- */

TARGET("avx2") static __m256i load256(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

/* Sum of all words of eight accumulators named a0 .. a7. */
#define INIT(i) __m256i a##i = _mm256_setzero_si256();
#define FOLD(i) total = _mm256_add_epi64(total, a##i);
#define TOTAL()                                                                                    \
    __m256i total = _mm256_setzero_si256();                                                        \
    uint64_t w[4];                                                                                 \
    EACH8(FOLD)                                                                                    \
    _mm256_storeu_si256((__m256i *)(void *)w, total);                                              \
    return w[0] + w[1] + w[2] + w[3]

TARGET("avx2") static uint64_t read_wide_avx2(const uint8_t *p, size_t n)
{
    EACH8(INIT)
#define STEP(k) a##k = _mm256_add_epi64(a##k, load256(p + i + 32 * k));
    for (size_t i = 0; i < n; i += 256) {
        EACH8(STEP)
    }
    TOTAL();
}

TARGET("avx2") static uint64_t read_streams_avx2(const uint8_t *p, size_t n)
{
    size_t q = n / 4;
    EACH8(INIT)
#define STEP4(k) a##k = _mm256_add_epi64(a##k, load256(p + (k / 2) * q + i + (k % 2) * 32));
    for (size_t i = 0; i < q; i += 64) {
        EACH8(STEP4)
    }
    TOTAL();
}

TARGET("avx2") static uint64_t read_prefetch_avx2(const uint8_t *p, size_t n)
{
    EACH8(INIT)
    for (size_t i = 0; i < n; i += 256) {
        for (int k = 0; k < 4; k++) _mm_prefetch((const char *)p + i + 1024 + 64 * k, _MM_HINT_T0);
        EACH8(STEP)
    }
    TOTAL();
}
#undef INIT
#undef FOLD
#undef TOTAL
#undef STEP
#undef STEP4

#define FMA_KERNEL(name, isa, vec, set1, first)                                                    \
    TARGET(isa) static double name(uint32_t rounds, float seed)                                    \
    {                                                                                              \
        vec x = set1(1.0f - seed * 1e-7f), y = set1(seed), sum = set1(0);                          \
        EACH12(INIT)                                                                               \
        for (uint32_t r = 0; r < rounds; r++) {                                                    \
            EACH12(STEP)                                                                           \
        }                                                                                          \
        EACH12(SUM)                                                                                \
        return (double)first(sum);                                                                 \
    }
#define INIT(i) __m256 a##i = _mm256_set1_ps((float)i);
#define STEP(i) a##i = _mm256_fmadd_ps(a##i, x, y);
#define SUM(i)  sum = _mm256_add_ps(sum, a##i);
FMA_KERNEL(fma_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_cvtss_f32)
#undef INIT
#undef STEP
#undef SUM
#define INIT(i) __m512 a##i = _mm512_set1_ps((float)i);
#define STEP(i) a##i = _mm512_fmadd_ps(a##i, x, y);
#define SUM(i)  sum = _mm512_add_ps(sum, a##i);
FMA_KERNEL(fma_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_cvtss_f32)
#undef INIT
#undef STEP
#undef SUM

/* Products of unsigned bytes w and signed bytes x, `deep` of them added in 16 bits before they are
 * widened. Their factors are made unknown each time: a product that never changes would be made
 * once. */
TARGET("avx2")
static inline __attribute__((always_inline)) double maddubs(uint32_t rounds, float seed,
                                                            const int deep)
{
    __m256i w = _mm256_set1_epi8(3), x = _mm256_set1_epi8((char)seed), one = _mm256_set1_epi16(1);
    __m256i total = _mm256_setzero_si256();
#define INIT(i) __m256i a##i = _mm256_setzero_si256();
#define STEP(i)                                                                                    \
    {                                                                                              \
        __m256i p = _mm256_maddubs_epi16(w, x);                                                    \
        __asm__ volatile("" : "+x"(w), "+x"(x));                                                   \
        for (int j = 1; j < deep; j++) {                                                           \
            p = _mm256_add_epi16(p, _mm256_maddubs_epi16(w, x));                                   \
            __asm__ volatile("" : "+x"(w), "+x"(x));                                               \
        }                                                                                          \
        a##i = _mm256_add_epi32(a##i, _mm256_madd_epi16(p, one));                                  \
    }
#define SUM(i) total = _mm256_add_epi32(total, a##i);
    EACH8(INIT)
    for (uint32_t r = 0; r < rounds; r++) {
        EACH8(STEP)
    }
    EACH8(SUM)
    return (double)_mm256_extract_epi32(total, 0);
#undef INIT
#undef STEP
#undef SUM
}
TARGET("avx2") static double int8_avx2(uint32_t rounds, float seed)
{
    return maddubs(rounds, seed, 1);
}
TARGET("avx2") static double int8_summed_avx2(uint32_t rounds, float seed)
{
    return maddubs(rounds, seed, SUMMED);
}

TARGET("avx512f,avx512vnni") static double int8_vnni(uint32_t rounds, float seed)
{
    const __m512i w = _mm512_set1_epi8(3), x = _mm512_set1_epi8((char)seed);
    __m512i total = _mm512_setzero_si512();
#define INIT(i) __m512i a##i = _mm512_setzero_si512();
#define STEP(i) a##i = _mm512_dpbusd_epi32(a##i, w, x);
#define SUM(i)  total = _mm512_add_epi32(total, a##i);
    EACH12(INIT)
    for (uint32_t r = 0; r < rounds; r++) {
        EACH12(STEP)
    }
    EACH12(SUM)
    return (double)_mm_cvtsi128_si32(_mm512_castsi512_si128(total));
#undef INIT
#undef STEP
#undef SUM
}
#endif

/* ---- timing ---- */

static const char *const read_names[3] = {"wide", "streams", "prefetch"};

/* Reading kernels for the instruction set. */
static void pick_readers(unsigned feat, read_fn out[3])
{
    out[0] = read_wide_c, out[1] = read_streams_c, out[2] = read_prefetch_c;
#if defined(__x86_64__)
    if (feat & HT_CPU_AVX2)
        out[0] = read_wide_avx2, out[1] = read_streams_avx2, out[2] = read_prefetch_avx2;
#else
    (void)feat;
#endif
}

/* The multiply-add kernel and its floats per vector. */
static fma_fn pick_fma(unsigned feat, unsigned *lanes, const char **isa)
{
#if defined(__x86_64__)
    if (feat & HT_CPU_AVX512) return *lanes = 16, *isa = "avx512", fma_avx512;
    if (feat & HT_CPU_AVX2) return *lanes = 8, *isa = "avx2", fma_avx2;
#else
    (void)feat;
#endif
    return *lanes = 4, *isa = "generic", fma_c;
}

/* The kernel of products of bytes, and operations of a round of it. */
static fma_fn pick_int8(unsigned feat, double *ops, const char **isa)
{
#if defined(__x86_64__)
    if ((feat & HT_CPU_AVX512) && (feat & HT_CPU_VNNI))
        return *ops = 2.0 * 64 * CHAINS, *isa = "avx512+vnni", int8_vnni;
    if (feat & HT_CPU_AVX2) return *ops = 2.0 * 32 * CHAINS_AVX2, *isa = "avx2", int8_avx2;
#else
    (void)feat;
#endif
    return *ops = 2.0 * 4 * CHAINS, *isa = "generic", int8_c;
}

static void read_rank(void *arg, int rank, int size)
{
    job *j = arg;
    (void)size;
    for (unsigned i = 0; i < j->repeats; i++)
        j->out[rank].sum += j->read(j->p + (size_t)rank * j->part, j->part);
}

static void fma_rank(void *arg, int rank, int size)
{
    job *j = arg;
    (void)size;
    j->out[rank].sum += (uint64_t)(j->fma(FMA_ROUNDS, (float)(rank + 1)) > 0);
}

/* Shortest of `passes` runs in ns. */
static uint64_t best_ns(ht_team *team, ht_team_fn fn, job *j, int passes)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < passes; i++) {
        uint64_t t0 = ht_now_ns();
        ht_team_run(team, fn, j);
        uint64_t t = ht_now_ns() - t0;
        if (t < best) best = t;
    }
    return best ? best : 1;
}

static unsigned allowed_features(const char *isa_max)
{
    unsigned feat = ht_cpu_features();
    if (isa_max && strcmp(isa_max, "generic") == 0) feat = 0;
    if (isa_max && strcmp(isa_max, "avx2") == 0) feat &= HT_CPU_AVX2;
    return feat;
}

static int make_job(job *j, ht_team **team, int threads, ht_err *e)
{
    if (threads < 1) return HT_FAIL(e, HT_EARG, "measuring: %d threads", threads);
    j->out = ht_mem_array((size_t)threads, sizeof *j->out);
    if (!j->out) return HT_FAIL(e, HT_ENOMEM, "measuring: out of memory");
    int rc = ht_team_new(team, threads, e);
    if (!rc) return 0;
    ht_mem_free(j->out);
    j->out = NULL;
    return rc;
}

/* The buffer to read, in equal parts; its size goes to *bytes. */
static int make_buffer(job *j, int threads, uint64_t *bytes, ht_err *e)
{
    uint64_t room = ht_mem_available() / 4;
    if (room && *bytes > room) *bytes = room;
    j->part = (size_t)(*bytes / (uint64_t)threads + PART_UNIT - 1) / PART_UNIT * PART_UNIT;
    if (j->part < PART_UNIT) j->part = PART_UNIT;
    *bytes = (uint64_t)j->part * (uint64_t)threads;
    j->repeats = (unsigned)(PASS_BYTES / *bytes + 1);
    uint8_t *p = ht_page_alloc((size_t)*bytes);
    if (!p)
        return HT_FAIL(e, HT_ENOMEM, "measuring: no memory for a buffer of %llu bytes",
                       (unsigned long long)*bytes);
    memset(p, 1, (size_t)*bytes); /* untouched pages would all be the kernel's page of zeros */
    j->p = p;
    return 0;
}

static void free_job(job *j, ht_team *team, uint64_t bytes)
{
    if (j->p) ht_page_free((void *)(uintptr_t)j->p, (size_t)bytes);
    ht_team_free(team);
    ht_mem_free(j->out);
}

/* The rate of the fastest kernel, which stays in the job. */
static void best_reader(job *j, ht_team *team, const char *isa_max, ht_read_rate *r)
{
    read_fn readers[3], best = NULL;
    pick_readers(allowed_features(isa_max), readers);
    for (int k = 0; k < 3; k++) {
        j->read = readers[k];
        double rate =
            (double)r->bytes * j->repeats * 1e9 / (double)best_ns(team, read_rank, j, PASSES);
        if (best && rate <= r->bytes_per_s) continue;
        best = readers[k];
        r->bytes_per_s = rate;
        r->kernel = read_names[k];
    }
    j->read = best;
}

int ht_measure_read(int threads, uint64_t bytes, const char *isa_max, ht_read_rate *r, ht_err *e)
{
    job j = {0};
    ht_team *team;
    HT_TRY(make_job(&j, &team, threads, e));
    int rc = make_buffer(&j, threads, &bytes, e);
    *r = (ht_read_rate){.bytes = bytes, .kernel = read_names[0]};
    if (!rc) best_reader(&j, team, isa_max, r);
    free_job(&j, team, bytes);
    return rc;
}

int ht_measure_fma(int threads, const char *isa_max, ht_fma_rate *r, ht_err *e)
{
    unsigned lanes;
    job j = {0};
    ht_team *team;
    *r = (ht_fma_rate){0};
    j.fma = pick_fma(allowed_features(isa_max), &lanes, &r->isa);
    HT_TRY(make_job(&j, &team, threads, e));
    double flops = 2.0 * lanes * CHAINS * (double)FMA_ROUNDS * threads;
    r->flops_per_s = flops * 1e9 / (double)best_ns(team, fma_rank, &j, FMA_PASSES);
    free_job(&j, team, 0);
    return 0;
}

int ht_measure_int8(int threads, const char *isa_max, ht_int8_rate *r, ht_err *e)
{
    double ops;
    job j = {0};
    ht_team *team;
    *r = (ht_int8_rate){0};
    j.fma = pick_int8(allowed_features(isa_max), &ops, &r->isa);
    HT_TRY(make_job(&j, &team, threads, e));
    ops *= (double)FMA_ROUNDS * threads * 1e9;
    r->ops_per_s = ops / (double)best_ns(team, fma_rank, &j, FMA_PASSES);
#if defined(__x86_64__)
    if (j.fma == int8_avx2) {
        j.fma = int8_summed_avx2;
        r->summed_ops_per_s = SUMMED * ops / (double)best_ns(team, fma_rank, &j, FMA_PASSES);
    }
#endif
    free_job(&j, team, 0);
    return 0;
}

/* ---- what is kept up ---- */

struct ht_pace {
    job job;
    ht_team *team;
    ht_team_fn fn;
    uint64_t bytes;  /* of the buffer                                                   */
    double per_pass; /* bytes or operations                                             */
    double done;
    uint64_t ns;
    uint32_t windows;
};

int ht_pace_new(ht_pace **out, int threads, uint64_t read_bytes, const char *isa_max, ht_err *e)
{
    *out = NULL;
    ht_pace *p = ht_mem_alloc(sizeof *p);
    if (!p) return HT_FAIL(e, HT_ENOMEM, "measuring: out of memory");
    *p = (ht_pace){.fn = read_bytes ? read_rank : fma_rank};
    int rc = make_job(&p->job, &p->team, threads, e);
    if (!rc && read_bytes) {
        p->bytes = read_bytes;
        rc = make_buffer(&p->job, threads, &p->bytes, e);
    }
    if (rc) {
        ht_pace_free(p);
        return rc;
    }
    if (read_bytes) {
        ht_read_rate r = {.bytes = p->bytes};
        best_reader(&p->job, p->team, isa_max, &r);
        p->per_pass = (double)p->bytes * p->job.repeats;
    } else {
        unsigned lanes;
        const char *isa;
        p->job.fma = pick_fma(allowed_features(isa_max), &lanes, &isa);
        p->per_pass = 2.0 * lanes * CHAINS * (double)FMA_ROUNDS * threads;
    }
    *out = p;
    return 0;
}

void ht_pace_take(ht_pace *p)
{
    const uint64_t t0 = ht_now_ns();
    uint64_t t = 0;
    while (t < WINDOW_NS) {
        ht_team_run(p->team, p->fn, &p->job);
        p->done += p->per_pass;
        t = ht_now_ns() - t0;
    }
    p->ns += t;
    p->windows++;
}

ht_pace_rates ht_pace_get(const ht_pace *p)
{
    const double rate = p->ns ? p->done * 1e9 / (double)p->ns : 0;
    const bool reads = p->fn == read_rank;
    return (ht_pace_rates){reads ? rate : 0, reads ? 0 : rate, p->windows};
}

void ht_pace_free(ht_pace *p)
{
    if (p) free_job(&p->job, p->team, p->bytes);
    ht_mem_free(p);
}
