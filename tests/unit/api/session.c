/* session.c - sessions of hetero.h on the cpu engine: one sequence of tokens must give one result,
 * whatever was kept, forked, cut into chunks or run before it. */
#include "core/clock.h"
#include "core/map.h"
#include "util.h"
#include <pthread.h>

enum { N = 24 };

/* A fixed sequence of ordinary ids. */
static void sequence(int32_t ids[N], uint64_t seed)
{
    for (int i = 0; i < N; i++) ids[i] = (int32_t)(300 + t_rand(&seed) % 3000);
}

static void same_ids(const ht_gen_result *a, const ht_gen_result *b)
{
    T_EQ_INT(a->n_ids, b->n_ids);
    T_EQ_MEM(a->ids, b->ids, a->n_ids * sizeof *a->ids);
    T_EQ_INT(a->len, b->len);
    T_EQ_MEM(a->text, b->text, a->len);
}

T_CASE_SECONDS(session, kept_prefix_changes_nothing, 120)
{
    int32_t ids[N + 8];
    sequence(ids, 1);
    ht_arena *ar = arena();
    ht_engine *e = tale(1, 2);
    ht_session *s = session(e), *fresh = session(e);
    ht_err err = {0};
    ht_gen_result first = greedy(s, ids, 16, 8);
    T_EQ_INT(first.n_ids, 8);
    T_EQ_INT(first.finish, HT_FINISH_LENGTH);
    T_EQ_INT(ht_session_len(s), 16 + 7); /* the last token was never run */
    /* Continue: the prompt, what was generated, and more. */
    memcpy(ids + 16, first.ids, 8 * sizeof *ids);
    ht_gen_result kept = greedy(s, ids, N, 6);
    T_EQ_INT(num(&ht_json_get(receipt(ar, s), "phases")->at[0], "cacheHitTokens"), N - 1);
    ht_gen_result cold = greedy(fresh, ids, N, 6);
    same_ids(&kept, &cold);
    /* Diverge inside: the common part is kept, the rest computed again. */
    ids[10] += 1;
    ht_gen_result_done(&kept);
    ht_gen_result_done(&cold);
    kept = greedy(s, ids, N, 6);
    T_OK(ht_session_truncate(fresh, 0, &err), err);
    cold = greedy(fresh, ids, N, 6);
    same_ids(&kept, &cold);
    T_ERR(ht_session_truncate(s, 1000, &err), HT_EARG, err, "holds");
    ht_gen_result_done(&first);
    ht_gen_result_done(&kept);
    ht_gen_result_done(&cold);
    ht_session_free(s);
    ht_session_free(fresh);
    ht_engine_close(e);
    ht_arena_free(ar);
}

T_CASE_SECONDS(session, same_prompt_twice_keeps_all_but_one, 120)
{
    int32_t ids[N];
    sequence(ids, 2);
    ht_arena *ar = arena();
    ht_engine *e = tale(1, 1);
    ht_session *s = session(e);
    ht_gen_result a = greedy(s, ids, N, 4), b = greedy(s, ids, N, 4);
    same_ids(&a, &b);
    const ht_json *phases = ht_json_get(receipt(ar, s), "phases");
    T_EQ_INT(num(&phases->at[0], "cacheHitTokens"), N - 1);
    T_EQ_INT(num(&phases->at[0], "tokens"), 1);
    T_EQ_INT(num(&phases->at[1], "tokens"), 3);
    ht_gen_result_done(&a);
    ht_gen_result_done(&b);
    ht_session_free(s);
    ht_engine_close(e);
    ht_arena_free(ar);
}

