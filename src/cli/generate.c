/* generate.c - sampling from options, and the short receipt after a generation. */
#include "cli/cli.h"
#include "core/arena.h"
#include "core/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A seed of 53 bits from the system; the clock where the system has none. It is reported, so the
 * run can be had again with --seed. */
static uint64_t random_seed(void)
{
    uint64_t v = ht_now_ns();
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        uint64_t r;
        if (read(fd, &r, sizeof r) == (ssize_t)sizeof r) v = r;
        close(fd);
    }
    return v & (((uint64_t)1 << 53) - 1);
}

/* "15043+1.5", "29871-inf" */
static int parse_bias(const char *text, uint32_t n_vocab, ht_logit_bias *out, ht_err *e)
{
    char *end;
    errno = 0;
    long long id = strtoll(text, &end, 10);
    if (end == text || errno || (*end != '+' && *end != '-'))
        return HT_FAIL(e, HT_EARG, "--logit-bias %.40s: need ID+X or ID-X, e.g. 15043+1", text);
    const char *num = end;
    float bias = strtof(num, &end);
    if (end == num + 1 || *end || isnan(bias) || bias == INFINITY)
        return HT_FAIL(e, HT_EARG, "--logit-bias %.40s: the part after ID must be a number or -inf",
                       text);
    if (id < 0 || id >= (long long)n_vocab)
        return HT_FAIL(e, HT_EARG, "--logit-bias %.40s: the vocabulary's ids are 0 to %u", text,
                       n_vocab - 1);
    out->id = (int32_t)id;
    out->bias = bias;
    return 0;
}

static int read_biases(cli__ctx *c, uint32_t n_vocab, cli__sampler *sm, ht_err *e)
{
    const char *const *text;
    size_t n = ht_opt_list(c->o, HT_OPT_LOGIT_BIAS, &text);
    if (!n) return 0;
    sm->bias = ht_mem_array(n, sizeof *sm->bias);
    if (!sm->bias) return HT_FAIL(e, HT_ENOMEM, "--logit-bias: out of memory");
    for (size_t i = 0; i < n; i++) HT_TRY(parse_bias(text[i], n_vocab, &sm->bias[i], e));
    sm->s.bias = sm->bias;
    sm->s.n_bias = n;
    return 0;
}

/* --dry-sequence-breaker none: an empty list that is not NULL. */
static void read_breakers(cli__ctx *c, ht_sampling *s)
{
    size_t n = ht_opt_list(c->o, HT_OPT_DRY_BREAKER, &s->dry_breakers);
    s->n_dry_breakers = n;
    if (!n) s->dry_breakers = NULL;
    else if (n == 1 && strcmp(s->dry_breakers[0], "none") == 0) s->n_dry_breakers = 0;
}

int cli__sampler_open(cli__ctx *c, uint32_t n_vocab, cli__sampler *sm, ht_err *e)
{
    const ht_opts *o = c->o;
    int64_t seed = ht_opt_int(o, HT_OPT_SEED);
    *sm = (cli__sampler){.seed_is_random = seed < 0};
    ht_sampling_init(&sm->s);
    ht_sampling *s = &sm->s;
    s->temp = (float)ht_opt_real(o, HT_OPT_TEMP);
    s->top_k = (int32_t)ht_opt_int(o, HT_OPT_TOP_K);
    s->top_p = (float)ht_opt_real(o, HT_OPT_TOP_P);
    s->min_p = (float)ht_opt_real(o, HT_OPT_MIN_P);
    s->typical_p = (float)ht_opt_real(o, HT_OPT_TYPICAL);
    s->repeat_penalty = (float)ht_opt_real(o, HT_OPT_REPEAT_PENALTY);
    s->presence_penalty = (float)ht_opt_real(o, HT_OPT_PRESENCE_PENALTY);
    s->frequency_penalty = (float)ht_opt_real(o, HT_OPT_FREQUENCY_PENALTY);
    s->penalty_last_n = (int32_t)ht_opt_int(o, HT_OPT_REPEAT_LAST_N);
    s->dry_multiplier = (float)ht_opt_real(o, HT_OPT_DRY_MULTIPLIER);
    s->dry_base = (float)ht_opt_real(o, HT_OPT_DRY_BASE);
    s->dry_allowed_length = (int32_t)ht_opt_int(o, HT_OPT_DRY_ALLOWED_LENGTH);
    s->dry_last_n = (int32_t)ht_opt_int(o, HT_OPT_DRY_LAST_N);
    s->xtc_probability = (float)ht_opt_real(o, HT_OPT_XTC_PROBABILITY);
    s->xtc_threshold = (float)ht_opt_real(o, HT_OPT_XTC_THRESHOLD);
    s->seed = seed < 0 ? random_seed() : (uint64_t)seed;
    read_breakers(c, s);
    if ((uint32_t)s->top_k > n_vocab)
        cli__say(c, CLI_WARN,
                 "warning: --top-k %d is more than the %u tokens of the vocabulary: it keeps "
                 "them all",
                 s->top_k, n_vocab);
    int rc = read_biases(c, n_vocab, sm, e);
    char *chain = NULL;
    if (!rc && c->level >= CLI_DEBUG) rc = ht_sampling_describe(s, &chain, e);
    if (!rc && chain)
        cli__say(c, CLI_DEBUG, "sampler: %s; seed %llu", chain, (unsigned long long)s->seed);
    ht_free(chain);
    if (rc) cli__sampler_done(sm);
    return rc;
}

