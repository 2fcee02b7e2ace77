/* r16.c - rows/1 to r16/1 and back; the definition of the bytes that the cpu kernels read.
 *
 * A matrix is a run of tiles of 16 rows, a tile a run of groups along the columns, least column
 * first. Lane r belongs to row r; "x[16]" is one item per lane, side by side. All little-endian.
 *
 *   f32   1 column    f32 w[16]
 *   f16   1 column    f16 w[16]
 *   bf16  2 columns   u32 w[16]        low half the even column, high half the odd one
 *   q8_0  32 columns  f16 d[16]; u32 q[8][16]       byte j of q[c]: column 4c+j, plus 128
 *   q4_0  32 columns  f16 d[16]; u32 q[4][16]       byte j of q[c]: columns 8c+j (low), 8c+4+j
 *   (high)
 *   q4_1  32 columns  f16 d[16]; f16 m[16]; u32 q[4][16]
 *   q4_k  256 columns f16 d[16]; f16 dmin[16]; u32 s[3][16]; u32 q[32][16]
 *                     s[0], s[1]: low four bits of scale and of minimum j at bit 4j; s[2]: their
 *                     top
 *                     two bits at bit 2j and at bit 16+2j
 *   q6_k  256 columns f16 d[16]; i8 sc[16 groups][16]; u32 q[16 groups][3][16]
 *                     byte j of q[g][c], c = 0..2: column 16g+4c+j (low six bits) and bits 2c
 *                     and 2c+1 of column 16g+12+j (high two)
 *
 * A lane of 32 bits feeds both arithmetics: one `and` isolates a column for the f32 chain, and its
 * four bytes are what an 8-bit dot-product instruction takes. */
#include "quant/r16.h"
#include "quant/blocks.h"

enum { LANES = HT_R16_ROWS };

int ht_r16_type(int type)
{
    switch (type) {
    case HT_F32:
    case HT_F16:
    case HT_BF16:
    case HT_Q8_0:
    case HT_Q4_0:
    case HT_Q4_1:
    case HT_Q4_K:
    case HT_Q6_K: return type;
    case HT_Q5_0:
    case HT_IQ4_NL: return HT_Q8_0; /* half-precision scale times an int8 */
    case HT_Q3_K: return HT_Q6_K;   /* int8 scales of 16, levels -4..3 */
    case HT_MXFP4: return HT_BF16;  /* two significant bits, any exponent */
    case HT_Q5_1:
    case HT_Q2_K:
    case HT_Q5_K: return HT_F32;
    default: return -1;
    }
}

void ht_r16_group(int type, uint32_t *cols, uint32_t *bytes)
{
    static const struct {
        uint16_t cols, bytes;
    } of[HT_TYPES] = {
        [HT_F32] = {1, 64},      [HT_F16] = {1, 32},      [HT_BF16] = {2, 64},
        [HT_Q8_0] = {32, 544},   [HT_Q4_0] = {32, 288},   [HT_Q4_1] = {32, 320},
        [HT_Q4_K] = {256, 2304}, [HT_Q6_K] = {256, 3360},
    };
    bool known = type >= 0 && type < HT_TYPES;
    *cols = known ? of[type].cols : 0;
    *bytes = known ? of[type].bytes : 0;
}

uint64_t ht_r16_tile_bytes(int type, uint64_t cols)
{
    uint32_t gc, gb;
    ht_r16_group(type, &gc, &gb);
    if (!gc || cols == 0 || cols > UINT32_MAX) return 0;
    if (type != HT_BF16 && cols % gc) return 0;
    return (cols + gc - 1) / gc * gb;
}

bool ht_r16_bytes(int type, uint64_t rows, uint64_t cols, uint64_t *out)
{
    uint64_t tile = ht_r16_tile_bytes(type, cols), tiles = rows / LANES + (rows % LANES != 0);
    if (!tile || rows == 0 || tiles > UINT64_MAX / tile) return false;
    *out = tiles * tile;
    return true;
}

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
/* Item r of the lane vector at p. */
static void put32(uint8_t *p, int r, uint32_t v)
{
    memcpy(p + 4 * r, &v, sizeof v);
}
static void put16(uint8_t *p, int r, const uint8_t v[2])
{
    memcpy(p + 2 * r, v, 2);
}

enum { NIBBLES = 0x0f0f0f0f };

/* ---- one row of one group into lane r; g is the group's memory ------------------------------- */

static void put_q8_0(uint8_t *g, int r, const uint8_t d[2], const int8_t *q)
{
    put16(g, r, d);
    for (int c = 0; c < 8; c++)
        put32(g + 32 + 64 * c, r, get32((const uint8_t *)q + 4 * c) ^ 0x80808080U);
}

