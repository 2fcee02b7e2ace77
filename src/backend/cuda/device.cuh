/* device.cuh - pieces that kernels share: dependent launch, bulk copies with their barriers, sums
 * over lanes, rows of the batch, decoding of a chunk of weights, one head's bias, norm and
 * rotation. Included by the .cu files. */
#ifndef HT_BACKEND_CUDA_DEVICE_CUH
#define HT_BACKEND_CUDA_DEVICE_CUH
#include "backend/cuda/kern.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CUDA_SM90 1
#else
#define CUDA_SM90 0
#endif

/* The thread's number, read anew: a long kernel that keeps all that follows from it in registers
 * has none left for its loops. */
__device__ inline uint32_t thread_now()
{
    uint32_t t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

/* ---- order between kernels ---------------------------------------------------------------------
 * Every kernel of a step is launched as a programmatic dependent of the one before it: its blocks
 * may start, and fetch weights, while that one still runs. All blocks of all kernels pass
 * wait_before(), also those with nothing to do: a kernel is complete only when those before it are,
 * and nothing is written before it. Activations are read around L1, which may hold older ones. */
__device__ inline void let_next_start()
{
#if CUDA_SM90
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_before()
{
#if CUDA_SM90
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- bulk copies into shared memory ---------------------------------------------------------- */
__device__ inline uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ inline void bar_init(uint64_t *bar, uint32_t count)
{
#if CUDA_SM90
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(bar)), "r"(count)
                 : "memory");
#endif
}
/* Initialised barriers become visible to the copy engine. */
__device__ inline void bar_fence()
{
#if CUDA_SM90
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ inline void bar_expect(uint64_t *bar, uint32_t bytes)
{
#if CUDA_SM90
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(bar)),
                 "r"(bytes)
                 : "memory");
#endif
}
__device__ inline void bar_wait(uint64_t *bar, uint32_t parity)
{
#if CUDA_SM90
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n .reg .pred p;\n"
                     " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     " selp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done)
                     : "r"(shared_at(bar)), "r"(parity)
                     : "memory");
#endif
}
/* bytes: a multiple of 16, as both addresses. One thread. */
__device__ inline void bulk_copy(void *dst, const void *src, uint32_t bytes, uint64_t *bar)
{
#if CUDA_SM90
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_at(dst)),
                 "l"(src), "r"(bytes), "r"(shared_at(bar))
                 : "memory");
#endif
}

/* ---- copies that each thread waits for itself ----------------------------------------------- */
/* Sixteen bytes from global to shared memory; they count to this thread's next group. */
__device__ inline void copy16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from)
                 : "memory");
}
__device__ inline void wait_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}
__device__ inline void end_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* All but the last N groups have come. */
template <int N> __device__ inline void wait_groups()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- sums ------------------------------------------------------------------------------------ */
/* Over the lanes whose numbers differ in the bits below `width`, neighbours first; the same bits in
 * all of them. */
__device__ inline float sum_lanes(float v, int width)
{
#pragma unroll
    for (int d = 1; d < width; d *= 2) v += __shfl_xor_sync(0xffffffffU, v, d);
    return v;
}

/* Factor of the RMS norm of n numbers; code that is fetched once must be short. */
__device__ inline float norm_factor(float squares, uint32_t n, float eps)
{
    return rsqrtf(__fdividef(squares, (float)n) + eps);
}

/* ---- the batch ------------------------------------------------------------------------------- */
__device__ inline uint32_t row_count(const cuda_feed &f, uint32_t flags)
{
    const uint32_t stop = __ldcg(f.stop); /* both loads travel together */
    const uint32_t n = __ldcg(f.word + ((flags & CUDA_MUL_WANT) ? CUDA_N_WANT : CUDA_N_ROWS));
    return stop ? 0 : n;
}
/* The batch's row behind row t of the registers. */
__device__ inline uint32_t batch_row(const cuda_feed &f, uint32_t flags, uint32_t t)
{
    return (flags & CUDA_MUL_MAPPED) ? __ldcg(f.word + f.want + t) : t;
}

/* The last of n blocks to come here gets true, and then sees what all of them wrote before; the
 * counter is 0 again. All threads of the block call it, once a kernel. */
