/* store.c - promotion, index and loading: what is admitted, by whom, and what an old or edited
 * index meets (evidence.md 8, Time 35, Trust 36-39). */
#include "route/store.h"
#include "../evid/fixture.h"
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    fx f;
    ht_trust t;
    const char *store, *bundle;
    char id[HT_SHA256_HEX];
    ht_key *k[8];
} world;

/* Store and bundle in a folder of their own. */
static void begin_in(world *w, const char *name)
{
    ht_err e = {0};
    fx_init(&w->f);
    fx_build(&w->f);
    fx_trust(&w->f, &w->t);
    const char *dir = fx_fmt(&w->f, "%s/%s", t_tmp(), name);
    (void)mkdir(dir, 0700);
    w->store = fx_fmt(&w->f, "%s/store", dir);
    w->bundle = fx_fmt(&w->f, "%s/bundle", dir);
    fx_seal(&w->f, w->bundle, w->id);
    for (uint8_t i = 1; i < 8; i++) w->k[i] = fx_key(i);
    T_OK(ht_store_init(w->store, &w->t, fx_policy(&w->f), &e), e);
    T_CHECK(ht_store_init(w->store, &w->t, NULL, &e) == HT_EARG, "a store is made twice");
}

static void begin(world *w)
{
    begin_in(w, "one");
}

static void end(world *w)
{
    for (int i = 1; i < 8; i++) ht_key_free(w->k[i]);
    fx_done(&w->f);
}

static int open_at(world *w, ht_store *s, int64_t now, ht_err *e)
{
    return ht_store_open(w->f.a, w->store, now, s, e);
}

static int promote(world *w, const int *keys, size_t n, ht_err *e)
{
    ht_store s;
    const ht_key *list[4];
    char id[HT_SHA256_HEX];
    for (size_t i = 0; i < n; i++) list[i] = w->k[keys[i]];
    HT_TRY(open_at(w, &s, FX_NOW, e));
    return ht_store_promote(&s, w->bundle, list, n, id, e);
}

/* Rows as the planner sees them. */
static size_t rows(world *w, ht_route_entry **t)
{
    ht_store s;
    ht_route_edge *edge;
    size_t n, n_edges;
    ht_err e = {0};
    T_OK(open_at(w, &s, FX_NOW, &e), e);
    T_OK(ht_store_routes(&s, FX_SHA("0"), t, &n, &edge, &n_edges, &e), e);
    return n;
}

/* Two commands at once wrote index and high-water mark of each other: nothing could be opened any
 * more. Whoever comes second is told so. */
T_CASE(store, two_writers)
{
    world w;
    ht_store first, second;
    ht_err e = {0};
    begin(&w);
    const ht_key *const key[] = {w.k[4]};
    T_OK(open_at(&w, &first, FX_NOW, &e), e);
    T_OK(open_at(&w, &second, FX_NOW + 1, &e), e);
    T_OK(ht_store_renew(&first, key, 1, &e), e);
    T_ERR(ht_store_renew(&second, key, 1, &e), HT_EGATE, e, "CHANGED_MEANWHILE");
    T_OK(open_at(&w, &second, FX_NOW + 1, &e), e);
    T_EQ_INT(second.index.version, 1);
    T_OK(ht_store_renew(&first, key, 1, &e), e);
    T_ERR(ht_store_renew(&second, key, 1, &e), HT_EGATE, e, "CHANGED_MEANWHILE");
    T_OK(open_at(&w, &second, FX_NOW + 1, &e), e);
    T_EQ_INT(second.index.version, 2);
    T_OK(ht_store_renew(&second, key, 1, &e), e);
    end(&w);
}

