/* expr.c - recursive descent over Jinja's expression grammar (lowest binding first): inline if, or,
 * and, not, comparison, + -, ~, * / // %, **, unary, postfix . [] (), filters and tests.
 * Neighbours: parse.c (statements and the shared helpers), ast.h. */
#include "tmpl/eval.h"
#include <string.h>

static int parse_or(tparse *ps, tnode **out);
static int parse_postfix(tparse *ps, tnode **node);
static int parse_primary(tparse *ps, tnode **out);

static int new_node(tparse *ps, int kind, const ttok *at, tnode **out)
{
    *out = tmpl__node(ps, kind, at);
    return *out ? 0 : tmpl__oom(ps);
}

static int const_node(tparse *ps, const ttok *at, tval v, tnode **out)
{
    HT_TRY(new_node(ps, N_CONST, at, out));
    (*out)->val = v;
    return tmpl__seal(ps, *out);
}

static int take_kids(tparse *ps, tnode *node, tnodes *kids)
{
    if (kids->n > UINT32_MAX) return tmpl__oom(ps);
    node->kid = kids->at;
    node->n_kid = (uint32_t)kids->n;
    return tmpl__seal(ps, node);
}

static int intern_tok(tparse *ps, const ttok *t, const tname **out)
{
    *out = tmpl__intern(ps, t->p, t->n);
    return *out ? 0 : tmpl__oom(ps);
}

/* ---- argument lists -------------------------------------------------------------------------- */

static int parse_arg(tparse *ps, tnodes *args, tnodes *names_as_nodes)
{
    tnode *value, *key = NULL;
    const ttok *at = ps->tok;
    if (tmpl__is_op(ps, OP_MUL) || tmpl__is_op(ps, OP_POW))
        return T_SYNTAX(ps, at, HT_EUNSUPPORTED, "'*' and '**' arguments in a call");
    if (at->type == TK_NAME && at[1].type == TK_OP && at[1].op == OP_ASSIGN) {
        HT_TRY(new_node(ps, N_NAME, at, &key));
        HT_TRY(intern_tok(ps, at, &key->name));
        ps->tok += 2;
    } else if (names_as_nodes->n && names_as_nodes->at[names_as_nodes->n - 1]) {
        return T_SYNTAX(ps, at, HT_EFORMAT, "a positional argument after a keyword argument");
    }
    HT_TRY(tmpl__parse_expr(ps, true, &value));
    HT_TRY(tmpl__push(ps, args, value));
    return tmpl__push(ps, names_as_nodes, key);
}

/* "(a, b, k=v)" into node->kid and node->kw; the current token is the opening parenthesis. */
static int parse_args(tparse *ps, tnode *node)
{
    tnodes args = {0}, names = {0};
    HT_TRY(tmpl__expect_op(ps, OP_LPAREN, "'('"));
    while (!tmpl__is_op(ps, OP_RPAREN)) {
        if (args.n) {
            HT_TRY(tmpl__expect_op(ps, OP_COMMA, "',' or ')'"));
            if (tmpl__is_op(ps, OP_RPAREN)) break;
        }
        HT_TRY(parse_arg(ps, &args, &names));
    }
    HT_TRY(tmpl__expect_op(ps, OP_RPAREN, "')'"));
    node->kw = ht_arena_array(ps->arena, args.n ? args.n : 1, sizeof *node->kw);
    if (!node->kw) return tmpl__oom(ps);
    for (size_t i = 0; i < args.n; i++) node->kw[i] = names.at[i] ? names.at[i]->name : NULL;
    return take_kids(ps, node, &args);
}

static int parse_call(tparse *ps, tnode **node)
{
    tnode *call;
    HT_TRY(new_node(ps, N_CALL, ps->tok, &call));
    call->a = *node;
    HT_TRY(parse_args(ps, call));
    *node = call;
    return 0;
}

/* ---- filters and tests ----------------------------------------------------------------------- */

