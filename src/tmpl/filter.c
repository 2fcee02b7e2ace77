/* filter.c - the filters: value | name(args). Each takes the value, its bound parameters p[] and
 * gives a new value; text keeps its provenance. The table at the end is the whole list. Jinja's
 * filters that are not in it are refused while parsing (tmpl__known_filter).
 * Neighbours: seqfilter.c (filters over sequences), method.c (string methods). */
#include "tmpl/filter.h"
#include <math.h>
#include <string.h>

/* ---- helpers --------------------------------------------------------------------------------- */

bool tmpl__given(tval v)
{
    return v.t != TV_MISSING;
}

int tmpl__flag(tctx *cx, tval v, bool dflt, bool *out)
{
    *out = dflt;
    return tmpl__given(v) ? tmpl__truth(cx, v, out) : 0;
}

int tmpl__int_arg(tctx *cx, tval v, const char *what, int64_t dflt, int64_t *out)
{
    *out = dflt;
    if (!tmpl__given(v)) return 0;
    if (!tmpl__is_int(v))
        return T_TYPE(cx, "%s must be an integer, not %s", what, tmpl__type_name(v));
    *out = tmpl__as_int(v);
    return 0;
}

static int as_text(tctx *cx, tval v, const tstr **out)
{
    tval s;
    HT_TRY(tmpl__to_str(cx, v, &s));
    *out = s.u.s;
    return 0;
}