T_CASE(store, promotion_takes_two_keys)
{
    world w;
    ht_err e = {0};
    ht_route_entry *t;
    begin(&w);
    T_EQ_INT(rows(&w, &t), 0);
    T_ERR(promote(&w, (int[]){1, 4}, 2, &e), HT_EGATE, e,
          "role promote"); /* bench cannot promote */
    T_ERR(promote(&w, (int[]){2}, 1, &e), HT_EGATE, e, "PENDING_SIGNATURE");
    T_EQ_INT(rows(&w, &t), 0);
    T_ERR(promote(&w, (int[]){2, 4}, 2, &e), HT_EGATE, e,
          "PENDING_SIGNATURE"); /* the same key again */
    T_ERR(promote(&w, (int[]){3}, 1, &e), HT_EGATE, e, "role index");
    T_OK(promote(&w, (int[]){3, 4}, 2, &e), e);
    T_EQ_INT(rows(&w, &t), 2);
    for (int i = 0; i < 2; i++) {
        T_EQ_STR(ht_reason_name(t[i].checks), "OK");
        T_EQ_INT(t[i].state, HT_ST_PROMOTED);
        T_EQ_STR(t[i].bundle_id, w.id);
        T_CHECK(t[i].p50_ucb_ns > 0 && t[i].ref_lcb_ns > t[i].p50_ucb_ns, "costs");
        T_EQ_INT(t[i].mem_peak, 1048576);
        T_EQ_STR(t[i].scope.backend, "cpu;threads=2");
        T_EQ_STR(t[i].scope.model_sha, FX_SHA("1"));
    }
    T_ERR(promote(&w, (int[]){2, 3, 4}, 3, &e), HT_EGATE, e, "promoted already");
    end(&w);
}

T_CASE(store, other_policy_and_production)
{
    world w;
    ht_err e = {0};
    begin(&w);
    unlink(fx_fmt(&w.f, "%s/policy.json", w.store)); /* the default policy is in force */
    T_ERR(promote(&w, (int[]){2, 3, 4}, 3, &e), HT_EGATE, e, "OTHER_POLICY");
    end(&w);
    fx_init(&w.f); /* a bundle that did not qualify */
    fx_trust(&w.f, &w.t);
    w.f.gain_ppm = 1000000;
    fx_build(&w.f);
    w.bundle = fx_fmt(&w.f, "%s/slow", t_tmp());
    w.store = fx_fmt(&w.f, "%s/store2", t_tmp());
    fx_seal(&w.f, w.bundle, w.id);
    for (uint8_t i = 1; i < 8; i++) w.k[i] = fx_key(i);
    T_OK(ht_store_init(w.store, &w.t, fx_policy(&w.f), &e), e);
    T_ERR(promote(&w, (int[]){2, 3, 4}, 3, &e), HT_EGATE, e, "NOT_QUALIFIED");
    end(&w);
}

/* Revocation is absence and a tombstone; the past does not come back. */
T_CASE(store, revoke_and_replay)
{
    world w;
    ht_store s;
    ht_err e = {0};
    ht_route_entry *t;
    size_t n1, n2;
    begin(&w);
    T_OK(promote(&w, (int[]){2, 3, 4}, 3, &e), e);
    const char *path = fx_fmt(&w.f, "%s/index.dsse.json", w.store);
    char *first = t_slurp(path, &n1);
    T_OK(open_at(&w, &s, FX_NOW, &e), e);
    const ht_key *index[1] = {w.k[4]}, *bench[1] = {w.k[1]};
    T_ERR(ht_store_revoke(&s, w.id, "wrong", bench, 1, &e), HT_EGATE, e, "role index");
    T_ERR(ht_store_revoke(&s, FX_SHA("9"), "wrong", index, 1, &e), HT_EARG, e, "no route cites");
    T_OK(ht_store_revoke(&s, w.id, "a fault", index, 1, &e), e);
    T_EQ_INT(rows(&w, &t), 0);
    char *second = t_slurp(path, &n2);
    t_spit(path, first, n1); /* the index from before */
    T_ERR(open_at(&w, &s, FX_NOW, &e), HT_EGATE, e, "INDEX_REPLAYED");
    T_EQ_INT(unlink(path), 0); /* no index at all */
    T_ERR(open_at(&w, &s, FX_NOW, &e), HT_EGATE, e, "INDEX_REPLAYED");
    t_spit(path, second, n2);
    T_OK(open_at(&w, &s, FX_NOW, &e), e);
    T_ERR(promote(&w, (int[]){2, 3, 4}, 3, &e), HT_EGATE, e, "TOMBSTONED");
    T_ERR(open_at(&w, &s, FX_NOW + 40 * 86400, &e), HT_EGATE, e, "INDEX_EXPIRED");
    T_ERR(open_at(&w, &s, FX_NOW - 86400, &e), HT_EGATE, e, "INDEX_NOT_YET_VALID");
    T_OK(open_at(&w, &s, FX_NOW, &e), e);
    T_OK(ht_store_renew(&s, index, 1, &e), e);
    T_EQ_INT(s.index.version, 3);
    T_TRUE(ht_index_tomb(&s.index, w.id) != NULL);
    free(first);
    free(second);
    end(&w);
}

