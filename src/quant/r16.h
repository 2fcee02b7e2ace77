/* r16.h - the interleaved layout "r16/1": tiles of 16 rows, so that one vector register holds the same
 * column of 16 rows and a dot product is one fused multiply-add chain per row in ascending column
 * order, whatever the number of tokens, threads or the ISA. Rows past the last are zero blocks.
 * (The exact byte order per type is drawn in r16.c.) */
#ifndef HT_QUANT_R16_H
#define HT_QUANT_R16_H
#include "quant/quant.h"

/* The type that `type` takes in r16 (itself where it has a form; a lossless wider one otherwise). */
int ht_r16_type(int type);
/* Bytes of a [rows,cols] matrix of r16 type `type`; false on misfit or overflow. */
bool ht_r16_bytes(int type, uint64_t rows, uint64_t cols, uint64_t *out);
/* Interleave tiles [tile0, tile1) (16 rows each) of a rows/1 matrix of src_type into dst, which is the
 * whole matrix's r16 memory of type ht_r16_type(src_type). Any thread, disjoint tiles. */
void ht_r16_pack(int src_type, const void *src, uint64_t rows, uint64_t cols, uint64_t tile0,
                 uint64_t tile1, void *dst);
/* Row r of an r16 matrix as f32 [cols]. */
void ht_r16_row(int type, const void *base, uint64_t rows, uint64_t cols, uint64_t r, float *out);
#endif
