/* kern.h - what host and kernels agree on: weight types and their row layouts, the batch as words
 * on the device, and each kernel's arguments, which travel by value. Compiles as C11 and as CUDA
 * C++.
 *
 * A weight matrix on the device is rows of `stride` bytes (a multiple of 16). cols elements in
 * sections, one after another; a chunk is what one lane takes at a time:
 *
 *   f32 f16 bf16   the numbers                                                   chunk  8
 *   q8_0           u8 level+128 [cols]; f16 d [cols/32]                          chunk 16
 *   q4_0           nibbles [cols/2]; f16 d [cols/32]                             chunk 32
 *   q4_1           nibbles; f16 {d,m} [cols/32]                                  chunk 32
 *   q4_k           nibbles; u8 {sc,m} [cols/32]; f16 {d,dmin} [cols/256]         chunk 32
 *   q6_k           low nibbles; high pairs of bits [cols/4]; i8 sc [cols/16]; f16 d [cols/256]  32
 *
 * A 32-bit word holds 8 nibbles: element e at bit 4*(e/2) + 16*(e%2), so that one mask isolates two
 * elements as the halves of a half2. Pairs of bits: 16 to a word, element e at bit 2*(e/2) +
 * 16*(e%2). */
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
    CUDA_THREADS = 256,
    CUDA_WARPS = 8,        /* of every kernel                                      */
    CUDA_MAX_ROWS = 4,     /* batch rows that one block works on                   */
    CUDA_MAX_STAGES = 8,   /* of a ring of weight tiles in shared memory           */
    CUDA_SPLIT = 128,      /* keys of one part of attention; also fixes its order  */
    CUDA_HEAD_MAX = 256,   /* largest head                                         */
    CUDA_SHARED_HEAD = 512 /* bytes in front of a product's inputs in shared memory */
};
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

typedef struct {
    CUDA_PTR(const uint8_t) w;
    uint32_t rows, stride, type;
    uint32_t blocks, per_block; /* of the grid's x, after those of the segments before it */
    uint32_t tile;                        /* rows of one stage of the ring                        */
} cuda_seg;

/* First kernel of a step: the batch from the host, the rotations, the embeddings. A block per row.
 */
typedef struct {
    cuda_feed f;
    cuda_rope rope;
    CUDA_PTR(const uint32_t) host;        /* NULL: the batch is on the device already             */
    cuda_seg embed;                       /* w NULL: none                                         */
    CUDA_PTR(float) x;
    uint32_t dim;
    float scale;
} cuda_start;

enum { CUDA_EPI_QKV, CUDA_EPI_RESIDUAL, CUDA_EPI_GATE, CUDA_EPI_HEAD };
enum { CUDA_MUL_MAPPED = 1,               /* rows of the batch are found through want[]           */
       CUDA_MUL_PICK = 2,                 /* x too is read through want[]                         */
       CUDA_MUL_WANT = 4,                 /* there are n_want rows, not n_rows                    */
       CUDA_MUL_GELU = 8, CUDA_MUL_BEST = 16, CUDA_MUL_LATE = 32 };
typedef struct {                          /* y = w * (norm(x)), and what follows it               */
    cuda_feed f;
    cuda_rope rope;
    cuda_seg seg[3];
    uint32_t first_seg, n_seg, epi, flags;  /* segments first_seg .. n_seg-1, of one type         */
    uint32_t cols, stages, stage_bytes,
        xs_row; /* xs_row: floats of an input row in shared memory */
    CUDA_PTR(const float) x;
    CUDA_PTR(const float) gain;           /* NULL: no norm                                        */
    float eps;
    CUDA_PTR(float) y;                    /* Q, X, H or L                                         */
    uint32_t y_row;
    CUDA_PTR(uint32_t) arrived;           /* counters, all 0 between launches                     */
    /* QKV */
    CUDA_PTR(float) kv;                   /* [rows][2][kv_row] before bias, norm and rotation     */
    CUDA_PTR(const float) bias[3];        /* or NULL                                              */
    CUDA_PTR(const float) head_norm[2];   /* or NULL                                              */
    uint32_t head_dim, n_heads, n_kv_heads, rope_i, kv_class;
    CUDA_PTR(uint8_t) plane[2];
    uint64_t page_bytes[2];
    uint32_t kv_type[2];
    float spin[2];                        /* scales of Q's and K's Hadamard transform; 0: none    */
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

typedef struct {
    cuda_feed f;
    CUDA_PTR(const float) q;
    CUDA_PTR(float) a;
    CUDA_PTR(float) part; /* [rows][n_heads][splits][head_dim + 2]; NULL: no parts  */
    CUDA_PTR(uint32_t) arrived;
    CUDA_PTR(const uint8_t) plane[2];
    uint64_t page_bytes[2];
    uint32_t flags;                       /* CUDA_MUL_MAPPED, _WANT                               */
    uint32_t n_heads, n_kv_heads, head_dim, splits, chunks, kv_class;
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
#endif
