/* jsonval.c - between JSON and template values: the caller's data becomes values with provenance,
 * and tojson writes what Python's json.dumps writes (the filter transformers installs, not Jinja's
 * own, which escapes for HTML). Marks go through: a byte of an input string stays from input. */
#include "core/utf8.h"
#include "tmpl/eval.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

int tmpl__from_json(tctx *cx, const ht_json *j, bool in, tval *out)
{
    switch (j->type) {
    case HT_JBOOL: *out = tmpl__bool(j->b); break;
    case HT_JINT: *out = tmpl__int(j->i); break;
    case HT_JREAL: *out = tmpl__float(j->d); break;
    case HT_JSTR: return tmpl__str_new(cx, j->s, j->n, in, out);
    case HT_JARR: {
        tlist *l;
        HT_TRY(tmpl__list_new(cx, j->n, &l));
        for (size_t i = 0; i < j->n; i++)
            HT_TRY(tmpl__from_json(cx, &j->at[i], in, &l->at[l->n++]));
        *out = tmpl__of_list(l);
        return 0;
    }
    case HT_JOBJ: {
        tdict *o;
        HT_TRY(tmpl__dict_new(cx, j->n, &o));
        for (size_t i = 0; i < j->n; i++) { /* the parser refused duplicate keys already */
            tpair *p = &o->at[o->n++];
            HT_TRY(tmpl__str_new(cx, j->at[i].key, j->at[i].key_n, in, &p->k));
            HT_TRY(tmpl__from_json(cx, &j->at[i], in, &p->v));
        }
        *out = tmpl__of_dict(o);
        return 0;
    }
    default: *out = tmpl__none(); break;
    }
    out->in = in;
    return 0;
}

/* ---- tojson ---------------------------------------------------------------------------------- */

static int escape_char(tctx *cx, tsb *b, uint32_t cp, bool in)
{
    static const char plain[] = "\"\"\\\\\nn\rr\tt\ff\bb";
    char esc[16];
    for (size_t i = 0; i + 1 < sizeof plain; i += 2) {
        if ((uint32_t)(unsigned char)plain[i] != cp) continue;
        snprintf(esc, sizeof esc, "\\%c", plain[i + 1]);
        return tmpl__sb_add(cx, b, esc, 2, in);
    }
    if (cp < 0x10000) {
        snprintf(esc, sizeof esc, "\\u%04x", cp);
    } else {
        uint32_t v = cp - 0x10000;
        snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xD800 + (v >> 10), 0xDC00 + (v & 0x3FF));
    }
    return tmpl__sb_add(cx, b, esc, strlen(esc), in);
}

static int write_string(tctx *cx, tsb *b, const tstr *s, bool ascii)
{
    size_t from = 0, i = 0;
    HT_TRY(tmpl__sb_lit(cx, b, "\""));
    while (i < s->n) {
        uint32_t cp;
        unsigned k = ht_utf8_next(s->p + i, s->n - i, &cp);
        if (!k) k = 1;
        if (cp == '"' || cp == '\\' || cp < 0x20 || (ascii && cp > 0x7E)) {
            HT_TRY(tmpl__sb_str(cx, b, s, from, i - from));
            HT_TRY(escape_char(cx, b, cp, tmpl__mark_at(s, i)));
            from = i + k;
        }
        i += k;
    }
    HT_TRY(tmpl__sb_str(cx, b, s, from, i - from));
    return tmpl__sb_lit(cx, b, "\"");
}

static int write_scalar(tctx *cx, tsb *b, tval v)
{
    char buf[40];
    switch (v.t) {
    case TV_NONE: snprintf(buf, sizeof buf, "null"); break;
    case TV_BOOL: snprintf(buf, sizeof buf, v.u.b ? "true" : "false"); break;
    case TV_INT: snprintf(buf, sizeof buf, "%lld", (long long)v.u.i); break;
    case TV_FLOAT:
        if (isnan(v.u.d) || isinf(v.u.d)) {
            snprintf(buf, sizeof buf, isnan(v.u.d) ? "NaN" : v.u.d < 0 ? "-Infinity" : "Infinity");
        } else {
            tmpl__float_repr(v.u.d, buf);
        }
        break;
    case TV_UNDEF:
        return T_TYPE(cx, "tojson of an undefined value%s%s", v.u.hint ? ": " : "",
                      v.u.hint ? v.u.hint : "");
    default: return T_TYPE(cx, "a %s cannot be written as JSON", tmpl__type_name(v));
    }
    return tmpl__sb_add(cx, b, buf, strlen(buf), v.in);
}

