/* prefix.c - the index of known pages: a hash table of entries that form chains, and the folder
 * behind it. Entries are taken from one array, so nothing is allocated after ht_prefix_new but
 * hashing states. */
#include "kv/prefix.h"
#include "core/hash.h"
#include "kv/pagefile.h"
#include "kv/priv.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CLASSES_SEEN = 8 };
#define NONE UINT32_MAX

typedef struct {
    uint8_t key[32], parent_key[32];
    int32_t ids[HT_PAGE];
    uint32_t page[HT_KV_CLASSES]; /* HT_NOPAGE: not held */
    uint32_t parent, children;    /* parent NONE: the first page of a chain */
    uint32_t next;                /* in its bucket, or in the list of free entries */
    uint64_t used;                /* clock of the last use */
    bool live, filed;             /* filed: the folder has it */
} entry;

struct ht_prefix {
    ht_pool *pool;
    ht_prefix_params p;
    ht_arena *arena;
    entry *at;        /* [cap] */
    uint32_t *bucket; /* [n_buckets] */
    uint32_t cap, n_buckets, free;
    uint64_t clock;                 /* entries used at this very clock are not dropped */
    uint8_t root[CLASSES_SEEN][32]; /* newest first parents met, to tell CLASS from COLD */
    uint32_t n_roots, next_root;
    uint64_t page_bytes[HT_KV_CLASSES];
    uint8_t *buf;      /* one page of both classes; NULL without a folder */
    uint64_t dir_held; /* bytes in the folder, by our count */
    ht_prefix_stats stats;
};

static const char *const why_names[HT_PREFIX_WHYS] = {
    "WHOLE", "SHORT", "COLD", "DIVERGED", "CLASS", "WINDOW", "FULL", "DAMAGED", "PACKED", "EVICTS"};

const char *ht_prefix_why_name(int why)
{
    return why >= 0 && why < HT_PREFIX_WHYS ? why_names[why] : "?";
}

/* ---- keys ------------------------------------------------------------------------------------ */

static int root_key(const ht_prefix *x, const char *cls, const char *salt, uint8_t out[32],
                    ht_err *e)
{
    static const char tag[] = "hetero/kvpage/1";
    ht_sha256 *h;
    HT_TRY(ht_sha256_new(&h, e));
    int rc = ht_sha256_add(h, tag, sizeof tag, e);
    if (!rc) rc = ht_sha256_add(h, x->p.identity, 32, e);
    if (!rc) rc = ht_sha256_add(h, cls, strlen(cls) + 1, e);
    if (!rc && salt) rc = ht_sha256_add(h, salt, strlen(salt) + 1, e);
    if (!rc) return ht_sha256_end(h, out, e);
    ht_sha256_free(h);
    return rc;
}

static int child_key(const uint8_t parent[32], const int32_t *ids, uint8_t out[32], ht_err *e)
{
    uint8_t text[32 + HT_PAGE * sizeof *ids];
    memcpy(text, parent, 32);
    memcpy(text + 32, ids, HT_PAGE * sizeof *ids);
    return ht_sha256_of(text, sizeof text, out, e);
}

static uint32_t *bucket_of(const ht_prefix *x, const uint8_t key[32])
{
    uint32_t h;
    memcpy(&h, key, sizeof h);
    return &x->bucket[h & (x->n_buckets - 1)];
}

static uint32_t lookup(const ht_prefix *x, const uint8_t key[32], const int32_t *ids)
{
    uint32_t i = *bucket_of(x, key);
    while (i != NONE && memcmp(x->at[i].key, key, 32) != 0) i = x->at[i].next;
    return i != NONE && memcmp(x->at[i].ids, ids, sizeof x->at[i].ids) == 0 ? i : NONE;
}

/* ---- entries --------------------------------------------------------------------------------- */

static void drop(ht_prefix *x, uint32_t i)
{
    entry *n = &x->at[i];
    uint32_t *link = bucket_of(x, n->key);
    while (*link != i) link = &x->at[*link].next;
    *link = n->next;
    for (int c = 0; c < HT_KV_CLASSES; c++)
        if (n->page[c] != HT_NOPAGE) kv__give(x->pool, c, n->page[c]);
    if (n->parent != NONE) x->at[n->parent].children--;
    n->live = false;
    n->next = x->free;
    x->free = i;
    x->stats.pages--;
    x->stats.dropped++;
}

