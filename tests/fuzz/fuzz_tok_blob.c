/* fuzz_tok_blob.c - a pack's tokenizer blob from anybody: what loads saves as the same bytes, and
 * encodes and decodes without harm. */
#include "tok/tok_int.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] = "ab <s> \xe2\x96\x81 e\xcc\x81\n\xf0\x9f\x98\x80 12";
    ht_err e;
    ht_tok *t;
    ht_buf b;
    ht_ids ids = {0};
    if (ht_tok_load(&t, data, n, &e)) return 0;
    ht_buf_init(&b, 0);
    if (ht_tok_save(t, &b, &e) || b.n != n || memcmp(b.p, data, n)) abort();
    ht_buf_clear(&b);
    ht_segment seg[2] = {{text, 9, false}, {text + 9, sizeof text - 10, true}};
    if (!ht_tok_encode_segments(t, seg, 2, HT_TOK_BOS, &ids, &e) &&
        ht_tok_decode(t, ids.id, ids.n, true, &b, &e))
        abort();
    ht_ids_done(&ids);
    ht_buf_done(&b);
    ht_tok_free(t);
    return 0;
}
