/* run.c - one step: the batch into the words that the first kernel reads, the graph, the results.
 */
#include "backend/cuda/cuda.h"
#include "core/clock.h"

#include <string.h>

/* ---- the batch ------------------------------------------------------------------------------- */

static uint32_t most_steps(const ht_plan *p)
{
    return p->b.steps ? p->b.steps : 1U;
}

static uint32_t steps_of(const ht_plan *p, const ht_batch *b)
{
    return b->steps ? b->steps : most_steps(p);
}

static int check_pages(const ht_plan *p, const ht_batch *b, uint32_t i, uint32_t pos, ht_err *e)
{
    for (uint32_t y = 0; p->kv && y < p->kv->n_layers; y++) {
        uint8_t c = p->kv->layer_class[y];
        uint32_t page = b->page[c]
                            ? b->page[c][(size_t)b->seq[i] * p->r->feed.n_table + pos / HT_PAGE]
                            : HT_NOPAGE;
        if (page >= p->kv->n_pages[c])
            return HT_FAIL(e, HT_EARG, "row %u: position %u has no page of class %d", i, pos, c);
    }
    return 0;
}

static int check_row(const ht_plan *p, const ht_batch *b, uint32_t i, ht_err *e)
{
    const uint32_t more = steps_of(p, b) - 1;
    if (b->token && (b->token[i] < 0 || (uint32_t)b->token[i] >= p->m->spec.vocab))
        return HT_FAIL(e, HT_EARG, "row %u: token %d is not in the vocabulary of %u", i,
                       b->token[i], p->m->spec.vocab);
    if (b->seq[i] >= b->seqs)
        return HT_FAIL(e, HT_EARG, "row %u: sequence %u of %u", i, (unsigned)b->seq[i], b->seqs);
    if (b->pos[i] < 0 || (uint64_t)b->pos[i] + more >= p->b.ctx)
        return HT_FAIL(e, HT_EARG, "row %u: position %d and %u steps are outside the context of %u",
                       i, b->pos[i], more, p->b.ctx);
    for (uint32_t k = 0; k <= more; k += HT_PAGE)
        HT_TRY(check_pages(p, b, i, (uint32_t)b->pos[i] + k, e));
    return more ? check_pages(p, b, i, (uint32_t)b->pos[i] + more, e) : 0;
}

static bool greedy(const ht_sampling *s)
{
    return s->temp <= 0 && !(s->repeat_penalty > 0 && s->repeat_penalty != 1) &&
           s->presence_penalty == 0 && s->frequency_penalty == 0 && s->dry_multiplier == 0 &&
           s->n_bias == 0;
}

/* Every page of a table is read up to the row's position: those that exist must be in the pool. */
static int check_table(const ht_plan *p, const ht_batch *b, ht_err *e)
{
    for (int c = 0; p->kv && c < HT_KV_CLASSES; c++)
        for (size_t i = 0; b->page[c] && i < (size_t)b->seqs * p->r->feed.n_table; i++)
            if (b->page[c][i] != HT_NOPAGE && b->page[c][i] >= p->kv->n_pages[c])
                return HT_FAIL(e, HT_EARG, "page table of class %d: page %u of %u", c,
                               b->page[c][i], p->kv->n_pages[c]);
    return 0;
}

static int check_batch(const ht_plan *p, const ht_batch *b, ht_err *e)
{
    if (b->rows == 0 || b->rows > p->b.rows || b->seqs > p->b.seqs || b->n_want > p->b.want)
        return HT_FAIL(e, HT_EARG,
                       "batch of %u rows, %u sequences, %u wanted exceeds the plan's %u, %u, %u",
                       b->rows, b->seqs, b->n_want, (unsigned)p->b.rows, (unsigned)p->b.seqs,
                       (unsigned)p->b.want);
    if (b->slot || b->parent || b->adapter)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "cuda runs causal batches only: no draft trees, no adapters");
    if (p->embedded && !b->token)
        return HT_FAIL(e, HT_EARG, "batch without tokens for a tape that begins with embed");
    if (steps_of(p, b) > most_steps(p))
        return HT_FAIL(e, HT_EARG, "%u steps of a plan for %u", b->steps, most_steps(p));
    if (steps_of(p, b) > 1 && b->n_want != b->rows)
        return HT_FAIL(e, HT_EARG, "chained steps need every row wanted, not %u of %u", b->n_want,
                       b->rows);
    for (uint32_t i = 0; i < b->rows; i++) HT_TRY(check_row(p, b, i, e));
    for (uint32_t i = 0; i < b->n_want; i++)
        if (b->want[i] >= b->rows || (steps_of(p, b) > 1 && b->want[i] != i))
            return HT_FAIL(e, HT_EARG, "wanted row %u of %u", b->want[i], b->rows);
    for (uint32_t i = 0; p->sampled && b->sampling && i < b->seqs; i++)
        if (!greedy(&b->sampling[i]))
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "cuda picks the best token only; sample on the host instead");
    return check_table(p, b, e);
}

