/* cuda.c - decode and prefill speed of the cuda engine on a random model of Qwen3-0.6B's shape,
 * made in memory. Prints a table; with a folder as first argument it also writes samples.jsonl
 * there, a line a repetition, and machine.json. Contexts take turns, so that a drift of the clocks
 * meets all of them.
 *
 *     cuda [FOLDER [TYPE...]]      TYPE: f16 q8_0 q4_0 q4_k (all of them by default) */
#include "backend/cuda/cuda.h"
#include "backend/list.h"
#include "core/clock.h"
#include "kv/kv.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 28,
    DIM = 1024,
    HEADS = 16,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    FFN = 3072,
    VOCAB = 151936,
    CTX = 20736,
    LONG = 20480, /* tokens of the long run */
    STEPS = 32,
    REPS = 8,
    TAPE = 5 * LAYERS + 4
};
#define NOMINAL_BYTES_PER_S 4.3e12 /* what a large read-only stream reaches on an H200 */

typedef struct {
    ht_model m;
    ht_layer layer[LAYERS];
    ht_layer_spec ls[LAYERS];
    float freq[HEAD_DIM / 2], one[DIM];
    void *mem[8];
    int n_mem;
    uint64_t rng;
} model;

static int fail(const char *what, const ht_err *e)
{
    fprintf(stderr, "cuda bench: %s: %s\n", what, e->msg);
    return 1;
}

static float randf(uint64_t *s)
{
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return (float)((double)(*s >> 40) / (1 << 23) - 1);
}

/* A random matrix. 64 random rows serve for all rows; the time does not depend on values. */
static ht_weight matrix(model *w, int type, uint32_t rows, uint32_t cols)
{
    enum { DISTINCT = 64 };
    ht_weight x = {.rows = rows, .cols = cols, .n_mats = 1, .type = (uint8_t)type};
    if (!ht_row_bytes(type, cols, &x.row_bytes)) exit(1);
    x.mat_bytes = x.bytes = x.row_bytes * rows;
    uint8_t *p = malloc(x.bytes);
    float *row = malloc(cols * sizeof *row);
    if (!p || !row) exit(1);
    for (uint32_t r = 0; r < rows; r++) {
        if (r >= DISTINCT) {
            memcpy(p + r * x.row_bytes, p + (r * 7 + r / DISTINCT) % DISTINCT * x.row_bytes,
                   x.row_bytes);
            continue;
        }
        for (uint32_t i = 0; i < cols; i++) row[i] = randf(&w->rng) * 1.7F / sqrtf((float)cols);
        ht_types[type].encode(row, p + r * x.row_bytes, cols);
    }
    free(row);
    x.data = p;
    w->mem[w->n_mem++] = p;
    return x;
}

/* The same bytes under another id: every layer has its own copy on the device. */
static ht_weight again(model *w, ht_weight x)
{
    x.id = w->m.n_weights++;
    return x;
}

static model *make_model(int type)
{
    model *w = calloc(1, sizeof *w);
    if (!w) exit(1);
    w->rng = 88172645463325252ULL;
    w->m.layer = w->layer;
    w->m.spec = (ht_spec){.arch = "qwen3",
                          .n_layers = LAYERS,
                          .dim = DIM,
                          .n_heads = HEADS,
                          .n_kv_heads = KV_HEADS,
                          .head_dim = HEAD_DIM,
                          .ffn = FFN,
                          .vocab = VOCAB,
                          .ctx_train = CTX,
                          .qk_norm = true,
                          .tied = true,
                          .rms_eps = 1e-6F,
                          .embed_scale = 1,
                          .attn_scale = 0.08838835F,
                          .layer = w->ls};
    for (int i = 0; i < HEAD_DIM / 2; i++) w->freq[i] = powf(1e6F, -(float)i / (HEAD_DIM / 2));
    for (int i = 0; i < DIM; i++) w->one[i] = 1;
    w->m.spec.rope[0] = (ht_rope){HEAD_DIM, 1, w->freq, NULL};
    w->m.embed = again(w, matrix(w, type, VOCAB, DIM));
    w->m.head = again(w, w->m.embed);
    w->m.final_norm = w->one;
    ht_weight q = matrix(w, type, HEADS * HEAD_DIM, DIM),
              k = matrix(w, type, KV_HEADS * HEAD_DIM, DIM);
    ht_weight o = matrix(w, type, DIM, HEADS * HEAD_DIM), up = matrix(w, type, FFN, DIM);
    ht_weight down = matrix(w, type, DIM, FFN);
    for (int i = 0; i < LAYERS; i++) {
        ht_layer *l = &w->layer[i];
        l->attn_norm = l->ffn_norm = l->q_norm = l->k_norm = w->one;
        l->q = again(w, q), l->k = again(w, k), l->v = again(w, k), l->o = again(w, o);
        l->gate = again(w, up), l->up = again(w, up), l->down = again(w, down);
    }
    return w;
}

