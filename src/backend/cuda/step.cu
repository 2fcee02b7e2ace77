/* step.cu - the kernels of a step beside its products: its start (batch, rotations, embeddings),
 * attention, and the choice of rows. */
#include "backend/cuda/device.cuh"

/* ---- start ----------------------------------------------------------------------------------- */

template <int T> __device__ inline void embed_row(const cuda_start &a, const uint8_t *row, float *x)
{
    constexpr int E = chunk_of(T), FLUSH = flush_of(T);
    for (uint32_t c = threadIdx.x; c < (a.dim + E - 1) / E; c += CUDA_THREADS) {
        const raw_chunk raw = load_chunk<T>(row, c, a.dim);
#pragma unroll
        for (int j = 0; j < E / 8; j++) {
            float w[8];
            group_of<T>(raw, j, w);
            const float2 s = scale_of<T>(row, c, FLUSH ? j * 8 / (FLUSH ? FLUSH : 1) : 0, a.dim);
            for (int e = 0; e < 8; e++) {
                const uint32_t k = c * E + j * 8 + e;
                /* rounded where the definition of the format rounds */
                if (k < a.dim) x[k] = __fsub_rn(__fmul_rn(s.x, w[e]), s.y) * a.scale;
            }
        }
    }
}

__device__ inline void embed(const cuda_start &a, uint32_t token, float *x)
{
    const uint8_t *row = a.embed.w + (uint64_t)token * a.embed.stride;
    switch (a.embed.type) {
    case CUDA_F32: embed_row<CUDA_F32>(a, row, x); break;
    case CUDA_F16: embed_row<CUDA_F16>(a, row, x); break;
    case CUDA_BF16: embed_row<CUDA_BF16>(a, row, x); break;
    case CUDA_Q8_0: embed_row<CUDA_Q8_0>(a, row, x); break;
    case CUDA_Q4_0: embed_row<CUDA_Q4_0>(a, row, x); break;
    case CUDA_Q4_1: embed_row<CUDA_Q4_1>(a, row, x); break;
    case CUDA_Q4_K: embed_row<CUDA_Q4_K>(a, row, x); break;
    default: embed_row<CUDA_Q6_K>(a, row, x); break;
    }
}

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
        const uint32_t j = k ? i - a.rope.half[0] : i;
        const float *freq = k ? a.rope.freq[1] : a.rope.freq[0];
        const float *far = k ? a.rope.freq_long[1] : a.rope.freq_long[0];
        const double m = (double)(k ? a.rope.mscale[1] : a.rope.mscale[0]);
        double s, c;
        sincos((double)pos * (double)(lengthy && far ? far[j] : freq[j]), &s, &c);
        table[i] = make_float2((float)(c * m), (float)(s * m));
    }
    if (a.embed.w) embed(a, token, a.x + (uint64_t)t * a.dim);
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

/* ---- attention ----------------------------------------------------------------------------------
 * Keys are taken in parts of CUDA_SPLIT, counted from position 0: a block attends to one part, or,
 * in large batches, to all parts in turn. A warp takes 16 keys of a part, L lanes a key, 8 elements
 * a lane. Warps of a part meet in order, parts meet in ascending order, by the same operations in
 * both cases: the bits depend on the position alone. G query heads share a block's keys. */

enum { WARP_KEYS = CUDA_SPLIT / CUDA_WARPS };

struct attn_shared {
    float m[CUDA_WARPS][4], l[CUDA_WARPS][4];
    float o[CUDA_WARPS][4][CUDA_HEAD_MAX];
};

/* What a block attends from. */
struct query {
    uint32_t t, kv_head, head0, heads; /* row of the registers; first query head and how many */
    uint32_t seq, from, to;            /* first and last key                                   */
};

/* (m, l, o) with the part (m1, l1, o1): greatest score, sum of weights, weighted sum of values. */
__device__ inline void join(float &m, float &l, float &o, float m1, float l1, float o1)
{
    if (m1 == -INFINITY) return;
    const float top = fmaxf(m, m1), c = __expf(m - top), c1 = __expf(m1 - top);
    l = l * c + l1 * c1;
    o = o * c + o1 * c1;
    m = top;
}

