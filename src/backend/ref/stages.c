/* stages.c - the stages without a cache, one function each, in the order of a layer. */
#include "backend/ref/ref.h"

#include <math.h>
#include <string.h>

/* tokens -> X: rows of the embedding, scaled. */
void ref__embed(ht_plan *p, const ht_stage *st)
{
    const ht_spec *s = &p->m->spec;
    const ht_weight *w = ref__rep(p, &p->m->embed);
    (void)st;
    for (uint32_t t = 0; t < p->rows; t++) {
        float *x = p->x + (size_t)t * s->dim;
        ht_weight_row(w, 0, (uint32_t)p->batch->token[p->row[t]], x);
        for (uint32_t i = 0; i < s->dim; i++) x[i] *= s->embed_scale;
    }
}

/* X += y, y [rows,dim], after its own norm where the family has one. */
static void residual(ht_plan *p, const ht_stage *st, float *y, const float *post_norm)
{
    const ht_spec *s = &p->m->spec;
    for (uint32_t t = 0; t < p->rows; t++) {
        float *yt = y + (size_t)t * s->dim, *x = p->x + (size_t)t * s->dim;
        if (st->flags & HT_POSTNORM) ref__norm(yt, post_norm, s->dim, s->rms_eps, yt);
        for (uint32_t i = 0; i < s->dim; i++) x[i] += yt[i];
    }
}

/* Normalised copy of X into out [rows,dim]. */
static void norm_rows(ht_plan *p, const float *w, float *out)
{
    const ht_spec *s = &p->m->spec;
    for (uint32_t t = 0; t < p->rows; t++)
        ref__norm(p->x + (size_t)t * s->dim, w, s->dim, s->rms_eps, out + (size_t)t * s->dim);
}

/* A -> X. */
void ref__attn_out(ht_plan *p, const ht_stage *st)
{
    const ht_layer *l = &p->m->layer[st->layer];
    ref__project(p, &l->o, 0, p->a, p->rows, p->t0, p->m->spec.dim);
    if (!ref__cancelled(p)) residual(p, st, p->t0, l->post_attn_norm);
}

/* X -> H = act(gate(norm X)) * up(norm X). */
void ref__ffn_up(ht_plan *p, const ht_stage *st)
{
    const ht_layer *l = &p->m->layer[st->layer];
    uint32_t ffn = p->m->spec.ffn;
    norm_rows(p, l->ffn_norm, p->t0);
    ref__project(p, &l->gate, 0, p->t0, p->rows, p->h, ffn);
    ref__project(p, &l->up, 0, p->t0, p->rows, p->t1, ffn);
    ref__gate(p->h, p->t1, (size_t)p->rows * ffn, (st->flags & HT_GELU) != 0);
}

/* H -> X. */
void ref__ffn_down(ht_plan *p, const ht_stage *st)
{
    const ht_layer *l = &p->m->layer[st->layer];
    ref__project(p, &l->down, 0, p->h, p->rows, p->t0, p->m->spec.dim);
    if (!ref__cancelled(p)) residual(p, st, p->t0, l->post_ffn_norm);
}

/* The k best of n logits as probabilities of the soft-max over all n, best first, ties to the
 * lowest id; divided by their sum under RENORM (which makes it the soft-max over the chosen
 * ones). */
static void choose(const float *logit, uint32_t n, uint32_t k, bool renorm, ht_choice *out)
{
    double top = -INFINITY, all = 0, chosen = 0;
    for (uint32_t i = 0; i < n; i++) top = fmax(top, (double)logit[i]);
    for (uint32_t i = 0; i < n; i++) all += exp((double)logit[i] - top);
    for (uint32_t j = 0; j < k; j++) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++) {
            bool taken = false;
            for (uint32_t c = 0; c < j; c++) taken = taken || out[c].id == i;
            if (!taken && (best == n || logit[i] > logit[best])) best = i;
        }
        out[j].id = best;
        chosen += exp((double)logit[best] - top);
    }
    for (uint32_t j = 0; j < k; j++)
        out[j].w = (float)(exp((double)logit[out[j].id] - top) / (renorm ? chosen : all));
}

/* X -> R. */
void ref__route(ht_plan *p, const ht_stage *st)
{
    const ht_spec *s = &p->m->spec;
    const ht_layer *l = &p->m->layer[st->layer];
    norm_rows(p, l->ffn_norm, p->t0);
    ref__project(p, &l->router, 0, p->t0, p->rows, p->t1, s->n_experts);
    for (uint32_t t = 0; t < p->rows; t++)
        choose(p->t1 + (size_t)t * s->n_experts, s->n_experts, s->n_experts_used,
               (st->flags & HT_RENORM) != 0, p->r + (size_t)t * s->n_experts_used);
}

/* Weight of expert e for a row; 0: not chosen. */
static float weight_of(const ht_plan *p, uint32_t t, uint32_t e)
{
    uint32_t k = p->m->spec.n_experts_used;
    for (uint32_t j = 0; j < k; j++)
        if (p->r[(size_t)t * k + j].id == e) return p->r[(size_t)t * k + j].w;
    return 0;
}

