/* promote.c - promotions: a bundle verified on this machine, signed by two keys. The statement
 * is shaped on SLSA's verification summary: who verified what, when, by which policy, from
 * which inputs. */
#include "evid/sched.h"
#include "route/files.h"
#include <string.h>

static const ht_field scope_entry_fields[] = {
    {.key = "scope", .type = HT_S_OBJ},
    {.key = "scopeSha256", .type = HT_S_SHA256},
    {0},
};
static const ht_field verifier_fields[] = {
    {.key = "id", .type = HT_S_STR},
    {0},
};
static const ht_field promotion_fields[] = {
    {.key = "bundleId", .type = HT_S_SHA256},
    {.key = "costmapSha256", .type = HT_S_SHA256},
    {.key = "entries", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = scope_entry_fields},
    {.key = "fixture", .type = HT_S_BOOL},
    {.key = "measuredUtc", .type = HT_S_UTC},
    {.key = "policySha256", .type = HT_S_SHA256},
    {.key = "stateSha256", .type = HT_S_SHA256},
    {.key = "statementSha256", .type = HT_S_SHA256},
    {.key = "timeVerified", .type = HT_S_UTC},
    {.key = "verificationResult", .type = HT_S_STR},
    {.key = "verifier", .type = HT_S_OBJ, .sub = verifier_fields},
    {0},
};

int route__promotion_check(const ht_json *predicate, ht_err *e)
{
    HT_TRY(ht_schema_check(predicate, promotion_fields, "hetero/promotion/1", "promotion", e));
    if (strcmp(ht_json_get(predicate, "verificationResult")->s, "PASSED") == 0) return 0;
    return HT_FAIL(e, HT_EGATE, "promotion: verificationResult is not PASSED");
}

/* A verified bundle as far as a promotion is concerned: of routes, or of a scheduler. */
typedef struct {
    const char *text, *sha; /* the scope's canonical bytes and their digest */
    uint8_t cls;            /* enum ht_class */
} claimed;
typedef struct {
    const char *id, *statement_sha, *state_sha;
    const char *costs, *costs_sha; /* the file that holds the figures: its path and digest */
    const ht_policy *policy;
    int64_t measured_unix;
    bool eligible;
    uint8_t cls; /* of the whole */
    claimed *cell;
    size_t n, n_qualified;
} claim;

static int claim_routes(const ht_store *s, const ht_verified *v, claim *x, ht_err *e)
{
    const ht_evidence *y = &v->evidence;
    *x = (claim){
        .id = v->id,
        .statement_sha = v->statement_sha,
        .state_sha = y->state_sha,
        .costs = "costmap.json",
        .costs_sha = ht_manifest_find(&v->out, "costmap.json")->sha256,
        .policy = &y->policy,
        .measured_unix = y->design.started_unix,
        .eligible = v->analysis.production_eligible,
        .cls = v->analysis.cls,
    };
    x->cell = ht_arena_array(s->a, y->design.n_cells, sizeof *x->cell);
    if (!x->cell) return HT_FAIL(e, HT_ENOMEM, "promotion: no memory");
    for (size_t i = 0; i < y->design.n_cells; i++) {
        ht_buf b;
        if (y->design.cell[i].scope.phase == HT_COMPLETE) continue; /* judged, and no route */
        ht_buf_init(&b, 1 << 16);
        const int rc = ht_scope_write(&y->design.cell[i].scope, &b, e);
        const char *text = rc ? NULL : ht_arena_strndup(s->a, b.p, b.n);
        ht_buf_done(&b);
        if (!text) return rc ? rc : HT_FAIL(e, HT_ENOMEM, "promotion: no memory");
        x->cell[x->n++] = (claimed){text, y->design.cell[i].scope_sha, v->analysis.cell[i].cls};
        x->n_qualified += v->analysis.cell[i].cls == HT_QUALIFIED;
    }
    return 0;
}

static int claim_schedule(const ht_store *s, const ht_scheduled *v, claim *x, ht_err *e)
{
    *x = (claim){.id = v->id,
                 .statement_sha = v->statement_sha,
                 .state_sha = v->evidence.state_sha,
                 .costs = HT_SCHED_ANALYSIS,
                 .costs_sha = v->analysis_sha,
                 .policy = &v->evidence.policy,
                 .measured_unix = v->evidence.started_unix,
                 .eligible = v->verdict.production_eligible,
                 .cls = v->verdict.cls,
                 .n = 1,
                 .n_qualified = v->verdict.cls == HT_QUALIFIED};
    x->cell = ht_arena_array(s->a, 1, sizeof *x->cell);
    if (!x->cell) return HT_FAIL(e, HT_ENOMEM, "promotion: no memory");
    x->cell[0] = (claimed){v->evidence.scope_text, v->evidence.scope_sha, v->verdict.cls};
    return 0;
}

