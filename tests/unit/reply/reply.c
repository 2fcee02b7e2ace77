/* reply.c - replies of every form taken apart, whole and cut at every place: what comes out must
 * not depend on the cuts. */
#include "reply/reply.h"
#include "core/arena.h"
#include "test.h"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"time\"}}]";

/* Events as text: T(..) R(..) C0(name) A0(..) E0, neighbours of one kind joined. */
typedef struct {
    ht_buf out;
    int last;
    char id[40];
} log_;

static int on_event(void *user, const ht_reply_event *ev)
{
    static const char *const open[] = {"T(", "R(", "C", "A", "E"};
    log_ *l = user;
    if ((int)ev->kind != l->last || ev->kind == HT_REPLY_CALL) {
        if (l->last == HT_REPLY_TEXT || l->last == HT_REPLY_REASONING || l->last == HT_REPLY_ARGS)
            ht_buf_char(&l->out, ')');
        ht_buf_str(&l->out, open[ev->kind]);
        if (ev->kind >= HT_REPLY_CALL) ht_buf_fmt(&l->out, "%u", ev->index);
        if (ev->kind == HT_REPLY_ARGS) ht_buf_char(&l->out, '(');
    }
    if (ev->kind == HT_REPLY_CALL) {
        ht_buf_fmt(&l->out, "(%s)", ev->name);
        snprintf(l->id, sizeof l->id, "%s", ev->id);
    }
    ht_buf_add(&l->out, ev->text, ev->n);
    l->last = (int)ev->kind;
    return 0;
}

static char *run(const ht_reply_params *p, const char *text, size_t step, size_t *broken, log_ *l)
{
    ht_err e = {0};
    ht_reply *r = NULL;
    const size_t n = strlen(text);
    *l = (log_){.last = -1};
    ht_buf_init(&l->out, 0);
    T_OK(ht_reply_new(&r, p, on_event, l, &e), e);
    for (size_t i = 0; i < n; i += step)
        T_OK(ht_reply_push(r, text + i, n - i < step ? n - i : step, &e), e);
    T_OK(ht_reply_finish(r, broken, &e), e);
    if (l->last == HT_REPLY_TEXT || l->last == HT_REPLY_REASONING || l->last == HT_REPLY_ARGS)
        ht_buf_char(&l->out, ')');
    ht_buf_char(&l->out, 0);
    ht_reply_free(r);
    return ht_buf_take(&l->out, NULL);
}

/* The whole, in single bytes and in steps of 3 and 7: `want`. */
static void gives(ht_reply_params p, const char *text, const char *want)
{
    ht_arena *a = NULL;
    ht_json *tools = NULL;
    ht_err e = {0};
    log_ l;
    T_OK(ht_arena_new(&a, 0, &e), e);
    T_OK(ht_json_parse(a, tools_json, strlen(tools_json), 0, "tools", &tools, &e), e);
    if (p.tools) p.tools = tools;
    const size_t steps[] = {1, 3, 7, 100000};
    for (size_t i = 0; i < 4; i++) {
        size_t broken;
        char *got = run(&p, text, steps[i], &broken, &l);
        T_CHECK(strcmp(got, want) == 0, "in steps of %zu \"%s\" gave %s, want %s", steps[i], text,
                got, want);
        ht_mem_free(got);
    }
    ht_arena_free(a);
}

static const ht_json some;
#define HERMES  ((ht_reply_params){.form = HT_FORM_HERMES, .tools = &some})
#define LLAMA   ((ht_reply_params){.form = HT_FORM_LLAMA3, .tools = &some})
#define MISTRAL ((ht_reply_params){.form = HT_FORM_MISTRAL, .tools = &some})
#define ARGS    ((ht_reply_params){.form = HT_FORM_MISTRAL_ARGS, .tools = &some})
#define JSON    ((ht_reply_params){.form = HT_FORM_JSON, .tools = &some})

