/* regex.c - the patterns of JSON Schema: the regular part of ECMA-262, with the u flag's view of
 * characters as code points. Look-around, back references, word boundaries and \p are refused. */
#include "core/utf8.h"
#include "grammar/ast.h"
#include "grammar/grammar.h"
#include <stdio.h>
#include <string.h>

enum { CLASS_RANGES = 512 };

typedef struct {
    grammar__nfa *g;
    const char *s, *where;
    size_t n, i;
    unsigned depth;
} rx;

static void refuse(rx *p, const char *what)
{
    grammar__fail(p->g, HT_EUNSUPPORTED, "%.100s: %s at byte %zu of the pattern", p->where, what,
                  p->i);
}

static bool more(const rx *p)
{
    return p->i < p->n && grammar__ok(p->g);
}

static bool eat(rx *p, const char *text)
{
    const size_t n = strlen(text);
    if (p->n - p->i < n || memcmp(p->s + p->i, text, n) != 0) return false;
    p->i += n;
    return true;
}

static uint32_t next_cp(rx *p)
{
    uint32_t cp;
    const unsigned len = ht_utf8_next(p->s + p->i, p->n - p->i, &cp);
    if (!len) refuse(p, "malformed UTF-8");
    p->i += len ? len : 1;
    return cp;
}

/* ---- classes --------------------------------------------------------------------------------- */

typedef struct {
    grammar__cps r[CLASS_RANGES];
    size_t n;
} ranges;

static void add(rx *p, ranges *to, uint32_t lo, uint32_t hi)
{
    if (to->n == CLASS_RANGES - 2) {
        refuse(p, "a class with more than 500 ranges");
        return;
    }
    to->r[to->n++] = (grammar__cps){lo, hi};
}

static const grammar__cps digit_class[] = {{'0', '9'}},
                          word_class[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                          space_class[] = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},
                                           {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                           {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                           {0xfeff, 0xfeff}},
                          /* what \s writes: the same in every dialect */
    plain_space[] = {{9, 13}, {' ', ' '}}, line_ends[] = {{10, 10}, {13, 13}, {0x2028, 0x2029}};

/* \d \w \s and their complements; false: another escape. */
static bool shorthand(rx *p, char c, ranges *to)
{
    const grammar__cps *r;
    grammar__cps not_[16];
    size_t n;
    switch (c) {
    case 'd':
    case 'D': r = digit_class, n = 1; break;
    case 'w':
    case 'W': r = word_class, n = 4; break;
    case 's': r = plain_space, n = 2; break;
    case 'S': r = space_class, n = sizeof space_class / sizeof *space_class; break;
    default: return false;
    }
    if (c < 'a') {
        n = grammar__cps_not(r, n, not_);
        r = not_;
    }
    for (size_t i = 0; i < n; i++) add(p, to, r[i].lo, r[i].hi);
    return true;
}

static int hex_digits(rx *p, unsigned n)
{
    int v = 0;
    for (unsigned k = 0; k < n; k++, p->i++) {
        const char c = p->i < p->n ? p->s[p->i] : 0;
        const int d = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
        if (d < 0) {
            refuse(p, "an escape that needs hexadecimal digits");
            return 0;
        }
        v = v << 4 | d;
    }
    return v;
}

/* \u{X}, \uXXXX or a pair of them. */
static uint32_t unicode(rx *p)
{
    if (eat(p, "{")) {
        uint32_t v = 0;
        while (more(p) && p->s[p->i] != '}' && v <= 0x10ffff)
            v = v << 4 | (uint32_t)hex_digits(p, 1);
        if (!eat(p, "}") || v > 0x10ffff) refuse(p, "a \\u{...} that is no code point");
        return v;
    }
    uint32_t v = (uint32_t)hex_digits(p, 4);
    if (v >= 0xd800 && v < 0xdc00 && eat(p, "\\u")) {
        const uint32_t low = (uint32_t)hex_digits(p, 4);
        if (low >= 0xdc00 && low < 0xe000) return 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
    }
    if (v >= 0xd800 && v < 0xe000) refuse(p, "half of a surrogate pair");
    return v;
}

/* The character that an escape stands for; p->i is behind the backslash. */
static uint32_t escaped(rx *p)
{
    static const char from[] = "tnrfv", to[] = "\t\n\r\f\v";
    const char c = p->i < p->n ? p->s[p->i] : 0;
    const char *at = c ? strchr(from, c) : NULL;
    if (!c) refuse(p, "a backslash at the end");
    p->i++;
    if (at) return (uint32_t)to[at - from];
    if (c == 'x') return (uint32_t)hex_digits(p, 2);
    if (c == 'u') return unicode(p);
    if (c == '0' && !(more(p) && p->s[p->i] >= '0' && p->s[p->i] <= '9')) return 0;
    if (c && strchr("^$\\.*+?()[]{}|/-", c)) return (uint8_t)c;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
        p->i--;
        refuse(p, "an escape that is not supported");
        return 0;
    }
    p->i--;
    return next_cp(p);
}

