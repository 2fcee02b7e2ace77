/* eval.c - evaluation of expressions, and the budgets. Every node costs a step and a level of
 * depth, so neither loops nor recursion run away. Neighbours: exec.c (statements), value.c and
 * number.c (semantics), access.c, filter.c, test.c, method.c. */
#include "tmpl/eval.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- budgets and errors ---------------------------------------------------------------------- */

int tmpl__fail(tctx *cx, int code, const char *where, const char *fmt, ...)
{
    char what[180];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return ht_err_set(cx->err, code, where, "chat template, line %u column %u: %s%s",
                      cx->at ? cx->at->line : 0, cx->at ? cx->at->col : 0,
                      code == HT_EUNSUPPORTED ? "not supported: " : "", what);
}

void *tmpl__alloc(tctx *cx, size_t count, size_t size)
{
    size_t bytes, total;
    void *p = NULL;
    if (ht_mul_ok(count, size, &bytes) && ht_add_ok(cx->mem, bytes, &total) && total <= cx->max_mem)
        p = ht_arena_alloc(cx->arena, bytes);
    if (!p) {
        (void)T_FAIL(cx, HT_ENOMEM, "rendering needs more than %zu MiB of memory",
                     cx->max_mem >> 20);
        return NULL;
    }
    cx->mem = total + 16;
    return p;
}

int tmpl__cost(tctx *cx, uint64_t steps)
{
    if (steps > cx->max_steps - cx->steps)
        return T_FAIL(
            cx, HT_ENOMEM,
            "more than %llu steps: the template loops without end, or the conversation is too "
            "long for it",
            (unsigned long long)cx->max_steps);
    cx->steps += steps;
    return 0;
}

int tmpl__cost_bytes(tctx *cx, size_t n)
{
    return tmpl__cost(cx, n / TMPL_BYTES_PER_STEP);
}

/* ---- names ----------------------------------------------------------------------------------- */

int tmpl__push_scope(tctx *cx)
{
    tscope *s;
    T_NEW(cx, s, 1);
    s->up = cx->scope;
    cx->scope = s;
    return 0;
}

void tmpl__pop_scope(tctx *cx)
{
    cx->scope = cx->scope->up;
}

int tmpl__bind_var(tctx *cx, const tname *name, tval v)
{
    tvar *var = cx->scope->vars;
    size_t walked = 0;
    while (var && var->name != name) {
        var = var->next;
        walked++;
    }
    if (!var) {
        T_NEW(cx, var, 1);
        var->name = name;
        var->next = cx->scope->vars;
        cx->scope->vars = var;
    }
    var->v = v;
    return tmpl__cost(cx, walked / 8);
}

