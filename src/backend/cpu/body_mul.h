/* body_mul.h - matrix products of --act f32 on the operations of a simd.h; included once by each
 * instruction set. kern.h says what is computed, quant/r16.c draws the bytes.
 *
 * A nibble or byte at bit 8j of a lane is isolated by one `and`, converted as it stands and
 * scaled by d*2^-8j: powers of two move no bits, so fma(level*2^8j, d*2^-8j, m) is the decoded
 * weight, rounded once. That is four vector operations for a vector of weights: and, convert,
 * fma, fma.
 *
 * The including file makes the kernels of its types with MUL_TYPE and enters them with
 * MUL_ENTRY; the types are spread over files because each is a lot of straight code to compile. */
#include "backend/cpu/unroll.h"

/* Scales of a group of columns: s[j] = d*2^-8j, m the offset; lane r belongs to row r. */
typedef struct {
    float s[4][CPU_LANES], m[CPU_LANES];
} scale_t;
enum { GROUPS_MAX = 16 }; /* groups in CPU_KC columns (q6_k has 16 columns each) */
/* A group's columns, and columns of one load of lanes; by type, constants once inlined. */
KERN int group_cols(const int type)
{
    return type == HT_Q6_K ? 16 : type >= HT_Q8_0 ? 32 : 8;
}
KERN int step_cols(const int type)
{
    return type == HT_Q8_0 ? 4 : type == HT_Q6_K ? 16 : 8;
}
KERN int is_plain(const int type)
{
    return type == HT_F32 || type == HT_F16 || type == HT_BF16;
}
/* Where column k (the first of a group of bytes) of a tile is. */
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

KERN void put_scale(scale_t *g, int v, vf d, vf m)
{
    vf_store(g->s[0] + VL * v, d);
    vf_store(g->s[1] + VL * v, vf_mul(d, vf_set1(0x1p-8f)));
    vf_store(g->s[2] + VL * v, vf_mul(d, vf_set1(0x1p-16f)));
    vf_store(g->s[3] + VL * v, vf_mul(d, vf_set1(0x1p-24f)));
    vf_store(g->m + VL * v, m);
}

KERN void scales_q4_k(const uint8_t *w, scale_t *g)
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
            put_scale(&g[j], v, vf_mul(d, vf_of_vi(sc)), vf_mul(dmin, vf_of_vi(m)));
        }
    }
}

/* The scales of kn columns from w on. */
KERN void scales(const int type, const uint8_t *w, uint32_t kn, scale_t *g)
{
    if (type == HT_Q4_K) {
        scales_q4_k(w, g);
        return;
    }
    if (type == HT_Q6_K) {
        for (int v = 0; v < NV; v++) {
            vf d = vf_f16(w + 2 * VL * v);
            for (int j = 0; j < 16; j++) {
                vf s = vf_mul(d, vf_i8(w + 32 + CPU_LANES * j + VL * v));
                put_scale(&g[j], v, s, vf_mul(s, vf_set1(-32.0f)));
            }
        }
        return;
    }
    for (uint32_t i = 0; i < kn / 32; i++) {
        const uint8_t *p = w + col_off(type, 32 * i);
        for (int v = 0; v < NV; v++) {
            vf d = vf_f16(p + 2 * VL * v);
            vf m = type == HT_Q4_1 ? vf_f16(p + 32 + 2 * VL * v)
                                   : vf_mul(d, vf_set1(type == HT_Q4_0 ? -8.0f : -128.0f));
            put_scale(&g[i], v, d, m);
        }
    }
}

