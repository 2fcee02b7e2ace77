/* place.c - a pool in two places against naive copies. Every written position has a value of its
 * own, so what a place holds tells by itself which pages are behind there; what was moved must be
 * exactly that. */
#include "core/arena.h"
#include "kv/kv.h"
#include "kv/pagefile.h"
#include "kv/prefix.h"
#include "step/step.h"
#include "test.h"
#include "toy.h"
#include <stdlib.h>

enum {
    LAYERS = 3,
    HEADS = 2,
    DIM = 4,
    SEQS = 6,
    CTX = 400,
    WINDOW = 50,
    UBATCH = 40,
    FULL = 40,
    WIN = 24
};

static const uint8_t classes[LAYERS] = {HT_KV_FULL, HT_KV_WINDOW, HT_KV_WINDOW};

/* The second place's memory and what is asked of it. */
typedef struct {
    void *mem;
    uint32_t calls, pages_copied;
    int fail_at; /* calls of move that still succeed; negative: all */
} second;

static int alloc(void *dev, size_t bytes, void **mem, ht_err *e)
{
    second *s = dev;
    s->mem = *mem = malloc(bytes);
    return *mem ? 0 : HT_FAIL(e, HT_ENOMEM, "no memory");
}
static void release(void *dev, void *mem, size_t bytes)
{
    second *s = dev;
    (void)bytes;
    T_CHECK(mem == s->mem, "what was given comes back");
    free(mem);
    s->mem = NULL;
}
static int copy(void *dev, ht_kv *kv, int kv_class, uint32_t dst, uint32_t src, ht_err *e)
{
    second *s = dev;
    s->pages_copied++;
    return ht_host_page_copy(NULL, kv, kv_class, dst, src, e);
}
static int move(void *mover, ht_kv *dst, ht_kv *src, int layer0, int n_layers,
                const uint32_t *pages, size_t n, ht_err *e)
{
    second *s = mover;
    if (s->fail_at == 0) return HT_FAIL(e, HT_EDEVICE, "the mover failed");
    if (s->fail_at > 0) s->fail_at--;
    s->calls++;
    return ht_host_kv_move(NULL, dst, src, layer0, n_layers, pages, n, e);
}

static ht_pool *new_pool(uint32_t full, uint32_t win, second *s)
{
    ht_err e = {0};
    ht_pool *p;
    const toy t = {LAYERS, HEADS, DIM, WINDOW, classes, HT_KV_F32};
    const ht_pool_params pp = toy_params(&t, full, win);
    const ht_pool_place q = {alloc, release, copy, s, false, move, s};
    *s = (second){.fail_at = -1};
    T_OK(ht_pool_new(&p, &pp, &e), e);
    T_EQ_INT(ht_pool_places(p), 1);
    T_OK(ht_pool_add_place(p, &q, &e), e);
    T_EQ_INT(ht_pool_places(p), 2);
    T_EQ_INT(ht_pool_bytes(p), 2 * ht_pool_estimate(&pp));
    return p;
}

/* The last element of the first head of V at a position; NULL: no page. */
static float *cell(ht_pool *p, const ht_seq *s, int place, uint32_t layer, uint32_t pos)
{
    ht_kv *kv = ht_pool_kv_at(p, place);
    const uint32_t page = ht_seq_pages(s, kv->layer_class[layer])[pos / HT_PAGE];
    if (page == HT_NOPAGE) return NULL;
    T_CHECK(page < kv->n_pages[kv->layer_class[layer]], "page %u", page);
    return (float *)(void *)(kv->plane[layer][1] + page * kv->page_bytes[layer][1]) +
           (pos % HT_PAGE) * DIM + DIM - 1;
}

typedef struct {
    ht_seq *s;
    uint32_t len;
    float value[CTX];
} mirror;
typedef struct {
    ht_pool *pool;
    second second;
    mirror m[SEQS];
    uint64_t rng;
    float next;
    uint32_t full, refused, moves, kept, cut, handed, half;
    bool blank[HT_KV_CLASSES][FULL]; /* free, and holding nothing that anybody wrote */
} world;

static uint32_t below(world *w, uint32_t n)
{
    return (uint32_t)(t_rand(&w->rng) % n);
}

