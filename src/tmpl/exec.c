/* exec.c - statements: output, if, for (with its loop object), set, macros and the blocks that
 * capture text. Scopes are as Jinja compiles them: a loop body, a macro and a capturing block each
 * have their own, `if` has none; a macro sees the scope it was defined in, at call time.
 * Neighbours: eval.c (expressions), render.c (entry). */
#include "tmpl/eval.h"
#include <string.h>

/* ---- assignment ------------------------------------------------------------------------------ */

static int assign(tctx *cx, const tnode *target, tval v)
{
    if (target->kind == N_NAME) return tmpl__bind_var(cx, target->name, v);
    if (target->kind == N_NSREF) {
        tval ns, key;
        HT_TRY(tmpl__lookup(cx, target->name, &ns));
        if (ns.t != TV_NS)
            return T_TYPE(cx, "'%.40s' is a %s: attributes can be set on a namespace only",
                          target->name->p, tmpl__type_name(ns));
        HT_TRY(tmpl__str_new(cx, target->attr->p, target->attr->n, false, &key));
        return tmpl__dict_set(cx, ns.u.o, key, v);
    }
    tlist *items;
    HT_TRY(tmpl__collect(cx, v, &items));
    if (items->n != target->n_kid)
        return T_TYPE(cx, "%zu values for %u names", items->n, target->n_kid);
    for (uint32_t i = 0; i < target->n_kid; i++) HT_TRY(assign(cx, target->kid[i], items->at[i]));
    return 0;
}

/* Run a body with its output going to a string of its own. */
static int capture(tctx *cx, const tnode *body, tval *out)
{
    tsb mine = {0}, *was = cx->out;
    cx->out = &mine;
    HT_TRY(tmpl__exec(cx, body));
    cx->out = was;
    return tmpl__sb_done(cx, &mine, out);
}

static int capture_scoped(tctx *cx, const tnode *body, tval *out)
{
    HT_TRY(tmpl__push_scope(cx));
    HT_TRY(capture(cx, body, out));
    tmpl__pop_scope(cx);
    return 0;
}

/* ---- loops ----------------------------------------------------------------------------------- */

/* Items are filtered when they are reached, as Jinja does (a condition may depend on what the body
 * did); looking ahead for loop.last or loop.length filters early, into the queue. */
struct tloop {
    const tnode *node;
    tscope *scope; /* around the loop: for its condition, and when it recurses   */
    const tlist *src;
    size_t next; /* a list is read live, so the body may append to it          */
    tlist *queue;
    size_t q_at;
    int64_t index0;
    unsigned depth0;
    bool has_prev, has_seen;
    tval prev, cur, seen; /* seen: what loop.changed() saw last                         */
};

/* The next item that passes the condition, from the source. */
static int pull(tctx *cx, tloop *lp, tval *out, bool *got)
{
    tscope *was = cx->scope;
    *got = false;
    while (!*got && lp->next < lp->src->n) {
        *out = lp->src->at[lp->next++];
        *got = true;
        HT_TRY(tmpl__cost(cx, 1));
        if (!lp->node->c) continue;
        tval cond;
        cx->scope = lp->scope;
        HT_TRY(tmpl__push_scope(cx));
        HT_TRY(assign(cx, lp->node->a, *out));
        HT_TRY(tmpl__eval(cx, lp->node->c, &cond));
        HT_TRY(tmpl__truth(cx, cond, got));
        cx->scope = was;
    }
    return 0;
}

/* Make sure that n items are queued, if there are so many. */
static int look_ahead(tctx *cx, tloop *lp, size_t n, size_t *have)
{
    bool got = true;
    while (got && lp->queue->n - lp->q_at < n) {
        tval v;
        HT_TRY(pull(cx, lp, &v, &got));
        if (got) HT_TRY(tmpl__list_push(cx, lp->queue, v));
    }
    *have = lp->queue->n - lp->q_at;
    return 0;
}

static int advance(tctx *cx, tloop *lp, tval *out, bool *got)
{
    if (lp->q_at < lp->queue->n) {
        *out = lp->queue->at[lp->q_at++];
        *got = true;
        return 0;
    }
    return pull(cx, lp, out, got);
}

