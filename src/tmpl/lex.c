/* lex.c - template source to tokens, with Jinja's white-space rules as chat templates expect them:
 * trim_blocks (a newline after a block or comment tag goes), lstrip_blocks (blanks before one at
 * the start of a line go), "-" strips all white space on its side, "+" keeps it. One newline at the
 * very end is dropped and every newline is "\n". Neighbours: ast.h (ttok), expr.c and parse.c
 * (readers). */
#include "core/utf8.h"
#include "tmpl/eval.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ht_arena *arena;
    ht_err *err;
    const char *s; /* normalised source                                          */
    size_t n, pos;
    size_t mark;        /* position counting: everything before mark is counted       */
    uint32_t line, col; /* of mark                                                    */
    ttok *tok;
    size_t n_tok, cap_tok;
    bool line_starting;        /* the last tag ended with a newline (or none came yet)       */
    char stack[TMPL_MAX_NEST]; /* open brackets inside the current tag                       */
    size_t n_stack;
} tlex;

/* Move the position counter forward to off (positions are asked for in rising order). */
static void locate(tlex *lx, size_t off, uint32_t *line, uint32_t *col)
{
    for (; lx->mark < off; lx->mark++) {
        unsigned char c = (unsigned char)lx->s[lx->mark];
        if (c == '\n') {
            lx->line++;
            lx->col = 1;
        } else if ((c & 0xC0) != 0x80) {
            lx->col++;
        }
    }
    *line = lx->line;
    *col = lx->col;
}

static int fail_at(tlex *lx, size_t off, const char *what)
{
    uint32_t line, col;
    lx->mark = 0; /* an error may point back: count again                       */
    lx->line = lx->col = 1;
    locate(lx, off, &line, &col);
    return HT_FAIL(lx->err, HT_EFORMAT, "chat template, line %u column %u: %s", line, col, what);
}

static int emit(tlex *lx, int type, size_t off, const char *p, size_t n, ttok **out)
{
    if (lx->n_tok == lx->cap_tok) {
        size_t cap = lx->cap_tok ? lx->cap_tok * 2 : 256;
        ttok *grown = ht_arena_array(lx->arena, cap, sizeof *grown);
        if (!grown) return HT_FAIL(lx->err, HT_ENOMEM, "chat template: no memory for tokens");
        if (lx->n_tok) memcpy(grown, lx->tok, lx->n_tok * sizeof *grown);
        lx->tok = grown;
        lx->cap_tok = cap;
    }
    ttok *t = &lx->tok[lx->n_tok++];
    t->type = (uint8_t)type;
    t->p = p;
    t->n = n;
    locate(lx, off, &t->line, &t->col);
    if (out) *out = t;
    return 0;
}

/* Length of the white-space code point at s[i], or 0. */
static size_t space_at(const tlex *lx, size_t i)
{
    uint32_t cp;
    if (i >= lx->n) return 0;
    unsigned k = ht_utf8_next(lx->s + i, lx->n - i, &cp);
    return k && tmpl__is_space(cp) ? k : 0;
}

static size_t skip_space(const tlex *lx, size_t i)
{
    for (size_t k; (k = space_at(lx, i)) != 0;) i += k;
    return i;
}

/* End of s[from..to) without trailing white space. */
static size_t rstrip(const tlex *lx, size_t from, size_t to)
{
    while (to > from) {
        size_t i = to - 1;
        while (i > from && ((unsigned char)lx->s[i] & 0xC0) == 0x80) i--;
        if (space_at(lx, i) != to - i) break;
        to = i;
    }
    return to;
}

static bool looking_at(const tlex *lx, size_t i, const char *word)
{
    size_t k = strlen(word);
    return lx->n - i >= k && memcmp(lx->s + i, word, k) == 0;
}

/* Text [from,to) in front of a tag with this sign; `variable`: a "{{" keeps its indentation. */
static int emit_data(tlex *lx, size_t from, size_t to, char sign, bool variable)
{
    if (sign == '-') {
        to = rstrip(lx, from, to);
    } else if (sign != '+' && !variable) {
        size_t line = to;
        while (line > from && lx->s[line - 1] != '\n') line--;
        if ((line > from || lx->line_starting) && skip_space(lx, line) >= to) to = line;
    }
    return to > from ? emit(lx, TK_DATA, from, lx->s + from, to - from, NULL) : 0;
}

