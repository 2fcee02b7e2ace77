/* tensor.cu - prefill on tensor cores, class `act f16`: inputs of products are rounded to f16, sums
 * are f32, the residual stays f32. Code for sm_90a only.
 *
 * Activations lie as tiles: [groups of 64 columns][rows][64 columns], each row's 128 bytes swizzled
 * like those of units (kern.h), so that plain bulk copies bring both factors of a product into
 * shared memory as the tensor cores read them. A block computes 128 rows by BN columns: one warp
 * brings stages of 64 columns of K, two warpgroups multiply 64 rows each.
 *
 * Bits: an element's sum runs over K upwards, of products into the residual in four quarters that
 * are added upwards, whether four blocks take one each or one block all; attention takes blocks of
 * 64 keys that begin at multiples of 64. So a row's bits depend neither on the batch nor on how a
 * prompt is split. */
#include "backend/cuda/dot.cuh"
#include "backend/cuda/wgmma.cuh"

extern __shared__ __align__(1024) uint8_t smem[];

enum { ROWS = CUDA_TC_ROWS, STAGES_MAX = 8, KEYS = 64 };

__device__ inline uint64_t matrix_at(uint32_t addr, uint32_t lead)
{
    return (uint64_t)(addr >> 4 & 0x3fff) | (uint64_t)(lead >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ULL << 62;
}
__device__ inline void products_begin()
{
#if CUDA_SM90
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ inline void products_end()
{
#if CUDA_SM90
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int N> __device__ inline void products_wait()
{
#if CUDA_SM90
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}
__device__ inline void bar_arrive(uint64_t *bar)
{
#if CUDA_SM90
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(bar)) : "memory");
#endif
}
/* What kernels in front have stored is seen by the copy engine. */
__device__ inline void see_all_writes()
{
#if CUDA_SM90
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
/* What is no number in f16 becomes the largest one. */
__device__ inline float in_half(float v)
{
    return fminf(fmaxf(v, -65504.0F), 65504.0F);
}
__device__ inline uint32_t half_pair(float a, float b)
{
    const __half2 h = __floats2half2_rn(in_half(a), in_half(b));
    return *(const uint32_t *)&h;
}
/* Bytes from the start of tiles of `rows` rows to column c of row t. */
__device__ inline uint64_t tile_at(uint32_t rows, uint32_t t, uint32_t c)
{
    return ((uint64_t)(c / 64) * rows + t) * 128 + ((c % 64 / 8) ^ (t % 8)) * 16 + c % 8 * 2;
}

/* ---- weights: units of any type to tiles of f16 ---------------------------------------------- */

/* Rows row .. row+3 of group g: a chunk a lane. */
template <int T> __device__ inline void widen(const cuda_tc_widen &a, uint32_t row0, uint32_t g)
{
    const cuda_mat &m = a.m;
    const uint32_t j = threadIdx.x % 8, row = row0 + threadIdx.x % 32 / 8, w = g % CUDA_WARPS;
    const uint32_t in = row % m.per_block, r = in % m.unit_rows;
    if (row >= a.tile_rows) return;
    uint32_t h[4] = {0, 0, 0, 0};
    if (row < m.rows) {
        const uint64_t unit =
            (uint64_t)(in / m.unit_rows) * groups_of(m.groups, w) + g / CUDA_WARPS;
        const uint8_t *u = m.w + warp_at(m, row / m.per_block, w) + unit * m.unit_bytes;
        float v[8];
        levels<T>(load_chunk<T>(u, m.unit_rows, r, j), v);
        const float2 s = scale_of<T>(u, m.unit_rows, r, j);
#pragma unroll
        for (int i = 0; i < 4; i++)
            h[i] = half_pair(fmaf(s.x, v[2 * i], -s.y), fmaf(s.x, v[2 * i + 1], -s.y));
    }
    *(uint4 *)(a.dst + ((uint64_t)g * a.tile_rows + row) * 128 + ((j ^ (row & 7)) * 16)) =
        make_uint4(h[0], h[1], h[2], h[3]);
}
/* A block 32 rows of a group. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    cuda_tc_widen_units(const __grid_constant__ cuda_tc_widen a)
{
    const uint32_t row0 = blockIdx.x * 32 + threadIdx.x / 32 * 4, g = blockIdx.y;
    switch (a.m.type) {
    case CUDA_F32: widen<CUDA_F32>(a, row0, g); break;
    case CUDA_F16: widen<CUDA_F16>(a, row0, g); break;
    case CUDA_BF16: widen<CUDA_BF16>(a, row0, g); break;
    case CUDA_Q8_0: widen<CUDA_Q8_0>(a, row0, g); break;
    case CUDA_Q4_0: widen<CUDA_Q4_0>(a, row0, g); break;
    case CUDA_Q4_1: widen<CUDA_Q4_1>(a, row0, g); break;
    case CUDA_Q4_K: widen<CUDA_Q4_K>(a, row0, g); break;
    default: widen<CUDA_Q6_K>(a, row0, g); break;
    }
}

/* ---- residual and norm ----------------------------------------------------------------------- */

__device__ inline float add_squares(float4 v, float sq)
{
    return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sq))));
}
/* X += the quarters of a product; the row's norm as tiles. A block a row. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    cuda_tc_join_rows(const __grid_constant__ cuda_tc_join a)
{
    __shared__ float square[2][CUDA_THREADS / 32];
    constexpr int V = CUDA_TC_DIM_MAX / (4 * CUDA_THREADS);
    const uint32_t t = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float4 v[V], s[V];
    let_next_start();
    wait_before();
    if (t >= row_count(a.f, 0)) return;
    float sq = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        const uint32_t k = 4 * (threadIdx.x + i * CUDA_THREADS);
        v[i] = s[i] = make_float4(0, 0, 0, 0);
        if (k >= a.dim) continue;
        v[i] = __ldcg((const float4 *)(a.x + (uint64_t)t * a.dim + k));
        for (uint32_t z = 0; z < a.parts; z++) {
            const float4 p =
                __ldcg((const float4 *)(a.part + ((uint64_t)z * a.part_rows + t) * a.dim + k));
            s[i].x = z ? s[i].x + p.x : p.x, s[i].y = z ? s[i].y + p.y : p.y;
            s[i].z = z ? s[i].z + p.z : p.z, s[i].w = z ? s[i].w + p.w : p.w;
        }
        sq = add_squares(s[i], sq);
    }
    if (a.post) {
        sq = sum_lanes(sq, 32);
        if (lane == 0) square[0][warp] = sq;
        __syncthreads();
        const float f = norm_factor(sum_lanes(square[0][lane % 8], 8), a.dim, a.eps);
#pragma unroll
        for (int i = 0; i < V; i++) {
            const uint32_t k = 4 * (threadIdx.x + i * CUDA_THREADS);
            if (k >= a.dim) continue;
            const float4 g = *(const float4 *)(a.post + k);
            s[i].x *= f * g.x, s[i].y *= f * g.y, s[i].z *= f * g.z, s[i].w *= f * g.w;
        }
    }
    sq = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        const uint32_t k = 4 * (threadIdx.x + i * CUDA_THREADS);
        if (k >= a.dim) continue;
        v[i].x += s[i].x, v[i].y += s[i].y, v[i].z += s[i].z, v[i].w += s[i].w;
        if (a.parts) *(float4 *)(a.x + (uint64_t)t * a.dim + k) = v[i];
        sq = add_squares(v[i], sq);
    }
    if (!a.gain) return;
    sq = sum_lanes(sq, 32);
    if (lane == 0) square[1][warp] = sq;
    __syncthreads();
    const float f = norm_factor(sum_lanes(square[1][lane % 8], 8), a.dim, a.eps);
#pragma unroll
    for (int i = 0; i < V; i++) {
        const uint32_t k = 4 * (threadIdx.x + i * CUDA_THREADS);
        if (k >= a.dim) continue;
        const float4 g = *(const float4 *)(a.gain + k);
        *(uint2 *)(a.xh + tile_at(a.tile_rows, t, k)) =
            make_uint2(half_pair(v[i].x * f * g.x, v[i].y * f * g.y),
                       half_pair(v[i].z * f * g.z, v[i].w * f * g.w));
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Stages of shared memory: rows of x, then BN rows of weights. */
struct pipe {
    uint64_t full[STAGES_MAX], empty[STAGES_MAX];
};

