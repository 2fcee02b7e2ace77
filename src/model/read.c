/* read.c - the settings that all families state in the same way, from GGUF keys or config.json, and
 * the bounds a spec must keep. Everything is checked before anything is allocated by it: files are
 * hostile until proved otherwise. */
#include "model/priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Far above any model, far below what could overflow 64-bit sizes: the product of three of them and
 * an element size stays under 2^63. */
enum {
    MAX_DIM = 1 << 18,
    MAX_HEADS = 1 << 14,
    MAX_HEAD_DIM = 1 << 13,
    MAX_FFN = 1 << 20,
    MAX_VOCAB = 1 << 24,
    MAX_EXPERTS = 1 << 12,
    MAX_CTX = 1 << 28
};

static void arch_key(const model__in *in, const char *key, char out[96])
{
    (void)snprintf(out, 96, "%s.%s", in->fam->arch, key);
}

int model__u32(const model__in *in, const char *key, bool required, uint32_t def, uint32_t *out,
               ht_err *e)
{
    char full[96];
    arch_key(in, key, full);
    return ht_file_meta_u32(in->f, full, required, def, out, e);
}

int model__f32(const model__in *in, const char *key, bool required, float def, float *out,
               ht_err *e)
{
    char full[96];
    arch_key(in, key, full);
    return ht_file_meta_f32(in->f, full, required, def, out, e);
}

const ht_meta *model__meta(const model__in *in, const char *key)
{
    char full[96];
    arch_key(in, key, full);
    return ht_file_meta(in->f, full);
}

/* Number of layers decides every loop and array below; bounded first. */
static int take_layers(const model__in *in, ht_spec *s, ht_err *e)
{
    if (s->n_layers == 0 || s->n_layers > HT_MAX_LAYERS)
        return HT_FAIL(e, HT_EFORMAT, "%u layers: 1 to %d are possible", s->n_layers,
                       HT_MAX_LAYERS);
    s->layer = ht_arena_array(in->arena, s->n_layers, sizeof *s->layer);
    if (!s->layer) return HT_FAIL(e, HT_ENOMEM, "%u layers: out of memory", s->n_layers);
    return 0;
}

/* What tensors say better than settings: vocabulary, tied head, biases, norms, experts. */
static int from_tensors(const model__in *in, ht_spec *s, ht_err *e)
{
    const ht_tensor *t = model__find(in, MODEL__EMBED, 0, 0);
    if (!t)
        return HT_FAIL(e, HT_EFORMAT, "%s: no token embedding tensor (a vocabulary-only file?)",
                       ht_file_path(in->f));
    if (t->n_dims != 2 || t->dim[0] == 0 || t->dim[0] > MAX_VOCAB)
        return HT_FAIL(e, HT_EFORMAT, "tensor %s: a matrix of 1 to %d rows is needed", t->name,
                       MAX_VOCAB);
    s->vocab = (uint32_t)t->dim[0];
    s->tied = !model__find(in, MODEL__HEAD, 0, 0);
    s->qkv_bias = model__find(in, MODEL__Q_BIAS, 0, 0) != NULL;
    s->qk_norm = model__find(in, MODEL__Q_NORM, 0, 0) != NULL;
    bool dense = false;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        s->layer[i].moe = model__find(in, MODEL__ROUTER, i, 0) != NULL;
        dense = dense || !s->layer[i].moe;
    }
    if (!dense) s->ffn = 0;
    return 0;
}

static void set_defaults(const model__in *in, ht_spec *s)
{
    (void)snprintf(s->arch, sizeof s->arch, "%s", in->fam->arch);
    s->embed_scale = 1;
    s->attn_scale = (float)(1 / sqrt((double)s->head_dim));
}

