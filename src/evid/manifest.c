/* manifest.c - writing and checking manifests; see manifest.h. */
#include "evid/manifest.h"
#include "evid/schema.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILES = 100000, MAX_PATH = 200, MAX_DEPTH = 16 };
static const ht_field file_fields[] = {
    {.key = "bytes", .type = HT_S_INT},
    {.key = "path", .type = HT_S_STR},
    {.key = "role", .type = HT_S_STR},
    {.key = "sha256", .type = HT_S_SHA256},
    {0},
};
static const ht_field inputs_fields[] = {
    {.key = "files", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = file_fields},
    {0},
};
static const ht_field outputs_fields[] = {
    {.key = "files", .type = HT_S_ARR, .item = HT_S_OBJ, .sub = file_fields},
    {.key = "inputsManifestSha256", .type = HT_S_SHA256},
    {0},
};

bool ht_manifest_path_ok(const char *path)
{
    size_t n = strlen(path), part = 0;
    if (n == 0 || n > MAX_PATH) return false;
    for (size_t i = 0; i <= n; i++) {
        char c = path[i];
        if (c == '/' || c == 0) {
            const char *p = path + i - part;
            if (part == 0 || (part == 1 && p[0] == '.') ||
                (part == 2 && p[0] == '.' && p[1] == '.'))
                return false;
            part = 0;
        } else {
            if (c <= ' ' || c >= 127 || c == '\\') return false;
            part++;
        }
    }
    return true;
}

/* Open dir/path one part at a time without following a link anywhere below dir. */
static int open_under(const char *dir, const char *path, int *fd_out, struct stat *st, ht_err *e)
{
    const char *whole = path;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return HT_FAIL(e, HT_EIO, "%s: %s", dir, strerror(errno));
    while (*path) {
        char part[MAX_PATH + 1];
        size_t n = strcspn(path, "/");
        memcpy(part, path, n);
        part[n] = 0;
        path += n + (path[n] == '/');
        int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (*path ? O_DIRECTORY : 0);
        int next = openat(fd, part, flags);
        int why = errno;
        close(fd);
        if (next < 0)
            return HT_FAIL(e, why == ENOENT ? HT_EFORMAT : HT_EIO, "%s/.../%s: %s", dir, part,
                           why == ELOOP ? "a symbolic link is not allowed here" : strerror(why));
        fd = next;
    }
    if (fstat(fd, st) != 0 || !S_ISREG(st->st_mode) || st->st_nlink != 1) {
        close(fd);
        return HT_FAIL(e, HT_EFORMAT, "%s: %s is not a regular file with a single link", dir,
                       whole);
    }
    *fd_out = fd;
    return 0;
}

int ht_read_under(ht_arena *a, const char *dir, const char *path, uint64_t max_bytes,
                  const char **data, uint64_t *n, ht_err *e)
{
    struct stat st;
    int fd = -1;
    if (!ht_manifest_path_ok(path))
        return HT_FAIL(e, HT_EFORMAT, "path \"%.60s\" is not allowed in a bundle", path);
    HT_TRY(open_under(dir, path, &fd, &st, e));
    uint64_t size = (uint64_t)st.st_size, got = 0;
    char *p = size <= max_bytes ? ht_arena_alloc(a, size + 1) : NULL;
    if (!p) {
        close(fd);
        return HT_FAIL(e, HT_ENOMEM, "%s/%s: %llu bytes do not fit the limit", dir, path,
                       (unsigned long long)size);
    }
    while (got < size + 1) { /* one byte more than expected shows a file that grew */
        ssize_t k = read(fd, p + got, size + 1 - got);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) break;
        got += (uint64_t)k;
    }
    close(fd);
    if (got != size) return HT_FAIL(e, HT_EIO, "%s/%s: size changed while it was read", dir, path);
    p[size] = 0;
    *data = p;
    *n = size;
    return 0;
}

