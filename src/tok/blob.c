/* blob.c - the normal form as bytes, for packs and for the digest. Little-endian:
 *
 *   0  8  "HTTOK\0\0\1"; the last byte is the version
 *   8  4x8 u32 tokens, merges, EOG ids, tokens with options, text bytes, stage bytes, flags, 0
 *  40  4x3 i32 bos, eos, unk
 *  52  u32[eog] ascending; (u32 id, u32 options)[..] ascending; (u32 a, u32 b)[merges];
 *      u32 rank[tokens] (SPM only); u16 length[tokens]; u8 type[tokens]; texts; stages as
 *      (u8 kind, u16 length, pattern)
 *
 * One vocabulary has one blob: the loader refuses what the writer would write otherwise. */
#include "core/hash.h"
#include "tok/tok_int.h"
#include <string.h>

static const char magic[8] = "HTTOK\0\0\1";
enum { HEAD = 52, N_COUNTS = 8 };

/* ---- writing ---- */

static void put16(ht_buf *b, uint32_t v)
{
    char c[2] = {(char)(v & 0xff), (char)(v >> 8 & 0xff)};
    ht_buf_add(b, c, 2);
}

static void put32(ht_buf *b, uint32_t v)
{
    char c[4] = {(char)(v & 0xff), (char)(v >> 8 & 0xff), (char)(v >> 16 & 0xff), (char)(v >> 24)};
    ht_buf_add(b, c, 4);
}

int ht_tok_save(const ht_tok *t, ht_buf *b, ht_err *e)
{
    bool spm = t->flags & TOK_F_SPM;
    size_t text = 0, stages = 0;
    uint32_t n_added = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        text += t->text[i].n;
        n_added += t->added[i] != 0;
    }
    for (unsigned i = 0; i < t->n_stages; i++) stages += 3 + t->stage[i].pattern.n;
    if (text > UINT32_MAX)
        return HT_FAIL(e, HT_EUNSUPPORTED, "a vocabulary with %zu bytes of text", text);
    const uint32_t counts[N_COUNTS] = {t->n,           t->n_merges,      t->n_eog, n_added,
                                       (uint32_t)text, (uint32_t)stages, t->flags, 0};
    const int32_t ids[3] = {t->bos, t->eos, t->unk};
    ht_buf_add(b, magic, sizeof magic);
    for (unsigned i = 0; i < N_COUNTS; i++) put32(b, counts[i]);
    for (unsigned i = 0; i < 3; i++) put32(b, (uint32_t)ids[i]);
    for (uint32_t i = 0; i < t->n_eog; i++) put32(b, (uint32_t)t->eog[i]);
    for (uint32_t i = 0; i < t->n; i++) {
        if (!t->added[i]) continue;
        put32(b, i);
        put32(b, t->added[i]);
    }
    for (uint32_t i = 0; i < t->n_merges; i++) {
        put32(b, t->merge[i][0]);
        put32(b, t->merge[i][1]);
    }
    for (uint32_t i = 0; spm && i < t->n; i++) put32(b, t->rank[i]);
    for (uint32_t i = 0; i < t->n; i++) put16(b, (uint32_t)t->text[i].n);
    ht_buf_add(b, t->type, t->n);
    for (uint32_t i = 0; i < t->n; i++) ht_buf_add(b, t->text[i].s, t->text[i].n);
    for (unsigned i = 0; i < t->n_stages; i++) {
        ht_buf_char(b, (char)t->stage[i].kind);
        put16(b, (uint32_t)t->stage[i].pattern.n);
        ht_buf_add(b, t->stage[i].pattern.s, t->stage[i].pattern.n);
    }
    return ht_buf_ok(b, "tokenizer blob", e);
}

/* ---- reading ---- */

static uint32_t get16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t get32(const uint8_t *p)
{
    return get16(p) | get16(p + 2) << 16;
}

static int bad(ht_err *e, const char *what)
{
    return HT_FAIL(e, HT_EFORMAT, "tokenizer blob: %s; make the pack again", what);
}

