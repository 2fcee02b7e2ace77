/* gbnf.c - the grammar notation of llama.cpp: rules `name ::= ...`, literals in quotes, classes in
 * brackets, groups, | * + ? {m,n}, `.` for any character, # comments. A rule ends at a line break
 * outside parentheses, unless the next line goes on with |. */
#include "core/utf8.h"
#include "grammar/ast.h"
#include "grammar/grammar.h"
#include <stdio.h>
#include <string.h>

enum { CLASS_RANGES = 512 };

typedef struct {
    grammar__nfa *g;
    const char *s;
    size_t n, i;
    unsigned depth;
    uint32_t *slot, n_slots; /* rules by name: 0 free, else rule + 1 */
} gb;

static void refuse(gb *p, const char *fmt, const char *detail, size_t detail_n)
{
    size_t line = 1, col = 1;
    char what[160];
    for (size_t k = 0; k < p->i && k < p->n; k++) {
        col++;
        if (p->s[k] == '\n') line++, col = 1;
    }
    (void)snprintf(what, sizeof what, fmt, (int)(detail_n < 60 ? detail_n : 60), detail);
    grammar__fail(p->g, HT_EFORMAT, "the grammar: line %zu, column %zu: %s", line, col, what);
}

static bool more(const gb *p)
{
    return p->i < p->n && grammar__ok(p->g);
}

static char peek(const gb *p)
{
    return more(p) ? p->s[p->i] : 0;
}

/* Blanks and comments; line breaks too when `lines`. */
static void skip(gb *p, bool lines)
{
    while (more(p)) {
        const char c = p->s[p->i];
        if (c == '#') {
            while (more(p) && p->s[p->i] != '\n') p->i++;
        } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
            p->i++;
        } else {
            break;
        }
    }
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t name(gb *p, const char **at)
{
    const size_t start = p->i;
    while (more(p) && is_name(p->s[p->i])) p->i++;
    *at = p->s + start;
    return p->i - start;
}

/* The rule of that name, declared when it is new. */
static uint32_t rule_of(gb *p, const char *s, size_t n)
{
    uint64_t h = 14695981039346656037u;
    for (size_t k = 0; k < n; k++) h = (h ^ (uint8_t)s[k]) * 1099511628211u;
    uint32_t at = (uint32_t)(h >> 20) & (p->n_slots - 1);
    for (; p->slot[at]; at = (at + 1) & (p->n_slots - 1)) {
        const char *known = p->g->rule[p->slot[at] - 1].name;
        if (strlen(known) == n && memcmp(known, s, n) == 0) return p->slot[at] - 1;
    }
    const char *copy = ht_arena_strndup(p->g->arena, s, n);
    if (!copy) grammar__fail(p->g, HT_ENOMEM, "no memory for the name of a rule");
    const uint32_t rule = copy ? grammar__rule_new(p->g, copy) : 0;
    if (grammar__ok(p->g)) p->slot[at] = rule + 1;
    return rule;
}

/* ---- terms ----------------------------------------------------------------------------------- */

static uint32_t hex(gb *p, unsigned n)
{
    uint32_t v = 0;
    for (unsigned k = 0; k < n; k++, p->i++) {
        const char c = peek(p);
        const int d = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
        if (d < 0) {
            refuse(p, "an escape that needs hexadecimal digits%.*s", "", 0);
            return 0;
        }
        v = v << 4 | (uint32_t)d;
    }
    return v;
}

/* One character of a literal or class, escapes resolved. */
static uint32_t character(gb *p)
{
    static const char from[] = "tnr\\\"[]-^", to[] = "\t\n\r\\\"[]-^";
    uint32_t cp = 0;
    if (peek(p) != '\\') {
        const unsigned len = ht_utf8_next(p->s + p->i, p->n - p->i, &cp);
        if (!len) refuse(p, "malformed UTF-8%.*s", "", 0);
        p->i += len;
        return cp;
    }
    p->i++;
    const char c = peek(p);
    const char *at = c ? strchr(from, c) : NULL;
    p->i++;
    if (at) return (uint8_t)to[at - from];
    if (c == 'x') cp = hex(p, 2);
    else if (c == 'u') cp = hex(p, 4);
    else if (c == 'U') cp = hex(p, 8);
    else refuse(p, "unknown escape \\%.*s", &c, c != 0);
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        refuse(p, "an escape that is no code point%.*s", "", 0);
    return cp;
}

