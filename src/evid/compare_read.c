/* compare_read.c - the inputs of a comparison against each other: design, prompts, journal,
 * samples, raw streams; see compare.h. */
#include "evid/bundle_read.h"
#include "evid/compare.h"
#include "evid/journal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const ht_cmp_arm_names[HT_CMP_ARMS + 1] = {"H", "F", "M", "N", NULL};
const char *const ht_cmp_apis[] = {"llama", "openai", "ollama", NULL};
static const char *const order_names[] = {"ROTATED", NULL};
static const char *const text_names[] = {"RANDOM", "WINDOWS", NULL};
static const char *const run_names[] = {"main", "null", NULL};
enum { RAW_PATH = 64, CONTEXT_MAX = 1 << 20 };

static const ht_field design_fields[] = {
    {.key = "api", .type = HT_S_ENUM, .names = ht_cmp_apis},
    {.key = "arm", .type = HT_S_STR},
    {.key = "assetsSha256", .type = HT_S_SHA256},
    {.key = "binarySha256", .type = HT_S_SHA256},
    {.key = "contexts", .type = HT_S_ARR, .item = HT_S_INT, .lo = 1, .hi = CONTEXT_MAX},
    {.key = "costMapSha256", .type = HT_S_MAYBE_SHA256},
    {.key = "cpus", .type = HT_S_INT, .lo = 1, .hi = 1000000},
    {.key = "foreignSha256", .type = HT_S_SHA256},
    {.key = "machineClassSha256", .type = HT_S_SHA256},
    {.key = "maxNew", .type = HT_S_INT, .lo = 2, .hi = 4096},
    {.key = "modelPackSha256", .type = HT_S_SHA256},
    {.key = "nullRepetitions", .type = HT_S_INT, .lo = HT_CMP_MIN_REPS, .hi = HT_STAT_MAX_N},
    {.key = "order", .type = HT_S_ENUM, .names = order_names},
    {.key = "policySha256", .type = HT_S_SHA256},
    {.key = "prompts", .type = HT_S_ENUM, .names = text_names},
    {.key = "promptsSha256", .type = HT_S_SHA256},
    {.key = "repetitions", .type = HT_S_INT, .lo = HT_CMP_MIN_REPS, .hi = HT_STAT_MAX_N},
    {.key = "spacingNs", .type = HT_S_INT},
    {.key = "startedUtc", .type = HT_S_UTC},
    {.key = "synthetic", .type = HT_S_BOOL},
    {.key = "tokenizerSha256", .type = HT_S_SHA256},
    {0},
};
static const ht_field prompt_fields[] = {
    {.key = "nPrompt", .type = HT_S_INT, .lo = 1, .hi = CONTEXT_MAX},
    {.key = "pair", .type = HT_S_INT, .lo = 0, .hi = 10000},
    {.key = "promptTokSha256", .type = HT_S_SHA256},
    {.key = "run", .type = HT_S_ENUM, .names = run_names},
    {0},
};
static const ht_field sample_fields[] = {
    {.key = "arm", .type = HT_S_ENUM, .names = ht_cmp_arm_names},
    {.key = "chunksSha256", .type = HT_S_SHA256},
    {.key = "e2eNs", .type = HT_S_MAYBE_INT},
    {.key = "endState", .type = HT_S_ENUM, .names = evid__end_names},
    {.key = "guards", .type = HT_S_OBJ},
    {.key = "intendedNs", .type = HT_S_INT},
    {.key = "nOut", .type = HT_S_INT, .lo = 0, .hi = UINT32_MAX},
    {.key = "pair", .type = HT_S_INT, .lo = 0, .hi = 10000},
    {.key = "peakBytes", .type = HT_S_MAYBE_INT},
    {.key = "promptTokSha256", .type = HT_S_SHA256},
    {.key = "receiptSha256", .type = HT_S_MAYBE_SHA256},
    {.key = "requestSha256", .type = HT_S_SHA256},
    {.key = "responseSha256", .type = HT_S_SHA256},
    {.key = "saidOut", .type = HT_S_MAYBE_INT},
    {.key = "saidPrompt", .type = HT_S_MAYBE_INT},
    {.key = "sendLagNs", .type = HT_S_INT},
    {.key = "slot", .type = HT_S_INT, .lo = 1, .hi = 2},
    {.key = "status", .type = HT_S_ENUM, .names = evid__status_names},
    {.key = "tpotNs", .type = HT_S_MAYBE_INT},
    {.key = "ttftNs", .type = HT_S_MAYBE_INT},
    {.key = "why", .type = HT_S_STR},
    {0},
};
static const ht_field chunk_fields[] = {
    {.key = "bears", .type = HT_S_BOOL},
    {.key = "i", .type = HT_S_INT},
    {.key = "len", .type = HT_S_INT},
    {.key = "off", .type = HT_S_INT},
    {.key = "tNs", .type = HT_S_INT},
    {.key = "tok", .type = HT_S_ARR, .item = HT_S_INT, .lo = 0, .hi = INT32_MAX},
    {0},
};
static const ht_field end_fields[] = {
    {.key = "end", .type = HT_S_ENUM, .names = evid__end_names},
    {0},
};

