/* r16.h - the interleaved layout "r16/1" (of q6_k "r16/2"): tiles of 16 rows, so that one vector
 * register holds the same column of 16 rows and a dot product is one fused multiply-add chain per
 * row in ascending column order, whatever the number of tokens, threads or the ISA. Rows past the
 * last are zero blocks, so a matrix takes the bytes of its rows/1 form with the rows rounded up to
 * 16 (bf16: columns to 2). (The exact byte order per type is drawn in r16.c.) */
#ifndef HT_QUANT_R16_H
#define HT_QUANT_R16_H
#include "quant/quant.h"

enum { HT_R16_ROWS = 16 };
/* The type that `type` takes in r16 (itself where it has a form; a lossless wider one otherwise).
 * -1: not a weight type. */
int ht_r16_type(int type);
/* Of a type that has an r16 form: columns of the smallest group of bytes that stand together, and
 * the bytes of that group for 16 rows. 0 and 0 for other types. */
void ht_r16_group(int type, uint32_t *cols, uint32_t *bytes);
/* Bytes of a tile of 16 rows, of a type with an r16 form; 0: misfit or overflow. */
uint64_t ht_r16_tile_bytes(int type, uint64_t cols);
/* Bytes of a [rows,cols] matrix of r16 type `type`; false on misfit or overflow. */
bool ht_r16_bytes(int type, uint64_t rows, uint64_t cols, uint64_t *out);
/* Interleave tiles [tile0, tile1) (16 rows each) of a rows/1 matrix of src_type into dst, which is
 * the whole matrix's r16 memory of type ht_r16_type(src_type). Any thread, disjoint tiles. */
void ht_r16_pack(int src_type, const void *src, uint64_t rows, uint64_t cols, uint64_t tile0,
                 uint64_t tile1, void *dst);
/* The level (0..63) of column k (0..255) of row r (0..15) of a q6_k group at g. */
int ht_r16_q6_level(const uint8_t *g, int r, int k);
/* Row r of an r16 matrix as f32 [cols]. */
void ht_r16_row(int type, const void *base, uint64_t rows, uint64_t cols, uint64_t r, float *out);
#endif
