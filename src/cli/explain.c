/* explain.c - hetero explain: the plan of each phase. */
#include "cli/cli.h"

int cli__explain(cli__ctx *c, ht_err *e)
{
    uint32_t n_prompt = (uint32_t)ht_opt_int(c->o, HT_OPT_EXPLAIN_P);
    uint32_t depth = (uint32_t)ht_opt_int(c->o, HT_OPT_EXPLAIN_D);
    ht_engine *engine;
    char *json = NULL;
    HT_TRY(cli__model(c, true, e));
    HT_TRY(cli__engine_open(c, n_prompt > depth ? n_prompt : depth + 1, &engine, e));
    int rc = ht_opt_given(c->o, HT_OPT_PRINT_CONFIG)
                 ? cli__print_config(c, engine, NULL, e)
                 : ht_engine_explain(engine, n_prompt, depth, &json, e);
    if (!rc && json) rc = cli__out_doc(c, json, e);
    ht_free(json);
    ht_engine_close(engine);
    return rc;
}
