/* ppl.c - hetero ppl: perplexity by the method that llama-perplexity made common, so that figures
 * can be compared (techniques.md 8). The text is tokenised once. Chunks of ctx tokens; the first
 * token of a chunk is replaced by BOS where the model adds one; the cache is cleared for each; the
 * logits at positions ctx/2 .. ctx-2 are scored against the token that follows. Sums are in
 * double. */
#include "cli/cli.h"
#include "core/arena.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CTX_DEFAULT = 512 };

typedef struct {
    cli__ctx *c;
    ht_engine *engine;
    ht_session *session;
    char *text;
    int32_t *ids, *chunk; /* the whole text; [ctx] of the chunk being scored            */
    uint32_t *want;       /* [ctx] positions scored in a chunk                          */
    size_t n_ids, n_want, n_chunks;
    uint32_t ctx;
    bool add_bos, not_finite;
    double sum, sum_sq; /* of the negative log-likelihoods, in nats                   */
    uint64_t n_scored;
} work;

/* -log softmax(logits)[target], with the sum in double around the largest logit. */
static double nll(const float *logits, uint32_t n, int32_t target)
{
    float max = logits[0];
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > max) max = logits[i];
    for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)max);
    return (double)max + log(sum) - (double)logits[target];
}

static int on_logits(void *user, uint32_t index, const float *logits, uint32_t n_vocab)
{
    work *w = user;
    double v = nll(logits, n_vocab, w->chunk[index + 1]);
    if (!isfinite(v)) w->not_finite = true;
    w->sum += v;
    w->sum_sq += v * v;
    w->n_scored++;
    return w->not_finite || cli__interrupted();
}

/* Does the model add a BOS to a text? Ask the tokenizer for the empty one. */
static int learn_bos(work *w, ht_err *e)
{
    const ht_vocab *v = ht_engine_vocab(w->engine);
    int32_t *ids;
    size_t n;
    HT_TRY(ht_vocab_encode(v, "", 0, HT_TOK_BOS, &ids, &n, e));
    w->add_bos = n > 0 && ids[0] == ht_vocab_bos(v);
    ht_free(ids);
    return 0;
}

static int read_text(work *w, ht_err *e)
{
    const char *file;
    size_t n;
    HT_TRY(cli__file_word(w->c, &file, e));
    HT_TRY(cli__read_file(file, CLI_TEXT_MAX, &w->text, &n, e));
    HT_TRY(learn_bos(w, e));
    HT_TRY(
        ht_vocab_encode(ht_engine_vocab(w->engine), w->text, n, HT_TOK_BOS, &w->ids, &w->n_ids, e));
    w->n_chunks = w->n_ids / w->ctx;
    if (w->n_chunks == 0)
        return HT_FAIL(e, HT_EARG,
                       "%s: %zu tokens are fewer than one chunk of %u; use a longer text or a "
                       "smaller --ctx",
                       file, w->n_ids, w->ctx);
    int64_t asked = ht_opt_int(w->c->o, HT_OPT_CHUNKS);
    if (asked > (int64_t)w->n_chunks)
        cli__say(w->c, CLI_WARN, "warning: --chunks %lld, but the text has %zu; scoring those",
                 (long long)asked, w->n_chunks);
    else if (asked > 0) w->n_chunks = (size_t)asked;
    return 0;
}

static int make_room(work *w, ht_err *e)
{
    w->chunk = ht_mem_array(w->ctx, sizeof *w->chunk);
    w->want = ht_mem_array(w->ctx, sizeof *w->want);
    if (!w->chunk || !w->want) return HT_FAIL(e, HT_ENOMEM, "ppl: out of memory for a chunk");
    for (uint32_t i = w->ctx / 2; i + 1 < w->ctx; i++) w->want[w->n_want++] = i;
    return 0;
}

static double mean(const work *w)
{
    return w->sum / (double)w->n_scored;
}

/* Standard error of the mean: sqrt((E[x^2] - E[x]^2) / (n-1)). */
static double std_error(const work *w)
{
    double var = w->sum_sq / (double)w->n_scored - mean(w) * mean(w);
    return w->n_scored > 1 && var > 0 ? sqrt(var / (double)(w->n_scored - 1)) : 0;
}

