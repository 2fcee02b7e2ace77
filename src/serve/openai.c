/* openai.c - /v1/chat/completions and /v1/completions, whole and streamed. */
#include "core/arena.h"
#include "core/utf8.h"
#include "serve/server.h"
#include <stdio.h>
#include <string.h>

static const serve__proto proto_text;

#define OK(n)                                                                                      \
    {                                                                                              \
        n, FIELD_OK, NULL                                                                          \
    }
#define NO(n, why)                                                                                 \
    {                                                                                              \
        n, FIELD_REFUSED, why                                                                      \
    }
#define IGN(n)                                                                                     \
    {                                                                                              \
        n, FIELD_IGNORED, NULL                                                                     \
    }
#define SAMPLING                                                                                   \
    OK("temperature"), OK("top_p"), OK("min_p"), OK("typical_p"), OK("top_k"),                     \
        OK("repeat_penalty"), OK("repetition_penalty"), OK("repeat_last_n"),                       \
        OK("presence_penalty"), OK("frequency_penalty"), OK("dry_multiplier"), OK("dry_base"),     \
        OK("dry_allowed_length"), OK("dry_penalty_last_n"), OK("xtc_probability"),                 \
        OK("xtc_threshold"), OK("seed"), OK("logit_bias"), OK("stop"), OK("ignore_eos")
/* What costs nothing to accept and says nothing of the answer: bookkeeping of hosted services. */
#define HOSTED                                                                                     \
    OK("user"), OK("metadata"), OK("store"), OK("service_tier"), OK("safety_identifier"),          \
        OK("prompt_cache_key"), OK("prompt_cache_retention")
#define EXTENSIONS                                                                                 \
    OK("model"), OK("stream"), OK("stream_options"), OK("n"), OK("max_tokens"), OK("n_predict"),   \
        OK("grammar"), OK("json_schema"), OK("cache_prompt"), OK("return_tokens"),                 \
        OK("return_progress"), OK("timings_per_token"), OK("hash_logits"),                         \
        NO("id_slot", "slots are chosen by the server"),                                           \
        NO("n_probs", "use logprobs and top_logprobs")
static const serve__field chat_fields[] = {
    SAMPLING,
    HOSTED,
    EXTENSIONS,
    OK("messages"),
    OK("max_completion_tokens"),
    OK("logprobs"),
    OK("top_logprobs"),
    OK("response_format"),
    OK("tools"),
    OK("tool_choice"),
    OK("parallel_tool_calls"),
    OK("reasoning_effort"),
    OK("chat_template_kwargs"),
    OK("modalities"),
    OK("add_generation_prompt"),
    OK("reasoning_format"),
    IGN("verbosity"),
    NO("functions", "use tools"),
    NO("function_call", "use tool_choice"),
    NO("audio", "this server makes text"),
    NO("prediction", "use --lookup or a draft model"),
    NO("web_search_options", "this server has no network of its own"),
    NO("moderation", "this server has none"),
};
static const serve__field text_fields[] = {
    SAMPLING,
    HOSTED,
    EXTENSIONS,
    OK("prompt"),
    OK("logprobs"),
    OK("echo"),
    OK("response_format"),
    NO("suffix", "this server does not fill in the middle"),
    OK("best_of"),
};

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_common(serve__req *r, const ht_json *o, serve__fail *f)
{
    int64_t max_new = -1, n = 1;
    const ht_json *options = ht_json_get(o, "stream_options");
    if (serve__model_name(r, o, f) || serve__sampling(r, o, f) || serve__stops(r, o, "stop", f) ||
        serve__logit_bias(r, o, f) || serve__get_bool(o, "stream", &r->stream, f) ||
        serve__get_bool(o, "ignore_eos", &r->ignore_eos, f) ||
        serve__get_bool(o, "cache_prompt", &r->cache_prompt, f) ||
        serve__get_bool(o, "return_tokens", &r->return_tokens, f) ||
        serve__get_bool(o, "return_progress", &r->return_progress, f) ||
        serve__get_bool(o, "timings_per_token", &r->timings, f) ||
        serve__get_bool(o, "hash_logits", &r->hash_logits, f) ||
        serve__get_int(o, "n", 1, MAX_JOBS, &n, f) ||
        serve__get_int(o, "n_predict", -1, INT32_MAX, &max_new, f) ||
        serve__get_int(o, "max_tokens", -1, INT32_MAX, &max_new, f) ||
        serve__get_int(o, "max_completion_tokens", -1, INT32_MAX, &max_new, f))
        return true;
    if (max_new == 0)
        return serve__bad(f, 400, "invalid_value", "max_tokens",
                          "an answer of 0 tokens cannot be made; -1 is no limit of its own");
    if (options && options->type != HT_JNULL && options->type != HT_JOBJ)
        return serve__bad(f, 400, "invalid_type", "stream_options",
                          "'stream_options' must be an object");
    if (options && options->type == HT_JOBJ) {
        if (!r->stream)
            return serve__bad(f, 400, "invalid_value", "stream_options",
                              "'stream_options' needs 'stream'");
        if (serve__get_bool(options, "include_usage", &r->include_usage, f)) return true;
    }
    r->n_choices = (uint32_t)n;
    r->max_new = max_new > 0 ? (uint32_t)max_new : r->s->p.max_new;
    return false;
}

