/* smollm3.c - SmolLM3: Llama whose every fourth layer does not rotate q and k (NoPE). A GGUF leaves
 * the pattern implicit; config.json may state it layer by layer (1: rotates). */
#include "model/priv.h"

enum { PERIOD = 4 };

static void nope_period(ht_spec *s, uint32_t period)
{
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (period && (i + 1) % period == 0) s->layer[i].rope = HT_ROPES;
}

static int gguf(const model__in *in, ht_spec *s, ht_err *e)
{
    (void)in;
    (void)e;
    nope_period(s, PERIOD);
    return 0;
}

static int hf(const model__in *in, ht_spec *s, ht_err *e)
{
    uint32_t period;
    HT_TRY(model__hf_act(in, "silu", e));
    HT_TRY(model__hf_rope(in, NULL, 2e6, s, &s->rope[0], e));
    const ht_json *list = ht_json_get(in->cfg, "no_rope_layers");
    if (!list || list->type != HT_JARR) {
        HT_TRY(ht_json_u32(in->cfg, "no_rope_layer_interval", PERIOD, &period, e));
        nope_period(s, period);
        return 0;
    }
    if (list->n != s->n_layers)
        return HT_FAIL(e, HT_EFORMAT, "config.json: no_rope_layers has %zu entries for %u layers",
                       list->n, s->n_layers);
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (list->at[i].type == HT_JINT && list->at[i].i == 0) s->layer[i].rope = HT_ROPES;
    return 0;
}

const model__family model__smollm3 = {"smollm3", "smollm3", MODEL__PERMUTED, gguf, hf, NULL};
