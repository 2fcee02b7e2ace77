/* json.c - parsing, looking up and building JSON trees (json.h). Writing is json_write.c.
 *
 * Children are collected on one growing stack and copied into the arena when their container
 * closes, so that items lie in one array without a count beforehand. Memory is linear in the text:
 * a value takes two bytes of it at least. */
#include "core/json.h"
#include "core/utf8.h"
#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ht_arena *a;
    const char *s, *what;
    size_t n, i;    /* length, position */
    unsigned depth; /* open containers */
    ht_buf stack;   /* ht_json items of open containers */
    ht_err *e;
} parser;

/* Objects up to this many members are searched one by one. */
enum { LINEAR_MAX = 16 };

/* Error at byte `at`: its line and column (in characters) are counted only now. */
static int fail_at(parser *p, size_t at, const char *why)
{
    size_t line = 1, col = 1;
    for (size_t i = 0; i < at && i < p->n; i++) {
        if (p->s[i] == '\n') {
            line++;
            col = 1;
        } else if ((p->s[i] & 0xc0) != 0x80) {
            col++;
        }
    }
    return HT_FAIL(p->e, HT_EFORMAT, "%.100s: line %zu, column %zu: %s", p->what, line, col, why);
}

static int no_memory(parser *p)
{
    return HT_FAIL(p->e, HT_ENOMEM, "%.100s: no memory for the JSON tree (%zu bytes of text)",
                   p->what, p->n);
}

static void skip_space(parser *p)
{
    while (p->i < p->n && strchr(" \t\n\r", p->s[p->i]) && p->s[p->i]) p->i++;
}

static bool next_is(const parser *p, char c)
{
    return p->i < p->n && p->s[p->i] == c;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Four hex digits at p->i; -1 when they are not. */
static int32_t hex4(const parser *p)
{
    int32_t v = 0;
    if (p->n - p->i < 4) return -1;
    for (size_t k = 0; k < 4; k++) {
        char c = p->s[p->i + k];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v << 4 | d;
    }
    return v;
}

/* The escape after a backslash at p->i - 1; appends its bytes at *out. */
static int escape(parser *p, char **out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t start = p->i - 1;
    char c = p->i < p->n ? p->s[p->i++] : 0;
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        *(*out)++ = to[at - from];
        return 0;
    }
    if (c != 'u') return fail_at(p, start, "unknown escape in a string");
    int32_t v = hex4(p);
    if (v < 0) return fail_at(p, start, "\\u needs four hex digits");
    p->i += 4;
    if (v >= 0xd800 && v < 0xdc00 && p->n - p->i >= 6 && p->s[p->i] == '\\' &&
        p->s[p->i + 1] == 'u') {
        p->i += 2;
        int32_t lo = hex4(p);
        if (lo < 0xdc00 || lo > 0xdfff) return fail_at(p, start, "half of a surrogate pair");
        p->i += 4;
        v = 0x10000 + ((v - 0xd800) << 10) + (lo - 0xdc00);
    } else if (v >= 0xd800 && v < 0xe000) {
        return fail_at(p, start, "half of a surrogate pair");
    }
    *out += ht_utf8_put((uint32_t)v, *out);
    return 0;
}

/* A string whose opening quote is at p->i. An escape never makes a string longer than its text. */
static int parse_string(parser *p, const char **s, size_t *n)
{
    size_t start = p->i++, end = p->i;
    while (end < p->n && p->s[end] != '"') end += p->s[end] == '\\' && end + 1 < p->n ? 2 : 1;
    if (end >= p->n) return fail_at(p, start, "string without an end");
    char *buf = ht_arena_alloc(p->a, end - p->i + 1), *out = buf;
    if (!buf) return no_memory(p);
    while (p->i < end) {
        unsigned char c = (unsigned char)p->s[p->i];
        if (c == '\\') {
            p->i++;
            HT_TRY(escape(p, &out));
        } else if (c < 0x20) {
            return fail_at(p, p->i, "control character in a string (write it as \\u00XX)");
        } else if (c < 0x80) {
            *out++ = (char)c;
            p->i++;
        } else {
            uint32_t cp;
            unsigned len = ht_utf8_next(p->s + p->i, end - p->i, &cp);
            if (!len) return fail_at(p, p->i, "malformed UTF-8");
            memcpy(out, p->s + p->i, len);
            out += len;
            p->i += len;
        }
    }
    p->i = end + 1;
    *s = buf;
    *n = (size_t)(out - buf);
    return 0;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static size_t digits(const parser *p, size_t i)
{
    while (i < p->n && p->s[i] >= '0' && p->s[i] <= '9') i++;
    return i;
}

/* strtod with a dot for a dot, whatever locale the host program has set. */
static bool to_double(const char *text, double *out)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) return false;
    *out = strtod_l(text, NULL, c);
    freelocale(c);
    return true;
}

