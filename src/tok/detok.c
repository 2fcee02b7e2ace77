/* detok.c - ids to bytes, and to text in whole code points while they stream. */
#include "core/utf8.h"
#include "tok/tok_int.h"
#include <string.h>

/* A byte-level text to its bytes; a text with a character outside the map stands for itself. */
static void add_mapped(tok_text x, ht_buf *out)
{
    size_t begin = out->n;
    for (size_t i = 0; i < x.n;) {
        uint32_t cp;
        unsigned len = ht_utf8_next(x.s + i, x.n - i, &cp);
        int byte = len ? tok__cp_to_byte(cp) : -1;
        if (byte < 0) {
            if (!out->bad) out->n = begin;
            ht_buf_add(out, x.s, x.n);
            return;
        }
        ht_buf_char(out, (char)byte);
        i += len;
    }
}

static void add_spm(tok_text x, ht_buf *out)
{
    const size_t m = sizeof TOK_SPM_SPACE - 1;
    for (size_t i = 0; i < x.n;) {
        bool space = x.n - i >= m && !memcmp(x.s + i, TOK_SPM_SPACE, m);
        ht_buf_char(out, space ? ' ' : x.s[i]);
        i += space ? m : 1;
    }
}

int ht_tok_bytes(const ht_tok *t, int32_t id, bool special, ht_buf *out, ht_err *e)
{
    if (id < 0 || (uint32_t)id >= t->n)
        return HT_FAIL(e, HT_EARG, "token id %d: the vocabulary has 0..%u", id, t->n - 1);
    tok_text x = t->text[id];
    uint8_t byte;
    switch (t->type[id]) {
    case TOK_CONTROL:
    case TOK_UNKNOWN:
        if (special) ht_buf_add(out, x.s, x.n);
        break;
    case TOK_USER: ht_buf_add(out, x.s, x.n); break;
    case TOK_BYTE:
        if (tok__byte_text(x, &byte)) ht_buf_char(out, (char)byte);
        break;
    case TOK_NORMAL:
        if (t->flags & TOK_F_SPM) add_spm(x, out);
        else add_mapped(x, out);
        break;
    default: break; /* unused: nothing */
    }
    return ht_buf_ok(out, "text of tokens", e);
}

/* SPM with a space in front of the text: decoding takes it away. Byte-level decoding never does. */
static bool strips_space(const ht_tok *t)
{
    return t->flags & TOK_F_SPM && t->flags & (TOK_F_PREFIX_FIRST | TOK_F_PREFIX_ALWAYS);
}

/* Append the bytes of ids[0..n), as a text of its own: the space that an SPM encoder put in front
 * is taken away again. Malformed bytes are kept. */
int ht_tok_decode(const ht_tok *t, const int32_t *ids, size_t n, bool special, ht_buf *out,
                  ht_err *e)
{
    bool started = !strips_space(t);
    for (size_t i = 0; i < n; i++) {
        size_t begin = out->n;
        HT_TRY(ht_tok_bytes(t, ids[i], special, out, e));
        if (started || out->n == begin) continue;
        started = true;
        if (out->p[begin] == ' ')
            memmove(out->p + begin, out->p + begin + 1, out->n-- - begin); /* with its NUL */
    }
    return 0;
}

void ht_detok_init(ht_detok *d, bool special)
{
    *d = (ht_detok){.special = special};
}

/* Length of the malformed sequence at s: the longest prefix of a well-formed one, at least 1, which
 * is what one U+FFFD replaces (Unicode 16, 3.9, "maximal subparts"). s[0..n) is no whole code
 * point. */
static size_t malformed(const char *s, size_t n)
{
    size_t len = 1;
    while (len < 3 && len < n && ht_utf8_whole(s, len + 1) == 0) len++;
    return len;
}

/* Move the whole code points of s[0..n) to out, malformed ones as U+FFFD; returns what is left over
 * because it may yet become one (at most 3 bytes, none when `end`). */
static size_t put_whole(const char *s, size_t n, bool end, ht_buf *out)
{
    size_t i = 0;
    while (i < n) {
        size_t len = ht_utf8_valid(s + i, n - i);
        ht_buf_add(out, s + i, len);
        i += len;
        if (i == n) break;
        if (!end && n - i <= 3 && ht_utf8_whole(s + i, n - i) == 0) break;
        i += malformed(s + i, n - i);
        ht_buf_str(out, "\xef\xbf\xbd");
    }
    return n - i;
}

/* Bytes of id behind what is held, in out; a malformed sequence takes a detour to become U+FFFD.
 * Allocates nothing when out has room and the text is well-formed. */
int ht_detok_push(ht_detok *d, const ht_tok *t, int32_t id, ht_buf *out, ht_err *e)
{
    size_t begin = out->n, left;
    ht_buf_add(out, d->held, d->n_held);
    size_t at = out->n;
    int rc = ht_tok_bytes(t, id, d->special, out, e);
    if (rc || out->n == at) {
        if (!out->bad) out->n = begin;
        return rc;
    }
    if (!d->started && strips_space(t) && out->p[at] == ' ')
        memmove(out->p + at, out->p + at + 1, out->n-- - at);
    d->started = true;
    size_t n = out->n - begin, valid = ht_utf8_valid(out->p + begin, n);
    if (valid == n || (n - valid <= 3 && ht_utf8_whole(out->p + begin + valid, n - valid) == 0)) {
        left = n - valid;
        memcpy(d->held, out->p + begin + valid, left);
        out->n = begin + valid;
    } else {
        ht_buf b;
        ht_buf_init(&b, 2 * TOK_MAX_TEXT);
        ht_buf_add(&b, out->p + begin, n);
        rc = ht_buf_ok(&b, "generated text", e);
        out->n = begin;
        left = rc ? 0 : put_whole(b.p, b.n, false, out);
        if (left) memcpy(d->held, b.p + b.n - left, left);
        ht_buf_done(&b);
        if (!rc) rc = ht_buf_ok(out, "generated text", e);
    }
    d->n_held = left;
    if (out->p) out->p[out->n] = '\0';
    return rc;
}

void ht_detok_flush(ht_detok *d, ht_buf *out)
{
    put_whole(d->held, d->n_held, true, out);
    d->n_held = 0;
}
