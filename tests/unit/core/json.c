/* json.c - the JSON reader, writer, builder and streaming writer. */
#include "core/json.h"
#include "test.h"
#include <locale.h>

static ht_err e;

static ht_arena *arena(void)
{
    ht_arena *a;
    T_OK(ht_arena_new(&a, 0, &e), e);
    return a;
}

static ht_json *parse(ht_arena *a, const char *text)
{
    ht_json *v;
    T_OK(ht_json_parse(a, text, strlen(text), 0, "test", &v, &e), e);
    return v;
}

static void refuse(const char *text, size_t n, unsigned flags, const char *why)
{
    ht_arena *a = arena();
    ht_json *v = (ht_json *)&v;
    int rc = ht_json_parse(a, text, n, flags, "test", &v, &e);
    T_CHECK(rc == HT_EFORMAT && !v, "%.60s: returned %d", text, rc);
    T_CHECK(strstr(e.msg, why), "%.60s: \"%s\" lacks \"%s\"", text, e.msg, why);
    ht_arena_free(a);
}

static void round_trip(const char *text, unsigned flags, const char *want)
{
    ht_arena *a = arena();
    ht_buf b;
    ht_buf_init(&b, 0);
    T_OK(ht_json_write(parse(a, text), flags, &b, &e), e);
    T_EQ_STR(b.p, want);
    ht_buf_done(&b);
    ht_arena_free(a);
}

T_CASE(json, values)
{
    ht_arena *a = arena();
    const ht_json *v = parse(a, " {\"a\":[1,-2.5e3,true,false,null,\"x\\u0041\\n\\ud83d\\ude00\"],"
                                "\"b\":{\"c\":{\"d\":9223372036854775807}},\"e\":[],\"f\":{}} ");
    T_EQ_INT(v->type, HT_JOBJ);
    T_EQ_INT(v->n, 4);
    const ht_json *l = ht_json_get(v, "a");
    T_TRUE(l && l->type == HT_JARR && l->n == 6);
    T_TRUE(l->at[0].type == HT_JINT && l->at[0].i == 1 && l->at[0].d == 1);
    T_TRUE(l->at[1].type == HT_JREAL && l->at[1].d == -2500);
    T_TRUE(l->at[2].type == HT_JBOOL && l->at[2].b);
    T_TRUE(l->at[3].type == HT_JBOOL && !l->at[3].b);
    T_EQ_INT(l->at[4].type, HT_JNULL);
    T_EQ_INT(l->at[5].n, 7);
    T_EQ_STR(l->at[5].s, "xA\n\xf0\x9f\x98\x80");
    T_TRUE(ht_json_path(v, "b.c.d")->i == INT64_MAX);
    T_TRUE(!ht_json_path(v, "b.x.d") && !ht_json_path(NULL, "a") && !ht_json_get(l, "a"));
    T_TRUE(ht_json_get(v, "e")->n == 0 && ht_json_get(v, "f")->n == 0);
    ht_arena_free(a);
}

T_CASE(json, embedded_nul_and_bounds)
{
    ht_arena *a = arena();
    const ht_json *v = parse(a, "\"a\\u0000b\"");
    T_EQ_INT(v->n, 3);
    T_EQ_MEM(v->s, "a\0b", 4);
    /* The text is not NUL-terminated: nothing past n is read. */
    const char text[] = {'[', '1', '2', ']', '3'};
    ht_json *w;
    T_OK(ht_json_parse(a, text, 4, 0, "t", &w, &e), e);
    T_EQ_INT(w->at[0].i, 12);
    T_EQ_INT(ht_json_parse(a, text, 3, 0, "t", &w, &e), HT_EFORMAT);
    T_OK(ht_json_parse(a, text + 1, 2, 0, "t", &w, &e), e);
    T_EQ_INT(w->i, 12);
    ht_arena_free(a);
}

