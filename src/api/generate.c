/* generate.c - the life of a generation: prompt and parameters checked and copied, the common
 * prefix kept, then steps (batch.c, take.c) until something ends it, and the record and result of
 * it. ht_session_generate is one generation stepped to its end. */
#include "api/gen.h"
#include "api/route.h"
#include "api/whole.h"
#include "core/clock.h"
#include <stdio.h>
#include <string.h>

static const char *const default_breakers[] = {"\n", ":", "\"", "*"};

/* DRY's sequence breakers as tokens, in the generation's arena. */
static int make_sampler(ht_gen *g, const ht_sampling *sampling, ht_err *err)
{
    const ht_engine *e = g->s->e;
    ht_arena *arena = g->arena;
    const char *const *text = sampling->dry_breakers ? sampling->dry_breakers : default_breakers;
    size_t n = sampling->dry_breakers ? sampling->n_dry_breakers : 4;
    if (!(sampling->dry_multiplier > 0)) n = 0;
    const int32_t **ids = ht_arena_array(arena, n, sizeof *ids);
    size_t *len = ht_arena_array(arena, n, sizeof *len);
    if (!ids || !len) return HT_FAIL(err, HT_ENOMEM, "no memory for %zu sequence breakers", n);
    for (size_t i = 0; i < n; i++) {
        ht_ids got = {0};
        int rc = ht_tok_encode(e->tok, text[i], strlen(text[i]), 0, &got, err);
        int32_t *copy = rc ? NULL : ht_arena_array(arena, got.n, sizeof *copy);
        if (!rc && !copy) rc = HT_FAIL(err, HT_ENOMEM, "no memory for a sequence breaker");
        if (!rc && got.n) memcpy(copy, got.id, got.n * sizeof *copy);
        ids[i] = copy;
        len[i] = got.n;
        ht_ids_done(&got);
        if (rc) return rc;
    }
    return ht_sampler_new(&g->sampler, sampling, e->model->spec.vocab, ids, len, n, err);
}

/* How many tokens may come, and why not more. The last one needs no position of its own. */
static void set_room(ht_gen *g, bool is_long)
{
    const ht_engine *e = g->s->e;
    uint32_t limit = e->ctx, orig = e->model->spec.rope_orig_ctx;
    g->room_why = "CONTEXT_FULL";
    if (orig && !is_long && orig < limit) {
        limit = orig;
        g->room_why = "ROPE_SWITCH";
    }
    g->room = limit - g->n + 1;
    if (g->p.max_new && g->p.max_new <= g->room) {
        g->room = g->p.max_new;
        g->room_why = NULL;
    }
}

static int check(const ht_session *s, const int32_t *ids, size_t n, const ht_gen_params *p,
                 ht_err *err)
{
    if (s->gen)
        return HT_FAIL(err, HT_EBUSY,
                       "the session is in a generation already; end that one, or use another");
    if (n > UINT32_MAX) return HT_FAIL(err, HT_EARG, "a prompt of %zu tokens is too long", n);
    HT_TRY(api__check_ids(s, ids, n, err));
    if (n > s->e->ctx)
        return HT_FAIL(
            err, HT_EFULL,
            "the prompt has %zu tokens, the context %u positions; shorten it or open with a "
            "larger ctx",
            n, s->e->ctx);
    if (p->n_top > API_TOP)
        return HT_FAIL(err, HT_EARG, "%u likeliest tokens are too many; at most %d", p->n_top,
                       (int)API_TOP);
    for (size_t i = 0; i < p->n_stop; i++)
        if (!p->stop || !p->stop[i] || !p->stop[i][0])
            return HT_FAIL(err, HT_EARG, "stop string %zu is empty", i);
    return 0;
}

/* ---- beginning ------------------------------------------------------------------------------- */

