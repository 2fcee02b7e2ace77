/* global.c - the functions a template finds without being given them: range, namespace, dict,
 * raise_exception and strftime_now. */
#include "tmpl/filter.h"
#include <stdio.h>
#include <string.h>

#define GLOBAL(name)                                                                               \
    static int name(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)

/* ---- range ----------------------------------------------------------------------------------- */

GLOBAL(g_range)
{
    int64_t a = 0, b = 0, step = 1;
    trange *r;
    (void)self;
    HT_TRY(tmpl__int_arg(cx, p[0], "range: an argument", 0, &a));
    HT_TRY(tmpl__int_arg(cx, p[1], "range: an argument", 0, &b));
    HT_TRY(tmpl__int_arg(cx, p[2], "range: an argument", 1, &step));
    if (call->n_arg == 1) {
        b = a;
        a = 0;
    }
    if (step == 0) return T_TYPE(cx, "range with step 0");
    T_NEW(cx, r, 1);
    uint64_t span = step > 0 ? (b > a ? (uint64_t)b - (uint64_t)a : 0)
                             : (a > b ? (uint64_t)a - (uint64_t)b : 0);
    uint64_t stride = step > 0 ? (uint64_t)step : (uint64_t)0 - (uint64_t)step;
    uint64_t n = span / stride + (span % stride ? 1 : 0);
    if (n > TMPL_MAX_RANGE)
        return T_FAIL(cx, HT_ENOMEM, "a range of more than %d items", TMPL_MAX_RANGE);
    *r = (trange){.start = a, .stop = b, .step = step, .n = (size_t)n};
    *out = (tval){.t = TV_RANGE, .u.r = r};
    return 0;
}

/* ---- namespace, dict ------------------------------------------------------------------------- */

/* dict(mapping or pairs, key=value...). */
static int fill_dict(tctx *cx, const tcall *call, tdict *o)
{
    tlist *items;
    if (call->n_arg > 1) return T_TYPE(cx, "at most one positional argument");
    if (call->n_arg && call->arg[0].t == TV_DICT) {
        const tdict *src = call->arg[0].u.o;
        for (size_t i = 0; i < src->n; i++)
            HT_TRY(tmpl__dict_set(cx, o, src->at[i].k, src->at[i].v));
    } else if (call->n_arg) {
        HT_TRY(tmpl__collect(cx, call->arg[0], &items));
        for (size_t i = 0; i < items->n; i++) {
            tlist *pair;
            HT_TRY(tmpl__collect(cx, items->at[i], &pair));
            if (pair->n != 2) return T_TYPE(cx, "item %zu is not a pair", i);
            HT_TRY(tmpl__dict_set(cx, o, pair->at[0], pair->at[1]));
        }
    }
    for (size_t i = 0; i < call->n_kw; i++) {
        tval key;
        HT_TRY(tmpl__str_new(cx, call->kw[i]->p, call->kw[i]->n, false, &key));
        HT_TRY(tmpl__dict_set(cx, o, key, call->kwv[i]));
    }
    return 0;
}

GLOBAL(g_dict)
{
    tdict *o;
    (void)self, (void)p;
    HT_TRY(tmpl__dict_new(cx, call->n_kw, &o));
    HT_TRY(fill_dict(cx, call, o));
    *out = tmpl__of_dict(o);
    return 0;
}

GLOBAL(g_namespace)
{
    tval v;
    HT_TRY(g_dict(cx, self, call, p, &v));
    for (size_t i = 0; i < v.u.o->n; i++) {
        if (v.u.o->at[i].k.t != TV_STR) return T_TYPE(cx, "namespace: names must be strings");
    }
    *out = (tval){.t = TV_NS, .u.o = v.u.o};
    return 0;
}

/* ---- raise_exception, strftime_now ----------------------------------------------------------- */

GLOBAL(g_raise)
{
    tval text;
    (void)self, (void)call, (void)out;
    HT_TRY(tmpl__to_str(cx, p[0], &text));
    int n = text.u.s->n < 400 ? (int)text.u.s->n : 400; /* ht_err cuts it anyway */
    return HT_FAIL(cx->err, HT_EARG, "%.*s", n, text.u.s->p);
}

typedef struct {
    int64_t year;
    int month, day, hour, minute, second, weekday, yearday;
} civil;

/* Days to date, proleptic Gregorian, years counted from March (the usual era arithmetic). */
static civil civil_of(int64_t unix_s)
{
    int64_t days = unix_s / 86400, rest = unix_s % 86400;
    if (rest < 0) {
        rest += 86400;
        days--;
    }
    int64_t z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097;
    int64_t doe = z - era * 146097, yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
    civil c;
    c.day = (int)(doy - (153 * mp + 2) / 5 + 1);
    c.month = (int)(mp < 10 ? mp + 3 : mp - 9);
    c.year = yoe + era * 400 + (c.month <= 2 ? 1 : 0);
    c.hour = (int)(rest / 3600);
    c.minute = (int)(rest / 60 % 60);
    c.second = (int)(rest % 60);
    c.weekday = (int)(((days + 4) % 7 + 7) % 7); /* 0: Sunday; 1970-01-01 a Thursday */
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    bool leap = (c.year % 4 == 0 && c.year % 100 != 0) || c.year % 400 == 0;
    c.yearday = before[c.month - 1] + c.day + (leap && c.month > 2 ? 1 : 0);
    return c;
}

