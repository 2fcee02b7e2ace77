/* engine.c - open, its refusals, info, explain, and the check against ref. */
#include "core/cpu.h"
#include "util.h"

T_CASE(engine, refuses_what_cannot_be_meant)
{
    ht_engine *e = NULL;
    ht_err err = {0};
    ht_engine_params p = {.model = TALE, .ctx = 64, .decode_engine = "abacus"};
    T_ERR(ht_engine_open(&e, &p, &err), HT_EARG, err, "this build has: ");
    T_CHECK(strstr(err.msg, "cpu") && strstr(err.msg, "ref"), "%s", err.msg);
    p.decode_engine = NULL;
    p.ctk = "q1_z";
    T_ERR(ht_engine_open(&e, &p, &err), HT_EARG, err, "q1_z");
    p.ctk = NULL;
    p.act = "bf16";
    T_ERR(ht_engine_open(&e, &p, &err), HT_EARG, err, "bf16");
    p.act = NULL;
    p.prefill_rep = "q8";
    T_ERR(ht_engine_open(&e, &p, &err), HT_EARG, err, "holds f16");
    p.prefill_rep = NULL;
    p.threads = -1;
    T_ERR(ht_engine_open(&e, &p, &err), HT_EARG, err, "threads");
    p.threads = 1;
    p.model = "no/such/model";
    T_ERR(ht_engine_open(&e, &p, &err), HT_EIO, err, "no/such/model");
    T_TRUE(!e);
}

/* More than the machine has is refused before it is taken, with both numbers. */
T_CASE(engine, memory_is_checked_first)
{
    ht_engine *e = NULL;
    ht_err err = {0};
    const uint64_t have = ht_mem_available();
    if (!have) T_SKIP("the system does not tell its free memory");
    /* 8 layers x 2 x 2 KV heads x 128 x 2 bytes = 8192 bytes a position; 65535 sessions of 2^20. */
    const ht_engine_params p = {.model = TALE, .ctx = 1 << 20, .max_sessions = 65535, .threads = 1};
    T_ERR(ht_engine_open(&e, &p, &err), HT_ENOMEM, err, "available");
    T_CHECK(strstr(err.msg, "needs"), "%s", err.msg);
    const ht_engine_params most = {
        .model = TALE, .ctx = UINT32_MAX, .max_sessions = 65535, .threads = 1};
    T_ERR(ht_engine_open(&e, &most, &err), HT_ENOMEM, err, "available");
}

T_CASE(engine, info_says_what_is_loaded)
{
    ht_arena *a = arena();
    ht_err err = {0};
    ht_engine *e = tale(1, 2);
    char *json = NULL;
    T_OK(ht_engine_info(e, &json, &err), err);
    const ht_json *j = parse(a, json);
    T_EQ_STR(str(j, "model.arch"), "qwen3");
    T_EQ_STR(str(j, "model.contract"), "f16");
    T_EQ_INT(num(j, "model.projections"), 8 * 7 + 1);
    T_EQ_INT(num(j, "model.quantised"), 0);
    T_EQ_INT(num(j, "ctx"), 256);
    T_EQ_INT(num(j, "threads"), 1);
    T_EQ_STR(str(j, "engines.prefill.decision"), "reference");
    T_EQ_STR(str(j, "engines.prefill.reason"), "NO_EVIDENCE");
    T_EQ_STR(str(j, "engines.decode.engine"), "cpu");
    T_EQ_INT(num(j, "memory.kvBytes"), num(j, "poolBytes"));
    T_EQ_INT(num(j, "memory.totalBytes"), num(j, "memory.weightsBytes") + num(j, "memory.kvBytes") +
                                              num(j, "memory.scratchBytes"));
    ht_engine_close(e);
    ht_arena_free(a);
}