/* Bring group g of the weights, or of the rows. One thread. */
template <int BN>
__device__ inline void bring_weights(const cuda_tc &a, uint32_t g, uint32_t stage, uint64_t *bar)
{
    bulk_copy(smem + stage * (ROWS + BN) * 128 + ROWS * 128,
              a.w + ((uint64_t)g * a.w_rows + blockIdx.x * BN) * 128,
              min((uint32_t)BN, a.w_rows - blockIdx.x * BN) * 128, bar);
}
template <int BN>
__device__ inline void bring_rows(const cuda_tc &a, uint32_t g, uint32_t stage, uint64_t *bar)
{
    bulk_copy(smem + stage * (ROWS + BN) * 128,
              a.x + ((uint64_t)g * a.tile_rows + blockIdx.y * ROWS) * 128, ROWS * 128, bar);
}

/* All stages of groups g0 .. g0+n-1, by one thread. The first weights are asked for before the
 * kernel in front has ended. */
template <int BN>
__device__ inline void produce(const cuda_tc &a, pipe &p, uint32_t g0, uint32_t n)
{
    const uint32_t first = min(n, a.stages);
    const uint32_t bytes = (ROWS + min((uint32_t)BN, a.w_rows - blockIdx.x * BN)) * 128;
    for (uint32_t i = 0; i < first; i++) {
        bar_expect(p.full + i, bytes);
        bring_weights<BN>(a, g0 + i, i, p.full + i);
    }
    wait_before();
    see_all_writes();
    for (uint32_t i = 0; i < first; i++) bring_rows<BN>(a, g0 + i, i, p.full + i);
    if (blockIdx.y * ROWS >= row_count(a.f, 0)) { /* no such rows; the copies must have come */
        for (uint32_t i = 0; i < first; i++) bar_wait(p.full + i, 0);
        return;
    }
    uint32_t stage = 0, parity = 0;
    for (uint32_t i = first; i < n; i++) {
        bar_wait(p.empty + stage, parity);
        bar_expect(p.full + stage, bytes);
        bring_rows<BN>(a, g0 + i, stage, p.full + stage);
        bring_weights<BN>(a, g0 + i, stage, p.full + stage);
        if (++stage == a.stages) stage = 0, parity ^= 1;
    }
}