static char sign_at(const tlex *lx, size_t i)
{
    return i < lx->n && (lx->s[i] == '-' || lx->s[i] == '+') ? lx->s[i] : 0;
}

/* After a closing "%}" or "#}" ending at i, which had this sign in front: what else is
 * swallowed. */
static size_t after_close(const tlex *lx, size_t i, char sign)
{
    if (sign == '-') return skip_space(lx, i);
    if (sign != '+' && i < lx->n && lx->s[i] == '\n') return i + 1;
    return i;
}

static void end_tag(tlex *lx, size_t pos)
{
    lx->pos = pos;
    lx->line_starting = pos > 0 && lx->s[pos - 1] == '\n';
}

static int lex_comment(tlex *lx, size_t open)
{
    size_t start = open + 2 + (sign_at(lx, open + 2) ? 1 : 0);
    for (size_t i = start; i + 1 < lx->n; i++) {
        if (lx->s[i] != '#' || lx->s[i + 1] != '}') continue;
        char sign = i > start && (lx->s[i - 1] == '-' || lx->s[i - 1] == '+') ? lx->s[i - 1] : 0;
        end_tag(lx, after_close(lx, i + 2, sign));
        return 0;
    }
    return fail_at(lx, open, "this comment is not closed with '#}'");
}

/* Is "{%" at i followed by the word and "%}"? Then *end is past the tag. */
static bool word_tag(const tlex *lx, size_t i, const char *word, bool end_signs, char *sign,
                     size_t *end)
{
    if (!looking_at(lx, i, "{%")) return false;
    *sign = sign_at(lx, i + 2);
    size_t j = skip_space(lx, i + 2 + (*sign ? 1 : 0));
    if (!looking_at(lx, j, word)) return false;
    j = skip_space(lx, j + strlen(word));
    if (looking_at(lx, j, "-%}")) {
        *end = skip_space(lx, j + 3);
    } else if (end_signs && looking_at(lx, j, "+%}")) {
        *end = j + 3;
    } else if (looking_at(lx, j, "%}")) {
        /* trim_blocks does not apply to the opening tag of a raw block */
        *end = end_signs ? after_close(lx, j + 2, 0) : j + 2;
    } else {
        return false;
    }
    return true;
}

static int lex_raw(tlex *lx, size_t open, size_t start)
{
    end_tag(lx, start);
    for (size_t i = start; i < lx->n; i++) {
        char sign;
        size_t end;
        if (lx->s[i] != '{' || !word_tag(lx, i, "endraw", true, &sign, &end)) continue;
        HT_TRY(emit_data(lx, start, i, sign, false));
        end_tag(lx, end);
        return 0;
    }
    return fail_at(lx, open, "this raw block has no endraw");
}

static bool is_digit(char c, int base)
{
    if (base <= 10) return c >= '0' && c < '0' + base;
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

/* Digits with single underscores between them; returns the position behind. */
static size_t digits(const tlex *lx, size_t i, int base)
{
    while (i < lx->n) {
        if (is_digit(lx->s[i], base)) {
            i++;
        } else if (lx->s[i] == '_' && i + 1 < lx->n && is_digit(lx->s[i + 1], base)) {
            i += 2;
        } else {
            break;
        }
    }
    return i;
}

static int int_value(tlex *lx, size_t from, size_t to, int base, int64_t *out)
{
    uint64_t v = 0;
    for (size_t i = from; i < to; i++) {
        char c = lx->s[i];
        if (c == '_') continue;
        unsigned dgt = c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 32) - 'a' + 10);
        if (v > ((uint64_t)INT64_MAX - dgt) / (unsigned)base) {
            uint32_t line, col;
            locate(lx, from, &line, &col);
            return HT_FAIL(lx->err, HT_EUNSUPPORTED,
                           "chat template, line %u column %u: integers beyond 64 bits", line, col);
        }
        v = v * (unsigned)base + dgt;
    }
    *out = (int64_t)v;
    return 0;
}