static bool schema_text(serve__req *r, const ht_json *schema, const char *param, serve__fail *f)
{
    ht_buf b;
    ht_err err = {0};
    ht_buf_init(&b, 0);
    bool bad = false;
    if (ht_json_write(schema, 0, &b, &err)) bad = serve__bad_err(f, param, &err);
    if (!bad) bad = serve__grammar_of(r, HT_GRAMMAR_SCHEMA, b.p, b.n, param, f);
    ht_buf_done(&b);
    return bad;
}

static bool read_format(serve__req *r, const ht_json *o, serve__fail *f)
{
    const char *gbnf = NULL, *type = NULL;
    const ht_json *fmt = ht_json_get(o, "response_format"), *schema = ht_json_get(o, "json_schema");
    if (serve__get_str(o, "grammar", &gbnf, f)) return true;
    if (gbnf && serve__grammar_of(r, HT_GRAMMAR_GBNF, gbnf, strlen(gbnf), "grammar", f))
        return true;
    if (schema && schema->type != HT_JNULL && schema_text(r, schema, "json_schema", f)) return true;
    if (!fmt || fmt->type == HT_JNULL) return false;
    if (fmt->type != HT_JOBJ || serve__get_str(fmt, "type", &type, f) || !type)
        return serve__bad(f, 400, "invalid_type", "response_format",
                          "'response_format' must be an object with a type");
    if (!strcmp(type, "text")) return false;
    if (!strcmp(type, "json_object")) {
        /* llama.cpp's clients put a schema beside it. */
        schema = ht_json_get(fmt, "schema");
        if (schema && schema->type == HT_JOBJ)
            return schema_text(r, schema, "response_format.schema", f);
        return serve__grammar_of(r, HT_GRAMMAR_JSON, "", 0, "response_format", f);
    }
    if (strcmp(type, "json_schema") != 0)
        return serve__bad(f, 400, "invalid_value", "response_format.type",
                          "'response_format.type' must be text, json_object or json_schema");
    schema = ht_json_path(fmt, "json_schema.schema");
    if (!schema) schema = ht_json_get(fmt, "schema");
    if (!schema || (schema->type != HT_JOBJ && schema->type != HT_JBOOL))
        return serve__bad(f, 400, "missing_field", "response_format.json_schema",
                          "'response_format.json_schema.schema' is missing");
    return schema_text(r, schema, "response_format.json_schema.schema", f);
}

static bool read_logprobs(serve__req *r, const ht_json *o, serve__fail *f)
{
    int64_t top = 0;
    if (serve__get_bool(o, "logprobs", &r->logprobs, f) ||
        serve__get_int(o, "top_logprobs", 0, MAX_TOP, &top, f))
        return true;
    if (top && !r->logprobs)
        return serve__bad(f, 400, "invalid_value", "top_logprobs",
                          "'top_logprobs' needs 'logprobs'");
    r->n_top = (uint32_t)top;
    return false;
}