/* Every bit of the index, and the papers behind an entry. */
T_CASE_SECONDS(store, damage, 120)
{
    world w;
    ht_store s;
    ht_err e = {0};
    ht_route_entry *t;
    size_t n;
    begin(&w);
    T_OK(promote(&w, (int[]){2, 3, 4}, 3, &e), e);
    const char *path = fx_fmt(&w.f, "%s/index.dsse.json", w.store);
    char *text = t_slurp(path, &n);
    for (size_t i = 0; i < n; i += 1 + n / 300) {
        text[i] ^= 2;
        t_spit(path, text, n);
        T_CHECK(open_at(&w, &s, FX_NOW, &e) != 0, "byte %zu of the index edited unseen", i);
        text[i] ^= 2;
    }
    t_spit(path, text, n);
    free(text);
    static const struct {
        const char *file;
        int reason;
    } paper[] = {{"promotion.dsse.json", HT_R_BAD_SIGNATURE},
                 {"statement.dsse.json", HT_R_BAD_SIGNATURE},
                 {"costmap.json", HT_R_BAD_DIGEST}};
    for (size_t i = 0; i < 3; i++) {
        path = fx_fmt(&w.f, "%s/bundles/%s/%s", w.store, w.id, paper[i].file);
        text = t_slurp(path, &n);
        char *at = strstr(text, i == 2 ? "\"p50Ucb\":" : "\"sig\":\"") + 9, was = at[0];
        at[0] = was == '1' ? '2' : '1';
        t_spit(path, text, n);
        T_EQ_INT(rows(&w, &t), 2);
        T_EQ_STR(ht_reason_name(t[0].checks), ht_reason_name(paper[i].reason));
        unlink(path);
        T_EQ_INT(rows(&w, &t), 2);
        T_EQ_STR(ht_reason_name(t[0].checks), "BAD_DIGEST");
        at[0] = was;
        t_spit(path, text, n);
        T_EQ_INT(rows(&w, &t), 2);
        T_EQ_STR(ht_reason_name(t[0].checks), "OK");
        free(text);
    }
    end(&w);
}

T_CASE(store, quarantine)
{
    world w;
    ht_store s;
    ht_err e = {0};
    ht_route_entry *t;
    begin(&w);
    T_OK(promote(&w, (int[]){2, 3, 4}, 3, &e), e);
    T_OK(open_at(&w, &s, FX_NOW, &e), e);
    const ht_key *index[1] = {w.k[4]};
    char before[HT_SHA256_HEX];
    T_OK(ht_index_entry_sha256(&s.index.entry[0], before, &e), e);
    T_ERR(ht_store_demote(&s, w.id, HT_ST_CANDIDATE, index, 1, &e), HT_EGATE, e, "cannot become");
    T_OK(ht_store_demote(&s, w.id, HT_ST_QUARANTINED, index, 1, &e), e);
    T_EQ_STR(s.index.entry[0].prev, before);
    T_EQ_INT(rows(&w, &t), 2);
    T_EQ_INT(t[0].state, HT_ST_QUARANTINED);
    T_ERR(ht_store_demote(&s, w.id, HT_ST_PROMOTED, index, 1, &e), HT_EGATE, e, "cannot become");
    T_ERR(promote(&w, (int[]){2, 3, 4}, 3, &e), HT_EGATE, e, "restored by a new bundle only");
    end(&w);
}

