/* mul.cuh - the matrix products of a step with everything that surrounds them. Included by
 * mul_one.cu and mul_two.cu.
 *
 * A block owns rows of the matrix and works on up to R rows of the batch. Its weights come through
 * a ring of tiles in shared memory, filled by the copy engine; the first tiles are asked for before
 * the kernels in front have finished, since weights depend on nothing. A warp takes ROWS rows of
 * the matrix at a time; a lane adds chunk lane, lane+32, ... of a row in ascending order, and the
 * 32 sums meet in a fixed tree. So a product's bits depend on neither R, nor the tile, the grid or
 * the other rows of the batch: decode and prefill of any split agree. The factor of the RMS norm is
 * applied to the sums. */
#ifndef HT_BACKEND_CUDA_MUL_CUH
#define HT_BACKEND_CUDA_MUL_CUH
#include "backend/cuda/device.cuh"

extern __shared__ __align__(128) uint8_t smem[];

struct mul_shared {
    uint64_t bar[CUDA_MAX_STAGES];
    float square[CUDA_MAX_ROWS][CUDA_WARPS];
    float best[CUDA_MAX_ROWS][CUDA_WARPS];
    uint32_t best_id[CUDA_MAX_ROWS][CUDA_WARPS];
};
static_assert(sizeof(mul_shared) <= CUDA_SHARED_HEAD, "the host counts on it");

/* The block's share of one segment. */
struct share {
    cuda_seg s;
    uint32_t seg_i, row0, rows; /* rows of the matrix                                   */
    uint32_t tiles;
};

__device__ inline share find_share(const cuda_mul &a)
{
    share h;
    uint32_t at = blockIdx.x;
    h.seg_i = a.first_seg;
    if (a.epi != CUDA_EPI_GATE)
        while (h.seg_i + 1 < a.n_seg && at >= (h.seg_i ? a.seg[1] : a.seg[0]).blocks)
            at -= (h.seg_i++ ? a.seg[1] : a.seg[0]).blocks;
    h.s = h.seg_i == 0 ? a.seg[0] : h.seg_i == 1 ? a.seg[1] : a.seg[2];
    h.row0 = at * h.s.per_block;
    h.rows = h.row0 >= h.s.rows ? 0 : min(h.s.per_block, h.s.rows - h.row0);
    h.tiles = (h.rows + h.s.tile - 1) / h.s.tile;
    return h;
}

/* Bring tile i into its place of the ring: on sm_90 one thread asks the copy engine; elsewhere all
 * threads copy. GATE: rows of both matrices, the second behind the first. */
__device__ inline void fetch_tile(const cuda_mul &a, const share &h, mul_shared *sh, uint8_t *ring,
                                  uint32_t i, uint32_t slot)
{
    const uint32_t at = i * h.s.tile, n = min(h.s.tile, h.rows - at), bytes = n * h.s.stride;
    uint8_t *dst = ring + slot * a.stage_bytes;
    const bool two = a.epi == CUDA_EPI_GATE;
    const uint8_t *src = h.s.w + (uint64_t)(h.row0 + at) * h.s.stride;
    const uint8_t *src1 = a.seg[1].w + (uint64_t)(h.row0 + at) * h.s.stride;
    uint8_t *dst1 = dst + h.s.tile * h.s.stride;
#if CUDA_SM90
    uint64_t *bar = &sh->bar[slot];
    bar_expect(bar, two ? 2 * bytes : bytes);
    /* A copy a row: several run at a time, which one large copy does not make use of. */
#pragma unroll 1
    for (uint32_t k = 0; k < bytes; k += h.s.stride) {
        bulk_copy(dst + k, src + k, h.s.stride, bar);
        if (two) bulk_copy(dst1 + k, src1 + k, h.s.stride, bar);
    }
#else
    (void)sh;
    for (uint32_t k = threadIdx.x * 16; k < bytes; k += CUDA_THREADS * 16) {
        *(uint4 *)(dst + k) = *(const uint4 *)(src + k);
        if (two) *(uint4 *)(dst1 + k) = *(const uint4 *)(src1 + k);
    }
#endif
}

/* Where element k (a multiple of 4) of an input row stands in shared memory, in float4: a lane's
 * four float4 of a chunk are 32 apart, so that 32 lanes read without bank conflicts. */
