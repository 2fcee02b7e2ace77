/* mega.cu - level 2: one kernel for whole decode steps of one sequence, several tokens a launch.
 *
 * A block a multiprocessor, all of them resident. Each of a block's 16 warps owns a share of every
 * matrix (kern.h) and a ring of pieces in shared memory, which it fills itself: after a piece is
 * used up, the one that comes `slots` later in its schedule is asked for, across phases, layers and
 * tokens. So the memory never waits for the chain of dependent phases, and weights wait in the ring
 * when their inputs arrive.
 *
 * Blocks exchange vectors as words {value, epoch}: a store is data and signal at once, and readers
 * poll the data itself. An epoch names the layer of a token. A buffer may be written again once all
 * blocks have read it: every block holds rows of gate and up, and no block writes for layer l+1
 * before it has the hidden vector of layer l from all blocks, which each of them writes after its
 * reads of layer l's other buffers. The hidden vector itself has two places.
 *
 * A layer: QKV | heads finished by every reader, attention by classes of pages | classes joined |
 * output, residual | gate, up | down, residual. All sums are those of dot.cuh and attn.cuh: the
 * bits are those of level 1. */
#include "backend/cuda/attn.cuh"
#include "backend/cuda/dot.cuh"

extern __shared__ __align__(128) uint8_t smem[];

enum { HEAD_DIM_MAX = 128, PAGES_MAX = 256, MATS_MAX = 512, SPIN_CHECK = 4096 };
#define SPIN_NS 2000000000ULL

template <int G> struct mega_shared {
    uint64_t bar[CUDA_WARPS][CUDA_MAX_SLOTS];
    float square[2][CUDA_WARPS];
    float part[2][CUDA_TILE * CUDA_PART_ROW];
    float residual[CUDA_TILE];
    best top[CUDA_WARPS];
    float2 turn[2][HEAD_DIM_MAX / 2];
    uint64_t clocks[CUDA_CLOCKS], clock, unused; /* what follows is aligned */
    uint32_t page[PAGES_MAX];
    float q[4 * HEAD_DIM_MAX];
    float attn[CUDA_WARPS * (G > 1 ? G : 2) * (HEAD_DIM_MAX + 2)];
};

/* ---- words------------------------------------------------------------------------------------ */

__device__ inline void put_word(uint64_t *at, float v, uint32_t epoch)
{
    const uint64_t w = (uint64_t)epoch << 32 | __float_as_uint(v);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(w) : "memory");
}
struct two_words {
    uint64_t a, b;
};
__device__ inline two_words get_words(const uint64_t *at)
{
    two_words w;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(w.a), "=l"(w.b)
                 : "l"(at)
                 : "memory");
    return w;
}
__device__ inline bool is_of(const two_words &w, uint32_t epoch)
{
    return (uint32_t)(w.a >> 32) == epoch && (uint32_t)(w.b >> 32) == epoch;
}
__device__ inline float2 values_of(const two_words &w)
{
    return make_float2(__uint_as_float((uint32_t)w.a), __uint_as_float((uint32_t)w.b));
}
__device__ inline uint64_t now_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* A warp that has waited long looks whether the launch is given up, and gives it up after two
 * seconds; from then on nothing waits, and the kernel runs out with numbers that nobody uses. */
struct patience {
    uint32_t *state;
    bool over;
};
__device__ inline bool give_up(uint32_t *state, uint64_t since)
{
    uint32_t given_up;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(given_up) : "l"(state) : "memory");
    if (!given_up && now_ns() - since < SPIN_NS) return false;
    asm volatile("st.relaxed.sys.global.u32 [%0], 1;" ::"l"(state) : "memory");
    return true;
}
struct waiting {
    uint32_t spins;
    uint64_t since;
};
__device__ inline bool keep_waiting(patience &p, waiting &w)
{
    if (p.over) return false;
    if (++w.spins % SPIN_CHECK) return true;
    if (w.spins == SPIN_CHECK) w.since = now_ns();
    p.over = give_up(p.state, w.since);
    return !p.over;
}

/* N pairs of words, `step` words apart, from this lane's place on; lanes with !want[i] take part
 * with zeros. */
template <int N>
__device__ inline void poll(patience &p, const uint64_t *at, uint32_t step, uint32_t want,
                            uint32_t epoch, float2 (&v)[N])
{
    two_words w[N];
    bool all;
    waiting wait = {0, 0};
    do {
        all = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (want >> i & 1) w[i] = get_words(at + i * step);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (want >> i & 1) all = all && is_of(w[i], epoch);
        all = __all_sync(0xffffffffU, all);
    } while (!all && keep_waiting(p, wait));
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = (want >> i & 1) ? values_of(w[i]) : make_float2(0, 0);
}

