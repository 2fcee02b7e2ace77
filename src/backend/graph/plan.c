/* plan.c - a part of the tape made ready: its text printed, compiled or fetched from the folder of
 * compiled models, and a request whose inputs are the plan's registers. */
#include "backend/graph/graph.h"
#include "core/clock.h"
#include <stdio.h>
#include <string.h>

/* ---- registers ------------------------------------------------------------------------------- */

static float *floats(ht_plan *p, size_t n, bool *ok)
{
    float *f = ht_arena_alloc_aligned(p->arena, n * sizeof *f, 64);
    *ok = *ok && f;
    return f;
}

static int take_memory(ht_plan *p, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    const size_t rows = p->b.rows, want = p->b.want ? p->b.want : 1;
    bool ok = true;
    p->x = floats(p, rows * s->dim, &ok);
    if (p->dev->pieces) {
        p->a = floats(p, rows * s->n_heads * s->head_dim, &ok);
        p->h = floats(p, rows * s->ffn, &ok);
        const size_t nq = (size_t)s->n_heads * s->head_dim, wide = s->dim > nq ? s->dim : nq;
        p->out = floats(p, rows * (wide > s->ffn ? wide : s->ffn), &ok);
    }
    p->l = floats(p, want * s->vocab, &ok);
    for (int r = 0; r < HT_ROPES; r++) {
        if (!s->rope[r].dims || !s->rope[r].inv_freq) continue;
        p->cos[r] = floats(p, rows * s->rope[r].dims, &ok);
        p->sin[r] = floats(p, rows * s->rope[r].dims, &ok);
    }
    if (p->part.observe) p->range = floats(p, (size_t)s->n_layers * GRAPH_INPUTS, &ok);
    p->want = ht_arena_array(p->arena, want, sizeof *p->want);
    p->rope_long = -1;
    for (int c = 0; c < HT_KV_CLASSES; c++) p->bound[c] = HT_NOPAGE;
    if (ok && p->want) return 0;
    return HT_FAIL(e, HT_ENOMEM, "graph: plan of %u rows: out of memory", (unsigned)p->b.rows);
}

int graph__reg(ht_plan *p, int reg, void **ptr, size_t *bytes, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    const size_t rows = p->b.rows, want = p->b.want ? p->b.want : 1;
    *ptr = NULL;
    switch (reg) {
    case HT_REG_X: *ptr = p->x, *bytes = rows * s->dim * sizeof(float); break;
    case HT_REG_A: *ptr = p->a, *bytes = rows * s->n_heads * s->head_dim * sizeof(float); break;
    case HT_REG_H: *ptr = p->h, *bytes = rows * s->ffn * sizeof(float); break;
    case HT_REG_L: *ptr = p->l, *bytes = want * s->vocab * sizeof(float); break;
    default: break;
    }
    return *ptr ? 0 : HT_FAIL(e, HT_EUNSUPPORTED, "graph has no register %d in this plan", reg);
}

/* ---- compiling ------------------------------------------------------------------------------- */

size_t graph__properties(const ht_plan *p, char text[2][16], ov_prop out[GRAPH_PROPS])
{
    const bool q8 = p->b.act == HT_ACT_Q8;
    (void)snprintf(text[0], 16, "%d", p->dev->threads);
    (void)snprintf(text[1], 16, "%d", q8 ? GRAPH_Q8_GROUP : 0);
    out[0] = (ov_prop){"INFERENCE_PRECISION_HINT", p->b.act == HT_ACT_BF16 ? "bf16" : "f32"};
    out[1] = (ov_prop){"INFERENCE_NUM_THREADS", text[0]};
    out[2] = (ov_prop){"NUM_STREAMS", "1"};
    out[3] = (ov_prop){"PERF_COUNT", "YES"};
    out[4] = (ov_prop){"DYNAMIC_QUANTIZATION_GROUP_SIZE", text[1]};
    return strcmp(p->dev->device, "CPU") ? 4 : 5;
}

/* Map of the address space as the "weights file" that constants' offsets refer to: see ir.h. */
static int address_space(const ov_api *api, ov_tensor **out, ht_err *e)
{
    int64_t bytes = (INT64_C(1) << 47) - IR_BASE; /* what a process addresses here */
    return graph__ov_check(api,
                           api->wrap(OV_I8, (ov_shape){1, &bytes}, (void *)(uintptr_t)IR_BASE, out),
                           HT_EDEVICE, "wrapping the weights", e);
}

