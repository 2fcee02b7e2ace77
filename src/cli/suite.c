/* suite.c - the quality suite on two open engines: greedy continuations of chat prompts, divergence
 * and perplexity over a text, and a four-choice task in which each prompt's own response stands
 * among three foreign ones. The measures are evid/quality.h's; here are the corpus and the
 * sessions. */
#include "cli/suite.h"
#include "core/map.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ITEMS_MAX = 100000, RESPONSE_TOKENS = 48, PROMPT_BYTES_MAX = 64 << 20, ARMS = 2 };

typedef struct {
    int32_t *prompt, *response; /* from the library                                            */
    size_t n_prompt, n_response;
} item;

typedef struct {
    cli__ctx *c;
    const cli__suite *o;
    ht_arena *arena;
    ht_engine *engine[ARMS]; /* reference, candidate                                        */
    ht_session *s[ARMS];
    ht_quality *q;
    item *items;
    size_t n_items;
    uint32_t n_vocab;
    float *logits; /* [n_want, n_vocab] of the reference                          */
} work;

/* ---- corpus ---- */

static int read_item(work *w, const cli__chat_source *chat, const ht_json *j, size_t line,
                     item *out, ht_err *e)
{
    const ht_vocab *v = ht_engine_vocab(w->engine[0]);
    const ht_json *prompt = ht_json_get(j, "prompt"), *response = ht_json_get(j, "response");
    if (!prompt || prompt->type != HT_JSTR || !response || response->type != HT_JSTR)
        return HT_FAIL(e, HT_EFORMAT, "%s line %zu: need {\"prompt\":text,\"response\":text}",
                       w->o->prompts, line);
    if (chat) {
        ht_buf b;
        ht_jw m;
        ht_buf_init(&b, CLI_JSON_MAX);
        ht_jw_init(&m, &b, 0);
        ht_jw_arr(&m);
        ht_jw_obj(&m);
        ht_jw_kstr(&m, "role", "user");
        ht_jw_key(&m, "content");
        ht_jw_strn(&m, prompt->s, prompt->n);
        ht_jw_end(&m, '}');
        ht_jw_end(&m, ']');
        int rc = ht_buf_ok(&b, "message", e);
        if (!rc) rc = cli__chat_ids(chat, v, b.p, &out->prompt, &out->n_prompt, e);
        ht_buf_done(&b);
        HT_TRY(rc);
    } else {
        HT_TRY(
            ht_vocab_encode(v, prompt->s, prompt->n, HT_TOK_BOS, &out->prompt, &out->n_prompt, e));
    }
    return ht_vocab_encode(v, response->s, response->n, 0, &out->response, &out->n_response, e);
}

static int read_items(work *w, const char *text, size_t n, ht_err *e)
{
    const char *tmpl = ht_engine_template(w->engine[0]);
    cli__chat_source chat = {0};
    size_t lines = 0, line = 0;
    int rc = 0;
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    if (lines > ITEMS_MAX)
        return HT_FAIL(e, HT_EFORMAT, "%s: more than %d lines", w->o->prompts, (int)ITEMS_MAX);
    w->items = ht_arena_array(w->arena, lines + 1, sizeof *w->items);
    if (!w->items) return HT_FAIL(e, HT_ENOMEM, "quality: out of memory for %zu items", lines);
    if (tmpl) HT_TRY(cli__chat_source_open(w->c, tmpl, &chat, e));
    for (const char *p = text; !rc && p < text + n; line++) {
        const char *nl = memchr(p, '\n', (size_t)(text + n - p));
        size_t len = nl ? (size_t)(nl - p) : (size_t)(text + n - p);
        ht_json *j;
        if (len) {
            rc = ht_json_parse(w->arena, p, len, 0, w->o->prompts, &j, e);
            if (!rc) rc = read_item(w, tmpl ? &chat : NULL, j, line + 1, &w->items[w->n_items], e);
            if (!rc) w->n_items++;
        }
        p += len + 1;
    }
    cli__chat_source_done(&chat);
    return rc;
}

