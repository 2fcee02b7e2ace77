/* graph.c - the device: OpenVINO loaded, its version known, and the table of the backend. */
#include "backend/graph/graph.h"
#include "core/cpu.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- options --------------------------------------------------------------------------------- */

/* Text behind "key=" in "threads=2,device=CPU" into out; false: not there. A value holds no comma,
 * so that of AUTO and HETERO lists devices with '+'. */
static bool option(const char *opts, const char *key, char *out, size_t cap)
{
    const size_t n = strlen(key);
    for (const char *p = opts ? opts : ""; *p;) {
        const size_t len = strcspn(p, ",");
        if (len > n && !strncmp(p, key, n) && p[n] == '=' && len - n - 1 < cap) {
            memcpy(out, p + n + 1, len - n - 1);
            out[len - n - 1] = 0;
            return true;
        }
        p += len;
        p += *p == ',';
    }
    return false;
}

/* The folder of compiled models, made where its parent is there. Writing to it later is best
 * effort, so what can never be a folder is told now. */
static int open_cache(const char *path, ht_err *e)
{
    struct stat st;
    if (mkdir(path, 0700) == 0) return 0;
    const int why = errno;
    if (why == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return 0;
    return HT_FAIL(e, HT_EIO,
                   "graph: cache=%s: %s: compiled models are kept in a folder; name one, or one to "
                   "be made in a folder that is there, or leave cache= out",
                   path, why == EEXIST ? "is no folder" : strerror(why));
}

static int read_options(ht_dev *dev, const char *opts, ht_err *e)
{
    char text[1024];
    dev->threads = option(opts, "threads", text, sizeof text) ? (int)strtol(text, NULL, 10) : 0;
    if (dev->threads <= 0) {
        ht_cpu_threads t;
        ht_cpu_threads_get(&t);
        dev->threads = t.threads;
    }
    if (!option(opts, "device", dev->device, sizeof dev->device))
        (void)snprintf(dev->device, sizeof dev->device, "CPU");
    for (char *p = dev->device; *p; p++)
        if (*p == '+') *p = ',';
    dev->approximate = strcmp(dev->device, "CPU") != 0;
    if (dev->approximate &&
        !(option(opts, "approximate", text, sizeof text) && strtol(text, NULL, 10) > 0))
        return HT_FAIL(
            e, HT_EUNSUPPORTED,
            "graph: where device %.40s computes is not known beforehand, nor in what "
            "precision: no substitute for the exact engine; declare it with approximate=1",
            dev->device);
    if (option(opts, "cache", dev->cache, sizeof dev->cache)) HT_TRY(open_cache(dev->cache, e));
    (void)option(opts, "pack", dev->pack, sizeof dev->pack);
    if (option(opts, "weights", text, sizeof text)) {
        if (!strcmp(text, "view")) dev->weights = GRAPH_W_VIEW;
        else if (strcmp(text, "f32") != 0)
            return HT_FAIL(e, HT_EARG, "graph: weights=%.40s is unknown; use view or f32", text);
    }
    if (option(opts, "ints", text, sizeof text)) {
        if (!strcmp(text, "widen")) dev->ints = GRAPH_I8_WIDEN;
        else if (strcmp(text, "keep") != 0)
            return HT_FAIL(e, HT_EARG, "graph: ints=%.40s is unknown; use keep or widen", text);
    }
    dev->pieces = option(opts, "pieces", text, sizeof text) && strtol(text, NULL, 10) > 0;
    dev->vnni = (ht_cpu_features() & HT_CPU_VNNI) != 0;
    dev->bf16 = (ht_cpu_features() & HT_CPU_BF16) != 0;
    return 0;
}

/* ---- open ------------------------------------------------------------------------------------ */

/* The name as the library has it; one behind "AUTO:" or "HETERO:" is left to the compiler. */
static int check_device(ht_dev *dev, ht_err *e)
{
    ov_devices have = {0};
    char list[160] = "";
    bool known = strchr(dev->device, ':') || !strcmp(dev->device, "AUTO");
    size_t n = 0;
    HT_TRY(graph__ov_check(&dev->api, dev->api.devices(dev->core, &have), HT_EUNSUPPORTED,
                           "asking for devices", e));
    for (size_t i = 0; i < have.n; i++) {
        known = known || !strcmp(have.name[i], dev->device);
        if (n < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", have.name[i]);
    }
    dev->api.devices_free(&have);
    if (known) return 0;
    return HT_FAIL(e, HT_EUNSUPPORTED, "graph: OpenVINO has no device %s here; it has: %s",
                   dev->device, list);
}

static int open_core(ht_dev *dev, const char *opts, ht_err *e)
{
    HT_TRY(read_options(dev, opts, e));
    HT_TRY(graph__ov_version(&dev->api, dev->version, sizeof dev->version, e));
    HT_TRY(graph__ov_check(&dev->api, dev->api.core_new(&dev->core), HT_EUNSUPPORTED,
                           "starting OpenVINO", e));
    HT_TRY(check_device(dev, e));
    return ht_team_new(&dev->team, dev->threads, e);
}

static void close_dev(ht_dev *dev)
{
    if (!dev) return;
    ht_team_free(dev->team);
    ht_mem_free(dev->range);
    if (dev->core) dev->api.core_free(dev->core);
    graph__ov_unload(&dev->api);
    ht_mem_free(dev);
}

int graph__open_api(ht_dev **out, const ov_api *api, const char *path, const char *opts, ht_err *e)
{
    ov_api own = *api;
    ht_dev *dev = ht_mem_alloc(sizeof *dev);
    *out = NULL;
    if (!dev) {
        graph__ov_unload(&own);
        return HT_FAIL(e, HT_ENOMEM, "graph: out of memory");
    }
    dev->api = own;
    (void)snprintf(dev->path, sizeof dev->path, "%s", path);
    int rc = open_core(dev, opts, e);
    if (rc) {
        close_dev(dev);
        return rc;
    }
    *out = dev;
    return 0;
}

/* A graph of one node, read and compiled: the parts of the library that are loaded on first use
 * are there now or missing now, and not when a prompt comes. So is what a receipt names as the
 * process's libraries. */
static int try_out(ht_dev *dev, ht_err *e)
{
    static const char text[] =
        "<?xml version=\"1.0\"?><net name=\"one\" version=\"11\"><layers>"
        "<layer id=\"0\" name=\"x\" type=\"Parameter\" version=\"opset1\">"
        "<data shape=\"1\" element_type=\"f32\"/><output><port id=\"0\" precision=\"FP32\">"
        "<dim>1</dim></port></output></layer>"
        "<layer id=\"1\" name=\"y\" type=\"Result\" version=\"opset1\">"
        "<input><port id=\"0\" precision=\"FP32\"><dim>1</dim></port></input></layer></layers>"
        "<edges><edge from-layer=\"0\" from-port=\"0\" to-layer=\"1\" "
        "to-port=\"0\"/></edges></net>";
    const ov_api *api = &dev->api;
    int64_t one = 1;
    char nothing = 0;
    ov_tensor *space = NULL;
    ov_model *model = NULL;
    ov_compiled *made = NULL;
    int status = api->wrap(OV_I8, (ov_shape){1, &one}, &nothing, &space);
    if (!status) status = api->read(dev->core, text, sizeof text - 1, space, &model);
    if (!status) status = api->compile(dev->core, model, dev->device, 0, NULL, &made);
    if (made) api->compiled_free(made);
    if (model) api->model_free(model);
    if (space) api->tensor_free(space);
    return graph__ov_check(api, status, HT_EUNSUPPORTED, "trying it out with a graph of one node",
                           e);
}

static int open_dev(ht_dev **out, const char *opts, ht_err *e)
{
    char where[1024] = "", path[1024];
    ov_api api;
    *out = NULL;
    (void)option(opts, "openvino", where, sizeof where);
    HT_TRY(graph__ov_load(&api, where, path, sizeof path, e));
    HT_TRY(graph__open_api(out, &api, path, opts, e));
    const int rc = try_out(*out, e);
    if (!rc) return 0;
    close_dev(*out);
    *out = NULL;
    return rc;
}

static int load(ht_dev *dev, const ht_model *m, ht_err *e)
{
    (void)e;
    dev->model = m;
    return 0;
}

static int describe(const ht_dev *dev, char *json, size_t cap)
{
    char path[300];
    size_t k = 0;
    for (const char *p = dev->path; *p && k + 1 < sizeof path; p++)
        if (*p >= ' ' && *p != '"' && *p != '\\') path[k++] = *p;
    path[k] = 0;
    const int n = snprintf(
        json, cap,
        "{\"library\":\"%s\",\"file\":\"%s\",\"device\":\"%s\",\"approximate\":%s,\"threads\":%d,"
        "\"buckets\":[%u,%u,%u,%u],\"act\":\"%s%s,int8\"}",
        dev->version, path, dev->device, dev->approximate ? "true" : "false", dev->threads,
        (unsigned)graph__buckets[0], (unsigned)graph__buckets[1], (unsigned)graph__buckets[2],
        (unsigned)graph__buckets[3], dev->vnni ? "f32,q8" : "f32", dev->bf16 ? ",bf16" : "");
    return n > 0 && (size_t)n < cap ? 0 : HT_EARG;
}

const ht_backend ht_backend_graph = {
    .name = "graph",
    .buckets = graph__buckets,
    .spans = graph__spans,
    .open = open_dev,
    .load = load,
    .calibrate = graph__calibrate,
    .footprint = graph__footprint,
    .kv_alloc = ht_host_kv_alloc,
    .kv_attach = ht_host_kv_attach,
    .plan = graph__plan,
    .reg = graph__reg,
    .run = graph__run,
    .wait = graph__wait,
    .tokens = graph__tokens,
    .stats = graph__stats,
    .describe = describe,
    .plan_describe = graph__plan_describe,
    .cancel = graph__cancel,
    .page_copy = ht_host_page_copy,
    .page_io = ht_host_page_io,
    .kv_move = ht_host_kv_move,
    .plan_free = graph__plan_free,
    .close = close_dev,
};
