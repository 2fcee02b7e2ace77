/* schema.c - JSON Schema: instances that belong and that do not, and what is refused with which
 * pointer. tests/clients/grammar.py compares with another implementation. */
#include "core/arena.h"
#include "test.h"

static ht_grammar *open_schema(const char *schema)
{
    ht_err e = {0};
    ht_grammar *g = NULL;
    const int rc = ht_grammar_open(&g, NULL, HT_GRAMMAR_SCHEMA, schema, strlen(schema), &e);
    T_CHECK(rc == 0, "%s: %s", schema, e.msg);
    return g;
}

/* yes and no: texts, NULL-terminated. */
static void sorts(const char *schema, const char *const *yes, const char *const *no)
{
    ht_err e = {0};
    ht_grammar *g = open_schema(schema);
    for (; *yes; yes++)
        T_CHECK(ht_grammar_check(g, *yes, strlen(*yes), &e) == 0, "%s should accept %s: %s", schema,
                *yes, e.msg);
    for (; *no; no++)
        T_CHECK(ht_grammar_check(g, *no, strlen(*no), &e) == HT_EFORMAT, "%s should refuse %s",
                schema, *no);
    ht_grammar_close(g);
}
#define L(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NONE   ((const char *const[]){NULL})

T_CASE(schema, json_mode)
{
    ht_err e = {0};
    ht_grammar *g = NULL;
    T_OK(ht_grammar_open(&g, NULL, HT_GRAMMAR_JSON, NULL, 0, &e), e);
    const char *const *yes =
        L("{}", "{\"a\":1}", "{\"a\": [1, 2.5e-3, null, true, {\"b\": \"\\u00e9\\ud83d\\ude00\"}]}",
          "{\n  \"a\": {},\n  \"b\": []\n}", "{\"\xc3\xa9\":-0.5}");
    const char *const *no = L("", "[]", "{", "{\"a\"}", "{\"a\":1,}", "{'a':1}", "{\"a\":01}",
                              "{\"a\":\"\\ud800\"}", "{\"a\":\"\n\"}", "{\"a\":+1}", "{\"a\":1.}",
                              "{\"a\":nul}", "{\"a\":\"\\x\"}", "{} ", "{\"a\":\"\xff\"}");
    for (; *yes; yes++)
        T_CHECK(ht_grammar_check(g, *yes, strlen(*yes), &e) == 0, "%s: %s", *yes, e.msg);
    for (; *no; no++) T_CHECK(ht_grammar_check(g, *no, strlen(*no), &e) != 0, "%s", *no);
    /* As deep as core/json reads, no deeper. */
    char text[700] = "{\"a\":";
    size_t n = 5;
    for (int i = 0; i < 59; i++) text[n++] = '[';
    for (int i = 0; i < 59; i++) text[n++] = ']';
    text[n++] = '}';
    T_OK(ht_grammar_check(g, text, n, &e), e);
    memset(text + 5, '[', 100);
    T_CHECK(ht_grammar_check(g, text, 105, &e) != 0, "100 brackets deep");
    T_CHECK(strstr(e.msg, "byte"), "the place is told: %s", e.msg);
    ht_grammar_close(g);
}

T_CASE(schema, objects)
{
    sorts("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
          "\"string\"},\"c\":{\"type\":\"null\"}},\"required\":[\"b\"],"
          "\"additionalProperties\":false}",
          L("{\"b\":\"x\"}", "{\"a\": 1, \"b\": \"\"}", "{\"b\":\"\",\"c\":null}",
            "{ \"a\":-7,\"b\":\"\",\"c\":null }"),
          L("{}", "{\"a\":1}", "{\"b\":1}", "{\"b\":\"\",\"d\":1}", "{\"a\":1.5,\"b\":\"\"}",
            "{\"b\":\"\",}", "{,\"b\":\"\"}"));
    sorts("{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},"
          "\"additionalProperties\":{\"type\":\"string\"}}",
          L("{}", "{\"ab\":1}", "{\"ab\":1,\"x\":\"y\"}", "{\"a\":\"y\"}", "{\"abc\":\"\"}",
            "{\"\":\"\"}", "{\"ac\":\"\",\"\xc3\xa9\":\"\"}"),
          L("{\"ab\":\"x\"}", "{\"x\":1}", "{\"ab\":1,\"ab\":\"x\"}", "{\"\\u0061b\":\"x\"}"));
    sorts("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"},\"maxProperties\":2}",
          L("{}", "{\"a\":null}", "{\"a\":null,\"b\":null}"),
          L("{\"a\":null,\"b\":null,\"c\":null}"));
    sorts("{\"type\":\"object\",\"required\":[\"q\"]}", L("{\"q\":[1]}", "{\"q\":1,\"r\":2}"),
          L("{}", "{\"r\":1}"));
    sorts("{\"properties\":{\"never\":false,\"a\":true}}", L("{}", "{\"a\":[{}]}"),
          L("{\"never\":1}"));
    sorts("{\"type\":\"object\",\"properties\":{\"q\\\"\\n/~\":{\"const\":1}},"
          "\"required\":[\"q\\\"\\n/~\"]}",
          L("{\"q\\\"\\n/~\":1}"), L("{}"));
}

