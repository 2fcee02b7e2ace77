/* ast.c - the trees of ast.h and how they become nodes. */
#include "grammar/ast.h"
#include "grammar/grammar.h"
#include <string.h>

grammar__ast_node *grammar__ast_new(grammar__nfa *g, enum grammar__ast_kind kind)
{
    if (!grammar__ok(g)) return NULL;
    grammar__ast_node *x = ht_arena_alloc(g->arena, sizeof *x);
    if (!x) grammar__fail(g, HT_ENOMEM, "no memory for a grammar");
    else x->kind = kind;
    return x;
}

grammar__ast_node *grammar__ast_class(grammar__nfa *g, const grammar__cps *r, size_t n,
                                      bool negated)
{
    grammar__ast_node *x = grammar__ast_new(g, AST_CLASS);
    grammar__cps *own = x ? ht_arena_array(g->arena, n + 2, sizeof *own) : NULL;
    grammar__cps *norm = own ? ht_arena_array(g->arena, n + 1, sizeof *norm) : NULL;
    if (!norm) {
        grammar__fail(g, HT_ENOMEM, "no memory for a character class");
        return NULL;
    }
    if (n) memcpy(norm, r, n * sizeof *norm);
    n = grammar__cps_norm(norm, n);
    x->cps = norm;
    x->n = n;
    if (negated) {
        x->n = grammar__cps_not(norm, n, own);
        x->cps = own;
    }
    return x;
}

void grammar__ast_add(grammar__ast_node *parent, grammar__ast_node *child)
{
    if (!parent || !child) return;
    child->next = parent->child;
    parent->child = child;
}

static uint32_t emit_repeat(grammar__nfa *g, const grammar__ast_node *x, bool in_json,
                            uint32_t next)
{
    if (x->max == 0) return next;
    if (x->max == 1) {
        const uint32_t one = grammar__ast_emit(g, x->child, in_json, next);
        return x->min ? one : grammar__alt(g, one, next);
    }
    if (x->max == G_INF && x->min <= 1) {
        const uint32_t loop = grammar__loop_open(g);
        const uint32_t body = grammar__ast_emit(g, x->child, in_json, loop);
        grammar__loop_close(g, loop, body, next);
        return x->min ? body : loop;
    }
    if (x->child->kind == AST_RULE) return grammar__repeat(g, x->child->rule, x->min, x->max, next);
    const uint32_t rule = grammar__rule_new(g, "a repeated part");
    grammar__rule_set(g, rule, grammar__ast_emit(g, x->child, in_json, 0));
    return grammar__repeat(g, rule, x->min, x->max, next);
}

uint32_t grammar__ast_emit(grammar__nfa *g, const grammar__ast_node *x, bool in_json, uint32_t next)
{
    uint32_t at = next;
    if (!x || !grammar__ok(g)) return 0;
    switch (x->kind) {
    case AST_EMPTY: return next;
    case AST_CLASS:
        return in_json ? grammar__json_class(g, x->cps, x->n, next)
                       : grammar__codepoint(g, x->cps, x->n, next);
    case AST_LIT: return grammar__lit(g, x->s, x->n, next);
    case AST_RULE: return grammar__call(g, x->rule, false, next);
    case AST_REPEAT: return emit_repeat(g, x, in_json, next);
    case AST_CAT:
        for (const grammar__ast_node *c = x->child; c; c = c->next)
            at = grammar__ast_emit(g, c, in_json, at);
        return at;
    case AST_ALT:
        at = grammar__ast_emit(g, x->child, in_json, next);
        for (const grammar__ast_node *c = x->child ? x->child->next : NULL; c; c = c->next)
            at = grammar__alt(g, grammar__ast_emit(g, c, in_json, next), at);
        return at;
    }
    return 0;
}
