/* trust.c - see trust.h. A line is "sha256 dev ino size mtime_ns ctime_ns", all but the first
 * decimal. The file is replaced whole by rename, so that two processes lose at most an entry. */
#include "format/trust.h"
#include "core/buf.h"
#include "core/hash.h"
#include "core/path.h"
#include "format/priv.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = 192, MAX_LINES = 256 };

/* What stands behind the digest of a file's line, from the space to the line end. Of several parts
 * the first's number, all sizes and the newest times: whoever changes any of them sets its change
 * time to now. */
static void identity_of(const ht_file *f, char out[LINE])
{
    const ht_map *m = &f->part[0];
    uint64_t n = 0, mtime = 0, ctime = 0;
    for (size_t i = 0; i < f->n_parts; i++) {
        n += f->part[i].n;
        if (f->part[i].mtime_ns > mtime) mtime = f->part[i].mtime_ns;
        if (f->part[i].ctime_ns > ctime) ctime = f->part[i].ctime_ns;
    }
    snprintf(out, LINE, " %llu %llu %llu %llu %llu\n", (unsigned long long)m->dev,
             (unsigned long long)m->ino, (unsigned long long)n, (unsigned long long)mtime,
             (unsigned long long)ctime);
}

/* The list's text, or NULL: absent, unreadable, too long, or not this user's alone to write. */
static char *read_list(const char *list, size_t *n)
{
    struct stat st;
    char *text;
    if (!list || stat(list, &st) || !S_ISREG(st.st_mode)) return NULL;
    if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH))) return NULL;
    return ht_file_read(list, LINE * MAX_LINES * 2, &text, n, NULL) ? NULL : text;
}

bool ht_file_recorded(const ht_file *f, const char *list, char hex[65])
{
    char id[LINE];
    size_t n = 0;
    /* The identity was taken when the file was opened; it must still be the file's. */
    for (size_t i = 0; i < f->n_parts; i++) {
        struct stat st;
        const ht_map *m = &f->part[i];
        if (fstat(m->fd, &st) || (uint64_t)st.st_size != m->n) return false;
    }
    identity_of(f, id);
    char *text = read_list(list, &n);
    const size_t len = strlen(id);
    bool found = false;
    for (size_t i = 0; text && !found && i < n;) {
        const char *end = memchr(text + i, '\n', n - i);
        if (!end) break;
        const size_t k = (size_t)(end - text) + 1 - i;
        found = k == 64 + len && !memcmp(text + i + 64, id, len);
        if (found) (void)snprintf(hex, 65, "%.64s", text + i);
        i += k;
    }
    ht_mem_free(text);
    return found && strspn(hex, "0123456789abcdef") == 64;
}

bool ht_pack_trusted(const ht_file *f, const char *list)
{
    char own[65], hex[65];
    if (f->kind != HT_FILE_PACK) return false;
    ht_hex(f->pack_sha256, 32, own);
    return ht_file_recorded(f, list, hex) && !strcmp(own, hex);
}

/* The new list: this line first, then the old ones but for an older state of the same file. */
static int compose(ht_buf *b, const char *line, const char *old, size_t n, ht_err *e)
{
    char dev_ino[64];
    const char *p = strchr(line, ' ') + 1;
    size_t id = strcspn(p, " ");
    id += 1 + strcspn(p + id + 1, " ") + 1;
    snprintf(dev_ino, sizeof dev_ino, "%.*s", (int)id, p);
    ht_buf_str(b, line);
    int kept = 1;
    for (size_t i = 0; i < n && kept < MAX_LINES;) {
        const char *end = memchr(old + i, '\n', n - i);
        if (!end) break;
        size_t k = (size_t)(end - old) + 1 - i;
        if (k > 65 + id && k < LINE && memcmp(old + i + 65, dev_ino, id) != 0) {
            ht_buf_add(b, old + i, k);
            kept++;
        }
        i += k;
    }
    return ht_buf_ok(b, "the list of known files", e);
}

static int replace(const char *list, const ht_buf *b, ht_err *e)
{
    char tmp[4096], label[FORMAT_LABEL];
    format__label(label, list);
    int k = snprintf(tmp, sizeof tmp, "%s.%ld.tmp", list, (long)getpid());
    if (k < 0 || (size_t)k >= sizeof tmp)
        return HT_FAIL(e, HT_EARG, "%s: the path is too long", label);
    (void)(ht_path_make_parents(list, 0700, NULL) == 0); /* open() says what that costs */
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        int err = errno;
        return HT_FAIL(e, HT_EIO, "%s: cannot be written (%s); the file is hashed again next time",
                       label, strerror(err));
    }
    ssize_t done = write(fd, b->p, b->n);
    int err = done == (ssize_t)b->n ? 0 : done < 0 ? errno : ENOSPC;
    if (close(fd) && !err) err = errno;
    if (!err && rename(tmp, list)) err = errno;
    if (!err) return 0;
    unlink(tmp);
    return HT_FAIL(e, HT_EIO, "%s: cannot be written (%s); the file is hashed again next time",
                   label, strerror(err));
}

int ht_file_record(const ht_file *f, const char *list, const char *hex, ht_err *e)
{
    char line[LINE], id[LINE];
    size_t n = 0;
    ht_buf b;
    if (!list || !*list) return HT_FAIL(e, HT_EARG, "no path of a list of known files");
    identity_of(f, id);
    (void)snprintf(line, sizeof line, "%.64s%.120s", hex, id);
    char *old = read_list(list, &n);
    ht_buf_init(&b, LINE * MAX_LINES * 4);
    int rc = compose(&b, line, old ? old : "", old ? n : 0, e);
    if (!rc) rc = replace(list, &b, e);
    ht_buf_done(&b);
    ht_mem_free(old);
    return rc;
}