/* ---- greedy continuations ---- */

typedef struct {
    float *out;
    uint32_t n_vocab;
} keep;

static int keep_logits(void *user, uint32_t index, const float *logits, uint32_t n_vocab)
{
    keep *k = user;
    (void)index;
    memcpy(k->out, logits, n_vocab * sizeof *logits);
    k->out += n_vocab;
    return cli__interrupted();
}

/* The reference's log-probabilities after prompt and the first `n` tokens: how much worse is
 * `other`? */
static int gap_at(work *w, const item *it, const int32_t *out, size_t n, int32_t mine,
                  int32_t other, double *gap, ht_err *e)
{
    int32_t *ids = ht_mem_array(it->n_prompt + n, sizeof *ids);
    const uint32_t last = (uint32_t)(it->n_prompt + n - 1);
    keep k = {w->logits, w->n_vocab};
    if (!ids) return HT_FAIL(e, HT_ENOMEM, "quality: out of memory");
    memcpy(ids, it->prompt, it->n_prompt * sizeof *ids);
    if (n) memcpy(ids + it->n_prompt, out, n * sizeof *ids);
    int rc = ht_session_truncate(w->s[0], 0, e);
    if (!rc) rc = ht_session_eval(w->s[0], ids, it->n_prompt + n, &last, 1, keep_logits, &k, e);
    ht_mem_free(ids);
    *gap = rc ? 0 : (double)w->logits[mine] - (double)w->logits[other];
    return rc;
}

static int greedy(work *w, const item *it, ht_err *e)
{
    ht_gen_result r[ARMS] = {{0}, {0}};
    ht_sampling s;
    ht_sampling_init(&s);
    s.temp = 0;
    const ht_gen_params p = {.max_new = w->o->n_new, .sampling = &s, .tokens_only = 1};
    int rc = 0;
    double gap = INFINITY; /* one text ends where the other goes on: a real difference */
    for (int a = 0; a < ARMS && !rc; a++) {
        rc = ht_session_truncate(w->s[a], 0, e);
        if (!rc) rc = ht_session_generate(w->s[a], it->prompt, it->n_prompt, &p, &r[a], e);
        if (!rc && r[a].finish == HT_FINISH_CANCEL)
            rc = HT_FAIL(e, HT_ECANCELLED, "cancelled in the quality suite");
    }
    size_t i = 0, n = r[0].n_ids < r[1].n_ids ? r[0].n_ids : r[1].n_ids;
    while (i < n && r[0].ids[i] == r[1].ids[i]) i++;
    if (!rc && i < n) rc = gap_at(w, it, r[0].ids, i, r[0].ids[i], r[1].ids[i], &gap, e);
    if (!rc)
        rc = ht_quality_greedy(w->q, it->prompt, it->n_prompt, r[0].ids, r[0].n_ids, r[1].ids,
                               r[1].n_ids, gap, e);
    for (int a = 0; a < ARMS; a++) ht_gen_result_done(&r[a]);
    return rc;
}

/* ---- text ---- */

typedef struct {
    work *w;
    const int32_t *ids; /* [ctx] of the chunk                                          */
    ht_quality_position *at;
    size_t n;
} against;

static int on_candidate(void *user, uint32_t index, const float *logits, uint32_t n_vocab)
{
    against *x = user;
    ht_quality_measure(x->w->logits + x->n * n_vocab, logits, n_vocab, x->ids[index + 1],
                       &x->at[x->n]);
    x->n++;
    return cli__interrupted();
}

static int chunk(work *w, int32_t *ids, uint32_t ctx, const uint32_t *want, size_t n_want,
                 ht_quality_position *at, ht_err *e)
{
    keep k = {w->logits, w->n_vocab};
    against x = {.w = w, .ids = ids, .at = at};
    for (int a = 0; a < ARMS; a++) HT_TRY(ht_session_truncate(w->s[a], 0, e));
    HT_TRY(ht_session_eval(w->s[0], ids, ctx, want, n_want, keep_logits, &k, e));
    HT_TRY(ht_session_eval(w->s[1], ids, ctx, want, n_want, on_candidate, &x, e));
    return ht_quality_text(w->q, ids, ctx, at, n_want, e);
}

