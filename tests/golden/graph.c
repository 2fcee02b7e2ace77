/* graph.c - every dense architecture through `graph` prefill and `cpu` decode against the float64
 * goldens of arch.c, in its own tolerance; every architecture with experts is refused. */
#include "pair.h"

static const double TOLERANCE = 2e-4; /* arch.c says why */

static ht_json *read_json(ht_arena *a, const char *path)
{
    ht_err e = {0};
    ht_json *j;
    size_t n;
    char *text = t_slurp(path, &n);
    T_OK(ht_json_parse(a, text, n, 0, path, &j, &e), e);
    free(text);
    return j;
}

static void check_prompt(pair *d, ht_arena *a, const ht_json *p, const char *what)
{
    ht_err e = {0};
    ht_seq *seq;
    uint32_t n, n_greedy, want[PAIR_WANT], n_want = 0, vocab = d->model->spec.vocab;
    int32_t *ids = drive_ids(a, ht_json_get(p, "prompt_ids"), &n);
    int32_t *greedy = drive_ids(a, ht_json_get(p, "greedy"), &n_greedy);
    const ht_json *gold = ht_json_get(p, "logits_f64");
    T_CHECK(gold->n <= PAIR_WANT, "%s: %zu positions", what, gold->n);
    for (size_t i = 0; i < gold->n; i++) want[n_want++] = (uint32_t)atoi(gold->at[i].key);
    float *l = ht_arena_array(a, (size_t)n_want * vocab, sizeof *l);
    const uint32_t orig = d->model->spec.rope_orig_ctx;
    const bool lengthy = orig && n + n_greedy > orig;
    T_OK(ht_seq_new(&seq, d->pool, d->p.ctx, &e), e);
    pair_prefill(d, pair_bucket(n), seq, ids, n, want, n_want, lengthy, l);
    for (uint32_t i = 0; i < n_want; i++) {
        double w = 0;
        for (uint32_t k = 0; k < vocab; k++) {
            const double diff = fabs((double)l[(size_t)i * vocab + k] - gold->at[i].at[k].d);
            if (!(diff <= w)) w = diff;
        }
        T_SOFT(w <= TOLERANCE, "%s pos %u: off by %.2e", what, want[i], w);
    }
    float *last = l + (size_t)(n_want - 1) * vocab;
    for (uint32_t i = 0; i < n_greedy; i++) {
        const int32_t got = (int32_t)drive_argmax(last, vocab);
        T_SOFT(got == greedy[i], "%s greedy %u: %d for %d", what, i, got, greedy[i]);
        if (i + 1 < n_greedy) pair_step(d, seq, greedy[i], lengthy, last);
    }
    ht_seq_free(seq);
}

static void check_arch(const char *name, const char *golden, bool covered)
{
    ht_err e = {0};
    ht_arena *a;
    pair d;
    pair_params p = {.ctx = 128};
    char model[512], what[120];
    (void)snprintf(model, sizeof model, "%s", drive_golden(name, "model.gguf"));
    T_OK(ht_arena_new(&a, 0, &e), e);
    const ht_json *prompts = ht_json_get(read_json(a, drive_golden(name, golden)), "prompts");
    const bool opened = pair_open(&d, model, &p);
    T_EQ_INT(opened, covered);
    for (size_t i = 0; opened && i < prompts->n; i++) {
        (void)snprintf(what, sizeof what, "%s %zu", name, i);
        check_prompt(&d, a, &prompts->at[i], what);
    }
    if (opened) pair_close(&d);
    ht_arena_free(a);
}

