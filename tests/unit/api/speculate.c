/* speculate.c - guessing ahead changes nothing: for every source of guesses, sampler, stop and end
 * the tokens, text, log-probabilities, positions and cached keys are those of plain decoding. */
#include "util.h"
#include <pthread.h>

enum { MAX_PROMPT = 48, MAX_NEW = 64, SMOL_NEW = 256 };

/* ---- a generation and what it showed --------------------------------------------------------- */

typedef struct {
    int32_t id[SMOL_NEW + 1];
    float logprob[SMOL_NEW + 1];
    uint32_t pos[SMOL_NEW + 1], n, cancel_after;
} seen;

static int on_token(void *user, const ht_token_event *t)
{
    seen *s = user;
    if (t->id < 0) return 0;
    T_TRUE(s->n <= SMOL_NEW);
    s->id[s->n] = t->id;
    s->pos[s->n] = t->pos;
    s->logprob[s->n++] = t->logprob;
    return s->cancel_after && s->n >= s->cancel_after;
}

typedef struct {
    const int32_t *ids;
    size_t n;
    ht_sampling sampling;
    const char *stop; /* NULL: none */
    uint32_t max_new, cancel_after;
    bool ends; /* the model's end counts */
} job;

static ht_gen_result run(ht_session *s, const job *j, const ht_speculation *w, seen *out)
{
    ht_gen_result r = {0};
    ht_err err = {0};
    *out = (seen){.cancel_after = j->cancel_after};
    const ht_gen_params p = {.max_new = j->max_new,
                             .sampling = &j->sampling,
                             .stop = &j->stop,
                             .n_stop = j->stop != NULL,
                             .ignore_eos = !j->ends,
                             .on_token = on_token,
                             .user = out,
                             .speculation = w};
    T_OK(ht_session_generate(s, j->ids, j->n, &p, &r, &err), err);
    return r;
}

/* The same job plain and with guesses, each in a session of its own; both stay as it left them. */
static ht_gen_result same(ht_session *plain, ht_session *guess, const job *j,
                          const ht_speculation *w)
{
    seen a, b;
    ht_err err = {0};
    T_OK(ht_session_truncate(plain, 0, &err), err);
    T_OK(ht_session_truncate(guess, 0, &err), err);
    ht_gen_result want = run(plain, j, NULL, &a), got = run(guess, j, w, &b);
    T_EQ_INT(got.finish, want.finish);
    T_EQ_INT(got.n_ids, want.n_ids);
    T_EQ_MEM(got.ids, want.ids, want.n_ids * sizeof *want.ids);
    T_EQ_INT(got.len, want.len);
    T_EQ_MEM(got.text, want.text, want.len);
    T_EQ_INT(b.n, a.n);
    T_EQ_MEM(b.id, a.id, a.n * sizeof *a.id);
    T_EQ_MEM(b.pos, a.pos, a.n * sizeof *a.pos);
    T_EQ_MEM(b.logprob, a.logprob, a.n * sizeof *a.logprob);
    T_EQ_INT(ht_session_len(guess), ht_session_len(plain));
    ht_gen_result_done(&want);
    return got;
}

/* Both sessions hold the same: what follows them has the same logits, bit for bit. */
static void same_cache(ht_session *plain, ht_session *guess, uint32_t n_vocab)
{
    enum { NEXT = 3 };
    const int32_t next[NEXT] = {400, 401, 402};
    ht_err err = {0};
    logits a = {.cap = NEXT}, b = {.cap = NEXT};
    a.rows = calloc(NEXT * (size_t)n_vocab, sizeof *a.rows);
    b.rows = calloc(NEXT * (size_t)n_vocab, sizeof *b.rows);
    T_TRUE(a.rows && b.rows);
    T_OK(ht_session_eval(plain, next, NEXT, NULL, NEXT, keep_logits, &a, &err), err);
    T_OK(ht_session_eval(guess, next, NEXT, NULL, NEXT, keep_logits, &b, &err), err);
    T_EQ_INT(a.n_vocab, n_vocab);
    T_EQ_MEM(b.rows, a.rows, NEXT * (size_t)n_vocab * sizeof *a.rows);
    free(a.rows);
    free(b.rows);
}

