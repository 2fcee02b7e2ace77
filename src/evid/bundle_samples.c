/* bundle_samples.c - the journal, the sealed prompts and the sample lines against each other
 * and against the design: every attempt that was started is there, in the order that was
 * sealed, its guards decided before its timings, nothing twice, nothing left out. */
#include "evid/bundle_read.h"
#include "evid/journal.h"
#include "evid/verdict.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const arm_names[] = {"A", "B", "M", "N", NULL};
static const char *const void_names[] = {"NONE", "GUARD", "HARNESS", NULL};
enum { V_NONE, V_GUARD, V_HARNESS };

static const ht_field sample_fields[] = {
    {.key = "arm", .type = HT_S_ENUM, .names = arm_names},
    {.key = "attempt", .type = HT_S_INT, .lo = 1, .hi = 100},
    {.key = "block", .type = HT_S_INT, .lo = 0, .hi = 1000},
    {.key = "bucket", .type = HT_S_STR},
    {.key = "chunksSha256", .type = HT_S_SHA256},
    {.key = "e2eNs", .type = HT_S_MAYBE_INT},
    {.key = "endState", .type = HT_S_ENUM, .names = evid__end_names},
    {.key = "guards", .type = HT_S_OBJ},
    {.key = "intendedNs", .type = HT_S_INT},
    {.key = "nOut", .type = HT_S_INT, .lo = 0, .hi = UINT32_MAX},
    {.key = "nPrompt", .type = HT_S_INT, .lo = 1, .hi = UINT32_MAX},
    {.key = "outTokSha256", .type = HT_S_SHA256},
    {.key = "pairId", .type = HT_S_INT, .lo = 0, .hi = 1000},
    {.key = "promptTokSha256", .type = HT_S_SHA256},
    {.key = "receiptSha256", .type = HT_S_MAYBE_SHA256},
    {.key = "requestSha256", .type = HT_S_SHA256},
    {.key = "responseSha256", .type = HT_S_SHA256},
    {.key = "sendLagNs", .type = HT_S_INT},
    {.key = "slot", .type = HT_S_INT, .lo = 1, .hi = 4},
    {.key = "status", .type = HT_S_ENUM, .names = evid__status_names},
    {.key = "tpotNs", .type = HT_S_MAYBE_INT},
    {.key = "ttftNs", .type = HT_S_MAYBE_INT},
    {.key = "voidReason", .type = HT_S_ANY},
    {0},
};
static const ht_field prompt_fields[] = {
    {.key = "bucket", .type = HT_S_STR},
    {.key = "nPrompt", .type = HT_S_INT, .lo = 1, .hi = UINT32_MAX},
    {.key = "pairId", .type = HT_S_INT, .lo = 0, .hi = 1000},
    {.key = "promptTokSha256", .type = HT_S_SHA256},
    {.key = "request", .type = HT_S_INT, .lo = 0, .hi = 1000},
    {0},
};
static const ht_field proc_fields[] = {
    {.key = "exit", .type = HT_S_INT, .lo = -255, .hi = 255},
    {.key = "peakBytes", .type = HT_S_INT, .lo = 1, .hi = ((int64_t)1 << 53) - 1},
    {.key = "warmupNs", .type = HT_S_INT},
    {0},
};

typedef struct {
    ht_arena *a;
    ht_evidence *v;
    ht_json **event;
    size_t n_events, at;      /* journal: next event                                         */
    evid__lines lines;        /* samples: next line                                          */
    const ht_json **prompt;   /* [(pair * n_cells + cell) * requests + request]              */
    const char **request_sha; /* the same index: of the pair's first slot                    */
    const char **chunks;
    size_t n_chunks; /* digests of streams that ended well         */
    size_t cap;
    uint32_t n_attempts;
} reader;

