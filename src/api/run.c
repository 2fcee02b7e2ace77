/* run.c - a batch of one or several sessions through a plan: pages reserved, run, waited for,
 * counted. A run that fails or is cancelled leaves every session at the position it had. */
#include "api/whole.h"
#include "core/clock.h"
#include <string.h>

int api__enter(ht_engine *e, ht_err *err)
{
    if (!atomic_flag_test_and_set_explicit(&e->busy, memory_order_acquire)) return 0;
    return HT_FAIL(
        err, HT_EBUSY,
        "the engine is running another session; one call at a time, or open a second engine");
}

void api__leave(ht_engine *e)
{
    atomic_flag_clear_explicit(&e->busy, memory_order_release);
}

void api__stop(ht_session *s)
{
    /* Flag first, then the plan: api__run publishes the plan first, then looks at the flag, so one
     * of the two sees the other. */
    atomic_store(&s->cancel, 1);
    const api__plan *p = atomic_load(&s->running);
    if (p) (void)p->be->cancel(p->plan); /* a plan that is not running has nothing to stop */
}

void ht_cancel(ht_session *s)
{
    if (!s) return;
    api__stop(s);
    ht_session *helper = atomic_load(&s->helper);
    if (helper) api__stop(helper);
}

/* The record's entry for this phase and plan; the last one again when the table is full. */
static api__segment *segment_of(api__record *r, int phase, const api__plan *p, uint32_t pos)
{
    for (size_t i = 0; i < r->n_segments; i++)
        if (r->segment[i].phase == phase && r->segment[i].plan == p) return &r->segment[i];
    if (r->n_segments == API_SEGMENTS) return &r->segment[API_SEGMENTS - 1];
    api__segment *g = &r->segment[r->n_segments++];
    *g = (api__segment){.phase = phase, .plan = p, .pos0 = pos};
    return g;
}

/* Of a cost spread over `of` rows, what falls on the n from row `at` on. Shares of all rows add up
 * to the whole. */
static uint64_t share(uint64_t all, uint32_t at, uint32_t n, uint32_t of)
{
    const uint64_t q = all / of, r = all % of;
    return q * n + r * (at + n) / of - r * at / of;
}

/* Add a part's share of the backend's own figures of the run to its session's record: least bytes
 * and operations at the rows and depth that ran, what was dispatched, what was copied. */
static void count(const api__part *part, const api__plan *p, const ht_run_stats *st, uint32_t pos,
                  uint32_t at, uint32_t rows)
{
    api__segment *g = segment_of(&part->s->rec, part->phase, p, pos);
    const uint32_t n = part->n;
    g->tokens += n;
    g->runs++;
    g->foreign += rows - n;
    g->sum.ns += share(st->ns, at, n, rows);
    g->sum.device_ns += share(st->device_ns, at, n, rows);
    g->sum.bytes += share(st->bytes, at, n, rows);
    g->sum.flops += share(st->flops, at, n, rows);
    g->sum.dispatches += (uint32_t)share(st->dispatches, at, n, rows);
    g->sum.barriers += (uint32_t)share(st->barriers, at, n, rows);
    g->sum.host_copy_bytes += share(st->host_copy_bytes, at, n, rows);
    g->sum.device_copy_bytes += share(st->device_copy_bytes, at, n, rows);
    g->executed = st->executed;
    g->exec = ht_exec_add(g->exec, st->exec);
    g->exec_cuts += st->exec_cuts;
}

/* Did the engine launch what the plan holds? A batch that wants no row may end at the pick. An
 * engine that does not say is taken at its word, except for a route: that was measured on what
 * ran. */
static bool as_planned(const api__part *part, const api__plan *p, const ht_run_stats *st)
{
    uint64_t fold = 0;
    if (!st->executed) return !part->s->rec.phase[part->phase].entry;
    if (strcmp(st->executed, p->be->name) != 0 || st->exec_cuts > p->n_cuts) return false;
    for (size_t i = 0; i < st->exec_cuts; i++) fold = ht_exec_add(fold, ht_exec_id(&p->cuts[i]));
    if (fold != st->exec) return false;
    return st->exec_cuts == p->n_cuts ||
           part->s->e->tape[p->cuts[st->exec_cuts].at].kind == HT_PICK;
}

static int mismatch(const api__part *part, const api__plan *p, const ht_run_stats *st, ht_err *err)
{
    part->s->rec.mismatch = true;
    return HT_FAIL(err, HT_EGATE,
                   "ROUTE_MISMATCH: planned %s with %zu cuts, executed %s with %u: the result is "
                   "not used",
                   p->be->name, p->n_cuts, st->executed ? st->executed : "(unknown)",
                   st->exec_cuts);
}