/* What the parameters point to and must outlive them. */
static int copy(ht_gen *g, const int32_t *ids, const ht_gen_params *p, ht_err *err)
{
    int32_t *own = ht_arena_array(g->arena, g->n, sizeof *own);
    g->top = ht_arena_array(g->arena, p->n_top, sizeof *g->top);
    if (!own || !g->top) return HT_FAIL(err, HT_ENOMEM, "no memory for a prompt of %u", g->n);
    memcpy(own, ids, g->n * sizeof *own);
    g->ids = own;
    g->p = *p;
    g->p.stop = NULL;
    g->p.sampling = NULL;
    g->p.speculation = NULL;
    if (p->prefix_salt) {
        g->p.prefix_salt = ht_arena_strndup(g->arena, p->prefix_salt, strlen(p->prefix_salt));
        if (!g->p.prefix_salt) return HT_FAIL(err, HT_ENOMEM, "no memory for a prefix salt");
    }
    if (p->hash_logits) HT_TRY(ht_sha256_new(&g->logits, err));
    return ht_stopper_new(&g->stopper, p->stop, p->n_stop, err);
}

/* Facts of the call into the session's record, as far as they are known. */
static int record_begin(ht_gen *g, const ht_sampling *sampling, ht_err *err)
{
    api__record *r = &g->s->rec;
    memcpy(r->phase, g->s->e->phase, sizeof r->phase);
    r->n_prompt = g->n;
    r->sampling = *sampling;
    r->sampling.dry_breakers = NULL;
    r->sampling.bias = NULL;
    char *chain = NULL;
    HT_TRY(ht_sampling_describe(sampling, &chain, err));
    (void)snprintf(r->chain, sizeof r->chain, "%s", chain);
    ht_free(chain);
    return api__ids_sha256(g->ids, g->n, r->prompt_sha, err);
}

/* Does the best token of plain logits, and nothing else of them, make the text? */
static bool may_chain(const ht_gen *g, const ht_sampling *s)
{
    const ht_gen_params *p = &g->p;
    return p->tokens_only && !p->constraint && !p->n_top && !p->hash_logits && s->temp <= 0 &&
           s->repeat_penalty == 1 && s->presence_penalty == 0 && s->frequency_penalty == 0 &&
           s->dry_multiplier == 0 && s->n_bias == 0;
}

static int begin(ht_gen *g, const int32_t *ids, const ht_gen_params *p, ht_err *err)
{
    ht_session *s = g->s;
    ht_sampling defaults;
    ht_sampling_init(&defaults);
    const ht_sampling *sampling = p->sampling ? p->sampling : &defaults;
    HT_TRY(copy(g, ids, p, err));
    HT_TRY(make_sampler(g, sampling, err));
    g->chain = may_chain(g, sampling);
    const bool is_long = api__is_long(&s->e->model->spec, (uint64_t)g->n + p->max_new);
    set_room(g, is_long);
    HT_TRY(api__route_choose(s, g->n, p->max_new ? p->max_new : g->room, sampling->temp <= 0,
                             p->speculation != NULL, err));
    HT_TRY(api__whole_choose(s->e, g->n, 1, err));
    /* What is kept depends on the class that the route will write. */
    HT_TRY(api__keep_prefix(s, g->ids, g->n, is_long, err));
    if (!p->no_prefix && !api__is_whole(&s->e->phase[API_PREFILL]))
        HT_TRY(api__prefix_use(s, g->ids, g->n, p->prefix_salt, err));
    g->at = s->rec.n_kept;
    memcpy(g->phase, s->e->phase, sizeof g->phase);
    HT_TRY(record_begin(g, sampling, err));
    g->out = ht_mem_array(g->room, sizeof *g->out);
    if (!g->out) return HT_FAIL(err, HT_ENOMEM, "no memory for %u token ids", g->room);
    return api__spec_begin(&g->spec, s, p->speculation, g->sampler, g->n + g->room, err);
}

static void release(ht_gen *g)
{
    if (!g) return;
    if (g->s && g->s->gen == g) g->s->gen = NULL;
    api__spec_end(g->spec);
    ht_sampler_free(g->sampler);
    ht_stopper_free(g->stopper);
    ht_sha256_free(g->logits);
    ht_buf_done(&g->piece);
    ht_buf_done(&g->text);
    ht_mem_free(g->out);
    ht_arena_free(g->arena);
    ht_mem_free(g);
}

