/* run.c - one prompt through a compiled graph: embedding rows looked up, outputs laid over the
 * pages, started, waited for. What ran is read from the library's own profile. */
#include "backend/graph/graph.h"
#include "core/clock.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    POLL_MS = 4, /* how long a cancel may go unseen */
    PROFILES = 2
}; /* the first run also puts weights in order, the second is like all others */

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Positions 0 .. rows-1, [rows,dims]: both halves of a row hold the same angles. */
static void fill_rope(ht_plan *p, bool lengthy)
{
    if (p->rope_long == (int)lengthy) return;
    for (int r = 0; r < HT_ROPES; r++) {
        const ht_rope *o = &p->m->spec.rope[r];
        const float *freq = lengthy && o->inv_freq_long ? o->inv_freq_long : o->inv_freq;
        const uint32_t half = o->dims / 2;
        if (!p->cos[r]) continue;
        for (uint32_t t = 0; t < p->b.rows; t++)
            for (uint32_t i = 0; i < half; i++) {
                const double angle = (double)t * (double)freq[i];
                float *c = p->cos[r] + (size_t)t * o->dims + i;
                float *s = p->sin[r] + (size_t)t * o->dims + i;
                c[0] = c[half] = (float)(cos(angle) * (double)o->mscale);
                s[0] = s[half] = (float)(sin(angle) * (double)o->mscale);
            }
    }
    p->rope_long = lengthy;
}

static void embed_rank(void *arg, int rank, int size)
{
    ht_plan *p = arg;
    const ht_spec *s = &p->m->spec;
    const ht_weight *w = &p->m->embed;
    uint32_t from, to;
    if ((p->b.flags & HT_ALT_REP) && w->alt) w = w->alt;
    ht_team_share(p->b.rows, 1, rank, size, &from, &to);
    for (uint32_t t = from; t < to; t++) {
        float *x = p->x + (size_t)t * s->dim;
        /* Padding takes the first token: any finite row will do. */
        ht_weight_row(w, 0, (uint32_t)p->batch->token[t < p->batch->rows ? t : 0], x);
        for (uint32_t i = 0; i < s->dim; i++) x[i] *= s->embed_scale;
    }
}

static bool has_kind(const ht_plan *p, int kind)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->at[i].kind == kind) return true;
    return false;
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* The prompt's pages of a class must be consecutive, padding's included: a graph writes one tensor
 * per layer. */
static int check_run(const ht_plan *p, const ht_batch *b, int c, ht_err *e)
{
    const uint32_t n = p->b.rows / HT_PAGE, *page = b->page[c];
    if (!page) return HT_FAIL(e, HT_EARG, "graph: the batch has no pages of class %d", c);
    for (uint32_t i = 0; i < n; i++)
        if (page[i] != page[0] + i || page[i] >= p->kv->n_pages[c])
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "graph: the %u pages of class %d are not one run (entry %u); free "
                           "sequences, or use another engine for this prompt",
                           n, c, i);
    return 0;
}

static int bind_pages(ht_plan *p, const ht_batch *b, ht_err *e)
{
    bool used[HT_KV_CLASSES] = {false, false}, moved[HT_KV_CLASSES];
    for (size_t i = 0; i < p->part.n_out; i++)
        if (p->part.out[i].io == GRAPH_K) used[p->kv->layer_class[p->part.out[i].layer]] = true;
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        if (used[c]) HT_TRY(check_run(p, b, c, e));
        moved[c] = used[c] && b->page[c][0] != p->bound[c];
        if (moved[c]) p->bound[c] = HT_NOPAGE; /* until all of them have moved */
    }
    for (size_t i = 0; i < p->part.n_out; i++) {
        const graph_port *o = &p->part.out[i];
        const int v = o->io == GRAPH_V;
        if (o->io != GRAPH_K && o->io != GRAPH_V) continue;
        const int c = p->kv->layer_class[o->layer];
        if (!moved[c]) continue;
        HT_TRY(graph__bind(
            p, true, i,
            p->kv->plane[o->layer][v] + b->page[c][0] * (size_t)p->kv->page_bytes[o->layer][v], e));
    }
    for (int c = 0; c < HT_KV_CLASSES; c++)
        if (used[c]) p->bound[c] = b->page[c][0];
    return 0;
}

static int check_batch(const ht_plan *p, const ht_batch *b, ht_err *e)
{
    HT_TRY(ht_batch_check(p->m, has_kind(p, HT_QKV) ? p->kv : NULL, &p->b, p->at, b, 0, e));
    for (uint32_t i = 0; i < b->rows; i++)
        if (b->pos[i] != (int32_t)i || b->seq[i] != 0)
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "graph: row %u is position %d of sequence %u; a graph computes one "
                           "prompt from position 0 on",
                           i, b->pos[i], (unsigned)b->seq[i]);
    return 0;
}

/* ---- run ------------------------------------------------------------------------------------- */

