/* prefix.c - the prefix cache through the public interface: warm equals cold to the bit of the
 * logits, whatever else is at work; what may be shared follows from class and salt; files outlive
 * an engine and are refused when harmed. */
#include "util.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>

enum { CTX = 512 };

static ht_engine *cached(uint32_t sessions, uint64_t bytes, const char *dir)
{
    const ht_engine_params p = {.model = TALE,
                                .ctx = CTX,
                                .threads = 1,
                                .max_sessions = sessions,
                                .prefix_bytes = bytes,
                                .prefix_dir = dir};
    return engine(&p);
}
static void make_ids(int32_t *ids, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(300 + t_rand(&seed) % 3000);
}
static ht_gen_result go(ht_session *s, const int32_t *ids, size_t n, const ht_gen_params *p)
{
    ht_gen_result r = {0};
    ht_err err = {0};
    T_OK(ht_session_generate(s, ids, n, p, &r, &err), err);
    return r;
}
static void same(const ht_gen_result *a, const ht_gen_result *b)
{
    T_EQ_INT(a->n_ids, b->n_ids);
    T_CHECK(!memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids), "other tokens");
    T_CHECK(strlen(a->logits_sha256) == 64 && !strcmp(a->logits_sha256, b->logits_sha256),
            "other logits");
}
static const ht_json *of_prefill(ht_arena *a, const ht_session *s, const char *key)
{
    return ht_json_get(&ht_json_get(receipt(a, s), "phases")->at[0], key);
}

T_CASE_SECONDS(api_prefix, warm_equals_cold, 120)
{
    static const size_t len[] = {1, 31, 32, 33, 64, 65, 200, 321};
    int32_t ids[CTX];
    ht_arena *a = arena();
    ht_engine *plain = cached(1, 0, NULL), *e = cached(2, 8u << 20, NULL);
    ht_session *p = session(plain), *s = session(e), *t = session(e);
    ht_sampling sp;
    ht_err err = {0};
    ht_sampling_init(&sp);
    sp.seed = 5;
    const ht_gen_params gp = {.max_new = 9, .sampling = &sp, .ignore_eos = 1, .hash_logits = 1};
    make_ids(ids, CTX, 3);
    for (size_t k = 0; k < sizeof len / sizeof *len; k++) {
        const size_t n = len[k];
        ids[0] = (int32_t)(400 + k); /* prompts that share nothing */
        ht_gen_result cold = go(p, ids, n, &gp), first = go(s, ids, n, &gp);
        same(&cold, &first);
        T_EQ_INT(first.n_kept, 0);
        /* Another session, and the first one made empty: both take the pages over. */
        ht_gen_result warm = go(t, ids, n, &gp);
        same(&cold, &warm);
        T_EQ_INT(warm.n_kept, (n - 1) / 32 * 32);
        T_EQ_INT(num(of_prefill(a, t, "prefixCache"), "tokens"), (long long)((n - 1) / 32 * 32));
        T_EQ_STR(str(of_prefill(a, t, "prefixCache"), "reason"), n < 33 ? "SHORT" : "WHOLE");
        T_OK(ht_session_truncate(s, 0, &err), err);
        ht_gen_result again = go(s, ids, n, &gp);
        same(&cold, &again);
        T_EQ_INT(again.n_kept, (n - 1) / 32 * 32);
        ht_gen_result *all[] = {&cold, &first, &warm, &again};
        for (size_t i = 0; i < 4; i++) ht_gen_result_done(all[i]);
        T_OK(ht_session_truncate(t, 0, &err), err);
        T_OK(ht_session_truncate(s, 0, &err), err);
        T_OK(ht_session_truncate(p, 0, &err), err);
    }
    ht_prefix_counts c;
    ht_engine_prefix_count(e, &c);
    T_EQ_INT(c.hits, 2 * 5);
    T_CHECK(c.pages >= 20 && c.refused == 0, "%u pages", c.pages);
    ht_session_free(p);
    ht_session_free(s);
    ht_session_free(t);
    ht_engine_close(plain);
    ht_engine_close(e);
    ht_arena_free(a);
}

