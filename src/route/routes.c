/* routes.c - from a verified index to rows for the planner: each entry's promotion, statement
 * and cost map are opened once, checked against the digests that the index names, and read from
 * those bytes. */
#include "evid/amend.h"
#include "evid/schema.h"
#include "route/files.h"
#include <stdio.h>
#include <string.h>

typedef struct {
    const ht_store *s;
    ht_route_entry *entry;
    ht_route_edge *edge;
    size_t n, n_edges, cap_edges;
} loader;

static bool digest_is(const void *p, size_t n, const char *hex)
{
    uint8_t digest[HT_SHA256_BYTES];
    char have[HT_SHA256_HEX];
    if (ht_sha256_of(p, n, digest, NULL)) return false;
    ht_hex(digest, sizeof digest, have);
    return strcmp(have, hex) == 0;
}

static const ht_json *find_by(const ht_json *list, const char *key, const char *value)
{
    for (size_t i = 0; list && list->type == HT_JARR && i < list->n; i++) {
        const ht_json *v = ht_json_get(&list->at[i], key);
        if (v && v->type == HT_JSTR && strcmp(v->s, value) == 0) return &list->at[i];
    }
    return NULL;
}

static uint64_t number(const ht_json *obj, const char *path)
{
    const ht_json *v = ht_json_path(obj, path);
    return v && v->type == HT_JINT && v->i > 0 ? (uint64_t)v->i : 0;
}

/* Promotion and statement: two kinds of signature and the digests between them. The reason of the
 * first that fails; *predicate of the promotion. evidence: the type its statement must be of. */
static int check_papers(const ht_store *s, const ht_index_entry *x, const char *evidence,
                        const ht_json **predicate)
{
    ht_dsse promotion, statement;
    const ht_json *p, *st;
    const char *text, *path = ht_arena_printf(s->a, "bundles/%s/promotion.dsse.json", x->bundle_id);
    uint64_t n;
    if (!path || ht_read_under(s->a, s->dir, path, HT_STORE_FILE, &text, &n, NULL))
        return HT_R_BAD_DIGEST;
    if (ht_statement_open(s->a, text, n, &s->trust, HT_ROLE_PROMOTE, HT_PRED_PROMOTION, s->now_unix,
                          &promotion, &p, NULL))
        return HT_R_BAD_SIGNATURE;
    if (!digest_is(promotion.payload, promotion.n, x->promotion_sha)) return HT_R_BAD_DIGEST;
    *predicate = ht_json_get(p, "predicate");
    if (route__promotion_check(*predicate, NULL)) return HT_R_BAD_DIGEST;
    if (strcmp(ht_json_get(*predicate, "bundleId")->s, x->bundle_id) != 0 ||
        strcmp(ht_json_get(*predicate, "costmapSha256")->s, x->costmap_sha) != 0)
        return HT_R_BAD_DIGEST;
    if (strcmp(ht_json_get(*predicate, "policySha256")->s, s->policy.sha256) != 0)
        return HT_R_OTHER_POLICY;
    path = ht_arena_printf(s->a, "bundles/%s/statement.dsse.json", x->bundle_id);
    if (!path || ht_read_under(s->a, s->dir, path, HT_STORE_FILE, &text, &n, NULL))
        return HT_R_BAD_DIGEST;
    if (ht_statement_open(s->a, text, n, &s->trust, HT_ROLE_BENCH, evidence, s->now_unix,
                          &statement, &st, NULL))
        return HT_R_BAD_SIGNATURE;
    const char *want = ht_json_get(*predicate, "statementSha256")->s;
    return digest_is(statement.payload, statement.n, want) ? HT_R_OK : HT_R_BAD_DIGEST;
}

