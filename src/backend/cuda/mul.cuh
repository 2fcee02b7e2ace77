/* mul.cuh - the matrix products of a step with what surrounds them. Included by mul_one.cu and
 * mul_four.cu.
 *
 * A block owns rows of the matrix; each of its warps brings its own units into its own ring in
 * shared memory by bulk copies, the first ones before the kernels in front have finished, since
 * weights depend on nothing. Warps meet once a tile of rows. A share that fits the ring is brought
 * once for all rows of the batch. */
#ifndef HT_BACKEND_CUDA_MUL_CUH
#define HT_BACKEND_CUDA_MUL_CUH
#include "backend/cuda/dot.cuh"

extern __shared__ __align__(128) uint8_t smem[];

template <int R> struct mul_shared {
    uint64_t bar[CUDA_WARPS][CUDA_MAX_SLOTS];
    float square[R][CUDA_WARPS];
    best top[R][CUDA_WARPS];
    float part[2][R * CUDA_TILE * CUDA_PART_ROW];
};

static_assert(sizeof(mul_shared<1>) == CUDA_MUL_FIXED(1) &&
                  sizeof(mul_shared<CUDA_MAX_ROWS>) == CUDA_MUL_FIXED(CUDA_MAX_ROWS),
              "the host counts on it");

/* This warp's units in order, piece after piece. */
struct stream {
    const uint8_t *src;
    uint8_t *ring;
    uint64_t *bar;
    uint32_t n_units, n_pieces, upp, unit_bytes, slots, slot_bytes;
    uint32_t unit, piece, slot, parity; /* of what is read now; unit counts within the piece */
    bool resident;
};

__device__ inline void ask(const stream &s, uint32_t piece, uint32_t slot)
{
    const uint32_t first = piece * s.upp, n = min(s.upp, s.n_units - first);
    bar_expect(s.bar + slot, n * s.unit_bytes);
    bulk_copy(s.ring + slot * s.slot_bytes, s.src + (uint64_t)first * s.unit_bytes,
              n * s.unit_bytes, s.bar + slot);
}

__device__ inline stream open_stream(const cuda_mul &a, uint64_t *bar)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    stream s;
    s.bar = bar + warp * CUDA_MAX_SLOTS;
    s.ring = smem + a.ring_at + warp * a.slots * a.slot_bytes;
    s.src = a.m.w + warp_at(a.m, blockIdx.x, warp);
    s.unit_bytes = a.m.unit_bytes, s.upp = a.upp, s.slots = a.slots, s.slot_bytes = a.slot_bytes;
    s.n_units = a.m.layers * groups_of(a.m.groups, warp);
    s.n_pieces = (s.n_units + a.upp - 1) / a.upp;
    s.unit = s.piece = s.slot = s.parity = 0;
    s.resident = s.n_pieces <= a.slots;
#if CUDA_SM90
    if (lane == 0) {
#pragma unroll 1
        for (uint32_t i = 0; i < min(a.slots, s.n_pieces); i++) bar_init(s.bar + i, 1);
        bar_fence();
#pragma unroll 1
        for (uint32_t i = 0; i < min(a.slots, s.n_pieces); i++) ask(s, i, i);
    }
    __syncwarp();
#else
    (void)lane;
#endif
    return s;
}

/* The next unit. again: the units will be read once more from the start. */
__device__ inline const uint8_t *next_unit(stream &s)
{
#if CUDA_SM90
    if (s.unit == 0) bar_wait(s.bar + s.slot, s.parity);
    return s.ring + s.slot * s.slot_bytes + s.unit * s.unit_bytes;
#else
    return s.src + (uint64_t)(s.piece * s.upp + s.unit) * s.unit_bytes;
#endif
}
__device__ inline void done_unit(stream &s, bool again)
{
    if (++s.unit < s.upp && s.piece * s.upp + s.unit < s.n_units) return;
    s.unit = 0;
#if CUDA_SM90
    if (!s.resident) {
        const uint32_t next = s.piece + s.slots;
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            if (next < s.n_pieces) ask(s, next, s.slot);
            else if (again) ask(s, next - s.n_pieces, s.slot);
        }
    }
