/* pre.c - pre-tokenizers by name (tokenizer.ggml.pre) and by pattern (tokenizer.json), in one form:
 * a list of stages and the flags that go with the name. A name outside the table is an error, never
 * a guess: a wrong pre-tokenizer gives fluent text of a worse model. */
#include "tok/tok_int.h"
#include <string.h>

enum { NFC = 1, IGNORE = 2, BOS = 4 };

/* DeepSeek-V3 and -Coder: the published Split lists, run by pcre2. */
#define DS_CJK     "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+"
#define DS_CJK_OLD "[\xe4\xb8\x80-\xe9\xbe\xa5\xe0\xa0\x80-\xe4\xb8\x80\xea\xb0\x80-\xed\x9f\xbf]+"
#define DS_WORDS                                                                                   \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}"    \
    "\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef struct {
    uint8_t kind;        /* enum tok_stage_kind; 0 ends the list */
    const char *pattern; /* TOK_ST_RX                            */
} stage_spec;
typedef struct {
    const char *name;
    unsigned flags;
    stage_spec stage[TOK_MAX_STAGES];
} pre_spec;

static const pre_spec specs[] = {
    {"gpt-2", 0, {{TOK_ST_GPT2, NULL}}},
    {"llama-bpe", IGNORE | BOS, {{TOK_ST_LLAMA3, NULL}}},
    {"dbrx", 0, {{TOK_ST_LLAMA3, NULL}}},
    {"qwen2", NFC, {{TOK_ST_QWEN2, NULL}}},
    {"qwen35", NFC, {{TOK_ST_QWEN35, NULL}}},
    {"smollm", 0, {{TOK_ST_DIGIT, NULL}, {TOK_ST_GPT2, NULL}}},
    {"tekken", IGNORE | BOS, {{TOK_ST_TEKKEN, NULL}}},
    {"gpt-4o", 0, {{TOK_ST_GPT4O, NULL}}},
    {"deepseek-v3", BOS, {{TOK_ST_RX, "\\p{N}{1,3}"}, {TOK_ST_RX, DS_CJK}, {TOK_ST_RX, DS_WORDS}}},
    {"deepseek-coder",
     0,
     {{TOK_ST_RX, "[\r\n]"},
      {TOK_ST_RX, "\\s?\\p{L}+"},
      {TOK_ST_RX, "\\s?\\p{P}+"},
      {TOK_ST_RX, DS_CJK_OLD},
      {TOK_ST_DIGIT, NULL}}},
    /* llama.cpp's pre-tokenizer for files that say "default": punctuation, GPT-2's words, digits.
     * */
    {"default",
     0,
     {{TOK_ST_RX, "[\\p{P}\\$\\+<=>\\^~\\|]+"},
      {TOK_ST_RX, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"},
      {TOK_ST_DIGITS, NULL},
      {TOK_ST_RX, "[0-9][0-9][0-9]"}}},
};

/* Other names of the same stages; flags replace the canonical entry's. */
static const struct {
    const char *name, *same_as;
    unsigned flags;
} aliases[] = {
    {"phi-2", "gpt-2", 0},
    {"mpt", "gpt-2", 0},
    {"olmo", "gpt-2", 0},
    {"jais", "gpt-2", 0},
    {"llama3", "llama-bpe", IGNORE | BOS},
    {"llama-v3", "llama-bpe", IGNORE | BOS},
    {"falcon3", "llama-bpe", IGNORE | BOS},
    {"smaug-bpe", "dbrx", 0},
    {"smaug", "dbrx", 0},
    {"stablelm2", "qwen2", 0},
    {"deepseek-r1-qwen", "qwen2", 0},
    {"starcoder", "smollm", 0},
    {"refact", "smollm", 0},
    {"command-r", "smollm", NFC},
    {"codeshell", "smollm", 0},
    {"llama4", "gpt-4o", 0},
};

int tok__add_stage(ht_tok *t, enum tok_stage_kind kind, tok_text pattern, ht_err *e)
{
    if (t->n_stages == TOK_MAX_STAGES)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "a pre-tokenizer of more than %d stages; name a known "
                       "one with --pre NAME",
                       TOK_MAX_STAGES);
    t->stage[t->n_stages++] = (tok_stage){.kind = kind, .pattern = pattern};
    return 0;
}

