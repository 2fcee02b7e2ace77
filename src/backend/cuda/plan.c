/* plan.c - a part of the tape made ready: its memory on the device and the host, its kernels in
 * order, and the graph they are captured into, once. Nothing is allocated after it, except a
 * register's host copy when it is first asked for. */
#include "backend/cuda/cuda.h"

#include <string.h>

enum { PARTS_UP_TO = 8 }; /* rows of a batch whose attention is split over blocks */

/* ---- memory ---------------------------------------------------------------------------------- */

/* Hands out the plan's device memory, or only adds it up while it has none. */
static cuda_ptr take(ht_plan *p, uint64_t count, uint64_t size)
{
    cuda_ptr at = p->memory + p->used;
    p->used += (count * size + 255) / 256 * 256;
    return at;
}

/* Rows are 16 bits and widths bounded by the reader of specs: products fit 64 bits. */
static void take_rank(ht_plan *p, cuda_rank *r)
{
    const ht_spec *s = &p->m->spec;
    const ht_bucket *b = &p->b;
    const uint32_t size = p->dev->size, sms = (uint32_t)p->dev->sms;
    const uint32_t own_l = cuda__share(size, (uint32_t)(r - p->rank), s->vocab, CUDA_TILES).rows;
    uint64_t rows = b->rows, want = b->want ? b->want : 1, nq = (uint64_t)s->n_heads * s->head_dim;
    uint64_t own = nq / size, nkv = (uint64_t)s->n_kv_heads * s->head_dim / size,
             heads = (s->n_heads + 2 * (uint64_t)s->n_kv_heads) / size;
    r->x = take(p, rows * s->dim, 4);
    r->q = take(p, rows * own, 4);
    r->a = take(p, rows * nq, 4);
    r->own_a = size > 1 ? take(p, rows * own, 4) : 0;
    r->h = take(p, rows * s->ffn, 4);
    r->l = take(p, want * own_l, 4);
    r->x2 = take(p, want * s->dim, 4);
    r->q2 = take(p, want * own, 4);
    r->qkv = take(p, rows * (own + 2 * nkv), 4);
    r->raw = take(p, rows * s->dim, 4);
    r->rope_table = take(p, rows * (s->rope[0].dims + s->rope[1].dims + 4), 4);
    /* What few rows attend from: a small batch, or the rows wanted of a large one. */
    const uint64_t few = rows <= PARTS_UP_TO ? rows : want <= PARTS_UP_TO ? want : 0;
    r->part = take(p, few * (s->n_heads / size) * CUDA_CLASSES * (s->head_dim + 2), 4);
    p->part_rows = (uint32_t)few;
    r->best_value = take(p, want * sms, 4);
    r->best_id = take(p, want * sms, 4);
    p->n_arrived = (uint32_t)(rows * heads + 1);
    r->arrived = take(p, p->n_arrived, 4);
    r->feed.word = take(p, r->feed.n_words, 4);
    r->feed.stop = take(p, 1, 4);
    r->x_now = r->x, r->q_now = r->q;
}

static void take_all(ht_plan *p)
{
    const ht_bucket *b = &p->b;
    p->used = 0;
    for (uint32_t i = 0; i < p->dev->size; i++) take_rank(p, &p->rank[i]);
    if (cuda__tc_batch(b)) {
        const cuda_tc_needs n = cuda__tc_needs(p->dev, b);
        p->tc_x = take(p, n.x, 1);
        p->tc_q = take(p, n.a, 1);
        p->tc_a = take(p, n.a, 1);
        p->tc_h = take(p, n.h, 1);
        p->tc_part = take(p, n.part, 1);
    }
}