/* The longest unused entry without children; kv_class >= 0: whose page of it nobody else holds. */
static uint32_t oldest(const ht_prefix *x, int kv_class)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < x->cap; i++) {
        const entry *n = &x->at[i];
        if (!n->live || n->children || n->used == x->clock) continue;
        if (kv_class >= 0 &&
            (n->page[kv_class] == HT_NOPAGE || kv__refs(x->pool, kv_class, n->page[kv_class]) > 1))
            continue;
        if (best == NONE || n->used < x->at[best].used) best = i;
    }
    return best;
}

/* Does the index alone hold a page of the class, at the end of a chain or inside it? */
static bool any_own(const ht_prefix *x, int kv_class)
{
    for (uint32_t i = 0; i < x->cap; i++) {
        const entry *n = &x->at[i];
        if (n->live && n->used != x->clock && n->page[kv_class] != HT_NOPAGE &&
            kv__refs(x->pool, kv_class, n->page[kv_class]) == 1)
            return true;
    }
    return false;
}

/* The pool's call for pages: give back until `want` of the class are free. An entry whose page is
 * in use elsewhere frees nothing but lets its parent go. */
static void reclaim(void *user, int kv_class, uint32_t want)
{
    ht_prefix *x = user;
    while (ht_pool_free_pages(x->pool, kv_class) < want && any_own(x, kv_class)) {
        uint32_t i = oldest(x, kv_class);
        if (i == NONE) i = oldest(x, -1);
        if (i == NONE) return;
        drop(x, i);
    }
}

/* An unused entry, by dropping the oldest if need be; NONE: all are in use now. */
static uint32_t take_entry(ht_prefix *x)
{
    if (x->free == NONE) {
        const uint32_t i = oldest(x, -1);
        if (i == NONE) return NONE;
        drop(x, i);
    }
    const uint32_t i = x->free;
    x->free = x->at[i].next;
    return i;
}

/* A new entry behind parent; its pages are the caller's to set. NONE: no room. */
static uint32_t enter(ht_prefix *x, uint32_t parent, const uint8_t parent_key[32],
                      const uint8_t key[32], const int32_t *ids)
{
    const uint32_t i = take_entry(x);
    if (i == NONE) return NONE;
    entry *n = &x->at[i];
    uint32_t *b = bucket_of(x, key);
    *n = (entry){.parent = parent, .used = x->clock, .live = true, .next = *b};
    memcpy(n->key, key, 32);
    memcpy(n->parent_key, parent_key, 32);
    memcpy(n->ids, ids, sizeof n->ids);
    for (int c = 0; c < HT_KV_CLASSES; c++) n->page[c] = HT_NOPAGE;
    *b = i;
    if (parent != NONE) x->at[parent].children++;
    x->stats.pages++;
    return i;
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* A page's bytes in the pool's first place. */
static int page_io(ht_prefix *x, int c, uint32_t page, void *host, int write, ht_err *e)
{
    ht_kv *kv = ht_pool_kv(x->pool);
    kv__place *second = kv__place_of(x->pool);
    ht_moved moved = {0};
    if (second && !write) {
        kv__place_want(second, 0, c, page, HT_PAGE);
        HT_TRY(kv__place_move(second, 0, &moved, e));
    }
    HT_TRY(x->p.io ? x->p.io(x->p.dev, kv, c, page, host, write, e)
                   : ht_host_page_io(NULL, kv, c, page, host, write, e));
    if (write) kv__place_wrote(second, 0, c, page, 0, HT_PAGE);
    return 0;
}

static void describe(const ht_prefix *x, const entry *n, ht_pagefile *f)
{
    *f = (ht_pagefile){0};
    memcpy(f->identity, x->p.identity, 32);
    memcpy(f->key, n->key, 32);
    memcpy(f->parent, n->parent_key, 32);
    memcpy(f->ids, n->ids, sizeof f->ids);
    (void)snprintf(f->what, sizeof f->what, "%s", x->p.what ? x->p.what : "");
}

/* Pages for what a file holds, filled. On failure nothing is taken. */
static int put_pages(ht_prefix *x, entry *n, const ht_pagefile *got, bool *room, ht_err *e)
{
    uint32_t page[HT_KV_CLASSES] = {HT_NOPAGE, HT_NOPAGE};
    uint8_t *from = x->buf;
    int rc = 0;
    *room = true;
    for (int c = 0; c < HT_KV_CLASSES && !rc && *room; c++) {
        if (!got->bytes[c]) continue;
        if (!ht_pool_free_pages(x->pool, c)) reclaim(x, c, 1);
        if (!ht_pool_free_pages(x->pool, c)) {
            *room = false;
            break;
        }
        kv__take(x->pool, c, HT_NOPAGE, 1, &page[c]);
        rc = page_io(x, c, page[c], from, 1, e);
        from += got->bytes[c];
    }
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        if (page[c] == HT_NOPAGE) continue;
        if (rc || !*room) kv__give(x->pool, c, page[c]);
        else n->page[c] = page[c];
    }
    return rc;
}