/* Edges of a sound map, for whom the entry of this scope is. */
static int add_edges(loader *l, const ht_json *map, const ht_scope *scope, ht_err *e)
{
    const ht_json *list = ht_json_get(map, "edges");
    for (size_t i = 0; list && list->type == HT_JARR && i < list->n; i++) {
        const ht_json *from = ht_json_get(&list->at[i], "from"),
                      *to = ht_json_get(&list->at[i], "to");
        if (!from || !to || from->type != HT_JSTR || to->type != HT_JSTR) continue;
        if (l->n_edges == l->cap_edges) {
            size_t cap = l->cap_edges ? 2 * l->cap_edges : 16;
            ht_route_edge *more = ht_arena_array(l->s->a, cap, sizeof *more);
            if (!more) return HT_FAIL(e, HT_ENOMEM, "routes: no memory for edges");
            if (l->n_edges) memcpy(more, l->edge, l->n_edges * sizeof *more);
            l->edge = more;
            l->cap_edges = cap;
        }
        l->edge[l->n_edges++] = (ht_route_edge){.from = from->s,
                                                .to = to->s,
                                                .ns_per_token = number(&list->at[i], "nsPerToken"),
                                                .fixed_ns = number(&list->at[i], "fixedNs"),
                                                .scope = scope};
    }
    return 0;
}

/* The scope in its canonical bytes, of a phase that a plan has. */
static bool read_scope(const ht_store *s, const ht_buf *b, const char *sha, ht_scope *out)
{
    ht_scope scope;
    if (!digest_is(b->p, b->n, sha) || ht_scope_parse(s->a, b->p, b->n, &scope, NULL) != 0 ||
        scope.phase >= HT_PHASES)
        return false;
    *out = scope;
    return true;
}

/* Scope, age and state from the promotion; costs from the map, and its edges when the papers are
 * sound. */
static int fill(loader *l, const ht_index_entry *x, const ht_json *predicate, bool sound,
                ht_route_entry *t, ht_err *e)
{
    const ht_store *s = l->s;
    const char *text, *path = ht_arena_printf(s->a, "bundles/%s/costmap.json", x->bundle_id);
    const ht_json *row = find_by(ht_json_get(predicate, "entries"), "scopeSha256", x->scope_sha);
    uint64_t n;
    ht_json *map;
    ht_buf b;
    t->checks = HT_R_BAD_DIGEST;
    if (!row || !path) return 0;
    ht_buf_init(&b, 1 << 16);
    int rc = ht_json_write(ht_json_get(row, "scope"), HT_JSON_CANON, &b, NULL);
    bool good = rc == 0 && read_scope(s, &b, x->scope_sha, &t->scope);
    ht_buf_done(&b);
    if (!good || ht_read_under(s->a, s->dir, path, HT_STORE_FILE, &text, &n, NULL) ||
        !digest_is(text, n, x->costmap_sha) ||
        ht_json_parse(s->a, text, n, HT_JSON_CANON, path, &map, NULL))
        return 0;
    const ht_json *cost = find_by(ht_json_get(map, "entries"), "scopeSha256", x->scope_sha);
    if (!cost) return 0;
    (void)ht_utc_parse(ht_json_get(predicate, "measuredUtc")->s, &t->measured_unix);
    memcpy(t->state_sha, ht_json_get(predicate, "stateSha256")->s, HT_SHA256_HEX);
    t->p50_ucb_ns = number(cost, "costNs.p50Ucb");
    t->ref_lcb_ns = number(cost, "costNs.refP50Lcb");
    t->warmup_ns = number(cost, "warmupNs");
    t->mem_peak = number(cost, "memPeakBytes");
    t->checks = HT_R_OK;
    return sound ? add_edges(l, map, &t->scope, e) : 0;
}

/* Set aside on this machine; what the mark says is for people. */
static bool is_marked(const ht_store *s, const char *bundle_id)
{
    char path[128];
    (void)snprintf(path, sizeof path, "quarantine/%s.json", bundle_id);
    return route__exists(s->dir, path);
}