/* Offsets of the batch's words, the same for all ranks. */
static int lay_out_feed(ht_plan *p, ht_err *e)
{
    const ht_bucket *b = &p->b;
    cuda_feed *f = &p->rank[0].feed;
    uint64_t table = (b->ctx + HT_PAGE - 1) / HT_PAGE,
             n = CUDA_WORDS_HEAD + 3 * (uint64_t)b->rows + b->want + b->seqs + 2 * table * b->seqs;
    if (n > UINT32_MAX / 8)
        return HT_FAIL(e, HT_EARG,
                       "cuda: a batch of %u sequences of %u positions is too large to describe",
                       (unsigned)b->seqs, b->ctx);
    f->token = CUDA_WORDS_HEAD;
    f->pos = f->token + b->rows;
    f->seq = f->pos + b->rows;
    f->want = f->seq + b->rows;
    f->lengthy = f->want + b->want;
    f->page[0] = f->lengthy + b->seqs;
    f->page[1] = f->page[0] + (uint32_t)table * b->seqs;
    f->n_table = (uint32_t)table;
    f->n_words = (uint32_t)n;
    for (uint32_t i = 1; i < p->dev->size; i++) p->rank[i].feed = *f;
    return 0;
}

int cuda__host_memory(ht_plan *p, void **host, cuda_ptr *dev, size_t bytes, ht_err *e)
{
    const cuda_api *api = &p->dev->api;
    if (api->host_alloc(host, bytes, CUDA_HOST_MAPPED) != CUDA_OK) {
        *host = NULL;
        return HT_FAIL(e, HT_ENOMEM, "cuda: %zu KiB of pinned host memory refused", bytes >> 10);
    }
    memset(*host, 0, bytes);
    return cuda__check(p->dev, api->host_ptr(dev, *host, 0), "mapping host memory", NULL, e);
}

static int take_memory(ht_plan *p, ht_err *e)
{
    ht_dev *dev = p->dev;
    HT_TRY(lay_out_feed(p, e));
    take_all(p);
    p->bytes = p->used;
    if (dev->api.alloc(&p->memory, p->bytes) != CUDA_OK) {
        p->memory = 0;
        return HT_FAIL(e, HT_ENOMEM,
                       "cuda: plan of %u rows, context %u: %llu MiB on the device refused",
                       (unsigned)p->b.rows, p->b.ctx, (unsigned long long)(p->bytes >> 20));
    }
    take_all(p);
    HT_TRY(cuda__check(dev, dev->api.set32(p->memory, 0, p->bytes / 4, dev->stream),
                       "clearing a plan", NULL, e));
    HT_TRY(
        cuda__host_memory(p, (void **)&p->words, &p->words_dev, (size_t)p->r->feed.n_words * 4, e));
    size_t steps = p->b.steps ? p->b.steps : 1, want = p->b.want ? p->b.want : 1;
    return cuda__host_memory(p, (void **)&p->ids, &p->ids_dev, steps * want * sizeof *p->ids, e);
}

/* ---- the list of kernels --------------------------------------------------------------------- */

cuda_op *cuda__op(ht_plan *p, const ht_stage *st, cuda_fn fn, uint32_t threads, uint32_t gx,
                  uint32_t gy, uint32_t gz, ht_err *e)
{
    if (p->n_ops == p->cap_ops || gy > UINT16_MAX || gz > UINT16_MAX) {
        (void)HT_FAIL(e, HT_EARG, "cuda: more kernels or blocks than a plan can hold");
        return NULL;
    }
    cuda_op *op = &p->op[p->n_ops++];
    *op = (cuda_op){.fn = fn, .grid = {gx, gy, gz}, .threads = threads};
    if (st) op->stage = *st;
    return op;
}

static int put_start(ht_plan *p, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    cuda_op *op = cuda__op(p, NULL, p->dev->start, CUDA_THREADS, p->b.rows, 1, 1, e);
    if (!op) return HT_EARG;
    cuda_start a = {.f = p->r->feed, .host = p->words_dev, .dim = s->dim, .scale = s->embed_scale};
    cuda__rope(p, &a.rope);
    op->args.start = a;
    op->stage = (ht_stage){HT_EMBED, 0, -1};
    return 0;
}

/* A cut's kernels, rank after rank, and the copies behind them. */
static int encode_cut(ht_plan *p, const ht_cut *cut, const ht_stage *at, ht_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < p->dev->size && !rc; i++) {
        p->r = &p->rank[i];
        rc = cut->span->encode(p, at, cut->n, e);
    }
    p->r = p->rank;
    return rc ? rc : cuda__group_exchange(p, &at[cut->n - 1], e);
}