/* reasoning_effort none or minimal asks the template for an answer without; reasoning_format none
 * leaves the marks in the text. */
static bool read_reasoning(serve__req *r, const ht_json *o, serve__fail *f)
{
    const char *effort = NULL, *format = NULL;
    if (serve__get_str(o, "reasoning_effort", &effort, f) ||
        serve__get_str(o, "reasoning_format", &format, f))
        return true;
    if (effort && strcmp(effort, "none") && strcmp(effort, "minimal") && strcmp(effort, "low") &&
        strcmp(effort, "medium") && strcmp(effort, "high") && strcmp(effort, "xhigh"))
        return serve__bad(f, 400, "invalid_value", "reasoning_effort",
                          "'reasoning_effort' must be none, minimal, low, medium, high or xhigh");
    r->no_thinking = effort && (!strcmp(effort, "none") || !strcmp(effort, "minimal"));
    r->reasoning = r->s->tmpl_reasons && !(format && !strcmp(format, "none"));
    return false;
}

/* What comes out is text; asking for anything else beside it cannot be honoured. */
static bool only_text(const ht_json *o, serve__fail *f)
{
    const ht_json *m = ht_json_get(o, "modalities");
    bool ok = !m || m->type == HT_JNULL || m->type == HT_JARR;
    for (size_t i = 0; ok && m && m->type == HT_JARR && i < m->n; i++)
        ok = m->at[i].type == HT_JSTR && !strcmp(m->at[i].s, "text");
    if (ok) return false;
    return serve__bad(f, 400, "unsupported_parameter", "modalities",
                      "'modalities' must be [\"text\"]: this server makes text");
}

static bool read_chat(serve__req *r, serve__fail *f)
{
    const ht_json *o = r->body;
    bool parallel = true;
    int32_t *ids = NULL;
    size_t n = 0;
    r->is_chat = true;
    if (serve__fields(r, o, chat_fields, sizeof chat_fields / sizeof *chat_fields, f) ||
        read_common(r, o, f) || only_text(o, f) || read_reasoning(r, o, f) ||
        read_logprobs(r, o, f) || serve__get_bool(o, "parallel_tool_calls", &parallel, f) ||
        read_format(r, o, f))
        return true;
    /* A form and thoughts before it: the thoughts would have to follow the form. */
    if (r->grammar && r->reasoning) r->no_thinking = true;
    return serve__tools(r, ht_json_get(o, "tools"), ht_json_get(o, "tool_choice"), parallel, f) ||
           serve__chat_prompt(r, ht_json_get(o, "messages"), ht_json_get(o, "chat_template_kwargs"),
                              &ids, &n, f) ||
           serve__set_jobs(r, &ids, &n, 1, f);
}

void serve__chat_completions(serve__server *s, serve__conn *c)
{
    serve__fail f = {0};
    serve__req *r = serve__req_new(s, c, &serve__proto_chat, &f);
    if (r) serve__go(r, read_chat(r, &f), &f);
    else serve__answer_fail(s, c, &serve__proto_chat, &f);
}

/* ---- prompts of /v1/completions -------------------------------------------------------------- */

static bool encode(serve__req *r, const char *text, size_t n, int32_t **ids, size_t *k,
                   serve__fail *f)
{
    int32_t *got = NULL;
    ht_err err = {0};
    if (ht_vocab_encode(r->s->vocab, text, n, HT_TOK_BOS | HT_TOK_SPECIAL, &got, k, &err))
        return serve__bad_err(f, "prompt", &err);
    *ids = ht_arena_array(r->arena, *k, sizeof **ids);
    if (*ids && *k) memcpy(*ids, got, *k * sizeof **ids);
    ht_free(got);
    return *ids ? false : serve__bad(f, 503, "out_of_memory", NULL, "no memory for a prompt");
}