static int compile(ht_plan *p, ht_err *e)
{
    const ov_api *api = &p->dev->api;
    ov_model *model = NULL;
    ov_tensor *space = NULL;
    ov_prop prop[GRAPH_PROPS];
    char value[2][16], what[80];
    ht_buf text;
    HT_TRY(graph__mem_new(&p->mem, e));
    int rc = graph__emit(&p->part, p->mem, p->arena, &text, e);
    p->facts.xml_bytes = text.n;
    p->facts.const_bytes = graph__mem_bytes(p->mem);
    if (!rc) rc = address_space(api, &space, e);
    if (!rc)
        rc = graph__ov_check(api, api->read(p->dev->core, text.p, text.n, space, &model),
                             HT_EDEVICE, "reading the graph", e);
    ht_buf_done(&text);
    (void)snprintf(what, sizeof what, "compiling %u rows for %.40s", (unsigned)p->b.rows,
                   p->dev->device);
    const size_t n = graph__properties(p, value, prop);
    if (!rc)
        rc = graph__ov_check(
            api, api->compile(p->dev->core, model, p->dev->device, n, prop, &p->compiled),
            HT_EDEVICE, what, e);
    if (model) api->model_free(model);
    if (space) api->tensor_free(space);
    return rc;
}

static int fetch_or_compile(ht_plan *p, ht_err *e)
{
    char key[HT_SHA256_HEX] = "";
    const uint64_t t0 = ht_now_ns();
    bool hit = false;
    ht_buf text;
    ht_buf_init(&text, 0);
    /* Without data and addresses: what identifies the model, and the ports. */
    int rc = graph__emit(&p->part, NULL, p->arena, &text, e);
    if (!rc && p->dev->cache[0]) rc = graph__cache_key(p, text.p, text.n, key, e);
    ht_buf_done(&text);
    if (rc) return rc;
    if (key[0]) graph__cache_get(p, key, &hit);
    if (!hit) HT_TRY(compile(p, e));
    p->facts.cached = hit;
    p->facts.compile_ns = ht_now_ns() - t0;
    if (key[0] && !hit) graph__cache_put(p, key);
    return 0;
}

/* ---- what came out --------------------------------------------------------------------------- */

void graph__prop(const ht_plan *p, const char *key, char *out, size_t cap)
{
    char *text = NULL;
    out[0] = 0;
    if (p->dev->api.get_prop(p->compiled, key, &text) == OV_OK && text)
        (void)snprintf(out, cap, "%s", text);
    if (text) p->dev->api.text_free(text);
}

/* The compiled model's own word against what was asked: numbers of another kind, or another
 * device, never pass as the ones asked for. */
static int read_back(ht_plan *p, ht_err *e)
{
    graph_facts *f = &p->facts;
    const char *want = p->b.act == HT_ACT_BF16 ? "bf16" : "f32";
    ov_prop asked[GRAPH_PROPS];
    char value[2][16];
    const size_t n = graph__properties(p, value, asked);
    graph__prop(p, "INFERENCE_PRECISION_HINT", f->precision, sizeof f->precision);
    graph__prop(p, "EXECUTION_DEVICES", f->device, sizeof f->device);
    graph__prop(p, "INFERENCE_NUM_THREADS", f->threads, sizeof f->threads);
    graph__prop(p, "DYNAMIC_QUANTIZATION_GROUP_SIZE", f->quant_group, sizeof f->quant_group);
    if (p->dev->approximate) return 0; /* a declared mode: what it did is in the receipt */
    if (strcmp(f->device, p->dev->device) != 0)
        return HT_FAIL(e, HT_EDEVICE,
                       "graph: asked for device %s, compiled for \"%s\": refused, since another "
                       "device has other numbers",
                       p->dev->device, f->device);
    if (strcmp(f->precision, want) != 0)
        return HT_FAIL(e, HT_EDEVICE,
                       "graph: asked for precision %s, compiled with \"%s\": refused; use another "
                       "engine or --act",
                       want, f->precision);
    if (strcmp(f->quant_group, asked[n - 1].value) != 0)
        return HT_FAIL(e, HT_EDEVICE,
                       "graph: asked for activations quantised in groups of %s (0: not at all), "
                       "compiled with \"%s\": refused; use another engine or --act",
                       asked[n - 1].value, f->quant_group);
    return 0;
}