template <int T> __device__ inline uint32_t place_of(uint32_t k)
{
    constexpr uint32_t E = chunk_of(T);
    const uint32_t c = k / E, q = k % E / 4;
    return (c / 32 * (E / 4) + q) * 32 + c % 32;
}

/* Before the wait: the norm's gains into the place of the first input row. */
template <int T> __device__ inline void put_gain(const cuda_mul &a, float4 *xs)
{
    if (!a.gain) return;
#pragma unroll 2
    for (uint32_t k = threadIdx.x * 4; k < a.cols; k += CUDA_THREADS * 4)
        xs[place_of<T>(k)] = *(const float4 *)(a.gain + k);
}

/* Input rows t0 .. t0+R-1 times the gains; each row's sum of squares, by warp. Rows past n and
 * columns past the last are 0. */
template <int T, int R>
__device__ inline void put_input(const cuda_mul &a, mul_shared *sh, float4 *xs, uint32_t t0,
                                 uint32_t n)
{
    const uint32_t E = chunk_of(T), end = (a.cols + E - 1) / E * E;
    float sq[R];
    const float *row[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const uint32_t t = t0 + r;
        sq[r] = 0;
        row[r] = NULL;
        if (R == 1 || t < n)
            row[r] =
                a.x + (uint64_t)((a.flags & CUDA_MUL_PICK) ? __ldcg(a.f.word + a.f.want + t) : t) *
                          a.cols;
    }
#pragma unroll 2
    for (uint32_t k = threadIdx.x * 4; k < end; k += CUDA_THREADS * 4) {
        const uint32_t at = place_of<T>(k);
        const bool in = k < a.cols;
        const float4 g = in && a.gain ? xs[at] : make_float4(1, 1, 1, 1);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 v = make_float4(0, 0, 0, 0);
            if (in && row[r]) v = __ldcg((const float4 *)(row[r] + k));
            sq[r] = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sq[r]))));
            if (a.gain) v = make_float4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w);
            xs[r * (a.xs_row / 4) + at] = v;
        }
    }
    if (!a.gain) return;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const float s = sum_lanes(sq[r], 32);
        if (threadIdx.x % 32 == 0) sh->square[r][threadIdx.x / 32] = s;
    }
}

__device__ inline float norm_factor(const cuda_mul &a, const mul_shared *sh, int r)
{
    if (!a.gain) return 1;
    float s = 0;
    for (int w = 0; w < CUDA_WARPS; w++) s += sh->square[r][w];
    return 1 / sqrtf(s / (float)a.cols + a.eps);
}

/* Sums of ROWS weight rows with R input rows, in every lane. */
template <int T, int R, int ROWS>
__device__ inline void dot_rows(const uint8_t *const (&row)[ROWS], const float4 *xs,
                                uint32_t xs_row4, uint32_t cols, float (&acc)[ROWS][R])
{
    constexpr int E = chunk_of(T), FLUSH = flush_of(T);
    const uint32_t lane = threadIdx.x % 32, n_chunks = (cols + E - 1) / E;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int r = 0; r < R; r++) acc[i][r] = 0;
