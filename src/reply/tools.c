/* tools.c - tools of a request: checked, put into words for models whose template has none, and as
 * a grammar under which every call that begins is complete and valid. */
#include "grammar/grammar.h"
#include "reply/reply.h"
#include <stdio.h>
#include <string.h>

enum { TOOLS = 512, NAME = 128 };

static const ht_json *function_of(const ht_json *tool)
{
    return ht_json_get(tool, "function");
}

static const char *name_of(const ht_json *tool)
{
    return ht_json_get(function_of(tool), "name")->s;
}

/* ---- checking -------------------------------------------------------------------------------- */

static bool good_name(const ht_json *v)
{
    if (!v || v->type != HT_JSTR || v->n == 0 || v->n > NAME) return false;
    for (size_t i = 0; i < v->n; i++) {
        const char c = v->s[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && !(c && strchr("_-.:/", c))) return false;
    }
    return true;
}

static int check_one(const ht_json *tool, size_t i, ht_err *e)
{
    const ht_json *type = ht_json_get(tool, "type"), *f = function_of(tool);
    const ht_json *params = ht_json_get(f, "parameters"), *strict = ht_json_get(f, "strict");
    if (tool->type != HT_JOBJ) return HT_FAIL(e, HT_EARG, "/tools/%zu must be an object", i);
    if (!type || type->type != HT_JSTR || strcmp(type->s, "function") != 0)
        return HT_FAIL(e, HT_EARG, "/tools/%zu/type must be \"function\", the only kind supported",
                       i);
    if (!f || f->type != HT_JOBJ)
        return HT_FAIL(e, HT_EARG, "/tools/%zu/function must be an object with a name", i);
    if (!good_name(ht_json_get(f, "name")))
        return HT_FAIL(e, HT_EARG,
                       "/tools/%zu/function/name must be 1 to %d letters, digits and _-.:/", i,
                       NAME);
    if (params && params->type != HT_JOBJ && params->type != HT_JNULL)
        return HT_FAIL(e, HT_EARG, "/tools/%zu/function/parameters must be a JSON schema", i);
    if (strict && strict->type != HT_JBOOL && strict->type != HT_JNULL)
        return HT_FAIL(e, HT_EARG, "/tools/%zu/function/strict must be a boolean", i);
    return 0;
}

static bool has_tool(const ht_json *tools, const char *name)
{
    for (size_t i = 0; i < tools->n; i++)
        if (strcmp(name_of(&tools->at[i]), name) == 0) return true;
    return false;
}

int ht_tools_check(const ht_json *tools, const ht_tools_params *p, ht_err *e)
{
    if (!tools || tools->type != HT_JARR) return HT_FAIL(e, HT_EARG, "/tools must be an array");
    if (tools->n > TOOLS)
        return HT_FAIL(e, HT_EARG, "/tools has %zu entries, more than %d", tools->n, TOOLS);
    for (size_t i = 0; i < tools->n; i++) {
        HT_TRY(check_one(&tools->at[i], i, e));
        for (size_t k = 0; k < i; k++)
            if (strcmp(name_of(&tools->at[i]), name_of(&tools->at[k])) == 0)
                return HT_FAIL(e, HT_EARG, "/tools/%zu/function/name \"%s\" comes twice", i,
                               name_of(&tools->at[i]));
    }
    if (p->choice == HT_CHOICE_REQUIRED && tools->n == 0)
        return HT_FAIL(e, HT_EARG, "/tool_choice is \"required\" and there are no tools");
    if (p->choice == HT_CHOICE_NAMED && (!p->name || !has_tool(tools, p->name)))
        return HT_FAIL(e, HT_EARG, "/tool_choice names \"%.128s\", which is not among the tools",
                       p->name ? p->name : "");
    return 0;
}

/* ---- words ----------------------------------------------------------------------------------- */