/* Lanes of step s of group i: each element of b holds a byte (a low nibble) per column. */
typedef struct {
    vi b[4];
} lanes;
KERN void load_lanes(const int type, const uint8_t *w, uint32_t i, int s, int v, lanes *l)
{
    const int at = 4 * VL * v;
    if (type == HT_Q8_0) {
        l->b[0] = vi_load(w + 544 * i + 32 + 64 * s + at);
    } else if (type == HT_Q6_K) {
        const vi lo = vi_set1(0x0f0f0f0f), hi = vi_set1(0x30303030);
        vi p = vi_load(w + 288 + 128 * i + at), q = vi_load(w + 288 + 128 * i + 64 + at);
        vi h = vi_load(w + 288 + 2048 + 64 * i + at);
        l->b[0] = vi_or(vi_and(p, lo), vi_and(vi_sll(h, 4), hi));
        l->b[1] = vi_or(vi_and(vi_srl(p, 4), lo), vi_and(vi_sll(h, 2), hi));
        l->b[2] = vi_or(vi_and(q, lo), vi_and(h, hi));
        l->b[3] = vi_or(vi_and(vi_srl(q, 4), lo), vi_and(vi_srl(h, 2), hi));
    } else {
        const uint8_t *p = type == HT_Q4_0   ? w + 288 * i + 32
                           : type == HT_Q4_1 ? w + 320 * i + 64
                                             : w + 256 + 256 * i;
        l->b[0] = vi_load(p + 64 * s + at);
        l->b[1] = vi_srl(l->b[0], 4);
    }
}