static bool cancelled(const api__part *part, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (atomic_load(&part[i].s->cancel)) return true;
    return false;
}

/* Run and wait until it is done or a session is cancelled. A backend may report a cancel that was
 * meant for an earlier run of the same plan: the sessions' own flags decide, and the batch, which
 * writes the same values to the same places, is run again. *ran (or NULL): a cancelled run had
 * begun. */
static int drive(const api__part *part, uint32_t n, const api__plan *p, const ht_batch *b,
                 const float **logits, bool *ran, ht_err *err)
{
    int rc = 0;
    if (ran) *ran = false;
    for (uint32_t i = 0; i < n; i++) atomic_store(&part[i].s->running, p);
    do {
        if (cancelled(part, n)) {
            rc =
                HT_FAIL(err, HT_ECANCELLED, "cancelled at position %u", ht_seq_len(part[0].s->seq));
            break;
        }
        rc = p->be->run(p->plan, b, err);
        if (ran) *ran = !rc;
        if (!rc) rc = p->be->wait(p->plan, logits, err);
    } while (rc == HT_ECANCELLED && !cancelled(part, n));
    for (uint32_t i = 0; i < n; i++) atomic_store(&part[i].s->running, NULL);
    return rc;
}

/* The batch of one session: its own arrays and page table as they are. */
static void fill_one(const api__part *part, ht_batch *b, const uint8_t *rope_long,
                     float *const *mass)
{
    ht_session *s = part->s;
    const uint32_t pos = ht_seq_len(s->seq);
    for (uint32_t i = 0; i < part->n; i++) s->pos[i] = (int32_t)(pos + i);
    *b = (ht_batch){.rows = part->n,
                    .seqs = 1,
                    .n_want = part->n_want,
                    .token = part->ids,
                    .pos = s->pos,
                    .seq = s->owner,
                    .page = {ht_seq_pages(s->seq, HT_KV_FULL), ht_seq_pages(s->seq, HT_KV_WINDOW)},
                    .want = part->want,
                    .n_ids = s->n_ids,
                    .mass = *mass ? mass : NULL,
                    .rope_long = *rope_long ? rope_long : NULL};
}

/* The batch of several: rows one after the other, page tables side by side. */
static void fill_many(ht_engine *e, const api__part *part, uint32_t n_parts, ht_batch *b)
{
    const api__batch *m = &e->batch;
    const size_t n_table = (e->ctx + HT_PAGE - 1) / HT_PAGE;
    uint32_t rows = 0, n_want = 0;
    bool any_long = false;
    for (uint32_t k = 0; k < n_parts; k++) {
        const ht_session *s = part[k].s;
        const uint32_t pos = ht_seq_len(s->seq);
        for (uint32_t i = 0; i < part[k].n_want; i++) m->want[n_want++] = rows + part[k].want[i];
        for (uint32_t i = 0; i < part[k].n; i++, rows++) {
            m->token[rows] = part[k].ids[i];
            m->pos[rows] = (int32_t)(pos + i);
            m->owner[rows] = (uint16_t)k;
        }
        for (int c = 0; c < HT_KV_CLASSES; c++) {
            const uint32_t *pages = ht_seq_pages(s->seq, c);
            if (pages) memcpy(m->table[c] + k * n_table, pages, n_table * sizeof *pages);
        }
        m->mass[k] = s->evict.mass;
        m->rope_long[k] = s->rope_long;
        any_long = any_long || s->rope_long;
    }
    *b = (ht_batch){.rows = rows,
                    .seqs = n_parts,
                    .n_want = n_want,
                    .token = m->token,
                    .pos = m->pos,
                    .seq = m->owner,
                    .page = {m->table[HT_KV_FULL], m->table[HT_KV_WINDOW]},
                    .want = m->want,
                    .mass = e->keep_pages ? m->mass : NULL,
                    .rope_long = any_long ? m->rope_long : NULL};
}

/* Pages for every part; on failure the first `*done` have theirs. */
static int reserve(ht_engine *e, const api__plan *p, const api__part *part, uint32_t n,
                   uint32_t *done, ht_err *err)
{
    for (*done = 0; *done < n; ++*done) {
        ht_session *s = part[*done].s;
        HT_TRY(api__evict_due(s, err));
        const uint64_t before = ht_pool_copied_bytes(e->pool);
        /* What pads a fixed number of rows is written too, and given back after the run. */
        HT_TRY(ht_seq_reserve(s->seq, p->be->buckets ? p->bucket.rows : part[*done].n, err));
        s->rec.cow_bytes += ht_pool_copied_bytes(e->pool) - before;
    }
    return 0;
}