static int encode_cuts(ht_plan *p, const ht_stage *tape, const ht_cut *cut, size_t n_cuts,
                       ht_err *e)
{
    const size_t size = p->dev->size;
    size_t stages = 0;
    for (size_t i = 0; i < n_cuts; i++) stages += cut[i].n;
    /* QKV of three weight types, widened, a norm; the start; copies from each rank to each. */
    p->cap_ops = size * (8 * stages + 1 + stages * size);
    p->op = ht_arena_array(p->arena, p->cap_ops, sizeof *p->op);
    p->stage = ht_arena_array(p->arena, stages, sizeof *p->stage);
    if (!p->op || !p->stage)
        return HT_FAIL(e, HT_ENOMEM, "cuda: plan of %zu cuts: out of memory", n_cuts);
    p->mega = n_cuts == 1 && cut[0].span == &cuda__span_mega;
    for (size_t i = 0; i < size && !p->mega; i++) {
        p->r = &p->rank[i];
        HT_TRY(put_start(p, e));
    }
    p->r = p->rank;
    for (size_t i = 0; i < n_cuts; i++) {
        const ht_stage *at = &tape[cut[i].at];
        if ((at->kind == HT_QKV || at->kind == HT_ATTN) && !p->kv)
            return HT_FAIL(e, HT_EARG, "cuda: stage %s needs a KV pool", ht_kind_name(at->kind));
        /* Nobody wants a row: the step ends when all keys and values are cached. */
        if (p->b.want == 0 && (at->kind == HT_PICK || at->kind == HT_HEAD)) break;
        HT_TRY(encode_cut(p, &cut[i], at, e));
        p->exec_fold = ht_exec_add(p->exec_fold, ht_exec_id(&cut[i]));
        p->exec_cuts++;
        for (uint32_t k = 0; k < cut[i].n; k++) p->stage[p->n_stages++] = at[k];
    }
    if (p->b.steps > 1 && !(p->sampled && p->embedded))
        return HT_FAIL(e, HT_EARG, "cuda: %u chained steps need a tape from embed to sample",
                       (unsigned)p->b.steps);
    return 0;
}

/* ---- launching and capture ------------------------------------------------------------------- */

/* A kernel may start before the one in front has ended, but not before a copy has. */
static int launch_kernel(ht_plan *p, uint32_t step, size_t i, ht_err *e)
{
    ht_dev *dev = p->dev;
    const cuda_op *op = &p->op[i];
    cuda_args args = op->args;
    void *params[] = {&args};
    cuda_launch_attr attr = {.id = CUDA_LAUNCH_PROGRAMMATIC, .value = 1};
    cuda_launch l = {.grid = {op->grid[0], op->grid[1], op->grid[2]},
                     .block = {op->threads, 1, 1},
                     .shared = op->shared,
                     .stream = dev->stream,
                     .attrs = &attr,
                     .n_attrs = dev->dependent && (i == 0 || op[-1].fn)};
    if (i == 0 && step > 0) args.start.host = 0;
    if (op->stage.kind == HT_HEAD) args.mul.step = step;
    return cuda__check(dev, dev->api.launch(&l, op->fn, params, NULL), "launching a kernel",
                       &op->stage, e);
}

/* Kernels and copies [from, to) of a step. */
static int launch_some(ht_plan *p, uint32_t step, size_t from, size_t to, ht_err *e)
{
    ht_dev *dev = p->dev;
    for (size_t i = from; i < to; i++) {
        const cuda_op *op = &p->op[i];
        if (op->fn) HT_TRY(launch_kernel(p, step, i, e));
        else
            HT_TRY(cuda__check(dev, cuda__copy_rows(dev, &op->args.copy, dev->stream),
                               "copying between ranks", &op->stage, e));
        if (dev->sync)
            HT_TRY(cuda__check(dev, dev->api.stream_sync(dev->stream), "running a kernel",
                               &op->stage, e));
    }
    return 0;
}

int cuda__launch(ht_plan *p, uint32_t step, ht_err *e)
{
    return launch_some(p, step, 0, p->n_ops, e);
}