static int parse_filter(tparse *ps, tnode *input, tnode **out)
{
    const ttok *name;
    char buf[48];
    HT_TRY(tmpl__expect_name(ps, &name, "the name of a filter"));
    HT_TRY(new_node(ps, N_FILTER, name, out));
    (*out)->a = input;
    HT_TRY(intern_tok(ps, name, &(*out)->name));
    (*out)->impl = tmpl__find_filter(name->p, name->n);
    if (!(*out)->impl) {
        bool known = tmpl__known_filter(name->p, name->n);
        return T_SYNTAX(ps, name, HT_EUNSUPPORTED, "filter %s%s", tmpl__tok_text(name, buf),
                        known ? "" : ", which Jinja does not have either");
    }
    if (tmpl__is_op(ps, OP_LPAREN)) return parse_args(ps, *out);
    return tmpl__seal(ps, *out);
}

int tmpl__parse_filters(tparse *ps, tnode **out)
{
    HT_TRY(parse_filter(ps, NULL, out));
    while (tmpl__skip_op(ps, OP_PIPE)) HT_TRY(parse_filter(ps, *out, out));
    return 0;
}

/* Does a value follow that "is name value" would take as the test's argument? */
static bool test_arg_follows(const tparse *ps)
{
    switch (ps->tok->type) {
    case TK_STR:
    case TK_INT:
    case TK_FLOAT: return true;
    case TK_NAME:
        return !tmpl__is_name(ps, "else") && !tmpl__is_name(ps, "or") && !tmpl__is_name(ps, "and");
    case TK_OP:
        return tmpl__is_op(ps, OP_LPAREN) || tmpl__is_op(ps, OP_LBRACKET) ||
               tmpl__is_op(ps, OP_LBRACE);
    default: return false;
    }
}

/* The current token is "is". */
static int parse_test(tparse *ps, tnode **node)
{
    const ttok *at = ps->tok++, *name;
    char buf[48];
    bool negated = tmpl__skip_name(ps, "not");
    tnode *test, *arg;
    HT_TRY(tmpl__expect_name(ps, &name, "the name of a test"));
    HT_TRY(new_node(ps, N_TEST, at, &test));
    test->a = *node;
    HT_TRY(intern_tok(ps, name, &test->name));
    test->impl = tmpl__find_test(name->p, name->n);
    if (!test->impl)
        return T_SYNTAX(ps, name, HT_EUNSUPPORTED, "test %s", tmpl__tok_text(name, buf));
    if (tmpl__is_op(ps, OP_LPAREN)) {
        HT_TRY(parse_args(ps, test));
    } else if (test_arg_follows(ps)) {
        tnodes one = {0};
        if (tmpl__is_name(ps, "is"))
            return T_SYNTAX(ps, ps->tok, HT_EFORMAT, "tests cannot be chained with 'is'");
        HT_TRY(parse_primary(ps, &arg));
        HT_TRY(parse_postfix(ps, &arg));
        HT_TRY(tmpl__push(ps, &one, arg));
        test->kw = ht_arena_array(ps->arena, 1, sizeof *test->kw);
        if (!test->kw) return tmpl__oom(ps);
        HT_TRY(take_kids(ps, test, &one));
    } else {
        HT_TRY(tmpl__seal(ps, test));
    }
    *node = test;
    if (!negated) return 0;
    HT_TRY(new_node(ps, N_NOT, at, node));
    (*node)->a = test;
    return tmpl__seal(ps, *node);
}

static int parse_filter_expr(tparse *ps, tnode **node)
{
    for (;;) {
        if (tmpl__skip_op(ps, OP_PIPE)) {
            HT_TRY(parse_filter(ps, *node, node));
        } else if (tmpl__is_name(ps, "is")) {
            HT_TRY(parse_test(ps, node));
        } else if (tmpl__is_op(ps, OP_LPAREN)) {
            HT_TRY(parse_call(ps, node));
        } else {
            return 0;
        }
    }
}

/* ---- postfix --------------------------------------------------------------------------------- */

static bool slice_part_ends(const tparse *ps)
{
    return tmpl__is_op(ps, OP_COLON) || tmpl__is_op(ps, OP_RBRACKET) || tmpl__is_op(ps, OP_COMMA);
}

