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
    cli__engine_settings(c, true, &p);
    if (s->p.parallel) p.threads = 1;
    if (ht_opt_given(c->o, HT_OPT_DRAFT_THREADS))
        p.threads = (int)ht_opt_int(c->o, HT_OPT_DRAFT_THREADS);
    int rc = ht_engine_open(&s->engine, &p, e);
    cli__progress_end(c);
    if (!rc) rc = ht_draft_check(target, s->engine, e);
    if (!rc) rc = ht_session_new(&s->p.draft, s->engine, e);
    return rc;
}

static bool lookup(const ht_opts *o)
{
    return ht_opt_on(o, HT_OPT_LOOKUP) && !ht_opt_on(o, HT_OPT_NO_LOOKUP);
}

static bool rejects(const ht_opts *o)
{
    return !strcmp(ht_opt_str(o, HT_OPT_DRAFT_ACCEPT), "reject");
}

int cli__spec_check(const cli__ctx *c, ht_err *e)
{
    static const struct {
        enum ht_opt id;
        bool of_lookup; /* too */
    } row[] = {{HT_OPT_DRAFT_MAX, true},       {HT_OPT_DRAFT_MIN, true},
               {HT_OPT_DRAFT_ALWAYS, true},    {HT_OPT_DRAFT_ACCEPT, false},
               {HT_OPT_DRAFT_PARALLEL, false}, {HT_OPT_DRAFT_THREADS, false},
               {HT_OPT_DRAFT_ENGINE, false}};
    const ht_opts *o = c->o;
    const bool model = ht_opt_str(o, HT_OPT_MODEL_DRAFT) != NULL;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char name[64];
        if (ht_opt_source(o, row[i].id) != HT_FROM_CLI) continue;
        if (model || (row[i].of_lookup && lookup(o))) continue;
        ht_opt_name(row[i].id, name, sizeof name);
        return HT_FAIL(e, HT_EARG,
                       "%s has no effect: nothing guesses ahead%s; add -md FILE%s, or "
                       "leave it out",
                       name, row[i].of_lookup ? "" : " with a draft model",
                       row[i].of_lookup ? " or --lookup" : "");
    }
    if (ht_opt_source(o, HT_OPT_DRAFT_MIN) == HT_FROM_CLI && ht_opt_int(o, HT_OPT_DRAFT_MIN) > 0 &&
        rejects(o))
        return HT_FAIL(e, HT_EARG,
                       "--draft-min has no effect with --draft-accept reject, whose rule needs "
                       "every guess; leave one of them out");
    return 0;
}

int cli__spec_open(cli__ctx *c, const ht_engine *target, cli__spec *s, ht_err *e)
{
    const ht_opts *o = c->o;
    const char *path = ht_opt_str(o, HT_OPT_MODEL_DRAFT);
    *s = (cli__spec){.p = {.lookup = lookup(o),
                           .draft_max = (uint32_t)ht_opt_int(o, HT_OPT_DRAFT_MAX),
                           .draft_min = (uint32_t)ht_opt_int(o, HT_OPT_DRAFT_MIN),
                           .always = ht_opt_on(o, HT_OPT_DRAFT_ALWAYS),
                           .reject = rejects(o),
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