/* A failed cell is terminal for its hashes: in the index, seen by the planner, and refused again;
 * what was inconclusive leaves no trace (evidence.md 7.5, 7.11). */
T_CASE(store, negatives_block)
{
    world w;
    ht_store s;
    ht_err e = {0};
    ht_route_entry *t;
    char slow[HT_SHA256_HEX];
    begin(&w);
    const char *good = w.bundle;
    T_OK(promote(&w, (int[]){2, 3, 4}, 3, &e), e);
    fx again;
    fx_init(&again); /* the same scopes, measured once more, and slower */
    again.gain_ppm = 900000;
    fx_build(&again);
    w.bundle = fx_fmt(&w.f, "%s/slow", t_tmp());
    fx_seal(&again, w.bundle, slow);
    T_ERR(promote(&w, (int[]){2, 3}, 2, &e), HT_EGATE, e, "NOT_QUALIFIED"); /* no index key */
    T_EQ_INT(rows(&w, &t), 2);
    T_ERR(promote(&w, (int[]){4}, 1, &e), HT_EGATE, e, "NOT_QUALIFIED");
    T_EQ_INT(rows(&w, &t), 4);
    for (int i = 0; i < 4; i++) {
        const bool old = strcmp(t[i].bundle_id, w.id) == 0;
        T_EQ_INT(t[i].state, old ? HT_ST_QUARANTINED : HT_ST_NEGATIVE);
        T_EQ_STR(ht_reason_name(t[i].checks), "OK");
        T_EQ_STR(t[i].scope.backend, "cpu;threads=2");
    }
    T_OK(open_at(&w, &s, FX_NOW, &e), e);
    T_ERR(ht_store_may_nominate(&s, t[0].scope_sha, &e), HT_EGATE, e, "NEGATIVE");
    T_OK(ht_store_may_nominate(&s, FX_SHA("9"), &e), e);
    T_ERR(promote(&w, (int[]){4}, 1, &e), HT_EGATE, e, "NOT_QUALIFIED"); /* it stands there */
    T_EQ_INT(rows(&w, &t), 4);
    fx third;
    fx_init(&third); /* a new bundle with a good verdict for the same scopes */
    third.seed = 77;
    fx_build(&third);
    w.bundle = fx_fmt(&w.f, "%s/third", t_tmp());
    fx_seal(&third, w.bundle, slow);
    T_ERR(promote(&w, (int[]){2, 3, 4}, 3, &e), HT_EGATE, e, "NEGATIVE");
    const char *paper = fx_fmt(&w.f, "%s/bundles/%s/negative.json", w.store, t[0].bundle_id);
    for (int i = 0; i < 4; i++) /* the paper behind a negative edited: it is not believed */
        if (t[i].state == HT_ST_NEGATIVE)
            paper = fx_fmt(&w.f, "%s/bundles/%s/negative.json", w.store, t[i].bundle_id);
    size_t n;
    char *text = t_slurp(paper, &n);
    text[n / 2] ^= 1;
    t_spit(paper, text, n);
    T_EQ_INT(rows(&w, &t), 4);
    unsigned bad = 0;
    for (int i = 0; i < 4; i++) bad += t[i].checks == HT_R_BAD_DIGEST;
    T_EQ_INT(bad, 2);
    free(text);
    w.bundle = good;
    fx_done(&again);
    fx_done(&third);
    end(&w);
}

