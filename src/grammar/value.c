/* value.c - JSON itself as a language (RFC 8259), and given values in it. What a generator needs
 * not write is left out: space before a colon or a comma, numbers of more than 16 digits. */
#include "core/utf8.h"
#include "grammar/grammar.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void grammar__json_init(grammar__json *j, grammar__nfa *g)
{
    j->g = g;
    j->compact = false;
    for (unsigned i = 0; i < GJ_RULES; i++) j->rule[i] = UINT32_MAX;
}

static uint32_t call(grammar__json *j, enum grammar__json_rule r, uint32_t next)
{
    const bool nest = r == GJ_OBJECT || r == GJ_ARRAY;
    return grammar__call(j->g, grammar__json_rule(j, r), nest, next);
}

uint32_t grammar__space(grammar__json *j, uint32_t next)
{
    return grammar__alt(j->g, next, call(j, GJ_SPACE, next));
}

/* ---- strings --------------------------------------------------------------------------------- */

static grammar__set set_of(const char *ranges)
{
    grammar__set s = {{0}};
    for (; ranges[0] && ranges[1]; ranges += 2)
        for (unsigned b = (uint8_t)ranges[0]; b <= (uint8_t)ranges[1]; b++) grammar__set_add(&s, b);
    return s;
}

/* uXXXX after the backslash, a surrogate only as a pair. */
static uint32_t unicode_escape(grammar__nfa *g, uint32_t next)
{
    const grammar__set hex = set_of("09AFaf"), no_d = set_of("09ACEFacef"), d = set_of("DDdd"),
                       low = set_of("07"), high = set_of("89ABab"), second = set_of("CFcf");
    uint32_t two = grammar__run(g, &hex, 2, 2, next);
    uint32_t plain = grammar__bytes(g, &no_d, grammar__bytes(g, &hex, two));
    uint32_t below = grammar__bytes(g, &d, grammar__bytes(g, &low, two));
    uint32_t pair = grammar__bytes(g, &d, grammar__bytes(g, &second, two));
    pair = grammar__run(g, &hex, 2, 2, grammar__str(g, "\\u", pair));
    pair = grammar__bytes(g, &d, grammar__bytes(g, &high, pair));
    return grammar__str(g, "u", grammar__alt(g, plain, grammar__alt(g, below, pair)));
}

