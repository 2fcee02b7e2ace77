/* small.h - a random model made in memory, a KV pool made by hand, and a way to run sequences in
 * any chunking or batch. */
#ifndef HT_TEST_SMALL_H
#define HT_TEST_SMALL_H
#include "core/arena.h"
#include "model/model.h"
#include "step/kvpool.h"
#include "step/step.h"
#include "test.h"

extern const ht_backend ht_backend_cpu;

typedef struct {
    uint32_t layers, dim, heads, kv_heads, head_dim, ffn, vocab, experts, topk, expert_ffn;
    uint32_t shared_ffn;
    uint32_t window;                 /* odd layers are windowed                                   */
    int type, type2;                 /* enum ht_type of projections; of K, V, down and the head   */
    bool bias, qk_norm, post_norm, gelu, renorm, caps, nope, partial_rope, alt;
} small_shape;
extern const small_shape small_llama;

typedef struct {
    ht_arena *arena;
    ht_model model;
    ht_kv kv;
    uint32_t ctx, seqs, n_table;
    uint32_t *table[HT_KV_CLASSES];  /* [seqs, n_table]                                           */
} small;
/* Deterministic: equal shapes give equal weights. */
void small_new(small *, const small_shape *, int kv_type, uint32_t ctx, uint32_t seqs);
void small_free(small *);

typedef struct {
    ht_dev *dev;
    ht_plan *plan;
    ht_stage *tape;
    ht_cut *cut;
    size_t n_tape, n_cuts;
} engine;
/* plain: the cover of one-stage plain spans. */
void engine_open_cost(engine *, small *, const char *opts, int act, uint32_t rows, uint32_t want,
                      double (*cost)(void *, const ht_cut *), void *user);
void engine_open(engine *, small *, const char *opts, int act, uint32_t rows, uint32_t want,
                 bool plain);
void engine_close(engine *);
/* One step: rows of (seq, pos, token); logits of all wanted rows to out [n_want, vocab]. */
void engine_step(engine *, small *, const ht_batch *, float *out);
/* Tokens [n] of sequence seq from position 0 in chunks; logits of every row to out [n, vocab]. */
void engine_eval(engine *, small *, uint32_t seq, const int32_t *tok, uint32_t n, uint32_t chunk,
                 float *out);
#endif