#define GRAPH(name, golden, covered)                                                               \
    T_CASE(graph_arch, name)                                                                       \
    {                                                                                              \
        check_arch(#name, golden, covered);                                                        \
    }
GRAPH(llama, "golden.json", true)
GRAPH(llama3_rope, "golden.json", true)
GRAPH(mistral_swa, "golden_gguf.json", true)
GRAPH(qwen2, "golden.json", true)
GRAPH(qwen3, "golden.json", true)
GRAPH(gemma3, "golden.json", true)
GRAPH(gemma2, "golden.json", true)
GRAPH(phi3, "golden.json", true)
GRAPH(smollm3, "golden.json", true)
GRAPH(mixtral, "golden.json", false)
GRAPH(qwen3_moe, "golden.json", false)
GRAPH(qwen2_moe, "golden.json", false)
#undef GRAPH

/* ---- a trained model: pages, edges, bits -------------------------------------------------- */

static const char *const tale = "models/tale-9m-f16.gguf";

/* Ids of a long record of the goldens, repeated to n. */
static void tale_ids(int32_t *ids, uint32_t n)
{
    ht_err e = {0};
    ht_arena *a;
    uint32_t have, k = 0;
    T_OK(ht_arena_new(&a, 0, &e), e);
    const ht_json *cases =
        ht_json_get(read_json(a, t_shared("models/tale-9m/golden.json")), "cases");
    for (size_t i = 0; i < cases->n || k < n; i++) {
        const int32_t *t = drive_ids(a, ht_json_get(&cases->at[i % cases->n], "tokens"), &have);
        for (uint32_t j = 0; j < have && k < n; j++) ids[k++] = t[j];
    }
    ht_arena_free(a);
}

/* One prompt through one bucket: logits of its last row, and K and V of its positions, gathered
 * page by page as [layer][kv][position][head][dim] bytes. */
typedef struct {
    float *logits;
    uint8_t *kv;
    size_t kv_bytes;
} outcome;

static void gather(pair *d, const ht_seq *seq, uint32_t n, outcome *o)
{
    const ht_kv *kv = ht_pool_kv(d->pool);
    const uint32_t *page = ht_seq_pages(seq, HT_KV_FULL);
    const size_t el = d->p.type_k == HT_KV_F16 ? 2 : 4, row = kv->head_dim * el;
    o->kv_bytes = (size_t)kv->n_layers * 2 * n * kv->n_kv_heads * row;
    o->kv = malloc(o->kv_bytes);
    uint8_t *at = o->kv;
    for (uint32_t l = 0; l < kv->n_layers; l++)
        for (int v = 0; v < 2; v++)
            for (uint32_t p = 0; p < n; p++)
                for (uint32_t h = 0; h < kv->n_kv_heads; h++, at += row)
                    memcpy(at,
                           kv->plane[l][v] + page[p / HT_PAGE] * kv->page_bytes[l][v] +
                               ((size_t)h * HT_PAGE + p % HT_PAGE) * row,
                           row);
}

static outcome through(pair *d, int bucket, const int32_t *ids, uint32_t n)
{
    ht_err e = {0};
    ht_seq *seq;
    outcome o;
    const uint32_t want = n - 1;
    o.logits = malloc(d->model->spec.vocab * sizeof *o.logits);
    T_OK(ht_seq_new(&seq, d->pool, d->p.ctx, &e), e);
    pair_prefill(d, bucket, seq, ids, n, &want, 1, false, o.logits);
    T_EQ_INT(ht_seq_len(seq), n);
    gather(d, seq, n, &o);
    ht_seq_free(seq);
    return o;
}

static void outcome_done(outcome *o)
{
    free(o->logits);
    free(o->kv);
}

static void same_bits(const pair *d, const outcome *a, const outcome *b, const char *what)
{
    T_EQ_INT(a->kv_bytes, b->kv_bytes);
    T_SOFT(!memcmp(a->kv, b->kv, a->kv_bytes), "%s: K and V differ", what);
    T_SOFT(!memcmp(a->logits, b->logits, d->model->spec.vocab * sizeof(float)), "%s: logits differ",
           what);
}

/* Fill the planes with what an earlier prompt may have left: nothing of it may be read. */
static void poison(pair *d)
{
    const ht_kv *kv = ht_pool_kv(d->pool);
    for (uint32_t l = 0; l < kv->n_layers; l++)
        for (int v = 0; v < 2; v++)
            memset(kv->plane[l][v], 0x7b, kv->n_pages[HT_KV_FULL] * kv->page_bytes[l][v]);
}

/* The same prompt, padded to every bucket that holds it: equal bits (graph-engine.md 5). */
static void check_buckets(int kv_type)
{
    static const uint32_t lengths[] = {1, 31, 32, 33, 127, 128, 129, 511, 512, 513};
    pair d;
    pair_params p = {.ctx = 2048, .type_k = kv_type, .type_v = kv_type};
    int32_t ids[2048];
    char what[80];
    T_CHECK(pair_open(&d, tale, &p), "tale-9m is dense");
    tale_ids(ids, 2048);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const uint32_t n = lengths[i];
        poison(&d);
        outcome first = through(&d, pair_bucket(n), ids, n);
        for (int b = pair_bucket(n) + 1; b < (t_full() ? PAIR_BUCKETS : 3); b++) {
            outcome other = through(&d, b, ids, n);
            (void)snprintf(what, sizeof what, "%u tokens in %u rows and in %u", n,
                           pair_rows[pair_bucket(n)], pair_rows[b]);
            same_bits(&d, &first, &other, what);
            outcome_done(&other);
        }
        outcome_done(&first);
    }
    pair_close(&d);
}
T_CASE_SECONDS(graph_bits, buckets_f16, 240)
{
    check_buckets(HT_KV_F16);
}
T_CASE_SECONDS(graph_bits, buckets_f32, 240)
{
    check_buckets(HT_KV_F32);
}

