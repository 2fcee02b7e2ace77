/* bundle_quality.c - quality/{prompts,ref,cand}.jsonl counted: one line per item, the same items in
 * the same order in all three. */
#include "evid/bundle_read.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_ITEMS = 100000 };
static const char *const kind_names[] = {"greedy", "text", "task", NULL};
static const ht_field item_fields[] = {
    {.key = "i", .type = HT_S_INT},
    {.key = "kind", .type = HT_S_ENUM, .names = kind_names},
    {.key = "promptTokSha256", .type = HT_S_SHA256},
    {0},
};
static const ht_field ref_fields[] = {
    {.key = "i", .type = HT_S_INT},
    {.key = "out", .type = HT_S_ARR, .item = HT_S_INT, .lo = 0, .hi = UINT32_MAX},
    {.key = "right", .type = HT_S_MAYBE_BOOL},
    {.key = "top1", .type = HT_S_ARR, .item = HT_S_INT, .lo = 0, .hi = UINT32_MAX},
    {0},
};
static const ht_field cand_fields[] = {
    {.key = "i", .type = HT_S_INT},
    {.key = "kldNano", .type = HT_S_ARR, .item = HT_S_INT, .lo = 0, .hi = (int64_t)1 << 40},
    {.key = "out", .type = HT_S_ARR, .item = HT_S_INT, .lo = 0, .hi = UINT32_MAX},
    {.key = "right", .type = HT_S_MAYBE_BOOL},
    {.key = "top1", .type = HT_S_ARR, .item = HT_S_INT, .lo = 0, .hi = UINT32_MAX},
    {0},
};

typedef struct {
    ht_quality_counts *q;
    ht_buf kld; /* uint64_t values                                             */
} counter;

static void count_greedy(ht_quality_counts *q, const ht_json *ref, const ht_json *cand)
{
    size_t n = ref->n > cand->n ? ref->n : cand->n, same = 0;
    for (size_t i = 0; i < ref->n && i < cand->n; i++) same += ref->at[i].i == cand->at[i].i;
    q->prompts++;
    q->exact += same == n;
    q->tokens += n;
    q->agree += same;
    q->len_ref += ref->n;
    q->len_cand += cand->n;
}

static int count_text(counter *c, const ht_json *ref, const ht_json *cand, const ht_json *kld,
                      size_t item, ht_err *e)
{
    if (ref->n == 0 || ref->n != cand->n || ref->n != kld->n)
        return HT_FAIL(e, HT_EFORMAT, "QUALITY: item %zu: top1 and kldNano differ in length", item);
    for (size_t i = 0; i < ref->n; i++) {
        uint64_t v = (uint64_t)kld->at[i].i;
        c->q->top1 += ref->at[i].i == cand->at[i].i;
        c->q->kld_sum_nano += v;
        ht_buf_add(&c->kld, &v, sizeof v);
    }
    c->q->positions += ref->n;
    return 0;
}

static int count_item(counter *c, const ht_json *item, const ht_json *ref, const ht_json *cand,
                      size_t i, ht_err *e)
{
    const ht_json *r = ht_json_get(ref, "right"), *d = ht_json_get(cand, "right");
    const char *kind = ht_json_get(item, "kind")->s;
    if (ht_json_get(item, "i")->i != (int64_t)i || ht_json_get(ref, "i")->i != (int64_t)i ||
        ht_json_get(cand, "i")->i != (int64_t)i)
        return HT_FAIL(e, HT_EFORMAT, "QUALITY: item %zu is out of order", i);
    if (strcmp(kind, "greedy") == 0) {
        if (ht_json_get(ref, "out")->n == 0)
            return HT_FAIL(e, HT_EFORMAT, "QUALITY: item %zu: the reference wrote nothing", i);
        count_greedy(c->q, ht_json_get(ref, "out"), ht_json_get(cand, "out"));
        return 0;
    }
    if (strcmp(kind, "text") == 0)
        return count_text(c, ht_json_get(ref, "top1"), ht_json_get(cand, "top1"),
                          ht_json_get(cand, "kldNano"), i, e);
    if (r->type != HT_JBOOL || d->type != HT_JBOOL)
        return HT_FAIL(e, HT_EFORMAT, "QUALITY: item %zu: a task without an answer", i);
    c->q->tasks++;
    c->q->lost += r->b && !d->b;
    c->q->won += d->b && !r->b;
    return 0;
}

static int by_value(const void *x, const void *y)
{
    uint64_t a, b;
    memcpy(&a, x, sizeof a);
    memcpy(&b, y, sizeof b);
    return (a > b) - (a < b);
}

/* The 99.9 % point: the least value that at most 1 in 1000 positions exceeds. */
static void finish(counter *c)
{
    uint64_t n = c->q->positions;
    if (!n) return;
    qsort(c->kld.p, n, sizeof(uint64_t), by_value);
    memcpy(&c->q->kld_p999_nano, c->kld.p + (n - 1 - n / 1000) * sizeof(uint64_t),
           sizeof(uint64_t));
}

static int count_all(ht_arena *a, const ht_mfile *const f[3], counter *c, ht_err *e)
{
    static const ht_field *const fields[3] = {item_fields, ref_fields, cand_fields};
    evid__lines l[3];
    for (int k = 0; k < 3; k++) l[k] = (evid__lines){f[k]->data, f[k]->data + f[k]->bytes, false};
    for (size_t i = 0; i < MAX_ITEMS; i++) {
        ht_json *j[3];
        int got = 0;
        for (int k = 0; k < 3; k++) {
            const char *line;
            size_t n;
            if (!evid__next_line(&l[k], &line, &n)) continue;
            got++;
            HT_TRY(ht_json_parse(a, line, n, HT_JSON_CANON, f[k]->path, &j[k], e));
            HT_TRY(ht_schema_check(j[k], fields[k], NULL, f[k]->path, e));
        }
        if (l[0].bad || l[1].bad || l[2].bad || (got && got != 3))
            return HT_FAIL(e, HT_EFORMAT, "QUALITY: the files differ in length or are cut off");
        if (!got) {
            HT_TRY(ht_buf_ok(&c->kld, "quality", e));
            finish(c);
            return 0;
        }
        HT_TRY(count_item(c, j[0], j[1], j[2], i, e));
    }
    return HT_FAIL(e, HT_EFORMAT, "QUALITY: more than %d items", (int)MAX_ITEMS);
}

int evid__read_quality(ht_arena *a, ht_evidence *v, ht_err *e)
{
    static const char *const path[3] = {"quality/prompts.jsonl", "quality/ref.jsonl",
                                        "quality/cand.jsonl"};
    const ht_mfile *f[3];
    char all[3 * HT_SHA256_HEX];
    int have = 0;
    for (int k = 0; k < 3; k++) {
        f[k] = ht_manifest_find(v->in, path[k]);
        have += f[k] != NULL;
        if (f[k]) memcpy(all + k * (HT_SHA256_HEX - 1), f[k]->sha256, HT_SHA256_HEX - 1);
    }
    if (!have) return 0; /* the gate says NOT_RUN */
    if (have != 3) return HT_FAIL(e, HT_EFORMAT, "QUALITY: a file of quality/ is missing");
    HT_TRY(evid__sha256_of(all, 3 * (HT_SHA256_HEX - 1), v->quality.sha256, e));
    memcpy(v->quality.prompts_sha, f[0]->sha256, HT_SHA256_HEX);
    v->quality.present = true;
    counter c = {.q = &v->quality};
    ht_buf_init(&c.kld, 0);
    int rc = count_all(a, f, &c, e);
    ht_buf_done(&c.kld);
    return rc;
}
