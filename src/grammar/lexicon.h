/* lexicon.h - a vocabulary by its bytes: a trie in preorder, so that a walk over all tokens is one
 * pass that jumps over what cannot follow. Control tokens stand in it behind the byte G_SPECIAL. */
#ifndef HT_GRAMMAR_LEXICON_H
#define HT_GRAMMAR_LEXICON_H
#include "tok/tok.h"

typedef struct {
    uint32_t skip;  /* the node after this one's subtree */
    uint32_t first; /* its tokens in `token`: up to the next node's first */
    uint8_t byte, depth; /* depth of the root's children: 0 */
} grammar__lexicon_node;
enum { LEXICON_TOKEN = 200 }; /* bytes of the longest token taken in; longer: never allowed */

struct ht_lexicon {
    const ht_tok *tok;
    uint32_t n_logits, n_words, n_nodes;
    grammar__lexicon_node *node; /* [n_nodes + 1], the last an end mark */
    int32_t *token;      /* ids in order of the nodes */
    char *text;          /* bytes of all tokens */
    uint32_t *at;        /* [size + 1] into text */
    uint32_t *eog;       /* [n_words] end-of-generation tokens */
};
/* Bytes of a token as the trie has them; 0 for those that are not in it. */
size_t grammar__lexicon_bytes(const ht_lexicon *, int32_t id, const char **p);
#endif
