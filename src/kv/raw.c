/* raw.c - raw slots of packed KV types (step/kvpool.h): which page has one, who holds it, and the
 * thread that packs pages early.
 *
 * A page's state: FRESH (written raw), QUEUED (full, waits for the packer), BUSY (being packed by
 * it), PACKED. Everything but the packing itself happens in the engine's thread under the mutex.
 * Between kv__raw_claim() and the end of the run that it stands before, the packer leaves the
 * claimed pages alone: either they are PACKED, or the engine packs them in the run. So a run reads
 * the same bytes whether there is a packer or not; what differs is who computed them. */
#include "core/clock.h"
#include "kv/priv.h"
#include "step/kvcodec.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum state { FRESH, QUEUED, BUSY, PACKED };

typedef struct {
    uint32_t *of;      /* [n_pages] slot of a page; kv->raw_of                                  */
    uint32_t *holders; /* [n_slots] sequences that may still read or write it                   */
    uint8_t *state;    /* [n_pages] enum state                                                  */
    uint32_t n_pages, n_slots, n_free;
} slots;

typedef struct {
    uint32_t id;
    int kv_class;
} entry;

struct kv__raw {
    ht_kv *kv;
    slots cls[HT_KV_CLASSES];
    void *block;
    size_t block_bytes;
    kv__raw_stats stats;
    /* The packer. */
    bool thread_on, stop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    entry *queue; /* [n_slots of both] ring                                            */
    uint32_t q_cap, q_at, q_n;
};

static bool layer_is(const ht_kv *kv, uint32_t layer, int kv_class)
{
    return kv->layer_class[layer] == kv_class;
}

static void pack_page(const ht_kv *kv, int kv_class, uint32_t id)
{
    for (uint32_t l = 0; l < kv->n_layers; l++)
        for (int v = 0; v < 2 && layer_is(kv, l, kv_class); v++)
            for (uint32_t h = 0; h < kv->n_kv_heads && ht_kv_packs(kv->type[l][v]); h++)
                ht_kv_pack_head(kv, l, v, id, h);
}

/* ---- the packer ------------------------------------------------------------------------------ */