T_CASE(json, refusals)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"", "ends where a value"},
        {"  ", "column 3"},
        {"nul", "expected a value"},
        {"NaN", "expected a value"},
        {"-Infinity", "needs a digit"},
        {"[1,]", "expected a value"},
        {"[1 2]", "',' or ']'"},
        {"{\"a\":1,}", "expected a key"},
        {"{a:1}", "expected a key"},
        {"{\"a\" 1}", "expected ':'"},
        {"{\"a\":1", "',' or '}'"},
        {"[", "ends where a value"},
        {"01", "leading zero"},
        {"-", "needs a digit"},
        {"1.", "after its point"},
        {".5", "expected a value"},
        {"1e", "exponent"},
        {"1e999", "range of a double"},
        {"+1", "expected a value"},
        {"1 x", "something follows"},
        {"{} {}", "something follows"},
        {"\"a", "without an end"},
        {"\"a\\\"", "without an end"},
        {"\"\\x\"", "unknown escape"},
        {"\"\\u12g4\"", "four hex digits"},
        {"\"\\u12\"", "four hex digits"},
        {"\"\\ud800\"", "surrogate"},
        {"\"\\ud800\\u0041\"", "surrogate"},
        {"\"\\udc00\"", "surrogate"},
        {"\"\t\"", "control character"},
        {"\"\xc0\x80\"", "malformed UTF-8"},
        {"\"\xed\xa0\x80\"", "malformed UTF-8"},
        {"\"\xe2\x82\"", "malformed UTF-8"},
        {"\xef\xbb\xbf{}", "expected a value"},
        {"{\"a\":1,\"b\":2,\"a\":3}", "same key twice"},
        {"{\"a\":1,\n \"b\":\n  tru}", "line 3, column 3"},
        {"[\"\xc3\xa9\xc3\xa9\",x]", "column 7"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuse(bad[i].text, strlen(bad[i].text), 0, bad[i].why);
    refuse("[\0]", 3, 0, "expected a value");
    char long_number[500];
    memset(long_number, '7', sizeof long_number);
    refuse(long_number, sizeof long_number, 0, "more than 400");
}

T_CASE(json, depth_is_limited)
{
    char text[300];
    ht_arena *a = arena();
    ht_json *v;
    ht_buf b;
    ht_buf_init(&b, 0);
    memset(text, '[', 63);
    memset(text + 63, ']', 63);
    T_OK(ht_json_parse(a, text, 126, 0, "t", &v, &e), e);
    T_OK(ht_json_write(v, 0, &b, &e), e);
    T_EQ_INT(b.n, 126);
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    refuse(text, 128, 0, "deeper than 63");
    ht_buf_done(&b);
    ht_arena_free(a);
}

T_CASE(json, large_objects)
{
    ht_arena *a = arena();
    ht_buf b;
    char key[32];
    ht_buf_init(&b, 0);
    ht_buf_char(&b, '{');
    enum { N = 5000 };
    for (int i = 0; i < N; i++) ht_buf_fmt(&b, "%s\"k%d\":%d", i ? "," : "", i * 7919 % N, i);
    ht_buf_char(&b, '}');
    const ht_json *v = parse(a, b.p);
    T_EQ_INT(v->n, N);
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof key, "k%d", i * 7919 % N);
        const ht_json *m = ht_json_get(v, key);
        T_CHECK(m && m->i == i && m == &v->at[i], "key %s", key);
    }
    T_TRUE(!ht_json_get(v, "k") && !ht_json_get(v, "k5000") && !ht_json_get(v, ""));
    b.p[--b.n] = 0;
    ht_buf_str(&b, ",\"k17\":0}");
    refuse(b.p, b.n, 0, "same key twice");
    ht_buf_done(&b);
    ht_arena_free(a);
}

T_CASE(json, typed_reads)
{
    ht_arena *a = arena();
    const ht_json *v = parse(a, "{\"i\":-5,\"u\":4294967295,\"o\":4294967296,\"r\":1.5,\"t\":true,"
                                "\"s\":\"x\",\"z\":null}");
    int64_t i;
    uint32_t u;
    double d;
    bool b;
    const char *s;
    T_OK(ht_json_i64(v, "i", 9, &i, &e), e);
    T_EQ_INT(i, -5);
    T_OK(ht_json_i64(v, "none", 9, &i, &e), e);
    T_EQ_INT(i, 9);
    T_OK(ht_json_i64(v, "z", 8, &i, &e), e);
    T_EQ_INT(i, 8);
    T_ERR(ht_json_i64(v, "r", 9, &i, &e), HT_EFORMAT, e, "\"r\" is a real number, need an integer");
    T_OK(ht_json_u32(v, "u", 0, &u, &e), e);
    T_TRUE(u == UINT32_MAX);
    T_ERR(ht_json_u32(v, "o", 0, &u, &e), HT_EFORMAT, e, "\"o\" is 4294967296");
    T_ERR(ht_json_u32(v, "i", 0, &u, &e), HT_EFORMAT, e, "\"i\" is -5");
    T_OK(ht_json_f64(v, "r", 0, &d, &e), e);
    T_NEAR(d, 1.5, 0);
    T_OK(ht_json_f64(v, "i", 0, &d, &e), e);
    T_NEAR(d, -5, 0);
    T_ERR(ht_json_f64(v, "s", 0, &d, &e), HT_EFORMAT, e, "need a number");
    T_OK(ht_json_bool(v, "t", false, &b, &e), e);
    T_TRUE(b);
    T_ERR(ht_json_bool(v, "u", false, &b, &e), HT_EFORMAT, e, "need true or false");
    T_OK(ht_json_str(v, "s", NULL, &s, &e), e);
    T_EQ_STR(s, "x");
    T_OK(ht_json_str(NULL, "s", "def", &s, &e), e);
    T_EQ_STR(s, "def");
    T_ERR(ht_json_str(v, "t", NULL, &s, &e), HT_EFORMAT, e, "need a string");
    ht_arena_free(a);
}