T_CASE(schema, arrays)
{
    sorts("{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":3}",
          L("[true]", "[true,false]", "[ true, false, true ]"),
          L("[]", "[1]", "[true,true,true,true]", "[true,]"));
    sorts("{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2},{\"const\":3}],"
          "\"minItems\":1}",
          L("[1]", "[1,2]", "[1,2,3]"), L("[]", "[2]", "[1,2,3,4]"));
    sorts("{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":2},"
          "\"minItems\":3,\"maxItems\":4}",
          L("[1,2,2]", "[1,2,2,2]"), L("[1,2]", "[1,2,2,2,2]", "[2,2,2]"));
    sorts("{\"type\":\"array\"}", L("[]", "[1,\"a\",{}]"), L("{}", "[1 2]"));
    sorts("{\"type\":\"array\",\"maxItems\":0}", L("[]"), L("[1]"));
    sorts("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1000}", NONE,
          L("[1,2]"));
}

T_CASE(schema, strings)
{
    sorts(
        "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
        L("\"ab\"", "\"abc\"", "\"\xc3\xa9\xe2\x82\xac\"", "\"\\n\\u0041\"", "\"\\ud83d\\ude00x\""),
        L("\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\"", "ab"));
    sorts("{\"type\":\"string\",\"pattern\":\"^[a-z]{2,4}-\\\\d+$\"}",
          L("\"ab-1\"", "\"abcd-123456\""), L("\"a-1\"", "\"ab-\"", "\"xab-1 \"", "\"abcde-1\""));
    sorts("{\"type\":\"string\",\"pattern\":\"b+\"}", L("\"b\"", "\"abbc\"", "\"\\\"b\""),
          L("\"\"", "\"ac\""));
}

/* Anchors are understood at the ends only. */
T_CASE(schema, anchors_inside)
{
    ht_err e = {0};
    ht_grammar *g = NULL;
    const char *s = "{\"type\":\"string\",\"pattern\":\"(a|b$)\"}";
    T_ERR(ht_grammar_open(&g, NULL, HT_GRAMMAR_SCHEMA, s, strlen(s), &e), HT_EUNSUPPORTED, e,
          "#/pattern");
    sorts("{\"type\":\"string\",\"pattern\":\"^a|b$|^c$\"}", L("\"ax\"", "\"xb\"", "\"c\""),
          L("\"xa\"", "\"bx\"", "\"cc\""));
    sorts("{\"type\":\"string\",\"pattern\":\"^[\\\"\\\\\\\\\\\\n]$\"}",
          L("\"\\\"\"", "\"\\\\\"", "\"\\n\""), L("\"a\"", "\"\\t\""));
}

