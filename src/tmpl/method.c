/* method.c - methods of strings, lists, tuples and dicts. append, pop and the other changing
 * methods work on the render's own copies; Jinja's immutable sandbox would refuse them, but
 * templates made for llama.cpp use them and nothing outside the render can be reached. */
#include "core/utf8.h"
#include "tmpl/filter.h"
#include <string.h>

#define METHOD(name)                                                                               \
    static int name(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)

static int text_arg(tctx *cx, tval v, const char *what, const tstr **out)
{
    if (v.t != TV_STR) return T_TYPE(cx, "%s must be a string, not %s", what, tmpl__type_name(v));
    *out = v.u.s;
    return 0;
}

/* ---- strings: case and trim ------------------------------------------------------------------ */

#define RECASE(name, how)                                                                          \
    METHOD(name)                                                                                   \
    {                                                                                              \
        (void)call, (void)p;                                                                       \
        return tmpl__recase(cx, self.u.s, how, out);                                               \
    }
RECASE(s_upper, CASE_UPPER)
RECASE(s_lower, CASE_LOWER)
RECASE(s_title, CASE_WORDS)
RECASE(s_capitalize, CASE_CAPITALIZE)

static int strip(tctx *cx, tval self, const tval *p, int sides, tval *out)
{
    const tstr *chars = NULL;
    if (tmpl__given(p[0]) && p[0].t != TV_NONE) HT_TRY(text_arg(cx, p[0], "strip: chars", &chars));
    return tmpl__trim(cx, self.u.s, chars, sides, out);
}

METHOD(s_strip)
{
    (void)call;
    return strip(cx, self, p, TRIM_LEFT | TRIM_RIGHT, out);
}

METHOD(s_lstrip)
{
    (void)call;
    return strip(cx, self, p, TRIM_LEFT, out);
}

METHOD(s_rstrip)
{
    (void)call;
    return strip(cx, self, p, TRIM_RIGHT, out);
}

/* ---- strings: searching ---------------------------------------------------------------------- */

/* The part of the string that optional start and end arguments leave. */
static int window(tctx *cx, tval self, tval start, tval end, tval *out)
{
    const tval bound[3] = {start, end, {0}};
    *out = self;
    if (!tmpl__given(start) && !tmpl__given(end)) return 0;
    return tmpl__slice(cx, self, bound, out);
}

static int affix(tctx *cx, const tstr *s, tval want, bool at_end, bool *out)
{
    const tstr *w = NULL;
    *out = false;
    if (want.t == TV_TUPLE) {
        for (size_t i = 0; !*out && i < want.u.l->n; i++) {
            HT_TRY(text_arg(cx, want.u.l->at[i], "a prefix or suffix", &w));
            HT_TRY(affix(cx, s, want.u.l->at[i], at_end, out));
        }
        return 0;
    }
    HT_TRY(text_arg(cx, want, "a prefix or suffix", &w));
    *out = s->n >= w->n && (!w->n || memcmp(s->p + (at_end ? s->n - w->n : 0), w->p, w->n) == 0);
    return tmpl__cost_bytes(cx, w->n);
}

static int has_affix(tctx *cx, tval self, const tval *p, bool at_end, tval *out)
{
    tval part;
    bool yes;
    HT_TRY(window(cx, self, p[1], p[2], &part));
    HT_TRY(affix(cx, part.u.s, p[0], at_end, &yes));
    *out = tmpl__bool(yes);
    return 0;
}

METHOD(s_startswith)
{
    (void)call;
    return has_affix(cx, self, p, false, out);
}

METHOD(s_endswith)
{
    (void)call;
    return has_affix(cx, self, p, true, out);
}

METHOD(s_removeprefix)
{
    bool yes;
    (void)call;
    *out = self;
    HT_TRY(affix(cx, self.u.s, p[0], false, &yes));
    if (!yes) return 0;
    return tmpl__str_cut(cx, self.u.s, p[0].u.s->n, self.u.s->n - p[0].u.s->n, out);
}

METHOD(s_removesuffix)
{
    bool yes;
    (void)call;
    *out = self;
    HT_TRY(affix(cx, self.u.s, p[0], true, &yes));
    return yes ? tmpl__str_cut(cx, self.u.s, 0, self.u.s->n - p[0].u.s->n, out) : 0;
}

