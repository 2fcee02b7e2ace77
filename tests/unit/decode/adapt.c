/* adapt.c - how much is guessed, on a machine whose times are given: a source that loses costs next
 * to nothing, one that wins is used, and one that changes is found out. */
#include "decode/adapt.h"
#include "test.h"

/* A world: a plain step takes 1000 ns, each further row `row`, drafting one token `draft`; every
 * guess is right with chance p, independently. */
typedef struct {
    double row, draft, p;
} world;
typedef struct {
    double ns;
    uint32_t tokens, rounds, guesses, right;
} total;

static uint32_t draw_right(const world *w, uint32_t k, uint64_t *seed)
{
    uint32_t right = 0;
    while (right < k && (double)(t_rand(seed) >> 11) * 0x1p-53 < w->p) right++;
    return right;
}

static void plain(ht_adapt *a, total *t)
{
    ht_adapt_plain_done(a, 1000, 1);
    t->ns += 1000;
    t->tokens++;
}

/* One step with lookup; a match of length `match` is always there. Guesses that are not used are
 * compared all the same, as the session does. */
static void lookup_step(ht_adapt *a, const world *w, uint32_t match, uint64_t *seed, total *t)
{
    const int cls = ht_adapt_match_class(match);
    const uint32_t k = ht_adapt_wants_plain(a) ? 0 : ht_adapt_lookup(a, match, HT_ADAPT_MOST);
    T_TRUE(k <= HT_ADAPT_MOST);
    if (!k) {
        plain(a, t);
        ht_adapt_seen(a, cls, 1, draw_right(w, 1, seed));
        return;
    }
    const uint32_t right = draw_right(w, k, seed);
    const double ns = 1000 + 1000 * w->row * k;
    const ht_adapt_round r = {
        .from = HT_ADAPT_LOOKUP, .drafted = k, .tokens = right + 1, .verify_ns = (uint64_t)ns};
    ht_adapt_seen(a, cls, right < k ? right + 1 : k, right);
    const int64_t saved = ht_adapt_round_done(a, &r);
    T_NEAR(saved, 1000.0 * (right + 1) - ns, 2);
    t->ns += ns;
    t->tokens += right + 1;
    t->rounds++;
    t->guesses += k;
    t->right += right;
}

/* One step with a draft model that says its chance truthfully. */
static void model_step(ht_adapt *a, const world *w, uint64_t *seed, total *t)
{
    const int cls = ht_adapt_bin_class(w->p);
    uint32_t k = 0, made = 0;
    double chain = 1;
    if (ht_adapt_wants_plain(a) || !ht_adapt_model(a, 1)) {
        plain(a, t);
        return;
    }
    while (ht_adapt_more(a, k, chain)) {
        chain *= ht_adapt_chance(a, cls);
        made++;
        if (!ht_adapt_keep(a, k, chain)) break;
        k++;
    }
    const uint32_t right = draw_right(w, k, seed);
    const double draft = 1000 * w->draft * made, verify = 1000 + 1000 * w->row * k;
    const ht_adapt_round r = {.from = HT_ADAPT_MODEL,
                              .drafted = k,
                              .tokens = right + 1,
                              .made = made,
                              .verify_ns = (uint64_t)verify,
                              .draft_ns = (uint64_t)draft};
    for (uint32_t i = 0; i < k && i <= right; i++) {
        ht_adapt_seen(a, cls, 1, i < right);
        ht_adapt_seen(a, HT_ADAPT_ANY, 1, i < right);
    }
    (void)ht_adapt_round_done(a, &r);
    t->ns += draft + verify;
    t->tokens += right + 1;
    t->rounds += k > 0;
}

T_CASE(adapt, needs_a_unit_first)
{
    ht_adapt a;
    ht_adapt_init(&a);
    T_EQ_INT(ht_adapt_unit(&a), 0);
    T_TRUE(ht_adapt_wants_plain(&a));
    T_EQ_INT(ht_adapt_lookup(&a, 16, 15), 0);
    T_TRUE(!ht_adapt_model(&a, 1));
    const uint64_t ns[] = {900, 5000, 1000, 1100, 70000};
    for (int i = 0; i < 5; i++) ht_adapt_plain_done(&a, ns[i], 1);
    T_EQ_INT(ht_adapt_unit(&a), 1100); /* the median: two disturbed steps do not move it */
    T_TRUE(!ht_adapt_wants_plain(&a));
    T_TRUE(ht_adapt_lookup(&a, 16, 15) > 0);
    T_EQ_INT(ht_adapt_lookup(&a, 16, 0), 0);
    T_TRUE(ht_adapt_lookup(&a, 16, 2) <= 2);
    T_TRUE(ht_adapt_model(&a, 1));
}

