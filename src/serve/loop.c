/* loop.c - the engine thread: loads the model, then gives waiting requests a slot, steps what
 * runs, and hands over what comes out. It alone touches the engine.
 * Prompts and answers: without a promoted scheduler scope a pass is either prompts or answers,
 * never both (R8, reason OVERLAP_UNMANAGED): while answers run, a piece of the prompts and a step
 * of the answers alternate, so that nobody waits for a whole long prompt. With a promoted scope, or
 * forced, the piece shares the answers' pass and is cut so that the upper bound of the pass stays
 * within the objective. */
#include "core/arena.h"
#include "core/clock.h"
#include "serve/server.h"
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PIECE_ROWS = 128, /* of prompts between two steps of answers, without an objective */
    TILE = 16,        /* a piece is a multiple of it */
};

/* ---- slots ----------------------------------------------------------------------------------- */

static uint32_t pages_for(const serve__server *s, const serve__job *j)
{
    const serve__req *r = j->req;
    uint64_t n = (uint64_t)j->n_ids + r->max_new;
    if (!r->max_new || n > s->ctx) n = s->ctx;
    return (uint32_t)((n + HT_PAGE_POSITIONS - 1) / HT_PAGE_POSITIONS) + 1;
}

static uint32_t common(const int32_t *a, uint32_t n, const int32_t *b, uint32_t m)
{
    uint32_t k = 0;
    while (k < n && k < m && a[k] == b[k]) k++;
    return k;
}

/* Tokens that a slot's session holds of the job's prompt. */
static uint32_t shared_with(const serve__slot *t, const serve__job *j)
{
    if (!t->session) return 0;
    const uint32_t len = ht_session_len(t->session), n = t->n_held < len ? t->n_held : len;
    return common(t->held, n, j->ids, j->n_ids);
}

/* Forget what a free slot's session holds. */
static void empty(serve__slot *t)
{
    t->n_held = 0;
    if (t->session) (void)(ht_session_truncate(t->session, 0, NULL) == 0);
}

/* The free slot that was used the longest ago, empty ones first, without `but`; n_slots: none. */
static uint32_t oldest(const serve__server *s, uint32_t but)
{
    uint32_t best = s->n_slots;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const serve__slot *t = &s->slot[i];
        if (t->job || i == but) continue;
        if (best == s->n_slots || (!t->n_held && s->slot[best].n_held) ||
            (!t->n_held == !s->slot[best].n_held && t->used_ns < s->slot[best].used_ns))
            best = i;
    }
    return best;
}

/* A free slot for the job, holding as much of its prompt as any session does: where the rest of
 * what that session holds is worth keeping, or it runs, the beginning is shared (forked) instead.
 */
static uint32_t place(serve__server *s, const serve__job *j)
{
    uint32_t from = s->n_slots, most = 0;
    for (uint32_t i = 0; i < s->n_slots && j->req->cache_prompt; i++) {
        const uint32_t n = shared_with(&s->slot[i], j);
        if (n > most) {
            most = n;
            from = i;
        }
    }
    const uint32_t to = oldest(s, from);
    if (from == s->n_slots) return to;
    serve__slot *a = &s->slot[from];
    const bool all = !a->job && (most + HT_PAGE_POSITIONS >= a->n_held || to == s->n_slots);
    if (all) return from;
    if (to == s->n_slots || most < HT_PAGE_POSITIONS) return to;
    serve__slot *b = &s->slot[to];
    ht_session *fork = NULL;
    ht_session_free(b->session);
    b->session = NULL;
    b->n_held = 0;
    if (ht_session_fork(&fork, a->session, NULL) && ht_session_new(&fork, s->engine, NULL))
        return to; /* reported when the job begins */
    b->session = fork;
    return to;
}