/* One directive in the C locale; false: not one of ours. dash: GNU's "%-d" without padding. */
static bool directive(const civil *c, char what, bool dash, char out[64])
{
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    int h12 = c->hour % 12 ? c->hour % 12 : 12, w = dash ? 1 : 2;
    long long y = (long long)c->year;
    if (dash && !strchr("dmHIMSjy", what)) return false;
    switch (what) {
    case 'Y': snprintf(out, 64, "%lld", y); break;
    case 'y': snprintf(out, 64, "%0*d", w, (int)(((y % 100) + 100) % 100)); break;
    case 'm': snprintf(out, 64, "%0*d", w, c->month); break;
    case 'd': snprintf(out, 64, "%0*d", w, c->day); break;
    case 'e': snprintf(out, 64, "%2d", c->day); break;
    case 'H': snprintf(out, 64, "%0*d", w, c->hour); break;
    case 'I': snprintf(out, 64, "%0*d", w, h12); break;
    case 'M': snprintf(out, 64, "%0*d", w, c->minute); break;
    case 'S': snprintf(out, 64, "%0*d", w, c->second); break;
    case 'j': snprintf(out, 64, "%0*d", dash ? 1 : 3, c->yearday); break;
    case 'f': snprintf(out, 64, "000000"); break;
    case 'p': snprintf(out, 64, "%s", c->hour < 12 ? "AM" : "PM"); break;
    case 'A': snprintf(out, 64, "%s", days[c->weekday]); break;
    case 'a': snprintf(out, 64, "%.3s", days[c->weekday]); break;
    case 'B': snprintf(out, 64, "%s", months[c->month - 1]); break;
    case 'b':
    case 'h': snprintf(out, 64, "%.3s", months[c->month - 1]); break;
    case 'w': snprintf(out, 64, "%d", c->weekday); break;
    case 'u': snprintf(out, 64, "%d", c->weekday ? c->weekday : 7); break;
    case 'F': snprintf(out, 64, "%lld-%02d-%02d", y, c->month, c->day); break;
    case 'T':
    case 'X': snprintf(out, 64, "%02d:%02d:%02d", c->hour, c->minute, c->second); break;
    case 'R': snprintf(out, 64, "%02d:%02d", c->hour, c->minute); break;
    case 'D':
    case 'x': snprintf(out, 64, "%02d/%02d/%02d", c->month, c->day, (int)(y % 100)); break;
    case 'c':
        snprintf(out, 64, "%.3s %.3s %2d %02d:%02d:%02d %lld", days[c->weekday],
                 months[c->month - 1], c->day, c->hour, c->minute, c->second, y);
        break;
    case 'Z':
    case 'z': out[0] = 0; break; /* a naive time has no zone */
    case 'n': snprintf(out, 64, "\n"); break;
    case 't': snprintf(out, 64, "\t"); break;
    case '%': snprintf(out, 64, "%%"); break;
    default: return false;
    }
    return true;
}

GLOBAL(g_strftime_now)
{
    const civil now = civil_of(cx->now_unix);
    tsb b = {0};
    (void)self, (void)call;
    if (p[0].t != TV_STR) return T_TYPE(cx, "strftime_now needs a format");
    const tstr *s = p[0].u.s;
    for (size_t i = 0; i < s->n; i++) {
        if (s->p[i] != '%') {
            HT_TRY(tmpl__sb_str(cx, &b, s, i, 1));
            continue;
        }
        char text[64];
        bool dash = i + 1 < s->n && s->p[i + 1] == '-';
        size_t at = i + (dash ? 2 : 1);
        if (at >= s->n || !directive(&now, s->p[at], dash, text))
            return T_FAIL(cx, HT_EUNSUPPORTED, "strftime_now: this directive in '%.*s'",
                          s->n < 40 ? (int)s->n : 40, s->p);
        HT_TRY(tmpl__sb_lit(cx, &b, text));
        i = at;
    }
    return tmpl__sb_done(cx, &b, out);
}

/* ---- table ----------------------------------------------------------------------------------- */

int tmpl__global(tctx *cx, const tname *name, tval *out, bool *found)
{
    static const tfunc funcs[] = {
        {{.name = "range", .fn = g_range, .required = 1, .params = {"start", "stop", "step"}}},
        {{.name = "namespace", .fn = g_namespace, .variadic = true}},
        {{.name = "dict", .fn = g_dict, .variadic = true}},
        {{.name = "raise_exception", .fn = g_raise, .required = 1, .params = {"message"}}},
        {{.name = "strftime_now", .fn = g_strftime_now, .required = 1, .params = {"format"}}}};
    static const char *const foreign[] = {"lipsum", "cycler", "joiner"};
    *found = false;
    for (size_t i = 0; i < sizeof funcs / sizeof *funcs; i++) {
        if (strcmp(funcs[i].b.name, name->p) != 0) continue;
        *found = true;
        *out = (tval){.t = TV_FUNC, .u.func = &funcs[i]};
    }
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        if (strcmp(foreign[i], name->p) == 0)
            return T_FAIL(cx, HT_EUNSUPPORTED, "the global '%s'", name->p);
    }
    return 0;
}
