/* rope.c - rotary frequencies after all scaling, as the f32 numbers that kernels multiply positions
 * with. The order of the f32 operations follows the tools that make GGUF files, so that a folder
 * and the GGUF converted from it give the same bits. Formulas: RoPE arXiv:2104.09864, YaRN
 * arXiv:2309.00071, LongRoPE arXiv:2402.13753; the Llama 3.1 bands are from its model card. */
#include "model/priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TWO_PI 6.283185307179586

/* base^(2i/dims) rounded to f32: what the divisions below start from. */
static float power(double base, uint32_t i, uint32_t dims)
{
    float x = (float)(2 * i) / (float)dims;
    return (float)pow((double)(float)base, (double)x);
}

static float *new_freqs(const model__in *in, uint32_t dims, ht_err *e)
{
    float *f = ht_arena_array(in->arena, dims / 2, sizeof *f);
    if (!f) (void)HT_FAIL(e, HT_ENOMEM, "rope of %u dims: out of memory", dims);
    return f;
}

static int check_base(double base, uint32_t dims, ht_err *e)
{
    if (!(base > 0) || !isfinite((float)base))
        return HT_FAIL(e, HT_EFORMAT, "rope base %g: a positive finite number is needed", base);
    if (dims == 0 || dims % 2)
        return HT_FAIL(e, HT_EFORMAT, "rope rotates %u dims: an even number > 0 is needed", dims);
    return 0;
}

/* inv_freq[i] = 1 / base^(2i/dims) / divisor[i]; divisor may be NULL. */
static int divided(const model__in *in, double base, uint32_t dims, const float *divisor,
                   const float **out, ht_err *e)
{
    HT_TRY(check_base(base, dims, e));
    float *f = new_freqs(in, dims, e);
    if (!f) return HT_ENOMEM;
    for (uint32_t i = 0; i < dims / 2; i++) {
        f[i] = 1.0F / power(base, i, dims);
        if (divisor) f[i] /= divisor[i];
    }
    *out = f;
    return 0;
}

int model__plain_rope(const model__in *in, double base, ht_rope *r, ht_err *e)
{
    r->mscale = 1;
    return divided(in, base, r->dims, NULL, &r->inv_freq, e);
}

/* The same divisor for all. */
static int linear(const model__in *in, double base, double factor, ht_rope *r, ht_err *e)
{
    if (!(factor > 0)) return HT_FAIL(e, HT_EFORMAT, "rope scaling factor %g: must be > 0", factor);
    float *d = new_freqs(in, r->dims, e);
    if (!d) return HT_ENOMEM;
    for (uint32_t i = 0; i < r->dims / 2; i++) d[i] = (float)factor;
    return divided(in, base, r->dims, d, &r->inv_freq, e);
}

typedef struct {
    double factor, low, high, orig;           /* llama3 */
    double beta_fast, beta_slow, attn_factor; /* yarn; attn_factor multiplies cos and sin */
    bool truncate;
} scaling;

/* Llama 3.1: long waves divided by factor, short ones kept, a ramp between. */
static int llama3(const model__in *in, double base, const scaling *s, ht_rope *r, ht_err *e)
{
    if (!(s->factor > 0) || !(s->low > 0) || !(s->high > s->low) || !(s->orig > 0))
        return HT_FAIL(
            e, HT_EFORMAT,
            "llama3 rope scaling: factor %g, bands %g to %g, original context %g make no "
            "sense",
            s->factor, s->low, s->high, s->orig);
    HT_TRY(check_base(base, r->dims, e));
    float *d = new_freqs(in, r->dims, e);
    if (!d) return HT_ENOMEM;
    for (uint32_t i = 0; i < r->dims / 2; i++) {
        float freq = 1.0F / power(base, i, r->dims);
        float wave = (1.0F / freq) * (float)TWO_PI;
        if ((double)wave < s->orig / s->high) {
            d[i] = 1;
        } else if ((double)wave > s->orig / s->low) {
            d[i] = (float)s->factor;
        } else {
            float smooth = (1.0F / wave) * (float)s->orig;
            smooth = (smooth - (float)s->low) / (float)(s->high - s->low);
            d[i] = 1.0F / ((1.0F - smooth) / (float)s->factor + smooth);
        }
    }
    return divided(in, base, r->dims, d, &r->inv_freq, e);
}

