/* pack.c - packs: one set of bytes from either source, the same logits, honest counts, refusals. */
#include "util.h"

enum { N = 12 };
static const int32_t some[N] = {3, 40, 77, 114, 151, 188, 225, 262, 299, 336, 373, 410};

static const char *out(const char *name)
{
    static char path[4][300];
    static int at;
    char *p = path[at++ % 4];
    snprintf(p, 300, "%s/%s", t_tmp(), name);
    return p;
}

static const ht_json *pack(ht_arena *a, const char *src, const char *to, ht_pack_params p)
{
    ht_err err = {0};
    char *json = NULL;
    T_OK(ht_pack_make(src, to, &p, &json, &err), err);
    return parse(a, json);
}

static void same_file(const char *a, const char *b)
{
    size_t na = 0, nb = 0;
    char *x = t_slurp(a, &na), *y = t_slurp(b, &nb);
    T_EQ_INT(na, nb);
    T_EQ_MEM(x, y, na);
    free(x);
    free(y);
}

/* Where GGUF and folder say the same, their packs are one; and a pack gives its source's logits. */
static void both_sources(const char *family)
{
    char gguf[128], dir[128];
    snprintf(gguf, sizeof gguf, "%s/model.gguf", family);
    snprintf(dir, sizeof dir, "%s/model.safetensors", family);
    char hf[300];
    snprintf(hf, sizeof hf, "%s", golden(dir));
    *strrchr(hf, '/') = 0;
    char src[300];
    snprintf(src, sizeof src, "%s", golden(gguf));
    ht_arena *a = arena();
    const char *from_gguf = out("g.htpack"), *from_hf = out("h.htpack");
    const ht_json *j = pack(a, src, from_gguf, (ht_pack_params){.precision = "f16", .threads = 2});
    pack(a, hf, from_hf, (ht_pack_params){.precision = "f16", .threads = 1});
    same_file(from_gguf, from_hf);
    T_EQ_STR(str(j, "contract"), "f16");
    T_EQ_INT(num(j, "quantised"), 0);
    const ht_engine_params pp = {.model = from_gguf, .ctx = 64, .threads = 1},
                           sp = {.model = src, .ctx = 64, .threads = 1};
    ht_engine *pe = engine(&pp), *se = engine(&sp);
    float *x = all_logits(pe, some, N), *y = all_logits(se, some, N);
    T_CHECK(!memcmp(x, y, N * 512 * sizeof *x), "%s: the pack's logits are not its source's",
            family);
    free(x);
    free(y);
    ht_engine_close(pe);
    ht_engine_close(se);
    ht_arena_free(a);
}

T_CASE_SECONDS(pack, llama_from_both_sources, 120)
{
    both_sources("llama");
}
T_CASE_SECONDS(pack, llama3_bf16_from_both_sources, 120)
{
    both_sources("llama3_rope");
}
T_CASE_SECONDS(pack, qwen2_from_both_sources, 120)
{
    both_sources("qwen2");
}
T_CASE_SECONDS(pack, qwen3_from_both_sources, 120)
{
    both_sources("qwen3");
}
T_CASE_SECONDS(pack, qwen3_moe_from_both_sources, 120)
{
    both_sources("qwen3_moe");
}
T_CASE_SECONDS(pack, mixtral_from_both_sources, 120)
{
    both_sources("mixtral");
}
T_CASE_SECONDS(pack, gemma3_from_both_sources, 120)
{
    both_sources("gemma3");
}
T_CASE_SECONDS(pack, phi3_from_both_sources, 120)
{
    both_sources("phi3");
}

static void counts(const ht_json *j, long long projections, long long quantised)
{
    T_EQ_INT(num(j, "projections"), projections);
    T_EQ_INT(num(j, "quantised"), quantised);
}

static double real(const ht_json *j, const char *key)
{
    const ht_json *v = ht_json_path(j, key);
    T_CHECK(v && (v->type == HT_JREAL || v->type == HT_JINT), "%s is not a number", key);
    return v->d;
}

/* Bytes of a type in a result's "types". */
static long long type_bytes(const ht_json *j, const char *type)
{
    const ht_json *t = ht_json_get(j, "types");
    for (size_t i = 0; t && i < t->n; i++)
        if (!strcmp(str(&t->at[i], "type"), type)) return num(&t->at[i], "bytes");
    return 0;
}

