/* priv.h - what pool.c lends to seq.c: taking, sharing and giving back pages. */
#ifndef HT_KV_PRIV_H
#define HT_KV_PRIV_H
#include "kv/kv.h"
#include "step/step.h"

#include <stdbool.h>

enum { KV__BACK = HT_SEQ_BACK };

/* ---- raw.c: NULL stands for a pool without packed types; then nothing is done ---- */
typedef struct kv__raw kv__raw;
typedef ht_pack_stats kv__raw_stats;
HT_MUST_USE int kv__raw_new(kv__raw **, ht_kv *, const ht_pool_params *, ht_arena *, ht_err *);
void kv__raw_del(kv__raw *);
uint64_t kv__raw_bytes(const ht_pool_params *);
HT_MUST_USE int kv__raw_async(kv__raw *, ht_err *);
kv__raw_stats kv__raw_stats_of(kv__raw *);
uint32_t kv__raw_free(const kv__raw *, int kv_class);         /* UINT32_MAX without packed types */
/* A slot for a fresh page (the caller has counted); one holder more; one less. */
void kv__raw_take(kv__raw *, int kv_class, uint32_t id);
void kv__raw_share(kv__raw *, int kv_class, uint32_t id);
void kv__raw_give(kv__raw *, int kv_class, uint32_t id);
void kv__raw_dirty(kv__raw *, int kv_class, uint32_t id);     /* about to be written again       */
void kv__raw_full(kv__raw *, int kv_class, uint32_t id);      /* all positions are written       */
void kv__raw_claim(kv__raw *, int kv_class, uint32_t id);     /* the next run reads it packed    */
void kv__raw_done(kv__raw *, int kv_class, uint32_t id);      /* that run has been               */
int kv__raw_copy(kv__raw *, int kv_class, uint32_t dst, uint32_t src, uint64_t *bytes);
kv__raw *kv__raw_of(const ht_pool *);
int kv__type(const ht_pool_params *, uint32_t layer, int is_v);

/* ---- place.c: NULL stands for a pool with one place; then nothing is done ---- */
typedef struct kv__place kv__place;
/* block, bytes: where the first place's planes lie. Frees nothing when it fails; the arena does. */
HT_MUST_USE int kv__place_new(kv__place **, ht_kv *first, const void *block, size_t bytes,
                              const ht_pool_place *, ht_arena *, ht_err *);
void kv__place_del(kv__place *);
ht_kv *kv__place_kv(kv__place *);
uint64_t kv__place_bytes(const kv__place *);
void *kv__place_block(const kv__place *);
void kv__place_fresh(kv__place *, int kv_class, uint32_t id);    /* nothing of it is valid        */
/* Has it a valid position there? */
bool kv__place_has(const kv__place *, int place, int kv_class, uint32_t id);
/* The second place's part of a page's copy. */
HT_MUST_USE int kv__place_copy(kv__place *, int kv_class, uint32_t dst, uint32_t src,
                               uint64_t *bytes, ht_err *);
/* Positions [from, to) of a page were written in a place; those before are valid there. */
void kv__place_wrote(kv__place *, int place, int kv_class, uint32_t id, uint32_t from, uint32_t to);
/* Its first `positions` will be read in a place; then move all that are behind there. */
void kv__place_want(kv__place *, int place, int kv_class, uint32_t id, uint32_t positions);
HT_MUST_USE int kv__place_move(kv__place *, int to, ht_moved *, ht_err *);
/* The page lacks something in a place: always, or where fewer than all positions are valid there.
 * A page may be noted again. */
void kv__place_note(kv__place *, int place, int kv_class, uint32_t id, bool always);
HT_MUST_USE int kv__place_layer(kv__place *, int to, uint32_t layer, ht_moved *, ht_err *);
uint64_t kv__place_end(kv__place *, int to, bool moved);
kv__place *kv__place_of(const ht_pool *);

/* Layers of this class exist, so its pages hold something. */
bool kv__class_used(const ht_pool *, int kv_class);
uint32_t kv__window(const ht_pool *);
/* Take n free pages (the caller has checked that there are so many) with one reference each: the
 * run right behind page `after` if it is free, else the lowest run of n, else the lowest n
 * pages. */
void kv__take(ht_pool *, int kv_class, uint32_t after, uint32_t n, uint32_t *out);
void kv__share(ht_pool *, int kv_class, uint32_t page);
void kv__give(ht_pool *, int kv_class, uint32_t page);
uint32_t kv__refs(const ht_pool *, int kv_class, uint32_t page);
/* Copy a page in all layers of its class, through the owner's hook if there is one; counts
 * bytes. */
int kv__copy(ht_pool *, int kv_class, uint32_t dst, uint32_t src, ht_err *);

/* Whom to ask for pages when the pool runs short: fn gives back what it can until `want` pages of
 * the class are free. One at most; NULL: nobody. */
typedef void (*kv__on_full_fn)(void *user, int kv_class, uint32_t want);
void kv__on_full(ht_pool *, kv__on_full_fn fn, void *user);
void kv__ask(ht_pool *, int kv_class, uint32_t want);

/* ---- seq.c ---- */
/* Entries of the windowed class that no row at position `len` or later reads. */
uint32_t kv__dead_pages(const ht_pool *, uint32_t len);
/* Give an empty sequence the first n_pages pages, shared; page[class] has HT_NOPAGE for those it
 * does not need. Not for packed types. HT_EARG: not empty, or they do not fit. */
HT_MUST_USE int kv__seq_adopt(ht_seq *, const uint32_t *const page[HT_KV_CLASSES], uint32_t n_pages,
                              ht_err *);
#endif
