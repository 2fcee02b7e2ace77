/* from_hf.c - the normal form from tokenizer.json and its neighbours. What the file says that has
 * no place in the normal form is an error naming it, unless it cannot change a token. */
#include "core/utf8.h"
#include "tok/tok_int.h"
#include <string.h>

typedef struct {
    ht_tok *t;
    const ht_json *tok, *cfg, *config, *gen;
    bool spm, byte_level, prepend, meta_first, meta_always, squeeze, add_space;
    bool add_bos, add_eos;
    ht_err *e;
} importer;

static bool is(const ht_json *j, const char *text)
{
    return j && j->type == HT_JSTR && j->n == strlen(text) && !memcmp(j->s, text, j->n);
}

static bool type_is(const ht_json *obj, const char *name)
{
    return is(ht_json_get(obj, "type"), name);
}

static const char *type_name(const ht_json *obj)
{
    const ht_json *t = ht_json_get(obj, "type");
    return t && t->type == HT_JSTR ? t->s : "(no type)";
}

static bool absent(const ht_json *j)
{
    return !j || j->type == HT_JNULL;
}

static bool on(const ht_json *obj, const char *key)
{
    const ht_json *j = ht_json_get(obj, key);
    return j && j->type == HT_JBOOL && j->b;
}

static int unsupported(importer *im, const char *part, const ht_json *what)
{
    return HT_FAIL(im->e, HT_EUNSUPPORTED, "tokenizer.json: %s \"%.60s\" is not supported here",
                   part, type_name(what));
}

/* ---- vocabulary ---- */