/* ---- the stream of weights-------------------------------------------------------------------- */

/* Where a warp stands in its ring; the filling side is ahead by at most `slots` pieces. */
struct flow {
    uint32_t slot, parity;
    uint32_t unit, left;     /* in this piece; units left of the matrix           */
    uint32_t used;           /* pieces                                            */
    uint64_t now, next;      /* filling: lane i has words 32n+i of the list (below) */
    uint32_t at, count;      /* in the list; its length                           */
    uint32_t f_slot, to_ask; /* pieces still to be asked for                      */
};
/* Where things lie, which is cheaper found anew than kept in registers. */
__device__ inline uint8_t *ring_of(const cuda_mega &a)
{
    return smem + a.ring_at + thread_now() / 32 * a.slots * CUDA_PIECE;
}
__device__ inline const cuda_mega_mat *mats_of(const cuda_mega &a)
{
    return (const cuda_mega_mat *)(smem + a.mats_at);
}
__device__ inline const cuda_mega_layer *layers_of(const cuda_mega &a)
{
    return (const cuda_mega_layer *)(smem + a.layers_at);
}
__device__ inline uint64_t *bars()
{
    return (uint64_t *)smem + thread_now() / 32 * CUDA_MAX_SLOTS; /* mega_shared.bar */
}

/* The list of a warp: its count, then a word for each piece of a token in order, {bytes / 16,
 * address} in 16 and 48 bits. */
__device__ inline const uint64_t *list_of(const cuda_mega &a)
{
    return a.pieces + ((uint64_t)blockIdx.x * CUDA_WARPS + thread_now() / 32) * a.list_words;
}
__device__ inline uint64_t list_word(const cuda_mega &a, const flow &f, uint32_t i)
{
    return i < f.count ? __ldg(list_of(a) + 1 + i) : 0;
}
/* Ask for the next piece. All lanes. */
__device__ inline void fill_piece(const cuda_mega &a, flow &f)
{
    if (f.to_ask == 0) return;
    f.to_ask--;
    const uint64_t w = __shfl_sync(0xffffffffU, f.now, f.at % 32);
    const uint32_t lane = thread_now() % 32;
    if (lane == 0) {
        const uint32_t bytes = (uint32_t)(w >> 48) * 16;
        bar_expect(bars() + f.f_slot, bytes);
        bulk_copy(ring_of(a) + f.f_slot * CUDA_PIECE, (const void *)(w & 0xffffffffffffULL), bytes,
                  bars() + f.f_slot);
    }
    if (++f.f_slot == a.slots) f.f_slot = 0;
    if (++f.at == f.count) f.at = 0;
    if (f.at % 32) return;
    f.now = f.next;
    f.next = list_word(a, f, f.at + 32 < f.count ? f.at + 32 + lane : lane);
}
__device__ inline const uint8_t *flow_unit(const cuda_mega &a, flow &f, uint32_t unit_bytes)
{
    if (f.unit == 0) bar_wait(bars() + f.slot, f.parity);
    return ring_of(a) + f.slot * CUDA_PIECE + f.unit * unit_bytes;
}
__device__ inline void flow_done(const cuda_mega &a, flow &f, uint32_t upp)
{
    f.left--;
    if (++f.unit < upp && f.left) return;
    f.unit = 0;
    f.used++;
    __syncwarp();
    fill_piece(a, f);
    if (++f.slot == a.slots) f.slot = 0, f.parity ^= 1;
}

/* ---- products--------------------------------------------------------------------------------- */

