/* bind.c - give every tensor of a spec its place: find it, check its shape, type and bytes, and
 * make a view of it; copy only where rows must be put in order or matrices put together. Nothing is
 * allocated by a number that has not been checked. Every tensor of the file must be used or be
 * known to carry nothing: what is left over means an architecture that this build would compute
 * wrongly. */
#include "core/hash.h"
#include "format/pack.h"
#include "model/priv.h"
#include "quant/r16.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    void *p;
    size_t n;
} block;

typedef struct {     /* ht_model.priv */
    ht_arena *arena; /* spec, layers, vectors, small copies */
    block *copy;     /* large copies, straight from the kernel */
    size_t n_copies, cap;
} owned;

typedef struct {
    model__in in;
    ht_model *m;
    owned *own;
    const ht_tensor **used;
    size_t n_used, cap;
    ht_err *e;
} binder;

enum { LARGE = 1 << 20 }; /* copies from here on do not go into the arena */

/* Of a layer at most q, k and three stacks of experts are copied. */
enum { COPIES_A_LAYER = 5 };

/* ---- memory ---------------------------------------------------------------------------------- */

static void *own_bytes(binder *b, size_t n)
{
    owned *o = b->own;
    if (n < LARGE || o->n_copies == o->cap) {
        void *p = ht_arena_alloc_aligned(o->arena, n, 64);
        if (!p) (void)HT_FAIL(b->e, HT_ENOMEM, "model: %zu bytes refused", n);
        return p;
    }
    void *p = ht_page_alloc(n);
    if (!p) {
        (void)HT_FAIL(b->e, HT_ENOMEM, "model: %zu MiB for reordered weights refused", n >> 20);
        return NULL;
    }
    o->copy[o->n_copies++] = (block){p, n};
    return p;
}

void ht_model_free(ht_model *m)
{
    if (!m) return;
    owned *o = m->priv;
    if (o) {
        for (size_t i = 0; i < o->n_copies; i++) ht_page_free(o->copy[i].p, o->copy[i].n);
        ht_arena_free(o->arena);
        ht_mem_free(o);
    }
    ht_mem_free(m);
}

/* ---- finding --------------------------------------------------------------------------------- */

static const ht_tensor *take(binder *b, int role, uint32_t layer, uint32_t expert)
{
    const ht_tensor *t = model__find(&b->in, role, layer, expert);
    if (t && b->n_used < b->cap) b->used[b->n_used++] = t;
    return t;
}

static int need(binder *b, int role, uint32_t layer, uint32_t expert, const ht_tensor **out)
{
    *out = take(b, role, layer, expert);
    if (*out) return 0;
    char name[MODEL__NAME_MAX];
    (void)model__tensor_name(&b->in, role, layer, expert, name);
    return HT_FAIL(b->e, HT_EFORMAT, "tensor %s is missing; arch %s needs it", name,
                   b->m->spec.arch);
}

static int bad_shape(binder *b, const ht_tensor *t, uint64_t n_mats, uint64_t rows, uint64_t cols)
{
    char want[64];
    if (n_mats > 1)
        (void)snprintf(want, sizeof want, "[%llu,%llu,%llu]", (unsigned long long)n_mats,
                       (unsigned long long)rows, (unsigned long long)cols);
    else if (rows > 0)
        (void)snprintf(want, sizeof want, "[%llu,%llu]", (unsigned long long)rows,
                       (unsigned long long)cols);
    else (void)snprintf(want, sizeof want, "[%llu]", (unsigned long long)cols);
    return HT_FAIL(b->e, HT_EFORMAT, "tensor %s: shape [%llu,%llu,%llu] (%u dims), need %s",
                   t->name, (unsigned long long)t->dim[0], (unsigned long long)t->dim[1],
                   (unsigned long long)t->dim[2], t->n_dims, want);
}

/* ---- vectors --------------------------------------------------------------------------------- */

