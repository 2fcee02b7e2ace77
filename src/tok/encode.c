/* encode.c - text to ids: special tokens cut the text into pieces, pieces are normalised, cut by
 * the pre-tokenizer and merged.
 *
 * Segments are laid end to end and tokenised as one text; where they meet leaves no mark. Only the
 * search for control tokens looks at whose text it is: every byte of a match must come from the
 * template. So the result is that of encoding the whole, except that nothing a user writes becomes
 * a control token. User-defined tokens (type 4: "<think>", runs of spaces) are ordinary vocabulary
 * and match anywhere. */
#include "core/utf8.h"
#include "tok/tok_int.h"
#include "tok/unicode.h"
#include <string.h>

typedef struct {
    const ht_tok *t;
    ht_ids *out;
    ht_err *e;
    tok_merger m;
    tok_nfc nfc;
    ht_buf spaced; /* a piece after SPM's escape, or with a space in front */
    tok_rx_work *rx[TOK_MAX_STAGES];
    const ht_segment *seg;
    size_t n_seg;
    bool first; /* the piece begins the text */
} work;

void ht_ids_done(ht_ids *a)
{
    ht_mem_free(a->id);
    *a = (ht_ids){0};
}

int ht_ids_push(ht_ids *a, int32_t id, ht_err *e)
{
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64, bytes;
        int32_t *p = ht_mul_ok(cap, sizeof *p, &bytes) ? ht_mem_resize(a->id, bytes) : NULL;
        if (!p) return HT_FAIL(e, HT_ENOMEM, "no memory for %zu token ids", cap);
        a->id = p;
        a->cap = cap;
    }
    a->id[a->n++] = id;
    return 0;
}

/* ---- stages ---- */

static int stage(work *w, unsigned k, const char *s, size_t n);

/* A pattern stage: matches and gaps of well-formed text; malformed bytes are pieces of their own.
 * */
static int stage_rx(work *w, unsigned k, const char *s, size_t n)
{
    const tok_stage *st = &w->t->stage[k];
    if (!w->rx[k]) HT_TRY(tok__rx_work_new(&w->rx[k], st->rx, w->e));
    for (size_t i = 0; i < n;) {
        size_t valid = i + ht_utf8_valid(s + i, n - i);
        for (size_t at = 0, a, b, len = valid - i; at < len; at = b) {
            HT_TRY(tok__rx_next(st->rx, w->rx[k], s + i, len, at, &a, &b, w->e));
            if (a > at && st->kind == TOK_ST_RX) HT_TRY(stage(w, k + 1, s + i + at, a - at));
            if (b > a) HT_TRY(stage(w, k + 1, s + i + a, b - a));
        }
        i = valid;
        uint32_t cp;
        while (i < n && !ht_utf8_next(s + i, n - i, &cp)) i++;
        if (i > valid) HT_TRY(stage(w, k + 1, s + valid, i - valid));
    }
    return 0;
}

/* Cut s[0..n), n > 0, by the stages from k on; merge what comes out of the last. */
static int stage(work *w, unsigned k, const char *s, size_t n)
{
    if (k == w->t->n_stages) return tok__bpe(w->t, &w->m, s, n, w->out, w->e);
    enum tok_stage_kind kind = w->t->stage[k].kind;
    if (kind >= TOK_ST_RX) return stage_rx(w, k, s, n);
    for (size_t i = 0, len; i < n; i += len) {
        len = tok__split(kind, s + i, n - i);
        HT_TRY(stage(w, k + 1, s + i, len));
    }
    return 0;
}

/* ---- pieces without special tokens ---- */

static bool wants_prefix(const work *w, const char *s, size_t n)
{
    const size_t m = sizeof TOK_SPM_SPACE - 1;
    const ht_tok *t = w->t;
    if (!(t->flags & TOK_F_PREFIX_ALWAYS) && !(t->flags & TOK_F_PREFIX_FIRST && w->first))
        return false;
    if (!(t->flags & TOK_F_PREFIX_ABSENT)) return true;
    return s[0] != ' ' && !(t->flags & TOK_F_SPM && n >= m && !memcmp(s, TOK_SPM_SPACE, m));
}

/* SPM: spaces become U+2581, with one in front where the model wants it. */
static int spm_piece(work *w, const char *s, size_t n)
{
    bool squeeze = w->t->flags & TOK_F_SQUEEZE;
    ht_buf_clear(&w->spaced);
    if (squeeze) {
        while (n && s[0] == ' ') s++, n--;
        while (n && s[n - 1] == ' ') n--;
    }
    if (!n) return 0;
    if (wants_prefix(w, s, n)) ht_buf_str(&w->spaced, TOK_SPM_SPACE);
    for (size_t i = 0; i < n; i++) {
        if (s[i] != ' ') ht_buf_char(&w->spaced, s[i]);
        else if (!squeeze || s[i - 1] != ' ') ht_buf_str(&w->spaced, TOK_SPM_SPACE);
    }
    HT_TRY(ht_buf_ok(&w->spaced, "text with escaped spaces", w->e));
    return tok__spm(w->t, &w->m, w->spaced.p, w->spaced.n, w->out, w->e);
}