static void free_model(model *w)
{
    for (int i = 0; i < w->n_mem; i++) free(w->mem[i]);
    free(w);
}

typedef struct {
    const ht_backend *be;
    ht_dev *dev;
    model *w;
    ht_pool *pool;
    const char *type;
    FILE *out;
    ht_stage tape[TAPE];
    uint32_t page[CTX / HT_PAGE];
} bench;

static int pool_alloc(void *of, size_t n, void **mem, ht_err *e)
{
    bench *b = of;
    return b->be->kv_alloc(b->dev, n, mem, e);
}
static void pool_release(void *of, void *mem, size_t n)
{
    bench *b = of;
    b->be->kv_free(b->dev, mem, n);
}

static int open_bench(bench *b, int type, ht_err *e)
{
    static const uint8_t cls[LAYERS];
    b->type = ht_types[type].name;
    b->w = make_model(type);
    uint64_t t0 = ht_now_ns();
    HT_TRY(b->be->load(b->dev, &b->w->m, e));
    printf("%s: loaded in %.2f s\n", b->type, (double)(ht_now_ns() - t0) / 1e9);
    ht_pool_params p = {.n_layers = LAYERS,
                        .n_kv_heads = KV_HEADS,
                        .head_dim = HEAD_DIM,
                        .layer_class = cls,
                        .type_k = HT_KV_F16,
                        .type_v = HT_KV_F16,
                        .n_pages = {CTX / HT_PAGE, 0},
                        .alloc = pool_alloc,
                        .release = pool_release,
                        .dev = b};
    for (uint32_t i = 0; i < CTX / HT_PAGE; i++) b->page[i] = i;
    (void)ht_tape(&b->w->m, b->tape, TAPE);
    b->tape[TAPE - 1] = (ht_stage){HT_SAMPLE, 0, -1};
    return ht_pool_new(&b->pool, &p, e);
}

static int plan(bench *b, ht_plan **out, size_t n_tape, ht_bucket bk, ht_err *e)
{
    ht_cut cut[TAPE];
    size_t n = ht_cover(b->be, b->dev, &b->w->m, b->tape, n_tape, &bk, NULL, NULL, cut, e);
    if (!n) return e->code;
    return b->be->plan(out, b->dev, ht_pool_kv(b->pool), b->tape, cut, n, &bk, e);
}

