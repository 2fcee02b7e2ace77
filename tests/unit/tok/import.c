/* import.c - GGUF and tokenizer.json to one normal form; what is refused and how. */
#include "util.h"

/* ---- a small GGUF writer ---- */
typedef struct {
    ht_buf b;
    uint64_t n_kv;
} gguf;

static void num(gguf *g, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) ht_buf_char(&g->b, (char)(v >> 8 * i));
}

static void str(gguf *g, const char *s)
{
    num(g, strlen(s), 8);
    ht_buf_str(&g->b, s);
}

static void key(gguf *g, const char *k, uint32_t type)
{
    char full[64];
    snprintf(full, sizeof full, "tokenizer.ggml.%s", k);
    str(g, full);
    num(g, type, 4);
    g->n_kv++;
}

static void kv_str(gguf *g, const char *k, const char *v)
{
    key(g, k, 8);
    str(g, v);
}

static void kv_u32(gguf *g, const char *k, uint32_t v)
{
    key(g, k, 4);
    num(g, v, 4);
}

static void kv_bool(gguf *g, const char *k, bool v)
{
    key(g, k, 7);
    num(g, v, 1);
}

/* items separated by '\n' */
static void kv_strs(gguf *g, const char *k, const char *items)
{
    uint64_t n = *items != 0;
    for (const char *p = items; *p; p++) n += *p == '\n';
    key(g, k, 9);
    num(g, 8, 4);
    num(g, n, 8);
    while (n--) {
        size_t len = strcspn(items, "\n");
        num(g, len, 8);
        ht_buf_add(&g->b, items, len);
        items += len + 1;
    }
}

static void kv_i32s(gguf *g, const char *k, const char *digits)
{
    key(g, k, 9);
    num(g, 5, 4);
    num(g, strlen(digits), 8);
    for (; *digits; digits++) num(g, (uint64_t)(*digits - '0'), 4);
}

static void kv_f32s(gguf *g, const char *k, const float *v, size_t n)
{
    key(g, k, 9);
    num(g, 6, 4);
    num(g, n, 8);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], 4);
        num(g, bits, 4);
    }
}

static gguf start(void)
{
    gguf g = {0};
    ht_buf_init(&g.b, 0);
    return g;
}

static int finish(gguf *g, const char *pre, ht_tok **t, ht_err *e)
{
    char path[512];
    gguf head = start();
    ht_file *f;
    ht_file_opts o = {.vocab_only = 1};
    num(&head, 0x46554747, 4);
    num(&head, 3, 4);
    num(&head, 0, 8);
    num(&head, g->n_kv, 8);
    ht_buf_add(&head.b, g->b.p, g->b.n);
    snprintf(path, sizeof path, "%s/vocab.gguf", t_tmp());
    t_spit(path, head.b.p, head.b.n);
    ht_buf_done(&g->b);
    ht_buf_done(&head.b);
    int rc = ht_file_open(&f, path, &o, e);
    if (rc) return rc; /* some of what is wrong with the keys is seen there */
    rc = ht_tok_from_file(t, f, pre, e);
    ht_file_close(f);
    return rc;
}

#define BYTES4 "a\nb\nab\n<|im_end|>"

static gguf bpe(const char *pre)
{
    gguf g = start();
    kv_str(&g, "model", "gpt2");
    if (pre) kv_str(&g, "pre", pre);
    kv_strs(&g, "tokens", BYTES4);
    kv_i32s(&g, "token_type", "1113");
    kv_strs(&g, "merges", "a b");
    return g;
}

