/* batch.c - generations that share passes: each must be what it is alone, to the bit of the logits
 * its tokens were drawn from, whatever runs beside it and in whatever pieces. */
#include "util.h"
#include <stdatomic.h>

enum { MOST = 6, PROMPT = 70 };

typedef struct {
    int32_t ids[PROMPT];
    size_t n;
    uint32_t max_new;
    ht_sampling sampling;
    const char *stop[1];
    ht_speculation spec;
    ht_gen_params p;
} request;

/* A request of the seed: length, text, sampling, stop string and guessing all vary. */
static void make_request(request *r, uint64_t seed)
{
    memset(r, 0, sizeof *r);
    const uint64_t text = seed % 5; /* several requests begin alike */
    uint64_t common = text + 77;
    r->n = 1 + t_rand(&seed) % PROMPT;
    for (size_t i = 0; i < r->n; i++)
        r->ids[i] = (int32_t)(300 + t_rand(i < r->n / 2 ? &common : &seed) % 3000);
    r->max_new = 1 + (uint32_t)(t_rand(&seed) % 12);
    ht_sampling_init(&r->sampling);
    r->sampling.seed = t_rand(&seed);
    if (t_rand(&seed) % 2) r->sampling.temp = 0;
    if (t_rand(&seed) % 3 == 0) r->sampling.repeat_penalty = 1.2F;
    r->stop[0] = "e ";
    r->spec.lookup = 1;
    r->spec.always = 1;
    r->p = (ht_gen_params){.max_new = r->max_new,
                           .sampling = &r->sampling,
                           .ignore_eos = 1,
                           .hash_logits = 1,
                           .stop = r->stop,
                           .n_stop = t_rand(&seed) % 4 == 0};
    if (t_rand(&seed) % 3 == 0) r->p.speculation = &r->spec;
}

static ht_gen *gen(ht_session *s, const request *r)
{
    ht_gen *g = NULL;
    ht_err err = {0};
    T_OK(ht_gen_new(&g, s, r->ids, r->n, &r->p, &err), err);
    return g;
}

static ht_gen_result result(ht_gen *g)
{
    ht_gen_result r = {0};
    ht_err err = {0};
    T_EQ_INT(ht_gen_state(g), HT_GEN_DONE);
    T_OK(ht_gen_take(g, &r, &err), err);
    ht_gen_free(g);
    return r;
}

/* The token hashes of a plain generation, in a fresh session. */
static ht_gen_result alone(ht_engine *e, const request *r)
{
    ht_session *s = session(e);
    ht_gen_result res = {0};
    ht_err err = {0};
    T_OK(ht_session_generate(s, r->ids, r->n, &r->p, &res, &err), err);
    ht_session_free(s);
    return res;
}

static void same(const ht_gen_result *a, const ht_gen_result *b, uint64_t seed)
{
    T_CHECK(a->n_ids == b->n_ids && !memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids),
            "request %llu: other tokens in a batch", (unsigned long long)seed);
    T_CHECK(a->len == b->len && !memcmp(a->text, b->text, a->len), "request %llu: another text",
            (unsigned long long)seed);
    T_EQ_INT(a->finish, b->finish);
    T_CHECK(strlen(a->logits_sha256) == 64 && !strcmp(a->logits_sha256, b->logits_sha256),
            "request %llu: other logits in a batch", (unsigned long long)seed);
}

/* Requests come and go, each step runs a random part of those that are there, with a random number
 * of prompt rows; sessions are used again with whatever prefix they happen to share. */
T_CASE_SECONDS(batch, random_batches_change_no_bit, 300)
{
    enum { REQUESTS = 60 };
    const ht_engine_params p = {
        .model = TALE, .ctx = 256, .threads = 2, .max_sessions = MOST + 1, .ubatch = 64};
    ht_engine *e = engine(&p);
    ht_session *s[MOST];
    ht_gen *g[MOST] = {0};
    uint64_t seed_of[MOST] = {0}, rng = 11, next = 0, done = 0, shared = 0;
    request *r = calloc(MOST, sizeof *r);
    T_TRUE(r);
    for (int i = 0; i < MOST; i++) s[i] = session(e);
    while (done < REQUESTS) {
        ht_gen *list[MOST];
        size_t n = 0;
        ht_err err = {0};
        ht_step_info info;
        for (int i = 0; i < MOST; i++) {
            if (!g[i] && next < REQUESTS && t_rand(&rng) % 3) {
                seed_of[i] = next++;
                make_request(&r[i], seed_of[i]);
                g[i] = gen(s[i], &r[i]);
            }
            if (g[i] && t_rand(&rng) % 4) list[n++] = g[i];
        }
        const uint32_t rows = t_rand(&rng) % 3 ? 1 + (uint32_t)(t_rand(&rng) % 40) : 0;
        T_OK(ht_engine_step(e, list, n, rows, &info, &err), err);
        T_CHECK(!rows || info.prompt_rows <= rows, "%u prompt rows, %u allowed", info.prompt_rows,
                rows);
        shared += n > 1 && info.passes == 1;
        for (int i = 0; i < MOST; i++) {
            if (!g[i] || ht_gen_state(g[i]) != HT_GEN_DONE) continue;
            ht_gen_result got = result(g[i]), want = alone(e, &r[i]);
            same(&want, &got, seed_of[i]);
            ht_gen_result_done(&got);
            ht_gen_result_done(&want);
            g[i] = NULL;
            done++;
        }
    }
    T_CHECK(shared > 20, "only %llu steps were one pass for several", (unsigned long long)shared);
    for (int i = 0; i < MOST; i++) ht_session_free(s[i]);
    free(r);
    ht_engine_close(e);
}