static int write_payload(const ht_store *s, const claim *v, ht_buf *out, ht_err *e)
{
    char measured[21], now[21];
    ht_jw w;
    ht_utc_format(v->measured_unix, measured);
    ht_utc_format(s->now_unix, now);
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "_type", HT_INTOTO_TYPE);
    ht_jw_key(&w, "predicate");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "bundleId", v->id);
    ht_jw_kstr(&w, "costmapSha256", v->costs_sha);
    ht_jw_key(&w, "entries");
    ht_jw_arr(&w);
    for (size_t i = 0; i < v->n; i++) {
        if (v->cell[i].cls != HT_QUALIFIED) continue;
        ht_jw_obj(&w);
        ht_jw_key(&w, "scope");
        ht_jw_raw(&w, v->cell[i].text, strlen(v->cell[i].text));
        ht_jw_kstr(&w, "scopeSha256", v->cell[i].sha);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    ht_jw_kbool(&w, "fixture", !v->eligible);
    ht_jw_kstr(&w, "measuredUtc", measured);
    ht_jw_kstr(&w, "policySha256", s->policy.sha256);
    ht_jw_kstr(&w, "schema", "hetero/promotion/1");
    ht_jw_kstr(&w, "stateSha256", v->state_sha);
    ht_jw_kstr(&w, "statementSha256", v->statement_sha);
    ht_jw_kstr(&w, "timeVerified", now);
    ht_jw_kstr(&w, "verificationResult", "PASSED");
    ht_jw_key(&w, "verifier");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "id", "urn:hetero:verifier:1");
    ht_jw_end(&w, '}');
    ht_jw_end(&w, '}');
    ht_jw_kstr(&w, "predicateType", HT_PRED_PROMOTION);
    ht_jw_key(&w, "subject");
    ht_jw_arr(&w);
    ht_jw_obj(&w);
    ht_jw_key(&w, "digest");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "sha256", v->id);
    ht_jw_end(&w, '}');
    ht_jw_kstr(&w, "name", "bundle");
    ht_jw_end(&w, '}');
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "promotion", e);
}

/* Why this bundle may not be promoted here, though it verifies. */
static int admissible(const ht_store *s, const claim *v, ht_err *e)
{
    if (strcmp(v->policy->sha256, s->policy.sha256) != 0)
        return HT_FAIL(
            e, HT_EGATE,
            "OTHER_POLICY: the bundle was judged by policy %s, the one in force is %s; a "
            "bundle is not judged again",
            v->policy->id, s->policy.id);
    if (v->n_qualified == 0)
        return HT_FAIL(e, HT_EGATE, "NOT_QUALIFIED: the verdict is %s", ht_class_names[v->cls]);
    if (!v->eligible && !s->policy.fixture)
        return HT_FAIL(e, HT_EGATE,
                       "NOT_PRODUCTION: the bundle is synthetic, or its build was dirty");
    if (ht_index_tomb(&s->index, v->id))
        return HT_FAIL(e, HT_EGATE, "TOMBSTONED: the bundle was revoked: %.100s",
                       ht_index_tomb(&s->index, v->id)->reason);
    return 0;
}

/* Is the payload that was signed before about this bundle, judged as now? */
static bool same_promotion(const ht_store *s, const claim *v, const ht_json *p)
{
    return strcmp(ht_json_get(p, "bundleId")->s, v->id) == 0 &&
           strcmp(ht_json_get(p, "policySha256")->s, s->policy.sha256) == 0 &&
           strcmp(ht_json_get(p, "costmapSha256")->s, v->costs_sha) == 0 &&
           strcmp(ht_json_get(p, "statementSha256")->s, v->statement_sha) == 0;
}

