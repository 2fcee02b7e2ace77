/* run.c - running a plan: the batch is checked, the team started once, every thread walks the list of
 * operations with a barrier after each. run() returns when all is done; wait() hands it out. */
#include "backend/cpu/cpu.h"
#include "core/clock.h"
#include <string.h>

static uint32_t n_table(const ht_plan *p)
{
    return (p->b.ctx + HT_PAGE - 1) / HT_PAGE;
}

/* Every page that the row will read or write must exist. A page before a window may be gone. */
static int check_pages(const ht_plan *p, const ht_batch *b, uint32_t i, int kv_class, ht_err *e)
{
    const ht_kv *kv = p->kv;
    uint32_t pos = (uint32_t)b->pos[i], from = 0;
    const uint32_t *table = b->page[kv_class] ? b->page[kv_class] + (size_t)b->seq[i] * n_table(p) : NULL;
    if (kv_class == HT_KV_WINDOW && pos + 1 > kv->window) from = (pos + 1 - kv->window) / HT_PAGE;
    for (uint32_t k = from; k <= pos / HT_PAGE; k++)
        if (!table || table[k] >= kv->n_pages[kv_class])
            return HT_FAIL(e, HT_EARG, "row %u: position %u has no page of class %d", i, k * HT_PAGE,
                           kv_class);
    return 0;
}

static int check_row(const ht_plan *p, const ht_batch *b, uint32_t i, const bool used[HT_KV_CLASSES],
                     ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    if (b->token && (b->token[i] < 0 || (uint32_t)b->token[i] >= s->vocab))
        return HT_FAIL(e, HT_EARG, "row %u: token %d is not in the vocabulary of %u", i, b->token[i],
                       s->vocab);
    if (b->seq[i] >= b->seqs)
        return HT_FAIL(e, HT_EARG, "row %u: sequence %u of %u", i, (unsigned)b->seq[i], b->seqs);
    if (b->pos[i] < 0 || (uint32_t)b->pos[i] >= p->b.ctx)
        return HT_FAIL(e, HT_EARG, "row %u: position %d is outside the context of %u", i, b->pos[i],
                       p->b.ctx);
    /* Rows of a run of positions share pages: the last row's check covers them. */
    bool last = i + 1 == b->rows || b->seq[i + 1] != b->seq[i] || b->pos[i + 1] != b->pos[i] + 1;
    bool first = i == 0 || b->seq[i - 1] != b->seq[i] || b->pos[i - 1] + 1 != b->pos[i];
    for (int c = 0; c < HT_KV_CLASSES && p->kv && (last || first); c++)
        if (used[c]) HT_TRY(check_pages(p, b, i, c, e));
    return 0;
}

static int check_batch(const ht_plan *p, const ht_batch *b, ht_err *e)
{
    bool used[HT_KV_CLASSES] = {false};
    if (b->rows == 0 || b->rows > p->b.rows || b->seqs > p->b.seqs || b->n_want > p->b.want)
        return HT_FAIL(e, HT_EARG,
                       "batch of %u rows, %u sequences, %u wanted exceeds the plan's %u, %u, %u", b->rows,
                       b->seqs, b->n_want, (unsigned)p->b.rows, (unsigned)p->b.seqs, (unsigned)p->b.want);
    if (b->slot || b->parent || b->adapter)
        return HT_FAIL(e, HT_EUNSUPPORTED, "cpu runs causal batches only: no draft trees, no adapters");
    if (p->n_ops && p->op[0].stage.kind == HT_EMBED && !b->token)
        return HT_FAIL(e, HT_EARG, "batch without tokens for a tape that begins with embed");
    for (uint32_t i = 0; p->kv && i < p->kv->n_layers; i++) used[p->kv->layer_class[i]] = true;
    for (uint32_t i = 0; i < b->rows; i++) HT_TRY(check_row(p, b, i, used, e));
    for (uint32_t i = 0; i < b->n_want; i++)
        if (b->want[i] >= b->rows)
            return HT_FAIL(e, HT_EARG, "wanted row %u of %u", b->want[i], b->rows);
    return 0;
}

