/* subject.c - what a bundle says it is about: model file, tokenizer, template, this program, its
 * libraries and its build, each with its digest, as the documents of docs/bundle.md. */
#include "cli/subject.h"
#include "core/map.h"
#include "version.h"
#include <stdio.h>
#include <string.h>

static int hex_of(const void *p, size_t n, char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(p, n, digest, e));
    ht_hex(digest, sizeof digest, hex);
    return 0;
}

static int file_digest(const char *path, uint64_t *bytes, char hex[HT_SHA256_HEX], ht_err *e)
{
    ht_map m;
    HT_TRY(ht_map_open(&m, path, e));
    int rc = hex_of(m.p, m.n, hex, e);
    *bytes = m.n;
    ht_map_close(&m);
    return rc;
}

static const char *base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void put_file_entry(ht_jw *w, const char *path, uint64_t bytes, const char *sha)
{
    ht_jw_obj(w);
    ht_jw_kuint(w, "bytes", bytes);
    ht_jw_kstr(w, "path", base(path));
    ht_jw_kstr(w, "sha256", sha);
    ht_jw_end(w, '}');
}

/* Adds a finished document to the list. */
static int add(cli__subject *s, const char *path, ht_buf *b, ht_err *e)
{
    HT_TRY(ht_buf_ok(b, path, e));
    char *copy = ht_arena_strndup(s->arena, b->p, b->n);
    if (!copy || s->n_files == CLI_SUBJECT_FILES)
        return HT_FAIL(e, HT_ENOMEM, "subject: out of memory for %s", path);
    s->file[s->n_files++] = (ht_bundle_file){path, copy, b->n};
    ht_buf_clear(b);
    return 0;
}

/* modelPackSha256: of the canonical list of the model's files (evidence.md 2.1). */
static int model_doc(cli__subject *s, const char *model, ht_buf *b, ht_err *e)
{
    uint64_t bytes;
    char sha[HT_SHA256_HEX];
    ht_jw w;
    HT_TRY(file_digest(model, &bytes, sha, e));
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_arr(&w);
    put_file_entry(&w, model, bytes, sha);
    ht_jw_end(&w, ']');
    HT_TRY(hex_of(b->p, b->n, s->model_sha, e));
    ht_buf_clear(b);
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_key(&w, "files");
    ht_jw_arr(&w);
    put_file_entry(&w, model, bytes, sha);
    ht_jw_end(&w, ']');
    ht_jw_kstr(&w, "schema", "hetero/modelpack/1");
    ht_jw_kstr(&w, "sha256", s->model_sha);
    ht_jw_end(&w, '}');
    return add(s, "subject/modelpack.json", b, e);
}

static int tokenizer_doc(cli__subject *s, const ht_json *info, const char *tmpl, ht_buf *b,
                         ht_err *e)
{
    const char *tok = cli__str(info, "tokenizerSha256", NULL);
    ht_jw w;
    if (!tok || !ht_is_sha256(tok, strlen(tok)))
        return HT_FAIL(e, HT_EFORMAT, "the library's receipt names no tokenizerSha256");
    memcpy(s->tok_sha, tok, HT_SHA256_HEX);
    HT_TRY(hex_of(tmpl ? tmpl : "", tmpl ? strlen(tmpl) : 0, s->tmpl_sha, e));
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "schema", "hetero/tokenizer/1");
    ht_jw_kstr(&w, "sha256", s->tok_sha);
    ht_jw_kstr(&w, "templateSha256", s->tmpl_sha);
    ht_jw_end(&w, '}');
    return add(s, "subject/tokenizer.json", b, e);
}

/* Shared libraries that this process has mapped, by /proc/self/maps. */
static int assets_doc(cli__subject *s, ht_buf *b, ht_err *e)
{
    char *maps, *save = NULL, last[CLI_PATH] = "";
    size_t n;
    ht_jw w;
    HT_TRY(ht_file_read("/proc/self/maps", 16 << 20, &maps, &n, e));
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_key(&w, "files");
    ht_jw_arr(&w);
    int rc = 0;
    for (char *line = strtok_r(maps, "\n", &save); line && !rc;
         line = strtok_r(NULL, "\n", &save)) {
        char *path = strchr(line, '/'), sha[HT_SHA256_HEX];
        uint64_t bytes;
        if (!path || !strstr(base(path), ".so") || strlen(path) >= sizeof last ||
            strcmp(path, last) == 0)
            continue;
        memcpy(last, path, strlen(path) + 1);
        rc = file_digest(path, &bytes, sha, e);
        if (!rc) put_file_entry(&w, path, bytes, sha);
    }
    ht_mem_free(maps);
    HT_TRY(rc);
    ht_jw_end(&w, ']');
    ht_jw_kstr(&w, "schema", "hetero/assets/1");
    ht_jw_end(&w, '}');
    HT_TRY(hex_of(b->p, b->n, s->assets_sha, e));
    return add(s, "subject/assets.json", b, e);
}

static int build_docs(cli__subject *s, ht_buf *b, ht_err *e)
{
    uint64_t bytes;
    char commit[64] = "unknown";
    const char *v = strstr(ht_version(), "(commit ");
    ht_jw w;
    if (v) snprintf(commit, sizeof commit, "%.*s", (int)strcspn(v + 8, "-)"), v + 8);
    HT_TRY(file_digest("/proc/self/exe", &bytes, s->binary_sha, e));
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "bytes", bytes);
    ht_jw_kstr(&w, "schema", "hetero/binary/1");
    ht_jw_kstr(&w, "sha256", s->binary_sha);
    ht_jw_end(&w, '}');
    HT_TRY(add(s, "build/binary.json", b, e));
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "commit", commit);
    /* A build outside a checkout cannot say that it is clean. */
    ht_jw_kbool(&w, "dirty", !v || strstr(v, "-dirty") != NULL);
    ht_jw_kstr(&w, "schema", "hetero/source/1");
    ht_jw_kstr(&w, "tree", "not recorded");
    ht_jw_end(&w, '}');
    HT_TRY(add(s, "build/source.json", b, e));
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "compiler", __VERSION__);
    ht_jw_kstr(&w, "flags", HT_FLAGS);
    ht_jw_kstr(&w, "schema", "hetero/toolchain/1");
    ht_jw_end(&w, '}');
    return add(s, "build/toolchain.json", b, e);
}

int cli__subject_make(ht_arena *a, const char *model, const ht_json *receipt, const char *tmpl,
                      cli__subject *s, ht_err *e)
{
    ht_buf b;
    *s = (cli__subject){.arena = a};
    ht_buf_init(&b, 0);
    int rc = model_doc(s, model, &b, e);
    if (!rc) rc = tokenizer_doc(s, receipt, tmpl, &b, e);
    if (!rc) rc = assets_doc(s, &b, e);
    if (!rc) rc = build_docs(s, &b, e);
    ht_buf_done(&b);
    return rc;
}