/* Sign the pending payload, or a new one, and append to the signatures that are there. */
static int sign(ht_store *s, const claim *v, const char *path, const ht_key *const *keys, size_t n,
                ht_buf *env, ht_err *e)
{
    ht_buf body;
    const char *old = NULL;
    uint64_t n_old = 0;
    int rc = 0;
    ht_buf_init(&body, HT_STORE_FILE);
    if (route__exists(s->dir, path)) {
        ht_dsse d;
        ht_json *j;
        rc = ht_read_under(s->a, s->dir, path, HT_STORE_FILE, &old, &n_old, e);
        if (rc == 0) rc = ht_dsse_parse(s->a, old, n_old, &d, e);
        if (rc == 0)
            rc = ht_json_parse(s->a, (const char *)d.payload, d.n, HT_JSON_CANON, path, &j, e);
        if (rc == 0) rc = route__promotion_check(ht_json_get(j, "predicate"), e);
        if (rc == 0 && !same_promotion(s, v, ht_json_get(j, "predicate"))) old = NULL;
        else if (rc == 0) ht_buf_add(&body, d.payload, d.n);
    }
    if (rc == 0 && !old) rc = write_payload(s, v, &body, e);
    if (rc == 0) rc = ht_dsse_sign(body.p, body.n, HT_PAYLOAD_TYPE, keys, n, env, e);
    if (rc == 0 && old) { /* {..."signatures":[OLD]} + {..."signatures":[NEW]} -> [OLD,NEW] */
        static const char mark[] = "\"signatures\":[";
        const char *added = strstr(env->p, mark) + sizeof mark - 1;
        char *text = ht_arena_printf(s->a, "%.*s,%s", (int)(n_old - 2), old, added);
        if (!text) rc = HT_FAIL(e, HT_ENOMEM, "promotion: no memory");
        ht_buf_clear(env);
        if (text) ht_buf_str(env, text);
    }
    if (rc == 0) rc = ht_buf_ok(env, "promotion", e);
    ht_buf_done(&body);
    return rc;
}

static int keep_files(const ht_store *s, const claim *v, const char *bundle_dir, ht_err *e)
{
    const char *const name[] = {"statement.dsse.json", v->costs};
    for (int i = 0; i < 2; i++) {
        const char *slash = strrchr(name[i], '/'), *text;
        const char *to = ht_arena_printf(s->a, "bundles/%s/%s", v->id, slash ? slash + 1 : name[i]);
        uint64_t n;
        if (!to) return HT_FAIL(e, HT_ENOMEM, "promotion: no memory");
        HT_TRY(ht_read_under(s->a, bundle_dir, name[i], HT_STORE_FILE, &text, &n, e));
        HT_TRY(route__put(s->dir, to, text, n, e));
    }
    return 0;
}

/* ---- negatives ------------------------------------------------------------------------------- */

/* A gate failed: terminal for these hashes (evidence.md 7.11). What was merely inconclusive, or not
 * admissible on that day, may be measured again. */
static bool is_negative(const claim *v, size_t i)
{
    const int cls = v->cell[i].cls;
    return cls == HT_FAIL_PERF || cls == HT_FAIL_QUALITY || cls == HT_FAIL_TAIL;
}

static int write_negatives(const claim *v, ht_buf *out, ht_err *e)
{
    ht_jw w;
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "bundleId", v->id);
    ht_jw_kstr(&w, "costmapSha256", v->costs_sha);
    ht_jw_key(&w, "entries");
    ht_jw_arr(&w);
    for (size_t i = 0; i < v->n; i++) {
        if (!is_negative(v, i)) continue;
        ht_jw_obj(&w);
        ht_jw_key(&w, "scope");
        ht_jw_raw(&w, v->cell[i].text, strlen(v->cell[i].text));
        ht_jw_kstr(&w, "scopeSha256", v->cell[i].sha);
        ht_jw_kstr(&w, "verdict", ht_class_names[v->cell[i].cls]);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    ht_jw_kstr(&w, "schema", "hetero/negative/1");
    ht_jw_kstr(&w, "statementSha256", v->statement_sha);
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "negatives", e);
}

/* Entries for the cells that failed behind the first *n of add, and their paper in the store. */
static int add_negatives(ht_store *s, const claim *v, ht_index_entry *add, size_t *n, ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    char sha[HT_SHA256_HEX];
    size_t failed = 0;
    ht_buf b;
    for (size_t i = 0; i < v->n; i++) failed += is_negative(v, i);
    if (!failed) return 0;
    const char *path = ht_arena_printf(s->a, "bundles/%s/negative.json", v->id);
    if (!path) return HT_FAIL(e, HT_ENOMEM, "negatives: no memory");
    ht_buf_init(&b, HT_STORE_FILE);
    int rc = write_negatives(v, &b, e);
    if (rc == 0) rc = ht_sha256_of(b.p, b.n, digest, e);
    if (rc == 0) rc = route__put(s->dir, path, b.p, b.n, e);
    ht_buf_done(&b);
    if (rc) return rc;
    ht_hex(digest, sizeof digest, sha);
    for (size_t i = 0; i < v->n; i++) {
        if (!is_negative(v, i)) continue;
        ht_index_entry *t = &add[(*n)++];
        *t = (ht_index_entry){.state = HT_ST_NEGATIVE};
        memcpy(t->scope_sha, v->cell[i].sha, HT_SHA256_HEX);
        memcpy(t->bundle_id, v->id, HT_SHA256_HEX);
        memcpy(t->costmap_sha, v->costs_sha, HT_SHA256_HEX);
        memcpy(t->promotion_sha, sha, HT_SHA256_HEX);
    }
    return 0;
}