__device__ inline bool last_of(uint32_t *arrived, uint32_t n)
{
    __shared__ uint32_t before;
    __syncthreads();
    if (threadIdx.x == 0) {
#if CUDA_SM90
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(arrived)
                     : "memory");
#else
        __threadfence();
        before = atomicAdd(arrived, 1);
        __threadfence();
#endif
        if (before + 1 == n) *arrived = 0;
    }
    __syncthreads();
    return before + 1 == n;
}

/* ---- units of weights ------------------------------------------------------------------------ */
__host__ __device__ constexpr int chunk_bytes(int type)
{
    return type == CUDA_F32 ? 32 : type <= CUDA_BF16 ? 16 : type == CUDA_Q8_0 ? 8 : 4;
}
__host__ __device__ constexpr bool has_min(int type)
{
    return type == CUDA_Q4_1 || type == CUDA_Q4_K;
}

/* half2 of bits -> two floats, less a bias that both halves carry exactly. */
__device__ inline void put_pair(uint32_t bits, float bias, float &a, float &b)
{
    const __half2 h = *(const __half2 *)&bits;
    const float2 f = __half22float2(__hsub2(h, __float2half2_rn(bias)));
    a = f.x, b = f.y;
}

/* Chunk j of row r of a unit of `rows` rows as it lies. */
template <int T> struct raw_chunk {
    uint32_t v[T == CUDA_F32 ? 8 : T <= CUDA_BF16 ? 4 : T == CUDA_Q8_0 || T == CUDA_Q6_K ? 2 : 1];
};
template <int T>
__device__ inline raw_chunk<T> load_chunk(const uint8_t *u, uint32_t rows, uint32_t r, uint32_t j)
{
    raw_chunk<T> c;
    if constexpr (T == CUDA_F32) {
        const uint4 a = *(const uint4 *)(u + (r * 8 + j) * 16);
        const uint4 b = *(const uint4 *)(u + (rows * 8 + r * 8 + j) * 16);
        c.v[0] = a.x, c.v[1] = a.y, c.v[2] = a.z, c.v[3] = a.w;
        c.v[4] = b.x, c.v[5] = b.y, c.v[6] = b.z, c.v[7] = b.w;
    } else if constexpr (T <= CUDA_BF16) {
        const uint4 a = *(const uint4 *)(u + r * 128 + ((j ^ (r & 7)) * 16));
        c.v[0] = a.x, c.v[1] = a.y, c.v[2] = a.z, c.v[3] = a.w;
    } else if constexpr (T == CUDA_Q8_0) {
        const uint2 a = *(const uint2 *)(u + (r * 8 + j) * 8);
        c.v[0] = a.x, c.v[1] = a.y;
    } else {
        c.v[0] = *(const uint32_t *)(u + (r * 8 + j) * 4);
        if constexpr (T == CUDA_Q6_K) {
            const uint32_t p = *(const uint16_t *)(u + rows * 32 + (r * 8 + j) * 2);
            c.v[1] = (p & 0xff) | (p & 0xff00) << 8;
        }
    }
    return c;
}

/* Its levels, exact; scales come later. 0x6400 is 1024 in half precision, where a step of the last
 * bit is 1. */
template <int T> __device__ inline void levels(const raw_chunk<T> &c, float (&w)[8])
{
    if constexpr (T == CUDA_F32) {
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = __uint_as_float(c.v[i]);
    } else if constexpr (T == CUDA_F16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 f = __half22float2(*(const __half2 *)&c.v[i]);
            w[2 * i] = f.x, w[2 * i + 1] = f.y;
        }
    } else if constexpr (T == CUDA_BF16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[2 * i] = __uint_as_float(c.v[i] << 16);
            w[2 * i + 1] = __uint_as_float(c.v[i] & 0xffff0000U);
        }
    } else if constexpr (T == CUDA_Q8_0) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            put_pair(__byte_perm(c.v[i], 0x64646464U, 0x4140), 1152, w[4 * i], w[4 * i + 1]);
            put_pair(__byte_perm(c.v[i], 0x64646464U, 0x4342), 1152, w[4 * i + 2], w[4 * i + 3]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t bits = (c.v[0] >> 4 * i & 0x000f000fU) | 0x64006400U;
            if constexpr (T == CUDA_Q6_K) bits |= (c.v[1] >> 2 * i & 0x00030003U) << 4;
            put_pair(bits,
                     T == CUDA_Q4_0   ? 1032
                     : T == CUDA_Q6_K ? 1056
                                      : 1024,
                     w[2 * i], w[2 * i + 1]);
        }
    }
}

