/* engine.c - what the engine reports and refuses: dispatches and barriers, prefill without logits,
 * cancel, options, bad batches. */
#include "small.h"

static ht_batch one_row(small *s, const int32_t *tok, const int32_t *pos, const uint16_t *seq,
                        const uint32_t *want)
{
    return (ht_batch){.rows = 1,
                      .seqs = s->seqs,
                      .n_want = 1,
                      .token = tok,
                      .pos = pos,
                      .seq = seq,
                      .page = {s->table[0], s->table[1]},
                      .want = want};
}

/* Qwen3-0.6B: 28 layers, 16 query heads on 8 KV heads, per-head norms; the widths are cut, counts
 * do not depend on them. Plain: embed, (3 + 1 + 1 + 3 + 1) a layer, pick, 2 for the head. Fused:
 * embed, 5 a layer, pick, head. */
T_CASE(cpu_engine, dispatches_of_qwen3_06b)
{
    small_shape h = {.layers = 28,
                     .dim = 64,
                     .heads = 16,
                     .kv_heads = 8,
                     .head_dim = 16,
                     .ffn = 64,
                     .vocab = 64,
                     .type = HT_F16,
                     .type2 = HT_F16,
                     .qk_norm = true};
    small s;
    ht_run_stats st[2];
    small_new(&s, &h, HT_KV_F16, 64, 1);
    for (int plain = 0; plain < 2; plain++) {
        engine g;
        int32_t tok = 5, pos = 0;
        uint16_t seq = 0;
        uint32_t want = 0;
        engine_open(&g, &s, "threads=2", HT_ACT_F32, 1, 1, plain);
        ht_batch b = one_row(&s, &tok, &pos, &seq, &want);
        engine_step(&g, &s, &b, NULL);
        T_EQ_INT(ht_backend_cpu.stats(g.plan, &st[plain]), 0);
        engine_close(&g);
    }
    T_EQ_INT(st[1].dispatches, 1 + 28 * 9 + 1 + 2);
    T_EQ_INT(st[0].dispatches, 1 + 28 * 5 + 1 + 1);
    T_EQ_INT(st[1].barriers, st[1].dispatches - 1);
    T_EQ_INT(st[0].barriers, st[0].dispatches - 1);
    T_TRUE(st[0].dispatches * 100 <= st[1].dispatches * 68 &&
           st[0].barriers * 100 <= st[1].barriers * 68);
    T_TRUE(st[0].bytes == st[1].bytes && st[0].flops == st[1].flops && st[0].bytes > 0);
    small_free(&s);
}

/* A prefill chunk that nobody wants logits of stops behind the last QKV and leaves the same
 * cache. */
T_CASE(cpu_engine, want_nothing)
{
    small s;
    engine none, all;
    int32_t tok[40], pos[40];
    uint16_t seq[40] = {0};
    uint32_t want[40];
    float a[71], b[71];
    small_new(&s, &small_llama, HT_KV_F16, 64, 1);
    for (int i = 0; i < 40; i++) tok[i] = i, pos[i] = i, want[i] = 0;
    engine_open(&all, &s, "threads=2", HT_ACT_F32, 40, 1, false);
    engine_open(&none, &s, "threads=2", HT_ACT_F32, 39, 0, false);
    ht_batch whole = {.rows = 40,
                      .seqs = 1,
                      .n_want = 1,
                      .token = tok,
                      .pos = pos,
                      .seq = seq,
                      .page = {s.table[0], s.table[1]},
                      .want = want};
    want[0] = 39;
    engine_step(&all, &s, &whole, a);
    for (int i = 0; i < 3; i++)
        for (int v = 0; v < 2; v++)
            memset(s.kv.plane[i][v], 0, s.kv.page_bytes[i][v] * s.kv.n_pages[0]);
    ht_batch head = whole, last = one_row(&s, tok + 39, pos + 39, seq, want);
    head.rows = 39, head.n_want = 0;
    engine_step(&none, &s, &head, NULL);
    want[0] = 0;
    engine_step(&all, &s, &last, b);
    T_EQ_MEM(a, b, sizeof a);
    ht_run_stats st;
    T_EQ_INT(ht_backend_cpu.stats(none.plan, &st), 0);
    engine_step(&none, &s, &head, NULL);
    T_EQ_INT(ht_backend_cpu.stats(none.plan, &st), 0);
    T_EQ_INT(st.dispatches, 1 + 5 + 5 + 1); /* embed, two layers, the last QKV */
    engine_close(&none);
    engine_close(&all);
    small_free(&s);
}