/* Two generations guess with sessions of one draft engine, turn by turn. */
T_CASE_SECONDS(batch, one_draft_engine_for_several, 120)
{
    ht_engine *e = tale(1, 4), *d = tale(1, 2);
    ht_session *s[2] = {session(e), session(e)}, *ds[2] = {session(d), session(d)};
    request r[2];
    ht_gen *g[2];
    ht_err err = {0};
    uint64_t right = 0;
    for (int i = 0; i < 2; i++) {
        make_request(&r[i], 30 + (uint64_t)i);
        r[i].max_new = r[i].p.max_new = 20;
        r[i].p.n_stop = 0;
        r[i].p.speculation = NULL;
        ht_gen_result want = alone(e, &r[i]);
        r[i].spec = (ht_speculation){.draft = ds[i], .draft_max = 3, .always = 1};
        r[i].p.speculation = &r[i].spec;
        ht_gen_result got = alone(e, &r[i]);
        same(&want, &got, 30 + (uint64_t)i);
        ht_gen_result_done(&got);
        g[i] = gen(s[i], &r[i]);
        ht_gen_result_done(&want);
    }
    while (ht_gen_state(g[0]) != HT_GEN_DONE || ht_gen_state(g[1]) != HT_GEN_DONE)
        T_OK(ht_engine_step(e, g, 2, 0, NULL, &err), err);
    for (int i = 0; i < 2; i++) {
        ht_gen_result got = result(g[i]);
        r[i].p.speculation = NULL;
        ht_gen_result want = alone(e, &r[i]);
        same(&want, &got, 30 + (uint64_t)i);
        right += got.accepted;
        ht_gen_result_done(&got);
        ht_gen_result_done(&want);
    }
    T_CHECK(right > 10, "an equal model guessed %llu right", (unsigned long long)right);
    for (int i = 0; i < 2; i++) {
        ht_session_free(s[i]);
        ht_session_free(ds[i]);
    }
    ht_engine_close(e);
    ht_engine_close(d);
}

/* Costs of a shared run are shared out without loss, and the receipt says that it was shared. */
T_CASE(batch, receipts_share_the_cost)
{
    ht_arena *ar = arena();
    ht_engine *e = tale(1, 3);
    ht_session *s[2] = {session(e), session(e)};
    request r;
    ht_gen *g[2];
    ht_err err = {0};
    make_request(&r, 4);
    r.n = 9;
    r.p.max_new = 5;
    r.p.n_stop = 0;
    r.p.speculation = NULL;
    for (int i = 0; i < 2; i++) g[i] = gen(s[i], &r);
    ht_step_info info;
    T_OK(ht_engine_step(e, g, 2, 0, &info, &err), err);
    T_EQ_INT(info.passes, 1);
    T_EQ_INT(info.prompt_rows, 18);
    T_EQ_INT(info.tokens, 2);
    T_EQ_INT(info.keys, 2 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9));
    while (ht_gen_state(g[0]) != HT_GEN_DONE) {
        T_OK(ht_engine_step(e, g, 2, 0, &info, &err), err);
        T_EQ_INT(info.decode_rows, 2);
    }
    for (int i = 0; i < 2; i++) {
        ht_gen_result x = result(g[i]);
        T_EQ_INT(x.n_ids, 5);
        T_EQ_INT(x.n_prompt, 9);
        ht_gen_result_done(&x);
        const ht_json *phases = ht_json_get(receipt(ar, s[i]), "phases");
        T_EQ_INT(num(&phases->at[0], "tokens"), 9);
        T_EQ_INT(num(&ht_json_get(&phases->at[0], "segments")->at[0], "foreignRows"), 9);
        T_EQ_INT(num(&phases->at[1], "tokens"), 4);
        T_TRUE(num(&phases->at[1], "bytes") > 0);
        ht_session_free(s[i]);
    }
    ht_engine_close(e);
    ht_arena_free(ar);
}