static void fill_words(ht_plan *p, const ht_batch *b)
{
    const cuda_feed *f = &p->r->feed;
    uint32_t *w = p->words;
    size_t table = (size_t)b->seqs * f->n_table;
    w[CUDA_N_ROWS] = b->rows;
    w[CUDA_N_WANT] = b->n_want;
    for (uint32_t i = 0; i < b->rows; i++) {
        w[f->token + i] = b->token ? (uint32_t)b->token[i] : 0;
        w[f->pos + i] = (uint32_t)b->pos[i];
        w[f->seq + i] = b->seq[i];
    }
    for (uint32_t i = 0; i < b->n_want; i++) w[f->want + i] = b->want[i];
    for (uint32_t i = 0; i < b->seqs; i++) w[f->lengthy + i] = b->rope_long && b->rope_long[i];
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        if (b->page[c]) memcpy(w + f->page[c], b->page[c], table * sizeof *w);
        else memset(w + f->page[c], 0xff, table * sizeof *w);
    }
}

/* What this run is at least, by the floor of its stages at its real rows. */
static void count(ht_plan *p, const ht_batch *b)
{
    ht_bucket k = p->b;
    uint32_t last = 0, per = b->seqs ? (b->rows + b->seqs - 1) / b->seqs : b->rows;
    for (uint32_t i = 0; i < b->rows; i++)
        if ((uint32_t)b->pos[i] + 1 > last) last = (uint32_t)b->pos[i] + 1;
    k.rows = (uint16_t)b->rows;
    k.seqs = (uint16_t)b->seqs;
    k.want = (uint16_t)b->n_want;
    memset(&p->stats, 0, sizeof p->stats);
    for (uint32_t t = 0; t < p->steps; t++, last++) {
        k.past = last > per ? last - per : 0;
        for (size_t i = 0; i < p->n_stages; i++) {
            uint64_t bytes, flops;
            ht_stage_bound(p->m, &p->stage[i], &k, &bytes, &flops);
            p->stats.bytes += bytes;
            p->stats.flops += flops;
            const int clock = p->mega ? cuda__mega_clock(p->stage[i].kind) : -1;
            if (clock < 0) continue;
            p->dev->least_bytes[clock] += bytes;
            p->dev->least_flops[clock] += flops;
        }
    }
    /* One launch holds the kernels of all cuts, in their order. */
    p->stats.executed = "cuda";
    p->stats.exec_cuts = p->exec_cuts;
    p->stats.exec = p->exec_fold;
    p->stats.dispatches = p->mega ? 1 : (uint32_t)p->n_ops * steps_of(p, b);
}

/* ---- registers that a caller holds ----------------------------------------------------------- */

static cuda_ptr reg_ptr(const cuda_rank *r, int reg, bool out)
{
    switch (reg) {
    case HT_REG_X: return out ? r->x_now : r->x;
    case HT_REG_Q: return out ? r->q_now : r->q;
    case HT_REG_A: return r->a;
    case HT_REG_H: return r->h;
    default: return 0;
    }
}

/* A register of one rank: its own columns of Q, else all of them. */
static int exchange_one(ht_plan *p, int reg, uint32_t rank, bool out, ht_err *e)
{
    const size_t row = (size_t)cuda__reg_bytes(p, reg) / p->b.rows;
    const size_t own = reg == HT_REG_Q ? row / p->dev->size : row;
    const bool chosen = out && p->picked && (reg == HT_REG_X || reg == HT_REG_Q);
    const cuda_rows dev = cuda__rows_on_device(reg_ptr(&p->rank[rank], reg, out), own);
    const cuda_rows host =
        cuda__rows_on_host((char *)p->mirror[reg] + (own < row ? rank * own : 0), row);
    const cuda_copy2d c = {.to = out ? host : dev,
                           .from = out ? dev : host,
                           .width = own,
                           .rows = chosen ? p->b.want : p->b.rows};
    return cuda__check(p->dev, cuda__copy_rows(p->dev, &c, p->dev->stream), "copy of a register",
                       NULL, e);
}

