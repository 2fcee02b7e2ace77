/* seen.c - see seen.h. */
#include "route/seen.h"
#include "core/arena.h"
#include "core/buf.h"
#include "core/map.h"
#include "evid/schema.h"
#include "route/files.h"
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = HT_SEEN_KEY + HT_SHA256_HEX + 2, MOST = HT_SEEN_LINES * LINE };

/* The list's text, or NULL: absent, unreadable, too long, or not this user's alone to write. */
static char *read_list(const char *path, size_t *n)
{
    struct stat st;
    char *text = NULL;
    if (!path || stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return NULL;
    if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH))) return NULL;
    return ht_file_read(path, MOST, &text, n, NULL) ? NULL : text;
}

static bool key_ok(const char *key)
{
    const size_t n = strlen(key);
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~') return false;
    return n > 0 && n < HT_SEEN_KEY;
}

/* Does this line hold the key? */
static bool holds(const char *line, size_t n, const char *key)
{
    const size_t k = strlen(key);
    return n == k + HT_SHA256_HEX && memcmp(line, key, k) == 0 && line[k] == ' ';
}

bool ht_seen_get(const char *path, const char *key, char value[HT_SHA256_HEX])
{
    size_t n = 0;
    bool found = false;
    char *text = key_ok(key) ? read_list(path, &n) : NULL;
    for (size_t at = 0; text && at < n && !found;) {
        const char *end = memchr(text + at, '\n', n - at);
        if (!end) break;
        const size_t len = (size_t)(end - text) - at;
        const char *v = text + at + len - (HT_SHA256_HEX - 1);
        if (holds(text + at, len, key) && ht_is_sha256(v, HT_SHA256_HEX - 1)) {
            memcpy(value, v, HT_SHA256_HEX - 1);
            value[HT_SHA256_HEX - 1] = 0;
            found = true;
        }
        at += len + 1;
    }
    ht_mem_free(text);
    return found;
}

int ht_seen_put(const char *path, const char *key, const char *value, ht_err *e)
{
    char dir[4096];
    size_t n = 0, kept = 1;
    const char *slash = strrchr(path, '/');
    if (!key_ok(key) || !ht_is_sha256(value, strlen(value)))
        return HT_FAIL(e, HT_EARG, "list of known facts: key or value is not of the form");
    if (!slash || (size_t)(slash - path) >= sizeof dir)
        return HT_FAIL(e, HT_EARG, "list of known facts: the path is too long or has no folder");
    memcpy(dir, path, (size_t)(slash - path));
    dir[slash - path] = 0;
    char *old = read_list(path, &n);
    ht_buf b;
    ht_buf_init(&b, MOST);
    ht_buf_fmt(&b, "%s %s\n", key, value);
    for (size_t at = 0; old && at < n && kept < HT_SEEN_LINES;) {
        const char *end = memchr(old + at, '\n', n - at);
        if (!end) break;
        const size_t len = (size_t)(end - old) - at;
        if (len < LINE && !holds(old + at, len, key)) {
            ht_buf_add(&b, old + at, len + 1);
            kept++;
        }
        at += len + 1;
    }
    int rc = ht_buf_ok(&b, "list of known facts", e);
    if (!rc) rc = route__put(dir, slash + 1, b.p, b.n, e);
    ht_buf_done(&b);
    ht_mem_free(old);
    return rc;
}