static const ht_field negative_entry[] = {
    {.key = "scope", .type = HT_S_OBJ},
    {.key = "scopeSha256", .type = HT_S_SHA256},
    {.key = "verdict", .type = HT_S_STR},
    {0},
};
static const ht_field negative_fields[] = {
    {.key = "bundleId", .type = HT_S_SHA256},
    {.key = "costmapSha256", .type = HT_S_SHA256},
    {.key = "entries", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = negative_entry},
    {.key = "statementSha256", .type = HT_S_SHA256},
    {0},
};

/* A negative has no promotion: the index names the digest of its paper, which holds the scope. */
static int fill_negative(const ht_store *s, const ht_index_entry *x, ht_route_entry *t, ht_err *e)
{
    const char *text, *path = ht_arena_printf(s->a, "bundles/%s/negative.json", x->bundle_id);
    uint64_t n;
    ht_json *doc;
    ht_buf b;
    if (!path) return HT_FAIL(e, HT_ENOMEM, "routes: no memory");
    t->checks = HT_R_BAD_DIGEST;
    if (ht_read_under(s->a, s->dir, path, HT_STORE_FILE, &text, &n, NULL) ||
        !digest_is(text, n, x->promotion_sha) ||
        ht_json_parse(s->a, text, n, HT_JSON_CANON, path, &doc, NULL) ||
        ht_schema_check(doc, negative_fields, "hetero/negative/1", path, NULL))
        return 0;
    const ht_json *row = find_by(ht_json_get(doc, "entries"), "scopeSha256", x->scope_sha);
    if (!row) return 0;
    ht_buf_init(&b, 1 << 16);
    if (ht_json_write(ht_json_get(row, "scope"), HT_JSON_CANON, &b, NULL) == 0 &&
        read_scope(s, &b, x->scope_sha, &t->scope))
        t->checks = HT_R_OK;
    ht_buf_done(&b);
    return 0;
}

/* Of a scheduler: the file that holds its figures is there. Both readers check everything else. */
static bool is_schedule(const ht_store *s, const ht_index_entry *x)
{
    char path[128];
    (void)snprintf(path, sizeof path, "bundles/%s/sched.json", x->bundle_id);
    return route__exists(s->dir, path);
}

/* Is this amendment of the entry's bundle for this state, signed, passed and in force? What it says
 * was recomputed when it was admitted, as a promotion's bundle was. */
static bool amends(const ht_store *s, const ht_index_entry *x, const char *sha, const char *state)
{
    const char *text,
        *path = ht_arena_printf(s->a, "bundles/%s/amendments/%s.dsse.json", x->bundle_id, sha);
    uint64_t n;
    ht_amendment m;
    return path && ht_read_under(s->a, s->dir, path, HT_STORE_FILE, &text, &n, NULL) == 0 &&
           ht_amendment_open(s->a, text, n, &s->trust, s->now_unix, &m, NULL) == 0 &&
           strcmp(m.sha256, sha) == 0 && m.result == HT_CANARY_PASSED &&
           strcmp(m.bundle_id, x->bundle_id) == 0 && strcmp(m.costmap_sha, x->costmap_sha) == 0 &&
           strcmp(m.policy_sha, s->policy.sha256) == 0 && strcmp(m.state_sha, state) == 0;
}

int ht_store_routes(const ht_store *s, const char *state_sha, ht_route_entry **entries, size_t *n,
                    ht_route_edge **edges, size_t *n_edges, ht_err *e)
{
    loader l = {.s = s, .entry = ht_arena_array(s->a, s->index.n_entries, sizeof *l.entry)};
    if (!l.entry) return HT_FAIL(e, HT_ENOMEM, "routes: no memory");
    for (size_t i = 0; s->has_index && i < s->index.n_entries; i++) {
        const ht_index_entry *x = &s->index.entry[i];
        const ht_json *predicate = NULL;
        ht_route_entry *t = &l.entry[l.n];
        if (is_schedule(s, x)) continue;
        memcpy(t->scope_sha, x->scope_sha, HT_SHA256_HEX);
        memcpy(t->bundle_id, x->bundle_id, HT_SHA256_HEX);
        t->state = is_marked(s, x->bundle_id) ? HT_ST_QUARANTINED : x->state;
        t->tombstoned = ht_index_tomb(&s->index, x->bundle_id) != NULL;
        for (size_t k = 0; k < x->n_amendments && !t->amended; k++)
            t->amended = amends(s, x, x->amendment[k], state_sha);
        if (x->state == HT_ST_NEGATIVE) {
            HT_TRY(fill_negative(s, x, t, e));
            l.n++;
            continue;
        }
        int why = check_papers(s, x, HT_PRED_EVIDENCE, &predicate);
        if (predicate) HT_TRY(fill(&l, x, predicate, why == HT_R_OK, t, e));
        if (why != HT_R_OK) t->checks = (uint8_t)why;
        l.n++;
    }
    *entries = l.entry;
    *n = l.n;
    *edges = l.edge;
    *n_edges = l.n_edges;
    return 0;
}