/* The page behind `parent` from its file, as a new entry; NONE with *why when there is none. */
static uint32_t load(ht_prefix *x, uint32_t parent, const uint8_t parent_key[32],
                     const uint8_t key[32], const int32_t *ids, ht_prefix_hit *hit)
{
    entry like = {0};
    ht_pagefile want, got;
    bool found = false, room = true;
    memcpy(like.key, key, 32);
    memcpy(like.parent_key, parent_key, 32);
    memcpy(like.ids, ids, sizeof like.ids);
    describe(x, &like, &want);
    memcpy(want.bytes, x->page_bytes, sizeof want.bytes);
    int rc = ht_pagefile_read(x->p.dir, &want, &got, x->buf, &found, &hit->damaged);
    if (rc || !found) {
        if (rc) hit->why = HT_PREFIX_DAMAGED, x->stats.refused++;
        return NONE;
    }
    const uint32_t i = enter(x, parent, parent_key, key, ids);
    if (i != NONE) rc = put_pages(x, &x->at[i], &got, &room, &hit->damaged);
    if (i == NONE || !room) hit->why = HT_PREFIX_FULL;
    if (rc) hit->why = HT_PREFIX_DAMAGED;
    if (i != NONE && (rc || !room)) drop(x, i);
    if (i == NONE || rc || !room) return NONE;
    x->at[i].filed = true;
    return i;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int make_tables(ht_prefix *x, ht_err *e)
{
    x->cap = x->p.max_pages;
    for (x->n_buckets = 1; x->n_buckets < x->cap;) x->n_buckets *= 2;
    x->at = ht_arena_array(x->arena, x->cap ? x->cap : 1, sizeof *x->at);
    x->bucket = ht_arena_array(x->arena, x->n_buckets, sizeof *x->bucket);
    const size_t bytes = (size_t)(x->page_bytes[0] + x->page_bytes[1]);
    if (x->p.dir) x->buf = ht_arena_alloc(x->arena, bytes);
    if (!x->at || !x->bucket || (x->p.dir && !x->buf))
        return HT_FAIL(e, HT_ENOMEM, "no memory for an index of %u prefix pages", x->cap);
    memset(x->bucket, 0xff, x->n_buckets * sizeof *x->bucket); /* NONE */
    x->free = NONE;
    for (uint32_t i = x->cap; i-- > 0; x->free = i) x->at[i].next = x->free;
    return 0;
}

static int count_folder(ht_prefix *x, ht_err *e)
{
    ht_pagefile_entry *list;
    size_t n;
    HT_TRY(ht_pagefile_list(x->p.dir, &list, &n, e));
    for (size_t i = 0; i < n; i++) x->dir_held += list[i].bytes;
    ht_mem_free(list);
    return 0;
}

/* A budget below one file would never be met: nothing kept, and asked for again for ever. */
static int budget_holds_a_page(const ht_prefix *x, ht_err *e)
{
    const uint64_t need = HT_PAGEFILE_HEAD + x->page_bytes[0] + x->page_bytes[1];
    if (!x->p.dir_bytes || need <= x->p.dir_bytes) return 0;
    return HT_FAIL(e, HT_EARG,
                   "a prefix folder of %" PRIu64
                   " bytes does not hold one page, which takes %" PRIu64
                   " here; give it --prefix-cache-size %" PRIu64 " MiB or more",
                   x->p.dir_bytes, need, (need >> 20) + 1);
}

int ht_prefix_new(ht_prefix **out, ht_pool *pool, const ht_prefix_params *p, ht_err *e)
{
    *out = NULL;
    ht_kv *kv = ht_pool_kv(pool);
    if (ht_kv_any_packed(kv))
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "a prefix cache keeps pages of F16 and F32 caches only: of packed types the "
                       "newest pages are needed in two forms; use -ctk f16 -ctv f16, or no prefix "
                       "cache (serve: --cache-ram 0)");
    if (p->max_pages == NONE)
        return HT_FAIL(e, HT_EARG, "an index of %u prefix pages is too large", p->max_pages);
    ht_prefix *x = ht_mem_alloc(sizeof *x);
    if (!x) return HT_FAIL(e, HT_ENOMEM, "no memory for a prefix index");
    x->pool = pool;
    x->p = *p;
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (int v = 0; v < 2; v++) x->page_bytes[kv->layer_class[i]] += kv->page_bytes[i][v];
    int rc = ht_arena_new(&x->arena, 0, e);
    if (!rc) rc = make_tables(x, e);
    if (!rc && p->dir) rc = budget_holds_a_page(x, e);
    if (!rc && p->dir) rc = count_folder(x, e);
    if (rc) {
        ht_prefix_free(x);
        return rc;
    }
    kv__on_full(pool, reclaim, x);
    *out = x;
    return 0;
}

