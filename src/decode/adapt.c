/* adapt.c - see adapt.h. Constants here are starting points and limits of trust; none of them is a
 * rate of acceptance below which speculation stops. */
#include "decode/adapt.h"
#include <math.h>
#include <string.h>

static const double row_guess = 0.15, /* time of an extra row before any was measured */
    draft_guess = 0.15,               /* of a drafted token */
    sync_guess = 0.05,                /* of a token that the draft model catches up on */
    far = 1.5,                        /* times the time expected: a round that was disturbed */
    row_least = 0.01,                 /* no extra row counts as cheaper than this */
    margin = 1.1,                     /* times are taken this much longer than measured */
    prior_weight = 4,                 /* tokens that a starting chance counts for */
    guess_weight = 2,                 /* measurements that a starting cost counts for */
    line_weight = 4,                  /* that the cost of k rows by other numbers of rows does */
    memory = 0.95,     /* older tokens count this much less for each newer one: about 20 count */
    loss_share = 0.01, /* losses allowed, per token made */
    window_loss = 1,   /* plain steps a young window may lose before its source is paused */
    invest = 0.1;      /* a first view may cost this part of the tokens to come */
/* Losses allowed at the start, in plain steps. A lookup is judged by guesses that cost nothing as
 * well; a model by its rounds alone, the first of which run on cold code and starting chances. */
static const double loss_start[HT_ADAPT_SOURCES] = {[HT_ADAPT_LOOKUP] = 1, [HT_ADAPT_MODEL] = 5};
enum {
    PAUSE_FIRST = 16,
    PAUSE_LAST = 1024,
    PLAIN_FIRST = 3,
    PLAIN_EVERY = 64,
    REACH_FIRST = 4,
    SLOW_ROUNDS = 2,
    COSTS_FEW = 3
};

void ht_adapt_init(ht_adapt *a)
{
    memset(a, 0, sizeof *a);
    for (int i = 0; i < HT_ADAPT_SOURCES; i++) a->source[i].pause = PAUSE_FIRST;
}

/* ---- the unit -------------------------------------------------------------------------------- */

uint64_t ht_adapt_unit(const ht_adapt *a)
{
    uint64_t v[HT_ADAPT_PLAIN];
    if (a->n_plain < PLAIN_FIRST) return 0;
    for (uint32_t i = 0; i < a->n_plain; i++) {
        uint32_t j = i;
        for (; j && v[j - 1] > a->plain[i]; j--) v[j] = v[j - 1];
        v[j] = a->plain[i];
    }
    return v[(a->n_plain - 1) / 2]; /* of an even number the smaller one: saves less */
}

bool ht_adapt_wants_plain(const ht_adapt *a)
{
    return a->n_plain < PLAIN_FIRST || a->since_plain >= PLAIN_EVERY;
}

void ht_adapt_plain_done(ht_adapt *a, uint64_t ns, uint32_t tokens)
{
    a->plain[a->plain_at] = ns > tokens ? ns / tokens : 1;
    a->plain_at = (a->plain_at + 1) % HT_ADAPT_PLAIN;
    if (a->n_plain < HT_ADAPT_PLAIN) a->n_plain++;
    a->since_plain = a->slow = 0;
    a->tokens += tokens;
}

/* ---- chances --------------------------------------------------------------------------------- */

int ht_adapt_match_class(uint32_t match)
{
    return match >= 16 ? 4 : match >= 8 ? 3 : match >= 4 ? 2 : match >= 3 ? 1 : 0;
}

int ht_adapt_bin_class(double p)
{
    int bin = p > 0 ? (int)(p * HT_ADAPT_BINS) : 0;
    return HT_ADAPT_MATCHES + (bin < HT_ADAPT_BINS ? bin : HT_ADAPT_BINS - 1);
}

static double prior(int cls)
{
    static const double match[HT_ADAPT_MATCHES] = {0.3, 0.45, 0.6, 0.75, 0.9};
    if (cls < HT_ADAPT_MATCHES) return match[cls];
    if (cls == HT_ADAPT_ANY) return 0.7;
    return (cls - HT_ADAPT_MATCHES + 0.5) / HT_ADAPT_BINS; /* as sure as it says */
}

double ht_adapt_chance(const ht_adapt *a, int cls)
{
    return (a->right[cls] + prior_weight * prior(cls)) / (a->tested[cls] + prior_weight);
}

