/* request.c - what requests of all protocols have in common: fields and their ranges, sampling,
 * stop texts, the model's name, prompts against the context. Nothing is clamped: a value that
 * cannot be meant is a 400 naming its field, what is ignored is listed in a header. */
#include "core/arena.h"
#include "core/clock.h"
#include "core/hash.h"
#include "serve/server.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

bool serve__bad(serve__fail *f, unsigned status, const char *code, const char *param,
                const char *fmt, ...)
{
    va_list ap;
    *f = (serve__fail){.status = status, .code = code};
    (void)snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_start(ap, fmt);
    (void)vsnprintf(f->message, sizeof f->message, fmt, ap);
    va_end(ap);
    return true;
}

bool serve__bad_err(serve__fail *f, const char *param, const ht_err *err)
{
    switch (err->code) {
    case HT_EARG:
    case HT_EFORMAT: return serve__bad(f, 400, "invalid_value", param, "%s", err->msg);
    case HT_EUNSUPPORTED: return serve__bad(f, 400, "unsupported_value", param, "%s", err->msg);
    case HT_ENOMEM: serve__bad(f, 503, "out_of_memory", param, "%s", err->msg); break;
    case HT_EFULL: serve__bad(f, 503, "no_room", param, "%s", err->msg); break;
    case HT_EDEVICE: serve__bad(f, 503, "device_failed", param, "%s", err->msg); break;
    case HT_EGATE: serve__bad(f, 503, "not_admitted", param, "%s", err->msg); break;
    default: return serve__bad(f, 500, "internal_error", param, "%s", err->msg);
    }
    f->retry_s = 1;
    return true;
}

bool serve__tree(serve__req *r, ht_buf *b, const char *param, const ht_json **out, serve__fail *f)
{
    ht_err err = {0};
    ht_json *j = NULL;
    bool bad = false;
    if (ht_buf_ok(b, param, &err) || ht_json_parse(r->arena, b->p, b->n, 0, param, &j, &err))
        bad = serve__bad_err(f, param, &err);
    ht_buf_done(b);
    *out = j;
    return bad;
}

/* ---- a request ------------------------------------------------------------------------------- */

static void random_id(char *out, size_t cap, const char *prefix)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint8_t raw[24];
    size_t at = (size_t)snprintf(out, cap, "%s", prefix);
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw) {
        const uint64_t t = ht_now_ns();
        memset(raw, 0, sizeof raw);
        memcpy(raw, &t, sizeof t);
    }
    for (size_t i = 0; i < sizeof raw && at + 1 < cap; i++) out[at++] = letters[raw[i] % 62];
    out[at] = 0;
}

serve__req *serve__req_new(serve__server *s, serve__conn *conn, const serve__proto *proto,
                           serve__fail *f)
{
    ht_err err = {0};
    ht_arena *arena = NULL;
    if (ht_arena_new(&arena, 0, &err)) {
        serve__bad_err(f, NULL, &err);
        return NULL;
    }
    serve__req *r = ht_arena_alloc(arena, sizeof *r);
    if (!r) {
        ht_arena_free(arena);
        serve__bad(f, 503, "out_of_memory", NULL, "no memory for a request");
        return NULL;
    }
    r->s = s;
    r->conn = serve__conn_keep(conn);
    r->proto = proto;
    r->arena = arena;
    r->created = (int64_t)ht_now_unix();
    r->arrived_ns = ht_now_ns();
    r->n_choices = 1;
    r->cache_prompt = true;
    r->sampling = s->p.sampling;
    ht_buf_init(&r->out, 0);
    ht_buf_init(&r->warnings, 1 << 14);
    ht_buf_init(&r->ignored, 1 << 14);
    random_id(r->id, sizeof r->id, "");
    if (!s->p.seed_given) {
        uint32_t seed = 0;
        if (getrandom(&seed, sizeof seed, 0) < 0) seed = (uint32_t)r->arrived_ns;
        r->sampling.seed = seed;
    }
    size_t n = 0;
    const char *text = serve__conn_body(conn, &n);
    uint8_t sha[HT_SHA256_BYTES];
    if (!ht_sha256_of(text, n, sha, NULL)) ht_hex(sha, sizeof sha, r->body_sha);
    ht_json *j = NULL;
    if (!n) {
        serve__bad(f, 400, "invalid_json", NULL, "the body is empty; send a JSON object");
    } else if (ht_json_parse(arena, text, n, 0, "body", &j, &err)) {
        if (err.code == HT_ENOMEM) serve__bad_err(f, NULL, &err);
        else serve__bad(f, 400, "invalid_json", NULL, "%s", err.msg);
    } else if (j->type != HT_JOBJ) {
        serve__bad(f, 400, "invalid_json", NULL, "the body must be a JSON object");
    } else {
        r->body = j;
        (void)serve__authorised(s, conn, &r->client);
        return r;
    }
    serve__req_free(r);
    return NULL;
}

