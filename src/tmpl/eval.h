/* eval.h - rendering state and the functions the evaluator's files share. One tctx per render, used
 * by one thread. Everything it makes lives in the caller's arena; nothing is freed on its own.
 *
 * Three budgets bound a hostile template: steps (every node costs one, every pass over data costs
 * in proportion to its length), bytes taken from the arena, and depth of nesting. */
#ifndef HT_TMPL_EVAL_H
#define HT_TMPL_EVAL_H
#include "tmpl/ast.h"
#include "tmpl/tmpl.h"

typedef struct tvar { const tname *name; tval v; struct tvar *next; } tvar;
typedef struct tscope { struct tscope *up; tvar *vars; } tscope;

typedef struct {                    /* text under construction, marks only once they differ       */
    char *p; uint8_t *m; size_t n, cap;
    bool in;
} tsb;

enum { SIGNAL_NONE, SIGNAL_BREAK, SIGNAL_CONTINUE };
typedef struct tctx {
    const ht_tmpl *tmpl;
    ht_arena *arena;
    ht_err *err;
    const tnode *at;                /* where we are, for messages                                 */
    tscope *scope;
    tsb *out;                       /* where output goes now                                      */
    tdict *vars;                    /* what the caller supplied                                   */
    int64_t now_unix;
    uint64_t steps, max_steps;
    size_t mem, max_mem, max_output;
    unsigned depth;
    uint8_t signal;                 /* SIGNAL_*: a break or continue under way                    */
} tctx;

enum {
    TMPL_MAX_DEPTH = 1000,          /* nested evaluations, about 1 KiB of stack each              */
    TMPL_MAX_DATA_DEPTH = 128,      /* nesting of containers when compared, printed or copied     */
    TMPL_MAX_RANGE = 100000,        /* as in Jinja's sandbox                                      */
    TMPL_BYTES_PER_STEP = 32        /* price of handling text                                     */
};