/* The 16 nibble bytes of q4_0 and q4_1: the first half of the columns is in the low nibbles. */
static void put_nibbles(uint8_t *g, int r, const uint8_t q[16])
{
    for (int c = 0; c < 2; c++) {
        uint32_t a = get32(q + 8 * c), b = get32(q + 8 * c + 4);
        put32(g + 64 * c, r, (a & NIBBLES) | (b & NIBBLES) << 4);
        put32(g + 64 * (c + 2), r, (a >> 4 & NIBBLES) | (b & ~(uint32_t)NIBBLES));
    }
}

static void put_q4_k(uint8_t *g, int r, const ht_block_q4_k *b)
{
    uint32_t s0 = 0, s1 = 0, s2 = 0;
    put16(g, r, b->d);
    put16(g + 32, r, b->dmin);
    for (int j = 0; j < 8; j++) {
        int sc, m;
        ht_q4k_scale(b->sc, j, &sc, &m);
        s0 |= ((uint32_t)sc & 15) << 4 * j;
        s1 |= ((uint32_t)m & 15) << 4 * j;
        s2 |= (uint32_t)sc >> 4 << 2 * j | (uint32_t)m >> 4 << (16 + 2 * j);
    }
    put32(g + 64, r, s0);
    put32(g + 128, r, s1);
    put32(g + 192, r, s2);
    for (int c = 0; c < 32; c++) { /* columns 8c..8c+7; of each 64 the first 32 are low nibbles */
        const uint8_t *q = b->q + c / 8 * 32 + c % 4 * 8;
        int shift = c / 4 % 2 * 4;
        put32(g + 256 + 64 * c, r,
              (get32(q) >> shift & NIBBLES) | (get32(q + 4) >> shift & NIBBLES) << 4);
    }
}

static void put_q6_k(uint8_t *g, int r, const uint8_t d[2], const int8_t sc[16], const uint8_t *lev)
{
    put16(g, r, d);
    for (int j = 0; j < 16; j++) g[32 + LANES * j + r] = (uint8_t)sc[j];
    for (int c = 0; c < 48; c++) {
        const uint8_t *l = lev + c / 3 * 16;
        uint32_t last = get32(l + 12) >> c % 3 * 2 & 0x03030303U;
        put32(g + 288 + 64 * c, r, get32(l + c % 3 * 4) | last << 6);
    }
}

static void levels_q6_k(const ht_block_q6_k *b, uint8_t lev[256])
{
    for (int e = 0; e < 256; e++) {
        int half = e / 128, part = e / 32 % 4;
        int lo = b->lo[half * 64 + e % 64] >> 4 * (part / 2) & 15;
        int hi = b->hi[half * 32 + e % 32] >> 2 * part & 3;
        lev[e] = (uint8_t)(lo | hi << 4);
    }
}

/* Q3_K as Q6_K: the scale of a group of 16 is an int8 already, level q-4 becomes 28+q. */
static void from_q3_k(uint8_t *g, int r, const ht_block_q3_k *b)
{
    uint8_t lev[256];
    int8_t sc[16];
    for (int j = 0; j < 16; j++) sc[j] = (int8_t)ht_q3k_scale(b->sc, j);
    for (int e = 0; e < 256; e++) {
        int q = b->q[e / 128 * 32 + e % 32] >> 2 * (e / 32 % 4) & 3;
        lev[e] = (uint8_t)(28 + q + 4 * (b->h[e % 32] >> e / 32 & 1));
    }
    put_q6_k(g, r, b->d, sc, lev);
}

static void from_q5_0(uint8_t *g, int r, const ht_block_q5_0 *b)
{
    int8_t q[32];
    for (int j = 0; j < 16; j++) {
        q[j] = (int8_t)(((b->q[j] & 15) | (b->h[j / 8] >> j % 8 & 1) << 4) - 16);
        q[j + 16] = (int8_t)((b->q[j] >> 4 | (b->h[j / 8 + 2] >> j % 8 & 1) << 4) - 16);
    }
    put_q8_0(g, r, b->d, q);
}

static void from_iq4_nl(uint8_t *g, int r, const ht_block_iq4_nl *b)
{
    int8_t q[32];
    for (int j = 0; j < 16; j++) {
        q[j] = ht_iq4_nl_values[b->q[j] & 15];
        q[j + 16] = ht_iq4_nl_values[b->q[j] >> 4];
    }
    put_q8_0(g, r, b->d, q);
}