static bool same_stage(const ht_stage *a, const ht_stage *b)
{
    return a->kind == b->kind && a->layer == b->layer;
}

/* Least bytes and work of this batch: the floor of its real rows, once a stage. */
static void count(ht_plan *p, const ht_batch *b)
{
    ht_bucket k = p->b;
    uint32_t last = 0, per = (b->rows + b->seqs - 1) / (b->seqs ? b->seqs : 1);
    for (uint32_t i = 0; i < b->rows; i++)
        if ((uint32_t)b->pos[i] + 1 > last) last = (uint32_t)b->pos[i] + 1;
    k.rows = (uint16_t)b->rows;
    k.seqs = (uint16_t)b->seqs;
    k.want = (uint16_t)b->n_want;
    k.past = last > per ? last - per : 0;
    for (size_t i = 0; i < p->n_ops; i++) {
        uint64_t bytes, flops;
        if (i && same_stage(&p->op[i].stage, &p->op[i - 1].stage)) continue;
        ht_stage_bound(p->m, &p->op[i].stage, &k, &bytes, &flops);
        p->stats.bytes += bytes;
        p->stats.flops += flops;
    }
    p->stats.dispatches = (uint32_t)p->n_ops;
}

/* Whether the tables of cpu__begin can share the first operation's barrier: nothing reads them there. */
static bool joins_begin(const ht_plan *p)
{
    return p->n_ops && p->op[0].stage.kind == HT_EMBED;
}

static void rank_main(void *arg, int rank, int size)
{
    ht_plan *p = arg;
    cpu_run r = {.p = p, .k = &p->dev->k, .s = &p->scratch[rank], .rank = rank, .size = size};
    cpu__begin(&r, NULL);
    if (!joins_begin(p)) ht_team_barrier(p->dev->team);
    for (size_t i = 0; i < p->n_ops; i++) {
        const cpu_op *op = &p->op[i];
        r.picked = op->picked;
        r.rows = op->picked ? p->batch->n_want : p->batch->rows;
        if (!cpu__cancelled(&r)) op->fn(&r, &op->stage);
        if (i + 1 < p->n_ops) ht_team_barrier(p->dev->team);
    }
}

int cpu__run(ht_plan *p, const ht_batch *b, ht_err *e)
{
    HT_TRY(check_batch(p, b, e));
    uint64_t t0 = ht_now_ns();
    memset(&p->stats, 0, sizeof p->stats);
    p->batch = b;
    ht_team_run(p->dev->team, rank_main, p);
    count(p, b);
    p->stats.barriers = (uint32_t)(p->n_ops ? p->n_ops - 1 : 0) + (joins_begin(p) ? 0 : 1);
    /* The cancel is used up here and not cleared at the start: one that came just before run() counts. */
    p->rc = atomic_exchange_explicit(&p->cancel, 0, memory_order_relaxed) ? HT_ECANCELLED : 0;
    p->ran = true;
    p->batch = NULL;
    p->stats.ns = ht_now_ns() - t0;
    return 0;
}

int cpu__wait(ht_plan *p, const float **logits, ht_err *e)
{
    if (logits) *logits = NULL;
    if (!p->ran) return HT_FAIL(e, HT_EARG, "cpu: wait without run");
    p->ran = false;
    if (p->rc) return HT_FAIL(e, p->rc, "the step was cancelled");
    if (logits) *logits = p->l;
    return 0;
}

int cpu__tokens(ht_plan *p, const int32_t **ids, size_t *n, ht_err *e)
{
    (void)p;
    *ids = NULL;
    *n = 0;
    return HT_FAIL(e, HT_EUNSUPPORTED, "cpu does not sample; use the host's sampler on its logits");
}

int cpu__stats(const ht_plan *p, ht_run_stats *out)
{
    *out = p->stats;
    return 0;
}

int cpu__cancel(ht_plan *p)
{
    atomic_store_explicit(&p->cancel, 1, memory_order_relaxed);
    return 0;
}
