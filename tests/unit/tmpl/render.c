/* render.c - whole templates: the published ones against Python's renderings, and more than a
 * thousand expressions and small templates against jinja2. */
#include "test.h"
#include "tmpl/tmpl.h"

enum { NOON = 1795953600 }; /* 2026-11-29T12:00:00Z, the time of the reference renderings  */

static ht_json *load(ht_arena *a, const char *path)
{
    size_t n;
    ht_err e;
    ht_json *j = NULL;
    char *text = t_slurp(path, &n);
    T_OK(ht_json_parse(a, text, n, 0, path, &j, &e), e);
    free(text);
    return j;
}

/* Parse and render; the text (to be freed with ht_buf_done) or the error. */
static int render(const char *source, size_t n, const ht_tmpl_args *args, ht_buf *out, ht_err *e)
{
    ht_tmpl *t = NULL;
    ht_arena *a = NULL;
    ht_buf_init(out, 0);
    int rc = ht_tmpl_parse(&t, source, n, e);
    if (rc) return rc;
    rc = ht_arena_new(&a, 0, e);
    if (!rc) rc = ht_tmpl_render(t, args, a, out, NULL, NULL, e);
    ht_arena_free(a);
    ht_tmpl_free(t);
    return rc;
}

static void check_golden(const ht_json *doc, const ht_json *c, size_t i)
{
    char path[256];
    size_t n;
    ht_err e = {0};
    ht_buf out;
    const ht_json *tools = ht_json_get(c, "tools"), *text = ht_json_get(c, "text");
    snprintf(path, sizeof path, "tests/data/templates/%s", ht_json_get(c, "template")->s);
    char *source = t_slurp(path, &n);
    const ht_tmpl_args args = {.messages = ht_json_get(ht_json_get(doc, "conversations"),
                                                       ht_json_get(c, "conversation")->s),
                               .tools = tools->b ? ht_json_get(doc, "tools") : NULL,
                               .kwargs = ht_json_get(c, "extra"),
                               .bos = ht_json_get(c, "bos_token")->s,
                               .eos = ht_json_get(c, "eos_token")->s,
                               .now_unix = NOON,
                               .add_generation_prompt = ht_json_get(c, "add_generation_prompt")->b};
    int rc = render(source, n, &args, &out, &e);
    if (text) {
        T_SOFT(rc == 0 && out.n == text->n && !memcmp(out.p, text->s, text->n),
               "case %zu %s: rc %d %s, got:\n%.*s\nwant:\n%s", i, path, rc, e.msg, (int)out.n,
               out.p ? out.p : "", text->s);
    } else {
        const char *want = strstr(ht_json_get(c, "error")->s, ": ") + 2;
        T_SOFT(rc == HT_EARG && !strcmp(e.msg, want), "case %zu %s: rc %d \"%s\", want \"%s\"", i,
               path, rc, e.msg, want);
    }
    ht_buf_done(&out);
    free(source);
}

T_CASE(tmpl, published_templates)
{
    ht_arena *a;
    ht_err e;
    T_OK(ht_arena_new(&a, 0, &e), e);
    const ht_json *doc = load(a, "tests/data/templates/expected.json");
    const ht_json *cases = ht_json_get(doc, "cases");
    T_EQ_INT(cases->n, 264);
    for (size_t i = 0; i < cases->n; i++) check_golden(doc, &cases->at[i], i);
    ht_arena_free(a);
}

T_CASE(tmpl, cases_of_jinja2)
{
    ht_arena *a;
    ht_err e = {0};
    ht_json *none;
    T_OK(ht_arena_new(&a, 0, &e), e);
    const ht_json *doc = load(a, "tests/data/templates/cases.json");
    const ht_json *cases = ht_json_get(doc, "cases");
    T_CHECK(cases->n >= 1000, "only %zu cases", cases->n);
    T_OK(ht_json_parse(a, "[]", 2, 0, "messages", &none, &e), e);
    const ht_tmpl_args args = {
        .messages = none, .kwargs = ht_json_get(doc, "vars"), .now_unix = NOON};
    for (size_t i = 0; i < cases->n; i++) {
        const ht_json *t = ht_json_get(&cases->at[i], "t"),
                      *text = ht_json_get(&cases->at[i], "text");
        ht_buf out;
        int rc = render(t->s, t->n, &args, &out, &e);
        if (text) {
            T_SOFT(rc == 0 && out.n == text->n && !memcmp(out.p ? out.p : "", text->s, text->n),
                   "%s\nrc %d %s, got \"%.*s\"\nwant \"%s\"", t->s, rc, rc ? e.msg : "", (int)out.n,
                   out.p ? out.p : "", text->s);
        } else {
            T_SOFT(rc == HT_EARG || rc == HT_EFORMAT || rc == HT_ENOMEM,
                   "%s\nrc %d, got \"%.*s\", want an error (%s)", t->s, rc, (int)out.n,
                   out.p ? out.p : "", ht_json_get(&cases->at[i], "error")->s);
        }
        ht_buf_done(&out);
    }
    ht_arena_free(a);
}
