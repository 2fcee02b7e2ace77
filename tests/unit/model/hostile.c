/* hostile.c - files that lie about a model: every setting out of bounds, every missing, extra or
 * misshapen tensor is an error that names it. The files are a good one with a few bytes changed. */
#include "core/arena.h"
#include "model/model.h"
#include "test.h"

static const char *const gguf = "tests/data/golden/arch/llama/model.gguf";
static const char *const hf_dir = "tests/data/golden/arch/qwen2";

/* ---- GGUF ------------------------------------------------------------------------------------ */

static char *find(char *p, size_t n, const char *what)
{
    size_t k = strlen(what);
    for (size_t i = 0; i + k <= n; i++)
        if (!memcmp(p + i, what, k)) return p + i;
    T_CHECK(false, "the file has no \"%s\"", what);
    return NULL;
}

static const char *save(const char *p, size_t n)
{
    static char path[300];
    (void)snprintf(path, sizeof path, "%s/m.gguf", t_tmp());
    t_spit(path, p, n);
    return path;
}

/* Opening the file or its model fails with this code and names this: the reader refuses what breaks
 * the format, model/ what breaks the architecture. */
static void refused(const char *path, int code, const char *text)
{
    ht_err e = {0};
    ht_file *f = NULL;
    ht_model *m = NULL;
    int rc = ht_file_open(&f, path, NULL, &e);
    if (!rc) rc = ht_model_open(&m, f, NULL, NULL, &e);
    T_ERR(rc, code, e, text);
    T_CHECK(m == NULL, "nothing is handed out");
    ht_file_close(f);
}

static void with_u32(const char *key, uint32_t v, int code, const char *text)
{
    size_t n;
    char *p = t_slurp(gguf, &n);
    char *at = find(p, n, key) + strlen(key) + 4; /* behind the type */
    memcpy(at, &v, 4);
    refused(save(p, n), code, text);
    free(p);
}

static void renamed(const char *from, const char *to, int code, const char *text)
{
    size_t n;
    char *p = t_slurp(gguf, &n);
    T_EQ_INT(strlen(from), strlen(to));
    memcpy(find(p, n, from), to, strlen(to));
    refused(save(p, n), code, text);
    free(p);
}

T_CASE(hostile, gguf_numbers)
{
    const float zero = 0, nan = NAN;
    uint32_t bits;
    with_u32("llama.block_count", 0, HT_EFORMAT, "block_count");
    with_u32("llama.block_count", 0xffffffffU, HT_EFORMAT, "block_count");
    with_u32("llama.block_count", 5, HT_EFORMAT, "blk.4.");
    with_u32("llama.block_count", 3, HT_EUNSUPPORTED, "blk.3.");
    with_u32("llama.attention.head_count", 0, HT_EFORMAT, "head_count");
    with_u32("llama.attention.head_count", 5, HT_EFORMAT, "5 heads cannot share 2");
    with_u32("llama.attention.head_count", 8, HT_EFORMAT, "blk.0.attn_q.weight");
    with_u32("llama.attention.head_count_kv", 0, HT_EFORMAT, "head_count_kv");
    with_u32("llama.attention.head_count_kv", 0x40000000, HT_EFORMAT, "head_count_kv");
    with_u32("llama.attention.key_length", 0, HT_EFORMAT, "key_length");
    with_u32("llama.attention.key_length", 0x7fffffff, HT_EFORMAT, "key_length");
    with_u32("llama.attention.key_length", 17, HT_EUNSUPPORTED, "keys of 17");
    with_u32("llama.embedding_length", 65, HT_EFORMAT, "token_embd.weight");
    with_u32("llama.embedding_length", 0xffffffffU, HT_EFORMAT, "embedding_length");
    with_u32("llama.feed_forward_length", 0, HT_EFORMAT, "feed-forward");
    with_u32("llama.feed_forward_length", 161, HT_EFORMAT, "blk.0.ffn_gate.weight");
    with_u32("llama.context_length", 0, HT_EFORMAT, "context_length");
    with_u32("llama.rope.dimension_count", 15, HT_EFORMAT, "15 dims");
    with_u32("llama.rope.dimension_count", 0, HT_EFORMAT, "0 dims");
    with_u32("llama.rope.dimension_count", 18, HT_EFORMAT, "dimension_count 18");
    memcpy(&bits, &zero, 4);
    with_u32("llama.attention.layer_norm_rms_epsilon", bits, HT_EFORMAT, "epsilon");
    with_u32("llama.rope.freq_base", bits, HT_EFORMAT, "rope base");
    memcpy(&bits, &nan, 4);
    with_u32("llama.attention.layer_norm_rms_epsilon", bits, HT_EFORMAT, "epsilon");
    with_u32("llama.rope.freq_base", bits, HT_EFORMAT, "freq_base");
}

