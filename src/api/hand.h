/* hand.h - the thread that hands a prompt's pages over while it is computed. Everything but
 * api__hand_layer() is for the thread that is inside the engine. */
#ifndef HT_API_HAND_H
#define HT_API_HAND_H
#include "kv/kv.h"

typedef struct api__hand api__hand;
/* In the arena; *out may be set when it fails, to be freed. */
HT_MUST_USE int api__hand_new(api__hand **out, ht_pool *, ht_arena *, ht_err *);
void api__hand_free(api__hand *);                      /* NULL allowed; before the pool           */
/* Before a run whose pages were noted by ht_seq_hand(). */
void api__hand_begin(api__hand *, int to_place);
/* ht_batch.kv_done: layer after layer, from 0 on; from any thread. */
void api__hand_layer(void *hand, uint32_t layer);
typedef struct {
    uint64_t bytes, ns;              /* moved, and the time of that                               */
    uint64_t exposed_ns;             /* of it, after the run                                      */
} api__handed;
/* Behind the run, whether it failed or not: waits for what is under way. How many layers were
 * moved, for ht_pool_hand_end(); 0 when one of them failed. */
uint32_t api__hand_wait(api__hand *, api__handed *);
#endif
