/* pagefile.c - a KV page in a file of its own: written whole or not at all, read as if somebody
 * else had written it. Numbers are stored as the machine has them; everything this runs on is
 * little-endian. */
#include "kv/pagefile.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/hash.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = {'H', 'T', 'K', 'V', 'P', 'A', 'G', 'E'};
static const char suffix[] = ".kvpage", partial[] = ".kvpage.part";
enum { VERSION = 1, LEFTOVER_S = 3600, PATH_CAP = 4200 };
enum {
    AT_IDENTITY = 16,
    AT_KEY = 48,
    AT_PARENT = 80,
    AT_IDS = 112,
    AT_BYTES = 240,
    AT_WHAT = 256,
    AT_DATA_SHA = 352,
    AT_HEAD_SHA = 384
};
/* A page of 200 layers of 64 heads of 256 in f32 is 840 MB. */
#define DATA_MAX ((uint64_t)4 << 30)

static int path_of(const char *dir, const uint8_t key[32], const char *tail, char out[PATH_CAP],
                   ht_err *e)
{
    char hex[HT_SHA256_HEX];
    ht_hex(key, 32, hex);
    const int n = snprintf(out, PATH_CAP, "%s/%s%s", dir, hex, tail);
    if (n > 0 && n < PATH_CAP) return 0;
    return HT_FAIL(e, HT_EARG, "the prefix folder's path is too long: %.80s...", dir);
}

/* ---- writing --------------------------------------------------------------------------------- */

static int make_head(const ht_pagefile *f, const void *data, uint8_t h[HT_PAGEFILE_HEAD], ht_err *e)
{
    const uint32_t version = VERSION, tokens = HT_PAGE;
    memset(h, 0, HT_PAGEFILE_HEAD);
    memcpy(h, magic, sizeof magic);
    memcpy(h + 8, &version, sizeof version);
    memcpy(h + 12, &tokens, sizeof tokens);
    memcpy(h + AT_IDENTITY, f->identity, 32);
    memcpy(h + AT_KEY, f->key, 32);
    memcpy(h + AT_PARENT, f->parent, 32);
    memcpy(h + AT_IDS, f->ids, sizeof f->ids);
    memcpy(h + AT_BYTES, f->bytes, sizeof f->bytes);
    memcpy(h + AT_WHAT, f->what, strnlen(f->what, HT_PAGEFILE_WHAT - 1));
    HT_TRY(ht_sha256_of(data, (size_t)(f->bytes[0] + f->bytes[1]), h + AT_DATA_SHA, e));
    return ht_sha256_of(h, AT_HEAD_SHA, h + AT_HEAD_SHA, e);
}

