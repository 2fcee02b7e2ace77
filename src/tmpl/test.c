/* test.c - the tests: value is name(args). Each gives a boolean. */
#include "core/utf8.h"
#include "tmpl/filter.h"
#include <math.h>
#include <string.h>

#define TEST(name) static int name(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)

#define ANSWER(expr) ((void)cx, (void)call, (void)p, *out = tmpl__bool(expr), 0)

TEST(t_defined)
{
    return ANSWER(self.t != TV_UNDEF);
}
TEST(t_undefined)
{
    return ANSWER(self.t == TV_UNDEF);
}
TEST(t_none)
{
    return ANSWER(self.t == TV_NONE);
}
TEST(t_boolean)
{
    return ANSWER(self.t == TV_BOOL);
}
TEST(t_true)
{
    return ANSWER(self.t == TV_BOOL && self.u.b);
}
TEST(t_false)
{
    return ANSWER(self.t == TV_BOOL && !self.u.b);
}
TEST(t_integer)
{
    return ANSWER(self.t == TV_INT);
}
TEST(t_float)
{
    return ANSWER(self.t == TV_FLOAT);
}
TEST(t_number)
{
    return ANSWER(tmpl__is_number(self));
}
TEST(t_string)
{
    return ANSWER(self.t == TV_STR);
}
TEST(t_mapping)
{
    return ANSWER(self.t == TV_DICT);
}
TEST(t_escaped)
{
    return ANSWER(self.safe);
}

/* Undefined iterates as nothing, so it counts as iterable and as a sequence. */
TEST(t_iterable)
{
    return ANSWER(self.t == TV_UNDEF || (self.t >= TV_STR && self.t <= TV_LOOP && self.t != TV_NS));
}

TEST(t_sequence)
{
    return ANSWER(self.t == TV_UNDEF ||
                  (self.t >= TV_STR && self.t <= TV_RANGE && self.t != TV_NS));
}

TEST(t_callable)
{
    return ANSWER(self.t == TV_UNDEF || self.t >= TV_LOOP);
}

static int remainder_is(tctx *cx, tval v, tval divisor, int64_t want, tval *out)
{
    tval rest;
    bool same;
    HT_TRY(tmpl__binary(cx, OP_MOD, v, divisor, &rest));
    HT_TRY(tmpl__equal(cx, rest, tmpl__int(want), &same));
    *out = tmpl__bool(same);
    return 0;
}

TEST(t_odd)
{
    (void)call, (void)p;
    return remainder_is(cx, self, tmpl__int(2), 1, out);
}

TEST(t_even)
{
    (void)call, (void)p;
    return remainder_is(cx, self, tmpl__int(2), 0, out);
}

TEST(t_divisibleby)
{
    (void)call;
    return remainder_is(cx, self, p[0], 0, out);
}

/* str.islower / isupper: some letter has case, and all that do have this one. Letters without a
 * case mapping count as caseless. */
static int all_case(tctx *cx, tval v, bool upper, tval *out)
{
    tval s;
    bool any = false, all = true;
    HT_TRY(tmpl__to_str(cx, v, &s));
    HT_TRY(tmpl__cost_bytes(cx, s.u.s->n));
    for (size_t i = 0; i < s.u.s->n;) {
        uint32_t cp, to[3];
        unsigned k = ht_utf8_next(s.u.s->p + i, s.u.s->n - i, &cp);
        if (tmpl__cp_cased(cp)) {
            unsigned n = tmpl__cp_case(cp, upper ? CASE_UPPER : CASE_LOWER, to);
            any = true;
            all = all && n == 1 && to[0] == cp;
        }
        i += k ? k : 1;
    }
    *out = tmpl__bool(any && all);
    return 0;
}

TEST(t_lower)
{
    (void)call, (void)p;
    return all_case(cx, self, false, out);
}

TEST(t_upper)
{
    (void)call, (void)p;
    return all_case(cx, self, true, out);
}

TEST(t_eq)
{
    bool same;
    (void)call;
    HT_TRY(tmpl__equal(cx, self, p[0], &same));
    *out = tmpl__bool(same);
    return 0;
}

TEST(t_ne)
{
    HT_TRY(t_eq(cx, self, call, p, out));
    out->u.b = !out->u.b;
    return 0;
}

static int ordered(tctx *cx, int op, tval a, tval b, tval *out)
{
    bool truth;
    HT_TRY(tmpl__order(cx, op, a, b, &truth));
    *out = tmpl__bool(truth);
    return 0;
}

