/* lone.cu - attention of a lone row over a cache of f16, from the products of Q, K and V: a block a
 * class of pages and one or two query heads. Heads are finished once a block, by two of its warps;
 * keys and values come through shared memory, where each lane copies what it will read itself. The
 * last block of a class's heads joins the classes. The order of sums is that of attn.cuh. */
#include "backend/cuda/attn.cuh"

extern __shared__ __align__(128) uint8_t smem[];

enum { ROUNDS = CUDA_LONE_ROUNDS, HEAD = 128 };

template <int G> struct lone_shared {
    uint4 pair[ROUNDS][2][CUDA_WIDE]; /* this lane's part of a key and a value of each round */
    float2 turn[HEAD / 2];
    float buf[2 * CUDA_WARPS][HEAD];  /* for finishing heads                                 */
    float q[G][HEAD], own[2][HEAD];
    uint32_t page[CUDA_LONE_PAGES], word[4];
    float o[CUDA_WARPS][G][HEAD], m[G][CUDA_WARPS], l[G][CUDA_WARPS], c[G][CUDA_WARPS];
};
static_assert(sizeof(lone_shared<1>) == CUDA_LONE_SHARED(1) &&
                  sizeof(lone_shared<2>) == CUDA_LONE_SHARED(2),
              "the host counts on it");

/* What a block attends from. */
struct lone {
    query u;
    uint32_t p0, p1; /* pages of its class: p0, p0 + 16, ... up to p1 */
    uint64_t e0;     /* of this lane's key in a page                  */
};

__device__ inline bool key_in(const lone &w, uint32_t p)
{
    const uint32_t key = p * 32 + threadIdx.x / 16;
    return p <= w.p1 && key >= w.u.from && key < w.u.to;
}
/* Where the page of round i lies. */
template <int G>
__device__ inline uint32_t page_of(const cuda_attn &a, const lone &w, const lone_shared<G> *sh,
                                   uint32_t i)
{
    const uint32_t p = w.p0 + i * CUDA_CLASSES;
    if (p > w.p1) return 0xffffffffU;
    return i < CUDA_LONE_PAGES ? sh->page[i] : __ldcg(a.f.word + w.u.pages_at + p);
}

/* The keys of round i are on their way to its place. */
template <int G>
__device__ inline void ask(const cuda_attn &a, const lone &w, lone_shared<G> *sh, uint32_t i)
{
    const uint32_t page = page_of(a, w, sh, i);
    if (key_in(w, w.p0 + i * CUDA_CLASSES) && page != 0xffffffffU &&
        threadIdx.x % 16 * 8 < a.h.head_dim) {
        copy16(&sh->pair[i % ROUNDS][0][threadIdx.x],
               a.h.plane[0] + page * a.h.page_bytes[0] + w.e0);
        copy16(&sh->pair[i % ROUNDS][1][threadIdx.x],
               a.h.plane[1] + page * a.h.page_bytes[1] + w.e0);
    }
    end_group();
}
/* All keys of the class that are cached. */
template <int G>
__device__ inline void take_keys(const cuda_attn &a, const lone &w, lone_shared<G> *sh,
                                 const float (&q)[G][8], stream_sum<G, 8> &s)
{
    const bool lane_in = threadIdx.x % 16 * 8 < a.h.head_dim;
    uint32_t i = 0;
#pragma unroll 1
    for (uint32_t p = w.p0; p <= w.p1; p += CUDA_CLASSES, i++) {
        const bool in = key_in(w, p) && page_of(a, w, sh, i) != 0xffffffffU;
        wait_groups<ROUNDS - 1>();
        if (__any_sync(0xffffffffU, in)) {
            float k[8], v[8], d[G];
            const uint4 zero = make_uint4(0, 0, 0, 0);
            const uint4 kk[1] = {in && lane_in ? sh->pair[i % ROUNDS][0][threadIdx.x] : zero};
            const uint4 vv[1] = {in && lane_in ? sh->pair[i % ROUNDS][1][threadIdx.x] : zero};
            floats_of<8, true>(kk, k);
            floats_of<8, true>(vv, v);
            key_scores<G, 8>(q, k, d);
            if (in) add_scored<G, 8>(s, d, v, a.scale, a.cap);
        }
        ask(a, w, sh, i + ROUNDS);
    }
}