/* The warpgroup's 64 rows by BN columns of one range of groups; a stage is given back when the
 * products of the next one have been issued. */
struct reader {
    uint32_t stage, parity;
};
template <int BN>
__device__ inline void multiply(const cuda_tc &a, pipe &p, reader &r, uint32_t n,
                                float (&d)[BN / 2])
{
    const uint32_t wg = threadIdx.x / 128, lane = threadIdx.x % 32;
    const uint32_t base = shared_at(smem);
    uint32_t last = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = base + r.stage * (ROWS + BN) * 128;
        const uint64_t x = matrix_at(at + wg * 64 * 128, 16), w = matrix_at(at + ROWS * 128, 16);
        bar_wait(p.full + r.stage, r.parity);
        products_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) wgmma_ss(d, x + 2 * k, w + 2 * k, i + k > 0);
        products_end();
        if (i > 0) {
            products_wait<1>();
            if (lane == 0) bar_arrive(p.empty + last);
        }
        last = r.stage;
        if (++r.stage == a.stages) r.stage = 0, r.parity ^= 1;
    }
    products_wait<0>();
    if (n > 0 && lane == 0) bar_arrive(p.empty + last);
}

/* ---- what follows a product: a thread has rows r and r+8, columns 8i+2q and 8i+2q+1 ---------- */

template <int BN>
__device__ inline void put_quarter(const cuda_tc &a, uint32_t z, uint32_t n,
                                   const float (&d)[BN / 2])
{
    const uint32_t lane = threadIdx.x % 32, q = lane % 4;
    const uint32_t t0 = blockIdx.y * ROWS + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t t = t0 + 8 * h;
        if (t >= n) continue;
        float *y = a.y + ((uint64_t)z * a.part_rows + t) * a.rows;
#pragma unroll
        for (int i = 0; i < BN / 8; i++) {
            const uint32_t c = blockIdx.x * BN + 8 * i + 2 * q;
            if (c < a.rows)
                *(float2 *)(y + c) = make_float2(d[4 * i + 2 * h], d[4 * i + 2 * h + 1]);
        }
    }
}

