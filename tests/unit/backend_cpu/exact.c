/* exact.c - the exactness contract: a row's logits are the same bits alone or in any chunk or
 * batch, on any number of threads, at any instruction set, from the plain and from the fused
 * cover. */
#include "core/cpu.h"
#include "small.h"

enum { N = 530, MOST = 600 }; /* more than two attention splits                              */

static void tokens(int32_t *t, uint32_t n, uint32_t vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++) t[i] = (int32_t)(t_rand(&seed) % vocab);
}
static void same_bits(const char *what, const float *a, const float *b, uint32_t rows,
                      uint32_t vocab)
{
    for (uint32_t i = 0; i < rows; i++)
        T_CHECK(!memcmp(a + (size_t)i * vocab, b + (size_t)i * vocab, vocab * sizeof *a),
                "%s: row %u differs: %.9g, %.9g", what, i, (double)a[(size_t)i * vocab],
                (double)b[(size_t)i * vocab]);
}
static float *logits_of(small *s, const char *opts, int act, uint32_t n, uint32_t chunk, bool plain)
{
    engine g;
    int32_t t[MOST];
    float *out = malloc((size_t)n * s->model.spec.vocab * sizeof *out);
    tokens(t, n, s->model.spec.vocab, 9);
    engine_open(&g, s, opts, act, chunk, chunk, plain);
    engine_eval(&g, s, 0, t, n, chunk, out);
    engine_close(&g);
    for (uint32_t i = 0; i < n * s->model.spec.vocab; i++) T_TRUE(isfinite(out[i]));
    return out;
}

/* Chunks of 1, 7, 64, 512 and the whole, on 1, 2 and 4 threads. */
static void check_chunks(const small_shape *h, int act, int kv_type, uint32_t n)
{
    static const uint32_t chunk[] = {1, 7, 64, 512, MOST};
    small s;
    small_new(&s, h, kv_type, MOST, 1);
    uint32_t vocab = s.model.spec.vocab;
    float *want = logits_of(&s, "threads=1", act, n, n, false);
    for (size_t i = 0; i < sizeof chunk / sizeof *chunk; i++) {
        char opts[32], what[64];
        uint32_t c = chunk[i] < n ? chunk[i] : n;
        (void)snprintf(opts, sizeof opts, "threads=%d", i % 3 == 0 ? 2 : i % 3 == 1 ? 1 : 4);
        (void)snprintf(what, sizeof what, "chunk %u, %s", c, opts);
        float *got = logits_of(&s, opts, act, n, c, false);
        same_bits(what, got, want, n, vocab);
        free(got);
    }
    free(want);
    small_free(&s);
}

T_CASE(cpu_exact, f16_weights_f16_kv)
{
    check_chunks(&small_llama, HT_ACT_F32, HT_KV_F16, N);
}
T_CASE(cpu_exact, q8_0_weights_f32_kv)
{
    small_shape h = small_llama;
    h.type = h.type2 = HT_Q8_0;
    check_chunks(&h, HT_ACT_F32, HT_KV_F32, N);
}
T_CASE(cpu_exact, k_quants_f16_kv)
{
    small_shape h = small_llama;
    h.dim = 256, h.ffn = 512, h.heads = 8, h.kv_heads = 2, h.type = HT_Q4_K, h.type2 = HT_Q6_K,
    h.layers = 2;
    check_chunks(&h, HT_ACT_F32, HT_KV_F16, 150);
}
/* Splits of the one head are spread over threads, and folded by whoever ends last. */
T_CASE(cpu_exact, one_kv_head)
{
    small_shape h = small_llama;
    h.kv_heads = 1, h.layers = 2;
    check_chunks(&h, HT_ACT_F32, HT_KV_F16, N);
    h.window = 300;
    check_chunks(&h, HT_ACT_F32, HT_KV_F32, N);
}
/* Packed pages: which form of a page a row reads is a matter of positions alone, so chunks of any
 * size, which pack at different times, agree. */
