/* span.c - what the engine can run: the whole tape of a dense model at a bucket's rows, for one
 * prompt that begins at position 0. Everything else is refused, so that it runs where it belongs.
 * Parts of the tape are covered on a device opened for experiments only. */
#include "backend/graph/graph.h"

const uint16_t graph__buckets[GRAPH_BUCKETS + 1] = {32, 128, 512, 2048, 0};

/* Activations are quantised in front of integer weights only. */
static bool has_integers(const ht_dev *d, const ht_model *m)
{
    graph_const c;
    return m->spec.n_layers && m->layer[0].o.data &&
           !graph__const(d, NULL, &m->layer[0].o, false, &c, NULL) && c.group;
}

static bool takes_bucket(const ht_dev *d, const ht_model *m, const ht_bucket *b)
{
    bool known = false;
    for (int i = 0; i < GRAPH_BUCKETS; i++) known = known || b->rows == graph__buckets[i];
    const int k = b->kv_fmt & 0xff, v = b->kv_fmt >> 8;
    const bool types = (k == HT_KV_F32 || k == HT_KV_F16) && (v == HT_KV_F32 || v == HT_KV_F16);
    const bool act = b->act == HT_ACT_F32 ||
                     (b->act == HT_ACT_Q8 && d->vnni && has_integers(d, m)) ||
                     (b->act == HT_ACT_BF16 && d->bf16) || b->act == HT_ACT_INT8;
    return known && types && act && b->past == 0 && b->seqs == 1 && b->steps <= 1 &&
           b->ctx >= b->rows && b->want <= b->rows && !(b->flags & HT_WANT_MASS) &&
           m->spec.n_kv_heads && m->spec.n_heads % m->spec.n_kv_heads == 0;
}

static bool takes_stage(const ht_stage *s)
{
    enum { KNOWN = HT_BIAS | HT_QKNORM | HT_WINDOW | HT_CAP | HT_POSTNORM | HT_GELU };
    return s->kind != HT_ROUTE && s->kind != HT_EXPERTS && s->kind != HT_SAMPLE &&
           !(s->flags & ~(unsigned)KNOWN);
}

static size_t covers_prefill(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,
                             const ht_bucket *b)
{
    if (at->kind != HT_EMBED || left != ht_tape(m, NULL, 0) || !takes_bucket(d, m, b)) return 0;
    for (size_t i = 0; i < left; i++)
        if (!takes_stage(&at[i])) return 0;
    return left;
}

/* QKV and ATTN; ATTN_OUT, FFN_UP, FFN_DOWN; for per-layer offload. PICK and what follows it is no
 * part of them: its rows are known to the run, not to a register. */
static size_t covers_piece(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,
                           const ht_bucket *b)
{
    if (!d->pieces || !takes_bucket(d, m, b)) return 0;
    for (size_t i = 0; i < left && i < 3; i++)
        if (!takes_stage(&at[i])) return 0;
    if (left >= 2 && at[0].kind == HT_QKV && at[1].kind == HT_ATTN) return 2;
    if (left >= 3 && at[0].kind == HT_ATTN_OUT && at[1].kind == HT_FFN_UP &&
        at[2].kind == HT_FFN_DOWN)
        return 3;
    return 0;
}

static void bound(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t n,
                  const ht_bucket *b, uint64_t *bytes, uint64_t *flops)
{
    (void)d;
    *bytes = *flops = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t by, fl;
        ht_stage_bound(m, &at[i], b, &by, &fl);
        *bytes += by;
        *flops += fl;
    }
}

/* The cut itself is the plan: graph__plan reads it. */
static int encode(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    (void)p;
    (void)at;
    return n ? 0 : HT_FAIL(e, HT_EARG, "graph: an empty span");
}

static const ht_span prefill = {"prefill.graph", covers_prefill, bound, encode};
static const ht_span piece = {"piece.graph", covers_piece, bound, encode};
const ht_span *const graph__spans[] = {&prefill, &piece, NULL};

/* ---- memory ---------------------------------------------------------------------------------- */

/* Bytes of a matrix in the compiler's own order: f32, or integers with their scales. */
static uint64_t packed(const ht_dev *d, const ht_model *m, const ht_weight *w0, const ht_bucket *b)
{
    const ht_weight *w = (b->flags & HT_ALT_REP) && w0->alt ? w0->alt : w0;
    graph_const c;
    if (graph__const(d, NULL, w, graph__narrow(m, b, w0), &c, NULL))
        return 0; /* without memory it cannot fail */
    const uint64_t n = (uint64_t)w->rows * w->cols;
    if (c.group) return c.bytes + n / c.group * sizeof(float);
    return 4 * n;
}

/* A compiled graph holds every matrix in an order of its own, one per bucket: compiled models share
 * nothing. While it is compiled, and until its first run has put them in that order, the constants
 * stand beside it. */
int graph__footprint(const ht_dev *d, const ht_model *m, const ht_stage *tape, size_t n,
                     const ht_bucket *b, ht_footprint *out, ht_err *e)
{
    const ht_spec *s = &m->spec;
    uint64_t w = 0;
    (void)tape;
    (void)n;
    (void)e;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        const ht_layer *l = &m->layer[i];
        const ht_weight *of[7] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (int k = 0; k < 7; k++)
            if (of[k]->data) w += packed(d, m, of[k], b);
    }
    w += packed(d, m, &m->head, b);
    const uint64_t nq = (uint64_t)s->n_heads * s->head_dim;
    const uint64_t nkv = (uint64_t)s->n_kv_heads * s->head_dim;
    const uint64_t row = 4 * (4 * (uint64_t)s->dim + 4 * nq + 4 * nkv + 3 * (uint64_t)s->ffn);
    *out = (ht_footprint){.in_place = m->embed.bytes,
                          .making = w,
                          .scratch = w + b->rows * row + 4 * (uint64_t)s->vocab};
    return 0;
}