/* ---- the design ---- */

uint32_t ht_cmp_pairs(const ht_cmp_design *d)
{
    return d->n_contexts * (d->reps + d->null_reps);
}

ht_cmp_place ht_cmp_place_of(const ht_cmp_design *d, uint32_t pair)
{
    const uint32_t n_null = d->n_contexts * d->null_reps;
    const bool null_run = pair < n_null;
    const uint32_t k = null_run ? pair : pair - n_null, reps = null_run ? d->null_reps : d->reps;
    return (ht_cmp_place){null_run, k / reps, k % reps};
}

enum ht_cmp_arm ht_cmp_arm_of(const ht_cmp_design *d, uint32_t pair, uint32_t slot)
{
    const ht_cmp_place p = ht_cmp_place_of(d, pair);
    const bool ours_first = (p.context_i + p.rep) % 2 == 0, first = slot == 1;
    if (p.null_run) return ours_first == first ? HT_CMP_N : HT_CMP_M;
    return ours_first == first ? HT_CMP_H : HT_CMP_F;
}

/* The digest that the design names is that of the file. */
static int names_file(const ht_manifest *m, const ht_json *design, const char *key,
                      const char *path, ht_err *e)
{
    const ht_mfile *f = ht_manifest_find(m, path);
    if (!f) return HT_FAIL(e, HT_EFORMAT, "MANIFEST: %s is missing", path);
    if (strcmp(f->sha256, evid__str(design, key)) != 0)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: %s is not what was sealed as %s", path, key);
    return 0;
}

static int read_design(ht_arena *a, const ht_manifest *m, ht_comparison *v, ht_err *e)
{
    const ht_json *j, *list;
    ht_cmp_design *d = &v->design;
    HT_TRY(evid__doc(a, m, "design.json", design_fields, HT_COMPARE_DESIGN, &j, e));
    list = ht_json_get(j, "contexts");
    if (list->n < 1 || list->n > HT_CMP_CONTEXTS)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: %zu contexts, need 1 to %d", list->n,
                       (int)HT_CMP_CONTEXTS);
    for (size_t i = 0; i < list->n; i++) {
        d->context[i] = (uint32_t)list->at[i].i;
        if (i && d->context[i] <= d->context[i - 1])
            return HT_FAIL(e, HT_EFORMAT, "DESIGN: contexts are listed twice or out of order");
    }
    d->n_contexts = (uint32_t)list->n;
    d->reps = evid__u32(j, "repetitions");
    d->null_reps = evid__u32(j, "nullRepetitions");
    d->max_new = evid__u32(j, "maxNew");
    d->cpus = evid__u32(j, "cpus");
    d->api = evid__str(j, "api");
    d->synthetic = ht_json_get(j, "synthetic")->b;
    d->policy_sha = evid__str(j, "policySha256");
    d->prompts_sha = evid__str(j, "promptsSha256");
    d->class_sha = evid__str(j, "machineClassSha256");
    memcpy(d->sha256, ht_manifest_find(m, "design.json")->sha256, sizeof d->sha256);
    v->model_sha = evid__str(j, "modelPackSha256");
    v->tok_sha = evid__str(j, "tokenizerSha256");
    v->binary_sha = evid__str(j, "binarySha256");
    v->assets_sha = evid__str(j, "assetsSha256");
    HT_TRY(names_file(m, j, "policySha256", "policy.json", e));
    HT_TRY(names_file(m, j, "promptsSha256", "prompts.jsonl", e));
    HT_TRY(names_file(m, j, "assetsSha256", "subject/assets.json", e));
    return names_file(m, j, "foreignSha256", "server/foreign.json", e);
}

/* ---- prompts ---- */

