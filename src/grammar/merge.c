/* merge.c - references, allOf, and what two schemas allow together. Results are trees of their own
 * that share the given ones. */
#include "grammar/schema.h"
#include <stdio.h>
#include <string.h>

/* ---- references ------------------------------------------------------------------------------ */

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One step of a pointer: decode %XX, ~1 and ~0 of p[0..n) into out [n]. */
static size_t decode(const char *p, size_t n, char *out)
{
    size_t k = 0, m = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '%' && n - i > 2 && hex(p[i + 1]) >= 0 && hex(p[i + 2]) >= 0) {
            out[k++] = (char)(hex(p[i + 1]) << 4 | hex(p[i + 2]));
            i += 2;
        } else {
            out[k++] = p[i];
        }
    }
    for (size_t i = 0; i < k; i++) {
        if (out[i] == '~' && i + 1 < k && (out[i + 1] == '0' || out[i + 1] == '1'))
            out[m++] = out[++i] == '0' ? '~' : '/';
        else out[m++] = out[i];
    }
    return m;
}

static const ht_json *step(const ht_json *at, const char *key, size_t n)
{
    if (at->type == HT_JARR) {
        size_t i = 0;
        for (size_t k = 0; k < n; k++) {
            if (key[k] < '0' || key[k] > '9' || k > 8) return NULL;
            i = i * 10 + (size_t)(key[k] - '0');
        }
        return n && i < at->n ? &at->at[i] : NULL;
    }
    for (size_t i = 0; at->type == HT_JOBJ && i < at->n; i++)
        if (at->at[i].key_n == n && memcmp(at->at[i].key, key, n) == 0) return &at->at[i];
    return NULL;
}

const ht_json *grammar__schema_resolve(grammar__schema_c *c, const ht_json *ref, const char *path)
{
    const char *p = ref->type == HT_JSTR ? ref->s : "";
    if (p[0] != '#' || (p[1] && p[1] != '/') || strlen(p) != ref->n) {
        grammar__schema_fail(c, HT_EUNSUPPORTED, path,
                             "only references into the schema itself, \"#/...\", are supported");
        return NULL;
    }
    const ht_json *at = c->root;
    for (p++; *p == '/' && at;) {
        const char *end = strchr(++p, '/');
        const size_t n = end ? (size_t)(end - p) : strlen(p);
        char *key = ht_arena_alloc(c->g->arena, n + 1);
        if (!key) {
            grammar__fail(c->g, HT_ENOMEM, "no memory for a reference");
            return NULL;
        }
        at = step(at, key, decode(p, n, key));
        p += n;
    }
    if (!at) grammar__schema_fail(c, HT_EFORMAT, path, "%.100s leads nowhere", ref->s);
    return at;
}

/* ---- building trees -------------------------------------------------------------------------- */

static ht_json *obj(grammar__schema_c *c)
{
    return ht_json_new(c->g->arena, HT_JOBJ);
}

/* Add a copy of the node (its children shared) under `key`. */
static void put(grammar__schema_c *c, ht_json *to, const char *key, const ht_json *v)
{
    ht_json *copy = v ? ht_json_new(c->g->arena, v->type) : NULL;
    if (copy) {
        *copy = *v;
        copy->key = NULL;
        copy->key_n = 0;
        copy->cap = (uint32_t)v->n; /* full: a later add copies the items */
    }
    ht_json_add(c->g->arena, to, key, copy);
}

static void push(grammar__schema_c *c, ht_json *to, const ht_json *v)
{
    ht_json *copy = ht_json_new(c->g->arena, v->type);
    if (copy) {
        *copy = *v;
        copy->key = NULL;
        copy->key_n = 0;
        copy->cap = (uint32_t)v->n;
    }
    ht_json_push(c->g->arena, to, copy);
}

const ht_json *grammar__schema_without(grammar__schema_c *c, const ht_json *s, const char *key)
{
    ht_json *to = obj(c);
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->at[i].key, key) != 0) put(c, to, s->at[i].key, &s->at[i]);
    if (!to || to->lost) grammar__fail(c->g, HT_ENOMEM, "no memory for a schema");
    return grammar__ok(c->g) ? to : NULL;
}

