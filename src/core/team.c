/* team.c - see team.h.
 *
 * Two gates: `start` lets the workers into a run, `phase` lets a barrier's waiters go. A gate is a
 * counter; waiting means until it moves on. Arrivals are counted in `arrived`; the last one resets
 * it and moves the phase, so a barrier is one atomic add and one store while nobody sleeps.
 *
 * Waiting spins first and then sleeps in the kernel. How long it spins is learned per thread: a
 * wait that ended within SPIN_MAX_NS, spinning or asleep, raises the budget, a longer one lowers
 * it. Where threads outnumber cores (or a quota throttles one of them) a waiter's peer is not
 * running, waits take time slices, and the budget falls to SPIN_MIN_NS by itself. Every PROBE-th
 * wait spins for the maximum, so that a budget once low can learn of better times. */
#include "core/team.h"
#include "core/arena.h"
#include "core/clock.h"
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A sleeping waiter costs its waker a system call and itself a wake-up: some ten microseconds on
 * the bare machine, 50 to 100 on a virtual one, whose idle processor has left for the host.
 * Spinning for longer than that wastes more than it can save. */
enum { SPIN_MIN_NS = 300, SPIN_MAX_NS = 100000, PROBE = 32 };
enum { LINE = 64 }; /* bytes of a cache line: what ranks write lies in lines of its own */

typedef struct {
    _Atomic uint32_t word, sleepers;
    char pad[LINE - 8];
} gate;

typedef struct {
    ht_team *team;
    pthread_t thread;
    int rank;
    uint32_t spin_ns, waits;
    char pad[LINE - sizeof(ht_team *) - sizeof(pthread_t) - 12];
} member;

struct ht_team {
    gate start, phase;
    _Atomic uint32_t arrived;
    char pad0[LINE - 4];
    _Atomic uint32_t chunk;
    char pad1[LINE - 4];
    _Atomic uint64_t barriers;
    ht_team_fn fn; /* written by rank 0 before it opens start */
    void *arg;
    int size;
    bool stop;
    char pad2[LINE - 3 * 8 - 8];
    member members[]; /* [size]; [0] is whoever calls ht_team_run */
};

/* The member this thread is, for its spin budget; set for workers, NULL elsewhere. */
static _Thread_local member *self;

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static long futex(_Atomic uint32_t *word, int op, uint32_t value)
{
    return syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* Spin until g moves on from `old` or the budget is spent since t0; true when it moved. */
static bool spin(const gate *g, uint32_t old, uint64_t budget, uint64_t t0)
{
    for (unsigned i = 1;; i++) {
        if (atomic_load_explicit(&g->word, memory_order_acquire) != old) return true;
        relax();
        if (i % 16 == 0 && ht_now_ns() - t0 >= budget) return false; /* a look costs less */
    }
}

/* Pairs with gate_open: either that sees this sleeper, or the kernel sees the new word. */
static void gate_sleep(gate *g, uint32_t old)
{
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->word) == old) futex(&g->word, FUTEX_WAIT, old);
    atomic_fetch_sub(&g->sleepers, 1);
}

static void gate_wait(gate *g, uint32_t old, member *m)
{
    const uint64_t budget = m->waits++ % PROBE ? m->spin_ns : SPIN_MAX_NS, t0 = ht_now_ns();
    if (!spin(g, old, budget, t0)) gate_sleep(g, old);
    if (ht_now_ns() - t0 <= SPIN_MAX_NS) {
        m->spin_ns += (SPIN_MAX_NS - m->spin_ns) / 8;
    } else {
        m->spin_ns -= m->spin_ns / 8;
        if (m->spin_ns < SPIN_MIN_NS) m->spin_ns = SPIN_MIN_NS;
    }
}

static void gate_open(gate *g)
{
    atomic_fetch_add(&g->word, 1);
    if (atomic_load(&g->sleepers)) futex(&g->word, FUTEX_WAKE, INT32_MAX);
}

/* Count one arrival; true for the last, which has opened the phase. */
static bool arrive(ht_team *t)
{
    uint32_t n = (uint32_t)t->size;
    if (atomic_fetch_add(&t->arrived, 1) + 1 < n) return false;
    atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
    gate_open(&t->phase);
    return true;
}

static uint32_t phase_now(ht_team *t)
{
    return atomic_load_explicit(&t->phase.word, memory_order_acquire);
}