/* A query head (half 0) and the next (half 1) into sh->q; or the row's own key and value, rounded
 * as the cache rounds them, into sh->own. One warp. */
template <int G>
__device__ inline void finish_pair(const cuda_attn &a, const query &u, lone_shared<G> *sh, int seg,
                                   uint32_t head, float (&v)[8], const float (&gain)[8], float *to,
                                   bool keep)
{
    const uint32_t d0 = threadIdx.x % 16 * 8;
    finish_head<8>(a.h, half_of_rope(a.rope, a.h.rope_i), sh->turn, seg, head, v, gain,
                   sh->buf[threadIdx.x / 16]);
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (seg) v[e] = __half2float(__float2half_rn(v[e]));
    if (keep && d0 < HEAD) put_kv<8, false>((uint8_t *)(to + d0), v);
}

/* The class's warps meet: its sums go to at, [heads][CUDA_CLASSES][hd + 2], o then m and l. One
 * page: the answer is here. */
template <int G>
__device__ inline void put_class(const cuda_attn &a, const query &u, lone_shared<G> *sh, float *at,
                                 bool alone, bool live)
{
    const uint32_t hd = a.h.head_dim, n = u.heads * hd, t = threadIdx.x;
    if (t < (G + 1) / 2 * 32) { /* whole warps */
        const uint32_t g = min(t / CUDA_WARPS, (uint32_t)G - 1), i = t % CUDA_WARPS;
        const float m = sh->m[g][i];
        float top = m;
#pragma unroll
        for (int d = 1; d < 16; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, d));
        sh->c[g][i] = top == -INFINITY ? 0 : __expf(m - top);
        /* A second head that this block does not have is another block's. */
        if (i == 0 && g < u.heads) at[(g * CUDA_CLASSES + blockIdx.y) * (hd + 2) + hd] = top;
    }
    __syncthreads();
    for (uint32_t k = t; k < n; k += CUDA_WIDE) {
        const uint32_t g = k / hd, d = k % hd;
        float *x = at + (g * CUDA_CLASSES + blockIdx.y) * (hd + 2), o = 0, l = 0;
#pragma unroll
        for (int i = 0; i < CUDA_WARPS; i++) {
            l = fmaf(sh->l[g][i], sh->c[g][i], l);
            o = fmaf(sh->o[i][g][d], sh->c[g][i], o);
        }
        x[d] = o;
        if (d == 0) x[hd + 1] = l;
        if (alone && live) a.a[(uint64_t)u.head0 * hd + k] = l > 0 ? o / l : 0;
    }
}

/* Sums of all classes and their quotient; at as above. */
template <int G>
__device__ inline void join_lone(const cuda_attn &a, const query &u, lone_shared<G> *sh,
                                 const float *at, bool live)
{
    const uint32_t hd = a.h.head_dim, n = u.heads * hd, t = threadIdx.x, k = min(t, n - 1);
    const float *x = at + k / hd * CUDA_CLASSES * (hd + 2) + k % hd; /* at most G * HEAD numbers */
    float o[CUDA_CLASSES];
#pragma unroll
    for (int c = 0; c < CUDA_CLASSES; c++)
        o[c] = t < n && has_keys(u, c) ? __ldcg(x + c * (hd + 2)) : 0;
    if (t < (G + 1) / 2 * 32) { /* whole warps: factors, and the sum of l */
        const uint32_t g = min(t / CUDA_CLASSES, u.heads - 1), c = t % CUDA_CLASSES;
        const float *y = at + (g * CUDA_CLASSES + c) * (hd + 2) + hd;
        const bool some = has_keys(u, c);
        const float m = some ? __ldcg(y) : -INFINITY, l = some ? __ldcg(y + 1) : 0;
        float top = m;
#pragma unroll
        for (int i = 1; i < 16; i *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, i));
        const float f = some && top != -INFINITY ? __expf(m - top) : 0;
        const float all = sum_lanes(l * f, 16);
        sh->c[g][c] = f, sh->l[g][c] = all;
    }
    __syncthreads();
    if (t >= n) return;
    const uint32_t g = k / hd;
