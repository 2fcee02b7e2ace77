/* step.c - tapes of known shapes, the shortest path against brute force, names and sizes. */
#include "step/step.h"
#include "core/arena.h"
#include "model/model.h"
#include "step/kvpool.h"
#include "test.h"

/* A model of nothing but its spec and layers: enough for a tape. */
typedef struct {
    ht_model m;
    ht_layer_spec spec[64];
    ht_layer layer[64];
} shape;

static shape *new_shape(uint32_t n_layers)
{
    shape *s = calloc(1, sizeof *s);
    s->m.spec.n_layers = n_layers;
    s->m.spec.layer = s->spec;
    s->m.layer = s->layer;
    return s;
}

static size_t count(const ht_stage *t, size_t n, int kind, unsigned flags)
{
    size_t c = 0;
    for (size_t i = 0; i < n; i++) c += t[i].kind == kind && t[i].flags == flags;
    return c;
}

/* Lengths of architecture.md 2: five stages a layer and three around them. */
T_CASE(tape, qwen3_06b)
{
    shape *s = new_shape(28);
    s->m.spec.qk_norm = s->m.spec.tied = true;
    ht_stage t[200];
    size_t n = ht_tape(&s->m, t, 200);
    T_EQ_INT(n, 143);
    T_EQ_INT(t[0].kind, HT_EMBED);
    T_EQ_INT(count(t, n, HT_QKV, HT_QKNORM), 28);
    T_EQ_INT(count(t, n, HT_PICK, 0), 1);
    T_EQ_INT(t[136].kind, HT_QKV); /* the last layer's, and PICK right behind it */
    T_EQ_INT(t[136].layer, 27);
    T_EQ_INT(t[137].kind, HT_PICK);
    T_EQ_INT(t[138].kind, HT_ATTN);
    T_EQ_INT(t[n - 1].kind, HT_HEAD);
    T_EQ_INT(count(t, n, HT_SAMPLE, 0), 0);
    T_EQ_INT(ht_tape(&s->m, NULL, 0), 143);
    free(s);
}

T_CASE(tape, other_families)
{
    ht_stage t[400];
    shape *s = new_shape(32); /* Llama-3-8B */
    T_EQ_INT(ht_tape(&s->m, t, 400), 163);
    for (int i = 0; i < 32; i++) s->spec[i].moe = 1; /* Mixtral 8x7B */
    s->m.spec.expert_renorm = true;
    T_EQ_INT(ht_tape(&s->m, t, 400), 163);
    T_EQ_INT(count(t, 163, HT_ROUTE, HT_RENORM), 32);
    T_EQ_INT(count(t, 163, HT_FFN_UP, 0), 0);
    free(s);

    s = new_shape(28); /* Qwen2-7B */
    s->m.spec.qkv_bias = true;
    T_EQ_INT(ht_tape(&s->m, t, 400), 143);
    T_EQ_INT(count(t, 143, HT_QKV, HT_BIAS), 28);
    free(s);

    s = new_shape(26); /* Gemma-3-1B */
    s->m.spec.qk_norm = s->m.spec.post_norm = s->m.spec.gelu = true;
    for (int i = 0; i < 26; i++) s->spec[i].window = (i + 1) % 6 != 0;
    T_EQ_INT(ht_tape(&s->m, t, 400), 133);
    T_EQ_INT(count(t, 133, HT_ATTN, HT_WINDOW), 22);
    T_EQ_INT(count(t, 133, HT_ATTN, 0), 4);
    T_EQ_INT(count(t, 133, HT_ATTN_OUT, HT_POSTNORM), 26);
    T_EQ_INT(count(t, 133, HT_FFN_UP, HT_GELU), 26);
    s->m.spec.attn_cap = 50, s->m.spec.logit_cap = 30; /* Gemma 2's caps */
    (void)ht_tape(&s->m, t, 400);
    T_EQ_INT(count(t, 133, HT_ATTN, HT_WINDOW | HT_CAP), 22);
    T_EQ_INT(count(t, 133, HT_HEAD, HT_CAP), 1);
    free(s);

    s = new_shape(24); /* Qwen2-MoE */
    s->m.spec.qkv_bias = true;
    s->m.spec.shared_ffn = 8;
    for (int i = 0; i < 24; i++) s->spec[i].moe = 1;
    T_EQ_INT(ht_tape(&s->m, t, 400), 123);
    T_EQ_INT(count(t, 123, HT_EXPERTS, HT_SHARED), 24);
    T_EQ_INT(count(t, 123, HT_ROUTE, 0), 24);
    free(s);

    s = new_shape(48); /* Qwen3-30B-A3B */
    for (int i = 0; i < 48; i++) s->spec[i].moe = 1;
    T_EQ_INT(ht_tape(&s->m, t, 400), 243);
    free(s);
}