/* One end of a range in a class; *set: it was a shorthand, added already. */
static uint32_t class_atom(rx *p, ranges *to, bool *set)
{
    *set = false;
    if (!eat(p, "\\")) return next_cp(p);
    if (more(p) && shorthand(p, p->s[p->i], to)) {
        p->i++;
        *set = true;
        return 0;
    }
    if (eat(p, "b")) return '\b';
    return escaped(p);
}

static grammar__ast_node *class(rx *p)
{
    ranges to = {.n = 0};
    const bool negated = eat(p, "^");
    while (more(p) && p->s[p->i] != ']') {
        bool set, set_hi = false;
        const uint32_t lo = class_atom(p, &to, &set);
        uint32_t hi = lo;
        if (p->n - p->i >= 2 && p->s[p->i] == '-' && p->s[p->i + 1] != ']') {
            p->i++;
            hi = class_atom(p, &to, &set_hi);
            if (set || set_hi || hi < lo) refuse(p, "a range in a class that runs backwards");
        }
        if (!set) add(p, &to, lo, hi);
    }
    if (!eat(p, "]")) refuse(p, "a class without an end");
    return grammar__ast_class(p->g, to.r, to.n, negated);
}

/* ---- terms ----------------------------------------------------------------------------------- */

static grammar__ast_node *alternatives(rx *p, bool top);

static grammar__ast_node *group(rx *p)
{
    if (eat(p, "?")) {
        if (eat(p, "<") && more(p) && p->s[p->i] != '=' && p->s[p->i] != '!') {
            while (more(p) && p->s[p->i] != '>') p->i++;
            p->i++;
        } else if (!(p->s[p->i - 1] == '?' && eat(p, ":"))) {
            refuse(p, "look-around or a modifier, which is not supported");
            return NULL;
        }
    }
    if (++p->depth > AST_DEPTH) refuse(p, "groups nested too deeply");
    grammar__ast_node *x = grammar__ok(p->g) ? alternatives(p, false) : NULL;
    p->depth--;
    if (!eat(p, ")")) refuse(p, "a group without an end");
    return x;
}

static grammar__ast_node *atom(rx *p)
{
    ranges to = {.n = 0};
    if (eat(p, "(")) return group(p);
    if (eat(p, "[")) return class(p);
    if (eat(p, ".")) return grammar__ast_class(p->g, line_ends, 3, true);
    if (strchr("*+?{", p->s[p->i])) refuse(p, "nothing to repeat");
    else if (strchr("^$", p->s[p->i]))
        refuse(p, "an anchor inside the pattern (^ may begin and $ may end it, or an alternative)");
    else if (strchr(")]}", p->s[p->i])) refuse(p, "a bracket that closes nothing");
    if (!grammar__ok(p->g)) return NULL;
    if (!eat(p, "\\")) {
        const uint32_t cp = next_cp(p);
        add(p, &to, cp, cp);
    } else if (more(p) && shorthand(p, p->s[p->i], &to)) {
        p->i++;
    } else {
        const uint32_t cp = escaped(p);
        add(p, &to, cp, cp);
    }
    return grammar__ast_class(p->g, to.r, to.n, false);
}

static uint32_t number(rx *p)
{
    uint32_t v = 0;
    if (!more(p) || p->s[p->i] < '0' || p->s[p->i] > '9')
        refuse(p, "a repetition without a number");
    for (; more(p) && p->s[p->i] >= '0' && p->s[p->i] <= '9'; p->i++) {
        v = v * 10 + (uint32_t)(p->s[p->i] - '0');
        if (v > G_REPEAT) refuse(p, "a repetition of more than 65536");
    }
    return v;
}