/* A vector of n floats as f32 in the model's own memory (a file's may be misaligned). */
static int read_vec(binder *b, const ht_tensor *t, uint32_t n, float add, float **out)
{
    uint64_t bytes;
    if (t->n_dims != 1 || t->dim[0] != n) return bad_shape(b, t, 1, 0, n);
    if (t->type != HT_F32 && t->type != HT_F16 && t->type != HT_BF16)
        return HT_FAIL(b->e, HT_EUNSUPPORTED,
                       "tensor %s: a vector of type %s; f32, f16, bf16 are read", t->name,
                       ht_types[t->type].name);
    if (!ht_row_bytes(t->type, n, &bytes) || bytes != t->bytes || t->layout != HT_LAYOUT_ROWS)
        return HT_FAIL(b->e, HT_EFORMAT, "tensor %s: %llu bytes for %u elements", t->name,
                       (unsigned long long)t->bytes, n);
    float *v = ht_arena_array(b->own->arena, n, sizeof *v);
    if (!v) return HT_FAIL(b->e, HT_ENOMEM, "tensor %s: out of memory", t->name);
    ht_types[t->type].decode(t->data, v, n);
    for (uint32_t i = 0; i < n && add != 0; i++) v[i] += add;
    *out = v;
    return 0;
}

static int norm(binder *b, int role, uint32_t layer, uint32_t n, const float **out)
{
    const ht_tensor *t;
    float *v;
    bool plus1 = ht_file_kind(b->in.f) == HT_FILE_HF && (b->in.fam->traits & MODEL__NORM1);
    HT_TRY(need(b, role, layer, 0, &t));
    HT_TRY(read_vec(b, t, n, plus1 ? 1.0F : 0.0F, &v));
    *out = v;
    return 0;
}

/* ---- matrices -------------------------------------------------------------------------------- */

/* Bytes of one row and one matrix in the tensor's layout. */
static int sizes(binder *b, const ht_tensor *t, ht_weight *w)
{
    uint64_t row = 0;
    bool ok;
    if (t->layout == HT_LAYOUT_R16) {
        ok = ht_r16_type(t->type) == t->type &&
             ht_r16_bytes(t->type, w->rows, w->cols, &w->mat_bytes);
    } else {
        ok = ht_row_bytes(t->type, w->cols, &row);
        w->mat_bytes = row * w->rows;
    }
    w->row_bytes = row;
    if (!ok || t->type == HT_I32)
        return HT_FAIL(b->e, HT_EUNSUPPORTED, "tensor %s: %u columns of type %s in layout %s",
                       t->name, w->cols, ht_types[t->type].name,
                       ht_layout_name(t->layout, t->type));
    return 0;
}

/* A tensor as n_mats matrices [rows,cols]; every shape and byte count is checked. rows == 1 accepts
 * a vector. */
static int read_mats(binder *b, const ht_tensor *t, uint32_t n_mats, uint32_t rows, uint32_t cols,
                     ht_weight *w)
{
    bool fits =
        n_mats > 1 ? t->n_dims == 3 && t->dim[0] == n_mats && t->dim[1] == rows && t->dim[2] == cols
                   : t->n_dims == 2 && t->dim[0] == rows && t->dim[1] == cols;
    if (n_mats == 1 && t->n_dims == 3) /* a stack of one expert */
        fits = t->dim[0] == 1 && t->dim[1] == rows && t->dim[2] == cols;
    if (rows == 1 && t->n_dims == 1) fits = t->dim[0] == cols;
    if (!fits) return bad_shape(b, t, n_mats, rows, cols);
    memset(w, 0, sizeof *w);
    w->rows = rows;
    w->cols = cols;
    w->n_mats = n_mats;
    w->type = t->type;
    w->layout = t->layout;
    HT_TRY(sizes(b, t, w));
    w->data = t->data;
    w->bytes = w->mat_bytes * n_mats;
    if (w->bytes != t->bytes)
        return HT_FAIL(b->e, HT_EFORMAT, "tensor %s: %llu bytes, %llu expected", t->name,
                       (unsigned long long)t->bytes, (unsigned long long)w->bytes);
    return 0;
}

/* The second representation that a pack holds of this tensor. One name serves the whole pack. */
static int read_alt(binder *b, const ht_tensor *t, ht_weight *w)
{
    static const char *const reps[] = {"q8", "q4", "f16"};
    const ht_tensor *a = NULL;
    if (ht_file_kind(b->in.f) != HT_FILE_PACK) return 0;
    for (size_t i = 0; i < sizeof reps / sizeof *reps && !a; i++) {
        if (b->m->rep[1][0] && strcmp(b->m->rep[1], reps[i]) != 0) continue;
        a = ht_pack_find(b->in.f, t->name, reps[i]);
        if (a) (void)snprintf(b->m->rep[1], sizeof b->m->rep[1], "%s", reps[i]);
    }
    if (!a) return 0;
    ht_weight *alt = ht_arena_alloc(b->own->arena, sizeof *alt);
    if (!alt) return HT_FAIL(b->e, HT_ENOMEM, "tensor %s: out of memory", t->name);
    HT_TRY(read_mats(b, a, w->n_mats, w->rows, w->cols, alt));
    alt->act_f32 = w->act_f32;
    alt->id = b->m->n_weights++;
    w->alt = alt;
    return 0;
}

