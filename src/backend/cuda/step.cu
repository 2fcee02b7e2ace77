/* step.cu - the kernels of a step beside its products: its start (batch, rotations, embeddings),
 * the choice of rows, what becomes of heads, attention; and the one that lays weights out at load.
 */
#include "backend/cuda/attn.cuh"

extern __shared__ __align__(128) uint8_t smem[];

/* ---- weights: rows to units (kern.h)---------------------------------------------------------- */

/* Chunk j of group g of a row, into row r of unit u; in: such columns exist. */
__device__ inline void pack_chunk(const cuda_pack &a, const uint8_t *row, bool in, uint32_t g,
                                  uint32_t j, uint8_t *u, uint32_t r)
{
    const uint32_t n = a.m.unit_rows, type = a.m.type, c = g * 8 + j, at = r * 8 + j;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    if (type == CUDA_F32) {
        *(uint4 *)(u + at * 16) = in ? *(const uint4 *)(row + 32 * c) : zero;
        *(uint4 *)(u + n * 128 + at * 16) = in ? *(const uint4 *)(row + 32 * c + 16) : zero;
    } else if (type <= CUDA_BF16) {
        *(uint4 *)(u + r * 128 + ((j ^ (r & 7)) * 16)) = in ? *(const uint4 *)(row + 16 * c) : zero;
    } else if (type == CUDA_Q8_0) {
        *(uint2 *)(u + at * 8) = in ? *(const uint2 *)(row + 8 * c) : make_uint2(0, 0);
    } else {
        *(uint32_t *)(u + at * 4) = in ? *(const uint32_t *)(row + 4 * c) : 0;
        if (type == CUDA_Q6_K) {
            uint32_t v = in ? *(const uint32_t *)(row + a.cols / 2 + c / 2 * 4) : 0;
            v = v >> c % 2 * 8 & 0x00ff00ffU;
            *(uint16_t *)(u + n * 32 + at * 2) = (uint16_t)(v | v >> 8);
        }
    }
}
/* What scales 32 columns of a row (half: 0 or 1 of a group), in: they exist. */
__device__ inline void pack_scale(const cuda_pack &a, const uint8_t *row, bool in, uint32_t g,
                                  uint32_t half, uint8_t *u, uint32_t r)
{
    const uint32_t n = a.m.unit_rows, type = a.m.type, b = g * 2 + half, cols = a.cols;
    uint8_t *at = u + n * 8 * (type == CUDA_Q6_K ? 6 : type == CUDA_Q8_0 ? 8 : 4);
    const uint16_t none = 0;
    if (type == CUDA_Q8_0 || type == CUDA_Q4_0)
        *(uint16_t *)(at + r * 4 + half * 2) =
            in ? *(const uint16_t *)(row + (type == CUDA_Q8_0 ? cols : cols / 2) + 2 * b) : none;
    if (type == CUDA_Q4_1)
        *(uint32_t *)(at + r * 8 + half * 4) =
            in ? *(const uint32_t *)(row + cols / 2 + 4 * b) : none;
    if (type == CUDA_Q4_K) {
        *(uint16_t *)(at + r * 8 + half * 2) =
            in ? *(const uint16_t *)(row + cols / 2 + 2 * b) : none;
        if (half == 0)
            *(uint32_t *)(at + r * 8 + 4) =
                in ? *(const uint32_t *)(row + cols / 2 + cols / 16 + b / 8 * 4) : none;
    }
    if (type == CUDA_Q6_K) {
        *(uint16_t *)(at + r * 8 + half * 2) =
            in ? *(const uint16_t *)(row + cols / 2 + cols / 4 + 2 * b) : none;
        if (half == 0)
            *(uint32_t *)(at + r * 8 + 4) =
                in ? *(const uint16_t *)(row + cols / 2 + cols / 4 + cols / 16 + b / 8 * 2) : none;
    }
}

