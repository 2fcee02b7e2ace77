/* graph.c - the compiled-graph engine's refusals and faults: each has its own error, and none of
 * them changes a number. A table of calls stands between engine and library, so that a test can let
 * one of them fail or lie. */
#include "backend/graph/graph.h"
#include "core/map.h"
#include "format/file.h"
#include "test.h"

#include <glob.h>
#include <math.h>
#include <unistd.h>

extern const ht_backend ht_backend_graph;
static const char *const tale = "models/tale-9m-f16.gguf";
static ov_api real;               /* the library's own calls */
static const char *lie_key, *lie; /* property that is answered otherwise */

typedef struct {
    ht_file *file;
    ht_model *model;
    ht_dev *dev;
    ht_kv kv;
    uint8_t *mem;
    size_t bytes;
    ht_stage *tape;
    size_t n_tape;
    ht_plan *plan;
} world;

/* The library's calls, or a skip. */
static ov_api calls(void)
{
    ht_err e = {0};
    char path[1024];
    ov_api api;
    if (graph__ov_load(&api, NULL, path, sizeof path, &e)) T_SKIP("%s", e.msg);
    real = api;
    return api;
}

enum { PAGES = 8 };
static void open_model(world *w, const char *path)
{
    ht_err e = {0};
    memset(w, 0, sizeof *w);
    T_OK(ht_file_open(&w->file, path, NULL, &e), e);
    T_OK(ht_model_open(&w->model, w->file, NULL, NULL, &e), e);
    const ht_spec *s = &w->model->spec;
    ht_kv *kv = &w->kv;
    *kv = (ht_kv){.n_layers = s->n_layers, .n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim};
    kv->n_pages[HT_KV_FULL] = PAGES;
    kv->layer_class = calloc(s->n_layers, 1);
    kv->type = calloc(s->n_layers, sizeof *kv->type);
    kv->page_bytes = calloc(s->n_layers, sizeof *kv->page_bytes);
    kv->plane = calloc(s->n_layers, sizeof *kv->plane);
    const size_t page = ht_kv_page_bytes(HT_KV_F16, s->n_kv_heads, s->head_dim);
    w->bytes = 2 * (size_t)s->n_layers * PAGES * page;
    w->mem = ht_page_alloc(w->bytes);
    for (uint32_t i = 0; i < s->n_layers; i++)
        for (int v = 0; v < 2; v++) {
            kv->type[i][v] = HT_KV_F16;
            kv->page_bytes[i][v] = page;
            kv->plane[i][v] = w->mem + (2 * i + (uint32_t)v) * PAGES * page;
        }
    w->n_tape = ht_tape(w->model, NULL, 0);
    w->tape = calloc(w->n_tape, sizeof *w->tape);
    (void)ht_tape(w->model, w->tape, w->n_tape);
}

static void close_model(world *w)
{
    if (w->plan) graph__plan_free(w->plan);
    if (w->dev) ht_backend_graph.close(w->dev);
    ht_page_free(w->mem, w->bytes);
    free(w->kv.layer_class);
    free(w->kv.type);
    free(w->kv.page_bytes);
    free(w->kv.plane);
    free(w->tape);
    ht_model_free(w->model);
    ht_file_close(w->file);
}

static ht_bucket bucket(uint16_t rows)
{
    return (ht_bucket){.rows = rows,
                       .seqs = 1,
                       .want = 1,
                       .steps = 1,
                       .ctx = 256,
                       .kv_fmt = HT_KV_F16 | HT_KV_F16 << 8};
}

static int make_plan_of(world *w, ht_bucket b, ht_err *e)
{
    ht_cut cut[1];
    if (!ht_cover(&ht_backend_graph, w->dev, w->model, w->tape, w->n_tape, &b, NULL, NULL, cut, e))
        return e->code;
    return graph__plan(&w->plan, w->dev, &w->kv, w->tape, cut, 1, &b, e);
}

static int make_plan(world *w, uint16_t rows, ht_err *e)
{
    return make_plan_of(w, bucket(rows), e);
}

