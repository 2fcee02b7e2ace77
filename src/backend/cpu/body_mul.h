/* body_mul.h - matrix products of --act f32 on the operations of a simd.h; included once by each
 * instruction set. kern.h says what is computed, quant/r16.c draws the bytes.
 *
 * A level at bit e of a lane is isolated by one `and` and converted where it stands: it is then
 * level*2^e, and its activation comes as x*2^-e (`spread`). With scales applied once a group that
 * leaves three vector operations for a vector of 4-bit weights (and, convert, fma) and four for one
 * of 8 bits, which bears its sign.
 *
 * The including file makes the kernels of its types with MUL_TYPE and enters them with
 * MUL_ENTRY; the types are spread over files because each is a lot of straight code to compile. */
#include "backend/cpu/unroll.h"

/* Bytes that gemv and rows ask for ahead of use, all tiles of a pass together: of 4, 8 and 16 KiB
 * the last did best where neighbours make memory slow. Decoding keeps the core
 * so busy that its window reaches only a few hundred bytes. */
enum { AHEAD = 16384 };

/* By type, constants once inlined: columns of a group (one scale), of a block (a run of bytes). */
KERN int group_cols(const int type)
{
    return type == HT_Q6_K ? 16 : 32;
}
KERN int block_cols(const int type)
{
    return type == HT_Q4_K || type == HT_Q6_K ? 256 : 32;
}
KERN int is_plain(const int type)
{
    return type == HT_F32 || type == HT_F16 || type == HT_BF16;
}
KERN int has_offset(const int type)
{
    return type == HT_Q4_0 || type == HT_Q4_1 || type == HT_Q4_K;
}
/* Levels stay unsigned, and a chain begins at what takes 32 off each of them. */
KERN int has_start(const int type)
{
    return type == HT_Q6_K;
}
/* Where column k (the first of a block) of a tile is. */
KERN size_t col_off(const int type, uint32_t k)
{
    switch (type) {
    case HT_F32: return (size_t)64 * k;
    case HT_F16: return (size_t)32 * k;
    case HT_BF16: return (size_t)64 * (k / 2);
    case HT_Q8_0: return (size_t)544 * (k / 32);
    case HT_Q4_0: return (size_t)288 * (k / 32);
    case HT_Q4_1: return (size_t)320 * (k / 32);
    case HT_Q4_K: return (size_t)2304 * (k / 256);
    default: return (size_t)3360 * (k / 256);
    }
}

KERN void scales_q4_k(const uint8_t *w, cpu_scale *g)
{
    for (int v = 0; v < NV; v++) {
        vf d = vf_f16(w + 2 * VL * v), dmin = vf_sub(vf_zero(), vf_f16(w + 32 + 2 * VL * v));
        vi s0 = vi_load(w + 64 + 4 * VL * v), s1 = vi_load(w + 128 + 4 * VL * v);
        vi s2 = vi_load(w + 192 + 4 * VL * v);
        const vi low = vi_set1(15), top = vi_set1(0x30);
        vi sc_top = vi_sll(s2, 4), m_top = vi_srl(s2, 12);
        for (int j = 0; j < 8; j++) {
            vi sc = vi_or(vi_and(vi_srl(s0, 4 * j), low), vi_and(vi_srl(sc_top, 2 * j), top));
            vi m = vi_or(vi_and(vi_srl(s1, 4 * j), low), vi_and(vi_srl(m_top, 2 * j), top));
            vf_store(g[j].d + VL * v, vf_mul(d, vf_of_vi(sc)));
            vf_store(g[j].m + VL * v, vf_mul(dmin, vf_of_vi(m)));
        }
    }
}

