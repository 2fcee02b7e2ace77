/* rx.c - `Split` patterns that have no hand-written splitter, through pcre2.
 *
 * Patterns of tokenizer.json are written for Oniguruma. Where the two engines read the same text
 * differently the pattern is rewritten (\s, \w, \d, \v, \uHHHH) or refused (nested sets, &&, \h,
 * \b, {n,m}+, (?m), verbs): a pattern is never run with another meaning. The interpreter is used,
 * not the JIT: its match limit bounds the work of a hostile pattern, and no page is made
 * executable. */
#include "core/arena.h"
#include "core/buf.h"
#include "core/utf8.h"
#include "tok/split.h"
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { MATCH_LIMIT = 20000000, HEAP_LIMIT_KIB = 65536 };
#define SET_SPACE "\\x{9}-\\x{d}\\x{85}\\p{Z}" /* White_Space; pcre2's own \s has U+180E too */
#define SET_WORD  "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"

struct tok_rx {
    pcre2_general_context *mem;
    pcre2_code *code;
    pcre2_match_context *limits;
};
struct tok_rx_work {
    pcre2_match_data *data;
};

static void *mem_get(size_t n, void *unused)
{
    (void)unused;
    return ht_mem_alloc(n);
}

static void mem_put(void *p, void *unused)
{
    (void)unused;
    ht_mem_free(p);
}

typedef struct {
    const char *s;
    size_t n, i;
    ht_buf *out;
    bool in_set;
    ht_err *e;
} rewrite;

static int refuse(rewrite *r, const char *what)
{
    return HT_FAIL(r->e, HT_EUNSUPPORTED,
                   "pre-tokenizer pattern, byte %zu: %s is not supported; name a known "
                   "pre-tokenizer with --pre NAME",
                   r->i, what);
}

/* \p{..} \P{..} \x{..}: copied with its braces; also \pL. */
static int copy_braced(rewrite *r)
{
    size_t j = r->i + 2;
    if (j < r->n && r->s[j] == '{') {
        while (j < r->n && r->s[j] != '}') j++;
        if (j == r->n) return refuse(r, "an escape without its closing brace");
    } else if (r->s[r->i + 1] == 'x') {
        j++;
    }
    if (j >= r->n) return refuse(r, "an unfinished escape");
    ht_buf_add(r->out, r->s + r->i, j + 1 - r->i);
    r->i = j + 1;
    return 0;
}

static void put_set(rewrite *r, const char *set, bool negate)
{
    if (!r->in_set) ht_buf_str(r->out, negate ? "[^" : "[");
    ht_buf_str(r->out, set);
    if (!r->in_set) ht_buf_str(r->out, "]");
    r->i += 2;
}

/* At a backslash. */
static int escape(rewrite *r)
{
    if (r->i + 1 >= r->n) return refuse(r, "a backslash at the end");
    char c = r->s[r->i + 1];
    switch (c) {
    case 's': put_set(r, SET_SPACE, false); return 0;
    case 'S': /* in a set: pcre2's own \S plus the character it wrongly leaves out */
        put_set(r, r->in_set ? "\\S\\x{180e}" : SET_SPACE, true);
        return 0;
    case 'w': put_set(r, SET_WORD, false); return 0;
    case 'W':
        if (r->in_set) return refuse(r, "\\W inside [...]");
        put_set(r, SET_WORD, true);
        return 0;
    case 'd': put_set(r, "\\p{Nd}", false); return 0;
    case 'D': put_set(r, r->in_set ? "\\P{Nd}" : "\\p{Nd}", true); return 0;
    case 'v': ht_buf_str(r->out, "\\x{b}"); break;
    case 'u':
        if (r->n - r->i < 6) return refuse(r, "an unfinished \\u");
        ht_buf_fmt(r->out, "\\x{%.4s}", r->s + r->i + 2);
        r->i += 6;
        return 0;
    case 'p':
    case 'P':
    case 'x': return copy_braced(r);
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'a':
    case 'e': ht_buf_add(r->out, r->s + r->i, 2); break;
    case 'A':
    case 'z':
        if (r->in_set) return refuse(r, "an anchor inside [...]");
        ht_buf_add(r->out, r->s + r->i, 2);
        break;
    default:
        if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c & 0x80)
            return refuse(r, "this escape");
        ht_buf_add(r->out, r->s + r->i, 2);
    }
    r->i += 2;
    return 0;
}

