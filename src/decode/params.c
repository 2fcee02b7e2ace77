/* params.c - the sampling parameters: defaults, ranges, and the chain they make as text. */
#include "core/buf.h"
#include "decode/chain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void ht_sampling_init(ht_sampling *s)
{
    *s = (ht_sampling){.temp = 0.8F,
                       .top_k = 40,
                       .top_p = 0.95F,
                       .min_p = 0.05F,
                       .typical_p = 1,
                       .repeat_penalty = 1,
                       .penalty_last_n = 64,
                       .dry_base = 1.75F,
                       .dry_allowed_length = 2,
                       .dry_last_n = -1,
                       .xtc_threshold = 0.1F};
}

bool decode__uses_penalties(const ht_sampling *s)
{
    return s->penalty_last_n != 0 &&
           (s->repeat_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0);
}

bool decode__uses_dry(const ht_sampling *s)
{
    return s->dry_multiplier > 0 && s->dry_last_n != 0;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static int check_real(const char *name, double v, double low, double high, ht_err *e)
{
    if (v >= low && v <= high) return 0; /* false for NaN */
    return HT_FAIL(e, HT_EARG, "sampling: %s is %g, must be from %g to %g", name, v, low, high);
}

static int check_int(const char *name, int32_t v, int32_t low, ht_err *e)
{
    if (v >= low) return 0;
    return HT_FAIL(e, HT_EARG, "sampling: %s is %d, must be %d or more", name, v, low);
}

static int check_bias(const ht_sampling *s, ht_err *e)
{
    if (s->n_bias && !s->bias)
        return HT_FAIL(e, HT_EARG, "sampling: bias is NULL, must hold %zu entries", s->n_bias);
    for (size_t i = 0; i < s->n_bias; i++) {
        if (isnan(s->bias[i].bias) || s->bias[i].bias > 1e30F)
            return HT_FAIL(e, HT_EARG,
                           "sampling: bias of token %d is %g, must be -inf or from -1e30 to 1e30",
                           s->bias[i].id, (double)s->bias[i].bias);
    }
    return 0;
}

int decode__check(const ht_sampling *s, ht_err *e)
{
    HT_TRY(check_real("temp", s->temp, -1e6, 1e6, e));
    HT_TRY(check_int("top_k", s->top_k, -1, e));
    HT_TRY(check_real("top_p", s->top_p, 0, 1, e));
    HT_TRY(check_real("min_p", s->min_p, 0, 1, e));
    HT_TRY(check_real("typical_p", s->typical_p, 0, 1, e));
    HT_TRY(check_real("repeat_penalty", s->repeat_penalty, 1e-3, 1e3, e));
    HT_TRY(check_real("presence_penalty", s->presence_penalty, -1e3, 1e3, e));
    HT_TRY(check_real("frequency_penalty", s->frequency_penalty, -1e3, 1e3, e));
    HT_TRY(check_int("penalty_last_n", s->penalty_last_n, -1, e));
    HT_TRY(check_real("dry_multiplier", s->dry_multiplier, 0, 1e6, e));
    if (decode__uses_dry(s)) HT_TRY(check_real("dry_base", s->dry_base, 1, 1e3, e));
    HT_TRY(check_int("dry_allowed_length", s->dry_allowed_length, 0, e));
    HT_TRY(check_int("dry_last_n", s->dry_last_n, -1, e));
    HT_TRY(check_real("xtc_probability", s->xtc_probability, 0, 1, e));
    HT_TRY(check_real("xtc_threshold", s->xtc_threshold, 0, 1, e));
    return check_bias(s, e);
}

/* ---- text ------------------------------------------------------------------------------------ */

/* The shortest decimal that reads back as the same float, with a point in every locale. */
static void add_real(ht_buf *b, float v)
{
    char text[40];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) break;
    }
    for (char *c = text; *c; c++) {
        if (*c == ',') *c = '.';
    }
    ht_buf_str(b, text);
}

static void stage(ht_buf *b, const char *name)
{
    if (b->n) ht_buf_str(b, " -> ");
    ht_buf_str(b, name);
}

static void stage_real(ht_buf *b, const char *name, float v)
{
    stage(b, name);
    ht_buf_char(b, '(');
    add_real(b, v);
    ht_buf_char(b, ')');
}

static void named_real(ht_buf *b, const char *name, float v)
{
    ht_buf_fmt(b, ", %s ", name);
    add_real(b, v);
}

static void describe_penalties(ht_buf *b, const ht_sampling *s)
{
    stage(b, "penalties(");
    if (s->penalty_last_n < 0) {
        ht_buf_str(b, "all");
    } else {
        ht_buf_fmt(b, "%d", s->penalty_last_n);
    }
    if (s->repeat_penalty != 1) named_real(b, "repeat", s->repeat_penalty);
    if (s->presence_penalty != 0) named_real(b, "presence", s->presence_penalty);
    if (s->frequency_penalty != 0) named_real(b, "frequency", s->frequency_penalty);
    ht_buf_char(b, ')');
}

static void describe_dry(ht_buf *b, const ht_sampling *s)
{
    stage(b, "dry(");
    add_real(b, s->dry_multiplier);
    named_real(b, "base", s->dry_base);
    ht_buf_fmt(b, ", allowed %d, last ", s->dry_allowed_length);
    if (s->dry_last_n < 0) {
        ht_buf_str(b, "all)");
    } else {
        ht_buf_fmt(b, "%d)", s->dry_last_n);
    }
}

static void describe_truncation(ht_buf *b, const ht_sampling *s)
{
    if (s->top_k > 0) {
        stage(b, "top_k");
        ht_buf_fmt(b, "(%d)", s->top_k);
    }
    if (s->typical_p < 1) stage_real(b, "typical_p", s->typical_p);
    if (s->top_p < 1) stage_real(b, "top_p", s->top_p);
    if (s->min_p > 0) stage_real(b, "min_p", s->min_p);
    if (s->xtc_probability > 0 && s->xtc_threshold <= 0.5F) {
        stage(b, "xtc(");
        add_real(b, s->xtc_probability);
        named_real(b, "threshold", s->xtc_threshold);
        ht_buf_char(b, ')');
    }
    stage_real(b, "temp", s->temp);
    stage(b, "draw");
}

int ht_sampling_describe(const ht_sampling *s, char **text, ht_err *e)
{
    ht_buf b;
    HT_TRY(decode__check(s, e));
    ht_buf_init(&b, 4096);
    if (s->n_bias) {
        stage(&b, "logit_bias");
        ht_buf_fmt(&b, "(%zu)", s->n_bias);
    }
    if (decode__uses_penalties(s)) describe_penalties(&b, s);
    if (decode__uses_dry(s)) describe_dry(&b, s);
    if (s->temp > 0) {
        describe_truncation(&b, s);
    } else {
        stage(&b, "greedy");
    }
    int rc = ht_buf_ok(&b, "the description of the sampler chain", e);
    if (!rc) *text = ht_buf_take(&b, NULL);
    ht_buf_done(&b);
    return rc;
}