static void count(ht_plan *p, const ht_batch *b)
{
    const ht_bucket k = ht_batch_bucket(&p->b, b);
    for (size_t i = 0; i < p->n; i++) {
        uint64_t bytes, flops;
        ht_stage_bound(p->m, &p->at[i], &k, &bytes, &flops);
        p->stats.bytes += bytes;
        p->stats.flops += flops;
    }
    p->stats.dispatches = 1;
    p->stats.executed = "graph";
    p->stats.exec_cuts = 1;
    p->stats.exec = ht_exec_add(0, p->exec_id);
}

int graph__run(ht_plan *p, const ht_batch *b, ht_err *e)
{
    const ov_api *api = &p->dev->api;
    p->t0 = ht_now_ns();
    memset(&p->stats, 0, sizeof p->stats);
    HT_TRY(check_batch(p, b, e));
    HT_TRY(bind_pages(p, b, e));
    p->batch = b;
    fill_rope(p, b->rope_long && b->rope_long[0]);
    if (p->at[0].kind == HT_EMBED) ht_team_run(p->dev->team, embed_rank, p);
    for (uint32_t i = 0; i < (p->b.want ? p->b.want : 1u); i++)
        p->want[i] = i < b->n_want ? (int64_t)b->want[i] : 0;
    HT_TRY(graph__ov_check(api, api->start(p->request), HT_EDEVICE, "starting", e));
    count(p, b);
    p->ran = true;
    return 0;
}

/* The library checks for a cancel between its nodes; a signal handler may not call it, so the flag
 * is looked at here. */
static int until_done(ht_plan *p)
{
    const ov_api *api = &p->dev->api;
    bool told = false;
    for (;;) {
        const int status = api->wait_for(p->request, POLL_MS);
        if (status != OV_NOT_READY) return status;
        if (told || !atomic_load_explicit(&p->cancel, memory_order_relaxed)) continue;
        (void)api->cancel(p->request); /* a request that has just ended says so */
        told = true;
    }
}

/* Whether an execution type's suffix names a type that is narrower than f32. */
static bool is_low(const char *exec)
{
    static const char *const low[] = {"bf16", "BF16", "f16", "FP16", "_I8", "_i8", "_U8", "_u8"};
    const char *suffix = strrchr(exec, '_');
    for (size_t i = 0; suffix && i < sizeof low / sizeof *low; i++)
        if (!strcmp(suffix + (low[i][0] != '_'), low[i])) return true;
    return false;
}

/* Nodes that compute sums of products, where a narrower type changes results. */
static bool multiplies(const char *type)
{
    return strstr(type, "FullyConnected") || strstr(type, "MatMul") ||
           strstr(type, "ScaledDotProduct") || strstr(type, "MLP") || strstr(type, "QKVProj");
}

/* What ran, from the nodes of the first run: how many, which of them below f32, and a digest. */
static int read_types(ht_plan *p, const ov_nodes *nodes, ht_err *e)
{
    graph_facts *f = &p->facts;
    ht_sha256 *h = NULL;
    uint8_t sha[HT_SHA256_BYTES];
    int rc = ht_sha256_new(&h, e);
    for (size_t i = 0; i < nodes->n && !rc; i++) {
        const ov_node *o = &nodes->node[i];
        if (o->status != OV_NODE_RUN) continue;
        f->n_run++;
        if (multiplies(o->node_type) && is_low(o->exec_type) && !f->n_low++)
            (void)snprintf(f->low, sizeof f->low, "%.30s %.30s", o->node_type, o->exec_type);
        rc = ht_sha256_add(h, o->node_type, strlen(o->node_type) + 1, e);
        if (!rc) rc = ht_sha256_add(h, o->exec_type, strlen(o->exec_type) + 1, e);
    }
    f->n_nodes = (uint32_t)nodes->n;
    if (rc) {
        ht_sha256_free(h);
        return rc;
    }
    HT_TRY(ht_sha256_end(h, sha, e));
    ht_hex(sha, sizeof sha, f->exec_sha);
    return 0;
}

/* The library's own profile of the first runs. */
static int read_profile(ht_plan *p, ht_err *e)
{
    const ov_api *api = &p->dev->api;
    graph_facts *f = &p->facts;
    ov_nodes nodes = {0};
    if (f->profiles == PROFILES) return 0;
    HT_TRY(graph__ov_check(api, api->profile(p->request, &nodes), HT_EDEVICE, "reading its profile",
                           e));
    const int rc = f->profiles ? 0 : read_types(p, &nodes, e);
    f->longest_us = 0;
    for (size_t i = 0; i < nodes.n; i++)
        if (nodes.node[i].real_us > f->longest_us) f->longest_us = nodes.node[i].real_us;
    api->nodes_free(&nodes);
    if (!rc) f->profiles++;
    return rc;
}

/* AUTO may begin on one device and go on on another: what a run in between computed is nobody's
 * numbers. The next one is on the device that is written down here. */
