/* kvcodec.h - packed KV pages: the layout of a head's page and its scalar packing and unpacking,
 * the definition that every kernel follows bit for bit.
 *
 * An element is scale * code, one f32 product; code is a small integer, scale an F16. Codes come
 * in lines of 32:
 *     8 bits  32 bytes, signed
 *     4 bits  16 bytes: low nibbles are elements 0-15, high nibbles 16-31
 *     3 bits  12 bytes: 8 of two bits (byte b: elements b, b+8, b+16, b+24 from the low bits up),
 *             then 4 of one bit (bit i%8 of byte i/8), the upper bit of the index
 * Keys: line d holds dimension d of the page's 32 positions, so that 16 keys are one load. Values:
 * line pos*nl + g holds dimensions 32g... of a position, nl = ceil(head_dim/32); missing ones 0.
 * After head_dim (keys) or 32*nl (values) lines, in the space of 32*nl lines, follow F16 scales
 * [blocks][32 positions]; blocks = nl for Q8_0 and Q4_0 (32 dimensions each), 1 for TQ4 and TQ3,
 * 2 for QJL3 (levels, sketch).
 *
 * Codes: Q8_0 round(x / (max|x|/127)); Q4_0 min(15, floor(x/d + 8.5)) - 8, d = the element of
 * largest magnitude / -8. TQ4, TQ3: the Lloyd-Max quantiser of the normal distribution (Max 1960)
 * on x * sqrt(n)/|x|, its levels rounded to 7 bits, and the scale that makes <x', x> = |x|^2
 * (EDEN, arXiv:2108.08842): no shrinking of scores, at no cost in bits. QJL3 (arXiv:2504.19874): 2
 * bits of the same with scale |x|, and the signs of S r, r what is left, S a second randomised
 * Hadamard matrix: x' = s y + g S^T signs. */
#ifndef HT_STEP_KVCODEC_H
#define HT_STEP_KVCODEC_H
#include "step/kvpool.h"

typedef struct {
    const char *name;
    uint8_t bits;                    /* of a code; 0: not packed                                  */
    uint8_t blocks;                  /* scales of a head and position; 0: one per 32 dimensions   */
    bool rotated;
    const int8_t *levels;            /* [1 << bits] code of an index, ascending; NULL: the number */
    float step;                      /* levels * step are those of the unit normal distribution   */
} ht_kvcodec;
extern const ht_kvcodec ht_kvcodecs[HT_KVTYPES];

static inline uint32_t ht_kv_line_bytes(int type)
{
    return 4u * ht_kvcodecs[type].bits;
}
static inline uint32_t ht_kv_lines(uint32_t head_dim)  /* of a position's values                  */
{
    return (head_dim + 31) / 32;
}
static inline uint32_t ht_kv_blocks(int type, uint32_t head_dim)
{
    return ht_kvcodecs[type].blocks ? ht_kvcodecs[type].blocks : ht_kv_lines(head_dim);
}
/* F16 scales of a head's page: [blocks][32]. */
static inline const uint16_t *ht_kv_scales(int type, uint32_t head_dim, const void *head)
{
    const uint8_t *p = (const uint8_t *)head;
    return (const uint16_t *)(const void *)(p + 32u * ht_kv_lines(head_dim) *
                                                    ht_kv_line_bytes(type));
}
/* Pack 32 rows [32][head_dim] of F16 into a head's page. A row that holds no number gets scale NaN:
 * it is not hidden. */
void ht_kv_pack(int type, int is_v, uint32_t head_dim, const uint16_t *rows, void *head);
/* The row of one position of a packed head. */
void ht_kv_unpack(int type, int is_v, uint32_t head_dim, const void *head, uint32_t pos,
                  float *out);
/* Pack one head of a page from its raw slot. */
void ht_kv_pack_head(const ht_kv *, uint32_t layer, int is_v, uint32_t id, uint32_t head);

/* The pages that the rows of a batch read packed and that are not packed yet, each once: at most
 * cap = n_raw[0] + n_raw[1] of them. */
typedef struct { uint32_t id; int kv_class; } ht_kv_todo;
struct ht_batch_view { uint32_t rows, n_table; const int32_t *pos; const uint16_t *seq;
                       const uint32_t *const *page; };
uint32_t ht_kv_todo_of(const ht_kv *, const struct ht_batch_view *, ht_kv_todo *out, uint32_t cap);
#endif
