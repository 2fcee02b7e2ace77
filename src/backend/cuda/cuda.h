/* cuda.h - the engine for NVIDIA cards: a device, its copies of the weights, and plans. A plan is a
 * list of kernels with their arguments, captured once as a graph; a run fills in the batch and
 * launches the graph. All numbers are f32 between kernels (act f32); the order of additions is in
 * mul.cuh and step.cu and depends on a row alone, so any batch and any split of a prompt gives the
 * same bits.
 *
 * A device may be a group of equal ranks, which here share one card: each has rows of the matrices,
 * some of the heads and their part of the cache, and all of every vector between stages. What a
 * rank writes of such a vector is copied to the others behind the stage (group.c). Kernels know
 * nothing of it: a rank is their arguments. */
#ifndef HT_BACKEND_CUDA_CUDA_H
#define HT_BACKEND_CUDA_CUDA_H
#include "backend/cuda/driver.h"
#include "backend/cuda/image.h"
#include "backend/cuda/kern.h"
#include "core/arena.h"
#include "model/model.h"
#include "step/kvpool.h"
#include "step/step.h"

#include <stdatomic.h>

/* What a receipt calls the order of sums of dot.cuh and attn.cuh; it changes when they do. */
#define CUDA_BIT_CLASS "cuda-f32/128x512"
/* The same of tensor.cu: quarters of a residual product, keys of a block; .2: a block without a key
 * of a row leaves the row as it is. */
#define CUDA_TC_BIT_CLASS "cuda-f16/4x64.2"

enum { CUDA_RANKS = 8 };                 /* of a group at most                                    */
/* How rows of a matrix are dealt out: each rank has all, the same number (heads), or a multiple of
 * 16, the tile of r16/1, and the last one what is left. */
enum cuda_deal { CUDA_ALL, CUDA_EVEN, CUDA_TILES };
typedef struct { uint32_t first, rows; } cuda_share;

typedef struct {                         /* a matrix on the device; m.w 0: none                   */
    cuda_mat m;
    uint64_t bytes;
    uint32_t cols;
    uint32_t members;                    /* matrices in m: Q, K and V; gate and up; 0: in another */
    cuda_ptr tiles;                      /* act f16: the same for tensor cores; 0: not made       */
    bool shared;                         /* memory belongs to another entry                       */
} cuda_weight;
typedef struct { const float *host; cuda_ptr dev; } cuda_vector;
enum { CUDA_ROW_SHAPES = 7 };
/* Memory given to a KV pool, cut into a part of n / size bytes a rank. Byte o of the pool's planes
 * stands for byte o / size of each part, since a page's heads lie one after another. */
typedef struct { uint8_t *p; size_t n; } cuda_range;

struct ht_dev {
    cuda_api api;
    int index, sms, shared_max, major, minor;
    uint32_t size;                       /* option ranks=N; 1: no group                           */
    char name[64];
    cuda_ctx ctx;
    cuda_stream stream, side;            /* side: to stop a run while `stream` is busy            */
    cuda_module module[CUDA_IMAGES];
    cuda_fn start, pick, pack;
    cuda_fn finish[2];                   /* [more than 8 elements a lane]                         */
    cuda_fn mul[2][CUDA_TYPES];          /* [one row or 4]                                        */
    cuda_fn row[CUDA_TYPES][CUDA_ROW_SHAPES]; /* of a lone row; NULL: none                        */
    cuda_fn lone[2];                     /* attention of a lone row: [log2 heads]                 */
    cuda_fn attn[2][3][2];               /* [more than 8 elements a lane][log2 heads][f16]        */
    cuda_fn mega[3];                     /* [log2 heads]                                          */
    cuda_fn tc_widen, tc_join, tc_one, tc_all, tc_gate;
    cuda_fn tc_heads[2], tc_attn[2];     /* [heads of 128]                                        */
    bool tensor;                         /* they are there: code for sm_90a                       */
    bool dependent;                      /* code for sm_90: kernels may overlap                   */
    bool overlap;                        /* option overlap=0: measure without it                  */
    bool level1;                         /* option level=1: no persistent kernel                  */
    bool level2;                         /* option level=2: also where level 1 is the faster one  */
    bool sync;                           /* no graph: wait after every kernel, to name the stage  */
    uint64_t read_rate;                  /* bytes a second of a large stream, nominal             */
    uint32_t clock_khz;
    uint64_t ticks[CUDA_CLOCKS];         /* of the persistent kernel's stages since load()        */
    uint64_t least_bytes[CUDA_CLOCKS], least_flops[CUDA_CLOCKS]; /* their floor                   */
    atomic_int failed;                   /* a device error; nothing works after it                */
    char why[200];