T_CASE(reply, hermes)
{
    gives(HERMES, "Hello.", "T(Hello.)");
    gives(HERMES,
          "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
          "C0(weather)A0({\"city\": \"Oslo\"})E0");
    gives(HERMES,
          "\n\nLet me see.\n<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"}\\\"{\"}}"
          "</tool_call>\n<tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call>\n",
          "T(\n\nLet me see.\n)C0(weather)A0({\"city\":\"}\\\"{\"})E0C1(time)A1({})E1");
    gives(HERMES, "a <tool> b <tool_c", "T(a <tool> b <tool_c)");
    /* The closing mark may be missing; text may follow. */
    gives(HERMES, "<tool_call>{\"name\":\"time\",\"arguments\":{}} and more",
          "C0(time)A0({})E0T( and more)");
    /* Keys in another order, arguments in a string, none at all. */
    gives(HERMES, "<tool_call>{\"arguments\":{\"city\":\"x\"},\"name\":\"weather\"}</tool_call>",
          "C0(weather)A0({\"city\":\"x\"})E0");
    gives(HERMES,
          "<tool_call>{\"name\":\"weather\",\"arguments\":\"{\\\"city\\\": 1}\"}</tool_call>",
          "C0(weather)A0({\"city\":1})E0");
    gives(HERMES, "<tool_call>{\"name\":\"time\"}</tool_call>", "C0(time)A0({})E0");
}

/* Complaint class 8: what does not parse is text. */
T_CASE(reply, broken_calls_are_text)
{
    gives(HERMES, "<tool_call>\nnot json</tool_call>!", "T(<tool_call>\nnot json</tool_call>!)");
    gives(HERMES, "<tool_call>{\"name\":\"nobody\",\"arguments\":{}}</tool_call>",
          "T(<tool_call>{\"name\":\"nobody\",\"arguments\":{}}</tool_call>)");
    gives(HERMES, "<tool_call>{\"name\":\"weather\"", "T(<tool_call>{\"name\":\"weather\")");
    gives(LLAMA, "{\"name\": \"x\", \"parameters\": {}}",
          "T({\"name\": \"x\", \"parameters\": {}})");
    gives(LLAMA, "{not json", "T({not json)");
    gives(JSON, "[1, 2]", "T([1, 2])");
    gives(MISTRAL, "[TOOL_CALLS] what?", "T([TOOL_CALLS] what?)");
    gives(ARGS, "[TOOL_CALLS]nobody[ARGS]{}", "T([TOOL_CALLS]nobody[ARGS]{})");
    /* Held arguments: even a right head can come back. */
    ht_reply_params held = HERMES;
    held.hold_args = true;
    gives(held, "<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":tru}}",
          "T(<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":tru}})");
    gives(held, "<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"x\"}}</tool_call>",
          "C0(weather)A0({\"city\":\"x\"})E0");
    /* Streamed ones cannot: the call stays without its end. */
    gives(HERMES, "<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":tru}} rest",
          "C0(weather)A0({\"city\":tru)T(} rest)");
    gives(HERMES, "<tool_call>{\"name\":\"weather\",\"arguments\":{\"ci", "C0(weather)A0({\"ci)");
}

T_CASE(reply, llama3)
{
    gives(LLAMA, "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}",
          "C0(weather)A0({\"city\": \"Rome\"})E0");
    gives(LLAMA,
          "<|python_tag|>{\"name\":\"time\",\"parameters\":{}}; "
          "{\"type\":\"function\",\"name\":\"weather\",\"parameters\":{\"city\":\"a\"}}",
          "C0(time)A0({})E0C1(weather)A1({\"city\":\"a\"})E1");
    gives(LLAMA, "Plain {\"name\": \"time\"}", "T(Plain {\"name\": \"time\"})");
}

T_CASE(reply, mistral)
{
    gives(MISTRAL,
          "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}, "
          "{\"name\": \"time\", \"arguments\": {}}]",
          "C0(weather)A0({\"city\": \"Rome\"})E0C1(time)A1({})E1");
    gives(ARGS, "[TOOL_CALLS]weather[ARGS]{\"city\":\"x\"}[TOOL_CALLS]time[ARGS]{}",
          "C0(weather)A0({\"city\":\"x\"})E0C1(time)A1({})E1");
    gives(ARGS, "Sure.[TOOL_CALLS]weather{\"city\":\"x\"}",
          "T(Sure.)C0(weather)A0({\"city\":\"x\"})E0");
}

T_CASE(reply, json)
{
    gives(JSON, "  {\"name\": \"weather\", \"arguments\": {\"city\": \"x\"}}\n",
          "C0(weather)A0({\"city\": \"x\"})E0");
    gives(JSON,
          "[{\"name\":\"time\",\"arguments\":{}},{\"name\":\"weather\",\"arguments\":{\"city\":"
          "[1,{\"a\":2}]}}]",
          "C0(time)A0({})E0C1(weather)A1({\"city\":[1,{\"a\":2}]})E1");
    gives(JSON, "{\"function\":{\"name\":\"time\",\"arguments\":null}}", "C0(time)A0({})E0");
    gives(JSON, "{\"answer\": 42}", "T({\"answer\": 42})");
}

