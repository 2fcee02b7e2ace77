/* quality.c - hetero quality: is a candidate (other arithmetic, cache types, engine, instruction
 * set, threads, or another file) as good as the reference on the user's model? Judged by the
 * policy's quality gate; speed is not looked at. Exit status 6 when the gate fails. */
#include "cli/subject.h"
#include "cli/suite.h"
#include "core/map.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int cli__policy(cli__ctx *c, ht_arena *a, ht_policy *p, const char **text, size_t *n, ht_err *e)
{
    const char *file = ht_opt_str(c->o, HT_OPT_POLICY);
    char *got = NULL;
    *text = ht_policy_default;
    *n = strlen(ht_policy_default);
    if (file) {
        HT_TRY(ht_file_read(file, 1 << 20, &got, n, e));
        *text = ht_arena_strndup(a, got, *n);
        ht_mem_free(got);
        if (!*text) return HT_FAIL(e, HT_ENOMEM, "policy: out of memory");
    }
    return ht_policy_parse(a, *text, *n, p, e);
}

int cli__suite_options(cli__ctx *c, cli__suite *s, ht_err *e)
{
    int64_t seed = ht_opt_int(c->o, HT_OPT_SEED), n = ht_opt_int(c->o, HT_OPT_PREDICT);
    *s = (cli__suite){
        .prompts = ht_opt_str(c->o, HT_OPT_FILE),
        .text = ht_opt_str(c->o, HT_OPT_TEXT),
        .items = (size_t)ht_opt_int(c->o, HT_OPT_ITEMS),
        .tasks = (size_t)ht_opt_int(c->o, HT_OPT_TASKS),
        .chunks = ht_opt_given(c->o, HT_OPT_CHUNKS) ? (size_t)ht_opt_int(c->o, HT_OPT_CHUNKS) : 8,
        .n_new = n > 0 ? (uint32_t)n : 256,
        .ctx = 512,
        .seed = seed >= 0 ? (uint64_t)seed : 1};
    if (!s->prompts)
        return HT_FAIL(
            e, HT_EARG,
            "no corpus: give a file of JSON lines {\"prompt\":text,\"response\":text} with "
            "-f, and --text FILE for divergence and perplexity");
    return 0;
}

/* ---- the command ---- */

typedef struct {
    cli__ctx *c;
    ht_arena *arena;
    ht_engine *ref, *cand;
    ht_quality q;
    ht_policy policy;
    const char *spec, *dir; /* dir: of -o, or NULL */
} work;

static int put_file(const char *dir, const char *name, const void *data, size_t n, ht_err *e)
{
    char path[CLI_PATH];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return HT_FAIL(e, HT_EARG, "%s: the path is too long", dir);
    for (char *p = path + strlen(dir) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return HT_FAIL(e, HT_EIO, "%s: %s", path, strerror(errno));
        *p = '/';
    }
    return cli__write_file(path, data, n, e);
}

/* The files a bundle keeps, for whoever wants to recount. */
static int write_files(work *w, ht_err *e)
{
    static const char *const name[3] = {"prompts.jsonl", "ref.jsonl", "cand.jsonl"};
    const char *dir = w->dir;
    if (!dir) return 0;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return HT_FAIL(e, HT_EIO, "%s: %s", dir, strerror(errno));
    for (int k = 0; k < 3; k++) HT_TRY(put_file(dir, name[k], w->q.file[k].p, w->q.file[k].n, e));
    return 0;
}

static int out_report(work *w, int *status, ht_err *e)
{
    ht_buf b;
    ht_jw j;
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    ht_jw_obj(&j);
    ht_jw_kstr(&j, "model", w->c->model);
    ht_jw_kstr(&j, "candidate", w->spec);
    ht_jw_key(&j, "quality");
    int rc = ht_quality_report(&w->q, &w->policy, &j, e);
    ht_jw_end(&j, '}');
    if (!rc) rc = ht_buf_ok(&b, "report", e);
    if (!rc) rc = cli__out_doc(w->c, b.p, e);
    ht_buf_done(&b);
    const char *why = ht_quality_gate(&w->policy, &w->q.n);
    if (!rc && why) {
        cli__say(w->c, CLI_ERROR, "hetero quality: the gate of policy %s fails: %s", w->policy.id,
                 why);
        *status = CLI_GATE;
    }
    return rc;
}

static int run(work *w, int *status, ht_err *e)
{
    cli__ctx *c = w->c;
    cli__suite suite;
    ht_engine_params p;
    const char *text;
    size_t n;
    HT_TRY(cli__suite_options(c, &suite, e));
    HT_TRY(cli__policy(c, w->arena, &w->policy, &text, &n, e));
    w->spec = ht_opt_str(c->o, HT_OPT_CANDIDATE);
    if (!w->spec)
        return HT_FAIL(e, HT_EARG, "no candidate: say in what it differs, e.g. --candidate act=q8");
    HT_TRY(cli__model(c, true, e));
    if (ht_opt_given(c->o, HT_OPT_OUT)) HT_TRY(cli__out_dir(c, NULL, &w->dir, e));
    HT_TRY(cli__engine_open(c, 0, &w->ref, e));
    cli__engine_params(c, 0, &p);
    HT_TRY(cli__arm(w->arena, w->spec, &p, e));
    HT_TRY(ht_engine_open(&w->cand, &p, e));
    if (suite.ctx > ht_engine_ctx(w->ref)) suite.ctx = ht_engine_ctx(w->ref);
    cli__watch(NULL);
    HT_TRY(cli__suite_run(c, &suite, w->ref, w->cand, &w->q, e));
    HT_TRY(write_files(w, e));
    return out_report(w, status, e);
}

int cli__quality(cli__ctx *c, ht_err *e)
{
    work w = {.c = c};
    int status = 0;
    ht_quality_init(&w.q);
    HT_TRY(ht_arena_new(&w.arena, 0, e));
    int rc = run(&w, &status, e);
    ht_quality_done(&w.q);
    if (w.cand) ht_engine_close(w.cand);
    if (w.ref) ht_engine_close(w.ref);
    ht_arena_free(w.arena);
    return rc ? rc : status;
}
