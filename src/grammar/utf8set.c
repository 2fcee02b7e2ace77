/* utf8set.c - ranges of code points as byte sequences. A range is cut where the number of bytes
 * changes and where a prefix's continuation bytes do not run from 80 to BF; what is left is a
 * product of byte ranges. */
#include "core/utf8.h"
#include "grammar/nfa.h"
#include <stdlib.h>
#include <string.h>

static int by_lo(const void *a, const void *b)
{
    const grammar__cps *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

size_t grammar__cps_norm(grammar__cps *r, size_t n)
{
    size_t k = 0;
    if (n) qsort(r, n, sizeof *r, by_lo);
    for (size_t i = 0; i < n; i++) {
        if (k > 0 && r[i].lo <= r[k - 1].hi + 1) {
            if (r[i].hi > r[k - 1].hi) r[k - 1].hi = r[i].hi;
        } else {
            r[k++] = r[i];
        }
    }
    return k;
}

size_t grammar__cps_not(const grammar__cps *r, size_t n, grammar__cps *out)
{
    uint32_t at = 0;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (r[i].lo > at) out[k++] = (grammar__cps){at, r[i].lo - 1};
        at = r[i].hi + 1;
    }
    if (at <= 0x10ffff) out[k++] = (grammar__cps){at, 0x10ffff};
    return k;
}

/* Both ends have n bytes and differ only from byte i on, where every later byte of lo is 80 and of
 * hi is BF: a product. Otherwise cut at the first boundary found from the end. */
static uint32_t sequence(grammar__nfa *g, uint32_t lo, uint32_t hi, uint32_t next)
{
    char a[4], b[4];
    const unsigned n = ht_utf8_put(lo, a);
    (void)ht_utf8_put(hi, b);
    for (unsigned i = n; i-- > 0;) next = grammar__range(g, (uint8_t)a[i], (uint8_t)b[i], next);
    return next;
}

/* Cut [lo, hi] and chain the pieces as alternatives onto `rest` (0: none yet). */
static uint32_t pieces(grammar__nfa *g, uint32_t lo, uint32_t hi, uint32_t next, uint32_t rest,
                       bool *any)
{
    static const uint32_t last[] = {0x7f, 0x7ff, 0xd7ff, 0xffff, 0x10ffff};
    while (lo <= hi && grammar__ok(g)) {
        if (lo >= 0xd800 && lo <= 0xdfff) {
            lo = 0xe000;
            continue;
        }
        uint32_t end = hi;
        for (unsigned i = 0; i < 5; i++)
            if (lo <= last[i] && end > last[i]) end = last[i];
        /* Low 6, 12, 18 bits: begin on a multiple or end before the next one. */
        for (unsigned bits = 6; lo > 0x7f && bits <= 18; bits += 6) {
            const uint32_t m = ((uint32_t)1 << bits) - 1;
            if ((lo & ~m) == (end & ~m)) break;
            if (lo & m) end = lo | m;
            else if ((end & m) != m) end = (end & ~m) - 1;
        }
        const uint32_t one = sequence(g, lo, end, next);
        rest = *any ? grammar__alt(g, one, rest) : one;
        *any = true;
        lo = end + 1;
    }
    return rest;
}

uint32_t grammar__codepoint(grammar__nfa *g, const grammar__cps *r, size_t n, uint32_t next)
{
    uint32_t rest = 0;
    bool any = false;
    grammar__set ascii = {{0}};
    bool has_ascii = false;
    for (size_t i = 0; i < n; i++)
        for (uint32_t c = r[i].lo; c <= r[i].hi && c < 0x80; c++) {
            grammar__set_add(&ascii, c);
            has_ascii = true;
        }
    if (has_ascii) {
        rest = grammar__bytes(g, &ascii, next);
        any = true;
    }
    for (size_t i = 0; i < n; i++)
        if (r[i].hi >= 0x80)
            rest = pieces(g, r[i].lo < 0x80 ? 0x80 : r[i].lo, r[i].hi, next, rest, &any);
    if (!any) grammar__fail(g, HT_EFORMAT, "a character class that holds no character");
    return rest;
}