/* A block a block of the matrix and a range of groups; threads over rows and chunks. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    cuda_pack_units(const __grid_constant__ cuda_pack a)
{
    const uint32_t per = a.m.per_block, b = blockIdx.x, g = blockIdx.y, w = g % CUDA_WARPS;
    uint8_t *dst = a.dst + warp_at(a.m, b, w);
    for (uint32_t i = threadIdx.x; i < per * 8; i += CUDA_THREADS) {
        const uint32_t in_block = i / 8, j = i % 8;
        uint32_t row = b * per + in_block, part = 0;
        const bool exists = row < a.m.rows;
        if (a.turns) part = row % 2, row /= 2;
        else
            while (part < 2 && row >= a.src_rows[part]) row -= a.src_rows[part++];
        const uint8_t *base = part == 0 ? a.src[0] : part == 1 ? a.src[1] : a.src[2];
        const uint8_t *src = base + (uint64_t)row * a.stride;
        const uint64_t unit =
            (uint64_t)(in_block / a.m.unit_rows) * groups_of(a.m.groups, w) + g / CUDA_WARPS;
        uint8_t *u = dst + unit * a.m.unit_bytes;
        const uint32_t r = in_block % a.m.unit_rows;
        pack_chunk(a, src, exists && g * 64 + j * 8 < a.cols, g, j, u, r);
        if (a.m.type > CUDA_BF16 && j < 2)
            pack_scale(a, src, exists && g * 64 + j * 32 < a.cols, g, j, u, r);
    }
}

/* ---- start ----------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    cuda_start_step(const __grid_constant__ cuda_start a)
{
    const uint32_t t = blockIdx.x;
    let_next_start();
    wait_before();
    const uint32_t *src = a.host ? a.host : a.f.word;
    const uint32_t pos = __ldcg(src + a.f.pos + t), token = __ldcg(src + a.f.token + t);
    const uint32_t n = __ldcg(src + CUDA_N_ROWS);
    if (a.host)
        for (uint32_t i = t * CUDA_THREADS + threadIdx.x; i < a.f.n_words;
             i += gridDim.x * CUDA_THREADS)
            a.f.word[i] = __ldcg(a.host + i);
    if (t >= n || __ldcg(a.f.stop)) return;
    const uint32_t seq = __ldcg(src + a.f.seq + t), lengthy = __ldcg(src + a.f.lengthy + seq);
    float2 *table = (float2 *)(a.rope.table + (uint64_t)t * a.rope.row);
    for (uint32_t i = threadIdx.x; i < a.rope.half[0] + a.rope.half[1]; i += CUDA_THREADS) {
        const int k = i >= a.rope.half[0];
        table[i] = turn_at(a.rope, k, k ? i - a.rope.half[0] : i, pos, lengthy);
    }
    if (!a.embed.w) return;
    for (uint32_t k = 2 * threadIdx.x; k < a.dim; k += 2 * CUDA_THREADS) {
        const float2 v = embed_pair(a.embed, token, k);
        *(float2 *)(a.x + (uint64_t)t * a.dim + k) = make_float2(v.x * a.scale, v.y * a.scale);
    }
}

/* ---- rows that are wanted -------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    cuda_pick_rows(const __grid_constant__ cuda_pick a)
{
    const uint32_t t = blockIdx.x;
    let_next_start();
    wait_before();
    if (t >= row_count(a.f, CUDA_MUL_WANT)) return;
    const uint64_t from = __ldcg(a.f.word + a.f.want + t);
    for (uint32_t i = threadIdx.x; i < a.dim; i += CUDA_THREADS)
        a.x_out[(uint64_t)t * a.dim + i] = __ldcg(a.x + from * a.dim + i);
    for (uint32_t i = threadIdx.x; i < a.nq; i += CUDA_THREADS)
        a.q_out[(uint64_t)t * a.nq + i] = __ldcg(a.q + from * a.nq + i);
}

/* ---- heads: bias, norm, rotation; K and V into their pages------------------------------------ */

/* Where position pos of a head lies in plane v. */
template <bool HALF>
__device__ inline uint8_t *cache_at(const cuda_heads &h, int v, uint32_t page, uint32_t kv_head,
                                    uint32_t pos)
{
    return (v ? h.plane[1] : h.plane[0]) + page * (v ? h.page_bytes[1] : h.page_bytes[0]) +
           ((uint64_t)(kv_head * 32 + pos % 32) * h.head_dim + threadIdx.x % 16 * 8) *
               (HALF ? 2 : 4);
}

