/* schema.c - checking a document against its closed table; see schema.h. */
#include "evid/schema.h"
#include <stdio.h>
#include <string.h>

bool ht_is_sha256(const char *s, size_t n)
{
    if (!s || n != 64) return false;
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f'))) return false;
    return true;
}

/* Days from 1970-01-01 to a civil date: era arithmetic of Howard Hinnant's "chrono-compatible
 * low-level date algorithms". */
static int64_t days_from_civil(int64_t y, int64_t m, int64_t d)
{
    y -= m <= 2;
    int64_t era = (y >= 0 ? y : y - 399) / 400, yoe = y - era * 400;
    int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

void ht_utc_format(int64_t unix_s, char out[21])
{
    int64_t day = unix_s / 86400, s = unix_s % 86400;
    if (s < 0) {
        s += 86400;
        day--;
    }
    int64_t z = day + 719468, era = (z >= 0 ? z : z - 146096) / 146097, doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
    int64_t d = doy - (153 * mp + 2) / 5 + 1, m = mp < 10 ? mp + 3 : mp - 9;
    int64_t y = yoe + era * 400 + (m <= 2);
    char text[80];
    snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02dZ", (int)y, (int)m, (int)d,
             (int)(s / 3600), (int)(s / 60 % 60), (int)(s % 60));
    memcpy(out, text, 20);
    out[20] = 0;
}

bool ht_utc_parse(const char *s, int64_t *unix_s)
{
    static const struct {
        uint8_t at, n;
    } field[6] = {{0, 4}, {5, 2}, {8, 2}, {11, 2}, {14, 2}, {17, 2}};
    int64_t part[6] = {0};
    char back[21];
    if (strlen(s) != sizeof back - 1) return false;
    for (size_t i = 0; i < 6; i++)
        for (size_t k = field[i].at; k < field[i].at + (size_t)field[i].n; k++)
            part[i] = part[i] * 10 + (s[k] - '0');
    int64_t t = days_from_civil(part[0], part[1], part[2]) * 86400 + part[3] * 3600 + part[4] * 60 +
                part[5];
    /* What is no digit, no such day or hour, or another separator comes back as another text. */
    ht_utc_format(t, back);
    if (memcmp(back, s, sizeof back - 1) != 0) return false;
    *unix_s = t;
    return true;
}

/* {"known":false,"reason":"WORD"}: what stands for a value that is not known. */
static bool is_unknown(const ht_json *v)
{
    if (!v || v->type != HT_JOBJ || v->n != 2) return false;
    const ht_json *known = ht_json_get(v, "known"), *why = ht_json_get(v, "reason");
    if (!known || known->type != HT_JBOOL || known->b || !why || why->type != HT_JSTR || !why->n)
        return false;
    for (size_t i = 0; i < why->n; i++)
        if (!((why->s[i] >= 'A' && why->s[i] <= 'Z') || why->s[i] == '_')) return false;
    return true;
}

static int check_object(const ht_json *, const ht_field *, bool has_schema, const char *what,
                        const char *path, ht_err *);

static int bad(const char *what, const char *path, const char *need, ht_err *e)
{
    return HT_FAIL(e, HT_EFORMAT, "%s: member %s must be %s", what, path, need);
}

