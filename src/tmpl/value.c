/* value.c - Python's semantics of values: truth, equality, order, membership, iteration, str and
 * repr. Containers may hold themselves (append), so every recursion is bounded. Neighbours:
 * number.c (arithmetic), text.c (strings), access.c (attributes and items). */
#include "core/utf8.h"
#include "tmpl/eval.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making ---------------------------------------------------------------------------------- */

tval tmpl__none(void)
{
    return (tval){.t = TV_NONE};
}
tval tmpl__bool(bool b)
{
    return (tval){.t = TV_BOOL, .u.b = b};
}
tval tmpl__int(int64_t i)
{
    return (tval){.t = TV_INT, .u.i = i};
}
tval tmpl__float(double d)
{
    return (tval){.t = TV_FLOAT, .u.d = d};
}
tval tmpl__undef(const char *hint)
{
    return (tval){.t = TV_UNDEF, .u.hint = hint};
}
tval tmpl__of_list(tlist *l)
{
    return (tval){.t = TV_LIST, .u.l = l};
}
tval tmpl__of_tuple(tlist *l)
{
    return (tval){.t = TV_TUPLE, .u.l = l};
}
tval tmpl__of_dict(tdict *o)
{
    return (tval){.t = TV_DICT, .u.o = o};
}

int tmpl__undef_name(tctx *cx, const char *fmt, const char *p, size_t n, tval *out)
{
    char hint[96], *copy;
    int len = snprintf(hint, sizeof hint, fmt, n < 48 ? (int)n : 48, p);
    size_t size = len < 0 ? 1 : (size_t)len + 1;
    if (size > sizeof hint) size = sizeof hint;
    T_NEW(cx, copy, size);
    memcpy(copy, hint, size - 1);
    *out = tmpl__undef(copy);
    return 0;
}

int tmpl__list_new(tctx *cx, size_t cap, tlist **out)
{
    T_NEW(cx, *out, 1);
    if (cap) T_NEW(cx, (*out)->at, cap);
    (*out)->cap = cap;
    return 0;
}

int tmpl__list_push(tctx *cx, tlist *l, tval v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        tval *at;
        T_NEW(cx, at, cap);
        if (l->n) memcpy(at, l->at, l->n * sizeof *at);
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = v;
    return tmpl__cost(cx, 1);
}

int tmpl__dict_new(tctx *cx, size_t cap, tdict **out)
{
    T_NEW(cx, *out, 1);
    if (cap) T_NEW(cx, (*out)->at, cap);
    (*out)->cap = cap;
    return 0;
}

static bool hashable(tval v)
{
    return v.t != TV_LIST && v.t != TV_DICT && v.t != TV_NS;
}

int tmpl__dict_find(tctx *cx, const tdict *o, tval key, tpair **out)
{
    *out = NULL;
    if (!hashable(key)) return T_TYPE(cx, "a %s cannot be a key", tmpl__type_name(key));
    HT_TRY(tmpl__cost(cx, 1 + o->n / 8));
    for (size_t i = 0; i < o->n; i++) {
        bool same = false;
        if (key.t == TV_STR && o->at[i].k.t == TV_STR) {
            same = tmpl__str_eq(key.u.s, o->at[i].k.u.s);
        } else {
            HT_TRY(tmpl__equal(cx, key, o->at[i].k, &same));
        }
        if (!same) continue;
        *out = &o->at[i];
        return 0;
    }
    return 0;
}

int tmpl__dict_set(tctx *cx, tdict *o, tval key, tval v)
{
    tpair *have;
    HT_TRY(tmpl__dict_find(cx, o, key, &have));
    if (have) {
        have->v = v;
        return 0;
    }
    if (o->n == o->cap) {
        size_t cap = o->cap ? o->cap * 2 : 4;
        tpair *at;
        T_NEW(cx, at, cap);
        if (o->n) memcpy(at, o->at, o->n * sizeof *at);
        o->at = at;
        o->cap = cap;
    }
    o->at[o->n++] = (tpair){key, v};
    return 0;
}

int tmpl__gen_new(tctx *cx, tlist *l, uint8_t type, const char *kind, tval *out)
{
    tgen *g;
    T_NEW(cx, g, 1);
    g->l = l;
    g->kind = kind;
    *out = (tval){.t = type, .u.g = g};
    return 0;
}

/* ---- asking ---------------------------------------------------------------------------------- */