void ht_adapt_seen(ht_adapt *a, int cls, uint32_t tested, uint32_t right)
{
    const double keep = pow(memory, tested);
    a->tested[cls] = a->tested[cls] * keep + tested;
    a->right[cls] = a->right[cls] * keep + right;
}

/* ---- costs ----------------------------------------------------------------------------------- */

/* Median of the last measurements, of an even number the smaller one: what disturbs only adds. */
static double median_of(const ht_adapt_cost *c)
{
    double v[HT_ADAPT_COSTS] = {0};
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t j = i;
        for (; j && v[j - 1] > c->v[i]; j--) v[j] = v[j - 1];
        v[j] = c->v[i];
    }
    return c->n ? v[(c->n - 1) / 2] : 0;
}

/* The median, and a figure from elsewhere that counts for `weight` measurements; before the third
 * no more is believed than twice that figure, so that one disturbed round decides nothing. */
static double cost(const ht_adapt_cost *c, double other, double weight)
{
    const double own = c->n < COSTS_FEW ? fmin(median_of(c), 2 * other) : median_of(c);
    return (c->n * own + weight * other) / (c->n + weight);
}

static void measured(ht_adapt_cost *c, double x, double least)
{
    c->v[c->at] = x > least ? x : least;
    c->at = (c->at + 1) % HT_ADAPT_COSTS;
    if (c->n < HT_ADAPT_COSTS) c->n++;
}

/* Time of k extra rows: what that many took, and k times what a row of any round took. Few rounds
 * have the same k, so alone their times would say more of the machine's moods than of k. */
static double extra(const ht_adapt *a, uint32_t k)
{
    const double line = k * cost(&a->row, row_guess, guess_weight);
    return k ? cost(&a->extra[k], line, line_weight) : 0;
}

static double draft_cost(const ht_adapt *a)
{
    return cost(&a->draft, draft_guess, guess_weight);
}

static double sync_cost(const ht_adapt *a)
{
    return a->sync.n ? median_of(&a->sync) : sync_guess; /* the first view is many tokens */
}

/* Longest draft that may be tried: twice what was measured, so that a round never costs much more
 * than is known. */
static uint32_t reach(const ht_adapt *a)
{
    uint32_t k = HT_ADAPT_MOST;
    while (k && !a->extra[k].n) k--;
    k = 2 * k > REACH_FIRST ? 2 * k : REACH_FIRST;
    return k < HT_ADAPT_MOST ? k : HT_ADAPT_MOST;
}

/* ---- decisions ------------------------------------------------------------------------------- */

/* Losses that a source may still cause, in plain steps. */
static double allowance(const ht_adapt *a, enum ht_adapt_from from)
{
    return a->ledger + loss_start[from] + loss_share * (double)a->tokens;
}

static bool is_on(const ht_adapt *a, enum ht_adapt_from from)
{
    return ht_adapt_unit(a) && a->tokens >= a->source[from].off_until && allowance(a, from) > 0;
}

uint32_t ht_adapt_off(const ht_adapt *a, enum ht_adapt_from from)
{
    const uint64_t until = a->source[from].off_until;
    if (a->tokens < until) return (uint32_t)(until - a->tokens);
    /* Nothing may be lost any more: what is allowed grows by loss_share a token. */
    return allowance(a, from) <= 0 ? PAUSE_FIRST : 0;
}

uint32_t ht_adapt_lookup(const ht_adapt *a, uint32_t match, uint32_t most)
{
    const double p = ht_adapt_chance(a, ht_adapt_match_class(match));
    double chain = 1, right = 0, best = 0;
    uint32_t length = 0;
    if (!is_on(a, HT_ADAPT_LOOKUP)) return 0;
    if (most > reach(a)) most = reach(a);
    for (uint32_t k = 1; k <= most; k++) {
        chain *= p;
        right += chain;
        const double worth = right - margin * extra(a, k);
        if (worth <= best) continue;
        best = worth;
        length = k;
    }
    return length;
}

bool ht_adapt_model(const ht_adapt *a, uint32_t behind)
{
    return is_on(a, HT_ADAPT_MODEL) && allowance(a, HT_ADAPT_MODEL) > behind * sync_cost(a) &&
           ht_adapt_more(a, 0, 1);
}

bool ht_adapt_more(const ht_adapt *a, uint32_t have, double chain)
{
    if (!ht_adapt_may(a, have)) return false;
    const double cost = extra(a, have + 1) - extra(a, have) + draft_cost(a);
    return chain * ht_adapt_chance(a, HT_ADAPT_ANY) > margin * cost;
}