/* n tokens through the plan, from page `page0` on in this order of pages. */
static int run(world *w, uint32_t n, const uint32_t page[PAGES], const float **logits, ht_err *e)
{
    int32_t id[64], pos[64];
    uint16_t seq[64] = {0};
    const uint32_t want = n - 1;
    for (uint32_t i = 0; i < n; i++) {
        id[i] = (int32_t)(7 * i % 500 + 3);
        pos[i] = (int32_t)i;
    }
    const ht_batch b = {.rows = n,
                        .seqs = 1,
                        .n_want = 1,
                        .token = id,
                        .pos = pos,
                        .seq = seq,
                        .page = {page, NULL},
                        .want = &want};
    int rc = graph__run(w->plan, &b, e);
    return rc ? rc : graph__wait(w->plan, logits, e);
}
static const uint32_t in_order[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};

/* ---- the library ----------------------------------------------------------------------------- */

T_CASE(library, absent)
{
    ht_err e = {0};
    ht_dev *dev;
    T_ERR(ht_backend_graph.open(&dev, "openvino=none", &e), HT_EUNSUPPORTED, e, "no OpenVINO");
    T_CHECK(strstr(e.msg, "make graph-runtime"), "the message says what to do: %s", e.msg);
    T_ERR(ht_backend_graph.open(&dev, "openvino=/nowhere/libopenvino_c.so", &e), HT_EUNSUPPORTED, e,
          "no OpenVINO");
    T_CHECK(dev == NULL, "nothing is handed out");
}

T_CASE(library, another)
{
    ht_err e = {0};
    ht_dev *dev;
    T_ERR(ht_backend_graph.open(&dev, "openvino=libm.so.6", &e), HT_EUNSUPPORTED, e,
          "has no ov_get_openvino_version");
}

static int old_version(ov_version *v)
{
    const int rc = real.version(v);
    v->build = "2024.6.0-17404-abc";
    return rc;
}
static void keep_version(ov_version *v)
{
    (void)v; /* a literal above; the copy is lost to the test */
}
T_CASE(library, wrong_version)
{
    ht_err e = {0};
    ht_dev *dev;
    ov_api api = calls();
    api.version = old_version;
    api.version_free = keep_version;
    T_ERR(graph__open_api(&dev, &api, "x", "", &e), HT_EUNSUPPORTED, e, "2024.6.0");
}

static int odd_bytes(const ov_tensor *t, size_t *n)
{
    const int rc = real.tensor_bytes(t, n);
    *n += 1;
    return rc;
}
T_CASE(library, other_numbers_of_types)
{
    ht_err e = {0};
    ht_dev *dev;
    ov_api api = calls();
    api.tensor_bytes = odd_bytes;
    T_ERR(graph__open_api(&dev, &api, "x", "", &e), HT_EUNSUPPORTED, e, "element types");
}

T_CASE(device, unknown)
{
    ht_err e = {0};
    ht_dev *dev;
    ov_api api = calls();
    T_ERR(graph__open_api(&dev, &api, "x", "device=QPU,approximate=1", &e), HT_EUNSUPPORTED, e,
          "no device QPU here; it has: CPU");
}

/* AUTO and HETERO compute where and in what they like: never without being asked for by name. */
T_CASE(device, auto_undeclared)
{
    static const char *const opts[] = {"device=AUTO", "device=HETERO:CPU", "device=AUTO:CPU"};
    ht_err e = {0};
    ht_dev *dev;
    (void)calls();
    for (size_t i = 0; i < sizeof opts / sizeof *opts; i++)
        T_ERR(ht_backend_graph.open(&dev, opts[i], &e), HT_EUNSUPPORTED, e, "approximate=1");
}

T_CASE_SECONDS(device, auto_declared, 60)
{
    ht_err e = {0};
    world w;
    const float *l;
    char json[1024];
    (void)calls();
    open_model(&w, tale);
    T_OK(ht_backend_graph.open(&w.dev, "device=AUTO,approximate=1,threads=2", &e), e);
    w.dev->model = w.model;
    T_OK(make_plan(&w, 32, &e), e);
    T_OK(run(&w, 20, in_order, &l, &e), e);
    T_EQ_INT(graph__plan_describe(w.plan, json, sizeof json), 0);
    T_CHECK(strstr(json, "\"executionDevices\":\"(CPU)\"") || strstr(json, "CPU"),
            "the facts name the device: %s", json);
    close_model(&w);
}

