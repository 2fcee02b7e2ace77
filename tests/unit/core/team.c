/* team.c - the thread team: every rank runs, barriers order writes, sleeping and waking lose
 * nothing. Run under TSan by `make check`. */
#include "core/team.h"
#include "core/arena.h"
#include "core/clock.h"
#include "test.h"
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16 };
typedef struct {
    ht_team *team;
    uint32_t rounds, cell[MOST], chunks[MOST];
    _Atomic uint32_t bad;
    uint32_t taken[1000];
    useconds_t nap;
} work;

static void count_rank(void *arg, int rank, int size)
{
    work *w = arg;
    w->cell[rank] += 1 + 100 * (uint32_t)size;
}

/* Each round every rank writes its cell, passes a barrier and checks all others' cells. */
static void exchange(void *arg, int rank, int size)
{
    work *w = arg;
    for (uint32_t r = 1; r <= w->rounds; r++) {
        w->cell[rank] = r;
        if (w->nap && rank == (int)(r % (uint32_t)size)) usleep(w->nap);
        ht_team_barrier(w->team);
        for (int i = 0; i < size; i++)
            if (w->cell[i] != r) atomic_fetch_add(&w->bad, 1);
        ht_team_barrier(w->team);
    }
}

static void take_chunks(void *arg, int rank, int size)
{
    work *w = arg;
    (void)size;
    for (int round = 0; round < 2; round++) {
        for (uint32_t i; (i = ht_team_next(w->team, 1000)) < 1000; w->chunks[rank]++) w->taken[i]++;
        ht_team_barrier(w->team);
        if (!rank) ht_team_reset(w->team);
        ht_team_barrier(w->team);
    }
}

static work *start(int threads)
{
    ht_err e;
    work *w = calloc(1, sizeof *w);
    T_TRUE(w);
    T_OK(ht_team_new(&w->team, threads, &e), e);
    T_EQ_INT(ht_team_size(w->team), threads);
    return w;
}

static void finish(work *w)
{
    ht_team_free(w->team);
    free(w);
}

T_CASE(team, every_rank_runs_once)
{
    for (int n = 1; n <= MOST; n += n < 4 ? 1 : 4) {
        work *w = start(n);
        for (int k = 0; k < 50; k++) ht_team_run(w->team, count_rank, w);
        for (int i = 0; i < n; i++) T_EQ_INT(w->cell[i], 50 * (1 + 100 * n));
        finish(w);
    }
}

T_CASE(team, barriers_order_writes)
{
    for (int n = 1; n <= 8; n *= 2) {
        work *w = start(n);
        w->rounds = t_sanitized() ? 200 : 2000;
        for (int k = 0; k < 3; k++) ht_team_run(w->team, exchange, w);
        T_EQ_INT(atomic_load(&w->bad), 0);
        T_EQ_INT(ht_team_barriers(w->team), 3 * 2 * w->rounds);
        finish(w);
    }
}

/* Naps far beyond the spin budget: every wait sleeps in the kernel and must be woken. */
T_CASE(team, sleepers_are_woken)
{
    work *w = start(4);
    w->rounds = 100;
    w->nap = 300;
    ht_team_run(w->team, exchange, w);
    for (int k = 0; k < 20; k++) {
        usleep(500); /* workers fall asleep at the start gate */
        w->rounds = 1;
        ht_team_run(w->team, exchange, w);
    }
    T_EQ_INT(atomic_load(&w->bad), 0);
    finish(w);
}

T_CASE(team, chunks_are_taken_once)
{
    for (int n = 1; n <= 4; n++) {
        work *w = start(n);
        ht_team_run(w->team, take_chunks, w);
        uint32_t sum = 0;
        for (int i = 0; i < 1000; i++) T_EQ_INT(w->taken[i], 2);
        for (int i = 0; i < n; i++) sum += w->chunks[i];
        T_EQ_INT(sum, 2000);
        finish(w);
    }
}

/* An idle team uses no processor time, whatever the clock does meanwhile. */
T_CASE(team, idle_costs_nothing)
{
    work *w = start(4);
    struct rusage a, b;
    ht_team_run(w->team, count_rank, w);
    usleep(20000);
    getrusage(RUSAGE_SELF, &a);
    usleep(300000);
    getrusage(RUSAGE_SELF, &b);
    long used = (b.ru_utime.tv_sec - a.ru_utime.tv_sec) * 1000000 + b.ru_utime.tv_usec -
                a.ru_utime.tv_usec + (b.ru_stime.tv_sec - a.ru_stime.tv_sec) * 1000000 +
                b.ru_stime.tv_usec - a.ru_stime.tv_usec;
    T_CHECK(used < (t_sanitized() ? 150000 : 30000), "%ld us of processor time in 300 ms", used);
    finish(w);
}

T_CASE(team, arguments_and_failures)
{
    ht_err e;
    ht_team *t = (ht_team *)&e;
    T_ERR(ht_team_new(&t, 0, &e), HT_EARG, e, "1 to 256");
    T_ERR(ht_team_new(&t, HT_TEAM_MAX + 1, &e), HT_EARG, e, "1 to 256");
    T_TRUE(!t);
    T_ERR(ht_team_new(&t, 5000, &e), HT_EARG, e, "5000");
    ht_alloc_fail_at(1);
    T_ERR(ht_team_new(&t, 2, &e), HT_ENOMEM, e, "no memory");
    ht_team_free(NULL);
}

T_CASE(team, refused_threads_are_an_error)
{
    if (t_sanitized()) T_SKIP("sanitizers keep threads of their own that the limit would hit");
    if (!geteuid() && setuid(65534)) T_SKIP("cannot give up root, whom the limit does not bind");
    struct rlimit none = {0, 0};
    ht_err e;
    ht_team *t;
    T_EQ_INT(setrlimit(RLIMIT_NPROC, &none), 0);
    T_ERR(ht_team_new(&t, 4, &e), HT_ENOMEM, e, "fewer threads");
}

T_CASE(team, shares_partition)
{
    for (uint32_t n = 0; n < 200; n += n < 40 ? 1 : 13)
        for (uint32_t unit = 0; unit <= 33; unit += unit < 3 ? 1 : 10)
            for (int size = 1; size <= 9; size++) {
                uint32_t at = 0, least = UINT32_MAX, most = 0, u = unit ? unit : 1;
                for (int r = 0; r < size; r++) {
                    uint32_t b, end;
                    ht_team_share(n, unit, r, size, &b, &end);
                    T_CHECK(b == at && end >= b && (b % u == 0 || b == n), "n %u unit %u rank %d",
                            n, unit, r);
                    uint32_t blocks = (end - b + u - 1) / u;
                    if (blocks < least) least = blocks;
                    if (blocks > most) most = blocks;
                    at = end;
                }
                T_CHECK(at == n && most - least <= 1, "n %u unit %u size %d", n, unit, size);
            }
    uint32_t b, end;
    ht_team_share(UINT32_MAX, 16, 1, 2, &b, &end);
    T_TRUE(b == 0x80000000u && end == UINT32_MAX);
}
