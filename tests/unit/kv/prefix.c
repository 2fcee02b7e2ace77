/* prefix.c - the prefix index and its files. Tokens come from a small alphabet so that prompts
 * share prefixes; "computing" a position writes a value that depends on all tokens up to it, so a
 * page that does not belong to its prompt shows itself. */
#include "kv/prefix.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/hash.h"
#include "kv/pagefile.h"
#include "step/step.h"
#include "test.h"
#include "toy.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LAYERS = 2, HEADS = 1, DIM = 2, CTX = 512, WINDOW = 70 };
static const uint8_t classes[LAYERS] = {HT_KV_FULL, HT_KV_WINDOW};
static const char cls[] = "toy act=f32";

typedef struct {
    ht_pool *pool;
    ht_prefix *x;
} world;

static ht_pool *new_pool(uint32_t full, uint32_t win)
{
    ht_err e = {0};
    ht_pool *p;
    const toy t = {LAYERS, HEADS, DIM, WINDOW, classes, HT_KV_F32};
    const ht_pool_params pp = toy_params(&t, full, win);
    T_OK(ht_pool_new(&p, &pp, &e), e);
    return p;
}

static world new_world(uint32_t full, uint32_t win, uint32_t max_pages, const char *dir,
                       uint64_t dir_bytes)
{
    world w = {.pool = new_pool(full, win)};
    ht_err e = {0};
    const ht_prefix_params p = {
        .identity = {7}, .max_pages = max_pages, .dir = dir, .dir_bytes = dir_bytes, .what = "toy"};
    T_OK(ht_prefix_new(&w.x, w.pool, &p, &e), e);
    return w;
}
static void free_world(world *w)
{
    ht_prefix_free(w->x);
    T_EQ_INT(ht_pool_free_pages(w->pool, HT_KV_FULL), ht_pool_kv(w->pool)->n_pages[HT_KV_FULL]);
    T_EQ_INT(ht_pool_free_pages(w->pool, HT_KV_WINDOW), ht_pool_kv(w->pool)->n_pages[HT_KV_WINDOW]);
    ht_pool_free(w->pool);
}

/* What K holds at every position, in the full and in the windowed layer. */
static void expect(const int32_t *ids, uint32_t n, float *out)
{
    uint64_t h = 1;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ (uint64_t)(uint32_t)ids[i]) * UINT64_C(0x100000001b3);
        out[i] = (float)(h >> 44);
    }
}
static float *cell(ht_pool *p, const ht_seq *s, int layer, uint32_t pos)
{
    const ht_kv *kv = ht_pool_kv(p);
    const uint32_t page = ht_seq_pages(s, classes[layer])[pos / HT_PAGE];
    if (page == HT_NOPAGE) return NULL;
    return (float *)(void *)(kv->plane[layer][0] + page * kv->page_bytes[layer][0]) +
           pos % HT_PAGE * DIM;
}
static void check_values(ht_pool *p, const ht_seq *s, const float *want)
{
    const uint32_t n = ht_seq_len(s);
    for (uint32_t i = 0; i < n; i++) {
        const float *a = cell(p, s, 0, i), *b = cell(p, s, 1, i);
        T_CHECK(a && *a == want[i], "position %u of %u: another prompt's page", i, n);
        if (n + 1 > WINDOW && i < n + 1 - WINDOW) continue; /* no row reads it any more */
        T_CHECK(b && *b == want[i], "windowed position %u of %u", i, n);
    }
}
static int compute(ht_pool *p, ht_seq *s, const float *want, uint32_t n, ht_err *e)
{
    while (ht_seq_len(s) < n) {
        const uint32_t at = ht_seq_len(s), rows = n - at < 40 ? n - at : 40;
        const int rc = ht_seq_reserve(s, rows, e);
        if (rc) return rc;
        for (uint32_t i = at; i < at + rows; i++)
            for (int l = 0; l < LAYERS; l++) *cell(p, s, l, i) = want[i];
        ht_seq_advance(s, rows);
    }
    return 0;
}
static ht_seq *new_seq(ht_pool *p)
{
    ht_err e = {0};
    ht_seq *s;
    T_OK(ht_seq_new(&s, p, CTX, &e), e);
    return s;
}
static ht_prefix_hit find(world *w, ht_seq *s, const int32_t *ids, uint32_t n)
{
    ht_prefix_hit hit;
    ht_err e = {0};
    T_OK(ht_prefix_find(w->x, s, ids, n, cls, NULL, &hit, &e), e);
    T_EQ_INT(hit.tokens, ht_seq_len(s));
    T_EQ_INT(hit.tokens % HT_PAGE, 0);
    return hit;
}
static uint64_t next(uint64_t *rng)
{
    *rng += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *rng;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ (z >> 29);
}
/* Prompts of a tree: each page's tokens are one of two kinds. */
static uint32_t prompt(uint64_t *rng, int32_t *ids)
{
    const uint32_t n = 1 + (uint32_t)(next(rng) % (CTX - 40));
    for (uint32_t i = 0; i < n; i += HT_PAGE) {
        const int32_t kind = next(rng) % 8 == 0;
        for (uint32_t k = i; k < n && k < i + HT_PAGE; k++) ids[k] = (int32_t)(k * 2) + kind;
    }
    return n;
}
/* Compute a prompt with the index's help and enter it. */
static ht_prefix_hit serve(world *w, const int32_t *ids, uint32_t n)
{
    float want[CTX];
    ht_err e = {0};
    ht_seq *s = new_seq(w->pool);
    expect(ids, n, want);
    const ht_prefix_hit hit = find(w, s, ids, n - 1);
    check_values(w->pool, s, want);
    T_OK(compute(w->pool, s, want, n, &e), e);
    check_values(w->pool, s, want);
    T_OK(ht_prefix_add(w->x, s, ids, n / HT_PAGE, cls, NULL, &e), e);
    ht_seq_free(s);
    return hit;
}