static int parse_subscript_arg(tparse *ps, tnode **out)
{
    const ttok *at = ps->tok;
    tnode *first = NULL, *slice;
    if (!tmpl__is_op(ps, OP_COLON)) {
        HT_TRY(tmpl__parse_expr(ps, true, &first));
        if (!tmpl__is_op(ps, OP_COLON)) {
            *out = first;
            return 0;
        }
    }
    HT_TRY(new_node(ps, N_SLICE, at, &slice));
    slice->a = first;
    ps->tok++;
    if (!slice_part_ends(ps)) HT_TRY(tmpl__parse_expr(ps, true, &slice->b));
    if (tmpl__skip_op(ps, OP_COLON) && !slice_part_ends(ps))
        HT_TRY(tmpl__parse_expr(ps, true, &slice->c));
    *out = slice;
    return tmpl__seal(ps, slice);
}

static int parse_dot(tparse *ps, tnode **node)
{
    const ttok *at = ps->tok++;
    tnode *next;
    if (ps->tok->type == TK_NAME) {
        HT_TRY(new_node(ps, N_ATTR, at, &next));
        HT_TRY(intern_tok(ps, ps->tok, &next->name));
    } else if (ps->tok->type == TK_INT) {
        HT_TRY(new_node(ps, N_ITEM, at, &next));
        tval v = {.t = TV_INT, .u.i = ps->tok->i};
        HT_TRY(const_node(ps, ps->tok, v, &next->b));
    } else {
        return T_SYNTAX(ps, ps->tok, HT_EFORMAT, "expected a name or number after '.'");
    }
    ps->tok++;
    next->a = *node;
    *node = next;
    return tmpl__seal(ps, next);
}

static int parse_postfix(tparse *ps, tnode **node)
{
    for (;;) {
        if (tmpl__is_op(ps, OP_DOT)) {
            HT_TRY(parse_dot(ps, node));
        } else if (tmpl__is_op(ps, OP_LBRACKET)) {
            tnode *item;
            HT_TRY(new_node(ps, N_ITEM, ps->tok++, &item));
            item->a = *node;
            HT_TRY(parse_subscript_arg(ps, &item->b));
            if (tmpl__is_op(ps, OP_COMMA))
                return T_SYNTAX(ps, ps->tok, HT_EUNSUPPORTED, "more than one index in '[...]'");
            HT_TRY(tmpl__expect_op(ps, OP_RBRACKET, "']'"));
            HT_TRY(tmpl__seal(ps, item));
            *node = item;
        } else if (tmpl__is_op(ps, OP_LPAREN)) {
            HT_TRY(parse_call(ps, node));
        } else {
            return 0;
        }
    }
}

/* ---- primary --------------------------------------------------------------------------------- */

static int parse_items(tparse *ps, int kind, int close, tnode **out)
{
    tnodes kids = {0};
    tnode *one;
    HT_TRY(new_node(ps, kind, ps->tok++, out));
    while (!tmpl__is_op(ps, close)) {
        if (kids.n) {
            HT_TRY(tmpl__expect_op(ps, OP_COMMA, "',' between items"));
            if (tmpl__is_op(ps, close)) break;
        }
        HT_TRY(tmpl__parse_expr(ps, true, &one));
        HT_TRY(tmpl__push(ps, &kids, one));
        if (kind != N_DICT) continue;
        HT_TRY(tmpl__expect_op(ps, OP_COLON, "':' between key and value"));
        HT_TRY(tmpl__parse_expr(ps, true, &one));
        HT_TRY(tmpl__push(ps, &kids, one));
    }
    HT_TRY(tmpl__expect_op(ps, close, "the closing bracket"));
    return take_kids(ps, *out, &kids);
}