template <int T>
__device__ inline void dot_rows(const cuda_mega &a, flow &f, const cuda_mega_mat &mm,
                                const float *xs, float *part, uint32_t n)
{
    const uint32_t thread = thread_now(), warp = thread / 32, ng = groups_of(mm.m.groups, warp);
#pragma unroll 1
    for (uint32_t at = 0; at < n; at += mm.m.unit_rows) {
        float acc[4][1] = {{0}, {0}, {0}, {0}};
#pragma unroll 1
        for (uint32_t i = 0; i < ng; i++) {
            const uint8_t *u = flow_unit(a, f, mm.m.unit_bytes);
            dot_unit<T, 1>(u, mm.m.unit_rows, xs + (warp + i * CUDA_WARPS) * CUDA_GROUP, 0,
                           thread % 32, acc);
            flow_done(a, f, mm.upp);
        }
        put_part<1>(acc, mm.m.unit_rows, thread, part + at * CUDA_PART_ROW);
    }
}
__device__ inline void dot_any(const cuda_mega &a, flow &f, const cuda_mega_mat &mm,
                               const float *xs, float *part, uint32_t n)
{
    switch (mm.m.type) {
    case CUDA_F16: dot_rows<CUDA_F16>(a, f, mm, xs, part, n); break;
    case CUDA_BF16: dot_rows<CUDA_BF16>(a, f, mm, xs, part, n); break;
    case CUDA_Q8_0: dot_rows<CUDA_Q8_0>(a, f, mm, xs, part, n); break;
    case CUDA_Q4_0: dot_rows<CUDA_Q4_0>(a, f, mm, xs, part, n); break;
    case CUDA_Q4_1: dot_rows<CUDA_Q4_1>(a, f, mm, xs, part, n); break;
    case CUDA_Q4_K: dot_rows<CUDA_Q4_K>(a, f, mm, xs, part, n); break;
    default: dot_rows<CUDA_Q6_K>(a, f, mm, xs, part, n); break;
    }
}

/* This warp's groups of a vector of n words, times gain, into xs; its squares. */
__device__ inline float take_input(patience &p, const uint64_t *words, uint32_t n, uint32_t epoch,
                                   const float *gain, float *xs)
{
    const uint32_t thread = thread_now();
    constexpr int U = 3;
    const uint32_t warp = thread / 32, lane = thread % 32;
    const uint32_t groups = (n + CUDA_GROUP - 1) / CUDA_GROUP;
    float sq = 0;
#pragma unroll 1
    for (uint32_t g0 = warp; g0 < groups; g0 += U * CUDA_WARPS) {
        const uint32_t k0 = g0 * CUDA_GROUP + 2 * lane, step = CUDA_WARPS * CUDA_GROUP;
        uint32_t want = 0;
        float2 v[U], w[U];
#pragma unroll
        for (int i = 0; i < U; i++) {
            const bool in = k0 + i * step < n;
            want |= (uint32_t)in << i;
            w[i] = gain && in ? *(const float2 *)(gain + k0 + i * step) : make_float2(1, 1);
        }
        poll<U>(p, words + k0, step, want, epoch, v);
#pragma unroll
        for (int i = 0; i < U; i++) {
            if (g0 + i * CUDA_WARPS >= groups) continue;
            sq = fmaf(v[i].y, v[i].y, fmaf(v[i].x, v[i].x, sq));
            *(float2 *)(xs + k0 + i * step) = make_float2(v[i].x * w[i].x, v[i].y * w[i].y);
        }
    }
    __syncwarp();
    return sq;
}

/* What a block keeps over the launch. */
template <int G> struct mega {
    const cuda_mega &a;
    mega_shared<G> *sh;
    float *xs;
    flow f;
    patience p;
    uint32_t flip, sq_flip, mat, epoch, pos, token, step, group;
};

/* What becomes of a row's sum: half a warp holds it; at: the row within the block. */
template <int G>
__device__ inline void put_row(mega<G> &k, int phase, const cuda_mat &m, uint32_t at, uint32_t row,
                               float v, uint64_t *hid, best &b)
{
    const uint32_t thread = thread_now();
    const uint32_t lane = thread % 32;
    const float up = phase == CUDA_PH_UP ? __shfl_xor_sync(0xffffffffU, v, 16) : 0;
    if (lane % 16 || row >= m.rows) return;
    if (phase == CUDA_PH_QKV) put_word(k.a.qkv + m.row0 + row, v, k.epoch);
    else if (phase == CUDA_PH_HEAD) better(b, v, row);
    else if (phase == CUDA_PH_UP) {
        if (lane == 0) put_word(hid + row / 2, gated(v, up, k.a.gelu), k.epoch);
    } else {
        const float x = k.sh->residual[at] + v;
        k.sh->residual[at] = x;
        put_word((phase == CUDA_PH_OUT ? k.a.x2 : k.a.x1) + row, x, k.epoch);
    }
}

