/* build.c - from what an importer read to the normal form: tables, checks, digest. */
#include "core/hash.h"
#include "core/utf8.h"
#include "tok/tok_int.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(ht_err *e)
{
    return HT_FAIL(e, HT_ENOMEM, "no memory for a vocabulary");
}

int tok__new(ht_tok **out, uint32_t n, ht_err *e)
{
    *out = NULL;
    if (!n || n > TOK_MAX_TOKENS)
        return HT_FAIL(e, HT_EFORMAT, "a vocabulary of %u tokens: must be 1..%d", n,
                       TOK_MAX_TOKENS);
    ht_arena *a;
    HT_TRY(ht_arena_new(&a, 0, e));
    ht_tok *t = ht_arena_alloc(a, sizeof *t);
    if (t) {
        t->arena = a;
        t->n = n;
        t->bos = t->eos = t->unk = -1;
        t->text = ht_arena_array(a, n, sizeof *t->text);
        t->type = ht_arena_array(a, n, 1);
        t->added = ht_arena_array(a, n, 1);
    }
    if (!t || !t->text || !t->type || !t->added) {
        ht_arena_free(a);
        return no_memory(e);
    }
    *out = t;
    return 0;
}

void ht_tok_free(ht_tok *t)
{
    if (!t) return;
    for (unsigned i = 0; i < t->n_stages; i++) tok__rx_free(t->stage[i].rx);
    ht_arena_free(t->arena);
}

static uint32_t table_size(uint32_t n)
{
    uint32_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
}

int32_t ht_tok_find(const ht_tok *t, const char *text, size_t n)
{
    if (!n || n > t->max_text) return -1;
    for (uint64_t h = ht_hash64(text, n);; h++) {
        uint32_t v = t->text_tab[h & t->text_mask];
        if (!v) return -1;
        if (t->text[v - 1].n == n && !memcmp(t->text[v - 1].s, text, n)) return (int32_t)(v - 1);
    }
}

int32_t tok__find_joined(const ht_tok *t, tok_text a, tok_text b)
{
    if (a.n + b.n > t->max_text) return -1;
    memcpy(t->cat, a.s, a.n);
    memcpy(t->cat + a.n, b.s, b.n);
    return ht_tok_find(t, t->cat, a.n + b.n);
}

/* Check types and texts; the texts, until now those of the source, are copied. An unused token
 * loses its own (only one source knows it, nothing reads it). */
static int own_texts(ht_tok *t, ht_err *e)
{
    size_t total = 0;
    t->max_text = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->type[i] < TOK_NORMAL || t->type[i] > TOK_BYTE)
            return HT_FAIL(e, HT_EFORMAT, "token %u has type %u: known are 1..6", i, t->type[i]);
        if (t->text[i].n > TOK_MAX_TEXT)
            return HT_FAIL(e, HT_EFORMAT, "token %u has %zu bytes of text: the limit is %d", i,
                           t->text[i].n, TOK_MAX_TEXT);
        if (t->type[i] == TOK_UNUSED) t->text[i] = (tok_text){"", 0};
        if (t->text[i].n > t->max_text) t->max_text = (uint32_t)t->text[i].n;
        total += t->text[i].n + 1;
    }
    char *pool = ht_arena_alloc(t->arena, total);
    t->cat = ht_arena_alloc(t->arena, t->max_text + 1u);
    if (!pool || !t->cat) return no_memory(e);
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->text[i].n) memcpy(pool, t->text[i].s, t->text[i].n); /* the NUL is there already */
        t->text[i].s = pool;
        pool += t->text[i].n + 1;
    }
    return 0;
}