/* The number is plain digits, '.', 'e' and sign: JSON's grammar once leading zeros and underscores
 * are gone, so core's locale-free reader converts it. */
static int float_value(tlex *lx, size_t from, size_t to, double *out)
{
    char buf[512];
    size_t n = 0;
    while (from + 1 < to && (lx->s[from] == '0' || lx->s[from] == '_') &&
           is_digit(lx->s[from + 1], 10))
        from++;
    for (size_t i = from; i < to; i++) {
        if (lx->s[i] == '_') continue;
        if (n + 1 >= sizeof buf) return fail_at(lx, from, "this number is too long");
        buf[n++] = lx->s[i];
    }
    ht_json *j = NULL;
    if (ht_json_parse(lx->arena, buf, n, 0, "number", &j, NULL))
        return fail_at(lx, from, "this number cannot be read");
    *out = j->d;
    return 0;
}

static int lex_number(tlex *lx)
{
    size_t from = lx->pos, i = digits(lx, from, 10);
    bool after_dot = from > 0 && lx->s[from - 1] == '.';
    size_t j = i;
    if (j + 1 < lx->n && lx->s[j] == '.' && is_digit(lx->s[j + 1], 10)) j = digits(lx, j + 1, 10);
    if (j < lx->n && (lx->s[j] | 32) == 'e') {
        size_t k = j + 1;
        if (k < lx->n && (lx->s[k] == '+' || lx->s[k] == '-')) k++;
        if (k < lx->n && is_digit(lx->s[k], 10)) j = digits(lx, k, 10);
    }
    ttok *t;
    if (j > i && !after_dot) {
        HT_TRY(emit(lx, TK_FLOAT, from, lx->s + from, j - from, &t));
        lx->pos = j;
        return float_value(lx, from, j, &t->d);
    }
    int base = 10;
    size_t start = from;
    if (lx->s[from] == '0' && from + 2 < lx->n) {
        char x = (char)(lx->s[from + 1] | 32);
        int b = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 10;
        if (b != 10 && is_digit(lx->s[from + 2], b)) {
            base = b;
            start = from + 2;
            i = digits(lx, start, b);
        }
    }
    if (base == 10 && lx->s[from] == '0') {
        for (i = from; i < lx->n && lx->s[i] == '0'; i++) {} /* "012" is 0 followed by 12 */
    }
    HT_TRY(emit(lx, TK_INT, from, lx->s + from, i - from, &t));
    lx->pos = i;
    return int_value(lx, start, i, base, &t->i);
}