/* Weights of column j of the loaded lanes. */
KERN vf lane_w(const int type, const lanes *l, const int j, const scale_t *g, int v)
{
    const int byte = j % 4, wide = type == HT_Q8_0 || type == HT_Q6_K;
    vi q;
    if (wide && byte == 3) {
        /* The top byte has no room above it for an unsigned value: shift it down. */
        return vf_fma(vf_of_vi(vi_srl(l->b[j / 4], 24)), vf_load(g->s[0] + VL * v),
                      vf_load(g->m + VL * v));
    }
    q = vi_and(l->b[j / 4], vi_set1((wide ? 255U : 15U) << 8 * byte));
    return vf_fma(vf_of_vi(q), vf_load(g->s[byte] + VL * v), vf_load(g->m + VL * v));
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

/* ---- chains over at most CPU_KC columns, for `tiles` tiles and nt tokens -------------------- */

KERN void chain_plain(const int type, const int tiles, const int nt, const uint8_t *w,
                      size_t tile_bytes, uint32_t kn, const float *x, size_t ldx, vf *acc)
{
    uint32_t k = 0;
    for (; k + 4 <= kn; k += 4) {
        UNROLL(4)
        for (uint32_t j = 0; j < 4; j++) {
            UNROLL(8)
            for (int i = 0; i < tiles; i++) UNROLL(2)
            for (int v = 0; v < NV; v++) {
                vf a = plain_w(type, w + tile_bytes * (size_t)i, k, j, v);
                UNROLL(8)
                for (int t = 0; t < nt; t++) {
                    vf *c = &acc[(i * nt + t) * NV + v];
                    *c = vf_fma(a, vf_set1(x[(size_t)t * ldx + k + j]), *c);
                }
            }
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

/* ahead: where the bytes lie, from w, that the same tile slot reads after this chain. Decoding
 * keeps the core's window so full that it sees only a few hundred bytes ahead: they are asked
 * for here. */
KERN void chain_block(const int type, const int tiles, const int nt, const uint8_t *w,
                      size_t tile_bytes, size_t ahead, uint32_t kn, const float *x, size_t ldx,
                      vf *acc)
{
    _Alignas(64) scale_t g[4][GROUPS_MAX];
    const int gc = group_cols(type), sc = step_cols(type);
    const size_t gb = col_off(type, CPU_KC) / (size_t)(CPU_KC / gc);
    for (int i = 0; i < tiles; i++) scales(type, w + tile_bytes * (size_t)i, kn, g[i]);
    for (uint32_t n = 0; n < kn / (uint32_t)gc; n++) {
        UNROLL(4)
        for (int i = 0; i < tiles; i++) UNROLL(9)
        for (size_t j = 0; j < gb; j += 64)
            __builtin_prefetch(w + tile_bytes * (size_t)i + ahead + gb * n + j);
        UNROLL(1)
        for (int s = 0; s < gc / sc; s++) {
            lanes l[4][NV];
            UNROLL(4)
            for (int i = 0; i < tiles; i++) UNROLL(2)
            for (int v = 0; v < NV; v++)
                load_lanes(type, w + tile_bytes * (size_t)i, n, s, v, &l[i][v]);
            UNROLL(16)
            for (int j = 0; j < sc; j++) {
                const float *xk = x + (size_t)n * (size_t)gc + (size_t)(s * sc + j);
                UNROLL(4)
                for (int i = 0; i < tiles; i++) UNROLL(2)
                for (int v = 0; v < NV; v++) {
                    vf a = lane_w(type, &l[i][v], j, &g[i][n], v);
                    UNROLL(8)
                    for (int t = 0; t < nt; t++) {
                        vf *c = &acc[(i * nt + t) * NV + v];
                        *c = vf_fma(a, vf_set1(xk[(size_t)t * ldx]), *c);
                    }
                }
            }
        }
    }
}

/* y: tile i, token t at y + i*tile_ld + t*ldc. */
KERN void product(const int type, const int tiles, const int nt, const uint8_t *w,
                  size_t tile_bytes, uint32_t k, const float *x, size_t ldx, float *y,
                  size_t tile_ld, size_t ldc)
{
    for (uint32_t k0 = 0; k0 < k; k0 += CPU_KC) {
        uint32_t kn = k - k0 < CPU_KC ? k - k0 : CPU_KC;
        vf acc[8 * NV];
        UNROLL(16)
        for (int i = 0; i < tiles * nt * NV; i++) acc[i] = vf_zero();
        if (is_plain(type))
            chain_plain(type, tiles, nt, w + col_off(type, k0), tile_bytes, kn, x + k0, ldx, acc);
        else
            chain_block(type, tiles, nt, w + col_off(type, k0), tile_bytes,
                        k0 + CPU_KC < k ? col_off(type, CPU_KC)
                                        : (size_t)tiles * tile_bytes - col_off(type, k0),
                        kn, x + k0, ldx, acc);
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

/* Tiles that one pass of gemv takes together: enough independent chains to cover the latency of a
 * fused multiply-add at the rate memory delivers, few enough for the registers. */
KERN int gemv_tiles(const int type)
{
    return is_plain(type) || NV == 1 ? 4 : 2;
}

KERN void gemv(const int type, const uint8_t *w, size_t tile_bytes, uint32_t n, uint32_t k,
               const float *x, float *y)
{
    const int g = gemv_tiles(type);
    uint32_t i = 0;
    for (; i + (uint32_t)g <= n; i += (uint32_t)g)
        product(type, g, 1, w + tile_bytes * i, tile_bytes, k, x, 0, y + CPU_LANES * i, CPU_LANES,
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

KERN void widen(const int type, const uint8_t *w, uint32_t kn, float *panel)
{
    if (is_plain(type)) {
        for (uint32_t k = 0; k < kn; k++)
            for (int v = 0; v < NV; v++)
                vf_store(panel + CPU_LANES * k + VL * v,
                         k % 2 ? plain_w(type, w, k - 1, 1, v) : plain_w(type, w, k, 0, v));
        return;
    }
    _Alignas(64) scale_t g[GROUPS_MAX];
    const int gc = group_cols(type), sc = step_cols(type);
    scales(type, w, kn, g);
    for (uint32_t n = 0; n < kn / (uint32_t)gc; n++) {
        UNROLL(1)
        for (int s = 0; s < gc / sc; s++) {
            UNROLL(2)
            for (int v = 0; v < NV; v++) {
                lanes l;
                float *p = panel + CPU_LANES * (n * (uint32_t)gc + (uint32_t)(s * sc)) + VL * v;
                load_lanes(type, w, n, s, v, &l);
                UNROLL(16)
                for (int j = 0; j < sc; j++)
                    vf_store(p + CPU_LANES * j, lane_w(type, &l, j, &g[n], v));
            }
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
    static void widen_##name(const uint8_t *w, uint32_t kn, float *panel)                          \
    {                                                                                              \
        widen(type, w, kn, panel);                                                                 \
    }
#define MUL_ENTRY(k, name, type)                                                                   \
    ((k)->gemv[type] = gemv_##name, (k)->rows[type] = rows_##name, (k)->widen[type] = widen_##name)
