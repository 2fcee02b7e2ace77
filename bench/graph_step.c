/* graph_step.c - the experiment of a whole decode step as one graph: MODEL [HELD] [REPETITIONS].
 * HELD positions (a multiple of 32) are prefilled on `cpu`; then the same step is run by `cpu` and
 * by a graph of fixed shape that reads the same pages, turn by turn. Time, compilation, how far the
 * logits are from those of `cpu`, and whether the arg-max is the same. No windows. */
#include "backend/graph/graph.h"
#include "core/clock.h"
#include "graph_world.h"
#include <math.h>
#include <string.h>

enum { MAX_REPS = 64 };
static world w;
static ht_dev *gdev, *cdev;
static const ht_backend *cpu;

static void open_all(const char *path, uint32_t ctx)
{
    ht_err e = {0};
    world_open(&w, path, ctx);
    if (w.model->spec.window) must(HT_FAIL(&e, HT_EUNSUPPORTED, "the model has windows"), path, &e);
    cpu = world_engine(&w, "cpu", "threads=2", &cdev);
    (void)world_engine(&w, "graph", "threads=2,pieces=1", &gdev);
}

/* n tokens from position `at` on the plan; the last one's logits. Milliseconds. */
static double cpu_run(ht_plan *p, uint32_t at, uint32_t n, const float **logits)
{
    ht_err e = {0};
    world_rows r;
    const ht_batch b = world_batch(&w, at, n, &r);
    const uint64_t t0 = ht_now_ns();
    must(cpu->run(p, &b, &e), "run", &e);
    must(cpu->wait(p, logits, &e), "wait", &e);
    const double ms = (double)(ht_now_ns() - t0) / 1e6;
    world_rows_done(&r);
    return ms;
}

/* ---- the graph ------------------------------------------------------------------------------- */

typedef struct {
    graph_part part;
    graph_stage_mem *mem;
    ht_arena *arena;
    ov_compiled *compiled;
    ov_request *request;
    float *x, *logits, *cos[HT_ROPES], *sin[HT_ROPES];
    void *fresh; /* K and V of the new position, of every layer in turn: not used further */
    double compile_s;
} step;

static void compile(step *g, uint32_t held)
{
    ht_err e = {0};
    const ov_api *api = &gdev->api;
    int64_t bytes = (INT64_C(1) << 47) - IR_BASE;
    static const ov_prop prop[] = {{"INFERENCE_PRECISION_HINT", "f32"},
                                   {"INFERENCE_NUM_THREADS", "2"},
                                   {"NUM_STREAMS", "1"},
                                   {"DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"}};
    ov_tensor *space = NULL;
    ov_model *m = NULL;
    ht_buf text;
    g->part = (graph_part){
        .dev = gdev, .at = w.tape, .n = w.n_tape, .b = world_bucket(1, held + 1, held)};
    const uint64_t t0 = ht_now_ns();
    must(ht_arena_new(&g->arena, 0, &e), "arena", &e);
    must(graph__mem_new(&g->mem, &e), "memory", &e);
    must(graph__emit(&g->part, g->mem, g->arena, &text, &e), "text", &e);
    int rc = api->wrap(OV_I8, (ov_shape){1, &bytes}, (void *)(uintptr_t)IR_BASE, &space);
    if (!rc) rc = api->read(gdev->core, text.p, text.n, space, &m);
    if (!rc) rc = api->compile(gdev->core, m, "CPU", 4, prop, &g->compiled);
    if (!rc) rc = api->request_new(g->compiled, &g->request);
    must(graph__ov_check(api, rc, HT_EDEVICE, "compiling a decode step", &e), "graph", &e);
    api->model_free(m);
    api->tensor_free(space);
    ht_buf_done(&text);
    g->compile_s = (double)(ht_now_ns() - t0) / 1e9;
}

static void bind(const step *g, bool output, size_t i, int type, int64_t rank, int64_t *dims,
                 void *mem)
{
    ht_err e = {0};
    const ov_api *api = &gdev->api;
    ov_tensor *t;
    int rc = api->wrap(type, (ov_shape){rank, dims}, mem, &t);
    if (!rc) rc = output ? api->set_out(g->request, i, t) : api->set_in(g->request, i, t);
    must(graph__ov_check(api, rc, HT_EDEVICE, "binding", &e), "graph", &e);
    api->tensor_free(t);
}