static bool token_array(serve__req *r, const ht_json *v, int32_t **ids, size_t *k, serve__fail *f)
{
    *ids = ht_arena_array(r->arena, v->n, sizeof **ids);
    if (!*ids) return serve__bad(f, 503, "out_of_memory", NULL, "no memory for a prompt");
    for (size_t i = 0; i < v->n; i++) {
        if (v->at[i].type != HT_JINT || v->at[i].i < 0 ||
            v->at[i].i >= (int64_t)ht_engine_n_logits(r->s->engine))
            return serve__bad(f, 400, "invalid_value", "prompt",
                              "entry %zu of the prompt is no token of this model (0 to %u)", i,
                              ht_engine_n_logits(r->s->engine) - 1);
        (*ids)[i] = (int32_t)v->at[i].i;
    }
    *k = v->n;
    return false;
}

/* A text, an array of texts, an array of tokens, an array of those. */
static bool read_prompts(serve__req *r, const ht_json *v, serve__fail *f)
{
    int32_t *ids[MAX_JOBS];
    size_t n[MAX_JOBS], count = 0;
    if (!v || v->type == HT_JNULL)
        return serve__bad(f, 400, "missing_field", "prompt", "'prompt' is missing");
    if (v->type == HT_JSTR) {
        if (encode(r, v->s, v->n, &ids[0], &n[0], f)) return true;
        return serve__set_jobs(r, ids, n, 1, f);
    }
    if (v->type != HT_JARR || !v->n)
        return serve__bad(f, 400, "invalid_type", "prompt",
                          "'prompt' must be a text, an array of texts or an array of tokens");
    if (v->at[0].type == HT_JINT) {
        if (token_array(r, v, &ids[0], &n[0], f)) return true;
        return serve__set_jobs(r, ids, n, 1, f);
    }
    if (v->n > MAX_JOBS)
        return serve__bad(f, 400, "invalid_value", "prompt", "%zu prompts are too many; at most %d",
                          v->n, (int)MAX_JOBS);
    for (; count < v->n; count++) {
        const ht_json *e = &v->at[count];
        bool bad;
        if (e->type == HT_JSTR) bad = encode(r, e->s, e->n, &ids[count], &n[count], f);
        else if (e->type == HT_JARR) bad = token_array(r, e, &ids[count], &n[count], f);
        else
            bad =
                serve__bad(f, 400, "invalid_type", "prompt",
                           "entry %zu of 'prompt' is neither a text nor an array of tokens", count);
        if (bad) return true;
    }
    return serve__set_jobs(r, ids, n, count, f);
}

static bool read_text(serve__req *r, serve__fail *f)
{
    const ht_json *o = r->body;
    int64_t top = -1, best = 1;
    if (serve__fields(r, o, text_fields, sizeof text_fields / sizeof *text_fields, f) ||
        read_common(r, o, f) || serve__get_int(o, "logprobs", 0, MAX_TOP, &top, f) ||
        serve__get_int(o, "best_of", 1, MAX_JOBS, &best, f) ||
        serve__get_bool(o, "echo", &r->echo, f) || read_format(r, o, f))
        return true;
    if (best > (int64_t)r->n_choices)
        return serve__bad(f, 400, "unsupported_parameter", "best_of",
                          "'best_of' above 'n' is not supported");
    if (r->echo && top >= 0)
        return serve__bad(
            f, 400, "unsupported_parameter", "echo",
            "'echo' together with 'logprobs' is not supported: log-probabilities of a "
            "prompt are what `hetero logits` prints");
    r->logprobs = top >= 0;
    r->n_top = top > 0 ? (uint32_t)top : 0;
    /* The sampler's defaults of this protocol stop at 16 tokens; nobody wants that: no limit. */
    return read_prompts(r, ht_json_get(o, "prompt"), f);
}

void serve__completions(serve__server *s, serve__conn *c)
{
    serve__fail f = {0};
    serve__req *r = serve__req_new(s, c, &proto_text, &f);
    if (r) serve__go(r, read_text(r, &f), &f);
    else serve__answer_fail(s, c, &proto_text, &f);
}

/* ---- answers: parts ------------------------------------------------------------------------- */