static size_t prompt_index(const reader *r, uint32_t pair, uint32_t cell, uint32_t request)
{
    const ht_design *d = &r->v->design;
    return ((size_t)pair * d->n_cells + cell) * d->requests + request;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static int read_prompts(reader *r, ht_err *e)
{
    const ht_design *d = &r->v->design;
    const ht_mfile *f = ht_manifest_find(r->v->in, "prompts.jsonl");
    const uint32_t pairs = d->n_blocks * 2;
    size_t n = (size_t)pairs * d->n_cells * d->requests, k = 0, len;
    const char *line;
    if (!f) return HT_FAIL(e, HT_EFORMAT, "MANIFEST: prompts.jsonl is missing");
    if (strcmp(f->sha256, d->prompts_sha) != 0)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: prompts.jsonl is not what was sealed");
    r->prompt = ht_arena_array(r->a, n, sizeof *r->prompt);
    r->request_sha = ht_arena_array(r->a, n, sizeof *r->request_sha);
    const char **sha = ht_arena_array(r->a, n, sizeof *sha);
    if (!r->prompt || !r->request_sha || !sha)
        return HT_FAIL(e, HT_ENOMEM, "prompts: no memory for %zu", n);
    evid__lines l = {f->data, f->data + f->bytes, false};
    for (; evid__next_line(&l, &line, &len); k++) {
        ht_json *j;
        HT_TRY(ht_json_parse(r->a, line, len, HT_JSON_CANON, "prompts.jsonl", &j, e));
        HT_TRY(ht_schema_check(j, prompt_fields, NULL, "prompts.jsonl", e));
        uint32_t cell = (uint32_t)(k / d->requests % d->n_cells);
        if (k >= n || evid__u32(j, "pairId") != k / d->requests / d->n_cells ||
            evid__u32(j, "request") != k % d->requests ||
            strcmp(evid__str(j, "bucket"), d->cell[cell].id) != 0)
            return HT_FAIL(e, HT_EFORMAT, "DESIGN: prompts.jsonl line %zu is not the one expected",
                           k + 1);
        r->prompt[k] = j;
        sha[k] = evid__str(j, "promptTokSha256");
    }
    if (l.bad || k != n)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: prompts.jsonl has %zu lines, need %zu", k, n);
    const char *twice = evid__first_twice(sha, n);
    if (twice)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: prompt %.16s... is used by two requests", twice);
    return 0;
}

/* ---- journal --------------------------------------------------------------------------------- */

static bool is_event(const reader *r, const char *name)
{
    const ht_json *ev = r->at < r->n_events ? ht_json_get(r->event[r->at], "event") : NULL;
    return ev && ev->type == HT_JSTR && strcmp(ev->s, name) == 0;
}

static const ht_field attempt_fields[] = {
    {.key = "arm", .type = HT_S_ENUM, .names = arm_names},
    {.key = "attempt", .type = HT_S_INT},
    {.key = "block", .type = HT_S_INT},
    {.key = "event", .type = HT_S_STR},
    {.key = "monoNs", .type = HT_S_INT},
    {.key = "prev", .type = HT_S_SHA256},
    {.key = "seq", .type = HT_S_INT},
    {.key = "slot", .type = HT_S_INT},
    {.key = "lines", .type = HT_S_INT, .optional = true},
    {.key = "sha256", .type = HT_S_SHA256, .optional = true},
    {.key = "void", .type = HT_S_ENUM, .names = void_names, .optional = true},
    {0},
};

typedef struct {
    uint32_t block, slot, attempt;
    char arm;
} place;

/* The next event must be `name` of this place; notes in between are passed over. */
static int expect(reader *r, const char *name, const place *p, const ht_json **out, ht_err *e)
{
    while (is_event(r, "note")) r->at++;
    if (!is_event(r, name))
        return HT_FAIL(e, HT_EFORMAT,
                       "JOURNAL: block %u slot %u attempt %u: need event %s at line %zu", p->block,
                       p->slot, p->attempt, name, r->at + 1);
    const ht_json *j = r->event[r->at++];
    HT_TRY(ht_schema_check(j, attempt_fields, NULL, "JOURNAL", e));
    const char arm[2] = {p->arm, 0};
    if (evid__u32(j, "block") != p->block || evid__u32(j, "slot") != p->slot ||
        evid__u32(j, "attempt") != p->attempt || strcmp(evid__str(j, "arm"), arm) != 0)
        return HT_FAIL(
            e, HT_EFORMAT,
            "JOURNAL: line %zu: %s is for block %u slot %u attempt %u arm %s, the design "
            "has block %u slot %u attempt %u arm %s next",
            r->at, name, evid__u32(j, "block"), evid__u32(j, "slot"), evid__u32(j, "attempt"),
            evid__str(j, "arm"), p->block, p->slot, p->attempt, arm);
    *out = j;
    return 0;
}

/* ---- one sample line ------------------------------------------------------------------------- */

static uint64_t maybe(const ht_json *j, const char *key)
{
    const ht_json *v = ht_json_get(j, key);
    return v->type == HT_JINT ? (uint64_t)v->i : 0;
}

/* Void words, status and guards must tell one story: only telemetry voids, and it always does. */
static int check_void(const ht_json *j, const ht_sample *s, int why, ht_err *e)
{
    const ht_json *reason = ht_json_get(j, "voidReason");
    bool red = s->guards.red != 0, named = reason->type == HT_JSTR;
    bool good = why == V_NONE    ? !red && !named && s->status < HT_SM_VOID
                : why == V_GUARD ? red && named && s->status == HT_SM_VOID
                                 : named && s->status == HT_SM_HARNESS;
    if (good && (named || reason->type == HT_JNULL)) return 0;
    return HT_FAIL(e, HT_EFORMAT,
                   "SAMPLE: block %u slot %u: status %s does not follow from the guards (journal: "
                   "%s; telemetry: %s)",
                   s->block, s->slot, evid__status_names[s->status], void_names[why],
                   red ? "red" : "clear");
}

static int check_times(const ht_json *j, const ht_sample *s, const ht_cell *cell, ht_err *e)
{
    for (unsigned m = 0; m < HT_METRICS; m++)
        if (maybe(j, ht_metric_names[m]) != s->metric[m] ||
            (ht_json_get(j, ht_metric_names[m])->type == HT_JINT) != (s->metric[m] != 0))
            return HT_FAIL(e, HT_EFORMAT,
                           "SAMPLE: block %u slot %u: %s is not what the chunks give (%llu)",
                           s->block, s->slot, ht_metric_names[m], (unsigned long long)s->metric[m]);
    if (s->status == HT_SM_OK && s->metric[cell->metric] == 0)
        return HT_FAIL(e, HT_EFORMAT,
                       "SAMPLE: block %u slot %u: cell %s needs %s and it is unknown", s->block,
                       s->slot, cell->id, ht_metric_names[cell->metric]);
    /* The whole of fewer tokens is another work, and a shorter one. */
    if (s->status == HT_SM_OK && cell->scope.phase == HT_COMPLETE &&
        s->n_out != cell->scope.max_new)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: block %u slot %u: cell %s is %u tokens, this is %u",
                       s->block, s->slot, cell->id, cell->scope.max_new, s->n_out);
    return 0;
}

