/* open.c - what well-formed files of every kind give: tensors, metadata, documents, templates. */
#include "core/arena.h"
#include "core/hash.h"
#include "format/file.h"
#include "test.h"
#include <unistd.h>

static ht_file *open_ok(const char *path, const ht_file_opts *opts)
{
    ht_file *f = NULL;
    ht_err e = {0};
    T_OK(ht_file_open(&f, path, opts, &e), e);
    return f;
}

T_CASE(gguf, tensors)
{
    ht_file *f = open_ok("tests/data/malformed/gguf/good_v3.gguf", NULL);
    T_EQ_INT(ht_file_kind(f), HT_FILE_GGUF);
    T_EQ_INT(ht_file_n_tensors(f), 2);
    const ht_tensor *x = ht_file_find(f, "x"), *y = ht_file_find(f, "y");
    T_CHECK(x && y && x == ht_file_tensor(f, 0) && y == ht_file_tensor(f, 1), "order and names");
    T_CHECK(!ht_file_find(f, "z") && !ht_file_find(f, NULL) && !ht_file_tensor(f, 2), "no others");
    T_EQ_INT(x->type, HT_F32);
    T_EQ_INT(x->n_dims, 2);
    T_EQ_INT(x->dim[0], 2); /* the file says [4, 2], fastest first */
    T_EQ_INT(x->dim[1], 4);
    T_EQ_INT(x->dim[2], 1);
    T_EQ_INT(x->bytes, 32);
    T_EQ_INT(y->type, HT_Q4_0);
    T_EQ_INT(y->bytes, 18);
    T_EQ_INT((const uint8_t *)y->data - (const uint8_t *)x->data, 32);
    const ht_map *m = ht_file_part(f, 0);
    T_CHECK((const uint8_t *)y->data + y->bytes <= m->p + m->n, "inside the map");
    T_EQ_INT(ht_file_n_parts(f), 1);
    T_EQ_INT(ht_file_bytes(f), m->n);
    ht_file_close(f);
}

T_CASE(gguf, metadata)
{
    ht_file *f = open_ok("tests/data/malformed/gguf/good_v3.gguf", NULL);
    const char *s, *key;
    size_t n;
    uint32_t u;
    float r;
    int64_t i;
    double d;
    ht_err e = {0};
    T_EQ_INT(ht_file_n_meta(f), 11);
    const ht_meta *m = ht_file_meta_at(f, 1, &key);
    T_EQ_STR(key, "llama.block_count");
    T_EQ_INT(m->u, 2);
    T_CHECK(!ht_file_meta_at(f, 11, &key) && !ht_file_meta(f, "no.such"), "no others");
    T_OK(ht_file_meta_str(f, "general.architecture", true, &s, &n, &e), e);
    T_CHECK(n == 5 && !memcmp(s, "llama", 5), "architecture");
    T_OK(ht_file_meta_u32(f, "llama.expert_count", true, 0, &u, &e), e);
    T_EQ_INT(u, 8);
    T_OK(ht_file_meta_u32(f, "absent", false, 17, &u, &e), e);
    T_EQ_INT(u, 17);
    T_OK(ht_file_meta_f32(f, "absent", false, 0.5f, &r, &e), e);
    T_CHECK(r == 0.5f, "default %g", (double)r);
    T_ERR(ht_file_meta_u32(f, "absent", true, 0, &u, &e), HT_EFORMAT, e, "key absent is missing");
    T_ERR(ht_file_meta_u32(f, "general.architecture", false, 0, &u, &e), HT_EFORMAT, e,
          "key general.architecture is a string, not an integer");
    T_ERR(ht_file_meta_f32(f, "tokenizer.ggml.tokens", false, 0, &r, &e), HT_EFORMAT, e,
          "is an array, not a number");
    T_ERR(ht_file_meta_str(f, "llama.block_count", false, &s, &n, &e), HT_EFORMAT, e,
          "is an unsigned integer, not a string");
    m = ht_file_meta(f, "tokenizer.ggml.tokens");
    T_EQ_INT(m->n, 4);
    T_CHECK(ht_meta_arr_str(m, 2, &s, &n) && n == 2 && !memcmp(s, "ab", 2), "token 2");
    T_CHECK(!ht_meta_arr_str(m, 4, &s, &n), "past the end");
    T_CHECK(!ht_meta_arr_i64(m, 0, &i) && !ht_meta_arr_f64(m, 0, &d), "wrong type");
    m = ht_file_meta(f, "tokenizer.ggml.scores");
    T_CHECK(ht_meta_arr_f64(m, 2, &d) && d == -1.0, "score 2");
    T_CHECK(!ht_meta_arr_str(m, 0, &s, &n) && !ht_meta_arr_i64(m, 0, &i), "wrong type");
    m = ht_file_meta(f, "tokenizer.ggml.token_type");
    T_CHECK(ht_meta_arr_i64(m, 3, &i) && i == 3, "type of token 3");
    T_CHECK(!ht_meta_arr_i64(NULL, 0, &i), "no array");
    ht_file_close(f);
}

