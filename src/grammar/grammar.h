/* grammar.h - what the files of this directory, and reply/ with its grammars of tool calls, share:
 * from a finished nfa to the public ht_grammar, and the parts of languages to build with. */
#ifndef HT_GRAMMAR_GRAMMAR_H
#define HT_GRAMMAR_GRAMMAR_H
#include "core/json.h"
#include "grammar/nfa.h"

/* Takes over the nfa, also on failure. lexicon may be NULL. */
HT_MUST_USE int grammar__open(ht_grammar **, const ht_lexicon *, grammar__nfa *, uint32_t root,
                              ht_err *);

/* ---- gbnf.c ---- */
HT_MUST_USE int grammar__gbnf(grammar__nfa *, const char *text, size_t n, uint32_t *root);

/* ---- value.c: JSON itself ---- */
/* Rules are made once per grammar. Start with all UINT32_MAX: grammar__json_init. */
enum grammar__json_rule {
    GJ_VALUE, GJ_OBJECT, GJ_ARRAY, GJ_STRING, GJ_CHAR, GJ_NUMBER, GJ_INTEGER, GJ_SPACE, GJ_INDENT,
    GJ_RULES
};
typedef struct {
    grammar__nfa *g;
    bool compact; /* one space at most between tokens, no line breaks */
    uint32_t rule[GJ_RULES];
} grammar__json;
void grammar__json_init(grammar__json *, grammar__nfa *);
uint32_t grammar__json_rule(grammar__json *, enum grammar__json_rule);
/* Space between tokens: nothing, one space, or a line break and its indentation (24 at most: a
 * model that has lost its way must not write spaces for ever). */
uint32_t grammar__space(grammar__json *, uint32_t next);
/* A string as its characters stand in JSON, with quotes; one spelling. */
uint32_t grammar__json_text(grammar__nfa *, const char *s, size_t n, uint32_t next);
/* A given value, members in its order. */
uint32_t grammar__json_const(grammar__json *, const ht_json *, uint32_t next);
/* A key that is none of `not` [n]; written without escapes, so that none has a second spelling. */
uint32_t grammar__json_other_key(grammar__nfa *, const ht_json *const *not_, size_t n,
                                 uint32_t next);
/* A code point class inside a string: as it stands where JSON allows, else its short escape. */
uint32_t grammar__json_class(grammar__nfa *, const grammar__cps *, size_t n, uint32_t next);

/* ---- number.c ---- */
typedef struct {
    bool has_lo, has_hi, open_lo, open_hi; /* open: the bound itself does not belong */
    double lo, hi;
} grammar__range_of;
/* Integers, or decimal numbers, within bounds. Fails the build (HT_EUNSUPPORTED) on bounds that are
 * too large or have too many digits; false, and nothing built, when the range is empty. */
bool grammar__number(grammar__nfa *, const grammar__range_of *, bool integer, uint32_t next,
                     uint32_t *out);

/* ---- regex.c ---- */
/* An ECMA-262 pattern, searched in a string's characters, between the quotes. Fails the build with
 * what is not understood; the text begins with `where`. */
uint32_t grammar__regex(grammar__nfa *, const char *pattern, size_t n, const char *where,
                        uint32_t next);
/* The pattern of a `format`, anchored; NULL: not known. */
const char *grammar__format(const char *name);

/* ---- schema.c ---- */
/* A rule for what the schema allows. root: what "#" and its pointers mean. path: JSON pointer of
 * schema, for errors. */
HT_MUST_USE int grammar__schema(grammar__nfa *, grammar__json *, const ht_json *root,
                                const ht_json *schema, const char *path, uint32_t *rule);
#endif