/* ---- the embedded model ---------------------------------------------------------------------- */

typedef struct {
    ht_engine *e,
        *other; /* other: the same model in 8-bit arithmetic, a draft that is often right */
    ht_session *plain, *guess, *twin, *near;
} bench;

static bench set_up(void)
{
    bench b = {.e = tale(2, 3)};
    const ht_engine_params p = {.model = TALE, .ctx = 128, .threads = 1, .act = "q8"};
    b.other = engine(&p);
    b.plain = session(b.e);
    b.guess = session(b.e);
    b.twin = session(b.e);
    b.near = session(b.other);
    return b;
}

static void tear_down(bench *b)
{
    ht_session_free(b->plain);
    ht_session_free(b->guess);
    ht_session_free(b->twin);
    ht_session_free(b->near);
    ht_engine_close(b->e);
    ht_engine_close(b->other);
}

/* Prompt i: words of stories, every third one with a part that stands there twice. */
static size_t prompt(uint64_t i, int32_t ids[MAX_PROMPT])
{
    uint64_t seed = i;
    size_t n = 6 + i % 20;
    for (size_t k = 0; k < n; k++) ids[k] = (int32_t)(300 + t_rand(&seed) % 3000);
    if (i % 3 == 0) {
        memcpy(ids + n, ids, n * sizeof *ids);
        n += n - n / 3;
    }
    return n;
}

/* Sampler i: greedy, warm, penalties, DRY, XTC and all of them, with seeds. */
static ht_sampling sampler(uint64_t i)
{
    ht_sampling g;
    ht_sampling_init(&g);
    g.seed = 1000 + i;
    if (i % 6 == 0) g.temp = 0;
    if (i % 6 == 2 || i % 6 == 5) {
        g.repeat_penalty = 1.2F;
        g.presence_penalty = 0.3F;
        g.frequency_penalty = 0.1F;
    }
    if (i % 6 == 3 || i % 6 == 5) g.dry_multiplier = 0.8F;
    if (i % 6 >= 4) g.xtc_probability = 0.5F;
    if (i % 6 == 5) g.typical_p = 0.9F;
    if (i % 12 == 8) g.temp = 0; /* greedy with penalties */
    return g;
}

static ht_speculation source(const bench *b, uint64_t i)
{
    const uint32_t most[] = {1, 3, 7, 15, 0};
    return (ht_speculation){.lookup = i % 4 != 1,
                            .draft = i % 4 == 0   ? NULL
                                     : i % 4 == 3 ? b->twin
                                                  : b->near,
                            .draft_max = most[i % 5],
                            .always = 1,
                            .parallel = i % 8 == 6}; /* `near` has its own engine */
}

T_CASE_SECONDS(speculate, tokens_are_those_of_plain_decoding, 300)
{
    bench b = set_up();
    ht_arena *ar = arena();
    const uint64_t n = t_full() ? 50 : 14;
    long long drafted = 0, accepted = 0;
    for (uint64_t i = 0; i < n; i++) {
        int32_t ids[MAX_PROMPT];
        const ht_speculation w = source(&b, i);
        const job j = {.ids = ids,
                       .n = prompt(i, ids),
                       .sampling = sampler(i),
                       .max_new =
                           t_full() ? MAX_NEW * (1 + (uint32_t)i % 3) : 24 + 5 * (uint32_t)i % 40,
                       .ends = i % 2};
        ht_gen_result r = same(b.plain, b.guess, &j, &w);
        const ht_json *d = &ht_json_get(receipt(ar, b.guess), "phases")->at[1];
        T_EQ_INT(num(d, "tokens"), ht_session_len(b.guess) - j.n);
        T_TRUE(num(d, "accepted") <= num(d, "drafted"));
        T_EQ_INT(num(d, "speculation.lookupDrafted") + num(d, "speculation.modelDrafted"),
                 num(d, "drafted"));
        drafted += num(d, "drafted");
        accepted += num(d, "accepted");
        same_cache(b.plain, b.guess, ht_vocab_size(ht_engine_vocab(b.e)));
        ht_gen_result_done(&r);
    }
    T_CHECK(drafted > 15 * (long long)n && accepted > 5 * (long long)n && accepted < drafted,
            "%lld of %lld accepted", accepted, drafted);
    ht_arena_free(ar);
    tear_down(&b);
}

