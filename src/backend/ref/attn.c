/* attn.c - QKV and ATTN: the two stages that touch the KV cache. A cached position is found through
 * its sequence's page table; inside a page elements lie [kv_head][position][head_dim]. */
#include "backend/ref/ref.h"
#include "step/kvcodec.h"

#include <math.h>

static uint32_t page_of(const ht_plan *p, int layer, uint32_t seq, uint32_t pos)
{
    uint32_t n_table = (p->b.ctx + HT_PAGE - 1) / HT_PAGE;
    return p->batch->page[p->kv->layer_class[layer]][(size_t)seq * n_table + pos / HT_PAGE];
}

/* The F16 or F32 rows of a head: of its page, or of the raw slot of a packed type. */
static uint8_t *row_at(const ht_plan *p, int layer, int is_v, uint32_t page_id, uint32_t head,
                       uint32_t pos, size_t elem)
{
    uint8_t *rows = ht_kv_head(p->kv, (uint32_t)layer, is_v, page_id, head, true);
    return rows ? rows + (size_t)(pos % HT_PAGE) * p->kv->head_dim * elem : NULL;
}

static void store(ht_plan *p, int layer, int is_v, uint32_t seq, uint32_t pos, uint32_t head,
                  const float *v)
{
    const ht_kv *kv = p->kv;
    bool wide = kv->type[layer][is_v] == HT_KV_F32;
    uint8_t *at =
        row_at(p, layer, is_v, page_of(p, layer, seq, pos), head, pos, wide ? sizeof *v : 2);
    for (uint32_t i = 0; i < kv->head_dim; i++) {
        if (wide) ((float *)(void *)at)[i] = v[i];
        else ((uint16_t *)(void *)at)[i] = ht_f32_to_f16(v[i]);
    }
}

/* The vector of a cached position as a query at position `by` reads it. */
static void load(const ht_plan *p, int layer, int is_v, uint32_t page_id, uint32_t pos,
                 uint32_t head, uint32_t by, float *v)
{
    const ht_kv *kv = p->kv;
    int type = kv->type[layer][is_v];
    if (ht_kv_packs(type) && ht_kv_reads_packed(by, pos / HT_PAGE)) {
        ht_kv_unpack(type, is_v, kv->head_dim,
                     ht_kv_head(kv, (uint32_t)layer, is_v, page_id, head, false), pos % HT_PAGE, v);
        return;
    }
    bool wide = type == HT_KV_F32;
    const uint8_t *at = row_at(p, layer, is_v, page_id, head, pos, wide ? sizeof *v : 2);
    for (uint32_t i = 0; i < kv->head_dim; i++)
        v[i] = wide ? ((const float *)(const void *)at)[i]
                    : ht_f16_to_f32(((const uint16_t *)(const void *)at)[i]);
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

static void turn_signs(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] *= ht_kv_sign(i);
}

/* Bias, per-head norm and rotation of the heads of one row, in the order of the families that have
 * them: norm before rotation (Qwen3, Gemma 3). keys: of K, which may be stored less its mean. */
static void finish_heads(ht_plan *p, const ht_stage *st, bool keys, float *row, uint32_t heads,
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
        const float *mean = keys ? ht_kv_mean(p->kv, (uint32_t)st->layer, k) : NULL;
        for (uint32_t i = 0; mean && i < s->head_dim; i++) head[i] -= mean[i];
        int type = p->kv->type[st->layer][0];
        if (ht_kv_signs(type)) turn_signs(head, s->head_dim);
        if (ht_kv_rotates(type, s->head_dim)) hadamard(head, s->head_dim, scale);
    }
}

/* Pack what the rows of the batch read packed of this layer. */
static void pack_pages(ht_plan *p, const ht_stage *st)
{
    const ht_batch *b = p->batch;
    struct ht_batch_view view = {b->rows, (p->b.ctx + HT_PAGE - 1) / HT_PAGE, b->pos, b->seq,
                                 b->page};
    uint32_t n = ht_kv_todo_of(p->kv, &view, p->todo, p->cap_todo);
    for (uint32_t i = 0; i < n; i++)
        for (int v = 0; v < 2 && p->todo[i].kv_class == p->kv->layer_class[st->layer]; v++)
            for (uint32_t h = 0; h < p->kv->n_kv_heads; h++)
                if (ht_kv_packs(p->kv->type[st->layer][v]))
                    ht_kv_pack_head(p->kv, (uint32_t)st->layer, v, p->todo[i].id, h);
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
        finish_heads(p, st, false, p->q + (size_t)t * nq, s->n_heads, l->q_bias, l->q_norm, scale_q,
                     r);
        finish_heads(p, st, true, kt, s->n_kv_heads, l->k_bias, l->k_norm, scale_k, r);
        for (uint32_t i = 0; (st->flags & HT_BIAS) && i < nkv; i++) vt[i] += l->v_bias[i];
        for (uint32_t h = 0; h < s->n_kv_heads; h++) {
            float *vh = vt + (size_t)h * s->head_dim;
            if (ht_kv_rotates_v(p->kv->type[st->layer][1])) {
                turn_signs(vh, s->head_dim);
                hadamard(vh, s->head_dim, scale_k);
            }
            store(p, st->layer, 0, seq, pos, h, kt + (size_t)h * s->head_dim);
            store(p, st->layer, 1, seq, pos, h, vh);
        }
    }
    pack_pages(p, st);
}