static int newline(tctx *cx, tsb *b, const tjson *f, unsigned depth)
{
    if (!f->pretty) return 0;
    HT_TRY(tmpl__sb_lit(cx, b, "\n"));
    for (unsigned i = 0; i < depth; i++) HT_TRY(tmpl__sb_val(cx, b, f->indent));
    return 0;
}

static int write_value(tctx *cx, tsb *b, tval v, const tjson *f, unsigned depth);

/* Keys may be strings or scalars, which become strings. */
static int write_key(tctx *cx, tsb *b, tval k, const tjson *f)
{
    if (k.t == TV_STR) return write_string(cx, b, k.u.s, f->ascii);
    if (k.t != TV_NONE && !tmpl__is_number(k))
        return T_TYPE(cx, "a %s cannot be a JSON key", tmpl__type_name(k));
    HT_TRY(tmpl__sb_lit(cx, b, "\""));
    HT_TRY(write_scalar(cx, b, k));
    return tmpl__sb_lit(cx, b, "\"");
}

static int sorted_pairs(tctx *cx, const tdict *o, tdict **out)
{
    tlist *keys, *vals;
    HT_TRY(tmpl__list_new(cx, o->n, &keys));
    HT_TRY(tmpl__list_new(cx, o->n, &vals));
    for (size_t i = 0; i < o->n; i++) {
        HT_TRY(tmpl__list_push(cx, keys, o->at[i].k));
        HT_TRY(tmpl__list_push(cx, vals, o->at[i].v));
    }
    HT_TRY(tmpl__sort(cx, vals, keys, false));
    HT_TRY(tmpl__dict_new(cx, o->n, out));
    for (size_t i = 0; i < o->n; i++) (*out)->at[(*out)->n++] = (tpair){keys->at[i], vals->at[i]};
    return 0;
}

static int write_dict(tctx *cx, tsb *b, const tdict *o, const tjson *f, unsigned depth)
{
    tdict *sorted;
    if (!o->n) return tmpl__sb_lit(cx, b, "{}");
    if (f->sort_keys) {
        HT_TRY(sorted_pairs(cx, o, &sorted));
        o = sorted;
    }
    HT_TRY(tmpl__sb_lit(cx, b, "{"));
    for (size_t i = 0; i < o->n; i++) {
        if (i) HT_TRY(tmpl__sb_val(cx, b, f->item_sep));
        HT_TRY(newline(cx, b, f, depth + 1));
        HT_TRY(write_key(cx, b, o->at[i].k, f));
        HT_TRY(tmpl__sb_val(cx, b, f->key_sep));
        HT_TRY(write_value(cx, b, o->at[i].v, f, depth + 1));
    }
    HT_TRY(newline(cx, b, f, depth));
    return tmpl__sb_lit(cx, b, "}");
}

static int write_list(tctx *cx, tsb *b, const tlist *l, const tjson *f, unsigned depth)
{
    if (!l->n) return tmpl__sb_lit(cx, b, "[]");
    HT_TRY(tmpl__sb_lit(cx, b, "["));
    for (size_t i = 0; i < l->n; i++) {
        if (i) HT_TRY(tmpl__sb_val(cx, b, f->item_sep));
        HT_TRY(newline(cx, b, f, depth + 1));
        HT_TRY(write_value(cx, b, l->at[i], f, depth + 1));
    }
    HT_TRY(newline(cx, b, f, depth));
    return tmpl__sb_lit(cx, b, "]");
}

static int write_value(tctx *cx, tsb *b, tval v, const tjson *f, unsigned depth)
{
    HT_TRY(tmpl__cost(cx, 1));
    if (depth > TMPL_MAX_DATA_DEPTH)
        return T_FAIL(cx, HT_ENOMEM, "data nested deeper than %d", TMPL_MAX_DATA_DEPTH);
    switch (v.t) {
    case TV_STR: return write_string(cx, b, v.u.s, f->ascii);
    case TV_LIST:
    case TV_TUPLE: return write_list(cx, b, v.u.l, f, depth);
    case TV_DICT: return write_dict(cx, b, v.u.o, f, depth);
    default: return write_scalar(cx, b, v);
    }
}

int tmpl__to_json(tctx *cx, tval v, const tjson *format, tval *out)
{
    tsb b = {0};
    HT_TRY(write_value(cx, &b, v, format, 0));
    return tmpl__sb_done(cx, &b, out);
}