/* At '(' : a group that both engines read alike. */
static int group(rewrite *r)
{
    static const char *const ok[] = {"(?:", "(?=",  "(?!",  "(?<=",  "(?<!",
                                     "(?>", "(?i:", "(?i)", "(?-i:", "(?-i)"};
    size_t len = 1;
    if (r->n - r->i > 1 && r->s[r->i + 1] == '*') return refuse(r, "a verb (*...)");
    if (r->n - r->i > 1 && r->s[r->i + 1] == '?') {
        len = 0;
        for (size_t k = 0; k < sizeof ok / sizeof *ok; k++) {
            size_t m = strlen(ok[k]);
            if (r->n - r->i >= m && !memcmp(r->s + r->i, ok[k], m)) len = m;
        }
        if (!len) return refuse(r, "this kind of group");
    }
    ht_buf_add(r->out, r->s + r->i, len);
    r->i += len;
    return 0;
}

/* At '{' outside a set: a quantifier is copied; Oniguruma reads {n,m}+ as a repeat of a repeat,
 * pcre2 as possessive. */
static int quantifier(rewrite *r)
{
    size_t j = r->i + 1;
    while (j < r->n && ((r->s[j] >= '0' && r->s[j] <= '9') || r->s[j] == ',')) j++;
    if (j >= r->n || r->s[j] != '}' || j == r->i + 1) return refuse(r, "a bare {");
    if (j + 1 < r->n && r->s[j + 1] == '+') return refuse(r, "{n,m}+");
    ht_buf_add(r->out, r->s + r->i, j + 1 - r->i);
    r->i = j + 1;
    return 0;
}

/* At '[' outside a set: opens one. A ']' first in the set is a literal for pcre2 only. */
static int open_set(rewrite *r)
{
    size_t j = r->i + 1 + (r->i + 1 < r->n && r->s[r->i + 1] == '^');
    if (j < r->n && r->s[j] == ']') return refuse(r, "an empty [...]");
    ht_buf_add(r->out, r->s + r->i, j - r->i);
    r->i = j;
    r->in_set = true;
    return 0;
}

static int rewrite_all(rewrite *r)
{
    while (r->i < r->n) {
        char c = r->s[r->i];
        if (c == '\\') {
            HT_TRY(escape(r));
        } else if (r->in_set) {
            if (c == '[') return refuse(r, "a set inside a set");
            if (c == '&' && r->i + 1 < r->n && r->s[r->i + 1] == '&')
                return refuse(r, "an intersection &&");
            r->in_set = c != ']';
            ht_buf_char(r->out, c);
            r->i++;
        } else if (c == '(') {
            HT_TRY(group(r));
        } else if (c == '[') {
            HT_TRY(open_set(r));
        } else if (c == '{') {
            HT_TRY(quantifier(r));
        } else {
            ht_buf_char(r->out, c);
            r->i++;
        }
    }
    return ht_buf_ok(r->out, "pre-tokenizer pattern", r->e);
}

static int compile(tok_rx *rx, const ht_buf *pattern, ht_err *e)
{
    int code = 0;
    PCRE2_SIZE where = 0;
    pcre2_compile_context *cc = pcre2_compile_context_create(rx->mem);
    if (!cc) return HT_FAIL(e, HT_ENOMEM, "no memory for a pre-tokenizer pattern");
    pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    /* MULTILINE: ^ and $ are line anchors in Oniguruma's Ruby syntax. */
    rx->code = pcre2_compile((PCRE2_SPTR)pattern->p, pattern->n,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &where, cc);
    pcre2_compile_context_free(cc);
    if (rx->code) return 0;
    PCRE2_UCHAR text[128] = {0};
    pcre2_get_error_message(code, text, sizeof text);
    if (code == PCRE2_ERROR_HEAP_FAILED)
        return HT_FAIL(e, HT_ENOMEM, "no memory for a pre-tokenizer pattern");
    return HT_FAIL(e, HT_EFORMAT,
                   "pre-tokenizer pattern (rewritten) is wrong at byte %zu: %s; name a known "
                   "pre-tokenizer with --pre NAME",
                   (size_t)where, (const char *)text);
}

