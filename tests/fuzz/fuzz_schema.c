/* fuzz_schema.c - a JSON Schema: it compiles or is refused, and walks over what follows the first
 * NUL of the input and over JSON's own characters stay within bounds. */
#include "core/arena.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char probe[] = "{\"a\": [0, -1.5e3, \"\\u00e9x\", null, true, {\"b\": {}}], \"c\"";
    ht_err e = {0};
    ht_grammar *g = NULL;
    ht_matcher *m = NULL;
    const uint8_t *cut = n ? memchr(p, 0, n) : NULL;
    const size_t len = cut ? (size_t)(cut - p) : n;
    if (ht_grammar_open(&g, NULL, HT_GRAMMAR_SCHEMA, n ? (const char *)p : "", len, &e)) return 0;
    if (ht_grammar_check(g, probe, sizeof probe - 1, &e) && !e.msg[0]) abort();
    if (cut && ht_grammar_check(g, (const char *)cut + 1, n - len - 1, &e) && !e.msg[0]) abort();
    if (!ht_matcher_new(&m, g, &e)) {
        for (size_t i = 0; i < sizeof probe - 1; i++)
            if (ht_matcher_accept_text(m, probe + i, 1, &e)) break;
        (void)ht_matcher_must_end(m);
        ht_matcher_free(m);
    }
    ht_grammar_close(g);
    return 0;
}
