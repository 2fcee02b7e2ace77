/* schema.c - JSON Schema (2020-12, and what of draft 7 means the same) to rules. Every schema that
 * is met becomes one rule; they are built from a list, so depth of the C stack does not follow the
 * references. A keyword that is not understood fails the build: a language that is too wide would
 * be a promise not kept. */
#include "grammar/schema.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- errors, paths --------------------------------------------------------------------------- */

void grammar__schema_fail(grammar__schema_c *c, int code, const char *path, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    grammar__fail(c->g, code, "the JSON schema at %.120s: %s", path ? path : "#", text);
}

static void blame(grammar__schema_c *c, const char *path)
{
    char text[sizeof c->g->e->msg];
    if (!c->g->rc || strstr(c->g->e->msg, "the JSON schema at")) return;
    (void)snprintf(text, sizeof text, "%s", c->g->e->msg);
    c->g->rc = HT_FAIL(c->g->e, c->g->rc, "the JSON schema at %.120s: %s", path, text);
}

const char *grammar__schema_at(grammar__schema_c *c, const char *path, const char *key)
{
    ht_buf b;
    ht_buf_init(&b, 4096);
    ht_buf_str(&b, path);
    ht_buf_char(&b, '/');
    for (; *key; key++) {
        if (*key == '~') ht_buf_str(&b, "~0");
        else if (*key == '/') ht_buf_str(&b, "~1");
        else ht_buf_char(&b, *key);
    }
    const char *out =
        ht_buf_ok(&b, "a path", NULL) ? "#..." : ht_arena_strndup(c->g->arena, b.p, b.n);
    ht_buf_done(&b);
    return out ? out : "#...";
}

const char *grammar__schema_at_i(grammar__schema_c *c, const char *path, const char *key, size_t i)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%zu", i);
    return grammar__schema_at(c, grammar__schema_at(c, path, key), text);
}

/* ---- keywords -------------------------------------------------------------------------------- */

/* kinds: what type a keyword is about; A: nothing, G: any value. */
static const struct {
    const char *name;
    char kind;
} keywords[] = {
    {"title", 'A'},
    {"description", 'A'},
    {"default", 'A'},
    {"examples", 'A'},
    {"$schema", 'A'},
    {"$id", 'A'},
    {"$comment", 'A'},
    {"deprecated", 'A'},
    {"readOnly", 'A'},
    {"writeOnly", 'A'},
    {"$defs", 'A'},
    {"definitions", 'A'},
    {"$ref", 'G'},
    {"contentEncoding", 'A'},
    {"contentMediaType", 'A'},
    {"type", 'G'},
    {"enum", 'G'},
    {"const", 'G'},
    {"anyOf", 'G'},
    {"oneOf", 'G'},
    {"allOf", 'G'},
    {"properties", 'o'},
    {"required", 'o'},
    {"additionalProperties", 'o'},
    {"minProperties", 'o'},
    {"maxProperties", 'o'},
    {"items", 'a'},
    {"prefixItems", 'a'},
    {"minItems", 'a'},
    {"maxItems", 'a'},
    {"uniqueItems", 'a'},
    {"minLength", 's'},
    {"maxLength", 's'},
    {"pattern", 's'},
    {"format", 's'},
    {"minimum", 'n'},
    {"maximum", 'n'},
    {"exclusiveMinimum", 'n'},
    {"exclusiveMaximum", 'n'},
    {"multipleOf", 'n'},
};

/* Kind of a keyword, 0: not known. */
static char kind_of(const char *key)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(keywords[i].name, key) == 0) return keywords[i].kind;
    return strncmp(key, "x-", 2) == 0 ? 'A' : 0;
}

bool grammar__schema_annotation(const char *key)
{
    return kind_of(key) == 'A';
}

bool grammar__schema_constrains(const ht_json *s, const char *except)
{
    for (size_t i = 0; i < s->n; i++)
        if (!grammar__schema_annotation(s->at[i].key) &&
            (!except || strcmp(s->at[i].key, except) != 0))
            return true;
    return false;
}

