/* subject.c - digests of model, tokenizer, template, program and libraries; see subject.h. */
#include "api/subject.h"
#include "core/map.h"
#include "core/opt.h"
#include "core/path.h"
#include "route/seen.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 4096, FOLDER_FILES = 4096, MAPS_MAX = 16 << 20 };

static int hex_of(const void *p, size_t n, char hex[HT_SHA256_HEX], ht_err *err)
{
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(p, n, digest, err));
    ht_hex(digest, sizeof digest, hex);
    return 0;
}

static const char *base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int by_path(const void *x, const void *y)
{
    const api__digest_of *a = x, *b = y;
    const int c = strcmp(a->path, b->path);
    return c ? c : strcmp(a->sha256, b->sha256);
}

bool api__state_path(const char *name, char *out, size_t cap)
{
    const char *state = ht_env_get(HT_ENV_XDG_STATE_HOME), *home = ht_env_get(HT_ENV_HOME);
    const int n = state && *state == '/' ? snprintf(out, cap, "%s/hetero/%s", state, name)
                  : home ? snprintf(out, cap, "%s/.local/state/hetero/%s", home, name)
                         : -1;
    return n > 0 && (size_t)n < cap;
}

/* ---- the model's files ----------------------------------------------------------------------- */

/* Digest of a mapped file, remembered by the file's identity. */
static int map_digest(const ht_map *m, bool hash_all, char hex[HT_SHA256_HEX], ht_err *err)
{
    char list[PATH], key[HT_SEEN_KEY];
    const bool known = api__state_path("digests", list, sizeof list);
    (void)snprintf(key, sizeof key, "file:%llu:%llu:%llu:%llu:%llu", (unsigned long long)m->dev,
                   (unsigned long long)m->ino, (unsigned long long)m->n,
                   (unsigned long long)m->mtime_ns, (unsigned long long)m->ctime_ns);
    if (known && !hash_all && ht_seen_get(list, key, hex)) return 0;
    HT_TRY(hex_of(m->p, m->n, hex, err));
    ht_err ignored = {0}; /* costs a hash next time, nothing else */
    if (known && !ht_map_broken(m)) (void)(ht_seen_put(list, key, hex, &ignored) == 0);
    return 0;
}

/* File name of part i: shards are numbered in it. */
static const char *part_name(ht_engine *e, size_t i)
{
    const char *name = base(e->path), *of = strstr(name, "-of-");
    if (ht_file_n_parts(e->file) < 2 || !of || of - name < 6) return name;
    return ht_arena_printf(e->arena, "%.*s-%05zu%s", (int)(of - name - 6), name, i + 1, of);
}

static int parts(ht_engine *e, bool hash_all, api__subject *s, ht_err *err)
{
    s->n_files = ht_file_n_parts(e->file);
    s->file = ht_arena_array(e->arena, s->n_files, sizeof *s->file);
    if (!s->file) return HT_FAIL(err, HT_ENOMEM, "no memory for digests of %zu files", s->n_files);
    for (size_t i = 0; i < s->n_files; i++) {
        const ht_map *m = ht_file_part(e->file, i);
        s->file[i].path = part_name(e, i);
        s->file[i].bytes = m->n;
        if (!s->file[i].path) return HT_FAIL(err, HT_ENOMEM, "no memory for a file's name");
        HT_TRY(map_digest(m, hash_all, s->file[i].sha256, err));
    }
    return ht_file_unchanged(e->file, err);
}

static bool belongs(const char *name)
{
    static const char *const end[] = {".safetensors", ".json", ".jinja", ".model", ".txt"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof end / sizeof *end && name[0] != '.'; i++)
        if (n > strlen(end[i]) && strcmp(name + n - strlen(end[i]), end[i]) == 0) return true;
    return false;
}

/* A file of weights in the folder must be the one that the engine has mapped. */
static int same_file(const ht_engine *e, const char *name, const ht_map *m, ht_err *err)
{
    const size_t n = strlen(name);
    if (n < 12 || strcmp(name + n - 12, ".safetensors") != 0) return 0;
    for (size_t i = 0; i < ht_file_n_parts(e->file); i++) {
        const ht_map *p = ht_file_part(e->file, i);
        if (p->dev == m->dev && p->ino == m->ino && p->n == m->n && p->mtime_ns == m->mtime_ns &&
            p->ctime_ns == m->ctime_ns)
            return 0;
    }
    return HT_FAIL(err, HT_EIO,
                   "%.120s: another file than when the model was opened, or none of its weights",
                   name);
}