static grammar__ast_node *literal(gb *p)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    grammar__ast_node *x = grammar__ast_new(p->g, AST_LIT);
    while (more(p) && peek(p) != '"' && peek(p) != '\n') {
        char bytes[4];
        const uint32_t cp = character(p);
        ht_buf_add(&b, bytes, ht_utf8_put(cp, bytes));
    }
    if (grammar__ok(p->g) && peek(p) != '"')
        refuse(p, "a literal without its closing quote%.*s", "", 0);
    p->i++;
    if (x) {
        x->n = b.n;
        x->s = ht_arena_strndup(p->g->arena, b.p ? b.p : "", b.n);
        if (!x->s || ht_buf_ok(&b, "a literal", NULL))
            grammar__fail(p->g, HT_ENOMEM, "no memory for a literal of a grammar");
    }
    ht_buf_done(&b);
    return x;
}

static grammar__ast_node *class(gb *p)
{
    grammar__cps r[CLASS_RANGES];
    size_t n = 0;
    const bool negated = peek(p) == '^';
    p->i += negated;
    while (more(p) && peek(p) != ']') {
        const uint32_t lo = character(p);
        uint32_t hi = lo;
        if (peek(p) == '-' && p->n - p->i > 1 && p->s[p->i + 1] != ']') {
            p->i++;
            hi = character(p);
            if (hi < lo) refuse(p, "a range in a class that runs backwards%.*s", "", 0);
        }
        if (n == CLASS_RANGES - 2) refuse(p, "a class with more than 500 ranges%.*s", "", 0);
        else r[n++] = (grammar__cps){lo, hi};
    }
    if (grammar__ok(p->g) && peek(p) != ']')
        refuse(p, "a class without its closing bracket%.*s", "", 0);
    p->i++;
    return grammar__ast_class(p->g, r, n, negated);
}

static grammar__ast_node *alternatives(gb *p, bool inside);

static grammar__ast_node *atom(gb *p)
{
    const char c = peek(p);
    const char *s;
    if (c == '"' || c == '[' || c == '.' || c == '(') p->i++;
    if (c == '"') return literal(p);
    if (c == '[') return class(p);
    if (c == '.') return grammar__ast_class(p->g, NULL, 0, true);
    if (c == '(') {
        if (++p->depth > AST_DEPTH) refuse(p, "groups nested too deeply%.*s", "", 0);
        grammar__ast_node *x = alternatives(p, true);
        p->depth--;
        if (grammar__ok(p->g) && peek(p) != ')')
            refuse(p, "a group without its closing parenthesis%.*s", "", 0);
        p->i++;
        return x;
    }
    const size_t n = name(p, &s);
    if (!n) {
        refuse(p, "expected a literal, class, group or rule name, found \"%.*s\"", p->s + p->i,
               p->n > p->i);
        return NULL;
    }
    grammar__ast_node *x = grammar__ast_new(p->g, AST_RULE);
    const uint32_t rule = rule_of(p, s, n);
    if (x) x->rule = rule;
    return x;
}

static uint32_t number(gb *p)
{
    uint32_t v = 0;
    if (peek(p) < '0' || peek(p) > '9') refuse(p, "a repetition without a number%.*s", "", 0);
    for (; peek(p) >= '0' && peek(p) <= '9'; p->i++) {
        v = v * 10 + (uint32_t)(peek(p) - '0');
        if (v > G_REPEAT) refuse(p, "a repetition of more than 65536%.*s", "", 0);
    }
    return v;
}