static void head(ht_jw *w, const serve__req *r, const char *prefix, const char *object)
{
    char id[80];
    (void)snprintf(id, sizeof id, "%s%s", prefix, r->id);
    ht_jw_obj(w);
    ht_jw_kstr(w, "id", id);
    ht_jw_kstr(w, "object", object);
    ht_jw_kint(w, "created", r->created);
    ht_jw_kstr(w, "model", r->s->model_id);
    ht_jw_kstr(w, "system_fingerprint", r->s->fingerprint);
}

static void usage(ht_jw *w, const serve__req *r)
{
    uint64_t prompt, kept, out;
    serve__usage(r, &prompt, &kept, &out);
    ht_jw_obj(w);
    ht_jw_kuint(w, "prompt_tokens", prompt);
    ht_jw_kuint(w, "completion_tokens", out);
    ht_jw_kuint(w, "total_tokens", prompt + out);
    ht_jw_key(w, "prompt_tokens_details");
    ht_jw_obj(w);
    ht_jw_kuint(w, "cached_tokens", kept);
    ht_jw_end(w, '}');
    ht_jw_end(w, '}');
}

static void raw_array(ht_jw *w, const char *key, const ht_buf *b)
{
    ht_buf t;
    ht_buf_init(&t, 0);
    ht_buf_char(&t, '[');
    ht_buf_add(&t, b->p ? b->p : "", b->n);
    ht_buf_char(&t, ']');
    ht_jw_key(w, key);
    if (t.bad) w->b->bad = true;
    else ht_jw_raw(w, t.p, t.n);
    ht_buf_done(&t);
}

/* "logprobs" from the items of a piece or of the whole answer. */
static void logprobs(ht_jw *w, const serve__req *r, ht_buf lp[4])
{
    ht_jw_key(w, "logprobs");
    if (!r->logprobs) {
        ht_jw_null(w);
        return;
    }
    ht_jw_obj(w);
    if (r->is_chat) {
        raw_array(w, "content", &lp[0]);
        ht_jw_key(w, "refusal");
        ht_jw_null(w);
    } else {
        raw_array(w, "tokens", &lp[0]);
        raw_array(w, "token_logprobs", &lp[1]);
        raw_array(w, "top_logprobs", &lp[2]);
        raw_array(w, "text_offset", &lp[3]);
    }
    ht_jw_end(w, '}');
}

static void write_error(const serve__fail *f, ht_buf *b)
{
    ht_jw w;
    ht_jw_init(&w, b, 0);
    ht_jw_obj(&w);
    ht_jw_key(&w, "error");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "message", f->message);
    ht_jw_kstr(&w, "type",
               f->status == 401   ? "authentication_error"
               : f->status == 404 ? "not_found_error"
               : f->status == 429 ? "rate_limit_error"
               : f->status < 500  ? "invalid_request_error"
                                  : "server_error");
    ht_jw_key(&w, "param");
    if (f->param[0]) ht_jw_str(&w, f->param);
    else ht_jw_null(&w);
    ht_jw_kstr(&w, "code", f->code);
    if (f->n_ctx) {
        ht_jw_kuint(&w, "n_prompt_tokens", f->n_prompt);
        ht_jw_kuint(&w, "n_ctx", f->n_ctx);
    }
    ht_jw_end(&w, '}');
    ht_jw_end(&w, '}');
}

static void sse(ht_buf *b, const ht_buf *json)
{
    ht_buf_str(b, "data: ");
    ht_buf_add(b, json->p ? json->p : "", json->n);
    ht_buf_str(b, "\n\n");
    if (json->bad) b->bad = true;
}

static void stream_error(serve__req *r, const serve__fail *f, ht_buf *b)
{
    ht_buf t;
    (void)r;
    ht_buf_init(&t, 0);
    write_error(f, &t);
    sse(b, &t);
    ht_buf_done(&t);
}

/* ---- chat: streamed -------------------------------------------------------------------------- */

static void chunk_begin(ht_jw *w, ht_buf *t, const serve__req *r)
{
    ht_buf_init(t, 0);
    ht_jw_init(w, t, 0);
    head(w, r, "chatcmpl-", "chat.completion.chunk");
}

