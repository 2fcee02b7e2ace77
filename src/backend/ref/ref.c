/* ref.c - the backend "ref": its spans (one a kind, none for SAMPLE, which has its oracle on the
 * host) and its device, which is nothing but the model. */
#include "backend/ref/ref.h"

#include <stdio.h>

static size_t covers_kind(const ht_stage *at, size_t left, const ht_bucket *b, int kind)
{
    if (left == 0 || at->kind != kind || b->steps > 1) return 0;
    return b->act == HT_ACT_F32 || b->act == HT_ACT_Q8;
}

static void bound(const ht_dev *dev, const ht_model *m, const ht_stage *at, size_t n,
                  const ht_bucket *b, uint64_t *bytes, uint64_t *flops)
{
    (void)dev;
    (void)n; /* always 1 */
    ht_stage_bound(m, at, b, bytes, flops);
}

#define SPAN(fn_name, kind)                                                                        \
    static size_t covers_##fn_name(const ht_dev *dev, const ht_model *m, const ht_stage *at,       \
                                   size_t left, const ht_bucket *b)                                \
    {                                                                                              \
        (void)dev;                                                                                 \
        (void)m;                                                                                   \
        return covers_kind(at, left, b, kind);                                                     \
    }                                                                                              \
    static int encode_##fn_name(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)               \
    {                                                                                              \
        (void)n;                                                                                   \
        return ref__encode(p, at, ref__##fn_name, e);                                              \
    }                                                                                              \
    static const ht_span span_##fn_name = {#fn_name ".ref", covers_##fn_name, bound,               \
                                           encode_##fn_name};
SPAN(embed, HT_EMBED)
SPAN(qkv, HT_QKV)
SPAN(attn, HT_ATTN)
SPAN(attn_out, HT_ATTN_OUT)
SPAN(ffn_up, HT_FFN_UP)
SPAN(ffn_down, HT_FFN_DOWN)
SPAN(route, HT_ROUTE)
SPAN(experts, HT_EXPERTS)
SPAN(pick, HT_PICK)
SPAN(head, HT_HEAD)
#undef SPAN

static const ht_span *const spans[] = {
    &span_embed, &span_qkv,     &span_attn, &span_attn_out, &span_ffn_up, &span_ffn_down,
    &span_route, &span_experts, &span_pick, &span_head,     NULL,
};

/* Options (threads, isa) do not concern a scalar engine; they are accepted so that callers need not
 * know which engine they open. */
static int open_dev(ht_dev **out, const char *opts, ht_err *e)
{
    (void)opts;
    *out = ht_mem_alloc(sizeof **out);
    return *out ? 0 : HT_FAIL(e, HT_ENOMEM, "ref: out of memory");
}

static int load(ht_dev *dev, const ht_model *m, ht_err *e)
{
    (void)e;
    dev->model = m;
    return 0;
}

static void close_dev(ht_dev *dev)
{
    ht_mem_free(dev);
}

static int describe(const ht_dev *dev, char *json, size_t cap)
{
    (void)dev;
    int n = snprintf(json, cap, "{\"isa\":\"scalar\",\"kernels\":\"ref\",\"threads\":1}");
    return n > 0 && (size_t)n < cap ? 0 : HT_EARG;
}

const ht_backend ht_backend_ref = {
    .name = "ref",
    .spans = spans,
    .open = open_dev,
    .load = load,
    .footprint = ref__footprint,
    .kv_alloc = ht_host_kv_alloc,
    .kv_attach = ht_host_kv_attach,
    .plan = ref__plan,
    .reg = ref__reg,
    .run = ref__run,
    .wait = ref__wait,
    .tokens = ref__tokens,
    .stats = ref__stats,
    .describe = describe,
    .cancel = ref__cancel,
    .page_copy = ht_host_page_copy,
    .page_io = ht_host_page_io,
    .kv_move = ht_host_kv_move,
    .plan_free = ref__plan_free,
    .close = close_dev,
};
