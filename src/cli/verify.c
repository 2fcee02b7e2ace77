/* verify.c - hetero verify: is a bundle what it says? */
#include "cli/store.h"
#include "core/clock.h"
#include "core/map.h"
#include "evid/amend.h"
#include "evid/compare.h"
#include "evid/sched.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The trust root of --trust, or of the store. */
static int read_trust(cli__ctx *c, ht_arena *a, ht_trust *t, ht_err *e)
{
    char dir[CLI_PATH], *text = NULL;
    size_t n;
    const char *path = ht_opt_str(c->o, HT_OPT_TRUST);
    if (!path) {
        HT_TRY(cli__store_dir(c, dir, e));
        path = ht_arena_printf(a, "%s/trust.json", dir);
        if (!path) return HT_FAIL(e, HT_ENOMEM, "verify: no memory");
        if (access(path, F_OK) != 0)
            return HT_FAIL(e, HT_EIO,
                           "there is no %s to check signatures with; give --trust FILE, or "
                           "make a trust root with: hetero keys init",
                           path);
    }
    HT_TRY(ht_file_read(path, 1 << 20, &text, &n, e));
    int rc = ht_trust_parse(a, text, n, t, e);
    ht_mem_free(text);
    return rc;
}

static int report(cli__ctx *c, const ht_verified *v, const ht_amendment *m, ht_err *e)
{
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kbool(&w, "ok", true);
    ht_jw_kstr(&w, "bundleId", v->id);
    ht_jw_kstr(&w, "class", ht_class_names[v->analysis.cls]);
    ht_jw_kbool(&w, "hardwareEvidence", v->analysis.hardware_evidence);
    ht_jw_kbool(&w, "productionEligible", v->analysis.production_eligible);
    ht_jw_kstr(&w, "policy", v->evidence.policy.id);
    ht_jw_kstr(&w, "signedBy", v->bench_key);
    if (m) {
        ht_jw_kstr(&w, "canary", ht_canary_names[m->result]);
        ht_jw_kstr(&w, "amendmentSha256", m->sha256);
        ht_jw_kstr(&w, "stateSha256", m->state_sha);
    }
    ht_jw_key(&w, "cells");
    ht_jw_arr(&w);
    for (size_t i = 0; i < v->evidence.design.n_cells; i++) {
        const ht_cell_result *r = &v->analysis.cell[i];
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "cell", v->evidence.design.cell[i].id);
        ht_jw_kstr(&w, "class", ht_class_names[r->cls]);
        ht_jw_kuint(&w, "pairs", r->main.n);
        ht_jw_kuint(&w, "hlPpm", r->main.has_stat ? r->main.stat.hl : 0);
        ht_jw_kuint(&w, "loPpm", r->main.has_stat ? r->main.stat.lo : 0);
        ht_jw_kuint(&w, "hiPpm", r->main.has_stat ? r->main.stat.hi : 0);
        ht_jw_key(&w, "failed");
        ht_jw_arr(&w);
        for (unsigned g = 0; g < HT_GATES; g++)
            if (r->gate[g] != HT_PASS) ht_jw_str(&w, ht_gate_names[g]);
        ht_jw_end(&w, ']');
        ht_jw_key(&w, "reasons"); /* of those, in the same order */
        ht_jw_arr(&w);
        for (unsigned g = 0; g < HT_GATES; g++)
            if (r->gate[g] != HT_PASS) ht_jw_str(&w, r->why[g]);
        ht_jw_end(&w, ']');
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&b, "verification", e);
    if (rc == 0) rc = cli__out_doc(c, b.p, e);
    ht_buf_done(&b);
    return rc;
}

/* A comparison with a foreign server: its own type, never a route's evidence. */
static int verify_comparison(cli__ctx *c, ht_arena *a, const ht_trust *t, ht_err *e)
{
    ht_compared x;
    ht_buf b;
    ht_jw w;
    HT_TRY(ht_comparison_verify(a, ht_opts_arg(c->o, 0), t, ht_now_unix(), &x, e));
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kbool(&w, "ok", true);
    ht_jw_kstr(&w, "bundleId", x.id);
    ht_jw_kstr(&w, "class", cli__str(x.analysis, "verdict", "?"));
    ht_jw_kstr(&w, "identity", cli__str(x.analysis, "class", "?"));
    ht_jw_kbool(&w, "productionEligible", false);
    ht_jw_kstr(&w, "signedBy", x.bench_key);
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&b, "verification", e);
    if (rc == 0) rc = cli__out_doc(c, b.p, e);
    ht_buf_done(&b);
    return rc;
}

/* Evidence about a scheduler. */
static int verify_schedule(cli__ctx *c, ht_arena *a, const ht_trust *t, ht_err *e)
{
    ht_scheduled *x = ht_arena_alloc(a, sizeof *x);
    ht_buf b;
    ht_jw w;
    if (!x) return HT_FAIL(e, HT_ENOMEM, "verify: no memory");
    HT_TRY(ht_schedule_verify(a, ht_opts_arg(c->o, 0), t, ht_now_unix(), x, e));
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kbool(&w, "ok", true);
    ht_jw_kstr(&w, "bundleId", x->id);
    ht_jw_kstr(&w, "class", ht_class_names[x->verdict.cls]);
    ht_jw_key(&w, "gates");
    ht_jw_json(&w, ht_json_get(x->analysis, "gates"));
    ht_jw_kbool(&w, "hardwareEvidence", x->verdict.hardware_evidence);
    ht_jw_kbool(&w, "productionEligible", x->verdict.production_eligible);
    ht_jw_kstr(&w, "signedBy", x->bench_key);
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&b, "verification", e);
    if (rc == 0) rc = cli__out_doc(c, b.p, e);
    ht_buf_done(&b);
    return rc;
}

static int verify_bundle(cli__ctx *c, ht_arena *a, const ht_trust *t, ht_err *e)
{
    ht_verified v;
    ht_amendment m;
    const char *path = ht_opt_str(c->o, HT_OPT_AMENDMENT);
    char *text = NULL;
    size_t n;
    HT_TRY(ht_bundle_verify(a, ht_opts_arg(c->o, 0), t, ht_now_unix(), &v, e));
    if (!path) return report(c, &v, NULL, e);
    HT_TRY(ht_file_read(path, 16 << 20, &text, &n, e));
    int rc = ht_amendment_verify(a, text, n, t, ht_now_unix(), &v, &m, e);
    ht_mem_free(text);
    return rc ? rc : report(c, &v, &m, e);
}

int cli__verify(cli__ctx *c, ht_err *e)
{
    ht_arena *a;
    ht_trust t;
    struct stat st;
    const char *dir = ht_opts_arg(c->o, 0);
    if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
        return HT_FAIL(e, HT_EARG,
                       "%s is no folder, and a bundle is one: name the folder that holds its "
                       "statement.dsse.json",
                       dir);
    if (access(dir, R_OK | X_OK) != 0)
        return HT_FAIL(e, HT_EIO, "cannot open the folder %s: %s", dir, strerror(errno));
    HT_TRY(ht_arena_new(&a, 0, e));
    int rc = read_trust(c, a, &t, e);
    if (rc == 0)
        rc = ht_is_comparison(dir) ? verify_comparison(c, a, &t, e)
             : ht_is_schedule(dir) ? verify_schedule(c, a, &t, e)
                                   : verify_bundle(c, a, &t, e);
    ht_arena_free(a);
    return rc;
}