static void ramp(int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)i;
}

T_CASE(prefix, warm_equals_cold_and_says_why)
{
    world w = new_world(64, 64, 64, NULL, 0);
    int32_t ids[CTX], other[CTX];
    ramp(ids, CTX);
    ramp(other, CTX);
    other[100] = 7;
    T_EQ_INT(serve(&w, ids, 20).why, HT_PREFIX_SHORT);
    ht_prefix_hit hit = serve(&w, ids, 200);
    T_EQ_INT(hit.why, HT_PREFIX_COLD);
    /* The last token's page is never taken whole: its logits are wanted. */
    hit = serve(&w, ids, 192);
    T_EQ_INT(hit.tokens, 160);
    T_EQ_INT(hit.why, HT_PREFIX_WHOLE);
    hit = serve(&w, ids, 193);
    T_EQ_INT(hit.tokens, 192);
    hit = serve(&w, other, 200);
    T_EQ_INT(hit.why, HT_PREFIX_WINDOW); /* pages 0-2 are known, their windowed keys are not */
    hit = serve(&w, other, 200);
    T_EQ_INT(hit.tokens, 192);
    hit = serve(&w, ids, 400);
    T_EQ_INT(hit.tokens, 192);
    T_EQ_INT(hit.why, HT_PREFIX_DIVERGED);
    ht_prefix_stats st;
    ht_prefix_count(w.x, &st);
    T_EQ_INT(st.lookups, 6);
    T_EQ_INT(st.hits, 4);
    T_EQ_INT(st.tokens, 160 + 3 * 192);
    free_world(&w);
}

T_CASE(prefix, class_and_salt_keep_apart)
{
    world w = new_world(64, 64, 64, NULL, 0);
    int32_t ids[CTX];
    ht_prefix_hit hit;
    ht_err e = {0};
    ramp(ids, CTX);
    (void)serve(&w, ids, 65);
    ht_seq *s = new_seq(w.pool);
    T_OK(ht_prefix_find(w.x, s, ids, 64, "toy act=q8", NULL, &hit, &e), e);
    T_EQ_INT(hit.why, HT_PREFIX_CLASS);
    T_EQ_INT(hit.tokens, 0);
    T_OK(ht_prefix_find(w.x, s, ids, 64, cls, "tenant", &hit, &e), e);
    T_EQ_INT(hit.tokens, 0);
    T_OK(ht_prefix_find(w.x, s, ids, 64, cls, NULL, &hit, &e), e);
    T_EQ_INT(hit.tokens, 64);
    /* Only an empty sequence can take pages over. */
    T_ERR(ht_prefix_find(w.x, s, ids, 64, cls, NULL, &hit, &e), HT_EARG, e, "take over");
    ht_seq_free(s);
    free_world(&w);
}

