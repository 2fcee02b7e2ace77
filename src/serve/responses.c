/* responses.c - /v1/responses without state: input items turned into chat messages, the answer as
 * output items, and the events of a stream. Nothing is stored: previous_response_id is refused. */
#include "core/arena.h"
#include "serve/server.h"
#include <stdio.h>
#include <string.h>

static const serve__field fields[] = {
    {"model", FIELD_OK, NULL},
    {"input", FIELD_OK, NULL},
    {"instructions", FIELD_OK, NULL},
    {"stream", FIELD_OK, NULL},
    {"stream_options", FIELD_OK, NULL},
    {"max_output_tokens", FIELD_OK, NULL},
    {"temperature", FIELD_OK, NULL},
    {"top_p", FIELD_OK, NULL},
    {"top_k", FIELD_OK, NULL},
    {"min_p", FIELD_OK, NULL},
    {"seed", FIELD_OK, NULL},
    {"tools", FIELD_OK, NULL},
    {"tool_choice", FIELD_OK, NULL},
    {"parallel_tool_calls", FIELD_OK, NULL},
    {"text", FIELD_OK, NULL},
    {"reasoning", FIELD_OK, NULL},
    {"store", FIELD_OK, NULL},
    {"metadata", FIELD_OK, NULL},
    {"user", FIELD_OK, NULL},
    {"include", FIELD_IGNORED, NULL},
    {"truncation", FIELD_OK, NULL},
    {"service_tier", FIELD_OK, NULL},
    {"prompt_cache_key", FIELD_OK, NULL},
    {"safety_identifier", FIELD_OK, NULL},
    {"hash_logits", FIELD_OK, NULL},
    {"previous_response_id", FIELD_REFUSED, "nothing is stored here; send the conversation"},
    {"conversation", FIELD_REFUSED, "nothing is stored here; send the conversation"},
    {"background", FIELD_REFUSED, "nothing is stored here"},
    {"prompt", FIELD_REFUSED, "this server stores no prompts"},
    {"top_logprobs", FIELD_REFUSED, "use /v1/chat/completions"},
};
enum { BLOCK_NONE, BLOCK_TEXT, BLOCK_REASONING, BLOCK_CALL };

/* ---- reading --------------------------------------------------------------------------------- */

static bool get_type(const ht_json *item, const char **type)
{
    const ht_json *t = ht_json_get(item, "type");
    *type = t && t->type == HT_JSTR ? t->s : "message";
    return item->type == HT_JOBJ;
}

static void copy_key(ht_jw *w, const ht_json *from, const char *key, const char *as)
{
    const ht_json *v = ht_json_get(from, key);
    if (!v) return;
    ht_jw_key(w, as);
    ht_jw_json(w, v);
}

