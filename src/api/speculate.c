/* speculate.c - where guesses come from: the sequence's own past (decode/lookup.h) and a draft
 * model, a second engine with a session of its own (draft.h), which takes turns with the target or
 * guesses in a thread of its own meanwhile (decode/ahead.h). decode/adapt.h says how many and when.
 *
 * Lookup costs next to nothing, so while it does not pay its guesses are still compared with what
 * plain steps bring (a shadow): it is known when it would pay, without a row spent on it. */
#include "api/speculate.h"
#include "api/draft.h"
#include "core/clock.h"
#include "decode/ahead.h"
#include "decode/lookup.h"
#include <math.h>
#include <string.h>

typedef struct {
    int32_t id[HT_ADAPT_MOST];
    uint32_t n, at, right;
    int cls;
} shadow;

enum {
    F16_MOST = 7,   /* guesses: with the token itself 8 rows (docs/cuda.md) */
    FEW_PLAIN = 4,  /* tokens of a run that could have had guesses behind the first */
    FEW_BEHIND = 2, /* rows that cost a draft model what one does: its weights are read once */
};

struct api__spec {
    ht_session *s;
    api__draft draft; /* d NULL: none */
    ht_ahead *ahead;  /* draft is this worker's; NULL: it takes turns */
    bool entered;     /* the draft's engine is ours until the end */
    bool always;
    uint32_t most, least;
    ht_lookup *lookup;         /* NULL: off */
    ht_sampler *sampler, *own; /* borrowed; the worker's copy of it */
    double *q; /* [most, vocab] what each guess of this round was drawn from; NULL: not asked for */
    const api__plan *verify;
    shadow shadow;
    int cls[HT_ADAPT_MOST]; /* class of each guess of this round */
    ht_adapt_round round;
    uint32_t told;  /* tokens that the shadow was compared with, 0: none yet */
    uint32_t n_max; /* positions at the end of the generation at most */
    uint64_t t0;
};

/* ---- compatibility --------------------------------------------------------------------------- */

int ht_draft_check(const ht_engine *target, const ht_engine *draft, ht_err *err)
{
    if (!target || !draft)
        return HT_FAIL(err, HT_EARG, "ht_draft_check: two engines must be given");
    if (memcmp(ht_tok_sha256(target->tok), ht_tok_sha256(draft->tok), HT_SHA256_BYTES) == 0)
        return 0;
    char a[HT_SHA256_HEX], b[HT_SHA256_HEX];
    ht_hex(ht_tok_sha256(target->tok), HT_SHA256_BYTES, a);
    ht_hex(ht_tok_sha256(draft->tok), HT_SHA256_BYTES, b);
    return HT_FAIL(err, HT_EARG,
                   "%.60s (%u tokens, %.8s) cannot draft for %.60s (%u tokens, %.8s): their "
                   "vocabularies differ; use a model of the same family",
                   draft->path, ht_tok_size(draft->tok), b, target->path, ht_tok_size(target->tok),
                   a);
}

static int check(const ht_session *s, const ht_speculation *w, ht_err *err)
{
    if (w->draft_max > HT_ADAPT_MOST)
        return HT_FAIL(err, HT_EARG, "a draft of %u tokens is too long; at most %d", w->draft_max,
                       (int)HT_ADAPT_MOST);
    if (w->draft_min > (w->draft_max ? w->draft_max : HT_ADAPT_MOST))
        return HT_FAIL(err, HT_EARG, "drafts of at least %u tokens (--draft-min), but at most %u",
                       w->draft_min, w->draft_max ? w->draft_max : (unsigned)HT_ADAPT_MOST);
    if (s->e->ubatch < 2 && s->e->ctx > 1)
        return HT_FAIL(err, HT_EARG,
                       "with a ubatch (-ub) of 1 no draft can be verified; open with 2 or more");
    if (!w->draft) return 0;
    if (w->parallel && w->reject)
        return HT_FAIL(err, HT_EARG,
                       "rejection sampling of guesses made in parallel is not offered: how sure "
                       "they were decides how many are taken; ask for one of the two");
    if (w->parallel && w->draft->e == s->e)
        return HT_FAIL(err, HT_EARG,
                       "to guess in parallel the draft model needs an engine of its own");
    if (w->draft == s)
        return HT_FAIL(err, HT_EARG, "a session cannot draft for itself; give it one of its own");
    return ht_draft_check(s->e, w->draft->e, err);
}

