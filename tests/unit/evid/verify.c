/* verify.c - a bundle on disk: sealed, verified, and refused after every kind of damage. */
#include "fixture.h"
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

/* 0 or the refusal of a fresh verification of dir. */
static int verify(const char *dir, const ht_trust *t, ht_err *e)
{
    ht_arena *a;
    ht_verified v;
    T_OK(ht_arena_new(&a, 0, e), *e);
    int rc = ht_bundle_verify(a, dir, t, FX_NOW, &v, e);
    ht_arena_free(a);
    return rc;
}

static const char *path_of(fx *f, const char *dir, const char *name)
{
    return fx_fmt(f, "%s/%s", dir, name);
}

typedef struct {
    fx f;
    ht_trust t;
    const char *dir;
    char id[HT_SHA256_HEX];
} sealed;

static void make(sealed *s)
{
    ht_err e = {0};
    fx_init(&s->f);
    fx_build(&s->f);
    fx_trust(&s->f, &s->t);
    s->dir = fx_fmt(&s->f, "%s/bundle", t_tmp());
    fx_seal(&s->f, s->dir, s->id);
    T_OK(verify(s->dir, &s->t, &e), e);
}

T_CASE(verify, good)
{
    sealed s;
    ht_err e = {0};
    ht_arena *a;
    ht_verified v;
    make(&s);
    T_OK(ht_arena_new(&a, 0, &e), e);
    T_OK(ht_bundle_verify(a, s.dir, &s.t, FX_NOW, &v, &e), e);
    T_EQ_STR(v.id, s.id);
    T_EQ_STR(ht_class_names[v.analysis.cls], "QUALIFIED");
    T_EQ_INT(v.analysis.n_routes, 2);
    T_EQ_STR(v.bench_key, s.t.key[0].id);
    T_CHECK(!v.analysis.hardware_evidence && !v.analysis.production_eligible,
            "a synthetic bundle counts as hardware evidence");
    ht_arena_free(a);
    fx_done(&s.f);
}

static size_t all_names(sealed *s, const char **name)
{
    size_t n = 0;
    for (size_t i = 0; i < s->f.n; i++) name[n++] = s->f.file[i].path;
    for (size_t i = 0; ht_bundle_outputs[i]; i++) name[n++] = ht_bundle_outputs[i];
    name[n++] = "inputs.manifest.json";
    name[n++] = "outputs.manifest.json";
    name[n++] = "statement.dsse.json";
    return n;
}

/* Damage to one file, undone by its counterpart: 0 a bit, 1 emptied, 2 deleted, 3 renamed, 4 other
 * case, 5 symbolic link, 6 hard link, 7 FIFO in its place, 8 one byte more. */
enum { N_DAMAGE = 9 };
static void damage(sealed *s, const char *path, const char *text, size_t len, int kind)
{
    const char *other = fx_fmt(&s->f, "%s.x", path);
    const char *away = fx_fmt(&s->f, "%s/away", t_tmp());
    char *copy = fx_fmt(&s->f, "%s", path), *base = strrchr(copy, '/') + 1;
    switch (kind) {
    case 0: {
        char *bad = fx_fmt(&s->f, "%.*s", (int)len, text);
        memcpy(bad, text, len);
        bad[t_rand(&s->f.rng) % len] ^= (char)(1 << (t_rand(&s->f.rng) % 8));
        t_spit(path, bad, len);
        break;
    }
    case 1: t_spit(path, "", 0); break;
    case 2: T_EQ_INT(unlink(path), 0); break;
    case 3: T_EQ_INT(rename(path, other), 0); break;
    case 4:
        base[0] = (char)(base[0] - 'a' + 'A');
        T_EQ_INT(rename(path, copy), 0);
        break;
    case 5:
    case 6:
        t_spit(away, text, len);
        T_EQ_INT(unlink(path), 0);
        T_EQ_INT(kind == 5 ? symlink(away, path) : link(away, path), 0);
        break;
    case 7:
        T_EQ_INT(unlink(path), 0);
        T_EQ_INT(mkfifo(path, 0644), 0);
        break;
    default: {
        char *more = fx_fmt(&s->f, "%.*s ", (int)len, text);
        memcpy(more, text, len);
        more[len] = ' ';
        t_spit(path, more, len + 1);
    }
    }
}