#pragma unroll 1
    for (uint32_t c = lane, b = 0; c < n_chunks; c += 32, b += E / 4 * 32) {
        raw_chunk raw[ROWS];
        float part[ROWS][R], sum[R];
#pragma unroll
        for (int i = 0; i < ROWS; i++) raw[i] = load_chunk<T>(row[i], c, cols);
#pragma unroll
        for (int j = 0; j < E / 8; j++) {
            float w[ROWS][8];
#pragma unroll
            for (int i = 0; i < ROWS; i++) group_of<T>(raw[i], j, w[i]);
            const bool fresh = FLUSH && j * 8 % (FLUSH ? FLUSH : 1) == 0;
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float4 x0 = xs[r * xs_row4 + b + 2 * j * 32 + lane];
                const float4 x1 = xs[r * xs_row4 + b + (2 * j + 1) * 32 + lane];
                const float x[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
                if (fresh) sum[r] = 0;
#pragma unroll
                for (int e = 0; has_min(T) && e < 8; e++) sum[r] += x[e];
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    float s = FLUSH ? (fresh ? 0 : part[i][r]) : acc[i][r];
#pragma unroll
                    for (int e = 0; e < 8; e++) s = fmaf(w[i][e], x[e], s);
                    if (FLUSH) part[i][r] = s;
                    else acc[i][r] = s;
                }
            }
            if (FLUSH && (j * 8 + 8) % (FLUSH ? FLUSH : 1) == 0) {
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    const float2 sc = scale_of<T>(row[i], c, j * 8 / (FLUSH ? FLUSH : 1), cols);
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        acc[i][r] = fmaf(sc.x, part[i][r], acc[i][r]);
                        if (has_min(T)) acc[i][r] = fmaf(-sc.y, sum[r], acc[i][r]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int r = 0; r < R; r++) acc[i][r] = sum_lanes(acc[i][r], 32);
}

/* ---- what follows a product ------------------------------------------------------------------ */

struct best {
    float v;
    uint32_t id;
};
/* Larger value; of equal ones the lower id. */
__device__ inline void better(best &a, float v, uint32_t id)
{
    if (v > a.v || (v == a.v && id < a.id)) a.v = v, a.id = id;
}

__device__ __noinline__ float gated(float g, float u, bool gelu)
{
    const float k = 0.79788456F; /* sqrt(2/pi) */
    return (gelu ? 0.5F * g * (1 + tanhf(k * (g + 0.044715F * g * g * g))) : g / (1 + expf(-g))) *
           u;
}

/* One sum: row `row` of the segment, row t of the registers. */
__device__ __noinline__ void put_sum(const cuda_mul &a, const share &h, uint32_t row, uint32_t t,
                                     float y, best &b)
{
    if (a.epi == CUDA_EPI_QKV) {
        if (h.seg_i == 0) a.y[(uint64_t)t * a.y_row + row] = y;
        else a.kv[((uint64_t)t * 2 + h.seg_i - 1) * h.s.rows + row] = y;
    } else if (a.epi == CUDA_EPI_RESIDUAL) {
        float *x = a.y + (uint64_t)t * a.y_row + row;
        if (a.post) a.raw[(uint64_t)t * a.y_row + row] = y;
        else *x = __ldcg(x) + y;
    } else {
        if (a.cap > 0) y = a.cap * tanhf(y / a.cap);
        if (a.flags & CUDA_MUL_BEST) better(b, y, row);
        else a.y[(uint64_t)t * a.y_row + row] = y;
    }
}

/* Walsh-Hadamard transform of the n elements of a head, n a power of two (step/kvpool.h), by one
 * warp. */
__device__ inline void hadamard(float *buf, uint32_t n, float scale)
{
    constexpr int N = CUDA_HEAD_MAX / 32;
    const uint32_t lane = threadIdx.x % 32;
    float w[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        w[k] = lane + 32 * k < n ? buf[lane + 32 * k] : 0;
#pragma unroll
        for (int h = 1; h < 32; h *= 2) {
            const float x = __shfl_xor_sync(0xffffffffU, w[k], h);
            if (h < n) w[k] = (lane & h) ? x - w[k] : w[k] + x;
        }
    }
#pragma unroll
    for (int h = 1; h < N; h *= 2)
#pragma unroll
        for (int k = 0; k < N; k++) {
            if ((k & h) || 32 * h >= n) continue;
            const float x = w[k], y = w[k + h];
            w[k] = x + y, w[k + h] = x - y;
        }
#pragma unroll
    for (int k = 0; k < N; k++)
        if (lane + 32 * k < n) buf[lane + 32 * k] = w[k] * scale;
    __syncwarp();
}

/* Bias, norm and rotation of one head of one row, by one warp; K and V go into their page. */
__device__ __noinline__ void finish_head(const cuda_mul &a, const share &h, float *buf,
                                         uint32_t head, uint32_t t)
{
    constexpr int N = CUDA_HEAD_MAX / 32;
    const uint32_t lane = threadIdx.x % 32, hd = a.head_dim, b = batch_row(a.f, a.flags, t),
                   i_seg = h.seg_i;
    float *q = a.y + (uint64_t)t * a.y_row + head * hd;
    const float *src = i_seg == 0 ? q : a.kv + ((uint64_t)t * 2 + i_seg - 1) * h.s.rows + head * hd;
    const float *bias = i_seg == 0 ? a.bias[0] : i_seg == 1 ? a.bias[1] : a.bias[2];
    const float *gain = i_seg == 0 ? a.head_norm[0] : i_seg == 1 ? a.head_norm[1] : NULL;
    const bool turns = i_seg < 2 && a.rope_i < 2;
    const uint32_t half = !turns ? 0 : a.rope_i ? a.rope.half[1] : a.rope.half[0];
    const float2 *cs = (const float2 *)(a.rope.table + (uint64_t)b * a.rope.row) +
                       (turns && a.rope_i ? a.rope.half[0] : 0);
    /* All that is read is asked for at once. */
    const uint32_t pos = __ldcg(a.f.word + a.f.pos + b), seq = __ldcg(a.f.word + a.f.seq + b);
    float v[N], g[N], sq = 0;
    float2 turn[N / 2];
#pragma unroll
    for (int k = 0; k < N; k++) {
        const uint32_t i = lane + 32 * k;
        v[k] = i < hd ? __ldcg(src + i) + (bias ? bias[head * hd + i] : 0) : 0;
        g[k] = i < hd && gain ? gain[i] : 1;
        if (k < N / 2) turn[k] = i < half ? __ldcg(cs + i) : make_float2(1, 0);
    }
    const uint32_t *pages = a.f.word + (a.kv_class ? a.f.page[1] : a.f.page[0]);
    const uint32_t page = i_seg ? __ldcg(pages + seq * a.f.n_table + pos / 32) : 0;
#pragma unroll
    for (int k = 0; k < N; k++) sq = fmaf(v[k], v[k], sq);
    const float f = gain ? 1 / sqrtf(sum_lanes(sq, 32) / (float)hd + a.eps) : 1;
#pragma unroll
    for (int k = 0; k < N; k++)
        if (lane + 32 * k < hd) buf[lane + 32 * k] = gain ? v[k] * (f * g[k]) : v[k];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        const uint32_t i = lane + 32 * k;
        if (i >= half) continue;
        const float u = buf[i], w = buf[i + half];
        buf[i] = u * turn[k].x - w * turn[k].y;
        buf[i + half] = w * turn[k].x + u * turn[k].y;
    }
    __syncwarp();
    const float spin = i_seg == 0 ? a.spin[0] : i_seg == 1 ? a.spin[1] : 0;
    if (spin != 0) hadamard(buf, hd, spin);
    const uint32_t v1 = i_seg == 2;
    uint8_t *at = (v1 ? a.plane[1] : a.plane[0]) + page * (v1 ? a.page_bytes[1] : a.page_bytes[0]);
    const uint64_t e = ((uint64_t)head * 32 + pos % 32) * hd;
    for (uint32_t i = lane; i < hd; i += 32) {
        if (i_seg == 0) q[i] = buf[i];
        else if (v1 ? a.kv_type[1] : a.kv_type[0]) ((__half *)at)[e + i] = __float2half_rn(buf[i]);
        else ((float *)at)[e + i] = buf[i];
    }
    __syncwarp();
}