T_CASE_SECONDS(api_prefix, salt_and_switch, 60)
{
    int32_t ids[100];
    ht_arena *a = arena();
    ht_engine *e = cached(1, 8u << 20, NULL);
    ht_session *s = session(e);
    ht_err err = {0};
    make_ids(ids, 100, 4);
    ht_gen_params gp = {.max_new = 1, .ignore_eos = 1, .prefix_salt = "alice"};
    const struct {
        const char *salt;
        int off;
        uint32_t kept;
    } step[] = {{"alice", 0, 0}, {"bob", 0, 0}, {NULL, 0, 0}, {"alice", 0, 96},
                {"bob", 0, 96},  {"bob", 1, 0}, {NULL, 0, 96}};
    for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
        gp.prefix_salt = step[i].salt;
        gp.no_prefix = step[i].off;
        ht_gen_result r = go(s, ids, 100, &gp);
        T_CHECK(r.n_kept == step[i].kept, "step %zu kept %u", i, r.n_kept);
        ht_gen_result_done(&r);
        T_OK(ht_session_truncate(s, 0, &err), err);
    }
    ht_session_free(s);
    ht_engine_close(e);
    ht_arena_free(a);
}

/* Prefill on ref and decode on cpu: what decode wrote is not what prefill of a longer prompt would
 * write, so it is computed again, whether the session itself holds it or the cache. */
T_CASE_SECONDS(api_prefix, class_of_a_position, 120)
{
    enum { N = 40, NEW = 60 };
    int32_t ids[N + NEW];
    ht_arena *a = arena();
    const ht_engine_params p = {.model = TALE,
                                .ctx = 256,
                                .threads = 1,
                                .max_sessions = 2,
                                .prefill_engine = "ref",
                                .decode_engine = "cpu",
                                .prefix_bytes = 4u << 20};
    ht_engine *e = engine(&p);
    ht_session *s = session(e), *t = session(e);
    make_ids(ids, N, 9);
    ht_gen_result r = greedy(s, ids, N, NEW);
    memcpy(ids + N, r.ids, NEW * sizeof *ids);
    ht_gen_result_done(&r);
    r = greedy(s, ids, N + NEW, 1);
    T_EQ_INT(r.n_kept, 32); /* the page of 32 to 63 was begun by ref and ended by cpu */
    ht_gen_result_done(&r);
    r = greedy(t, ids, N + NEW, 1);
    T_EQ_INT(r.n_kept, 96); /* by now all of it was written by ref */
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_session_free(t);
    ht_engine_close(e);
    /* On one engine decode writes what prefill would: all is kept. */
    e = cached(1, 4u << 20, NULL);
    s = session(e);
    r = greedy(s, ids, N, NEW);
    memcpy(ids + N, r.ids, NEW * sizeof *ids);
    ht_gen_result_done(&r);
    r = greedy(s, ids, N + NEW, 1);
    T_EQ_INT(r.n_kept, N + NEW - 1);
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_engine_close(e);
    ht_arena_free(a);
}

