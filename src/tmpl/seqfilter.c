/* seqfilter.c - filters over sequences. What Jinja gives as a generator is a TV_GEN here: it is
 * read once and has no length, but its items are made at once rather than on demand. */
#include "tmpl/filter.h"
#include <string.h>

/* ---- attribute paths: "a.b.0" ---------------------------------------------------------------- */

static int path_part(tctx *cx, const char *p, size_t n, tval *out)
{
    int64_t i = 0;
    bool digits = n > 0 && n < 10;
    for (size_t k = 0; k < n && digits; k++) {
        digits = p[k] >= '0' && p[k] <= '9';
        i = i * 10 + (p[k] - '0');
    }
    if (!digits) return tmpl__str_new(cx, p, n, false, out);
    *out = tmpl__int(i);
    return 0;
}

static int attr_path(tctx *cx, tval item, tval path, tval dflt, tval *out)
{
    *out = item;
    if (path.t == TV_MISSING || path.t == TV_NONE) return 0;
    if (path.t != TV_STR) return tmpl__item(cx, item, path, out);
    const tstr *s = path.u.s;
    for (size_t from = 0; from <= s->n;) {
        const char *dot = s->n > from ? memchr(s->p + from, '.', s->n - from) : NULL;
        size_t to = dot ? (size_t)(dot - s->p) : s->n;
        tval key, next;
        HT_TRY(path_part(cx, s->p + from, to - from, &key));
        HT_TRY(tmpl__item(cx, *out, key, &next));
        *out = next.t == TV_UNDEF && dflt.t != TV_MISSING && dflt.t != TV_NONE ? dflt : next;
        from = to + 1;
    }
    return 0;
}

static int fold_case(tctx *cx, bool sensitive, tval *v)
{
    if (sensitive || v->t != TV_STR) return 0;
    return tmpl__recase(cx, v->u.s, CASE_LOWER, v);
}

/* ---- plain ----------------------------------------------------------------------------------- */

int tmpl__f_list(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    tlist *l;
    (void)call, (void)p;
    HT_TRY(tmpl__collect(cx, self, &l));
    *out = tmpl__of_list(l);
    return 0;
}

int tmpl__f_items(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    tlist *l;
    (void)call, (void)p;
    HT_TRY(tmpl__list_new(cx, 0, &l));
    if (self.t != TV_UNDEF && self.t != TV_DICT)
        return T_TYPE(cx, "items needs a mapping, not %s", tmpl__type_name(self));
    for (size_t i = 0; self.t == TV_DICT && i < self.u.o->n; i++) {
        tlist *pair;
        HT_TRY(tmpl__list_new(cx, 2, &pair));
        HT_TRY(tmpl__list_push(cx, pair, self.u.o->at[i].k));
        HT_TRY(tmpl__list_push(cx, pair, self.u.o->at[i].v));
        HT_TRY(tmpl__list_push(cx, l, tmpl__of_tuple(pair)));
    }
    return tmpl__gen_new(cx, l, TV_GEN, "generator", out);
}

int tmpl__f_first(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    tlist *l;
    (void)call, (void)p;
    if (self.t == TV_GEN) { /* takes one item and leaves the rest */
        tgen *g = self.u.g;
        *out = g->pos < g->l->n ? g->l->at[g->pos++] : tmpl__undef("first of an empty sequence");
        return 0;
    }
    HT_TRY(tmpl__collect(cx, self, &l));
    *out = l->n ? l->at[0] : tmpl__undef("first of an empty sequence");
    return 0;
}

int tmpl__f_last(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    tlist *l;
    (void)call, (void)p;
    if (self.t == TV_GEN) return T_TYPE(cx, "last of a generator");
    HT_TRY(tmpl__collect(cx, self, &l));
    *out = l->n ? l->at[l->n - 1] : tmpl__undef("last of an empty sequence");
    return 0;
}

static void reverse_list(tlist *l)
{
    for (size_t i = 0, j = l->n; i + 1 < j; i++) {
        tval t = l->at[i];
        l->at[i] = l->at[--j];
        l->at[j] = t;
    }
}

int tmpl__f_reverse(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    tlist *l;
    (void)call, (void)p;
    if (self.t == TV_STR) {
        const tval bound[3] = {tmpl__none(), tmpl__none(), tmpl__int(-1)};
        return tmpl__slice(cx, self, bound, out);
    }
    HT_TRY(tmpl__collect(cx, self, &l));
    reverse_list(l);
    if (self.t == TV_GEN) {
        *out = tmpl__of_list(l);
        return 0;
    }
    return tmpl__gen_new(cx, l, TV_GEN, "iterator", out);
}

int tmpl__f_join(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    tlist *l;
    tsb b = {0};
    tval sep;
    (void)call;
    HT_TRY(tmpl__collect(cx, self, &l));
    if (tmpl__given(p[0])) HT_TRY(tmpl__to_str(cx, p[0], &sep));
    for (size_t i = 0; i < l->n; i++) {
        tval v;
        if (i && tmpl__given(p[0])) HT_TRY(tmpl__sb_val(cx, &b, sep));
        HT_TRY(attr_path(cx, l->at[i], p[1], (tval){0}, &v));
        HT_TRY(tmpl__write_str(cx, &b, v));
    }
    return tmpl__sb_done(cx, &b, out);
}

