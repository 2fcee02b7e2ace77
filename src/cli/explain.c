/* explain.c - hetero explain: the plan of each phase; with --route what the planner would choose
 * for a request, what it costs and why the others are out. */
#include "cli/cli.h"

static int explain(cli__ctx *c, ht_engine *engine, uint32_t n_prompt, uint32_t depth, ht_err *e)
{
    char *json = NULL;
    if (ht_opt_given(c->o, HT_OPT_PRINT_CONFIG)) return cli__print_config(c, engine, NULL, e);
    int rc = ht_opt_on(c->o, HT_OPT_ROUTE)
                 ? ht_engine_explain_route(engine, n_prompt,
                                           (uint32_t)ht_opt_int(c->o, HT_OPT_ROUTE_N), 1, &json, e)
                 : ht_engine_explain(engine, n_prompt, depth, &json, e);
    if (!rc) rc = cli__out_doc(c, json, e);
    ht_free(json);
    return rc;
}

int cli__explain(cli__ctx *c, ht_err *e)
{
    const uint32_t n_prompt = (uint32_t)ht_opt_int(c->o, HT_OPT_EXPLAIN_P);
    const uint32_t depth = (uint32_t)ht_opt_int(c->o, HT_OPT_EXPLAIN_D);
    uint32_t ctx = n_prompt > depth ? n_prompt : depth + 1;
    ht_engine *engine;
    HT_TRY(cli__model(c, true, e));
    if (!ht_opt_on(c->o, HT_OPT_ROUTE) && n_prompt > UINT16_MAX)
        return HT_FAIL(
            e, HT_EARG,
            "-p %u: a plan has at most %u rows, and a longer prompt runs in pieces of -ub "
            "rows; explain one piece, with -d for what is before it",
            n_prompt, (unsigned)UINT16_MAX);
    /* A scope names the context: a route is explained at the one that run would have. */
    if (ht_opt_on(c->o, HT_OPT_ROUTE)) ctx = 0;
    else ctx = cli__ctx_for(c, ctx, n_prompt);
    HT_TRY(cli__engine_open(c, ctx, &engine, e));
    const int rc = explain(c, engine, n_prompt, depth, e);
    ht_engine_close(engine);
    return rc;
}
