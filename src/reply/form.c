/* form.c - what a chat template tells of its model: how it writes tool calls, how it marks
 * reasoning. */
#include "reply/reply.h"
#include <string.h>

static bool has(const char *s, size_t n, const char *word)
{
    return s && memmem(s, n, word, strlen(word)) != NULL;
}

enum ht_reply_form ht_reply_form_of(const char *source, size_t n)
{
    if (has(source, n, "[TOOL_CALLS]"))
        return has(source, n, "[ARGS]") ? HT_FORM_MISTRAL_ARGS : HT_FORM_MISTRAL;
    if (has(source, n, "<tool_call>")) return HT_FORM_HERMES;
    if (has(source, n, "<|python_tag|>")) return HT_FORM_LLAMA3;
    /* Llama 3.2 writes no tag for its own functions, but its roles tell. */
    if (has(source, n, "ipython") && has(source, n, "\"parameters\"")) return HT_FORM_LLAMA3;
    return HT_FORM_JSON;
}

const char *ht_reply_form_name(enum ht_reply_form form)
{
    static const char *const name[HT_FORMS] = {"json", "hermes", "llama3", "mistral",
                                               "mistral-args"};
    return (unsigned)form < HT_FORMS ? name[form] : "?";
}

bool ht_reply_knows_tools(const char *source, size_t n)
{
    return has(source, n, "tools");
}

bool ht_reply_reasoning_of(const char *source, size_t n, const char **open, const char **close)
{
    static const char *const mark[][2] = {
        {"<think>", "</think>"},           {"[THINK]", "[/THINK]"},
        {"<thinking>", "</thinking>"},     {"<reasoning>", "</reasoning>"},
        {"<seed:think>", "</seed:think>"}, {"<|START_THINKING|>", "<|END_THINKING|>"}};
    for (size_t i = 0; i < sizeof mark / sizeof *mark; i++) {
        if (!has(source, n, mark[i][0]) && !has(source, n, mark[i][1])) continue;
        *open = mark[i][0];
        *close = mark[i][1];
        return true;
    }
    return false;
}
