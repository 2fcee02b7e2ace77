/* vectors.c - published and Hugging Face vectors, in both directions. */
#include "util.h"

static ht_json *parse(ht_arena *a, const char *path)
{
    ht_err e = {0};
    ht_json *j;
    size_t n;
    char *s = t_slurp(path, &n);
    T_OK(ht_json_parse(a, s, n, 0, path, &j, &e), e);
    free(s);
    return j;
}

/* .inp: texts separated by a line; .out: a line of ids each. */
static void inp_out(const char *model, const char *out_path)
{
    static const char sep[] = "\n__ggml_vocab_test__\n";
    ht_tok *t = u_open(model, NULL);
    size_t n, n_out, cases = 0;
    char *in = t_slurp(DATA "vocab.inp", &n), *out = t_slurp(out_path, &n_out), *line = out;
    for (char *s = in, *end; (end = strstr(s, sep)); s = end + sizeof sep - 1, cases++) {
        char *eol = strchr(line, '\n');
        T_CHECK(eol, "%s has too few lines", out_path);
        *eol = '\0';
        while (*line == ' ') line++;
        for (char *x = eol; x > line && x[-1] == ' ';) *--x = '\0';
        ht_ids ids = u_encode(t, s, (size_t)(end - s), 0);
        T_SOFT(!strcmp(u_list(&ids), line), "%s case %zu \"%.*s\": %s, want %s", model, cases,
               (int)(end - s), s, u_list(&ids), line);
        u_decodes(t, &ids, s, (size_t)(end - s));
        ht_ids_done(&ids);
        line = eol + 1;
    }
    T_EQ_INT(cases, 46);
    free(in);
    free(out);
    ht_tok_free(t);
}

static void mixed(const char *model, const char *path)
{
    ht_err e = {0};
    ht_arena *a;
    T_OK(ht_arena_new(&a, 0, &e), e);
    const ht_json *cases = ht_json_get(parse(a, path), "cases");
    ht_tok *t = u_open(model, NULL);
    T_EQ_INT(cases ? cases->n : 0, 412);
    for (size_t i = 0; i < cases->n; i++) {
        const ht_json *text = ht_json_get(&cases->at[i], "text"),
                      *want = ht_json_get(&cases->at[i], "ids");
        const ht_json *back = ht_json_get(&cases->at[i], "decoded");
        ht_ids ids = u_encode(t, text->s, text->n, HT_TOK_SPECIAL);
        bool same = ids.n == want->n;
        for (size_t k = 0; same && k < ids.n; k++) same = ids.id[k] == want->at[k].i;
        T_SOFT(same, "%s case %zu \"%s\": %s", path, i, text->s, u_list(&ids));
        u_decodes(t, &ids, back->s, back->n);
        ht_ids_done(&ids);
    }
    ht_tok_free(t);
    ht_arena_free(a);
}

T_CASE(vectors, llama_spm)
{
    inp_out(DATA "llama-spm.gguf", DATA "llama-spm.out");
}

T_CASE(vectors, gpt2)
{
    inp_out(t_shared("tokenizer-vectors/gpt-2.gguf"), DATA "gpt-2.out");
}

T_CASE(vectors, starcoder)
{
    inp_out(t_shared("tokenizer-vectors/starcoder.gguf"), DATA "starcoder.out");
}

T_CASE(vectors, qwen2)
{
    inp_out(t_shared("tokenizers/qwen3"), DATA "qwen2.out");
}

T_CASE(vectors, mixed_tale)
{
    mixed("models/tale-9m-f16.gguf", DATA "tale-9m-mixed.json");
    mixed(DATA "tale-9m", DATA "tale-9m-mixed.json");
}

T_CASE(vectors, mixed_qwen3)
{
    mixed(t_shared("tokenizers/qwen3"), t_shared("tokenizer-vectors/qwen3-mixed.json"));
}

T_CASE(vectors, mixed_smollm2)
{
    mixed(t_shared("models/smollm2-draft-15m-q8_0.gguf"),
          t_shared("tokenizer-vectors/smollm2-mixed.json"));
}

/* sentencepiece itself puts one space before the text: what legacy:false asks for. */
T_CASE(vectors, sentencepiece)
{
    ht_err e = {0};
    ht_arena *a;
    T_OK(ht_arena_new(&a, 0, &e), e);
    const ht_json *cases = ht_json_get(parse(a, DATA "spm.cases.json"), "cases");
    size_t n, differ = 0;
    char *tok = t_slurp(DATA "spm/tokenizer.json", &n);
    ht_tok *first, *always = u_open(DATA "spm.gguf", NULL);
    T_OK(u_import(&first, tok, "{\"legacy\":false}", NULL, NULL, NULL, &e), e);
    for (size_t i = 0; i < cases->n; i++) {
        const ht_json *text = ht_json_get(&cases->at[i], "text"),
                      *want = ht_json_get(&cases->at[i], "ids");
        ht_ids ids = u_encode(first, text->s, text->n, 0),
               legacy = u_encode(always, text->s, text->n, 0);
        T_EQ_INT(ids.n, want->n);
        for (size_t k = 0; k < ids.n; k++)
            T_CHECK(ids.id[k] == want->at[k].i, "\"%s\": %s", text->s, u_list(&ids));
        u_decodes(first, &ids, text->s, text->n);
        differ += strcmp(u_list(&ids), u_list(&legacy)) != 0;
        ht_ids_done(&ids);
        ht_ids_done(&legacy);
    }
    T_EQ_INT(cases->n, 14);
    T_EQ_INT(differ, 1); /* the text with a user-defined token inside: a space after it */
    ht_tok_free(first);
    ht_tok_free(always);
    free(tok);
    ht_arena_free(a);
}
