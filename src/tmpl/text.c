/* text.c - strings with provenance: builders, searching, trimming, case, lines. Positions that a
 * template sees count code points, as Python's do; inside they are bytes. Neighbours: value.h (the
 * representation), unicode.c (tables). */
#include "core/utf8.h"
#include "tmpl/eval.h"
#include <stdint.h>
#include <string.h>

/* ---- builders -------------------------------------------------------------------------------- */

/* Room for n more bytes; marks are made when a byte that differs arrives. */
static int reserve(tctx *cx, tsb *b, size_t n, bool mixed)
{
    size_t need;
    if (!ht_add_ok(b->n, n, &need) || need > cx->max_output)
        return T_FAIL(cx, HT_ENOMEM, "text longer than %zu bytes", cx->max_output);
    if (need > b->cap) {
        size_t cap = b->cap ? b->cap : 64;
        while (cap < need) cap *= 2;
        char *p;
        uint8_t *m = NULL;
        T_NEW(cx, p, cap);
        if (b->m || mixed) T_NEW(cx, m, cap);
        if (b->n) memcpy(p, b->p, b->n);
        if (b->m) memcpy(m, b->m, b->n);
        if (!b->m && m) memset(m, b->in, b->n);
        b->p = p;
        b->m = m;
        b->cap = cap;
    } else if (mixed && !b->m) {
        T_NEW(cx, b->m, b->cap);
        memset(b->m, b->in, b->n);
    }
    return tmpl__cost_bytes(cx, n);
}

int tmpl__sb_add(tctx *cx, tsb *b, const char *p, size_t n, bool in)
{
    if (!n) return 0;
    if (!b->n) b->in = in;
    HT_TRY(reserve(cx, b, n, b->in != in));
    memcpy(b->p + b->n, p, n);
    if (b->m) memset(b->m + b->n, in, n);
    b->n += n;
    return 0;
}

int tmpl__sb_lit(tctx *cx, tsb *b, const char *s)
{
    return tmpl__sb_add(cx, b, s, strlen(s), false);
}

int tmpl__sb_str(tctx *cx, tsb *b, const tstr *s, size_t from, size_t n)
{
    if (!s->m) return tmpl__sb_add(cx, b, s->p + from, n, s->in);
    if (!n) return 0;
    HT_TRY(reserve(cx, b, n, true));
    memcpy(b->p + b->n, s->p + from, n);
    memcpy(b->m + b->n, s->m + from, n);
    b->n += n;
    return 0;
}

int tmpl__sb_val(tctx *cx, tsb *b, tval str)
{
    return tmpl__sb_str(cx, b, str.u.s, 0, str.u.s->n);
}

int tmpl__sb_done(tctx *cx, tsb *b, tval *out)
{
    tstr *s;
    T_NEW(cx, s, 1);
    *s = (tstr){.p = b->p ? b->p : "", .n = b->n, .m = b->m, .in = b->in};
    *out = (tval){.t = TV_STR, .u.s = s};
    return 0;
}

int tmpl__str_new(tctx *cx, const char *p, size_t n, bool in, tval *out)
{
    tstr *s;
    T_NEW(cx, s, 1);
    *s = (tstr){.p = p, .n = n, .in = in};
    *out = (tval){.t = TV_STR, .u.s = s};
    return 0;
}

int tmpl__str_cut(tctx *cx, const tstr *src, size_t from, size_t n, tval *out)
{
    tstr *s;
    T_NEW(cx, s, 1);
    *s = (tstr){.p = src->p + from, .n = n, .m = src->m ? src->m + from : NULL, .in = src->in};
    *out = (tval){.t = TV_STR, .u.s = s};
    return 0;
}

/* ---- looking --------------------------------------------------------------------------------- */

bool tmpl__str_eq(const tstr *a, const tstr *b)
{
    return a->n == b->n && (!a->n || memcmp(a->p, b->p, a->n) == 0);
}

bool tmpl__str_is(const tstr *s, const char *word)
{
    return s->n == strlen(word) && memcmp(s->p, word, s->n) == 0;
}