static size_t find_last(const tstr *s, const tstr *needle)
{
    if (needle->n > s->n) return SIZE_MAX;
    for (size_t i = s->n - needle->n + 1; i-- > 0;) {
        if (!needle->n || memcmp(s->p + i, needle->p, needle->n) == 0) return i;
    }
    return SIZE_MAX;
}

/* Position in code points of needle, or -1. Only the plain form: a window would shift it. */
static int search(tctx *cx, tval self, const tval *p, bool last, int64_t *out)
{
    const tstr *needle = NULL;
    HT_TRY(text_arg(cx, p[0], "the text to find", &needle));
    HT_TRY(tmpl__cost_bytes(cx, self.u.s->n + needle->n));
    size_t at = last ? find_last(self.u.s, needle) : tmpl__str_find(self.u.s, 0, needle);
    const tstr before = {.p = self.u.s->p, .n = at};
    *out = at == SIZE_MAX ? -1 : (int64_t)tmpl__str_len(&before);
    return 0;
}

static int position(tctx *cx, tval self, const tval *p, bool last, bool must, tval *out)
{
    int64_t at;
    HT_TRY(search(cx, self, p, last, &at));
    if (must && at < 0) return T_TYPE(cx, "the substring is not there");
    *out = tmpl__int(at);
    return 0;
}

METHOD(s_find)
{
    (void)call;
    return position(cx, self, p, false, false, out);
}

METHOD(s_rfind)
{
    (void)call;
    return position(cx, self, p, true, false, out);
}

METHOD(s_index)
{
    (void)call;
    return position(cx, self, p, false, true, out);
}

METHOD(s_rindex)
{
    (void)call;
    return position(cx, self, p, true, true, out);
}

METHOD(s_count)
{
    const tstr *needle = NULL;
    int64_t n = 0;
    (void)call;
    HT_TRY(text_arg(cx, p[0], "count: the text", &needle));
    HT_TRY(tmpl__cost_bytes(cx, self.u.s->n));
    if (!needle->n) {
        *out = tmpl__int((int64_t)tmpl__str_len(self.u.s) + 1);
        return 0;
    }
    for (size_t at = 0; (at = tmpl__str_find(self.u.s, at, needle)) != SIZE_MAX; at += needle->n) {
        n++;
        HT_TRY(tmpl__cost(cx, 1));
    }
    *out = tmpl__int(n);
    return 0;
}

METHOD(s_replace)
{
    const tstr *old = NULL, *new_s = NULL;
    int64_t count;
    (void)call;
    HT_TRY(text_arg(cx, p[0], "replace: the old text", &old));
    HT_TRY(text_arg(cx, p[1], "replace: the new text", &new_s));
    HT_TRY(tmpl__int_arg(cx, p[2], "replace: count", -1, &count));
    return tmpl__replace(cx, self.u.s, old, new_s, count, out);
}

/* ---- strings: splitting and joining ---------------------------------------------------------- */

static int push_cut(tctx *cx, tlist *l, const tstr *s, size_t from, size_t to)
{
    tval v;
    HT_TRY(tmpl__str_cut(cx, s, from, to - from, &v));
    return tmpl__list_push(cx, l, v);
}

/* White space runs separate; none at the ends. From the left, at most `max` cuts. */
static int split_space(tctx *cx, const tstr *s, int64_t max, tlist *l)
{
    size_t i = 0;
    uint32_t cp;
    for (;;) {
        unsigned k;
        while (i < s->n && (k = ht_utf8_next(s->p + i, s->n - i, &cp)) != 0 && tmpl__is_space(cp))
            i += k;
        if (i >= s->n) return 0;
        if (max-- == 0) {
            tval rest;
            const tstr tail = {
                .p = s->p + i, .n = s->n - i, .m = s->m ? s->m + i : NULL, .in = s->in};
            HT_TRY(tmpl__trim(cx, &tail, NULL, TRIM_RIGHT, &rest));
            return tmpl__list_push(cx, l, rest);
        }
        size_t from = i;
        while (i < s->n) {
            k = ht_utf8_next(s->p + i, s->n - i, &cp);
            if (k && tmpl__is_space(cp)) break;
            i += k ? k : 1;
        }
        HT_TRY(push_cut(cx, l, s, from, i));
    }
}