int tmpl__lookup(tctx *cx, const tname *name, tval *out)
{
    size_t walked = 0;
    bool found;
    for (const tscope *s = cx->scope; s; s = s->up) {
        for (const tvar *v = s->vars; v; v = v->next, walked++) {
            if (v->name != name) continue;
            *out = v->v;
            return tmpl__cost(cx, walked / 8);
        }
    }
    HT_TRY(tmpl__cost(cx, walked / 8));
    const tstr text = {.p = name->p, .n = name->n};
    tpair *pair;
    HT_TRY(tmpl__dict_find(cx, cx->vars, (tval){.t = TV_STR, .u.s = &text}, &pair));
    if (pair) {
        *out = pair->v;
        return 0;
    }
    HT_TRY(tmpl__global(cx, name, out, &found));
    return found ? 0 : tmpl__undef_name(cx, "'%.*s' is undefined", name->p, name->n, out);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Evaluate kid[] of a call, filter or test. */
static int eval_args(tctx *cx, const tnode *nd, tcall *out)
{
    tval *arg, *kwv;
    const tname **kw;
    size_t n_kw = 0, n_arg = 0;
    *out = (tcall){0};
    if (!nd->n_kid) return 0;
    T_NEW(cx, arg, nd->n_kid);
    T_NEW(cx, kwv, nd->n_kid);
    T_NEW(cx, kw, nd->n_kid);
    for (uint32_t i = 0; i < nd->n_kid; i++) {
        tval v;
        HT_TRY(tmpl__eval(cx, nd->kid[i], &v));
        if (nd->kw[i]) {
            kw[n_kw] = nd->kw[i];
            kwv[n_kw++] = v;
        } else {
            arg[n_arg++] = v;
        }
    }
    *out = (tcall){.arg = arg, .n_arg = n_arg, .kw = kw, .kwv = kwv, .n_kw = n_kw};
    return 0;
}

static int bind_keywords(tctx *cx, const tbuiltin *fn, const char *what, const tcall *call,
                         tval p[CALL_MAX_PARAMS])
{
    for (size_t k = 0; k < call->n_kw; k++) {
        size_t i = 0;
        while (i < CALL_MAX_PARAMS && fn->params[i] &&
               (strlen(fn->params[i]) != call->kw[k]->n ||
                memcmp(fn->params[i], call->kw[k]->p, call->kw[k]->n) != 0))
            i++;
        if (i == CALL_MAX_PARAMS || !fn->params[i])
            return T_TYPE(cx, "%s '%s' has no parameter '%.40s'", what, fn->name, call->kw[k]->p);
        if (p[i].t != TV_MISSING)
            return T_TYPE(cx, "%s '%s': two values for '%s'", what, fn->name, fn->params[i]);
        p[i] = call->kwv[k];
    }
    return 0;
}

static int invoke(tctx *cx, const tbuiltin *fn, const char *what, tval self, const tcall *call,
                  tval *out)
{
    tval p[CALL_MAX_PARAMS] = {{0}};
    size_t n = 0;
    HT_TRY(tmpl__cost(cx, 1));
    if (fn->variadic) return fn->fn(cx, self, call, p, out);
    while (n < CALL_MAX_PARAMS && fn->params[n]) n++;
    if (call->n_arg > n)
        return T_TYPE(cx, "%s '%s' takes at most %zu arguments, not %zu", what, fn->name, n,
                      call->n_arg);
    for (size_t i = 0; i < call->n_arg; i++) p[i] = call->arg[i];
    HT_TRY(bind_keywords(cx, fn, what, call, p));
    for (size_t i = 0; i < fn->required; i++) {
        if (p[i].t == TV_MISSING)
            return T_TYPE(cx, "%s '%s' needs the argument '%s'", what, fn->name, fn->params[i]);
    }
    return fn->fn(cx, self, call, p, out);
}

int tmpl__invoke(tctx *cx, const tbuiltin *fn, const char *what, tval self, const tcall *call,
                 tval *out)
{
    HT_TRY(invoke(cx, fn, what, self, call, out));
    if (self.safe && out->t == TV_STR && !fn->plain) out->safe = true;
    return 0;
}

int tmpl__call_value(tctx *cx, tval fn, const tcall *call, tval *out)
{
    switch (fn.t) {
    case TV_MACRO: return tmpl__macro_call(cx, fn.u.macro, call, out);
    case TV_METHOD:
        return tmpl__invoke(cx, fn.u.method->fn, "method", fn.u.method->self, call, out);
    case TV_FUNC: return tmpl__invoke(cx, &fn.u.func->b, "function", tmpl__none(), call, out);
    case TV_LOOP: return tmpl__loop_call(cx, fn.u.loop, call, out);
    case TV_UNDEF:
        return T_TYPE(cx, "calling an undefined value%s%s", fn.u.hint ? ": " : "",
                      fn.u.hint ? fn.u.hint : "");
    default: return T_TYPE(cx, "a %s cannot be called", tmpl__type_name(fn));
    }
}

static int eval_call(tctx *cx, const tnode *nd, tval *out)
{
    tval fn;
    tcall call;
    HT_TRY(tmpl__eval(cx, nd->a, &fn));
    HT_TRY(eval_args(cx, nd, &call));
    return tmpl__call_value(cx, fn, &call, out);
}

/* in: the value for the innermost filter of a block's chain, whose node has no input of its own. */
static int eval_filter(tctx *cx, const tnode *nd, const tval *in, tval *out)
{
    tval v;
    tcall call;
    if (nd->a && nd->a->kind == N_FILTER && in) {
        HT_TRY(tmpl__filter_chain(cx, nd->a, *in, &v));
    } else if (nd->a) {
        HT_TRY(tmpl__eval(cx, nd->a, &v));
    } else {
        v = in ? *in : tmpl__undef(NULL);
    }
    HT_TRY(eval_args(cx, nd, &call));
    return tmpl__invoke(cx, nd->impl, "filter", v, &call, out);
}

int tmpl__filter_chain(tctx *cx, const tnode *nd, tval in, tval *out)
{
    const tnode *was = cx->at;
    cx->at = nd;
    HT_TRY(eval_filter(cx, nd, &in, out));
    cx->at = was;
    return 0;
}

static int eval_test(tctx *cx, const tnode *nd, tval *out)
{
    tval v;
    tcall call;
    HT_TRY(tmpl__eval(cx, nd->a, &v));
    HT_TRY(eval_args(cx, nd, &call));
    return tmpl__invoke(cx, nd->impl, "test", v, &call, out);
}

/* ---- operators ------------------------------------------------------------------------------- */

static int eval_truth(tctx *cx, const tnode *nd, bool *out)
{
    tval v;
    HT_TRY(tmpl__eval(cx, nd, &v));
    return tmpl__truth(cx, v, out);
}

/* "and" and "or" give the operand that decided, not a boolean. */
static int eval_logic(tctx *cx, const tnode *nd, tval *out)
{
    bool truth;
    HT_TRY(tmpl__eval(cx, nd->a, out));
    HT_TRY(tmpl__truth(cx, *out, &truth));
    return truth == (nd->kind == N_AND) ? tmpl__eval(cx, nd->b, out) : 0;
}

static int compare_one(tctx *cx, int op, tval a, tval b, bool *out)
{
    if (op == OP_EQ || op == OP_NE) {
        HT_TRY(tmpl__equal(cx, a, b, out));
        if (op == OP_NE) *out = !*out;
        return 0;
    }
    if (op == OP_IN || op == OP_NOTIN) {
        HT_TRY(tmpl__contains(cx, b, a, out));
        if (op == OP_NOTIN) *out = !*out;
        return 0;
    }
    return tmpl__order(cx, op, a, b, out);
}

static int eval_compare(tctx *cx, const tnode *nd, tval *out)
{
    tval left, right;
    bool truth = true;
    HT_TRY(tmpl__eval(cx, nd->a, &left));
    for (uint32_t i = 0; truth && i < nd->n_kid; i++) {
        HT_TRY(tmpl__eval(cx, nd->kid[i], &right));
        HT_TRY(compare_one(cx, nd->opv[i], left, right, &truth));
        left = right;
    }
    *out = tmpl__bool(truth);
    return 0;
}

static int eval_sign(tctx *cx, const tnode *nd, tval *out)
{
    tval v;
    HT_TRY(tmpl__eval(cx, nd->a, &v));
    if (v.t == TV_UNDEF || !tmpl__is_number(v))
        return T_TYPE(cx, "sign in front of a %s", tmpl__type_name(v));
    if (v.t == TV_FLOAT) {
        *out = tmpl__float(nd->kind == N_NEG ? -v.u.d : v.u.d);
    } else if (nd->kind == N_NEG) {
        HT_TRY(tmpl__binary(cx, OP_SUB, tmpl__int(0), tmpl__int(tmpl__as_int(v)), out));
    } else {
        *out = tmpl__int(tmpl__as_int(v));
    }
    out->in = v.in;
    return 0;
}

static int eval_concat(tctx *cx, const tnode *nd, tval *out)
{
    tsb b = {0};
    tval prev = {0}, v;
    bool safe = false;
    for (uint32_t i = 0; i < nd->n_kid; i++) {
        HT_TRY(tmpl__eval(cx, nd->kid[i], &v));
        if (i) HT_TRY(tmpl__markup_ok(cx, prev, v));
        HT_TRY(tmpl__write_str(cx, &b, v));
        safe = safe || v.safe;
        prev = v;
        prev.safe = safe;
    }
    HT_TRY(tmpl__sb_done(cx, &b, out));
    out->safe = safe;
    return 0;
}

static int eval_binary(tctx *cx, const tnode *nd, tval *out)
{
    tval a, b;
    HT_TRY(tmpl__eval(cx, nd->a, &a));
    HT_TRY(tmpl__eval(cx, nd->b, &b));
    return tmpl__binary(cx, nd->op, a, b, out);
}

static int eval_cond(tctx *cx, const tnode *nd, tval *out)
{
    bool truth;
    HT_TRY(eval_truth(cx, nd->b, &truth));
    if (truth) return tmpl__eval(cx, nd->a, out);
    if (nd->c) return tmpl__eval(cx, nd->c, out);
    *out = tmpl__undef("the inline if has no else");
    return 0;
}

/* ---- containers ------------------------------------------------------------------------------ */

static int eval_list(tctx *cx, const tnode *nd, tval *out)
{
    tlist *l;
    HT_TRY(tmpl__list_new(cx, nd->n_kid, &l));
    for (uint32_t i = 0; i < nd->n_kid; i++) {
        tval v;
        HT_TRY(tmpl__eval(cx, nd->kid[i], &v));
        HT_TRY(tmpl__list_push(cx, l, v));
    }
    *out = nd->kind == N_TUPLE ? tmpl__of_tuple(l) : tmpl__of_list(l);
    return 0;
}

static int eval_dict(tctx *cx, const tnode *nd, tval *out)
{
    tdict *o;
    HT_TRY(tmpl__dict_new(cx, nd->n_kid / 2, &o));
    for (uint32_t i = 0; i + 1 < nd->n_kid; i += 2) {
        tval k, v;
        HT_TRY(tmpl__eval(cx, nd->kid[i], &k));
        HT_TRY(tmpl__eval(cx, nd->kid[i + 1], &v));
        HT_TRY(tmpl__dict_set(cx, o, k, v));
    }
    *out = tmpl__of_dict(o);
    return 0;
}

static int eval_subscript(tctx *cx, const tnode *nd, tval base, tval *out)
{
    tval key;
    if (nd->b->kind != N_SLICE) {
        HT_TRY(tmpl__eval(cx, nd->b, &key));
        return tmpl__item(cx, base, key, out);
    }
    tval bound[3] = {{0}};
    const tnode *part[3] = {nd->b->a, nd->b->b, nd->b->c};
    for (int i = 0; i < 3; i++) {
        if (part[i]) HT_TRY(tmpl__eval(cx, part[i], &bound[i]));
    }
    return tmpl__slice(cx, base, bound, out);
}

static int eval_item(tctx *cx, const tnode *nd, tval *out)
{
    tval base;
    HT_TRY(tmpl__eval(cx, nd->a, &base));
    HT_TRY(eval_subscript(cx, nd, base, out));
    if (base.safe && out->t == TV_STR) out->safe = true;
    return 0;
}

static int eval_attr(tctx *cx, const tnode *nd, tval *out)
{
    tval base;
    HT_TRY(tmpl__eval(cx, nd->a, &base));
    return tmpl__attr(cx, base, nd->name->p, nd->name->n, out);
}

static int eval_not(tctx *cx, const tnode *nd, tval *out)
{
    bool truth;
    HT_TRY(eval_truth(cx, nd->a, &truth));
    *out = tmpl__bool(!truth);
    return 0;
}

static int dispatch(tctx *cx, const tnode *nd, tval *out)
{
    switch (nd->kind) {
    case N_CONST: *out = nd->val; return 0;
    case N_NAME: return tmpl__lookup(cx, nd->name, out);
    case N_LIST:
    case N_TUPLE: return eval_list(cx, nd, out);
    case N_DICT: return eval_dict(cx, nd, out);
    case N_ATTR: return eval_attr(cx, nd, out);
    case N_ITEM: return eval_item(cx, nd, out);
    case N_CALL: return eval_call(cx, nd, out);
    case N_FILTER: return eval_filter(cx, nd, NULL, out);
    case N_TEST: return eval_test(cx, nd, out);
    case N_NOT: return eval_not(cx, nd, out);
    case N_NEG:
    case N_POS: return eval_sign(cx, nd, out);
    case N_BIN: return eval_binary(cx, nd, out);
    case N_AND:
    case N_OR: return eval_logic(cx, nd, out);
    case N_COMPARE: return eval_compare(cx, nd, out);
    case N_CONCAT: return eval_concat(cx, nd, out);
    case N_COND: return eval_cond(cx, nd, out);
    default: return T_FAIL(cx, HT_EUNSUPPORTED, "this expression");
    }
}

int tmpl__eval(tctx *cx, const tnode *nd, tval *out)
{
    const tnode *was = cx->at;
    cx->at = nd;
    if (cx->depth >= TMPL_MAX_DEPTH)
        return T_FAIL(cx, HT_ENOMEM, "recursion deeper than %d levels", TMPL_MAX_DEPTH);
    HT_TRY(tmpl__cost(cx, 1));
    cx->depth++;
    *out = (tval){0};
    HT_TRY(dispatch(cx, nd, out));
    cx->depth--;
    cx->at = was;
    return 0;
}