bool tmpl__str_marked(const tstr *s)
{
    return s->m ? memchr(s->m, 1, s->n) != NULL : s->in && s->n;
}

bool tmpl__mark_at(const tstr *s, size_t i)
{
    return s->m ? s->m[i] != 0 : s->in;
}

size_t tmpl__str_len(const tstr *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) n += ((unsigned char)s->p[i] & 0xC0) != 0x80;
    return n;
}

size_t tmpl__str_off(const tstr *s, size_t cp)
{
    size_t i = 0;
    while (i < s->n && cp) {
        i++;
        while (i < s->n && ((unsigned char)s->p[i] & 0xC0) == 0x80) i++;
        cp--;
    }
    return i;
}

/* memchr on the first byte, then compare: the worst case is quadratic, so callers charge steps for
 * it through tmpl__cost_bytes(needle) per candidate in replace and count; needles here are
 * short. */
size_t tmpl__str_find(const tstr *hay, size_t from, const tstr *needle)
{
    if (!needle->n) return from <= hay->n ? from : SIZE_MAX;
    while (from < hay->n && hay->n - from >= needle->n) {
        const char *hit = memchr(hay->p + from, needle->p[0], hay->n - from - needle->n + 1);
        if (!hit) return SIZE_MAX;
        from = (size_t)(hit - hay->p);
        if (memcmp(hit, needle->p, needle->n) == 0) return from;
        from++;
    }
    return SIZE_MAX;
}

bool tmpl__is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* ---- trimming -------------------------------------------------------------------------------- */

static bool in_set(const tstr *chars, const char *p, unsigned k, uint32_t cp)
{
    if (!chars) return tmpl__is_space(cp);
    const tstr one = {.p = p, .n = k};
    return tmpl__str_find(chars, 0, &one) != SIZE_MAX; /* UTF-8 is self-synchronising */
}

int tmpl__trim(tctx *cx, const tstr *s, const tstr *chars, int sides, tval *out)
{
    size_t from = 0, to = s->n;
    uint32_t cp;
    HT_TRY(tmpl__cost_bytes(cx, s->n));
    if (chars && chars->n > 256) return T_FAIL(cx, HT_EUNSUPPORTED, "trimming more than 256 bytes");
    while ((sides & TRIM_LEFT) && from < to) {
        unsigned k = ht_utf8_next(s->p + from, to - from, &cp);
        if (!k || !in_set(chars, s->p + from, k, cp)) break;
        from += k;
    }
    while ((sides & TRIM_RIGHT) && to > from) {
        size_t i = to - 1;
        while (i > from && ((unsigned char)s->p[i] & 0xC0) == 0x80) i--;
        unsigned k = ht_utf8_next(s->p + i, to - i, &cp);
        if (!k || !in_set(chars, s->p + i, k, cp)) break;
        to = i;
    }
    return tmpl__str_cut(cx, s, from, to - from, out);
}

/* ---- case ------------------------------------------------------------------------------------ */

enum { SIGMA = 0x3A3, SMALL_SIGMA = 0x3C3, FINAL_SIGMA = 0x3C2 };

/* Python's rule for a capital sigma: final when a cased letter is before it and none follows,
 * with the characters that do not interrupt a word skipped. */
static bool is_final_sigma(const tstr *s, size_t at, size_t k)
{
    static const char skip[] = "'.:^`\xC2\xAD";
    uint32_t cp;
    size_t i = at;
    bool before = false;
    while (i > 0) {
        do i--;
        while (i > 0 && ((unsigned char)s->p[i] & 0xC0) == 0x80);
        unsigned len = ht_utf8_next(s->p + i, s->n - i, &cp);
        if (len == 1 && strchr(skip, s->p[i]) && s->p[i]) continue;
        before = tmpl__cp_cased(cp);
        break;
    }
    if (!before) return false;
    for (i = at + k; i < s->n;) {
        unsigned len = ht_utf8_next(s->p + i, s->n - i, &cp);
        if (!(len == 1 && strchr(skip, s->p[i]) && s->p[i])) return !tmpl__cp_cased(cp);
        i += len ? len : 1;
    }
    return true;
}

