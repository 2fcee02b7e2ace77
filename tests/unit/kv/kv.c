/* kv.c - the pool and page tables against naive copies: every position of every sequence has a
 * value, written through the page table and kept beside it in a plain array. */
#include "kv/kv.h"
#include "core/arena.h"
#include "step/step.h"
#include "test.h"
#include "toy.h"

enum { LAYERS = 2, HEADS = 2, DIM = 4 };

static const uint8_t both_classes[LAYERS] = {HT_KV_FULL, HT_KV_WINDOW};

static ht_pool *new_pool(uint32_t full, uint32_t win, uint32_t window)
{
    ht_err e = {0};
    ht_pool *p;
    const toy t = {LAYERS, HEADS, DIM, window, both_classes, HT_KV_F16};
    const ht_pool_params pp = toy_params(&t, full, win);
    T_OK(ht_pool_new(&p, &pp, &e), e);
    T_EQ_INT(ht_pool_bytes(p), ht_pool_estimate(&pp));
    return p;
}

/* The K element (head 0, index 0) of a position: one float stands for the whole vector. */
static float *cell(ht_pool *p, ht_seq *s, uint32_t pos)
{
    ht_kv *kv = ht_pool_kv(p);
    uint32_t layer = 0, page = ht_seq_pages(s, HT_KV_FULL)[pos / HT_PAGE];
    T_CHECK(page != HT_NOPAGE && page < kv->n_pages[HT_KV_FULL], "position %u has no page", pos);
    return (float *)(void *)(kv->plane[layer][0] + page * kv->page_bytes[layer][0]) +
           (pos % HT_PAGE) * DIM;
}
static float *win_cell(ht_pool *p, ht_seq *s, uint32_t pos)
{
    ht_kv *kv = ht_pool_kv(p);
    uint32_t page = ht_seq_pages(s, HT_KV_WINDOW)[pos / HT_PAGE];
    T_CHECK(page != HT_NOPAGE && page < kv->n_pages[HT_KV_WINDOW], "position %u has no page", pos);
    return (float *)(void *)(kv->plane[1][0] + page * kv->page_bytes[1][0]) + (pos % HT_PAGE) * DIM;
}

/* ---- 10^5 random operations ------------------------------------------------------------------ */

enum { SEQS = 6, CTX = 400, WINDOW = 50, UBATCH = 40, OPS = 100000 };
typedef struct {
    ht_seq *s;
    uint32_t len, floor; /* floor: windowed keys before it may be gone */
    uint32_t settled;    /* where it last evicted */
    float value[CTX];
    uint8_t gone[CTX / HT_PAGE + 1];
} mirror;
typedef struct {
    ht_pool *pool;
    mirror m[SEQS];
    uint64_t rng;
    float next;
    uint32_t full, refused, done[5], evicted, kept, left_to_others;
} world;

static uint32_t below(world *w, uint32_t n)
{
    return (uint32_t)(t_rand(&w->rng) % n);
}

static void append(world *w, mirror *m)
{
    ht_err e = {0};
    uint32_t n = 1 + below(w, UBATCH);
    int rc = ht_seq_reserve(m->s, n, &e);
    if (rc) {
        T_EQ_INT(rc, HT_EFULL);
        T_EQ_INT(ht_seq_len(m->s), m->len);
        w->full++;
        return;
    }
    T_CHECK(m->len + n <= CTX, "more than the context was reserved");
    uint32_t keep = m->len + 1 > WINDOW ? m->len + 1 - WINDOW : 0;
    if (keep > m->floor) m->floor = keep;
    for (uint32_t i = 0; i < n; i++) {
        m->value[m->len + i] = w->next;
        *cell(w->pool, m->s, m->len + i) = w->next;
        *win_cell(w->pool, m->s, m->len + i) = w->next;
        w->next += 1;
    }
    ht_seq_advance(m->s, n);
    m->len += n;
}

static void begin_anew(mirror *m)
{
    m->len = m->floor = m->settled = 0;
    memset(m->gone, 0, sizeof m->gone);
}