/* Heads whose last rows this block has written. A block holds a part of a head, or whole heads.
 * buf: a head for every warp, in the memory of the inputs, which are done with. */
__device__ __noinline__ void finish_qkv(const cuda_mul &a, const share &h, float *buf, uint32_t t0,
                                        uint32_t n)
{
    const uint32_t hd = a.head_dim, warp = threadIdx.x / 32;
    const uint32_t head0 = h.row0 / hd, heads = max(h.rows / hd, 1U), parts = hd / min(hd, h.rows);
    const uint32_t before = h.seg_i == 0 ? 0 : a.n_heads + (h.seg_i - 1) * a.n_kv_heads;
    const uint32_t all = a.n_heads + 2 * a.n_kv_heads;
    if (parts > 1) {
        if (!last_of(a.arrived + blockIdx.y * all + before + head0, parts)) return;
    } else __syncthreads();
    const uint32_t rows = n > t0 ? min(n - t0, (uint32_t)CUDA_MAX_ROWS) : 0;
    for (uint32_t i = warp; i < heads * rows; i += CUDA_WARPS)
        finish_head(a, h, buf + warp * CUDA_HEAD_MAX, head0 + i / rows, t0 + i % rows);
}

/* X += norm(raw) over whole rows, by the last block of those that wrote them. */
__device__ __noinline__ void finish_post(const cuda_mul &a, mul_shared *sh, uint32_t t0, uint32_t n,
                                         uint32_t r_max)
{
    if (!last_of(a.arrived + blockIdx.y, gridDim.x)) return;
    for (uint32_t t = t0; t < n && t < t0 + r_max; t++) {
        const float *y = a.raw + (uint64_t)t * a.y_row;
        float sq = 0;
        for (uint32_t i = threadIdx.x; i < a.y_row; i += CUDA_THREADS) {
            const float v = __ldcg(y + i);
            sq = fmaf(v, v, sq);
        }
        sq = sum_lanes(sq, 32);
        if (threadIdx.x % 32 == 0) sh->square[0][threadIdx.x / 32] = sq;
        __syncthreads();
        float s = 0;
        for (int w = 0; w < CUDA_WARPS; w++) s += sh->square[0][w];
        const float f = 1 / sqrtf(s / (float)a.y_row + a.eps);
        for (uint32_t i = threadIdx.x; i < a.y_row; i += CUDA_THREADS) {
            float *x = a.y + (uint64_t)t * a.y_row + i;
            *x = __ldcg(x) + __ldcg(y + i) * f * a.post[i];
        }
        __syncthreads();
    }
}