static void restore(sealed *s, const char *path, const char *text, size_t len)
{
    char *copy = fx_fmt(&s->f, "%s", path), *base = strrchr(copy, '/') + 1;
    base[0] = (char)(base[0] - 'a' + 'A');
    (void)unlink(copy);
    (void)unlink(fx_fmt(&s->f, "%s.x", path));
    (void)unlink(path);
    t_spit(path, text, len);
}

/* evidence.md 8, Bytes 1 and 2: every damage to the documents, a bit of every single file. */
T_CASE_SECONDS(verify, every_file_damaged, 600)
{
    sealed s;
    ht_err e = {0};
    const char **name = calloc(FX_FILES, sizeof *name);
    T_CHECK(name, "no memory");
    make(&s);
    size_t n = all_names(&s, name), raw = 0, refused = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *path = path_of(&s.f, s.dir, name[i]);
        char *text = t_slurp(path, &len);
        bool is_raw = strncmp(name[i], "raw/", 4) == 0;
        raw += is_raw;
        for (int kind = 0; kind < (is_raw && raw > 8 ? 1 : N_DAMAGE); kind++) {
            damage(&s, path, text, len, kind);
            T_CHECK(verify(s.dir, &s.t, &e) != 0, "%s: damage %d goes unseen", name[i], kind);
            T_CHECK(e.msg[0], "%s: damage %d is refused without a word", name[i], kind);
            restore(&s, path, text, len);
            refused++;
        }
        free(text);
    }
    T_OK(verify(s.dir, &s.t, &e), e);
    T_CHECK(refused > 300, "only %zu refusals", refused);
    free(name);
    fx_done(&s.f);
}

T_CASE(verify, foreign_entries)
{
    sealed s;
    ht_err e = {0};
    make(&s);
    static const char *const extra[] = {"note.txt", "raw/extra.bin", "inputs.manifest.json.bak"};
    for (size_t i = 0; i < 3; i++) {
        const char *p = path_of(&s.f, s.dir, extra[i]);
        t_spit(p, "x", 1);
        T_ERR(verify(s.dir, &s.t, &e), HT_EFORMAT, e, "in no manifest");
        unlink(p);
    }
    const char *p = path_of(&s.f, s.dir, "pipe");
    T_EQ_INT(mkfifo(p, 0600), 0);
    T_ERR(verify(s.dir, &s.t, &e), HT_EFORMAT, e, "regular file");
    unlink(p);
    T_EQ_INT(symlink("design.json", p), 0);
    T_ERR(verify(s.dir, &s.t, &e), HT_EFORMAT, e, "regular file");
    unlink(p);
    /* An empty folder is no evidence of anything. */
    T_ERR(verify(t_tmp(), &s.t, &e), HT_EFORMAT, e, "inputs.manifest.json");
    T_OK(verify(s.dir, &s.t, &e), e);
    fx_done(&s.f);
}

/* Bytes 3: two raw files of equal size change places. */
T_CASE(verify, swapped_files)
{
    sealed s;
    ht_err e = {0};
    make(&s);
    const char *a = path_of(&s.f, s.dir, "raw/b00/s1-M/a1/d512-0/request.bin");
    const char *b = path_of(&s.f, s.dir, "raw/b00/s1-M/a1/p512-0/request.bin");
    const char *t = path_of(&s.f, s.dir, "../t");
    T_EQ_INT(rename(a, t) | rename(b, a) | rename(t, b), 0);
    T_ERR(verify(s.dir, &s.t, &e), HT_EFORMAT, e, "does not match its digest");
    T_EQ_INT(rename(a, t) | rename(b, a) | rename(t, b), 0);
    T_OK(verify(s.dir, &s.t, &e), e);
    fx_done(&s.f);
}

/* The documents of the seal edited as text, whether or not the digests above them are mended: the
 * signature, or the recomputation, finds it. */
