/* speculate.c - guessing ahead from options: --lookup, -md, how many and where. */
#include "cli/cli.h"
#include <string.h>

enum { DRAFT_CTX = 1024 }; /* a draft model sees a view of the text; more would cost memory only */

static int open_draft(cli__ctx *c, const char *path, const ht_engine *target, cli__spec *s,
                      ht_err *e)
{
    ht_engine_params p;
    const uint32_t ctx = ht_engine_ctx(target);
    cli__engine_params(c, 0, &p);
    p.model = path;
    p.ctx = ctx < DRAFT_CTX ? ctx : DRAFT_CTX;
    p.ubatch = 0;
    p.pre_override = NULL;
    p.prefill_rep = p.decode_rep = NULL; /* names of the target's pack */
    const char *engine = ht_opt_str(c->o, HT_OPT_DRAFT_ENGINE);
    if (engine) p.prefill_engine = p.decode_engine = engine;
    if (engine && strcmp(engine, "cuda") != 0) p.cuda = NULL; /* the target's */
    if (s->p.parallel) p.threads = 1;
    if (ht_opt_given(c->o, HT_OPT_DRAFT_THREADS))
        p.threads = (int)ht_opt_int(c->o, HT_OPT_DRAFT_THREADS);
    int rc = ht_engine_open(&s->engine, &p, e);
    cli__progress_end(c);
    if (!rc) rc = ht_draft_check(target, s->engine, e);
    if (!rc) rc = ht_session_new(&s->p.draft, s->engine, e);
    return rc;
}

int cli__spec_open(cli__ctx *c, const ht_engine *target, cli__spec *s, ht_err *e)
{
    const ht_opts *o = c->o;
    const char *path = ht_opt_str(o, HT_OPT_MODEL_DRAFT);
    *s = (cli__spec){.p = {.lookup = ht_opt_on(o, HT_OPT_LOOKUP) && !ht_opt_on(o, HT_OPT_NO_LOOKUP),
                           .draft_max = (uint32_t)ht_opt_int(o, HT_OPT_DRAFT_MAX),
                           .draft_min = (uint32_t)ht_opt_int(o, HT_OPT_DRAFT_MIN),
                           .always = ht_opt_on(o, HT_OPT_DRAFT_ALWAYS),
                           .reject = !strcmp(ht_opt_str(o, HT_OPT_DRAFT_ACCEPT), "reject"),
                           .parallel = ht_opt_on(o, HT_OPT_DRAFT_PARALLEL)}};
    s->on = s->p.lookup || path;
    return path ? open_draft(c, path, target, s, e) : 0;
}

void cli__spec_done(cli__spec *s)
{
    ht_session_free(s->p.draft);
    ht_engine_close(s->engine);
    *s = (cli__spec){0};
}