/* {"allOf":[a,b]} */
static ht_json *both(grammar__schema_c *c, const ht_json *a, const ht_json *b)
{
    ht_json *to = obj(c), *list = ht_json_new(c->g->arena, HT_JARR);
    if (to && list) {
        push(c, list, a);
        push(c, list, b);
    }
    ht_json_add(c->g->arena, to, "allOf", list);
    return to;
}

/* ---- two schemas at once --------------------------------------------------------------------- */

bool grammar__schema_equal(const ht_json *a, const ht_json *b)
{
    if (a->type == HT_JREAL || b->type == HT_JREAL)
        return (a->type == HT_JREAL || a->type == HT_JINT) &&
               (b->type == HT_JREAL || b->type == HT_JINT) && a->d == b->d;
    if (a->type != b->type) return false;
    if (a->type == HT_JBOOL) return a->b == b->b;
    if (a->type == HT_JINT) return a->i == b->i;
    if (a->type == HT_JNULL) return true;
    if (a->n != b->n) return false;
    if (a->type == HT_JSTR) return memcmp(a->s, b->s, a->n) == 0;
    for (size_t i = 0; i < a->n; i++) {
        const ht_json *y = a->type == HT_JARR ? &b->at[i] : step(b, a->at[i].key, a->at[i].key_n);
        if (!y || !grammar__schema_equal(&a->at[i], y)) return false;
    }
    return true;
}

static bool holds(const ht_json *list, const ht_json *v)
{
    for (size_t i = 0; i < list->n; i++)
        if (grammar__schema_equal(&list->at[i], v)) return true;
    return false;
}

static ht_json *union_of(grammar__schema_c *c, const ht_json *a, const ht_json *b)
{
    ht_json *to = ht_json_new(c->g->arena, HT_JARR);
    for (size_t i = 0; to && i < a->n; i++) push(c, to, &a->at[i]);
    for (size_t i = 0; to && i < b->n; i++)
        if (!holds(a, &b->at[i])) push(c, to, &b->at[i]);
    return to;
}

static ht_json *common(grammar__schema_c *c, const ht_json *a, const ht_json *b, bool *never)
{
    ht_json *to = ht_json_new(c->g->arena, HT_JARR);
    for (size_t i = 0; to && i < a->n; i++)
        if (holds(b, &a->at[i])) push(c, to, &a->at[i]);
    if (to && to->n == 0) *never = true;
    return to;
}

static ht_json *merge_types(grammar__schema_c *c, const ht_json *a, const ht_json *b,
                            const char *path, bool *never)
{
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    ht_json *to = ht_json_new(c->g->arena, HT_JARR), *x = obj(c), *y = obj(c);
    put(c, x, "type", a);
    put(c, y, "type", b);
    if (!to || !x || !y) return NULL;
    unsigned ta = grammar__schema_types(c, x, path), tb = grammar__schema_types(c, y, path);
    if (ta & ST_NUM) ta |= ST_INT;
    if (tb & ST_NUM) tb |= ST_INT;
    const unsigned t = ta & tb;
    for (unsigned i = 0; i < 7; i++)
        if (t >> i & 1 && !(i == 2 && t & ST_NUM))
            ht_json_push(c->g->arena, to, ht_json_new_str(c->g->arena, names[i], strlen(names[i])));
    if (t == 0) *never = true;
    return to;
}

static ht_json *merge_properties(grammar__schema_c *c, const ht_json *a, const ht_json *b)
{
    ht_json *to = obj(c);
    for (size_t i = 0; i < a->n; i++) {
        const ht_json *y = step(b, a->at[i].key, a->at[i].key_n);
        if (y && !grammar__schema_equal(y, &a->at[i]))
            ht_json_add(c->g->arena, to, a->at[i].key, both(c, &a->at[i], y));
        else put(c, to, a->at[i].key, &a->at[i]);
    }
    for (size_t i = 0; i < b->n; i++)
        if (!step(a, b->at[i].key, b->at[i].key_n)) put(c, to, b->at[i].key, &b->at[i]);
    return to;
}

static bool is_number(const ht_json *v)
{
    return v->type == HT_JINT || v->type == HT_JREAL;
}