static int split_on(tctx *cx, const tstr *s, const tstr *sep, int64_t max, tlist *l)
{
    size_t from = 0;
    while (max != 0) {
        size_t at = tmpl__str_find(s, from, sep);
        if (at == SIZE_MAX) break;
        HT_TRY(push_cut(cx, l, s, from, at));
        from = at + sep->n;
        if (max > 0) max--;
    }
    return push_cut(cx, l, s, from, s->n);
}

/* The same from the right: pieces are found last to first. */
static int rsplit_on(tctx *cx, const tstr *s, const tstr *sep, int64_t max, tlist *l)
{
    tstr head = *s;
    while (max != 0) {
        size_t at = find_last(&head, sep);
        if (at == SIZE_MAX) break;
        HT_TRY(tmpl__cost_bytes(cx, head.n - at));
        HT_TRY(push_cut(cx, l, s, at + sep->n, head.n));
        head.n = at;
        if (max > 0) max--;
    }
    HT_TRY(push_cut(cx, l, s, 0, head.n));
    for (size_t i = 0, j = l->n; i + 1 < j; i++) {
        tval t = l->at[i];
        l->at[i] = l->at[--j];
        l->at[j] = t;
    }
    return 0;
}

static int split(tctx *cx, tval self, const tval *p, bool right, tval *out)
{
    const tstr *sep = NULL;
    int64_t max;
    tlist *l;
    HT_TRY(tmpl__list_new(cx, 4, &l));
    HT_TRY(tmpl__int_arg(cx, p[1], "split: maxsplit", -1, &max));
    HT_TRY(tmpl__cost_bytes(cx, self.u.s->n));
    *out = tmpl__of_list(l);
    if (!tmpl__given(p[0]) || p[0].t == TV_NONE) {
        if (right && max >= 0)
            return T_FAIL(cx, HT_EUNSUPPORTED, "rsplit(maxsplit) on white space");
        return split_space(cx, self.u.s, max, l);
    }
    HT_TRY(text_arg(cx, p[0], "split: sep", &sep));
    if (!sep->n) return T_TYPE(cx, "split: the separator is empty");
    return right ? rsplit_on(cx, self.u.s, sep, max, l) : split_on(cx, self.u.s, sep, max, l);
}

METHOD(s_split)
{
    (void)call;
    return split(cx, self, p, false, out);
}

METHOD(s_rsplit)
{
    (void)call;
    return split(cx, self, p, true, out);
}

METHOD(s_splitlines)
{
    bool keep;
    (void)call;
    HT_TRY(tmpl__flag(cx, p[0], false, &keep));
    return tmpl__lines(cx, self.u.s, keep, out);
}

METHOD(s_join)
{
    tlist *l;
    tsb b = {0};
    (void)call;
    HT_TRY(tmpl__collect(cx, p[0], &l));
    for (size_t i = 0; i < l->n; i++) {
        if (l->at[i].t != TV_STR)
            return T_TYPE(cx, "join: item %zu is a %s, not a string", i, tmpl__type_name(l->at[i]));
        if (i) HT_TRY(tmpl__sb_val(cx, &b, self));
        HT_TRY(tmpl__sb_val(cx, &b, l->at[i]));
    }
    return tmpl__sb_done(cx, &b, out);
}

METHOD(s_zfill)
{
    int64_t width, have = (int64_t)tmpl__str_len(self.u.s);
    tsb b = {0};
    size_t sign = self.u.s->n && (self.u.s->p[0] == '-' || self.u.s->p[0] == '+') ? 1 : 0;
    (void)call;
    HT_TRY(tmpl__int_arg(cx, p[0], "zfill: width", 0, &width));
    HT_TRY(tmpl__sb_str(cx, &b, self.u.s, 0, sign));
    for (; have < width; have++) {
        HT_TRY(tmpl__cost(cx, 1));
        HT_TRY(tmpl__sb_lit(cx, &b, "0"));
    }
    HT_TRY(tmpl__sb_str(cx, &b, self.u.s, sign, self.u.s->n - sign));
    return tmpl__sb_done(cx, &b, out);
}

