/* json.c - a spec as canonical JSON and back, exactly: integers as numbers, f32 values as the eight
 * hex digits of their bits, lists of f32 as such digits in a row, flags of layers as one character
 * a layer. A pack's header carries this object, so reading a pack needs no family. */
#include "model/priv.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The plain members, by name. Order is of no consequence: canonical JSON sorts keys. */
static const struct {
    const char *key;
    size_t at;
} u32_field[] =
    {
        {"n_layers", offsetof(ht_spec, n_layers)},
        {"dim", offsetof(ht_spec, dim)},
        {"n_heads", offsetof(ht_spec, n_heads)},
        {"n_kv_heads", offsetof(ht_spec, n_kv_heads)},
        {"head_dim", offsetof(ht_spec, head_dim)},
        {"ffn", offsetof(ht_spec, ffn)},
        {"vocab", offsetof(ht_spec, vocab)},
        {"ctx_train", offsetof(ht_spec, ctx_train)},
        {"n_experts", offsetof(ht_spec, n_experts)},
        {"n_experts_used", offsetof(ht_spec, n_experts_used)},
        {"expert_ffn", offsetof(ht_spec, expert_ffn)},
        {"shared_ffn", offsetof(ht_spec, shared_ffn)},
        {"window", offsetof(ht_spec, window)},
        {"rope_orig_ctx", offsetof(ht_spec, rope_orig_ctx)},
},
  bool_field[] =
      {
          {"expert_renorm", offsetof(ht_spec, expert_renorm)},
          {"qkv_bias", offsetof(ht_spec, qkv_bias)},
          {"qk_norm", offsetof(ht_spec, qk_norm)},
          {"post_norm", offsetof(ht_spec, post_norm)},
          {"gelu", offsetof(ht_spec, gelu)},
          {"tied", offsetof(ht_spec, tied)},
},
  f32_field[] = {
      {"rms_eps", offsetof(ht_spec, rms_eps)},
      {"embed_scale", offsetof(ht_spec, embed_scale)},
      {"attn_scale", offsetof(ht_spec, attn_scale)},
      {"attn_cap", offsetof(ht_spec, attn_cap)},
      {"logit_cap", offsetof(ht_spec, logit_cap)},
};
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- writing --------------------------------------------------------------------------------- */

static ht_json *hex_floats(ht_arena *a, const float *f, size_t n)
{
    char *s = ht_arena_alloc(a, n * 8 + 1);
    for (size_t i = 0; s && i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &f[i], 4);
        (void)snprintf(s + 8 * i, 9, "%08x", bits);
    }
    return s ? ht_json_new_str(a, s, n * 8) : NULL;
}

static ht_json *rope_json(const ht_rope *r, ht_arena *a)
{
    ht_json *o = ht_json_new(a, HT_JOBJ);
    ht_json_add(a, o, "dims", ht_json_new_int(a, r->dims));
    ht_json_add(a, o, "mscale", hex_floats(a, &r->mscale, 1));
    ht_json_add(a, o, "inv_freq", hex_floats(a, r->inv_freq, r->dims / 2));
    if (r->inv_freq_long)
        ht_json_add(a, o, "inv_freq_long", hex_floats(a, r->inv_freq_long, r->dims / 2));
    return o;
}

/* One digit a layer. */
static ht_json *layer_digits(const ht_spec *s, size_t field, ht_arena *a)
{
    char *d = ht_arena_alloc(a, (size_t)s->n_layers + 1);
    for (uint32_t i = 0; d && i < s->n_layers; i++)
        d[i] = (char)('0' + *((const uint8_t *)&s->layer[i] + field));
    return d ? ht_json_new_str(a, d, s->n_layers) : NULL;
}

