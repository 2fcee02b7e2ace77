/* take.c - sharing the units of an operation: whatever the order in which threads come, every unit
 * is begun once, and nothing is left over. */
#include "backend/cpu/cpu.h"
#include "test.h"

enum { THREADS = 5, TURNS = 50 };

typedef struct {
    ht_plan plan;
    ht_team *team;
    uint32_t n, least;
    _Atomic uint8_t *seen; /* [n] times that a unit was begun                            */
    _Atomic uint32_t calls, odd;
} shared;

static void take_all(void *arg, int rank, int size)
{
    shared *s = arg;
    cpu_run r = {.p = &s->plan, .rank = rank, .size = size};
    for (r.turn = 1; r.turn <= TURNS; r.turn++) {
        uint32_t b, e;
        while (cpu__take(&r, s->n, s->least, &b, &e)) {
            atomic_fetch_add(&s->calls, 1);
            atomic_fetch_add(&s->odd, b >= e || e > s->n || (b % s->least && s->n < UINT16_MAX));
            for (uint32_t i = b; i < e && i < s->n; i++) atomic_fetch_add(&s->seen[i], 1);
        }
        ht_team_barrier(s->team);
    }
}

T_CASE(cpu_take, every_unit_once)
{
    static const uint32_t n[] = {0, 1, 2, 7, 64, 1000, 65534, 65535, 65536, 200001};
    for (int size = 1; size <= THREADS; size++)
        for (size_t i = 0; i < sizeof n / sizeof *n; i++)
            for (uint32_t least = 1; least <= 2; least++) {
                cpu_left left[THREADS] = {{0}};
                shared s = {.n = n[i], .least = least};
                s.plan.left = left;
                s.seen = calloc(n[i] + 1, sizeof *s.seen);
                T_EQ_INT(ht_team_new(&s.team, size, NULL), 0);
                ht_team_run(s.team, take_all, &s);
                ht_team_free(s.team);
                for (uint32_t u = 0; u < n[i]; u++)
                    if (s.seen[u] != TURNS)
                        T_CHECK(false, "%d threads, unit %u of %u: begun %u times", size, u, n[i],
                                (unsigned)s.seen[u]);
                T_EQ_INT(s.odd, 0);
                /* Halves: a logarithm of calls, not one for each unit. */
                T_CHECK(s.calls <= TURNS * 20U * 5U * (uint32_t)size, "%u calls for %u units",
                        (unsigned)s.calls, n[i]);
                free((void *)s.seen);
            }
}
