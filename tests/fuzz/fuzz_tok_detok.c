/* fuzz_tok_detok.c - any ids, streamed: the text must be well-formed UTF-8 at every step and equal
 * to the bytes decoded at once wherever those are well-formed. Input: pairs of bytes, one id each.
 * */
#include "core/utf8.h"
#include "tok/tok_int.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* SPM with every byte token, so that ids can spell any bytes. */
static ht_tok *make(void)
{
    ht_tok *t;
    ht_err e;
    char byte[256][8];
    double score[300] = {0};
    static const char *const words[] = {TOK_SPM_SPACE, "a", (TOK_SPM_SPACE "a"), "\xf0\x9f\x98\x80",
                                        "\xe2\x82"};
    if (tok__new(&t, 3 + 256 + 5, &e)) abort();
    t->flags = TOK_F_SPM | TOK_F_PREFIX_ALWAYS;
    for (uint32_t i = 0; i < t->n; i++) {
        t->type[i] = i < 1 ? TOK_UNKNOWN : i < 3 ? TOK_CONTROL : i < 259 ? TOK_BYTE : TOK_NORMAL;
        if (i >= 3 && i < 259) {
            static const char hex[] = "0123456789ABCDEF";
            unsigned c = i - 3;
            const char text[7] = {'<', '0', 'x', hex[c >> 4], hex[c & 15], '>', 0};
            memcpy(byte[c], text, 7);
            t->text[i] = (tok_text){byte[c], 6};
        } else {
            const char *w = i == 0 ? "<unk>" : i == 1 ? "<s>" : i == 2 ? "</s>" : words[i - 259];
            t->text[i] = (tok_text){w, strlen(w)};
        }
    }
    t->unk = 0;
    if (tok__index(t, &e) || tok__rank_scores(t, score, &e) || tok__set_eog(t, NULL, 0, &e) ||
        tok__finish(t, &e))
        abort();
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static ht_tok *t;
    if (!t) t = make();
    if (n < 1 || n > 4096) return 0;
    bool special = data[0] & 1;
    ht_ids ids = {0};
    ht_buf all, out;
    ht_detok d;
    ht_err e;
    ht_buf_init(&all, 0);
    ht_buf_init(&out, 0);
    ht_detok_init(&d, special);
    for (size_t i = 1; i + 1 < n; i += 2) {
        int32_t id = (int32_t)(((unsigned)data[i] << 8 | data[i + 1]) % t->n);
        if (ht_ids_push(&ids, id, &e)) abort();
        size_t from = out.n;
        if (ht_detok_push(&d, t, id, &out, &e)) abort();
        if (d.n_held > 3) abort();
        if (out.n > from && ht_utf8_valid(out.p + from, out.n - from) != out.n - from) abort();
    }
    ht_detok_flush(&d, &out);
    if (ht_tok_decode(t, ids.id, ids.n, special, &all, &e)) abort();
    size_t valid = all.n ? ht_utf8_valid(all.p, all.n) : 0;
    if (valid > out.n || (valid && memcmp(out.p, all.p, valid))) abort();
    if (valid == all.n && out.n != all.n) abort();
    ht_ids_done(&ids);
    ht_buf_done(&all);
    ht_buf_done(&out);
    return 0;
}