static uint32_t any_char(grammar__nfa *g, uint32_t next)
{
    static const grammar__cps raw[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
    const grammar__set shorts = set_of("\"\"\\\\//bbffnnrrtt");
    uint32_t esc = grammar__alt(g, grammar__bytes(g, &shorts, next), unicode_escape(g, next));
    return grammar__alt(g, grammar__codepoint(g, raw, 3, next), grammar__str(g, "\\", esc));
}

/* How a code point that may not stand as it is is written: into out, 0-terminated. */
static void spelling(uint32_t cp, char out[8])
{
    static const char raw[] = "\"\\\b\f\n\r\t", as[] = "\"\\bfnrt";
    const char *at = cp ? strchr(raw, (int)cp) : NULL;
    if (at) (void)snprintf(out, 8, "\\%c", as[at - raw]);
    else (void)snprintf(out, 8, "\\u%04x", (unsigned)cp & 0xff);
}

static bool needs_escape(uint32_t cp)
{
    return cp < 0x20 || cp == '"' || cp == '\\';
}

uint32_t grammar__json_text(grammar__nfa *g, const char *s, size_t n, uint32_t next)
{
    next = grammar__str(g, "\"", next);
    while (n > 0) {
        const uint8_t c = (uint8_t)s[--n];
        char text[8];
        if (needs_escape(c)) {
            spelling(c, text);
            next = grammar__str(g, text, next);
        } else {
            next = grammar__range(g, c, c, next);
        }
    }
    return grammar__str(g, "\"", next);
}

uint32_t grammar__json_class(grammar__nfa *g, const grammar__cps *r, size_t n, uint32_t next)
{
    uint32_t at = 0;
    bool any = false;
    grammar__cps *raw = ht_mem_array(n * 3 + 1, sizeof *raw);
    size_t k = 0;
    if (!raw) {
        grammar__fail(g, HT_ENOMEM, "no memory for a character class");
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t lo = r[i].lo;
        for (uint32_t c = lo; c <= r[i].hi && c <= '\\'; c++) {
            if (!needs_escape(c)) continue;
            char text[8];
            spelling(c, text);
            if (c > lo) raw[k++] = (grammar__cps){lo, c - 1};
            lo = c + 1;
            const uint32_t one = grammar__str(g, text, next);
            at = any ? grammar__alt(g, one, at) : one;
            any = true;
        }
        if (lo <= r[i].hi) raw[k++] = (grammar__cps){lo, r[i].hi};
    }
    if (k > 0 || !any) {
        const uint32_t rest = grammar__codepoint(g, raw, k, next);
        at = any ? grammar__alt(g, rest, at) : rest;
    }
    ht_mem_free(raw);
    return at;
}

/* ---- keys that are not among the known ones -------------------------------------------------- */

typedef struct {
    const char *p;
    size_t n;
} name;

static const grammar__cps key_chars[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};

/* The rest of a key that differs already. */
static uint32_t free_key(grammar__nfa *g, uint32_t next)
{
    const uint32_t loop = grammar__loop_open(g);
    grammar__loop_close(g, loop, grammar__codepoint(g, key_chars, 3, loop),
                        grammar__str(g, "\"", next));
    return loop;
}

/* After a prefix that all names [n] share up to byte i; they are sorted. */
static uint32_t differ(grammar__nfa *g, const name *nm, size_t n, size_t i, uint32_t rest,
                       uint32_t next)
{
    /* Code points that go on with some name, and those that do not. */
    grammar__cps *used = ht_mem_array(n * 2 + 8, sizeof *used);
    uint32_t at = 0;
    size_t k = 0;
    bool any = false, ends = false;
    if (!used) grammar__fail(g, HT_ENOMEM, "no memory for the keys of a schema");
    for (size_t a = 0, b; a < n && grammar__ok(g); a = b) {
        uint32_t cp;
        b = a + 1;
        if (nm[a].n == i) {
            ends = true;
            continue;
        }
        const unsigned len = ht_utf8_next(nm[a].p + i, nm[a].n - i, &cp);
        while (b < n && nm[b].n >= i + len && memcmp(nm[a].p + i, nm[b].p + i, len) == 0) b++;
        used[k++] = (grammar__cps){cp, cp};
        const uint32_t sub = differ(g, nm + a, b - a, i + len, rest, next);
        const uint32_t one = grammar__codepoint(g, &used[k - 1], 1, sub);
        at = any ? grammar__alt(g, one, at) : one;
        any = true;
    }
    if (grammar__ok(g)) {
        static const grammar__cps barred[] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
        memcpy(used + k, barred, sizeof barred);
        k = grammar__cps_norm(used, k + 3);
        grammar__cps *others = ht_mem_array(k + 2, sizeof *others);
        if (!others) grammar__fail(g, HT_ENOMEM, "no memory for the keys of a schema");
        const size_t m = others ? grammar__cps_not(used, k, others) : 0;
        const uint32_t other = grammar__codepoint(g, others, m, rest);
        at = any ? grammar__alt(g, other, at) : other;
        ht_mem_free(others);
    }
    ht_mem_free(used);
    return ends ? at : grammar__alt(g, at, grammar__str(g, "\"", next));
}

static int by_text(const void *a, const void *b)
{
    const name *x = a, *y = b;
    const size_t n = x->n < y->n ? x->n : y->n;
    const int c = memcmp(x->p, y->p, n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

uint32_t grammar__json_other_key(grammar__nfa *g, const ht_json *const *not_, size_t n,
                                 uint32_t next)
{
    name *nm = ht_mem_array(n + 1, sizeof *nm);
    size_t k = 0;
    if (!nm) {
        grammar__fail(g, HT_ENOMEM, "no memory for the keys of a schema");
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        bool plain = true;
        for (size_t c = 0; c < not_[i]->key_n; c++)
            if (needs_escape((uint8_t)not_[i]->key[c])) plain = false;
        /* A name that needs an escape is never written here. */
        if (plain) nm[k++] = (name){not_[i]->key, not_[i]->key_n};
    }
    qsort(nm, k, sizeof *nm, by_text);
    const uint32_t rest = free_key(g, next);
    const uint32_t at = k ? differ(g, nm, k, 0, rest, next) : rest;
    ht_mem_free(nm);
    return grammar__str(g, "\"", at);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* First item, more of them after commas, closing; `item` is a rule. */
static uint32_t items(grammar__json *j, uint32_t item, const char *close, uint32_t next)
{
    grammar__nfa *g = j->g;
    const uint32_t end = grammar__space(j, grammar__str(g, close, next));
    const uint32_t loop = grammar__loop_open(g);
    const uint32_t more =
        grammar__str(g, ",", grammar__space(j, grammar__call(g, item, false, loop)));
    grammar__loop_close(g, loop, more, end);
    const uint32_t first = grammar__space(j, grammar__call(g, item, false, loop));
    return grammar__alt(g, first, grammar__space(j, grammar__str(g, close, next)));
}

static uint32_t value_alternatives(grammar__json *j)
{
    grammar__nfa *g = j->g;
    uint32_t at = grammar__alt(g, call(j, GJ_OBJECT, 0), call(j, GJ_ARRAY, 0));
    at = grammar__alt(g, call(j, GJ_STRING, 0), at);
    at = grammar__alt(g, call(j, GJ_NUMBER, 0), at);
    at = grammar__alt(g, grammar__str(g, "true", 0), at);
    at = grammar__alt(g, grammar__str(g, "false", 0), at);
    return grammar__alt(g, grammar__str(g, "null", 0), at);
}

static uint32_t body(grammar__json *j, enum grammar__json_rule r)
{
    grammar__nfa *g = j->g;
    uint32_t rule, at;
    const grammar__range_of all = {0};
    const grammar__set blank = set_of("  \t\t");
    switch (r) {
    case GJ_VALUE: return value_alternatives(j);
    case GJ_OBJECT:
        rule = grammar__rule_new(g, "JSON member");
        at = grammar__space(j, call(j, GJ_VALUE, 0));
        grammar__rule_set(g, rule, call(j, GJ_STRING, grammar__str(g, ":", at)));
        return grammar__str(g, "{", items(j, rule, "}", 0));
    case GJ_ARRAY: return grammar__str(g, "[", items(j, grammar__json_rule(j, GJ_VALUE), "]", 0));
    case GJ_STRING:
        rule = grammar__loop_open(g);
        grammar__loop_close(g, rule, any_char(g, rule), grammar__str(g, "\"", 0));
        return grammar__str(g, "\"", rule);
    case GJ_CHAR: return any_char(g, 0);
    case GJ_SPACE:
        if (j->compact) return grammar__str(g, " ", 0);
        at = grammar__repeat(g, grammar__json_rule(j, GJ_INDENT), 0, 24, 0);
        return grammar__alt(g, grammar__str(g, " ", 0), grammar__str(g, "\n", at));
    case GJ_INDENT: return grammar__bytes(g, &blank, 0);
    default:
        at = 0;
        (void)grammar__number(g, &all, r == GJ_INTEGER, 0, &at);
        return at;
    }
}

uint32_t grammar__json_rule(grammar__json *j, enum grammar__json_rule r)
{
    static const char *const names[] = {"JSON value",   "JSON object",    "JSON array",
                                        "JSON string",  "JSON character", "JSON number",
                                        "JSON integer", "space",          "indentation"};
    if (j->rule[r] != UINT32_MAX) return j->rule[r];
    const uint32_t rule = j->rule[r] = grammar__rule_new(j->g, names[r]);
    const uint32_t start = body(j, r);
    grammar__rule_set(j->g, rule, start);
    return rule;
}

static uint32_t scalar(grammar__json *j, const ht_json *v, uint32_t next)
{
    ht_buf b;
    ht_buf_init(&b, 64);
    if (ht_json_write(v, 0, &b, j->g->e))
        grammar__fail(j->g, HT_ENOMEM, "a number cannot be written");
    else next = grammar__lit(j->g, b.p, b.n, next);
    ht_buf_done(&b);
    return next;
}

uint32_t grammar__json_const(grammar__json *j, const ht_json *v, uint32_t next)
{
    grammar__nfa *g = j->g;
    const bool obj = v->type == HT_JOBJ;
    if (v->type == HT_JSTR) return grammar__json_text(g, v->s, v->n, next);
    if (v->type != HT_JARR && !obj) return scalar(j, v, next);
    next = grammar__str(g, obj ? "}" : "]", next);
    if (v->n) next = grammar__space(j, next);
    for (size_t i = v->n; i-- > 0;) {
        next = grammar__json_const(j, &v->at[i], next);
        if (obj) {
            next = grammar__str(g, ":", grammar__space(j, next));
            next = grammar__json_text(g, v->at[i].key, v->at[i].key_n, next);
        }
        next = grammar__space(j, next);
        if (i > 0) next = grammar__str(g, ",", next);
    }
    return grammar__str(g, obj ? "{" : "[", next);
}
