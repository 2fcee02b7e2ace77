/* cpu.c - the backend "cpu": its device, which is a thread team, a kernel table and the weights. */
#include "backend/cpu/cpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        if (end == text || *end || threads < 1 || threads > HT_TEAM_MAX)
            return HT_FAIL(e, HT_EARG, "cpu: threads=%s is not a number from 1 to %d", text,
                           HT_TEAM_MAX);
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

/* Costs by kind of stage, as "stages": {"kind": [ns, bytes, flops], ...}. */
static void write_costs(const ht_dev *dev, char *out, size_t cap)
{
    size_t at = 0;
    for (int i = 0; i < HT_KINDS; i++) {
        const cpu_cost *c = &dev->cost[i];
        uint64_t ns = atomic_load_explicit(&c->ns, memory_order_relaxed);
        if (!ns || at + 128 > cap) continue;
        at += (size_t)snprintf(
            out + at, cap - at, "%s\"%s\":[%llu,%llu,%llu]", at ? "," : "", ht_kind_name(i),
            (unsigned long long)ns,
            (unsigned long long)atomic_load_explicit(&c->bytes, memory_order_relaxed),
            (unsigned long long)atomic_load_explicit(&c->flops, memory_order_relaxed));
    }
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
    char weights[320] = ""; /* nothing to say before a model is loaded */
    if (dev->model)
        (void)snprintf(weights, sizeof weights,
                       ",\"types\":[%s],\"weightsInPlace\":%u,\"weightsInterleaved\":%u,"
                       "\"weightsWidened\":%u,\"copiedBytes\":%zu",
                       types, dev->n_in_place, dev->n_copied, dev->n_widened, dev->copy_bytes);
    char costs[HT_KINDS * 128] = "";
    write_costs(dev, costs, sizeof costs);
    int len = snprintf(json, cap,
                       "{\"isa\":\"%s\",\"kernels\":\"r16\",\"threads\":%d,"
                       "\"threadsWhy\":\"%s\"%s,\"stages\":{%s},\"waitNs\":%llu}",
                       dev->k.level, ht_team_size(dev->team), dev->why, weights, costs,
                       (unsigned long long)atomic_load(&dev->wait_ns));
    return len > 0 && (size_t)len < cap ? 0 : HT_EARG;
}

const ht_backend ht_backend_cpu = {
    .name = "cpu",
    .spans = cpu__spans,
    .open = open_dev,
    .load = cpu__load,
    .footprint = cpu__footprint,
    .kv_alloc = ht_host_kv_alloc,
    .kv_attach = ht_host_kv_attach,
    .plan = cpu__plan,
    .reg = cpu__reg,
    .run = cpu__run,
    .wait = cpu__wait,
    .tokens = cpu__tokens,
    .stats = cpu__stats,
    .describe = describe,
    .cancel = cpu__cancel,
    .page_copy = ht_host_page_copy,
    .page_io = ht_host_page_io,
    .kv_move = ht_host_kv_move,
    .plan_free = cpu__plan_free,
    .close = close_dev,
};
