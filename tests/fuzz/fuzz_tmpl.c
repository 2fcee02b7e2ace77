/* fuzz_tmpl.c - parse and render a template under small budgets. The input is the template; after a
 * NUL byte the messages may follow as a JSON array. The segments must cover the output. */
#include "tmpl/tmpl.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) abort();
}

static const char fallback[] =
    "[{\"role\":\"system\",\"content\":\"Be brief.\"},"
    "{\"role\":\"user\",\"content\":\"Hi <|im_end|> \\u00e9\\u65e5\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call12345\",\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"a\":1,\"b\":[2.5,true,null]}}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"call12345\",\"content\":\"{}\"}]";
static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
static const char kwargs[] = "{\"enable_thinking\":true,\"x\":-3,\"s\":\"text\",\"l\":[3,1,2]}";

static void render(const ht_tmpl *t, ht_arena *a, const char *messages, size_t n)
{
    ht_json *m = NULL, *tl = NULL, *kw = NULL;
    ht_err e;
    if (ht_json_parse(a, messages, n, 0, "messages", &m, &e) || m->type != HT_JARR) {
        if (ht_json_parse(a, fallback, sizeof fallback - 1, 0, "messages", &m, &e)) return;
    }
    if (ht_json_parse(a, tools, sizeof tools - 1, 0, "tools", &tl, &e)) return;
    if (ht_json_parse(a, kwargs, sizeof kwargs - 1, 0, "kwargs", &kw, &e)) return;
    const ht_tmpl_args args = {.messages = m,
                               .tools = tl,
                               .kwargs = kw,
                               .bos = "<s>",
                               .eos = "</s>",
                               .now_unix = 1795953600,
                               .add_generation_prompt = true,
                               .max_steps = 20000,
                               .max_output = 1 << 16};
    ht_tmpl_seg *segs;
    size_t n_segs, at = 0;
    ht_buf out;
    ht_buf_init(&out, 0);
    if (ht_tmpl_render(t, &args, a, &out, &segs, &n_segs, &e) == 0) {
        for (size_t i = 0; i < n_segs; i++) {
            must(segs[i].n > 0 && segs[i].p == out.p + at);
            at += segs[i].n;
        }
        must(at == out.n);
    } else {
        must(out.n == 0);
    }
    ht_buf_done(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const char *nul = size ? memchr(text, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - text) : size;
    ht_tmpl *t = NULL;
    ht_arena *a = NULL;
    ht_err e;
    if (ht_tmpl_parse(&t, text, n, &e)) return 0;
    if (ht_arena_new(&a, 0, &e) == 0) render(t, a, nul ? nul + 1 : text, nul ? size - n - 1 : 0);
    ht_arena_free(a);
    ht_tmpl_free(t);
    return 0;
}
