/* tools.c - what is refused of tools, and the grammars of their calls: what they admit, the parser
 * must read as calls. */
#include "core/arena.h"
#include "reply/reply.h"
#include "test.h"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"],"
    "\"additionalProperties\":false}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"time\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"odd\",\"parameters\":{\"type\":\"object\","
    "\"patternProperties\":{}}}}]";

static ht_arena *arena;
static ht_json *parse(const char *text)
{
    ht_err e = {0};
    ht_json *j = NULL;
    if (!arena) T_OK(ht_arena_new(&arena, 0, &e), e);
    T_OK(ht_json_parse(arena, text, strlen(text), 0, "tools", &j, &e), e);
    return j;
}

static ht_grammar *make(ht_tools_params p)
{
    ht_err e = {0};
    ht_grammar *g = NULL;
    T_OK(ht_tools_grammar(&g, NULL, parse(tools_json), &p, NULL, &e), e);
    return g;
}

static void admits(ht_grammar *g, bool want, const char *text)
{
    ht_err e = {0};
    const int rc = ht_grammar_check(g, text, strlen(text), &e);
    T_CHECK((rc == 0) == want, "%s should be %s: %s", text, want ? "admitted" : "refused", e.msg);
}

T_CASE(tools, required)
{
    ht_grammar *g = make((ht_tools_params){.form = HT_FORM_HERMES, .choice = HT_CHOICE_REQUIRED});
    admits(g, true,
           "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"x\"}}\n"
           "</tool_call>");
    admits(g, true, "<tool_call>{\"name\": \"time\", \"arguments\": {\"any\": [1]}}</tool_call>");
    admits(g, false,
           "<tool_call>{\"name\": \"weather\", \"arguments\": {\"town\": 1}}</tool_call>");
    admits(g, false, "Hello");
    admits(g, false, "<tool_call>{\"name\": \"nobody\", \"arguments\": {}}</tool_call>");
    ht_grammar_close(g);
    g = make((ht_tools_params){
        .form = HT_FORM_LLAMA3, .choice = HT_CHOICE_NAMED, .name = "time", .parallel = true});
    admits(g, true, "{\"name\": \"time\", \"parameters\": {}}");
    admits(g, true,
           "{\"name\": \"time\", \"parameters\": {}}; {\"name\":\"time\",\"parameters\":{}}");
    admits(g, false, "{\"name\": \"weather\", \"parameters\": {\"city\":\"x\"}}");
    ht_grammar_close(g);
    g = make(
        (ht_tools_params){.form = HT_FORM_MISTRAL, .choice = HT_CHOICE_REQUIRED, .parallel = true});
    admits(g, true, "[TOOL_CALLS][{\"name\": \"time\", \"arguments\": {}}]");
    admits(g, true,
           "\xff[TOOL_CALLS] [{\"name\": \"time\", \"arguments\": {}}, {\"name\": "
           "\"weather\", \"arguments\": {\"city\":\"\"}}]");
    admits(g, false, "[TOOL_CALLS][]");
    ht_grammar_close(g);
    g = make(
        (ht_tools_params){.form = HT_FORM_JSON, .choice = HT_CHOICE_REQUIRED, .parallel = true});
    admits(g, true,
           "[{\"name\": \"time\", \"arguments\": {}},{\"name\":\"time\",\"arguments\":{}}]");
    admits(g, true, "{\"name\": \"time\", \"arguments\": {}}");
    ht_grammar_close(g);
}

T_CASE(tools, automatic)
{
    ht_grammar *g = make((ht_tools_params){.form = HT_FORM_HERMES, .parallel = true});
    admits(g, true, "");
    admits(g, true, "Hello <tool> world <tool_cal <<tool_cal");
    admits(g, true, "Well. <<tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call>");
    admits(g, true,
           "<tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call>\n<tool_call>\n"
           "{\"name\":\"time\",\"arguments\":{}}\n</tool_call>");
    admits(g, false, "Well. <tool_call>no</tool_call>");
    admits(g, false, "Well. <tool_call>");
    ht_grammar_close(g);
    g = make((ht_tools_params){.form = HT_FORM_LLAMA3});
    admits(g, true, "Hello {\"name\"");
    admits(g, true, "{\"answer\": 1}");
    admits(g, true, "{\"na");
    admits(g, true, "{\"name\": \"time\", \"parameters\": {}}");
    admits(g, false, "{\"name\": \"nobody\", \"parameters\": {}}");
    admits(g, false, "{ \"name\": 1");
    ht_grammar_close(g);
    g = make((ht_tools_params){.form = HT_FORM_MISTRAL_ARGS, .parallel = true});
    admits(g, true, "Text");
    admits(g, true, "Text[TOOL_CALLS]time[ARGS]{}\xff[TOOL_CALLS]time\xff[ARGS]{}");
    admits(g, false, "Text[TOOL_CALLS]tim[ARGS]{}");
    ht_grammar_close(g);
}

