/* merge.c - joining symbols inside a piece, best pair first, leftmost among equals: BPE by the
 * rank of the pair, SPM by the rank of the joined text. A binary heap of candidate joins over a
 * linked list of symbols: O(n log n), whatever the text; entries overtaken by other joins are seen
 * to be stale when they come up. The order is that of Hugging Face tokenizers' BPE and of
 * sentencepiece's score-driven BPE. */
#include "core/hash.h"
#include "core/utf8.h"
#include "tok/tok_int.h"
#include <string.h>

#define NONE UINT32_MAX

void tok__merger_done(tok_merger *m)
{
    ht_mem_free(m->sym);
    ht_mem_free(m->heap);
    *m = (tok_merger){.ops = m->ops};
}

static int grow(void **p, size_t *cap, size_t need, size_t size, ht_err *e)
{
    if (need <= *cap) return 0;
    size_t want = *cap * 2 > need ? *cap * 2 : need + 64, bytes;
    void *q = ht_mul_ok(want, size, &bytes) ? ht_mem_resize(*p, bytes) : NULL;
    if (!q) return HT_FAIL(e, HT_ENOMEM, "no memory to tokenise a piece of %zu symbols", need);
    *p = q;
    *cap = want;
    return 0;
}

/* Room for n symbols and every join they can cause: n - 1 at first, two for each of n - 1 joins. */
static int reserve(tok_merger *m, size_t n, ht_err *e)
{
    HT_TRY(grow((void **)&m->sym, &m->cap_sym, n, sizeof *m->sym, e));
    /* At most one live entry per adjacent pair is useful, but stale ones stay until popped: each
     * join pops one entry and adds up to two, so n - 1 joins hold at most 2n entries at a time. */
    HT_TRY(grow((void **)&m->heap, &m->cap_heap, 2 * n, sizeof *m->heap, e));
    m->n_sym = m->n_heap = 0;
    return 0;
}

static void push(tok_merger *m, tok_join j)
{
    size_t i = m->n_heap++;
    m->ops++;
    while (i) {
        size_t up = (i - 1) / 2;
        if (m->heap[up].key <= j.key) break;
        m->heap[i] = m->heap[up];
        i = up;
    }
    m->heap[i] = j;
}

static tok_join pop(tok_merger *m)
{
    tok_join top = m->heap[0], last = m->heap[--m->n_heap];
    size_t i = 0, n = m->n_heap;
    m->ops++;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n) break;
        if (c + 1 < n && m->heap[c + 1].key < m->heap[c].key) c++;
        if (last.key <= m->heap[c].key) break;
        m->heap[i] = m->heap[c];
        i = c;
    }
    if (n) m->heap[i] = last;
    return top;
}

static void add_sym(tok_merger *m, uint32_t id, uint32_t len)
{
    uint32_t k = (uint32_t)m->n_sym++;
    m->sym[k] = (tok_sym){.id = id, .len = len, .prev = k - 1, .next = k + 1}; /* 0 - 1 = NONE */
}

/* Join the symbol at pos with the one after it. */
static void join(tok_merger *m, uint32_t pos)
{
    tok_sym *l = &m->sym[pos], *r = &m->sym[l->next];
    l->len += r->len;
    r->len = 0;
    l->next = r->next;
    if (r->next < m->n_sym) m->sym[r->next].prev = pos;
}

/* ---- BPE ---- */

/* Slot of pair_tab that holds, or would hold, the merge of a and b (its index + 1). */
uint32_t *tok__pair_slot(const ht_tok *t, uint32_t a, uint32_t b)
{
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    for (h ^= h >> 32;; h++) {
        uint32_t *v = &t->pair_tab[h & t->pair_mask];
        if (!*v || (t->merge[*v - 1][0] == a && t->merge[*v - 1][1] == b)) return v;
    }
}

static void offer_pair(const ht_tok *t, tok_merger *m, uint32_t pos)
{
    if (pos >= m->n_sym || m->sym[pos].next >= m->n_sym) return;
    uint32_t v = *tok__pair_slot(t, m->sym[pos].id, m->sym[m->sym[pos].next].id);
    if (v) push(m, (tok_join){.key = (uint64_t)(v - 1) << 32 | pos});
}

