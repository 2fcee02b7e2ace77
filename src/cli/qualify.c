/* qualify.c - hetero qualify --reference: is the engine in force correct on this machine? */
#include "cli/cli.h"

int cli__qualify(cli__ctx *c, ht_err *e)
{
    ht_engine *engine;
    char *json = NULL;
    ht_err none;
    if (!ht_opt_on(c->o, HT_OPT_REFERENCE))
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "this build qualifies the reference engine only: add --reference");
    HT_TRY(cli__model(c, true, e));
    HT_TRY(cli__engine_open(c, 0, &engine, e));
    int rc = ht_engine_qualify_reference(engine, &json, e);
    /* A failed check is an error with its evidence: show both. */
    if (json && (rc == 0 || (rc == HT_EGATE && !c->json))) {
        int shown = cli__out_doc(c, json, rc ? &none : e);
        if (!rc) rc = shown;
    }
    ht_free(json);
    ht_engine_close(engine);
    return rc;
}