/* ---- begin and end --------------------------------------------------------------------------- */

/* The worker's function: one guess, drawn like the target draws. */
static int guess_ahead(void *user, const int32_t *tokens, uint32_t known, uint32_t len, int32_t *id,
                       float *logprob, ht_err *err)
{
    api__spec *x = user;
    const float *logits = NULL;
    uint32_t rows = 0;
    if (!api__draft_reads(&x->draft, tokens, len))
        return HT_FAIL(err, HT_EUNSUPPORTED, "a token that the draft model does not have");
    HT_TRY(api__draft_logits(&x->draft, tokens, known, len, 1, &logits, &rows, err));
    ht_sampler_first(x->own, api__draft_ids(&x->draft));
    return ht_sampler_draw(x->own, logits, tokens, len, len, id, logprob, err);
}

static int take_draft(api__spec *x, const ht_speculation *w, uint32_t n_max, ht_err *err)
{
    ht_session *d = w->draft;
    const uint32_t vocab = x->s->e->model->spec.vocab;
    x->draft = (api__draft){.d = d, .vocab = vocab};
    api__record_begin(d, "draft");
    d->rec.status = "ok";
    atomic_store(&d->cancel, 0);
    atomic_store(&x->s->helper, d);
    if (w->reject) {
        x->q = ht_mem_array((size_t)vocab * x->most, sizeof *x->q);
        if (!x->q)
            return HT_FAIL(err, HT_ENOMEM, "no memory for what %u guesses are drawn from", x->most);
    }
    if (!w->parallel) return 0;
    HT_TRY(api__enter(d->e, err));
    x->entered = true;
    HT_TRY(ht_sampler_clone(&x->own, x->sampler, err));
    return ht_ahead_new(&x->ahead, guess_ahead, x, n_max, x->most, err);
}

static int begin(api__spec *x, const ht_speculation *w, uint32_t n_max, ht_err *err)
{
    ht_session *s = x->s;
    x->always = w->always != 0;
    x->n_max = n_max;
    x->most = w->draft_max ? w->draft_max : HT_ADAPT_MOST;
    if (x->most > s->e->ubatch - 1)
        x->most = s->e->ubatch - 1; /* one row more is the token itself */
    /* Under act f16 wider plans go to tensor cores, whose bits are others than decode's. */
    if (s->e->act == HT_ACT_F16 && x->most > F16_MOST) x->most = F16_MOST;
    x->least = w->draft_min;
    if (w->lookup) HT_TRY(ht_lookup_new(&x->lookup, n_max, err));
    if (w->draft) HT_TRY(take_draft(x, w, n_max, err));
    return api__plan_get(s->e, API_DECODE, x->most + 1, x->most + 1, &x->verify, err);
}

int api__spec_begin(api__spec **out, ht_session *s, const ht_speculation *w, ht_sampler *sampler,
                    uint32_t n_max, ht_err *err)
{
    *out = NULL;
    if (!w || (!w->lookup && !w->draft)) return 0;
    HT_TRY(check(s, w, err));
    if (s->e->ctx < 2) return 0; /* room for the prompt's token: no answer is long enough */
    api__spec *x = ht_mem_alloc(sizeof *x);
    if (!x) return HT_FAIL(err, HT_ENOMEM, "no memory for speculation");
    x->s = s;
    x->sampler = sampler;
    const int rc = begin(x, w, n_max, err);
    if (rc) {
        api__spec_end(x);
        return rc;
    }
    s->rec.spec.on = true;
    s->rec.spec.lookup = w->lookup != 0;
    s->rec.spec.draft = w->draft ? w->draft->e->model->sha256 : NULL;
    s->rec.spec.always = x->always;
    s->rec.spec.reject = x->q != NULL;
    s->rec.spec.parallel = x->ahead != NULL;
    s->rec.spec.draft_max = x->most;
    s->rec.spec.draft_min = x->least;
    *out = x;
    return 0;
}

