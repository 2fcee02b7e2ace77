/* text.c - UTF-8, growable buffers, error text, hashes, the clock. */
#include "core/arena.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/utf8.h"
#include "test.h"

T_CASE(utf8, every_code_point_round_trips)
{
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        char s[4];
        uint32_t back;
        unsigned n = ht_utf8_put(cp, s);
        unsigned want = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
        bool surrogate = cp >= 0xd800 && cp < 0xe000;
        unsigned got = ht_utf8_next(s, n, &back);
        if (n != want || got != n || back != (surrogate ? 0xfffd : cp))
            T_CHECK(false, "U+%04X: %u bytes, read %u as U+%04X", cp, n, got, back);
        if (n > 1 && ht_utf8_next(s, n - 1, &back)) T_CHECK(false, "U+%04X cut short", cp);
    }
    char s[4];
    T_EQ_INT(ht_utf8_put(0x110000, s), 3);
    T_EQ_MEM(s, "\xef\xbf\xbd", 3);
}

/* All 2^24 three-byte strings against the definition: a sequence is valid when encoding what it
 * decodes to gives it back. */
T_CASE(utf8, three_byte_strings)
{
    unsigned long bad = 0;
    for (uint32_t x = 0; x < 1u << 24; x += t_sanitized() ? 17 : 1) {
        char s[3] = {(char)(x >> 16), (char)(x >> 8), (char)x}, again[4];
        uint32_t cp;
        unsigned n = ht_utf8_next(s, 3, &cp);
        if (n && (ht_utf8_put(cp, again) != n || memcmp(again, s, n))) bad++;
        if (!n && cp != 0xfffd) bad++;
    }
    T_EQ_INT(bad, 0);
}

T_CASE(utf8, malformed)
{
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xc3",
                                      "\xc3\x28",
                                      "\xe0\x9f\xbf",
                                      "\xe2\x82",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xf0\x9f\x98"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint32_t cp = 7;
        T_CHECK(ht_utf8_next(bad[i], strlen(bad[i]), &cp) == 0 && cp == 0xfffd, "string %zu", i);
        T_EQ_INT(ht_utf8_valid(bad[i], strlen(bad[i])), 0);
    }
    T_EQ_INT(ht_utf8_valid("a\xc3\xa9\xff", 4), 3);
    T_EQ_INT(ht_utf8_valid("", 0), 0);
}

