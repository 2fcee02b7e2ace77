/* stage.c - the operations of the dense stages. Each does one thread's share: rows for elementwise
 * work, tiles of output rows for products. Where a norm feeds a product every thread computes it
 * for itself: a few thousand additions cost less than a barrier. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <string.h>

/* Tiles that a thread takes at least: what two of them take ends a stage unevenly at most. */
enum { TAKE_TILES = 2 };

static const ht_layer *layer_of(const cpu_run *r, const ht_stage *st)
{
    return &r->p->m->layer[st->layer];
}
static uint32_t min32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- before and around the layers ------------------------------------------------------------ */

/* cos and sin of the batch's rows. Angles in f64, rounded once: the same for any batch. */
void cpu__begin(cpu_run *r, const ht_stage *st)
{
    const ht_plan *p = r->p;
    const ht_batch *b = p->batch;
    uint32_t t0, t1;
    (void)st;
    cpu__share(r, b->rows, &t0, &t1);
    for (int i = 0; i < HT_ROPES; i++) {
        const ht_rope *rope = &p->m->spec.rope[i];
        uint32_t half = rope->dims / 2;
        if (!p->cos[i]) continue;
        for (uint32_t t = t0; t < t1; t++) {
            bool lengthy = b->rope_long && b->rope_long[b->seq[t]] && rope->inv_freq_long;
            const float *f = lengthy ? rope->inv_freq_long : rope->inv_freq;
            for (uint32_t j = 0; j < half; j++) {
                double angle = (double)b->pos[t] * (double)f[j];
                p->cos[i][(size_t)t * half + j] = (float)(cos(angle) * (double)rope->mscale);
                p->sin[i][(size_t)t * half + j] = (float)(sin(angle) * (double)rope->mscale);
            }
        }
    }
}

void cpu__embed(cpu_run *r, const ht_stage *st)
{
    const ht_spec *s = &r->p->m->spec;
    const ht_weight *w = &r->p->m->embed;
    if ((r->p->b.flags & HT_ALT_REP) && w->alt)
        w = w->alt; /* a tied one is a projection like others */
    uint32_t t0, t1;
    (void)st;
    cpu__share(r, r->rows, &t0, &t1);
    for (uint32_t t = t0; t < t1; t++) {
        float *x = r->p->x + (size_t)t * s->dim;
        ht_weight_row(w, 0, (uint32_t)r->p->batch->token[cpu__row(r, t)], x);
        for (uint32_t i = 0; i < s->dim && s->embed_scale != 1.0f; i++) x[i] *= s->embed_scale;
    }
}

/* Wanted rows move to the front; each thread moves a slice of the columns, through a copy because
 * any order may be wanted. X and Q have copies of their own (Y and A are idle here): their slices
 * differ. */
void cpu__pick(cpu_run *r, const ht_stage *st)
{
    const ht_spec *s = &r->p->m->spec;
    const ht_batch *b = r->p->batch;
    uint32_t width[2] = {s->dim, s->n_heads * s->head_dim}, c0, c1;
    float *reg[2] = {r->p->x, r->p->q}, *copy[2] = {r->p->y, r->p->a};
    (void)st;
    for (int i = 0; i < 2; i++) {
        cpu__share(r, width[i], &c0, &c1);
        size_t n = (c1 - c0) * sizeof(float);
        for (uint32_t t = 0; t < b->n_want; t++)
            memcpy(copy[i] + (size_t)t * width[i] + c0, reg[i] + (size_t)b->want[t] * width[i] + c0,
                   n);
        for (uint32_t t = 0; t < b->n_want; t++)
            memcpy(reg[i] + (size_t)t * width[i] + c0, copy[i] + (size_t)t * width[i] + c0, n);
    }
}

/* ---- norms as dispatches of their own (plain spans) ------------------------------------------ */