/* A first view is bought when enough is left to win it back. */
T_CASE(adapt, first_view)
{
    ht_adapt a;
    ht_adapt_init(&a);
    T_TRUE(ht_adapt_invest(&a, 40, 96));
    T_TRUE(!ht_adapt_invest(&a, 256, 96));
    T_TRUE(ht_adapt_invest(&a, 256, 400));
    T_TRUE(!ht_adapt_invest(&a, 40, 4));
    for (int i = 0; i < 3; i++) ht_adapt_plain_done(&a, 1000, 1);
    const ht_adapt_round r = {.from = HT_ADAPT_MODEL,
                              .drafted = 1,
                              .tokens = 2,
                              .made = 1,
                              .verify_ns = 1300,
                              .draft_ns = 200,
                              .sync_ns = 20000,
                              .sync_tokens = 40,
                              .first = true};
    (void)ht_adapt_round_done(&a, &r); /* 0.5 of a step a token: dearer than was thought */
    T_TRUE(!ht_adapt_invest(&a, 80, 96));
}

T_CASE(adapt, classes)
{
    T_EQ_INT(ht_adapt_match_class(2), 0);
    T_EQ_INT(ht_adapt_match_class(7), 2);
    T_EQ_INT(ht_adapt_match_class(16), 4);
    T_EQ_INT(ht_adapt_bin_class(0), HT_ADAPT_MATCHES);
    T_EQ_INT(ht_adapt_bin_class(NAN), HT_ADAPT_MATCHES);
    T_EQ_INT(ht_adapt_bin_class(1), HT_ADAPT_MATCHES + HT_ADAPT_BINS - 1);
    ht_adapt a;
    ht_adapt_init(&a);
    for (int c = 1; c < HT_ADAPT_MATCHES; c++)
        T_TRUE(ht_adapt_chance(&a, c) > ht_adapt_chance(&a, c - 1));
    for (int i = 0; i < 100; i++) ht_adapt_seen(&a, 4, 1, 0);
    T_TRUE(ht_adapt_chance(&a, 4) < 0.2);
    for (int i = 0; i < 100; i++) ht_adapt_seen(&a, 4, 1, 1);
    T_TRUE(ht_adapt_chance(&a, 4) > 0.9);
}

/* The promise: however dear the rows and however wrong the guesses, little more than what is
 * allowed at the start and 1 % of the time of plain decoding is lost. */
T_CASE(adapt, losses_are_bounded)
{
    const double rows[] = {0.05, 0.2, 0.5, 1, 2}, ps[] = {0, 0.05, 0.2};
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < 3; j++) {
            for (uint32_t match = 2; match <= 16; match *= 2) {
                const world w = {.row = rows[i], .draft = 0.3, .p = ps[j]};
                for (int model = 0; model < 2; model++) {
                    uint64_t seed = 5 + match;
                    ht_adapt a;
                    total t = {0};
                    ht_adapt_init(&a);
                    while (t.tokens < 2000) {
                        if (model) model_step(&a, &w, &seed, &t);
                        else lookup_step(&a, &w, match, &seed, &t);
                        /* Steps at the start, one in a hundred, and the round that crosses. */
                        const double most = 1000.0 * ((model ? 5 : 1) + 0.01 * t.tokens +
                                                      HT_ADAPT_MOST * (w.row + w.draft) / 3);
                        T_CHECK(t.ns - 1000.0 * t.tokens <= most,
                                "row %g p %g match %u model %d: %g ns lost after %u tokens", w.row,
                                w.p, match, model, t.ns - 1000.0 * t.tokens, t.tokens);
                    }
                    T_CHECK(t.ns <= 1.02 * 1000 * t.tokens,
                            "row %g p %g match %u model %d: %g times plain", w.row, w.p, match,
                            model, t.ns / (1000.0 * t.tokens));
                }
            }
        }
    }
}

T_CASE(adapt, copying_is_used)
{
    const world w = {.row = 0.1, .p = 0.97};
    uint64_t seed = 3;
    ht_adapt a;
    total t = {0};
    ht_adapt_init(&a);
    while (t.tokens < 400) lookup_step(&a, &w, 16, &seed, &t);
    T_CHECK(t.ns < 1000.0 * t.tokens / 2.5, "only %g times as fast", 1000.0 * t.tokens / t.ns);
    T_TRUE(t.guesses > 6 * t.rounds); /* long drafts, once rows are known to be cheap */
    T_TRUE(t.right * 10 > t.guesses * 7);
}

T_CASE(adapt, a_good_model_is_used)
{
    const world w = {.row = 0.1, .draft = 0.12, .p = 0.8};
    uint64_t seed = 3;
    ht_adapt a;
    total t = {0};
    ht_adapt_init(&a);
    while (t.tokens < 400) model_step(&a, &w, &seed, &t);
    T_CHECK(t.ns < 1000.0 * t.tokens / 1.4, "only %g times as fast", 1000.0 * t.tokens / t.ns);
}

/* A good model on a machine that now and then is taken away for 20 steps, or whose very first round
 * is slow: it stays in use, since that says nothing about guessing. */
