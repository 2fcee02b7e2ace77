/* anthropic.c - /v1/messages and count_tokens: messages and tools turned into OpenAI's form,
 * answers and events in Anthropic's. */
#include "core/arena.h"
#include "serve/server.h"
#include <stdio.h>
#include <string.h>

static const serve__field fields[] = {
    {"model", FIELD_OK, NULL},
    {"messages", FIELD_OK, NULL},
    {"max_tokens", FIELD_OK, NULL},
    {"system", FIELD_OK, NULL},
    {"stream", FIELD_OK, NULL},
    {"stop_sequences", FIELD_OK, NULL},
    {"temperature", FIELD_OK, NULL},
    {"top_p", FIELD_OK, NULL},
    {"top_k", FIELD_OK, NULL},
    {"seed", FIELD_OK, NULL},
    {"min_p", FIELD_OK, NULL},
    {"repeat_penalty", FIELD_OK, NULL},
    {"metadata", FIELD_OK, NULL},
    {"service_tier", FIELD_OK, NULL},
    {"tools", FIELD_OK, NULL},
    {"tool_choice", FIELD_OK, NULL},
    {"thinking", FIELD_OK, NULL},
    {"hash_logits", FIELD_OK, NULL},
    {"cache_control", FIELD_IGNORED, NULL},
    {"context_management", FIELD_IGNORED, NULL},
    {"output_config", FIELD_IGNORED, NULL},
    {"container", FIELD_REFUSED, "this server runs no code"},
    {"mcp_servers", FIELD_REFUSED, "this server has no network of its own"},
};
enum { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_TOOL };

/* ---- reading --------------------------------------------------------------------------------- */

/* Text of a content: a string, or its text blocks. */
static bool text_of(const ht_json *c, const char *where, ht_buf *out, serve__fail *f)
{
    if (c->type == HT_JSTR) {
        ht_buf_add(out, c->s, c->n);
        return false;
    }
    if (c->type != HT_JARR)
        return serve__bad(f, 400, "invalid_type", where, "%s must be a text or an array", where);
    for (size_t i = 0; i < c->n; i++) {
        const ht_json *type = ht_json_get(&c->at[i], "type"), *t = ht_json_get(&c->at[i], "text");
        if (!type || type->type != HT_JSTR || strcmp(type->s, "text") != 0 || !t ||
            t->type != HT_JSTR)
            return serve__bad(f, 400, "unsupported_value", where,
                              "%s[%zu] is no text block; this model reads text only", where, i);
        if (i) ht_buf_char(out, '\n');
        ht_buf_add(out, t->s, t->n);
    }
    return false;
}

/* What one message of theirs becomes: tool results are messages of their own and come first. */
typedef struct {
    ht_jw *w;
    ht_buf text, calls, thinking;
    uint32_t n_calls;
    serve__fail *f;
    char where[48];
} message;

static bool tool_result(message *m, const ht_json *b)
{
    const ht_json *id = ht_json_get(b, "tool_use_id"), *c = ht_json_get(b, "content");
    ht_buf text;
    ht_buf_init(&text, 0);
    if (c && c->type != HT_JNULL && text_of(c, m->where, &text, m->f)) {
        ht_buf_done(&text);
        return true;
    }
    ht_jw_obj(m->w);
    ht_jw_kstr(m->w, "role", "tool");
    if (id && id->type == HT_JSTR) ht_jw_kstr(m->w, "tool_call_id", id->s);
    ht_jw_key(m->w, "content");
    ht_jw_strn(m->w, text.p ? text.p : "", text.n);
    ht_jw_end(m->w, '}');
    if (text.bad) m->w->b->bad = true;
    ht_buf_done(&text);
    return false;
}