/* A small pool and a small index: pages are given back and taken again all the time, sequences are
 * forked and cut, and no sequence ever sees a value that is not its prompt's. */
T_CASE_SECONDS(prefix, random_against_values, 120)
{
    enum { SEQS = 4, OPS = 20000 };
    world w = new_world(18, 18, 24, NULL, 0);
    ht_seq *s[SEQS] = {0};
    int32_t ids[SEQS][CTX];
    float want[SEQS][CTX];
    uint32_t n[SEQS], refused = 0;
    uint64_t rng = 11;
    ht_err e = {0};
    for (int op = 0; op < OPS; op++) {
        const uint32_t i = (uint32_t)(next(&rng) % SEQS), j = (uint32_t)(next(&rng) % SEQS);
        if (!s[i]) {
            s[i] = new_seq(w.pool);
            n[i] = prompt(&rng, ids[i]) % 300 + 1;
            expect(ids[i], n[i], want[i]);
            (void)find(&w, s[i], ids[i], n[i] - 1);
            refused += compute(w.pool, s[i], want[i], n[i], &e) != 0;
        } else if (next(&rng) % 4 == 0 && s[j] && i != j) {
            ht_seq_free(s[i]);
            T_OK(ht_seq_fork(&s[i], s[j], &e), e);
            memcpy(ids[i], ids[j], sizeof ids[i]);
            memcpy(want[i], want[j], sizeof want[i]);
            n[i] = n[j];
        } else {
            T_OK(ht_prefix_add(w.x, s[i], ids[i], n[i] / HT_PAGE, cls, NULL, &e), e);
            check_values(w.pool, s[i], want[i]);
            ht_seq_free(s[i]);
            s[i] = NULL;
        }
        if (s[i]) check_values(w.pool, s[i], want[i]);
    }
    for (int i = 0; i < SEQS; i++) ht_seq_free(s[i]);
    ht_prefix_stats st;
    ht_prefix_count(w.x, &st);
    T_CHECK(st.hits > 1000 && st.dropped > 1000 && refused > 0 && st.pages <= 18,
            "%llu hits, %llu dropped, %u refused, %u pages", (unsigned long long)st.hits,
            (unsigned long long)st.dropped, refused, st.pages);
    free_world(&w);
}

/* ---- files ----------------------------------------------------------------------------------- */

static uint32_t save(world *w, uint32_t max)
{
    uint32_t left;
    ht_err e = {0};
    T_OK(ht_prefix_save(w->x, max, &left, &e), e);
    return left;
}

T_CASE(prefix, files_outlive_the_pool)
{
    const char *dir = t_tmp();
    int32_t ids[CTX];
    ramp(ids, CTX);
    world w = new_world(64, 64, 64, dir, 0);
    (void)serve(&w, ids, 300);
    T_EQ_INT(save(&w, 4), 5); /* in portions */
    T_EQ_INT(save(&w, 0), 0);
    free_world(&w);

    w = new_world(64, 64, 64, dir, 0);
    ht_prefix_hit hit = serve(&w, ids, 300);
    T_EQ_INT(hit.tokens, 288);
    T_EQ_INT(hit.disk_tokens, 288);
    hit = serve(&w, ids, 300);
    T_EQ_INT(hit.tokens, 288);
    T_EQ_INT(hit.disk_tokens, 0);
    T_EQ_INT(save(&w, 0), 0); /* nothing new */
    free_world(&w);

    /* Another model's files are not its own. */
    ht_pool *p = new_pool(64, 64);
    ht_err e = {0};
    ht_prefix *x;
    const ht_prefix_params other = {.identity = {8}, .max_pages = 64, .dir = dir};
    T_OK(ht_prefix_new(&x, p, &other, &e), e);
    ht_seq *s = new_seq(p);
    T_OK(ht_prefix_find(x, s, ids, 299, cls, NULL, &hit, &e), e);
    T_EQ_INT(hit.tokens, 0);
    T_EQ_INT(hit.why, HT_PREFIX_COLD);
    ht_seq_free(s);
    ht_prefix_free(x);
    ht_pool_free(p);
}

