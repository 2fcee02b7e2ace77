/* moe.c - routed experts, grouped by expert: a row's sum goes over its experts in ascending order,
 * so it does not depend on the other rows. Hidden vectors of (row, choice) pairs lie in H as
 * [rows, topk, expert_ffn], those of the shared expert behind them as [rows, shared_ffn]. */
#include "backend/cpu/cpu.h"
#include <string.h>

static float *shared_hidden(const cpu_run *r)
{
    const ht_spec *s = &r->p->m->spec;
    return r->p->h + (size_t)r->p->b.rows * s->n_experts_used * s->expert_ffn;
}

/* The k best of n logits, ties to the lowest id, as parts of the soft-max over all n, or of the one
 * over the chosen ones under RENORM. */
static void choose(const cpu_run *r, const float *logit, uint32_t n, uint32_t k, bool renorm,
                   ht_choice *out)
{
    float all = 0, chosen = 0;
    for (uint32_t j = 0; j < k; j++) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++) {
            bool taken = false;
            for (uint32_t c = 0; c < j; c++) taken = taken || out[c].id == i;
            if (!taken && (best == n || logit[i] > logit[best])) best = i;
        }
        out[j].id = best;
    }
    float top = logit[out[0].id];
    for (uint32_t i = 0; i < n && !renorm; i++) all += r->k->exp(logit[i] - top);
    for (uint32_t j = 0; j < k; j++) {
        out[j].w = r->k->exp(logit[out[j].id] - top);
        chosen += out[j].w;
    }
    for (uint32_t j = 0; j < k; j++) out[j].w /= renorm ? chosen : all;
}

/* X -> R, by rows: the router is small, a thread takes its rows through all of it. */
void cpu__route(cpu_run *r, const ht_stage *st)
{
    const ht_spec *s = &r->p->m->spec;
    const ht_layer *l = &r->p->m->layer[st->layer];
    const cpu_mat *m = cpu__mat(r, &l->router);
    uint32_t t0, t1, tiles = cpu__tiles(s->n_experts);
    cpu__share(r, r->rows, &t0, &t1);
    for (uint32_t t = t0; t < t1; t++) {
        cpu_in in;
        float *logit = r->p->route + (size_t)t * tiles * CPU_LANES;
        cpu__prepare(r, r->p->x + (size_t)t * s->dim, s->dim, NULL, 1, s->dim, l->ffn_norm,
                     cpu__want(r, m), &in);
        cpu__product(r, m, 0, 0, tiles, &in, logit, (size_t)tiles * CPU_LANES);
        choose(r, logit, s->n_experts, s->n_experts_used, (st->flags & HT_RENORM) != 0,
               r->p->r + (size_t)t * s->n_experts_used);
    }
}

/* (row, choice) pairs that chose expert e, as row*topk + choice, ascending. */
static uint32_t takers(const cpu_run *r, uint32_t e, uint32_t *list)
{
    uint32_t n = 0, k = r->p->m->spec.n_experts_used;
    for (uint32_t i = 0; i < r->rows * k; i++)
        if (r->p->r[i].id == e) list[n++] = i;
    return n;
}

/* H of listed pairs = act(gate x) * up x, this thread's tiles. src rows: pair / div. */
static void expert_up(cpu_run *r, const ht_stage *st, const ht_weight *gate, const ht_weight *up,
                      uint32_t e, const uint32_t *list, uint32_t n, uint32_t div, float *h)
{
    const ht_spec *s = &r->p->m->spec;
    const ht_layer *l = &r->p->m->layer[st->layer];
    const cpu_mat *g = cpu__mat(r, gate), *u = cpu__mat(r, up);
    unsigned want = cpu__want(r, g) | cpu__want(r, u);
    uint32_t i0, i1, at[CPU_BLOCK];
    cpu__share(r, cpu__tiles(g->rows), &i0, &i1);
    for (uint32_t t = 0, nb; t < n; t += nb) {
        cpu_in in;
        nb = cpu__block(r, t, n);
        for (uint32_t j = 0; j < nb; j++) at[j] = list[t + j] / div;
        cpu__prepare(r, r->p->x, s->dim, at, nb, s->dim, l->ffn_norm, want, &in);
        for (uint32_t i = i0; i < i1 && !cpu__cancelled(r); i += CPU_SLAB) {
            uint32_t end = i + CPU_SLAB < i1 ? i + CPU_SLAB : i1, row = i * CPU_LANES;
            uint32_t cols = (end * CPU_LANES < g->rows ? end * CPU_LANES : g->rows) - row;
            size_t ldc = (size_t)(end - i) * CPU_LANES;
            cpu__product(r, g, e, i, end, &in, r->s->c0, ldc);
            cpu__product(r, u, e, i, end, &in, r->s->c1, ldc);
            for (uint32_t j = 0; j < nb; j++)
                (st->flags & HT_GELU ? r->k->gelu_mul
                                     : r->k->silu_mul)(r->s->c0 + j * ldc, r->s->c1 + j * ldc, cols,
                                                       h + (size_t)list[t + j] * g->rows + row);
        }
    }
}