static bool tool_use(message *m, const ht_json *b)
{
    const ht_json *id = ht_json_get(b, "id"), *name = ht_json_get(b, "name"),
                  *input = ht_json_get(b, "input");
    ht_jw w;
    if (!name || name->type != HT_JSTR)
        return serve__bad(m->f, 400, "invalid_value", m->where, "%s: a tool_use has no name",
                          m->where);
    if (m->n_calls++) ht_buf_char(&m->calls, ',');
    ht_jw_init(&w, &m->calls, 0);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "id", id && id->type == HT_JSTR ? id->s : "");
    ht_jw_kstr(&w, "type", "function");
    ht_jw_key(&w, "function");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "name", name->s);
    ht_jw_key(&w, "arguments");
    if (input && input->type == HT_JOBJ) ht_jw_json(&w, input);
    else ht_jw_raw(&w, "{}", 2);
    ht_jw_end(&w, '}');
    ht_jw_end(&w, '}');
    return false;
}

static bool block(message *m, const ht_json *b)
{
    const ht_json *type = ht_json_get(b, "type"), *t = ht_json_get(b, "text");
    const char *name = type && type->type == HT_JSTR ? type->s : "";
    if (!strcmp(name, "text") && t && t->type == HT_JSTR) {
        ht_buf_add(&m->text, t->s, t->n);
        return false;
    }
    if (!strcmp(name, "tool_use")) return tool_use(m, b);
    if (!strcmp(name, "tool_result")) return tool_result(m, b);
    if (!strcmp(name, "thinking")) {
        t = ht_json_get(b, "thinking");
        if (t && t->type == HT_JSTR) ht_buf_add(&m->thinking, t->s, t->n);
        return false;
    }
    if (!strcmp(name, "redacted_thinking")) return false;
    return serve__bad(m->f, 400, "unsupported_value", m->where,
                      "%s holds a block of type '%.40s'; this model reads text only", m->where,
                      name);
}

static bool blocks(message *m, const ht_json *c, const char *role)
{
    for (size_t i = 0; i < c->n; i++)
        if (block(m, &c->at[i])) return true;
    if (!m->text.n && !m->n_calls && c->n) return false; /* results only */
    ht_jw_obj(m->w);
    ht_jw_kstr(m->w, "role", role);
    ht_jw_key(m->w, "content");
    ht_jw_strn(m->w, m->text.p ? m->text.p : "", m->text.n);
    if (m->thinking.n) {
        ht_jw_key(m->w, "reasoning_content");
        ht_jw_strn(m->w, m->thinking.p, m->thinking.n);
    }
    if (m->n_calls) {
        ht_buf all;
        ht_buf_init(&all, 0);
        ht_buf_char(&all, '[');
        ht_buf_add(&all, m->calls.p, m->calls.n);
        ht_buf_char(&all, ']');
        ht_jw_key(m->w, "tool_calls");
        if (all.bad || m->calls.bad) m->w->b->bad = true;
        else ht_jw_raw(m->w, all.p, all.n);
        ht_buf_done(&all);
    }
    ht_jw_end(m->w, '}');
    return false;
}

static bool one_message(ht_jw *w, const ht_json *msg, size_t i, serve__fail *f)
{
    message m = {.w = w, .f = f};
    const ht_json *role = ht_json_get(msg, "role"), *c = ht_json_get(msg, "content");
    (void)snprintf(m.where, sizeof m.where, "messages[%zu]", i);
    if (!role || role->type != HT_JSTR ||
        (strcmp(role->s, "user") && strcmp(role->s, "assistant") && strcmp(role->s, "system")))
        return serve__bad(f, 400, "invalid_value", m.where, "%s.role must be user or assistant",
                          m.where);
    if (!c || (c->type != HT_JSTR && c->type != HT_JARR))
        return serve__bad(f, 400, "invalid_type", m.where,
                          "%s.content must be a text or an array of blocks", m.where);
    if (c->type == HT_JSTR) {
        ht_jw_obj(w);
        ht_jw_kstr(w, "role", role->s);
        ht_jw_key(w, "content");
        ht_jw_strn(w, c->s, c->n);
        ht_jw_end(w, '}');
        return false;
    }
    ht_buf_init(&m.text, 0);
    ht_buf_init(&m.calls, 0);
    ht_buf_init(&m.thinking, 0);
    const bool bad = blocks(&m, c, role->s);
    if (m.text.bad || m.thinking.bad) w->b->bad = true;
    ht_buf_done(&m.text);
    ht_buf_done(&m.calls);
    ht_buf_done(&m.thinking);
    return bad;
}

