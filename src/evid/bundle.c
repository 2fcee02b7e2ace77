/* bundle.c - sealing a folder of inputs; see bundle.h. */
#include "evid/bundle.h"
#include "evid/bundle_read.h"
#include "evid/verdict.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_INPUTS = 100000, MAX_DEPTH = 16 };

static const char *role_of(const char *path)
{
    static const struct {
        const char *prefix, *role;
    } map[] = {{"raw/", "raw"},
               {"quality/", "quality"},
               {"machine/", "machine"},
               {"subject/", "subject"},
               {"build/", "build"},
               {"design.json", "design"},
               {"policy.json", "policy"},
               {"journal.jsonl", "journal"},
               {"samples.jsonl", "samples"},
               {"prompts.jsonl", "prompts"},
               {"arrivals.jsonl", "prompts"},
               {"calibration.jsonl", "prompts"},
               {"runs.jsonl", "samples"},
               {"server/", "server"},
               {"edges.json", "edges"}};
    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++)
        if (strncmp(path, map[i].prefix, strlen(map[i].prefix)) == 0) return map[i].role;
    return "other";
}

typedef struct {
    ht_arena *a;
    const char **path, **role;
    size_t n, cap;
} listing;

static int list_dir(listing *l, const char *dir, const char *sub, unsigned depth, ht_err *e);

static int list_entry(listing *l, const char *dir, const char *sub, const char *name,
                      unsigned depth, ht_err *e)
{
    struct stat st;
    char *path = ht_arena_printf(l->a, "%s%s%s", sub, *sub ? "/" : "", name);
    char *full = path ? ht_arena_printf(l->a, "%s/%s", dir, path) : NULL;
    if (!full) return HT_FAIL(e, HT_ENOMEM, "bundle: no memory for a path");
    if (lstat(full, &st) != 0) return HT_FAIL(e, HT_EIO, "%s: %s", full, strerror(errno));
    if (S_ISDIR(st.st_mode)) return list_dir(l, dir, path, depth + 1, e);
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        const char **p = cap <= MAX_INPUTS ? ht_arena_array(l->a, cap, sizeof *p) : NULL;
        const char **r = p ? ht_arena_array(l->a, cap, sizeof *r) : NULL;
        if (!r) return HT_FAIL(e, HT_ENOMEM, "bundle: more than %d files", (int)MAX_INPUTS);
        if (l->n) memcpy(p, l->path, l->n * sizeof *p);
        if (l->n) memcpy(r, l->role, l->n * sizeof *r);
        l->path = p;
        l->role = r;
        l->cap = cap;
    }
    l->path[l->n] = path;
    l->role[l->n++] = role_of(path);
    return 0;
}

static int list_dir(listing *l, const char *dir, const char *sub, unsigned depth, ht_err *e)
{
    char *full = ht_arena_printf(l->a, "%s%s%s", dir, *sub ? "/" : "", sub);
    if (!full) return HT_FAIL(e, HT_ENOMEM, "bundle: no memory for a path");
    DIR *d = depth < MAX_DEPTH ? opendir(full) : NULL;
    if (!d)
        return HT_FAIL(e, HT_EIO, "%s: %s", full, depth < MAX_DEPTH ? strerror(errno) : "too deep");
    int rc = 0;
    for (struct dirent *it; rc == 0 && (it = readdir(d));)
        if (strcmp(it->d_name, ".") != 0 && strcmp(it->d_name, "..") != 0)
            rc = list_entry(l, dir, sub, it->d_name, depth, e);
    closedir(d);
    return rc;
}

/* Make the folders of path below dir, then the file, which must not exist. */
int evid__put_file(const char *dir, const char *path, const void *data, size_t n, ht_err *e)
{
    char full[4096];
    int k = snprintf(full, sizeof full, "%s/%s", dir, path);
    if (k < 0 || (size_t)k >= sizeof full || !ht_manifest_path_ok(path))
        return HT_FAIL(e, HT_EARG, "bundle: path \"%.80s\" is not allowed", path);
    for (char *p = full + strlen(dir) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(full, 0777) != 0 && errno != EEXIST)
            return HT_FAIL(e, HT_EIO, "%s: %s", full, strerror(errno));
        *p = '/';
    }
    int fd = open(full, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) return HT_FAIL(e, HT_EIO, "%s: %s", full, strerror(errno));
    const char *from = data;
    while (n) {
        ssize_t w = write(fd, from, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) break;
        from += w;
        n -= (size_t)w;
    }
    int bad = n != 0, why = errno;
    bad |= close(fd) != 0;
    return bad ? HT_FAIL(e, HT_EIO, "%s: %s", full, strerror(why)) : 0;
}

/* ---- the statement --------------------------------------------------------------------------- */

void evid__write_subject(ht_jw *w, const char *name, const char *sha)
{
    ht_jw_obj(w);
    ht_jw_key(w, "digest");
    ht_jw_obj(w);
    ht_jw_kstr(w, "sha256", sha);
    ht_jw_end(w, '}');
    ht_jw_kstr(w, "name", name);
    ht_jw_end(w, '}');
}

int evid__write_statement(const evid__claim *x, ht_buf *out, ht_err *e)
{
    ht_jw w;
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "_type", HT_INTOTO_TYPE);
    ht_jw_key(&w, "predicate");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "bundleId", x->bundle_id);
    ht_jw_kbool(&w, "hardwareEvidence", x->hardware_evidence);
    ht_jw_kstr(&w, "inputsManifestSha256", x->bundle_id);
    ht_jw_kstr(&w, "outputsManifestSha256", x->outputs_sha);
    ht_jw_kbool(&w, "productionEligible", x->production_eligible);
    ht_jw_kstr(&w, "schema", x->schema);
    ht_jw_end(&w, '}');
    ht_jw_kstr(&w, "predicateType", x->predicate_type);
    ht_jw_key(&w, "subject");
    ht_jw_arr(&w);
    for (size_t i = 0; i < x->n_subjects; i++)
        evid__write_subject(&w, x->subject[i].name, x->subject[i].sha);
    evid__write_subject(&w, "policy", x->policy_sha);
    evid__write_subject(&w, "bundle", x->bundle_id);
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "statement", e);
}

