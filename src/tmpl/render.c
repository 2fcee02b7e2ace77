/* render.c - entry of rendering: the caller's data become variables, the tree runs, and the text
 * comes back with its runs of provenance.
 *
 * What counts as input: every string and number of messages, tools, documents and kwargs - except a
 * message's role when it is one of the known words. Templates build control tokens from it
 * ("<|" + role + "|>"), and a word of that list cannot smuggle anything in. bos and eos are the
 * model's own. Neighbours: exec.c, jsonval.c, tmpl.h. */
#include "tmpl/eval.h"
#include <string.h>

static const size_t DEFAULT_OUTPUT = (size_t)64 << 20;
static const uint64_t DEFAULT_STEPS = 10000000;

static int set_var(tctx *cx, const char *name, tval v)
{
    tval key;
    HT_TRY(tmpl__str_new(cx, name, strlen(name), false, &key));
    return tmpl__dict_set(cx, cx->vars, key, v);
}

static int set_text(tctx *cx, const char *name, const char *text)
{
    tval v;
    if (!text) text = "";
    HT_TRY(tmpl__str_new(cx, text, strlen(text), false, &v));
    return set_var(cx, name, v);
}

/* What the caller does not give is undefined, not none: some published templates iterate over
 * `tools` without asking. */
static int set_json(tctx *cx, const char *name, const ht_json *j, tval *out)
{
    if (!j) return 0;
    HT_TRY(tmpl__from_json(cx, j, true, out));
    return set_var(cx, name, *out);
}

static bool known_role(const tstr *s)
{
    static const char *const roles[] = {"system",       "user",         "assistant", "tool",
                                        "developer",    "function",     "ipython",   "model",
                                        "tool_results", "tool_response"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (tmpl__str_is(s, roles[i])) return true;
    }
    return false;
}

static int clear_roles(tctx *cx, tval messages)
{
    if (messages.t != TV_LIST) return 0;
    for (size_t i = 0; i < messages.u.l->n; i++) {
        tval m = messages.u.l->at[i];
        for (size_t k = 0; m.t == TV_DICT && k < m.u.o->n; k++) {
            tpair *p = &m.u.o->at[k];
            if (!tmpl__str_is(p->k.u.s, "role") || p->v.t != TV_STR || !known_role(p->v.u.s))
                continue;
            HT_TRY(tmpl__str_new(cx, p->v.u.s->p, p->v.u.s->n, false, &p->v));
        }
    }
    return 0;
}

static int set_kwargs(tctx *cx, const ht_json *kwargs)
{
    static const char *const taken[] = {"messages", "tools", "documents", "add_generation_prompt"};
    if (!kwargs) return 0;
    if (kwargs->type != HT_JOBJ)
        return HT_FAIL(cx->err, HT_EARG, "chat template: kwargs must be a JSON object");
    for (size_t i = 0; i < kwargs->n; i++) {
        const ht_json *j = &kwargs->at[i];
        tval v;
        for (size_t k = 0; k < sizeof taken / sizeof *taken; k++) {
            if (strcmp(j->key, taken[k]) == 0)
                return HT_FAIL(cx->err, HT_EARG,
                               "chat template: kwargs must not hold '%s': it has its own argument",
                               taken[k]);
        }
        HT_TRY(tmpl__from_json(cx, j, true, &v));
        HT_TRY(set_var(cx, j->key, v));
    }
    return 0;
}

static int set_vars(tctx *cx, const ht_tmpl_args *args)
{
    tval messages, v;
    if (!args->messages || args->messages->type != HT_JARR)
        return HT_FAIL(cx->err, HT_EARG, "chat template: messages must be a JSON array");
    HT_TRY(tmpl__dict_new(cx, 8, &cx->vars));
    HT_TRY(set_json(cx, "messages", args->messages, &messages));
    HT_TRY(clear_roles(cx, messages));
    HT_TRY(set_json(cx, "tools", args->tools, &v));
    HT_TRY(set_json(cx, "documents", args->documents, &v));
    HT_TRY(set_var(cx, "add_generation_prompt", tmpl__bool(args->add_generation_prompt)));
    HT_TRY(set_text(cx, "bos_token", args->bos));
    HT_TRY(set_text(cx, "eos_token", args->eos));
    return set_kwargs(cx, args->kwargs);
}

/* End of the run of equal marks that starts at i. */
static size_t run_end(const tsb *b, size_t i)
{
    size_t j = i + 1;
    if (!b->m) return b->n;
    while (j < b->n && b->m[j] == b->m[i]) j++;
    return j;
}

static int make_segs(tctx *cx, const tsb *b, const char *text, ht_tmpl_seg **segs, size_t *n_segs)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n; i = run_end(b, i)) n++;
    *segs = ht_arena_array(cx->arena, n, sizeof **segs);
    if (!*segs) return HT_FAIL(cx->err, HT_ENOMEM, "chat template: no memory for %zu segments", n);
    *n_segs = 0;
    for (size_t i = 0; i < b->n;) {
        size_t j = run_end(b, i);
        bool in = b->m ? b->m[i] != 0 : b->in;
        (*segs)[(*n_segs)++] = (ht_tmpl_seg){.p = text + i, .n = j - i, .from_input = in};
        i = j;
    }
    return 0;
}

int ht_tmpl_render(const ht_tmpl *t, const ht_tmpl_args *args, ht_arena *arena, ht_buf *out,
                   ht_tmpl_seg **segs, size_t *n_segs, ht_err *e)
{
    tsb text = {0};
    tctx cx = {.tmpl = t, .arena = arena, .err = e, .out = &text, .now_unix = args->now_unix};
    cx.max_steps = args->max_steps ? args->max_steps : DEFAULT_STEPS;
    cx.max_output = args->max_output ? args->max_output : DEFAULT_OUTPUT;
    /* every text is at most max_output long; room for a few of them and their marks */
    cx.max_mem =
        cx.max_output > (SIZE_MAX >> 4) ? SIZE_MAX : cx.max_output * 8 + ((size_t)64 << 20);
    HT_TRY(tmpl__push_scope(&cx));
    HT_TRY(set_vars(&cx, args));
    HT_TRY(tmpl__exec(&cx, t->root));
    size_t at = out->n;
    ht_buf_add(out, text.p ? text.p : "", text.n);
    HT_TRY(ht_buf_ok(out, "the rendered chat template", e));
    if (!segs) return 0;
    return make_segs(&cx, &text, out->p + at, segs, n_segs);
}