/* One phase: all its matrices with the inputs in xs. */
template <int G>
__device__ inline void run_phase(mega<G> &k, int phase, float sq, uint64_t *hid, best &b)
{
    const uint32_t thread = thread_now();
    const uint32_t warp = thread / 32, lane = thread % 32, i = lane % 16;
    const bool norm = phase != CUDA_PH_OUT && phase != CUDA_PH_DOWN;
    float *square = k.sh->square[k.sq_flip];
    k.sq_flip ^= 1;
    if (norm) {
        sq = sum_lanes(sq, 32);
        if (lane == 0) square[warp] = sq;
    }
    for (bool last = false; !last; k.mat++) {
        const cuda_mega_mat &mm = mats_of(k.a)[k.mat];
        const uint32_t row0 = blockIdx.x * mm.m.per_block;
        const uint32_t rows = row0 < mm.m.rows ? mm.m.per_block : 0;
        last = mm.last;
        k.f.left = rows ? mm.m.layers * groups_of(mm.m.groups, warp) : 0;
#pragma unroll 1
        for (uint32_t tile0 = 0; tile0 == 0 || tile0 < rows; tile0 += CUDA_TILE, k.flip ^= 1) {
            const uint32_t n = min((uint32_t)CUDA_TILE, rows - tile0);
            float *part = k.sh->part[k.flip];
            dot_any(k.a, k.f, mm, k.xs, part, n);
            __syncthreads();
            const float factor = norm ? norm_factor(sum_lanes(square[i], 16), k.a.dim, k.a.eps) : 1;
            for (uint32_t at = warp * 2; at < n; at += 2 * CUDA_WARPS) {
                const uint32_t row = at + lane / 16;
                const float y = sum_lanes(part[row * CUDA_PART_ROW + i], 16) * factor;
                put_row(k, phase, mm.m, tile0 + row, row0 + tile0 + row, y, hid, b);
            }
        }
    }
}

/* ---- attention-------------------------------------------------------------------------------- */

/* One head's E words for each half warp, from `at`. */
__device__ inline void poll_head(patience &p, const uint64_t *at, uint32_t hd, uint32_t epoch,
                                 float (&v)[8])
{
    const uint32_t thread = thread_now();
    const uint32_t d0 = thread % 16 * 8;
    float2 x[4];
    poll<4>(p, at + d0, 2, d0 < hd ? 15 : 0, epoch, x);
#pragma unroll
    for (int i = 0; i < 4; i++) v[2 * i] = x[i].x, v[2 * i + 1] = x[i].y;
}

__device__ inline void put_half(uint4 &w, const float (&v)[8])
{
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __half2 p = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
        x[i] = *(const uint32_t *)&p;
    }
    w = make_uint4(x[0], x[1], x[2], x[3]);
}
__device__ inline void to_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* Where this thread's share of the cache lies: its block's class of pages, its place in a page. */
struct place {
    uint8_t *kp, *vp;             /* in page 0                    */
    uint32_t kb, vb;              /* bytes of a page              */
    uint32_t cls, kv, n, in_page; /* n: pages of the class so far */
    uint32_t d0;
    bool mine; /* there are such elements      */
};
template <int G> __device__ inline place place_of(const mega<G> &k, const cuda_heads &h)
{
    const uint32_t thread = thread_now(), pages = k.pos / 32 + 1;
    place s;
    s.cls = blockIdx.x % CUDA_CLASSES, s.kv = blockIdx.x / CUDA_CLASSES;
    s.in_page = thread / 16, s.d0 = thread % 16 * 8;
    s.n = s.kv < h.n_kv_heads && s.cls < pages ? (pages - s.cls + CUDA_CLASSES - 1) / CUDA_CLASSES
                                               : 0;
    const uint32_t e0 = 2 * ((s.kv * 32 + s.in_page) * h.head_dim + s.d0);
    s.kp = h.plane[0] + e0, s.vp = h.plane[1] + e0;
    s.kb = (uint32_t)h.page_bytes[0], s.vb = (uint32_t)h.page_bytes[1];
    s.mine = s.d0 < h.head_dim;
    return s;
}

/* Queries into shared memory, two heads a warp; in one warp of one block a head, the token's own
 * key and value into `own` and the cache. */