/* Pages of the sequence that lack a held position in a place, by their contents. */
static uint32_t behind(world *w, const mirror *m, int place, uint64_t *bytes)
{
    uint32_t n = 0;
    *bytes = 0;
    for (uint32_t l = 0; l < 2; l++) /* layer 2 is of layer 1's class */
        for (uint32_t k = 0; k * HT_PAGE < m->len; k++) {
            bool lacks = false;
            for (uint32_t i = k * HT_PAGE; i < m->len && i < (k + 1) * HT_PAGE; i++) {
                const float *at = cell(w->pool, m->s, place, l, i);
                lacks = lacks || (at && *at != m->value[i]);
            }
            n += lacks;
            *bytes += lacks ? (1 + l) * 2 * ht_kv_page_bytes(HT_KV_F32, HEADS, DIM) : 0;
        }
    return n;
}

/* Bring it to a place: exactly what lacks something is moved, and then nothing lacks anything. Not
 * exact: some layers were moved before, and are moved again. */
static void bring_as(world *w, mirror *m, int place, bool exact)
{
    ht_err e = {0};
    ht_moved moved = {0};
    uint64_t bytes, none;
    const uint32_t n = behind(w, m, place, &bytes);
    T_OK(ht_seq_bring(m->s, place, &moved, &e), e);
    if (exact) {
        T_EQ_INT(moved.pages, n);
        T_EQ_INT(moved.bytes, bytes);
    } else {
        T_CHECK(moved.pages >= n, "%u pages for %u", (unsigned)moved.pages, n);
    }
    T_EQ_INT(behind(w, m, place, &none), 0);
    for (uint32_t i = m->len + 1 > WINDOW ? m->len + 1 - WINDOW : 0; i < m->len; i++)
        T_CHECK(*cell(w->pool, m->s, place, 2, i) == m->value[i], "windowed position %u", i);
    *(n ? &w->moves : &w->kept) += 1;
}

static void bring(world *w, mirror *m, int place)
{
    bring_as(w, m, place, true);
}

/* Behind a run: some or all of the noted pages' layers go to the other place. */
static void hand_over(world *w, mirror *m, int to, uint32_t layers, bool ran)
{
    ht_err e = {0};
    ht_moved moved = {0};
    uint64_t none;
    const bool all = ran && layers == LAYERS;
    for (uint32_t l = 0; l < layers; l++) T_OK(ht_pool_hand_layer(w->pool, to, l, &moved, &e), e);
    const uint64_t pages = ht_pool_hand_end(w->pool, to, ran ? layers : 0);
    T_CHECK(all ? pages > 0 : pages == 0, "%u pages handed over", (unsigned)pages);
    if (all) T_EQ_INT(behind(w, m, to, &none), 0);
    else bring_as(w, m, to, false);
    *(all ? &w->handed : &w->half) += 1;
}

/* A run in a place: of its n rows `done` are computed; fewer than n: it fails there. */
static void append(world *w, mirror *m, int place)
{
    ht_err e = {0};
    const uint32_t n = 1 + below(w, UBATCH), done = below(w, 8) ? n : below(w, n);
    if (ht_seq_reserve(m->s, n, &e)) {
        T_EQ_INT(e.code, HT_EFULL);
        w->full++;
        return;
    }
    bring(w, m, place);
    const bool hand = below(w, 4) == 0;
    if (hand) ht_seq_hand(m->s, n);
    for (uint32_t i = m->len; i < m->len + done; i++, w->next += 1) {
        for (uint32_t l = 0; l < LAYERS; l++) *cell(w->pool, m->s, place, l, i) = w->next;
        m->value[i] = w->next;
    }
    if (done == n) {
        ht_seq_advance(m->s, n);
        m->len += n;
    } else {
        T_OK(ht_seq_truncate(m->s, m->len, &e), e);
        w->cut++;
    }
    if (hand) hand_over(w, m, !place, below(w, 4) ? LAYERS : below(w, LAYERS), done == n);
}

static void truncate_to(world *w, mirror *m, uint32_t to)
{
    ht_err e = {0};
    const int rc = ht_seq_truncate(m->s, to, &e);
    if (rc) T_EQ_INT(rc, HT_EUNSUPPORTED);
    if (rc) w->refused++;
    else m->len = to;
}