/* A model that drafts for itself with the same sampler is always right: each round brings draft_max
 * tokens and one more. */
T_CASE_SECONDS(speculate, an_equal_model_is_always_right, 120)
{
    bench b = set_up();
    ht_arena *ar = arena();
    int32_t ids[MAX_PROMPT];
    for (uint64_t i = 1; i < 7; i++) {
        const ht_speculation w = {.draft = b.twin, .draft_max = 4, .always = 1};
        const job j = {.ids = ids, .n = prompt(i, ids), .sampling = sampler(i), .max_new = 41};
        ht_gen_result r = same(b.plain, b.guess, &j, &w);
        const ht_json *d = &ht_json_get(receipt(ar, b.guess), "phases")->at[1];
        T_EQ_INT(num(d, "drafted"), 32); /* 1 + 8 rounds of 5 */
        T_EQ_INT(num(d, "accepted"), 32);
        T_EQ_INT(num(d, "speculation.rounds"), 8);
        T_EQ_INT(num(d, "tokens"), 40);
        T_EQ_STR(str(d, "speculation.mode"), "always");
        T_EQ_STR(str(d, "speculation.draftModelShapeSha256"),
                 str(receipt(ar, b.guess), "modelShapeSha256"));
        ht_gen_result_done(&r);
    }
    ht_arena_free(ar);
    tear_down(&b);
}

/* Guesses of a second engine in its own thread: the receipt says how many were made and thrown
 * away, the engine is in use meanwhile and free afterwards. */
T_CASE_SECONDS(speculate, in_parallel, 120)
{
    bench b = set_up();
    ht_arena *ar = arena();
    int32_t ids[MAX_PROMPT];
    long long guessed = 0, accepted = 0;
    for (uint64_t i = 0; i < 6; i++) {
        const ht_speculation w = {.draft = b.near, .always = i % 2 == 0, .parallel = 1};
        const job j = {.ids = ids, .n = prompt(i, ids), .sampling = sampler(i), .max_new = 60};
        ht_gen_result r = same(b.plain, b.guess, &j, &w);
        const ht_json *d = &ht_json_get(receipt(ar, b.guess), "phases")->at[1];
        T_TRUE(num(d, "speculation.parallel.discarded") <=
               num(d, "speculation.parallel.guessed") + 15);
        T_TRUE(num(d, "accepted") <= num(d, "speculation.parallel.guessed"));
        guessed += num(d, "speculation.parallel.guessed");
        accepted += num(d, "accepted");
        same_cache(b.plain, b.guess, ht_vocab_size(ht_engine_vocab(b.e)));
        ht_gen_result_done(&r);
        ht_gen_result own = greedy(b.near, ids, 4, 2); /* nobody holds its engine any more */
        ht_gen_result_done(&own);
    }
    /* How many come in time is the scheduler's; tests/unit/decode/ahead.c is sure of its
     * guesses. */
    T_CHECK(guessed > 0 && accepted <= guessed, "%lld guessed, %lld right", guessed, accepted);
    ht_arena_free(ar);
    tear_down(&b);
}

/* ---- rejection sampling ---------------------------------------------------------------------- */

/* Where p and q are one distribution every guess is kept, also at a temperature, under truncation
 * and with penalties. */
T_CASE_SECONDS(speculate, rejection_keeps_all_of_an_equal_model, 120)
{
    bench b = set_up();
    ht_arena *ar = arena();
    int32_t ids[MAX_PROMPT];
    for (uint64_t i = 1; i < 7; i++) {
        const ht_speculation w = {.draft = b.twin, .draft_max = 4, .always = 1, .reject = 1};
        const job j = {.ids = ids, .n = prompt(i, ids), .sampling = sampler(i), .max_new = 41};
        seen x;
        ht_err err = {0};
        T_OK(ht_session_truncate(b.guess, 0, &err), err);
        ht_gen_result r = run(b.guess, &j, &w, &x);
        const ht_json *d = &ht_json_get(receipt(ar, b.guess), "phases")->at[1];
        T_EQ_INT(r.n_ids, 41);
        T_EQ_INT(num(d, "drafted"), 32);
        T_EQ_INT(num(d, "accepted"), 32);
        T_EQ_STR(str(d, "speculation.accept"), "reject");
        ht_gen_result_done(&r);
    }
    ht_arena_free(ar);
    tear_down(&b);
}