/* Gate and up stand side by side. Lanes exchange so that each writes two neighbours. */
template <int BN>
__device__ inline void put_gated(const cuda_tc &a, uint32_t n, const float (&d)[BN / 2])
{
    const uint32_t lane = threadIdx.x % 32, q = lane % 4, odd = q % 2;
    const uint32_t t0 = blockIdx.y * ROWS + threadIdx.x / 32 * 16 + lane / 4;
    const bool gelu = a.flags & CUDA_MUL_GELU;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t t = t0 + 8 * h;
#pragma unroll
        for (int i = 0; i < BN / 8; i += 2) {
            const float v0 = gated(d[4 * i + 2 * h], d[4 * i + 2 * h + 1], gelu);
            const float v1 = gated(d[4 * i + 4 + 2 * h], d[4 * i + 4 + 2 * h + 1], gelu);
            const float got = __shfl_xor_sync(0xffffffffU, odd ? v0 : v1, 1);
            const uint32_t c = blockIdx.x * (BN / 2) + 4 * i + (odd ? 4 + q - 1 : q);
            if (t < n && 2 * c < a.rows)
                *(uint32_t *)(a.h_out + tile_at(a.tile_rows, t, c)) =
                    odd ? half_pair(got, v1) : half_pair(v0, got);
        }
    }
}

/* Transform of step/kvpool.h over a head whose elements 8i+2q+e lie in four lanes. */
template <int HD> __device__ inline void spin_head(float (&v)[HD / 4], float scale)
{
    const uint32_t q = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < HD / 4; i += 2) {
        const float x = v[i], y = v[i + 1];
        v[i] = x + y, v[i + 1] = x - y;
    }
#pragma unroll
    for (uint32_t w = 1; w < 4; w *= 2)
#pragma unroll
        for (int i = 0; i < HD / 4; i++) {
            const float x = __shfl_xor_sync(0xffffffffU, v[i], w);
            v[i] = (q & w) ? x - v[i] : v[i] + x;
        }
#pragma unroll
    for (int w = 2; w < HD / 4; w *= 2)
#pragma unroll
        for (int i = 0; i < HD / 4; i++) {
            if (i & w) continue;
            const float x = v[i], y = v[i + w];
            v[i] = x + y, v[i + w] = x - y;
        }
#pragma unroll
    for (int i = 0; i < HD / 4; i++) v[i] *= scale;
}

/* Bias, norm, rotation and transform of one row of one head. seg: 0 Q, 1 K, 2 V. */
template <int HD>
__device__ inline void finish_row(const cuda_tc &a, uint32_t seg, uint32_t head, uint32_t t,
                                  float (&v)[HD / 4])
{
    const uint32_t q = threadIdx.x % 4;
    const float *bias = seg == 0 ? a.h.bias[0] : seg == 1 ? a.h.bias[1] : a.h.bias[2];
    if (bias)
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            const float2 b = *(const float2 *)(bias + head * HD + 8 * i + 2 * q);
            v[2 * i] += b.x, v[2 * i + 1] += b.y;
        }
    if (seg == 2) return;
    const float *gain = seg ? a.h.norm[1] : a.h.norm[0];
    if (gain) {
        float sq = 0;
#pragma unroll
        for (int i = 0; i < HD / 4; i++) sq = fmaf(v[i], v[i], sq);
        const float f = norm_factor(sum_lanes(sq, 4), HD, a.h.eps);
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            const float2 g = *(const float2 *)(gain + 8 * i + 2 * q);
            v[2 * i] *= f * g.x, v[2 * i + 1] *= f * g.y;
        }
    }
    const uint32_t k = a.h.rope_i;
    if (k == 0 ? a.rope.half[0] : k == 1 ? a.rope.half[1] : 0) { /* half the head, says the host */
        const float2 *cs =
            (const float2 *)(a.rope.table + (uint64_t)t * a.rope.row) +
            (k == 1 ? a.rope.half[0] : 0);
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            const float4 c = __ldcg((const float4 *)(cs + 8 * i + 2 * q));
            float *lo = v + 2 * i, *hi = v + 2 * i + HD / 8;
            const float x = lo[0], y = lo[1];
            lo[0] = x * c.x - hi[0] * c.y, lo[1] = y * c.z - hi[1] * c.w;
            hi[0] = hi[0] * c.x + x * c.y, hi[1] = hi[1] * c.z + y * c.w;
        }
    }
    if (a.h.spin[0] != 0) spin_head<HD>(v, seg ? a.h.spin[1] : a.h.spin[0]);
}

