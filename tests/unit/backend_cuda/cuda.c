/* cuda.c - the host side of the cuda engine over a recorded driver: what is captured, what is
 * refused, how errors stick, and the layouts of weights. No GPU and no nvcc is needed; what kernels
 * compute is compared on a device by tests/stage and tests/golden. */
#include "backend/cuda/cuda.h"
#include "quant/r16.h"
#include "test.h"

/* ---- a driver that remembers ----------------------------------------------------------------- */

static struct {
    int launches, programmatic, cooperative, captures, graphs, runs, live, fail_launch;
    int copies; /* within the device */
    uint64_t copied;
    uint32_t most_shared;
    cuda_mega mega;  /* arguments of the last cooperative launch */
    int busy, stops; /* queries until a run has ended; words set that end one */
    int events;
    int32_t ids[4]; /* what the next cooperative launch picks, up to a negative one */
    bool no_lock;   /* of host memory */
} seen;
static int card_sms = 132;

static int d_ok(void)
{
    return CUDA_OK;
}
static int d_count(int *n)
{
    *n = 1;
    return CUDA_OK;
}
static int d_attr(int *v, int attr, int dev)
{
    (void)dev;
    *v = attr == CUDA_ATTR_SMS ? card_sms : attr == CUDA_ATTR_SHARED_OPTIN ? 232448 : 9;
    return CUDA_OK;
}
static int d_fn_attr(int *v, int attr, cuda_fn fn)
{
    (void)attr;
    (void)fn;
    *v = 90;
    return CUDA_OK;
}
static int d_name(char *s, int n, int dev)
{
    (void)dev;
    (void)snprintf(s, (size_t)n, "recorded \"card\"");
    return CUDA_OK;
}
static int d_text(int rc, const char **s)
{
    *s = rc ? "planted" : "none";
    return CUDA_OK;
}
static int d_handle(void **h)
{
    *h = &seen;
    return CUDA_OK;
}
static int d_function(cuda_fn *out, cuda_module module, const char *name)
{
    (void)module;
    (void)name;
    return d_handle((void **)out);
}
static int d_alloc(cuda_ptr *p, size_t n)
{
    *p = (cuda_ptr)(uintptr_t)calloc(1, n);
    seen.live++;
    return CUDA_OK;
}
static int d_free(cuda_ptr p)
{
    free((void *)(uintptr_t)p);
    seen.live--;
    return CUDA_OK;
}
static int d_host_alloc(void **p, size_t n, unsigned flags)
{
    (void)flags;
    *p = calloc(1, n);
    seen.live++;
    return CUDA_OK;
}
static int d_host_free(void *p)
{
    free(p);
    seen.live--;
    return CUDA_OK;
}
/* Of a system that locks memory, or does not. */
static int d_lock(void *p, size_t n, unsigned flags)
{
    (void)p, (void)n, (void)flags;
    if (seen.no_lock) return 801;
    seen.live++;
    return CUDA_OK;
}
static int d_unlock(void *p)
{
    (void)p;
    seen.live--;
    return CUDA_OK;
}
static int d_host_ptr(cuda_ptr *d, void *h, unsigned flags)
{
    (void)flags;
    *d = (cuda_ptr)(uintptr_t)h;
    return CUDA_OK;
}
static int d_to_device(cuda_ptr d, const void *h, size_t n, cuda_stream s)
{
    (void)s;
    memcpy((void *)(uintptr_t)d, h, n);
    return CUDA_OK;
}
static int d_to_host(void *h, cuda_ptr d, size_t n, cuda_stream s)
{
    (void)s;
    memcpy(h, (void *)(uintptr_t)d, n);
    return CUDA_OK;
}
/* Nothing is computed here, so nothing is brought anywhere. */
static int d_within(cuda_ptr to, cuda_ptr from, size_t n, cuda_stream s)
{
    (void)s;
    T_CHECK(to != from, "a copy to another place");
    seen.copies++, seen.copied += n;
    return CUDA_OK;
}
static int d_copy2d(const cuda_copy2d *c, cuda_stream s)
{
    T_CHECK(c->width <= c->to.pitch && c->width <= c->from.pitch, "rows do not overlap");
    return d_within(c->to.dev, c->from.dev, c->width * c->rows, s);
}
static int d_capture_begin(cuda_stream s, int mode)
{
    (void)s;
    (void)mode;
    seen.captures++;
    return CUDA_OK;
}
static int d_graph_make(cuda_exec *x, cuda_graph g, uint64_t flags)
{
    (void)g;
    (void)flags;
    seen.graphs++;
    *x = (cuda_exec)(void *)&seen;
    return CUDA_OK;
}
static int d_graph_run(cuda_exec x, cuda_stream s)
{
    (void)x;
    (void)s;
    seen.runs++;
    return CUDA_OK;
}
static int d_launch(const cuda_launch *l, cuda_fn fn, void **params, void **extra)
{
    (void)fn;
    (void)extra;
    if (seen.fail_launch && seen.launches + 1 == seen.fail_launch) return 700;
    seen.launches++;
    seen.programmatic += l->n_attrs == 1 && l->attrs->id == CUDA_LAUNCH_PROGRAMMATIC;
    if (l->n_attrs == 1 && l->attrs->id == CUDA_LAUNCH_COOPERATIVE) {
        seen.cooperative++;
        memcpy(&seen.mega, params[0], sizeof seen.mega);
        for (uint32_t i = 0; i < 4 && i < seen.mega.steps && seen.ids[i] >= 0; i++)
            ((int32_t *)(uintptr_t)seen.mega.ids)[i] = seen.ids[i];
    }
    if (l->shared > seen.most_shared) seen.most_shared = l->shared;
    return CUDA_OK;
}

