/* ollama.c - Ollama's routes: chat and generate as lines of JSON, tags, show, ps, version. Options
 * it has and this server has not are refused or listed, not guessed at. */
#include "core/arena.h"
#include "serve/server.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const serve__proto proto_ollama_generate;

static const serve__field fields[] = {
    {"model", FIELD_OK, NULL},
    {"messages", FIELD_OK, NULL},
    {"prompt", FIELD_OK, NULL},
    {"system", FIELD_OK, NULL},
    {"stream", FIELD_OK, NULL},
    {"format", FIELD_OK, NULL},
    {"options", FIELD_OK, NULL},
    {"tools", FIELD_OK, NULL},
    {"think", FIELD_OK, NULL},
    {"raw", FIELD_OK, NULL},
    {"keep_alive", FIELD_IGNORED, NULL},
    {"truncate", FIELD_OK, NULL},
    {"shift", FIELD_OK, NULL},
    {"hash_logits", FIELD_OK, NULL},
    {"name", FIELD_OK, NULL},
    {"template", FIELD_REFUSED, "start the server with --template"},
    {"suffix", FIELD_REFUSED, "this server does not fill in the middle"},
    {"images", FIELD_REFUSED, "this model reads text only"},
    {"context", FIELD_REFUSED, "send the conversation itself: what was computed of it is kept"},
    {"logprobs", FIELD_REFUSED, "use /v1/chat/completions"},
    {"top_logprobs", FIELD_REFUSED, "use /v1/chat/completions"},
};
static const serve__field option_fields[] = {
    {"temperature", FIELD_OK, NULL},
    {"top_p", FIELD_OK, NULL},
    {"min_p", FIELD_OK, NULL},
    {"typical_p", FIELD_OK, NULL},
    {"top_k", FIELD_OK, NULL},
    {"repeat_penalty", FIELD_OK, NULL},
    {"repeat_last_n", FIELD_OK, NULL},
    {"presence_penalty", FIELD_OK, NULL},
    {"frequency_penalty", FIELD_OK, NULL},
    {"seed", FIELD_OK, NULL},
    {"stop", FIELD_OK, NULL},
    {"num_predict", FIELD_OK, NULL},
    {"num_ctx", FIELD_OK, NULL},
    {"num_thread", FIELD_IGNORED, NULL},
    {"num_gpu", FIELD_IGNORED, NULL},
    {"main_gpu", FIELD_IGNORED, NULL},
    {"num_batch", FIELD_IGNORED, NULL},
    {"num_keep", FIELD_IGNORED, NULL},
    {"use_mmap", FIELD_IGNORED, NULL},
    {"numa", FIELD_IGNORED, NULL},
    {"low_vram", FIELD_IGNORED, NULL},
    {"penalize_newline", FIELD_IGNORED, NULL},
    {"mirostat", FIELD_REFUSED, "this server has no such sampler"},
};

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_options(serve__req *r, serve__fail *f)
{
    const ht_json *o = ht_json_get(r->body, "options");
    int64_t predict = -1, ctx = 0;
    r->max_new = r->s->p.max_new;
    if (!o || o->type == HT_JNULL) return false;
    if (o->type != HT_JOBJ)
        return serve__bad(f, 400, "invalid_type", "options", "'options' must be an object");
    if (serve__fields(r, o, option_fields, sizeof option_fields / sizeof *option_fields, f) ||
        serve__sampling(r, o, f) || serve__stops(r, o, "stop", f) ||
        serve__get_int(o, "num_predict", -2, INT32_MAX, &predict, f) ||
        serve__get_int(o, "num_ctx", 1, INT32_MAX, &ctx, f))
        return true;
    if (predict > 0) r->max_new = (uint32_t)predict;
    if (ctx > r->s->ctx)
        return serve__bad(
            f, 400, "invalid_value", "options.num_ctx",
            "num_ctx %lld is more than the %u positions of this server; start it with "
            "a larger --ctx",
            (long long)ctx, r->s->ctx);
    if (ctx && ctx < r->s->ctx)
        serve__warn(r, "num_ctx %lld: every request here has %u", (long long)ctx, r->s->ctx);
    return false;
}