/* The sections of a blob whose sizes add up to its length. */
typedef struct {
    uint32_t count[N_COUNTS];
    const uint8_t *eog, *added, *merge, *rank, *len, *type, *text, *stage, *end;
} layout;
enum { C_TOKENS, C_MERGES, C_EOG, C_ADDED, C_TEXT, C_STAGE, C_FLAGS, C_ZERO };

static int lay(layout *l, const uint8_t *p, size_t n, ht_err *e)
{
    if (n < HEAD || memcmp(p, magic, sizeof magic) != 0)
        return bad(e, "not one, or of another version");
    for (unsigned i = 0; i < N_COUNTS; i++) l->count[i] = get32(p + 8 + 4 * (size_t)i);
    const uint32_t *c = l->count;
    bool spm = c[C_FLAGS] & TOK_F_SPM;
    if (!c[C_TOKENS] || c[C_TOKENS] > TOK_MAX_TOKENS || c[C_MERGES] > TOK_MAX_MERGES)
        return bad(e, "token or merge count out of range");
    if (c[C_FLAGS] & ~(uint32_t)TOK_F_ALL || c[C_ZERO]) return bad(e, "unknown flags");
    if (spm && (c[C_MERGES] || c[C_STAGE])) return bad(e, "SPM with merges or stages");
    const uint64_t size[] = {4 * (uint64_t)c[C_EOG],
                             8 * (uint64_t)c[C_ADDED],
                             8 * (uint64_t)c[C_MERGES],
                             spm ? 4 * (uint64_t)c[C_TOKENS] : 0,
                             2 * (uint64_t)c[C_TOKENS],
                             c[C_TOKENS],
                             c[C_TEXT],
                             c[C_STAGE]};
    const uint8_t **at[] = {&l->eog, &l->added, &l->merge, &l->rank,
                            &l->len, &l->type,  &l->text,  &l->stage};
    uint64_t off = HEAD;
    for (unsigned i = 0; i < sizeof size / sizeof *size; i++) {
        if (off > n || size[i] > n - off) return bad(e, "shorter than its counts say");
        *at[i] = p + off;
        off += size[i];
    }
    if (off != n) return bad(e, "longer than its counts say");
    l->end = p + n;
    return 0;
}

static int read_texts(ht_tok *t, const layout *l, ht_err *e)
{
    size_t off = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        size_t len = get16(l->len + 2 * (size_t)i);
        if (len > l->count[C_TEXT] - off) return bad(e, "texts longer than their section");
        t->text[i] = (tok_text){(const char *)l->text + off, len};
        t->type[i] = l->type[i];
        if (t->type[i] == TOK_UNUSED && len) return bad(e, "an unused token with text");
        off += len;
    }
    return off == l->count[C_TEXT] ? 0 : bad(e, "texts shorter than their section");
}

static int read_added(ht_tok *t, const layout *l, ht_err *e)
{
    for (uint32_t i = 0, last = 0; i < l->count[C_ADDED]; i++) {
        uint32_t id = get32(l->added + 8 * (size_t)i), how = get32(l->added + 8 * (size_t)i + 4);
        if (id >= t->n || (i && id <= last) || !how || how > TOK_A_ALL)
            return bad(e, "token options out of order or range");
        uint8_t ty = t->type[id];
        if ((ty != TOK_CONTROL && ty != TOK_UNKNOWN && ty != TOK_USER) ||
            (how & TOK_A_NORMALIZED && !(t->flags & TOK_F_NFC)))
            return bad(e, "options on a token that cannot have them");
        t->added[id] = (uint8_t)how;
        last = id;
    }
    return 0;
}

