/* from_gguf.c - the normal form from tokenizer.ggml.* keys. */
#include "tok/tok_int.h"
#include <string.h>

#define KEY(k) "tokenizer.ggml." k

static const ht_meta *array(const ht_file *f, const char *key, uint8_t a, uint8_t b, ht_err *e,
                            int *rc)
{
    const ht_meta *m = ht_file_meta(f, key);
    *rc = 0;
    if (!m || (m->type == HT_META_ARR && (m->n == 0 || m->elem == a || m->elem == b))) return m;
    *rc = HT_FAIL(e, HT_EFORMAT, "GGUF key %s is not an array of %s", key,
                  a == HT_META_STR ? "strings" : "numbers");
    return NULL;
}

/* An id key: absent or out of int32 is -1 or def; a negative or huge value counts as none. */
static int get_id(const ht_file *f, const char *key, int32_t def, int32_t *out, ht_err *e)
{
    const ht_meta *m = ht_file_meta(f, key);
    *out = def;
    if (!m) return 0;
    if (m->type == HT_META_U64) *out = m->u <= INT32_MAX ? (int32_t)m->u : -1;
    else if (m->type == HT_META_I64) *out = m->i >= 0 && m->i <= INT32_MAX ? (int32_t)m->i : -1;
    else return HT_FAIL(e, HT_EFORMAT, "GGUF key %s is not an integer", key);
    return 0;
}

static int get_bool(const ht_file *f, const char *key, bool def, bool *out, ht_err *e)
{
    const ht_meta *m = ht_file_meta(f, key);
    *out = def;
    if (!m) return 0;
    if (m->type != HT_META_BOOL) return HT_FAIL(e, HT_EFORMAT, "GGUF key %s is not a bool", key);
    *out = m->b;
    return 0;
}

/* Texts and types. */
static int read_tokens(ht_tok *t, const ht_file *f, const ht_meta *tokens, ht_err *e)
{
    int rc;
    const ht_meta *types = array(f, KEY("token_type"), HT_META_I64, HT_META_U64, e, &rc);
    if (rc) return rc;
    if (types && types->n != t->n)
        return HT_FAIL(e, HT_EFORMAT, "GGUF: %zu token types for %u tokens", types->n, t->n);
    for (uint32_t i = 0; i < t->n; i++) {
        int64_t type = TOK_NORMAL;
        if (!ht_meta_arr_str(tokens, i, &t->text[i].s, &t->text[i].n) ||
            (types && !ht_meta_arr_i64(types, i, &type)))
            return HT_FAIL(e, HT_EFORMAT, "GGUF: token %u cannot be read", i);
        t->type[i] = type >= TOK_NORMAL && type <= TOK_BYTE ? (uint8_t)type : 0;
    }
    return 0;
}

/* "a b": the parts hold no space themselves, but one may begin with it. */
static int read_merges(ht_tok *t, const ht_file *f, ht_err *e)
{
    int rc;
    const ht_meta *m = array(f, KEY("merges"), HT_META_STR, HT_META_STR, e, &rc);
    if (rc) return rc;
    if (!m)
        return HT_FAIL(e, HT_EFORMAT,
                       "GGUF: a BPE vocabulary without " KEY("merges") ": convert "
                                                                       "the model again");
    HT_TRY(tok__alloc_merges(t, m->n, e));
    for (uint32_t i = 0; i < t->n_merges; i++) {
        const char *s;
        size_t n;
        if (!ht_meta_arr_str(m, i, &s, &n))
            return HT_FAIL(e, HT_EFORMAT, "GGUF: merge %u cannot be read", i);
        const char *gap = n > 2 ? memchr(s + 1, ' ', n - 2) : NULL;
        int32_t a = gap ? ht_tok_find(t, s, (size_t)(gap - s)) : -1;
        int32_t b = gap ? ht_tok_find(t, gap + 1, (size_t)(s + n - gap - 1)) : -1;
        if (a < 0 || b < 0)
            return HT_FAIL(e, HT_EFORMAT, "GGUF: merge %u \"%.*s\" does not name two tokens", i,
                           (int)(n < 60 ? n : 60), s);
        t->merge[i][0] = (uint32_t)a;
        t->merge[i][1] = (uint32_t)b;
    }
    return 0;
}

static int read_scores(ht_tok *t, const ht_file *f, ht_err *e)
{
    int rc;
    const ht_meta *m = array(f, KEY("scores"), HT_META_F64, HT_META_F64, e, &rc);
    if (rc) return rc;
    if (!m || m->n != t->n)
        return HT_FAIL(e, HT_EFORMAT, "GGUF: an SPM vocabulary of %u tokens with %zu scores", t->n,
                       m ? m->n : 0);
    double *score = ht_arena_array(t->arena, t->n, sizeof *score);
    if (!score) return HT_FAIL(e, HT_ENOMEM, "no memory for a vocabulary");
    for (uint32_t i = 0; i < t->n; i++)
        if (!ht_meta_arr_f64(m, i, &score[i]))
            return HT_FAIL(e, HT_EFORMAT, "GGUF: score %u cannot be read", i);
    return tok__rank_scores(t, score, e);
}

static int read_bpe(ht_tok *t, const ht_file *f, const char *pre, bool *add_bos, ht_err *e)
{
    size_t n = pre ? strlen(pre) : 0;
    if (!pre) HT_TRY(ht_file_meta_str(f, KEY("pre"), false, &pre, &n, e));
    if (!pre)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "this GGUF does not say how its text is cut "
                       "(" KEY("pre") "): name the pre-tokenizer with --pre NAME, or convert the "
                                      "model again");
    HT_TRY(tok__pre_by_name(t, pre, n, add_bos, e));
    return read_merges(t, f, e);
}

