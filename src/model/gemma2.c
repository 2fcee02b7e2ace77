/* gemma2.c - Gemma 2: Gemma 3 without norms on q and k, with every second layer global, one
 * rotation for all layers, and soft caps on scores and logits. A GGUF leaves pattern and scale
 * implicit. */
#include "model/priv.h"

#include <math.h>

enum { PERIOD = 2 };      /* every second layer is global                              */
enum { LAYERS_27B = 46 }; /* the one size whose scale is not 1/sqrt(head_dim)          */

static void common(ht_spec *s)
{
    s->post_norm = s->gelu = true;
    s->embed_scale = (float)sqrt((double)s->dim);
}

static int gguf(const model__in *in, ht_spec *s, ht_err *e)
{
    HT_TRY(model__u32(in, "attention.sliding_window", false, 4096, &s->window, e));
    HT_TRY(model__f32(in, "attn_logit_softcapping", false, 50, &s->attn_cap, e));
    HT_TRY(model__f32(in, "final_logit_softcapping", false, 30, &s->logit_cap, e));
    if (s->n_layers == LAYERS_27B) s->attn_scale = (float)(1 / sqrt((double)s->dim / s->n_heads));
    model__window_period(s, PERIOD);
    common(s);
    return 0;
}

static int hf(const model__in *in, ht_spec *s, ht_err *e)
{
    bool typed;
    double scalar, attn_cap, logit_cap;
    const ht_json *c = in->cfg;
    HT_TRY(model__hf_act(in, "gelu_pytorch_tanh", e));
    HT_TRY(model__hf_rope(in, NULL, 10000, s, &s->rope[0], e));
    HT_TRY(ht_json_f64(c, "query_pre_attn_scalar", 256, &scalar, e));
    if (!(scalar > 0))
        return HT_FAIL(e, HT_EFORMAT, "config.json: query_pre_attn_scalar %g", scalar);
    s->attn_scale = (float)(1 / sqrt(scalar));
    HT_TRY(ht_json_f64(c, "attn_logit_softcapping", 50, &attn_cap, e));
    HT_TRY(ht_json_f64(c, "final_logit_softcapping", 30, &logit_cap, e));
    s->attn_cap = (float)attn_cap;
    s->logit_cap = (float)logit_cap;
    HT_TRY(ht_json_u32(c, "sliding_window", 4096, &s->window, e));
    HT_TRY(model__hf_layer_types(in, s, &typed, e));
    if (!typed) model__window_period(s, PERIOD);
    common(s);
    return 0;
}

static const model__name names[] = {
    {MODEL__FFN_NORM, "layers.#.pre_feedforward_layernorm.weight"},
    {MODEL__POST_ATTN, "layers.#.post_attention_layernorm.weight"},
    {MODEL__POST_FFN, "layers.#.post_feedforward_layernorm.weight"},
    {0, NULL},
};

const model__family model__gemma2 = {"gemma2", "gemma2", MODEL__NORM1, gguf, hf, names};
