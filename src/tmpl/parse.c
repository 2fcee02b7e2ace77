/* parse.c - statements of a template, and the helpers both parser files share. A construct that
 * Jinja has and this engine does not is HT_EUNSUPPORTED at its line and column; text that Jinja
 * would not accept either is HT_EFORMAT. Neighbours: lex.c (tokens), expr.c (expressions), exec.c
 * (reader). */
#include "core/hash.h"
#include "tmpl/eval.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- shared helpers -------------------------------------------------------------------------- */

int tmpl__oom(tparse *ps)
{
    return HT_FAIL(ps->err, HT_ENOMEM, "chat template: no memory for the parsed form");
}

int tmpl__syntax(tparse *ps, const ttok *at, int code, const char *where, const char *fmt, ...)
{
    char what[180];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return ht_err_set(ps->err, code, where, "chat template, line %u column %u: %s%s", at->line,
                      at->col, code == HT_EUNSUPPORTED ? "not supported: " : "", what);
}

tnode *tmpl__node(tparse *ps, int kind, const ttok *at)
{
    tnode *n = ht_arena_alloc(ps->arena, sizeof *n);
    if (!n) return NULL;
    n->kind = (uint8_t)kind;
    n->line = at->line;
    n->col = at->col;
    return n;
}

int tmpl__seal(tparse *ps, tnode *n)
{
    unsigned h = 0;
    const tnode *fixed[3] = {n->a, n->b, n->c};
    for (int i = 0; i < 3; i++) {
        if (fixed[i] && fixed[i]->height > h) h = fixed[i]->height;
    }
    for (uint32_t i = 0; i < n->n_kid; i++) {
        if (n->kid[i] && n->kid[i]->height > h) h = n->kid[i]->height;
    }
    if (h >= TMPL_MAX_HEIGHT) {
        ttok at = {.line = n->line, .col = n->col};
        return T_SYNTAX(ps, &at, HT_EUNSUPPORTED, "expressions deeper than %d", TMPL_MAX_HEIGHT);
    }
    n->height = (uint16_t)(h + 1);
    return 0;
}

int tmpl__push(tparse *ps, tnodes *list, tnode *n)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4;
        tnode **at = ht_arena_array(ps->arena, cap, sizeof *at);
        if (!at) return tmpl__oom(ps);
        if (list->n) memcpy(at, list->at, list->n * sizeof *at);
        list->at = at;
        list->cap = cap;
    }
    list->at[list->n++] = n;
    return 0;
}

static int grow_names(tparse *ps)
{
    size_t cap = ps->cap_names ? ps->cap_names * 2 : 128;
    const tname **at = ht_arena_array(ps->arena, cap, sizeof *at);
    if (!at) return tmpl__oom(ps);
    for (size_t i = 0; i < ps->cap_names; i++) {
        if (!ps->names[i]) continue;
        size_t k = (size_t)ps->names[i]->hash & (cap - 1);
        while (at[k]) k = (k + 1) & (cap - 1);
        at[k] = ps->names[i];
    }
    ps->names = at;
    ps->cap_names = cap;
    return 0;
}

const tname *tmpl__intern(tparse *ps, const char *p, size_t n)
{
    if (ps->n_names * 2 >= ps->cap_names && grow_names(ps)) return NULL;
    uint64_t hash = ht_hash64(p, n);
    size_t k = (size_t)hash & (ps->cap_names - 1);
    for (; ps->names[k]; k = (k + 1) & (ps->cap_names - 1)) {
        const tname *have = ps->names[k];
        if (have->hash == hash && have->n == n && memcmp(have->p, p, n) == 0) return have;
    }
    tname *name = ht_arena_alloc(ps->arena, sizeof *name);
    if (!name) return NULL;
    name->p = ht_arena_strndup(ps->arena, p, n);
    if (!name->p) return NULL;
    name->n = n;
    name->hash = hash;
    ps->names[k] = name;
    ps->n_names++;
    return name;
}

bool tmpl__is_op(const tparse *ps, int op)
{
    return ps->tok->type == TK_OP && ps->tok->op == op;
}

