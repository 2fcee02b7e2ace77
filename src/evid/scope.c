/* scope.c - scopes and their canonical bytes; see scope.h. */
#include "evid/scope.h"
#include "evid/schema.h"
#include <string.h>

static const char *const phase_names[] = {"prefill", "decode", "complete", NULL};
static const char *const sampler_names[] = {"greedy", "sampled", NULL};
static const ht_field bucket_fields[] = {
    {.key = "maxNew", .type = HT_S_INT, .lo = 0, .hi = UINT32_MAX},
    {.key = "maxTokens", .type = HT_S_INT, .lo = 1, .hi = UINT32_MAX},
    {.key = "minTokens", .type = HT_S_INT, .lo = 1, .hi = UINT32_MAX},
    {0},
};
static const ht_field batch_fields[] = {
    {.key = "max", .type = HT_S_INT, .lo = 1, .hi = UINT32_MAX},
    {.key = "min", .type = HT_S_INT, .lo = 1, .hi = UINT32_MAX},
    {0},
};
static const ht_field precision_fields[] = {
    {.key = "acc", .type = HT_S_STR},
    {.key = "act", .type = HT_S_STR},
    {.key = "kv", .type = HT_S_STR},
    {.key = "weights", .type = HT_S_STR},
    {0},
};
static const ht_field scope_fields[] = {
    {.key = "assetsSha256", .type = HT_S_SHA256},
    {.key = "backend", .type = HT_S_STR},
    {.key = "batch", .type = HT_S_OBJ, .sub = batch_fields},
    {.key = "binarySha256", .type = HT_S_SHA256},
    {.key = "bucket", .type = HT_S_OBJ, .sub = bucket_fields},
    {.key = "ctxMax", .type = HT_S_INT, .lo = 1, .hi = UINT32_MAX},
    {.key = "instance", .type = HT_S_STR},
    {.key = "machineClassSha256", .type = HT_S_SHA256},
    {.key = "modelPackSha256", .type = HT_S_SHA256},
    {.key = "os", .type = HT_S_STR},
    {.key = "phase", .type = HT_S_ENUM, .names = phase_names},
    {.key = "precision", .type = HT_S_OBJ, .sub = precision_fields},
    {.key = "sampler", .type = HT_S_ENUM, .names = sampler_names},
    {.key = "spec", .type = HT_S_STR},
    {.key = "templateSha256", .type = HT_S_SHA256},
    {.key = "tokenizerSha256", .type = HT_S_SHA256},
    {0},
};

const char *ht_phase_name(int phase)
{
    return phase >= 0 && phase <= HT_COMPLETE ? phase_names[phase] : "?";
}

/* The texts of a scope, in the order in which ht_scope_differs() reports them. */
enum { N_TEXTS = 15 };
static void texts(const ht_scope *s, const char *out[N_TEXTS])
{
    const char *const all[N_TEXTS] = {s->model_sha, s->tok_sha,  s->tmpl_sha,   s->weights,
                                      s->act,       s->acc,      s->kv,         s->sampler,
                                      s->spec,      s->backend,  s->binary_sha, s->assets_sha,
                                      s->class_sha, s->instance, s->os};
    memcpy(out, all, sizeof all);
}

const char *ht_scope_differs(const ht_scope *a, const ht_scope *b)
{
    static const char *const member[N_TEXTS] = {"model",     "tokenizer", "template",  "precision",
                                                "precision", "precision", "precision", "sampler",
                                                "spec",      "backend",   "binary",    "assets",
                                                "machine",   "instance",  "os"};
    const char *x[N_TEXTS], *y[N_TEXTS];
    texts(a, x);
    texts(b, y);
    for (int i = 0; i < N_TEXTS; i++)
        if (!x[i] || !y[i] || strcmp(x[i], y[i]) != 0) return member[i];
    return NULL;
}

