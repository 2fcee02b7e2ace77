/* llama.c - Llama 2 and 3, SmolLM2, Mistral, Mixtral: plain pre-norm decoders. One GGUF
 * architecture ("llama") serves all of them; its q and k rows are stored for adjacent pairs.
 * Mistral's window exists in config.json only: a GGUF of it means full attention. */
#include "model/priv.h"

static int gguf(const model__in *in, ht_spec *s, ht_err *e)
{
    (void)in;
    (void)s;
    (void)e;
    return 0; /* the common keys say it all */
}

static int hf(const model__in *in, ht_spec *s, ht_err *e)
{
    HT_TRY(model__hf_act(in, "silu", e));
    return model__hf_rope(in, NULL, 10000, s, &s->rope[0], e);
}

static int hf_mistral(const model__in *in, ht_spec *s, ht_err *e)
{
    HT_TRY(hf(in, s, e));
    HT_TRY(ht_json_u32(in->cfg, "sliding_window", 0, &s->window, e));
    if (s->window) model__window_period(s, 0);
    return 0;
}

static int hf_mixtral(const model__in *in, ht_spec *s, ht_err *e)
{
    HT_TRY(hf_mistral(in, s, e));
    HT_TRY(ht_json_u32(in->cfg, "num_local_experts", 0, &s->n_experts, e));
    HT_TRY(ht_json_u32(in->cfg, "num_experts_per_tok", 0, &s->n_experts_used, e));
    s->expert_renorm = true;
    return ht_json_u32(in->cfg, "intermediate_size", 0, &s->expert_ffn, e);
}

static const model__name mixtral_names[] = {
    {MODEL__ROUTER, "layers.#.block_sparse_moe.gate.weight"},
    {MODEL__X_GATE, "layers.#.block_sparse_moe.experts.@.w1.weight"},
    {MODEL__X_DOWN, "layers.#.block_sparse_moe.experts.@.w2.weight"},
    {MODEL__X_UP, "layers.#.block_sparse_moe.experts.@.w3.weight"},
    {0, NULL},
};

const model__family model__llama = {"llama", "llama", MODEL__PERMUTED, gguf, hf, NULL};
const model__family model__mistral = {"llama", "mistral", MODEL__PERMUTED, gguf, hf_mistral, NULL};
const model__family model__mixtral = {"llama", "mixtral",  MODEL__PERMUTED,
                                      gguf,    hf_mixtral, mixtral_names};