static void norm_rows(cpu_run *r, const float *w, const uint32_t *list, uint32_t n)
{
    const ht_spec *s = &r->p->m->spec;
    uint32_t t0, t1;
    cpu__share(r, n, &t0, &t1);
    for (uint32_t t = t0; t < t1; t++)
        r->k->rmsnorm(r->p->x + (size_t)(list ? list[t] : t) * s->dim, w, s->dim, s->rms_eps,
                      r->p->n + (size_t)t * s->dim);
}
void cpu__norm_attn(cpu_run *r, const ht_stage *st)
{
    norm_rows(r, layer_of(r, st)->attn_norm, NULL, r->rows);
}
void cpu__norm_ffn(cpu_run *r, const ht_stage *st)
{
    norm_rows(r, layer_of(r, st)->ffn_norm, NULL, r->rows);
}
void cpu__norm_head(cpu_run *r, const ht_stage *st)
{
    (void)st;
    norm_rows(r, r->p->m->final_norm, r->picked ? NULL : r->p->batch->want, r->p->batch->n_want);
}

/* ---- products into a plain array ------------------------------------------------------------- */

/* out[t*ldo + row] of a weight for the rows [a, b) of in->n tokens: from slab to array. */
static void store_slab(const float *c, size_t ldc, uint32_t n, uint32_t cols, float *out,
                       size_t ldo)
{
    for (uint32_t t = 0; t < n; t++) memcpy(out + t * ldo, c + t * ldc, cols * sizeof *out);
}

/* What becomes of a product: out = product, out += product, or out = cap*tanh(product/cap). */
typedef struct {
    bool add;
    float cap;     /* 0: none */
    uint32_t rows; /* of the weight that are wanted, from the first on; 0: all */
} sink;

static void sink_slab(cpu_run *r, sink s, size_t ldc, uint32_t n, uint32_t cols, float *out,
                      size_t ldo)
{
    float *c = r->s->c0;
    for (uint32_t t = 0; t < n && s.add; t++) r->k->add(c + t * ldc, cols, out + t * ldo);
    if (s.add) return;
    for (uint32_t t = 0; t < n && s.cap != 0.0f; t++)
        for (uint32_t i = 0; i < cols; i++) {
            float *v = &c[t * ldc + i];
            *v = s.cap * tanhf(*v / s.cap);
        }
    store_slab(c, ldc, n, cols, out, ldo);
}

/* This thread's tiles of one weight for prepared tokens [t, t + in->n). */
static void project(cpu_run *r, const cpu_mat *m, const cpu_in *in, sink s, float *out, size_t ldo)
{
    const uint32_t rows = s.rows ? min32(s.rows, m->rows) : m->rows;
    uint32_t t0, t1, slab = CPU_SLAB;
    cpu__loop(r);
    while (cpu__take(r, cpu__tiles(rows), TAKE_TILES, &t0, &t1))
        for (uint32_t i = t0; i < t1 && !cpu__cancelled(r); i += slab) {
            uint32_t end = min32(i + slab, t1), row = i * CPU_LANES;
            uint32_t cols = min32(end * CPU_LANES, rows) - row;
            size_t ldc = (size_t)(end - i) * CPU_LANES;
            cpu__product(r, m, 0, i, end, in, r->s->c0, ldc);
            sink_slab(r, s, ldc, in->n, cols, out + row, ldo);
        }
}

/* Rows of src (row stride lds), perhaps normalised, times one to three weights. */
static void project_all(cpu_run *r, const float *src, size_t lds, const uint32_t *list,
                        uint32_t rows, const float *norm, const cpu_mat *const m[],
                        float *const out[], int n, sink s)
{
    unsigned want = 0;
    for (int i = 0; i < n; i++) want |= cpu__want(r, m[i]);
    for (uint32_t t = 0, nb; t < rows && !cpu__cancelled(r); t += nb) {
        cpu_in in;
        nb = cpu__block(r, t, rows);
        cpu__prepare(r, list ? src : src + t * lds, lds, list ? list + t : NULL, nb, m[0]->cols,
                     norm, want, &in);
        for (int i = 0; i < n; i++)
            project(r, m[i], &in, s, out[i] + (size_t)t * m[i]->rows, m[i]->rows);
    }
}

