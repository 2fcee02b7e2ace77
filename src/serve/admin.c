/* admin.c - what a server says of itself: health, metrics, configuration, slots, models, receipts;
 * and the tools around prompts: tokenize, detokenize, apply-template. */
#include "core/arena.h"
#include "core/clock.h"
#include "core/utf8.h"
#include "serve/server.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void begin(ht_buf *b, ht_jw *w)
{
    ht_buf_init(b, 0);
    ht_jw_init(w, b, 0);
    ht_jw_obj(w);
}

/* ---- health ---------------------------------------------------------------------------------- */

void serve__health(serve__server *s, serve__conn *c)
{
    static const char *const word[] = {"loading", "ok", "draining", "failed"};
    ht_buf b;
    ht_jw w;
    pthread_mutex_lock(&s->mu);
    const enum serve__phase phase = s->phase;
    const uint64_t done = s->load_done, total = s->load_total;
    char what[sizeof s->load_what];
    memcpy(what, s->load_what, sizeof what);
    const uint32_t running = s->n_running, waiting = s->n_queued;
    pthread_mutex_unlock(&s->mu);
    begin(&b, &w);
    ht_jw_kstr(&w, "status", word[phase]);
    if (phase == PHASE_LOADING) {
        ht_jw_kstr(&w, "what", what);
        ht_jw_kreal(&w, "progress", total ? (double)done / (double)total : 0);
        serve__conn_add_header(c, "Retry-After", "1");
    }
    ht_jw_kuint(&w, "running", running);
    ht_jw_kuint(&w, "waiting", waiting);
    ht_jw_end(&w, '}');
    serve__answer_json(c, phase == PHASE_READY ? 200 : 503, &b);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void metric(ht_buf *b, const char *name, const char *type, const char *help, double v)
{
    ht_buf_fmt(b, "# HELP hetero_%s %s\n# TYPE hetero_%s %s\nhetero_%s %.15g\n", name, help, name,
               type, name, v);
}

static void counters(ht_buf *b, const serve__metrics *m)
{
    static const char *const phase[] = {"queue", "prefill", "decode"};
    metric(b, "requests_accepted_total", "counter", "Requests taken into the queue",
           (double)m->accepted);
    metric(b, "requests_finished_total", "counter", "Requests answered", (double)m->finished);
    metric(b, "requests_failed_total", "counter", "Requests that failed after they began",
           (double)m->failed);
    metric(b, "requests_expired_total", "counter", "Requests that waited too long",
           (double)m->expired);
    metric(b, "requests_refused_total", "counter", "Requests refused because the queue was full",
           (double)m->refused_full);
    ht_buf_str(b, "# HELP hetero_requests_cancelled_total Requests whose client left\n"
                  "# TYPE hetero_requests_cancelled_total counter\n");
    for (int i = 0; i < CANCEL_PHASES; i++)
        ht_buf_fmt(b, "hetero_requests_cancelled_total{phase=\"%s\"} %llu\n", phase[i],
                   (unsigned long long)m->cancelled[i]);
    ht_buf_str(b, "# HELP hetero_errors_total Error answers by class of status\n"
                  "# TYPE hetero_errors_total counter\n");
    for (int i = 4; i < METRIC_STATUS; i++)
        ht_buf_fmt(b, "hetero_errors_total{class=\"%dxx\"} %llu\n", i,
                   (unsigned long long)m->answers[i]);
    metric(b, "prompt_tokens_total", "counter", "Prompt tokens computed", (double)m->prompt_tokens);
    metric(b, "cached_tokens_total", "counter", "Prompt tokens found in a cache",
           (double)m->cached_tokens);
    metric(b, "output_tokens_total", "counter", "Tokens generated", (double)m->output_tokens);
    metric(b, "drafted_tokens_total", "counter", "Tokens guessed ahead", (double)m->drafted);
    metric(b, "accepted_tokens_total", "counter", "Guesses that were right",
           (double)m->accepted_drafts);
    metric(b, "passes_total", "counter", "Passes over the weights", (double)m->passes);
    metric(b, "busy_seconds_total", "counter", "Time the engine ran", (double)m->busy_ns * 1e-9);
    metric(b, "prompt_rows_total", "counter", "Rows of prompts in passes", (double)m->prompt_rows);
    metric(b, "decode_rows_total", "counter", "Rows of answers in passes", (double)m->decode_rows);
    metric(b, "overlapped_passes_total", "counter", "Passes with prompts and answers",
           (double)m->overlap_passes);
    metric(b, "serialised_passes_total", "counter",
           "Passes of prompts alone while answers waited (OVERLAP_UNMANAGED)",
           (double)m->serialised);
    metric(b, "pass_bounds_total", "counter", "Shared passes admitted by an upper bound",
           (double)m->bounds);
    metric(b, "pass_bound_misses_total", "counter", "Of these, passes that took longer",
           (double)m->bound_misses);
    metric(b, "idle_queued_total", "counter", "Times the engine slept while a request waited",
           (double)m->idle_queued);
    serve__write_histogram(b, "ttft_seconds", "Arrival to first token", &m->ttft);
    serve__write_histogram(b, "tpot_seconds", "Time per token after the first", &m->tpot);
    serve__write_histogram(b, "queue_seconds", "Arrival to slot", &m->queue);
    serve__write_histogram(b, "request_seconds", "Arrival to the end of the answer", &m->total);
}

/* Pages of this process in memory. */
static double resident(void)
{
    double pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%*u %lf", &pages) != 1) pages = 0;
    fclose(f);
    return pages * (double)sysconf(_SC_PAGESIZE);
}

void serve__metrics_page(serve__server *s, serve__conn *c)
{
    ht_buf b;
    uint32_t total = 0, have = 0;
    if (!s->p.metrics_route) {
        serve__fail f;
        (void)serve__bad(&f, 404, "not_found", NULL, "metrics are off (--no-metrics)");
        serve__answer_fail(s, c, &serve__proto_chat, &f);
        return;
    }
    ht_buf_init(&b, 0);
    pthread_mutex_lock(&s->mu);
    const serve__metrics m = s->m;
    const serve__cost cost = s->cost;
    const uint32_t running = s->n_running, waiting = s->n_queued;
    total = s->pages_total;
    have = s->pages_free;
    pthread_mutex_unlock(&s->mu);
    counters(&b, &m);
    metric(&b, "slots", "gauge", "Answers at once", s->n_slots);
    metric(&b, "slots_busy", "gauge", "Answers running now", running);
    metric(&b, "queue_length", "gauge", "Requests waiting now", waiting);
    metric(&b, "connections", "gauge", "Open connections", serve__http_conns(s->http));
    metric(&b, "kv_pages", "gauge", "Pages of the KV pool", total);
    metric(&b, "kv_pages_free", "gauge", "Of these not held by anybody", have);
    metric(&b, "resident_bytes", "gauge", "Memory of this process", resident());
    metric(&b, "cost_model_error_ratio", "gauge", "How far predicted pass times are off",
           cost.rel_err);
    serve__conn_answer(c, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}

/* ---- configuration --------------------------------------------------------------------------- */

static void write_sampling(ht_jw *w, const ht_sampling *p)
{
    char *chain = NULL;
    if (!ht_sampling_describe(p, &chain, NULL)) ht_jw_kstr(w, "chain", chain);
    ht_free(chain);
    ht_jw_key(w, "temperature");
    ht_jw_f32(w, p->temp);
    ht_jw_kint(w, "top_k", p->top_k);
    ht_jw_key(w, "top_p");
    ht_jw_f32(w, p->top_p);
    ht_jw_key(w, "min_p");
    ht_jw_f32(w, p->min_p);
    ht_jw_key(w, "repeat_penalty");
    ht_jw_f32(w, p->repeat_penalty);
}

static void write_schedule(const serve__server *s, ht_jw *w)
{
    const ht_serve_schedule *x = &s->schedule;
    const bool overlaps = s->p.overlap || x->promoted;
    ht_jw_obj(w);
    ht_jw_kstr(w, "prompts", overlaps ? "overlapped" : "serialised");
    ht_jw_kstr(w, "decision", s->p.overlap ? "forced" : x->promoted ? "promoted" : "reference");
    ht_jw_kstr(w, "reason", s->p.overlap ? "USER" : x->promoted ? "OK" : x->reason);
    if (x->promoted) {
        ht_jw_kstr(w, "bundleId", x->bundle_id);
        ht_jw_kuint(w, "max_prompt", x->max_prompt);
    }
    ht_jw_kuint(w, "tpot_ms", s->p.tpot_ms);
    ht_jw_end(w, '}');
}

void serve__props(serve__server *s, serve__conn *c)
{
    ht_buf b;
    ht_jw w;
    begin(&b, &w);
    ht_jw_kstr(&w, "model", s->model_id);
    ht_jw_kstr(&w, "build", ht_version());
    ht_jw_kstr(&w, "system_fingerprint", s->fingerprint);
    ht_jw_kuint(&w, "total_slots", s->n_slots);
    ht_jw_kuint(&w, "n_ctx", s->ctx);
    ht_jw_kuint(&w, "queue", s->p.queue);
    ht_jw_kuint(&w, "queue_seconds", s->p.queue_s);
    ht_jw_kuint(&w, "deadline_seconds", s->p.deadline_s);
    ht_jw_kuint(&w, "max_body_mib", s->p.max_body_mib);
    ht_jw_key(&w, "scheduler");
    write_schedule(s, &w);
    ht_jw_key(&w, "default_generation_settings");
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "max_tokens", s->p.max_new);
    write_sampling(&w, &s->p.sampling);
    ht_jw_end(&w, '}');
    ht_jw_key(&w, "tools");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "form", ht_reply_form_name(s->form));
    ht_jw_kbool(&w, "by_template", s->tmpl_tools);
    ht_jw_end(&w, '}');
    ht_jw_kbool(&w, "reasoning", s->tmpl_reasons);
    ht_jw_key(&w, "chat_template");
    if (s->tmpl) ht_jw_strn(&w, s->tmpl, s->tmpl_n);
    else ht_jw_null(&w);
    ht_jw_kstr(&w, "chat_template_source",
               s->p.chat_template ? "--template"
               : s->tmpl          ? "model"
                                  : "none");
    ht_jw_key(&w, "engine");
    ht_jw_raw(&w, s->info, strlen(s->info));
    ht_jw_key(&w, "routes");
    serve__list_routes(&w);
    ht_jw_key(&w, "plan");
    ht_jw_raw(&w, s->explain, strlen(s->explain));
    ht_jw_end(&w, '}');
    serve__answer_json(c, 200, &b);
}