/* Not inlined, like all that is rare: a kernel runs its code once, and what is fetched is waited
 * for. */
__device__ __noinline__ float capped(float v, float cap)
{
    return cap * tanhf(v / cap);
}

__device__ inline uint4 load_raw(const void *p, bool in)
{
    return in ? __ldcg((const uint4 *)p) : make_uint4(0, 0, 0, 0);
}
/* 8 elements of the cache, 16 bytes (f16) or twice 16 (f32), as floats. */
template <bool HALF> __device__ inline void floats8(const uint4 (&raw)[HALF ? 1 : 2], float v[8])
{
    const uint32_t w[4] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (HALF) {
            const float2 f = __half22float2(*(const __half2 *)&w[i]);
            v[2 * i] = f.x, v[2 * i + 1] = f.y;
        } else v[i] = __uint_as_float(w[i]);
    }
    if (!HALF) {
        const uint4 b = raw[HALF ? 0 : 1];
        v[4] = __uint_as_float(b.x), v[5] = __uint_as_float(b.y);
        v[6] = __uint_as_float(b.z), v[7] = __uint_as_float(b.w);
    }
}

/* A warp's result to shared memory. */
template <int L, int G>
__device__ inline void put_warp(const cuda_attn &a, attn_shared *sh, const float (&m)[G],
                                const float (&l)[G], const float (&o)[G][8])
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, d0 = lane % L * 8;
    /* Lanes L apart hold other keys of the same elements. */
#pragma unroll
    for (int g = 0; g < G; g++) {
        const float top = max_lanes(m[g], L, 32), c = m[g] == -INFINITY ? 0 : __expf(m[g] - top);
        float lg = l[g] * c;
#pragma unroll
        for (int d = L; d < 32; d *= 2) lg += __shfl_xor_sync(0xffffffffU, lg, d);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float x = o[g][e] * c;
#pragma unroll
            for (int d = L; d < 32; d *= 2) x += __shfl_xor_sync(0xffffffffU, x, d);
            if (lane < L && d0 < a.head_dim) sh->o[warp][g][d0 + e] = x;
        }
        if (lane == 0) sh->m[warp][g] = top, sh->l[warp][g] = lg;
    }
}

/* The warp's 16 keys of a part: its m, l and o to shared memory. Turns of the warp are taken four
 * at a time, so that their loads travel together and the code stays short. */
template <int L, int G, bool HALF>
__device__ inline void warp_keys(const cuda_attn &a, const query &u, const float (&q)[G][8],
                                 uint32_t part, attn_shared *sh)
{
    constexpr int IT = L / 2, STEP = 32 / L, W = HALF ? 1 : 2, U = IT < 4 / W ? IT : 4 / W;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, d0 = lane % L * 8;
    const uint32_t key0 = part * CUDA_SPLIT + warp * WARP_KEYS;
    const uint32_t *pages =
        a.f.word + (a.kv_class ? a.f.page[1] : a.f.page[0]) + u.seq * a.f.n_table;
    const uint32_t page = key0 <= u.to ? __ldcg(pages + key0 / 32) : 0xffffffffU;
    const bool on = page != 0xffffffffU && d0 < a.head_dim;
    const uint32_t size = HALF ? 2 : 4, turn = STEP * a.head_dim * size;
    const uint32_t e0 = ((u.kv_head * 32 + key0 % 32 + lane / L) * a.head_dim + d0) * size;
    const uint8_t *kp = a.plane[0] + page * a.page_bytes[0] + e0;
    const uint8_t *vp = a.plane[1] + page * a.page_bytes[1] + e0;
    float m[G], l[G], o[G][8];
#pragma unroll
    for (int g = 0; g < G; g++) {
        m[g] = -INFINITY, l[g] = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) o[g][e] = 0;
    }
