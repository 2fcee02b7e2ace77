/* split.c - hand-written splitters against pcre2 running the pattern they stand for, and by
 * example. */
#include "tok/unicode.h"
#include "util.h"

enum { PLANES = 0x20000 };

/* agree[cp]: pcre2 (Unicode 14) and our tables (16) put cp into the same sets. */
static bool agree[PLANES];

static bool matches(const tok_rx *rx, tok_rx_work *w, const char *s, size_t n)
{
    ht_err e = {0};
    size_t a, b;
    T_OK(tok__rx_next(rx, w, s, n, 0, &a, &b, &e), e);
    return a == 0 && b == n;
}

static void compare_classes(void)
{
    static const struct {
        const char *pattern;
        uint32_t set;
    } sets[] = {{"\\p{L}", UC_L},
                {"\\p{N}", UC_N},
                {"\\p{M}", UC_M},
                {"\\s", UC_S},
                {"\\p{Lu}", UC_BIT(UC_LU)},
                {"\\p{Ll}", UC_BIT(UC_LL)},
                {"\\p{Lt}", UC_BIT(UC_LT)},
                {"\\p{Lm}", UC_BIT(UC_LM)},
                {"\\p{P}", UC_P},
                {"\\p{S}", UC_BIT(UC_SYMBOL)},
                {"\\w", UC_WORD & ~UC_BIT(UC_NL)}};
    memset(agree, 1, sizeof agree);
    for (size_t k = 0; k < sizeof sets / sizeof *sets; k++) {
        ht_err e = {0};
        tok_rx *rx;
        tok_rx_work *w;
        unsigned differ = 0, in = 0;
        T_OK(tok__rx_new(&rx, sets[k].pattern, strlen(sets[k].pattern), &e), e);
        T_OK(tok__rx_work_new(&w, rx, &e), e);
        for (uint32_t cp = 1; cp < PLANES; cp++) {
            char c[4];
            if (cp >= 0xd800 && cp < 0xe000) continue;
            size_t n = ht_utf8_put(cp, c);
            bool ours = tok__uni_bit(cp) & sets[k].set;
            in += ours;
            if (matches(rx, w, c, n) != ours) {
                agree[cp] = false;
                differ++;
            }
        }
        T_CHECK(in > 5 && differ < 5000, "%s: %u members, %u differ", sets[k].pattern, in, differ);
        if (sets[k].set == UC_S) T_EQ_INT(differ, 0);
        tok__rx_work_free(w);
        tok__rx_free(rx);
    }
}

T_CASE_SECONDS(split, hand_written_equals_pcre2, 120)
{
    uint64_t seed = 20261129, pieces = 0;
    compare_classes();
    unsigned rounds = t_full() ? 60000 : 6000;
    for (unsigned kind = TOK_ST_GPT2; kind <= TOK_ST_DIGITS; kind++) {
        const char *pattern = tok__split_pattern(kind);
        ht_err e = {0};
        tok_rx *rx;
        tok_rx_work *w;
        T_OK(tok__rx_new(&rx, pattern, strlen(pattern), &e), e);
        T_OK(tok__rx_work_new(&w, rx, &e), e);
        for (unsigned r = 0; r < rounds; r++) {
            char s[4 * 24];
            size_t n = 0, a, b;
            for (unsigned k = (unsigned)(t_rand(&seed) % 24); k; k--) {
                uint32_t cp = u_random_cp(&seed);
                if (agree[cp]) n += ht_utf8_put(cp, s + n);
            }
            for (size_t i = 0, len; i < n; i += len) {
                len = tok__split(kind, s + i, n - i);
                T_OK(tok__rx_next(rx, w, s, n, i, &a, &b, &e), e);
                if (a > i) b = a; /* digits: the gap before a match is a piece too */
                T_CHECK(len == b - i, "kind %u, round %u, byte %zu of \"%.*s\": %zu, pcre2 %zu",
                        kind, r, i, (int)n, s, len, b - i);
                pieces++;
            }
        }
        tok__rx_work_free(w);
        tok__rx_free(rx);
    }
    T_CHECK(pieces > 100000, "%llu pieces", (unsigned long long)pieces);
}