const char *tmpl__type_name(tval v)
{
    static const char *const names[] = {[TV_MISSING] = "missing argument",
                                        [TV_UNDEF] = "Undefined",
                                        [TV_NONE] = "NoneType",
                                        [TV_BOOL] = "bool",
                                        [TV_INT] = "int",
                                        [TV_FLOAT] = "float",
                                        [TV_STR] = "str",
                                        [TV_LIST] = "list",
                                        [TV_TUPLE] = "tuple",
                                        [TV_DICT] = "dict",
                                        [TV_NS] = "Namespace",
                                        [TV_RANGE] = "range",
                                        [TV_GEN] = "generator",
                                        [TV_VIEW] = "dict view",
                                        [TV_LOOP] = "LoopContext",
                                        [TV_MACRO] = "Macro",
                                        [TV_METHOD] = "method",
                                        [TV_FUNC] = "function"};
    return names[v.t];
}

bool tmpl__is_int(tval v)
{
    return v.t == TV_INT || v.t == TV_BOOL;
}
bool tmpl__is_number(tval v)
{
    return tmpl__is_int(v) || v.t == TV_FLOAT;
}
int64_t tmpl__as_int(tval v)
{
    return v.t == TV_BOOL ? v.u.b : v.u.i;
}
double tmpl__as_double(tval v)
{
    return v.t == TV_FLOAT ? v.u.d : (double)tmpl__as_int(v);
}

int tmpl__truth(tctx *cx, tval v, bool *out)
{
    switch (v.t) {
    case TV_MISSING:
    case TV_UNDEF:
    case TV_NONE: *out = false; break;
    case TV_BOOL: *out = v.u.b; break;
    case TV_INT: *out = v.u.i != 0; break;
    case TV_FLOAT: *out = v.u.d != 0; break;
    case TV_STR: *out = v.u.s->n != 0; break;
    case TV_LIST:
    case TV_TUPLE: *out = v.u.l->n != 0; break;
    case TV_DICT: *out = v.u.o->n != 0; break;
    case TV_RANGE: *out = v.u.r->n != 0; break;
    case TV_VIEW: *out = v.u.g->l->n != 0; break;
    default: *out = true; break;
    }
    return tmpl__cost(cx, 1);
}

static int deeper(tctx *cx, unsigned depth)
{
    if (depth > TMPL_MAX_DATA_DEPTH)
        return T_FAIL(cx, HT_ENOMEM, "data nested deeper than %d", TMPL_MAX_DATA_DEPTH);
    return tmpl__cost(cx, 1);
}

/* Exact comparison of int and float as Python's: -1, 0, 1, or 2 for NaN. */
static int cmp_numbers(tval a, tval b)
{
    if (tmpl__is_int(a) && tmpl__is_int(b)) {
        int64_t x = tmpl__as_int(a), y = tmpl__as_int(b);
        return (x > y) - (x < y);
    }
    double x = tmpl__as_double(a), y = tmpl__as_double(b);
    if (isnan(x) || isnan(y)) return 2;
    if (x != y || (a.t == TV_FLOAT && b.t == TV_FLOAT)) return (x > y) - (x < y);
    /* equal after rounding the integer: compare as integers, the double being integral here */
    if (fabs(x) >= 9223372036854775808.0)
        return a.t == TV_FLOAT ? (x > 0 ? 1 : -1) : (y > 0 ? -1 : 1);
    int64_t p = a.t == TV_FLOAT ? (int64_t)x : tmpl__as_int(a);
    int64_t q = b.t == TV_FLOAT ? (int64_t)y : tmpl__as_int(b);
    return (p > q) - (p < q);
}

static int equal(tctx *cx, tval a, tval b, unsigned depth, bool *out);

static int equal_lists(tctx *cx, const tlist *a, const tlist *b, unsigned depth, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n && i < b->n; i++)
        HT_TRY(equal(cx, a->at[i], b->at[i], depth + 1, out));
    return 0;
}

static int equal_dicts(tctx *cx, const tdict *a, const tdict *b, unsigned depth, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        tpair *p;
        HT_TRY(tmpl__dict_find(cx, b, a->at[i].k, &p));
        *out = p != NULL;
        if (p) HT_TRY(equal(cx, a->at[i].v, p->v, depth + 1, out));
    }
    return 0;
}