/* Pages for everything that runs, to its upper bound: whoever is idle gives back what it holds. */
static void make_room(serve__server *s, uint32_t but)
{
    for (;;) {
        uint32_t total = 0, have = 0;
        uint64_t owed = 0;
        ht_engine_pages(s->engine, &total, &have);
        for (uint32_t i = 0; i < s->n_slots; i++) {
            const serve__slot *t = &s->slot[i];
            const uint32_t held = t->session ? ht_session_len(t->session) / HT_PAGE_POSITIONS : 0;
            if (t->job && t->pages > held) owed += t->pages - held;
        }
        if (owed <= have) return;
        const uint32_t i = oldest(s, but);
        if (i == s->n_slots || !s->slot[i].n_held) {
            bool any = false;
            for (uint32_t k = 0; k < s->n_slots; k++)
                if (!s->slot[k].job && k != but && s->slot[k].n_held) {
                    empty(&s->slot[k]);
                    any = true;
                }
            if (!any) return;
            continue;
        }
        empty(&s->slot[i]);
    }
}

/* Take the next job of a waiting request whose upper bound fits; lock held. */
static serve__job *admit(serve__server *s)
{
    uint64_t reserved = 0;
    if (s->n_running == s->n_slots) return NULL;
    serve__req *r = serve__next(s);
    if (!r) return NULL;
    serve__job *j = &r->job[r->next_job];
    serve__job *head = &r->job[r->next_job - r->next_job % r->n_choices];
    /* Other choices of a prompt wait until it is computed: they share it. */
    if (head != j && head->state == JOB_RUNNING && ht_gen_state(head->gen) == HT_GEN_PROMPT)
        return NULL;
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slot[i].job) reserved += s->slot[i].pages;
    const uint32_t need = pages_for(s, j);
    if (reserved && reserved + need > s->answer_pages) return NULL;
    const uint32_t i = place(s, j);
    if (i == s->n_slots) return NULL;
    serve__slot *t = &s->slot[i];
    t->job = j;
    t->pages = need;
    j->slot = i;
    j->state = JOB_RUNNING;
    j->started_ns = ht_now_ns();
    s->n_running++;
    r->client->running++;
    if (++r->next_job == r->n_jobs) serve__unqueue(s, r);
    return j;
}

/* What the session holds now is remembered for the next prompt. */
static void remember(serve__server *s, serve__slot *t, const serve__job *j)
{
    const uint32_t len = t->session ? ht_session_len(t->session) : 0;
    uint32_t n = j->n_ids < len ? j->n_ids : len;
    memcpy(t->held, j->ids, n * sizeof *t->held);
    for (uint32_t i = 0; i < j->res.n_ids && n < len && n < s->ctx; i++)
        t->held[n++] = j->res.ids[i];
    t->n_held = n;
    t->used_ns = ht_now_ns();
}

/* The job's generation is over, or could not begin: its slot is free. */
static void leave(serve__server *s, serve__job *j)
{
    serve__slot *t = &s->slot[j->slot];
    serve__req *r = j->req;
    remember(s, t, j);
    s->unsaved = s->p.engine.prefix_dir != NULL;
    ht_gen_free(j->gen);
    j->gen = NULL;
    pthread_mutex_lock(&s->mu);
    t->job = NULL;
    j->state = JOB_DONE;
    s->n_running--;
    r->client->running--;
    r->n_done++;
    /* After a failure the jobs that have not begun never do. */
    if (r->failed && r->queued) {
        serve__unqueue(s, r);
        r->n_done += r->n_jobs - r->next_job;
        r->next_job = r->n_jobs;
    }
    pthread_mutex_unlock(&s->mu);
    if (r->n_done == r->n_jobs) serve__req_finish(r);
}

/* ---- steps ----------------------------------------------------------------------------------- */

typedef struct {
    ht_gen *gen[256];
    uint32_t n, n_prompt, n_decode, pos; /* pos: of the first prompt, where its next piece begins */
    uint32_t longest;                    /* of the prompts, whole */
    double keys;                         /* of the answers */
} work;

