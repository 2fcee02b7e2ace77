/* cuda.c - the device: opening it, its kernels, its errors, and the table of the backend. */
#include "backend/cuda/cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---------------------------------------------------------------------------------- */

/* An error of the driver may come from any kernel before the call that returns it, and most leave
 * the context unusable: the device stays failed, and nothing runs elsewhere instead. */
int cuda__check(ht_dev *dev, int result, const char *what, const ht_stage *st, ht_err *e)
{
    if (result == CUDA_OK) return 0;
    const char *text = NULL;
    char stage[80] = "";
    (void)dev->api.error_text(result, &text);
    if (st) ht_stage_text(st, stage);
    (void)snprintf(dev->why, sizeof dev->why, "%s%s%s: CUDA error %d, %.80s", what,
                   st ? " at stage " : "", stage, result, text ? text : "unknown");
    dev->failed = result;
    return HT_FAIL(e, HT_EDEVICE, "cuda: %s; the device is given up, open the engine anew",
                   dev->why);
}

int cuda__enter(ht_dev *dev, ht_err *e)
{
    if (dev->failed)
        return HT_FAIL(e, HT_EDEVICE, "cuda: the device failed before (%s); open the engine anew",
                       dev->why);
    return cuda__check(dev, dev->api.current(dev->ctx), "making the context current", NULL, e);
}

int cuda__sync(ht_dev *dev, ht_err *e)
{
    return cuda__check(dev, dev->api.stream_sync(dev->stream), "waiting for the device", NULL, e);
}

/* ---- open ------------------------------------------------------------------------------------ */

static int find_kernel(ht_dev *dev, int image, const char *name, cuda_fn *out, ht_err *e)
{
    HT_TRY(cuda__check(dev, dev->api.function(out, dev->module[image], name), name, NULL, e));
    /* One division of each multiprocessor's memory for all kernels: a change would have to wait
     * until the kernel before has left, and blocks of the next could not start early. */
    return cuda__check(dev, dev->api.fn_set(*out, CUDA_FN_CARVEOUT, 100), name, NULL, e);
}

/* One that takes as much shared memory as there is. */
static int find_large(ht_dev *dev, int image, const char *name, cuda_fn *out, ht_err *e)
{
    HT_TRY(find_kernel(dev, image, name, out, e));
    return cuda__check(dev, dev->api.fn_set(*out, CUDA_FN_SHARED_MAX, dev->shared_max), name, NULL,
                       e);
}

/* Without them there is no act f16. */
static int find_tensor_kernels(ht_dev *dev, ht_err *e)
{
    const struct {
        const char *name;
        cuda_fn *to;
    } k[] = {{"cuda_tc_widen_units", &dev->tc_widen},  {"cuda_tc_join_rows", &dev->tc_join},
             {"cuda_tc_one_128", &dev->tc_one},        {"cuda_tc_all_128", &dev->tc_all},
             {"cuda_tc_gate_128", &dev->tc_gate},      {"cuda_tc_heads_64", &dev->tc_heads[0]},
             {"cuda_tc_heads_128", &dev->tc_heads[1]}, {"cuda_tc_attn_64", &dev->tc_attn[0]},
             {"cuda_tc_attn_128", &dev->tc_attn[1]}};
    cuda_fn there;
    if (dev->api.function(&there, dev->module[4], k[0].name) != CUDA_OK) dev->tensor = false;
    for (size_t i = 0; dev->tensor && i < sizeof k / sizeof *k; i++)
        HT_TRY(find_large(dev, 4, k[i].name, k[i].to, e));
    return 0;
}