/* The sessions' pages to where the plan reads and writes; each session's record has its own. */
static int bring(const api__plan *p, const api__part *part, uint32_t n, ht_err *err)
{
    for (uint32_t k = 0; k < n; k++) {
        ht_session *s = part[k].s;
        api__hand_record *h = &s->rec.hand[part[k].phase];
        ht_moved moved = {0};
        const uint64_t t0 = ht_now_ns();
        const int rc = ht_seq_bring(s->seq, p->unit->place, &moved, err);
        const uint64_t ns = moved.pages ? ht_now_ns() - t0 : 0;
        h->bytes += moved.bytes;
        h->pages += moved.pages;
        h->late += moved.pages;
        h->ns += ns;
        h->exposed_ns += ns;
        if (rc) return rc;
    }
    return 0;
}

/* Is this part a prompt's that will be decoded in the other place? */
static bool hands_over(const api__plan *p, const api__part *part)
{
    const ht_session *s = part->s;
    return part->phase == API_PREFILL && s->gen && (p->bucket.flags & HT_KV_DONE) &&
           s->rec.phase[API_DECODE].unit->place != p->unit->place;
}

/* Let the run hand over, layer by layer, what will be decoded elsewhere. */
static bool hand_begin(ht_engine *e, const api__plan *p, const api__part *part, uint32_t n,
                       ht_batch *b)
{
    bool any = false;
    for (uint32_t k = 0; k < n && e->hand; k++) {
        if (!hands_over(p, &part[k])) continue;
        ht_seq_hand(part[k].s->seq, part[k].n);
        any = true;
    }
    if (!any) return false;
    api__hand_begin(e->hand, !p->unit->place);
    b->kv_done = api__hand_layer;
    b->kv_user = e->hand;
    return true;
}

/* Behind the run, and the advance of its sessions where it succeeded; the cost is shared by the
 * rows of those that hand over. */
static void hand_end(ht_engine *e, const api__plan *p, const api__part *part, uint32_t n, bool ok)
{
    api__handed h = {0};
    uint32_t rows = 0, at = 0;
    const uint32_t layers = api__hand_wait(e->hand, &h);
    const uint64_t pages = ht_pool_hand_end(e->pool, !p->unit->place, ok ? layers : 0);
    for (uint32_t k = 0; k < n; k++) rows += hands_over(p, &part[k]) ? part[k].n : 0;
    for (uint32_t k = 0; k < n; k++) {
        api__hand_record *r = &part[k].s->rec.hand[API_DECODE];
        const uint32_t own = part[k].n;
        if (!hands_over(p, &part[k])) continue;
        r->bytes += share(h.bytes, at, own, rows);
        r->pages += share(pages, at, own, rows);
        r->ns += share(h.ns, at, own, rows);
        r->exposed_ns += share(h.exposed_ns, at, own, rows);
        at += own;
    }
}

/* Run the batch and advance its sessions. */
static int run_batch(const api__plan *p, const api__part *part, uint32_t n, ht_batch *b,
                     const float **logits, ht_err *err)
{
    ht_run_stats st = {0};
    HT_TRY(drive(part, n, p, b, logits, NULL, err));
    if (p->be->stats(p->plan, &st))
        return HT_FAIL(err, HT_EDEVICE, "engine %s gives no figures for its last run", p->be->name);
    int rc = 0;
    for (uint32_t k = 0; k < n; k++)
        if (!as_planned(&part[k], p, &st)) rc = mismatch(&part[k], p, &st, err);
    if (rc) return rc;
    for (uint32_t k = 0, at = 0; k < n; at += part[k++].n) {
        ht_session *s = part[k].s;
        const uint32_t pos = ht_seq_len(s->seq);
        count(&part[k], p, &st, pos, at, b->rows);
        if (part[k].ids != s->hist + pos)
            memcpy(s->hist + pos, part[k].ids, part[k].n * sizeof *s->hist);
        api__class_mark(s, ht_seq_len(s->seq), part[k].n, p->cls);
        ht_seq_advance(s->seq, part[k].n);
        if (p->be->buckets) HT_TRY(ht_seq_truncate(s->seq, ht_seq_len(s->seq), err));
    }
    return 0;
}

static int run_reserved(ht_engine *e, const api__plan *p, const api__part *part, uint32_t n,
                        const float **logits, ht_err *err)
{
    ht_batch b;
    const uint8_t rope_long = part[0].s->rope_long;
    float *const mass = part[0].s->evict.mass;
    HT_TRY(bring(p, part, n, err));
    if (n == 1) fill_one(part, &b, &rope_long, &mass);
    else fill_many(e, part, n, &b);
    const bool hands = hand_begin(e, p, part, n, &b);
    const int rc = run_batch(p, part, n, &b, logits, err);
    if (hands) hand_end(e, p, part, n, rc == 0);
    return rc;
}