int ht_tools_prompt(const ht_json *tools, const ht_tools_params *p, ht_buf *out, ht_err *e)
{
    ht_buf_str(out, "You can call these functions, given as JSON with the schema of their "
                    "arguments:\n");
    for (size_t i = 0; i < tools->n; i++) {
        HT_TRY(ht_json_write(function_of(&tools->at[i]), 0, out, e));
        ht_buf_char(out, '\n');
    }
    ht_buf_str(out, "To call one, answer with nothing but JSON of this form: "
                    "{\"name\": \"the function's name\", \"arguments\": {the arguments}}");
    if (p->parallel) ht_buf_str(out, ", or an array of several such objects");
    if (p->choice == HT_CHOICE_NAMED) ht_buf_fmt(out, ". Call %s now.", p->name);
    else if (p->choice == HT_CHOICE_REQUIRED) ht_buf_str(out, ". Call one now.");
    else ht_buf_str(out, ". If no function is needed, answer in plain words.");
    return ht_buf_ok(out, "the description of tools", e);
}

/* ---- the grammar ----------------------------------------------------------------------------- */

typedef struct {
    grammar__nfa g;
    grammar__json j;
    const ht_tools_params *p;
    const ht_json *tools;
    uint32_t rest; /* rule: a call's object behind {"name" */
    uint32_t args; /* rule: name[ARGS]{..} */
} maker;

/* A mark that is a control token of the vocabulary, or written out. */
static uint32_t mark(maker *m, const char *s, uint32_t next)
{
    const char special[] = {(char)G_SPECIAL, 0};
    const uint32_t plain = grammar__str(&m->g, s, next);
    return grammar__alt(&m->g, grammar__lit(&m->g, special, 1, grammar__str(&m->g, s, next)),
                        plain);
}

/* Any text without `word`; where it ends with the word, on to next. may_end: or it ends anywhere.
 * The states are those of Knuth, Morris and Pratt: how much of the word has just been seen. Control
 * tokens do not occur in it, unless the word is one. */
static uint32_t until(maker *m, const char *word, bool may_end, uint32_t next)
{
    grammar__nfa *g = &m->g;
    const size_t n = strlen(word);
    uint32_t at[64];
    size_t fail[64] = {0};
    if (n > 63) {
        grammar__fail(g, HT_EARG, "a mark of more than 63 bytes");
        return 0;
    }
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k > 0 && word[i] != word[k]) k = fail[k - 1];
        k += word[i] == word[k];
        fail[i] = k;
    }
    for (size_t s = 0; s < n; s++) at[s] = grammar__loop_open(g);
    const char special[] = {(char)G_SPECIAL, 0};
    const uint32_t control = grammar__lit(g, special, 1, grammar__str(g, word, next));
    for (size_t s = 0; s < n && grammar__ok(g); s++) {
        uint32_t out = may_end ? grammar__alt(g, control, 0) : control;
        grammar__set to[64] = {{{0}}};
        for (unsigned b = 0; b < G_SPECIAL; b++) {
            size_t k = s;
            while (k > 0 && (char)b != word[k]) k = fail[k - 1];
            k += (char)b == word[k];
            grammar__set_add(&to[k], b);
        }
        for (size_t t = 0; t <= n; t++)
            if (to[t].w[0] | to[t].w[1] | to[t].w[2] | to[t].w[3])
                out = grammar__alt(g, grammar__bytes(g, &to[t], t == n ? next : at[t]), out);
        /* The loop's node is the alternative of nothing more than `out`. */
        grammar__loop_close(g, at[s], out, out);
    }
    return at[0];
}

/* Text that is free altogether. */
static uint32_t anything(maker *m, uint32_t next)
{
    const uint32_t loop = grammar__loop_open(&m->g);
    grammar__loop_close(&m->g, loop, grammar__range(&m->g, 0, G_SPECIAL - 1, loop), next);
    return loop;
}

static uint32_t blanks(maker *m, unsigned max, uint32_t next)
{
    grammar__set s = {{0}};
    grammar__set_add(&s, ' ');
    grammar__set_add(&s, '\n');
    return grammar__run(&m->g, &s, 0, max, next);
}

/* Do the parameters compile? A build of their own, so that a failure does no harm. */
static int try_schema(const ht_json *params, const char *path, ht_err *e)
{
    grammar__nfa g;
    grammar__json j;
    uint32_t rule = 0;
    HT_TRY(grammar__nfa_init(&g, e));
    grammar__json_init(&j, &g);
    int rc = grammar__schema(&g, &j, params, params, path, &rule);
    if (!rc) rc = grammar__analyse(&g, rule, e);
    grammar__nfa_done(&g);
    return rc;
}

static bool is_true(const ht_json *v)
{
    return v && v->type == HT_JBOOL && v->b;
}