int ht_bundle_statement(const ht_evidence *v, const ht_analysis *x, const char *outputs_sha256,
                        ht_buf *out, ht_err *e)
{
    const evid__named subjects[] = {
        {"modelPack", v->model_sha}, {"tokenizer", v->tok_sha},
        {"template", v->tmpl_sha},   {"binary", v->binary_sha},
        {"assets", v->assets_sha},   {"referenceScope", v->design.cell[0].ref_sha}};
    const evid__claim claim = {.predicate_type = HT_PRED_EVIDENCE,
                               .schema = "hetero/evidence/1",
                               .bundle_id = v->in->sha256,
                               .outputs_sha = outputs_sha256,
                               .policy_sha = v->policy.sha256,
                               .subject = subjects,
                               .n_subjects = sizeof subjects / sizeof *subjects,
                               .hardware_evidence = x->hardware_evidence,
                               .production_eligible = x->production_eligible};
    return evid__write_statement(&claim, out, e);
}

/* ---- sealing --------------------------------------------------------------------------------- */

static int put_buf(const char *dir, const char *path, const ht_buf *b, ht_err *e)
{
    return evid__put_file(dir, path, b->p, b->n, e);
}

static int put_outputs(ht_arena *a, const char *dir, const ht_evidence *v, const ht_analysis *x,
                       ht_buf *b, char sha[HT_SHA256_HEX], ht_err *e)
{
    const char *role[8];
    uint8_t digest[HT_SHA256_BYTES];
    size_t n = 0;
    for (; ht_bundle_outputs[n]; n++) {
        ht_buf_clear(b);
        role[n] = "output";
        HT_TRY(ht_analysis_write(v, x, n, b, e));
        HT_TRY(put_buf(dir, ht_bundle_outputs[n], b, e));
    }
    ht_buf_clear(b);
    HT_TRY(ht_manifest_write(a, dir, "hetero/outputs/1", ht_bundle_outputs, role, n, v->in->sha256,
                             b, e));
    HT_TRY(ht_sha256_of(b->p, b->n, digest, e));
    ht_hex(digest, sizeof digest, sha);
    return put_buf(dir, "outputs.manifest.json", b, e);
}

int evid__list_inputs(ht_arena *a, const char *dir, ht_buf *out, ht_err *e)
{
    listing l = {.a = a};
    HT_TRY(list_dir(&l, dir, "", 0, e));
    return ht_manifest_write(a, dir, "hetero/inputs/1", l.path, l.role, l.n, NULL, out, e);
}

int evid__put_statement(const char *dir, const ht_key *bench, const ht_buf *payload, ht_err *e)
{
    ht_buf env;
    ht_buf_init(&env, 0);
    int rc = ht_dsse_sign(payload->p, payload->n, HT_PAYLOAD_TYPE, &bench, 1, &env, e);
    if (rc == 0) rc = put_buf(dir, "statement.dsse.json", &env, e);
    ht_buf_done(&env);
    return rc;
}

static int seal(ht_arena *a, const char *dir, const ht_key *bench, ht_buf *b,
                char id[HT_SHA256_HEX], ht_err *e)
{
    ht_manifest in;
    ht_evidence v;
    ht_analysis x;
    char sha[HT_SHA256_HEX];
    HT_TRY(evid__list_inputs(a, dir, b, e));
    HT_TRY(ht_manifest_read(a, dir, b->p, b->n, "hetero/inputs/1", NULL, HT_BUNDLE_MAX, &in, e));
    HT_TRY(ht_evidence_read(a, &in, &v, e));
    HT_TRY(ht_analyze(a, &v, &x, e));
    HT_TRY(put_buf(dir, "inputs.manifest.json", b, e));
    HT_TRY(put_outputs(a, dir, &v, &x, b, sha, e));
    ht_buf_clear(b);
    HT_TRY(ht_bundle_statement(&v, &x, sha, b, e));
    HT_TRY(evid__put_statement(dir, bench, b, e));
    memcpy(id, in.sha256, HT_SHA256_HEX);
    return 0;
}

int evid__seal(evid__seal_fn *fn, const char *dir, const ht_key *bench, char id[HT_SHA256_HEX],
               ht_err *e)
{
    ht_arena *a;
    ht_buf b;
    HT_TRY(ht_arena_new(&a, 0, e));
    ht_buf_init(&b, 0);
    int rc = fn(a, dir, bench, &b, id, e);
    ht_buf_done(&b);
    ht_arena_free(a);
    return rc;
}

int ht_bundle_seal(const char *dir, const ht_key *bench, char id[HT_SHA256_HEX], ht_err *e)
{
    return evid__seal(seal, dir, bench, id, e);
}

int ht_bundle_write(const char *dir, const ht_bundle_file *f, size_t n, const ht_key *bench,
                    char id[HT_SHA256_HEX], ht_err *e)
{
    if (mkdir(dir, 0777) != 0) return HT_FAIL(e, HT_EIO, "%s: %s", dir, strerror(errno));
    for (size_t i = 0; i < n; i++) HT_TRY(evid__put_file(dir, f[i].path, f[i].data, f[i].n, e));
    return ht_bundle_seal(dir, bench, id, e);
}