static double yarn_dim(double turns, const scaling *s, uint32_t dims, double base)
{
    return dims * log(s->orig / (turns * TWO_PI)) / (2 * log(base));
}

/* YaRN: dims that turn often keep their frequency, slow ones are interpolated, a ramp between. */
static int yarn(const model__in *in, double base, const scaling *s, ht_rope *r, ht_err *e)
{
    if (!(s->factor >= 1) || !(s->orig > 0) || !(s->beta_fast > 0) || !(s->beta_slow > 0))
        return HT_FAIL(e, HT_EFORMAT,
                       "yarn rope scaling: factor %g, original context %g make no sense", s->factor,
                       s->orig);
    HT_TRY(check_base(base, r->dims, e));
    float *f = new_freqs(in, r->dims, e);
    if (!f) return HT_ENOMEM;
    double low = yarn_dim(s->beta_fast, s, r->dims, base);
    double high = yarn_dim(s->beta_slow, s, r->dims, base);
    if (s->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, r->dims - 1.0);
    if (low == high) high += 0.001;
    for (uint32_t i = 0; i < r->dims / 2; i++) {
        float p = power(base, i, r->dims);
        float ramp = (float)fmin(fmax((i - low) / (high - low), 0), 1);
        float keep = 1.0F - ramp;
        f[i] = 1.0F / ((float)s->factor * p) * (1.0F - keep) + 1.0F / p * keep;
    }
    r->inv_freq = f;
    r->mscale = (float)s->attn_factor;
    return 0;
}

