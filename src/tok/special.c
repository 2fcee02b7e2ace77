/* special.c - finding the text of special and user-defined tokens: longest first at every position.
 * Candidates lie sorted by text; at depth d the range of those that share the d bytes read so far
 * is narrowed by binary search, so a position costs at most (longest candidate) x log(candidates).
 * */
#include "tok/tok_int.h"
#include <string.h>

/* First candidate in [lo, hi) whose byte at depth is >= c; all share the bytes before, and a text
 * that ends at depth sorts first. */
static uint32_t lower(const ht_tok *t, const tok_specials *sp, uint32_t lo, uint32_t hi,
                      size_t depth, int c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        tok_text x = t->text[sp->id[mid]];
        int b = depth < x.n ? (unsigned char)x.s[depth] : -1;
        if (b < c) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

size_t tok__special_at(const ht_tok *t, const tok_specials *sp, const char *s, size_t n,
                       size_t n_control, uint32_t *id)
{
    unsigned char c = (unsigned char)s[0];
    uint32_t lo = sp->first[c], hi = sp->first[c + 1];
    size_t best = 0;
    for (size_t d = 1; lo < hi; d++) {
        if (t->text[sp->id[lo]].n == d) { /* texts are unique: at most one ends here */
            if (t->type[sp->id[lo]] == TOK_USER || d <= n_control) {
                best = d;
                *id = sp->id[lo];
            }
            lo++;
        }
        if (d >= n) break;
        lo = lower(t, sp, lo, hi, d, (unsigned char)s[d]);
        hi = lower(t, sp, lo, hi, d, (unsigned char)s[d] + 1);
    }
    return best;
}

static bool before(const ht_tok *t, uint32_t a, uint32_t b)
{
    tok_text x = t->text[a], y = t->text[b];
    int c = memcmp(x.s, y.s, x.n < y.n ? x.n : y.n);
    return c < 0 || (c == 0 && x.n < y.n);
}

/* Heap sort: qsort's comparison cannot see the texts without a global. */
static void sort_by_text(const ht_tok *t, uint32_t *id, uint32_t n)
{
    for (uint32_t end = n, start = n / 2; end > 1;) {
        uint32_t v, i;
        if (start) {
            v = id[i = --start];
        } else {
            v = id[--end];
            id[end] = id[0];
            i = 0;
        }
        for (uint32_t c; (c = 2 * i + 1) < end; i = c) {
            if (c + 1 < end && before(t, id[c], id[c + 1])) c++;
            if (!before(t, v, id[c])) break;
            id[i] = id[c];
        }
        id[i] = v;
    }
}

static int fill(ht_tok *t, tok_specials *sp, bool normalized, ht_err *e)
{
    uint32_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (uint32_t i = 0; i < t->n; i++) {
            uint8_t ty = t->type[i];
            if (ty != TOK_CONTROL && ty != TOK_UNKNOWN && ty != TOK_USER) continue;
            if (!t->text[i].n || !!(t->added[i] & TOK_A_NORMALIZED) != normalized) continue;
            if (ht_tok_find(t, t->text[i].s, t->text[i].n) != (int32_t)i)
                continue; /* a duplicate */
            if (pass) sp->id[n] = i;
            n++;
        }
        if (pass) break;
        sp->id = ht_arena_array(t->arena, n, sizeof *sp->id);
        if (!sp->id) return HT_FAIL(e, HT_ENOMEM, "no memory for %u special tokens", n);
    }
    sp->n = n;
    sort_by_text(t, sp->id, n);
    uint32_t k = 0;
    for (unsigned b = 0; b <= 256; b++) {
        while (k < n && (unsigned char)t->text[sp->id[k]].s[0] < b) k++;
        sp->first[b] = k;
    }
    return 0;
}

/* Build t->raw and t->norm from type, added and text; needs text_tab. */
int tok__special_index(ht_tok *t, ht_err *e)
{
    HT_TRY(fill(t, &t->raw, false, e));
    return fill(t, &t->norm, true, e);
}
