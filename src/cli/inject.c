/* inject.c - hetero bench --inject P: what a prompt of P tokens does to the time per token of an
 * answer that is being written (product.md R8). Three ways: the answer alone; serialised, as the
 * server does while no scheduler is promoted: a piece of the prompt in a pass of its own, then
 * a step of the answer; together: both in one pass, which is what OVERLAP_UNMANAGED refuses. The
 * answer's tokens must be the same each time. */
#include "cli/inject.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/rng.h"
#include <string.h>

enum { ALONE, SERIALISED, TOGETHER, WAYS, DEPTH = 32, TOKENS = 64, AT = TOKENS / 4 };
static const char *const way_names[WAYS] = {"alone", "serialised", "together"};

typedef struct {
    double tpot_ns, worst_ns, prompt_ns; /* means over the repetitions; worst: longest gap        */
    uint32_t passes;                     /* that held rows of the prompt, of the last repetition  */
} figures;
typedef struct {
    cli__ctx *c;
    ht_engine *engine;
    ht_session *answer, *other;
    int32_t *ids, first[TOKENS]; /* ids: [DEPTH + n_inject]                                     */
    uint32_t n_inject, reps;
    bool same, known;
    figures way[WAYS];
} work;

static int new_gen(ht_session *s, const int32_t *ids, uint32_t n, uint32_t max_new, ht_gen **out,
                   ht_err *e)
{
    ht_sampling greedy;
    ht_sampling_init(&greedy);
    greedy.temp = 0;
    const ht_gen_params p = {.max_new = max_new, .sampling = &greedy, .ignore_eos = 1};
    HT_TRY(ht_session_truncate(s, 0, e));
    return ht_gen_new(out, s, ids, n, &p, e);
}

/* The tokens are those of the first run of all. */
static int keep_tokens(work *w, ht_gen *gen, ht_err *e)
{
    ht_gen_result r = {0};
    HT_TRY(ht_gen_take(gen, &r, e));
    const bool whole = r.n_ids == TOKENS;
    if (whole && !w->known) memcpy(w->first, r.ids, sizeof w->first);
    w->same = w->same && whole && memcmp(w->first, r.ids, sizeof w->first) == 0;
    w->known = w->known || whole;
    ht_gen_result_done(&r);
    return 0;
}

/* One step of the answer, and in between or with it a piece of the prompt that still waits. */
static int step(work *w, int way, ht_gen *answer, ht_gen *prompt, figures *f, ht_err *e)
{
    ht_step_info info = {0};
    const bool waits = prompt && ht_gen_state(prompt) == HT_GEN_PROMPT;
    ht_gen *const both[2] = {answer, prompt};
    if (waits) f->passes++;
    if (waits && way == TOGETHER) return ht_engine_step(w->engine, both, 2, 0, &info, e);
    if (waits) HT_TRY(ht_engine_step(w->engine, &both[1], 1, 0, &info, e));
    return ht_engine_step(w->engine, both, 1, 0, &info, e);
}

static int run_way(work *w, int way, ht_err *e)
{
    ht_gen *answer = NULL, *prompt = NULL;
    figures f = {0};
    uint64_t arrived = 0, start = 0, last = 0;
    int rc = new_gen(w->answer, w->ids, DEPTH, TOKENS, &answer, e);
    while (!rc && ht_gen_state(answer) == HT_GEN_PROMPT)
        rc = ht_engine_step(w->engine, &answer, 1, 0, NULL, e);
    start = last = ht_now_ns();
    for (uint32_t k = 1; !rc && ht_gen_state(answer) == HT_GEN_DECODE; k++) {
        if (k == AT && way != ALONE) {
            arrived = ht_now_ns();
            rc = new_gen(w->other, w->ids + DEPTH, w->n_inject, 1, &prompt, e);
        }
        if (!rc) rc = step(w, way, answer, prompt, &f, e);
        const uint64_t t = ht_now_ns();
        if ((double)(t - last) > f.worst_ns) f.worst_ns = (double)(t - last);
        if (prompt && f.prompt_ns <= 0 && ht_gen_state(prompt) != HT_GEN_PROMPT)
            f.prompt_ns = (double)(t - arrived);
        last = t;
    }
    f.tpot_ns = (double)(last - start) / (TOKENS - 1);
    if (!rc) rc = keep_tokens(w, answer, e);
    ht_gen_free(answer);
    ht_gen_free(prompt);
    HT_TRY(rc);
    w->way[way].tpot_ns += f.tpot_ns / w->reps;
    w->way[way].worst_ns += f.worst_ns / w->reps;
    w->way[way].prompt_ns += f.prompt_ns / w->reps;
    w->way[way].passes = f.passes;
    return 0;
}