    const ht_model *model;
    uint32_t blocks;                     /* over which matrices are dealt out                     */
    cuda_ptr stage; uint64_t stage_bytes;    /* rows on their way, during load()                  */
    ht_arena *arena;                     /* of load()                                             */
    cuda_weight *weight; uint32_t n_weights;    /* [size][n_weights]                              */
    cuda_weight embed[2];                /* of a group, on rank 0 alone: rows to look up, and its
                                            alternate                                             */
    cuda_vector *vector; size_t n_vectors;
    cuda_ptr vectors;                    /* their memory                                          */
    uint64_t copied;
    cuda_range range[16];
};

typedef union {
    cuda_copy2d copy;
    cuda_start start;
    cuda_mul mul;
    cuda_finish finish;
    cuda_attn attn;
    cuda_pick pick;
    cuda_mega mega;
    cuda_tc_join tc_join;
    cuda_tc tc;
    cuda_tc_attn tc_attn;
} cuda_args;
typedef struct {
    cuda_fn fn;                          /* NULL: a copy between ranks                            */
    uint32_t grid[3], threads, shared;
    ht_stage stage;
    cuda_args args;
} cuda_op;

/* A captured graph; with a layer (not -1) an event behind it: K and V are complete there. */
typedef struct { cuda_graph graph; cuda_exec exec; cuda_event done; int layer; } cuda_piece;

/* What a rank has of a plan, on the device; q, qkv, l: of its own heads and rows. */
typedef struct {
    cuda_feed feed;
    cuda_ptr x, q, a, h, l, x2, q2, qkv, raw, part, best_value, best_id, arrived, rope_table;
    cuda_ptr own_a;                      /* [rows, own heads] until it is exchanged; 0: no group  */
    cuda_ptr x_now, q_now;               /* after PICK the second ones                            */
} cuda_rank;

struct ht_plan {
    ht_dev *dev;
    const ht_model *m;
    ht_kv *kv;
    ht_bucket b;
    ht_arena *arena;
    ht_stage *stage; size_t n_stages;    /* of the tape's part, for counters                      */
    cuda_op *op; size_t n_ops, cap_ops;
    uint64_t exec_fold; uint32_t exec_cuts; /* ht_exec_add() over the cuts, for receipts          */

    cuda_ptr memory;                     /* one allocation; all ranks' pointers lie in it         */
    uint64_t bytes, used;
    cuda_rank rank[CUDA_RANKS], *r;      /* r: whose kernels are encoded; else the first          */
    uint32_t n_arrived, part_rows;       /* part_rows: of part                                    */
    uint32_t n_copies;                   /* ops that are copies between ranks                     */
    uint64_t exchanged;                  /* bytes that they bring from one rank to another        */
    uint32_t *words;                     /* the batch for the device, host side                   */
    cuda_ptr words_dev;
    float *logits; /* [want,vocab] host; NULL: tokens are picked on the device */
    int32_t *ids; cuda_ptr ids_dev;      /* [steps][rows] host; with SAMPLE                       */
    float *mirror[HT_REGS];              /* host copies of registers that a caller has asked for  */

    bool picked, sampled, headed, embedded;
    bool mega;                           /* one persistent kernel does all steps                  */
    cuda_ptr mega_memory;
    uint32_t epoch;                      /* of its next launch                                    */
    uint32_t *state; cuda_ptr state_dev; /* its watchdog's word; host                             */
    uint64_t *clocks; cuda_ptr clocks_dev;   /* [CUDA_CLOCKS] host                                */
    /* act f16: inputs of products as tiles, parts of sums */
    cuda_ptr tc_x, tc_q, tc_a, tc_h, tc_part;
    int tc_normed;                       /* layer + 1 whose input tc_x has                        */
    cuda_piece *piece; uint32_t n_pieces; /* one; with HT_KV_DONE one a layer                     */
    uint32_t told;                       /* layers that kv_done was called for in this run        */
    cuda_event begin, done;
    uint32_t n_want, n_rows, steps;      /* of the run in flight; then: steps that were done      */
    const ht_batch *batch;               /* borrowed until wait() returns                         */
    bool running;
    atomic_int cancel;
    uint64_t t0;
    ht_run_stats stats;
};

