/* speculate.c - the n-th allocation fails in a generation that guesses ahead: an error with a
 * message or the same tokens, nothing left behind, and neither session nor engine stays busy. */
#include "core/arena.h"
#include "hetero.h"
#include "test.h"

enum { N_PROMPT = 6, N_NEW = 12 };
static const int32_t prompt[N_PROMPT] = {400, 410, 400, 410, 400, 410};

T_CASE_SECONDS(fault, guessing, 300)
{
    ht_engine *e = NULL, *d = NULL;
    ht_session *s = NULL, *draft = NULL;
    ht_err err = {0};
    ht_sampling g;
    ht_sampling_init(&g);
    const ht_engine_params p = {.model = "models/tale-9m-f16.gguf", .ctx = 64, .threads = 1};
    const ht_engine_params q = {.model = p.model, .ctx = 64, .threads = 1, .act = "q8"};
    ht_gen_result want = {0}, r = {0};
    T_OK(ht_engine_open(&e, &p, &err), err);
    T_OK(ht_engine_open(&d, &q, &err), err);
    T_OK(ht_session_new(&s, e, &err), err);
    T_OK(ht_session_new(&draft, d, &err), err);
    const ht_speculation w = {.lookup = 1, .draft = draft, .draft_max = 4, .always = 1};
    ht_gen_params gp = {.max_new = N_NEW, .sampling = &g, .ignore_eos = 1};
    T_OK(ht_session_generate(s, prompt, N_PROMPT, &gp, &want, &err), err);
    gp.speculation = &w;
    const uint64_t first = ht_alloc_live();
    bool done = false;
    /* The verification plan is made by the first attempt that gets there, and stays. */
    for (uint64_t n = 1; !done && n < 2000; n++) {
        T_OK(ht_session_truncate(s, 0, &err), err);
        ht_alloc_fail_at(n);
        const int rc = ht_session_generate(s, prompt, N_PROMPT, &gp, &r, &err);
        ht_alloc_fail_at(0);
        if (rc) {
            T_CHECK(rc == HT_ENOMEM && err.msg[0], "allocation %llu: %d", (unsigned long long)n,
                    rc);
            T_TRUE(!r.ids && !r.text);
            continue;
        }
        T_EQ_INT(r.n_ids, want.n_ids);
        T_EQ_MEM(r.ids, want.ids, want.n_ids * sizeof *want.ids);
        ht_gen_result_done(&r);
        /* A failure of the draft model alone does not fail the call; only a count that was not
         * reached ends the walk. */
        const uint64_t before = ht_alloc_count();
        T_OK(ht_session_generate(s, prompt, N_PROMPT, &gp, &r, &err), err);
        done = n > ht_alloc_count() - before + 8;
        ht_gen_result_done(&r);
    }
    T_TRUE(done);
    ht_gen_result_done(&want);
    T_TRUE(ht_alloc_live() >= first);
    ht_session_free(s);
    ht_session_free(draft);
    ht_engine_close(e);
    ht_engine_close(d);
}