/* One run of n rows from position `pos` on; want_one: the last row's logits or token. */
static int step(bench *b, ht_plan *p, uint32_t n, uint32_t pos, const int32_t *token,
                ht_run_stats *st, ht_err *e)
{
    static int32_t at[2048];
    static const uint16_t seq[2048];
    uint32_t last = n - 1;
    for (uint32_t i = 0; i < n; i++) at[i] = (int32_t)(pos + i);
    ht_batch x = {.rows = n,
                  .seqs = 1,
                  .n_want = 1,
                  .token = token,
                  .pos = at,
                  .seq = seq,
                  .page = {b->page, NULL},
                  .want = &last};
    HT_TRY(b->be->run(p, &x, e));
    HT_TRY(b->be->wait(p, NULL, e));
    return b->be->stats(p, st);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void record(bench *b, const char *phase, uint32_t ctx, int rep, uint32_t n,
                   const ht_run_stats *s)
{
    if (!b->out) return;
    fprintf(b->out,
            "{\"arm\":\"cuda-level%d\",\"bytes\":%llu,\"bucket\":\"%s%u\",\"dispatches\":%u,\"kv\":"
            "\"f16\","
            "\"nTokens\":%u,\"ns\":%llu,\"phase\":\"%s\",\"rep\":%d,\"schema\":\"hetero/"
            "device-sample/1\","
            "\"status\":\"ok\",\"weights\":\"%s\"}\n",
            b->dev->level1 || phase[0] == 'p' ? 1 : 2, (unsigned long long)s->bytes,
            phase[0] == 'd' ? "ctx" : "p", ctx, s->dispatches, n, (unsigned long long)s->ns, phase,
            rep, b->type);
}

/* Microseconds a token in each stage of the persistent kernel, since the last call. */
static void clocks(bench *b, uint32_t tokens)
{
    const char *name;
    double ns, all = 0;
    for (int i = 0; (name = cuda__mega_stage(b->dev, i, &ns)) != NULL; i++) {
        if (ns > 0) printf("%s %s %.1f", all > 0 ? "" : "      ", name, ns / 1000 / tokens);
        all += ns;
    }
    if (all > 0) printf(" us a token\n");
    memset(b->dev->ticks, 0, sizeof b->dev->ticks);
}

static int decode(bench *b, uint32_t steps, ht_err *e)
{
    static const uint32_t ctx[] = {32, 512, 2048, 16384};
    enum { N = sizeof ctx / sizeof *ctx };
    double t[N][REPS];
    ht_run_stats s = {0};
    ht_plan *p;
    int32_t token = 17;
    ht_bucket bk = {.rows = 1,
                    .seqs = 1,
                    .want = 1,
                    .steps = (uint16_t)steps,
                    .ctx = CTX,
                    .past = CTX,
                    .kv_fmt = HT_KV_F16 | HT_KV_F16 << 8};
    HT_TRY(plan(b, &p, TAPE, bk, e));
    int rc = 0;
    uint64_t bytes[N] = {0};
    for (uint32_t pos = 0; pos < 4 * STEPS && !rc; pos += steps) /* warm up */
        rc = step(b, p, 1, pos, &token, &s, e);
    memset(b->dev->ticks, 0, sizeof b->dev->ticks);
    for (int rep = 0; rep < REPS && !rc; rep++)
        for (int c = 0; c < (int)N && !rc; c++) {
            ht_run_stats sum = {0};
            for (uint32_t k = 0; k < STEPS && !rc; k += steps) {
                rc = step(b, p, 1, ctx[c] + k, &token, &s, e);
                sum.ns += s.ns, sum.bytes += s.bytes, sum.dispatches += s.dispatches;
            }
            t[c][rep] = (double)sum.ns / STEPS;
            bytes[c] = sum.bytes / STEPS;
            record(b, "decode", ctx[c], rep, STEPS, &sum);
        }
    for (int c = 0; c < (int)N && !rc; c++) {
        qsort(t[c], REPS, sizeof t[c][0], by_value);
        double med = (t[c][REPS / 2 - 1] + t[c][REPS / 2]) / 2;
        double head = (double)VOCAB * (double)b->w->m.head.row_bytes / NOMINAL_BYTES_PER_S * 1e9;
        printf("%-5s level %d decode ctx %5u, %2u steps a launch: %7.1f tok/s (%.1f-%.1f), %5.1f "
               "%% of 4.3 "
               "TB/s, "
               "%5.2f us a layer, %u dispatches a launch\n",
               b->type, b->dev->level1 ? 1 : 2, ctx[c], steps, 1e9 / med, 1e9 / t[c][REPS - 1],
               1e9 / t[c][0], 100.0 * (double)bytes[c] / (med * 1e-9) / NOMINAL_BYTES_PER_S,
               (med - head) / LAYERS / 1000, s.dispatches);
    }
    clocks(b, N * REPS * STEPS);
    b->be->plan_free(p);
    return rc;
}

static int prefill(bench *b, uint32_t rows, int act, ht_err *e)
{
    static int32_t token[2048];
    double t[REPS];
    ht_run_stats s = {0};
    ht_plan *p;
    ht_bucket bk = {.rows = (uint16_t)rows,
                    .seqs = 1,
                    .want = 1,
                    .steps = 1,
                    .ctx = CTX,
                    .act = (uint8_t)act,
                    .kv_fmt = HT_KV_F16 | HT_KV_F16 << 8};
    for (uint32_t i = 0; i < rows; i++) token[i] = (int32_t)(i * 7919 % VOCAB);
    HT_TRY(plan(b, &p, TAPE - 1, bk, e));
    int rc = step(b, p, rows, 0, token, &s, e);
    for (int rep = 0; rep < REPS && !rc; rep++) {
        rc = step(b, p, rows, 0, token, &s, e);
        t[rep] = (double)s.ns;
        record(b, act == HT_ACT_F16 ? "prefill-f16" : "prefill", rows, rep, rows, &s);
    }
    qsort(t, REPS, sizeof *t, by_value);
    if (!rc)
        printf("%-5s prefill %4u (act %s): %.3f ms (%.3f-%.3f), %.0f tok/s, %u kernels\n", b->type,
               rows, act == HT_ACT_F16 ? "f16" : "f32", t[REPS / 2] / 1e6, t[0] / 1e6,
               t[REPS - 1] / 1e6, rows / (t[REPS / 2] * 1e-9), s.dispatches);
    b->be->plan_free(p);
    return rc;
}

/* The last row's logits after n tokens in pieces of `rows`, by plans of that many rows. */
static int logits(bench *b, int act, uint32_t n, uint32_t rows, float *out, ht_err *e)
{
    static int32_t token[2048];
    static const uint16_t seq[2048];
    int32_t at[2048];
    ht_plan *p;
    const float *l = NULL;
    ht_bucket bk = {.rows = (uint16_t)rows,
                    .seqs = 1,
                    .want = 1,
                    .steps = 1,
                    .ctx = CTX,
                    .past = n > rows ? n : 0,
                    .act = (uint8_t)act,
                    .kv_fmt = HT_KV_F16 | HT_KV_F16 << 8};
    for (uint32_t i = 0; i < n; i++) token[i] = (int32_t)(i * 7919 % VOCAB);
    HT_TRY(plan(b, &p, TAPE - 1, bk, e));
    int rc = 0;
    for (uint32_t i = 0; i < n && !rc; i += rows) {
        uint32_t k = n - i < rows ? n - i : rows, last = k - 1;
        for (uint32_t j = 0; j < k; j++) at[j] = (int32_t)(i + j);
        ht_batch x = {.rows = k,
                      .seqs = 1,
                      .n_want = 1,
                      .token = token + i,
                      .pos = at,
                      .seq = seq,
                      .page = {b->page, NULL},
                      .want = &last};
        rc = b->be->run(p, &x, e);
        if (!rc) rc = b->be->wait(p, &l, e);
    }
    if (!rc) memcpy(out, l, VOCAB * sizeof *out);
    b->be->plan_free(p);
    return rc;
}

/* KL divergence of the second distribution from the first. */
static double divergence(const float *x, const float *y)
{
    double m[2] = {-1e30, -1e30}, z[2] = {0, 0}, kl = 0;
    for (int i = 0; i < VOCAB; i++)
        m[0] = fmax(m[0], (double)x[i]), m[1] = fmax(m[1], (double)y[i]);
    for (int i = 0; i < VOCAB; i++)
        z[0] += exp((double)x[i] - m[0]), z[1] += exp((double)y[i] - m[1]);
    for (int i = 0; i < VOCAB; i++) {
        double p = (double)x[i] - m[0] - log(z[0]), q = (double)y[i] - m[1] - log(z[1]);
        kl += exp(p) * (p - q);
    }
    return kl;
}

/* Tensor cores against act f32, and prompts in pieces against prompts whole. */
static int tensor(bench *b, ht_err *e)
{
    static float x[VOCAB], y[VOCAB], z[VOCAB];
    static const uint32_t n[] = {32, 100, 128, 512, 1000}, piece[] = {32, 128, 512, 2048};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        double diff = 0, size = 0;
        HT_TRY(logits(b, HT_ACT_F32, n[i], n[i], x, e));
        HT_TRY(logits(b, HT_ACT_F16, n[i], n[i], y, e));
        for (int k = 0; k < VOCAB; k++)
            diff += pow((double)x[k] - (double)y[k], 2), size += pow((double)x[k], 2);
        printf("%-5s act f16, %4u tokens: logits %.2e off act f32, KL %.2e; in pieces of", b->type,
               n[i], sqrt(diff / size), divergence(x, y));
        for (size_t k = 0; k < sizeof piece / sizeof *piece; k++) {
            HT_TRY(logits(b, HT_ACT_F16, n[i], piece[k], z, e));
            printf(" %u %s", piece[k], memcmp(y, z, sizeof y) ? "DIFFERENT" : "equal");
        }
        printf("\n");
    }
    return 0;
}

