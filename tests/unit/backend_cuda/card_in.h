/* card_in.h - what the files of the emulated card (card.h) share: a launch, numbers, units of
 * weights, heads. */
#ifndef HT_TEST_CARD_IN_H
#define HT_TEST_CARD_IN_H
#include "card.h"

#include <math.h>
#include <string.h>

enum card_kind { CARD_START, CARD_PICK, CARD_PACK, CARD_FINISH, CARD_MUL, CARD_ATTN, CARD_LONE,
                 CARD_MEGA,
                 CARD_TC_WIDEN, CARD_TC_JOIN, CARD_TC_ONE, CARD_TC_ALL, CARD_TC_GATE,
                 CARD_TC_HEADS, CARD_TC_ATTN };
struct cuda_fn_ {
    int kind, e;               /* e: the number in the kernel's name                            */
    size_t bytes;              /* of its arguments                                              */
};
typedef struct {
    cuda_fn fn;                /* NULL: a copy                                                  */
    uint32_t grid[3], threads;
    union {
        cuda_copy2d copy;
        cuda_args step;
        cuda_pack pack;
        cuda_tc_widen widen;
    } a;
} card_launched;

static inline void *card_at(cuda_ptr p)
{
    return (void *)(uintptr_t)p;
}
static inline uint32_t card_word(const cuda_feed *f, uint32_t i)
{
    return ((const uint32_t *)card_at(f->word))[i];
}
/* Rows of the batch; none once the host has ended the step. */
static inline uint32_t card_rows(const cuda_feed *f, uint32_t flags)
{
    if (*(uint32_t *)card_at(f->stop)) return 0;
    return card_word(f, (flags & CUDA_MUL_WANT) ? CUDA_N_WANT : CUDA_N_ROWS);
}
static inline uint16_t card_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline float card_expo(float x)
{
    return exp2f(x * 1.44269504F);
}
static inline float card_norm_factor(float squares, uint32_t n, float eps)
{
    return (float)(1 / sqrt((double)(squares / (float)n + eps)));
}
/* v[0..n) meet pairwise, neighbours first; n is a power of two. */
static inline float card_meet(float *v, uint32_t n)
{
    for (uint32_t w = 1; w < n; w *= 2)
        for (uint32_t i = 0; i < n; i += 2 * w) v[i] += v[i + w];
    return v[0];
}

/* Pairs that these heads turn, 0: none; *turns: from the start of the row's table to theirs. */
static inline uint32_t card_half(const cuda_heads *h, const cuda_rope *r, const float **turns)
{
    if (h->rope_i == 1) *turns += 2 * r->half[0];
    return h->rope_i < 2 ? r->half[h->rope_i] : 0;
}

/* ---- card.c ---- */
float card_gated(float g, float u, bool gelu);
/* Where row `row` of group g stands in a matrix whose units begin at base. */
uint8_t *card_unit(const cuda_mat *, uint8_t *base, uint32_t row, uint32_t g);
/* Chunk j of row r of a unit: 8 levels; weight = s[0] * level - s[1]. */
void card_levels(const cuda_mat *, const uint8_t *u, uint32_t r, uint32_t j, float w[8]);
void card_scale(const cuda_mat *, const uint8_t *u, uint32_t r, uint32_t j, float s[2]);
/* Bias, norm, rotation and transform of a head, in place. turns: of its row. lanes: whose sums of
 * squares meet; elements go to them in turn, `run` at a time. */
void card_finish_head(const cuda_heads *, uint32_t half, const float *turns, int seg, uint32_t head,
                      uint32_t run, uint32_t lanes, float *v);
const uint32_t *card_pages(const cuda_feed *, uint32_t kv_class, uint32_t seq);
/* A position's key (v 0) or value in its page, and a number to be stored there. */
uint8_t *card_cached(const cuda_heads *, int v, const uint32_t *pages, uint32_t kv_head,
                     uint32_t pos);
void card_put_cached(const cuda_heads *, uint8_t *to, const float *v);
/* ---- card_tensor.c: the kernels of tensor.cu ---- */
void card_run_tensor(const card_launched *);
#endif