T_CASE(gguf, pre_tokenizer_decides)
{
    static const struct {
        const char *pre, *name;
        bool bos, nfc, whole;
    } want[] = {{"gpt-2", "gpt-2", 0, 0, 0},
                {"llama3", "llama-bpe", 1, 0, 1},
                {"llama-v3", "llama-bpe", 1, 0, 1},
                {"smaug-bpe", "dbrx", 0, 0, 0},
                {"qwen2", "qwen2", 0, 1, 0},
                {"qwen35", "qwen35", 0, 1, 0},
                {"starcoder", "smollm", 0, 0, 0},
                {"refact", "smollm", 0, 0, 0},
                {"command-r", "smollm", 0, 1, 0},
                {"tekken", "tekken", 1, 0, 1},
                {"gpt-4o", "gpt-4o", 0, 0, 0},
                {"deepseek-v3", "deepseek-v3", 1, 0, 0},
                {"deepseek-coder", "deepseek-coder", 0, 0, 0},
                {"default", "default", 0, 0, 0}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        ht_err e = {0};
        ht_tok *t;
        gguf g = bpe(want[i].pre);
        kv_u32(&g, "bos_token_id", 3);
        T_OK(finish(&g, NULL, &t, &e), e);
        T_EQ_STR(ht_tok_pre(t), want[i].name);
        T_CHECK(ht_tok_add_bos(t) == want[i].bos, "%s: add_bos", want[i].pre);
        T_CHECK(!(t->flags & TOK_F_NFC) == !want[i].nfc, "%s: NFC", want[i].pre);
        T_CHECK(!(t->flags & TOK_F_IGNORE_MERGES) == !want[i].whole, "%s: ignore_merges",
                want[i].pre);
        T_EQ_STR(u_ids(t, "ab", 0), "2");
        ht_tok_free(t);
    }
}

T_CASE(gguf, unknown_or_missing_pre_is_an_error_that_says_what_to_do)
{
    ht_err e = {0};
    ht_tok *t;
    gguf g = bpe("nonesuch");
    T_ERR(finish(&g, NULL, &t, &e), HT_EUNSUPPORTED, e, "\"nonesuch\"");
    T_CHECK(strstr(e.msg, "--pre NAME") && !t, "%s", e.msg);
    g = bpe(NULL);
    T_ERR(finish(&g, NULL, &t, &e), HT_EUNSUPPORTED, e, "--pre NAME");
    g = bpe("nonesuch");
    T_OK(finish(&g, "qwen2", &t, &e), e);
    T_EQ_STR(ht_tok_pre(t), "qwen2");
    ht_tok_free(t);
}

T_CASE(gguf, keys_override_the_defaults)
{
    ht_err e = {0};
    ht_tok *t;
    gguf g = bpe("llama-bpe");
    kv_u32(&g, "bos_token_id", 0);
    kv_u32(&g, "eos_token_id", 1);
    kv_u32(&g, "eot_token_id", 2);
    kv_bool(&g, "add_bos_token", false);
    kv_bool(&g, "add_eos_token", true);
    T_OK(finish(&g, NULL, &t, &e), e);
    T_EQ_INT(ht_tok_bos(t), 0);
    T_EQ_INT(ht_tok_eos(t), 1);
    T_EQ_STR(u_ids(t, "a", HT_TOK_BOS), "0 1"); /* no BOS: the text itself is token 0; EOS */
    for (int32_t id = 0; id < 4; id++) T_EQ_INT(ht_tok_is_eog(t, id), id > 0); /* 3 by its text */
    ht_tok_free(t);
}

T_CASE(gguf, what_breaks_the_format)
{
    ht_err e = {0};
    ht_tok *t;
    gguf g = start();
    kv_str(&g, "model", "bert");
    kv_strs(&g, "tokens", BYTES4);
    T_ERR(finish(&g, NULL, &t, &e), HT_EUNSUPPORTED, e, "\"bert\"");
    g = start();
    kv_str(&g, "model", "gpt2");
    T_ERR(finish(&g, "gpt-2", &t, &e), HT_EFORMAT, e, "tokens");
    g = start();
    kv_str(&g, "model", "gpt2");
    kv_strs(&g, "tokens", BYTES4);
    kv_i32s(&g, "token_type", "111");
    T_ERR(finish(&g, "gpt-2", &t, &e), HT_EFORMAT, e, "4 tokens");
    g = start();
    kv_str(&g, "model", "gpt2");
    kv_strs(&g, "tokens", BYTES4);
    kv_i32s(&g, "token_type", "1117");
    kv_strs(&g, "merges", "a b");
    T_ERR(finish(&g, "gpt-2", &t, &e), HT_EFORMAT, e, "token 3");
    static const char *const merges[] = {"a c", "ab", "a b\nb a", "ab a"};
    static const char *const text[] = {"\"a c\"", "\"ab\"", "merge 1", "merge 0"};
    for (size_t i = 0; i < 4; i++) {
        g = start();
        kv_str(&g, "model", "gpt2");
        kv_strs(&g, "tokens", BYTES4);
        kv_strs(&g, "merges", merges[i]);
        T_ERR(finish(&g, "gpt-2", &t, &e), HT_EFORMAT, e, text[i]);
    }
    g = bpe("gpt-2");
    kv_u32(&g, "eos_token_id", 4);
    T_ERR(finish(&g, NULL, &t, &e), HT_EFORMAT, e, "there are 4 tokens");
}

