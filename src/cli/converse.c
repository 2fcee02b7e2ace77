/* converse.c - from messages to token ids through the chat template in force. */
#include "cli/cli.h"
#include <string.h>

int cli__chat_source_open(cli__ctx *c, const char *model_template, cli__chat_source *t, ht_err *e)
{
    const char *file = ht_opt_str(c->o, HT_OPT_TEMPLATE), *now = ht_opt_str(c->o, HT_OPT_NOW);
    bool has_tools = ht_opt_table[HT_OPT_TOOLS].cmds >> ht_opts_cmd(c->o) & 1;
    const char *tools = has_tools ? ht_opt_str(c->o, HT_OPT_TOOLS) : NULL;
    *t = (cli__chat_source){.kwargs = ht_opt_str(c->o, HT_OPT_KWARGS)};
    int rc = now ? cli__time(now, &t->now, e) : 0;
    if (!rc && tools) rc = cli__read_array(tools, "tools", &t->tools, e);
    if (!rc && file) {
        rc = cli__read_file(file, CLI_JSON_MAX, &t->source, &t->source_n, e);
    } else if (!rc && model_template) {
        t->source_n = strlen(model_template);
        t->source = ht_mem_alloc(t->source_n + 1);
        if (!t->source) rc = HT_FAIL(e, HT_ENOMEM, "chat template: out of memory");
        else memcpy(t->source, model_template, t->source_n + 1);
    } else if (!rc) {
        rc = HT_FAIL(
            e, HT_EUNSUPPORTED,
            "%s carries no chat template: give one with --template FILE, or use 'hetero run "
            "-p' to continue raw text",
            c->model);
    }
    if (rc) cli__chat_source_done(t);
    return rc;
}

void cli__chat_source_done(cli__chat_source *t)
{
    ht_mem_free(t->source);
    ht_mem_free(t->tools);
    *t = (cli__chat_source){0};
}

int cli__chat_ids(const cli__chat_source *t, const ht_vocab *vocab, const char *messages,
                  int32_t **ids, size_t *n, ht_err *e)
{
    const ht_chat_params p = {.messages_json = messages,
                              .tools_json = t->tools,
                              .kwargs_json = t->kwargs,
                              .now_unix = t->now};
    return ht_chat_encode(vocab, t->source, t->source_n, &p, ids, n, e);
}