static int loop_cycle(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    (void)p;
    if (!call->n_arg) return T_TYPE(cx, "loop.cycle() without items");
    *out = call->arg[(uint64_t)self.u.loop->index0 % call->n_arg];
    return 0;
}

static int loop_changed(tctx *cx, tval self, const tcall *call, const tval *p, tval *out)
{
    tloop *lp = self.u.loop;
    tlist *now;
    bool same = false;
    (void)p;
    HT_TRY(tmpl__list_new(cx, call->n_arg, &now));
    for (size_t i = 0; i < call->n_arg; i++) HT_TRY(tmpl__list_push(cx, now, call->arg[i]));
    if (lp->has_seen) HT_TRY(tmpl__equal(cx, lp->seen, tmpl__of_tuple(now), &same));
    lp->seen = tmpl__of_tuple(now);
    lp->has_seen = true;
    *out = tmpl__bool(!same);
    return 0;
}

static int loop_method(tctx *cx, tloop *lp, const tbuiltin *fn, tval *out)
{
    tmethod *m;
    T_NEW(cx, m, 1);
    m->self = (tval){.t = TV_LOOP, .u.loop = lp};
    m->fn = fn;
    *out = (tval){.t = TV_METHOD, .u.method = m};
    return 0;
}

enum {
    L_INDEX,
    L_INDEX0,
    L_REVINDEX,
    L_REVINDEX0,
    L_FIRST,
    L_LAST,
    L_LENGTH,
    L_PREV,
    L_NEXT,
    L_DEPTH,
    L_DEPTH0,
    L_CYCLE,
    L_CHANGED,
    L_NONE
};

int tmpl__loop_attr(tctx *cx, tloop *lp, const char *p, size_t n, tval *out, bool *found)
{
    static const char *const names[] = {"index",  "index0", "revindex", "revindex0", "first",
                                        "last",   "length", "previtem", "nextitem",  "depth",
                                        "depth0", "cycle",  "changed"};
    static const tbuiltin cycle = {.name = "cycle", .fn = loop_cycle, .variadic = true};
    static const tbuiltin changed = {.name = "changed", .fn = loop_changed, .variadic = true};
    size_t ahead = 0;
    int which = 0;
    while (which < L_NONE && (strlen(names[which]) != n || memcmp(names[which], p, n) != 0))
        which++;
    *found = which != L_NONE;
    if (which == L_LAST || which == L_NEXT) HT_TRY(look_ahead(cx, lp, 1, &ahead));
    if (which == L_LENGTH || which == L_REVINDEX || which == L_REVINDEX0)
        HT_TRY(look_ahead(cx, lp, SIZE_MAX, &ahead));
    int64_t left = (int64_t)ahead;
    switch (which) {
    case L_INDEX: *out = tmpl__int(lp->index0 + 1); break;
    case L_INDEX0: *out = tmpl__int(lp->index0); break;
    case L_REVINDEX: *out = tmpl__int(left + 1); break;
    case L_REVINDEX0: *out = tmpl__int(left); break;
    case L_FIRST: *out = tmpl__bool(lp->index0 == 0); break;
    case L_LAST: *out = tmpl__bool(left == 0); break;
    case L_LENGTH: *out = tmpl__int(lp->index0 + 1 + left); break;
    case L_PREV: *out = lp->has_prev ? lp->prev : tmpl__undef("there is no previous item"); break;
    case L_NEXT:
        *out = left ? lp->queue->at[lp->q_at] : tmpl__undef("there is no next item");
        break;
    case L_DEPTH: *out = tmpl__int(lp->depth0 + 1); break;
    case L_DEPTH0: *out = tmpl__int(lp->depth0); break;
    case L_CYCLE: return loop_method(cx, lp, &cycle, out);
    case L_CHANGED: return loop_method(cx, lp, &changed, out);
    default: break;
    }
    return 0;
}

