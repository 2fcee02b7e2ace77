/* cpu.c - the backend "cpu": its device, which is a thread team, a kernel table and the weights. */
#include "backend/cpu/cpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 256 };

/* "key=value,key=value": the value of key as text; false: absent. */
static bool option(const char *opts, const char *key, char *out, size_t cap)
{
    size_t n = strlen(key);
    for (const char *s = opts; s && *s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
        if (strncmp(s, key, n) || s[n] != '=') continue;
        size_t len = strcspn(s + n + 1, ",");
        if (len >= cap) len = cap - 1;
        memcpy(out, s + n + 1, len);
        out[len] = 0;
        return true;
    }
    return false;
}

/* Features at or below the named level. */
static int mask_level(const char *level, unsigned *feat, ht_err *e)
{
    if (!strcmp(level, "generic")) *feat = 0;
    else if (!strcmp(level, "avx2")) *feat &= HT_CPU_AVX2;
    else if (strcmp(level, "avx512"))
        return HT_FAIL(e, HT_EARG, "cpu: isa \"%s\" is not generic, avx2 or avx512", level);
    return 0;
}

static int open_dev(ht_dev **out, const char *opts, ht_err *e)
{
    char text[32];
    ht_cpu_threads t;
    unsigned feat = ht_cpu_features();
    *out = NULL;
    ht_cpu_threads_get(&t);
    long threads = t.threads;
    if (option(opts, "isa", text, sizeof text)) HT_TRY(mask_level(text, &feat, e));
    if (option(opts, "threads", text, sizeof text)) {
        char *end;
        threads = strtol(text, &end, 10);
        if (end == text || *end || threads < 1 || threads > MAX_THREADS)
            return HT_FAIL(e, HT_EARG, "cpu: threads=%s is not a number from 1 to %d", text, MAX_THREADS);
        snprintf(t.why, sizeof t.why, "%ld: asked for", threads);
    }
    ht_dev *dev = ht_mem_alloc(sizeof *dev);
    if (!dev) return HT_FAIL(e, HT_ENOMEM, "cpu: out of memory");
    memcpy(dev->why, t.why, sizeof dev->why);
    dev->feat = feat;
    cpu__kern_init(&dev->k, feat);
    int rc = ht_team_new(&dev->team, (int)threads, e);
    if (rc) {
        ht_mem_free(dev);
        return rc;
    }
    *out = dev;
    return 0;
}

static void close_dev(ht_dev *dev)
{
    if (!dev) return;
    cpu__unload(dev);
    ht_team_free(dev->team);
    ht_mem_free(dev);
}

static int describe(const ht_dev *dev, char *json, size_t cap)
{
    char types[160] = "";
    size_t at = 0;
    bool seen[HT_TYPES] = {false};
    uint32_t n = dev->model ? dev->model->n_weights : 0;
    for (uint32_t i = 0; i < n && dev->mat; i++)
        if (dev->mat[i].p) seen[dev->mat[i].type] = true;
    for (int i = 0; i < HT_TYPES; i++)
        if (seen[i] && at < sizeof types - 16)
            at += (size_t)snprintf(types + at, sizeof types - at, "%s\"%s\"", at ? "," : "",
                                   ht_types[i].name);
    int len = snprintf(json, cap,
                       "{\"isa\":\"%s\",\"kernels\":\"r16\",\"threads\":%d,\"threadsWhy\":\"%s\","
                       "\"types\":[%s],\"weightsInPlace\":%u,\"weightsInterleaved\":%u,"
                       "\"weightsWidened\":%u,\"copiedBytes\":%zu}",
                       dev->k.level, ht_team_size(dev->team), dev->why, types, dev->n_in_place,
                       dev->n_copied, dev->n_widened, dev->copy_bytes);
    return len > 0 && (size_t)len < cap ? 0 : HT_EARG;
}

/* ---- KV memory: host memory, shared with any engine that can address it --------------------------- */

static int kv_alloc(ht_dev *dev, size_t bytes, void **mem, ht_err *e)
{
    (void)dev;
    *mem = ht_page_alloc(bytes);
    return *mem ? 0 : HT_FAIL(e, HT_ENOMEM, "cpu: %zu MiB for the KV cache refused", bytes >> 20);
}

static int kv_attach(ht_dev *dev, ht_kv *kv, ht_err *e)
{
    (void)dev;
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (int v = 0; v < 2; v++)
            if (kv->type[i][v] != HT_KV_F32 && kv->type[i][v] != HT_KV_F16)
                return HT_FAIL(e, HT_EUNSUPPORTED, "cpu does not read KV type %s",
                               ht_kvtype_name(kv->type[i][v]));
    return 0;
}

static int check_page(const ht_kv *kv, int kv_class, uint32_t page, ht_err *e)
{
    if (kv_class < 0 || kv_class >= HT_KV_CLASSES || page >= kv->n_pages[kv_class])
        return HT_FAIL(e, HT_EARG, "cpu: page %u of KV class %d does not exist", page, kv_class);
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
static int page_io(ht_dev *dev, ht_kv *kv, int kv_class, uint32_t page, void *host, int write, ht_err *e)
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

static int kv_move(ht_dev *dev, ht_kv *dst, ht_kv *src, int layer0, int n_layers, const uint32_t *pages,
                   size_t n, ht_err *e)
{
    (void)dev;
    if (layer0 < 0 || n_layers < 0 || (uint32_t)layer0 + (uint32_t)n_layers > src->n_layers ||
        dst->n_layers != src->n_layers)
        return HT_FAIL(e, HT_EARG, "cpu: layers %d to %d of %u", layer0, layer0 + n_layers, src->n_layers);
    for (int i = layer0; i < layer0 + n_layers; i++)
        for (size_t k = 0; k < n; k++) {
            HT_TRY(check_page(src, src->layer_class[i], pages[k], e));
            HT_TRY(check_page(dst, dst->layer_class[i], pages[k], e));
            for (int v = 0; v < 2; v++) {
                size_t bytes = (size_t)src->page_bytes[i][v];
                if (bytes != dst->page_bytes[i][v])
                    return HT_FAIL(e, HT_EARG, "cpu: pools of different page sizes at layer %d", i);
                memcpy(dst->plane[i][v] + pages[k] * bytes, src->plane[i][v] + pages[k] * bytes, bytes);
            }
        }
    return 0;
}

const ht_backend ht_backend_cpu = {
    .name = "cpu",
    .spans = cpu__spans,
    .open = open_dev,
    .load = cpu__load,
    .footprint = cpu__footprint,
    .kv_alloc = kv_alloc,
    .kv_attach = kv_attach,
    .plan = cpu__plan,
    .reg = cpu__reg,
    .run = cpu__run,
    .wait = cpu__wait,
    .tokens = cpu__tokens,
    .stats = cpu__stats,
    .describe = describe,
    .cancel = cpu__cancel,
    .page_copy = page_copy,
    .page_io = page_io,
    .kv_move = kv_move,
    .plan_free = cpu__plan_free,
    .close = close_dev,
};
