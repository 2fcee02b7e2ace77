/* ahead.c - guesses made in another thread: what is taken is what was guessed behind the truth,
 * whatever was cut, late, stalled or failed meanwhile; and nobody waits for it. The guesser here is
 * a function of the tokens, so that each guess can be checked. */
#include "decode/ahead.h"
#include "test.h"
#include <pthread.h>
#include <stdatomic.h>

enum { CAP = 4000, MOST = 6 };

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t go, came;
    bool stalled;             /* guesses stop inside the function until it is taken back */
    int inside;               /* calls under way */
    uint32_t fail_at;         /* length at which the function fails; 0: never */
    atomic_uint calls, wrong; /* wrong: called with more `known` than tokens */
} guesser;

static int32_t next_of(const int32_t *t, uint32_t n)
{
    uint32_t h = 17;
    for (uint32_t i = n > 3 ? n - 3 : 0; i < n; i++) h = h * 31 + (uint32_t)t[i];
    return (int32_t)(h % 1000);
}

static int guess(void *user, const int32_t *tokens, uint32_t known, uint32_t len, int32_t *id,
                 float *logprob, ht_err *err)
{
    guesser *g = user;
    atomic_fetch_add(&g->calls, 1);
    if (known > len || !known) atomic_fetch_add(&g->wrong, 1);
    pthread_mutex_lock(&g->lock);
    g->inside++;
    pthread_cond_broadcast(&g->came);
    while (g->stalled) pthread_cond_wait(&g->go, &g->lock);
    g->inside--;
    const bool fails = g->fail_at && len >= g->fail_at;
    pthread_mutex_unlock(&g->lock);
    if (fails) return HT_FAIL(err, HT_EDEVICE, "the device of the guesses is gone");
    *id = next_of(tokens, len);
    *logprob = -(float)(*id % 7);
    return 0;
}

static ht_ahead *start(guesser *g)
{
    ht_ahead *a = NULL;
    ht_err e = {0};
    *g = (guesser){.lock = PTHREAD_MUTEX_INITIALIZER,
                   .go = PTHREAD_COND_INITIALIZER,
                   .came = PTHREAD_COND_INITIALIZER};
    T_OK(ht_ahead_new(&a, guess, g, CAP, MOST, &e), e);
    return a;
}

static void stall(guesser *g, bool on)
{
    pthread_mutex_lock(&g->lock);
    g->stalled = on;
    pthread_cond_broadcast(&g->go);
    pthread_mutex_unlock(&g->lock);
}