T_CASE(schema, formats)
{
    sorts("{\"type\":\"string\",\"format\":\"date\"}", L("\"2024-02-28\"", "\"1999-12-31\""),
          L("\"2024-02-30\"", "\"2024-13-01\"", "\"24-01-01\"", "\"2024-04-31\""));
    sorts("{\"type\":\"string\",\"format\":\"date-time\"}",
          L("\"2024-02-28T23:59:59Z\"", "\"2024-02-28T01:02:03.5+02:00\""),
          L("\"2024-02-28 23:59:59Z\"", "\"2024-02-28T24:00:00Z\"", "\"2024-02-28T10:00:00\""));
    sorts("{\"type\":\"string\",\"format\":\"uuid\"}",
          L("\"123e4567-e89b-12d3-a456-426614174000\""), L("\"123e4567e89b12d3a456426614174000\""));
    sorts("{\"type\":\"string\",\"format\":\"ipv4\"}", L("\"192.168.0.255\"", "\"0.0.0.0\""),
          L("\"256.1.1.1\"", "\"01.2.3.4\"", "\"1.2.3\""));
    sorts("{\"type\":\"string\",\"format\":\"email\"}", L("\"a.b+c@example.com\""),
          L("\"a@b@c.de\"", "\"@example.com\"", "\"a..b@example.com\""));
}

/* Every whole number around the bounds. */
static void bounds_of(const char *schema, int lo, int hi)
{
    ht_err e = {0};
    ht_grammar *g = open_schema(schema);
    for (int v = lo - 130; v <= hi + 130; v++) {
        char text[24];
        const int n = snprintf(text, sizeof text, "%d", v);
        T_CHECK((ht_grammar_check(g, text, (size_t)n, &e) == 0) == (v >= lo && v <= hi),
                "%s and %d", schema, v);
    }
    ht_grammar_close(g);
}

T_CASE(schema, integers)
{
    bounds_of("{\"type\":\"integer\",\"minimum\":0,\"maximum\":100}", 0, 100);
    bounds_of("{\"type\":\"integer\",\"minimum\":-37,\"maximum\":1234}", -37, 1234);
    bounds_of("{\"type\":\"integer\",\"minimum\":-1200,\"exclusiveMaximum\":-99}", -1200, -100);
    bounds_of("{\"type\":\"integer\",\"exclusiveMinimum\":0.5,\"maximum\":7.9}", 1, 7);
    bounds_of("{\"type\":\"integer\",\"exclusiveMinimum\":8,\"maximum\":10}", 9, 10);
    bounds_of("{\"type\":\"integer\",\"minimum\":5,\"maximum\":5}", 5, 5);
    sorts("{\"type\":\"integer\"}", L("0", "-1", "9999999999999999"),
          L("1.0", "00", "-", "1e3", "99999999999999999"));
    sorts("{\"type\":\"integer\",\"minimum\":1000}", L("1000", "100000"), L("999", "-1000"));
}

static void reals_of(const char *schema, double lo, double hi, bool open_lo, bool open_hi)
{
    ht_err e = {0};
    ht_grammar *g = open_schema(schema);
    /* Written out: what the text says is what counts. */
    for (int k = -3000; k <= 3000; k++) {
        char text[32];
        const double v = k / 1000.0;
        const int n = snprintf(text, sizeof text, "%.3f", v);
        if (k == 0 || (v > -0.0005 && text[0] == '-')) continue;
        const bool in = (open_lo ? v > lo : v >= lo) && (open_hi ? v < hi : v <= hi);
        T_CHECK((ht_grammar_check(g, text, (size_t)n, &e) == 0) == in, "%s and %s", schema, text);
    }
    ht_grammar_close(g);
}

T_CASE(schema, numbers)
{
    reals_of("{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", 0, 1, false, false);
    reals_of("{\"type\":\"number\",\"minimum\":-1.25,\"exclusiveMaximum\":1.5}", -1.25, 1.5, false,
             true);
    reals_of("{\"type\":\"number\",\"exclusiveMinimum\":0.125,\"maximum\":0.875}", 0.125, 0.875,
             true, false);
    reals_of("{\"type\":\"number\",\"exclusiveMinimum\":-2.5,\"exclusiveMaximum\":-0.001}", -2.5,
             -0.001, true, true);
    reals_of("{\"type\":\"number\",\"exclusiveMinimum\":0}", 0, 1e9, true, false);
    reals_of("{\"type\":\"number\",\"maximum\":-1}", -1e9, -1, false, false);
    sorts("{\"type\":\"number\"}", L("0", "-1.5", "2e10", "1.25E-9"),
          L("1.", ".5", "1e", "NaN", "1e999"));
    sorts("{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", L("0", "1", "0.5", "1.0"),
          L("1.01", "-0.1", "1e0", "2"));
}