static int plain(work *w, const char *s, size_t n)
{
    if (!n) return 0;
    if (w->t->flags & TOK_F_SPM) return spm_piece(w, s, n);
    if (!wants_prefix(w, s, n)) return stage(w, 0, s, n);
    ht_buf_clear(&w->spaced);
    ht_buf_char(&w->spaced, ' ');
    ht_buf_add(&w->spaced, s, n);
    HT_TRY(ht_buf_ok(&w->spaced, "text with a space in front", w->e));
    return stage(w, 0, w->spaced.p, w->spaced.n);
}

/* ---- special tokens ---- */

/* Whose text is it: ends of the segments, for the byte positions of the whole. */
typedef struct {
    const ht_segment *seg;
    size_t n, k, begin, run_end; /* segment of the last position asked, its first byte, and the end
                                    of the template text that runs on from it (0: input)          */
} owner;

/* Bytes from `at` on that belong to the template without a break; positions must not decrease. */
static size_t template_bytes(owner *o, size_t at)
{
    while (o->k < o->n && at >= o->begin + o->seg[o->k].n) o->begin += o->seg[o->k++].n;
    if (o->k >= o->n || o->seg[o->k].from_input) return 0;
    if (o->run_end <= at) {
        size_t end = o->begin;
        for (size_t j = o->k; j < o->n && (!o->seg[j].from_input || !o->seg[j].n); j++)
            end += o->seg[j].n;
        o->run_end = end;
    }
    return o->run_end - at;
}

static bool all_template(const work *w, size_t a, size_t b)
{
    size_t begin = 0;
    for (size_t k = 0; k < w->n_seg; begin += w->seg[k++].n)
        if (w->seg[k].from_input && begin < b && begin + w->seg[k].n > a) return false;
    return true;
}

static size_t char_before(const char *s, size_t i, size_t stop, uint32_t *bit)
{
    size_t a = i - 1;
    uint32_t cp;
    while (a > stop && i - a < 4 && ((unsigned char)s[a] & 0xc0) == 0x80) a--;
    if (tok__next(s + a, i - a, &cp, bit) != i - a) {
        *bit = UC_BIT(UC_OTHER);
        return i - 1;
    }
    return a;
}

/* single_word: no word character on either side. */
static bool stands_alone(const char *s, size_t n, size_t a, size_t b)
{
    uint32_t cp, bit = 0;
    if (a) {
        char_before(s, a, 0, &bit);
        if (bit & UC_WORD) return false;
    }
    if (b >= n) return true;
    tok__next(s + b, n - b, &cp, &bit);
    return !(bit & UC_WORD);
}

/* lstrip and rstrip: the token takes the white space beside it, back to `stop`. */
static void take_space(const char *s, size_t n, uint8_t how, size_t stop, size_t *a, size_t *b)
{
    uint32_t cp, bit;
    while (how & TOK_A_LSTRIP && *a > stop) {
        size_t p = char_before(s, *a, stop, &bit);
        if (!(bit & UC_S)) break;
        *a = p;
    }
    while (how & TOK_A_RSTRIP && *b < n) {
        unsigned len = tok__next(s + *b, n - *b, &cp, &bit);
        if (!(bit & UC_S)) break;
        *b += len;
    }
}

typedef int (*piece_fn)(work *, const char *s, size_t a, size_t b);

/* Cut s[0..n) at the tokens of sp; s[a..b) between them goes to fn. Control tokens match in
 * template text; with o NULL, anywhere when `control`. */
static int cut(work *w, const tok_specials *sp, owner *o, bool control, const char *s, size_t n,
               piece_fn fn)
{
    size_t start = 0;
    for (size_t i = 0; i < n && sp->n;) {
        unsigned char c = (unsigned char)s[i];
        uint32_t id = 0;
        if (sp->first[c] == sp->first[c + 1]) {
            i++;
            continue;
        }
        size_t room = o ? template_bytes(o, i) : control ? n - i : 0;
        size_t len = tok__special_at(w->t, sp, s + i, n - i, room, &id), a = i, b = i + len;
        i = len ? b : i + 1;
        if (!len || (w->t->added[id] & TOK_A_WORD && !stands_alone(s, n, a, b))) continue;
        take_space(s, n, w->t->added[id], start, &a, &b);
        if (a > start) HT_TRY(fn(w, s, start, a));
        HT_TRY(ht_ids_push(w->out, (int32_t)id, w->e));
        start = i = b;
    }
    return start < n ? fn(w, s, start, n) : 0;
}