/* ---- strings: classes ------------------------------------------------------------------------ */

enum { CLASS_DIGIT = 1, CLASS_ALPHA = 2 };

/* Not empty and all characters in one of the classes. Outside ASCII Python asks the Unicode
 * database, which this engine does not carry for this purpose. */
static int all_in(tctx *cx, const tstr *s, int classes, tval *out)
{
    bool all = s->n > 0;
    for (size_t i = 0; i < s->n; i++) {
        char c = s->p[i], low = (char)(c | 32);
        if ((unsigned char)c >= 0x80)
            return T_FAIL(cx, HT_EUNSUPPORTED, "character classes of non-ASCII text");
        bool digit = c >= '0' && c <= '9', alpha = low >= 'a' && low <= 'z';
        all = all && (((classes & CLASS_DIGIT) && digit) || ((classes & CLASS_ALPHA) && alpha));
    }
    *out = tmpl__bool(all);
    return tmpl__cost_bytes(cx, s->n);
}

METHOD(s_isdigit)
{
    (void)call, (void)p;
    return all_in(cx, self.u.s, CLASS_DIGIT, out);
}

METHOD(s_isalpha)
{
    (void)call, (void)p;
    return all_in(cx, self.u.s, CLASS_ALPHA, out);
}

METHOD(s_isalnum)
{
    (void)call, (void)p;
    return all_in(cx, self.u.s, CLASS_DIGIT | CLASS_ALPHA, out);
}

METHOD(s_isspace)
{
    tval rest;
    (void)call, (void)p;
    HT_TRY(tmpl__trim(cx, self.u.s, NULL, TRIM_LEFT, &rest));
    *out = tmpl__bool(self.u.s->n && !rest.u.s->n);
    return 0;
}

METHOD(s_islower)
{
    return tmpl__invoke(cx, tmpl__find_test("lower", 5), "test", self, call, ((void)p, out));
}
METHOD(s_isupper)
{
    return tmpl__invoke(cx, tmpl__find_test("upper", 5), "test", self, call, ((void)p, out));
}

/* ---- lists and tuples ------------------------------------------------------------------------ */

METHOD(l_append)
{
    (void)call;
    *out = tmpl__none();
    return tmpl__list_push(cx, self.u.l, p[0]);
}

METHOD(l_extend)
{
    tlist *more;
    (void)call;
    HT_TRY(tmpl__collect(cx, p[0], &more));
    for (size_t i = 0; i < more->n; i++) HT_TRY(tmpl__list_push(cx, self.u.l, more->at[i]));
    *out = tmpl__none();
    return 0;
}

METHOD(l_insert)
{
    tlist *l = self.u.l;
    int64_t at;
    (void)call;
    HT_TRY(tmpl__int_arg(cx, p[0], "insert: index", 0, &at));
    if (at < 0) at = at < -(int64_t)l->n ? 0 : at + (int64_t)l->n;
    if (at > (int64_t)l->n) at = (int64_t)l->n;
    HT_TRY(tmpl__list_push(cx, l, p[1]));
    HT_TRY(tmpl__cost(cx, l->n / 8));
    memmove(l->at + at + 1, l->at + at, (l->n - 1 - (size_t)at) * sizeof *l->at);
    l->at[at] = p[1];
    *out = tmpl__none();
    return 0;
}

METHOD(l_pop)
{
    tlist *l = self.u.l;
    int64_t at;
    (void)call;
    HT_TRY(tmpl__int_arg(cx, p[0], "pop: index", -1, &at));
    if (at < 0) at += (int64_t)l->n;
    if (at < 0 || at >= (int64_t)l->n) return T_TYPE(cx, "pop from an index that is not there");
    *out = l->at[at];
    l->n--;
    memmove(l->at + at, l->at + at + 1, (l->n - (size_t)at) * sizeof *l->at);
    return tmpl__cost(cx, l->n / 8);
}

METHOD(l_index)
{
    (void)call;
    for (size_t i = 0; i < self.u.l->n; i++) {
        bool same;
        HT_TRY(tmpl__equal(cx, self.u.l->at[i], p[0], &same));
        if (!same) continue;
        *out = tmpl__int((int64_t)i);
        return 0;
    }
    return T_TYPE(cx, "index: the item is not in the list");
}

