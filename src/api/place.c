/* place.c - where K and V lie. Engines that address the same memory share the pool's planes, and a
 * hand-off between them is nothing at all. A device that cannot address what another engine reads
 * gets planes of its own for the same pages (kv/kv.h, "a second place"); runs then move what is
 * behind (run.c). */
#include "api/api.h"

static int pool_alloc(void *dev, size_t bytes, void **mem, ht_err *err)
{
    const api__unit *u = dev;
    return u->be->kv_alloc(u->dev, bytes, mem, err);
}

static void pool_release(void *dev, void *mem, size_t bytes)
{
    const api__unit *u = dev;
    if (u->be->kv_free) u->be->kv_free(u->dev, mem, bytes);
    else ht_page_free(mem, bytes);
}

static int pool_copy(void *dev, ht_kv *kv, int kv_class, uint32_t dst, uint32_t src, ht_err *err)
{
    const api__unit *u = dev;
    return u->be->page_copy(u->dev, kv, kv_class, dst, src, err);
}

static int pool_move(void *mover, ht_kv *dst, ht_kv *src, int layer0, int n_layers,
                     const uint32_t *pages, size_t n, ht_err *err)
{
    const api__unit *u = mover;
    return u->be->kv_move(u->dev, dst, src, layer0, n_layers, pages, n, err);
}

/* Memory that a backend gives back by a call of its own is no host memory. */
static bool on_device(const api__unit *u)
{
    return u->be->kv_free != NULL;
}

int api__places(const ht_engine *e)
{
    bool host = false, device = false;
    for (size_t i = 0; i < e->n_units; i++) *(on_device(&e->unit[i]) ? &device : &host) = true;
    return host && device ? HT_KV_PLACES : 1;
}

ht_kv *api__kv_of(const ht_engine *e, const api__unit *u)
{
    return ht_pool_kv_at(e->pool, u->place);
}

/* What would be lost or wrong in two places is refused before anything is taken for the second. */
static int check_pair(const ht_engine *e, ht_err *err)
{
    const char *what = e->kv.packs ? "packed KV types (-ctk, -ctv)" : "eviction (--evict)";
    if (!e->kv.packs && !e->keep_pages) return 0;
    return HT_FAIL(
        err, HT_EUNSUPPORTED,
        "prefill on %s and decode on %s keep the cache in two places, which goes with no "
        "%s; leave that out, or name one engine for both",
        e->phase[API_PREFILL].unit->be->name, e->phase[API_DECODE].unit->be->name, what);
}

/* The places' host memory is locked by the device that moves pages. Where its driver refuses, they
 * travel all the same, slower, and whoever asks is told why. */
static void pin(ht_engine *e, api__unit *device)
{
    api__pinned *p = &e->pinned;
    size_t bytes;
    if (!device->be->kv_pin) return;
    p->mem = ht_pool_block(e->pool, ht_pool_kv(e->pool)->device ? 1 : 0, &bytes);
    if (!device->be->kv_pin(device->dev, p->mem, bytes, &p->why)) p->by = device;
}

void api__pool_free(ht_engine *e)
{
    const api__pinned *p = &e->pinned;
    if (p->by) p->by->be->kv_unpin(p->by->dev, p->mem);
    ht_pool_free(e->pool);
}

/* Planes in u's memory for a pool that has its first ones elsewhere. */
static int add_place(ht_engine *e, api__unit *u, ht_err *err)
{
    api__unit *const first = e->phase[API_DECODE].unit;
    ht_pool_place p = {
        .dev = u, .device = on_device(u), .move = pool_move, .mover = on_device(u) ? u : first};
    if (u->be->kv_alloc) {
        p.alloc = pool_alloc;
        p.release = pool_release;
        if (u->be->page_copy) p.copy = pool_copy;
    }
    HT_TRY(check_pair(e, err));
    HT_TRY(ht_pool_add_place(e->pool, &p, err));
    pin(e, p.mover);
    return api__hand_new(&e->hand, e->pool, e->arena, err);
}