/* Some random pages; when one of them may not go, none does. */
static void evict(world *w, mirror *m)
{
    ht_err e = {0};
    uint32_t entry[3], n = 0, pages = m->len / HT_PAGE;
    bool may = true;
    for (uint32_t k = below(w, 3); k < pages && n < 3; k += 1 + below(w, 4)) entry[n++] = k;
    for (uint32_t i = 0; i < n; i++)
        may = may && entry[i] > 0 && entry[i] + 3 <= pages && !m->gone[entry[i]];
    uint32_t others = ht_pool_free_pages(w->pool, HT_KV_FULL);
    int rc = ht_seq_evict(m->s, entry, n, &e);
    T_CHECK((rc == 0) == may, "%u pages of %u: %s", n, pages, rc ? e.msg : "given up");
    if (rc) {
        T_EQ_INT(rc, HT_EARG);
        w->kept++;
        return;
    }
    for (uint32_t i = 0; i < n; i++) m->gone[entry[i]] = 1;
    m->settled = m->len;
    w->evicted += n;
    others = ht_pool_free_pages(w->pool, HT_KV_FULL) - others;
    T_CHECK(others <= n, "%u pages were freed for %u", others, n);
    w->left_to_others += n - others;
}

static void truncate_to(world *w, mirror *m)
{
    ht_err e = {0};
    uint32_t to = below(w, m->len + 1);
    int rc = ht_seq_truncate(m->s, to, &e);
    if (rc) {
        T_EQ_INT(rc, HT_EUNSUPPORTED);
        T_CHECK(to > 0 && (to + 1 < m->floor + WINDOW || to < m->settled),
                "truncation to %u of %u was refused", to, m->len);
        T_EQ_INT(ht_seq_len(m->s), m->len);
        w->refused++;
        return;
    }
    T_CHECK(to == 0 || to >= m->settled, "truncation to %u, evicted at %u", to, m->settled);
    m->len = to;
    if (to == 0) begin_anew(m);
}

static void fork_to(world *w, const mirror *from, mirror *to)
{
    ht_err e = {0};
    ht_seq_free(to->s);
    *to = *from;
    T_OK(ht_seq_fork(&to->s, from->s, &e), e);
    (void)w;
}

static void check(world *w, mirror *m)
{
    T_EQ_INT(ht_seq_len(m->s), m->len);
    for (uint32_t k = 0; k <= m->len / HT_PAGE; k++)
        T_CHECK(!m->gone[k] || ht_seq_pages(m->s, HT_KV_FULL)[k] == HT_NOPAGE, "entry %u", k);
    for (uint32_t i = 0; i < m->len; i++)
        if (!m->gone[i / HT_PAGE])
            T_CHECK(*cell(w->pool, m->s, i) == m->value[i], "position %u: %g for %g", i,
                    (double)*cell(w->pool, m->s, i), (double)m->value[i]);
    uint32_t from = m->len + 1 > WINDOW ? m->len + 1 - WINDOW : 0; /* what the next row reads */
    for (uint32_t i = from; i < m->len; i++)
        T_CHECK(*win_cell(w->pool, m->s, i) == m->value[i], "windowed position %u", i);
}

/* Pages in use are exactly those that some table names. */
static void check_counts(world *w, int c)
{
    ht_kv *kv = ht_pool_kv(w->pool);
    uint8_t *used = calloc(kv->n_pages[c], 1);
    uint32_t n = 0;
    for (int i = 0; i < SEQS; i++)
        for (uint32_t k = 0; k < ht_seq_n_table(w->m[i].s); k++) {
            uint32_t page = ht_seq_pages(w->m[i].s, c)[k];
            if (page == HT_NOPAGE) continue;
            n += !used[page];
            used[page] = 1;
        }
    T_EQ_INT(kv->n_pages[c] - n, ht_pool_free_pages(w->pool, c));
    free(used);
}

