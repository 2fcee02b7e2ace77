/* quant.h - tensor types: the block formats of GGUF (ggml), their scalar encode and decode, which
 * are the definition every kernel is checked against. One .c per format family. */
#ifndef HT_QUANT_H
#define HT_QUANT_H
#include "core/err.h"
#include <stdbool.h>

enum ht_type {
    HT_F32, HT_F16, HT_BF16, HT_Q8_0, HT_Q4_0, HT_Q4_1, HT_Q5_0, HT_Q5_1, HT_Q2_K, HT_Q3_K, HT_Q4_K,
    HT_Q5_K, HT_Q6_K, HT_IQ4_NL, HT_MXFP4, HT_I32, HT_TYPES
};
/* How the blocks of a [rows,cols] tensor lie in memory. */
enum ht_layout {
    HT_LAYOUT_ROWS,           /* "rows/1": row after row, blocks in order: GGUF's own             */
    HT_LAYOUT_R16,            /* "r16/1", of q6_k "r16/2": 16 rows interleaved, see r16.h         */
    HT_LAYOUTS
};
typedef struct {
    const char *name;         /* "q4_0"                                                           */
    uint32_t ggml;            /* GGUF's type number                                               */
    uint16_t block, bytes;    /* elements and bytes of a block                                    */
    void (*decode)(const void *src, float *dst, size_t n);        /* n: a multiple of block       */
    void (*encode)(const float *src, void *dst, size_t n);        /* NULL: decode only            */
} ht_type_info;
extern const ht_type_info ht_types[HT_TYPES];
const ht_type_info *ht_type_of(int type);              /* NULL when out of range                  */
int ht_type_by_name(const char *name);                 /* -1: none                                */
int ht_type_by_ggml(uint32_t ggml);                    /* -1: unsupported                         */
const char *ht_ggml_name(uint32_t ggml);               /* "IQ2_XXS" for messages; "type 99"       */
/* How tensors of a type lie in a layout: a name changes when the order of its bytes does, which
 * q6_k's has ("r16/1" of q6_k is no longer read). by_name: -1 when unknown, or not of that type.
 * Of a whole file the name is that of HT_F32. */
const char *ht_layout_name(int layout, int type);      /* "rows/1"                                */
int ht_layout_by_name(const char *name, int type);
/* Bytes of one row of cols elements (cols a multiple of the block); false on overflow or misfit. */
bool ht_row_bytes(int type, uint64_t cols, uint64_t *out);

float ht_f16_to_f32(uint16_t);
uint16_t ht_f32_to_f16(float);                         /* round to nearest even                   */
float ht_bf16_to_f32(uint16_t);
uint16_t ht_f32_to_bf16(float);                        /* round to nearest even, NaN kept         */

/* Activation quantisation of --act q8: groups of 32, symmetric int8, d = amax/127 kept in f32.
 * x [n] -> q [n], d [n/32], sum [n/32] = sum of q of the group. n a multiple of 32. */
void ht_act_q8(const float *x, size_t n, int8_t *q, float *d, int32_t *sum);
#endif