static int folder_file(ht_engine *e, const char *name, bool hash_all, api__subject *s, ht_err *err)
{
    char path[PATH];
    ht_map m;
    if (s->n_files == FOLDER_FILES)
        return HT_FAIL(err, HT_EFULL, "%.120s: more than %d files", e->path, (int)FOLDER_FILES);
    if (snprintf(path, sizeof path, "%s/%s", e->path, name) >= (int)sizeof path)
        return HT_FAIL(err, HT_EARG, "%.120s: the path is too long", name);
    HT_TRY(ht_map_open(&m, path, err));
    api__digest_of *f = &s->file[s->n_files];
    f->path = ht_arena_strndup(e->arena, name, strlen(name));
    f->bytes = m.n;
    int rc = f->path ? 0 : HT_FAIL(err, HT_ENOMEM, "no memory for a file's name");
    if (!rc) rc = same_file(e, name, &m, err);
    if (!rc) rc = map_digest(&m, hash_all, f->sha256, err);
    ht_map_close(&m);
    if (!rc) s->n_files++;
    return rc;
}

static int folder(ht_engine *e, bool hash_all, api__subject *s, ht_err *err)
{
    DIR *d = opendir(e->path);
    if (!d) return HT_FAIL(err, HT_EIO, "%.180s: the folder cannot be read", e->path);
    s->file = ht_arena_array(e->arena, FOLDER_FILES, sizeof *s->file);
    int rc = s->file ? 0 : HT_FAIL(err, HT_ENOMEM, "no memory for digests of a folder");
    for (struct dirent *it; !rc && (it = readdir(d));)
        if (belongs(it->d_name)) rc = folder_file(e, it->d_name, hash_all, s, err);
    closedir(d);
    return rc;
}

static void put_digest(ht_jw *w, const api__digest_of *f)
{
    ht_jw_obj(w);
    ht_jw_kuint(w, "bytes", f->bytes);
    ht_jw_kstr(w, "path", f->path);
    ht_jw_kstr(w, "sha256", f->sha256);
    ht_jw_end(w, '}');
}

static void put_digests(ht_jw *w, const api__digest_of *f, size_t n)
{
    ht_jw_arr(w);
    for (size_t i = 0; i < n; i++) put_digest(w, &f[i]);
    ht_jw_end(w, ']');
}

static int list_digest(const api__subject *s, char hex[HT_SHA256_HEX], ht_err *err)
{
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, HT_JSON_CANON);
    put_digests(&w, s->file, s->n_files);
    int rc = ht_buf_ok(&b, "the model's list of files", err);
    if (!rc) rc = hex_of(b.p, b.n, hex, err);
    ht_buf_done(&b);
    return rc;
}

static int program_digest(char hex[HT_SHA256_HEX], ht_err *err)
{
    ht_map m;
    HT_TRY(ht_map_open(&m, "/proc/self/exe", err));
    const int rc = hex_of(m.p, m.n, hex, err);
    ht_map_close(&m);
    return rc;
}

int api__subject_get(ht_engine *e, bool hash_all, const api__subject **out, ht_err *err)
{
    if (e->subject && !hash_all) {
        *out = e->subject;
        return 0;
    }
    api__subject *s = ht_arena_alloc(e->arena, sizeof *s);
    if (!s) return HT_FAIL(err, HT_ENOMEM, "no memory for digests");
    HT_TRY(ht_file_kind(e->file) == HT_FILE_HF ? folder(e, hash_all, s, err)
                                               : parts(e, hash_all, s, err));
    qsort(s->file, s->n_files, sizeof *s->file, by_path);
    HT_TRY(list_digest(s, s->model, err));
    HT_TRY(hex_of(e->tmpl ? e->tmpl : "", e->tmpl ? strlen(e->tmpl) : 0, s->tmpl, err));
    HT_TRY(program_digest(s->binary, err));
    ht_hex(ht_tok_sha256(e->tok), HT_SHA256_BYTES, s->tok);
    e->subject = s;
    *out = s;
    return 0;
}

/* ---- libraries ------------------------------------------------------------------------------- */

int api__libs_read(ht_arena *a, api__libs *out, ht_err *err)
{
    char *maps, *save = NULL;
    const char *last = "";
    size_t n, cap = 0;
    HT_TRY(ht_file_read("/proc/self/maps", MAPS_MAX, &maps, &n, err));
    for (size_t i = 0; i < n; i++) cap += maps[i] == '\n';
    *out = (api__libs){.lib = ht_arena_array(a, cap + 1, sizeof *out->lib)};
    int rc = out->lib ? 0 : HT_FAIL(err, HT_ENOMEM, "no memory for a list of libraries");
    for (char *line = strtok_r(maps, "\n", &save); line && !rc;
         line = strtok_r(NULL, "\n", &save)) {
        const char *path = strchr(line, '/');
        ht_map m;
        if (!path || !strstr(base(path), ".so") || strcmp(path, last) == 0) continue;
        last = path; /* the segments of one library follow each other */
        api__digest_of *f = &out->lib[out->n];
        rc = ht_map_open(&m, path, err);
        if (rc) break;
        f->path = ht_arena_strndup(a, base(path), strlen(base(path)));
        f->bytes = m.n;
        rc = f->path ? hex_of(m.p, m.n, f->sha256, err)
                     : HT_FAIL(err, HT_ENOMEM, "no memory for a library's name");
        ht_map_close(&m);
        out->n++;
    }
    ht_mem_free(maps);
    if (rc) return rc;
    /* By name: where the loader put them says nothing about what they are. */
    if (out->n) qsort(out->lib, out->n, sizeof *out->lib, by_path);
    size_t kept = 0;
    for (size_t i = 0; i < out->n; i++)
        if (!kept || by_path(&out->lib[kept - 1], &out->lib[i]) != 0)
            out->lib[kept++] = out->lib[i];
    out->n = kept;
    return 0;
}