/* Both sets of LongRoPE; which one applies is decided per sequence (spec.rope_orig_ctx). */
static int longrope(const model__in *in, double base, const float *brief, const float *lengthy,
                    ht_rope *r, ht_err *e)
{
    const float *set[2] = {brief, lengthy};
    float *out[2];
    HT_TRY(check_base(base, r->dims, e));
    for (int k = 0; k < 2; k++) {
        if (!(out[k] = new_freqs(in, r->dims, e))) return HT_ENOMEM;
        for (uint32_t i = 0; i < r->dims / 2; i++) {
            if (!(set[k][i] > 0))
                return HT_FAIL(e, HT_EFORMAT, "longrope factor %u is %g: must be > 0", i,
                               (double)set[k][i]);
            out[k][i] = 1.0F / (set[k][i] * power(base, i, r->dims));
        }
    }
    r->inv_freq = out[0];
    r->inv_freq_long = out[1];
    return 0;
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

/* A factor tensor as f32 [dims/2]; NULL in *out when the file has none. */
static int factors(const model__in *in, const char *name, uint32_t dims, const float **out,
                   ht_err *e)
{
    const ht_tensor *t = ht_file_find(in->f, name);
    *out = NULL;
    if (!t) return 0;
    if (t->n_dims != 1 || t->dim[0] != dims / 2 || t->type != HT_F32)
        return HT_FAIL(e, HT_EFORMAT, "tensor %s: %llu elements of type %s, need %u of f32", name,
                       (unsigned long long)t->dim[0], ht_types[t->type].name, dims / 2);
    float *f = new_freqs(in, dims, e);
    if (!f) return HT_ENOMEM;
    memcpy(f, t->data, (size_t)(dims / 2) * sizeof *f);
    for (uint32_t i = 0; i < dims / 2; i++)
        if (!(f[i] > 0) || !isfinite(f[i]))
            return HT_FAIL(e, HT_EFORMAT, "tensor %s: element %u is %g, must be > 0", name, i,
                           (double)f[i]);
    *out = f;
    return 0;
}

static int gguf_yarn(const model__in *in, const ht_spec *s, double base, float factor, ht_rope *r,
                     ht_err *e)
{
    float fast, slow, attn;
    uint32_t orig;
    HT_TRY(model__u32(in, "rope.scaling.original_context_length", false, s->ctx_train, &orig, e));
    HT_TRY(model__f32(in, "rope.scaling.yarn_beta_fast", false, 32, &fast, e));
    HT_TRY(model__f32(in, "rope.scaling.yarn_beta_slow", false, 1, &slow, e));
    HT_TRY(model__f32(in, "rope.scaling.attn_factor", false, 1, &attn, e));
    scaling y = {.factor = (double)factor,
                 .orig = orig,
                 .beta_fast = (double)fast,
                 .beta_slow = (double)slow,
                 .truncate = true};
    y.attn_factor = (double)attn * (0.1 * log(y.factor) + 1);
    return yarn(in, base, &y, r, e);
}

static int gguf_longrope(const model__in *in, ht_spec *s, double base, const float *brief,
                         const float *lengthy, ht_rope *r, ht_err *e)
{
    HT_TRY(model__f32(in, "rope.scaling.attn_factor", false, 1, &r->mscale, e));
    HT_TRY(model__u32(in, "rope.scaling.original_context_length", true, 0, &s->rope_orig_ctx, e));
    return longrope(in, base, brief, lengthy, r, e);
}

int model__gguf_rope(const model__in *in, ht_spec *s, ht_err *e)
{
    ht_rope *r = &s->rope[0];
    float base, factor, old;
    const char *type;
    size_t n;
    char key[80];
    HT_TRY(model__u32(in, "rope.dimension_count", false, s->head_dim, &r->dims, e));
    if (r->dims > s->head_dim)
        return HT_FAIL(e, HT_EFORMAT, "rope.dimension_count %u is more than the head's %u", r->dims,
                       s->head_dim);
    HT_TRY(model__f32(in, "rope.freq_base", false, 10000, &base, e));
    HT_TRY(model__f32(in, "rope.scale_linear", false, 1, &old, e));
    HT_TRY(model__f32(in, "rope.scaling.factor", false, old, &factor, e));
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", in->fam->arch);
    HT_TRY(ht_file_meta_str(in->f, key, false, &type, &n, e));
    r->mscale = 1;

    const float *freqs, *brief, *lengthy;
    HT_TRY(factors(in, "rope_freqs.weight", r->dims, &freqs, e));
    HT_TRY(factors(in, "rope_factors_short.weight", r->dims, &brief, e));
    HT_TRY(factors(in, "rope_factors_long.weight", r->dims, &lengthy, e));
    if (brief && lengthy) return gguf_longrope(in, s, (double)base, brief, lengthy, r, e);
    if (type && n == 4 && !memcmp(type, "yarn", 4))
        return gguf_yarn(in, s, (double)base, factor, r, e);
    bool none = type && n == 4 && !memcmp(type, "none", 4);
    if (type && !none && !(n == 6 && !memcmp(type, "linear", 6)))
        return HT_FAIL(
            e, HT_EUNSUPPORTED,
            "rope scaling type \"%.*s\" is not supported (linear, yarn, and factor tensors "
            "are)",
            (int)(n < 40 ? n : 40), type);
    if (!freqs && !none && factor != 1.0F) /* a factor without a type means linear */
        return linear(in, (double)base, (double)factor, r, e);
    return divided(in, (double)base, r->dims, freqs, &r->inv_freq, e);
}

/* ---- config.json ----------------------------------------------------------------------------- */

static int json_factors(const model__in *in, const ht_json *sc, const char *key, uint32_t dims,
                        const float **out, ht_err *e)
{
    const ht_json *a = ht_json_get(sc, key);
    if (!a || a->type != HT_JARR || a->n != dims / 2)
        return HT_FAIL(e, HT_EFORMAT, "config.json: rope scaling needs %s with %u numbers", key,
                       dims / 2);
    float *f = new_freqs(in, dims, e);
    if (!f) return HT_ENOMEM;
    for (uint32_t i = 0; i < dims / 2; i++) {
        if (a->at[i].type != HT_JINT && a->at[i].type != HT_JREAL)
            return HT_FAIL(e, HT_EFORMAT, "config.json: %s[%u] is not a number", key, i);
        f[i] = (float)a->at[i].d;
    }
    *out = f;
    return 0;
}

static int hf_longrope(const model__in *in, const ht_json *sc, double base, double orig, ht_spec *s,
                       ht_rope *r, ht_err *e)
{
    const float *brief, *lengthy;
    double attn, factor = s->ctx_train / orig;
    HT_TRY(json_factors(in, sc, "short_factor", r->dims, &brief, e));
    HT_TRY(json_factors(in, sc, "long_factor", r->dims, &lengthy, e));
    double def = factor > 1 ? sqrt(1 + log(factor) / log(orig)) : 1;
    HT_TRY(ht_json_f64(sc, "attention_factor", def, &attn, e));
    r->mscale = (float)attn;
    s->rope_orig_ctx = (uint32_t)orig;
    return longrope(in, base, brief, lengthy, r, e);
}

static int hf_yarn(const model__in *in, const ht_json *sc, double base, scaling *y, ht_rope *r,
                   ht_err *e)
{
    double m, m_all;
    HT_TRY(ht_json_f64(sc, "beta_fast", 32, &y->beta_fast, e));
    HT_TRY(ht_json_f64(sc, "beta_slow", 1, &y->beta_slow, e));
    HT_TRY(ht_json_f64(sc, "mscale", 0, &m, e));
    HT_TRY(ht_json_f64(sc, "mscale_all_dim", 0, &m_all, e));
    HT_TRY(ht_json_bool(sc, "truncate", true, &y->truncate, e));
    double l = y->factor > 1 ? 0.1 * log(y->factor) : 0;
    double def = m != 0 && m_all != 0 ? (l * m + 1) / (l * m_all + 1) : l + 1;
    HT_TRY(ht_json_f64(sc, "attention_factor", def, &y->attn_factor, e));
    return yarn(in, base, y, r, e);
}

/* The object with the scaling: rope_scaling, or rope_parameters (which may differ by kind of
 * layer). NULL: none. */
static const ht_json *scaling_of(const model__in *in, const char *kind)
{
    const ht_json *sc = ht_json_get(in->cfg, "rope_scaling");
    if (!sc || sc->type != HT_JOBJ) sc = ht_json_get(in->cfg, "rope_parameters");
    const ht_json *by_kind = kind ? ht_json_get(sc, kind) : NULL;
    return by_kind && by_kind->type == HT_JOBJ ? by_kind : sc;
}

int model__hf_rope(const model__in *in, const char *kind, double theta, ht_spec *s, ht_rope *r,
                   ht_err *e)
{
    const ht_json *sc = scaling_of(in, kind);
    const char *type;
    double base, partial, orig;
    scaling k = {.low = 1, .high = 4};
    HT_TRY(ht_json_f64(in->cfg, "partial_rotary_factor", 1, &partial, e));
    HT_TRY(ht_json_f64(in->cfg, "rope_theta", theta, &base, e));
    HT_TRY(ht_json_f64(sc, "rope_theta", base, &base, e));
    HT_TRY(ht_json_f64(sc, "partial_rotary_factor", partial, &partial, e));
    if (!(partial > 0 && partial <= 1))
        return HT_FAIL(e, HT_EFORMAT, "config.json: partial_rotary_factor %g: need (0, 1]",
                       partial);
    r->dims = (uint32_t)(s->head_dim * partial);
    HT_TRY(ht_json_str(sc, "type", "default", &type, e));
    HT_TRY(ht_json_str(sc, "rope_type", type, &type, e));
    if (!strcmp(type, "default")) return model__plain_rope(in, base, r, e);

    r->mscale = 1;
    HT_TRY(ht_json_f64(sc, "factor", 1, &k.factor, e));
    HT_TRY(ht_json_f64(in->cfg, "original_max_position_embeddings", s->ctx_train, &orig, e));
    HT_TRY(ht_json_f64(sc, "original_max_position_embeddings", orig, &orig, e));
    if (!(orig >= 1 && orig <= UINT32_MAX))
        return HT_FAIL(e, HT_EFORMAT, "config.json: original_max_position_embeddings %g", orig);
    k.orig = orig;
    if (!strcmp(type, "linear")) return linear(in, base, k.factor, r, e);
    if (!strcmp(type, "yarn")) return hf_yarn(in, sc, base, &k, r, e);
    if (!strcmp(type, "longrope") || !strcmp(type, "su"))
        return hf_longrope(in, sc, base, orig, s, r, e);
    if (!strcmp(type, "llama3")) {
        HT_TRY(ht_json_f64(sc, "low_freq_factor", 1, &k.low, e));
        HT_TRY(ht_json_f64(sc, "high_freq_factor", 4, &k.high, e));
        return llama3(in, base, &k, r, e);
    }
    return HT_FAIL(
        e, HT_EUNSUPPORTED,
        "config.json: rope type \"%.40s\" is not supported (linear, llama3, yarn, longrope "
        "are)",
        type);
}