T_CASE(json, writing)
{
    round_trip("{ \"b\" : [1, 2.5, -0.0, 1e300] , \"a\":\"\\/\\u001f\\u0008\\u20ac\" }", 0,
               "{\"b\":[1,2.5,-0.0,1e+300],\"a\":\"/\\u001f\\b\xe2\x82\xac\"}");
    round_trip("[\"\\u20ac\\ud83d\\ude00\\u007f\"]", HT_JSON_ASCII,
               "[\"\\u20ac\\ud83d\\ude00\x7f\"]");
    round_trip("{\"a\":[1,{\"b\":[]}],\"c\":{}}", HT_JSON_PRETTY,
               "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ],\n  \"c\": {}\n}");
    round_trip("{\"b\":1,\"a\":{\"z\":0,\"y\":[true,null]},\"ab\":\"\",\"\":9007199254740991}",
               HT_JSON_CANON | HT_JSON_PRETTY,
               "{\"\":9007199254740991,\"a\":{\"y\":[true,null],\"z\":0},\"ab\":\"\",\"b\":1}");
}

T_CASE(json, canonical_is_exact)
{
    ht_arena *a = arena();
    ht_json *v;
    const char *good = "{\"a\":[1,-2,\"\\u0001\\n\xc3\xa9\"],\"b\":{\"c\":null}}";
    T_OK(ht_json_parse(a, good, strlen(good), HT_JSON_CANON, "t", &v, &e), e);
    static const char *const off[] = {
        "{\"b\":1,\"a\":2}", "[1, 2]",    "[1]\n",         "[-0]",
        "[\"\\u000a\"]",     "[\"\\/\"]", "[\"\\u00e9\"]",
    };
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        refuse(off[i], strlen(off[i]), HT_JSON_CANON, "not in canonical form");
    static const char *const beyond[] = {"[1.0]", "[9007199254740992]", "{\"\xc3\xa9\":1}",
                                         "[1e2]"};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++)
        T_ERR(ht_json_parse(a, beyond[i], strlen(beyond[i]), HT_JSON_CANON, "t", &v, &e),
              HT_EFORMAT, e, "canonical JSON");
    ht_arena_free(a);
}

T_CASE(json, building)
{
    ht_arena *a = arena();
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_json *o = ht_json_new(a, HT_JOBJ), *l = ht_json_new(a, HT_JARR);
    for (int i = 0; i < 100; i++) ht_json_push(a, l, ht_json_new_int(a, i));
    ht_json_add(a, o, "list", l);
    ht_json_add(a, o, "yes", ht_json_new_bool(a, true));
    ht_json_add(a, o, "empty", ht_json_new(a, HT_JSTR));
    ht_json_add(a, o, "cut", ht_json_new_str(a, "abcdef", 3));
    T_EQ_INT(ht_json_get(o, "list")->at[99].i, 99);
    T_EQ_STR(ht_json_get(o, "cut")->s, "abc");
    T_OK(ht_json_write(o, HT_JSON_CANON, &b, &e), e);
    T_TRUE(strstr(b.p, "{\"cut\":\"abc\",\"empty\":\"\",\"list\":[0,1,2,") == b.p);
    ht_json_add(a, o, "cut", ht_json_new_int(a, 1));
    ht_buf_clear(&b);
    T_ERR(ht_json_write(o, HT_JSON_CANON, &b, &e), HT_EARG, e, "comes twice");
    /* An object of the parser's sorted kind stays searchable after an add. */
    ht_json *big =
        parse(a, "{\"a\":0,\"b\":0,\"c\":0,\"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0,\"i\":0,"
                 "\"j\":0,\"k\":0,\"l\":0,\"m\":0,\"n\":0,\"o\":0,\"p\":0,\"q\":0}");
    ht_json_add(a, big, "aa", ht_json_new_int(a, 5));
    T_EQ_INT(ht_json_get(big, "aa")->i, 5);
    T_TRUE(ht_json_get(big, "q"));
    ht_buf_done(&b);
    ht_arena_free(a);
}

