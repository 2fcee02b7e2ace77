/* quality.c - measures against closed forms, near-ties told from real flips, the task's choices,
 * and the gate's every reason, each beside a twin that passes. */
#include "evid/quality.h"
#include "test.h"

T_CASE(quality, closed_forms)
{
    /* Two tokens: p = (0.8, 0.2) against (0.5, 0.5). */
    const float ref[2] = {logf(0.8f), logf(0.2f)}, cand[2] = {3, 3};
    ht_quality_position p;
    ht_quality_measure(ref, cand, 2, 1, &p);
    T_NEAR(p.kld, 0.8 * log(0.8 / 0.5) + 0.2 * log(0.2 / 0.5), 1e-7);
    T_NEAR(p.nll_ref, -log(0.2), 1e-6);
    T_NEAR(p.nll_cand, log(2.0), 1e-6);
    T_EQ_INT(p.top_ref, 0);
    T_EQ_INT(p.top_cand, 0); /* a tie goes to the lowest id */
    ht_quality_measure(ref, ref, 2, -1, &p);
    T_EQ_INT(p.kld == 0, 1);
    T_NEAR(ht_quality_logprob(ref, 2, 0), log(0.8), 1e-6);
    const float flip[2] = {0, 1};
    ht_quality_measure(ref, flip, 2, -1, &p);
    T_NEAR(p.gap, log(4.0), 1e-6);
}

/* Terms with log p_ref <= -16 do not count, however wrong the candidate is there. */
T_CASE(quality, floor_of_probabilities)
{
    const float ref[2] = {0, -17}, cand[2] = {0, -600};
    ht_quality_position p;
    ht_quality_measure(ref, cand, 2, -1, &p);
    T_CHECK(p.kld < 1e-6, "kld %g", p.kld);
}

/* Not-a-number passes no comparison that it should fail (evidence.md 1.3). */
T_CASE(quality, not_a_number_never_passes)
{
    const float ref[2] = {0, 1}, bad[2] = {NAN, 1}, inf[2] = {INFINITY, 1};
    const float *const wrong[] = {bad, inf};
    for (int i = 0; i < 2; i++) {
        ht_quality_position p;
        ht_quality_measure(ref, wrong[i], 2, 0, &p);
        T_TRUE(isinf(p.kld) && p.top_ref != p.top_cand);
        T_TRUE(isinf(ht_quality_logprob(wrong[i], 2, 0)));
        ht_quality_measure(wrong[i], ref, 2, 0, &p);
        T_TRUE(isinf(p.kld) && p.top_ref != p.top_cand);
    }
}

T_CASE(quality, choices)
{
    uint32_t c[4], at, again[4], seen[4] = {0};
    for (uint32_t i = 0; i < 400; i++) {
        ht_quality_choices(5, i, 400, c, &at);
        T_EQ_INT(c[0], i);
        for (int k = 0; k < 4; k++)
            for (int j = 0; j < k; j++) T_CHECK(c[k] != c[j] && c[k] < 400, "item %u", i);
        T_CHECK(at < 4, "place %u", at);
        seen[at]++;
        ht_quality_choices(5, i, 400, again, &at);
        T_EQ_MEM(again, c, sizeof c);
    }
    for (int k = 0; k < 4; k++) T_CHECK(seen[k] > 60 && seen[k] < 140, "place %d: %u", k, seen[k]);
    ht_quality_choices(1, 3, 4, c, &at);
    T_CHECK(c[1] + c[2] + c[3] == 3, "of four items the others are 0, 1, 2");
}

T_CASE(quality, sign_test)
{
    T_NEAR(ht_quality_sign_p(0, 0), 1, 1e-12);
    T_NEAR(ht_quality_sign_p(4, 0), 1.0 / 16, 1e-12);
    T_NEAR(ht_quality_sign_p(3, 1), 5.0 / 16, 1e-12);
    T_NEAR(ht_quality_sign_p(0, 5), 1, 1e-12);
}

/* A run in which every measure is good; `exact` false: one continuation differs in one token. */
static void good_run(ht_quality *q, bool exact)
{
    ht_err e = {0};
    int32_t prompt[2] = {1, 0}, out[200], other[200];
    ht_quality_position at[50];
    ht_quality_init(q);
    for (int i = 0; i < 200; i++) out[i] = other[i] = i;
    for (int i = 0; i < 10; i++) {
        prompt[1] = i;
        other[150] = i == 3 && !exact ? 9999 : 150;
        T_OK(ht_quality_greedy(q, prompt, 2, out, 200, other, 200, i == 3 ? 0.05 : 0, &e), e);
        for (int k = 0; k < 50; k++)
            at[k] = (ht_quality_position){
                .kld = 1e-5, .nll_ref = 2, .nll_cand = 2.001, .top_ref = 7, .top_cand = 7};
        T_OK(ht_quality_text(q, prompt, 2, at, 50, &e), e);
    }
    for (int i = 0; i < 400; i++)
        T_OK(ht_quality_task(q, prompt, 2, i % 3 != 0, i % 3 != 0, &e), e);
}