/* One and two threads, and a second device: equal bits. */
T_CASE_SECONDS(graph_bits, threads_and_devices, 120)
{
    static const char *const opts[] = {"threads=2", "threads=1", "threads=2"};
    outcome o[3];
    int32_t ids[120];
    pair d;
    tale_ids(ids, 120);
    for (int i = 0; i < 3; i++) {
        pair_params p = {.opts = opts[i], .ctx = 256, .type_k = HT_KV_F16, .type_v = HT_KV_F16};
        T_CHECK(pair_open(&d, tale, &p), "tale-9m is dense");
        o[i] = through(&d, 1, ids, 120);
        if (i) same_bits(&d, &o[0], &o[i], opts[i]);
        pair_close(&d);
    }
    for (int i = 0; i < 3; i++) outcome_done(&o[i]);
}

/* The same of integer weights: one thread and two, 128 rows and 512. In 32 rows the library takes
 * other kernels for them, with bits of their own. */
static void check_quantised(const char *precision)
{
    static const uint32_t lengths[] = {1, 32, 33, 128, 129};
    enum { LENGTHS = sizeof lengths / sizeof *lengths };
    const char *path = pair_packed(precision);
    outcome first[LENGTHS][2]; /* of 32 rows and of more */
    int32_t ids[129];
    char what[80];
    memset(first, 0, sizeof first);
    tale_ids(ids, 129);
    for (int threads = 1; threads <= 2; threads++) {
        pair d;
        pair_params p = {.opts = threads == 1 ? "threads=1" : "threads=2", .ctx = 512};
        p.type_k = p.type_v = HT_KV_F16;
        T_CHECK(pair_open(&d, path, &p), "tale-9m is dense");
        for (size_t i = 0; i < LENGTHS; i++)
            for (int b = pair_bucket(lengths[i]); b < 3; b++) {
                outcome *want = &first[i][b > 0];
                poison(&d);
                outcome o = through(&d, b, ids, lengths[i]);
                if (!want->kv) {
                    *want = o;
                    continue;
                }
                (void)snprintf(what, sizeof what, "%s, %u tokens in %u rows, %d threads", precision,
                               lengths[i], pair_rows[b], threads);
                same_bits(&d, want, &o, what);
                outcome_done(&o);
            }
        pair_close(&d);
    }
    for (size_t i = 0; i < LENGTHS; i++) {
        outcome_done(&first[i][0]);
        outcome_done(&first[i][1]);
    }
}
T_CASE_SECONDS(graph_bits, quantised_q8, 240)
{
    check_quantised("q8");
}
T_CASE_SECONDS(graph_bits, quantised_q4, 240)
{
    check_quantised("q4");
}

/* Against cpu's own prefill: logits and F16 pages differ by rounding only, never by the rounding of
 * the cache: the graph attends to what it has written. */
T_CASE_SECONDS(graph_kv, pages_of_cpu, 120)
{
    enum { N = 100 };
    pair d;
    pair_params p = {.ctx = 256, .type_k = HT_KV_F16, .type_v = HT_KV_F16};
    int32_t ids[N];
    ht_err e = {0};
    ht_seq *seq;
    T_CHECK(pair_open(&d, tale, &p), "tale-9m is dense");
    tale_ids(ids, N);
    outcome g = through(&d, 1, ids, N), c;
    c.logits = malloc(d.model->spec.vocab * sizeof *c.logits);
    T_OK(ht_seq_new(&seq, d.pool, d.p.ctx, &e), e);
    for (uint32_t i = 0; i < N; i++) pair_step(&d, seq, ids[i], false, c.logits);
    gather(&d, seq, N, &c);
    double worst = 0, far = 0;
    for (uint32_t i = 0; i < d.model->spec.vocab; i++)
        worst = fmax(worst, fabs((double)g.logits[i] - (double)c.logits[i]));
    /* In the first layer only sums are ordered otherwise: a few values round the other way, by one
     * unit in the last place (2^-10 of a value at the lower end of a binade). Later layers see
     * those. */
    const size_t all = g.kv_bytes / 2, first = all / d.model->spec.n_layers;
    size_t apart = 0, apart_first = 0;
    for (size_t i = 0; i < all; i++) {
        const double x = (double)ht_f16_to_f32(((const uint16_t *)(const void *)g.kv)[i]);
        const double y = (double)ht_f16_to_f32(((const uint16_t *)(const void *)c.kv)[i]);
        apart += x != y;
        if (i >= first) continue;
        apart_first += x != y;
        far = fmax(far, fabs(x - y) / fmax(fabs(y), 0.0625));
    }
    printf("  logits off by %.2e; of %zu cached values %zu rounded the other way, of the first "
           "layer's %zu\n",
           worst, all, apart, apart_first);
    T_CHECK(worst <= 1e-3, "logits off by %g", worst);
    T_CHECK(far <= 1.01 / 1024, "a cached value is off by %g of itself", far);
    T_CHECK(apart_first * 100 <= first, "%zu of %zu values of layer 0 differ", apart_first, first);
    ht_seq_free(seq);
    outcome_done(&g);
    outcome_done(&c);
    pair_close(&d);
}
