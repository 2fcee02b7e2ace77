/* attn.cuh - attention of one query row over the cache. Included by step.cu, lone.cu
 * and mega.cu.
 *
 * Position p belongs to stream p mod 512: class p/32 mod 16 (a block of its own), warp p/2 mod 16,
 * half warp p mod 2. A stream takes its keys upwards; streams meet in a fixed order: the two halves
 * of a warp, the 16 warps of a block upwards, the 16 classes pairwise. So the bits depend on the
 * position alone. Lane i of a half warp holds elements i*E .. of a key; G query heads share a
 * block's keys. */
#ifndef HT_BACKEND_CUDA_ATTN_CUH
#define HT_BACKEND_CUDA_ATTN_CUH
#include "backend/cuda/device.cuh"

/* Greatest score, sum of weights and weighted sum of values, for G heads. */
template <int G, int E> struct stream_sum {
    float m[G], l[G], o[G][E];
};

template <int G, int E> __device__ inline void clear_sum(stream_sum<G, E> &s)
{
#pragma unroll
    for (int g = 0; g < G; g++) {
        s.m[g] = -INFINITY, s.l[g] = 0;
#pragma unroll
        for (int e = 0; e < E; e++) s.o[g][e] = 0;
    }
}

/* Not inlined, like all that is rare: a kernel runs its code once, and what is fetched is waited
 * for. */
__device__ __noinline__ float capped(float v, float cap)
{
    return cap * tanhf(v / cap);
}

/* Products of a key with the queries, in all lanes of its half warp. */
template <int G, int E>
__device__ inline void key_scores(const float (&q)[G][E], const float (&k)[E], float (&d)[G])
{
#pragma unroll
    for (int g = 0; g < G; g++) {
        d[g] = 0;
#pragma unroll
        for (int e = 0; e < E; e++) d[g] = fmaf(q[g][e], k[e], d[g]);
    }
#pragma unroll
    for (int w = 1; w < 16; w *= 2)
#pragma unroll
        for (int g = 0; g < G; g++) d[g] += __shfl_xor_sync(0xffffffffU, d[g], w);
}
/* A key with these products and its value join a stream. */
template <int G, int E>
__device__ inline void add_scored(stream_sum<G, E> &s, const float (&d)[G], const float (&v)[E],
                                  float scale, float cap)
{
#pragma unroll
    for (int g = 0; g < G; g++) {
        float x = d[g] * scale;
        if (cap > 0) x = capped(x, cap);
        const float top = fmaxf(s.m[g], x), c = __expf(s.m[g] - top), p = __expf(x - top);
        s.m[g] = top;
        s.l[g] = fmaf(s.l[g], c, p);
#pragma unroll
        for (int e = 0; e < E; e++) s.o[g][e] = fmaf(p, v[e], s.o[g][e] * c);
    }
}

/* One key and value of this half warp. All lanes call it; in: there is such a key. */
template <int G, int E>
__device__ inline void add_key(stream_sum<G, E> &s, const float (&q)[G][E], const float (&k)[E],
                               const float (&v)[E], bool in, float scale, float cap)
{
    float d[G];
    key_scores<G, E>(q, k, d);
    if (in) add_scored<G, E>(s, d, v, scale, cap);
}

template <int E, bool HALF> struct raw_pair {
    uint4 k[HALF ? E / 8 : E / 4], v[HALF ? E / 8 : E / 4];
};
/* Key and value at kp, vp. A key of the future may be written while it is read; it is not used. */
template <int E, bool HALF>
__device__ inline void load_pair(raw_pair<E, HALF> &r, const uint8_t *kp, const uint8_t *vp,
                                 bool in)
{
#pragma unroll
    for (int i = 0; i < (HALF ? E / 8 : E / 4); i++) {
        r.k[i] = in ? __ldcg((const uint4 *)(kp + 16 * i)) : make_uint4(0, 0, 0, 0);
        r.v[i] = in ? __ldcg((const uint4 *)(vp + 16 * i)) : make_uint4(0, 0, 0, 0);
    }
}
template <int G, int E, bool HALF>
__device__ inline void add_pair(stream_sum<G, E> &s, const float (&q)[G][E],
                                const raw_pair<E, HALF> &r, bool in, float scale, float cap)
{
    float k[E], v[E];
    floats_of<E, HALF>(r.k, k);
    floats_of<E, HALF>(r.v, v);
    add_key<G, E>(s, q, k, v, in, scale, cap);
}

