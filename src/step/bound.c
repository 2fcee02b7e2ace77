/* bound.c - the floor of a stage: the bytes that must cross memory once and the arithmetic that
 * must be done, from shapes alone. Never a prediction: performance.md 7 divides it by measured
 * machine rates. Norms, rotations and soft-max are counted in bytes but not in operations: they are
 * below one percent of a stage that multiplies matrices. */
#include "model/model.h"
#include "step/kvpool.h"
#include "step/step.h"

typedef struct {
    uint64_t bytes, flops;
} cost;

static const ht_weight *pick_rep(const ht_weight *w, const ht_bucket *b)
{
    return (b->flags & HT_ALT_REP) && w->alt ? w->alt : w;
}

/* A product of rows activations with n_mats matrices of w. */
static void add_proj(cost *c, const ht_weight *w0, const ht_bucket *b, uint64_t rows,
                     uint64_t n_mats)
{
    const ht_weight *w = pick_rep(w0, b);
    if (!w->data) return;
    c->bytes += w->mat_bytes * n_mats;
    c->flops += 2 * rows * w->rows * w->cols * n_mats;
}

/* Keys read by `rows` causal queries, and query-key pairs, of sequences that share the bucket's
 * rows evenly and begin them at position `past`. */
static void attn_extent(const ht_model *m, const ht_stage *s, const ht_bucket *b, uint64_t rows,
                        uint64_t *keys, uint64_t *pairs)
{
    uint64_t seqs = b->seqs ? b->seqs : 1, per = (b->rows + seqs - 1) / seqs;
    uint64_t gone = (s->flags & HT_WINDOW) || b->gone > b->past ? 0 : b->gone;
    uint64_t past = b->past - gone, last = past + per;
    uint64_t win = (s->flags & HT_WINDOW) ? m->spec.window : UINT32_MAX;
    /* Wanted rows behind PICK are taken to be the last ones of their sequences. */
    uint64_t mean = rows < b->rows ? last : past + (per + 1) / 2;
    uint64_t reach = win + (rows < b->rows ? 0 : per - 1);
    *keys = seqs * (last < reach ? last : reach);
    *pairs = rows * (mean < win ? mean : win);
}

/* Bytes of a position of all KV heads, K and V: as read, or as written (packed types raw). */
static uint64_t kv_row_bytes(const ht_bucket *b, const ht_spec *p, bool write)
{
    uint64_t sum = 0;
    for (int v = 0; v < 2; v++) {
        int type = v ? b->kv_fmt >> 8 : b->kv_fmt & 0xff;
        if (write && ht_kv_packs(type)) type = HT_KV_F16;
        sum += ht_kv_page_bytes(type, p->n_kv_heads, p->head_dim) / HT_PAGE;
    }
    return sum;
}

static void experts(cost *c, const ht_model *m, const ht_layer *l, const ht_stage *s,
                    const ht_bucket *b, uint64_t rows)
{
    uint64_t uses = rows * m->spec.n_experts_used;
    uint64_t touched = uses < m->spec.n_experts ? uses : m->spec.n_experts;
    const ht_weight *w[3] = {&l->e_gate, &l->e_up, &l->e_down};
    for (int i = 0; i < 3; i++) {
        const ht_weight *r = pick_rep(w[i], b);
        c->bytes += r->mat_bytes * touched;
        c->flops += 2 * uses * r->rows * r->cols;
    }
    if (s->flags & HT_SHARED) {
        add_proj(c, &l->s_gate, b, rows, 1);
        add_proj(c, &l->s_up, b, rows, 1);
        add_proj(c, &l->s_down, b, rows, 1);
        add_proj(c, &l->s_router, b, rows, 1);
    }
}

static void attn(cost *c, const ht_model *m, const ht_stage *s, const ht_bucket *b, uint64_t rows)
{
    const ht_spec *p = &m->spec;
    uint64_t keys, pairs;
    attn_extent(m, s, b, rows, &keys, &pairs);
    c->bytes += keys * kv_row_bytes(b, p, false);
    c->bytes += 2 * rows * p->n_heads * p->head_dim * 4;
    c->flops += 4 * pairs * p->n_heads * p->head_dim;
}

/* Rows a stage works on: the bucket's, or the wanted ones after PICK. A stage of the last layer
 * behind its QKV is behind PICK. */
static uint64_t stage_rows(const ht_model *m, const ht_stage *s, const ht_bucket *b)
{
    bool last = s->layer >= 0 && (uint32_t)s->layer + 1 == m->spec.n_layers;
    bool behind = (last && s->kind != HT_QKV) || s->kind == HT_HEAD || s->kind == HT_PICK ||
                  s->kind == HT_SAMPLE;
    return behind ? b->want : b->rows;
}

void ht_stage_bound(const ht_model *m, const ht_stage *s, const ht_bucket *b, uint64_t *bytes,
                    uint64_t *flops)
{
    const ht_spec *p = &m->spec;
    const ht_layer *l = s->layer >= 0 ? &m->layer[s->layer] : NULL;
    uint64_t rows = stage_rows(m, s, b), x = rows * p->dim * 4,
             q = rows * p->n_heads * p->head_dim * 4;
    cost c = {0, 0};

    *bytes = *flops = 0;
    if (rows == 0) return;
    switch (s->kind) {
    case HT_EMBED: c.bytes = x + rows * (pick_rep(&m->embed, b)->mat_bytes / p->vocab); break;
    case HT_QKV:
        add_proj(&c, &l->q, b, rows, 1);
        add_proj(&c, &l->k, b, rows, 1);
        add_proj(&c, &l->v, b, rows, 1);
        c.bytes += x + q + rows * kv_row_bytes(b, p, true);
        break;
    case HT_ATTN: attn(&c, m, s, b, rows); break;
    case HT_ATTN_OUT:
        add_proj(&c, &l->o, b, rows, 1);
        c.bytes += q + 2 * x;
        break;
    case HT_FFN_UP:
        add_proj(&c, &l->gate, b, rows, 1);
        add_proj(&c, &l->up, b, rows, 1);
        c.bytes += x + rows * p->ffn * 4;
        break;
    case HT_FFN_DOWN:
        add_proj(&c, &l->down, b, rows, 1);
        c.bytes += rows * p->ffn * 4 + 2 * x;
        break;
    case HT_ROUTE:
        add_proj(&c, &l->router, b, rows, 1);
        c.bytes += x + rows * p->n_experts_used * sizeof(ht_choice);
        break;
    case HT_EXPERTS:
        experts(&c, m, l, s, b, rows);
        c.bytes += 2 * x;
        break;
    case HT_PICK: c.bytes = 2 * (x + q); break;
    case HT_HEAD:
        add_proj(&c, &m->head, b, rows, 1);
        c.bytes += x + rows * p->vocab * 4;
        break;
    case HT_SAMPLE: c.bytes = rows * p->vocab * 4; break;
    default: break;
    }
    *bytes = c.bytes;
    *flops = c.flops;
}