static int parse_number(parser *p, ht_json *v)
{
    enum { LONGEST = 400 };
    char text[LONGEST + 1];
    size_t start = p->i, i = start + (p->s[start] == '-');
    size_t end = digits(p, i);
    bool real = false;
    if (end == i) return fail_at(p, start, "a number needs a digit");
    if (p->s[i] == '0' && end > i + 1) return fail_at(p, start, "a number has a leading zero");
    if (end < p->n && p->s[end] == '.') {
        i = end + 1;
        end = digits(p, i);
        real = true;
        if (end == i) return fail_at(p, start, "a number needs a digit after its point");
    }
    if (end < p->n && (p->s[end] == 'e' || p->s[end] == 'E')) {
        i = end + 1;
        if (i < p->n && (p->s[i] == '+' || p->s[i] == '-')) i++;
        end = digits(p, i);
        real = true;
        if (end == i) return fail_at(p, start, "a number needs a digit in its exponent");
    }
    if (end - start > LONGEST) return fail_at(p, start, "a number of more than 400 characters");
    memcpy(text, p->s + start, end - start);
    text[end - start] = 0;
    p->i = end;
    if (!real) {
        errno = 0;
        v->i = strtoll(text, NULL, 10);
        if (!errno) {
            v->type = HT_JINT;
            v->d = (double)v->i;
            return 0;
        }
        v->i = 0;
    }
    v->type = HT_JREAL;
    if (!to_double(text, &v->d)) return no_memory(p);
    if (v->d > 1.7976931348623157e308 || v->d < -1.7976931348623157e308)
        return fail_at(p, start, "a number is out of the range of a double");
    return 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

static int by_bytes(const char *a, size_t an, const char *b, size_t bn)
{
    int c = memcmp(a, b, an < bn ? an : bn);
    return c ? c : (an > bn) - (an < bn);
}

static int by_key(const void *x, const void *y, void *at)
{
    const ht_json *a = (const ht_json *)at + *(const uint32_t *)x;
    const ht_json *b = (const ht_json *)at + *(const uint32_t *)y;
    return by_bytes(a->key, a->key_n, b->key, b->key_n);
}

/* Refuse a key that comes twice; large objects keep their sorted order for lookups. Sorting rather
 * than hashing: no text can make it quadratic. */
static int seal_object(parser *p, ht_json *v, size_t start)
{
    if (v->n <= LINEAR_MAX) {
        for (size_t i = 1; i < v->n; i++)
            for (size_t j = 0; j < i; j++)
                if (!by_bytes(v->at[i].key, v->at[i].key_n, v->at[j].key, v->at[j].key_n))
                    return fail_at(p, start, "this object has the same key twice");
        return 0;
    }
    if (v->n > UINT32_MAX) return fail_at(p, start, "this object has more than 2^32 members");
    uint32_t *order = ht_arena_array(p->a, v->n, sizeof *order);
    if (!order) return no_memory(p);
    for (size_t i = 0; i < v->n; i++) order[i] = (uint32_t)i;
    qsort_r(order, v->n, sizeof *order, by_key, v->at);
    for (size_t i = 1; i < v->n; i++)
        if (!by_key(&order[i - 1], &order[i], v->at))
            return fail_at(p, start, "this object has the same key twice");
    v->order = order;
    return 0;
}

static int parse_value(parser *p, ht_json *v);

static int parse_member(parser *p, bool object)
{
    ht_json item = {0};
    const char *key = NULL;
    size_t key_n = 0;
    skip_space(p);
    if (object) {
        if (!next_is(p, '"')) return fail_at(p, p->i, "expected a key in double quotes");
        HT_TRY(parse_string(p, &key, &key_n));
        skip_space(p);
        if (!next_is(p, ':')) return fail_at(p, p->i, "expected ':' after a key");
        p->i++;
    }
    HT_TRY(parse_value(p, &item));
    item.key = key;
    item.key_n = key_n;
    ht_buf_add(&p->stack, &item, sizeof item);
    return p->stack.bad ? no_memory(p) : 0;
}

static int parse_container(parser *p, ht_json *v)
{
    bool object = p->s[p->i] == '{';
    char close = object ? '}' : ']';
    size_t start = p->i++, base = p->stack.n;
    if (++p->depth > HT_JSON_DEPTH) return fail_at(p, start, "nested deeper than 63 levels");
    v->type = object ? HT_JOBJ : HT_JARR;
    skip_space(p);
    if (!next_is(p, close)) {
        for (;;) {
            HT_TRY(parse_member(p, object));
            skip_space(p);
            if (!next_is(p, ',')) break;
            p->i++;
        }
        if (!next_is(p, close))
            return fail_at(p, p->i, object ? "expected ',' or '}'" : "expected ',' or ']'");
    }
    p->i++;
    p->depth--;
    v->n = (p->stack.n - base) / sizeof(ht_json);
    if (v->n) {
        v->at = ht_arena_array(p->a, v->n, sizeof(ht_json));
        if (!v->at) return no_memory(p);
        memcpy(v->at, p->stack.p + base, v->n * sizeof(ht_json));
        p->stack.n = base;
    }
    return object ? seal_object(p, v, start) : 0;
}

static bool literal(parser *p, const char *word)
{
    size_t n = strlen(word);
    if (p->n - p->i < n || memcmp(p->s + p->i, word, n)) return false;
    p->i += n;
    return true;
}

static int parse_value(parser *p, ht_json *v)
{
    skip_space(p);
    if (p->i >= p->n) return fail_at(p, p->i, "the text ends where a value was expected");
    char c = p->s[p->i];
    if (c == '{' || c == '[') return parse_container(p, v);
    if (c == '-' || (c >= '0' && c <= '9')) return parse_number(p, v);
    if (c == '"') {
        v->type = HT_JSTR;
        return parse_string(p, &v->s, &v->n);
    }
    v->type = HT_JBOOL;
    v->b = true;
    if (literal(p, "true")) return 0;
    v->b = false;
    if (literal(p, "false")) return 0;
    v->type = HT_JNULL;
    if (literal(p, "null")) return 0;
    return fail_at(p, p->i, "expected a value");
}

/* The text must be what the tree is written as: the definition of the canonical form. */
static int check_canonical(parser *p, const ht_json *v)
{
    ht_buf b;
    ht_buf_init(&b, p->n + 64); /* longer than the text is a difference already */
    int rc = ht_json_write(v, HT_JSON_CANON, &b, p->e);
    if (!rc) {
        size_t i = 0;
        while (i < b.n && i < p->n && b.p[i] == p->s[i]) i++;
        if (i < b.n || i < p->n) rc = fail_at(p, i, "not in canonical form");
    } else if (rc == HT_EARG) { /* a value the form has no words for: the text's fault here */
        rc = HT_EFORMAT;
        if (p->e) p->e->code = rc;
    }
    ht_buf_done(&b);
    return rc;
}

int ht_json_parse(ht_arena *a, const char *text, size_t n, unsigned flags, const char *what,
                  ht_json **out, ht_err *e)
{
    parser p = {.a = a, .s = text, .n = n, .what = what, .e = e};
    size_t most;
    *out = NULL;
    if (!ht_mul_ok(n / 2 + 2, sizeof(ht_json), &most)) return no_memory(&p);
    ht_json *v = ht_arena_alloc(a, sizeof *v);
    if (!v) return no_memory(&p);
    ht_buf_init(&p.stack, most);
    int rc = parse_value(&p, v);
    ht_buf_done(&p.stack);
    HT_TRY(rc);
    skip_space(&p);
    if (p.i < n) return fail_at(&p, p.i, "something follows the value");
    if (flags & HT_JSON_CANON) HT_TRY(check_canonical(&p, v));
    *out = v;
    return 0;
}

/* ---- looking up ------------------------------------------------------------------------------ */

static const ht_json *get_n(const ht_json *obj, const char *key, size_t n)
{
    if (!obj || obj->type != HT_JOBJ) return NULL;
    if (!obj->order) {
        for (size_t i = 0; i < obj->n; i++)
            if (!by_bytes(obj->at[i].key, obj->at[i].key_n, key, n)) return &obj->at[i];
        return NULL;
    }
    size_t lo = 0, hi = obj->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const ht_json *m = &obj->at[obj->order[mid]];
        int c = by_bytes(m->key, m->key_n, key, n);
        if (!c) return m;
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

const ht_json *ht_json_get(const ht_json *obj, const char *key)
{
    return get_n(obj, key, strlen(key));
}

const ht_json *ht_json_path(const ht_json *obj, const char *dotted)
{
    for (;;) {
        size_t n = strcspn(dotted, ".");
        obj = get_n(obj, dotted, n);
        if (!obj || !dotted[n]) return obj;
        dotted += n + 1;
    }
}

static const char *type_name(const ht_json *v)
{
    static const char *const name[] = {"null",     "true or false", "an integer", "a real number",
                                       "a string", "an array",      "an object"};
    return name[v->type];
}

static int wrong_type(const ht_json *v, const char *key, const char *need, ht_err *e)
{
    return HT_FAIL(e, HT_EFORMAT, "\"%.80s\" is %s, need %s", key, type_name(v), need);
}

/* The member, or NULL when it is absent or null. */
static const ht_json *present(const ht_json *obj, const char *key)
{
    const ht_json *v = ht_json_get(obj, key);
    return v && v->type != HT_JNULL ? v : NULL;
}

int ht_json_i64(const ht_json *obj, const char *key, int64_t def, int64_t *out, ht_err *e)
{
    const ht_json *v = present(obj, key);
    if (v && v->type != HT_JINT) return wrong_type(v, key, "an integer", e);
    *out = v ? v->i : def;
    return 0;
}

int ht_json_u32(const ht_json *obj, const char *key, uint32_t def, uint32_t *out, ht_err *e)
{
    int64_t i;
    HT_TRY(ht_json_i64(obj, key, def, &i, e));
    if (i < 0 || i > UINT32_MAX)
        return HT_FAIL(e, HT_EFORMAT, "\"%.80s\" is %lld, need 0 to 4294967295", key, (long long)i);
    *out = (uint32_t)i;
    return 0;
}

int ht_json_f64(const ht_json *obj, const char *key, double def, double *out, ht_err *e)
{
    const ht_json *v = present(obj, key);
    if (v && v->type != HT_JINT && v->type != HT_JREAL) return wrong_type(v, key, "a number", e);
    *out = v ? v->d : def;
    return 0;
}

int ht_json_bool(const ht_json *obj, const char *key, bool def, bool *out, ht_err *e)
{
    const ht_json *v = present(obj, key);
    if (v && v->type != HT_JBOOL) return wrong_type(v, key, "true or false", e);
    *out = v ? v->b : def;
    return 0;
}

int ht_json_str(const ht_json *obj, const char *key, const char *def, const char **out, ht_err *e)
{
    const ht_json *v = present(obj, key);
    if (v && v->type != HT_JSTR) return wrong_type(v, key, "a string", e);
    *out = v ? v->s : def;
    return 0;
}

/* ---- building -------------------------------------------------------------------------------- */

ht_json *ht_json_new(ht_arena *a, enum ht_jtype type)
{
    ht_json *v = ht_arena_alloc(a, sizeof *v);
    if (v) v->type = (uint8_t)type;
    if (v && type == HT_JSTR) v->s = "";
    return v;
}

ht_json *ht_json_new_str(ht_arena *a, const char *s, size_t n)
{
    ht_json *v = ht_json_new(a, HT_JSTR);
    if (!v) return NULL;
    v->s = ht_arena_strndup(a, s, n);
    v->n = n;
    return v->s ? v : NULL;
}

ht_json *ht_json_new_int(ht_arena *a, int64_t i)
{
    ht_json *v = ht_json_new(a, HT_JINT);
    if (!v) return NULL;
    v->i = i;
    v->d = (double)i;
    return v;
}

ht_json *ht_json_new_bool(ht_arena *a, bool b)
{
    ht_json *v = ht_json_new(a, HT_JBOOL);
    if (v) v->b = b;
    return v;
}

/* Append a copy of value; the copy, or NULL (and parent->lost) when memory ran out here or
 * before. */
static ht_json *append(ht_arena *a, ht_json *parent, const ht_json *value)
{
    if (!parent) return NULL;
    if (value && parent->n >= parent->cap) {
        size_t cap = parent->n < 4 ? 8 : parent->n * 2;
        ht_json *at = cap <= UINT32_MAX ? ht_arena_array(a, cap, sizeof *at) : NULL;
        if (!at) {
            parent->lost = true;
            return NULL;
        }
        if (parent->n) memcpy(at, parent->at, parent->n * sizeof *at);
        parent->at = at;
        parent->cap = (uint32_t)cap;
    }
    if (!value) {
        parent->lost = true;
        return NULL;
    }
    ht_json *item = &parent->at[parent->n++];
    *item = *value;
    return item;
}

void ht_json_add(ht_arena *a, ht_json *obj, const char *key, ht_json *value)
{
    size_t n = strlen(key);
    char *copy = ht_arena_strndup(a, key, n);
    ht_json *item = append(a, obj, copy ? value : NULL);
    if (!item) return;
    item->key = copy;
    item->key_n = n;
    obj->order = NULL;
}

void ht_json_push(ht_arena *a, ht_json *arr, ht_json *value)
{
    ht_json *item = append(a, arr, value);
    if (!item) return;
    item->key = NULL;
    item->key_n = 0;
}