/* The pieces of s as "a|b|c". */
static const char *cut(enum tok_stage_kind kind, const char *s)
{
    static char out[256];
    size_t n = strlen(s), k = 0;
    for (size_t i = 0, len; i < n; i += len) {
        len = tok__split(kind, s + i, n - i);
        if (i) out[k++] = '|';
        memcpy(out + k, s + i, len);
        k += len;
    }
    out[k] = '\0';
    return out;
}

T_CASE(split, examples)
{
    T_EQ_STR(cut(TOK_ST_GPT2, "I'll go  now 123 !!"), "I|'ll| go| | now| 123| !!");
    T_EQ_STR(cut(TOK_ST_GPT2, "I'LL"), "I|'|LL");
    T_EQ_STR(cut(TOK_ST_LLAMA3, "I'LL 12345"), "I|'LL| |123|45");
    T_EQ_STR(cut(TOK_ST_QWEN2, "a\n\n  b 12"), "a|\n\n| | b| |1|2");
    T_EQ_STR(cut(TOK_ST_QWEN2, "it'\xc5\xbf x"), "it|'\xc5\xbf| x"); /* long s folds to s */
    T_EQ_STR(cut(TOK_ST_GPT2, "it'\xc5\xbf"), "it|'|\xc5\xbf");
    T_EQ_STR(cut(TOK_ST_QWEN2, "(word) //\n x"), "(word|)| //\n| x");
    T_EQ_STR(cut(TOK_ST_GPT4O, "CamelCase's HTTPServer a//\nb"),
             "Camel|Case's| HTTPServer| a|//\n|b");
    T_EQ_STR(cut(TOK_ST_TEKKEN, "camelCase 12"), "camel|Case| |1|2");
    T_EQ_STR(cut(TOK_ST_DIGIT, "ab12c"), "ab|1|2|c");
    T_EQ_STR(cut(TOK_ST_DIGITS, "ab12c"), "ab|12|c");
    T_EQ_STR(cut(TOK_ST_QWEN2, "\xff\xff"
                               "a"),
             "\xff\xff|a"); /* malformed: other characters */
}

T_CASE(split, pieces_cover_any_bytes)
{
    uint64_t seed = 7;
    for (unsigned r = 0; r < 20000; r++) {
        char s[32];
        size_t n = (size_t)(t_rand(&seed) % sizeof s), i = 0;
        for (size_t k = 0; k < n; k++) s[k] = (char)t_rand(&seed);
        unsigned kind = TOK_ST_GPT2 + r % (TOK_ST_DIGITS - TOK_ST_GPT2 + 1);
        while (i < n) {
            size_t len = tok__split(kind, s + i, n - i);
            T_CHECK(len > 0 && len <= n - i, "kind %u: piece of %zu of %zu", kind, len, n - i);
            i += len;
        }
    }
}

T_CASE(split, patterns_pcre2_would_read_otherwise_are_refused)
{
    static const char *const bad[] = {"[a[bc]]", "[a&&b]",  "\\h+", "\\bx", "a{1,2}+",
                                      "(?m:.)",  "(*UTF)a", "\\K",  "[]a]", "\\"};
    static const char *const broken[] = {"(a", "a)", "[z-a]", "*a"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ht_err e = {0};
        tok_rx *rx;
        T_ERR(tok__rx_new(&rx, bad[i], strlen(bad[i]), &e), HT_EUNSUPPORTED, e, "--pre NAME");
    }
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        ht_err e = {0};
        tok_rx *rx;
        T_ERR(tok__rx_new(&rx, broken[i], strlen(broken[i]), &e), HT_EFORMAT, e, "pattern");
    }
}

T_CASE(split, pattern_work_is_bounded)
{
    const char *pattern = "(a+a+)+[bc]";
    char s[64];
    ht_err e = {0};
    tok_rx *rx;
    tok_rx_work *w;
    size_t a, b;
    memset(s, 'a', sizeof s);
    T_OK(tok__rx_new(&rx, pattern, strlen(pattern), &e), e);
    T_OK(tok__rx_work_new(&w, rx, &e), e);
    T_ERR(tok__rx_next(rx, w, s, sizeof s, 0, &a, &b, &e), HT_EUNSUPPORTED, e, "too many steps");
    tok__rx_work_free(w);
    tok__rx_free(rx);
}