/* Heads: K and V into their pages, Q as tiles or as numbers. */
template <int BN, int HD>
__device__ inline void put_heads(const cuda_tc &a, uint32_t n, float (&d)[BN / 2])
{
    const uint32_t lane = threadIdx.x % 32, q = lane % 4, nh = a.h.n_heads, nkv = a.h.n_kv_heads;
    const uint32_t t0 = blockIdx.y * ROWS + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int p = 0; p < BN / HD; p++) {
        const uint32_t row = blockIdx.x * BN + p * HD, all = (a.row0 + row) / HD;
        if (row >= a.rows) continue;
        const uint32_t seg = all < nh ? 0 : all < nh + nkv ? 1 : 2;
        const uint32_t head = all - (seg ? nh : 0) - (seg == 2 ? nkv : 0);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t t = t0 + 8 * h, b = min(t, n - 1);
            float v[HD / 4];
#pragma unroll
            for (int i = 0; i < HD / 8; i++) {
                v[2 * i] = d[p * HD / 2 + 4 * i + 2 * h];
                v[2 * i + 1] = d[p * HD / 2 + 4 * i + 2 * h + 1];
            }
            finish_row<HD>(a, seg, head, b, v);
            if (t >= n) continue;
            if (seg == 0 && a.q32) {
                float *to = a.q32 + ((uint64_t)t * nh + head) * HD + 2 * q;
#pragma unroll
                for (int i = 0; i < HD / 8; i++)
                    *(float2 *)(to + 8 * i) = make_float2(v[2 * i], v[2 * i + 1]);
            } else if (seg == 0) {
#pragma unroll
                for (int i = 0; i < HD / 8; i++)
                    *(uint32_t *)(a.h_out + tile_at(a.tile_rows, t, head * HD + 8 * i + 2 * q)) =
                        half_pair(v[2 * i], v[2 * i + 1]);
            } else {
                const uint32_t pos = __ldcg(a.f.word + a.f.pos + t);
                const uint32_t seq = __ldcg(a.f.word + a.f.seq + t);
                const uint32_t *pages = a.f.word + (a.h.kv_class ? a.f.page[1] : a.f.page[0]);
                const uint64_t page = __ldcg(pages + seq * a.f.n_table + pos / 32);
                uint8_t *to = (seg == 2 ? a.h.plane[1] : a.h.plane[0]) +
                              page * (seg == 2 ? a.h.page_bytes[1] : a.h.page_bytes[0]) +
                              ((uint64_t)(head * 32 + pos % 32) * HD + 2 * q) * 2;
#pragma unroll
                for (int i = 0; i < HD / 8; i++) {
                    const __half2 x = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
                    *(uint32_t *)(to + 16 * i) = *(const uint32_t *)&x;
                }
            }
        }
    }
}

enum { EPI_ONE, EPI_ALL, EPI_GATED, EPI_HEADS };

