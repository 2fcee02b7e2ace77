/* gbnf.c - GBNF against cases worked out by hand: what belongs to a language, what does not, and
 * what is not a grammar. */
#include "core/arena.h"
#include "test.h"
#include "tok/tok.h"

static bool accepts(const char *grammar, const char *text)
{
    ht_err e = {0};
    ht_grammar *g = NULL;
    T_OK(ht_grammar_open(&g, NULL, HT_GRAMMAR_GBNF, grammar, strlen(grammar), &e), e);
    const int rc = ht_grammar_check(g, text, strlen(text), &e);
    T_CHECK(rc == 0 || rc == HT_EFORMAT, "check returned %d: %s", rc, e.msg);
    ht_grammar_close(g);
    return rc == 0;
}

#define YES(g, t) T_CHECK(accepts((g), (t)), "%s should accept \"%s\"", (g), (t))
#define NO(g, t)  T_CHECK(!accepts((g), (t)), "%s should refuse \"%s\"", (g), (t))

T_CASE(gbnf, literals_and_alternatives)
{
    const char *g = "root ::= \"yes\" | \"no\" | \"\\x41\\u00e9\\U0001F600\\n\\\"\"";
    YES(g, "yes");
    YES(g, "no");
    YES(g, "A\xc3\xa9\xf0\x9f\x98\x80\n\"");
    NO(g, "");
    NO(g, "ye");
    NO(g, "yesno");
    NO(g, "A\xc3");
}

