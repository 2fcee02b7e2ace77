/* chat.c - chat templates of hetero.h: parse the caller's JSON, run tmpl/, and for ht_chat_encode
 * hand the rendered runs to the tokenizer with their origin, so that what a user wrote can never
 * become a control token. */
#include "api/api.h"
#include "core/clock.h"
#include "tmpl/tmpl.h"
#include <string.h>

/* Parse a JSON parameter that must be of one type; NULL text gives NULL. */
static int parse_part(ht_arena *arena, const char *text, const char *what, enum ht_jtype type,
                      const char *type_name, const ht_json **out, ht_err *err)
{
    *out = NULL;
    if (!text) return 0;
    ht_json *j = NULL;
    HT_TRY(ht_json_parse(arena, text, strlen(text), 0, what, &j, err));
    if (type == HT_JARR && j->type == HT_JNULL) return 0; /* "tools": null means none */
    if (j->type != type) return HT_FAIL(err, HT_EARG, "%s must be a JSON %s", what, type_name);
    *out = j;
    return 0;
}

/* Text of a special token for the template, "" when the vocabulary has none. In the arena. */
static int token_text(ht_arena *arena, const ht_vocab *v, int32_t id, const char **out, ht_err *err)
{
    *out = "";
    if (!v || id < 0) return 0;
    size_t n = 0;
    const char *text = ht_tok_text(v, id, &n);
    if (!text) return 0;
    *out = ht_arena_strndup(arena, text, n);
    return *out ? 0 : HT_FAIL(err, HT_ENOMEM, "no memory for the text of token %d", (int)id);
}

/* Render into out; segs (may be NULL) as ht_tmpl_render; v (may be NULL) gives bos and eos. */
static int render(ht_arena *arena, const ht_vocab *v, const char *source, size_t n,
                  const ht_chat_params *p, ht_buf *out, ht_tmpl_seg **segs, size_t *n_segs,
                  ht_err *err)
{
    ht_tmpl_args a = {
        .bos = p->bos, .eos = p->eos, .add_generation_prompt = !p->no_generation_prompt};
    if (!p->messages_json) return HT_FAIL(err, HT_EARG, "chat: messages_json must be given");
    HT_TRY(parse_part(arena, p->messages_json, "messages", HT_JARR, "array", &a.messages, err));
    if (!a.messages) return HT_FAIL(err, HT_EARG, "messages must be a JSON array, not null");
    HT_TRY(parse_part(arena, p->tools_json, "tools", HT_JARR, "array", &a.tools, err));
    HT_TRY(parse_part(arena, p->kwargs_json, "kwargs", HT_JOBJ, "object", &a.kwargs, err));
    if (!a.bos) HT_TRY(token_text(arena, v, v ? ht_tok_bos(v) : -1, &a.bos, err));
    if (!a.eos) HT_TRY(token_text(arena, v, v ? ht_tok_eos(v) : -1, &a.eos, err));
    a.now_unix = p->now_unix ? p->now_unix : ht_now_unix();
    ht_tmpl *t = NULL;
    HT_TRY(ht_tmpl_parse(&t, source, n, err));
    int rc = ht_tmpl_render(t, &a, arena, out, segs, n_segs, err);
    ht_tmpl_free(t);
    return rc;
}

int ht_chat_render(const char *source, size_t source_len, const ht_chat_params *p, char **text,
                   size_t *len, ht_err *err)
{
    if (!source || !p || !text || !len)
        return HT_FAIL(err, HT_EARG, "ht_chat_render: source, params, text and len must be given");
    *text = NULL;
    *len = 0;
    ht_arena *arena = NULL;
    HT_TRY(ht_arena_new(&arena, 0, err));
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = render(arena, NULL, source, source_len, p, &b, NULL, NULL, err);
    ht_buf_add(&b, "", 0);
    if (!rc) rc = ht_buf_ok(&b, "rendered chat", err);
    if (!rc) *text = ht_buf_take(&b, len);
    if (!rc && !*text) rc = HT_FAIL(err, HT_ENOMEM, "no memory for the rendered chat");
    ht_buf_done(&b);
    ht_arena_free(arena);
    return rc;
}

int ht_chat_encode(const ht_vocab *v, const char *source, size_t source_len,
                   const ht_chat_params *p, int32_t **ids, size_t *n, ht_err *err)
{
    if (!v || !source || !p || !ids || !n)
        return HT_FAIL(err, HT_EARG,
                       "ht_chat_encode: vocabulary, source, params, ids and n must be given");
    *ids = NULL;
    *n = 0;
    ht_arena *arena = NULL;
    HT_TRY(ht_arena_new(&arena, 0, err));
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_tmpl_seg *segs = NULL;
    size_t n_segs = 0;
    ht_ids got = {0};
    int rc = render(arena, v, source, source_len, p, &b, &segs, &n_segs, err);
    if (!rc) rc = ht_buf_ok(&b, "rendered chat", err);
    ht_segment *runs = rc ? NULL : ht_arena_array(arena, n_segs, sizeof *runs);
    if (!rc && !runs) rc = HT_FAIL(err, HT_ENOMEM, "no memory for %zu chat segments", n_segs);
    for (size_t i = 0; !rc && i < n_segs; i++)
        runs[i] = (ht_segment){.p = segs[i].p, .n = segs[i].n, .from_input = segs[i].from_input};
    if (!rc) rc = ht_tok_encode_segments(v, runs, n_segs, HT_TOK_SPECIAL, &got, err);
    if (rc) {
        ht_ids_done(&got);
    } else {
        *ids = got.id;
        *n = got.n;
    }
    ht_buf_done(&b);
    ht_arena_free(arena);
    return rc;
}

int ht_chat_source(const char *model_path, char **text, ht_err *err)
{
    if (!model_path || !text)
        return HT_FAIL(err, HT_EARG, "ht_chat_source: path and text must be given");
    *text = NULL;
    const ht_file_opts opts = {.vocab_only = 1};
    ht_file *file = NULL;
    HT_TRY(ht_file_open(&file, model_path, &opts, err));
    size_t n = 0;
    const char *t = ht_file_template(file, &n);
    int rc = 0;
    if (!t) {
        rc = HT_FAIL(err, HT_EUNSUPPORTED,
                     "%s carries no chat template; give one as a file, or use a plain prompt",
                     model_path);
    } else {
        char *copy = ht_mem_alloc(n + 1);
        if (!copy) rc = HT_FAIL(err, HT_ENOMEM, "no memory for a chat template of %zu bytes", n);
        else memcpy(copy, t, n);
        *text = copy;
    }
    ht_file_close(file);
    return rc;
}