/* added_tokens flags that the GGUF converter treats as control though "special" is false. */
static bool looks_special(const ht_json *s)
{
    static const char *const whole[] = {"<pad>", "<mask>", "<2mass>", "[@BOS@]"};
    static const char *const around[][2] = {
        {"<|", "|>"}, {"<\xef\xbd\x9c", "\xef\xbd\x9c>"}, {"<unused", ">"}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (is(s, whole[i])) return true;
    for (size_t i = 0; i < sizeof around / sizeof *around; i++) {
        size_t a = strlen(around[i][0]), b = strlen(around[i][1]);
        if (s->n >= a + b && !memcmp(s->s, around[i][0], a) &&
            !memcmp(s->s + s->n - b, around[i][1], b))
            return true;
    }
    return false;
}

static int vocab_size(const importer *im, const ht_json *vocab, uint32_t *n)
{
    int64_t max = -1;
    const ht_json *added = ht_json_get(im->tok, "added_tokens");
    for (size_t i = 0; i < vocab->n; i++) {
        const ht_json *v = &vocab->at[i];
        if (v->type != HT_JINT || v->i < 0 || v->i >= TOK_MAX_TOKENS)
            return HT_FAIL(im->e, HT_EFORMAT,
                           "tokenizer.json: model.vocab: the id of \"%.40s\" is "
                           "not in 0..%d",
                           v->key, TOK_MAX_TOKENS - 1);
        if (v->i > max) max = v->i;
    }
    if (!absent(added) && added->type != HT_JARR)
        return HT_FAIL(im->e, HT_EFORMAT, "tokenizer.json: added_tokens is not an array");
    for (size_t i = 0; added && i < added->n; i++) {
        const ht_json *id = ht_json_get(&added->at[i], "id");
        const ht_json *s = ht_json_get(&added->at[i], "content");
        if (!id || id->type != HT_JINT || id->i < 0 || id->i >= TOK_MAX_TOKENS || !s ||
            s->type != HT_JSTR)
            return HT_FAIL(im->e, HT_EFORMAT,
                           "tokenizer.json: added_tokens[%zu] lacks a content or "
                           "an id in 0..%d",
                           i, TOK_MAX_TOKENS - 1);
        if (id->i > max) max = id->i;
    }
    /* The model may have rows past the last token; they are unused tokens, as in GGUF. */
    uint32_t rows = 0;
    const ht_json *text = ht_json_get(im->config, "text_config");
    HT_TRY(ht_json_u32(im->config, "vocab_size", 0, &rows, im->e));
    if (!rows && !absent(text)) HT_TRY(ht_json_u32(text, "vocab_size", 0, &rows, im->e));
    *n = rows > max + 1 ? rows : (uint32_t)(max + 1);
    return 0;
}

static int read_vocab(importer *im, const ht_json *vocab)
{
    ht_tok *t = im->t;
    memset(t->type, TOK_UNUSED, t->n);
    bool fallback = on(ht_json_get(im->tok, "model"), "byte_fallback");
    for (size_t i = 0; i < vocab->n; i++) {
        uint32_t id = (uint32_t)vocab->at[i].i;
        uint8_t byte;
        if (t->type[id] != TOK_UNUSED)
            return HT_FAIL(im->e, HT_EFORMAT,
                           "tokenizer.json: id %u is both \"%.40s\" and "
                           "\"%.40s\"",
                           id, t->text[id].s, vocab->at[i].key);
        t->text[id] = (tok_text){vocab->at[i].key, vocab->at[i].key_n};
        t->type[id] =
            im->spm && fallback && tok__byte_text(t->text[id], &byte) ? TOK_BYTE : TOK_NORMAL;
    }
    return 0;
}

/* SPM: a user-defined text is matched against the raw text, so its U+2581 are spaces. */
static int spaces(importer *im, tok_text *x)
{
    const size_t m = sizeof TOK_SPM_SPACE - 1;
    char *s = ht_arena_strndup(im->t->arena, x->s, x->n);
    size_t n = 0;
    if (!s) return HT_FAIL(im->e, HT_ENOMEM, "no memory for a vocabulary");
    for (size_t i = 0; i < x->n; n++) {
        bool space = x->n - i >= m && !memcmp(x->s + i, TOK_SPM_SPACE, m);
        s[n] = space ? ' ' : x->s[i];
        i += space ? m : 1;
    }
    *x = (tok_text){s, n};
    return 0;
}

static int read_added(importer *im)
{
    ht_tok *t = im->t;
    const ht_json *added = ht_json_get(im->tok, "added_tokens");
    for (size_t i = 0; added && i < added->n; i++) {
        const ht_json *a = &added->at[i], *s = ht_json_get(a, "content");
        uint32_t id = (uint32_t)ht_json_get(a, "id")->i;
        if (t->type[id] != TOK_UNUSED &&
            (t->text[id].n != s->n || memcmp(t->text[id].s, s->s, s->n)))
            return HT_FAIL(im->e, HT_EFORMAT,
                           "tokenizer.json: id %u is \"%.40s\" in model.vocab, "
                           "\"%.40s\" in added_tokens",
                           id, t->text[id].s, s->s);
        t->text[id] = (tok_text){s->s, s->n};
        t->type[id] = on(a, "special") || looks_special(s) ? TOK_CONTROL : TOK_USER;
        if (im->spm && t->type[id] == TOK_USER) HT_TRY(spaces(im, &t->text[id]));
        t->added[id] =
            (uint8_t)((on(a, "lstrip") ? TOK_A_LSTRIP : 0) | (on(a, "rstrip") ? TOK_A_RSTRIP : 0) |
                      (on(a, "single_word") ? TOK_A_WORD : 0) |
                      (on(a, "normalized") ? TOK_A_NORMALIZED : 0));
    }
    return 0;
}

/* model.unk_token; it has type UNKNOWN in SPM only. Runs before the texts are indexed. */
static int read_unk(importer *im)
{
    const ht_json *s = ht_json_path(im->tok, "model.unk_token");
    if (absent(s)) return 0;
    for (uint32_t i = 0; s->type == HT_JSTR && i < im->t->n; i++) {
        if (im->t->text[i].n != s->n || !s->n || memcmp(im->t->text[i].s, s->s, s->n)) continue;
        im->t->unk = (int32_t)i;
        if (im->spm) im->t->type[i] = TOK_UNKNOWN;
        return 0;
    }
    return HT_FAIL(im->e, HT_EFORMAT, "tokenizer.json: model.unk_token is not in the vocabulary");
}

/* ---- merges: ["a", "b"] or "a b" ---- */

static bool merge_parts(const ht_json *m, tok_text *a, tok_text *b)
{
    if (m->type == HT_JARR && m->n == 2 && m->at[0].type == HT_JSTR && m->at[1].type == HT_JSTR) {
        *a = (tok_text){m->at[0].s, m->at[0].n};
        *b = (tok_text){m->at[1].s, m->at[1].n};
        return true;
    }
    if (m->type != HT_JSTR || m->n < 3) return false;
    const char *gap = memchr(m->s + 1, ' ', m->n - 2);
    if (!gap) return false;
    *a = (tok_text){m->s, (size_t)(gap - m->s)};
    *b = (tok_text){gap + 1, (size_t)(m->s + m->n - gap - 1)};
    return true;
}

/* BPE keeps the pairs; SPM the order in which the joined texts first appear, which is what is left
 * of the scores. */
static int read_merges(importer *im)
{
    ht_tok *t = im->t;
    const ht_json *merges = ht_json_path(im->tok, "model.merges");
    uint32_t rank = 0;
    if (!merges || merges->type != HT_JARR)
        return HT_FAIL(im->e, HT_EFORMAT, "tokenizer.json: model.merges is not an array");
    if (im->spm) {
        t->rank = ht_arena_array(t->arena, t->n, sizeof *t->rank);
        if (!t->rank) return HT_FAIL(im->e, HT_ENOMEM, "no memory for a vocabulary");
        for (uint32_t i = 0; i < t->n; i++) t->rank[i] = TOK_NO_RANK;
    } else {
        HT_TRY(tok__alloc_merges(t, merges->n, im->e));
    }
    for (size_t k = 0; k < merges->n; k++) {
        tok_text a, b;
        bool ok = merge_parts(&merges->at[k], &a, &b);
        int32_t ia = ok ? ht_tok_find(t, a.s, a.n) : -1, ib = ok ? ht_tok_find(t, b.s, b.n) : -1;
        if (!im->spm) {
            if (ia < 0 || ib < 0)
                return HT_FAIL(im->e, HT_EFORMAT,
                               "tokenizer.json: model.merges[%zu] does not name "
                               "two tokens",
                               k);
            t->merge[k][0] = (uint32_t)ia;
            t->merge[k][1] = (uint32_t)ib;
            continue;
        }
        int32_t out = ok ? tok__find_joined(t, a, b) : -1;
        if (out < 0)
            return HT_FAIL(im->e, HT_EFORMAT, "tokenizer.json: model.merges[%zu] makes no token",
                           k);
        if (t->type[out] == TOK_NORMAL && t->rank[out] == TOK_NO_RANK) t->rank[out] = rank++;
    }
    return 0;
}

/* ---- normalizer, pre-tokenizer, post-processor ---- */

static int normalizer(importer *im, const ht_json *j, int depth)
{
    if (absent(j)) return 0;
    const ht_json *list = ht_json_get(j, "normalizers");
    const ht_json *from = ht_json_path(j, "pattern.String"), *rx = ht_json_path(j, "pattern.Regex");
    const ht_json *to = ht_json_get(j, "content");
    if (type_is(j, "Sequence") && list && list->type == HT_JARR && depth < 4) {
        for (size_t i = 0; i < list->n; i++) HT_TRY(normalizer(im, &list->at[i], depth + 1));
        return 0;
    }
    if (type_is(j, "NFC")) {
        im->t->flags |= TOK_F_NFC;
    } else if (im->spm && type_is(j, "Prepend") && is(ht_json_get(j, "prepend"), TOK_SPM_SPACE)) {
        im->prepend = true;
    } else if (im->spm && type_is(j, "Replace") && is(from, " ") && is(to, TOK_SPM_SPACE)) {
        /* the escape, always done */
    } else if (im->spm && type_is(j, "Replace") && is(rx, " {2,}") &&
               (is(to, " ") || is(to, TOK_SPM_SPACE))) {
        im->squeeze = true;
    } else if (im->spm && type_is(j, "Strip")) {
        im->squeeze = true;
    } else {
        return unsupported(im, "normalizer", j);
    }
    return 0;
}

static int add_split(importer *im, const ht_json *j)
{
    const ht_json *rx = ht_json_path(j, "pattern.Regex"), *how = ht_json_get(j, "behavior");
    const ht_json *str = ht_json_path(j, "pattern.String");
    bool invert = on(j, "invert");
    if (im->spm && is(str, " ")) return 0; /* after the escape there is no space left to split at */
    enum tok_stage_kind kind = is(how, "Removed") && invert ? TOK_ST_RX_DROP
                               : is(how, "Isolated")        ? TOK_ST_RX
                                                            : TOK_ST_NONE;
    if (im->spm || !rx || rx->type != HT_JSTR || !rx->n || kind == TOK_ST_NONE)
        return unsupported(im, "pattern or behavior of pre-tokenizer", j);
    if (rx->n > TOK_MAX_PATTERN)
        return HT_FAIL(im->e, HT_EUNSUPPORTED, "tokenizer.json: a Split pattern of %zu bytes",
                       rx->n);
    kind = tok__stage_of_pattern(rx->s, rx->n, kind);
    if (kind < TOK_ST_RX) return tok__add_stage(im->t, kind, (tok_text){"", 0}, im->e);
    const char *own = ht_arena_strndup(im->t->arena, rx->s, rx->n);
    if (!own) return HT_FAIL(im->e, HT_ENOMEM, "no memory for a vocabulary");
    return tok__add_stage(im->t, kind, (tok_text){own, rx->n}, im->e);
}

/* Metaspace is SPM's escape and prefix as a pre-tokenizer. */
static int metaspace(importer *im, const ht_json *j)
{
    const ht_json *scheme = ht_json_get(j, "prepend_scheme"), *r = ht_json_get(j, "replacement");
    bool old = absent(scheme); /* before prepend_scheme: add_prefix_space, true by default */
    const ht_json *add = ht_json_get(j, "add_prefix_space");
    if (r && !is(r, TOK_SPM_SPACE)) return unsupported(im, "replacement of", j);
    /* Merges never join across a space that is not first in a token, but splitting at each is
     * another tokenizer where the vocabulary has tokens with inner spaces. */
    const ht_json *split = ht_json_get(j, "split");
    if (!split || split->type != HT_JBOOL || split->b) return unsupported(im, "splitting", j);
    if (is(scheme, "first")) im->meta_first = true;
    else if (is(scheme, "always")) im->meta_always = true;
    else if (old && (absent(add) || on(j, "add_prefix_space"))) im->meta_always = true;
    else if (!old && !is(scheme, "never")) return unsupported(im, "prepend_scheme of", j);
    return 0;
}

static int pre_tokenizer(importer *im, const ht_json *j, int depth)
{
    static const tok_text none = {"", 0};
    if (absent(j)) return 0;
    const ht_json *list = ht_json_get(j, "pretokenizers"), *rx = ht_json_get(j, "use_regex");
    if (type_is(j, "Sequence") && list && list->type == HT_JARR && depth < 4) {
        for (size_t i = 0; i < list->n; i++) HT_TRY(pre_tokenizer(im, &list->at[i], depth + 1));
        return 0;
    }
    if (type_is(j, "Split")) return add_split(im, j);
    if (im->spm && type_is(j, "Metaspace")) return metaspace(im, j);
    if (im->spm) return unsupported(im, "pre-tokenizer", j);
    if (type_is(j, "Digits"))
        return tok__add_stage(im->t, on(j, "individual_digits") ? TOK_ST_DIGIT : TOK_ST_DIGITS,
                              none, im->e);
    if (!type_is(j, "ByteLevel")) return unsupported(im, "pre-tokenizer", j);
    if (on(j, "add_prefix_space")) {
        /* The space goes before every piece that ByteLevel sees: before a split, that is one. */
        if (im->t->n_stages) return unsupported(im, "add_prefix_space after a Split in", j);
        im->add_space = true;
    }
    if (absent(rx) || rx->type != HT_JBOOL || rx->b)
        HT_TRY(tok__add_stage(im->t, TOK_ST_GPT2, none, im->e));
    return 0;
}

/* TemplateProcessing puts BOS and EOS around "single". */
static int post_processor(importer *im, const ht_json *j, int depth)
{
    if (absent(j)) return 0;
    const ht_json *list = ht_json_get(j, "processors"), *single = ht_json_get(j, "single");
    if (type_is(j, "Sequence") && list && list->type == HT_JARR && depth < 4) {
        for (size_t i = 0; i < list->n; i++) HT_TRY(post_processor(im, &list->at[i], depth + 1));
        return 0;
    }
    if (type_is(j, "ByteLevel")) return 0; /* offsets only */
    if (!type_is(j, "TemplateProcessing") || !single || single->type != HT_JARR)
        return unsupported(im, "post-processor", j);
    bool after = false;
    for (size_t i = 0; i < single->n; i++) {
        const ht_json *id = ht_json_path(&single->at[i], "SpecialToken.id");
        if (!id) {
            after = after || ht_json_get(&single->at[i], "Sequence");
            continue;
        }
        int32_t tok = id->type == HT_JSTR ? ht_tok_find(im->t, id->s, id->n) : -1;
        if (tok >= 0 && !after && im->t->bos < 0) im->t->bos = tok;
        if (tok >= 0 && !after && tok == im->t->bos) im->add_bos = true;
        else if (tok >= 0 && after && tok == im->t->eos) im->add_eos = true;
        else
            return HT_FAIL(im->e, HT_EUNSUPPORTED,
                           "tokenizer.json: the post-processor adds "
                           "\"%.40s\", which is neither BOS nor EOS",
                           id->type == HT_JSTR ? id->s : "?");
    }
    return 0;
}

/* ---- ids ---- */

/* A token named in tokenizer_config.json (a string or {"content"}), else an id of config.json or
 * generation_config.json (the first of a list). */
static int32_t named_id(const importer *im, const char *name, const char *id_key)
{
    const ht_json *j = ht_json_get(im->cfg, name);
    if (j && j->type == HT_JOBJ) j = ht_json_get(j, "content");
    if (j && j->type == HT_JSTR) {
        int32_t id = ht_tok_find(im->t, j->s, j->n);
        if (id >= 0) return id;
    }
    const ht_json *from[] = {im->config, im->gen};
    for (size_t i = 0; i < 2; i++) {
        const ht_json *v = ht_json_get(from[i], id_key);
        if (v && v->type == HT_JARR && v->n) v = &v->at[0];
        if (v && v->type == HT_JINT && v->i >= 0 && v->i < (int64_t)im->t->n) return (int32_t)v->i;
    }
    return -1;
}

enum { MAX_EOS = 64 };
static size_t add_ids(const ht_json *v, int64_t *ids, size_t n)
{
    if (v && v->type == HT_JINT && n < MAX_EOS) ids[n++] = v->i;
    for (size_t i = 0; v && v->type == HT_JARR && i < v->n && n < MAX_EOS; i++)
        if (v->at[i].type == HT_JINT) ids[n++] = v->at[i].i;
    return n;
}

static int read_ids(importer *im)
{
    ht_tok *t = im->t;
    int64_t ids[MAX_EOS];
    size_t n = 0;
    t->bos = named_id(im, "bos_token", "bos_token_id");
    t->eos = named_id(im, "eos_token", "eos_token_id");
    ids[n++] = t->eos;
    n = add_ids(ht_json_get(im->config, "eos_token_id"), ids, n);
    n = add_ids(ht_json_get(im->gen, "eos_token_id"), ids, n);
    HT_TRY(tok__set_eog(t, ids, n, im->e));
    HT_TRY(post_processor(im, ht_json_get(im->tok, "post_processor"), 0));
    HT_TRY(ht_json_bool(im->cfg, "add_bos_token", im->add_bos, &im->add_bos, im->e));
    HT_TRY(ht_json_bool(im->cfg, "add_eos_token", im->add_eos, &im->add_eos, im->e));
    t->flags |= (im->add_bos ? TOK_F_ADD_BOS : 0u) | (im->add_eos ? TOK_F_ADD_EOS : 0u);
    return 0;
}

/* ---- whole ---- */

static bool has_type(const ht_json *j, const char *name, int depth)
{
    if (type_is(j, name)) return true;
    const char *const lists[] = {"pretokenizers", "decoders"};
    for (size_t k = 0; k < 2; k++) {
        const ht_json *list = ht_json_get(j, lists[k]);
        for (size_t i = 0; list && list->type == HT_JARR && depth < 4 && i < list->n; i++)
            if (has_type(&list->at[i], name, depth + 1)) return true;
    }
    return false;
}

/* Refuse model options that would change tokens and are not carried. */
static int check_model(importer *im, const ht_json *model)
{
    static const char *const affix[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const ht_json *type = ht_json_get(model, "type");
    if (!model || (!absent(type) && !is(type, "BPE"))) return unsupported(im, "model", model);
    for (size_t i = 0; i < 2; i++) {
        const ht_json *j = ht_json_get(model, affix[i]);
        if (!absent(j) && !is(j, ""))
            return HT_FAIL(im->e, HT_EUNSUPPORTED, "tokenizer.json: model.%s is not supported",
                           affix[i]);
    }
    im->byte_level = has_type(ht_json_get(im->tok, "pre_tokenizer"), "ByteLevel", 0);
    im->spm = !im->byte_level && (on(model, "byte_fallback") ||
                                  has_type(ht_json_get(im->tok, "pre_tokenizer"), "Metaspace", 0));
    if (im->byte_level || im->spm) return 0;
    return HT_FAIL(im->e, HT_EUNSUPPORTED,
                   "tokenizer.json: a BPE that is neither byte-level nor "
                   "SPM-like (no ByteLevel, no Metaspace, no byte_fallback)");
}

static void set_prefix(importer *im)
{
    uint32_t *f = &im->t->flags;
    const ht_json *legacy = ht_json_get(im->cfg, "legacy");
    /* legacy false: sentencepiece's own behaviour, a space before the text, not after every token.
     * */
    bool first =
        im->meta_first || (im->prepend && legacy && legacy->type == HT_JBOOL && !legacy->b);
    if (first) *f |= TOK_F_PREFIX_FIRST;
    else if (im->prepend || im->meta_always || im->add_space) *f |= TOK_F_PREFIX_ALWAYS;
    if (!im->prepend && (im->meta_first || im->meta_always || im->add_space))
        *f |= TOK_F_PREFIX_ABSENT;
    if (im->squeeze) *f |= TOK_F_SQUEEZE;
}

static int fill(importer *im, const ht_json *vocab, const char *pre)
{
    bool unused;
    const ht_json *model = ht_json_get(im->tok, "model");
    if (im->spm) im->t->flags |= TOK_F_SPM;
    HT_TRY(read_vocab(im, vocab));
    HT_TRY(read_added(im));
    HT_TRY(read_unk(im));
    HT_TRY(tok__index(im->t, im->e));
    HT_TRY(normalizer(im, ht_json_get(im->tok, "normalizer"), 0));
    if (pre && im->spm)
        return HT_FAIL(im->e, HT_EARG,
                       "--pre %.40s: this is an SPM vocabulary, which has no "
                       "pre-tokenizer",
                       pre);
    if (pre) {
        HT_TRY(tok__pre_by_name(im->t, pre, strlen(pre), &unused, im->e));
    } else {
        HT_TRY(pre_tokenizer(im, ht_json_get(im->tok, "pre_tokenizer"), 0));
        if (!im->spm && on(model, "ignore_merges")) im->t->flags |= TOK_F_IGNORE_MERGES;
    }
    set_prefix(im);
    HT_TRY(read_merges(im));
    HT_TRY(read_ids(im));
    return tok__finish(im->t, im->e);
}

int tok__from_hf(ht_tok **out, const ht_json *tokenizer, const ht_json *tokenizer_config,
                 const ht_json *config, const ht_json *generation, const char *pre, ht_err *e)
{
    importer im = {
        .tok = tokenizer, .cfg = tokenizer_config, .config = config, .gen = generation, .e = e};
    const ht_json *model = ht_json_get(tokenizer, "model"), *vocab = ht_json_get(model, "vocab");
    uint32_t n = 0;
    *out = NULL;
    HT_TRY(check_model(&im, model));
    if (!vocab || vocab->type != HT_JOBJ)
        return HT_FAIL(e, HT_EFORMAT, "tokenizer.json: model.vocab is not an object");
    HT_TRY(vocab_size(&im, vocab, &n));
    HT_TRY(tok__new(&im.t, n, e));
    int rc = fill(&im, vocab, pre);
    if (rc) ht_tok_free(im.t);
    else *out = im.t;
    return rc;
}