static int check_device(ht_plan *p, ht_err *e)
{
    char now[sizeof p->facts.device], before[sizeof now];
    if (!p->dev->approximate) return 0;
    graph__prop(p, "EXECUTION_DEVICES", now, sizeof now);
    if (!strcmp(now, p->facts.device)) return 0;
    memcpy(before, p->facts.device, sizeof before);
    memcpy(p->facts.device, now, sizeof now);
    return HT_FAIL(e, HT_EDEVICE,
                   "graph: device %s moved from \"%s\" to \"%s\" during a run: its result is "
                   "refused, since another device has other numbers",
                   p->dev->device, before, now);
}

/* Under f32 arithmetic no product may have run in a narrower type, and where a narrower one was
 * declared, some must have. */
static int check_profile(ht_plan *p, ht_err *e)
{
    const bool narrow = p->b.act == HT_ACT_INT8 || p->b.act == HT_ACT_BF16;
    HT_TRY(read_profile(p, e));
    if (narrow && p->facts.n_low == 0)
        return HT_FAIL(e, HT_EDEVICE,
                       "graph: no product ran below f32, though act %s was declared: the result is "
                       "refused; leave act= out",
                       p->b.act == HT_ACT_INT8 ? "int8" : "bf16");
    if (p->facts.n_low == 0 || p->b.act != HT_ACT_F32 || p->dev->approximate) return 0;
    return HT_FAIL(e, HT_EDEVICE,
                   "graph: %u products ran below f32 (%s) though the compiled model said f32: the "
                   "result is refused",
                   p->facts.n_low, p->facts.low);
}

/* The register that a part leaves, from where the graph wrote it. */
static void keep_output(ht_plan *p)
{
    const graph_port *last = &p->part.out[p->part.n_out - 1];
    void *to = NULL;
    size_t n = 0;
    const int reg = last->io == GRAPH_X ? HT_REG_X : last->io == GRAPH_A ? HT_REG_A : HT_REG_H;
    if (last->io != GRAPH_X && last->io != GRAPH_A && last->io != GRAPH_H) return;
    if (graph__reg(p, reg, &to, &n, NULL)) return;
    memcpy(to, p->out, n);
    p->stats.host_copy_bytes += n;
}

int graph__wait(ht_plan *p, const float **logits, ht_err *e)
{
    if (logits) *logits = NULL;
    if (!p->ran) return HT_FAIL(e, HT_EARG, "graph: wait without run");
    const int status = until_done(p);
    p->ran = false;
    p->batch = NULL;
    p->stats.ns = ht_now_ns() - p->t0;
    /* Used up here and not cleared at the start: one that came just before run() counts. */
    if (atomic_exchange_explicit(&p->cancel, 0, memory_order_relaxed))
        return HT_FAIL(e, HT_ECANCELLED, "the step was cancelled");
    HT_TRY(graph__ov_check(&p->dev->api, status, HT_EDEVICE, "running", e));
    HT_TRY(check_device(p, e));
    HT_TRY(check_profile(p, e));
    /* Every product has its weights in an order of its own once it has run. */
    if (p->mem && !p->dropped) graph__mem_drop(p->mem);
    p->dropped = true;
    keep_output(p);
    if (logits) *logits = p->l;
    return 0;
}

int graph__tokens(ht_plan *p, const int32_t **ids, size_t *n, ht_err *e)
{
    (void)p;
    *ids = NULL;
    *n = 0;
    return HT_FAIL(e, HT_EUNSUPPORTED, "graph does not sample; use the host's sampler");
}

/* The longest node, and how long a cancel may go unseen; 0 before a run. */
static uint64_t cancel_us(const ht_plan *p)
{
    return p->facts.profiles ? (uint64_t)p->facts.longest_us + POLL_MS * 1000 : 0;
}

int graph__stats(const ht_plan *p, ht_run_stats *out)
{
    *out = p->stats;
    out->cancel_ns = cancel_us(p) * 1000;
    return 0;
}

int graph__cancel(ht_plan *p)
{
    atomic_store_explicit(&p->cancel, 1, memory_order_relaxed);
    return 0;
}

int graph__plan_describe(const ht_plan *p, char *json, size_t cap)
{
    const graph_facts *f = &p->facts;
    const int n = snprintf(
        json, cap,
        "{\"library\":\"%s\",\"executionDevices\":\"%s\",\"inferencePrecision\":\"%s\","
        "\"inferenceThreads\":\"%s\",\"dynamicQuantizationGroup\":\"%s\",\"compiledMs\":%llu,"
        "\"fromCache\":%s,\"nodes\":%u,\"nodesRun\":%u,\"productsBelowF32\":%u,\"cancelMs\":%llu,"
        "\"profileSha256\":\"%s\"}",
        p->dev->version, f->device, f->precision, f->threads, f->quant_group,
        (unsigned long long)(f->compile_ns / 1000000), f->cached ? "true" : "false", f->n_nodes,
        f->n_run, f->n_low, (unsigned long long)((cancel_us(p) + 999) / 1000), f->exec_sha);
    return n > 0 && (size_t)n < cap ? 0 : HT_EARG;
}