/* Kernels [from, to) of all steps, one after the other, into a graph. */
static int capture_piece(ht_plan *p, cuda_piece *piece, size_t from, size_t to, ht_err *e)
{
    ht_dev *dev = p->dev;
    const cuda_api *api = &dev->api;
    HT_TRY(cuda__check(dev, api->capture_begin(dev->stream, CUDA_CAPTURE_RELAXED),
                       "starting a capture", NULL, e));
    int rc = 0;
    for (uint32_t i = 0; i < (p->b.steps ? p->b.steps : 1U) && !rc; i++)
        rc = launch_some(p, i, from, to, e);
    /* The capture is ended in any case, or the stream would stay in it. */
    int ended = api->capture_end(dev->stream, &piece->graph);
    if (rc) return rc;
    HT_TRY(cuda__check(dev, ended, "ending a capture", NULL, e));
    return cuda__check(dev, api->graph_make(&piece->exec, piece->graph, 0), "making a graph", NULL,
                       e);
}

/* Where a piece that begins at kernel `from` ends: with the list, or, where runs may ask for
 * layers, before the next layer's first kernel. */
static size_t piece_end(const ht_plan *p, size_t from)
{
    const bool layers = (p->b.flags & HT_KV_DONE) && p->b.steps <= 1;
    int layer = -1;
    for (size_t i = from; layers && i < p->n_ops; i++) {
        const ht_stage *st = &p->op[i].stage;
        if (st->kind == HT_QKV && layer >= 0 && st->layer > layer) return i;
        if (st->kind == HT_QKV) layer = st->layer;
    }
    return p->n_ops;
}

static int capture(ht_plan *p, ht_err *e)
{
    ht_dev *dev = p->dev;
    if (dev->sync || p->mega) return 0;
    p->piece = ht_arena_array(p->arena, p->m->spec.n_layers + 1, sizeof *p->piece);
    if (!p->piece) return HT_FAIL(e, HT_ENOMEM, "cuda: no memory for a plan's graphs");
    for (size_t at = 0, end; at < p->n_ops && p->n_pieces <= p->m->spec.n_layers; at = end) {
        cuda_piece *piece = &p->piece[p->n_pieces++];
        end = piece_end(p, at);
        piece->layer = end < p->n_ops ? p->op[end].stage.layer - 1 : -1;
        HT_TRY(capture_piece(p, piece, at, end, e));
        if (piece->layer >= 0)
            HT_TRY(
                cuda__check(dev, dev->api.event_new(&piece->done, 0), "making an event", NULL, e));
    }
    return 0;
}

/* ---- plan ------------------------------------------------------------------------------------ */

static int check_request(const ht_dev *dev, ht_kv *kv, const ht_bucket *b, ht_err *e)
{
    enum { STEPS_MAX = 64 };
    if (!dev->model) return HT_FAIL(e, HT_EARG, "cuda: plan before load");
    const ht_spec *s = &dev->model->spec;
    if (b->rows == 0 || b->seqs == 0 || b->ctx == 0 || b->want > b->rows || b->steps > STEPS_MAX)
        return HT_FAIL(
            e, HT_EARG, "cuda: bucket of %u rows, %u wanted, %u sequences, context %u, %u steps",
            (unsigned)b->rows, (unsigned)b->want, (unsigned)b->seqs, b->ctx, (unsigned)b->steps);
    if (!kv) return 0;
    if (kv->n_layers != s->n_layers || kv->n_kv_heads != s->n_kv_heads ||
        kv->head_dim != s->head_dim)
        return HT_FAIL(e, HT_EARG,
                       "cuda: KV pool of %u layers, %u heads of %u does not fit the model",
                       kv->n_layers, kv->n_kv_heads, kv->head_dim);
    return cuda__kv_attach((ht_dev *)(uintptr_t)dev, kv, e);
}