void ht_prefix_free(ht_prefix *x)
{
    if (!x) return;
    kv__on_full(x->pool, NULL, NULL);
    for (uint32_t i = 0; x->at && i < x->cap; i++)
        for (int c = 0; x->at[i].live && c < HT_KV_CLASSES; c++)
            if (x->at[i].page[c] != HT_NOPAGE) kv__give(x->pool, c, x->at[i].page[c]);
    ht_arena_free(x->arena);
    ht_mem_free(x);
}

void ht_prefix_count(const ht_prefix *x, ht_prefix_stats *out)
{
    *out = x->stats;
}

/* ---- finding --------------------------------------------------------------------------------- */

static void remember_root(ht_prefix *x, const uint8_t root[32])
{
    for (uint32_t i = 0; i < x->n_roots; i++)
        if (memcmp(x->root[i], root, 32) == 0) return;
    memcpy(x->root[x->next_root], root, 32);
    x->next_root = (x->next_root + 1) % CLASSES_SEEN;
    if (x->n_roots < CLASSES_SEEN) x->n_roots++;
}

/* Is the first page known under another first parent? */
static int known_otherwise(const ht_prefix *x, const int32_t *ids, bool *known, ht_err *e)
{
    *known = false;
    for (uint32_t i = 0; i < x->n_roots && !*known; i++) {
        uint8_t key[32];
        HT_TRY(child_key(x->root[i], ids, key, e));
        *known = lookup(x, key, ids) != NONE;
    }
    return 0;
}

/* Whole pages of ids that are known, the last one's entry in *last. Their use is noted. */
static int walk(ht_prefix *x, const uint8_t root[32], const int32_t *ids, uint32_t n_pages,
                uint32_t *last, uint32_t *depth, uint32_t *first_file, ht_prefix_hit *hit,
                ht_err *e)
{
    uint8_t parent[32], key[32];
    memcpy(parent, root, 32);
    *last = NONE;
    *first_file = n_pages;
    for (*depth = 0; *depth < n_pages; ++*depth) {
        const int32_t *own = ids + (size_t)*depth * HT_PAGE;
        HT_TRY(child_key(parent, own, key, e));
        uint32_t i = lookup(x, key, own);
        if (i == NONE && x->p.dir && x->cap) {
            i = load(x, *last, parent, key, own, hit);
            if (i != NONE && *first_file > *depth) *first_file = *depth;
        }
        if (i == NONE) return 0;
        x->at[i].used = x->clock;
        *last = i;
        memcpy(parent, key, 32);
    }
    return 0;
}

