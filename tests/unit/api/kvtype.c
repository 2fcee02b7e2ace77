/* kvtype.c - packed KV types through the library: every type changes the result and none is read as
 * another, steps of any size and either packer give the same bits, layers differ when asked to, a
 * harmed scale is seen, going back has limits, and the gate stands before all of it. */
#include "kv/kv.h"
#include "step/kvcodec.h"
#include "step/step.h"
#include "util.h"

/* The engine's own view, to look into pages. */
#include "api/api.h"

enum { N = 200, LAST = 8, CTX = 256 };
static const char *const types[] = {"f16", "q8_0", "q4_0", "q8_0r", "q4_0r", "tq4", "tq3", "qjl3"};
enum { TYPES = sizeof types / sizeof *types };

static void text(int32_t ids[N])
{
    uint64_t seed = 17;
    for (int i = 0; i < N; i++) ids[i] = (int32_t)(5 + t_rand(&seed) % 4000);
}

static ht_engine *open_kv(const char *k, const char *v, uint32_t ubatch, int threads, int pack)
{
    const ht_engine_params p = {.model = TALE,
                                .ctx = CTX,
                                .ctk = k,
                                .ctv = v,
                                .kv_force = 1,
                                .kv_pack = pack,
                                .ubatch = ubatch,
                                .threads = threads,
                                .max_sessions = 3};
    return engine(&p);
}

/* Logits of the last rows; the text goes in in pieces of `piece` tokens. */
static logits eval(ht_engine *e, ht_session *s, uint32_t piece)
{
    int32_t ids[N];
    ht_err err = {0};
    logits l = {.cap = LAST};
    l.rows = calloc((size_t)LAST * ht_engine_n_logits(e), sizeof *l.rows);
    text(ids);
    for (uint32_t at = 0, n; at < N; at += n) {
        uint32_t want[LAST], k = 0;
        n = N - at < piece ? N - at : piece;
        for (uint32_t i = 0; i < n; i++)
            if (at + i >= N - LAST) want[k++] = i;
        T_OK(ht_session_eval(s, ids + at, n, want, k, keep_logits, &l, &err), err);
    }
    T_EQ_INT(l.n, LAST);
    return l;
}

static logits fresh(const char *k, const char *v, uint32_t ubatch, int threads, int pack,
                    uint32_t piece)
{
    ht_engine *e = open_kv(k, v, ubatch, threads, pack);
    ht_session *s = session(e);
    logits l = eval(e, s, piece);
    ht_session_free(s);
    ht_engine_close(e);
    return l;
}

static bool equal(const logits *a, const logits *b)
{
    return memcmp(a->rows, b->rows, LAST * (size_t)a->n_vocab * sizeof *a->rows) == 0;
}

static double apart(const logits *a, const logits *b)
{
    double d = 0;
    for (size_t i = 0; i < LAST * (size_t)a->n_vocab; i++)
        d = fmax(d, fabs((double)a->rows[i] - (double)b->rows[i]));
    return d;
}

/* No two of the types give the same logits, for K and for V: none falls through to another. */
T_CASE_SECONDS(kvtype, no_dead_switch, 300)
{
    for (int is_v = 0; is_v < 2; is_v++) {
        logits l[TYPES];
        for (int i = 0; i < TYPES; i++) {
            l[i] = fresh(is_v ? "f16" : types[i], is_v ? types[i] : "f16", 64, 2, 0, N);
            for (int j = 0; j < i; j++)
                T_CHECK(!equal(&l[i], &l[j]), "%s: %s is %s", is_v ? "V" : "K", types[i], types[j]);
        }
        /* A sane order of what they lose. */
        T_CHECK(apart(&l[1], &l[0]) < apart(&l[2], &l[0]), "q8_0 loses less than q4_0");
        T_CHECK(apart(&l[5], &l[0]) < apart(&l[6], &l[0]), "tq4 loses less than tq3");
        for (int i = 0; i < TYPES; i++) free(l[i].rows);
    }
}

/* Pieces, chunks, threads, who packs: the same bits. */
T_CASE_SECONDS(kvtype, bits_do_not_depend_on_when_and_who, 300)
{
    static const struct {
        const char *k, *v;
    } pair[] = {{"q8_0r", "tq4"}, {"tq3", "q4_0"}};
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        logits want = fresh(pair[i].k, pair[i].v, 256, 1, HT_KV_PACK_STEP, N);
        static const struct {
            uint32_t ubatch, piece;
            int threads, pack;
        } how[] = {{7, N, 2, HT_KV_PACK_STEP},
                   {64, 1, 2, HT_KV_PACK_THREAD},
                   {32, 33, 1, HT_KV_PACK_THREAD},
                   {256, N, 2, HT_KV_PACK_THREAD},
                   {16, 5, 2, HT_KV_PACK_THREAD}};
        for (size_t h = 0; h < sizeof how / sizeof *how; h++) {
            logits got = fresh(pair[i].k, pair[i].v, how[h].ubatch, how[h].threads, how[h].pack,
                               how[h].piece);
            T_CHECK(equal(&got, &want), "K %s V %s, ubatch %u, pieces of %u, pack %d", pair[i].k,
                    pair[i].v, how[h].ubatch, how[h].piece, how[h].pack);
            free(got.rows);
        }
        free(want.rows);
    }
}