T_CASE(hostile, gguf_tensors)
{
    renamed("blk.2.attn_k.weight", "blk.2.attn_x.weight", HT_EFORMAT,
            "blk.2.attn_k.weight is missing");
    renamed("output_norm.weight", "output_more.weight", HT_EFORMAT,
            "output_norm.weight is missing");
    renamed("token_embd.weight", "token_emb_.weight", HT_EFORMAT, "no token embedding");
    /* Without its head the file is a tied model with a tensor too many. */
    renamed("output.weight", "outpux.weight", HT_EUNSUPPORTED, "outpux.weight has no place");
    renamed("blk.1.ffn_gate.weight", "blk.1.ffn_gatx.weight", HT_EFORMAT, "blk.1.ffn_up.weight");
}

T_CASE(hostile, unknown_architecture_lists_the_known)
{
    size_t n;
    const char *key = "general.architecture";
    char *p = t_slurp(gguf, &n), *at = find(p, n, key) + strlen(key) + 4 + 8; /* type, length */
    T_EQ_MEM(at, "llama", 5);
    memcpy(at, "mamba", 5);
    refused(save(p, n), HT_EUNSUPPORTED, "\"mamba\" is not supported; supported: llama, ");
    free(p);
}

/* ---- Hugging Face folders -------------------------------------------------------------------- */

/* text with one piece replaced; the old text is freed. */
static char *replace(char *text, const char *from, const char *to)
{
    char *at = strstr(text, from), *out = malloc(strlen(text) + strlen(to) + 1);
    T_CHECK(at != NULL, "config.json has no %s", from);
    memcpy(out, text, (size_t)(at - text));
    strcpy(out + (at - text), to);
    strcat(out, at + strlen(from));
    free(text);
    return out;
}

/* The folder with one or two pieces of config.json replaced. */
static const char *with_config2(const char *from, const char *to, const char *from2,
                                const char *to2)
{
    static char dir[300];
    char path[400];
    size_t n;
    (void)snprintf(dir, sizeof dir, "%s", t_tmp());
    (void)snprintf(path, sizeof path, "%s/model.safetensors", hf_dir);
    char *w = t_slurp(path, &n);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    t_spit(path, w, n);
    free(w);
    (void)snprintf(path, sizeof path, "%s/config.json", hf_dir);
    char *c = replace(t_slurp(path, &n), from, to);
    if (from2) c = replace(c, from2, to2);
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    t_spit(path, c, strlen(c));
    free(c);
    return dir;
}

static const char *with_config(const char *from, const char *to)
{
    return with_config2(from, to, NULL, NULL);
}