T_CASE_SECONDS(pack, quantises_all_projections, 240)
{
    ht_arena *a = arena();
    const long long body = 8LL * (2 * 512 * 256 + 2 * 256 * 256 + 3 * 256 * 768),
                    head = 4096LL * 256;
    const char *q8 = out("q8.htpack"), *q4 = out("q4.htpack"), *all = out("all.htpack");
    const ht_json *j = pack(a, TALE, q8, (ht_pack_params){.precision = "q8"});
    counts(j, 57, 57);
    T_EQ_INT(type_bytes(j, "q8_0"), (body + head) / 32 * 34);
    j = pack(a, TALE, q4, (ht_pack_params){.precision = "q4"});
    counts(j, 57, 57);
    T_EQ_INT(type_bytes(j, "q4_0"), body / 32 * 18);
    T_EQ_INT(type_bytes(j, "q6_k"), head / 256 * 210);
    j = pack(a, TALE, all, (ht_pack_params){.precision = "q4", .head_type = "q4_0"});
    T_EQ_INT(type_bytes(j, "q4_0"), (body + head) / 32 * 18);
    T_CHECK(real(j, "f16Ratio") > 3.45, "%g", real(j, "f16Ratio")); /* norms stay F32 */
    j = pack(a, TALE, all, (ht_pack_params){.precision = "q4", .q4_type = "q4_k"});
    T_EQ_INT(type_bytes(j, "q4_k"), body / 256 * 144);
    /* The pack says of itself what its making said. */
    char *json = NULL;
    ht_err err = {0};
    T_OK(ht_inspect(q4, NULL, &json, &err), err);
    const ht_json *k = parse(a, json);
    T_EQ_STR(str(k, "kind"), "pack");
    T_EQ_STR(str(k, "model.contract"), "q4");
    T_EQ_STR(str(k, "model.quantisedText"), "57 of 57");
    T_EQ_STR(str(k, "model.layout"), "r16/1");
    T_EQ_INT(type_bytes(k, "q4_0"), body / 32 * 18);
    T_TRUE(ht_json_get(k, "template")->b);
    T_EQ_INT(num(k, "tokenizer.size"), 4096);
    ht_arena_free(a);
}

T_CASE_SECONDS(pack, bytes_do_not_depend_on_threads, 120)
{
    ht_arena *a = arena();
    const char *one = out("1.htpack"), *two = out("2.htpack");
    pack(a, TALE, one, (ht_pack_params){.precision = "q4", .threads = 1});
    pack(a, TALE, two, (ht_pack_params){.precision = "q4", .threads = 3});
    same_file(one, two);
    ht_arena_free(a);
}

/* Two representations: exact prefill with q8 decode, chosen per phase; without a choice the main
 * one. */
T_CASE_SECONDS(pack, second_representation_per_phase, 240)
{
    ht_arena *a = arena();
    const char *to = out("two.htpack"), *q8 = out("q8.htpack");
    const ht_json *j = pack(a, TALE, to, (ht_pack_params){.precision = "f16", .also = "q8"});
    counts(j, 57, 0);
    T_CHECK(num(j, "alternateBytes") > 0, "no second representation");
    pack(a, TALE, q8, (ht_pack_params){.precision = "q8"});
    const ht_engine_params alt = {.model = to,
                                  .ctx = 64,
                                  .threads = 1,
                                  .prefill_rep = "q8",
                                  .decode_rep = "q8"},
                           main_ = {.model = to, .ctx = 64, .threads = 1},
                           one = {.model = q8, .ctx = 64, .threads = 1},
                           mixed = {.model = to, .ctx = 64, .threads = 1, .decode_rep = "q8"};
    ht_engine *e[4] = {engine(&alt), engine(&one), engine(&main_), tale(1, 1)};
    float *x[4];
    for (int i = 0; i < 4; i++) x[i] = all_logits(e[i], some, N);
    T_CHECK(!memcmp(x[0], x[1], N * 4096 * sizeof(float)), "alternate q8 is not the q8 pack");
    T_CHECK(!memcmp(x[2], x[3], N * 4096 * sizeof(float)), "main f16 is not the source");
    T_CHECK(memcmp(x[0], x[2], N * 4096 * sizeof(float)) != 0,
            "both representations give the same");
    ht_engine *m = engine(&mixed);
    ht_session *s = session(m);
    ht_gen_result r = greedy(s, some, N, 3);
    const ht_json *phases = ht_json_get(receipt(a, s), "phases");
    T_EQ_STR(str(&phases->at[0], "representation"), "f16");
    T_EQ_STR(str(&phases->at[1], "representation"), "q8");
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_engine_close(m);
    for (int i = 0; i < 4; i++) {
        free(x[i]);
        ht_engine_close(e[i]);
    }
    ht_arena_free(a);
}