#endif
    s.piece++;
    if (++s.slot == s.slots) s.slot = 0, s.parity ^= 1;
    if (s.piece < s.n_pieces) return;
    s.piece = 0;
    if (s.resident) s.slot = 0, s.parity = 0; /* a completed phase stays completed */
}

/* Input rows t0 .. t0+R-1 of this warp's groups, times the gains, into xs; their squares. Rows past
 * n and columns past the last are 0. */
template <int R>
__device__ inline void put_input(const cuda_mul &a, mul_shared<R> *sh, float *xs, uint32_t x_row,
                                 uint32_t t0, uint32_t n)
{
    constexpr int U = R == 1 ? 4 : 2;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sq[R];
    const float *row[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const uint32_t t = t0 + r;
        sq[r] = 0;
        row[r] = NULL;
        if (t < n)
            row[r] =
                a.x + (uint64_t)((a.flags & CUDA_MUL_PICK) ? __ldcg(a.f.word + a.f.want + t) : t) *
                          a.cols;
    }
#pragma unroll 1
    for (uint32_t g0 = warp; g0 < a.m.groups; g0 += U * CUDA_WARPS) {
        float2 v[U][R], gain[U];
#pragma unroll
        for (int i = 0; i < U; i++) {
            const uint32_t k = (g0 + i * CUDA_WARPS) * CUDA_GROUP + 2 * lane;
            gain[i] = a.gain && k < a.cols ? *(const float2 *)(a.gain + k) : make_float2(1, 1);
#pragma unroll
            for (int r = 0; r < R; r++)
                v[i][r] =
                    row[r] && k < a.cols ? __ldcg((const float2 *)(row[r] + k)) : make_float2(0, 0);
        }
#pragma unroll
        for (int i = 0; i < U; i++) {
            const uint32_t g = g0 + i * CUDA_WARPS;
            if (g >= a.m.groups) continue;
#pragma unroll
            for (int r = 0; r < R; r++) {
                sq[r] = fmaf(v[i][r].y, v[i][r].y, fmaf(v[i][r].x, v[i][r].x, sq[r]));
                *(float2 *)(xs + r * x_row + g * CUDA_GROUP + 2 * lane) =
                    make_float2(v[i][r].x * gain[i].x, v[i][r].y * gain[i].y);
            }
        }
    }
    __syncwarp();
    if (!a.gain) return;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const float s = sum_lanes(sq[r], 32);
        if (lane == 0) sh->square[r][warp] = s;
    }
}

/* ---- what follows a sum----------------------------------------------------------------------- */

__device__ inline void put_sum(const cuda_mul &a, uint32_t row, uint32_t t, float y, float other,
                               best &b)
{
    if (a.epi == CUDA_EPI_STORE) {
        a.y[(uint64_t)t * a.y_row + a.m.row0 + row] = y;
    } else if (a.epi == CUDA_EPI_RESIDUAL) {
        float *x = a.y + (uint64_t)t * a.y_row + row;
        if (a.post) a.raw[(uint64_t)t * a.y_row + row] = y;
        else *x = __ldcg(x) + y;
    } else if (a.epi == CUDA_EPI_GATE) {
        if (row % 2 == 0)
            a.y[(uint64_t)t * a.y_row + row / 2] = gated(y, other, (a.flags & CUDA_MUL_GELU) != 0);
    } else {
        if (a.cap > 0) y = a.cap * tanhf(y / a.cap);
        if (a.flags & CUDA_MUL_BEST) better(b, y, row);
        else a.y[(uint64_t)t * a.y_row + row] = y;
    }
}