/* head_count_kv may be an array, one entry a layer; layers that differ are not supported. */
static int gguf_kv_heads(const model__in *in, ht_spec *s, ht_err *e)
{
    const ht_meta *m = model__meta(in, "attention.head_count_kv");
    if (!m || m->type != HT_META_ARR)
        return model__u32(in, "attention.head_count_kv", false, s->n_heads, &s->n_kv_heads, e);
    int64_t first = 0, v = 0;
    for (size_t i = 0; i < m->n; i++) {
        if (!ht_meta_arr_i64(m, i, &v) || v < 0 || v > MAX_HEADS)
            return HT_FAIL(e, HT_EFORMAT, "%s.attention.head_count_kv[%zu] is not a head count",
                           in->fam->arch, i);
        if (i == 0) first = v;
        if (v != first)
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "layers with different numbers of KV heads (%lld and %lld)",
                           (long long)first, (long long)v);
    }
    s->n_kv_heads = (uint32_t)first;
    return 0;
}

static int gguf_experts(const model__in *in, ht_spec *s, ht_err *e)
{
    HT_TRY(model__u32(in, "expert_count", false, 0, &s->n_experts, e));
    if (s->n_experts == 0) return 0;
    HT_TRY(model__u32(in, "expert_used_count", true, 0, &s->n_experts_used, e));
    s->expert_renorm = true;
    return model__u32(in, "expert_feed_forward_length", false, s->ffn, &s->expert_ffn, e);
}

/* Fill *s from a GGUF's keys and tensors, before the family's own reader. */
static int gguf_common(const model__in *in, ht_spec *s, ht_err *e)
{
    uint32_t v;
    memset(s, 0, sizeof *s);
    HT_TRY(model__u32(in, "block_count", true, 0, &s->n_layers, e));
    HT_TRY(take_layers(in, s, e));
    HT_TRY(model__u32(in, "embedding_length", true, 0, &s->dim, e));
    HT_TRY(model__u32(in, "context_length", true, 0, &s->ctx_train, e));
    HT_TRY(model__u32(in, "feed_forward_length", false, 0, &s->ffn, e));
    HT_TRY(model__u32(in, "attention.head_count", true, 0, &s->n_heads, e));
    HT_TRY(gguf_kv_heads(in, s, e));
    if (s->n_heads == 0)
        return HT_FAIL(e, HT_EFORMAT, "%s.attention.head_count is 0", in->fam->arch);
    HT_TRY(model__u32(in, "attention.key_length", false, s->dim / s->n_heads, &s->head_dim, e));
    HT_TRY(model__u32(in, "attention.value_length", false, s->head_dim, &v, e));
    if (v != s->head_dim)
        return HT_FAIL(e, HT_EUNSUPPORTED, "heads with keys of %u and values of %u elements",
                       s->head_dim, v);
    HT_TRY(model__f32(in, "attention.layer_norm_rms_epsilon", true, 0, &s->rms_eps, e));
    HT_TRY(gguf_experts(in, s, e));
    set_defaults(in, s);
    if (s->head_dim == 0 || s->head_dim > MAX_HEAD_DIM)
        return HT_FAIL(e, HT_EFORMAT, "head size %u: 1 to %d are possible", s->head_dim,
                       MAX_HEAD_DIM);
    HT_TRY(model__gguf_rope(in, s, e));
    return from_tensors(in, s, e);
}

/* Fill *s from config.json and the folder's tensors, before the family's own reader. */
static int hf_common(const model__in *in, ht_spec *s, ht_err *e)
{
    double eps;
    bool tied;
    const ht_json *c = in->cfg;
    memset(s, 0, sizeof *s);
    HT_TRY(ht_json_u32(c, "num_hidden_layers", 0, &s->n_layers, e));
    HT_TRY(take_layers(in, s, e));
    HT_TRY(ht_json_u32(c, "hidden_size", 0, &s->dim, e));
    HT_TRY(ht_json_u32(c, "max_position_embeddings", 0, &s->ctx_train, e));
    HT_TRY(ht_json_u32(c, "intermediate_size", 0, &s->ffn, e));
    HT_TRY(ht_json_u32(c, "num_attention_heads", 0, &s->n_heads, e));
    HT_TRY(ht_json_u32(c, "num_key_value_heads", s->n_heads, &s->n_kv_heads, e));
    if (s->n_heads == 0)
        return HT_FAIL(e, HT_EFORMAT, "config.json: num_attention_heads is missing or 0");
    HT_TRY(ht_json_u32(c, "head_dim", s->dim / s->n_heads, &s->head_dim, e));
    if (s->head_dim == 0 || s->head_dim > MAX_HEAD_DIM)
        return HT_FAIL(e, HT_EFORMAT, "config.json: head size %u: 1 to %d are possible",
                       s->head_dim, MAX_HEAD_DIM);
    HT_TRY(ht_json_f64(c, "rms_norm_eps", 1e-6, &eps, e));
    s->rms_eps = (float)eps;
    set_defaults(in, s);
    HT_TRY(from_tensors(in, s, e));
    /* Weights that config.json declares tied are tied even where a copy of them was saved. */
    HT_TRY(ht_json_bool(c, "tie_word_embeddings", s->tied, &tied, e));
    s->tied = s->tied || tied;
    return 0;
}

