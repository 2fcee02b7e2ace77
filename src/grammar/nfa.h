/* nfa.h - a language as rules over bytes, and the builder that schema.c, gbnf.c, regex.c and the
 * tool grammars use. A rule is a small graph of nodes; built from its end to its start: every
 * function takes the node that follows and returns the node to begin with, so nothing is patched
 * but loops. Node 0 ends a rule.
 *
 * The builder remembers its first failure: afterwards every call returns 0 and does nothing; check
 * once with grammar__ok. */
#ifndef HT_GRAMMAR_NFA_H
#define HT_GRAMMAR_NFA_H
#include "core/arena.h"
#include "core/buf.h"

enum grammar__op { G_RET, G_SET, G_SPLIT, G_CALL, G_REP };
enum {
    G_NODES = 1 << 19, /* limits of one grammar: nodes, rules, distinct byte sets */
    G_RULES = 1 << 14,
    G_SETS = 1 << 13,
    G_REPEAT = 1 << 16,  /* largest bound of a repetition */
    G_SPECIAL = 0xff     /* byte in front of a control token's text: no UTF-8 text holds it */
};
#define G_INF UINT32_MAX

typedef struct {
    uint64_t w[4]; /* bit b: byte b belongs to it */
} grammar__set;
typedef struct {
    uint8_t op;
    bool nest;         /* G_CALL: what is called counts as one level of nesting */
    uint32_t a;        /* the node that follows; G_SPLIT: the first alternative */
    uint32_t b;        /* G_SPLIT: the second; G_SET: set; G_CALL, G_REP: rule */
    uint32_t min, max; /* G_REP */
} grammar__node;
typedef struct {
    uint32_t start;
    bool defined, nullable, ends; /* ends: some text leads out of it */
    const char *name;             /* for errors */
} grammar__rule;

typedef struct {
    ht_arena *arena; /* names */
    ht_err *e;
    int rc;
    grammar__node *node;
    grammar__rule *rule;
    grammar__set *set;
    uint32_t n_nodes, n_rules, n_sets, node_cap, rule_cap, set_cap;
} grammar__nfa;

HT_MUST_USE int grammar__nfa_init(grammar__nfa *, ht_err *);
void grammar__nfa_done(grammar__nfa *);
/* Fail the build with what is in e already, or with a text. */
void grammar__fail(grammar__nfa *, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool grammar__ok(const grammar__nfa *);

/* ---- rules ---- */
uint32_t grammar__rule_new(grammar__nfa *, const char *name);
void grammar__rule_set(grammar__nfa *, uint32_t rule, uint32_t start);
uint32_t grammar__call(grammar__nfa *, uint32_t rule, bool nest, uint32_t next);
/* The rule min to max times (G_INF: without end). */
uint32_t grammar__repeat(grammar__nfa *, uint32_t rule, uint32_t min, uint32_t max, uint32_t next);

/* ---- pieces ---- */
uint32_t grammar__bytes(grammar__nfa *, const grammar__set *, uint32_t next);
uint32_t grammar__range(grammar__nfa *, uint8_t lo, uint8_t hi, uint32_t next);
uint32_t grammar__lit(grammar__nfa *, const char *s, size_t n, uint32_t next);
uint32_t grammar__str(grammar__nfa *, const char *s, uint32_t next);
/* One of two; 0 and 0 mean a failed build, not an end: to end a rule pass node 0 as `next`. */
uint32_t grammar__alt(grammar__nfa *, uint32_t a, uint32_t b);
/* A loop: node = loop_open; body = ...(next = node); loop_close(node, body, next). It is passed any
 * number of times, none included. */
uint32_t grammar__loop_open(grammar__nfa *);
void grammar__loop_close(grammar__nfa *, uint32_t loop, uint32_t body, uint32_t next);
/* bytes of the set at least min times, at most max (small numbers: it is written out). */
uint32_t grammar__run(grammar__nfa *, const grammar__set *, unsigned min, unsigned max,
                      uint32_t next);

/* ---- code points (utf8set.c) ---- */
typedef struct {
    uint32_t lo, hi;
} grammar__cps;
/* Sort and join ranges in place; returns how many are left. */
size_t grammar__cps_norm(grammar__cps *, size_t n);
/* The complement within U+0000..U+10FFFF without surrogates; out has room for n + 2. */
size_t grammar__cps_not(const grammar__cps *, size_t n, grammar__cps *out);
/* One code point of the ranges (normalised) as UTF-8. */
uint32_t grammar__codepoint(grammar__nfa *, const grammar__cps *, size_t n, uint32_t next);

/* ---- after building ---- */
/* Every rule is defined and can end, and none calls itself before it has read a byte. */
HT_MUST_USE int grammar__analyse(grammar__nfa *, uint32_t root, ht_err *);

static inline void grammar__set_add(grammar__set *s, unsigned b)
{
    s->w[b >> 6] |= (uint64_t)1 << (b & 63);
}
static inline bool grammar__set_has(const grammar__set *s, unsigned b)
{
    return s->w[b >> 6] >> (b & 63) & 1;
}
#endif