/* What a page held in its last life must not pass for what it holds now. */
static void blank_free_pages(world *w)
{
    bool used[HT_KV_CLASSES][FULL] = {0};
    for (int i = 0; i < SEQS; i++)
        for (int c = 0; c < HT_KV_CLASSES; c++)
            for (uint32_t k = 0; k < ht_seq_n_table(w->m[i].s); k++)
                if (ht_seq_pages(w->m[i].s, c)[k] != HT_NOPAGE)
                    used[c][ht_seq_pages(w->m[i].s, c)[k]] = true;
    for (int place = 0; place < 2; place++) {
        ht_kv *kv = ht_pool_kv_at(w->pool, place);
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t id = 0; id < kv->n_pages[classes[l]]; id++) {
                const size_t n = (size_t)kv->page_bytes[l][1];
                if (!used[classes[l]][id] && !w->blank[classes[l]][id])
                    memset(kv->plane[l][1] + id * n, 0, n);
            }
    }
    for (int c = 0; c < HT_KV_CLASSES; c++)
        for (int id = 0; id < FULL; id++) w->blank[c][id] = !used[c][id];
}

static void fork_to(const mirror *from, mirror *to)
{
    ht_err e = {0};
    ht_seq_free(to->s);
    *to = *from;
    T_OK(ht_seq_fork(&to->s, from->s, &e), e);
}

T_CASE(place, random_operations)
{
    enum { OPS = 30000 };
    ht_err e = {0};
    world w = {.rng = 3, .next = 1};
    uint32_t forks = 0;
    w.pool = new_pool(FULL, WIN, &w.second);
    for (int i = 0; i < SEQS; i++) T_OK(ht_seq_new(&w.m[i].s, w.pool, CTX, &e), e);
    for (uint32_t op = 0; op < OPS; op++) {
        mirror *m = &w.m[below(&w, SEQS)], *o = &w.m[below(&w, SEQS)];
        const uint32_t kind = below(&w, 12);
        if (kind < 7) append(&w, m, (int)below(&w, 2));
        else if (kind < 8) truncate_to(&w, m, below(&w, m->len + 1));
        else if (kind < 9) truncate_to(&w, m, 0);
        else if (kind < 11 && m != o) fork_to(m, o), forks++;
        else if (kind == 11) bring(&w, m, (int)below(&w, 2));
        blank_free_pages(&w);
    }
    for (int i = 0; i < SEQS; i++) bring(&w, &w.m[i], i % 2);
    T_CHECK(w.moves > 1000 && w.kept > 1000 && w.full > 100 && w.refused > 100 && w.cut > 100,
            "moves %u, none due %u, full %u, refused %u, failed runs %u", w.moves, w.kept, w.full,
            w.refused, w.cut);
    T_CHECK(w.handed > 1000 && w.half > 100, "handed over %u, by half %u", w.handed, w.half);
    T_CHECK(forks > 1000 && w.second.pages_copied > 100, "forks %u, pages copied there %u", forks,
            w.second.pages_copied);
    for (int i = 0; i < SEQS; i++) ht_seq_free(w.m[i].s);
    T_EQ_INT(ht_pool_free_pages(w.pool, HT_KV_FULL), FULL);
    ht_pool_free(w.pool);
    T_CHECK(!w.second.mem, "the second place was given back");
}

/* A mover that fails half way leaves a sequence that can be brought later. */
T_CASE(place, a_failed_move_is_made_up_for)
{
    ht_err e = {0};
    ht_moved moved = {0};
    world w = {.rng = 5, .next = 1};
    w.pool = new_pool(20, 20, &w.second);
    mirror *m = &w.m[0];
    T_OK(ht_seq_new(&m->s, w.pool, CTX, &e), e);
    while (m->len < 100) append(&w, m, 1);
    w.second.fail_at = 1; /* the full class's layer goes, the windowed ones do not */
    T_ERR(ht_seq_bring(m->s, 0, &moved, &e), HT_EDEVICE, e, "the mover failed");
    w.second.fail_at = -1;
    bring(&w, m, 0);
    append(&w, m, 0);
    bring(&w, m, 1);
    ht_seq_free(m->s);
    ht_pool_free(w.pool);
}

