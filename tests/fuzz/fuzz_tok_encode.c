/* fuzz_tok_encode.c - any text against fixed vocabularies. First byte: which pre-tokenizer,
 * whether the text is cut into segments and where. Byte-level ids must decode to the text, unless
 * it was normalised; user text must not become a control token. */
#include "core/utf8.h"
#include "tok/tok_int.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const pres[] = {"gpt-2",  "llama-bpe", "qwen2",   "smollm",     "tekken",
                                   "gpt-4o", "qwen35",    "default", "deepseek-v3"};
enum { N_PRE = sizeof pres / sizeof *pres };

/* All bytes, a few merges, a control and a user-defined token. */
static ht_tok *make(const char *pre)
{
    ht_arena *a;
    ht_buf b;
    ht_err e;
    ht_json *j;
    ht_tok *t;
    ht_buf_init(&b, 0);
    ht_buf_str(&b, "{\"added_tokens\":[{\"id\":262,\"content\":\"<|x|>\",\"special\":true},"
                   "{\"id\":263,\"content\":\"<x>\",\"lstrip\":true}],\"pre_tokenizer\":{\"type\":"
                   "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned c = 0; c < 256; c++) {
        char u[4];
        unsigned len = ht_utf8_put(tok__byte_to_cp((uint8_t)c), u);
        ht_buf_str(&b, c == '"' || c == '\\' ? "\"\\" : "\"");
        ht_buf_add(&b, u, len);
        ht_buf_fmt(&b, "\":%u,", c);
    }
    ht_buf_str(
        &b,
        "\"th\":256,\"the\":257,\"\xc4\xa0the\":258,\"aa\":259,\"aaaa\":260,\"\xc4\xa0\xc4\xa0\":"
        "261},\"merges\":[\"t h\",\"th e\",\"\xc4\xa0 the\",\"a a\",\"aa aa\",\"\xc4\xa0 "
        "\xc4\xa0\"]}}");
    if (ht_arena_new(&a, 0, &e) || ht_json_parse(a, b.p, b.n, 0, "fixed", &j, &e) ||
        tok__from_hf(&t, j, NULL, NULL, NULL, pre, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        abort();
    }
    ht_arena_free(a);
    ht_buf_done(&b);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static ht_tok *tok[N_PRE];
    if (n < 2) return 0;
    unsigned k = data[0] % N_PRE;
    size_t at = data[1] % n;
    const char *s = (const char *)data + 2;
    n -= 2;
    if (at > n) at = n;
    if (!tok[k]) tok[k] = make(pres[k]);
    const ht_tok *t = tok[k];
    ht_segment seg[2] = {{s, at, data[0] & 128}, {s + at, n - at, data[0] & 64}};
    bool input = seg[0].from_input && seg[1].from_input;
    ht_ids ids = {0};
    ht_buf b;
    ht_err e;
    ht_buf_init(&b, 0);
    if (!ht_tok_encode_segments(t, seg, 2, 0, &ids, &e)) {
        bool stripped = false;
        for (size_t i = 0; i < ids.n; i++) {
            if (input && ht_tok_is_special(t, ids.id[i])) abort();
            stripped = stripped || ids.id[i] == 263;
        }
        if (ht_tok_decode(t, ids.id, ids.n, true, &b, &e)) abort();
        if (!stripped && !(t->flags & TOK_F_NFC) && (b.n != n || (n && memcmp(b.p, s, n)))) abort();
    }
    ht_ids_done(&ids);
    ht_buf_done(&b);
    return 0;
}