/* What is to be stepped: prompts (1), answers (2) or both (3). */
static void collect(const serve__server *s, int which, work *w)
{
    *w = (work){0};
    for (int prompts = 0; prompts < 2; prompts++) {
        /* Prompts in the order in which they came. */
        for (uint64_t after = 0;;) {
            const serve__slot *best = NULL;
            for (uint32_t i = 0; i < s->n_slots; i++) {
                const serve__slot *t = &s->slot[i];
                if (!t->job || !t->job->gen || t->job->started_ns < after) continue;
                if ((ht_gen_state(t->job->gen) == HT_GEN_PROMPT) != (prompts == 1)) continue;
                if (ht_gen_state(t->job->gen) == HT_GEN_DONE) continue;
                if (t->job->stepped == s->step_n) continue;
                if (!best || t->job->started_ns < best->job->started_ns) best = t;
            }
            if (!best) break;
            best->job->stepped = s->step_n;
            after = best->job->started_ns;
            const uint32_t len = ht_session_len(best->session);
            if (prompts && !w->n_prompt) w->pos = len;
            if (prompts) w->n_prompt++;
            else w->n_decode++;
            if (prompts && best->job->n_ids > w->longest) w->longest = best->job->n_ids;
            if (!prompts) w->keys += len;
            if (which & (prompts ? 1 : 2)) w->gen[w->n++] = best->job->gen;
        }
    }
}

/* Rows of prompts for the next pass. */
static uint32_t piece(const serve__server *s, const work *w, bool overlap)
{
    const double slo = s->p.tpot_ms * 1e6;
    if (!w->n_decode) return 0; /* nobody waits: the engine's own chunk */
    if (!s->p.tpot_ms) return PIECE_ROWS;
    return serve__cost_chunk(&s->cost, slo, overlap ? w->n_decode : 0, overlap ? w->keys : 0,
                             w->pos, TILE, TILE, 4 * PIECE_ROWS);
}

/* May these prompts share the answers' pass? */
static bool may_overlap(const serve__server *s, const work *w)
{
    return s->p.overlap || (s->schedule.promoted && w->longest <= s->schedule.max_prompt);
}

static void count(serve__server *s, const ht_step_info *info, bool overlap, bool serialised)
{
    const double rows = info->prompt_rows + info->decode_rows;
    const double bound = serve__cost_bound(&s->cost, rows, (double)info->keys);
    pthread_mutex_lock(&s->mu);
    serve__metrics *m = &s->m;
    ht_engine_pages(s->engine, &s->pages_total, &s->pages_free);
    m->passes += info->passes;
    m->busy_ns += info->ns;
    m->prompt_rows += info->prompt_rows;
    m->decode_rows += info->decode_rows;
    m->overlap_passes += overlap && info->prompt_rows && info->decode_rows;
    m->serialised += serialised && info->prompt_rows;
    if (overlap && info->passes == 1 && info->prompt_rows && info->decode_rows && bound > 0) {
        m->bounds++;
        m->bound_misses += (double)info->ns > bound;
    }
    if (info->passes == 1) serve__cost_add(&s->cost, rows, (double)info->keys, (double)info->ns);
    pthread_mutex_unlock(&s->mu);
}

static void step(serve__server *s)
{
    work w;
    ht_step_info info = {0};
    ht_err err = {0};
    s->step_n++;
    collect(s, 3, &w);
    const bool both = w.n_prompt && w.n_decode, overlap = both && may_overlap(s, &w);
    const uint32_t rows = piece(s, &w, overlap);
    if (both && !overlap) {
        s->step_n++;
        s->answers_turn = !s->answers_turn;
        collect(s, s->answers_turn ? 2 : 1, &w);
    }
    if (ht_engine_step(s->engine, w.gen, w.n, rows, &info, &err))
        serve__log(s, HT_SERVE_ERROR, "step: %s", err.msg);
    count(s, &info, overlap, both && !overlap);
}