void cli__sampler_done(cli__sampler *sm)
{
    ht_mem_free(sm->bias);
    sm->bias = NULL;
}

static void say_phase(cli__ctx *c, const ht_json *p)
{
    char bytes[32] = "", rate[48] = "";
    double tokens = cli__num(p, "tokens", 0), ns = cli__num(p, "ns", 0);
    double per_token = cli__num(p, "bytesPerToken", 0), hit = cli__num(p, "cacheHitTokens", 0);
    char kept[40] = "";
    if (tokens <= 0) return;
    if (ns > 0) snprintf(rate, sizeof rate, ", %.1f tokens/s", tokens * 1e9 / ns);
    if (per_token > 0) {
        cli__bytes(per_token, bytes);
        size_t n = strlen(bytes);
        snprintf(bytes + n, sizeof bytes - n, "/token");
    }
    if (hit > 0) snprintf(kept, sizeof kept, " (+%.0f kept)", hit);
    cli__say(c, CLI_INFO, "%-8s %.0f tokens%s on %s%s%s%s; %s (%s)", cli__str(p, "phase", "?"),
             tokens, kept, cli__str(p, "executed", "?"), rate, *bytes ? ", " : "", bytes,
             cli__str(p, "decision", "?"), cli__str(p, "reason", "?"));
}

/* What guessing brought, of the decode phase's object. */
static void say_guesses(cli__ctx *c, const ht_json *p)
{
    const ht_json *s = ht_json_get(p, "speculation");
    if (!s) return;
    cli__say(c, CLI_INFO,
             "drafts   %.0f accepted of %.0f in %.0f rounds (lookup %.0f of %.0f); "
             "about %.0f ms saved",
             cli__num(p, "accepted", 0), cli__num(p, "drafted", 0), cli__num(s, "rounds", 0),
             cli__num(s, "lookupAccepted", 0), cli__num(s, "lookupDrafted", 0),
             cli__num(s, "millisecondsSaved", 0));
    const char *lost = cli__str(s, "draftGivenUp", NULL);
    if (lost) cli__say(c, CLI_WARN, "warning: the draft model failed (%s) and was left out", lost);
}

/* What was given up, of the receipt. */
static void say_eviction(cli__ctx *c, const ht_json *doc)
{
    const ht_json *held = ht_json_path(doc, "eviction.held");
    if (!held) return;
    /* Of an earlier answer's text there may be a gap: the first page always stays. */
    if (held->n < 2 && cli__num(doc, "eviction.rounds", 0) == 0) {
        cli__say(c, CLI_INFO,
                 "evicted  nothing: the text fits the %.0f that are kept, so the answer is that of "
                 "the whole context",
                 cli__num(doc, "eviction.keptTokens", 0));
        return;
    }
    cli__say(c, CLI_INFO,
             "evicted  %.0f tokens in %.0f rounds, %.0f kept: not the answer of the whole context",
             cli__num(doc, "eviction.evictedTokens", 0), cli__num(doc, "eviction.rounds", 0),
             cli__num(doc, "eviction.keptTokens", 0));
}

int cli__say_receipt(cli__ctx *c, const ht_session *session, const cli__sampler *sm, int finish,
                     ht_err *e)
{
    static const char *const why[] = {[HT_FINISH_NONE] = "unfinished",
                                      [HT_FINISH_STOP] = "at a stop text",
                                      [HT_FINISH_EOG] = "the model ended",
                                      [HT_FINISH_LENGTH] = "at the token limit",
                                      [HT_FINISH_CANCEL] = "cancelled"};
    ht_arena *arena = NULL;
    ht_json *doc;
    char *json = NULL;
    if (c->level < CLI_INFO) return 0;
    HT_TRY(ht_session_receipt(session, &json, e));
    int rc = ht_arena_new(&arena, 0, e);
    if (!rc) rc = ht_json_parse(arena, json, strlen(json), 0, "receipt", &doc, e);
    const ht_json *phases = rc ? NULL : ht_json_get(doc, "phases");
    for (size_t i = 0; phases && phases->type == HT_JARR && i < phases->n; i++)
        say_phase(c, &phases->at[i]), say_guesses(c, &phases->at[i]);
    if (!rc) say_eviction(c, doc);
    if (!rc)
        cli__say(c, CLI_INFO, "finish   %s; seed %llu%s",
                 finish >= 0 && finish <= HT_FINISH_CANCEL ? why[finish] : "?",
                 (unsigned long long)sm->s.seed, sm->seed_is_random ? " (random)" : "");
    ht_arena_free(arena);
    ht_free(json);
    return rc;
}