/* A run of calls is one message of the assistant. */
static size_t write_calls(ht_jw *w, const ht_json *list, size_t i)
{
    const char *type;
    ht_jw_obj(w);
    ht_jw_kstr(w, "role", "assistant");
    ht_jw_kstr(w, "content", "");
    ht_jw_key(w, "tool_calls");
    ht_jw_arr(w);
    for (; i < list->n && get_type(&list->at[i], &type) && !strcmp(type, "function_call"); i++) {
        ht_jw_obj(w);
        copy_key(w, &list->at[i], "call_id", "id");
        ht_jw_kstr(w, "type", "function");
        ht_jw_key(w, "function");
        ht_jw_obj(w);
        copy_key(w, &list->at[i], "name", "name");
        copy_key(w, &list->at[i], "arguments", "arguments");
        ht_jw_end(w, '}');
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
    ht_jw_end(w, '}');
    return i;
}

static bool write_items(ht_jw *w, const ht_json *list, serve__fail *f)
{
    for (size_t i = 0; i < list->n;) {
        const ht_json *item = &list->at[i];
        const char *type;
        char where[48];
        (void)snprintf(where, sizeof where, "input[%zu]", i);
        if (!get_type(item, &type))
            return serve__bad(f, 400, "invalid_type", where, "%s must be an object", where);
        if (!strcmp(type, "function_call")) {
            i = write_calls(w, list, i);
            continue;
        }
        i++;
        if (!strcmp(type, "reasoning")) continue; /* thoughts of an earlier turn */
        if (strcmp(type, "message") && strcmp(type, "function_call_output"))
            return serve__bad(f, 400, "unsupported_value", where,
                              "%s is of type '%.40s', which "
                              "this server does not know",
                              where, type);
        ht_jw_obj(w);
        if (!strcmp(type, "message")) {
            copy_key(w, item, "role", "role");
            copy_key(w, item, "content", "content");
        } else {
            ht_jw_kstr(w, "role", "tool");
            copy_key(w, item, "call_id", "tool_call_id");
            copy_key(w, item, "output", "content");
        }
        ht_jw_end(w, '}');
    }
    return false;
}

static bool read_messages(serve__req *r, const ht_json **out, serve__fail *f)
{
    const ht_json *in = ht_json_get(r->body, "input");
    const char *instructions = NULL;
    ht_buf b;
    ht_jw w;
    if (!in || (in->type != HT_JSTR && in->type != HT_JARR))
        return serve__bad(f, 400, in ? "invalid_type" : "missing_field", "input",
                          "'input' must be a text or an array of items");
    if (serve__get_str(r->body, "instructions", &instructions, f)) return true;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_arr(&w);
    for (int i = instructions ? 0 : 1; i < (in->type == HT_JSTR ? 2 : 1); i++) {
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "role", i ? "user" : "system");
        ht_jw_kstr(&w, "content", i ? in->s : instructions);
        ht_jw_end(&w, '}');
    }
    const bool bad = in->type == HT_JARR && write_items(&w, in, f);
    ht_jw_end(&w, ']');
    if (!bad) return serve__tree(r, &b, "input", out, f);
    ht_buf_done(&b);
    return true;
}

/* {"type":"function","name":..,"parameters":..} to {"type":"function","function":{..}}. */
static bool read_tools(serve__req *r, const ht_json **out, serve__fail *f)
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
        const char *type;
        if (!get_type(&list->at[i], &type) || strcmp(type, "function") != 0) {
            ht_buf_done(&b);
            return serve__bad(f, 400, "unsupported_value", "tools",
                              "tools[%zu] is no function; nothing else can be called here", i);
        }
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "type", "function");
        ht_jw_key(&w, "function");
        ht_jw_obj(&w);
        copy_key(&w, &list->at[i], "name", "name");
        copy_key(&w, &list->at[i], "description", "description");
        copy_key(&w, &list->at[i], "parameters", "parameters");
        copy_key(&w, &list->at[i], "strict", "strict");
        ht_jw_end(&w, '}');
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    return serve__tree(r, &b, "tools", out, f);
}

static bool read_text(serve__req *r, serve__fail *f)
{
    const ht_json *fmt = ht_json_path(r->body, "text.format");
    const char *type = NULL;
    ht_buf b;
    ht_err err = {0};
    if (!fmt || fmt->type == HT_JNULL) return false;
    if (serve__get_str(fmt, "type", &type, f)) return true;
    if (!type || !strcmp(type, "text")) return false;
    if (!strcmp(type, "json_object"))
        return serve__grammar_of(r, HT_GRAMMAR_JSON, "", 0, "text.format", f);
    const ht_json *schema = ht_json_get(fmt, "schema");
    if (strcmp(type, "json_schema") != 0 || !schema)
        return serve__bad(f, 400, "invalid_value", "text.format",
                          "'text.format' must be text, json_object, or json_schema with a schema");
    ht_buf_init(&b, 0);
    const bool bad =
        ht_json_write(schema, 0, &b, &err)
            ? serve__bad_err(f, "text.format.schema", &err)
            : serve__grammar_of(r, HT_GRAMMAR_SCHEMA, b.p, b.n, "text.format.schema", f);
    ht_buf_done(&b);
    return bad;
}