/* The two halves of the warp meet; the sums are the same in both. */
template <int G, int E> __device__ inline void meet_halves(stream_sum<G, E> &s)
{
#pragma unroll
    for (int g = 0; g < G; g++) {
        const float top = fmaxf(s.m[g], __shfl_xor_sync(0xffffffffU, s.m[g], 16));
        const float c = s.m[g] == -INFINITY ? 0 : __expf(s.m[g] - top);
        const float x = s.l[g] * c;
        s.m[g] = top;
        s.l[g] = x + __shfl_xor_sync(0xffffffffU, x, 16);
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float y = s.o[g][e] * c;
            s.o[g][e] = y + __shfl_xor_sync(0xffffffffU, y, 16);
        }
    }
}
/* The same, and the warp's sum goes to shared memory: o [warp][G][hd], then {m, l} [warp][G]. */
template <int G, int E>
__device__ inline void put_warp_sum(const stream_sum<G, E> &s, float *sh, uint32_t hd)
{
    const uint32_t thread = thread_now(), warp = thread / 32, lane = thread % 32,
                   d0 = lane % 16 * E;
    float *o = sh + warp * G * hd, *ml = sh + CUDA_WARPS * G * hd + warp * G * 2;
#pragma unroll
    for (int g = 0; g < G; g++) {
        const float top = fmaxf(s.m[g], __shfl_xor_sync(0xffffffffU, s.m[g], 16));
        const float c = s.m[g] == -INFINITY ? 0 : __expf(s.m[g] - top);
        const float x = s.l[g] * c, l = x + __shfl_xor_sync(0xffffffffU, x, 16);
#pragma unroll
        for (int e = 0; e < E; e++) {
            float y = s.o[g][e] * c;
            y += __shfl_xor_sync(0xffffffffU, y, 16);
            if (lane < 16 && d0 < hd) o[g * hd + d0 + e] = y;
        }
        if (lane == 0) ml[2 * g] = top, ml[2 * g + 1] = l;
    }
}
/* Element d of head g over the block's warps. */
template <int G>
__device__ inline void join_warps(const float *sh, uint32_t hd, uint32_t g, uint32_t d, float &m,
                                  float &l, float &o)
{
    const float *ml = sh + CUDA_WARPS * G * hd + 2 * g;
    m = -INFINITY, l = o = 0;
#pragma unroll 4
    for (int w = 0; w < CUDA_WARPS; w++) m = fmaxf(m, ml[w * G * 2]);
    if (m == -INFINITY) return;
#pragma unroll 4
    for (int w = 0; w < CUDA_WARPS; w++) {
        const float c = __expf(ml[w * G * 2] - m); /* 0 for a warp without keys */
        l = fmaf(ml[w * G * 2 + 1], c, l);
        o = fmaf(sh[(w * G + g) * hd + d], c, o);
    }
}
__host__ __device__ constexpr uint32_t attn_floats(uint32_t group, uint32_t hd)
{
    return CUDA_WARPS * group * (hd + 2);
}

/* ---- level 1's kernels: step.cu and lone.cu -------------------------------------------------- */

/* E elements of a vector that lane i of 16 takes; zeros past the head. */
template <int E> __device__ inline void load_head(const float *p, uint32_t hd, float (&v)[E])
{
    const uint32_t d0 = threadIdx.x % 16 * E;
#pragma unroll
    for (int e = 0; e < E; e += 4) {
        const float4 x = d0 < hd ? __ldcg((const float4 *)(p + d0 + e)) : make_float4(0, 0, 0, 0);
        v[e] = x.x, v[e + 1] = x.y, v[e + 2] = x.z, v[e + 3] = x.w;
    }
}
__device__ inline const float2 *turns_of(const cuda_rope &r, uint32_t rope_i, uint32_t row)
{
    return (const float2 *)(r.table + (uint64_t)row * r.row) + (rope_i == 1 ? r.half[0] : 0);
}
__device__ inline uint32_t half_of_rope(const cuda_rope &r, uint32_t rope_i)
{
    return rope_i == 0 ? r.half[0] : rope_i == 1 ? r.half[1] : 0;
}
/* What a block attends from. */
struct query {
    uint32_t t, b, kv_head, head0, heads; /* row of the registers and of the batch; query heads */
    uint32_t seq, from, to;               /* first and last key                                 */
    uint32_t pages_at;                    /* word of the page table                             */
};

/* Does a class have keys? */
__device__ inline bool has_keys(const query &u, uint32_t cls)
{
    const uint32_t p0 = u.from / 32, n = u.to / 32 - p0 + 1;
    return (cls + CUDA_CLASSES - p0 % CUDA_CLASSES) % CUDA_CLASSES < n;
}
#endif