static int find_kernels(ht_dev *dev, ht_err *e)
{
    char name[40];
    int binary = 0;
    HT_TRY(find_kernel(dev, 0, "cuda_start_step", &dev->start, e));
    HT_TRY(find_kernel(dev, 0, "cuda_pick_rows", &dev->pick, e));
    HT_TRY(find_kernel(dev, 0, "cuda_pack_units", &dev->pack, e));
    HT_TRY(find_kernel(dev, 0, "cuda_finish_8", &dev->finish[0], e));
    HT_TRY(find_kernel(dev, 0, "cuda_finish_16", &dev->finish[1], e));
    for (int r = 0; r < 2; r++)
        for (int t = 0; t < CUDA_TYPES; t++) {
            (void)snprintf(name, sizeof name, "cuda_mul_%d_%d", r ? CUDA_MAX_ROWS : 1, t);
            HT_TRY(find_large(dev, 1 + r, name, &dev->mul[r][t], e));
        }
    for (int t = CUDA_F16; t < CUDA_TYPES; t++)
        for (int k = 0; k < CUDA_ROW_SHAPES; k++) {
            (void)snprintf(name, sizeof name, "cuda_row_%d_%d_%d", t, cuda__row_shape[k][0],
                           cuda__row_shape[k][1]);
            HT_TRY(find_kernel(dev, 5, name, &dev->row[t][k], e));
            HT_TRY(cuda__check(dev, dev->api.fn_set(dev->row[t][k], CUDA_FN_SHARED_MAX, 64 << 10),
                               name, NULL, e));
        }
    for (int g = 0; g < 2; g++) {
        (void)snprintf(name, sizeof name, "cuda_lone_%d", 1 << g);
        HT_TRY(find_large(dev, 6, name, &dev->lone[g], e));
    }
    for (int l = 0; l < 2; l++)
        for (int g = 0; g < 3; g++)
            for (int h = 0; h < 2; h++) {
                (void)snprintf(name, sizeof name, "cuda_attn_%d_%d_f%d", 8 << l, 1 << g,
                               h ? 16 : 32);
                HT_TRY(find_large(dev, 0, name, &dev->attn[l][g][h], e));
            }
    for (int g = 0; g < 3; g++) {
        (void)snprintf(name, sizeof name, "cuda_mega_%d", 1 << g);
        HT_TRY(find_large(dev, 3, name, &dev->mega[g], e));
    }
    HT_TRY(cuda__check(dev, dev->api.fn_attr(&binary, CUDA_FN_BINARY, dev->start),
                       "reading a kernel", NULL, e));
    dev->dependent = dev->tensor = binary == 90;
    return find_tensor_kernels(dev, e);
}

/* What a large read-only stream reaches: 43/48 of what the pins of the memory move at both edges
 * of their clock (measured on an H200: 4.3 of 4.8 TB/s). */
static uint64_t read_rate(int khz, int bits)
{
    return khz > 0 && bits > 0 ? (uint64_t)khz * 1000 * 2 * (uint64_t)bits / 8 * 43 / 48 : 0;
}

