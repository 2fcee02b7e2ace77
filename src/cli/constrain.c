/* constrain.c - --json-schema, --grammar and --json-mode: the grammar of one generation. */
#include "cli/cli.h"
#include "core/arena.h"
#include <string.h>

/* The option's value itself when it looks like one, else the file it names; ht_mem_free. */
static int text_of(const char *value, bool itself, char **text, size_t *n, ht_err *e)
{
    if (!itself) return cli__read_file(value, (size_t)1 << 20, text, n, e);
    *n = strlen(value);
    *text = ht_mem_alloc(*n + 1);
    if (!*text) return HT_FAIL(e, HT_ENOMEM, "no memory for a grammar of %zu bytes", *n);
    memcpy(*text, value, *n);
    return 0;
}

int cli__constrain_open(cli__ctx *c, const ht_engine *engine, cli__constraint *g, ht_err *e)
{
    const char *schema = ht_opt_str(c->o, HT_OPT_JSON_SCHEMA);
    const char *gbnf = ht_opt_str(c->o, HT_OPT_GRAMMAR);
    const bool json = ht_opt_on(c->o, HT_OPT_JSON_MODE);
    char *text = NULL;
    size_t n = 0;
    if (!schema && !gbnf && !json) return 0;
    if ((schema != NULL) + (gbnf != NULL) + json > 1)
        return HT_FAIL(e, HT_EARG,
                       "--json-schema, --grammar and --json-mode exclude each other; give one");
    if (ht_opt_on(c->o, HT_OPT_IGNORE_EOS))
        return HT_FAIL(
            e, HT_EARG,
            "--ignore-eos has no meaning under a grammar, which says where the text ends");
    const int kind = schema ? HT_GRAMMAR_SCHEMA : gbnf ? HT_GRAMMAR_GBNF : HT_GRAMMAR_JSON;
    if (schema) HT_TRY(text_of(schema, schema[0] == '{', &text, &n, e));
    if (gbnf) HT_TRY(text_of(gbnf, strstr(gbnf, "::=") != NULL, &text, &n, e));
    int rc = ht_lexicon_open(&g->lexicon, ht_engine_vocab(engine), ht_engine_n_logits(engine), e);
    if (!rc) rc = ht_grammar_open(&g->grammar, g->lexicon, kind, text, n, e);
    if (!rc) rc = ht_matcher_new(&g->matcher, g->grammar, e);
    if (!rc) {
        ht_matcher_constraint(g->matcher, &g->p);
        g->on = true;
    }
    ht_mem_free(text);
    return rc;
}

void cli__constrain_done(cli__constraint *g)
{
    ht_matcher_free(g->matcher);
    ht_grammar_close(g->grammar);
    ht_lexicon_close(g->lexicon);
    *g = (cli__constraint){0};
}

int cli__constrain_end(cli__ctx *c, cli__constraint *g, const ht_gen_result *r, ht_err *e)
{
    if (!g->on) return 0;
    const bool cut = r->finish == HT_FINISH_CANCEL || r->finish == HT_FINISH_STOP;
    if (ht_matcher_is_complete(g->matcher) && !cut)
        return ht_grammar_check(g->grammar, r->text, r->len, e);
    cli__say(c, CLI_WARN, "warning: the text ends (%s) before the grammar does",
             ht_finish_name(r->finish));
    return 0;
}
