/* speculate.c - where guesses come from: the sequence's own past (decode/lookup.h) and a draft
 * model, a second engine with a session of its own. decode/adapt.h says how many and when.
 *
 * A draft model's session holds a view of the sequence: positions [base, base + its length). It
 * starts with the last VIEW tokens and starts again when its context is full, so that a small
 * context serves any length. What it holds beyond what turned out right is cut off before the next
 * draft. While it is switched off it does nothing, and comes back with a shorter view.
 *
 * Lookup costs next to nothing, so while it does not pay its guesses are still compared with what
 * plain steps bring (a shadow): it is known when it would pay, without a row spent on it. */
#include "api/speculate.h"
#include "core/clock.h"
#include "decode/adapt.h"
#include "decode/lookup.h"
#include <math.h>
#include <string.h>

enum {
    VIEW = 256,      /* tokens a draft model starts with */
    VIEW_AGAIN = 64, /* and with which it comes back after a pause */
};

typedef struct {
    int32_t id[HT_ADAPT_MOST];
    uint32_t n, at, right;
    int cls;
} shadow;

struct api__spec {
    ht_session *s, *d; /* d: the draft model's session, or NULL */
    bool always;
    uint32_t most, least;
    ht_lookup *lookup; /* NULL: off */
    ht_sampler *sampler;
    float *row; /* [vocab] the draft's logits where its vocabulary is padded differently */
    const api__plan *verify;
    uint32_t base, agreed; /* of d: first position; tokens known to be those of the sequence */
    bool seen_prompt;      /* d has been brought up to date once */
    shadow shadow;
    int cls[HT_ADAPT_MOST]; /* class of each guess of this round */
    ht_adapt_round round;
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
        return HT_FAIL(err, HT_EARG, "drafts of at least %u tokens, but at most %u", w->draft_min,
                       w->draft_max ? w->draft_max : (unsigned)HT_ADAPT_MOST);
    if (s->e->ubatch < 2)
        return HT_FAIL(err, HT_EARG,
                       "with a ubatch of 1 no draft can be verified; open with 2 or more");
    if (!w->draft) return 0;
    if (w->draft == s)
        return HT_FAIL(err, HT_EARG, "a session cannot draft for itself; give it one of its own");
    return ht_draft_check(s->e, w->draft->e, err);
}

/* ---- begin and end --------------------------------------------------------------------------- */

static int take_draft(api__spec *x, ht_session *d, ht_err *err)
{
    x->d = d;
    api__record_begin(d, "draft");
    d->rec.status = "ok";
    atomic_store(&d->cancel, 0);
    atomic_store(&x->s->helper, d);
    if (d->e->model->spec.vocab == x->s->e->model->spec.vocab) return 0;
    x->row = ht_mem_array(x->s->e->model->spec.vocab, sizeof *x->row);
    return x->row ? 0 : HT_FAIL(err, HT_ENOMEM, "no memory for a draft's logits");
}

static int begin(api__spec *x, const ht_speculation *w, uint32_t n_max, ht_err *err)
{
    ht_session *s = x->s;
    x->always = w->always != 0;
    x->most = w->draft_max ? w->draft_max : HT_ADAPT_MOST;
    if (x->most > s->e->ubatch - 1)
        x->most = s->e->ubatch - 1; /* one row more is the token itself */
    x->least = w->draft_min;
    if (w->lookup) HT_TRY(ht_lookup_new(&x->lookup, n_max, err));
    if (w->draft) HT_TRY(take_draft(x, w->draft, err));
    return api__plan_get(s->e, API_DECODE, x->most + 1, x->most + 1, &x->verify, err);
}

int api__spec_begin(api__spec **out, ht_session *s, const ht_speculation *w, ht_sampler *sampler,
                    uint32_t n_max, ht_err *err)
{
    *out = NULL;
    if (!w || (!w->lookup && !w->draft)) return 0;
    HT_TRY(check(s, w, err));
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
    s->rec.spec.draft_max = x->most;
    s->rec.spec.draft_min = x->least;
    *out = x;
    return 0;
}