template <int E> __device__ inline void finish(const cuda_finish &a)
{
    __shared__ __align__(16) float buf[2 * CUDA_WARPS][CUDA_HEAD_MAX];
    const uint32_t t = blockIdx.x, half = threadIdx.x / 16, hd = a.h.head_dim;
    const uint32_t all = a.h.n_heads + 2 * a.h.n_kv_heads;
    let_next_start();
    wait_before();
    if (t >= row_count(a.f, a.flags)) return;
    const uint32_t b = batch_row(a.f, a.flags, t);
    const uint32_t pos = __ldcg(a.f.word + a.f.pos + b), seq = __ldcg(a.f.word + a.f.seq + b);
    const uint32_t *pages = a.f.word + (a.h.kv_class ? a.f.page[1] : a.f.page[0]);
    const uint32_t page = __ldcg(pages + seq * a.f.n_table + pos / 32);
    for (uint32_t i0 = 0; i0 < all; i0 += 2 * CUDA_WARPS) {
        const uint32_t i = min(i0 + half, all - 1); /* the last one again: all lanes take part */
        const int seg = i < a.h.n_heads ? 0 : i < a.h.n_heads + a.h.n_kv_heads ? 1 : 2;
        const uint32_t head = i - (seg ? a.h.n_heads : 0) - (seg == 2 ? a.h.n_kv_heads : 0);
        float v[E], gain[E];
        head_gain<E>(a.h, seg, gain);
        load_head<E>(a.raw + ((uint64_t)t * all + i) * hd, hd, v);
        finish_head<E>(a.h, half_of_rope(a.rope, a.h.rope_i), turns_of(a.rope, a.h.rope_i, b), seg,
                       head, v, gain, buf[half]);
        if (threadIdx.x % 16 * E >= hd || i0 + half >= all) continue;
        if (seg == 0)
            put_kv<E, false>(
                (uint8_t *)(a.q + ((uint64_t)t * a.h.n_heads + head) * hd + threadIdx.x % 16 * E),
                v);
        else {
            uint8_t *at = (seg == 2 ? a.h.plane[1] : a.h.plane[0]) +
                          page * (seg == 2 ? a.h.page_bytes[1] : a.h.page_bytes[0]) +
                          ((uint64_t)(head * 32 + pos % 32) * hd + threadIdx.x % 16 * E) *
                              (a.h.kv_half ? 2 : 4);
            if (a.h.kv_half) put_kv<E, true>(at, v);
            else put_kv<E, false>(at, v);
        }
    }
}
extern "C" __global__ void __launch_bounds__(CUDA_WIDE)
    cuda_finish_8(const __grid_constant__ cuda_finish a)
{
    finish<8>(a);
}
extern "C" __global__ void __launch_bounds__(CUDA_WIDE)
    cuda_finish_16(const __grid_constant__ cuda_finish a)
{
    finish<16>(a);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* The keys of one class, into s. raw: the last key is not in the cache. */
template <int G, int E, bool HALF>
__device__ inline void class_keys(const cuda_attn &a, const query &u, const float (&q)[G][E],
                                  uint32_t cls, stream_sum<G, E> &s)
{
    constexpr int U = HALF && E == 8 ? 4 : 1;
    const uint32_t in_page = threadIdx.x / 16, p1 = u.to / 32, hd = a.h.head_dim;
    const uint32_t p0 =
        u.from / 32 + (cls + CUDA_CLASSES - u.from / 32 % CUDA_CLASSES) % CUDA_CLASSES;
    const uint64_t e0 =
        ((uint64_t)(u.kv_head * 32 + in_page) * hd + threadIdx.x % 16 * E) * (HALF ? 2 : 4);
    const uint32_t last = a.raw ? u.to : u.to + 1; /* keys before it are in the cache */
    const bool mine = threadIdx.x % 16 * E < hd;
#pragma unroll 1
    for (uint32_t p = p0; p <= p1; p += U * CUDA_CLASSES) {
        raw_pair<E, HALF> r[U];
        bool in[U];
#pragma unroll
        for (int i = 0; i < U; i++) {
            const uint32_t at = p + i * CUDA_CLASSES, key = at * 32 + in_page;
            const uint32_t page = at <= p1 ? __ldcg(a.f.word + u.pages_at + at) : 0xffffffffU;
            in[i] = page != 0xffffffffU && key >= u.from && key < last;
            load_pair<E, HALF>(r[i], a.h.plane[0] + page * a.h.page_bytes[0] + e0,
                               a.h.plane[1] + page * a.h.page_bytes[1] + e0, in[i] && mine);
        }
#pragma unroll
        for (int i = 0; i < U; i++)
            if (p + i * CUDA_CLASSES <= p1) add_pair<G, E, HALF>(s, q, r[i], in[i], a.scale, a.cap);
    }
}

/* The row's own key, from the product: into the cache and into its stream. One warp. */
template <int G, int E, bool HALF>
__device__ inline void own_key(const cuda_attn &a, const query &u, const float (&q)[G][E],
                               stream_sum<G, E> &s, float *buf)
{
    const uint32_t hd = a.h.head_dim, half = threadIdx.x / 16 % 2, d0 = threadIdx.x % 16 * E;
    const bool mine = threadIdx.x / 16 == u.to % 32;
    float v[E], k[E], other[E], gain[E];
    head_gain<E>(a.h, 1 + half, gain);
    load_head<E>(a.q + (a.h.n_heads + half * a.h.n_kv_heads + u.kv_head) * hd, hd, v);
    finish_head<E>(a.h, half_of_rope(a.rope, a.h.rope_i), turns_of(a.rope, a.h.rope_i, u.b),
                   1 + half, u.kv_head, v, gain, buf);
#pragma unroll
    for (int e = 0; e < E; e++) {
        other[e] = __shfl_xor_sync(0xffffffffU, v[e], 16);
        k[e] = half ? other[e] : v[e];
        v[e] = half ? v[e] : other[e];
        if (HALF) k[e] = __half2float(__float2half_rn(k[e]));
        if (HALF) v[e] = __half2float(__float2half_rn(v[e]));
    }
    if (mine && d0 < hd) {
        const uint32_t page = __ldcg(a.f.word + u.pages_at + u.to / 32);
        const uint64_t e0 = ((uint64_t)(u.kv_head * 32 + u.to % 32) * hd + d0) * (HALF ? 2 : 4);
        put_kv<E, HALF>(a.h.plane[0] + page * a.h.page_bytes[0] + e0, k);
        put_kv<E, HALF>(a.h.plane[1] + page * a.h.page_bytes[1] + e0, v);
    }
    add_key<G, E>(s, q, k, v, mine, a.scale, a.cap);
}

/* Queries into all lanes of the warp: finished ones, or the product's, two heads at a time. */
template <int G, int E>
__device__ inline void load_queries(const cuda_attn &a, const query &u, float (&q)[G][E],
                                    float *buf)
{
    const uint32_t hd = a.h.head_dim, half = threadIdx.x / 16 % 2;
#pragma unroll
    for (int g = 0; g < G; g += 2) {
        float v[E], gain[E];
        const uint32_t mine = min((uint32_t)g + (G > 1 ? half : 0), u.heads - 1);
        head_gain<E>(a.h, 0, gain);
        load_head<E>(a.q + ((uint64_t)u.t * a.h.n_heads + u.head0 + mine) * hd, hd, v);
        if (a.raw)
            finish_head<E>(a.h, half_of_rope(a.rope, a.h.rope_i), turns_of(a.rope, a.h.rope_i, u.b),
                           0, u.head0 + mine, v, gain, buf);
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float w = __shfl_xor_sync(0xffffffffU, v[e], 16);
            q[g][e] = half ? w : v[e];
            if (G > 1) q[g + (G > 1)][e] = half ? v[e] : w;
        }
    }
}

