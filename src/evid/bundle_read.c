/* bundle_read.c - a bundle's documents apart from its samples: design, machine, subject, build,
 * edges; see bundle.h and docs/bundle.md. */
#include "evid/bundle_read.h"
#include "evid/verdict.h"
#include <stdlib.h>
#include <string.h>

static const ht_field cell_fields[] = {
    {.key = "id", .type = HT_S_STR},
    {.key = "metric", .type = HT_S_ENUM, .names = ht_metric_names},
    {.key = "refScope", .type = HT_S_OBJ},
    {.key = "scope", .type = HT_S_OBJ},
    {0},
};
static const char *const block_kind[] = {"ABBA_BAAB", NULL};
static const char *const block_words[] = {"ABBA", "BAAB", "NMMN", "MNNM", NULL};
static const ht_field design_fields[] = {
    {.key = "blocks", .type = HT_S_ENUM, .names = block_kind},
    {.key = "cells", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = cell_fields},
    {.key = "cpus", .type = HT_S_INT, .lo = 1, .hi = 1000000},
    {.key = "nullPairs", .type = HT_S_INT, .lo = 8, .hi = HT_STAT_MAX_N},
    {.key = "order", .type = HT_S_ARR, .item = HT_S_ENUM, .names = block_words},
    {.key = "pairs", .type = HT_S_INT, .lo = 8, .hi = HT_STAT_MAX_N},
    {.key = "policySha256", .type = HT_S_SHA256},
    {.key = "predecessor", .type = HT_S_MAYBE_SHA256},
    {.key = "promptsSha256", .type = HT_S_SHA256},
    {.key = "requestsPerSlot", .type = HT_S_INT, .lo = 1, .hi = 1000},
    {.key = "seed", .type = HT_S_INT},
    {.key = "selectionBundle", .type = HT_S_MAYBE_SHA256},
    {.key = "spacingNs", .type = HT_S_INT},
    {.key = "startedUtc", .type = HT_S_UTC},
    {.key = "synthetic", .type = HT_S_BOOL},
    {.key = "warmupRequests", .type = HT_S_INT, .lo = 0, .hi = 1000},
    {0},
};

int evid__doc(ht_arena *a, const ht_manifest *m, const char *path, const ht_field *fields,
              const char *schema, const ht_json **out, ht_err *e)
{
    const ht_mfile *f = ht_manifest_find(m, path);
    ht_json *j;
    if (!f) return HT_FAIL(e, HT_EFORMAT, "MANIFEST: %s is missing", path);
    HT_TRY(ht_json_parse(a, f->data, f->bytes, HT_JSON_CANON, path, &j, e));
    *out = j;
    return ht_schema_check(j, fields, schema, path, e);
}

int evid__sha256_of(const void *p, size_t n, char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(p, n, digest, e));
    ht_hex(digest, sizeof digest, hex);
    return 0;
}

const char *const evid__status_names[HT_SM_STATES + 1] = {
    "ok",        "sutError",     "timeout", "oom", "badOutput", "routeMismatch",
    "voidGuard", "harnessError", NULL};
const char *const evid__end_names[5] = {"DONE", "LENGTH_MET", "EOF_EARLY", "RESET", NULL};

const char *evid__str(const ht_json *j, const char *key)
{
    return ht_json_get(j, key)->s;
}

uint32_t evid__u32(const ht_json *j, const char *key)
{
    return (uint32_t)ht_json_get(j, key)->i;
}

static int by_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

const char *evid__first_twice(const char **list, size_t n)
{
    if (n) qsort(list, n, sizeof *list, by_text);
    for (size_t i = 1; i < n; i++)
        if (strcmp(list[i - 1], list[i]) == 0) return list[i];
    return NULL;
}

const char *ht_design_block(uint64_t seed, uint32_t b, bool null_run)
{
    return block_words[(null_run ? 2 : 0) + ((seed + b) & 1)];
}

