/* access.c - attributes, items and slices with Jinja's order of lookup: a.b tries the attribute and
 * then the item, a["b"] the item and then the attribute; what is in neither is undefined. A Python
 * method this engine lacks is refused by name, since calling it undefined would be another error
 * than the one Jinja gives. Neighbours: method.c (methods), exec.c (loop). */
#include "tmpl/eval.h"
#include <string.h>

/* Attributes of Python's own types that are not in method.c's tables. */
static bool python_has(uint8_t type, const char *p, size_t n)
{
    static const char *const str_names =
        " casefold encode expandtabs format format_map isascii isdecimal isidentifier isnumeric"
        " isprintable istitle ljust maketrans partition rjust rpartition swapcase translate "
        "center ";
    static const char *const list_names = " clear copy remove reverse sort ";
    static const char *const dict_names = " clear fromkeys popitem ";
    static const char *const num_names = " as_integer_ratio bit_length bit_count conjugate "
                                         "denominator from_bytes imag numerator real"
                                         " to_bytes is_integer fromhex hex ";
    static const char *const range_names = " start stop step index count ";
    static const char *const gen_names =
        " close send throw gi_code gi_frame gi_running isdisjoint mapping ";
    const char *set = type == TV_STR                                          ? str_names
                      : type == TV_LIST                                       ? list_names
                      : type == TV_DICT                                       ? dict_names
                      : type == TV_INT || type == TV_FLOAT || type == TV_BOOL ? num_names
                      : type == TV_RANGE                                      ? range_names
                      : type == TV_GEN || type == TV_VIEW                     ? gen_names
                                                                              : NULL;
    for (; set && *set; set++) {
        if (*set == ' ' && strncmp(set + 1, p, n) == 0 && set[1 + n] == ' ') return true;
    }
    return false;
}

static bool is_dunder(const char *p, size_t n)
{
    return n > 4 && p[0] == '_' && p[1] == '_' && p[n - 1] == '_' && p[n - 2] == '_';
}

/* The attribute proper (no items). */
static int own_attr(tctx *cx, tval v, const char *p, size_t n, tval *out, bool *found)
{
    *found = false;
    if (is_dunder(p, n)) return T_FAIL(cx, HT_EUNSUPPORTED, "the attribute %.*s", (int)(n & 63), p);
    if (v.t == TV_NS) {
        for (size_t i = 0; i < v.u.o->n; i++) {
            const tstr *k = v.u.o->at[i].k.u.s;
            if (k->n != n || memcmp(k->p, p, n) != 0) continue;
            *found = true;
            *out = v.u.o->at[i].v;
        }
        return tmpl__cost(cx, 1 + v.u.o->n / 8);
    }
    if (v.t == TV_LOOP) return tmpl__loop_attr(cx, v.u.loop, p, n, out, found);
    if (v.t == TV_MACRO && n == 4 && memcmp(p, "name", 4) == 0) {
        const tname *name = v.u.macro->node->name;
        *found = true;
        return tmpl__str_new(cx, name ? name->p : "caller", name ? name->n : 6, false, out);
    }
    HT_TRY(tmpl__method(cx, v, p, n, out, found));
    if (!*found && python_has(v.t, p, n))
        return T_FAIL(cx, HT_EUNSUPPORTED, "%s.%.*s", tmpl__type_name(v), (int)(n & 63), p);
    return 0;
}

static int undefined_base(tctx *cx, tval v, const char *what, size_t n, const char *p)
{
    return T_TYPE(cx, "%s '%.*s' of an undefined value%s%s", what, n < 40 ? (int)n : 40, p,
                  v.u.hint ? ": " : "", v.u.hint ? v.u.hint : "");
}

int tmpl__attr(tctx *cx, tval v, const char *p, size_t n, tval *out)
{
    bool found;
    if (v.t == TV_UNDEF) return undefined_base(cx, v, "attribute", n, p);
    HT_TRY(own_attr(cx, v, p, n, out, &found));
    if (found) return 0;
    if (v.t == TV_DICT) {
        const tstr name = {.p = p, .n = n};
        const tval key = {.t = TV_STR, .u.s = &name};
        tpair *pair;
        HT_TRY(tmpl__dict_find(cx, v.u.o, key, &pair));
        if (pair) {
            *out = pair->v;
            return 0;
        }
    }
    return tmpl__undef_name(cx, "there is no attribute '%.*s'", p, n, out);
}

/* Python's index rule: negative counts from the end. False when out of range. */
static bool wrap(int64_t i, size_t n, size_t *out)
{
    if (i < 0) i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n) return false;
    *out = (size_t)i;
    return true;
}