void grammar__schema_check_keywords(grammar__schema_c *c, const ht_json *s, const char *path)
{
    for (size_t i = 0; i < s->n && grammar__ok(c->g); i++) {
        const char *key = s->at[i].key, *at = grammar__schema_at(c, path, key);
        if (strlen(key) != s->at[i].key_n || !kind_of(key))
            grammar__schema_fail(c, HT_EUNSUPPORTED, at, "the keyword is not supported");
        if (strcmp(key, "properties") != 0) continue;
        if (s->at[i].type != HT_JOBJ) grammar__schema_fail(c, HT_EFORMAT, at, "must be an object");
        for (size_t k = 0; grammar__ok(c->g) && k < s->at[i].n; k++)
            if (strlen(s->at[i].at[k].key) != s->at[i].at[k].key_n)
                grammar__schema_fail(c, HT_EUNSUPPORTED, at, "a name with a NUL in it");
    }
}

static unsigned type_bit(grammar__schema_c *c, const ht_json *t, const char *path)
{
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    for (unsigned i = 0; t->type == HT_JSTR && i < 7; i++)
        if (strcmp(t->s, names[i]) == 0) return 1u << i;
    grammar__schema_fail(c, HT_EFORMAT, grammar__schema_at(c, path, "type"),
                         "must be null, boolean, integer, number, string, array or object");
    return 0;
}

unsigned grammar__schema_types(grammar__schema_c *c, const ht_json *s, const char *path)
{
    const ht_json *t = ht_json_get(s, "type");
    unsigned bits = 0;
    if (t && t->type != HT_JARR) return type_bit(c, t, path);
    for (size_t i = 0; t && i < t->n; i++) bits |= type_bit(c, &t->at[i], path);
    if (t) {
        if (!bits)
            grammar__schema_fail(c, HT_EFORMAT, grammar__schema_at(c, path, "type"),
                                 "names no type");
        return bits & ST_NUM ? bits & ~(unsigned)ST_INT : bits;
    }
    for (size_t i = 0; i < s->n; i++) {
        const char k = kind_of(s->at[i].key);
        bits |= k == 'o' ? ST_OBJ : k == 'a' ? ST_ARR : k == 's' ? ST_STR : k == 'n' ? ST_NUM : 0u;
    }
    if (bits & (bits - 1))
        grammar__schema_fail(c, HT_EUNSUPPORTED, path,
                             "no type is given and the keywords speak of several; give the type");
    return bits ? bits : ST_ALL;
}

/* ---- rules for schemas ----------------------------------------------------------------------- */

/* The rule of a schema, to be built later when it is new. */
static uint32_t rule_for(grammar__schema_c *c, const ht_json *s, const char *path)
{
    for (uint32_t i = c->n_jobs; i-- > 0;)
        if (c->job[i].schema == s) return c->job[i].rule;
    if (!grammar__ok(c->g)) return 0;
    if (c->n_jobs == c->job_cap) {
        const uint32_t want = c->job_cap ? c->job_cap * 2 : 64;
        grammar__schema_job *p = ht_mem_resize(c->job, want * sizeof *p);
        if (!p) {
            grammar__fail(c->g, HT_ENOMEM, "no memory for a schema");
            return 0;
        }
        c->job = p;
        c->job_cap = want;
    }
    const uint32_t rule = grammar__rule_new(c->g, path);
    c->job[c->n_jobs++] = (grammar__schema_job){s, path, rule};
    return rule;
}

/* A value inside a container. */
static uint32_t inner(grammar__schema_c *c, const ht_json *s, const char *path, uint32_t next)
{
    if (s->type == HT_JBOOL && s->b)
        return grammar__call(c->g, grammar__json_rule(c->j, GJ_VALUE), true, next);
    return grammar__call(c->g, rule_for(c, s, path), true, next);
}

/* A count of a keyword; def when it is not there. */
static uint32_t count(grammar__schema_c *c, const ht_json *s, const char *key, const char *path,
                      uint32_t def)
{
    const ht_json *v = ht_json_get(s, key);
    if (!v) return def;
    const bool whole = v->type == HT_JINT || (v->type == HT_JREAL && v->d == trunc(v->d));
    if (!whole || v->d < 0) {
        grammar__schema_fail(c, HT_EFORMAT, grammar__schema_at(c, path, key),
                             "must be a whole number from 0");
        return def;
    }
    if (v->d > G_REPEAT) {
        grammar__schema_fail(c, HT_EUNSUPPORTED, grammar__schema_at(c, path, key),
                             "is more than %d", G_REPEAT);
        return def;
    }
    return (uint32_t)v->d;
}