/* The scales of a block's groups. */
KERN void scales(const int type, const uint8_t *w, cpu_scale *g)
{
    if (type == HT_Q4_K) {
        scales_q4_k(w, g);
        return;
    }
    for (int v = 0; v < NV; v++) {
        vf d = vf_f16(w + 2 * VL * v);
        if (type == HT_Q6_K) {
            for (int j = 0; j < 16; j++)
                vf_store(g[j].d + VL * v, vf_mul(d, vf_i8(w + 32 + CPU_LANES * j + VL * v)));
            continue;
        }
        vf_store(g->d + VL * v, d);
        if (type == HT_Q4_0) vf_store(g->m + VL * v, vf_mul(d, vf_set1(-8.0f)));
        if (type == HT_Q4_1) vf_store(g->m + VL * v, vf_f16(w + 32 + 2 * VL * v));
    }
}

/* Lanes that hold columns 4q .. 4q+3 of group n of a block; of 4-bit types also those of q^1. */
KERN vi quad(const int type, const uint8_t *w, const int n, const int q, const int v)
{
    const int at = 4 * VL * v;
    if (type == HT_Q8_0) return vi_load(w + 32 + 64 * q + at);
    if (type == HT_Q6_K) {
        const uint8_t *g = w + 288 + 192 * n + at;
        if (q < 3) return vi_load(g + 64 * q);
        /* Loaded again: compilers would keep all three in registers until here. */
        __asm__("" : "+r"(g));
        vi a = vi_and(vi_srl(vi_load(g), 6), vi_set1(0x03030303));
        vi b = vi_and(vi_srl(vi_load(g + 64), 4), vi_set1(0x0c0c0c0c));
        vi c = vi_and(vi_srl(vi_load(g + 128), 2), vi_set1(0x30303030));
        return vi_or(vi_or(a, b), c);
    }
    const uint8_t *p = type == HT_Q4_0 ? w + 32 : type == HT_Q4_1 ? w + 64 : w + 256 + 256 * n;
    return vi_load(p + 64 * (q / 2) + at);
}

/* Column 4q+j of loaded lanes, as the level where it stands. */
KERN vf level(const int type, vi b, const int q, const int j)
{
    if (type == HT_Q6_K) return vf_of_vi(vi_and(b, vi_set1(63U << 8 * j)));
    if (type == HT_Q8_0)
        return vf_of_vi(vi_add(vi_and(b, vi_set1(255U << 8 * j)), vi_set1(0U - (128U << 8 * j))));
    if (q % 2 && j == 3) return vf_of_vi(vi_srl(b, 28));
    return vf_of_vi(vi_and(b, vi_set1(15U << (8 * j + 4 * (q % 2)))));
}

/* Weights of column k + j of a plain type; k even. */
KERN vf plain_w(const int type, const uint8_t *w, uint32_t k, const uint32_t j, int v)
{
    if (type == HT_F32)
        return vf_load((const float *)(const void *)(w + (size_t)64 * (k + j)) + VL * v);
    if (type == HT_F16) return vf_f16(w + (size_t)32 * (k + j) + 2 * VL * v);
    vi p = vi_load(w + (size_t)64 * ((k + j) / 2) + 4 * VL * v);
    return vf_bits(j % 2 ? vi_and(p, vi_set1(0xffff0000U)) : vi_sll(p, 16));
}

/* ---- products of `tiles` tiles and nt tokens; y: tile i, token t at y + i*tile_ld + t*ldc ---- */

/* A column of all tiles times all tokens. Tokens are the outer loop: the other way round the
 * compiler keeps every token's value for the next vector, and spills accumulators for it. */
KERN void fma_column(const int tiles, const int nt, const vf *a, const float *x, size_t ldx,
                     vf *acc)
{
    UNROLL(8)
    for (int t = 0; t < nt; t++) {
        vf b = vf_set1(x[(size_t)t * ldx]);
        UNROLL(4)
        for (int i = 0; i < tiles; i++) UNROLL(2)
        for (int v = 0; v < NV; v++) {
            vf *c = &acc[(i * nt + t) * NV + v];
            *c = vf_fma(a[i * NV + v], b, *c);
        }
    }
}