void serve__slots(serve__server *s, serve__conn *c)
{
    ht_buf b;
    ht_jw w;
    if (!s->p.slots_route) {
        serve__fail f;
        (void)serve__bad(&f, 404, "not_found", NULL, "the list of slots is off (--no-slots)");
        serve__answer_fail(s, c, &serve__proto_chat, &f);
        return;
    }
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_arr(&w);
    pthread_mutex_lock(&s->mu);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const serve__job *j = s->slot[i].job;
        ht_jw_obj(&w);
        ht_jw_kuint(&w, "id", i);
        ht_jw_kuint(&w, "n_ctx", s->ctx);
        ht_jw_kbool(&w, "is_processing", j != NULL);
        if (j) {
            ht_jw_kstr(&w, "request", j->req->id);
            ht_jw_kstr(&w, "protocol", j->req->proto->name);
            ht_jw_kstr(&w, "client", j->req->client->name);
            ht_jw_kuint(&w, "n_prompt_tokens", j->n_ids);
            ht_jw_kuint(&w, "pages_reserved", s->slot[i].pages);
            ht_jw_kreal(&w, "seconds", (double)(ht_now_ns() - j->started_ns) * 1e-9);
        }
        ht_jw_end(&w, '}');
    }
    pthread_mutex_unlock(&s->mu);
    ht_jw_end(&w, ']');
    serve__answer_json(c, 200, &b);
}

