/* attn.c - QKV and ATTN: the two stages that touch the KV cache. A cached position is found through
 * its sequence's page table; inside a page elements lie [kv_head][position][head_dim]. */
#include "backend/ref/ref.h"

#include <math.h>

static uint32_t page_of(const ht_plan *p, int layer, uint32_t seq, uint32_t pos)
{
    uint32_t n_table = (p->b.ctx + HT_PAGE - 1) / HT_PAGE;
    return p->batch->page[p->kv->layer_class[layer]][(size_t)seq * n_table + pos / HT_PAGE];
}

/* Element index, in its plane's page, of a position of a head. */
static size_t in_page(const ht_kv *kv, uint32_t head, uint32_t pos)
{
    return ((size_t)head * HT_PAGE + pos % HT_PAGE) * kv->head_dim;
}

static void store(ht_plan *p, int layer, int is_v, uint32_t seq, uint32_t pos, uint32_t head,
                  const float *v)
{
    const ht_kv *kv = p->kv;
    uint8_t *page =
        kv->plane[layer][is_v] + page_of(p, layer, seq, pos) * kv->page_bytes[layer][is_v];
    size_t at = in_page(kv, head, pos);
    for (uint32_t i = 0; i < kv->head_dim; i++) {
        if (kv->type[layer][is_v] == HT_KV_F16)
            ((uint16_t *)(void *)page)[at + i] = ht_f32_to_f16(v[i]);
        else ((float *)(void *)page)[at + i] = v[i];
    }
}

static void load(const ht_plan *p, int layer, int is_v, uint32_t page_id, uint32_t pos,
                 uint32_t head, float *v)
{
    const ht_kv *kv = p->kv;
    const uint8_t *page = kv->plane[layer][is_v] + page_id * kv->page_bytes[layer][is_v];
    size_t at = in_page(kv, head, pos);
    for (uint32_t i = 0; i < kv->head_dim; i++) {
        if (kv->type[layer][is_v] == HT_KV_F16)
            v[i] = ht_f16_to_f32(((const uint16_t *)(const void *)page)[at + i]);
        else v[i] = ((const float *)(const void *)page)[at + i];
    }
}