static bool write_all(int fd, const uint8_t *p, size_t n)
{
    while (n) {
        const ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

int ht_pagefile_write(const char *dir, const ht_pagefile *f, const void *data, ht_err *e)
{
    char path[PATH_CAP], tmp[PATH_CAP], tail[64];
    uint8_t head[HT_PAGEFILE_HEAD];
    HT_TRY(make_head(f, data, head, e));
    HT_TRY(path_of(dir, f->key, suffix, path, e));
    (void)snprintf(tail, sizeof tail, ".%ld%s", (long)getpid(), partial);
    HT_TRY(path_of(dir, f->key, tail, tmp, e));
    const int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return HT_FAIL(e, HT_EIO, "prefix page %s cannot be made: %s", tmp, strerror(errno));
    bool good = write_all(fd, head, sizeof head) &&
                write_all(fd, data, (size_t)(f->bytes[0] + f->bytes[1])) && fsync(fd) == 0;
    int why = errno;
    if (close(fd) != 0 && good) good = false, why = errno;
    if (good && rename(tmp, path) != 0) good = false, why = errno;
    if (good) return 0;
    (void)unlink(tmp);
    return HT_FAIL(e, HT_EIO,
                   "prefix page %s cannot be written: %s; free space, or `hetero prefix prune`",
                   path, strerror(why));
}

int ht_pagefile_sync(const char *dir, ht_err *e)
{
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool good = fd >= 0 && fsync(fd) == 0;
    const int why = errno;
    if (fd >= 0) (void)close(fd);
    return good ? 0
                : HT_FAIL(e, HT_EIO, "prefix folder %s cannot be flushed: %s", dir, strerror(why));
}

/* ---- reading --------------------------------------------------------------------------------- */

/* n bytes, or fewer at the file's end; -1: errno. */
static ssize_t read_all(int fd, uint8_t *p, size_t n)
{
    size_t have = 0;
    while (have < n) {
        const ssize_t r = read(fd, p + have, n - have);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return -1;
        if (r == 0) break;
        have += (size_t)r;
    }
    return (ssize_t)have;
}

/* What a head says in itself: form and digest. */
static int parse(const char *path, const uint8_t h[HT_PAGEFILE_HEAD], ht_pagefile *f, ht_err *e)
{
    uint32_t version, tokens;
    uint8_t sha[32];
    if (memcmp(h, magic, sizeof magic) != 0)
        return HT_FAIL(e, HT_EFORMAT, "%s is not a prefix page", path);
    memcpy(&version, h + 8, sizeof version);
    memcpy(&tokens, h + 12, sizeof tokens);
    if (version != VERSION || tokens != HT_PAGE)
        return HT_FAIL(e, HT_EFORMAT,
                       "prefix page %s has version %u and %u tokens; this build reads version %d "
                       "with %d",
                       path, version, tokens, VERSION, HT_PAGE);
    HT_TRY(ht_sha256_of(h, AT_HEAD_SHA, sha, e));
    if (memcmp(sha, h + AT_HEAD_SHA, sizeof sha) != 0)
        return HT_FAIL(e, HT_EFORMAT, "prefix page %s: the digest of its head is wrong", path);
    memcpy(f->identity, h + AT_IDENTITY, 32);
    memcpy(f->key, h + AT_KEY, 32);
    memcpy(f->parent, h + AT_PARENT, 32);
    memcpy(f->ids, h + AT_IDS, sizeof f->ids);
    memcpy(f->bytes, h + AT_BYTES, sizeof f->bytes);
    memcpy(f->what, h + AT_WHAT, sizeof f->what);
    f->what[sizeof f->what - 1] = 0;
    if (f->bytes[0] > DATA_MAX || f->bytes[1] > DATA_MAX)
        return HT_FAIL(e, HT_EFORMAT, "prefix page %s claims impossible sizes", path);
    return 0;
}

/* The open file's size is what its head says. */
static int check_size(int fd, const char *path, const ht_pagefile *f, ht_err *e)
{
    struct stat st;
    const uint64_t want = HT_PAGEFILE_HEAD + f->bytes[0] + f->bytes[1];
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return HT_FAIL(e, HT_EFORMAT, "prefix page %s is not a regular file", path);
    if ((uint64_t)st.st_size == want) return 0;
    return HT_FAIL(e, HT_EFORMAT, "prefix page %s has %lld bytes, its head says %llu", path,
                   (long long)st.st_size, (unsigned long long)want);
}

static int check_data(const char *path, const uint8_t sha[32], const void *data, size_t n,
                      ht_err *e)
{
    uint8_t got[32];
    HT_TRY(ht_sha256_of(data, n, got, e));
    if (memcmp(got, sha, sizeof got) == 0) return 0;
    return HT_FAIL(e, HT_EFORMAT, "prefix page %s: the digest of its data is wrong", path);
}

static int read_head(int fd, const char *path, uint8_t h[HT_PAGEFILE_HEAD], ht_pagefile *f,
                     ht_err *e)
{
    const ssize_t n = read_all(fd, h, HT_PAGEFILE_HEAD);
    if (n < 0) return HT_FAIL(e, HT_EIO, "prefix page %s: %s", path, strerror(errno));
    if (n < HT_PAGEFILE_HEAD)
        return HT_FAIL(e, HT_EFORMAT, "prefix page %s is cut short: %zd bytes", path, n);
    HT_TRY(parse(path, h, f, e));
    return check_size(fd, path, f, e);
}

/* Is it the page that was asked for? */
static int compare(const char *path, const ht_pagefile *want, const ht_pagefile *got, ht_err *e)
{
    const char *what = NULL;
    if (memcmp(got->identity, want->identity, 32) != 0)
        what = "another model, layout or build wrote it";
    else if (memcmp(got->key, want->key, 32) != 0) what = "its key is not its name";
    else if (memcmp(got->parent, want->parent, 32) != 0) what = "it follows another page";
    else if (memcmp(got->ids, want->ids, sizeof got->ids) != 0) what = "it holds other tokens";
    for (int c = 0; !what && c < HT_KV_CLASSES; c++)
        if (got->bytes[c] && got->bytes[c] != want->bytes[c]) what = "its planes have other sizes";
    if (!what) return 0;
    return HT_FAIL(e, HT_EFORMAT, "prefix page %s refused: %s", path, what);
}

static int read_open(int fd, const char *path, const ht_pagefile *want, ht_pagefile *got,
                     void *data, ht_err *e)
{
    uint8_t h[HT_PAGEFILE_HEAD];
    HT_TRY(read_head(fd, path, h, got, e));
    HT_TRY(compare(path, want, got, e));
    const size_t n = (size_t)(got->bytes[0] + got->bytes[1]);
    const ssize_t r = read_all(fd, data, n);
    if (r < 0) return HT_FAIL(e, HT_EIO, "prefix page %s: %s", path, strerror(errno));
    if ((size_t)r < n) return HT_FAIL(e, HT_EFORMAT, "prefix page %s is cut short", path);
    return check_data(path, h + AT_DATA_SHA, data, n, e);
}

int ht_pagefile_read(const char *dir, const ht_pagefile *want, ht_pagefile *got, void *data,
                     bool *found, ht_err *e)
{
    char path[PATH_CAP];
    *found = false;
    HT_TRY(path_of(dir, want->key, suffix, path, e));
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return 0;
    if (fd < 0) return HT_FAIL(e, HT_EIO, "prefix page %s: %s", path, strerror(errno));
    *found = true;
    const int rc = read_open(fd, path, want, got, data, e);
    (void)close(fd);
    return rc;
}

static int head_of_open(int fd, const char *path, bool check, ht_pagefile *f, ht_err *e)
{
    uint8_t h[HT_PAGEFILE_HEAD];
    HT_TRY(read_head(fd, path, h, f, e));
    if (!check) return 0;
    const size_t n = (size_t)(f->bytes[0] + f->bytes[1]);
    uint8_t *data = ht_mem_alloc(n ? n : 1);
    if (!data) return HT_FAIL(e, HT_ENOMEM, "prefix page %s: no memory for %zu bytes", path, n);
    const ssize_t r = read_all(fd, data, n);
    int rc = r == (ssize_t)n ? check_data(path, h + AT_DATA_SHA, data, n, e)
                             : HT_FAIL(e, HT_EIO, "prefix page %s cannot be read whole", path);
    ht_mem_free(data);
    return rc;
}

int ht_pagefile_head(const char *path, bool check, ht_pagefile *f, ht_err *e)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return HT_FAIL(e, HT_EIO, "prefix page %s: %s", path, strerror(errno));
    const int rc = head_of_open(fd, path, check, f, e);
    (void)close(fd);
    return rc;
}

void ht_pagefile_touch(const char *dir, const uint8_t key[32])
{
    char path[PATH_CAP];
    if (path_of(dir, key, suffix, path, NULL) == 0) (void)utimensat(AT_FDCWD, path, NULL, 0);
}

/* ---- the folder ------------------------------------------------------------------------------ */

static bool ends_with(const char *s, const char *tail)
{
    const size_t n = strlen(s), t = strlen(tail);
    return n > t && memcmp(s + n - t, tail, t) == 0;
}

static int by_use(const void *a, const void *b)
{
    const ht_pagefile_entry *x = a, *y = b;
    if (x->used_s != y->used_s) return x->used_s < y->used_s ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Room for one more; the list doubles. */
static bool grow(ht_pagefile_entry **list, size_t n, size_t *cap)
{
    if (n < *cap) return true;
    const size_t more = *cap ? *cap * 2 : 64;
    size_t bytes;
    if (!ht_mul_ok(more, sizeof **list, &bytes)) return false;
    ht_pagefile_entry *p = ht_mem_resize(*list, bytes);
    if (!p) return false;
    *list = p;
    *cap = more;
    return true;
}

static int collect(DIR *d, ht_pagefile_entry **list, size_t *n, ht_err *e)
{
    size_t cap = 0;
    const struct dirent *it;
    while ((it = readdir(d)) != NULL) {
        struct stat st;
        const bool part = ends_with(it->d_name, partial);
        ht_pagefile_entry one = {.partial = part};
        if (!part && !ends_with(it->d_name, suffix)) continue;
        if (strlen(it->d_name) >= sizeof one.name) continue; /* no name of ours */
        if (fstatat(dirfd(d), it->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue; /* just gone */
        if (!S_ISREG(st.st_mode)) continue;
        (void)snprintf(one.name, sizeof one.name, "%s", it->d_name);
        one.bytes = (uint64_t)st.st_size;
        one.used_s = (int64_t)st.st_mtime;
        if (!grow(list, *n, &cap)) return HT_FAIL(e, HT_ENOMEM, "no memory to list prefix pages");
        (*list)[(*n)++] = one;
    }
    return 0;
}

int ht_pagefile_list(const char *dir, ht_pagefile_entry **list, size_t *n, ht_err *e)
{
    *list = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (!d) return HT_FAIL(e, HT_EIO, "prefix folder %s cannot be read: %s", dir, strerror(errno));
    const int rc = collect(d, list, n, e);
    (void)closedir(d);
    if (rc) {
        ht_mem_free(*list);
        *list = NULL;
        *n = 0;
        return rc;
    }
    if (*n) qsort(*list, *n, sizeof **list, by_use);
    return 0;
}

int ht_pagefile_prune(const char *dir, uint64_t max_bytes, int64_t before_s, uint64_t *gone,
                      uint64_t *freed, ht_err *e)
{
    ht_pagefile_entry *list;
    size_t n;
    uint64_t total = 0;
    int rc = 0;
    *gone = *freed = 0;
    HT_TRY(ht_pagefile_list(dir, &list, &n, e));
    for (size_t i = 0; i < n; i++) total += list[i].bytes;
    const int64_t old = ht_now_unix() - LEFTOVER_S;
    for (size_t i = 0; i < n && !rc; i++) {
        const ht_pagefile_entry *f = &list[i];
        const bool left = f->partial ? f->used_s < old : total > max_bytes;
        if (!left && f->used_s >= before_s) continue;
        if (f->partial && f->used_s >= old) continue; /* somebody may be writing it */
        char path[PATH_CAP];
        const int len = snprintf(path, sizeof path, "%s/%s", dir, f->name);
        if (len < 0 || len >= PATH_CAP) continue;
        if (unlink(path) != 0 && errno != ENOENT) {
            rc = HT_FAIL(e, HT_EIO, "%s cannot be removed: %s", path, strerror(errno));
            continue;
        }
        total -= f->bytes;
        *freed += f->bytes;
        ++*gone;
    }
    ht_mem_free(list);
    return rc;
}