/* One chain: at most CPU_KC columns of a plain type. */
KERN void chain_plain(const int type, const int tiles, const int nt, const uint8_t *w,
                      size_t tile_bytes, uint32_t kn, const float *x, size_t ldx, vf *acc)
{
    uint32_t k = 0;
    for (; k + 4 <= kn; k += 4) {
        /* Four tiles keep enough lines in flight by themselves; a single one does not. */
        if (tiles == 1) {
            UNROLL(4)
            for (size_t j = 0; j < col_off(type, 4); j += 64)
                __builtin_prefetch(w + col_off(type, k) + AHEAD / 4 + j);
        }
        UNROLL(4)
        for (uint32_t j = 0; j < 4; j++) {
            vf a[4 * NV];
            UNROLL(4)
            for (int i = 0; i < tiles; i++) UNROLL(2)
            for (int v = 0; v < NV; v++) {
                const int at = i * NV + v;
                a[at] = plain_w(type, w + tile_bytes * (size_t)i, k, j, v);
                if (nt == 1) acc[at] = vf_fma(a[at], vf_set1(x[k + j]), acc[at]);
            }
            if (nt > 1) fma_column(tiles, nt, a, x + k + j, ldx, acc);
        }
    }
    for (; k < kn; k++)
        for (int i = 0; i < tiles; i++)
            for (int v = 0; v < NV; v++) {
                vf a = k % 2 ? plain_w(type, w + tile_bytes * (size_t)i, k - 1, 1, v)
                             : plain_w(type, w + tile_bytes * (size_t)i, k, 0, v);
                for (int t = 0; t < nt; t++) {
                    vf *c = &acc[(i * nt + t) * NV + v];
                    *c = vf_fma(a, vf_set1(x[(size_t)t * ldx + k]), *c);
                }
            }
}

KERN void product_plain(const int type, const int tiles, const int nt, const uint8_t *w,
                        size_t tile_bytes, uint32_t k, const float *x, size_t ldx, float *y,
                        size_t tile_ld, size_t ldc)
{
    for (uint32_t k0 = 0; k0 < k; k0 += CPU_KC) {
        uint32_t kn = k - k0 < CPU_KC ? k - k0 : CPU_KC;
        vf acc[8 * NV];
        UNROLL(16)
        for (int i = 0; i < tiles * nt * NV; i++) acc[i] = vf_zero();
        chain_plain(type, tiles, nt, w + col_off(type, k0), tile_bytes, kn, x + k0, ldx, acc);
        UNROLL(8)
        for (int i = 0; i < tiles; i++) UNROLL(8)
        for (int t = 0; t < nt; t++) UNROLL(2)
        for (int v = 0; v < NV; v++) {
            float *c = y + (size_t)i * tile_ld + (size_t)t * ldc + VL * v;
            vf a = acc[(i * nt + t) * NV + v];
            vf_store(c, k0 ? vf_add(vf_load(c), a) : a);
        }
    }
}

/* Group n of a block: acc = its chains, which for has_start types begin at each token's *start.
 * Columns are the outer loop and tiles the inner one, so that neighbouring multiply-adds belong to
 * different chains. */
KERN void group_chain(const int type, const int tiles, const int nt, const uint8_t *w,
                      size_t tile_bytes, const uint8_t *ahead, const int n, const float *x,
                      const float *start, size_t ldx, vf *acc)
{
    const int gc = group_cols(type), bytes = (int)col_off(type, 256) / 32; /* of eight columns */
    UNROLL(4)
    for (int i = 0; i < tiles; i++) UNROLL(8)
    for (int t = 0; t < nt; t++) UNROLL(2)
    for (int v = 0; v < NV; v++)
        acc[(i * nt + t) * NV + v] = has_start(type) ? vf_set1(start[(size_t)t * ldx]) : vf_zero();
    UNROLL(2)
    for (int u = 0; u < gc / 8; u++) {
        UNROLL(4)
        for (int i = 0; i < tiles; i++) UNROLL(2)
        for (int j = 0; j < (bytes + 32) / 64; j++)
            __builtin_prefetch(ahead + tile_bytes * (size_t)i + (n * gc / 8 + u) * bytes + 64 * j);
        UNROLL(2)
        for (int h = 0; h < 2; h++) {
            const float *xk = x + 8 * u + 4 * h;
            vi b[4 * NV];
            UNROLL(4)
            for (int i = 0; i < tiles; i++) UNROLL(2)
            for (int v = 0; v < NV; v++)
                b[i * NV + v] = quad(type, w + tile_bytes * (size_t)i, n, 2 * u + h, v);
            UNROLL(4)
            for (int j = 0; j < 4; j++) {
                vf a[4 * NV];
                UNROLL(4)
                for (int i = 0; i < tiles; i++) UNROLL(2)
                for (int v = 0; v < NV; v++) {
                    const int at = i * NV + v;
                    a[at] = level(type, b[at], h, j);
                    if (nt == 1) acc[at] = vf_fma(a[at], vf_set1(xk[j]), acc[at]);
                }
                if (nt > 1) fma_column(tiles, nt, a, xk + j, ldx, acc);
            }
        }
    }
}

