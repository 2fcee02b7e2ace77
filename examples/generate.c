/* generate.c - the smallest useful program over hetero.h: load a model, ask it something, print the
 * answer as it comes and the receipt behind it.
 *
 *     cc -std=c11 generate.c $(pkg-config --cflags --libs hetero) -o generate
 *     ./generate models/tale-9m-f16.gguf "Tell me a story about a fox." */
#include "hetero.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static int show(void *user, const ht_token_event *ev)
{
    fwrite(ev->text, 1, ev->len, user);
    return fflush(user); /* non-zero stops the generation: nobody reads any more */
}

/* [{"role":"user","content":TEXT}]; false when it does not fit. */
static bool user_message(const char *text, char *out, size_t cap)
{
    int n = snprintf(out, cap, "[{\"role\":\"user\",\"content\":\"");
    for (; *text && (size_t)n + 10 < cap; text++) {
        const unsigned char c = (unsigned char)*text;
        const char *form = c == '"' || c == '\\' ? "\\%c" : c < 0x20 ? "\\u%04x" : "%c";
        n += snprintf(out + n, cap - (size_t)n, form, c);
    }
    snprintf(out + n, cap - (size_t)n, "\"}]");
    return !*text;
}

/* The prompt's tokens: through the model's chat template where it has one, else as plain text. */
static int tokens(const ht_engine *engine, const char *prompt, int32_t **ids, size_t *n,
                  ht_err *err)
{
    const ht_vocab *vocab = ht_engine_vocab(engine);
    const char *tmpl = ht_engine_template(engine);
    char messages[16384];
    if (!tmpl || !user_message(prompt, messages, sizeof messages))
        return ht_vocab_encode(vocab, prompt, strlen(prompt), HT_TOK_BOS, ids, n, err);
    const ht_chat_params chat = {.messages_json = messages};
    return ht_chat_encode(vocab, tmpl, strlen(tmpl), &chat, ids, n, err);
}

static int answer(ht_engine *engine, const char *prompt, ht_err *err)
{
    ht_sampling sampling;
    ht_sampling_init(&sampling);
    sampling.seed = 1;
    const ht_gen_params params = {
        .max_new = 64, .sampling = &sampling, .on_token = show, .user = stdout};
    ht_session *session = NULL;
    ht_gen_result result = {0};
    int32_t *ids = NULL;
    char *receipt = NULL;
    size_t n = 0;

    int rc = ht_session_new(&session, engine, err);
    if (!rc) rc = tokens(engine, prompt, &ids, &n, err);
    if (!rc) rc = ht_session_generate(session, ids, n, &params, &result, err);
    if (!rc) rc = ht_session_receipt(session, &receipt, err);
    if (!rc)
        fprintf(stderr, "\n%s, %zu tokens\n%s\n", ht_finish_name(result.finish), result.n_ids,
                receipt);
    ht_free(receipt);
    ht_free(ids);
    ht_gen_result_done(&result);
    ht_session_free(session);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 2;
    }
    ht_engine *engine = NULL;
    ht_err err = {0};
    const ht_engine_params params = {.model = argv[1]}; /* zero means: the default */
    int rc = ht_engine_open(&engine, &params, &err);
    if (!rc) rc = answer(engine, argv[2], &err);
    if (rc) fprintf(stderr, "%s: %s: %s\n", argv[0], ht_code_name(err.code), err.msg);
    ht_engine_close(engine);
    return rc != 0;
}