/* Greedy has one outcome, so rejection sampling gives the plain text too; lookup guesses are always
 * by sample and match. */
T_CASE_SECONDS(speculate, rejection_at_temperature_0, 120)
{
    bench b = set_up();
    int32_t ids[MAX_PROMPT];
    for (uint64_t i = 0; i < 4; i++) {
        const ht_speculation w = {
            .draft = i < 2 ? b.near : NULL, .lookup = i != 1, .always = 1, .reject = 1};
        const job j = {.ids = ids,
                       .n = prompt(3 * i, ids),
                       .sampling = sampler(i == 3  ? 7
                                           : i % 2 ? 8
                                                   : 0),
                       .max_new = 40};
        ht_gen_result r = same(b.plain, b.guess, &j, &w);
        ht_gen_result_done(&r);
        same_cache(b.plain, b.guess, ht_vocab_size(ht_engine_vocab(b.e)));
    }
    tear_down(&b);
}

/* Three tokens of two candidates each, plain and by rejection with a draft that sees another text
 * (its view is shorter than the prompt): two samples of one distribution. */
T_CASE_SECONDS(speculate, rejection_draws_from_the_same_distribution, 240)
{
    enum { N = 400 };
    const ht_engine_params p = {.model = TALE, .ctx = 32, .threads = 1, .act = "q8"};
    ht_engine *e = tale(2, 2), *small = engine(&p);
    ht_session *s = session(e), *d = session(small);
    int32_t ids[MAX_PROMPT], first[3][2];
    size_t n = prompt(19, ids);
    long count[2][8] = {{0}};
    long long drafted = 0, accepted = 0;
    uint32_t known[3] = {0};
    T_TRUE(n > 20); /* the view starts with 16 */
    for (uint64_t i = 0; i < 2 * N; i++) {
        const ht_speculation w = {.draft = d, .draft_max = 2, .always = 1, .reject = 1};
        job j = {.ids = ids, .n = n, .max_new = 3};
        seen x;
        ht_sampling_init(&j.sampling);
        j.sampling.seed = i;
        j.sampling.temp = 1.5F;
        j.sampling.top_k = 2;
        ht_gen_result r = run(s, &j, i < N ? NULL : &w, &x);
        int cell = 0;
        for (int k = 0; k < 3; k++) { /* which of the two; ids differ by branch: parity of them */
            uint32_t at = 0;
            while (at < known[k] && first[k][at] != r.ids[k] % 2) at++;
            if (at == known[k] && known[k] < 2) first[k][known[k]++] = r.ids[k] % 2;
            cell = cell * 2 + (int)at;
        }
        count[i >= N][cell]++;
        drafted += (long long)r.drafted;
        accepted += (long long)r.accepted;
        ht_gen_result_done(&r);
    }
    double chi = 0;
    int df = -1;
    for (int c = 0; c < 8; c++) {
        const double sum = (double)(count[0][c] + count[1][c]);
        const double diff = (double)(count[0][c] - count[1][c]);
        if (sum < 1) continue;
        chi += diff * diff / sum;
        df++;
    }
    T_TRUE(df >= 2);
    T_CHECK(chi < 24.32, "chi-square %.2f with %d degrees of freedom", chi, df);
    T_CHECK(accepted > drafted / 10 && accepted < drafted, "%lld of %lld kept: both happen",
            accepted, drafted);
    ht_session_free(s);
    ht_session_free(d);
    ht_engine_close(e);
    ht_engine_close(small);
}

/* ---- where a generation ends ----------------------------------------------------------------- */

/* A stop string that ends inside a draft, an end of the token budget inside one, a caller that
 * stops inside one: the generation ends where a plain one ends, and goes on from there as well. */