T_CASE(cpu_exact, packed_kv)
{
    static const int types[] = {HT_KV_Q8_0, HT_KV_Q4_0R, HT_KV_TQ4, HT_KV_TQ3, HT_KV_QJL3};
    small_shape h = small_llama;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        h.window = i % 2 ? 70 : 0;
        h.head_dim = i % 2 ? 32 : small_llama.head_dim;
        check_chunks(&h, HT_ACT_F32, types[i], 170);
    }
}
static const int quantised[] = {HT_Q8_0, HT_Q4_0, HT_Q4_1, HT_Q5_0};
T_CASE(cpu_exact, act_q8)
{
    for (size_t i = 0; i < sizeof quantised / sizeof *quantised; i++) {
        small_shape h = small_llama;
        h.type = quantised[i];
        h.type2 = quantised[(i + 1) % 4];
        check_chunks(&h, HT_ACT_Q8, i % 2 ? HT_KV_F32 : HT_KV_F16, i ? 140 : N);
    }
}
T_CASE(cpu_exact, act_q8_k_quants)
{
    small_shape h = small_llama;
    h.dim = 256, h.ffn = 512, h.heads = 8, h.kv_heads = 2, h.type = HT_Q4_K, h.type2 = HT_Q6_K,
    h.layers = 2;
    check_chunks(&h, HT_ACT_Q8, HT_KV_F16, 90);
}
/* Windows, caps, post-norms, gelu, bias, per-head norms, a layer without rotation. */
T_CASE(cpu_exact, everything_at_once)
{
    small_shape h = small_llama;
    h.window = 70, h.caps = h.post_norm = h.gelu = h.bias = h.qk_norm = h.nope = true;
    check_chunks(&h, HT_ACT_F32, HT_KV_F16, N);
}
/* Heads of 24: no whole tiles, so only plain spans take them. */
T_CASE(cpu_exact, odd_heads)
{
    small_shape h = small_llama;
    h.head_dim = 24, h.partial_rope = true, h.dim = 72, h.ffn = 100, h.type2 = HT_BF16;
    check_chunks(&h, HT_ACT_F32, HT_KV_F16, 100);
}
T_CASE(cpu_exact, experts)
{
    small_shape h = small_llama;
    h.experts = 6, h.topk = 2, h.expert_ffn = 64, h.renorm = true, h.type = HT_Q8_0;
    check_chunks(&h, HT_ACT_F32, HT_KV_F16, 200);
    h.shared_ffn = 96, h.renorm = false, h.topk = 1;
    check_chunks(&h, HT_ACT_Q8, HT_KV_F32, 100);
}

/* Eight sequences of different lengths, decoded together and alone. */
static void check_batch(int act, int type, int kv_type)
{
    enum { SEQS = 8, STEPS = 4 };
    static const uint32_t length[SEQS] = {3, 300, 1, 40, 257, 64, 31, 9};
    small_shape h = small_llama;
    small s;
    engine one, many;
    h.type = h.type2 = type;
    small_new(&s, &h, kv_type, 320, SEQS);
    uint32_t vocab = s.model.spec.vocab;
    engine_open(&one, &s, "threads=1", act, 320, 320, false);
    engine_open(&many, &s, "threads=2", act, 3 * SEQS, 3 * SEQS, false);
    float *alone = malloc((size_t)SEQS * 320 * vocab * sizeof *alone);
    float *out = malloc((size_t)3 * SEQS * vocab * sizeof *out);
    int32_t tok[SEQS][320];
    for (uint32_t q = 0; q < SEQS; q++) {
        tokens(tok[q], length[q] + STEPS, vocab, q + 1);
        engine_eval(&one, &s, q, tok[q], length[q] + STEPS, 320, alone + (size_t)q * 320 * vocab);
    }
    for (uint32_t step = 0; step < STEPS;
         step++) { /* over the same pages: written again, same bits */
        int32_t token[3 * SEQS], pos[3 * SEQS];
        uint32_t want[3 * SEQS], n = 0;
        uint16_t owner[3 * SEQS];
        for (uint32_t q = 0; q < SEQS; q++)
            for (uint32_t j = 0; j < 1 + q % 3 && length[q] + step + j < length[q] + STEPS;
                 j++, n++) {
                token[n] = tok[q][length[q] + step + j];
                pos[n] = (int32_t)(length[q] + step + j);
                owner[n] = (uint16_t)q;
                want[n] = n;
            }
        for (uint32_t i = 0; i < n / 2; i++) { /* wanted in reverse */
            uint32_t w = want[i];
            want[i] = want[n - 1 - i];
            want[n - 1 - i] = w;
        }
        ht_batch b = {.rows = n,
                      .seqs = SEQS,
                      .n_want = n,
                      .token = token,
                      .pos = pos,
                      .seq = owner,
                      .page = {s.table[0], s.table[1]},
                      .want = want};
        engine_step(&many, &s, &b, out);
        for (uint32_t i = 0; i < n; i++)
            same_bits("batch", out + (size_t)i * vocab,
                      alone + ((size_t)owner[want[i]] * 320 + (size_t)pos[want[i]]) * vocab, 1,
                      vocab);
    }
    engine_close(&one);
    engine_close(&many);
    free(alone);
    free(out);
    small_free(&s);
}
T_CASE(cpu_exact, batch_of_eight)
{
    check_batch(HT_ACT_F32, HT_F16, HT_KV_F16);
    check_batch(HT_ACT_F32, HT_Q4_0, HT_KV_F32);
    check_batch(HT_ACT_Q8, HT_Q8_0, HT_KV_F16);
}

