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
    const char *shown[2]; /* members of ht_engine_info() that it decides; none: it always counts */
} setting[] = {
    {"act", offsetof(ht_engine_params, act), false, {"act"}},
    {"cover", offsetof(ht_engine_params, cover), false, {NULL}},
    {"ctk", offsetof(ht_engine_params, ctk), false, {"kv.k"}},
    {"ctv", offsetof(ht_engine_params, ctv), false, {"kv.v"}},
    {"cuda", offsetof(ht_engine_params, cuda), false, {NULL}},
    {"decode-engine", offsetof(ht_engine_params, decode_engine), false, {"engines.decode.engine"}},
    {"decode-rep",
     offsetof(ht_engine_params, decode_rep),
     false,
     {"engines.decode.representation"}},
    {"graph", offsetof(ht_engine_params, graph), false, {NULL}},
    {"isa",
     offsetof(ht_engine_params, isa),
     false,
     {"engines.prefill.device.isa", "engines.decode.device.isa"}},
    {"model", offsetof(ht_engine_params, model), false, {NULL}},
    {"prefill-engine",
     offsetof(ht_engine_params, prefill_engine),
     false,
     {"engines.prefill.engine"}},
    {"prefill-rep",
     offsetof(ht_engine_params, prefill_rep),
     false,
     {"engines.prefill.representation"}},
    {"store", offsetof(ht_engine_params, store), false, {NULL}},
    {"threads", offsetof(ht_engine_params, threads), true, {"threads"}},
    {"ubatch", offsetof(ht_engine_params, ubatch), true, {"ubatch"}},
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

/* Whether the member is the same of both: a text or a number. */
static bool same(const ht_json *x, const ht_json *y, const char *path)
{
    const char *a = cli__str(x, path, NULL), *b = cli__str(y, path, NULL);
    if (a || b) return a && b && strcmp(a, b) == 0;
    return cli__num(x, path, -1) == cli__num(y, path, -1);
}

/* Whether the item KEY=VALUE makes a difference between the two engines. */
static bool counts(const char *item, size_t n, const ht_json *ref, const ht_json *cand)
{
    const size_t key = strcspn(item, "=");
    if (n == 11 && !strncmp(item, "cover=fused", n)) return false;
    if (key == 6 && !strncmp(item, "engine", 6))
        return !same(ref, cand, "engines.prefill.engine") ||
               !same(ref, cand, "engines.decode.engine");
    for (size_t i = 0; i < sizeof setting / sizeof *setting; i++) {
        const char *const *path = setting[i].shown;
        if (strlen(setting[i].key) != key || strncmp(setting[i].key, item, key) != 0) continue;
        return !path[0] || !same(ref, cand, path[0]) || (path[1] && !same(ref, cand, path[1]));
    }
    return true;
}

int cli__arm_differs(const char *spec, const char *model, const ht_json *ref, const ht_json *cand,
                     ht_err *e)
{
    bool any = false;
    if (cli__act_idle(cand)) return HT_FAIL(e, HT_EARG, "--candidate: " CLI_ACT_IDLE, model);
    for (const char *at = spec; *at;) {
        const size_t n = strcspn(at, ",");
        any = any || counts(at, n, ref, cand);
        at += n + (at[n] == ',');
    }
    if (any) return 0;
    return HT_FAIL(e, HT_EARG,
                   "--candidate %.200s: the reference is the same here, so there is nothing to "
                   "measure; name a setting that differs ('hetero run --print-config json' shows "
                   "those in force)",
                   spec);
}