/* An embedded scope: its canonical bytes are its identity. */
static int read_scope(ht_arena *a, const ht_json *j, ht_scope *out, char sha[HT_SHA256_HEX],
                      ht_err *e)
{
    ht_buf b;
    ht_buf_init(&b, 1 << 16);
    int rc = ht_json_write(j, HT_JSON_CANON, &b, e);
    if (rc == 0) rc = ht_scope_parse(a, b.p, b.n, out, e);
    if (rc == 0) rc = evid__sha256_of(b.p, b.n, sha, e);
    ht_buf_done(&b);
    return rc;
}

const uint8_t ht_phase_metric[HT_COMPLETE + 1] = {HT_M_TTFT, HT_M_TPOT, HT_M_E2E};

static int read_cell(ht_arena *a, const ht_json *j, ht_cell *c, ht_err *e)
{
    c->id = ht_json_get(j, "id")->s;
    const char *metric = ht_json_get(j, "metric")->s;
    HT_TRY(read_scope(a, ht_json_get(j, "scope"), &c->scope, c->scope_sha, e));
    HT_TRY(read_scope(a, ht_json_get(j, "refScope"), &c->ref, c->ref_sha, e));
    c->metric = ht_phase_metric[c->scope.phase];
    if (strcmp(metric, ht_metric_names[c->metric]) != 0)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: cell %s: phase %s is measured by %s", c->id,
                       ht_phase_name(c->scope.phase), ht_metric_names[c->metric]);
    /* What may differ between the arms is how the work is done, never what the work is. */
    ht_scope same = c->ref;
    same.backend = c->scope.backend;
    same.assets_sha = c->scope.assets_sha;
    same.acc = c->scope.acc;
    same.act = c->scope.act;
    same.kv = c->scope.kv;
    same.weights = c->scope.weights;
    const char *differs = ht_scope_differs(&c->scope, &same);
    if (differs || c->ref.phase != c->scope.phase || c->ref.min_tokens != c->scope.min_tokens ||
        c->ref.max_tokens != c->scope.max_tokens || c->ref.max_new != c->scope.max_new)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: cell %s: the reference has another %s", c->id,
                       differs ? differs : "bucket");
    if (strcmp(c->scope_sha, c->ref_sha) == 0)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: cell %s: candidate and reference are one scope",
                       c->id);
    return 0;
}

static int read_cells(ht_arena *a, const ht_json *list, ht_design *d, ht_err *e)
{
    if (list->n == 0 || list->n > EVID__MAX_CELLS)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: %zu cells, need 1 to %d", list->n,
                       (int)EVID__MAX_CELLS);
    ht_cell *cell = ht_arena_array(a, list->n, sizeof *cell);
    if (!cell) return HT_FAIL(e, HT_ENOMEM, "design: no memory for %zu cells", list->n);
    for (size_t i = 0; i < list->n; i++) {
        HT_TRY(read_cell(a, &list->at[i], &cell[i], e));
        if (i && strcmp(cell[i - 1].id, cell[i].id) >= 0)
            return HT_FAIL(e, HT_EFORMAT, "DESIGN: cell %s is listed twice or out of order",
                           cell[i].id);
        for (size_t k = 0; k < i; k++)
            if (strcmp(cell[k].scope_sha, cell[i].scope_sha) == 0)
                return HT_FAIL(e, HT_EFORMAT, "DESIGN: cells %s and %s have one scope", cell[k].id,
                               cell[i].id);
    }
    d->cell = cell;
    d->n_cells = list->n;
    return 0;
}

static int read_order(ht_arena *a, const ht_json *list, ht_design *d, ht_err *e)
{
    uint32_t n_null = d->null_pairs / 2;
    d->n_blocks = n_null + d->pairs / 2;
    if (d->pairs % 4 || d->null_pairs % 4)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: pairs must be a multiple of 4 (blocks of two)");
    if (list->n != d->n_blocks)
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: order has %zu blocks, %u pairs need %u", list->n,
                       d->pairs + d->null_pairs, d->n_blocks);
    const char **order = ht_arena_array(a, list->n, sizeof *order);
    if (!order) return HT_FAIL(e, HT_ENOMEM, "design: no memory for the order");
    for (uint32_t b = 0; b < d->n_blocks; b++) {
        order[b] = ht_design_block(d->seed, b, b < n_null);
        if (strcmp(order[b], list->at[b].s) != 0)
            return HT_FAIL(e, HT_EFORMAT, "DESIGN: block %u is %s, the seed gives %s", b,
                           list->at[b].s, order[b]);
    }
    d->order = order;
    return 0;
}