/* What quantising lost does not come back; quantised again only downwards, and said so. */
T_CASE_SECONDS(pack, never_upwards, 120)
{
    ht_arena *a = arena();
    ht_err err = {0};
    const char *q8 = out("q8.htpack"), *q4 = out("q4.htpack"), *again = out("again.htpack");
    pack(a, TALE, q8, (ht_pack_params){.precision = "q8"});
    pack(a, TALE, q4, (ht_pack_params){.precision = "q4"});
    char *json = NULL;
    ht_pack_params p = {.precision = "f16"};
    T_ERR(ht_pack_make(q8, again, &p, &json, &err), HT_EARG, err, "q8 already");
    p.precision = "q8";
    T_ERR(ht_pack_make(q4, again, &p, &json, &err), HT_EARG, err, "q4 already");
    T_CHECK(access(again, F_OK) != 0, "a refused pack left a file");
    /* The same contract again moves the bytes. */
    pack(a, q4, again, (ht_pack_params){.precision = "q4"});
    same_file(q4, again);
    const ht_json *j = pack(a, q8, again, (ht_pack_params){.precision = "q4"});
    T_CHECK(strstr(ht_json_get(j, "notes")->at[0].s, "quantised again"), "no note");
    ht_arena_free(a);
}

T_CASE(pack, bad_arguments)
{
    ht_err err = {0};
    const char *to = out("x.htpack");
    ht_pack_params p = {.precision = "q5"};
    T_ERR(ht_pack_make(TALE, to, &p, NULL, &err), HT_EARG, err, "q5");
    p = (ht_pack_params){.precision = "q8", .also = "q8"};
    T_ERR(ht_pack_make(TALE, to, &p, NULL, &err), HT_EARG, err, "makes no sense");
    p = (ht_pack_params){.precision = "q8", .head_type = "q6_k"};
    T_ERR(ht_pack_make(TALE, to, &p, NULL, &err), HT_EARG, err, "belong to a q4");
    p = (ht_pack_params){.precision = "q4", .q4_type = "q6_k"};
    T_ERR(ht_pack_make(TALE, to, &p, NULL, &err), HT_EARG, err, "q4_k");
    p = (ht_pack_params){.precision = "q4", .head_type = "f7"};
    T_ERR(ht_pack_make(TALE, to, &p, NULL, &err), HT_EARG, err, "f7");
    p = (ht_pack_params){.precision = "f16"};
    T_ERR(ht_pack_make(TALE, "/no/such/folder/x.htpack", &p, NULL, &err), HT_EIO, err,
          "/no/such/folder");
}

static int stop_at_half(void *user, const char *what, uint64_t done, uint64_t total)
{
    int *calls = user;
    if (strcmp(what, "packed bytes") != 0) return 0;
    ++*calls;
    return done * 2 > total;
}

T_CASE_SECONDS(pack, cancelled_leaves_nothing, 120)
{
    ht_err err = {0};
    int calls = 0;
    const char *to = out("x.htpack");
    const ht_pack_params p = {.precision = "q8", .progress = stop_at_half, .user = &calls};
    T_ERR(ht_pack_make(TALE, to, &p, NULL, &err), HT_ECANCELLED, err, "cancelled");
    T_CHECK(calls > 2, "%d calls", calls);
    T_CHECK(access(to, F_OK) != 0, "a cancelled pack left a file");
    T_EQ_INT(rmdir(t_tmp()), 0); /* nor a temporary one */
    T_EQ_INT(mkdir(t_tmp(), 0700), 0);
}