/* Piece of normalised text between normalised special tokens. */
static int after_norm(work *w, const char *s, size_t a, size_t b)
{
    if (a) w->first = false;
    return plain(w, s + a, b - a);
}

/* Piece of the raw text: normalise it, look for the tokens that are matched after that. A control
 * token among those matches only where the whole piece is template text. */
static int after_raw(work *w, const char *s, size_t a, size_t b)
{
    const char *p = s + a;
    size_t n = b - a;
    if (w->t->flags & TOK_F_NFC && tok__needs_nfc(p, n)) {
        HT_TRY(tok__nfc(&w->nfc, p, n, w->e));
        p = w->nfc.out.p;
        n = w->nfc.out.n;
    }
    w->first = a == 0;
    if (!w->t->norm.n) return plain(w, p, n);
    return cut(w, &w->t->norm, NULL, all_template(w, a, b), p, n, after_norm);
}

/* ---- entry points ---- */

static int add_ends(const ht_tok *t, size_t begin, ht_ids *out, ht_err *e)
{
    if (t->flags & TOK_F_ADD_BOS && (out->n == begin || out->id[begin] != t->bos)) {
        HT_TRY(ht_ids_push(out, t->bos, e));
        memmove(out->id + begin + 1, out->id + begin, (out->n - 1 - begin) * sizeof *out->id);
        out->id[begin] = t->bos;
    }
    if (t->flags & TOK_F_ADD_EOS && (out->n == begin || out->id[out->n - 1] != t->eos))
        HT_TRY(ht_ids_push(out, t->eos, e));
    return 0;
}

/* The segments as one text: *s points into the only non-empty one, or at *own. */
static int lay_out(const ht_segment *seg, size_t n_seg, const char **s, size_t *n, char **own,
                   ht_err *e)
{
    size_t parts = 0;
    *n = 0;
    *s = "";
    *own = NULL;
    for (size_t k = 0; k < n_seg; k++) {
        if (seg[k].n > TOK_MAX_INPUT - *n)
            return HT_FAIL(e, HT_EARG, "text to tokenise is over %d bytes: give it in parts",
                           TOK_MAX_INPUT);
        if (!seg[k].n) continue;
        *n += seg[k].n;
        *s = seg[k].p;
        parts++;
    }
    if (parts < 2) return 0;
    *own = ht_mem_alloc(*n);
    if (!*own) return HT_FAIL(e, HT_ENOMEM, "no memory for %zu bytes of text", *n);
    *s = *own;
    for (size_t k = 0, at = 0; k < n_seg; at += seg[k++].n)
        if (seg[k].n) memcpy(*own + at, seg[k].p, seg[k].n);
    return 0;
}

int tok__encode(const ht_tok *t, const ht_segment *seg, size_t n_seg, unsigned flags, ht_ids *out,
                uint64_t *ops, ht_err *e)
{
    const char *s;
    size_t n, begin = out->n;
    char *own;
    HT_TRY(lay_out(seg, n_seg, &s, &n, &own, e));
    work w = {.t = t, .out = out, .e = e, .seg = seg, .n_seg = n_seg};
    ht_buf_init(&w.nfc.out, TOK_MAX_PIECE);
    ht_buf_init(&w.spaced, TOK_MAX_PIECE);
    owner o = {.seg = seg, .n = n_seg};
    int rc = cut(&w, &t->raw, &o, false, s, n, after_raw);
    if (!rc && flags & HT_TOK_BOS) rc = add_ends(t, begin, out, e);
    if (rc) out->n = begin;
    if (ops) *ops = w.m.ops;
    for (unsigned k = 0; k < TOK_MAX_STAGES; k++) tok__rx_work_free(w.rx[k]);
    tok__merger_done(&w.m);
    tok__nfc_done(&w.nfc);
    ht_buf_done(&w.spaced);
    ht_mem_free(own);
    return rc;
}

int ht_tok_encode_segments(const ht_tok *t, const ht_segment *seg, size_t n, unsigned flags,
                           ht_ids *out, ht_err *e)
{
    return tok__encode(t, seg, n, flags, out, NULL, e);
}

int ht_tok_encode(const ht_tok *t, const char *text, size_t n, unsigned flags, ht_ids *out,
                  ht_err *e)
{
    ht_segment seg = {.p = text, .n = n, .from_input = !(flags & HT_TOK_SPECIAL)};
    return tok__encode(t, &seg, 1, flags, out, NULL, e);
}
