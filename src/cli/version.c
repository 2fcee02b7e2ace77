/* version.c - hetero version and hetero help. */
#include "cli/cli.h"
#include <stdio.h>
#include <string.h>

int cli__version(cli__ctx *c, ht_err *e)
{
    char *engines;
    ht_buf b;
    ht_jw j;
    if (!c->json) {
        char line[128];
        int n = snprintf(line, sizeof line, "hetero %s\n", ht_version());
        return cli__out(line, (size_t)n, e);
    }
    HT_TRY(ht_engines_describe(&engines, e));
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    ht_jw_obj(&j);
    ht_jw_kstr(&j, "version", ht_version());
    ht_jw_kstr(&j, "compiler", __VERSION__);
    ht_jw_key(&j, "build");
    ht_jw_raw(&j, engines, strlen(engines));
    ht_jw_end(&j, '}');
    int rc = ht_buf_ok(&b, "version", e);
    if (!rc) rc = cli__out_json(b.p, b.n, e);
    ht_buf_done(&b);
    ht_free(engines);
    return rc;
}

static enum ht_shell shell_by_name(const char *name)
{
    if (strcmp(name, "bash") == 0) return HT_SHELL_BASH;
    return strcmp(name, "zsh") == 0 ? HT_SHELL_ZSH : HT_SHELL_FISH;
}

int cli__help(cli__ctx *c, ht_err *e)
{
    const char *word = ht_opts_arg(c->o, 0), *shell = ht_opt_str(c->o, HT_OPT_COMPLETION);
    bool man = ht_opt_on(c->o, HT_OPT_MAN);
    enum ht_cmd cmd = HT_CMD_HELP;
    ht_buf b;
    if (word) HT_TRY(ht_cmd_find(word, &cmd, e));
    ht_buf_init(&b, 0);
    if (shell) ht_opt_completion(&b, shell_by_name(shell));
    else if (man) ht_opt_man(&b, word ? (int)cmd : -1);
    else if (word) ht_opt_help(&b, cmd);
    else ht_opt_usage(&b);
    int rc = ht_buf_ok(&b, "help", e);
    if (!rc) rc = cli__out_text(c, b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}