/* Past the capacity the tape is counted, not written. */
T_CASE(tape, writes_no_more_than_asked)
{
    shape *s = new_shape(28);
    ht_stage t[8];
    memset(t, 0x5a, sizeof t);
    T_EQ_INT(ht_tape(&s->m, t, 4), 143);
    T_EQ_INT(t[3].kind, HT_ATTN_OUT);
    T_EQ_INT(t[4].kind, 0x5a5a);
    free(s);
}

/* ---- covers ---------------------------------------------------------------------------------- */

enum { N_SPANS = 6 };
static struct {
    int first; /* runs where the stage's kind equals this, or anywhere (-1) */
    size_t len;
    double cost;
} rule[N_SPANS];

static size_t rule_covers(int i, const ht_stage *at, size_t left)
{
    return (rule[i].first < 0 || at->kind == rule[i].first) && left >= rule[i].len ? rule[i].len
                                                                                   : 0;
}
#define RULE(i)                                                                                    \
    static size_t covers##i(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,   \
                            const ht_bucket *b)                                                    \
    {                                                                                              \
        (void)d, (void)m, (void)b;                                                                 \
        return rule_covers(i, at, left);                                                           \
    }                                                                                              \
    static const ht_span span##i = {"s" #i, covers##i, NULL, NULL};
RULE(0)
RULE(1)
RULE(2)
RULE(3)
RULE(4)
RULE(5)
static const ht_span *const spans[] = {&span0, &span1, &span2, &span3, &span4, &span5, NULL};
static const ht_backend fake = {.name = "fake", .spans = spans};

static double rule_cost(void *user, const ht_cut *c)
{
    (void)user;
    for (int i = 0; i < N_SPANS; i++)
        if (spans[i] == c->span) return rule[i].cost;
    return -1;
}

/* Cost of the cheapest cover of tape[at..n) by trying all. */
static double brute(const ht_stage *t, size_t n, size_t at)
{
    double best = INFINITY;
    if (at == n) return 0;
    for (int i = 0; i < N_SPANS; i++) {
        size_t len = rule_covers(i, t + at, n - at);
        if (len) best = fmin(best, rule[i].cost + brute(t, n, at + len));
    }
    return best;
}

T_CASE(cover, equals_brute_force)
{
    uint64_t rng = 9;
    int none = 0, some = 0;
    for (int trial = 0; trial < 500; trial++) {
        ht_stage t[10];
        ht_cut cut[10];
        ht_err e = {0};
        ht_bucket b = {.rows = 1};
        size_t n = 1 + t_rand(&rng) % 10, at = 0;
        for (size_t i = 0; i < n; i++) t[i] = (ht_stage){(uint16_t)(t_rand(&rng) % 3), 0, -1};
        for (int i = 0; i < N_SPANS; i++) {
            rule[i].first = (int)(t_rand(&rng) % 4) - 1;
            rule[i].len = 1 + t_rand(&rng) % 3;
            rule[i].cost = (double)(1 + t_rand(&rng) % 9);
        }
        double want = brute(t, n, 0), sum = 0;
        size_t k = ht_cover(&fake, NULL, NULL, t, n, &b, rule_cost, NULL, cut, &e);
        if (isinf(want)) {
            T_EQ_INT(k, 0);
            T_EQ_INT(e.code, HT_EUNSUPPORTED);
            none++;
            continue;
        }
        some++;
        for (size_t i = 0; i < k; i++) {
            T_EQ_INT(cut[i].at, at);
            at += cut[i].n;
            sum += rule_cost(NULL, &cut[i]);
        }
        T_EQ_INT(at, n);
        T_NEAR(sum, want, 0);
    }
    T_CHECK(none > 20 && some > 100, "%d without and %d with a cover", none, some);
}

