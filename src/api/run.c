/* run.c - one batch of a session through a plan: pages reserved, run, waited for, counted. A run
 * that fails or is cancelled leaves the session at the position it had. */
#include "api/api.h"
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

static void stop(ht_session *s)
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
    stop(s);
    ht_session *helper = atomic_load(&s->helper);
    if (helper) stop(helper);
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

/* Add the backend's own figures of the run to the record: least bytes and operations at the rows
 * and depth that ran, what was dispatched, what was copied. */
static int count(ht_session *s, int phase, const api__plan *p, uint32_t pos, uint32_t n,
                 ht_err *err)
{
    ht_run_stats st = {0};
    if (p->be->stats(p->plan, &st))
        return HT_FAIL(err, HT_EDEVICE, "engine %s gives no figures for its last run", p->be->name);
    api__segment *g = segment_of(&s->rec, phase, p, pos);
    g->tokens += n;
    g->runs++;
    g->sum.ns += st.ns;
    g->sum.bytes += st.bytes;
    g->sum.flops += st.flops;
    g->sum.dispatches += st.dispatches;
    g->sum.barriers += st.barriers;
    g->sum.host_copy_bytes += st.host_copy_bytes;
    g->sum.device_copy_bytes += st.device_copy_bytes;
    return 0;
}

/* Run and wait until it is done or the session is cancelled. A backend may report a cancel that was
 * meant for an earlier run of the same plan: the session's own flag decides, and the batch, which
 * writes the same values to the same places, is run again. */
static int drive(ht_session *s, const api__plan *p, const ht_batch *b, const float **logits,
                 ht_err *err)
{
    int rc = 0;
    atomic_store(&s->running, p);
    do {
        if (atomic_load(&s->cancel)) {
            rc = HT_FAIL(err, HT_ECANCELLED, "cancelled at position %u", ht_seq_len(s->seq));
            break;
        }
        rc = p->be->run(p->plan, b, err);
        if (!rc) rc = p->be->wait(p->plan, logits, err);
    } while (rc == HT_ECANCELLED && !atomic_load(&s->cancel));
    atomic_store(&s->running, NULL);
    return rc;
}

int api__run(ht_session *s, int phase, const api__plan *p, const int32_t *ids, uint32_t n,
             const uint32_t *want, uint32_t n_want, const float **logits, ht_err *err)
{
    uint32_t pos = ht_seq_len(s->seq);
    int rc = ht_seq_reserve(s->seq, n, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < n; i++) s->pos[i] = (int32_t)(pos + i);
    const uint8_t rope_long = s->rope_long;
    ht_batch b = {.rows = n,
                  .seqs = 1,
                  .n_want = n_want,
                  .token = ids,
                  .pos = s->pos,
                  .seq = s->owner,
                  .page = {ht_seq_pages(s->seq, HT_KV_FULL), ht_seq_pages(s->seq, HT_KV_WINDOW)},
                  .want = want,
                  .rope_long = rope_long ? &rope_long : NULL};
    rc = drive(s, p, &b, logits, err);
    if (!rc) rc = count(s, phase, p, pos, n, err);
    if (!rc) {
        if (ids != s->hist + pos) memcpy(s->hist + pos, ids, n * sizeof *ids);
        ht_seq_advance(s->seq, n);
        return 0;
    }
    /* Gives the reserved pages back; to where a reservation began it always works. */
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