#pragma unroll
    for (int c = 0; c < CUDA_CLASSES; c++) o[c] *= sh->c[g][c];
#pragma unroll
    for (int i = 1; i < CUDA_CLASSES; i *= 2)
#pragma unroll
        for (int c = 0; c < CUDA_CLASSES; c += 2 * i) o[c] += o[c + i];
    const float l = sh->l[g][0];
    if (live) a.a[(uint64_t)u.head0 * hd + k] = l > 0 ? o[0] / l : 0;
}

/* The heads that this block needs are finished: queries, and the row's own key and value, which are
 * cached. raw: what the warp has of them. */
template <int G>
__device__ inline void finish_all(const cuda_attn &a, const lone &w, lone_shared<G> *sh,
                                  float (&raw)[8], const float (&gain)[8], bool own_here, bool live)
{
    const uint32_t half = threadIdx.x / 16 % 2, d0 = threadIdx.x % 16 * 8, hd = a.h.head_dim;
    if (threadIdx.x < 32)
        finish_pair<G>(a, w.u, sh, 0, w.u.head0 + min(half, w.u.heads - 1), raw, gain,
                       sh->q[half % G], half < G);
    if (threadIdx.x < CUDA_WIDE - 32 || !own_here) return;
    finish_pair<G>(a, w.u, sh, 1 + half, w.u.kv_head, raw, gain, sh->own[half], true);
    if (!live || d0 >= hd) return;
    const uint32_t page = __ldcg(a.f.word + w.u.pages_at + w.p1);
    put_kv<8, true>((half ? a.h.plane[1] : a.h.plane[0]) +
                        page * (half ? a.h.page_bytes[1] : a.h.page_bytes[0]) +
                        ((uint64_t)(w.u.kv_head * 32 + w.u.to % 32) * hd + d0) * 2,
                    raw);
}

/* This warp's streams, into sh. */
template <int G>
__device__ inline void attend_warp(const cuda_attn &a, const lone &w, lone_shared<G> *sh,
                                   bool own_here)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, d0 = lane % 16 * 8;
    float q[G][8];
    stream_sum<G, 8> s;
#pragma unroll
    for (int g = 0; g < G; g++)
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
            const float4 x = *(const float4 *)(sh->q[g] + d0 + e);
            q[g][e] = x.x, q[g][e + 1] = x.y, q[g][e + 2] = x.z, q[g][e + 3] = x.w;
        }
    clear_sum(s);
    take_keys<G>(a, w, sh, q, s);
    if (own_here && warp == w.u.to % 32 / 2) {
        float k[8], v[8];
#pragma unroll
        for (int e = 0; e < 8; e++) k[e] = sh->own[0][d0 + e], v[e] = sh->own[1][d0 + e];
        add_key<G, 8>(s, q, k, v, threadIdx.x / 16 == w.u.to % 32, a.scale, a.cap);
    }
    meet_halves<G, 8>(s);
#pragma unroll
    for (int g = 0; g < G; g++) {
        if (lane < 16) put_kv<8, false>((uint8_t *)(sh->o[warp][g] + d0), s.o[g]);
        if (lane == 0) sh->m[g][warp] = s.m[g], sh->l[g][warp] = s.l[g];
    }
}

