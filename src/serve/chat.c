/* chat.c - messages and tools in OpenAI's form to what a template reads, and to the prompt's
 * tokens. A template that fails is a 400 with its line and column: there is no other format to
 * fall back to. */
#include "core/arena.h"
#include "serve/server.h"
#include <stdio.h>
#include <string.h>

enum { MAX_MESSAGES = 100000 };

/* ---- messages -------------------------------------------------------------------------------- */

typedef struct {
    serve__req *r;
    ht_jw w;
    ht_buf b;
    const char *extra; /* text for the system message (tools), or NULL */
    bool extra_done;
    serve__fail *f;
} writer;

/* Text of a content: a string, or the text parts of an array one after the other. */
static bool content_text(writer *x, const ht_json *c, size_t i, ht_buf *out)
{
    char where[64];
    (void)snprintf(where, sizeof where, "messages[%zu].content", i);
    if (c->type == HT_JSTR) {
        ht_buf_add(out, c->s, c->n);
        return false;
    }
    if (c->type != HT_JARR)
        return serve__bad(x->f, 400, "invalid_type", where,
                          "%s must be a string or an array of parts", where);
    for (size_t k = 0; k < c->n; k++) {
        const ht_json *type = ht_json_get(&c->at[k], "type"), *t = ht_json_get(&c->at[k], "text");
        const char *name = type && type->type == HT_JSTR ? type->s : "";
        (void)snprintf(where, sizeof where, "messages[%zu].content[%zu]", i, k);
        if (!strcmp(name, "refusal")) t = ht_json_get(&c->at[k], "refusal");
        else if (*name && strcmp(name, "text") && strcmp(name, "input_text") &&
                 strcmp(name, "output_text"))
            return serve__bad(x->f, 400, "unsupported_value", where,
                              "%s is of type '%.40s'; this model reads text only", where, name);
        if (!t || t->type != HT_JSTR)
            return serve__bad(x->f, 400, "invalid_type", where, "%s has no text", where);
        ht_buf_add(out, t->s, t->n);
    }
    return false;
}

/* A call as templates want it: arguments as an object, where what is in the string is one. */
static void write_call(writer *x, const ht_json *call)
{
    ht_jw *w = &x->w;
    ht_jw_obj(w);
    for (size_t i = 0; i < call->n; i++) {
        const ht_json *v = &call->at[i];
        ht_jw_key(w, v->key);
        if (strcmp(v->key, "function") != 0 || v->type != HT_JOBJ) {
            ht_jw_json(w, v);
            continue;
        }
        ht_jw_obj(w);
        for (size_t k = 0; k < v->n; k++) {
            const ht_json *m = &v->at[k];
            ht_json *args = NULL;
            ht_jw_key(w, m->key);
            if (!strcmp(m->key, "arguments") && m->type == HT_JSTR &&
                !ht_json_parse(x->r->arena, m->s, m->n, 0, "arguments", &args, NULL) &&
                args->type == HT_JOBJ)
                ht_jw_json(w, args);
            else ht_jw_json(w, m);
        }
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, '}');
}

static bool write_calls(writer *x, const ht_json *calls, size_t i)
{
    char where[64];
    (void)snprintf(where, sizeof where, "messages[%zu].tool_calls", i);
    if (calls->type != HT_JARR)
        return serve__bad(x->f, 400, "invalid_type", where, "%s must be an array", where);
    ht_jw_key(&x->w, "tool_calls");
    ht_jw_arr(&x->w);
    for (size_t k = 0; k < calls->n; k++) {
        const ht_json *name = ht_json_path(&calls->at[k], "function.name");
        if (!name || name->type != HT_JSTR)
            return serve__bad(x->f, 400, "invalid_value", where, "%s[%zu] has no function.name",
                              where, k);
        write_call(x, &calls->at[k]);
    }
    ht_jw_end(&x->w, ']');
    return false;
}

static const char *role_of(const ht_json *m)
{
    static const char *const known[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    const ht_json *role = ht_json_get(m, "role");
    if (!role || role->type != HT_JSTR) return NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(role->s, known[i])) return i == 1 ? "system" : known[i];
    return NULL;
}

static void write_system(writer *x, const char *text, size_t n)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_buf_add(&b, text, n);
    if (n) ht_buf_str(&b, "\n\n");
    ht_buf_str(&b, x->extra);
    ht_jw_strn(&x->w, b.p, b.n);
    if (b.bad) x->b.bad = true;
    ht_buf_done(&b);
    x->extra_done = true;
}