/* ---- models ---------------------------------------------------------------------------------- */

static void write_model(serve__server *s, ht_jw *w, const char *id)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "id", id);
    ht_jw_kstr(w, "object", "model");
    ht_jw_kint(w, "created", s->created);
    ht_jw_kstr(w, "owned_by", "hetero");
    ht_jw_key(w, "meta");
    ht_jw_obj(w);
    ht_jw_kuint(w, "n_ctx", s->ctx);
    ht_jw_kuint(w, "n_vocab", ht_engine_n_logits(s->engine));
    ht_jw_kuint(w, "size", s->model_bytes);
    ht_jw_kstr(w, "system_fingerprint", s->fingerprint);
    ht_jw_end(w, '}');
    ht_jw_end(w, '}');
}

void serve__models(serve__server *s, serve__conn *c)
{
    ht_buf b;
    ht_jw w;
    begin(&b, &w);
    ht_jw_kstr(&w, "object", "list");
    ht_jw_key(&w, "data");
    ht_jw_arr(&w);
    write_model(s, &w, s->model_id);
    for (size_t i = 0; i < s->p.n_aliases; i++)
        if (strcmp(s->p.aliases[i], "*") != 0) write_model(s, &w, s->p.aliases[i]);
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    serve__answer_json(c, 200, &b);
}