static bool read_format(serve__req *r, serve__fail *f)
{
    const ht_json *v = ht_json_get(r->body, "format");
    ht_buf b;
    ht_err err = {0};
    if (!v || v->type == HT_JNULL || (v->type == HT_JSTR && !v->n)) return false;
    if (v->type == HT_JSTR && !strcmp(v->s, "json"))
        return serve__grammar_of(r, HT_GRAMMAR_JSON, "", 0, "format", f);
    if (v->type != HT_JOBJ)
        return serve__bad(f, 400, "invalid_value", "format",
                          "'format' must be \"json\" or a JSON schema");
    ht_buf_init(&b, 0);
    bool bad = ht_json_write(v, 0, &b, &err)
                   ? serve__bad_err(f, "format", &err)
                   : serve__grammar_of(r, HT_GRAMMAR_SCHEMA, b.p, b.n, "format", f);
    ht_buf_done(&b);
    return bad;
}

/* think: true, false, or an effort; the template decides what it understands of it. */
static bool read_think(serve__req *r, serve__fail *f)
{
    const ht_json *v = ht_json_get(r->body, "think");
    r->reasoning = r->s->tmpl_reasons;
    if (!v || v->type == HT_JNULL) return false;
    if (v->type == HT_JSTR) return false;
    if (v->type != HT_JBOOL)
        return serve__bad(f, 400, "invalid_type", "think", "'think' must be true or false");
    if (v->b && !r->s->tmpl_reasons)
        return serve__bad(f, 400, "unsupported_value", "think",
                          "the template of '%s' knows no thinking", r->s->model_id);
    r->no_thinking = !v->b;
    return false;
}

static bool read_common(serve__req *r, serve__fail *f)
{
    bool truncate = false, shift = false;
    r->stream = true; /* unless the request says otherwise */
    if (serve__fields(r, r->body, fields, sizeof fields / sizeof *fields, f) ||
        serve__model_name(r, r->body, f) || serve__get_bool(r->body, "stream", &r->stream, f) ||
        serve__get_bool(r->body, "truncate", &truncate, f) ||
        serve__get_bool(r->body, "shift", &shift, f) ||
        serve__get_bool(r->body, "hash_logits", &r->hash_logits, f) || read_options(r, f) ||
        read_format(r, f) || read_think(r, f))
        return true;
    if (truncate || shift)
        serve__warn(r, "truncate and shift: a prompt that is too long is an error here");
    if (r->grammar && r->reasoning) r->no_thinking = true;
    return false;
}

static bool read_chat(serve__req *r, serve__fail *f)
{
    int32_t *ids = NULL;
    size_t n = 0;
    r->is_chat = true;
    return read_common(r, f) || serve__tools(r, ht_json_get(r->body, "tools"), NULL, true, f) ||
           serve__chat_prompt(r, ht_json_get(r->body, "messages"), NULL, &ids, &n, f) ||
           serve__set_jobs(r, &ids, &n, 1, f);
}

/* prompt and system as messages. */
static bool as_messages(serve__req *r, const char *prompt, const char *system, const ht_json **out,
                        serve__fail *f)
{
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_arr(&w);
    for (int i = system ? 0 : 1; i < 2; i++) {
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "role", i ? "user" : "system");
        ht_jw_kstr(&w, "content", i ? prompt : system);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    return serve__tree(r, &b, "prompt", out, f);
}

static bool read_generate(serve__req *r, serve__fail *f)
{
    const char *prompt = NULL, *system = NULL;
    bool raw = false;
    int32_t *ids = NULL, *got = NULL;
    size_t n = 0;
    ht_err err = {0};
    const ht_json *messages = NULL;
    if (read_common(r, f) || serve__get_str(r->body, "prompt", &prompt, f) ||
        serve__get_str(r->body, "system", &system, f) || serve__get_bool(r->body, "raw", &raw, f))
        return true;
    if (r->s->tmpl && !raw) {
        r->is_chat = true;
        return as_messages(r, prompt, system, &messages, f) ||
               serve__chat_prompt(r, messages, NULL, &ids, &n, f) ||
               serve__set_jobs(r, &ids, &n, 1, f);
    }
    r->reasoning = false;
    if (ht_vocab_encode(r->s->vocab, prompt, strlen(prompt), HT_TOK_BOS | HT_TOK_SPECIAL, &got, &n,
                        &err))
        return serve__bad_err(f, "prompt", &err);
    ids = ht_arena_array(r->arena, n, sizeof *ids);
    if (ids && n) memcpy(ids, got, n * sizeof *ids);
    ht_free(got);
    if (!ids) return serve__bad(f, 503, "out_of_memory", NULL, "no memory for a prompt");
    return serve__set_jobs(r, &ids, &n, 1, f);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void write_time(ht_jw *w, const char *key, int64_t unix_s)
{
    struct tm t;
    char text[40];
    const time_t at = (time_t)unix_s;
    if (!gmtime_r(&at, &t) || !strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &t)) text[0] = 0;
    ht_jw_kstr(w, key, text);
}