enum tok_stage_kind tok__stage_of_pattern(const char *s, size_t n, enum tok_stage_kind rx)
{
    /* Dropping gaps makes a difference only to the digit patterns: the others leave none. */
    unsigned last = rx == TOK_ST_RX_DROP ? TOK_ST_GPT4O : TOK_ST_DIGITS;
    for (unsigned k = TOK_ST_GPT2; k <= last; k++) {
        const char *p = tok__split_pattern(k);
        if (strlen(p) == n && !memcmp(p, s, n)) return k;
    }
    return rx;
}

static const pre_spec *spec_of(const char *name, size_t n, unsigned *flags)
{
    const char *want = NULL;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        if (strlen(aliases[i].name) != n || memcmp(aliases[i].name, name, n)) continue;
        want = aliases[i].same_as;
        *flags = aliases[i].flags;
    }
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        size_t m = strlen(specs[i].name);
        if (want ? strcmp(want, specs[i].name) != 0 : m != n || memcmp(specs[i].name, name, n) != 0)
            continue;
        if (!want) *flags = specs[i].flags;
        return &specs[i];
    }
    return NULL;
}

int tok__pre_by_name(ht_tok *t, const char *name, size_t n, bool *add_bos, ht_err *e)
{
    unsigned flags = 0;
    const pre_spec *sp = spec_of(name, n, &flags);
    if (!sp)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "pre-tokenizer \"%.*s\" is not known; if it cuts text "
                       "like a known one, say so with --pre NAME (gpt-2, llama-bpe, dbrx, qwen2, "
                       "qwen35, smollm, tekken, gpt-4o, deepseek-v3, ...)",
                       (int)(n < 40 ? n : 40), name);
    t->n_stages = 0;
    for (size_t i = 0; i < TOK_MAX_STAGES && sp->stage[i].kind; i++) {
        const char *p = sp->stage[i].pattern;
        tok_text pattern = {p ? p : "", p ? strlen(p) : 0};
        HT_TRY(tok__add_stage(t, sp->stage[i].kind, pattern, e));
    }
    t->flags &= ~(uint32_t)(TOK_F_NFC | TOK_F_IGNORE_MERGES);
    if (flags & NFC) t->flags |= TOK_F_NFC;
    if (flags & IGNORE) t->flags |= TOK_F_IGNORE_MERGES;
    *add_bos = flags & BOS;
    return 0;
}

static bool same_stages(const ht_tok *t, const pre_spec *sp)
{
    for (size_t i = 0; i < TOK_MAX_STAGES; i++) {
        if (i >= t->n_stages) return !sp->stage[i].kind;
        const tok_stage *st = &t->stage[i];
        const char *p = sp->stage[i].pattern ? sp->stage[i].pattern : "";
        if (st->kind != sp->stage[i].kind || st->pattern.n != strlen(p) ||
            memcmp(st->pattern.s, p, st->pattern.n))
            return false;
    }
    return true;
}

/* The name whose stages these are: aliases have their canonical name, because the normal form keeps
 * what a pre-tokenizer does. "custom" for a list of patterns without a name. */
const char *tok__pre_name(const ht_tok *t)
{
    const char *name = NULL;
    if (t->flags & TOK_F_SPM) return "spm";
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        if (!same_stages(t, &specs[i])) continue;
        if (!(specs[i].flags & IGNORE) == !(t->flags & TOK_F_IGNORE_MERGES)) return specs[i].name;
        if (!name) name = specs[i].name;
    }
    return name ? name : "custom";
}