typedef struct {
    ht_arena *a;
    ht_comparison *v;
    const char **prompt; /* [pair] digest */
    ht_json **event;
    size_t n_events, at;
} reader;

static int read_prompts(reader *r, ht_err *e)
{
    const ht_mfile *f = ht_manifest_find(r->v->in, "prompts.jsonl");
    const ht_cmp_design *d = &r->v->design;
    const uint32_t n = ht_cmp_pairs(d);
    const char **sorted = ht_arena_array(r->a, n, sizeof *sorted), *line;
    size_t len, k = 0;
    r->prompt = ht_arena_array(r->a, n, sizeof *r->prompt);
    if (!sorted || !r->prompt) return HT_FAIL(e, HT_ENOMEM, "prompts: no memory for %u", n);
    evid__lines l = {f->data, f->data + f->bytes, false};
    for (; evid__next_line(&l, &line, &len); k++) {
        ht_json *j;
        HT_TRY(ht_json_parse(r->a, line, len, HT_JSON_CANON, "prompts.jsonl", &j, e));
        HT_TRY(ht_schema_check(j, prompt_fields, NULL, "prompts.jsonl", e));
        const ht_cmp_place p = ht_cmp_place_of(d, k < n ? (uint32_t)k : 0);
        if (k >= n || evid__u32(j, "pair") != k ||
            evid__u32(j, "nPrompt") != d->context[p.context_i] ||
            strcmp(evid__str(j, "run"), run_names[p.null_run]) != 0)
            return HT_FAIL(e, HT_EFORMAT, "DESIGN: prompts.jsonl line %zu is not the one expected",
                           k + 1);
        r->prompt[k] = sorted[k] = evid__str(j, "promptTokSha256");
    }
    if (l.bad || k != n)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: prompts.jsonl has %zu lines, need %u", k, n);
    const char *twice = evid__first_twice(sorted, n);
    if (twice) return HT_FAIL(e, HT_EFORMAT, "DESIGN: prompt %.16s... is used by two pairs", twice);
    return 0;
}

/* ---- raw streams ---- */

typedef struct {
    uint64_t first, last, end, bytes;
    uint32_t bearing, chunks, n_ids, cap;
    int32_t *ids;
} stream;

static int add_chunk(const ht_json *c, const char *path, stream *s, ht_err *e)
{
    const uint64_t t = (uint64_t)ht_json_get(c, "tNs")->i;
    const ht_json *tok = ht_json_get(c, "tok");
    const bool bears = ht_json_get(c, "bears")->b;
    if (ht_json_get(c, "i")->i != s->chunks || (uint64_t)ht_json_get(c, "off")->i != s->bytes)
        return HT_FAIL(e, HT_EFORMAT, "RAW: %s: chunk %u is not where it should be", path,
                       s->chunks);
    if (s->chunks && t < s->end)
        return HT_FAIL(e, HT_EFORMAT, "RAW: %s: time runs backwards at chunk %u", path, s->chunks);
    if (tok->n && !bears)
        return HT_FAIL(e, HT_EFORMAT, "RAW: %s: chunk %u has tokens and bears none", path,
                       s->chunks);
    s->end = t;
    s->bytes += (uint64_t)ht_json_get(c, "len")->i;
    s->chunks++;
    if (bears && !s->bearing++) s->first = t;
    if (bears) s->last = t;
    for (size_t i = 0; i < tok->n && s->n_ids < s->cap; i++)
        s->ids[s->n_ids++] = (int32_t)tok->at[i].i;
    return 0;
}

static int read_chunks(ht_arena *a, const ht_mfile *f, stream *s, const char **end, ht_err *e)
{
    evid__lines l = {f->data, f->data + f->bytes, false};
    const char *line;
    size_t n;
    *end = NULL;
    /* An id takes two bytes of the text at least. */
    s->cap = (uint32_t)(f->bytes / 2 < UINT32_MAX ? f->bytes / 2 : UINT32_MAX);
    s->ids = ht_arena_array(a, (size_t)s->cap + 1, sizeof *s->ids);
    if (!s->ids) return HT_FAIL(e, HT_ENOMEM, "%s: no memory for tokens", f->path);
    while (evid__next_line(&l, &line, &n)) {
        ht_json *c;
        if (*end) return HT_FAIL(e, HT_EFORMAT, "RAW: %s: a line after the end", f->path);
        HT_TRY(ht_json_parse(a, line, n, HT_JSON_CANON, f->path, &c, e));
        if (ht_json_get(c, "end")) {
            HT_TRY(ht_schema_check(c, end_fields, NULL, f->path, e));
            *end = evid__str(c, "end");
        } else {
            HT_TRY(ht_schema_check(c, chunk_fields, NULL, f->path, e));
            HT_TRY(add_chunk(c, f->path, s, e));
        }
    }
    if (l.bad || !*end) return HT_FAIL(e, HT_EFORMAT, "RAW: %s is cut off", f->path);
    return 0;
}