__device__ inline float half_of(uint32_t bits)
{
    return __half2float(__ushort_as_half((unsigned short)bits));
}
/* What scales a chunk, as it lies. */
template <int T> struct raw_scale {
    uint32_t v[T == CUDA_Q4_K || T == CUDA_Q6_K ? 2 : 1];
};
/* Scale (x) and minimum (y) of chunk j of a row: weight = x * level - y. */
template <int T> __device__ inline float2 scale_from(const raw_scale<T> &k, uint32_t j)
{
    float2 s = {1, 0};
    if constexpr (T == CUDA_Q8_0 || T == CUDA_Q4_0) s.x = half_of(k.v[0]);
    if constexpr (T == CUDA_Q4_1) s.x = half_of(k.v[0] & 0xffff), s.y = -half_of(k.v[0] >> 16);
    if constexpr (T == CUDA_Q4_K) {
        const uint32_t sc = j < 4 ? k.v[0] : k.v[0] >> 16;
        s.x = half_of(k.v[1] & 0xffff) * (float)(sc & 0xff);
        s.y = half_of(k.v[1] >> 16) * (float)(sc >> 8 & 0xff);
    }
    if constexpr (T == CUDA_Q6_K)
        s.x = half_of(k.v[1] & 0xffff) * (float)(int8_t)(k.v[0] >> (j / 2 * 8));
    return s;
}
/* The same of row r of a unit of `rows` rows. */
template <int T>
__device__ inline float2 scale_of(const uint8_t *u, uint32_t rows, uint32_t r, uint32_t j)
{
    raw_scale<T> k;
    const uint8_t *at = u + rows * 8 * (T == CUDA_Q6_K ? 6 : chunk_bytes(T));
    if constexpr (T == CUDA_Q8_0 || T == CUDA_Q4_0)
        k.v[0] = *(const uint16_t *)(at + r * 4 + j / 4 * 2);
    if constexpr (T == CUDA_Q4_1) k.v[0] = *(const uint32_t *)(at + r * 8 + j / 4 * 4);
    if constexpr (T == CUDA_Q4_K || T == CUDA_Q6_K) {
        const uint2 v = *(const uint2 *)(at + r * 8);
        k.v[0] = v.x, k.v[1] = v.y;
    }
    return scale_from<T>(k, j);
}

/* acc + the chunk's 8 products; s: its scale; sx: sum of x, for types with a minimum. The order of
 * all sums of the engine begins here: columns upwards in a chunk, a scale applied to its sum. */
template <int T>
__device__ inline float dot8(const raw_chunk<T> &c, float2 s, const float (&x)[8], float sx,
                             float acc)
{
    float w[8];
    levels<T>(c, w);
    if constexpr (T <= CUDA_BF16) {
#pragma unroll
        for (int e = 0; e < 8; e++) acc = fmaf(w[e], x[e], acc);
        return acc;
    } else {
        float t = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) t = fmaf(w[e], x[e], t);
        acc = fmaf(s.x, t, acc);
        return has_min(T) ? fmaf(-s.y, sx, acc) : acc;
    }
}

/* Groups of warp w, and those of the warps before it. */
__device__ inline uint32_t groups_of(uint32_t groups, uint32_t w)
{
    return groups / CUDA_WARPS + (w < groups % CUDA_WARPS);
}
__device__ inline uint32_t groups_before(uint32_t groups, uint32_t w)
{
    return groups / CUDA_WARPS * w + min(w, groups % CUDA_WARPS);
}
/* Bytes from w to the first unit of warp w of block b. */
__device__ inline uint64_t warp_at(const cuda_mat &m, uint32_t b, uint32_t w)
{
    return (uint64_t)((b * m.groups + groups_before(m.groups, w)) * m.layers) * m.unit_bytes;
}