static bool messages_of(serve__req *r, const ht_json **out, serve__fail *f)
{
    const ht_json *list = ht_json_get(r->body, "messages"), *sys = ht_json_get(r->body, "system");
    ht_buf b, text;
    ht_jw w;
    bool bad = false;
    if (!list || list->type != HT_JARR || !list->n)
        return serve__bad(f, 400, list ? "invalid_type" : "missing_field", "messages",
                          "'messages' must be an array with at least one message");
    ht_buf_init(&b, 0);
    ht_buf_init(&text, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_arr(&w);
    if (sys && sys->type != HT_JNULL) {
        bad = text_of(sys, "system", &text, f);
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "role", "system");
        ht_jw_key(&w, "content");
        ht_jw_strn(&w, text.p ? text.p : "", text.n);
        ht_jw_end(&w, '}');
    }
    if (text.bad) b.bad = true;
    ht_buf_done(&text);
    for (size_t i = 0; !bad && i < list->n; i++) bad = one_message(&w, &list->at[i], i, f);
    ht_jw_end(&w, ']');
    if (!bad) return serve__tree(r, &b, "messages", out, f);
    ht_buf_done(&b);
    return true;
}

static bool tools_of(serve__req *r, const ht_json **out, serve__fail *f)
{
    const ht_json *list = ht_json_get(r->body, "tools");
    ht_buf b;
    ht_jw w;
    *out = NULL;
    if (!list || list->type == HT_JNULL) return false;
    if (list->type != HT_JARR)
        return serve__bad(f, 400, "invalid_type", "tools", "'tools' must be an array");
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_arr(&w);
    for (size_t i = 0; i < list->n; i++) {
        const ht_json *t = &list->at[i], *type = ht_json_get(t, "type"),
                      *schema = ht_json_get(t, "input_schema"),
                      *text = ht_json_get(t, "description"), *name = ht_json_get(t, "name");
        if (type && type->type == HT_JSTR && strcmp(type->s, "custom") != 0) {
            ht_buf_done(&b);
            return serve__bad(f, 400, "unsupported_value", "tools",
                              "tools[%zu] is of type '%.40s', which runs at Anthropic only", i,
                              type->s);
        }
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "type", "function");
        ht_jw_key(&w, "function");
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "name", name && name->type == HT_JSTR ? name->s : "");
        if (text && text->type == HT_JSTR) ht_jw_kstr(&w, "description", text->s);
        ht_jw_key(&w, "parameters");
        if (schema && schema->type == HT_JOBJ) ht_jw_json(&w, schema);
        else ht_jw_raw(&w, "{}", 2);
        ht_jw_end(&w, '}');
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    return serve__tree(r, &b, "tools", out, f);
}

/* {"type":"auto"|"any"|"none"|"tool","name":..,"disable_parallel_tool_use":..} in OpenAI's form. */
static bool choice_of(serve__req *r, const ht_json **out, bool *parallel, serve__fail *f)
{
    const ht_json *c = ht_json_get(r->body, "tool_choice");
    const char *type = NULL, *name = NULL;
    bool single = false;
    ht_buf b;
    ht_jw w;
    *out = NULL;
    if (!c || c->type == HT_JNULL) return false;
    if (c->type != HT_JOBJ || serve__get_str(c, "type", &type, f) || !type ||
        serve__get_bool(c, "disable_parallel_tool_use", &single, f) ||
        serve__get_str(c, "name", &name, f))
        return serve__bad(f, 400, "invalid_value", "tool_choice",
                          "'tool_choice' must be an object with a type");
    *parallel = !single;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    if (strcmp(type, "tool") != 0) {
        ht_jw_str(&w, type);
    } else {
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "name", name ? name : "");
        ht_jw_end(&w, '}');
    }
    return serve__tree(r, &b, "tools", out, f);
}

static bool thinking_of(serve__req *r, serve__fail *f)
{
    const ht_json *t = ht_json_get(r->body, "thinking");
    const char *type = NULL;
    if (t && t->type == HT_JOBJ && serve__get_str(t, "type", &type, f)) return true;
    r->reasoning = r->s->tmpl_reasons;
    r->no_thinking = !type || strcmp(type, "disabled") == 0;
    return false;
}