static int run_loop(tctx *cx, const tnode *nd, tval iterable, unsigned depth0)
{
    tloop *lp;
    tlist *items;
    bool got, any = false;
    T_NEW(cx, lp, 1);
    lp->node = nd;
    lp->scope = cx->scope;
    lp->depth0 = depth0;
    if (iterable.t == TV_LIST) {
        lp->src = iterable.u.l;
    } else {
        HT_TRY(tmpl__collect(cx, iterable, &items));
        lp->src = items;
    }
    HT_TRY(tmpl__list_new(cx, 0, &lp->queue));
    for (lp->index0 = 0;; lp->index0++) {
        tval v;
        HT_TRY(advance(cx, lp, &v, &got));
        if (!got) break;
        any = true;
        lp->prev = lp->cur;
        lp->has_prev = lp->index0 > 0;
        lp->cur = v;
        HT_TRY(tmpl__push_scope(cx));
        HT_TRY(tmpl__bind_var(cx, cx->tmpl->loop, (tval){.t = TV_LOOP, .u.loop = lp}));
        HT_TRY(assign(cx, nd->a, v));
        HT_TRY(tmpl__exec(cx, nd->kid[0]));
        tmpl__pop_scope(cx);
        bool stop = cx->signal == SIGNAL_BREAK;
        cx->signal = SIGNAL_NONE;
        if (stop) return 0;
    }
    if (any || !nd->kid[1]) return 0;
    HT_TRY(tmpl__push_scope(cx));
    HT_TRY(tmpl__exec(cx, nd->kid[1]));
    tmpl__pop_scope(cx);
    return 0;
}

int tmpl__loop_call(tctx *cx, tloop *lp, const tcall *call, tval *out)
{
    tscope *was_scope = cx->scope;
    tsb mine = {0}, *was_out = cx->out;
    if (!lp->node->op) return T_TYPE(cx, "loop(...) needs a loop marked 'recursive'");
    if (call->n_arg != 1 || call->n_kw) return T_TYPE(cx, "loop(...) takes one iterable");
    cx->scope = lp->scope;
    cx->out = &mine;
    HT_TRY(run_loop(cx, lp->node, call->arg[0], lp->depth0 + 1));
    cx->out = was_out;
    cx->scope = was_scope;
    return tmpl__sb_done(cx, &mine, out);
}

static int exec_for(tctx *cx, const tnode *nd)
{
    tval iterable;
    HT_TRY(tmpl__eval(cx, nd->b, &iterable));
    return run_loop(cx, nd, iterable, 0);
}

/* ---- macros ---------------------------------------------------------------------------------- */

static size_t find_kw(const tcall *call, const tname *name)
{
    size_t i = 0;
    while (i < call->n_kw && call->kw[i] != name) i++;
    return i;
}

/* The keyword arguments nobody took: an error, or the macro's `kwargs`. */
static int rest_kwargs(tctx *cx, const tnode *nd, const tcall *call, const bool *used)
{
    tdict *o;
    HT_TRY(tmpl__dict_new(cx, 0, &o));
    for (size_t i = 0; i < call->n_kw; i++) {
        tval key;
        if (used[i]) continue;
        if (!(nd->op & MACRO_KWARGS))
            return T_TYPE(cx, "macro '%.40s' takes no keyword argument '%.40s'",
                          nd->name ? nd->name->p : "caller", call->kw[i]->p);
        HT_TRY(tmpl__str_new(cx, call->kw[i]->p, call->kw[i]->n, false, &key));
        HT_TRY(tmpl__dict_set(cx, o, key, call->kwv[i]));
    }
    if (!(nd->op & MACRO_KWARGS)) return 0;
    return tmpl__bind_var(cx, cx->tmpl->kwargs, tmpl__of_dict(o));
}

static int rest_args(tctx *cx, const tnode *nd, const tcall *call)
{
    tlist *l;
    if (!(nd->op & MACRO_VARARGS)) {
        if (call->n_arg <= nd->n_kid) return 0;
        return T_TYPE(cx, "macro '%.40s' takes at most %u arguments, not %zu",
                      nd->name ? nd->name->p : "caller", nd->n_kid, call->n_arg);
    }
    HT_TRY(tmpl__list_new(cx, 0, &l));
    for (size_t i = nd->n_kid; i < call->n_arg; i++) HT_TRY(tmpl__list_push(cx, l, call->arg[i]));
    return tmpl__bind_var(cx, cx->tmpl->varargs, tmpl__of_tuple(l));
}

