/* trust.h - which files need not be hashed again: a text file in the user's cache directory with
 * one line per pack, GGUF or folder that was hashed once. A file is known while it is the same one
 * (device, inode, size, modification and change time in ns). The list is advice to save time: a
 * list that cannot be read knows nothing, one that cannot be written costs a hash next time. */
#ifndef HT_FORMAT_TRUST_H
#define HT_FORMAT_TRUST_H
#include "format/file.h"
#include <stdbool.h>

/* The SHA-256 that ht_file_verify() found for this very file. list: path of the text file; NULL
 * knows nothing. A list that others may write is not read. */
bool ht_file_recorded(const ht_file *, const char *list, char hex[65]);
/* The same, and it is the digest that the pack states of itself. */
bool ht_pack_trusted(const ht_file *, const char *list);
/* Enter a file that ht_file_verify() has just accepted with this digest; the newest 256 are kept.
 * Makes the list's directory when only that is missing. HT_EIO: the list cannot be written; the
 * file is as usable as before. */
HT_MUST_USE int ht_file_record(const ht_file *, const char *list, const char *hex, ht_err *);
#endif
