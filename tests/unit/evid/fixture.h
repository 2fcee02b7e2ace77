/* fixture.h - a synthetic but complete bundle: every input document of docs/bundle.md for a
 * made-up stable host, with knobs for what a test wants to be wrong. Included by the tests of
 * evid/ and route/. */
#ifndef HT_TEST_EVID_FIXTURE_H
#define HT_TEST_EVID_FIXTURE_H
#include "evid/verify.h"
#include "test.h"
#include <stdarg.h>

enum { FX_FILES = 20000 };
typedef struct fx {
    ht_arena *a;
    ht_mfile *file;
    size_t n;
    /* knobs, set before fx_build() */
    uint32_t pairs, null_pairs, requests, cells, seed;
    uint32_t gain_ppm;      /* how much faster the candidate is                            */
    uint32_t null_gain_ppm; /* 10^6: the null run sees no difference                        */
    uint32_t jitter_ppm;
    uint32_t slow_pair;         /* this pair's candidate requests take 3 times as long; -1 none */
    int fail_block, fail_slot;  /* this slot's requests fail with status sutError; -1: none     */
    int void_block, void_tries; /* this block's first attempts are void                         */
    bool wrong_output;          /* the candidate's quality is bad                              */
    bool no_edges_prompts;      /* every prompt has the middle length                          */
    bool real;                  /* not marked synthetic                                        */
    bool copy_pair;             /* the streams of pair 9 are those of pair 8                    */
    const char *started;             /* NULL: a fixed time */
    const char *guards;         /* NULL: all clear                                             */
    const char *policy;         /* NULL: the fixture policy                                    */
    const char *machine;        /* NULL: the fixture's                                         */
    const char *assets;         /* document of the libraries; NULL: none are mapped            */
    const char *backend;        /* of the candidate; NULL: "cpu;threads=2"                      */
    const char *model_sha, *tok_sha, *tmpl_sha, *binary_sha, *instance,
        *os;           /* NULL: made up      */
    ht_scope scope[2]; /* filled in: what the cells admit                              */
    uint64_t rng, now;
} fx;

#define FX_SHA(c)                                                                                  \
    c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c  \
        c c c c c c c c c c c c c c c c c

static inline char *fx_fmt(fx *f, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *s = ht_arena_alloc(f->a, (size_t)n + 1);
    T_CHECK(s, "no memory");
    vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(ap);
    va_end(again);
    return s;
}

static inline const char *fx_sha(fx *f, const void *p, size_t n)
{
    uint8_t d[HT_SHA256_BYTES];
    ht_err e = {0};
    char *hex = ht_arena_alloc(f->a, HT_SHA256_HEX);
    T_OK(ht_sha256_of(p, n, d, &e), e);
    ht_hex(d, sizeof d, hex);
    return hex;
}

static inline ht_mfile *fx_find(fx *f, const char *path)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->file[i].path, path) == 0) return &f->file[i];
    return NULL;
}

/* Add or replace; returns the digest. */
static inline const char *fx_put(fx *f, const char *path, const char *text, size_t n)
{
    ht_mfile *m = fx_find(f, path);
    if (!m) {
        T_CHECK(f->n < FX_FILES, "too many files");
        m = &f->file[f->n++];
    }
    m->path = path;
    m->role = "x";
    m->data = text;
    m->bytes = n;
    memcpy(m->sha256, fx_sha(f, text, n), HT_SHA256_HEX);
    return m->sha256;
}

static inline const char *fx_text(fx *f, const char *path, const char *text)
{
    return fx_put(f, path, text, strlen(text));
}