T_CASE_SECONDS(speculate, ends_inside_a_draft, 240)
{
    bench b = set_up();
    int32_t ids[MAX_PROMPT];
    const size_t n = prompt(4, ids);
    const ht_speculation w = {.lookup = 1, .draft = b.twin, .draft_max = 7, .always = 1};
    const uint32_t n_vocab = ht_vocab_size(ht_engine_vocab(b.e));
    job j = {.ids = ids, .n = n, .sampling = sampler(6), .max_new = 40};
    ht_gen_result all = same(b.plain, b.guess, &j, &w);
    T_TRUE(all.n_ids == 40 && all.len > 30);
    for (uint32_t at = 1; at <= 20; at++) {
        j = (job){.ids = ids, .n = n, .sampling = sampler(6), .max_new = at};
        ht_gen_result r = same(b.plain, b.guess, &j, &w);
        T_EQ_INT(r.finish, HT_FINISH_LENGTH);
        T_EQ_INT(r.n_ids, at);
        same_cache(b.plain, b.guess, n_vocab);
        ht_gen_result_done(&r);
        j.max_new = 40;
        j.cancel_after = at;
        r = same(b.plain, b.guess, &j, &w);
        T_EQ_INT(r.finish, HT_FINISH_CANCEL);
        T_EQ_INT(r.n_ids, at);
        T_EQ_INT(ht_session_len(b.guess), n + at - 1);
        same_cache(b.plain, b.guess, n_vocab);
        ht_gen_result_done(&r);
    }
    for (size_t at = 0; at + 4 < all.len && at < 60;
         at += 3) { /* stop texts from the text itself */
        char stop[5] = {0};
        memcpy(stop, all.text + at, 4);
        j = (job){.ids = ids, .n = n, .sampling = sampler(6), .max_new = 40, .stop = stop};
        ht_gen_result r = same(b.plain, b.guess, &j, &w);
        T_EQ_INT(r.finish, HT_FINISH_STOP);
        T_TRUE(r.len <= at && !memcmp(r.text, all.text, r.len));
        same_cache(b.plain, b.guess, n_vocab);
        ht_gen_result_done(&r);
    }
    ht_gen_result_done(&all);
    tear_down(&b);
}

/* Up to the last position of the context, with a draft model whose own context is much shorter and
 * starts its view again on the way. */
T_CASE_SECONDS(speculate, to_the_end_of_the_context, 240)
{
    ht_engine *e = tale(2, 2);
    const ht_engine_params p = {.model = TALE, .ctx = 48, .threads = 1, .ubatch = 16};
    ht_engine *small = engine(&p);
    ht_session *plain = session(e), *guess = session(e), *d = session(small);
    ht_arena *ar = arena();
    int32_t ids[MAX_PROMPT];
    for (uint64_t i = 0; i < 3; i++) {
        const ht_speculation w = {.lookup = i == 2, .draft = i == 1 ? d : NULL, .always = 1};
        const ht_speculation both = {.lookup = 1, .draft = d, .draft_max = 6, .always = 1};
        const job j = {.ids = ids, .n = prompt(6, ids), .sampling = sampler(i)};
        ht_gen_result r = same(plain, guess, &j, i ? &w : &both);
        T_EQ_INT(r.finish, HT_FINISH_LENGTH);
        T_EQ_INT(ht_session_len(guess), 256);
        T_TRUE(num(&ht_json_get(receipt(ar, guess), "phases")->at[1], "drafted") > 0);
        T_TRUE(ht_session_len(d) <= 48);
        ht_gen_result_done(&r);
    }
    ht_arena_free(ar);
    ht_session_free(plain);
    ht_session_free(guess);
    ht_session_free(d);
    ht_engine_close(e);
    ht_engine_close(small);
}

