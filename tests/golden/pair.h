/* pair.h - prefill on `graph`, decode on `cpu`, over one pool of KV pages, without the engine above
 * them: what the goldens of the graph engine measure. */
#ifndef HT_TEST_PAIR_H
#define HT_TEST_PAIR_H
#include "drive.h"

enum { PAIR_BUCKETS = 4, PAIR_WANT = 16 };
typedef struct {
    const char *opts;           /* of the graph device; NULL: "threads=2"                        */
    int type_k, type_v;
    uint32_t ctx;
    uint8_t act;
} pair_params;
typedef struct {
    pair_params p;
    ht_file *file;
    ht_model *model;
    const ht_backend *graph, *cpu;
    ht_dev *gdev, *cdev;
    ht_pool *pool;
    ht_stage *tape;
    size_t n_tape;
    ht_plan *prefill[PAIR_BUCKETS], *decode;
} pair;
extern const uint16_t pair_rows[PAIR_BUCKETS];

/* false: the graph engine does not cover this model, and nothing is left open. Ends the case with a
 * skip where there is no library. */
bool pair_open(pair *, const char *path, const pair_params *);
void pair_close(pair *);
/* The plan of a bucket, made on first use. */
ht_plan *pair_plan(pair *, int bucket);
/* Smallest bucket of at least n rows. */
int pair_bucket(uint32_t n);
/* Prefill ids of a new sequence through this bucket; logits [n_want,vocab], n_want <= PAIR_WANT. */
void pair_prefill(pair *, int bucket, ht_seq *, const int32_t *ids, uint32_t n,
                  const uint32_t *want, uint32_t n_want, bool rope_long, float *logits);
/* One token at the sequence's end on cpu. */
void pair_step(pair *, ht_seq *, int32_t id, bool rope_long, float *logits);
/* Path of tale-9m packed with this precision, q8 or q4. Static, until the next call. */
const char *pair_packed(const char *precision);
#endif