int tmpl__f_sum(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    tlist *l;
    (void)call;
    HT_TRY(tmpl__collect(cx, self, &l));
    *out = tmpl__given(p[1]) ? p[1] : tmpl__int(0);
    if (out->t == TV_STR) return T_TYPE(cx, "sum cannot add strings: use join");
    for (size_t i = 0; i < l->n; i++) {
        tval v, sum;
        HT_TRY(attr_path(cx, l->at[i], p[0], (tval){0}, &v));
        HT_TRY(tmpl__binary(cx, OP_ADD, *out, v, &sum));
        *out = sum;
    }
    return 0;
}

/* ---- map and select -------------------------------------------------------------------------- */

static const tval *find_kw(const tcall *call, const char *name)
{
    for (size_t i = 0; i < call->n_kw; i++) {
        if (call->kw[i]->n == strlen(name) && memcmp(call->kw[i]->p, name, call->kw[i]->n) == 0)
            return &call->kwv[i];
    }
    return NULL;
}

int tmpl__f_map(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    const tval *attr = call->n_arg ? NULL : find_kw(call, "attribute");
    const tval *dflt = find_kw(call, "default");
    const tbuiltin *fn = NULL;
    tcall rest = *call;
    tlist *src, *dst;
    bool truth;
    (void)p;
    HT_TRY(tmpl__list_new(cx, 0, &dst));
    HT_TRY(tmpl__truth(cx, self, &truth));
    if (!truth) return tmpl__gen_new(cx, dst, TV_GEN, "generator", out);
    if (attr && call->n_kw != (dflt ? 2U : 1U))
        return T_TYPE(cx, "map: unexpected keyword argument");
    if (!attr) {
        if (!call->n_arg || call->arg[0].t != TV_STR)
            return T_TYPE(cx, "map needs the name of a filter");
        const tstr *name = call->arg[0].u.s;
        fn = tmpl__find_filter(name->p, name->n);
        if (!fn)
            return T_FAIL(cx, HT_EUNSUPPORTED, "filter '%.*s' in map", (int)(name->n & 63),
                          name->p);
        rest.arg++;
        rest.n_arg--;
    }
    HT_TRY(tmpl__collect(cx, self, &src));
    for (size_t i = 0; i < src->n; i++) {
        tval v;
        HT_TRY(attr ? attr_path(cx, src->at[i], *attr, dflt ? *dflt : (tval){0}, &v)
                    : tmpl__invoke(cx, fn, "filter", src->at[i], &rest, &v));
        HT_TRY(tmpl__list_push(cx, dst, v));
    }
    return tmpl__gen_new(cx, dst, TV_GEN, "generator", out);
}

/* select, reject and their attr forms: keep items whose test gives `keep`. */
static int choose(tctx *cx, tval self, const tcall *call, bool by_attr, bool keep, tval *out)
{
    const tbuiltin *test = NULL;
    size_t off = by_attr ? 1 : 0;
    tcall rest = *call;
    tlist *src, *dst;
    bool truth;
    HT_TRY(tmpl__list_new(cx, 0, &dst));
    HT_TRY(tmpl__truth(cx, self, &truth));
    if (!truth) return tmpl__gen_new(cx, dst, TV_GEN, "generator", out);
    if (call->n_arg < off) return T_TYPE(cx, "the name of the attribute is missing");
    if (call->n_arg > off) {
        const tval name = call->arg[off];
        if (name.t == TV_STR) test = tmpl__find_test(name.u.s->p, name.u.s->n);
        if (!test) return T_FAIL(cx, HT_EUNSUPPORTED, "this test in select or reject");
        rest.arg += off + 1;
        rest.n_arg -= off + 1;
    }
    HT_TRY(tmpl__collect(cx, self, &src));
    for (size_t i = 0; i < src->n; i++) {
        tval v = src->at[i], verdict;
        if (by_attr) HT_TRY(attr_path(cx, src->at[i], call->arg[0], (tval){0}, &v));
        verdict = v;
        if (test) HT_TRY(tmpl__invoke(cx, test, "test", v, &rest, &verdict));
        HT_TRY(tmpl__truth(cx, verdict, &truth));
        if (truth == keep) HT_TRY(tmpl__list_push(cx, dst, src->at[i]));
    }
    return tmpl__gen_new(cx, dst, TV_GEN, "generator", out);
}

int tmpl__f_select(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    (void)p;
    return choose(cx, self, call, false, true, out);
}

int tmpl__f_reject(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    (void)p;
    return choose(cx, self, call, false, false, out);
}

int tmpl__f_selectattr(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    (void)p;
    return choose(cx, self, call, true, true, out);
}

