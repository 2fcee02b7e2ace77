/* gemma.c - Gemma 3: norms before and after each half of a layer, embeddings times sqrt(dim), tanh
 * GELU, five windowed layers with a rotation of their own to one global layer. The rules are those
 * of the published configs; a GGUF leaves the layer pattern and the attention scale implicit. */
#include "model/priv.h"

#include <math.h>

enum { PERIOD = 6 };      /* every sixth layer is global unless the file says otherwise */
enum { LAYERS_27B = 62 }; /* the one size whose scale is not 1/sqrt(head_dim)          */

static int common(const model__in *in, ht_spec *s, double local_base, ht_err *e)
{
    s->post_norm = s->gelu = true;
    s->embed_scale = (float)sqrt((double)s->dim);
    for (uint32_t i = 0; i < s->n_layers; i++) s->layer[i].rope = s->layer[i].window;
    s->rope[1].dims = s->rope[0].dims;
    return model__plain_rope(in, local_base, &s->rope[1], e);
}

/* attention.sliding_window_pattern: a period, or one flag a layer. */
static int gguf_pattern(const model__in *in, ht_spec *s, ht_err *e)
{
    const ht_meta *m = model__meta(in, "attention.sliding_window_pattern");
    uint32_t period;
    if (!m || m->type != HT_META_ARR) {
        HT_TRY(model__u32(in, "attention.sliding_window_pattern", false, PERIOD, &period, e));
        model__window_period(s, period);
        return 0;
    }
    if (m->n != s->n_layers)
        return HT_FAIL(e, HT_EFORMAT, "sliding_window_pattern has %zu entries for %u layers", m->n,
                       s->n_layers);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        int64_t v;
        if (!ht_meta_arr_i64(m, i, &v))
            return HT_FAIL(e, HT_EFORMAT, "sliding_window_pattern[%u] is not a flag", i);
        s->layer[i].window = v != 0;
    }
    return 0;
}

static int gguf(const model__in *in, ht_spec *s, ht_err *e)
{
    float local;
    HT_TRY(model__u32(in, "attention.sliding_window", true, 0, &s->window, e));
    HT_TRY(gguf_pattern(in, s, e));
    HT_TRY(model__f32(in, "rope.freq_base_swa", false, 10000, &local, e));
    HT_TRY(model__f32(in, "final_logit_softcapping", false, 0, &s->logit_cap, e));
    if (s->n_layers == LAYERS_27B) s->attn_scale = (float)(1 / sqrt((double)s->dim / s->n_heads));
    return common(in, s, (double)local, e);
}

static int hf(const model__in *in, ht_spec *s, ht_err *e)
{
    bool typed;
    uint32_t period;
    double scalar, attn_cap, logit_cap, local;
    const ht_json *c = in->cfg;
    HT_TRY(model__hf_act(in, "gelu_pytorch_tanh", e));
    HT_TRY(model__hf_rope(in, "full_attention", 1e6, s, &s->rope[0], e));
    HT_TRY(ht_json_f64(c, "query_pre_attn_scalar", 256, &scalar, e));
    if (!(scalar > 0))
        return HT_FAIL(e, HT_EFORMAT, "config.json: query_pre_attn_scalar %g", scalar);
    s->attn_scale = (float)(1 / sqrt(scalar));
    HT_TRY(ht_json_f64(c, "attn_logit_softcapping", 0, &attn_cap, e));
    HT_TRY(ht_json_f64(c, "final_logit_softcapping", 0, &logit_cap, e));
    s->attn_cap = (float)attn_cap;
    s->logit_cap = (float)logit_cap;
    HT_TRY(ht_json_u32(c, "sliding_window", 4096, &s->window, e));
    HT_TRY(model__hf_layer_types(in, s, &typed, e));
    if (!typed) {
        HT_TRY(ht_json_u32(c, "_sliding_window_pattern", PERIOD, &period, e));
        HT_TRY(ht_json_u32(c, "sliding_window_pattern", period, &period, e));
        model__window_period(s, period);
    }
    HT_TRY(ht_json_f64(c, "rope_local_base_freq", 10000, &local, e));
    const ht_json *by_kind = ht_json_path(c, "rope_parameters.sliding_attention");
    HT_TRY(ht_json_f64(by_kind, "rope_theta", local, &local, e));
    return common(in, s, local, e);
}

static const model__name names[] = {
    {MODEL__FFN_NORM, "layers.#.pre_feedforward_layernorm.weight"},
    {MODEL__POST_ATTN, "layers.#.post_attention_layernorm.weight"},
    {MODEL__POST_FFN, "layers.#.post_feedforward_layernorm.weight"},
    {0, NULL},
};

const model__family model__gemma3 = {"gemma3", "gemma3_text", MODEL__NORM1, gguf, hf, names};
/* The text half of a model that also sees; its settings are in text_config. */
const model__family model__gemma3_vl = {"gemma3", "gemma3", MODEL__NORM1, gguf, hf, names};