/* One expert over the rows that chose it: y[row] += w * down(act(gate x) * up x). t2 holds the
 * gathered rows, later their results; H, which no stage behind EXPERTS reads, the hidden ones. */
static void expert(ht_plan *p, const ht_stage *st, const ht_layer *l, uint32_t e, const float *xn,
                   float *y)
{
    const ht_spec *s = &p->m->spec;
    uint32_t n = 0, ff = s->expert_ffn;
    float *in = p->t2, *h = p->h, *u = p->t3;
    for (uint32_t t = 0; t < p->rows; t++)
        if (weight_of(p, t, e) != 0)
            memcpy(in + (size_t)n++ * s->dim, xn + (size_t)t * s->dim, s->dim * sizeof(float));
    if (n == 0) return;
    ref__project(p, &l->e_gate, e, in, n, h, ff);
    ref__project(p, &l->e_up, e, in, n, u, ff);
    ref__gate(h, u, (size_t)n * ff, (st->flags & HT_GELU) != 0);
    ref__project(p, &l->e_down, e, h, n, in, s->dim);
    n = 0;
    for (uint32_t t = 0; t < p->rows; t++) {
        float w = weight_of(p, t, e);
        if (w == 0) continue;
        for (uint32_t i = 0; i < s->dim; i++)
            y[(size_t)t * s->dim + i] += w * in[(size_t)n * s->dim + i];
        n++;
    }
}

/* The expert that every row passes, scaled by a sigmoid gate of its own (Qwen2-MoE). */
static void shared_expert(ht_plan *p, const ht_stage *st, const ht_layer *l, const float *xn,
                          float *y)
{
    const ht_spec *s = &p->m->spec;
    uint32_t ff = s->shared_ffn;
    float *h = p->h, *u = p->t3, *out = p->t2;
    ref__project(p, &l->s_gate, 0, xn, p->rows, h, ff);
    ref__project(p, &l->s_up, 0, xn, p->rows, u, ff);
    ref__gate(h, u, (size_t)p->rows * ff, (st->flags & HT_GELU) != 0);
    ref__project(p, &l->s_down, 0, h, p->rows, out, s->dim);
    ref__project(p, &l->s_router, 0, xn, p->rows, u, 1);
    for (uint32_t t = 0; t < p->rows; t++) {
        float g = (float)(1 / (1 + exp(-(double)u[t])));
        for (uint32_t i = 0; i < s->dim; i++)
            y[(size_t)t * s->dim + i] += g * out[(size_t)t * s->dim + i];
    }
}

/* X, R -> X. Experts in ascending order, so a row's sum does not depend on the other rows. */
void ref__experts(ht_plan *p, const ht_stage *st)
{
    const ht_spec *s = &p->m->spec;
    const ht_layer *l = &p->m->layer[st->layer];
    float *xn = p->t0, *y = p->t1;
    norm_rows(p, l->ffn_norm, xn);
    memset(y, 0, (size_t)p->rows * s->dim * sizeof *y);
    for (uint32_t e = 0; e < s->n_experts && !ref__cancelled(p); e++) expert(p, st, l, e, xn, y);
    if (st->flags & HT_SHARED) shared_expert(p, st, l, xn, y);
    if (!ref__cancelled(p)) residual(p, st, y, l->post_ffn_norm);
}

/* X, Q -> X, Q: the wanted rows move to the front, in the order they are wanted in. Through a copy,
 * since any order is allowed. */
void ref__pick(ht_plan *p, const ht_stage *st)
{
    const ht_spec *s = &p->m->spec;
    const ht_batch *b = p->batch;
    uint32_t nq = s->n_heads * s->head_dim;
    (void)st;
    memcpy(p->t0, p->x, (size_t)p->rows * s->dim * sizeof(float));
    memcpy(p->t1, p->q, (size_t)p->rows * nq * sizeof(float));
    for (uint32_t i = 0; i < b->n_want; i++) {
        memcpy(p->x + (size_t)i * s->dim, p->t0 + (size_t)b->want[i] * s->dim,
               s->dim * sizeof(float));
        memcpy(p->q + (size_t)i * nq, p->t1 + (size_t)b->want[i] * nq, nq * sizeof(float));
        p->row[i] = b->want[i];
    }
    p->rows = b->n_want;
    p->picked = true;
}

/* X -> L. A part of the tape without PICK picks here. */
void ref__head(ht_plan *p, const ht_stage *st)
{
    const ht_spec *s = &p->m->spec;
    const ht_batch *b = p->batch;
    for (uint32_t i = 0; i < b->n_want; i++) {
        uint32_t from = p->picked ? i : b->want[i];
        ref__norm(p->x + (size_t)from * s->dim, p->m->final_norm, s->dim, s->rms_eps,
                  p->t0 + (size_t)i * s->dim);
    }
    ref__project(p, &p->m->head, 0, p->t0, b->n_want, p->l, s->vocab);
    for (size_t i = 0; (st->flags & HT_CAP) && i < (size_t)b->n_want * s->vocab; i++)
        p->l[i] = (float)((double)s->logit_cap * tanh((double)p->l[i] / (double)s->logit_cap));
}
