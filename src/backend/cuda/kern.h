/* kern.h - what host and kernels agree on: the layout of weights, the batch as words on the device,
 * and each kernel's arguments, which travel by value. Compiles as C11 and as CUDA C++.
 *
 * Weights go to the device as rows of `stride` bytes (a multiple of 16), cols elements in sections:
 *
 *   f32 f16 bf16   the numbers
 *   q8_0           u8 level+128 [cols]; f16 d [cols/32]
 *   q4_0           nibbles [cols/2]; f16 d [cols/32]
 *   q4_1           nibbles; f16 {d,m} [cols/32]
 *   q4_k           nibbles; u8 {sc,m} [cols/32]; f16 {d,dmin} [cols/256]
 *   q6_k           low nibbles; high pairs of bits [cols/4]; i8 sc [cols/16]; f16 d [cols/256]
 *
 * A 32-bit word holds 8 nibbles: element e at bit 4*(e/2) + 16*(e%2), so that one mask isolates two
 * elements as the halves of a half2. Pairs of bits: 16 to a word, element e at bit 2*(e/2) +
 * 16*(e%2).
 *
 * There pack.cu turns them into units, which is all that other kernels read. A unit is 8 or 16
 * rows (unit_rows) of one group of 64 columns, zeros past the last column: first the levels, a
 * chunk of 8 columns after another, then what scales them, by row:
 *
 *   f16 bf16   16 bytes a chunk; chunk j of row r stands at place j ^ r%8 of the row, which is the
 *              128-byte swizzle that tensor cores read from shared memory
 *   f32        16 bytes a chunk for all rows, and another 16 bytes a chunk for all rows
 *   q8_0       8 bytes a chunk;  f16 d of columns 0-31 and 32-63
 *   q4_0 q4_1  4 bytes a chunk;  the same, f16 {d,m} twice
 *   q4_k       4 bytes a chunk;  u8 {sc,m} twice, f16 {d,dmin}
 *   q6_k       4 bytes a chunk for all rows, 2 bytes (pairs of bits) a chunk for all rows;
 *              i8 sc[4], f16 d, two bytes unused
 *
 * Block b of a kernel owns rows b*per_block and on. Warp w of its 16 owns the groups w, w+16, ...
 * Memory holds block after block, in it warp after warp, in it unit_rows rows after unit_rows rows,
 * in it the warp's groups: each warp reads one run of bytes. */
#ifndef HT_BACKEND_CUDA_KERN_H
#define HT_BACKEND_CUDA_KERN_H
#include <stdint.h>

#ifdef __CUDACC__
#define CUDA_PTR(T) T *
#else
#define CUDA_PTR(T) uint64_t
#endif

enum cuda_type {
    CUDA_F32,
    CUDA_F16,
    CUDA_BF16,
    CUDA_Q8_0,
    CUDA_Q4_0,
    CUDA_Q4_1,
    CUDA_Q4_K,
    CUDA_Q6_K,
    CUDA_TYPES
};
enum {
    CUDA_THREADS = 256,    /* of the small kernels                                            */
    CUDA_WIDE = 512,       /* of products, attention and the persistent kernel                */
    CUDA_WARPS = 16,       /* the same in warps; also fixes the order of sums                 */
    CUDA_GROUP = 64,       /* columns of a unit                                               */
    CUDA_PIECE = 2304,     /* bytes that one bulk copy brings at most, if a unit is not more  */
    CUDA_MAX_ROWS = 4,     /* batch rows that a product works on at a time                    */
    CUDA_MAX_SLOTS = 16,   /* of a warp's ring of pieces                                      */
    CUDA_TILE = 64,        /* rows of a matrix whose sums meet at a time                      */
    CUDA_PART_ROW = 17,    /* floats of a row of partial sums: 16 warps and a gap             */
    CUDA_CLASSES = 16,     /* keys of pages p with one p mod 16 are one part of attention     */
    CUDA_HEAD_MAX = 256,   /* largest head                                                    */
    CUDA_ROW_HOLD = 8,     /* chunks of 16 bytes that a lane of row.cu has in registers       */
    CUDA_LONE_ROUNDS = 4,  /* keys of a stream on their way at a time, in lone.cu             */
    CUDA_LONE_PAGES = 128  /* pages of a class whose places a block of it keeps               */
};
/* Bytes of shared memory of a product in front of its inputs, r rows of the batch at a time. */
#define CUDA_MUL_FIXED(r)                                                                          \
    (CUDA_WARPS * CUDA_MAX_SLOTS * 8 +                                                             \
     (r) * (CUDA_WARPS * 12 + 2 * 4 * CUDA_TILE * CUDA_PART_ROW))
