/* span.c - what the engine can run: a plain span per kind, made of small dispatches, and fused
 * spans over several stages. Fused spans need nothing but heads of whole tiles; the plain ones take
 * any shape and are what the fused ones are compared with. Both give the same bits. */
#include "backend/cpu/cpu.h"

enum {
    KNOWN = HT_BIAS | HT_QKNORM | HT_WINDOW | HT_CAP | HT_POSTNORM | HT_GELU | HT_RENORM | HT_SHARED
};

static bool takes(const ht_stage *at, size_t left, const ht_bucket *b, int kind)
{
    return left > 0 && at->kind == kind && !(at->flags & ~(unsigned)KNOWN) && b->steps <= 1 &&
           (b->act == HT_ACT_F32 || b->act == HT_ACT_Q8);
}

/* Floats that a plain span writes for its own next dispatch, per row: they cross memory twice. */
static uint64_t between(const ht_spec *s, int kind)
{
    uint64_t kv = 2 * (uint64_t)s->n_kv_heads * s->head_dim;
    if (kind == HT_QKV) return s->dim + kv + (uint64_t)s->n_heads * s->head_dim;
    if (kind == HT_FFN_UP) return s->dim + 2 * (uint64_t)s->ffn;
    return kind == HT_HEAD ? s->dim : 0;
}
static void bound_plain(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t n,
                        const ht_bucket *b, uint64_t *bytes, uint64_t *flops)
{
    (void)d;
    (void)n; /* always 1 */
    ht_stage_bound(m, at, b, bytes, flops);
    if (*bytes)
        *bytes += 8 * between(&m->spec, at->kind) * (at->kind == HT_HEAD ? b->want : b->rows);
}
static void bound_sum(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t n,
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

/* ---- operations of a stage ------------------------------------------------------------------- */

typedef struct {
    cpu_fn fn[3];
} recipe;
static const recipe plain_ops[HT_KINDS] = {
    [HT_EMBED] = {{cpu__embed}},
    [HT_QKV] = {{cpu__norm_attn, cpu__qkv_p, cpu__qkv_f}},
    [HT_ATTN] = {{cpu__attn}},
    [HT_ATTN_OUT] = {{cpu__attn_out}},
    [HT_FFN_UP] = {{cpu__norm_ffn, cpu__ffn_up_p, cpu__ffn_up_f}},
    [HT_FFN_DOWN] = {{cpu__ffn_down}},
    [HT_ROUTE] = {{cpu__route}},
    [HT_EXPERTS] = {{cpu__experts_up, cpu__experts_down}},
    [HT_PICK] = {{cpu__pick}},
    [HT_HEAD] = {{cpu__norm_head, cpu__head_p}},
};
static const recipe fused_ops[HT_KINDS] = {
    [HT_QKV] = {{cpu__qkv}},
    [HT_FFN_UP] = {{cpu__ffn_up}},
    [HT_HEAD] = {{cpu__head}},
};

static int emit(ht_plan *p, const recipe *r, const ht_stage *st, ht_err *e)
{
    for (int i = 0; i < 3 && r->fn[i]; i++) HT_TRY(cpu__op(p, r->fn[i], st, e));
    if (st->flags & HT_POSTNORM) HT_TRY(cpu__op(p, cpu__post_norm, st, e));
    if (st->kind == HT_QKV && cpu__kv_layer_packs(p->kv, st->layer))
        HT_TRY(cpu__op(p, cpu__kv_pack, st, e));
    if (st->kind == HT_PICK) p->after_pick = true;
    return 0;
}
static int encode_plain(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    (void)n;
    return emit(p, &plain_ops[at->kind], at, e);
}
static int encode_fused(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    for (size_t i = 0; i < n; i++) {
        /* Nobody wants a row: the step ends when all keys and values are cached. */
        if (at[i].kind == HT_PICK && p->b.want == 0) break;
        const recipe *f = &fused_ops[at[i].kind];
        HT_TRY(emit(p, f->fn[0] ? f : &plain_ops[at[i].kind], &at[i], e));
    }
    return 0;
}

#define PLAIN(name, kind)                                                                          \
    static size_t covers_##name(const ht_dev *d, const ht_model *m, const ht_stage *at,            \
                                size_t left, const ht_bucket *b)                                   \
    {                                                                                              \
        (void)d;                                                                                   \
        (void)m;                                                                                   \
        return takes(at, left, b, kind);                                                           \
    }                                                                                              \
    static const ht_span span_##name = {#name ".plain.cpu", covers_##name, bound_plain,            \
                                        encode_plain};
PLAIN(embed, HT_EMBED)
PLAIN(qkv, HT_QKV)
PLAIN(attn, HT_ATTN)
PLAIN(attn_out, HT_ATTN_OUT)
PLAIN(ffn_up, HT_FFN_UP)
PLAIN(ffn_down, HT_FFN_DOWN)
PLAIN(route, HT_ROUTE)
PLAIN(experts, HT_EXPERTS)
PLAIN(pick, HT_PICK)
PLAIN(head, HT_HEAD)

/* QKV, PICK in the last layer, ATTN. */
static size_t covers_qkv_attn(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,
                              const ht_bucket *b)
{
    size_t n = 0;
    (void)d;
    if (m->spec.head_dim % CPU_LANES || !takes(at, left, b, HT_QKV)) return 0;
    n++;
    if (n < left && takes(at + n, left - n, b, HT_PICK)) n++;
    return n < left && takes(at + n, left - n, b, HT_ATTN) ? n + 1 : 0;
}
/* ATTN_OUT, FFN_UP, FFN_DOWN. */
static size_t covers_out_ffn(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,
                             const ht_bucket *b)
{
    (void)d;
    (void)m;
    bool ok = left >= 3 && takes(at, left, b, HT_ATTN_OUT) && takes(at + 1, left, b, HT_FFN_UP) &&
              takes(at + 2, left, b, HT_FFN_DOWN);
    return ok ? 3 : 0;
}
static size_t covers_ffn(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,
                         const ht_bucket *b)
{
    (void)d;
    (void)m;
    return left >= 2 && takes(at, left, b, HT_FFN_UP) && takes(at + 1, left, b, HT_FFN_DOWN) ? 2
                                                                                             : 0;
}
static const ht_span fused_qkv_attn = {"qkv_attn.cpu", covers_qkv_attn, bound_sum, encode_fused};
static const ht_span fused_out_ffn = {"out_ffn.cpu", covers_out_ffn, bound_sum, encode_fused};
static const ht_span fused_ffn = {"ffn.cpu", covers_ffn, bound_sum, encode_fused};
static const ht_span fused_head = {"head.cpu", covers_head, bound_sum, encode_fused};

/* Plain spans first: of equal costs a cover takes the first. */
const ht_span *const cpu__spans[] = {
    &span_embed,     &span_qkv,      &span_attn,    &span_attn_out, &span_ffn_up,
    &span_ffn_down,  &span_route,    &span_experts, &span_pick,     &span_head,
    &fused_qkv_attn, &fused_out_ffn, &fused_ffn,    &fused_head,    NULL,
};