static bool write_message(writer *x, const ht_json *m, size_t i)
{
    ht_jw *w = &x->w;
    char where[64];
    (void)snprintf(where, sizeof where, "messages[%zu]", i);
    if (m->type != HT_JOBJ)
        return serve__bad(x->f, 400, "invalid_type", where, "%s must be an object", where);
    const char *role = role_of(m);
    if (!role)
        return serve__bad(x->f, 400, "invalid_value", where,
                          "%s.role must be system, developer, user, assistant or tool", where);
    const ht_json *c = ht_json_get(m, "content"), *calls = ht_json_get(m, "tool_calls");
    const bool has_calls = calls && calls->type != HT_JNULL;
    if ((!c || c->type == HT_JNULL) && !has_calls && strcmp(role, "assistant") != 0)
        return serve__bad(x->f, 400, "missing_field", where, "%s has no content", where);
    ht_jw_obj(w);
    ht_jw_kstr(w, "role", role);
    ht_jw_key(w, "content");
    ht_buf text;
    ht_buf_init(&text, 0);
    const bool bad = c && c->type != HT_JNULL && content_text(x, c, i, &text);
    if (x->extra && !x->extra_done && !strcmp(role, "system"))
        write_system(x, text.p ? text.p : "", text.n);
    else ht_jw_strn(w, text.p ? text.p : "", text.n);
    if (text.bad) x->b.bad = true;
    ht_buf_done(&text);
    if (bad) return true;
    if (has_calls && write_calls(x, calls, i)) return true;
    for (size_t k = 0; k < m->n; k++) {
        const char *key = m->at[k].key;
        if (!strcmp(key, "role") || !strcmp(key, "content") || !strcmp(key, "tool_calls")) continue;
        ht_jw_key(w, key);
        ht_jw_json(w, &m->at[k]);
    }
    ht_jw_end(w, '}');
    return false;
}

/* The first n messages as the template reads them. */
static bool write_messages(writer *x, const ht_json *messages, size_t n)
{
    ht_jw_arr(&x->w);
    const bool system = n && messages->at[0].type == HT_JOBJ && role_of(&messages->at[0]) &&
                        !strcmp(role_of(&messages->at[0]), "system");
    if (x->extra && !system) {
        ht_jw_obj(&x->w);
        ht_jw_kstr(&x->w, "role", "system");
        ht_jw_key(&x->w, "content");
        write_system(x, "", 0);
        ht_jw_end(&x->w, '}');
    }
    for (size_t i = 0; i < n; i++)
        if (write_message(x, &messages->at[i], i)) return true;
    ht_jw_end(&x->w, ']');
    return false;
}

/* ---- template variables ---------------------------------------------------------------------- */

/* The server's, overridden by the request's. */
static bool merge_kwargs(serve__req *r, const ht_json *own, ht_buf *out, serve__fail *f)
{
    ht_json *base = NULL;
    ht_jw w;
    if (own && own->type != HT_JNULL && own->type != HT_JOBJ)
        return serve__bad(f, 400, "invalid_type", "chat_template_kwargs",
                          "'chat_template_kwargs' must be an object");
    if (own && own->type == HT_JNULL) own = NULL;
    if (r->s->p.kwargs &&
        ht_json_parse(r->arena, r->s->p.kwargs, strlen(r->s->p.kwargs), 0, "--kwargs", &base, NULL))
        base = NULL;
    ht_jw_init(&w, out, 0);
    ht_jw_obj(&w);
    for (size_t i = 0; base && i < base->n; i++)
        if (!ht_json_get(own, base->at[i].key)) {
            ht_jw_key(&w, base->at[i].key);
            ht_jw_json(&w, &base->at[i]);
        }
    for (size_t i = 0; own && i < own->n; i++) {
        ht_jw_key(&w, own->at[i].key);
        ht_jw_json(&w, &own->at[i]);
    }
    if (r->no_thinking && !ht_json_get(own, "enable_thinking") &&
        !ht_json_get(base, "enable_thinking"))
        ht_jw_kbool(&w, "enable_thinking", false);
    ht_jw_end(&w, '}');
    return false;
}

/* ---- the prompt ------------------------------------------------------------------------------ */

/* What the answer continues: the text of a last message that is the assistant's own. */
static const ht_json *continued(const ht_json *messages)
{
    const ht_json *m = messages->n ? &messages->at[messages->n - 1] : NULL;
    const char *role = m && m->type == HT_JOBJ ? role_of(m) : NULL;
    const ht_json *c = m ? ht_json_get(m, "content") : NULL, *calls;
    if (!role || strcmp(role, "assistant") != 0 || !c || c->type == HT_JNULL) return NULL;
    calls = ht_json_get(m, "tool_calls");
    return calls && calls->type != HT_JNULL ? NULL : c;
}