T_CASE(gbnf, repetitions)
{
    YES("root ::= \"a\"*", "");
    YES("root ::= \"a\"*", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    NO("root ::= \"a\"+", "");
    YES("root ::= \"a\"+ \"b\"?", "aa");
    YES("root ::= \"a\"+ \"b\"?", "aab");
    NO("root ::= \"a\"+ \"b\"?", "aabb");
    NO("root ::= \"ab\"{2}", "ab");
    YES("root ::= \"ab\"{2}", "abab");
    NO("root ::= \"ab\"{2}", "ababab");
    YES("root ::= \"ab\"{1,3}", "ababab");
    NO("root ::= \"ab\"{1,3}", "abababab");
    NO("root ::= \"ab\"{2,}", "ab");
    YES("root ::= \"ab\"{2,}", "abababababab");
    YES("root ::= \"ab\"{0}", "");
    NO("root ::= \"ab\"{0}", "ab");
    YES("root ::= (\"a\" | \"b\"{2,3}){2} \"c\"", "bbbac");
    NO("root ::= (\"a\" | \"b\"{2,3}){2} \"c\"", "bac");
}

/* A bound of thousands costs a counter, not thousands of nodes. */
T_CASE(gbnf, large_bounds)
{
    char text[3003];
    memset(text, 'x', sizeof text);
    text[3000] = 0;
    YES("root ::= [a-z]{3000}", text);
    NO("root ::= [a-z]{3001}", text);
    YES("root ::= [a-z]{10,60000}", text);
}

T_CASE(gbnf, classes)
{
    YES("root ::= [a-cx0-9_-]+", "abcx09_-");
    NO("root ::= [a-cx0-9_-]+", "d");
    YES("root ::= [^\"\\\\]*", "any\nthing \xe2\x82\xac");
    NO("root ::= [^\"\\\\]*", "with \"");
    YES("root ::= [\\u0400-\\u04FF]{3}", "\xd0\xbc\xd0\xb8\xd1\x80");
    NO("root ::= [\\u0400-\\u04FF]{3}", "mir");
    YES("root ::= .", "\xf4\x8f\xbf\xbf");
    NO("root ::= .", "\xed\xa0\x80"); /* a surrogate is no character */
    NO("root ::= .", "\xc0\x80");     /* an overlong form neither */
    NO("root ::= .", "\xf4\x90\x80\x80");
    YES("root ::= [\\]\\[\\-\\^]{4}", "][-^");
    YES("root ::= [^x]", "\xe2\x82\xac");
}

/* Every code point is in exactly one of a class and its complement. */
T_CASE(gbnf, complement_is_exact)
{
    const uint32_t edge[] = {0x7f,   0x80,   0x7ff,   0x800,    0x801,    0xfff,   0x1000,
                             0xd7ff, 0xe000, 0xfffd,  0xffff,   0x10000,  0x3ffff, 0x40000,
                             0x400,  0x4ff,  0x1f600, 0x10fffe, 0x10ffff, 0x840,   0x1040};
    ht_err e = {0};
    ht_grammar *in = NULL, *out = NULL;
    const char *a = "root ::= [\\u0400-\\u0840\\u1000-\\U0001F600]",
               *b = "root ::= [^\\u0400-\\u0840\\u1000-\\U0001F600]";
    T_OK(ht_grammar_open(&in, NULL, HT_GRAMMAR_GBNF, a, strlen(a), &e), e);
    T_OK(ht_grammar_open(&out, NULL, HT_GRAMMAR_GBNF, b, strlen(b), &e), e);
    for (size_t i = 0; i < sizeof edge / sizeof *edge; i++) {
        char text[4];
        const uint32_t c = edge[i];
        size_t n = 0;
        if (c < 0x80) text[n++] = (char)c;
        else if (c < 0x800) text[n++] = (char)(0xc0 | c >> 6);
        else if (c < 0x10000) text[n++] = (char)(0xe0 | c >> 12);
        else text[n++] = (char)(0xf0 | c >> 18);
        if (c >= 0x10000) text[n++] = (char)(0x80 | (c >> 12 & 63));
        if (c >= 0x800) text[n++] = (char)(0x80 | (c >> 6 & 63));
        if (c >= 0x80) text[n++] = (char)(0x80 | (c & 63));
        const bool want = (c >= 0x400 && c <= 0x840) || (c >= 0x1000 && c <= 0x1f600);
        T_CHECK((ht_grammar_check(in, text, n, &e) == 0) == want, "U+%04X", (unsigned)c);
        T_CHECK((ht_grammar_check(out, text, n, &e) == 0) == !want, "not U+%04X", (unsigned)c);
    }
    ht_grammar_close(in);
    ht_grammar_close(out);
}

static const char arithmetic[] = "# sums\n"
                                 "root  ::= expr \"\\n\"? # the end\n"
                                 "expr  ::= term ( ws [-+] ws term )*\n"
                                 "term  ::= num\n"
                                 "        | \"(\" ws\n"
                                 "          expr ws \")\"\n"
                                 "num   ::= [0-9]+ ws\n"
                                 "ws    ::= [ \\t]*\n";

T_CASE(gbnf, recursion_and_layout)
{
    /* Line breaks inside a rule are allowed behind | and in parentheses only. */
    ht_err e = {0};
    ht_grammar *g = NULL;
    T_ERR(ht_grammar_open(&g, NULL, HT_GRAMMAR_GBNF, arithmetic, strlen(arithmetic), &e),
          HT_EFORMAT, e, "line 6");
    const char *fixed = "root  ::= expr \"\\n\"?\n\n"
                        "expr  ::= term ( ws [-+] ws term )*\n"
                        "term  ::= num\n"
                        "        | \"(\" ws expr ws \")\"\n"
                        "num   ::= [0-9]+ ws\n"
                        "ws    ::= [ \\t]*\n";
    YES(fixed, "1");
    YES(fixed, "(1 + (2-3)) - 44\n");
    NO(fixed, "(1 + (2-3) - 44\n");
    NO(fixed, "1 +");
    NO(fixed, "1)");
}

T_CASE(gbnf, nests_to_a_limit_only)
{
    const char *g = "root ::= \"(\" root \")\" | \"x\"";
    char text[2500];
    const size_t deep = 400;
    memset(text, '(', deep);
    text[deep] = 'x';
    memset(text + deep + 1, ')', deep);
    text[deep * 2 + 1] = 0;
    YES(g, text);
    memset(text, '(', 1000);
    text[1000] = 0;
    NO(g, text);
    /* Recursion at the end of a rule needs no depth. */
    memset(text, 'a', 2000);
    text[2000] = 0;
    YES("root ::= \"a\" root | \"a\"", text);
}

T_CASE(gbnf, refusals)
{
    static const struct {
        const char *grammar;
        int code;
        const char *says;
    } bad[] = {
        {"", HT_EFORMAT, "no rules"},
        {"a ::= \"x\"", HT_EFORMAT, "root"},
        {"root ::= b", HT_EFORMAT, "used and not defined"},
        {"root = \"x\"", HT_EFORMAT, "::="},
        {"root ::= \"x", HT_EFORMAT, "closing quote"},
        {"root ::= [a", HT_EFORMAT, "closing bracket"},
        {"root ::= (\"a\"", HT_EFORMAT, "closing parenthesis"},
        {"root ::= \"a\")", HT_EFORMAT, "closes nothing"},
        {"root ::= \"\\q\"", HT_EFORMAT, "unknown escape"},
        {"root ::= \"\\uD800\"", HT_EFORMAT, "no code point"},
        {"root ::= \"a\"{3,2}", HT_EFORMAT, "malformed"},
        {"root ::= \"a\"{1,99999999999}", HT_EFORMAT, "65536"},
        {"root ::= [z-a]", HT_EFORMAT, "backwards"},
        {"root ::= root \"a\" | \"b\"", HT_EUNSUPPORTED, "left recursion"},
        {"root ::= e root \"a\" | \"b\"\ne ::= \"c\"?", HT_EUNSUPPORTED, "left recursion"},
        {"root ::= a\na ::= b \"x\"\nb ::= a | \"y\"", HT_EUNSUPPORTED, "left recursion"},
        {"root ::= \"a\" root", HT_EUNSUPPORTED, "never end"},
        {"root ::= (\"a\"?){100}", HT_EUNSUPPORTED, "empty"},
        {"root ::= \"a\"\nroot ::= \"b\"", HT_EFORMAT, "twice"},
        {"root ::= <think>", HT_EFORMAT, "expected"},
        {"root ::= \"\xff\"", HT_EFORMAT, "UTF-8"},
        {"root ::= *", HT_EFORMAT, "expected"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ht_err e = {0};
        ht_grammar *g = NULL;
        T_ERR(
            ht_grammar_open(&g, NULL, HT_GRAMMAR_GBNF, bad[i].grammar, strlen(bad[i].grammar), &e),
            bad[i].code, e, bad[i].says);
        T_CHECK(!g, "%s gave a grammar", bad[i].grammar);
    }
}

/* llama.cpp#26600: nested repetitions and groups must not overflow a stack or run for ever. */
T_CASE(gbnf, hostile_nesting)
{
    ht_err e = {0};
    ht_grammar *g = NULL;
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_buf_str(&b, "root ::= ");
    for (int i = 0; i < 100000; i++) ht_buf_char(&b, '(');
    T_ERR(ht_grammar_open(&g, NULL, HT_GRAMMAR_GBNF, b.p, b.n, &e), HT_EFORMAT, e, "deeply");
    ht_buf_done(&b);
    const char *stars = "root ::= ((((\"a\"*)*)*)*)*";
    YES(stars, "aaaa");
    NO(stars, "aab");
    /* More ways than fit: an error, in bounded time. */
    const char *wide = "root ::= ([a-z]{1,900} [a-z]{1,900} [a-z]{1,900})+";
    T_OK(ht_grammar_open(&g, NULL, HT_GRAMMAR_GBNF, wide, strlen(wide), &e), e);
    char text[2000];
    memset(text, 'q', sizeof text);
    T_ERR(ht_grammar_check(g, text, sizeof text, &e), HT_EUNSUPPORTED, e, "ambiguous");
    T_ERR(ht_grammar_check(g, text, sizeof text, &e), HT_EUNSUPPORTED, e, "ambiguous");
    T_OK(ht_grammar_check(g, text, 20, &e), e);
    ht_grammar_close(g);
}

T_CASE(gbnf, too_large)
{
    ht_err e = {0};
    ht_grammar *g = NULL;
    char *text = ht_mem_alloc((2 << 20) + 1);
    memset(text, ' ', 2 << 20);
    T_ERR(ht_grammar_open(&g, NULL, HT_GRAMMAR_GBNF, text, 2 << 20, &e), HT_EUNSUPPORTED, e,
          "1 MiB");
    ht_mem_free(text);
}
