/* phi.c - Phi-3, 3.5 and 4: Llama with q, k, v in one matrix and gate, up in another, rotation of a
 * part of each head, and LongRoPE: a second set of frequencies for sequences longer than the
 * original context. Which set applies is decided per sequence (ht_batch.rope_long), as the authors'
 * code does. */
#include "model/priv.h"

static int gguf(const model__in *in, ht_spec *s, ht_err *e)
{
    HT_TRY(model__u32(in, "attention.sliding_window", false, 0, &s->window, e));
    if (s->window) model__window_period(s, 0);
    return 0;
}

static int hf(const model__in *in, ht_spec *s, ht_err *e)
{
    HT_TRY(model__hf_act(in, "silu", e));
    HT_TRY(model__hf_rope(in, NULL, 10000, s, &s->rope[0], e));
    HT_TRY(ht_json_u32(in->cfg, "sliding_window", 0, &s->window, e));
    if (s->window) model__window_period(s, 0);
    return 0;
}

const model__family model__phi3 = {"phi3", "phi3", 0, gguf, hf, NULL};
