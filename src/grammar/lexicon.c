/* lexicon.c - the trie of lexicon.h, made once for a vocabulary. */
#include "grammar/lexicon.h"
#include "grammar/nfa.h"
#include <stdlib.h>
#include <string.h>

size_t grammar__lexicon_bytes(const ht_lexicon *l, int32_t id, const char **p)
{
    if (id < 0 || (uint32_t)id >= ht_tok_size(l->tok)) return 0;
    *p = l->text + l->at[id];
    return l->at[id + 1] - l->at[id];
}

/* The bytes of every token, end to end. End-of-generation tokens have none here. */
static int gather(ht_lexicon *l, ht_buf *text, ht_err *e)
{
    const uint32_t n = ht_tok_size(l->tok);
    for (uint32_t i = 0; i < n; i++) {
        const size_t before = text->n;
        const int32_t id = (int32_t)i;
        l->at[i] = (uint32_t)before;
        if (ht_tok_is_eog(l->tok, id) || i >= l->n_logits) continue;
        const bool special = ht_tok_is_special(l->tok, id);
        if (special) ht_buf_char(text, (char)G_SPECIAL);
        HT_TRY(ht_tok_bytes(l->tok, id, special, text, e));
        if (text->n - before == special || text->n - before > LEXICON_TOKEN) text->n = before;
    }
    l->at[n] = (uint32_t)text->n;
    return ht_buf_ok(text, "the vocabulary's bytes", e);
}

static int by_bytes(const void *a, const void *b, void *lexicon)
{
    const ht_lexicon *l = lexicon;
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const uint32_t nx = l->at[x + 1] - l->at[x], ny = l->at[y + 1] - l->at[y];
    const int c = memcmp(l->text + l->at[x], l->text + l->at[y], nx < ny ? nx : ny);
    if (c) return c;
    return nx != ny ? (nx > ny) - (nx < ny) : (x > y) - (x < y);
}

/* Nodes in preorder from the sorted tokens [n]: each adds what it does not share with the one
 * before. open[d]: the node at depth d whose subtree has not ended. */
static void plant(ht_lexicon *l, uint32_t n)
{
    uint32_t open[LEXICON_TOKEN];
    uint32_t depth = 0, k = 0;
    const char *last = "";
    for (uint32_t i = 0; i < n; i++) {
        const char *p = NULL;
        const uint32_t len = (uint32_t)grammar__lexicon_bytes(l, l->token[i], &p);
        uint32_t same = 0;
        while (same < depth && same < len && last[same] == p[same]) same++;
        while (depth > same) l->node[open[--depth]].skip = k;
        for (; depth < len; depth++) {
            l->node[k] = (grammar__lexicon_node){
                .byte = (uint8_t)p[depth], .depth = (uint8_t)depth, .first = i};
            open[depth] = k++;
        }
        last = p;
    }
    while (depth > 0) l->node[open[--depth]].skip = k;
    l->node[k] = (grammar__lexicon_node){.first = n};
    l->n_nodes = k;
}

static int build(ht_lexicon *l, ht_buf *text, ht_err *e)
{
    const uint32_t size = ht_tok_size(l->tok);
    l->at = ht_mem_array((size_t)size + 1, sizeof *l->at);
    l->eog = ht_mem_array(l->n_words, sizeof *l->eog);
    l->token = ht_mem_array(size ? size : 1, sizeof *l->token);
    if (!l->at || !l->eog || !l->token)
        return HT_FAIL(e, HT_ENOMEM, "no memory for the lexicon of %u tokens", size);
    HT_TRY(gather(l, text, e));
    const size_t n_bytes = text->n;
    ht_buf_char(text, 0);
    HT_TRY(ht_buf_ok(text, "the vocabulary's bytes", e));
    l->text = ht_buf_take(text, NULL);
    uint32_t n = 0;
    for (uint32_t i = 0; i < size && i < l->n_logits; i++) {
        if (ht_tok_is_eog(l->tok, (int32_t)i)) l->eog[i / 32] |= (uint32_t)1 << i % 32;
        if (l->at[i + 1] > l->at[i]) l->token[n++] = (int32_t)i;
    }
    qsort_r(l->token, n, sizeof *l->token, by_bytes, l);
    /* As many nodes as bytes at most. */
    l->node = ht_mem_array(n_bytes + 1, sizeof *l->node);
    if (!l->node) return HT_FAIL(e, HT_ENOMEM, "no memory for the lexicon of %u tokens", size);
    plant(l, n);
    grammar__lexicon_node *fit = ht_mem_resize(l->node, ((size_t)l->n_nodes + 1) * sizeof *fit);
    if (fit) l->node = fit;
    return 0;
}

int ht_lexicon_open(ht_lexicon **out, const ht_vocab *v, uint32_t n_logits, ht_err *e)
{
    if (!out || !v) return HT_FAIL(e, HT_EARG, "ht_lexicon_open: out and vocabulary must be given");
    *out = NULL;
    ht_lexicon *l = ht_mem_alloc(sizeof *l);
    if (!l) return HT_FAIL(e, HT_ENOMEM, "no memory for a lexicon");
    l->tok = v;
    l->n_logits = n_logits ? n_logits : ht_tok_size(v);
    l->n_words = l->n_logits / 32 + (l->n_logits % 32 != 0);
    ht_buf text;
    ht_buf_init(&text, 0);
    const int rc = build(l, &text, e);
    ht_buf_done(&text);
    if (rc) ht_lexicon_close(l);
    else *out = l;
    return rc;
}

void ht_lexicon_close(ht_lexicon *l)
{
    if (!l) return;
    ht_mem_free(l->node);
    ht_mem_free(l->token);
    ht_mem_free(l->text);
    ht_mem_free(l->at);
    ht_mem_free(l->eog);
    ht_mem_free(l);
}