T_CASE_SECONDS(session, fork_shares_and_diverges, 120)
{
    int32_t ids[N + 4], other[N + 4];
    sequence(ids, 3);
    ht_arena *ar = arena();
    ht_engine *e = tale(1, 3);
    ht_session *s = session(e), *f = NULL, *g = NULL;
    ht_err err = {0};
    ht_gen_result a = greedy(s, ids, N, 1);
    T_OK(ht_session_fork(&f, s, &err), err);
    T_EQ_INT(ht_session_len(f), N);
    T_OK(ht_session_fork(&g, f, &err), err);
    ht_session *none = NULL;
    T_ERR(ht_session_new(&none, e, &err), HT_EFULL, err, "max_sessions");
    memcpy(other, ids, N * sizeof *ids);
    for (int i = 0; i < 4; i++) {
        ids[N + i] = 400 + i;
        other[N + i] = 900 + i;
    }
    ht_gen_result x = greedy(f, ids, N + 4, 5), y = greedy(g, other, N + 4, 5);
    T_EQ_INT(num(&ht_json_get(receipt(ar, f), "phases")->at[0], "cacheHitTokens"), N);
    T_CHECK(num(receipt(ar, f), "copyOnWriteBytes") > 0,
            "a shared, half-filled page was not copied");
    /* The fork's parent does not see what the forks wrote. */
    ht_gen_result xs = greedy(s, ids, N + 4, 5);
    same_ids(&x, &xs);
    ht_session_free(f);
    T_OK(ht_session_new(&f, e, &err), err);
    ht_gen_result ys = greedy(f, other, N + 4, 5);
    same_ids(&y, &ys);
    ht_gen_result *all[] = {&a, &x, &y, &xs, &ys};
    for (size_t i = 0; i < 5; i++) ht_gen_result_done(all[i]);
    ht_session_free(s);
    ht_session_free(f);
    ht_session_free(g);
    ht_engine_close(e);
    ht_arena_free(ar);
}

static int meddle(void *user, const ht_token_event *ev)
{
    ht_session *s = user, *other = NULL;
    ht_err err = {0};
    (void)ev;
    T_ERR(ht_session_truncate(s, 0, &err), HT_EBUSY, err, "running another session");
    T_ERR(ht_session_fork(&other, s, &err), HT_EBUSY, err, "running another session");
    T_TRUE(!other);
    return 0;
}

T_CASE_SECONDS(session, busy_while_it_runs, 120)
{
    int32_t ids[N];
    sequence(ids, 5);
    ht_engine *e = tale(1, 2);
    ht_session *s = session(e);
    ht_err err = {0};
    ht_gen_result r = {0};
    const ht_gen_params gp = {.max_new = 2, .ignore_eos = 1, .on_token = meddle, .user = s};
    T_OK(ht_session_generate(s, ids, N, &gp, &r, &err), err);
    T_EQ_INT(r.n_ids, 2);
    T_OK(ht_session_truncate(s, 3, &err), err);
    T_EQ_INT(ht_session_len(s), 3);
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_engine_close(e);
}

/* Chunk sizes 1, 7 and whole, and 1 and 2 threads: equal bits at every position, for both
 * arithmetics. */
T_CASE_SECONDS(session, chunks_and_threads_change_no_bit, 240)
{
    int32_t ids[N];
    sequence(ids, 4);
    static const uint32_t chunk[] = {512, 1, 7};
    const size_t bytes = (size_t)N * 4096 * sizeof(float);
    float *want = NULL;
    for (int threads = 1; threads <= 2; threads++) {
        for (size_t c = 0; c < 3; c++) {
            const ht_engine_params p = {
                .model = TALE, .ctx = 64, .threads = threads, .ubatch = chunk[c]};
            ht_engine *e = engine(&p);
            float *got = all_logits(e, ids, N);
            ht_engine_close(e);
            if (!want) want = got;
            T_CHECK(!memcmp(want, got, bytes), "bits differ with %d threads, chunks of %u", threads,
                    chunk[c]);
            if (got != want) free(got);
        }
    }
    free(want);
}