/* Element type and shape of a port; number of dimensions. */
static int64_t port_shape(const ht_plan *p, const graph_port *o, int64_t d[IR_RANK], int *type)
{
    const ht_spec *s = &p->m->spec;
    const int64_t M = p->b.rows, W = p->b.want ? p->b.want : 1;
    const int kv = o->io == GRAPH_K ? p->b.kv_fmt & 0xff : p->b.kv_fmt >> 8;
    *type = OV_F32;
    d[0] = 1;
    d[1] = M;
    switch (o->io) {
    case GRAPH_X: d[2] = s->dim; return 3;
    case GRAPH_A: d[2] = (int64_t)s->n_heads * s->head_dim; return 3;
    case GRAPH_H: d[2] = s->ffn; return 3;
    case GRAPH_L: d[1] = W, d[2] = s->vocab; return 3;
    case GRAPH_COS:
    case GRAPH_SIN: d[1] = 1, d[2] = M, d[3] = s->rope[o->layer].dims; return 4;
    case GRAPH_WANT: *type = OV_I64, d[0] = W; return 1;
    case GRAPH_RANGE: d[1] = d[2] = 1; return 3;
    default:
        *type = kv == HT_KV_F16 ? OV_F16 : OV_F32;
        d[0] = M / HT_PAGE, d[1] = s->n_kv_heads, d[2] = HT_PAGE, d[3] = s->head_dim;
        return 4;
    }
}

int graph__bind(ht_plan *p, bool output, size_t index, void *mem, ht_err *e)
{
    const ov_api *api = &p->dev->api;
    const graph_port *port = output ? &p->part.out[index] : &p->part.in[index];
    int64_t dims[IR_RANK];
    int type;
    const int64_t rank = port_shape(p, port, dims, &type);
    ov_tensor *t = NULL, *back = NULL;
    void *at = NULL;
    HT_TRY(graph__ov_check(api, api->wrap(type, (ov_shape){rank, dims}, mem, &t), HT_EDEVICE,
                           "wrapping a register", e));
    int status = output ? api->set_out(p->request, index, t) : api->set_in(p->request, index, t);
    api->tensor_free(t);
    HT_TRY(graph__ov_check(api, status, HT_EDEVICE, output ? "giving an output" : "giving an input",
                           e));
    if (!output) return 0;
    status = api->get_out(p->request, index, &back);
    if (!status) status = api->tensor_data(back, &at);
    if (back) api->tensor_free(back);
    HT_TRY(graph__ov_check(api, status, HT_EDEVICE, "asking where an output lies", e));
    if (at == mem) return 0;
    return HT_FAIL(e, HT_EDEVICE,
                   "graph: output %zu would not be written where the pages are, but copied; "
                   "refused",
                   index);
}

static int bind_registers(ht_plan *p, ht_err *e)
{
    const ov_api *api = &p->dev->api;
    size_t n = 0;
    HT_TRY(
        graph__ov_check(api, api->n_outputs(p->compiled, &n), HT_EDEVICE, "counting outputs", e));
    if (n != p->part.n_out)
        return HT_FAIL(e, HT_EDEVICE, "graph: the compiled model has %zu outputs, not %zu", n,
                       p->part.n_out);
    for (int output = 0; output < 2; output++)
        for (size_t i = 0; i < (output ? p->part.n_out : p->part.n_in); i++) {
            const graph_port *o = output ? &p->part.out[i] : &p->part.in[i];
            void *mem = o->io == GRAPH_RANGE         ? (void *)&p->range[o->layer]
                        : output && o->io != GRAPH_L ? (void *)p->out
                        : o->io == GRAPH_X           ? (void *)p->x
                        : o->io == GRAPH_A           ? (void *)p->a
                        : o->io == GRAPH_H           ? (void *)p->h
                        : o->io == GRAPH_L           ? (void *)p->l
                        : o->io == GRAPH_COS         ? (void *)p->cos[o->layer]
                        : o->io == GRAPH_SIN         ? (void *)p->sin[o->layer]
                                                     : (void *)p->want;
            if (o->io == GRAPH_K || o->io == GRAPH_V) continue; /* pages: known when a run comes */
            HT_TRY(graph__bind(p, output != 0, i, mem, e));
        }
    return 0;
}

