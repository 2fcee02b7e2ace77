/* ref.c - the backend "ref": its spans (one a kind, none for SAMPLE, which has its oracle on the host)
 * and its device, which is nothing but the model. */
#include "backend/ref/ref.h"

#include <stdio.h>
#include <string.h>

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

static int kv_alloc(ht_dev *dev, size_t bytes, void **mem, ht_err *e)
{
    (void)dev;
    *mem = ht_page_alloc(bytes);
    return *mem ? 0 : HT_FAIL(e, HT_ENOMEM, "ref: %zu MiB for the KV cache refused", bytes >> 20);
}

/* Any pool in host memory will do; the types are checked because a new one may appear. */
static int kv_attach(ht_dev *dev, ht_kv *kv, ht_err *e)
{
    (void)dev;
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (int v = 0; v < 2; v++)
            if (kv->type[i][v] != HT_KV_F32 && kv->type[i][v] != HT_KV_F16)
                return HT_FAIL(e, HT_EUNSUPPORTED, "ref does not read KV type %s",
                               ht_kvtype_name(kv->type[i][v]));
    return 0;
}

static int check_page(const ht_kv *kv, int kv_class, uint32_t page, ht_err *e)
{
    if (kv_class < 0 || kv_class >= HT_KV_CLASSES || page >= kv->n_pages[kv_class])
        return HT_FAIL(e, HT_EARG, "ref: page %u of KV class %d does not exist", page, kv_class);
    return 0;
}

static int page_copy(ht_dev *dev, ht_kv *kv, int kv_class, uint32_t dst, uint32_t src, ht_err *e)
{
    (void)dev;
    HT_TRY(check_page(kv, kv_class, dst, e));
    HT_TRY(check_page(kv, kv_class, src, e));
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (int v = 0; v < 2 && kv->layer_class[i] == kv_class; v++) {
            size_t n = (size_t)kv->page_bytes[i][v];
            memcpy(kv->plane[i][v] + dst * n, kv->plane[i][v] + src * n, n);
        }
    return 0;
}

/* A page of all layers of its class as one run of bytes: layer by layer, K before V. */
static int page_io(ht_dev *dev, ht_kv *kv, int kv_class, uint32_t page, void *host, int write,
                   ht_err *e)
{
    uint8_t *h = host;
    (void)dev;
    HT_TRY(check_page(kv, kv_class, page, e));
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (int v = 0; v < 2 && kv->layer_class[i] == kv_class; v++) {
            size_t n = (size_t)kv->page_bytes[i][v];
            uint8_t *at = kv->plane[i][v] + page * n;
            memcpy(write ? at : h, write ? h : at, n);
            h += n;
        }
    return 0;
}

/* Pages of equal ids from one pool to another of the same shape, for layers [layer0, layer0+n). */
static int kv_move(ht_dev *dev, ht_kv *dst, ht_kv *src, int layer0, int n_layers,
                   const uint32_t *pages, size_t n, ht_err *e)
{
    (void)dev;
    if (layer0 < 0 || n_layers < 0 || (uint32_t)layer0 + (uint32_t)n_layers > src->n_layers ||
        dst->n_layers != src->n_layers)
        return HT_FAIL(e, HT_EARG, "ref: layers %d to %d of %u", layer0, layer0 + n_layers,
                       src->n_layers);
    for (int i = layer0; i < layer0 + n_layers; i++) {
        for (size_t k = 0; k < n; k++) {
            HT_TRY(check_page(src, src->layer_class[i], pages[k], e));
            HT_TRY(check_page(dst, dst->layer_class[i], pages[k], e));
            for (int v = 0; v < 2; v++) {
                size_t bytes = (size_t)src->page_bytes[i][v];
                if (bytes != dst->page_bytes[i][v])
                    return HT_FAIL(e, HT_EARG, "ref: pools of different page sizes at layer %d", i);
                memcpy(dst->plane[i][v] + pages[k] * bytes, src->plane[i][v] + pages[k] * bytes,
                       bytes);
            }
        }
    }
    return 0;
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
    .kv_alloc = kv_alloc,
    .kv_attach = kv_attach,
    .plan = ref__plan,
    .reg = ref__reg,
    .run = ref__run,
    .wait = ref__wait,
    .tokens = ref__tokens,
    .stats = ref__stats,
    .describe = describe,
    .cancel = ref__cancel,
    .page_copy = page_copy,
    .page_io = page_io,
    .kv_move = kv_move,
    .plan_free = ref__plan_free,
    .close = close_dev,
};
