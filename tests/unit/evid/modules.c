/* modules.c - the bricks: times, closed schemas, envelopes and keys, trust roots, manifests,
 * journals, policies (evidence.md 8, Bytes 4-8, JSON 9-13, Trust 36). */
#include "evid/journal.h"
#include "fixture.h"
#include <sys/stat.h>
#include <unistd.h>

T_CASE(schema, times)
{
    static const struct {
        const char *text;
        int64_t unix_s;
    } good[] = {{"1970-01-01T00:00:00Z", 0},          {"1969-12-31T23:59:59Z", -1},
                {"2000-02-29T12:34:56Z", 951827696},  {"2038-01-19T03:14:08Z", 2147483648},
                {"2106-02-07T06:28:16Z", 4294967296}, {"9999-12-31T23:59:59Z", 253402300799}};
    static const char *const bad[] = {"2026-02-29T00:00:00Z",
                                      "2026-13-01T00:00:00Z",
                                      "2026-00-01T00:00:00Z",
                                      "2026-01-32T00:00:00Z",
                                      "2026-01-01T24:00:00Z",
                                      "2026-01-01T00:60:00Z",
                                      "2026-12-31T23:59:60Z",
                                      "2026-01-01T00:00:00",
                                      "2026-01-01 00:00:00Z",
                                      "2026-01-01T00:00:00+00:00",
                                      "26-01-01T00:00:00Z",
                                      "",
                                      "x",
                                      "2026-01-01T00:00:00.5Z"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t t = 1;
        char back[21];
        T_CHECK(ht_utc_parse(good[i].text, &t), "%s", good[i].text);
        T_EQ_INT(t, good[i].unix_s);
        ht_utc_format(t, back);
        T_EQ_STR(back, good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t t;
        T_CHECK(!ht_utc_parse(bad[i], &t), "%s is taken for a time", bad[i]);
    }
}

static const char *const words[] = {"one", "two", NULL};
static const ht_field inner[] = {{.key = "w", .type = HT_S_ENUM, .names = words}, {0}};
static const ht_field table[] = {
    {.key = "b", .type = HT_S_BOOL, .optional = true},
    {.key = "i", .type = HT_S_INT, .lo = 1, .hi = 9},
    {.key = "l", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = inner},
    {.key = "m", .type = HT_S_MAYBE_INT},
    {.key = "s", .type = HT_S_SHA256, .optional = true},
    {.key = "u", .type = HT_S_UTC, .optional = true},
    {0},
};

/* JSON 13 and Bytes 8: what a closed table refuses, and where it says so. */
T_CASE(schema, closed)
{
    static const struct {
        const char *text, *says;
    } all[] = {
        {"{\"i\":1,\"l\":[{\"w\":\"one\"}],\"m\":3,\"schema\":\"t/1\"}", NULL},
        {"{\"i\":9,\"l\":[],\"m\":{\"known\":false,\"reason\":\"TOO_FEW\"},\"schema\":\"t/1\"}",
         NULL},
        {"{\"b\":true,\"i\":1,\"l\":[],\"m\":0,\"s\":\"" FX_SHA("a") "\",\"schema\":\"t/1\"}",
         NULL},
        {"{\"i\":1,\"l\":[],\"m\":3,\"schema\":\"t/2\"}", "schema is t/2"},
        {"{\"i\":1,\"l\":[],\"m\":3}", "schema is absent"},
        {"{\"i\":0,\"l\":[],\"m\":3,\"schema\":\"t/1\"}", "member i must be"},
        {"{\"i\":10,\"l\":[],\"m\":3,\"schema\":\"t/1\"}", "member i must be"},
        {"{\"i\":null,\"l\":[],\"m\":3,\"schema\":\"t/1\"}", "member i must be"},
        {"{\"i\":1,\"l\":null,\"m\":3,\"schema\":\"t/1\"}", "member l must be"},
        {"{\"i\":1,\"l\":[{\"w\":\"One\"}],\"m\":3,\"schema\":\"t/1\"}", "l[0].w must be"},
        {"{\"i\":1,\"l\":[{\"w\":\"one\",\"x\":1}],\"m\":3,\"schema\":\"t/1\"}",
         "unknown member l[0].x"},
        {"{\"i\":1,\"l\":[{}],\"m\":3,\"schema\":\"t/1\"}", "member l[0].w is missing"},
        {"{\"i\":1,\"l\":[],\"schema\":\"t/1\"}", "member m is missing"},
        {"{\"i\":1,\"l\":[],\"m\":{\"known\":true,\"reason\":\"X\"},\"schema\":\"t/1\"}",
         "member m must be"},
        {"{\"i\":1,\"l\":[],\"m\":{\"known\":false,\"reason\":\"x\"},\"schema\":\"t/1\"}",
         "member m must be"},
        {"{\"i\":1,\"l\":[],\"m\":{\"known\":false},\"schema\":\"t/1\"}", "member m must be"},
        {"{\"b\":1,\"i\":1,\"l\":[],\"m\":3,\"schema\":\"t/1\"}", "member b must be"},
        {"{\"i\":1,\"l\":[],\"m\":3,\"s\":\"" FX_SHA("A") "\",\"schema\":\"t/1\"}",
         "64 lower-case"},
        {"{\"i\":1,\"l\":[],\"m\":3,\"s\":\"a94a8fe5ccb19ba61c4c0873d391e987982fbbd3\",\"schema\":"
         "\"t/1\"}",
         "64 lower-case"},
        {"{\"i\":1,\"l\":[],\"m\":3,\"schema\":\"t/1\",\"u\":\"2026-02-30T00:00:00Z\"}",
         "a time like"},
        {"[]", "not an object"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ht_arena *a;
        ht_json *j;
        ht_err e = {0};
        T_OK(ht_arena_new(&a, 0, &e), e);
        T_OK(ht_json_parse(a, all[i].text, strlen(all[i].text), HT_JSON_CANON, "t", &j, &e), e);
        int rc = ht_schema_check(j, table, "t/1", "t", &e);
        if (!all[i].says) T_OK(rc, e);
        else
            T_CHECK(rc == HT_EFORMAT && strstr(e.msg, all[i].says), "%s: %d %s", all[i].text, rc,
                    e.msg);
        ht_arena_free(a);
    }
}

/* JSON 9 to 12 through the door that evidence comes in by: the policy reader. */
T_CASE(schema, hostile_json)
{
    static const char *const swap[][2] = {
        {"\"fixture\":false", "\"fixture\":false,\"fixture\":false"},
        {"\"fixture\":false", "\"fixture\":false,\"fix\\u0074ure\":false"},
        {"\"pairs\":12", "\"pairs\":12,\"pairs\":12"},
        {"\"pairs\":12", "\"pairs\":NaN"},
        {"\"pairs\":12", "\"pairs\":Infinity"},
        {"\"pairs\":12", "\"pairs\":1e400"},
        {"\"pairs\":12", "\"pairs\":-0"},
        {"\"pairs\":12", "\"pairs\":12.0"},
        {"\"pairs\":12", "\"pairs\":012"},
        {"\"pairs\":12", "\"pairs\":9007199254740992"},
        {"\"pairs\":12", "\"pairs\":9e15"},
        {"\"pairs\":12", "\"pairs\":12E0"},
        {"\"pairs\":12", "\"pairs\":null"},
        {"\"pairs\":12", "\"pairs\": 12"},
        {"\"pairs\":12", "\"pairs\":12,"},
        {"\"pairs\":12", "\"pairs\":12/*n*/"},
        {"default-2026-1", "a\\ud800b"},
        {"default-2026-1", "\xc0\xaf"},
        {"default-2026-1", "\\u0061"},
        {"{\"design\"", "\xef\xbb\xbf{\"design\""},
        {"{\"design\"", " {\"design\""},
        {"{\"arms\":2,\"blocks\":\"ABBA_BAAB\"", "{\"blocks\":\"ABBA_BAAB\",\"arms\":2"},
        {"hetero/policy/1", "hetero/policy/2"},
        {"\"REFERENCE\"", "\"reference\""},
        {"\"signTest\":true", "\"signTest\":1"},
        {"\"HOLM\"", "\"NONE\""},
        {"\"minPairs\":12", "\"minPairs\":10"},
        {"\"minPairs\":12", "\"minPairs\":4"},
        {"\"freshProcess\":true", "\"freshProcess\":false"},
        {"SUPERIOR", "NON_INFERIOR"},
        {"[900000,1100000]", "[1100000,900000]"},
        {"[900000,1100000]", "[900000]"},
        {"\"quantilePpm\":950000", "\"quantilePpm\":940000"},
        {"\"confPpm\":990000", "\"confPpm\":980000"},
    };
    fx f;
    ht_policy p;
    ht_err e = {0};
    fx_init(&f);
    T_OK(ht_policy_parse(f.a, ht_policy_default, strlen(ht_policy_default), &p, &e), e);
    T_EQ_INT(p.min_pairs, 12);
    T_EQ_INT(p.min_lower_ppm, 1030000);
    T_EQ_INT(p.null_half_width_ppm, 15000);
    T_TRUE(!p.fixture && p.canary_on_stale && !p.error_on_unknown && p.may_skip == 0);
    T_TRUE(p.required & (1u << HT_G_AC) && !(p.required & (1u << HT_G_ECC)));
    for (size_t i = 0; i < sizeof swap / sizeof swap[0]; i++) {
        const char *bad = fx_swap(&f, ht_policy_default, swap[i][0], swap[i][1]);
        T_CHECK(ht_policy_parse(f.a, bad, strlen(bad), &p, &e) == HT_EFORMAT, "%s: accepted",
                swap[i][1]);
    }
    /* Cut at every byte; one byte more; a depth bomb. */
    for (size_t n = 0; n < strlen(ht_policy_default); n++)
        T_CHECK(ht_policy_parse(f.a, ht_policy_default, n, &p, &e) == HT_EFORMAT, "%zu bytes", n);
    const char *more = fx_fmt(&f, "%s\n", ht_policy_default);
    T_TRUE(ht_policy_parse(f.a, more, strlen(more), &p, &e) == HT_EFORMAT);
    char bomb[4000];
    memset(bomb, '[', sizeof bomb);
    T_TRUE(ht_policy_parse(f.a, bomb, sizeof bomb, &p, &e) == HT_EFORMAT);
    fx_done(&f);
}

/* ---- envelopes ------------------------------------------------------------------------------- */

T_CASE(dsse, rfc8032_key)
{
    static const uint8_t seed[32] = {0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60,
                                     0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c, 0xc4,
                                     0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19,
                                     0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae, 0x7f, 0x60};
    uint8_t pub[HT_ED25519_PUB];
    char hex[HT_SHA256_HEX], id[HT_SHA256_HEX];
    ht_key *k, *back;
    ht_err e = {0};
    T_OK(ht_key_from_seed(&k, seed, &e), e);
    ht_key_public(k, pub);
    ht_hex(pub, 32, hex);
    T_EQ_STR(hex, "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
    char path[600];
    snprintf(path, sizeof path, "%s/key.pem", t_tmp());
    T_OK(ht_key_save(k, path, &e), e);
    struct stat st;
    T_EQ_INT(stat(path, &st), 0);
    T_EQ_INT(st.st_mode & 0777, 0600);
    T_ERR(ht_key_save(k, path, &e), HT_EIO, e, "never overwritten");
    T_OK(ht_key_load(&back, path, &e), e);
    uint8_t again[HT_ED25519_PUB];
    ht_key_public(back, again);
    T_EQ_MEM(again, pub, 32);
    T_OK(ht_key_id(pub, id, &e), e);
    T_EQ_INT(strlen(id), 64);
    ht_key *none;
    for (mode_t bit = 1; bit <= 0040; bit <<= 1) {
        T_EQ_INT(chmod(path, 0600 | bit), 0);
        T_ERR(ht_key_load(&none, path, &e), HT_EGATE, e, "chmod 600");
    }
    T_EQ_INT(chmod(path, 0400), 0);
    T_OK(ht_key_load(&none, path, &e), e);
    ht_key_free(none);
    T_EQ_INT(chmod(path, 0600), 0);
    t_spit(path, "no key", 6);
    T_ERR(ht_key_load(&none, path, &e), HT_EFORMAT, e, "no private key in PEM form");
    T_TRUE(ht_key_load(&none, "/nonexistent/key.pem", &e) == HT_EIO);
    ht_key_free(k);
    ht_key_free(back);
}

static const char *sign(fx *f, const char *payload, const char *type, const uint8_t *keys, size_t n)
{
    ht_key *k[8];
    const ht_key *list[8];
    ht_buf b;
    ht_err e = {0};
    for (size_t i = 0; i < n; i++) list[i] = k[i] = fx_key(keys[i]);
    ht_buf_init(&b, 0);
    T_OK(ht_dsse_sign(payload, strlen(payload), type, list, n, &b, &e), e);
    const char *text = fx_fmt(f, "%s", b.p);
    ht_buf_done(&b);
    for (size_t i = 0; i < n; i++) ht_key_free(k[i]);
    return text;
}

static int check(fx *f, const ht_trust *t, const char *env, enum ht_role role, ht_err *e)
{
    ht_dsse d;
    HT_TRY(ht_dsse_parse(f->a, env, strlen(env), &d, e));
    return ht_trust_check(t, &d, role, HT_PAYLOAD_TYPE, FX_NOW, e);
}

/* Trust 36: keys, roles, thresholds, and what a signature covers. */
T_CASE(dsse, signatures)
{
    fx f;
    ht_trust t;
    ht_err e = {0};
    fx_init(&f);
    fx_trust(&f, &t);
    const char *body = "{\"a\":\"xx>>??\"}";
    const char *one = sign(&f, body, HT_PAYLOAD_TYPE, (const uint8_t[]){1}, 1);
    T_OK(check(&f, &t, one, HT_ROLE_BENCH, &e), e);
    for (int r = HT_ROLE_PROMOTE; r < HT_ROLES; r++)
        T_ERR(check(&f, &t, one, (enum ht_role)r, &e), HT_EGATE, e, "BAD_SIGNATURE");
    const char *two = sign(&f, body, HT_PAYLOAD_TYPE, (const uint8_t[]){2, 3}, 2);
    T_OK(check(&f, &t, two, HT_ROLE_PROMOTE, &e), e);
    const char *twice = sign(&f, body, HT_PAYLOAD_TYPE, (const uint8_t[]){2, 2}, 2);
    T_ERR(check(&f, &t, twice, HT_ROLE_PROMOTE, &e), HT_EGATE, e, "1 of 2 keys");
    const char *half = sign(&f, body, HT_PAYLOAD_TYPE, (const uint8_t[]){2, 1}, 2);
    T_ERR(check(&f, &t, half, HT_ROLE_PROMOTE, &e), HT_EGATE, e, "1 of 2 keys");
    const char *other = sign(&f, body, "application/json", (const uint8_t[]){1}, 1);
    T_ERR(check(&f, &t, other, HT_ROLE_BENCH, &e), HT_EGATE, e, "UNKNOWN_TYPE");
    T_CHECK(check(&f, &t, fx_swap(&f, other, "application/json", HT_PAYLOAD_TYPE), HT_ROLE_BENCH,
                  &e) != 0,
            "the payload type is not under the signature");
    /* A key id that names another key: the hint decides nothing, and a lie does not count. */
    const char *lie = fx_swap(&f, one, t.key[0].id, t.key[1].id);
    T_CHECK(check(&f, &t, lie, HT_ROLE_BENCH, &e) == HT_EGATE, "a lying key id counts");
    /* Other payload, or the same bytes claimed with another length. */
    T_CHECK(check(&f, &t, fx_swap(&f, one, "\"payload\":\"ey", "\"payload\":\"ez"), HT_ROLE_BENCH,
                  &e) != 0,
            "an altered payload passes");
    /* base64url says the same bytes, with and without its padding. */
    const char *p = strstr(one, "\"payload\":\"") + 11, *end = strchr(p, '"');
    char *url = fx_fmt(&f, "%s", one);
    for (char *c = url + (p - one); c < url + (end - one); c++)
        *c = *c == '+' ? '-' : *c == '/' ? '_' : *c;
    T_OK(check(&f, &t, url, HT_ROLE_BENCH, &e), e);
    if (end[-1] == '=')
        T_OK(check(&f, &t, fx_swap(&f, url, "=\",\"payloadType", "\",\"payloadType"), HT_ROLE_BENCH,
                   &e),
             e);
    /* Malleable forms: a signature with the group order added is refused by RFC 8032. */
    static const char *const broken[][2] = {
        {"\"signatures\":[{", "\"signatures\":[],\"z\":[{"},
        {"\"sig\":\"", "\"sig\":\"!"},
        {"\"payload\":\"", "\"payload\":\"="},
        {"\"payload\":\"", "\"payload\":\"A"},
        {"\"payloadType\":\"", "\"payloadTypo\":\""},
        {"{\"payload\"", "{ \"payload\""},
    };
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
        T_CHECK(check(&f, &t, fx_swap(&f, one, broken[i][0], broken[i][1]), HT_ROLE_BENCH, &e) ==
                    HT_EFORMAT,
                "%s passes", broken[i][1]);
    T_CHECK(check(&f, &t, "{\"payload\":\"\",\"payloadType\":\"x\",\"signatures\":[]}",
                  HT_ROLE_BENCH, &e) == HT_EFORMAT,
            "an envelope without signatures is read");
    fx_done(&f);
}

T_CASE(trust, roundtrip_and_refusals)
{
    fx f;
    ht_trust t, back;
    ht_err e = {0};
    ht_buf b;
    fx_init(&f);
    fx_trust(&f, &t);
    ht_buf_init(&b, 0);
    T_OK(ht_trust_write(&t, &b, &e), e);
    T_OK(ht_trust_parse(f.a, b.p, b.n, &back, &e), e);
    T_EQ_INT(back.n_keys, 6);
    T_EQ_INT(back.threshold[HT_ROLE_PROMOTE], 2);
    T_EQ_INT(back.expires_unix, t.expires_unix);
    T_EQ_STR(back.key[5].id, t.key[5].id);
    T_EQ_INT(back.key[3].roles, 1u << HT_ROLE_INDEX);
    const char *text = fx_fmt(&f, "%s", b.p);
    const char *const bad[][2] = {
        {"\"promote\":2", "\"promote\":1"},   {"\"bench\":1", "\"bench\":0"},
        {t.key[0].id, t.key[1].id},           {"\"roles\":[\"bench\"]", "\"roles\":[\"root\"]"},
        {"\"version\":1", "\"version\":0"},   {"\"version\":1", "\"version\":1,\"x\":1"},
        {"hetero/trust/1", "hetero/trust/2"}, {"\"keys\":[{", "\"keys\":[ {"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *x = fx_swap(&f, text, bad[i][0], bad[i][1]);
        T_CHECK(ht_trust_parse(f.a, x, strlen(x), &back, &e) == HT_EFORMAT, "%s is read",
                bad[i][1]);
    }
    /* A key listed twice would count twice. */
    const char *a = strstr(text, "{\"keyId\""), *z = strstr(a, "},{") + 1;
    const char *x = fx_fmt(&f, "%.*s%.*s,%s", (int)(a - text), text, (int)(z - a), a, a);
    T_ERR(ht_trust_parse(f.a, x, strlen(x), &back, &e), HT_EFORMAT, e, "listed twice");
    T_EQ_INT(ht_role_by_name("index", 5), HT_ROLE_INDEX);
    T_EQ_INT(ht_role_by_name("Index", 5), -1);
    ht_buf_done(&b);
    fx_done(&f);
}

/* ---- manifests and journals ------------------------------------------------------------------ */

T_CASE(manifest, paths)
{
    static const char *const good[] = {"a",   "a/b.json", "raw/b03/s2-B/a1/x",
                                       "..a", "a..",      "a/...b"};
    static const char *const bad[] = {"",    "/a",     "a/",   "a//b",     ".",
                                      "..",  "a/../b", "./a",  "a/.",      "a\\b",
                                      "a b", "a\nb",   "\x7f", "\xc3\xa9", "a/.."};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        T_CHECK(ht_manifest_path_ok(good[i]), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        T_CHECK(!ht_manifest_path_ok(bad[i]), "\"%s\" is allowed", bad[i]);
    char longest[300];
    memset(longest, 'x', sizeof longest);
    longest[201] = 0;
    T_TRUE(!ht_manifest_path_ok(longest));
    longest[200] = 0;
    T_TRUE(ht_manifest_path_ok(longest));
}

T_CASE(manifest, entries)
{
    static const char *const path[] = {"b", "a"}, *const role[] = {"x", "y"};
    fx f;
    ht_buf b;
    ht_manifest m;
    ht_err e = {0};
    const char *dir = t_tmp();
    fx_init(&f);
    t_spit(fx_fmt(&f, "%s/a", dir), "12", 2);
    t_spit(fx_fmt(&f, "%s/b", dir), "345", 3);
    ht_buf_init(&b, 0);
    T_OK(ht_manifest_write(f.a, dir, "hetero/inputs/1", path, role, 2, NULL, &b, &e), e);
    T_OK(ht_manifest_read(f.a, dir, b.p, b.n, "hetero/inputs/1", NULL, 5, &m, &e), e);
    T_EQ_INT(m.n, 2);
    T_EQ_STR(m.file[0].path, "a");
    T_EQ_STR(ht_manifest_find(&m, "b")->data, "345");
    T_TRUE(!ht_manifest_find(&m, "c"));
    T_ERR(ht_manifest_read(f.a, dir, b.p, b.n, "hetero/inputs/1", NULL, 4, &m, &e), HT_ENOMEM, e,
          "limit");
    T_TRUE(ht_manifest_read(f.a, dir, b.p, b.n, "hetero/outputs/1", NULL, 5, &m, &e) == HT_EFORMAT);
    const char *text = fx_fmt(&f, "%s", b.p), *sha = m.file[0].sha256;
    const char *const bad[][2] = {
        {"\"bytes\":2", "\"bytes\":3"},
        {"\"path\":\"b\"", "\"path\":\"a\""},
        {sha, FX_SHA("0")},
        {"\"path\":\"a\"", "\"path\":\"c\""},
        {"\"path\":\"a\"", "\"path\":\"../a\""},
        {"\"path\":\"b\"", "\"path\":\"A\""},
        {sha, fx_fmt(&f, "%.63s", sha)},
        {sha, "da4b9237bacccdf19c0760cab7aec4a8359010b0"},
        {"\"files\":[{", "\"files\":[],\"filez\":[{"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *x = fx_swap(&f, text, bad[i][0], bad[i][1]);
        T_CHECK(ht_manifest_read(f.a, dir, x, strlen(x), "hetero/inputs/1", NULL, 9, &m, &e) ==
                    HT_EFORMAT,
                "%s is read: %s", bad[i][1], e.msg);
    }
    T_TRUE(ht_manifest_write(f.a, dir, "hetero/inputs/1", (const char *const[]){"a", "a"}, role, 2,
                             NULL, &b, &e) == HT_EARG);
    ht_buf_done(&b);
    fx_done(&f);
}

/* Bytes 6: lines dropped, moved, edited. */
T_CASE(journal, chain)
{
    fx f;
    ht_journal j;
    ht_json **line;
    size_t n, len;
    ht_err e = {0};
    fx_init(&f);
    const char *path = fx_fmt(&f, "%s/journal", t_tmp());
    T_OK(ht_journal_new(&j, path, &e), e);
    ht_json *more = ht_json_new(f.a, HT_JOBJ);
    ht_json_add(f.a, more, "x", ht_json_new_int(f.a, 7));
    T_OK(ht_journal_add(&j, f.a, "design", more, &e), e);
    for (int i = 0; i < 4; i++) T_OK(ht_journal_add(&j, f.a, "note", NULL, &e), e);
    T_OK(ht_journal_close(&j, f.a, NULL, &e), e);
    T_ERR(ht_journal_add(&j, f.a, "note", NULL, &e), HT_EARG, e, "after its end");
    ht_journal_abort(&j);
    ht_journal again;
    T_ERR(ht_journal_new(&again, path, &e), HT_EIO, e, "exists");
    char *text = t_slurp(path, &len);
    T_OK(ht_journal_check(f.a, text, len, true, &line, &n, &e), e);
    T_EQ_INT(n, 6);
    T_EQ_INT(ht_json_get(line[0], "x")->i, 7);
    const char *start[7] = {text};
    for (int i = 1; i <= 6; i++) start[i] = strchr(start[i - 1], '\n') + 1;
    for (int i = 0; i < 6; i++) { /* each line dropped; each pair exchanged; each line edited */
        const char *x = fx_fmt(&f, "%.*s%s", (int)(start[i] - text), text, start[i + 1]);
        T_CHECK(ht_journal_check(f.a, x, strlen(x), true, &line, &n, &e) == HT_EFORMAT,
                "line %d dropped", i);
        const char *y = fx_fmt(&f, "%.*s%.*s%.*s%s", (int)(start[i] - text), text,
                               i < 5 ? (int)(start[i + 2] - start[i + 1]) : 0, start[i + 1],
                               (int)(start[i + 1] - start[i]), start[i], i < 5 ? start[i + 2] : "");
        if (i < 5)
            T_CHECK(ht_journal_check(f.a, y, strlen(y), true, &line, &n, &e) == HT_EFORMAT,
                    "%d moved", i);
    }
    for (size_t i = 0; i + 1 < len; i++) {
        if (text[i] < '0' || text[i] > '8' || start[5] <= text + i) continue;
        text[i]++; /* a digit of seq, prev, monoNs or the payload */
        T_CHECK(ht_journal_check(f.a, text, len, true, &line, &n, &e) == HT_EFORMAT,
                "byte %zu edited", i);
        text[i]--;
    }
    T_CHECK(ht_journal_check(f.a, text, len - 1, true, &line, &n, &e) == HT_EFORMAT, "cut");
    T_CHECK(ht_journal_check(f.a, "", 0, true, &line, &n, &e) == HT_EFORMAT, "empty");
    T_OK(ht_journal_check(f.a, text, (size_t)(start[4] - text), false, &line, &n, &e), e);
    free(text);
    fx_done(&f);
}

T_CASE(scope, identity)
{
    fx f;
    ht_scope back;
    ht_err e = {0};
    char a[HT_SHA256_HEX], b[HT_SHA256_HEX];
    fx_init(&f);
    fx_build(&f);
    const char *text = fx_scope(&f, &f.scope[1]);
    T_OK(ht_scope_parse(f.a, text, strlen(text), &back, &e), e);
    T_CHECK(!ht_scope_differs(&back, &f.scope[1]), "a scope differs from itself");
    T_OK(ht_scope_sha256(&back, a, &e), e);
    T_EQ_STR(a, fx_sha(&f, text, strlen(text)));
    ht_scope o = back;
    o.max_tokens++;
    T_OK(ht_scope_sha256(&o, b, &e), e);
    T_CHECK(strcmp(a, b) != 0, "another bucket is the same scope");
    o = back;
    o.instance = "hmac:other";
    T_EQ_STR(ht_scope_differs(&back, &o), "instance");
    o.tok_sha = FX_SHA("f");
    T_EQ_STR(ht_scope_differs(&back, &o), "tokenizer");
    o.os = NULL;
    T_ERR(ht_scope_sha256(&o, b, &e), HT_EARG, e, "not set");
    const char *bad = fx_swap(&f, text, "\"minTokens\":129", "\"minTokens\":513");
    T_ERR(ht_scope_parse(f.a, bad, strlen(bad), &back, &e), HT_EFORMAT, e, "not an interval");
    fx_done(&f);
}