/* Fill the error with line and column of ctx->at; returns code. */
int tmpl__fail(tctx *, int code, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
#define T_FAIL(cx, code, ...)                                                                      \
    tmpl__fail((cx), (code), __FILE__ ":" HT_STR(__LINE__), __VA_ARGS__)
#define T_TYPE(cx, ...) T_FAIL(cx, HT_EARG, __VA_ARGS__)

/* Zeroed memory for count items, or NULL with the error set. */
void *tmpl__alloc(tctx *, size_t count, size_t size);
/* ptr = new zeroed array; leaves the function on failure. */
#define T_NEW(cx, ptr, count)                                                                      \
    do {                                                                                           \
        (ptr) = tmpl__alloc((cx), (count), sizeof *(ptr));                                         \
        if (!(ptr)) return HT_ENOMEM;                                                              \
    } while (0)
HT_MUST_USE int tmpl__cost(tctx *, uint64_t steps);
HT_MUST_USE int tmpl__cost_bytes(tctx *, size_t n);

/* ---- text.c: strings and builders ------------------------------------------------------------ */
HT_MUST_USE int tmpl__sb_add(tctx *, tsb *, const char *p, size_t n, bool in);
HT_MUST_USE int tmpl__sb_lit(tctx *, tsb *, const char *s);                     /* not from input */
HT_MUST_USE int tmpl__sb_str(tctx *, tsb *, const tstr *, size_t from, size_t n);
HT_MUST_USE int tmpl__sb_val(tctx *, tsb *, tval str);
HT_MUST_USE int tmpl__sb_done(tctx *, tsb *, tval *out);
HT_MUST_USE int tmpl__str_new(tctx *, const char *p, size_t n, bool in, tval *out);  /* no copy   */
HT_MUST_USE int tmpl__str_cut(tctx *, const tstr *, size_t from, size_t n, tval *out);
bool tmpl__str_eq(const tstr *, const tstr *);
bool tmpl__str_is(const tstr *, const char *word);
bool tmpl__str_marked(const tstr *);                                            /* any byte       */
bool tmpl__mark_at(const tstr *, size_t i);
size_t tmpl__str_len(const tstr *);                                             /* code points    */
size_t tmpl__str_off(const tstr *, size_t cp);            /* byte offset of the cp-th code point  */
/* First occurrence of needle at or after from; SIZE_MAX when there is none. */
size_t tmpl__str_find(const tstr *hay, size_t from, const tstr *needle);
bool tmpl__is_space(uint32_t cp);                                               /* str.isspace    */
enum { TRIM_LEFT = 1, TRIM_RIGHT = 2 };
HT_MUST_USE int tmpl__trim(tctx *, const tstr *, const tstr *chars, int sides, tval *out);
enum tmpl__case {
    CASE_UPPER, CASE_LOWER,
    CASE_TITLE,                     /* Jinja's filter: a word begins after a space - ( { [ <      */
    CASE_CAPITALIZE,
    CASE_WORDS                      /* str.title(): a word begins after anything without case     */
};
HT_MUST_USE int tmpl__recase(tctx *, const tstr *, enum tmpl__case, tval *out);
HT_MUST_USE int tmpl__replace(tctx *, const tstr *, const tstr *old, const tstr *new_s,
                              int64_t count, tval *out);
HT_MUST_USE int tmpl__lines(tctx *, const tstr *, bool keep_ends, tval *out);   /* splitlines     */
/* unicode.c (tables generated): one code point to at most 3. */
unsigned tmpl__cp_case(uint32_t cp, enum tmpl__case, uint32_t out[3]);
bool tmpl__cp_cased(uint32_t cp);
bool tmpl__cp_printable(uint32_t cp);

/* ---- value.c: Python semantics of values ----------------------------------------------------- */
tval tmpl__none(void), tmpl__bool(bool), tmpl__int(int64_t), tmpl__float(double);
tval tmpl__undef(const char *hint);
HT_MUST_USE int tmpl__undef_name(tctx *, const char *fmt, const char *p, size_t n, tval *out);
HT_MUST_USE int tmpl__list_new(tctx *, size_t cap, tlist **out);
HT_MUST_USE int tmpl__list_push(tctx *, tlist *, tval);
HT_MUST_USE int tmpl__dict_new(tctx *, size_t cap, tdict **out);
HT_MUST_USE int tmpl__dict_find(tctx *, const tdict *, tval key, tpair **out);  /* NULL: absent   */
HT_MUST_USE int tmpl__dict_set(tctx *, tdict *, tval key, tval v);
tval tmpl__of_list(tlist *), tmpl__of_tuple(tlist *), tmpl__of_dict(tdict *);
HT_MUST_USE int tmpl__gen_new(tctx *, tlist *, uint8_t type, const char *kind, tval *out);
const char *tmpl__type_name(tval);                                              /* Python's       */
bool tmpl__is_number(tval);                                                     /* bool included  */
bool tmpl__is_int(tval);                                                        /* bool included  */
int64_t tmpl__as_int(tval);
double tmpl__as_double(tval);
HT_MUST_USE int tmpl__truth(tctx *, tval, bool *out);
HT_MUST_USE int tmpl__equal(tctx *, tval, tval, bool *out);
HT_MUST_USE int tmpl__order(tctx *, int op, tval, tval, bool *out);             /* < <= > >=      */
HT_MUST_USE int tmpl__contains(tctx *, tval container, tval item, bool *out);
HT_MUST_USE int tmpl__length(tctx *, tval, size_t *out);
/* All items of an iterable as a list of their own (generators are used up). */
HT_MUST_USE int tmpl__collect(tctx *, tval, tlist **out);
HT_MUST_USE int tmpl__to_str(tctx *, tval, tval *out);                          /* str()          */
HT_MUST_USE int tmpl__write_str(tctx *, tsb *, tval);
void tmpl__float_repr(double, char out[40]);
HT_MUST_USE int tmpl__binary(tctx *, int op, tval, tval, tval *out);            /* number.c       */
HT_MUST_USE int tmpl__parse_int(tctx *, const tstr *, int base, bool *ok, int64_t *out);
HT_MUST_USE int tmpl__parse_float(tctx *, const tstr *, bool *ok, double *out);
HT_MUST_USE int tmpl__round(tctx *, tval, int64_t digits, tval *out);
HT_MUST_USE int tmpl__sort(tctx *, tlist *items, tlist *keys, bool reverse);    /* stable         */
/* With autoescape off `safe` does nothing, except that joining a safe and a plain string would
 * escape the plain one. That is refused rather than rendered wrongly. */
HT_MUST_USE int tmpl__markup_ok(tctx *, tval, tval);

/* ---- json.c ---------------------------------------------------------------------------------- */
HT_MUST_USE int tmpl__from_json(tctx *, const ht_json *, bool in, tval *out);
typedef struct {
    bool ascii, sort_keys, pretty;
    tval indent;                    /* a string: one level                                        */
    tval item_sep, key_sep;
} tjson;
HT_MUST_USE int tmpl__to_json(tctx *, tval, const tjson *, tval *out);

/* ---- calls: filters, tests, methods, globals ------------------------------------------------- */
typedef struct {
    const tval *arg; size_t n_arg;
    const tname *const *kw; const tval *kwv; size_t n_kw;
} tcall;
enum { CALL_MAX_PARAMS = 5 };
typedef struct {
    const char *name;
    int (*fn)(tctx *, tval self, const tcall *, const tval *p, tval *out);
    uint8_t required;               /* how many of params must be given                           */
    bool variadic;                  /* fn reads the call itself; params unused                    */
    bool plain;                     /* the text it gives is not `safe`, even if its input was     */
    const char *params[CALL_MAX_PARAMS];
} tbuiltin;
struct tmethod { tval self; const tbuiltin *fn; };
struct tfunc { tbuiltin b; };
/* Bind arguments to parameters as Python would, then call. */
HT_MUST_USE int tmpl__invoke(tctx *, const tbuiltin *, const char *what, tval self, const tcall *,
                             tval *out);
const tbuiltin *tmpl__find_filter(const char *p, size_t n);
const tbuiltin *tmpl__find_test(const char *p, size_t n);
bool tmpl__known_filter(const char *p, size_t n);         /* Jinja has it, we do not              */
HT_MUST_USE int tmpl__method(tctx *, tval self, const char *p, size_t n, tval *out, bool *found);
HT_MUST_USE int tmpl__global(tctx *, const tname *, tval *out, bool *found);

/* ---- eval.c, exec.c, access.c ---------------------------------------------------------------- */
HT_MUST_USE int tmpl__eval(tctx *, const tnode *, tval *out);
HT_MUST_USE int tmpl__filter_chain(tctx *, const tnode *, tval in, tval *out);
HT_MUST_USE int tmpl__exec(tctx *, const tnode *);
HT_MUST_USE int tmpl__attr(tctx *, tval, const char *p, size_t n, tval *out);        /* a.b       */
HT_MUST_USE int tmpl__item(tctx *, tval, tval key, tval *out);                       /* a[b]      */
HT_MUST_USE int tmpl__slice(tctx *, tval, const tval bound[3], tval *out);
HT_MUST_USE int tmpl__call_value(tctx *, tval fn, const tcall *, tval *out);
HT_MUST_USE int tmpl__push_scope(tctx *);
void tmpl__pop_scope(tctx *);
HT_MUST_USE int tmpl__bind_var(tctx *, const tname *, tval);
HT_MUST_USE int tmpl__lookup(tctx *, const tname *, tval *out);
HT_MUST_USE int tmpl__loop_attr(tctx *, tloop *, const char *p, size_t n, tval *out, bool *found);
HT_MUST_USE int tmpl__loop_call(tctx *, tloop *, const tcall *, tval *out);          /* recursive */
struct tmacro { const tnode *node; tscope *scope; };
HT_MUST_USE int tmpl__macro_call(tctx *, const tmacro *, const tcall *, tval *out);
HT_MUST_USE int tmpl__strftime(tctx *, const tstr *format, tval *out);
#endif
