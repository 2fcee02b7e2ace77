/* evict.c - eviction (R23): it changes nothing while there is room; which pages go is a matter of
 * positions, not of chunks, threads, company, drafts or what was held before; memory stays flat;
 * what the receipt calls evicted is not read any more and what it calls held is; a fork keeps its
 * own. */
#include "kv/kv.h"
#include "step/step.h"
#include "util.h"

/* The engine's own view, to look at scores and into pages. */
#include "api/api.h"

enum { PROMPT = 520, NEW = 290, LENGTH = PROMPT + NEW, KEEP = 256 };

static void text(int32_t *ids, uint32_t n, uint32_t vocab)
{
    uint64_t seed = 23;
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)(5 + t_rand(&seed) % (vocab - 5));
}

typedef struct {
    const char *model, *engine, *ctk, *isa;
    uint32_t evict, ubatch;
    int threads;
    bool guess, parts; /* parts: the prompt in three, with another generation before the last */
} how;

static ht_engine *open_how(const how *h, uint32_t ctx, uint32_t sessions)
{
    const ht_engine_params p = {.model = h->model,
                                .prefill_engine = h->engine,
                                .decode_engine = h->engine,
                                .ctk = h->ctk,
                                .ctv = h->ctk,
                                .kv_force = 1,
                                .isa = h->isa,
                                .ctx = ctx,
                                .ubatch = h->ubatch,
                                .threads = h->threads ? h->threads : 1,
                                .max_sessions = sessions,
                                .evict = h->evict};
    return engine(&p);
}

/* Generate greedily behind the first n of ids; the hash of all logits that were drawn from. */
static void generate(ht_session *s, const int32_t *ids, uint32_t n, uint32_t new, bool guess,
                     ht_gen_result *out)
{
    ht_err err = {0};
    ht_sampling sp;
    ht_sampling_init(&sp);
    sp.temp = 0;
    const ht_speculation w = {.lookup = 1, .always = 1};
    const ht_gen_params gp = {.max_new = new,
                              .sampling = &sp,
                              .ignore_eos = 1,
                              .hash_logits = 1,
                              .speculation = guess ? &w : NULL};
    T_OK(ht_session_generate(s, ids, n, &gp, out, &err), err);
    T_EQ_INT(out->n_ids, new);
}

static ht_gen_result run(const how *h)
{
    int32_t ids[PROMPT];
    ht_gen_result r = {0}, part = {0};
    ht_engine *e = open_how(h, 1024, 1);
    ht_session *s = session(e);
    text(ids, PROMPT, ht_engine_n_logits(e));
    if (h->parts) {
        generate(s, ids, 100, 7, false, &part);
        ht_gen_result_done(&part);
        generate(s, ids, 470, 1, false, &part);
        ht_gen_result_done(&part);
    }
    generate(s, ids, PROMPT, NEW, h->guess, &r);
    ht_session_free(s);
    ht_engine_close(e);
    return r;
}

static void same(const char *what, const how *h, const ht_gen_result *want)
{
    ht_gen_result r = run(h);
    T_CHECK(!strcmp(r.logits_sha256, want->logits_sha256), "%s, %s: other bits", h->model, what);
    T_EQ_MEM(r.ids, want->ids, NEW * sizeof *r.ids);
    ht_gen_result_done(&r);
}

T_CASE_SECONDS(evict, room_for_all_changes_nothing, 120)
{
    const char *const models[] = {TALE, golden("gemma3")};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        how h = {.model = models[i]};
        ht_gen_result plain = run(&h);
        h.evict = LENGTH + 20;
        same("evict off", &h, &plain);
        h.evict = KEEP;
        ht_gen_result less = run(&h);
        T_CHECK(strcmp(less.logits_sha256, plain.logits_sha256) != 0, "%s: nothing was missed",
                models[i]);
        ht_gen_result_done(&less);
        ht_gen_result_done(&plain);
    }
}