void api__spec_end(api__spec *x)
{
    if (!x) return;
    atomic_store(&x->s->helper, NULL);
    ht_lookup_free(x->lookup);
    ht_mem_free(x->row);
    ht_mem_free(x);
}

const api__plan *api__spec_plan(const api__spec *x)
{
    return x->verify;
}

/* ---- the draft model ------------------------------------------------------------------------- */

/* Positions of the draft model that a view may fill. */
static uint32_t view_cap(const ht_session *d)
{
    const uint32_t ctx = d->e->ctx, orig = d->e->model->spec.rope_orig_ctx;
    return orig && orig < ctx ? orig : ctx;
}

/* Start the view again with the last `view` of len tokens. */
static int start_view(api__spec *x, uint32_t len, uint32_t view, ht_err *err)
{
    const uint32_t cap = view_cap(x->d) / 2; /* room to go on before the next start */
    if (view > cap) view = cap ? cap : 1;
    x->base = len > view ? len - view : 0;
    x->agreed = 0;
    x->d->rope_long = false;
    return ht_seq_truncate(x->d->seq, 0, err);
}

/* How many of the sequence's first len tokens the draft model would have to evaluate now. */
static uint32_t behind(api__spec *x, uint32_t len)
{
    const ht_session *d = x->d;
    const uint32_t held = ht_seq_len(d->seq);
    if (!x->seen_prompt) return 0;
    while (x->agreed < held && x->base + x->agreed + 1 < len &&
           d->hist[x->agreed] == x->s->hist[x->base + x->agreed])
        x->agreed++;
    return len - x->base - x->agreed;
}

/* Evaluate what is missing of the sequence's first len tokens; *logits of the last one. */
static int catch_up(api__spec *x, uint32_t len, const float **logits, ht_err *err)
{
    ht_session *d = x->d;
    uint32_t missing = behind(x, len);
    x->round.first = !x->seen_prompt;
    if (!x->seen_prompt) HT_TRY(start_view(x, len, VIEW, err));
    else if (missing > VIEW_AGAIN) HT_TRY(start_view(x, len, VIEW_AGAIN, err));
    else if (len - x->base + x->most > view_cap(d)) HT_TRY(start_view(x, len, VIEW, err));
    else if (x->agreed < ht_seq_len(d->seq) && ht_seq_truncate(d->seq, x->agreed, NULL) != 0)
        HT_TRY(start_view(x, len, VIEW, err));
    x->seen_prompt = true;
    for (uint32_t at = x->base + x->agreed, rows; at < len; at += rows) {
        const api__plan *plan = NULL;
        rows = len - at < d->e->ubatch ? len - at : d->e->ubatch;
        const int phase = rows == 1 ? API_DECODE : API_PREFILL;
        HT_TRY(api__plan_get(d->e, phase, rows == 1 ? 1 : d->e->ubatch, 1, &plan, err));
        d->want[0] = rows - 1;
        x->round.sync_tokens += rows;
        HT_TRY(api__run(d, phase, plan, x->s->hist + at, rows, d->want, at + rows == len, logits,
                        err));
    }
    x->agreed = len - x->base;
    return 0;
}

/* The draft's logits in the target's width: ids the draft does not have cannot be guessed. */
static const float *fit(api__spec *x, const float *logits)
{
    const uint32_t n = x->s->e->model->spec.vocab, have = x->d->e->model->spec.vocab;
    if (!x->row) return logits;
    memcpy(x->row, logits, (n < have ? n : have) * sizeof *logits);
    for (uint32_t i = have; i < n; i++) x->row[i] = -INFINITY;
    return x->row;
}

/* Draft up to most tokens behind the first len. The draft is drawn like the target draws: same
 * history, same random number. An equal model guesses everything right, and a similar one more than
 * its most likely tokens would. */