static int cancel_at_third(void *user, const ht_token_event *ev)
{
    (void)ev;
    int *left = user;
    return --*left == 0;
}

/* One that is cancelled, one whose callback says stop, one that goes on. */
T_CASE(batch, cancel_leaves_the_others_alone)
{
    ht_engine *e = tale(1, 5);
    ht_session *s[3] = {session(e), session(e), session(e)};
    request r[3];
    ht_gen *g[3];
    ht_err err = {0};
    int left = 3;
    for (int i = 0; i < 3; i++) {
        make_request(&r[i], 20 + (uint64_t)i);
        r[i].p.n_stop = 0;
        r[i].p.speculation = NULL;
        r[i].p.max_new = 8;
        r[i].p.user = &left;
        if (i == 1) r[i].p.on_token = cancel_at_third;
        g[i] = gen(s[i], &r[i]);
    }
    for (int step = 0; ht_gen_state(g[2]) != HT_GEN_DONE; step++) {
        if (step == 2) ht_cancel(s[0]);
        T_OK(ht_engine_step(e, g, 3, 0, NULL, &err), err);
    }
    ht_gen_result a = result(g[0]), b = result(g[1]), c = result(g[2]), want = alone(e, &r[2]);
    T_EQ_INT(a.finish, HT_FINISH_CANCEL);
    T_EQ_INT(a.n_ids, 2);
    T_EQ_INT(b.finish, HT_FINISH_CANCEL);
    T_EQ_INT(b.n_ids, 3);
    same(&want, &c, 22);
    ht_gen_result *all[] = {&a, &b, &c, &want};
    for (size_t i = 0; i < 4; i++) ht_gen_result_done(all[i]);
    for (int i = 0; i < 3; i++) ht_session_free(s[i]);
    ht_engine_close(e);
}

/* Sessions may together hold less than each of them could: who finds no page fails alone. */
T_CASE(batch, a_full_pool_fails_one_and_no_other)
{
    const ht_engine_params p = {
        .model = TALE, .ctx = 256, .threads = 1, .max_sessions = 3, .kv_positions = 96};
    ht_engine *e = engine(&p);
    uint32_t total = 0, free_pages = 0;
    ht_engine_pages(e, &total, &free_pages);
    T_EQ_INT(total, 96 / HT_PAGE_POSITIONS + 3);
    T_EQ_INT(free_pages, total);
    ht_session *s[2] = {session(e), session(e)};
    request r[2];
    ht_gen *g[2];
    ht_err err = {0};
    for (int i = 0; i < 2; i++) {
        make_request(&r[i], 3);
        for (size_t k = r[i].n; k < PROMPT; k++) r[i].ids[k] = (int32_t)(400 + k);
        r[i].n = i ? 60 : PROMPT;
        r[i].p.max_new = i ? 4 : 140;
        r[i].p.n_stop = 0;
        r[i].p.speculation = NULL;
        g[i] = gen(s[i], &r[i]);
    }
    while (ht_gen_state(g[0]) != HT_GEN_DONE || ht_gen_state(g[1]) != HT_GEN_DONE)
        T_OK(ht_engine_step(e, g, 2, 0, NULL, &err), err);
    ht_gen_result none = {0}, b = result(g[1]);
    T_ERR(ht_gen_take(g[0], &none, &err), HT_EFULL, err, "KV pool full");
    T_EQ_INT(b.n_ids, 4);
    ht_gen_free(g[0]);
    ht_gen_result_done(&b);
    for (int i = 0; i < 2; i++) ht_session_free(s[i]);
    ht_engine_pages(e, &total, &free_pages);
    T_EQ_INT(free_pages, total);
    ht_engine_close(e);
}

typedef struct {
    uint32_t bits[2048];
    uint32_t n_bits;
    int accepted, fail_at;
    float last, top;
    int32_t top_id;
} watch;

static int only_few(void *user, const uint32_t **bits, ht_err *err)
{
    watch *w = user;
    if (w->accepted == w->fail_at) {
        if (err) *err = (ht_err){.code = HT_EFORMAT, .where = "test", .msg = "nothing fits"};
        return HT_EFORMAT;
    }
    *bits = w->accepted < 3 ? w->bits : NULL;
    return 0;
}

