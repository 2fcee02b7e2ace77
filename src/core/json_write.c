/* json_write.c - writing JSON: whole trees and the streaming writer (json.h). One encoder of
 * strings and numbers for both. */
#include "core/json.h"
#include "core/utf8.h"
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Escapes of RFC 8785 3.2.2.2: the two that must be, the five short ones, \u00xx for the other
 * control characters. Malformed UTF-8 becomes U+FFFD: the output is always valid. */
static void put_string(ht_buf *b, const char *s, size_t n, unsigned flags)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    size_t plain = 0, i = 0; /* bytes from plain to i need no change */
    ht_buf_char(b, '"');
    while (i < n) {
        uint32_t cp;
        unsigned len = ht_utf8_next(s + i, n - i, &cp);
        bool as_is =
            len && cp >= 0x20 && cp != '"' && cp != '\\' && (cp < 0x80 || !(flags & HT_JSON_ASCII));
        if (as_is) {
            i += len;
            continue;
        }
        ht_buf_add(b, s + plain, i - plain);
        const char *e = len && cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
        if (e) {
            ht_buf_char(b, '\\');
            ht_buf_char(b, to[e - from]);
        } else if (!len && !(flags & HT_JSON_ASCII)) {
            ht_buf_str(b, "\xef\xbf\xbd");
        } else if (cp >= 0x10000) {
            ht_buf_fmt(b, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                       0xdc00 + ((cp - 0x10000) & 0x3ff));
        } else {
            ht_buf_fmt(b, "\\u%04x", cp);
        }
        i += len ? len : 1;
        plain = i;
    }
    ht_buf_add(b, s + plain, n - plain);
    ht_buf_char(b, '"');
}

/* Shortest of least..most significant digits that reads back as d (exactly, or as a float); always
 * with a point or an exponent, so that it stays a real number. The C locale whatever the host
 * set. */
static void put_real(ht_buf *b, double d, int least, int most, bool is_float)
{
    char text[48];
    if (!isfinite(d)) {
        ht_buf_str(b, "null");
        return;
    }
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) {
        b->bad = true;
        return;
    }
    locale_t old = uselocale(c);
    for (int digits = least; digits <= most; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, d);
        if (digits == most) break;
        double back = is_float ? (double)strtof(text, NULL) : strtod(text, NULL);
        if (!(back < d) && !(back > d)) break;
    }
    uselocale(old);
    freelocale(c);
    ht_buf_str(b, text);
    if (!strpbrk(text, ".e")) ht_buf_str(b, ".0");
}

/* ---- streaming writer ------------------------------------------------------------------------ */

void ht_jw_init(ht_jw *w, ht_buf *b, unsigned flags)
{
    *w = (ht_jw){.b = b, .flags = flags};
}

static void new_line(ht_jw *w)
{
    if (!(w->flags & HT_JSON_PRETTY)) return;
    ht_buf_char(w->b, '\n');
    for (unsigned i = 0; i < w->depth; i++) ht_buf_str(w->b, "  ");
}

/* What goes before a key or an item: the comma and, when pretty, a new line. */
static void separate(ht_jw *w)
{
    uint64_t bit = (uint64_t)1 << w->depth;
    if (w->has_item & bit) ht_buf_char(w->b, ',');
    w->has_item |= bit;
    if (w->depth) new_line(w);
}

static void before_value(ht_jw *w)
{
    if (!w->after_key) separate(w);
    w->after_key = false;
}

static void open_container(ht_jw *w, char c)
{
    before_value(w);
    if (w->depth >= HT_JSON_DEPTH) {
        w->b->bad = true;
        return;
    }
    w->depth++;
    w->has_item &= ~((uint64_t)1 << w->depth);
    ht_buf_char(w->b, c);
}

void ht_jw_obj(ht_jw *w)
{
    open_container(w, '{');
}

void ht_jw_arr(ht_jw *w)
{
    open_container(w, '[');
}

void ht_jw_end(ht_jw *w, char closer)
{
    if (!w->depth) {
        w->b->bad = true;
        return;
    }
    bool had = w->has_item >> w->depth & 1;
    w->depth--;
    if (had) new_line(w);
    ht_buf_char(w->b, closer);
}

void ht_jw_key(ht_jw *w, const char *key)
{
    separate(w);
    put_string(w->b, key, strlen(key), w->flags);
    ht_buf_str(w->b, w->flags & HT_JSON_PRETTY ? ": " : ":");
    w->after_key = true;
}

void ht_jw_strn(ht_jw *w, const char *s, size_t n)
{
    before_value(w);
    put_string(w->b, s, n, w->flags);
}

void ht_jw_str(ht_jw *w, const char *s)
{
    if (s) ht_jw_strn(w, s, strlen(s));
    else ht_jw_null(w);
}

void ht_jw_int(ht_jw *w, int64_t i)
{
    before_value(w);
    ht_buf_fmt(w->b, "%lld", (long long)i);
}

void ht_jw_uint(ht_jw *w, uint64_t u)
{
    before_value(w);
    ht_buf_fmt(w->b, "%llu", (unsigned long long)u);
}

void ht_jw_bool(ht_jw *w, bool v)
{
    before_value(w);
    ht_buf_str(w->b, v ? "true" : "false");
}

void ht_jw_null(ht_jw *w)
{
    before_value(w);
    ht_buf_str(w->b, "null");
}

