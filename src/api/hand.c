/* hand.c - a prompt's pages handed over while it is still computed. The engine
 * says when a layer's K and V are complete (ht_batch.kv_done); a thread of the
 * hand-off's own moves that layer to where decoding will read it, while the
 * next ones are computed. What a run has not handed over by its end is waited
 * for; and whatever fails here is made up for by the next run's ht_seq_bring().
 */
#include "api/hand.h"
#include "core/clock.h"

#include <pthread.h>

struct api__hand {
    ht_pool *pool;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    bool on, stop;
    int to;              /* place */
    uint32_t done, next; /* layers complete; layers moved, or given up */
    uint64_t busy_ns;
    ht_moved moved;
    int rc;
};

/* One layer at a time, outside the lock. */
static void *mover(void *arg)
{
    api__hand *h = arg;
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        if (h->next == h->done) {
            pthread_cond_broadcast(&h->idle);
            pthread_cond_wait(&h->work, &h->lock);
            continue;
        }
        const uint32_t layer = h->next;
        const int to = h->to;
        ht_moved moved = {0};
        ht_err ignored = {0};
        int rc = h->rc;
        pthread_mutex_unlock(&h->lock);
        const uint64_t t0 = ht_now_ns();
        if (!rc) rc = ht_pool_hand_layer(h->pool, to, layer, &moved, &ignored);
        const uint64_t ns = ht_now_ns() - t0;
        pthread_mutex_lock(&h->lock);
        h->rc = rc;
        h->busy_ns += ns;
        h->moved.bytes += moved.bytes;
        h->next++;
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

int api__hand_new(api__hand **out, ht_pool *pool, ht_arena *arena, ht_err *err)
{
    api__hand *h = ht_arena_alloc(arena, sizeof *h);
    *out = NULL;
    if (!h) return HT_FAIL(err, HT_ENOMEM, "no memory for a hand-off");
    *h = (api__hand){.pool = pool};
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->work, NULL);
    pthread_cond_init(&h->idle, NULL);
    *out = h;
    if (pthread_create(&h->thread, NULL, mover, h))
        return HT_FAIL(err, HT_ENOMEM, "the thread that hands pages over could not be started");
    h->on = true;
    return 0;
}

void api__hand_free(api__hand *h)
{
    if (!h) return;
    if (h->on) {
        pthread_mutex_lock(&h->lock);
        h->stop = true;
        pthread_cond_signal(&h->work);
        pthread_mutex_unlock(&h->lock);
        pthread_join(h->thread, NULL);
    }
    pthread_cond_destroy(&h->idle);
    pthread_cond_destroy(&h->work);
    pthread_mutex_destroy(&h->lock);
}

void api__hand_begin(api__hand *h, int to)
{
    pthread_mutex_lock(&h->lock);
    h->to = to;
    h->done = h->next = 0;
    h->busy_ns = 0;
    h->moved = (ht_moved){0};
    h->rc = 0;
    pthread_mutex_unlock(&h->lock);
}

void api__hand_layer(void *hand, uint32_t layer)
{
    api__hand *h = hand;
    pthread_mutex_lock(&h->lock);
    if (layer == h->done) h->done++;
    pthread_cond_signal(&h->work);
    pthread_mutex_unlock(&h->lock);
}

uint32_t api__hand_wait(api__hand *h, api__handed *out)
{
    const uint64_t t0 = ht_now_ns();
    pthread_mutex_lock(&h->lock);
    while (h->next < h->done) pthread_cond_wait(&h->idle, &h->lock);
    out->exposed_ns = ht_now_ns() - t0;
    out->ns = h->busy_ns > out->exposed_ns ? h->busy_ns : out->exposed_ns;
    out->bytes = h->moved.bytes;
    const uint32_t layers = h->rc ? 0 : h->done;
    pthread_mutex_unlock(&h->lock);
    return layers;
}