T_CASE(utf8, whole_prefix)
{
    const char *s = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    static const size_t want[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
    for (size_t n = 0; n <= 10; n++) T_EQ_INT(ht_utf8_whole(s, n), want[n]);
    T_EQ_INT(ht_utf8_whole("\x80\x80\x80\x80", 4), 4); /* no lead byte: nothing to wait for */
    T_EQ_INT(ht_utf8_whole("a\xff", 2), 2);
    T_EQ_INT(ht_utf8_whole("a\xe0\x80", 3), 3); /* cannot become a code point any more */
    T_EQ_INT(ht_utf8_whole("a\xe0\xa0", 3), 1);
}

T_CASE(buf, grows_and_formats)
{
    ht_buf b;
    ht_err e;
    ht_buf_init(&b, 0);
    for (int i = 0; i < 1000; i++) {
        ht_buf_fmt(&b, "%d", i % 10);
        ht_buf_char(&b, ',');
    }
    ht_buf_add(&b, "\0x", 2);
    ht_buf_fmt(&b, "%300s", "end");
    T_OK(ht_buf_ok(&b, "b", &e), e);
    T_EQ_INT(b.n, 2302);
    T_EQ_MEM(b.p + 1998, "9,\0x", 4);
    T_EQ_STR(b.p + 2299, "end");
    size_t n;
    char *p = ht_buf_take(&b, &n);
    T_TRUE(p && n == 2302 && !b.p && !b.n && !p[n]);
    ht_mem_free(p);
    p = ht_buf_take(&b, &n); /* empty is a string too */
    T_TRUE(p && n == 0 && !*p);
    ht_mem_free(p);
    ht_buf_done(&b);
}

T_CASE(buf, limit_holds)
{
    for (size_t max = 1; max < 80; max++) {
        ht_buf b;
        ht_err e;
        ht_buf_init(&b, max);
        for (size_t i = 0; i < max; i++) ht_buf_char(&b, 'x');
        T_OK(ht_buf_ok(&b, "b", &e), e);
        ht_buf_fmt(&b, "%s", "");
        T_OK(ht_buf_ok(&b, "b", &e), e);
        if (max % 2) ht_buf_char(&b, 'y');
        else ht_buf_fmt(&b, "%s", "yy");
        T_ERR(ht_buf_ok(&b, "thing", &e), HT_ENOMEM, e, "thing");
        ht_buf_str(&b, "more");
        T_EQ_INT(b.n, max);
        T_TRUE(b.p[max] == 0 && b.p[max - 1] == 'x');
        T_TRUE(!ht_buf_take(&b, NULL));
        ht_buf_clear(&b);
        T_TRUE(!b.bad && !b.n);
        ht_buf_done(&b);
    }
}

T_CASE(buf, nth_allocation_fails)
{
    ht_buf b;
    ht_err e;
    ht_buf_init(&b, 0);
    ht_buf_str(&b, "abc");
    ht_alloc_fail_at(1);
    for (int i = 0; i < 100; i++) ht_buf_str(&b, "0123456789");
    ht_alloc_fail_at(0);
    T_ERR(ht_buf_ok(&b, "b", &e), HT_ENOMEM, e, "memory exhausted");
    T_TRUE(!strncmp(b.p, "abc", 3) && !b.p[b.n]); /* what was there is intact */
    ht_buf_done(&b);
}

T_CASE(err, text_is_cut_between_code_points)
{
    ht_err e;
    T_EQ_INT(HT_FAIL(&e, HT_EIO, "%d", 5), HT_EIO);
    T_TRUE(e.code == HT_EIO && strstr(e.where, "text.c:"));
    T_EQ_STR(e.msg, "5");
    T_EQ_INT(HT_FAIL(NULL, HT_EARG, "x"), HT_EARG);
    for (int shift = 0; shift < 3; shift++) {
        char text[1000] = "abc";
        size_t n = (size_t)shift;
        while (n + 3 < 600) {
            memcpy(text + n, "\xe2\x82\xac", 3);
            n += 3;
        }
        text[n] = 0;
        T_EQ_INT(HT_FAIL(&e, HT_EIO, "%s", text), HT_EIO);
        size_t len = strlen(e.msg);
        T_TRUE(len < sizeof e.msg && len > sizeof e.msg - 8);
        T_EQ_STR(e.msg + len - 3, "...");
        T_EQ_INT(ht_utf8_valid(e.msg, len), len);
    }
}

T_CASE(hash, sha256_known_answers)
{
    static const struct {
        const char *text, *hex;
    } kat[] = {
        /* FIPS 180-4 examples and the empty string */
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    ht_err e;
    uint8_t d[HT_SHA256_BYTES];
    char hex[HT_SHA256_HEX];
    for (size_t i = 0; i < sizeof kat / sizeof *kat; i++) {
        T_OK(ht_sha256_of(kat[i].text, strlen(kat[i].text), d, &e), e);
        ht_hex(d, sizeof d, hex);
        T_EQ_STR(hex, kat[i].hex);
    }
    ht_sha256 *h;
    T_OK(ht_sha256_new(&h, &e), e);
    for (int i = 0; i < 1000; i++) T_OK(ht_sha256_add(h, "aaaaaaaaaa", 10, &e), e);
    for (int i = 0; i < 990; i++) {
        char block[1000];
        memset(block, 'a', sizeof block);
        T_OK(ht_sha256_add(h, block, sizeof block, &e), e);
    }
    T_OK(ht_sha256_add(h, NULL, 0, &e), e);
    T_OK(ht_sha256_end(h, d, &e), e);
    ht_hex(d, sizeof d, hex);
    T_EQ_STR(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    T_OK(ht_sha256_new(&h, &e), e);
    ht_sha256_free(h);
    ht_alloc_fail_at(1);
    T_ERR(ht_sha256_new(&h, &e), HT_ENOMEM, e, "SHA-256");
}

/* Tables index by low or high bits: both must spread over similar keys. */
T_CASE(hash, table_hash_spreads)
{
    enum { N = 1 << 14 };
    static unsigned low[256], high[256];
    for (int i = 0; i < N; i++) {
        char key[32];
        int n = snprintf(key, sizeof key, "blk.%d.weight", i);
        uint64_t h = ht_hash64(key, (size_t)n);
        low[h & 255]++;
        high[h >> 56]++;
    }
    double chi_low = 0, chi_high = 0, want = N / 256.0;
    for (int i = 0; i < 256; i++) {
        chi_low += (low[i] - want) * (low[i] - want) / want;
        chi_high += (high[i] - want) * (high[i] - want) / want;
    }
    T_CHECK(chi_low < 360 && chi_high < 360, "chi2 %g and %g of 255 degrees", chi_low, chi_high);
    T_TRUE(ht_hash64("a", 1) != ht_hash64("a\0", 2));
}

T_CASE(clock, moves_on)
{
    uint64_t a = ht_now_ns(), b = a;
    while (b == a) b = ht_now_ns();
    T_TRUE(b > a);
    T_TRUE(ht_now_unix() > 1700000000);
}