/* Block i of a source row into lane r of group g. */
static void put_block(int type, uint8_t *g, int r, const uint8_t *row, uint64_t i)
{
    switch (type) {
    case HT_Q8_0: {
        const ht_block_q8_0 *b = (const ht_block_q8_0 *)row + i;
        put_q8_0(g, r, b->d, b->q);
        break;
    }
    case HT_Q5_0: from_q5_0(g, r, (const ht_block_q5_0 *)row + i); break;
    case HT_IQ4_NL: from_iq4_nl(g, r, (const ht_block_iq4_nl *)row + i); break;
    case HT_Q4_0: {
        const ht_block_q4_0 *b = (const ht_block_q4_0 *)row + i;
        put16(g, r, b->d);
        put_nibbles(g + 32, r, b->q);
        break;
    }
    case HT_Q4_1: {
        const ht_block_q4_1 *b = (const ht_block_q4_1 *)row + i;
        put16(g, r, b->d);
        put16(g + 32, r, b->m);
        put_nibbles(g + 64, r, b->q);
        break;
    }
    case HT_Q4_K: put_q4_k(g, r, (const ht_block_q4_k *)row + i); break;
    case HT_Q6_K: {
        const ht_block_q6_k *b = (const ht_block_q6_k *)row + i;
        uint8_t lev[256];
        levels_q6_k(b, lev);
        put_q6_k(g, r, b->d, b->sc, lev);
        break;
    }
    case HT_Q3_K: from_q3_k(g, r, (const ht_block_q3_k *)row + i); break;
    default: break;
    }
}

/* Rows of plain numbers of `size` bytes: a transposition. Two columns of bf16 share a lane. */
static void pack_plain(uint8_t *tile, const uint8_t *src, uint64_t row_bytes, int n, uint64_t cols,
                       int type)
{
    for (uint64_t k0 = 0; k0 < cols;
         k0 += 64) { /* 64: the columns' lines stay in L1 over the rows */
        uint64_t k1 = cols - k0 < 64 ? cols : k0 + 64;
        for (int r = 0; r < n; r++) {
            const uint8_t *s = src + (uint64_t)r * row_bytes;
            if (type == HT_F32)
                for (uint64_t k = k0; k < k1; k++) memcpy(tile + 64 * k + 4 * r, s + 4 * k, 4);
            else if (type == HT_F16)
                for (uint64_t k = k0; k < k1; k++) memcpy(tile + 32 * k + 2 * r, s + 2 * k, 2);
            else
                for (uint64_t k = k0; k < k1; k++)
                    memcpy(tile + 64 * (k / 2) + 4 * r + 2 * (k % 2), s + 2 * k, 2);
        }
    }
}

/* A type without a form of its own, through its decoder, `block` columns at a time, as f32 or
 * bf16. */
static void pack_decoded(uint8_t *tile, int type, const uint8_t *src, uint64_t row_bytes, int n,
                         uint64_t cols)
{
    const ht_type_info *t = &ht_types[type];
    float x[HT_QK_K];
    for (int r = 0; r < n; r++) {
        for (uint64_t k0 = 0; k0 < cols; k0 += t->block) {
            t->decode(src + (uint64_t)r * row_bytes + k0 / t->block * t->bytes, x, t->block);
            for (uint64_t j = 0; j < t->block; j++) {
                uint64_t k = k0 + j;
                if (type == HT_MXFP4) {
                    uint16_t h = ht_f32_to_bf16(x[j]);
                    memcpy(tile + 64 * (k / 2) + 4 * r + 2 * (k % 2), &h, 2);
                } else {
                    memcpy(tile + 64 * k + 4 * r, &x[j], 4);
                }
            }
        }
    }
}

/* What a missing row looks like: bytes whose decoded weights are all 0. With d and m zero any level
 * decodes to 0, and q8_0's stored 0 would be level -128, so it gets the level 0. */
static void clear_tile(int type, uint8_t *tile, uint64_t bytes)
{
    memset(tile, 0, bytes);
    if (type == HT_Q8_0)
        for (uint64_t g = 0; g < bytes; g += 544) memset(tile + g + 32, 0x80, 512);
}