static int check_value(const ht_json *v, const ht_field *f, uint8_t type, const char *what,
                       const char *path, ht_err *e)
{
    int64_t hi = f->lo == 0 && f->hi == 0 ? ((int64_t)1 << 53) - 1 : f->hi, t = 0;
    switch (type) {
    case HT_S_MAYBE_INT:
        if (is_unknown(v)) return 0; /* fall through */
    case HT_S_INT:
        if (v->type == HT_JINT && v->i >= f->lo && v->i <= hi) return 0;
        return bad(what, path, "an integer in range", e);
    case HT_S_MAYBE_BOOL:
        if (is_unknown(v)) return 0; /* fall through */
    case HT_S_BOOL: return v->type == HT_JBOOL ? 0 : bad(what, path, "true or false", e);
    case HT_S_STR: return v->type == HT_JSTR ? 0 : bad(what, path, "a string", e);
    case HT_S_ENUM:
        for (size_t i = 0; v->type == HT_JSTR && f->names[i]; i++)
            if (strlen(f->names[i]) == v->n && memcmp(f->names[i], v->s, v->n) == 0) return 0;
        return bad(what, path, "one of the listed words", e);
    case HT_S_MAYBE_SHA256:
        if (is_unknown(v)) return 0; /* fall through */
    case HT_S_SHA256:
        if (v->type == HT_JSTR && ht_is_sha256(v->s, v->n)) return 0;
        return bad(what, path, "64 lower-case hex digits", e);
    case HT_S_UTC:
        if (v->type == HT_JSTR && strlen(v->s) == v->n && ht_utc_parse(v->s, &t)) return 0;
        return bad(what, path, "a time like 2026-11-29T12:00:00Z", e);
    case HT_S_OBJ:
        if (v->type != HT_JOBJ) return bad(what, path, "an object", e);
        return f->sub ? check_object(v, f->sub, false, what, path, e) : 0;
    case HT_S_ARR:
        if (v->type != HT_JARR) return bad(what, path, "an array", e);
        for (size_t i = 0; i < v->n; i++) {
            char sub[160];
            snprintf(sub, sizeof sub, "%s[%zu]", path, i);
            HT_TRY(check_value(&v->at[i], f, f->item, what, sub, e));
        }
        return 0;
    default: return 0;
    }
}

static const ht_field *find(const ht_field *table, const ht_json *member)
{
    for (; table->key; table++)
        if (strlen(table->key) == member->key_n &&
            memcmp(table->key, member->key, member->key_n) == 0)
            return table;
    return NULL;
}

static int check_object(const ht_json *obj, const ht_field *table, bool has_schema,
                        const char *what, const char *path, ht_err *e)
{
    char sub[160];
    for (size_t i = 0; i < obj->n; i++) {
        const ht_json *v = &obj->at[i];
        if (has_schema && v->key_n == 6 && memcmp(v->key, "schema", 6) == 0) continue;
        snprintf(sub, sizeof sub, "%s%s%.*s", path, *path ? "." : "", (int)v->key_n, v->key);
        const ht_field *f = find(table, v);
        if (!f) return HT_FAIL(e, HT_EFORMAT, "%s: unknown member %s", what, sub);
        HT_TRY(check_value(v, f, f->type, what, sub, e));
    }
    for (; table->key; table++)
        if (!table->optional && !ht_json_get(obj, table->key))
            return HT_FAIL(e, HT_EFORMAT, "%s: member %s%s%s is missing", what, path,
                           *path ? "." : "", table->key);
    return 0;
}

int ht_schema_check(const ht_json *obj, const ht_field *table, const char *schema, const char *what,
                    ht_err *e)
{
    if (!obj || obj->type != HT_JOBJ) return HT_FAIL(e, HT_EFORMAT, "%s: not an object", what);
    if (schema) {
        const ht_json *s = ht_json_get(obj, "schema");
        if (!s || s->type != HT_JSTR || strlen(schema) != s->n || memcmp(s->s, schema, s->n) != 0)
            return HT_FAIL(e, HT_EFORMAT, "%s: schema is %.64s, need %s", what,
                           s && s->type == HT_JSTR ? s->s : "absent", schema);
    }
    return check_object(obj, table, schema != NULL, what, "", e);
}

void ht_jw_unknown(ht_jw *w, const char *key, const char *reason)
{
    ht_jw_key(w, key);
    ht_jw_obj(w);
    ht_jw_kbool(w, "known", false);
    ht_jw_kstr(w, "reason", reason);
    ht_jw_end(w, '}');
}
