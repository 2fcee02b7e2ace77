/* nfc.c - Normalization Form C (UAX 15), decompositions and compositions by utf8proc. The
 * reordering of combining marks is done here: utf8proc's is quadratic in the length of a run of
 * marks, and the text is anybody's. */
#include "core/utf8.h"
#include "tok/tok_int.h"
#include "tok/unicode.h"
#include <string.h>
#include <utf8proc.h>

enum { OPTIONS = UTF8PROC_STABLE | UTF8PROC_COMPOSE, SHORT_RUN = 16 };

bool tok__needs_nfc(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp, bit;
        i += tok__next(s + i, n - i, &cp, &bit);
        if (!tok__nfc_inert(cp)) return true;
    }
    return false;
}

void tok__nfc_done(tok_nfc *w)
{
    ht_buf_done(&w->out);
    ht_mem_free(w->cp);
    ht_mem_free(w->tmp);
    *w = (tok_nfc){0};
}

static int room(int32_t **p, size_t *cap, size_t need, ht_err *e)
{
    if (need <= *cap) return 0;
    size_t want = *cap * 2 > need ? *cap * 2 : need + 64, bytes;
    int32_t *q = ht_mul_ok(want, sizeof *q, &bytes) ? ht_mem_resize(*p, bytes) : NULL;
    if (!q) return HT_FAIL(e, HT_ENOMEM, "no memory to normalise %zu code points", need);
    *p = q;
    *cap = want;
    return 0;
}

static unsigned marks(int32_t cp)
{
    return (unsigned)utf8proc_get_property(cp)->combining_class;
}

/* Stable sort of a run of marks by combining class: insertion for a short one, counting else. */
static int sort_marks(tok_nfc *w, int32_t *cp, size_t n, ht_err *e)
{
    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++) {
            int32_t v = cp[i];
            size_t j = i;
            for (; j && marks(cp[j - 1]) > marks(v); j--) cp[j] = cp[j - 1];
            cp[j] = v;
        }
        return 0;
    }
    size_t at[257] = {0};
    HT_TRY(room(&w->tmp, &w->cap_tmp, n, e));
    for (size_t i = 0; i < n; i++) at[marks(cp[i]) + 1]++;
    for (unsigned c = 1; c < 257; c++) at[c] += at[c - 1];
    for (size_t i = 0; i < n; i++) w->tmp[at[marks(cp[i])]++] = cp[i];
    memcpy(cp, w->tmp, n * sizeof *cp);
    return 0;
}

/* Canonical decomposition of well-formed s[0..n) into w->cp, marks in order; *count code points. */
static int decompose(tok_nfc *w, const char *s, size_t n, size_t *count, ht_err *e)
{
    size_t k = 0, run = 0; /* run: first mark of the run that ends at k */
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int bound = 0;
        i += ht_utf8_next(s + i, n - i, &cp);
        HT_TRY(room(&w->cp, &w->cap_cp, k + 32, e)); /* no decomposition is longer than 4 */
        utf8proc_ssize_t len = utf8proc_decompose_char((utf8proc_int32_t)cp, w->cp + k, 32,
                                                       (utf8proc_option_t)OPTIONS, &bound);
        if (len < 0 || len > 32)
            return HT_FAIL(e, HT_EFORMAT, "no decomposition of U+%04X: %s", (unsigned)cp,
                           utf8proc_errmsg(len));
        for (size_t end = k + (size_t)len; k < end; k++) {
            if (marks(w->cp[k])) continue;
            HT_TRY(sort_marks(w, w->cp + run, k - run, e));
            run = k + 1;
        }
    }
    HT_TRY(sort_marks(w, w->cp + run, k - run, e));
    *count = k;
    return 0;
}

/* w->out = NFC of s[0..n); malformed bytes stay as they are and separate what is normalised. */
int tok__nfc(tok_nfc *w, const char *s, size_t n, ht_err *e)
{
    ht_buf_clear(&w->out);
    for (size_t i = 0; i < n;) {
        size_t len = ht_utf8_valid(s + i, n - i), count = 0;
        if (len) {
            HT_TRY(decompose(w, s + i, len, &count, e));
            /* Composes and writes UTF-8 over the code points, with a terminator. */
            HT_TRY(room(&w->cp, &w->cap_cp, count + 1, e));
            utf8proc_ssize_t out =
                utf8proc_reencode(w->cp, (utf8proc_ssize_t)count, (utf8proc_option_t)OPTIONS);
            if (out < 0)
                return HT_FAIL(e, HT_EFORMAT, "NFC of %zu bytes: %s", len, utf8proc_errmsg(out));
            ht_buf_add(&w->out, w->cp, (size_t)out);
        }
        i += len;
        if (i < n) ht_buf_char(&w->out, s[i++]);
    }
    return ht_buf_ok(&w->out, "normalised text", e);
}
