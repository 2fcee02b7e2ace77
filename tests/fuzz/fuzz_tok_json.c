/* fuzz_tok_json.c - tokenizer.json from anybody. Input: tokenizer.json, NUL,
 * tokenizer_config.json, NUL, config.json, NUL, generation_config.json (the last three may be
 * missing). What imports is used, and its blob must load and save as the same bytes. */
#include "tok/tok_int.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use(const ht_tok *t, ht_err *e)
{
    static const char text[] = "a <s>b</s>\n  <|im_end|> e\xcc\x81\xff 12'll ab";
    ht_ids ids = {0};
    ht_buf b, c;
    ht_tok *u = NULL;
    ht_buf_init(&b, 0);
    ht_buf_init(&c, 0);
    if (!ht_tok_encode(t, text, sizeof text - 1, HT_TOK_SPECIAL | HT_TOK_BOS, &ids, e) &&
        ht_tok_decode(t, ids.id, ids.n, true, &b, e))
        abort(); /* own ids always decode */
    ht_buf_clear(&b);
    if (ht_tok_save(t, &b, e) || ht_tok_load(&u, b.p, b.n, e) || ht_tok_save(u, &c, e) ||
        b.n != c.n || memcmp(b.p, c.p, b.n))
        abort();
    ht_tok_free(u);
    ht_ids_done(&ids);
    ht_buf_done(&b);
    ht_buf_done(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *s = (const char *)data;
    ht_arena *a;
    ht_json *j[4] = {0};
    ht_err e;
    ht_tok *t;
    if (ht_arena_new(&a, (size_t)64 << 20, &e)) return 0;
    for (unsigned k = 0; k < 4 && n; k++) {
        const char *end = memchr(s, 0, n);
        size_t len = end ? (size_t)(end - s) : n;
        if (ht_json_parse(a, s, len, 0, "fuzz", &j[k], &e)) j[k] = NULL;
        s += len + (end != NULL);
        n -= len + (end != NULL);
    }
    if (j[0] && !tok__from_hf(&t, j[0], j[1], j[2], j[3], NULL, &e)) {
        use(t, &e);
        ht_tok_free(t);
    }
    ht_arena_free(a);
    return 0;
}