T_CASE(kv, random_operations)
{
    ht_err e = {0};
    world w = {.pool = new_pool(40, 20, WINDOW), .rng = 1, .next = 1};
    for (int i = 0; i < SEQS; i++) T_OK(ht_seq_new(&w.m[i].s, w.pool, CTX, &e), e);
    for (uint32_t op = 0; op < OPS; op++) {
        mirror *m = &w.m[below(&w, SEQS)], *o = &w.m[below(&w, SEQS)];
        uint32_t kind = below(&w, 12);
        kind = kind < 6 ? 0 : kind < 7 ? 1 : kind < 9 ? 2 : kind < 10 ? 3 : 4;
        if (kind == 0) append(&w, m);
        if (kind == 1) truncate_to(&w, m);
        if (kind == 2 && m != o) fork_to(&w, m, o);
        if (kind == 3) {
            T_OK(ht_seq_truncate(m->s, 0, &e), e);
            begin_anew(m);
        }
        if (kind == 4) evict(&w, m);
        w.done[kind]++;
        if (op % 64 == 0) check(&w, &w.m[below(&w, SEQS)]);
        if (op % 997 == 0)
            for (int c = 0; c < HT_KV_CLASSES; c++) check_counts(&w, c);
    }
    for (int i = 0; i < SEQS; i++) check(&w, &w.m[i]);
    /* The pool is small enough that all outcomes occur. */
    T_CHECK(w.full > 100 && w.refused > 100 && w.done[2] > 1000, "full %u, refused %u, forks %u",
            w.full, w.refused, w.done[2]);
    T_CHECK(w.evicted > 100 && w.kept > 100 && w.left_to_others > 100,
            "%u pages evicted, %u calls refused, %u pages still held by forks", w.evicted, w.kept,
            w.left_to_others);
    T_CHECK(ht_pool_copied_bytes(w.pool) > 0, "forks were written to, so pages were copied");
    for (int i = 0; i < SEQS; i++) ht_seq_free(w.m[i].s);
    T_EQ_INT(ht_pool_free_pages(w.pool, HT_KV_FULL), 40);
    T_EQ_INT(ht_pool_free_pages(w.pool, HT_KV_WINDOW), 20);
    ht_pool_free(w.pool);
}

/* ---- single properties ----------------------------------------------------------------------- */

T_CASE(kv, copy_on_write_copies_one_page_a_class)
{
    ht_err e = {0};
    ht_pool *p = new_pool(8, 8, 64);
    ht_seq *a, *b;
    T_OK(ht_seq_new(&a, p, 200, &e), e);
    T_OK(ht_seq_reserve(a, 40, &e), e);
    ht_seq_advance(a, 40);
    *cell(p, a, 39) = 7;
    T_OK(ht_seq_fork(&b, a, &e), e);
    T_EQ_INT(ht_pool_free_pages(p, HT_KV_FULL), 6);
    T_OK(ht_seq_reserve(b, 1, &e), e);
    T_EQ_INT(ht_pool_free_pages(p, HT_KV_FULL), 5);
    /* One page of K (f32) and V (f16) in each of two layers. */
    T_EQ_INT(ht_pool_copied_bytes(p), 2 * (HEADS * HT_PAGE * DIM * (4 + 2)));
    T_CHECK(cell(p, a, 39) != cell(p, b, 39), "the written page is b's own");
    T_CHECK(cell(p, a, 5) == cell(p, b, 5), "the full page is shared");
    T_CHECK(*cell(p, b, 39) == 7, "and holds the copied values");
    T_OK(ht_seq_reserve(a, 1, &e), e); /* now the only owner: nothing to copy */
    T_EQ_INT(ht_pool_copied_bytes(p), 2 * (HEADS * HT_PAGE * DIM * (4 + 2)));
    ht_seq_free(a);
    ht_seq_free(b);
    T_EQ_INT(ht_pool_free_pages(p, HT_KV_FULL), 8);
    ht_pool_free(p);
}

/* Eight forks of 2,000 positions take no page; with 48 positions of their own each takes those, and
 * a copy of the one page that was half filled. */
T_CASE(kv, forks_take_their_tails_only)
{
    enum { PREFIX = 2000, TAIL = 48, N = 8, PAGES = (PREFIX + HT_PAGE - 1) / HT_PAGE };
    ht_err e = {0};
    ht_pool *p = new_pool(200, 200, 64);
    ht_seq *a, *f[N];
    T_OK(ht_seq_new(&a, p, PREFIX + TAIL, &e), e);
    T_OK(ht_seq_reserve(a, PREFIX, &e), e);
    ht_seq_advance(a, PREFIX);
    T_EQ_INT(ht_pool_free_pages(p, HT_KV_FULL), 200 - PAGES);
    for (int i = 0; i < N; i++) T_OK(ht_seq_fork(&f[i], a, &e), e);
    T_EQ_INT(ht_pool_free_pages(p, HT_KV_FULL), 200 - PAGES);
    T_EQ_INT(ht_pool_copied_bytes(p), 0);
    for (int i = 0; i < N; i++) {
        T_OK(ht_seq_reserve(f[i], TAIL, &e), e);
        ht_seq_advance(f[i], TAIL);
    }
    const uint32_t tail = (PREFIX % HT_PAGE + TAIL + HT_PAGE - 1) / HT_PAGE;
    T_EQ_INT(ht_pool_free_pages(p, HT_KV_FULL), 200 - PAGES - N * tail);
    for (int i = 0; i < N; i++) ht_seq_free(f[i]);
    T_EQ_INT(ht_pool_free_pages(p, HT_KV_FULL), 200 - PAGES);
    ht_seq_free(a);
    T_EQ_INT(ht_pool_free_pages(p, HT_KV_FULL), 200);
    ht_pool_free(p);
}