static bool read_request(serve__req *r, serve__fail *f)
{
    const ht_json *o = r->body, *messages = NULL, *tools = NULL;
    const char *effort = NULL, *truncation = NULL;
    int64_t max_new = 0;
    bool parallel = true;
    int32_t *ids = NULL;
    size_t n = 0;
    r->is_chat = true;
    r->reasoning = r->s->tmpl_reasons;
    if (serve__fields(r, o, fields, sizeof fields / sizeof *fields, f) ||
        serve__model_name(r, o, f) || serve__sampling(r, o, f) ||
        serve__get_bool(o, "stream", &r->stream, f) ||
        serve__get_bool(o, "parallel_tool_calls", &parallel, f) ||
        serve__get_bool(o, "hash_logits", &r->hash_logits, f) ||
        serve__get_int(o, "max_output_tokens", 1, INT32_MAX, &max_new, f) ||
        serve__get_str(o, "truncation", &truncation, f) ||
        serve__get_str(ht_json_get(o, "reasoning"), "effort", &effort, f) || read_text(r, f) ||
        read_messages(r, &messages, f) || read_tools(r, &tools, f))
        return true;
    if (truncation && strcmp(truncation, "disabled") != 0)
        return serve__bad(f, 400, "unsupported_value", "truncation",
                          "'truncation' %.20s is not supported: nothing is cut off here",
                          truncation);
    r->max_new = max_new ? (uint32_t)max_new : r->s->p.max_new;
    r->no_thinking =
        r->grammar || (effort && (!strcmp(effort, "none") || !strcmp(effort, "minimal")));
    return serve__tools(r, tools, ht_json_get(o, "tool_choice"), parallel, f) ||
           serve__chat_prompt(r, messages, NULL, &ids, &n, f) || serve__set_jobs(r, &ids, &n, 1, f);
}

/* ---- items ----------------------------------------------------------------------------------- */

static void item_id(const serve__req *r, const char *prefix, uint32_t index, char out[80])
{
    (void)snprintf(out, 80, "%s_%s%u", prefix, r->id, index);
}

static void text_part(ht_jw *w, const char *p, size_t n)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "type", "output_text");
    ht_jw_key(w, "text");
    ht_jw_strn(w, p, n);
    ht_jw_key(w, "annotations");
    ht_jw_arr(w);
    ht_jw_end(w, ']');
    ht_jw_key(w, "logprobs");
    ht_jw_arr(w);
    ht_jw_end(w, ']');
    ht_jw_end(w, '}');
}

/* A message item; text NULL: as it begins, without content. */
static void message_item(ht_jw *w, const serve__req *r, uint32_t index, const char *text, size_t n,
                         bool complete)
{
    char id[80];
    item_id(r, "msg", index, id);
    ht_jw_obj(w);
    ht_jw_kstr(w, "id", id);
    ht_jw_kstr(w, "type", "message");
    ht_jw_kstr(w, "status", text ? complete ? "completed" : "incomplete" : "in_progress");
    ht_jw_kstr(w, "role", "assistant");
    ht_jw_key(w, "content");
    ht_jw_arr(w);
    if (text) text_part(w, text, n);
    ht_jw_end(w, ']');
    ht_jw_end(w, '}');
}