static int open_device(ht_dev *dev, const void *const image[CUDA_IMAGES], ht_err *e)
{
    const cuda_api *api = &dev->api;
    int n = 0, id = 0, khz = 0, bits = 0, clock = 0;
    int rc = api->init(0);
    if (rc == CUDA_OK) rc = api->count(&n);
    if (rc != CUDA_OK || n == 0) {
        const char *text = NULL;
        (void)api->error_text(rc, &text);
        return HT_FAIL(e, HT_EUNSUPPORTED, "the CUDA driver is there but no device: %s",
                       rc != CUDA_OK && text ? text : "it lists none");
    }
    if (dev->index < 0 || dev->index >= n)
        return HT_FAIL(e, HT_EARG, "cuda: gpu=%d, but this machine has %d", dev->index, n);
    HT_TRY(cuda__check(dev, api->device(&id, dev->index), "finding the device", NULL, e));
    HT_TRY(cuda__check(dev, api->name(dev->name, sizeof dev->name, id), "asking for its name", NULL,
                       e));
    const struct {
        int attr, *to;
    } ask[] = {{CUDA_ATTR_MEMORY_KHZ, &khz},
               {CUDA_ATTR_MEMORY_BITS, &bits},
               {CUDA_ATTR_CLOCK_KHZ, &clock},
               {CUDA_ATTR_SMS, &dev->sms},
               {CUDA_ATTR_MAJOR, &dev->major},
               {CUDA_ATTR_MINOR, &dev->minor},
               {CUDA_ATTR_SHARED_OPTIN, &dev->shared_max}};
    for (size_t i = 0; i < sizeof ask / sizeof *ask; i++)
        HT_TRY(cuda__check(dev, api->attr(ask[i].to, ask[i].attr, id), "asking for its size", NULL,
                           e));
    dev->read_rate = read_rate(khz, bits);
    dev->clock_khz = clock > 0 ? (uint32_t)clock : 0;
    dev->shared_max -= 1024; /* what the kernels take beside, and the system's own part */
    if (dev->major < 8)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "cuda: %s has compute capability %d.%d; the kernels need 8.0 or more",
                       dev->name, dev->major, dev->minor);
    HT_TRY(cuda__check(dev, api->retain(&dev->ctx, id), "making a context", NULL, e));
    HT_TRY(cuda__enter(dev, e));
    HT_TRY(cuda__check(dev, api->stream_new(&dev->stream, CUDA_STREAM_OWN), "making a stream", NULL,
                       e));
    HT_TRY(
        cuda__check(dev, api->stream_new(&dev->side, CUDA_STREAM_OWN), "making a stream", NULL, e));
    for (int i = 0; i < CUDA_IMAGES; i++)
        HT_TRY(cuda__check(dev, api->module(&dev->module[i], image[i]), "loading the kernels", NULL,
                           e));
    HT_TRY(find_kernels(dev, e));
    dev->dependent = dev->dependent && !dev->sync && dev->overlap;
    return 0;
}

static void close_dev(ht_dev *dev)
{
    if (!dev) return;
    const cuda_api *api = &dev->api;
    if (dev->ctx) {
        (void)api->current(dev->ctx);
        cuda__unload(dev);
        for (int i = 0; i < CUDA_IMAGES; i++)
            if (dev->module[i]) (void)api->module_unload(dev->module[i]);
        if (dev->stream) (void)api->stream_free(dev->stream);
        if (dev->side) (void)api->stream_free(dev->side);
        (void)api->release(dev->index);
    }
    cuda__api_unload(&dev->api);
    ht_mem_free(dev);
}

int cuda__open_api(ht_dev **out, const cuda_api *api, const void *const image[CUDA_IMAGES],
                   const char *opts, ht_err *e)
{
    cuda_api own = *api;
    ht_dev *dev = ht_mem_alloc(sizeof *dev);
    *out = NULL;
    if (!dev) {
        cuda__api_unload(&own);
        return HT_FAIL(e, HT_ENOMEM, "cuda: out of memory");
    }
    dev->api = own;
    int rc = cuda__options(dev, opts, e);
    if (!rc) rc = open_device(dev, image, e);
    if (rc) {
        close_dev(dev);
        return rc;
    }
    *out = dev;
    return 0;
}

static int open_dev(ht_dev **out, const char *opts, ht_err *e)
{
    const void *image[CUDA_IMAGES];
    cuda_api api;
    ht_dev asked = {0};
    *out = NULL;
    HT_TRY(cuda__options(&asked, opts, e)); /* a typing error is told where nothing can run, too */
    for (int i = 0; i < CUDA_IMAGES; i++) {
        image[i] = cuda__image(i);
        if (!image[i])
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "engine cuda: this build has no CUDA kernels, because make found no "
                           "nvcc; install the CUDA toolkit and build again");
    }
    HT_TRY(cuda__api_load(&api, e));
    return cuda__open_api(out, &api, image, opts, e);
}

