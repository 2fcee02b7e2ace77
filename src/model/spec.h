/* spec.h - a decoder-only transformer in numbers: what every family file fills in from GGUF keys or
 * config.json, and what a pack's header stores. Plain data. */
#ifndef HT_MODEL_SPEC_H
#define HT_MODEL_SPEC_H
#include <stdbool.h>
#include <stdint.h>

enum { HT_MAX_LAYERS = 1024, HT_ROPES = 2 };
typedef struct {                  /* one rotary embedding (arXiv:2104.09864), pairs (i, i+dims/2) */
    uint32_t dims;                   /* rotated dims of a head, even, <= head_dim                 */
    float mscale;                    /* cos and sin are multiplied by this (1 mostly)             */
    const float *inv_freq;           /* [dims/2] f32; angle = pos * inv_freq, computed in f64     */
    const float *inv_freq_long;      /* longrope: used when the sequence is long; NULL otherwise  */
} ht_rope;
typedef struct {                     /* per layer                                                 */
    uint8_t window;                  /* 1: attends to spec.window keys, KV class HT_KV_WINDOW     */
    uint8_t rope;                    /* index into spec.rope; HT_ROPES: no rotation (NoPE layer)  */
    uint8_t moe;                     /* 1: ROUTE + EXPERTS instead of FFN_UP + FFN_DOWN           */
} ht_layer_spec;
typedef struct {
    char arch[32];                   /* "llama", "qwen3", ...: a row of model/arch.c              */
    uint32_t n_layers, dim, n_heads, n_kv_heads, head_dim, ffn, vocab, ctx_train;
    uint32_t n_experts, n_experts_used, expert_ffn, shared_ffn;       /* 0: dense                 */
    bool expert_renorm;              /* top-k weights divided by their sum                        */
    bool qkv_bias, qk_norm, post_norm, gelu, tied;
    float rms_eps;
    float embed_scale;               /* X = embed * this (1 mostly)                               */
    float attn_scale;                /* scores = q.k * this                                       */
    float attn_cap, logit_cap;       /* s = cap*tanh(s/cap); 0: none                              */
    uint32_t window;                 /* keys seen by windowed layers, the query's own included    */
    ht_rope rope[HT_ROPES];
    uint32_t rope_orig_ctx;          /* longrope: sequences longer than this use inv_freq_long    */
    ht_layer_spec *layer;            /* [n_layers]                                                */
} ht_spec;
#endif
