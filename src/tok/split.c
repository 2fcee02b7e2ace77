/* split.c - the hand-written splitters. Each function is its pattern (tok__split_pattern) read as
 * an ordered choice at one position; where the regex engine would backtrack, the comment says over
 * what, and the code goes there directly. tests/unit/tok/split.c holds them against pcre2. */
#include "tok/split.h"
#include "tok/unicode.h"

/* Class bit of the character at i, 0 at the end; *len its length. */
static uint32_t at(const char *s, size_t n, size_t i, unsigned *len)
{
    uint32_t cp, bit;
    *len = 0;
    if (i >= n) return 0;
    *len = tok__next(s + i, n - i, &cp, &bit);
    return bit;
}

/* End of the run, from i, of characters whose class is in set. */
static size_t run(const char *s, size_t n, size_t i, uint32_t set)
{
    unsigned len;
    while (at(s, n, i, &len) & set) i += len;
    return i;
}

static size_t run_newlines(const char *s, size_t n, size_t i, bool slash)
{
    while (i < n && (s[i] == '\r' || s[i] == '\n' || (slash && s[i] == '/'))) i++;
    return i;
}

/* 's 't 'm 'd 're 've 'll at i: length, or 0. fold: any case, and U+017F, which folds to s. */
static size_t contraction(const char *s, size_t n, size_t i, bool fold)
{
    if (n - i < 2 || s[i] != '\'') return 0;
    unsigned char mask = fold ? 0x20 : 0, a = (unsigned char)s[i + 1] | mask;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (n - i < 3) return 0;
    if (fold && (unsigned char)s[i + 1] == 0xc5 && (unsigned char)s[i + 2] == 0xbf) return 3;
    unsigned char b = (unsigned char)s[i + 2] | mask;
    if ((a == 'r' || a == 'v') && b == 'e') return 3;
    return a == 'l' && b == 'l' ? 3 : 0;
}

/* \s+(?!\S)|\s+ on s[0] white: the run, without its last character when something follows it and
 * another character is left. */
static size_t whitespace(const char *s, size_t n)
{
    size_t i = 0, last = 0;
    unsigned len;
    while (at(s, n, i, &len) & UC_S) {
        last = i;
        i += len;
    }
    return i < n && last ? last : i;
}

/* \s*[\r\n]+ on s[0] white: up to the last newline of the white run, which is where giving back
 * from the greedy \s* ends; 0 when the run has none. */
static size_t newline_run(const char *s, size_t n)
{
    size_t i = 0, end = 0;
    unsigned len;
    while (at(s, n, i, &len) & UC_S) {
        if (s[i] == '\r' || s[i] == '\n') end = i + 1;
        i += len;
    }
    return end;
}

static size_t split_gpt2(const char *s, size_t n)
{
    size_t c = contraction(s, n, 0, false);
    if (c) return c;
    size_t i = s[0] == ' ';
    unsigned len;
    uint32_t bit = at(s, n, i, &len);
    if (bit & UC_L) return run(s, n, i, UC_L);
    if (bit & UC_N) return run(s, n, i, UC_N);
    if (bit && !(bit & UC_S)) return run(s, n, i, ~(UC_S | UC_L | UC_N));
    return whitespace(s, n);
}

/* [^\r\n\p{L}\p{N}]? at s[0]: its length, 0 when the character cannot be the prefix. */
static size_t prefix(const char *s, size_t n)
{
    unsigned len;
    uint32_t bit = at(s, n, 0, &len);
    return bit & (UC_L | UC_N) || s[0] == '\r' || s[0] == '\n' ? 0 : len;
}

/* [^\r\n\p{L}\p{N}]?[letters]+ : the optional prefix is tried first, then without it. */
static size_t word(const char *s, size_t n, uint32_t letters)
{
    size_t p = prefix(s, n);
    unsigned len;
    if (p && at(s, n, p, &len) & letters) return run(s, n, p, letters);
    return at(s, n, 0, &len) & letters ? run(s, n, 0, letters) : 0;
}

#define CASE_UPPER (UC_BIT(UC_LU) | UC_BIT(UC_LT) | UC_BIT(UC_LM) | UC_BIT(UC_LO) | UC_M)
#define CASE_LOWER (UC_BIT(UC_LL) | UC_BIT(UC_LM) | UC_BIT(UC_LO) | UC_M)

/* [upper]*[lower]+ from i; 0: no match. When the greedy upper run is not followed by a lower
 * letter, it gives back to the last character that is also in lower (Lm, Lo, M), which then is the
 * whole of [lower]+, since what follows it is Lu or Lt. */
static size_t upper_lower(const char *s, size_t n, size_t i)
{
    size_t back = 0;
    unsigned len;
    uint32_t bit;
    while ((bit = at(s, n, i, &len)) & CASE_UPPER) {
        i += len;
        if (bit & CASE_LOWER) back = i;
    }
    return bit & CASE_LOWER ? run(s, n, i, CASE_LOWER) : back;
}

