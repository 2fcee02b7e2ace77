/* cover.c - choose the spans that run a tape: the cheapest path from its first stage to past its
 * last. Operands are fixed registers and stages form a line, so the choice of fusions is a shortest
 * path over n+1 nodes instead of a subgraph match; costs are assumed to add. */
#include "core/arena.h"
#include "core/hash.h"
#include "step/kvpool.h"
#include "step/step.h"

#include <math.h>
#include <string.h>

/* An unmeasured span is priced from its floor on a nominal machine. The constants only set the
 * exchange rate between bytes, operations and dispatches; the price orders covers and is never
 * shown as a prediction. 1 us a dispatch makes the longer of two spans with equal floors win. */
#define NOMINAL_BYTES_PER_NS 20.0
#define NOMINAL_FLOPS_PER_NS 100.0
#define NOMINAL_DISPATCH_NS  1000.0

typedef struct {
    double cost;         /* of the cheapest path from here to the end; infinite: there is none */
    const ht_span *span; /* its first step */
    size_t n;
} node;

typedef struct {
    const ht_backend *be;
    const ht_dev *dev;
    const ht_model *m;
    const ht_stage *tape;
    size_t n;
    const ht_bucket *b;
    double (*cost_ns)(void *, const ht_cut *);
    void *user;
} search;

static double cut_cost(const search *s, const ht_cut *c)
{
    double ns = s->cost_ns ? s->cost_ns(s->user, c) : -1;
    if (ns >= 0) return ns;
    uint64_t bytes = 0, flops = 0;
    if (c->span->bound) c->span->bound(s->dev, s->m, s->tape + c->at, c->n, s->b, &bytes, &flops);
    return NOMINAL_DISPATCH_NS +
           fmax((double)bytes / NOMINAL_BYTES_PER_NS, (double)flops / NOMINAL_FLOPS_PER_NS);
}

/* Fill best[at] from the nodes behind it. Strict comparison: of equal spans the first of the
 * backend's table wins, so a cover is a function of its inputs. */
static void relax(const search *s, node *best, size_t at)
{
    best[at].cost = INFINITY;
    for (const ht_span *const *sp = s->be->spans; *sp; sp++) {
        size_t n = (*sp)->covers(s->dev, s->m, s->tape + at, s->n - at, s->b);
        if (n == 0 || n > s->n - at || isinf(best[at + n].cost)) continue;
        ht_cut cut = {*sp, (uint32_t)at, (uint32_t)n};
        double cost = cut_cost(s, &cut) + best[at + n].cost;
        if (cost < best[at].cost) best[at] = (node){cost, *sp, n};
    }
}

/* Would the stage at `at` begin a span if the bucket were b? */
static bool begins(const search *s, size_t at, ht_bucket b)
{
    for (const ht_span *const *sp = s->be->spans; *sp; sp++)
        if ((*sp)->covers(s->dev, s->m, s->tape + at, s->n - at, &b)) return true;
    return false;
}

/* best[0] is unreachable. Nodes behind the first reachable one can be completed, so the stage just
 * before it is the one that no span starts at. What the user chose is named where it alone is
 * missing: the arithmetic, or the types of the cache. */
static int explain_failure(const search *s, const node *best, ht_err *e)
{
    size_t at = 0;
    while (isinf(best[at + 1].cost)) at++;
    ht_bucket exact = *s->b, plain = *s->b;
    exact.act = HT_ACT_F32;
    plain.kv_fmt = HT_KV_F16 | HT_KV_F16 << 8;
    static const char *const act[] = {[HT_ACT_F32] = "f32",
                                      [HT_ACT_Q8] = "q8",
                                      [HT_ACT_F16] = "f16",
                                      [HT_ACT_BF16] = "bf16",
                                      [HT_ACT_INT8] = "int8"};
    char text[80];
    const char *k = ht_kvtype_name(s->b->kv_fmt & 255), *v = ht_kvtype_name(s->b->kv_fmt >> 8);
    ht_stage_text(&s->tape[at], text);
    if (begins(s, at, exact))
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "engine %s does not compute with act %s (stage %s); choose act f32, which "
                       "every engine has, or another engine",
                       s->be->name, act[s->b->act], text);
    if (begins(s, at, plain))
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "engine %s does not read a cache of keys in %s and values in %s (stage %s); "
                       "choose f16 for both, or another engine",
                       s->be->name, k, v, text);
    return HT_FAIL(e, HT_EUNSUPPORTED,
                   "engine %s has no span for stage %s (rows %u, act %s, keys %s, values %s); "
                   "choose another engine",
                   s->be->name, text, (unsigned)s->b->rows, act[s->b->act], k, v);
}

/* Cheapest cover of tape[0..n) by the backend's spans at bucket b. out has room for n cuts. Returns
 * the number of cuts; 0 with *e filled when some stage cannot be run (HT_EUNSUPPORTED names it) or
 * memory is out. cost_ns may be NULL (all unmeasured). O(n * spans). */
size_t ht_cover(const ht_backend *be, const ht_dev *dev, const ht_model *m, const ht_stage *tape,
                size_t n, const ht_bucket *b, double (*cost_ns)(void *, const ht_cut *), void *user,
                ht_cut *out, ht_err *e)
{
    search s = {be, dev, m, tape, n, b, cost_ns, user};
    if (n == 0 || n > UINT32_MAX) {
        (void)HT_FAIL(e, HT_EARG, "a cover needs a tape of at least one stage (got %zu)", n);
        return 0;
    }
    node *best = ht_mem_array(n + 1, sizeof *best);
    if (!best) {
        (void)HT_FAIL(e, HT_ENOMEM, "cover of %zu stages: out of memory", n);
        return 0;
    }
    best[n].cost = 0;
    for (size_t at = n; at-- > 0;) relax(&s, best, at);

    size_t n_cuts = 0;
    if (isinf(best[0].cost)) {
        (void)explain_failure(&s, best, e);
    } else {
        for (size_t at = 0; at < n; at += best[at].n)
            out[n_cuts++] = (ht_cut){best[at].span, (uint32_t)at, (uint32_t)best[at].n};
    }
    ht_mem_free(best);
    return n_cuts;
}

uint64_t ht_exec_id(const ht_cut *c)
{
    const uint64_t h = ht_hash64(c->span->name, strlen(c->span->name));
    const uint64_t id = ht_exec_add(h, (uint64_t)c->at << 32 | c->n);
    return id ? id : 1;
}

/* The SplitMix64 finaliser, after an addition that makes the order count. */
uint64_t ht_exec_add(uint64_t fold, uint64_t id)
{
    uint64_t z = fold * 0x9e3779b97f4a7c15u + id + 1;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