static bool tok_is(const ttok *t, const char *word)
{
    size_t n = strlen(word);
    return t->type == TK_NAME && t->n == n && memcmp(t->p, word, n) == 0;
}

bool tmpl__is_name(const tparse *ps, const char *word)
{
    return tok_is(ps->tok, word);
}

bool tmpl__skip_op(tparse *ps, int op)
{
    if (!tmpl__is_op(ps, op)) return false;
    ps->tok++;
    return true;
}

bool tmpl__skip_name(tparse *ps, const char *word)
{
    if (!tmpl__is_name(ps, word)) return false;
    ps->tok++;
    return true;
}

const char *tmpl__tok_text(const ttok *t, char buf[48])
{
    if (t->type == TK_EOF) return "the end of the template";
    if (t->type == TK_BLOCK_END || t->type == TK_VAR_END) return "the end of the tag";
    if (t->type == TK_STR) return "a string";
    if (t->type == TK_DATA) return "text";
    int n = t->n < 40 ? (int)t->n : 40;
    snprintf(buf, 48, "'%.*s'", n, t->p);
    return buf;
}

int tmpl__expect_op(tparse *ps, int op, const char *what)
{
    char buf[48];
    if (tmpl__skip_op(ps, op)) return 0;
    return T_SYNTAX(ps, ps->tok, HT_EFORMAT, "expected %s, found %s", what,
                    tmpl__tok_text(ps->tok, buf));
}

int tmpl__expect_name(tparse *ps, const ttok **out, const char *what)
{
    char buf[48];
    if (ps->tok->type != TK_NAME)
        return T_SYNTAX(ps, ps->tok, HT_EFORMAT, "expected %s, found %s", what,
                        tmpl__tok_text(ps->tok, buf));
    *out = ps->tok++;
    return 0;
}

/* ---- statements ------------------------------------------------------------------------------ */

static int parse_body(tparse *ps, const ttok *open, const char *const *ends, tnode **out);

static int expect_end(tparse *ps)
{
    char buf[48];
    if (ps->tok->type != TK_BLOCK_END)
        return T_SYNTAX(ps, ps->tok, HT_EFORMAT, "expected the end of the tag, found %s",
                        tmpl__tok_text(ps->tok, buf));
    ps->tok++;
    return 0;
}

/* A body up to one of `ends`, of which the name is left as the current token. */
static int parse_until(tparse *ps, const ttok *open, const char *const *ends, tnode **out)
{
    HT_TRY(expect_end(ps));
    return parse_body(ps, open, ends, out);
}

static int parse_to(tparse *ps, const ttok *open, const char *end, tnode **out)
{
    const char *const ends[] = {end, NULL};
    HT_TRY(parse_until(ps, open, ends, out));
    ps->tok++;
    return 0;
}

static int new_stmt(tparse *ps, int kind, const ttok *at, tnode **out)
{
    *out = tmpl__node(ps, kind, at);
    return *out ? 0 : tmpl__oom(ps);
}

static int set_kids(tparse *ps, tnode *n, const tnodes *kids)
{
    n->kid = kids->at;
    n->n_kid = (uint32_t)kids->n;
    return tmpl__seal(ps, n);
}

static int parse_if(tparse *ps, const ttok *at, tnode **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    tnodes kids = {0};
    tnode *cond, *body;
    HT_TRY(new_stmt(ps, N_IF, at, out));
    for (;;) {
        HT_TRY(tmpl__parse_tuple(ps, false, NULL, &cond));
        HT_TRY(parse_until(ps, at, ends, &body));
        HT_TRY(tmpl__push(ps, &kids, cond));
        HT_TRY(tmpl__push(ps, &kids, body));
        if (!tmpl__skip_name(ps, "elif")) break;
    }
    if (tmpl__skip_name(ps, "else")) {
        HT_TRY(parse_to(ps, at, "endif", &(*out)->c));
    } else {
        ps->tok++;
    }
    return set_kids(ps, *out, &kids);
}