static int finish(binder *b, const ht_tensor *t, ht_weight *w)
{
    w->id = b->m->n_weights++;
    return read_alt(b, t, w);
}

static int mats(binder *b, int role, uint32_t layer, uint32_t n_mats, uint32_t rows, uint32_t cols,
                ht_weight *w)
{
    const ht_tensor *t;
    HT_TRY(need(b, role, layer, 0, &t));
    HT_TRY(read_mats(b, t, n_mats, rows, cols, w));
    /* The embedding may be the head too; it is no product otherwise. */
    w->act_f32 = role == MODEL__V || role == MODEL__HEAD || role == MODEL__EMBED;
    return finish(b, t, w);
}

/* Rows [first, first + rows) of a fused matrix as a matrix of its own. */
static void view(binder *b, const ht_weight *all, uint32_t first, uint32_t rows, ht_weight *w)
{
    *w = *all;
    w->rows = rows;
    w->data = (const uint8_t *)all->data + (uint64_t)first * all->row_bytes;
    w->bytes = w->mat_bytes = (uint64_t)rows * all->row_bytes;
    w->id = b->m->n_weights++;
}

static int fused(binder *b, int role, uint32_t layer, uint32_t rows, uint32_t cols, ht_weight *all)
{
    const ht_tensor *t;
    HT_TRY(need(b, role, layer, 0, &t));
    HT_TRY(read_mats(b, t, 1, rows, cols, all));
    if (all->layout != HT_LAYOUT_ROWS)
        return HT_FAIL(b->e, HT_EUNSUPPORTED, "tensor %s: fused rows in layout %s", t->name,
                       ht_layout_name(all->layout, all->type));
    return 0;
}

/* ---- row order of q and k -------------------------------------------------------------------- */

/* Row of the file that belongs at row r: of each head, rotated row s * dims/2 + j stands at 2j + s
 * in files for adjacent pairs; rows that do not rotate stay. */
static uint32_t source_row(const ht_spec *s, uint32_t r)
{
    uint32_t in_head = r % s->head_dim, head = r - in_head, dims = s->rope[0].dims;
    if (in_head >= dims) return r;
    return head + 2 * (in_head % (dims / 2)) + in_head / (dims / 2);
}

static bool permuted(const binder *b)
{
    return ht_file_kind(b->in.f) == HT_FILE_GGUF && (b->in.fam->traits & MODEL__PERMUTED);
}

static int unpermute(binder *b, ht_weight *w)
{
    uint8_t *p = own_bytes(b, (size_t)w->bytes);
    if (!p) return HT_ENOMEM;
    for (uint32_t r = 0; r < w->rows; r++)
        memcpy(p + r * w->row_bytes,
               (const uint8_t *)w->data + source_row(&b->m->spec, r) * w->row_bytes,
               (size_t)w->row_bytes);
    w->data = p;
    return 0;
}