T_CASE(json, lost_memory_is_told)
{
    ht_arena *a = arena();
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_json *o = ht_json_new(a, HT_JOBJ);
    ht_json_add(a, o, "x", NULL); /* as a constructor that ran out of memory gives */
    ht_json_push(a, NULL, o);
    T_ERR(ht_json_write(o, 0, &b, &e), HT_ENOMEM, e, "no memory");
    T_ERR(ht_json_write(NULL, 0, &b, &e), HT_ENOMEM, e, "no memory");
    ht_buf_done(&b);
    ht_arena_free(a);
}

T_CASE(json, nth_allocation_fails)
{
    const char *text = "{\"a\":[1,2,[3,[4]],\"str\"],\"b\":{\"c\":1.5}}";
    for (uint64_t k = 1;; k++) {
        ht_arena *a = NULL;
        ht_json *v = NULL;
        ht_buf b;
        ht_buf_init(&b, 0);
        ht_alloc_fail_at(k);
        int rc = ht_arena_new(&a, 0, &e);
        if (!rc) rc = ht_json_parse(a, text, strlen(text), 0, "t", &v, &e);
        if (!rc) rc = ht_json_write(v, HT_JSON_PRETTY, &b, &e);
        ht_alloc_fail_at(0);
        T_CHECK(rc == 0 || rc == HT_ENOMEM, "allocation %d: %d", (int)k, rc);
        ht_buf_done(&b);
        ht_arena_free(a);
        if (!rc) {
            T_CHECK(k > 3, "only %d allocations", (int)k);
            break;
        }
    }
}

T_CASE(json, streaming)
{
    ht_buf b;
    ht_jw w;
    ht_arena *a = arena();
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "s", "a\"\xff\xc3\xa9");
    ht_jw_kint(&w, "i", -3);
    ht_jw_kuint(&w, "u", UINT64_MAX);
    ht_jw_kbool(&w, "t", true);
    ht_jw_kreal(&w, "r", 0.1);
    ht_jw_kstr(&w, "n", NULL);
    ht_jw_key(&w, "l");
    ht_jw_arr(&w);
    ht_jw_f32(&w, 0.1f);
    ht_jw_real(&w, NAN);
    ht_jw_real(&w, -INFINITY);
    ht_jw_raw(&w, "{\"x\":1}", 7);
    ht_jw_json(&w, parse(a, "[1,{\"k\":2}]"));
    ht_jw_arr(&w);
    ht_jw_end(&w, ']');
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    T_OK(ht_buf_ok(&b, "out", &e), e);
    T_EQ_STR(b.p,
             "{\"s\":\"a\\\"\xef\xbf\xbd\xc3\xa9\",\"i\":-3,\"u\":18446744073709551615,\"t\":true,"
             "\"r\":0.1,\"n\":null,\"l\":[0.100000001,null,null,{\"x\":1},[1,{\"k\":2}],[]]}");
    ht_jw_end(&w, '}'); /* one too many is a mistake that shows */
    T_EQ_INT(ht_buf_ok(&b, "out", &e), HT_ENOMEM);
    ht_buf_done(&b);
    ht_arena_free(a);
}

T_CASE(json, numbers_round_trip)
{
    uint64_t rnd = 7;
    ht_arena *a = arena();
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    for (int i = 0; i < 20000; i++) {
        union {
            uint64_t u;
            double d;
        } x = {t_rand(&rnd)};
        union {
            uint32_t u;
            float f;
        } y = {(uint32_t)t_rand(&rnd)};
        if (!isfinite(x.d) || !isfinite(y.f)) continue;
        ht_buf_clear(&b);
        ht_jw_init(&w, &b, 0);
        ht_jw_arr(&w);
        ht_jw_real(&w, x.d);
        ht_jw_f32(&w, y.f);
        ht_jw_end(&w, ']');
        const ht_json *v = parse(a, b.p);
        T_CHECK(v->at[0].type == HT_JREAL && !memcmp(&v->at[0].d, &x.d, 8), "%s", b.p);
        float f = (float)v->at[1].d;
        T_CHECK(!memcmp(&f, &y.f, 4), "%s", b.p);
    }
    ht_buf_done(&b);
    ht_arena_free(a);
}

T_CASE(json, independent_of_locale)
{
    /* One with a decimal comma, compiled for this test: systems rarely have one installed. */
    char command[600];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' 2>/dev/null",
             t_tmp());
    (void)!system(command); /* it complains of much and succeeds */
    T_EQ_INT(setenv("LOCPATH", t_tmp(), 1), 0);
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) T_SKIP("package locales is missing");
    T_EQ_STR(localeconv()->decimal_point, ",");
    ht_arena *a = arena();
    T_NEAR(parse(a, "2.5")->d, 2.5, 0);
    ht_arena_free(a);
    round_trip("[2.5]", 0, "[2.5]");
}