T_CASE(verify, edited_documents)
{
    static const struct {
        const char *file, *from, *to, *says;
    } edit[] = {
        {"inputs.manifest.json", "\"bytes\":", "\"bytes\": ", ""},
        {"inputs.manifest.json", "\"bytes\":1", "\"bytes\":2", ""},
        {"inputs.manifest.json", "\"role\":\"raw\"", "\"role\":\"rav\"", "other inputs"},
        {"inputs.manifest.json", "hetero/inputs/1", "hetero/inputs/2", "schema"},
        {"inputs.manifest.json", "\"files\":[{", "\"files\":[{\"extra\":1,", ""},
        {"inputs.manifest.json", "build/binary.json", "build/../x.json", "not allowed"},
        {"inputs.manifest.json", "build/binary.json", "/build/binary.js", "not allowed"},
        {"inputs.manifest.json", "build/binary.json", "build\\\\binary.json", "not allowed"},
        {"inputs.manifest.json", "build/binary.json", "build/binary.json\\u0000", ""},
        {"outputs.manifest.json", "\"role\":\"output\"", "\"role\":\"outpux\"", "role"},
        {"statement.dsse.json", "\"payloadType\":\"application/vnd.in-toto+json\"",
         "\"payloadType\":\"application/vnd.in-toto+jsom\"", "UNKNOWN_TYPE"},
        {"statement.dsse.json", "\"signatures\":[{", "\"signatures\":[],\"x\":[{", ""},
        {"statement.dsse.json", "\"keyid\":\"", "\"keyid\":\"f", ""},
    };
    sealed s;
    ht_err e = {0};
    make(&s);
    for (size_t i = 0; i < sizeof edit / sizeof edit[0]; i++) {
        const char *path = path_of(&s.f, s.dir, edit[i].file);
        size_t len;
        char *text = t_slurp(path, &len);
        const char *bad = fx_swap(&s.f, text, edit[i].from, edit[i].to);
        t_spit(path, bad, strlen(bad));
        T_CHECK(verify(s.dir, &s.t, &e) != 0, "edit %zu of %s goes unseen", i, edit[i].file);
        T_CHECK(strstr(e.msg, edit[i].says), "edit %zu: \"%s\" lacks \"%s\"", i, e.msg,
                edit[i].says);
        t_spit(path, text, len);
        free(text);
    }
    T_OK(verify(s.dir, &s.t, &e), e);
    fx_done(&s.f);
}

/* Write outputs.manifest.json anew for what lies in dir and sign again with key n: the holder
 * of a key who edits a result and mends every digest by hand. */
static void mend(sealed *s, uint8_t key, const char *statement)
{
    ht_err e = {0};
    ht_buf b;
    const char *role[8];
    size_t n = 0;
    for (; ht_bundle_outputs[n]; n++) role[n] = "output";
    ht_buf_init(&b, 0);
    T_OK(ht_manifest_write(s->f.a, s->dir, "hetero/outputs/1", ht_bundle_outputs, role, n, s->id,
                           &b, &e),
         e);
    t_spit(path_of(&s->f, s->dir, "outputs.manifest.json"), b.p, b.n);
    const char *sha = fx_sha(&s->f, b.p, b.n);
    ht_buf_clear(&b);
    if (!statement) {
        size_t len;
        ht_dsse d;
        char *text = t_slurp(path_of(&s->f, s->dir, "statement.dsse.json"), &len);
        T_OK(ht_dsse_parse(s->f.a, text, len, &d, &e), e);
        const char *p = fx_fmt(&s->f, "%.*s", (int)d.n, (const char *)d.payload);
        const char *at = strstr(p, "\"outputsManifestSha256\":\"") + 25;
        statement = fx_fmt(&s->f, "%.*s%s%s", (int)(at - p), p, sha, at + 64);
        free(text);
    }
    ht_key *k = fx_key(key);
    const ht_key *keys[1] = {k};
    T_OK(ht_dsse_sign(statement, strlen(statement), HT_PAYLOAD_TYPE, keys, 1, &b, &e), e);
    t_spit(path_of(&s->f, s->dir, "statement.dsse.json"), b.p, b.n);
    ht_key_free(k);
    ht_buf_done(&b);
}

static const char *payload(sealed *s)
{
    size_t len;
    ht_dsse d;
    ht_err e = {0};
    char *text = t_slurp(path_of(&s->f, s->dir, "statement.dsse.json"), &len);
    T_OK(ht_dsse_parse(s->f.a, text, len, &d, &e), e);
    free(text);
    return fx_fmt(&s->f, "%.*s", (int)d.n, (const char *)d.payload);
}