/* Set aside without a key: it only takes away, and only that bundle. */
T_CASE(store, mark)
{
    world w;
    ht_store s;
    ht_err e = {0};
    ht_route_entry *t;
    begin(&w);
    T_OK(promote(&w, (int[]){2, 3, 4}, 3, &e), e);
    T_OK(open_at(&w, &s, FX_NOW, &e), e);
    T_ERR(ht_store_mark(&s, "../../x", "routeMismatch", FX_NOW, &e), HT_EARG, e, "no bundle id");
    T_OK(ht_store_mark(&s, FX_SHA("9"), "routeMismatch", FX_NOW, &e), e);
    T_EQ_INT(rows(&w, &t), 2);
    T_EQ_INT(t[0].state, HT_ST_PROMOTED);
    T_OK(ht_store_mark(&s, w.id, "routeMismatch", FX_NOW, &e), e);
    T_EQ_INT(rows(&w, &t), 2);
    T_EQ_INT(t[0].state, HT_ST_QUARANTINED);
    T_EQ_INT(t[1].state, HT_ST_QUARANTINED);
    end(&w);
}

/* Whoever holds all keys promotes the decode cell as a cell of another phase: promotion, cost map
 * and index agree with one another and are signed. */
static void forge(world *w, const char *phase)
{
    ht_store s;
    ht_dsse d;
    ht_json *doc;
    ht_buf b;
    ht_err e = {0};
    size_t n, n_map;
    const ht_key *const promoters[2] = {w->k[2], w->k[3]}, *const index[1] = {w->k[4]};
    const char *dir = fx_fmt(&w->f, "%s/bundles/%s", w->store, w->id), *was = NULL, *text = NULL;
    const char *paper_path = fx_fmt(&w->f, "%s/promotion.dsse.json", dir);
    const char *map_path = fx_fmt(&w->f, "%s/costmap.json", dir);
    T_OK(open_at(w, &s, FX_NOW, &e), e);
    char *env = t_slurp(paper_path, &n), *map_text = t_slurp(map_path, &n_map);
    T_OK(ht_dsse_parse(w->f.a, env, n, &d, &e), e);
    const char *payload = fx_fmt(&w->f, "%.*s", (int)d.n, (const char *)d.payload);
    const char *map = fx_fmt(&w->f, "%.*s", (int)n_map, map_text);
    T_OK(ht_json_parse(w->f.a, payload, d.n, HT_JSON_CANON, "promotion", &doc, &e), e);
    const ht_json *list = ht_json_path(doc, "predicate.entries");
    ht_buf_init(&b, 1 << 20);
    for (size_t i = 0; i < list->n; i++) {
        const ht_json *scope = ht_json_get(&list->at[i], "scope");
        if (strcmp(ht_json_get(scope, "phase")->s, "decode") != 0) continue;
        T_OK(ht_json_write(scope, HT_JSON_CANON, &b, &e), e);
        text = fx_fmt(&w->f, "%.*s", (int)b.n, b.p);
        was = ht_json_get(&list->at[i], "scopeSha256")->s;
    }
    T_CHECK(was, "a decode cell in the promotion");
    const char *forged =
        fx_swap(&w->f, text, "\"phase\":\"decode\"", fx_fmt(&w->f, "\"phase\":\"%s\"", phase));
    const char *sha = fx_sha(&w->f, forged, strlen(forged));
    const char *old_map = fx_sha(&w->f, map, n_map);
    map = fx_swap(&w->f, map, was, sha);
    const char *new_map = fx_sha(&w->f, map, strlen(map));
    payload = fx_swap(&w->f, payload, text, forged);
    payload = fx_swap(&w->f, fx_swap(&w->f, payload, was, sha), old_map, new_map);
    const char *paper = fx_sha(&w->f, payload, strlen(payload));
    ht_buf_clear(&b);
    T_OK(ht_dsse_sign(payload, strlen(payload), HT_PAYLOAD_TYPE, promoters, 2, &b, &e), e);
    t_spit(paper_path, b.p, b.n);
    t_spit(map_path, map, strlen(map));
    for (size_t i = 0; i < s.index.n_entries; i++) {
        ht_index_entry *x = &s.index.entry[i];
        if (strcmp(x->scope_sha, was) == 0) memcpy(x->scope_sha, sha, HT_SHA256_HEX);
        memcpy(x->promotion_sha, paper, HT_SHA256_HEX);
        memcpy(x->costmap_sha, new_map, HT_SHA256_HEX);
    }
    ht_index_sort(&s.index);
    s.index.version++;
    memcpy(s.index.prev, s.index.sha256, sizeof s.index.prev);
    ht_buf_clear(&b);
    T_OK(ht_index_write(&s.index, &b, &e), e);
    text = fx_fmt(&w->f, "%.*s", (int)b.n, b.p);
    ht_buf_clear(&b);
    T_OK(ht_dsse_sign(text, strlen(text), HT_INDEX_TYPE, index, 1, &b, &e), e);
    t_spit(fx_fmt(&w->f, "%s/index.dsse.json", w->store), b.p, b.n);
    ht_buf_done(&b);
    free(env);
    free(map_text);
}