void ht_jw_real(ht_jw *w, double d)
{
    before_value(w);
    put_real(w->b, d, 15, 17, false);
}

void ht_jw_f32(ht_jw *w, float f)
{
    before_value(w);
    put_real(w->b, (double)f, 9, 9, true);
}

void ht_jw_raw(ht_jw *w, const char *json, size_t n)
{
    before_value(w);
    ht_buf_add(w->b, json, n);
}

/* ---- trees ----------------------------------------------------------------------------------- */

static int by_key(const void *x, const void *y)
{
    const ht_json *a = *(const ht_json *const *)x, *b = *(const ht_json *const *)y;
    int c = memcmp(a->key, b->key, a->key_n < b->key_n ? a->key_n : b->key_n);
    return c ? c : (a->key_n > b->key_n) - (a->key_n < b->key_n);
}

static int write_value(ht_jw *w, const ht_json *v, ht_err *e);

static int check_key(const ht_json *member, ht_err *e)
{
    for (size_t i = 0; i < member->key_n; i++)
        if ((unsigned char)member->key[i] >= 0x80)
            return HT_FAIL(e, HT_EARG, "canonical JSON: key \"%.80s\" is not ASCII", member->key);
    return 0;
}

static int write_sorted(ht_jw *w, const ht_json *v, ht_err *e)
{
    const ht_json **item = ht_mem_array(v->n, sizeof(const ht_json *));
    if (!item) return HT_FAIL(e, HT_ENOMEM, "no memory to sort %zu JSON keys", v->n);
    for (size_t i = 0; i < v->n; i++) item[i] = &v->at[i];
    qsort(item, v->n, sizeof(const ht_json *), by_key);
    int rc = 0;
    for (size_t i = 0; i < v->n && !rc; i++) {
        if (i && !by_key(&item[i - 1], &item[i]))
            rc = HT_FAIL(e, HT_EARG, "canonical JSON: key \"%.80s\" comes twice", item[i]->key);
        if (!rc) rc = check_key(item[i], e);
        if (rc) break;
        separate(w);
        put_string(w->b, item[i]->key, item[i]->key_n, w->flags);
        ht_buf_char(w->b, ':');
        w->after_key = true;
        rc = write_value(w, item[i], e);
    }
    ht_mem_free(item);
    return rc;
}

static int write_items(ht_jw *w, const ht_json *v, ht_err *e)
{
    bool object = v->type == HT_JOBJ;
    if (object && w->flags & HT_JSON_CANON) return write_sorted(w, v, e);
    for (size_t i = 0; i < v->n; i++) {
        if (object) {
            separate(w);
            put_string(w->b, v->at[i].key, v->at[i].key_n, w->flags);
            ht_buf_str(w->b, w->flags & HT_JSON_PRETTY ? ": " : ":");
            w->after_key = true;
        }
        HT_TRY(write_value(w, &v->at[i], e));
    }
    return 0;
}

static int write_container(ht_jw *w, const ht_json *v, ht_err *e)
{
    if (v->lost) return HT_FAIL(e, HT_ENOMEM, "no memory for a part of the JSON tree");
    if (w->depth >= HT_JSON_DEPTH)
        return HT_FAIL(e, HT_EARG, "JSON nested deeper than %d levels", HT_JSON_DEPTH);
    open_container(w, v->type == HT_JOBJ ? '{' : '[');
    HT_TRY(write_items(w, v, e));
    ht_jw_end(w, v->type == HT_JOBJ ? '}' : ']');
    return 0;
}

static int write_value(ht_jw *w, const ht_json *v, ht_err *e)
{
    const int64_t most = ((int64_t)1 << 53) - 1; /* exact in every double: RFC 8785's integers */
    bool canon = w->flags & HT_JSON_CANON;
    switch (v->type) {
    case HT_JNULL: ht_jw_null(w); return 0;
    case HT_JBOOL: ht_jw_bool(w, v->b); return 0;
    case HT_JINT:
        if (canon && (v->i > most || v->i < -most))
            return HT_FAIL(e, HT_EARG, "canonical JSON: %lld is past 2^53-1", (long long)v->i);
        ht_jw_int(w, v->i);
        return 0;
    case HT_JREAL:
        if (canon) return HT_FAIL(e, HT_EARG, "canonical JSON: %.17g is not an integer", v->d);
        ht_jw_real(w, v->d);
        return 0;
    case HT_JSTR:
        if (canon && ht_utf8_valid(v->s, v->n) != v->n)
            return HT_FAIL(e, HT_EARG, "canonical JSON: a string is not valid UTF-8");
        ht_jw_strn(w, v->s, v->n);
        return 0;
    default: return write_container(w, v, e);
    }
}

int ht_json_write(const ht_json *v, unsigned flags, ht_buf *b, ht_err *e)
{
    ht_jw w;
    if (!v) return HT_FAIL(e, HT_ENOMEM, "no memory for the JSON tree");
    if (flags & HT_JSON_CANON) flags = HT_JSON_CANON; /* pretty and ASCII are not canonical */
    ht_jw_init(&w, b, flags);
    HT_TRY(write_value(&w, v, e));
    return ht_buf_ok(b, "JSON", e);
}

void ht_jw_json(ht_jw *w, const ht_json *v)
{
    ht_jw sub = *w;
    /* The streaming writer has no error of its own: whatever fails marks the buffer. */
    if (!v || write_value(&sub, v, NULL)) w->b->bad = true;
    else *w = sub;
}