/* The same request bytes in both arms of a pair, the prompt that was sealed, no stream twice. */
static int check_identity(reader *r, const ht_json *j, const ht_sample *s, ht_err *e)
{
    const ht_cell *cell = &r->v->design.cell[s->cell];
    size_t k = prompt_index(r, s->pair, s->cell, s->request);
    if (strcmp(evid__str(j, "promptTokSha256"), evid__str(r->prompt[k], "promptTokSha256")) != 0 ||
        s->n_prompt != evid__u32(r->prompt[k], "nPrompt"))
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u cell %s request %u: not the sealed prompt",
                       s->pair, cell->id, s->request);
    if (s->n_prompt < cell->scope.min_tokens || s->n_prompt > cell->scope.max_tokens)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u cell %s: %u tokens are outside %u-%u",
                       s->pair, cell->id, s->n_prompt, cell->scope.min_tokens,
                       cell->scope.max_tokens);
    if (!r->request_sha[k]) r->request_sha[k] = evid__str(j, "requestSha256");
    if (strcmp(r->request_sha[k], evid__str(j, "requestSha256")) != 0)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: pair %u cell %s: the arms sent different requests",
                       s->pair, cell->id);
    if (s->status == HT_SM_OK) r->chunks[r->n_chunks++] = evid__str(j, "chunksSha256");
    return 0;
}

