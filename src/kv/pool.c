/* pool.c - the memory of a KV cache and its pages' reference counts. All planes lie in one block,
 * so that huge pages serve small models too; nothing is allocated after ht_pool_new. Invariant: a
 * page is free exactly when its count is 0, and n_free is the number of such pages. */
#include "kv/priv.h"

#include <string.h>

/* Planes start on a memory page: devices map them, and a plane's first page is huge-page
 * friendly. */
#define PLANE_ALIGN 4096u

typedef struct {
    uint32_t *refs; /* [n] */
    uint32_t n, n_free;
    bool used;
} page_class;

struct ht_pool {
    ht_kv kv;
    ht_pool_params p; /* hooks and dev; the pointers into caller memory are not kept */
    ht_arena *arena;
    void *block;
    size_t block_bytes;
    page_class cls[HT_KV_CLASSES];
    uint64_t copied_bytes;
    kv__on_full_fn on_full; /* NULL: nobody has pages to give back */
    void *on_full_user;
    kv__raw *raw;      /* NULL: no packed types */
    kv__place *second; /* NULL: one place */
};

int kv__type(const ht_pool_params *p, uint32_t layer, int is_v)
{
    if (p->layer_type) return p->layer_type[layer][is_v];
    return is_v ? p->type_v : p->type_k;
}

/* Bytes of one plane; false on overflow. */
static bool plane_bytes(const ht_pool_params *p, uint32_t layer, int is_v, size_t *out)
{
    uint64_t page = ht_kv_page_bytes(kv__type(p, layer, is_v), p->n_kv_heads, p->head_dim);
    size_t n;
    if (page > SIZE_MAX || !ht_mul_ok((size_t)page, p->n_pages[p->layer_class[layer]], &n))
        return false;
    if (!ht_add_ok(n, PLANE_ALIGN - 1, &n)) return false;
    *out = n & ~(size_t)(PLANE_ALIGN - 1);
    return true;
}

static bool block_bytes(const ht_pool_params *p, size_t *out)
{
    size_t sum = 0, n;
    for (uint32_t i = 0; i < p->n_layers; i++)
        for (int v = 0; v < 2; v++)
            if (!plane_bytes(p, i, v, &n) || !ht_add_ok(sum, n, &sum)) return false;
    *out = sum;
    return true;
}

static int check_params(const ht_pool_params *p, ht_err *e)
{
    if (p->n_layers == 0 || p->n_kv_heads == 0 || p->head_dim == 0)
        return HT_FAIL(e, HT_EARG, "KV pool: %u layers, %u heads, head size %u: none may be 0",
                       p->n_layers, p->n_kv_heads, p->head_dim);
    if (p->n_kv_heads > UINT16_MAX || p->head_dim > UINT16_MAX)
        return HT_FAIL(e, HT_EARG, "KV pool: %u heads of size %u: at most 65535 each",
                       p->n_kv_heads, p->head_dim);
    for (uint32_t i = 0; i < p->n_layers; i++) {
        int c = p->layer_class[i], k = kv__type(p, i, 0), v = kv__type(p, i, 1);
        if (!ht_kv_page_bytes(k, 1, 1) || !ht_kv_page_bytes(v, 1, 1))
            return HT_FAIL(e, HT_EARG, "KV pool: unknown type %d (K) or %d (V)", k, v);
        if (!ht_kvtype_fits(k, p->head_dim) || !ht_kvtype_fits(v, p->head_dim))
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "KV types %s (K) and %s (V) cannot hold heads of %u elements: rotated "
                           "types need a power of two from 16 to 1024; use q8_0 or q4_0",
                           ht_kvtype_name(k), ht_kvtype_name(v), p->head_dim);
        if ((ht_kv_packs(k) || ht_kv_packs(v)) && c < HT_KV_CLASSES && p->n_raw[c] == 0)
            return HT_FAIL(e, HT_EARG, "KV pool: layer %u is packed and its class has no raw slot",
                           i);
        if (c >= HT_KV_CLASSES || (c == HT_KV_WINDOW && p->window == 0))
            return HT_FAIL(e, HT_EARG, "KV pool: layer %u has class %d with window %u", i, c,
                           p->window);
        if (p->n_pages[c] == 0 || p->n_pages[c] == HT_NOPAGE)
            return HT_FAIL(e, HT_EARG, "KV pool: class %d of layer %u has %u pages", c, i,
                           p->n_pages[c]);
    }
    return 0;
}