static void bind_all(step *g, uint32_t held)
{
    static int64_t zero = 0;
    const ht_spec *s = &w.model->spec;
    const ht_kv *kv = ht_pool_kv(w.pool);
    const size_t row = (size_t)s->n_kv_heads * s->head_dim * 2;
    g->x = calloc(s->dim, sizeof(float));
    g->logits = calloc(s->vocab, sizeof(float));
    g->fresh = calloc(2 * (size_t)s->n_layers, row);
    for (size_t i = 0; i < g->part.n_in; i++) {
        const graph_port *o = &g->part.in[i];
        int64_t d[4] = {1, 1, 1, 1};
        if (o->io == GRAPH_X) {
            d[2] = s->dim;
            bind(g, false, i, OV_F32, 3, d, g->x);
        } else if (o->io == GRAPH_WANT) {
            bind(g, false, i, OV_I64, 1, d, &zero);
        } else if (o->io == GRAPH_COS || o->io == GRAPH_SIN) {
            float **f = o->io == GRAPH_COS ? &g->cos[o->layer] : &g->sin[o->layer];
            d[3] = s->rope[o->layer].dims;
            *f = calloc((size_t)d[3], sizeof(float));
            bind(g, false, i, OV_F32, 4, d, *f);
        } else {
            const int v = o->io == GRAPH_V;
            d[0] = held / HT_PAGE, d[1] = s->n_kv_heads, d[2] = HT_PAGE, d[3] = s->head_dim;
            const size_t first = ht_seq_pages(w.seq, HT_KV_FULL)[0];
            bind(g, false, i, OV_F16, 4, d,
                 kv->plane[o->layer][v] + first * (size_t)kv->page_bytes[o->layer][v]);
        }
    }
    for (size_t i = 0; i < g->part.n_out; i++) {
        const graph_port *o = &g->part.out[i];
        int64_t kvd[4] = {1, s->n_kv_heads, 1, s->head_dim}, ld[3] = {1, 1, s->vocab};
        if (o->io == GRAPH_L) bind(g, true, i, OV_F32, 3, ld, g->logits);
        else bind(g, true, i, OV_F16, 4, kvd, (uint8_t *)g->fresh + i * row);
    }
}

static double graph_run(step *g, uint32_t held)
{
    ht_err e = {0};
    const ht_spec *s = &w.model->spec;
    const ov_api *api = &gdev->api;
    const uint64_t t0 = ht_now_ns();
    ht_weight_row(&w.model->embed, 0, (uint32_t)world_id(&w, held), g->x);
    for (uint32_t i = 0; i < s->dim; i++) g->x[i] *= s->embed_scale;
    for (int r = 0; r < HT_ROPES; r++)
        for (uint32_t i = 0, half = s->rope[r].dims / 2; g->cos[r] && i < half; i++) {
            const double angle = (double)held * (double)s->rope[r].inv_freq[i];
            g->cos[r][i] = g->cos[r][half + i] = (float)(cos(angle) * (double)s->rope[r].mscale);
            g->sin[r][i] = g->sin[r][half + i] = (float)(sin(angle) * (double)s->rope[r].mscale);
        }
    int rc = api->start(g->request);
    if (!rc) rc = api->wait_for(g->request, 60000);
    must(graph__ov_check(api, rc, HT_EDEVICE, "running a decode step", &e), "graph", &e);
    return (double)(ht_now_ns() - t0) / 1e6;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static uint32_t argmax(const float *l, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (l[i] > l[at]) at = i;
    return at;
}

int main(int argc, char **argv)
{
    step g = {0};
    double ms[2][MAX_REPS], worst = 0;
    const float *logits = NULL;
    const uint32_t held = argc > 2 ? (uint32_t)atoi(argv[2]) : 512;
    int reps = argc > 3 ? atoi(argv[3]) : 20;
    if (argc < 2 || held == 0 || held % HT_PAGE || held > 16384) {
        fprintf(stderr, "usage: graph_step MODEL [HELD, a multiple of %d] [REPETITIONS]\n",
                (int)HT_PAGE);
        return 2;
    }
    if (reps < 1 || reps > MAX_REPS) reps = 20;
    open_all(argv[1], held + HT_PAGE);
    const uint32_t vocab = w.model->spec.vocab;
    const uint32_t ctx = held + HT_PAGE;
    const ht_bucket step_of = world_bucket(1, ctx, ctx), prompt_of = world_bucket(held, ctx, ctx);
    ht_plan *one = world_plan(&w, cpu, cdev, 0, w.n_tape, &step_of);
    ht_plan *prompt = world_plan(&w, cpu, cdev, 0, w.n_tape, &prompt_of);
    (void)cpu_run(prompt, 0, held, &logits);
    compile(&g, held);
    bind_all(&g, held);
    for (int i = -2; i < reps; i++) {
        const double a = cpu_run(one, held, 1, &logits), b = graph_run(&g, held);
        if (i >= 0) ms[0][i] = a, ms[1][i] = b;
    }
    for (uint32_t i = 0; i < vocab; i++)
        worst = fmax(worst, fabs((double)logits[i] - (double)g.logits[i]));
    for (int k = 0; k < 2; k++) {
        qsort(ms[k], (size_t)reps, sizeof ms[k][0], by_size);
        printf("%-6s %u held: ms a step min %.2f median %.2f max %.2f, n %d\n", k ? "graph" : "cpu",
               held, ms[k][0], ms[k][reps / 2], ms[k][reps - 1], reps);
    }
    printf("compiled in %.1f s, drift %.2e, arg-max %s\n", g.compile_s, worst,
           argmax(logits, vocab) == argmax(g.logits, vocab) ? "same" : "other");
    return 0;
}