T_CASE(gguf, vocab_only)
{
    const ht_file_opts vocab = {.vocab_only = 1};
    ht_file *f = open_ok("tests/data/malformed/gguf/good_vocab_only.gguf", NULL);
    T_EQ_INT(ht_file_n_tensors(f), 0);
    T_CHECK(ht_file_meta(f, "tokenizer.ggml.tokens"), "tokens");
    ht_file_close(f);
    /* With the option, tensors are not looked at, even where they are beyond repair. */
    f = open_ok("tests/data/malformed/gguf/type_unsupported.gguf", &vocab);
    T_EQ_INT(ht_file_n_tensors(f), 0);
    ht_file_close(f);
    f = open_ok("tests/data/malformed/split/missing-00001-of-00002.gguf", &vocab);
    T_EQ_INT(ht_file_n_parts(f), 1);
    ht_file_close(f);
}

T_CASE(gguf, shards)
{
    ht_file *f = open_ok("tests/data/malformed/split/good-00001-of-00002.gguf", NULL);
    T_EQ_INT(ht_file_n_parts(f), 2);
    T_EQ_INT(ht_file_n_tensors(f), 2);
    const ht_tensor *x = ht_file_find(f, "x"), *y = ht_file_find(f, "y");
    T_CHECK(x && y, "both tensors");
    T_EQ_INT(((const uint8_t *)x->data)[31], 31);
    const ht_map *m = ht_file_part(f, 1);
    T_CHECK((const uint8_t *)y->data >= m->p && (const uint8_t *)y->data < m->p + m->n, "part 2");
    T_EQ_INT(ht_file_bytes(f), ht_file_part(f, 0)->n + m->n);
    ht_file_close(f);
}

/* A header longer than the first read: the parser grows its copy and starts again. */
T_CASE(gguf, long_header)
{
    enum { TOKENS = 200000 };
    size_t cap = 64 + TOKENS * 20, n = 0;
    uint8_t *b = calloc(1, cap);
    uint64_t count = TOKENS;
    const char key[] = "tokenizer.ggml.tokens";
    memcpy(b, "GGUF\3\0\0\0", 8);
    b[16] = 1;
    n = 24;
    b[n] = sizeof key - 1;
    memcpy(b + n + 8, key, sizeof key - 1);
    n += 8 + sizeof key - 1;
    b[n] = 9;
    b[n + 4] = 8;
    memcpy(b + n + 8, &count, 8);
    n += 16;
    for (int i = 0; i < TOKENS; i++, n += 16) {
        char text[9];
        b[n] = 8;
        snprintf(text, sizeof text, "%08d", i);
        memcpy(b + n + 8, text, 8);
    }
    char path[256];
    snprintf(path, sizeof path, "%s/long.gguf", t_tmp());
    t_spit(path, b, n);
    ht_file *f = open_ok(path, NULL);
    const ht_meta *m = ht_file_meta(f, key);
    T_EQ_INT(m->n, TOKENS);
    for (size_t i = 0; i < TOKENS; i += 777) {
        const char *s;
        size_t len;
        T_CHECK(ht_meta_arr_str(m, i, &s, &len) && len == 8 && (size_t)atoi(s) == i, "token %zu",
                i);
    }
    ht_file_close(f);
    /* Cut anywhere, it is refused and says where it ends. */
    for (size_t cut = 1; cut < n; cut += n / 7) {
        ht_err e = {0};
        if (n - cut < 12) continue;
        t_spit(path, b, n - cut);
        T_CHECK(ht_file_open(&f, path, NULL, &e) == HT_EFORMAT, "cut by %zu: %s", cut, e.msg);
    }
    free(b);
}