/* End the worker: the run under way is stopped, not waited for. */
static void end_ahead(api__spec *x)
{
    ht_ahead_stats st;
    if (!x->ahead) return;
    ht_ahead_pause(x->ahead, true);
    api__stop(x->draft.d);
    ht_ahead_stats_of(x->ahead, &st);
    x->s->rec.spec.ahead = st;
    ht_ahead_free(x->ahead);
    x->ahead = NULL;
}

/* Without the draft model. */
static void give_up(api__spec *x)
{
    atomic_store(&x->s->helper, NULL);
    end_ahead(x);
    if (x->entered) api__leave(x->draft.d->e);
    x->entered = false;
    api__draft_end(&x->draft);
}

void api__spec_end(api__spec *x)
{
    if (!x) return;
    give_up(x);
    ht_sampler_free(x->own);
    ht_lookup_free(x->lookup);
    ht_mem_free(x->q);
    ht_mem_free(x);
}

const double *api__spec_q(const api__spec *x, uint32_t i)
{
    const bool drawn = x->q && x->round.from == HT_ADAPT_MODEL && i < x->round.drafted;
    return drawn ? x->q + (size_t)i * x->s->e->model->spec.vocab : NULL;
}

const api__plan *api__spec_plan(const api__spec *x)
{
    return x->verify;
}

/* ---- the draft model ------------------------------------------------------------------------- */

/* A guess for position len + k. Without rejection sampling it is drawn like the target draws: same
 * history, same random number. An equal model guesses everything right, and a similar one more than
 * its most likely tokens would. */
static int draw_guess(api__spec *x, const float *logits, uint32_t at, uint32_t k, int32_t *id,
                      float *logprob, ht_err *err)
{
    const int32_t *hist = x->s->hist;
    double *q = x->q ? x->q + (size_t)k * x->s->e->model->spec.vocab : NULL;
    ht_sampler_first(x->sampler, api__draft_ids(&x->draft));
    const int rc = q ? ht_sampler_guess(x->sampler, logits, hist, at, at, q, id, logprob, err)
                     : ht_sampler_draw(x->sampler, logits, hist, at, at, id, logprob, err);
    ht_sampler_first(x->sampler, 0);
    return rc;
}

/* Draft up to most tokens behind the first len. */
static int draft_chain(api__spec *x, uint32_t len, uint32_t most, uint32_t *k, ht_err *err)
{
    ht_session *s = x->s;
    uint64_t t0 = ht_now_ns();
    double chain = 1;
    x->round.first = !x->draft.seen_prompt;
    while (*k < most && (x->always || ht_adapt_more(&s->adapt, *k, chain))) {
        const float *logits = NULL;
        uint32_t rows = 0;
        int32_t id = 0;
        float logprob = 0;
        HT_TRY(
            api__draft_logits(&x->draft, s->hist, len, len + *k, most - *k, &logits, &rows, err));
        if (rows > FEW_BEHIND) { /* what was missing is a cost of its own */
            x->round.sync_tokens = rows;
            x->round.sync_ns = ht_now_ns() - t0;
            t0 = ht_now_ns();
        }
        x->round.made += rows <= FEW_BEHIND;
        HT_TRY(draw_guess(x, logits, len + *k, *k, &id, &logprob, err));
        x->cls[*k] = ht_adapt_bin_class(exp((double)logprob));
        chain *= ht_adapt_chance(&s->adapt, x->cls[*k]);
        /* Rejection sampling is exact only for guesses that are kept whatever they are. */
        if (!x->always && !x->q && !ht_adapt_keep(&s->adapt, *k, chain)) break;
        s->hist[len + (*k)++] = id;
    }
    x->round.draft_ns = ht_now_ns() - t0;
    return 0;
}