/* Columns k and k+1 of one row, as the definition of the format rounds them. */
template <int T> __device__ inline float2 pair_at(const cuda_mat &m, uint32_t row, uint32_t k)
{
    const uint32_t g = k / CUDA_GROUP, w = g % CUDA_WARPS, in = row % m.per_block;
    const uint64_t unit = (uint64_t)(in / m.unit_rows) * groups_of(m.groups, w) + g / CUDA_WARPS;
    const uint8_t *u = m.w + warp_at(m, row / m.per_block, w) + unit * m.unit_bytes;
    const uint32_t r = in % m.unit_rows, j = k % CUDA_GROUP / 8;
    float v[8];
    levels<T>(load_chunk<T>(u, m.unit_rows, r, j), v);
    const float2 s = scale_of<T>(u, m.unit_rows, r, j);
    float2 y = {0, 0};
#pragma unroll
    for (int e = 0; e < 8; e += 2)
        if (k % 8 == e) y = make_float2(v[e], v[e + 1]);
    if (T <= CUDA_BF16) return y;
    return make_float2(__fsub_rn(__fmul_rn(s.x, y.x), s.y), __fsub_rn(__fmul_rn(s.x, y.y), s.y));
}
__device__ __noinline__ float2 embed_pair(const cuda_mat &m, uint32_t row, uint32_t k)
{
    switch (m.type) {
    case CUDA_F32: return pair_at<CUDA_F32>(m, row, k);
    case CUDA_F16: return pair_at<CUDA_F16>(m, row, k);
    case CUDA_BF16: return pair_at<CUDA_BF16>(m, row, k);
    case CUDA_Q8_0: return pair_at<CUDA_Q8_0>(m, row, k);
    case CUDA_Q4_0: return pair_at<CUDA_Q4_0>(m, row, k);
    case CUDA_Q4_1: return pair_at<CUDA_Q4_1>(m, row, k);
    case CUDA_Q4_K: return pair_at<CUDA_Q4_K>(m, row, k);
    default: return pair_at<CUDA_Q6_K>(m, row, k);
    }
}

/* ---- one head, by half a warp -------------------------------------------------------------------
 * Lane i of 16 holds elements i*E .. i*E+E-1 of a head of hd <= 16*E; lanes past the end hold
 * zeros. */

/* The angle's cosine and sine for position pos, times the scale; in double precision like `ref`. */
__device__ inline float2 turn_at(const cuda_rope &r, int k, uint32_t i, uint32_t pos, bool lengthy)
{
    const float *freq = k ? r.freq[1] : r.freq[0], *far = k ? r.freq_long[1] : r.freq_long[0];
    const double m = (double)(k ? r.mscale[1] : r.mscale[0]);
    double s, c;
    sincos((double)pos * (double)(lengthy && far ? far[i] : freq[i]), &s, &c);
    return make_float2((float)(c * m), (float)(s * m));
}

/* Walsh-Hadamard transform (step/kvpool.h), hd a power of two. */
template <int E> __device__ inline void hadamard(float (&v)[E], uint32_t hd, float scale)
{
    const uint32_t i = thread_now() % 16;
#pragma unroll
    for (int h = 1; h < E; h *= 2)
#pragma unroll
        for (int e = 0; e < E; e++) {
            if ((e & h) || h >= hd) continue;
            const float x = v[e], y = v[e + h];
            v[e] = x + y, v[e + h] = x - y;
        }
#pragma unroll
    for (int h = 1; h < 16; h *= 2) {
        if (h * E >= hd) break;
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float x = __shfl_xor_sync(0xffffffffU, v[e], h);
            v[e] = (i & h) ? x - v[e] : v[e] + x;
        }
    }
#pragma unroll
    for (int e = 0; e < E; e++) v[e] *= scale;
}

/* The norm's gains for this lane; ones where there are none. */
template <int E> __device__ inline void head_gain(const cuda_heads &h, int seg, float (&g)[E])
{
    const float *gain = seg == 0 ? h.norm[0] : seg == 1 ? h.norm[1] : NULL;
    const uint32_t d0 = thread_now() % 16 * E;
#pragma unroll
    for (int e = 0; e < E; e += 4) {
        const float4 x =
            gain && d0 < h.head_dim ? *(const float4 *)(gain + d0 + e) : make_float4(1, 1, 1, 1);
        g[e] = x.x, g[e + 1] = x.y, g[e + 2] = x.z, g[e + 3] = x.w;
    }
}