T_CASE(hf, folder)
{
    ht_file *f = open_ok("tests/data/malformed/hf/good", NULL);
    size_t n = 0;
    T_EQ_INT(ht_file_kind(f), HT_FILE_HF);
    T_EQ_INT(ht_file_n_tensors(f), 1);
    const ht_tensor *a = ht_file_find(f, "a");
    T_CHECK(a && a->type == HT_F32 && a->n_dims == 1 && a->dim[0] == 4, "tensor a");
    T_EQ_INT(((const uint8_t *)a->data)[15], 15);
    const char *t = ht_file_template(f, &n);
    T_CHECK(t && n == 1 && *t == 'D', "the default template of a list");
    T_CHECK(ht_json_get(ht_file_config(f), "model_type"), "config");
    T_CHECK(ht_json_get(ht_file_generation_config(f), "eos_token_id"), "generation config");
    T_CHECK(ht_json_path(ht_file_tokenizer(f), "model.vocab"), "tokenizer");
    T_CHECK(ht_file_tokenizer_config(f) && !ht_file_header(f), "documents");
    T_CHECK(!ht_file_meta(f, "general.architecture"), "no GGUF metadata");
    ht_file_close(f);
}

T_CASE(hf, sharded_and_templates)
{
    size_t n = 0;
    ht_file *f = open_ok("tests/data/malformed/hf/good_sharded/", NULL);
    T_EQ_INT(ht_file_n_parts(f), 2);
    T_CHECK(ht_file_find(f, "a") && ht_file_find(f, "b"), "both tensors");
    const char *t = ht_file_template(f, &n);
    T_CHECK(t && n == 1 && *t == 'J', "chat_template.jinja");
    T_CHECK(!ht_file_tokenizer(f), "no tokenizer.json");
    ht_file_close(f);
    f = open_ok("tests/data/malformed/hf/good_template_json", NULL);
    t = ht_file_template(f, &n);
    T_CHECK(t && n == 1 && *t == 'C', "chat_template.json");
    ht_file_close(f);
    f = open_ok("tests/data/malformed/safetensors/good_scalar", NULL);
    T_CHECK(ht_file_find(f, "a")->dim[0] == 1 && !ht_file_template(f, &n) && n == 0, "scalar");
    ht_file_close(f);
}

T_CASE(hf, vocab_only)
{
    const ht_file_opts vocab = {.vocab_only = 1};
    ht_file *f = open_ok("tests/data/malformed/hf/no_weights", &vocab);
    T_EQ_INT(ht_file_n_tensors(f), 0);
    T_EQ_INT(ht_file_n_parts(f), 0);
    ht_file_close(f);
    ht_err e = {0};
    T_ERR(ht_file_open(&f, "tests/data/malformed/hf/empty", &vocab, &e), HT_EFORMAT, e,
          "holds neither config.json nor tokenizer.json");
}

T_CASE(tokjson, alone)
{
    ht_file *f = open_ok("tests/data/malformed/tokjson/good.json", NULL);
    T_EQ_INT(ht_file_kind(f), HT_FILE_TOKJSON);
    T_CHECK(ht_json_path(ht_file_tokenizer(f), "model.vocab.a"), "vocabulary");
    T_EQ_INT(ht_file_n_tensors(f), 0);
    ht_file_close(f);
}

/* The digest of files that carry none is that of their bytes. */
T_CASE(verify, plain_files)
{
    const char *path = "tests/data/malformed/gguf/good_v3.gguf";
    ht_file *f = open_ok(path, NULL);
    char got[65], want[65];
    uint8_t digest[32];
    size_t n;
    ht_err e = {0};
    char *b = t_slurp(path, &n);
    T_OK(ht_sha256_of(b, n, digest, &e), e);
    ht_hex(digest, 32, want);
    T_OK(ht_file_verify(f, NULL, NULL, got, &e), e);
    T_EQ_STR(got, want);
    T_CHECK(!ht_file_sha256(f), "no digest of its own");
    free(b);
    ht_file_close(f);
}

static int cancel_at_once(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    *(int *)user += done <= total;
    return 1;
}