/* ---- compiling ------------------------------------------------------------------------------- */

static int fail_compile(ov_core *c, const ov_model *m, const char *d, size_t n, const ov_prop *p,
                        ov_compiled **out)
{
    (void)c, (void)m, (void)d, (void)n, (void)p, (void)out;
    return -1;
}
static const char *out_of_memory(void)
{
    return "Exception from src/inference: std::bad_alloc";
}
static void keep_text(const char *t)
{
    (void)t;
}

T_CASE(compile, fails)
{
    ht_err e = {0};
    world w;
    ov_api api = calls();
    api.compile = fail_compile;
    open_model(&w, tale);
    T_OK(graph__open_api(&w.dev, &api, "x", "threads=2", &e), e);
    w.dev->model = w.model;
    T_ERR(make_plan(&w, 32, &e), HT_EDEVICE, e, "compiling 32 rows for CPU");
    T_CHECK(w.plan == NULL, "no plan is handed out");
    w.dev->api.last_error = out_of_memory;
    w.dev->api.text_free = keep_text;
    T_ERR(make_plan(&w, 32, &e), HT_ENOMEM, e, "bad_alloc");
    close_model(&w);
}

static int lying_prop(const ov_compiled *c, const char *key, char **out)
{
    const int rc = real.get_prop(c, key, out);
    if (rc == OV_OK && lie_key && !strcmp(key, lie_key)) {
        real.text_free(*out);
        *out = (char *)(uintptr_t)lie;
    }
    return rc;
}
static void free_unless_lie(const char *t)
{
    if (t != lie) real.text_free(t);
}
static void told(const char *key, const char *value, const char *text)
{
    ht_err e = {0};
    world w;
    ov_api api = calls();
    api.get_prop = lying_prop;
    api.text_free = free_unless_lie;
    lie_key = key;
    lie = value;
    open_model(&w, tale);
    T_OK(graph__open_api(&w.dev, &api, "x", "threads=2", &e), e);
    w.dev->model = w.model;
    T_ERR(make_plan(&w, 32, &e), HT_EDEVICE, e, text);
    close_model(&w);
}
T_CASE(compile, for_another_device)
{
    told("EXECUTION_DEVICES", "GPU.0", "compiled for \"GPU.0\"");
}
T_CASE(compile, in_another_precision)
{
    told("INFERENCE_PRECISION_HINT", "bf16", "asked for precision f32, compiled with \"bf16\"");
}

T_CASE(compile, with_other_groups)
{
    told("DYNAMIC_QUANTIZATION_GROUP_SIZE", "32", "groups of 0 (0: not at all), compiled with");
}

/* ---- running --------------------------------------------------------------------------------- */

/* AUTO may go on elsewhere than it began: the run in between is refused, and from then on the
 * receipt names the other device. */
T_CASE_SECONDS(run, auto_moves, 60)
{
    ht_err e = {0};
    world w;
    const float *l;
    char json[1024];
    ov_api api = calls();
    api.get_prop = lying_prop;
    api.text_free = free_unless_lie;
    lie_key = NULL;
    open_model(&w, tale);
    T_OK(graph__open_api(&w.dev, &api, "x", "device=AUTO,approximate=1,threads=2", &e), e);
    w.dev->model = w.model;
    T_OK(make_plan(&w, 32, &e), e);
    T_OK(run(&w, 5, in_order, &l, &e), e);
    T_OK(run(&w, 5, in_order, &l, &e), e);
    lie_key = "EXECUTION_DEVICES";
    lie = "GPU.0";
    T_ERR(run(&w, 5, in_order, &l, &e), HT_EDEVICE, e, "to \"GPU.0\" during a run");
    T_CHECK(l == NULL, "no logits are handed out");
    T_OK(run(&w, 5, in_order, &l, &e), e);
    T_EQ_INT(graph__plan_describe(w.plan, json, sizeof json), 0);
    T_CHECK(strstr(json, "\"executionDevices\":\"GPU.0\""), "the facts name it: %s", json);
    close_model(&w);
}