/* Chunks, threads, instruction sets, drafts, a prompt in parts with something else between. */
static void check_rule(const char *model, const char *ctk, const char *isa)
{
    how h = {.model = model, .ctk = ctk, .evict = KEEP};
    ht_gen_result want = run(&h);
    h.ubatch = 64, h.threads = 2;
    same("chunks of 64 on two threads", &h, &want);
    h.ubatch = 7, h.threads = 1, h.isa = isa;
    same("chunks of 7, other kernels", &h, &want);
    h.ubatch = 0, h.isa = NULL, h.guess = true;
    same("drafts", &h, &want);
    h.guess = false, h.parts = true;
    same("a prompt in parts", &h, &want);
    ht_gen_result_done(&want);
}
T_CASE_SECONDS(evict, bits_are_a_matter_of_positions, 240)
{
    check_rule(TALE, NULL, NULL);
    check_rule(golden("mistral_swa"), NULL, "generic");
    check_rule(golden("llama/model.gguf"), "f32", "generic");
}
T_CASE_SECONDS(evict, with_packed_types, 240)
{
    check_rule(TALE, "q8_0r", NULL);
    check_rule(golden("llama/model.gguf"), "tq4", "generic");
}

/* Three sessions in one pass give what each gives alone. */
T_CASE_SECONDS(evict, company_changes_nothing, 120)
{
    enum { SESSIONS = 3, SOME = 400 };
    const how h = {.model = golden("llama/model.gguf"), .evict = KEEP};
    int32_t ids[PROMPT];
    ht_err err = {0};
    ht_engine *e = open_how(&h, 1024, SESSIONS);
    ht_session *s[SESSIONS];
    ht_gen *g[SESSIONS];
    ht_gen_result alone[SESSIONS], r;
    ht_sampling sp;
    ht_sampling_init(&sp);
    sp.temp = 0;
    const ht_gen_params gp = {.max_new = SOME, .sampling = &sp, .ignore_eos = 1, .hash_logits = 1};
    text(ids, PROMPT, ht_engine_n_logits(e));
    for (uint32_t i = 0; i < SESSIONS; i++) {
        s[i] = session(e);
        generate(s[i], ids + 10 * i, PROMPT - 177 * i, SOME, false, &alone[i]);
        T_OK(ht_session_truncate(s[i], 0, &err), err);
        T_OK(ht_gen_new(&g[i], s[i], ids + 10 * i, PROMPT - 177 * i, &gp, &err), err);
    }
    for (bool busy = true; busy;) {
        T_OK(ht_engine_step(e, g, SESSIONS, 0, NULL, &err), err);
        busy = false;
        for (uint32_t i = 0; i < SESSIONS; i++) busy = busy || ht_gen_state(g[i]) != HT_GEN_DONE;
    }
    for (uint32_t i = 0; i < SESSIONS; i++) {
        T_OK(ht_gen_take(g[i], &r, &err), err);
        T_CHECK(!strcmp(r.logits_sha256, alone[i].logits_sha256), "session %u", i);
        ht_gen_result_done(&r);
        ht_gen_result_done(&alone[i]);
        ht_gen_free(g[i]);
        ht_session_free(s[i]);
    }
    ht_engine_close(e);
}

/* The reference in double arithmetic sees the same attention and gives up the same pages. */
T_CASE_SECONDS(evict, the_oracle_evicts_the_same, 120)
{
    const char *const engine_of[2] = {"cpu", "ref"};
    int32_t ids[LENGTH];
    uint32_t pages[2][LENGTH / HT_PAGE];
    float score[2][LENGTH / HT_PAGE];
    for (int i = 0; i < 2; i++) {
        const how h = {.model = golden("llama/model.gguf"), .engine = engine_of[i], .evict = KEEP};
        ht_err err = {0};
        ht_engine *e = open_how(&h, 1024, 1);
        ht_session *s = session(e);
        text(ids, LENGTH, ht_engine_n_logits(e));
        T_OK(ht_session_eval(s, ids, LENGTH, NULL, 0, NULL, NULL, &err), err);
        for (uint32_t k = 0; k < LENGTH / HT_PAGE; k++) {
            pages[i][k] = ht_seq_pages(s->seq, HT_KV_FULL)[k] == HT_NOPAGE;
            score[i][k] = s->evict.score[k];
        }
        ht_session_free(s);
        ht_engine_close(e);
    }
    uint32_t gone = 0;
    for (uint32_t k = 0; k < LENGTH / HT_PAGE; k++) {
        T_CHECK(pages[0][k] == pages[1][k], "page %u: %u, by ref %u", k, pages[0][k], pages[1][k]);
        /* F16 keys, f32 sums over 900 keys: relative errors of 1e-4. */
        T_NEAR(score[0][k], score[1][k], 1e-4 * (1 + (double)score[1][k]));
        gone += pages[0][k];
    }
    T_EQ_INT(gone, (768 - KEEP) / HT_PAGE);
    T_CHECK(!pages[0][0] && score[0][0] > 0, "the first page stays");
}

