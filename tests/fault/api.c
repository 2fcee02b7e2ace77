/* api.c - the n-th allocation fails, for every n, on the way from a file to generated text: load,
 * plan and generate. Each failure must be an error with a message, and leave nothing behind: as
 * many allocations live as before, and the next attempt, without a failure, gives the same. */
#include "core/arena.h"
#include "hetero.h"
#include "test.h"
#include <sys/stat.h>

#define TALE "models/tale-9m-f16.gguf"
enum { N_PROMPT = 5, N_NEW = 3 };
static const int32_t prompt[N_PROMPT] = {1, 30, 59, 88, 117};

/* A tiny model where there is one, else the embedded one. */
static const char *model(void)
{
    static const char own[] = "tests/data/golden/arch/llama/model.gguf";
    struct stat st;
    return stat(own, &st) ? TALE : own;
}

/* Open, generate, close. *ids: what was generated. */
static int whole_way(int32_t ids[N_NEW], ht_err *err)
{
    ht_engine *e = NULL;
    ht_session *s = NULL;
    ht_gen_result r = {0};
    ht_sampling g;
    char *json = NULL;
    static const char *const stop[] = {"\x01never"};
    const ht_engine_params p = {.model = model(), .ctx = 64, .threads = 1};
    ht_sampling_init(&g);
    g.temp = 0;
    g.dry_multiplier = 0.5F; /* so that its breakers are tokenised too */
    const ht_gen_params gp = {
        .max_new = N_NEW, .sampling = &g, .ignore_eos = 1, .stop = stop, .n_stop = 1};
    int rc = ht_engine_open(&e, &p, err);
    if (!rc) rc = ht_session_new(&s, e, err);
    if (!rc) rc = ht_session_generate(s, prompt, N_PROMPT, &gp, &r, err);
    if (!rc) rc = ht_session_receipt(s, &json, err);
    if (!rc) memcpy(ids, r.ids, N_NEW * sizeof *ids);
    ht_free(json);
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_engine_close(e);
    return rc;
}

/* Walk job over n = first, first + step, ... until it succeeds. */
static void walk(int (*job)(int32_t *, ht_err *), uint64_t step)
{
    int32_t want[N_NEW] = {0}, got[N_NEW];
    ht_err err = {0};
    T_OK(job(want, &err), err); /* the first run sets up what the C library keeps */
    const uint64_t a0 = ht_alloc_count();
    T_OK(job(want, &err), err);
    const uint64_t total = ht_alloc_count() - a0;
    T_CHECK(total > 50, "only %llu allocations", (unsigned long long)total);
    const uint64_t live = ht_alloc_live();
    for (uint64_t n = 1; n <= total; n += n < 200 ? 1 : step) {
        err = (ht_err){0};
        ht_alloc_fail_at(n);
        const int rc = job(got, &err);
        ht_alloc_fail_at(0);
        /* Advice that needs memory may be skipped without harm; the result is then the same. */
        if (!rc) {
            T_EQ_MEM(got, want, sizeof got);
        } else {
            T_CHECK(rc == HT_ENOMEM, "allocation %llu of %llu: code %d: %s", (unsigned long long)n,
                    (unsigned long long)total, rc, err.msg);
            T_CHECK(err.code == rc && err.msg[0], "allocation %llu: no message",
                    (unsigned long long)n);
        }
        T_CHECK(ht_alloc_live() == live, "allocation %llu of %llu left %llu behind (%s)",
                (unsigned long long)n, (unsigned long long)total,
                (unsigned long long)(ht_alloc_live() - live), err.msg);
    }
    T_OK(job(got, &err), err);
    T_EQ_MEM(got, want, sizeof got);
}

/* The short tier takes every allocation up to 200 and then every 37th; the full tier all. */
T_CASE_SECONDS(fault, load_plan_generate, 600)
{
    walk(whole_way, t_full() ? 1 : 37);
}

/* A session whose generation failed for memory goes on afterwards. */
T_CASE_SECONDS(fault, session_survives, 240)
{
    ht_engine *e = NULL;
    ht_session *s = NULL;
    ht_err err = {0};
    ht_sampling g;
    ht_sampling_init(&g);
    g.temp = 0;
    const ht_engine_params p = {.model = model(), .ctx = 64, .threads = 1};
    const ht_gen_params gp = {.max_new = N_NEW, .sampling = &g, .ignore_eos = 1};
    ht_gen_result want = {0};
    T_OK(ht_engine_open(&e, &p, &err), err);
    T_OK(ht_session_new(&s, e, &err), err);
    T_OK(ht_session_generate(s, prompt, N_PROMPT, &gp, &want, &err), err);
    const uint64_t a0 = ht_alloc_count();
    ht_gen_result r = {0};
    T_OK(ht_session_generate(s, prompt, N_PROMPT, &gp, &r, &err), err);
    const uint64_t total = ht_alloc_count() - a0;
    ht_gen_result_done(&r);
    for (uint64_t n = 1; n <= total; n++) {
        ht_alloc_fail_at(n);
        const int rc = ht_session_generate(s, prompt, N_PROMPT, &gp, &r, &err);
        ht_alloc_fail_at(0);
        T_CHECK(rc == HT_ENOMEM, "allocation %llu: code %d", (unsigned long long)n, rc);
        T_TRUE(!r.text && !r.ids);
        T_OK(ht_session_generate(s, prompt, N_PROMPT, &gp, &r, &err), err);
        T_EQ_INT(r.n_ids, N_NEW);
        T_EQ_MEM(r.ids, want.ids, N_NEW * sizeof *r.ids);
        ht_gen_result_done(&r);
    }
    ht_gen_result_done(&want);
    ht_session_free(s);
    ht_engine_close(e);
}

/* Decoding itself allocates nothing: a generation's count does not grow with its length. */
T_CASE_SECONDS(fault, steps_do_not_allocate, 120)
{
    ht_engine *e = NULL;
    ht_session *s = NULL;
    ht_err err = {0};
    ht_sampling g;
    ht_sampling_init(&g);
    g.temp = 0;
    const ht_engine_params p = {.model = TALE, .ctx = 256, .threads = 1};
    T_OK(ht_engine_open(&e, &p, &err), err);
    T_OK(ht_session_new(&s, e, &err), err);
    uint64_t count[2];
    for (int i = 0; i < 3; i++) { /* once to make plans, then shorter and longer */
        const ht_gen_params gp = {.max_new = i == 2 ? 180 : 90, .sampling = &g, .ignore_eos = 1};
        ht_gen_result r = {0};
        const uint64_t a0 = ht_alloc_count();
        T_OK(ht_session_generate(s, prompt, N_PROMPT, &gp, &r, &err), err);
        if (i) count[i - 1] = ht_alloc_count() - a0;
        ht_gen_result_done(&r);
    }
    /* Only the text buffer grows, by factors; the embedded model writes well-formed text. */
    T_CHECK(count[1] <= count[0] + 4, "90 tokens: %llu allocations, 180 tokens: %llu",
            (unsigned long long)count[0], (unsigned long long)count[1]);
    ht_session_free(s);
    ht_engine_close(e);
}