/* The first place where the unit can address it, else the second one. */
static int attach(ht_engine *e, api__unit *u, ht_err *err)
{
    ht_err other = {0};
    const bool elsewhere = on_device(u) != ht_pool_kv(e->pool)->device;
    if (!elsewhere) return u->be->kv_attach(u->dev, ht_pool_kv(e->pool), err);
    if (ht_pool_places(e->pool) == 1) HT_TRY(add_place(e, u, err));
    u->place = 1;
    if (!u->be->kv_attach(u->dev, ht_pool_kv_at(e->pool, 1), &other)) return 0;
    return HT_FAIL(err, HT_EUNSUPPORTED,
                   "prefill on %s and decode on %s cannot hand a KV cache over: %s cannot attach "
                   "to it (%.120s); name one engine for both",
                   e->phase[API_PREFILL].unit->be->name, e->phase[API_DECODE].unit->be->name,
                   u->be->name, other.msg);
}

/* The decode engine's device owns the first planes where it has an allocator of its own: decode
 * reads them most. */
int api__pool_make(ht_engine *e, ht_pool_params *params, ht_err *err)
{
    api__unit *u = e->phase[API_DECODE].unit;
    if (u->be->kv_alloc) {
        params->alloc = pool_alloc;
        params->release = pool_release;
        params->dev = u;
        params->device = on_device(u);
    }
    if (u->be->kv_alloc && u->be->page_copy) params->copy = pool_copy;
    HT_TRY(ht_pool_new(&e->pool, params, err));
    ht_pool_kv(e->pool)->k_mean = e->kv.k_mean;
    for (size_t i = 0; i < e->n_units; i++) HT_TRY(attach(e, &e->unit[i], err));
    return 0;
}

/* ---- what receipts, explain and the configuration say ---------------------------------------- */

/* "pinned", and why not. */
static void write_pinned(ht_jw *w, const ht_engine *e)
{
    ht_jw_kbool(w, "pinned", e->pinned.by != NULL);
    if (e->pinned.why.code) ht_jw_kstr(w, "notPinned", e->pinned.why.msg);
}

void api__write_hand(ht_jw *w, const ht_engine *e, uint32_t n_prompt)
{
    const api__unit *from = e->phase[API_PREFILL].unit, *to = e->phase[API_DECODE].unit;
    const ht_kv *kv = api__kv_of(e, to);
    uint64_t bytes = 0;
    if (from->place == to->place) return;
    for (uint32_t l = 0; l < kv->n_layers; l++)
        bytes += kv->page_bytes[l][0] + kv->page_bytes[l][1];
    ht_jw_key(w, "handOff");
    ht_jw_obj(w);
    ht_jw_kstr(w, "from", from->be->name);
    ht_jw_kstr(w, "to", to->be->name);
    ht_jw_kuint(w, "pageBytes", bytes);
    if (n_prompt) ht_jw_kuint(w, "bytes", (n_prompt + HT_PAGE - 1) / HT_PAGE * bytes);
    write_pinned(w, e);
    ht_jw_end(w, '}');
}

void api__write_handed(ht_jw *w, const ht_engine *e, const api__record *r, int phase)
{
    const api__unit *from = r->phase[!phase].unit, *to = r->phase[phase].unit;
    const api__hand_record *h = &r->hand[phase];
    if (from->place == to->place) return;
    ht_jw_key(w, "handOff");
    ht_jw_obj(w);
    ht_jw_kstr(w, "from", from->be->name);
    ht_jw_kstr(w, "to", to->be->name);
    ht_jw_kuint(w, "pages", h->pages);
    ht_jw_kuint(w, "bytes", h->bytes);
    ht_jw_kuint(w, "ns", h->ns);
    ht_jw_kuint(w, "exposedNs", h->exposed_ns);
    ht_jw_kbool(w, "layerByLayer", h->pages > 0 && h->late == 0);
    write_pinned(w, e);
    ht_jw_end(w, '}');
}
