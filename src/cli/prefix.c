/* prefix.c - `hetero prefix`: what a folder of the prefix cache holds, whether it is whole, and how
 * to make it smaller; and what `run` and `chat` do with theirs. */
#include "cli/cli.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

void cli__prefix_params(const cli__ctx *c, ht_engine_params *p)
{
    const enum ht_cmd cmd = ht_opts_cmd(c->o);
    if (cmd != HT_CMD_RUN && cmd != HT_CMD_CHAT && cmd != HT_CMD_SERVE) return;
    p->prefix_dir = ht_opt_str(c->o, HT_OPT_PREFIX_CACHE);
    p->prefix_dir_bytes = (uint64_t)ht_opt_int(c->o, HT_OPT_PREFIX_CACHE_SIZE) * MIB;
}

void cli__prefix_save(cli__ctx *c, ht_engine *engine)
{
    ht_err why = {0};
    uint32_t left;
    if (!ht_opt_str(c->o, HT_OPT_PREFIX_CACHE)) return;
    if (ht_engine_prefix_save(engine, 0, &left, &why))
        cli__say(c, CLI_WARN, "warning: %s (%u pages not kept)", why.msg, left);
}

static int list(cli__ctx *c, const char *dir, int check, ht_err *e)
{
    char *json;
    HT_TRY(ht_prefix_folder_list(dir, check, &json, e));
    int rc = cli__out_doc(c, json, e);
    ht_arena *a = NULL;
    ht_json *doc = NULL;
    int64_t damaged = 0;
    if (rc == 0) rc = ht_arena_new(&a, 0, e);
    if (rc == 0) rc = ht_json_parse(a, json, strlen(json), 0, "the folder's list", &doc, e);
    if (rc == 0) rc = ht_json_i64(doc, "damaged", 0, &damaged, e);
    ht_arena_free(a);
    ht_free(json);
    if (rc || !damaged) return rc;
    /* The document above is the result; it says which. */
    cli__say(
        c, CLI_ERROR,
        "hetero prefix: %lld damaged pages in %s: they are never used, and computed again when "
        "they are wanted; hetero prefix prune makes room",
        (long long)damaged, dir);
    return CLI_GATE;
}

static int prune(cli__ctx *c, const char *dir, ht_err *e)
{
    const uint64_t mib = (uint64_t)ht_opt_int(c->o, HT_OPT_PREFIX_CACHE_SIZE);
    const int64_t days = ht_opt_given(c->o, HT_OPT_UNUSED) ? ht_opt_int(c->o, HT_OPT_UNUSED) : -1;
    uint64_t files, bytes;
    char json[96];
    HT_TRY(ht_prefix_folder_prune(dir, mib ? mib * MIB : UINT64_MAX, days < 0 ? -1 : days * 86400,
                                  &files, &bytes, e));
    (void)snprintf(json, sizeof json, "{\"freedBytes\":%" PRIu64 ",\"removed\":%" PRIu64 "}", bytes,
                   files);
    return cli__out_doc(c, json, e);
}

int cli__prefix(cli__ctx *c, ht_err *e)
{
    const char *action = ht_opts_arg(c->o, 0), *dir = ht_opts_arg(c->o, 1);
    if (!dir) dir = ht_opt_str(c->o, HT_OPT_PREFIX_CACHE);
    if (!dir) {
        char variable[64];
        (void)ht_opt_env_name(HT_OPT_PREFIX_CACHE, variable, sizeof variable);
        return HT_FAIL(e, HT_EARG,
                       "which folder? hetero prefix %s DIR, --prefix-cache DIR, or the variable %s",
                       action, variable);
    }
    if (!strcmp(action, "list")) return list(c, dir, 0, e);
    if (!strcmp(action, "check")) return list(c, dir, 1, e);
    if (!strcmp(action, "prune")) return prune(c, dir, e);
    return HT_FAIL(e, HT_EARG, "unknown action \"%s\": list, check or prune", action);
}