/* The cover takes every stage exactly once, in order; the plain one a cut per stage. */
T_CASE(engine, explain_covers_the_tape)
{
    ht_arena *a = arena();
    ht_err err = {0};
    ht_engine *e = tale(1, 1);
    char *json = NULL;
    T_OK(ht_engine_explain(e, 100, 50, &json, &err), err);
    const ht_json *j = parse(a, json);
    const long long stages = num(j, "stages");
    T_EQ_INT(stages, 1 + 8 * 5 + 1 + 1);
    const ht_json *phases = ht_json_get(j, "phases");
    T_EQ_INT(phases->n, 2);
    for (size_t p = 0; p < 2; p++) {
        const ht_json *cuts = ht_json_path(&phases->at[p], "cover.cuts");
        long long at = 0, bytes = 0;
        for (size_t i = 0; i < cuts->n; i++) {
            T_EQ_INT(num(&cuts->at[i], "at"), at);
            at += num(&cuts->at[i], "stages");
            bytes += num(&cuts->at[i], "bytes");
        }
        T_EQ_INT(at, stages);
        T_EQ_INT(bytes, num(&phases->at[p], "cover.bytes"));
        T_EQ_INT(num(&phases->at[p], "plainCover.n"), stages);
        T_CHECK(num(&phases->at[p], "cover.n") <= stages, "cover longer than the tape");
        T_CHECK(num(&phases->at[p], "cover.dispatchesPerStep") > 0, "no dispatches counted");
    }
    /* Decode reads every projection once: 2 bytes x parameters of layers and head. */
    const long long body = 8LL * (2 * 512 * 256 + 2 * 256 * 256 + 3 * 256 * 768) + 4096LL * 256;
    T_CHECK(num(&phases->at[1], "cover.bytes") >= 2 * body, "decode bytes below the weights'");
    T_CHECK(num(&phases->at[1], "cover.bytes") < 2 * body + 2 * body / 10,
            "decode bytes far above");
    T_ERR(ht_engine_explain(e, 0, 0, &json, &err), HT_EARG, err, "0 tokens");
    ht_engine_close(e);
    ht_arena_free(a);
}

T_CASE(engine, lists_engines)
{
    ht_arena *a = arena();
    ht_err err = {0};
    char *json = NULL;
    T_OK(ht_engines_describe(&json, &err), err);
    const ht_json *list = ht_json_get(parse(a, json), "engines");
    bool cpu = false, ref = false;
    for (size_t i = 0; i < list->n; i++) {
        cpu = cpu || !strcmp(str(&list->at[i], "name"), "cpu");
        ref = ref || !strcmp(str(&list->at[i], "name"), "ref");
        const ht_json *says = ht_json_get(&list->at[i], "describe");
        T_EQ_INT(says && says->type == HT_JOBJ, ht_json_get(&list->at[i], "available")->b);
        T_TRUE(!says || !ht_json_get(says, "copiedBytes")); /* no model is loaded */
    }
    T_TRUE(cpu && ref);
    ht_arena_free(a);
}

static int third_is_enough(void *user, const char *what, uint64_t done, uint64_t total)
{
    int *calls = user;
    T_TRUE(strstr(what, "ref") && done <= total);
    return ++*calls == 3;
}

T_CASE_SECONDS(engine, qualification_can_be_stopped, 120)
{
    ht_err err = {0};
    ht_engine *e = tale(1, 1);
    char *json = NULL;
    int calls = 0;
    T_ERR(ht_engine_qualify_reference(e, third_is_enough, &calls, &json, &err), HT_ECANCELLED, err,
          "after 3 rows");
    T_EQ_INT(calls, 3);
    T_TRUE(!json);
    ht_engine_close(e);
}

T_CASE_SECONDS(engine, qualifies_against_ref, 240)
{
    ht_arena *a = arena();
    ht_err err = {0};
    ht_engine *e = tale(2, 1);
    ht_session *s = session(e); /* a caller's session does not stand in the way */
    char *json = NULL;
    T_OK(ht_engine_qualify_reference(e, NULL, NULL, &json, &err), err);
    const ht_json *j = parse(a, json), *checks = ht_json_get(j, "checks");
    T_TRUE(ht_json_get(j, "ok")->b);
    T_EQ_INT(checks->n, 4);
    for (size_t i = 0; i < checks->n; i++)
        T_CHECK(ht_json_get(&checks->at[i], "ok")->b, "%s: %s", str(&checks->at[i], "name"),
                str(&checks->at[i], "detail"));
    T_EQ_STR(str(&checks->at[0], "name"), "prefill: cpu against ref");
    ht_session_free(s);
    ht_engine_close(e);
    ht_arena_free(a);
}
