/* graph.h - the compiled-graph engine: a stretch of the tape at one fixed number of rows is printed
 * as a model of operators, compiled by OpenVINO, and run as one dispatch. Its K and V outputs are
 * runs of consecutive pages of the KV pool, so a decoding engine goes on without a copy. */
#ifndef HT_BACKEND_GRAPH_GRAPH_H
#define HT_BACKEND_GRAPH_GRAPH_H
#include "backend/graph/ir.h"
#include "backend/graph/ov.h"
#include "core/hash.h"
#include "core/map.h"
#include "core/team.h"
#include "model/model.h"
#include "step/kvpool.h"
#include "step/step.h"
#include <stdatomic.h>

enum { GRAPH_BUCKETS = 4,
       GRAPH_Q8_GROUP = 32 };        /* elements that share a scale under --act q8: no more than
                                        share one in a weight, or the compiler leaves them in f32 */
extern const uint16_t graph__buckets[GRAPH_BUCKETS + 1]; /* 32, 128, 512, 2048, 0                 */

/* How a weight of a float type reaches the compiler; block types of eight and four bits always go
 * as integers with scales, all others are widened. */
enum { GRAPH_W_F32,           /* widened into memory that is given back after compilation        */
       GRAPH_W_VIEW };        /* as the file has it, widened by the compiler, which keeps both   */
enum { GRAPH_I8_KEEP,         /* quantised weights stay integers                                 */
       GRAPH_I8_WIDEN };

struct ht_dev {
    ov_api api;
    ov_core *core;
    ht_team *team;
    char path[1024], version[96];
    char device[48];                 /* "CPU", or a declared approximate placement: "AUTO"        */
    char cache[1024];                /* folder of compiled models; "": none                       */
    char pack[HT_SHA256_HEX];        /* digest of the model's bytes; "": hashed when it is needed */
    int threads;
    uint8_t weights, ints;           /* GRAPH_W_*, GRAPH_I8_*                                     */
    bool pieces;                     /* parts of the tape are covered too (experiments)           */
    bool approximate;                /* not f32 on one CPU: refused unless declared               */
    bool vnni, bf16;                 /* of this processor                                         */
    float *range;                    /* greatest |x| that went into the products of a layer, by
                                        graph__calibrate: [layers,GRAPH_INPUTS]; NULL: not known  */
    const ht_model *model;
};

/* ---- weights.c ---- */
typedef struct {                     /* a weight as constants of the graph                        */
    const void *data; uint64_t bytes;          /* of `type`, [rows,cols] or r16 tiles of them     */
    const float *scale, *zero;       /* [rows,cols/group]; zero NULL: none                        */
    uint32_t group;                  /* 0: not quantised                                          */
    uint8_t type;                    /* enum ir_type                                              */
    bool tiles;                      /* data is r16/1 of a float type                             */
} graph_const;
typedef struct graph_stage_mem graph_stage_mem;   /* memory of widened and re-ordered constants   */
HT_MUST_USE int graph__mem_new(graph_stage_mem **, ht_err *);
void graph__mem_free(graph_stage_mem *);
/* The compiler has its own copies: the pages go back to the system, the addresses stay valid. */
void graph__mem_drop(graph_stage_mem *);
uint64_t graph__mem_bytes(const graph_stage_mem *);
/* narrow: i8 with a scale a row, whatever the type. mem NULL: only what the constant will be, no
 * data. */
HT_MUST_USE int graph__const(const ht_dev *, graph_stage_mem *, const ht_weight *, bool narrow,
                             graph_const *, ht_err *);
/* Under act int8 all products of a layer are in 8 bits; the head has few rows and stays. */
bool graph__narrow(const ht_model *, const ht_bucket *, const ht_weight *);

/* ---- emit.c ---- */
/* What goes into the products of a layer; Q, K and V share one. */
enum { GRAPH_IN_QKV, GRAPH_IN_O, GRAPH_IN_FFN, GRAPH_IN_DOWN, GRAPH_INPUTS };
enum graph_io { GRAPH_X, GRAPH_A, GRAPH_H, GRAPH_COS, GRAPH_SIN, GRAPH_WANT, GRAPH_K, GRAPH_V,
                GRAPH_L, GRAPH_RANGE };
typedef struct { uint8_t io; uint16_t layer; } graph_port;    /* layer: rope of COS and SIN; of
                                        RANGE layer * GRAPH_INPUTS + which                        */
typedef struct {
    const ht_dev *dev;
    const ht_stage *at; size_t n;
    ht_bucket b;
    bool observe;                    /* its outputs are ranges, and nothing else                  */
    graph_port *in, *out; size_t n_in, n_out;  /* filled by emit; arena of the document          */
} graph_part;
/* Print the stages of a part. mem NULL: a digest of the text's own (no addresses, no data). */
HT_MUST_USE int graph__emit(graph_part *, graph_stage_mem *, ht_arena *, ht_buf *text, ht_err *);