T_CASE_SECONDS(session, eval_delivers_what_is_asked, 120)
{
    int32_t ids[N];
    sequence(ids, 5);
    ht_engine *e = tale(1, 1);
    ht_err err = {0};
    float *all = all_logits(e, ids, N);
    ht_session *s = session(e);
    static const uint32_t want[] = {0, 7, 23}, wrong[] = {7, 7};
    logits l = {.cap = 3, .rows = calloc(3 * 4096, sizeof(float))};
    T_OK(ht_session_eval(s, ids, N, want, 3, keep_logits, &l, &err), err);
    T_EQ_INT(l.n, 3);
    for (int i = 0; i < 3; i++) {
        T_EQ_INT(l.index[i], want[i]);
        T_EQ_MEM(l.rows + (size_t)i * 4096, all + (size_t)want[i] * 4096, 4096 * sizeof(float));
    }
    /* In two calls, and without asking for any. */
    T_OK(ht_session_truncate(s, 0, &err), err);
    T_OK(ht_session_eval(s, ids, 20, NULL, 0, NULL, NULL, &err), err);
    l.n = 0;
    T_OK(ht_session_eval(s, ids + 20, 4, (const uint32_t[]){3}, 1, keep_logits, &l, &err), err);
    T_EQ_MEM(l.rows, all + (size_t)23 * 4096, 4096 * sizeof(float));
    /* The caller stops; the context ends; indices out of order; an id that is none. */
    T_OK(ht_session_truncate(s, 0, &err), err);
    l.n = l.cap = 0;
    T_ERR(ht_session_eval(s, ids, N, want, 3, keep_logits, &l, &err), HT_ECANCELLED, err,
          "token 0");
    T_ERR(ht_session_eval(s, ids, N, wrong, 2, keep_logits, &l, &err), HT_EARG, err, "ascend");
    ids[3] = 4096;
    T_ERR(ht_session_eval(s, ids, N, NULL, 0, NULL, NULL, &err), HT_EARG, err, "4096");
    free(l.rows);
    free(all);
    ht_session_free(s);
    ht_engine_close(e);
}

T_CASE_SECONDS(session, context_ends_with_a_note, 120)
{
    int32_t ids[N];
    sequence(ids, 6);
    ht_arena *ar = arena();
    ht_err err = {0};
    const ht_engine_params p = {.model = TALE, .ctx = N + 4, .threads = 1};
    ht_engine *e = engine(&p);
    ht_session *s = session(e);
    ht_gen_result r = greedy(s, ids, N, 0); /* until the context ends */
    T_EQ_INT(r.n_ids, 5);                   /* the last one needs no position */
    T_EQ_INT(r.finish, HT_FINISH_LENGTH);
    T_EQ_INT(ht_session_len(s), N + 4);
    const ht_json *j = receipt(ar, s);
    T_EQ_STR(str(j, "finish"), "length");
    T_EQ_STR(ht_json_get(j, "notes")->at[0].s, "CONTEXT_FULL");
    int32_t *more = calloc(N + 5, sizeof *more);
    ht_gen_result none = {0};
    const ht_gen_params gp = {.max_new = 1};
    T_ERR(ht_session_generate(s, more, N + 5, &gp, &none, &err), HT_EFULL, err, "29 tokens");
    T_ERR(ht_session_eval(s, ids, 1, NULL, 0, NULL, NULL, &err), HT_EFULL, err, "28");
    free(more);
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_engine_close(e);
    ht_arena_free(ar);
}

/* ---- text, stop strings, sampling ------------------------------------------------------------ */

typedef struct {
    char text[4096];
    size_t len, events;
    int32_t ids[128];
    size_t stop_after;
} heard;

static int hear(void *user, const ht_token_event *ev)
{
    heard *h = user;
    memcpy(h->text + h->len, ev->text, ev->len);
    h->len += ev->len;
    if (ev->id >= 0) h->ids[h->events++] = ev->id;
    return h->stop_after && h->events == h->stop_after;
}

/* Generate after plain text. */
static ht_gen_result ask(ht_engine *e, ht_session *s, const char *text, const ht_gen_params *p)
{
    ht_err err = {0};
    ht_gen_result r = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    T_OK(ht_vocab_encode(ht_engine_vocab(e), text, strlen(text), 0, &ids, &n, &err), err);
    T_OK(ht_session_generate(s, ids, n, p, &r, &err), err);
    ht_free(ids);
    return r;
}