T_CASE(gguf, spm_rules)
{
    static const float score[] = {0, 0, 0, 0, 0, -1, -1, -2};
    static const char tokens[] = "<unk>\n<s>\n</s>\n<0x41>\n\xe2\x96\x81\nb\n\xe2\x96\x81"
                                 "b\nbb";
    ht_err e = {0};
    ht_tok *t;
    for (int prefix = 0; prefix < 3; prefix++) {
        gguf g = start();
        kv_str(&g, "model", "llama");
        kv_strs(&g, "tokens", tokens);
        kv_i32s(&g, "token_type", "23361111");
        kv_f32s(&g, "scores", score, 8);
        if (prefix) kv_bool(&g, "add_space_prefix", prefix == 1);
        if (prefix == 2) kv_bool(&g, "remove_extra_whitespaces", true);
        T_OK(finish(&g, NULL, &t, &e), e);
        T_EQ_STR(ht_tok_pre(t), "spm");
        T_CHECK(ht_tok_add_bos(t) && ht_tok_bos(t) == 1 && ht_tok_eos(t) == 2, "defaults");
        T_EQ_STR(u_ids(t, "b", 0), prefix == 2 ? "5" : "6");
        T_EQ_STR(u_ids(t, "bb", 0), prefix == 2 ? "7" : "6 5"); /* the better score joins first */
        T_EQ_STR(u_ids(t, "  b  b ", 0), prefix == 2 ? "5 6" : "4 4 6 4 6 4");
        T_EQ_STR(u_ids(t, "A", 0), prefix == 2 ? "3" : "4 3");         /* a byte token */
        T_EQ_STR(u_ids(t, "Z\xc3\xa9", 0), prefix == 2 ? "0" : "4 0"); /* a run of unknown: one */
        T_EQ_STR(u_ids(t, "b</s>b", HT_TOK_SPECIAL), prefix == 2 ? "5 2 5" : "6 2 6");
        ht_tok_free(t);
    }
    gguf g = start();
    kv_str(&g, "model", "llama");
    kv_strs(&g, "tokens", "<unk>\n<s>\n</s>\n<0x4G>");
    kv_i32s(&g, "token_type", "2336");
    kv_f32s(&g, "scores", score, 4);
    T_ERR(finish(&g, NULL, &t, &e), HT_EFORMAT, e, "<0x4G>");
    g = start();
    kv_str(&g, "model", "llama");
    kv_strs(&g, "tokens", "<unk>\n<s>\n</s>");
    T_ERR(finish(&g, NULL, &t, &e), HT_EFORMAT, e, "scores");
    g = start();
    kv_str(&g, "model", "llama");
    kv_strs(&g, "tokens", "<unk>\n<s>\n</s>");
    kv_f32s(&g, "scores", score, 3);
    T_ERR(finish(&g, "qwen2", &t, &e), HT_EARG, e, "no pre-tokenizer");
}

/* ---- both sources, one form ---- */

static void same_blob(const char *a, const char *b)
{
    ht_tok *x = u_open(a, NULL), *y = u_open(b, NULL);
    ht_err e = {0};
    ht_buf bx, by;
    ht_buf_init(&bx, 0);
    ht_buf_init(&by, 0);
    T_OK(ht_tok_save(x, &bx, &e), e);
    T_OK(ht_tok_save(y, &by, &e), e);
    T_CHECK(bx.n == by.n && !memcmp(bx.p, by.p, bx.n), "%s and %s: %zu and %zu bytes", a, b, bx.n,
            by.n);
    T_EQ_MEM(ht_tok_sha256(x), ht_tok_sha256(y), 32);
    ht_buf_done(&bx);
    ht_buf_done(&by);
    ht_tok_free(x);
    ht_tok_free(y);
}