/* Text into memory of fixed size; cut: it did not fit. */
typedef struct {
    char *p;
    size_t cap, n;
    bool cut;
} line;
static void put(line *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(line *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = t->cut ? -1 : vsnprintf(t->p + t->n, t->cap - t->n, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= t->cap - t->n) t->cut = true;
    else t->n += (size_t)n;
}

/* "stages": what the persistent kernel's clock has counted since load(); none before it ran. */
static void put_stages(const ht_dev *dev, line *t)
{
    const char *name;
    double ns = 0;
    bool first = true;
    put(t, ",\"stages\":{");
    for (int i = 0; (name = cuda__mega_stage(dev, i, &ns)) != NULL; i++) {
        if (!dev->ticks[i]) continue;
        put(t, "%s\"%s\":[%.0f,%llu,%llu]", first ? "" : ",", name, ns,
            (unsigned long long)dev->least_bytes[i], (unsigned long long)dev->least_flops[i]);
        first = false;
    }
    put(t, "}");
}

static int describe(const ht_dev *dev, char *json, size_t cap)
{
    int driver = 0;
    char name[64];
    size_t k = 0;
    line t = {json, cap, 0, false};
    (void)dev->api.version(&driver);
    for (const char *p = dev->name; *p && k + 1 < sizeof name; p++)
        if (*p >= ' ' && *p != '"' && *p != '\\') name[k++] = *p;
    name[k] = 0;
    put(&t,
        "{\"device\":\"%s\",\"computeCapability\":\"%d.%d\",\"multiprocessors\":%d,"
        "\"driverCuda\":%d,\"kernels\":\"%s\",\"dependentLaunch\":%s,\"readBytesPerS\":%llu,"
        "\"ranks\":%u,\"ranksMax\":%d",
        name, dev->major, dev->minor, dev->sms, driver, dev->dependent ? "sm_90a" : "ptx",
        dev->dependent ? "true" : "false", (unsigned long long)dev->read_rate, dev->size,
        CUDA_RANKS);
    put_stages(dev, &t);
    put(&t, "}");
    return t.cut ? HT_EARG : 0;
}

/* Facts for receipts: which numbers are the same bits. The order of every sum depends on the
 * vectors alone, so all plans under act f32 are of one class, at either level, and all that run on
 * tensor cores of another. */
static int plan_describe(const ht_plan *p, char *json, size_t cap)
{
    const bool tensor = cuda__tc_batch(&p->b); /* equal among buckets of more than 8 rows */
    line t = {json, cap, 0, false};
    put(&t,
        "{\"level\":%d,\"captured\":%s,\"kernels\":%zu,\"tokensPerLaunch\":%u,\"bitClass\":\"%s\","
        "\"bitsEqualUnder\":"
        "[%s\"batch\",\"promptSplit\",\"bucket\",\"grid\"%s],\"ranks\":%u",
        p->mega ? 2 : 1, p->n_pieces ? "true" : "false", p->n_ops - p->n_copies,
        p->b.steps ? (unsigned)p->b.steps : 1U, tensor ? CUDA_TC_BIT_CLASS : CUDA_BIT_CLASS,
        tensor ? "" : "\"rows\",", tensor ? "" : ",\"level\",\"ranks\"", p->dev->size);
    if (p->dev->size > 1)
        put(&t, ",\"copies\":%u,\"exchangedBytesPerRow\":%llu", p->n_copies,
            (unsigned long long)(p->exchanged / p->b.rows));
    put(&t, "}");
    return t.cut ? HT_EARG : 0;
}

const ht_backend ht_backend_cuda = {
    .name = "cuda",
    .spans = cuda__spans,
    .open = open_dev,
    .load = cuda__load,
    .footprint = cuda__footprint,
    .kv_alloc = cuda__kv_alloc,
    .kv_free = cuda__kv_free,
    .kv_attach = cuda__kv_attach,
    .plan = cuda__plan,
    .reg = cuda__reg,
    .run = cuda__run,
    .wait = cuda__wait,
    .tokens = cuda__tokens,
    .stats = cuda__stats,
    .describe = describe,
    .plan_describe = plan_describe,
    .cancel = cuda__cancel,
    .page_copy = cuda__page_copy,
    .page_io = cuda__page_io,
    .kv_move = cuda__kv_move,
    .kv_pin = cuda__kv_pin,
    .kv_unpin = cuda__kv_unpin,
    .plan_free = cuda__plan_free,
    .close = close_dev,
};