/* Pages in files are those of the first place: what was computed in the second one is moved before
 * it is written, and what was read is moved before the second one uses it. */
T_CASE(place, prefix_files_are_of_the_first_place)
{
    ht_err e = {0};
    const char *dir = t_tmp();
    int32_t ids[3 * HT_PAGE];
    uint32_t left;
    ht_prefix_hit hit;
    for (int i = 0; i < 3 * HT_PAGE; i++) ids[i] = i % 7;
    for (int round = 0; round < 2; round++) {
        const ht_prefix_params pp = {.identity = {7}, .max_pages = 12, .dir = dir, .what = "toy"};
        ht_moved moved = {0};
        ht_prefix *x;
        world w = {.rng = 1, .next = 1};
        w.pool = new_pool(12, 12, &w.second);
        mirror *m = &w.m[0];
        T_OK(ht_prefix_new(&x, w.pool, &pp, &e), e);
        T_OK(ht_seq_new(&m->s, w.pool, CTX, &e), e);
        if (round == 0) {
            while (m->len < 3 * HT_PAGE) append(&w, m, 1);
            T_OK(ht_prefix_add(x, m->s, ids, 3, "toy", NULL, &e), e);
            T_OK(ht_prefix_save(x, 0, &left, &e), e);
        } else {
            T_OK(ht_prefix_find(x, m->s, ids, 3 * HT_PAGE, "toy", NULL, &hit, &e), e);
            T_EQ_INT(hit.disk_tokens, 3 * HT_PAGE);
            T_OK(ht_seq_bring(m->s, 1, &moved, &e), e);
            T_CHECK(moved.pages >= 3, "%llu pages", (unsigned long long)moved.pages);
            /* Positions are numbered in the order in which round 0 computed them. */
            for (uint32_t i = 0; i < 3 * HT_PAGE; i++) {
                const float *at = cell(w.pool, m->s, 1, 0, i);
                T_CHECK(i == 0 || *at > at[-DIM] || i % HT_PAGE == 0, "position %u: %g", i,
                        (double)*at);
                T_CHECK(*at >= 1, "position %u holds nothing", i);
            }
        }
        ht_seq_free(m->s);
        ht_prefix_free(x);
        ht_pool_free(w.pool);
    }
    uint64_t gone, freed;
    T_OK(ht_pagefile_prune(dir, 0, 0, &gone, &freed, &e), e);
    T_EQ_INT(gone, 3);
}

T_CASE(place, refusals)
{
    ht_err e = {0};
    second s;
    ht_pool *p = new_pool(4, 4, &s);
    const ht_pool_place q = {alloc, release, copy, &s, false, move, &s};
    const uint8_t full[1] = {HT_KV_FULL};
    T_ERR(ht_pool_add_place(p, &q, &e), HT_EARG, e, "made once");
    ht_pool_free(p);
    const ht_pool_params packed = {.n_layers = 1,
                                   .n_kv_heads = 1,
                                   .head_dim = 32,
                                   .layer_class = full,
                                   .type_k = HT_KV_Q8_0,
                                   .type_v = HT_KV_Q8_0,
                                   .n_raw = {8, 0},
                                   .n_pages = {8, 0}};
    T_OK(ht_pool_new(&p, &packed, &e), e);
    T_ERR(ht_pool_add_place(p, &q, &e), HT_EUNSUPPORTED, e, "one place only");
    T_EQ_INT(ht_pool_places(p), 1);
    ht_pool_free(p);
}

/* Memory that the host cannot address is refused by engines that would. */
T_CASE(place, host_engines_refuse_a_device_s_planes)
{
    ht_err e = {0};
    second s;
    ht_pool *p = new_pool(4, 4, &s);
    T_OK(ht_host_kv_attach(NULL, ht_pool_kv(p), &e), e);
    ht_pool_kv(p)->device = true;
    T_ERR(ht_host_kv_attach(NULL, ht_pool_kv(p), &e), HT_EUNSUPPORTED, e, "device's memory");
    ht_pool_free(p);
}