/* All ranks have the same where each has all. */
static int exchange(ht_plan *p, bool out, ht_err *e)
{
    for (int r = 0; r < HT_REGS; r++) {
        if (!p->mirror[r] || !reg_ptr(p->r, r, out)) continue;
        const uint32_t n = out && r != HT_REG_Q ? 1 : p->dev->size;
        for (uint32_t i = 0; i < n; i++) HT_TRY(exchange_one(p, r, i, out, e));
    }
    return cuda__sync(p->dev, e);
}

/* The wanted rows' logits to the host, each rank's part of the vocabulary to its columns. */
static int fetch_logits(ht_plan *p, ht_err *e)
{
    const size_t vocab = p->m->spec.vocab;
    for (uint32_t i = 0; i < p->dev->size; i++) {
        const cuda_share s = cuda__share(p->dev->size, i, (uint32_t)vocab, CUDA_TILES);
        const cuda_copy2d c = {.from = cuda__rows_on_device(p->rank[i].l, 4 * (size_t)s.rows),
                               .to = cuda__rows_on_host(p->logits + s.first, 4 * vocab),
                               .width = 4 * (size_t)s.rows,
                               .rows = p->n_want};
        HT_TRY(cuda__check(p->dev, cuda__copy_rows(p->dev, &c, p->dev->stream), "copy of logits",
                           NULL, e));
    }
    return 0;
}

/* ---- layers of a run ------------------------------------------------------------------------- */

static int launch_pieces(ht_plan *p, ht_err *e)
{
    const cuda_api *api = &p->dev->api;
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        const cuda_piece *x = &p->piece[i];
        HT_TRY(cuda__check(p->dev, api->graph_run(x->exec, p->dev->stream), "launching a step",
                           NULL, e));
        if (x->done)
            HT_TRY(cuda__check(p->dev, api->event_set(x->done, p->dev->stream), "marking a layer",
                               NULL, e));
    }
    return 0;
}

/* Tell of the layers below n. */
static void tell_layers(ht_plan *p, uint32_t n)
{
    const ht_batch *b = p->batch;
    for (; b->kv_done && p->told < n; p->told++) b->kv_done(b->kv_user, p->told);
}

/* Of those that are complete by now. Piece i ends with layer i; an error of its event is one of the
 * whole step, which is asked for next. */
static void tell_complete(ht_plan *p)
{
    while (p->batch->kv_done && p->told < p->n_pieces && p->piece[p->told].done &&
           p->dev->api.event_query(p->piece[p->told].done) == CUDA_OK)
        tell_layers(p, p->told + 1);
}

/* ---- run and wait ---------------------------------------------------------------------------- */

int cuda__run(ht_plan *p, const ht_batch *b, ht_err *e)
{
    ht_dev *dev = p->dev;
    const cuda_api *api = &dev->api;
    HT_TRY(cuda__enter(dev, e));
    if (p->running) return HT_FAIL(e, HT_EBUSY, "cuda: run before the last one was waited for");
    HT_TRY(check_batch(p, b, e));
    p->t0 = ht_now_ns();
    fill_words(p, b);
    p->batch = b;
    p->steps = steps_of(p, b);
    p->n_want = b->n_want;
    p->n_rows = b->rows;
    p->told = 0;
    HT_TRY(exchange(p, false, e));
    p->running = true;
    /* What no step has written stays -1. */
    if (p->sampled) memset(p->ids, 0xff, (size_t)most_steps(p) * p->b.want * sizeof *p->ids);
    HT_TRY(cuda__check(dev, api->event_set(p->begin, dev->stream), "marking a step", NULL, e));
    if (p->mega) HT_TRY(cuda__mega_launch(p, e));
    else if (dev->sync || p->steps != most_steps(p)) /* the graph holds all steps */
        for (uint32_t i = 0; i < p->steps; i++) HT_TRY(cuda__launch(p, i, e));
    else HT_TRY(launch_pieces(p, e));
    if (p->logits && b->n_want) HT_TRY(fetch_logits(p, e));
    return cuda__check(dev, api->event_set(p->done, dev->stream), "marking the end of a step", NULL,
                       e);
}

/* Steps whose tokens are there. The device writes them while the host looks. */
static uint32_t steps_done(const ht_plan *p)
{
    const volatile int32_t *id = p->ids;
    for (uint32_t t = 0; t < p->steps; t++)
        for (uint32_t i = 0; i < p->n_want; i++)
            if (id[(size_t)t * p->b.want + i] < 0) return t;
    return p->steps;
}

/* Has a token come that ends the only sequence? *seen: steps that were looked at. */
static bool ended(const ht_plan *p, uint32_t *seen)
{
    const ht_batch *b = p->batch;
    if (!p->sampled || !b->n_end || p->n_want != 1) return false;
    for (const uint32_t n = steps_done(p); *seen < n; ++*seen)
        for (uint32_t i = 0; i < b->n_end; i++)
            if (p->ids[(size_t)*seen * p->b.want] == b->end_id[i]) return true;
    return false;
}

