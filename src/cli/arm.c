/* arm.c - the other arm of an experiment: engine parameters of --candidate "act=q8,threads=1", as
 * differences from those the usual options give. */
#include "cli/suite.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *key;
    size_t at;
    bool number;
} setting[] = {
    {"act", offsetof(ht_engine_params, act), false},
    {"cover", offsetof(ht_engine_params, cover), false},
    {"ctk", offsetof(ht_engine_params, ctk), false},
    {"ctv", offsetof(ht_engine_params, ctv), false},
    {"cuda", offsetof(ht_engine_params, cuda), false},
    {"decode-engine", offsetof(ht_engine_params, decode_engine), false},
    {"decode-rep", offsetof(ht_engine_params, decode_rep), false},
    {"graph", offsetof(ht_engine_params, graph), false},
    {"isa", offsetof(ht_engine_params, isa), false},
    {"model", offsetof(ht_engine_params, model), false},
    {"prefill-engine", offsetof(ht_engine_params, prefill_engine), false},
    {"prefill-rep", offsetof(ht_engine_params, prefill_rep), false},
    {"store", offsetof(ht_engine_params, store), false},
    {"threads", offsetof(ht_engine_params, threads), true},
    {"ubatch", offsetof(ht_engine_params, ubatch), true},
};

static char *list(ht_arena *a, const char *had, const char *more)
{
    const size_t n = strlen(had) + strlen(more) + 2;
    char *both = ht_arena_alloc(a, n);
    if (both) (void)snprintf(both, n, "%s,%s", had, more);
    return both;
}

static int set_one(ht_arena *a, const char *word, size_t n, ht_engine_params *p, ht_err *e)
{
    char *copy = ht_arena_strndup(a, word, n), *value = copy ? strchr(copy, '=') : NULL, *end;
    if (!copy) return HT_FAIL(e, HT_ENOMEM, "--candidate: out of memory");
    if (value) *value++ = 0;
    if (value && *value && strcmp(copy, "engine") == 0) {
        p->prefill_engine = p->decode_engine = value;
        return 0;
    }
    for (size_t i = 0; value && *value && i < sizeof setting / sizeof *setting; i++) {
        if (strcmp(copy, setting[i].key) != 0) continue;
        char *field = (char *)p + setting[i].at;
        if (!setting[i].number) {
            const char *had = NULL;
            memcpy(&had, field, sizeof had);
            /* These are lists themselves: graph=KEY=VALUE may come several times. */
            if (had && (!strcmp(copy, "graph") || !strcmp(copy, "cuda")))
                value = list(a, had, value);
            if (!value) return HT_FAIL(e, HT_ENOMEM, "--candidate: out of memory");
            memcpy(field, &value, sizeof value);
            return 0;
        }
        long v = strtol(value, &end, 10);
        if (*end || v < 1 || v > 65535)
            return HT_FAIL(e, HT_EARG, "--candidate %s=%.40s: need a number from 1 to 65535", copy,
                           value);
        int narrow = (int)v; /* threads is an int, ubatch a uint32_t: the same four bytes */
        memcpy(field, &narrow, sizeof narrow);
        return 0;
    }
    return HT_FAIL(
        e, HT_EARG,
        "--candidate: \"%.60s\" is no setting, or lacks its value: need KEY=VALUE with KEY one of "
        "act, cover, ctk, ctv, cuda, engine, prefill-engine, decode-engine, prefill-rep, "
        "decode-rep, graph, isa, model, store, threads, ubatch",
        copy);
}

/* Whether the key of the item at `at` stands in an item before it. */
static bool was_given(const char *spec, const char *at, size_t key)
{
    for (const char *p = spec; p < at; p += strcspn(p, ",") + 1)
        if (!strncmp(p, at, key) && p[key] == '=') return true;
    return false;
}

int cli__arm(ht_arena *a, const char *spec, ht_engine_params *p, ht_err *e)
{
    for (const char *at = spec; *at;) {
        const size_t n = strcspn(at, ","), key = strcspn(at, "=,");
        const bool is_list = !strncmp(at, "graph=", 6) || !strncmp(at, "cuda=", 5);
        if (!is_list && was_given(spec, at, key))
            return HT_FAIL(e, HT_EARG, "--candidate: %.*s is given twice; give it once", (int)key,
                           at);
        HT_TRY(set_one(a, at, n, p, e));
        at += n + (at[n] == ',');
    }
    return 0;
}