/* Compile pattern[0..n). HT_EUNSUPPORTED: it means something pcre2 cannot be told; HT_EFORMAT: it
 * is not a pattern. */
int tok__rx_new(tok_rx **out, const char *pattern, size_t n, ht_err *e)
{
    *out = NULL;
    if (n > TOK_MAX_PATTERN)
        return HT_FAIL(e, HT_EUNSUPPORTED, "pre-tokenizer pattern of %zu bytes is over %d", n,
                       TOK_MAX_PATTERN);
    if (ht_utf8_valid(pattern, n) != n)
        return HT_FAIL(e, HT_EFORMAT, "pre-tokenizer pattern is not UTF-8");
    tok_rx *rx = ht_mem_alloc(sizeof *rx);
    if (!rx) return HT_FAIL(e, HT_ENOMEM, "no memory for a pre-tokenizer pattern");
    ht_buf b;
    ht_buf_init(&b, 16 * TOK_MAX_PATTERN);
    int rc = rewrite_all(&(rewrite){.s = pattern, .n = n, .out = &b, .e = e});
    if (!rc) {
        rx->mem = pcre2_general_context_create(mem_get, mem_put, NULL);
        rx->limits = rx->mem ? pcre2_match_context_create(rx->mem) : NULL;
        if (!rx->limits) rc = HT_FAIL(e, HT_ENOMEM, "no memory for a pre-tokenizer pattern");
    }
    if (!rc) {
        pcre2_set_match_limit(rx->limits, MATCH_LIMIT);
        pcre2_set_heap_limit(rx->limits, HEAP_LIMIT_KIB);
        rc = compile(rx, &b, e);
    }
    ht_buf_done(&b);
    if (rc) tok__rx_free(rx);
    else *out = rx;
    return rc;
}

void tok__rx_free(tok_rx *rx)
{
    if (!rx) return;
    pcre2_code_free(rx->code);
    pcre2_match_context_free(rx->limits);
    pcre2_general_context_free(rx->mem);
    ht_mem_free(rx);
}

int tok__rx_work_new(tok_rx_work **out, const tok_rx *rx, ht_err *e)
{
    *out = NULL;
    tok_rx_work *w = ht_mem_alloc(sizeof *w);
    if (!w) return HT_FAIL(e, HT_ENOMEM, "no memory for pattern matching");
    w->data = pcre2_match_data_create(1, rx->mem);
    if (!w->data) {
        ht_mem_free(w);
        return HT_FAIL(e, HT_ENOMEM, "no memory for pattern matching");
    }
    *out = w;
    return 0;
}

void tok__rx_work_free(tok_rx_work *w)
{
    if (!w) return;
    pcre2_match_data_free(w->data);
    ht_mem_free(w);
}

/* s[0..n) must be well-formed UTF-8: it is not checked again for every match. */
int tok__rx_next(const tok_rx *rx, tok_rx_work *w, const char *s, size_t n, size_t from, size_t *a,
                 size_t *b, ht_err *e)
{
    while (from < n) {
        int rc =
            pcre2_match(rx->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, w->data, rx->limits);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc == PCRE2_ERROR_NOMEMORY)
            return HT_FAIL(e, HT_ENOMEM, "no memory for pattern matching");
        if (rc < 0)
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "the pre-tokenizer pattern needs too many steps on this text (pcre2 "
                           "error %d at byte %zu of a piece)",
                           rc, from);
        const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(w->data);
        if (ov[1] > ov[0] && ov[1] > from) {
            *a = ov[0] < from ? from : ov[0]; /* \K is refused, so this is only a guard */
            *b = ov[1];
            return 0;
        }
        uint32_t cp;
        unsigned len = ht_utf8_next(s + from, n - from, &cp);
        from += len ? len : 1; /* an empty match: try one character on */
    }
    *a = *b = n;
    return 0;
}
