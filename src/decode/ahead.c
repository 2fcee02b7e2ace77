/* ahead.c - see ahead.h. One lock over the chain; it is held to copy a few tokens, never while the
 * function runs. */
#include "decode/ahead.h"
#include "core/arena.h"
#include "core/clock.h"
#include <pthread.h>
#include <string.h>

struct ht_ahead {
    ht_ahead_fn fn;
    void *user;
    uint32_t cap, most;
    int32_t *chain;    /* [cap] the truth, then guesses */
    float *logprob;    /* [cap] of the guesses */
    int32_t *own;      /* [cap] the worker's copy of the chain */
    uint32_t known, n; /* of chain: true tokens, all tokens */
    uint64_t epoch;
    bool paused, stop;
    ht_err err; /* code 0: none */
    ht_ahead_stats stats;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
};

static bool has_work(const ht_ahead *a)
{
    return !a->paused && !a->err.code && a->known && a->n - a->known < a->most && a->n < a->cap;
}

/* One guess, begun under the lock and entered under it. */
static void guess(ht_ahead *a, uint32_t *same)
{
    const uint64_t epoch = a->epoch;
    const uint32_t known = a->known, n = a->n;
    int32_t id = 0;
    float logprob = 0;
    ht_err err = {0};
    if (*same > n) *same = n;
    memcpy(a->own + *same, a->chain + *same, (n - *same) * sizeof *a->own);
    pthread_mutex_unlock(&a->lock);
    const uint64_t t0 = ht_now_ns();
    const int rc = a->fn(a->user, a->own, known, n, &id, &logprob, &err);
    const uint64_t ns = ht_now_ns() - t0;
    pthread_mutex_lock(&a->lock);
    a->stats.busy_ns += ns;
    *same = n;
    if (rc) {
        a->err = err;
        a->err.code = rc;
        return;
    }
    a->stats.guessed++;
    if (a->epoch != epoch) {
        a->stats.discarded++;
        *same = 0; /* the chain was cut somewhere before n */
        return;
    }
    a->chain[a->n] = id;
    a->logprob[a->n++] = logprob;
}

static void *work(void *arg)
{
    ht_ahead *a = arg;
    uint32_t same = 0; /* tokens that `own` has in common with the chain */
    uint64_t epoch = 0;
    pthread_mutex_lock(&a->lock);
    while (!a->stop) {
        if (!has_work(a)) {
            pthread_cond_wait(&a->wake, &a->lock);
            continue;
        }
        if (epoch != a->epoch) same = 0;
        epoch = a->epoch;
        guess(a, &same);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static void drop(ht_ahead *a)
{
    ht_mem_free(a->chain);
    ht_mem_free(a->own);
    ht_mem_free(a->logprob);
    ht_mem_free(a);
}

int ht_ahead_new(ht_ahead **out, ht_ahead_fn fn, void *user, uint32_t cap, uint32_t most, ht_err *e)
{
    *out = NULL;
    ht_ahead *a = ht_mem_alloc(sizeof *a);
    if (!a) return HT_FAIL(e, HT_ENOMEM, "no memory for guesses made ahead");
    *a = (ht_ahead){.fn = fn, .user = user, .cap = cap, .most = most, .paused = true};
    a->chain = ht_mem_array(cap, sizeof *a->chain);
    a->own = ht_mem_array(cap, sizeof *a->own);
    a->logprob = ht_mem_array(cap, sizeof *a->logprob);
    if (!a->chain || !a->own || !a->logprob) {
        drop(a);
        return HT_FAIL(e, HT_ENOMEM, "no memory for guesses among %u tokens", cap);
    }
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->wake, NULL);
    if (pthread_create(&a->thread, NULL, work, a)) {
        pthread_mutex_destroy(&a->lock);
        pthread_cond_destroy(&a->wake);
        drop(a);
        return HT_FAIL(e, HT_EIO,
                       "no thread for guesses: the system refuses one; guess without "
                       "--draft-parallel");
    }
    *out = a;
    return 0;
}

void ht_ahead_free(ht_ahead *a)
{
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->wake);
    drop(a);
}

void ht_ahead_truth(ht_ahead *a, const int32_t *tokens, uint32_t len)
{
    pthread_mutex_lock(&a->lock);
    if (len > a->cap) len = a->cap;
    uint32_t same = a->known;
    while (same < len && same < a->n && a->chain[same] == tokens[same]) same++;
    if (same < len) {
        memcpy(a->chain + same, tokens + same, (len - same) * sizeof *tokens);
        if (same < a->n || a->known) { /* not the first call */
            a->epoch++;
            a->stats.epochs++;
            a->stats.discarded += a->n - same;
        }
        a->n = len;
    }
    a->known = len;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

void ht_ahead_pause(ht_ahead *a, bool paused)
{
    pthread_mutex_lock(&a->lock);
    a->paused = paused;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

uint32_t ht_ahead_take(ht_ahead *a, uint32_t most, int32_t *id, float *logprob)
{
    pthread_mutex_lock(&a->lock);
    uint32_t n = a->n - a->known;
    if (n > most) n = most;
    memcpy(id, a->chain + a->known, n * sizeof *id);
    memcpy(logprob, a->logprob + a->known, n * sizeof *logprob);
    pthread_mutex_unlock(&a->lock);
    return n;
}

int ht_ahead_failed(ht_ahead *a, ht_err *err)
{
    pthread_mutex_lock(&a->lock);
    const int rc = a->err.code;
    if (rc && err) *err = a->err;
    pthread_mutex_unlock(&a->lock);
    return rc;
}

void ht_ahead_stats_of(ht_ahead *a, ht_ahead_stats *out)
{
    pthread_mutex_lock(&a->lock);
    *out = a->stats;
    pthread_mutex_unlock(&a->lock);
}