template <int G>
__device__ inline void finish_heads(mega<G> &k, const cuda_heads &h, const place &s,
                                    raw_pair<8, true> &own)
{
    const cuda_mega &a = k.a;
    const uint32_t hd = h.head_dim, warp = s.in_page / 2, half = s.in_page % 2, group = k.group;
    const bool owner = k.pos / 32 % CUDA_CLASSES == s.cls && k.pos % 32 / 2 == warp;
    float *buf = k.sh->attn + s.in_page * HEAD_DIM_MAX; /* where sums go later */
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++) {
        if (turn ? !owner : warp >= (G + 1) / 2) continue;
        const int seg = turn ? 1 + (int)half : 0;
        const uint32_t g = min(2 * warp + half, group - 1);
        const uint32_t head = turn ? s.kv : s.kv * group + g;
        const uint32_t at = turn ? h.n_heads + half * h.n_kv_heads + s.kv : head;
        float v[8], gain[8];
        head_gain<8>(h, seg, gain);
        poll_head(k.p, a.qkv + at * hd, hd, k.epoch, v);
        finish_head<8>(h, h.rope_i == 0 ? a.rope.half[0] : 0, k.sh->turn[k.step & 1], seg, head, v,
                       gain, buf);
        if (!turn) {
            float4 *to = (float4 *)(k.sh->q + g * HEAD_DIM_MAX + s.d0);
            to[0] = make_float4(v[0], v[1], v[2], v[3]);
            to[1] = make_float4(v[4], v[5], v[6], v[7]);
            continue;
        }
        float w[8];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            w[e] = __shfl_xor_sync(0xffffffffU, v[e], 16);
            const float x = half ? w[e] : v[e], y = half ? v[e] : w[e];
            v[e] = x, w[e] = y;
        }
        put_half(own.k[0], v);
        put_half(own.v[0], w);
        if (s.in_page == k.pos % 32 && s.mine) {
            const uint64_t page = k.sh->page[s.n - 1];
            *(uint4 *)(s.kp + page * s.kb) = own.k[0];
            *(uint4 *)(s.vp + page * s.vb) = own.v[0];
        }
    }
}

/* The block's result for the others: its part, or the output itself where there is one class. */
template <int G>
__device__ inline void put_parts(const mega<G> &k, const cuda_heads &h, const place &s)
{
    const cuda_mega &a = k.a;
    const uint32_t hd = h.head_dim;
    for (uint32_t i = thread_now(); i < k.group * HEAD_DIM_MAX; i += CUDA_WIDE) {
        const uint32_t g = i / HEAD_DIM_MAX, d = i % HEAD_DIM_MAX, head = s.kv * k.group + g;
        if (d >= hd) continue;
        float m, sum, o;
        join_warps<G>(k.sh->attn, hd, g, d, m, sum, o);
        if (k.pos < 32) {
            put_word(a.a + head * hd + d, sum > 0 ? o / sum : 0, k.epoch);
            continue;
        }
        const uint32_t at = head * CUDA_CLASSES + s.cls;
        put_word(a.part + (uint64_t)at * hd + d, o, k.epoch);
        if (d == 0) {
            put_word(a.part_ml + 2 * at, m, k.epoch);
            put_word(a.part_ml + 2 * at + 1, sum, k.epoch);
        }
    }
}

template <int G> __device__ inline void attention(mega<G> &k, const cuda_mega_layer &l)
{
    enum { AHEAD = 8 }; /* pages on their way to L2 */
    const cuda_heads &h = l.h;
    const place s = place_of(k, h);
    if (s.n == 0) return;
    raw_pair<8, true> r, own;
    { /* keys are on their way before the queries are there */
        const uint64_t page = k.sh->page[0];
        load_pair<8, true>(r, s.kp + page * s.kb, s.vp + page * s.vb,
                           s.cls * 32 + s.in_page < k.pos && s.mine);
#pragma unroll 1
        for (uint32_t i = 1; i < s.n && i < AHEAD; i++) {
            to_l2(s.kp + (uint64_t)k.sh->page[i] * s.kb);
            to_l2(s.vp + (uint64_t)k.sh->page[i] * s.vb);
        }
    }
    finish_heads(k, h, s, own);
    __syncthreads();
    float q[G][8];
#pragma unroll
    for (int g = 0; g < G; g++) {
        const float4 *from =
            (const float4 *)(k.sh->q + min((uint32_t)g, k.group - 1) * HEAD_DIM_MAX + s.d0);
        const float4 x = from[0], y = from[1];
        q[g][0] = x.x, q[g][1] = x.y, q[g][2] = x.z, q[g][3] = x.w;
        q[g][4] = y.x, q[g][5] = y.y, q[g][6] = y.z, q[g][7] = y.w;
    }
    stream_sum<G, 8> sum;
    clear_sum(sum);
#pragma unroll 1
    for (uint32_t i = 0; i < s.n; i++) {
        raw_pair<8, true> next;
        const uint32_t key = (s.cls + CUDA_CLASSES * i) * 32 + s.in_page;
        const uint64_t page = i + 1 < s.n ? k.sh->page[i + 1] : 0;
        if (i + AHEAD < s.n) {
            to_l2(s.kp + (uint64_t)k.sh->page[i + AHEAD] * s.kb);
            to_l2(s.vp + (uint64_t)k.sh->page[i + AHEAD] * s.vb);
        }
        load_pair<8, true>(next, s.kp + page * s.kb, s.vp + page * s.vb,
                           i + 1 < s.n && key + CUDA_CLASSES * 32 < k.pos && s.mine);
        if (key == k.pos) r = own;
        add_pair<G, 8, true>(sum, q, r, key <= k.pos, k.a.scale, 0);
        r = next;
    }
    put_warp_sum<G, 8>(sum, k.sh->attn, h.head_dim);
    __syncthreads();
    put_parts(k, h, s);
}