T_CASE_SECONDS(generate, events_are_the_result, 120)
{
    ht_engine *e = tale(1, 1);
    ht_session *s = session(e);
    ht_sampling g;
    ht_sampling_init(&g);
    g.seed = 7;
    heard h = {0};
    const ht_gen_params p = {
        .max_new = 40, .sampling = &g, .on_token = hear, .user = &h, .ignore_eos = 1};
    ht_gen_result r = ask(e, s, "Once upon a time", &p);
    T_EQ_INT(r.n_ids, 40);
    T_EQ_INT(h.events, r.n_ids);
    T_EQ_MEM(h.ids, r.ids, r.n_ids * sizeof *r.ids);
    T_EQ_INT(h.len, r.len);
    T_EQ_MEM(h.text, r.text, r.len);
    /* The same seed again gives the same tokens, another seed others. */
    ht_gen_result again = ask(e, s, "Once upon a time",
                              &(ht_gen_params){.max_new = 40, .sampling = &g, .ignore_eos = 1});
    same_ids(&r, &again);
    g.seed = 8;
    ht_gen_result other = ask(e, s, "Once upon a time",
                              &(ht_gen_params){.max_new = 40, .sampling = &g, .ignore_eos = 1});
    T_CHECK(memcmp(r.ids, other.ids, 40 * sizeof *r.ids) != 0, "seed 8 gives the tokens of seed 7");
    ht_gen_result_done(&r);
    ht_gen_result_done(&again);
    ht_gen_result_done(&other);
    ht_session_free(s);
    ht_engine_close(e);
}

T_CASE_SECONDS(generate, stop_string_is_never_shown, 120)
{
    ht_arena *ar = arena();
    ht_engine *e = tale(1, 1);
    ht_session *s = session(e);
    ht_sampling g;
    ht_sampling_init(&g);
    g.temp = 0;
    ht_gen_params p = {.max_new = 40, .sampling = &g, .ignore_eos = 1};
    ht_gen_result whole = ask(e, s, "Once upon a time", &p);
    /* Stop in the middle of what it would say, at a place that splits tokens. */
    T_CHECK(whole.len > 40, "only %zu bytes of text", whole.len);
    char stop[12];
    memcpy(stop, whole.text + 23, 11);
    stop[11] = 0;
    const char *const stops[] = {"never said in any story", stop};
    const size_t at = (size_t)(strstr(whole.text, stop) - whole.text);
    heard h = {0};
    p.stop = stops;
    p.n_stop = 2;
    p.on_token = hear;
    p.user = &h;
    ht_gen_result r = ask(e, s, "Once upon a time", &p);
    T_EQ_INT(r.finish, HT_FINISH_STOP);
    T_EQ_INT(r.len, at);
    T_EQ_MEM(r.text, whole.text, at);
    T_EQ_INT(h.len, at);
    T_EQ_STR(str(receipt(ar, s), "finish"), "stop");
    const char *const empty[] = {""};
    ht_err err = {0};
    ht_gen_result none = {0};
    p.stop = empty;
    p.n_stop = 1;
    T_ERR(ht_session_generate(s, r.ids, r.n_ids, &p, &none, &err), HT_EARG, err, "empty");
    ht_gen_result_done(&whole);
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_engine_close(e);
    ht_arena_free(ar);
}

/* A callback that has enough ends the call; what there is of the text is the result. */
T_CASE_SECONDS(generate, callback_cancels, 120)
{
    ht_arena *ar = arena();
    ht_engine *e = tale(1, 1);
    ht_session *s = session(e);
    heard h = {.stop_after = 3};
    const ht_gen_params p = {.max_new = 40, .on_token = hear, .user = &h, .ignore_eos = 1};
    ht_gen_result r = ask(e, s, "Once upon a time", &p);
    T_EQ_INT(r.finish, HT_FINISH_CANCEL);
    T_EQ_INT(r.n_ids, 3);
    T_EQ_STR(str(receipt(ar, s), "status"), "cancelled");
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_engine_close(e);
    ht_arena_free(ar);
}

typedef struct {
    ht_session *s;
    ht_engine *e;
    uint64_t asked_ns;
} canceller;

static void *cancel_soon(void *arg)
{
    canceller *c = arg;
    usleep(20000);
    c->asked_ns = ht_now_ns();
    ht_cancel(c->s);
    return NULL;
}

/* From another thread, while a long prompt runs on the slow engine: the call ends, the session is
 * where it was, and the next call is not cancelled. */