/* Bias, norm and rotation of head `head` of part `seg` (0 Q, 1 K, 2 V). cs: cosines and sines of
 * the row; gain: head_gain's; buf: hd floats of shared memory that belong to this half warp. Both
 * halves of a warp call it, seg may differ. */
template <int E>
__device__ inline void finish_head(const cuda_heads &h, uint32_t half_rope, const float2 *cs,
                                   int seg, uint32_t head, float (&v)[E], const float (&gain)[E],
                                   float *buf)
{
    const uint32_t hd = h.head_dim, d0 = thread_now() % 16 * E;
    const float *bias = seg == 0 ? h.bias[0] : seg == 1 ? h.bias[1] : h.bias[2];
    const bool in = d0 < hd;
    if (bias && in)
#pragma unroll
        for (int e = 0; e < E; e++) v[e] += bias[head * hd + d0 + e];
    if (h.norm[0]) { /* of Q and K: both or none */
        float sq = 0;
#pragma unroll
        for (int e = 0; e < E; e++) sq = fmaf(v[e], v[e], sq);
        sq = sum_lanes(sq, 16);
        const float f = norm_factor(sq, hd, h.eps);
#pragma unroll
        for (int e = 0; e < E; e++) v[e] = seg < 2 ? v[e] * (f * gain[e]) : v[e];
    }
    if (half_rope) { /* the same for all lanes; V only takes part in the exchange */
        if (in)
#pragma unroll
            for (int e = 0; e < E; e += 4)
                *(float4 *)(buf + d0 + e) = make_float4(v[e], v[e + 1], v[e + 2], v[e + 3]);
        __syncwarp();
        if (in && seg < 2) {
#pragma unroll
            for (int e = 0; e < E; e += 4) {
                const uint32_t x = d0 + e;
                if (x >= 2 * half_rope) continue;
                const bool low = x < half_rope;
                const float4 p = *(const float4 *)(buf + (low ? x + half_rope : x - half_rope));
                const float2 *t = cs + (low ? x : x - half_rope);
                const float sign = low ? -1 : 1, w[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
                for (int i = 0; i < 4; i++) v[e + i] = v[e + i] * t[i].x + sign * (w[i] * t[i].y);
            }
        }
        __syncwarp();
    }
    if (h.spin[0] != 0) {
        float t[E];
#pragma unroll
        for (int e = 0; e < E; e++) t[e] = v[e];
        hadamard<E>(t, hd, seg == 0 ? h.spin[0] : h.spin[1]);
        if (seg < 2)
#pragma unroll
            for (int e = 0; e < E; e++) v[e] = t[e];
    }
}

/* E elements into the cache, or from it; W 16-byte words of them. */
template <int E, bool HALF> __device__ inline void put_kv(uint8_t *at, const float (&v)[E])
{
#pragma unroll
    for (int e = 0; e < E; e += 8)
        if constexpr (HALF) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const __half2 p = __floats2half2_rn(v[e + 2 * i], v[e + 2 * i + 1]);
                w[i] = *(const uint32_t *)&p;
            }
            *(uint4 *)(at + 2 * e) = make_uint4(w[0], w[1], w[2], w[3]);
        } else {
            *(float4 *)(at + 4 * e) = make_float4(v[e], v[e + 1], v[e + 2], v[e + 3]);
            *(float4 *)(at + 4 * e + 16) = make_float4(v[e + 4], v[e + 5], v[e + 6], v[e + 7]);
        }
}
template <int E, bool HALF>
__device__ inline void floats_of(const uint4 (&raw)[HALF ? E / 8 : E / 4], float (&v)[E])
{
#pragma unroll
    for (int i = 0; i < (HALF ? E / 8 : E / 4); i++) {
        const uint32_t w[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if constexpr (HALF) {
                const float2 f = __half22float2(*(const __half2 *)&w[k]);
                v[8 * i + 2 * k] = f.x, v[8 * i + 2 * k + 1] = f.y;
            } else v[4 * i + k] = __uint_as_float(w[k]);
        }
    }
}
#endif