T_CASE(kv, windowed_class_frees_what_no_row_reads)
{
    ht_err e = {0};
    ht_pool *p = new_pool(40, 4, 33);
    ht_seq *s;
    T_OK(ht_seq_new(&s, p, 1000, &e), e);
    for (int i = 0; i < 30; i++) { /* 960 positions through 4 pages */
        T_OK(ht_seq_reserve(s, 32, &e), e);
        ht_seq_advance(s, 32);
        T_CHECK(ht_pool_free_pages(p, HT_KV_WINDOW) >= 1, "chunk %d", i);
    }
    const uint32_t *t = ht_seq_pages(s, HT_KV_WINDOW);
    T_EQ_INT(t[0], HT_NOPAGE);
    T_EQ_INT(t[27], HT_NOPAGE);
    T_CHECK(t[28] != HT_NOPAGE && t[29] != HT_NOPAGE, "the row at 928 read keys from 896 on");
    T_ERR(ht_seq_truncate(s, 500, &e), HT_EUNSUPPORTED, e, "attention window of 33");
    T_EQ_INT(ht_seq_len(s), 960);
    T_OK(ht_seq_truncate(s, 928, &e), e); /* where the last reservation began */
    T_OK(ht_seq_truncate(s, 0, &e), e);
    T_EQ_INT(ht_pool_free_pages(p, HT_KV_WINDOW), 4);
    T_OK(ht_seq_reserve(s, 5, &e), e);
    ht_seq_free(s);
    ht_pool_free(p);
}

/* The sizes that ht_pool_size promises suffice, whatever the chunks. */
T_CASE(kv, pool_size_suffices)
{
    uint64_t rng = 5;
    for (int trial = 0; trial < 400; trial++) {
        ht_err e = {0};
        uint32_t ctx = 1 + (uint32_t)(t_rand(&rng) % 700),
                 window = 1 + (uint32_t)(t_rand(&rng) % 200);
        uint32_t ubatch = 1 + (uint32_t)(t_rand(&rng) % 100), n[HT_KV_CLASSES], len = 0;
        ht_pool_size(ctx, 1, window, ubatch, n);
        ht_pool *p = new_pool(n[0], n[1], window);
        ht_seq *s;
        T_OK(ht_seq_new(&s, p, ctx, &e), e);
        while (len < ctx) {
            uint32_t k = 1 + (uint32_t)(t_rand(&rng) % ubatch);
            if (k > ctx - len) k = ctx - len;
            T_OK(ht_seq_reserve(s, k, &e), e);
            ht_seq_advance(s, k);
            len += k;
        }
        T_ERR(ht_seq_reserve(s, 1, &e), HT_EFULL, e, "context full");
        ht_seq_free(s);
        ht_pool_free(p);
    }
}

T_CASE(kv, fresh_pages_are_consecutive)
{
    ht_err e = {0};
    ht_pool *p = new_pool(16, 16, 1000);
    ht_seq *a, *b, *c;
    T_OK(ht_seq_new(&a, p, 512, &e), e);
    T_OK(ht_seq_new(&b, p, 512, &e), e);
    T_OK(ht_seq_new(&c, p, 512, &e), e);
    T_OK(ht_seq_reserve(a, 64, &e), e);
    T_OK(ht_seq_reserve(b, 32, &e), e);
    ht_seq_free(a); /* pages 0 and 1 are a hole too small for a run of 3 */
    T_OK(ht_seq_reserve(c, 96, &e), e);
    const uint32_t *t = ht_seq_pages(c, HT_KV_FULL);
    T_EQ_INT(t[0], 3);
    T_EQ_INT(t[1], 4);
    T_EQ_INT(t[2], 5);
    ht_seq_advance(c, 96);
    T_OK(ht_seq_reserve(c, 1, &e), e);
    T_EQ_INT(t[3], 6);
    ht_seq_free(b);
    ht_seq_free(c);
    ht_pool_free(p);
}