/* Chunks as in 'hetero ppl': the second half of each is scored, BOS replaces the first token
 * where the model adds one. */
static int text_part(work *w, ht_err *e)
{
    const ht_vocab *v = ht_engine_vocab(w->engine[0]);
    const uint32_t ctx = w->o->ctx;
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n = 0, n_ids = 0, n_want = 0;
    uint32_t *want = ht_arena_array(w->arena, ctx, sizeof *want);
    ht_quality_position *at = ht_arena_array(w->arena, ctx, sizeof *at);
    if (!want || !at) return HT_FAIL(e, HT_ENOMEM, "quality: out of memory for a chunk");
    for (uint32_t i = ctx / 2; i + 1 < ctx; i++) want[n_want++] = i;
    int rc = ht_file_read(w->o->text, CLI_TEXT_MAX, &text, &n, e);
    if (!rc) rc = ht_vocab_encode(v, text, n, HT_TOK_BOS, &ids, &n_ids, e);
    bool bos = !rc && n_ids && ids[0] == ht_vocab_bos(v);
    size_t chunks = n_ids / ctx < w->o->chunks ? n_ids / ctx : w->o->chunks;
    if (!rc && !chunks)
        rc = HT_FAIL(e, HT_EARG, "%s: %zu tokens make no chunk of %u", w->o->text, n_ids, ctx);
    for (size_t i = 0; i < chunks && !rc; i++) {
        if (bos) ids[i * ctx] = ht_vocab_bos(v);
        rc = chunk(w, ids + i * ctx, ctx, want, n_want, at, e);
        if (!rc && cli__progress(w->c, "chunks", i + 1, chunks))
            rc = HT_FAIL(e, HT_ECANCELLED, "cancelled in the quality suite");
    }
    ht_mem_free(text);
    ht_free(ids);
    return rc;
}

/* ---- task ---- */

/* Mean log-probability of the first RESPONSE_TOKENS tokens of a response behind the prompt,
 * which the session holds; its last logits are in w->logits' first row for arm a. */
typedef struct {
    const int32_t *ids;
    double sum;
} follow;

static int on_follow(void *user, uint32_t index, const float *logits, uint32_t n_vocab)
{
    follow *f = user;
    f->sum += ht_quality_logprob(logits, n_vocab, (uint32_t)f->ids[index + 1]);
    return cli__interrupted();
}

static int score(work *w, int arm, const item *prompt, const item *answer, const float *first,
                 double *out, ht_err *e)
{
    size_t n = answer->n_response < RESPONSE_TOKENS ? answer->n_response : RESPONSE_TOKENS;
    uint32_t want[RESPONSE_TOKENS];
    follow f = {.ids = answer->response};
    f.sum = ht_quality_logprob(first, w->n_vocab, (uint32_t)answer->response[0]);
    for (uint32_t i = 0; i + 1 < n; i++) want[i] = i;
    if (n > 1) {
        HT_TRY(ht_session_eval(w->s[arm], answer->response, n - 1, want, n - 1, on_follow, &f, e));
        HT_TRY(ht_session_truncate(w->s[arm], (uint32_t)prompt->n_prompt, e));
    }
    *out = f.sum / (double)n;
    return 0;
}