/* The best id of every row over all blocks: it is the row's next token. */
template <int R>
__device__ __noinline__ void finish_best(const cuda_mul &a, mul_shared *sh, uint32_t t0, uint32_t n,
                                         best mine, uint32_t lanes)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    /* lanes i*R + r hold row r */
    for (uint32_t d = R; d < lanes; d *= 2) {
        const float v = __shfl_xor_sync(0xffffffffU, mine.v, d);
        const uint32_t id = __shfl_xor_sync(0xffffffffU, mine.id, d);
        better(mine, v, id);
    }
    if (lane < R) sh->best[lane][warp] = mine.v, sh->best_id[lane][warp] = mine.id;
    __syncthreads();
    if (threadIdx.x < R && t0 + threadIdx.x < n) {
        best b = {-INFINITY, 0xffffffffU};
        for (int w = 0; w < CUDA_WARPS; w++)
            better(b, sh->best[threadIdx.x][w], sh->best_id[threadIdx.x][w]);
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
        for (int d = 16; d > 0; d /= 2) {
            const float v = __shfl_xor_sync(0xffffffffU, b.v, d);
            const uint32_t id = __shfl_xor_sync(0xffffffffU, b.id, d);
            better(b, v, id);
        }
        if (lane == 0) {
            const uint32_t id = b.id == 0xffffffffU ? 0 : b.id; /* all NaN */
            a.f.word[a.f.token + row] = id;
            a.f.word[a.f.pos + row] = __ldcg(a.f.word + a.f.pos + row) + 1;
            a.ids[(uint64_t)a.step * a.rows_cap + t] = (int32_t)id;
        }
    }
}

/* ---- the kernel's body for one weight type --------------------------------------------------- */

/* Rows of a tile, ROWS a warp at a time. GATE: both rows of a pair go to one warp. */
template <int T, int R, int ROWS>
__device__ inline void work_tile(const cuda_mul &a, const share &h, const float4 *xs,
                                 const uint8_t *tile, uint32_t first, uint32_t n_rows, uint32_t t0,
                                 uint32_t n, const float (&factor)[R], best &b)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool gate = ROWS == 2 && a.epi == CUDA_EPI_GATE;
    const uint32_t per = gate ? 1 : ROWS;
#pragma unroll 1
    for (uint32_t i = warp * per; i < n_rows; i += CUDA_WARPS * per) {
        const uint8_t *row[ROWS];
        float acc[ROWS][R];
        row[0] = tile + i * h.s.stride;
        if (ROWS == 2)
            row[ROWS - 1] = gate             ? tile + (h.s.tile + i) * h.s.stride
                            : i + 1 < n_rows ? row[0] + h.s.stride
                                             : row[0];
        dot_rows<T, R, ROWS>(row, xs, a.xs_row / 4, a.cols, acc);
        /* Lane k*R + r takes sum [k][r]; of a pair, lane r both. */
        float y = 0, y1 = 0;
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (int k = 0; k < ROWS; k++)
                if (lane == k * R + r) y = acc[k][r] * factor[r];
            if (gate && lane == r) y1 = acc[ROWS - 1][r] * factor[r];
        }
        const uint32_t t = t0 + lane % R, k = lane / R;
        if (t >= n || k >= per || i + k >= n_rows) continue;
        if (gate)
            a.y[(uint64_t)t * a.y_row + first + i] = gated(y, y1, (a.flags & CUDA_MUL_GELU) != 0);
        else put_sum(a, h, first + i + k, t, y, b);
    }
}