static int elsewhere(const ov_tensor *t, void **at)
{
    const int rc = real.tensor_data(t, at);
    *at = (char *)*at + 64;
    return rc;
}
T_CASE(run, output_not_in_place)
{
    ht_err e = {0};
    world w;
    ov_api api = calls();
    open_model(&w, tale);
    T_OK(graph__open_api(&w.dev, &api, "x", "threads=2", &e), e);
    w.dev->model = w.model;
    T_OK(make_plan(&w, 32, &e), e);
    w.dev->api.tensor_data = elsewhere;
    const float *l;
    T_ERR(run(&w, 5, in_order, &l, &e), HT_EDEVICE, e, "would not be written where the pages are");
    w.dev->api.tensor_data = real.tensor_data;
    T_OK(run(&w, 5, in_order, &l, &e), e);
    close_model(&w);
}

static int low_profile(const ov_request *r, ov_nodes *n)
{
    const int rc = real.profile(r, n);
    for (size_t i = 0; i < n->n; i++)
        if (strstr(n->node[i].node_type, "FullyConnected"))
            n->node[i].exec_type = "brgemm_avx512_amx_bf16";
    return rc;
}
static void leak_nodes(ov_nodes *n)
{
    (void)n; /* holds literals of the test now */
}
T_CASE(run, ran_below_f32)
{
    ht_err e = {0};
    world w;
    ov_api api = calls();
    api.profile = low_profile;
    api.nodes_free = leak_nodes;
    open_model(&w, tale);
    T_OK(graph__open_api(&w.dev, &api, "x", "threads=2", &e), e);
    w.dev->model = w.model;
    T_OK(make_plan(&w, 32, &e), e);
    const float *l;
    T_ERR(run(&w, 5, in_order, &l, &e), HT_EDEVICE, e, "ran below f32");
    T_CHECK(l == NULL, "no logits are handed out");
    close_model(&w);
}

T_CASE(run, what_it_refuses)
{
    ht_err e = {0};
    world w;
    const float *l;
    ov_api api = calls();
    open_model(&w, tale);
    T_OK(graph__open_api(&w.dev, &api, "x", "threads=2", &e), e);
    w.dev->model = w.model;
    T_OK(make_plan(&w, 128, &e), e);
    static const uint32_t gap[PAGES] = {0, 1, 3, 4};
    static const uint32_t late[PAGES] = {6, 7, 8, 9};
    T_ERR(run(&w, 5, gap, &l, &e), HT_EUNSUPPORTED, e, "not one run (entry 2)");
    T_ERR(run(&w, 5, late, &l, &e), HT_EUNSUPPORTED, e, "not one run");
    T_ERR(graph__wait(w.plan, &l, &e), HT_EARG, e, "wait without run");
    int32_t id[2] = {1, 2}, pos[2] = {4, 5};
    uint16_t seq[2] = {0, 0};
    const ht_batch b = {
        .rows = 2, .seqs = 1, .token = id, .pos = pos, .seq = seq, .page = {in_order, NULL}};
    T_ERR(graph__run(w.plan, &b, &e), HT_EUNSUPPORTED, e, "from position 0 on");
    T_OK(run(&w, 5, in_order, &l, &e), e);
    close_model(&w);
}