/* Of equal costs the first span of the table wins; an unmeasured longer span beats two short
 * ones. */
T_CASE(cover, ties_and_unmeasured)
{
    ht_stage t[2] = {{HT_FFN_UP, 0, 0}, {HT_FFN_DOWN, 0, 0}};
    ht_cut cut[2];
    ht_err e = {0};
    ht_bucket b = {.rows = 1};
    for (int i = 0; i < N_SPANS; i++) rule[i].first = -1, rule[i].len = 1, rule[i].cost = 1;
    T_EQ_INT(ht_cover(&fake, NULL, NULL, t, 2, &b, rule_cost, NULL, cut, &e), 2);
    T_CHECK(cut[0].span == &span0 && cut[1].span == &span0, "the first of equals");
    rule[3].len = 2;
    T_EQ_INT(ht_cover(&fake, NULL, NULL, t, 2, &b, NULL, NULL, cut, &e), 1);
    T_CHECK(cut[0].span == &span3, "one dispatch less");
}

T_CASE(cover, failure_names_the_stage)
{
    ht_stage t[3] = {{HT_EMBED, 0, -1}, {HT_ATTN, HT_WINDOW | HT_CAP, 7}, {HT_HEAD, 0, -1}};
    ht_cut cut[3];
    ht_err e = {0};
    ht_bucket b = {.rows = 1};
    for (int i = 0; i < N_SPANS; i++) rule[i].first = HT_HEAD, rule[i].len = 1;
    rule[0].first = HT_EMBED;
    T_EQ_INT(ht_cover(&fake, NULL, NULL, t, 3, &b, rule_cost, NULL, cut, &e), 0);
    T_EQ_INT(e.code, HT_EUNSUPPORTED);
    T_CHECK(strstr(e.msg, "attn+window+cap.7") && strstr(e.msg, "fake"), "%s", e.msg);
}

static size_t covers_exact(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,
                           const ht_bucket *b)
{
    (void)d, (void)m, (void)at, (void)left;
    return b->act == HT_ACT_F32 && b->kv_fmt == (HT_KV_F16 | HT_KV_F16 << 8);
}

/* "no span for stage head (rows 1, act q8, kv format 257)" did not say what was wrong. */
T_CASE(cover, failure_names_what_was_chosen)
{
    static const ht_span exact = {"exact", covers_exact, NULL, NULL};
    static const ht_span *const one[] = {&exact, NULL};
    static const ht_backend be = {.name = "fake", .spans = one};
    const ht_stage t[1] = {{HT_HEAD, 0, -1}};
    ht_cut cut[1];
    ht_err e = {0};
    ht_bucket b = {.rows = 1, .act = HT_ACT_Q8, .kv_fmt = HT_KV_F16 | HT_KV_F16 << 8};
    T_EQ_INT(ht_cover(&be, NULL, NULL, t, 1, &b, NULL, NULL, cut, &e), 0);
    T_CHECK(strstr(e.msg, "fake does not compute with act q8") && strstr(e.msg, "choose act f32"),
            "%s", e.msg);
    b.act = HT_ACT_F32;
    b.kv_fmt = HT_KV_Q8_0 | HT_KV_TQ4 << 8;
    T_EQ_INT(ht_cover(&be, NULL, NULL, t, 1, &b, NULL, NULL, cut, &e), 0);
    T_CHECK(strstr(e.msg, "keys in q8_0 and values in tq4") && strstr(e.msg, "choose f16"), "%s",
            e.msg);
    b.act = HT_ACT_F16;
    T_EQ_INT(ht_cover(&be, NULL, NULL, t, 1, &b, NULL, NULL, cut, &e), 0);
    T_CHECK(strstr(e.msg, "act f16, keys q8_0, values tq4"), "%s", e.msg);
    b = (ht_bucket){.rows = 1, .kv_fmt = HT_KV_F16 | HT_KV_F16 << 8};
    T_EQ_INT(ht_cover(&be, NULL, NULL, t, 1, &b, NULL, NULL, cut, &e), 1);
}