static int read_ids(ht_tok *t, const uint8_t *head, const layout *l, ht_err *e)
{
    t->bos = (int32_t)get32(head);
    t->eos = (int32_t)get32(head + 4);
    t->unk = (int32_t)get32(head + 8);
    if ((t->bos < 0 && t->flags & TOK_F_ADD_BOS) || (t->eos < 0 && t->flags & TOK_F_ADD_EOS))
        return bad(e, "adds a BOS or EOS that it does not have");
    t->n_eog = l->count[C_EOG];
    t->eog = ht_arena_array(t->arena, t->n_eog, sizeof *t->eog);
    if (!t->eog) return HT_FAIL(e, HT_ENOMEM, "no memory for a vocabulary");
    for (uint32_t i = 0; i < t->n_eog; i++) {
        uint32_t id = get32(l->eog + 4 * (size_t)i);
        if (id >= t->n || (i && (int32_t)id <= t->eog[i - 1]))
            return bad(e, "end-of-generation ids out of order or range");
        t->eog[i] = (int32_t)id;
    }
    return 0;
}

static int read_order(ht_tok *t, const layout *l, ht_err *e)
{
    if (t->flags & TOK_F_SPM) {
        t->rank = ht_arena_array(t->arena, t->n, sizeof *t->rank);
        if (!t->rank) return HT_FAIL(e, HT_ENOMEM, "no memory for a vocabulary");
        for (uint32_t i = 0; i < t->n; i++) {
            t->rank[i] = get32(l->rank + 4 * (size_t)i);
            if (t->rank[i] == TOK_NO_RANK) continue;
            if (t->rank[i] >= t->n || t->type[i] != TOK_NORMAL)
                return bad(e, "a rank out of range");
        }
        return 0;
    }
    HT_TRY(tok__alloc_merges(t, l->count[C_MERGES], e));
    for (uint32_t i = 0; i < t->n_merges; i++) {
        t->merge[i][0] = get32(l->merge + 8 * (size_t)i);
        t->merge[i][1] = get32(l->merge + 8 * (size_t)i + 4);
    }
    return 0;
}

static int read_stages(ht_tok *t, const layout *l, ht_err *e)
{
    for (const uint8_t *p = l->stage; p < l->end;) {
        if (l->end - p < 3) return bad(e, "a stage cut short");
        uint32_t kind = p[0], len = get16(p + 1);
        p += 3;
        bool rx = kind == TOK_ST_RX || kind == TOK_ST_RX_DROP;
        if (!kind || kind >= TOK_ST_COUNT || (len != 0) != rx || len > TOK_MAX_PATTERN ||
            len > (size_t)(l->end - p))
            return bad(e, "a stage of unknown kind or wrong length");
        if (rx && tok__stage_of_pattern((const char *)p, len, kind) != kind)
            return bad(e, "a pattern that has a kind of its own");
        char *s = ht_arena_strndup(t->arena, (const char *)p, len);
        if (!s) return HT_FAIL(e, HT_ENOMEM, "no memory for a vocabulary");
        HT_TRY(tok__add_stage(t, kind, (tok_text){s, len}, e));
        p += len;
    }
    return 0;
}

static int load(ht_tok *t, const uint8_t *p, size_t n, const layout *l, ht_err *e)
{
    t->flags = l->count[C_FLAGS];
    HT_TRY(read_texts(t, l, e));
    HT_TRY(read_added(t, l, e));
    HT_TRY(read_ids(t, p + HEAD - 12, l, e));
    HT_TRY(read_order(t, l, e));
    HT_TRY(read_stages(t, l, e));
    HT_TRY(tok__index(t, e));
    int32_t unk = t->unk;
    HT_TRY(tok__derive(t, e));
    if (t->unk != unk) return bad(e, "an unknown token that is never used");
    return ht_sha256_of(p, n, t->sha, e);
}

int ht_tok_load(ht_tok **out, const void *blob, size_t n, ht_err *e)
{
    layout l;
    ht_tok *t;
    *out = NULL;
    HT_TRY(lay(&l, blob, n, e));
    HT_TRY(tok__new(&t, l.count[C_TOKENS], e));
    int rc = load(t, blob, n, &l, e);
    if (rc) ht_tok_free(t);
    else *out = t;
    return rc;
}