/* Layers named apart: all of them as F16 again is F16; one of them is neither. */
T_CASE_SECONDS(kvtype, layers_apart, 120)
{
    logits f16 = fresh("f16", "f16", 64, 2, 0, N), tq4 = fresh("tq4", "tq4", 64, 2, 0, N);
    logits all = fresh("tq4,0-7=q8_0,0-7=f16", "tq4,0-7=f16", 64, 2, 0, N);
    logits some = fresh("tq4,0-1=f16,7=f16", "tq4,0=f16", 64, 2, 0, N);
    T_TRUE(!equal(&f16, &tq4) && !equal(&some, &f16) && !equal(&some, &tq4));
    T_TRUE(equal(&all, &f16));
    free(f16.rows), free(tq4.rows), free(all.rows), free(some.rows);
}

/* One scale of one packed page changed is seen in the logits; so packed pages are what is read. */
T_CASE(kvtype, harmed_scale_is_seen)
{
    for (int is_v = 0; is_v < 2; is_v++) {
        ht_engine *e = open_kv("q8_0r", "tq4", 64, 2, HT_KV_PACK_STEP);
        ht_session *s = session(e), *t = NULL;
        ht_err err = {0};
        logits a = eval(e, s, N), b = {.cap = 1}, c = {.cap = 1};
        const int32_t next = 7;
        b.rows = calloc(a.n_vocab, sizeof *b.rows), c.rows = calloc(a.n_vocab, sizeof *c.rows);
        T_OK(ht_session_fork(&t, s, &err), err);
        T_OK(ht_session_eval(s, &next, 1, NULL, 1, keep_logits, &b, &err), err);
        const ht_kv *kv = ht_pool_kv(e->pool);
        uint32_t page = ht_seq_pages(t->seq, HT_KV_FULL)[2]; /* positions 64 to 95 */
        T_TRUE(kv->packed[HT_KV_FULL][page] && kv->raw_of[HT_KV_FULL][page] == HT_NOPAGE);
        uint8_t *head = ht_kv_head(kv, 3, is_v, page, 1, false);
        uint16_t *scale =
            (uint16_t *)(uintptr_t)ht_kv_scales(kv->type[3][is_v], kv->head_dim, head);
        scale[5] = ht_f32_to_f16(ht_f16_to_f32(scale[5]) * 3);
        T_OK(ht_session_eval(t, &next, 1, NULL, 1, keep_logits, &c, &err), err);
        T_CHECK(memcmp(b.rows, c.rows, a.n_vocab * sizeof *b.rows) != 0, "%s", is_v ? "V" : "K");
        free(a.rows), free(b.rows), free(c.rows);
        ht_session_free(s);
        ht_session_free(t);
        ht_engine_close(e);
    }
}

/* A fork goes its own way over shared packed pages; the first is not touched. Back by a few
 * positions works, further back is refused and 0 always works. */
T_CASE_SECONDS(kvtype, forks_and_going_back, 120)
{
    ht_engine *e = open_kv("q8_0r", "tq4", 64, 2, HT_KV_PACK_THREAD);
    ht_session *s = session(e), *t = NULL;
    ht_err err = {0};
    int32_t ids[N];
    text(ids);
    logits want = eval(e, s, N);
    T_OK(ht_session_fork(&t, s, &err), err);
    T_OK(ht_session_eval(t, ids, 40, NULL, 0, NULL, NULL, &err), err);
    T_OK(ht_session_truncate(s, N - LAST, &err), err); /* one chunk's rows at most */
    logits again = {.cap = LAST};
    again.rows = calloc((size_t)LAST * want.n_vocab, sizeof *again.rows);
    T_OK(ht_session_eval(s, ids + N - LAST, LAST, NULL, LAST, keep_logits, &again, &err), err);
    T_TRUE(equal(&again, &want));
    T_ERR(ht_session_truncate(s, 100, &err), HT_EUNSUPPORTED, err, "packed");
    T_EQ_INT(ht_session_len(s), N);
    T_OK(ht_session_truncate(s, 0, &err), err);
    ht_session_free(t);
    logits anew = eval(e, s, N);
    T_TRUE(equal(&anew, &want));
    free(want.rows), free(again.rows), free(anew.rows);
    ht_session_free(s);
    ht_engine_close(e);
}

