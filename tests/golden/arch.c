/* arch.c - every architecture against an independent implementation in float64 (golden/arch:
 * Hugging Face transformers; golden/own: tests/oracle), from GGUF and from safetensors, on every
 * backend, with F32 KV. The tolerance 2e-4 is the README's: float32 of two other implementations is
 * up to 5e-5 away, every wrong setting 2e-3 or more. */
#include "drive.h"

#include <limits.h>

static const double TOLERANCE = 2e-4;

/* Directory of a case, by a file that it has. */
static const char *folder(const char *name, const char *file)
{
    static char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s", drive_golden(name, file));
    path[strlen(path) - strlen(file) - 1] = 0;
    return path;
}

static ht_json *read_json(ht_arena *a, const char *dir, const char *file)
{
    ht_err e = {0};
    ht_json *j;
    size_t n;
    char path[600];
    (void)snprintf(path, sizeof path, "%s/%s", dir, file);
    char *text = t_slurp(path, &n);
    T_OK(ht_json_parse(a, text, n, 0, file, &j, &e), e);
    free(text);
    return j;
}

static double worst(const float *got, const ht_json *want)
{
    double w = 0;
    for (size_t i = 0; i < want->n; i++) {
        double diff = fabs((double)got[i] - want->at[i].d);
        if (!(diff <= w)) w = diff;
    }
    return w;
}

/* Logits at the stated positions and the greedy continuation of one prompt. */
static void check_prompt(drive *d, const ht_json *p, const char *what)
{
    ht_err e = {0};
    ht_arena *a;
    ht_seq *seq;
    uint32_t n, n_greedy, want[16], n_want = 0, vocab = d->model->spec.vocab;
    T_OK(ht_arena_new(&a, 0, &e), e);
    int32_t *ids = drive_ids(a, ht_json_get(p, "prompt_ids"), &n);
    int32_t *greedy = drive_ids(a, ht_json_get(p, "greedy"), &n_greedy);
    const ht_json *gold = ht_json_get(p, "logits_f64");
    for (size_t i = 0; i < gold->n; i++) want[n_want++] = (uint32_t)atoi(gold->at[i].key);
    float *l = ht_arena_array(a, (size_t)n_want * vocab, sizeof *l);
    uint32_t orig = d->model->spec.rope_orig_ctx;
    bool lengthy = orig && n + n_greedy > orig;

    T_OK(ht_seq_new(&seq, d->pool, d->p.ctx, &e), e);
    drive_eval(d, seq, ids, n, want, n_want, lengthy, l);
    for (uint32_t i = 0; i < n_want; i++) {
        double w = worst(l + (size_t)i * vocab, &gold->at[i]);
        T_SOFT(gold->at[i].n == vocab && w <= TOLERANCE, "%s pos %u: off by %.2e", what, want[i],
               w);
    }
    int32_t *got = ht_arena_array(a, n_greedy, sizeof *got);
    T_CHECK(want[n_want - 1] == n - 1, "the golden states the last position");
    drive_greedy(d, seq, l + (size_t)(n_want - 1) * vocab, n_greedy, lengthy, got);
    for (uint32_t i = 0; i < n_greedy; i++)
        T_SOFT(got[i] == greedy[i], "%s greedy %u: %d for %d", what, i, got[i], greedy[i]);
    ht_seq_free(seq);
    ht_arena_free(a);
}

static void check_source(const char *name, const char *file, const char *golden, uint32_t ubatch)
{
    ht_err e = {0};
    ht_arena *a;
    char path[600], what[120], dir[512];
    (void)snprintf(dir, sizeof dir, "%s", folder(name, file));
    T_OK(ht_arena_new(&a, 0, &e), e);
    ht_json *gold = read_json(a, dir, golden);
    const ht_json *prompts = ht_json_get(gold, "prompts");
    bool gguf = !strcmp(file, "model.gguf");
    (void)snprintf(path, sizeof path, "%s%s", dir, gguf ? "/model.gguf" : "");
    for (size_t k = 0; ht_backends[k]; k++) {
        drive d;
        drive_params p = {.be = ht_backends[k], .ctx = 128, .ubatch = ubatch};
        if (!drive_open(&d, path, &p)) continue;
        for (size_t i = 0; i < prompts->n; i++) {
            const char *pn;
            T_OK(ht_json_str(&prompts->at[i], "name", "?", &pn, &e), e);
            (void)snprintf(what, sizeof what, "%s %s %s %s", name, gguf ? "gguf" : "hf", pn,
                           p.be->name);
            check_prompt(&d, &prompts->at[i], what);
        }
        drive_close(&d);
    }
    ht_arena_free(a);
}

#define ARCH(name, gguf_golden)                                                                    \
    T_CASE(arch_gguf, name)                                                                        \
    {                                                                                              \
        check_source(#name, "model.gguf", gguf_golden, 80);                                        \
    }                                                                                              \
    T_CASE(arch_hf, name)                                                                          \
    {                                                                                              \
        check_source(#name, "model.safetensors", "golden.json", 80);                               \
    }                                                                                              \
    /* chunks that end inside pages and windows */                                                 \
    T_CASE(arch_chunked, name)                                                                     \
    {                                                                                              \
        check_source(#name, "model.safetensors", "golden.json", 7);                                \
    }
ARCH(llama, "golden.json")
ARCH(llama3_rope, "golden.json")
ARCH(mistral_swa, "golden_gguf.json")
ARCH(mixtral, "golden.json")
ARCH(qwen2, "golden.json")
ARCH(qwen3, "golden.json")
ARCH(qwen3_moe, "golden.json")
ARCH(gemma3, "golden.json")
ARCH(phi3, "golden.json")
ARCH(qwen2_moe, "golden.json")
ARCH(gemma2, "golden.json")
ARCH(smollm3, "golden.json")
#undef ARCH

/* ---- one spec from both sources -------------------------------------------------------------- */

static char *spec_text(const char *path)
{
    ht_err e = {0};
    ht_file *f;
    ht_arena *a;
    ht_spec s;
    ht_json *j;
    ht_buf b;
    ht_buf_init(&b, 0);
    T_OK(ht_arena_new(&a, 0, &e), e);
    T_OK(ht_file_open(&f, path, NULL, &e), e);
    T_OK(ht_spec_read(&s, f, a, &e), e);
    T_OK(ht_spec_to_json(&s, a, &j, &e), e);
    T_OK(ht_json_write(j, HT_JSON_CANON, &b, &e), e);
    ht_file_close(f);
    ht_arena_free(a);
    return ht_buf_take(&b, NULL);
}

static void same_spec(const char *name)
{
    char gguf[600], dir[512];
    (void)snprintf(dir, sizeof dir, "%s", folder(name, "model.safetensors"));
    (void)snprintf(gguf, sizeof gguf, "%s", folder(name, "model.gguf"));
    strcat(gguf, "/model.gguf");
    char *x = spec_text(gguf), *y = spec_text(dir);
    T_CHECK(!strcmp(x, y), "%s:\ngguf %s\nhf   %s", name, x, y);
    ht_mem_free(x);
    ht_mem_free(y);
}
#define SAME(name)                                                                                 \
    T_CASE(same_spec, name)                                                                        \
    {                                                                                              \
        same_spec(#name);                                                                          \
    }
SAME(llama)
SAME(llama3_rope)
SAME(mixtral)
SAME(qwen2)
SAME(qwen3)
SAME(qwen3_moe)
SAME(gemma3)
SAME(phi3)
SAME(qwen2_moe)
SAME(gemma2)
SAME(smollm3)
#undef SAME