int api__libs_sha256(const api__libs *l, ht_buf *doc, char hex[HT_SHA256_HEX], ht_err *err)
{
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_key(&w, "files");
    put_digests(&w, l->lib, l->n);
    ht_jw_kstr(&w, "schema", "hetero/assets/1");
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&b, "the list of libraries", err);
    if (!rc) rc = hex_of(b.p, b.n, hex, err);
    if (!rc && doc) ht_buf_add(doc, b.p, b.n);
    ht_buf_done(&b);
    return rc;
}

/* ---- the machine ----------------------------------------------------------------------------- */

static int read_machine(ht_arena *a, api__machine *m, ht_err *err)
{
    char path[PATH];
    uint8_t secret[HT_SECRET];
    ht_json *doc;
    ht_gpus *gpus = ht_arena_alloc(a, sizeof *gpus);
    if (!gpus) return HT_FAIL(err, HT_ENOMEM, "no memory for the machine's fingerprint");
    ht_gpus_read(gpus);
    const ht_machine_source here = {.root = "", .gpus = gpus};
    HT_TRY(ht_machine_read(a, &here, &doc, err));
    HT_TRY(ht_machine_sha256(doc, HT_MP_REJECT, m->class_sha, err));
    HT_TRY(ht_machine_sha256(doc, HT_MP_STALE, m->state_sha, err));
    (void)snprintf(m->os, sizeof m->os, "linux-%s",
                   ht_machine_leaf_text(a, ht_json_path(doc, "reject.osMajor")));
    if (!api__state_path("instance.secret", path, sizeof path))
        return HT_FAIL(err, HT_EARG, "no place for the installation's secret: HOME is not set");
    HT_TRY(ht_path_make_parents(path, 0700, err));
    HT_TRY(ht_machine_secret(path, secret, err));
    return ht_machine_instance(&here, secret, m->instance, err);
}

int api__machine_read(api__machine *m, ht_err *err)
{
    ht_arena *a = NULL;
    HT_TRY(ht_arena_new(&a, 0, err));
    const int rc = read_machine(a, m, err);
    ht_arena_free(a);
    return rc;
}

int ht_engine_identify(ht_engine *e, ht_err *err)
{
    const api__subject *s;
    if (!e) return HT_FAIL(err, HT_EARG, "ht_engine_identify: an engine must be given");
    return api__subject_get(e, false, &s, err);
}

/* ---- for bundles ----------------------------------------------------------------------------- */

int ht_engine_subject(ht_engine *e, char **json, ht_err *err)
{
    const api__subject *s;
    ht_arena *a = NULL;
    api__libs libs;
    char assets[HT_SHA256_HEX];
    ht_buf b, doc;
    ht_jw w;
    if (!e || !json)
        return HT_FAIL(err, HT_EARG, "ht_engine_subject: engine and json must be given");
    *json = NULL;
    HT_TRY(api__subject_get(e, true, &s, err));
    HT_TRY(ht_arena_new(&a, 0, err));
    ht_buf_init(&b, 0);
    ht_buf_init(&doc, 0);
    int rc = api__libs_read(a, &libs, err);
    if (!rc) rc = api__libs_sha256(&libs, &doc, assets, err);
    ht_jw_init(&w, &b, HT_JSON_CANON);
    ht_jw_obj(&w);
    if (!rc) {
        ht_jw_key(&w, "assets");
        ht_jw_raw(&w, doc.p, doc.n);
        ht_jw_kstr(&w, "assetsSha256", assets);
        ht_jw_kstr(&w, "binarySha256", s->binary);
        ht_jw_key(&w, "files");
        put_digests(&w, s->file, s->n_files);
        ht_jw_kstr(&w, "modelPackSha256", s->model);
        ht_jw_kstr(&w, "templateSha256", s->tmpl);
        ht_jw_kstr(&w, "tokenizerSha256", s->tok);
    }
    ht_jw_end(&w, '}');
    if (!rc) rc = api__take_json(&b, json, err);
    ht_buf_done(&b);
    ht_buf_done(&doc);
    ht_arena_free(a);
    return rc;
}