/* ---- cuda.c ---- */
extern const ht_backend ht_backend_cuda;
/* Open over a given driver: how tests put a recorded one in its place. Takes *api over. */
int cuda__open_api(ht_dev **, const cuda_api *api, const void *const image[CUDA_IMAGES],
                   const char *opts, ht_err *);
/* 0 for CUDA_OK; else the device is dead from now on and the message names what was done. */
int cuda__check(ht_dev *, int result, const char *what, const ht_stage *, ht_err *);
/* Make the device's context current; refuses a dead device. */
int cuda__enter(ht_dev *, ht_err *);
int cuda__sync(ht_dev *, ht_err *);
/* ---- opts.c ---- */
/* The engine's settings, "threads=2,gpu=0,ranks=2"; HT_EARG names a key or value that is none. */
int cuda__options(ht_dev *, const char *opts, ht_err *);
/* ---- group.c ---- */
cuda_share cuda__share(uint32_t size, uint32_t rank, uint32_t rows, enum cuda_deal);
/* Can the model be dealt out over the device's ranks? HT_EUNSUPPORTED says what not. */
int cuda__group_model(const ht_dev *, const ht_model *, ht_err *);
/* The same for a plan of these stages. */
int cuda__group_plan(const ht_dev *, const ht_stage *, const ht_cut *, size_t n_cuts,
                     const ht_bucket *, ht_err *);
/* Behind all ranks' kernels of a cut that ends with this stage: copies of what each has written. */
int cuda__group_exchange(ht_plan *, const ht_stage *, ht_err *);
/* Do a rank's heads go to rows of their own (own_a) before they are exchanged? A lone row needs no
 * such place. */
bool cuda__heads_apart(const ht_plan *);
/* Rows on the device or the host, and the copy of them: rows that lie one behind another on both
 * sides as one run of bytes. The driver's result; one side at least is on the device. */
cuda_rows cuda__rows_on_device(cuda_ptr, size_t pitch);
cuda_rows cuda__rows_on_host(const void *, size_t pitch);
int cuda__copy_rows(const ht_dev *, const cuda_copy2d *, cuda_stream);
/* ---- load.c ---- */
int cuda__load(ht_dev *, const ht_model *, ht_err *);
void cuda__unload(ht_dev *);
int cuda__footprint(const ht_dev *, const ht_model *, const ht_stage *, size_t, const ht_bucket *,
                    ht_footprint *, ht_err *);
/* Type and bytes of a row on the device; -1: no such form. */
int cuda__type_of(const ht_weight *);
uint32_t cuda__stride(int type, uint32_t cols);
/* n rows (at most 16, one tile of r16/1) of device type `type` at out, `stride` apart. Test hook
 * too. */
void cuda__rows_of_tile(int type, const uint8_t *tile, uint32_t n, uint32_t cols, uint32_t stride,
                        uint8_t *out);
cuda_ptr cuda__vector(const ht_dev *, const float *);   /* 0: NULL or unknown                     */
/* Shape in units of a matrix over `blocks` blocks; w is left 0. */
cuda_mat cuda__mat(int type, uint32_t rows, uint32_t cols, uint32_t blocks);
uint64_t cuda__mat_bytes(const cuda_mat *);
/* ---- span.c ---- */
/* Shapes of row.cu: groups of a warp, and rows of a block in fours, at most. */
extern const uint8_t cuda__row_shape[CUDA_ROW_SHAPES][2];
extern const ht_span *const cuda__spans[];
/* ---- plan.c ---- */
int cuda__plan(ht_plan **, ht_dev *, ht_kv *, const ht_stage *, const ht_cut *, size_t,
               const ht_bucket *, ht_err *);
void cuda__plan_free(ht_plan *);
int cuda__reg(ht_plan *, int, void **, size_t *, ht_err *);
/* A new kernel at the end of the plan's list; NULL with the error set when the list is full. */
cuda_op *cuda__op(ht_plan *, const ht_stage *, cuda_fn, uint32_t threads, uint32_t gx, uint32_t gy,
                  uint32_t gz, ht_err *);