KERN void product_block(const int type, const int tiles, const int nt, const uint8_t *w,
                        size_t tile_bytes, uint32_t k, const float *x, size_t ldx, float *y,
                        size_t tile_ld, size_t ldc)
{
    const int gc = group_cols(type), bc = block_cols(type);
    const size_t bytes = col_off(type, (uint32_t)bc);
    const uint32_t blocks = k / (uint32_t)bc, far = AHEAD / (uint32_t)(bytes * (size_t)tiles);
    const uint32_t step = far ? far : 1;
    const float *sum = x + k;
    for (uint32_t b = 0; b < blocks; b++, w += bytes) {
        cpu_scale g[4][CPU_GROUPS];
        /* In the order of use: behind a tile's end comes the pass after this one. */
        const uint8_t *ahead =
            w + step * bytes + (b + step < blocks ? 0 : (size_t)(tiles - 1) * tile_bytes);
        UNROLL(4)
        for (int i = 0; i < tiles && gc < bc; i++) scales(type, w + tile_bytes * (size_t)i, g[i]);
        UNROLL(1)
        for (int n = 0; n < bc / gc; n++, x += gc, sum++) {
            vf acc[8 * NV];
            group_chain(type, tiles, nt, w, tile_bytes, ahead, n, x, sum, ldx, acc);
            /* Only now, and sums in memory: all registers belong to the chains. */
            UNROLL(4)
            for (int i = 0; i < tiles && gc == bc; i++)
                scales(type, w + tile_bytes * (size_t)i, g[i]);
            UNROLL(4)
            for (int i = 0; i < tiles; i++) UNROLL(8)
            for (int t = 0; t < nt; t++) UNROLL(2)
            for (int v = 0; v < NV; v++) {
                float *c = y + (size_t)i * tile_ld + (size_t)t * ldc + VL * v;
                vf a = vf_fma(vf_load(g[i][n].d + VL * v), acc[(i * nt + t) * NV + v],
                              b || n ? vf_load(c) : vf_zero());
                if (has_offset(type))
                    a = vf_fma(vf_load(g[i][n].m + VL * v), vf_set1(sum[(size_t)t * ldx]), a);
                vf_store(c, a);
            }
        }
    }
}

KERN void product(const int type, const int tiles, const int nt, const uint8_t *w,
                  size_t tile_bytes, uint32_t k, const float *x, size_t ldx, float *y,
                  size_t tile_ld, size_t ldc)
{
    if (is_plain(type))
        product_plain(type, tiles, nt, w, tile_bytes, k, x, ldx, y, tile_ld, ldc);
    else
        product_block(type, tiles, nt, w, tile_bytes, k, x, ldx, y, tile_ld, ldc);
}

/* Tiles that one pass of gemv takes together: enough independent chains to cover the latency of a
 * fused multiply-add at the rate memory delivers, few enough for the registers. */
KERN int gemv_tiles(const int type)
{
    return is_plain(type) || NV == 1 ? 4 : NV == 2 && has_offset(type) ? 3 : 2;
}