typedef struct {
    const char *path, *role;
} entry;

static int by_path(const void *x, const void *y)
{
    return strcmp(((const entry *)x)->path, ((const entry *)y)->path);
}

int ht_manifest_write(ht_arena *a, const char *dir, const char *schema, const char *const *paths,
                      const char *const *roles, size_t n, const char *inputs_sha256, ht_buf *out,
                      ht_err *e)
{
    entry *list = ht_arena_array(a, n + 1, sizeof *list);
    if (!list) return HT_FAIL(e, HT_ENOMEM, "manifest: no memory for %zu entries", n);
    for (size_t i = 0; i < n; i++) list[i] = (entry){paths[i], roles[i]};
    qsort(list, n, sizeof *list, by_path);
    ht_jw w;
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_key(&w, "files");
    ht_jw_arr(&w);
    for (size_t i = 0; i < n; i++) {
        uint8_t digest[HT_SHA256_BYTES];
        char hex[HT_SHA256_HEX];
        const char *data;
        uint64_t bytes;
        if (i && strcmp(list[i].path, list[i - 1].path) == 0)
            return HT_FAIL(e, HT_EARG, "manifest: %s is listed twice", list[i].path);
        HT_TRY(ht_read_under(a, dir, list[i].path, UINT32_MAX, &data, &bytes, e));
        HT_TRY(ht_sha256_of(data, bytes, digest, e));
        ht_hex(digest, sizeof digest, hex);
        ht_jw_obj(&w);
        ht_jw_kuint(&w, "bytes", bytes);
        ht_jw_kstr(&w, "path", list[i].path);
        ht_jw_kstr(&w, "role", list[i].role);
        ht_jw_kstr(&w, "sha256", hex);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    if (inputs_sha256) ht_jw_kstr(&w, "inputsManifestSha256", inputs_sha256);
    ht_jw_kstr(&w, "schema", schema);
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "manifest", e);
}

/* One entry: check its form, then the file itself. *left: bytes that may still be read. */
static int read_entry(ht_arena *a, const char *dir, const ht_json *j, const char *before,
                      uint64_t *left, ht_mfile *f, ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    const ht_json *path = ht_json_get(j, "path");
    uint64_t want = (uint64_t)ht_json_get(j, "bytes")->i;
    f->path = path->s;
    f->role = ht_json_get(j, "role")->s;
    if (strlen(path->s) != path->n || !ht_manifest_path_ok(path->s))
        return HT_FAIL(e, HT_EFORMAT, "manifest: path \"%.60s\" is not allowed", path->s);
    if (before && strcmp(before, f->path) >= 0)
        return HT_FAIL(e, HT_EFORMAT, "manifest: %.80s is listed twice or out of order", f->path);
    HT_TRY(ht_read_under(a, dir, f->path, *left, &f->data, &f->bytes, e));
    if (f->bytes != want)
        return HT_FAIL(e, HT_EFORMAT, "%s has %llu bytes, the manifest says %llu", f->path,
                       (unsigned long long)f->bytes, (unsigned long long)want);
    *left -= f->bytes;
    HT_TRY(ht_sha256_of(f->data, f->bytes, digest, e));
    ht_hex(digest, sizeof digest, f->sha256);
    if (strcmp(f->sha256, ht_json_get(j, "sha256")->s) != 0)
        return HT_FAIL(e, HT_EFORMAT, "%s does not match its digest in the manifest", f->path);
    return 0;
}

