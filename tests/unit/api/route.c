/* route.c - a promoted route is really taken: a synthetic bundle for this very binary, model
 * and machine is promoted into a store, and the receipt of a generation names its scope and
 * bundle. */
#include "../evid/fixture.h"
#include "core/clock.h"
#include "evid/env.h"
#include "route/store.h"
#include "util.h"
#include <unistd.h>

static const char *file_sha(fx *f, const char *path, size_t *n)
{
    char *text = t_slurp(path, n);
    const char *sha = fx_sha(f, text, *n);
    free(text);
    return sha;
}

/* The member of a receipt as text, in the fixture's arena. */
static const ht_json *receipt_of(fx *f, ht_session *s)
{
    char *json = NULL;
    ht_json *doc;
    ht_err e = {0};
    T_OK(ht_session_receipt(s, &json, &e), e);
    T_OK(ht_json_parse(f->a, json, strlen(json), 0, "receipt", &doc, &e), e);
    ht_free(json);
    return doc;
}

static const char *text_of(const ht_json *j, const char *key)
{
    const ht_json *v = ht_json_get(j, key);
    return v && v->type == HT_JSTR ? v->s : "";
}

static const ht_json *generate(fx *f, ht_engine *e, uint32_t n, uint32_t max_new)
{
    static int32_t ids[600];
    ht_session *s;
    ht_sampling greedy;
    ht_gen_result r = {0};
    ht_err err = {0};
    ht_sampling_init(&greedy);
    greedy.temp = 0;
    for (int i = 0; i < 600; i++) ids[i] = 10 + i % 700;
    const ht_gen_params p = {.max_new = max_new, .sampling = &greedy, .ignore_eos = 1};
    T_OK(ht_session_new(&s, e, &err), err);
    T_OK(ht_session_generate(s, ids, n, &p, &r, &err), err);
    ht_gen_result_done(&r);
    const ht_json *doc = receipt_of(f, s);
    ht_session_free(s);
    return doc;
}

/* What this machine, model and binary are, into the fixture's knobs. */
static void become(fx *f)
{
    uint8_t secret[HT_SECRET];
    static ht_gpus gpus;
    char hex[HT_SHA256_HEX];
    ht_err e = {0};
    ht_json *doc;
    ht_buf b;
    size_t n;
    ht_gpus_read(&gpus);
    const ht_machine_source here = {.root = "", .gpus = &gpus};
    T_OK(ht_machine_read(f->a, &here, &doc, &e), e);
    if (ht_machine_sha256(doc, HT_MP_REJECT, hex, &e) ||
        ht_machine_sha256(doc, HT_MP_STALE, hex, &e))
        T_SKIP("the fingerprint of this machine is incomplete: %s", e.msg);
    ht_buf_init(&b, 0);
    T_OK(ht_json_write(doc, HT_JSON_CANON, &b, &e), e);
    f->machine = fx_fmt(f, "%s", b.p);
    ht_buf_done(&b);
    f->os = fx_fmt(f, "linux-%s", ht_machine_leaf_text(f->a, ht_json_path(doc, "reject.osMajor")));
    const char *dir = fx_fmt(f, "%s/hetero", t_tmp()), *list;
    T_EQ_INT(setenv("XDG_STATE_HOME", t_tmp(), 1), 0);
    (void)!system(fx_fmt(f, "mkdir -p %s", dir));
    T_OK(ht_machine_secret(fx_fmt(f, "%s/instance.secret", dir), secret, &e), e);
    char *instance = ht_arena_alloc(f->a, HT_INSTANCE);
    if (ht_machine_instance(&here, secret, instance, &e)) T_SKIP("no instance identity: %s", e.msg);
    f->instance = instance;
    f->binary_sha = file_sha(f, "/proc/self/exe", &n);
    const char *sha = file_sha(f, TALE, &n);
    list = fx_fmt(f, "[{\"bytes\":%zu,\"path\":\"%s\",\"sha256\":\"%s\"}]", n,
                  strrchr(TALE, '/') + 1, sha);
    f->model_sha = fx_sha(f, list, strlen(list));
    char *now = ht_arena_alloc(f->a, 21);
    ht_utc_format(ht_now_unix() - 60, now);
    f->started = now;
}