static void write_head(ht_jw *w, const serve__req *r)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "model", r->model);
    write_time(w, "created_at", r->created);
}

/* The text of a line: as a message, or as a response. */
static void write_text(ht_jw *w, const serve__req *r, const char *text, size_t n, const char *think,
                       size_t think_n)
{
    const bool chat = r->proto == &serve__proto_ollama_chat;
    if (chat) {
        ht_jw_key(w, "message");
        ht_jw_obj(w);
        ht_jw_kstr(w, "role", "assistant");
    }
    ht_jw_key(w, chat ? "content" : "response");
    ht_jw_strn(w, text, n);
    if (think_n) {
        ht_jw_key(w, "thinking");
        ht_jw_strn(w, think, think_n);
    }
}

static void write_calls(ht_jw *w, const serve__job *j, uint32_t from, uint32_t to)
{
    ht_jw_key(w, "tool_calls");
    ht_jw_arr(w);
    for (uint32_t i = from; i < to; i++) {
        const ht_buf *args = &j->call[i].args;
        ht_jw_obj(w);
        ht_jw_kstr(w, "id", j->call[i].id);
        ht_jw_key(w, "function");
        ht_jw_obj(w);
        ht_jw_kuint(w, "index", i);
        ht_jw_kstr(w, "name", j->call[i].name);
        ht_jw_key(w, "arguments");
        ht_jw_raw(w, args->n ? args->p : "{}", args->n ? args->n : 2);
        ht_jw_end(w, '}');
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

static void end_text(ht_jw *w, const serve__req *r)
{
    if (r->proto == &serve__proto_ollama_chat) ht_jw_end(w, '}');
}

/* A request without a prompt: Ollama's clients send it to have the model loaded. It is, always. */
static bool only_loads(const serve__req *r, const char *key)
{
    const ht_json *v = ht_json_get(r->body, key);
    if (!v || v->type == HT_JNULL) return true;
    return (v->type == HT_JARR || v->type == HT_JSTR) && v->n == 0;
}

static void answer_load(serve__req *r)
{
    ht_buf b;
    ht_jw w;
    serve__fail f = {0};
    if (serve__model_name(r, r->body, &f)) {
        serve__answer_fail(r->s, r->conn, r->proto, &f);
    } else {
        ht_buf_init(&b, 0);
        ht_jw_init(&w, &b, 0);
        write_head(&w, r);
        write_text(&w, r, "", 0, NULL, 0);
        end_text(&w, r);
        ht_jw_kbool(&w, "done", true);
        ht_jw_kstr(&w, "done_reason", "load");
        ht_jw_end(&w, '}');
        serve__answer_json(r->conn, 200, &b);
    }
    serve__req_free(r);
}

void serve__ollama_chat(serve__server *s, serve__conn *c)
{
    serve__fail f = {0};
    serve__req *r = serve__req_new(s, c, &serve__proto_ollama_chat, &f);
    if (!r) serve__answer_fail(s, c, &serve__proto_ollama_chat, &f);
    else if (only_loads(r, "messages")) answer_load(r);
    else serve__go(r, read_chat(r, &f), &f);
}

void serve__ollama_generate(serve__server *s, serve__conn *c)
{
    serve__fail f = {0};
    serve__req *r = serve__req_new(s, c, &proto_ollama_generate, &f);
    if (!r) serve__answer_fail(s, c, &proto_ollama_generate, &f);
    else if (only_loads(r, "prompt")) answer_load(r);
    else serve__go(r, read_generate(r, &f), &f);
}

/* A line of the stream. */
static void on_piece(serve__job *j, const serve__piece *p, ht_buf *b)
{
    serve__req *r = j->req;
    ht_jw w;
    if (p->kind == PIECE_CALL || p->kind == PIECE_ARGS || p->kind == PIECE_TOKEN) return;
    ht_jw_init(&w, b, 0);
    write_head(&w, r);
    const bool text = p->kind == PIECE_TEXT, think = p->kind == PIECE_REASONING;
    write_text(&w, r, text ? p->text : "", text ? p->n : 0, think ? p->text : "", think ? p->n : 0);
    if (p->kind == PIECE_CALL_END) write_calls(&w, j, p->call, p->call + 1);
    end_text(&w, r);
    ht_jw_kbool(&w, "done", false);
    ht_jw_end(&w, '}');
    ht_buf_char(b, '\n');
}

static void write_done(ht_jw *w, const serve__req *r)
{
    const serve__job *j = &r->job[0];
    ht_jw_kbool(w, "done", true);
    ht_jw_kstr(w, "done_reason", j->finish == HT_FINISH_LENGTH ? "length" : "stop");
    ht_jw_kuint(w, "total_duration", j->ended_ns - r->arrived_ns);
    ht_jw_kuint(w, "load_duration", j->started_ns - r->arrived_ns);
    ht_jw_kuint(w, "prompt_eval_count", j->n_ids);
    ht_jw_kuint(w, "prompt_eval_duration", j->res.prompt_ns);
    ht_jw_kuint(w, "eval_count", j->res.n_ids);
    ht_jw_kuint(w, "eval_duration", j->res.decode_ns);
    ht_jw_key(w, "hetero");
    serve__write_hetero(w, r);
    ht_jw_end(w, '}');
}

static void on_job_end(serve__job *j, ht_buf *b)
{
    ht_jw w;
    ht_jw_init(&w, b, 0);
    write_head(&w, j->req);
    write_text(&w, j->req, "", 0, "", 0);
    end_text(&w, j->req);
    write_done(&w, j->req);
    ht_buf_char(b, '\n');
}

static void on_close(serve__req *r, ht_buf *b)
{
    (void)r;
    (void)b;
}

static void on_whole(serve__req *r, ht_buf *b)
{
    const serve__job *j = &r->job[0];
    ht_jw w;
    ht_jw_init(&w, b, 0);
    write_head(&w, r);
    write_text(&w, r, j->text.p ? j->text.p : "", j->text.n, j->reasoning.p ? j->reasoning.p : "",
               j->reasoning.n);
    if (j->n_calls) write_calls(&w, j, 0, j->n_calls);
    end_text(&w, r);
    write_done(&w, r);
}

static void write_error(const serve__fail *f, ht_buf *b)
{
    ht_jw w;
    ht_jw_init(&w, b, 0);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "error", f->message);
    ht_jw_kstr(&w, "code", f->code);
    if (f->param[0]) ht_jw_kstr(&w, "param", f->param);
    if (f->n_ctx) {
        ht_jw_kuint(&w, "n_prompt_tokens", f->n_prompt);
        ht_jw_kuint(&w, "n_ctx", f->n_ctx);
    }
    ht_jw_end(&w, '}');
}

static void stream_error(serve__req *r, const serve__fail *f, ht_buf *b)
{
    (void)r;
    write_error(f, b);
    ht_buf_char(b, '\n');
}

#define PROTO(n)                                                                                   \
    {                                                                                              \
        .name = n, .stream_type = "application/x-ndjson", .piece = on_piece,                       \
        .job_end = on_job_end, .close = on_close, .whole = on_whole, .error = write_error,         \
        .stream_error = stream_error                                                               \
    }
const serve__proto serve__proto_ollama_chat = PROTO("ollama chat");
static const serve__proto proto_ollama_generate = PROTO("ollama generate");

/* ---- the model, told in Ollama's words ------------------------------------------------------- */

static void write_details(serve__server *s, ht_jw *w, const ht_json *model)
{
    const char *arch = "", *contract = "";
    char size[24] = "";
    int64_t n = 0;
    (void)(ht_json_str(model, "arch", "", &arch, NULL) == 0);
    (void)(ht_json_str(model, "contract", "", &contract, NULL) == 0);
    (void)(ht_json_i64(model, "parameters", 0, &n, NULL) == 0);
    if (n) (void)snprintf(size, sizeof size, "%.1fM", (double)n * 1e-6);
    (void)s;
    ht_jw_key(w, "details");
    ht_jw_obj(w);
    ht_jw_kstr(w, "parent_model", "");
    ht_jw_kstr(w, "format", "gguf");
    ht_jw_kstr(w, "family", arch);
    ht_jw_key(w, "families");
    ht_jw_arr(w);
    ht_jw_str(w, arch);
    ht_jw_end(w, ']');
    ht_jw_kstr(w, "parameter_size", size);
    ht_jw_kstr(w, "quantization_level", contract);
    ht_jw_end(w, '}');
}

static void write_model(serve__server *s, ht_jw *w, const ht_json *model)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "name", s->model_id);
    ht_jw_kstr(w, "model", s->model_id);
    ht_jw_kuint(w, "size", s->model_bytes);
    ht_jw_kstr(w, "digest", s->digest);
    write_time(w, "modified_at", s->created);
    write_details(s, w, model);
}