/* Only the first ids: their logits are those of the whole head, the others are not written. */
T_CASE(cpu_engine, few_ids)
{
    enum { VOCAB = 71, IDS = 17 };
    small s;
    int32_t tok = 1, pos = 0;
    uint16_t seq = 0;
    uint32_t want = 0;
    float all[VOCAB], few[VOCAB];
    small_new(&s, &small_llama, HT_KV_F16, 64, 1);
    for (int plain = 0; plain < 2; plain++) {
        engine g;
        engine_open(&g, &s, "threads=2", plain ? HT_ACT_F32 : HT_ACT_Q8, 1, 1, plain);
        ht_batch b = one_row(&s, &tok, &pos, &seq, &want);
        engine_step(&g, &s, &b, all);
        tok = 2;
        engine_step(&g, &s, &b, few);
        T_TRUE(memcmp(all + IDS, few + IDS, sizeof all - IDS * sizeof *all) != 0);
        tok = 1, b.n_ids = IDS;
        engine_step(&g, &s, &b, all);
        T_EQ_MEM(all + IDS, few + IDS, sizeof all - IDS * sizeof *all); /* still of token 2 */
        b.n_ids = 0;
        engine_step(&g, &s, &b, few);
        T_EQ_MEM(all, few, IDS * sizeof *all);
        engine_close(&g);
    }
    small_free(&s);
}

/* A cancel before run counts for it, and is then used up. */
T_CASE(cpu_engine, cancel)
{
    small s;
    engine g;
    ht_err e = {0};
    int32_t tok = 1, pos = 0;
    uint16_t seq = 0;
    uint32_t want = 0;
    const float *l;
    small_new(&s, &small_llama, HT_KV_F16, 64, 1);
    engine_open(&g, &s, "threads=2", HT_ACT_F32, 1, 1, false);
    ht_batch b = one_row(&s, &tok, &pos, &seq, &want);
    T_EQ_INT(ht_backend_cpu.cancel(g.plan), 0);
    T_OK(ht_backend_cpu.run(g.plan, &b, &e), e);
    T_ERR(ht_backend_cpu.wait(g.plan, &l, &e), HT_ECANCELLED, e, "cancelled");
    T_TRUE(l == NULL);
    engine_step(&g, &s, &b, NULL);
    T_ERR(ht_backend_cpu.wait(g.plan, &l, &e), HT_EARG, e, "without run");
    engine_close(&g);
    small_free(&s);
}

T_CASE(cpu_engine, bad_batches)
{
    small s;
    engine g;
    ht_err e = {0};
    int32_t tok = 1, pos = 0, wrong;
    uint16_t seq = 0, seq1 = 1;
    uint32_t want = 0, parent = 0;
    (void)parent;
    small_new(&s, &small_llama, HT_KV_F16, 64, 1);
    engine_open(&g, &s, "threads=1", HT_ACT_F32, 1, 1, false);
    const ht_batch good = one_row(&s, &tok, &pos, &seq, &want);
    ht_batch b = good;
    b.rows = 2;
    T_ERR(ht_backend_cpu.run(g.plan, &b, &e), HT_EARG, e, "exceeds the plan");
    b = good, wrong = 71, b.token = &wrong;
    T_ERR(ht_backend_cpu.run(g.plan, &b, &e), HT_EARG, e, "not in the vocabulary");
    b = good, wrong = -1, b.token = &wrong;
    T_ERR(ht_backend_cpu.run(g.plan, &b, &e), HT_EARG, e, "not in the vocabulary");
    b = good, wrong = 64, b.pos = &wrong;
    T_ERR(ht_backend_cpu.run(g.plan, &b, &e), HT_EARG, e, "outside the context");
    b = good, b.seq = &seq1;
    T_ERR(ht_backend_cpu.run(g.plan, &b, &e), HT_EARG, e, "sequence 1 of 1");
    b = good, b.page[0] = NULL;
    T_ERR(ht_backend_cpu.run(g.plan, &b, &e), HT_EARG, e, "no page");
    b = good, b.parent = &pos;
    T_ERR(ht_backend_cpu.run(g.plan, &b, &e), HT_EUNSUPPORTED, e, "draft trees");
    b = good, b.token = NULL;
    T_ERR(ht_backend_cpu.run(g.plan, &b, &e), HT_EARG, e, "without tokens");
    s.table[0][1] = HT_NOPAGE, wrong = 40, b = good, b.pos = &wrong;
    T_ERR(ht_backend_cpu.run(g.plan, &b, &e), HT_EARG, e, "no page");
    engine_step(&g, &s, &good, NULL);
    engine_close(&g);
    small_free(&s);
}

