/* utf8.c - see utf8.h. The table of well-formed sequences is RFC 3629 section 4. */
#include "core/utf8.h"

/* Bytes that the sequence led by c has, and the range its second byte must be in; 0: c leads none.
 * The narrowed ranges exclude overlongs (E0, F0), surrogates (ED) and values past 10FFFF (F4). */
static unsigned lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (c < 0x80) return 1;
    if (c < 0xc2) return 0;
    if (c < 0xe0) return 2;
    if (c < 0xf0) {
        if (c == 0xe0) *lo = 0xa0;
        if (c == 0xed) *hi = 0x9f;
        return 3;
    }
    if (c > 0xf4) return 0;
    if (c == 0xf0) *lo = 0x90;
    if (c == 0xf4) *hi = 0x8f;
    return 4;
}

unsigned ht_utf8_next(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    unsigned char lo, hi;
    *cp = 0xfffd;
    if (!n) return 0;
    unsigned len = lead(p[0], &lo, &hi);
    if (!len || len > n) return 0;
    if (len == 1) {
        *cp = p[0];
        return 1;
    }
    if (p[1] < lo || p[1] > hi) return 0;
    uint32_t v = (uint32_t)(p[0] & (0xffu >> (len + 1))) << 6 | (p[1] & 0x3fu);
    for (unsigned i = 2; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        v = v << 6 | (p[i] & 0x3fu);
    }
    *cp = v;
    return len;
}

unsigned ht_utf8_put(uint32_t cp, char out[4])
{
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) cp = 0xfffd;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    unsigned len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (unsigned i = len - 1; i; i--, cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)((0xf00u >> len & 0xf0) | cp); /* 110xxxxx, 1110xxxx, 11110xxx */
    return len;
}

size_t ht_utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    uint32_t cp;
    while (i < n) {
        unsigned len = ht_utf8_next(s + i, n - i, &cp);
        if (!len) break;
        i += len;
    }
    return i;
}

size_t ht_utf8_whole(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    /* A cut-off code point is at most three bytes: look for its lead byte there. */
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = p[n - back], lo, hi;
        if ((c & 0xc0) == 0x80) continue;
        unsigned len = lead(c, &lo, &hi);
        if (len <= back) return n; /* complete, or no lead byte at all */
        if (back > 1 && (p[n - back + 1] < lo || p[n - back + 1] > hi)) return n;
        return n - back;
    }
    return n;
}