T_CASE_SECONDS(api_prefix, files_outlive_the_engine, 120)
{
    const char *dir = t_tmp();
    char path[400] = "";
    int32_t ids[100];
    uint32_t left;
    uint64_t files, bytes;
    char *json = NULL;
    ht_arena *a = arena();
    ht_err err = {0};
    const ht_gen_params gp = {.max_new = 5, .ignore_eos = 1, .hash_logits = 1};
    make_ids(ids, 100, 6);
    ht_engine *e = cached(1, 0, dir);
    ht_session *s = session(e);
    ht_gen_result cold = go(s, ids, 100, &gp);
    T_OK(ht_engine_prefix_save(e, 0, &left, &err), err);
    T_EQ_INT(left, 0);
    ht_session_free(s);
    ht_engine_close(e);
    for (int harmed = 0; harmed < 2; harmed++) {
        e = cached(1, 0, dir);
        s = session(e);
        ht_gen_result warm = go(s, ids, 100, &gp);
        same(&cold, &warm);
        const ht_json *c = of_prefill(a, s, "prefixCache");
        T_CHECK(harmed ? warm.n_kept < 96 : warm.n_kept == 96, "kept %u", warm.n_kept);
        T_EQ_INT(num(c, "diskTokens"), warm.n_kept);
        T_EQ_STR(str(c, "reason"), harmed ? "DAMAGED" : "WHOLE");
        if (harmed) T_CHECK(strstr(str(c, "refused"), path), "%s", str(c, "refused"));
        ht_gen_result_done(&warm);
        ht_session_free(s);
        ht_engine_close(e);
        /* One byte of one page. */
        DIR *d = opendir(dir);
        const struct dirent *it;
        while (d && (it = readdir(d)) != NULL)
            if (it->d_name[0] != '.') (void)snprintf(path, sizeof path, "%s", it->d_name);
        int fd = openat(dirfd(d), path, O_RDWR);
        char b = 0;
        T_TRUE(fd >= 0 && pread(fd, &b, 1, 5000) == 1);
        b ^= 4;
        T_TRUE(pwrite(fd, &b, 1, 5000) == 1);
        (void)close(fd);
        (void)closedir(d);
    }
    T_OK(ht_prefix_folder_list(dir, 0, &json, &err), err);
    const ht_json *j = parse(a, json);
    T_EQ_INT(num(j, "pages"), 3);
    T_EQ_INT(num(&ht_json_get(j, "models")->at[0], "prefixes"), 1);
    T_OK(ht_prefix_folder_prune(dir, 0, -1, &files, &bytes, &err), err);
    T_EQ_INT(files, 3);
    T_ERR(ht_prefix_folder_list("no/such/folder", 0, &json, &err), HT_EIO, err, "cannot be read");
    ht_gen_result_done(&cold);
    ht_arena_free(a);
}

/* More sessions than the pool has room for prefixes: pages of the cache go, sessions do not
 * fail. */
T_CASE_SECONDS(api_prefix, cache_gives_way, 120)
{
    int32_t ids[CTX];
    ht_engine *e = cached(1, 1, NULL); /* no page beside what the session needs */
    ht_session *s = session(e);
    ht_err err = {0};
    for (uint64_t i = 0; i < 8; i++) {
        make_ids(ids, CTX, i % 3);
        ht_gen_result r = greedy(s, ids, 400 + 10 * i, 30);
        T_EQ_INT(r.n_ids, 30);
        ht_gen_result_done(&r);
        T_OK(ht_session_truncate(s, 0, &err), err);
    }
    ht_prefix_counts c;
    ht_engine_prefix_count(e, &c);
    T_CHECK(c.dropped > 0 && c.pages <= CTX / 32, "%u pages, %llu dropped", c.pages,
            (unsigned long long)c.dropped);
    ht_session_free(s);
    ht_engine_close(e);
}

/* ---- all that is lossless at once ------------------------------------------------------------ */

typedef struct {
    int32_t ids[160];
    size_t n;
    ht_sampling sampling;
    ht_speculation spec;
    ht_gen_params p;
} request;

/* Prompts with common beginnings and repetitions for the lookup; every second one is sampled. */
static void make_request(request *r, uint64_t seed, uint32_t max_new)
{
    memset(r, 0, sizeof *r);
    uint64_t common = seed % 3, own = seed;
    r->n = 90 + t_rand(&own) % 60;
    make_ids(r->ids, 70, common);
    make_ids(r->ids + 70, r->n - 70, own);
    memcpy(r->ids + r->n - 12, r->ids + 20, 12 * sizeof *r->ids);
    ht_sampling_init(&r->sampling);
    r->sampling.seed = seed;
    if (seed % 2) r->sampling.temp = 0;
    r->spec = (ht_speculation){.lookup = 1, .always = 1};
    r->p = (ht_gen_params){
        .max_new = max_new, .sampling = &r->sampling, .ignore_eos = 1, .hash_logits = 1};
}