static void refuse(grammar__schema_c *c, const ht_json *s, const char *key, const char *path,
                   const char *why)
{
    if (ht_json_get(s, key))
        grammar__schema_fail(c, HT_EUNSUPPORTED, grammar__schema_at(c, path, key), "%s", why);
}

/* ---- strings and numbers --------------------------------------------------------------------- */

static uint32_t string(grammar__schema_c *c, const ht_json *s, const char *path)
{
    grammar__nfa *g = c->g;
    const ht_json *pattern = ht_json_get(s, "pattern"), *format = ht_json_get(s, "format");
    const bool sized = ht_json_get(s, "minLength") || ht_json_get(s, "maxLength");
    const char *at = grammar__schema_at(c, path, pattern ? "pattern" : "format");
    if (!pattern && !format && !sized)
        return grammar__call(g, grammar__json_rule(c->j, GJ_STRING), false, 0);
    if (sized && (pattern || format))
        grammar__schema_fail(c, HT_EUNSUPPORTED, at, "together with minLength or maxLength");
    if (pattern && format) grammar__schema_fail(c, HT_EUNSUPPORTED, at, "together with format");
    const uint32_t quote = grammar__str(g, "\"", 0);
    uint32_t body = 0;
    if (sized) {
        const uint32_t min = count(c, s, "minLength", path, 0),
                       max = count(c, s, "maxLength", path, G_INF);
        if (max < min)
            grammar__schema_fail(c, HT_EUNSUPPORTED, path, "maxLength is below minLength");
        body = grammar__repeat(g, grammar__json_rule(c->j, GJ_CHAR), min, max, quote);
    } else {
        const ht_json *text = pattern ? pattern : format;
        const char *p = text->type != HT_JSTR ? NULL : pattern ? text->s : grammar__format(text->s);
        if (text->type != HT_JSTR) grammar__schema_fail(c, HT_EFORMAT, at, "must be a string");
        else if (!p) grammar__schema_fail(c, HT_EUNSUPPORTED, at, "the format \"%.40s\"", text->s);
        if (p) body = grammar__regex(g, p, pattern ? text->n : strlen(p), "the pattern", quote);
        blame(c, at);
    }
    return grammar__str(g, "\"", body);
}

static void bound(grammar__schema_c *c, const ht_json *s, const char *key, const char *path,
                  bool lower, bool open, grammar__range_of *r)
{
    const ht_json *v = ht_json_get(s, key);
    if (!v) return;
    if (v->type != HT_JINT && v->type != HT_JREAL) {
        grammar__schema_fail(c, HT_EFORMAT, grammar__schema_at(c, path, key), "must be a number");
    } else if (lower && (!r->has_lo || v->d >= r->lo)) {
        r->open_lo = open || (r->has_lo && v->d == r->lo && r->open_lo);
        r->lo = v->d;
        r->has_lo = true;
    } else if (!lower && (!r->has_hi || v->d <= r->hi)) {
        r->open_hi = open || (r->has_hi && v->d == r->hi && r->open_hi);
        r->hi = v->d;
        r->has_hi = true;
    }
}