void serve__warn(serve__req *r, const char *fmt, ...)
{
    char line[300];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (r->warnings.n) ht_buf_str(&r->warnings, "; ");
    ht_buf_str(&r->warnings, line);
}

enum { IGNORED_BYTES = 2048 }; /* of names in the header */

bool serve__fields(serve__req *r, const ht_json *obj, const serve__field *known, size_t n,
                   serve__fail *f)
{
    for (size_t i = 0; i < obj->n; i++) {
        const ht_json *v = &obj->at[i];
        size_t k = 0;
        while (k < n && strcmp(known[k].name, v->key) != 0) k++;
        if (k == n || known[k].kind == FIELD_IGNORED) {
            if (r->ignored.n + strlen(v->key) > IGNORED_BYTES) {
                r->n_unlisted++;
                continue;
            }
            if (r->ignored.n) ht_buf_str(&r->ignored, ", ");
            ht_buf_str(&r->ignored, v->key);
        } else if (known[k].kind == FIELD_REFUSED && v->type != HT_JNULL &&
                   !(v->type == HT_JBOOL && !v->b) && !(v->type == HT_JARR && !v->n)) {
            return serve__bad(f, 400, "unsupported_parameter", v->key, "'%s' is not supported: %s",
                              v->key, known[k].why);
        }
    }
    return false;
}

/* ---- typed fields ---------------------------------------------------------------------------- */

bool serve__get_bool(const ht_json *o, const char *key, bool *out, serve__fail *f)
{
    const ht_json *v = ht_json_get(o, key);
    if (!v || v->type == HT_JNULL) return false;
    if (v->type != HT_JBOOL)
        return serve__bad(f, 400, "invalid_type", key, "'%s' must be true or false", key);
    *out = v->b;
    return false;
}

bool serve__get_int(const ht_json *o, const char *key, int64_t lo, int64_t hi, int64_t *out,
                    serve__fail *f)
{
    const ht_json *v = ht_json_get(o, key);
    if (!v || v->type == HT_JNULL) return false;
    const bool whole = v->type == HT_JREAL && v->d == floor(v->d) && fabs(v->d) < 9e15;
    if (v->type != HT_JINT && !whole)
        return serve__bad(f, 400, "invalid_type", key, "'%s' must be an integer", key);
    const int64_t i = whole ? (int64_t)v->d : v->i;
    if (i < lo || i > hi)
        return serve__bad(f, 400, "invalid_value", key, "'%s' is %lld, must be from %lld to %lld",
                          key, (long long)i, (long long)lo, (long long)hi);
    *out = i;
    return false;
}