#define FILTER(name)                                                                               \
    static int name(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
#define UNUSED_CALL() ((void)call, (void)p)

/* ---- text ------------------------------------------------------------------------------------ */

FILTER(f_upper)
{
    const tstr *s;
    UNUSED_CALL();
    HT_TRY(as_text(cx, self, &s));
    return tmpl__recase(cx, s, CASE_UPPER, out);
}

FILTER(f_lower)
{
    const tstr *s;
    UNUSED_CALL();
    HT_TRY(as_text(cx, self, &s));
    return tmpl__recase(cx, s, CASE_LOWER, out);
}

FILTER(f_title)
{
    const tstr *s;
    UNUSED_CALL();
    HT_TRY(as_text(cx, self, &s));
    return tmpl__recase(cx, s, CASE_TITLE, out);
}

FILTER(f_capitalize)
{
    const tstr *s;
    UNUSED_CALL();
    HT_TRY(as_text(cx, self, &s));
    return tmpl__recase(cx, s, CASE_CAPITALIZE, out);
}

FILTER(f_trim)
{
    const tstr *s, *chars = NULL;
    (void)call;
    HT_TRY(as_text(cx, self, &s));
    if (tmpl__given(p[0]) && p[0].t != TV_NONE) {
        if (p[0].t != TV_STR) return T_TYPE(cx, "trim: chars must be a string");
        chars = p[0].u.s;
    }
    return tmpl__trim(cx, s, chars, TRIM_LEFT | TRIM_RIGHT, out);
}

FILTER(f_string)
{ /* soft_str: what is safe stays so (tmpl__invoke) */
    UNUSED_CALL();
    return tmpl__to_str(cx, self, out);
}

FILTER(f_safe)
{
    UNUSED_CALL();
    HT_TRY(tmpl__to_str(cx, self, out));
    out->safe = true;
    return 0;
}

FILTER(f_escape)
{
    static const struct {
        char c;
        const char *to;
    } esc[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    const tstr *s;
    tsb b = {0};
    UNUSED_CALL();
    *out = self;
    if (self.safe) return 0;
    HT_TRY(as_text(cx, self, &s));
    for (size_t i = 0; i < s->n; i++) {
        size_t k = 0;
        while (k < sizeof esc / sizeof *esc && esc[k].c != s->p[i]) k++;
        if (k == sizeof esc / sizeof *esc) {
            HT_TRY(tmpl__sb_str(cx, &b, s, i, 1));
        } else {
            HT_TRY(tmpl__sb_add(cx, &b, esc[k].to, strlen(esc[k].to), tmpl__mark_at(s, i)));
        }
    }
    HT_TRY(tmpl__sb_done(cx, &b, out));
    out->safe = true;
    return 0;
}

FILTER(f_replace)
{
    const tstr *s, *old, *new_s;
    int64_t count = -1;
    (void)call;
    HT_TRY(as_text(cx, self, &s));
    HT_TRY(as_text(cx, p[0], &old));
    HT_TRY(as_text(cx, p[1], &new_s));
    if (p[2].t != TV_NONE) HT_TRY(tmpl__int_arg(cx, p[2], "replace: count", -1, &count));
    return tmpl__replace(cx, s, old, new_s, count, out);
}

static int add_spaces(tctx *cx, tsb *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        HT_TRY(tmpl__cost(cx, 1));
        HT_TRY(tmpl__sb_lit(cx, b, " "));
    }
    return 0;
}

FILTER(f_center)
{
    const tstr *s;
    int64_t width;
    tsb b = {0};
    (void)call;
    HT_TRY(as_text(cx, self, &s));
    HT_TRY(tmpl__int_arg(cx, p[0], "center: width", 80, &width));
    int64_t pad = width - (int64_t)tmpl__str_len(s);
    if (pad < 0) pad = 0;
    int64_t left = pad / 2 + (pad & width & 1); /* Python's str.center */
    HT_TRY(add_spaces(cx, &b, left));
    HT_TRY(tmpl__sb_str(cx, &b, s, 0, s->n));
    HT_TRY(add_spaces(cx, &b, pad - left));
    return tmpl__sb_done(cx, &b, out);
}

FILTER(f_indent)
{
    tsb b = {0}, unit = {0};
    tval indent = p[0], padded, lines;
    bool first, blank;
    (void)call;
    if (self.t != TV_STR) return T_TYPE(cx, "indent needs a string, not %s", tmpl__type_name(self));
    if (indent.t != TV_STR) {
        int64_t width;
        HT_TRY(tmpl__int_arg(cx, p[0], "indent: width", 4, &width));
        HT_TRY(add_spaces(cx, &unit, width));
        HT_TRY(tmpl__sb_done(cx, &unit, &indent));
    }
    HT_TRY(tmpl__flag(cx, p[1], false, &first));
    HT_TRY(tmpl__flag(cx, p[2], false, &blank));
    HT_TRY(tmpl__sb_val(cx, &b, self));
    HT_TRY(tmpl__sb_lit(cx, &b, "\n")); /* Jinja adds one before it splits */
    HT_TRY(tmpl__sb_done(cx, &b, &padded));
    HT_TRY(tmpl__lines(cx, padded.u.s, false, &lines));
    b = (tsb){0};
    for (size_t i = 0; i < lines.u.l->n; i++) {
        tval line = lines.u.l->at[i];
        if (i) HT_TRY(tmpl__sb_lit(cx, &b, "\n"));
        if (i ? blank || line.u.s->n : first) HT_TRY(tmpl__sb_val(cx, &b, indent));
        HT_TRY(tmpl__sb_val(cx, &b, line));
    }
    return tmpl__sb_done(cx, &b, out);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool float_to_int(double d, int64_t *out)
{
    if (!(d > -9223372036854775808.0 && d < 9223372036854775808.0)) return false;
    *out = (int64_t)d;
    return true;
}

FILTER(f_int)
{
    int64_t base, i = 0;
    double d = 0;
    bool ok = false;
    (void)call;
    HT_TRY(tmpl__int_arg(cx, p[1], "int: base", 10, &base));
    if (base != 0 && (base < 2 || base > 36)) return T_TYPE(cx, "int: base must be 2 to 36");
    if (self.t == TV_UNDEF)
        return T_TYPE(cx, "int of an undefined value%s%s", self.u.hint ? ": " : "",
                      self.u.hint ? self.u.hint : "");
    if (tmpl__is_int(self)) {
        i = tmpl__as_int(self);
        ok = true;
    } else if (self.t == TV_STR) {
        HT_TRY(tmpl__parse_int(cx, self.u.s, (int)base, &ok, &i));
        if (!ok) {
            HT_TRY(tmpl__parse_float(cx, self.u.s, &ok, &d));
            ok = ok && isfinite(d);
            if (ok && !float_to_int(d, &i))
                return T_FAIL(cx, HT_EUNSUPPORTED, "integers beyond 64 bits");
        }
    } else if (self.t == TV_FLOAT) {
        if (isinf(self.u.d)) return T_TYPE(cx, "int of infinity");
        ok = isfinite(self.u.d);
        if (ok && !float_to_int(self.u.d, &i))
            return T_FAIL(cx, HT_EUNSUPPORTED, "integers beyond 64 bits");
    }
    *out = ok ? tmpl__int(i) : tmpl__given(p[0]) ? p[0] : tmpl__int(0);
    if (ok) out->in = self.in || (self.t == TV_STR && tmpl__str_marked(self.u.s));
    return 0;
}

FILTER(f_float)
{
    double d = 0;
    bool ok = tmpl__is_number(self);
    (void)call;
    if (self.t == TV_UNDEF) return T_TYPE(cx, "float of an undefined value");
    if (ok) d = tmpl__as_double(self);
    if (self.t == TV_STR) HT_TRY(tmpl__parse_float(cx, self.u.s, &ok, &d));
    *out = ok ? tmpl__float(d) : tmpl__given(p[0]) ? p[0] : tmpl__float(0);
    if (ok) out->in = self.in || (self.t == TV_STR && tmpl__str_marked(self.u.s));
    return 0;
}

FILTER(f_abs)
{
    UNUSED_CALL();
    if (!tmpl__is_number(self)) return T_TYPE(cx, "abs of a %s", tmpl__type_name(self));
    if (self.t == TV_FLOAT) {
        *out = tmpl__float(fabs(self.u.d));
        return 0;
    }
    int64_t i = tmpl__as_int(self);
    if (i >= 0) {
        *out = tmpl__int(i);
        return 0;
    }
    return tmpl__binary(cx, OP_SUB, tmpl__int(0), self, out);
}

FILTER(f_round)
{
    int64_t digits;
    (void)call;
    HT_TRY(tmpl__int_arg(cx, p[0], "round: precision", 0, &digits));
    if (p[1].t == TV_MISSING || (p[1].t == TV_STR && tmpl__str_is(p[1].u.s, "common")))
        return tmpl__round(cx, self, digits, out);
    bool up = p[1].t == TV_STR && tmpl__str_is(p[1].u.s, "ceil");
    if (!up && !(p[1].t == TV_STR && tmpl__str_is(p[1].u.s, "floor")))
        return T_TYPE(cx, "round: method must be common, ceil or floor");
    if (!tmpl__is_number(self)) return T_TYPE(cx, "rounding a %s", tmpl__type_name(self));
    if (digits < 0 || digits > 15) return T_FAIL(cx, HT_EUNSUPPORTED, "round to this precision");
    double scale = pow(10, (double)digits), x = tmpl__as_double(self) * scale;
    *out = tmpl__float((up ? ceil(x) : floor(x)) / scale);
    return 0;
}

/* ---- any value ------------------------------------------------------------------------------- */

FILTER(f_default)
{
    bool boolean, truth = true;
    (void)call;
    HT_TRY(tmpl__flag(cx, p[1], false, &boolean));
    if (boolean) HT_TRY(tmpl__truth(cx, self, &truth));
    *out = self;
    if (self.t != TV_UNDEF && truth) return 0;
    if (tmpl__given(p[0])) {
        *out = p[0];
        return 0;
    }
    return tmpl__str_new(cx, "", 0, false, out);
}

FILTER(f_length)
{
    size_t n;
    UNUSED_CALL();
    HT_TRY(tmpl__length(cx, self, &n));
    *out = tmpl__int((int64_t)n);
    return 0;
}

static int separator(tctx *cx, tval pair, size_t i, const char *dflt, tval *out)
{
    tlist *l;
    if (pair.t == TV_MISSING || pair.t == TV_NONE)
        return tmpl__str_new(cx, dflt, strlen(dflt), false, out);
    HT_TRY(tmpl__collect(cx, pair, &l));
    if (l->n != 2 || l->at[i].t != TV_STR)
        return T_TYPE(cx, "tojson: separators must be two strings");
    *out = l->at[i];
    return 0;
}

FILTER(f_tojson)
{
    tjson f = {0};
    tsb b = {0};
    (void)call;
    HT_TRY(tmpl__flag(cx, p[0], false, &f.ascii));
    HT_TRY(tmpl__flag(cx, p[3], false, &f.sort_keys));
    f.pretty = p[1].t != TV_MISSING && p[1].t != TV_NONE;
    if (f.pretty && p[1].t == TV_STR) {
        f.indent = p[1];
    } else if (f.pretty) {
        int64_t width;
        HT_TRY(tmpl__int_arg(cx, p[1], "tojson: indent", 0, &width));
        HT_TRY(add_spaces(cx, &b, width));
        HT_TRY(tmpl__sb_done(cx, &b, &f.indent));
    }
    HT_TRY(separator(cx, p[2], 0, f.pretty ? "," : ", ", &f.item_sep));
    HT_TRY(separator(cx, p[2], 1, ": ", &f.key_sep));
    return tmpl__to_json(cx, self, &f, out);
}

/* llama.cpp's addition: the value a JSON text stands for. */
FILTER(f_from_json)
{
    enum { BYTES_PER_CHAR = 64 }; /* at most one parsed node for two characters */
    ht_json *j = NULL;
    ht_err e = {0};
    size_t most;
    UNUSED_CALL();
    if (self.t != TV_STR) return T_TYPE(cx, "from_json needs a string");
    if (!ht_mul_ok(self.u.s->n, BYTES_PER_CHAR, &most) || most > cx->max_mem - cx->mem)
        return T_FAIL(cx, HT_ENOMEM, "from_json of %zu bytes", self.u.s->n);
    cx->mem += most;
    HT_TRY(tmpl__cost_bytes(cx, most));
    if (ht_json_parse(cx->arena, self.u.s->p, self.u.s->n, 0, "from_json", &j, &e))
        return T_FAIL(cx, e.code == HT_ENOMEM ? HT_ENOMEM : HT_EARG, "%s", e.msg);
    return tmpl__from_json(cx, j, tmpl__str_marked(self.u.s), out);
}

/* ---- table ----------------------------------------------------------------------------------- */

static const tbuiltin filters[] = {
    {.name = "abs", .fn = f_abs},
    {.name = "capitalize", .fn = f_capitalize},
    {.name = "center", .fn = f_center, .params = {"width"}},
    {.name = "count", .fn = f_length},
    {.name = "d", .fn = f_default, .params = {"default_value", "boolean"}},
    {.name = "default", .fn = f_default, .params = {"default_value", "boolean"}},
    {.name = "dictsort", .fn = tmpl__f_dictsort, .params = {"case_sensitive", "by", "reverse"}},
    {.name = "e", .fn = f_escape},
    {.name = "escape", .fn = f_escape},
    {.name = "first", .fn = tmpl__f_first},
    {.name = "float", .fn = f_float, .params = {"default"}},
    {.name = "from_json", .fn = f_from_json},
    {.name = "indent", .fn = f_indent, .params = {"width", "first", "blank"}},
    {.name = "int", .fn = f_int, .params = {"default", "base"}},
    {.name = "items", .fn = tmpl__f_items},
    {.name = "join", .fn = tmpl__f_join, .plain = true, .params = {"d", "attribute"}},
    {.name = "last", .fn = tmpl__f_last},
    {.name = "length", .fn = f_length},
    {.name = "list", .fn = tmpl__f_list},
    {.name = "lower", .fn = f_lower},
    {.name = "map", .fn = tmpl__f_map, .variadic = true},
    {.name = "max", .fn = tmpl__f_max, .params = {"case_sensitive", "attribute"}},
    {.name = "min", .fn = tmpl__f_min, .params = {"case_sensitive", "attribute"}},
    {.name = "reject", .fn = tmpl__f_reject, .variadic = true},
    {.name = "rejectattr", .fn = tmpl__f_rejectattr, .variadic = true},
    {.name = "replace",
     .fn = f_replace,
     .plain = true,
     .required = 2,
     .params = {"old", "new", "count"}},
    {.name = "reverse", .fn = tmpl__f_reverse},
    {.name = "round", .fn = f_round, .params = {"precision", "method"}},
    {.name = "safe", .fn = f_safe},
    {.name = "select", .fn = tmpl__f_select, .variadic = true},
    {.name = "selectattr", .fn = tmpl__f_selectattr, .variadic = true},
    {.name = "sort", .fn = tmpl__f_sort, .params = {"reverse", "case_sensitive", "attribute"}},
    {.name = "string", .fn = f_string},
    {.name = "sum", .fn = tmpl__f_sum, .params = {"attribute", "start"}},
    {.name = "title", .fn = f_title},
    {.name = "tojson",
     .fn = f_tojson,
     .plain = true,
     .params = {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {.name = "trim", .fn = f_trim, .params = {"chars"}},
    {.name = "unique", .fn = tmpl__f_unique, .params = {"case_sensitive", "attribute"}},
    {.name = "upper", .fn = f_upper},
};

const tbuiltin *tmpl__find_filter(const char *p, size_t n)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, p, n) == 0) return &filters[i];
    }
    return NULL;
}

bool tmpl__known_filter(const char *p, size_t n)
{
    static const char *const others[] = {"attr",   "batch",     "filesizeformat", "forceescape",
                                         "format", "groupby",   "pprint",         "random",
                                         "slice",  "striptags", "truncate",       "urlencode",
                                         "urlize", "wordcount", "wordwrap",       "xmlattr"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strlen(others[i]) == n && memcmp(others[i], p, n) == 0) return true;
    }
    return false;
}