/* Sums of all classes, pairwise, and their quotient. */
__device__ inline float quotient(float (&l)[CUDA_CLASSES], float (&o)[CUDA_CLASSES])
{
#pragma unroll
    for (int w = 1; w < CUDA_CLASSES; w *= 2)
#pragma unroll
        for (int c = 0; c < CUDA_CLASSES; c += 2 * w) l[c] += l[c + w], o[c] += o[c + w];
    return l[0] > 0 ? o[0] / l[0] : 0;
}

/* Element d of a head over all classes; at: [CUDA_CLASSES][hd + 2], o then m and l. */
__device__ inline float join_classes(const query &u, const float *at, uint32_t hd, uint32_t d)
{
    float m = -INFINITY, l[CUDA_CLASSES], o[CUDA_CLASSES];
#pragma unroll
    for (int c = 0; c < CUDA_CLASSES; c++) {
        const bool some = has_keys(u, c);
        const float *x = at + c * (hd + 2);
        o[c] = some ? __ldcg(x + d) : 0;
        l[c] = some ? __ldcg(x + hd + 1) : 0;
        m = fmaxf(m, some ? __ldcg(x + hd) : -INFINITY);
    }
    if (m == -INFINITY) return 0;
#pragma unroll
    for (int c = 0; c < CUDA_CLASSES; c++) {
        const float f = has_keys(u, c) ? __expf(__ldcg(at + c * (hd + 2) + hd) - m) : 0;
        l[c] *= f, o[c] *= f;
    }
    return quotient(l, o);
}