/* Bytes of shared memory of lone.cu, g query heads at a time. */
#define CUDA_LONE_SHARED(g)                                                                        \
    (CUDA_LONE_ROUNDS * 2 * CUDA_WIDE * 16 + 64 * 8 + CUDA_LONE_PAGES * 4 + 16 +                   \
     4 * (128 * (2 * CUDA_WARPS + (g) + 2 + CUDA_WARPS * (g)) + 3 * 16 * (g)))
/* Words of the batch on the device; the rest at the offsets of cuda_feed. */
enum { CUDA_N_ROWS, CUDA_N_WANT, CUDA_WORDS_HEAD = 4 };

typedef struct {
    CUDA_PTR(uint32_t) word;              /* the batch, on the device                             */
    CUDA_PTR(uint32_t) stop;              /* not 0: the run is cancelled, rows count as none      */
    uint32_t token, pos, seq, want, lengthy, page[2];   /* offsets in words                       */
    uint32_t n_table, n_words;
} cuda_feed;

typedef struct { /* rotation of one row: cos and sin, [rows][2][dims/2][2] */
    CUDA_PTR(float) table;
    CUDA_PTR(const float) freq[2];
    CUDA_PTR(const float) freq_long[2];
    uint32_t half[2];                     /* dims / 2; 0: no such rotation                        */
    float mscale[2];
    uint32_t row;                         /* floats of one row of the table                       */
} cuda_rope;

typedef struct {                          /* a matrix in units; w 0: none                         */
    CUDA_PTR(const uint8_t) w;
    uint32_t rows, type;
    uint32_t per_block;                   /* rows; a multiple of unit_rows                        */
    uint32_t unit_rows, groups, unit_bytes;
    uint32_t layers;                      /* per_block / unit_rows                                */
    uint32_t row0;                        /* its first row among those of QKV                     */
} cuda_mat;

/* Rows of the device layout to units: up to three sources one after another, or two in turns. */
typedef struct {
    CUDA_PTR(const uint8_t) src[3];
    CUDA_PTR(uint8_t) dst;
    cuda_mat m;
    uint32_t src_rows[3], stride, cols, turns;
} cuda_pack;

/* First kernel of a step: the batch from the host, the rotations, the embeddings. A block per row.
 */
typedef struct {
    cuda_feed f;
    cuda_rope rope;
    CUDA_PTR(const uint32_t) host;        /* NULL: the batch is on the device already             */
    cuda_mat embed;                       /* w NULL: none                                         */
    CUDA_PTR(float) x;
    uint32_t dim;
    float scale;
} cuda_start;

enum { CUDA_EPI_STORE, CUDA_EPI_RESIDUAL, CUDA_EPI_GATE, CUDA_EPI_HEAD };
enum { CUDA_MUL_MAPPED = 1,               /* rows of the batch are found through want[]           */
       CUDA_MUL_PICK = 2,                 /* x too is read through want[]                         */
       CUDA_MUL_WANT = 4,                 /* there are n_want rows, not n_rows                    */
       CUDA_MUL_GELU = 8, CUDA_MUL_BEST = 16 };