static int score_chunk(work *w, size_t i, ht_err *e)
{
    memcpy(w->chunk, w->ids + i * w->ctx, w->ctx * sizeof *w->chunk);
    if (w->add_bos) w->chunk[0] = ht_vocab_bos(ht_engine_vocab(w->engine));
    HT_TRY(ht_session_truncate(w->session, 0, e));
    int rc = ht_session_eval(w->session, w->chunk, w->ctx, w->want, w->n_want, on_logits, w, e);
    if (w->not_finite)
        return HT_FAIL(e, HT_EFORMAT,
                       "chunk %zu: a logit is not finite, so there is no perplexity; if the model "
                       "overflows the F16 cache, try -ctk f32 -ctv f32",
                       i);
    HT_TRY(rc);
    cli__say(w->c, CLI_DEBUG, "chunk %zu of %zu: perplexity so far %.4f", i + 1, w->n_chunks,
             exp(mean(w)));
    if (cli__progress(w->c, "chunks", i + 1, w->n_chunks))
        return HT_FAIL(e, HT_ECANCELLED, "cancelled after %zu of %zu chunks", i + 1, w->n_chunks);
    return 0;
}

static int out_result(work *w, ht_err *e)
{
    double m = mean(w), se = std_error(w);
    char *receipt = NULL;
    ht_buf b;
    ht_jw j;
    int rc = ht_session_receipt(w->session, &receipt, e);
    ht_buf_init(&b, 0);
    if (rc == 0 && w->c->json) {
        ht_jw_init(&j, &b, 0);
        ht_jw_obj(&j);
        ht_jw_kreal(&j, "ppl", exp(m));
        ht_jw_kreal(&j, "nll", m);
        ht_jw_kuint(&j, "tokens", w->n_scored);
        ht_jw_kreal(&j, "pplStdError", exp(m) * se);
        ht_jw_kreal(&j, "nllStdError", se);
        ht_jw_kuint(&j, "chunks", w->n_chunks);
        ht_jw_kuint(&j, "ctx", w->ctx);
        ht_jw_kuint(&j, "textTokens", w->n_ids);
        ht_jw_kbool(&j, "bosPerChunk", w->add_bos);
        ht_jw_kstr(&j, "model", w->c->model);
        ht_jw_key(&j, "lastReceipt");
        ht_jw_raw(&j, receipt, strlen(receipt));
        ht_jw_end(&j, '}');
    } else if (rc == 0) {
        ht_buf_fmt(
            &b,
            "perplexity %.4f +/- %.4f over %llu tokens (%zu chunks of %u, second half scored)\n",
            exp(m), exp(m) * se, (unsigned long long)w->n_scored, w->n_chunks, w->ctx);
    }
    if (!rc) rc = ht_buf_ok(&b, "perplexity", e);
    if (!rc) rc = w->c->json ? cli__out_json(b.p, b.n, e) : cli__out(b.p, b.n, e);
    ht_buf_done(&b);
    ht_free(receipt);
    return rc;
}

static int run(work *w, ht_err *e)
{
    cli__ctx *c = w->c;
    const char *file;
    HT_TRY(cli__file_word(c, &file, e));
    if (!file)
        return HT_FAIL(e, HT_EARG, "no text: usage: hetero ppl MODEL FILE (or -m MODEL -f FILE)");
    HT_TRY(cli__model(c, false, e));
    w->ctx = ht_opt_given(c->o, HT_OPT_CTX) ? (uint32_t)ht_opt_int(c->o, HT_OPT_CTX) : CTX_DEFAULT;
    if (w->ctx < 4) return HT_FAIL(e, HT_EARG, "--ctx %u: a chunk needs at least 4 tokens", w->ctx);
    cli__watch(NULL);
    HT_TRY(cli__engine_open(c, w->ctx, &w->engine, e));
    if (ht_opt_given(c->o, HT_OPT_PRINT_CONFIG)) return cli__print_config(c, w->engine, NULL, e);
    HT_TRY(read_text(w, e));
    HT_TRY(make_room(w, e));
    HT_TRY(ht_session_new(&w->session, w->engine, e));
    cli__watch(w->session);
    for (size_t i = 0; i < w->n_chunks; i++) HT_TRY(score_chunk(w, i, e));
    cli__progress_end(c);
    return out_result(w, e);
}

int cli__ppl(cli__ctx *c, ht_err *e)
{
    work w = {.c = c};
    int rc = run(&w, e);
    cli__watch(NULL);
    ht_session_free(w.session);
    ht_mem_free(w.text);
    ht_mem_free(w.chunk);
    ht_mem_free(w.want);
    ht_free(w.ids);
    if (w.engine) ht_engine_close(w.engine);
    return rc;
}