/* Guesses that the worker has made meanwhile; none is waited for. */
static int from_ahead(api__spec *x, uint32_t len, uint32_t most, uint32_t *k, ht_err *err)
{
    const ht_adapt *a = &x->s->adapt;
    int32_t *id = x->s->hist + len;
    float logprob[HT_ADAPT_MOST];
    double chain = 1;
    HT_TRY(ht_ahead_failed(x->ahead, err));
    ht_ahead_truth(x->ahead, x->s->hist, len);
    const bool on = x->always || ht_adapt_model(a, 0);
    ht_ahead_pause(x->ahead, !on);
    if (!on) return 0;
    x->round.from = HT_ADAPT_MODEL;
    const uint32_t n = ht_ahead_take(x->ahead, most, id, logprob);
    x->round.made = n; /* in no time of the target's */
    for (; *k < n; ++*k) {
        x->cls[*k] = ht_adapt_bin_class(exp((double)logprob[*k]));
        chain *= ht_adapt_chance(a, x->cls[*k]);
        if (!x->always && (!ht_adapt_may(a, *k) || !ht_adapt_keep(a, *k, chain))) break;
    }
    return 0;
}

/* By turns: the target waits for the guesses. Several generations may have sessions of one draft
 * engine: each has it for its round only. One that another thread runs guesses nothing now. */
static int by_turns(api__spec *x, uint32_t len, uint32_t most, uint32_t *k, ht_err *err)
{
    ht_engine *e = x->draft.d->e;
    const ht_adapt *a = &x->s->adapt;
    const uint32_t behind = api__draft_behind(&x->draft, x->s->hist, len);
    const bool seen = x->draft.seen_prompt;
    if (!x->always && !ht_adapt_model(a, seen ? behind : 0)) return 0;
    if (!x->always && !seen && !ht_adapt_invest(a, behind, x->n_max - len)) return 0;
    if (!api__draft_reads(&x->draft, x->s->hist, len)) return 0;
    const bool other = e != x->s->e;
    if (other && api__enter(e, NULL)) return 0;
    x->round.from = HT_ADAPT_MODEL;
    const int rc = draft_chain(x, len, most, k, err);
    if (other) api__leave(e);
    return rc;
}

static int from_model(api__spec *x, uint32_t len, uint32_t most, uint32_t *k, ht_err *err)
{
    ht_err why = {0};
    if (api__draft_cap(&x->draft) <= x->most) return 0;
    const int rc = x->ahead ? from_ahead(x, len, most, k, &why) : by_turns(x, len, most, k, &why);
    if (!rc) return 0;
    *k = 0;
    if (rc == HT_ECANCELLED) {
        if (err) *err = why;
        return rc;
    }
    /* A guess is never worth an answer: the generation goes on without this model. */
    x->s->rec.spec.failed = why;
    x->draft.d->rec.status = "error";
    give_up(x);
    return 0;
}

/* ---- lookup ---------------------------------------------------------------------------------- */

/* Compare the token at position len-1, which came without a guess, with the one that stands. */
static void compare_shadow(api__spec *x, uint32_t len)
{
    shadow *h = &x->shadow;
    if (h->at >= h->n) return;
    const bool right = h->id[h->at++] == x->s->hist[len - 1];
    ht_adapt_seen(&x->s->adapt, h->cls, 1, right);
    if (!right) h->n = 0;
}