static bool get_real(const ht_json *o, const char *key, double lo, double hi, float *out,
                     serve__fail *f)
{
    const ht_json *v = ht_json_get(o, key);
    if (!v || v->type == HT_JNULL) return false;
    if (v->type != HT_JINT && v->type != HT_JREAL)
        return serve__bad(f, 400, "invalid_type", key, "'%s' must be a number", key);
    if (!(v->d >= lo && v->d <= hi))
        return serve__bad(f, 400, "invalid_value", key, "'%s' is %g, must be from %g to %g", key,
                          v->d, lo, hi);
    *out = (float)v->d;
    return false;
}

bool serve__get_str(const ht_json *o, const char *key, const char **out, serve__fail *f)
{
    const ht_json *v = ht_json_get(o, key);
    if (!v || v->type == HT_JNULL) return false;
    if (v->type != HT_JSTR)
        return serve__bad(f, 400, "invalid_type", key, "'%s' must be a string", key);
    if (strlen(v->s) != v->n)
        return serve__bad(f, 400, "invalid_value", key, "'%s' holds a NUL character", key);
    *out = v->s;
    return false;
}

bool serve__sampling(serve__req *r, const ht_json *o, serve__fail *f)
{
    ht_sampling *s = &r->sampling;
    int64_t top_k = s->top_k, last_n = s->penalty_last_n, seed = -1,
            dry_len = s->dry_allowed_length, dry_n = s->dry_last_n;
    const uint32_t vocab = ht_engine_n_logits(r->s->engine);
    if (get_real(o, "temperature", 0, 100, &s->temp, f) ||
        get_real(o, "top_p", 0, 1, &s->top_p, f) || get_real(o, "min_p", 0, 1, &s->min_p, f) ||
        get_real(o, "typical_p", 0, 1, &s->typical_p, f) ||
        serve__get_int(o, "top_k", -1, INT32_MAX, &top_k, f) ||
        get_real(o, "repeat_penalty", 0.001, 100, &s->repeat_penalty, f) ||
        get_real(o, "repetition_penalty", 0.001, 100, &s->repeat_penalty, f) ||
        serve__get_int(o, "repeat_last_n", -1, INT32_MAX, &last_n, f) ||
        get_real(o, "presence_penalty", -100, 100, &s->presence_penalty, f) ||
        get_real(o, "frequency_penalty", -100, 100, &s->frequency_penalty, f) ||
        get_real(o, "dry_multiplier", 0, 100, &s->dry_multiplier, f) ||
        get_real(o, "dry_base", 1, 100, &s->dry_base, f) ||
        serve__get_int(o, "dry_allowed_length", 1, INT32_MAX, &dry_len, f) ||
        serve__get_int(o, "dry_penalty_last_n", -1, INT32_MAX, &dry_n, f) ||
        get_real(o, "xtc_probability", 0, 1, &s->xtc_probability, f) ||
        get_real(o, "xtc_threshold", 0, 1, &s->xtc_threshold, f) ||
        serve__get_int(o, "seed", INT64_MIN, INT64_MAX, &seed, f))
        return true;
    s->top_k = top_k < 0 ? 0 : (int32_t)top_k;
    s->penalty_last_n = (int32_t)last_n;
    s->dry_allowed_length = (int32_t)dry_len;
    s->dry_last_n = (int32_t)dry_n;
    const ht_json *given = ht_json_get(o, "seed");
    if (given && given->type != HT_JNULL && seed != -1) s->seed = (uint64_t)seed;
    if ((uint32_t)s->top_k > vocab)
        serve__warn(r, "top_k %d is more than the %u tokens of the vocabulary: it keeps them all",
                    s->top_k, vocab);
    return false;
}