/* Take over the texts and make text_tab: of equal texts the lowest id is found. */
int tok__index(ht_tok *t, ht_err *e)
{
    HT_TRY(own_texts(t, e));
    uint32_t size = table_size(t->n);
    t->text_tab = ht_arena_array(t->arena, size, sizeof *t->text_tab);
    if (!t->text_tab) return no_memory(e);
    t->text_mask = size - 1;
    for (uint32_t i = 0; i < t->n; i++) {
        if (!t->text[i].n) continue;
        uint64_t h = ht_hash64(t->text[i].s, t->text[i].n);
        for (;; h++) {
            uint32_t *v = &t->text_tab[h & t->text_mask];
            if (*v && (t->text[*v - 1].n != t->text[i].n ||
                       memcmp(t->text[*v - 1].s, t->text[i].s, t->text[i].n)))
                continue;
            if (*v) t->duplicates = true;
            else *v = i + 1;
            break;
        }
    }
    return 0;
}

int tok__alloc_merges(ht_tok *t, size_t n, ht_err *e)
{
    if (n > TOK_MAX_MERGES)
        return HT_FAIL(e, HT_EFORMAT, "%zu merges: the limit is %d", n, TOK_MAX_MERGES);
    t->n_merges = (uint32_t)n;
    t->merge = ht_arena_array(t->arena, n, sizeof *t->merge);
    t->merge_out = ht_arena_array(t->arena, n, sizeof *t->merge_out);
    return t->merge && t->merge_out ? 0 : no_memory(e);
}

/* Token of a's text followed by b's. Vocabularies mostly number tokens in the order of their
 * merges, so the guess (the token after the last one) saves most of the look-ups. */
static int32_t joined(const ht_tok *t, tok_text a, tok_text b, uint32_t guess)
{
    if (guess < t->n && !t->duplicates && t->text[guess].n == a.n + b.n) {
        const char *s = t->text[guess].s;
        if (!memcmp(s, a.s, a.n) && !memcmp(s + a.n, b.s, b.n)) return (int32_t)guess;
    }
    return tok__find_joined(t, a, b);
}

/* merge_out and pair_tab. A merge that would make a control token is not applied: text must not
 * turn into one. Of a pair listed twice the later counts, as in Hugging Face tokenizers. */
static int index_merges(ht_tok *t, ht_err *e)
{
    uint32_t size = table_size(t->n_merges);
    t->pair_tab = ht_arena_array(t->arena, size, sizeof *t->pair_tab);
    if (!t->pair_tab) return no_memory(e);
    t->pair_mask = size - 1;
    for (uint32_t k = 0, guess = 0; k < t->n_merges; k++) {
        uint32_t a = t->merge[k][0], b = t->merge[k][1];
        if (a >= t->n || b >= t->n)
            return HT_FAIL(e, HT_EFORMAT, "merge %u joins %u and %u: there are %u tokens", k, a, b,
                           t->n);
        int32_t out = joined(t, t->text[a], t->text[b], guess);
        guess = (uint32_t)out + 1;
        if (out < 0)
            return HT_FAIL(e, HT_EFORMAT,
                           "merge %u (%.40s + %.40s) makes no token of this "
                           "vocabulary",
                           k, t->text[a].s, t->text[b].s);
        bool ok = t->type[out] == TOK_NORMAL || t->type[out] == TOK_USER;
        t->merge_out[k] = ok ? (uint32_t)out : TOK_NO_RANK;
        if (ok) *tok__pair_slot(t, a, b) = k + 1;
    }
    return 0;
}

/* "<0xNN>", exactly. */
bool tok__byte_text(tok_text x, uint8_t *byte)
{
    unsigned v = 0;
    if (x.n != 6 || memcmp(x.s, "<0x", 3) || x.s[5] != '>') return false;
    for (int i = 3; i < 5; i++) {
        char c = x.s[i];
        unsigned d = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                     : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A' + 10)
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                                            : 16;
        if (d > 15) return false;
        v = v << 4 | d;
    }
    *byte = (uint8_t)v;
    return true;
}

