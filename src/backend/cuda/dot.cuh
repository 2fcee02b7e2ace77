/* dot.cuh - sums of weight rows with inputs. Included by mul.cuh and mega.cu, so that both levels
 * compute the same bits:
 *
 * A sum over the columns is a sum over slots: slot 8w+j holds chunk j of the groups w, w+16, ... of
 * 64 columns, added upwards. The 128 slots meet pairwise, neighbours first: 8 lanes of a warp, then
 * 16 warps. So the bits of a product depend on its two vectors alone: not on the batch, the grid,
 * the block that owns the row, or the level. The factor of the RMS norm is applied to the sum; its
 * squares meet the same way, two columns a lane. */
#ifndef HT_BACKEND_CUDA_DOT_CUH
#define HT_BACKEND_CUDA_DOT_CUH
#include "backend/cuda/device.cuh"

/* One unit: lane l takes chunk l%8 of rows l/8, l/8+4, ...; x: 64 inputs in shared memory, those of
 * the next batch row x_row floats on. QUADS: unit_rows / 4. */
template <int T, int R, int QUADS>
__device__ inline void dot_quads(const uint8_t *u, const float *x, uint32_t x_row, uint32_t lane,
                                 float (&acc)[4][R])
{
    const uint32_t j = lane % 8, r0 = lane / 8;
    float v[R][8], sx[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const float4 a = *(const float4 *)(x + r * x_row + 8 * j);
        const float4 b = *(const float4 *)(x + r * x_row + 8 * j + 4);
        v[r][0] = a.x, v[r][1] = a.y, v[r][2] = a.z, v[r][3] = a.w;
        v[r][4] = b.x, v[r][5] = b.y, v[r][6] = b.z, v[r][7] = b.w;
        sx[r] = 0;
        if constexpr (has_min(T))
#pragma unroll
            for (int e = 0; e < 8; e++) sx[r] += v[r][e];
    }
    raw_chunk<T> c[QUADS];
    float2 s[QUADS];
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        c[q] = load_chunk<T>(u, 4 * QUADS, 4 * q + r0, j);
        s[q] = scale_of<T>(u, 4 * QUADS, 4 * q + r0, j);
    }
#pragma unroll
    for (int q = 0; q < QUADS; q++)
#pragma unroll
        for (int r = 0; r < R; r++) acc[q][r] = dot8<T>(c[q], s[q], v[r], sx[r], acc[q][r]);
}
template <int T, int R>
__device__ inline void dot_unit(const uint8_t *u, uint32_t unit_rows, const float *x,
                                uint32_t x_row, uint32_t lane, float (&acc)[4][R])
{
    if (unit_rows == 16) dot_quads<T, R, 4>(u, x, x_row, lane, acc);
    else dot_quads<T, R, 2>(u, x, x_row, lane, acc);
}

/* The 8 slots of this warp meet; each row's sum goes to part[r][row][warp]. part: of the unit's
 * first row. */
template <int R, int STRIDE = CUDA_PART_ROW>
__device__ inline void put_part(const float (&acc)[4][R], uint32_t unit_rows, uint32_t thread,
                                float *part)
{
    const uint32_t lane = thread % 32, warp = thread / 32;
    const bool odd = lane & 1, high = lane & 2, wide = unit_rows == 16;
#pragma unroll
    for (int r = 0; r < R; r++) {
        float a = odd ? acc[1][r] : acc[0][r], b = odd ? acc[3][r] : acc[2][r];
        a += __shfl_xor_sync(0xffffffffU, odd ? acc[0][r] : acc[1][r], 1);
        b += __shfl_xor_sync(0xffffffffU, odd ? acc[2][r] : acc[3][r], 1);
        float c = wide && high ? b : a;
        c += __shfl_xor_sync(0xffffffffU, wide && !high ? b : a, 2);
        c += __shfl_xor_sync(0xffffffffU, c, 4);
        const uint32_t row = 4 * (odd + (wide && high ? 2 : 0)) + lane / 8;
        if ((lane & 4) == 0 && (wide || !high))
            part[(r * CUDA_TILE + row) * STRIDE + warp] = c;
    }
}

__device__ __noinline__ float gelu_of(float g)
{
    const float k = 0.79788456F; /* sqrt(2/pi) */
    return 0.5F * g * (1 + tanhf(k * (g + 0.044715F * g * g * g)));
}
__device__ inline float gated(float g, float u, bool gelu)
{
    /* exp overflows to infinity and the quotient to 0 where it should */
    return (gelu ? gelu_of(g) : g * __frcp_rn(1 + __expf(-g))) * u;
}

/* Greatest value and its row; of equals the lower row. */
struct best {
    float v;
    uint32_t id;
};
__device__ inline void better(best &a, float v, uint32_t id)
{
    if (v > a.v || (v == a.v && id < a.id)) a.v = v, a.id = id;
}
__device__ inline void better_lanes(best &a)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        const float v = __shfl_xor_sync(0xffffffffU, a.v, d);
        const uint32_t id = __shfl_xor_sync(0xffffffffU, a.id, d);
        better(a, v, id);
    }
}
#endif
