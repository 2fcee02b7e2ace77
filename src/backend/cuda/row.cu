/* row.cu - products for a lone row of the batch whose weights fit the registers: decode of models
 * of up to a few thousand columns. Larger shares take mul_one.cu.
 *
 * A block owns the rows and a warp the groups of columns that kern.h deals to them, and every lane
 * asks for its chunks of all of them at once, before the kernels in front have finished. Inputs
 * come straight from memory: a warp needs those of its own groups alone. So between the end of the
 * kernel in front and the sums there is one trip to memory, and one meeting of the warps. The order
 * of sums is that of dot.cuh. */
#include "backend/cuda/mul.cuh"

/* A chunk and its scale as they lie. */
template <int T> struct kept {
    raw_chunk<T> c;
    raw_scale<T> s;
};

/* Loads that stay where they stand, of what no kernel writes and nobody reads again. */
__device__ inline uint4 ask16(const uint8_t *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
__device__ inline uint2 ask8(const uint8_t *p)
{
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}
__device__ inline uint32_t ask4(const uint8_t *p)
{
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
__device__ inline uint32_t ask2(const uint8_t *p)
{
    uint16_t v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}

/* Chunk j of row r of a unit of `rows` rows. */
template <int T>
__device__ inline void ask_chunk(kept<T> &k, const uint8_t *u, uint32_t rows, uint32_t r,
                                 uint32_t j)
{
    if constexpr (T <= CUDA_BF16) {
        const uint4 v = ask16(u + r * 128 + ((j ^ (r & 7)) * 16));
        k.c.v[0] = v.x, k.c.v[1] = v.y, k.c.v[2] = v.z, k.c.v[3] = v.w;
    } else if constexpr (T == CUDA_Q8_0) {
        const uint2 v = ask8(u + (r * 8 + j) * 8);
        k.c.v[0] = v.x, k.c.v[1] = v.y;
    } else {
        k.c.v[0] = ask4(u + (r * 8 + j) * 4);
        if constexpr (T == CUDA_Q6_K) k.c.v[1] = ask2(u + rows * 32 + (r * 8 + j) * 2);
    }
    const uint8_t *at = u + rows * 8 * (T == CUDA_Q6_K ? 6 : chunk_bytes(T));
    if constexpr (T == CUDA_Q8_0 || T == CUDA_Q4_0) k.s.v[0] = ask2(at + r * 4 + j / 4 * 2);
    if constexpr (T == CUDA_Q4_1) k.s.v[0] = ask4(at + r * 8 + j / 4 * 4);
    if constexpr (T == CUDA_Q4_K || T == CUDA_Q6_K) {
        const uint2 v = ask8(at + r * 8);
        k.s.v[0] = v.x, k.s.v[1] = v.y;
    }
}

/* Of a product whose warps have up to NG groups and blocks up to 4 * Q rows. Of chunks of 16 bytes
 * CUDA_ROW_HOLD are held in registers, the others in shared memory, each lane's own, so that two
 * blocks fit a multiprocessor: the next kernel's weights come while this one works. */
template <int T, int NG, int Q> struct row_product {
    static constexpr int STRIDE = CUDA_WARPS + 2; /* pairs stay aligned */
    static constexpr int HOLD = T <= CUDA_BF16 && CUDA_ROW_HOLD < Q * NG ? CUDA_ROW_HOLD : Q * NG;
    struct shared {
        float gain[CUDA_WARPS][NG][CUDA_GROUP], part[4 * Q * STRIDE], square[CUDA_WARPS];
        uint32_t rows;
    };
    kept<T> c[HOLD];
    float acc[(Q + 3) / 4 * 4][1], sq[4]; /* a lane's slots; squares of pairs of columns */

    __device__ uint4 *place() const
    {
        return (uint4 *)smem + threadIdx.x;
    }
    /* Every chunk of this lane is on its way. */
    __device__ void ask(const cuda_mul &a)
    {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, j = lane % 8;
        const uint32_t ng = groups_of(a.m.groups, warp), n = a.m.per_block / 4;
        const bool wide = a.m.unit_rows == 16;
        const uint8_t *w = a.m.w + warp_at(a.m, blockIdx.x, warp);
#pragma unroll
        for (int q = 0; q < Q; q++)
#pragma unroll
            for (int g = 0; g < NG; g++) {
                if ((uint32_t)q >= n || (uint32_t)g >= ng) continue;
                const uint8_t *u = w + ((wide ? q / 4 : q / 2) * ng + g) * a.m.unit_bytes;
                const uint32_t r = (wide ? q % 4 : q % 2) * 4 + lane / 8;
                const int i = q * NG + g;
                if (T <= CUDA_BF16 && i >= HOLD)
                    copy16(place() + (i - HOLD) * CUDA_WIDE, u + r * 128 + ((j ^ (r & 7)) * 16));
                else ask_chunk<T>(c[i], u, a.m.unit_rows, r, j);
            }
    }
    /* Group g with this lane's 8 inputs of it, x. */
    __device__ void add_group(const cuda_mul &a, const shared &sh, int g, const float4 (&x)[2])
    {
        const uint32_t warp = threadIdx.x / 32, j = threadIdx.x % 8;
        float v[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w}, sx = 0;
#pragma unroll
        for (int e = 0; e < 4; e++)
            sq[e] = fmaf(v[2 * e + 1], v[2 * e + 1], fmaf(v[2 * e], v[2 * e], sq[e]));
        if (a.gain) {
            const float4 y = *(const float4 *)(sh.gain[warp][g] + 8 * j);
            const float4 z = *(const float4 *)(sh.gain[warp][g] + 8 * j + 4);
            v[0] *= y.x, v[1] *= y.y, v[2] *= y.z, v[3] *= y.w;
            v[4] *= z.x, v[5] *= z.y, v[6] *= z.z, v[7] *= z.w;
        }
        if constexpr (has_min(T))
#pragma unroll
            for (int e = 0; e < 8; e++) sx += v[e];
        if ((uint32_t)g >= groups_of(a.m.groups, warp)) return;
#pragma unroll
        for (int q = 0; q < Q; q++) {
            const int i = q * NG + g;
            if (T <= CUDA_BF16 && i >= HOLD) {
                const uint4 w = place()[(i - HOLD) * CUDA_WIDE];
                raw_chunk<T> k;
                k.v[0] = w.x, k.v[1] = w.y, k.v[2] = w.z, k.v[3] = w.w;
                acc[q][0] = dot8<T>(k, make_float2(1, 0), v, 0, acc[q][0]);
                continue;
            }
            raw_chunk<T> k = c[i].c;
            if constexpr (T == CUDA_Q6_K) k.v[1] = (k.v[1] & 0xff) | (k.v[1] & 0xff00) << 8;
            acc[q][0] = dot8<T>(k, scale_from<T>(c[i].s, j), v, sx, acc[q][0]);
        }
    }
    /* This warp's slots meet. */
    __device__ void put(const cuda_mul &a, shared &sh)
    {
        const float s = a.gain ? sum_lanes((sq[0] + sq[1]) + (sq[2] + sq[3]), 8) : 0;
        if (threadIdx.x % 32 == 0) sh.square[threadIdx.x / 32] = s;
#pragma unroll
        for (int q = 0; q < Q; q += 4)
            put_part<1, STRIDE>(*(const float(*)[4][1]) & acc[q], Q - q >= 4 ? 16 : 8, threadIdx.x,
                                sh.part + 4 * q * STRIDE);
    }
    /* The warps meet, 8 lanes a row, and what follows. prior: what the row's first lane adds to. */
    __device__ void finish(const cuda_mul &a, const shared &sh, bool mine, float prior)
    {
        const uint32_t i = threadIdx.x % 8 * 2, row = threadIdx.x / 8;
        const uint32_t global = blockIdx.x * a.m.per_block + row;
        if (row / 4 * 4 >= a.m.per_block) return; /* whole warps */
        const float2 s = *(const float2 *)(sh.part + row * STRIDE + i);
        float y = sum_lanes(s.x + s.y, 8);
        if (a.gain) {
            const float2 q = *(const float2 *)(sh.square + i);
            y *= norm_factor(sum_lanes(q.x + q.y, 8), a.cols, a.eps);
        }
        const float other = a.epi == CUDA_EPI_GATE ? __shfl_xor_sync(0xffffffffU, y, 8) : 0;
        if (!mine || !sh.rows) return;
        if (a.epi == CUDA_EPI_STORE) a.y[a.m.row0 + global] = y;
        else if (a.epi == CUDA_EPI_RESIDUAL) a.y[global] = prior + y;
        else if (row % 2 == 0) a.y[global / 2] = gated(y, other, (a.flags & CUDA_MUL_GELU) != 0);
    }
};

template <int T, int NG, int Q> __device__ inline void multiply(const cuda_mul &a)
{
    typedef row_product<T, NG, Q> product;
    __shared__ __align__(16) typename product::shared sh;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t row = threadIdx.x / 8, global = blockIdx.x * a.m.per_block + row;
    product p;
    if (blockIdx.x * a.m.per_block >= a.m.rows) { /* only holds a place, see span.c */
        let_next_start();
        wait_before();
        return;
    }
    p.ask(a);
    let_next_start();
    if (a.gain)
#pragma unroll
        for (int g = 0; g < NG; g++) {
            const uint32_t k = (warp + g * CUDA_WARPS) * CUDA_GROUP + 2 * lane;
            *(float2 *)(sh.gain[warp][g] + 2 * lane) =
                k < a.cols ? __ldg((const float2 *)(a.gain + k)) : make_float2(0, 0);
        }
    /* What of the arguments is used below is fetched now. */
    asm volatile("" ::"l"(a.x), "l"(a.y), "l"(a.f.word), "l"(a.f.stop), "r"(a.cols), "r"(a.m.rows),
                 "r"(a.y_row), "r"(a.m.row0), "r"(a.epi), "f"(a.eps));
    wait_before();
    float4 x[NG][2];
#pragma unroll
    for (int g = 0; g < NG; g++) {
        const uint32_t k = (warp + g * CUDA_WARPS) * CUDA_GROUP + 8 * (lane % 8);
        const float4 zero = make_float4(0, 0, 0, 0);
        x[g][0] = k < a.cols ? __ldcg((const float4 *)(a.x + k)) : zero;
        x[g][1] = k < a.cols ? __ldcg((const float4 *)(a.x + k + 4)) : zero;
    }
    const bool mine = lane % 8 == 0 && row < a.m.per_block && global < a.m.rows;
    const float prior = a.epi == CUDA_EPI_RESIDUAL && mine ? __ldcg(a.y + global) : 0;
    uint32_t rows = 0; /* read once a block: thousands of warps would queue for one line of L2 */
    if (threadIdx.x == 0) rows = row_count(a.f, a.flags);
    if constexpr (product::HOLD < Q * NG) wait_copies();
    __syncwarp(); /* gains */
#pragma unroll
    for (int q = 0; q < (Q + 3) / 4 * 4; q++) p.acc[q][0] = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) p.sq[e] = 0;
#pragma unroll
    for (int g = 0; g < NG; g++) p.add_group(a, sh, g, x[g]);
    p.put(a, sh);
    if (threadIdx.x == 0) sh.rows = rows;
    __syncthreads();
    p.finish(a, sh, mine, prior);
}

/* cuda_row_<enum cuda_type>_<groups of a warp>_<rows of a block / 4> */
#define ROW(type, ng, q, regs)                                                                     \
    extern "C" __global__ void __maxnreg__(regs)                                                   \
        cuda_row_##type##_##ng##_##q(const __grid_constant__ cuda_mul a)                           \
    {                                                                                              \
        multiply<type, ng, q>(a);                                                                  \
    }
#define ROW_SHAPES(type)                                                                           \
    ROW(type, 1, 4, 48) ROW(type, 1, 8, 64) ROW(type, 1, 12, 64) ROW(type, 2, 2, 48)               \
    ROW(type, 2, 4, 64) ROW(type, 3, 2, 64) ROW(type, 3, 4, 64)
ROW_SHAPES(1)
ROW_SHAPES(2)
ROW_SHAPES(3)
ROW_SHAPES(4)
ROW_SHAPES(5)
ROW_SHAPES(6)
ROW_SHAPES(7)