int model__hf_layer_types(const model__in *in, ht_spec *s, bool *found, ht_err *e)
{
    const ht_json *a = ht_json_get(in->cfg, "layer_types");
    *found = a && a->type == HT_JARR;
    if (!*found) return 0;
    if (a->n != s->n_layers)
        return HT_FAIL(e, HT_EFORMAT, "config.json: layer_types has %zu entries for %u layers",
                       a->n, s->n_layers);
    for (size_t i = 0; i < a->n; i++) {
        const ht_json *t = &a->at[i];
        bool win = t->type == HT_JSTR && !strcmp(t->s, "sliding_attention");
        if (!win && (t->type != HT_JSTR || strcmp(t->s, "full_attention") != 0))
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "config.json: layer_types[%zu] is \"%.40s\"; known are "
                           "full_attention and sliding_attention",
                           i, t->type == HT_JSTR ? t->s : "no text");
        s->layer[i].window = win;
    }
    return 0;
}

void model__window_period(ht_spec *s, uint32_t period)
{
    for (uint32_t i = 0; i < s->n_layers; i++)
        s->layer[i].window = period == 0 || (i + 1) % period != 0;
}

int model__hf_act(const model__in *in, const char *name, ht_err *e)
{
    const char *act;
    HT_TRY(ht_json_str(in->cfg, "hidden_act", name, &act, e));
    HT_TRY(ht_json_str(in->cfg, "hidden_activation", act, &act, e));
    if (strcmp(act, name) != 0)
        return HT_FAIL(e, HT_EUNSUPPORTED, "config.json: activation \"%.40s\"; %s models use %s",
                       act, in->fam->model_type, name);
    return 0;
}

/* ---- bounds ---------------------------------------------------------------------------------- */

static int in_range(const char *what, uint64_t v, uint64_t lo, uint64_t hi, ht_err *e)
{
    if (v < lo || v > hi)
        return HT_FAIL(e, HT_EFORMAT, "%s is %llu: %llu to %llu are possible", what,
                       (unsigned long long)v, (unsigned long long)lo, (unsigned long long)hi);
    return 0;
}

static int check_rope(const ht_spec *s, ht_err *e)
{
    for (uint32_t i = 0; i < s->n_layers; i++) {
        uint8_t k = s->layer[i].rope;
        if (k > HT_ROPES || (k < HT_ROPES && !s->rope[k].inv_freq))
            return HT_FAIL(e, HT_EFORMAT, "layer %u has rotation %u, which is not defined", i, k);
    }
    for (int k = 0; k < HT_ROPES; k++) {
        const ht_rope *r = &s->rope[k];
        if (!r->inv_freq) continue;
        if (r->dims == 0 || r->dims % 2 || r->dims > s->head_dim)
            return HT_FAIL(e, HT_EFORMAT, "rope rotates %u of %u dims: even and at most all",
                           r->dims, s->head_dim);
        if (!isfinite(r->mscale)) return HT_FAIL(e, HT_EFORMAT, "rope scale is not finite");
        for (uint32_t i = 0; i < r->dims / 2; i++)
            if (!isfinite(r->inv_freq[i]) || (r->inv_freq_long && !isfinite(r->inv_freq_long[i])))
                return HT_FAIL(e, HT_EFORMAT, "rope frequency %u is not finite", i);
        if (r->inv_freq_long) HT_TRY(in_range("original context", s->rope_orig_ctx, 1, MAX_CTX, e));
    }
    return 0;
}

