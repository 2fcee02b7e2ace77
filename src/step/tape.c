/* tape.c - from a model to the line of stages that computes one step. This is the only place that
 * knows in which order a decoder-only transformer does things; everything a family varies arrives
 * as flags or as numbers in the spec. Neighbours: cover.c partitions the line, backends run it. */
#include "model/model.h"
#include "step/step.h"

typedef struct {
    ht_stage *out;
    size_t cap, n;
} tape_out;

/* Append a stage; past cap only the count grows, so that callers can size their array. */
static void put(tape_out *t, int kind, unsigned flags, int layer)
{
    if (t->n < t->cap) {
        t->out[t->n].kind = (uint16_t)kind;
        t->out[t->n].flags = (uint16_t)flags;
        t->out[t->n].layer = (int16_t)layer;
    }
    t->n++;
}

static void put_layer(tape_out *t, const ht_spec *s, int layer)
{
    const ht_layer_spec *l = &s->layer[layer];
    unsigned post = s->post_norm ? HT_POSTNORM : 0U;
    unsigned act = s->gelu ? HT_GELU : 0U;

    put(t, HT_QKV, (s->qkv_bias ? HT_BIAS : 0U) | (s->qk_norm ? HT_QKNORM : 0U), layer);
    /* The last layer's keys and values are needed for every row, its output only where logits are
     * wanted: from here on the step works on those rows alone. */
    if ((uint32_t)layer + 1 == s->n_layers) put(t, HT_PICK, 0, -1);
    put(t, HT_ATTN, (l->window ? HT_WINDOW : 0U) | (s->attn_cap > 0 ? HT_CAP : 0U), layer);
    put(t, HT_ATTN_OUT, post, layer);
    if (l->moe) {
        put(t, HT_ROUTE, s->expert_renorm ? HT_RENORM : 0U, layer);
        put(t, HT_EXPERTS, post | act | (s->shared_ffn ? HT_SHARED : 0U), layer);
    } else {
        put(t, HT_FFN_UP, act, layer);
        put(t, HT_FFN_DOWN, post, layer);
    }
}

/* Write the model's tape to out[0..cap) and return the number of stages it has (5 a layer, 3 around
 * them); call with cap 0 to size the array. No SAMPLE: an engine that samples on the device appends
 * it. Cannot fail. */
size_t ht_tape(const ht_model *m, ht_stage *out, size_t cap)
{
    tape_out t = {out, cap, 0};
    put(&t, HT_EMBED, 0, -1);
    for (uint32_t i = 0; i < m->spec.n_layers; i++) put_layer(&t, &m->spec, (int)i);
    put(&t, HT_HEAD, m->spec.logit_cap > 0 ? HT_CAP : 0U, -1);
    return t.n;
}