static int read_design(ht_arena *a, const ht_manifest *m, const ht_policy *p, ht_design *d,
                       ht_err *e)
{
    const ht_json *j;
    HT_TRY(evid__doc(a, m, "design.json", design_fields, "hetero/design/1", &j, e));
    const ht_json *selection = ht_json_get(j, "selectionBundle");
    *d = (ht_design){
        .pairs = (uint32_t)ht_json_get(j, "pairs")->i,
        .null_pairs = (uint32_t)ht_json_get(j, "nullPairs")->i,
        .cpus = (uint32_t)ht_json_get(j, "cpus")->i,
        .requests = (uint32_t)ht_json_get(j, "requestsPerSlot")->i,
        .seed = (uint64_t)ht_json_get(j, "seed")->i,
        .synthetic = ht_json_get(j, "synthetic")->b,
        .policy_sha = ht_json_get(j, "policySha256")->s,
        .prompts_sha = ht_json_get(j, "promptsSha256")->s,
        .selection = selection->type == HT_JSTR ? selection->s : NULL,
    };
    memcpy(d->sha256, ht_manifest_find(m, "design.json")->sha256, sizeof d->sha256);
    if (!ht_utc_parse(ht_json_get(j, "startedUtc")->s, &d->started_unix))
        return HT_FAIL(e, HT_EFORMAT, "DESIGN: startedUtc is not a time");
    if (strcmp(d->policy_sha, p->sha256) != 0)
        return HT_FAIL(e, HT_EFORMAT,
                       "DESIGN: sealed for policy %.16s..., the bundle holds %.16s...",
                       d->policy_sha, p->sha256);
    HT_TRY(read_order(a, ht_json_get(j, "order"), d, e));
    return read_cells(a, ht_json_get(j, "cells"), d, e);
}

/* ---- machine, subject, build ----------------------------------------------------------------- */

const ht_field evid__machine_fields[] = {
    {.key = "live", .type = HT_S_OBJ},
    {.key = "record", .type = HT_S_OBJ},
    {.key = "reject", .type = HT_S_OBJ},
    {.key = "stale", .type = HT_S_OBJ},
    {0},
};

int evid__machine_part(const ht_json *doc, const char *part, char hex[HT_SHA256_HEX],
                       bool *unreadable, ht_err *e)
{
    const ht_json *obj = ht_json_get(doc, part);
    ht_buf b;
    ht_buf_init(&b, 1 << 22);
    int rc = ht_json_write(obj, HT_JSON_CANON, &b, e);
    if (rc == 0) rc = evid__sha256_of(b.p, b.n, hex, e);
    ht_buf_done(&b);
    for (size_t i = 0; i < obj->n; i++)
        if (ht_json_get(&obj->at[i], "unreadable")) *unreadable = true;
    return rc;
}

int evid__read_machine(ht_arena *a, const ht_manifest *m, char cls[HT_SHA256_HEX],
                       char state[HT_SHA256_HEX], bool *unreadable, ht_err *e)
{
    char cls_after[HT_SHA256_HEX], state_after[HT_SHA256_HEX];
    for (int i = 0; i < 2; i++) {
        const ht_json *j;
        HT_TRY(evid__doc(a, m, i ? "machine/after.json" : "machine/before.json",
                         evid__machine_fields, "hetero/machine/1", &j, e));
        HT_TRY(evid__machine_part(j, "reject", i ? cls_after : cls, unreadable, e));
        HT_TRY(evid__machine_part(j, "stale", i ? state_after : state, unreadable, e));
    }
    if (strcmp(cls, cls_after) != 0 || strcmp(state, state_after) != 0)
        return HT_FAIL(e, HT_EFORMAT, "MACHINE: the machine changed during the run");
    return 0;
}

