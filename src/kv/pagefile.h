/* pagefile.h - one page of a KV cache in a file of its own. Little-endian:
 *
 *     0 "HTKVPAGE"   8 u32 version 1   12 u32 tokens (32)
 *    16 identity[32]   48 key[32]   80 parent[32]
 *   112 i32 token[32]
 *   240 u64 bytes of the page in the full and in the windowed layers (0: not held)
 *   256 char what[96], a NUL-terminated line for people
 *   352 SHA-256 of the data   384 SHA-256 of bytes 0 to 383
 *   416 the data: full layers, then windowed ones, each K then V
 *
 * The name is the key in hex and ".kvpage". A file is written beside its place, flushed, renamed:
 * whoever is killed meanwhile loses that page alone. */
#ifndef HT_KV_PAGEFILE_H
#define HT_KV_PAGEFILE_H
#include "core/err.h"
#include "step/kvpool.h"
#include "step/step.h"
#include <stdbool.h>

enum { HT_PAGEFILE_HEAD = 416, HT_PAGEFILE_WHAT = 96 };
typedef struct {
    uint8_t identity[32], key[32], parent[32];
    int32_t ids[HT_PAGE];
    uint64_t bytes[HT_KV_CLASSES];
    char what[HT_PAGEFILE_WHAT];
} ht_pagefile;

/* data: bytes[0] + bytes[1]. HT_EIO names the file and the cause; nothing is left behind then. */
HT_MUST_USE int ht_pagefile_write(const char *dir, const ht_pagefile *, const void *data, ht_err *);
/* The page of want->key. *found false: there is no such file. Identity, parent, tokens and sizes
 * must be want's (a class of want may be absent in the file: its bytes are 0 in *got), and both
 * digests right: else HT_EFORMAT says which is not. data: room for want's bytes. */
HT_MUST_USE int ht_pagefile_read(const char *dir, const ht_pagefile *want, ht_pagefile *got,
                                 void *data, bool *found, ht_err *);
/* The head of a file that somebody gives by name, checked in itself; check: its data too. */
HT_MUST_USE int ht_pagefile_head(const char *path, bool check, ht_pagefile *, ht_err *);
/* Marks it as used now, for pruning. */
void ht_pagefile_touch(const char *dir, const uint8_t key[32]);
HT_MUST_USE int ht_pagefile_sync(const char *dir, ht_err *);

typedef struct {
    char name[80];                   /* in the folder                                             */
    uint64_t bytes;                  /* on disk                                                   */
    int64_t used_s;                  /* seconds since 1970                                        */
    bool partial;                    /* left over from a write that did not end                   */
} ht_pagefile_entry;
/* What lies in the folder, the longest unused first; other files are not looked at. *list: n
 * entries, ht_mem_free. */
HT_MUST_USE int ht_pagefile_list(const char *dir, ht_pagefile_entry **list, size_t *n, ht_err *);
/* Remove the longest unused until at most max_bytes are left (UINT64_MAX: no limit), all unused
 * since before_s (0: none), and leftovers older than an hour. *gone, *freed: files and bytes. */
HT_MUST_USE int ht_pagefile_prune(const char *dir, uint64_t max_bytes, int64_t before_s,
                                  uint64_t *gone, uint64_t *freed, ht_err *);
#endif