bool serve__stops(serve__req *r, const ht_json *o, const char *key, serve__fail *f)
{
    const ht_json *v = ht_json_get(o, key);
    if (!v || v->type == HT_JNULL) return false;
    const bool one = v->type == HT_JSTR;
    const size_t n = one ? 1 : v->type == HT_JARR ? v->n : 0;
    if (!one && v->type != HT_JARR)
        return serve__bad(f, 400, "invalid_type", key, "'%s' must be a string or an array of them",
                          key);
    if (n > MAX_STOPS)
        return serve__bad(f, 400, "invalid_value", key, "%zu stop texts are too many; at most %d",
                          n, (int)MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const ht_json *t = one ? v : &v->at[i];
        if (t->type != HT_JSTR || !t->n || t->n > 1024 || strlen(t->s) != t->n)
            return serve__bad(f, 400, "invalid_value", key,
                              "entry %zu of '%s' must be a text of 1 to 1024 bytes", i, key);
        r->stop[r->n_stop++] = t->s;
    }
    return false;
}

bool serve__logit_bias(serve__req *r, const ht_json *o, serve__fail *f)
{
    const ht_json *v = ht_json_get(o, "logit_bias");
    if (!v || v->type == HT_JNULL) return false;
    if (v->type != HT_JOBJ)
        return serve__bad(f, 400, "invalid_type", "logit_bias",
                          "'logit_bias' must be an object of token ids and numbers");
    ht_logit_bias *b = ht_arena_array(r->arena, v->n, sizeof *b);
    if (!b) return serve__bad(f, 503, "out_of_memory", NULL, "no memory for logit biases");
    for (size_t i = 0; i < v->n; i++) {
        unsigned id;
        char end;
        if (sscanf(v->at[i].key, "%9u%c", &id, &end) != 1 || id >= ht_engine_n_logits(r->s->engine))
            return serve__bad(f, 400, "invalid_value", "logit_bias",
                              "'%.20s' is not a token of this model (0 to %u)", v->at[i].key,
                              ht_engine_n_logits(r->s->engine) - 1);
        if (v->at[i].type != HT_JINT && v->at[i].type != HT_JREAL)
            return serve__bad(f, 400, "invalid_type", "logit_bias", "the bias of %u is no number",
                              id);
        if (!(fabs(v->at[i].d) <= 100))
            return serve__bad(f, 400, "invalid_value", "logit_bias",
                              "the bias of %u is %g, must be from -100 to 100", id, v->at[i].d);
        /* -100 bans, as users of the protocol expect. */
        b[i] = (ht_logit_bias){(int32_t)id, v->at[i].d <= -100 ? -INFINITY : (float)v->at[i].d};
    }
    r->sampling.bias = b;
    r->sampling.n_bias = v->n;
    return false;
}

/* A name with what people leave out or add: ".gguf", ":latest", case. */
static bool same_name(const char *a, size_t n, const char *b)
{
    if (n > 7 && !strncasecmp(a + n - 7, ":latest", 7)) n -= 7;
    if (n > 5 && !strncasecmp(a + n - 5, ".gguf", 5)) n -= 5;
    return strlen(b) == n && !strncasecmp(a, b, n);
}

bool serve__model_name(serve__req *r, const ht_json *o, serve__fail *f)
{
    const char *name = NULL;
    if (serve__get_str(o, "model", &name, f)) return true;
    r->model = name && *name ? name : r->s->model_id;
    if (!name || !*name || same_name(name, strlen(name), r->s->model_id)) return false;
    for (size_t i = 0; i < r->s->p.n_aliases; i++) {
        const char *a = r->s->p.aliases[i];
        if (!strcmp(a, "*") || same_name(name, strlen(name), a)) return false;
    }
    return serve__bad(f, 404, "model_not_found", "model",
                      "this server has the model '%s', not '%.100s'; ask for that, or start the "
                      "server with --alias",
                      r->s->model_id, name);
}

bool serve__grammar_of(serve__req *r, int kind, const char *text, size_t n, const char *param,
                       serve__fail *f)
{
    ht_err err = {0};
    if (r->grammar)
        return serve__bad(f, 400, "invalid_value", param,
                          "'%s' comes on top of another constraint; give one", param);
    if (r->ignore_eos)
        return serve__bad(f, 400, "invalid_value", "ignore_eos",
                          "'ignore_eos' contradicts a constraint on the output");
    if (ht_grammar_open(&r->grammar, r->s->lexicon, kind, text, n, &err))
        return serve__bad_err(f, param, &err);
    return false;
}