/* Each prompt alone without anything, then four at a time in shared passes with lookup, on a cache
 * that earlier ones have filled, each in a fork of a session; every second one also has a draft
 * model. */
static void all_at_once(uint32_t prompts, uint32_t max_new)
{
    enum { TOGETHER = 4 };
    ht_engine *plain = cached(1, 0, NULL), *e = cached(2 * TOGETHER, 16u << 20, NULL);
    request *r = calloc(prompts, sizeof *r);
    ht_gen_result *want = calloc(prompts, sizeof *want);
    const ht_engine_params small = {
        .model = TALE, .ctx = 512, .threads = 1, .act = "q8", .max_sessions = TOGETHER};
    ht_engine *drafts = engine(&small);
    ht_session *p = session(plain), *d[TOGETHER];
    ht_err err = {0};
    uint64_t kept = 0, drafted = 0;
    T_TRUE(r && want);
    for (uint32_t i = 0; i < prompts; i++) {
        make_request(&r[i], i, max_new);
        T_OK(ht_session_truncate(p, 0, &err), err);
        want[i] = go(p, r[i].ids, r[i].n, &r[i].p);
        r[i].p.speculation = &r[i].spec;
    }
    for (int k = 0; k < TOGETHER; k++) d[k] = session(drafts);
    for (uint32_t at = 0; at < prompts; at += TOGETHER) {
        const uint32_t n = prompts - at < TOGETHER ? prompts - at : TOGETHER;
        ht_session *base[TOGETHER], *s[TOGETHER];
        ht_gen *g[TOGETHER];
        for (uint32_t k = 0; k < n; k++) {
            base[k] = session(e);
            ht_gen_result some = greedy(base[k], r[at + k].ids, 50, 1);
            ht_gen_result_done(&some);
            T_OK(ht_session_fork(&s[k], base[k], &err), err);
            if (k % 2) r[at + k].spec.draft = d[k];
            T_OK(ht_gen_new(&g[k], s[k], r[at + k].ids, r[at + k].n, &r[at + k].p, &err), err);
        }
        for (bool busy = true; busy;) {
            T_OK(ht_engine_step(e, g, n, 48, NULL, &err), err);
            busy = false;
            for (uint32_t k = 0; k < n; k++) busy = busy || ht_gen_state(g[k]) != HT_GEN_DONE;
        }
        for (uint32_t k = 0; k < n; k++) {
            ht_gen_result got = {0};
            T_OK(ht_gen_take(g[k], &got, &err), err);
            same(&want[at + k], &got);
            kept += got.n_kept;
            drafted += got.drafted;
            ht_gen_result_done(&got);
            ht_gen_free(g[k]);
            ht_session_free(s[k]);
            ht_session_free(base[k]);
        }
    }
    T_CHECK(kept > 40 * (uint64_t)prompts && drafted > prompts, "%llu kept, %llu drafted",
            (unsigned long long)kept, (unsigned long long)drafted);
    for (uint32_t i = 0; i < prompts; i++) ht_gen_result_done(&want[i]);
    free(want);
    free(r);
    for (int k = 0; k < TOGETHER; k++) ht_session_free(d[k]);
    ht_session_free(p);
    ht_engine_close(drafts);
    ht_engine_close(plain);
    ht_engine_close(e);
}
T_CASE_SECONDS(api_prefix, all_lossless_at_once, 240)
{
    all_at_once(12, 40);
}
T_CASE_FULL(api_prefix, all_lossless_at_once_50x256, 3600)
{
    all_at_once(50, 256);
}