int cuda__plan(ht_plan **out, ht_dev *dev, ht_kv *kv, const ht_stage *tape, const ht_cut *cut,
               size_t n_cuts, const ht_bucket *b, ht_err *e)
{
    *out = NULL;
    HT_TRY(cuda__enter(dev, e));
    HT_TRY(check_request(dev, kv, b, e));
    HT_TRY(cuda__group_plan(dev, tape, cut, n_cuts, b, e));
    ht_plan *p = ht_mem_alloc(sizeof *p);
    if (!p) return HT_FAIL(e, HT_ENOMEM, "cuda: plan: out of memory");
    p->dev = dev;
    p->r = p->rank;
    p->m = dev->model;
    p->kv = kv;
    p->b = *b;
    int rc = ht_arena_new(&p->arena, 0, e);
    if (!rc) rc = take_memory(p, e);
    if (!rc && cuda__tc_batch(b)) rc = cuda__tc_weights(dev, b, e);
    if (!rc) rc = encode_cuts(p, tape, cut, n_cuts, e);
    if (!rc && p->headed && !p->sampled) {
        cuda_ptr unused = 0;
        rc = cuda__host_memory(p, (void **)&p->logits, &unused,
                               (size_t)b->want * p->m->spec.vocab * 4, e);
    }
    if (!rc) rc = cuda__check(dev, dev->api.event_new(&p->begin, 0), "making an event", NULL, e);
    if (!rc) rc = cuda__check(dev, dev->api.event_new(&p->done, 0), "making an event", NULL, e);
    if (!rc) rc = cuda__sync(dev, e);
    if (!rc) rc = capture(p, e);
    if (rc) {
        cuda__plan_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void cuda__plan_free(ht_plan *p)
{
    if (!p) return;
    const cuda_api *api = &p->dev->api;
    (void)api->current(p->dev->ctx);
    if (p->running) (void)api->stream_sync(p->dev->stream);
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        if (p->piece[i].exec) (void)api->exec_free(p->piece[i].exec);
        if (p->piece[i].graph) (void)api->graph_free(p->piece[i].graph);
        if (p->piece[i].done) (void)api->event_free(p->piece[i].done);
    }
    if (p->begin) (void)api->event_free(p->begin);
    if (p->done) (void)api->event_free(p->done);
    if (p->memory) (void)api->free_mem(p->memory);
    if (p->mega_memory) (void)api->free_mem(p->mega_memory);
    if (p->state) (void)api->host_free(p->state);
    if (p->clocks) (void)api->host_free(p->clocks);
    if (p->words) (void)api->host_free(p->words);
    if (p->ids) (void)api->host_free(p->ids);
    if (p->logits) (void)api->host_free(p->logits);
    for (int r = 0; r < HT_REGS; r++) ht_mem_free(p->mirror[r]);
    ht_arena_free(p->arena);
    ht_mem_free(p);
}

/* ---- registers ------------------------------------------------------------------------------- */

uint64_t cuda__reg_bytes(const ht_plan *p, int reg)
{
    const ht_spec *s = &p->m->spec;
    uint64_t rows = p->b.rows, nq = (uint64_t)s->n_heads * s->head_dim;
    switch (reg) {
    case HT_REG_X: return rows * s->dim * 4;
    case HT_REG_Q:
    case HT_REG_A: return rows * nq * 4;
    case HT_REG_H: return rows * s->ffn * 4;
    case HT_REG_L: return p->logits ? (uint64_t)p->b.want * s->vocab * 4 : 0;
    case HT_REG_R: return rows * s->n_experts_used * sizeof(ht_choice);
    default: return 0;
    }
}

/* A register's copy on the host, for callers of a part of the tape: from the first call on it is
 * sent before and fetched after every run. R takes no part in any stage covered here. */
int cuda__reg(ht_plan *p, int reg, void **ptr, size_t *bytes, ht_err *e)
{
    uint64_t n = cuda__reg_bytes(p, reg);
    if (n == 0) return HT_FAIL(e, HT_EUNSUPPORTED, "cuda: this plan has no register %d", reg);
    *bytes = (size_t)n;
    if (reg == HT_REG_L) {
        *ptr = p->logits;
        return 0;
    }
    if (!p->mirror[reg]) p->mirror[reg] = ht_mem_alloc((size_t)n);
    if (!p->mirror[reg]) return HT_FAIL(e, HT_ENOMEM, "cuda: no memory for register %d", reg);
    *ptr = p->mirror[reg];
    return 0;
}
