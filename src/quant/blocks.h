/* blocks.h - byte layouts of the block formats (ggml's, as GGUF stores them) and the few scalar
 * steps that every codec shares. All members are byte arrays: a block may lie at any address.
 * Numbers are little-endian; so must the host be. In the drawings "lo" is the low nibble of a
 * byte. */
#ifndef HT_QUANT_BLOCKS_H
#define HT_QUANT_BLOCKS_H
#include "quant/quant.h"
#include <assert.h>
#include <math.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "model files are read in place");

enum { HT_QK = 32, HT_QK_K = 256 }; /* elements of a plain block and of a K super-block */

/* x = d*q, q int8 */
typedef struct {
    uint8_t d[2];
    int8_t q[32];
} ht_block_q8_0;
/* x = d*(q-8); q[j] holds element j (lo) and j+16 (hi) */
typedef struct {
    uint8_t d[2], q[16];
} ht_block_q4_0;
/* x = d*q + m; nibbles as q4_0 */
typedef struct {
    uint8_t d[2], m[2], q[16];
} ht_block_q4_1;
/* x = d*(q-16); low four bits as q4_0, the fifth of element j is bit j of the 32-bit h */
typedef struct {
    uint8_t d[2], h[4], q[16];
} ht_block_q5_0;
/* x = d*q + m; bits as q5_0 */
typedef struct {
    uint8_t d[2], m[2], h[4], q[16];
} ht_block_q5_1;
/* 16 groups of 16: x = d*(sc&15)*q - dmin*(sc>>4); two bits: byte 32*a+l holds elements
 * 128*a + l + {0,32,64,96} from bit 0 upwards */
typedef struct {
    uint8_t sc[16], q[64], d[2], dmin[2];
} ht_block_q2_k;
/* 16 groups of 16: x = d*(sc-32)*(q-4); low two bits as q2_k, the third is bit e/32 of h[e%32];
 * six-bit sc: see ht_q3k_scale() */
typedef struct {
    uint8_t h[32], q[64], sc[12], d[2];
} ht_block_q3_k;
/* 8 groups of 32: x = d*sc*q - dmin*m; byte 32*a+l holds elements 64*a+l (lo) and 64*a+32+l (hi);
 * six-bit sc and m: see ht_q4k_scale() */
typedef struct {
    uint8_t d[2], dmin[2], sc[12], q[128];
} ht_block_q4_k;
/* as q4_k with a fifth bit: of element e it is bit e/32 of h[e%32] */
typedef struct {
    uint8_t d[2], dmin[2], sc[12], h[32], q[128];
} ht_block_q5_k;
/* 16 groups of 16: x = d*sc*(q-32), sc int8; per half of 128: lo[l] holds elements l (lo) and l+64
 * (hi), lo[l+32] holds l+32 and l+96; hi[l] holds the top two bits of l + {0,32,64,96} */
typedef struct {
    uint8_t lo[128], hi[64];
    int8_t sc[16];
    uint8_t d[2];
} ht_block_q6_k;
/* x = d*codebook[q]; nibbles as q4_0 */
typedef struct {
    uint8_t d[2], q[16];
} ht_block_iq4_nl;
/* x = 2^(e-127) * E2M1 value (OCP MX 1.0); nibbles as q4_0 */
typedef struct {
    uint8_t e, q[16];
} ht_block_mxfp4;

static_assert(sizeof(ht_block_q8_0) == 34 && sizeof(ht_block_q4_0) == 18, "q8_0, q4_0");
static_assert(sizeof(ht_block_q4_1) == 20 && sizeof(ht_block_q5_0) == 22, "q4_1, q5_0");
static_assert(sizeof(ht_block_q5_1) == 24 && sizeof(ht_block_q2_k) == 84, "q5_1, q2_k");
static_assert(sizeof(ht_block_q3_k) == 110 && sizeof(ht_block_q4_k) == 144, "q3_k, q4_k");
static_assert(sizeof(ht_block_q5_k) == 176 && sizeof(ht_block_q6_k) == 210, "q5_k, q6_k");
static_assert(sizeof(ht_block_iq4_nl) == 18 && sizeof(ht_block_mxfp4) == 17, "iq4_nl, mxfp4");

extern const int8_t ht_iq4_nl_values[16]; /* ascending */

static inline float ht_load_f16(const uint8_t p[2])
{
    return ht_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}
/* Stores v rounded to half precision and returns what a decoder will read back. */
static inline float ht_store_f16(uint8_t p[2], float v)
{
    uint16_t h = ht_f32_to_f16(v);
    p[0] = (uint8_t)(h & 0xff);
    p[1] = (uint8_t)(h >> 8);
    return ht_f16_to_f32(h);
}
static inline float ht_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint32_t ht_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
/* 2^(e-128): half of the E8M0 scale, which goes with twice the E2M1 values (integers). The two
 * smallest are subnormal; 255 is no NaN here but 2^127, as ggml has it. */
static inline float ht_e8m0_half(uint8_t e)
{
    return ht_bits_f32(e < 2 ? (uint32_t)0x200000 << e : (uint32_t)(e - 1) << 23);
}
/* Nearest integer, ties to even; 0 for NaN, saturated at +-2^22 (callers clamp far below that). */
static inline int ht_round_even(float v)
{
    if (!(fabsf(v) <= 4194304.0f)) return v > 0 ? 4194304 : v < 0 ? -4194304 : 0;
    return (int)lrintf(v);
}
static inline int ht_clamp(int v, int lo, int hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

/* Six-bit scale and minimum of group j (0..7) of q4_k and q5_k. Bytes 0-3: sc of 0-3; 4-7: m of
 * 0-3; 8-11: low nibbles sc of 4-7, high nibbles m of 4-7, whose top two bits sit above those of
 * 0-3. */
static inline void ht_q4k_scale(const uint8_t sc[12], int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = sc[j] & 63;
        *min = sc[j + 4] & 63;
    } else {
        *scale = (sc[j + 4] & 15) | (sc[j - 4] >> 6) << 4;
        *min = (sc[j + 4] >> 4) | (sc[j] >> 6) << 4;
    }
}
/* Signed scale of group j (0..15) of q3_k. Low nibbles: bytes 0-7 (lo: 0-7, hi: 8-15); top two bits
 * of group j: bits 2*(j/4).. of byte 8+j%4. */
static inline int ht_q3k_scale(const uint8_t sc[12], int j)
{
    int lo = j < 8 ? sc[j] & 15 : sc[j - 8] >> 4;
    return (lo | (sc[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
}

/* The codecs of the table in type.c. n is a multiple of the format's block. */
#define HT_CODEC(t)                                                                                \
    void quant__dec_##t(const void *src, float *dst, size_t n);                                    \
    void quant__enc_##t(const float *src, void *dst, size_t n)
HT_CODEC(f32);
HT_CODEC(f16);
HT_CODEC(bf16);
HT_CODEC(q8_0);
HT_CODEC(q4_0);
HT_CODEC(q4_1);
HT_CODEC(q5_0);
HT_CODEC(q5_1);
HT_CODEC(q2_k);
HT_CODEC(q3_k);
HT_CODEC(q4_k);
HT_CODEC(q5_k);
HT_CODEC(q6_k);
HT_CODEC(iq4_nl);
HT_CODEC(mxfp4);
#undef HT_CODEC
void quant__dec_i32(const void *src, float *dst, size_t n);
#endif