/* {"models":[...]}; running: with what ps adds. */
static void list(serve__server *s, serve__conn *c, bool running)
{
    ht_arena *a = NULL;
    ht_json *info = NULL;
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    if (ht_arena_new(&a, 0, NULL) ||
        ht_json_parse(a, s->info, strlen(s->info), 0, "info", &info, NULL))
        info = NULL;
    ht_jw_obj(&w);
    ht_jw_key(&w, "models");
    ht_jw_arr(&w);
    write_model(s, &w, ht_json_get(info, "model"));
    if (running) {
        ht_jw_kstr(&w, "expires_at", "9999-12-31T23:59:59Z"); /* as long as the server runs */
        ht_jw_kuint(&w, "size_vram", 0);
        ht_jw_kuint(&w, "context_length", s->ctx);
    }
    ht_jw_end(&w, '}');
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    ht_arena_free(a);
    serve__answer_json(c, 200, &b);
}

void serve__ollama_tags(serve__server *s, serve__conn *c)
{
    list(s, c, false);
}

void serve__ollama_ps(serve__server *s, serve__conn *c)
{
    list(s, c, true);
}

void serve__ollama_version(serve__server *s, serve__conn *c)
{
    ht_buf b;
    (void)s;
    ht_buf_init(&b, 0);
    /* Clients compare it with versions of Ollama: the protocol's, then who it is. */
    ht_buf_fmt(&b, "{\"version\":\"0.6.4\",\"server\":\"hetero %s\"}", ht_version());
    serve__answer_json(c, 200, &b);
}