/* Each kind of stage by itself, once a layer in one graph: where a token's time goes. */
static int breakdown(bench *b, ht_err *e)
{
    static const int kind[] = {HT_QKV, HT_ATTN, HT_ATTN_OUT, HT_FFN_UP, HT_FFN_DOWN};
    int rc = 0;
    printf("%-5s", b->type);
    for (size_t k = 0; k < sizeof kind / sizeof *kind && !rc; k++) {
        ht_stage tape[LAYERS];
        ht_cut cut[LAYERS];
        ht_run_stats s;
        ht_plan *p;
        double t[REPS];
        int32_t token = 5;
        ht_bucket bk = {.rows = 1,
                        .seqs = 1,
                        .want = 1,
                        .steps = 1,
                        .ctx = CTX,
                        .kv_fmt = HT_KV_F16 | HT_KV_F16 << 8};
        for (int i = 0; i < LAYERS; i++)
            tape[i] = (ht_stage){(uint16_t)kind[k], kind[k] == HT_QKV ? HT_QKNORM : 0, (int16_t)i};
        size_t n = ht_cover(b->be, b->dev, &b->w->m, tape, LAYERS, &bk, NULL, NULL, cut, e);
        if (!n) return e->code;
        HT_TRY(b->be->plan(&p, b->dev, ht_pool_kv(b->pool), tape, cut, n, &bk, e));
        for (int rep = -1; rep < REPS && !rc; rep++) {
            rc = step(b, p, 1, 511, &token, &s, e);
            if (rep >= 0) t[rep] = (double)s.ns;
        }
        qsort(t, REPS, sizeof *t, by_value);
        printf("  %s %.2f us", ht_kind_name(kind[k]), t[REPS / 2] / LAYERS / 1000);
        b->be->plan_free(p);
    }
    printf("  (each alone, a layer, context 512, launch included)\n");
    return rc;
}

