/* model.h - a spec and its weights, bound and shape-checked; immutable. Q and K rows are in the
 * order of pairs (i, i+dims/2) whatever the file had; 1+w norms are folded. Weights are views of
 * the mapped file except where rows had to be reordered. Opened over an ht_file, which must outlive
 * it. */
#ifndef HT_MODEL_H
#define HT_MODEL_H
#include "format/file.h"
#include "model/spec.h"

typedef struct ht_weight {          /* n_mats matrices [rows,cols] of one type, one after another */
    const void *data; uint64_t bytes;
    uint32_t rows, cols, n_mats;
    uint8_t type, layout;            /* enum ht_type, enum ht_layout                              */
    uint8_t act_f32;                 /* its input stays f32 under --act q8: values and head, whose
                                        error no softmax or norm takes back                       */
    uint64_t row_bytes;              /* HT_LAYOUT_ROWS; 0 for others                              */
    uint64_t mat_bytes;              /* from one matrix to the next, any layout                   */
    uint32_t id;                   /* dense index within the model: key of a backend's own copies */
    const struct ht_weight *alt;     /* second representation (pack), or NULL                     */
} ht_weight;
typedef struct {
    const float *attn_norm, *ffn_norm;                                   /* [dim]                 */
    const float *post_attn_norm, *post_ffn_norm;                         /* [dim] or NULL         */
    const float *q_norm, *k_norm;                                        /* [head_dim] or NULL    */
    const float *q_bias, *k_bias, *v_bias;                               /* or NULL               */
    ht_weight q, k, v, o;            /* [heads*hd,dim] [kv*hd,dim] [kv*hd,dim] [dim,heads*hd]     */
    ht_weight gate, up, down;        /* dense: [ffn,dim] [ffn,dim] [dim,ffn]                      */
    ht_weight router;                /* [experts,dim]                                             */
    ht_weight e_gate, e_up, e_down;  /* n_mats = experts                                          */
    ht_weight s_gate, s_up, s_down;  /* shared expert: [shared_ffn,dim] x2, [dim,shared_ffn]      */
    ht_weight s_router;              /* [1,dim]: sigmoid gate of the shared expert                */
} ht_layer;
struct ht_model {
    ht_spec spec;
    ht_weight embed, head;           /* [vocab,dim]; head.data == embed.data when tied            */
    const float *final_norm;
    ht_layer *layer;                 /* [n_layers]                                                */
    uint32_t n_weights;              /* ids are 0 .. n_weights-1, alternates included             */
    uint8_t sha256[32];              /* of the spec and the tensor directory (not of all bytes)   */
    char rep[2][16];                /* names of the representations: contract "f16", alternate "" */
    void *priv;
};
typedef struct ht_model ht_model;
HT_MUST_USE int ht_model_open(ht_model **, const ht_file *, ht_progress_fn, void *user, ht_err *);
void ht_model_free(ht_model *);
/* The spec alone, from any kind of file (inspect, pack). Freed with its arena. */
HT_MUST_USE int ht_spec_read(ht_spec *, const ht_file *, ht_arena *, ht_err *);
HT_MUST_USE int ht_spec_to_json(const ht_spec *, ht_arena *, ht_json **, ht_err *);  /* canonical */
/* The same members for people: f32 in 9 digits, layers as lists. Errors stay in the writer. */
void ht_spec_describe(const ht_spec *, ht_jw *);
/* Row r of matrix m as f32 [cols], any type and layout; how ref reads weights. */
void ht_weight_row(const ht_weight *, uint32_t m, uint32_t r, float *out);

/* The model's tensors under their normal (GGUF-style) names in a fixed order, for pack writing:
 * "token_embd", "blk.0.attn_q", ...; norms and biases as F32 vectors [n]. A pack declares w as
 * [rows,cols], or [n_mats,rows,cols] for expert stacks, and stores ht_spec_to_json's object as the
 * member "spec" of the header's "model". projection: one of those that a contract quantises. */
typedef struct {
    char name[64];
    const ht_weight *w;
    const float *vec;
    uint32_t n;
    bool projection;
} ht_named;
size_t ht_model_names(const ht_model *, ht_named *out, size_t cap);    /* returns the full count  */
/* Contract of the stored weights: "f16", "q8" or "q4", and the count of quantised projections. */
const char *ht_model_contract(const ht_model *, uint32_t *n_proj, uint32_t *n_quantised);
#endif
