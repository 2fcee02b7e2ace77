/* qwen.c - Qwen2 (biases on q, k, v), Qwen3 (norms on the heads of q and k, own head size), and
 * their mixtures of experts. Qwen2-MoE adds a shared expert behind a sigmoid gate. Rows are stored
 * for pairs (i, i+d/2) in every kind of file. */
#include "model/priv.h"

static int gguf(const model__in *in, ht_spec *s, ht_err *e)
{
    (void)in;
    (void)s;
    (void)e;
    return 0; /* the common keys say it all; a GGUF always means renormalised experts */
}

static int gguf_qwen2moe(const model__in *in, ht_spec *s, ht_err *e)
{
    s->expert_renorm = false; /* Qwen1.5-MoE and Qwen2-57B: the raw probabilities are the weights */
    return model__u32(in, "expert_shared_feed_forward_length", true, 0, &s->shared_ffn, e);
}

static int hf(const model__in *in, ht_spec *s, ht_err *e)
{
    bool use, typed;
    uint32_t from;
    HT_TRY(model__hf_act(in, "silu", e));
    HT_TRY(model__hf_rope(in, NULL, 10000, s, &s->rope[0], e));
    HT_TRY(ht_json_bool(in->cfg, "use_sliding_window", false, &use, e));
    if (!use) return 0;
    HT_TRY(ht_json_u32(in->cfg, "sliding_window", 4096, &s->window, e));
    HT_TRY(model__hf_layer_types(in, s, &typed, e));
    if (typed) return 0;
    HT_TRY(ht_json_u32(in->cfg, "max_window_layers", 28, &from, e));
    for (uint32_t i = 0; i < s->n_layers; i++) s->layer[i].window = i >= from;
    return 0;
}

static int hf_moe(const model__in *in, ht_spec *s, ht_err *e)
{
    HT_TRY(hf(in, s, e));
    HT_TRY(ht_json_u32(in->cfg, "num_experts", 0, &s->n_experts, e));
    HT_TRY(ht_json_u32(in->cfg, "num_experts_per_tok", 0, &s->n_experts_used, e));
    HT_TRY(ht_json_u32(in->cfg, "moe_intermediate_size", 0, &s->expert_ffn, e));
    return ht_json_bool(in->cfg, "norm_topk_prob", false, &s->expert_renorm, e);
}

static int hf_qwen2moe(const model__in *in, ht_spec *s, ht_err *e)
{
    HT_TRY(hf_moe(in, s, e));
    return ht_json_u32(in->cfg, "shared_expert_intermediate_size", 0, &s->shared_ffn, e);
}

const model__family model__qwen2 = {"qwen2", "qwen2", 0, gguf, hf, NULL};
const model__family model__qwen2moe = {"qwen2moe",    "qwen2_moe", 0,
                                       gguf_qwen2moe, hf_qwen2moe, NULL};
const model__family model__qwen3 = {"qwen3", "qwen3", 0, gguf, hf, NULL};
const model__family model__qwen3moe = {"qwen3moe", "qwen3_moe", 0, gguf, hf_moe, NULL};
