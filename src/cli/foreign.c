/* foreign.c - see foreign.h. llama-server: POST /completion with ids, events {"content","tokens",
 * "stop"}; OpenAI: POST /v1/completions, events {"choices":[{"text"}],"usage"} and [DONE];
 * Ollama: POST /api/generate with raw text, a JSON object a line, the last with "done":true. */
#include "cli/foreign.h"
#include <stdio.h>
#include <string.h>

enum { CHUNKS_MAX = 1 << 20 };

typedef struct {
    ht_arena *a;
    const cli__server *s;
    cli__foreign *out;
    ht_bench_chunk *chunk;
    size_t n, cap;
    const ht_buf *raw; /* of the response, as far as it has come                      */
    size_t taken;      /* bytes of it that belong to chunks                           */
    bool done, after, error, broken, memory;
} reader;

static void add_chunk(reader *r, uint64_t t, const ht_json *ids)
{
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 64;
        ht_bench_chunk *more = cap <= CHUNKS_MAX ? ht_arena_array(r->a, cap, sizeof *more) : NULL;
        if (!more) {
            r->memory = true;
            return;
        }
        if (r->n) memcpy(more, r->chunk, r->n * sizeof *more);
        r->chunk = more;
        r->cap = cap;
    }
    size_t n = ids && ids->type == HT_JARR ? ids->n : 0;
    int32_t *tok = ht_arena_array(r->a, n, sizeof *tok);
    if (!tok) r->memory = true;
    for (size_t i = 0; tok && i < n; i++) {
        r->broken = r->broken || ids->at[i].type != HT_JINT;
        tok[i] = (int32_t)ids->at[i].i;
    }
    /* A chunk reaches to the end of the piece that completed its event: events of one piece after
     * the first have no bytes of their own. */
    const size_t bytes = r->raw->n - r->taken;
    r->taken = r->raw->n;
    r->chunk[r->n++] = (ht_bench_chunk){t, (uint32_t)bytes, tok ? (uint32_t)n : 0, tok};
    r->out->n_out += (uint32_t)n;
}

static void said(int64_t *out, const ht_json *j, const char *path)
{
    const ht_json *v = ht_json_path(j, path);
    if (v && v->type == HT_JINT) *out = v->i;
}

static void on_llama(reader *r, const ht_json *j, uint64_t t)
{
    const ht_json *ids = ht_json_get(j, "tokens"), *stop = ht_json_get(j, "stop");
    bool last = stop && stop->type == HT_JBOOL && stop->b;
    if (ids && ids->type == HT_JARR && ids->n && !last) add_chunk(r, t, ids);
    if (!last) return;
    int64_t fresh = -1, cached = 0;
    said(&fresh, j, "timings.prompt_n");
    said(&cached, j, "timings.cache_n");
    if (fresh >= 0) r->out->said_prompt = fresh + cached;
    said(&r->out->said_out, j, "timings.predicted_n");
    r->done = true;
}

static void on_openai(reader *r, const ht_json *j, uint64_t t)
{
    const ht_json *list = ht_json_get(j, "choices");
    const ht_json *first = list && list->type == HT_JARR && list->n ? &list->at[0] : NULL;
    const char *text = cli__str(first, "text", "");
    if (*text) add_chunk(r, t, NULL);
    said(&r->out->said_prompt, j, "usage.prompt_tokens");
    said(&r->out->said_out, j, "usage.completion_tokens");
}

static void on_ollama(reader *r, const ht_json *j, uint64_t t)
{
    const ht_json *done = ht_json_get(j, "done");
    if (*cli__str(j, "response", "")) add_chunk(r, t, NULL);
    if (!done || !done->b) return;
    said(&r->out->said_prompt, j, "prompt_eval_count");
    said(&r->out->said_out, j, "eval_count");
    r->done = true;
}

