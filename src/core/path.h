/* path.h - where a file is going to be written: what is checked before any work is done for it. */
#ifndef HT_CORE_PATH_H
#define HT_CORE_PATH_H
#include "core/err.h"
#include <stdbool.h>
#include <sys/types.h>

enum { HT_PATH_MAX = 4096 };

typedef struct {
    char path[HT_PATH_MAX];          /* what to write: behind symbolic links                      */
    bool there;                      /* a regular file stands there already                       */
    uint64_t dev, ino;               /* who it is, when there                                     */
} ht_path_target;
/* A file is replaced by renaming another one over it, which would put a regular file where a device
 * or a pipe stood and cut a symbolic link off its end. So links are followed, and what is there
 * must be a regular file. HT_EARG: it is something else, or a link to nothing; HT_EIO: it cannot
 * be examined. */
HT_MUST_USE int ht_path_target_of(ht_path_target *, const char *path, ht_err *);
/* Make every folder that path's directory part lacks. HT_EIO names the one that cannot be made. */
HT_MUST_USE int ht_path_make_parents(const char *path, mode_t mode, ht_err *);
#endif