static void *packer(void *arg)
{
    kv__raw *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        if (r->q_n == 0) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        entry e = r->queue[r->q_at];
        r->q_at = (r->q_at + 1) % r->q_cap;
        r->q_n--;
        slots *s = &r->cls[e.kv_class];
        if (s->state[e.id] != QUEUED) continue; /* written again, freed, or the engine's own now */
        s->state[e.id] = BUSY;
        pthread_mutex_unlock(&r->lock);
        pack_page(r->kv, e.kv_class, e.id);
        pthread_mutex_lock(&r->lock);
        s->state[e.id] = PACKED;
        r->stats.early_pages++;
        pthread_cond_broadcast(&r->done);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int kv__raw_async(kv__raw *r, ht_err *e)
{
    if (r->thread_on) return 0;
    if (pthread_create(&r->thread, NULL, packer, r))
        return HT_FAIL(e, HT_ENOMEM, "the thread that packs KV pages could not be started");
    r->thread_on = true;
    return 0;
}

static void enqueue(kv__raw *r, int kv_class, uint32_t id)
{
    if (r->q_n == r->q_cap) return; /* the engine packs it when it needs it */
    r->queue[(r->q_at + r->q_n++) % r->q_cap] = (entry){id, kv_class};
    r->cls[kv_class].state[id] = QUEUED;
    pthread_cond_signal(&r->work);
}

/* Wait until the packer has let go of a page. */
static void settle(kv__raw *r, int kv_class, uint32_t id)
{
    const uint8_t *state = &r->cls[kv_class].state[id];
    if (*state != BUSY) return;
    uint64_t t0 = ht_now_ns();
    while (*state == BUSY) pthread_cond_wait(&r->done, &r->lock);
    r->stats.waits++;
    r->stats.wait_ns += ht_now_ns() - t0;
}

/* ---- slots ----------------------------------------------------------------------------------- */

uint32_t kv__raw_free(const kv__raw *r, int kv_class)
{
    return r ? r->cls[kv_class].n_free : UINT32_MAX;
}

static void set_state(kv__raw *r, int kv_class, uint32_t id, enum state st)
{
    r->cls[kv_class].state[id] = (uint8_t)st;
    r->kv->packed[kv_class][id] = st == PACKED;
}

void kv__raw_take(kv__raw *r, int kv_class, uint32_t id)
{
    if (!r) return;
    slots *s = &r->cls[kv_class];
    uint32_t i = 0;
    while (s->holders[i]) i++; /* the caller has counted that there is one */
    s->holders[i] = 1;
    s->n_free--;
    s->of[id] = i;
    pthread_mutex_lock(&r->lock);
    set_state(r, kv_class, id, FRESH);
    pthread_mutex_unlock(&r->lock);
}

void kv__raw_share(kv__raw *r, int kv_class, uint32_t id)
{
    if (r && r->cls[kv_class].of[id] != HT_NOPAGE)
        r->cls[kv_class].holders[r->cls[kv_class].of[id]]++;
}

void kv__raw_give(kv__raw *r, int kv_class, uint32_t id)
{
    if (!r || r->cls[kv_class].of[id] == HT_NOPAGE) return;
    slots *s = &r->cls[kv_class];
    if (--s->holders[s->of[id]]) return;
    pthread_mutex_lock(&r->lock);
    settle(r, kv_class, id);
    if (s->state[id] == QUEUED) set_state(r, kv_class, id, FRESH);
    pthread_mutex_unlock(&r->lock);
    s->of[id] = HT_NOPAGE;
    s->n_free++;
}

static bool is_packed(const kv__raw *r, int kv_class, uint32_t id)
{
    return r->kv->packed[kv_class][id] != 0;
}

void kv__raw_dirty(kv__raw *r, int kv_class, uint32_t id)
{
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    settle(r, kv_class, id);
    set_state(r, kv_class, id, FRESH);
    pthread_mutex_unlock(&r->lock);
}

void kv__raw_full(kv__raw *r, int kv_class, uint32_t id)
{
    if (!r || !r->thread_on || r->cls[kv_class].of[id] == HT_NOPAGE) return;
    pthread_mutex_lock(&r->lock);
    if (r->cls[kv_class].state[id] == FRESH) enqueue(r, kv_class, id);
    pthread_mutex_unlock(&r->lock);
}

void kv__raw_claim(kv__raw *r, int kv_class, uint32_t id)
{
    if (!r || is_packed(r, kv_class, id)) return;
    pthread_mutex_lock(&r->lock);
    settle(r, kv_class, id);
    bool done = r->cls[kv_class].state[id] == PACKED;
    set_state(r, kv_class, id, done ? PACKED : FRESH); /* not the packer's any more */
    pthread_mutex_unlock(&r->lock);
}

void kv__raw_done(kv__raw *r, int kv_class, uint32_t id)
{
    if (!r || is_packed(r, kv_class, id)) return;
    pthread_mutex_lock(&r->lock);
    set_state(r, kv_class, id, PACKED);
    r->stats.step_pages++;
    pthread_mutex_unlock(&r->lock);
}

int kv__raw_copy(kv__raw *r, int kv_class, uint32_t dst, uint32_t src, uint64_t *bytes)
{
    const ht_kv *kv = r->kv;
    for (uint32_t l = 0; l < kv->n_layers; l++)
        for (int v = 0; v < 2 && layer_is(kv, l, kv_class); v++) {
            const uint8_t *from = ht_kv_head(kv, l, v, src, 0, true);
            uint8_t *to = ht_kv_head(kv, l, v, dst, 0, true);
            if (!kv->raw[l][v] || !from || !to) continue;
            memcpy(to, from, (size_t)kv->raw_bytes);
            *bytes += kv->raw_bytes;
        }
    return 0;
}

kv__raw_stats kv__raw_stats_of(kv__raw *r)
{
    kv__raw_stats s = {0};
    if (!r) return s;
    pthread_mutex_lock(&r->lock);
    s = r->stats;
    pthread_mutex_unlock(&r->lock);
    return s;
}

/* ---- making and freeing ---------------------------------------------------------------------- */

uint64_t kv__raw_bytes(const ht_pool_params *p)
{
    uint64_t page = ht_kv_page_bytes(HT_KV_F16, p->n_kv_heads, p->head_dim), sum = 0;
    for (uint32_t l = 0; l < p->n_layers; l++)
        for (int v = 0; v < 2; v++)
            if (ht_kv_packs(kv__type(p, l, v))) sum += page * p->n_raw[p->layer_class[l]];
    return sum;
}

static int tables(kv__raw *r, const ht_pool_params *p, ht_arena *a, ht_err *e)
{
    ht_kv *kv = r->kv;
    kv->raw = ht_arena_array(a, p->n_layers, sizeof *kv->raw);
    bool ok = kv->raw != NULL;
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        slots *s = &r->cls[c];
        s->n_pages = p->n_pages[c];
        s->n_slots = s->n_free = p->n_raw[c];
        r->q_cap += s->n_slots;
        s->of = ht_arena_array(a, s->n_pages, sizeof *s->of);
        s->holders = ht_arena_array(a, s->n_slots, sizeof *s->holders);
        s->state = ht_arena_array(a, s->n_pages, 1);
        kv->packed[c] = ht_arena_array(a, s->n_pages, 1);
        ok = ok && s->of && s->holders && s->state && kv->packed[c];
        for (uint32_t i = 0; ok && i < s->n_pages; i++) s->of[i] = HT_NOPAGE;
        kv->raw_of[c] = s->of;
        kv->n_raw[c] = s->n_slots;
    }
    r->queue = ht_arena_array(a, r->q_cap, sizeof *r->queue);
    return ok && r->queue ? 0 : HT_FAIL(e, HT_ENOMEM, "KV pool: out of memory for raw slots");
}