static int check_layers(const ht_spec *s, ht_err *e)
{
    bool window = false, moe = false, dense = false;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        window = window || s->layer[i].window;
        moe = moe || s->layer[i].moe;
        dense = dense || !s->layer[i].moe;
    }
    if (window) HT_TRY(in_range("attention window", s->window, 1, MAX_CTX, e));
    if (dense) HT_TRY(in_range("feed-forward size", s->ffn, 1, MAX_FFN, e));
    if (moe) {
        HT_TRY(in_range("number of experts", s->n_experts, 1, MAX_EXPERTS, e));
        HT_TRY(in_range("experts used", s->n_experts_used, 1, s->n_experts, e));
        HT_TRY(in_range("expert feed-forward size", s->expert_ffn, 1, MAX_FFN, e));
        HT_TRY(in_range("shared expert size", s->shared_ffn, 0, MAX_FFN, e));
    }
    return 0;
}

static int check_floats(const ht_spec *s, ht_err *e)
{
    if (!(s->rms_eps > 0) || !isfinite(s->rms_eps))
        return HT_FAIL(e, HT_EFORMAT, "norm epsilon is %g: must be > 0", (double)s->rms_eps);
    if (!isfinite(s->embed_scale) || !isfinite(s->attn_scale) || !isfinite(s->attn_cap) ||
        !isfinite(s->logit_cap) || s->attn_cap < 0 || s->logit_cap < 0)
        return HT_FAIL(e, HT_EFORMAT, "a scale or cap is not a finite number");
    return 0;
}

/* Bounds of a finished spec, whatever it was read from. Errors name the setting (HT_EFORMAT). */
static int check_spec(const ht_spec *s, ht_err *e)
{
    HT_TRY(in_range("number of layers", s->n_layers, 1, HT_MAX_LAYERS, e));
    HT_TRY(in_range("hidden size", s->dim, 1, MAX_DIM, e));
    HT_TRY(in_range("number of heads", s->n_heads, 1, MAX_HEADS, e));
    HT_TRY(in_range("number of KV heads", s->n_kv_heads, 1, s->n_heads, e));
    HT_TRY(in_range("head size", s->head_dim, 1, MAX_HEAD_DIM, e));
    HT_TRY(in_range("vocabulary", s->vocab, 1, MAX_VOCAB, e));
    HT_TRY(in_range("context length", s->ctx_train, 1, MAX_CTX, e));
    if (s->n_heads % s->n_kv_heads)
        return HT_FAIL(e, HT_EFORMAT, "%u heads cannot share %u KV heads evenly", s->n_heads,
                       s->n_kv_heads);
    HT_TRY(check_layers(s, e));
    HT_TRY(check_floats(s, e));
    return check_rope(s, e);
}

/* A window that no sequence can outgrow is no window, and one that no layer has is none either; so
 * that equal models have equal specs. */
static void normalise(ht_spec *s)
{
    bool any = false;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        if (s->window == 0 || s->window >= s->ctx_train) s->layer[i].window = 0;
        any = any || s->layer[i].window;
    }
    if (!any) s->window = 0;
}

/* Read the spec of any kind of model file. Everything it points to lives in the arena. Errors:
 * HT_EFORMAT names the key or setting, HT_EUNSUPPORTED the architecture or feature. */
int ht_spec_read(ht_spec *s, const ht_file *f, ht_arena *arena, ht_err *e)
{
    model__in in;
    HT_TRY(model__identify(&in, f, arena, e));
    if (ht_file_kind(f) == HT_FILE_PACK) {
        const ht_json *spec = ht_json_path(ht_file_header(f), "model.spec");
        if (!spec)
            return HT_FAIL(e, HT_EFORMAT, "%s: the pack's header has no model.spec",
                           ht_file_path(f));
        HT_TRY(model__spec_from_json(spec, arena, s, e));
        return check_spec(s, e);
    }
    if (ht_file_kind(f) == HT_FILE_GGUF) {
        HT_TRY(gguf_common(&in, s, e));
        HT_TRY(in.fam->gguf(&in, s, e));
    } else {
        HT_TRY(hf_common(&in, s, e));
        HT_TRY(in.fam->hf(&in, s, e));
    }
    normalise(s);
    return check_spec(s, e);
}
