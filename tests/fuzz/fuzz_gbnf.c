/* fuzz_gbnf.c - a GBNF grammar before the first NUL of the input and a text behind it. */
#include "core/arena.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    ht_err e = {0};
    ht_grammar *g = NULL;
    const uint8_t *cut = n ? memchr(p, 0, n) : NULL;
    const size_t len = cut ? (size_t)(cut - p) : n;
    if (ht_grammar_open(&g, NULL, HT_GRAMMAR_GBNF, n ? (const char *)p : "", len, &e)) return 0;
    if (cut && ht_grammar_check(g, (const char *)cut + 1, n - len - 1, &e) && !e.msg[0]) abort();
    if (ht_grammar_check(g, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 36, &e) && !e.msg[0]) abort();
    ht_grammar_close(g);
    return 0;
}