static bool prompt_of(serve__req *r, int32_t **ids, size_t *n, serve__fail *f)
{
    const ht_json *messages = NULL, *tools = NULL, *choice = NULL;
    bool parallel = true;
    r->is_chat = true;
    return serve__fields(r, r->body, fields, sizeof fields / sizeof *fields, f) ||
           serve__model_name(r, r->body, f) || thinking_of(r, f) || messages_of(r, &messages, f) ||
           tools_of(r, &tools, f) || choice_of(r, &choice, &parallel, f) ||
           serve__tools(r, tools, choice, parallel, f) ||
           serve__chat_prompt(r, messages, NULL, ids, n, f);
}

static bool read_request(serve__req *r, serve__fail *f)
{
    int64_t max_new = 0;
    int32_t *ids = NULL;
    size_t n = 0;
    if (serve__get_int(r->body, "max_tokens", 1, INT32_MAX, &max_new, f) ||
        serve__get_bool(r->body, "stream", &r->stream, f) ||
        serve__get_bool(r->body, "hash_logits", &r->hash_logits, f) ||
        serve__sampling(r, r->body, f) || serve__stops(r, r->body, "stop_sequences", f))
        return true;
    if (!max_new)
        return serve__bad(f, 400, "missing_field", "max_tokens", "'max_tokens' is missing");
    r->max_new = (uint32_t)max_new;
    return prompt_of(r, &ids, &n, f) || serve__set_jobs(r, &ids, &n, 1, f);
}

void serve__messages(serve__server *s, serve__conn *c)
{
    serve__fail f = {0};
    serve__req *r = serve__req_new(s, c, &serve__proto_messages, &f);
    if (r) serve__go(r, read_request(r, &f), &f);
    else serve__answer_fail(s, c, &serve__proto_messages, &f);
}

void serve__count_tokens(serve__server *s, serve__conn *c)
{
    serve__fail f = {0};
    serve__req *r = serve__req_new(s, c, &serve__proto_messages, &f);
    int32_t *ids = NULL;
    size_t n = 0;
    if (!r || prompt_of(r, &ids, &n, &f)) {
        serve__answer_fail(s, c, &serve__proto_messages, &f);
    } else {
        ht_buf b;
        ht_buf_init(&b, 0);
        ht_buf_fmt(&b, "{\"input_tokens\":%zu}", n);
        serve__answer_json(c, 200, &b);
    }
    serve__req_free(r);
}

/* ---- answers --------------------------------------------------------------------------------- */

static const char *stop_reason(const serve__job *j)
{
    if (j->finish == HT_FINISH_LENGTH) return "max_tokens";
    if (j->n_calls && !j->broken) return "tool_use";
    return j->finish == HT_FINISH_STOP ? "stop_sequence" : "end_turn";
}

static void write_stop(ht_jw *w, const serve__job *j)
{
    ht_jw_kstr(w, "stop_reason", stop_reason(j));
    ht_jw_key(w, "stop_sequence");
    if (j->finish == HT_FINISH_STOP && j->res.stop_i >= 0)
        ht_jw_str(w, j->req->stop[j->res.stop_i]);
    else ht_jw_null(w);
}

static void usage(ht_jw *w, const serve__req *r, bool output)
{
    const serve__job *j = &r->job[0];
    const uint32_t kept = output ? j->res.n_kept : 0;
    ht_jw_obj(w);
    /* Here cached tokens are counted apart. */
    ht_jw_kuint(w, "input_tokens", j->n_ids - kept);
    ht_jw_kuint(w, "cache_creation_input_tokens", 0);
    ht_jw_kuint(w, "cache_read_input_tokens", kept);
    ht_jw_kuint(w, "output_tokens", output ? j->res.n_ids : 0);
    ht_jw_end(w, '}');
}

static void event(ht_buf *b, const char *name, const ht_buf *json)
{
    ht_buf_fmt(b, "event: %s\ndata: ", name);
    ht_buf_add(b, json->p ? json->p : "", json->n);
    ht_buf_str(b, "\n\n");
    if (json->bad) b->bad = true;
}