/* {m} {m,} {m,n} behind the brace. */
static void bounds(gb *p, uint32_t *min, uint32_t *max)
{
    skip(p, false);
    *min = *max = number(p);
    skip(p, false);
    if (peek(p) == ',') {
        p->i++;
        skip(p, false);
        *max = peek(p) == '}' ? G_INF : number(p);
        skip(p, false);
    }
    if (grammar__ok(p->g) && (peek(p) != '}' || *max < *min))
        refuse(p, "a repetition that is malformed%.*s", "", 0);
    p->i++;
}

static grammar__ast_node *repeated(gb *p, grammar__ast_node *x)
{
    for (unsigned k = 0;; k++) {
        uint32_t min = 0, max = G_INF;
        const char c = peek(p);
        if (!c || !strchr("*+?{", c)) return x;
        if (k == 8) refuse(p, "repetitions of repetitions%.*s", "", 0);
        p->i++;
        if (c == '+') min = 1;
        if (c == '?') max = 1;
        if (c == '{') bounds(p, &min, &max);
        grammar__ast_node *r = grammar__ast_new(p->g, AST_REPEAT);
        if (!r || !x) return NULL;
        r->child = x;
        r->min = min;
        r->max = max;
        x = r;
    }
}

/* inside parentheses line breaks are blanks. */
static grammar__ast_node *alternatives(gb *p, bool inside)
{
    grammar__ast_node *alt = grammar__ast_new(p->g, AST_ALT);
    for (;;) {
        grammar__ast_node *cat = grammar__ast_new(p->g, AST_CAT);
        skip(p, inside);
        while (more(p) && !strchr("|)\n\r", peek(p))) {
            grammar__ast_node *x = atom(p);
            skip(p, false);
            if (grammar__ok(p->g)) grammar__ast_add(cat, repeated(p, x));
            skip(p, inside);
        }
        grammar__ast_add(alt, cat);
        const size_t end = p->i;
        skip(p, true);
        if (peek(p) != '|') {
            if (!inside) p->i = end;
            return alt;
        }
        p->i++;
        skip(p, true);
    }
}

static void rule(gb *p)
{
    const char *s;
    const size_t n = name(p, &s);
    if (!n) {
        refuse(p, "expected the name of a rule, found \"%.*s\"", p->s + p->i, 1);
        return;
    }
    skip(p, false);
    if (p->n - p->i < 3 || memcmp(p->s + p->i, "::=", 3) != 0) {
        refuse(p, "expected ::= after \"%.*s\"", s, n);
        return;
    }
    p->i += 3;
    skip(p, true);
    const uint32_t id = rule_of(p, s, n);
    if (grammar__ok(p->g) && p->g->rule[id].defined) {
        refuse(p, "rule \"%.*s\" is defined twice", s, n);
        return;
    }
    const grammar__ast_node *x = alternatives(p, false);
    if (peek(p) == ')') refuse(p, "a parenthesis that closes nothing%.*s", "", 0);
    const uint32_t start = grammar__ast_emit(p->g, x, false, 0);
    grammar__rule_set(p->g, id, start);
    skip(p, true);
}

int grammar__gbnf(grammar__nfa *g, const char *text, size_t n, uint32_t *root)
{
    gb p = {.g = g, .s = text, .n = n, .n_slots = G_RULES * 2};
    p.slot = ht_mem_array(p.n_slots, sizeof *p.slot);
    if (!p.slot) grammar__fail(g, HT_ENOMEM, "no memory for the rules of a grammar");
    skip(&p, true);
    while (more(&p)) rule(&p);
    const bool empty = grammar__ok(g) && g->n_rules == 0;
    if (empty) grammar__fail(g, HT_EFORMAT, "the grammar has no rules; it needs one named root");
    if (grammar__ok(g)) {
        *root = rule_of(&p, "root", 4);
        if (grammar__ok(g) && !g->rule[*root].defined)
            grammar__fail(g, HT_EFORMAT, "the grammar has no rule named root, which is its start");
    }
    ht_mem_free(p.slot);
    return g->rc;
}