/* Inside the engine. */
static int make(ht_gen **out, ht_session *s, const int32_t *ids, size_t n, const ht_gen_params *p,
                ht_err *err)
{
    HT_TRY(check(s, ids, n, p, err));
    ht_gen *g = ht_mem_alloc(sizeof *g);
    if (!g) return HT_FAIL(err, HT_ENOMEM, "no memory for a generation");
    g->s = s;
    g->n = (uint32_t)n;
    ht_buf_init(&g->piece, 0);
    ht_buf_init(&g->text, 0);
    ht_detok_init(&g->detok, p->special != 0);
    atomic_store(&s->cancel, 0);
    api__record_begin(s, "generate");
    int rc = ht_arena_new(&g->arena, 0, err);
    if (!rc) rc = begin(g, ids, p, err);
    if (rc) {
        s->rec.status = "error";
        release(g);
        return rc;
    }
    s->gen = g;
    *out = g;
    return 0;
}

/* ---- ending ---------------------------------------------------------------------------------- */

static int record_end(ht_gen *g, ht_err *err)
{
    api__record *r = &g->s->rec;
    r->status = g->finish == HT_FINISH_CANCEL ? "cancelled" : "ok";
    r->finish = ht_finish_name(g->finish);
    r->note = g->finish == HT_FINISH_LENGTH ? g->room_why : NULL;
    r->n_out = g->n_out;
    r->sampled = true;
    return api__ids_sha256(g->out, g->n_out, r->out_sha, err);
}

/* The engine's phases may be another generation's by now. */
static int enter_prefix(ht_gen *g, ht_err *err)
{
    memcpy(g->s->e->phase, g->phase, sizeof g->phase);
    return api__prefix_enter(g->s, g->p.prefix_salt, err);
}

void api__gen_end(ht_gen *g, int rc, const ht_err *why)
{
    ht_err err = {0};
    if (why) err = *why;
    if (rc == HT_ECANCELLED) { /* not an error here: what there is of the text is the result */
        g->finish = HT_FINISH_CANCEL;
        rc = 0;
    }
    if (!rc) rc = api__gen_flush(g, &err);
    if (!rc) rc = record_end(g, &err);
    if (!rc && !g->p.no_prefix) rc = enter_prefix(g, &err);
    /* Whatever was computed from a file that has been cut short may come from zeros. */
    const int changed = ht_file_unchanged(g->s->e->file, &err);
    if (changed) rc = changed;
    if (rc) g->s->rec.status = g->s->rec.mismatch ? "routeMismatch" : "error";
    if (g->s->rec.mismatch) api__route_mismatch(g->s);
    api__attempt_end(&g->s->rec, rc);
    g->err = rc ? err : (ht_err){0};
    g->state = HT_GEN_DONE;
    g->s->gen = NULL;
    api__spec_end(g->spec);
    g->spec = NULL;
}

static int hand_over(ht_gen *g, ht_gen_result *res, ht_err *err)
{
    const api__record *r = &g->s->rec;
    uint8_t sha[HT_SHA256_BYTES];
    size_t len = 0;
    ht_buf_add(&g->text, "", 0);
    HT_TRY(ht_buf_ok(&g->text, "generated text", err));
    char *text = ht_buf_take(&g->text, &len);
    if (!text) return HT_FAIL(err, HT_ENOMEM, "no memory for the generated text");
    *res =
        (ht_gen_result){.text = text,
                        .len = len,
                        .ids = g->out,
                        .n_ids = g->n_out,
                        .finish = g->finish,
                        .stop_i = g->finish == HT_FINISH_STOP ? ht_stopper_which(g->stopper) : -1,
                        .n_prompt = g->n,
                        .n_kept = r->n_kept,
                        .prompt_ns = r->wall_ns[API_PREFILL],
                        .decode_ns = r->wall_ns[API_DECODE]};
    g->out = NULL;
    for (size_t i = 0; i < r->n_segments; i++) {
        res->drafted += r->segment[i].drafted;
        res->accepted += r->segment[i].accepted;
    }
    if (!g->logits) return 0;
    ht_sha256 *h = g->logits;
    g->logits = NULL;
    HT_TRY(ht_sha256_end(h, sha, err));
    ht_hex(sha, sizeof sha, res->logits_sha256);
    return 0;
}