/* The path of entry i of the folder. */
static void path_at(const char *dir, size_t i, char out[160])
{
    ht_pagefile_entry *list;
    size_t n;
    ht_err e = {0};
    T_OK(ht_pagefile_list(dir, &list, &n, &e), e);
    T_CHECK(i < n, "%zu files", n);
    (void)snprintf(out, 160, "%s/%s", dir, list[i].name);
    ht_mem_free(list);
}
static void patch(const char *path, long at, uint8_t flip)
{
    FILE *f = fopen(path, "r+b");
    T_TRUE(f && fseek(f, at, SEEK_SET) == 0);
    const int c = fgetc(f);
    T_TRUE(c != EOF && fseek(f, at, SEEK_SET) == 0 && fputc(c ^ flip, f) != EOF);
    (void)fclose(f);
}

/* One file of one page, harmed in each way: refused for its reason, and the prompt is computed. */
T_CASE(prefix, harmed_files_are_refused)
{
    static const struct {
        long at;
        const char *says;
    } harm[] = {{0, "not a prefix page"},    {8, "version"},
                {16, "digest of its head"},  {48, "digest of its head"},
                {112, "digest of its"},      {240, "digest of its head"},
                {390, "digest of its head"}, {500, "digest of its data"}};
    const char *dir = t_tmp();
    char path[160];
    int32_t ids[CTX];
    ramp(ids, CTX);
    world w = new_world(64, 64, 64, dir, 0);
    (void)serve(&w, ids, 33);
    T_EQ_INT(save(&w, 0), 0);
    free_world(&w);
    path_at(dir, 0, path);
    for (size_t i = 0; i <= sizeof harm / sizeof *harm; i++) {
        const bool cut = i == sizeof harm / sizeof *harm;
        if (cut) T_EQ_INT(truncate(path, 700), 0);
        else patch(path, harm[i].at, 1);
        w = new_world(64, 64, 64, dir, 0);
        const ht_prefix_hit hit = serve(&w, ids, 33);
        T_EQ_INT(hit.tokens, 0);
        T_EQ_INT(hit.why, HT_PREFIX_DAMAGED);
        T_CHECK(strstr(hit.damaged.msg, cut ? "has 700 bytes" : harm[i].says), "%zu: %s", i,
                hit.damaged.msg);
        free_world(&w);
        if (!cut) patch(path, harm[i].at, 1);
    }
}

/* Whole and well signed, but of another prompt: the name is not believed. */
T_CASE(prefix, a_file_under_another_name_is_refused)
{
    const char *dir = t_tmp();
    char a[160], b[160];
    int32_t ids[CTX], other[CTX];
    ramp(ids, CTX);
    ramp(other, CTX);
    other[3] = 99;
    world w = new_world(64, 64, 64, dir, 0);
    (void)serve(&w, ids, 33);
    (void)save(&w, 0);
    path_at(dir, 0, a);
    (void)serve(&w, other, 33);
    (void)save(&w, 0);
    path_at(dir, 0, b);
    if (!strcmp(a, b)) path_at(dir, 1, b);
    free_world(&w);
    T_EQ_INT(rename(a, b), 0); /* ids' page under the other's name */
    w = new_world(64, 64, 64, dir, 0);
    const ht_prefix_hit hit = serve(&w, other, 33);
    T_EQ_INT(hit.tokens, 0);
    T_EQ_INT(hit.why, HT_PREFIX_DAMAGED);
    T_CHECK(strstr(hit.damaged.msg, "its key is not its name"), "%s", hit.damaged.msg);
    free_world(&w);
}