typedef struct {                          /* y = w * (norm(x)), and what follows it               */
    cuda_feed f;
    cuda_mat m;
    uint32_t epi, flags, cols;
    uint32_t rows_y;                      /* batch rows of a block                                */
    uint32_t upp, slots, slot_bytes;      /* units of a piece; the ring                           */
    uint32_t ring_at;                     /* bytes of shared memory in front of the ring          */
    CUDA_PTR(const float) x;
    CUDA_PTR(const float) gain;           /* NULL: no norm                                        */
    float eps;
    CUDA_PTR(float) y;                    /* QKV raw, X, H or L                                   */
    uint32_t y_row;
    CUDA_PTR(uint32_t) arrived;           /* counters, all 0 between launches                     */
    /* RESIDUAL with a norm of its own */
    CUDA_PTR(float) raw;                  /* [rows][y_row]                                        */
    CUDA_PTR(const float) post;           /* NULL: none                                           */
    /* HEAD */
    float cap;                            /* 0: none                                              */
    CUDA_PTR(float) best_value;           /* [rows][grid.x]                                       */
    CUDA_PTR(uint32_t) best_id;
    CUDA_PTR(int32_t) ids;                /* [steps][rows] on the host                            */
    uint32_t step, rows_cap;
} cuda_mul;

typedef struct {                          /* what becomes of heads between product and attention  */
    CUDA_PTR(const float) bias[3];        /* or NULL                                              */
    CUDA_PTR(const float) norm[2];        /* or NULL                                              */
    CUDA_PTR(uint8_t) plane[2];
    uint64_t page_bytes[2];
    uint32_t head_dim, n_heads, n_kv_heads, rope_i, kv_class, kv_half;
    float eps;
    float spin[2];                        /* scales of Q's and K's Hadamard transform; 0: none    */
} cuda_heads;

typedef struct {                          /* a block a row, a half warp a head                    */
    cuda_feed f;
    cuda_rope rope;
    cuda_heads h;
    CUDA_PTR(const float) raw;            /* [rows][q, k, v]                                      */
    CUDA_PTR(float) q;
    uint32_t flags;
} cuda_finish;

typedef struct {
    cuda_feed f;
    cuda_rope rope;
    cuda_heads h;
    CUDA_PTR(const float) q;              /* finished; or raw, [q, k, v] of the only row          */
    CUDA_PTR(float) a;
    CUDA_PTR(float) part;                 /* [rows][n_heads][CUDA_CLASSES][head_dim + 2] or NULL  */
    CUDA_PTR(uint32_t) arrived;
    uint32_t flags;                       /* CUDA_MUL_MAPPED, _WANT                               */
    uint32_t raw, chunks;                 /* chunks: of a group's query heads                     */
    uint32_t window;                      /* 0: none                                              */
    float scale, cap;
} cuda_attn;

typedef struct {
    cuda_feed f;
    CUDA_PTR(const float) x;
    CUDA_PTR(const float) q;
    CUDA_PTR(float) x_out;
    CUDA_PTR(float) q_out;
    uint32_t dim, nq;
} cuda_pick;