int tmpl__f_rejectattr(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    (void)p;
    return choose(cx, self, call, true, false, out);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Sort key of one item: a list with one value for each comma-separated path. */
static int sort_key(tctx *cx, tval item, tval path, bool sensitive, tval *out)
{
    tlist *key;
    HT_TRY(tmpl__list_new(cx, 1, &key));
    *out = tmpl__of_list(key);
    size_t from = 0, n = path.t == TV_STR ? path.u.s->n : 0;
    for (;;) {
        tval part = path, v;
        const char *comma = n > from ? memchr(path.u.s->p + from, ',', n - from) : NULL;
        size_t to = comma ? (size_t)(comma - path.u.s->p) : n;
        if (path.t == TV_STR) HT_TRY(tmpl__str_cut(cx, path.u.s, from, to - from, &part));
        HT_TRY(attr_path(cx, item, part, (tval){0}, &v));
        HT_TRY(fold_case(cx, sensitive, &v));
        HT_TRY(tmpl__list_push(cx, key, v));
        if (!comma) return 0;
        from = to + 1;
    }
}

int tmpl__f_sort(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    tlist *l, *keys;
    bool reverse, sensitive;
    (void)call;
    HT_TRY(tmpl__flag(cx, p[0], false, &reverse));
    HT_TRY(tmpl__flag(cx, p[1], false, &sensitive));
    HT_TRY(tmpl__collect(cx, self, &l));
    HT_TRY(tmpl__list_new(cx, l->n, &keys));
    for (size_t i = 0; i < l->n; i++) {
        tval key;
        HT_TRY(sort_key(cx, l->at[i], p[2], sensitive, &key));
        HT_TRY(tmpl__list_push(cx, keys, key));
    }
    HT_TRY(tmpl__sort(cx, l, keys, reverse));
    *out = tmpl__of_list(l);
    return 0;
}

int tmpl__f_dictsort(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    tlist *keys;
    tval items, pairs;
    bool sensitive, reverse;
    size_t by = 0;
    (void)call;
    if (self.t != TV_DICT)
        return T_TYPE(cx, "dictsort needs a mapping, not %s", tmpl__type_name(self));
    HT_TRY(tmpl__flag(cx, p[0], false, &sensitive));
    HT_TRY(tmpl__flag(cx, p[2], false, &reverse));
    if (tmpl__given(p[1])) {
        bool value = p[1].t == TV_STR && tmpl__str_is(p[1].u.s, "value");
        if (!value && !(p[1].t == TV_STR && tmpl__str_is(p[1].u.s, "key")))
            return T_TYPE(cx, "dictsort: by must be \"key\" or \"value\"");
        by = value ? 1 : 0;
    }
    HT_TRY(tmpl__f_items(cx, self, call, p, &items));
    HT_TRY(tmpl__f_list(cx, items, call, p, &pairs));
    HT_TRY(tmpl__list_new(cx, 0, &keys));
    for (size_t i = 0; i < pairs.u.l->n; i++) {
        tval key = pairs.u.l->at[i].u.l->at[by];
        HT_TRY(fold_case(cx, sensitive, &key));
        HT_TRY(tmpl__list_push(cx, keys, key));
    }
    HT_TRY(tmpl__sort(cx, pairs.u.l, keys, reverse));
    *out = pairs;
    return 0;
}

int tmpl__f_unique(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    tlist *src, *dst;
    tdict *seen;
    bool sensitive;
    (void)call;
    HT_TRY(tmpl__flag(cx, p[0], false, &sensitive));
    HT_TRY(tmpl__collect(cx, self, &src));
    HT_TRY(tmpl__list_new(cx, 0, &dst));
    HT_TRY(tmpl__dict_new(cx, 0, &seen));
    for (size_t i = 0; i < src->n; i++) {
        tval key;
        size_t before = seen->n;
        HT_TRY(attr_path(cx, src->at[i], p[1], (tval){0}, &key));
        HT_TRY(fold_case(cx, sensitive, &key));
        HT_TRY(tmpl__dict_set(cx, seen, key, tmpl__none()));
        if (seen->n != before) HT_TRY(tmpl__list_push(cx, dst, src->at[i]));
    }
    return tmpl__gen_new(cx, dst, TV_GEN, "generator", out);
}

/* The first item that no other beats. */
static int extreme(tctx *cx, tval self, const tval *p, bool want_max, tval *out)
{
    tlist *l;
    tval best = {0};
    bool sensitive;
    HT_TRY(tmpl__flag(cx, p[0], false, &sensitive));
    HT_TRY(tmpl__collect(cx, self, &l));
    *out = tmpl__undef("min or max of an empty sequence");
    for (size_t i = 0; i < l->n; i++) {
        tval key;
        bool better = i == 0;
        HT_TRY(attr_path(cx, l->at[i], p[1], (tval){0}, &key));
        HT_TRY(fold_case(cx, sensitive, &key));
        if (i) HT_TRY(tmpl__order(cx, want_max ? OP_GT : OP_LT, key, best, &better));
        if (!better) continue;
        best = key;
        *out = l->at[i];
    }
    return 0;
}

int tmpl__f_max(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    (void)call;
    return extreme(cx, self, p, true, out);
}

int tmpl__f_min(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    (void)call;
    return extreme(cx, self, p, false, out);
}
