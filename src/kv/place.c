/* place.c - a second place for a pool's pages: planes with the same page numbers in other memory,
 * for two engines of which neither can address what the other reads.
 *
 * For each page and place it is known how many of its positions are valid there, from the first on.
 * Whoever holds a page wrote its positions, or shares it with who did, so one of the two places has
 * all that anybody may read; a page that is behind in a place is moved there whole. */
#include "kv/priv.h"

#include <string.h>

struct kv__place {
    ht_kv *first; /* the pool's own planes: place 0 */
    ht_kv kv;     /* place 1 */
    ht_pool_place p;
    void *block;
    size_t block_bytes;
    uint8_t *valid[HT_KV_PLACES][HT_KV_CLASSES]; /* [n_pages] positions, 0 to HT_PAGE */
    uint32_t *list[HT_KV_CLASSES];               /* [n_pages] those that are to be moved */
    uint32_t n[HT_KV_CLASSES];
    uint8_t *noted[HT_KV_CLASSES]; /* [n_pages] it is in the list of a hand-off */
};

static int make_tables(kv__place *x, ht_arena *arena, ht_err *e)
{
    const ht_kv *kv = x->first;
    bool ok = (x->kv.plane = ht_arena_array(arena, kv->n_layers, sizeof *x->kv.plane)) != NULL;
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        const size_t n = kv->n_pages[c] ? kv->n_pages[c] : 1;
        for (int w = 0; w < HT_KV_PLACES; w++)
            ok = (x->valid[w][c] = ht_arena_array(arena, n, 1)) != NULL && ok;
        ok = (x->noted[c] = ht_arena_array(arena, n, 1)) != NULL && ok;
        ok = (x->list[c] = ht_arena_array(arena, n, sizeof *x->list[c])) != NULL && ok;
    }
    return ok ? 0 : HT_FAIL(e, HT_ENOMEM, "KV pool: out of memory for a second place's tables");
}

int kv__place_new(kv__place **out, ht_kv *first, const void *block, size_t bytes,
                  const ht_pool_place *p, ht_arena *arena, ht_err *e)
{
    kv__place *x = ht_arena_alloc(arena, sizeof *x);
    void *mem = NULL;
    *out = NULL;
    if (!x) return HT_FAIL(e, HT_ENOMEM, "KV pool: out of memory for a second place");
    *x = (kv__place){.first = first, .kv = *first, .p = *p, .block_bytes = bytes};
    x->kv.device = p->device;
    HT_TRY(make_tables(x, arena, e));
    if (p->alloc) HT_TRY(p->alloc(p->dev, bytes, &mem, e));
    else if (!(mem = ht_page_alloc(bytes)))
        return HT_FAIL(e, HT_ENOMEM,
                       "KV pool: %zu MiB for its second place refused; use a smaller context (-c)",
                       bytes >> 20);
    x->block = mem;
    /* The same division as that of the first block. */
    for (uint32_t l = 0; l < first->n_layers; l++)
        for (int v = 0; v < 2; v++)
            x->kv.plane[l][v] = (uint8_t *)mem + ((uintptr_t)first->plane[l][v] - (uintptr_t)block);
    *out = x;
    return 0;
}

void kv__place_del(kv__place *x)
{
    if (!x || !x->block) return;
    if (x->p.release) x->p.release(x->p.dev, x->block, x->block_bytes);
    else if (!x->p.alloc) ht_page_free(x->block, x->block_bytes);
}

ht_kv *kv__place_kv(kv__place *x)
{
    return &x->kv;
}

uint64_t kv__place_bytes(const kv__place *x)
{
    return x ? x->block_bytes : 0;
}

void *kv__place_block(const kv__place *x)
{
    return x->block;
}

void kv__place_fresh(kv__place *x, int kv_class, uint32_t id)
{
    for (int w = 0; x && w < HT_KV_PLACES; w++) x->valid[w][kv_class][id] = 0;
}

bool kv__place_has(const kv__place *x, int place, int kv_class, uint32_t id)
{
    return !x ? place == 0 : x->valid[place][kv_class][id] > 0;
}