int ht_scope_write(const ht_scope *s, ht_buf *out, ht_err *e)
{
    const char *t[N_TEXTS];
    texts(s, t);
    for (int i = 0; i < N_TEXTS; i++)
        if (!t[i]) return HT_FAIL(e, HT_EARG, "scope: text %d of %d is not set", i + 1, N_TEXTS);
    if (s->min_tokens == 0 || s->min_tokens > s->max_tokens || s->batch_min > s->batch_max)
        return HT_FAIL(e, HT_EARG, "scope: bucket %u-%u or batch %u-%u is not an interval",
                       s->min_tokens, s->max_tokens, s->batch_min, s->batch_max);
    ht_jw w;
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "assetsSha256", s->assets_sha);
    ht_jw_kstr(&w, "backend", s->backend);
    ht_jw_key(&w, "batch");
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "max", s->batch_max);
    ht_jw_kuint(&w, "min", s->batch_min);
    ht_jw_end(&w, '}');
    ht_jw_kstr(&w, "binarySha256", s->binary_sha);
    ht_jw_key(&w, "bucket");
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "maxNew", s->max_new);
    ht_jw_kuint(&w, "maxTokens", s->max_tokens);
    ht_jw_kuint(&w, "minTokens", s->min_tokens);
    ht_jw_end(&w, '}');
    ht_jw_kuint(&w, "ctxMax", s->ctx_max);
    ht_jw_kstr(&w, "instance", s->instance);
    ht_jw_kstr(&w, "machineClassSha256", s->class_sha);
    ht_jw_kstr(&w, "modelPackSha256", s->model_sha);
    ht_jw_kstr(&w, "os", s->os);
    ht_jw_kstr(&w, "phase", ht_phase_name(s->phase));
    ht_jw_key(&w, "precision");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "acc", s->acc);
    ht_jw_kstr(&w, "act", s->act);
    ht_jw_kstr(&w, "kv", s->kv);
    ht_jw_kstr(&w, "weights", s->weights);
    ht_jw_end(&w, '}');
    ht_jw_kstr(&w, "sampler", s->sampler);
    ht_jw_kstr(&w, "schema", "hetero/scope/1");
    ht_jw_kstr(&w, "spec", s->spec);
    ht_jw_kstr(&w, "templateSha256", s->tmpl_sha);
    ht_jw_kstr(&w, "tokenizerSha256", s->tok_sha);
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "scope", e);
}

int ht_scope_parse(ht_arena *a, const char *text, size_t n, ht_scope *out, ht_err *e)
{
    ht_json *j;
    HT_TRY(ht_json_parse(a, text, n, HT_JSON_CANON, "scope", &j, e));
    HT_TRY(ht_schema_check(j, scope_fields, "hetero/scope/1", "scope", e));
    const ht_json *bucket = ht_json_get(j, "bucket"), *batch = ht_json_get(j, "batch");
    const ht_json *prec = ht_json_get(j, "precision");
    uint8_t phase = 0;
    while (strcmp(phase_names[phase], ht_json_get(j, "phase")->s) != 0) phase++;
    *out = (ht_scope){
        .phase = phase,
        .min_tokens = (uint32_t)ht_json_get(bucket, "minTokens")->i,
        .max_tokens = (uint32_t)ht_json_get(bucket, "maxTokens")->i,
        .max_new = (uint32_t)ht_json_get(bucket, "maxNew")->i,
        .batch_min = (uint32_t)ht_json_get(batch, "min")->i,
        .batch_max = (uint32_t)ht_json_get(batch, "max")->i,
        .ctx_max = (uint32_t)ht_json_get(j, "ctxMax")->i,
        .acc = ht_json_get(prec, "acc")->s,
        .act = ht_json_get(prec, "act")->s,
        .kv = ht_json_get(prec, "kv")->s,
        .weights = ht_json_get(prec, "weights")->s,
        .sampler = ht_json_get(j, "sampler")->s,
        .spec = ht_json_get(j, "spec")->s,
        .backend = ht_json_get(j, "backend")->s,
        .model_sha = ht_json_get(j, "modelPackSha256")->s,
        .tok_sha = ht_json_get(j, "tokenizerSha256")->s,
        .tmpl_sha = ht_json_get(j, "templateSha256")->s,
        .binary_sha = ht_json_get(j, "binarySha256")->s,
        .assets_sha = ht_json_get(j, "assetsSha256")->s,
        .class_sha = ht_json_get(j, "machineClassSha256")->s,
        .instance = ht_json_get(j, "instance")->s,
        .os = ht_json_get(j, "os")->s,
    };
    if (out->min_tokens > out->max_tokens || out->batch_min > out->batch_max)
        return HT_FAIL(e, HT_EFORMAT, "scope: bucket %u-%u or batch %u-%u is not an interval",
                       out->min_tokens, out->max_tokens, out->batch_min, out->batch_max);
    return 0;
}

int ht_scope_sha256(const ht_scope *s, char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    ht_buf b;
    ht_buf_init(&b, 1 << 16);
    int rc = ht_scope_write(s, &b, e);
    if (rc == 0) rc = ht_sha256_of(b.p, b.n, digest, e);
    if (rc == 0) ht_hex(digest, sizeof digest, hex);
    ht_buf_done(&b);
    return rc;
}