/* ---- QKV ------------------------------------------------------------------------------------- */

/* Bias, per-head norm and rotation of one head; which: 0 Q, 1 K, 2 V (bias only). */
static void finish_head(cpu_run *r, const ht_stage *st, int which, uint32_t head, uint32_t row,
                        float *v)
{
    const ht_spec *s = &r->p->m->spec;
    const ht_layer *l = layer_of(r, st);
    const float *bias[3] = {l->q_bias, l->k_bias, l->v_bias}, *norm[2] = {l->q_norm, l->k_norm};
    uint8_t rope = s->layer[st->layer].rope;
    if (st->flags & HT_BIAS) r->k->add(bias[which] + (size_t)head * s->head_dim, s->head_dim, v);
    if (which < 2 && (st->flags & HT_QKNORM))
        r->k->rmsnorm(v, norm[which], s->head_dim, s->rms_eps, v);
    if (which < 2 && rope < HT_ROPES) {
        uint32_t half = s->rope[rope].dims / 2;
        r->k->rope(v, r->p->cos[rope] + (size_t)row * half, r->p->sin[rope] + (size_t)row * half,
                   half);
    }
    if (which == 1) cpu__kv_centre(r, st->layer, head, v);
    cpu__kv_turn(r, st->layer, which, v);
}

void cpu__qkv_p(cpu_run *r, const ht_stage *st)
{
    const ht_layer *l = layer_of(r, st);
    uint32_t dim = r->p->m->spec.dim;
    const cpu_mat *m[3] = {cpu__mat(r, &l->q), cpu__mat(r, &l->k), cpu__mat(r, &l->v)};
    float *out[3] = {r->p->q, r->p->k_raw, r->p->v_raw};
    project_all(r, r->p->n, dim, NULL, r->rows, NULL, m, out, 3, (sink){0});
}

void cpu__qkv_f(cpu_run *r, const ht_stage *st)
{
    const ht_spec *s = &r->p->m->spec;
    uint32_t t0, t1, hd = s->head_dim;
    cpu__share(r, r->rows, &t0, &t1);
    for (uint32_t t = t0; t < t1; t++) {
        uint32_t row = cpu__row(r, t);
        for (uint32_t h = 0; h < s->n_heads; h++)
            finish_head(r, st, 0, h, row, r->p->q + ((size_t)t * s->n_heads + h) * hd);
        for (uint32_t h = 0; h < s->n_kv_heads; h++) {
            float *k = r->p->k_raw + ((size_t)t * s->n_kv_heads + h) * hd;
            float *v = r->p->v_raw + ((size_t)t * s->n_kv_heads + h) * hd;
            finish_head(r, st, 1, h, row, k);
            finish_head(r, st, 2, h, row, v);
            cpu__kv_put(r, st->layer, 0, row, h, k);
            cpu__kv_put(r, st->layer, 1, row, h, v);
        }
    }
}

/* One head from product to its place, for the prepared tokens from t on. */
static void qkv_head(cpu_run *r, const ht_stage *st, const cpu_mat *m, int which, uint32_t head,
                     const cpu_in *in, uint32_t t)
{
    const ht_spec *s = &r->p->m->spec;
    uint32_t hd = s->head_dim, tiles = hd / CPU_LANES;
    cpu__product(r, m, 0, head * tiles, (head + 1) * tiles, in, r->s->c0, hd);
    for (uint32_t i = 0; i < in->n; i++) {
        float *v = r->s->c0 + (size_t)i * hd;
        uint32_t row = cpu__row(r, t + i);
        finish_head(r, st, which, head, row, v);
        if (which == 0)
            memcpy(r->p->q + ((size_t)(t + i) * s->n_heads + head) * hd, v, hd * sizeof *v);
        else cpu__kv_put(r, st->layer, which - 1, row, head, v);
    }
}