/* The n rows of a tile from their parts: half a warp a row, lane r of it keeps batch row r. */
template <int R>
__device__ inline void finish_tile(const cuda_mul &a, const float (*square)[CUDA_WARPS],
                                   const float *part, uint32_t tile0, uint32_t n, uint32_t t0,
                                   uint32_t n_t, best &b)
{
    const uint32_t lane = threadIdx.x % 32, i = lane % 16;
    float factor[R];
#pragma unroll
    for (int r = 0; r < R; r++)
        factor[r] = a.gain ? norm_factor(sum_lanes(square[r][i], 16), a.cols, a.eps) : 1;
    for (uint32_t at = threadIdx.x / 32 * 2; at < n; at += 2 * CUDA_WARPS) {
        const uint32_t row = at + lane / 16, global = blockIdx.x * a.m.per_block + tile0 + row;
        float y = 0;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float s =
                sum_lanes(part[(r * CUDA_TILE + row) * CUDA_PART_ROW + i], 16) * factor[r];
            if (i == r) y = s;
        }
        const float other = a.epi == CUDA_EPI_GATE ? __shfl_xor_sync(0xffffffffU, y, 16) : 0;
        if (i < R && t0 + i < n_t && global < a.m.rows) put_sum(a, global, t0 + i, y, other, b);
    }
}

/* X += norm(raw) over whole rows, by the last block of those that wrote them. */
template <int R>
__device__ __noinline__ void finish_post(const cuda_mul &a, mul_shared<R> *sh, uint32_t t0,
                                         uint32_t n)
{
    if (!last_of(a.arrived + blockIdx.y, gridDim.x)) return;
    for (uint32_t t = t0; t < n; t++) {
        const float *y = a.raw + (uint64_t)t * a.y_row;
        float sq = 0;
        for (uint32_t i = threadIdx.x; i < a.y_row; i += CUDA_WIDE) {
            const float v = __ldcg(y + i);
            sq = fmaf(v, v, sq);
        }
        sq = sum_lanes(sq, 32);
        if (threadIdx.x % 32 == 0) sh->square[0][threadIdx.x / 32] = sq;
        __syncthreads();
        const float s = sum_lanes(sh->square[0][threadIdx.x % 16], 16);
        const float f = norm_factor(s, a.y_row, a.eps);
        for (uint32_t i = threadIdx.x; i < a.y_row; i += CUDA_WIDE) {
            float *x = a.y + (uint64_t)t * a.y_row + i;
            *x = __ldcg(x) + __ldcg(y + i) * f * a.post[i];
        }
        __syncthreads();
    }
}

/* The best id of every row over all blocks: it is the row's next token. */
template <int R>
__device__ __noinline__ void finish_best(const cuda_mul &a, mul_shared<R> *sh, uint32_t t0,
                                         uint32_t n, best mine)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    /* lanes r and 16+r hold row r */
    const float v = __shfl_xor_sync(0xffffffffU, mine.v, 16);
    const uint32_t id = __shfl_xor_sync(0xffffffffU, mine.id, 16);
    better(mine, v, id);
    if (lane < R) sh->top[lane][warp] = mine;
    __syncthreads();
    if (threadIdx.x < R && t0 + threadIdx.x < n) {
        best b = {-INFINITY, 0xffffffffU};
        for (int w = 0; w < CUDA_WARPS; w++)
            better(b, sh->top[threadIdx.x][w].v, sh->top[threadIdx.x][w].id);
        const uint64_t at = (uint64_t)(t0 + threadIdx.x) * gridDim.x + blockIdx.x;
        a.best_value[at] = b.v, a.best_id[at] = b.id;
    }
    if (!last_of(a.arrived + blockIdx.y, gridDim.x)) return;
    if (warp < R && t0 + warp < n) {
        const uint32_t t = t0 + warp, row = batch_row(a.f, CUDA_MUL_MAPPED, t);
        best b = {-INFINITY, 0xffffffffU};
        for (uint32_t i = lane; i < gridDim.x; i += 32)
            better(b, __ldcg(a.best_value + (uint64_t)t * gridDim.x + i),
                   __ldcg(a.best_id + (uint64_t)t * gridDim.x + i));
        better_lanes(b);
        if (lane == 0) {
            const uint32_t best_id = b.id == 0xffffffffU ? 0 : b.id; /* all NaN */
            a.f.word[a.f.token + row] = best_id;
            a.f.word[a.f.pos + row] = __ldcg(a.f.word + a.f.pos + row) + 1;
            a.ids[(uint64_t)a.step * a.rows_cap + t] = (int32_t)best_id;
        }
    }
}