T_CASE(cover, hash_tells_covers_apart)
{
    ht_stage t[2] = {{HT_FFN_UP, 0, 0}, {HT_FFN_DOWN, 0, 0}};
    ht_cut two[2] = {{&span0, 0, 1}, {&span0, 1, 1}}, one[1] = {{&span1, 0, 2}};
    char a[65], b[65], c[65];
    ht_err e = {0};
    T_OK(ht_cover_hash(t, two, 2, a, &e), e);
    T_OK(ht_cover_hash(t, one, 1, b, &e), e);
    T_CHECK(strcmp(a, b) != 0, "%s", a);
    t[1].flags = HT_POSTNORM;
    T_OK(ht_cover_hash(t, two, 2, c, &e), e);
    T_CHECK(strcmp(a, c) != 0, "stages count too");
}

/* ---- texts, types, floors -------------------------------------------------------------------- */

T_CASE(step, stage_text)
{
    char out[80];
    ht_stage s = {HT_QKV, HT_BIAS | HT_QKNORM, 12};
    ht_stage_text(&s, out);
    T_EQ_STR(out, "qkv+bias+qknorm.12");
    s = (ht_stage){HT_HEAD, 0, -1};
    ht_stage_text(&s, out);
    T_EQ_STR(out, "head");
    s = (ht_stage){999, 0xffff, 32767};
    ht_stage_text(&s, out);
    T_CHECK(out[0] == '?' && strlen(out) < 80, "%s", out);
    for (int i = 0; i < HT_KINDS; i++) T_CHECK(ht_kind_name(i)[0] != '?', "kind %d has a name", i);
    T_EQ_STR(ht_kind_name(-1), "?");
}

T_CASE(step, kv_types)
{
    T_EQ_INT(ht_kv_page_bytes(HT_KV_F32, 3, 64), 3 * 32 * 64 * 4);
    T_EQ_INT(ht_kv_page_bytes(HT_KV_F16, 3, 64), 3 * 32 * 64 * 2);
    T_EQ_INT(ht_kv_page_bytes(99, 3, 64), 0);
    for (int i = 0; i < HT_KVTYPES; i++) T_EQ_INT(ht_kvtype_by_name(ht_kvtype_name(i)), i);
    T_EQ_INT(ht_kvtype_by_name("q1"), -1);
}

/* Decode of one row at depth 100 by hand: [4 heads, 2 KV heads, 8 dims], dim 16, ffn 32, F16. */
T_CASE(step, floors)
{
    shape *s = new_shape(2);
    ht_spec *p = &s->m.spec;
    p->dim = 16, p->n_heads = 4, p->n_kv_heads = 2, p->head_dim = 8, p->ffn = 32, p->vocab = 50;
    ht_layer *l = s->layer;
    char data[1];
    l->q = (ht_weight){.data = data, .rows = 32, .cols = 16, .mat_bytes = 32 * 16 * 2};
    l->k = l->v = (ht_weight){.data = data, .rows = 16, .cols = 16, .mat_bytes = 16 * 16 * 2};
    ht_bucket b = {.rows = 1,
                   .seqs = 1,
                   .want = 1,
                   .ctx = 128,
                   .past = 99,
                   .kv_fmt = HT_KV_F16 | HT_KV_F16 << 8};
    uint64_t bytes, flops;
    ht_stage qkv = {HT_QKV, 0, 0}, attn = {HT_ATTN, 0, 0};
    ht_stage_bound(&s->m, &qkv, &b, &bytes, &flops);
    T_EQ_INT(flops, 2 * (32 + 16 + 16) * 16);
    T_EQ_INT(bytes, (32 + 16 + 16) * 16 * 2 + 16 * 4 + 32 * 4 + 16 * (2 + 2));
    ht_stage_bound(&s->m, &attn, &b, &bytes, &flops);
    T_EQ_INT(flops, 4 * 100 * 4 * 8); /* 100 keys, the row's own included */
    T_EQ_INT(bytes, 100 * 2 * 8 * (2 + 2) + 2 * 32 * 4);
    attn.flags = HT_WINDOW;
    p->window = 10;
    ht_stage_bound(&s->m, &attn, &b, &bytes, &flops);
    T_EQ_INT(flops, 4 * 10 * 4 * 8);
    b.want = 0; /* nothing behind PICK is run */
    ht_stage head = {HT_HEAD, 0, -1};
    ht_stage_bound(&s->m, &head, &b, &bytes, &flops);
    T_EQ_INT(bytes + flops, 0);
    free(s);
}