/* Nothing qualified: what failed goes into the index, by a key with the role index alone. */
static int record_failures(ht_store *s, const claim *v, const char *bundle_dir,
                           const ht_key *const *keys, size_t n_keys, ht_err *e)
{
    ht_index_entry *add = ht_arena_array(s->a, v->n, sizeof *add);
    size_t n = 0, n_index;
    if (!add || !route__with_role(s, HT_ROLE_INDEX, keys, n_keys, &n_index))
        return HT_FAIL(e, HT_ENOMEM, "negatives: no memory");
    if (n_index == 0) return 0;
    HT_TRY(add_negatives(s, v, add, &n, e));
    if (n == 0) return 0;
    HT_TRY(keep_files(s, v, bundle_dir, e));
    return route__admit(s, add, n, keys, n_keys, e);
}

static int admit(ht_store *s, const claim *v, const ht_dsse *d, const ht_key *const *keys,
                 size_t n_keys, ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    ht_index_entry *add = ht_arena_array(s->a, v->n, sizeof *add);
    size_t n = 0;
    if (!add) return HT_FAIL(e, HT_ENOMEM, "promotion: no memory");
    HT_TRY(ht_sha256_of(d->payload, d->n, digest, e));
    for (size_t i = 0; i < v->n; i++) {
        if (v->cell[i].cls != HT_QUALIFIED) continue;
        ht_index_entry *t = &add[n++];
        t->state = HT_ST_PROMOTED;
        memcpy(t->scope_sha, v->cell[i].sha, HT_SHA256_HEX);
        memcpy(t->bundle_id, v->id, HT_SHA256_HEX);
        memcpy(t->costmap_sha, v->costs_sha, HT_SHA256_HEX);
        ht_hex(digest, sizeof digest, t->promotion_sha);
    }
    HT_TRY(add_negatives(s, v, add, &n, e));
    return route__admit(s, add, n, keys, n_keys, e);
}

/* The bundle in dir verified here and now. */
static int verify(ht_store *s, const char *dir, claim *x, ht_err *e)
{
    ht_scheduled *sched = ht_arena_alloc(s->a, sizeof *sched);
    ht_verified *v = ht_arena_alloc(s->a, sizeof *v);
    if (!sched || !v) return HT_FAIL(e, HT_ENOMEM, "promotion: no memory");
    if (ht_is_schedule(dir)) {
        HT_TRY(ht_schedule_verify(s->a, dir, &s->trust, s->now_unix, sched, e));
        return claim_schedule(s, sched, x, e);
    }
    HT_TRY(ht_bundle_verify(s->a, dir, &s->trust, s->now_unix, v, e));
    return claim_routes(s, v, x, e);
}

int ht_store_promote(ht_store *s, const char *bundle_dir, const ht_key *const *keys, size_t n_keys,
                     char id[HT_SHA256_HEX], ht_err *e)
{
    claim v;
    ht_dsse d;
    ht_buf env;
    size_t n;
    HT_TRY(verify(s, bundle_dir, &v, e));
    memcpy(id, v.id, HT_SHA256_HEX);
    if (v.n_qualified == 0 && strcmp(v.policy->sha256, s->policy.sha256) == 0)
        HT_TRY(record_failures(s, &v, bundle_dir, keys, n_keys, e));
    HT_TRY(admissible(s, &v, e));
    const ht_key **signer = route__with_role(s, HT_ROLE_PROMOTE, keys, n_keys, &n);
    const char *path = ht_arena_printf(s->a, "bundles/%s/promotion.dsse.json", v.id);
    if (!signer || !path) return HT_FAIL(e, HT_ENOMEM, "promotion: no memory");
    if (n == 0) return HT_FAIL(e, HT_EGATE, "BAD_SIGNATURE: none of the keys has the role promote");
    ht_buf_init(&env, HT_STORE_FILE);
    int rc = sign(s, &v, path, signer, n, &env, e);
    if (rc == 0) rc = keep_files(s, &v, bundle_dir, e);
    if (rc == 0) rc = route__put(s->dir, path, env.p, env.n, e);
    if (rc == 0) rc = ht_dsse_parse(s->a, env.p, env.n, &d, e);
    ht_buf_done(&env);
    if (rc) return rc;
    ht_err why = {0};
    if (ht_trust_check(&s->trust, &d, HT_ROLE_PROMOTE, HT_PAYLOAD_TYPE, s->now_unix, &why))
        return HT_FAIL(
            e, HT_EGATE,
            "PENDING_SIGNATURE: signed, but %.80s; the holder of another key runs the same "
            "command",
            why.msg);
    return admit(s, &v, &d, keys, n_keys, e);
}