TEST(t_gt)
{
    (void)call;
    return ordered(cx, OP_GT, self, p[0], out);
}

TEST(t_ge)
{
    (void)call;
    return ordered(cx, OP_GE, self, p[0], out);
}

TEST(t_lt)
{
    (void)call;
    return ordered(cx, OP_LT, self, p[0], out);
}

TEST(t_le)
{
    (void)call;
    return ordered(cx, OP_LE, self, p[0], out);
}

TEST(t_in)
{
    bool has;
    (void)call;
    HT_TRY(tmpl__contains(cx, p[0], self, &has));
    *out = tmpl__bool(has);
    return 0;
}

/* "is" of Python. Whether equal strings or numbers are one object is the interpreter's whim, so
 * only the singletons and containers have an answer. */
TEST(t_sameas)
{
    bool single = self.t == TV_NONE || self.t == TV_BOOL;
    (void)call;
    if (self.t != p[0].t) {
        *out = tmpl__bool(false);
        return 0;
    }
    if (single) return t_eq(cx, self, call, p, out);
    if (self.t < TV_LIST || self.t == TV_METHOD)
        return T_FAIL(cx, HT_EUNSUPPORTED, "sameas between two of %s", tmpl__type_name(self));
    *out = tmpl__bool(self.u.l == p[0].u.l);
    return 0;
}

static int known(tctx *cx, tval self, bool filter, tval *out)
{
    (void)cx;
    if (self.t != TV_STR) {
        *out = tmpl__bool(false);
        return 0;
    }
    const tstr *s = self.u.s;
    *out = tmpl__bool(filter ? tmpl__find_filter(s->p, s->n) || tmpl__known_filter(s->p, s->n)
                             : tmpl__find_test(s->p, s->n) != NULL);
    return 0;
}

TEST(t_filter)
{
    (void)call, (void)p;
    return known(cx, self, true, out);
}

TEST(t_test)
{
    (void)call, (void)p;
    return known(cx, self, false, out);
}

#define WITH_OTHER .required = 1, .params = {"other"}
static const tbuiltin tests[] = {
    {.name = "!=", .fn = t_ne, WITH_OTHER},
    {.name = "<", .fn = t_lt, WITH_OTHER},
    {.name = "<=", .fn = t_le, WITH_OTHER},
    {.name = "==", .fn = t_eq, WITH_OTHER},
    {.name = ">", .fn = t_gt, WITH_OTHER},
    {.name = ">=", .fn = t_ge, WITH_OTHER},
    {.name = "boolean", .fn = t_boolean},
    {.name = "callable", .fn = t_callable},
    {.name = "defined", .fn = t_defined},
    {.name = "divisibleby", .fn = t_divisibleby, .required = 1, .params = {"num"}},
    {.name = "eq", .fn = t_eq, WITH_OTHER},
    {.name = "equalto", .fn = t_eq, WITH_OTHER},
    {.name = "escaped", .fn = t_escaped},
    {.name = "even", .fn = t_even},
    {.name = "false", .fn = t_false},
    {.name = "filter", .fn = t_filter},
    {.name = "float", .fn = t_float},
    {.name = "ge", .fn = t_ge, WITH_OTHER},
    {.name = "greaterthan", .fn = t_gt, WITH_OTHER},
    {.name = "gt", .fn = t_gt, WITH_OTHER},
    {.name = "in", .fn = t_in, .required = 1, .params = {"seq"}},
    {.name = "integer", .fn = t_integer},
    {.name = "iterable", .fn = t_iterable},
    {.name = "le", .fn = t_le, WITH_OTHER},
    {.name = "lessthan", .fn = t_lt, WITH_OTHER},
    {.name = "lower", .fn = t_lower},
    {.name = "lt", .fn = t_lt, WITH_OTHER},
    {.name = "mapping", .fn = t_mapping},
    {.name = "ne", .fn = t_ne, WITH_OTHER},
    {.name = "none", .fn = t_none},
    {.name = "number", .fn = t_number},
    {.name = "odd", .fn = t_odd},
    {.name = "sameas", .fn = t_sameas, WITH_OTHER},
    {.name = "sequence", .fn = t_sequence},
    {.name = "string", .fn = t_string},
    {.name = "test", .fn = t_test},
    {.name = "true", .fn = t_true},
    {.name = "undefined", .fn = t_undefined},
    {.name = "upper", .fn = t_upper},
};

const tbuiltin *tmpl__find_test(const char *p, size_t n)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (strlen(tests[i].name) == n && memcmp(tests[i].name, p, n) == 0) return &tests[i];
    }
    return NULL;
}