/* The value of a keyword that both have, or NULL: it cannot be merged. */
static ht_json *merge_keyword(grammar__schema_c *c, const char *key, const ht_json *a,
                              const ht_json *b, const char *path, bool *never)
{
    static const char *const largest[] = {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                          "minProperties"},
                             *const least[] = {"maximum", "exclusiveMaximum", "maxLength",
                                               "maxItems", "maxProperties"};
    ht_json *one = ht_json_new(c->g->arena, a->type);
    if (!one) return NULL;
    *one = *a;
    one->key = NULL;
    one->key_n = 0;
    for (unsigned i = 0; i < 5 && is_number(a) && is_number(b); i++) {
        const bool big = strcmp(key, largest[i]) == 0, small = strcmp(key, least[i]) == 0;
        if ((big && b->d > a->d) || (small && b->d < a->d)) {
            *one = *b;
            one->key = NULL;
            one->key_n = 0;
        }
        if (big || small) return one;
    }
    if (strcmp(key, "type") == 0) return merge_types(c, a, b, path, never);
    if (grammar__schema_equal(a, b)) return one;
    if (strcmp(key, "properties") == 0 && a->type == HT_JOBJ && b->type == HT_JOBJ)
        return merge_properties(c, a, b);
    if (strcmp(key, "required") == 0 && a->type == HT_JARR && b->type == HT_JARR)
        return union_of(c, a, b);
    if (strcmp(key, "enum") == 0 && a->type == HT_JARR && b->type == HT_JARR)
        return common(c, a, b, never);
    if (strcmp(key, "const") == 0) *never = true;
    if (strcmp(key, "const") == 0 || strcmp(key, "additionalProperties") == 0)
        return a->type == HT_JBOOL && b->type == HT_JBOOL ? ht_json_new_bool(c->g->arena, false)
                                                          : one;
    if (strcmp(key, "items") == 0) return both(c, a, b);
    return NULL;
}

/* additionalProperties speaks of what is not in its own schema's properties. */
static bool closed_to(const ht_json *a, const ht_json *b)
{
    const ht_json *more = ht_json_get(a, "additionalProperties");
    const ht_json *own = ht_json_get(a, "properties"), *other = ht_json_get(b, "properties");
    if (!more || (more->type == HT_JBOOL && more->b) || !other) return false;
    for (size_t i = 0; i < other->n; i++)
        if (!own || !step(own, other->at[i].key, other->at[i].key_n)) return true;
    return false;
}

const ht_json *grammar__schema_merge(grammar__schema_c *c, const ht_json *a, const ht_json *b,
                                     const char *path, bool *never)
{
    *never = false;
    if (closed_to(a, b) || closed_to(b, a)) {
        grammar__schema_fail(
            c, HT_EUNSUPPORTED, path,
            "additionalProperties of one part does not see the properties of the other; "
            "write them as one schema");
        return NULL;
    }
    ht_json *to = obj(c);
    for (size_t i = 0; i < a->n && grammar__ok(c->g); i++) {
        const char *key = a->at[i].key;
        const ht_json *y = ht_json_get(b, key);
        if (!y || grammar__schema_annotation(key)) {
            put(c, to, key, &a->at[i]);
            continue;
        }
        ht_json *v = merge_keyword(c, key, &a->at[i], y, path, never);
        if (!v)
            grammar__schema_fail(c, HT_EUNSUPPORTED, path, "two parts with different \"%.40s\"",
                                 key);
        else ht_json_add(c->g->arena, to, key, v);
    }
    for (size_t i = 0; i < b->n; i++)
        if (!ht_json_get(a, b->at[i].key)) put(c, to, b->at[i].key, &b->at[i]);
    if (!to || to->lost) grammar__fail(c->g, HT_ENOMEM, "no memory for a schema");
    return grammar__ok(c->g) ? to : NULL;
}

/* ---- flattening ------------------------------------------------------------------------------ */

static const ht_json *merge_in(grammar__schema_c *c, const ht_json *a, const ht_json *part,
                               const char *path, const char *at)
{
    bool never = false;
    const ht_json *flat = grammar__schema_flatten(c, part, &path);
    if (!flat || !a) return NULL;
    const ht_json *m = grammar__schema_merge(c, a, flat, at, &never);
    if (m && never) {
        grammar__schema_fail(c, HT_EUNSUPPORTED, at, "its parts allow no value in common");
        return NULL;
    }
    return m;
}

