/* drafter.c - speculative decoding with an assumed drafter: how much faster would decoding be if a
 * drafter had this acceptance and this latency? Nothing is drafted.
 *
 * A round drafts g tokens; the target checks them in one step and emits the accepted ones and one
 * of its own. Serial: T = g Td + Tv. Two devices (techniques.md 4): the drafter guesses that token
 * too and goes on while the target checks; when everything was right, g accepted and that guess,
 * chance a^(g+1), the next draft is ready or nearly so, T = Tv + max(0, g Td - Tv); otherwise it
 * starts afresh, T = Tv + g Td. */
#include "evid/sim/priv.h"

static const ht_sim_input inputs[] = {
    {"acceptPpm", 700000, 0, 1000000, "assumed chance that a drafted token is accepted"},
    {"acceptSpreadPpm", 100000, 0, 500000, "a draw's chance lies this far around it, uniform"},
    {"draftNsPerToken", 3500000, 0, 1000000000, "assumed time of one drafted token"},
    {"draftTokens", 3, 1, 64, "tokens drafted a round"},
    {"draws", 1000, 1, 100000, "draws"},
    {"jitterPpm", 50000, 0, 900000, "every time varies by this much, uniform"},
    {"rounds", 128, 1, 100000, "rounds of one draw"},
    {"targetNsPerToken", 10000000, 1, 1000000000, "assumed time of one plain decode step"},
    {"twoDevices", 0, 0, 1,
     "1: the drafter has a device of its own and goes on while the target "
     "checks"},
    {"verifyExtraNsPerToken", 200000, 0, 1000000000, "what each drafted token adds to the check"},
    {NULL, 0, 0, 0, NULL},
};

typedef struct {
    double accept, spread, draft, target, extra;
    int64_t jitter;
    uint32_t g, rounds;
    bool two;
} params;

/* (1 - a^(g+1)) / (1 - a) = 1 + a + ... + a^g, which is also right for a = 1. */
static double expected_tokens(double a, uint32_t g, double *all)
{
    double sum = 1, power = 1;
    for (uint32_t i = 0; i < g; i++) sum += power *= a;
    *all = power * a;
    return sum;
}

static double round_time(const params *p, double draft, double verify, double all)
{
    if (!p->two) return draft + verify;
    double wait = draft > verify ? draft - verify : 0;
    return verify + (1 - all) * draft + all * wait;
}

static void draw(const sim__run *r, const params *p, uint32_t i, int64_t *accepted, int64_t *speed,
                 int64_t *tokens)
{
    sim__rng g = sim__draw(r, i);
    double a = p->accept + (2 * sim__uniform(&g) - 1) * p->spread, time = 0, plain = 0;
    uint64_t n_accepted = 0, n_tokens = 0;
    a = a < 0 ? 0 : a > 1 ? 1 : a;
    for (uint32_t k = 0; k < p->rounds; k++) {
        uint32_t ok = 0;
        while (ok < p->g && sim__uniform(&g) < a) ok++;
        bool ahead = ok == p->g && sim__uniform(&g) < a;
        double td = sim__jitter(&g, p->draft * p->g, p->jitter);
        double tv = sim__jitter(&g, p->target + p->extra * p->g, p->jitter);
        time += round_time(p, td, tv, ahead ? 1 : 0);
        n_accepted += ok;
        n_tokens += ok + 1;
        plain += sim__jitter(&g, p->target, p->jitter) * (ok + 1);
    }
    *accepted = (int64_t)(1e6 * (double)n_accepted / ((double)p->rounds * p->g));
    *tokens = (int64_t)(1e6 * (double)n_tokens / p->rounds);
    *speed = (int64_t)(1e6 * plain / time);
}

static int run(sim__run *r, ht_err *e)
{
    const params p = {(double)sim__in(r, "acceptPpm") / 1e6,
                      (double)sim__in(r, "acceptSpreadPpm") / 1e6,
                      (double)sim__in(r, "draftNsPerToken"),
                      (double)sim__in(r, "targetNsPerToken"),
                      (double)sim__in(r, "verifyExtraNsPerToken"),
                      sim__in(r, "jitterPpm"),
                      (uint32_t)sim__in(r, "draftTokens"),
                      (uint32_t)sim__in(r, "rounds"),
                      sim__in(r, "twoDevices") != 0};
    uint32_t draws = (uint32_t)sim__in(r, "draws");
    double all, tokens = expected_tokens(p.accept, p.g, &all);
    HT_TRY(sim__bound(30.0 * draws * p.rounds * (p.g + 4), e));
    int64_t *accepted = sim__series_new(r, "acceptedPpm", draws);
    int64_t *speed = sim__series_new(r, "speedupPpm", draws);
    int64_t *per_round = sim__series_new(r, "tokensPerRoundPpm", draws);
    if (!accepted || !speed || !per_round)
        return HT_FAIL(e, HT_ENOMEM, "sim: no memory for %u draws", draws);
    for (uint32_t i = 0; i < draws; i++) draw(r, &p, i, &accepted[i], &speed[i], &per_round[i]);
    double time = round_time(&p, p.draft * p.g, p.target + p.extra * p.g, all);
    sim__fact(r, "speedupPpm", (int64_t)(1e6 * tokens * p.target / time));
    sim__fact(r, "tokensPerRoundPpm", (int64_t)(1e6 * tokens));
    return 0;
}

const sim__kind sim__drafter = {
    "drafter",
    "Acceptance and latencies are assumed, and tokens are accepted independently of each other: no "
    "drafter was run, so this says what would follow, not what is.",
    inputs, run};
