/* util.h - what the tokenizer tests share. */
#ifndef HT_TEST_TOK_UTIL_H
#define HT_TEST_TOK_UTIL_H
#include "core/utf8.h"
#include "test.h"
#include "tok/tok_int.h"

#define DATA "tests/data/tok/"

/* The tokenizer of a file; fails the case when it does not open. */
static inline ht_tok *u_open(const char *path, const char *pre)
{
    ht_err e = {0};
    ht_file *f;
    ht_tok *t;
    ht_file_opts o = {.vocab_only = 1};
    T_OK(ht_file_open(&f, path, &o, &e), e);
    T_OK(ht_tok_from_file(&t, f, pre, &e), e);
    ht_file_close(f);
    return t;
}

/* From texts of tokenizer.json and friends (NULL: none); the return code of the import. */
static inline int u_import(ht_tok **t, const char *tok, const char *cfg, const char *config,
                           const char *gen, const char *pre, ht_err *e)
{
    const char *text[4] = {tok, cfg, config, gen};
    ht_json *j[4] = {0};
    ht_arena *a;
    T_OK(ht_arena_new(&a, 0, e), *e);
    for (int i = 0; i < 4; i++)
        if (text[i]) T_OK(ht_json_parse(a, text[i], strlen(text[i]), 0, "test", &j[i], e), *e);
    int rc = tok__from_hf(t, j[0], j[1], j[2], j[3], pre, e);
    ht_arena_free(a);
    return rc;
}

static inline ht_ids u_encode(const ht_tok *t, const char *s, size_t n, unsigned flags)
{
    ht_err e = {0};
    ht_ids ids = {0};
    T_OK(ht_tok_encode(t, s, n, flags, &ids, &e), e);
    return ids;
}

/* Ids as "1 2 3"; eight calls deep. */
static inline const char *u_list(const ht_ids *ids)
{
    static char ring[8][4096];
    static unsigned k;
    char *s = ring[k++ % 8];
    size_t n = 0;
    s[0] = '\0';
    for (size_t i = 0; i < ids->n && n + 16 < sizeof ring[0]; i++)
        n += (size_t)sprintf(s + n, "%s%d", i ? " " : "", ids->id[i]);
    return s;
}

static inline const char *u_ids(const ht_tok *t, const char *s, unsigned flags)
{
    ht_ids ids = u_encode(t, s, strlen(s), flags);
    const char *r = u_list(&ids);
    ht_ids_done(&ids);
    return r;
}

/* The ids decode to s[0..n), at once and streamed; wellformed UTF-8 only. */
static inline void u_decodes(const ht_tok *t, const ht_ids *ids, const char *s, size_t n)
{
    ht_err e = {0};
    ht_buf b;
    ht_detok d;
    ht_buf_init(&b, 0);
    T_OK(ht_tok_decode(t, ids->id, ids->n, true, &b, &e), e);
    T_CHECK(b.n == n && !memcmp(b.n ? b.p : "", s, n), "decoded \"%.*s\", want \"%.*s\"", (int)b.n,
            b.p ? b.p : "", (int)n, s);
    ht_buf_clear(&b);
    ht_detok_init(&d, true);
    for (size_t i = 0; i < ids->n; i++) {
        size_t from = b.n, more;
        T_OK(ht_detok_push(&d, t, ids->id[i], &b, &e), e);
        more = b.n - from;
        T_CHECK(!more || ht_utf8_valid(b.p + from, more) == more, "half a code point, token %zu",
                i);
    }
    ht_detok_flush(&d, &b);
    T_CHECK(b.n == n && !memcmp(b.n ? b.p : "", s, n), "streamed \"%.*s\", want \"%.*s\"", (int)b.n,
            b.p ? b.p : "", (int)n, s);
    ht_buf_done(&b);
}

/* A code point for random text: half of them from what pre-tokenizers care about. */
static inline uint32_t u_random_cp(uint64_t *seed)
{
    static const uint32_t hot[] = {
        ' ',     ' ',     ' ',    '\n',   '\r',  '\t',   '\'',   's',    'S',    't',    'l',  'v',
        'e',     'r',     'm',    'd',    'a',   'Z',    '1',    '2',    '9',    '.',    '!',  '/',
        '_',     '<',     0x17f,  0xaa,   0xb2,  0x1c5,  0x2b0,  0x300,  0x301,  0x323,  0xa0, 0x85,
        0x2003,  0x3000,  0x180e, 0x200b, 0x663, 0x2165, 0x4e00, 0x3042, 0xac01, 0x11a8, 0xe9, 0xc9,
        0x1f600, 0x1f3fb, 0x200d, 0xff01, 0x5d0, 0x628,  0x905,  0x212b};
    uint64_t r = t_rand(seed);
    if (r & 1) return hot[(r >> 8) % (sizeof hot / sizeof *hot)];
    uint32_t top = r & 2 ? 0x3000 : r & 4 ? 0x10000 : 0x20000, cp = (uint32_t)(r >> 8) % top;
    return cp >= 0xd800 && cp < 0xe000 ? 0x4e01 : cp ? cp : 1;
}

static inline size_t u_random_text(uint64_t *seed, unsigned max_cp, char *out)
{
    size_t n = 0;
    for (unsigned k = (unsigned)(t_rand(seed) % (max_cp + 1)); k; k--)
        n += ht_utf8_put(u_random_cp(seed), out + n);
    return n;
}
#endif
