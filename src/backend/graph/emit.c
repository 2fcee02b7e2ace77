/* emit.c - from stages of the tape to operators. Each stage is one function, flags decide its
 * pieces, and there is no other place that knows how a graph looks: no family has one of its own.
 * The forms are those that the compiler recognises and fuses (docs/graph.md).
 *
 * Rows are positions 0 .. M-1 of one sequence. Rows past the batch's are padding: attention is
 * causal, so nothing that counts sees them. */
#include "backend/graph/graph.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    ir_doc d;
    graph_part *part;
    graph_stage_mem *mem;
    const ht_model *m;
    const ht_spec *s;
    uint32_t M, W;           /* rows; wanted rows */
    uint32_t rows;           /* of X: M, or W behind PICK */
    ir_val x, q, k, v, a, h; /* q, k, v [1,heads,rows,hd] */
    ir_val cos[HT_ROPES], sin[HT_ROPES], want;
    ir_val mask[2], late[2]; /* [block,M] and [W,M], of full and windowed layers; node of its own */
    bool has_mask[2], has_late[2], picked;
    int rc;
    ht_err *e;
} emitter;

/* ---- operators ------------------------------------------------------------------------------- */

static ir_val op1(emitter *g, const char *op, const char *set, const char *attrs, ir_val a,
                  ir_val like)
{
    return graph__ir_op(&g->d, op, set, attrs, &a, 1, like);
}
static ir_val op2(emitter *g, const char *op, const char *set, const char *attrs, ir_val a,
                  ir_val b, ir_val like)
{
    const ir_val in[2] = {a, b};
    return graph__ir_op(&g->d, op, set, attrs, in, 2, like);
}
#define BROADCAST "auto_broadcast=\"numpy\""
static ir_val mul(emitter *g, ir_val a, ir_val b)
{
    return op2(g, "Multiply", "opset1", BROADCAST, a, b, a);
}
static ir_val add(emitter *g, ir_val a, ir_val b)
{
    return op2(g, "Add", "opset1", BROADCAST, a, b, a);
}
static ir_val real(emitter *g, float v)
{
    return graph__ir_real(&g->d, v);
}
static ir_val reshape(emitter *g, ir_val a, ir_val like)
{
    int64_t dims[IR_RANK];
    for (int i = 0; i < like.rank; i++) dims[i] = like.d[i];
    like.type = a.type;
    return op2(g, "Reshape", "opset1", "special_zero=\"false\"", a,
               graph__ir_ints(&g->d, like.rank, dims), like);
}
/* Dimensions of `a` in this order. */
static ir_val transpose(emitter *g, ir_val a, int64_t p0, int64_t p1, int64_t p2, int64_t p3)
{
    const int64_t order[IR_RANK] = {p0, p1, p2, p3};
    ir_val like = a;
    for (int i = 0; i < a.rank; i++) like.d[i] = a.d[order[i]];
    return op2(g, "Transpose", "opset1", "", a, graph__ir_ints(&g->d, a.rank, order), like);
}
static ir_val convert(emitter *g, ir_val a, int type)
{
    ir_val like = a;
    like.type = (uint8_t)type;
    return op1(g, "Convert", "opset1",
               type == IR_F16 ? "destination_type=\"f16\"" : "destination_type=\"f32\"", a, like);
}
static ir_val vector(emitter *g, const float *p, uint32_t n, const char *name)
{
    return graph__ir_const(&g->d, graph__ir_shape(IR_F32, 1, n, 0, 0, 0), p, 4 * (uint64_t)n, name);
}
/* Rows `index` [W] along an axis. */
static ir_val pick(emitter *g, ir_val a, int64_t axis)
{
    ir_val like = a;
    like.d[axis] = g->W;
    const ir_val in[3] = {a, g->want, graph__ir_ints(&g->d, 0, &axis)};
    return graph__ir_op(&g->d, "Gather", "opset8", "batch_dims=\"0\"", in, 3, like);
}
/* Elements [from, to) along an axis. */
static ir_val slice(emitter *g, ir_val a, int64_t axis, uint32_t from, uint32_t to)
{
    const int64_t lo = from, hi = to, one = 1;
    ir_val like = a;
    if (from == 0 && to == a.d[axis]) return a;
    like.d[axis] = to - from;
    const ir_val in[5] = {a, graph__ir_ints(&g->d, 1, &lo), graph__ir_ints(&g->d, 1, &hi),
                          graph__ir_ints(&g->d, 1, &one), graph__ir_ints(&g->d, 1, &axis)};
    return graph__ir_op(&g->d, "Slice", "opset8", "", in, 5, like);
}