/* Norm, products, bias, per-head norm, rotation and cache in one dispatch: a thread owns whole
 * heads, so a head is finished while it is in its L1. Needs heads of whole tiles. */
void cpu__qkv(cpu_run *r, const ht_stage *st)
{
    const ht_spec *s = &r->p->m->spec;
    const ht_layer *l = layer_of(r, st);
    const cpu_mat *m[3] = {cpu__mat(r, &l->q), cpu__mat(r, &l->k), cpu__mat(r, &l->v)};
    uint32_t h0, h1,
        first[4] = {0, s->n_heads, s->n_heads + s->n_kv_heads, s->n_heads + 2 * s->n_kv_heads};
    unsigned want = 0;
    for (int i = 0; i < 3; i++) want |= cpu__want(r, m[i]);
    for (uint32_t t = 0, nb; t < r->rows; t += nb) {
        cpu_in in;
        nb = cpu__block(r, t, r->rows);
        cpu__prepare(r, r->p->x + (size_t)t * s->dim, s->dim, NULL, nb, s->dim, l->attn_norm, want,
                     &in);
        cpu__loop(r);
        while (cpu__take(r, first[3], 1, &h0, &h1))
            for (uint32_t h = h0; h < h1 && !cpu__cancelled(r); h++) {
                int which = h >= first[2] ? 2 : h >= first[1] ? 1 : 0;
                qkv_head(r, st, m[which], which, h - first[which], &in, t);
            }
    }
}

/* ---- residual products ----------------------------------------------------------------------- */

/* X += src W, or Y = src W where a norm stands between (cpu__post_norm follows). */
static void residual(cpu_run *r, const ht_stage *st, const ht_weight *w, const float *src)
{
    const cpu_mat *m = cpu__mat(r, w);
    bool post = (st->flags & HT_POSTNORM) != 0;
    float *out = post ? r->p->y : r->p->x;
    project_all(r, src, m->cols, NULL, r->rows, NULL, &m, &out, 1, (sink){.add = !post});
}
void cpu__attn_out(cpu_run *r, const ht_stage *st)
{
    residual(r, st, &layer_of(r, st)->o, r->p->a);
}
void cpu__ffn_down(cpu_run *r, const ht_stage *st)
{
    residual(r, st, &layer_of(r, st)->down, r->p->h);
}
void cpu__post_norm(cpu_run *r, const ht_stage *st)
{
    const ht_spec *s = &r->p->m->spec;
    const ht_layer *l = layer_of(r, st);
    uint32_t t0, t1;
    cpu__share(r, r->rows, &t0, &t1);
    for (uint32_t t = t0; t < t1; t++) {
        float *y = r->p->y + (size_t)t * s->dim;
        r->k->rmsnorm(y, st->kind == HT_ATTN_OUT ? l->post_attn_norm : l->post_ffn_norm, s->dim,
                      s->rms_eps, y);
        r->k->add(y, s->dim, r->p->x + (size_t)t * s->dim);
    }
}

/* ---- gate and up ----------------------------------------------------------------------------- */

void cpu__ffn_up_p(cpu_run *r, const ht_stage *st)
{
    const ht_layer *l = layer_of(r, st);
    const cpu_mat *m[2] = {cpu__mat(r, &l->gate), cpu__mat(r, &l->up)};
    float *out[2] = {r->p->h, r->p->u};
    project_all(r, r->p->n, r->p->m->spec.dim, NULL, r->rows, NULL, m, out, 2, (sink){0});
}
void cpu__ffn_up_f(cpu_run *r, const ht_stage *st)
{
    uint32_t t0, t1, ffn = r->p->m->spec.ffn;
    cpu__share(r, r->rows, &t0, &t1);
    for (uint32_t t = t0; t < t1; t++) {
        float *h = r->p->h + (size_t)t * ffn;
        (st->flags & HT_GELU ? r->k->gelu_mul : r->k->silu_mul)(h, r->p->u + (size_t)t * ffn, ffn,
                                                                h);
    }
}