static uint32_t number(grammar__schema_c *c, const ht_json *s, const char *path, bool integer)
{
    grammar__range_of r = {0};
    uint32_t at = 0;
    const ht_json *step = ht_json_get(s, "multipleOf");
    if (step && !(integer && step->type == HT_JINT && step->i == 1))
        refuse(c, s, "multipleOf", path, "the keyword is not supported");
    bound(c, s, "minimum", path, true, false, &r);
    bound(c, s, "exclusiveMinimum", path, true, true, &r);
    bound(c, s, "maximum", path, false, false, &r);
    bound(c, s, "exclusiveMaximum", path, false, true, &r);
    if (!grammar__ok(c->g)) return 0;
    const bool plain = !r.has_lo && !r.has_hi;
    if (plain)
        return grammar__call(c->g, grammar__json_rule(c->j, integer ? GJ_INTEGER : GJ_NUMBER),
                             false, 0);
    if (!grammar__number(c->g, &r, integer, 0, &at) && grammar__ok(c->g))
        grammar__schema_fail(c, HT_EUNSUPPORTED, path, "no number lies within its bounds");
    blame(c, path);
    return at;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static uint32_t array(grammar__schema_c *c, const ht_json *s, const char *path)
{
    grammar__nfa *g = c->g;
    const ht_json *prefix = ht_json_get(s, "prefixItems"), *items = ht_json_get(s, "items");
    const ht_json *unique = ht_json_get(s, "uniqueItems");
    const ht_json any = {.type = HT_JBOOL, .b = true};
    const size_t k = prefix ? prefix->n : 0;
    const uint32_t min = count(c, s, "minItems", path, 0);
    uint32_t max = count(c, s, "maxItems", path, G_INF);
    if (prefix && (prefix->type != HT_JARR || k == 0 || k > G_REPEAT))
        grammar__schema_fail(c, HT_EFORMAT, grammar__schema_at(c, path, "prefixItems"),
                             "must be an array of schemas");
    if (items && items->type == HT_JARR)
        grammar__schema_fail(c, HT_EUNSUPPORTED, grammar__schema_at(c, path, "items"),
                             "an array of schemas; that is prefixItems since 2020-12");
    if (unique && !(unique->type == HT_JBOOL && !unique->b) && max > 1)
        refuse(c, s, "uniqueItems", path, "the keyword is not supported");
    const bool none = items ? items->type == HT_JBOOL && !items->b : prefix != NULL;
    if (none && max > k) max = (uint32_t)k;
    if (max < min)
        grammar__schema_fail(c, HT_EUNSUPPORTED, path, "fewer items are allowed than asked for");
    if (!grammar__ok(g)) return 0;
    const uint32_t close = grammar__str(g, "]", 0), end = grammar__space(c->j, close);
    if (max == 0) return grammar__str(g, "[", end);
    /* Behind the k-th item: `,` item, so often. */
    uint32_t some = end, only = end;
    if (max > k) {
        const char *at = grammar__schema_at(c, path, "items");
        const uint32_t rule = grammar__rule_new(g, at);
        const ht_json *item = items ? items : &any;
        grammar__rule_set(g, rule,
                          grammar__str(g, ",", grammar__space(c->j, inner(c, item, at, 0))));
        const uint32_t more = max == G_INF ? G_INF : max - (uint32_t)k;
        const uint32_t least = min > k ? min - (uint32_t)k : 0;
        some = grammar__repeat(g, rule, least, more, end);
        if (k == 0) {
            only = grammar__repeat(g, rule, least ? least - 1 : 0, more == G_INF ? G_INF : more - 1,
                                   end);
            only = grammar__space(c->j, inner(c, item, at, only));
            if (min == 0) only = grammar__alt(g, only, end);
        }
    }
    for (size_t i = k; i-- > 0;) {
        if (i >= max) continue;
        const char *at = grammar__schema_at_i(c, path, "prefixItems", i);
        const uint32_t one = grammar__space(c->j, inner(c, &prefix->at[i], at, some));
        some = grammar__str(g, ",", one);
        only = one;
        if (i >= min) {
            some = grammar__alt(g, some, end);
            only = grammar__alt(g, only, end);
        }
    }
    return grammar__str(g, "[", only);
}

/* ---- objects --------------------------------------------------------------------------------- */

typedef struct {
    const ht_json *s, *props, *required, *more; /* more NULL: no others */
    const ht_json *extra;                       /* required names without a schema */
    const char *path;
    bool open;
} object;

static bool is_required(const object *o, const ht_json *prop)
{
    for (size_t i = 0; o->required && i < o->required->n; i++)
        if (o->required->at[i].n == prop->key_n &&
            memcmp(o->required->at[i].s, prop->key, prop->key_n) == 0)
            return true;
    return false;
}

static bool has_key(const ht_json *props, const ht_json *name)
{
    for (size_t i = 0; props && i < props->n; i++)
        if (props->at[i].key_n == name->n && memcmp(props->at[i].key, name->s, name->n) == 0)
            return true;
    return false;
}

/* Names that must be there and have no schema of their own get that of additionalProperties. */
static const ht_json *with_extra(grammar__schema_c *c, object *o)
{
    ht_json *all = ht_json_new(c->g->arena, HT_JOBJ);
    for (size_t i = 0; all && o->props && i < o->props->n; i++) {
        ht_json *copy = ht_json_new(c->g->arena, HT_JNULL);
        if (copy) *copy = o->props->at[i];
        ht_json_add(c->g->arena, all, o->props->at[i].key, copy);
    }
    for (size_t i = 0; all && o->required && i < o->required->n; i++) {
        const ht_json *name = &o->required->at[i];
        if (has_key(all, name)) continue;
        if (!o->open || strlen(name->s) != name->n)
            grammar__schema_fail(c, HT_EUNSUPPORTED, grammar__schema_at(c, o->path, "required"),
                                 "\"%.40s\" has no schema under properties", name->s);
        ht_json *copy = ht_json_new_bool(c->g->arena, true);
        if (copy && o->more) *copy = *o->more;
        ht_json_add(c->g->arena, all, name->s, copy);
    }
    if (!all || all->lost) grammar__fail(c->g, HT_ENOMEM, "no memory for a schema");
    return all;
}

/* Members that are not named: min to max of them, behind `{` (first) or behind others. */
static uint32_t others(grammar__schema_c *c, const object *o, const ht_json *props, bool first,
                       uint32_t min, uint32_t max, uint32_t end)
{
    grammar__nfa *g = c->g;
    const ht_json **names = ht_arena_array(g->arena, props->n + 1, sizeof *names);
    if (!names) {
        grammar__fail(g, HT_ENOMEM, "no memory for a schema");
        return 0;
    }
    for (size_t i = 0; i < props->n; i++) names[i] = &props->at[i];
    const char *at = grammar__schema_at(c, o->path, "additionalProperties");
    const ht_json any = {.type = HT_JBOOL, .b = true};
    const uint32_t member = grammar__rule_new(g, at), more = grammar__rule_new(g, at);
    uint32_t value = grammar__space(c->j, inner(c, o->more ? o->more : &any, at, 0));
    grammar__rule_set(g, member,
                      grammar__json_other_key(g, names, props->n, grammar__str(g, ":", value)));
    grammar__rule_set(
        g, more, grammar__str(g, ",", grammar__space(c->j, grammar__call(g, member, false, 0))));
    if (!first) return grammar__repeat(g, more, 0, G_INF, end);
    const uint32_t rest =
        grammar__repeat(g, more, min ? min - 1 : 0, max == G_INF ? G_INF : max - 1, end);
    value = grammar__space(c->j, grammar__call(g, member, false, rest));
    return min ? value : grammar__alt(g, value, end);
}

static uint32_t members(grammar__schema_c *c, const object *o, const ht_json *props, uint32_t min,
                        uint32_t max)
{
    grammar__nfa *g = c->g;
    const uint32_t end = grammar__space(c->j, grammar__str(g, "}", 0));
    uint32_t some = end, none = end;
    if (max > 0 && o->open && props->n) some = others(c, o, props, false, 0, G_INF, end);
    if (max > 0 && o->open) none = others(c, o, props, true, min, max, end);
    for (size_t i = props->n; i-- > 0 && grammar__ok(g);) {
        const ht_json *p = &props->at[i];
        const char *at =
            grammar__schema_at(c, grammar__schema_at(c, o->path, "properties"), p->key);
        if (p->type == HT_JBOOL && !p->b && !is_required(o, p)) continue; /* must not be there */
        uint32_t one = inner(c, p, at, some);
        one = grammar__str(g, ":", grammar__space(c->j, one));
        one = grammar__space(c->j, grammar__json_text(g, p->key, p->key_n, one));
        const uint32_t later = grammar__str(g, ",", one);
        if (is_required(o, p)) {
            some = later;
            none = one;
        } else {
            some = grammar__alt(g, later, some);
            none = grammar__alt(g, one, none);
        }
    }
    return grammar__str(g, "{", none);
}

static uint32_t object_of(grammar__schema_c *c, const ht_json *s, const char *path)
{
    const ht_json *more = ht_json_get(s, "additionalProperties");
    object o = {.s = s,
                .path = path,
                .props = ht_json_get(s, "properties"),
                .required = ht_json_get(s, "required"),
                .more = more && more->type == HT_JOBJ ? more : NULL};
    const uint32_t min = count(c, s, "minProperties", path, 0),
                   max = count(c, s, "maxProperties", path, G_INF);
    if (more && more->type != HT_JOBJ && more->type != HT_JBOOL)
        grammar__schema_fail(c, HT_EFORMAT, grammar__schema_at(c, path, "additionalProperties"),
                             "must be a schema or a boolean");
    if (o.required && o.required->type != HT_JARR)
        grammar__schema_fail(c, HT_EFORMAT, grammar__schema_at(c, path, "required"),
                             "must be an array of names");
    for (size_t i = 0; o.required && grammar__ok(c->g) && i < o.required->n; i++)
        if (o.required->at[i].type != HT_JSTR)
            grammar__schema_fail(c, HT_EFORMAT, grammar__schema_at(c, path, "required"),
                                 "must hold names");
    if (!grammar__ok(c->g)) return 0;
    /* Unless it is said that others may come, only the listed ones are written. */
    o.open = more ? more->type == HT_JOBJ || more->b : !o.props || o.props->n == 0;
    const ht_json *props = with_extra(c, &o);
    if (!grammar__ok(c->g)) return 0;
    const size_t n_required = o.required ? o.required->n : 0;
    if (props->n == 0 && min > 1)
        refuse(c, s, "minProperties", path, "more than 1: members could repeat a name");
    if (props->n > 0 && min > n_required)
        refuse(c, s, "minProperties", path, "more than the required properties");
    if (props->n > 0 && max < G_INF && (o.open || max < props->n))
        refuse(c, s, "maxProperties", path, "together with properties that it may leave out");
    if (max < min)
        grammar__schema_fail(c, HT_EUNSUPPORTED, path, "maxProperties is below minProperties");
    return members(c, &o, props, min, max);
}

/* ---- alternatives ---------------------------------------------------------------------------- */

static unsigned bit_of(const ht_json *v)
{
    static const unsigned bits[] = {
        [HT_JNULL] = ST_NULL, [HT_JBOOL] = ST_BOOL, [HT_JINT] = ST_INT | ST_NUM,
        [HT_JREAL] = ST_NUM,  [HT_JSTR] = ST_STR,   [HT_JARR] = ST_ARR,
        [HT_JOBJ] = ST_OBJ};
    return bits[v->type];
}

static bool listed(const ht_json *list, const ht_json *v)
{
    for (size_t i = 0; i < list->n; i++)
        if (grammar__schema_equal(&list->at[i], v)) return true;
    return false;
}

static void also(grammar__schema_c *c, uint32_t *at, bool *any, uint32_t one)
{
    *at = *any ? grammar__alt(c->g, one, *at) : one;
    *any = true;
}

/* enum and const. Other keywords beside them would have to be checked here and now. */
static uint32_t constants(grammar__schema_c *c, const ht_json *s, const char *path)
{
    const ht_json *one = ht_json_get(s, "const"), *list = ht_json_get(s, "enum");
    uint32_t at = 0;
    bool any = false;
    if (list && (list->type != HT_JARR || list->n == 0)) {
        grammar__schema_fail(c, HT_EFORMAT, grammar__schema_at(c, path, "enum"),
                             "must be an array of values");
        return 0;
    }
    for (size_t i = 0; i < s->n; i++) {
        const char k = kind_of(s->at[i].key);
        if (k != 'A' && k != 'G') refuse(c, s, s->at[i].key, path, "together with enum or const");
    }
    const unsigned types = ht_json_get(s, "type") ? grammar__schema_types(c, s, path) : ~0u;
    for (size_t i = 0; i < (one ? 1 : list->n) && grammar__ok(c->g); i++) {
        const ht_json *v = one ? one : &list->at[i];
        if ((one && list && !listed(list, v)) || !(bit_of(v) & types)) continue;
        also(c, &at, &any, grammar__json_const(c->j, v, 0));
    }
    if (!any) grammar__schema_fail(c, HT_EUNSUPPORTED, path, "none of its values has its type");
    return at;
}

static uint32_t plain(grammar__schema_c *c, const ht_json *s, const char *path)
{
    grammar__nfa *g = c->g;
    uint32_t at = 0;
    bool any = false;
    if (ht_json_get(s, "enum") || ht_json_get(s, "const")) return constants(c, s, path);
    if (!grammar__schema_constrains(s, NULL))
        return grammar__call(g, grammar__json_rule(c->j, GJ_VALUE), false, 0);
    const unsigned t = grammar__schema_types(c, s, path);
    if (t & ST_OBJ) also(c, &at, &any, object_of(c, s, path));
    if (t & ST_ARR) also(c, &at, &any, array(c, s, path));
    if (t & ST_STR) also(c, &at, &any, string(c, s, path));
    if (t & (ST_NUM | ST_INT)) also(c, &at, &any, number(c, s, path, !(t & ST_NUM)));
    if (t & ST_BOOL) {
        also(c, &at, &any, grammar__str(g, "true", 0));
        also(c, &at, &any, grammar__str(g, "false", 0));
    }
    if (t & ST_NULL) also(c, &at, &any, grammar__str(g, "null", 0));
    return at;
}

static uint32_t emit(grammar__schema_c *c, const ht_json *s, const char *path);

/* anyOf and oneOf, with what stands beside them worked into every branch. */
static uint32_t branches(grammar__schema_c *c, const ht_json *s, const char *key, const char *path)
{
    const ht_json *list = ht_json_get(s, key);
    uint32_t at = 0;
    bool any = false;
    if (list->type != HT_JARR || list->n == 0) {
        grammar__schema_fail(c, HT_EFORMAT, grammar__schema_at(c, path, key),
                             "must be an array of schemas");
        return 0;
    }
    if (list->n > 512)
        grammar__schema_fail(c, HT_EUNSUPPORTED, grammar__schema_at(c, path, key),
                             "more than 512 schemas");
    for (size_t i = 0; strcmp(key, "oneOf") == 0 && i < list->n && grammar__ok(c->g); i++)
        for (size_t k = 0; k < i && grammar__ok(c->g); k++)
            if (!grammar__schema_disjoint(c, &list->at[i], &list->at[k],
                                          grammar__schema_at_i(c, path, key, i), 3))
                grammar__schema_fail(
                    c, HT_EUNSUPPORTED, grammar__schema_at_i(c, path, key, i),
                    "it may overlap with branch %zu, and then neither is valid; use anyOf", k);
    const bool beside = grammar__schema_constrains(s, key);
    const ht_json *base = beside ? grammar__schema_without(c, s, key) : NULL;
    for (size_t i = 0; i < list->n && grammar__ok(c->g); i++) {
        const char *to = grammar__schema_at_i(c, path, key, i);
        if (!beside) {
            also(c, &at, &any, grammar__call(c->g, rule_for(c, &list->at[i], to), false, 0));
            continue;
        }
        bool never = false;
        const char *flat_path = to;
        const ht_json *flat = grammar__schema_flatten(c, &list->at[i], &flat_path);
        const ht_json *m = flat ? grammar__schema_merge(c, base, flat, to, &never) : NULL;
        if (m && !never) also(c, &at, &any, emit(c, m, to));
    }
    if (!any) grammar__schema_fail(c, HT_EUNSUPPORTED, path, "none of its branches allows a value");
    return at;
}

/* A schema, references and merges worked in. */
static uint32_t emit(grammar__schema_c *c, const ht_json *s, const char *path)
{
    const ht_json *ref = ht_json_get(s, "$ref");
    if (ref && !grammar__schema_constrains(s, "$ref")) {
        /* One rule for what is referred to, however often: recursion ends here. */
        grammar__schema_check_keywords(c, s, path);
        const ht_json *to = grammar__schema_resolve(c, ref, grammar__schema_at(c, path, "$ref"));
        const char *at = to ? ht_arena_strndup(c->g->arena, ref->s, ref->n) : NULL;
        return at ? grammar__call(c->g, rule_for(c, to, at), false, 0) : 0;
    }
    const ht_json *flat = grammar__schema_flatten(c, s, &path);
    uint32_t at = 0;
    if (!flat) return 0;
    if (++c->depth > SCHEMA_DEPTH) {
        grammar__schema_fail(c, HT_EUNSUPPORTED, path,
                             "too many references and merges inside each other");
        return 0;
    }
    const bool some = ht_json_get(flat, "anyOf"), one = ht_json_get(flat, "oneOf");
    if (some && one)
        grammar__schema_fail(c, HT_EUNSUPPORTED, grammar__schema_at(c, path, "oneOf"),
                             "together with anyOf");
    else if (some || one) at = branches(c, flat, some ? "anyOf" : "oneOf", path);
    else at = plain(c, flat, path);
    c->depth--;
    return at;
}

int grammar__schema(grammar__nfa *g, grammar__json *j, const ht_json *root, const ht_json *schema,
                    const char *path, uint32_t *rule)
{
    grammar__schema_c c = {.g = g, .j = j, .root = root};
    *rule = rule_for(&c, schema, path);
    while (grammar__ok(g) && c.done < c.n_jobs) {
        const grammar__schema_job job = c.job[c.done++];
        c.depth = 0;
        grammar__rule_set(g, job.rule, emit(&c, job.schema, job.path));
    }
    ht_mem_free(c.job);
    return g->rc;
}