template <int BN, int EPI, int HD> __device__ inline void product(const cuda_tc &a)
{
#if CUDA_SM90
    __shared__ pipe p;
    const uint32_t parts = EPI <= EPI_ALL ? (uint32_t)CUDA_TC_PARTS : 1U;
    const uint32_t z = EPI == EPI_ONE ? blockIdx.z : 0, groups = a.groups;
    const uint32_t g0 = groups * z / parts, g1 = EPI == EPI_ONE ? groups * (z + 1) / parts : groups;
    let_next_start();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < a.stages; i++) bar_init(p.full + i, 1), bar_init(p.empty + i, 8);
        bar_fence();
    }
    __syncthreads();
    if (threadIdx.x >= 2 * 128) {
        if (threadIdx.x == 2 * 128) produce<BN>(a, p, g0, g1 - g0);
        else wait_before();
        return;
    }
    wait_before();
    const uint32_t n = row_count(a.f, 0);
    if (blockIdx.y * ROWS >= n) return;
    reader r = {0, 0};
    float d[BN / 2];
    if constexpr (EPI == EPI_ALL) {
        float sum[BN / 2];
        for (uint32_t k = 0; k < parts; k++) {
            const uint32_t from = groups * k / parts, to = groups * (k + 1) / parts;
#pragma unroll
            for (int i = 0; i < BN / 2; i++) d[i] = 0;
            multiply<BN>(a, p, r, to - from, d);
#pragma unroll
            for (int i = 0; i < BN / 2; i++) sum[i] = k ? sum[i] + d[i] : d[i];
        }
        put_quarter<BN>(a, 0, n, sum);
    } else {
#pragma unroll
        for (int i = 0; i < BN / 2; i++) d[i] = 0;
        multiply<BN>(a, p, r, g1 - g0, d);
        if constexpr (EPI == EPI_ONE) put_quarter<BN>(a, z, n, d);
        if constexpr (EPI == EPI_GATED) put_gated<BN>(a, n, d);
        if constexpr (EPI == EPI_HEADS) put_heads<BN, HD>(a, n, d);
    }
#endif
}
#define PRODUCT(name, BN, EPI, HD, blocks)                                                         \
    extern "C" __global__ void __launch_bounds__(CUDA_TC_THREADS, blocks)                          \
        name(const __grid_constant__ cuda_tc a)                                                    \
    {                                                                                              \
        product<BN, EPI, HD>(a);                                                                   \
    }
PRODUCT(cuda_tc_one_128, 128, EPI_ONE, 0, 2)
PRODUCT(cuda_tc_all_128, 128, EPI_ALL, 0, 1)
PRODUCT(cuda_tc_gate_128, 128, EPI_GATED, 0, 2)
PRODUCT(cuda_tc_heads_64, 128, EPI_HEADS, 64, 2)
PRODUCT(cuda_tc_heads_128, 128, EPI_HEADS, 128, 2)

/* ---- attention ------------------------------------------------------------------------------- */

__device__ inline void copy_16(uint32_t to, const void *from, bool in)
{
#if CUDA_SM90
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(in ? 16 : 0)
                 : "memory");
#endif
}
__device__ inline float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Rows of a tile that belong to one sequence: what they read. */
struct run_of_rows {
    uint32_t first, end, pages_at;
    int32_t least, most;
};

/* The two pages of a block of keys; 0xffffffff: none. */
__device__ inline uint2 pages_of(const cuda_tc_attn &a, const run_of_rows &u, uint32_t block)
{
    const uint32_t *at = a.f.word + u.pages_at + 2 * block;
    return make_uint2((int32_t)(block * KEYS) <= u.most ? __ldcg(at) : 0xffffffffU,
                      (int32_t)(block * KEYS + 32) <= u.most ? __ldcg(at + 1) : 0xffffffffU);
}
/* 64 keys and values from the cache into a stage. */
template <int HD>
__device__ inline void bring_keys(const cuda_tc_attn &a, const run_of_rows &u, uint2 pages,
                                  uint32_t kv, uint32_t block, uint32_t to)
{
    constexpr uint32_t CHUNKS = HD / 8, PLANE = KEYS * HD * 2;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < KEYS * CHUNKS; i += blockDim.x) {
        const uint32_t r = i / CHUNKS, c = i % CHUNKS, key = block * KEYS + r;
        const uint32_t page = r < 32 ? pages.x : pages.y;
        const bool in = page != 0xffffffffU && (int32_t)key <= u.most;
        const uint64_t p = in ? page : 0, e = ((uint64_t)(kv * 32 + key % 32) * HD + c * 8) * 2;
        const uint32_t at = to + (c / 8) * (KEYS * 128) + r * 128 + ((c % 8) ^ (r % 8)) * 16;
        copy_16(at, a.h.plane[0] + p * a.h.page_bytes[0] + e, in);
        copy_16(at + PLANE, a.h.plane[1] + p * a.h.page_bytes[1] + e, in);
    }