static int hex_escape(tlex *lx, size_t at, unsigned want, size_t end, uint32_t *cp)
{
    *cp = 0;
    for (unsigned k = 0; k < want; k++) {
        if (at + k >= end || !is_digit(lx->s[at + k], 16))
            return fail_at(lx, at, "a \\x, \\u or \\U escape in this string is cut short");
        char c = lx->s[at + k];
        *cp = *cp * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (*cp > 0x10FFFF || (*cp >= 0xD800 && *cp < 0xE000))
        return fail_at(lx, at, "this escape is not a Unicode character");
    return 0;
}

/* Decode the escape at s[i] (the backslash) into out; *used is its length in the source. */
static int unescape(tlex *lx, size_t i, size_t end, char out[4], unsigned *n_out, size_t *used)
{
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    char c = lx->s[i + 1];
    uint32_t cp = 0;
    *used = 2;
    *n_out = 1;
    if (c == '\n') {
        *n_out = 0;
        return 0;
    }
    for (size_t k = 0; k + 1 < sizeof plain; k += 2) {
        if (plain[k] != c) continue;
        out[0] = plain[k + 1];
        return 0;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        unsigned want = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        HT_TRY(hex_escape(lx, i + 2, want, end, &cp));
        *used = 2 + want;
    } else if (is_digit(c, 8)) {
        size_t k = i + 1;
        while (k < end && k < i + 4 && is_digit(lx->s[k], 8))
            cp = cp * 8 + (uint32_t)(lx->s[k++] - '0');
        *used = k - i;
    } else if (c == 'N') {
        return fail_at(lx, i, "named characters (\\N{...}) are not supported: write the character");
    } else if ((unsigned char)c >= 0x80) {
        return fail_at(lx, i, "a backslash before a non-ASCII character");
    } else {
        out[0] = '\\'; /* an unknown escape keeps its backslash */
        *used = 1;
        return 0;
    }
    *n_out = ht_utf8_put(cp, out);
    return 0;
}

static int lex_string(tlex *lx)
{
    size_t from = lx->pos, i = from + 1;
    char quote = lx->s[from];
    while (i < lx->n && lx->s[i] != quote) i += lx->s[i] == '\\' ? 2 : 1;
    if (i >= lx->n) return fail_at(lx, from, "this string is not closed");
    /* no escape grows: a backslash form is never shorter than its character */
    char *buf = ht_arena_alloc(lx->arena, i - from);
    if (!buf) return HT_FAIL(lx->err, HT_ENOMEM, "chat template: no memory for a string");
    size_t n = 0;
    ttok *t;
    HT_TRY(emit(lx, TK_STR, from, buf, 0, &t));
    for (size_t k = from + 1; k < i;) {
        if (lx->s[k] != '\\') {
            buf[n++] = lx->s[k++];
            continue;
        }
        char one[4];
        unsigned n_one;
        size_t used;
        HT_TRY(unescape(lx, k, i, one, &n_one, &used));
        memcpy(buf + n, one, n_one);
        n += n_one;
        k += used;
    }
    t->n = n;
    lx->pos = i + 1;
    return 0;
}

static int lex_op(tlex *lx)
{
    static const struct {
        char s[3];
        uint8_t op;
    } ops[] = {{"//", OP_FLOORDIV}, {"**", OP_POW},   {"==", OP_EQ},      {"!=", OP_NE},
               {"<=", OP_LE},       {">=", OP_GE},    {"+", OP_ADD},      {"-", OP_SUB},
               {"/", OP_DIV},       {"*", OP_MUL},    {"%", OP_MOD},      {"~", OP_TILDE},
               {"<", OP_LT},        {">", OP_GT},     {"=", OP_ASSIGN},   {".", OP_DOT},
               {":", OP_COLON},     {"|", OP_PIPE},   {",", OP_COMMA},    {";", OP_SEMI},
               {"(", OP_LPAREN},    {")", OP_RPAREN}, {"[", OP_LBRACKET}, {"]", OP_RBRACKET},
               {"{", OP_LBRACE},    {"}", OP_RBRACE}};
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
        if (!looking_at(lx, lx->pos, ops[k].s)) continue;
        char c = ops[k].s[0];
        if (c == '(' || c == '[' || c == '{') {
            if (lx->n_stack == sizeof lx->stack)
                return fail_at(lx, lx->pos, "brackets are nested too deeply");
            lx->stack[lx->n_stack++] = (char)(c == '(' ? ')' : c + 2);
        } else if (c == ')' || c == ']' || c == '}') {
            if (!lx->n_stack || lx->stack[--lx->n_stack] != c)
                return fail_at(lx, lx->pos, "this closing bracket does not match");
        }
        ttok *t;
        HT_TRY(emit(lx, TK_OP, lx->pos, lx->s + lx->pos, strlen(ops[k].s), &t));
        t->op = ops[k].op;
        lx->pos += t->n;
        return 0;
    }
    return fail_at(lx, lx->pos, "this character has no meaning inside a tag");
}

static bool is_name(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && is_digit(c, 10));
}

/* If the tag ends here, *end is the position behind it and what it swallows. */
static bool tag_ends(const tlex *lx, bool variable, size_t *end)
{
    size_t i = lx->pos;
    if (lx->n_stack) return false;
    char sign = sign_at(lx, i);
    if (sign == '+' && variable) return false;
    size_t j = i + (sign ? 1 : 0);
    if (!looking_at(lx, j, variable ? "}}" : "%}")) return false;
    j += 2;
    *end = variable ? (sign == '-' ? skip_space(lx, j) : j) : after_close(lx, j, sign);
    return true;
}