static ir_val input(emitter *g, int io, uint32_t layer, ir_val like)
{
    g->part->in[g->part->n_in++] = (graph_port){(uint8_t)io, (uint16_t)layer};
    return graph__ir_param(&g->d, like);
}

/* RMS norm over the last dimension, as the compiler's pattern for it has it. */
static ir_val norm(emitter *g, ir_val x, const float *w, uint32_t n, const char *name)
{
    const int64_t last = -1;
    ir_val one = x, sq = op2(g, "Power", "opset1", BROADCAST, x, real(g, 2), x);
    one.d[x.rank - 1] = 1;
    ir_val v = op2(g, "ReduceMean", "opset1", "keep_dims=\"true\"", sq,
                   graph__ir_ints(&g->d, 1, &last), one);
    v = op1(g, "Sqrt", "opset1", "", add(g, v, real(g, g->s->rms_eps)), one);
    v = op2(g, "Divide", "opset1", BROADCAST " m_pythondiv=\"true\"", real(g, 1), v, one);
    return mul(g, mul(g, x, v), vector(g, w, n, name));
}

/* ---- products -------------------------------------------------------------------------------- */

static ir_val weight_value(emitter *g, const ht_weight *w, const graph_const *c)
{
    const uint32_t N = w->rows, K = w->cols;
    char name[40];
    (void)snprintf(name, sizeof name, "w%u", w->id);
    if (c->group == K && c->type == IR_I8) { /* a scale a row: the compiler's own form of it */
        ir_val v =
            graph__ir_const(&g->d, graph__ir_shape(IR_I8, 2, N, K, 0, 0), c->data, c->bytes, name);
        (void)snprintf(name, sizeof name, "s%u", w->id);
        return mul(g, convert(g, v, IR_F32),
                   graph__ir_const(&g->d, graph__ir_shape(IR_F32, 2, N, 1, 0, 0), c->scale,
                                   (uint64_t)N * 4, name));
    }
    if (c->group) {
        const ir_val like = graph__ir_shape(c->type, 3, N, K / c->group, c->group, 0);
        const ir_val per = graph__ir_shape(IR_F32, 3, N, K / c->group, 1, 0);
        ir_val v = graph__ir_const(&g->d, like, c->data, c->bytes, name);
        v = convert(g, v, IR_F32);
        /* An integer as zero point: with another the compiler quantises no activations. */
        if (c->type == IR_U4)
            v = op2(g, "Subtract", "opset1", BROADCAST, v,
                    convert(g, graph__ir_byte(&g->d, 8), IR_F32), v);
        (void)snprintf(name, sizeof name, "s%u", w->id);
        v = mul(g, v,
                graph__ir_const(&g->d, per, c->scale, (uint64_t)N * (K / c->group) * 4, name));
        return reshape(g, v, graph__ir_shape(IR_F32, 2, N, K, 0, 0));
    }
    if (c->tiles) {
        ir_val v = graph__ir_const(&g->d, graph__ir_shape(c->type, 3, N / 16, K, 16, 0), c->data,
                                   c->bytes, name);
        v = reshape(g, transpose(g, v, 0, 2, 1, 0), graph__ir_shape(c->type, 2, N, K, 0, 0));
        return c->type == IR_F32 ? v : convert(g, v, IR_F32);
    }
    ir_val v =
        graph__ir_const(&g->d, graph__ir_shape(c->type, 2, N, K, 0, 0), c->data, c->bytes, name);
    return c->type == IR_F32 ? v : convert(g, v, IR_F32);
}