/* ht_batch.kv_done, asked for while hear is set. */
static struct {
    bool hear;
    uint32_t n, early; /* layers told of; of these, while the run went on */
} told;
static char mark[16]; /* events, by their number */
static void hear_layer(void *user, uint32_t layer)
{
    T_CHECK(user == &told, "the caller's pointer");
    T_EQ_INT(layer, told.n);
    told.n++;
    told.early += seen.busy > 0;
}

static int d_event(cuda_event *e, unsigned flags)
{
    (void)flags;
    *e = (cuda_event)(void *)&mark[seen.events++ % (int)sizeof mark];
    return CUDA_OK;
}
/* Of a plan that tells of layers: begin and end of the run, then the layers', which are over. */
static int d_query(cuda_event e)
{
    if (told.hear && (char *)(void *)e >= mark + 2) return CUDA_OK;
    return seen.busy > 0 && seen.busy-- ? CUDA_NOT_READY : CUDA_OK;
}
/* A set of one word to 1 tells the kernels to stop: the run ends soon. */
static int d_set32(cuda_ptr p, unsigned v, size_t n, cuda_stream s)
{
    (void)s;
    for (size_t i = 0; i < n; i++) ((uint32_t *)(uintptr_t)p)[i] = v;
    if (v != 1 || n != 1) return CUDA_OK;
    seen.stops++;
    seen.busy = 2;
    return CUDA_OK;
}

static ht_dev *open_recorded(const char *opts)
{
    static const char image[1];
    const void *images[CUDA_IMAGES] = {image, image, image, image, image, image};
    ht_err e = {0};
    ht_dev *dev;
    cuda_api api = {.lib = NULL};
    /* Calls without outputs all answer "done"; a call through another type only ignores arguments.
     */
#define X(field, symbol, args) api.field = (int(*) args)(void (*)(void))d_ok;
    CUDA_CALLS(X)
#undef X
    api.count = d_count, api.attr = d_attr, api.fn_attr = d_fn_attr, api.name = d_name;
    api.error_text = d_text, api.alloc = d_alloc, api.free_mem = d_free;
    api.host_alloc = d_host_alloc, api.host_free = d_host_free, api.host_ptr = d_host_ptr;
    api.to_device = d_to_device, api.to_host = d_to_host, api.capture_begin = d_capture_begin;
    api.graph_make = d_graph_make, api.graph_run = d_graph_run, api.launch = d_launch;
    api.event_query = d_query, api.set32 = d_set32, api.within = d_within;
    api.copy2d = d_copy2d;
    api.event_new = d_event, api.function = d_function;
    api.host_lock = d_lock, api.host_unlock = d_unlock;
    api.retain = (int (*)(cuda_ctx *, int))(void (*)(void))d_handle;
    memset(&seen, 0, sizeof seen);
    T_OK(cuda__open_api(&dev, &api, images, opts, &e), e);
    return dev;
}

/* ---- a small model --------------------------------------------------------------------------- */

enum {
    L = 2,
    DIM = 64,
    HEADS = 4,
    KV = 2,
    HD = 64,
    FFN = 128,
    VOCAB = 100,
    CTX = 512,
    PLANE = 1 << 18
};
typedef struct {
    ht_model m;
    ht_layer layer[L];
    ht_layer_spec ls[L];
    float one[HEADS * HD], data[HEADS * HD * DIM]; /* as long as the longest of them */
    ht_kv kv;
    uint8_t cls[L], type[L][2], *plane[L][2];
    uint64_t page_bytes[L][2];
    void *block;
    int wtype;
    uint64_t size; /* bytes of a weight */
} world;

static ht_weight weight(world *w, uint32_t rows, uint32_t cols)
{
    return (ht_weight){.data = w->data,
                       .rows = rows,
                       .cols = cols,
                       .n_mats = 1,
                       .type = (uint8_t)w->wtype,
                       .row_bytes = cols * w->size,
                       .mat_bytes = w->size * rows * cols,
                       .bytes = w->size * rows * cols,
                       .id = w->m.n_weights++};
}

