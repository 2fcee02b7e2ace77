/* kv.h - the paged KV cache: pool, page tables, reference counts, copy-on-write. One thread (the
 * engine's) owns a pool and its sequences. */
#ifndef HT_KV_H
#define HT_KV_H
#include "core/arena.h"
#include "step/kvpool.h"
#include <stdbool.h>

typedef struct ht_pool ht_pool;
typedef struct {
    uint32_t n_layers, n_kv_heads, head_dim, window;
    const uint8_t *layer_class;      /* [n_layers]                                                */
    int type_k, type_v;              /* enum ht_kvtype                                            */
    const uint8_t (*layer_type)[2];  /* [n_layers][K,V] where layers differ; NULL: type_k, type_v */
    uint32_t n_raw[HT_KV_CLASSES];   /* packed types: raw slots, see ht_pool_raw()                */
    uint32_t n_pages[HT_KV_CLASSES]; /* capacity in pages                                         */
    /* How plane memory is had; NULL: ht_page_alloc. */
    int (*alloc)(void *dev, size_t bytes, void **mem, ht_err *);
    void (*release)(void *dev, void *mem, size_t bytes);
    /* Copy one page in all layers of its class (a backend's page_copy); NULL: memcpy. */
    int (*copy)(void *dev, ht_kv *, int kv_class, uint32_t dst, uint32_t src, ht_err *);
    void *dev;
    bool device;                     /* alloc gives memory that the host cannot address           */
} ht_pool_params;
HT_MUST_USE int ht_pool_new(ht_pool **, const ht_pool_params *, ht_err *);
void ht_pool_free(ht_pool *);
ht_kv *ht_pool_kv(ht_pool *);                          /* borrowed                                */
uint64_t ht_pool_bytes(const ht_pool *);
uint32_t ht_pool_free_pages(const ht_pool *, int kv_class);
uint64_t ht_pool_copied_bytes(const ht_pool *);        /* by copy-on-write so far                 */
/* Bytes a pool of these parameters takes, without making it. */
uint64_t ht_pool_estimate(const ht_pool_params *);
/* Pages of each class that n_seqs sequences of ctx positions need, chunks of up to ubatch rows. */
void ht_pool_size(uint32_t ctx, uint32_t n_seqs, uint32_t window, uint32_t ubatch,
                  uint32_t n_pages[HT_KV_CLASSES]);

/* ---- a second place: the same pages in other memory, for two engines of which neither can address
 * what the other reads ---- */
enum { HT_KV_PLACES = 2 };           /* place 0 is where ht_pool_new() put the planes             */
typedef struct {
    /* As in ht_pool_params, for the second place; dev is handed to these three. */
    int (*alloc)(void *dev, size_t bytes, void **mem, ht_err *);
    void (*release)(void *dev, void *mem, size_t bytes);
    int (*copy)(void *dev, ht_kv *, int kv_class, uint32_t dst, uint32_t src, ht_err *);
    void *dev;
    bool device;
    /* Move pages between the places (ht_backend.kv_move of the engine that addresses both). */
    int (*move)(void *mover, ht_kv *dst, ht_kv *src, int layer0, int n_layers,
                const uint32_t *pages, size_t n, ht_err *);
    void *mover;
} ht_pool_place;
/* Before any page is taken, once. HT_EUNSUPPORTED: packed types have one place. */
HT_MUST_USE int ht_pool_add_place(ht_pool *, const ht_pool_place *, ht_err *);
int ht_pool_places(const ht_pool *);
ht_kv *ht_pool_kv_at(ht_pool *, int place);            /* borrowed                                */
/* The memory behind the planes of a place: one block. */
void *ht_pool_block(const ht_pool *, int place, size_t *bytes);
typedef struct { uint64_t bytes, pages; } ht_moved;    /* between places                          */
/* Pages handed over while a run computes them: noted by ht_seq_hand() before it, moved layer by
 * layer as K and V are complete there (one thread, any; nothing else moves pages meanwhile). When
 * the sequences have advanced, the other place has them if all n_layers were moved. Either way none
 * is noted any more. The number of pages that the other place has now. */
HT_MUST_USE int ht_pool_hand_layer(ht_pool *, int to, uint32_t layer, ht_moved *, ht_err *);
uint64_t ht_pool_hand_end(ht_pool *, int to, uint32_t layers);

/* Raw slots of a class that n_seqs sequences need at most, in steps of up to ubatch rows. */
uint32_t ht_pool_raw(uint32_t n_seqs, uint32_t ubatch);
/* Pack full pages of packed types in a thread of the pool's own, ahead of the step that needs them
 * (R26). Bits do not change. Without it the step packs them itself. */
HT_MUST_USE int ht_pool_async(ht_pool *, ht_err *);
typedef struct {
    uint64_t early_pages, step_pages;  /* packed by the thread; by steps                          */
    uint64_t waits, wait_ns;           /* steps that found a page half packed, and for how long   */
} ht_pack_stats;
ht_pack_stats ht_pool_packing(ht_pool *);

typedef struct ht_seq ht_seq;                          /* one sequence's page table               */
HT_MUST_USE int ht_seq_new(ht_seq **, ht_pool *, uint32_t ctx_max, ht_err *);
void ht_seq_free(ht_seq *);                            /* gives its pages back                    */
uint32_t ht_seq_len(const ht_seq *);
/* Make positions [len, len+n) writable: allocates pages, copies shared ones. HT_EFULL when the pool
 * or ctx_max is exhausted; the sequence is then unchanged. */
HT_MUST_USE int ht_seq_reserve(ht_seq *, uint32_t n, ht_err *);
/* The next run reads and writes in this place: pages that are behind there are moved to it first,
 * and *moved grows by what that was. A sequence begins in place 0. */
HT_MUST_USE int ht_seq_bring(ht_seq *, int place, ht_moved *moved, ht_err *);
/* Behind ht_seq_bring(): note what the other place will lack after a run of n rows. */
void ht_seq_hand(ht_seq *, uint32_t n);
void ht_seq_advance(ht_seq *, uint32_t n);             /* n positions were written                */
/* Back to len. Always possible: to where the last reservation began if that is at most
 * HT_SEQ_BACK positions ago, and to 0. Windowed layers and packed types give up what older
 * positions would need: HT_EUNSUPPORTED then, and nothing changes. */
enum { HT_SEQ_BACK = 32 };
HT_MUST_USE int ht_seq_truncate(ht_seq *, uint32_t len, ht_err *);
/* Eviction: give up n full pages of the full class, entries of the table in ascending order, for
 * good; what holds them beside this sequence keeps them. Never the first page, nor the two newest,
 * nor one that packed types still read raw: HT_EARG, and nothing changes. Positions stay what they
 * are: the table has HT_NOPAGE there. n may be 0. Either way there is no going back to before the
 * present length but to 0, since a shorter sequence would have kept what is gone. */
HT_MUST_USE int ht_seq_evict(ht_seq *, const uint32_t *entry, uint32_t n, ht_err *);
HT_MUST_USE int ht_seq_fork(ht_seq **, const ht_seq *, ht_err *);
/* Page table of a class, [ceil(ctx_max/HT_PAGE)], HT_NOPAGE where there is none. Valid until the
 * next call on this sequence. */
const uint32_t *ht_seq_pages(const ht_seq *, int kv_class);
uint32_t ht_seq_n_table(const ht_seq *);               /* entries of the table                    */
#endif
