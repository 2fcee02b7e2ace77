/* graph_pieces.c - the experiment of per-layer offload: attention on `cpu` with the FFN of each
 * layer in a graph of its own, the reverse, the whole prompt as one graph, and all of it on `cpu`.
 * MODEL [ROWS] [REPETITIONS]. Time, compilation, bytes carried between engines, and how far the
 * logits of the last row are from those of `cpu`. The last layer runs on `cpu`: behind PICK it has
 * other rows. */
#include "core/clock.h"
#include "graph_world.h"
#include <math.h>
#include <string.h>

enum { MAX_PARTS = 256, MAX_REPS = 32 };
typedef struct {
    const ht_backend *be;
    ht_plan *plan;
} part;
typedef struct {
    const char *name;
    part part[MAX_PARTS];
    size_t n;
    double compile_s, ms[MAX_REPS];
    uint64_t carried;
    float *logits;
} arm;
static world w;
static ht_dev *gdev, *cdev;
static const ht_backend *graph, *cpu;
static ht_bucket b;

/* Stages [at, at+n) as the next part of an arm. */
static void add(arm *a, const ht_backend *be, size_t at, size_t n)
{
    ht_err e = {0};
    const uint64_t t0 = ht_now_ns();
    if (a->n == MAX_PARTS) must(HT_FAIL(&e, HT_EUNSUPPORTED, "too many layers"), a->name, &e);
    a->part[a->n].plan = world_plan(&w, be, be == graph ? gdev : cdev, at, n, &b);
    a->part[a->n++].be = be;
    if (be == graph) a->compile_s += (double)(ht_now_ns() - t0) / 1e9;
}

static void *reg(const part *p, int which, size_t *bytes)
{
    ht_err e = {0};
    void *at = NULL;
    must(p->be->reg(p->plan, which, &at, bytes, &e), "register", &e);
    return at;
}

static void carry(arm *a, const part *from, const part *to, int which)
{
    size_t n, m;
    const void *src = reg(from, which, &n);
    void *dst = reg(to, which, &m);
    memcpy(dst, src, n < m ? n : m);
    a->carried += n < m ? n : m;
}

/* One pass; attention hands X and A on, everything else X. */
static double pass(arm *a, const ht_batch *batch)
{
    ht_err e = {0};
    const float *l = NULL;
    const uint64_t t0 = ht_now_ns();
    a->carried = 0;
    for (size_t i = 0; i < a->n; i++) {
        part *p = &a->part[i];
        ht_run_stats st = {0};
        if (i) carry(a, p - 1, p, HT_REG_X);
        if (i && a->n > 1) carry(a, p - 1, p, HT_REG_A);
        must(p->be->run(p->plan, batch, &e), "run", &e);
        must(p->be->wait(p->plan, &l, &e), "wait", &e);
        if (!p->be->stats(p->plan, &st)) a->carried += st.host_copy_bytes;
    }
    const double ms = (double)(ht_now_ns() - t0) / 1e6;
    memcpy(a->logits, l, w.model->spec.vocab * sizeof *l);
    return ms;
}

/* A layer is QKV ATTN ATTN_OUT FFN_UP FFN_DOWN, the first behind EMBED. */
static void make_arms(arm a[4])
{
    const size_t layers = w.model->spec.n_layers;
    add(&a[0], cpu, 0, w.n_tape);
    add(&a[1], graph, 0, w.n_tape);
    add(&a[2], cpu, 0, 3);
    for (size_t l = 0; l + 1 < layers; l++) {
        add(&a[2], graph, 1 + 5 * l + 2, 3);
        if (l + 2 < layers) add(&a[2], cpu, 1 + 5 * (l + 1), 2);
    }
    add(&a[2], cpu, 1 + 5 * (layers - 1), w.n_tape - 1 - 5 * (layers - 1));
    add(&a[3], cpu, 0, 1);
    for (size_t l = 0; l + 1 < layers; l++) {
        add(&a[3], graph, 1 + 5 * l, 2);
        add(&a[3], cpu, 1 + 5 * l + 2, 3);
    }
    add(&a[3], cpu, 1 + 5 * (layers - 1), w.n_tape - 1 - 5 * (layers - 1));
}

static void report(arm a[4], int reps)
{
    for (int k = 0; k < 4; k++) {
        double worst = 0, best = a[k].ms[0];
        uint32_t top[2] = {0, 0};
        for (int r = 1; r < reps; r++) best = a[k].ms[r] < best ? a[k].ms[r] : best;
        for (uint32_t i = 0; i < w.model->spec.vocab; i++) {
            worst = fmax(worst, fabs((double)a[k].logits[i] - (double)a[0].logits[i]));
            if (a[k].logits[i] > a[k].logits[top[0]]) top[0] = i;
            if (a[0].logits[i] > a[0].logits[top[1]]) top[1] = i;
        }
        printf(
            "%-34s best of %d %9.1f ms  compile %6.1f s  parts %3zu  carried %8.2f MB  drift %.2e  "
            "arg-max %s\n",
            a[k].name, reps, best, a[k].compile_s, a[k].n, (double)a[k].carried / 1e6, worst,
            top[0] == top[1] ? "same" : "other");
    }
}

int main(int argc, char **argv)
{
    static arm a[4] = {{.name = "all on cpu"},
                       {.name = "one graph"},
                       {.name = "attention cpu, FFN graphs"},
                       {.name = "attention graphs, FFN cpu"}};
    if (argc < 2) return 2;
    const uint32_t rows = argc > 2 ? (uint32_t)atoi(argv[2]) : 128;
    int reps = argc > 3 ? atoi(argv[3]) : 6;
    if (reps < 1 || reps > MAX_REPS) reps = 6;
    world_open(&w, argv[1], rows);
    graph = world_engine(&w, "graph", "threads=2,pieces=1", &gdev);
    cpu = world_engine(&w, "cpu", "threads=2", &cdev);
    b = world_bucket(rows, rows, 0);
    world_rows r;
    const ht_batch batch = world_batch(&w, 0, rows, &r);
    for (int k = 0; k < 4; k++) a[k].logits = calloc(w.model->spec.vocab, sizeof(float));
    make_arms(a);
    for (int k = 0; k < 4; k++) (void)pass(&a[k], &batch);
    for (int i = 0; i < reps; i++)
        for (int k = 0; k < 4; k++) a[k].ms[i] = pass(&a[k], &batch);
    report(a, reps);
    return 0;
}