#if CUDA_SM90
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* What a thread knows of its two rows. */
template <int HD> struct row_sums {
    float m[2], l[2], o[HD / 2];
};

/* One block of keys in stage `at`. */
template <int HD>
__device__ inline void add_keys(row_sums<HD> &s, uint32_t q_at, uint32_t at,
                                const int32_t (&last)[2], uint32_t key0, bool whole, uint32_t holes,
                                float scale)
{
    float d[KEYS / 2];
    products_begin();
#pragma unroll
    for (int k = 0; k < HD / 16; k++)
        wgmma_ss(d, matrix_at(q_at + k / 4 * (64 * 128) + k % 4 * 32, 16),
                 matrix_at(at + k / 4 * (KEYS * 128) + k % 4 * 32, 16), k > 0);
    products_end();
    products_wait<0>();
    if (!whole) {
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t key = (int32_t)(key0 + 8 * i + threadIdx.x % 4 * 2 + e % 2);
                if (key > last[e / 2] || (holes >> (i / 4) & 1)) d[4 * i + e] = -INFINITY;
            }
    }
    uint32_t p[KEYS / 4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = s.m[h];
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
            top = fmaxf(top, fmaxf(d[4 * i + 2 * h], d[4 * i + 2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
        const float at0 = top == -INFINITY ? 0 : top * scale;
        /* 1 to the bit where no key of the block is the row's: what stands beside it says how many
         * such blocks there are. */
        const float c = s.m[h] == top ? 1 : exp2_of(fmaf(s.m[h], scale, -at0));
        s.m[h] = top;
        float l = s.l[h] * c;
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++) {
            const float x = exp2_of(fmaf(d[4 * i + 2 * h], scale, -at0));
            const float y = exp2_of(fmaf(d[4 * i + 2 * h + 1], scale, -at0));
            const __half2 w = __floats2half2_rn(x, y);
            p[2 * i + h] = *(const uint32_t *)&w;
            l += x + y;
        }
        s.l[h] = l;
#pragma unroll
        for (int i = 0; i < HD / 8; i++) s.o[4 * i + 2 * h] *= c, s.o[4 * i + 2 * h + 1] *= c;
    }
    products_begin();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        const uint32_t w[4] = {p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3]};
        wgmma_rs(s.o, w, matrix_at(at + KEYS * HD * 2 + k * (16 * 128), KEYS * 128), 1);
    }
    products_end();
    products_wait<0>();
}