static world *new_world_of(ht_dev *dev, int kv_type, int type)
{
    ht_err e = {0};
    world *w = calloc(1, sizeof *w);
    w->wtype = type;
    w->size = type == HT_F32 ? 4 : 2;
    w->m.layer = w->layer;
    w->m.spec = (ht_spec){.n_layers = L,
                          .dim = DIM,
                          .n_heads = HEADS,
                          .n_kv_heads = KV,
                          .head_dim = HD,
                          .ffn = FFN,
                          .vocab = VOCAB,
                          .ctx_train = CTX,
                          .rms_eps = 1e-5F,
                          .embed_scale = 1,
                          .attn_scale = 0.25F,
                          .layer = w->ls};
    w->m.spec.rope[0] = (ht_rope){HD, 1, w->one, NULL};
    w->m.embed = weight(w, VOCAB, DIM);
    w->m.head = weight(w, VOCAB, DIM);
    w->m.final_norm = w->one;
    T_OK(ht_backend_cuda.kv_alloc(dev, 2 * L * PLANE, &w->block, &e), e);
    for (int i = 0; i < L; i++) {
        ht_layer *l = &w->layer[i];
        l->attn_norm = l->ffn_norm = w->one;
        l->q = weight(w, HEADS * HD, DIM), l->k = weight(w, KV * HD, DIM);
        l->v = weight(w, KV * HD, DIM), l->o = weight(w, DIM, HEADS * HD);
        l->gate = weight(w, FFN, DIM), l->up = weight(w, FFN, DIM), l->down = weight(w, DIM, FFN);
        for (int v = 0; v < 2; v++) {
            w->type[i][v] = (uint8_t)kv_type;
            w->page_bytes[i][v] = ht_kv_page_bytes(kv_type, KV, HD);
            w->plane[i][v] = (uint8_t *)w->block + (size_t)(2 * i + v) * PLANE;
        }
    }
    w->kv = (ht_kv){.n_layers = L,
                    .n_kv_heads = KV,
                    .head_dim = HD,
                    .n_pages = {16, 0},
                    .layer_class = w->cls,
                    .type = w->type,
                    .page_bytes = w->page_bytes,
                    .plane = w->plane};
    T_OK(ht_backend_cuda.load(dev, &w->m, &e), e);
    return w;
}

static world *new_world(ht_dev *dev)
{
    return new_world_of(dev, HT_KV_F32, HT_F32);
}

static void free_world(world *w, ht_dev *dev)
{
    ht_backend_cuda.kv_free(dev, w->block, 2 * L * PLANE);
    ht_backend_cuda.close(dev);
    T_EQ_INT(seen.live, 0); /* all that was taken from the driver went back */
    free(w);
}

static int plan(world *w, ht_dev *dev, uint16_t rows, uint16_t steps, ht_plan **p, ht_err *e)
{
    ht_stage tape[5 * L + 4];
    ht_cut cut[5 * L + 4];
    ht_bucket b = {.rows = rows, .seqs = 1, .want = 1, .steps = steps, .ctx = CTX};
    b.flags = told.hear ? HT_KV_DONE : 0;
    b.kv_fmt = (uint16_t)(w->type[0][0] | w->type[0][1] << 8);
    size_t n = ht_tape(&w->m, tape, 5 * L + 3);
    if (steps) tape[n++] = (ht_stage){HT_SAMPLE, 0, -1};
    size_t k = ht_cover(&ht_backend_cuda, dev, &w->m, tape, n, &b, NULL, NULL, cut, e);
    if (!k) return e->code;
    return ht_backend_cuda.plan(p, dev, &w->kv, tape, cut, k, &b, e);
}

static int run_steps(ht_plan *p, const int32_t *token, uint32_t steps, const int32_t *end_id,
                     ht_err *e)
{
    static const int32_t pos[1] = {3};
    static const uint16_t seq[1];
    static const uint32_t want[1], page[CTX / HT_PAGE];
    ht_batch b = {.rows = 1,
                  .seqs = 1,
                  .n_want = 1,
                  .token = token,
                  .pos = pos,
                  .seq = seq,
                  .page = {page, NULL},
                  .want = want,
                  .steps = steps,
                  .n_end = end_id != NULL,
                  .end_id = end_id};
    if (told.hear) b.kv_done = hear_layer, b.kv_user = &told;
    HT_TRY(ht_backend_cuda.run(p, &b, e));
    return ht_backend_cuda.wait(p, NULL, e);
}