METHOD(l_count)
{
    int64_t n = 0;
    (void)call;
    for (size_t i = 0; i < self.u.l->n; i++) {
        bool same;
        HT_TRY(tmpl__equal(cx, self.u.l->at[i], p[0], &same));
        n += same;
    }
    *out = tmpl__int(n);
    return 0;
}

/* ---- dicts ----------------------------------------------------------------------------------- */

METHOD(d_get)
{
    tpair *pair;
    (void)call;
    HT_TRY(tmpl__dict_find(cx, self.u.o, p[0], &pair));
    *out = pair ? pair->v : tmpl__given(p[1]) ? p[1] : tmpl__none();
    return 0;
}

METHOD(d_items)
{
    tval gen;
    (void)p;
    HT_TRY(tmpl__f_items(cx, self, call, p, &gen));
    return tmpl__gen_new(cx, gen.u.g->l, TV_VIEW, "dict_items", out);
}

METHOD(d_keys)
{
    tlist *l;
    (void)call, (void)p;
    HT_TRY(tmpl__collect(cx, self, &l));
    return tmpl__gen_new(cx, l, TV_VIEW, "dict_keys", out);
}

METHOD(d_values)
{
    tlist *l;
    (void)call, (void)p;
    HT_TRY(tmpl__list_new(cx, self.u.o->n, &l));
    for (size_t i = 0; i < self.u.o->n; i++) HT_TRY(tmpl__list_push(cx, l, self.u.o->at[i].v));
    return tmpl__gen_new(cx, l, TV_VIEW, "dict_values", out);
}

METHOD(d_pop)
{
    tdict *o = self.u.o;
    tpair *pair;
    (void)call;
    HT_TRY(tmpl__dict_find(cx, o, p[0], &pair));
    if (!pair) {
        if (!tmpl__given(p[1])) return T_TYPE(cx, "pop: the key is not in the dict");
        *out = p[1];
        return 0;
    }
    *out = pair->v;
    o->n--;
    memmove(pair, pair + 1, (size_t)(o->at + o->n - pair) * sizeof *pair);
    return 0;
}

METHOD(d_setdefault)
{
    tpair *pair;
    (void)call;
    HT_TRY(tmpl__dict_find(cx, self.u.o, p[0], &pair));
    *out = pair ? pair->v : tmpl__given(p[1]) ? p[1] : tmpl__none();
    return pair ? 0 : tmpl__dict_set(cx, self.u.o, p[0], *out);
}

/* update(mapping, key=value...). */
METHOD(d_update)
{
    (void)p;
    if (call->n_arg > 1) return T_TYPE(cx, "update takes at most one argument");
    if (call->n_arg && call->arg[0].t != TV_DICT)
        return T_FAIL(cx, HT_EUNSUPPORTED, "update from a %s", tmpl__type_name(call->arg[0]));
    for (size_t i = 0; call->n_arg && i < call->arg[0].u.o->n; i++) {
        tpair one = call->arg[0].u.o->at[i];
        HT_TRY(tmpl__dict_set(cx, self.u.o, one.k, one.v));
    }
    for (size_t i = 0; i < call->n_kw; i++) {
        tval key;
        HT_TRY(tmpl__str_new(cx, call->kw[i]->p, call->kw[i]->n, false, &key));
        HT_TRY(tmpl__dict_set(cx, self.u.o, key, call->kwv[i]));
    }
    *out = tmpl__none();
    return 0;
}