T_CASE(cpu_engine, options)
{
    ht_dev *dev;
    ht_err e = {0};
    char json[600];
    T_ERR(ht_backend_cpu.open(&dev, "threads=0", &e), HT_EARG, e, "threads=0");
    T_ERR(ht_backend_cpu.open(&dev, "threads=9999", &e), HT_EARG, e, "from 1 to 256");
    T_ERR(ht_backend_cpu.open(&dev, "threads=2x", &e), HT_EARG, e, "threads=2x");
    T_ERR(ht_backend_cpu.open(&dev, "isa=sse9", &e), HT_EARG, e, "sse9");
    T_OK(ht_backend_cpu.open(&dev, "threads=3,isa=generic", &e), e);
    T_EQ_INT(ht_backend_cpu.describe(dev, json, sizeof json), 0);
    T_CHECK(strstr(json, "\"isa\":\"generic\"") && strstr(json, "\"threads\":3"), "%s", json);
    T_CHECK(!strstr(json, "types") && !strstr(json, "weights"), "facts without a model: %s", json);
    T_TRUE(ht_backend_cpu.describe(dev, json, 10) != 0);
    ht_backend_cpu.close(dev);
}

/* Every allocation of open, load and plan may fail: an error or, where it only served a guess
 * (threads from cgroup files), success; nothing stays behind. */
T_CASE(cpu_engine, allocation_failures)
{
    small s;
    const ht_backend *be = &ht_backend_cpu;
    small_new(&s, &small_llama, HT_KV_F16, 64, 1);
    size_t n = ht_tape(&s.model, NULL, 0);
    ht_stage *tape = ht_arena_array(s.arena, n, sizeof *tape);
    ht_cut *cut = ht_arena_array(s.arena, n, sizeof *cut);
    (void)ht_tape(&s.model, tape, n);
    ht_bucket b = {.rows = 4, .seqs = 1, .want = 1, .steps = 1, .ctx = 64};
    uint64_t live = ht_alloc_live(), total = 0, failures = 0;
    for (uint64_t i = 0; i <= total; i++) { /* 0: nothing fails, counts them */
        ht_dev *dev = NULL;
        ht_plan *plan = NULL;
        ht_err e = {0};
        size_t cuts = 0;
        uint64_t before = ht_alloc_count();
        ht_alloc_fail_at(i);
        int rc = be->open(&dev, "threads=2", &e);
        if (!rc) rc = be->load(dev, &s.model, &e);
        if (!rc) cuts = ht_cover(be, dev, &s.model, tape, n, &b, NULL, NULL, cut, &e);
        if (!rc && !cuts) rc = HT_ENOMEM;
        if (!rc) rc = be->plan(&plan, dev, &s.kv, tape, cut, cuts, &b, &e);
        ht_alloc_fail_at(0);
        if (i == 0) total = ht_alloc_count() - before;
        failures += rc == HT_ENOMEM;
        T_CHECK(rc == 0 || rc == HT_ENOMEM, "allocation %llu: %d %s", (unsigned long long)i, rc,
                e.msg);
        be->plan_free(plan);
        be->close(dev);
        T_EQ_INT(ht_alloc_live(), live);
    }
    T_CHECK(failures >= 5, "%llu of %llu allocations failed", (unsigned long long)failures,
            (unsigned long long)total);
    small_free(&s);
}
