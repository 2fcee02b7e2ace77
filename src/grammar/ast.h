/* ast.h - what a regular expression and the right side of a GBNF rule are parsed into: nfa.h builds
 * from the end, so a text read from its start needs a tree in between. */
#ifndef HT_GRAMMAR_AST_H
#define HT_GRAMMAR_AST_H
#include "grammar/nfa.h"

enum grammar__ast_kind { AST_EMPTY, AST_CLASS, AST_LIT, AST_CAT, AST_ALT, AST_REPEAT, AST_RULE };
typedef struct grammar__ast_node grammar__ast_node;
struct grammar__ast_node {
    enum grammar__ast_kind kind;
    grammar__ast_node *child; /* of AST_CAT from the last to the first; of AST_ALT in any order */
    grammar__ast_node *next;
    const grammar__cps *cps; /* AST_CLASS [n], normalised */
    const char *s;           /* AST_LIT [n] */
    size_t n;
    uint32_t min, max; /* AST_REPEAT */
    uint32_t rule;     /* AST_RULE */
};
enum { AST_DEPTH = 200 }; /* groups inside each other */

/* NULL: the build has failed. */
grammar__ast_node *grammar__ast_new(grammar__nfa *, enum grammar__ast_kind);
grammar__ast_node *grammar__ast_class(grammar__nfa *, const grammar__cps *, size_t n, bool negated);
/* Put one more into an AST_CAT or AST_ALT. */
void grammar__ast_add(grammar__ast_node *parent, grammar__ast_node *child);
/* in_json: characters as they are written inside a JSON string. */
uint32_t grammar__ast_emit(grammar__nfa *, const grammar__ast_node *, bool in_json, uint32_t next);
#endif