static int read_machine(ht_arena *a, const ht_manifest *m, ht_evidence *v, ht_err *e)
{
    char cls[HT_SHA256_HEX];
    HT_TRY(evid__read_machine(a, m, cls, v->state_sha, &v->unreadable, e));
    const ht_design *d = &v->design;
    for (size_t i = 0; i < d->n_cells; i++) {
        const ht_scope *s = &d->cell[i].scope, *first = &d->cell[0].scope;
        if (strcmp(s->class_sha, cls) != 0 || strcmp(s->instance, first->instance) != 0 ||
            strcmp(s->os, first->os) != 0)
            return HT_FAIL(e, HT_EFORMAT, "MACHINE: cell %s is for another machine", d->cell[i].id);
    }
    return 0;
}

static const ht_field file_fields[] = {
    {.key = "bytes", .type = HT_S_INT},
    {.key = "path", .type = HT_S_STR},
    {.key = "sha256", .type = HT_S_SHA256},
    {0},
};
static const ht_field pack_fields[] = {
    {.key = "files", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = file_fields},
    {.key = "sha256", .type = HT_S_SHA256},
    {0},
};
static const ht_field tokenizer_fields[] = {
    {.key = "sha256", .type = HT_S_SHA256},
    {.key = "templateSha256", .type = HT_S_SHA256},
    {0},
};
static const ht_field assets_fields[] = {
    {.key = "files", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = file_fields},
    {0},
};
static const ht_field source_fields[] = {
    {.key = "commit", .type = HT_S_STR},
    {.key = "dirty", .type = HT_S_BOOL},
    {.key = "tree", .type = HT_S_STR},
    {0},
};
static const ht_field binary_fields[] = {
    {.key = "bytes", .type = HT_S_INT},
    {.key = "sha256", .type = HT_S_SHA256},
    {0},
};
static const ht_field toolchain_fields[] = {
    {.key = "compiler", .type = HT_S_STR},
    {.key = "flags", .type = HT_S_STR},
    {0},
};

int evid__read_subject(ht_arena *a, const ht_manifest *m, evid__subject *out, ht_err *e)
{
    const ht_json *pack, *tok, *assets, *source, *binary, *tools;
    HT_TRY(evid__doc(a, m, "subject/modelpack.json", pack_fields, "hetero/modelpack/1", &pack, e));
    HT_TRY(
        evid__doc(a, m, "subject/tokenizer.json", tokenizer_fields, "hetero/tokenizer/1", &tok, e));
    HT_TRY(evid__doc(a, m, "subject/assets.json", assets_fields, "hetero/assets/1", &assets, e));
    HT_TRY(evid__doc(a, m, "build/source.json", source_fields, "hetero/source/1", &source, e));
    HT_TRY(evid__doc(a, m, "build/binary.json", binary_fields, "hetero/binary/1", &binary, e));
    HT_TRY(
        evid__doc(a, m, "build/toolchain.json", toolchain_fields, "hetero/toolchain/1", &tools, e));
    *out = (evid__subject){.model_sha = ht_json_get(pack, "sha256")->s,
                           .tok_sha = ht_json_get(tok, "sha256")->s,
                           .tmpl_sha = ht_json_get(tok, "templateSha256")->s,
                           .binary_sha = ht_json_get(binary, "sha256")->s,
                           .assets_sha = ht_manifest_find(m, "subject/assets.json")->sha256,
                           .dirty = ht_json_get(source, "dirty")->b};
    return 0;
}