static int read_spm(ht_tok *t, const ht_file *f, const char *pre, bool *add_bos, ht_err *e)
{
    bool prefix, squeeze;
    *add_bos = true;
    if (pre && strcmp(pre, "spm") != 0)
        return HT_FAIL(e, HT_EARG,
                       "--pre %.40s: this is an SPM vocabulary, which has no "
                       "pre-tokenizer",
                       pre);
    const ht_meta *map = ht_file_meta(f, KEY("precompiled_charsmap"));
    if (map && map->n)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "an SPM vocabulary with a character map "
                       "(" KEY("precompiled_charsmap") ")");
    HT_TRY(get_bool(f, KEY("add_space_prefix"), true, &prefix, e));
    HT_TRY(get_bool(f, KEY("remove_extra_whitespaces"), false, &squeeze, e));
    t->flags |= TOK_F_SPM | (prefix ? TOK_F_PREFIX_ALWAYS : 0u) | (squeeze ? TOK_F_SQUEEZE : 0u);
    return read_scores(t, f, e);
}

static int read_ids(ht_tok *t, const ht_file *f, bool spm, ht_err *e)
{
    int32_t eot, eom;
    HT_TRY(get_id(f, KEY("bos_token_id"), spm ? 1 : -1, &t->bos, e));
    HT_TRY(get_id(f, KEY("eos_token_id"), spm ? 2 : -1, &t->eos, e));
    HT_TRY(get_id(f, KEY("eot_token_id"), -1, &eot, e));
    HT_TRY(get_id(f, KEY("eom_token_id"), -1, &eom, e));
    /* Byte-level BPE has no unknown text; the key repeats a tokenizer_config that nothing reads. */
    if (spm) HT_TRY(get_id(f, KEY("unknown_token_id"), 0, &t->unk, e));
    const int64_t ends[3] = {t->eos, eot, eom};
    return tok__set_eog(t, ends, 3, e);
}

static int fill(ht_tok *t, const ht_file *f, const ht_meta *tokens, bool spm, const char *pre,
                ht_err *e)
{
    bool add_bos, add_eos;
    HT_TRY(read_tokens(t, f, tokens, e));
    HT_TRY(tok__index(t, e));
    HT_TRY(spm ? read_spm(t, f, pre, &add_bos, e) : read_bpe(t, f, pre, &add_bos, e));
    HT_TRY(get_bool(f, KEY("add_bos_token"), add_bos, &add_bos, e));
    HT_TRY(get_bool(f, KEY("add_eos_token"), false, &add_eos, e));
    t->flags |= (add_bos ? TOK_F_ADD_BOS : 0u) | (add_eos ? TOK_F_ADD_EOS : 0u);
    HT_TRY(read_ids(t, f, spm, e));
    return tok__finish(t, e);
}

static int from_gguf(ht_tok **out, const ht_file *f, const char *pre, ht_err *e)
{
    const char *model = NULL;
    size_t n = 0;
    int rc;
    *out = NULL;
    HT_TRY(ht_file_meta_str(f, KEY("model"), true, &model, &n, e));
    bool spm = n == 5 && !memcmp(model, "llama", 5);
    if (!spm && !(n == 4 && !memcmp(model, "gpt2", 4)))
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "tokenizer model \"%.*s\": supported are gpt2 "
                       "(byte-level BPE) and llama (SPM)",
                       (int)(n < 40 ? n : 40), model);
    const ht_meta *tokens = array(f, KEY("tokens"), HT_META_STR, HT_META_STR, e, &rc);
    if (rc) return rc;
    if (!tokens || !tokens->n || tokens->n > TOK_MAX_TOKENS)
        return HT_FAIL(e, HT_EFORMAT, "GGUF: " KEY("tokens") " has %zu tokens: must be 1..%d",
                       tokens ? tokens->n : 0, TOK_MAX_TOKENS);
    ht_tok *t;
    HT_TRY(tok__new(&t, (uint32_t)tokens->n, e));
    rc = fill(t, f, tokens, spm, pre, e);
    if (rc) ht_tok_free(t);
    else *out = t;
    return rc;
}

int ht_tok_from_file(ht_tok **out, const ht_file *f, const char *pre, ht_err *e)
{
    *out = NULL;
    size_t n;
    const void *blob = ht_file_blob(f, "tokenizer", &n);
    switch (ht_file_kind(f)) {
    case HT_FILE_GGUF: return from_gguf(out, f, pre, e);
    case HT_FILE_PACK:
        if (pre)
            return HT_FAIL(e, HT_EARG,
                           "--pre %.40s: a pack holds its tokenizer; give it to pack "
                           "when making one",
                           pre);
        if (!blob) return HT_FAIL(e, HT_EFORMAT, "%s holds no tokenizer", ht_file_path(f));
        return ht_tok_load(out, blob, n, e);
    default: break;
    }
    if (!ht_file_tokenizer(f))
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "%s has no tokenizer.json, the only form of a Hugging "
                       "Face tokenizer that is read",
                       ht_file_path(f));
    return tok__from_hf(out, ht_file_tokenizer(f), ht_file_tokenizer_config(f), ht_file_config(f),
                        ht_file_generation_config(f), pre, e);
}