/* First key that a query at pos sees: its own position is the last. */
static uint32_t first_key(const ht_plan *p, const ht_stage *st, uint32_t pos)
{
    uint32_t w = p->m->spec.window;
    return (st->flags & HT_WINDOW) && pos + 1 > w ? pos + 1 - w : 0;
}

/* Add what a query at pos gave to each page that the sequence holds (ht_batch.mass). */
static void note(const ht_plan *p, const ht_stage *st, uint32_t seq, uint32_t base, uint32_t pos,
                 double top, double sum, float *mass)
{
    for (uint32_t page = 0, n = 0; page <= pos / HT_PAGE; page++) {
        if (page_of(p, st->layer, seq, page * HT_PAGE) == HT_NOPAGE) continue;
        double all = 0;
        for (uint32_t k = page * HT_PAGE; k <= pos && k / HT_PAGE == page; k++)
            all += exp(p->score[k - base] - top) / sum;
        if (n < p->b.held) mass[n++] += (float)all;
    }
}

/* Soft-max attention of one query head over keys [from, pos], whose vectors start at key `base` in
 * p->keys and p->vals. Positions on evicted pages do not exist. mass: NULL, or where to add what
 * the pages got; from is 0 then. */
static void attend(ht_plan *p, const ht_stage *st, uint32_t seq, uint32_t base, uint32_t from,
                   uint32_t pos, const float *q, float *out, float *mass)
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
    if (mass && sum > 0) note(p, st, seq, base, pos, top, sum, mass);
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

/* The keys and values [lo, hi] of a head as a query at position `by` reads them. */
static void gather(ht_plan *p, const ht_stage *st, uint32_t seq, uint32_t head, uint32_t lo,
                   uint32_t hi, uint32_t by)
{
    uint32_t d = p->m->spec.head_dim;
    for (uint32_t k = lo; k <= hi; k++) {
        uint32_t page = page_of(p, st->layer, seq, k);
        if (page == HT_NOPAGE) continue;
        load(p, st->layer, 0, page, k, head, by, p->keys + (size_t)(k - lo) * d);
        load(p, st->layer, 1, page, k, head, by, p->vals + (size_t)(k - lo) * d);
    }
}

/* What a row reads of a packed type changes with the page its position lies in. */
static void attend_rows(ht_plan *p, const ht_stage *st, uint32_t seq, uint32_t kv_head,
                        uint32_t base, uint32_t last)
{
    const ht_spec *s = &p->m->spec;
    uint32_t group = s->n_heads / s->n_kv_heads, d = s->head_dim, view = UINT32_MAX;
    const uint8_t *type = p->kv->type[st->layer];
    bool views = ht_kv_packs(type[0]) || ht_kv_packs(type[1]);
    float scale[2]; /* K, Q */
    ht_kv_rotation(d, &scale[0], &scale[1]);
    for (uint32_t t = 0; t < p->rows; t++) {
        uint32_t r = p->row[t], pos = (uint32_t)p->batch->pos[r];
        if (p->batch->seq[r] != seq) continue;
        if (ref__cancelled(p)) return;
        if (view == UINT32_MAX || (views && pos / HT_PAGE != view))
            gather(p, st, seq, kv_head, base, last, pos);
        view = pos / HT_PAGE;
        const bool seen = !(st->flags & HT_WINDOW) && (uint32_t)st->layer + 1 < s->n_layers;
        float *mass =
            seen ? ht_batch_mass(&p->b, p->batch, seq, pos, s->n_kv_heads, kv_head) : NULL;
        for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
            size_t at = ((size_t)t * s->n_heads + h) * d;
            attend(p, st, seq, base, first_key(p, st, pos), pos, p->q + at, p->a + at, mass);
            if (!ht_kv_rotates_v(type[1])) continue;
            hadamard(p->a + at, d, scale[1]);
            turn_signs(p->a + at, d);
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
        for (uint32_t g = 0; g < s->n_kv_heads; g++) attend_rows(p, st, seq, g, lo, hi);
    }
}