static int count_accepted(void *user, int32_t id, ht_err *err)
{
    watch *w = user;
    (void)err;
    if (w->accepted < 3 && !(w->bits[id / 32] >> (id % 32) & 1)) return HT_EFORMAT;
    w->accepted++;
    return 0;
}

static int watch_top(void *user, const ht_token_event *ev)
{
    watch *w = user;
    if (ev->id < 0) return 0;
    T_EQ_INT(ev->n_top, 5);
    for (size_t i = 1; i < ev->n_top; i++)
        T_CHECK(ev->top[i - 1].logprob >= ev->top[i].logprob, "entry %zu is above the one before",
                i);
    T_CHECK(ev->logprob <= ev->top[0].logprob, "the drawn token is likelier than the likeliest");
    for (size_t i = 0; i < ev->n_top; i++)
        if (ev->top[i].id == ev->id) T_TRUE(ev->top[i].logprob == ev->logprob);
    w->last = ev->logprob;
    return 0;
}

/* A constraint holds under guessing too, and its own error is that of the generation. */
T_CASE(batch, constraint_and_likeliest_tokens)
{
    ht_engine *e = tale(1, 2);
    ht_session *s = session(e);
    ht_err err = {0};
    watch w = {.fail_at = -1};
    const ht_constraint c = {.allowed = only_few, .accept = count_accepted, .user = &w};
    request r;
    make_request(&r, 9);
    T_TRUE(ht_engine_n_logits(e) <= 32 * 2048);
    for (int32_t id = 500; id < 510; id++) w.bits[id / 32] |= 1U << (id % 32);
    r.spec.lookup = 1;
    r.p = (ht_gen_params){.max_new = 8,
                          .sampling = &r.sampling,
                          .ignore_eos = 1,
                          .on_token = watch_top,
                          .user = &w,
                          .constraint = &c,
                          .speculation = &r.spec,
                          .n_top = 5};
    ht_gen_result x = {0};
    T_OK(ht_session_generate(s, r.ids, r.n, &r.p, &x, &err), err);
    T_EQ_INT(x.n_ids, 8);
    T_EQ_INT(w.accepted, 8);
    for (int i = 0; i < 3; i++)
        T_CHECK(x.ids[i] >= 500 && x.ids[i] < 510, "token %d is not allowed", (int)x.ids[i]);
    ht_gen_result_done(&x);
    w.accepted = 0;
    w.fail_at = 2;
    T_ERR(ht_session_generate(s, r.ids, r.n, &r.p, &x, &err), HT_EFORMAT, err, "nothing fits");
    r.p.n_top = 65;
    T_ERR(ht_session_generate(s, r.ids, r.n, &r.p, &x, &err), HT_EARG, err, "at most 64");
    ht_session_free(s);
    ht_engine_close(e);
}

T_CASE(batch, misuse_is_an_error)
{
    ht_engine *e = tale(1, 2), *other = tale(1, 1);
    ht_session *s = session(e);
    ht_err err = {0};
    request r;
    make_request(&r, 1);
    ht_gen *g = gen(s, &r), *second = NULL, *twice[2] = {g, g};
    ht_gen_result x = {0};
    T_EQ_INT(ht_gen_state(g), HT_GEN_PROMPT);
    T_EQ_INT(ht_gen_prompt_left(g), r.n);
    T_ERR(ht_gen_new(&second, s, r.ids, r.n, &r.p, &err), HT_EBUSY, err, "in a generation");
    T_ERR(ht_session_generate(s, r.ids, r.n, &r.p, &x, &err), HT_EBUSY, err, "in a generation");
    T_ERR(ht_session_truncate(s, 0, &err), HT_EBUSY, err, "in a generation");
    T_ERR(ht_engine_step(other, &g, 1, 0, NULL, &err), HT_EARG, err, "not one of this engine");
    T_ERR(ht_engine_step(e, twice, 2, 0, NULL, &err), HT_EARG, err, "twice");
    T_ERR(ht_gen_take(g, &x, &err), HT_EARG, err, "not done yet");
    while (ht_gen_state(g) != HT_GEN_DONE) T_OK(ht_engine_step(e, &g, 1, 0, NULL, &err), err);
    T_OK(ht_gen_take(g, &x, &err), err);
    ht_gen_result_done(&x);
    T_ERR(ht_gen_take(g, &x, &err), HT_EARG, err, "already");
    ht_gen_free(g);
    g = gen(s, &r); /* freed in the middle: the session can be used again */
    ht_gen_free(g);
    T_OK(ht_session_generate(s, r.ids, r.n, &r.p, &x, &err), err);
    ht_gen_result_done(&x);
    ht_session_free(s);
    ht_engine_close(e);
    ht_engine_close(other);
}