static void from_lookup(api__spec *x, uint32_t len, uint32_t most, uint32_t *k)
{
    int32_t *out = x->s->hist + len;
    uint32_t match = 0;
    const uint32_t n = ht_lookup_draft(x->lookup, x->s->hist, len, most, out, &match);
    if (!n) return;
    const int cls = ht_adapt_match_class(match);
    const uint32_t use = x->always ? n : ht_adapt_lookup(&x->s->adapt, match, n);
    if (use && use >= x->least) {
        *k = use;
        for (uint32_t i = 0; i < use; i++) x->cls[i] = cls;
    } else if (x->shadow.at >= x->shadow.n) {
        x->shadow = (shadow){.n = n, .cls = cls};
        memcpy(x->shadow.id, out, n * sizeof *out);
    }
}

/* ---- a round --------------------------------------------------------------------------------- */

int api__spec_draft(api__spec *x, uint32_t most, uint32_t *k, ht_err *err)
{
    const uint32_t len = ht_seq_len(x->s->seq) + 1; /* with the pending token */
    x->t0 = ht_now_ns();
    x->round = (ht_adapt_round){.from = HT_ADAPT_LOOKUP};
    *k = 0;
    if (most > x->most) most = x->most;
    if (!x->told) x->told = len - 1;
    while (x->told < len) compare_shadow(x, ++x->told);
    if (!most || (!x->always && ht_adapt_wants_plain(&x->s->adapt))) {
        if (x->ahead) ht_ahead_pause(x->ahead, true); /* a plain step is one without company */
        return 0;
    }
    if (x->lookup) from_lookup(x, len, most, k);
    if (!*k && x->draft.d) HT_TRY(from_model(x, len, most, k, err));
    if (*k < x->least && !x->q) *k = 0;
    if (*k) x->shadow.n = 0;
    x->round.drafted = *k;
    if (x->round.from == HT_ADAPT_LOOKUP && *k) x->round.draft_ns = ht_now_ns() - x->t0;
    return 0;
}

uint32_t api__spec_plain(const api__spec *x)
{
    const ht_adapt *a = &x->s->adapt;
    uint32_t n = UINT32_MAX;
    if (x->always) return 1;
    if (ht_adapt_wants_plain(a)) return FEW_PLAIN;
    if (x->lookup) n = ht_adapt_off(a, HT_ADAPT_LOOKUP);
    if (x->draft.d && api__draft_cap(&x->draft) > x->most) {
        const uint32_t off = ht_adapt_off(a, HT_ADAPT_MODEL);
        if (off < n) n = off;
    }
    return n > FEW_PLAIN ? n : FEW_PLAIN;
}

/* What each guess taught about its class: those that were right, and the first that was not. */
static void learn(api__spec *x, uint32_t k, uint32_t right)
{
    ht_adapt *a = &x->s->adapt;
    for (uint32_t i = 0; i < k && i <= right; i++) {
        ht_adapt_seen(a, x->cls[i], 1, i < right);
        if (x->round.from == HT_ADAPT_MODEL) ht_adapt_seen(a, HT_ADAPT_ANY, 1, i < right);
    }
}

void api__spec_done(api__spec *x, uint32_t k, uint32_t tokens, uint32_t right, uint64_t other_ns)
{
    const uint64_t all = ht_now_ns() - x->t0, ns = all > other_ns ? all - other_ns : 0;
    api__spec_record *r = &x->s->rec.spec;
    if (!k && x->round.from == HT_ADAPT_LOOKUP) {
        ht_adapt_plain_done(&x->s->adapt, ns, tokens);
        return;
    }
    const uint64_t drafting = x->round.draft_ns + x->round.sync_ns;
    x->round.tokens = tokens;
    x->round.verify_ns = ns > drafting ? ns - drafting : 0;
    learn(x, k, right);
    r->saved_ns += ht_adapt_round_done(&x->s->adapt, &x->round);
    r->draft_ns += drafting;
    r->rounds += k > 0;
    r->drafted[x->round.from] += k;
    r->accepted[x->round.from] += right;
}
