/* queue.c - who waits and who is next. Requests wait in the order of arrival; the next one is that
 * of the highest priority, among equals that of the client with the fewest answers running, among
 * these the oldest. A client that left is dropped here without having cost anything. */
#include "core/clock.h"
#include "serve/server.h"
#include <stdio.h>
#include <string.h>

/* Seconds until a place is likely to be free: what waits, at the pace of the last answers. */
static uint32_t retry_after(const serve__server *s)
{
    const serve__histogram *h = &s->m.total;
    uint64_t n = 0;
    for (int i = 0; i <= METRIC_BUCKETS; i++) n += h->count[i];
    const double each = n ? h->sum / (double)n : 1;
    const double t = each * (s->n_queued + 1) / s->n_slots;
    return t < 1 ? 1 : t > 120 ? 120 : (uint32_t)(t + 0.5);
}

void serve__unqueue(serve__server *s, serve__req *r)
{
    serve__req **at = &s->first;
    while (*at && *at != r) at = &(*at)->next;
    if (!*at) return;
    *at = r->next;
    if (s->last == &r->next) s->last = at;
    r->next = NULL;
    r->queued = false;
    s->n_queued--;
}

/* Out of the queue, for the engine thread to finish. Lock held. */
static void drop(serve__server *s, serve__req *r)
{
    r->failed = true;
    serve__unqueue(s, r);
    r->next = s->dropped;
    s->dropped = r;
}

/* Part of a request that runs is looked after by the loop; one that is not watched yet is still in
 * the hands of its HTTP thread. */
static bool only_waits(const serve__req *r)
{
    return r->queued && r->watched && !r->next_job;
}

/* The watcher's word: whatever this request does anywhere ends. Its place in the queue is free now,
 * not when the pass under way is over. */
static void on_gone(void *arg)
{
    serve__req *r = arg;
    serve__server *s = r->s;
    pthread_mutex_lock(&s->mu);
    atomic_store(&r->gone, true);
    if (only_waits(r)) {
        s->m.cancelled[CANCEL_QUEUE]++;
        drop(s, r);
    }
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slot[i].job && s->slot[i].job->req == r) ht_cancel(s->slot[i].session);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mu);
}

/* When a request came and how long it is, without a word of it: what `hetero qualify scheduler`
 * takes as a recorded trace. Lock held. */
static void note_arrival(serve__server *s, const serve__req *r)
{
    if (!s->trace) return;
    if (!s->trace_from_ns) s->trace_from_ns = r->arrived_ns;
    /* Arrivals are noted in the order in which they are queued. */
    const uint64_t at = r->arrived_ns > s->trace_from_ns ? r->arrived_ns - s->trace_from_ns : 0;
    fprintf(s->trace, "{\"atNs\":%llu,\"maxNew\":%u,\"nPrompt\":%u}\n", (unsigned long long)at,
            r->max_new ? r->max_new : s->ctx, r->job[0].n_ids);
    (void)fflush(s->trace);
}

bool serve__submit(serve__req *r, serve__fail *f)
{
    serve__server *s = r->s;
    pthread_mutex_lock(&s->mu);
    bool ok = false;
    if (s->phase != PHASE_READY) {
        serve__bad(f, 503, s->phase == PHASE_DRAINING ? "draining" : "loading", NULL,
                   "the server is %s", s->phase == PHASE_DRAINING ? "stopping" : "loading");
        f->retry_s = 5;
    } else if (s->n_queued >= s->p.queue + (s->n_slots - s->n_running)) {
        /* A request for a free slot is in the queue, too, but does not wait. */
        s->m.refused_full++;
        serve__bad(f, 429, "queue_full", NULL,
                   "%u requests wait already, as many as may (--queue); try again later",
                   s->n_queued);
        f->retry_s = retry_after(s);
    } else {
        ok = true;
        r->seq = ++s->next_seq;
        if (s->p.deadline_s)
            r->deadline_ns = r->arrived_ns + s->p.deadline_s * UINT64_C(1000000000);
        r->next = NULL;
        r->queued = true;
        *s->last = r;
        s->last = &r->next;
        s->n_queued++;
        s->m.accepted++;
        note_arrival(s, r);
    }
    pthread_mutex_unlock(&s->mu);
    if (!ok) return false;
    /* Until `watched` is set the engine thread leaves the request alone. */
    serve__conn_watch(r->conn, on_gone, r);
    pthread_mutex_lock(&s->mu);
    r->watched = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mu);
    return true;
}

static bool before(const serve__req *a, const serve__req *b)
{
    if (a->client->priority != b->client->priority)
        return a->client->priority > b->client->priority;
    if (a->client->running != b->client->running) return a->client->running < b->client->running;
    return a->seq < b->seq;
}

serve__req *serve__next(serve__server *s)
{
    serve__req *best = NULL;
    for (serve__req *r = s->first; r; r = r->next) {
        if (!r->watched || r->next_job == r->n_jobs) continue;
        if (!best || before(r, best)) best = r;
    }
    return best;
}

serve__req *serve__sweep(serve__server *s, uint64_t now, uint64_t *next_ns)
{
    *next_ns = UINT64_MAX;
    for (serve__req *r = s->first, *next; r; r = next) {
        next = r->next;
        if (!only_waits(r)) continue;
        const uint64_t until = r->arrived_ns + s->p.queue_s * UINT64_C(1000000000);
        const uint64_t end = r->deadline_ns && r->deadline_ns < until ? r->deadline_ns : until;
        const bool gone = atomic_load(&r->gone);
        if (!gone && now < end) {
            if (end < *next_ns) *next_ns = end;
            continue;
        }
        if (gone) {
            s->m.cancelled[CANCEL_QUEUE]++;
        } else {
            s->m.expired++;
            serve__bad(&r->fail, 503, "queue_timeout", NULL,
                       "waited %u s and no slot became free; try again later",
                       (unsigned)((now - r->arrived_ns) / 1000000000));
            r->fail.retry_s = retry_after(s);
        }
        drop(s, r);
    }
    serve__req *out = s->dropped;
    s->dropped = NULL;
    return out;
}