static const char *verdict(ht_quality *q, ht_json **report)
{
    static char why[64];
    ht_arena *a;
    ht_err e = {0};
    ht_policy p;
    ht_buf b;
    ht_jw w;
    ht_json *doc;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    T_OK(ht_arena_new(&a, 0, &e), e);
    T_OK(ht_policy_parse(a, ht_policy_default, strlen(ht_policy_default), &p, &e), e);
    T_OK(ht_quality_report(q, &p, &w, &e), e);
    T_OK(ht_json_parse(a, b.p, b.n, 0, "report", &doc, &e), e);
    snprintf(why, sizeof why, "%s", ht_json_get(doc, "reason")->s);
    if (report) *report = doc;
    return why;
}

T_CASE(quality, gate_reasons)
{
    ht_quality q;
    ht_err e = {0};
    int32_t prompt[1] = {4}, ids[2000] = {0}, other[2000];
    ht_json *r = NULL;
    ht_quality_init(&q);
    T_EQ_STR(verdict(&q, NULL), "NO_SUITE");
    T_ERR(ht_quality_greedy(&q, prompt, 1, ids, 0, ids, 3, 0, &e), HT_EARG, e, "wrote nothing");
    good_run(&q, true);
    T_EQ_STR(verdict(&q, NULL), "OK");
    good_run(&q, false);
    T_EQ_STR(verdict(&q, &r), "OK");
    T_EQ_INT(ht_json_get(r, "promptsExact")->i, 9);
    T_EQ_INT(ht_json_get(r, "tokensAgree")->i, 1999);
    T_EQ_INT(ht_json_get(r, "firstDifferencesNearTie")->i, 1);
    T_EQ_INT(ht_json_get(r, "firstDifferencesReal")->i, 0);
    T_NEAR(ht_json_get(r, "pplRatio")->d, exp(0.001), 1e-9);

    good_run(&q, false);
    T_OK(ht_quality_greedy(&q, prompt, 1, ids, 2000, ids, 100, 0, &e), e);
    T_EQ_STR(verdict(&q, NULL), "LENGTH_BAND");
    good_run(&q, false);
    memset(other, 1, sizeof other);
    T_OK(ht_quality_greedy(&q, prompt, 1, ids, 2000, other, 2000, 5, &e), e);
    T_EQ_STR(verdict(&q, NULL), "EXACT_TOKENS");
    good_run(&q, false);
    ht_quality_position at[50] = {{0}};
    for (int i = 0; i < 50; i++) at[i].top_cand = 3;
    T_OK(ht_quality_text(&q, prompt, 1, at, 50, &e), e);
    T_EQ_STR(verdict(&q, NULL), "TOP1");
    good_run(&q, false);
    memset(at, 0, sizeof at);
    for (int i = 0; i < 50; i++) at[i].kld = 0.04;
    T_OK(ht_quality_text(&q, prompt, 1, at, 50, &e), e);
    T_EQ_STR(verdict(&q, NULL), "KLD_MEAN");
    good_run(&q, false);
    memset(at, 0, sizeof at);
    at[0].kld = 0.3; /* the mean stays below a thousandth */
    T_OK(ht_quality_text(&q, prompt, 1, at, 50, &e), e);
    T_EQ_STR(verdict(&q, NULL), "KLD_P999");
    good_run(&q, false);
    for (int i = 0; i < 12; i++) T_OK(ht_quality_task(&q, prompt, 1, true, false, &e), e);
    T_EQ_STR(verdict(&q, &r), "TASK");
    T_EQ_INT(ht_json_get(r, "tasksLost")->i, 12);
    ht_quality_done(&q);
}

/* The files are what the bundle's reader takes (bundle_quality.c has the closed tables). */
T_CASE(quality, files)
{
    ht_quality q;
    ht_arena *a;
    ht_err e = {0};
    T_OK(ht_arena_new(&a, 0, &e), e);
    good_run(&q, false);
    for (int k = 0; k < 3; k++) {
        size_t lines = 0;
        for (char *p = q.file[k].p, *nl; (nl = strchr(p, '\n')); p = nl + 1, lines++) {
            ht_json *j;
            T_OK(ht_json_parse(a, p, (size_t)(nl - p), HT_JSON_CANON, "line", &j, &e), e);
            T_EQ_INT(ht_json_get(j, "i")->i, lines);
        }
        T_EQ_INT(lines, 420);
    }
    ht_quality_done(&q);
    ht_arena_free(a);
}