static int index_into(tctx *cx, tval v, int64_t i, tval *out, bool *found)
{
    size_t k, n;
    *found = false;
    if (v.t == TV_STR) {
        HT_TRY(tmpl__length(cx, v, &n));
        if (!wrap(i, n, &k)) return 0;
        *found = true;
        size_t from = tmpl__str_off(v.u.s, k);
        const tstr rest = {.p = v.u.s->p + from, .n = v.u.s->n - from};
        return tmpl__str_cut(cx, v.u.s, from, tmpl__str_off(&rest, 1), out);
    }
    if (v.t == TV_RANGE) {
        *found = wrap(i, v.u.r->n, &k);
        if (*found) *out = tmpl__int(v.u.r->start + (int64_t)k * v.u.r->step);
    } else if (v.t == TV_LIST || v.t == TV_TUPLE) {
        *found = wrap(i, v.u.l->n, &k);
        if (*found) *out = v.u.l->at[k];
    }
    return 0;
}

int tmpl__item(tctx *cx, tval v, tval key, tval *out)
{
    bool found = false;
    if (v.t == TV_UNDEF) return undefined_base(cx, v, "item", 0, "");
    if (v.t == TV_DICT) {
        tpair *pair = NULL;
        bool usable = key.t != TV_LIST && key.t != TV_DICT && key.t != TV_NS;
        if (usable) HT_TRY(tmpl__dict_find(cx, v.u.o, key, &pair));
        if (pair) {
            *out = pair->v;
            return 0;
        }
    } else if (tmpl__is_int(key)) {
        HT_TRY(index_into(cx, v, tmpl__as_int(key), out, &found));
        if (found) return 0;
    }
    if (key.t == TV_STR) {
        HT_TRY(own_attr(cx, v, key.u.s->p, key.u.s->n, out, &found));
        if (found) return 0;
        return tmpl__undef_name(cx, "there is no item '%.*s'", key.u.s->p, key.u.s->n, out);
    }
    *out = tmpl__undef("there is no such item");
    return 0;
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* Bound i of a slice as Python resolves it; dflt when not given. */
static int64_t bound_at(tval b, int64_t n, int64_t step, int64_t dflt)
{
    if (b.t == TV_NONE || b.t == TV_MISSING) return dflt;
    int64_t i = tmpl__as_int(b), low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    if (i < 0) i = i < -n ? low : i + n;
    if (i < low) i = low;
    return i > high ? high : i;
}

static int slice_string(tctx *cx, const tstr *s, int64_t from, int64_t count, int64_t step,
                        tval *out)
{
    tsb b = {0};
    if (step == 1 || count == 0) {
        size_t a = tmpl__str_off(s, (size_t)from);
        const tstr rest = {.p = s->p + a, .n = s->n - a};
        return tmpl__str_cut(cx, s, count ? a : 0, tmpl__str_off(&rest, (size_t)count), out);
    }
    size_t n = tmpl__str_len(s), *off;
    T_NEW(cx, off, n + 1);
    for (size_t i = 0, k = 0; i < s->n; i++) {
        if (((unsigned char)s->p[i] & 0xC0) != 0x80) off[k++] = i;
    }
    off[n] = s->n;
    for (int64_t k = 0; k < count; k++) {
        size_t i = (size_t)(from + k * step);
        HT_TRY(tmpl__sb_str(cx, &b, s, off[i], off[i + 1] - off[i]));
    }
    return tmpl__sb_done(cx, &b, out);
}

int tmpl__slice(tctx *cx, tval v, const tval bound[3], tval *out)
{
    size_t len;
    int64_t step = 1;
    if (v.t == TV_UNDEF) return undefined_base(cx, v, "slice", 0, "");
    if (v.t == TV_RANGE) return T_FAIL(cx, HT_EUNSUPPORTED, "slices of a range");
    bool sliceable = v.t == TV_STR || v.t == TV_LIST || v.t == TV_TUPLE;
    for (int i = 0; i < 3 && sliceable; i++)
        sliceable = bound[i].t == TV_NONE || bound[i].t == TV_MISSING || tmpl__is_int(bound[i]);
    if (!sliceable) /* unlike an index, a slice is not looked up leniently */
        return T_TYPE(cx, "a %s cannot be sliced like this", tmpl__type_name(v));
    HT_TRY(tmpl__length(cx, v, &len));
    int64_t n = (int64_t)len;
    if (tmpl__is_int(bound[2])) step = tmpl__as_int(bound[2]);
    if (step == 0) return T_TYPE(cx, "a slice with step 0");
    if (step > n + 1) step = n + 1; /* the same items, and no overflow below */
    if (step < -(n + 1)) step = -(n + 1);
    int64_t from = bound_at(bound[0], n, step, step < 0 ? n - 1 : 0);
    int64_t to = bound_at(bound[1], n, step, step < 0 ? -1 : n);
    int64_t count = 0;
    if (step > 0 && to > from) count = (to - from + step - 1) / step;
    if (step < 0 && to < from) count = (from - to - step - 1) / -step;
    if (v.t == TV_STR) return slice_string(cx, v.u.s, from, count, step, out);
    tlist *l;
    HT_TRY(tmpl__list_new(cx, (size_t)count, &l));
    for (int64_t k = 0; k < count; k++) HT_TRY(tmpl__list_push(cx, l, v.u.l->at[from + k * step]));
    *out = v;
    out->u.l = l;
    return 0;
}
