/* inspect.c - hetero inspect: what a model file holds and what memory it needs. */
#include "cli/cli.h"

int cli__inspect(cli__ctx *c, ht_err *e)
{
    char *json = NULL;
    HT_TRY(cli__model(c, false, e));
    const ht_inspect_params p = {.ctx = (uint32_t)ht_opt_int(c->o, HT_OPT_CTX),
                                 .ctk = ht_opt_str(c->o, HT_OPT_CTK),
                                 .ctv = ht_opt_str(c->o, HT_OPT_CTV),
                                 .tensors = ht_opt_on(c->o, HT_OPT_TENSORS),
                                 .verify = ht_opt_on(c->o, HT_OPT_VERIFY)};
    HT_TRY(ht_inspect(c->model, &p, &json, e));
    int rc = cli__out_doc(c, json, e);
    ht_free(json);
    return rc;
}
