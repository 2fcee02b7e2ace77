/* device.cuh - pieces that kernels share: dependent launch, bulk copies with their barriers, sums
 * over a warp, rows of the batch, decoding of a chunk of weights. Included by the .cu files. */
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
__device__ inline void bar_init(uint64_t *bar)
{
#if CUDA_SM90
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_at(bar)) : "memory");
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

/* ---- sums ------------------------------------------------------------------------------------ */
/* Sum over the lanes whose numbers differ in the bits below `width`, the same bits in all of them.
 */
__device__ inline float sum_lanes(float v, int width)
{
    for (int d = width / 2; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffU, v, d);
    return v;
}
__device__ inline float max_lanes(float v, int from, int width)
{
    for (int d = width / 2; d >= from; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffU, v, d));
    return v;
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
 * counter is 0 again. All threads of the block call
 * it, once a kernel. */
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

/* ---- weights --------------------------------------------------------------------------------- */
__host__ __device__ constexpr int chunk_of(int type)
{
    return type <= CUDA_BF16 ? 8 : type == CUDA_Q8_0 ? 16 : 32;
}
/* Elements that share a scale, within a chunk; 0: no scales. */
__host__ __device__ constexpr int flush_of(int type)
{
    return type <= CUDA_BF16 ? 0 : type == CUDA_Q8_0 || type == CUDA_Q6_K ? 16 : 32;
}
__host__ __device__ constexpr bool has_min(int type)
{
    return type == CUDA_Q4_1 || type == CUDA_Q4_K;
}

struct raw_chunk {
    uint32_t v[8]; /* f32: all; q6_k: 4 words of low bits, 2 of high ones; else 4 words */
};

template <int T>
__device__ inline raw_chunk load_chunk(const uint8_t *row, uint32_t c, uint32_t cols)
{
    raw_chunk r;
    const uint4 a = *(const uint4 *)(row + (T == CUDA_F32 ? 32 : 16) * c);
    r.v[0] = a.x, r.v[1] = a.y, r.v[2] = a.z, r.v[3] = a.w;
    if constexpr (T == CUDA_F32) {
        const uint4 b = *(const uint4 *)(row + 32 * c + 16);
        r.v[4] = b.x, r.v[5] = b.y, r.v[6] = b.z, r.v[7] = b.w;
    }
    if constexpr (T == CUDA_Q6_K) {
        const uint2 b = *(const uint2 *)(row + cols / 2 + 8 * c);
        r.v[4] = b.x, r.v[5] = b.y;
    }
    return r;
}

/* half2 of bits -> two floats, less a bias that both halves carry exactly. */
__device__ inline void put_pair(uint32_t bits, float bias, float &a, float &b)
{
    const __half2 h = *(const __half2 *)&bits;
    const float2 f = __half22float2(__hsub2(h, __float2half2_rn(bias)));
    a = f.x, b = f.y;
}

/* Levels of elements 8j .. 8j+7 of a chunk, exact; scales come later. 0x6400 is 1024 in half
 * precision, where a step of the last bit is 1. */
template <int T> __device__ inline void group_of(const raw_chunk &r, int j, float w[8])
{
    if constexpr (T == CUDA_F32) {
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = __uint_as_float(r.v[i]);
    } else if constexpr (T == CUDA_F16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 f = __half22float2(*(const __half2 *)&r.v[i]);
            w[2 * i] = f.x, w[2 * i + 1] = f.y;
        }
    } else if constexpr (T == CUDA_BF16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[2 * i] = __uint_as_float(r.v[i] << 16);
            w[2 * i + 1] = __uint_as_float(r.v[i] & 0xffff0000U);
        }
    } else if constexpr (T == CUDA_Q8_0) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t v = r.v[2 * j + i];
            put_pair(__byte_perm(v, 0x64646464U, 0x4140), 1152, w[4 * i], w[4 * i + 1]);
            put_pair(__byte_perm(v, 0x64646464U, 0x4342), 1152, w[4 * i + 2], w[4 * i + 3]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t bits = (r.v[j] >> 4 * i & 0x000f000fU) | 0x64006400U;
            if constexpr (T == CUDA_Q6_K) {
                const int p = 4 * (j % 2) + i; /* which pair of bits of the word */
                const uint32_t h = r.v[4 + j / 2];
                bits |= (p < 2 ? h << (4 - 2 * p) : h >> (2 * p - 4)) & 0x00300030U;
            }
            put_pair(bits,
                     T == CUDA_Q4_0   ? 1032
                     : T == CUDA_Q6_K ? 1056
                                      : 1024,
                     w[2 * i], w[2 * i + 1]);
        }
    }
}

__device__ inline float half_at(const uint8_t *p)
{
    return __half2float(*(const __half *)p);
}
/* Scale (x) and minimum (y) of part `part` of chunk c: weight = x * level - y. */
template <int T>
__device__ inline float2 scale_of(const uint8_t *row, uint32_t c, int part, uint32_t cols)
{
    float2 s = {1, 0};
    if constexpr (T == CUDA_Q8_0) s.x = half_at(row + cols + c / 2 * 2);
    if constexpr (T == CUDA_Q4_0) s.x = half_at(row + cols / 2 + 2 * c);
    if constexpr (T == CUDA_Q4_1) {
        s.x = half_at(row + cols / 2 + 4 * c);
        s.y = -half_at(row + cols / 2 + 4 * c + 2);
    }
    if constexpr (T == CUDA_Q4_K) {
        const uint8_t *sc = row + cols / 2 + 2 * c, *d = row + cols / 2 + cols / 16 + c / 8 * 4;
        s.x = half_at(d) * (float)sc[0];
        s.y = half_at(d + 2) * (float)sc[1];
    }
    if constexpr (T == CUDA_Q6_K) {
        const uint8_t *sc = row + cols / 2 + cols / 4 + 2 * c + part;
        s.x = half_at(row + cols / 2 + cols / 4 + cols / 16 + c / 8 * 2) * (float)(int8_t)*sc;
    }
    return s;
}
#endif