T_CASE_SECONDS(generate, cancel_from_another_thread, 240)
{
    static int32_t ids[200];
    uint64_t seed = 9;
    for (int i = 0; i < 200; i++) ids[i] = (int32_t)(300 + t_rand(&seed) % 3000);
    const ht_engine_params ep = {.model = TALE, .ctx = 256, .threads = 1, .prefill_engine = "ref"};
    ht_engine *e = engine(&ep);
    ht_session *s = session(e);
    ht_err err = {0};
    canceller c = {.s = s, .e = e};
    pthread_t t;
    T_EQ_INT(pthread_create(&t, NULL, cancel_soon, &c), 0);
    ht_gen_result r = {0};
    const ht_gen_params p = {.max_new = 4, .ignore_eos = 1};
    T_OK(ht_session_generate(s, ids, 200, &p, &r, &err), err);
    pthread_join(t, NULL);
    T_EQ_INT(r.finish, HT_FINISH_CANCEL);
    T_EQ_INT(r.n_ids, 0);
    T_EQ_INT(ht_session_len(s), 0);
    ht_gen_result_done(&r);
    ht_gen_result next = greedy(s, ids, 4, 2);
    T_EQ_INT(next.n_ids, 2);
    ht_gen_result_done(&next);
    ht_session_free(s);
    ht_engine_close(e);
}

/* Pieces of a prompt of which no row is wanted end before the head; the oracle said it had launched
 * one stage more than it had, and every prompt longer than a piece was refused as a mismatch. */
T_CASE_SECONDS(generate, the_oracle_takes_a_prompt_in_pieces, 240)
{
    static const uint32_t piece[] = {64, 16, 7};
    int32_t ids[40], first[3] = {0};
    for (int i = 0; i < 40; i++) ids[i] = 300 + 7 * i;
    for (int k = 0; k < 3; k++) {
        const ht_engine_params ep = {.model = TALE,
                                     .ctx = 64,
                                     .threads = 1,
                                     .ubatch = piece[k],
                                     .prefill_engine = "ref",
                                     .decode_engine = "ref"};
        ht_engine *e = engine(&ep);
        ht_session *s = session(e);
        ht_gen_result r = greedy(s, ids, 40, 3);
        T_EQ_INT(r.n_ids, 3);
        for (int i = 0; i < 3; i++) {
            if (k == 0) first[i] = r.ids[i];
            T_EQ_INT(r.ids[i], first[i]);
        }
        ht_gen_result_done(&r);
        ht_session_free(s);
        ht_engine_close(e);
    }
}

static int busy_token(void *user, const ht_token_event *ev)
{
    canceller *c = user;
    ht_err err = {0};
    (void)ev;
    T_ERR(ht_session_eval(c->s, (const int32_t[]){300}, 1, NULL, 0, NULL, NULL, &err), HT_EBUSY,
          err, "running");
    return 0;
}

T_CASE_SECONDS(generate, one_call_at_a_time, 120)
{
    ht_engine *e = tale(1, 2);
    ht_session *s = session(e), *other = session(e);
    canceller c = {.s = other};
    const ht_gen_params p = {.max_new = 1, .on_token = busy_token, .user = &c, .ignore_eos = 1};
    ht_gen_result r = ask(e, s, "A", &p);
    T_EQ_INT(r.n_ids, 1);
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_session_free(other);
    ht_engine_close(e);
}

/* ---- longrope -------------------------------------------------------------------------------- */

/* The tiny Phi-3 rotates by other factors beyond 48 positions. Short prompts without a limit end at
 * the switch; with a limit beyond it the whole sequence is long, and a kept prefix of the other
 * kind is not used. */