/* choices: one with this delta; finish NULL: null. */
static void chunk_end(ht_jw *w, ht_buf *t, serve__job *j, const ht_buf *delta, const char *finish,
                      ht_buf *b)
{
    serve__req *r = j->req;
    ht_jw_key(w, "choices");
    ht_jw_arr(w);
    ht_jw_obj(w);
    ht_jw_kuint(w, "index", j->index);
    ht_jw_key(w, "delta");
    ht_jw_raw(w, delta->p ? delta->p : "{}", delta->p ? delta->n : 2);
    logprobs(w, r, j->lp);
    for (int i = 0; i < 4; i++) ht_buf_clear(&j->lp[i]);
    ht_jw_key(w, "finish_reason");
    if (finish) ht_jw_str(w, finish);
    else ht_jw_null(w);
    ht_jw_end(w, '}');
    ht_jw_end(w, ']');
    if (r->include_usage) {
        ht_jw_key(w, "usage");
        ht_jw_null(w);
    }
    if (r->return_tokens && j->ids_out.n) {
        raw_array(w, "tokens", &j->ids_out);
        ht_buf_clear(&j->ids_out);
    }
    if (finish) {
        ht_jw_key(w, "timings");
        serve__write_timings(w, j);
    }
    ht_jw_end(w, '}');
    sse(b, t);
    ht_buf_done(t);
}

static void chat_open(serve__req *r, ht_buf *b)
{
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        ht_jw w;
        ht_buf t, delta;
        ht_buf_init(&delta, 0);
        ht_buf_str(&delta, "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null}");
        chunk_begin(&w, &t, r);
        chunk_end(&w, &t, &r->job[i], &delta, NULL, b);
        ht_buf_done(&delta);
    }
}

static void chat_progress(serve__job *j, uint32_t done, uint32_t total, ht_buf *b)
{
    ht_jw w;
    ht_buf t;
    chunk_begin(&w, &t, j->req);
    ht_jw_key(&w, "choices");
    ht_jw_arr(&w);
    ht_jw_end(&w, ']');
    ht_jw_key(&w, "prompt_progress");
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "total", j->n_ids);
    ht_jw_kuint(&w, "cache", j->n_ids - total);
    ht_jw_kuint(&w, "processed", j->n_ids - total + done);
    ht_jw_end(&w, '}');
    ht_jw_end(&w, '}');
    sse(b, &t);
    ht_buf_done(&t);
}

static void chat_piece(serve__job *j, const serve__piece *p, ht_buf *b)
{
    ht_jw w, d;
    ht_buf t, delta;
    if (p->kind == PIECE_CALL_END) return;
    ht_buf_init(&delta, 0);
    ht_jw_init(&d, &delta, 0);
    ht_jw_obj(&d);
    if (p->kind == PIECE_TEXT || p->kind == PIECE_REASONING) {
        ht_jw_key(&d, p->kind == PIECE_TEXT ? "content" : "reasoning_content");
        ht_jw_strn(&d, p->text, p->n);
    } else if (p->kind == PIECE_CALL || p->kind == PIECE_ARGS) {
        ht_jw_key(&d, "tool_calls");
        ht_jw_arr(&d);
        ht_jw_obj(&d);
        ht_jw_kuint(&d, "index", p->call);
        if (p->kind == PIECE_CALL) {
            ht_jw_kstr(&d, "id", j->call[p->call].id);
            ht_jw_kstr(&d, "type", "function");
        }
        ht_jw_key(&d, "function");
        ht_jw_obj(&d);
        if (p->kind == PIECE_CALL) ht_jw_kstr(&d, "name", j->call[p->call].name);
        ht_jw_key(&d, "arguments");
        ht_jw_strn(&d, p->text, p->n);
        ht_jw_end(&d, '}');
        ht_jw_end(&d, '}');
        ht_jw_end(&d, ']');
    }
    ht_jw_end(&d, '}');
    chunk_begin(&w, &t, j->req);
    if (delta.bad) t.bad = true;
    if (j->req->timings) {
        ht_jw_key(&w, "timings");
        ht_jw_obj(&w);
        ht_jw_kuint(&w, "predicted_n", j->n_out);
        ht_jw_kreal(&w, "predicted_ms", (double)(j->last_ns - j->first_ns) * 1e-6);
        ht_jw_end(&w, '}');
    }
    chunk_end(&w, &t, j, &delta, NULL, b);
    ht_buf_done(&delta);
}