static int raw_file(const reader *r, const ht_json *j, const char *name, const char *key,
                    const ht_mfile **out, ht_err *e)
{
    char path[RAW_PATH];
    snprintf(path, sizeof path, "raw/p%03u/s%u-%s/%s", evid__u32(j, "pair"), evid__u32(j, "slot"),
             evid__str(j, "arm"), name);
    const ht_mfile *f = ht_manifest_find(r->v->in, path);
    if (!f || strcmp(f->sha256, evid__str(j, key)) != 0)
        return HT_FAIL(e, HT_EFORMAT, "RAW: %s is missing or has another digest", path);
    *out = f;
    return 0;
}

/* ---- samples ---- */

static int64_t said(const ht_json *j, const char *key)
{
    const ht_json *v = ht_json_get(j, key);
    return v->type == HT_JINT ? v->i : -1;
}

/* What an answer that is called good must be: whole, as long as asked, and counted as sent. */
static bool good_answer(const reader *r, const ht_json *j, const stream *s, const char *end,
                        const ht_cmp_sample *x)
{
    const ht_cmp_design *d = &r->v->design;
    const uint32_t n = d->context[ht_cmp_place_of(d, x->pair).context_i];
    const int64_t prompt = said(j, "saidPrompt"), out = said(j, "saidOut");
    const uint64_t sent = (uint64_t)(said(j, "intendedNs") + said(j, "sendLagNs"));
    const bool foreign_count = x->arm == HT_CMP_F && strcmp(d->api, "ollama") == 0;
    return (strcmp(end, "DONE") == 0 || strcmp(end, "LENGTH_MET") == 0) && s->bearing > 0 &&
           s->first > sent && x->n_out == d->max_new && (out < 0 || out == x->n_out) &&
           (prompt < 0 || prompt == n || foreign_count);
}

static int check_sample(const reader *r, const ht_json *j, const stream *s, const char *end,
                        ht_cmp_sample *x, ht_err *e)
{
    const int64_t out = said(j, "saidOut");
    x->n_out = s->n_ids ? s->n_ids : out > 0 && out <= r->v->design.max_new ? (uint32_t)out : 0;
    x->ids = s->ids;
    x->n_ids = s->n_ids;
    x->said_prompt = said(j, "saidPrompt") ==
                     r->v->design.context[ht_cmp_place_of(&r->v->design, x->pair).context_i];
    if (strcmp(end, evid__str(j, "endState")) != 0)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u: the stream ends %s, the sample says %s",
                       x->pair, end, evid__str(j, "endState"));
    if (x->n_out != evid__u32(j, "nOut"))
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u: nOut is not what came", x->pair);
    if (x->status == HT_SM_OK && !good_answer(r, j, s, end, x))
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u arm %s is no good answer and is called ok",
                       x->pair, ht_cmp_arm_names[x->arm]);
    if (x->status == HT_SM_OK) {
        const uint64_t intended = (uint64_t)said(j, "intendedNs");
        x->metric[HT_M_TTFT] = s->first - intended;
        x->metric[HT_M_E2E] = s->last - intended;
        x->metric[HT_M_TPOT] = (s->last - s->first) / (x->n_out - 1);
    }
    for (unsigned m = 0; m < HT_METRICS; m++) {
        const int64_t v = said(j, ht_metric_names[m]);
        if ((uint64_t)(v < 0 ? 0 : v) != x->metric[m])
            return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u: %s is not what the chunks give (%llu)",
                           x->pair, ht_metric_names[m], (unsigned long long)x->metric[m]);
    }
    return 0;
}