/* n tokens from `token` on, from position 0. */
static int generate(bench *b, ht_plan *p, int32_t token, uint32_t n, int32_t *out, ht_err *e)
{
    ht_run_stats s;
    for (uint32_t at = 0; at < n; at += STEPS) {
        const int32_t *ids;
        size_t got;
        HT_TRY(step(b, p, 1, at, &token, &s, e));
        HT_TRY(b->be->tokens(p, &ids, &got, e));
        memcpy(out + at, ids, got * sizeof *out);
        token = ids[got - 1];
    }
    return 0;
}

/* A plan for chained steps at one level. */
static int chain(bench *b, bool level1, ht_plan **p, ht_err *e)
{
    ht_bucket bk = {.rows = 1,
                    .seqs = 1,
                    .want = 1,
                    .steps = STEPS,
                    .ctx = CTX,
                    .past = CTX,
                    .kv_fmt = HT_KV_F16 | HT_KV_F16 << 8};
    b->dev->level1 = level1;
    int rc = plan(b, p, TAPE, bk, e);
    b->dev->level1 = false;
    return rc;
}

/* Both levels give the same tokens: `prompts` starts, n tokens each. */
static int compare(bench *b, uint32_t prompts, uint32_t n, ht_err *e)
{
    static int32_t one[CTX], two[CTX];
    ht_plan *p1 = NULL, *p2 = NULL;
    uint32_t differ = 0, first = 0;
    int rc = chain(b, false, &p2, e);
    if (!rc) rc = chain(b, true, &p1, e);
    for (uint32_t i = 0; i < prompts && !rc; i++) {
        int32_t token = (int32_t)(i * 2909 + 17);
        rc = generate(b, p1, token, n, one, e);
        if (!rc) rc = generate(b, p2, token, n, two, e);
        uint32_t k = 0;
        while (k < n && !rc && one[k] == two[k]) k++;
        if (k < n && !differ++) first = k;
    }
    if (!rc)
        printf("%-5s levels 1 and 2: %u of %u runs of %u tokens differ%s (first at %u)\n", b->type,
               differ, prompts, n, differ ? "" : ", all equal", first);
    if (p1) b->be->plan_free(p1);
    if (p2) b->be->plan_free(p2);
    return rc;
}