static void open_event(ht_jw *w, ht_buf *t, const char *type)
{
    ht_buf_init(t, 0);
    ht_jw_init(w, t, 0);
    ht_jw_obj(w);
    ht_jw_kstr(w, "type", type);
}

static void close_event(ht_jw *w, ht_buf *t, const char *type, ht_buf *b)
{
    ht_jw_end(w, '}');
    event(b, type, t);
    ht_buf_done(t);
}

static void write_head(ht_jw *w, const serve__req *r)
{
    char id[64];
    (void)snprintf(id, sizeof id, "msg_%s", r->id);
    ht_jw_kstr(w, "id", id);
    ht_jw_kstr(w, "type", "message");
    ht_jw_kstr(w, "role", "assistant");
    ht_jw_kstr(w, "model", r->s->model_id);
}

static void on_open(serve__req *r, ht_buf *b)
{
    ht_jw w;
    ht_buf t;
    open_event(&w, &t, "message_start");
    ht_jw_key(&w, "message");
    ht_jw_obj(&w);
    write_head(&w, r);
    ht_jw_key(&w, "content");
    ht_jw_arr(&w);
    ht_jw_end(&w, ']');
    ht_jw_key(&w, "stop_reason");
    ht_jw_null(&w);
    ht_jw_key(&w, "stop_sequence");
    ht_jw_null(&w);
    ht_jw_key(&w, "usage");
    usage(&w, r, false);
    ht_jw_end(&w, '}');
    close_event(&w, &t, "message_start", b);
    ht_buf_str(b, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

static void end_block(serve__req *r, ht_buf *b)
{
    ht_jw w;
    ht_buf t;
    if (r->block == BLOCK_NONE) return;
    open_event(&w, &t, "content_block_stop");
    ht_jw_kuint(&w, "index", r->out_index++);
    close_event(&w, &t, "content_block_stop", b);
    r->block = BLOCK_NONE;
}

static void begin_block(serve__job *j, int kind, const serve__call *call, ht_buf *b)
{
    serve__req *r = j->req;
    ht_jw w;
    ht_buf t;
    end_block(r, b);
    r->block = kind;
    open_event(&w, &t, "content_block_start");
    ht_jw_kuint(&w, "index", r->out_index);
    ht_jw_key(&w, "content_block");
    ht_jw_obj(&w);
    if (kind == BLOCK_TOOL) {
        ht_jw_kstr(&w, "type", "tool_use");
        ht_jw_kstr(&w, "id", call->id);
        ht_jw_kstr(&w, "name", call->name);
        ht_jw_key(&w, "input");
        ht_jw_raw(&w, "{}", 2);
    } else {
        ht_jw_kstr(&w, "type", kind == BLOCK_TEXT ? "text" : "thinking");
        ht_jw_kstr(&w, kind == BLOCK_TEXT ? "text" : "thinking", "");
    }
    ht_jw_end(&w, '}');
    close_event(&w, &t, "content_block_start", b);
}

static void delta(serve__req *r, const char *type, const char *key, const serve__piece *p,
                  ht_buf *b)
{
    ht_jw w;
    ht_buf t;
    open_event(&w, &t, "content_block_delta");
    ht_jw_kuint(&w, "index", r->out_index);
    ht_jw_key(&w, "delta");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "type", type);
    ht_jw_key(&w, key);
    ht_jw_strn(&w, p->text, p->n);
    ht_jw_end(&w, '}');
    close_event(&w, &t, "content_block_delta", b);
}

static void on_piece(serve__job *j, const serve__piece *p, ht_buf *b)
{
    serve__req *r = j->req;
    switch (p->kind) {
    case PIECE_TEXT:
        if (r->block != BLOCK_TEXT) begin_block(j, BLOCK_TEXT, NULL, b);
        delta(r, "text_delta", "text", p, b);
        break;
    case PIECE_REASONING:
        if (r->block != BLOCK_THINKING) begin_block(j, BLOCK_THINKING, NULL, b);
        delta(r, "thinking_delta", "thinking", p, b);
        break;
    case PIECE_CALL: begin_block(j, BLOCK_TOOL, &j->call[p->call], b); break;
    case PIECE_ARGS: delta(r, "input_json_delta", "partial_json", p, b); break;
    case PIECE_CALL_END: end_block(r, b); break;
    default: break;
    }
}

static void on_job_end(serve__job *j, ht_buf *b)
{
    serve__req *r = j->req;
    ht_jw w;
    ht_buf t;
    if (!j->spoke) begin_block(j, BLOCK_TEXT, NULL, b);
    end_block(r, b);
    open_event(&w, &t, "message_delta");
    ht_jw_key(&w, "delta");
    ht_jw_obj(&w);
    write_stop(&w, j);
    ht_jw_end(&w, '}');
    ht_jw_key(&w, "usage");
    usage(&w, r, true);
    ht_jw_key(&w, "hetero");
    serve__write_hetero(&w, r);
    close_event(&w, &t, "message_delta", b);
}

static void on_close(serve__req *r, ht_buf *b)
{
    (void)r;
    ht_buf_str(b, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

static void write_block(ht_jw *w, const char *type, const char *key, const ht_buf *text)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "type", type);
    ht_jw_key(w, key);
    ht_jw_strn(w, text->p ? text->p : "", text->n);
    if (!strcmp(type, "thinking")) ht_jw_kstr(w, "signature", "");
    ht_jw_end(w, '}');
}

static void on_whole(serve__req *r, ht_buf *b)
{
    const serve__job *j = &r->job[0];
    ht_jw w;
    ht_jw_init(&w, b, 0);
    ht_jw_obj(&w);
    write_head(&w, r);
    ht_jw_key(&w, "content");
    ht_jw_arr(&w);
    if (j->reasoning.n) write_block(&w, "thinking", "thinking", &j->reasoning);
    if (j->text.n || !j->n_calls) write_block(&w, "text", "text", &j->text);
    for (uint32_t i = 0; i < j->n_calls; i++) {
        const ht_buf *args = &j->call[i].args;
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "type", "tool_use");
        ht_jw_kstr(&w, "id", j->call[i].id);
        ht_jw_kstr(&w, "name", j->call[i].name);
        ht_jw_key(&w, "input");
        /* Complete calls are valid JSON: the parser of replies checked it. */
        ht_jw_raw(&w, args->n ? args->p : "{}", args->n ? args->n : 2);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    write_stop(&w, j);
    ht_jw_key(&w, "usage");
    usage(&w, r, true);
    ht_jw_key(&w, "hetero");
    serve__write_hetero(&w, r);
    ht_jw_end(&w, '}');
}

static void write_error(const serve__fail *f, ht_buf *b)
{
    ht_jw w;
    ht_jw_init(&w, b, 0);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "type", "error");
    ht_jw_key(&w, "error");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "type",
               f->status == 401   ? "authentication_error"
               : f->status == 404 ? "not_found_error"
               : f->status == 413 ? "request_too_large"
               : f->status == 429 ? "rate_limit_error"
               : f->status == 503 ? "overloaded_error"
               : f->status < 500  ? "invalid_request_error"
                                  : "api_error");
    ht_jw_kstr(&w, "message", f->message);
    ht_jw_kstr(&w, "code", f->code);
    if (f->param[0]) ht_jw_kstr(&w, "param", f->param);
    if (f->n_ctx) {
        ht_jw_kuint(&w, "n_prompt_tokens", f->n_prompt);
        ht_jw_kuint(&w, "n_ctx", f->n_ctx);
    }
    ht_jw_end(&w, '}');
    ht_jw_end(&w, '}');
}

static void stream_error(serve__req *r, const serve__fail *f, ht_buf *b)
{
    ht_buf t;
    (void)r;
    ht_buf_init(&t, 0);
    write_error(f, &t);
    event(b, "error", &t);
    ht_buf_done(&t);
}

const serve__proto serve__proto_messages = {
    .name = "messages",
    .stream_type = "text/event-stream",
    .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    .open = on_open,
    .piece = on_piece,
    .job_end = on_job_end,
    .close = on_close,
    .whole = on_whole,
    .error = write_error,
    .stream_error = stream_error,
};
