/* fuzz_reply.c - a model's reply: the first byte chooses the form and what is asked for, the second
 * how the rest is cut. Text and arguments that come out are bytes of what went in, and a second run
 * in one piece gives as much text. */
#include "core/arena.h"
#include "reply/reply.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

typedef struct {
    size_t text, calls, ends;
} counts;

static int on_event(void *user, const ht_reply_event *ev)
{
    counts *c = user;
    if (ev->kind == HT_REPLY_TEXT) c->text += ev->n;
    c->calls += ev->kind == HT_REPLY_CALL;
    c->ends += ev->kind == HT_REPLY_CALL_END;
    return 0;
}

static counts run(const ht_reply_params *p, const char *s, size_t n, size_t step)
{
    counts c = {0};
    ht_reply *r = NULL;
    if (ht_reply_new(&r, p, on_event, &c, NULL)) return c;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i += step)
        rc = ht_reply_push(r, s + i, n - i < step ? n - i : step, NULL);
    if (!rc) rc = ht_reply_finish(r, NULL, NULL);
    if (!rc && (c.ends > c.calls)) abort();
    ht_reply_free(r);
    return c;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
                                "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}]";
    ht_arena *a = NULL;
    ht_json *j = NULL;
    if (n < 2 || ht_arena_new(&a, 0, NULL)) return 0;
    if (!ht_json_parse(a, tools, sizeof tools - 1, 0, "tools", &j, NULL)) {
        const ht_reply_params q = {.form = (enum ht_reply_form)(p[0] % HT_FORMS),
                                   .tools = p[0] & 128 ? NULL : j,
                                   .reasoning = p[0] & 64,
                                   .in_reasoning = p[0] & 32,
                                   .hold_args = p[0] & 16};
        const counts whole = run(&q, (const char *)p + 2, n - 2, n);
        const counts cut = run(&q, (const char *)p + 2, n - 2, (size_t)p[1] % 9 + 1);
        if (whole.text != cut.text || whole.calls != cut.calls || whole.ends != cut.ends) abort();
    }
    ht_arena_free(a);
    return 0;
}