/* A word that is a token: its id, or -1. Only for ignore_merges models. */
static int32_t whole_word(const ht_tok *t, const char *s, size_t n)
{
    char mapped[512];
    size_t len = 0;
    if (n > sizeof mapped / 2) return -1;
    for (size_t i = 0; i < n; i++) {
        char c[4];
        unsigned k = ht_utf8_put(tok__byte_to_cp((uint8_t)s[i]), c); /* 1 or 2 bytes */
        memcpy(mapped + len, c, k);
        len += k;
    }
    int32_t id = ht_tok_find(t, mapped, len);
    return id >= 0 && t->type[id] == TOK_NORMAL ? id : -1;
}

/* Append the tokens of one piece. A byte without a token gives unk, or nothing when the model has
 * none, as in Hugging Face tokenizers. */
int tok__bpe(const ht_tok *t, tok_merger *m, const char *s, size_t n, ht_ids *out, ht_err *e)
{
    if (t->flags & TOK_F_IGNORE_MERGES) {
        int32_t id = whole_word(t, s, n);
        if (id >= 0) return ht_ids_push(out, id, e);
    }
    HT_TRY(reserve(m, n, e));
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(unsigned char)s[i]];
        if (id < 0) id = t->unk;
        if (id >= 0) add_sym(m, (uint32_t)id, 1);
    }
    for (uint32_t i = 0; i + 1 < m->n_sym; i++) offer_pair(t, m, i);
    while (m->n_heap) {
        tok_join j = pop(m);
        uint32_t pos = (uint32_t)j.key, k = (uint32_t)(j.key >> 32);
        tok_sym *l = &m->sym[pos];
        if (!l->len || l->id != t->merge[k][0] || l->next >= m->n_sym ||
            m->sym[l->next].id != t->merge[k][1])
            continue;
        join(m, pos);
        l->id = t->merge_out[k];
        if (l->prev != NONE) offer_pair(t, m, l->prev);
        offer_pair(t, m, pos);
    }
    for (uint32_t i = 0; i < m->n_sym; i = m->sym[i].next)
        HT_TRY(ht_ids_push(out, (int32_t)m->sym[i].id, e));
    return 0;
}

/* ---- SPM ---- */

static void offer_text(const ht_tok *t, tok_merger *m, const char *s, uint32_t pos)
{
    if (pos >= m->n_sym || m->sym[pos].next >= m->n_sym) return;
    uint32_t len = m->sym[pos].len + m->sym[m->sym[pos].next].len;
    if (len > t->max_text) return;
    int32_t id = ht_tok_find(t, s + m->sym[pos].id, len);
    if (id >= 0 && t->rank[id] != TOK_NO_RANK)
        push(m, (tok_join){.key = (uint64_t)t->rank[id] << 32 | pos, .len = len});
}

/* Tokens of a text that is no token: its bytes, or one unk for a run of them. */
static int spm_fallback(const ht_tok *t, const char *s, size_t n, bool *was_unk, ht_ids *out,
                        ht_err *e)
{
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(unsigned char)s[i]];
        if (id >= 0) HT_TRY(ht_ids_push(out, id, e));
        else if (t->unk >= 0 && !*was_unk) HT_TRY(ht_ids_push(out, t->unk, e));
        *was_unk = id < 0;
    }
    return 0;
}

/* Append the tokens of escaped text (spaces are U+2581 already). */
int tok__spm(const ht_tok *t, tok_merger *m, const char *s, size_t n, ht_ids *out, ht_err *e)
{
    HT_TRY(reserve(m, n, e));
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        unsigned len = ht_utf8_next(s + i, n - i, &cp);
        if (!len) len = 1;
        add_sym(m, (uint32_t)i, len);
        i += len;
    }
    for (uint32_t i = 0; i + 1 < m->n_sym; i++) offer_text(t, m, s, i);
    while (m->n_heap) {
        tok_join j = pop(m);
        uint32_t pos = (uint32_t)j.key;
        tok_sym *l = &m->sym[pos];
        if (!l->len || l->next >= m->n_sym || l->len + m->sym[l->next].len != j.len) continue;
        join(m, pos);
        if (l->prev != NONE) offer_text(t, m, s, l->prev);
        offer_text(t, m, s, pos);
    }
    bool was_unk = false;
    for (uint32_t i = 0; i < m->n_sym; i = m->sym[i].next) {
        int32_t id = ht_tok_find(t, s + m->sym[i].id, m->sym[i].len);
        if (id >= 0 && t->type[id] == TOK_NORMAL) {
            HT_TRY(ht_ids_push(out, id, e));
            was_unk = false;
        } else {
            HT_TRY(spm_fallback(t, s + m->sym[i].id, m->sym[i].len, &was_unk, out, e));
        }
    }
    return 0;
}