/* ---- plan ------------------------------------------------------------------------------------ */

static int check_request(const ht_dev *dev, const ht_kv *kv, const ht_cut *cut, size_t n_cuts,
                         const ht_bucket *b, ht_err *e)
{
    if (!dev->model) return HT_FAIL(e, HT_EARG, "graph: plan before load");
    const ht_spec *s = &dev->model->spec;
    if (n_cuts != 1)
        return HT_FAIL(e, HT_EUNSUPPORTED, "graph: a plan is one span, not %zu", n_cuts);
    if (cut->n == 0 || b->rows % HT_PAGE || b->rows == 0)
        return HT_FAIL(e, HT_EARG, "graph: a span of %u stages at %u rows", cut->n,
                       (unsigned)b->rows);
    if (!kv) return HT_FAIL(e, HT_EARG, "graph: a plan needs a KV pool");
    if (b->act == HT_ACT_INT8 && !dev->range)
        return HT_FAIL(e, HT_EARG, "graph: act int8 before its ranges were measured");
    if (kv->n_layers != s->n_layers || kv->n_kv_heads != s->n_kv_heads ||
        kv->head_dim != s->head_dim)
        return HT_FAIL(e, HT_EARG,
                       "graph: KV pool of %u layers, %u heads of %u does not fit the model",
                       kv->n_layers, kv->n_kv_heads, kv->head_dim);
    for (uint32_t i = 0; i < kv->n_layers; i++)
        if (kv->type[i][0] != (b->kv_fmt & 0xff) || kv->type[i][1] != b->kv_fmt >> 8)
            return HT_FAIL(e, HT_EUNSUPPORTED, "graph: layer %u of the KV pool has other types", i);
    return 0;
}

/* Stages [at, at+n) compiled, with a request whose inputs are the plan's registers. */
static int make_plan(ht_plan **out, ht_dev *dev, ht_kv *kv, const ht_stage *at, size_t n,
                     const ht_bucket *b, bool observe, ht_err *e)
{
    ht_plan *p = ht_mem_alloc(sizeof *p);
    if (!p) return HT_FAIL(e, HT_ENOMEM, "graph: plan: out of memory");
    *p = (ht_plan){.dev = dev, .m = dev->model, .kv = kv, .b = *b, .at = at, .n = n};
    p->part = (graph_part){.dev = dev, .at = at, .n = n, .b = *b, .observe = observe};
    int rc = ht_arena_new(&p->arena, 0, e);
    if (!rc) rc = take_memory(p, e);
    if (!rc) rc = fetch_or_compile(p, e);
    if (!rc) rc = read_back(p, e);
    if (!rc)
        rc = graph__ov_check(&dev->api, dev->api.request_new(p->compiled, &p->request), HT_EDEVICE,
                             "making a request", e);
    if (!rc) rc = bind_registers(p, e);
    if (rc) {
        graph__plan_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

int graph__plan(ht_plan **out, ht_dev *dev, ht_kv *kv, const ht_stage *tape, const ht_cut *cut,
                size_t n_cuts, const ht_bucket *b, ht_err *e)
{
    *out = NULL;
    HT_TRY(check_request(dev, kv, cut, n_cuts, b, e));
    HT_TRY(make_plan(out, dev, kv, tape + cut->at, cut->n, b, false, e));
    (*out)->exec_id = ht_exec_id(cut);
    return 0;
}

int graph__plan_observe(ht_plan **out, ht_dev *dev, const ht_stage *at, size_t n,
                        const ht_bucket *b, ht_err *e)
{
    *out = NULL;
    return make_plan(out, dev, NULL, at, n, b, true, e);
}

void graph__plan_free(ht_plan *p)
{
    if (!p) return;
    if (p->request) p->dev->api.request_free(p->request);
    if (p->compiled) p->dev->api.compiled_free(p->compiled);
    ht_map_close(&p->blob);
    graph__mem_free(p->mem);
    ht_arena_free(p->arena);
    ht_mem_free(p);
}