/* All keys of one run of rows. */
template <int HD>
__device__ inline void attend_run(const cuda_tc_attn &a, const run_of_rows &u, uint32_t kv,
                                  uint32_t q_at, uint32_t kv_at, const int32_t (&last)[2],
                                  row_sums<HD> &s)
{
    constexpr uint32_t STAGE = 2 * KEYS * HD * 2;
    const uint32_t blocks = (uint32_t)u.most / KEYS + 1;
    uint2 now = pages_of(a, u, 0), next = pages_of(a, u, 1);
    bring_keys<HD>(a, u, now, kv, 0, kv_at);
#pragma unroll 1
    for (uint32_t b = 0; b < blocks; b++) {
        const uint2 later = pages_of(a, u, b + 2);
        if (b + 1 < blocks) bring_keys<HD>(a, u, next, kv, b + 1, kv_at + (b + 1) % 2 * STAGE);
#if CUDA_SM90
        if (b + 1 < blocks) asm volatile("cp.async.wait_group 1;" ::: "memory");
        else asm volatile("cp.async.wait_group 0;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncthreads();
        const uint32_t holes = (now.x == 0xffffffffU) | (uint32_t)(now.y == 0xffffffffU) << 1;
        const bool whole = !holes && u.first == 0 && u.end == 64 &&
                           (int32_t)(b * KEYS + KEYS - 1) <= u.least;
        add_keys<HD>(s, q_at, kv_at + b % 2 * STAGE, last, b * KEYS, whole, holes, a.scale);
        now = next, next = later;
        __syncthreads();
    }
}

/* 64 rows of a query head a warpgroup; the block's warpgroups share a KV head. */
template <int HD> __device__ inline void attend(const cuda_tc_attn &a)
{
#if CUDA_SM90
    __shared__ uint64_t bar;
    __shared__ int32_t pos[64];
    __shared__ uint32_t seq[64];
    const uint32_t tile = gridDim.x - 1 - blockIdx.x, t0 = tile * 64, groups = blockDim.x / 128;
    const uint32_t per = a.h.n_heads / a.h.n_kv_heads, chunks = (per + groups - 1) / groups;
    const uint32_t kv = blockIdx.y / chunks, wg = threadIdx.x / 128;
    const uint32_t in_group = blockIdx.y % chunks * groups + wg;
    const uint32_t head = kv * per + min(in_group, per - 1), lane = threadIdx.x % 32;
    const uint32_t r0 = threadIdx.x % 128 / 32 * 16 + lane / 4;
    const uint32_t q_at = shared_at(smem) + wg * 64 * HD * 2;
    const uint32_t kv_at = shared_at(smem) + groups * 64 * HD * 2;
    let_next_start();
    if (threadIdx.x == 0) {
        bar_init(&bar, groups);
        bar_fence();
    }
    wait_before();
    see_all_writes();
    const uint32_t n = row_count(a.f, 0);
    if (t0 >= n) return;
    if (threadIdx.x < 64) {
        const bool in = t0 + threadIdx.x < n;
        pos[threadIdx.x] = in ? (int32_t)__ldcg(a.f.word + a.f.pos + t0 + threadIdx.x) : -1;
        seq[threadIdx.x] = in ? __ldcg(a.f.word + a.f.seq + t0 + threadIdx.x) : 0xffffffffU;
    }
    __syncthreads();
    if (threadIdx.x % 128 == 0) {
        bar_expect(&bar, 64 * HD * 2);
        for (uint32_t g = 0; g < HD / 64; g++)
            bulk_copy(smem + wg * 64 * HD * 2 + g * 64 * 128,
                      a.q + ((uint64_t)(head * (HD / 64) + g) * a.tile_rows + t0) * 128, 64 * 128,
                      &bar);
    }
    bar_wait(&bar, 0);
    row_sums<HD> s;
    s.m[0] = s.m[1] = -INFINITY, s.l[0] = s.l[1] = 0;
#pragma unroll
    for (int i = 0; i < HD / 2; i++) s.o[i] = 0;
    for (uint32_t from = 0; from < min(64U, n - t0);) {
        run_of_rows u = {from, from, 0, pos[from], pos[from]};
        for (; u.end < 64 && seq[u.end] == seq[from]; u.end++)
            u.least = min(u.least, pos[u.end]), u.most = max(u.most, pos[u.end]);
        u.pages_at = (a.h.kv_class ? a.f.page[1] : a.f.page[0]) + seq[from] * a.f.n_table;
        int32_t last[2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            last[h] = r0 + 8 * h >= u.first && r0 + 8 * h < u.end ? pos[r0 + 8 * h] : -1;
        attend_run<HD>(a, u, kv, q_at, kv_at, last, s);
        from = u.end;
    }
    if (in_group >= per) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t t = t0 + r0 + 8 * h;
        const float l = sum_lanes(s.l[h], 4), f = l > 0 ? 1 / l : 0;
        if (t >= n) continue;
#pragma unroll
        for (int i = 0; i < HD / 8; i++)
            *(uint32_t *)(a.out + tile_at(a.tile_rows, t, head * HD + 8 * i + lane % 4 * 2)) =
                half_pair(s.o[4 * i + 2 * h] * f, s.o[4 * i + 2 * h + 1] * f);
    }
#endif
}
extern "C" __global__ void __launch_bounds__(256, 2)
    cuda_tc_attn_64(const __grid_constant__ cuda_tc_attn a)
{
    attend<64>(a);
}
extern "C" __global__ void __launch_bounds__(256, 2)
    cuda_tc_attn_128(const __grid_constant__ cuda_tc_attn a)
{
    attend<128>(a);
}
