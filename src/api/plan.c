/* plan.c - covers encoded for buckets, made on first use and kept until the engine closes. The
 * cache is a list: an engine has a handful (decode of one row, prefill chunk, evaluation chunk). */
#include "api/whole.h"
#include <string.h>

void api__bucket(const ht_engine *e, int phase, uint32_t rows, uint32_t want, ht_bucket *out)
{
    *out = (ht_bucket){.rows = (uint16_t)rows,
                       .seqs = 1,
                       .want = (uint16_t)want,
                       .steps = 1,
                       .ctx = e->ctx,
                       .past = e->ctx,
                       .kv_fmt = api__kv_fmt(&e->kv),
                       .act = api__whole_act(e, phase),
                       .flags = e->phase[phase].flags};
    if (phase == API_PREFILL && e->phase[phase].unit->place != e->phase[API_DECODE].unit->place)
        out->flags |= HT_KV_DONE;
    if (e->keep_pages) {
        out->flags |= HT_WANT_MASS;
        out->held = api__evict_held(e);
    }
    /* An engine of whole prompts begins at position 0, at one of its own numbers of rows. */
    const uint32_t whole = api__is_whole(&e->phase[phase]) ? api__whole_rows(e, rows) : 0;
    if (whole) out->rows = (uint16_t)whole;
    if (whole && out->want > whole) out->want = (uint16_t)whole;
    if (api__is_whole(&e->phase[phase])) out->past = 0;
}

void api__bucket_shared(const ht_engine *e, int phase, ht_bucket *out)
{
    const uint32_t rows = phase == API_PREFILL ? e->ubatch : e->batch.rows;
    api__bucket(e, phase, rows, e->batch.rows, out);
    out->seqs = (uint16_t)e->batch.seqs;
}

/* Cost that admits one-stage spans only: any longer one is dearer than the whole tape of short
 * ones. */
static double single_cost(void *user, const ht_cut *cut)
{
    (void)user;
    return cut->n == 1 ? 1.0 : 1e12 * cut->n;
}

int api__cover(ht_arena *arena, const ht_backend *be, const ht_dev *dev, const ht_model *m,
               const ht_stage *tape, size_t n_tape, const ht_bucket *bucket, bool single,
               const ht_cut **cuts, size_t *n, ht_err *err)
{
    ht_cut *out = ht_arena_array(arena, n_tape, sizeof *out);
    if (!out) return HT_FAIL(err, HT_ENOMEM, "no memory for a cover of %zu stages", n_tape);
    ht_err why = {0};
    *n = ht_cover(be, dev, m, tape, n_tape, bucket, single ? single_cost : NULL, NULL, out, &why);
    *cuts = out;
    if (*n) return 0;
    if (err) *err = why;
    return why.code ? why.code
                    : HT_FAIL(err, HT_EUNSUPPORTED, "engine %s has no cover for %u rows", be->name,
                              (unsigned)bucket->rows);
}

/* Describe a new plan: its cover, the cover's hash and the class of what it writes. */
static int describe(ht_engine *e, api__plan *p, ht_err *err)
{
    const api__unit *u = e->phase[p->phase].unit;
    HT_TRY(api__cover(e->arena, u->be, u->dev, e->model, e->tape, e->n_tape + (p->bucket.steps > 1),
                      &p->bucket, e->phase[p->phase].plain, &p->cuts, &p->n_cuts, err));
    HT_TRY(ht_cover_hash(e->tape, p->cuts, p->n_cuts, p->cover, err));
    char cls[API_CLASS];
    api__class_text(e, p->phase, cls);
    p->cls = ht_arena_strndup(e->arena, cls, strlen(cls));
    return p->cls ? 0 : HT_FAIL(err, HT_ENOMEM, "no memory for a plan's description");
}

int api__plan_encode(ht_engine *e, api__plan *p, ht_err *err)
{
    return p->be->plan(&p->plan, p->unit->dev, api__kv_of(e, p->unit), e->tape, p->cuts, p->n_cuts,
                       &p->bucket, err);
}

static int find(ht_engine *e, int phase, ht_bucket b, api__plan **out, ht_err *err)
{
    for (api__plan *p = e->plans; p; p = p->next) {
        if (p->unit != e->phase[phase].unit || p->bucket.flags != b.flags) continue;
        if (p->phase != phase || p->bucket.rows != b.rows || p->bucket.want != b.want) continue;
        if (p->bucket.seqs != b.seqs || p->bucket.past != b.past) continue;
        if (p->bucket.steps != b.steps || p->bucket.act != b.act) continue;
        *out = p;
        return 0;
    }
    api__plan *p = ht_arena_alloc(e->arena, sizeof *p);
    if (!p) return HT_FAIL(err, HT_ENOMEM, "no memory for a plan of %u rows", (unsigned)b.rows);
    p->unit = e->phase[phase].unit;
    p->be = p->unit->be;
    p->bucket = b;
    p->phase = phase;
    HT_TRY(describe(e, p, err));
    p->next = e->plans;
    e->plans = p;
    *out = p;
    return 0;
}

static int get(ht_engine *e, int phase, ht_bucket b, const api__plan **out, ht_err *err)
{
    api__plan *p = NULL;
    HT_TRY(find(e, phase, b, &p, err));
    if (!p->plan) HT_TRY(api__plan_encode(e, p, err));
    *out = p;
    return 0;
}

int api__plan_describe(ht_engine *e, int phase, uint32_t rows, uint32_t want, api__plan **out,
                       ht_err *err)
{
    ht_bucket b;
    api__bucket(e, phase, rows, want, &b);
    return find(e, phase, b, out, err);
}

int api__plan_get(ht_engine *e, int phase, uint32_t rows, uint32_t want, const api__plan **out,
                  ht_err *err)
{
    ht_bucket b;
    api__bucket(e, phase, rows, want, &b);
    return get(e, phase, b, out, err);
}

int api__plan_shared(ht_engine *e, int phase, const api__plan **out, ht_err *err)
{
    ht_bucket b;
    api__bucket_shared(e, phase, &b);
    return get(e, phase, b, out, err);
}

int api__plan_chain(ht_engine *e, const api__plan **out, ht_err *err)
{
    api__unit *u = e->phase[API_DECODE].unit;
    ht_bucket b;
    ht_err why = {0};
    *out = NULL;
    if (u->no_chain || e->keep_pages) return 0;
    api__bucket(e, API_DECODE, 1, 1, &b);
    b.steps = API_CHAIN;
    const int rc = get(e, API_DECODE, b, out, &why);
    if (rc) *out = NULL;
    if (rc == HT_EUNSUPPORTED) {
        u->no_chain = true;
        return 0;
    }
    if (rc && err) *err = why;
    return rc;
}

void api__plan_drop(ht_engine *e, const api__plan *plan)
{
    for (api__plan *p = e->plans; p; p = p->next) {
        if (p != plan || !p->plan) continue;
        p->be->plan_free(p->plan);
        p->plan = NULL;
    }
}

void api__plans_free(ht_engine *e)
{
    for (api__plan *p = e->plans; p; p = p->next) api__plan_drop(e, p);
    e->plans = NULL;
}