void serve__model(serve__server *s, serve__conn *c)
{
    const char *id = serve__conn_path(c) + strlen("/v1/models/");
    bool known = !strcasecmp(id, s->model_id);
    for (size_t i = 0; i < s->p.n_aliases; i++) known = known || !strcasecmp(id, s->p.aliases[i]);
    if (!known) {
        serve__fail f;
        (void)serve__bad(&f, 404, "model_not_found", "model", "this server has '%s', not '%.100s'",
                         s->model_id, id);
        serve__answer_fail(s, c, &serve__proto_chat, &f);
        return;
    }
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    write_model(s, &w, id);
    serve__answer_json(c, 200, &b);
}

void serve__embeddings(serve__server *s, serve__conn *c)
{
    serve__fail f;
    (void)serve__bad(
        &f, 400, "unsupported_model", "model",
        "'%s' generates text and has no pooling rule: its file says nothing of how its "
        "states become one vector, so this server makes none up; use an embedding "
        "model",
        s->model_id);
    serve__answer_fail(s, c, &serve__proto_chat, &f);
}

/* ---- receipts -------------------------------------------------------------------------------- */

void serve__receipt(serve__server *s, serve__conn *c)
{
    const char *text = serve__conn_path(c) + strlen("/receipts/");
    unsigned long long seq = 0;
    char end, *json = NULL;
    ht_buf b;
    ht_err err = {0};
    const bool number = text[0] >= '0' && text[0] <= '9' && sscanf(text, "%llu%c", &seq, &end) == 1;
    ht_buf_init(&b, 0);
    pthread_mutex_lock(&s->receipts_mu);
    if (number && s->receipts) {
        if (ht_receipts_get(s->receipts, seq, &json, &err)) json = NULL;
    } else if (number && seq && seq <= s->n_receipts && seq + RECEIPTS_KEPT > s->n_receipts) {
        const char *kept = s->receipt[seq % RECEIPTS_KEPT];
        if (kept) ht_buf_str(&b, kept);
    }
    pthread_mutex_unlock(&s->receipts_mu);
    if (json) ht_buf_str(&b, json);
    ht_free(json);
    if (b.n) {
        serve__answer_json(c, 200, &b);
        return;
    }
    ht_buf_done(&b);
    serve__fail f;
    (void)serve__bad(&f, 404, "not_found", NULL, "there is no receipt %.20s%s", text,
                     s->p.receipts ? "" : "; the last 256 are kept, all of them with --receipts");
    serve__answer_fail(s, c, &serve__proto_chat, &f);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static const serve__field tokenize_fields[] = {{"content", FIELD_OK, NULL},
                                               {"add_special", FIELD_OK, NULL},
                                               {"parse_special", FIELD_OK, NULL},
                                               {"with_pieces", FIELD_OK, NULL},
                                               {"model", FIELD_OK, NULL}};

/* A piece as text, or as bytes where it is none. */
static void write_piece(ht_jw *w, const char *p, size_t n)
{
    if (ht_utf8_valid(p, n) == n) {
        ht_jw_strn(w, p, n);
        return;
    }
    ht_jw_arr(w);
    for (size_t i = 0; i < n; i++) ht_jw_int(w, (uint8_t)p[i]);
    ht_jw_end(w, ']');
}

static void write_tokens(serve__server *s, ht_jw *w, const int32_t *ids, size_t n, bool pieces)
{
    ht_jw_key(w, "tokens");
    ht_jw_arr(w);
    for (size_t i = 0; i < n; i++) {
        char *text = NULL;
        size_t len = 0;
        if (!pieces) {
            ht_jw_int(w, ids[i]);
            continue;
        }
        if (ht_vocab_decode(s->vocab, &ids[i], 1, 1, &text, &len, NULL)) len = 0;
        ht_jw_obj(w);
        ht_jw_kint(w, "id", ids[i]);
        ht_jw_key(w, "piece");
        write_piece(w, text ? text : "", len);
        ht_jw_end(w, '}');
        ht_free(text);
    }
    ht_jw_end(w, ']');
}

void serve__tokenize(serve__server *s, serve__conn *c)
{
    serve__fail f = {0};
    serve__req *r = serve__req_new(s, c, &serve__proto_chat, &f);
    const ht_json *text = r ? ht_json_get(r->body, "content") : NULL;
    bool special = false, parse = true, pieces = false, bad = !r;
    ht_err err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    if (!bad)
        bad = serve__fields(r, r->body, tokenize_fields,
                            sizeof tokenize_fields / sizeof *tokenize_fields, &f) ||
              serve__get_bool(r->body, "add_special", &special, &f) ||
              serve__get_bool(r->body, "parse_special", &parse, &f) ||
              serve__get_bool(r->body, "with_pieces", &pieces, &f);
    if (!bad && (!text || text->type != HT_JSTR))
        bad = serve__bad(&f, 400, "missing_field", "content", "'content' must be a text");
    if (!bad && ht_vocab_encode(s->vocab, text->s, text->n,
                                (special ? HT_TOK_BOS : 0U) | (parse ? HT_TOK_SPECIAL : 0U), &ids,
                                &n, &err))
        bad = serve__bad_err(&f, "content", &err);
    if (bad) {
        serve__answer_fail(s, c, &serve__proto_chat, &f);
    } else {
        ht_buf b;
        ht_jw w;
        begin(&b, &w);
        write_tokens(s, &w, ids, n, pieces);
        ht_jw_end(&w, '}');
        serve__answer_json(c, 200, &b);
    }
    ht_free(ids);
    serve__req_free(r);
}

void serve__detokenize(serve__server *s, serve__conn *c)
{
    serve__fail f = {0};
    serve__req *r = serve__req_new(s, c, &serve__proto_chat, &f);
    const ht_json *t = r ? ht_json_get(r->body, "tokens") : NULL;
    bool bad = !r;
    ht_err err = {0};
    char *text = NULL;
    size_t n = 0;
    if (!bad && (!t || t->type != HT_JARR))
        bad = serve__bad(&f, 400, "missing_field", "tokens", "'tokens' must be an array of tokens");
    int32_t *ids = bad ? NULL : ht_arena_array(r->arena, t->n, sizeof *ids);
    if (!bad && !ids) bad = serve__bad(&f, 503, "out_of_memory", NULL, "no memory for tokens");
    for (size_t i = 0; !bad && i < t->n; i++) {
        if (t->at[i].type != HT_JINT || t->at[i].i < 0 || t->at[i].i >= ht_vocab_size(s->vocab))
            bad = serve__bad(&f, 400, "invalid_value", "tokens",
                             "entry %zu is no token of this model (0 to %u)", i,
                             ht_vocab_size(s->vocab) - 1);
        else ids[i] = (int32_t)t->at[i].i;
    }
    if (!bad && ht_vocab_decode(s->vocab, ids, t->n, 1, &text, &n, &err))
        bad = serve__bad_err(&f, "tokens", &err);
    if (bad) {
        serve__answer_fail(s, c, &serve__proto_chat, &f);
    } else {
        ht_buf b;
        ht_jw w;
        begin(&b, &w);
        ht_jw_key(&w, "content");
        write_piece(&w, text, n);
        ht_jw_end(&w, '}');
        serve__answer_json(c, 200, &b);
    }
    ht_free(text);
    serve__req_free(r);
}

void serve__apply_template(serve__server *s, serve__conn *c)
{
    serve__fail f = {0};
    serve__req *r = serve__req_new(s, c, &serve__proto_chat, &f);
    char *text = NULL;
    size_t n = 0;
    const bool bad = !r ||
                     serve__tools(r, ht_json_get(r->body, "tools"),
                                  ht_json_get(r->body, "tool_choice"), true, &f) ||
                     serve__chat_text(r, ht_json_get(r->body, "messages"),
                                      ht_json_get(r->body, "chat_template_kwargs"), &text, &n, &f);
    if (bad) {
        serve__answer_fail(s, c, &serve__proto_chat, &f);
    } else {
        ht_buf b;
        ht_jw w;
        begin(&b, &w);
        ht_jw_key(&w, "prompt");
        ht_jw_strn(&w, text, n);
        ht_jw_end(&w, '}');
        serve__answer_json(c, 200, &b);
    }
    ht_free(text);
    serve__req_free(r);
}