static int parse_for(tparse *ps, const ttok *at, tnode **out)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    tnodes kids = {0};
    tnode *body, *other = NULL;
    HT_TRY(new_stmt(ps, N_FOR, at, out));
    HT_TRY(tmpl__parse_target(ps, "in", false, &(*out)->a));
    if ((*out)->a->kind == N_NAME && strcmp((*out)->a->name->p, "loop") == 0)
        return T_SYNTAX(ps, at, HT_EFORMAT, "'loop' cannot be a loop's own variable");
    if (!tmpl__skip_name(ps, "in")) return T_SYNTAX(ps, ps->tok, HT_EFORMAT, "expected 'in'");
    HT_TRY(tmpl__parse_tuple(ps, false, "recursive", &(*out)->b));
    if (tmpl__skip_name(ps, "if")) HT_TRY(tmpl__parse_expr(ps, true, &(*out)->c));
    if (tmpl__skip_name(ps, "recursive")) (*out)->op = 1;
    ps->loops++;
    HT_TRY(parse_until(ps, at, ends, &body));
    ps->loops--;
    if (tmpl__skip_name(ps, "else")) {
        HT_TRY(parse_to(ps, at, "endfor", &other));
    } else {
        ps->tok++;
    }
    HT_TRY(tmpl__push(ps, &kids, body));
    HT_TRY(tmpl__push(ps, &kids, other));
    return set_kids(ps, *out, &kids);
}

static int parse_set(tparse *ps, const ttok *at, tnode **out)
{
    HT_TRY(new_stmt(ps, N_SET, at, out));
    HT_TRY(tmpl__parse_target(ps, NULL, true, &(*out)->a));
    if (tmpl__skip_op(ps, OP_ASSIGN)) {
        HT_TRY(tmpl__parse_tuple(ps, true, NULL, &(*out)->b));
        return tmpl__seal(ps, *out);
    }
    (*out)->kind = N_SETBLOCK;
    if (tmpl__skip_op(ps, OP_PIPE)) HT_TRY(tmpl__parse_filters(ps, &(*out)->b));
    HT_TRY(parse_to(ps, at, "endset", &(*out)->c));
    return tmpl__seal(ps, *out);
}

/* "(a, b=1)" into node->kid. */
static int parse_params(tparse *ps, tnode *node)
{
    tnodes kids = {0};
    bool defaults = false;
    HT_TRY(tmpl__expect_op(ps, OP_LPAREN, "'('"));
    while (!tmpl__is_op(ps, OP_RPAREN)) {
        const ttok *name = NULL;
        tnode *param;
        if (kids.n) HT_TRY(tmpl__expect_op(ps, OP_COMMA, "',' or ')'"));
        HT_TRY(tmpl__expect_name(ps, &name, "the name of a parameter"));
        HT_TRY(new_stmt(ps, N_NAME, name, &param));
        param->name = tmpl__intern(ps, name->p, name->n);
        if (!param->name) return tmpl__oom(ps);
        if (tmpl__skip_op(ps, OP_ASSIGN)) {
            defaults = true;
            HT_TRY(tmpl__parse_expr(ps, true, &param->a));
        } else if (defaults) {
            return T_SYNTAX(ps, name, HT_EFORMAT, "a parameter without default after one with");
        } else if (tok_is(name, "caller")) {
            return T_SYNTAX(ps, name, HT_EFORMAT, "the parameter 'caller' needs a default");
        }
        HT_TRY(tmpl__seal(ps, param));
        HT_TRY(tmpl__push(ps, &kids, param));
    }
    ps->tok++;
    return set_kids(ps, node, &kids);
}

/* The body of a macro or call block: its own function, so no loop of outside can be left from
 * it. */
static int parse_function(tparse *ps, const ttok *at, const char *end, tnode *node)
{
    unsigned loops = ps->loops;
    uint8_t uses = ps->uses;
    ps->loops = 0;
    ps->uses = 0;
    HT_TRY(parse_to(ps, at, end, &node->c));
    node->op = ps->uses;
    ps->loops = loops;
    ps->uses |= uses;
    return tmpl__seal(ps, node);
}

static int parse_macro(tparse *ps, const ttok *at, tnode **out)
{
    const ttok *name = NULL;
    HT_TRY(new_stmt(ps, N_MACRO, at, out));
    HT_TRY(tmpl__expect_name(ps, &name, "the name of the macro"));
    (*out)->name = tmpl__intern(ps, name->p, name->n);
    if (!(*out)->name) return tmpl__oom(ps);
    HT_TRY(parse_params(ps, *out));
    return parse_function(ps, at, "endmacro", *out);
}