static int index_bytes(ht_tok *t, ht_err *e)
{
    for (unsigned b = 0; b < 256; b++) t->byte_id[b] = -1;
    for (uint32_t i = 0; i < t->n; i++) {
        uint8_t b;
        if (t->type[i] != TOK_BYTE) continue;
        if (!tok__byte_text(t->text[i], &b))
            return HT_FAIL(e, HT_EFORMAT, "byte token %u is \"%.20s\", not <0xNN>", i,
                           t->text[i].n ? t->text[i].s : "");
        if (t->byte_id[b] < 0) t->byte_id[b] = (int32_t)i;
    }
    if (t->flags & TOK_F_SPM) return 0;
    bool all = true;
    for (unsigned b = 0; b < 256; b++) {
        char c[4];
        int32_t id = ht_tok_find(t, c, ht_utf8_put(tok__byte_to_cp((uint8_t)b), c));
        if (id >= 0 && t->type[id] != TOK_NORMAL) id = -1;
        t->byte_id[b] = id;
        all = all && id >= 0;
    }
    if (all) t->unk = -1; /* never used, and GGUF names one where tokenizer.json has none */
    return 0;
}

static int check_id(const ht_tok *t, int32_t id, const char *what, ht_err *e)
{
    if (id >= -1 && (id < 0 || (uint32_t)id < t->n)) return 0;
    return HT_FAIL(e, HT_EFORMAT, "%s token id %d: there are %u tokens", what, id, t->n);
}

int tok__derive(ht_tok *t, ht_err *e)
{
    HT_TRY(check_id(t, t->bos, "BOS", e));
    HT_TRY(check_id(t, t->eos, "EOS", e));
    HT_TRY(check_id(t, t->unk, "unknown", e));
    HT_TRY(index_bytes(t, e));
    if (!(t->flags & TOK_F_SPM)) HT_TRY(index_merges(t, e));
    HT_TRY(tok__special_index(t, e));
    for (unsigned i = 0; i < t->n_stages; i++) {
        tok_stage *st = &t->stage[i];
        if (st->kind == TOK_ST_RX || st->kind == TOK_ST_RX_DROP)
            HT_TRY(tok__rx_new(&st->rx, st->pattern.s, st->pattern.n, e));
    }
    t->pre_name = tok__pre_name(t);
    return 0;
}

int tok__finish(ht_tok *t, ht_err *e)
{
    if (t->bos < 0) t->flags &= ~(uint32_t)TOK_F_ADD_BOS;
    if (t->eos < 0) t->flags &= ~(uint32_t)TOK_F_ADD_EOS;
    for (uint32_t i = 0; i < t->n; i++) {
        bool special =
            t->type[i] == TOK_CONTROL || t->type[i] == TOK_UNKNOWN || t->type[i] == TOK_USER;
        if (!special) t->added[i] = 0;
        if (!(t->flags & TOK_F_NFC)) t->added[i] &= (uint8_t)~TOK_A_NORMALIZED;
    }
    HT_TRY(tok__derive(t, e));
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = ht_tok_save(t, &b, e);
    if (!rc) rc = ht_sha256_of(b.p, b.n, t->sha, e);
    ht_buf_done(&b);
    return rc;
}

/* ---- end of generation ---- */

static const char *const eog_texts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>", "</s>", "<EOT>", "<|end_of_text|>", "<eos>", "<turn|>", "[EOS]",
    "[EOT]",
    /* <|end_of_sentence|> of DeepSeek, with full-width bars and lower one-eighth blocks */
    ("<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>")};

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* A text of the table counts only as a special token: in a byte-level vocabulary the ordinary token
 * "</s>" is what ends a struck-through word in HTML. */
