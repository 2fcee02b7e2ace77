/* unicode.c - see unicode.h. */
#include "tok/unicode.h"
#include "core/utf8.h"

/* Entry of cp: the last range that begins at or before it. */
static uint32_t entry(uint32_t cp)
{
    uint32_t page = cp >> 8, hi = tok__uni_page[page], lo = page ? tok__uni_page[page - 1] - 1u : 0;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (tok__uni_range[mid] >> 5 <= cp) lo = mid;
        else hi = mid;
    }
    return tok__uni_range[lo];
}

uint32_t tok__uni_bit(uint32_t cp)
{
    return cp > 0x10ffff ? UC_BIT(UC_OTHER) : UC_BIT(entry(cp) & 15);
}

bool tok__nfc_inert(uint32_t cp)
{
    return cp < 0x300 || cp > 0x10ffff || !(entry(cp) & 16);
}

unsigned tok__next(const char *s, size_t n, uint32_t *cp, uint32_t *bit)
{
    if (!((unsigned char)s[0] & 0x80)) {
        *cp = (unsigned char)s[0];
        *bit = UC_BIT(tok__uni_ascii[*cp]);
        return 1;
    }
    unsigned len = ht_utf8_next(s, n, cp);
    if (!len) {
        *bit = UC_BIT(UC_OTHER);
        return 1;
    }
    *bit = UC_BIT(entry(*cp) & 15);
    return len;
}