static void wait_inside(guesser *g)
{
    pthread_mutex_lock(&g->lock);
    while (!g->inside) pthread_cond_wait(&g->came, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* Until n guesses are there; the number is certain to come. */
static void wait_for(ht_ahead *a, uint32_t n, int32_t *id, float *lp)
{
    while (ht_ahead_take(a, MOST, id, lp) < n) {
        const struct timespec t = {.tv_nsec = 100000};
        (void)nanosleep(&t, NULL);
    }
}

T_CASE_SECONDS(ahead, guesses_follow_the_truth, 120)
{
    guesser g;
    ht_ahead *a = start(&g);
    int32_t t[CAP] = {5, 9, 2}, id[MOST];
    float lp[MOST];
    uint32_t n = 3;
    uint64_t seed = 1, cuts = 0;
    ht_ahead_truth(a, t, n);
    T_EQ_INT(ht_ahead_take(a, MOST, id, lp), 0); /* paused until told otherwise */
    ht_ahead_pause(a, false);
    while (n + MOST < CAP - 8) {
        if (t_rand(&seed) % 4 == 0) wait_for(a, 1 + (uint32_t)(t_rand(&seed) % MOST), id, lp);
        const uint32_t k = ht_ahead_take(a, (uint32_t)(t_rand(&seed) % (MOST + 1)), id, lp);
        int32_t all[CAP];
        memcpy(all, t, n * sizeof *t);
        for (uint32_t i = 0; i < k; i++) { /* every guess is that behind the truth and the others */
            T_EQ_INT(id[i], next_of(all, n + i));
            T_TRUE(lp[i] == -(float)(id[i] % 7));
            all[n + i] = id[i];
        }
        /* Some turn out right, then one that may or may not be what was guessed. */
        const uint32_t right = k ? (uint32_t)(t_rand(&seed) % (k + 1)) : 0;
        memcpy(t + n, id, right * sizeof *id);
        n += right;
        const bool as_guessed = t_rand(&seed) % 2;
        t[n] = as_guessed ? next_of(t, n) : 2000 + (int32_t)(t_rand(&seed) % 9);
        cuts += !as_guessed;
        n++;
        ht_ahead_truth(a, t, n);
    }
    ht_ahead_stats st;
    ht_ahead_stats_of(a, &st);
    T_CHECK(st.epochs >= cuts, "%llu epochs, %llu tokens that no guess was",
            (unsigned long long)st.epochs, (unsigned long long)cuts);
    T_TRUE(st.guessed >= st.discarded && st.guessed > 100);
    T_EQ_INT(atomic_load(&g.wrong), 0);
    T_EQ_INT(ht_ahead_failed(a, NULL), 0);
    ht_ahead_free(a);
}

/* A guess that hangs costs the target nothing: what it asks for comes back at once, and the guess
 * belongs to an old epoch when it comes at last. */
T_CASE_SECONDS(ahead, a_stalled_guess_delays_nobody, 60)
{
    guesser g;
    ht_ahead *a = start(&g);
    int32_t t[CAP] = {1, 2, 3}, id[MOST];
    float lp[MOST];
    ht_ahead_stats st;
    stall(&g, true);
    ht_ahead_truth(a, t, 3);
    ht_ahead_pause(a, false);
    wait_inside(&g);
    for (uint32_t n = 4; n < 500; n++) { /* all of it while the guess hangs */
        t[n - 1] = 3000;
        ht_ahead_truth(a, t, n);
        T_EQ_INT(ht_ahead_take(a, MOST, id, lp), 0);
    }
    T_EQ_INT(atomic_load(&g.calls), 1);
    stall(&g, false);
    wait_for(a, MOST, id, lp);
    T_EQ_INT(id[0], next_of(t, 499));
    ht_ahead_stats_of(a, &st);
    T_EQ_INT(st.discarded, 1);
    T_EQ_INT(st.epochs, 496);
    ht_ahead_free(a);
}

/* No further than `most` ahead, and not at all while paused; guesses made before stay. */
T_CASE_SECONDS(ahead, bounds_and_pauses, 60)
{
    guesser g;
    ht_ahead *a = start(&g);
    const int32_t t[] = {8, 8, 8, 8};
    int32_t id[MOST], more[MOST];
    float lp[MOST];
    ht_ahead_truth(a, t, 1);
    ht_ahead_pause(a, false);
    wait_for(a, MOST, id, lp);
    ht_ahead_pause(a, true);
    T_EQ_INT(atomic_load(&g.calls), MOST);
    T_EQ_INT(ht_ahead_take(a, 2, more, lp), 2);
    T_EQ_MEM(more, id, 2 * sizeof *id);
    ht_ahead_truth(a, t, 4); /* 8 was not guessed */
    T_EQ_INT(ht_ahead_take(a, MOST, more, lp), 0);
    T_EQ_INT(atomic_load(&g.calls), MOST);
    ht_ahead_pause(a, false);
    wait_for(a, MOST, id, lp);
    T_EQ_INT(atomic_load(&g.calls), 2 * MOST);
    T_EQ_INT(id[0], next_of(t, 4));
    ht_ahead_free(a);
}

/* An error ends the guessing and nothing else. */
T_CASE_SECONDS(ahead, errors_end_the_guessing, 60)
{
    guesser g;
    ht_ahead *a = start(&g);
    const int32_t t[] = {4, 4};
    ht_err e = {0};
    g.fail_at = 4;
    ht_ahead_truth(a, t, 2);
    ht_ahead_pause(a, false);
    while (!ht_ahead_failed(a, NULL)) {
        const struct timespec pause = {.tv_nsec = 100000};
        (void)nanosleep(&pause, NULL);
    }
    T_ERR(ht_ahead_failed(a, &e), HT_EDEVICE, e, "is gone");
    T_EQ_INT(atomic_load(&g.calls), 3);
    ht_ahead_free(a);
}