/* From the call of cancel() to the return of wait(), in the middle of a launch. */
static int cancel(bench *b, ht_err *e)
{
    static int32_t at[1];
    static const int32_t token[1] = {17};
    static const uint16_t seq[1];
    static const uint32_t want[1];
    for (int level = 2; level >= 1; level--) {
        double worst = 0;
        ht_plan *p;
        HT_TRY(chain(b, level == 1, &p, e));
        int rc = 0, ended = 0;
        for (int rep = 0; rep < REPS && !rc; rep++) {
            ht_batch x = {.rows = 1,
                          .seqs = 1,
                          .n_want = 1,
                          .token = token,
                          .pos = at,
                          .seq = seq,
                          .page = {b->page, NULL},
                          .want = want};
            rc = b->be->run(p, &x, e);
            uint64_t t0 = ht_now_ns();
            while (ht_now_ns() - t0 < 3000000) {}
            t0 = ht_now_ns();
            (void)b->be->cancel(p);
            if (!rc && b->be->wait(p, NULL, e) == HT_ECANCELLED) ended++;
            double ms = (double)(ht_now_ns() - t0) / 1e6;
            if (ms > worst) worst = ms;
        }
        b->be->plan_free(p);
        if (rc) return rc;
        printf("%-5s level %d cancel: %d of %d ended, slowest %.2f ms\n", b->type, level, ended,
               REPS, worst);
    }
    return 0;
}

static int one_type(bench *b, int type, ht_err *e)
{
    const bool brief = getenv("CUDA_BENCH_SHORT") != NULL;
    int rc = open_bench(b, type, e);
    if (getenv("CUDA_BENCH_PREFILL")) {
        if (!rc) rc = tensor(b, e);
        for (uint32_t rows = 32; rows <= 2048 && !rc; rows *= 4)
            rc = prefill(b, rows, HT_ACT_F16, e);
        if (b->pool) ht_pool_free(b->pool);
        b->pool = NULL;
        free_model(b->w);
        return rc;
    }
    if (!rc) rc = compare(b, 1, type == HT_F16 && !brief ? LONG : 2048, e);
    if (!rc) rc = compare(b, brief ? 3 : 50, 256, e);
    if (!rc) rc = cancel(b, e);
    if (!rc) rc = decode(b, STEPS, e);
    b->dev->level1 = true;
    if (!rc) rc = decode(b, STEPS, e);
    if (!rc && !brief) rc = decode(b, 1, e);
    if (!rc) rc = breakdown(b, e);
    b->dev->level1 = false;
    const bool more = !getenv("CUDA_BENCH_DECODE");
    for (uint32_t rows = 32; rows <= 2048 && more && !rc; rows *= 4)
        rc = prefill(b, rows, HT_ACT_F16, e);
    if (!rc && more) rc = tensor(b, e);
    if (!rc && more) rc = prefill(b, 512, HT_ACT_F32, e);
    if (!rc && more && type == HT_F16) rc = prefill(b, 2048, HT_ACT_F32, e);
    if (b->pool) ht_pool_free(b->pool);
    b->pool = NULL;
    free_model(b->w);
    return rc;
}

int main(int argc, char **argv)
{
    static const char *const all[] = {"f16", "q8_0", "q4_0", "q4_k"};
    static bench b;
    char text[512], path[600];
    ht_err e = {0};
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* a run that is cut short keeps its lines */
    b.be = ht_backend_find("cuda");
    if (!b.be ||
        b.be->open(&b.dev, getenv("CUDA_BENCH_OPTS") ? getenv("CUDA_BENCH_OPTS") : "", &e)) {
        printf("cuda bench: not run: %s\n", b.be ? e.msg : "no such engine in this build");
        return 0;
    }
    b.dev->level2 = true; /* where not asked for level 1 */
    if (b.be->describe(b.dev, text, sizeof text)) return 1;
    printf("%s\n", text);
    if (argc > 1) {
        (void)snprintf(path, sizeof path, "%s/machine.json", argv[1]);
        FILE *f = fopen(path, "w");
        if (f) fprintf(f, "%s\n", text), fclose(f);
        (void)snprintf(path, sizeof path, "%s/samples.jsonl", argv[1]);
        b.out = fopen(path, "w");
    }
    int n = argc > 2 ? argc - 2 : 4, rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        int type = ht_type_by_name(argc > 2 ? argv[2 + i] : all[i]);
        rc = type < 0 ? 1 : one_type(&b, type, &e);
    }
    if (b.out) fclose(b.out);
    b.be->close(b.dev);
    return rc ? fail("run", &e) : 0;
}
