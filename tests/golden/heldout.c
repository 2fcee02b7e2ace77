/* heldout.c - perplexity of tale-9m on 60 held-out records against the exact value (float64
 * arithmetic on the F16 weights, models/tale-9m/heldout-60.json): 0.05 % is allowed with the
 * default F16 cache. */
#include "core/json.h"
#include "hetero.h"
#include "test.h"

typedef struct {
    const int32_t *ids; /* of the record */
    double nll;
    uint64_t n;
} score;

/* -log softmax of the token that follows position index. */
static int add_nll(void *user, uint32_t index, const float *logits, uint32_t n_vocab)
{
    score *s = user;
    double max = logits[0], sum = 0;
    for (uint32_t i = 1; i < n_vocab; i++) max = fmax(max, (double)logits[i]);
    for (uint32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - max);
    s->nll += max + log(sum) - (double)logits[s->ids[index + 1]];
    s->n++;
    return 0;
}

/* ChatML text of one record, first 400 tokens, only response tokens scored. */
static void score_record(ht_engine *e, const ht_json *rec, score *s)
{
    enum { MAX = 400 };
    const char *prompt = ht_json_get(rec, "prompt")->s, *answer = ht_json_get(rec, "response")->s;
    size_t room = strlen(prompt) + strlen(answer) + 128, n_head, n;
    char *text = malloc(room);
    ht_err err = {0};
    int32_t *head, *ids;
    uint32_t want[MAX], n_want = 0;
    ht_session *session;
    int len =
        snprintf(text, room, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", prompt);
    T_OK(ht_vocab_encode(ht_engine_vocab(e), text, (size_t)len, HT_TOK_SPECIAL, &head, &n_head,
                         &err),
         err);
    len += snprintf(text + len, room - (size_t)len, "%s<|im_end|>\n", answer);
    T_OK(ht_vocab_encode(ht_engine_vocab(e), text, (size_t)len, HT_TOK_SPECIAL, &ids, &n, &err),
         err);
    if (n > MAX) n = MAX;
    for (uint32_t i = (uint32_t)n_head - 1; i + 1 < n; i++) want[n_want++] = i;
    s->ids = ids;
    T_OK(ht_session_new(&session, e, &err), err);
    T_OK(ht_session_eval(session, ids, n - 1, want, n_want, add_nll, s, &err), err);
    ht_session_free(session);
    ht_free(head);
    ht_free(ids);
    free(text);
}

T_CASE_SECONDS(heldout, tale_9m_perplexity, 300)
{
    size_t n;
    char *text = t_slurp(t_shared("models/tale-9m/heldout-60.json"), &n);
    ht_err err = {0};
    ht_arena *a;
    ht_json *doc;
    ht_engine *e;
    ht_engine_params p = {.model = "models/tale-9m-f16.gguf", .ctx = 400};
    score s = {0};
    double want_ppl, want_n;
    T_OK(ht_arena_new(&a, 0, &err), err);
    T_OK(ht_json_parse(a, text, n, 0, "held-out records", &doc, &err), err);
    T_OK(ht_engine_open(&e, &p, &err), err);
    const ht_json *records = ht_json_get(doc, "records");
    for (size_t i = 0; i < records->n; i++) score_record(e, &records->at[i], &s);
    T_OK(ht_json_f64(doc, "ppl", 0, &want_ppl, &err), err);
    T_OK(ht_json_f64(doc, "tokens", 0, &want_n, &err), err);
    T_EQ_INT(s.n, want_n);
    double ppl = exp(s.nll / (double)s.n);
    T_CHECK(fabs(ppl / want_ppl - 1) <= 5e-4, "perplexity %.6f, exact %.6f", ppl, want_ppl);
    ht_engine_close(e);
    ht_arena_free(a);
    free(text);
}