/* ---- what the receipt says ------------------------------------------------------------------- */

static bool held_at(const ht_json *receipt, uint32_t pos)
{
    const ht_json *held = ht_json_path(receipt, "eviction.held");
    T_CHECK(held && held->type == HT_JARR && held->n > 0, "no ranges");
    for (size_t i = 0; i < held->n; i++)
        if (pos >= (uint64_t)held->at[i].at[0].i && pos < (uint64_t)held->at[i].at[1].i)
            return true;
    return false;
}

/* Turn the sign bits of all keys and values of one page. */
static void harm(ht_engine *e, uint32_t page)
{
    const ht_kv *kv = ht_pool_kv(e->pool);
    for (uint32_t l = 0; l < kv->n_layers; l++)
        for (int v = 0; v < 2; v++) {
            uint8_t *p = kv->plane[l][v] + page * kv->page_bytes[l][v];
            for (uint64_t i = 1; i < kv->page_bytes[l][v]; i += 2) p[i] ^= 0x80;
        }
}

/* A needle in each page: is it there, and does the receipt say so? Every page that it calls held
 * changes the next logits when it is harmed; those that it calls evicted were given back, so
 * nothing reads them. The last page's needle and the first's are always there. */
T_CASE_SECONDS(evict, needles_are_where_the_receipt_says, 120)
{
    enum { PAGES = LENGTH / HT_PAGE };
    const how h = {.model = TALE, .evict = KEEP};
    int32_t ids[LENGTH];
    uint32_t at[PAGES], gone = 0;
    ht_err err = {0};
    ht_arena *a = arena();
    char *json = NULL;
    ht_engine *e = open_how(&h, 1024, 2);
    ht_session *s = session(e), *probe = NULL;
    logits before = {.cap = 1}, after = {.cap = 1};
    const size_t row = ht_engine_n_logits(e) * sizeof(float);
    before.rows = malloc(row), after.rows = malloc(row);
    text(ids, LENGTH, ht_engine_n_logits(e));
    T_OK(ht_session_eval(s, ids, LENGTH, NULL, 0, NULL, NULL, &err), err);
    T_OK(ht_session_receipt(s, &json, &err), err);
    const ht_json *receipt = parse(a, json);
    T_EQ_INT(num(receipt, "eviction.evictedTokens"), 768 - KEEP);
    T_EQ_INT(num(receipt, "eviction.keptTokens"), KEEP);
    T_EQ_INT(num(receipt, "eviction.rounds"), 2);
    T_EQ_STR(str(receipt, "eviction.class"), "lossy");
    T_EQ_INT(num(receipt, "options.evict"), KEEP);
    memcpy(at, ht_seq_pages(s->seq, HT_KV_FULL), sizeof at);
    for (uint32_t k = 0; k < PAGES; k++) {
        const bool held = held_at(receipt, k * HT_PAGE + 13);
        T_CHECK(held == (at[k] != HT_NOPAGE), "page %u: the receipt is wrong", k);
        gone += !held;
        if (!held) continue;
        for (int turn = 0; turn < 2; turn++) { /* a fork, so that each probe stands at one place */
            logits *l = turn ? &after : &before;
            l->n = 0;
            T_OK(ht_session_fork(&probe, s, &err), err);
            if (turn) harm(e, at[k]);
            T_OK(ht_session_eval(probe, ids, 1, NULL, 1, keep_logits, l, &err), err);
            if (turn) harm(e, at[k]);
            ht_session_free(probe);
        }
        T_CHECK(memcmp(before.rows, after.rows, row) != 0, "page %u is called held, not read", k);
    }
    T_EQ_INT(gone, (768 - KEEP) / HT_PAGE);
    T_CHECK(held_at(receipt, 0) && held_at(receipt, LENGTH - 1), "sinks and the newest");
    T_CHECK(!held_at(receipt, LENGTH), "nothing beyond the end");
    free(before.rows), free(after.rows);
    ht_arena_free(a);
    ht_session_free(s);
    ht_engine_close(e);
}

