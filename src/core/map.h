/* map.h - a file mapped read-only, with its identity.
 *
 * A file that somebody truncates while it is mapped makes the kernel raise SIGBUS at the next read
 * past its end. A program that wants to live through that calls ht_map_guard() once: such reads
 * then give zeros and ht_map_broken() says so, to be asked after a step whose result counts. */
#ifndef HT_CORE_MAP_H
#define HT_CORE_MAP_H
#include "core/err.h"
#include <stdbool.h>

typedef struct {
    const uint8_t *p; size_t n;                     /* p NULL when n == 0                         */
    uint64_t dev, ino, mtime_ns, ctime_ns;          /* who it was when opened                     */
    int fd;                                         /* held open until close                      */
    int slot;                                     /* private: 0 closed, -1 not guarded, place + 1 */
} ht_map;
HT_MUST_USE int ht_map_open(ht_map *out, const char *path, ht_err *);  /* regular files only      */
void ht_map_close(ht_map *);                        /* a zeroed or closed one: nothing happens    */
/* For programs, not for the library: a signal handler belongs to the whole process. Faults outside
 * our maps go to the handler that was there before. Any number of calls; maps opened before
 * count. */
HT_MUST_USE int ht_map_guard(ht_err *);
/* These bytes have been copied: where they lie in a live map their whole pages may leave this
 * process's memory. They stay readable, from the file again. Other memory is not touched. */
void ht_map_drop(const void *p, size_t n);
bool ht_map_broken(const ht_map *);                 /* any thread                                 */
/* Read a whole small file (at most max bytes) into caller-owned memory (ht_mem_free),
 * NUL-terminated. "-": stdin. */
HT_MUST_USE int ht_file_read(const char *path, size_t max, char **out, size_t *n, ht_err *);
#endif