/* The gate: refused without a measurement, by a bad one, by one of other types; taken with a good
 * one or by force; and the receipt says which. */
static void put_gate(ht_engine *e, const char *dir, const ht_kv_gate *g)
{
    ht_err err = {0};
    char *name, *json, path[512];
    T_OK(ht_engine_kv_gate(e, g, &name, &json, &err), err);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    T_TRUE(f && fputs(json, f) >= 0 && fclose(f) == 0);
    ht_free(name);
    ht_free(json);
}
T_CASE(kvtype, gate)
{
    const char *dir = t_tmp();
    ht_engine *e = NULL, *forced = open_kv("q8_0", "tq4", 64, 1, 0);
    ht_err err = {0};
    ht_engine_params p = {.model = TALE, .ctx = CTX, .ctk = "q8_0", .ctv = "tq4", .threads = 1};
    T_ERR(ht_engine_open(&e, &p, &err), HT_EGATE, err, "nobody has measured");
    p.kv_gates = dir;
    T_ERR(ht_engine_open(&e, &p, &err), HT_EGATE, err, "kv-probe");
    put_gate(forced, dir, &(ht_kv_gate){0.02, 1.001, 512, 255});
    T_ERR(ht_engine_open(&e, &p, &err), HT_EGATE, err, "mean KL 0.02");
    put_gate(forced, dir, &(ht_kv_gate){0.001, 1.02, 512, 255});
    T_ERR(ht_engine_open(&e, &p, &err), HT_EGATE, err, "perplexity +2.00 %");
    put_gate(forced, dir, &(ht_kv_gate){0.001, 1.001, 512, 255});
    T_OK(ht_engine_open(&e, &p, &err), err);
    ht_arena *a = arena();
    ht_session *s = session(e);
    const int32_t ids[] = {5, 6, 7};
    ht_gen_result r = greedy(s, ids, 3, 4);
    const ht_json *rc = receipt(a, s);
    T_EQ_STR(str(rc, "kv.gate"), "measured");
    T_EQ_STR(str(rc, "kv.k"), "q8_0");
    T_EQ_INT(num(rc, "kv.meanKlPpm"), 1000);
    T_EQ_INT(num(rc, "kv.pplRatioPpm"), 1001000);
    ht_gen_result_done(&r);
    ht_session_free(s);
    ht_engine_close(e);
    p.ctv = "tq3"; /* another pair is not measured by that */
    T_ERR(ht_engine_open(&e, &p, &err), HT_EGATE, err, "nobody has measured");
    p.ctk = "q8_0,9=f16";
    T_ERR(ht_engine_open(&e, &p, &err), HT_EARG, err, "layers 9 to 9");
    p.ctk = "q8_0,x=f16";
    T_ERR(ht_engine_open(&e, &p, &err), HT_EARG, err, "LAYER=TYPE");
    p.ctk = "q8_9";
    T_ERR(ht_engine_open(&e, &p, &err), HT_EARG, err, "\"q8_9\"");
    ht_engine_close(forced);
    ht_arena_free(a);
    char rm[64];
    snprintf(rm, sizeof rm, "rm -r %s", dir);
    T_EQ_INT(system(rm), 0);
}

/* Three sessions in turn through prefill and decode, to the end of the context: the raw slots that
 * were counted suffice, and all come back. */
T_CASE_SECONDS(kvtype, slots_suffice, 120)
{
    ht_engine *e = open_kv("tq4", "q8_0", 64, 2, HT_KV_PACK_THREAD);
    ht_session *s[3];
    ht_err err = {0};
    int32_t ids[CTX];
    uint64_t seed = 4;
    for (int i = 0; i < CTX; i++) ids[i] = (int32_t)(t_rand(&seed) % 4000);
    for (int i = 0; i < 3; i++) s[i] = session(e);
    for (uint32_t at = 0; at < CTX; at += 64)
        for (int i = 0; i < 3; i++)
            T_OK(ht_session_eval(s[i], ids + at, 64, NULL, 0, NULL, NULL, &err), err);
    for (int i = 0; i < 3; i++) ht_session_free(s[i]);
    const ht_kv *kv = ht_pool_kv(e->pool);
    for (uint32_t i = 0; i < kv->n_pages[HT_KV_FULL]; i++)
        T_EQ_INT(kv->raw_of[HT_KV_FULL][i], HT_NOPAGE);
    const ht_pack_stats st = ht_pool_packing(e->pool);
    T_TRUE(st.early_pages + st.step_pages >= 3 * (CTX / 32 - 3));
    ht_engine_close(e);
}