static int read_line(reader *r, const place *p, uint32_t k, int why, const char *line, size_t n,
                     ht_sample *s, ht_err *e)
{
    const ht_design *d = &r->v->design;
    ht_json *j;
    HT_TRY(ht_json_parse(r->a, line, n, HT_JSON_CANON, "samples.jsonl", &j, e));
    HT_TRY(ht_schema_check(j, sample_fields, "hetero/sample/1", "SAMPLE", e));
    *s = (ht_sample){.block = p->block,
                     .slot = p->slot,
                     .attempt = p->attempt,
                     .arm = p->arm,
                     .pair = 2 * p->block + (p->slot - 1) / 2,
                     .cell = k / d->requests,
                     .request = k % d->requests,
                     .n_prompt = evid__u32(j, "nPrompt"),
                     .n_out = evid__u32(j, "nOut")};
    const char arm[2] = {p->arm, 0};
    while (strcmp(evid__status_names[s->status], evid__str(j, "status")) != 0) s->status++;
    if (s->cell >= d->n_cells || evid__u32(j, "block") != s->block ||
        evid__u32(j, "slot") != s->slot || evid__u32(j, "attempt") != s->attempt ||
        evid__u32(j, "pairId") != s->pair || strcmp(evid__str(j, "arm"), arm) != 0 ||
        strcmp(evid__str(j, "bucket"), d->cell[s->cell].id) != 0)
        return HT_FAIL(
            e, HT_EFORMAT,
            "SAMPLE: a line of block %u slot %u attempt %u is not the one the design has "
            "there",
            p->block, p->slot, p->attempt);
    HT_TRY(
        ht_guards_read(ht_json_get(j, "guards"), &r->v->policy, r->v->design.cpus, &s->guards, e));
    HT_TRY(check_void(j, s, why, e));
    char prefix[64];
    snprintf(prefix, sizeof prefix, "raw/b%02u/s%u-%c/a%u/", s->block, s->slot, s->arm, s->attempt);
    const ht_json *receipt = ht_json_get(j, "receiptSha256");
    evid__raw raw = {.prefix = prefix,
                     .request_sha = evid__str(j, "requestSha256"),
                     .response_sha = evid__str(j, "responseSha256"),
                     .chunks_sha = evid__str(j, "chunksSha256"),
                     .receipt_sha = receipt->type == HT_JSTR ? receipt->s : NULL,
                     .out_sha = evid__str(j, "outTokSha256"),
                     .intended_ns = maybe(j, "intendedNs"),
                     .send_lag_ns = maybe(j, "sendLagNs"),
                     .end_state = evid__str(j, "endState")};
    HT_TRY(evid__read_raw(r->a, r->v->in, &raw, s, e));
    HT_TRY(check_times(j, s, &d->cell[s->cell], e));
    return check_identity(r, j, s, e);
}

/* ---- slots, attempts, blocks ----------------------------------------------------------------- */

static int read_proc(reader *r, const place *p, ht_err *e)
{
    char path[80];
    const ht_json *j;
    snprintf(path, sizeof path, "raw/b%02u/s%u-%c/a%u/proc.json", p->block, p->slot, p->arm,
             p->attempt);
    HT_TRY(evid__doc(r->a, r->v->in, path, proc_fields, "hetero/proc/1", &j, e));
    if (p->arm != 'B') return 0;
    uint64_t peak = maybe(j, "peakBytes"), warm = maybe(j, "warmupNs");
    if (peak > r->v->mem_peak) r->v->mem_peak = peak;
    if (warm > r->v->warmup_ns) r->v->warmup_ns = warm;
    return 0;
}

/* Start, guards, samples of one slot; *why: was it voided. */
static int read_slot(reader *r, const place *p, int *why, ht_err *e)
{
    const ht_design *d = &r->v->design;
    const ht_json *start, *guards, *samples;
    HT_TRY(expect(r, "start", p, &start, e));
    HT_TRY(expect(r, "guards", p, &guards, e));
    HT_TRY(expect(r, "samples", p, &samples, e));
    const ht_json *word = ht_json_get(guards, "void"), *lines = ht_json_get(samples, "lines");
    const ht_json *sha = ht_json_get(samples, "sha256");
    if (!word || !lines || !sha)
        return HT_FAIL(e, HT_EFORMAT, "JOURNAL: block %u slot %u: void, lines or sha256 is missing",
                       p->block, p->slot);
    for (*why = V_NONE; strcmp(void_names[*why], word->s) != 0;) (*why)++;
    const uint32_t want = (uint32_t)d->n_cells * d->requests;
    if (*why == V_NONE ? lines->i != want : (lines->i < 1 || lines->i > want))
        return HT_FAIL(e, HT_EFORMAT,
                       "SAMPLE: block %u slot %u has %lld lines, the design needs %u", p->block,
                       p->slot, (long long)lines->i, want);
    const char *first = r->lines.p, *line = NULL;
    size_t n = 0;
    for (uint32_t k = 0; k < (uint32_t)lines->i; k++) {
        if (!evid__next_line(&r->lines, &line, &n))
            return HT_FAIL(e, HT_EFORMAT, "SAMPLE: samples.jsonl ends before block %u slot %u",
                           p->block, p->slot);
        if (r->v->n_samples == r->cap)
            return HT_FAIL(e, HT_EFORMAT, "SAMPLE: more lines than the design and policy allow");
        HT_TRY(read_line(r, p, k, *why, line, n, &r->v->sample[r->v->n_samples], e));
        r->v->n_samples++;
    }
    char hex[HT_SHA256_HEX];
    HT_TRY(evid__sha256_of(first, (size_t)(r->lines.p - first), hex, e));
    if (strcmp(hex, sha->s) != 0)
        return HT_FAIL(e, HT_EFORMAT,
                       "SAMPLE: the lines of block %u slot %u are not those the journal closed",
                       p->block, p->slot);
    return *why == V_NONE ? read_proc(r, p, e) : 0;
}