/* ---- plan.c, run.c ---- */
typedef struct {                     /* what was asked for and what the compiled model says       */
    char precision[16], device[64], threads[16], quant_group[16];
    uint64_t compile_ns; bool cached;          /* imported from the folder of compiled models     */
    uint64_t xml_bytes, const_bytes, blob_bytes;
    uint32_t n_nodes, n_run, n_low;  /* of the profile: all, executed, below f32                  */
    char low[64], exec_sha[HT_SHA256_HEX];     /* first of n_low; digest of names and types       */
    uint32_t profiles;               /* runs whose profile was read                               */
    int64_t longest_us;              /* longest node of the last of them: a cancel waits for it   */
} graph_facts;
struct ht_plan {
    ht_dev *dev;
    const ht_model *m;
    ht_kv *kv;
    ht_bucket b;
    ht_arena *arena;
    const ht_stage *at; size_t n;
    graph_part part;
    graph_stage_mem *mem;
    ov_compiled *compiled;
    ov_request *request;
    ht_map blob;                     /* an imported model reads from it                           */
    float *x, *a, *h, *l;            /* registers                                                 */
    float *out;                      /* of a part that ends before HEAD: a graph may write before it
                                        has read all of its input                                */
    float *cos[HT_ROPES], *sin[HT_ROPES];      /* [rows,dims]                                     */
    int rope_long;                   /* what the tables hold: -1 nothing yet                      */
    int64_t *want;
    float *range;                    /* of a part that observes: [layers,GRAPH_INPUTS]            */
    uint32_t bound[HT_KV_CLASSES];   /* first page the outputs point to; HT_NOPAGE: none          */
    graph_facts facts;
    const ht_batch *batch;
    bool ran, dropped;               /* dropped: memory of widened weights was given back         */
    atomic_int cancel;
    uint64_t t0;
    ht_run_stats stats;
    uint64_t exec_id;                /* of its one cut                                            */
};
int graph__plan(ht_plan **, ht_dev *, ht_kv *, const ht_stage *, const ht_cut *, size_t n_cuts,
                const ht_bucket *, ht_err *);
/* A plan of these stages (the tape up to HEAD) that only observes: no cache, no logits. The stages
 * must last as long as it. */
HT_MUST_USE int graph__plan_observe(ht_plan **, ht_dev *, const ht_stage *, size_t n,
                                    const ht_bucket *, ht_err *);
void graph__plan_free(ht_plan *);
/* A property as the compiled model says it; "" where it says nothing. */
void graph__prop(const ht_plan *, const char *key, char *out, size_t cap);
/* Let an input or output of the request lie at mem; an output that would not is HT_EDEVICE. */
HT_MUST_USE int graph__bind(ht_plan *, bool output, size_t index, void *mem, ht_err *);
/* What is asked of the compiler: everything that decides numbers is stated, never left to it. */
enum { GRAPH_PROPS = 6 };
size_t graph__properties(const ht_plan *, char text[2][16], ov_prop out[GRAPH_PROPS]);
int graph__reg(ht_plan *, int reg, void **, size_t *, ht_err *);
int graph__run(ht_plan *, const ht_batch *, ht_err *);
int graph__wait(ht_plan *, const float **, ht_err *);
int graph__tokens(ht_plan *, const int32_t **, size_t *, ht_err *);
int graph__stats(const ht_plan *, ht_run_stats *);
int graph__plan_describe(const ht_plan *, char *json, size_t cap);
int graph__cancel(ht_plan *);

/* ---- span.c ---- */
extern const ht_span *const graph__spans[];
int graph__footprint(const ht_dev *, const ht_model *, const ht_stage *, size_t n,
                     const ht_bucket *, ht_footprint *, ht_err *);

/* ---- range.c ---- */
int graph__calibrate(ht_dev *, const int32_t *ids, size_t n, ht_err *);

/* ---- cache.c ---- */
/* The compiled model of a text from the folder of compiled models; *hit false: not there, or not
 * usable, which is the same. */
void graph__cache_get(ht_plan *, const char key[HT_SHA256_HEX], bool *hit);
void graph__cache_put(ht_plan *, const char key[HT_SHA256_HEX]);
HT_MUST_USE int graph__cache_key(const ht_plan *, const char *text, size_t n,
                                 char key[HT_SHA256_HEX], ht_err *);

/* ---- graph.c ---- */
/* For tests: a device over a table of calls, of which the device takes possession. */
HT_MUST_USE int graph__open_api(ht_dev **, const ov_api *, const char *path, const char *opts,
                                ht_err *);
#endif
