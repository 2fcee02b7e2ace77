/* generate.c - prompt in, tokens out: keep the common prefix, run the rest in chunks, then sample
 * and run one token at a time. Text leaves in whole code points and never as part of a stop. */
#include "api/route.h"
#include "api/speculate.h"
#include "core/clock.h"
#include "decode/sample.h"
#include "decode/stop.h"
#include <stdio.h>
#include <string.h>

/* One call of ht_session_generate. */
typedef struct {
    ht_session *s;
    const ht_gen_params *p;
    const int32_t *ids; /* the prompt, n of them */
    uint32_t n;
    uint32_t room; /* tokens that may be produced                                              */
    const char
        *room_why; /* receipt note when room ends the generation before max_new would       */
    ht_sampler *sampler;
    ht_stopper *stopper;
    ht_detok detok;
    ht_buf piece,
        text;     /* text of the last token; all text that may be shown                       */
    int32_t *out; /* [n_out] produced ids, capacity room                                      */
    uint32_t n_out;
    int finish;
    api__spec *spec;    /* NULL: no guessing */
    uint64_t caller_ns; /* spent in on_token */
} gen;

static const char *const default_breakers[] = {"\n", ":", "\"", "*"};

/* DRY's sequence breakers as tokens, in the arena of the call. */
static int make_sampler(gen *g, ht_arena *arena, const ht_sampling *sampling, ht_err *err)
{
    const ht_engine *e = g->s->e;
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
static void set_room(gen *g)
{
    const ht_engine *e = g->s->e;
    uint32_t limit = e->ctx, orig = e->model->spec.rope_orig_ctx;
    g->room_why = "CONTEXT_FULL";
    if (orig && !g->s->rope_long && orig < limit) {
        limit = orig;
        g->room_why = "ROPE_SWITCH";
    }
    g->room = limit - g->n + 1;
    if (g->p->max_new && g->p->max_new <= g->room) {
        g->room = g->p->max_new;
        g->room_why = NULL;
    }
}

static int check(const gen *g, ht_err *err)
{
    const ht_gen_params *p = g->p;
    HT_TRY(api__check_ids(g->s, g->ids, g->n, err));
    if (g->n > g->s->e->ctx)
        return HT_FAIL(
            err, HT_EFULL,
            "the prompt has %u tokens, the context %u positions; shorten it or open with a "
            "larger ctx",
            g->n, g->s->e->ctx);
    for (size_t i = 0; i < p->n_stop; i++)
        if (!p->stop || !p->stop[i] || !p->stop[i][0])
            return HT_FAIL(err, HT_EARG, "stop string %zu is empty", i);
    return 0;
}

/* Run the part of the prompt that is not held yet; *logits of its last token. *stop: the caller
 * asked to stop from on_prefill. */
static int prefill(gen *g, const float **logits, bool *stop, ht_err *err)
{
    ht_session *s = g->s;
    const api__plan *plan = NULL;
    const uint32_t own = s->e->phase[API_PREFILL].ubatch, chunk = own ? own : s->e->ubatch;
    HT_TRY(api__plan_get(s->e, API_PREFILL, chunk, 1, &plan, err));
    for (uint32_t at = s->rec.n_kept; at < g->n;) {
        uint32_t rows = g->n - at < chunk ? g->n - at : chunk;
        bool last = at + rows == g->n;
        s->want[0] = rows - 1;
        HT_TRY(api__run(s, API_PREFILL, plan, g->ids + at, rows, s->want, last, logits, err));
        at += rows;
        if (g->p->on_prefill && g->p->on_prefill(g->p->user, "prompt tokens", at - s->rec.n_kept,
                                                 g->n - s->rec.n_kept)) {
            *stop = true;
            return 0;
        }
    }
    return 0;
}

/* Hand newly shown text (from mark on) to the caller. *stop: it asked to stop. */
static void emit(gen *g, int32_t id, uint32_t pos, size_t mark, float logprob, bool *stop)
{
    if (!g->p->on_token) return;
    const ht_token_event ev = {.id = id,
                               .pos = pos,
                               .text = g->text.p ? g->text.p + mark : "",
                               .len = g->text.n - mark,
                               .logprob = logprob};
    const uint64_t t0 = ht_now_ns();
    if (g->p->on_token(g->p->user, &ev)) *stop = true;
    g->caller_ns += ht_now_ns() - t0;
}

/* Take the token of position pos: sample it, turn it into text, decide whether it ends the
 * generation. */
static int take(gen *g, const float *logits, uint32_t pos, ht_err *err)
{
    ht_session *s = g->s;
    const ht_engine *e = s->e;
    int32_t id = 0;
    float logprob = 0;
    HT_TRY(ht_sampler_draw(g->sampler, logits, s->hist, pos, pos, &id, &logprob, err));
    if (!g->p->ignore_eos && ht_tok_is_eog(e->tok, id)) {
        g->finish = HT_FINISH_EOG;
        return 0;
    }
    s->hist[pos] = id;
    g->out[g->n_out++] = id;
    size_t mark = g->text.n;
    bool hit = false, stop = false;
    ht_buf_clear(&g->piece);
    /* A vocabulary may be padded beyond the tokenizer's: such an id has no text. */
    if ((uint32_t)id < ht_tok_size(e->tok))
        HT_TRY(ht_detok_push(&g->detok, e->tok, id, &g->piece, err));
    HT_TRY(ht_buf_ok(&g->piece, "a token's text", err));
    HT_TRY(
        ht_stopper_push(g->stopper, g->piece.p ? g->piece.p : "", g->piece.n, &g->text, &hit, err));
    emit(g, id, pos, mark, logprob, &stop);
    if (hit) g->finish = HT_FINISH_STOP;
    else if (stop) g->finish = HT_FINISH_CANCEL;
    else if (g->n_out == g->room) g->finish = HT_FINISH_LENGTH;
    return 0;
}

/* Take tokens from position pos on from the logits of a run with k guesses, [k+1, vocab]: as
 * long as the guess that a row was computed for is what was sampled, the next row is that of a
 * plain step. Then the session is cut to the last token taken, where a plain step would have
 * left it. */
static int take_rows(gen *g, const api__plan *plan, const float *logits, uint32_t pos, uint32_t k,
                     ht_err *err)
{
    ht_session *s = g->s;
    const uint32_t before = g->n_out;
    const uint64_t caller_ns = g->caller_ns;
    uint32_t right = 0, i = 0;
    int rc = 0;
    for (;; i++) {
        const int32_t guess = s->hist[pos + i];
        rc = take(g, logits + (size_t)i * s->e->model->spec.vocab, pos + i, err);
        if (rc) break;
        const bool same = i < k && g->n_out == before + i + 1 && s->hist[pos + i] == guess;
        right += same;
        if (g->finish || !same) break;
    }
    if (k) {
        const int cut = api__roll_back(s, plan, pos + i, k, right, rc ? NULL : err);
        if (!rc) rc = cut;
    }
    if (g->spec && !rc) api__spec_done(g->spec, k, i + 1, right, g->caller_ns - caller_ns);
    return rc;
}

/* Sample from the prompt's logits, then step by step until something ends it. */
static int decode(gen *g, const float *logits, ht_err *err)
{
    ht_session *s = g->s;
    const api__plan *one = NULL;
    HT_TRY(take(g, logits, ht_seq_len(s->seq), err));
    if (g->finish) return 0;
    HT_TRY(api__plan_get(s->e, API_DECODE, 1, 1, &one, err));
    while (!g->finish) {
        const uint32_t pos = ht_seq_len(s->seq);
        uint32_t k = 0;
        /* The last token needs no row of its own, so no guess reaches it. */
        if (g->spec) HT_TRY(api__spec_draft(g->spec, g->room - g->n_out - 1, &k, err));
        const api__plan *plan = k ? api__spec_plan(g->spec) : one;
        for (uint32_t i = 0; i <= k; i++) s->want[i] = i;
        HT_TRY(api__run(s, API_DECODE, plan, s->hist + pos, k + 1, s->want, k + 1, &logits, err));
        HT_TRY(take_rows(g, plan, logits, pos + 1, k, err));
    }
    return 0;
}

/* The tail that was held back: shown at the end, except behind a stop string. */
static int flush(gen *g, ht_err *err)
{
    size_t mark = g->text.n;
    bool hit = false, stop = false;
    if (g->finish == HT_FINISH_STOP) return 0;
    ht_buf_clear(&g->piece);
    ht_detok_flush(&g->detok, &g->piece);
    HT_TRY(ht_buf_ok(&g->piece, "the text's tail", err));
    HT_TRY(
        ht_stopper_push(g->stopper, g->piece.p ? g->piece.p : "", g->piece.n, &g->text, &hit, err));
    if (!hit) HT_TRY(ht_stopper_flush(g->stopper, &g->text, err));
    if (g->text.n > mark) emit(g, -1, ht_seq_len(g->s->seq), mark, 0, &stop);
    return ht_buf_ok(&g->text, "generated text", err);
}

static int phases(gen *g, ht_err *err)
{
    ht_session *s = g->s;
    const float *logits = NULL;
    bool stop = false;
    uint64_t t0 = ht_now_ns();
    int rc = prefill(g, &logits, &stop, err);
    uint64_t t1 = ht_now_ns();
    s->rec.wall_ns[API_PREFILL] = t1 - t0;
    if (!rc && stop) g->finish = HT_FINISH_CANCEL;
    if (!rc && !stop) rc = decode(g, logits, err);
    s->rec.wall_ns[API_DECODE] = ht_now_ns() - t1;
    if (rc == HT_ECANCELLED) { /* not an error here: what there is of the text is the result */
        g->finish = HT_FINISH_CANCEL;
        rc = 0;
    }
    if (rc) return rc;
    return flush(g, err);
}

/* Facts of the finished call into the record. */
static int record(gen *g, const ht_sampling *sampling, ht_err *err)
{
    api__record *r = &g->s->rec;
    r->status = g->finish == HT_FINISH_CANCEL ? "cancelled" : "ok";
    r->finish = ht_finish_name(g->finish);
    r->note = g->finish == HT_FINISH_LENGTH ? g->room_why : NULL;
    r->n_out = g->n_out;
    r->sampled = true;
    r->sampling = *sampling;
    r->sampling.dry_breakers = NULL;
    r->sampling.bias = NULL;
    char *chain = NULL;
    HT_TRY(ht_sampling_describe(sampling, &chain, err));
    (void)snprintf(r->chain, sizeof r->chain, "%s", chain);
    ht_free(chain);
    HT_TRY(api__ids_sha256(g->ids, g->n, r->prompt_sha, err));
    return api__ids_sha256(g->out, g->n_out, r->out_sha, err);
}

static int hand_over(gen *g, ht_gen_result *res, ht_err *err)
{
    size_t len = 0;
    ht_buf_add(&g->text, "", 0);
    HT_TRY(ht_buf_ok(&g->text, "generated text", err));
    char *text = ht_buf_take(&g->text, &len);
    if (!text) return HT_FAIL(err, HT_ENOMEM, "no memory for the generated text");
    *res = (ht_gen_result){
        .text = text, .len = len, .ids = g->out, .n_ids = g->n_out, .finish = g->finish};
    g->out = NULL;
    return 0;
}

/* Everything between entering and leaving the engine. */
static int generate(gen *g, ht_arena *arena, const ht_sampling *sampling, ht_gen_result *res,
                    ht_err *err)
{
    ht_session *s = g->s;
    HT_TRY(make_sampler(g, arena, sampling, err));
    HT_TRY(ht_stopper_new(&g->stopper, g->p->stop, g->p->n_stop, err));
    bool is_long = api__is_long(&s->e->model->spec, (uint64_t)g->n + g->p->max_new);
    HT_TRY(api__keep_prefix(s, g->ids, g->n, is_long, err));
    s->rec.n_prompt = g->n;
    set_room(g);
    HT_TRY(api__route_choose(s->e, g->n, g->p->max_new ? g->p->max_new : g->room,
                             sampling->temp <= 0, g->p->speculation != NULL, err));
    g->out = ht_mem_array(g->room, sizeof *g->out);
    if (!g->out) return HT_FAIL(err, HT_ENOMEM, "no memory for %u token ids", g->room);
    uint64_t cow = ht_pool_copied_bytes(s->e->pool);
    HT_TRY(api__spec_begin(&g->spec, s, g->p->speculation, g->sampler, g->n + g->room, err));
    HT_TRY(phases(g, err));
    s->rec.cow_bytes = ht_pool_copied_bytes(s->e->pool) - cow;
    HT_TRY(record(g, sampling, err));
    return hand_over(g, res, err);
}

int ht_session_generate(ht_session *s, const int32_t *ids, size_t n, const ht_gen_params *p,
                        ht_gen_result *res, ht_err *err)
{
    if (!s || !p || !res)
        return HT_FAIL(err, HT_EARG,
                       "ht_session_generate: session, params and result must be given");
    *res = (ht_gen_result){0};
    if (n > UINT32_MAX) return HT_FAIL(err, HT_EARG, "a prompt of %zu tokens is too long", n);
    ht_sampling defaults;
    ht_sampling_init(&defaults);
    gen g = {.s = s, .p = p, .ids = ids, .n = (uint32_t)n};
    HT_TRY(check(&g, err));
    HT_TRY(api__enter(s->e, err));
    atomic_store(&s->cancel, 0);
    api__record_begin(s, "generate");
    ht_buf_init(&g.piece, 0);
    ht_buf_init(&g.text, 0);
    ht_detok_init(&g.detok, p->special != 0);
    ht_arena *arena = NULL;
    int rc = ht_arena_new(&arena, 0, err);
    if (!rc) rc = generate(&g, arena, p->sampling ? p->sampling : &defaults, res, err);
    /* Whatever was computed from a file that has been cut short may come from zeros. */
    const int changed = ht_file_unchanged(s->e->file, err);
    if (changed) {
        rc = changed;
        ht_gen_result_done(res);
    }
    if (rc) s->rec.status = "error";
    api__spec_end(g.spec);
    ht_sampler_free(g.sampler);
    ht_stopper_free(g.stopper);
    ht_buf_done(&g.piece);
    ht_buf_done(&g.text);
    ht_mem_free(g.out);
    ht_arena_free(arena);
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