/* ---- forks and going back -------------------------------------------------------------------- */

T_CASE_SECONDS(evict, a_fork_keeps_what_the_other_gives_up, 120)
{
    const how h = {.model = TALE, .evict = KEEP};
    int32_t ids[LENGTH];
    ht_err err = {0};
    ht_engine *e = open_how(&h, 1024, 3);
    ht_session *s = session(e), *child = NULL, *twin = NULL;
    ht_gen_result want = {0}, got = {0};
    text(ids, LENGTH, ht_engine_n_logits(e));
    T_OK(ht_session_eval(s, ids, 510, NULL, 0, NULL, NULL, &err), err);
    T_OK(ht_session_fork(&child, s, &err), err);
    T_OK(ht_session_fork(&twin, s, &err), err);
    T_OK(ht_session_eval(child, ids + 510, 300, NULL, 0, NULL, NULL, &err), err);
    T_EQ_INT(ht_seq_pages(child->seq, HT_KV_FULL)[1] == HT_NOPAGE ||
                 ht_seq_pages(child->seq, HT_KV_FULL)[2] == HT_NOPAGE ||
                 ht_seq_pages(child->seq, HT_KV_FULL)[3] == HT_NOPAGE,
             1);
    for (uint32_t k = 0; k < 510 / HT_PAGE; k++)
        T_CHECK(ht_seq_pages(s->seq, HT_KV_FULL)[k] != HT_NOPAGE, "page %u of the parent", k);
    /* The parent goes on as a session that never had a child. */
    ht_session_free(child);
    generate(s, ids, 520, 300, false, &want);
    T_OK(ht_session_truncate(twin, 0, &err), err);
    generate(twin, ids, 520, 300, false, &got);
    T_EQ_STR(got.logits_sha256, want.logits_sha256);
    ht_gen_result_done(&got);
    /* No way back behind an eviction, but to the beginning; a prompt that wants it is computed. */
    T_ERR(ht_session_truncate(s, 600, &err), HT_EUNSUPPORTED, err, "evicted at 768");
    T_OK(ht_session_truncate(s, 800, &err), err);
    generate(s, ids, 520, 300, false, &got);
    T_EQ_STR(got.logits_sha256, want.logits_sha256);
    T_EQ_INT(got.n_kept, 0);
    ht_gen_result_done(&got);
    ht_gen_result_done(&want);
    ht_session_free(s);
    ht_session_free(twin);
    ht_engine_close(e);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static long resident_kib(void)
{
    long pages = 0, all = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    T_TRUE(f && fscanf(f, "%ld %ld", &all, &pages) == 2);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

typedef struct {
    ht_engine *e;
    uint32_t n, least_free;
    long kib;
} watch;

static int on_token(void *user, const ht_token_event *t)
{
    watch *w = user;
    uint32_t total, left;
    if (t->id < 0) return 0;
    ht_engine_pages(w->e, &total, &left);
    if (left < w->least_free) w->least_free = left;
    if (++w->n == 5000) w->kib = resident_kib();
    return 0;
}

/* 50,000 tokens in the memory of 512: a pool of the kept pages and a stride, filled again and
 * again; beside it only the tokens and their text grow, a few bytes each. */
T_CASE_SECONDS(evict, memory_is_flat_over_50000_tokens, 240)
{
    enum { TOKENS = 50000, KEPT = 512 };
    const how h = {.model = golden("llama/model.gguf"), .evict = KEPT, .threads = 1};
    const int32_t first = 1;
    ht_err err = {0};
    ht_arena *a = arena();
    char *json = NULL;
    ht_gen_result r = {0};
    ht_engine *e = open_how(&h, TOKENS + 64, 1);
    ht_session *s = session(e);
    uint32_t total, left;
    ht_engine_pages(e, &total, &left);
    T_EQ_INT(total, (KEPT + HT_KV_STRIDE) / HT_PAGE);
    watch w = {.e = e, .least_free = UINT32_MAX};
    ht_sampling sp;
    ht_sampling_init(&sp);
    sp.seed = 5;
    const ht_gen_params gp = {
        .max_new = TOKENS, .sampling = &sp, .ignore_eos = 1, .on_token = on_token, .user = &w};
    T_OK(ht_session_generate(s, &first, 1, &gp, &r, &err), err);
    T_EQ_INT(r.n_ids, TOKENS);
    T_EQ_INT(r.finish, HT_FINISH_LENGTH);
    const long grown = resident_kib() - w.kib;
    T_CHECK(grown < 1024 + (long)(r.len >> 8), "%ld KiB more after 45,000 tokens", grown);
    T_EQ_INT(w.least_free, 0); /* the pool is no larger than it must be */
    T_OK(ht_session_receipt(s, &json, &err), err);
    const ht_json *receipt = parse(a, json);
    T_EQ_INT(num(receipt, "eviction.evictedTokens"), TOKENS / HT_KV_STRIDE * HT_KV_STRIDE - KEPT);
    T_CHECK(held_at(receipt, 3) && held_at(receipt, TOKENS - 1), "sinks and the newest");
    ht_gen_result_done(&r);
    ht_arena_free(a);
    ht_session_free(s);
    ht_engine_close(e);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void reason(const how *h, uint64_t prefix_bytes, const char *want)
{
    int32_t ids[100];
    ht_err err = {0};
    ht_arena *a = arena();
    char *json = NULL;
    ht_gen_result r = {0};
    const ht_engine_params p = {.model = h->model,
                                .ctk = h->ctk,
                                .kv_force = 1,
                                .ctx = 300,
                                .threads = 1,
                                .evict = h->evict,
                                .prefix_bytes = prefix_bytes};
    ht_engine *e = engine(&p);
    ht_session *s = session(e);
    text(ids, 100, ht_engine_n_logits(e));
    generate(s, ids, 100, 1, false, &r);
    T_OK(ht_session_receipt(s, &json, &err), err);
    const ht_json *receipt = parse(a, json);
    const ht_json *prefill = &ht_json_get(receipt, "phases")->at[0];
    T_EQ_STR(str(prefill, "prefixCache.reason"), want);
    T_EQ_INT(num(prefill, "prefixCache.tokens"), 0);
    ht_gen_result_done(&r);
    ht_arena_free(a);
    ht_session_free(s);
    ht_engine_close(e);
}

T_CASE(evict, refusals_and_reasons)
{
    ht_err err = {0};
    ht_engine *e = NULL;
    ht_engine_params p = {.model = TALE, .ctx = 512, .evict = 255};
    T_ERR(ht_engine_open(&e, &p, &err), HT_EARG, err, "at least 256");
    p.evict = 256, p.prefix_dir = "/tmp/hetero-none", p.prefix_bytes = 1 << 20;
    T_ERR(ht_engine_open(&e, &p, &err), HT_EUNSUPPORTED, err, "do not evict");
    p.evict = 0, p.ctv = "q8_0", p.kv_force = 1;
    T_ERR(ht_engine_open(&e, &p, &err), HT_EUNSUPPORTED, err, "use f16 or f32");
    reason(&(how){.model = TALE, .evict = 256}, 1 << 20, "EVICTS");
    reason(&(how){.model = TALE, .ctk = "q8_0"}, 1 << 20, "PACKED");
    reason(&(how){.model = TALE}, 1 << 20, "COLD");
}