static int draft_chain(api__spec *x, uint32_t len, uint32_t most, uint32_t *k, ht_err *err)
{
    ht_session *s = x->s, *d = x->d;
    const float *logits = NULL;
    const uint64_t t0 = ht_now_ns();
    double chain = 1;
    const int rc = catch_up(x, len, &logits, err);
    const uint64_t t1 = ht_now_ns();
    x->round.sync_ns = t1 - t0;
    if (rc) return rc;
    while (*k < most && (x->always || ht_adapt_more(&s->adapt, *k, chain))) {
        int32_t id = 0;
        float logprob = 0;
        if (*k) {
            const api__plan *plan = NULL;
            d->want[0] = 0;
            HT_TRY(api__plan_get(d->e, API_DECODE, 1, 1, &plan, err));
            HT_TRY(
                api__run(d, API_DECODE, plan, s->hist + len + *k - 1, 1, d->want, 1, &logits, err));
        }
        HT_TRY(ht_sampler_draw(x->sampler, fit(x, logits), s->hist, len + *k, len + *k, &id,
                               &logprob, err));
        if ((uint32_t)id >= d->e->model->spec.vocab) break;
        x->cls[*k] = ht_adapt_bin_class(exp((double)logprob));
        chain *= ht_adapt_chance(&s->adapt, x->cls[*k]);
        if (!x->always && !ht_adapt_keep(&s->adapt, *k, chain)) break;
        s->hist[len + (*k)++] = id;
    }
    x->round.draft_ns = ht_now_ns() - t1;
    return 0;
}

/* A token that the draft model cannot read: ids of the target's padding. */
static bool readable(const api__spec *x, uint32_t len)
{
    const uint32_t vocab = x->d->e->model->spec.vocab;
    uint32_t from = x->seen_prompt ? x->base + x->agreed : len > VIEW ? len - VIEW : 0;
    for (; from < len; from++)
        if ((uint32_t)x->s->hist[from] >= vocab) return false;
    return true;
}

static int from_model(api__spec *x, uint32_t len, uint32_t most, uint32_t *k, ht_err *err)
{
    ht_err why = {0};
    uint32_t late = behind(x, len);
    if (late > VIEW_AGAIN) late = VIEW_AGAIN;
    if (!x->always && !ht_adapt_model(&x->s->adapt, late)) return 0;
    if (view_cap(x->d) <= x->most || !readable(x, len)) return 0;
    /* Several generations may have sessions of one draft engine: each has it for its round only.
     * One that another thread runs guesses nothing now. */
    const bool other = x->d->e != x->s->e;
    if (other && api__enter(x->d->e, NULL)) return 0;
    x->round.from = HT_ADAPT_MODEL;
    const int rc = draft_chain(x, len, most, k, &why);
    if (other) api__leave(x->d->e);
    if (!rc) return 0;
    *k = 0;
    if (rc == HT_ECANCELLED) {
        if (err) *err = why;
        return rc;
    }
    /* A guess is never worth an answer: the generation goes on without this model. */
    x->s->rec.spec.failed = why;
    x->d->rec.status = "error";
    atomic_store(&x->s->helper, NULL);
    x->d = NULL;
    return 0;
}

/* ---- lookup ---------------------------------------------------------------------------------- */

/* Compare the token at position len-1, which a plain step brought, with the guess that stands. */
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
    compare_shadow(x, len);
    if (!most || (!x->always && ht_adapt_wants_plain(&x->s->adapt))) return 0;
    if (x->lookup) from_lookup(x, len, most, k);
    if (!*k && x->d) HT_TRY(from_model(x, len, most, k, err));
    if (*k < x->least) *k = 0;
    if (*k) x->shadow.n = 0;
    x->round.drafted = *k;
    if (x->round.from == HT_ADAPT_LOOKUP && *k) x->round.draft_ns = ht_now_ns() - x->t0;
    return 0;
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
        ht_adapt_plain_done(&x->s->adapt, ns);
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