KERN void gemv(const int type, const uint8_t *w, size_t tile_bytes, uint32_t n, uint32_t k,
               const float *x, float *y)
{
    const uint32_t g = (uint32_t)gemv_tiles(type);
    uint32_t i = 0;
    /* Four after threes are two pairs: a tile alone has too few chains. */
    for (; i + g <= n && (g != 3 || n - i != 4); i += g)
        product(type, (int)g, 1, w + tile_bytes * i, tile_bytes, k, x, 0, y + CPU_LANES * i,
                CPU_LANES, 0);
    for (; g == 3 && i + 2 <= n; i += 2)
        product(type, 2, 1, w + tile_bytes * i, tile_bytes, k, x, 0, y + CPU_LANES * i, CPU_LANES,
                0);
    for (; i < n; i++)
        product(type, 1, 1, w + tile_bytes * i, tile_bytes, k, x, 0, y + CPU_LANES * i, CPU_LANES,
                0);
}

KERN void rows(const int type, const uint8_t *w, uint32_t k, const float *x, size_t ldx,
               uint32_t nt, float *c, size_t ldc)
{
#if !CPU_UNROLLED
    product(type, 1, (int)nt, w, 0, k, x, ldx, c, 0, ldc);
#else
    switch (nt) {
    case 2: product(type, 1, 2, w, 0, k, x, ldx, c, 0, ldc); break;
    case 3: product(type, 1, 3, w, 0, k, x, ldx, c, 0, ldc); break;
    case 4: product(type, 1, 4, w, 0, k, x, ldx, c, 0, ldc); break;
    case 5: product(type, 1, 5, w, 0, k, x, ldx, c, 0, ldc); break;
    default: product(type, 1, 6, w, 0, k, x, ldx, c, 0, ldc); break;
    }
#endif
}

KERN void widen(const int type, const uint8_t *w, uint32_t kn, float *panel, cpu_scale *g)
{
    if (is_plain(type)) {
        for (uint32_t k = 0; k < kn; k++)
            for (int v = 0; v < NV; v++)
                vf_store(panel + CPU_LANES * k + VL * v,
                         k % 2 ? plain_w(type, w, k - 1, 1, v) : plain_w(type, w, k, 0, v));
        return;
    }
    const int gc = group_cols(type), bc = block_cols(type);
    for (uint32_t b = 0; b < kn / (uint32_t)bc; b++, w += col_off(type, (uint32_t)bc)) {
        scales(type, w, g);
        UNROLL(1)
        for (int n = 0; n < bc / gc; n++, g++) {
            UNROLL(8)
            for (int q = 0; q < gc / 4; q++) UNROLL(2)
            for (int v = 0; v < NV; v++) {
                vi lanes = quad(type, w, n, q, v);
                UNROLL(4)
                for (int j = 0; j < 4; j++)
                    vf_store(panel + CPU_LANES * (4 * q + j) + VL * v, level(type, lanes, q, j));
            }
            panel += CPU_LANES * gc;
        }
    }
}

#define MUL_TYPE(name, type)                                                                       \
    static void gemv_##name(const uint8_t *w, size_t tile_bytes, uint32_t n, uint32_t k,           \
                            const float *x, float *y)                                              \
    {                                                                                              \
        gemv(type, w, tile_bytes, n, k, x, y);                                                     \
    }                                                                                              \
    static void rows_##name(const uint8_t *w, uint32_t k, const float *x, size_t ldx, uint32_t nt, \
                            float *c, size_t ldc)                                                  \
    {                                                                                              \
        if (nt == 1) gemv_##name(w, 0, 1, k, x, c);                                                \
        else rows(type, w, k, x, ldx, nt, c, ldc);                                                 \
    }                                                                                              \
    static void widen_##name(const uint8_t *w, uint32_t kn, float *panel, cpu_scale *g)            \
    {                                                                                              \
        widen(type, w, kn, panel, g);                                                              \
    }
#define MUL_ENTRY(k, name, type)                                                                   \
    ((k)->gemv[type] = gemv_##name, (k)->rows[type] = rows_##name, (k)->widen[type] = widen_##name)
