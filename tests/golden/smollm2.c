/* smollm2.c - SmolLM2-135M-Instruct in Q4_1 (path in SMOLLM2_GGUF, not in the tree) through the
 * public interface, as its users run it: with 8-bit activations not further from the float64
 * evaluation of the stored weights than llama.cpp is, whose figures stand in the golden, and
 * perplexity by the stated method. The short tier takes the shorter prompts and two chunks of
 * text. */
#include "core/json.h"
#include "hetero.h"
#include "test.h"
#include <math.h>

enum { CHUNK = 512, FIRST = 256, CHUNKS = 20 };

typedef struct {
    const int32_t *ids;
    uint32_t n;
    const ht_json *want; /* NULL: only summed */
    double sum, worst, off;
    uint64_t scored;
} score;

/* Log-probability of the token behind position index. */
static int on_logits(void *user, uint32_t index, const float *l, uint32_t vocab)
{
    score *s = user;
    double top = (double)l[0], sum = 0;
    if (index + 1 >= s->n) return 0;
    for (uint32_t i = 1; i < vocab; i++) top = fmax(top, (double)l[i]);
    for (uint32_t i = 0; i < vocab; i++) sum += exp((double)l[i] - top);
    const double lp = (double)l[s->ids[index + 1]] - top - log(sum);
    s->sum += lp;
    s->scored++;
    if (!s->want) return 0;
    const double off = fabs(lp - s->want->at[index].d);
    s->worst = fmax(s->worst, off);
    s->off += off;
    return 0;
}

static const char *model_path(void)
{
    const char *path = getenv("SMOLLM2_GGUF");
    if (!path) T_SKIP("SMOLLM2_GGUF does not name SmolLM2-135M-Instruct.Q4_1.gguf");
    return path;
}

static ht_engine *open_model(const char *act)
{
    ht_engine *e = NULL;
    ht_err err = {0};
    const ht_engine_params p = {.model = model_path(), .ctx = 2048, .act = act};
    T_OK(ht_engine_open(&e, &p, &err), err);
    return e;
}

static const ht_json *golden(ht_arena *a)
{
    size_t n;
    ht_json *j;
    ht_err err = {0};
    char *text = t_slurp(t_shared("golden/smollm2-135m-q4_1-f32.json"), &n);
    T_OK(ht_json_parse(a, text, n, 0, "golden", &j, &err), err);
    free(text);
    return j;
}

static double number(const ht_json *j, const char *path)
{
    const ht_json *v = ht_json_path(j, path);
    T_CHECK(v, "no %s", path);
    return v->d;
}

static void evaluate(ht_engine *e, score *s)
{
    ht_session *session;
    ht_err err = {0};
    T_OK(ht_session_new(&session, e, &err), err);
    T_OK(ht_session_eval(session, s->ids, s->n, NULL, s->n, on_logits, s, &err), err);
    ht_session_free(session);
}

T_CASE_SECONDS(smollm2, act_q8_no_further_than_llama_cpp, 900)
{
    ht_arena *a;
    ht_err err = {0};
    T_OK(ht_arena_new(&a, 0, &err), err);
    ht_engine *e = open_model("q8");
    const ht_json *g = golden(a), *cases = ht_json_get(g, "cases");
    const ht_json *peer = ht_json_path(g, "tolerance");
    peer = ht_json_get(peer, "llama.cpp_against_this_file");
    double worst = 0, off = 0;
    uint64_t scored = 0;
    for (size_t i = 0; i < cases->n; i++) {
        const ht_json *c = &cases->at[i], *t = ht_json_get(c, "tokens");
        if (t->n < 2 || (t->n > 300 && !t_full())) continue;
        int32_t *ids = ht_arena_array(a, t->n, sizeof *ids);
        for (size_t k = 0; k < t->n; k++) ids[k] = (int32_t)t->at[k].i;
        score s = {.ids = ids, .n = (uint32_t)t->n, .want = ht_json_get(c, "logprobs_prompt")};
        evaluate(e, &s);
        worst = fmax(worst, s.worst);
        off += s.off;
        scored += s.scored;
    }
    const double mean = off / (double)scored;
    T_CHECK(worst <= number(peer, "logprobs_prompt_max_abs_diff") &&
                mean <= number(peer, "logprobs_prompt_mean_abs_diff"),
            "%llu tokens, worst %.4f, mean %.5f", (unsigned long long)scored, worst, mean);
    T_CHECK(off > 0, "%llu tokens without any difference: 8-bit activations did not run",
            (unsigned long long)scored);
    ht_engine_close(e);
    ht_arena_free(a);
}

T_CASE_SECONDS(smollm2, perplexity, 900)
{
    const uint32_t n_chunks = t_full() ? CHUNKS : 2;
    ht_arena *a;
    ht_err err = {0};
    size_t len, n;
    int32_t *ids;
    T_OK(ht_arena_new(&a, 0, &err), err);
    ht_engine *e = open_model("f32");
    char *text = t_slurp(t_shared("wikitext-2/wiki.test.raw"), &len);
    T_OK(ht_vocab_encode(ht_engine_vocab(e), text, len, 0, &ids, &n, &err), err);
    free(text);
    uint32_t want[CHUNK - 1 - FIRST];
    for (uint32_t i = 0; i < CHUNK - 1 - FIRST; i++) want[i] = FIRST + i;
    double sum = 0;
    uint64_t scored = 0;
    const ht_json *running = ht_json_get(golden(a), "running_after_each_chunk");
    for (uint32_t k = 0; k < n_chunks; k++) {
        ht_session *session;
        score s = {.ids = ids + (size_t)k * CHUNK, .n = CHUNK};
        T_OK(ht_session_new(&session, e, &err), err);
        T_OK(ht_session_eval(session, s.ids, CHUNK, want, CHUNK - 1 - FIRST, on_logits, &s, &err),
             err);
        ht_session_free(session);
        sum += s.sum;
        scored += s.scored;
        const double ppl = exp(-sum / (double)scored), exact = running->at[k].d;
        T_CHECK(fabs(ppl / exact - 1) <= 1e-3, "after chunk %u: %.4f, exact %.4f", k, ppl, exact);
    }
    T_EQ_INT(scored, n_chunks * (CHUNK - 1 - FIRST));
    ht_free(ids);
    ht_engine_close(e);
    ht_arena_free(a);
}