static void place(kv__raw *r, const ht_pool_params *p)
{
    ht_kv *kv = r->kv;
    uint8_t *at = r->block;
    kv->raw_bytes = ht_kv_page_bytes(HT_KV_F16, p->n_kv_heads, p->head_dim);
    for (uint32_t l = 0; l < p->n_layers; l++)
        for (int v = 0; v < 2; v++) {
            if (!ht_kv_packs(kv__type(p, l, v))) continue;
            kv->raw[l][v] = at;
            at += kv->raw_bytes * p->n_raw[p->layer_class[l]];
        }
}

int kv__raw_new(kv__raw **out, ht_kv *kv, const ht_pool_params *p, ht_arena *a, ht_err *e)
{
    uint64_t bytes = kv__raw_bytes(p);
    *out = NULL;
    if (!bytes) return 0;
    kv__raw *r = ht_arena_alloc(a, sizeof *r);
    if (!r) return HT_FAIL(e, HT_ENOMEM, "KV pool: out of memory for raw slots");
    r->kv = kv;
    HT_TRY(tables(r, p, a, e));
    r->block_bytes = (size_t)bytes;
    r->block = bytes <= SIZE_MAX ? ht_page_alloc((size_t)bytes) : NULL;
    if (!r->block)
        return HT_FAIL(e, HT_ENOMEM,
                       "KV pool: %llu MiB for raw pages refused; use a smaller ubatch",
                       (unsigned long long)bytes >> 20);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->done, NULL);
    place(r, p);
    *out = r;
    return 0;
}

void kv__raw_del(kv__raw *r)
{
    if (!r) return;
    if (r->thread_on) {
        pthread_mutex_lock(&r->lock);
        r->stop = true;
        pthread_cond_signal(&r->work);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
    }
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->done);
    ht_page_free(r->block, r->block_bytes);
}