/* Texts of a rendering; freed by prompt_done. */
typedef struct {
    ht_chat_params p;
    ht_buf kwargs, tools, extra;
    writer x;
} prompt;

static void prompt_done(prompt *q)
{
    ht_buf_done(&q->kwargs);
    ht_buf_done(&q->tools);
    ht_buf_done(&q->extra);
    ht_buf_done(&q->x.b);
}

static bool make(prompt *q, serve__req *r, const ht_json *messages, size_t n, const ht_json *kwargs,
                 serve__fail *f)
{
    ht_err err = {0};
    if (!messages || messages->type != HT_JARR || !messages->n)
        return serve__bad(f, 400, messages ? "invalid_type" : "missing_field", "messages",
                          "'messages' must be an array with at least one message");
    if (messages->n > MAX_MESSAGES)
        return serve__bad(f, 400, "invalid_value", "messages", "%zu messages are too many",
                          messages->n);
    if (!r->s->tmpl)
        return serve__bad(f, 400, "no_template", "messages",
                          "this model has no chat template; give one with --template, or use "
                          "/v1/completions");
    if (merge_kwargs(r, kwargs, &q->kwargs, f)) return true;
    const bool show = r->tools && r->tools_params.choice != HT_CHOICE_NONE;
    if (show && r->s->tmpl_tools) {
        if (ht_json_write(r->tools, 0, &q->tools, &err)) return serve__bad_err(f, "tools", &err);
        q->p.tools_json = q->tools.p;
    } else if (show) {
        if (ht_tools_prompt(r->tools, &r->tools_params, &q->extra, &err))
            return serve__bad_err(f, "tools", &err);
        q->x.extra = q->extra.p;
    }
    q->x.r = r;
    q->x.f = f;
    ht_jw_init(&q->x.w, &q->x.b, 0);
    if (write_messages(&q->x, messages, n)) return true;
    if (q->x.b.bad || q->kwargs.bad)
        return serve__bad(f, 503, "out_of_memory", NULL, "no memory for the messages");
    q->p.messages_json = q->x.b.p;
    q->p.kwargs_json = q->kwargs.p;
    return false;
}

static void prompt_init(prompt *q)
{
    memset(q, 0, sizeof *q);
    ht_buf_init(&q->kwargs, 0);
    ht_buf_init(&q->tools, 0);
    ht_buf_init(&q->extra, 0);
    ht_buf_init(&q->x.b, 0);
}

/* Whether the rendered text ends with the mark that opens reasoning. */
static bool ends_open(const serve__server *s, const prompt *q)
{
    char *text = NULL;
    size_t n = 0, k = s->reason_open ? strlen(s->reason_open) : 0;
    if (!k || ht_chat_render(s->tmpl, s->tmpl_n, &q->p, &text, &n, NULL)) return false;
    while (n && (text[n - 1] == '\n' || text[n - 1] == ' ')) n--;
    const bool yes = n >= k && !memcmp(text + n - k, s->reason_open, k);
    ht_free(text);
    return yes;
}

/* Tokens of the text that the answer continues, behind the prompt's. */
static bool append_text(serve__req *r, const ht_json *content, int32_t **ids, size_t *n,
                        serve__fail *f)
{
    writer x = {.r = r, .f = f};
    ht_buf text;
    ht_err err = {0};
    int32_t *more = NULL;
    size_t k = 0;
    ht_buf_init(&text, 0);
    bool bad = content_text(&x, content, 0, &text);
    if (!bad && ht_vocab_encode(r->s->vocab, text.p ? text.p : "", text.n, 0, &more, &k, &err))
        bad = serve__bad_err(f, "messages", &err);
    ht_buf_done(&text);
    int32_t *all = bad ? NULL : ht_arena_array(r->arena, *n + k, sizeof *all);
    if (!bad && !all) bad = serve__bad(f, 503, "out_of_memory", NULL, "no memory for a prompt");
    if (!bad) {
        memcpy(all, *ids, *n * sizeof *all);
        if (k) memcpy(all + *n, more, k * sizeof *all);
        *ids = all;
        *n += k;
    }
    ht_free(more);
    return bad;
}