/* Both products and the activation for tiles [i0, i1) and the prepared tokens from t on. */
static void up_tiles(cpu_run *r, const ht_stage *st, const cpu_in *in, uint32_t t, uint32_t i0,
                     uint32_t i1)
{
    const ht_layer *l = layer_of(r, st);
    const uint32_t ffn = r->p->m->spec.ffn;
    const cpu_mat *g = cpu__mat(r, &l->gate), *u = cpu__mat(r, &l->up);
    void (*act)(const float *, const float *, uint32_t, float *) =
        st->flags & HT_GELU ? r->k->gelu_mul : r->k->silu_mul;
    if (r->rows == 1 && ffn % CPU_LANES == 0) {
        /* One row: each matrix in one stream, without the steps from one to the other. */
        float *h = r->p->h + (size_t)i0 * CPU_LANES, *up = r->p->u + (size_t)i0 * CPU_LANES;
        cpu__product(r, g, 0, i0, i1, in, h, 0);
        cpu__product(r, u, 0, i0, i1, in, up, 0);
        act(h, up, (i1 - i0) * CPU_LANES, h);
        return;
    }
    for (uint32_t i = i0; i < i1 && !cpu__cancelled(r); i += CPU_SLAB) {
        uint32_t end = min32(i + CPU_SLAB, i1), row = i * CPU_LANES;
        uint32_t cols = min32(end * CPU_LANES, ffn) - row;
        size_t ldc = (size_t)(end - i) * CPU_LANES;
        cpu__product(r, g, 0, i, end, in, r->s->c0, ldc);
        cpu__product(r, u, 0, i, end, in, r->s->c1, ldc);
        for (uint32_t j = 0; j < in->n; j++)
            act(r->s->c0 + j * ldc, r->s->c1 + j * ldc, cols,
                r->p->h + (size_t)(t + j) * ffn + row);
    }
}

/* Norm, both products and the activation slab by slab. */
void cpu__ffn_up(cpu_run *r, const ht_stage *st)
{
    const ht_layer *l = layer_of(r, st);
    const ht_spec *s = &r->p->m->spec;
    unsigned want = cpu__want(r, cpu__mat(r, &l->gate)) | cpu__want(r, cpu__mat(r, &l->up));
    uint32_t i0, i1;
    for (uint32_t t = 0, nb; t < r->rows; t += nb) {
        cpu_in in;
        nb = cpu__block(r, t, r->rows);
        cpu__prepare(r, r->p->x + (size_t)t * s->dim, s->dim, NULL, nb, s->dim, l->ffn_norm, want,
                     &in);
        cpu__loop(r);
        while (cpu__take(r, cpu__tiles(s->ffn), TAKE_TILES, &i0, &i1))
            up_tiles(r, st, &in, t, i0, i1);
    }
}

/* ---- head ------------------------------------------------------------------------------------ */

static sink head_sink(const cpu_run *r, const ht_stage *st)
{
    return (sink){.cap = st->flags & HT_CAP ? r->p->m->spec.logit_cap : 0.0f,
                  .rows = r->p->batch->n_ids};
}
void cpu__head_p(cpu_run *r, const ht_stage *st)
{
    const cpu_mat *m = cpu__mat(r, &r->p->m->head);
    project_all(r, r->p->n, m->cols, NULL, r->p->batch->n_want, NULL, &m, &r->p->l, 1,
                head_sink(r, st));
}
void cpu__head(cpu_run *r, const ht_stage *st)
{
    const cpu_mat *m = cpu__mat(r, &r->p->m->head);
    project_all(r, r->p->x, m->cols, r->picked ? NULL : r->p->batch->want, r->p->batch->n_want,
                r->p->m->final_norm, &m, &r->p->l, 1, head_sink(r, st));
}