static void chat_job_end(serve__job *j, ht_buf *b)
{
    ht_jw w;
    ht_buf t;
    const ht_buf none = {0};
    chunk_begin(&w, &t, j->req);
    chunk_end(&w, &t, j, &none, serve__finish_reason(j), b);
}

/* The extra chunk with the usage, where it is asked for, and what only this server has to say. */
static void close_stream(serve__req *r, const char *prefix, const char *object, ht_buf *b)
{
    if (r->include_usage) {
        ht_jw w;
        ht_buf t;
        ht_buf_init(&t, 0);
        ht_jw_init(&w, &t, 0);
        head(&w, r, prefix, object);
        ht_jw_key(&w, "choices");
        ht_jw_arr(&w);
        ht_jw_end(&w, ']');
        ht_jw_key(&w, "usage");
        usage(&w, r);
        ht_jw_key(&w, "hetero");
        serve__write_hetero(&w, r);
        ht_jw_end(&w, '}');
        sse(b, &t);
        ht_buf_done(&t);
    }
    ht_buf_str(b, "data: [DONE]\n\n");
}

static void chat_close(serve__req *r, ht_buf *b)
{
    close_stream(r, "chatcmpl-", "chat.completion.chunk", b);
}

/* ---- chat: whole ----------------------------------------------------------------------------- */

static void write_message(ht_jw *w, const serve__job *j)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "role", "assistant");
    ht_jw_key(w, "content");
    if (j->n_calls && !j->text.n) ht_jw_null(w);
    else ht_jw_strn(w, j->text.p ? j->text.p : "", j->text.n);
    ht_jw_key(w, "refusal");
    ht_jw_null(w);
    if (j->reasoning.n) {
        ht_jw_key(w, "reasoning_content");
        ht_jw_strn(w, j->reasoning.p, j->reasoning.n);
    }
    if (j->n_calls) {
        ht_jw_key(w, "tool_calls");
        ht_jw_arr(w);
        for (uint32_t i = 0; i < j->n_calls; i++) {
            ht_jw_obj(w);
            ht_jw_kstr(w, "id", j->call[i].id);
            ht_jw_kstr(w, "type", "function");
            ht_jw_key(w, "function");
            ht_jw_obj(w);
            ht_jw_kstr(w, "name", j->call[i].name);
            ht_jw_key(w, "arguments");
            ht_jw_strn(w, j->call[i].args.p ? j->call[i].args.p : "{}",
                       j->call[i].args.p ? j->call[i].args.n : 2);
            ht_jw_end(w, '}');
            ht_jw_end(w, '}');
        }
        ht_jw_end(w, ']');
    }
    ht_jw_end(w, '}');
}

static void write_tail(ht_jw *w, serve__req *r)
{
    ht_jw_key(w, "usage");
    usage(w, r);
    ht_jw_key(w, "timings");
    serve__write_timings(w, &r->job[0]);
    ht_jw_key(w, "hetero");
    serve__write_hetero(w, r);
    ht_jw_end(w, '}');
}

static void chat_whole(serve__req *r, ht_buf *b)
{
    ht_jw w;
    ht_jw_init(&w, b, 0);
    head(&w, r, "chatcmpl-", "chat.completion");
    ht_jw_key(&w, "choices");
    ht_jw_arr(&w);
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        serve__job *j = &r->job[i];
        ht_jw_obj(&w);
        ht_jw_kuint(&w, "index", i);
        ht_jw_key(&w, "message");
        write_message(&w, j);
        logprobs(&w, r, j->lp_all);
        ht_jw_kstr(&w, "finish_reason", serve__finish_reason(j));
        if (r->return_tokens) raw_array(&w, "tokens", &j->ids_out);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    write_tail(&w, r);
}

const serve__proto serve__proto_chat = {
    .name = "chat",
    .stream_type = "text/event-stream",
    .ping = ": keep-alive\n\n",
    .open = chat_open,
    .progress = chat_progress,
    .piece = chat_piece,
    .job_end = chat_job_end,
    .close = chat_close,
    .whole = chat_whole,
    .error = write_error,
    .stream_error = stream_error,
};

