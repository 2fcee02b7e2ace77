/* path.c - see path.h. */
#include "core/path.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int ht_path_target_of(ht_path_target *t, const char *path, ht_err *e)
{
    struct stat st;
    char real[PATH_MAX]; /* what realpath() asks for */
    *t = (ht_path_target){0};
    if (!path || !*path) return HT_FAIL(e, HT_EARG, "no path was given for the file to write");
    const char *to = path;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) {
        if (!realpath(path, real))
            return HT_FAIL(
                e, errno == ENOENT ? HT_EARG : HT_EIO,
                "%.150s: is a symbolic link that leads nowhere (%s); name the file itself", path,
                strerror(errno));
        to = real;
    }
    size_t n = strlen(to);
    if (n >= sizeof t->path) return HT_FAIL(e, HT_EARG, "%.80s...: the path is too long", path);
    memcpy(t->path, to, n + 1);
    if (stat(to, &st)) {
        if (errno == ENOENT) return 0;
        return HT_FAIL(e, HT_EIO, "%.150s: cannot be examined: %s", path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode))
        return HT_FAIL(e, HT_EARG, "%.150s: is %s; give the name of a file", path,
                       S_ISDIR(st.st_mode)    ? "a folder"
                       : S_ISFIFO(st.st_mode) ? "a pipe"
                                              : "no regular file");
    t->there = true;
    t->dev = (uint64_t)st.st_dev;
    t->ino = (uint64_t)st.st_ino;
    return 0;
}

int ht_path_make_parents(const char *path, mode_t mode, ht_err *e)
{
    char dir[HT_PATH_MAX];
    size_t n = strlen(path);
    if (n >= sizeof dir) return HT_FAIL(e, HT_EARG, "%.80s...: the path is too long", path);
    for (size_t i = 1; i < n; i++) {
        if (path[i] != '/') continue;
        memcpy(dir, path, i);
        dir[i] = 0;
        if (mkdir(dir, mode) && errno != EEXIST)
            return HT_FAIL(e, HT_EIO, "%.150s: the folder cannot be made: %s", dir,
                           strerror(errno));
    }
    return 0;
}