/* ---- prompts --------------------------------------------------------------------------------- */

bool serve__set_jobs(serve__req *r, int32_t *const *ids, const size_t *n, size_t n_prompts,
                     serve__fail *f)
{
    serve__server *s = r->s;
    const size_t jobs = n_prompts * r->n_choices;
    if (!n_prompts || jobs > MAX_JOBS)
        return serve__bad(f, 400, "invalid_value", n_prompts > 1 ? "prompt" : "n",
                          "%zu prompts and %u choices of each are %zu answers; at most %d",
                          n_prompts, r->n_choices, jobs, (int)MAX_JOBS);
    r->job = ht_arena_array(r->arena, jobs, sizeof *r->job);
    if (!r->job)
        return serve__bad(f, 503, "out_of_memory", NULL, "no memory for %zu answers", jobs);
    for (size_t p = 0; p < n_prompts; p++) {
        if (n[p] == 0)
            return serve__bad(f, 400, "invalid_value", r->is_chat ? "messages" : "prompt",
                              "the prompt has no token; this model needs at least one");
        if (n[p] >= s->ctx) {
            serve__bad(f, 400, "context_length_exceeded", r->is_chat ? "messages" : "prompt",
                       /* The words by which clients know this case, and both numbers. */
                       "the prompt is too long: %zu tokens, and this model's maximum context "
                       "length is %u here, one of which the answer needs; shorten it or start the "
                       "server with a larger --ctx",
                       n[p], s->ctx);
            f->n_prompt = (uint32_t)(n[p] < UINT32_MAX ? n[p] : UINT32_MAX);
            f->n_ctx = s->ctx;
            return true;
        }
        const uint32_t room = s->ctx - (uint32_t)n[p] + 1;
        if (r->max_new > room)
            serve__warn(r, "the answer may have %u tokens, the context leaves %u", r->max_new,
                        room);
        for (uint32_t c = 0; c < r->n_choices; c++) {
            serve__job *j = &r->job[r->n_jobs];
            j->req = r;
            j->index = r->n_jobs++;
            j->ids = ids[p];
            j->n_ids = (uint32_t)n[p];
            j->sampling = r->sampling;
            j->sampling.seed += c;
            ht_buf_init(&j->text, 0);
            ht_buf_init(&j->reasoning, 0);
            for (int k = 0; k < 4; k++) {
                ht_buf_init(&j->lp[k], 0);
                ht_buf_init(&j->lp_all[k], 0);
            }
            ht_buf_init(&j->ids_out, 0);
        }
    }
    return false;
}

void serve__go(serve__req *r, bool bad, serve__fail *f)
{
    if (!bad) {
        ht_err err = {0};
        char *chain = NULL;
        /* What the sampler would refuse is told before anything waits. */
        if (ht_sampling_describe(&r->sampling, &chain, &err)) bad = serve__bad_err(f, NULL, &err);
        ht_free(chain);
    }
    if (r->n_unlisted)
        ht_buf_fmt(&r->ignored, "%sand %zu more", r->ignored.n ? " " : "", r->n_unlisted);
    if (!bad && (r->warnings.bad || r->ignored.bad))
        bad = serve__bad(f, 503, "out_of_memory", NULL, "no memory for a request");
    if (!bad && r->ignored.n) serve__conn_add_header(r->conn, "X-Ignored-Fields", r->ignored.p);
    if (!bad && r->warnings.n) serve__conn_add_header(r->conn, "X-Hetero-Warning", r->warnings.p);
    if (!bad && r->stream) serve__conn_expect(r->conn, r->proto->stream_type, r->proto->ping);
    if (!bad && serve__submit(r, f)) return;
    serve__answer_fail(r->s, r->conn, r->proto, f);
    serve__req_free(r);
}