static int run(ht_plan *p, const int32_t *token, ht_err *e)
{
    return run_steps(p, token, 0, NULL, e);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* Every kernel is launched once, into a graph, as a dependent of the one before; a run only
 * replays. */
T_CASE(cuda, a_plan_is_captured_once)
{
    ht_err e = {0};
    ht_dev *dev = open_recorded("threads=2,gpu=0");
    world *w = new_world(dev);
    ht_plan *p;
    ht_run_stats st;
    int32_t token = 7;
    const int packed = seen.launches;
    T_EQ_INT(packed, 1 + 4 * L); /* embedding and head are one; QKV; output; gate and up; down */
    T_OK(plan(w, dev, 1, 0, &p, &e), e);
    T_EQ_INT(seen.launches - packed, 5 * L + 2); /* start with embed; a layer's five; head */
    T_EQ_INT(seen.programmatic, seen.launches - packed);
    T_EQ_INT(seen.captures + seen.graphs, 2);
    T_CHECK(seen.most_shared <= 232448 - 1024, "%u bytes", seen.most_shared);
    uint64_t before = ht_alloc_count();
    T_OK(run(p, &token, &e), e);
    T_OK(run(p, &token, &e), e);
    T_EQ_INT(ht_alloc_count(), before);
    T_EQ_INT(seen.runs, 2);
    T_EQ_INT(seen.launches - packed, 5 * L + 2);
    T_EQ_INT(ht_backend_cuda.stats(p, &st), 0);
    T_EQ_INT(st.dispatches, 5 * L + 2);
    ht_backend_cuda.plan_free(p);
    /* Chained steps are one graph. */
    T_OK(plan(w, dev, 1, 4, &p, &e), e);
    T_EQ_INT(seen.launches - packed, 5 * (5 * L + 2));
    T_EQ_INT(seen.graphs, 2);
    ht_backend_cuda.plan_free(p);
    free_world(w, dev);
}

/* A plan whose runs tell of layers is a graph a layer, of the same kernels; a layer is told of when
 * the event behind it has come, the last one with the run, and none of a run that was cancelled. */
T_CASE(cuda, a_run_tells_of_its_layers)
{
    ht_err e = {0};
    ht_dev *dev = open_recorded("");
    world *w = new_world(dev);
    ht_plan *p;
    ht_run_stats st;
    int32_t token = 7;
    const int packed = seen.launches;
    told.hear = true;
    T_OK(plan(w, dev, 1, 0, &p, &e), e);
    T_EQ_INT(seen.launches - packed, 5 * L + 2);
    T_EQ_INT(seen.graphs, L);
    seen.busy = 2;
    T_OK(run(p, &token, &e), e);
    T_EQ_INT(told.n, L);
    T_EQ_INT(told.early, L - 1);
    T_EQ_INT(seen.runs, L);
    T_EQ_INT(ht_backend_cuda.stats(p, &st), 0);
    T_EQ_INT(st.dispatches, 5 * L + 2);
    told.n = 0;
    T_EQ_INT(ht_backend_cuda.cancel(p), 0);
    seen.busy = 2;
    T_ERR(run(p, &token, &e), HT_ECANCELLED, e, "cancelled");
    T_EQ_INT(told.n, 0);
    ht_backend_cuda.plan_free(p);
    told.hear = false;
    free_world(w, dev);
}

/* A group of two: each rank's kernels, and behind a stage the copies of what each has written, all
 * in one graph. A kernel behind a copy waits for it; a lone row's heads need no place of their own;
 * all ranks are told to stop. */
T_CASE(cuda, a_group_is_captured_with_its_copies)
{
    enum { KERNELS = 2 * (5 * L + 2), COPIES = 8 * L + 1, X = 4 * DIM };
    enum { LAYER = 2 * X + 4 * HEADS * HD + 4 * FFN }; /* bytes of a row */
    ht_err e = {0};
    ht_dev *dev = open_recorded("ranks=2");
    world *w = new_world(dev);
    ht_plan *p;
    ht_run_stats st;
    char text[1024];
    int32_t token = 7;
    const int packed = seen.launches;
    T_EQ_INT(packed, 1 + 2 * (1 + 4 * L)); /* one embedding; each rank's head and layers */
    T_OK(plan(w, dev, 1, 0, &p, &e), e);
    T_EQ_INT(seen.launches - packed, KERNELS);
    T_EQ_INT(seen.copies, COPIES);
    T_EQ_INT(seen.copied, X + L * LAYER);
    T_EQ_INT(seen.programmatic, KERNELS - 4 * L - 1); /* QKV, output, up, down; head */
    T_EQ_INT(seen.captures + seen.graphs, 2);
    T_OK(run(p, &token, &e), e);
    T_EQ_INT(ht_backend_cuda.stats(p, &st), 0);
    T_EQ_INT(st.dispatches, KERNELS + COPIES);
    T_EQ_INT(ht_backend_cuda.plan_describe(p, text, sizeof text), 0);
    T_CHECK(strstr(text, "\"kernels\":24,") && strstr(text, "\"ranks\":2,\"copies\":17,") &&
                strstr(text, "\"exchangedBytesPerRow\":4352}"),
            "%s", text);
    T_EQ_INT(ht_backend_cuda.cancel(p), 0);
    seen.busy = 1000;
    T_ERR(run(p, &token, &e), HT_ECANCELLED, e, "cancelled");
    T_EQ_INT(seen.stops, 2);
    ht_backend_cuda.plan_free(p);
    /* Five rows, of which the last layer keeps one: heads of the first go through rows of their
     * own, from each rank to both. */
    seen.copies = 0, seen.copied = 0;
    told.hear = true;
    T_OK(plan(w, dev, 5, 0, &p, &e), e);
    told.hear = false;
    T_EQ_INT(seen.graphs, 1 + L);
    T_EQ_INT(seen.copies, COPIES + 2);
    T_EQ_INT(seen.copied, 5 * (X + LAYER + 4 * HEADS * HD) + (L - 1) * LAYER);
    T_EQ_INT(p->exchanged, 5 * (X + LAYER) + (L - 1) * LAYER);
    ht_backend_cuda.plan_free(p);
    free_world(w, dev);
}

/* Every byte of a token's weights is asked for once, by one warp, and in order. */
static void check_lists(uint32_t blocks)
{
    uint64_t total = 0, want = 0;
    const cuda_mega *a = &seen.mega;
    for (uint32_t i = 0; i < a->n_mats; i++)
        want += cuda__mat_bytes(&((const cuda_mega_mat *)(uintptr_t)a->mat)[i].m);
    for (uint32_t i = 0; i < blocks * CUDA_WARPS; i++) {
        const uint64_t *list = (const uint64_t *)(uintptr_t)a->pieces + (size_t)i * a->list_words;
        T_CHECK(list[0] < a->list_words, "warp %u: %llu pieces", i, (unsigned long long)list[0]);
        for (uint64_t k = 1; k <= list[0]; k++) {
            uint64_t at = list[k] & 0xffffffffffffULL, n = (list[k] >> 48) * 16;
            bool inside = false;
            for (uint32_t m = 0; m < a->n_mats && !inside; m++) {
                const cuda_mat *mat = &((const cuda_mega_mat *)(uintptr_t)a->mat)[m].m;
                inside = at >= mat->w && at + n <= mat->w + cuda__mat_bytes(mat);
            }
            T_SOFT(n > 0 && n <= CUDA_PIECE && inside, "warp %u piece %llu", i,
                   (unsigned long long)k);
            total += n;
        }
    }
    T_CHECK(total == want && want > 0, "%llu of %llu bytes", (unsigned long long)total,
            (unsigned long long)want);
}

/* A dense model with F16 cache decodes in one cooperative launch, whatever the number of steps; the
 * option level=1 has graphs instead. */
T_CASE(cuda, whole_steps_are_one_launch)
{
    ht_err e = {0};
    card_sms = 32; /* as many as this little model keeps busy */
    ht_dev *dev = open_recorded("");
    world *w = new_world_of(dev, HT_KV_F16, HT_F16);
    ht_plan *p;
    ht_run_stats st;
    int32_t token = 7;
    T_OK(plan(w, dev, 1, 4, &p, &e), e);
    T_EQ_INT(seen.graphs, 0);
    T_OK(run(p, &token, &e), e);
    T_OK(run(p, &token, &e), e);
    T_EQ_INT(seen.cooperative, 2);
    T_EQ_INT(ht_backend_cuda.stats(p, &st), 0);
    T_EQ_INT(st.dispatches, 1);
    T_EQ_INT(seen.mega.steps, 4);
    T_EQ_INT(seen.mega.epoch, 1 + 4 * (L + 1)); /* the second run's words are new ones */
    T_CHECK(seen.most_shared <= 232448 - 1024, "%u bytes", seen.most_shared);
    check_lists(dev->blocks);
    ht_backend_cuda.plan_free(p);
    dev->level1 = true;
    T_OK(plan(w, dev, 1, 4, &p, &e), e);
    T_EQ_INT(seen.graphs, 1);
    ht_backend_cuda.plan_free(p);
    free_world(w, dev);
}

/* A run of several tokens: fewer than the plan's when the caller says so, at either level; ended by
 * the host behind a token that it waits for, with what came until then; and a cancel beats that. */
T_CASE(cuda, a_run_of_several_tokens_ends_early)
{
    ht_err e = {0};
    card_sms = 32;
    ht_dev *dev = open_recorded("");
    world *w = new_world_of(dev, HT_KV_F16, HT_F16);
    ht_plan *p;
    ht_run_stats st;
    const int32_t token = 7, end = 9, *ids;
    size_t n = 0;
    T_OK(plan(w, dev, 1, 4, &p, &e), e);
    memcpy(seen.ids, (int32_t[4]){5, 6, 8, 3}, sizeof seen.ids);
    T_OK(run_steps(p, &token, 3, &end, &e), e);
    T_EQ_INT(seen.mega.steps, 3);
    T_OK(ht_backend_cuda.tokens(p, &ids, &n, &e), e);
    T_CHECK(n == 3 && ids[0] == 5 && ids[2] == 8 && ids[3] == -1, "%zu tokens", n);
    T_EQ_INT(ht_backend_cuda.stats(p, &st), 0);
    const uint64_t three = st.bytes;
    seen.busy = 1000;
    memcpy(seen.ids, (int32_t[4]){5, 9, -1, -1}, sizeof seen.ids);
    T_OK(run_steps(p, &token, 0, &end, &e), e);
    T_EQ_INT(seen.mega.steps, 4);
    T_EQ_INT(seen.mega.epoch, 1 + 3 * (L + 1));
    T_EQ_INT(seen.stops, 1);
    T_OK(ht_backend_cuda.tokens(p, &ids, &n, &e), e);
    T_CHECK(n == 2 && ids[0] == 5 && ids[1] == 9, "%zu tokens", n);
    T_EQ_INT(ht_backend_cuda.stats(p, &st), 0);
    T_CHECK(st.bytes > 0 && st.bytes < three, "two tokens are counted");
    seen.busy = 1000;
    T_EQ_INT(ht_backend_cuda.cancel(p), 0);
    T_ERR(run_steps(p, &token, 0, &end, &e), HT_ECANCELLED, e, "cancelled");
    T_EQ_INT(seen.stops, 2);
    /* The tokens that the card had picked by then are there. */
    T_OK(ht_backend_cuda.tokens(p, &ids, &n, &e), e);
    T_CHECK(n == 2 && ids[0] == 5 && ids[1] == 9, "%zu tokens", n);
    seen.ids[0] = -1;
    seen.busy = 1000;
    T_EQ_INT(ht_backend_cuda.cancel(p), 0);
    T_ERR(run_steps(p, &token, 0, &end, &e), HT_ECANCELLED, e, "cancelled");
    T_OK(ht_backend_cuda.tokens(p, &ids, &n, &e), e);
    T_EQ_INT(n, 0);
    T_ERR(run_steps(p, &token, 5, &end, &e), HT_EARG, e, "5 steps of a plan for 4");
    ht_backend_cuda.plan_free(p);
    dev->level1 = true;
    T_OK(plan(w, dev, 1, 4, &p, &e), e);
    const int graphs = seen.runs, kernels = seen.launches;
    T_OK(run_steps(p, &token, 3, NULL, &e), e); /* the graph holds four */
    T_EQ_INT(seen.runs, graphs);
    T_EQ_INT(seen.launches - kernels, 3 * (5 * L + 2));
    T_EQ_INT(ht_backend_cuda.stats(p, &st), 0);
    T_EQ_INT(st.dispatches, 3 * (5 * L + 2));
    T_OK(run_steps(p, &token, 4, NULL, &e), e);
    T_EQ_INT(seen.runs, graphs + 1);
    ht_backend_cuda.plan_free(p);
    free_world(w, dev);
}

/* The failing launch is named by its stage; afterwards nothing runs, here or anywhere else. */
T_CASE(cuda, errors_stick_and_name_the_stage)
{
    ht_err e = {0};
    ht_dev *dev = open_recorded("");
    world *w = new_world(dev);
    ht_plan *p, *q;
    int32_t token = 1;
    T_OK(plan(w, dev, 1, 0, &p, &e), e);
    seen.fail_launch = seen.launches + 3; /* start, QKV, then attention */
    T_ERR(plan(w, dev, 1, 0, &q, &e), HT_EDEVICE, e, "attn.0: CUDA error 700, planted");
    T_ERR(run(p, &token, &e), HT_EDEVICE, e, "failed before");
    T_ERR(plan(w, dev, 1, 0, &q, &e), HT_EDEVICE, e, "failed before");
    ht_backend_cuda.plan_free(p);
    free_world(w, dev);
}

/* A pool's host memory is locked for moves and given back; a system that locks none is told apart
 * from a device that failed, and pages move from ordinary memory just so. */
T_CASE(cuda, host_memory_is_locked_or_not)
{
    static const uint32_t page[3] = {1, 2, 5};
    ht_err e = {0};
    ht_dev *dev = open_recorded("");
    world *w = new_world(dev);
    uint8_t *host = calloc(1, (size_t)2 * L * PLANE), *plane[L][2], *const was = host + PLANE;
    ht_kv kv = w->kv;
    for (size_t i = 0; i < L; i++)
        for (size_t v = 0; v < 2; v++) plane[i][v] = host + (2 * i + v) * PLANE;
    kv.plane = plane;
    T_OK(ht_backend_cuda.kv_pin(dev, host, (size_t)2 * L * PLANE, &e), e);
    const int locked = seen.live;
    ht_backend_cuda.kv_unpin(dev, host);
    T_EQ_INT(seen.live, locked - 1);
    seen.no_lock = true;
    T_ERR(ht_backend_cuda.kv_pin(dev, host, (size_t)2 * L * PLANE, &e), HT_EUNSUPPORTED, e,
          "does not lock 1 MiB of host memory (CUDA error 801, planted)");
    for (size_t i = 0; i < PLANE; i++) was[i] = (uint8_t)(i * 7 + i / 1000);
    uint8_t *want = malloc(PLANE);
    memcpy(want, was, PLANE);
    T_OK(ht_backend_cuda.kv_move(dev, &w->kv, &kv, 0, L, page, 3, &e), e);
    memset(was, 0, PLANE);
    T_OK(ht_backend_cuda.kv_move(dev, &kv, &w->kv, 0, L, page, 3, &e), e);
    const size_t n = (size_t)w->page_bytes[0][1];
    for (uint32_t i = 0; i < 6; i++) {
        const bool moved = i == 1 || i == 2 || i == 5;
        T_CHECK((memcmp(was + i * n, want + i * n, n) == 0) == moved, "page %u", i);
    }
    free(want);
    free(host);
    free_world(w, dev);
}

/* act f16: a prompt's layers go to tensor cores, from a copy of the weights that is made once; few
 * rows and the rows wanted of the last layer do not; other caches and shapes are refused. */
T_CASE(cuda, act_f16_has_prompts_on_tensor_cores)
{
    enum { COPIES = 4 * L, LAYER = 8, LAST = 7 }; /* LAYER: with a norm in front */
    ht_err e = {0};
    ht_dev *dev = open_recorded("");
    world *w = new_world_of(dev, HT_KV_F16, HT_F16);
    ht_stage tape[5 * L + 3];
    ht_cut cut[5 * L + 3];
    ht_bucket b = {.rows = 100,
                   .seqs = 2,
                   .want = 1,
                   .ctx = CTX,
                   .act = HT_ACT_F16,
                   .kv_fmt = HT_KV_F16 | HT_KV_F16 << 8};
    size_t n = ht_tape(&w->m, tape, 5 * L + 3);
    for (int k = 0; k < 2; k++) {
        ht_plan *p;
        const int before = seen.launches;
        size_t cuts = ht_cover(&ht_backend_cuda, dev, &w->m, tape, n, &b, NULL, NULL, cut, &e);
        T_EQ_INT(cuts, 9);
        T_CHECK(!strcmp(cut[1].span->name, "layer.tensor.cuda"), "%s", cut[1].span->name);
        T_CHECK(!strcmp(cut[2].span->name, "qkv.tensor.cuda"), "%s", cut[2].span->name);
        T_OK(ht_backend_cuda.plan(&p, dev, &w->kv, tape, cut, cuts, &b, &e), e);
        T_EQ_INT(seen.launches - before, (k ? 0 : COPIES) + 1 + LAYER + LAST);
        T_CHECK(seen.most_shared <= 232448 - 1024, "%u bytes", seen.most_shared);
        ht_backend_cuda.plan_free(p);
    }
    b.rows = 8;
    size_t cuts = ht_cover(&ht_backend_cuda, dev, &w->m, tape, n, &b, NULL, NULL, cut, &e);
    for (size_t i = 0; i < cuts; i++)
        T_CHECK(!strstr(cut[i].span->name, "tensor"), "%s", cut[i].span->name);
    T_EQ_INT(cuts, n);
    b.rows = 100, b.kv_fmt = HT_KV_F32 | HT_KV_F32 << 8;
    T_EQ_INT(ht_cover(&ht_backend_cuda, dev, &w->m, tape, n, &b, NULL, NULL, cut, &e), 0);
    T_EQ_INT(e.code, HT_EUNSUPPORTED);
    b.kv_fmt = HT_KV_F16 | HT_KV_F16 << 8, w->ls[1].window = 64;
    T_EQ_INT(ht_cover(&ht_backend_cuda, dev, &w->m, tape, n, &b, NULL, NULL, cut, &e), 0);
    w->ls[1].window = 0;
    free_world(w, dev);
}

T_CASE(cuda, what_is_not_covered_is_refused)
{
    ht_err e = {0};
    ht_dev *dev = open_recorded("");
    world *w = new_world(dev);
    ht_stage st = {HT_ROUTE, 0, 0};
    ht_bucket b = {.rows = 1, .seqs = 1, .want = 1, .ctx = CTX};
    ht_cut cut;
    for (int k = 0; k < HT_KINDS; k++) {
        st.kind = (uint16_t)k;
        bool dense = k != HT_ROUTE && k != HT_EXPERTS && k != HT_SAMPLE;
        b.act = HT_ACT_F32;
        size_t n = ht_cover(&ht_backend_cuda, dev, &w->m, &st, 1, &b, NULL, NULL, &cut, &e);
        T_EQ_INT(n, dense);
        b.act = HT_ACT_Q8;
        T_EQ_INT(ht_cover(&ht_backend_cuda, dev, &w->m, &st, 1, &b, NULL, NULL, &cut, &e), 0);
        T_EQ_INT(e.code, HT_EUNSUPPORTED);
    }
    int32_t token = VOCAB;
    ht_plan *p;
    T_OK(plan(w, dev, 1, 0, &p, &e), e);
    T_ERR(run(p, &token, &e), HT_EARG, e, "token 100");
    uint8_t host[16], *keep = w->plane[1][0];
    w->plane[1][0] = host;
    T_ERR(ht_backend_cuda.kv_attach(dev, &w->kv, &e), HT_EUNSUPPORTED, e, "host memory");
    w->plane[1][0] = keep;
    ht_backend_cuda.plan_free(p);
    free_world(w, dev);
}

/* Element k of a device row, by the drawing in kern.h. */
static float element(int type, const uint8_t *row, uint32_t cols, uint32_t k)
{
    uint32_t word;
    uint16_t d[2];
    int bit = (int)(4 * (k % 8 / 2) + 16 * (k % 2));
    if (type == CUDA_Q8_0) {
        memcpy(d, row + cols + k / 32 * 2, 2);
        return (float)((int)row[k] - 128) * ht_f16_to_f32(d[0]);
    }
    memcpy(&word, row + k / 8 * 4, 4);
    float level = (float)(word >> bit & 15);
    if (type == CUDA_Q4_0) {
        memcpy(d, row + cols / 2 + k / 32 * 2, 2);
        return (level - 8) * ht_f16_to_f32(d[0]);
    }
    if (type == CUDA_Q4_1) {
        memcpy(d, row + cols / 2 + k / 32 * 4, 4);
        return level * ht_f16_to_f32(d[0]) + ht_f16_to_f32(d[1]);
    }
    const uint8_t *sc = row + cols / 2 + k / 32 * 2;
    if (type == CUDA_Q4_K) {
        memcpy(d, row + cols / 2 + cols / 16 + k / 256 * 4, 4);
        float scale = ht_f16_to_f32(d[0]) * (float)sc[0], min = ht_f16_to_f32(d[1]) * (float)sc[1];
        return scale * level - min;
    }
    memcpy(&word, row + cols / 2 + k / 16 * 4, 4);
    level += (float)(16 * (word >> (2 * (k % 16 / 2) + 16 * (k % 2)) & 3));
    memcpy(d, row + cols / 2 + cols / 4 + cols / 16 + k / 256 * 2, 2);
    return ht_f16_to_f32(d[0]) * (float)(int8_t)row[cols / 2 + cols / 4 + k / 16] * (level - 32);
}

/* Rows on the device hold exactly what the tiles of r16/1 hold, for every quantised form. */
T_CASE(cuda, device_rows_hold_the_same_weights)
{
    static const int types[] = {HT_Q8_0, HT_Q4_0, HT_Q4_1, HT_Q4_K, HT_Q6_K};
    enum { COLS = 512, ROWS = 5 };
    uint64_t seed = 9;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        ht_weight w = {.type = (uint8_t)types[i]};
        int type = cuda__type_of(&w);
        float x[COLS];
        uint64_t row_bytes;
        T_TRUE(ht_row_bytes(types[i], COLS, &row_bytes));
        uint8_t *src = malloc(ROWS * row_bytes);
        uint8_t *tile = malloc(ht_r16_tile_bytes(types[i], COLS));
        for (int r = 0; r < ROWS; r++) {
            for (int k = 0; k < COLS; k++) x[k] = t_randf(&seed);
            ht_types[types[i]].encode(x, src + (size_t)r * row_bytes, COLS);
        }
        ht_r16_pack(types[i], src, ROWS, COLS, 0, 1, tile);
        uint32_t stride = cuda__stride(type, COLS);
        T_EQ_INT(stride % 16, 0);
        uint8_t *rows = malloc((size_t)ROWS * stride);
        cuda__rows_of_tile(type, tile, ROWS, COLS, stride, rows);
        for (uint32_t r = 0; r < ROWS; r++) {
            ht_types[types[i]].decode(src + r * row_bytes, x, COLS);
            for (uint32_t k = 0; k < COLS; k++)
                T_SOFT(element(type, rows + (size_t)r * stride, COLS, k) == x[k],
                       "%s row %u col %u", ht_types[types[i]].name, r, k);
        }
        free(src);
        free(tile);
        free(rows);
    }
}

/* Without a card the engine says why; with one it opens. Either way `doctor` has a sentence. */
T_CASE(cuda, absence_has_a_reason)
{
    ht_err e = {0};
    ht_dev *dev = NULL;
    char text[512];
    int rc = ht_backend_cuda.open(&dev, "", &e);
    if (rc) {
        T_EQ_INT(rc, HT_EUNSUPPORTED);
        T_CHECK(strlen(e.msg) > 20 && !dev, "%s", e.msg);
    } else {
        T_EQ_INT(ht_backend_cuda.describe(dev, text, sizeof text), 0);
        ht_backend_cuda.close(dev);
    }
}