static int parse_name(tparse *ps, tnode **out)
{
    static const struct {
        const char *word;
        tval v;
    } consts[] = {{"true", {.t = TV_BOOL, .u.b = true}},
                  {"True", {.t = TV_BOOL, .u.b = true}},
                  {"false", {.t = TV_BOOL, .u.b = false}},
                  {"False", {.t = TV_BOOL, .u.b = false}},
                  {"none", {.t = TV_NONE}},
                  {"None", {.t = TV_NONE}}};
    const ttok *at = ps->tok;
    for (size_t i = 0; i < sizeof consts / sizeof *consts; i++) {
        if (!tmpl__skip_name(ps, consts[i].word)) continue;
        return const_node(ps, at, consts[i].v, out);
    }
    if (tmpl__is_name(ps, "varargs")) ps->uses |= MACRO_VARARGS;
    if (tmpl__is_name(ps, "kwargs")) ps->uses |= MACRO_KWARGS;
    if (tmpl__is_name(ps, "caller")) ps->uses |= MACRO_CALLER;
    ps->tok++;
    HT_TRY(new_node(ps, N_NAME, at, out));
    HT_TRY(intern_tok(ps, at, &(*out)->name));
    return tmpl__seal(ps, *out);
}

static int parse_strings(tparse *ps, tnode **out)
{
    const ttok *at = ps->tok;
    size_t n = 0;
    for (const ttok *t = at; t->type == TK_STR; t++) n += t->n; /* neighbours join */
    char *p = ht_arena_alloc(ps->arena, n);
    tstr *s = ht_arena_alloc(ps->arena, sizeof *s);
    if (!p || !s) return tmpl__oom(ps);
    s->p = p;
    s->n = n;
    for (; ps->tok->type == TK_STR; ps->tok++) {
        memcpy(p, ps->tok->p, ps->tok->n);
        p += ps->tok->n;
    }
    tval v = {.t = TV_STR, .u.s = s};
    return const_node(ps, at, v, out);
}

static int parse_paren(tparse *ps, tnode **out)
{
    const ttok *at = ps->tok++;
    if (tmpl__skip_op(ps, OP_RPAREN)) {
        HT_TRY(new_node(ps, N_TUPLE, at, out));
        return tmpl__seal(ps, *out);
    }
    HT_TRY(tmpl__parse_tuple(ps, true, NULL, out));
    return tmpl__expect_op(ps, OP_RPAREN, "')'");
}

static int parse_primary(tparse *ps, tnode **out)
{
    const ttok *at = ps->tok;
    char buf[48];
    tval v = {.t = TV_INT, .u.i = at->i};
    switch (at->type) {
    case TK_NAME: return parse_name(ps, out);
    case TK_STR: return parse_strings(ps, out);
    case TK_FLOAT:
        v.t = TV_FLOAT;
        v.u.d = at->d;
        /* fall through */
    case TK_INT: ps->tok++; return const_node(ps, at, v, out);
    case TK_OP:
        if (at->op == OP_LPAREN) return parse_paren(ps, out);
        if (at->op == OP_LBRACKET) return parse_items(ps, N_LIST, OP_RBRACKET, out);
        if (at->op == OP_LBRACE) return parse_items(ps, N_DICT, OP_RBRACE, out);
        break;
    default: break;
    }
    return T_SYNTAX(ps, at, HT_EFORMAT, "expected a value, found %s", tmpl__tok_text(at, buf));
}

/* ---- operators ------------------------------------------------------------------------------- */

static int nest(tparse *ps, const ttok *at)
{
    if (++ps->nest > TMPL_MAX_NEST)
        return T_SYNTAX(ps, at, HT_EUNSUPPORTED, "nesting deeper than %d", TMPL_MAX_NEST);
    return 0;
}

static int parse_unary(tparse *ps, bool with_filter, tnode **out)
{
    const ttok *at = ps->tok;
    HT_TRY(nest(ps, at));
    if (tmpl__is_op(ps, OP_SUB) || tmpl__is_op(ps, OP_ADD)) {
        tnode *sign;
        HT_TRY(new_node(ps, at->op == OP_SUB ? N_NEG : N_POS, at, &sign));
        ps->tok++;
        HT_TRY(parse_unary(ps, false, &sign->a));
        HT_TRY(tmpl__seal(ps, sign));
        *out = sign;
    } else {
        HT_TRY(parse_primary(ps, out));
    }
    HT_TRY(parse_postfix(ps, out));
    if (with_filter) HT_TRY(parse_filter_expr(ps, out));
    ps->nest--;
    return 0;
}

static int parse_filtered(tparse *ps, tnode **out)
{
    return parse_unary(ps, true, out);
}