/* The rule of a tool's arguments. */
static int arguments(maker *m, size_t i, ht_buf *loose, uint32_t *rule, ht_err *e)
{
    const ht_json *f = function_of(&m->tools->at[i]), *params = ht_json_get(f, "parameters");
    char path[64];
    *rule = grammar__json_rule(&m->j, GJ_OBJECT);
    if (!params || params->type == HT_JNULL) return m->g.rc;
    (void)snprintf(path, sizeof path, "#/tools/%zu/function/parameters", i);
    const int rc = try_schema(params, path, e);
    if (rc == HT_ENOMEM || (rc && is_true(ht_json_get(f, "strict")))) return rc;
    if (rc) {
        if (loose && loose->n) ht_buf_char(loose, ',');
        if (loose) ht_buf_str(loose, name_of(&m->tools->at[i]));
        return m->g.rc;
    }
    return grammar__schema(&m->g, &m->j, params, params, path, rule);
}

static bool wanted(const maker *m, size_t i)
{
    return m->p->choice != HT_CHOICE_NAMED || strcmp(name_of(&m->tools->at[i]), m->p->name) == 0;
}

/* The two rules of a call: every tool that may be called. */
static int calls(maker *m, ht_buf *loose, ht_err *e)
{
    grammar__nfa *g = &m->g;
    const char *key = m->p->form == HT_FORM_LLAMA3 ? "\"parameters\":" : "\"arguments\":";
    uint32_t rest = 0, args = 0;
    bool any = false;
    for (size_t i = 0; i < m->tools->n; i++) {
        uint32_t rule = 0;
        if (!wanted(m, i)) continue;
        HT_TRY(arguments(m, i, loose, &rule, e));
        const char *name = name_of(&m->tools->at[i]);
        uint32_t at = grammar__space(&m->j, grammar__str(g, "}", 0));
        at = grammar__str(g, key, grammar__space(&m->j, grammar__call(g, rule, true, at)));
        at = grammar__str(g, "\"", grammar__str(g, ",", grammar__space(&m->j, at)));
        at = grammar__str(g, "\"", grammar__str(g, name, at));
        at = grammar__str(g, ":", grammar__space(&m->j, at));
        rest = any ? grammar__alt(g, at, rest) : at;
        at = grammar__str(g, name, mark(m, "[ARGS]", grammar__call(g, rule, true, 0)));
        args = any ? grammar__alt(g, at, args) : at;
        any = true;
    }
    grammar__rule_set(g, m->rest, rest);
    grammar__rule_set(g, m->args, args);
    return g->rc;
}

static uint32_t one_call(maker *m, uint32_t next)
{
    next = grammar__str(&m->g, "\"name\"", grammar__call(&m->g, m->rest, false, next));
    return grammar__str(&m->g, "{", grammar__space(&m->j, next));
}

static const char *opening(const maker *m)
{
    return m->p->form == HT_FORM_HERMES ? "<tool_call>" : "[TOOL_CALLS]";
}

/* Forms with a mark: what follows it, further calls with marks of their own included. */
static uint32_t behind_mark(maker *m)
{
    grammar__nfa *g = &m->g;
    const uint32_t loop = grammar__loop_open(g);
    uint32_t next = m->p->parallel ? loop : 0, at, more;
    switch (m->p->form) {
    case HT_FORM_HERMES:
        at = blanks(m, 1, one_call(m, blanks(m, 1, mark(m, "</tool_call>", next))));
        more = blanks(m, 2, mark(m, opening(m), at));
        break;
    case HT_FORM_MISTRAL_ARGS:
        at = grammar__call(g, m->args, false, next);
        more = mark(m, opening(m), at);
        break;
    default:
        next = grammar__str(g, "]", 0);
        at = grammar__str(g, "[", one_call(m, m->p->parallel ? loop : next));
        more = grammar__str(g, ",", grammar__space(&m->j, one_call(m, loop)));
        grammar__loop_close(g, loop, more, next);
        return blanks(m, 1, at);
    }
    grammar__loop_close(g, loop, more, 0);
    return at;
}

static bool is_bare(const maker *m)
{
    return m->p->form == HT_FORM_JSON || m->p->form == HT_FORM_LLAMA3;
}