static int read_line(reader *r, uint32_t pair, uint32_t slot, const char *line, size_t n, ht_err *e)
{
    ht_json *j;
    stream s = {0};
    const char *end;
    const ht_mfile *chunks, *response, *other;
    ht_cmp_sample *x = &r->v->sample[r->v->n_samples++];
    *x = (ht_cmp_sample){.pair = pair, .arm = (uint8_t)ht_cmp_arm_of(&r->v->design, pair, slot)};
    HT_TRY(ht_json_parse(r->a, line, n, HT_JSON_CANON, "samples.jsonl", &j, e));
    HT_TRY(ht_schema_check(j, sample_fields, "hetero/comparesample/1", "SAMPLE", e));
    if (evid__u32(j, "pair") != pair || evid__u32(j, "slot") != slot ||
        strcmp(evid__str(j, "arm"), ht_cmp_arm_names[x->arm]) != 0)
        return HT_FAIL(e, HT_EFORMAT,
                       "SAMPLE: a line is not that of pair %u slot %u, as the design has it", pair,
                       slot);
    if (strcmp(evid__str(j, "promptTokSha256"), r->prompt[pair]) != 0)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u: not the sealed prompt", pair);
    while (strcmp(evid__status_names[x->status], evid__str(j, "status")) != 0) x->status++;
    if (x->status >= HT_SM_VOID)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u: status %s is none of a comparison", pair,
                       evid__status_names[x->status]);
    HT_TRY(
        ht_guards_read(ht_json_get(j, "guards"), &r->v->policy, r->v->design.cpus, &x->guards, e));
    HT_TRY(raw_file(r, j, "request.bin", "requestSha256", &other, e));
    HT_TRY(raw_file(r, j, "response.bin", "responseSha256", &response, e));
    HT_TRY(raw_file(r, j, "chunks.jsonl", "chunksSha256", &chunks, e));
    if (ht_json_get(j, "receiptSha256")->type == HT_JSTR)
        HT_TRY(raw_file(r, j, "receipts.jsonl", "receiptSha256", &other, e));
    HT_TRY(read_chunks(r->a, chunks, &s, &end, e));
    if (s.bytes != response->bytes)
        return HT_FAIL(e, HT_EFORMAT, "RAW: %s describes %llu bytes, the response has %llu",
                       chunks->path, (unsigned long long)s.bytes,
                       (unsigned long long)response->bytes);
    return check_sample(r, j, &s, end, x, e);
}

/* ---- journal ---- */

static const ht_field event_fields[] = {
    {.key = "arm", .type = HT_S_ENUM, .names = ht_cmp_arm_names},
    {.key = "event", .type = HT_S_STR},
    {.key = "monoNs", .type = HT_S_INT},
    {.key = "pair", .type = HT_S_INT},
    {.key = "prev", .type = HT_S_SHA256},
    {.key = "seq", .type = HT_S_INT},
    {.key = "sha256", .type = HT_S_SHA256, .optional = true},
    {.key = "slot", .type = HT_S_INT},
    {0},
};
static const ht_field seal_fields[] = {
    {.key = "designSha256", .type = HT_S_SHA256},
    {.key = "event", .type = HT_S_STR},
    {.key = "monoNs", .type = HT_S_INT},
    {.key = "prev", .type = HT_S_SHA256},
    {.key = "seq", .type = HT_S_INT},
    {0},
};
static const ht_field close_fields[] = {
    {.key = "event", .type = HT_S_STR},   {.key = "monoNs", .type = HT_S_INT},
    {.key = "prev", .type = HT_S_SHA256}, {.key = "seq", .type = HT_S_INT},
    {.key = "slots", .type = HT_S_INT},   {0},
};

static int expect(reader *r, const char *name, uint32_t pair, uint32_t slot, const ht_json **out,
                  ht_err *e)
{
    const ht_json *j = r->at < r->n_events ? r->event[r->at++] : NULL;
    const ht_json *ev = j ? ht_json_get(j, "event") : NULL;
    if (!ev || ev->type != HT_JSTR || strcmp(ev->s, name) != 0)
        return HT_FAIL(e, HT_EFORMAT, "JOURNAL: pair %u slot %u: need event %s at line %zu", pair,
                       slot, name, r->at);
    HT_TRY(ht_schema_check(j, event_fields, NULL, "JOURNAL", e));
    const char *arm = ht_cmp_arm_names[ht_cmp_arm_of(&r->v->design, pair, slot)];
    if (evid__u32(j, "pair") != pair || evid__u32(j, "slot") != slot ||
        strcmp(evid__str(j, "arm"), arm) != 0)
        return HT_FAIL(e, HT_EFORMAT, "JOURNAL: line %zu: the design has pair %u slot %u arm %s",
                       r->at, pair, slot, arm);
    *out = j;
    return 0;
}