/* Deadlines and clients that left; generations that are done. */
static void settle(serve__server *s)
{
    const uint64_t now = ht_now_ns();
    for (uint32_t i = 0; i < s->n_slots; i++) {
        serve__job *j = s->slot[i].job;
        if (!j) continue;
        if (j->gen && ht_gen_state(j->gen) != HT_GEN_DONE) {
            serve__req *r = j->req;
            if (r->deadline_ns && now >= r->deadline_ns && !j->expired) {
                j->expired = true;
                ht_cancel(s->slot[i].session);
            }
            if (atomic_load(&r->gone) || r->failed) ht_cancel(s->slot[i].session);
            continue;
        }
        serve__job_end(j);
        leave(s, j);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void begin(serve__server *s, serve__job *j)
{
    ht_err err = {0};
    serve__fail f;
    make_room(s, j->slot);
    if (j->req->failed || atomic_load(&j->req->gone)) return; /* settle() ends it */
    if (!serve__job_begin(j, &err)) {
        if (atomic_load(&j->req->gone)) ht_cancel(s->slot[j->slot].session);
        return;
    }
    (void)serve__bad_err(&f, NULL, &err);
    serve__req_fail(j->req, &f);
}

/* Wait until there is something to do; lock held. */
static void doze(serve__server *s, uint64_t until_ns)
{
    const uint64_t now = ht_now_ns();
    struct timespec t;
    if (until_ns == UINT64_MAX) {
        pthread_cond_wait(&s->wake, &s->mu);
        return;
    }
    const uint64_t wait = until_ns > now ? until_ns - now : 0;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(wait / 1000000000);
    t.tv_nsec += (long)(wait % 1000000000);
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    (void)pthread_cond_timedwait(&s->wake, &s->mu, &t);
}

/* While draining: whether the time is up, and then everything that runs is cut. Lock held. */
static bool drained(serve__server *s)
{
    if (s->phase != PHASE_DRAINING) return false;
    if (!s->stop && ht_now_ns() >= s->drain_until_ns) s->stop = true;
    if (s->stop) {
        for (serve__req *r = s->first; r; r = r->next) {
            r->deadline_ns = 1;
        }
        for (uint32_t i = 0; i < s->n_slots; i++)
            if (s->slot[i].job) {
                s->slot[i].job->req->deadline_ns = 1;
                s->slot[i].job->expired = true; /* the answer says that it was cut */
                if (s->slot[i].session) ht_cancel(s->slot[i].session);
            }
    }
    return !s->first && !s->n_running;
}

/* While nobody waits: pages of the prefix cache into their files, a few at a time. */
static void save_some(serve__server *s)
{
    enum { AT_ONCE = 16 };
    uint32_t left = 0;
    ht_err err = {0};
    if (ht_engine_prefix_save(s->engine, AT_ONCE, &left, &err)) {
        serve__log(s, HT_SERVE_WARN, "prefix cache: %s; going on without new files", err.msg);
        left = 0;
    }
    s->unsaved = left > 0;
}

/* One round: drop, admit, step. false: the end. */
static bool round_of(serve__server *s)
{
    uint64_t next = UINT64_MAX;
    serve__job *fresh[256];
    uint32_t n = 0;
    pthread_mutex_lock(&s->mu);
    const bool over = drained(s);
    serve__req *dropped = serve__sweep(s, ht_now_ns(), &next);
    for (serve__job *j; n < 256 && (j = admit(s));) fresh[n++] = j;
    if (s->phase == PHASE_DRAINING && s->drain_until_ns < next) next = s->drain_until_ns;
    if (!over && !dropped && !n && !s->n_running && !s->unsaved) {
        s->m.idle_queued += serve__next(s) != NULL;
        doze(s, next);
    }
    const bool busy = s->n_running > 0;
    pthread_mutex_unlock(&s->mu);
    while (dropped) {
        serve__req *r = dropped;
        dropped = r->next;
        serve__req_finish(r);
    }
    for (uint32_t i = 0; i < n; i++) begin(s, fresh[i]);
    if (busy) {
        step(s);
        settle(s);
    }
    if (!busy && s->unsaved) save_some(s);
    return !over;
}

void *serve__engine_main(void *arg)
{
    serve__server *s = arg;
    ht_err err = {0};
    const int rc = serve__load(s, &err);
    pthread_mutex_lock(&s->mu);
    s->load_err = err;
    if (rc) s->phase = PHASE_FAILED;
    else if (s->phase == PHASE_LOADING) s->phase = PHASE_READY;
    pthread_mutex_unlock(&s->mu);
    serve__loaded(s, rc);
    while (!rc && round_of(s)) continue;
    serve__unload(s);
    const uint64_t one = 1;
    (void)(write(s->end_fd, &one, sizeof one) < 0);
    return NULL;
}