/* A left-associative level: next (op next)*, for ops in the zero-ended list. */
static int parse_left(tparse *ps, const uint8_t *ops, int (*next)(tparse *, tnode **), tnode **out)
{
    const ttok *at = ps->tok;
    HT_TRY(next(ps, out));
    while (ps->tok->type == TK_OP && memchr(ops, ps->tok->op, strlen((const char *)ops))) {
        tnode *bin;
        HT_TRY(new_node(ps, N_BIN, at, &bin));
        bin->op = ps->tok->op;
        bin->a = *out;
        ps->tok++;
        HT_TRY(next(ps, &bin->b));
        HT_TRY(tmpl__seal(ps, bin));
        *out = bin;
        at = ps->tok;
    }
    return 0;
}

static int parse_pow(tparse *ps, tnode **out)
{
    static const uint8_t ops[] = {OP_POW, 0};
    return parse_left(ps, ops, parse_filtered, out);
}

static int parse_product(tparse *ps, tnode **out)
{
    static const uint8_t ops[] = {OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, 0};
    return parse_left(ps, ops, parse_pow, out);
}

static int parse_concat(tparse *ps, tnode **out)
{
    const ttok *at = ps->tok;
    tnodes parts = {0};
    tnode *one;
    HT_TRY(parse_product(ps, out));
    if (!tmpl__is_op(ps, OP_TILDE)) return 0;
    HT_TRY(tmpl__push(ps, &parts, *out));
    while (tmpl__skip_op(ps, OP_TILDE)) {
        HT_TRY(parse_product(ps, &one));
        HT_TRY(tmpl__push(ps, &parts, one));
    }
    HT_TRY(new_node(ps, N_CONCAT, at, out));
    return take_kids(ps, *out, &parts);
}

static int parse_sum(tparse *ps, tnode **out)
{
    static const uint8_t ops[] = {OP_ADD, OP_SUB, 0};
    return parse_left(ps, ops, parse_concat, out);
}

/* The comparison operator here, consumed; OP_NONE if there is none. */
static uint8_t compare_op(tparse *ps)
{
    const ttok *t = ps->tok;
    if (t->type == TK_OP && t->op >= OP_EQ && t->op <= OP_GE) {
        ps->tok++;
        return t->op;
    }
    if (tmpl__skip_name(ps, "in")) return OP_IN;
    if (tmpl__is_name(ps, "not") && t[1].type == TK_NAME && t[1].n == 2 &&
        memcmp(t[1].p, "in", 2) == 0) {
        ps->tok += 2;
        return OP_NOTIN;
    }
    return OP_NONE;
}

static int parse_compare(tparse *ps, tnode **out)
{
    const ttok *at = ps->tok;
    tnodes right = {0};
    uint8_t ops[64];
    tnode *one, *cmp;
    HT_TRY(parse_sum(ps, out));
    for (uint8_t op; (op = compare_op(ps)) != OP_NONE;) {
        if (right.n == sizeof ops)
            return T_SYNTAX(ps, ps->tok, HT_EUNSUPPORTED, "more than 64 chained comparisons");
        ops[right.n] = op;
        HT_TRY(parse_sum(ps, &one));
        HT_TRY(tmpl__push(ps, &right, one));
    }
    if (!right.n) return 0;
    HT_TRY(new_node(ps, N_COMPARE, at, &cmp));
    uint8_t *copy = ht_arena_alloc(ps->arena, right.n);
    if (!copy) return tmpl__oom(ps);
    memcpy(copy, ops, right.n);
    cmp->opv = copy;
    cmp->a = *out;
    *out = cmp;
    return take_kids(ps, cmp, &right);
}

static int parse_not(tparse *ps, tnode **out)
{
    const ttok *at = ps->tok;
    if (!tmpl__skip_name(ps, "not")) return parse_compare(ps, out);
    HT_TRY(nest(ps, at));
    HT_TRY(new_node(ps, N_NOT, at, out));
    HT_TRY(parse_not(ps, &(*out)->a));
    ps->nest--;
    return tmpl__seal(ps, *out);
}