static int on_event(void *user, const char *data, size_t n, uint64_t t)
{
    reader *r = user;
    ht_json *j;
    if (r->done) r->after = true;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        r->done = true;
        return 0;
    }
    if (r->after) return 0;
    if (ht_json_parse(r->a, data, n, 0, "event", &j, NULL)) {
        r->broken = true;
        return 0;
    }
    if (ht_json_get(j, "error")) {
        r->error = true;
        snprintf(r->out->why, sizeof r->out->why, "%.110s",
                 cli__str(j, "error.message", "an error"));
        return 0;
    }
    if (r->s->api == CLI_API_LLAMA) on_llama(r, j, t);
    else if (r->s->api == CLI_API_OPENAI) on_openai(r, j, t);
    else on_ollama(r, j, t);
    return r->memory;
}

/* ---- the request ---- */

static void write_body(const cli__server *s, const int32_t *ids, uint32_t n, const char *text,
                       size_t n_text, uint32_t max_new, ht_buf *b)
{
    ht_jw w;
    ht_jw_init(&w, b, 0);
    ht_jw_obj(&w);
    if (s->model) ht_jw_kstr(&w, "model", s->model);
    ht_jw_key(&w, "prompt");
    if (s->api == CLI_API_OLLAMA) {
        ht_jw_strn(&w, text, n_text);
    } else {
        ht_jw_arr(&w);
        for (uint32_t i = 0; i < n; i++) ht_jw_int(&w, ids[i]);
        ht_jw_end(&w, ']');
    }
    ht_jw_kbool(&w, "stream", true);
    if (s->api == CLI_API_OLLAMA) {
        ht_jw_kbool(&w, "raw", true);
        ht_jw_key(&w, "options");
        ht_jw_obj(&w);
        ht_jw_kuint(&w, "num_ctx", s->ctx);
        ht_jw_kuint(&w, "num_predict", max_new);
        ht_jw_kint(&w, "temperature", 0);
        ht_jw_end(&w, '}');
    } else {
        ht_jw_kint(&w, "temperature", 0);
        ht_jw_kbool(&w, "ignore_eos", true);
        ht_jw_kuint(&w, s->api == CLI_API_LLAMA ? "n_predict" : "max_tokens", max_new);
        if (s->api == CLI_API_LLAMA) {
            ht_jw_kbool(&w, "return_tokens", true);
            ht_jw_kbool(&w, "cache_prompt", false);
        } else {
            ht_jw_key(&w, "stream_options");
            ht_jw_obj(&w);
            ht_jw_kbool(&w, "include_usage", true);
            ht_jw_end(&w, '}');
        }
    }
    ht_jw_end(&w, '}');
}

/* ---- the judgement ---- */

static uint8_t refuse(cli__foreign *f, uint8_t status, const char *why)
{
    if (!*f->why) snprintf(f->why, sizeof f->why, "%.115s", why);
    return status;
}

static uint8_t judge(reader *r, const ht_http_result *h, uint32_t n_prompt, uint32_t max_new)
{
    cli__foreign *f = r->out;
    char text[100];
    if (h->end == HT_HTTP_TIMEOUT) return refuse(f, HT_SM_TIMEOUT, h->message);
    if (h->end != HT_HTTP_COMPLETE) return refuse(f, HT_SM_SUT_ERROR, h->message);
    if (h->status != 200) {
        snprintf(text, sizeof text, "HTTP status %d", h->status);
        return refuse(f, HT_SM_SUT_ERROR, text);
    }
    if (r->error) return refuse(f, HT_SM_SUT_ERROR, "an error in the stream");
    if (r->broken) return refuse(f, HT_SM_BAD_OUTPUT, "an event that is not the API's JSON");
    if (!r->done) return refuse(f, HT_SM_SUT_ERROR, "the stream ended without its end mark");
    if (r->after) return refuse(f, HT_SM_BAD_OUTPUT, "events after the end mark");
    if (r->n == 0) return refuse(f, HT_SM_BAD_OUTPUT, "no token");
    /* Ollama tokenizes the text itself and puts a BOS before it where the model has one; fewer
     * tokens than were sent are a prompt that it has cut. */
    const int64_t bos = r->s->api == CLI_API_OLLAMA ? 1 : 0;
    if (f->said_prompt >= 0 && (f->said_prompt < n_prompt || f->said_prompt > n_prompt + bos)) {
        snprintf(text, sizeof text, "the server counts %lld prompt tokens, sent were %u",
                 (long long)f->said_prompt, n_prompt);
        return refuse(f, HT_SM_BAD_OUTPUT, text);
    }
    if (f->n_out == 0 && f->said_out > 0 && f->said_out <= max_new)
        f->n_out = (uint32_t)f->said_out;
    if (f->n_out != max_new || (f->said_out >= 0 && f->said_out != f->n_out)) {
        snprintf(text, sizeof text, "%u tokens came, the server says %lld, asked were %u", f->n_out,
                 (long long)f->said_out, max_new);
        return refuse(f, HT_SM_BAD_OUTPUT, text);
    }
    return HT_SM_OK;
}