static int fail_copy(void *dev, ht_kv *kv, int c, uint32_t dst, uint32_t src, ht_err *e)
{
    (void)dev, (void)kv, (void)c, (void)dst, (void)src;
    return HT_FAIL(e, HT_EDEVICE, "copy refused");
}

T_CASE(kv, a_failed_copy_loses_nothing)
{
    ht_err e = {0};
    ht_pool *p;
    ht_seq *a, *b;
    ht_pool_params pp = {.n_layers = LAYERS,
                         .n_kv_heads = HEADS,
                         .head_dim = DIM,
                         .window = 40,
                         .layer_class = both_classes,
                         .n_pages = {4, 4},
                         .copy = fail_copy};
    T_OK(ht_pool_new(&p, &pp, &e), e);
    T_OK(ht_seq_new(&a, p, 100, &e), e);
    T_OK(ht_seq_reserve(a, 10, &e), e);
    ht_seq_advance(a, 10);
    T_OK(ht_seq_fork(&b, a, &e), e);
    T_ERR(ht_seq_reserve(b, 1, &e), HT_EDEVICE, e, "copy refused");
    T_EQ_INT(ht_pool_free_pages(p, HT_KV_FULL), 3);
    T_CHECK(ht_seq_pages(a, 0)[0] == ht_seq_pages(b, 0)[0], "the page is still shared");
    ht_seq_free(a);
    ht_seq_free(b);
    T_EQ_INT(ht_pool_free_pages(p, HT_KV_FULL), 4);
    ht_pool_free(p);
}

T_CASE(kv, bad_parameters_are_named)
{
    ht_err e = {0};
    ht_pool *p;
    ht_pool_params pp = {.n_layers = LAYERS,
                         .n_kv_heads = HEADS,
                         .head_dim = DIM,
                         .window = 40,
                         .layer_class = both_classes,
                         .n_pages = {4, 4}};
    ht_pool_params bad = pp;
    bad.window = 0;
    T_ERR(ht_pool_new(&p, &bad, &e), HT_EARG, e, "window 0");
    bad = pp;
    bad.n_pages[HT_KV_WINDOW] = 0;
    T_ERR(ht_pool_new(&p, &bad, &e), HT_EARG, e, "0 pages");
    bad = pp;
    bad.type_v = HT_KVTYPES;
    T_ERR(ht_pool_new(&p, &bad, &e), HT_EARG, e, "unknown type");
    bad = pp;
    bad.n_pages[0] = 0xfffffff0U;
    bad.head_dim = 65535;
    bad.n_kv_heads = 65535;
    T_ERR(ht_pool_new(&p, &bad, &e), HT_ENOMEM, e, "KV pool");
    T_CHECK(p == NULL, "nothing is handed out");
}

/* Every allocation failure of pool and sequence is an error, and frees what came before. */
T_CASE(kv, nth_allocation_fails)
{
    int failures = 0;
    for (uint64_t n = 1; n < 20; n++) {
        ht_err e = {0};
        ht_pool *p = NULL;
        ht_seq *s = NULL;
        ht_pool_params pp = {.n_layers = LAYERS,
                             .n_kv_heads = HEADS,
                             .head_dim = DIM,
                             .window = 40,
                             .layer_class = both_classes,
                             .n_pages = {4, 4}};
        ht_alloc_fail_at(n);
        int rc = ht_pool_new(&p, &pp, &e);
        if (!rc) rc = ht_seq_new(&s, p, 100, &e);
        ht_alloc_fail_at(0);
        if (rc) T_EQ_INT(rc, HT_ENOMEM);
        failures += rc != 0;
        ht_seq_free(s);
        ht_pool_free(p);
    }
    T_CHECK(failures >= 3, "%d allocations could fail", failures);
}

T_CASE(kv, reserve_and_truncate_allocate_nothing)
{
    ht_err e = {0};
    ht_pool *p = new_pool(16, 16, 33);
    ht_seq *s;
    T_OK(ht_seq_new(&s, p, 400, &e), e);
    uint64_t before = ht_alloc_count();
    for (int i = 0; i < 12; i++) {
        T_OK(ht_seq_reserve(s, 30, &e), e);
        ht_seq_advance(s, 30);
    }
    T_OK(ht_seq_truncate(s, 330, &e), e);
    T_EQ_INT(ht_alloc_count(), before);
    ht_seq_free(s);
    ht_pool_free(p);
}