/* ---- the kernel's body for one weight type --------------------------------------------------- */

/* All rows of the block's share with R rows of the batch. */
template <int T, int R>
__device__ inline void work_rows(const cuda_mul &a, mul_shared<R> *sh, stream &s, const float *xs,
                                 uint32_t x_row, uint32_t t0, uint32_t n_t, bool again,
                                 uint32_t &flip, best &b)
{
    const uint32_t warp = threadIdx.x / 32, ng = groups_of(a.m.groups, warp);
#pragma unroll 1
    for (uint32_t tile0 = 0; tile0 < a.m.per_block; tile0 += CUDA_TILE, flip ^= 1) {
        const uint32_t n = min((uint32_t)CUDA_TILE, a.m.per_block - tile0);
        float *part = sh->part[flip];
#pragma unroll 1
        for (uint32_t at = 0; at < n; at += a.m.unit_rows) {
            float acc[4][R];
#pragma unroll
            for (int q = 0; q < 4; q++)
#pragma unroll
                for (int r = 0; r < R; r++) acc[q][r] = 0;
#pragma unroll 1
            for (uint32_t i = 0; i < ng; i++) {
                const uint8_t *u = next_unit(s);
                dot_unit<T, R>(u, a.m.unit_rows, xs + (warp + i * CUDA_WARPS) * CUDA_GROUP, x_row,
                               threadIdx.x % 32, acc);
                done_unit(s, again);
            }
            put_part<R>(acc, a.m.unit_rows, threadIdx.x, part + at * CUDA_PART_ROW);
        }
        __syncthreads();
        finish_tile<R>(a, sh->square, part, tile0, n, t0, n_t, b);
    }
}

template <int T, int R> __device__ inline void mul(const cuda_mul &a)
{
    mul_shared<R> *sh = (mul_shared<R> *)smem;
    float *xs = (float *)(smem + sizeof *sh);
    const uint32_t x_row = a.m.groups * CUDA_GROUP, first = blockIdx.y * a.rows_y;
    stream s = open_stream(a, sh->bar[0]);
    let_next_start();
    wait_before();
    const uint32_t n = row_count(a.f, a.flags), end = min(n, first + a.rows_y);
    uint32_t flip = 0;
    best b = {-INFINITY, 0xffffffffU};
    if (first >= n) { /* the block must not end before its copies have come */
        for (uint32_t i = 0; i < min(s.slots, s.n_pieces); i++) bar_wait(s.bar + i, 0);
        return;
    }
#pragma unroll 1
    for (uint32_t t = first; t < end; t += R) {
        put_input<R>(a, sh, xs, x_row, t, end);
        work_rows<T, R>(a, sh, s, xs, x_row, t, end, t + R < end, flip, b);
        if (a.gain && t + R < end) __syncthreads(); /* the squares are still being read */
    }
    if (a.epi == CUDA_EPI_RESIDUAL && a.post) finish_post<R>(a, sh, first, end);
    else if (a.flags & CUDA_MUL_BEST) finish_best<R>(a, sh, first, end, b);
}

/* cuda_mul_<batch rows at a time>_<enum cuda_type> */
#define MUL_KERNEL(R, type, T)                                                                     \
    extern "C" __global__ void __launch_bounds__(CUDA_WIDE, R == 1 ? 2 : 1)                        \
        cuda_mul_##R##_##type(const __grid_constant__ cuda_mul a)                                  \
    {                                                                                              \
        mul<T, R>(a);                                                                              \
    }
#define MUL_TYPES(R)                                                                               \
    MUL_KERNEL(R, 0, CUDA_F32)                                                                     \
    MUL_KERNEL(R, 1, CUDA_F16)                                                                     \
    MUL_KERNEL(R, 2, CUDA_BF16) MUL_KERNEL(R, 3, CUDA_Q8_0) MUL_KERNEL(R, 4, CUDA_Q4_0)            \
        MUL_KERNEL(R, 5, CUDA_Q4_1) MUL_KERNEL(R, 6, CUDA_Q4_K) MUL_KERNEL(R, 7, CUDA_Q6_K)
#endif