/* Calls and nothing else. */
static uint32_t only_calls(maker *m)
{
    grammar__nfa *g = &m->g;
    if (!is_bare(m)) return mark(m, opening(m), behind_mark(m));
    if (!m->p->parallel) return one_call(m, 0);
    const uint32_t loop = grammar__loop_open(g);
    if (m->p->form == HT_FORM_LLAMA3) {
        grammar__loop_close(g, loop, grammar__str(g, ";", blanks(m, 1, one_call(m, loop))), 0);
        return one_call(m, loop);
    }
    /* One object, or an array of them. */
    const uint32_t end = grammar__space(&m->j, grammar__str(g, "]", 0));
    const uint32_t more = grammar__str(g, ",", grammar__space(&m->j, one_call(m, loop)));
    grammar__loop_close(g, loop, more, end);
    const uint32_t list = grammar__str(g, "[", grammar__space(&m->j, one_call(m, loop)));
    return grammar__alt(g, one_call(m, 0), list);
}

/* The byte b to next; any other but `skip` to other; or the end. */
static uint32_t fork(maker *m, uint8_t b, uint32_t next, int skip, uint32_t other)
{
    grammar__set s = {{0}};
    for (int c = 0; c < G_SPECIAL; c++)
        if (c != b && c != skip) grammar__set_add(&s, (unsigned)c);
    const uint32_t two =
        grammar__alt(&m->g, grammar__range(&m->g, b, b, next), grammar__bytes(&m->g, &s, other));
    return grammar__alt(&m->g, two, 0);
}

/* Forms without a mark: text is free unless it begins as a call does, {"name". */
static uint32_t bare_or_text(maker *m)
{
    grammar__nfa *g = &m->g;
    static const char begin[] = "name\"";
    const uint32_t any = anything(m, 0);
    uint32_t more = 0;
    if (m->p->parallel && m->p->form == HT_FORM_LLAMA3) {
        more = grammar__loop_open(g);
        grammar__loop_close(g, more, grammar__str(g, ";", blanks(m, 1, one_call(m, more))), 0);
    }
    uint32_t at = grammar__call(g, m->rest, false, more);
    for (size_t i = sizeof begin - 1; i-- > 0;) at = fork(m, (uint8_t)begin[i], at, -1, any);
    /* One space may stand behind the brace. */
    const uint32_t spaced = grammar__range(g, ' ', ' ', fork(m, '"', at, -1, any));
    at = grammar__alt(g, fork(m, '"', at, ' ', any), spaced);
    return fork(m, '{', at, -1, any);
}

static uint32_t content(maker *m)
{
    if (m->p->choice != HT_CHOICE_AUTO) return only_calls(m);
    return is_bare(m) ? bare_or_text(m) : until(m, opening(m), true, behind_mark(m));
}

static int make(maker *m, ht_buf *loose, uint32_t *root, ht_err *e)
{
    grammar__nfa *g = &m->g;
    grammar__json_init(&m->j, g);
    m->j.compact = true; /* nobody reads calls: a lost model shall not fill them with space */
    m->rest = grammar__rule_new(g, "a call");
    m->args = grammar__rule_new(g, "a call");
    HT_TRY(calls(m, loose, e));
    *root = grammar__rule_new(g, "root");
    uint32_t at = content(m);
    if (m->p->open && m->p->close) {
        const uint32_t thought = until(m, m->p->close, false, blanks(m, 2, at));
        if (m->p->in_reasoning) at = thought;
        else at = grammar__alt(g, blanks(m, 2, mark(m, m->p->open, thought)), at);
    }
    grammar__rule_set(g, *root, at);
    return g->rc;
}

int ht_tools_grammar(ht_grammar **out, const ht_lexicon *l, const ht_json *tools,
                     const ht_tools_params *p, ht_buf *loose, ht_err *e)
{
    ht_err own = {0};
    if (!e) e = &own;
    *out = NULL;
    HT_TRY(ht_tools_check(tools, p, e));
    if (p->choice == HT_CHOICE_NONE || tools->n == 0)
        return HT_FAIL(e, HT_EARG, "without tools to call there is nothing to constrain");
    maker m = {.p = p, .tools = tools};
    uint32_t root = 0;
    HT_TRY(grammar__nfa_init(&m.g, e));
    const int rc = make(&m, loose, &root, e);
    if (rc) {
        grammar__nfa_done(&m.g);
        return rc;
    }
    return grammar__open(out, l, &m.g, root, e);
}