/* ---- schedulers ------------------------------------------------------------------------------ */

/* The scope out of the promotion, if its bytes have the digest that the index names. */
static bool sched_scope(const ht_store *s, const ht_index_entry *x, const ht_json *predicate,
                        ht_sched_scope *out)
{
    const ht_json *row = find_by(ht_json_get(predicate, "entries"), "scopeSha256", x->scope_sha);
    ht_buf b;
    if (!row) return false;
    ht_buf_init(&b, 1 << 16);
    const bool good = !ht_json_write(ht_json_get(row, "scope"), HT_JSON_CANON, &b, NULL) &&
                      digest_is(b.p, b.n, x->scope_sha) &&
                      !ht_sched_scope_parse(s->a, b.p, b.n, out, NULL);
    ht_buf_done(&b);
    return good;
}

static int check_schedule(const ht_store *s, const ht_index_entry *x, const char *state_sha,
                          ht_sched_scope *scope)
{
    const ht_json *predicate = NULL;
    int64_t measured = 0;
    bool amended = false;
    if (ht_index_tomb(&s->index, x->bundle_id)) return HT_R_TOMBSTONED;
    if (is_marked(s, x->bundle_id) || x->state == HT_ST_QUARANTINED) return HT_R_QUARANTINED;
    if (x->state == HT_ST_NEGATIVE) return HT_R_NEGATIVE;
    const int why = check_papers(s, x, HT_PRED_SCHEDULER, &predicate);
    if (predicate && !sched_scope(s, x, predicate, scope)) return HT_R_BAD_DIGEST;
    if (why != HT_R_OK) return why;
    if (x->state != HT_ST_PROMOTED) return HT_R_NOT_PROMOTED;
    (void)ht_utc_parse(ht_json_get(predicate, "measuredUtc")->s, &measured);
    if (s->now_unix - measured > (int64_t)s->policy.max_age_days * 86400) return HT_R_EXPIRED;
    if (!state_sha) return HT_R_OK;
    for (size_t k = 0; k < x->n_amendments; k++) amended |= strcmp(x->amendment[k], state_sha) == 0;
    return amended || strcmp(ht_json_get(predicate, "stateSha256")->s, state_sha) == 0 ? HT_R_OK
                                                                                       : HT_R_STALE;
}

int ht_store_schedules(const ht_store *s, const char *state_sha, ht_sched_entry **list, size_t *n,
                       ht_err *e)
{
    *n = 0;
    *list = ht_arena_array(s->a, s->index.n_entries + 1, sizeof **list);
    if (!*list) return HT_FAIL(e, HT_ENOMEM, "schedules: no memory");
    for (size_t i = 0; s->has_index && i < s->index.n_entries; i++) {
        const ht_index_entry *x = &s->index.entry[i];
        if (!is_schedule(s, x)) continue;
        ht_sched_entry *t = &(*list)[(*n)++];
        memcpy(t->scope_sha, x->scope_sha, HT_SHA256_HEX);
        memcpy(t->bundle_id, x->bundle_id, HT_SHA256_HEX);
        t->state = x->state;
        t->reason = (uint8_t)check_schedule(s, x, state_sha, &t->scope);
    }
    return 0;
}