/* Classes over blocks; the last block of a row and group of heads joins them. */
template <int G, int E, bool HALF>
__device__ inline void attend_class(const cuda_attn &a, const query &u, const float (&q)[G][E],
                                    float *sh, float *buf)
{
    const uint32_t hd = a.h.head_dim, cls = blockIdx.y, n = u.to / 32 - u.from / 32 + 1;
    if (!has_keys(u, cls)) return;
    stream_sum<G, E> s;
    clear_sum(s);
    class_keys<G, E, HALF>(a, u, q, cls, s);
    if (a.raw && u.to / 32 % CUDA_CLASSES == cls && u.to % 32 / 2 == threadIdx.x / 32)
        own_key<G, E, HALF>(a, u, q, s, buf);
    put_warp_sum<G, E>(s, sh, hd);
    __syncthreads();
    float *at = a.part + ((uint64_t)u.t * a.h.n_heads + u.head0) * CUDA_CLASSES * (hd + 2);
    for (uint32_t i = threadIdx.x; i < u.heads * hd; i += CUDA_WIDE) {
        const uint32_t g = i / hd, d = i % hd;
        float m, l, o;
        join_warps<G>(sh, hd, g, d, m, l, o);
        if (n == 1) {
            a.a[((uint64_t)u.t * a.h.n_heads + u.head0 + g) * hd + d] = l > 0 ? o / l : 0;
            continue;
        }
        float *x = at + (g * CUDA_CLASSES + cls) * (hd + 2);
        x[d] = o;
        if (d == 0) x[hd] = m, x[hd + 1] = l;
    }
    if (n == 1 ||
        !last_of(a.arrived + u.t * gridDim.x + blockIdx.x, min(n, (uint32_t)CUDA_CLASSES)))
        return;
    for (uint32_t i = threadIdx.x; i < u.heads * hd; i += CUDA_WIDE) {
        const uint32_t g = i / hd, d = i % hd;
        a.a[((uint64_t)u.t * a.h.n_heads + u.head0 + g) * hd + d] =
            join_classes(u, at + g * CUDA_CLASSES * (hd + 2), hd, d);
    }
}

/* All classes in turn: large batches have blocks enough. An element a thread, at most two; the same
 * operations as in join_classes, which needs the greatest m first: the sums are kept relative to
 * the m of each class and scaled at the end. */