T_CASE(sources, tale_9m)
{
    same_blob("models/tale-9m-f16.gguf", DATA "tale-9m");
}

T_CASE(sources, spm)
{
    same_blob(DATA "spm.gguf", DATA "spm");
}

T_CASE(sources, golden_arch)
{
    static const char *const arch[] = {"gemma3", "llama", "llama3_rope", "mistral_swa", "mixtral",
                                       "phi3",   "qwen2", "qwen3",       "qwen3_moe"};
    for (size_t i = 0; i < sizeof arch / sizeof *arch; i++) {
        char a[64], b[64];
        snprintf(a, sizeof a, "golden/arch/%s/model.gguf", arch[i]);
        snprintf(b, sizeof b, "golden/arch/%s", arch[i]);
        same_blob(t_shared(a), t_shared(b));
    }
}

/* The draft model is made for the target: speculation needs to see that they speak alike. */
T_CASE(sources, padding_and_bpe_unknown_ids_are_no_part)
{
    ht_err e = {0};
    ht_tok *x, *y;
    gguf g = bpe("qwen2");
    T_OK(finish(&g, NULL, &x, &e), e);
    g = bpe("qwen2");
    kv_u32(&g, "padding_token_id", 1);
    kv_u32(&g, "unknown_token_id", 1);
    T_OK(finish(&g, NULL, &y, &e), e);
    T_EQ_MEM(ht_tok_sha256(x), ht_tok_sha256(y), 32);
    ht_tok_free(x);
    ht_tok_free(y);
}

/* ---- tokenizer.json ---- */

#define JSON(normalizer, pre, post)                                                                \
    "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true},{\"id\":5,\"content\":"    \
    "\"</s>\",\"special\":true},{\"id\":6,\"content\":\"<e>\",\"special\":true}],"                 \
    "\"normalizer\":" normalizer ",\"pre_tokenizer\":" pre ",\"post_processor\":" post             \
    ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xc4\xa0\":3},\"merges\":" \
    "[\"a b\"]}}"
#define BL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define SPLIT(rx, how)                                                                             \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" rx   \
    "\"}," how "},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}"
#define ISOLATED "\"behavior\":\"Isolated\",\"invert\":false"

T_CASE(hf, other_patterns_run_in_pcre2)
{
    ht_err e = {0};
    ht_tok *t;
    T_OK(u_import(&t, JSON("null", SPLIT("a(?=b)", ISOLATED), "null"), NULL, NULL, NULL, NULL, &e),
         e);
    T_EQ_STR(ht_tok_pre(t), "custom");
    T_EQ_STR(u_ids(t, "abba", 0), "0 1 1 0"); /* cut between a and b: no merge */
    ht_tok_free(t);
    T_OK(u_import(&t,
                  JSON("null", SPLIT("[ab]+", "\"behavior\":\"Removed\",\"invert\":true"), "null"),
                  NULL, NULL, NULL, NULL, &e),
         e);
    T_EQ_STR(u_ids(t, "ab ab", 0), "2 2"); /* the gap is dropped */
    ht_tok_free(t);
    T_ERR(u_import(&t, JSON("null", SPLIT("[a[b]]", ISOLATED), "null"), NULL, NULL, NULL, NULL, &e),
          HT_EUNSUPPORTED, e, "a set inside a set");
    T_OK(u_import(&t, JSON("null", SPLIT("[a[b]]", ISOLATED), "null"), NULL, NULL, NULL, "gpt-2",
                  &e),
         e);
    T_EQ_STR(ht_tok_pre(t), "gpt-2");
    ht_tok_free(t);
}