/* What covers() says of other work. */
T_CASE(span, refusals)
{
    world w;
    ht_err e = {0};
    ov_api api = calls();
    open_model(&w, tale);
    T_OK(graph__open_api(&w.dev, &api, "x", "threads=2", &e), e);
    w.dev->model = w.model;
    const ht_span *whole = graph__spans[0];
    const struct {
        const char *what;
        ht_bucket b;
        size_t n;
    } is[] = {
        {"a bucket", bucket(32), w.n_tape},
        {"another number of rows", bucket(64), 0},
        {"one row", bucket(1), 0},
        {"a context below its rows", bucket(512), 0},
    };
    for (size_t i = 0; i < sizeof is / sizeof *is; i++)
        T_EQ_INT(whole->covers(w.dev, w.model, w.tape, w.n_tape, &is[i].b), is[i].n);
    ht_bucket b = bucket(128);
    b.past = 128;
    T_EQ_INT(whole->covers(w.dev, w.model, w.tape, w.n_tape, &b), 0);
    b = bucket(128);
    b.seqs = 2;
    T_EQ_INT(whole->covers(w.dev, w.model, w.tape, w.n_tape, &b), 0);
    b = bucket(128);
    b.flags = HT_WANT_MASS;
    T_EQ_INT(whole->covers(w.dev, w.model, w.tape, w.n_tape, &b), 0);
    b = bucket(128); /* weights in F16: there is nothing to quantise activations for */
    b.act = HT_ACT_Q8;
    T_EQ_INT(whole->covers(w.dev, w.model, w.tape, w.n_tape, &b), 0);
    b = bucket(128);
    b.act = HT_ACT_BF16;
    T_EQ_INT(whole->covers(w.dev, w.model, w.tape, w.n_tape, &b), w.dev->bf16 ? w.n_tape : 0);
    b = bucket(128);
    T_EQ_INT(whole->covers(w.dev, w.model, w.tape, w.n_tape - 1, &b), 0);
    T_EQ_INT(whole->covers(w.dev, w.model, w.tape + 1, w.n_tape - 1, &b), 0);
    T_EQ_INT(graph__spans[1]->covers(w.dev, w.model, w.tape + 1, w.n_tape - 1, &b), 0);
    close_model(&w);
}

T_CASE(run, cancel_before_and_between)
{
    ht_err e = {0};
    world w;
    const float *l;
    ov_api api = calls();
    open_model(&w, tale);
    T_OK(graph__open_api(&w.dev, &api, "x", "threads=2", &e), e);
    w.dev->model = w.model;
    T_OK(make_plan(&w, 32, &e), e);
    T_EQ_INT(graph__cancel(w.plan), 0);
    T_ERR(run(&w, 20, in_order, &l, &e), HT_ECANCELLED, e, "cancelled");
    T_OK(run(&w, 20, in_order, &l, &e), e); /* one run uses a cancel up */
    close_model(&w);
}

/* One row behind 64 held positions (bench/graph_step.c): pages of every layer are read, the new row
 * of each is given, and attention runs over 65 keys. No plan covers it: decoding is another
 * engine's. */
T_CASE(emit, decode_step)
{
    ht_err e = {0};
    world w;
    ht_arena *arena;
    ht_buf text;
    size_t read = 0, given = 0;
    open_model(&w, tale);
    const ht_dev dev = {.model = w.model, .threads = 1};
    graph_part part = {.dev = &dev, .at = w.tape, .n = w.n_tape, .b = bucket(1)};
    part.b.past = 64;
    T_OK(ht_arena_new(&arena, 0, &e), e);
    T_OK(graph__emit(&part, NULL, arena, &text, &e), e);
    const size_t layers = w.model->spec.n_layers;
    for (size_t i = 0; i < part.n_in; i++)
        read += part.in[i].io == GRAPH_K || part.in[i].io == GRAPH_V;
    for (size_t i = 0; i < part.n_out; i++)
        given += part.out[i].io == GRAPH_K || part.out[i].io == GRAPH_V;
    T_EQ_INT(read, 2 * layers);
    T_EQ_INT(part.n_in, 2 * layers + 4); /* X, cos, sin, wanted row */
    T_EQ_INT(given, 2 * layers);
    T_EQ_INT(part.out[part.n_out - 1].io, GRAPH_L);
    T_CHECK(strstr(text.p, "<dim>65</dim>") != NULL, "no 65 keys in the text");
    T_CHECK(strstr(text.p, "<dim>64</dim>") != NULL, "no 64 held positions in the text");
    T_EQ_INT(graph__spans[0]->covers(&dev, w.model, w.tape, w.n_tape, &part.b), 0);
    ht_buf_done(&text);
    ht_arena_free(arena);
    close_model(&w);
}

/* ---- static int8 ----------------------------------------------------------------------------- */

enum { CALIBRATE = 300 };
static void some_ids(int32_t id[CALIBRATE])
{
    for (int32_t i = 0; i < CALIBRATE; i++) id[i] = 31 * i % 900 + 3;
}