static int take_result(ht_gen *g, ht_gen_result *res, ht_err *err)
{
    if (g->err.code) {
        if (err) *err = g->err;
        return g->err.code;
    }
    const int rc = hand_over(g, res, err);
    if (rc) ht_gen_result_done(res);
    return rc;
}

/* ---- the public calls ------------------------------------------------------------------------ */

int ht_gen_new(ht_gen **out, ht_session *s, const int32_t *ids, size_t n, const ht_gen_params *p,
               ht_err *err)
{
    if (!out || !s || !p)
        return HT_FAIL(err, HT_EARG, "ht_gen_new: out, session and params must be given");
    *out = NULL;
    HT_TRY(api__enter(s->e, err));
    const int rc = make(out, s, ids, n, p, err);
    api__leave(s->e);
    return rc;
}

void ht_gen_free(ht_gen *g)
{
    if (!g) return;
    g->p.on_token = NULL; /* nobody listens any more */
    if (g->state != HT_GEN_DONE) api__gen_end(g, HT_ECANCELLED, NULL);
    release(g);
}

int ht_gen_state(const ht_gen *g)
{
    return g ? g->state : HT_GEN_DONE;
}

uint32_t ht_gen_prompt_left(const ht_gen *g)
{
    return g && g->state == HT_GEN_PROMPT ? g->n - g->at : 0;
}

int ht_engine_step(ht_engine *e, ht_gen *const *gens, size_t n, uint32_t prompt_rows,
                   ht_step_info *info, ht_err *err)
{
    if (!e || (n && !gens))
        return HT_FAIL(err, HT_EARG, "ht_engine_step: engine and generations must be given");
    for (size_t i = 0; i < n; i++) {
        if (!gens[i] || gens[i]->s->e != e)
            return HT_FAIL(err, HT_EARG, "generation %zu is not one of this engine", i);
        for (size_t j = 0; j < i; j++)
            if (gens[j] == gens[i])
                return HT_FAIL(err, HT_EARG, "generation %zu is in the list twice", i);
    }
    HT_TRY(api__enter(e, err));
    api__gen_step(e, gens, n, prompt_rows, info);
    api__leave(e);
    return 0;
}

int ht_gen_take(ht_gen *g, ht_gen_result *res, ht_err *err)
{
    if (!g || !res)
        return HT_FAIL(err, HT_EARG, "ht_gen_take: generation and result must be given");
    *res = (ht_gen_result){0};
    if (g->state != HT_GEN_DONE || g->taken)
        return HT_FAIL(err, HT_EARG, "the generation %s",
                       g->taken ? "has handed its result out already" : "is not done yet");
    g->taken = true;
    return take_result(g, res, err);
}

int ht_session_generate(ht_session *s, const int32_t *ids, size_t n, const ht_gen_params *p,
                        ht_gen_result *res, ht_err *err)
{
    if (!s || !p || !res)
        return HT_FAIL(err, HT_EARG,
                       "ht_session_generate: session, params and result must be given");
    *res = (ht_gen_result){0};
    ht_gen *g = NULL;
    HT_TRY(api__enter(s->e, err));
    int rc = make(&g, s, ids, n, p, err);
    while (!rc && g->state != HT_GEN_DONE) api__gen_step(s->e, &g, 1, 0, NULL);
    if (!rc) rc = take_result(g, res, err);
    release(g);
    api__leave(s->e);
    return rc;
}

void ht_gen_result_done(ht_gen_result *r)
{
    if (!r) return;
    ht_mem_free(r->text);
    ht_mem_free(r->ids);
    *r = (ht_gen_result){0};
}

const char *ht_finish_name(int finish)
{
    static const char *const name[] = {"none", "stop", "eos", "length", "cancelled"};
    return finish >= HT_FINISH_NONE && finish <= HT_FINISH_CANCEL ? name[finish] : "?";
}