/* First occurrence of `from` in a text replaced. */
static inline const char *fx_swap(fx *f, const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    T_CHECK(at, "no %s to replace", from);
    return fx_fmt(f, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static inline void fx_edit(fx *f, const char *path, const char *from, const char *to)
{
    ht_mfile *m = fx_find(f, path);
    T_CHECK(m, "no file %s", path);
    fx_text(f, path, fx_swap(f, m->data, from, to));
}

static inline void fx_init(fx *f)
{
    ht_err e = {0};
    *f = (fx){.pairs = 8,
              .null_pairs = 8,
              .requests = 1,
              .cells = 2,
              .seed = 7,
              .gain_ppm = 1100000,
              .null_gain_ppm = 1000000,
              .jitter_ppm = 1000,
              .slow_pair = UINT32_MAX,
              .fail_block = -1,
              .fail_slot = -1,
              .void_block = -1,
              .rng = 99,
              .now = 1000000000};
    T_OK(ht_arena_new(&f->a, 0, &e), e);
    f->file = ht_arena_array(f->a, FX_FILES, sizeof *f->file);
    T_CHECK(f->file, "no memory");
}

static inline void fx_done(fx *f)
{
    ht_arena_free(f->a);
}

/* The default policy with few pairs, no tail, no production. */
static inline const char *fx_policy(fx *f)
{
    const char *p = fx_swap(f, ht_policy_default, "\"fixture\":false", "\"fixture\":true");
    p = fx_swap(f, p, "\"minPairs\":12", "\"minPairs\":8");
    p = fx_swap(f, p, "\"pairs\":12", "\"pairs\":8");
    p = fx_swap(f, p, "default-2026-1", "fixture-1");
    return fx_swap(f, p, "\"mayNotApply\":[]", "\"mayNotApply\":[\"tail\"]");
}

static inline const char *fx_machine(fx *f)
{
    (void)f;
    return "{\"live\":{},\"record\":{\"kernel\":{\"v\":\"6.1.0\"}},\"reject\":{\"arch\":{\"v\":"
           "\"synthetic-test-host\"},\"cores\":{\"v\":8}},\"schema\":\"hetero/machine/"
           "1\",\"stale\":"
           "{\"microcode\":{\"v\":\"0x1\"}}}";
}

static inline const char *fx_scope(fx *f, ht_scope *s)
{
    ht_buf b;
    ht_err e = {0};
    ht_buf_init(&b, 0);
    T_OK(ht_scope_write(s, &b, &e), e);
    char *text = fx_fmt(f, "%s", b.p);
    ht_buf_done(&b);
    return text;
}

static inline const char *fx_cell_id(uint32_t cell)
{
    return cell ? "p512" : "d512";
}
static inline const char *fx_or(const char *s, const char *def)
{
    return s ? s : def;
}

static inline void fx_design(fx *f, const char *prompts_sha, const char *policy_sha)
{
    const char *m = fx_or(f->machine, fx_machine(f));
    const char *r = strstr(m, "\"reject\":") + 9, *end = strstr(r, ",\"schema\"");
    const char *cls = fx_sha(f, r, (size_t)(end - r));
    const char *assets =
        fx_text(f, "subject/assets.json",
                fx_or(f->assets, "{\"files\":[],\"schema\":\"hetero/assets/1\"}"));
    char *cells = fx_fmt(f, "%s", ""), *order = cells;
    uint32_t n_null = f->null_pairs / 2, n_blocks = n_null + f->pairs / 2;
    for (uint32_t c = 0; c < f->cells; c++) {
        f->scope[c] = (ht_scope){.phase = c ? HT_PREFILL : HT_DECODE,
                                 .min_tokens = 129,
                                 .max_tokens = 512,
                                 .max_new = c ? 0 : 64,
                                 .batch_min = 1,
                                 .batch_max = 1,
                                 .ctx_max = 8192,
                                 .acc = "f32",
                                 .act = "f32",
                                 .kv = "f16",
                                 .weights = "f16",
                                 .sampler = "greedy",
                                 .spec = "off",
                                 .backend = fx_or(f->backend, "cpu;threads=2"),
                                 .model_sha = fx_or(f->model_sha, FX_SHA("1")),
                                 .tok_sha = fx_or(f->tok_sha, FX_SHA("2")),
                                 .tmpl_sha = fx_or(f->tmpl_sha, FX_SHA("3")),
                                 .binary_sha = fx_or(f->binary_sha, FX_SHA("4")),
                                 .assets_sha = assets,
                                 .class_sha = cls,
                                 .instance = fx_or(f->instance, "hmac:synthetic"),
                                 .os = fx_or(f->os, "linux-6")};
        ht_scope ref = f->scope[c];
        ref.backend = "cpu";
        const char *a = fx_scope(f, &ref), *b = fx_scope(f, &f->scope[c]);
        cells = fx_fmt(f, "%s%s{\"id\":\"%s\",\"metric\":\"%s\",\"refScope\":%s,\"scope\":%s}",
                       cells, c ? "," : "", fx_cell_id(c), c ? "ttftNs" : "tpotNs", a, b);
    }
    for (uint32_t b = 0; b < n_blocks; b++)
        order =
            fx_fmt(f, "%s%s\"%s\"", order, b ? "," : "", ht_design_block(f->seed, b, b < n_null));
    fx_text(
        f, "design.json",
        fx_fmt(
            f,
            "{\"blocks\":\"ABBA_BAAB\",\"cells\":[%s],\"cpus\":8,\"nullPairs\":%u,\"order\":[%s],"
            "\"pairs\":%u,\"policySha256\":\"%s\",\"predecessor\":{\"known\":false,\"reason\":"
            "\"NONE\"},\"promptsSha256\":\"%s\",\"requestsPerSlot\":%u,\"schema\":"
            "\"hetero/design/1\",\"seed\":%u,\"selectionBundle\":{\"known\":false,\"reason\":"
            "\"NONE\"},\"spacingNs\":0,\"startedUtc\":\"%s\",\"synthetic\":%s,"
            "\"warmupRequests\":1}",
            cells, f->null_pairs, order, f->pairs, policy_sha, prompts_sha, f->requests, f->seed,
            fx_or(f->started, "2026-11-29T12:00:00Z"), f->real ? "false" : "true"));
}

static inline uint32_t fx_n_prompt(const fx *f, uint32_t pair)
{
    static const uint32_t len[3] = {129, 320, 512};
    return f->no_edges_prompts ? 320 : len[pair % 3];
}

static inline const char *fx_prompts(fx *f)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    for (uint32_t p = 0; p < f->pairs + f->null_pairs; p++)
        for (uint32_t c = 0; c < f->cells; c++)
            for (uint32_t r = 0; r < f->requests; r++) {
                const char *id = fx_fmt(f, "%u/%u/%u", p, c, r);
                ht_buf_fmt(
                    &b,
                    "{\"bucket\":\"%s\",\"nPrompt\":%u,\"pairId\":%u,\"promptTokSha256\":\"%s\","
                    "\"request\":%u}\n",
                    fx_cell_id(c), fx_n_prompt(f, p), p, fx_sha(f, id, strlen(id)), r);
            }
    char *text = fx_fmt(f, "%s", b.p);
    ht_buf_done(&b);
    return fx_text(f, "prompts.jsonl", text);
}

typedef struct {
    ht_buf journal, samples;
    uint64_t seq, attempts, voids;
    char prev[HT_SHA256_HEX];
} fx_log;

/* A journal line from its members before and after the four common ones, all in byte order. */
static inline void fx_event(fx *f, fx_log *l, const char *before, const char *event,
                            const char *after_event, const char *after_seq)
{
    char *line = fx_fmt(f, "{%s\"event\":\"%s\",%s\"monoNs\":%llu,\"prev\":\"%s\",\"seq\":%llu%s}",
                        before, event, after_event, (unsigned long long)f->now, l->prev,
                        (unsigned long long)l->seq++, after_seq);
    ht_buf_fmt(&l->journal, "%s\n", line);
    memcpy(l->prev, fx_sha(f, line, strlen(line)), HT_SHA256_HEX);
}

typedef struct {
    uint32_t block, slot, attempt, cell, request;
    char arm;
    bool is_void, fails;
} fx_at;

/* The time of one request: 100 ms to the first token, 10 ms for each further one. */
static inline uint64_t fx_noise(fx *f, uint64_t ns, const fx_at *at, uint32_t pair)
{
    uint64_t gain = at->arm == 'B' ? f->gain_ppm : at->arm == 'M' ? f->null_gain_ppm : 1000000;
    uint64_t j = 1000000 + t_rand(&f->rng) % (2 * f->jitter_ppm + 1) - f->jitter_ppm;
    ns = ns * 1000000 / gain * j / 1000000;
    return at->arm == 'B' && pair == f->slow_pair ? 3 * ns : ns;
}

static inline void fx_request(fx *f, fx_log *l, const fx_at *at)
{
    uint32_t pair = 2 * at->block + (at->slot - 1) / 2, out = at->fails ? 0 : 4;
    char *dir = fx_fmt(f, "raw/b%02u/s%u-%c/a%u/%s-%u", at->block, at->slot, at->arm, at->attempt,
                       fx_cell_id(at->cell), at->request);
    const char *id = fx_fmt(f, "%u/%u/%u", pair, at->cell, at->request);
    const char *prompt = fx_sha(f, id, strlen(id));
    uint64_t first = fx_noise(f, 100000000, at, pair), gap = fx_noise(f, 10000000, at, pair);
    const char *req = fx_text(f, fx_fmt(f, "%s/request.bin", dir), fx_fmt(f, "ask %s", id));
    const char *rsp = fx_text(f, fx_fmt(f, "%s/response.bin", dir), at->fails ? "" : "abcdefgh");
    char *chunks = fx_fmt(f, "%s", "");
    uint8_t ids[16] = {0};
    uint64_t t0 = f->now;
    for (uint32_t i = 0; i < out; i++) {
        ids[4 * i] = (uint8_t)(i + 1);
        chunks = fx_fmt(f, "%s{\"i\":%u,\"len\":2,\"off\":%u,\"tNs\":%llu,\"tok\":[%u]}\n", chunks,
                        i, 2 * i, (unsigned long long)(t0 + first + i * gap), i + 1);
    }
    chunks = fx_fmt(f, "%s{\"end\":\"%s\"}\n", chunks, at->fails ? "EOF_EARLY" : "DONE");
    if (f->copy_pair && pair == 9 && at->arm == 'B') {
        const ht_mfile *m =
            fx_find(f, fx_fmt(f, "raw/b04/s%u-B/a1/%s-%u/chunks.jsonl", f->seed % 2 ? 1 : 2,
                              fx_cell_id(at->cell), at->request));
        if (m) chunks = fx_fmt(f, "%s", m->data);
    }
    const char *chunk_sha = fx_text(f, fx_fmt(f, "%s/chunks.jsonl", dir), chunks);
    const char *na = "{\"known\":false,\"reason\":\"FAILED\"}";
    const char *guards =
        at->is_void
            ? "{\"acOnline\":false,\"clocksSteady\":true,\"eccDelta\":0,\"foreignCpuPpm\":0,"
              "\"gpuEvents\":0,\"gpuProcs\":0,\"nrThrottledDelta\":0,\"psiPpm\":0,"
              "\"stealPpm\":0,\"suspendNs\":0,\"swapIns\":0,\"throttleDelta\":0}"
            : fx_or(f->guards,
                    "{\"acOnline\":true,\"clocksSteady\":true,\"eccDelta\":{\"known\":false,"
                    "\"reason\":\"NO_GPU\"},\"foreignCpuPpm\":0,\"gpuEvents\":{\"known\":"
                    "false,\"reason\":\"NO_GPU\"},\"gpuProcs\":{\"known\":false,\"reason\":"
                    "\"NO_GPU\"},\"nrThrottledDelta\":0,\"psiPpm\":0,\"stealPpm\":0,"
                    "\"suspendNs\":0,\"swapIns\":0,\"throttleDelta\":0}");
    bool timed = !at->fails && !at->is_void;
    const char *e2e = timed ? fx_fmt(f, "%llu", (unsigned long long)(first + 3 * gap)) : na;
    const char *ttft = timed ? fx_fmt(f, "%llu", (unsigned long long)first) : na;
    const char *tpot = timed ? fx_fmt(f, "%llu", (unsigned long long)gap) : na;
    ht_buf_fmt(
        &l->samples,
        "{\"arm\":\"%c\",\"attempt\":%u,\"block\":%u,\"bucket\":\"%s\",\"chunksSha256\":\"%s\","
        "\"e2eNs\":%s,\"endState\":\"%s\",\"guards\":%s,\"intendedNs\":%llu,\"nOut\":%u,"
        "\"nPrompt\":%u,\"outTokSha256\":\"%s\",\"pairId\":%u,\"promptTokSha256\":\"%s\","
        "\"receiptSha256\":{\"known\":false,\"reason\":\"NONE\"},\"requestSha256\":\"%s\","
        "\"responseSha256\":\"%s\",\"schema\":\"hetero/sample/1\",\"sendLagNs\":1200,\"slot\":%u,"
        "\"status\":\"%s\",\"tpotNs\":%s,\"ttftNs\":%s,\"voidReason\":%s}\n",
        at->arm, at->attempt, at->block, fx_cell_id(at->cell), chunk_sha, e2e,
        at->fails ? "EOF_EARLY" : "DONE", guards, (unsigned long long)t0, out, fx_n_prompt(f, pair),
        fx_sha(f, ids, 4 * out), pair, prompt, req, rsp, at->slot,
        at->is_void ? "voidGuard"
        : at->fails ? "sutError"
                    : "ok",
        tpot, ttft, at->is_void ? "\"AC_LOST\"" : "null");
    f->now += 1000000000;
}

/* One slot; false when it was void. */
static inline bool fx_slot(fx *f, fx_log *l, fx_at at)
{
    at.is_void = (int)at.block == f->void_block && (int)at.attempt <= f->void_tries && at.slot == 2;
    at.fails = (int)at.block == f->fail_block && (int)at.slot == f->fail_slot && !at.is_void;
    char *before =
        fx_fmt(f, "\"arm\":\"%c\",\"attempt\":%u,\"block\":%u,", at.arm, at.attempt, at.block);
    char *slot = fx_fmt(f, ",\"slot\":%u", at.slot);
    size_t from = l->samples.n, lines = 0;
    fx_event(f, l, before, "start", "", slot);
    for (uint32_t c = 0; c < f->cells; c++)
        for (uint32_t r = 0; r < f->requests; r++, lines++) {
            at.cell = c;
            at.request = r;
            fx_request(f, l, &at);
        }
    fx_event(f, l, before, "guards", "",
             fx_fmt(f, "%s,\"void\":\"%s\"", slot, at.is_void ? "GUARD" : "NONE"));
    fx_event(f, l, before, "samples", fx_fmt(f, "\"lines\":%zu,", lines),
             fx_fmt(f, ",\"sha256\":\"%s\"%s", fx_sha(f, l->samples.p + from, l->samples.n - from),
                    slot));
    if (!at.is_void)
        fx_text(
            f, fx_fmt(f, "raw/b%02u/s%u-%c/a%u/proc.json", at.block, at.slot, at.arm, at.attempt),
            "{\"exit\":0,\"peakBytes\":1048576,\"schema\":\"hetero/proc/1\",\"warmupNs\":5000000}");
    return !at.is_void;
}

static inline void fx_run(fx *f)
{
    fx_log l = {.prev = FX_SHA("0")};
    uint32_t n_null = f->null_pairs / 2, n_blocks = n_null + f->pairs / 2;
    ht_buf_init(&l.journal, 0);
    ht_buf_init(&l.samples, 0);
    fx_event(f, &l, fx_fmt(f, "\"designSha256\":\"%s\",", fx_find(f, "design.json")->sha256),
             "design", "", "");
    for (uint32_t b = 0; b < n_blocks; b++)
        for (uint32_t attempt = 1; attempt <= 2; attempt++) {
            const char *arms = ht_design_block(f->seed, b, b < n_null);
            bool good = true;
            l.attempts++;
            for (uint32_t s = 1; s <= 4 && good; s++)
                good = fx_slot(
                    f, &l, (fx_at){.block = b, .slot = s, .attempt = attempt, .arm = arms[s - 1]});
            if (good) break;
            l.voids++;
        }
    fx_event(
        f, &l,
        fx_fmt(f, "\"attempts\":%llu,\"blocks\":%u,", (unsigned long long)l.attempts, n_blocks),
        "close", "", fx_fmt(f, ",\"voids\":%llu", (unsigned long long)l.voids));
    fx_put(f, "journal.jsonl", fx_fmt(f, "%s", l.journal.p), l.journal.n);
    fx_put(f, "samples.jsonl", fx_fmt(f, "%s", l.samples.p), l.samples.n);
    ht_buf_done(&l.journal);
    ht_buf_done(&l.samples);
}

static inline void fx_quality(fx *f)
{
    char *p = fx_fmt(f, "%s", ""), *r = p, *c = p;
    for (int i = 0; i < 3; i++) {
        static const char *const kind[] = {"greedy", "text", "task"};
        p = fx_fmt(f, "%s{\"i\":%d,\"kind\":\"%s\",\"promptTokSha256\":\"%s\"}\n", p, i, kind[i],
                   FX_SHA("a"));
        r = fx_fmt(f, "%s{\"i\":%d,\"out\":[1,2,3,4],\"right\":%s,\"top1\":[5,6]}\n", r, i,
                   i == 2 ? "true" : "{\"known\":false,\"reason\":\"NONE\"}");
        c = fx_fmt(
            f, "%s{\"i\":%d,\"kldNano\":[1,2],\"out\":[1,2,3,%d],\"right\":%s,\"top1\":[5,6]}\n", c,
            i, f->wrong_output ? 9 : 4, i == 2 ? "true" : "{\"known\":false,\"reason\":\"NONE\"}");
    }
    fx_text(f, "quality/prompts.jsonl", p);
    fx_text(f, "quality/ref.jsonl", r);
    fx_text(f, "quality/cand.jsonl", c);
}

/* All inputs, in memory. */
static inline void fx_build(fx *f)
{
    const char *policy = fx_text(f, "policy.json", fx_or(f->policy, fx_policy(f)));
    fx_design(f, fx_prompts(f), policy);
    const ht_scope *s = &f->scope[0];
    fx_text(f, "machine/before.json", fx_or(f->machine, fx_machine(f)));
    fx_text(f, "machine/after.json", fx_or(f->machine, fx_machine(f)));
    fx_text(f, "subject/modelpack.json",
            fx_fmt(f, "{\"files\":[],\"schema\":\"hetero/modelpack/1\",\"sha256\":\"%s\"}",
                   s->model_sha));
    fx_text(
        f, "subject/tokenizer.json",
        fx_fmt(f, "{\"schema\":\"hetero/tokenizer/1\",\"sha256\":\"%s\",\"templateSha256\":\"%s\"}",
               s->tok_sha, s->tmpl_sha));
    fx_text(f, "build/source.json",
            "{\"commit\":\"0\",\"dirty\":false,\"schema\":\"hetero/source/1\",\"tree\":\"0\"}");
    fx_text(
        f, "build/binary.json",
        fx_fmt(f, "{\"bytes\":1,\"schema\":\"hetero/binary/1\",\"sha256\":\"%s\"}", s->binary_sha));
    fx_text(f, "build/toolchain.json",
            "{\"compiler\":\"cc\",\"flags\":\"\",\"schema\":\"hetero/toolchain/1\"}");
    fx_quality(f);
    fx_run(f);
}

static inline int fx_by_path(const void *x, const void *y)
{
    return strcmp(((const ht_mfile *)x)->path, ((const ht_mfile *)y)->path);
}

/* The inputs as a manifest that was read. */
static inline ht_manifest fx_manifest(fx *f)
{
    ht_manifest m = {.file = f->file, .n = f->n, .sha256 = FX_SHA("b")};
    qsort(f->file, f->n, sizeof *f->file, fx_by_path);
    return m;
}

static inline int fx_read(fx *f, ht_evidence *v, ht_err *e)
{
    static ht_manifest m;
    m = fx_manifest(f);
    return ht_evidence_read(f->a, &m, v, e);
}

static inline ht_key *fx_key(uint8_t n)
{
    uint8_t seed[32] = {n};
    ht_key *k = NULL;
    ht_err e = {0};
    T_OK(ht_key_from_seed(&k, seed, &e), e);
    return k;
}

/* A trust root over keys 1 (bench), 2, 3 (promote), 4 (index), 5 (simulate), 6 (receipt). */
static inline void fx_trust(fx *f, ht_trust *t)
{
    ht_trust_key *key = ht_arena_array(f->a, 6, sizeof *key);
    static const unsigned role[6] = {HT_ROLE_BENCH, HT_ROLE_PROMOTE,  HT_ROLE_PROMOTE,
                                     HT_ROLE_INDEX, HT_ROLE_SIMULATE, HT_ROLE_RECEIPT};
    ht_err e = {0};
    for (uint8_t i = 0; i < 6; i++) {
        ht_key *k = fx_key((uint8_t)(i + 1));
        ht_key_public(k, key[i].pub);
        T_OK(ht_key_id(key[i].pub, key[i].id, &e), e);
        key[i].roles = 1u << role[i];
        ht_key_free(k);
    }
    *t = (ht_trust){.version = 1,
                    .expires_unix = 4000000000,
                    .key = key,
                    .n_keys = 6,
                    .threshold = {1, 2, 1, 1, 1}};
}

/* Written and sealed under dir; the bundle id into id. */
static inline void fx_seal(fx *f, const char *dir, char id[HT_SHA256_HEX])
{
    ht_err e = {0};
    ht_key *k = fx_key(1);
    ht_bundle_file *list = ht_arena_array(f->a, f->n, sizeof *list);
    for (size_t i = 0; i < f->n; i++)
        list[i] = (ht_bundle_file){f->file[i].path, f->file[i].data, f->file[i].bytes};
    T_OK(ht_bundle_write(dir, list, f->n, k, id, &e), e);
    ht_key_free(k);
}
enum { FX_NOW = 1795900000 }; /* 2026-11-28: within every validity of these tests            */
#endif