T_CASE(hf, what_has_no_place_is_named)
{
    static const struct {
        const char *json, *text;
    } bad[] = {
        {JSON("{\"type\":\"NFKC\"}", BL, "null"), "NFKC"},
        {JSON("null", SPLIT("a", "\"behavior\":\"MergedWithNext\""), "null"), "Split"},
        {JSON("null", "{\"type\":\"Whitespace\"}", "null"), "neither byte-level"},
        {JSON("null", BL, "{\"type\":\"BertProcessing\"}"), "BertProcessing"},
        {JSON("null", BL,
              "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},"
              "{\"SpecialToken\":{\"id\":\"<e>\"}}]}"),
         "<e>"},
        {"{\"model\":{\"type\":\"Unigram\"}}", "Unigram"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ht_err e = {0};
        ht_tok *t;
        T_ERR(u_import(&t, bad[i].json, NULL, NULL, NULL, NULL, &e), HT_EUNSUPPORTED, e,
              bad[i].text);
        T_CHECK(!t, "case %zu left a tokenizer", i);
    }
    static const char *const broken[] = {
        "{\"pre_tokenizer\":" BL
        ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}",
        "{\"pre_tokenizer\":" BL
        ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999},\"merges\":[]}}",
        "{\"pre_tokenizer\":" BL
        ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
        "{\"pre_tokenizer\":" BL
        ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}",
        "{\"pre_tokenizer\":" BL
        ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}",
        "{\"pre_tokenizer\":" BL ",\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
        "{\"pre_tokenizer\":" BL ",\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}",
        "{\"pre_tokenizer\":" BL
        ",\"added_tokens\":[{\"id\":0}],\"model\":{\"type\":\"BPE\",\"vocab\":"
        "{\"a\":0},\"merges\":[]}}",
        "{\"pre_tokenizer\":" BL
        ",\"added_tokens\":[{\"id\":0,\"content\":\"z\"}],\"model\":{\"type\":"
        "\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        ht_err e = {0};
        ht_tok *t;
        int rc = u_import(&t, broken[i], NULL, NULL, NULL, NULL, &e);
        T_CHECK(rc == HT_EFORMAT && !t && e.msg[0], "case %zu: %d %s", i, rc, e.msg);
    }
}

T_CASE(hf, bos_eos_and_the_end_set)
{
    ht_err e = {0};
    ht_tok *t;
    const char *post = JSON("null", BL,
                            "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
                            "{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":"
                            "{\"id\":\"</s>\"}}]}");
    const char *cfg = "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"}}";
    T_OK(u_import(&t, post, cfg, "{\"vocab_size\":9}", "{\"eos_token_id\":[6,5]}", NULL, &e), e);
    T_EQ_STR(u_ids(t, "ab", HT_TOK_BOS), "4 2 5");
    T_EQ_STR(u_ids(t, "ab", 0), "2");
    T_EQ_INT(ht_tok_size(t), 9); /* rows 7 and 8 are unused */
    const int32_t *ids;
    T_EQ_INT(ht_tok_eog(t, &ids), 2);
    T_CHECK(ids[0] == 5 && ids[1] == 6, "%d %d", ids[0], ids[1]);
    ht_buf b;
    ht_buf_init(&b, 0);
    T_OK(ht_tok_bytes(t, 8, true, &b, &e), e);
    T_EQ_INT(b.n, 0);
    ht_buf_done(&b);
    ht_tok_free(t);
    T_OK(u_import(&t, post,
                  "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"add_bos_token\":false,"
                  "\"add_eos_token\":false}",
                  NULL, NULL, NULL, &e),
         e);
    T_EQ_STR(u_ids(t, "ab", HT_TOK_BOS), "2");
    ht_tok_free(t);
    T_OK(u_import(&t, JSON("null", BL, "null"), NULL, "{\"bos_token_id\":4,\"eos_token_id\":[6,4]}",
                  NULL, NULL, &e),
         e);
    T_EQ_INT(ht_tok_bos(t), 4);
    T_EQ_INT(ht_tok_eos(t), 6);
    T_CHECK(ht_tok_is_eog(t, 4) && ht_tok_is_eog(t, 5) && ht_tok_is_eog(t, 6), "5 by its text");
    ht_tok_free(t);
}

T_CASE(hf, byte_level_prefix_space)
{
    ht_err e = {0};
    ht_tok *t;
    T_OK(u_import(&t, JSON("null", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "null"),
                  NULL, NULL, NULL, NULL, &e),
         e);
    T_EQ_STR(u_ids(t, "ab", 0), "3 2");
    T_EQ_STR(u_ids(t, " ab", 0), "3 2");
    T_EQ_STR(u_ids(t, "a<s>b", HT_TOK_SPECIAL), "3 0 4 3 1");
    ht_tok_free(t);
}