/* The shared expert's gate: a sigmoid of one output, by rows. */
static void shared_gate(cpu_run *r, const ht_stage *st)
{
    const ht_spec *s = &r->p->m->spec;
    const ht_layer *l = &r->p->m->layer[st->layer];
    const cpu_mat *m = cpu__mat(r, &l->s_router);
    uint32_t t0, t1;
    cpu__share(r, r->rows, &t0, &t1);
    for (uint32_t t = t0; t < t1; t++) {
        cpu_in in;
        cpu__prepare(r, r->p->x + (size_t)t * s->dim, s->dim, NULL, 1, s->dim, l->ffn_norm,
                     cpu__want(r, m), &in);
        cpu__product(r, m, 0, 0, 1, &in, r->s->c0, CPU_LANES);
        r->p->sgate[t] = 1.0f / (1.0f + r->k->exp(-r->s->c0[0]));
    }
}

void cpu__experts_up(cpu_run *r, const ht_stage *st)
{
    const ht_spec *s = &r->p->m->spec;
    const ht_layer *l = &r->p->m->layer[st->layer];
    for (uint32_t e = 0; e < s->n_experts && !cpu__cancelled(r); e++) {
        uint32_t n = takers(r, e, r->s->list);
        expert_up(r, st, &l->e_gate, &l->e_up, e, r->s->list, n, s->n_experts_used, r->p->h);
    }
    if (!(st->flags & HT_SHARED)) return;
    for (uint32_t t = 0; t < r->rows; t++) r->s->list[t] = t;
    expert_up(r, st, &l->s_gate, &l->s_up, 0, r->s->list, r->rows, 1, shared_hidden(r));
    shared_gate(r, st);
}

/* y[row] += w * down(h) of the listed pairs, this thread's tiles. w: R's, or the shared gate's. */
static void expert_down(cpu_run *r, const ht_weight *down, uint32_t e, const uint32_t *list,
                        uint32_t n, bool shared, const float *h)
{
    const ht_spec *s = &r->p->m->spec;
    const cpu_mat *m = cpu__mat(r, down);
    uint32_t div = shared ? 1 : s->n_experts_used;
    uint32_t i0, i1;
    cpu__share(r, cpu__tiles(m->rows), &i0, &i1);
    for (uint32_t t = 0, nb; t < n; t += nb) {
        cpu_in in;
        nb = cpu__block(r, t, n);
        cpu__prepare(r, h, m->cols, list + t, nb, m->cols, NULL, cpu__want(r, m), &in);
        for (uint32_t i = i0; i < i1 && !cpu__cancelled(r); i += CPU_SLAB) {
            uint32_t end = i + CPU_SLAB < i1 ? i + CPU_SLAB : i1, row = i * CPU_LANES;
            uint32_t cols = (end * CPU_LANES < m->rows ? end * CPU_LANES : m->rows) - row;
            size_t ldc = (size_t)(end - i) * CPU_LANES;
            cpu__product(r, m, e, i, end, &in, r->s->c0, ldc);
            for (uint32_t j = 0; j < nb; j++) {
                uint32_t pair = list[t + j];
                float w = shared ? r->p->sgate[pair] : r->p->r[pair].w;
                r->k->scale_add(r->s->c0 + j * ldc, w, cols,
                                r->p->y + (size_t)(pair / div) * s->dim + row);
            }
        }
    }
}

void cpu__experts_down(cpu_run *r, const ht_stage *st)
{
    const ht_spec *s = &r->p->m->spec;
    const ht_layer *l = &r->p->m->layer[st->layer];
    uint32_t i0, i1;
    cpu__share(r, cpu__tiles(s->dim), &i0, &i1);
    uint32_t row = i0 * CPU_LANES, end = i1 * CPU_LANES < s->dim ? i1 * CPU_LANES : s->dim;
    if (row >= end) return;
    for (uint32_t t = 0; t < r->rows; t++)
        memset(r->p->y + (size_t)t * s->dim + row, 0, (end - row) * sizeof(float));
    for (uint32_t e = 0; e < s->n_experts && !cpu__cancelled(r); e++) {
        uint32_t n = takers(r, e, r->s->list);
        expert_down(r, &l->e_down, e, r->s->list, n, false, r->p->h);
    }
    if (st->flags & HT_SHARED) {
        for (uint32_t t = 0; t < r->rows; t++) r->s->list[t] = t;
        expert_down(r, &l->s_down, 0, r->s->list, r->rows, true, shared_hidden(r));
    }
    for (uint32_t t = 0; t < r->rows && !(st->flags & HT_POSTNORM); t++)
        r->k->add(r->p->y + (size_t)t * s->dim + row, end - row,
                  r->p->x + (size_t)t * s->dim + row);
}
