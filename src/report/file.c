/* file.c - one document: which page is it? */
#include "report/priv.h"
#include <string.h>

static int choose(ht_arena *a, const char *text, size_t n, const char *name, ht_buf *html,
                  ht_err *e)
{
    ht_json *j;
    HT_TRY(ht_json_parse(a, text, n, 0, name, &j, e));
    const char *schema = report__str(j, "schema", NULL);
    if (schema && (!strcmp(schema, "hetero/bench/1") || !strcmp(schema, "hetero/bench/2")))
        return report__bench(a, j, name, html, e);
    if (schema && strcmp(schema, "hetero/sim/1") == 0) return report__sim(a, j, name, html, e);
    if (!schema && report__list(j, "rows") && ht_json_get(j, "machine"))
        return report__bench_rows(a, j, name, html, e);
    return HT_FAIL(
        e, HT_EFORMAT,
        "UNKNOWN_TYPE: %.80s has schema %.60s; a report is made from a bundle's folder, a "
        "hetero/bench/2, the output of hetero bench --json, or a hetero/sim/1",
        name, schema ? schema : "none");
}

int ht_report_file(const char *text, size_t n, const char *name, ht_buf *html, ht_err *e)
{
    ht_arena *a;
    HT_TRY(ht_arena_new(&a, (size_t)1 << 30, e));
    int rc = choose(a, text, n, name, html, e);
    ht_arena_free(a);
    return rc ? rc : ht_buf_ok(html, "report", e);
}