/* One scale a row, at most half a step off. */
T_CASE(int8, weights_by_row)
{
    ht_err e = {0};
    world w;
    graph_const c;
    graph_stage_mem *mem;
    float row[4096];
    ov_api api = calls();
    open_model(&w, tale);
    T_OK(graph__open_api(&w.dev, &api, "x", "threads=2", &e), e);
    const ht_weight *m = &w.model->layer[1].down;
    T_OK(graph__mem_new(&mem, &e), e);
    T_OK(graph__const(w.dev, mem, m, true, &c, &e), e);
    T_EQ_INT(c.type, IR_I8);
    T_EQ_INT(c.group, m->cols);
    T_EQ_INT(c.bytes, (uint64_t)m->rows * m->cols);
    for (uint32_t r = 0; r < m->rows; r++) {
        int top = 0;
        ht_weight_row(m, 0, r, row);
        for (uint32_t i = 0; i < m->cols; i++) {
            const int v = ((const int8_t *)c.data)[(size_t)r * m->cols + i];
            const double off = (double)v * (double)c.scale[r] - (double)row[i];
            T_CHECK(fabs(off) <= 0.5001 * (double)c.scale[r], "row %u column %u: %g off", r, i,
                    off);
            top = abs(v) > top ? abs(v) : top;
        }
        T_EQ_INT(top, 127);
    }
    graph__mem_free(mem);
    close_model(&w);
}

/* tale-9m on a device of these calls, ids to calibrate on, and the bucket of 32 rows in 8 bits. */
static ht_bucket open_int8(world *w, const ov_api *api, int32_t id[CALIBRATE])
{
    ht_err e = {0};
    ht_bucket b = bucket(32);
    open_model(w, tale);
    some_ids(id);
    b.act = HT_ACT_INT8;
    T_OK(graph__open_api(&w->dev, api, "x", "threads=2", &e), e);
    w->dev->model = w->model;
    return b;
}

/* Ranges first; then all products of the layers run in 8 bits, with logits that are near those of
 * f32 and not the same. */
T_CASE_SECONDS(int8, calibrated_and_run, 120)
{
    ht_err e = {0};
    world w;
    const float *l;
    int32_t id[CALIBRATE];
    const ov_api api = calls();
    const ht_bucket b = open_int8(&w, &api, id);
    const size_t vocab = w.model->spec.vocab, layers = w.model->spec.n_layers;
    T_ERR(make_plan_of(&w, b, &e), HT_EARG, e, "before its ranges were measured");
    T_ERR(graph__calibrate(w.dev, id, 127, &e), HT_EARG, e, "at least 128 tokens");
    T_CHECK(!w.dev->range, "no ranges from nothing");
    T_OK(graph__calibrate(w.dev, id, 128, &e), e);
    float *one = malloc(layers * GRAPH_INPUTS * sizeof *one),
          *exact = malloc(vocab * sizeof *exact);
    memcpy(one, w.dev->range, layers * GRAPH_INPUTS * sizeof *one);
    T_OK(graph__calibrate(w.dev, id, CALIBRATE, &e), e);
    for (size_t i = 0; i < layers * GRAPH_INPUTS; i++)
        T_CHECK(one[i] > 1e-3f && w.dev->range[i] >= one[i],
                "range %zu: %g of one window, %g of two", i, (double)one[i],
                (double)w.dev->range[i]);
    T_OK(make_plan(&w, 32, &e), e);
    T_OK(run(&w, 20, in_order, &l, &e), e);
    memcpy(exact, l, vocab * sizeof *exact);
    graph__plan_free(w.plan);
    w.plan = NULL;
    T_OK(make_plan_of(&w, b, &e), e);
    T_OK(run(&w, 20, in_order, &l, &e), e);
    T_EQ_INT(w.plan->facts.n_low, 7 * layers);
    double xy = 0, xx = 0, yy = 0;
    for (size_t i = 0; i < vocab; i++) {
        xy += (double)l[i] * (double)exact[i];
        xx += (double)exact[i] * (double)exact[i];
        yy += (double)l[i] * (double)l[i];
    }
    T_CHECK(xy / sqrt(xx * yy) > 0.8 && memcmp(l, exact, vocab * sizeof *l) != 0, "cosine %g",
            xy / sqrt(xx * yy));
    free(one);
    free(exact);
    close_model(&w);
}