METHOD(d_copy)
{
    tdict *o;
    (void)call, (void)p;
    HT_TRY(tmpl__dict_new(cx, self.u.o->n, &o));
    for (size_t i = 0; i < self.u.o->n; i++) o->at[o->n++] = self.u.o->at[i];
    *out = tmpl__of_dict(o);
    return tmpl__cost(cx, o->n);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static const tbuiltin str_methods[] = {
    {.name = "capitalize", .fn = s_capitalize},
    {.name = "count", .fn = s_count, .required = 1, .params = {"sub"}},
    {.name = "endswith", .fn = s_endswith, .required = 1, .params = {"suffix", "start", "end"}},
    {.name = "find", .fn = s_find, .required = 1, .params = {"sub"}},
    {.name = "index", .fn = s_index, .required = 1, .params = {"sub"}},
    {.name = "isalnum", .fn = s_isalnum},
    {.name = "isalpha", .fn = s_isalpha},
    {.name = "isdigit", .fn = s_isdigit},
    {.name = "islower", .fn = s_islower},
    {.name = "isspace", .fn = s_isspace},
    {.name = "isupper", .fn = s_isupper},
    {.name = "join", .fn = s_join, .required = 1, .params = {"iterable"}},
    {.name = "lower", .fn = s_lower},
    {.name = "lstrip", .fn = s_lstrip, .params = {"chars"}},
    {.name = "removeprefix", .fn = s_removeprefix, .required = 1, .params = {"prefix"}},
    {.name = "removesuffix", .fn = s_removesuffix, .required = 1, .params = {"suffix"}},
    {.name = "replace", .fn = s_replace, .required = 2, .params = {"old", "new", "count"}},
    {.name = "rfind", .fn = s_rfind, .required = 1, .params = {"sub"}},
    {.name = "rindex", .fn = s_rindex, .required = 1, .params = {"sub"}},
    {.name = "rsplit", .fn = s_rsplit, .params = {"sep", "maxsplit"}},
    {.name = "rstrip", .fn = s_rstrip, .params = {"chars"}},
    {.name = "split", .fn = s_split, .params = {"sep", "maxsplit"}},
    {.name = "splitlines", .fn = s_splitlines, .params = {"keepends"}},
    {.name = "startswith", .fn = s_startswith, .required = 1, .params = {"prefix", "start", "end"}},
    {.name = "strip", .fn = s_strip, .params = {"chars"}},
    {.name = "title", .fn = s_title},
    {.name = "upper", .fn = s_upper},
    {.name = "zfill", .fn = s_zfill, .required = 1, .params = {"width"}},
    {.name = NULL}};

static const tbuiltin list_methods[] = {
    {.name = "append", .fn = l_append, .required = 1, .params = {"item"}},
    {.name = "count", .fn = l_count, .required = 1, .params = {"item"}},
    {.name = "extend", .fn = l_extend, .required = 1, .params = {"iterable"}},
    {.name = "index", .fn = l_index, .required = 1, .params = {"item"}},
    {.name = "insert", .fn = l_insert, .required = 2, .params = {"index", "item"}},
    {.name = "pop", .fn = l_pop, .params = {"index"}},
    {.name = NULL}};

static const tbuiltin tuple_methods[] = {
    {.name = "count", .fn = l_count, .required = 1, .params = {"item"}},
    {.name = "index", .fn = l_index, .required = 1, .params = {"item"}},
    {.name = NULL}};

static const tbuiltin dict_methods[] = {
    {.name = "copy", .fn = d_copy},
    {.name = "get", .fn = d_get, .required = 1, .params = {"key", "default"}},
    {.name = "items", .fn = d_items},
    {.name = "keys", .fn = d_keys},
    {.name = "pop", .fn = d_pop, .required = 1, .params = {"key", "default"}},
    {.name = "setdefault", .fn = d_setdefault, .required = 1, .params = {"key", "default"}},
    {.name = "update", .fn = d_update, .variadic = true},
    {.name = "values", .fn = d_values},
    {.name = NULL}};

int tmpl__method(tctx *cx, tval self, const char *p, size_t n, tval *out, bool *found)
{
    const tbuiltin *t = self.t == TV_STR     ? str_methods
                        : self.t == TV_LIST  ? list_methods
                        : self.t == TV_TUPLE ? tuple_methods
                        : self.t == TV_DICT  ? dict_methods
                                             : NULL;
    *found = false;
    while (t && t->name && (strlen(t->name) != n || memcmp(t->name, p, n) != 0)) t++;
    if (!t || !t->name) return 0;
    tmethod *m;
    T_NEW(cx, m, 1);
    m->self = self;
    m->fn = t;
    *out = (tval){.t = TV_METHOD, .u.method = m};
    *found = true;
    return 0;
}