static int bias(binder *b, int role, uint32_t layer, uint32_t n, bool reorder, const float **out)
{
    const ht_tensor *t;
    float *v;
    HT_TRY(need(b, role, layer, 0, &t));
    HT_TRY(read_vec(b, t, n, 0, &v));
    *out = v;
    if (!reorder) return 0;
    float *o = ht_arena_array(b->own->arena, n, sizeof *o);
    if (!o) return HT_FAIL(b->e, HT_ENOMEM, "tensor %s: out of memory", t->name);
    for (uint32_t r = 0; r < n; r++) o[r] = v[source_row(&b->m->spec, r)];
    *out = o;
    return 0;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static int bind_attn(binder *b, uint32_t i, ht_layer *l)
{
    const ht_spec *s = &b->m->spec;
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    if (model__find(&b->in, MODEL__Q, i, 0) || !model__find(&b->in, MODEL__QKV, i, 0)) {
        HT_TRY(mats(b, MODEL__Q, i, 1, q, s->dim, &l->q));
        HT_TRY(mats(b, MODEL__K, i, 1, kv, s->dim, &l->k));
        HT_TRY(mats(b, MODEL__V, i, 1, kv, s->dim, &l->v));
    } else {
        ht_weight all;
        HT_TRY(fused(b, MODEL__QKV, i, q + 2 * kv, s->dim, &all));
        view(b, &all, 0, q, &l->q);
        view(b, &all, q, kv, &l->k);
        view(b, &all, q + kv, kv, &l->v);
        l->v.act_f32 = 1;
    }
    if (permuted(b)) {
        HT_TRY(unpermute(b, &l->q));
        HT_TRY(unpermute(b, &l->k));
    }
    if (s->qkv_bias) {
        HT_TRY(bias(b, MODEL__Q_BIAS, i, q, permuted(b), &l->q_bias));
        HT_TRY(bias(b, MODEL__K_BIAS, i, kv, permuted(b), &l->k_bias));
        HT_TRY(bias(b, MODEL__V_BIAS, i, kv, false, &l->v_bias));
    }
    if (s->qk_norm) {
        HT_TRY(norm(b, MODEL__Q_NORM, i, s->head_dim, &l->q_norm));
        HT_TRY(norm(b, MODEL__K_NORM, i, s->head_dim, &l->k_norm));
    }
    return mats(b, MODEL__O, i, 1, s->dim, q, &l->o);
}

static int bind_ffn(binder *b, uint32_t i, ht_layer *l)
{
    const ht_spec *s = &b->m->spec;
    if (model__find(&b->in, MODEL__GATE, i, 0) || !model__find(&b->in, MODEL__GATE_UP, i, 0)) {
        HT_TRY(mats(b, MODEL__GATE, i, 1, s->ffn, s->dim, &l->gate));
        HT_TRY(mats(b, MODEL__UP, i, 1, s->ffn, s->dim, &l->up));
    } else {
        ht_weight all;
        HT_TRY(fused(b, MODEL__GATE_UP, i, 2 * s->ffn, s->dim, &all));
        view(b, &all, 0, s->ffn, &l->gate);
        view(b, &all, s->ffn, s->ffn, &l->up);
    }
    return mats(b, MODEL__DOWN, i, 1, s->dim, s->ffn, &l->down);
}

/* Experts kept one tensor each: a view when they lie one after another, else a stack of copies. */
static int gather(binder *b, int role, uint32_t layer, uint32_t rows, uint32_t cols, ht_weight *w)
{
    uint32_t n = b->m->spec.n_experts;
    bool adjoin = true;
    const ht_tensor *t, *first;
    ht_weight one;
    HT_TRY(need(b, role, layer, 0, &first));
    HT_TRY(read_mats(b, first, 1, rows, cols, w));
    for (uint32_t k = 1; k < n; k++) {
        HT_TRY(need(b, role, layer, k, &t));
        HT_TRY(read_mats(b, t, 1, rows, cols, &one));
        if (t->type != first->type)
            return HT_FAIL(b->e, HT_EUNSUPPORTED, "tensor %s: type %s, but expert 0 has %s",
                           t->name, ht_types[t->type].name, ht_types[first->type].name);
        adjoin = adjoin && t->data == (const uint8_t *)first->data + k * w->mat_bytes;
    }
    w->n_mats = n;
    w->bytes = w->mat_bytes * n;
    w->id = b->m->n_weights++;
    if (adjoin) return 0;
    uint8_t *p = own_bytes(b, (size_t)w->bytes);
    if (!p) return HT_ENOMEM;
    for (uint32_t k = 0; k < n; k++)
        memcpy(p + k * w->mat_bytes, model__find(&b->in, role, layer, k)->data,
               (size_t)w->mat_bytes);
    w->data = p;
    return 0;
}

/* Half h of [experts, 2*rows, cols] as a stack [experts, rows, cols]. */
static int split_half(binder *b, const ht_weight *both, uint32_t h, ht_weight *w)
{
    *w = *both;
    w->rows = both->rows / 2;
    w->mat_bytes = both->mat_bytes / 2;
    w->bytes = both->bytes / 2;
    w->id = b->m->n_weights++;
    uint8_t *p = own_bytes(b, (size_t)w->bytes);
    if (!p) return HT_ENOMEM;
    for (uint32_t k = 0; k < w->n_mats; k++)
        memcpy(p + k * w->mat_bytes,
               (const uint8_t *)both->data + k * both->mat_bytes + h * w->mat_bytes,
               (size_t)w->mat_bytes);
    w->data = p;
    return 0;
}

static int bind_experts(binder *b, uint32_t i, ht_layer *l)
{
    const ht_spec *s = &b->m->spec;
    uint32_t n = s->n_experts, ff = s->expert_ffn;
    HT_TRY(mats(b, MODEL__ROUTER, i, 1, n, s->dim, &l->router));
    if (model__find(&b->in, MODEL__E_GATE, i, 0)) {
        HT_TRY(mats(b, MODEL__E_GATE, i, n, ff, s->dim, &l->e_gate));
        HT_TRY(mats(b, MODEL__E_UP, i, n, ff, s->dim, &l->e_up));
        HT_TRY(mats(b, MODEL__E_DOWN, i, n, s->dim, ff, &l->e_down));
    } else if (model__find(&b->in, MODEL__E_GATE_UP, i, 0)) {
        const ht_tensor *t;
        ht_weight both;
        HT_TRY(need(b, MODEL__E_GATE_UP, i, 0, &t));
        HT_TRY(read_mats(b, t, n, 2 * ff, s->dim, &both));
        HT_TRY(split_half(b, &both, 0, &l->e_gate));
        HT_TRY(split_half(b, &both, 1, &l->e_up));
        HT_TRY(mats(b, MODEL__E_DOWN, i, n, s->dim, ff, &l->e_down));
    } else {
        HT_TRY(gather(b, MODEL__X_GATE, i, ff, s->dim, &l->e_gate));
        HT_TRY(gather(b, MODEL__X_UP, i, ff, s->dim, &l->e_up));
        HT_TRY(gather(b, MODEL__X_DOWN, i, s->dim, ff, &l->e_down));
    }
    if (!s->shared_ffn) return 0;
    HT_TRY(mats(b, MODEL__S_GATE, i, 1, s->shared_ffn, s->dim, &l->s_gate));
    HT_TRY(mats(b, MODEL__S_UP, i, 1, s->shared_ffn, s->dim, &l->s_up));
    HT_TRY(mats(b, MODEL__S_DOWN, i, 1, s->dim, s->shared_ffn, &l->s_down));
    return mats(b, MODEL__S_ROUTER, i, 1, 1, s->dim, &l->s_router);
}

static int bind_layer(binder *b, uint32_t i, ht_layer *l)
{
    const ht_spec *s = &b->m->spec;
    HT_TRY(norm(b, MODEL__ATTN_NORM, i, s->dim, &l->attn_norm));
    HT_TRY(norm(b, MODEL__FFN_NORM, i, s->dim, &l->ffn_norm));
    if (s->post_norm) {
        HT_TRY(norm(b, MODEL__POST_ATTN, i, s->dim, &l->post_attn_norm));
        HT_TRY(norm(b, MODEL__POST_FFN, i, s->dim, &l->post_ffn_norm));
    }
    HT_TRY(bind_attn(b, i, l));
    return s->layer[i].moe ? bind_experts(b, i, l) : bind_ffn(b, i, l);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int by_address(const void *x, const void *y)
{
    uintptr_t a = (uintptr_t) * (const ht_tensor *const *)x;
    uintptr_t c = (uintptr_t) * (const ht_tensor *const *)y;
    return (a > c) - (a < c);
}

/* Tensors that carry nothing this build needs: frequencies (the spec has them), a saved copy of a
 * tied head, the half of a model that sees. */
static bool ignorable(const binder *b, const ht_tensor *t)
{
    static const char *const part[] = {"rope_freqs.weight",   "rope_factors_",
                                       "rotary_emb.inv_freq", "attn_rot_embd",
                                       "vision_tower.",       "multi_modal_projector."};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (strstr(t->name, part[i])) return true;
    return b->m->spec.tied && t == model__find(&b->in, MODEL__HEAD, 0, 0);
}

static int check_rest(binder *b)
{
    if (ht_file_kind(b->in.f) == HT_FILE_PACK) return 0; /* written by us, both representations */
    qsort(b->used, b->n_used, sizeof *b->used, by_address);
    for (size_t i = 0; i < ht_file_n_tensors(b->in.f); i++) {
        const ht_tensor *t = ht_file_tensor(b->in.f, i);
        if (!bsearch(&t, b->used, b->n_used, sizeof *b->used, by_address) && !ignorable(b, t))
            return HT_FAIL(b->e, HT_EUNSUPPORTED,
                           "tensor %s has no place in arch %s; results would be wrong without it",
                           t->name, b->m->spec.arch);
    }
    return 0;
}

/* SHA-256 over the spec and, for every tensor under its normal name, type, layout and shape. */
static int identity(binder *b)
{
    ht_model *m = b->m;
    ht_json *spec;
    size_t n = ht_model_names(m, NULL, 0);
    ht_named *list = ht_arena_array(b->own->arena, n, sizeof *list);
    if (!list) return HT_FAIL(b->e, HT_ENOMEM, "model: list of %zu tensors: out of memory", n);
    (void)ht_model_names(m, list, n);
    HT_TRY(ht_spec_to_json(&m->spec, b->own->arena, &spec, b->e));
    ht_buf text;
    ht_buf_init(&text, 0);
    int rc = ht_json_write(spec, HT_JSON_CANON, &text, b->e);
    for (size_t i = 0; i < n; i++) {
        ht_buf_fmt(&text, "\n%s", list[i].name);
        for (const ht_weight *w = list[i].w; w; w = w->alt)
            ht_buf_fmt(&text, " %s %s %u %u %u", ht_types[w->type].name,
                       ht_layout_name(w->layout, w->type), w->n_mats, w->rows, w->cols);
        if (list[i].vec) ht_buf_fmt(&text, " f32 %u", list[i].n);
    }
    if (!rc) rc = ht_buf_ok(&text, "model identity", b->e);
    if (!rc) rc = ht_sha256_of(text.p, text.n, m->sha256, b->e);
    ht_buf_done(&text);
    return rc;
}

static int bind_all(binder *b, ht_progress_fn progress, void *user)
{
    ht_model *m = b->m;
    const ht_spec *s = &m->spec;
    m->layer = ht_arena_array(b->own->arena, s->n_layers, sizeof *m->layer);
    b->cap = ht_file_n_tensors(b->in.f);
    b->used = ht_arena_array(b->own->arena, b->cap, sizeof *b->used);
    b->own->cap = (size_t)s->n_layers * COPIES_A_LAYER + 2;
    b->own->copy = ht_arena_array(b->own->arena, b->own->cap, sizeof *b->own->copy);
    if (!m->layer || !b->used || !b->own->copy)
        return HT_FAIL(b->e, HT_ENOMEM, "model of %u layers: out of memory", s->n_layers);

    HT_TRY(mats(b, MODEL__EMBED, 0, 1, s->vocab, s->dim, &m->embed));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        if (progress && progress(user, "binding layers", i, s->n_layers))
            return HT_FAIL(b->e, HT_ECANCELLED, "loading was cancelled at layer %u", i);
        HT_TRY(bind_layer(b, i, &m->layer[i]));
    }
    HT_TRY(norm(b, MODEL__FINAL_NORM, 0, s->dim, &m->final_norm));
    if (s->tied) m->head = m->embed;
    else HT_TRY(mats(b, MODEL__HEAD, 0, 1, s->vocab, s->dim, &m->head));
    HT_TRY(check_rest(b));
    (void)snprintf(m->rep[0], sizeof m->rep[0], "%s", ht_model_contract(m, NULL, NULL));
    return identity(b);
}

/* Read the spec of an opened file and bind its tensors. f must stay open as long as the model
 * lives. Loading touches headers and copied rows only. On error nothing is left behind and *out is
 * NULL. Errors: HT_EFORMAT and HT_EUNSUPPORTED name the key or tensor, HT_ENOMEM, HT_ECANCELLED. */
int ht_model_open(ht_model **out, const ht_file *f, ht_progress_fn progress, void *user, ht_err *e)
{
    *out = NULL;
    binder b = {.e = e};
    b.m = ht_mem_alloc(sizeof *b.m);
    b.own = ht_mem_alloc(sizeof *b.own);
    int rc = 0;
    if (!b.m || !b.own) rc = HT_FAIL(e, HT_ENOMEM, "model: out of memory");
    if (b.m) b.m->priv = b.own;
    if (!rc) rc = ht_arena_new(&b.own->arena, 0, e);
    if (!rc) rc = ht_spec_read(&b.m->spec, f, b.own->arena, e);
    if (!rc) rc = model__identify(&b.in, f, b.own->arena, e);
    if (!rc) rc = bind_all(&b, progress, user);
    if (rc) {
        if (!b.m) ht_mem_free(b.own);
        ht_model_free(b.m);
        return rc;
    }
    *out = b.m;
    return 0;
}