static grammar__ast_node *repeated(rx *p, grammar__ast_node *x)
{
    uint32_t min = 0, max = G_INF;
    if (eat(p, "*")) {
    } else if (eat(p, "+")) {
        min = 1;
    } else if (eat(p, "?")) {
        max = 1;
    } else if (eat(p, "{")) {
        min = max = number(p);
        if (eat(p, ",")) max = more(p) && p->s[p->i] == '}' ? G_INF : number(p);
        if (!eat(p, "}") || max < min) refuse(p, "a repetition that is malformed");
    } else {
        return x;
    }
    (void)eat(p, "?"); /* lazy: the same language */
    grammar__ast_node *r = grammar__ast_new(p->g, AST_REPEAT);
    if (!r || !x) return NULL;
    r->child = x;
    r->min = min;
    r->max = max;
    if (more(p) && strchr("*+?{", p->s[p->i])) refuse(p, "a repetition of a repetition");
    return r;
}

/* Any characters, where the pattern is not anchored. */
static grammar__ast_node *anything(rx *p)
{
    grammar__ast_node *r = grammar__ast_new(p->g, AST_REPEAT);
    if (!r) return NULL;
    r->child = grammar__ast_class(p->g, NULL, 0, true);
    r->max = G_INF;
    return r;
}

static grammar__ast_node *alternatives(rx *p, bool top)
{
    grammar__ast_node *alt = grammar__ast_new(p->g, AST_ALT);
    do {
        grammar__ast_node *cat = grammar__ast_new(p->g, AST_CAT);
        if (top && !eat(p, "^")) grammar__ast_add(cat, anything(p));
        bool end = false;
        while (more(p) && p->s[p->i] != '|' && p->s[p->i] != ')' && !end) {
            if (top && p->s[p->i] == '$' && (p->i + 1 == p->n || p->s[p->i + 1] == '|')) {
                p->i++;
                end = true;
            } else {
                grammar__ast_node *x = atom(p);
                if (grammar__ok(p->g)) grammar__ast_add(cat, repeated(p, x));
            }
        }
        if (top && !end) grammar__ast_add(cat, anything(p));
        grammar__ast_add(alt, cat);
    } while (grammar__ok(p->g) && eat(p, "|"));
    return alt;
}

uint32_t grammar__regex(grammar__nfa *g, const char *pattern, size_t n, const char *where,
                        uint32_t next)
{
    rx p = {.g = g, .s = pattern, .n = n, .where = where};
    const grammar__ast_node *x = alternatives(&p, true);
    if (grammar__ok(g) && p.i < p.n) refuse(&p, "a bracket that closes nothing");
    return grammar__ast_emit(g, x, true, next);
}

#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?"
#define ZONE "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
/* The 29th of February is left out: whether it is there depends on the year. */
#define DATE                                                                                       \
    "[0-9]{3}[1-9]-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"  \
    "02-(0[1-9]|1[0-9]|2[0-8]))"
#define BYTE  "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HEX4  "[0-9A-Fa-f]{1,4}"

const char *grammar__format(const char *name)
{
    static const char *const table[][2] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME ZONE "$"},
        {"date-time", "^" DATE "T" TIME ZONE "$"},
        {"duration", "^P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?)?|"
                     "T[0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|T[0-9]{1,4}M([0-9]{1,4}S)?|"
                     "T[0-9]{1,4}S|[0-9]{1,4}Y([0-9]{1,4}M([0-9]{1,4}D)?)?|"
                     "[0-9]{1,4}M([0-9]{1,4}D)?)$"},
        {"email",
         "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,32}){0,3}@" LABEL "(\\." LABEL "){1,4}$"},
        {"hostname", "^" LABEL "(\\." LABEL "){0,3}$"},
        {"ipv4", "^" BYTE "(\\." BYTE "){3}$"},
        {"ipv6", "^" HEX4 "(:" HEX4 "){7}$"},
        {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
        {"uri", "^(https?|ftp)://" LABEL "(\\." LABEL "){0,4}(:[1-9][0-9]{0,3})?"
                "(/[A-Za-z0-9._~!$&'()*+,;=:@-]{0,64}){0,16}(\\?[A-Za-z0-9._~=&-]{0,128})?$"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i][0], name) == 0) return table[i][1];
    return NULL;
}