static int make_tables(ht_pool *o, ht_err *e)
{
    const ht_pool_params *p = &o->p;
    uint32_t n = p->n_layers;
    ht_kv *kv = &o->kv;
    kv->layer_class = ht_arena_array(o->arena, n, sizeof *kv->layer_class);
    kv->type = ht_arena_array(o->arena, n, sizeof *kv->type);
    kv->page_bytes = ht_arena_array(o->arena, n, sizeof *kv->page_bytes);
    kv->plane = ht_arena_array(o->arena, n, sizeof *kv->plane);
    bool ok = kv->layer_class && kv->type && kv->page_bytes && kv->plane;
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        page_class *pc = &o->cls[c];
        pc->n = pc->n_free = p->n_pages[c];
        pc->refs = ht_arena_array(o->arena, pc->n, sizeof *pc->refs);
        ok = ok && pc->refs;
    }
    if (!ok) return HT_FAIL(e, HT_ENOMEM, "KV pool of %u layers: out of memory for tables", n);
    return 0;
}

static void fill_kv(ht_pool *o, const ht_pool_params *p)
{
    ht_kv *kv = &o->kv;
    kv->n_layers = p->n_layers;
    kv->n_kv_heads = p->n_kv_heads;
    kv->head_dim = p->head_dim;
    kv->window = p->window;
    kv->device = p->device;
    uint8_t *at = o->block;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        kv->layer_class[i] = p->layer_class[i];
        o->cls[p->layer_class[i]].used = true;
        for (int v = 0; v < 2; v++) {
            int type = kv__type(p, i, v);
            size_t n = 0;
            (void)plane_bytes(p, i, v, &n); /* block_bytes() has checked it */
            kv->type[i][v] = (uint8_t)type;
            kv->page_bytes[i][v] = ht_kv_page_bytes(type, p->n_kv_heads, p->head_dim);
            kv->plane[i][v] = at;
            at += n;
        }
    }
    for (int c = 0; c < HT_KV_CLASSES; c++) kv->n_pages[c] = p->n_pages[c];
}

static int make_block(ht_pool *o, ht_err *e)
{
    size_t n;
    if (!block_bytes(&o->p, &n))
        return HT_FAIL(e, HT_ENOMEM, "KV pool: its size does not fit the address space");
    void *mem = NULL;
    if (o->p.alloc) {
        HT_TRY(o->p.alloc(o->p.dev, n, &mem, e));
    } else if (!(mem = ht_page_alloc(n))) {
        return HT_FAIL(e, HT_ENOMEM, "KV pool: %zu MiB refused; use a smaller context (-c)",
                       n >> 20);
    }
    o->block = mem;
    o->block_bytes = n;
    return 0;
}

/* Make a pool: planes (zeroed unless the owner's alloc does otherwise) and tables. Errors: HT_EARG
 * for parameters that cannot be meant, HT_ENOMEM. The pool copies what it needs of *p. */
int ht_pool_new(ht_pool **out, const ht_pool_params *p, ht_err *e)
{
    *out = NULL;
    HT_TRY(check_params(p, e));
    ht_pool *o = ht_mem_alloc(sizeof *o);
    if (!o) return HT_FAIL(e, HT_ENOMEM, "KV pool: out of memory");
    o->p = *p;
    int rc = ht_arena_new(&o->arena, 0, e);
    if (!rc) rc = make_tables(o, e);
    if (!rc) rc = make_block(o, e);
    if (rc) {
        ht_pool_free(o);
        return rc;
    }
    fill_kv(o, p);
    rc = kv__raw_new(&o->raw, &o->kv, p, o->arena, e);
    o->p.layer_class = NULL;
    o->p.layer_type = NULL;
    if (rc) {
        ht_pool_free(o);
        return rc;
    }
    *out = o;
    return 0;
}

