/* text.c - what the command line makes of texts and documents: units, times, escapes, the form for
 * people. */
#include "cli/cli.h"
#include "core/arena.h"
#include "test.h"

static void pretty(const char *json, const char *want)
{
    ht_buf b;
    ht_err e;
    ht_buf_init(&b, 0);
    T_OK(cli__pretty(json, &b, &e), e);
    T_EQ_STR(b.p, want);
    ht_buf_done(&b);
}

T_CASE(cli, objects_are_lines_and_nested_ones_indented)
{
    pretty("{\"a\":1,\"long\":\"x\",\"o\":{\"b\":true,\"n\":null}}",
           "a     1\nlong  x\no\n  b  yes\n  n  -\n");
    pretty("{\"totalBytes\":17851392,\"n\":[1,2,3]}",
           "totalBytes  17851392 (17.0 MiB)\nn           1, 2, 3\n");
}

T_CASE(cli, arrays_of_equal_objects_are_tables)
{
    pretty("[{\"t\":\"f16\",\"n\":7},{\"t\":\"q8_0\",\"n\":123}]",
           "t       n\nf16     7\nq8_0  123\n");
    pretty("[{\"t\":\"x\"},{\"u\":\"y\"}]",
           "t  x\n\nu  y\n"); /* other keys: one below the other     */
}

T_CASE(cli, text_from_files_cannot_move_the_cursor)
{
    pretty("{\"name\":\"a\\u001b[2Jb\\nc\"}", "name  a [2Jb c\n");
}

T_CASE(cli, long_strings_are_cut_between_code_points)
{
    char json[1200] = "{\"s\":\"", *at = json + strlen(json);
    for (int i = 0; i < 300; i++, at += 2) memcpy(at, "\xc3\xa9", 2);
    strcpy(at, "\"}");
    ht_buf b;
    ht_err e;
    ht_buf_init(&b, 0);
    T_OK(cli__pretty(json, &b, &e), e);
    T_CHECK(b.n < 260 && strstr(b.p, "\xc3\xa9..."), "%zu bytes: %s", b.n, b.p);
    ht_buf_done(&b);
}

T_CASE(cli, a_broken_document_is_an_error)
{
    ht_buf b;
    ht_err e;
    ht_buf_init(&b, 0);
    T_CHECK(cli__pretty("{\"a\":", &b, &e) == HT_EFORMAT, "%s", e.msg);
    ht_buf_done(&b);
}

T_CASE(cli, bytes_have_units)
{
    char s[32];
    static const struct {
        double n;
        const char *text;
    } c[] = {
        {0, "0 B"}, {1023, "1023 B"}, {1024, "1.0 KiB"}, {17851392, "17.0 MiB"}, {3e12, "2.7 TiB"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        cli__bytes(c[i].n, s);
        T_EQ_STR(s, c[i].text);
    }
}

T_CASE(cli, times_are_utc_seconds)
{
    int64_t t;
    ht_err e;
    static const struct {
        const char *text;
        int64_t t;
    } good[] = {{"2026-11-29T12:00:00", 1795953600},
                {"1970-01-01T00:00:01Z", 1},
                {"2000-02-29T23:59:59", 951868799},
                {"2024-12-31", 1735603200}};
    static const char *const bad[] = {"",
                                      "2026-11-29 12:00:00",
                                      "2026-13-01T00:00:00",
                                      "2023-02-29T00:00:00",
                                      "2026-11-29T24:00:00",
                                      "2026-11-29T12:00:00+01:00",
                                      "1970-01-01T00:00:00",
                                      "26-11-29T12:00:00",
                                      "2026-11-29T12:00:00ZZ",
                                      "1900-02-29T00:00:00"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        T_CHECK(cli__time(good[i].text, &t, &e) == 0, "%s: %s", good[i].text, e.msg);
        T_EQ_INT(t, good[i].t);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        T_CHECK(cli__time(bad[i], &t, &e) == HT_EARG && strstr(e.msg, "--now"), "%s was taken",
                bad[i]);
}

static int text_of(const char *p, bool escape, char **text, size_t *n, ht_err *e)
{
    char arg[256];
    char *argv[] = {(char *)"-p", arg, (char *)"-e"};
    snprintf(arg, sizeof arg, "%s", p);
    cli__ctx c = {0};
    ht_opts *o;
    HT_TRY(ht_opts_parse(&o, HT_CMD_RUN, escape ? 3 : 2, argv, e));
    c.o = o;
    int rc = cli__text(&c, text, n, e);
    ht_opts_free(o);
    return rc;
}

T_CASE(cli, escapes_only_when_asked)
{
    char *s;
    size_t n;
    ht_err e;
    T_OK(text_of("a\\nb", false, &s, &n, &e), e);
    T_EQ_STR(s, "a\\nb");
    ht_mem_free(s);
    T_OK(text_of("a\\nb\\t\\\\\\x41\\q\\x4", true, &s, &n, &e), e);
    T_EQ_STR(s, "a\nb\t\\A\\q\\x4");
    T_EQ_INT(n, strlen(s));
    ht_mem_free(s);
}

T_CASE(cli, exit_statuses_are_the_documented_ones)
{
    static const int want[][2] = {{HT_OK, 0},           {HT_EARG, 2},    {HT_ENOMEM, 5},
                                  {HT_EIO, 3},          {HT_EFORMAT, 3}, {HT_EUNSUPPORTED, 4},
                                  {HT_EDEVICE, 1},      {HT_EFULL, 5},   {HT_EBUSY, 1},
                                  {HT_ECANCELLED, 130}, {HT_EGATE, 6}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        T_EQ_INT(cli__exit_status(want[i][0]), want[i][1]);
}

static int sampler(const char *bias, cli__sampler *s, ht_err *e)
{
    char arg[64];
    char *argv[] = {(char *)"-l",  arg, (char *)"-s", (char *)"9", (char *)"--dry-sequence-breaker",
                    (char *)"none"};
    snprintf(arg, sizeof arg, "%s", bias);
    cli__ctx c = {0};
    ht_opts *o;
    HT_TRY(ht_opts_parse(&o, HT_CMD_RUN, 6, argv, e));
    c.o = o;
    int rc = cli__sampler_open(&c, 100, s, e);
    ht_opts_free(o);
    return rc;
}

T_CASE(cli, logit_biases)
{
    cli__sampler s;
    ht_err e;
    T_OK(sampler("17-2.5", &s, &e), e);
    T_EQ_INT(s.s.n_bias, 1);
    T_EQ_INT(s.s.bias[0].id, 17);
    T_NEAR(s.s.bias[0].bias, -2.5, 0);
    T_EQ_INT(s.s.seed, 9);
    T_TRUE(s.s.dry_breakers != NULL && s.s.n_dry_breakers == 0);
    cli__sampler_done(&s);
    T_OK(sampler("3-inf", &s, &e), e);
    T_TRUE(isinf(s.s.bias[0].bias) && s.s.bias[0].bias < 0);
    cli__sampler_done(&s);
    T_ERR(sampler("17", &s, &e), HT_EARG, e, "need ID+X or ID-X");
    T_ERR(sampler("100+1", &s, &e), HT_EARG, e, "0 to 99");
    T_ERR(sampler("5+x", &s, &e), HT_EARG, e, "must be a number");
    T_ERR(sampler("5+inf", &s, &e), HT_EARG, e, "must be a number");
}