T_CASE(cpu_exact, plain_equals_fused)
{
    small_shape h = small_llama;
    h.qk_norm = h.bias = true;
    for (int act = HT_ACT_F32; act <= HT_ACT_Q8; act++) {
        small s;
        h.type = act ? HT_Q4_1 : HT_F32;
        small_new(&s, &h, HT_KV_F16, 200, 1);
        float *a = logits_of(&s, "threads=2", act, 150, 50, false);
        float *b = logits_of(&s, "threads=1", act, 150, 150, true);
        same_bits("plain", a, b, 150, s.model.spec.vocab);
        free(a), free(b);
        small_free(&s);
    }
}

/* Each span over several stages by itself, among plain ones, against plain ones alone. */
static double only(void *user, const ht_cut *c)
{
    if (!strcmp(c->span->name, (const char *)user)) return 0.1;
    return c->n == 1 && strstr(c->span->name, ".plain.") ? 1.0 : 1e9;
}
T_CASE(cpu_exact, every_fused_span)
{
    enum { ROWS = 33 };
    int32_t t[ROWS];
    uint32_t fused = 0;
    small_shape h = small_llama;
    small s;
    h.qk_norm = h.bias = true;
    small_new(&s, &h, HT_KV_F16, 64, 1);
    float *want = logits_of(&s, "threads=1", HT_ACT_F32, ROWS, ROWS, true);
    float *got = malloc((size_t)ROWS * s.model.spec.vocab * sizeof *got);
    tokens(t, ROWS, s.model.spec.vocab, 9);
    for (const ht_span *const *sp = ht_backend_cpu.spans; *sp; sp++) {
        engine g;
        uint32_t uses = 0;
        if (strstr((*sp)->name, ".plain.")) continue;
        engine_open_cost(&g, &s, "threads=2", HT_ACT_F32, ROWS, ROWS, only,
                         (void *)(uintptr_t)(*sp)->name);
        for (size_t i = 0; i < g.n_cuts; i++) uses += g.cut[i].span == *sp;
        T_CHECK(uses >= 1, "%s is in no cover", (*sp)->name);
        engine_eval(&g, &s, 0, t, ROWS, ROWS, got);
        same_bits((*sp)->name, got, want, ROWS, s.model.spec.vocab);
        engine_close(&g);
        fused++;
    }
    T_TRUE(fused >= 4);
    free(got), free(want);
    small_free(&s);
}

T_CASE(cpu_exact, every_isa_gives_the_same_bits)
{
    static const char *const isa[] = {"avx2", "avx512"};
    static const unsigned need[] = {HT_CPU_AVX2, HT_CPU_AVX512};
    uint32_t ran = 0;
    for (int i = 0; i < 2; i++) {
        if (!(ht_cpu_features() & need[i])) continue;
        for (int act = HT_ACT_F32; act <= HT_ACT_Q8; act++) {
            small_shape h = small_llama;
            char opts[32];
            small s;
            h.type = HT_Q8_0, h.type2 = act ? HT_Q4_0 : HT_F16;
            small_new(&s, &h, HT_KV_F16, 64, 1);
            (void)snprintf(opts, sizeof opts, "isa=%s,threads=1", isa[i]);
            float *a = logits_of(&s, "isa=generic,threads=2", act, 40, 40, false);
            float *b = logits_of(&s, opts, act, 40, 13, false);
            same_bits(isa[i], a, b, 40, s.model.spec.vocab);
            free(a), free(b);
            small_free(&s);
            ran++;
        }
    }
    if (!ran) T_SKIP("this machine has neither AVX2 nor AVX-512");
}