static int bind_params(tctx *cx, const tnode *nd, const tcall *call)
{
    bool *used, has_caller = false;
    T_NEW(cx, used, call->n_kw + 1);
    for (uint32_t i = 0; i < nd->n_kid; i++) {
        const tnode *param = nd->kid[i];
        tval v = {0};
        size_t k = i < call->n_arg ? call->n_kw : find_kw(call, param->name);
        if (i < call->n_arg) v = call->arg[i];
        if (k < call->n_kw) {
            v = call->kwv[k];
            used[k] = true;
        }
        if (v.t == TV_MISSING && param->a) HT_TRY(tmpl__eval(cx, param->a, &v));
        if (v.t == TV_MISSING) v = tmpl__undef("the macro's argument was not given");
        HT_TRY(tmpl__bind_var(cx, param->name, v));
        has_caller = has_caller || param->name == cx->tmpl->caller;
    }
    if ((nd->op & MACRO_CALLER) && nd->kind == N_MACRO && !has_caller) {
        size_t k = find_kw(call, cx->tmpl->caller);
        if (k < call->n_kw) used[k] = true;
        HT_TRY(tmpl__bind_var(cx, cx->tmpl->caller,
                              k < call->n_kw ? call->kwv[k] : tmpl__undef("No caller defined")));
    }
    HT_TRY(rest_kwargs(cx, nd, call, used));
    return rest_args(cx, nd, call);
}

int tmpl__macro_call(tctx *cx, const tmacro *m, const tcall *call, tval *out)
{
    tscope *was = cx->scope;
    cx->scope = m->scope;
    HT_TRY(tmpl__push_scope(cx));
    HT_TRY(bind_params(cx, m->node, call));
    HT_TRY(capture(cx, m->node->c, out));
    cx->scope = was;
    return 0;
}

static int make_macro(tctx *cx, const tnode *nd, tval *out)
{
    tmacro *m;
    T_NEW(cx, m, 1);
    m->node = nd;
    m->scope = cx->scope;
    *out = (tval){.t = TV_MACRO, .u.macro = m};
    return 0;
}

static int exec_macro(tctx *cx, const tnode *nd)
{
    tval m;
    HT_TRY(make_macro(cx, nd, &m));
    return tmpl__bind_var(cx, nd->name, m);
}