static int read_subject(ht_arena *a, const ht_manifest *m, ht_evidence *v, ht_err *e)
{
    evid__subject x;
    HT_TRY(evid__read_subject(a, m, &x, e));
    v->model_sha = x.model_sha;
    v->tok_sha = x.tok_sha;
    v->tmpl_sha = x.tmpl_sha;
    v->binary_sha = x.binary_sha;
    v->assets_sha = x.assets_sha;
    v->dirty_build = x.dirty;
    for (size_t i = 0; i < v->design.n_cells; i++) {
        const ht_scope *s = &v->design.cell[i].scope;
        const char *wrong = strcmp(s->model_sha, v->model_sha)     ? "modelPackSha256"
                            : strcmp(s->tok_sha, v->tok_sha)       ? "tokenizerSha256"
                            : strcmp(s->tmpl_sha, v->tmpl_sha)     ? "templateSha256"
                            : strcmp(s->binary_sha, v->binary_sha) ? "binarySha256"
                            : strcmp(s->assets_sha, v->assets_sha) ? "assetsSha256"
                                                                   : NULL;
        if (wrong)
            return HT_FAIL(e, HT_EFORMAT, "SUBJECT: cell %s has another %s than the subject files",
                           v->design.cell[i].id, wrong);
    }
    return 0;
}

static const ht_field edge_fields[] = {
    {.key = "fixedNs", .type = HT_S_INT}, {.key = "from", .type = HT_S_STR},
    {.key = "kind", .type = HT_S_STR},    {.key = "nsPerToken", .type = HT_S_INT},
    {.key = "to", .type = HT_S_STR},      {0},
};
static const ht_field edges_fields[] = {
    {.key = "edges", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = edge_fields},
    {0},
};

static int read_edges(ht_arena *a, const ht_manifest *m, ht_evidence *v, ht_err *e)
{
    const ht_json *j;
    if (!ht_manifest_find(m, "edges.json")) return 0;
    HT_TRY(evid__doc(a, m, "edges.json", edges_fields, "hetero/edges/1", &j, e));
    const ht_json *list = ht_json_get(j, "edges");
    ht_edge *edge = ht_arena_array(a, list->n, sizeof *edge);
    if (!edge) return HT_FAIL(e, HT_ENOMEM, "edges: no memory for %zu", list->n);
    for (size_t i = 0; i < list->n; i++) {
        const ht_json *x = &list->at[i];
        edge[i] = (ht_edge){.from = ht_json_get(x, "from")->s,
                            .to = ht_json_get(x, "to")->s,
                            .kind = ht_json_get(x, "kind")->s,
                            .ns_per_token = (uint64_t)ht_json_get(x, "nsPerToken")->i,
                            .fixed_ns = (uint64_t)ht_json_get(x, "fixedNs")->i};
    }
    v->edge = edge;
    v->n_edges = list->n;
    return 0;
}

int ht_evidence_read(ht_arena *a, const ht_manifest *in, ht_evidence *v, ht_err *e)
{
    *v = (ht_evidence){.in = in};
    const ht_mfile *policy = ht_manifest_find(in, "policy.json");
    if (!policy) return HT_FAIL(e, HT_EFORMAT, "MANIFEST: policy.json is missing");
    HT_TRY(ht_policy_parse(a, policy->data, policy->bytes, &v->policy, e));
    HT_TRY(read_design(a, in, &v->policy, &v->design, e));
    HT_TRY(read_machine(a, in, v, e));
    HT_TRY(read_subject(a, in, v, e));
    HT_TRY(read_edges(a, in, v, e));
    HT_TRY(evid__read_samples(a, v, e));
    return evid__read_quality(a, v, e);
}

bool evid__design_is(const char *dir, const char *schema)
{
    ht_arena *a;
    const char *text;
    uint64_t n;
    ht_json *j = NULL;
    if (ht_arena_new(&a, 0, NULL)) return false;
    bool is = !ht_read_under(a, dir, "design.json", 1 << 20, &text, &n, NULL) &&
              !ht_json_parse(a, text, n, HT_JSON_CANON, "design", &j, NULL);
    const ht_json *s = is ? ht_json_get(j, "schema") : NULL;
    is = s && s->type == HT_JSTR && strcmp(s->s, schema) == 0;
    ht_arena_free(a);
    return is;
}