/* What Jinja's title filter takes as the break between words. */
static bool breaks_word(uint32_t cp)
{
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || tmpl__is_space(cp);
}

int tmpl__recase(tctx *cx, const tstr *s, enum tmpl__case how, tval *out)
{
    tsb b = {0};
    bool start = true;
    for (size_t i = 0; i < s->n;) {
        uint32_t cp, to[3];
        unsigned k = ht_utf8_next(s->p + i, s->n - i, &cp);
        enum tmpl__case one = how;
        if (how == CASE_TITLE) one = start ? CASE_UPPER : CASE_LOWER;
        if (how == CASE_CAPITALIZE || how == CASE_WORDS) one = start ? CASE_TITLE : CASE_LOWER;
        if (!k) k = 1;
        unsigned n_to = tmpl__cp_case(cp, one, to);
        if (cp == SIGMA && one == CASE_LOWER && is_final_sigma(s, i, k)) to[0] = FINAL_SIGMA;
        for (unsigned j = 0; j < n_to; j++) {
            char utf[4];
            HT_TRY(tmpl__sb_add(cx, &b, utf, ht_utf8_put(to[j], utf), tmpl__mark_at(s, i)));
        }
        start = how == CASE_TITLE ? breaks_word(cp) : how == CASE_WORDS && !tmpl__cp_cased(cp);
        i += k;
    }
    return tmpl__sb_done(cx, &b, out);
}

/* ---- replace, lines -------------------------------------------------------------------------- */

int tmpl__replace(tctx *cx, const tstr *s, const tstr *old, const tstr *new_s, int64_t count,
                  tval *out)
{
    tsb b = {0};
    size_t at = 0;
    while (count != 0) {
        size_t hit = tmpl__str_find(s, at, old);
        if (hit == SIZE_MAX) break;
        HT_TRY(tmpl__cost(cx, 1));
        HT_TRY(tmpl__sb_str(cx, &b, s, at, hit - at));
        HT_TRY(tmpl__sb_str(cx, &b, new_s, 0, new_s->n));
        at = hit + old->n;
        if (!old->n) { /* an empty pattern matches between characters and at the end */
            if (at >= s->n) break;
            const tstr rest = {.p = s->p + at, .n = s->n - at};
            size_t k = tmpl__str_off(&rest, 1);
            HT_TRY(tmpl__sb_str(cx, &b, s, at, k));
            at += k;
        }
        if (count > 0) count--;
    }
    HT_TRY(tmpl__sb_str(cx, &b, s, at, s->n - at));
    return tmpl__sb_done(cx, &b, out);
}

/* Length of the line break at s[i] (str.splitlines), or 0. */
static unsigned line_break(const tstr *s, size_t i)
{
    uint32_t cp;
    unsigned k = ht_utf8_next(s->p + i, s->n - i, &cp);
    if (cp == '\r' && i + 1 < s->n && s->p[i + 1] == '\n') return 2;
    bool is = (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
              cp == 0x2029;
    return is ? k : 0;
}

int tmpl__lines(tctx *cx, const tstr *s, bool keep_ends, tval *out)
{
    tlist *l;
    size_t from = 0;
    HT_TRY(tmpl__list_new(cx, 4, &l));
    HT_TRY(tmpl__cost_bytes(cx, s->n));
    for (size_t i = 0; i < s->n;) {
        unsigned k = line_break(s, i);
        if (!k) {
            i++;
            continue;
        }
        tval line;
        HT_TRY(tmpl__str_cut(cx, s, from, i - from + (keep_ends ? k : 0), &line));
        HT_TRY(tmpl__list_push(cx, l, line));
        i += k;
        from = i;
    }
    if (from < s->n) {
        tval line;
        HT_TRY(tmpl__str_cut(cx, s, from, s->n - from, &line));
        HT_TRY(tmpl__list_push(cx, l, line));
    }
    *out = tmpl__of_list(l);
    return 0;
}