void ht_r16_pack(int src_type, const void *src, uint64_t rows, uint64_t cols, uint64_t tile0,
                 uint64_t tile1, void *dst)
{
    int type = ht_r16_type(src_type);
    uint64_t row_bytes, tile_bytes = type < 0 ? 0 : ht_r16_tile_bytes(type, cols);
    uint32_t gc, gb;
    if (!tile_bytes || !ht_row_bytes(src_type, cols, &row_bytes)) return;
    ht_r16_group(type, &gc, &gb);
    for (uint64_t t = tile0; t < tile1 && t * LANES < rows; t++) {
        uint8_t *tile = (uint8_t *)dst + t * tile_bytes;
        const uint8_t *s = (const uint8_t *)src + t * LANES * row_bytes;
        int n = (int)(rows - t * LANES < LANES ? rows - t * LANES : LANES);
        if (n < LANES || (type == HT_BF16 && cols % 2)) clear_tile(type, tile, tile_bytes);
        if (src_type == HT_F32 || src_type == HT_F16 || src_type == HT_BF16) {
            pack_plain(tile, s, row_bytes, n, cols, src_type);
        } else if (type == HT_F32 || type == HT_BF16) {
            pack_decoded(tile, src_type, s, row_bytes, n, cols);
        } else {
            for (uint64_t i = 0; i < cols / gc; i++)
                for (int r = 0; r < n; r++)
                    put_block(src_type, tile + i * gb, r, s + (uint64_t)r * row_bytes, i);
        }
    }
}

/* ---- back to f32 ----------------------------------------------------------------------------- */

static uint32_t lane(const uint8_t *p, int r)
{
    return get32(p + 4 * r);
}
static float half_at(const uint8_t *p, int r)
{
    return ht_load_f16(p + 2 * r);
}
/* Level of column j (0..7) of a nibble lane. */
static int nibble(uint32_t v, int j)
{
    return (int)(v >> (8 * (j % 4) + 4 * (j / 4)) & 15);
}

static void row_q4(const uint8_t *q, int r, float d, float m, int zero, float *out)
{
    for (int k = 0; k < 32; k++)
        out[k] = (float)(nibble(lane(q + 64 * (k / 8), r), k % 8) - zero) * d + m;
}

static void row_q4_k(const uint8_t *g, int r, float *out)
{
    float d = half_at(g, r), dmin = half_at(g + 32, r);
    uint32_t s0 = lane(g + 64, r), s1 = lane(g + 128, r), s2 = lane(g + 192, r);
    for (int j = 0; j < 8; j++) {
        uint32_t sc = (s0 >> 4 * j & 15) | (s2 >> 2 * j & 3) << 4;
        uint32_t m = (s1 >> 4 * j & 15) | (s2 >> (16 + 2 * j) & 3) << 4;
        float scale = d * (float)sc, min = dmin * (float)m;
        row_q4(g + 256 + 256 * j, r, scale, -min, 0, out + 32 * j);
    }
}

int ht_r16_q6_level(const uint8_t *g, int r, int k)
{
    const uint8_t *q = g + 288 + 192 * (k / 16) + k % 4 + 4 * r;
    if (k % 16 < 12) return q[64 * (k % 16 / 4)] & 63;
    return q[0] >> 6 | q[64] >> 6 << 2 | q[128] >> 6 << 4;
}

static void row_q6_k(const uint8_t *g, int r, float *out)
{
    float d = half_at(g, r);
    for (int k = 0; k < 256; k++) {
        int sc = (int8_t)g[32 + LANES * (k / 16) + r];
        out[k] = d * (float)sc * (float)(ht_r16_q6_level(g, r, k) - 32);
    }
}

static void row_group(int type, const uint8_t *g, int r, float *out)
{
    switch (type) {
    case HT_F32: memcpy(out, g + 4 * r, 4); break;
    case HT_F16: out[0] = half_at(g, r); break;
    case HT_Q8_0:
        for (int k = 0; k < 32; k++)
            out[k] = (float)((int)g[32 + 64 * (k / 4) + 4 * r + k % 4] - 128) * half_at(g, r);
        break;
    case HT_Q4_0: row_q4(g + 32, r, half_at(g, r), 0.0f, 8, out); break;
    case HT_Q4_1: row_q4(g + 64, r, half_at(g, r), half_at(g + 32, r), 0, out); break;
    case HT_Q4_K: row_q4_k(g, r, out); break;
    case HT_Q6_K: row_q6_k(g, r, out); break;
    default: break;
    }
}

void ht_r16_row(int type, const void *base, uint64_t rows, uint64_t cols, uint64_t r, float *out)
{
    uint64_t tile_bytes = ht_r16_tile_bytes(type, cols);
    uint32_t gc, gb;
    if (!tile_bytes || r >= rows) return;
    ht_r16_group(type, &gc, &gb);
    const uint8_t *tile = (const uint8_t *)base + r / LANES * tile_bytes;
    int l = (int)(r % LANES);
    if (type == HT_BF16) {
        for (uint64_t k = 0; k < cols; k++)
            out[k] = ht_bits_f32(k % 2 ? lane(tile + 64 * (k / 2), l) & 0xffff0000U
                                       : lane(tile + 64 * (k / 2), l) << 16);
        return;
    }
    for (uint64_t i = 0; i < cols / gc; i++) row_group(type, tile + i * gb, l, out + i * gc);
}