T_CASE(adapt, disturbed_rounds_are_forgiven)
{
    const world w = {.row = 0.05, .draft = 0.1, .p = 0.8};
    for (uint32_t first = 1; first <= 3; first++) {
        uint64_t seed = first;
        ht_adapt a;
        total t = {0};
        uint32_t rounds = 0, plain_steps = 0;
        ht_adapt_init(&a);
        while (t.tokens < 300) {
            const uint32_t before = t.rounds;
            const bool disturbed = rounds + 1 == first || rounds % 20 == 19;
            const world now = disturbed ? (world){.row = 20, .draft = 5, .p = w.p} : w;
            model_step(&a, &now, &seed, &t);
            rounds += t.rounds - before;
            plain_steps += t.rounds == before;
        }
        T_CHECK(plain_steps < 40, "first %u: %u of 300 tokens were plain", first, plain_steps);
    }
}

/* A machine that becomes three times slower: rounds look bad beside old plain steps, until plain
 * steps are measured again. */
T_CASE(adapt, a_slower_machine_is_measured_again)
{
    ht_adapt a;
    ht_adapt_init(&a);
    for (int i = 0; i < 3; i++) ht_adapt_plain_done(&a, 1000, 1);
    const ht_adapt_round fast = {.from = HT_ADAPT_MODEL,
                                 .drafted = 3,
                                 .tokens = 3,
                                 .made = 3,
                                 .verify_ns = 1150,
                                 .draft_ns = 300};
    ht_adapt_round slow = fast;
    slow.verify_ns *= 3;
    slow.draft_ns *= 3;
    for (int i = 0; i < 8; i++) (void)ht_adapt_round_done(&a, &fast);
    T_TRUE(!ht_adapt_wants_plain(&a));
    (void)ht_adapt_round_done(&a, &slow);
    T_TRUE(!ht_adapt_wants_plain(&a)); /* one may be chance */
    (void)ht_adapt_round_done(&a, &slow);
    T_TRUE(ht_adapt_wants_plain(&a));
    for (int i = 0; i < 3; i++) ht_adapt_plain_done(&a, 3000, 1);
    T_EQ_INT(ht_adapt_unit(&a), 3000);
    T_TRUE(ht_adapt_model(&a, 1));
    for (int i = 0; i < 40; i++) {
        (void)ht_adapt_round_done(&a, &slow);
        T_TRUE(ht_adapt_model(&a, 1));
    }
}

/* An engine that makes several tokens a run without guesses: the unit is a token's time there, a
 * source that is off stays so for its pause, and a round that found nothing to verify is charged
 * what its tokens took. */
T_CASE(adapt, several_tokens_a_run)
{
    ht_adapt a;
    ht_adapt_init(&a);
    for (int i = 0; i < 3; i++) ht_adapt_plain_done(&a, 2400, 4);
    T_EQ_INT(ht_adapt_unit(&a), 600);
    T_EQ_INT(a.tokens, 12);
    T_EQ_INT(ht_adapt_off(&a, HT_ADAPT_MODEL), 0);
    const ht_adapt_round nothing = {
        .from = HT_ADAPT_MODEL, .tokens = 4, .made = 1, .verify_ns = 2400, .draft_ns = 60};
    T_EQ_INT(ht_adapt_round_done(&a, &nothing), -60);
    T_NEAR(a.ledger, -0.1, 1e-9);
    T_EQ_INT(a.tokens, 16);
    const ht_adapt_round bad = {.from = HT_ADAPT_MODEL,
                                .drafted = 1,
                                .tokens = 1,
                                .made = 1,
                                .verify_ns = 1200,
                                .draft_ns = 120};
    for (int i = 0; i < 4 && !ht_adapt_off(&a, HT_ADAPT_MODEL); i++)
        (void)ht_adapt_round_done(&a, &bad);
    const uint32_t off = ht_adapt_off(&a, HT_ADAPT_MODEL);
    T_EQ_INT(off, 16); /* the first pause */
    T_TRUE(!ht_adapt_model(&a, 1));
    T_EQ_INT(ht_adapt_off(&a, HT_ADAPT_LOOKUP), 16); /* nothing may be lost any more */
    ht_adapt_plain_done(&a, 9600, 16);
    T_EQ_INT(ht_adapt_off(&a, HT_ADAPT_MODEL), 0);
}

/* A text that turns from prose to copying: lookup's unused guesses have shown it, so it is used
 * within a few tokens. A model that was bad is tried again and found better. */
T_CASE(adapt, comes_back)
{
    const world prose = {.row = 0.3, .draft = 0.2, .p = 0.02};
    const world copy = {.row = 0.05, .draft = 0.05, .p = 0.98};
    for (int model = 0; model < 2; model++) {
        uint64_t seed = 9;
        ht_adapt a;
        total t = {0};
        ht_adapt_init(&a);
        while (t.tokens < 300) {
            if (model) model_step(&a, &prose, &seed, &t);
            else lookup_step(&a, &prose, 8, &seed, &t);
        }
        total before = t;
        while (t.tokens < 1500) {
            if (model) model_step(&a, &copy, &seed, &t);
            else lookup_step(&a, &copy, 8, &seed, &t);
        }
        T_CHECK(t.ns - before.ns < 1000.0 * (t.tokens - before.tokens) / 1.5,
                "model %d: only %g times as fast after the change", model,
                1000.0 * (t.tokens - before.tokens) / (t.ns - before.ns));
    }
}
