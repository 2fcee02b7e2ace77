/* file.c - whole files: results are written whole or not at all, inputs are read to their end. */
#include "cli/cli.h"
#include "core/arena.h"
#include "core/map.h"
#include "core/path.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return k < 0 ? errno : EIO;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

int cli__write_file(const char *path, const char *p, size_t n, ht_err *e)
{
    char tmp[CLI_PATH];
    ht_path_target to;
    HT_TRY(ht_path_target_of(&to, path, e));
    if (snprintf(tmp, sizeof tmp, "%s.%ld.tmp", to.path, (long)getpid()) >= (int)sizeof tmp)
        return HT_FAIL(e, HT_EARG, "%.80s...: the path is too long", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return HT_FAIL(e, HT_EIO, "%s: cannot be written: %s; is the folder there?", path,
                       strerror(errno));
    int bad = write_all(fd, p, n);
    if (close(fd) != 0 && !bad) bad = errno;
    if (!bad && rename(tmp, to.path) != 0) bad = errno;
    if (!bad) return 0;
    unlink(tmp);
    return HT_FAIL(e, HT_EIO, "%s: cannot be written: %s", path, strerror(bad));
}

int cli__read_file(const char *path, size_t max, char **out, size_t *n, ht_err *e)
{
    int rc = cli__wait_begin() ? ht_file_read(path, max, out, n, e)
                               : HT_FAIL(e, HT_ECANCELLED, "%.150s: cancelled", path);
    cli__wait_end();
    return rc;
}

int cli__read_array(const char *path, const char *what, char **out, ht_err *e)
{
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    ht_arena *arena = NULL;
    ht_json *doc = NULL;
    size_t n;
    HT_TRY(cli__read_file(path, CLI_JSON_MAX, out, &n, e));
    int rc = ht_arena_new(&arena, 0, e);
    /* The library takes a string, which would end at a NUL: here the parser sees all of it. */
    if (!rc) rc = ht_json_parse(arena, *out, n, 0, name, &doc, e);
    if (!rc && doc->type != HT_JARR && doc->type != HT_JNULL)
        rc = HT_FAIL(e, HT_EARG, "%.150s: need a JSON array of %s", name, what);
    ht_arena_free(arena);
    if (!rc) return 0;
    ht_mem_free(*out);
    *out = NULL;
    return rc;
}