int kv__place_copy(kv__place *x, int kv_class, uint32_t dst, uint32_t src, uint64_t *bytes,
                   ht_err *e)
{
    if (!x) return 0;
    if (kv__place_has(x, 1, kv_class, src)) {
        const ht_kv *kv = &x->kv;
        if (x->p.copy) HT_TRY(x->p.copy(x->p.dev, &x->kv, kv_class, dst, src, e));
        for (uint32_t i = 0; i < kv->n_layers; i++)
            for (int v = 0; v < 2 && kv->layer_class[i] == kv_class; v++) {
                const size_t n = (size_t)kv->page_bytes[i][v];
                uint8_t *plane = kv->plane[i][v];
                if (!x->p.copy) memcpy(plane + dst * n, plane + src * n, n);
                *bytes += n;
            }
    }
    for (int w = 0; w < HT_KV_PLACES; w++) x->valid[w][kv_class][dst] = x->valid[w][kv_class][src];
    return 0;
}

void kv__place_wrote(kv__place *x, int place, int kv_class, uint32_t id, uint32_t from, uint32_t to)
{
    if (!x) return;
    uint8_t *other = &x->valid[!place][kv_class][id];
    x->valid[place][kv_class][id] = (uint8_t)to;
    if (*other > from) *other = (uint8_t)from;
}

void kv__place_want(kv__place *x, int place, int kv_class, uint32_t id, uint32_t positions)
{
    if (x->valid[place][kv_class][id] >= positions) return;
    x->list[kv_class][x->n[kv_class]++] = id;
}

/* Layers of one class that follow one another travel in one call. */
static int move_class(kv__place *x, int to, int c, ht_moved *moved, ht_err *e)
{
    ht_kv *kv[HT_KV_PLACES] = {x->first, &x->kv};
    const uint32_t n = x->n[c];
    for (uint32_t l = 0, end; l < x->kv.n_layers; l = end) {
        for (end = l; end < x->kv.n_layers && x->kv.layer_class[end] == c; end++)
            for (int v = 0; v < 2; v++) moved->bytes += n * x->kv.page_bytes[end][v];
        if (end == l) {
            end++;
            continue;
        }
        HT_TRY(x->p.move(x->p.mover, kv[to], kv[!to], (int)l, (int)(end - l), x->list[c], n, e));
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t id = x->list[c][i];
        x->valid[to][c][id] = x->valid[!to][c][id];
    }
    moved->pages += n;
    return 0;
}

int kv__place_move(kv__place *x, int to, ht_moved *moved, ht_err *e)
{
    int rc = 0;
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        if (x->n[c] && !rc) rc = move_class(x, to, c, moved, e);
        x->n[c] = 0;
    }
    return rc;
}

/* ---- while a run computes them --------------------------------------------------------------- */

void kv__place_note(kv__place *x, int place, int kv_class, uint32_t id, bool always)
{
    if (x->noted[kv_class][id] || (!always && x->valid[place][kv_class][id] == HT_PAGE)) return;
    x->noted[kv_class][id] = 1;
    x->list[kv_class][x->n[kv_class]++] = id;
}

int kv__place_layer(kv__place *x, int to, uint32_t layer, ht_moved *moved, ht_err *e)
{
    ht_kv *kv[HT_KV_PLACES] = {x->first, &x->kv};
    const int c = x->kv.layer_class[layer];
    if (!x->n[c]) return 0;
    for (int v = 0; v < 2; v++) moved->bytes += x->n[c] * x->kv.page_bytes[layer][v];
    return x->p.move(x->p.mover, kv[to], kv[!to], (int)layer, 1, x->list[c], x->n[c], e);
}

uint64_t kv__place_end(kv__place *x, int to, bool moved)
{
    uint64_t pages = 0;
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        for (uint32_t i = 0; i < x->n[c]; i++) {
            const uint32_t id = x->list[c][i];
            if (moved) x->valid[to][c][id] = x->valid[!to][c][id];
            x->noted[c][id] = 0;
        }
        pages += moved ? x->n[c] : 0;
        x->n[c] = 0;
    }
    return pages;
}