/* The longest length, at most `depth` pages, whose windowed keys are all held; pages of the chain
 * into table[c][0..depth). */
static uint32_t usable(const ht_prefix *x, uint32_t last, uint32_t depth,
                       uint32_t *const table[HT_KV_CLASSES])
{
    for (uint32_t d = depth, i = last; d-- > 0; i = x->at[i].parent)
        for (int c = 0; c < HT_KV_CLASSES; c++) table[c][d] = x->at[i].page[c];
    if (!kv__class_used(x->pool, HT_KV_WINDOW)) return depth;
    for (uint32_t d = depth; d > 0; d--) {
        uint32_t k = kv__dead_pages(x->pool, d * HT_PAGE);
        while (k < d && table[HT_KV_WINDOW][k] != HT_NOPAGE) k++;
        if (k == d) return d;
    }
    return 0;
}

static int adopt(ht_prefix *x, ht_seq *s, uint32_t last, uint32_t depth, uint32_t *used, ht_err *e)
{
    uint32_t *mem = ht_mem_array((size_t)depth * HT_KV_CLASSES, sizeof *mem);
    if (!mem) return HT_FAIL(e, HT_ENOMEM, "no memory for a prefix of %u pages", depth);
    uint32_t *const table[HT_KV_CLASSES] = {mem, mem + depth};
    *used = usable(x, last, depth, table);
    const uint32_t *const pages[HT_KV_CLASSES] = {mem, mem + depth};
    const int rc = *used ? kv__seq_adopt(s, pages, *used, e) : 0;
    ht_mem_free(mem);
    return rc;
}

/* Inside one use of the index. */
static int find(ht_prefix *x, ht_seq *s, const int32_t *ids, uint32_t n_pages, const char *cls,
                const char *salt, ht_prefix_hit *hit, ht_err *e)
{
    uint8_t root[32];
    uint32_t last, depth, used = 0, first_file;
    HT_TRY(root_key(x, cls, salt, root, e));
    HT_TRY(walk(x, root, ids, n_pages, &last, &depth, &first_file, hit, e));
    if (depth) HT_TRY(adopt(x, s, last, depth, &used, e));
    if (hit->why == HT_PREFIX_WHOLE && used < depth) hit->why = HT_PREFIX_WINDOW;
    else if (hit->why == HT_PREFIX_WHOLE && depth && depth < n_pages) hit->why = HT_PREFIX_DIVERGED;
    else if (hit->why == HT_PREFIX_WHOLE && !depth) {
        bool known;
        HT_TRY(known_otherwise(x, ids, &known, e));
        hit->why = known ? HT_PREFIX_CLASS : HT_PREFIX_COLD;
    }
    hit->tokens = used * HT_PAGE;
    if (used > first_file) hit->disk_tokens = (used - first_file) * HT_PAGE;
    for (uint32_t d = depth, i = last; x->p.dir && d-- > 0; i = x->at[i].parent)
        if (x->at[i].filed) ht_pagefile_touch(x->p.dir, x->at[i].key);
    return 0;
}

int ht_prefix_find(ht_prefix *x, ht_seq *s, const int32_t *ids, uint32_t n, const char *cls,
                   const char *salt, ht_prefix_hit *hit, ht_err *e)
{
    const uint32_t n_pages = n / HT_PAGE;
    *hit = (ht_prefix_hit){.why = n_pages ? HT_PREFIX_WHOLE : HT_PREFIX_SHORT};
    if (!n_pages) return 0;
    const int rc = find(x, s, ids, n_pages, cls, salt, hit, e);
    x->clock++; /* what was used now may be dropped from here on */
    x->stats.lookups++;
    x->stats.hits += hit->tokens != 0;
    x->stats.tokens += hit->tokens;
    x->stats.disk_tokens += hit->disk_tokens;
    return rc;
}

/* ---- adding and saving ----------------------------------------------------------------------- */