static double change_percent(const work *w, int way)
{
    return (w->way[way].tpot_ns / w->way[ALONE].tpot_ns - 1) * 100;
}

static int report(work *w, ht_err *e)
{
    ht_buf b;
    ht_jw j;
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    if (w->c->json) {
        ht_jw_obj(&j);
        ht_jw_kuint(&j, "answerTokens", TOKENS);
        ht_jw_kuint(&j, "depth", DEPTH);
        ht_jw_kuint(&j, "injectedTokens", w->n_inject);
        ht_jw_kuint(&j, "repetitions", w->reps);
        ht_jw_kbool(&j, "sameTokens", w->same);
        ht_jw_key(&j, "ways");
        ht_jw_arr(&j);
    } else {
        ht_buf_str(&b, "| way | ms/token | change | longest gap, ms | prompt done after, ms |\n"
                       "| --- | ---: | ---: | ---: | ---: |\n");
    }
    for (int k = 0; k < WAYS; k++) {
        const figures *f = &w->way[k];
        if (!w->c->json) {
            ht_buf_fmt(&b, "| %s | %.2f | %+.1f %% | %.2f | %.2f |\n", way_names[k],
                       f->tpot_ns / 1e6, change_percent(w, k), f->worst_ns / 1e6,
                       f->prompt_ns / 1e6);
            continue;
        }
        ht_jw_obj(&j);
        ht_jw_kreal(&j, "changePercent", change_percent(w, k));
        ht_jw_kreal(&j, "longestGapNs", f->worst_ns);
        ht_jw_kreal(&j, "promptNs", f->prompt_ns);
        ht_jw_kuint(&j, "promptPasses", f->passes);
        ht_jw_kreal(&j, "tpotNs", f->tpot_ns);
        ht_jw_kstr(&j, "way", way_names[k]);
        ht_jw_end(&j, '}');
    }
    if (w->c->json) {
        ht_jw_end(&j, ']');
        ht_jw_end(&j, '}');
    }
    int rc = ht_buf_ok(&b, "benchmark", e);
    if (!rc) rc = w->c->json ? cli__out_json(b.p, b.n, e) : cli__out(b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}

static int open_engine(work *w, ht_err *e)
{
    ht_engine_params p;
    HT_TRY(cli__model(w->c, true, e));
    cli__engine_params(w->c, DEPTH + TOKENS + w->n_inject + 1, &p);
    p.max_sessions = 2;
    HT_TRY(ht_engine_open(&w->engine, &p, e));
    if (ht_engine_ctx(w->engine) < w->n_inject + 1)
        return HT_FAIL(e, HT_EFULL, "--inject %u: the context has %u positions; set -c",
                       w->n_inject, ht_engine_ctx(w->engine));
    const double n_vocab = ht_vocab_size(ht_engine_vocab(w->engine));
    w->ids = ht_mem_array(DEPTH + w->n_inject, sizeof *w->ids);
    if (!w->ids) return HT_FAIL(e, HT_ENOMEM, "bench: out of memory");
    for (uint32_t i = 0; i < DEPTH + w->n_inject; i++)
        w->ids[i] = (int32_t)(ht_uniform(1, i, 0) * n_vocab);
    HT_TRY(ht_session_new(&w->answer, w->engine, e));
    return ht_session_new(&w->other, w->engine, e);
}

static int run(work *w, ht_err *e)
{
    char *checks = NULL;
    HT_TRY(open_engine(w, e));
    cli__watch(NULL); /* Ctrl-C reaches the check through its progress */
    int rc = ht_engine_qualify_reference(w->engine, cli__progress, w->c, &checks, e);
    ht_free(checks);
    for (uint32_t r = 0; !rc && r < w->reps; r++)
        for (int way = 0; !rc && way < WAYS; way++) {
            rc = run_way(w, way, e);
            if (!rc && cli__progress(w->c, way_names[way], r + 1, w->reps))
                rc = HT_FAIL(e, HT_ECANCELLED, "cancelled in %s", way_names[way]);
        }
    cli__progress_end(w->c);
    HT_TRY(rc);
    HT_TRY(report(w, e));
    if (w->same) return 0;
    return HT_FAIL(e, HT_EGATE, "the answer is another one when a prompt is beside it");
}

int cli__inject(cli__ctx *c, ht_err *e)
{
    work w = {.c = c,
              .n_inject = (uint32_t)ht_opt_int(c->o, HT_OPT_INJECT),
              .reps = (uint32_t)ht_opt_int(c->o, HT_OPT_REPS),
              .same = true};
    int rc = run(&w, e);
    ht_session_free(w.other);
    ht_session_free(w.answer);
    if (w.engine) ht_engine_close(w.engine);
    ht_mem_free(w.ids);
    return rc;
}