static const ht_json *flatten(grammar__schema_c *c, const ht_json *s, const char **path)
{
    const ht_json *ref = ht_json_get(s, "$ref"), *all = ht_json_get(s, "allOf");
    const char *at = *path;
    if (ref) {
        const ht_json *target = grammar__schema_resolve(c, ref, grammar__schema_at(c, at, "$ref"));
        if (!target) return NULL;
        const char *to = ht_arena_printf(c->g->arena, "%s", ref->s);
        if (!grammar__schema_constrains(s, "$ref")) {
            *path = to ? to : at;
            return grammar__schema_flatten(c, target, path);
        }
        return merge_in(c, grammar__schema_flatten(c, grammar__schema_without(c, s, "$ref"), &at),
                        target, to, at);
    }
    if (!all) return s;
    if (all->type != HT_JARR || all->n == 0) {
        grammar__schema_fail(c, HT_EFORMAT, grammar__schema_at(c, at, "allOf"),
                             "must be an array of schemas");
        return NULL;
    }
    const ht_json *m = grammar__schema_without(c, s, "allOf");
    for (size_t i = 0; m && i < all->n; i++)
        m = merge_in(c, m, &all->at[i], grammar__schema_at_i(c, at, "allOf", i), at);
    return m;
}

const ht_json *grammar__schema_flatten(grammar__schema_c *c, const ht_json *s, const char **path)
{
    if (!s || !*path || !grammar__ok(c->g)) return NULL;
    if (s->type == HT_JBOOL && s->b) return obj(c);
    if (s->type != HT_JOBJ) {
        grammar__schema_fail(c, s->type == HT_JBOOL ? HT_EUNSUPPORTED : HT_EFORMAT, *path,
                             s->type == HT_JBOOL ? "the schema false allows no value"
                                                 : "a schema must be an object or true");
        return NULL;
    }
    if (c->depth == SCHEMA_DEPTH) {
        grammar__schema_fail(c, HT_EUNSUPPORTED, *path,
                             "more than %d references and merges inside each other", SCHEMA_DEPTH);
        return NULL;
    }
    grammar__schema_check_keywords(c, s, *path);
    c->depth++;
    const ht_json *flat = grammar__ok(c->g) ? flatten(c, s, path) : NULL;
    c->depth--;
    return flat;
}

/* ---- disjoint -------------------------------------------------------------------------------- */

/* The finite set of values, or NULL. */
static const ht_json *values_of(grammar__schema_c *c, const ht_json *s)
{
    const ht_json *one = ht_json_get(s, "const"), *some = ht_json_get(s, "enum");
    if (!one) return some && some->type == HT_JARR ? some : NULL;
    ht_json *list = ht_json_new(c->g->arena, HT_JARR);
    if (list) push(c, list, one);
    return list;
}

static bool requires(const ht_json *s, const ht_json *prop)
{
    const ht_json *r = ht_json_get(s, "required");
    for (size_t i = 0; r && r->type == HT_JARR && i < r->n; i++)
        if (r->at[i].type == HT_JSTR && r->at[i].n == prop->key_n &&
            memcmp(r->at[i].s, prop->key, prop->key_n) == 0)
            return true;
    return false;
}

bool grammar__schema_disjoint(grammar__schema_c *c, const ht_json *a, const ht_json *b,
                              const char *path, unsigned depth)
{
    const char *pa = path, *pb = path;
    a = grammar__schema_flatten(c, a, &pa);
    b = grammar__schema_flatten(c, b, &pb);
    if (!a || !b) return false;
    const ht_json *va = values_of(c, a), *vb = values_of(c, b);
    if (va && vb) {
        for (size_t i = 0; i < va->n; i++)
            if (holds(vb, &va->at[i])) return false;
        return true;
    }
    if (va || vb) return false;
    unsigned ta = grammar__schema_types(c, a, path), tb = grammar__schema_types(c, b, path);
    if (ta & ST_NUM) ta |= ST_INT;
    if (tb & ST_NUM) tb |= ST_INT;
    if (!(ta & tb)) return true;
    if ((ta & tb) != ST_OBJ || depth == 0) return false;
    const ht_json *p = ht_json_get(a, "properties"), *q = ht_json_get(b, "properties");
    for (size_t i = 0; p && q && i < p->n; i++) {
        const ht_json *other = step(q, p->at[i].key, p->at[i].key_n);
        if (other && requires(a, &p->at[i]) && requires(b, &p->at[i]) &&
            grammar__schema_disjoint(c, &p->at[i], other, path, depth - 1))
            return true;
    }
    return false;
}
