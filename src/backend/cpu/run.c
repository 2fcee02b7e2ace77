/* run.c - running a plan: the batch is checked, the team started once, every thread walks the list
 * of operations with a barrier after each. run() returns when all is done; wait() hands it out. */
#include "backend/cpu/cpu.h"
#include "core/clock.h"
#include <string.h>

static bool same_stage(const ht_stage *a, const ht_stage *b)
{
    return a->kind == b->kind && a->layer == b->layer;
}

/* Least bytes and work of this batch: the floor of its real rows, once a stage. */
static void count(ht_plan *p, const ht_batch *b)
{
    ht_bucket k = ht_batch_bucket(&p->b, b);
    for (size_t i = 0; i < p->n_ops; i++) {
        uint64_t bytes, flops;
        if (i && same_stage(&p->op[i].stage, &p->op[i - 1].stage)) continue;
        ht_stage_bound(p->m, &p->op[i].stage, &k, &bytes, &flops);
        p->stats.bytes += bytes;
        p->stats.flops += flops;
        atomic_fetch_add_explicit(&p->dev->cost[p->op[i].stage.kind].bytes, bytes,
                                  memory_order_relaxed);
        atomic_fetch_add_explicit(&p->dev->cost[p->op[i].stage.kind].flops, flops,
                                  memory_order_relaxed);
    }
    p->stats.dispatches = (uint32_t)p->n_ops;
}

/* Whether the tables of cpu__begin can share the first operation's barrier: nothing reads them
 * there. */
static bool joins_begin(const ht_plan *p)
{
    return p->n_ops && p->op[0].stage.kind == HT_EMBED;
}

/* Rank 0's clock: an operation took from `since` to now, its part since `done` in the barrier. */
static uint64_t charge(ht_dev *dev, int kind, uint64_t since, uint64_t done)
{
    uint64_t now = ht_now_ns();
    atomic_fetch_add_explicit(&dev->cost[kind].ns, now - since, memory_order_relaxed);
    atomic_fetch_add_explicit(&dev->wait_ns, now - done, memory_order_relaxed);
    return now;
}

/* The layer whose K and V are complete when operation i is about to begin; -1: none. */
static int layer_done(const ht_plan *p, size_t i)
{
    if (i == 0 || p->op[i - 1].stage.kind != HT_QKV) return -1;
    if (i < p->n_ops && p->op[i].stage.kind == HT_QKV) return -1;
    return p->op[i - 1].stage.layer;
}

static void tell_layer(const ht_plan *p, size_t i)
{
    const int layer = p->batch->kv_done ? layer_done(p, i) : -1;
    if (layer >= 0) p->batch->kv_done(p->batch->kv_user, (uint32_t)layer);
}

static void rank_main(void *arg, int rank, int size)
{
    ht_plan *p = arg;
    cpu_run r = {.p = p, .k = &p->dev->k, .s = &p->scratch[rank], .rank = rank, .size = size};
    uint64_t since = rank ? 0 : ht_now_ns();
    cpu__begin(&r, NULL);
    if (!joins_begin(p)) ht_team_barrier(p->dev->team);
    for (size_t i = 0; i < p->n_ops; i++) {
        const cpu_op *op = &p->op[i];
        r.picked = op->picked;
        /* Not counted on: a thread that saw a cancel first has begun fewer loops. */
        r.turn = p->turn + (uint32_t)i * p->loops;
        r.rows = op->picked ? p->batch->n_want : p->batch->rows;
        if (!rank) tell_layer(p, i);
        if (!cpu__cancelled(&r)) op->fn(&r, &op->stage);
        if (rank == 0 && op->exec) {
            p->stats.exec = ht_exec_add(p->stats.exec, op->exec);
            p->stats.exec_cuts++;
        }
        uint64_t done = rank ? 0 : ht_now_ns();
        if (i + 1 < p->n_ops) ht_team_barrier(p->dev->team);
        if (!rank) since = charge(p->dev, op->stage.kind, since, done);
    }
}

int cpu__run(ht_plan *p, const ht_batch *b, ht_err *e)
{
    const int holes = (p->b.flags & HT_WANT_MASS) != 0;
    HT_TRY(ht_batch_check(p->m, p->kv, &p->b, p->n_ops ? &p->op[0].stage : NULL, b, holes, e));
    uint64_t t0 = ht_now_ns();
    memset(&p->stats, 0, sizeof p->stats);
    p->stats.executed = "cpu";
    p->batch = b;
    cpu__kv_todo(p);
    ht_batch_mass_clear(&p->b, b, p->m->spec.n_kv_heads);
    const uint64_t loops = (uint64_t)p->n_ops * p->loops;
    if (p->turn > UINT32_MAX - loops) {
        /* Numbers start again: no word may be left that one of them could meet. */
        for (int i = 0; i < ht_team_size(p->dev->team); i++) atomic_store(&p->left[i].word, 0);
        p->turn = 0;
    }
    ht_team_run(p->dev->team, rank_main, p);
    tell_layer(p, p->n_ops);
    p->turn += (uint32_t)loops;
    count(p, b);
    p->stats.barriers = (uint32_t)(p->n_ops ? p->n_ops - 1 : 0) + (joins_begin(p) ? 0 : 1);
    /* The cancel is used up here and not cleared at the start: one that came just before run()
     * counts. */
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