T_CASE(verify, cancelled)
{
    ht_file *f = open_ok("tests/data/malformed/gguf/good_v3.gguf", NULL);
    int calls = 0;
    ht_err e = {0};
    T_ERR(ht_file_verify(f, cancel_at_once, &calls, NULL, &e), HT_ECANCELLED, e, "cancelled");
    T_EQ_INT(calls, 1);
    ht_file_close(f);
}

/* A file that is cut short while it is open: an error from everything that reads it again. */
T_CASE(verify, truncated_while_open)
{
    char path[256];
    size_t n;
    ht_err e = {0};
    char *b = t_slurp("tests/data/malformed/gguf/good_v3.gguf", &n);
    snprintf(path, sizeof path, "%s/x.gguf", t_tmp());
    t_spit(path, b, n);
    ht_file *f = open_ok(path, NULL);
    T_OK(ht_file_unchanged(f, &e), e);
    T_CHECK(truncate(path, (off_t)(n / 2)) == 0, "truncate");
    T_ERR(ht_file_unchanged(f, &e), HT_EIO, e, "bytes when it was opened and has");
    T_ERR(ht_file_verify(f, NULL, NULL, NULL, &e), HT_EIO, e, "bytes when it was opened and has");
    ht_file_close(f);
    free(b);
}

/* The published files at hand. */
T_CASE(real, golden_arch)
{
    static const char *const arch[] = {"gemma3", "llama", "llama3_rope", "mistral_swa", "mixtral",
                                       "phi3",   "qwen2", "qwen3",       "qwen3_moe"};
    for (size_t i = 0; i < sizeof arch / sizeof *arch; i++) {
        char rel[64], dir[512];
        ht_err e = {0};
        uint32_t layers;
        snprintf(rel, sizeof rel, "golden/arch/%s/model.gguf", arch[i]);
        ht_file *f = open_ok(t_shared(rel), NULL);
        const ht_tensor *t = ht_file_find(f, "token_embd.weight");
        T_CHECK(t && t->dim[0] == 512, "%s: embedding", arch[i]);
        const ht_meta *name = ht_file_meta(f, "general.architecture");
        char key[64];
        snprintf(key, sizeof key, "%.*s.block_count", (int)name->n, name->s);
        T_OK(ht_file_meta_u32(f, key, true, 0, &layers, &e), e);
        T_CHECK(layers >= 3, "%s: %u layers", arch[i], layers);
        T_OK(ht_file_verify(f, NULL, NULL, NULL, &e), e);
        ht_file_close(f);
        snprintf(rel, sizeof rel, "golden/arch/%s/config.json", arch[i]);
        snprintf(dir, sizeof dir, "%s", t_shared(rel));
        *strrchr(dir, '/') = 0;
        f = open_ok(dir, NULL);
        t = ht_file_find(f, "model.embed_tokens.weight");
        T_CHECK(t && t->dim[0] == 512, "%s: embedding of the folder", arch[i]);
        T_CHECK(ht_file_config(f) && ht_file_tokenizer(f), "%s: documents", arch[i]);
        T_OK(ht_file_verify(f, NULL, NULL, NULL, &e), e);
        ht_file_close(f);
    }
}

T_CASE(real, vocabularies)
{
    static const struct {
        const char *rel;
        size_t tokens;
    } v[] = {
        {"tokenizer-vectors/gpt-2.gguf", 50257},
        {"tokenizer-vectors/llama-spm.gguf", 32000},
        {"tokenizer-vectors/starcoder.gguf", 49152},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        ht_file *f = open_ok(t_shared(v[i].rel), NULL);
        T_EQ_INT(ht_file_meta(f, "tokenizer.ggml.tokens")->n, v[i].tokens);
        T_EQ_INT(ht_file_n_tensors(f), 0);
        ht_file_close(f);
    }
}

/* 11 MB of JSON: opening takes memory in proportion to it, not more. */
T_CASE(real, large_tokenizer)
{
    const char *path = t_shared("tokenizers/qwen3/tokenizer.json");
    uint64_t before = ht_alloc_count();
    ht_file *f = open_ok(path, NULL);
    T_EQ_INT(ht_json_path(ht_file_tokenizer(f), "model.vocab")->n, 151643);
    T_CHECK(ht_alloc_count() - before < 500, "%llu allocations",
            (unsigned long long)(ht_alloc_count() - before));
    ht_file_close(f);
}
