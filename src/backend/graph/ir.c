/* ir.c - see ir.h. */
#include "backend/graph/ir.h"

#include <inttypes.h>
#include <string.h>

static const struct {
    const char *attr, *port; /* how a constant's attribute and a port spell the type */
} spelling[IR_TYPES] = {
    [IR_F32] = {"f32", "FP32"}, [IR_F16] = {"f16", "FP16"},      [IR_BF16] = {"bf16", "BF16"},
    [IR_I64] = {"i64", "I64"},  [IR_I8] = {"i8", "I8"},          [IR_U8] = {"u8", "U8"},
    [IR_U4] = {"u4", "U4"},     [IR_BOOL] = {"boolean", "BOOL"},
};

void graph__ir_init(ir_doc *d, ht_arena *arena, bool digest)
{
    *d = (ir_doc){.arena = arena, .digest = digest};
    ht_buf_init(&d->layers, 0);
    ht_buf_init(&d->edges, 0);
}

void graph__ir_done(ir_doc *d)
{
    ht_buf_done(&d->layers);
    ht_buf_done(&d->edges);
}

ir_val graph__ir_shape(int type, int rank, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return (ir_val){.type = (uint8_t)type, .rank = (uint8_t)rank, .d = {a, b, c, d}};
}

static void put_shape(ht_buf *b, const ir_val *v)
{
    for (int i = 0; i < v->rank; i++) ht_buf_fmt(b, "%s%u", i ? "," : "", v->d[i]);
}

static void put_port(ht_buf *b, const ir_val *v, int id)
{
    ht_buf_fmt(b, "<port id=\"%d\" precision=\"%s\">", id, spelling[v->type].port);
    for (int i = 0; i < v->rank; i++) ht_buf_fmt(b, "<dim>%u</dim>", v->d[i]);
    ht_buf_str(b, "</port>");
}

/* One layer with its edges; out[i] get their node and port. */
static void put_layer(ir_doc *d, const char *op, const char *set, const char *name,
                      const char *attrs, const ir_val *in, int n_in, ir_val *out, int n_out)
{
    const uint32_t id = d->n++;
    ht_buf *b = &d->layers;
    ht_buf_fmt(b, "<layer id=\"%u\" name=\"%s.%u\" type=\"%s\" version=\"%s\">", id, name, id, op,
               set);
    if (attrs[0]) ht_buf_fmt(b, "<data %s/>", attrs);
    if (n_in) ht_buf_str(b, "<input>");
    for (int i = 0; i < n_in; i++) {
        put_port(b, &in[i], i);
        ht_buf_fmt(&d->edges,
                   "<edge from-layer=\"%u\" from-port=\"%u\" to-layer=\"%u\" to-port=\"%d\"/>\n",
                   in[i].node, in[i].port, id, i);
    }
    if (n_in) ht_buf_str(b, "</input>");
    if (n_out) ht_buf_str(b, "<output>");
    for (int i = 0; i < n_out; i++) {
        out[i].node = id;
        out[i].port = (uint32_t)(n_in + i);
        put_port(b, &out[i], n_in + i);
    }
    ht_buf_str(b, n_out ? "</output></layer>\n" : "</layer>\n");
}

ir_val graph__ir_op(ir_doc *d, const char *op, const char *set, const char *attrs, const ir_val *in,
                    int n_in, ir_val like)
{
    put_layer(d, op, set, op, attrs, in, n_in, &like, 1);
    return like;
}

void graph__ir_op2(ir_doc *d, const char *op, const char *set, const ir_val *in, int n_in,
                   ir_val out[2])
{
    put_layer(d, op, set, op, "", in, n_in, out, 2);
}

/* `shape` and `element_type` of a parameter or constant, and what follows. */
static void typed(ht_buf *b, const ir_val *v)
{
    ht_buf_fmt(b, "element_type=\"%s\" shape=\"", spelling[v->type].attr);
    put_shape(b, v);
    ht_buf_char(b, '"');
}

/* A layer whose attributes are in attrs, which is given up. */
static ir_val put_source(ir_doc *d, const char *op, const char *name, ht_buf *attrs, ir_val like)
{
    d->failed = d->failed || attrs->bad;
    put_layer(d, op, "opset1", name, attrs->p ? attrs->p : "", NULL, 0, &like, 1);
    ht_buf_done(attrs);
    return like;
}

ir_val graph__ir_param(ir_doc *d, ir_val like)
{
    ht_buf a;
    ht_buf_init(&a, 0);
    typed(&a, &like);
    return put_source(d, "Parameter", "in", &a, like);
}

void graph__ir_result(ir_doc *d, ir_val v)
{
    put_layer(d, "Result", "opset1", "out", "", &v, 1, NULL, 0);
}

ir_val graph__ir_const(ir_doc *d, ir_val like, const void *p, uint64_t bytes, const char *name)
{
    ht_buf a;
    ht_buf_init(&a, 0);
    typed(&a, &like);
    ht_buf_fmt(&a, " offset=\"%" PRIuPTR "\" size=\"%" PRIu64 "\"",
               d->digest ? 0 : (uintptr_t)p - IR_BASE, bytes);
    return put_source(d, "Const", name, &a, like);
}

/* A copy of n bytes that lasts, and a name that spells it. */
static ir_val small(ir_doc *d, ir_val like, const void *v, size_t n)
{
    ht_buf name;
    void *copy = ht_arena_alloc_aligned(d->arena, n ? n : 1, 16);
    d->failed = d->failed || !copy;
    if (copy && n) memcpy(copy, v, n);
    ht_buf_init(&name, 0);
    ht_buf_char(&name, 'c');
    for (size_t i = 0; i < n; i++) ht_buf_fmt(&name, "%02x", ((const uint8_t *)v)[i]);
    d->failed = d->failed || name.bad;
    ir_val r = graph__ir_const(d, like, copy, n, name.p ? name.p : "c");
    ht_buf_done(&name);
    return r;
}

ir_val graph__ir_ints(ir_doc *d, int n, const int64_t *v)
{
    const bool scalar = n == 0;
    return small(d, graph__ir_shape(IR_I64, scalar ? 0 : 1, (uint32_t)n, 0, 0, 0), v,
                 (size_t)(scalar ? 1 : n) * sizeof *v);
}

ir_val graph__ir_real(ir_doc *d, float v)
{
    return small(d, graph__ir_shape(IR_F32, 0, 0, 0, 0, 0), &v, sizeof v);
}

ir_val graph__ir_byte(ir_doc *d, uint8_t v)
{
    return small(d, graph__ir_shape(IR_U8, 0, 0, 0, 0, 0), &v, sizeof v);
}

int graph__ir_text(ir_doc *d, ht_buf *out, ht_err *e)
{
    ht_buf_init(out, 0);
    if (d->failed) return HT_FAIL(e, HT_ENOMEM, "graph: the model's text: out of memory");
    HT_TRY(ht_buf_ok(&d->layers, "graph: the model's text", e));
    HT_TRY(ht_buf_ok(&d->edges, "graph: the model's text", e));
    ht_buf_str(out, "<?xml version=\"1.0\"?>\n<net name=\"hetero\" version=\"11\">\n<layers>\n");
    ht_buf_add(out, d->layers.p, d->layers.n);
    ht_buf_str(out, "</layers>\n<edges>\n");
    if (d->edges.n) ht_buf_add(out, d->edges.p, d->edges.n);
    ht_buf_str(out, "</edges>\n</net>\n");
    return ht_buf_ok(out, "graph: the model's text", e);
}