static int parse_logic(tparse *ps, const char *word, int kind, int (*next)(tparse *, tnode **),
                       tnode **out)
{
    const ttok *at = ps->tok;
    HT_TRY(next(ps, out));
    while (tmpl__skip_name(ps, word)) {
        tnode *both;
        HT_TRY(new_node(ps, kind, at, &both));
        both->a = *out;
        HT_TRY(next(ps, &both->b));
        HT_TRY(tmpl__seal(ps, both));
        *out = both;
    }
    return 0;
}

static int parse_and(tparse *ps, tnode **out)
{
    return parse_logic(ps, "and", N_AND, parse_not, out);
}

static int parse_or(tparse *ps, tnode **out)
{
    return parse_logic(ps, "or", N_OR, parse_and, out);
}

int tmpl__parse_expr(tparse *ps, bool with_cond, tnode **out)
{
    const ttok *at = ps->tok;
    HT_TRY(nest(ps, at));
    HT_TRY(parse_or(ps, out));
    while (with_cond && tmpl__skip_name(ps, "if")) {
        tnode *cond;
        HT_TRY(new_node(ps, N_COND, at, &cond));
        cond->a = *out;
        HT_TRY(parse_or(ps, &cond->b));
        if (tmpl__skip_name(ps, "else")) HT_TRY(tmpl__parse_expr(ps, true, &cond->c));
        HT_TRY(tmpl__seal(ps, cond));
        *out = cond;
    }
    ps->nest--;
    return 0;
}

static bool tuple_ends(const tparse *ps, const char *stop)
{
    int t = ps->tok->type;
    return t == TK_VAR_END || t == TK_BLOCK_END || t == TK_EOF || tmpl__is_op(ps, OP_RPAREN) ||
           (stop && tmpl__is_name(ps, stop));
}

/* The shared comma logic of tuples and assignment targets. */
static int parse_commas(tparse *ps, const char *stop, bool target, bool with_cond, tnode **out)
{
    const ttok *at = ps->tok;
    tnodes kids = {0};
    bool is_tuple = false;
    char buf[48];
    for (;;) {
        tnode *one;
        if (kids.n) HT_TRY(tmpl__expect_op(ps, OP_COMMA, "','"));
        if (tuple_ends(ps, stop)) break;
        HT_TRY(target ? parse_primary(ps, &one) : tmpl__parse_expr(ps, with_cond, &one));
        HT_TRY(tmpl__push(ps, &kids, one));
        if (!tmpl__is_op(ps, OP_COMMA)) break;
        is_tuple = true;
    }
    if (!is_tuple && kids.n) {
        *out = kids.at[0];
        return 0;
    }
    if (!kids.n)
        return T_SYNTAX(ps, at, HT_EFORMAT, "expected an expression, found %s",
                        tmpl__tok_text(at, buf));
    HT_TRY(new_node(ps, N_TUPLE, at, out));
    return take_kids(ps, *out, &kids);
}

int tmpl__parse_tuple(tparse *ps, bool with_cond, const char *stop, tnode **out)
{
    return parse_commas(ps, stop, false, with_cond, out);
}

static int check_target(tparse *ps, const tnode *t, const ttok *at)
{
    if (t->kind == N_NAME) return 0;
    if (t->kind != N_TUPLE) return T_SYNTAX(ps, at, HT_EFORMAT, "this cannot be assigned to");
    for (uint32_t i = 0; i < t->n_kid; i++) HT_TRY(check_target(ps, t->kid[i], at));
    return 0;
}

int tmpl__parse_target(tparse *ps, const char *stop, bool with_ns, tnode **out)
{
    const ttok *at = ps->tok;
    if (with_ns && at->type == TK_NAME && at[1].type == TK_OP && at[1].op == OP_DOT) {
        const ttok *attr;
        HT_TRY(new_node(ps, N_NSREF, at, out));
        HT_TRY(intern_tok(ps, at, &(*out)->name));
        ps->tok += 2;
        HT_TRY(tmpl__expect_name(ps, &attr, "the attribute to set"));
        HT_TRY(intern_tok(ps, attr, &(*out)->attr));
        return tmpl__seal(ps, *out);
    }
    HT_TRY(parse_commas(ps, stop, true, false, out));
    return check_target(ps, *out, at);
}
