/* ast.h - the parsed form of a template. Nodes live in the template's own arena and never change
 * after parsing, so any thread may render from them. Every node knows its line and column, because
 * every error and every refusal must name them. Neighbours: lex.c makes tokens, parse.c and expr.c
 * make nodes, eval.c and exec.c walk them. */
#ifndef HT_TMPL_AST_H
#define HT_TMPL_AST_H
#include "tmpl/value.h"

enum tmpl__op {
    OP_NONE, OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW, OP_TILDE,
    OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN, OP_NOTIN,
    OP_ASSIGN, OP_DOT, OP_COLON, OP_PIPE, OP_COMMA, OP_SEMI,
    OP_LPAREN, OP_RPAREN, OP_LBRACKET, OP_RBRACKET, OP_LBRACE, OP_RBRACE
};

enum tmpl__tok_type {
    TK_EOF, TK_DATA, TK_VAR_BEGIN, TK_VAR_END, TK_BLOCK_BEGIN, TK_BLOCK_END,
    TK_NAME, TK_STR, TK_INT, TK_FLOAT, TK_OP
};
typedef struct {
    uint8_t type, op;               /* enum tmpl__tok_type, enum tmpl__op                         */
    uint32_t line, col;             /* from 1; columns count code points                          */
    const char *p; size_t n;        /* text: data, name; decoded bytes of a string                */
    int64_t i; double d;            /* numbers                                                    */
} ttok;

enum tmpl__kind {
    /* expressions */
    N_CONST,      /* val                                                                          */
    N_NAME,       /* name                                                                         */
    N_LIST,       /* kid[]                                                                        */
    N_TUPLE,      /* kid[]; also an assignment target                                             */
    N_DICT,       /* kid[]: key, value, key, value ...                                            */
    N_ATTR,       /* a . name                                                                     */
    N_ITEM,       /* a [ b ]                                                                      */
    N_SLICE,      /* a : b : c, each may be NULL; only below N_ITEM                               */
    N_CALL,       /* a ( kid[], kw[i] names the i-th or NULL )                                    */
    N_FILTER,     /* a | name(kid[]); a NULL: the text of a block                                 */
    N_TEST,       /* a is name(kid[])                                                             */
    N_NOT, N_NEG, N_POS,                 /* a                                                     */
    N_BIN,        /* a op b                                                                       */
    N_AND, N_OR,  /* a, b                                                                         */
    N_COMPARE,    /* a, then kid[i] with operator opv[i]                                          */
    N_CONCAT,     /* kid[] joined as text                                                         */
    N_COND,       /* a if b else c (c may be NULL)                                                */
    N_NSREF,      /* target: name . attr                                                          */
    /* statements */
    N_TEXT,       /* val                                                                          */
    N_PRINT,      /* a                                                                            */
    N_BODY,       /* kid[]                                                                        */
    N_IF,         /* kid[]: condition, body, condition, body ...; c: else body or NULL            */
    N_FOR,        /* a target, b iterable, kid[0] body, kid[1] else or NULL, c filter or NULL     */
    N_SET,        /* a target, b value                                                            */
    N_SETBLOCK,   /* a target, b filter chain or NULL, c body                                     */
    N_MACRO,      /* name, kid[] parameters (N_NAME with default in a), c body                    */
    N_CALLBLOCK,  /* a call, kid[] parameters, c body                                             */
    N_FILTERBLOCK,/* b filter chain, c body                                                       */
    N_WITH,       /* kid[]: target, value ...; c body                                             */
    N_SCOPE,      /* c body in its own scope: generation tags                                     */
    N_BREAK, N_CONTINUE
};
enum { MACRO_VARARGS = 1, MACRO_KWARGS = 2, MACRO_CALLER = 4 };   /* names a macro body uses      */

typedef struct tnode tnode;
struct tnode {
    uint8_t kind, op;               /* op: enum tmpl__op; macros: MACRO_* ; N_FOR: 1 recursive    */
    uint16_t height;                /* longest path to a leaf, limited so that walks are bounded  */
    uint32_t line, col, n_kid;
    const tname *name, *attr;
    tnode *a, *b, *c, **kid;
    const tname **kw;
    const uint8_t *opv;
    const void *impl;               /* N_FILTER, N_TEST: the table entry, found while parsing     */
    tval val;
};

enum {
    TMPL_MAX_SOURCE = 1 << 20,      /* published templates are below 32 KiB                       */
    TMPL_MAX_NEST = 100,            /* brackets and blocks inside each other while parsing        */
    TMPL_MAX_HEIGHT = 400           /* of the tree: long + chains are left-deep                   */
};

/* Turn source into tokens in the arena, ended by TK_EOF. HT_EFORMAT names line and column. */
HT_MUST_USE int tmpl__lex(ht_arena *, const char *source, size_t n, ttok **out, size_t *n_tok,
                          ht_err *);

typedef struct {                    /* parser state                                               */
    ht_arena *arena;
    ht_err *err;
    const ttok *tok;                /* the current token                                          */
    const tname **names;            /* open-addressed table of interned names                     */
    size_t n_names, cap_names;
    unsigned nest, loops;           /* depth now; enclosing loops of this function body           */
    uint8_t uses;                   /* MACRO_* seen since the innermost macro began               */
} tparse;

/* parse.c: shared by the two parser files. */
tnode *tmpl__node(tparse *, int kind, const ttok *at);                 /* NULL: out of memory     */
const tname *tmpl__intern(tparse *, const char *p, size_t n);          /* NULL: out of memory     */
int tmpl__oom(tparse *);
int tmpl__syntax(tparse *, const ttok *at, int code, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#define T_SYNTAX(ps, at, code, ...)                                                                \
    tmpl__syntax((ps), (at), (code), __FILE__ ":" HT_STR(__LINE__), __VA_ARGS__)
/* Set the height of a finished node from its children; refuses what is too deep. */
HT_MUST_USE int tmpl__seal(tparse *, tnode *);
typedef struct { tnode **at; size_t n, cap; } tnodes;               /* growing list, in the arena */
HT_MUST_USE int tmpl__push(tparse *, tnodes *, tnode *);
bool tmpl__is_op(const tparse *, int op);
bool tmpl__is_name(const tparse *, const char *word);
bool tmpl__skip_op(tparse *, int op);                                 /* true and past it, or not */
bool tmpl__skip_name(tparse *, const char *word);
HT_MUST_USE int tmpl__expect_op(tparse *, int op, const char *what);
HT_MUST_USE int tmpl__expect_name(tparse *, const ttok **out, const char *what);
const char *tmpl__tok_text(const ttok *, char buf[48]);                /* for messages            */

/* expr.c */
HT_MUST_USE int tmpl__parse_expr(tparse *, bool with_cond, tnode **out);
/* An expression or, with commas, a tuple. stop: a name that ends it ("in", "recursive") or NULL. */
HT_MUST_USE int tmpl__parse_tuple(tparse *, bool with_cond, const char *stop, tnode **out);
HT_MUST_USE int tmpl__parse_target(tparse *, const char *stop, bool with_ns, tnode **out);
/* One or more filters "name(...) | name(...)"; the first has no input of its own. */
HT_MUST_USE int tmpl__parse_filters(tparse *, tnode **out);

struct ht_tmpl {
    ht_arena *arena;
    const tnode *root;
    const tname *loop, *caller, *varargs, *kwargs;   /* names the engine itself binds             */
};
#endif