int tok__set_eog(ht_tok *t, const int64_t *ids, size_t n, ht_err *e)
{
    size_t n_texts = sizeof eog_texts / sizeof *eog_texts, k = 0;
    t->eog = ht_arena_array(t->arena, n + n_texts, sizeof *t->eog);
    if (!t->eog) return no_memory(e);
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < (int64_t)t->n) t->eog[k++] = (int32_t)ids[i];
    for (size_t i = 0; i < n_texts; i++) {
        int32_t id = ht_tok_find(t, eog_texts[i], strlen(eog_texts[i]));
        if (id >= 0 && (t->type[id] == TOK_CONTROL || t->type[id] == TOK_USER)) t->eog[k++] = id;
    }
    qsort(t->eog, k, sizeof *t->eog, by_id);
    t->n_eog = 0;
    for (size_t i = 0; i < k; i++)
        if (!i || t->eog[i] != t->eog[i - 1]) t->eog[t->n_eog++] = t->eog[i];
    return 0;
}

/* ---- SPM ranks ---- */

typedef struct {
    double score;
    uint32_t id;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Can the text be made by joining two tokens? One that cannot is never joined, so its rank has no
 * effect, and tokenizer.json (which lists pairs) has none. */
static bool joinable(const ht_tok *t, uint32_t id)
{
    tok_text x = t->text[id];
    uint32_t cp;
    for (size_t i = ht_utf8_next(x.s, x.n, &cp); i && i < x.n;) {
        int32_t a = ht_tok_find(t, x.s, i), b = ht_tok_find(t, x.s + i, x.n - i);
        if (a >= 0 && b >= 0 && t->type[a] == TOK_NORMAL && t->type[b] == TOK_NORMAL) return true;
        unsigned len = ht_utf8_next(x.s + i, x.n - i, &cp);
        i += len ? len : 1;
    }
    return false;
}

int tok__rank_scores(ht_tok *t, const double *score, ht_err *e)
{
    uint32_t k = 0, rank = 0;
    scored *order = ht_arena_array(t->arena, t->n, sizeof *order);
    t->rank = ht_arena_array(t->arena, t->n, sizeof *t->rank);
    if (!order || !t->rank) return no_memory(e);
    for (uint32_t i = 0; i < t->n; i++) {
        t->rank[i] = TOK_NO_RANK;
        if (isnan(score[i])) return HT_FAIL(e, HT_EFORMAT, "score of token %u is not a number", i);
        if (t->type[i] != TOK_NORMAL || ht_tok_find(t, t->text[i].s, t->text[i].n) != (int32_t)i)
            continue;
        if (joinable(t, i)) order[k++] = (scored){score[i], i};
    }
    qsort(order, k, sizeof *order, by_score);
    for (uint32_t i = 0; i < k; i++) {
        if (i && order[i].score != order[i - 1].score) rank++;
        t->rank[order[i].id] = rank;
    }
    return 0;
}

/* ---- reads ---- */
uint32_t ht_tok_size(const ht_tok *t)
{
    return t->n;
}

const char *ht_tok_pre(const ht_tok *t)
{
    return t->pre_name;
}

int32_t ht_tok_bos(const ht_tok *t)
{
    return t->bos;
}

int32_t ht_tok_eos(const ht_tok *t)
{
    return t->eos;
}

bool ht_tok_add_bos(const ht_tok *t)
{
    return t->flags & TOK_F_ADD_BOS;
}

bool ht_tok_add_eos(const ht_tok *t)
{
    return t->flags & TOK_F_ADD_EOS;
}

bool ht_tok_is_eog(const ht_tok *t, int32_t id)
{
    for (uint32_t i = 0; i < t->n_eog; i++)
        if (t->eog[i] == id) return true;
    return false;
}

bool ht_tok_is_special(const ht_tok *t, int32_t id)
{
    if (id < 0 || (uint32_t)id >= t->n) return false;
    return t->type[id] == TOK_CONTROL || t->type[id] == TOK_UNKNOWN;
}

size_t ht_tok_eog(const ht_tok *t, const int32_t **ids)
{
    *ids = t->eog;
    return t->n_eog;
}

const char *ht_tok_text(const ht_tok *t, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || (uint32_t)id >= t->n) return "";
    *n = t->text[id].n;
    return t->text[id].s;
}

const uint8_t *ht_tok_sha256(const ht_tok *t)
{
    return t->sha;
}