static int equal(tctx *cx, tval a, tval b, unsigned depth, bool *out)
{
    HT_TRY(deeper(cx, depth));
    *out = false;
    if (tmpl__is_number(a) && tmpl__is_number(b)) {
        *out = cmp_numbers(a, b) == 0;
        return 0;
    }
    if (a.t != b.t) return 0;
    switch (a.t) {
    case TV_UNDEF:
    case TV_NONE: *out = true; return 0;
    case TV_STR: *out = tmpl__str_eq(a.u.s, b.u.s); return tmpl__cost_bytes(cx, a.u.s->n);
    case TV_LIST:
    case TV_TUPLE: return equal_lists(cx, a.u.l, b.u.l, depth, out);
    case TV_DICT: return equal_dicts(cx, a.u.o, b.u.o, depth, out);
    case TV_RANGE:
        *out = a.u.r->n == b.u.r->n &&
               (!a.u.r->n ||
                (a.u.r->start == b.u.r->start && (a.u.r->n == 1 || a.u.r->step == b.u.r->step)));
        return 0;
    case TV_METHOD: return T_FAIL(cx, HT_EUNSUPPORTED, "comparing methods");
    default: *out = a.u.s == b.u.s; return 0; /* identity: every such kind is a pointer */
    }
}

int tmpl__equal(tctx *cx, tval a, tval b, bool *out)
{
    return equal(cx, a, b, 0, out);
}

static int cmp_str(const tstr *a, const tstr *b)
{ /* UTF-8 order is code point order */
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->p, b->p, n) : 0;
    return c ? (c > 0) - (c < 0) : (a->n > b->n) - (a->n < b->n);
}

/* *out: -1, 0, 1, or 2 when unordered (NaN). */
static int compare(tctx *cx, tval a, tval b, unsigned depth, int *out)
{
    HT_TRY(deeper(cx, depth));
    if (a.t == TV_UNDEF || b.t == TV_UNDEF)
        return T_TYPE(cx, "comparing an undefined value%s%s",
                      a.t == TV_UNDEF && a.u.hint ? ": " : "",
                      a.t == TV_UNDEF && a.u.hint ? a.u.hint : "");
    if (tmpl__is_number(a) && tmpl__is_number(b)) {
        *out = cmp_numbers(a, b);
        return 0;
    }
    if (a.t == TV_STR && b.t == TV_STR) {
        *out = cmp_str(a.u.s, b.u.s);
        return tmpl__cost_bytes(cx, a.u.s->n);
    }
    if (a.t == b.t && (a.t == TV_LIST || a.t == TV_TUPLE)) {
        const tlist *x = a.u.l, *y = b.u.l;
        for (size_t i = 0; i < x->n && i < y->n; i++) {
            bool same;
            HT_TRY(equal(cx, x->at[i], y->at[i], depth + 1, &same));
            if (!same) return compare(cx, x->at[i], y->at[i], depth + 1, out);
        }
        *out = (x->n > y->n) - (x->n < y->n);
        return 0;
    }
    return T_TYPE(cx, "no order between %s and %s", tmpl__type_name(a), tmpl__type_name(b));
}

int tmpl__order(tctx *cx, int op, tval a, tval b, bool *out)
{
    int c = 0;
    HT_TRY(compare(cx, a, b, 0, &c));
    *out = (op == OP_LT && c == -1) || (op == OP_LE && (c == -1 || c == 0)) ||
           (op == OP_GT && c == 1) || (op == OP_GE && (c == 1 || c == 0));
    return 0;
}

static int in_items(tctx *cx, const tlist *l, size_t from, tval item, bool *out)
{
    *out = false;
    for (size_t i = from; !*out && i < l->n; i++) HT_TRY(tmpl__equal(cx, l->at[i], item, out));
    return 0;
}

