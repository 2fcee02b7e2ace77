/* priv.h - what the files of model/ share: the input being read, the roles tensors play, and the
 * family table. A family is two readers (GGUF keys, config.json), its Hugging Face names where they
 * differ from Llama's, and traits of how its files store rows and norms. */
#ifndef HT_MODEL_PRIV_H
#define HT_MODEL_PRIV_H
#include "model/model.h"

enum model__role {
    MODEL__EMBED, MODEL__HEAD, MODEL__FINAL_NORM,
    MODEL__ATTN_NORM, MODEL__FFN_NORM, MODEL__POST_ATTN, MODEL__POST_FFN, MODEL__Q_NORM,
    MODEL__K_NORM, MODEL__Q_BIAS, MODEL__K_BIAS, MODEL__V_BIAS,
    MODEL__Q, MODEL__K, MODEL__V, MODEL__O, MODEL__QKV,
    MODEL__GATE, MODEL__UP, MODEL__DOWN, MODEL__GATE_UP,
    MODEL__ROUTER, MODEL__E_GATE, MODEL__E_UP, MODEL__E_DOWN, MODEL__E_GATE_UP,
    MODEL__X_GATE, MODEL__X_UP, MODEL__X_DOWN,    /* one expert each                              */
    MODEL__S_GATE, MODEL__S_UP, MODEL__S_DOWN, MODEL__S_ROUTER,
    MODEL__ROLES
};
enum { MODEL__NAME_MAX = 128 };

typedef struct { uint8_t role; const char *name; } model__name;   /* '#': layer, '@': expert      */

enum {                               /* traits                                                    */
    MODEL__PERMUTED = 1,             /* GGUF holds q and k rows for adjacent pairs (2i, 2i+1)     */
    MODEL__NORM1 = 2               /* Hugging Face stores norm weights as w for a factor of 1 + w */
};
typedef struct model__in model__in;
typedef struct {
    const char *arch;                /* GGUF's general.architecture and ht_spec.arch              */
    const char *model_type;          /* config.json's                                             */
    unsigned traits;
    int (*gguf)(const model__in *, ht_spec *, ht_err *);  /* on top of what all share, read.c     */
    int (*hf)(const model__in *, ht_spec *, ht_err *);    /* likewise                             */
    const model__name *hf_names;   /* differences from Llama's, ended by a NULL name; may be NULL */
} model__family;

struct model__in {
    const ht_file *f;
    const model__family *fam;
    const ht_json *cfg;              /* HF: config.json, or its text_config                       */
    const char *prefix;              /* HF: what stands before "layers.0..."                      */
    const char *head_prefix;         /* HF: what stands before "lm_head"                          */
    ht_arena *arena;
};

/* ---- arch.c ---- */
/* Find the family of a GGUF or Hugging Face file and where its tensors hang. */
HT_MUST_USE int model__identify(model__in *, const ht_file *, ht_arena *, ht_err *);
/* Name of a role's tensor in this kind of file; false when the kind has none. */
bool model__tensor_name(const model__in *, int role, uint32_t layer, uint32_t expert,
                        char out[MODEL__NAME_MAX]);
const ht_tensor *model__find(const model__in *, int role, uint32_t layer, uint32_t expert);
/* The normal name: GGUF's without ".weight". */
void model__normal_name(int role, uint32_t layer, char out[64]);

/* ---- read.c: what all families share ---- */
/* "<arch>.<key>" typed reads. */
HT_MUST_USE int model__u32(const model__in *, const char *key, bool required, uint32_t def,
                           uint32_t *out, ht_err *);
HT_MUST_USE int model__f32(const model__in *, const char *key, bool required, float def, float *out,
                           ht_err *);
const ht_meta *model__meta(const model__in *, const char *key);
/* Windowed layers by config.json's layer_types; false in *found when it has none. */
HT_MUST_USE int model__hf_layer_types(const model__in *, ht_spec *, bool *found, ht_err *);
/* Every layer windowed except each period-th (period 0: all of them). */
void model__window_period(ht_spec *, uint32_t period);
/* Refuse hidden activations other than `name`. */
HT_MUST_USE int model__hf_act(const model__in *, const char *name, ht_err *);

/* ---- rope.c ---- */
/* RoPE of a GGUF by <arch>.rope.* and the factor tensors. */
HT_MUST_USE int model__gguf_rope(const model__in *, ht_spec *, ht_err *);
/* RoPE of config.json: theta and scaling of one kind of layer. kind: NULL or "full_attention". */
HT_MUST_USE int model__hf_rope(const model__in *, const char *kind, double theta, ht_spec *,
                               ht_rope *, ht_err *);
/* Unscaled frequencies of a base: gemma's local layers. dims must be set. */
HT_MUST_USE int model__plain_rope(const model__in *, double base, ht_rope *, ht_err *);

/* ---- json.c ---- */
HT_MUST_USE int model__spec_from_json(const ht_json *, ht_arena *, ht_spec *, ht_err *);
#endif