/* x [1,rows,K] times the transposed weight [N,K]. */
static ir_val project(emitter *g, ir_val x, const ht_weight *w0)
{
    const ht_weight *w = (g->part->b.flags & HT_ALT_REP) && w0->alt ? w0->alt : w0;
    const bool narrow = graph__narrow(g->m, &g->part->b, w0);
    graph_const c;
    ir_val like = x;
    like.d[x.rank - 1] = w->rows;
    if (!g->rc) g->rc = graph__const(g->part->dev, g->mem, w, narrow, &c, g->e);
    if (g->rc) return like;
    return op2(g, "MatMul", "opset1", "transpose_a=\"false\" transpose_b=\"true\"", x,
               weight_value(g, w, &c), like);
}

/* What goes into products of a layer, [1,rows,K]. Observed, its greatest magnitude is an output;
 * under act int8 it is rounded to 8 bits over the range that was observed: one scale for all of it,
 * symmetric, so that products need no zero point. */
static ir_val product_in(emitter *g, ir_val x, int layer, int which)
{
    const size_t at = (size_t)layer * GRAPH_INPUTS + (size_t)which;
    if (g->part->observe) {
        const int64_t all[3] = {0, 1, 2};
        ir_val top =
            op2(g, "ReduceMax", "opset1", "keep_dims=\"true\"", op1(g, "Abs", "opset1", "", x, x),
                graph__ir_ints(&g->d, 3, all), graph__ir_shape(IR_F32, 3, 1, 1, 1, 0));
        graph__ir_result(&g->d, top);
        g->part->out[g->part->n_out++] = (graph_port){GRAPH_RANGE, (uint16_t)at};
    }
    if (g->part->b.act != HT_ACT_INT8) return x;
    const float step = g->part->dev->range[at] / 127;
    const ir_val low = real(g, -128 * step), high = real(g, 127 * step);
    const ir_val in[5] = {x, low, high, low, high};
    return graph__ir_op(&g->d, "FakeQuantize", "opset1", "levels=\"256\" " BROADCAST, in, 5, x);
}

/* ---- QKV ------------------------------------------------------------------------------------- */

/* x [1,M,heads,hd] -> [1,heads,M,hd], rotated by position: pairs (i, i + dims/2) of the first
 * `dims` of a head. */
static ir_val rotate(emitter *g, ir_val x, int rope)
{
    const uint32_t hd = g->s->head_dim, dims = rope < HT_ROPES ? g->s->rope[rope].dims : 0;
    const int64_t axis = 3, half[2] = {dims / 2, dims / 2}, part[2] = {dims, hd - dims};
    ir_val t = transpose(g, x, 0, 2, 1, 3), two[2], cut[2] = {t, t};
    if (!dims) return t;
    if (dims < hd) {
        cut[0].d[3] = dims;
        cut[1].d[3] = hd - dims;
        const ir_val in[3] = {t, graph__ir_ints(&g->d, 0, &axis), graph__ir_ints(&g->d, 2, part)};
        graph__ir_op2(&g->d, "VariadicSplit", "opset1", in, 3, cut);
    }
    two[0] = two[1] = cut[0];
    two[0].d[3] = two[1].d[3] = dims / 2;
    const ir_val in[3] = {cut[0], graph__ir_ints(&g->d, 0, &axis), graph__ir_ints(&g->d, 2, half)};
    graph__ir_op2(&g->d, "VariadicSplit", "opset1", in, 3, two);
    ir_val turned =
        op2(g, "Concat", "opset1", "axis=\"3\"", mul(g, two[1], real(g, -1)), two[0], cut[0]);
    ir_val y = add(g, mul(g, cut[0], g->cos[rope]), mul(g, turned, g->sin[rope]));
    return dims < hd ? op2(g, "Concat", "opset1", "axis=\"3\"", y, cut[1], t) : y;
}

