/* names.c - a bound model seen from outside: its tensors under normal names, its contract, its rows
 * as numbers. */
#include "model/priv.h"
#include "quant/r16.h"

#include <string.h>

typedef struct {
    ht_named *out;
    size_t cap, n;
} list;

static ht_named *next(list *l, int role, uint32_t layer)
{
    ht_named *e = l->n < l->cap ? &l->out[l->n] : NULL;
    l->n++;
    if (!e) return NULL;
    memset(e, 0, sizeof *e);
    model__normal_name(role, layer, e->name);
    return e;
}

static void add_weight(list *l, int role, uint32_t layer, const ht_weight *w, bool projection)
{
    if (!w->data) return;
    ht_named *e = next(l, role, layer);
    if (!e) return;
    e->w = w;
    e->projection = projection;
}

static void add_vec(list *l, int role, uint32_t layer, const float *v, uint32_t n)
{
    if (!v) return;
    ht_named *e = next(l, role, layer);
    if (!e) return;
    e->vec = v;
    e->n = n;
}

static void add_layer(list *l, const ht_spec *s, const ht_layer *y, uint32_t i)
{
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    add_vec(l, MODEL__ATTN_NORM, i, y->attn_norm, s->dim);
    add_weight(l, MODEL__Q, i, &y->q, true);
    add_weight(l, MODEL__K, i, &y->k, true);
    add_weight(l, MODEL__V, i, &y->v, true);
    add_vec(l, MODEL__Q_BIAS, i, y->q_bias, q);
    add_vec(l, MODEL__K_BIAS, i, y->k_bias, kv);
    add_vec(l, MODEL__V_BIAS, i, y->v_bias, kv);
    add_vec(l, MODEL__Q_NORM, i, y->q_norm, s->head_dim);
    add_vec(l, MODEL__K_NORM, i, y->k_norm, s->head_dim);
    add_weight(l, MODEL__O, i, &y->o, true);
    add_vec(l, MODEL__POST_ATTN, i, y->post_attn_norm, s->dim);
    add_vec(l, MODEL__FFN_NORM, i, y->ffn_norm, s->dim);
    add_weight(l, MODEL__GATE, i, &y->gate, true);
    add_weight(l, MODEL__UP, i, &y->up, true);
    add_weight(l, MODEL__DOWN, i, &y->down, true);
    add_weight(l, MODEL__ROUTER, i, &y->router, false);
    add_weight(l, MODEL__E_GATE, i, &y->e_gate, true);
    add_weight(l, MODEL__E_UP, i, &y->e_up, true);
    add_weight(l, MODEL__E_DOWN, i, &y->e_down, true);
    add_weight(l, MODEL__S_GATE, i, &y->s_gate, true);
    add_weight(l, MODEL__S_UP, i, &y->s_up, true);
    add_weight(l, MODEL__S_DOWN, i, &y->s_down, true);
    add_weight(l, MODEL__S_ROUTER, i, &y->s_router, false);
    add_vec(l, MODEL__POST_FFN, i, y->post_ffn_norm, s->dim);
}

/* Entries past cap are only counted. A tied embedding is a projection too, once: it is the head. */
size_t ht_model_names(const ht_model *m, ht_named *out, size_t cap)
{
    list l = {out, cap, 0};
    add_weight(&l, MODEL__EMBED, 0, &m->embed, m->spec.tied);
    for (uint32_t i = 0; i < m->spec.n_layers; i++) add_layer(&l, &m->spec, &m->layer[i], i);
    add_vec(&l, MODEL__FINAL_NORM, 0, m->final_norm, m->spec.dim);
    if (!m->spec.tied) add_weight(&l, MODEL__HEAD, 0, &m->head, true);
    return l.n;
}

static void count(const ht_weight *w, uint32_t *n, uint32_t *quantised, uint32_t *q8)
{
    if (!w->data) return;
    ++*n;
    *quantised += ht_types[w->type].block > 1;
    *q8 += w->type == HT_Q8_0;
}

/* "f16" when no projection is quantised, "q8" when all quantised ones are Q8_0, else "q4". */
const char *ht_model_contract(const ht_model *m, uint32_t *n_proj, uint32_t *n_quantised)
{
    uint32_t n = 0, quantised = 0, q8 = 0;
    for (uint32_t i = 0; i < m->spec.n_layers; i++) {
        const ht_layer *l = &m->layer[i];
        const ht_weight *w[] = {&l->q,      &l->k,    &l->v,      &l->o,    &l->gate,
                                &l->up,     &l->down, &l->e_gate, &l->e_up, &l->e_down,
                                &l->s_gate, &l->s_up, &l->s_down};
        for (size_t k = 0; k < sizeof w / sizeof *w; k++) count(w[k], &n, &quantised, &q8);
    }
    count(&m->head, &n, &quantised, &q8);
    if (n_proj) *n_proj = n;
    if (n_quantised) *n_quantised = quantised;
    if (!quantised) return "f16";
    return q8 == quantised ? "q8" : "q4";
}

void ht_weight_row(const ht_weight *w, uint32_t m, uint32_t r, float *out)
{
    const uint8_t *mat = (const uint8_t *)w->data + (size_t)m * w->mat_bytes;
    if (w->layout == HT_LAYOUT_R16) ht_r16_row(w->type, mat, w->rows, w->cols, r, out);
    else ht_types[w->type].decode(mat + (size_t)r * w->row_bytes, out, w->cols);
}