void ht_pool_free(ht_pool *o)
{
    if (!o) return;
    kv__raw_del(o->raw);
    kv__place_del(o->second);
    if (o->block) {
        if (o->p.release) o->p.release(o->p.dev, o->block, o->block_bytes);
        else if (!o->p.alloc) ht_page_free(o->block, o->block_bytes);
    }
    ht_arena_free(o->arena);
    ht_mem_free(o);
}

ht_kv *ht_pool_kv(ht_pool *o)
{
    return &o->kv;
}

int ht_pool_add_place(ht_pool *o, const ht_pool_place *p, ht_err *e)
{
    if (o->raw)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "packed KV types are kept in one place only; use f16 or f32");
    if (o->second || !p->move)
        return HT_FAIL(e, HT_EARG,
                       "KV pool: a second place is made once, with a way to move pages");
    return kv__place_new(&o->second, &o->kv, o->block, o->block_bytes, p, o->arena, e);
}

int ht_pool_places(const ht_pool *o)
{
    return o->second ? HT_KV_PLACES : 1;
}

ht_kv *ht_pool_kv_at(ht_pool *o, int place)
{
    return place && o->second ? kv__place_kv(o->second) : &o->kv;
}

void *ht_pool_block(const ht_pool *o, int place, size_t *bytes)
{
    *bytes = o->block_bytes; /* of either place */
    return place && o->second ? kv__place_block(o->second) : o->block;
}

uint64_t ht_pool_estimate(const ht_pool_params *p)
{
    size_t n;
    return block_bytes(p, &n) ? (uint64_t)n + kv__raw_bytes(p) : UINT64_MAX;
}

uint64_t ht_pool_bytes(const ht_pool *o)
{
    uint64_t raw = 0;
    for (uint32_t l = 0; o->raw && l < o->kv.n_layers; l++)
        for (int v = 0; v < 2; v++)
            if (o->kv.raw[l][v]) raw += o->kv.raw_bytes * o->kv.n_raw[o->kv.layer_class[l]];
    return o->block_bytes + kv__place_bytes(o->second) + raw;
}

/* A sequence holds its first page, at most the two behind a position HT_SEQ_BACK ago and those up
 * to its end: 5, and one for the copy of a shared page; a step's rows fill ubatch/32 more, in all
 * sequences together. */
uint32_t ht_pool_raw(uint32_t n_seqs, uint32_t ubatch)
{
    uint64_t n = 6 * (uint64_t)n_seqs + ubatch / HT_PAGE + 2;
    return n < HT_NOPAGE - 1 ? (uint32_t)n : HT_NOPAGE - 1;
}

int ht_pool_async(ht_pool *o, ht_err *e)
{
    return o->raw ? kv__raw_async(o->raw, e) : 0;
}

ht_pack_stats ht_pool_packing(ht_pool *o)
{
    return kv__raw_stats_of(o->raw);
}

uint32_t ht_pool_free_pages(const ht_pool *o, int kv_class)
{
    return o->cls[kv_class].n_free;
}

uint64_t ht_pool_copied_bytes(const ht_pool *o)
{
    return o->copied_bytes;
}

/* Full class: every position. Windowed class: a chunk of ubatch rows that starts at position p
 * reads from p - window + 1 on and writes up to p + ubatch - 1; s consecutive positions touch at
 * most (s - 2) / HT_PAGE + 2 pages wherever they begin. */
void ht_pool_size(uint32_t ctx, uint32_t n_seqs, uint32_t window, uint32_t ubatch,
                  uint32_t n_pages[HT_KV_CLASSES])
{
    uint64_t full = ((uint64_t)ctx + HT_PAGE - 1) / HT_PAGE, win = 0;
    if (window) {
        uint64_t span = (uint64_t)window - 1 + (ubatch ? ubatch : 1);
        win = span < 2 ? 1 : (span - 2) / HT_PAGE + 2;
        if (win > full) win = full;
    }
    uint64_t f = full * n_seqs, w = win * n_seqs, most = HT_NOPAGE - 1;
    n_pages[HT_KV_FULL] = (uint32_t)(f < most ? f : most);
    n_pages[HT_KV_WINDOW] = (uint32_t)(w < most ? w : most);
}