static int parse_call_block(tparse *ps, const ttok *at, tnode **out)
{
    HT_TRY(new_stmt(ps, N_CALLBLOCK, at, out));
    if (tmpl__is_op(ps, OP_LPAREN)) HT_TRY(parse_params(ps, *out));
    HT_TRY(tmpl__parse_expr(ps, true, &(*out)->a));
    if ((*out)->a->kind != N_CALL) return T_SYNTAX(ps, at, HT_EFORMAT, "expected a call");
    return parse_function(ps, at, "endcall", *out);
}

static int parse_filter_block(tparse *ps, const ttok *at, tnode **out)
{
    HT_TRY(new_stmt(ps, N_FILTERBLOCK, at, out));
    HT_TRY(tmpl__parse_filters(ps, &(*out)->b));
    HT_TRY(parse_to(ps, at, "endfilter", &(*out)->c));
    return tmpl__seal(ps, *out);
}

static int parse_with(tparse *ps, const ttok *at, tnode **out)
{
    tnodes kids = {0};
    HT_TRY(new_stmt(ps, N_WITH, at, out));
    while (ps->tok->type != TK_BLOCK_END) {
        tnode *target, *value;
        if (kids.n) HT_TRY(tmpl__expect_op(ps, OP_COMMA, "','"));
        HT_TRY(tmpl__parse_target(ps, NULL, false, &target));
        HT_TRY(tmpl__expect_op(ps, OP_ASSIGN, "'='"));
        HT_TRY(tmpl__parse_expr(ps, true, &value));
        HT_TRY(tmpl__push(ps, &kids, target));
        HT_TRY(tmpl__push(ps, &kids, value));
    }
    HT_TRY(parse_to(ps, at, "endwith", &(*out)->c));
    return set_kids(ps, *out, &kids);
}

/* "generation" marks the assistant's text for training; rendering ignores it. */
static int parse_generation(tparse *ps, const ttok *at, tnode **out)
{
    HT_TRY(new_stmt(ps, N_SCOPE, at, out));
    return parse_function(ps, at, "endgeneration", *out);
}

static int parse_jump(tparse *ps, const ttok *at, tnode **out)
{
    HT_TRY(new_stmt(ps, tok_is(at, "break") ? N_BREAK : N_CONTINUE, at, out));
    if (!ps->loops) return T_SYNTAX(ps, at, HT_EFORMAT, "%.8s outside a loop", at->p);
    return tmpl__seal(ps, *out);
}

static int parse_print_tag(tparse *ps, const ttok *at, tnode **out)
{
    HT_TRY(new_stmt(ps, N_PRINT, at, out));
    HT_TRY(tmpl__parse_tuple(ps, true, NULL, &(*out)->a));
    return tmpl__seal(ps, *out);
}

static int parse_statement(tparse *ps, tnode **out)
{
    static const struct {
        const char *word;
        int (*parse)(tparse *, const ttok *, tnode **);
    } tags[] = {{"if", parse_if},           {"for", parse_for},
                {"set", parse_set},         {"macro", parse_macro},
                {"call", parse_call_block}, {"filter", parse_filter_block},
                {"with", parse_with},       {"generation", parse_generation},
                {"break", parse_jump},      {"continue", parse_jump},
                {"print", parse_print_tag}};
    static const char *const foreign[] = {"block",     "extends",    "include", "import",
                                          "from",      "autoescape", "do",      "trans",
                                          "pluralize", "debug",      NULL};
    const ttok *name = NULL;
    char buf[48];
    HT_TRY(tmpl__expect_name(ps, &name, "the name of a tag"));
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!tok_is(name, tags[i].word)) continue;
        HT_TRY(tags[i].parse(ps, name, out));
        return expect_end(ps);
    }
    for (size_t i = 0; foreign[i]; i++) {
        if (tok_is(name, foreign[i]))
            return T_SYNTAX(ps, name, HT_EUNSUPPORTED, "tag %s", tmpl__tok_text(name, buf));
    }
    return T_SYNTAX(ps, name, HT_EFORMAT, "unknown tag %s", tmpl__tok_text(name, buf));
}

