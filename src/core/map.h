/* map.h - a file mapped read-only, with its identity. A file truncated while mapped raises SIGBUS;
 * ht_map_guard() turns that into an error for the copy loops that ask for it. */
#ifndef HT_CORE_MAP_H
#define HT_CORE_MAP_H
#include "core/err.h"

typedef struct {
    const uint8_t *p; size_t n;                     /* p NULL when n == 0                          */
    uint64_t dev, ino, mtime_ns, ctime_ns;          /* who it was when opened                      */
    int fd;                                         /* held open until close                       */
} ht_map;
HT_MUST_USE int ht_map_open(ht_map *out, const char *path, ht_err *);  /* regular files only        */
void ht_map_close(ht_map *);
/* Read a whole small file (at most max bytes) into caller-owned memory (ht_mem_free). "-": stdin. */
HT_MUST_USE int ht_file_read(const char *path, size_t max, char **out, size_t *n, ht_err *);
#endif
