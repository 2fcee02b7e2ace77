/* verify.c - checking a bundle from the outside in: envelope, manifests, inputs, recomputation. */
#include "evid/verify.h"
#include "evid/bundle_read.h"
#include <string.h>

static const ht_field digest_fields[] = {{.key = "sha256", .type = HT_S_SHA256}, {0}};
static const ht_field subject_fields[] = {
    {.key = "digest", .type = HT_S_OBJ, .sub = digest_fields},
    {.key = "name", .type = HT_S_STR},
    {0},
};
static const ht_field statement_fields[] = {
    {.key = "_type", .type = HT_S_STR},
    {.key = "predicate", .type = HT_S_OBJ},
    {.key = "predicateType", .type = HT_S_STR},
    {.key = "subject", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = subject_fields},
    {0},
};

int ht_statement_open(ht_arena *a, const char *text, size_t n, const ht_trust *t, enum ht_role role,
                      const char *predicate_type, int64_t now_unix, ht_dsse *env,
                      const ht_json **statement, ht_err *e)
{
    ht_json *j;
    HT_TRY(ht_dsse_parse(a, text, n, env, e));
    HT_TRY(ht_trust_check(t, env, role, HT_PAYLOAD_TYPE, now_unix, e));
    HT_TRY(ht_json_parse(a, (const char *)env->payload, env->n, HT_JSON_CANON, "statement", &j, e));
    HT_TRY(ht_schema_check(j, statement_fields, NULL, "statement", e));
    const char *type = ht_json_get(j, "predicateType")->s;
    if (strcmp(ht_json_get(j, "_type")->s, HT_INTOTO_TYPE) != 0 ||
        strcmp(type, predicate_type) != 0)
        return HT_FAIL(e, HT_EGATE, "UNKNOWN_TYPE: the statement is of type %.60s, need %s", type,
                       predicate_type);
    *statement = j;
    return 0;
}

int evid__read_manifests(ht_arena *a, const char *dir, ht_manifest *in, ht_manifest *out, ht_err *e)
{
    static const char *const also[] = {"inputs.manifest.json", "outputs.manifest.json",
                                       "statement.dsse.json", NULL};
    const char *text, *inputs = NULL;
    uint64_t n;
    HT_TRY(ht_read_under(a, dir, "inputs.manifest.json", HT_BUNDLE_MAX, &text, &n, e));
    HT_TRY(ht_manifest_read(a, dir, text, n, "hetero/inputs/1", NULL, HT_BUNDLE_MAX, in, e));
    HT_TRY(ht_read_under(a, dir, "outputs.manifest.json", HT_BUNDLE_MAX, &text, &n, e));
    HT_TRY(ht_manifest_read(a, dir, text, n, "hetero/outputs/1", &inputs, HT_BUNDLE_MAX, out, e));
    if (strcmp(inputs, in->sha256) != 0)
        return HT_FAIL(e, HT_EFORMAT, "MANIFEST: outputs.manifest.json is for other inputs");
    const ht_manifest *const both[] = {in, out};
    return ht_manifest_closed(dir, both, 2, also, e);
}

int evid__same_output(const ht_mfile *f, const ht_buf *b, ht_err *e)
{
    if (b->n != f->bytes || memcmp(b->p, f->data, b->n) != 0)
        return HT_FAIL(e, HT_EFORMAT, "RECOMPUTED: %s is not what the inputs and the policy give",
                       f->path);
    if (strcmp(f->role, "output") != 0)
        return HT_FAIL(e, HT_EFORMAT, "MANIFEST: %s has role %.30s", f->path, f->role);
    return 0;
}

/* Outputs: exactly the known ones, each equal to what the inputs give. */
static int recompute(ht_verified *v, ht_buf *b, ht_err *e)
{
    size_t n = 0;
    for (; ht_bundle_outputs[n]; n++) {
        const ht_mfile *f = ht_manifest_find(&v->out, ht_bundle_outputs[n]);
        if (!f) return HT_FAIL(e, HT_EFORMAT, "MANIFEST: %s is missing", ht_bundle_outputs[n]);
        ht_buf_clear(b);
        HT_TRY(ht_analysis_write(&v->evidence, &v->analysis, n, b, e));
        HT_TRY(evid__same_output(f, b, e));
    }
    if (v->out.n != n)
        return HT_FAIL(e, HT_EFORMAT, "MANIFEST: outputs.manifest.json lists a file that is none");
    return 0;
}

int evid__check_statement(ht_arena *a, const char *dir, const ht_trust *t,
                          const char *predicate_type, int64_t now_unix, const ht_buf *payload,
                          char statement_sha[HT_SHA256_HEX], char bench_key[HT_SHA256_HEX],
                          ht_err *e)
{
    const char *text;
    const ht_json *statement;
    uint64_t n;
    ht_dsse env;
    HT_TRY(ht_read_under(a, dir, "statement.dsse.json", 16 << 20, &text, &n, e));
    HT_TRY(ht_statement_open(a, text, n, t, HT_ROLE_BENCH, predicate_type, now_unix, &env,
                             &statement, e));
    if (payload->n != env.n || memcmp(payload->p, env.payload, env.n) != 0)
        return HT_FAIL(e, HT_EFORMAT,
                       "RECOMPUTED: the signed statement is not about this bundle, or claims more "
                       "than its inputs give (hardwareEvidence, productionEligible)");
    for (size_t i = 0; i < t->n_keys && !bench_key[0]; i++)
        for (size_t k = 0; k < env.n_sigs; k++) {
            bool good = false;
            if (!(t->key[i].roles >> HT_ROLE_BENCH & 1)) continue;
            HT_TRY(ht_dsse_good(&env, &env.sig[k], t->key[i].pub, &good, e));
            if (good) memcpy(bench_key, t->key[i].id, HT_SHA256_HEX);
        }
    return evid__sha256_of(env.payload, env.n, statement_sha, e);
}

/* The statement must be what this bundle gives. */
static int check_statement(ht_arena *a, const char *dir, const ht_trust *t, int64_t now,
                           ht_verified *v, ht_buf *b, ht_err *e)
{
    ht_buf_clear(b);
    HT_TRY(ht_bundle_statement(&v->evidence, &v->analysis, v->out.sha256, b, e));
    return evid__check_statement(a, dir, t, HT_PRED_EVIDENCE, now, b, v->statement_sha,
                                 v->bench_key, e);
}

int ht_bundle_verify(ht_arena *a, const char *dir, const ht_trust *t, int64_t now, ht_verified *v,
                     ht_err *e)
{
    ht_buf b;
    *v = (ht_verified){0};
    HT_TRY(evid__read_manifests(a, dir, &v->in, &v->out, e));
    memcpy(v->id, v->in.sha256, sizeof v->id);
    HT_TRY(ht_evidence_read(a, &v->in, &v->evidence, e));
    HT_TRY(ht_analyze(a, &v->evidence, &v->analysis, e));
    ht_buf_init(&b, 0);
    int rc = recompute(v, &b, e);
    if (rc == 0) rc = check_statement(a, dir, t, now, v, &b, e);
    ht_buf_done(&b);
    return rc;
}