/* 16 elements of the output at a time, by a warp: a lane has 8 of them in one class. */
template <int G> __device__ inline void join_parts(mega<G> &k, const cuda_heads &h)
{
    const uint32_t thread = thread_now();
    const cuda_mega &a = k.a;
    const uint32_t hd = h.head_dim, pages = k.pos / 32 + 1, lane = thread % 32;
    const uint32_t c = lane % 16;
    if (pages == 1) return;
#pragma unroll 1
    for (uint32_t i = blockIdx.x + gridDim.x * (thread / 32); 16 * i < h.n_heads * hd;
         i += gridDim.x * CUDA_WARPS) {
        const uint32_t at = i * 16 + lane / 16 * 8, head = at / hd, d = at % hd;
        const uint64_t *p = a.part + (head * CUDA_CLASSES + c) * hd + d;
        const uint64_t *ml = a.part_ml + 2 * (head * CUDA_CLASSES + c);
        float2 x[4], y[1];
        const bool some = c < pages;
        poll<1>(k.p, ml, 0, some, k.epoch, y);
        poll<4>(k.p, p, 2, some ? 15 : 0, k.epoch, x);
        float m = some ? y[0].x : -INFINITY, v[8];
#pragma unroll
        for (int w = 1; w < 16; w *= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffU, m, w));
        const float f = some ? __expf(y[0].x - m) : 0, l = sum_lanes(y[0].y * f, 16);
#pragma unroll
        for (int e = 0; e < 4; e++) v[2 * e] = x[e].x * f, v[2 * e + 1] = x[e].y * f;
            /* Pairs of lanes share out what they add; at the end lane c holds an element, twice. */
#pragma unroll
        for (int w = 1, n = 4; w < 8; w *= 2, n /= 2)
#pragma unroll
            for (int e = 0; e < n; e++) {
                const float keep = (c & w) ? v[e + n] : v[e], give = (c & w) ? v[e] : v[e + n];
                v[e] = keep + __shfl_xor_sync(0xffffffffU, give, w);
            }
        v[0] += __shfl_xor_sync(0xffffffffU, v[0], 8);
        const uint32_t e = (c & 1) * 4 + (c & 2) + (c >> 2 & 1);
        if (c < 8) put_word(a.a + at + e, l > 0 ? v[0] / l : 0, k.epoch);
    }
}

/* ---- a token---------------------------------------------------------------------------------- */

/* Thread 0 of block 0 adds what has passed since the last call. */
template <int G> __device__ inline void tick(mega<G> &k, int stage)
{
    if (!k.a.clocks || blockIdx.x || threadIdx.x) return;
    const uint64_t t = clock64();
    k.sh->clocks[stage] += t - k.sh->clock;
    k.sh->clock = t;
}

/* The residual lies with the rows of `output` and `down`, which are dealt out alike. */
template <int G> __device__ inline void start_token(mega<G> &k)
{
    const cuda_mega &a = k.a;
    const uint32_t per = mats_of(k.a)[a.n_mats - 2].m.per_block, i = 2 * threadIdx.x;
    const uint32_t row = blockIdx.x * per + i;
    if (i >= per || row >= a.dim) return;
    const float2 v = embed_pair(a.embed, k.token, row);
    k.sh->residual[i] = v.x * a.embed_scale;
    k.sh->residual[i + 1] = v.y * a.embed_scale;
}