int api__run_parts(ht_engine *e, const api__plan *p, const api__part *part, uint32_t n,
                   const float **logits, uint32_t *culprit, ht_err *err)
{
    uint32_t done = 0;
    int rc = reserve(e, p, part, n, &done, err);
    if (culprit) *culprit = rc ? done : n;
    if (!rc) rc = run_reserved(e, p, part, n, logits, err);
    if (!rc) return 0;
    /* Gives the reserved pages back; to where a reservation began it always works. */
    for (uint32_t k = 0; k < done; k++)
        (void)(ht_seq_truncate(part[k].s->seq, ht_seq_len(part[k].s->seq), NULL) == 0);
    if (rc == HT_EDEVICE) api__plan_drop(e, p);
    return rc;
}

int api__run(ht_session *s, int phase, const api__plan *p, const int32_t *ids, uint32_t n,
             const uint32_t *want, uint32_t n_want, const float **logits, ht_err *err)
{
    const api__part part = {
        .s = s, .phase = phase, .ids = ids, .n = n, .want = want, .n_want = n_want};
    return api__run_parts(s->e, p, &part, 1, logits, NULL, err);
}

/* The chain's run, with its pages there. */
static int chain_reserved(api__part *part, const api__plan *p, ht_batch *b, const int32_t **ids,
                          ht_err *err)
{
    ht_session *s = part->s;
    ht_run_stats st = {0};
    const uint32_t pos = ht_seq_len(s->seq);
    size_t n = 0;
    bool ran;
    HT_TRY(bring(p, part, 1, err));
    const int end = drive(part, 1, p, b, NULL, &ran, err);
    if (end && (end != HT_ECANCELLED || !ran)) return end;
    if (p->be->stats(p->plan, &st))
        return HT_FAIL(err, HT_EDEVICE, "engine %s gives no figures for its last run", p->be->name);
    if (!as_planned(part, p, &st)) return mismatch(part, p, &st, err);
    HT_TRY(p->be->tokens(p->plan, ids, &n, err));
    if (end && n == 0) return end; /* with tokens the next step is the one that is cancelled */
    if (n == 0 || n > b->steps)
        return HT_FAIL(err, HT_EDEVICE, "engine %s made %zu tokens in a run of %u", p->be->name, n,
                       b->steps);
    for (size_t i = 0; i < n; i++)
        if ((*ids)[i] < 0 || (uint32_t)(*ids)[i] >= s->e->model->spec.vocab)
            return HT_FAIL(err, HT_EFORMAT,
                           "token %d at position %zu: no logit there is a number; the model's "
                           "weights may be damaged",
                           (int)(*ids)[i], pos + 1 + i);
    part->n = (uint32_t)n;
    count(part, p, &st, pos, 0, part->n);
    memcpy(s->hist + pos + 1, *ids, n * sizeof *s->hist);
    api__class_mark(s, pos, part->n, p->cls);
    ht_seq_advance(s->seq, part->n);
    s->step_ns = (st.device_ns ? st.device_ns : st.ns) / n;
    return ht_seq_truncate(s->seq, ht_seq_len(s->seq), err); /* what an early end did not need */
}

int api__run_chain(ht_session *s, const api__plan *p, uint32_t steps, const int32_t *end_id,
                   size_t n_end, const int32_t **ids, uint32_t *n, ht_err *err)
{
    const uint32_t pos = ht_seq_len(s->seq);
    const uint8_t rope_long = s->rope_long;
    float *const mass = NULL;
    uint32_t done = 0;
    ht_batch b;
    s->want[0] = 0;
    api__part part = {.s = s,
                      .phase = API_DECODE,
                      .ids = s->hist + pos,
                      .n = steps,
                      .n_want = 1,
                      .want = s->want};
    int rc = reserve(s->e, p, &part, 1, &done, err);
    part.n = 1;
    fill_one(&part, &b, &rope_long, &mass);
    b.steps = steps;
    b.end_id = end_id;
    b.n_end = (uint32_t)n_end;
    if (!rc) rc = chain_reserved(&part, p, &b, ids, err);
    *n = rc ? 0 : part.n;
    if (!rc) return 0;
    (void)(ht_seq_truncate(s->seq, pos, NULL) == 0);
    if (rc == HT_EDEVICE) api__plan_drop(s->e, p);
    return rc;
}

int api__roll_back(ht_session *s, const api__plan *p, uint32_t len, uint32_t drafted,
                   uint32_t accepted, ht_err *err)
{
    const uint32_t held = ht_seq_len(s->seq);
    api__segment *g = segment_of(&s->rec, API_DECODE, p, held);
    g->drafted += drafted;
    g->accepted += accepted;
    if (held == len) return 0;
    g->tokens -= held - len; /* what stays counts; the bytes and operations were spent */
    return ht_seq_truncate(s->seq, len, err);
}
