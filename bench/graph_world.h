/* graph_world.h - what the experiments on the graph engine stand on, in a program each: a model,
 * its tape, a pool of F16 pages with one sequence in it, engines opened over them. Whatever fails
 * ends the program. */
#ifndef HT_BENCH_GRAPH_WORLD_H
#define HT_BENCH_GRAPH_WORLD_H
#include "api/api.h"
#include "backend/list.h"
#include "kv/kv.h"
#include "model/model.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    ht_file *file;
    ht_model *model;
    ht_pool *pool;
    ht_seq *seq;                         /* with pages for all positions                          */
    ht_stage *tape; size_t n_tape;       /* plans keep it                                         */
} world;
typedef struct {                         /* rows of one sequence from a position on               */
    int32_t *id, *pos;
    uint16_t *owner;
    uint32_t want;                       /* the last row                                          */
} world_rows;

static inline void must(int rc, const char *what, const ht_err *e)
{
    if (!rc) return;
    fprintf(stderr, "%s: %s\n", what, e->msg);
    exit(1);
}

/* ctx: positions of the one sequence. */
static inline void world_open(world *w, const char *path, uint32_t ctx)
{
    ht_err e = {0};
    must(ht_file_open(&w->file, path, NULL, &e), "file", &e);
    must(ht_model_open(&w->model, w->file, NULL, NULL, &e), "model", &e);
    const ht_spec *s = &w->model->spec;
    const api__kv kv = {.base = {HT_KV_F16, HT_KV_F16}};
    ht_pool_params pp;
    ht_arena *arena = NULL;
    must(ht_arena_new(&arena, 0, &e), "memory", &e);
    const uint8_t *cls = api__layer_class(s, arena);
    must(cls ? 0 : HT_ENOMEM, "layers", &e);
    api__pool_params(s, cls, &kv, ctx, 1, ctx, &pp);
    must(ht_pool_new(&w->pool, &pp, &e), "pool", &e);
    must(ht_seq_new(&w->seq, w->pool, ctx, &e), "sequence", &e);
    must(ht_seq_reserve(w->seq, ctx, &e), "pages", &e);
    ht_arena_free(arena);
    w->n_tape = ht_tape(w->model, NULL, 0);
    w->tape = calloc(w->n_tape, sizeof *w->tape);
    (void)ht_tape(w->model, w->tape, w->n_tape);
}

/* An engine with the model loaded and the pool attached. */
static inline const ht_backend *world_engine(const world *w, const char *name, const char *opts,
                                             ht_dev **dev)
{
    ht_err e = {0};
    const ht_backend *be = ht_backend_find(name);
    must(be->open(dev, opts, &e), name, &e);
    must(be->load(*dev, w->model, &e), "load", &e);
    must(be->kv_attach(*dev, ht_pool_kv(w->pool), &e), "pool", &e);
    return be;
}

/* What a plan is made for: rows of the sequence, behind `past` positions (0: a prompt). */
static inline ht_bucket world_bucket(uint32_t rows, uint32_t ctx, uint32_t past)
{
    return (ht_bucket){.rows = (uint16_t)rows,
                       .seqs = 1,
                       .want = 1,
                       .steps = 1,
                       .ctx = ctx,
                       .past = past,
                       .kv_fmt = HT_KV_F16 | HT_KV_F16 << 8};
}

/* Stages [at, at+n) of the tape on an engine. */
static inline ht_plan *world_plan(const world *w, const ht_backend *be, ht_dev *dev, size_t at,
                                  size_t n, const ht_bucket *b)
{
    ht_err e = {0};
    ht_plan *p = NULL;
    ht_cut *cut = calloc(n, sizeof *cut);
    const size_t k = ht_cover(be, dev, w->model, w->tape + at, n, b, NULL, NULL, cut, &e);
    must(k ? 0 : HT_EARG, "cover", &e);
    must(be->plan(&p, dev, ht_pool_kv(w->pool), w->tape + at, cut, k, b, &e), "plan", &e);
    free(cut);
    return p;
}

static inline int32_t world_id(const world *w, uint32_t pos)
{
    return (int32_t)(((uint64_t)pos * 7919 + 13) % (w->model->spec.vocab / 2));
}

/* n rows from position `at` on. The batch lasts as long as *r, which is the program's. */
static inline ht_batch world_batch(const world *w, uint32_t at, uint32_t n, world_rows *r)
{
    r->id = calloc(n, sizeof *r->id);
    r->pos = calloc(n, sizeof *r->pos);
    r->owner = calloc(n, sizeof *r->owner);
    r->want = n - 1;
    for (uint32_t i = 0; i < n; i++) {
        r->pos[i] = (int32_t)(at + i);
        r->id[i] = world_id(w, at + i);
    }
    return (ht_batch){.rows = n,
                      .seqs = 1,
                      .n_want = 1,
                      .token = r->id,
                      .pos = r->pos,
                      .seq = r->owner,
                      .page = {ht_seq_pages(w->seq, 0), ht_seq_pages(w->seq, 1)},
                      .want = &r->want};
}

static inline void world_rows_done(world_rows *r)
{
    free(r->id);
    free(r->pos);
    free(r->owner);
}
#endif