/* [upper]+[lower]* from i; 0: no match. */
static size_t upper_then(const char *s, size_t n, size_t i)
{
    size_t j = run(s, n, i, CASE_UPPER);
    return j == i ? 0 : run(s, n, j, CASE_LOWER);
}

/* The two word alternatives of tekken and gpt-4o. */
static size_t case_word(const char *s, size_t n)
{
    size_t p = prefix(s, n), e = p ? upper_lower(s, n, p) : 0;
    if (!e) e = upper_lower(s, n, 0);
    if (!e && p) e = upper_then(s, n, p);
    return e ? e : upper_then(s, n, 0);
}

static size_t digits(const char *s, size_t n, unsigned max)
{
    size_t i = 0;
    unsigned len;
    while (max-- && at(s, n, i, &len) & UC_N) i += len;
    return i;
}

/* What the llama3 family has after its word alternatives: numbers, symbols, white space. */
static size_t tail(const char *s, size_t n, unsigned max_digits, uint32_t not_symbol, bool slash)
{
    size_t e = digits(s, n, max_digits), i = s[0] == ' ';
    unsigned len;
    if (e) return e;
    uint32_t bit = at(s, n, i, &len);
    if (bit && !(bit & not_symbol)) return run_newlines(s, n, run(s, n, i, ~not_symbol), slash);
    e = newline_run(s, n);
    return e ? e : whitespace(s, n);
}

static size_t split_llama3(const char *s, size_t n, unsigned max_digits, uint32_t letters)
{
    size_t e = contraction(s, n, 0, true);
    if (!e) e = word(s, n, letters);
    return e ? e : tail(s, n, max_digits, UC_S | letters | UC_N, false);
}

static size_t split_gpt4o(const char *s, size_t n)
{
    size_t e = case_word(s, n);
    return e ? e + contraction(s, n, e, true) : tail(s, n, 3, UC_S | UC_L | UC_N, true);
}

static size_t split_tekken(const char *s, size_t n)
{
    size_t e = case_word(s, n);
    return e ? e : tail(s, n, 1, UC_S | UC_L | UC_N, true);
}

size_t tok__split(enum tok_stage_kind kind, const char *s, size_t n)
{
    size_t e;
    switch (kind) {
    case TOK_ST_GPT2: return split_gpt2(s, n);
    case TOK_ST_LLAMA3: return split_llama3(s, n, 3, UC_L);
    case TOK_ST_QWEN2: return split_llama3(s, n, 1, UC_L);
    case TOK_ST_QWEN35: return split_llama3(s, n, 1, UC_L | UC_M);
    case TOK_ST_TEKKEN: return split_tekken(s, n);
    case TOK_ST_GPT4O: return split_gpt4o(s, n);
    case TOK_ST_DIGIT: e = digits(s, n, 1); return e ? e : run(s, n, 0, ~UC_N);
    case TOK_ST_DIGITS: e = run(s, n, 0, UC_N); return e ? e : run(s, n, 0, ~UC_N);
    default: return n;
    }
}

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PREFIX       "[^\\r\\n\\p{L}\\p{N}]?"
#define WHITE        "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SYMBOLS      " ?[^\\s\\p{L}\\p{N}]+"

const char *tok__split_pattern(enum tok_stage_kind kind)
{
    switch (kind) {
    case TOK_ST_GPT2: return CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+|" SYMBOLS "|\\s+(?!\\S)|\\s+";
    case TOK_ST_LLAMA3:
        return "(?i:" CONTRACTIONS ")|" PREFIX "\\p{L}+|\\p{N}{1,3}|" SYMBOLS "[\\r\\n]*|" WHITE;
    case TOK_ST_QWEN2:
        return "(?i:" CONTRACTIONS ")|" PREFIX "\\p{L}+|\\p{N}|" SYMBOLS "[\\r\\n]*|" WHITE;
    case TOK_ST_QWEN35:
        return "(?i:" CONTRACTIONS ")|" PREFIX
               "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" WHITE;
    case TOK_ST_TEKKEN:
        return PREFIX UPPER "*" LOWER "+|" PREFIX UPPER "+" LOWER "*|\\p{N}|" SYMBOLS
                            "[\\r\\n/]*|" WHITE;
    case TOK_ST_GPT4O:
        return PREFIX UPPER "*" LOWER "+(?i:" CONTRACTIONS ")?|" PREFIX UPPER "+" LOWER
                            "*(?i:" CONTRACTIONS ")?|\\p{N}{1,3}|" SYMBOLS "[\\r\\n/]*|" WHITE;
    case TOK_ST_DIGIT: return "\\p{N}";
    case TOK_ST_DIGITS: return "\\p{N}+";
    default: return NULL;
    }
}