int ht_spec_to_json(const ht_spec *s, ht_arena *a, ht_json **out, ht_err *e)
{
    ht_json *o = ht_json_new(a, HT_JOBJ), *ropes = ht_json_new(a, HT_JARR);
    const char *base = (const char *)s;
    ht_json_add(a, o, "arch", ht_json_new_str(a, s->arch, strlen(s->arch)));
    for (size_t i = 0; i < COUNT(u32_field); i++)
        ht_json_add(a, o, u32_field[i].key,
                    ht_json_new_int(a, *(const uint32_t *)(const void *)(base + u32_field[i].at)));
    for (size_t i = 0; i < COUNT(bool_field); i++)
        ht_json_add(a, o, bool_field[i].key,
                    ht_json_new_bool(a, *(const bool *)(base + bool_field[i].at)));
    for (size_t i = 0; i < COUNT(f32_field); i++)
        ht_json_add(a, o, f32_field[i].key,
                    hex_floats(a, (const float *)(const void *)(base + f32_field[i].at), 1));
    for (int k = 0; k < HT_ROPES && s->rope[k].inv_freq; k++)
        ht_json_push(a, ropes, rope_json(&s->rope[k], a));
    ht_json_add(a, o, "rope", ropes);
    ht_json_add(a, o, "layer_window", layer_digits(s, offsetof(ht_layer_spec, window), a));
    ht_json_add(a, o, "layer_rope", layer_digits(s, offsetof(ht_layer_spec, rope), a));
    ht_json_add(a, o, "layer_moe", layer_digits(s, offsetof(ht_layer_spec, moe), a));
    /* Adders do nothing once memory is out; the last member tells. */
    if (!ht_json_get(o, "layer_moe") || !ht_json_get(o, "rope"))
        return HT_FAIL(e, HT_ENOMEM, "model spec as JSON: out of memory");
    *out = o;
    return 0;
}

static void f32_list(ht_jw *w, const char *key, const float *f, size_t n)
{
    ht_jw_key(w, key);
    ht_jw_arr(w);
    for (size_t i = 0; i < n; i++) ht_jw_f32(w, f[i]);
    ht_jw_end(w, ']');
}

static void describe_layers(const ht_spec *s, const char *key, size_t field, ht_jw *w)
{
    ht_jw_key(w, key);
    ht_jw_arr(w);
    for (uint32_t i = 0; i < s->n_layers; i++)
        ht_jw_uint(w, *((const uint8_t *)&s->layer[i] + field));
    ht_jw_end(w, ']');
}

void ht_spec_describe(const ht_spec *s, ht_jw *w)
{
    const char *base = (const char *)s;
    ht_jw_obj(w);
    ht_jw_kstr(w, "arch", s->arch);
    for (size_t i = 0; i < COUNT(u32_field); i++)
        ht_jw_kuint(w, u32_field[i].key, *(const uint32_t *)(const void *)(base + u32_field[i].at));
    for (size_t i = 0; i < COUNT(bool_field); i++)
        ht_jw_kbool(w, bool_field[i].key, *(const bool *)(base + bool_field[i].at));
    for (size_t i = 0; i < COUNT(f32_field); i++) {
        ht_jw_key(w, f32_field[i].key);
        ht_jw_f32(w, *(const float *)(const void *)(base + f32_field[i].at));
    }
    ht_jw_key(w, "rope");
    ht_jw_arr(w);
    for (int k = 0; k < HT_ROPES && s->rope[k].inv_freq; k++) {
        const ht_rope *r = &s->rope[k];
        ht_jw_obj(w);
        ht_jw_kuint(w, "dims", r->dims);
        ht_jw_key(w, "mscale");
        ht_jw_f32(w, r->mscale);
        f32_list(w, "inv_freq", r->inv_freq, r->dims / 2);
        if (r->inv_freq_long) f32_list(w, "inv_freq_long", r->inv_freq_long, r->dims / 2);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
    describe_layers(s, "layer_window", offsetof(ht_layer_spec, window), w);
    describe_layers(s, "layer_rope", offsetof(ht_layer_spec, rope), w);
    describe_layers(s, "layer_moe", offsetof(ht_layer_spec, moe), w);
    ht_jw_end(w, '}');
}

/* ---- reading --------------------------------------------------------------------------------- */

static int bad(const char *key, const char *need, ht_err *e)
{
    return HT_FAIL(e, HT_EFORMAT, "pack: model.spec.%s: %s is needed", key, need);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* n floats of o.key into out. */
static int read_floats(const ht_json *o, const char *key, float *out, size_t n, ht_err *e)
{
    const ht_json *v = ht_json_get(o, key);
    if (!v || v->type != HT_JSTR || v->n != n * 8) return bad(key, "8 hex digits a number", e);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 8; k++) {
            int d = hex_digit(v->s[8 * i + k]);
            if (d < 0) return bad(key, "lower-case hex", e);
            bits = bits << 4 | (uint32_t)d;
        }
        memcpy(&out[i], &bits, 4);
    }
    return 0;
}