T_CASE(schema, constants)
{
    sorts("{\"enum\":[\"a\",1,null,[1,{\"k\":\"v\"}],2.5]}",
          L("\"a\"", "1", "null", "[1,{\"k\":\"v\"}]", "[ 1, {\"k\": \"v\"} ]", "2.5"),
          L("\"b\"", "2", "[1]", "{}"));
    sorts("{\"type\":\"string\",\"enum\":[1,\"x\",\"y\\n\"]}", L("\"x\"", "\"y\\n\""), L("1"));
    sorts("{\"const\":{\"a\":[]}}", L("{\"a\":[]}"), L("{}"));
}

T_CASE(schema, alternatives_and_merges)
{
    sorts("{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"integer\"}]}", L("null", "7"), L("\"\""));
    sorts("{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"n\":{"
          "\"type\":\"integer\"}},\"required\":[\"k\",\"n\"],\"additionalProperties\":false},"
          "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"],"
          "\"additionalProperties\":false}]}",
          L("{\"k\":\"a\",\"n\":1}", "{\"k\":\"b\"}"), L("{\"k\":\"a\"}", "{\"k\":\"b\",\"n\":1}"));
    sorts("{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\","
          "\"minimum\":1}},\"required\":[\"a\"]},{\"properties\":{\"a\":{\"maximum\":3},\"b\":{"
          "\"type\":\"null\"}}}]}",
          L("{\"a\":1}", "{\"a\":3,\"b\":null}"), L("{}", "{\"a\":4}", "{\"a\":0}"));
    sorts("{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},"
          "\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
          L("{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}"), L("{}"));
    sorts("{\"type\":[\"string\",\"null\"],\"maxLength\":1}", L("null", "\"a\""), L("\"ab\"", "1"));
}

