/* main.c - the table of commands. */
#include "cli/cli.h"
#include "core/map.h"
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static cli__command *const commands[HT_CMDS] = {
    [HT_CMD_RUN] = cli__run,           [HT_CMD_CHAT] = cli__chat,
    [HT_CMD_SERVE] = cli__serve,       [HT_CMD_PACK] = cli__pack,
    [HT_CMD_INSPECT] = cli__inspect,   [HT_CMD_TOKENIZE] = cli__tokenize,
    [HT_CMD_TEMPLATE] = cli__template, [HT_CMD_EXPLAIN] = cli__explain,
    [HT_CMD_BENCH] = cli__bench,       [HT_CMD_PPL] = cli__ppl,
    [HT_CMD_LOGITS] = cli__logits,     [HT_CMD_DOCTOR] = cli__doctor,
    [HT_CMD_QUALIFY] = cli__qualify,   [HT_CMD_QUALITY] = cli__quality,
    [HT_CMD_SIM] = cli__sim,           [HT_CMD_REPORT] = cli__report,
    [HT_CMD_COMPARE] = cli__compare,   [HT_CMD_SLOT] = cli__bench_slot,
    [HT_CMD_KEYS] = cli__keys,         [HT_CMD_VERIFY] = cli__verify,
    [HT_CMD_PROMOTE] = cli__promote,   [HT_CMD_REVOKE] = cli__revoke,
    [HT_CMD_ROUTES] = cli__routes,     [HT_CMD_RECEIPTS] = cli__receipts,
    [HT_CMD_PREFIX] = cli__prefix,     [HT_CMD_KV_PROBE] = cli__kv_probe,
    [HT_CMD_VERSION] = cli__version,   [HT_CMD_HELP] = cli__help,
};

static int level_by_name(const char *name)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i <= CLI_DEBUG; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return CLI_INFO;
}

/* hetero, hetero --help, hetero --version: habits that need no command. */
static const char *command_word(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return "help";
    if (strcmp(argv[1], "--version") == 0) return "version";
    return argv[1];
}

static int help_of(cli__ctx *c, enum ht_cmd cmd, ht_err *e)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_opt_help(&b, cmd);
    int rc = ht_buf_ok(&b, "help", e);
    if (!rc) rc = cli__out_text(c, b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}

static void settle(cli__ctx *c, const ht_opts *o)
{
    c->o = o;
    c->json = ht_opt_on(o, HT_OPT_JSON);
    c->level = level_by_name(ht_opt_str(o, HT_OPT_LOG_LEVEL));
    if (ht_opt_on(o, HT_OPT_VERBOSE)) c->level = CLI_DEBUG;
    c->progress =
        c->level >= CLI_INFO && !ht_opt_on(o, HT_OPT_NO_PROGRESS) && isatty(STDERR_FILENO);
    for (size_t i = 0; ht_opts_unknown_env(o, i); i++) {
        const char *v = ht_opts_unknown_env(o, i);
        cli__say(c, CLI_WARN,
                 "warning: the environment sets %.*s, which no option reads; see 'man hetero'",
                 (int)strcspn(v, "="), v);
    }
}

static int run_command(cli__ctx *c, int argc, char **argv, ht_err *e)
{
    enum ht_cmd cmd;
    ht_opts *o = NULL;
    HT_TRY(ht_cmd_find(command_word(argc, argv), &cmd, e));
    c->cmd = ht_cmd_table[cmd].name;
    HT_TRY(ht_opts_parse(&o, cmd, argc > 2 ? argc - 2 : 0, argv + 2, e));
    settle(c, o);
    int rc = ht_opt_on(o, HT_OPT_HELP) ? help_of(c, cmd, e) : commands[cmd](c, e);
    cli__progress_end(c);
    if (rc < 0) rc = cli__fail(c, e);
    ht_opts_free(o);
    c->o = NULL;
    return rc;
}

/* A standard descriptor that the caller closed would be given to the next file that is opened, and
 * messages would go there. Reading then ends at once; writing results fails, as it should. */
static void fill_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
    cli__ctx c = {.cmd = "", .level = CLI_INFO};
    ht_err e = {0};
    fill_descriptors();
    if (ht_map_guard(&e)) return cli__fail(&c, &e);
    setlocale(LC_CTYPE,
              ""); /* for the widths of characters in line editing; numbers stay in C      */
    for (int i = 1; i < argc;
         i++) /* errors before the options are read want the right form too     */
        if (strcmp(argv[i], "--json") == 0) c.json = true;
    int rc = run_command(&c, argc, argv, &e);
    return rc < 0 ? cli__fail(&c, &e) : rc;
}