static int text_node(tparse *ps, const ttok *t, tnode **out)
{
    tstr *s = ht_arena_alloc(ps->arena, sizeof *s);
    *out = tmpl__node(ps, N_TEXT, t);
    if (!s || !*out) return tmpl__oom(ps);
    s->p = t->p;
    s->n = t->n;
    (*out)->val.t = TV_STR;
    (*out)->val.u.s = s;
    return tmpl__seal(ps, *out);
}

static int print_node(tparse *ps, tnode **out)
{
    const ttok *at = ps->tok++;
    char buf[48];
    HT_TRY(new_stmt(ps, N_PRINT, at, out));
    HT_TRY(tmpl__parse_tuple(ps, true, NULL, &(*out)->a));
    if (ps->tok->type != TK_VAR_END)
        return T_SYNTAX(ps, ps->tok, HT_EFORMAT, "expected '}}', found %s",
                        tmpl__tok_text(ps->tok, buf));
    ps->tok++;
    return tmpl__seal(ps, *out);
}

/* Statements up to a tag named in ends (left as the current token), or to the end when ends is
 * NULL. */
static int parse_body(tparse *ps, const ttok *open, const char *const *ends, tnode **out)
{
    tnodes kids = {0};
    tnode *one;
    HT_TRY(new_stmt(ps, N_BODY, ps->tok, out));
    if (++ps->nest > TMPL_MAX_NEST)
        return T_SYNTAX(ps, open, HT_EUNSUPPORTED, "blocks nested deeper than %d", TMPL_MAX_NEST);
    for (;;) {
        if (ps->tok->type == TK_EOF) {
            if (!ends) break;
            return T_SYNTAX(ps, open, HT_EFORMAT, "this block is not closed: no '%s'",
                            ends[1] ? "end" : ends[0]);
        }
        if (ps->tok->type == TK_DATA) {
            HT_TRY(text_node(ps, ps->tok++, &one));
        } else if (ps->tok->type == TK_VAR_BEGIN) {
            HT_TRY(print_node(ps, &one));
        } else {
            ps->tok++;
            bool end = false;
            for (size_t i = 0; ends && ends[i] && !end; i++) end = tmpl__is_name(ps, ends[i]);
            if (end) break;
            HT_TRY(parse_statement(ps, &one));
        }
        HT_TRY(tmpl__push(ps, &kids, one));
    }
    ps->nest--;
    return set_kids(ps, *out, &kids);
}

/* ---- entry ----------------------------------------------------------------------------------- */

static int intern_own_names(tparse *ps, ht_tmpl *t)
{
    t->loop = tmpl__intern(ps, "loop", 4);
    t->caller = tmpl__intern(ps, "caller", 6);
    t->varargs = tmpl__intern(ps, "varargs", 7);
    t->kwargs = tmpl__intern(ps, "kwargs", 6);
    return t->loop && t->caller && t->varargs && t->kwargs ? 0 : tmpl__oom(ps);
}

int ht_tmpl_parse(ht_tmpl **out, const char *source, size_t n, ht_err *e)
{
    ht_arena *arena;
    HT_TRY(ht_arena_new(&arena, (size_t)256 << 20, e));
    tparse ps = {.arena = arena, .err = e};
    ht_tmpl *t = ht_arena_alloc(arena, sizeof *t);
    ttok *tok = NULL;
    size_t n_tok = 0;
    tnode *root = NULL;
    int rc = t ? tmpl__lex(arena, source, n, &tok, &n_tok, e) : tmpl__oom(&ps);
    if (!rc) rc = intern_own_names(&ps, t);
    if (!rc) {
        ps.tok = tok;
        rc = parse_body(&ps, tok, NULL, &root);
    }
    if (rc) {
        ht_arena_free(arena);
        return rc;
    }
    t->arena = arena;
    t->root = root;
    *out = t;
    return 0;
}

void ht_tmpl_free(ht_tmpl *t)
{
    if (t) ht_arena_free(t->arena);
}