static int task(work *w, uint32_t i, ht_err *e)
{
    const item *it = &w->items[i];
    const uint32_t last = (uint32_t)(it->n_prompt - 1);
    uint32_t choice[4], shown[4], at, k = 1;
    bool right[ARMS] = {false, false};
    ht_quality_choices(w->o->seed, i, (uint32_t)w->n_items, choice, &at);
    for (uint32_t j = 0; j < 4; j++) shown[j] = j == at ? i : choice[k++];
    for (int a = 0; a < ARMS; a++) {
        keep keep_first = {w->logits, w->n_vocab};
        double best = -INFINITY;
        uint32_t chosen = 4;
        HT_TRY(ht_session_truncate(w->s[a], 0, e));
        HT_TRY(ht_session_eval(w->s[a], it->prompt, it->n_prompt, &last, 1, keep_logits,
                               &keep_first, e));
        for (uint32_t j = 0; j < 4; j++) {
            double s = -INFINITY;
            HT_TRY(score(w, a, it, &w->items[shown[j]], w->logits, &s, e));
            if (s > best) {
                best = s;
                chosen = j;
            }
        }
        right[a] = chosen == at;
    }
    return ht_quality_task(w->q, it->prompt, it->n_prompt, right[0], right[1], e);
}

static int task_part(work *w, ht_err *e)
{
    size_t n = w->o->tasks < w->n_items ? w->o->tasks : w->n_items;
    for (size_t i = 0; i < w->n_items; i++)
        if (w->items[i].n_response == 0 || w->items[i].n_prompt == 0)
            return HT_FAIL(e, HT_EFORMAT, "%s: item %zu is empty", w->o->prompts, i + 1);
    if (n && w->n_items < 4)
        return HT_FAIL(e, HT_EARG, "%s: the task needs four items, there are %zu", w->o->prompts,
                       w->n_items);
    for (size_t i = 0; i < n; i++) {
        HT_TRY(task(w, (uint32_t)i, e));
        if (cli__progress(w->c, "tasks", i + 1, n))
            return HT_FAIL(e, HT_ECANCELLED, "cancelled in the quality suite");
    }
    return 0;
}

/* ---- the suite ---- */

static int run(work *w, ht_err *e)
{
    char *text = NULL;
    size_t n = 0, greedy_n;
    for (int a = 0; a < ARMS; a++) HT_TRY(ht_session_new(&w->s[a], w->engine[a], e));
    w->n_vocab = ht_vocab_size(ht_engine_vocab(w->engine[0]));
    if (ht_vocab_size(ht_engine_vocab(w->engine[1])) != w->n_vocab)
        return HT_FAIL(e, HT_EARG, "the candidate has another vocabulary than the reference");
    w->logits = ht_page_alloc((size_t)w->o->ctx * w->n_vocab * sizeof *w->logits);
    if (!w->logits) return HT_FAIL(e, HT_ENOMEM, "quality: out of memory for logits");
    int rc = ht_file_read(w->o->prompts, PROMPT_BYTES_MAX, &text, &n, e);
    if (!rc) rc = read_items(w, text, n, e);
    ht_mem_free(text);
    HT_TRY(rc);
    greedy_n = w->o->items < w->n_items ? w->o->items : w->n_items;
    for (size_t i = 0; i < greedy_n; i++) {
        HT_TRY(greedy(w, &w->items[i], e));
        if (cli__progress(w->c, "prompts", i + 1, greedy_n))
            return HT_FAIL(e, HT_ECANCELLED, "cancelled in the quality suite");
    }
    if (w->o->text) HT_TRY(text_part(w, e));
    return task_part(w, e);
}

int cli__suite_run(cli__ctx *c, const cli__suite *o, ht_engine *ref, ht_engine *cand, ht_quality *q,
                   ht_err *e)
{
    work w = {.c = c, .o = o, .engine = {ref, cand}, .q = q};
    HT_TRY(ht_arena_new(&w.arena, 0, e));
    int rc = run(&w, e);
    for (size_t i = 0; i < w.n_items; i++) {
        ht_free(w.items[i].prompt);
        ht_free(w.items[i].response);
    }
    for (int a = 0; a < ARMS; a++) ht_session_free(w.s[a]);
    ht_page_free(w.logits, (size_t)o->ctx * w.n_vocab * sizeof *w.logits);
    ht_arena_free(w.arena);
    cli__progress_end(c);
    return rc;
}