T_CASE_SECONDS(route, promoted_route_is_taken, 300)
{
    fx f;
    ht_trust t;
    ht_store store;
    ht_engine *e;
    ht_err err = {0};
    char id[HT_SHA256_HEX];
    ht_key *k[3] = {fx_key(2), fx_key(3), fx_key(4)};
    const ht_key *keys[3] = {k[0], k[1], k[2]};
    fx_init(&f);
    become(&f);
    const char *dir = fx_fmt(&f, "%s/store", t_tmp()), *bundle = fx_fmt(&f, "%s/bundle", t_tmp());
    ht_engine_params p = {.model = TALE, .threads = 1, .ctx = 1024, .store = dir};
    /* Without a store: the reference, and the receipt gives the rest of the identity. */
    T_OK(ht_engine_open(&e, &p, &err), err);
    const ht_json *doc = generate(&f, e, 200, 4);
    T_EQ_STR(text_of(&ht_json_get(doc, "phases")->at[0], "decision"), "reference");
    T_EQ_STR(text_of(&ht_json_get(doc, "phases")->at[0], "reason"), "NO_EVIDENCE");
    T_EQ_INT(
        ht_json_get(&ht_json_path(&ht_json_get(doc, "phases")->at[0], "segments")->at[0], "runs")
            ->i,
        1);
    f.tok_sha = text_of(doc, "tokenizerSha256");
    const char *tmpl = ht_engine_template(e);
    f.tmpl_sha = fx_sha(&f, tmpl ? tmpl : "", tmpl ? strlen(tmpl) : 0);
    ht_engine_close(e);
    f.backend = "cpu;threads=1;ubatch=64";
    fx_build(&f);
    fx_trust(&f, &t);
    fx_seal(&f, bundle, id);
    T_OK(ht_store_init(dir, &t, fx_policy(&f), &err), err);
    T_OK(ht_store_open(f.a, dir, ht_now_unix(), &store, &err), err);
    T_OK(ht_store_promote(&store, bundle, keys, 3, id, &err), err);
    T_OK(ht_engine_open(&e, &p, &err), err);
    doc = generate(&f, e, 200, 4);
    for (int phase = 0; phase < 2; phase++) { /* cell 0 is decode, cell 1 prefill */
        char scope[HT_SHA256_HEX];
        const ht_json *x = &ht_json_get(doc, "phases")->at[phase];
        T_OK(ht_scope_sha256(&f.scope[1 - phase], scope, &err), err);
        T_EQ_STR(text_of(x, "reason"), "OK");
        T_EQ_STR(text_of(x, "decision"), "promoted");
        T_EQ_STR(text_of(x, "backend"), "cpu;threads=1;ubatch=64");
        T_EQ_STR(text_of(x, "scopeSha256"), scope);
        T_EQ_STR(text_of(x, "bundleId"), id);
        /* What really ran: 200 tokens in chunks of 64, where the reference takes them at once. */
        const ht_json *segment = &ht_json_get(x, "segments")->at[0];
        T_EQ_INT(ht_json_get(segment, "rowsMax")->i, phase ? 1 : 64);
        T_EQ_INT(ht_json_get(segment, "runs")->i, phase ? 3 : 4);
    }
    /* Beyond the bucket: the reference again, with its reason; back inside: the route. */
    doc = generate(&f, e, 513, 4);
    T_EQ_STR(text_of(&ht_json_get(doc, "phases")->at[0], "reason"), "BUCKET");
    T_EQ_STR(text_of(&ht_json_get(doc, "phases")->at[0], "decision"), "reference");
    doc = generate(&f, e, 512, 4);
    T_EQ_STR(text_of(&ht_json_get(doc, "phases")->at[0], "decision"), "promoted");
    ht_engine_close(e);
    /* Revoked: gone with the next opening. A forced engine is never routed. */
    T_OK(ht_store_open(f.a, dir, ht_now_unix(), &store, &err), err);
    T_OK(ht_store_revoke(&store, id, "test", keys, 3, &err), err);
    T_OK(ht_engine_open(&e, &p, &err), err);
    doc = generate(&f, e, 200, 4);
    T_EQ_STR(text_of(&ht_json_get(doc, "phases")->at[0], "decision"), "reference");
    ht_engine_close(e);
    p.prefill_engine = p.decode_engine = "cpu";
    T_OK(ht_engine_open(&e, &p, &err), err);
    doc = generate(&f, e, 200, 4);
    T_EQ_STR(text_of(&ht_json_get(doc, "phases")->at[0], "decision"), "forced");
    ht_engine_close(e);
    for (int i = 0; i < 3; i++) ht_key_free(k[i]);
    fx_done(&f);
}