#pragma unroll 1
    for (uint32_t key = key0 + lane / L; key < key0 + WARP_KEYS; key += U * STEP) {
        uint4 k[U][W], v[U][W];
        float s[U][G];
#pragma unroll
        for (int i = 0; i < U; i++) {
            const bool in = on && key + i * STEP >= u.from && key + i * STEP <= u.to;
#pragma unroll
            for (int w = 0; w < W; w++) {
                k[i][w] = load_raw(kp + i * turn + 16 * w, in);
                v[i][w] = load_raw(vp + i * turn + 16 * w, in);
            }
        }
        kp += U * turn, vp += U * turn;
#pragma unroll
        for (int i = 0; i < U; i++) {
            const bool in =
                page != 0xffffffffU && key + i * STEP >= u.from && key + i * STEP <= u.to;
            float x[8];
            floats8<HALF>(k[i], x);
#pragma unroll
            for (int g = 0; g < G; g++) {
                float d = 0;
#pragma unroll
                for (int e = 0; e < 8; e++) d = fmaf(q[g][e], x[e], d);
                d = sum_lanes(d, L) * a.scale;
                if (a.cap > 0) d = capped(d, a.cap);
                s[i][g] = in ? d : -INFINITY;
            }
        }
#pragma unroll
        for (int g = 0; g < G; g++) {
            float top = m[g];
#pragma unroll
            for (int i = 0; i < U; i++) top = fmaxf(top, s[i][g]);
            const float c = top == -INFINITY ? 0 : __expf(m[g] - top);
            l[g] *= c;
#pragma unroll
            for (int e = 0; e < 8; e++) o[g][e] *= c;
            m[g] = top;
        }
#pragma unroll
        for (int i = 0; i < U; i++) {
            float x[8];
            floats8<HALF>(v[i], x);
#pragma unroll
            for (int g = 0; g < G; g++) {
                const float p = s[i][g] == -INFINITY ? 0 : __expf(s[i][g] - m[g]);
                l[g] += p;
#pragma unroll
                for (int e = 0; e < 8; e++) o[g][e] = fmaf(p, x[e], o[g][e]);
            }
        }
    }
    put_warp<L, G>(a, sh, m, l, o);
}

/* Element d of head g of one part, from the warps. */
__device__ inline void join_warps(const attn_shared *sh, uint32_t g, uint32_t d, float &m, float &l,
                                  float &o)
{
    m = -INFINITY, l = o = 0;
    for (int w = 0; w < CUDA_WARPS; w++) m = fmaxf(m, sh->m[w][g]);
    if (m == -INFINITY) return;
#pragma unroll 4
    for (int w = 0; w < CUDA_WARPS; w++) {
        const float c = __expf(sh->m[w][g] - m);
        l += sh->l[w][g] * c;
        o += sh->o[w][g][d] * c;
    }
}

__device__ inline float *part_at(const cuda_attn &a, const query &u, uint32_t g, uint32_t part)
{
    return a.part +
           (((uint64_t)u.t * a.n_heads + u.head0 + g) * a.splits + part) * (a.head_dim + 2);
}

/* Parts dealt out over the blocks of a row and group of heads; the last block joins them. */
template <int L, int G, bool HALF>
__device__ inline void attend_part(const cuda_attn &a, const query &u, const float (&q)[G][8],
                                   attn_shared *sh)
{
    const uint32_t hd = a.head_dim, p0 = u.from / CUDA_SPLIT, p1 = u.to / CUDA_SPLIT;
    if (p0 + blockIdx.y > p1) return;
#pragma unroll 1
    for (uint32_t part = p0 + blockIdx.y; part <= p1; part += gridDim.y) {
        warp_keys<L, G, HALF>(a, u, q, part, sh);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < u.heads * hd; i += CUDA_THREADS) {
            const uint32_t g = i / hd, d = i % hd;
            float m, l, o;
            join_warps(sh, g, d, m, l, o);
            if (p0 == p1) {
                a.a[((uint64_t)u.t * a.n_heads + u.head0 + g) * hd + d] = l > 0 ? o / l : 0;
                continue;
            }
            float *at = part_at(a, u, g, part);
            at[d] = o;
            if (d == 0) at[hd] = m, at[hd + 1] = l;
        }
        __syncthreads();
    }
    if (p0 == p1 || !last_of(a.arrived + u.t * gridDim.x + blockIdx.x, min(gridDim.y, p1 - p0 + 1)))
        return;
    for (uint32_t i = threadIdx.x; i < u.heads * hd; i += CUDA_THREADS) {
        const uint32_t g = i / hd, d = i % hd;
        float m = -INFINITY, l = 0, o = 0;
#pragma unroll 4
        for (uint32_t p = p0; p <= p1; p++) {
            const float *at = part_at(a, u, g, p);
            join(m, l, o, __ldcg(at + hd), __ldcg(at + hd + 1), __ldcg(at + d));
        }
        a.a[((uint64_t)u.t * a.n_heads + u.head0 + g) * hd + d] = l > 0 ? o / l : 0;
    }
}

