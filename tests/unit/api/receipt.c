/* receipt.c - what a receipt says of a run. */
#include "core/hash.h"
#include "util.h"

static void check_phase(const ht_json *p, const char *name, const char *decision,
                        const char *engine_name, long long tokens)
{
    T_EQ_STR(str(p, "phase"), name);
    T_EQ_STR(str(p, "decision"), decision);
    T_EQ_STR(str(p, "engine"), engine_name);
    T_EQ_STR(str(p, "planned"), engine_name);
    T_EQ_STR(str(p, "executed"), engine_name);
    T_EQ_INT(strlen(str(p, "cover")), 64);
    T_EQ_INT(num(p, "tokens"), tokens);
    T_CHECK(num(p, "ns") > 0 && num(p, "bytes") > 0 && num(p, "flops") > 0, "empty costs");
    T_CHECK(num(p, "dispatches") > 0, "no dispatch counted");
    T_EQ_INT(num(p, "hostCopyBytes"), 0);
    T_EQ_INT(num(p, "deviceCopyBytes"), 0);
    T_EQ_INT(num(p, "drafted"), 0);
    T_EQ_INT(num(p, "bytesPerToken"), num(p, "bytes") / tokens);
    const ht_json *seg = ht_json_get(p, "segments");
    T_EQ_INT(seg->n, 1);
    T_EQ_STR(str(&seg->at[0], "cover"), str(p, "cover"));
    T_EQ_INT(num(&seg->at[0], "tokens"), tokens);
    T_EQ_INT(num(&seg->at[0], "bytes"), num(p, "bytes"));
    long long cuts = 0;
    const ht_json *spans = ht_json_get(&seg->at[0], "spans");
    for (size_t i = 0; i < spans->n; i++) cuts += num(&spans->at[i], "cuts");
    T_CHECK(cuts > 0, "no spans");
}

T_CASE_SECONDS(receipt, reference_without_evidence, 120)
{
    int32_t ids[40];
    for (int i = 0; i < 40; i++) ids[i] = 500 + i;
    ht_arena *a = arena();
    ht_err err = {0};
    const ht_engine_params p = {.model = TALE, .ctx = 128, .threads = 1, .ubatch = 16};
    ht_engine *e = engine(&p);
    ht_session *s = session(e);
    char *json = NULL;
    T_ERR(ht_session_receipt(s, &json, &err), HT_EARG, err, "nothing ran");
    ht_gen_result r = greedy(s, ids, 40, 6);
    const ht_json *j = receipt(a, s), *phases = ht_json_get(j, "phases");
    T_EQ_STR(str(j, "schema"), "hetero/receipt/1");
    T_EQ_STR(str(j, "status"), "ok");
    T_EQ_STR(str(j, "contract"), "f16");
    T_EQ_STR(str(j, "act"), "f32");
    T_EQ_STR(str(j, "kv.k"), "f16");
    T_EQ_STR(str(j, "finish"), "length");
    T_EQ_INT(ht_json_get(j, "notes")->n, 0);
    T_EQ_INT(num(j, "nPrompt"), 40);
    T_EQ_INT(num(j, "nOut"), 6);
    T_EQ_INT(phases->n, 2);
    T_EQ_STR(str(&phases->at[0], "reason"), "NO_EVIDENCE");
    check_phase(&phases->at[0], "prefill", "reference", "cpu", 40);
    check_phase(&phases->at[1], "decode", "reference", "cpu", 5);
    T_EQ_INT(num(&ht_json_get(&phases->at[0], "segments")->at[0], "runs"), 3);
    T_EQ_STR(str(j, "options.prefillEngine"), "cpu");
    T_EQ_INT(num(j, "options.ubatch"), 16);
    /* Little-endian 32-bit ids, hashed. */
    uint8_t le[160], sha[32];
    char hex[65];
    for (int i = 0; i < 40; i++)
        for (int b = 0; b < 4; b++) le[4 * i + b] = (uint8_t)((uint32_t)ids[i] >> 8 * b);
    T_OK(ht_sha256_of(le, sizeof le, sha, &err), err);
    ht_hex(sha, 32, hex);
    T_EQ_STR(str(j, "promptTokSha256"), hex);
    T_EQ_INT(num(j, "seq"), 1);
    ht_gen_result_done(&r);
    r = greedy(s, ids, 40, 1);
    j = receipt(a, s);
    T_EQ_INT(num(j, "seq"), 2);
    T_EQ_STR(str(&ht_json_get(j, "phases")->at[1], "executed"), "none");
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_engine_close(e);
    ht_arena_free(a);
}

/* Two engines over one cache: the decisions are forced, the hand-off moves nothing, and the tokens
 * are those of one engine alone. */
T_CASE_SECONDS(receipt, forced_engines_share_the_cache, 240)
{
    int32_t ids[20];
    for (int i = 0; i < 20; i++) ids[i] = 700 + 3 * i;
    ht_arena *a = arena();
    const ht_engine_params p = {
        .model = TALE, .ctx = 64, .threads = 1, .prefill_engine = "ref", .decode_engine = "cpu"};
    ht_engine *e = engine(&p), *cpu = tale(1, 1);
    ht_session *s = session(e), *c = session(cpu);
    ht_gen_result r = greedy(s, ids, 20, 5), w = greedy(c, ids, 20, 5);
    const ht_json *phases = ht_json_get(receipt(a, s), "phases");
    T_EQ_STR(str(&phases->at[0], "reason"), "USER");
    check_phase(&phases->at[0], "prefill", "forced", "ref", 20);
    check_phase(&phases->at[1], "decode", "forced", "cpu", 4);
    T_EQ_MEM(r.ids, w.ids, 5 * sizeof *r.ids);
    ht_gen_result_done(&r);
    ht_gen_result_done(&w);
    ht_session_free(s);
    ht_session_free(c);
    ht_engine_close(e);
    ht_engine_close(cpu);
    ht_arena_free(a);
}

/* Bytes per token are the floor at the depth that was read: weights once and the keys so far. */
T_CASE_SECONDS(receipt, bytes_grow_with_depth, 120)
{
    int32_t ids[100];
    for (int i = 0; i < 100; i++) ids[i] = 600 + i;
    ht_arena *a = arena();
    ht_engine *e = tale(1, 1);
    ht_session *s = session(e);
    ht_gen_result r = greedy(s, ids, 10, 2);
    const long long low = num(&ht_json_get(receipt(a, s), "phases")->at[1], "bytes");
    ht_gen_result_done(&r);
    r = greedy(s, ids, 100, 2);
    const long long high = num(&ht_json_get(receipt(a, s), "phases")->at[1], "bytes");
    /* 90 more positions x 8 layers x K and V x 2 heads x 128 x 2 bytes. */
    T_EQ_INT(high - low, 90LL * 8 * 2 * 2 * 128 * 2);
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_engine_close(e);
    ht_arena_free(a);
}
