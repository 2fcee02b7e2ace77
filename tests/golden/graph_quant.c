/* graph_quant.c - quantised models whose prompts run on `graph`, against the same models all on
 * `cpu`: the contracts q8 and q4 of tale-9m (packed here) and SmolLM2 in Q4_1. Weights are the
 * same numbers in both engines and the arithmetic is f32 in both, so the exact contract holds:
 * tokens are equal wherever the two likeliest are more than 1e-2 apart, and the divergence is that
 * of rounding. The receipt says what ran. */
#include "core/json.h"
#include "hetero.h"
#include "pair.h"
#include "test.h"

#include <stdlib.h>

enum { NEW = 16, SCORED = 4 }; /* positions scored: the prefill plan's own wanted rows */

typedef struct {
    int32_t id[NEW];
    float margin[NEW]; /* between the two likeliest */
    uint32_t n;
} run_of;
typedef struct {
    float *row[SCORED];
    uint32_t n, vocab;
} scores;
typedef struct {
    int exact, ties;
    double kl, worst; /* summed over positions; greatest difference of logits */
    uint32_t positions, same_top;
} tally;

static int take(void *user, const ht_token_event *ev)
{
    run_of *r = user;
    if (ev->id < 0 || r->n == NEW) return 0;
    r->id[r->n] = ev->id;
    r->margin[r->n++] = ev->n_top > 1 ? ev->top[0].logprob - ev->top[1].logprob : 1e9f;
    return 0;
}

static int keep(void *user, uint32_t index, const float *l, uint32_t vocab)
{
    scores *s = user;
    (void)index;
    T_CHECK(s->n < SCORED, "more rows than asked for");
    s->vocab = vocab;
    s->row[s->n] = malloc(vocab * sizeof *l);
    memcpy(s->row[s->n++], l, vocab * sizeof *l);
    return 0;
}

static ht_engine *open_engine(const char *model, const char *prefill, const char *graph)
{
    ht_err err = {0};
    ht_engine *e;
    const ht_engine_params p = {
        .model = model, .ctx = 512, .threads = 2, .prefill_engine = prefill, .graph = graph};
    const int rc = ht_engine_open(&e, &p, &err);
    if (rc == HT_EUNSUPPORTED && strstr(err.msg, "no OpenVINO")) T_SKIP("%s", err.msg);
    T_OK(rc, err);
    return e;
}

static void generate(ht_engine *e, const int32_t *ids, size_t n, run_of *r, char **receipt)
{
    ht_err err = {0};
    ht_session *s;
    ht_gen_result res = {0};
    ht_sampling greedy;
    ht_sampling_init(&greedy);
    greedy.temp = 0;
    r->n = 0;
    const ht_gen_params p = {.max_new = NEW,
                             .sampling = &greedy,
                             .ignore_eos = 1,
                             .n_top = 2,
                             .on_token = take,
                             .user = r};
    T_OK(ht_session_new(&s, e, &err), err);
    T_OK(ht_session_generate(s, ids, n, &p, &res, &err), err);
    T_OK(ht_session_receipt(s, receipt, &err), err);
    ht_gen_result_done(&res);
    ht_session_free(s);
}

static void score(ht_engine *e, const int32_t *ids, uint32_t n, scores *out)
{
    ht_err err = {0};
    ht_session *s;
    uint32_t want[SCORED];
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < SCORED; i++) want[i] = (i + 1) * n / SCORED - 1;
    T_OK(ht_session_new(&s, e, &err), err);
    T_OK(ht_session_eval(s, ids, n, want, SCORED, keep, out, &err), err);
    T_EQ_INT(out->n, SCORED);
    ht_session_free(s);
}

