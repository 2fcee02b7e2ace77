/* inspect.c - facts of a file, and the memory estimate against what opening really takes. */
#include "format/file.h"
#include "util.h"
#include <malloc.h>

static const ht_json *inspect(ht_arena *a, const char *path, ht_inspect_params p)
{
    char *json = NULL;
    ht_err err = {0};
    T_OK(ht_inspect(path, &p, &json, &err), err);
    return parse(a, json);
}

T_CASE(inspect, facts_of_a_gguf)
{
    ht_arena *a = arena();
    const ht_json *j = inspect(a, TALE, (ht_inspect_params){.tensors = 1});
    T_EQ_STR(str(j, "kind"), "gguf");
    T_EQ_STR(str(j, "model.arch"), "qwen3");
    T_EQ_STR(str(j, "model.contract"), "f16");
    T_EQ_STR(str(j, "model.quantisedText"), "0 of 57");
    T_EQ_STR(str(j, "model.layout"), "rows/1");
    const long long mats = 8LL * (2 * 512 * 256 + 2 * 256 * 256 + 3 * 256 * 768) + 4096LL * 256;
    const long long vecs = 8LL * (2 * 256 + 2 * 128) + 256;
    T_EQ_INT(num(j, "model.parameters"), mats + vecs);
    T_EQ_INT(num(j, "model.tensorBytes"), 2 * mats + 4 * vecs);
    T_EQ_INT(ht_json_path(j, "model.f16Ratio")->d == 1.0, 1);
    T_EQ_INT(num(j, "tensors"), 8 * 11 + 2);
    T_EQ_INT(ht_json_get(j, "tensorList")->n, 8 * 11 + 2);
    T_EQ_INT(num(j, "tokenizer.size"), 4096);
    const ht_json *eog = ht_json_path(j, "tokenizer.eog");
    bool im_end = false;
    for (size_t i = 0; i < eog->n; i++)
        im_end = im_end || !strcmp(str(&eog->at[i], "text"), "<|im_end|>");
    T_CHECK(im_end, "<|im_end|> does not end a generation");
    T_TRUE(ht_json_get(j, "template")->b);
    ht_arena_free(a);
}

/* KV bytes from the shapes: 2 x layers x heads x head_dim x bytes x positions in whole pages. */
T_CASE(inspect, memory_follows_context_and_types)
{
    ht_arena *a = arena();
    const ht_json *j = inspect(a, TALE, (ht_inspect_params){.ctx = 1000});
    const long long pages = 32, page = 32LL * 2 * 128 * 2, kv = 8 * 2 * pages * page;
    T_EQ_INT(num(j, "memory.ctx"), 1000);
    T_EQ_INT(num(j, "memory.bytes.kvBytes"), kv);
    j = inspect(a, TALE, (ht_inspect_params){.ctx = 1000, .ctk = "f32"});
    T_EQ_INT(num(j, "memory.bytes.kvBytes"), kv / 2 * 3);
    char *json = NULL;
    ht_err err = {0};
    T_ERR(ht_inspect(TALE, &(ht_inspect_params){.ctv = "f8"}, &json, &err), HT_EARG, err, "f8");
    ht_arena_free(a);
}

T_CASE(inspect, parts_that_cannot_be_read_say_why)
{
    ht_arena *a = arena();
    const ht_json *j = inspect(a, t_shared("tokenizer-vectors/gpt-2.gguf"), (ht_inspect_params){0});
    T_EQ_STR(str(j, "tokenizer.pre"), "gpt-2");
    T_CHECK(str(j, "model.error")[0], "no reason");
    T_TRUE(ht_json_get(j, "memory")->type == HT_JNULL);
    char *json = NULL;
    ht_err err = {0};
    T_ERR(ht_inspect("no/such/file", NULL, &json, &err), HT_EIO, err, "no/such/file");
    ht_arena_free(a);
}

/* Private writable memory of this process, in bytes: what was allocated, whether touched or not;
 * without what malloc holds free between pieces in use, which differs from run to run. */
static long long allocated(void)
{
    size_t n = 0;
    (void)malloc_trim(0);
    char *text = t_slurp("/proc/self/status", &n), *at = strstr(text, "VmData:");
    T_TRUE(at);
    long long kb = strtoll(at + 7, NULL, 10);
    free(text);
    return kb * 1024 - (long long)mallinfo2().fordblks;
}

/* The estimate against the system's own count. Weights read in place are mapped, not allocated; the
 * tokenizer and the view of the file are no part of the estimate and are measured apart. */
static void estimate_is_true(const char *path, uint32_t ctx)
{
    if (t_sanitized()) T_SKIP("a sanitizer's allocations are not ours");
    /* Large pieces straight from the system and the free top given back, so that the count follows
     * what is in use. */
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 15);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 12);
    ht_arena *a = arena();
    ht_err err = {0};
    ht_vocab *v = NULL;
    ht_file *f = NULL;
    const long long nothing = allocated();
    T_OK(ht_vocab_open(&v, path, NULL, &err), err);
    T_OK(ht_file_open(&f, path, NULL, &err), err);
    const long long apart = allocated() - nothing;
    const ht_json *j = inspect(a, path, (ht_inspect_params){.ctx = ctx});
    const long long want = num(j, "memory.bytes.ownedBytes") + num(j, "memory.bytes.copiedBytes") +
                           num(j, "memory.bytes.kvBytes") + num(j, "memory.bytes.scratchBytes");
    const ht_engine_params p = {.model = path, .ctx = ctx, .threads = 1};
    const long long before = allocated();
    ht_engine *e = engine(&p);
    const long long got = allocated() - before - apart;
    T_CHECK(llabs(got - want) <= want / 50, "estimated %lld bytes, allocated %lld (and %lld apart)",
            want, got, apart);
    ht_engine_close(e);
    ht_file_close(f);
    ht_vocab_close(v);
    ht_arena_free(a);
}

T_CASE_SECONDS(inspect, estimate_is_what_open_takes, 120)
{
    estimate_is_true(TALE, 8192);
}
T_CASE_SECONDS(inspect, estimate_of_a_quantised_model, 120)
{
    estimate_is_true(t_shared("models/smollm2-draft-15m-q8_0.gguf"), 8192);
}

/* A file without tensors has no types of them. */
T_CASE(inspect, tokenizer_file_lists_no_types)
{
    ht_arena *a = arena();
    ht_err err = {0};
    char *json = NULL;
    const ht_inspect_params p = {0};
    T_OK(ht_inspect("tests/data/malformed/hf/good/tokenizer.json", &p, &json, &err), err);
    const ht_json *j = parse(a, json);
    T_EQ_INT(num(j, "tensors"), 0);
    T_TRUE(!ht_json_get(j, "types"));
    T_OK(ht_inspect(TALE, &p, &json, &err), err);
    T_EQ_INT(ht_json_get(parse(a, json), "types")->n, 2);
    ht_arena_free(a);
}
