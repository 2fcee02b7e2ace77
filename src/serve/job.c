/* job.c - one answer: from tokens to pieces of text, reasoning and calls, and the end of a request.
 * Everything here runs on the engine thread. */
#include "core/arena.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/utf8.h"
#include "serve/server.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- pieces ---------------------------------------------------------------------------------- */

static void flush(serve__req *r, ht_buf *b)
{
    if (b->bad) {
        serve__fail f;
        (void)serve__bad(&f, 503, "out_of_memory", NULL, "no memory for the answer");
        serve__req_fail(r, &f);
    } else if (b->n) {
        serve__conn_write(r->conn, b->p, b->n);
    }
    ht_buf_clear(b);
}

/* Headers go out when the first thing happens: an error before it still has its status. After
 * PING_S the first thing is a ping (serve__conn_expect). */
static void open_stream(serve__req *r)
{
    if (r->opened || !r->stream) return;
    r->opened = true;
    serve__conn_stream(r->conn, r->proto->stream_type, r->proto->ping);
    if (r->proto->open) r->proto->open(r, &r->out);
    flush(r, &r->out);
}

static void keep_piece(serve__job *j, int kind, const char *text, size_t n, uint32_t call)
{
    if (kind == PIECE_TEXT) ht_buf_add(&j->text, text, n);
    if (kind == PIECE_REASONING) ht_buf_add(&j->reasoning, text, n);
    if (kind == PIECE_ARGS) ht_buf_add(&j->call[call].args, text, n);
}

static void piece_of(serve__job *j, int kind, const char *text, size_t n, uint32_t call)
{
    serve__req *r = j->req;
    const serve__piece p = {.kind = kind, .text = text, .n = n, .call = call};
    keep_piece(j, kind, text, n, call);
    if (!r->stream || r->failed) return;
    open_stream(r);
    r->proto->piece(j, &p, &r->out);
    flush(r, &r->out);
    j->spoke = true;
}

