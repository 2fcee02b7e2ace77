/* graph_heldout.c - requests whose prompt runs on `graph` against requests all on `cpu`, through
 * the public interface: tokens and receipts. Data: 60 held-out records of tale-9m. */
#include "core/json.h"
#include "hetero.h"
#include "test.h"

enum { NEW = 16 };
static const char *const tale = "models/tale-9m-f16.gguf";

typedef struct {
    int32_t id[NEW];
    float margin[NEW]; /* between the two likeliest */
    uint32_t n;
} run_of;

static int take(void *user, const ht_token_event *ev)
{
    run_of *r = user;
    if (ev->id < 0 || r->n == NEW) return 0;
    r->id[r->n] = ev->id;
    r->margin[r->n++] = ev->n_top > 1 ? ev->top[0].logprob - ev->top[1].logprob : 1e9f;
    return 0;
}

static ht_json *records(ht_arena *a)
{
    size_t n;
    ht_err err = {0};
    ht_json *doc;
    char *text = t_slurp(t_shared("models/tale-9m/heldout-60.json"), &n);
    T_OK(ht_json_parse(a, text, n, 0, "held-out records", &doc, &err), err);
    free(text);
    return doc;
}

/* The engine with this prefill; NULL: on cpu. Skips where there is no library. */
static ht_engine *open_engine(const char *prefill, const char *graph)
{
    ht_err err = {0};
    ht_engine *e;
    ht_engine_params p = {
        .model = tale, .ctx = 512, .threads = 2, .prefill_engine = prefill, .graph = graph};
    const int rc = ht_engine_open(&e, &p, &err);
    if (rc == HT_EUNSUPPORTED && strstr(err.msg, "no OpenVINO")) T_SKIP("%s", err.msg);
    T_OK(rc, err);
    return e;
}

/* Token ids of a record's text up to the response, and with it. */
static void encode(const ht_engine *e, const ht_json *rec, int32_t **head, size_t *n_head,
                   int32_t **all, size_t *n_all)
{
    ht_err err = {0};
    const char *prompt = ht_json_get(rec, "prompt")->s, *answer = ht_json_get(rec, "response")->s;
    const size_t room = strlen(prompt) + strlen(answer) + 128;
    char *text = malloc(room);
    int len =
        snprintf(text, room, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", prompt);
    T_OK(ht_vocab_encode(ht_engine_vocab(e), text, (size_t)len, HT_TOK_SPECIAL, head, n_head, &err),
         err);
    len += snprintf(text + len, room - (size_t)len, "%s<|im_end|>\n", answer);
    T_OK(ht_vocab_encode(ht_engine_vocab(e), text, (size_t)len, HT_TOK_SPECIAL, all, n_all, &err),
         err);
    free(text);
}

static void greedy(ht_engine *e, const int32_t *ids, size_t n, run_of *r, char **receipt)
{
    ht_err err = {0};
    ht_session *s;
    ht_gen_result res = {0};
    ht_sampling sampling;
    ht_sampling_init(&sampling);
    sampling.temp = 0;
    r->n = 0;
    const ht_gen_params p = {.max_new = NEW,
                             .sampling = &sampling,
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

static void check_receipt(ht_arena *a, const char *text, uint64_t tokens, uint64_t rows)
{
    ht_err err = {0};
    ht_json *r;
    T_OK(ht_json_parse(a, text, strlen(text), 0, "receipt", &r, &err), err);
    const ht_json *p = &ht_json_get(r, "phases")->at[0], *d = &ht_json_get(r, "phases")->at[1];
    T_EQ_STR(ht_json_get(p, "planned")->s, "graph");
    T_EQ_STR(ht_json_get(p, "engine")->s, "graph");
    T_EQ_STR(ht_json_get(d, "engine")->s, "cpu");
    T_EQ_INT(ht_json_get(p, "tokens")->i, tokens);
    T_EQ_INT(ht_json_get(p, "hostCopyBytes")->i + ht_json_get(p, "deviceCopyBytes")->i, 0);
    T_EQ_INT(ht_json_get(d, "hostCopyBytes")->i + ht_json_get(d, "deviceCopyBytes")->i, 0);
    T_EQ_INT(ht_json_get(p, "dispatches")->i, 1);
    const ht_json *seg = &ht_json_get(p, "segments")->at[0], *f = ht_json_get(seg, "facts");
    T_EQ_INT(ht_json_get(seg, "rowsMax")->i, rows);
    T_EQ_STR(ht_json_get(f, "executionDevices")->s, "CPU");
    T_EQ_STR(ht_json_get(f, "inferencePrecision")->s, "f32");
    T_EQ_INT(ht_json_get(f, "productsBelowF32")->i, 0);
    T_EQ_INT(strlen(ht_json_get(f, "profileSha256")->s), 64);
    T_CHECK(ht_json_get(f, "cancelMs")->i >= 4, "the time of a cancel is said");
}

/* The exact contract: tokens of the mixed run are those of the reference wherever its two likeliest
 * are more than 1e-2 apart; where they are not and differ, that is a near tie, and is listed. */
T_CASE_SECONDS(graph_heldout, tokens_of_60_records, 400)
{
    ht_arena *a;
    ht_err err = {0};
    T_OK(ht_arena_new(&a, 0, &err), err);
    const ht_json *list = ht_json_get(records(a), "records");
    ht_engine *cpu = open_engine("cpu", NULL), *mixed = open_engine("graph", "strict=1");
    int exact = 0, ties = 0;
    for (size_t i = 0; i < list->n; i++) {
        int32_t *head, *all;
        size_t n_head, n_all;
        run_of x, y;
        char *rx, *ry;
        encode(cpu, &list->at[i], &head, &n_head, &all, &n_all);
        greedy(cpu, head, n_head, &x, &rx);
        greedy(mixed, head, n_head, &y, &ry);
        check_receipt(a, ry, n_head, n_head <= 32 ? 32 : n_head <= 128 ? 128 : 512);
        uint32_t k = 0;
        while (k < NEW && x.id[k] == y.id[k]) k++;
        exact += k == NEW;
        if (k < NEW) {
            printf("  record %zu token %u: %d for %d, margin %.2e\n", i, k, y.id[k], x.id[k],
                   (double)x.margin[k]);
            T_SOFT(x.margin[k] <= 1e-2f, "record %zu: a token differs where the margin is %g", i,
                   (double)x.margin[k]);
            ties++;
        }
        ht_free(rx);
        ht_free(ry);
        ht_free(head);
        ht_free(all);
    }
    printf("  records exact %d/%zu, near ties %d\n", exact, list->n, ties);
    T_CHECK(list->n == 60 && exact + ties == 60, "%d exact, %d near ties", exact, ties);
    ht_engine_close(cpu);
    ht_engine_close(mixed);
    ht_arena_free(a);
}