template <int G, int E, bool HALF>
__device__ inline void attend_all(const cuda_attn &a, const query &u, const float (&q)[G][E],
                                  float *sh, float *keep)
{
    const uint32_t hd = a.h.head_dim;
    for (uint32_t cls = 0; cls < CUDA_CLASSES; cls++) {
        if (!has_keys(u, cls)) continue;
        stream_sum<G, E> s;
        clear_sum(s);
        class_keys<G, E, HALF>(a, u, q, cls, s);
        put_warp_sum<G, E>(s, sh, hd);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < u.heads * hd; i += CUDA_WIDE) {
            const uint32_t g = i / hd, d = i % hd;
            float m, l, o, *x = keep + (g * CUDA_CLASSES + cls) * (hd + 2);
            join_warps<G>(sh, hd, g, d, m, l, o);
            x[d] = o;
            if (d == 0) x[hd] = m, x[hd + 1] = l;
        }
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < u.heads * hd; i += CUDA_WIDE) {
        const uint32_t g = i / hd, d = i % hd;
        const float *at = keep + g * CUDA_CLASSES * (hd + 2);
        float m = -INFINITY, l[CUDA_CLASSES], o[CUDA_CLASSES];
#pragma unroll
        for (int c = 0; c < CUDA_CLASSES; c++)
            if (has_keys(u, c)) m = fmaxf(m, at[c * (hd + 2) + hd]);
#pragma unroll
        for (int c = 0; c < CUDA_CLASSES; c++) {
            const bool some = has_keys(u, c) && m != -INFINITY;
            const float *x = at + c * (hd + 2), f = some ? __expf(x[hd] - m) : 0;
            l[c] = some ? x[hd + 1] * f : 0;
            o[c] = some ? x[d] * f : 0;
        }
        a.a[((uint64_t)u.t * a.h.n_heads + u.head0 + g) * hd + d] = quotient(l, o);
    }
}

template <int G, int E, bool HALF> __device__ inline void attend(const cuda_attn &a)
{
    float *sh = (float *)smem, *buf = sh + threadIdx.x / 16 * E * 16;
    let_next_start();
    wait_before();
    query u;
    u.t = blockIdx.z;
    const uint32_t n = row_count(a.f, a.flags);
    if (u.t >= n) return;
    u.b = batch_row(a.f, a.flags, u.t);
    const uint32_t group = a.h.n_heads / a.h.n_kv_heads, first = blockIdx.x % a.chunks * G;
    u.kv_head = blockIdx.x / a.chunks;
    u.head0 = u.kv_head * group + first;
    u.heads = min((uint32_t)G, group - first);
    u.seq = __ldcg(a.f.word + a.f.seq + u.b);
    u.to = __ldcg(a.f.word + a.f.pos + u.b);
    u.from = a.window && u.to + 1 > a.window ? u.to + 1 - a.window : 0;
    u.pages_at = (a.h.kv_class ? a.f.page[1] : a.f.page[0]) + u.seq * a.f.n_table;
    if (a.part && !has_keys(u, blockIdx.y)) return;
    float q[G][E];
    load_queries<G, E>(a, u, q, buf);
    __syncthreads(); /* buf lies where the warps' sums go */
    if (a.part) attend_class<G, E, HALF>(a, u, q, sh + 2 * CUDA_WARPS * E * 16, buf);
    else attend_all<G, E, HALF>(a, u, q, sh, sh + attn_floats(G, a.h.head_dim));
}

/* cuda_attn_<elements a lane>_<query heads>_<element type of the cache> */
#define ATTN(E, G)                                                                                 \
    extern "C" __global__ void __launch_bounds__(CUDA_WIDE)                                        \
        cuda_attn_##E##_##G##_f16(const __grid_constant__ cuda_attn a)                             \
    {                                                                                              \
        attend<G, E, true>(a);                                                                     \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(CUDA_WIDE)                                        \
        cuda_attn_##E##_##G##_f32(const __grid_constant__ cuda_attn a)                             \
    {                                                                                              \
        attend<G, E, false>(a);                                                                    \
    }
#define ATTN_HEADS(E) ATTN(E, 1) ATTN(E, 2) ATTN(E, 4)
ATTN_HEADS(8)
ATTN_HEADS(16)
