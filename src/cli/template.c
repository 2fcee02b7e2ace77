/* template.c - hetero template: a rendered chat template, byte for byte. */
#include "cli/cli.h"
#include "core/arena.h"
#include <string.h>

typedef struct {
    char *source, *messages, *tools, *text;
    size_t source_n;
    char *bos, *eos; /* the model's token texts; NULL without a model              */
} work;

/* Token id's text, or nothing for -1. */
static int token_text(const ht_vocab *v, int32_t id, char **out, ht_err *e)
{
    size_t n;
    return ht_vocab_decode(v, &id, id >= 0, 1, out, &n, e);
}

/* What --bos and --eos leave open comes from the model's vocabulary. */
static int model_tokens(cli__ctx *c, work *w, ht_err *e)
{
    ht_vocab *v;
    HT_TRY(ht_vocab_open(&v, c->model, ht_opt_str(c->o, HT_OPT_PRE), e));
    int rc = token_text(v, ht_vocab_bos(v), &w->bos, e);
    if (!rc) rc = token_text(v, ht_vocab_eos(v), &w->eos, e);
    ht_vocab_close(v);
    return rc;
}

static int read_source(cli__ctx *c, work *w, ht_err *e)
{
    const char *file = ht_opt_str(c->o, HT_OPT_TEMPLATE);
    bool has_model = ht_opts_arg(c->o, 0) || ht_opt_given(c->o, HT_OPT_MODEL);
    if (!file && !has_model)
        return HT_FAIL(e, HT_EARG, "no template: give a model, or a template with --template FILE");
    if (has_model) {
        HT_TRY(cli__model(c, false, e));
        if (!ht_opt_given(c->o, HT_OPT_BOS) || !ht_opt_given(c->o, HT_OPT_EOS))
            HT_TRY(model_tokens(c, w, e));
    }
    if (file) return cli__read_file(file, CLI_JSON_MAX, &w->source, &w->source_n, e);
    HT_TRY(ht_chat_source(c->model, &w->source, e));
    w->source_n = strlen(w->source);
    return 0;
}

static int render(cli__ctx *c, work *w, ht_err *e)
{
    const char *messages = ht_opt_str(c->o, HT_OPT_MESSAGES),
               *tools = ht_opt_str(c->o, HT_OPT_TOOLS);
    const char *now = ht_opt_str(c->o, HT_OPT_NOW);
    size_t n;
    if (!messages)
        return HT_FAIL(e, HT_EARG,
                       "no messages: give a JSON array of {\"role\":...,\"content\":...} with "
                       "--messages FILE");
    HT_TRY(read_source(c, w, e));
    HT_TRY(cli__read_array(messages, "messages", &w->messages, e));
    if (tools) HT_TRY(cli__read_array(tools, "tools", &w->tools, e));
    const char *bos = ht_opt_str(c->o, HT_OPT_BOS), *eos = ht_opt_str(c->o, HT_OPT_EOS);
    ht_chat_params p = {.messages_json = w->messages,
                        .tools_json = w->tools,
                        .kwargs_json = ht_opt_str(c->o, HT_OPT_KWARGS),
                        .bos = bos ? bos : w->bos,
                        .eos = eos ? eos : w->eos,
                        .no_generation_prompt = ht_opt_on(c->o, HT_OPT_NO_GEN_PROMPT)};
    if (now) HT_TRY(cli__time(now, &p.now_unix, e));
    HT_TRY(ht_chat_render(w->source, w->source_n, &p, &w->text, &n, e));
    return cli__out_text(c, w->text, n, e);
}

int cli__template(cli__ctx *c, ht_err *e)
{
    work w = {0};
    int rc = render(c, &w, e);
    ht_free(w.source);
    ht_mem_free(w.messages);
    ht_mem_free(w.tools);
    ht_free(w.text);
    ht_free(w.bos);
    ht_free(w.eos);
    return rc;
}