T_CASE_SECONDS(session, longrope_never_crosses, 120)
{
    int32_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = 10 + 13 * i;
    ht_arena *ar = arena();
    const ht_engine_params p = {.model = golden("phi3/model.gguf"), .ctx = 128, .threads = 1};
    ht_engine *e = engine(&p);
    ht_session *s = session(e);
    ht_err err = {0};
    ht_gen_result r = greedy(s, ids, N, 0);
    T_EQ_INT(r.n_ids, 48 - N + 1);
    T_EQ_INT(r.finish, HT_FINISH_LENGTH);
    T_EQ_STR(ht_json_get(receipt(ar, s), "notes")->at[0].s, "ROPE_SWITCH");
    ht_gen_result shorter = greedy(s, ids, N, 24);
    T_EQ_INT(num(&ht_json_get(receipt(ar, s), "phases")->at[0], "cacheHitTokens"), N - 1);
    ht_gen_result longer = greedy(s, ids, N, 25);
    T_EQ_INT(num(&ht_json_get(receipt(ar, s), "phases")->at[0], "cacheHitTokens"), 0);
    T_EQ_INT(longer.n_ids, 25);
    T_EQ_MEM(shorter.ids, r.ids, 24 * sizeof *r.ids);
    T_OK(ht_session_truncate(s, 0, &err), err);
    T_OK(ht_session_eval(s, ids, N, NULL, 0, NULL, NULL, &err), err);
    T_OK(ht_session_eval(s, ids, N, NULL, 0, NULL, NULL, &err), err);
    T_ERR(ht_session_eval(s, ids, 1, NULL, 0, NULL, NULL, &err), HT_EUNSUPPORTED, err, "48");
    ht_gen_result_done(&r);
    ht_gen_result_done(&shorter);
    ht_gen_result_done(&longer);
    ht_session_free(s);
    ht_engine_close(e);
    ht_arena_free(ar);
}

/* A windowed cache forgets; going back behind what it holds must compute again, not read holes. */
T_CASE_SECONDS(session, window_recomputes_when_it_forgot, 120)
{
    static int32_t ids[100];
    for (int i = 0; i < 100; i++) ids[i] = 5 + 5 * i;
    const ht_engine_params p = {.model = golden("gemma3/model.gguf"),
                                .ctx = 128,
                                .threads = 1,
                                .ubatch = 8,
                                .max_sessions = 2};
    ht_engine *e = engine(&p);
    ht_session *s = session(e), *fresh = session(e);
    ht_gen_result a = greedy(s, ids, 100, 4), cut = greedy(s, ids, 40, 4),
                  cold = greedy(fresh, ids, 40, 4);
    same_ids(&cut, &cold);
    ht_gen_result_done(&a);
    ht_gen_result_done(&cut);
    ht_gen_result_done(&cold);
    ht_session_free(s);
    ht_session_free(fresh);
    ht_engine_close(e);
}

static int count_rows(void *user, uint32_t index, const float *row, uint32_t n)
{
    (void)index, (void)row, (void)n;
    ++*(int *)user;
    return 0;
}

/* Pages that a file has lost read as zeros: no logits and no text made after that are handed
 * out. */
T_CASE(session, nothing_from_a_file_cut_short)
{
    static const int32_t ids[] = {5, 17, 3, 900};
    static char path[600];
    ht_err err = {0};
    size_t n;
    int rows = 0;
    char *text = t_slurp(TALE, &n);
    snprintf(path, sizeof path, "%s/m.gguf", t_tmp());
    t_spit(path, text, n);
    free(text);
    T_OK(ht_map_guard(&err), err);
    const ht_engine_params p = {.model = path,
                                .prefill_engine = "ref",
                                .decode_engine = "ref",
                                .ctx = 64,
                                .threads = 1}; /* ref reads weights in place */
    ht_engine *e = engine(&p);
    ht_session *s = session(e);
    T_OK(ht_session_eval(s, ids, 4, NULL, 1, count_rows, &rows, &err), err);
    T_EQ_INT(rows, 4);
    T_EQ_INT(truncate(path, (off_t)(n / 2)), 0);
    T_ERR(ht_session_eval(s, ids, 4, NULL, 1, count_rows, &rows, &err), HT_EIO, err,
          "bytes when it was opened");
    T_EQ_INT(rows, 4);
    ht_gen_result r;
    const ht_gen_params g = {.max_new = 4};
    T_ERR(ht_session_generate(s, ids, 4, &g, &r, &err), HT_EIO, err, "bytes when it was opened");
    T_TRUE(!r.text && !r.ids);
    /* As long as it was, but with a hole of zeros where the weights were read. */
    T_EQ_INT(truncate(path, (off_t)n), 0);
    T_ERR(ht_session_generate(s, ids, 4, &g, &r, &err), HT_EIO, err, "results since then are void");
    ht_session_free(s);
    ht_engine_close(e);
}