/* Kullback-Leibler divergence of softmax(b) from softmax(a), in nats. */
static double divergence(const float *a, const float *b, uint32_t n)
{
    double top[2] = {(double)a[0], (double)b[0]}, sum[2] = {0, 0}, kl = 0;
    for (uint32_t i = 1; i < n; i++) {
        top[0] = fmax(top[0], (double)a[i]);
        top[1] = fmax(top[1], (double)b[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        sum[0] += exp((double)a[i] - top[0]);
        sum[1] += exp((double)b[i] - top[1]);
    }
    for (uint32_t i = 0; i < n; i++) {
        const double p = (double)a[i] - top[0] - log(sum[0]),
                     q = (double)b[i] - top[1] - log(sum[1]);
        kl += exp(p) * (p - q);
    }
    return kl;
}

static void compare_scores(scores *a, scores *b, tally *t)
{
    for (uint32_t k = 0; k < SCORED; k++) {
        uint32_t top[2] = {0, 0};
        for (uint32_t i = 0; i < a->vocab; i++) {
            t->worst = fmax(t->worst, fabs((double)a->row[k][i] - (double)b->row[k][i]));
            if (a->row[k][i] > a->row[k][top[0]]) top[0] = i;
            if (b->row[k][i] > b->row[k][top[1]]) top[1] = i;
        }
        t->kl += divergence(a->row[k], b->row[k], a->vocab);
        t->same_top += top[0] == top[1];
        t->positions++;
        free(a->row[k]);
        free(b->row[k]);
    }
}

static void check_receipt(const char *text, const char *contract, const char *engine)
{
    ht_err err = {0};
    ht_arena *a;
    ht_json *r;
    T_OK(ht_arena_new(&a, 0, &err), err);
    T_OK(ht_json_parse(a, text, strlen(text), 0, "receipt", &r, &err), err);
    const ht_json *p = &ht_json_get(r, "phases")->at[0], *d = &ht_json_get(r, "phases")->at[1];
    if (contract) T_EQ_STR(ht_json_get(r, "contract")->s, contract);
    T_EQ_STR(ht_json_get(p, "executed")->s, engine);
    T_EQ_STR(ht_json_get(d, "executed")->s, "cpu");
    T_EQ_INT(ht_json_get(p, "hostCopyBytes")->i + ht_json_get(p, "deviceCopyBytes")->i, 0);
    const ht_json *f = ht_json_get(&ht_json_get(p, "segments")->at[0], "facts");
    T_EQ_STR(ht_json_get(f, "executionDevices")->s, "CPU");
    T_EQ_STR(ht_json_get(f, "inferencePrecision")->s, "f32");
    T_EQ_STR(ht_json_get(f, "dynamicQuantizationGroup")->s, "0");
    T_EQ_INT(ht_json_get(f, "productsBelowF32")->i, 0);
    ht_arena_free(a);
}

static void compare_record(ht_engine *cpu, ht_engine *mixed, const char *contract,
                           const int32_t *ids, size_t n, tally *t)
{
    run_of x, y;
    char *rx, *ry;
    scores a, b;
    generate(cpu, ids, n, &x, &rx);
    generate(mixed, ids, n, &y, &ry);
    check_receipt(ry, contract, "graph");
    uint32_t k = 0;
    while (k < NEW && x.id[k] == y.id[k]) k++;
    t->exact += k == NEW;
    t->ties += k < NEW;
    if (k < NEW)
        T_SOFT(x.margin[k] <= 1e-2f, "token %u is %d for %d where the margin is %g", k, y.id[k],
               x.id[k], (double)x.margin[k]);
    ht_free(rx);
    ht_free(ry);
    score(cpu, ids, (uint32_t)n, &a);
    score(mixed, ids, (uint32_t)n, &b);
    compare_scores(&a, &b, t);
}

/* `most` held-out records of tale-9m as chat prompts, on both engines. */
static tally compare(const char *model, const char *contract, const char *graph, size_t most)
{
    ht_err err = {0};
    ht_arena *a;
    ht_json *doc;
    size_t len, records = 0;
    tally t = {0};
    T_OK(ht_arena_new(&a, 0, &err), err);
    char *text = t_slurp(t_shared("models/tale-9m/heldout-60.json"), &len);
    T_OK(ht_json_parse(a, text, len, 0, "held-out records", &doc, &err), err);
    free(text);
    const ht_json *list = ht_json_get(doc, "records");
    ht_engine *cpu = open_engine(model, "cpu", NULL), *mixed = open_engine(model, "graph", graph);
    for (size_t i = 0; i < list->n && records < most; i++, records++) {
        char prompt[2000];
        int32_t *ids;
        size_t n;
        const int k = snprintf(prompt, sizeof prompt,
                               "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n",
                               ht_json_get(&list->at[i], "prompt")->s);
        T_OK(ht_vocab_encode(ht_engine_vocab(cpu), prompt, (size_t)k, HT_TOK_SPECIAL, &ids, &n,
                             &err),
             err);
        compare_record(cpu, mixed, contract, ids, n, &t);
        ht_free(ids);
    }
    printf("  %s: tokens exact %d/%zu, near ties %d; over %u positions KL %.2e, top-1 equal %u, "
           "logits off by %.2e\n",
           contract ? contract : "as stored", t.exact, records, t.ties, t.positions,
           t.kl / t.positions, t.same_top, t.worst);
    T_EQ_INT(t.exact + t.ties, records);
    ht_engine_close(cpu);
    ht_engine_close(mixed);
    ht_arena_free(a);
    return t;
}

/* Rounding alone: some 1e-7 of a nat would already be much. */
static void exact_contract(const char *precision, const char *graph)
{
    const tally t = compare(pair_packed(precision), precision, graph, t_full() ? 60 : 12);
    T_CHECK(t.kl / t.positions <= 1e-6, "KL %g", t.kl / t.positions);
    T_CHECK(t.worst <= 5e-3, "logits off by %g", t.worst);
    T_EQ_INT(t.same_top, t.positions);
}
T_CASE_SECONDS(graph_quant, q8, 300)
{
    exact_contract("q8", "strict=1");
}
T_CASE_SECONDS(graph_quant, q4, 300)
{
    exact_contract("q4", "strict=1");
}
T_CASE_SECONDS(graph_quant, q8_widened, 300)
{
    exact_contract("q8", "strict=1,ints=widen");
}

/* ---- SmolLM2-135M, Q4_1: a type that the graph gets widened ---------------------------------- */

/* The golden's shorter prompts: tokens and logits of cpu, log-probabilities of the golden. */
T_CASE_SECONDS(graph_smollm2, tokens_and_divergence, 600)
{
    ht_err err = {0};
    ht_arena *a;
    ht_json *g;
    size_t len;
    tally t = {0};
    int golden = 0, prompts = 0;
    const char *path = getenv("SMOLLM2_GGUF");
    if (!path) T_SKIP("SMOLLM2_GGUF does not name SmolLM2-135M-Instruct.Q4_1.gguf");
    T_OK(ht_arena_new(&a, 0, &err), err);
    char *text = t_slurp(t_shared("golden/smollm2-135m-q4_1-f32.json"), &len);
    T_OK(ht_json_parse(a, text, len, 0, "golden", &g, &err), err);
    free(text);
    ht_engine *cpu = open_engine(path, "cpu", NULL),
              *mixed = open_engine(path, "graph", "strict=1");
    const ht_json *cases = ht_json_get(g, "cases");
    for (size_t i = 0; i < cases->n; i++) {
        const ht_json *tokens = ht_json_get(&cases->at[i], "tokens");
        const ht_json *want = ht_json_get(&cases->at[i], "logprobs_prompt");
        if (tokens->n < SCORED || tokens->n > 128) continue;
        int32_t *ids = ht_arena_array(a, tokens->n, sizeof *ids);
        for (size_t k = 0; k < tokens->n; k++) ids[k] = (int32_t)tokens->at[k].i;
        compare_record(cpu, mixed, NULL, ids, tokens->n, &t);
        scores s;
        score(mixed, ids, (uint32_t)tokens->n, &s);
        for (uint32_t k = 0; k < SCORED; k++) {
            const size_t at = (k + 1) * tokens->n / SCORED - 1;
            double top = (double)s.row[k][0], sum = 0;
            for (uint32_t v = 1; v < s.vocab; v++) top = fmax(top, (double)s.row[k][v]);
            for (uint32_t v = 0; v < s.vocab; v++) sum += exp((double)s.row[k][v] - top);
            if (at + 1 < tokens->n) {
                const double lp = (double)s.row[k][ids[at + 1]] - top - log(sum);
                T_SOFT(fabs(lp - want->at[at].d) <= 5e-3, "case %zu token %zu: %.5f for %.5f", i,
                       at, lp, want->at[at].d);
                golden++;
            }
            free(s.row[k]);
        }
        prompts++;
    }
    printf("  SmolLM2 Q4_1: %d prompts, tokens exact %d, near ties %d; KL %.2e over %u positions, "
           "logits off by %.2e; %d positions against the golden\n",
           prompts, t.exact, t.ties, t.kl / t.positions, t.positions, t.worst, golden);
    T_CHECK(prompts >= 2 && golden >= 4, "%d prompts, %d positions", prompts, golden);
    T_CHECK(t.kl / t.positions <= 1e-5, "KL %g", t.kl / t.positions);
    ht_engine_close(cpu);
    ht_engine_close(mixed);
    ht_arena_free(a);
}