static int lex_tag(tlex *lx, size_t open, bool variable)
{
    HT_TRY(emit(lx, variable ? TK_VAR_BEGIN : TK_BLOCK_BEGIN, open, lx->s + open, 2, NULL));
    lx->pos = open + 2 + (sign_at(lx, open + 2) ? 1 : 0);
    lx->n_stack = 0;
    for (;;) {
        size_t end;
        if (lx->pos >= lx->n)
            return fail_at(lx, open,
                           variable ? "this '{{' is not closed" : "this '{%' is not closed");
        if (tag_ends(lx, variable, &end)) {
            HT_TRY(
                emit(lx, variable ? TK_VAR_END : TK_BLOCK_END, lx->pos, lx->s + lx->pos, 2, NULL));
            end_tag(lx, end);
            return 0;
        }
        size_t space = space_at(lx, lx->pos);
        char c = lx->s[lx->pos];
        if (space) {
            lx->pos += space;
        } else if (is_digit(c, 10)) {
            HT_TRY(lex_number(lx));
        } else if (is_name(c, true)) {
            size_t i = lx->pos;
            while (i < lx->n && is_name(lx->s[i], false)) i++;
            HT_TRY(emit(lx, TK_NAME, lx->pos, lx->s + lx->pos, i - lx->pos, NULL));
            lx->pos = i;
        } else if (c == '\'' || c == '"') {
            HT_TRY(lex_string(lx));
        } else {
            HT_TRY(lex_op(lx));
        }
    }
}

/* One piece of text and the tag behind it, or the last text. */
static int lex_root(tlex *lx)
{
    size_t from = lx->pos;
    for (size_t i = from; i + 1 < lx->n; i++) {
        if (lx->s[i] != '{') continue;
        char c = lx->s[i + 1];
        if (c != '{' && c != '%' && c != '#') continue;
        char sign;
        size_t start;
        if (word_tag(lx, i, "raw", false, &sign, &start)) {
            HT_TRY(emit_data(lx, from, i, sign, false));
            return lex_raw(lx, i, start);
        }
        HT_TRY(emit_data(lx, from, i, sign_at(lx, i + 2), c == '{'));
        return c == '#' ? lex_comment(lx, i) : lex_tag(lx, i, c == '{');
    }
    lx->pos = lx->n;
    return lx->n > from ? emit(lx, TK_DATA, from, lx->s + from, lx->n - from, NULL) : 0;
}

/* Copy with "\r\n" and "\r" as "\n" and without one final newline. */
static int normalise(tlex *lx, const char *source, size_t n)
{
    char *s = ht_arena_alloc(lx->arena, n + 1);
    if (!s) return HT_FAIL(lx->err, HT_ENOMEM, "chat template: no memory for %zu bytes", n);
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            s[k++] = '\n';
            if (i + 1 < n && source[i + 1] == '\n') i++;
        } else {
            s[k++] = source[i];
        }
    }
    if (k && s[k - 1] == '\n') k--;
    lx->s = s;
    lx->n = k;
    return 0;
}

int tmpl__lex(ht_arena *arena, const char *source, size_t n, ttok **out, size_t *n_tok, ht_err *e)
{
    tlex lx = {.arena = arena, .err = e, .line = 1, .col = 1, .line_starting = true};
    if (n > TMPL_MAX_SOURCE)
        return HT_FAIL(e, HT_EFORMAT, "chat template: %zu bytes, at most %d are read", n,
                       TMPL_MAX_SOURCE);
    size_t good = ht_utf8_valid(source, n);
    if (good != n)
        return HT_FAIL(e, HT_EFORMAT, "chat template: byte %zu is not valid UTF-8", good);
    HT_TRY(normalise(&lx, source, n));
    while (lx.pos < lx.n) HT_TRY(lex_root(&lx));
    HT_TRY(emit(&lx, TK_EOF, lx.n, "", 0, NULL));
    *out = lx.tok;
    *n_tok = lx.n_tok;
    return 0;
}