/* The word that kernels of every rank read. */
static int set_stop(ht_plan *p, unsigned value, cuda_stream stream, ht_err *e)
{
    for (uint32_t i = 0; i < p->dev->size; i++)
        HT_TRY(cuda__check(p->dev, p->dev->api.set32(p->rank[i].feed.stop, value, 1, stream),
                           "stopping a step", NULL, e));
    return 0;
}

/* Poll until the step has ended; a cancel, or that no further token is wanted, is handed to the
 * kernels through a word they read. */
static int await(ht_plan *p, bool *cancelled, ht_err *e)
{
    ht_dev *dev = p->dev;
    bool told = false;
    uint32_t seen = 0;
    int rc;
    *cancelled = false;
    while ((rc = dev->api.event_query(p->done)) == CUDA_NOT_READY) {
        if (told) continue;
        if (!atomic_load_explicit(&p->cancel, memory_order_relaxed) && !ended(p, &seen)) {
            tell_complete(p);
            continue;
        }
        HT_TRY(set_stop(p, 1, dev->side, e));
        told = true;
    }
    HT_TRY(
        cuda__check(dev, rc, "running a step", p->n_stages ? &p->stage[p->n_stages - 1] : NULL, e));
    *cancelled = atomic_exchange_explicit(&p->cancel, 0, memory_order_relaxed) != 0;
    if (!*cancelled) tell_layers(p, p->m->spec.n_layers);
    if (p->sampled && told) p->steps = steps_done(p);
    if (!told) return 0;
    /* Kernels that stopped half way have left counters behind. */
    HT_TRY(cuda__check(dev, dev->api.stream_sync(dev->side), "stopping a step", NULL, e));
    HT_TRY(set_stop(p, 0, dev->stream, e));
    for (uint32_t i = 0; i < dev->size; i++)
        HT_TRY(cuda__check(dev, dev->api.set32(p->rank[i].arrived, 0, p->n_arrived, dev->stream),
                           "stopping a step", NULL, e));
    return cuda__sync(dev, e);
}

/* What the run that has ended leaves: registers, tokens in a row, figures. After a cancel only the
 * tokens that came before it, which are as good as any. */
static int finish(ht_plan *p, bool cancelled, ht_err *e)
{
    float ms = 0;
    if (!cancelled) HT_TRY(exchange(p, true, e));
    count(p, p->batch);
    for (uint32_t i = 1; p->sampled && i < p->steps && p->n_want < p->b.want; i++)
        memmove(p->ids + (size_t)i * p->n_want, p->ids + (size_t)i * p->b.want,
                p->n_want * sizeof *p->ids);
    HT_TRY(cuda__check(p->dev, p->dev->api.event_ms(&ms, p->begin, p->done), "timing a step", NULL,
                       e));
    p->stats.device_ns = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
    p->stats.ns = ht_now_ns() - p->t0;
    return 0;
}

int cuda__wait(ht_plan *p, const float **logits, ht_err *e)
{
    bool cancelled;
    if (logits) *logits = NULL;
    if (!p->running) return HT_FAIL(e, HT_EARG, "cuda: wait without run");
    p->running = false;
    HT_TRY(cuda__enter(p->dev, e));
    HT_TRY(await(p, &cancelled, e));
    if (p->mega) HT_TRY(cuda__mega_check(p, e));
    if (cancelled && !p->sampled) p->n_want = 0;
    else HT_TRY(finish(p, cancelled, e));
    if (cancelled) return HT_FAIL(e, HT_ECANCELLED, "the step was cancelled");
    if (logits) *logits = p->logits;
    return 0;
}

/* [steps done][n_want] ids of the last run, also of one that was cancelled. */
int cuda__tokens(ht_plan *p, const int32_t **ids, size_t *n, ht_err *e)
{
    *ids = NULL;
    *n = 0;
    if (!p->sampled)
        return HT_FAIL(e, HT_EUNSUPPORTED, "cuda: this plan has no sample stage; take its logits");
    *ids = p->ids;
    *n = (size_t)p->n_want * p->steps;
    return 0;
}

int cuda__stats(const ht_plan *p, ht_run_stats *out)
{
    *out = p->stats;
    return 0;
}

/* Only a flag, for signal handlers' sake; wait() acts on it. */
int cuda__cancel(ht_plan *p)
{
    atomic_store_explicit(&p->cancel, 1, memory_order_relaxed);
    return 0;
}