/* The embedding as input of the first layer. */
template <int G> __device__ inline float embed_input(mega<G> &k, const float *gain)
{
    const cuda_mega &a = k.a;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sq = 0;
#pragma unroll 1
    for (uint32_t g = warp; g * CUDA_GROUP < a.dim; g += CUDA_WARPS) {
        const uint32_t c = g * CUDA_GROUP + 2 * lane;
        float2 v = {0, 0}, w = {0, 0};
        if (c < a.dim) v = embed_pair(a.embed, k.token, c), w = *(const float2 *)(gain + c);
        v.x *= a.embed_scale, v.y *= a.embed_scale;
        sq = fmaf(v.y, v.y, fmaf(v.x, v.x, sq));
        *(float2 *)(k.xs + c) = make_float2(v.x * w.x, v.y * w.y);
    }
    __syncwarp();
    return sq;
}

/* The block's best row, then all blocks', in every warp. True: the launch ends. */
template <int G> __device__ inline bool choose(mega<G> &k, best b)
{
    const cuda_mega &a = k.a;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t *words = a.best + (k.step & 1) * 2 * gridDim.x;
    better_lanes(b);
    if (lane == 0) k.sh->top[warp] = b;
    __syncthreads();
    if (warp == 0) {
        b = k.sh->top[lane % 16];
        better_lanes(b);
        if (lane == 0) { /* block 0 says for all whether the launch ends here */
            const uint32_t stop = blockIdx.x ? 0 : __ldcg(a.f.stop) != 0;
            if (b.id == 0xffffffffU) b.id = 0x7fffffffU;
            put_word(words + 2 * blockIdx.x, b.v, k.epoch);
            put_word(words + 2 * blockIdx.x + 1, __uint_as_float(b.id | stop << 31), k.epoch);
        }
    }
    bool stop = false;
    b = {-INFINITY, 0xffffffffU};
    for (uint32_t i0 = 0; i0 < gridDim.x; i0 += 128) {
        float2 v[4];
        uint32_t want = 0;
        for (int i = 0; i < 4; i++) want |= (uint32_t)(i0 + 32 * i + lane < gridDim.x) << i;
        poll<4>(k.p, words + 2 * (i0 + lane), 64, want, k.epoch, v);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!(want >> i & 1)) continue;
            const uint32_t id = __float_as_uint(v[i].y);
            stop = stop || (id >> 31 && i0 + 32 * i + lane == 0);
            better(b, v[i].x, id & 0x7fffffffU);
        }
    }
    better_lanes(b);
    k.token = b.id < a.vocab ? b.id : 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) a.ids[k.step] = (int32_t)k.token;
    return __any_sync(0xffffffffU, stop) || k.p.over;
}

/* All layers and the head of one token; one body for all phases, so that the code stays short. */
template <int G> __device__ inline bool run_token(mega<G> &k)
{
    const cuda_mega &a = k.a;
    best b = {-INFINITY, 0xffffffffU};
#pragma unroll 1
    for (uint32_t i = 0; i <= 4 * a.n_layers; i++) {
        const uint32_t y = i / 4;
        const int phase = y == a.n_layers ? (int)CUDA_PH_HEAD : (int)(i % 4);
        const cuda_mega_layer &l = layers_of(a)[y < a.n_layers ? y : 0];
        const uint32_t nq = l.h.n_heads * l.h.head_dim;
        uint64_t *hid = a.hid + (y & 1) * a.ffn;
        float sq;
        if (i == 0) sq = embed_input(k, l.attn_norm);
        else {
            const bool first = phase == CUDA_PH_QKV || phase == CUDA_PH_HEAD;
            const uint64_t *words = first                  ? a.x1
                                    : phase == CUDA_PH_OUT ? a.a
                                    : phase == CUDA_PH_UP  ? a.x2
                                                           : hid;
            const float *gain = phase == CUDA_PH_QKV    ? l.attn_norm
                                : phase == CUDA_PH_UP   ? l.ffn_norm
                                : phase == CUDA_PH_HEAD ? a.final_norm
                                                        : NULL;
            sq = take_input(k.p, words,
                            phase == CUDA_PH_OUT    ? nq
                            : phase == CUDA_PH_DOWN ? a.ffn
                                                    : a.dim,
                            k.epoch - first, gain, k.xs);
        }
        tick(k, 2 * phase);
        { /* the gains of the phase after the next are on their way to L2 */
            const cuda_mega_layer &n = layers_of(a)[y + 1 < a.n_layers ? y + 1 : 0];
            const float *soon = phase == CUDA_PH_QKV ? l.ffn_norm
                                : phase == CUDA_PH_OUT
                                    ? (y + 1 < a.n_layers ? n.attn_norm : a.final_norm)
                                : phase == CUDA_PH_UP   ? n.h.norm[0]
                                : phase == CUDA_PH_DOWN ? n.h.norm[1]
                                                        : layers_of(a)[0].attn_norm;
            const uint32_t len =
                phase == CUDA_PH_UP || phase == CUDA_PH_DOWN ? l.h.head_dim : a.dim;
            if (soon && threadIdx.x * 8 < len) to_l2(soon + threadIdx.x * 8);
        }
        if (phase == CUDA_PH_HEAD &&
            threadIdx.x < a.rope.half[0]) /* the next position's rotation */
            k.sh->turn[(k.step + 1) & 1][threadIdx.x] =
                turn_at(a.rope, 0, threadIdx.x, k.pos + 1, false);
        run_phase(k, phase, sq, hid, b);
        tick(k, 2 * phase + 1);
        if (phase == CUDA_PH_QKV) {
            attention(k, l);
            tick(k, 10);
            join_parts(k, l.h);
            tick(k, 11);
        }
        if (phase == CUDA_PH_DOWN) k.epoch++;
    }
    const bool end = choose(k, b);
    tick(k, 12);
    return end;
}

