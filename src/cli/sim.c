/* sim.c - hetero sim: the four quarantined simulations. The only file that may include
 * evid/sim/. */
#include "evid/sim/sim.h"
#include "cli/cli.h"
#include "core/map.h"
#include <string.h>

/* The record as a signed envelope. */
static int sign(cli__ctx *c, const ht_buf *record, ht_buf *out, ht_err *e)
{
    const char *root = ht_opt_str(c->o, HT_OPT_TRUST);
    ht_arena *a;
    ht_key *key = NULL;
    ht_trust trust;
    char *text = NULL;
    size_t n;
    if (!root)
        return HT_FAIL(e, HT_EARG,
                       "--sign needs --trust FILE: the trust root that gives the key the role "
                       "simulate");
    HT_TRY(ht_arena_new(&a, 1 << 26, e));
    int rc = ht_file_read(root, 1 << 20, &text, &n, e);
    if (!rc) rc = ht_trust_parse(a, text, n, &trust, e);
    if (!rc) rc = ht_key_load(&key, ht_opt_str(c->o, HT_OPT_SIGN), e);
    if (!rc) rc = ht_sim_sign(record->p, record->n, key, &trust, out, e);
    ht_key_free(key);
    ht_mem_free(text);
    ht_arena_free(a);
    return rc;
}

static int deliver(cli__ctx *c, const ht_buf *record, ht_err *e)
{
    const char *path = ht_opt_str(c->o, HT_OPT_OUT);
    ht_buf env;
    if (!ht_opt_given(c->o, HT_OPT_SIGN)) {
        if (path) HT_TRY(cli__write_file(path, record->p, record->n, e));
        return cli__out_doc(c, record->p, e);
    }
    if (!path)
        return HT_FAIL(e, HT_EARG, "--sign makes an envelope: say with -o FILE where it goes");
    ht_buf_init(&env, 0);
    int rc = sign(c, record, &env, e);
    if (!rc) rc = cli__write_file(path, env.p, env.n, e);
    ht_buf_done(&env);
    return rc ? rc : cli__out_doc(c, record->p, e);
}

int cli__sim(cli__ctx *c, ht_err *e)
{
    const char *name = ht_opts_arg(c->o, 0), *inputs = ht_opt_str(c->o, HT_OPT_IN);
    int64_t seed = ht_opt_int(c->o, HT_OPT_SEED);
    int kind = ht_sim_by_name(name);
    char *text = NULL;
    size_t n = 0;
    ht_buf record;
    if (kind < 0)
        return HT_FAIL(e, HT_EARG,
                       "there is no simulation \"%.40s\"; there are drafter, residency, mla, dag",
                       name);
    if (inputs) HT_TRY(ht_file_read(inputs, 1 << 20, &text, &n, e));
    ht_buf_init(&record, 0);
    int rc = ht_sim_run((enum ht_sim)kind, text, n, seed < 0 ? 1 : (uint64_t)seed, &record, e);
    if (!rc) rc = deliver(c, &record, e);
    ht_buf_done(&record);
    ht_mem_free(text);
    return rc;
}
