/* take.c - a row of logits becomes a token: drawn, shown as text in whole code points and never as
 * part of a stop string, checked for what ends the generation. */
#include "api/gen.h"
#include "core/clock.h"
#include <math.h>

/* Hand newly shown text (from mark on) to the caller. *stop: it asked to stop. */
static void emit(ht_gen *g, ht_token_event *ev, size_t mark, bool *stop)
{
    if (!g->p.on_token) return;
    ev->text = g->text.p ? g->text.p + mark : "";
    ev->len = g->text.n - mark;
    const uint64_t t0 = ht_now_ns();
    if (g->p.on_token(g->p.user, ev)) *stop = true;
    g->caller_ns += ht_now_ns() - t0;
}

/* Draw the token of position pos under the constraint, where there is one. q: what the guess that
 * stands there was drawn from, or NULL. */
static int draw(ht_gen *g, const float *logits, uint32_t pos, const double *q, ht_token_event *ev,
                ht_err *err)
{
    const ht_session *s = g->s;
    const ht_constraint *c = g->p.constraint;
    const uint32_t *bits = NULL;
    if (c) {
        const int rc = c->allowed(c->user, &bits, err);
        if (rc) return rc;
    }
    ht_sampler_allow(g->sampler, bits);
    const int rc = q ? ht_sampler_verify(g->sampler, logits, s->hist, pos, pos, s->hist[pos], q,
                                         &ev->id, g->p.tokens_only ? NULL : &ev->logprob, err)
                     : ht_sampler_draw(g->sampler, logits, s->hist, pos, pos, &ev->id,
                                       g->p.tokens_only ? NULL : &ev->logprob, err);
    ht_sampler_allow(g->sampler, NULL);
    return rc;
}

/* A row as the machine has it: f32, little-endian on everything this runs on. */
static int hash_row(ht_gen *g, const float *logits, ht_err *err)
{
    if (!g->logits) return 0;
    return ht_sha256_add(g->logits, logits, (size_t)g->s->e->model->spec.vocab * sizeof *logits,
                         err);
}

/* Text of a token behind what is shown already. */
static int spell(ht_gen *g, int32_t id, bool *hit, ht_err *err)
{
    const ht_tok *tok = g->s->e->tok;
    ht_buf_clear(&g->piece);
    /* A vocabulary may be padded beyond the tokenizer's: such an id has no text. */
    if ((uint32_t)id < ht_tok_size(tok)) HT_TRY(ht_detok_push(&g->detok, tok, id, &g->piece, err));
    HT_TRY(ht_buf_ok(&g->piece, "a token's text", err));
    return ht_stopper_push(g->stopper, g->piece.p ? g->piece.p : "", g->piece.n, &g->text, hit,
                           err);
}

/* Take the event's token and decide whether it ends the generation. logits: what it was drawn from;
 * NULL where nobody asks for them. */
static int accept(ht_gen *g, ht_token_event *ev, const float *logits, ht_err *err)
{
    ht_session *s = g->s;
    if (!g->p.ignore_eos && ht_tok_is_eog(s->e->tok, ev->id)) {
        g->finish = HT_FINISH_EOG;
        return 0;
    }
    s->hist[ev->pos] = ev->id;
    g->out[g->n_out++] = ev->id;
    if (g->p.constraint) {
        const int rc = g->p.constraint->accept(g->p.constraint->user, ev->id, err);
        if (rc) return rc;
    }
    size_t mark = g->text.n;
    bool hit = false, stop = false;
    HT_TRY(spell(g, ev->id, &hit, err));
    if (logits && g->p.n_top && g->p.on_token) {
        uint32_t got = 0;
        ht_top_of(logits, s->e->model->spec.vocab, g->top, g->p.n_top, &got);
        ev->n_top = got;
    }
    emit(g, ev, mark, &stop);
    if (hit) g->finish = HT_FINISH_STOP;
    else if (stop) g->finish = HT_FINISH_CANCEL;
    else if (g->n_out == g->room) g->finish = HT_FINISH_LENGTH;
    return 0;
}

