/* logits.c - hetero logits: raw logits after chosen positions, as float32 that read back the
 * same. */
#include "cli/cli.h"
#include "core/arena.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    cli__ctx *c;
    ht_engine *engine;
    ht_session *session;
    int32_t *ids;
    int64_t *at;
    uint32_t *want;
    size_t n_ids, n_at;
    ht_jw j;
    ht_buf b;
    int rc; /* of a write inside the callback                             */
    ht_err *e;
} work;

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* --at as an ascending list without doubles, which is what ht_session_eval takes. */
static int read_at(work *w, ht_err *e)
{
    const char *at = ht_opt_str(w->c->o, HT_OPT_AT);
    char last[24];
    size_t n = 0;
    snprintf(last, sizeof last, "%zu", w->n_ids - 1);
    HT_TRY(ht_parse_ints(at ? at : last, "--at", 0, (int64_t)w->n_ids - 1, &w->at, &w->n_at, e));
    qsort(w->at, w->n_at, sizeof *w->at, by_value);
    w->want = ht_mem_array(w->n_at, sizeof *w->want);
    if (!w->want) return HT_FAIL(e, HT_ENOMEM, "--at: out of memory");
    for (size_t i = 0; i < w->n_at; i++)
        if (i == 0 || w->at[i] != w->at[i - 1]) w->want[n++] = (uint32_t)w->at[i];
    w->n_at = n;
    return 0;
}

/* Rows are written as they come, so that a long list needs no more memory than one row of text. */
/* JSON has no infinity, and a sum that overflowed is no result. */
static int check_finite(const float *logits, uint32_t n_vocab, uint32_t index, ht_err *e)
{
    for (uint32_t i = 0; i < n_vocab; i++)
        if (!isfinite(logits[i]))
            return HT_FAIL(
                e, HT_EFORMAT,
                "position %u: the logit of token %u is %s; if the model overflows the F16 "
                "cache, try -ctk f32 -ctv f32",
                index, i, isnan(logits[i]) ? "not a number" : "infinite");
    return 0;
}

static int on_logits(void *user, uint32_t index, const float *logits, uint32_t n_vocab)
{
    work *w = user;
    w->rc = check_finite(logits, n_vocab, index, w->e);
    if (w->rc) return w->rc;
    if (!w->c->json) {
        for (uint32_t i = 0; i < n_vocab; i++)
            ht_buf_fmt(&w->b, "%u %u %.9g\n", index, i, (double)logits[i]);
    } else {
        if (index == w->want[0]) {
            ht_jw_kuint(&w->j, "n_vocab", n_vocab);
            ht_jw_key(&w->j, "logits");
            ht_jw_arr(&w->j);
        }
        ht_jw_obj(&w->j);
        ht_jw_kuint(&w->j, "pos", index);
        ht_jw_key(&w->j, "values");
        ht_jw_arr(&w->j);
        for (uint32_t i = 0; i < n_vocab; i++) ht_jw_f32(&w->j, logits[i]);
        ht_jw_end(&w->j, ']');
        ht_jw_end(&w->j, '}');
    }
    w->rc = ht_buf_ok(&w->b, "logits", w->e);
    if (!w->rc) w->rc = cli__out(w->b.p, w->b.n, w->e);
    ht_buf_clear(&w->b);
    return w->rc != 0 || cli__interrupted();
}

static int run(work *w, ht_err *e)
{
    cli__ctx *c = w->c;
    ht_err eval = {0};
    if (!ht_opt_str(c->o, HT_OPT_IDS))
        return HT_FAIL(e, HT_EARG,
                       "no tokens: give --ids 5,17,3 ('hetero tokenize' turns text into ids)");
    HT_TRY(cli__model(c, false, e));
    HT_TRY(cli__ids(c, 0, &w->ids, &w->n_ids, e));
    if (w->n_ids > UINT32_MAX)
        return HT_FAIL(e, HT_EARG, "--ids: %zu tokens are too many", w->n_ids);
    HT_TRY(cli__engine_open(c, cli__ctx_for(c, (uint32_t)w->n_ids, (uint32_t)w->n_ids), &w->engine,
                            e));
    if (ht_opt_given(c->o, HT_OPT_PRINT_CONFIG)) return cli__print_config(c, w->engine, NULL, e);
    ht_mem_free(
        w->ids); /* read again, now that the size of the vocabulary is known                 */
    HT_TRY(cli__ids(c, ht_vocab_size(ht_engine_vocab(w->engine)), &w->ids, &w->n_ids, e));
    HT_TRY(read_at(w, e));
    HT_TRY(ht_session_new(&w->session, w->engine, e));
    ht_jw_init(&w->j, &w->b, 0);
    if (c->json) ht_jw_obj(&w->j);
    cli__watch(w->session);
    int rc = ht_session_eval(w->session, w->ids, w->n_ids, w->want, w->n_at, on_logits, w, &eval);
    cli__watch(NULL);
    if (w->rc) return w->rc;
    if (rc) {
        *e = eval;
        return rc;
    }
    if (!c->json) return 0;
    ht_jw_end(&w->j, ']');
    ht_jw_end(&w->j, '}');
    HT_TRY(ht_buf_ok(&w->b, "logits", e));
    return cli__out_json(w->b.p, w->b.n, e);
}

int cli__logits(cli__ctx *c, ht_err *e)
{
    work w = {.c = c, .e = e};
    ht_buf_init(&w.b, 0);
    int rc = run(&w, e);
    ht_buf_done(&w.b);
    ht_session_free(w.session);
    ht_mem_free(w.ids);
    ht_mem_free(w.at);
    ht_mem_free(w.want);
    if (w.engine) ht_engine_close(w.engine);
    return rc;
}