int ht_pool_hand_layer(ht_pool *o, int to, uint32_t layer, ht_moved *moved, ht_err *e)
{
    if (!o->second || layer >= o->kv.n_layers)
        return HT_FAIL(e, HT_EARG, "KV pool: layer %u of %u cannot be handed over", layer,
                       o->kv.n_layers);
    return kv__place_layer(o->second, to, layer, moved, e);
}

uint64_t ht_pool_hand_end(ht_pool *o, int to, uint32_t layers)
{
    return o->second ? kv__place_end(o->second, to, layers == o->kv.n_layers) : 0;
}

/* ---- lent to the other files of this directory
 * -------------------------------------------------------------------------- */

void kv__on_full(ht_pool *o, kv__on_full_fn fn, void *user)
{
    o->on_full = fn;
    o->on_full_user = user;
}

void kv__ask(ht_pool *o, int kv_class, uint32_t want)
{
    if (o->on_full && o->cls[kv_class].n_free < want) o->on_full(o->on_full_user, kv_class, want);
}

bool kv__class_used(const ht_pool *o, int kv_class)
{
    return o->cls[kv_class].used;
}

kv__raw *kv__raw_of(const ht_pool *o)
{
    return o->raw;
}

kv__place *kv__place_of(const ht_pool *o)
{
    return o->second;
}

uint32_t kv__window(const ht_pool *o)
{
    return o->kv.window;
}

uint32_t kv__refs(const ht_pool *o, int kv_class, uint32_t page)
{
    return o->cls[kv_class].refs[page];
}

void kv__share(ht_pool *o, int kv_class, uint32_t page)
{
    o->cls[kv_class].refs[page]++;
}

void kv__give(ht_pool *o, int kv_class, uint32_t page)
{
    page_class *c = &o->cls[kv_class];
    if (--c->refs[page] == 0) c->n_free++;
}

/* First id of a run of n free pages at or behind `from`; HT_NOPAGE: none. */
static uint32_t find_run(const page_class *c, uint32_t from, uint32_t n)
{
    uint32_t have = 0;
    for (uint32_t i = from; i < c->n; i++) {
        have = c->refs[i] ? 0 : have + 1;
        if (have == n) return i + 1 - n;
    }
    return HT_NOPAGE;
}

static bool run_is_free(const page_class *c, uint32_t from, uint32_t n)
{
    if (from >= c->n || n > c->n - from) return false;
    for (uint32_t i = 0; i < n; i++)
        if (c->refs[from + i]) return false;
    return true;
}

void kv__take(ht_pool *o, int kv_class, uint32_t after, uint32_t n, uint32_t *out)
{
    page_class *c = &o->cls[kv_class];
    uint32_t run = HT_NOPAGE;
    if (after != HT_NOPAGE && run_is_free(c, after + 1, n)) run = after + 1;
    if (run == HT_NOPAGE) run = find_run(c, 0, n);
    for (uint32_t i = 0, id = 0; i < n; i++, id++) {
        if (run != HT_NOPAGE) id = run + i;
        else
            while (c->refs[id]) id++;
        c->refs[id] = 1;
        kv__place_fresh(o->second, kv_class, id);
        out[i] = id;
    }
    c->n_free -= n;
}

int kv__copy(ht_pool *o, int kv_class, uint32_t dst, uint32_t src, ht_err *e)
{
    ht_kv *kv = &o->kv;
    const bool has = kv__place_has(o->second, 0, kv_class, src);
    if (has && o->p.copy) HT_TRY(o->p.copy(o->p.dev, kv, kv_class, dst, src, e));
    for (uint32_t i = 0; has && i < kv->n_layers; i++) {
        if (kv->layer_class[i] != kv_class) continue;
        for (int v = 0; v < 2; v++) {
            size_t n = (size_t)kv->page_bytes[i][v];
            uint8_t *plane = kv->plane[i][v];
            if (!o->p.copy) memcpy(plane + dst * n, plane + src * n, n);
            o->copied_bytes += n;
        }
    }
    HT_TRY(kv__place_copy(o->second, kv_class, dst, src, &o->copied_bytes, e));
    return o->raw ? kv__raw_copy(o->raw, kv_class, dst, src, &o->copied_bytes) : 0;
}