/* ---- prefill on tensor cores (tensor.cu) ----------------------------------------------------- */
enum {
    CUDA_TC_ROWS = 128,                   /* rows of the batch of a block                         */
    CUDA_TC_THREADS = 288,                /* two warpgroups and a warp that brings their factors  */
    CUDA_TC_PARTS = 4,                    /* of a residual product's sum                          */
    CUDA_TC_DIM_MAX = 4096                /* of the model                                         */
};
typedef struct {                          /* units of any type to tiles of f16                    */
    cuda_mat m;
    CUDA_PTR(uint8_t) dst;                /* [groups][tile_rows][64 columns]                      */
    uint32_t tile_rows;
} cuda_tc_widen;
typedef struct {                          /* X += parts (post-normed); its norm as tiles          */
    cuda_feed f;
    CUDA_PTR(float) x;
    CUDA_PTR(const float) part;           /* [parts][part_rows][dim]                              */
    CUDA_PTR(const float) post;           /* NULL: none                                           */
    CUDA_PTR(const float) gain;           /* NULL: no norm is wanted                              */
    CUDA_PTR(uint8_t) xh;
    uint32_t parts, part_rows, dim, tile_rows;
    float eps;
} cuda_tc_join;
typedef struct {
    cuda_feed f;
    cuda_rope rope;
    cuda_heads h;
    CUDA_PTR(const uint8_t) w;            /* weights: tiles of w_rows rows                        */
    CUDA_PTR(const uint8_t) x;            /* tiles of tile_rows rows                              */
    CUDA_PTR(float) y;                    /* residual: [parts][part_rows][rows]                   */
    CUDA_PTR(uint8_t) h_out;              /* gate: hidden vectors; QKV: queries; tiles            */
    CUDA_PTR(float) q32;                  /* not NULL: queries as numbers instead                 */
    uint32_t rows, w_rows, groups, row0;  /* of the weights; row0: as in cuda_mat                 */
    uint32_t tile_rows, part_rows, stages, flags;
} cuda_tc;
typedef struct {
    cuda_feed f;
    cuda_heads h;
    CUDA_PTR(const uint8_t) q;
    CUDA_PTR(uint8_t) out;
    uint32_t tile_rows;
    float scale;                          /* times log2(e)                                        */
} cuda_tc_attn;

/* ---- the persistent kernel ------------------------------------------------------------------- */
enum { CUDA_PH_QKV, CUDA_PH_OUT, CUDA_PH_UP, CUDA_PH_DOWN, CUDA_PH_HEAD, CUDA_PHASES };
enum { CUDA_CLOCKS = 16 };                /* stages whose time is taken                           */
typedef struct {                          /* one matrix of the schedule                           */
    cuda_mat m;
    uint32_t upp;
    uint32_t last;                        /* of its phase                                         */
} cuda_mega_mat;
typedef struct {
    CUDA_PTR(const float) attn_norm;
    CUDA_PTR(const float) ffn_norm;
    cuda_heads h;
} cuda_mega_layer;
typedef struct {                          /* words: {value, epoch}, 8 bytes                       */
    cuda_feed f;
    cuda_rope rope;
    CUDA_PTR(const uint32_t) host;
    CUDA_PTR(const cuda_mega_mat) mat;    /* [n_mats] in order of use                             */
    CUDA_PTR(const uint64_t) pieces;      /* [blocks][warps][list_words], see mega.cu             */
    CUDA_PTR(const cuda_mega_layer) layer;
    cuda_mat embed;
    CUDA_PTR(const float) final_norm;
    CUDA_PTR(uint64_t) x1;                /* [dim] input of QKV and head                          */
    CUDA_PTR(uint64_t) x2;                /* [dim] input of gate and up                           */
    CUDA_PTR(uint64_t) qkv;
    CUDA_PTR(uint64_t) part;              /* [n_heads][CUDA_CLASSES][head_dim]                    */
    CUDA_PTR(uint64_t) part_ml;           /* [n_heads][CUDA_CLASSES][2]                           */
    CUDA_PTR(uint64_t) a;                 /* [n_heads*head_dim]                                   */
    CUDA_PTR(uint64_t) hid;               /* [2][ffn], by parity of the layer                     */
    CUDA_PTR(uint64_t) best;              /* [2][blocks][2] {value, id}, by parity of the step    */
    CUDA_PTR(uint32_t) state;             /* [0] abort                                            */
    CUDA_PTR(int32_t) ids;                /* [steps] on the host                                  */
    CUDA_PTR(uint64_t) clocks;            /* [CUDA_CLOCKS] sums of block 0, or NULL               */
    uint32_t list_words, n_mats, n_layers, dim, ffn, vocab, steps, epoch, slots;
    uint32_t gelu;
    uint32_t mats_at, layers_at, ring_at; /* bytes of shared memory in front of them              */
    float eps, scale, embed_scale;
} cuda_mega;
#endif