/* Hold what the sequence has of entry k and we have not. */
static void hold(ht_prefix *x, entry *n, const ht_seq *s, uint32_t k)
{
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        if (!kv__class_used(x->pool, c) || n->page[c] != HT_NOPAGE) continue;
        const uint32_t page = ht_seq_pages(s, c)[k];
        if (page == HT_NOPAGE) continue;
        kv__share(x->pool, c, page);
        n->page[c] = page;
        n->filed = false; /* its file lacks this */
    }
}

static int add(ht_prefix *x, const ht_seq *s, const int32_t *ids, uint32_t n_pages, const char *cls,
               const char *salt, ht_err *e)
{
    uint8_t parent[32], key[32];
    uint32_t before = NONE;
    const bool full = kv__class_used(x->pool, HT_KV_FULL);
    HT_TRY(root_key(x, cls, salt, parent, e));
    remember_root(x, parent);
    for (uint32_t k = 0; k < n_pages; k++) {
        const int32_t *own = ids + (size_t)k * HT_PAGE;
        if (full && ht_seq_pages(s, HT_KV_FULL)[k] == HT_NOPAGE) return 0; /* evicted */
        HT_TRY(child_key(parent, own, key, e));
        uint32_t i = lookup(x, key, own);
        if (i == NONE) {
            i = enter(x, before, parent, key, own);
            if (i == NONE) return 0;
            x->stats.added++;
        }
        x->at[i].used = x->clock;
        hold(x, &x->at[i], s, k);
        before = i;
        memcpy(parent, key, 32);
    }
    return 0;
}

int ht_prefix_add(ht_prefix *x, const ht_seq *s, const int32_t *ids, uint32_t n_pages,
                  const char *cls, const char *salt, ht_err *e)
{
    if (n_pages > ht_seq_len(s) / HT_PAGE) n_pages = ht_seq_len(s) / HT_PAGE;
    if (!n_pages || !x->cap) return 0;
    const int rc = add(x, s, ids, n_pages, cls, salt, e);
    x->clock++;
    return rc;
}

/* Room in the folder for one more file: the longest unused make way, a tenth more than needed so
 * that the folder is not read for every page. */
static int make_room(ht_prefix *x, uint64_t bytes, ht_err *e)
{
    uint64_t gone, freed;
    if (!x->p.dir_bytes || x->dir_held + bytes <= x->p.dir_bytes) return 0;
    const uint64_t keep = x->p.dir_bytes - x->p.dir_bytes / 10;
    HT_TRY(ht_pagefile_prune(x->p.dir, keep > bytes ? keep - bytes : 0, 0, &gone, &freed, e));
    x->dir_held = 0;
    return count_folder(x, e);
}

static int save_one(ht_prefix *x, uint32_t i, ht_err *e)
{
    entry *n = &x->at[i];
    ht_pagefile f;
    uint8_t *to = x->buf;
    describe(x, n, &f);
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        if (n->page[c] == HT_NOPAGE) continue;
        f.bytes[c] = x->page_bytes[c];
        HT_TRY(page_io(x, c, n->page[c], to, 0, e));
        to += f.bytes[c];
    }
    const uint64_t bytes = HT_PAGEFILE_HEAD + f.bytes[0] + f.bytes[1];
    HT_TRY(make_room(x, bytes, e));
    HT_TRY(ht_pagefile_write(x->p.dir, &f, x->buf, e));
    x->dir_held += bytes;
    n->filed = true;
    x->stats.saved++;
    return 0;
}

int ht_prefix_save(ht_prefix *x, uint32_t max_pages, uint32_t *left, ht_err *e)
{
    uint32_t done = 0;
    int rc = 0;
    *left = 0;
    if (!x->p.dir) return 0;
    for (uint32_t i = 0; i < x->cap; i++) {
        if (!x->at[i].live || x->at[i].filed) continue;
        if (rc || (max_pages && done == max_pages)) {
            ++*left;
            continue;
        }
        rc = save_one(x, i, e);
        if (rc) ++*left;
        else done++;
    }
    return rc || !done ? rc : ht_pagefile_sync(x->p.dir, e);
}