bool serve__chat_prompt(serve__req *r, const ht_json *messages, const ht_json *kwargs,
                        int32_t **ids, size_t *n, serve__fail *f)
{
    prompt q;
    ht_err err = {0};
    int32_t *got = NULL;
    const ht_json *cont = messages && messages->type == HT_JARR ? continued(messages) : NULL;
    prompt_init(&q);
    bool bad = make(&q, r, messages, messages ? messages->n - (cont ? 1 : 0) : 0, kwargs, f);
    if (!bad && ht_chat_encode(r->s->vocab, r->s->tmpl, r->s->tmpl_n, &q.p, &got, n, &err))
        bad = err.code == HT_ENOMEM
                  ? serve__bad_err(f, NULL, &err)
                  : serve__bad(f, 400, "template_error", "messages", "%s", err.msg);
    if (!bad && r->reasoning) r->in_reasoning = !cont && ends_open(r->s, &q);
    r->tools_params.in_reasoning = r->in_reasoning;
    prompt_done(&q);
    if (bad) return true;
    *ids = ht_arena_array(r->arena, *n, sizeof **ids);
    if (*ids) memcpy(*ids, got, *n * sizeof **ids);
    ht_free(got);
    if (!*ids) return serve__bad(f, 503, "out_of_memory", NULL, "no memory for a prompt");
    return cont ? append_text(r, cont, ids, n, f) : false;
}

bool serve__chat_text(serve__req *r, const ht_json *messages, const ht_json *kwargs, char **text,
                      size_t *n, serve__fail *f)
{
    prompt q;
    ht_err err = {0};
    prompt_init(&q);
    bool bad = make(&q, r, messages, messages ? messages->n : 0, kwargs, f);
    if (!bad && ht_chat_render(r->s->tmpl, r->s->tmpl_n, &q.p, text, n, &err))
        bad = serve__bad(f, 400, "template_error", "messages", "%s", err.msg);
    prompt_done(&q);
    return bad;
}

/* ---- tools ----------------------------------------------------------------------------------- */

static bool read_choice(serve__req *r, const ht_json *c, serve__fail *f)
{
    ht_tools_params *p = &r->tools_params;
    p->choice = HT_CHOICE_AUTO;
    if (!c || c->type == HT_JNULL) return false;
    if (c->type == HT_JSTR) {
        if (!strcmp(c->s, "none")) p->choice = HT_CHOICE_NONE;
        else if (!strcmp(c->s, "required") || !strcmp(c->s, "any")) p->choice = HT_CHOICE_REQUIRED;
        else if (strcmp(c->s, "auto") != 0)
            return serve__bad(f, 400, "invalid_value", "tool_choice",
                              "'tool_choice' must be none, auto, required or a function");
        return false;
    }
    const ht_json *name = ht_json_path(c, "function.name");
    if (!name) name = ht_json_get(c, "name");
    if (!name || name->type != HT_JSTR)
        return serve__bad(f, 400, "invalid_value", "tool_choice",
                          "'tool_choice' names no function");
    p->choice = HT_CHOICE_NAMED;
    p->name = name->s;
    return false;
}

bool serve__tools(serve__req *r, const ht_json *tools, const ht_json *choice, bool parallel,
                  serve__fail *f)
{
    serve__server *s = r->s;
    ht_err err = {0};
    ht_buf loose;
    r->tools_params = (ht_tools_params){.form = s->form, .parallel = parallel};
    if (r->reasoning) {
        r->tools_params.open = s->reason_open;
        r->tools_params.close = s->reason_close;
    }
    if (!tools || tools->type == HT_JNULL || (tools->type == HT_JARR && !tools->n)) {
        if (read_choice(r, choice, f)) return true;
        if (r->tools_params.choice == HT_CHOICE_REQUIRED ||
            r->tools_params.choice == HT_CHOICE_NAMED)
            return serve__bad(f, 400, "invalid_value", "tool_choice",
                              "'tool_choice' asks for a call and there are no 'tools'");
        return false;
    }
    if (read_choice(r, choice, f)) return true;
    if (ht_tools_check(tools, &r->tools_params, &err)) return serve__bad_err(f, "tools", &err);
    if (r->tools_params.choice == HT_CHOICE_NONE) return false;
    r->tools = tools;
    if (r->grammar)
        return serve__bad(f, 400, "invalid_value", "tools",
                          "'tools' together with a constraint on the answer's form is not "
                          "supported; give one, or tool_choice none");
    ht_buf_init(&loose, 4096);
    const int rc = ht_tools_grammar(&r->grammar, s->lexicon, tools, &r->tools_params, &loose, &err);
    if (!rc && loose.n) serve__warn(r, "arguments of %s may be any object", loose.p);
    ht_buf_done(&loose);
    return rc ? serve__bad_err(f, "tools", &err) : false;
}