/* All parts in turn: large batches have blocks enough. An element a thread, at most two. */
template <int L, int G, bool HALF>
__device__ inline void attend_all(const cuda_attn &a, const query &u, const float (&q)[G][8],
                                  attn_shared *sh)
{
    constexpr int PER = (4 * CUDA_HEAD_MAX + CUDA_THREADS - 1) / CUDA_THREADS;
    const uint32_t hd = a.head_dim;
    float m[PER], l[PER], o[PER];
#pragma unroll
    for (int k = 0; k < PER; k++) m[k] = -INFINITY, l[k] = o[k] = 0;
    for (uint32_t part = u.from / CUDA_SPLIT; part <= u.to / CUDA_SPLIT; part++) {
        warp_keys<L, G, HALF>(a, u, q, part, sh);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < PER; k++) {
            const uint32_t i = threadIdx.x + k * CUDA_THREADS;
            float m1, l1, o1;
            if (i >= u.heads * hd) continue;
            join_warps(sh, i / hd, i % hd, m1, l1, o1);
            join(m[k], l[k], o[k], m1, l1, o1);
        }
        __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < PER; k++) {
        const uint32_t i = threadIdx.x + k * CUDA_THREADS;
        if (i < u.heads * hd)
            a.a[((uint64_t)u.t * a.n_heads + u.head0) * hd + i] = l[k] > 0 ? o[k] / l[k] : 0;
    }
}

template <int L, int G, bool HALF> __device__ inline void attend(const cuda_attn &a)
{
    __shared__ attn_shared sh;
    let_next_start();
    wait_before();
    query u;
    u.t = blockIdx.z;
    const uint32_t n = row_count(a.f, a.flags);
    if ((a.flags & CUDA_MUL_MAPPED) && u.t >= n) return; /* want[t] may be anything */
    const uint32_t row = batch_row(a.f, a.flags, u.t), group = a.n_heads / a.n_kv_heads;
    const uint32_t first = blockIdx.x % a.chunks * G, d0 = threadIdx.x % L * 8;
    u.kv_head = blockIdx.x / a.chunks;
    u.head0 = u.kv_head * group + first;
    u.heads = min((uint32_t)G, group - first);
    u.seq = __ldcg(a.f.word + a.f.seq + row);
    u.to = __ldcg(a.f.word + a.f.pos + row);
    float q[G][8];
#pragma unroll
    for (int g = 0; g < G; g++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            q[g][e] =
                g < u.heads && d0 < a.head_dim
                    ? __ldcg(a.q + ((uint64_t)u.t * a.n_heads + u.head0 + g) * a.head_dim + d0 + e)
                    : 0;
    if (u.t >= n) return;
    u.from = a.window && u.to + 1 > a.window ? u.to + 1 - a.window : 0;
    if (a.part) attend_part<L, G, HALF>(a, u, q, &sh);
    else attend_all<L, G, HALF>(a, u, q, &sh);
}

/* cuda_attn_<lanes a key>_<query heads>_<element type of the cache> */
#define ATTN(L, G)                                                                                 \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS)                                     \
        cuda_attn_##L##_##G##_f16(const __grid_constant__ cuda_attn a)                             \
    {                                                                                              \
        attend<L, G, true>(a);                                                                     \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS)                                     \
        cuda_attn_##L##_##G##_f32(const __grid_constant__ cuda_attn a)                             \
    {                                                                                              \
        attend<L, G, false>(a);                                                                    \
    }
#define ATTN_HEADS(L) ATTN(L, 1) ATTN(L, 2) ATTN(L, 4)
ATTN_HEADS(2)
ATTN_HEADS(4)
ATTN_HEADS(8)
ATTN_HEADS(16)
ATTN_HEADS(32)