/* Trust 37, 38: results edited with every digest and signature mended are found by recomputing. */
T_CASE(verify, results_edited_and_resigned)
{
    static const struct {
        const char *file, *from, *to;
    } edit[] = {
        {"verdict.json", "\"result\":\"NOT_APPLICABLE\"", "\"result\":\"PASS\""},
        {"verdict.json", "\"productionEligible\":false", "\"productionEligible\":true"},
        {"verdict.json", "\"hardwareEvidence\":false", "\"hardwareEvidence\":true"},
        {"analysis/stats.json", "\"wins\":8", "\"wins\":7"},
        {"analysis/pairs.json", "\"ratioPpm\":1", "\"ratioPpm\":2"},
        {"analysis/quality.json", "\"exactPrompts\":1", "\"exactPrompts\":2"},
        {"analysis/tails.json", "\"misses\":0", "\"misses\":1"},
        {"costmap.json", "\"memPeakBytes\":1048576", "\"memPeakBytes\":1048575"},
    };
    sealed s;
    ht_err e = {0};
    make(&s);
    for (size_t i = 0; i < sizeof edit / sizeof edit[0]; i++) {
        size_t len;
        const char *path = path_of(&s.f, s.dir, edit[i].file);
        char *text = t_slurp(path, &len);
        const char *bad = fx_swap(&s.f, text, edit[i].from, edit[i].to);
        t_spit(path, bad, strlen(bad));
        mend(&s, 1, NULL);
        T_ERR(verify(s.dir, &s.t, &e), HT_EFORMAT, e, "RECOMPUTED");
        t_spit(path, text, len);
        mend(&s, 1, NULL);
        T_OK(verify(s.dir, &s.t, &e), e);
        free(text);
    }
    fx_done(&s.f);
}

/* Trust 36, 38: who signed, and as what. */
T_CASE(verify, statements)
{
    sealed s;
    ht_err e = {0};
    make(&s);
    const char *good = payload(&s);
    for (uint8_t k = 2; k <= 7; k++) { /* other roles, and a key nobody trusts */
        mend(&s, k, good);
        T_ERR(verify(s.dir, &s.t, &e), HT_EGATE, e, "BAD_SIGNATURE");
    }
    mend(&s, 1, fx_swap(&s.f, good, "urn:hetero:evidence:1", "urn:hetero:simulation:1"));
    T_ERR(verify(s.dir, &s.t, &e), HT_EGATE, e, "UNKNOWN_TYPE");
    mend(&s, 5, fx_swap(&s.f, good, "urn:hetero:evidence:1", "urn:hetero:simulation:1"));
    T_ERR(verify(s.dir, &s.t, &e), HT_EGATE, e, "BAD_SIGNATURE");
    mend(&s, 1, fx_swap(&s.f, good, "\"hardwareEvidence\":false", "\"hardwareEvidence\":true"));
    T_ERR(verify(s.dir, &s.t, &e), HT_EFORMAT, e, "RECOMPUTED");
    mend(&s, 1, fx_swap(&s.f, good, "\"productionEligible\":false", "\"productionEligible\":true"));
    T_ERR(verify(s.dir, &s.t, &e), HT_EFORMAT, e, "RECOMPUTED");
    mend(&s, 1, fx_swap(&s.f, good, "{\"_type\"", "{ \"_type\""));
    T_CHECK(verify(s.dir, &s.t, &e) != 0, "a payload that is not canonical passes");
    mend(&s, 1,
         fx_swap(&s.f, good, "\"subject\":[",
                 "\"subject\":[{\"digest\":{\"sha256\":\"x\"},\"name\":\"y\"},"));
    T_CHECK(verify(s.dir, &s.t, &e) != 0, "a subject more passes");
    mend(&s, 1, good);
    T_OK(verify(s.dir, &s.t, &e), e);
    s.t.expires_unix = FX_NOW;
    T_ERR(verify(s.dir, &s.t, &e), HT_EGATE, e, "TRUST_EXPIRED");
    fx_done(&s.f);
}

/* A bundle's statement put beside another bundle's files. */
T_CASE(verify, statement_of_another_bundle)
{
    sealed s, other;
    ht_err e = {0};
    make(&s);
    fx_init(&other.f);
    other.f.seed = 8;
    fx_build(&other.f);
    other.dir = fx_fmt(&other.f, "%s/other", t_tmp());
    fx_seal(&other.f, other.dir, other.id);
    T_OK(verify(other.dir, &s.t, &e), e);
    size_t len;
    char *text = t_slurp(path_of(&s.f, other.dir, "statement.dsse.json"), &len);
    t_spit(path_of(&s.f, s.dir, "statement.dsse.json"), text, len);
    T_ERR(verify(s.dir, &s.t, &e), HT_EFORMAT, e, "RECOMPUTED");
    free(text);
    fx_done(&other.f);
    fx_done(&s.f);
}