bool ht_adapt_invest(const ht_adapt *a, uint32_t view, uint32_t left)
{
    return view * sync_cost(a) <= invest * left;
}

bool ht_adapt_may(const ht_adapt *a, uint32_t have)
{
    return have < reach(a);
}

bool ht_adapt_keep(const ht_adapt *a, uint32_t have, double chain)
{
    return chain > margin * (extra(a, have + 1) - extra(a, have));
}

/* ---- what a round taught --------------------------------------------------------------------- */

static void pause(ht_adapt *a, enum ht_adapt_from from)
{
    ht_adapt_source *s = &a->source[from];
    s->n = s->at = 0;
    s->off_until = a->tokens + s->pause;
    if (s->pause < PAUSE_LAST) s->pause *= 2;
    /* A model that is off learns nothing meanwhile: it starts again from the first chances. So do
     * the times: one that was wrong would never be measured again. */
    if (from != HT_ADAPT_MODEL) return;
    for (int c = HT_ADAPT_MATCHES; c < HT_ADAPT_CLASSES; c++) a->tested[c] = a->right[c] = 0;
    memset(a->extra, 0, sizeof a->extra);
    a->row = a->draft = (ht_adapt_cost){0};
    a->n_plain = a->plain_at = 0;
    a->tried_again = true;
}

static void judge(ht_adapt *a, enum ht_adapt_from from, double saved)
{
    ht_adapt_source *s = &a->source[from];
    s->saved[s->at] = saved;
    s->at = (s->at + 1) % HT_ADAPT_WINDOW;
    if (s->n < HT_ADAPT_WINDOW) s->n++;
    double sum = 0;
    for (uint32_t i = 0; i < s->n; i++) sum += s->saved[i];
    if (s->n == HT_ADAPT_WINDOW && sum > 0) s->pause = PAUSE_FIRST;
    if (sum < 0 && (s->n == HT_ADAPT_WINDOW || sum <= -window_loss)) pause(a, from);
    else if (from == HT_ADAPT_MODEL && !ht_adapt_more(a, 0, 1)) pause(a, from);
}

/* Plain steps that a round is expected to take, by the medians. */
static double expected(const ht_adapt *a, const ht_adapt_round *r)
{
    const double model = r->from == HT_ADAPT_MODEL ? r->made * draft_cost(a) : 0;
    const double sync = r->first ? 0 : r->sync_tokens * sync_cost(a);
    return (r->drafted ? 1 : r->tokens) + extra(a, r->drafted) + model + sync;
}

static void learn_costs(ht_adapt *a, const ht_adapt_round *r, double step)
{
    if (r->drafted && r->drafted <= HT_ADAPT_MOST) {
        const double rows = (double)r->verify_ns / step - 1;
        measured(&a->extra[r->drafted], rows, row_least * r->drafted);
        measured(&a->row, rows / r->drafted, row_least);
    }
    if (r->made) measured(&a->draft, (double)r->draft_ns / step / r->made, 0);
    if (r->sync_tokens) measured(&a->sync, (double)r->sync_ns / step / r->sync_tokens, 0);
}

int64_t ht_adapt_round_done(ht_adapt *a, const ht_adapt_round *r)
{
    const uint64_t unit = ht_adapt_unit(a);
    const uint64_t all = r->verify_ns + r->draft_ns + r->sync_ns;
    a->tokens += r->tokens;
    a->since_plain++;
    if (!unit) return 0;
    const double step = (double)unit;
    /* The first view was judged before it was paid for. */
    const double took = (double)(r->first ? all - r->sync_ns : all) / step;
    const bool known = r->drafted <= HT_ADAPT_MOST && a->extra[r->drafted].n;
    a->slow = known && took > far * expected(a, r) ? a->slow + 1 : 0;
    /* A lookup shows what it would have won when it is left out, so it pays in full; a model that
     * is tried again does while its times are new. */
    const bool full = r->from != HT_ADAPT_MODEL || (a->tried_again && a->row.n < COSTS_FEW);
    learn_costs(a, r, step);
    if (a->slow >= SLOW_ROUNDS) a->n_plain = a->plain_at = 0;
    const double judged = r->tokens - (full ? took : fmin(took, expected(a, r)));
    a->ledger += judged;
    judge(a, r->from, judged);
    return (int64_t)(r->tokens * unit) - (int64_t)all;
}
