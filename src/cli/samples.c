/* samples.c - hetero run --n-samples: several completions of one prompt. The prompt is run once;
 * the others are forks that share its pages, and all are decoded in the same passes over the
 * weights. A sample is what a run of its own with that seed would give. */
#include "cli/samples.h"
#include "core/arena.h"
#include <string.h>

typedef struct {
    cli__ctx *c;
    ht_engine *engine;
    uint32_t n;
    ht_session **session; /* [n] */
    ht_gen **gen;         /* [n] */
    ht_sampling *sampling;
    ht_gen_result *result;
    char **receipt; /* [n] as kept in the log, or NULL; ht_free */
    const cli__asked *asked;
    uint32_t next; /* first that has not */
} job;

uint32_t cli__n_samples(const cli__ctx *c)
{
    return ht_opts_cmd(c->o) == HT_CMD_RUN ? (uint32_t)ht_opt_int(c->o, HT_OPT_N_SAMPLES) : 1;
}

void cli__samples_params(const cli__ctx *c, ht_engine_params *p)
{
    const uint32_t n = cli__n_samples(c);
    if (n < 2) return;
    p->max_sessions = n;
}

static int begin(job *j, uint32_t i, const int32_t *ids, size_t n_ids, const ht_gen_params *like,
                 ht_err *e)
{
    ht_gen_params p = *like;
    j->sampling[i] = *like->sampling;
    j->sampling[i].seed += i;
    p.sampling = &j->sampling[i];
    p.on_token = NULL;
    return ht_gen_new(&j->gen[i], j->session[i], ids, n_ids, &p, e);
}

/* One step of those there are; Ctrl-C ends them all with what they have. */
static int step(job *j, uint32_t n, bool *busy, ht_err *e)
{
    if (cli__interrupted())
        for (uint32_t i = 0; i < n; i++) ht_cancel(j->session[i]);
    HT_TRY(ht_engine_step(j->engine, j->gen, n, 0, NULL, e));
    *busy = false;
    for (uint32_t i = 0; i < n; i++) *busy = *busy || ht_gen_state(j->gen[i]) != HT_GEN_DONE;
    return 0;
}

/* In their order, each when it is complete. */
static int show(job *j, ht_err *e)
{
    for (; j->next < j->n && ht_gen_state(j->gen[j->next]) == HT_GEN_DONE; j->next++) {
        ht_gen_result *r = &j->result[j->next];
        HT_TRY(ht_gen_take(j->gen[j->next], r, e));
        (void)cli__receipts_add(j->c, j->asked->log, j->session[j->next], j->asked->request,
                                j->asked->n_request, r->text, r->len, &j->receipt[j->next]);
        if (j->c->json) continue;
        cli__say(j->c, CLI_INFO, "sample %u of %u, seed %llu, %zu tokens, finish %s", j->next + 1,
                 j->n, (unsigned long long)j->sampling[j->next].seed, r->n_ids,
                 ht_finish_name(r->finish));
        HT_TRY(cli__out(r->text ? r->text : "", r->len, e));
        if (!r->len || r->text[r->len - 1] != '\n') HT_TRY(cli__out("\n", 1, e));
        const cli__sampler with = {.s = j->sampling[j->next]};
        HT_TRY(cli__say_receipt(j->c, j->session[j->next], &with, r->finish, e));
    }
    return 0;
}

static int out_json(job *j, size_t n_ids, ht_err *e)
{
    ht_buf b;
    ht_jw w;
    int rc = 0;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "promptTokens", n_ids);
    ht_jw_key(&w, "samples");
    ht_jw_arr(&w);
    for (uint32_t i = 0; i < j->n && !rc; i++) {
        const ht_gen_result *r = &j->result[i];
        char *receipt = NULL;
        if (!j->receipt[i]) rc = ht_session_receipt(j->session[i], &receipt, e);
        if (rc) break;
        const char *shown = j->receipt[i] ? j->receipt[i] : receipt;
        ht_jw_obj(&w);
        ht_jw_key(&w, "text");
        ht_jw_strn(&w, r->text ? r->text : "", r->len);
        ht_jw_key(&w, "ids");
        ht_jw_arr(&w);
        for (size_t k = 0; k < r->n_ids; k++) ht_jw_int(&w, r->ids[k]);
        ht_jw_end(&w, ']');
        ht_jw_kstr(&w, "finish", ht_finish_name(r->finish));
        ht_jw_kuint(&w, "seed", j->sampling[i].seed);
        ht_jw_key(&w, "receipt");
        ht_jw_raw(&w, shown, strlen(shown));
        ht_jw_end(&w, '}');
        ht_free(receipt);
    }
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    if (!rc) rc = ht_buf_ok(&b, "samples", e);
    if (!rc) rc = cli__out_json(b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}

static int all(job *j, const int32_t *ids, size_t n_ids, const ht_gen_params *p, ht_err *e)
{
    bool busy = true;
    HT_TRY(ht_session_new(&j->session[0], j->engine, e));
    HT_TRY(begin(j, 0, ids, n_ids, p, e));
    while (ht_gen_state(j->gen[0]) == HT_GEN_PROMPT) HT_TRY(step(j, 1, &busy, e));
    for (uint32_t i = 1; i < j->n; i++) {
        HT_TRY(ht_session_fork(&j->session[i], j->session[0], e));
        HT_TRY(begin(j, i, ids, n_ids, p, e));
    }
    for (busy = true; busy;) {
        HT_TRY(step(j, j->n, &busy, e));
        HT_TRY(show(j, e));
    }
    cli__progress_end(j->c);
    HT_TRY(show(j, e));
    return j->c->json ? out_json(j, n_ids, e) : 0;
}

static bool cancelled(const job *j)
{
    for (uint32_t i = 0; i < j->n; i++)
        if (j->result[i].finish == HT_FINISH_CANCEL) return true;
    return false;
}

int cli__samples(cli__ctx *c, ht_engine *engine, const int32_t *ids, size_t n_ids,
                 const ht_gen_params *p, const cli__asked *asked, ht_err *e)
{
    job j = {.c = c, .engine = engine, .n = cli__n_samples(c), .asked = asked};
    if (p->constraint || (p->speculation && p->speculation->draft))
        return HT_FAIL(e, HT_EARG,
                       "--n-samples goes with neither a grammar nor a draft model: each is for one "
                       "completion at a time; run them one by one with -s");
    j.session = ht_mem_array(j.n, sizeof(ht_session *));
    j.gen = ht_mem_array(j.n, sizeof(ht_gen *));
    j.sampling = ht_mem_array(j.n, sizeof *j.sampling);
    j.result = ht_mem_array(j.n, sizeof *j.result);
    j.receipt = ht_mem_array(j.n, sizeof(char *));
    int rc = j.session && j.gen && j.sampling && j.result && j.receipt
                 ? 0
                 : HT_FAIL(e, HT_ENOMEM, "no memory for %u samples", j.n);
    if (!rc) rc = all(&j, ids, n_ids, p, e);
    if (!rc && cancelled(&j)) rc = CLI_CANCELLED;
    for (uint32_t i = 0; i < j.n; i++) {
        if (j.gen) ht_gen_free(j.gen[i]);
        if (j.result) ht_gen_result_done(&j.result[i]);
        if (j.session) ht_session_free(j.session[i]);
        if (j.receipt) ht_free(j.receipt[i]);
    }
    ht_mem_free(j.session);
    ht_mem_free(j.gen);
    ht_mem_free(j.sampling);
    ht_mem_free(j.result);
    ht_mem_free(j.receipt);
    return rc;
}