/* {% call(x) f(1) %}body{% endcall %}: f(1, caller=the body as a macro). */
static int exec_call_block(tctx *cx, const tnode *nd)
{
    const tnode *call = nd->a;
    tval fn, caller, text, *arg, *kwv;
    const tname **kw;
    size_t n_arg = 0, n_kw = 0;
    HT_TRY(make_macro(cx, nd, &caller));
    HT_TRY(tmpl__eval(cx, call->a, &fn));
    T_NEW(cx, arg, call->n_kid + 1);
    T_NEW(cx, kwv, call->n_kid + 1);
    T_NEW(cx, kw, call->n_kid + 1);
    for (uint32_t i = 0; i < call->n_kid; i++) {
        tval v;
        HT_TRY(tmpl__eval(cx, call->kid[i], &v));
        if (call->kw[i]) {
            kw[n_kw] = call->kw[i];
            kwv[n_kw++] = v;
        } else {
            arg[n_arg++] = v;
        }
    }
    kw[n_kw] = cx->tmpl->caller;
    kwv[n_kw++] = caller;
    const tcall with = {.arg = arg, .n_arg = n_arg, .kw = kw, .kwv = kwv, .n_kw = n_kw};
    HT_TRY(tmpl__call_value(cx, fn, &with, &text));
    return tmpl__write_str(cx, cx->out, text);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static int exec_if(tctx *cx, const tnode *nd)
{
    for (uint32_t i = 0; i + 1 < nd->n_kid; i += 2) {
        tval cond;
        bool truth;
        HT_TRY(tmpl__eval(cx, nd->kid[i], &cond));
        HT_TRY(tmpl__truth(cx, cond, &truth));
        if (truth) return tmpl__exec(cx, nd->kid[i + 1]);
    }
    return nd->c ? tmpl__exec(cx, nd->c) : 0;
}

static int exec_body(tctx *cx, const tnode *nd)
{
    for (uint32_t i = 0; i < nd->n_kid && cx->signal == SIGNAL_NONE; i++)
        HT_TRY(tmpl__exec(cx, nd->kid[i]));
    return 0;
}

static int exec_set(tctx *cx, const tnode *nd)
{
    tval v;
    HT_TRY(tmpl__eval(cx, nd->b, &v));
    return assign(cx, nd->a, v);
}

static int exec_set_block(tctx *cx, const tnode *nd)
{
    tval v, filtered;
    HT_TRY(capture_scoped(cx, nd->c, &v));
    if (cx->signal != SIGNAL_NONE) return 0;
    if (nd->b) {
        HT_TRY(tmpl__filter_chain(cx, nd->b, v, &filtered));
        v = filtered;
    }
    return assign(cx, nd->a, v);
}

static int exec_filter_block(tctx *cx, const tnode *nd)
{
    tval v, filtered;
    HT_TRY(capture_scoped(cx, nd->c, &v));
    if (cx->signal != SIGNAL_NONE) return 0;
    HT_TRY(tmpl__filter_chain(cx, nd->b, v, &filtered));
    return tmpl__write_str(cx, cx->out, filtered);
}

static int exec_with(tctx *cx, const tnode *nd)
{
    tval *v;
    T_NEW(cx, v, nd->n_kid / 2 + 1);
    for (uint32_t i = 0; i + 1 < nd->n_kid; i += 2) /* values see the outer scope only */
        HT_TRY(tmpl__eval(cx, nd->kid[i + 1], &v[i / 2]));
    HT_TRY(tmpl__push_scope(cx));
    for (uint32_t i = 0; i + 1 < nd->n_kid; i += 2) HT_TRY(assign(cx, nd->kid[i], v[i / 2]));
    HT_TRY(tmpl__exec(cx, nd->c));
    tmpl__pop_scope(cx);
    return 0;
}

static int exec_print(tctx *cx, const tnode *nd)
{
    tval v;
    HT_TRY(tmpl__eval(cx, nd->a, &v));
    return tmpl__write_str(cx, cx->out, v);
}

static int exec_scope(tctx *cx, const tnode *nd)
{
    HT_TRY(tmpl__push_scope(cx));
    HT_TRY(tmpl__exec(cx, nd->c));
    tmpl__pop_scope(cx);
    return 0;
}

static int dispatch(tctx *cx, const tnode *nd)
{
    switch (nd->kind) {
    case N_TEXT: return tmpl__sb_val(cx, cx->out, nd->val);
    case N_PRINT: return exec_print(cx, nd);
    case N_BODY: return exec_body(cx, nd);
    case N_IF: return exec_if(cx, nd);
    case N_FOR: return exec_for(cx, nd);
    case N_SET: return exec_set(cx, nd);
    case N_SETBLOCK: return exec_set_block(cx, nd);
    case N_MACRO: return exec_macro(cx, nd);
    case N_CALLBLOCK: return exec_call_block(cx, nd);
    case N_FILTERBLOCK: return exec_filter_block(cx, nd);
    case N_WITH: return exec_with(cx, nd);
    case N_SCOPE: return exec_scope(cx, nd);
    default: cx->signal = nd->kind == N_BREAK ? SIGNAL_BREAK : SIGNAL_CONTINUE; return 0;
    }
}

int tmpl__exec(tctx *cx, const tnode *nd)
{
    const tnode *was = cx->at;
    cx->at = nd;
    if (cx->depth >= TMPL_MAX_DEPTH)
        return T_FAIL(cx, HT_ENOMEM, "recursion deeper than %d levels", TMPL_MAX_DEPTH);
    HT_TRY(tmpl__cost(cx, 1));
    cx->depth++;
    HT_TRY(dispatch(cx, nd));
    cx->depth--;
    cx->at = was;
    return 0;
}