int ht_manifest_read(ht_arena *a, const char *dir, const char *text, size_t n, const char *schema,
                     const char **inputs_sha256, uint64_t max_bytes, ht_manifest *out, ht_err *e)
{
    ht_json *doc;
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_json_parse(a, text, n, HT_JSON_CANON, schema, &doc, e));
    HT_TRY(ht_schema_check(doc, inputs_sha256 ? outputs_fields : inputs_fields, schema, schema, e));
    const ht_json *files = ht_json_get(doc, "files");
    if (files->n == 0 || files->n > MAX_FILES)
        return HT_FAIL(e, HT_EFORMAT, "%s: %zu files, need 1 to %d", schema, files->n, MAX_FILES);
    out->file = ht_arena_array(a, files->n, sizeof *out->file);
    if (!out->file) return HT_FAIL(e, HT_ENOMEM, "%s: no memory for %zu entries", schema, files->n);
    out->n = files->n;
    for (size_t i = 0; i < files->n; i++)
        HT_TRY(read_entry(a, dir, &files->at[i], i ? out->file[i - 1].path : NULL, &max_bytes,
                          &out->file[i], e));
    if (inputs_sha256) *inputs_sha256 = ht_json_get(doc, "inputsManifestSha256")->s;
    HT_TRY(ht_sha256_of(text, n, digest, e));
    ht_hex(digest, sizeof digest, out->sha256);
    return 0;
}

const ht_mfile *ht_manifest_find(const ht_manifest *m, const char *path)
{
    size_t lo = 0, hi = m->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(m->file[mid].path, path);
        if (c == 0) return &m->file[mid];
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

typedef struct {
    const ht_manifest *const *m;
    size_t n_m;
    const char *const *also;
} allowed;

static bool is_allowed(const allowed *w, const char *path)
{
    for (size_t i = 0; i < w->n_m; i++)
        if (ht_manifest_find(w->m[i], path)) return true;
    for (size_t i = 0; w->also && w->also[i]; i++)
        if (strcmp(w->also[i], path) == 0) return true;
    return false;
}

static int walk(int fd, char *path, size_t n, unsigned depth, const allowed *w, ht_err *e);

static int visit(int dir_fd, const char *name, char *path, size_t n, unsigned depth,
                 const allowed *w, ht_err *e)
{
    struct stat st;
    size_t k = strlen(name);
    if (n + k + 2 > MAX_PATH)
        return HT_FAIL(e, HT_EFORMAT, "bundle: path %.80s/%.80s is too long", path, name);
    if (n) path[n++] = '/';
    memcpy(path + n, name, k + 1);
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return HT_FAIL(e, HT_EIO, "bundle: %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) return HT_FAIL(e, HT_EIO, "bundle: %s: %s", path, strerror(errno));
        return walk(fd, path, n + k, depth + 1, w, e);
    }
    if (!S_ISREG(st.st_mode) || st.st_nlink != 1)
        return HT_FAIL(e, HT_EFORMAT, "bundle: %s is not a regular file with a single link", path);
    if (!is_allowed(w, path)) return HT_FAIL(e, HT_EFORMAT, "bundle: %s is in no manifest", path);
    return 0;
}

/* Takes fd over. path[0..n) is the directory's own path. */
static int walk(int fd, char *path, size_t n, unsigned depth, const allowed *w, ht_err *e)
{
    DIR *d = depth < MAX_DEPTH ? fdopendir(fd) : NULL;
    if (!d) {
        close(fd);
        return HT_FAIL(e, HT_EFORMAT, "bundle: %s cannot be listed or is too deep", path);
    }
    int rc = 0;
    for (struct dirent *it; rc == 0 && (it = readdir(d));) {
        if (strcmp(it->d_name, ".") == 0 || strcmp(it->d_name, "..") == 0) continue;
        rc = visit(dirfd(d), it->d_name, path, n, depth, w, e);
        path[n] = 0;
    }
    closedir(d);
    return rc;
}

int ht_manifest_closed(const char *dir, const ht_manifest *const *m, size_t n_m,
                       const char *const *also, ht_err *e)
{
    char path[MAX_PATH + 2] = "";
    allowed w = {m, n_m, also};
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return HT_FAIL(e, HT_EIO, "%s: %s", dir, strerror(errno));
    return walk(fd, path, 0, 0, &w, e);
}