static void reasoning_item(ht_jw *w, const serve__req *r, uint32_t index, const char *text,
                           size_t n)
{
    char id[80];
    item_id(r, "rs", index, id);
    ht_jw_obj(w);
    ht_jw_kstr(w, "id", id);
    ht_jw_kstr(w, "type", "reasoning");
    ht_jw_key(w, "summary");
    ht_jw_arr(w);
    ht_jw_end(w, ']');
    ht_jw_key(w, "content");
    ht_jw_arr(w);
    if (text) {
        ht_jw_obj(w);
        ht_jw_kstr(w, "type", "reasoning_text");
        ht_jw_key(w, "text");
        ht_jw_strn(w, text, n);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
    ht_jw_end(w, '}');
}

static void call_item(ht_jw *w, const serve__req *r, uint32_t index, const serve__call *c,
                      bool done)
{
    char id[80];
    item_id(r, "fc", index, id);
    ht_jw_obj(w);
    ht_jw_kstr(w, "id", id);
    ht_jw_kstr(w, "type", "function_call");
    ht_jw_kstr(w, "status", done ? "completed" : "in_progress");
    ht_jw_kstr(w, "call_id", c->id);
    ht_jw_kstr(w, "name", c->name);
    ht_jw_key(w, "arguments");
    ht_jw_strn(w, done && c->args.p ? c->args.p : "", done && c->args.p ? c->args.n : 0);
    ht_jw_end(w, '}');
}

static void usage(ht_jw *w, const serve__req *r)
{
    uint64_t prompt, kept, out;
    serve__usage(r, &prompt, &kept, &out);
    ht_jw_obj(w);
    ht_jw_kuint(w, "input_tokens", prompt);
    ht_jw_key(w, "input_tokens_details");
    ht_jw_obj(w);
    ht_jw_kuint(w, "cached_tokens", kept);
    ht_jw_end(w, '}');
    ht_jw_kuint(w, "output_tokens", out);
    ht_jw_key(w, "output_tokens_details");
    ht_jw_obj(w);
    ht_jw_kuint(w, "reasoning_tokens", 0);
    ht_jw_end(w, '}');
    ht_jw_kuint(w, "total_tokens", prompt + out);
    ht_jw_end(w, '}');
}

static void write_null(ht_jw *w, const char *key)
{
    ht_jw_key(w, key);
    ht_jw_null(w);
}

/* The response object; done: with its output. */
static void write_response(ht_jw *w, const serve__req *r, bool done)
{
    const serve__job *j = &r->job[0];
    char id[80];
    const bool cut = j->finish == HT_FINISH_LENGTH;
    uint32_t index = 0;
    (void)snprintf(id, sizeof id, "resp_%s", r->id);
    ht_jw_obj(w);
    ht_jw_kstr(w, "id", id);
    ht_jw_kstr(w, "object", "response");
    ht_jw_kint(w, "created_at", r->created);
    ht_jw_kstr(w, "status", !done ? "in_progress" : cut ? "incomplete" : "completed");
    ht_jw_kstr(w, "model", r->s->model_id);
    write_null(w, "error");
    ht_jw_key(w, "incomplete_details");
    if (done && cut) ht_jw_raw(w, "{\"reason\":\"max_output_tokens\"}", 30);
    else ht_jw_null(w);
    write_null(w, "instructions");
    write_null(w, "previous_response_id");
    ht_jw_key(w, "metadata");
    ht_jw_raw(w, "{}", 2);
    ht_jw_kbool(w, "parallel_tool_calls", r->tools_params.parallel);
    ht_jw_key(w, "temperature");
    ht_jw_f32(w, r->sampling.temp);
    ht_jw_key(w, "top_p");
    ht_jw_f32(w, r->sampling.top_p);
    ht_jw_kstr(w, "tool_choice", "auto");
    ht_jw_key(w, "tools");
    ht_jw_arr(w);
    ht_jw_end(w, ']');
    ht_jw_kbool(w, "store", false);
    ht_jw_key(w, "output");
    ht_jw_arr(w);
    if (done && j->reasoning.n) reasoning_item(w, r, index++, j->reasoning.p, j->reasoning.n);
    if (done && (j->text.n || !j->n_calls))
        message_item(w, r, index++, j->text.p ? j->text.p : "", j->text.n, !cut);
    for (uint32_t i = 0; done && i < j->n_calls; i++) call_item(w, r, index++, &j->call[i], true);
    ht_jw_end(w, ']');
    ht_jw_key(w, "usage");
    if (done) usage(w, r);
    else ht_jw_null(w);
    if (done) {
        ht_jw_key(w, "hetero");
        serve__write_hetero(w, r);
    }
    ht_jw_end(w, '}');
}

/* ---- events ---------------------------------------------------------------------------------- */

static void open_event(serve__req *r, ht_jw *w, ht_buf *t, const char *type)
{
    ht_buf_init(t, 0);
    ht_jw_init(w, t, 0);
    ht_jw_obj(w);
    ht_jw_kstr(w, "type", type);
    ht_jw_kuint(w, "sequence_number", r->sequence++);
}

static void close_event(ht_jw *w, ht_buf *t, const char *type, ht_buf *b)
{
    ht_jw_end(w, '}');
    ht_buf_fmt(b, "event: %s\ndata: ", type);
    ht_buf_add(b, t->p ? t->p : "", t->n);
    ht_buf_str(b, "\n\n");
    if (t->bad) b->bad = true;
    ht_buf_done(t);
}

static void response_event(serve__req *r, const char *type, bool done, ht_buf *b)
{
    ht_jw w;
    ht_buf t;
    open_event(r, &w, &t, type);
    ht_jw_key(&w, "response");
    write_response(&w, r, done);
    close_event(&w, &t, type, b);
}

static void on_open(serve__req *r, ht_buf *b)
{
    response_event(r, "response.created", false, b);
    response_event(r, "response.in_progress", false, b);
}

static void item_event(serve__job *j, const char *type, int kind, bool done, ht_buf *b)
{
    serve__req *r = j->req;
    ht_jw w;
    ht_buf t;
    const bool cut = j->finish == HT_FINISH_LENGTH;
    open_event(r, &w, &t, type);
    ht_jw_kuint(&w, "output_index", r->out_index);
    ht_jw_key(&w, "item");
    if (kind == BLOCK_TEXT)
        message_item(&w, r, r->out_index, done ? j->text.p ? j->text.p : "" : NULL, j->text.n,
                     !cut);
    else if (kind == BLOCK_REASONING)
        reasoning_item(&w, r, r->out_index, done ? j->reasoning.p ? j->reasoning.p : "" : NULL,
                       j->reasoning.n);
    else call_item(&w, r, r->out_index, &j->call[j->n_calls - 1], done);
    close_event(&w, &t, type, b);
}

/* Keys that all events of the open item have. */
static void item_keys(const serve__req *r, ht_jw *w)
{
    static const char *const prefix[] = {"", "msg", "rs", "fc"};
    char id[80];
    item_id(r, prefix[r->block], r->out_index, id);
    ht_jw_kstr(w, "item_id", id);
    ht_jw_kuint(w, "output_index", r->out_index);
    if (r->block != BLOCK_CALL) ht_jw_kuint(w, "content_index", 0);
}

static void part_event(serve__job *j, const char *type, bool done, ht_buf *b)
{
    serve__req *r = j->req;
    ht_jw w;
    ht_buf t;
    open_event(r, &w, &t, type);
    item_keys(r, &w);
    ht_jw_key(&w, "part");
    text_part(&w, done && j->text.p ? j->text.p : "", done && j->text.p ? j->text.n : 0);
    close_event(&w, &t, type, b);
}

/* "...done" with the whole of what the deltas said. */
static void whole_event(serve__job *j, const char *type, const char *key, const ht_buf *all,
                        ht_buf *b)
{
    serve__req *r = j->req;
    ht_jw w;
    ht_buf t;
    open_event(r, &w, &t, type);
    item_keys(r, &w);
    ht_jw_key(&w, key);
    ht_jw_strn(&w, all->p ? all->p : "", all->n);
    if (r->block == BLOCK_TEXT) {
        ht_jw_key(&w, "logprobs");
        ht_jw_arr(&w);
        ht_jw_end(&w, ']');
    }
    close_event(&w, &t, type, b);
}

static void end_block(serve__job *j, ht_buf *b)
{
    serve__req *r = j->req;
    if (r->block == BLOCK_NONE) return;
    if (r->block == BLOCK_TEXT) {
        whole_event(j, "response.output_text.done", "text", &j->text, b);
        part_event(j, "response.content_part.done", true, b);
    } else if (r->block == BLOCK_REASONING) {
        whole_event(j, "response.reasoning_text.done", "text", &j->reasoning, b);
    } else {
        whole_event(j, "response.function_call_arguments.done", "arguments",
                    &j->call[j->n_calls - 1].args, b);
    }
    item_event(j, "response.output_item.done", r->block, true, b);
    r->out_index++;
    r->block = BLOCK_NONE;
}

static void begin_block(serve__job *j, int kind, ht_buf *b)
{
    serve__req *r = j->req;
    if (kind != BLOCK_CALL) end_block(j, b);
    r->block = kind;
    item_event(j, "response.output_item.added", kind, false, b);
    if (kind == BLOCK_TEXT) part_event(j, "response.content_part.added", false, b);
}

static void delta(serve__job *j, const char *type, const serve__piece *p, ht_buf *b)
{
    serve__req *r = j->req;
    ht_jw w;
    ht_buf t;
    open_event(r, &w, &t, type);
    item_keys(r, &w);
    ht_jw_key(&w, "delta");
    ht_jw_strn(&w, p->text, p->n);
    if (r->block == BLOCK_TEXT) {
        ht_jw_key(&w, "logprobs");
        ht_jw_arr(&w);
        ht_jw_end(&w, ']');
    }
    close_event(&w, &t, type, b);
}

static void on_piece(serve__job *j, const serve__piece *p, ht_buf *b)
{
    serve__req *r = j->req;
    switch (p->kind) {
    case PIECE_TEXT:
        if (r->block != BLOCK_TEXT) begin_block(j, BLOCK_TEXT, b);
        delta(j, "response.output_text.delta", p, b);
        break;
    case PIECE_REASONING:
        if (r->block != BLOCK_REASONING) begin_block(j, BLOCK_REASONING, b);
        delta(j, "response.reasoning_text.delta", p, b);
        break;
    case PIECE_CALL:
        /* The call is in the list already; what was open before it ends first. */
        if (r->block != BLOCK_NONE) {
            j->n_calls--;
            end_block(j, b);
            j->n_calls++;
        }
        begin_block(j, BLOCK_CALL, b);
        break;
    case PIECE_ARGS: delta(j, "response.function_call_arguments.delta", p, b); break;
    case PIECE_CALL_END: end_block(j, b); break;
    default: break;
    }
}

static void on_job_end(serve__job *j, ht_buf *b)
{
    if (!j->spoke) begin_block(j, BLOCK_TEXT, b);
    end_block(j, b);
}

static void on_close(serve__req *r, ht_buf *b)
{
    const bool cut = r->job[0].finish == HT_FINISH_LENGTH;
    response_event(r, cut ? "response.incomplete" : "response.completed", true, b);
}

static void on_whole(serve__req *r, ht_buf *b)
{
    ht_jw w;
    ht_jw_init(&w, b, 0);
    write_response(&w, r, true);
}

static void write_error(const serve__fail *f, ht_buf *b)
{
    serve__proto_chat.error(f, b);
}

static void stream_error(serve__req *r, const serve__fail *f, ht_buf *b)
{
    ht_jw w;
    ht_buf t;
    open_event(r, &w, &t, "error");
    ht_jw_kstr(&w, "code", f->code);
    ht_jw_kstr(&w, "message", f->message);
    write_null(&w, "param");
    close_event(&w, &t, "error", b);
}

static const serve__proto proto = {
    .name = "responses",
    .stream_type = "text/event-stream",
    .ping = ": keep-alive\n\n",
    .open = on_open,
    .piece = on_piece,
    .job_end = on_job_end,
    .close = on_close,
    .whole = on_whole,
    .error = write_error,
    .stream_error = stream_error,
};

void serve__responses(serve__server *s, serve__conn *c)
{
    serve__fail f = {0};
    serve__req *r = serve__req_new(s, c, &proto, &f);
    if (r) serve__go(r, read_request(r, &f), &f);
    else serve__answer_fail(s, c, &proto, &f);
}