/* Complete compute is measured and judged, and is no route: no honest promotion has such a scope,
 * and one that has all signatures is not taken for a route of either phase. */
T_CASE(store, complete_compute_is_no_route)
{
    static const struct {
        const char *phase, *want;
    } kind[] = {{"decode", "OK"}, {"complete", "BAD_DIGEST"}};
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        world w;
        ht_err e = {0};
        ht_route_entry *t;
        char name[16];
        (void)snprintf(name, sizeof name, "forged%zu", i);
        begin_in(&w, name);
        T_OK(promote(&w, (int[]){2, 3, 4}, 3, &e), e);
        forge(&w, kind[i].phase);
        T_EQ_INT(rows(&w, &t), 2);
        for (int k = 0; k < 2; k++) {
            const bool other = t[k].checks == HT_R_OK && t[k].scope.phase == HT_PREFILL;
            T_EQ_STR(ht_reason_name(t[k].checks), other ? "OK" : kind[i].want);
        }
        end(&w);
    }
}

static ht_index index_of(uint64_t version)
{
    return (ht_index){.version = version,
                      .prev = FX_SHA("0"),
                      .sha256 = FX_SHA("a"),
                      .issued_unix = FX_NOW,
                      .expires_unix = FX_NOW + 100};
}

/* Time 35: versions, bytes, jumps. */
T_CASE(store, versions)
{
    ht_err e = {0};
    const char *gone[1] = {FX_SHA("c")};
    ht_highwater h = {.version = 41, .sha256 = FX_SHA("a")};
    ht_index x = index_of(41);
    T_OK(ht_index_check(&x, &h, FX_NOW, &e), e);
    memset(x.sha256, 'b', 64);
    T_ERR(ht_index_check(&x, &h, FX_NOW, &e), HT_EGATE, e,
          "INDEX_REPLAYED"); /* same version, other bytes */
    x = index_of(40);
    T_ERR(ht_index_check(&x, &h, FX_NOW, &e), HT_EGATE, e, "INDEX_REPLAYED");
    x = index_of(42);
    T_ERR(ht_index_check(&x, &h, FX_NOW, &e), HT_EGATE, e, "does not follow");
    memset(x.prev, 'a', 64);
    T_OK(ht_index_check(&x, &h, FX_NOW, &e), e);
    x = index_of(((uint64_t)1 << 53) - 1);
    T_ERR(ht_index_check(&x, &h, FX_NOW, &e), HT_EGATE, e, "INDEX_JUMP");
    h.tomb = gone;
    h.n_tombs = 1;
    x = index_of(45);
    T_ERR(ht_index_check(&x, &h, FX_NOW, &e), HT_EGATE, e, "TOMBSTONE_REMOVED");
    ht_tombstone tomb = {.bundle_id = FX_SHA("c"), .reason = "r", .since = 3};
    x.tomb = &tomb;
    x.n_tombs = 1;
    T_OK(ht_index_check(&x, &h, FX_NOW, &e), e);
    ht_index_entry back = {.bundle_id = FX_SHA("c"), .state = HT_ST_PROMOTED};
    x.entry = &back;
    x.n_entries = 1;
    T_ERR(ht_index_check(&x, &h, FX_NOW, &e), HT_EGATE, e, "TOMBSTONE_REMOVED");
}