template <int G> __device__ inline void open_flow(mega<G> &k)
{
    const cuda_mega &a = k.a;
    const uint32_t lane = threadIdx.x % 32;
    flow &f = k.f;
    f.slot = f.parity = f.unit = f.left = f.used = f.at = f.f_slot = 0;
    f.count = (uint32_t)list_of(a)[0];
    f.to_ask = f.count * a.steps;
    f.now = list_word(a, f, lane);
    f.next = list_word(a, f, f.count > 32 ? 32 + lane : lane);
    if (lane == 0) {
        for (uint32_t i = 0; i < a.slots; i++) bar_init(bars() + i, 1);
        bar_fence();
    }
    __syncwarp();
    for (uint32_t i = 0; i < a.slots; i++) fill_piece(a, f);
    __syncwarp();
}

template <int G> __device__ inline void decode(const cuda_mega &a)
{
    mega<G> k = {a};
    k.sh = (mega_shared<G> *)smem;
    k.xs = (float *)(smem + sizeof *k.sh);
    for (uint32_t i = threadIdx.x; i < a.n_mats * (sizeof(cuda_mega_mat) / 4); i += CUDA_WIDE)
        ((uint32_t *)mats_of(a))[i] = ((const uint32_t *)a.mat)[i];
    for (uint32_t i = threadIdx.x; i < a.n_layers * (sizeof(cuda_mega_layer) / 4); i += CUDA_WIDE)
        ((uint32_t *)layers_of(a))[i] = ((const uint32_t *)a.layer)[i];
    __syncthreads();
    open_flow(k);
    k.pos = a.host[a.f.pos], k.token = a.host[a.f.token];
    k.p = {a.state, false};
    k.flip = k.sq_flip = 0;
    k.group = layers_of(a)[0].h.n_heads / layers_of(a)[0].h.n_kv_heads;
    k.epoch = a.epoch;
    if (threadIdx.x < a.rope.half[0])
        k.sh->turn[0][threadIdx.x] = turn_at(a.rope, 0, threadIdx.x, k.pos, false);
    for (uint32_t i = threadIdx.x; i < PAGES_MAX; i += CUDA_WIDE) {
        const uint32_t p = blockIdx.x % CUDA_CLASSES + 16 * i;
        k.sh->page[i] = p < a.f.n_table ? a.host[a.f.page[0] + p] : 0;
    }
    if (threadIdx.x < CUDA_CLOCKS) k.sh->clocks[threadIdx.x] = 0;
    k.sh->clock = clock64();
#pragma unroll 1
    for (k.step = 0; k.step < a.steps; k.step++, k.pos++) {
        k.mat = 0;
        start_token(k);
        __syncthreads();
        if (run_token(k)) break;
        k.epoch++;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        for (int i = 0; i < CUDA_CLOCKS; i++) a.clocks[i] += k.sh->clocks[i];
    /* The block must not end before its copies have come. */
    __syncwarp();
    for (uint32_t n = k.f.count * a.steps - k.f.to_ask - k.f.used; n > 0; n--) {
        bar_wait(bars() + k.f.slot, k.f.parity);
        if (++k.f.slot == a.slots) k.f.slot = 0, k.f.parity ^= 1;
    }
}

#define MEGA(G)                                                                                    \
    extern "C" __global__ void __launch_bounds__(CUDA_WIDE, 1)                                     \
        cuda_mega_##G(const __grid_constant__ cuda_mega a)                                         \
    {                                                                                              \
        decode<G>(a);                                                                              \
    }
MEGA(1)
MEGA(2)
MEGA(4)
