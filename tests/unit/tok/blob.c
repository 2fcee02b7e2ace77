/* blob.c - saving and loading the normal form; hostile bytes; memory that runs out. */
#include "util.h"

static const char *const models[] = {DATA "tale-9m", DATA "spm", DATA "arch"};

static ht_buf saved(const char *path)
{
    ht_tok *t = u_open(path, NULL);
    ht_err e = {0};
    ht_buf b;
    ht_buf_init(&b, 0);
    T_OK(ht_tok_save(t, &b, &e), e);
    ht_tok_free(t);
    return b;
}

T_CASE(blob, comes_back_and_works_alike)
{
    for (size_t m = 0; m < 3; m++) {
        ht_tok *a = u_open(models[m], NULL), *b;
        ht_buf s = saved(models[m]), again;
        ht_err e = {0};
        uint64_t seed = 1;
        T_OK(ht_tok_load(&b, s.p, s.n, &e), e);
        ht_buf_init(&again, 0);
        T_OK(ht_tok_save(b, &again, &e), e);
        T_CHECK(again.n == s.n && !memcmp(again.p, s.p, s.n), "%s: saved twice", models[m]);
        T_EQ_MEM(ht_tok_sha256(a), ht_tok_sha256(b), 32);
        T_EQ_STR(ht_tok_pre(a), ht_tok_pre(b));
        for (unsigned r = 0; r < 300; r++) {
            char text[256];
            size_t n = u_random_text(&seed, 30, text);
            ht_ids x = u_encode(a, text, n, HT_TOK_SPECIAL | HT_TOK_BOS);
            ht_ids y = u_encode(b, text, n, HT_TOK_SPECIAL | HT_TOK_BOS);
            T_EQ_STR(u_list(&x), u_list(&y));
            ht_ids_done(&x);
            ht_ids_done(&y);
        }
        ht_buf_done(&s);
        ht_buf_done(&again);
        ht_tok_free(a);
        ht_tok_free(b);
    }
}

T_CASE(blob, a_pattern_is_part_of_it)
{
    ht_err e = {0};
    ht_tok *t, *u;
    ht_buf b;
    T_OK(u_import(&t,
                  "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                  "\"Split\",\"pattern\":"
                  "{\"Regex\":\"a(?=b)\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"use_"
                  "regex\":false}]},"
                  "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}",
                  NULL, NULL, NULL, NULL, &e),
         e);
    ht_buf_init(&b, 0);
    T_OK(ht_tok_save(t, &b, &e), e);
    T_OK(ht_tok_load(&u, b.p, b.n, &e), e);
    T_EQ_STR(u_ids(u, "abab", 0), "0 1 0 1");
    ht_buf_done(&b);
    ht_tok_free(t);
    ht_tok_free(u);
}

T_CASE(blob, cut_short_or_grown_is_an_error)
{
    ht_buf s = saved(DATA "arch");
    for (size_t n = 0; n < s.n; n++) {
        ht_err e = {0};
        ht_tok *t;
        char *copy = malloc(n ? n : 1); /* so that a sanitizer sees a read past the end */
        memcpy(copy, s.p, n);
        T_ERR(ht_tok_load(&t, copy, n, &e), HT_EFORMAT, e, "tokenizer blob");
        T_CHECK(!t, "%zu bytes", n);
        free(copy);
    }
    ht_err e = {0};
    ht_tok *t;
    ht_buf_char(&s, 0);
    T_ERR(ht_tok_load(&t, s.p, s.n, &e), HT_EFORMAT, e, "longer");
    ht_buf_done(&s);
}

/* A changed byte gives an error, or another vocabulary that saves as the same changed bytes. */
T_CASE(blob, one_form_only)
{
    size_t refused = 0, loaded = 0;
    for (size_t m = 1; m < 3; m++) {
        ht_buf s = saved(models[m]);
        uint64_t seed = m;
        for (size_t k = 0; k < 3000; k++) {
            size_t at = k < 52 ? k : (size_t)(t_rand(&seed) % s.n);
            char old = s.p[at];
            ht_err e = {0};
            ht_tok *t;
            s.p[at] = (char)(old ^ (1 << t_rand(&seed) % 8));
            if (ht_tok_load(&t, s.p, s.n, &e)) {
                refused++;
                T_CHECK(e.msg[0] && !t, "byte %zu", at);
            } else {
                ht_buf b;
                ht_buf_init(&b, 0);
                T_OK(ht_tok_save(t, &b, &e), e);
                T_CHECK(b.n == s.n && !memcmp(b.p, s.p, s.n), "byte %zu: loads, saves otherwise",
                        at);
                ht_buf_done(&b);
                ht_tok_free(t);
                loaded++;
            }
            s.p[at] = old;
        }
        ht_buf_done(&s);
    }
    T_CHECK(refused > 500 && loaded > 500, "%zu refused, %zu loaded", refused, loaded);
}

/* Fail the k-th allocation, for every k until none fails. */
T_CASE(fault, load_encode_decode)
{
    for (size_t m = 0; m < 2; m++) {
        ht_buf s = saved(models[m]);
        unsigned failed = 0;
        for (uint64_t k = 1;; k++) {
            ht_err e = {0};
            ht_tok *t = NULL;
            ht_ids ids = {0};
            ht_buf out;
            ht_buf_init(&out, 0);
            ht_alloc_fail_at(k);
            int rc = ht_tok_load(&t, s.p, s.n, &e);
            if (!rc) {
                ht_segment seg[2] = {{"<|im_start|>e\xcc\x81", 15, false},
                                     {"e\xcc\x81 and two", 11, true}};
                rc = ht_tok_encode_segments(t, seg, 2, HT_TOK_BOS, &ids, &e);
            }
            if (!rc) rc = ht_tok_decode(t, ids.id, ids.n, true, &out, &e);
            ht_alloc_fail_at(0);
            T_CHECK(!rc || rc == HT_ENOMEM, "allocation %llu: %d %s", (unsigned long long)k, rc,
                    e.msg);
            ht_buf_done(&out);
            ht_ids_done(&ids);
            ht_tok_free(t);
            if (!rc) break;
            failed++;
        }
        T_CHECK(failed > 8, "%s: %u allocations failed", models[m], failed);
        ht_buf_done(&s);
    }
}

T_CASE(fault, patterns)
{
    static const char json[] =
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":"
        "{\"Regex\":\"a(?=b)\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"use_regex\":"
        "false}]},"
        "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";
    unsigned failed = 0;
    ht_err e = {0};
    ht_arena *a;
    ht_json *j;
    T_OK(ht_arena_new(&a, 0, &e), e);
    T_OK(ht_json_parse(a, json, sizeof json - 1, 0, "test", &j, &e), e);
    for (uint64_t k = 1;; k++) {
        ht_tok *t = NULL;
        ht_ids ids = {0};
        ht_alloc_fail_at(k);
        int rc = tok__from_hf(&t, j, NULL, NULL, NULL, NULL, &e);
        if (!rc) rc = ht_tok_encode(t, "abab", 4, 0, &ids, &e);
        ht_alloc_fail_at(0);
        T_CHECK(!rc || rc == HT_ENOMEM, "allocation %llu: %d %s", (unsigned long long)k, rc, e.msg);
        ht_ids_done(&ids);
        ht_tok_free(t);
        if (!rc) break;
        failed++;
    }
    T_CHECK(failed > 8, "%u", failed);
    ht_arena_free(a);
}