int cli__foreign_ask(ht_arena *a, const cli__server *s, const int32_t *ids, uint32_t n,
                     const char *text, size_t n_text, uint32_t max_new, cli__foreign *f, ht_err *e)
{
    static const char *const path[CLI_APIS] = {"/completion", "/v1/completions", "/api/generate"};
    *f = (cli__foreign){.said_prompt = -1, .said_out = -1};
    reader r = {.a = a, .s = s, .out = f};
    ht_http_result h;
    ht_buf b;
    ht_buf_init(&b, 0);
    write_body(s, ids, n, text, n_text, max_new, &b);
    int rc = ht_buf_ok(&b, "request", e);
    memset(&h, 0, sizeof h);
    r.raw = &h.raw;
    if (!rc) {
        f->request = ht_arena_strndup(a, b.p, b.n);
        f->n_request = b.n;
        if (!f->request) rc = HT_FAIL(e, HT_ENOMEM, "compare: out of memory for a request");
    }
    if (!rc)
        rc = ht_http_run(&s->url, "POST", path[s->api], b.p, b.n,
                         s->api == CLI_API_OLLAMA ? HT_BODY_LINES : HT_BODY_SSE, on_event, &r,
                         s->timeout_ns, &h, e);
    ht_buf_done(&b);
    if (!rc) {
        f->a.status = judge(&r, &h, n, max_new);
        f->a.end = h.end == HT_HTTP_RESET ? "RESET" : r.done ? "DONE" : "EOF_EARLY";
        f->a.chunk = r.chunk;
        f->a.n_chunks = r.n;
        f->tail = h.raw.n - r.taken;
        f->last_ns = h.last_ns;
        f->a.intended_ns = h.intended_ns;
        f->a.sent_ns = h.sent_ns ? h.sent_ns : h.intended_ns;
        f->a.n_response = h.raw.n;
        f->a.response = ht_arena_strndup(a, h.raw.p ? h.raw.p : "", h.raw.n);
        if (!f->a.response) rc = HT_FAIL(e, HT_ENOMEM, "compare: out of memory for an answer");
    }
    ht_http_result_done(&h);
    return rc;
}

static int ignore(void *user, const char *data, size_t n, uint64_t t)
{
    (void)user, (void)data, (void)n, (void)t;
    return 0;
}

int cli__foreign_props(ht_arena *a, const cli__server *s, const char **body, ht_err *e)
{
    static const char *const path[CLI_APIS] = {"/props", "/v1/models", "/api/ps"};
    ht_http_result h;
    *body = NULL;
    int rc = ht_http_run(&s->url, "GET", path[s->api], NULL, 0, HT_BODY_WHOLE, ignore, NULL,
                         s->timeout_ns, &h, e);
    if (!rc && h.end == HT_HTTP_REFUSED)
        rc = HT_FAIL(e, HT_EIO, "no server at %s:%u (%s): start it first", s->url.host, s->url.port,
                     h.message);
    if (!rc && h.end == HT_HTTP_COMPLETE && h.status == 200 && h.body.n)
        *body = ht_arena_strndup(a, h.body.p, h.body.n);
    ht_http_result_done(&h);
    return rc;
}