T_CASE(reply, reasoning)
{
    ht_reply_params p = {.reasoning = true};
    gives(p, "<think>\nHm, well.\n</think>\n\nYes.", "R(Hm, well.)T(Yes.)");
    gives(p, "\n<think>a <b> </thin c</think>d", "R(a <b> </thin c)T(d)");
    gives(p, "<think>\n\n</think>\n\nNo thought.", "T(No thought.)");
    gives(p, "No mark <think>x</think>", "T(No mark <think>x</think>)");
    gives(p, "<think>never ends", "R(never ends)");
    gives(p, "<thin", "T(<thin)");
    p.in_reasoning = true;
    gives(p, "already in</think>out", "R(already in)T(out)");
    p.open = "[THINK]";
    p.close = "[/THINK]";
    p.in_reasoning = false;
    gives(p, "[THINK]x[/THINK] y", "R(x)T(y)");
    p = HERMES;
    p.reasoning = true;
    gives(p,
          "<think>I need it</think>\n<tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call>",
          "R(I need it)C0(time)A0({})E0");
    gives((ht_reply_params){0}, "<think>kept</think> x", "T(<think>kept</think> x)");
}

T_CASE(reply, ids)
{
    ht_arena *a = NULL;
    ht_json *tools = NULL;
    ht_err e = {0};
    log_ one, two, nine;
    size_t broken;
    T_OK(ht_arena_new(&a, 0, &e), e);
    T_OK(ht_json_parse(a, tools_json, strlen(tools_json), 0, "tools", &tools, &e), e);
    ht_reply_params p = JSON;
    p.tools = tools;
    const char *text = "{\"name\":\"time\",\"arguments\":{}}";
    ht_mem_free(run(&p, text, 5, &broken, &one));
    p.id_seed = 1;
    ht_mem_free(run(&p, text, 5, &broken, &two));
    T_CHECK(strlen(one.id) == 29 && strncmp(one.id, "call_", 5) == 0, "%s", one.id);
    T_CHECK(strcmp(one.id, two.id) != 0, "the seed must matter: %s", one.id);
    p.form = HT_FORM_MISTRAL;
    ht_mem_free(run(&p, "[TOOL_CALLS][{\"name\":\"time\",\"arguments\":{}}]", 5, &broken, &nine));
    T_EQ_INT(strlen(nine.id), 9);
    ht_arena_free(a);
}

static int refuse(void *user, const ht_reply_event *ev)
{
    (void)ev;
    ++*(int *)user;
    return 1;
}

T_CASE(reply, receiver_stops)
{
    ht_err e = {0};
    ht_reply *r = NULL;
    int calls = 0;
    const ht_reply_params p = {0};
    T_OK(ht_reply_new(&r, &p, refuse, &calls, &e), e);
    T_ERR(ht_reply_push(r, "abc", 3, &e), HT_ECANCELLED, e, "stopped");
    T_ERR(ht_reply_push(r, "abc", 3, &e), HT_ECANCELLED, e, "before");
    T_EQ_INT(calls, 1);
    ht_reply_free(r);
}

T_CASE(reply, forms_of_templates)
{
    static const struct {
        const char *source;
        enum ht_reply_form form;
    } t[] = {{"{{ messages }}", HT_FORM_JSON},
             {"...<tool_call>\\n{\"name\": ...", HT_FORM_HERMES},
             {"[AVAILABLE_TOOLS] [TOOL_CALLS] ", HT_FORM_MISTRAL},
             {"[TOOL_CALLS]' + name + '[ARGS]'", HT_FORM_MISTRAL_ARGS},
             {"<|python_tag|>", HT_FORM_LLAMA3},
             {"role == 'ipython' ... \"parameters\": ", HT_FORM_LLAMA3}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        T_EQ_STR(ht_reply_form_name(ht_reply_form_of(t[i].source, strlen(t[i].source))),
                 ht_reply_form_name(t[i].form));
    const char *open, *close;
    T_TRUE(ht_reply_reasoning_of("x </think> y", 12, &open, &close));
    T_EQ_STR(open, "<think>");
    T_TRUE(!ht_reply_reasoning_of("xyz", 3, &open, &close));
    T_TRUE(!ht_reply_knows_tools("xyz", 3) && ht_reply_knows_tools("{% if tools %}", 14));
    T_EQ_INT(ht_reply_form_of(NULL, 0), HT_FORM_JSON);
}