static void *worker(void *arg)
{
    member *m = arg, idle = {.spin_ns = SPIN_MAX_NS}; /* waits between runs teach another budget */
    ht_team *t = m->team;
    uint32_t seen = 0;
    self = m;
    for (;;) {
        gate_wait(&t->start, seen++, &idle);
        if (t->stop) return NULL;
        t->fn(t->arg, m->rank, t->size);
        arrive(t); /* rank 0 waits for all; a worker goes back to the start gate */
    }
}

/* Workers take no asynchronous signals: those are the program's business. Faults stay
 * deliverable. */
static int start_workers(ht_team *t, int *started)
{
    sigset_t all, old;
    int rc = 0;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGTRAP);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (*started = 1; *started < t->size && !rc; *started += !rc) {
        member *m = &t->members[*started];
        char name[16];
        m->team = t;
        m->rank = *started;
        m->spin_ns = SPIN_MAX_NS;
        rc = pthread_create(&m->thread, NULL, worker, m);
        snprintf(name, sizeof name, "ht-team-%d", *started);
        if (!rc) pthread_setname_np(m->thread, name);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static size_t team_bytes(int threads)
{
    return sizeof(ht_team) + (size_t)threads * sizeof(member);
}

static void stop_workers(ht_team *t, int started)
{
    t->stop = true;
    gate_open(&t->start);
    for (int i = 1; i < started; i++) pthread_join(t->members[i].thread, NULL);
}

int ht_team_new(ht_team **out, int threads, ht_err *e)
{
    int started;
    *out = NULL;
    if (threads < 1 || threads > HT_TEAM_MAX)
        return HT_FAIL(e, HT_EARG, "a team of %d threads: 1 to %d are possible", threads,
                       HT_TEAM_MAX);
    ht_team *t = ht_page_alloc(team_bytes(threads));
    if (!t) return HT_FAIL(e, HT_ENOMEM, "no memory for a team of %d threads", threads);
    t->size = threads;
    t->members[0].spin_ns = SPIN_MAX_NS;
    int rc = start_workers(t, &started);
    if (rc) {
        stop_workers(t, started);
        ht_page_free(t, team_bytes(threads));
        return HT_FAIL(e, HT_ENOMEM, "cannot start thread %d of %d: %s; ask for fewer threads",
                       started + 1, threads, strerror(rc));
    }
    *out = t;
    return 0;
}

void ht_team_free(ht_team *t)
{
    if (!t) return;
    stop_workers(t, t->size);
    ht_page_free(t, team_bytes(t->size));
}

int ht_team_size(const ht_team *t)
{
    return t->size;
}

void ht_team_run(ht_team *t, ht_team_fn fn, void *arg)
{
    if (t->size == 1) {
        fn(arg, 0, 1);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    gate_open(&t->start);
    fn(arg, 0, t->size);
    uint32_t now = phase_now(t);
    if (!arrive(t)) gate_wait(&t->phase, now, &t->members[0]);
}

void ht_team_barrier(ht_team *t)
{
    if (t->size == 1) {
        atomic_fetch_add_explicit(&t->barriers, 1, memory_order_relaxed);
        return;
    }
    member *m = self && self->team == t ? self : &t->members[0];
    uint32_t now = phase_now(t);
    if (arrive(t)) atomic_fetch_add_explicit(&t->barriers, 1, memory_order_relaxed);
    else gate_wait(&t->phase, now, m);
}

uint32_t ht_team_next(ht_team *t, uint32_t n)
{
    uint32_t i = atomic_fetch_add_explicit(&t->chunk, 1, memory_order_relaxed);
    return i < n ? i : n;
}

void ht_team_reset(ht_team *t)
{
    atomic_store_explicit(&t->chunk, 0, memory_order_relaxed);
}

uint64_t ht_team_barriers(const ht_team *t)
{
    return atomic_load_explicit(&t->barriers, memory_order_relaxed);
}

void ht_team_share(uint32_t n, uint32_t unit, int rank, int size, uint32_t *begin, uint32_t *end)
{
    uint64_t u = unit ? unit : 1, r = (uint64_t)rank, s = (uint64_t)size;
    uint64_t blocks = (n + u - 1) / u, per = blocks / s, extra = blocks % s;
    uint64_t lo = (r * per + (r < extra ? r : extra)) * u, hi = lo + (per + (r < extra)) * u;
    *begin = (uint32_t)(lo < n ? lo : n);
    *end = (uint32_t)(hi < n ? hi : n);
}