T_CASE(tools, reasoning_before)
{
    ht_tools_params p = {.form = HT_FORM_HERMES,
                         .choice = HT_CHOICE_REQUIRED,
                         .open = "<think>",
                         .close = "</think>"};
    ht_grammar *g = make(p);
    admits(g, true,
           "<think>hm < / hm</think>\n\n<tool_call>{\"name\":\"time\",\"arguments\":{}}"
           "</tool_call>");
    admits(g, true, "<tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call>");
    admits(g, false, "<think>hm</think>");
    ht_grammar_close(g);
    p.in_reasoning = true;
    g = make(p);
    admits(g, true, "hm</think><tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call>");
    admits(g, false, "<tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call>");
    ht_grammar_close(g);
}

T_CASE(tools, strict_and_loose)
{
    ht_err e = {0};
    ht_grammar *g = NULL;
    ht_buf loose;
    ht_buf_init(&loose, 0);
    const ht_tools_params p = {.form = HT_FORM_HERMES, .choice = HT_CHOICE_REQUIRED};
    T_OK(ht_tools_grammar(&g, NULL, parse(tools_json), &p, &loose, &e), e);
    T_EQ_STR(loose.p, "odd");
    ht_buf_done(&loose);
    ht_grammar_close(g);
    const char *strict = "[{\"type\":\"function\",\"function\":{\"name\":\"odd\",\"strict\":true,"
                         "\"parameters\":{\"type\":\"object\",\"patternProperties\":{}}}}]";
    T_ERR(ht_tools_grammar(&g, NULL, parse(strict), &p, NULL, &e), HT_EUNSUPPORTED, e,
          "#/tools/0/function/parameters/patternProperties");
}

T_CASE(tools, refusals)
{
    static const struct {
        const char *tools, *says;
    } bad[] = {
        {"{}", "/tools must be an array"},
        {"[1]", "/tools/0 must be an object"},
        {"[{\"type\":\"web_search\"}]", "/tools/0/type"},
        {"[{\"type\":\"function\"}]", "/tools/0/function"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", "/tools/0/function/name"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]",
         "/tools/0/function/parameters"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},"
         "{\"type\":\"function\",\"function\":{\"name\":\"a\"}}]",
         "comes twice"},
    };
    ht_err e = {0};
    const ht_tools_params p = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        T_ERR(ht_tools_check(parse(bad[i].tools), &p, &e), HT_EARG, e, bad[i].says);
    const ht_tools_params named = {.choice = HT_CHOICE_NAMED, .name = "nobody"};
    T_ERR(ht_tools_check(parse(tools_json), &named, &e), HT_EARG, e, "nobody");
    const ht_tools_params required = {.choice = HT_CHOICE_REQUIRED};
    T_ERR(ht_tools_check(parse("[]"), &required, &e), HT_EARG, e, "no tools");
    const ht_tools_params none = {.choice = HT_CHOICE_NONE};
    ht_grammar *g = NULL;
    T_ERR(ht_tools_grammar(&g, NULL, parse(tools_json), &none, NULL, &e), HT_EARG, e, "nothing");
}

T_CASE(tools, words)
{
    ht_err e = {0};
    ht_buf b;
    ht_buf_init(&b, 0);
    const ht_tools_params p = {.choice = HT_CHOICE_NAMED, .name = "time", .parallel = true};
    T_OK(ht_tools_prompt(parse(tools_json), &p, &b, &e), e);
    T_CHECK(strstr(b.p, "\"name\":\"weather\"") && strstr(b.p, "Call time now"), "%s", b.p);
    ht_buf_done(&b);
}