static int wide_profile(const ov_request *r, ov_nodes *n)
{
    const int rc = real.profile(r, n);
    for (size_t i = 0; i < n->n; i++) n->node[i].exec_type = "jit_gemm_FP32";
    return rc;
}
T_CASE_SECONDS(int8, ran_in_f32, 60)
{
    ht_err e = {0};
    world w;
    const float *l;
    int32_t id[CALIBRATE];
    ov_api api = calls();
    api.profile = wide_profile;
    api.nodes_free = leak_nodes;
    const ht_bucket b = open_int8(&w, &api, id);
    T_OK(graph__calibrate(w.dev, id, CALIBRATE, &e), e);
    T_OK(make_plan_of(&w, b, &e), e);
    T_ERR(run(&w, 5, in_order, &l, &e), HT_EDEVICE, e, "though act int8 was declared");
    T_CHECK(l == NULL, "no logits are handed out");
    close_model(&w);
}

/* ---- the folder of compiled models ----------------------------------------------------------- */

static const char *folder;
static size_t count(const char *suffix, char *path, size_t cap)
{
    char pattern[100];
    glob_t g;
    (void)snprintf(pattern, sizeof pattern, "%s/*%s", folder, suffix);
    if (glob(pattern, 0, NULL, &g) != 0) return 0;
    const size_t n = g.gl_pathc;
    (void)snprintf(path, cap, "%s", g.gl_pathv[0]);
    globfree(&g);
    return n;
}

static void cached_run(const char *extra, bool expect_hit, float *logits)
{
    ht_err e = {0};
    world w;
    const float *l;
    char opts[200];
    ov_api api = calls();
    open_model(&w, tale);
    (void)snprintf(opts, sizeof opts, "threads=2,cache=%s%s", folder, extra);
    T_OK(graph__open_api(&w.dev, &api, "x", opts, &e), e);
    w.dev->model = w.model;
    T_OK(make_plan(&w, 32, &e), e);
    T_EQ_INT(w.plan->facts.cached, expect_hit);
    T_OK(run(&w, 20, in_order, &l, &e), e);
    memcpy(logits, l, w.model->spec.vocab * sizeof *l);
    close_model(&w);
}

static void harm(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    T_CHECK(f, "%s opens", path);
    T_EQ_INT(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    const int c = fgetc(f);
    T_EQ_INT(fseek(f, -1, SEEK_CUR), 0);
    T_TRUE(fputc(c ^ 0x40, f) != EOF);
    T_EQ_INT(fclose(f), 0);
}

/* Compiled once, then imported with equal bits; anything that is not what was written, or was
 * written for something else, is compiled again. */
T_CASE_SECONDS(cache, hit_miss_and_damage, 240)
{
    static float first[65536], other[65536];
    char path[200], side[200];
    folder = t_tmp();
    cached_run("", false, first);
    T_EQ_INT(count(".blob", path, sizeof path), 1);
    T_EQ_INT(count(".sha256", side, sizeof side), 1);
    T_EQ_INT(count(".part", path, sizeof path), 0);
    (void)count(".blob", path, sizeof path);
    cached_run("", true, other);
    T_EQ_MEM(other, first, sizeof first);

    harm(path, 200000); /* a weight: the library itself would not notice */
    cached_run("", false, other);
    T_EQ_MEM(other, first, sizeof first);
    cached_run("", true, other);
    T_EQ_INT(truncate(path, 1000), 0);
    cached_run("", false, other);
    T_EQ_MEM(other, first, sizeof first);
    T_EQ_INT(unlink(side), 0);
    cached_run("", false, other);
    cached_run(",weights=view", false, other); /* other properties: another file */
    T_EQ_INT(count(".blob", path, sizeof path), 2);
}

/* A folder that cannot be written is no error: the next start compiles again. What can never be a
 * folder is one. */
T_CASE_SECONDS(cache, unwritable, 60)
{
    static float logits[65536];
    ht_err e = {0};
    ht_dev *dev;
    ov_api api = calls();
    folder = "/proc";
    cached_run("", false, logits);
    T_ERR(graph__open_api(&dev, &api, "x", "cache=/proc/hetero-nowhere", &e), HT_EIO, e,
          "compiled models are kept in a folder");
}