T_CASE(schema, references)
{
    sorts("{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
          "\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":["
          "\"v\",\"next\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}",
          L("{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"),
          L("{\"v\":1}", "{\"v\":1,\"next\":{\"v\":2}}"));
    sorts("{\"definitions\":{\"a/b~c\":{\"const\":1}},\"type\":\"array\",\"items\":{\"$ref\":"
          "\"#/definitions/a~1b~0c\"}}",
          L("[1,1]", "[]"), L("[2]"));
    sorts("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", L("[]", "[[],[[]]]"), L("[1]"));
    sorts("{\"$defs\":{\"p\":{\"type\":\"integer\"}},\"properties\":{\"x\":{\"$ref\":\"#/$defs/p\","
          "\"maximum\":5,\"minimum\":0}},\"required\":[\"x\"]}",
          L("{\"x\":5}"), L("{\"x\":6}"));
}

static const struct {
    const char *schema;
    int code;
    const char *pointer, *says;
} refused[] = {
    {"{\"type\":\"object\",\"patternProperties\":{}}", HT_EUNSUPPORTED, "#/patternProperties",
     "not supported"},
    {"{\"type\":\"object\",\"properties\":{\"a/b\":{\"not\":{}}}}", HT_EUNSUPPORTED,
     "#/properties/a~1b/not", "not supported"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"array\",\"contains\":{}}}", HT_EUNSUPPORTED,
     "#/items/contains", "not supported"},
    {"{\"type\":\"array\",\"uniqueItems\":true}", HT_EUNSUPPORTED, "#/uniqueItems", ""},
    {"{\"type\":\"array\",\"maxItems\":1e42}", HT_EUNSUPPORTED, "#/maxItems", "is more than"},
    {"{\"type\":\"array\",\"maxItems\":2.5}", HT_EFORMAT, "#/maxItems", "whole number"},
    {"{\"type\":\"number\",\"multipleOf\":0.1}", HT_EUNSUPPORTED, "#/multipleOf", ""},
    {"{\"type\":\"string\",\"format\":\"color\"}", HT_EUNSUPPORTED, "#/format", "color"},
    {"{\"type\":\"string\",\"pattern\":\"(?=a)b\"}", HT_EUNSUPPORTED, "#/pattern", "look-around"},
    {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", HT_EUNSUPPORTED, "#/pattern", "escape"},
    {"{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":3}", HT_EUNSUPPORTED, "#/pattern",
     "together"},
    {"{\"type\":\"string\",\"maxLength\":1000000}", HT_EUNSUPPORTED, "#/maxLength", "65536"},
    {"{\"type\":\"string\",\"maxLength\":-1}", HT_EFORMAT, "#/maxLength", "whole number"},
    {"{\"type\":\"strin\"}", HT_EFORMAT, "#/type", "must be"},
    {"{\"$ref\":\"http://example.com/s\"}", HT_EUNSUPPORTED, "#/$ref", "into the schema"},
    {"{\"$ref\":\"#/$defs/x\"}", HT_EFORMAT, "#/$ref", "nowhere"},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", HT_EUNSUPPORTED, "#/oneOf/1",
     "overlap"},
    {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", HT_EUNSUPPORTED, "#", "common"},
    {"{\"if\":{},\"then\":{}}", HT_EUNSUPPORTED, "#/if", "not supported"},
    {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", HT_EUNSUPPORTED, "#", "bounds"},
    {"{\"type\":\"integer\",\"minimum\":1e300}", HT_EUNSUPPORTED, "#", "1e15"},
    {"false", HT_EUNSUPPORTED, "#", "no value"},
    {"3", HT_EFORMAT, "#", "object"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     HT_EUNSUPPORTED, "#", "never end"},
    {"{\"$ref\":\"#\"}", HT_EUNSUPPORTED, "#", "never end"},
    {"{\"minLength\":1,\"minimum\":2}", HT_EUNSUPPORTED, "#", "give the type"},
    {"{\"enum\":[]}", HT_EFORMAT, "#/enum", ""},
    {"{\"enum\":[\"a\"],\"maxLength\":0}", HT_EUNSUPPORTED, "#/maxLength", "enum"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"minProperties\":1}",
     HT_EUNSUPPORTED, "#/minProperties", ""},
};

/* Complaint class 9: never a wider language than asked for. */
T_CASE(schema, fails_closed_with_a_pointer)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ht_err e = {0};
        ht_grammar *g = NULL;
        const char *s = refused[i].schema;
        const int rc = ht_grammar_open(&g, NULL, HT_GRAMMAR_SCHEMA, s, strlen(s), &e);
        T_CHECK(rc == refused[i].code && !g, "%s returned %d: %s", s, rc, e.msg);
        T_CHECK(strstr(e.msg, refused[i].pointer), "%s: no %s in: %s", s, refused[i].pointer,
                e.msg);
        T_CHECK(strstr(e.msg, refused[i].says), "%s: no \"%s\" in: %s", s, refused[i].says, e.msg);
    }
}

/* Memory that runs out at any allocation is an error and leaks nothing. */
T_CASE(schema, no_memory)
{
    const char *s = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{"
                    "\"type\":\"string\",\"pattern\":\"^a+$\"}},\"b\":{\"anyOf\":[{\"type\":"
                    "\"number\",\"minimum\":0},{\"type\":\"null\"}]}},\"allOf\":[{\"required\":["
                    "\"a\"]}],\"additionalProperties\":{\"type\":\"integer\"}}";
    const char *text = "{\"a\":[\"aa\"],\"b\":0.5,\"c\":3}";
    const uint64_t live = ht_alloc_live();
    int failed = 0;
    for (uint64_t n = 1; n < 2000; n++) {
        ht_err e = {0};
        ht_grammar *g = NULL;
        ht_alloc_fail_at(n);
        int rc = ht_grammar_open(&g, NULL, HT_GRAMMAR_SCHEMA, s, strlen(s), &e);
        if (!rc) rc = ht_grammar_check(g, text, strlen(text), &e);
        ht_alloc_fail_at(0);
        if (rc) T_CHECK(rc == HT_ENOMEM, "allocation %d gave %d: %s", (int)n, rc, e.msg);
        if (g && rc) T_OK(ht_grammar_check(g, text, strlen(text), &e), e); /* usable again */
        ht_grammar_close(g);
        T_CHECK(ht_alloc_live() == live, "allocation %d leaks", (int)n);
        if (!rc) break;
        failed++;
    }
    T_CHECK(failed > 10, "only %d allocations failed", failed);
}
