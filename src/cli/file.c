/* file.c - writing a result to a file: whole or not at all. */
#include "cli/cli.h"
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