T_CASE(hostile, config_settings)
{
    static const struct {
        const char *from, *to;
        int code;
        const char *text;
    } c[] = {
        {"\"qwen2\"", "\"bert\"", HT_EUNSUPPORTED, "\"bert\" is not supported; supported: llama"},
        {"\"model_type\"", "\"model_typo\"", HT_EFORMAT, "model_type is missing"},
        {"\"silu\"", "\"relu\"", HT_EUNSUPPORTED, "activation \"relu\""},
        {"\"num_hidden_layers\": 4", "\"num_hidden_layers\": 4000", HT_EFORMAT, "4000 layers"},
        {"\"num_hidden_layers\": 4", "\"num_hidden_layers\": -4", HT_EFORMAT, "num_hidden_layers"},
        {"\"num_hidden_layers\": 4", "\"num_hidden_layers\": \"4\"", HT_EFORMAT,
         "num_hidden_layers"},
        {"\"num_attention_heads\": 4", "\"num_attention_heads\": 0", HT_EFORMAT,
         "num_attention_heads"},
        {"\"hidden_size\": 64", "\"hidden_size\": 128", HT_EFORMAT, "shape [512,64"},
        {"\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}",
         HT_EUNSUPPORTED, "rope type \"dynamic\""},
        {"\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 2.0}",
         HT_EFORMAT, "short_factor"},
        {"\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0}",
         HT_EFORMAT, "factor 0"},
        {"\"use_sliding_window\": false",
         "\"use_sliding_window\": true, \"partial_rotary_factor\": 2", HT_EFORMAT,
         "partial_rotary_factor 2"},
        {"\"rope_theta\": 1000000.0", "\"rope_theta\": -1", HT_EFORMAT, "rope base"},
        {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": -1", HT_EFORMAT, "epsilon"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        refused(with_config(c[i].from, c[i].to), c[i].code, c[i].text);
    }
    const char *on = "\"use_sliding_window\": false", *off = "\"use_sliding_window\": true";
    refused(with_config2(on, off, "\"full_attention\",", "\"half_attention\","), HT_EUNSUPPORTED,
            "half_attention");
    refused(with_config2(on, off, "\"full_attention\",", ""), HT_EFORMAT, "3 entries for 4 layers");
}

static void spec_of(const char *dir, ht_arena *a, ht_spec *s)
{
    ht_err e = {0};
    ht_file *f;
    T_OK(ht_file_open(&f, dir, NULL, &e), e);
    T_OK(ht_spec_read(s, f, a, &e), e);
    ht_file_close(f);
}

/* YaRN and linear scaling against values from tests/oracle/rope.py (float64). */
T_CASE(rope, yarn_and_linear)
{
    static const double want[8] = {1.0,     0.111142463,    0.00790569415,  0.00140585331,
                                   0.00025, 4.44569853e-05, 7.90569415e-06, 1.40585331e-06};
    ht_err e = {0};
    ht_arena *a;
    ht_spec s;
    T_OK(ht_arena_new(&a, 0, &e), e);
    spec_of(with_config("\"rope_scaling\": null",
                        "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
                        "\"original_max_position_embeddings\": 128}"),
            a, &s);
    T_EQ_INT(s.rope[0].dims, 16);
    for (int i = 0; i < 8; i++) T_NEAR((double)s.rope[0].inv_freq[i] / want[i], 1.0, 3e-7);
    T_NEAR((double)s.rope[0].mscale, 0.1 * log(4) + 1, 1e-7);
    spec_of(with_config("\"rope_scaling\": null",
                        "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}"),
            a, &s);
    for (int i = 0; i < 8; i++)
        T_NEAR((double)s.rope[0].inv_freq[i] * pow(1e6, i / 8.0) * 4, 1.0, 3e-7);
    T_NEAR((double)s.rope[0].mscale, 1, 0);
    /* Newer folders keep the base inside rope_parameters. */
    spec_of(with_config("\"rope_scaling\": null,\n  \"rope_theta\": 1000000.0",
                        "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 100.0}"),
            a, &s);
    T_NEAR((double)s.rope[0].inv_freq[1] * pow(100, 1 / 8.0), 1.0, 3e-7);
    ht_arena_free(a);
}

/* Windows count only where they are switched on, and only if a sequence can outgrow them. */
T_CASE(spec, qwen_windows)
{
    const char *on = "\"use_sliding_window\": false", *off = "\"use_sliding_window\": true";
    ht_err e = {0};
    ht_arena *a;
    ht_spec s;
    T_OK(ht_arena_new(&a, 0, &e), e);
    spec_of(with_config("\"sliding_window\": null", "\"sliding_window\": 24"), a, &s);
    T_EQ_INT(s.window, 0);
    spec_of(with_config2(on, "\"use_sliding_window\": true, \"layer_types_\": 0",
                         "\"sliding_window\": null", "\"sliding_window\": 24"),
            a, &s);
    T_EQ_INT(s.window, 0); /* layer_types says full everywhere */
    spec_of(with_config2("\"layer_types\"", "\"types_unknown\"", on,
                         "\"use_sliding_window\": true, \"sliding_windows\": 0"),
            a, &s);
    T_EQ_INT(s.window, 0); /* 28 layers stay full by max_window_layers */
    spec_of(with_config2("\"layer_types\"", "\"types_unknown\"", "\"max_window_layers\": 28",
                         "\"max_window_layers\": 1"),
            a, &s);
    T_EQ_INT(s.window, 0); /* switched off */
    spec_of(with_config2(on, off, "\"full_attention\",\n    \"full_attention\",",
                         "\"full_attention\",\n    \"sliding_attention\","),
            a, &s);
    T_EQ_INT(s.window, 0); /* the default window of 4096 is wider than the context of 512 */
    ht_arena_free(a);
}
