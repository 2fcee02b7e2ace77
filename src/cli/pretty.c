/* pretty.c - a JSON document as text for a person, whatever its keys: so that inspect, explain,
 * doctor and the rest show exactly what --json holds, and a new key needs no second edit.
 *   object          name  value lines, nested ones indented under their name
 *   array of flat objects with the same keys   a table, unless its lines would be too long
 *   other array     its items in one line, or one below the other
 * Values under names that end in Bytes or Ns get a readable unit. */
#include "cli/cli.h"
#include "core/utf8.h"
#include <stdio.h>
#include <string.h>

enum { MAX_COLUMNS = 24, CELL = 200, LINE = 100, TABLE_WIDTH = 120 };

static bool is_flat(const ht_json *v)
{
    return v->type != HT_JARR && v->type != HT_JOBJ;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

/* A scalar as text; long strings are cut, control characters shown as spaces. */
static void scalar(const ht_json *v, const char *key, char out[CELL])
{
    char unit[32];
    switch ((enum ht_jtype)v->type) {
    case HT_JNULL: snprintf(out, CELL, "-"); return;
    case HT_JBOOL: snprintf(out, CELL, "%s", v->b ? "yes" : "no"); return;
    case HT_JINT:
        snprintf(out, CELL, "%lld", (long long)v->i);
        if (key && v->i >= 1024 && (ends_with(key, "Bytes") || strcmp(key, "bytes") == 0)) {
            cli__bytes(v->d, unit);
            snprintf(out, CELL, "%lld (%s)", (long long)v->i, unit);
        }
        return;
    case HT_JREAL: snprintf(out, CELL, "%.6g", v->d); return;
    case HT_JSTR: {
        size_t n = v->n < CELL - 4 ? v->n : ht_utf8_whole(v->s, CELL - 4);
        memcpy(out, v->s, n);
        memcpy(out + n, n < v->n ? "..." : "", n < v->n ? 4 : 1);
        for (char *s = out; *s; s++)
            if ((unsigned char)*s < 32 || *s == 127) *s = ' ';
        return;
    }
    case HT_JARR:
    case HT_JOBJ: snprintf(out, CELL, "%zu items", v->n); return;
    }
}

/* Columns a terminal needs for UTF-8 text, taking every code point as one. */
static size_t width(const char *s)
{
    size_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static void pad(ht_buf *b, size_t from, size_t to)
{
    for (; from < to; from++) ht_buf_char(b, ' ');
}

/* Every item an object of scalars with the keys of the first, in its order. */
static bool is_table(const ht_json *arr)
{
    if (arr->n == 0 || arr->at[0].type != HT_JOBJ || arr->at[0].n > MAX_COLUMNS || !arr->at[0].n)
        return false;
    for (size_t i = 0; i < arr->n; i++) {
        const ht_json *row = &arr->at[i];
        if (row->type != HT_JOBJ || row->n != arr->at[0].n) return false;
        for (size_t j = 0; j < row->n; j++) {
            const ht_json *v = &row->at[j];
            if (strcmp(v->key, arr->at[0].at[j].key) != 0) return false;
            if (!is_flat(v) && !(v->type == HT_JARR && v->n <= 8)) return false;
            for (size_t k = 0; v->type == HT_JARR && k < v->n; k++)
                if (!is_flat(&v->at[k])) return false;
        }
    }
    return true;
}

static void cell(const ht_json *v, char out[CELL])
{
    char item[CELL];
    size_t n = 0;
    if (v->type != HT_JARR) {
        scalar(v, NULL, out);
        return;
    }
    out[0] = 0;
    for (size_t i = 0; i < v->n; i++) {
        scalar(&v->at[i], NULL, item);
        const char *between = v->at[0].type == HT_JINT ? "x" : ", ";
        int k = snprintf(out + n, CELL - n, "%s%s", i ? between : "", item);
        if (k < 0 || (size_t)k >= CELL - n) return;
        n += (size_t)k;
    }
}

/* Widths of a table's columns; returns the length of its lines. */
static size_t measure(const ht_json *arr, size_t w[MAX_COLUMNS])
{
    char text[CELL];
    size_t total = 0;
    for (size_t j = 0; j < arr->at[0].n; j++) {
        w[j] = width(arr->at[0].at[j].key);
        for (size_t i = 0; i < arr->n; i++) {
            cell(&arr->at[i].at[j], text);
            if (width(text) > w[j]) w[j] = width(text);
        }
        total += w[j] + 2;
    }
    return total;
}

static void table(ht_buf *b, const ht_json *arr, size_t indent)
{
    size_t w[MAX_COLUMNS];
    char text[CELL];
    (void)measure(arr, w);
    for (size_t i = 0; i <= arr->n; i++) {
        pad(b, 0, indent);
        for (size_t j = 0; j < arr->at[0].n; j++) {
            const ht_json *v = &arr->at[i ? i - 1 : 0].at[j];
            bool number = arr->at[0].at[j].type == HT_JINT || arr->at[0].at[j].type == HT_JREAL;
            if (i) cell(v, text);
            else snprintf(text, sizeof text, "%.*s", CELL - 1, v->key);
            if (number) pad(b, width(text), w[j]);
            ht_buf_str(b, text);
            if (j + 1 == arr->at[0].n) break;
            if (!number) pad(b, width(text), w[j]);
            ht_buf_str(b, "  ");
        }
        ht_buf_char(b, '\n');
    }
}

static void put(ht_buf *b, const ht_json *v, size_t indent);

/* Items of a flat array, in one line when they fit. */
static void row(ht_buf *b, const ht_json *v, size_t indent)
{
    char text[CELL];
    size_t at = indent;
    if (v->n == 0) ht_buf_str(b, "none");
    for (size_t i = 0; i < v->n; i++) {
        scalar(&v->at[i], NULL, text);
        if (i && at + width(text) + 2 > LINE) {
            ht_buf_str(b, ",\n");
            pad(b, 0, indent);
            at = indent;
        } else if (i) {
            ht_buf_str(b, ", ");
        }
        ht_buf_str(b, text);
        at += width(text) + 2;
    }
    ht_buf_char(b, '\n');
}

static bool all_flat(const ht_json *v)
{
    for (size_t i = 0; i < v->n; i++)
        if (!is_flat(&v->at[i])) return false;
    return true;
}

static void member(ht_buf *b, const ht_json *v, size_t indent, size_t column)
{
    char text[CELL];
    pad(b, 0, indent);
    ht_buf_str(b, v->key);
    if (is_flat(v) || (v->type == HT_JARR && all_flat(v))) {
        pad(b, indent + width(v->key), column);
        if (is_flat(v)) {
            scalar(v, v->key, text);
            ht_buf_fmt(b, "%s\n", text);
        } else {
            row(b, v, column);
        }
        return;
    }
    ht_buf_char(b, '\n');
    put(b, v, indent + 2);
}

static void put(ht_buf *b, const ht_json *v, size_t indent)
{
    char text[CELL];
    size_t column = 0, w[MAX_COLUMNS];
    if (v->type == HT_JOBJ) {
        for (size_t i = 0; i < v->n; i++)
            if (width(v->at[i].key) > column) column = width(v->at[i].key);
        for (size_t i = 0; i < v->n; i++) member(b, &v->at[i], indent, indent + column + 2);
    } else if (v->type == HT_JARR && is_table(v) && measure(v, w) <= TABLE_WIDTH) {
        table(b, v, indent);
    } else if (v->type == HT_JARR && all_flat(v)) {
        pad(b, 0, indent);
        row(b, v, indent);
    } else if (v->type == HT_JARR) {
        for (size_t i = 0; i < v->n; i++) {
            put(b, &v->at[i], indent);
            if (i + 1 < v->n) ht_buf_char(b, '\n');
        }
    } else {
        scalar(v, NULL, text);
        pad(b, 0, indent);
        ht_buf_fmt(b, "%s\n", text);
    }
}

int cli__pretty(const char *json, ht_buf *out, ht_err *e)
{
    ht_arena *arena;
    ht_json *doc;
    HT_TRY(ht_arena_new(&arena, 0, e));
    int rc = ht_json_parse(arena, json, strlen(json), 0, "result", &doc, e);
    if (!rc) {
        put(out, doc, 0);
        rc = ht_buf_ok(out, "result", e);
    }
    ht_arena_free(arena);
    return rc;
}