static int on_reply(void *user, const ht_reply_event *ev)
{
    serve__job *j = user;
    switch (ev->kind) {
    case HT_REPLY_TEXT: piece_of(j, PIECE_TEXT, ev->text, ev->n, 0); break;
    case HT_REPLY_REASONING: piece_of(j, PIECE_REASONING, ev->text, ev->n, 0); break;
    case HT_REPLY_CALL: {
        if (j->n_calls == MAX_CALLS) return 1;
        serve__call *c = &j->call[j->n_calls++];
        c->id = ht_arena_strndup(j->req->arena, ev->id, strlen(ev->id));
        c->name = ht_arena_strndup(j->req->arena, ev->name, strlen(ev->name));
        ht_buf_init(&c->args, 0);
        if (!c->id || !c->name) return 1;
        piece_of(j, PIECE_CALL, "", 0, j->n_calls - 1);
        break;
    }
    case HT_REPLY_ARGS: piece_of(j, PIECE_ARGS, ev->text, ev->n, j->n_calls - 1); break;
    case HT_REPLY_CALL_END: piece_of(j, PIECE_CALL_END, "", 0, j->n_calls - 1); break;
    }
    return 0;
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

/* Text of a token as JSON: bytes that are no text of their own come as U+FFFD, "bytes" has them. */
static void write_token(ht_jw *w, const serve__server *s, int32_t id, const char *key, bool bytes)
{
    char *text = NULL;
    size_t n = 0;
    ht_buf b;
    if (ht_vocab_decode(s->vocab, &id, 1, 1, &text, &n, NULL)) text = NULL;
    ht_buf_init(&b, 0);
    for (size_t i = 0; text && i < n;) {
        uint32_t cp;
        const unsigned len = ht_utf8_next(text + i, n - i, &cp);
        if (len) ht_buf_add(&b, text + i, len);
        else ht_buf_str(&b, "\xEF\xBF\xBD");
        i += len ? len : 1;
    }
    if (key) ht_jw_key(w, key);
    ht_jw_strn(w, b.p ? b.p : "", b.n);
    ht_buf_done(&b);
    if (bytes) {
        ht_jw_key(w, "bytes");
        ht_jw_arr(w);
        for (size_t i = 0; text && i < n; i++) ht_jw_int(w, (uint8_t)text[i]);
        ht_jw_end(w, ']');
    }
    ht_free(text);
}

/* Log-probabilities as JSON numbers: minus infinity has none. */
static void write_lp(ht_jw *w, float lp)
{
    ht_jw_f32(w, isfinite(lp) ? lp : -9999.0F);
}

static void add_item(ht_buf *all, ht_buf *now, const ht_buf *item)
{
    ht_buf *const to[] = {all, now};
    for (int i = 0; i < 2; i++) {
        if (to[i]->n) ht_buf_char(to[i], ',');
        ht_buf_add(to[i], item->p, item->n);
    }
    ht_buf_clear((ht_buf *)(uintptr_t)item);
}

/* An item in the form of chat completions. */
static void chat_item(const serve__job *j, const ht_token_event *ev, ht_buf *b)
{
    const serve__server *s = j->req->s;
    ht_jw w;
    ht_jw_init(&w, b, 0);
    ht_jw_obj(&w);
    write_token(&w, s, ev->id, "token", false);
    ht_jw_key(&w, "logprob");
    write_lp(&w, ev->logprob);
    char *text = NULL;
    size_t n = 0;
    if (ht_vocab_decode(s->vocab, &ev->id, 1, 1, &text, &n, NULL)) text = NULL;
    ht_jw_key(&w, "bytes");
    ht_jw_arr(&w);
    for (size_t i = 0; text && i < n; i++) ht_jw_int(&w, (uint8_t)text[i]);
    ht_jw_end(&w, ']');
    ht_free(text);
    ht_jw_key(&w, "top_logprobs");
    ht_jw_arr(&w);
    for (size_t i = 0; i < ev->n_top; i++) {
        ht_jw_obj(&w);
        write_token(&w, s, ev->top[i].id, "token", true);
        ht_jw_key(&w, "logprob");
        write_lp(&w, ev->top[i].logprob);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
}

/* The likeliest tokens, the first of each text: several make one broken character, and a name that
 * stands twice in an object is lost by readers. */
static void top_object(const serve__server *s, const ht_token_event *ev, ht_buf *b)
{
    ht_buf name[MAX_TOP];
    size_t n = 0;
    ht_jw w;
    ht_buf_char(b, '{');
    for (size_t i = 0; i < ev->n_top && n < MAX_TOP; i++) {
        bool twice = false;
        ht_buf_init(&name[n], 0);
        ht_jw_init(&w, &name[n], 0);
        write_token(&w, s, ev->top[i].id, NULL, false);
        for (size_t q = 0; q < n; q++)
            twice = twice || (name[q].n == name[n].n && !memcmp(name[q].p, name[n].p, name[n].n));
        if (twice || name[n].bad || !name[n].n) {
            ht_buf_done(&name[n]);
            continue;
        }
        if (n) ht_buf_char(b, ',');
        ht_buf_add(b, name[n].p, name[n].n);
        ht_buf_char(b, ':');
        ht_jw_init(&w, b, 0);
        write_lp(&w, ev->top[i].logprob);
        n++;
    }
    for (size_t q = 0; q < n; q++) ht_buf_done(&name[q]);
    ht_buf_char(b, '}');
}

static void note_logprob(serve__job *j, const ht_token_event *ev)
{
    const serve__server *s = j->req->s;
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    if (j->req->is_chat) {
        chat_item(j, ev, &b);
        add_item(&j->lp_all[0], &j->lp[0], &b);
        ht_buf_done(&b);
        return;
    }
    ht_jw_init(&w, &b, 0);
    write_token(&w, s, ev->id, NULL, false);
    add_item(&j->lp_all[0], &j->lp[0], &b);
    ht_jw_init(&w, &b, 0);
    write_lp(&w, ev->logprob);
    add_item(&j->lp_all[1], &j->lp[1], &b);
    top_object(s, ev, &b);
    add_item(&j->lp_all[2], &j->lp[2], &b);
    ht_buf_fmt(&b, "%zu", j->shown);
    add_item(&j->lp_all[3], &j->lp[3], &b);
    ht_buf_done(&b);
}

/* ---- the generation's callbacks -------------------------------------------------------------- */

static int on_token(void *user, const ht_token_event *ev)
{
    serve__job *j = user;
    serve__req *r = j->req;
    const uint64_t now = ht_now_ns();
    if (ev->id >= 0) {
        if (!j->n_out++) j->first_ns = now;
        j->last_ns = now;
        if (r->logprobs) note_logprob(j, ev);
        if (r->return_tokens) ht_buf_fmt(&j->ids_out, "%s%d", j->ids_out.n ? "," : "", (int)ev->id);
    }
    if (ev->len) {
        ht_err err = {0};
        j->shown += ev->len;
        if (!j->reply) {
            piece_of(j, PIECE_TEXT, ev->text, ev->len, 0);
        } else if (ht_reply_push(j->reply, ev->text, ev->len, &err)) {
            serve__fail f;
            (void)serve__bad_err(&f, NULL, &err);
            serve__req_fail(r, &f);
        }
    }
    return atomic_load(&r->gone) || r->failed;
}

static int on_prefill(void *user, const char *what, uint64_t done, uint64_t total)
{
    serve__job *j = user;
    serve__req *r = j->req;
    (void)what;
    if (r->stream && r->return_progress && r->proto->progress && !r->failed) {
        open_stream(r);
        r->proto->progress(j, (uint32_t)done, (uint32_t)total, &r->out);
        flush(r, &r->out);
    }
    return atomic_load(&r->gone) || r->failed;
}

static int allowed(void *user, const uint32_t **bits, ht_err *err)
{
    return ht_matcher_mask(((serve__job *)user)->matcher, bits, err);
}

static int accept(void *user, int32_t id, ht_err *err)
{
    return ht_matcher_accept(((serve__job *)user)->matcher, id, err);
}

/* ---- begin ----------------------------------------------------------------------------------- */

static int begin_reply(serve__job *j, ht_err *err)
{
    const serve__req *r = j->req;
    if (!r->tools && !r->reasoning) return 0;
    j->call = ht_arena_array(r->arena, MAX_CALLS, sizeof *j->call);
    if (!j->call) return HT_FAIL(err, HT_ENOMEM, "no memory for tool calls");
    const ht_reply_params p = {.form = r->tools_params.form,
                               .tools = r->tools,
                               .reasoning = r->reasoning,
                               .open = r->s->reason_open,
                               .close = r->s->reason_close,
                               .in_reasoning = r->in_reasoning,
                               .hold_args = !r->stream || !r->grammar,
                               .id_seed = r->seq * MAX_JOBS + j->index};
    return ht_reply_new(&j->reply, &p, on_reply, j, err);
}

int serve__job_begin(serve__job *j, ht_err *err)
{
    serve__req *r = j->req;
    serve__server *s = r->s;
    serve__slot *t = &s->slot[j->slot];
    if (!t->session) HT_TRY(ht_session_new(&t->session, s->engine, err));
    HT_TRY(begin_reply(j, err));
    if (r->grammar) {
        HT_TRY(ht_matcher_new(&j->matcher, r->grammar, err));
        j->constraint = (ht_constraint){.allowed = allowed, .accept = accept, .user = j};
    }
    const ht_speculation spec = {.lookup = s->p.lookup, .draft = t->draft};
    const bool guess = s->p.lookup || t->draft;
    const ht_gen_params p = {.max_new = r->max_new,
                             .sampling = &j->sampling,
                             .stop = r->stop,
                             .n_stop = r->n_stop,
                             .ignore_eos = r->ignore_eos,
                             .special = r->tools != NULL,
                             .on_token = on_token,
                             .on_prefill = on_prefill,
                             .user = j,
                             .speculation = guess ? &spec : NULL,
                             .constraint = j->matcher ? &j->constraint : NULL,
                             .n_top = r->logprobs ? r->n_top : 0,
                             .hash_logits = r->hash_logits,
                             .tokens_only = !r->logprobs,
                             .no_prefix = !r->cache_prompt};
    if (!r->cache_prompt) HT_TRY(ht_session_truncate(t->session, 0, err));
    HT_TRY(ht_gen_new(&j->gen, t->session, j->ids, j->n_ids, &p, err));
    if (r->stream && !r->return_progress) open_stream(r);
    return 0;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* What the constraint promised is checked once more on the text itself (fail closed). */
static void check_output(serve__job *j)
{
    serve__req *r = j->req;
    ht_err err = {0};
    if (!r->grammar || r->tools || j->finish != HT_FINISH_EOG || r->failed) return;
    if (!ht_grammar_check(r->grammar, j->text.p ? j->text.p : "", j->text.n, &err)) return;
    serve__fail f;
    (void)serve__bad(&f, 500, "constraint_violated", NULL,
                     "the answer does not follow its grammar, which is a fault of this server: %s",
                     err.msg);
    serve__req_fail(r, &f);
}

static void take_receipt(serve__job *j)
{
    serve__server *s = j->req->s;
    const serve__slot *t = &s->slot[j->slot];
    ht_err err = {0};
    char *json = NULL;
    uint8_t sha[HT_SHA256_BYTES];
    char hex[HT_SHA256_HEX] = "";
    if (!ht_sha256_of(j->res.text ? j->res.text : "", j->res.len, sha, NULL))
        ht_hex(sha, sizeof sha, hex);
    pthread_mutex_lock(&s->receipts_mu);
    if (s->receipts) {
        if (ht_receipts_add(s->receipts, t->session, j->req->body_sha, hex, &j->receipt, NULL,
                            &err))
            serve__log(s, HT_SERVE_ERROR, "receipt: %s", err.msg);
    } else if (!ht_session_receipt(t->session, &json, &err)) {
        j->receipt = ++s->n_receipts;
        char **at = &s->receipt[j->receipt % RECEIPTS_KEPT];
        ht_free(*at);
        *at = json;
    }
    pthread_mutex_unlock(&s->receipts_mu);
}

static void count(serve__job *j)
{
    serve__server *s = j->req->s;
    const ht_gen_result *g = &j->res;
    pthread_mutex_lock(&s->mu);
    serve__metrics *m = &s->m;
    m->prompt_tokens += g->n_prompt - g->n_kept;
    m->cached_tokens += g->n_kept;
    m->output_tokens += g->n_ids;
    m->drafted += g->drafted;
    m->accepted_drafts += g->accepted;
    serve__observe(&m->queue, (double)(j->started_ns - j->req->arrived_ns) * 1e-9);
    if (j->first_ns) serve__observe(&m->ttft, (double)(j->first_ns - j->req->arrived_ns) * 1e-9);
    if (j->n_out > 1)
        serve__observe(&m->tpot,
                       (double)(j->last_ns - j->first_ns) * 1e-9 / (double)(j->n_out - 1));
    pthread_mutex_unlock(&s->mu);
}

/* Which phase a client left in. */
static int phase_left(const serve__job *j)
{
    return j->n_out || j->first_ns ? CANCEL_DECODE : CANCEL_PREFILL;
}

void serve__job_end(serve__job *j)
{
    serve__req *r = j->req;
    ht_err err = {0};
    j->ended_ns = ht_now_ns();
    if (!j->gen) return;
    if (ht_gen_take(j->gen, &j->res, &err)) {
        serve__fail f;
        (void)serve__bad_err(&f, NULL, &err);
        /* Everything else was checked before, but not all that a grammar can get into. */
        const bool grammar = r->grammar && err.code == HT_EUNSUPPORTED;
        if (!grammar && f.status == 400)
            f.status = 500, f.code = "internal_error"; /* the request was checked before */
        serve__req_fail(r, &f);
        return;
    }
    j->finish = j->res.finish;
    j->left_in = phase_left(j);
    if (j->expired && j->finish == HT_FINISH_CANCEL && !atomic_load(&r->gone)) {
        serve__fail f;
        if (!j->n_out) {
            (void)serve__bad(
                &f, 503, "deadline", NULL,
                "the time for the answer (--deadline, or a server that ends) passed before its "
                "first token");
            f.retry_s = 1;
            serve__req_fail(r, &f);
        }
        j->finish = HT_FINISH_LENGTH; /* the answer says so: "stopped_by" */
    }
    if (j->reply && ht_reply_finish(j->reply, &j->broken, &err)) {
        serve__fail f;
        (void)serve__bad_err(&f, NULL, &err);
        serve__req_fail(r, &f);
    }
    check_output(j);
    take_receipt(j);
    count(j);
    if (r->stream && !r->failed && !atomic_load(&r->gone)) {
        open_stream(r);
        r->proto->job_end(j, &r->out);
        flush(r, &r->out);
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

void serve__req_fail(serve__req *r, const serve__fail *f)
{
    if (r->failed) return;
    r->failed = true;
    r->fail = *f;
}

/* One line a request, without a word of its text. */
static void log_request(serve__req *r, const char *how)
{
    uint64_t prompt, kept, out;
    serve__usage(r, &prompt, &kept, &out);
    const serve__job *j = r->n_jobs ? &r->job[0] : NULL;
    const double ms = (double)(ht_now_ns() - r->arrived_ns) * 1e-6;
    serve__log(r->s, HT_SERVE_INFO,
               "%s %s from %s: %s, prompt %llu (kept %llu), answer %llu, first token %.0f ms, all "
               "%.0f ms",
               r->proto->name, r->id, r->client->name, how, (unsigned long long)prompt,
               (unsigned long long)kept, (unsigned long long)out,
               j && j->first_ns ? (double)(j->first_ns - r->arrived_ns) * 1e-6 : 0.0, ms);
}

static const char *settle_counts(serve__req *r)
{
    serve__server *s = r->s;
    const char *how = "done";
    pthread_mutex_lock(&s->mu);
    /* A request swept out of the queue has been counted there. */
    const bool ran = r->n_jobs && r->job[0].state != JOB_QUEUED;
    if (atomic_load(&r->gone)) {
        int phase = CANCEL_PREFILL;
        for (uint32_t i = 0; i < r->n_jobs; i++)
            if (r->job[i].left_in == CANCEL_DECODE) phase = CANCEL_DECODE;
        if (ran) s->m.cancelled[phase]++;
        how = "client left";
    } else if (r->failed) {
        if (ran) s->m.failed++;
        how = r->fail.code;
    } else {
        s->m.finished++;
    }
    serve__observe(&s->m.total, (double)(ht_now_ns() - r->arrived_ns) * 1e-9);
    pthread_mutex_unlock(&s->mu);
    return how;
}

void serve__req_finish(serve__req *r)
{
    const char *how = settle_counts(r);
    ht_buf b;
    ht_buf_init(&b, 0);
    if (r->failed && serve__conn_settle(r->conn)) {
        r->proto->stream_error(r, &r->fail, &b);
        flush(r, &b);
        serve__conn_end(r->conn, false);
    } else if (r->failed) {
        serve__answer_fail(r->s, r->conn, r->proto, &r->fail);
    } else if (r->stream) {
        open_stream(r);
        r->proto->close(r, &b);
        flush(r, &b);
        serve__conn_end(r->conn, false);
    } else {
        r->proto->whole(r, &b);
        serve__answer_json(r->conn, 200, &b);
    }
    ht_buf_done(&b);
    log_request(r, how);
    serve__req_free(r);
}

void serve__req_free(serve__req *r)
{
    if (!r) return;
    serve__conn_watch(r->conn, NULL, NULL);
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        serve__job *j = &r->job[i];
        for (uint32_t k = 0; k < j->n_calls; k++) ht_buf_done(&j->call[k].args);
        for (int k = 0; k < 4; k++) {
            ht_buf_done(&j->lp[k]);
            ht_buf_done(&j->lp_all[k]);
        }
        ht_buf_done(&j->text);
        ht_buf_done(&j->reasoning);
        ht_buf_done(&j->ids_out);
        ht_reply_free(j->reply);
        ht_matcher_free(j->matcher);
        ht_gen_result_done(&j->res);
    }
    ht_grammar_close(r->grammar);
    ht_buf_done(&r->warnings);
    ht_buf_done(&r->ignored);
    ht_buf_done(&r->out);
    serve__conn_release(r->conn);
    ht_arena_free(r->arena);
}

/* ---- parts of answers ------------------------------------------------------------------------ */

void serve__usage(const serve__req *r, uint64_t *prompt, uint64_t *kept, uint64_t *out)
{
    *prompt = *kept = *out = 0;
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        const serve__job *j = &r->job[i];
        /* Choices of one prompt share it: it counts once. */
        if (i % r->n_choices == 0) {
            *prompt += j->n_ids;
            *kept += j->res.n_kept;
        }
        *out += j->res.n_ids;
    }
}

const char *serve__finish_reason(const serve__job *j)
{
    if (j->finish == HT_FINISH_LENGTH) return "length";
    return j->n_calls && !j->broken ? "tool_calls" : "stop";
}

void serve__write_timings(ht_jw *w, const serve__job *j)
{
    const ht_gen_result *g = &j->res;
    const uint64_t n = g->n_prompt - g->n_kept;
    const double pms = (double)g->prompt_ns * 1e-6, dms = (double)g->decode_ns * 1e-6;
    ht_jw_obj(w);
    ht_jw_kuint(w, "cache_n", g->n_kept);
    ht_jw_kuint(w, "prompt_n", n);
    ht_jw_kreal(w, "prompt_ms", pms);
    ht_jw_kreal(w, "prompt_per_second", pms > 0 ? (double)n * 1e3 / pms : 0);
    ht_jw_kuint(w, "predicted_n", g->n_ids);
    ht_jw_kreal(w, "predicted_ms", dms);
    ht_jw_kreal(w, "predicted_per_second", dms > 0 ? (double)g->n_ids * 1e3 / dms : 0);
    ht_jw_kuint(w, "draft_n", g->drafted);
    ht_jw_kuint(w, "draft_n_accepted", g->accepted);
    ht_jw_kreal(w, "queue_ms", (double)(j->started_ns - j->req->arrived_ns) * 1e-6);
    ht_jw_kreal(w, "ttft_ms", j->first_ns ? (double)(j->first_ns - j->req->arrived_ns) * 1e-6 : 0);
    ht_jw_end(w, '}');
}

void serve__write_hetero(ht_jw *w, const serve__req *r)
{
    ht_jw_obj(w);
    ht_jw_key(w, "receipts");
    ht_jw_arr(w);
    for (uint32_t i = 0; i < r->n_jobs; i++) ht_jw_uint(w, r->job[i].receipt);
    ht_jw_end(w, ']');
    ht_jw_key(w, "seeds");
    ht_jw_arr(w);
    for (uint32_t i = 0; i < r->n_jobs; i++) ht_jw_int(w, (int64_t)r->job[i].sampling.seed);
    ht_jw_end(w, ']');
    if (r->hash_logits) {
        ht_jw_key(w, "logits_sha256");
        ht_jw_arr(w);
        for (uint32_t i = 0; i < r->n_jobs; i++) ht_jw_str(w, r->job[i].res.logits_sha256);
        ht_jw_end(w, ']');
    }
    bool expired = false, broken = false;
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        expired = expired || r->job[i].expired;
        broken = broken || r->job[i].broken;
    }
    if (expired) ht_jw_kstr(w, "stopped_by", "deadline");
    if (broken)
        ht_jw_kstr(w, "note", "a tool call did not parse; what the model wrote is in the text");
    if (r->warnings.n) ht_jw_kstr(w, "warnings", r->warnings.p);
    ht_jw_end(w, '}');
}