static int read_freqs(const ht_json *o, const char *key, uint32_t dims, ht_arena *a,
                      const float **out, ht_err *e)
{
    float *f = ht_arena_array(a, dims / 2, sizeof *f);
    if (!f) return HT_FAIL(e, HT_ENOMEM, "pack: rope of %u dims: out of memory", dims);
    *out = f;
    return read_floats(o, key, f, dims / 2, e);
}

static int read_ropes(const ht_json *spec, ht_arena *a, ht_spec *s, ht_err *e)
{
    const ht_json *list = ht_json_get(spec, "rope");
    if (!list || list->type != HT_JARR || list->n > HT_ROPES)
        return bad("rope", "a list of at most two", e);
    for (size_t i = 0; i < list->n; i++) {
        const ht_json *o = &list->at[i];
        ht_rope *r = &s->rope[i];
        HT_TRY(ht_json_u32(o, "dims", 0, &r->dims, e));
        if (r->dims == 0 || r->dims % 2 || r->dims > s->head_dim)
            return bad("rope.dims", "an even number up to head_dim", e);
        HT_TRY(read_floats(o, "mscale", &r->mscale, 1, e));
        HT_TRY(read_freqs(o, "inv_freq", r->dims, a, &r->inv_freq, e));
        if (ht_json_get(o, "inv_freq_long"))
            HT_TRY(read_freqs(o, "inv_freq_long", r->dims, a, &r->inv_freq_long, e));
    }
    return 0;
}

static int read_digits(const ht_json *spec, const char *key, char max, size_t field, ht_spec *s,
                       ht_err *e)
{
    const ht_json *v = ht_json_get(spec, key);
    if (!v || v->type != HT_JSTR || v->n != s->n_layers) return bad(key, "one digit a layer", e);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        if (v->s[i] < '0' || v->s[i] > max) return bad(key, "digits in range", e);
        *((uint8_t *)&s->layer[i] + field) = (uint8_t)(v->s[i] - '0');
    }
    return 0;
}

static int read_plain(const ht_json *o, ht_spec *s, ht_err *e)
{
    char *base = (char *)s;
    const ht_json *arch = ht_json_get(o, "arch");
    if (!arch || arch->type != HT_JSTR || arch->n >= sizeof s->arch)
        return bad("arch", "a name", e);
    memcpy(s->arch, arch->s, arch->n);
    for (size_t i = 0; i < COUNT(u32_field); i++) {
        if (!ht_json_get(o, u32_field[i].key)) return bad(u32_field[i].key, "a number", e);
        HT_TRY(
            ht_json_u32(o, u32_field[i].key, 0, (uint32_t *)(void *)(base + u32_field[i].at), e));
    }
    for (size_t i = 0; i < COUNT(bool_field); i++) {
        if (!ht_json_get(o, bool_field[i].key)) return bad(bool_field[i].key, "true or false", e);
        HT_TRY(ht_json_bool(o, bool_field[i].key, false, (bool *)(base + bool_field[i].at), e));
    }
    for (size_t i = 0; i < COUNT(f32_field); i++)
        HT_TRY(read_floats(o, f32_field[i].key, (float *)(void *)(base + f32_field[i].at), 1, e));
    return 0;
}

/* The inverse of ht_spec_to_json. Sizes are checked before they allocate; whether they make
 * sense is checked by the reader. Errors: HT_EFORMAT names the member. */
int model__spec_from_json(const ht_json *o, ht_arena *a, ht_spec *s, ht_err *e)
{
    memset(s, 0, sizeof *s);
    HT_TRY(read_plain(o, s, e));
    if (s->n_layers == 0 || s->n_layers > HT_MAX_LAYERS) return bad("n_layers", "1 to 1024", e);
    s->layer = ht_arena_array(a, s->n_layers, sizeof *s->layer);
    if (!s->layer) return HT_FAIL(e, HT_ENOMEM, "pack: %u layers: out of memory", s->n_layers);
    HT_TRY(read_ropes(o, a, s, e));
    HT_TRY(read_digits(o, "layer_window", '1', offsetof(ht_layer_spec, window), s, e));
    HT_TRY(read_digits(o, "layer_rope", '0' + HT_ROPES, offsetof(ht_layer_spec, rope), s, e));
    return read_digits(o, "layer_moe", '1', offsetof(ht_layer_spec, moe), s, e);
}