void serve__ollama_show(serve__server *s, serve__conn *c)
{
    serve__fail f = {0};
    serve__req *r = serve__req_new(s, c, &serve__proto_ollama_chat, &f);
    ht_json *info = NULL;
    if (!r || serve__model_name(r, r->body, &f)) {
        serve__answer_fail(s, c, &serve__proto_ollama_chat, &f);
        serve__req_free(r);
        return;
    }
    if (ht_json_parse(r->arena, s->info, strlen(s->info), 0, "info", &info, NULL)) info = NULL;
    const ht_json *m = ht_json_get(info, "model");
    const char *arch = "";
    char key[64];
    (void)(ht_json_str(m, "arch", "", &arch, NULL) == 0);
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "modelfile", "");
    ht_jw_kstr(&w, "parameters", "");
    ht_jw_key(&w, "template");
    ht_jw_strn(&w, s->tmpl ? s->tmpl : "", s->tmpl ? s->tmpl_n : 0);
    write_details(s, &w, m);
    ht_jw_key(&w, "model_info");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "general.architecture", arch);
    (void)snprintf(key, sizeof key, "%.40s.context_length", arch);
    ht_jw_kuint(&w, key, s->ctx);
    ht_jw_end(&w, '}');
    ht_jw_key(&w, "capabilities");
    ht_jw_arr(&w);
    ht_jw_str(&w, "completion");
    if (s->tmpl) ht_jw_str(&w, "tools");
    if (s->tmpl_reasons) ht_jw_str(&w, "thinking");
    ht_jw_end(&w, ']');
    write_time(&w, "modified_at", s->created);
    ht_jw_end(&w, '}');
    serve__answer_json(c, 200, &b);
    serve__req_free(r);
}

void serve__ollama_embed(serve__server *s, serve__conn *c)
{
    serve__fail f;
    (void)serve__bad(&f, 400, "unsupported_model", "model",
                     "'%s' generates text and has no pooling rule; use an embedding model",
                     s->model_id);
    serve__answer_fail(s, c, &serve__proto_ollama_chat, &f);
}
