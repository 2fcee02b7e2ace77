/* fuzz_store.c - the papers of a store behind good signatures: a promotion's predicate, a cost map,
 * the paper of what failed, and the list of known facts. Four parts, each ended by a NUL. */
#include "route/seen.h"
#include "route/store.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
enum { NOW = 1795900000, PARTS = 4 };
#define ID "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
static char dir[64];
static ht_key *key[4]; /* bench, two promoters, index */

static void must(bool ok)
{
    if (!ok) abort();
}

static void leave(void)
{
    static const char *const name[] = {"bundles/" ID "/promotion.dsse.json",
                                       "bundles/" ID "/statement.dsse.json",
                                       "bundles/" ID "/costmap.json",
                                       "bundles/" ID "/negative.json",
                                       "bundles/" ID,
                                       "bundles",
                                       "index.dsse.json",
                                       "highwater.json",
                                       "trust.json",
                                       "seen"};
    char path[256];
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, name[i]);
        if (remove(path)) continue;
    }
    (void)!!rmdir(dir);
}

static void put(const char *path, const void *p, size_t n)
{
    char full[256];
    (void)snprintf(full, sizeof full, "%s/%s", dir, path);
    FILE *f = fopen(full, "w");
    must(f && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}

static void digest(const void *p, size_t n, char hex[HT_SHA256_HEX])
{
    uint8_t d[HT_SHA256_BYTES];
    must(ht_sha256_of(p, n, d, NULL) == 0);
    ht_hex(d, sizeof d, hex);
}

static void put_signed(const char *path, const char *type, const char *text, size_t n, int k,
                       size_t n_keys)
{
    ht_buf env;
    ht_buf_init(&env, 0);
    must(ht_dsse_sign(text, n, type, (const ht_key *const *)&key[k], n_keys, &env, NULL) == 0);
    put(path, env.p, env.n);
    ht_buf_done(&env);
}

static void begin(void)
{
    char path[256];
    ht_trust_key k[4] = {{{0}, {0}, 0}};
    const unsigned role[4] = {HT_ROLE_BENCH, HT_ROLE_PROMOTE, HT_ROLE_PROMOTE, HT_ROLE_INDEX};
    (void)snprintf(dir, sizeof dir, "/tmp/fuzz-store-XXXXXX");
    must(mkdtemp(dir) != NULL);
    must(atexit(leave) == 0);
    for (int i = 0; i < 4; i++) {
        const uint8_t seed[32] = {(uint8_t)(i + 1)};
        must(ht_key_from_seed(&key[i], seed, NULL) == 0);
        ht_key_public(key[i], k[i].pub);
        must(ht_key_id(k[i].pub, k[i].id, NULL) == 0);
        k[i].roles = 1u << role[i];
    }
    const ht_trust t = {.version = 1,
                        .expires_unix = (int64_t)NOW * 2,
                        .key = k,
                        .n_keys = 4,
                        .threshold = {1, 2, 1, 1, 1}};
    must(ht_store_init(dir, &t, NULL, NULL) == 0);
    (void)snprintf(path, sizeof path, "%s/bundles", dir);
    must(mkdir(path, 0755) == 0);
    (void)snprintf(path, sizeof path, "%s/bundles/" ID, dir);
    must(mkdir(path, 0755) == 0);
}

/* The scope digest that the first entry of a paper names, so that the rows are found. */
static void scope_of(const char *text, size_t n, char sha[HT_SHA256_HEX])
{
    static const char mark[] = "\"scopeSha256\":\"";
    memset(sha, 'c', HT_SHA256_HEX - 1);
    sha[HT_SHA256_HEX - 1] = 0;
    const char *at = memmem(text, n, mark, sizeof mark - 1);
    if (at && (size_t)(text + n - at) > sizeof mark - 1 + HT_SHA256_HEX - 1 &&
        ht_is_sha256(at + sizeof mark - 1, HT_SHA256_HEX - 1))
        memcpy(sha, at + sizeof mark - 1, HT_SHA256_HEX - 1);
}

static void put_index(const char *promotion, size_t n_promotion, const char *negative,
                      size_t n_negative, const char *map, size_t n_map)
{
    ht_index_entry x[2] = {{.state = HT_ST_PROMOTED}, {.state = HT_ST_NEGATIVE}};
    ht_index index = {
        .version = 1, .issued_unix = NOW, .expires_unix = NOW + 86400, .entry = x, .n_entries = 2};
    ht_buf b;
    memset(index.prev, '0', HT_SHA256_HEX - 1);
    for (int i = 0; i < 2; i++) {
        memcpy(x[i].bundle_id, ID, HT_SHA256_HEX);
        memcpy(x[i].prev, index.prev, HT_SHA256_HEX);
        digest(map, n_map, x[i].costmap_sha);
    }
    digest(promotion, n_promotion, x[0].promotion_sha);
    digest(negative, n_negative, x[1].promotion_sha);
    scope_of(promotion, n_promotion, x[0].scope_sha);
    scope_of(negative, n_negative, x[1].scope_sha);
    if (strcmp(x[0].scope_sha, x[1].scope_sha) == 0) index.n_entries = 1;
    ht_index_sort(&index);
    ht_buf_init(&b, 0);
    must(ht_index_write(&index, &b, NULL) == 0);
    put_signed("index.dsse.json", HT_INDEX_TYPE, b.p, b.n, 3, 1);
    ht_buf_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char statement[] = "{}";
    const char *part[PARTS], *p = (const char *)data, *end = p + size;
    size_t len[PARTS], n, n_edges;
    char value[HT_SHA256_HEX], path[256];
    ht_arena *a;
    ht_store s;
    ht_err e = {0};
    ht_route_entry *t;
    ht_route_edge *edge;
    if (!dir[0]) begin();
    for (int i = 0; i < PARTS; i++) {
        const char *nul = p < end ? memchr(p, 0, (size_t)(end - p)) : NULL;
        part[i] = p;
        len[i] = nul ? (size_t)(nul - p) : (size_t)(end - p);
        p = nul ? nul + 1 : end;
    }
    put_signed("bundles/" ID "/promotion.dsse.json", HT_PAYLOAD_TYPE, part[0], len[0], 1, 2);
    put_signed("bundles/" ID "/statement.dsse.json", HT_PAYLOAD_TYPE, statement, 2, 0, 1);
    put("bundles/" ID "/costmap.json", part[1], len[1]);
    put("bundles/" ID "/negative.json", part[2], len[2]);
    put_index(part[0], len[0], part[2], len[2], part[1], len[1]);
    (void)snprintf(path, sizeof path, "%s/highwater.json", dir);
    if (unlink(path)) must(access(path, F_OK) != 0);
    must(ht_arena_new(&a, (size_t)256 << 20, &e) == 0);
    must(ht_store_open(a, dir, NOW, &s, &e) == 0);
    must(ht_store_routes(&s, ID, &t, &n, &edge, &n_edges, &e) == 0 && n == s.index.n_entries);
    for (size_t i = 0; i < n; i++) must(t[i].checks < HT_REASONS && !t[i].amended);
    ht_arena_free(a);
    put("seen", part[3], len[3]);
    (void)snprintf(path, sizeof path, "%s/seen", dir);
    must(!ht_seen_get(path, "some-key", value) || ht_is_sha256(value, strlen(value)));
    return 0;
}