static int read_slots(reader *r, ht_err *e)
{
    const ht_mfile *f = ht_manifest_find(r->v->in, "samples.jsonl");
    const uint32_t pairs = ht_cmp_pairs(&r->v->design);
    evid__lines l = {f->data, f->data + f->bytes, false};
    for (uint32_t k = 0; k < 2 * pairs; k++) {
        const ht_json *start, *sample;
        const char *line, *from = l.p;
        char hex[HT_SHA256_HEX];
        size_t n;
        HT_TRY(expect(r, "start", k / 2, k % 2 + 1, &start, e));
        HT_TRY(expect(r, "sample", k / 2, k % 2 + 1, &sample, e));
        if (!evid__next_line(&l, &line, &n))
            return HT_FAIL(e, HT_EFORMAT, "SAMPLE: samples.jsonl ends before pair %u", k / 2);
        HT_TRY(evid__sha256_of(from, (size_t)(l.p - from), hex, e));
        const ht_json *sha = ht_json_get(sample, "sha256");
        if (!sha || strcmp(hex, sha->s) != 0)
            return HT_FAIL(e, HT_EFORMAT, "SAMPLE: the line of pair %u is not the one closed",
                           k / 2);
        HT_TRY(read_line(r, k / 2, k % 2 + 1, line, n, e));
    }
    if (l.p != l.end) return HT_FAIL(e, HT_EFORMAT, "SAMPLE: lines after the last pair");
    if (r->at != r->n_events - 1)
        return HT_FAIL(e, HT_EFORMAT, "JOURNAL: events that the design does not have");
    if (evid__u32(r->event[r->at], "slots") != 2 * pairs)
        return HT_FAIL(e, HT_EFORMAT, "JOURNAL: close counts %u slots, the design has %u",
                       evid__u32(r->event[r->at], "slots"), 2 * pairs);
    return 0;
}

static int read_run(reader *r, ht_err *e)
{
    const ht_mfile *journal = ht_manifest_find(r->v->in, "journal.jsonl");
    if (!journal || !ht_manifest_find(r->v->in, "samples.jsonl"))
        return HT_FAIL(e, HT_EFORMAT, "MANIFEST: journal.jsonl or samples.jsonl is missing");
    HT_TRY(ht_journal_check(r->a, journal->data, journal->bytes, true, &r->event, &r->n_events, e));
    HT_TRY(ht_schema_check(r->event[0], seal_fields, NULL, "JOURNAL design", e));
    HT_TRY(ht_schema_check(r->event[r->n_events - 1], close_fields, NULL, "JOURNAL close", e));
    if (strcmp(evid__str(r->event[0], "designSha256"), r->v->design.sha256) != 0)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: design.json is not what the journal sealed");
    r->at = 1;
    r->v->sample =
        ht_arena_array(r->a, (size_t)2 * ht_cmp_pairs(&r->v->design), sizeof *r->v->sample);
    if (!r->v->sample) return HT_FAIL(e, HT_ENOMEM, "samples: no memory");
    return read_slots(r, e);
}

int ht_comparison_read(ht_arena *a, const ht_manifest *in, ht_comparison *v, ht_err *e)
{
    char cls[HT_SHA256_HEX], state[HT_SHA256_HEX];
    bool unreadable = false;
    evid__subject x;
    reader r = {.a = a, .v = v};
    *v = (ht_comparison){.in = in};
    const ht_mfile *policy = ht_manifest_find(in, "policy.json");
    if (!policy) return HT_FAIL(e, HT_EFORMAT, "MANIFEST: policy.json is missing");
    HT_TRY(ht_policy_parse(a, policy->data, policy->bytes, &v->policy, e));
    HT_TRY(read_design(a, in, v, e));
    HT_TRY(evid__read_machine(a, in, cls, state, &unreadable, e));
    if (strcmp(cls, v->design.class_sha) != 0)
        return HT_FAIL(e, HT_EFORMAT, "MACHINE: the comparison was sealed for another machine");
    HT_TRY(evid__read_subject(a, in, &x, e));
    if (strcmp(x.model_sha, v->model_sha) != 0 || strcmp(x.tok_sha, v->tok_sha) != 0 ||
        strcmp(x.binary_sha, v->binary_sha) != 0)
        return HT_FAIL(e, HT_EFORMAT,
                       "SUBJECT: the subject files name another model, tokenizer or "
                       "program than the design");
    HT_TRY(read_prompts(&r, e));
    return read_run(&r, e);
}