/* ---- completions ----------------------------------------------------------------------------- */

static void text_choice(ht_jw *w, serve__job *j, const char *text, size_t n, ht_buf lp[4],
                        const char *finish)
{
    ht_jw_obj(w);
    ht_jw_kuint(w, "index", j->index);
    ht_jw_key(w, "text");
    ht_jw_strn(w, text, n);
    logprobs(w, j->req, lp);
    ht_jw_key(w, "finish_reason");
    if (finish) ht_jw_str(w, finish);
    else ht_jw_null(w);
    if (j->req->return_tokens) raw_array(w, "tokens", &j->ids_out);
    ht_jw_end(w, '}');
}

static void text_chunk(serve__job *j, const char *text, size_t n, const char *finish, ht_buf *b)
{
    ht_jw w;
    ht_buf t;
    ht_buf_init(&t, 0);
    ht_jw_init(&w, &t, 0);
    head(&w, j->req, "cmpl-", "text_completion");
    ht_jw_key(&w, "choices");
    ht_jw_arr(&w);
    text_choice(&w, j, text, n, j->lp, finish);
    for (int i = 0; i < 4; i++) ht_buf_clear(&j->lp[i]);
    ht_buf_clear(&j->ids_out);
    ht_jw_end(&w, ']');
    if (j->req->include_usage) {
        ht_jw_key(&w, "usage");
        ht_jw_null(&w);
    }
    if (finish) {
        ht_jw_key(&w, "timings");
        serve__write_timings(&w, j);
    }
    ht_jw_end(&w, '}');
    sse(b, &t);
    ht_buf_done(&t);
}

/* The prompt as text, for "echo". */
static char *echoed(const serve__job *j, size_t *n)
{
    char *text = NULL;
    *n = 0;
    if (!j->req->echo || ht_vocab_decode(j->req->s->vocab, j->ids, j->n_ids, 0, &text, n, NULL))
        return NULL;
    *n = ht_utf8_valid(text, *n);
    return text;
}

static void text_open(serve__req *r, ht_buf *b)
{
    for (uint32_t i = 0; i < r->n_jobs && r->echo; i++) {
        size_t n;
        char *text = echoed(&r->job[i], &n);
        if (text) text_chunk(&r->job[i], text, n, NULL, b);
        ht_free(text);
    }
}

static void text_piece(serve__job *j, const serve__piece *p, ht_buf *b)
{
    text_chunk(j, p->text, p->n, NULL, b);
}

static void text_job_end(serve__job *j, ht_buf *b)
{
    text_chunk(j, "", 0, serve__finish_reason(j), b);
}

static void text_close(serve__req *r, ht_buf *b)
{
    close_stream(r, "cmpl-", "text_completion", b);
}

static void text_whole(serve__req *r, ht_buf *b)
{
    ht_jw w;
    ht_jw_init(&w, b, 0);
    head(&w, r, "cmpl-", "text_completion");
    ht_jw_key(&w, "choices");
    ht_jw_arr(&w);
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        serve__job *j = &r->job[i];
        size_t n;
        ht_buf all;
        char *text = echoed(j, &n);
        ht_buf_init(&all, 0);
        ht_buf_add(&all, text ? text : "", n);
        ht_buf_add(&all, j->text.p ? j->text.p : "", j->text.n);
        ht_free(text);
        if (all.bad) b->bad = true;
        text_choice(&w, j, all.p ? all.p : "", all.n, j->lp_all, serve__finish_reason(j));
        ht_buf_done(&all);
    }
    ht_jw_end(&w, ']');
    write_tail(&w, r);
}

static const serve__proto proto_text = {
    .name = "completion",
    .stream_type = "text/event-stream",
    .ping = ": keep-alive\n\n",
    .open = text_open,
    .piece = text_piece,
    .job_end = text_job_end,
    .close = text_close,
    .whole = text_whole,
    .error = write_error,
    .stream_error = stream_error,
};