/* A block is run whole; a void slot ends the attempt and the block is run again, as often as the
 * policy allows. An attempt that was not void is the last: there is no second try at a good one. */
static int read_block(reader *r, uint32_t b, ht_err *e)
{
    const char *arms = r->v->design.order[b];
    for (uint32_t attempt = 1; attempt <= 1 + r->v->policy.retries; attempt++) {
        size_t first = r->v->n_samples;
        int why = V_NONE;
        r->n_attempts++;
        for (uint32_t s = 1; s <= 4 && why == V_NONE; s++) {
            const place p = {b, s, attempt, arms[s - 1]};
            HT_TRY(read_slot(r, &p, &why, e));
        }
        if (why == V_NONE) {
            for (size_t i = first; i < r->v->n_samples; i++) r->v->sample[i].last = true;
            return 0;
        }
        r->v->n_void_attempts++;
    }
    return 0;
}

static const ht_field seal_fields[] = {
    {.key = "designSha256", .type = HT_S_SHA256},
    {.key = "event", .type = HT_S_STR},
    {.key = "monoNs", .type = HT_S_INT},
    {.key = "prev", .type = HT_S_SHA256},
    {.key = "seq", .type = HT_S_INT},
    {0},
};
static const ht_field close_fields[] = {
    {.key = "attempts", .type = HT_S_INT}, {.key = "blocks", .type = HT_S_INT},
    {.key = "event", .type = HT_S_STR},    {.key = "monoNs", .type = HT_S_INT},
    {.key = "prev", .type = HT_S_SHA256},  {.key = "seq", .type = HT_S_INT},
    {.key = "voids", .type = HT_S_INT},    {0},
};

static int open_reader(reader *r, ht_err *e)
{
    ht_evidence *v = r->v;
    const ht_mfile *journal = ht_manifest_find(v->in, "journal.jsonl");
    const ht_mfile *samples = ht_manifest_find(v->in, "samples.jsonl");
    if (!journal || !samples)
        return HT_FAIL(e, HT_EFORMAT, "MANIFEST: journal.jsonl or samples.jsonl is missing");
    HT_TRY(ht_journal_check(r->a, journal->data, journal->bytes, true, &r->event, &r->n_events, e));
    const ht_json *seal = r->event[0];
    HT_TRY(ht_schema_check(seal, seal_fields, NULL, "JOURNAL design", e));
    if (strcmp(evid__str(seal, "designSha256"), v->design.sha256) != 0)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: design.json is not what the journal sealed");
    HT_TRY(ht_schema_check(r->event[r->n_events - 1], close_fields, NULL, "JOURNAL close", e));
    r->at = 1;
    r->lines = (evid__lines){samples->data, samples->data + samples->bytes, false};
    size_t per_block = (size_t)4 * v->design.n_cells * v->design.requests;
    r->cap = per_block * v->design.n_blocks * (1 + v->policy.retries);
    v->sample = ht_arena_array(r->a, r->cap, sizeof *v->sample);
    r->chunks = ht_arena_array(r->a, r->cap, sizeof *r->chunks);
    if (!v->sample || !r->chunks)
        return HT_FAIL(e, HT_ENOMEM, "samples: no memory for %zu lines", r->cap);
    return 0;
}

int evid__read_samples(ht_arena *a, ht_evidence *v, ht_err *e)
{
    reader r = {.a = a, .v = v};
    HT_TRY(open_reader(&r, e));
    HT_TRY(read_prompts(&r, e));
    for (uint32_t b = 0; b < v->design.n_blocks; b++) HT_TRY(read_block(&r, b, e));
    while (is_event(&r, "note")) r.at++;
    const ht_json *close = r.event[r.n_events - 1];
    if (r.at != r.n_events - 1)
        return HT_FAIL(e, HT_EFORMAT, "JOURNAL: line %zu: an attempt that the design does not have",
                       r.at + 1);
    if (r.lines.p != r.lines.end)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: lines after the last block");
    if (evid__u32(close, "attempts") != r.n_attempts ||
        evid__u32(close, "blocks") != v->design.n_blocks ||
        evid__u32(close, "voids") != v->n_void_attempts)
        return HT_FAIL(e, HT_EFORMAT,
                       "JOURNAL: close counts %u attempts and %u voids, found %u, %u",
                       evid__u32(close, "attempts"), evid__u32(close, "voids"), r.n_attempts,
                       v->n_void_attempts);
    const char *twice = evid__first_twice(r.chunks, r.n_chunks);
    if (twice)
        return HT_FAIL(e, HT_EFORMAT, "SAMPLE: stream %.16s... is used by two samples", twice);
    return 0;
}