/* Left to itself it may guess or not, turn after turn in one session: the text is the same. */
T_CASE_SECONDS(speculate, adaptive_turns, 240)
{
    bench b = set_up();
    ht_arena *ar = arena();
    int32_t ids[MAX_PROMPT + 4 * MAX_NEW];
    size_t n = prompt(3, ids);
    const ht_speculation w = {.lookup = 1, .draft = b.near, .draft_min = 2};
    for (uint64_t turn = 0; turn < 4; turn++) {
        seen x, y;
        const job j = {.ids = ids, .n = n, .sampling = sampler(turn), .max_new = 30};
        ht_gen_result want = run(b.plain, &j, NULL, &x), got = run(b.guess, &j, &w, &y);
        T_EQ_INT(got.n_ids, want.n_ids);
        T_EQ_MEM(got.ids, want.ids, want.n_ids * sizeof *want.ids);
        const ht_json *d = &ht_json_get(receipt(ar, b.guess), "phases")->at[1];
        T_EQ_STR(str(d, "speculation.mode"), "adaptive");
        T_TRUE(num(d, "drafted") >= 2 * num(d, "speculation.rounds"));
        memcpy(ids + n, want.ids, 30 * sizeof *ids);
        n += 30;
        ids[n++] = (int32_t)(500 + turn);
        ht_gen_result_done(&want);
        ht_gen_result_done(&got);
    }
    same_cache(b.plain, b.guess, ht_vocab_size(ht_engine_vocab(b.e)));
    ht_arena_free(ar);
    tear_down(&b);
}

/* ---- cancel from another thread -------------------------------------------------------------- */

static void *cancel_soon(void *arg)
{
    const struct timespec t = {.tv_nsec = 20000000};
    (void)nanosleep(&t, NULL);
    ht_cancel(arg);
    return NULL;
}

/* Whatever the cancel meets - a draft, a verification, the sampler - what is there is the beginning
 * of the plain text, and the session goes on exactly. */
T_CASE_SECONDS(speculate, cancelled_by_another_thread, 240)
{
    bench b = set_up();
    int32_t ids[MAX_PROMPT];
    ht_speculation w = {.lookup = 1, .draft = b.near, .always = 1};
    job j = {.ids = ids, .n = prompt(5, ids), .sampling = sampler(7), .max_new = 200};
    seen x;
    ht_err err = {0};
    ht_gen_result want = run(b.plain, &j, NULL, &x);
    for (int round = 0; round < 4; round++) {
        w.parallel = round % 2;
        pthread_t th;
        seen y;
        T_OK(ht_session_truncate(b.guess, 0, &err), err);
        T_EQ_INT(pthread_create(&th, NULL, cancel_soon, b.guess), 0);
        ht_gen_result got = run(b.guess, &j, &w, &y);
        T_EQ_INT(pthread_join(th, NULL), 0);
        T_TRUE(got.finish == HT_FINISH_CANCEL || got.finish == HT_FINISH_LENGTH);
        T_TRUE(got.n_ids <= want.n_ids);
        T_EQ_MEM(got.ids, want.ids, got.n_ids * sizeof *got.ids);
        ht_gen_result_done(&got);
    }
    j.max_new = 30; /* the same session, afterwards */
    ht_gen_result r = same(b.plain, b.guess, &j, &w);
    ht_gen_result_done(&r);
    ht_gen_result_done(&want);
    tear_down(&b);
}

/* ---- what is refused ------------------------------------------------------------------------- */