/* The rotation of step/kvpool.h as a product with H * scale, [hd,hd], symmetric. */
static ir_val hadamard(emitter *g, ir_val x, float scale)
{
    const uint32_t n = g->s->head_dim;
    float *h = ht_arena_array(g->d.arena, (size_t)n * n, sizeof *h);
    char name[40];
    if (!h) {
        g->d.failed = true;
        return x;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            h[(size_t)i * n + j] = __builtin_popcount(i & j) % 2 ? -scale : scale;
    (void)snprintf(name, sizeof name, "hadamard%a", (double)scale);
    return op2(g, "MatMul", "opset1", "transpose_a=\"false\" transpose_b=\"true\"", x,
               graph__ir_const(&g->d, graph__ir_shape(IR_F32, 2, n, n, 0, 0), h,
                               (uint64_t)n * n * 4, name),
               x);
}

/* v rounded to the eleven significant bits of F16, in f32: c = v * (2^13 + 1), c - (c - v)
 * (Veltkamp's splitting; Dekker, Numer. Math. 18, 1971). A pair of conversions would say it more
 * plainly, but the compiler takes that pair away. */
static ir_val round16(emitter *g, ir_val v)
{
    const ir_val c = mul(g, v, real(g, 8193));
    const ir_val low = op2(g, "Subtract", "opset1", BROADCAST, c, v, v);
    return op2(g, "Subtract", "opset1", BROADCAST, c, low, v);
}

/* A cache value [1,heads,M,hd] in its type and the pages' order, as an output; and what attention
 * reads: the rounded value. */
static ir_val cache(emitter *g, ir_val v, int io, int layer)
{
    const uint32_t heads = v.d[1], hd = v.d[3], pages = g->M / HT_PAGE;
    const int type = io == GRAPH_K ? g->part->b.kv_fmt & 0xff : g->part->b.kv_fmt >> 8;
    if (g->part->observe) return v;
    ir_val t = reshape(g, v, graph__ir_shape(IR_F32, 4, heads, pages, HT_PAGE, hd));
    t = transpose(g, t, 1, 0, 2, 3);
    graph__ir_result(&g->d, type == HT_KV_F16 ? convert(g, t, IR_F16) : t);
    g->part->out[g->part->n_out++] = (graph_port){(uint8_t)io, (uint16_t)layer};
    return type == HT_KV_F16 ? round16(g, v) : v;
}

/* A decode step (experiments only: one row behind `past` positions, whole pages of them): the new
 * cache value [1,heads,1,hd] as an output, and all values up to it, [1,heads,past+1,hd], the old
 * ones from an input laid over the pages. */
static ir_val grow(emitter *g, ir_val v, int io, int layer)
{
    const uint32_t heads = v.d[1], hd = v.d[3], past = g->part->b.past;
    const int type = io == GRAPH_K ? g->part->b.kv_fmt & 0xff : g->part->b.kv_fmt >> 8;
    const bool half = type == HT_KV_F16;
    ir_val both[2];
    graph__ir_result(&g->d, half ? convert(g, v, IR_F16) : v);
    g->part->out[g->part->n_out++] = (graph_port){(uint8_t)io, (uint16_t)layer};
    ir_val old =
        input(g, io, (uint32_t)layer,
              graph__ir_shape(half ? IR_F16 : IR_F32, 4, past / HT_PAGE, heads, HT_PAGE, hd));
    if (half) old = convert(g, old, IR_F32);
    both[0] =
        reshape(g, transpose(g, old, 1, 0, 2, 3), graph__ir_shape(IR_F32, 4, 1, heads, past, hd));
    both[1] = half ? round16(g, v) : v;
    return graph__ir_op(&g->d, "Concat", "opset1", "axis=\"2\"", both, 2,
                        graph__ir_shape(IR_F32, 4, 1, heads, past + 1, hd));
}

/* One of Q, K, V up to [1,rows,heads,hd]: product, bias, norm of each head. */
static ir_val heads_of(emitter *g, const ht_stage *st, ir_val xn, const ht_weight *w,
                       const float *bias, const float *head_norm, uint32_t heads)
{
    const uint32_t hd = g->s->head_dim;
    char name[40];
    ir_val y = project(g, xn, w);
    (void)snprintf(name, sizeof name, "b%u", w->id);
    if (st->flags & HT_BIAS) y = add(g, y, vector(g, bias, heads * hd, name));
    y = reshape(g, y, graph__ir_shape(IR_F32, 4, 1, g->M, heads, hd));
    (void)snprintf(name, sizeof name, "n%u", w->id);
    return head_norm && (st->flags & HT_QKNORM) ? norm(g, y, head_norm, hd, name) : y;
}

static void qkv(emitter *g, const ht_stage *st)
{
    const ht_layer *l = &g->m->layer[st->layer];
    const int rope = g->s->layer[st->layer].rope;
    float scale_k, scale_q;
    char name[40];
    (void)snprintf(name, sizeof name, "na%d", st->layer);
    ir_val xn = norm(g, g->x, l->attn_norm, g->s->dim, name);
    xn = product_in(g, xn, st->layer, GRAPH_IN_QKV);
    g->q = rotate(g, heads_of(g, st, xn, &l->q, l->q_bias, l->q_norm, g->s->n_heads), rope);
    g->k = rotate(g, heads_of(g, st, xn, &l->k, l->k_bias, l->k_norm, g->s->n_kv_heads), rope);
    g->v = transpose(g, heads_of(g, st, xn, &l->v, l->v_bias, NULL, g->s->n_kv_heads), 0, 2, 1, 3);
    if (ht_kv_rotates(g->part->b.kv_fmt & 0xff, g->s->head_dim)) {
        ht_kv_rotation(g->s->head_dim, &scale_k, &scale_q);
        g->q = hadamard(g, g->q, scale_q);
        g->k = hadamard(g, g->k, scale_k);
    }
    ir_val (*const keep)(emitter *, ir_val, int, int) = g->part->b.past ? grow : cache;
    g->k = keep(g, g->k, GRAPH_K, st->layer);
    g->v = keep(g, g->v, GRAPH_V, st->layer);
}

/* ---- attention ------------------------------------------------------------------------------- */

static uint32_t attn_block(uint32_t rows)
{
    return rows <= 128 ? rows : rows == 512 ? 128 : 256;
}

/* What a block of B queries that ends at key e sees of keys e-M .. e-1, [B,M]: every layer's and
 * every block's mask is a right part of it, since only the distance counts. */
static ir_val block_mask(emitter *g, bool windowed)
{
    const uint32_t B = attn_block(g->M);
    if (g->has_mask[windowed]) return g->mask[windowed];
    float *p = ht_arena_array(g->d.arena, (size_t)B * g->M, sizeof *p);
    char name[48];
    if (!p) {
        g->d.failed = true;
        return g->x;
    }
    for (uint32_t r = 0; r < B; r++)
        for (uint32_t c = 0; c < g->M; c++) {
            const int64_t back = (int64_t)r - (int64_t)B - c + g->M; /* query minus key */
            const bool seen = back >= 0 && (!windowed || back < (int64_t)g->s->window);
            p[(size_t)r * g->M + c] = seen ? 0 : -INFINITY;
        }
    (void)snprintf(name, sizeof name, "mask%u.%u", B, windowed ? g->s->window : 0);
    g->mask[windowed] = graph__ir_const(&g->d, graph__ir_shape(IR_F32, 2, B, g->M, 0, 0), p,
                                        (uint64_t)B * g->M * 4, name);
    g->has_mask[windowed] = true;
    return g->mask[windowed];
}

/* What the wanted rows see, [W,M], from their numbers. */
static ir_val late_mask(emitter *g, bool windowed)
{
    if (g->has_late[windowed]) return g->late[windowed];
    int64_t *key = ht_arena_array(g->d.arena, g->M, sizeof *key);
    const ir_val col = graph__ir_shape(IR_I64, 2, g->W, 1, 0, 0);
    const ir_val all = graph__ir_shape(IR_BOOL, 2, g->W, g->M, 0, 0);
    if (!key) {
        g->d.failed = true;
        return g->x;
    }
    for (uint32_t i = 0; i < g->M; i++) key[i] = i;
    ir_val keys = graph__ir_const(&g->d, graph__ir_shape(IR_I64, 2, 1, g->M, 0, 0), key,
                                  (uint64_t)g->M * 8, "keys");
    ir_val q = reshape(g, g->want, col);
    ir_val seen = op2(g, "LessEqual", "opset1", BROADCAST, keys, q, all);
    if (windowed) {
        const int64_t w = g->s->window;
        ir_val from = op2(g, "Subtract", "opset1", BROADCAST, q, graph__ir_ints(&g->d, 0, &w), col);
        seen = op2(g, "LogicalAnd", "opset1", BROADCAST, seen,
                   op2(g, "Greater", "opset1", BROADCAST, keys, from, all), all);
    }
    ir_val like = all;
    like.type = IR_F32;
    const ir_val in[3] = {seen, real(g, 0), real(g, -INFINITY)};
    g->late[windowed] = graph__ir_op(&g->d, "Select", "opset1", BROADCAST, in, 3, like);
    g->has_late[windowed] = true;
    return g->late[windowed];
}

/* A decode step sees everything that is held, [1,past+1]. */
static ir_val step_mask(emitter *g)
{
    const uint32_t n = g->part->b.past + 1;
    const float *p = ht_arena_array(g->d.arena, n, sizeof *p);
    g->d.failed = g->d.failed || !p;
    return graph__ir_const(&g->d, graph__ir_shape(IR_F32, 2, 1, n, 0, 0), p, 4 * (uint64_t)n,
                           "all");
}

/* Soft-max attention of q [kv,group,n,hd] over k, v [kv,1,keys,hd] under mask [n,keys]. A cap on
 * scores is not in the compiler's own operator. */
static ir_val attend(emitter *g, const ht_stage *st, ir_val q, ir_val k, ir_val v, ir_val mask)
{
    if (!(st->flags & HT_CAP)) {
        const ir_val in[5] = {q, k, v, mask, real(g, g->s->attn_scale)};
        return graph__ir_op(&g->d, "ScaledDotProductAttention", "opset13", "causal=\"false\"", in,
                            5, q);
    }
    ir_val like = q;
    like.d[3] = k.d[2];
    ir_val sc =
        op2(g, "MatMul", "opset1", "transpose_a=\"false\" transpose_b=\"true\"", q, k, like);
    sc = op1(g, "Tanh", "opset1", "", mul(g, sc, real(g, g->s->attn_scale / g->s->attn_cap)), sc);
    sc = add(g, mul(g, sc, real(g, g->s->attn_cap)), mask);
    sc = op1(g, "Softmax", "opset8", "axis=\"3\"", sc, sc);
    return op2(g, "MatMul", "opset1", "transpose_a=\"false\" transpose_b=\"false\"", sc, v, q);
}

static void attention(emitter *g, const ht_stage *st)
{
    const uint32_t kv = g->s->n_kv_heads, group = g->s->n_heads / kv, hd = g->s->head_dim;
    const uint32_t n = g->picked ? g->W : g->M, B = g->picked ? n : attn_block(n);
    const uint32_t keys = g->part->b.past + g->M;
    const bool windowed = (st->flags & HT_WINDOW) != 0;
    ir_val block[8], all = graph__ir_shape(IR_F32, 4, kv, group, n, hd);
    uint32_t n_blocks = 0;
    ir_val q = reshape(g, g->q, all);
    ir_val k = reshape(g, g->k, graph__ir_shape(IR_F32, 4, kv, 1, keys, hd));
    ir_val v = reshape(g, g->v, graph__ir_shape(IR_F32, 4, kv, 1, keys, hd));
    if (g->part->b.past) {
        g->a = attend(g, st, q, k, v, step_mask(g));
    } else if (g->picked) {
        g->a = attend(g, st, q, k, v, late_mask(g, windowed));
    } else {
        for (uint32_t at = 0; at < n; at += B) {
            const uint32_t end = at + B, w = g->s->window;
            const uint32_t from = windowed && at + 1 > w ? at + 1 - w : 0;
            ir_val mask = slice(g, block_mask(g, windowed), 1, g->M - (end - from), g->M);
            block[n_blocks++] = attend(g, st, slice(g, q, 2, at, end), slice(g, k, 2, from, end),
                                       slice(g, v, 2, from, end), mask);
        }
        g->a = n_blocks == 1 ? block[0]
                             : graph__ir_op(&g->d, "Concat", "opset1", "axis=\"2\"", block,
                                            (int)n_blocks, all);
    }
    g->a = transpose(g, reshape(g, g->a, graph__ir_shape(IR_F32, 4, 1, kv * group, n, hd)), 0, 2, 1,
                     3);
    g->a = reshape(g, g->a, graph__ir_shape(IR_F32, 3, 1, n, kv * group * hd, 0));
}

/* ---- the other stages ------------------------------------------------------------------------ */

/* X += y, after y's own norm where the family has one. */
static void residual(emitter *g, const ht_stage *st, ir_val y, const float *post, const char *kind)
{
    char name[40];
    (void)snprintf(name, sizeof name, "%s%d", kind, st->layer);
    if (st->flags & HT_POSTNORM) y = norm(g, y, post, g->s->dim, name);
    g->x = add(g, g->x, y);
}

static void ffn_up(emitter *g, const ht_stage *st)
{
    const ht_layer *l = &g->m->layer[st->layer];
    char name[40];
    (void)snprintf(name, sizeof name, "nf%d", st->layer);
    ir_val xn = norm(g, g->x, l->ffn_norm, g->s->dim, name);
    xn = product_in(g, xn, st->layer, GRAPH_IN_FFN);
    ir_val gate = project(g, xn, &l->gate), up = project(g, xn, &l->up);
    gate = st->flags & HT_GELU ? op1(g, "Gelu", "opset7", "approximation_mode=\"TANH\"", gate, gate)
                               : op1(g, "Swish", "opset4", "", gate, gate);
    g->h = mul(g, gate, up);
}

static void attn_out(emitter *g, const ht_stage *st)
{
    const ht_layer *l = &g->m->layer[st->layer];
    const ir_val a = product_in(g, g->a, st->layer, GRAPH_IN_O);
    residual(g, st, project(g, a, &l->o), l->post_attn_norm, "pa");
}

static void ffn_down(emitter *g, const ht_stage *st)
{
    const ht_layer *l = &g->m->layer[st->layer];
    const ir_val h = product_in(g, g->h, st->layer, GRAPH_IN_DOWN);
    residual(g, st, project(g, h, &l->down), l->post_ffn_norm, "pf");
}

static void head(emitter *g, const ht_stage *st)
{
    if (!g->picked) g->x = pick(g, g->x, 1);
    ir_val y = project(g, norm(g, g->x, g->m->final_norm, g->s->dim, "nh"), &g->m->head);
    if (st->flags & HT_CAP) {
        y = op1(g, "Tanh", "opset1", "", mul(g, y, real(g, 1 / g->s->logit_cap)), y);
        y = mul(g, y, real(g, g->s->logit_cap));
    }
    graph__ir_result(&g->d, y);
    g->part->out[g->part->n_out++] = (graph_port){GRAPH_L, 0};
}

static void stage(emitter *g, const ht_stage *st)
{
    switch (st->kind) {
    case HT_EMBED: break; /* the host looks rows up: X is the graph's input */
    case HT_QKV: qkv(g, st); break;
    case HT_PICK:
        if (g->part->observe) break; /* all rows are looked at */
        g->x = pick(g, g->x, 1);
        g->q = pick(g, g->q, 2);
        g->picked = true;
        break;
    case HT_ATTN: attention(g, st); break;
    case HT_ATTN_OUT: attn_out(g, st); break;
    case HT_FFN_UP: ffn_up(g, st); break;
    case HT_FFN_DOWN: ffn_down(g, st); break;
    case HT_HEAD: head(g, st); break;
    default:
        g->rc = HT_FAIL(g->e, HT_EUNSUPPORTED, "graph: stage %s has no operators",
                        ht_kind_name(st->kind));
    }
}

/* ---- inputs and outputs ---------------------------------------------------------------------- */

/* What the first stage reads and no stage of the part has written. */
static void inputs(emitter *g)
{
    const graph_part *p = g->part;
    const int first = p->at[0].kind;
    const uint32_t nq = g->s->n_heads * g->s->head_dim;
    bool rope[HT_ROPES] = {false, false}, want = false;
    g->x = input(g, GRAPH_X, 0, graph__ir_shape(IR_F32, 3, 1, g->M, g->s->dim, 0));
    if (first == HT_ATTN_OUT)
        g->a = input(g, GRAPH_A, 0, graph__ir_shape(IR_F32, 3, 1, g->M, nq, 0));
    if (first == HT_FFN_DOWN)
        g->h = input(g, GRAPH_H, 0, graph__ir_shape(IR_F32, 3, 1, g->M, g->s->ffn, 0));
    for (size_t i = 0; i < p->n; i++) {
        want = want || p->at[i].kind == HT_PICK || p->at[i].kind == HT_HEAD;
        const int r = p->at[i].kind == HT_QKV ? g->s->layer[p->at[i].layer].rope : HT_ROPES;
        if (r < HT_ROPES && g->s->rope[r].dims) rope[r] = true;
    }
    for (uint32_t r = 0; r < HT_ROPES; r++) {
        const ir_val like = graph__ir_shape(IR_F32, 4, 1, 1, g->M, g->s->rope[r].dims);
        if (!rope[r]) continue;
        g->cos[r] = input(g, GRAPH_COS, r, like);
        g->sin[r] = input(g, GRAPH_SIN, r, like);
    }
    if (want && !p->observe)
        g->want = input(g, GRAPH_WANT, 0, graph__ir_shape(IR_I64, 1, g->W, 0, 0, 0));
}

/* A part that ends before HEAD leaves its register. */
static void outputs(emitter *g)
{
    const int last = g->part->at[g->part->n - 1].kind;
    const int io = last == HT_ATTN ? GRAPH_A : last == HT_FFN_UP ? GRAPH_H : GRAPH_X;
    if (g->part->observe || last == HT_HEAD || last == HT_PICK || last == HT_QKV) return;
    graph__ir_result(&g->d, io == GRAPH_A ? g->a : io == GRAPH_H ? g->h : g->x);
    g->part->out[g->part->n_out++] = (graph_port){(uint8_t)io, 0};
}

int graph__emit(graph_part *p, graph_stage_mem *mem, ht_arena *arena, ht_buf *text, ht_err *e)
{
    const ht_model *m = p->dev->model;
    emitter g = {.part = p, .mem = mem, .m = m, .s = &m->spec, .e = e};
    g.M = p->b.rows;
    g.W = p->b.want ? p->b.want : 1;
    p->n_in = p->n_out = 0;
    p->in = ht_arena_array(arena, 4 + 2 * HT_ROPES + 2 * (size_t)m->spec.n_layers, sizeof *p->in);
    p->out = ht_arena_array(arena, GRAPH_INPUTS * (size_t)m->spec.n_layers + 2, sizeof *p->out);
    if (!p->in || !p->out) return HT_FAIL(e, HT_ENOMEM, "graph: a model's ports: out of memory");
    graph__ir_init(&g.d, arena, mem == NULL);
    inputs(&g);
    for (size_t i = 0; i < p->n && !g.rc; i++) stage(&g, &p->at[i]);
    if (!g.rc) outputs(&g);
    int rc = g.rc ? g.rc : graph__ir_text(&g.d, text, e);
    graph__ir_done(&g.d);
    return rc;
}