/* Walsh-Hadamard transform in place, n a power of two; kvpool.h says why and with which scale. */
static void hadamard(float *x, uint32_t n, float scale)
{
    for (uint32_t h = 1; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j++) {
                float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
    for (uint32_t i = 0; i < n; i++) x[i] *= scale;
}

/* Bias, per-head norm and rotation of the heads of one row, in the order of the families that have
 * them: norm before rotation (Qwen3, Gemma 3). */
static void finish_heads(ht_plan *p, const ht_stage *st, float *row, uint32_t heads,
                         const float *bias, const float *norm, float scale, uint32_t batch_row)
{
    const ht_spec *s = &p->m->spec;
    const ht_batch *b = p->batch;
    uint8_t rope = s->layer[st->layer].rope;
    bool lengthy = b->rope_long && b->rope_long[b->seq[batch_row]];
    for (uint32_t i = 0; (st->flags & HT_BIAS) && i < heads * s->head_dim; i++) row[i] += bias[i];
    for (uint32_t k = 0; k < heads; k++) {
        float *head = row + (size_t)k * s->head_dim;
        if (st->flags & HT_QKNORM) ref__norm(head, norm, s->head_dim, s->rms_eps, head);
        if (rope < HT_ROPES) ref__rotate(head, &s->rope[rope], b->pos[batch_row], lengthy);
        if (ht_kv_rotates(p->kv->type[st->layer][0], s->head_dim))
            hadamard(head, s->head_dim, scale);
    }
}

/* X -> Q, cache: norm, three projections, bias, per-head norm, rotation; K and V into the pages. */
void ref__qkv(ht_plan *p, const ht_stage *st)
{
    const ht_spec *s = &p->m->spec;
    const ht_layer *l = &p->m->layer[st->layer];
    uint32_t nq = s->n_heads * s->head_dim, nkv = s->n_kv_heads * s->head_dim;
    float *xn = p->t0, *k = p->t1, *v = p->t2, scale_k, scale_q;
    ht_kv_rotation(s->head_dim, &scale_k, &scale_q);
    for (uint32_t t = 0; t < p->rows; t++)
        ref__norm(p->x + (size_t)t * s->dim, l->attn_norm, s->dim, s->rms_eps,
                  xn + (size_t)t * s->dim);
    ref__project(p, &l->q, 0, xn, p->rows, p->q, nq);
    ref__project(p, &l->k, 0, xn, p->rows, k, nkv);
    ref__project(p, &l->v, 0, xn, p->rows, v, nkv);
    if (ref__cancelled(p)) return;
    for (uint32_t t = 0; t < p->rows; t++) {
        uint32_t r = p->row[t], seq = p->batch->seq[r], pos = (uint32_t)p->batch->pos[r];
        float *kt = k + (size_t)t * nkv, *vt = v + (size_t)t * nkv;
        finish_heads(p, st, p->q + (size_t)t * nq, s->n_heads, l->q_bias, l->q_norm, scale_q, r);
        finish_heads(p, st, kt, s->n_kv_heads, l->k_bias, l->k_norm, scale_k, r);
        for (uint32_t i = 0; (st->flags & HT_BIAS) && i < nkv; i++) vt[i] += l->v_bias[i];
        for (uint32_t h = 0; h < s->n_kv_heads; h++) {
            store(p, st->layer, 0, seq, pos, h, kt + (size_t)h * s->head_dim);
            store(p, st->layer, 1, seq, pos, h, vt + (size_t)h * s->head_dim);
        }
    }
}

/* First key that a query at pos sees: its own position is the last. */
static uint32_t first_key(const ht_plan *p, const ht_stage *st, uint32_t pos)
{
    uint32_t w = p->m->spec.window;
    return (st->flags & HT_WINDOW) && pos + 1 > w ? pos + 1 - w : 0;
}

/* Soft-max attention of one query head over keys [from, pos], whose vectors start at key `base` in
 * p->keys and p->vals. Positions on evicted pages do not exist. */
static void attend(ht_plan *p, const ht_stage *st, uint32_t seq, uint32_t base, uint32_t from,
                   uint32_t pos, const float *q, float *out)
{
    const ht_spec *s = &p->m->spec;
    uint32_t d = s->head_dim;
    double top = -INFINITY, sum = 0;
    for (uint32_t k = from; k <= pos; k++) {
        double v = -INFINITY;
        if (page_of(p, st->layer, seq, k) != HT_NOPAGE) {
            v = ref__dot(q, p->keys + (size_t)(k - base) * d, d) * (double)s->attn_scale;
            if (st->flags & HT_CAP) v = (double)s->attn_cap * tanh(v / (double)s->attn_cap);
        }
        p->score[k - base] = v;
        if (v > top) top = v;
    }
    double acc[256];
    for (uint32_t i0 = 0; i0 < d;
         i0 += 256) { /* wide heads in parts: no array by the file's number */
        uint32_t n = d - i0 < 256 ? d - i0 : 256;
        for (uint32_t i = 0; i < n; i++) acc[i] = 0;
        sum = 0;
        for (uint32_t k = from; k <= pos; k++) {
            double w = isinf(top) ? 0 : exp(p->score[k - base] - top);
            sum += w;
            const float *v = p->vals + (size_t)(k - base) * d + i0;
            for (uint32_t i = 0; i < n && w != 0; i++) acc[i] += w * (double)v[i];
        }
        for (uint32_t i = 0; i < n; i++) out[i0 + i] = sum > 0 ? (float)(acc[i] / sum) : 0;
    }
    if (!(p->b.flags & HT_WANT_MASS) || !p->batch->mass || !(sum > 0)) return;
    uint32_t n_table = (p->b.ctx + HT_PAGE - 1) / HT_PAGE;
    float *mass = p->batch->mass + ((size_t)st->layer * p->batch->seqs + seq) * n_table;
    for (uint32_t k = from; k <= pos; k++)
        mass[k / HT_PAGE] += (float)(exp(p->score[k - base] - top) / sum);
}

/* Keys [lo, hi] of one sequence that the current rows read; false: it has no row. */
static bool extent(const ht_plan *p, const ht_stage *st, uint32_t seq, uint32_t *lo, uint32_t *hi)
{
    bool any = false;
    for (uint32_t t = 0; t < p->rows; t++) {
        uint32_t r = p->row[t], pos = (uint32_t)p->batch->pos[r];
        if (p->batch->seq[r] != seq) continue;
        uint32_t from = first_key(p, st, pos);
        if (!any || from < *lo) *lo = from;
        if (!any || pos > *hi) *hi = pos;
        any = true;
    }
    return any;
}

static void attend_rows(ht_plan *p, const ht_stage *st, uint32_t seq, uint32_t kv_head,
                        uint32_t base)
{
    const ht_spec *s = &p->m->spec;
    uint32_t group = s->n_heads / s->n_kv_heads, d = s->head_dim;
    for (uint32_t t = 0; t < p->rows; t++) {
        uint32_t r = p->row[t], pos = (uint32_t)p->batch->pos[r];
        if (p->batch->seq[r] != seq) continue;
        if (ref__cancelled(p)) return;
        for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
            size_t at = ((size_t)t * s->n_heads + h) * d;
            attend(p, st, seq, base, first_key(p, st, pos), pos, p->q + at, p->a + at);
        }
    }
}

/* Q, cache -> A: causal attention, query heads h of a group share KV head h / group. */
void ref__attn(ht_plan *p, const ht_stage *st)
{
    const ht_spec *s = &p->m->spec;
    for (uint32_t seq = 0; seq < p->batch->seqs; seq++) {
        uint32_t lo = 0, hi = 0;
        if (!extent(p, st, seq, &lo, &hi)) continue;
        for (uint32_t g = 0; g < s->n_kv_heads; g++) {
            for (uint32_t k = lo; k <= hi; k++) {
                uint32_t page = page_of(p, st->layer, seq, k);
                if (page == HT_NOPAGE) continue;
                load(p, st->layer, 0, page, k, g, p->keys + (size_t)(k - lo) * s->head_dim);
                load(p, st->layer, 1, page, k, g, p->vals + (size_t)(k - lo) * s->head_dim);
            }
            attend_rows(p, st, seq, g, lo);
        }
    }
}