int tmpl__contains(tctx *cx, tval c, tval item, bool *out)
{
    tpair *p;
    *out = false;
    switch (c.t) {
    case TV_UNDEF: return 0;
    case TV_STR:
        if (item.t != TV_STR)
            return T_TYPE(cx, "'in <string>' needs a string on the left, not %s",
                          tmpl__type_name(item));
        HT_TRY(tmpl__cost_bytes(cx, c.u.s->n + item.u.s->n));
        *out = tmpl__str_find(c.u.s, 0, item.u.s) != SIZE_MAX;
        return 0;
    case TV_LIST:
    case TV_TUPLE: return in_items(cx, c.u.l, 0, item, out);
    case TV_GEN:
    case TV_VIEW: return in_items(cx, c.u.g->l, c.u.g->pos, item, out);
    case TV_DICT:
        HT_TRY(tmpl__dict_find(cx, c.u.o, item, &p));
        *out = p != NULL;
        return 0;
    case TV_RANGE: {
        const trange *r = c.u.r;
        if (item.t == TV_FLOAT && item.u.d == floor(item.u.d) && fabs(item.u.d) < 1e15)
            item = tmpl__int((int64_t)item.u.d);
        if (!tmpl__is_int(item) || !r->n) return 0;
        int64_t x = tmpl__as_int(item), last = r->start + r->step * (int64_t)(r->n - 1);
        *out = x >= (r->step > 0 ? r->start : last) && x <= (r->step > 0 ? last : r->start) &&
               (x - r->start) % r->step == 0;
        return 0;
    }
    default: return T_TYPE(cx, "'in' needs a container, not %s", tmpl__type_name(c));
    }
}

int tmpl__length(tctx *cx, tval v, size_t *out)
{
    switch (v.t) {
    case TV_UNDEF: *out = 0; return 0;
    case TV_STR: *out = tmpl__str_len(v.u.s); return tmpl__cost_bytes(cx, v.u.s->n);
    case TV_LIST:
    case TV_TUPLE: *out = v.u.l->n; return 0;
    case TV_DICT: *out = v.u.o->n; return 0;
    case TV_RANGE: *out = v.u.r->n; return 0;
    case TV_VIEW: *out = v.u.g->l->n; return 0;
    default: return T_TYPE(cx, "a %s has no length", tmpl__type_name(v));
    }
}

static int collect_chars(tctx *cx, const tstr *s, tlist *l)
{
    for (size_t i = 0; i < s->n;) {
        const tstr rest = {.p = s->p + i, .n = s->n - i};
        size_t k = tmpl__str_off(&rest, 1);
        tval c;
        HT_TRY(tmpl__str_cut(cx, s, i, k, &c));
        HT_TRY(tmpl__list_push(cx, l, c));
        i += k;
    }
    return 0;
}

int tmpl__collect(tctx *cx, tval v, tlist **out)
{
    const tlist *src = NULL;
    size_t from = 0;
    HT_TRY(tmpl__list_new(cx, 0, out));
    switch (v.t) {
    case TV_UNDEF: return 0;
    case TV_STR: return collect_chars(cx, v.u.s, *out);
    case TV_LIST:
    case TV_TUPLE: src = v.u.l; break;
    case TV_VIEW: src = v.u.g->l; break;
    case TV_GEN:
        src = v.u.g->l;
        from = v.u.g->pos;
        v.u.g->pos = src->n;
        break;
    case TV_DICT:
        for (size_t i = 0; i < v.u.o->n; i++) HT_TRY(tmpl__list_push(cx, *out, v.u.o->at[i].k));
        return 0;
    case TV_RANGE:
        for (size_t i = 0; i < v.u.r->n; i++)
            HT_TRY(tmpl__list_push(cx, *out, tmpl__int(v.u.r->start + (int64_t)i * v.u.r->step)));
        return 0;
    default: return T_TYPE(cx, "a %s cannot be iterated over", tmpl__type_name(v));
    }
    for (size_t i = from; i < src->n; i++) HT_TRY(tmpl__list_push(cx, *out, src->at[i]));
    return 0;
}

/* ---- str and repr ---------------------------------------------------------------------------- */

/* Python's repr of a float: the fewest digits that read back as the same double, in plain notation
 * for exponents -4..15. Digits are taken from %e, whose decimal point depends on the locale, by
 * position, and reading back happens under the same locale. */