T_CASE(prefix, folder_budget_and_leftovers)
{
    const char *dir = t_tmp();
    char path[160];
    int32_t ids[CTX];
    ramp(ids, CTX);
    const uint64_t page = HT_PAGEFILE_HEAD + (uint64_t)2 * 2 * HT_PAGE * HEADS * DIM * 4;
    world w = new_world(64, 64, 64, dir, 5 * page);
    (void)serve(&w, ids, 300);
    (void)save(&w, 0);
    free_world(&w);
    ht_pagefile_entry *list;
    size_t n;
    uint64_t held = 0, gone, freed;
    ht_err e = {0};
    T_OK(ht_pagefile_list(dir, &list, &n, &e), e);
    for (size_t i = 0; i < n; i++) held += list[i].bytes;
    T_CHECK(n >= 3 && held <= 5 * page, "%zu files, %llu bytes", n, (unsigned long long)held);
    ht_mem_free(list);
    /* What a killed writer left is no page, and goes after an hour. */
    (void)snprintf(path, sizeof path, "%s/ab.1.kvpage.part", dir);
    const int fd = open(path, O_CREAT | O_WRONLY, 0600);
    T_TRUE(fd >= 0);
    (void)close(fd);
    T_OK(ht_pagefile_prune(dir, UINT64_MAX, 0, &gone, &freed, &e), e);
    T_EQ_INT(gone, 0);
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    T_EQ_INT(utimensat(AT_FDCWD, path, old, 0), 0);
    T_OK(ht_pagefile_prune(dir, UINT64_MAX, 0, &gone, &freed, &e), e);
    T_EQ_INT(gone, 1);
    T_OK(ht_pagefile_prune(dir, 2 * page, 0, &gone, &freed, &e), e);
    T_EQ_INT(gone, n - 2);
    T_OK(ht_pagefile_prune(dir, UINT64_MAX, ht_now_unix() + 10, &gone, &freed, &e), e);
    T_EQ_INT(gone, 2);
}

/* Such a budget was taken: a server then asked for ever whether the page fits by now. */
T_CASE(prefix, a_budget_below_one_page_is_refused)
{
    const uint64_t page = HT_PAGEFILE_HEAD + (uint64_t)2 * 2 * HT_PAGE * HEADS * DIM * 4;
    ht_pool *pool = new_pool(4, 4);
    ht_prefix *x;
    ht_err e = {0};
    ht_prefix_params p = {.max_pages = 4, .dir = t_tmp(), .dir_bytes = page - 1, .what = "toy"};
    T_ERR(ht_prefix_new(&x, pool, &p, &e), HT_EARG, e, "does not hold one page");
    p.dir_bytes = page;
    T_OK(ht_prefix_new(&x, pool, &p, &e), e);
    ht_prefix_free(x);
    ht_pool_free(pool);
}

T_CASE(prefix, a_folder_that_cannot_be_written)
{
    char dir[64];
    int32_t ids[CTX];
    uint32_t left;
    ht_err e = {0};
    ramp(ids, CTX);
    (void)snprintf(dir, sizeof dir, "%s/gone", t_tmp());
    T_EQ_INT(mkdir(dir, 0700), 0);
    world w = new_world(64, 64, 64, dir, 0);
    (void)serve(&w, ids, 70);
    T_EQ_INT(rmdir(dir), 0);
    T_ERR(ht_prefix_save(w.x, 0, &left, &e), HT_EIO, e, "cannot be made");
    T_EQ_INT(left, 2);
    T_EQ_INT(serve(&w, ids, 70).tokens, 64); /* as good as before */
    free_world(&w);
}

T_CASE(prefix, allocation_failures)
{
    int32_t ids[CTX];
    ht_err e = {0};
    uint32_t failures = 0;
    ramp(ids, CTX);
    for (uint64_t at = 1, done = 0; !done; at++) {
        ht_pool *p = new_pool(16, 16);
        ht_prefix *x = NULL;
        ht_seq *s = new_seq(p);
        float want[CTX];
        const ht_prefix_params pp = {.max_pages = 16};
        ht_prefix_hit hit;
        expect(ids, 100, want);
        T_OK(compute(p, s, want, 100, &e), e);
        ht_alloc_fail_at(at);
        int rc = ht_prefix_new(&x, p, &pp, &e);
        if (!rc) rc = ht_prefix_add(x, s, ids, 3, cls, NULL, &e);
        if (!rc) rc = ht_seq_truncate(s, 0, &e);
        if (!rc) rc = ht_prefix_find(x, s, ids, 99, cls, NULL, &hit, &e);
        ht_alloc_fail_at(0);
        T_CHECK(rc == 0 || rc == HT_ENOMEM, "%d: %s", rc, e.msg);
        failures += rc != 0;
        done = rc == 0;
        ht_seq_free(s);
        ht_prefix_free(x);
        T_EQ_INT(ht_pool_free_pages(p, HT_KV_FULL), 16);
        ht_pool_free(p);
    }
    T_CHECK(failures >= 4, "%u", failures);
}