/* Launch all kernels of a step on the device's stream; step > 0: the batch is there already. */
int cuda__launch(ht_plan *, uint32_t step, ht_err *);
uint64_t cuda__reg_bytes(const ht_plan *, int reg);
/* n bytes of pinned host memory, zeroed, and its address on the device. */
int cuda__host_memory(ht_plan *, void **host, cuda_ptr *dev, size_t n, ht_err *);
/* ---- mega.c ---- */
extern const ht_span cuda__span_mega;
/* Has every one of so many blocks a share of the gate, which the exchange of vectors counts on, and
 * does the residual of its rows fit its place? */
bool cuda__mega_deals(uint32_t blocks, const ht_spec *);
int cuda__mega_launch(ht_plan *, ht_err *);
/* After the run: was it given up? Else its clocks are added to the device's. */
int cuda__mega_check(ht_plan *, ht_err *);
/* Stage i of the persistent kernel and the nanoseconds spent there since load(), by the clock of
 * its first thread; NULL past the last. */
const char *cuda__mega_stage(const ht_dev *, int i, double *ns);
/* The clock under which the work of a kind of stage is counted; -1: none. */
int cuda__mega_clock(int kind);
/* ---- span.c: what mega.c and group.c share ---- */
/* Is a lone row faster at level 1? Measured: where row.cu takes a layer's products, which are not
 * tiny and not Q4_K. The model is loaded. */
bool cuda__level1_first(const ht_dev *, const ht_model *, const ht_bucket *);
uint32_t cuda__rows_now(const ht_plan *); /* of registers: after PICK those that are wanted       */
const ht_weight *cuda__rep(const ht_weight *, const ht_bucket *);
bool cuda__takes(const ht_dev *, const ht_model *, const ht_stage *, size_t left,
                 const ht_bucket *);
uint32_t cuda__upp(const cuda_mat *);
cuda_heads cuda__heads(const ht_plan *, const ht_stage *);
void cuda__rope(const ht_plan *, cuda_rope *);
const cuda_weight *cuda__on_dev(const ht_plan *, const ht_weight *);
void cuda__bound(const ht_dev *, const ht_model *, const ht_stage *, size_t, const ht_bucket *,
                 uint64_t *bytes, uint64_t *flops);
/* ---- tensor.c ---- */
extern const ht_span cuda__span_tc_layer, cuda__span_tc_heads;
/* Is the model one that act f16 takes? Does the batch run on tensor cores? */
bool cuda__tc_model(const ht_dev *, const ht_model *, const ht_bucket *);
bool cuda__tc_batch(const ht_bucket *);
/* Bytes of a plan's memory. */
typedef struct { uint64_t x, a, h, part; } cuda_tc_needs;
cuda_tc_needs cuda__tc_needs(const ht_dev *, const ht_bucket *);
int cuda__tc_weights(ht_dev *, const ht_bucket *, ht_err *);
/* ---- run.c ---- */
int cuda__run(ht_plan *, const ht_batch *, ht_err *);
int cuda__wait(ht_plan *, const float **, ht_err *);
int cuda__tokens(ht_plan *, const int32_t **, size_t *, ht_err *);
int cuda__stats(const ht_plan *, ht_run_stats *);
int cuda__cancel(ht_plan *);
/* ---- kv.c ---- */
/* What a place in a pool's planes is in the part of a rank; 0: it is not on the device. */
cuda_ptr cuda__kv_at(const ht_dev *, uint32_t rank, const uint8_t *);
int cuda__kv_alloc(ht_dev *, size_t, void **, ht_err *);
void cuda__kv_free(ht_dev *, void *, size_t);
int cuda__kv_attach(ht_dev *, ht_kv *, ht_err *);
int cuda__page_copy(ht_dev *, ht_kv *, int, uint32_t, uint32_t, ht_err *);
int cuda__page_io(ht_dev *, ht_kv *, int, uint32_t, void *, int, ht_err *);
int cuda__kv_move(ht_dev *, ht_kv *, ht_kv *, int, int, const uint32_t *, size_t, ht_err *);
int cuda__kv_pin(ht_dev *, void *, size_t, ht_err *);
void cuda__kv_unpin(ht_dev *, void *);
#endif