template <int G> __device__ inline void attend_lone(const cuda_attn &a)
{
    lone_shared<G> *sh = (lone_shared<G> *)smem;
    const uint32_t hd = a.h.head_dim, half = threadIdx.x / 16 % 2, warp = threadIdx.x / 32;
    const uint32_t group = a.h.n_heads / a.h.n_kv_heads, first = blockIdx.x % a.chunks * G;
    const uint32_t turns = half_of_rope(a.rope, a.h.rope_i), cls = blockIdx.y;
    const bool owns = warp == CUDA_WARPS - 1;
    lone w;
    query &u = w.u;
    let_next_start();
    u.t = u.b = 0;
    u.kv_head = blockIdx.x / a.chunks;
    u.head0 = u.kv_head * group + first;
    u.heads = min((uint32_t)G, group - first);
    w.e0 = ((uint64_t)(u.kv_head * 32 + threadIdx.x / 16) * hd + threadIdx.x % 16 * 8) * 2;
    const uint32_t table = a.h.kv_class ? a.f.page[1] : a.f.page[0];
    float gain[8], raw[8];
    if (warp == 0 || owns) head_gain<8>(a.h, owns ? 1 + half : 0, gain);
    wait_before();
    if (warp == 0) load_head<8>(a.q + (uint64_t)(u.head0 + min(half, u.heads - 1)) * hd, hd, raw);
    if (owns)
        load_head<8>(a.q + (uint64_t)(a.h.n_heads + half * a.h.n_kv_heads + u.kv_head) * hd, hd,
                     raw);
    /* The words of the batch, once a block: thousands of warps would queue for one line of L2. All
     * travel together; most often the row's sequence is the first and its first page is read. */
    const uint32_t t = threadIdx.x, i = t - 64, other = t - CUDA_WIDE / 2;
    if (t >= 32 && t < 36)
        sh->word[t - 32] = __ldcg(t == 32   ? a.f.stop
                                  : t == 33 ? a.f.word + CUDA_N_ROWS
                                  : t == 34 ? a.f.word + a.f.seq
                                            : a.f.word + a.f.pos);
    if (t >= CUDA_WIDE / 2 && other < turns)
        sh->turn[other] = __ldcg(turns_of(a.rope, a.h.rope_i, 0) + other);
    if (t >= 64 && i < CUDA_LONE_PAGES && cls + i * CUDA_CLASSES < a.f.n_table)
        sh->page[i] = __ldcg(a.f.word + table + cls + i * CUDA_CLASSES);
    __syncthreads();
    const bool live = !sh->word[0] && sh->word[1];
    u.seq = sh->word[2], u.to = sh->word[3];
    u.from = a.window && u.to + 1 > a.window ? u.to + 1 - a.window : 0;
    u.pages_at = table + u.seq * a.f.n_table;
    w.p1 = u.to / 32;
    w.p0 = u.from / 32 + (cls + CUDA_CLASSES - u.from / 32 % CUDA_CLASSES) % CUDA_CLASSES;
    const uint32_t n = w.p1 - u.from / 32 + 1;
    const bool own_here = w.p1 % CUDA_CLASSES == cls;
    if (!has_keys(u, cls)) return;
    if (u.seq || w.p0 != cls) {
        const uint32_t p = w.p0 + i * CUDA_CLASSES;
        __syncthreads();
        if (t >= 64 && i < CUDA_LONE_PAGES && p <= w.p1)
            sh->page[i] = __ldcg(a.f.word + u.pages_at + p);
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) ask(a, w, sh, r);
    finish_all<G>(a, w, sh, raw, gain, own_here, live);
    __syncthreads();
    attend_warp<G>(a, w, sh, own_here);
    __syncthreads();
    float *at = a.part + (uint64_t)u.head0 * CUDA_CLASSES * (hd + 2);
    put_class<G>(a, u, sh, at, n == 1, live);
    if (n == 1 || !last_of(a.arrived + blockIdx.x, min(n, (uint32_t)CUDA_CLASSES))) return;
    join_lone<G>(a, u, sh, at, live);
}

/* cuda_lone_<query heads> */
#define LONE(G)                                                                                    \
    extern "C" __global__ void __maxnreg__(64) cuda_lone_##G(const __grid_constant__ cuda_attn a)  \
    {                                                                                              \
        attend_lone<G>(a);                                                                         \
    }
LONE(1)
LONE(2)