/* Take the token of position pos from its row of logits. */
static int take(ht_gen *g, const float *logits, uint32_t pos, const double *q, ht_err *err)
{
    ht_token_event ev = {.pos = pos, .top = g->top, .logprob = NAN};
    HT_TRY(hash_row(g, logits, err));
    HT_TRY(draw(g, logits, pos, q, &ev, err));
    return accept(g, &ev, logits, err);
}

int api__gen_take_first(ht_gen *g, const float *logits, ht_err *err)
{
    return take(g, logits, ht_seq_len(g->s->seq), NULL, err);
}

/* What this step took of the clock that was neither drafting nor the run's share: other sessions,
 * and the caller. */
static uint64_t other_ns(const ht_gen *g, uint64_t taking_ns, uint64_t share_ns)
{
    const uint64_t all = ht_now_ns() - g->draft0;
    const uint64_t own = (g->draft1 - g->draft0) + share_ns + taking_ns;
    return all > own ? all - own : 0;
}

/* As long as the guess that a row was computed for is what was drawn, the next row is that of a
 * plain step. Then the session is cut to the last token taken, where a plain step would have left
 * it. */
int api__gen_take_rows(ht_gen *g, const api__plan *plan, const float *logits, uint32_t pos,
                       uint32_t k, uint64_t share_ns, ht_err *err)
{
    ht_session *s = g->s;
    const uint32_t before = g->n_out;
    const uint64_t caller_ns = g->caller_ns, t0 = ht_now_ns();
    uint32_t right = 0, i = 0;
    int rc = 0;
    for (;; i++) {
        const int32_t guess = s->hist[pos + i];
        const double *q = i < k ? api__spec_q(g->spec, i) : NULL;
        rc = take(g, logits + (size_t)i * s->e->model->spec.vocab, pos + i, q, err);
        if (rc) break;
        const bool same = i < k && g->n_out == before + i + 1 && s->hist[pos + i] == guess;
        right += same;
        if (g->finish || !same) break;
    }
    if (k) {
        const int cut = api__roll_back(s, plan, pos + i, k, right, rc ? NULL : err);
        if (!rc) rc = cut;
    }
    if (!g->spec || rc) return rc;
    const uint64_t taking = ht_now_ns() - t0 - (g->caller_ns - caller_ns);
    api__spec_done(g->spec, k, i + 1, right, other_ns(g, taking, share_ns));
    return 0;
}

int api__gen_take_ids(ht_gen *g, const api__plan *plan, const int32_t *ids, uint32_t n,
                      uint32_t pos, ht_err *err)
{
    const uint64_t caller_ns = g->caller_ns;
    uint32_t i = 0;
    int rc = 0;
    while (i < n && !rc && !g->finish) {
        ht_token_event ev = {.id = ids[i], .pos = pos + i, .top = g->top, .logprob = NAN};
        rc = accept(g, &ev, NULL, err);
        i++;
    }
    const int cut = api__roll_back(g->s, plan, pos + i - 1, 0, 0, rc ? NULL : err);
    if (!rc) rc = cut;
    if (g->spec && !rc) api__spec_done(g->spec, 0, i, 0, g->caller_ns - caller_ns);
    return rc;
}

int api__gen_flush(ht_gen *g, ht_err *err)
{
    size_t mark = g->text.n;
    bool hit = false, stop = false;
    ht_token_event ev = {.id = -1, .pos = ht_seq_len(g->s->seq)};
    if (g->finish == HT_FINISH_STOP) return 0;
    ht_buf_clear(&g->piece);
    ht_detok_flush(&g->detok, &g->piece);
    HT_TRY(ht_buf_ok(&g->piece, "the text's tail", err));
    HT_TRY(
        ht_stopper_push(g->stopper, g->piece.p ? g->piece.p : "", g->piece.n, &g->text, &hit, err));
    if (!hit) HT_TRY(ht_stopper_flush(g->stopper, &g->text, err));
    if (g->text.n > mark) emit(g, &ev, mark, &stop);
    return ht_buf_ok(&g->text, "generated text", err);
}
