/* samples.c - reading samples.jsonl. */
#include "report/samples.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SAMPLES = 200000, MAX_BLOCKS = 1001 };

const char *const report__metric_names[REPORT_METRICS + 1] = {"ttftNs", "tpotNs", "e2eNs", NULL};

static uint32_t u32(const ht_json *j, const char *key)
{
    double v = report__num(j, key, 0);
    return v >= 0 && v < 4294967296.0 ? (uint32_t)v : 0;
}

static void unknown_guards(const ht_json *guards, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = 0;
    if (!guards || guards->type != HT_JOBJ) return;
    for (size_t i = 0; i < guards->n; i++) {
        const ht_json *known = ht_json_get(&guards->at[i], "known");
        if (!known || known->type != HT_JBOOL || known->b) continue;
        /* A GPU's guard on a machine without one is no gap. */
        if (strcmp(report__str(&guards->at[i], "reason", ""), "NO_GPU") == 0) continue;
        int k = snprintf(out + at, cap - at, "%s%.24s", at ? " " : "", guards->at[i].key);
        if (k < 0 || (size_t)k >= cap - at) return;
        at += (size_t)k;
    }
}

static int read_one(ht_arena *a, const char *line, size_t n, size_t at, report__sample *s,
                    ht_err *e)
{
    ht_json *j;
    HT_TRY(ht_json_parse(a, line, n, HT_JSON_CANON, "samples.jsonl", &j, e));
    const char *arm = report__str(j, "arm", "?");
    if (strcmp(report__str(j, "schema", ""), "hetero/sample/1") != 0)
        return HT_FAIL(e, HT_EFORMAT, "samples.jsonl line %zu is no hetero/sample/1", at + 1);
    *s = (report__sample){.block = u32(j, "block"),
                          .slot = u32(j, "slot"),
                          .attempt = u32(j, "attempt"),
                          .pair = u32(j, "pairId"),
                          .n_prompt = u32(j, "nPrompt"),
                          .n_out = u32(j, "nOut"),
                          .arm = arm[0],
                          .bucket = report__str(j, "bucket", ""),
                          .status = report__str(j, "status", "?"),
                          .void_reason = report__str(j, "voidReason", NULL)};
    for (int m = 0; m < REPORT_METRICS; m++)
        s->ns[m] = report__num(j, report__metric_names[m], NAN);
    unknown_guards(ht_json_get(j, "guards"), s->unknown, sizeof s->unknown);
    return 0;
}

int report__samples(ht_arena *a, const char *text, uint64_t n, report__sample **out,
                    size_t *n_samples, ht_err *e)
{
    size_t lines = 0, k = 0;
    uint32_t last[MAX_BLOCKS] = {0};
    for (uint64_t i = 0; i < n; i++) lines += text[i] == '\n';
    if (lines > MAX_SAMPLES || (n && text[n - 1] != '\n'))
        return HT_FAIL(e, HT_EFORMAT, "samples.jsonl has %zu lines, or its last one is cut off",
                       lines);
    report__sample *s = ht_arena_array(a, lines, sizeof *s);
    if (!s) return HT_FAIL(e, HT_ENOMEM, "report: no memory for %zu samples", lines);
    for (const char *p = text, *end = text + n; p < end; k++) {
        size_t len = (size_t)((const char *)memchr(p, '\n', (size_t)(end - p)) - p);
        HT_TRY(read_one(a, p, len, k, &s[k], e));
        if (s[k].block >= MAX_BLOCKS)
            return HT_FAIL(e, HT_EFORMAT, "samples.jsonl line %zu: block %u", k + 1, s[k].block);
        if (s[k].attempt > last[s[k].block]) last[s[k].block] = s[k].attempt;
        p += len + 1;
    }
    for (size_t i = 0; i < k; i++) s[i].counted = s[i].attempt == last[s[i].block];
    *out = s;
    *n_samples = k;
    return 0;
}

size_t report__pick(const report__sample *s, size_t n, const char *bucket, char arm, int metric,
                    double *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i].counted && s[i].arm == arm && strcmp(s[i].status, "ok") == 0 &&
            strcmp(s[i].bucket, bucket) == 0 && isfinite(s[i].ns[metric]))
            out[k++] = s[i].ns[metric];
    return k;
}