void tmpl__float_repr(double d, char out[40])
{
    char e[40], dig[24];
    if (isnan(d) || isinf(d)) {
        snprintf(out, 40, "%s", isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    for (int prec = 0; prec < 17; prec++) {
        snprintf(e, sizeof e, "%.*e", prec, d);
        if (strtod(e, NULL) == d) break;
    }
    int n = 0, exp10 = 0;
    const char *c = e;
    for (; *c && *c != 'e'; c++) {
        if (*c >= '0' && *c <= '9' && n < 23) dig[n++] = *c;
    }
    if (*c == 'e') exp10 = (int)strtol(c + 1, NULL, 10);
    while (n > 1 && dig[n - 1] == '0') n--;
    char *w = out;
    if (signbit(d)) *w++ = '-';
    if (exp10 < -4 || exp10 > 15) {
        *w++ = dig[0];
        if (n > 1) *w++ = '.';
        for (int i = 1; i < n; i++) *w++ = dig[i];
        snprintf(w, 14, "e%c%02d", exp10 < 0 ? '-' : '+', abs(exp10));
        return;
    }
    if (exp10 < 0) {
        *w++ = '0';
        *w++ = '.';
        for (int i = -1; i > exp10; i--) *w++ = '0';
    }
    for (int i = 0; i < n || i <= exp10; i++) {
        *w++ = i < n ? dig[i] : '0';
        if (exp10 >= 0 && i == exp10) *w++ = '.';
    }
    if (w[-1] == '.') *w++ = '0';
    *w = 0;
}

static int repr_char(tctx *cx, tsb *b, const tstr *s, size_t i, unsigned k, uint32_t cp, char quote)
{
    char esc[12] = "";
    if (cp == (uint32_t)quote || cp == '\\') {
        snprintf(esc, sizeof esc, "\\%c", (char)cp);
    } else if (cp == '\n' || cp == '\r' || cp == '\t') {
        snprintf(esc, sizeof esc, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    } else if (!tmpl__cp_printable(cp)) {
        snprintf(esc, sizeof esc,
                 cp < 0x100     ? "\\x%02x"
                 : cp < 0x10000 ? "\\u%04x"
                                : "\\U%08x",
                 cp);
    }
    if (esc[0]) return tmpl__sb_add(cx, b, esc, strlen(esc), tmpl__mark_at(s, i));
    return tmpl__sb_str(cx, b, s, i, k);
}

static int repr_str(tctx *cx, tsb *b, const tstr *s)
{
    bool single = s->n && memchr(s->p, '\'', s->n), dbl = s->n && memchr(s->p, '"', s->n);
    char quote = single && !dbl ? '"' : '\'';
    HT_TRY(tmpl__sb_add(cx, b, &quote, 1, false));
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        unsigned k = ht_utf8_next(s->p + i, s->n - i, &cp);
        if (!k) k = 1;
        HT_TRY(repr_char(cx, b, s, i, k, cp, quote));
        i += k;
    }
    return tmpl__sb_add(cx, b, &quote, 1, false);
}

static int write_repr(tctx *cx, tsb *b, tval v, unsigned depth);

static int repr_items(tctx *cx, tsb *b, const tlist *l, const char *open, const char *close,
                      unsigned depth)
{
    HT_TRY(tmpl__sb_lit(cx, b, open));
    for (size_t i = 0; i < l->n; i++) {
        if (i) HT_TRY(tmpl__sb_lit(cx, b, ", "));
        HT_TRY(write_repr(cx, b, l->at[i], depth + 1));
    }
    return tmpl__sb_lit(cx, b, close);
}

static int repr_dict(tctx *cx, tsb *b, const tdict *o, unsigned depth)
{
    HT_TRY(tmpl__sb_lit(cx, b, "{"));
    for (size_t i = 0; i < o->n; i++) {
        if (i) HT_TRY(tmpl__sb_lit(cx, b, ", "));
        HT_TRY(write_repr(cx, b, o->at[i].k, depth + 1));
        HT_TRY(tmpl__sb_lit(cx, b, ": "));
        HT_TRY(write_repr(cx, b, o->at[i].v, depth + 1));
    }
    return tmpl__sb_lit(cx, b, "}");
}

static int repr_scalar(tctx *cx, tsb *b, tval v)
{
    char buf[80];
    switch (v.t) {
    case TV_NONE: snprintf(buf, sizeof buf, "None"); break;
    case TV_BOOL: snprintf(buf, sizeof buf, v.u.b ? "True" : "False"); break;
    case TV_INT: snprintf(buf, sizeof buf, "%lld", (long long)v.u.i); break;
    case TV_FLOAT: tmpl__float_repr(v.u.d, buf); break;
    case TV_RANGE:
        snprintf(buf, sizeof buf,
                 v.u.r->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                 (long long)v.u.r->start, (long long)v.u.r->stop, (long long)v.u.r->step);
        break;
    case TV_UNDEF: snprintf(buf, sizeof buf, "Undefined"); break;
    default: return T_FAIL(cx, HT_EUNSUPPORTED, "printing a %s", tmpl__type_name(v));
    }
    return tmpl__sb_add(cx, b, buf, strlen(buf), v.in);
}

static int write_repr(tctx *cx, tsb *b, tval v, unsigned depth)
{
    HT_TRY(deeper(cx, depth));
    switch (v.t) {
    case TV_STR:
        if (v.safe) return T_FAIL(cx, HT_EUNSUPPORTED, "printing a container with a 'safe' text");
        return repr_str(cx, b, v.u.s);
    case TV_LIST: return repr_items(cx, b, v.u.l, "[", "]", depth);
    case TV_TUPLE: return repr_items(cx, b, v.u.l, "(", v.u.l->n == 1 ? ",)" : ")", depth);
    case TV_DICT: return repr_dict(cx, b, v.u.o, depth);
    case TV_VIEW:
        HT_TRY(tmpl__sb_lit(cx, b, v.u.g->kind));
        return repr_items(cx, b, v.u.g->l, "([", "])", depth);
    case TV_NS:
        HT_TRY(tmpl__sb_lit(cx, b, "<Namespace "));
        HT_TRY(repr_dict(cx, b, v.u.o, depth));
        return tmpl__sb_lit(cx, b, ">");
    case TV_MACRO: {
        const tname *name = v.u.macro->node->name;
        const tstr s = {.p = name ? name->p : "caller", .n = name ? name->n : 6};
        HT_TRY(tmpl__sb_lit(cx, b, "<Macro "));
        HT_TRY(repr_str(cx, b, &s));
        return tmpl__sb_lit(cx, b, ">");
    }
    default: return repr_scalar(cx, b, v);
    }
}

int tmpl__write_str(tctx *cx, tsb *b, tval v)
{
    if (v.t == TV_STR) return tmpl__sb_val(cx, b, v);
    return v.t == TV_UNDEF ? 0 : write_repr(cx, b, v, 0);
}

int tmpl__to_str(tctx *cx, tval v, tval *out)
{
    tsb b = {0};
    if (v.t == TV_STR) {
        *out = v;
        out->safe = false;
        return 0;
    }
    HT_TRY(tmpl__write_str(cx, &b, v));
    return tmpl__sb_done(cx, &b, out);
}

static bool needs_escape(tval v)
{
    if (v.t != TV_STR) return v.t > TV_STR;
    for (size_t i = 0; i < v.u.s->n; i++) {
        char c = v.u.s->p[i];
        if (c == '&' || c == '<' || c == '>' || c == '\'' || c == '"') return true;
    }
    return false;
}

int tmpl__markup_ok(tctx *cx, tval a, tval b)
{
    if (a.safe == b.safe || !needs_escape(a.safe ? b : a)) return 0;
    return T_FAIL(cx, HT_EUNSUPPORTED,
                  "joining a text marked 'safe' with one that would be escaped");
}

/* ---- sort ------------------------------------------------------------------------------------ */

/* Stable merge sort of items and keys together; `reverse` keeps equal items in their order, as
 * Python does. Buffers of the same length hold the other half. */
static int merge(tctx *cx, tval *it, tval *key, size_t n, tval *it2, tval *key2, bool reverse)
{
    if (n < 2) return 0;
    size_t h = n / 2, i = 0, j = h, k = 0;
    HT_TRY(merge(cx, it, key, h, it2, key2, reverse));
    HT_TRY(merge(cx, it + h, key + h, n - h, it2, key2, reverse));
    while (i < h || j < n) {
        bool right = i == h;
        if (i < h && j < n)
            HT_TRY(reverse ? tmpl__order(cx, OP_LT, key[i], key[j], &right)
                           : tmpl__order(cx, OP_LT, key[j], key[i], &right));
        size_t from = right ? j++ : i++;
        it2[k] = it[from];
        key2[k++] = key[from];
    }
    memcpy(it, it2, n * sizeof *it);
    memcpy(key, key2, n * sizeof *key);
    return 0;
}

int tmpl__sort(tctx *cx, tlist *items, tlist *keys, bool reverse)
{
    tval *it2, *key2;
    if (items->n < 2) return 0;
    T_NEW(cx, it2, items->n);
    T_NEW(cx, key2, items->n);
    return merge(cx, items->at, keys->at, items->n, it2, key2, reverse);
}
