/* unicode.c - case and printability of one code point, from the generated tables. Neighbours:
 * text.c (case of strings), value.c (repr). */
#include "tmpl/eval.h"
#include "tmpl/unicode_tab.h"

static bool find_simple(const tmpl__caserange *t, unsigned n, uint32_t cp, uint32_t *out)
{
    unsigned lo = 0, hi = n;
    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;
        if (cp > t[mid].hi) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo == n || cp < t[lo].lo || (cp - t[lo].lo) % t[lo].step) return false;
    *out = (uint32_t)((int64_t)cp + t[lo].delta);
    return true;
}

static unsigned find_full(const tmpl__casefull *t, unsigned n, uint32_t cp, uint32_t out[3])
{
    for (unsigned i = 0; i < n; i++) {
        if (t[i].cp != cp) continue;
        unsigned k = 0;
        while (k < 3 && t[i].to[k]) {
            out[k] = t[i].to[k];
            k++;
        }
        return k;
    }
    return 0;
}

unsigned tmpl__cp_case(uint32_t cp, enum tmpl__case how, uint32_t out[3])
{
    out[0] = cp;
    if (cp < 0x80) {
        if (how == CASE_LOWER && cp >= 'A' && cp <= 'Z') out[0] = cp + 32;
        if (how != CASE_LOWER && cp >= 'a' && cp <= 'z') out[0] = cp - 32;
        return 1;
    }
    unsigned k = 0;
    if (how == CASE_LOWER) {
        if (!find_simple(tmpl__lower, tmpl__n_lower, cp, out))
            k = find_full(tmpl__lower_full, tmpl__n_lower_full, cp, out);
    } else if (how == CASE_UPPER) {
        if (!find_simple(tmpl__upper, tmpl__n_upper, cp, out))
            k = find_full(tmpl__upper_full, tmpl__n_upper_full, cp, out);
    } else if (!find_simple(tmpl__title, tmpl__n_title, cp, out)) {
        k = find_full(tmpl__title_full, tmpl__n_title_full, cp, out);
    }
    return k ? k : 1;
}

bool tmpl__cp_cased(uint32_t cp)
{
    uint32_t a[3], b[3];
    unsigned na = tmpl__cp_case(cp, CASE_UPPER, a), nb = tmpl__cp_case(cp, CASE_LOWER, b);
    return na != 1 || nb != 1 || a[0] != cp || b[0] != cp;
}

bool tmpl__cp_printable(uint32_t cp)
{
    if (cp < 0x80) return cp >= 0x20 && cp != 0x7F;
    unsigned lo = 0, hi = tmpl__n_unprintable;
    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;
        if (cp > tmpl__unprintable[mid].hi) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo == tmpl__n_unprintable || cp < tmpl__unprintable[lo].lo;
}
