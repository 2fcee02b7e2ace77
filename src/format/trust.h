/* trust.h - which packs need not be hashed again: a text file in the user's cache directory with
 * one line per pack that was verified once. A pack is trusted while it is the same file (device,
 * inode, size, modification and change time in ns) with the same digest. The list is advice to save
 * time: a list that cannot be read trusts nothing, one that cannot be written costs a hash next
 * time. */
#ifndef HT_FORMAT_TRUST_H
#define HT_FORMAT_TRUST_H
#include "format/file.h"
#include <stdbool.h>

/* list: path of the text file; NULL trusts nothing. A list that others may write is not read. */
bool ht_pack_trusted(const ht_file *, const char *list);
/* Enter a pack that ht_file_verify() has just accepted; the newest 256 are kept. Makes the list's
 * directory when only that is missing. HT_EARG: not a pack. HT_EIO: the list cannot be written; the
 * pack is as usable as before. */
HT_MUST_USE int ht_pack_trust(const ht_file *, const char *list, ht_err *);
#endif