T_CASE_SECONDS(speculate, refusals, 120)
{
    bench b = set_up();
    const ht_engine_params p = {.model = golden("llama/model.gguf"), .threads = 1};
    ht_engine *foreign = engine(&p);
    ht_session *alien = session(foreign);
    int32_t ids[MAX_PROMPT];
    const size_t n = prompt(1, ids);
    ht_gen_result r = {0};
    ht_err err = {0};
    const struct {
        ht_speculation w;
        const char *text;
    } bad[] = {
        {{.draft = alien}, "cannot draft for"},
        {{.draft = b.guess}, "for itself"},
        {{.lookup = 1, .draft_max = 16}, "at most 15"},
        {{.lookup = 1, .draft_max = 4, .draft_min = 5}, "at least 5"},
        {{.draft = b.near, .parallel = 1, .reject = 1}, "one of the two"},
        {{.draft = b.twin, .parallel = 1}, "an engine of its own"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const ht_gen_params gp = {.max_new = 4, .speculation = &bad[i].w};
        T_ERR(ht_session_generate(b.guess, ids, n, &gp, &r, &err), HT_EARG, err, bad[i].text);
        T_TRUE(!r.text && !r.ids);
    }
    T_ERR(ht_draft_check(b.e, foreign, &err), HT_EARG, err, "vocabularies differ");
    T_CHECK(strstr(err.msg, "tale-9m") && strstr(err.msg, "model.gguf"), "both named: %s", err.msg);
    T_ERR(ht_draft_check(b.e, NULL, &err), HT_EARG, err, "two engines");
    T_OK(ht_draft_check(b.e, b.other, &err), err);
    const job j = {.ids = ids, .n = n, .sampling = sampler(0), .max_new = 12};
    const ht_speculation w = {.draft = b.near, .always = 1};
    ht_gen_result ok = same(b.plain, b.guess, &j, &w); /* nothing stayed busy */
    ht_gen_result_done(&ok);
    ht_session_free(alien);
    ht_engine_close(foreign);
    tear_down(&b);
}

/* ---- a larger model and its draft ------------------------------------------------------------ */

/* Of a large vocabulary a draft guesses the frequent ids only, unless the text has many others; the
 * answer is the plain one either way. */
T_CASE(speculate, frequent_ids)
{
    const char *path = t_shared("models/smollm2-draft-15m-q8_0.gguf");
    const ht_engine_params p = {.model = path, .ctx = 64, .threads = 2, .max_sessions = 2};
    const ht_engine_params q = {.model = path, .ctx = 64, .threads = 2, .act = "q8"};
    ht_engine *e = engine(&p), *draft = engine(&q);
    ht_session *plain = session(e), *guess = session(e), *d = session(draft);
    ht_arena *ar = arena();
    for (uint64_t i = 0; i < 4; i++) {
        int32_t ids[16];
        const ht_speculation w = {.draft = d, .draft_max = 4, .always = 1};
        for (int32_t k = 0; k < 16; k++) ids[k] = (i % 2 ? 30000 : 300) + 17 * k;
        const job j = {.ids = ids, .n = 16, .sampling = sampler(i), .max_new = 32};
        ht_gen_result r = same(plain, guess, &j, &w);
        T_TRUE(num(&ht_json_get(receipt(ar, guess), "phases")->at[1], "accepted") > 4);
        ht_gen_result_done(&r);
    }
    ht_arena_free(ar);
    ht_session_free(plain);
    ht_session_free(guess);
    ht_session_free(d);
    ht_engine_close(e);
    ht_engine_close(draft);
}

/* The given draft guesses for a copy of itself in 8-bit arithmetic, at the vocabulary and depth of
 * a real model: 50 prompts of 256 tokens. */
T_CASE_FULL(speculate, given_draft_model, 1800)
{
    const char *path = t_shared("models/smollm2-draft-15m-q8_0.gguf");
    const ht_engine_params p = {.model = path, .ctx = 512, .threads = 2, .max_sessions = 2};
    const ht_engine_params q = {.model = path, .ctx = 256, .threads = 2, .act = "q8"};
    ht_engine *e = engine(&p), *draft = engine(&q);
    ht_session *plain = session(e), *guess = session(e), *d = session(draft);
    ht_arena *ar = arena();
    long long drafted = 0, accepted = 0;
    for (uint64_t i = 0; i < 50; i++) {
        int32_t ids[MAX_PROMPT];
        const ht_speculation w = {.lookup = i % 3 != 0,
                                  .draft = i % 3 == 1 ? NULL : d,
                                  .draft_max = 1 + (uint32_t)i % 15,
                                  .always = 1};
        const job j = {
            .ids = ids, .n = prompt(i, ids), .sampling = sampler(i), .max_new = SMOL_NEW};
        ht_gen_result r = same(plain, guess, &j, &w);
        const ht_json *ph = &ht_json_get(receipt(ar, guess), "phases")->at[1];
        drafted += num(ph, "drafted");
        accepted += num(ph, "accepted");
        same_cache(plain, guess, ht_vocab_size(ht_engine_vocab(e)));
        ht_gen_result_done(&r);
    }
    T_CHECK(accepted > 50 && accepted < drafted, "%lld of %lld accepted", accepted, drafted);
    ht_arena_free(ar);
    ht_session_free(plain);
    ht_session_free(guess);
    ht_session_free(d);
    ht_engine_close(e);
    ht_engine_close(draft);
}
