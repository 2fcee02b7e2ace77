/* report.c - hetero report: one HTML file from a bundle, a benchmark or a simulation. */
#include "report/report.h"
#include "cli/cli.h"
#include "core/map.h"
#include "evid/compare.h"
#include "evid/sched.h"
#include <string.h>
#include <sys/stat.h>

static int make(const char *from, ht_buf *html, ht_err *e)
{
    struct stat st;
    const char *slash = strrchr(from, '/');
    char *text;
    size_t n;
    if (stat(from, &st) == 0 && S_ISDIR(st.st_mode)) {
        if (ht_is_comparison(from)) return ht_report_comparison(from, html, e);
        if (ht_is_schedule(from)) return ht_report_schedule(from, html, e);
        return ht_report_bundle(from, html, e);
    }
    HT_TRY(ht_file_read(from, CLI_JSON_MAX, &text, &n, e));
    int rc = ht_report_file(text, n, slash ? slash + 1 : from, html, e);
    ht_mem_free(text);
    return rc;
}

int cli__report(cli__ctx *c, ht_err *e)
{
    const char *path = ht_opt_str(c->o, HT_OPT_OUT);
    ht_buf html;
    if (!path) return HT_FAIL(e, HT_EARG, "say with -o FILE.html where the report goes");
    ht_buf_init(&html, 0);
    int rc = make(ht_opts_arg(c->o, 0), &html, e);
    if (!rc) rc = cli__write_file(path, html.p, html.n, e);
    size_t n = html.n;
    ht_buf_done(&html);
    if (rc) return rc;
    if (c->json) {
        ht_buf b;
        ht_jw w;
        ht_buf_init(&b, 0);
        ht_jw_init(&w, &b, 0);
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "file", path);
        ht_jw_kuint(&w, "bytes", n);
        ht_jw_end(&w, '}');
        rc = ht_buf_ok(&b, "result", e);
        if (!rc) rc = cli__out_json(b.p, b.n, e);
        ht_buf_done(&b);
        return rc;
    }
    cli__say(c, CLI_INFO, "wrote %s (%zu bytes)", path, n);
    return 0;
}