template <int T, int R, int ROWS>
__device__ inline void mul_type(const cuda_mul &a, const share &h, mul_shared *sh, float4 *xs,
                                uint8_t *ring)
{
    const uint32_t t0 = blockIdx.y * R;
    put_gain<T>(a, xs);
    wait_before();
    if (a.flags & CUDA_MUL_LATE) let_next_start();
    const uint32_t n = row_count(a.f, a.flags);
    const bool idle = t0 >= n; /* still takes in what the copy engine brings */
    float factor[R];
    /* A lone row is always there to be read: its loads need not wait for the count. */
    if (R == 1 || !idle) put_input<T, R>(a, sh, xs, t0, n);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < R; r++) factor[r] = idle ? 0 : norm_factor(a, sh, r);
    best b = {-INFINITY, 0xffffffffU};
    uint32_t slot = 0, parity = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < h.tiles; i++) {
#if CUDA_SM90
        bar_wait(&sh->bar[slot], parity);
#else
        __syncthreads();
        fetch_tile(a, h, sh, ring, i, slot);
        __syncthreads();
#endif
        const uint32_t at = i * h.s.tile;
        if (!idle)
            work_tile<T, R, ROWS>(a, h, xs, ring + slot * a.stage_bytes, h.row0 + at,
                                  min(h.s.tile, h.rows - at), t0, n, factor, b);
#if CUDA_SM90
        if (i + a.stages < h.tiles && !idle) {
            __syncthreads();
            if (threadIdx.x == 0) fetch_tile(a, h, sh, ring, i + a.stages, slot);
        } else if (idle && i + 1 == min(h.tiles, a.stages)) break;
#endif
        if (++slot == a.stages) slot = 0, parity ^= 1;
    }
    if (idle) return;
    if (a.epi == CUDA_EPI_QKV) finish_qkv(a, h, (float *)xs, t0, min(n, t0 + R));
    else if (a.epi == CUDA_EPI_RESIDUAL && a.post) finish_post(a, sh, t0, n, R);
    else if (a.flags & CUDA_MUL_BEST) finish_best<R>(a, sh, t0, n, b, ROWS * R);
}

template <int T, int R, int ROWS> __device__ inline void mul(const cuda_mul &a)
{
    mul_shared *sh = (mul_shared *)smem;
    float4 *xs = (float4 *)(smem + CUDA_SHARED_HEAD);
    uint8_t *ring = (uint8_t *)xs + (uint64_t)R * a.xs_row * 4;
    const share h = find_share(a);
    if (threadIdx.x == 0) {
#if CUDA_SM90
#pragma unroll 1
        for (uint32_t i = 0; i < a.stages; i++) bar_init(&sh->bar[i]);
        bar_fence();
#pragma unroll 1
        for (uint32_t i = 0; i < a.stages && i < h.tiles; i++) fetch_tile(a, h, sh, ring, i, i);
#endif
    }
    if (!(a.flags & CUDA_MUL_LATE)) let_next_start();
    __syncthreads();
    mul_type<T, R, ROWS>(a, h, sh, xs, ring);
}

/* cuda_mul<rows a warp takes>_<batch rows of a block>_<enum cuda_type> */
#define MUL_KERNEL(ROWS, R, type, T)                                                               \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS, R == 1 ? 4 : 2)                     \
        cuda_mul##ROWS##_##R##_##type(const __grid_constant__ cuda_mul a)                          \
    {                                                                                              \
        mul<T, R, ROWS>(a);                                                                        \
    }
#define MUL_TYPES(ROWS, R)                                                                         \
    MUL_KERNEL(ROWS, R, 0, CUDA_F32)                                                               \
    MUL_KERNEL(ROWS, R, 1, CUDA_F16) MUL_KERNEL(ROWS, R, 2, CUDA_BF16)                             \
        MUL_KERNEL(ROWS, R, 3, CUDA_Q8_0) MUL_KERNEL(ROWS, R, 4, CUDA_Q4_0)                        \
            MUL_KERNEL(ROWS, R, 5, CUDA_Q4_1) MUL_KERNEL(ROWS, R, 6, CUDA_Q4_K)                    \
                MUL_KERNEL(ROWS, R, 7, CUDA_Q6_K)
#endif
